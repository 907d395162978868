"""Numbers in text as Java reads them: what Integer.parseInt and friends accept, and their error texts.

Python's `int()` is more generous (underscores, spaces, no bounds), and a checkpoint that Kafka refuses must be
refused here.  Like Java, digits of other scripts count as digits.
"""

from __future__ import annotations

import unicodedata

from kafkalog.errors import NumberFormatException

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
SHORT_MIN, SHORT_MAX = -(1 << 15), (1 << 15) - 1


def parse_int(text: str) -> int:
    """Integer.parseInt."""
    return _parse(text, INT_MIN, INT_MAX)


def parse_long(text: str) -> int:
    """Long.parseLong."""
    return _parse(text, LONG_MIN, LONG_MAX)


def parse_short(text: str) -> int:
    """Short.parseShort."""
    value = _parse(text, INT_MIN, INT_MAX)
    if not SHORT_MIN <= value <= SHORT_MAX:
        raise NumberFormatException(f'Value out of range. Value:"{text}" Radix:10')
    return value


def _parse(text: str, low: int, high: int) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    # 19 digits fill a long; the bound on the length keeps a hostile file from making Python chew on megabytes.
    if not digits or not all(_is_digit(char) for char in digits):
        raise NumberFormatException(f'For input string: "{_shown(text)}"')
    stripped = digits.lstrip("0") or "0"
    value = int(stripped) if len(stripped) <= 19 else high + 2
    if text[0] == "-":
        value = -value
    if not low <= value <= high:
        raise NumberFormatException(f'For input string: "{_shown(text)}"')
    return value


def _is_digit(char: str) -> bool:
    return "0" <= char <= "9" or (char > "\x7f" and unicodedata.category(char) == "Nd")


def _shown(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "..."
