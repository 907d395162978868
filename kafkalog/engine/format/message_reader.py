"""The errors of bytes that are no message, and a reader for the numbers of frames around messages.

`kafkalog._native.codec.messages` reads.  Here its verdicts become a `MessageException` with the field's name, the
position and Kafka's text.  Source: ByteBufferAccessor, ByteUtils and the generated readers of Kafka 4.4.0.
"""

from __future__ import annotations

from kafkalog._native.codec import messages as native
from kafkalog._native.codec.messages import ARRAY_LENGTH_MAX, TAGGED_FIELDS_MAX, Refusal
from kafkalog.errors import SchemaException


class MessageException(SchemaException):
    """The bytes are not a struct of the expected kind.

    `position` counts from the struct's first byte.  `kafka_text` is the text of Kafka's exception, or None if Java's
    underflow has no text.
    """

    kafka_text: str | None = None


def message_exception(what: str, problem: str, position: int, kafka_text: str | None) -> MessageException:
    """Returns an error about the field `what`."""
    error = MessageException(f"{what}: {problem}", position=position)
    error.kafka_text = kafka_text
    return error


# Our text and Kafka's text, which is empty for Java's underflow.  {n} is the number that was read, {left} the bytes
# that are left, {field} the field.
_TEXTS = {
    native.SHORT_NUMBER: ("expected {n} bytes, but only {left} are left", ""),
    native.SHORT_BYTES: (
        "its length is {n}, but only {left} bytes are left",
        "Error reading byte array of {n} byte(s): only {left} byte(s) available",
    ),
    native.NEGATIVE_SIZE: ("its length is {n}", "{n}"),  # possible only for an unknown tagged field
    native.SHORT_UVARINT: ("the bytes end inside a number", ""),
    native.LONG_UVARINT: (
        "a number is longer than 5 bytes",
        "Varint is too long, the most significant bit in the 5th byte is set, converted value: {n:x}",
    ),
    native.IS_NULL: (
        "is null, but the field is not nullable",
        "non-nullable field {field} was serialized as null",
    ),
    native.LONG_TEXT: ("its length is {n}", "string field {field} had invalid length {n}"),
    native.FEW_BYTES: (
        "has {n} elements, but only {left} bytes are left",
        "Tried to allocate a collection of size {n}, but there are only {left} bytes remaining.",
    ),
    native.MANY_ELEMENTS: (
        f"has {{n}} elements, at most {ARRAY_LENGTH_MAX} are read",
        f"Tried to read a collection of size {{n}}, which exceeds the maximum allowed size of {ARRAY_LENGTH_MAX}.",
    ),
    native.NEGATIVE_TAGS: ("their number is {n}", "Invalid negative number of tagged fields {n}"),
    native.FEW_BYTES_FOR_TAGS: (
        "there are {n}, but only {left} bytes are left",
        "Tried to read {n} tagged fields, but there are only {left} bytes remaining.",
    ),
    native.MANY_TAGS: (
        f"there are {{n}}, at most {TAGGED_FIELDS_MAX} are read",
        f"Tried to read {{n}} tagged fields, which exceeds the maximum allowed count of {TAGGED_FIELDS_MAX}.",
    ),
    native.WRONG_TAG: ("version {version} has no such field", "Tag {n} is not valid for version {version}"),
    native.TOO_NEW: ("version {n} of {value} is not known", "Can't read version {n} of {value}"),
}


def decoding_error(refusal: Refusal, start: int, end: int, version: int = 0) -> MessageException:
    """Returns the error of a struct from `start` on, in bytes up to `end`; `version` is the one that was read."""
    problem, text = _TEXTS[refusal.verdict]
    seen = {
        "n": refusal.number,
        "left": end - refusal.position,
        "field": refusal.field,
        "value": refusal.value,
        "version": version,
    }
    position = refusal.position - start
    return message_exception(refusal.field, problem.format_map(seen), position, text.format_map(seen) or None)


class Reader:
    """Bytes and a position in them, for what is before and after messages.  Raises MessageException."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def bad(self, what: str, problem: str, kafka_text: str | None) -> MessageException:
        return message_exception(what, problem, self.at, kafka_text)

    def uvarint(self, what: str) -> int:
        """Reads a number of up to 32 bits and interprets it as an int32."""
        try:
            value, self.at = native.read_uvarint(self.data, self.at, what)
        except Refusal as refusal:
            raise decoding_error(refusal, 0, len(self.data)) from None
        return value

    def take(self, size: int, what: str) -> bytes:
        if not 0 <= size <= len(self.data) - self.at:
            verdict = native.NEGATIVE_SIZE if size < 0 else native.SHORT_BYTES
            raise decoding_error(Refusal(verdict, what, self.at, size), 0, len(self.data))
        self.at += size
        return self.data[self.at - size : self.at]
