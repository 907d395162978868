"""Writes a message's fields: a writer for each type of value produces the bytes that Kafka writes.

Values come from a caller.  An unsuitable value raises an IllegalArgumentException with the field's name.  The Plan of a
struct (`messages`) decides which fields it has and their order.  Source: the generated writers of Kafka 4.4.0.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any

from kafkalog._limits import SHORT_MAX
from kafkalog.engine.format.java_text import parse_uuid
from kafkalog.engine.format.message_reader import LENGTH16, LENGTH32, NUMBERS, Plan
from kafkalog.engine.format.message_tables import Type
from kafkalog.engine.format.values import shown
from kafkalog.errors import IllegalArgumentException

Write = Callable[[bytearray, Any], None]
_CODES = {kind: layout.format[1:] for kind, layout in NUMBERS.items()}


def put_uvarint(out: bytearray, value: int) -> None:
    """Appends a number with seven bits a byte, the lowest first."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def refused(what: str, value: Any, expected: str) -> IllegalArgumentException:
    return IllegalArgumentException(f"{what}: found {shown(value)}, expected {expected}")


def _put_length(out: bytearray, size: int, flexible: bool, short: bool) -> None:
    if flexible:
        put_uvarint(out, size + 1)
    else:
        out += (LENGTH16 if short else LENGTH32).pack(size)


def writing(of: Type, what: str, nullable: bool, plan: Plan, tagged: bool = False) -> Write:
    """Returns a function that writes a value of this type in the plan's version."""
    layout = NUMBERS.get(of.kind)
    if layout is not None:
        return _writing_number(layout, what, of.kind)
    if of.kind == "uuid":
        return lambda out, value: out.extend(_uuid_bytes(what, value))
    if of.kind == "struct":
        return _writing_struct(of, what, nullable, plan, tagged)
    flexible = plan.flexible
    short = of.kind == "string"
    expected = {"string": "text", "bytes": "bytes", "array": "a list"}[of.kind] + (" or None" if nullable else "")
    code = None if of.element is None or of.element.kind == "bool" else _CODES.get(of.element.kind)
    element = None if of.element is None else writing(of.element, f"{what} element", False, plan)

    def write(out: bytearray, value: Any) -> None:
        if value is None and nullable:
            _put_length(out, -1, flexible, short)
        elif short:
            data = _utf8(what, value, expected)
            _put_length(out, len(data), flexible, short)
            out += data
        elif element is not None:
            if not isinstance(value, (list, tuple)):
                raise refused(what, value, expected)
            _put_length(out, len(value), flexible, short)
            if code is not None:
                try:
                    out += struct.pack(f">{len(value)}{code}", *value)
                    return
                except (struct.error, OverflowError):
                    pass  # write one by one, so that the error names the bad element
            for each in value:
                element(out, each)
        else:
            if not isinstance(value, (bytes, bytearray, memoryview)):
                raise refused(what, value, expected)
            data = bytes(value)
            _put_length(out, len(data), flexible, short)
            out += data

    return write


def _writing_number(layout: struct.Struct, what: str, kind: str) -> Write:
    def write(out: bytearray, value: Any) -> None:
        try:
            if kind == "bool" and value is not True and value is not False:
                raise struct.error
            out += layout.pack(value)
        except (struct.error, OverflowError):
            raise refused(what, value, f"{kind}") from None

    return write


def _uuid_bytes(what: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise refused(what, value, "a uuid as 22 characters of base64")
    try:
        return base64.urlsafe_b64decode(parse_uuid(value) + "==")
    # the error of java_text is a CorruptCheckpointException, which would be wrong for an argument
    except IllegalArgumentException as error:
        raise IllegalArgumentException(f"{what}: {error.message}") from error


def _utf8(what: str, value: Any, expected: str) -> bytes:
    if not isinstance(value, str):
        raise refused(what, value, expected)
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise refused(what, value, "text that UTF-8 can hold") from None
    if len(data) > SHORT_MAX:
        raise IllegalArgumentException(f"{what}: found text of {len(data)} bytes, expected at most {SHORT_MAX}")
    return data


def _writing_struct(of: Type, what: str, nullable: bool, plan: Plan, tagged: bool) -> Write:
    inner = plan.inside(of)

    def write(out: bytearray, value: Any) -> None:
        if nullable:
            out.append((0 if value is None else 1) if tagged else (0xFF if value is None else 1))
            if value is None:
                return
        inner.write(out, value)

    return write
