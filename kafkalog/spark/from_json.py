"""Parses one text as Spark's `from_json` does, step by step like Spark and its parser Jackson.

It serves the few rows that the native JSON reader does not answer (`json_values`): broken texts, and texts for which
Spark returns something else than what is written.  Jackson's tokenizer can continue after an error, and Spark does
continue after a broken nested value.  The rest of such a row therefore depends on the byte at which each part failed.
This module follows Jackson's ReaderBasedJsonParser and Spark's JacksonParser (mode PERMISSIVE, default settings), and a
test compares both on random texts.  It takes microseconds a token.  It does not depend on Spark's or Arrow's types.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from kafkalog._limits import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN

DEPTH_MAX = 1000
NUMBER_DIGITS_MAX = 1000
TEXT_CHARS_MAX = 20_000_000
NAME_CHARS_MAX = 50_000
ERROR_CHARS_MAX = 256

# Tokens.  The content of a number or a text is in `Tokens.value`.
START_OBJECT, END_OBJECT, START_ARRAY, END_ARRAY = "{", "}", "[", "]"
NAME, TEXT, WHOLE, FRACTION, TRUE, FALSE, NULL = "name", "text", "whole", "fraction", "true", "false", "null"
ROOT, ARRAY, OBJECT = "root", "array", "object"

_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "/": "/", "\\": "\\", "'": "'"}
_WRITTEN = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_DIGITS = frozenset("0123456789")
_HEX = frozenset("0123456789abcdefABCDEF")
_BLANKS = frozenset(" \t\r\n")
_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")  # Java replaces an incomplete surrogate once, too
_STOPS = {'"': re.compile('["\\\\\x00-\x1f]'), "'": re.compile("['\\\\\x00-\x1f]")}
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_LONE = re.compile("[\ud800-\udfff]")
_TO_ESCAPE = re.compile('["\\\\\x00-\x1f\ud800-\udfff\U00010000-\U0010ffff]')
_NOT_A_NUMBER = {
    "NaN": math.nan, "+INF": math.inf, "+Infinity": math.inf, "Infinity": math.inf,
    "-INF": -math.inf, "-Infinity": -math.inf,
}  # fmt: skip


class Broken(Exception):
    """The text is not a value, or not one of the wanted type."""


class Partial(Exception):
    """A part of the value was broken; `value` has the rest."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def from_json(data: bytes, fields: Sequence[tuple[str, str, tuple[Any, ...]]]) -> tuple[Any, ...] | None:
    """Returns the values of the fields, nested ones as tuples and lists; None for a blank text.

    `fields` are (name, format, children), with the formats of `JsonSchema`: loose, i, l, g, b, +s, +l.
    """
    convert = _object(fields)
    tokens = Tokens(_ENCODED_SURROGATE.sub("\ufffd".encode(), data).decode(errors="replace"))
    try:
        if tokens.next() is None:
            return None
        if tokens.token != START_OBJECT:
            return (None,) * len(fields)
        found: tuple[Any, ...] = convert(tokens)
    except Broken:
        return (None,) * len(fields)
    except Partial as partial:
        found = partial.value
    return found


# --- values, as Spark converts them -----------------------------------------------------------------------------------

Convert = Callable[["Tokens"], Any]


def _object(fields: Sequence[tuple[str, str, tuple[Any, ...]]]) -> Convert:
    """Converts the object that begins with the current token."""
    places = {name: place for place, (name, _, _) in enumerate(fields)}
    converters = [_converter(format, children) for _, format, children in fields]

    def convert(tokens: Tokens) -> tuple[Any, ...]:
        row: list[Any] = [None] * len(converters)
        is_partial = False
        while tokens.is_before(END_OBJECT):
            name = tokens.name
            place = None if name is None else places.get(name)
            if place is None:
                tokens.skip_children()
                continue
            try:
                row[place] = converters[place](tokens)
            except Partial as partial:
                is_partial = True
                row[place] = partial.value
            except Broken:
                is_partial = True
                tokens.skip_children()
        if is_partial:
            raise Partial(tuple(row))
        return tuple(row)

    return convert


def _array(item: tuple[str, str, tuple[Any, ...]]) -> Convert:
    converter = _converter(item[1], item[2])

    def convert(tokens: Tokens) -> list[Any]:
        found = []
        is_partial = False
        while tokens.is_before(END_ARRAY):
            try:
                found.append(converter(tokens))
            except Partial as partial:
                is_partial = True
                found.append(partial.value)
        if is_partial:
            raise Partial(found)
        return found

    return convert


def _converter(format: str, children: tuple[Any, ...]) -> Convert:
    if format == "+s":
        return _of_token(START_OBJECT, _object(children))
    if format == "+l":
        return _of_token(START_ARRAY, _array(children[0]))
    return _of_token("", {"loose": _text, "i": _int32, "l": _int64, "g": _double, "b": _boolean}[format])


def _of_token(wanted: str, convert: Convert) -> Convert:
    """Skips names before a value and returns None for null; a token other than `wanted` is no value."""

    def checked(tokens: Tokens) -> Any:
        while tokens.token == NAME:
            tokens.next()
        if tokens.token in (None, NULL):
            return None
        if wanted and tokens.token != wanted:
            raise _other(tokens)
        return convert(tokens)

    return checked


def _other(tokens: Tokens) -> Broken:
    if tokens.token == TEXT:
        tokens.text()  # Spark reads it and continues after it
    return Broken()


def _text(tokens: Tokens) -> str:
    if tokens.token == TEXT:
        return _LONE.sub("?", tokens.text())
    return "".join(_written(tokens))


def _int32(tokens: Tokens) -> int:
    return _whole(tokens, INT_MIN, INT_MAX)


def _int64(tokens: Tokens) -> int:
    return _whole(tokens, LONG_MIN, LONG_MAX)


def _whole(tokens: Tokens, least: int, most: int) -> int:
    if tokens.token != WHOLE:
        raise _other(tokens)
    number = int(tokens.value)
    if not least <= number <= most:
        raise Broken
    return number


def _double(tokens: Tokens) -> float:
    if tokens.token in (WHOLE, FRACTION):
        return _double_of(tokens.value)
    if tokens.token != TEXT:
        raise Broken
    found = _NOT_A_NUMBER.get(tokens.text())
    if found is None:
        raise Broken
    return found


def _double_of(text: str) -> float:
    if text in _NOT_A_NUMBER:
        return _NOT_A_NUMBER[text]
    return 0.0 if text == "-0" else float(text)


def _boolean(tokens: Tokens) -> bool:
    if tokens.token not in (TRUE, FALSE):
        raise _other(tokens)
    return tokens.token == TRUE


# --- JSON as text, as Jackson's generator writes it -------------------------------------------------------------------


def _written(tokens: Tokens) -> list[str]:
    """Returns the parts of the value at the current token, without blanks."""
    parts: list[str] = []
    depth = 0
    is_first = True  # no comma before this token
    while True:
        token = tokens.token
        if token in (END_OBJECT, END_ARRAY):
            if not depth:
                raise Broken
            parts.append(token)
            depth -= 1
        else:
            if not is_first:
                parts.append(",")
            if token == NAME:
                parts += (_quoted(tokens.name or ""), ":")
            elif token in (START_OBJECT, START_ARRAY):
                parts.append(token)
                depth += 1
            elif token == TEXT:
                parts.append(_quoted(tokens.text()))
            elif token == WHOLE:
                parts.append(str(int(tokens.value)))
            elif token == FRACTION:
                parts.append(java_double(_double_of(tokens.value)))
            else:
                assert token is not None
                parts.append(token)
        is_first = token in (NAME, START_OBJECT, START_ARRAY)
        if depth <= 0:
            return parts
        if tokens.next() is None:
            raise Broken


def _quoted(text: str) -> str:
    return f'"{_TO_ESCAPE.sub(_escaped, text)}"'


def _escaped(found: re.Match[str]) -> str:
    letter = found[0]
    if letter in _WRITTEN:
        return _WRITTEN[letter]
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02X}{units[at + 1]:02X}" for at in range(0, len(units), 2))


def java_double(number: float) -> str:
    """Writes a double as Java does: the fewest digits that are read back as the same number.

    This is JDK 19 and later; earlier versions write one more digit for some numbers.
    """
    if math.isnan(number) or math.isinf(number):
        return '"NaN"' if math.isnan(number) else '"Infinity"' if number > 0 else '"-Infinity"'
    sign = "-" if math.copysign(1, number) < 0 else ""
    if number == 0:
        return f"{sign}0.0"
    digits, power = _digits(repr(abs(number)))
    if -3 <= power < 7:  # the first digit is that of 10^power
        if power < 0:
            return f"{sign}0.{'0' * (-power - 1)}{digits}"
        whole, fraction = digits[: power + 1].ljust(power + 1, "0"), digits[power + 1 :]
        return f"{sign}{whole}.{fraction or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{power}"


def _digits(text: str) -> tuple[str, int]:
    """Returns the significant digits of Python's text of a number above 0, and the power of ten of the first digit."""
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    power = int(exponent or "0") + (len(whole) - 1 if whole != "0" else -1 - len(fraction) + len(fraction.lstrip("0")))
    return digits.rstrip("0") or "0", power


# --- tokens, as Jackson finds them ------------------------------------------------------------------------------------


class _Context:
    """An object or array that is open."""

    __slots__ = ("count", "kind", "name")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.name: str | None = None
        self.count = -1


class Tokens:
    """The tokens of a text, one after the other.  After Broken, the position is where Jackson's is."""

    def __init__(self, text: str) -> None:
        self._data = text
        self._at = 0
        self.token: str | None = None
        self._after_name: str | None = None  # the token that was read together with a name
        self._is_open = False  # the current text is not read yet
        self._contexts = [_Context(ROOT)]
        self.value = ""  # content of a text or number

    @property
    def name(self) -> str | None:
        """Returns the key at the current token."""
        if self.token in (START_OBJECT, START_ARRAY) and len(self._contexts) > 1:
            return self._contexts[-2].name
        return self._contexts[-1].name

    def is_before(self, last: str) -> bool:
        """Advances, and returns whether the new token is neither `last` nor the end."""
        token = self.next()
        return token is not None and token != last

    def skip_children(self) -> None:
        """Advances to the end of the object or array that begins here, if one does."""
        if self.token not in (START_OBJECT, START_ARRAY):
            return
        depth = 1
        while depth:
            token = self.next()
            if token is None:
                self._check_end()
                return
            if token in (START_OBJECT, START_ARRAY):
                depth += 1
            elif token in (END_OBJECT, END_ARRAY):
                depth -= 1

    def text(self) -> str:
        """Returns the content of the current text; half of a surrogate pair stays as it is."""
        if self._is_open:
            self._is_open = False
            self.value = self._rest_of_text('"')
        if len(self.value) > TEXT_CHARS_MAX:
            raise Broken
        return self.value

    def next(self) -> str | None:
        """Advances to the next token and returns it; None at the end."""
        if self.token == NAME:
            self.token, self._after_name = self._after_name, None
            self._begin(self.token)
            return self.token
        if self._is_open:
            self._is_open = False
            self._rest_of_text('"')
        letter = self._past_blanks()
        if letter is None:
            self._check_end()
            self.token = None
            return None
        if letter in "}]":
            self._end(letter)
            return self.token
        context = self._contexts[-1]
        context.count += 1
        if context.kind != ROOT and context.count > 0:
            if letter != ",":
                raise Broken
            letter = self._needed()
        in_object = context.kind == OBJECT
        if in_object:
            if letter not in "\"'":
                raise Broken
            context.name = self._rest_of_text(letter)
            if len(context.name) > NAME_CHARS_MAX:
                raise Broken
            self.token = NAME
            if self._needed() != ":":
                raise Broken
            letter = self._needed()
        token = self._value(letter)
        if in_object:
            self._after_name = token
        else:
            self._begin(token)
            self.token = token
        return self.token

    def _begin(self, token: str | None) -> None:
        if token in (START_OBJECT, START_ARRAY):
            self._contexts.append(_Context(OBJECT if token == START_OBJECT else ARRAY))
            if len(self._contexts) - 1 > DEPTH_MAX:
                raise Broken

    def _end(self, letter: str) -> None:
        if self._contexts[-1].kind != (OBJECT if letter == "}" else ARRAY):
            raise Broken
        self._contexts.pop()
        self.token = letter

    def _check_end(self) -> None:
        if self._contexts[-1].kind != ROOT:
            raise Broken

    # --- letters ------------------------------------------------------------------------------------

    def _letter(self) -> str:
        """Returns the next letter; raises Broken at the end."""
        if self._at >= len(self._data):
            raise Broken
        self._at += 1
        return self._data[self._at - 1]

    def _past_blanks(self) -> str | None:
        """Returns the first letter that is not blank; None at the end."""
        while self._at < len(self._data):
            letter = self._letter()
            if letter not in _BLANKS:
                if letter < " " or letter == "/":  # comments are not allowed
                    raise Broken
                return letter
        return None

    def _needed(self) -> str:
        letter = self._past_blanks()
        if letter is None:
            raise Broken
        return letter

    def _rest_of_text(self, quote: str) -> str:
        """Reads from after a quote to after the next one."""
        parts = []
        begin = self._at
        data = self._data
        stops = _STOPS[quote]
        while True:
            found = stops.search(data, self._at)
            self._at = len(data) if found is None else found.start()
            letter = self._letter()
            if letter == quote:
                parts.append(data[begin : self._at - 1])
                break
            if letter == "\\":
                parts.append(data[begin : self._at - 1])
                parts.append(self._escape())
                begin = self._at
            else:
                raise Broken
        return _PAIR.sub(_joined, "".join(parts)) if len(parts) > 1 else parts[0]

    def _escape(self) -> str:
        letter = self._letter()
        if letter != "u":
            found = _ESCAPES.get(letter)
            if found is None:
                raise Broken
            return found
        begin = self._at
        for _ in range(4):
            if self._letter() not in _HEX:
                raise Broken
        return chr(int(self._data[begin : self._at], 16))

    # --- values -------------------------------------------------------------------------------------

    def _value(self, letter: str) -> str:
        if letter == '"':
            self._is_open = True
            return TEXT
        if letter in "{[":
            return letter
        if letter in _DIGITS or letter == "-":
            return self._number(letter)
        word = {"t": TRUE, "f": FALSE, "n": NULL, "N": "NaN", "I": "Infinity"}.get(letter)
        if word is not None:
            self._match(word, 1)
            if word in _NOT_A_NUMBER:
                self.value = word
                return FRACTION
            return word
        if letter == "'":
            self.value = self._rest_of_text("'")
            return TEXT
        if letter == "+":
            return self._no_number(self._letter(), "+")
        if _is_part(letter) and not letter.isdigit():
            self._past_word(1)
        raise Broken

    def _number(self, first: str) -> str:
        """Reads a whole number, or one with a fraction or an exponent."""
        data, start = self._data, self._at - 1
        at = start + (first == "-")
        if first == "-" and data[at : at + 1] not in _DIGITS:
            self._at = min(at + 1, len(data))
            if at >= len(data) or data[at] == ".":
                raise Broken
            return self._no_number(data[at], "-")
        if data[at] == "0" and data[at + 1 : at + 2] in _DIGITS and at + 1 < len(data):
            self._at = at + 1
            raise Broken
        is_slow = data[at] == "0"  # Jackson's slow path advances while it reads
        whole = at = self._past_digits(at)
        digits = at - start - (first == "-")
        is_whole = True
        if data[at : at + 1] == ".":
            is_whole = False
            whole = at + 1
            at = self._past_digits(at + 1)
            if at == whole:
                self._at = min(at + 1, len(data)) if is_slow else whole
                raise Broken
            digits += at - whole
        if data[at : at + 1] in ("e", "E"):
            kept = whole if not is_whole else at + 1
            is_whole = False
            at += 1
            if data[at : at + 1] in ("+", "-"):
                at += 1
            begin = at
            at = self._past_digits(at)
            if at == begin:
                self._at = min(at + 1, len(data)) if is_slow or at >= len(data) else kept
                raise Broken
            digits += at - begin
        self._at = at
        if digits > NUMBER_DIGITS_MAX:
            raise Broken
        self.value = data[start:at]
        return WHOLE if is_whole else FRACTION

    def _past_digits(self, at: int) -> int:
        while at < len(self._data) and self._data[at] in _DIGITS:
            at += 1
        return at

    def _no_number(self, letter: str, sign: str) -> str:
        """Reads an infinity, after its sign and first letter."""
        if letter == "I":
            following = self._letter()
            if following in "Nn":
                word = f"{sign}INF" if following == "N" else f"{sign}Infinity"
                self._match(word, 3)
                self.value = word
                return FRACTION
        raise Broken

    def _match(self, word: str, at: int) -> None:
        """Reads the rest of a word; the letter after it must not continue the word."""
        for letter in word[at:]:
            if self._data[self._at : self._at + 1] != letter:
                self._past_word(at)
                raise Broken
            self._at += 1
            at += 1
        if self._at < len(self._data) and _is_part(self._data[self._at]):
            self._past_word(at)
            raise Broken

    def _past_word(self, length: int) -> None:
        """Reads to the end of a word: Jackson does so to name it in its error."""
        while self._at < len(self._data) and _is_part(self._data[self._at]):
            self._at += 1
            length += 1
            if length >= ERROR_CHARS_MAX:
                break


def _joined(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16-be", "surrogatepass").decode("utf-16-be")


def _is_part(letter: str) -> bool:
    """Whether the letter may be in a Java name."""
    if letter < "\x80":
        return letter.isalnum() or letter in "_$" or letter < "\x09" or "\x0e" <= letter < "\x1c" or letter == "\x7f"
    return letter <= "\uffff" and f"a{letter}".isidentifier()
