"""Formats records by kcat's `-f`: %s %S %R %k %K %T %t %p %o %h %% and kcat's escapes.

As in kcat, a null key or value is empty and its size is -1, %R is the value's size in four bytes, big-endian, and %h is
name=value,name=value with NULL for a null value. There are two differences: \\0 is a zero byte (kcat ends the text
there), and a header's value with a zero byte is written whole. The module returns bytes and prints nothing.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkalog.cli.app import Usage

if TYPE_CHECKING:
    from kafkalog.records import Record

ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r"}
INT = struct.Struct(">i")
PIECES = re.compile(
    r"%(?P<field>.?)|\\x(?P<hex>[0-9a-fA-F]+)|\\(?P<number>[0-9]+)|\\(?P<escape>.)|(?P<text>[^%\\]+|\\$)", re.DOTALL
)


def _headers(record: Record) -> bytes:
    return b",".join(name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in record.headers)


FIELDS: dict[str, Callable[[Record], bytes]] = {
    "s": lambda record: record.value or b"",
    "S": lambda record: b"%d" % record.serialized_value_size,
    "R": lambda record: INT.pack(record.serialized_value_size),
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % record.serialized_key_size,
    "T": lambda record: b"%d" % record.timestamp,
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "h": _headers,
    "%": lambda record: b"%",
}


def formatter(template: str) -> Callable[[Record], bytes]:
    """Returns a function that formats a record by a template. Raises Usage for a letter that is not in FIELDS."""
    parts: list[bytes | Callable[[Record], bytes]] = []
    for piece in PIECES.finditer(template):
        field = piece["field"]
        if field is not None:
            if field not in FIELDS:
                raise Usage(f"unknown %{field} in --format, expected one of {' '.join('%' + name for name in FIELDS)}")
            parts.append(FIELDS[field])
        else:
            parts.append(_literal(piece))
    return lambda record: b"".join([part if isinstance(part, bytes) else part(record) for part in parts])


def _literal(piece: re.Match[str]) -> bytes:
    if piece["hex"] is not None:
        return bytes([int(piece["hex"], 16) & 0xFF])
    number = piece["number"]
    if number is not None:  # as C's strtoul: octal after a 0, else decimal
        octal = re.match("0[0-7]*", number)
        value = int(octal[0], 8) if octal else int(number)
        return bytes([value & 0xFF]) + (number[octal.end() :].encode() if octal else b"")
    if piece["escape"] is not None:
        escaped: str = piece["escape"]
        return ESCAPES.get(escaped, escaped.encode())
    text: str = piece["text"]
    return text.encode()
