"""The errors of values that are no message, and a writer for the numbers of frames around messages.

`kafkalog._native.codec.messages` writes.  Here its verdicts become errors with the field's name, what was found and
what was expected.
"""

from __future__ import annotations

import base64

from kafkalog._limits import SHORT_MAX
from kafkalog._native.codec import messages as native
from kafkalog._native.codec.messages import Refusal
from kafkalog.engine.format.java_text import parse_uuid
from kafkalog.engine.format.values import shown
from kafkalog.errors import IllegalArgumentException, UnsupportedVersionException

_NAMES = {number: name for name, number in native.KINDS.items()}
_EXPECTED = {
    "uuid": "a uuid as 22 characters of base64",
    "string": "text",
    "string16": "text",
    "bytes": "bytes",
    "records": "bytes",
    "array": "a list",
}


def put_uvarint(out: bytearray, value: int) -> None:
    """Appends a number with seven bits a byte, the lowest first."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def uuid_bytes(text: str, what: str) -> bytes:
    """Decodes a uuid as Java does; raises IllegalArgumentException with the name of the field."""
    try:
        return base64.urlsafe_b64decode(parse_uuid(text) + "==")
    # the error of java_text is a CorruptCheckpointException, which would be wrong for an argument
    except IllegalArgumentException as error:
        raise IllegalArgumentException(f"{what}: {error.message}") from error


def encoding_error(refusal: Refusal, version: int) -> IllegalArgumentException | UnsupportedVersionException:
    """Returns the error of values that cannot be written in a version."""
    field, value = refusal.field, refusal.value
    match refusal.verdict:
        case native.NOT_DEFAULT:
            return UnsupportedVersionException(f"Attempted to write a non-default {field} at version {version}")
        case native.MISSING:
            text = f"the field {value} is missing"
        case native.UNKNOWN:
            unknown, known = value
            names = ", ".join(sorted(map(str, unknown)))
            text = f"version {version} has no field {names}, expected {', '.join(known) or 'none'}"
        case native.LONG_VALUE:
            text = f"found text of {refusal.number} bytes, expected at most {SHORT_MAX}"
        case native.BAD_STRUCT:
            text = f"found {shown(value)}, expected a dictionary of fields"
        case _:
            text = f"found {shown(value)}, expected {_expected(refusal)}"
    return IllegalArgumentException(f"{field}: {text}")


def _expected(refusal: Refusal) -> str:
    kind = _NAMES[refusal.number & ~native.NULLABLE]
    if isinstance(refusal.value, str) and kind in ("string", "string16"):
        return "text that UTF-8 can hold"
    expected = _EXPECTED.get(kind, kind)
    return f"{expected} or None" if refusal.number & native.NULLABLE else expected
