"""Translates patterns of java.util.regex, which option subscribePattern uses in Spark's Kafka source, for Python's
`re`.

The parser reads a pattern as Java's does (JDK 17), also in odd cases: the operands of `&&` in a class, the end of a
flag, a `{2}` after a quantifier.  A topic's name has only ASCII letters, digits, `.`, `_` and `-`.  So each class of
characters becomes the list of the printable ASCII characters that it matches, in both cases if case is ignored, and a
line can end only at the end of the name.  A pattern may match anywhere in a name, as in Spark: `orders` matches
`orders-eu`, and `^orders$` does not.

Patterns that Java refuses are refused, and so are patterns that `re` cannot express; the error says why.  This module
does not depend on Spark.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

from kafkalog.errors import IllegalArgumentException

BLANKS = "".join(map(chr, range(0x21)))  # String.trim removes these from both ends of a value
# The characters that a class is tested with.  Topic names use fewer of them; the rest costs nothing.
CHARACTERS = [chr(code) for code in range(0x20, 0x7F)]
MOST_TIMES = 2**31 - 1
Predicate = Callable[[str], bool]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
# Non-ASCII characters that equal an ASCII letter by Character.toLowerCase(Character.toUpperCase(c)).
_FOLDS = {"\u0130": "i", "\u0131": "i", "\u017f": "s", "\u212a": "k"}
_FLAGS = frozenset("idmsuxUc")
_ESCAPED = {"a": "\a", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HORIZONTAL = frozenset(" \t\xa0\u1680\u180e\u202f\u205f\u3000") | {chr(code) for code in range(0x2000, 0x200B)}
_VERTICAL = frozenset("\n\x0b\f\r\x85\u2028\u2029")
_NOTHING, _ALWAYS = "(?!)", "(?:)"


class JavaPattern:
    """A pattern that can be searched in a topic's name.

        JavaPattern(r"orders-[a-z&&[^b]]+").finds("orders-eu")

    Raises IllegalArgumentException if the text is not a Java pattern, or if `re` cannot express it.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._found = re.compile(_translated(text))

    def finds(self, topic: str) -> bool:
        """Whether the pattern matches somewhere in the name."""
        return self._found.search(topic) is not None


@lru_cache(maxsize=64)
def java_pattern(text: str) -> JavaPattern:
    """Returns the JavaPattern of a text, from a cache."""
    return JavaPattern(text)


def _translated(text: str) -> str:
    try:
        found = _Parser(text).translated()
        re.compile(found)
    except _RefusedError as error:
        raise IllegalArgumentException(
            f"option subscribePattern is {text!r}: {error}", hint="expected a regular expression of java.util.regex"
        ) from None
    except (re.error, OverflowError, RecursionError) as error:
        raise IllegalArgumentException(
            f"option subscribePattern is {text!r}, which Python's re cannot express: {error}",
            hint="write the pattern in another way, or list the topics in option subscribe",
        ) from None
    return found


class _RefusedError(Exception):
    """Says why a text is not a pattern."""


class _Parser:
    """Parses one pattern; `_at` is the position of the next character."""

    def __init__(self, text: str) -> None:
        self._text = _without_quotes(text)
        self._at = 0
        self._flags: frozenset[str] = frozenset()
        self._groups = 0
        self._open: set[int] = set()
        self._names: dict[str, int] = {}
        self._is_behind = False  # within a look-behind

    def translated(self) -> str:
        found = self._alternatives()
        if self._at < len(self._text):
            raise _RefusedError("found a ')' without its '('")
        return found

    # --- characters, without the comments of (?x) -----------------------------------------------------

    def _here(self) -> str:
        """Returns the next character, or "" at the end."""
        if "x" in self._flags:
            self._skip_comments()
        return self._text[self._at : self._at + 1]

    def _skip_comments(self) -> None:
        text = self._text
        while self._at < len(text):
            if text[self._at] in " \t\n\x0b\f\r":
                self._at += 1
            elif text[self._at] == "#":
                ends = [end for end in (text.find(line, self._at) for line in _VERTICAL - {"\x0b", "\f"}) if end >= 0]
                self._at = min(ends, default=len(text))
            else:
                return

    def _take(self) -> str:
        """Takes the next character, also one of a comment."""
        found = self._text[self._at : self._at + 1]
        self._at += 1
        return found

    def _step(self) -> str:
        """Moves past this character, and returns the next one."""
        self._at += 1
        return self._here()

    # --- structure ------------------------------------------------------------------------------------

    def _alternatives(self) -> str:
        found = [self._sequence()]
        while self._here() == "|":
            self._at += 1
            found.append(self._sequence())
        return "|".join(found)

    def _sequence(self) -> str:
        parts = []
        while (here := self._here()) not in ("", "|", ")"):
            if here == "(":
                parts.append(self._group())
                continue
            if here in "*+?":
                raise _RefusedError(f"found a {here!r} with nothing before it to repeat")
            parts.append(self._repeated(self._atom(here)))
        return "".join(parts)

    def _atom(self, here: str) -> str:
        if here == "[":
            return _listed(self._class())
        if here == "\\":
            return self._escape()
        if here == "{":
            return _ALWAYS  # as in Java, where it repeats the empty text before it
        self._at += 1
        if here == ".":
            return _listed(lambda each: True)
        if here == "^":
            return r"\A"
        if here == "$":
            return r"\Z"
        return _listed(self._single(here))

    def _repeated(self, atom: str) -> str:
        here = self._here()
        if here and here in "?*+":
            self._at += 1
            times = here
        elif here == "{":
            times = self._times()
        else:
            return atom
        inner = atom if _is_unit(atom) else f"(?:{atom})"
        kind = self._here()
        if kind == "?":
            self._at += 1
            return f"(?:{inner}{times}?)"
        if kind == "+":
            self._at += 1
            return f"(?>(?>{inner}){times})"  # as in Java, no repetition backtracks either
        return f"(?:{inner}{times})"

    def _times(self) -> str:
        found = re.compile(r"\{(\d+)(,?)(\d*)", re.ASCII).match(self._text, self._at)
        if found is None:
            raise _RefusedError("found a '{' without a number of times")
        least, comma, most = found.groups()
        if not self._text.startswith("}", found.end()):
            raise _RefusedError("found a '{' without its '}'")
        if max(int(least), int(most or 0)) > MOST_TIMES or (most and int(most) < int(least)):
            raise _RefusedError(f"found {found[0]}}}, expected a possible number of repetitions")
        self._at = found.end() + 1
        return f"{{{int(least)}{comma}{most and int(most)}}}"

    def _group(self) -> str:
        before = self._flags
        if self._step() != "?":
            return self._closed(before, self._captured())
        self._at += 1
        kind = self._take()
        if kind in (":", "=", "!", ">"):
            return self._closed(before, f"(?{kind}{self._alternatives()}")
        if kind == "<":
            if self._text[self._at : self._at + 1] in ("=", "!"):
                return self._closed(before, self._behind(self._take()))
            name = self._name()
            if name in self._names:
                raise _RefusedError(f"the group {name} is defined twice")
            self._names[name] = self._groups + 1
            return self._closed(before, self._captured())
        if kind in ("", "$", "@"):
            raise _RefusedError("found a '(?' of an unknown kind")
        self._at -= 1
        self._take_flags()
        kind = self._take()
        if kind == ")":
            return ""  # the flags apply to the rest of the group around it
        if kind != ":":
            raise _RefusedError(f"found an unknown flag {kind!r}")
        return self._closed(before, f"(?:{self._alternatives()}")

    def _captured(self) -> str:
        self._groups += 1
        number = self._groups
        self._open.add(number)
        found = f"({self._alternatives()}"
        self._open.discard(number)
        return found

    def _closed(self, flags: frozenset[str], group: str) -> str:
        if self._here() != ")":
            raise _RefusedError("found a '(' without its ')'")
        self._at += 1
        self._flags = flags
        return self._repeated(f"{group})")

    def _behind(self, kind: str) -> str:
        """Translates a look-behind: each alternative becomes a separate one, since their lengths may differ."""
        is_behind, self._is_behind = self._is_behind, True
        each = [self._sequence()]
        while self._here() == "|":
            self._at += 1
            each.append(self._sequence())
        self._is_behind = is_behind
        if kind == "!":
            return "(?:" + "".join(f"(?<!{text})" for text in each)
        return "(?:" + "|".join(f"(?<={text})" for text in each)

    def _name(self) -> str:
        found = re.compile(r"[a-zA-Z][a-zA-Z0-9]*").match(self._text, self._at)
        if found is None or not self._text.startswith(">", found.end()):
            raise _RefusedError("found an invalid group name, expected letters and digits in <>")
        self._at = found.end() + 1
        return found[0]

    def _take_flags(self) -> None:
        adds = True
        while True:
            here = self._here()
            if here == "-" and adds:
                adds = False
            elif here and here in _FLAGS:
                both = {here, "u"} if here == "U" else {here}
                self._flags = self._flags | both if adds else self._flags - both
            else:
                return
            self._at += 1

    # --- escapes --------------------------------------------------------------------------------------

    def _escape(self) -> str:
        """Translates an escape outside of a class, after its backslash."""
        self._at += 1
        kind = self._take()
        if kind in ("p", "P"):
            return _listed(self._property(kind == "P"))
        if kind and kind in "123456789":
            return self._reference(int(kind))
        if kind == "k":
            if self._take() != "<":
                raise _RefusedError(r"found a \k without a group's name in <>")
            name = self._name()
            if name not in self._names:
                raise _RefusedError(f"there is no group {name} before the reference to it")
            return self._referred(self._names[name])
        if kind == "b" and self._text.startswith("{g}", self._at):
            self._at += 3
            return _ALWAYS  # every character is a grapheme of its own
        if kind == "X" and self._is_behind:
            raise _RefusedError(r"found a \X in a look-behind, where its length is unknown")
        known = {
            "A": r"\A", "G": r"\A", "Z": r"\Z", "z": r"\Z", "b": r"\b", "B": r"\B", "R": _NOTHING,
            "X": _listed(lambda each: True),
        }  # fmt: skip
        if kind in known:
            return known[kind]
        found = self._class_escape(kind)
        return _listed(self._single(found) if isinstance(found, str) else found)

    def _reference(self, number: int) -> str:
        while (here := self._here()) and here in DIGITS and number * 10 + int(here) <= self._groups:
            number = number * 10 + int(here)
            self._at += 1
        if number > self._groups:
            raise _RefusedError(f"there is no group {number} before \\{number}, so it never matches")
        return self._referred(number)

    def _referred(self, number: int) -> str:
        if number in self._open:
            raise _RefusedError(f"\\{number} is inside the group {number}, which re does not accept")
        return f"(?i:(?:\\{number}))" if "i" in self._flags else f"(?:\\{number})"

    def _class_escape(self, kind: str, *, is_range: bool = False) -> str | Predicate:
        """Returns the meaning of an escape with the letter `kind`: a character, or a set of characters."""
        if kind == "v" and is_range:
            return "\x0b"
        if kind in _ESCAPED:
            return _ESCAPED[kind]
        if kind and kind in "dDhHsSvVwW":
            return _predefined(kind)
        if kind == "0":
            found = re.compile(r"[0-3][0-7]{2}|[0-7]{1,2}").match(self._text, self._at)
            if found is None:
                raise _RefusedError(r"found a \0 without octal digits")
            self._at = found.end()
            return chr(int(found[0], 8))
        if kind == "c":
            if not (of := self._take()):
                raise _RefusedError(r"found a \c at the end")
            return chr(ord(of) ^ 64)
        if kind == "x":
            return self._matched(r"([0-9a-fA-F]{2})|\{([0-9a-fA-F]+)\}", r"\x")
        if kind == "u":
            first = self._matched("([0-9a-fA-F]{4})", r"\u")
            second = re.compile(r"\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE).match(self._text, self._at)
            if "\ud800" <= first <= "\udbff" and second is not None:
                self._at = second.end()
                return chr(0x10000 + (ord(first) - 0xD800) * 0x400 + int(second[1], 16) - 0xDC00)
            return first
        if kind == "N":
            found = re.compile(r"\{([^}]*)\}").match(self._text, self._at)
            try:
                character = unicodedata.lookup(found[1] if found else "")
            except KeyError:
                raise _RefusedError(r"found a \N without the name of a character in {}") from None
            assert found is not None
            self._at = found.end()
            return character
        if not kind or (kind.isascii() and kind.isalnum()):
            raise _RefusedError(f"found an unknown escape: \\{kind}")
        return kind

    def _matched(self, pattern: str, what: str) -> str:
        found = re.compile(pattern).match(self._text, self._at)
        if found is None:
            raise _RefusedError(f"found a {what} without hexadecimal digits")
        code = int(found[found.lastindex or 1], 16)
        if code > 0x10FFFF:
            raise _RefusedError(f"found {what} {found[0]}, expected a character")
        self._at = found.end()
        return chr(code)

    # --- classes --------------------------------------------------------------------------------------

    def _single(self, character: str) -> Predicate:
        return _single_of(character, self._flags)

    def _class(self, consume: bool = True) -> Predicate:
        """Parses a class from its `[`, or the right side of `&&` from before its first character, as Pattern.clazz
        does."""
        before: Predicate | None = None
        singles: set[str] = set()
        has_singles = is_negated = False
        here = self._step()
        if here == "^" and self._text[self._at - 1 : self._at] == "[":
            here = self._step()
            is_negated = True
        while True:
            if here == "[":
                before = _either(before, self._class())
                here = self._here()
                continue
            if here == "&":
                here = self._step()
                if here == "&":
                    self._at += 1
                    right = self._right_of_and()
                    here = self._here()
                    if has_singles:
                        before, has_singles = _either(before, singles.__contains__), False
                    if right is None:  # Java takes what was before the last character, or fails
                        raise _RefusedError("found a && with nothing after it")
                    before = right if before is None else _both(before, right)
                    continue
                self._at -= 1
            elif here == "":
                raise _RefusedError("found a '[' without its ']'")
            elif here == "]" and (before is not None or has_singles):
                if consume:
                    self._at += 1
                if has_singles:
                    before = _either(before, singles.__contains__)
                assert before is not None
                return _not(before) if is_negated else before
            found = self._range()
            if isinstance(found, str):
                single = _single_of(found, self._flags)
                singles.update(each for each in CHARACTERS if single(each))
                has_singles = True
            else:
                before = _either(before, found)
            here = self._here()

    def _right_of_and(self) -> Predicate | None:
        right: Predicate | None = None
        while (here := self._here()) not in ("]", "&"):
            if here == "[":
                right = _either(right, self._class())
            else:
                self._at -= 1
                right = _either(right, self._class(consume=False))
        return right

    def _range(self) -> str | Predicate:
        """Parses a character, or the set of a property, an escape or a range."""
        first = self._here()
        if first == "\\":
            self._at += 1
            kind = self._take()
            if kind in ("p", "P"):
                return self._property(kind == "P")
            found = self._class_escape(kind, is_range=self._text.startswith("-", self._at))
            if not isinstance(found, str):
                return found
            first = found
        else:
            self._at += 1
        if self._here() != "-":
            return first
        behind = self._text[self._at + 1 : self._at + 2]
        if behind in ("[", "]"):
            return first
        last = self._step()
        if last == "\\":
            self._at += 1
            end = self._class_escape(self._take(), is_range=True)
            if not isinstance(end, str):
                raise _RefusedError("found a range that ends with a class")
            last = end
        else:
            self._at += 1
        if last < first:
            raise _RefusedError(f"found a range from {first!r} to {last!r}")
        if "i" not in self._flags:
            return lambda each: first <= each <= last
        return lambda each: any(first <= case <= last for case in (each, each.upper(), each.lower()))

    def _property(self, is_complement: bool) -> Predicate:
        if self._here() == "{":
            end = self._text.find("}", self._at)
            if end < 0:
                raise _RefusedError(r"found a \p{ without its }")
            name, self._at = self._text[self._at + 1 : end], end + 1
        else:
            name = self._take()
        found = _property_of(name, self._flags)
        return _not(found) if is_complement else found


# --- sets of characters -------------------------------------------------------------------------------


def _listed(holds: Predicate) -> str:
    """Returns a class of `re` with the characters for which a predicate holds."""
    found = [each for each in CHARACTERS if holds(each)]
    return "[" + "".join(map(re.escape, found)) + "]" if found else _NOTHING


def _is_unit(text: str) -> bool:
    """Whether a quantifier may follow the text: a class allows it; assertions and groups are wrapped first."""
    return text.startswith("[")


def _either(one: Predicate | None, other: Predicate) -> Predicate:
    return other if one is None else lambda each: one(each) or other(each)


def _both(one: Predicate, other: Predicate) -> Predicate:
    return lambda each: one(each) and other(each)


def _not(one: Predicate) -> Predicate:
    return lambda each: not one(each)


def _single_of(character: str, flags: frozenset[str]) -> Predicate:
    if "i" not in flags:
        return character.__eq__
    if "u" in flags:
        character = _FOLDS.get(character, character)
    return {character, *(case(character) for case in (str.lower, str.upper) if character.isascii())}.__contains__


def _predefined(kind: str) -> Predicate:
    holds = {
        "d": DIGITS.__contains__,
        "h": _HORIZONTAL.__contains__,
        "s": " \t\n\x0b\f\r".__contains__,
        "v": _VERTICAL.__contains__,
        "w": f"{LETTERS}{LETTERS.upper()}{DIGITS}_".__contains__,
    }[kind.lower()]
    return _not(holds) if kind.isupper() else holds


def _is_lower(each: str) -> bool:
    return "a" <= each <= "z"


def _is_upper(each: str) -> bool:
    return "A" <= each <= "Z"


def _is_letter(each: str) -> bool:
    return _is_lower(each) or _is_upper(each)


def _is_alnum(each: str) -> bool:
    return _is_letter(each) or each in DIGITS


def _category(*names: str) -> Predicate:
    return lambda each: unicodedata.category(each).startswith(names)


def _never(each: str) -> bool:
    return False


def _ever(each: str) -> bool:
    return True


def _printable(each: str) -> bool:
    return True  # all CHARACTERS are printable


_POSIX: dict[str, Predicate] = {
    "Lower": _is_lower,
    "Upper": _is_upper,
    "ASCII": _ever,
    "Alpha": _is_letter,
    "Digit": DIGITS.__contains__,
    "Alnum": _is_alnum,
    "Punct": lambda each: each != " " and not _is_alnum(each),
    "Graph": lambda each: each != " ",
    "Print": _printable,
    "Blank": " ".__eq__,
    "Cntrl": _never,
    "XDigit": f"{DIGITS}abcdefABCDEF".__contains__,
    "Space": " ".__eq__,
}
_OF_CHARACTER: dict[str, Predicate] = {  # java.lang.Character.is...
    "javaLowerCase": _is_lower,
    "javaUpperCase": _is_upper,
    "javaAlphabetic": _is_letter,
    "javaIdeographic": _never,
    "javaTitleCase": _never,
    "javaDigit": DIGITS.__contains__,
    "javaDefined": _ever,
    "javaLetter": _is_letter,
    "javaLetterOrDigit": _is_alnum,
    "javaJavaIdentifierStart": lambda each: _is_letter(each) or each in "_$",
    "javaJavaIdentifierPart": lambda each: _is_alnum(each) or each in "_$",
    "javaUnicodeIdentifierStart": _is_letter,
    "javaUnicodeIdentifierPart": lambda each: _is_alnum(each) or each == "_",
    "javaIdentifierIgnorable": _never,
    "javaSpaceChar": " ".__eq__,
    "javaWhitespace": " ".__eq__,
    "javaISOControl": _never,
    "javaMirrored": lambda each: bool(unicodedata.mirrored(each)),
}
_BINARY: dict[str, Predicate] = {  # \p{Is...}, in any case
    "ALPHABETIC": _is_letter,
    "LETTER": _is_letter,
    "IDEOGRAPHIC": _never,
    "LOWERCASE": _is_lower,
    "UPPERCASE": _is_upper,
    "TITLECASE": _never,
    "WHITE_SPACE": " ".__eq__,
    "WHITESPACE": " ".__eq__,
    "CONTROL": _never,
    "PUNCTUATION": _category("P"),
    "HEX_DIGIT": _POSIX["XDigit"],
    "HEXDIGIT": _POSIX["XDigit"],
    "ASSIGNED": _ever,
    "NONCHARACTER_CODE_POINT": _never,
    "NONCHARACTERCODEPOINT": _never,
    "DIGIT": DIGITS.__contains__,
    "ALNUM": _is_alnum,
    "BLANK": " ".__eq__,
    "GRAPH": _POSIX["Graph"],
    "PRINT": _printable,
    "WORD": _predefined("w"),
    "JOIN_CONTROL": _never,
    "JOINCONTROL": _never,
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CATEGORIES = _words(
    "Cn Lu Ll Lt Lm Lo Mn Me Mc Nd Nl No Zs Zl Zp Cc Cf Co Cs Pd Ps Pe Pc Po Sm Sc Sk So Pi Pf L M N Z C P S"
)
_ANY_CASE = {  # with (?i)
    **dict.fromkeys(
        ("Lower", "Upper", "Lu", "Ll", "Lt", "javaLowerCase", "javaUpperCase", "javaTitleCase"), _is_letter
    ),
    **dict.fromkeys(("LOWERCASE", "UPPERCASE", "TITLECASE"), _is_letter),
}
# Scripts and blocks without an ASCII character, by Java's names and ISO 15924's.  Other names of Java are refused.
_SCRIPTS = _words(
    "GREEK GREK CYRILLIC CYRL ARMENIAN ARMN HEBREW HEBR ARABIC ARAB SYRIAC SYRC THAANA THAA DEVANAGARI DEVA BENGALI "
    "BENG GURMUKHI GURU GUJARATI GUJR ORIYA ORYA TAMIL TAML TELUGU TELU KANNADA KNDA MALAYALAM MLYM SINHALA SINH "
    "THAI LAO LAOO TIBETAN TIBT MYANMAR MYMR GEORGIAN GEOR HANGUL HANG ETHIOPIC ETHI CHEROKEE CHER KHMER KHMR "
    "MONGOLIAN MONG HIRAGANA HIRA KATAKANA KANA BOPOMOFO BOPO HAN HANI YI YIII GOTHIC GOTH COPTIC COPT INHERITED "
    "ZINH UNKNOWN ZZZZ BRAILLE BRAI RUNIC RUNR OGHAM OGAM"
)
_BLOCKS = _words(
    "LATIN1SUPPLEMENT LATIN-1SUPPLEMENT LATINEXTENDED-A LATINEXTENDED-B GREEK GREEKANDCOPTIC CYRILLIC ARMENIAN "
    "HEBREW ARABIC DEVANAGARI THAI HIRAGANA KATAKANA HANGULSYLLABLES CJKUNIFIEDIDEOGRAPHS GENERALPUNCTUATION "
    "EMOTICONS CURRENCYSYMBOLS ARROWS MATHEMATICALOPERATORS"
)


def _property_of(name: str, flags: frozenset[str]) -> Predicate:
    """Returns the characters of `\\p{name}`, looked up in the order of Pattern.family."""
    any_case = "i" in flags
    key, equals, value = name.partition("=")
    found: Predicate | None
    if equals:
        key = key.lower()
        if key in ("sc", "script"):
            found = _script(value)
        elif key in ("blk", "block"):
            found = _block(value)
        else:
            found = _general(value, any_case) if key in ("gc", "general_category") else None
    elif name.startswith("In"):
        found = _block(name[2:])
    elif name.startswith("Is"):
        shown = name[2:].upper()
        found = _cased(shown, _BINARY, any_case) or _general(name[2:], any_case) or _script(name[2:])
    else:
        found = None
        if "U" in flags:
            found = _BINARY["PUNCTUATION"] if name.upper() == "PUNCT" else _cased(name.title(), _POSIX, any_case)
            found = found if name.upper() != "XDIGIT" else _POSIX["XDigit"]
        found = found or _general(name, any_case)
    if found is None:
        raise _RefusedError(f"found \\p{{{name}}}, an unknown property")
    return found


def _cased(name: str, table: dict[str, Predicate], any_case: bool) -> Predicate | None:
    return _ANY_CASE[name] if any_case and name in _ANY_CASE and name in table else table.get(name)


def _general(name: str, any_case: bool) -> Predicate | None:
    """Looks up a category, or one of the names that need no `Is`."""
    if any_case and name in _ANY_CASE:
        return _ANY_CASE[name]
    if name in _CATEGORIES:
        return _category(name)
    more: dict[str, Predicate] = {"LC": _is_letter, "LD": _is_alnum, "L1": _ever, "all": _ever}
    return more.get(name) or _POSIX.get(name) or _OF_CHARACTER.get(name)


def _script(name: str) -> Predicate | None:
    upper = name.upper()
    if upper in ("LATIN", "LATN"):
        return _is_letter
    if upper in ("COMMON", "ZYYY"):
        return _not(_is_letter)
    return _never if upper in _SCRIPTS else None


def _block(name: str) -> Predicate | None:
    plain = name.upper().replace("_", "").replace(" ", "")
    if plain == "BASICLATIN":
        return _ever
    return _never if plain in _BLOCKS else None


def _without_quotes(text: str) -> str:
    r"""Returns the pattern without \Q...\E, with each quoted character escaped, as Pattern.RemoveQEQuoting does it."""
    at = 0
    while at < len(text) - 1:
        if text[at] != "\\":
            at += 1
        elif text[at + 1] != "Q":
            at += 2
        else:
            break
    if at >= len(text) - 1:
        return text
    made = [text[:at]]
    at += 2
    is_quoted = is_first = True
    while at < len(text):
        here = text[at]
        at += 1
        if here == "\\":
            behind = text[at : at + 1]
            if is_quoted and behind == "E":
                at, is_quoted = at + 1, False
            elif is_quoted:
                made.append("\\\\")
            elif behind == "Q":
                at, is_quoted, is_first = at + 1, True, True
                continue
            else:
                made.append(here + behind)
                at += 1
        elif here.isascii() and here.isdigit() and is_first and is_quoted:
            made.append(f"\\x3{here}")  # must not continue an escape before the quote
        elif is_quoted and here.isascii() and not here.isalnum():
            made.append("\\" + here)
        else:
            made.append(here)
        is_first = False
    return "".join(made)


__all__ = ["BLANKS", "JavaPattern", "java_pattern"]
