"""Reads and writes Kafka's messages: every struct of the internal topics, driven by tables of fields.

A table is text: a line for a message, indented lines for its fields (`message_tables.parse_table` explains them).
Values are dictionaries with Kafka's field names.  They contain numbers, str, bytes, bool, lists, and a uuid as 22
characters of base64.  A decoded record has every field of its version; a tagged field that was not written has its
default.  To encode a record, every field that is not tagged must be given.

A `Message` (of `requests`) is complete instead, as Kafka's data classes are.  A decoded value has the fields of all
versions, with defaults for those that its version lacks.  A field that is not given has its default.

The native `Program` of a message in a version reads and writes it.  The bytes are untrusted: each length is checked
before it is used, so nothing larger than the input is allocated.  An error knows only a position in the bytes; callers
know the file and the record type.  Source: the generated classes of Kafka 4.4.0 (MessageDataGenerator).  A
`MessageException` keeps the text of Kafka's exception, because the dump tool prints it.
"""

from __future__ import annotations

import base64
import functools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kafkalog._native.codec import messages as native
from kafkalog._native.codec.messages import Program, Refusal
from kafkalog.engine.format.message_reader import decoding_error
from kafkalog.engine.format.message_tables import STRUCT, Field, Head, Type, default_of, parse_table
from kafkalog.engine.format.message_writer import encoding_error, uuid_bytes
from kafkalog.errors import IllegalArgumentException, KafkalogError, UnsupportedVersionException

if TYPE_CHECKING:
    from typing_extensions import Buffer

Values = dict[str, Any]


def parse_schemas(table: str) -> list[Schema]:
    """Returns the messages of a table, in its order."""
    return [Schema(head) for head in parse_table(table)]


# --- a message in one version ---------------------------------------------------------------------

# The places of a field: in turn, by its tag, in another version.
_IN_TURN, _TAGGED, _ABSENT = range(3)


def _program(of: Type, version: int, flexible: bool, complete: bool, too_new: int) -> Program:
    """Compiles a message for native code; `too_new` is the version of a message that is newer than `version`, or 0."""
    structs: list[tuple[str, list[tuple[Any, ...]]]] = []
    numbers: dict[str, int] = {}

    def number_of(of: Type) -> int:
        if of.name not in numbers:
            rows = [row(field) for field in of.fields]
            numbers[of.name] = len(structs)
            structs.append((of.name, rows))
        return numbers[of.name]

    def row(field: Field) -> tuple[Any, ...]:
        element = field.type.element
        inner = field.type if element is None else element
        place = _ABSENT if not field.in_version(version) else _IN_TURN if field.tag is None else _TAGGED
        fresh, default = native.SHARED, field.default
        if default is STRUCT or (element is not None and default is not None):
            fresh, default = native.FIELDS if default is STRUCT else native.LIST, None
        return (
            sys.intern(field.name),
            native.KINDS[field.type.kind],
            -1 if element is None else native.KINDS[element.kind],
            number_of(inner) if inner.kind == "struct" else -1,
            -1 if field.tag is None else field.tag,
            place,
            field.nullable_in(version),
            field.ignorable,
            fresh,
            default,
        )

    number_of(of)
    return Program(structs, flexible, complete, too_new, uuid_bytes)


# --- JSON -----------------------------------------------------------------------------------------


def _is_default(value: Any, default: Any) -> bool:
    return bool((list(value) if isinstance(value, tuple) else value) == default)


def _json_struct(of: Type, values: Mapping[str, Any], version: int) -> Values:
    found: Values = {}
    for field in of.fields:
        if not field.in_version(version):
            continue
        if field.tag is None and field.name in values:
            found[field.name] = _json_value(field.type, values[field.name], version)
            continue
        default = default_of(field, version)()
        value = values.get(field.name, default)
        if field.tag is None or not _is_default(value, default):
            found[field.name] = _json_value(field.type, value, version)
    return found


def _json_value(of: Type, value: Any, version: int) -> Any:
    if value is None:
        return None
    if of.kind in ("bytes", "records"):
        return base64.b64encode(value).decode()
    if of.element is not None:
        return [_json_value(of.element, each, version) for each in value]
    return _json_struct(of, value, version) if of.kind == "struct" else value


# --- the API -------------------------------------------------------------------------------------


class Schema:
    """A message: its name, its number (-1 if it has none), its versions, and its readers and writers.

    The number is the record type or the API's key.
    """

    complete = False  # whether values have the fields of all versions

    def __init__(self, head: Head) -> None:
        self.name = head.name
        self.number = head.number
        self.lowest = head.lowest
        self.highest = head.highest
        self.flexible_from = head.flexible_from
        self._head = head
        self._programs: dict[int, Program] = {}

    @functools.cached_property
    def type(self) -> Type:
        """The struct with its fields."""
        return Type("struct", name=self.name, fields=self._head.fields())

    def _program(self, version: int) -> Program:
        program = self._programs.get(version)
        if program is None:
            known = min(max(version, self.lowest), self.highest)
            too_new = version if version > self.highest else 0
            program = _program(self.type, known, known >= self.flexible_from, self.complete, too_new)
            if len(self._programs) < 64:  # a hostile input may contain any number of versions
                self._programs[version] = program
        return program

    def has_version(self, version: int) -> bool:
        return self.lowest <= version <= self.highest

    def decode(self, data: Buffer, version: int, *, at: int = 0) -> tuple[Values, int]:
        """Returns the struct that begins at `at` and the position of its end.

        Raises MessageException for bytes that do not parse.  An unknown version is read as Kafka's classes read it: as
        the nearest known version.  If it is too new, inner structs are refused.  A caller that does not want this
        checks `has_version` first.
        """
        try:
            return self._program(version).decode(data, at)
        except Refusal as refusal:
            known = min(max(version, self.lowest), self.highest)
            error = decoding_error(refusal, at, memoryview(data).nbytes, known)
        error.message = f"{self.name} version {version}: {error.message}"
        raise error

    def encode(self, values: Mapping[str, Any], version: int) -> bytes:
        """Returns the struct's bytes, as Kafka writes them.

        Raises IllegalArgumentException for a missing, unknown or unsuitable field, and UnsupportedVersionException for
        a version that does not exist or lacks a field whose value cannot be ignored.
        """
        try:
            return self._known_program(version).encode(values)
        except (Refusal, IllegalArgumentException) as error:
            raise self._explained(error, version) from None

    def _known_program(self, version: int) -> Program:
        if not self.lowest <= version <= self.highest:
            raise UnsupportedVersionException(
                f"{self.name} has no version {version}, expected {self.lowest} to {self.highest}"
            )
        return self._program(version)

    def _explained(self, error: Refusal | IllegalArgumentException, version: int) -> KafkalogError:
        found = encoding_error(error, version) if isinstance(error, Refusal) else error
        found.message = f"{self.name} version {version}: {found.message}"
        return found

    def to_json(self, values: Mapping[str, Any], version: int) -> Values:
        """Returns values as Kafka's JSON converters show them in a version.

        Fields are in the order of declaration, and bytes are base64.  Tagged fields with their default value are
        omitted.
        """
        return _json_struct(self.type, values, min(max(version, self.lowest), self.highest))


class Message(Schema):
    """A request, a response or a header: values have the fields of all versions."""

    complete = True

    def default_values(self) -> Values:
        """Returns an empty message: every field has its default."""
        return self._program(self.highest).default_values()

    def encode_parts(self, values: Mapping[str, Any], version: int) -> list[Any]:
        """Returns the struct as bytes and slices of files, in their order.

        An object in a `records` field that is not bytes but has a `size` remains a part of its own.  The size is in
        bytes; an object of size 0 is omitted.  Neighbouring bytes are joined.  Raises what `encode` raises.
        """
        try:
            return self._known_program(version).encode_parts(values)
        except (Refusal, IllegalArgumentException) as error:
            raise self._explained(error, version) from None
