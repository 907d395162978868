"""Reads and writes Kafka's messages: every struct of the internal topics, driven by tables of fields.

A table is text: a line for a message, indented lines for its fields (`message_tables.parse_table` explains them).
Values are dictionaries with Kafka's field names.  They contain numbers, str, bytes, bool, lists, and a uuid as 22
characters of base64.  A decoded value has every field of its version; a tagged field that was not written has its
default.

The bytes are untrusted: each length is checked before it is used, so nothing larger than the input is allocated.  An
error knows only a position in the bytes; callers know the file and the record type.  Source: the generated classes of
Kafka 4.4.0 (MessageDataGenerator).  A `MessageException` keeps the text of Kafka's exception, because the dump tool
prints it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kafkalog.engine.format.message_reader import MessageException, Read, Reader, reading, tagged_count
from kafkalog.engine.format.message_tables import Field, Head, Type, default_of, parse_table
from kafkalog.engine.format.message_writer import Write, put_uvarint, refused, writing
from kafkalog.errors import IllegalArgumentException, UnsupportedVersionException

if TYPE_CHECKING:
    from typing_extensions import Buffer

Values = dict[str, Any]


def parse_schemas(table: str) -> list[Schema]:
    """Returns the messages of a table, in its order."""
    return [Schema(head) for head in parse_table(table)]


# --- a struct in one version ----------------------------------------------------------------------


class _Plan:
    """The fields of a struct in one version, each with its reader and writer; created once."""

    __slots__ = ("defaults", "fields", "flexible", "name", "others", "tagged", "too_new", "version")

    def __init__(self, of: Type, version: int, flexible: bool) -> None:
        self.name = of.name
        self.version = version
        self.flexible = flexible
        self.too_new = 0  # the version of a message that is too new, whose inner structs are not read
        self.fields: list[tuple[str, Read, Write]] = []
        self.tagged: dict[int, tuple[str, Read, Write, bytearray]] = {}  # the last item is the default's bytes
        self.others: dict[int, Field] = {}  # tagged fields of other versions
        self.defaults: dict[str, Callable[[], Any]] = {}  # in the order of declaration, which is that of Kafka's JSON
        for field in of.fields:
            if not field.in_version(version):
                if field.tag is not None:
                    self.others[field.tag] = field
                continue
            tagged = field.tag is not None
            self.defaults[field.name] = default_of(field, version)
            read = reading(field.type, field.name, field.nullable, self, tagged)
            write = writing(field.type, field.name, field.nullable, self, tagged)
            if field.tag is None:
                self.fields.append((field.name, read, write))
            else:
                default = bytearray()
                write(default, self.defaults[field.name]())
                self.tagged[field.tag] = field.name, read, write, default
        self.tagged = dict(sorted(self.tagged.items()))

    def inside(self, of: Type) -> _Plan:
        return _Plan(of, self.version, self.flexible)

    def read(self, read: Reader) -> Values:
        values: Values = {}
        if self.tagged:
            values = {name: make() for name, make in self.defaults.items()}
        for name, read_field, _ in self.fields:
            values[name] = read_field(read)
        if self.flexible:
            self._read_tagged(read, values)
        return values

    def _read_tagged(self, read: Reader, values: Values) -> None:
        for _ in range(tagged_count(read)):
            tag = read.uvarint("tag")
            size = read.uvarint("size of a tagged field")
            if tag in self.tagged:
                name, read_field, _, _ = self.tagged[tag]  # Kafka ignores the size, too
                values[name] = read_field(read)
            elif tag in self.others:
                text = f"Tag {tag} is not valid for version {self.version}"
                raise read.bad(self.others[tag].name, f"version {self.version} has no such field", text)
            else:
                read.take(size, f"tagged field {tag}")

    def write(self, out: bytearray, values: Any) -> None:
        if not isinstance(values, Mapping):
            raise refused(self.name, values, "a dictionary of fields")
        for name, _, write_field in self.fields:
            if name not in values:
                raise IllegalArgumentException(f"{self.name}: the field {name} is missing")
            write_field(out, values[name])
        unknown = values.keys() - self.defaults.keys()
        if unknown:
            raise IllegalArgumentException(
                f"{self.name}: version {self.version} has no field {', '.join(sorted(unknown))}, "
                f"expected {', '.join(self.defaults) or 'none'}"
            )
        if self.flexible:
            self._write_tagged(out, values)

    def _write_tagged(self, out: bytearray, values: Mapping[str, Any]) -> None:
        parts = []
        for tag, (name, _, write_field, default) in self.tagged.items():
            if name in values:
                part = bytearray()
                write_field(part, values[name])
                if part != default:
                    parts.append((tag, part))
        put_uvarint(out, len(parts))
        for tag, part in parts:
            put_uvarint(out, tag)
            put_uvarint(out, len(part))
            out += part


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
    if of.kind == "bytes":
        return base64.b64encode(value).decode()
    if of.element is not None:
        return [_json_value(of.element, each, version) for each in value]
    return _json_struct(of, value, version) if of.kind == "struct" else value


# --- the API -------------------------------------------------------------------------------------


class Schema:
    """A message: its name, its record type (-1 if it has none), its versions, and its readers and writers."""

    def __init__(self, head: Head) -> None:
        self.name = head.name
        self.number = head.number
        self.lowest = head.lowest
        self.highest = head.highest
        self.flexible_from = head.flexible_from
        self.type = Type("struct", name=head.name, fields=head.fields)
        self._plans: dict[int, _Plan] = {}

    def _plan(self, version: int) -> _Plan:
        plan = self._plans.get(version)
        if plan is None:
            known = min(max(version, self.lowest), self.highest)
            plan = _Plan(self.type, known, known >= self.flexible_from)
            plan.too_new = version if version > self.highest else 0
            if len(self._plans) < 64:  # a hostile input may contain any number of versions
                self._plans[version] = plan
        return plan

    def has_version(self, version: int) -> bool:
        return self.lowest <= version <= self.highest

    def decode(self, data: Buffer, version: int, *, at: int = 0) -> tuple[Values, int]:
        """Returns the struct that begins at `at` and the position of its end.

        Raises MessageException for bytes that do not parse.  An unknown version is read as Kafka's classes read it: as
        the nearest known version.  If it is too new, inner structs are refused.  A caller that does not want this
        checks `has_version` first.
        """
        read = Reader(data if isinstance(data, bytes) else bytes(data), at)
        try:
            return self._plan(version).read(read), read.at
        except MessageException as error:
            error.message = f"{self.name} version {version}: {error.message}"
            raise

    def encode(self, values: Mapping[str, Any], version: int) -> bytes:
        """Returns the struct's bytes, as Kafka writes them; every field that is not tagged must be given.

        Raises IllegalArgumentException for a missing, unknown or unsuitable field, and UnsupportedVersionException for
        a version that does not exist.
        """
        if not self.has_version(version):
            raise UnsupportedVersionException(
                f"{self.name} has no version {version}, expected {self.lowest} to {self.highest}"
            )
        out = bytearray()
        try:
            self._plan(version).write(out, values)
        except IllegalArgumentException as error:
            error.message = f"{self.name} version {version}: {error.message}"
            raise
        return bytes(out)

    def to_json(self, values: Mapping[str, Any], version: int) -> Values:
        """Returns values as Kafka's JSON converters show them in a version.

        Fields are in the order of declaration, and bytes are base64.  Tagged fields with their default value are
        omitted.
        """
        return _json_struct(self.type, values, min(max(version, self.lowest), self.highest))
