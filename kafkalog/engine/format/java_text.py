"""Text as Java reads and writes it: UTF-8, numbers, lines, split, Uuid and .properties.

Python is more tolerant than Java: `int()` accepts underscores and spaces and has no bounds, and `splitlines` knows a
dozen line ends.  A file that Kafka refuses must be refused here.  The three exceptions at the top have the names of the
plain Java exceptions that Kafka lets through when it reads damaged text.  Here they also derive from
CorruptCheckpointException, so a caller that handles damage needs to catch only that.
"""

from __future__ import annotations

import base64
import codecs
import datetime
import re
import uuid
from collections.abc import Iterable, Mapping

from kafkalog import errors
from kafkalog._limits import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN, SHORT_MAX, SHORT_MIN
from kafkalog.errors import CorruptCheckpointException

ZERO_UUID = "A" * 22
_UUID_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")

_INTEGER = re.compile(r"[+-]?\d+")  # digits of any script, as Character.digit accepts
_LINE_END = re.compile("\r\n|\n|\r")
_SPACES = re.compile(r"[ \t\n\x0b\f\r]+")  # Java's \s
_SHOWN_CHARS_MAX = 200


class NumberFormatException(CorruptCheckpointException, errors.NumberFormatException):
    """A file contains other text at the place of a number."""


class IllegalArgumentException(CorruptCheckpointException, errors.IllegalArgumentException):
    """A file contains text that is not a value of the expected type."""


class NullPointerException(CorruptCheckpointException, errors.NullPointerException):
    """A line of a file is missing."""


def is_io_exception(error: BaseException | None) -> bool:
    """Returns whether Kafka calls this an IOException, for which it takes the log directory offline.

    IOExceptions are the disk's errors and a file that does not parse, but not the three exceptions above.
    """
    return isinstance(error, OSError) or type(error) is CorruptCheckpointException


# --- UTF-8 --------------------------------------------------------------------------------------------


def decode_utf8(data: bytes) -> str:
    """new String(data, UTF_8): replaces invalid bytes by U+FFFD, as many times as Java does."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="kafkalog.java")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    data, start, end = error.object, error.start, error.end
    # Java replaces two or three bytes of a surrogate by one character, Python replaces each byte.
    if data[start] == 0xED and start + 1 < len(data) and 0xA0 <= data[start + 1] <= 0xBF:
        end = start + 2
        if end < len(data) and 0x80 <= data[end] <= 0xBF:
            end += 1
    return "\ufffd", end


codecs.register_error("kafkalog.java", _replaced)


def text_of_file(data: bytes, *, path: str, hint: str) -> str:
    """Returns a file's text.  Raises CorruptCheckpointException at the first byte that is not UTF-8.

    Kafka's MalformedInputException says "Input length = 1" in this case.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptCheckpointException(
            f"found byte 0x{data[error.start]:02x}, which is not valid UTF-8 text",
            path=path,
            position=error.start,
            hint=hint,
        ) from None


# --- numbers ------------------------------------------------------------------------------------------


def parse_int(text: str) -> int:
    """Integer.parseInt; raises NumberFormatException with Java's text."""
    return _parse(text, INT_MIN, INT_MAX)


def parse_long(text: str) -> int:
    """Long.parseLong; raises NumberFormatException with Java's text."""
    return _parse(text, LONG_MIN, LONG_MAX)


def parse_short(text: str) -> int:
    """Short.parseShort; raises NumberFormatException with Java's text."""
    value = _parse(text, INT_MIN, INT_MAX)
    if not SHORT_MIN <= value <= SHORT_MAX:
        raise NumberFormatException(f'Value out of range. Value:"{text}" Radix:10')
    return value


def _parse(text: str, low: int, high: int) -> int:
    if len(text) < 10 and text.isdecimal():  # nearly every number, and within every range that a caller uses
        return int(text)
    # A long has 19 digits.  The limit on the length keeps a hostile file from making Python parse megabytes.
    if _INTEGER.fullmatch(text) and len(text.lstrip("+-").lstrip("0")) < 20:
        value = int(text)
        if low <= value <= high:
            return value
    raise NumberFormatException(f'For input string: "{shown(text)}"')


def shown(text: str) -> str:
    """Returns the text, shortened if it is too long for a message."""
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "..."


# --- lines and words ----------------------------------------------------------------------------------


def read_lines(text: str) -> list[str]:
    """Splits text like BufferedReader.readLine: lines end with \\n, \\r or both; the last line needs no end."""
    lines = _LINE_END.split(text)
    if lines[-1] == "":
        lines.pop()
    return lines


def split(pattern: re.Pattern[str], text: str) -> list[str]:
    """Pattern.split: empty words at the end are dropped; without a match the result is the text itself."""
    words = pattern.split(text)
    if len(words) == 1:
        return words
    while words and words[-1] == "":
        words.pop()
    return words


def split_spaces(text: str) -> list[str]:
    """Splits at runs of white space; leading white space gives an empty first word."""
    return split(_SPACES, text)


def new_uuid() -> str:
    """Returns a random Uuid as Kafka creates one: none of the reserved ones, and none with a leading '-', which a shell
    would read as an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def parse_uuid(text: str) -> str:
    """Uuid.fromString: decodes 16 bytes in url-base64 and returns the 22 characters that Kafka writes.

    Raises IllegalArgumentException for any other text.
    """
    if len(text) > 24:
        raise IllegalArgumentException(
            f"Input string with prefix `{text[:24]}` is too long to be decoded as a base64 UUID"
        )
    digits = text[:-2] if text.endswith("==") else text.removesuffix("=")
    for char in digits:
        if char not in _UUID_CHARS:
            raise IllegalArgumentException(f"Illegal base64 character {ord(char):x}")
    if len(digits) == 1:
        raise IllegalArgumentException("Input byte[] should at least have 2 bytes for base64 bytes")
    if len(digits) % 4 == 1:
        raise IllegalArgumentException("Last unit does not have enough valid bits")
    data = base64.urlsafe_b64decode(digits + "=" * (-len(digits) % 4))
    if len(data) != 16:
        raise IllegalArgumentException(
            f"Input string `{text}` decoded as {len(data)} bytes, which is not equal to the expected 16 bytes of a "
            "base64-encoded UUID"
        )
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


# --- .properties --------------------------------------------------------------------------------------

_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_TO_ESCAPE = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_BLANKS = " \t\f"


def parse_properties(data: bytes | str) -> dict[str, str]:
    """java.util.Properties.load: decodes bytes as ISO-8859-1.  Raises IllegalArgumentException for a broken \\uxxxx.

    The last of equal keys wins; the order is that of the file.
    """
    text = data if isinstance(data, str) else data.decode("latin-1")
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        end = 0
        while end < len(line) and line[end] not in "=: \t\f":
            end += 2 if line[end] == "\\" else 1
        end = min(end, len(line))
        start = end
        while start < len(line) and line[start] in _BLANKS:
            start += 1
        if start < len(line) and line[start] in "=:":
            start += 1
            while start < len(line) and line[start] in _BLANKS:
                start += 1
        found[_unescaped(line[:end])] = _unescaped(line[start:])
    return found


def _logical_lines(text: str) -> Iterable[str]:
    lines = iter(_LINE_END.split(text))
    for line in lines:
        whole = line.lstrip(_BLANKS)
        if not whole or whole[0] in "#!":
            continue
        while _is_continued(whole):
            whole = whole[:-1] + next(lines, "").lstrip(_BLANKS)
        yield whole


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\" or position == len(text):
            out.append(char)
            continue
        char = text[position]
        position += 1
        if char == "u":
            digits = text[position : position + 4]
            if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
                raise IllegalArgumentException("Malformed \\uxxxx encoding.")
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append(_ESCAPED.get(char, char))
    return "".join(out)


def format_properties(properties: Mapping[str, str], *, comment: str = "", now_ms: int) -> str:
    """Returns what Properties.store writes through a Writer: comment, date (UTC), `key=value` in the given order."""
    moment = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
    # The format of Date.toString; strftime's names follow the locale, Java's do not.
    day = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[moment.weekday()]
    month = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")[moment.month - 1]
    lines = [f"#{comment}", f"#{day} {month} {moment:%d %H:%M:%S} UTC {moment.year}"]
    lines += [f"{_escaped(key, key=True)}={_escaped(value, key=False)}" for key, value in properties.items()]
    return "\n".join(lines) + "\n"


def _escaped(text: str, *, key: bool) -> str:
    out = []
    for position, char in enumerate(text):
        if char in _TO_ESCAPE:
            out.append(_TO_ESCAPE[char])
        elif char in "\\=:#!" or (char == " " and (key or position == 0)):
            out.append("\\" + char)
        else:
            out.append(char)
    return "".join(out)
