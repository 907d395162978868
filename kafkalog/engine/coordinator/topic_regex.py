"""Regular expressions of clients: the language of RE2/J, matched against names of topics and transactional ids.

    compile_regex("orders-.*").matches("orders-eu")
    compile_for(letters_of(ids), "été.*").matches("été-1")

Python's `re` accepts and refuses other expressions, and some take it exponential time, which a client must not be able
to order. So an expression is parsed here by RE2's grammar, and becomes an automaton that reads a name once. Only the
letters that the names have matter, by default those of topics, which keeps the automaton small. Its states are made
when a name first reaches them. The script of a letter beyond ASCII is taken from its Unicode name.

An expression that RE2/J refuses raises InvalidRegularExpression with RE2/J's reason. Source: the syntax page of RE2,
and Parser of RE2/J 1.8.
"""

from __future__ import annotations

import functools
import string
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kafkalog.errors import InvalidRegularExpression

LETTERS_OF_TOPICS = frozenset(string.ascii_letters + string.digits + "._-")
WORD = frozenset(string.ascii_letters + string.digits + "_")
STATES_MAX = 10_000  # for one expression; RE2/J would run out of memory or stack instead
KEPT_MAX = 10_000  # places in the automaton's states that one expression keeps
REPEAT_MAX = 1000

RANGE = "invalid character class range"
ESCAPE = "invalid escape sequence"
NAMED = "invalid named capture"
PERL = "invalid or unsupported Perl syntax"
NESTED = "invalid nested repetition operator"
COUNT = "invalid repeat count"
NO_BRACKET = "missing closing ]"
NO_PAREN = "missing closing )"
NO_ARGUMENT = "missing argument to repetition operator"
TRAILING = "trailing backslash at end of expression"
DUPLICATE = "duplicate capture group name"
INTERNAL = "regexp/syntax: internal error"

SPACES = "\t\n\v\f\r "
POSIX = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "ascii": "".join(map(chr, range(0x80))),
    "blank": "\t ",
    "cntrl": "".join(map(chr, range(0x20))) + "\x7f",
    "digit": string.digits,
    "graph": string.ascii_letters + string.digits + string.punctuation,
    "lower": string.ascii_lowercase,
    "print": string.ascii_letters + string.digits + string.punctuation + " ",
    "punct": string.punctuation,
    "space": SPACES,
    "upper": string.ascii_uppercase,
    "word": string.ascii_letters + string.digits + "_",
    "xdigit": string.hexdigits,
}
PERL_CLASSES = {"d": string.digits, "s": "\t\n\f\r ", "w": string.ascii_letters + string.digits + "_"}
CONTROLS = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
CATEGORY_NAMES = """
    C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs
"""
CATEGORIES = frozenset(CATEGORY_NAMES.split())
# RE2/J adds these to small letters if case does not matter: those that equal two others.
_LIKE_SMALL = """
    4b 53 c5 1c4 1c5 1c7 1c8 1ca 1cb 1f1 1f2 345 392 395 398 399 39a 39c 3a0 3a1 3a3 3a6 3a9 3f4 1e60 1e9e 2126 212a
    212b
"""
LIKE_SMALL = frozenset(chr(int(each, 16)) for each in _LIKE_SMALL.split())
SCRIPT_NAMES = """
    Arabic Armenian Avestan Balinese Bamum Batak Bengali Bopomofo Brahmi Braille Buginese Buhid Canadian_Aboriginal
    Carian Cham Cherokee Common Coptic Cuneiform Cypriot Cyrillic Deseret Devanagari Egyptian_Hieroglyphs Ethiopic
    Georgian Glagolitic Gothic Greek Gujarati Gurmukhi Han Hangul Hanunoo Hebrew Hiragana Imperial_Aramaic Inherited
    Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kayah_Li Kharoshthi Khmer Lao Latin
    Lepcha Limbu Linear_B Lisu Lycian Lydian Malayalam Mandaic Meetei_Mayek Mongolian Myanmar New_Tai_Lue Nko Ogham
    Ol_Chiki Old_Italic Old_Persian Old_South_Arabian Old_Turkic Oriya Osmanya Phags_Pa Phoenician Rejang Runic
    Samaritan Saurashtra Shavian Sinhala Sundanese Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet
    Tamil Telugu Thaana Thai Tibetan Tifinagh Ugaritic Unknown Vai Yi
"""
SCRIPTS = frozenset(SCRIPT_NAMES.split())
# How the Unicode names of a script's letters begin, the longest first.
_SCRIPT_STARTS = sorted(
    [
        *((f"{each.upper().replace('_', ' ')} ", each) for each in SCRIPTS - {"Common", "Inherited", "Unknown"}),
        ("CJK ", "Han"),
        ("CANADIAN SYLLABICS ", "Canadian_Aboriginal"),
        ("KELVIN ", "Latin"),
        ("ANGSTROM ", "Latin"),
        ("OHM ", "Greek"),
    ],
    reverse=True,
)
# Letters beyond ASCII that equal an ASCII letter if case does not matter: long s, and the sign of kelvin.
ALSO = {"s": "\u017f", "S": "\u017f", "k": "\u212a", "K": "\u212a"}


class _Refused(Exception):
    """The reason for which RE2/J refuses an expression."""


Letters = frozenset[str]


def letters_of(names: Iterable[str]) -> Letters:
    """Returns the letters to compile an expression for: those of topics, and those of the names."""
    return LETTERS_OF_TOPICS.union(*names)


def _orbit(letter: str) -> str:
    return letter.lower() + letter.upper() + letter.title() + ALSO.get(letter, "")


# --- nodes ------------------------------------------------------------------------------------------------------------


class _Set(NamedTuple):
    letters: Letters


class _Assert(NamedTuple):
    kind: str  # begin, end, begin of line, end of line, word, no word


class _Concat(NamedTuple):
    parts: list[_Node]


class _Alternate(NamedTuple):
    parts: list[_Node]


class _Repeat(NamedTuple):
    part: _Node
    least: int
    most: int  # -1: any number


_Node = _Set | _Assert | _Concat | _Alternate | _Repeat


class _Flags(NamedTuple):
    fold: bool = False
    single_line: bool = True
    dot_newline: bool = False
    non_greedy: bool = False

    def inverted(self) -> _Flags:
        return _Flags(*(not each for each in self))


class _Parser:
    """A recursive parser; groups are a stack, so that a deep expression does not use up Python's."""

    def __init__(self, text: str, alphabet: Letters) -> None:
        self.text = text
        self.alphabet = alphabet
        self.sorted: list[str] = []  # the alphabet, once a range needs it
        self.at = 0
        self.flags = _Flags()
        self.names: set[str] = set()
        self.branches: list[list[_Node]] = [[]]  # the innermost group's; the last is being read
        self.outer: list[tuple[list[list[_Node]], _Flags]] = []
        self.repeated_at = -1  # where the previous token began, if it was a repetition

    def parse(self) -> _Node:
        while self.at < len(self.text):
            self._token()
        if self.outer:
            raise _Refused(NO_PAREN)
        return self._closed()

    def _closed(self) -> _Node:
        parts: list[_Node] = [_Concat(each) for each in self.branches]
        return parts[0] if len(parts) == 1 else _Alternate(parts)

    def _letters(self, has: Callable[[str], bool], *, fold: bool) -> Letters:
        """Returns the letters of the alphabet that a set has; with `fold`, those that equal one of its letters."""
        return frozenset(each for each in self.alphabet if any(map(has, _orbit(each) if fold else each)))

    def _push(self, node: _Node) -> None:
        self.branches[-1].append(node)

    def _starts(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def _pop(self) -> str:
        self.at += 1
        return self.text[self.at - 1]

    def _token(self) -> None:
        before, repeated = self.at, self.repeated_at
        self.repeated_at = -1
        char = self.text[self.at]
        if char == "(":
            self._open()
        elif char == "|":
            self.at += 1
            self.branches.append([])
        elif char == ")":
            self._close()
        elif char == "^":
            self.at += 1
            self._push(_Assert("begin" if self.flags.single_line else "begin of line"))
        elif char == "$":
            self.at += 1
            self._push(_Assert("end" if self.flags.single_line else "end of line"))
        elif char == ".":
            self.at += 1
            self._push(_Set(self.alphabet if self.flags.dot_newline else self.alphabet - {"\n"}))
        elif char == "[":
            self._push(_Set(self._class()))
        elif char in "*+?":
            self.at += 1
            self._repeat(*{"*": (0, -1), "+": (1, -1), "?": (0, 1)}[char], before, repeated)
        elif char == "{":
            counts = self._counts()
            if counts is None:
                self.at = before + 1
                self._literal("{")
                self.repeated_at = before  # RE2/J takes this brace for a repetition if another one follows
            else:
                self._repeat(*counts, before, repeated)
        elif char == "\\":
            self._escaped()
        else:
            self.at += 1
            self._literal(char)

    def _literal(self, char: str) -> None:
        if self.flags.fold:
            self._push(_Set(self._letters(lambda each: each == char, fold=True)))
        else:
            self._push(_Set(self.alphabet & {char}))

    # --- groups ---

    def _open(self) -> None:
        if not self._starts("(?"):
            self.at += 1
            self._enter(self.flags)
            return
        for start in ("(?P<", "(?<"):
            if self._starts(start):
                self._named(start)
                return
        self.at += 2
        flags, sign, saw = self.flags, 1, False
        while self.at < len(self.text):
            char = self._pop()
            if char in "imsU":
                saw = True
                if char == "m":
                    flags = flags._replace(single_line=False)
                else:
                    flags = flags._replace(**{{"i": "fold", "s": "dot_newline", "U": "non_greedy"}[char]: True})
            elif char == "-" and sign > 0:
                sign, saw, flags = -1, False, flags.inverted()
            elif char in ":)" and (sign > 0 or saw):
                if sign < 0:
                    flags = flags.inverted()
                if char == ":":
                    self._enter(flags)
                self.flags = flags
                return
            else:
                break
        raise _Refused(PERL)

    def _named(self, start: str) -> None:
        end = self.text.find(">", self.at)
        if end < 0:
            raise _Refused(NAMED)
        name = self.text[self.at + len(start) : end]
        if not name or any(each not in WORD for each in name):
            raise _Refused(NAMED)
        if name in self.names:
            raise _Refused(DUPLICATE)
        self.names.add(name)
        self.at = end + 1
        self._enter(self.flags)

    def _enter(self, flags: _Flags) -> None:
        self.outer.append((self.branches, self.flags))
        self.branches, self.flags = [[]], flags

    def _close(self) -> None:
        if not self.outer:
            raise _Refused(INTERNAL)
        self.at += 1
        node = self._closed()
        self.branches, self.flags = self.outer.pop()
        self._push(node)

    # --- repetitions ---

    def _repeat(self, least: int, most: int, before: int, repeated: int) -> None:
        if self._starts("?"):
            self.at += 1
        if repeated != -1:
            raise _Refused(NESTED)
        if not self.branches[-1]:
            raise _Refused(NO_ARGUMENT)
        part = self.branches[-1].pop()
        self._push(_Repeat(part, least, most))
        self.repeated_at = before

    def _counts(self) -> tuple[int, int] | None:
        """Parses {n}, {n,} or {n,m}; None if the brace is a literal."""
        self.at += 1
        least = most = self._number()
        if least is None or self.at >= len(self.text):
            return None
        if self._starts(","):
            self.at += 1
            most = -1
            if not self._starts("}"):
                most = self._number()
                if most is None:
                    return None
        if not self._starts("}"):
            return None
        self.at += 1
        assert most is not None
        if least > REPEAT_MAX or most > REPEAT_MAX or 0 <= most < least:
            raise _Refused(COUNT)
        return least, most

    def _number(self) -> int | None:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] in string.digits:
            self.at += 1
        digits = self.text[start : self.at]
        if not digits or (len(digits) > 1 and digits[0] == "0"):
            return None
        return REPEAT_MAX + 1 if len(digits) > 8 else int(digits)

    # --- escapes and classes ---

    def _escaped(self) -> None:
        before = self.at
        char = self.text[self.at + 1 : self.at + 2]
        if char and char in "AbBzQC":
            self.at += 2
            self._perl_escape(char)
            return
        letters = self._unicode() if char and char in "pP" else self._perl_class()
        if letters is not None:
            self._push(_Set(letters))
            return
        self.at = before
        self._literal(chr(self._escape()))

    def _perl_escape(self, char: str) -> None:
        if char == "C":
            raise _Refused(ESCAPE)
        if char == "Q":
            end = self.text.find("\\E", self.at)
            text = self.text[self.at :] if end < 0 else self.text[self.at : end]
            self.at = len(self.text) if end < 0 else end + 2
            for each in text:
                self._literal(each)
            return
        self._push(_Assert({"A": "begin", "z": "end", "b": "word", "B": "no word"}[char]))

    def _escape(self) -> int:
        self.at += 1
        if self.at >= len(self.text):
            raise _Refused(TRAILING)
        char = self._pop()
        if not (char.isascii() and char.isalnum()):
            return ord(char)
        if char in CONTROLS:
            return CONTROLS[char]
        if char == "0" or (char in "1234567" and self.text[self.at : self.at + 1] in tuple("01234567")):
            start = self.at - 1
            while self.at < min(len(self.text), start + 3) and self.text[self.at] in "01234567":
                self.at += 1
            return int(self.text[start : self.at], 8)
        if char == "x":
            return self._hex()
        raise _Refused(ESCAPE)

    def _hex(self) -> int:
        if self._starts("{"):
            end = self.text.find("}", self.at)
            digits = self.text[self.at + 1 : max(end, self.at)]
            self.at = end + 1
        else:
            digits = self.text[self.at : self.at + 2]
            self.at += 2
            if len(digits) < 2:
                raise _Refused(ESCAPE)
        if not digits or any(each not in string.hexdigits for each in digits) or int(digits, 16) > 0x10FFFF:
            raise _Refused(ESCAPE)
        return int(digits, 16)

    def _perl_class(self) -> Letters | None:
        char = self.text[self.at + 1 : self.at + 2]
        if not self._starts("\\") or char.lower() not in PERL_CLASSES:
            return None
        self.at += 2
        found = self._letters(lambda each: each in PERL_CLASSES[char.lower()], fold=self.flags.fold)
        return found if char.islower() else self.alphabet - found

    def _unicode(self) -> Letters | None:
        """Parses \\pN, \\p{Greek}, \\P{^Greek}."""
        is_negated = self.text[self.at + 1] == "P"
        self.at += 2
        if self.at >= len(self.text):
            raise _Refused(RANGE)
        name = self._pop()
        if name == "{":
            end = self.text.find("}", self.at)
            if end < 0:
                raise _Refused(RANGE)
            name = self.text[self.at : end]
            self.at = end + 1
        if name.startswith("^"):
            is_negated, name = not is_negated, name[1:]
        found = self._unicode_letters(name, fold=self.flags.fold)
        return self.alphabet - found if is_negated else found

    def _unicode_letters(self, name: str, *, fold: bool) -> Letters:
        if name == "Any":
            return self.alphabet
        if name in CATEGORIES:
            found = self._letters(
                lambda each: unicodedata.category(each).startswith(name), fold=fold and name in ("Lu", "Lt")
            )
            return found | (self.alphabet & LIKE_SMALL) if fold and name == "Ll" else found
        if name not in SCRIPTS:
            raise _Refused(RANGE)
        return self._letters(lambda each: _script(each) == name, fold=False)

    def _class(self) -> Letters:
        self.at += 1
        is_negated = self._starts("^")
        self.at += is_negated
        found: set[str] = set()
        is_first = True
        while is_first or not self._starts("]"):
            is_first = False
            named = self._named_class()
            found |= named if named is not None else self._range()
            if self.at > len(self.text):
                break
        self.at += 1
        return self.alphabet - found if is_negated else frozenset(found)

    def _named_class(self) -> Letters | None:
        if self._starts("[:"):
            end = self.text.find(":]", self.at + 2)
            if end < 0:
                return None
            name = self.text[self.at + 2 : end]
            self.at = end + 2
            is_negated = name.startswith("^")
            letters = POSIX.get(name[1:] if is_negated else name)
            if letters is None:
                raise _Refused(RANGE)
            found = self._letters(lambda each: each in letters, fold=self.flags.fold)
            return self.alphabet - found if is_negated else found
        if self._starts("\\p") or self._starts("\\P"):
            return self._unicode()
        return self._perl_class()

    def _range(self) -> Letters:
        low = high = self._class_char()
        if self._starts("-") and self.text[self.at + 1 : self.at + 2] != "]":
            self.at += 1
            high = self._class_char()
            if high < low:
                raise _Refused(RANGE)
        if self.flags.fold:
            return self._letters(lambda each: low <= ord(each) <= high, fold=True)
        self.sorted = self.sorted or sorted(self.alphabet)
        return frozenset(self.sorted[bisect_left(self.sorted, chr(low)) : bisect_right(self.sorted, chr(high))])

    def _class_char(self) -> int:
        if self.at >= len(self.text):
            raise _Refused(NO_BRACKET)
        return self._escape() if self._starts("\\") else ord(self._pop())


def _script(letter: str) -> str:
    if letter.isascii():
        return "Latin" if letter.isalpha() else "Common"
    name = unicodedata.name(letter, "")
    return next((script for start, script in _SCRIPT_STARTS if name.startswith(start)), "Common")


# --- the automaton ----------------------------------------------------------------------------------------------------

# Where a name is read: before its first letter, behind a letter of a word, another letter, or the end of a line.
START, IN_WORD, NO_WORD, NEW_LINE = "start", "word", "no word", "new line"


class _State:
    """One place of an expression: a set of letters to read, or a condition, or free ways to other places."""

    __slots__ = ("assertion", "letters", "ways")

    def __init__(self) -> None:
        self.letters: Letters | None = None
        self.assertion: str | None = None
        self.ways: list[int] = []


class Regex:
    """A compiled expression for names of some letters.

    Thread-safe: threads may make the same state of the automaton twice."""

    def __init__(self, pattern: str, letters: Letters) -> None:
        self.pattern = pattern
        self._states: list[_State] = []
        self._end = self._state()
        begin = self._build(_Parser(pattern, letters).parse(), self._end)
        self._begin = (frozenset((begin,)), START)
        self._steps: dict[tuple[frozenset[int], str, str], frozenset[int]] = {}
        self._kept = 0  # places in the values of _steps

    def matches(self, name: str) -> bool:
        """Returns whether the expression matches the whole name."""
        places, behind = self._begin
        for letter in name:
            key = places, behind, letter
            found = self._steps.get(key)
            if found is None:
                found = self._step(*key)
                self._kept += 1 + len(found)
                if self._kept > KEPT_MAX:
                    self._steps.clear()
                    self._kept = 1 + len(found)
                self._steps[key] = found
            if not found:
                return False
            places, behind = found, IN_WORD if letter in WORD else NEW_LINE if letter == "\n" else NO_WORD
        return self._end in self._reached(places, behind, "")

    def _step(self, places: frozenset[int], behind: str, letter: str) -> frozenset[int]:
        found = set()
        for each in self._reached(places, behind, letter):
            letters = self._states[each].letters
            if letters is not None and letter in letters:
                found.update(self._states[each].ways)
        return frozenset(found)

    def _reached(self, places: Iterable[int], behind: str, ahead: str) -> set[int]:
        """Returns the places that can be reached without reading, between two letters ("" at the end)."""
        at_word = (behind == IN_WORD) != (ahead in WORD if ahead else False)
        holds = {
            "begin": behind == START,
            "end": not ahead,
            "begin of line": behind in (START, NEW_LINE),
            "end of line": ahead in ("", "\n"),
            "word": at_word,
            "no word": not at_word,
        }
        found = set(places)
        left = list(found)
        while left:
            state = self._states[left.pop()]
            if state.letters is None and (state.assertion is None or holds[state.assertion]):
                new = [each for each in state.ways if each not in found]
                found.update(new)
                left += new
        return found

    def _state(self) -> int:
        if len(self._states) >= STATES_MAX:
            raise _Refused(COUNT)
        self._states.append(_State())
        return len(self._states) - 1

    def _build(self, node: _Node, then: int) -> int:
        """Adds the places of a node that goes on at `then`. Returns its first place."""
        if isinstance(node, _Set | _Assert):
            place = self._state()
            state = self._states[place]
            state.ways.append(then)
            if isinstance(node, _Set):
                state.letters = node.letters
            else:
                state.assertion = node.kind
            return place
        if isinstance(node, _Concat):
            for part in reversed(node.parts):
                then = self._build(part, then)
            return then
        if isinstance(node, _Alternate):
            place = self._state()
            self._states[place].ways += [self._build(part, then) for part in node.parts]
            return place
        return self._build_repeat(node, then)

    def _build_repeat(self, node: _Repeat, then: int) -> int:
        if node.most < 0:
            place = self._state()
            self._states[place].ways += [then, self._build(node.part, place)]
            then = place
        else:
            end = then
            for _ in range(node.most - node.least):
                place = self._state()
                self._states[place].ways += [end, self._build(node.part, then)]
                then = place
        for _ in range(node.least):
            then = self._build(node.part, then)
        return then


def compile_for(letters: Letters, pattern: str) -> Regex:
    """Returns a compiled expression for names that have these letters. Raises InvalidRegularExpression."""
    try:
        return Regex(pattern, letters)
    except _Refused as refused:
        reason = str(refused)
    except RecursionError:
        reason = INTERNAL
    raise InvalidRegularExpression(f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {reason}.")


@functools.lru_cache(maxsize=64)
def compile_regex(pattern: str) -> Regex:
    """Returns a compiled expression for names of topics. Raises InvalidRegularExpression."""
    return compile_for(LETTERS_OF_TOPICS, pattern)
