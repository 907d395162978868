"""Reads a message's fields: a position in untrusted bytes, and a reader for each type of value.

Each length is checked before it is used.  Bytes that do not parse raise a `MessageException` with the field's name, the
position and Kafka's text.  The Plan of a struct (`messages`) decides which fields it has and their order.  Source:
ByteBufferAccessor, ByteUtils and the generated readers of Kafka 4.4.0.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any, Protocol

from kafkalog._limits import SHORT_MAX
from kafkalog.engine.format.java_text import decode_utf8
from kafkalog.engine.format.message_tables import Type
from kafkalog.errors import SchemaException

NUMBERS = {
    "bool": struct.Struct(">?"),
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
}
LENGTH16, LENGTH32 = NUMBERS["int16"], NUMBERS["int32"]
UUID_BYTES = 16
ARRAY_LENGTH_MAX = 1_000_000  # this and the next limit are MessageUtil's, new in 4.4.0
TAGGED_FIELDS_MAX = 10_000


class MessageException(SchemaException):
    """The bytes are not a struct of the expected kind.

    `position` counts from the struct's first byte.  `kafka_text` is the text of Kafka's exception, or None if Java's
    underflow has no text.
    """

    kafka_text: str | None = None


class Plan(Protocol):
    """A struct in one version.

    `too_new` is the version of a message that is too new, whose inner structs are not read; otherwise 0.
    """

    version: int
    flexible: bool
    too_new: int

    def inside(self, of: Type) -> Plan:
        """Returns the plan of a struct inside this one."""
        ...

    def read(self, read: Reader) -> dict[str, Any]:
        """Reads the struct's fields."""
        ...

    def write(self, out: bytearray, values: Any) -> None:
        """Appends the struct's bytes to `out`."""
        ...


class Reader:
    """Bytes and a position in them; every step first checks that it stays within the bytes."""

    __slots__ = ("at", "data", "end", "start")

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.start = self.at = at
        self.end = len(data)

    def bad(self, what: str, problem: str, kafka_text: str | None) -> MessageException:
        error = MessageException(f"{what}: {problem}", position=self.at - self.start)
        error.kafka_text = kafka_text
        return error

    def number(self, layout: struct.Struct, what: str) -> Any:
        at = self.at
        if layout.size > self.end - at:
            raise self.bad(what, f"expected {layout.size} bytes, but only {self.end - at} are left", None)
        self.at = at + layout.size
        return layout.unpack_from(self.data, at)[0]

    def take(self, size: int, what: str) -> bytes:
        left = self.end - self.at
        if size > left:
            text = f"Error reading byte array of {size} byte(s): only {left} byte(s) available"
            raise self.bad(what, f"its length is {size}, but only {left} bytes are left", text)
        if size < 0:  # possible only for an unknown tagged field
            raise self.bad(what, f"its length is {size}", str(size))
        self.at += size
        return self.data[self.at - size : self.at]

    def uvarint(self, what: str) -> int:
        """Reads a number of up to 32 bits and interprets it as an int32, as Kafka does for lengths."""
        value = 0
        for shift in (0, 7, 14, 21, 28):
            if self.at == self.end:
                raise self.bad(what, "the bytes end inside a number", None)
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                value &= 0xFFFFFFFF
                return value - (1 << 32) if value & 0x80000000 else value
        text = "Varint is too long, the most significant bit in the 5th byte is set, converted value: "
        raise self.bad(what, "a number is longer than 5 bytes", f"{text}{value & 0xFFFFFFFF:x}")

    def length(self, what: str, flexible: bool, short: bool) -> int:
        """Reads the length of a string, bytes or an array; a negative one means null."""
        if flexible:
            value = self.uvarint(what)
            return value - 1 if value > -(1 << 31) else (1 << 31) - 1  # overflows like an int32
        found: int = self.number(LENGTH16 if short else LENGTH32, what)
        return found


Read = Callable[[Reader], Any]


def reading(of: Type, what: str, nullable: bool, plan: Plan, tagged: bool = False) -> Read:
    """Returns a function that reads a value of this type; `what` names it in errors, as in Kafka."""
    flexible = plan.flexible
    layout = NUMBERS.get(of.kind)
    if of.kind == "bool":
        byte = NUMBERS["int8"]
        return lambda read: read.number(byte, what) != 0
    if layout is not None:
        return lambda read: read.number(layout, what)
    if of.kind == "uuid":
        return lambda read: _read_uuid(read, what)
    if of.kind == "struct":
        return _reading_struct(of, what, nullable, plan, tagged)
    if of.kind == "array":
        return _reading_array(of, what, nullable, plan)
    text = of.kind == "string"

    def read_bytes(read: Reader) -> str | bytes | None:
        size = read.length(what, flexible, text)
        if size < 0:
            if nullable:
                return None
            raise _null(read, what)
        if text and size > SHORT_MAX:
            raise read.bad(what, f"its length is {size}", f"string field {what} had invalid length {size}")
        found = read.take(size, what)
        return decode_utf8(found) if text else found

    return read_bytes


def _null(read: Reader, what: str) -> MessageException:
    return read.bad(what, "is null, but the field is not nullable", f"non-nullable field {what} was serialized as null")


def _read_uuid(read: Reader, what: str) -> str:
    left = read.end - read.at
    if left < UUID_BYTES:
        raise read.bad(what, f"expected {UUID_BYTES} bytes, but only {left} are left", None)
    return base64.urlsafe_b64encode(read.take(UUID_BYTES, what))[:22].decode()


def _reading_array(of: Type, what: str, nullable: bool, plan: Plan) -> Read:
    assert of.element is not None
    element = reading(of.element, f"{what} element", False, plan)
    flexible = plan.flexible

    def read_array(read: Reader) -> list[Any] | None:
        count = read.length(what, flexible, False)
        if count < 0:
            if nullable:
                return None
            raise _null(read, what)
        left = read.end - read.at
        if count > left:  # an element has at least one byte
            text = f"Tried to allocate a collection of size {count}, but there are only {left} bytes remaining."
            raise read.bad(what, f"has {count} elements, but only {left} bytes are left", text)
        if count > ARRAY_LENGTH_MAX:
            text = f"Tried to read a collection of size {count}, which exceeds the maximum allowed size of "
            raise read.bad(
                what, f"has {count} elements, at most {ARRAY_LENGTH_MAX} are read", f"{text}{ARRAY_LENGTH_MAX}."
            )
        return [element(read) for _ in range(count)]

    return read_array


def _reading_struct(of: Type, what: str, nullable: bool, plan: Plan, tagged: bool) -> Read:
    inner = plan.inside(of)
    byte = NUMBERS["int8"]

    def read_struct(read: Reader) -> dict[str, Any] | None:
        if nullable and (read.uvarint(what) <= 0 if tagged else read.number(byte, what) < 0):
            return None
        if read_version := plan.too_new:
            text = f"Can't read version {read_version} of {of.name}"
            raise read.bad(what, f"version {read_version} of {of.name} is not known", text)
        return inner.read(read)

    return read_struct


def tagged_count(read: Reader) -> int:
    what = "tagged fields"
    count = read.uvarint(what)
    left = read.end - read.at
    if count < 0:
        raise read.bad(what, f"their number is {count}", f"Invalid negative number of tagged fields {count}")
    if count > left:  # each has at least two bytes
        text = f"Tried to read {count} tagged fields, but there are only {left} bytes remaining."
        raise read.bad(what, f"there are {count}, but only {left} bytes are left", text)
    if count > TAGGED_FIELDS_MAX:
        text = f"Tried to read {count} tagged fields, which exceeds the maximum allowed count of {TAGGED_FIELDS_MAX}."
        raise read.bad(what, f"there are {count}, at most {TAGGED_FIELDS_MAX} are read", text)
    return count
