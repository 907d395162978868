"""Kafka's messages: one reader and one writer for every struct of internal topics, driven by tables of fields.

A table (`parse_schemas`) is text: a line for a message, indented lines for its fields, deeper ones for the fields of a
struct.  Values are dictionaries with Kafka's field names: numbers, str, bytes, bool, lists, a uuid as 22 characters of
base64; a decoded one has every field of its version, tagged ones at their default where they were not written.

Bytes come from outside: each length is checked before it is used, so that nothing larger than the input is ever made.
Known of the bytes is only their position; files and record types are the callers'.  Source: the generated classes of
Kafka 4.4.0 (MessageDataGenerator), whose exceptions' texts a `MessageException` keeps, for the dump tool prints them.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalog.errors import IllegalArgumentException, SchemaException, UnsupportedVersionException
from kafkalog.format.java_text import ZERO_UUID, decode_utf8, parse_uuid
from kafkalog.format.values import shown
from kafkalog.limits import SHORT_MAX

if TYPE_CHECKING:
    from typing_extensions import Buffer

Values = dict[str, Any]

_NUMBERS = {
    "bool": struct.Struct(">?"),
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
}
_LENGTH16, _LENGTH32 = _NUMBERS["int16"], _NUMBERS["int32"]
_UUID_BYTES = 16
ARRAY_LENGTH_MAX = 1_000_000  # MessageUtil's, new in 4.4.0, as the next one
TAGGED_FIELDS_MAX = 10_000


class MessageException(SchemaException):
    """Bytes that are no such struct.  `position` counts from the struct's first byte; `kafka_text` is what Kafka's
    exception says, None where Java's underflow says nothing."""

    kafka_text: str | None = None


# --- tables ---------------------------------------------------------------------------------------


class Type(NamedTuple):
    """What a field holds: a primitive's name, "array" of `element`, or "struct" with `fields`."""

    kind: str
    element: Type | None = None
    name: str = ""
    fields: tuple[Field, ...] = ()


class Field(NamedTuple):
    """`first` and `last`: the versions that have it.  `tag`: None where it is not tagged."""

    name: str
    type: Type
    nullable: bool
    first: int
    last: int
    tag: int | None
    default: Any

    def in_version(self, version: int) -> bool:
        return self.first <= version <= self.last


_HEAD = re.compile(r"(?:(\d+) )?(\w+) (\d+)(?:-(\d+))?(?: flexible (\d+)\+)?")
_FIELD = re.compile(r"(\w+) (\[?)(\w+)\]?(\??)(?: (\d+)(?:\+|-(\d+)))?(?: #(\d+)(?:=(\S+))?)?")


def parse_schemas(table: str) -> list[Schema]:
    """The messages of a table, in its order.

    A message is `[record type] Name 0-4 flexible 4+` (versions; the last two words where later ones are flexible),
    its fields are `name type`, several to a line behind commas: `[type]` an array, `?` nullable, `3+` or `1-1` the
    versions that have it, `#0` tagged, `=-1` the tagged one's default where that is not zero or empty.  A struct's
    fields stand below its first use, deeper; uses behind that only name it.
    """
    lines = [line for line in table.splitlines() if line.strip()]
    schemas = []
    at = 0
    while at < len(lines):
        head = _HEAD.fullmatch(lines[at].strip())
        assert head is not None, lines[at]
        number, name, low, high, flexible = head.groups()
        lowest, highest = int(low), int(high or low)
        fields, at = _parse_fields(lines, at + 1, 0, (lowest, highest), {})
        schemas.append(
            Schema(name, -1 if number is None else int(number), lowest, highest, int(flexible or highest + 1), fields)
        )
    return schemas


def _parse_fields(
    lines: list[str], at: int, outer: int, versions: tuple[int, int], known: dict[str, Type]
) -> tuple[tuple[Field, ...], int]:
    fields: list[Field] = []
    while at < len(lines) and (depth := _indent(lines[at])) > outer:
        for text in lines[at].strip().split(", "):
            match = _FIELD.fullmatch(text)
            assert match is not None, text
            name, array, kind, null, first, last, tag, default = match.groups()
            low = versions[0] if first is None else int(first)
            high = versions[1] if last is None else int(last)
            inner = Type(kind)
            if kind[0].isupper():
                if kind not in known:
                    below, end = _parse_fields(lines, at + 1, depth, (low, high), known)
                    known[kind] = Type("struct", name=kind, fields=below)
                    at = end - 1
                inner = known[kind]
            of = Type("array", element=inner) if array else inner
            value = _default(of, default)
            fields.append(Field(name, of, bool(null), low, high, None if tag is None else int(tag), value))
        at += 1
    return tuple(fields), at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _default(of: Type, text: str | None) -> Any:
    if text is not None:
        return None if text == "null" else int(text)
    return {"array": [], "struct": None, "string": "", "bytes": b"", "uuid": ZERO_UUID}.get(of.kind, 0)


# --- reading --------------------------------------------------------------------------------------


class Reader:
    """Bytes and a position in them; every step asks first whether it stays inside."""

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
            raise self.bad(what, f"expected {layout.size} bytes, found the end after {self.end - at}", None)
        self.at = at + layout.size
        return layout.unpack_from(self.data, at)[0]

    def take(self, size: int, what: str) -> bytes:
        left = self.end - self.at
        if size > left:
            text = f"Error reading byte array of {size} byte(s): only {left} byte(s) available"
            raise self.bad(what, f"its length is {size}, but only {left} bytes are left", text)
        if size < 0:  # of an unknown tagged field alone
            raise self.bad(what, f"its length is {size}", str(size))
        self.at += size
        return self.data[self.at - size : self.at]

    def uvarint(self, what: str) -> int:
        """Up to 32 bits; read as an int32, as Kafka's lengths are."""
        value = 0
        for shift in (0, 7, 14, 21, 28):
            if self.at == self.end:
                raise self.bad(what, "a number ends early", None)
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                value &= 0xFFFFFFFF
                return value - (1 << 32) if value & 0x80000000 else value
        text = "Varint is too long, the most significant bit in the 5th byte is set, converted value: "
        raise self.bad(what, "a number is longer than 5 bytes", f"{text}{value & 0xFFFFFFFF:x}")

    def length(self, what: str, flexible: bool, short: bool) -> int:
        """Of a string, bytes or an array; negative for null."""
        if flexible:
            value = self.uvarint(what)
            return value - 1 if value > -(1 << 31) else (1 << 31) - 1  # as an int32 turns over
        found: int = self.number(_LENGTH16 if short else _LENGTH32, what)
        return found


Read = Callable[[Reader], Any]


def _reading(of: Type, what: str, nullable: bool, plan: _Plan, tagged: bool = False) -> Read:
    """How a value of this type is read in a version; `what` names it in errors, as Kafka does."""
    flexible = plan.flexible
    layout = _NUMBERS.get(of.kind)
    if of.kind == "bool":
        byte = _NUMBERS["int8"]
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
    return read.bad(what, "is null, which it may not be", f"non-nullable field {what} was serialized as null")


def _read_uuid(read: Reader, what: str) -> str:
    left = read.end - read.at
    if left < _UUID_BYTES:
        raise read.bad(what, f"expected {_UUID_BYTES} bytes, found the end after {left}", None)
    return base64.urlsafe_b64encode(read.take(_UUID_BYTES, what))[:22].decode()


def _reading_array(of: Type, what: str, nullable: bool, plan: _Plan) -> Read:
    assert of.element is not None
    element = _reading(of.element, f"{what} element", False, plan)
    flexible = plan.flexible

    def read_array(read: Reader) -> list[Any] | None:
        count = read.length(what, flexible, False)
        if count < 0:
            if nullable:
                return None
            raise _null(read, what)
        left = read.end - read.at
        if count > left:  # an element has a byte at least
            text = f"Tried to allocate a collection of size {count}, but there are only {left} bytes remaining."
            raise read.bad(what, f"has {count} elements, but only {left} bytes are left", text)
        if count > ARRAY_LENGTH_MAX:
            text = f"Tried to read a collection of size {count}, which exceeds the maximum allowed size of "
            raise read.bad(
                what, f"has {count} elements, at most {ARRAY_LENGTH_MAX} are read", f"{text}{ARRAY_LENGTH_MAX}."
            )
        return [element(read) for _ in range(count)]

    return read_array


def _reading_struct(of: Type, what: str, nullable: bool, plan: _Plan, tagged: bool) -> Read:
    inner = _Plan(of, plan.version, plan.flexible)
    byte = _NUMBERS["int8"]

    def read_struct(read: Reader) -> Values | None:
        if nullable and (read.uvarint(what) <= 0 if tagged else read.number(byte, what) < 0):
            return None
        if read_version := plan.too_new:
            text = f"Can't read version {read_version} of {of.name}"
            raise read.bad(what, f"version {read_version} of {of.name} is not known", text)
        return inner.read(read)

    return read_struct


# --- writing --------------------------------------------------------------------------------------

Write = Callable[[bytearray, Any], None]


def put_uvarint(out: bytearray, value: int) -> None:
    """Seven bits a byte, the lowest first."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _refused(what: str, value: Any, expected: str) -> IllegalArgumentException:
    return IllegalArgumentException(f"{what}: found {shown(value)}, expected {expected}")


def _put_length(out: bytearray, size: int, flexible: bool, short: bool) -> None:
    if flexible:
        put_uvarint(out, size + 1)
    else:
        out += (_LENGTH16 if short else _LENGTH32).pack(size)


def _writing(of: Type, what: str, nullable: bool, plan: _Plan, tagged: bool = False) -> Write:
    """How a value of this type is written in a version."""
    layout = _NUMBERS.get(of.kind)
    if layout is not None:
        return _writing_number(layout, what, of.kind)
    if of.kind == "uuid":
        return lambda out, value: out.extend(_uuid_bytes(what, value))
    if of.kind == "struct":
        return _writing_struct(of, what, nullable, plan, tagged)
    flexible = plan.flexible
    short = of.kind == "string"
    expected = {"string": "text", "bytes": "bytes", "array": "a list"}[of.kind] + (" or None" if nullable else "")
    element = None if of.element is None else _writing(of.element, f"{what} element", False, plan)

    def write(out: bytearray, value: Any) -> None:
        if value is None and nullable:
            _put_length(out, -1, flexible, short)
        elif short:
            data = _utf8(what, value, expected)
            _put_length(out, len(data), flexible, short)
            out += data
        elif element is not None:
            if not isinstance(value, (list, tuple)):
                raise _refused(what, value, expected)
            _put_length(out, len(value), flexible, short)
            for each in value:
                element(out, each)
        else:
            if not isinstance(value, (bytes, bytearray, memoryview)):
                raise _refused(what, value, expected)
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
            raise _refused(what, value, f"{kind}") from None

    return write


def _uuid_bytes(what: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise _refused(what, value, "a uuid as 22 characters of base64")
    try:
        return base64.urlsafe_b64decode(parse_uuid(value) + "==")
    except IllegalArgumentException as error:  # a file's text has one of its own, which is bad bytes as well
        raise IllegalArgumentException(f"{what}: {error.message}") from error


def _utf8(what: str, value: Any, expected: str) -> bytes:
    if not isinstance(value, str):
        raise _refused(what, value, expected)
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise _refused(what, value, "text that UTF-8 can hold") from None
    if len(data) > SHORT_MAX:
        raise IllegalArgumentException(f"{what}: found text of {len(data)} bytes, expected at most {SHORT_MAX}")
    return data


def _writing_struct(of: Type, what: str, nullable: bool, plan: _Plan, tagged: bool) -> Write:
    inner = _Plan(of, plan.version, plan.flexible)

    def write(out: bytearray, value: Any) -> None:
        if nullable:
            out.append((0 if value is None else 1) if tagged else (0xFF if value is None else 1))
            if value is None:
                return
        inner.write(out, value)

    return write


def _tagged_count(read: Reader) -> int:
    what = "tagged fields"
    count = read.uvarint(what)
    left = read.end - read.at
    if count < 0:
        raise read.bad(what, f"their number is {count}", f"Invalid negative number of tagged fields {count}")
    if count > left:  # each has two bytes at least
        text = f"Tried to read {count} tagged fields, but there are only {left} bytes remaining."
        raise read.bad(what, f"there are {count}, but only {left} bytes are left", text)
    if count > TAGGED_FIELDS_MAX:
        text = f"Tried to read {count} tagged fields, which exceeds the maximum allowed count of {TAGGED_FIELDS_MAX}."
        raise read.bad(what, f"there are {count}, at most {TAGGED_FIELDS_MAX} are read", text)
    return count


# --- a struct in one version ----------------------------------------------------------------------


class _Plan:
    """The fields of a struct in one version, each with its reader and writer; made once."""

    __slots__ = ("defaults", "fields", "flexible", "name", "others", "tagged", "too_new", "version")

    def __init__(self, of: Type, version: int, flexible: bool) -> None:
        self.name = of.name
        self.version = version
        self.flexible = flexible
        self.too_new = 0  # the version that a too new message has; its structs are not read
        self.fields: list[tuple[str, Read, Write]] = []
        self.tagged: dict[int, tuple[Field, Read, Write]] = {}
        self.others: dict[int, Field] = {}  # tagged fields of other versions
        self.defaults: dict[str, Callable[[], Any]] = {}  # in the order of declaration, which is that of Kafka's JSON
        for field in of.fields:
            if not field.in_version(version):
                if field.tag is not None:
                    self.others[field.tag] = field
                continue
            tagged = field.tag is not None
            self.defaults[field.name] = _default_of(field, version)
            read = _reading(field.type, field.name, field.nullable, self, tagged)
            write = _writing(field.type, field.name, field.nullable, self, tagged)
            if field.tag is None:
                self.fields.append((field.name, read, write))
            else:
                self.tagged[field.tag] = field, read, write
        self.tagged = dict(sorted(self.tagged.items()))

    def read(self, read: Reader) -> Values:
        values: Values = {}
        if self.tagged:
            values = {name: make() for name, make in self.defaults.items()}
        for name, reading, _ in self.fields:
            values[name] = reading(read)
        if self.flexible:
            self._read_tagged(read, values)
        return values

    def _read_tagged(self, read: Reader, values: Values) -> None:
        for _ in range(_tagged_count(read)):
            tag = read.uvarint("tag")
            size = read.uvarint("size of a tagged field")
            if tag in self.tagged:
                field, reading, _ = self.tagged[tag]  # Kafka does not look at the size either
                values[field.name] = reading(read)
            elif tag in self.others:
                text = f"Tag {tag} is not valid for version {self.version}"
                raise read.bad(self.others[tag].name, f"version {self.version} has no such field", text)
            else:
                read.take(size, f"tagged field {tag}")

    def write(self, out: bytearray, values: Any) -> None:
        if not isinstance(values, Mapping):
            raise _refused(self.name, values, "a dictionary of fields")
        for name, _, writing in self.fields:
            if name not in values:
                raise IllegalArgumentException(f"{self.name}: the field {name} is missing")
            writing(out, values[name])
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
        for tag, (field, _, writing) in self.tagged.items():
            default = self.defaults[field.name]()
            value = values.get(field.name, default)
            if not _is_default(value, default):
                part = bytearray()
                writing(part, value)
                parts.append((tag, part))
        put_uvarint(out, len(parts))
        for tag, part in parts:
            put_uvarint(out, tag)
            put_uvarint(out, len(part))
            out += part


def _default_of(field: Field, version: int) -> Callable[[], Any]:
    """What makes the default: a new list or dictionary each time, for a decoded value is its caller's."""
    if field.type.kind == "array" and field.default is not None:
        return list
    if field.type.kind == "struct":
        return lambda: _empty(field.type, version)
    default = field.default
    return lambda: default


def _empty(of: Type, version: int) -> Values:
    return {field.name: _default_of(field, version)() for field in of.fields if field.in_version(version)}


def _is_default(value: Any, default: Any) -> bool:
    return bool((list(value) if isinstance(value, tuple) else value) == default)


def _json_struct(of: Type, values: Mapping[str, Any], version: int) -> Values:
    found: Values = {}
    for field in of.fields:
        if field.in_version(version):
            default = _default_of(field, version)()
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


# --- the face -------------------------------------------------------------------------------------


class Schema:
    """A message: its name, its record type (-1 without one), its versions, and what reads and writes them."""

    def __init__(
        self, name: str, number: int, lowest: int, highest: int, flexible_from: int, fields: tuple[Field, ...]
    ) -> None:
        self.name = name
        self.number = number
        self.lowest = lowest
        self.highest = highest
        self.flexible_from = flexible_from
        self.type = Type("struct", name=name, fields=fields)
        self._plans: dict[int, _Plan] = {}

    def _plan(self, version: int) -> _Plan:
        plan = self._plans.get(version)
        if plan is None:
            known = min(max(version, self.lowest), self.highest)
            plan = _Plan(self.type, known, known >= self.flexible_from)
            plan.too_new = version if version > self.highest else 0
            if len(self._plans) < 64:  # hostile versions come as they like
                self._plans[version] = plan
        return plan

    def has_version(self, version: int) -> bool:
        return self.lowest <= version <= self.highest

    def decode(self, data: Buffer, version: int, *, at: int = 0) -> tuple[Values, int]:
        """The struct that begins at `at`, and where it ends; MessageException for bytes that are none.

        An unknown version is read as Kafka's classes read it: as the nearest known one, but for structs inside, which
        are refused when it is too new.  Ask `has_version` first where that is not wanted.
        """
        read = Reader(data if isinstance(data, bytes) else bytes(data), at)
        try:
            return self._plan(version).read(read), read.at
        except MessageException as error:
            error.message = f"{self.name} version {version}: {error.message}"
            raise

    def encode(self, values: Mapping[str, Any], version: int) -> bytes:
        """The struct's bytes, as Kafka writes them; every field that is not tagged must be given.

        IllegalArgumentException for a field that is missing, unknown or wrong, UnsupportedVersionException for a
        version that there is not.
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
        """Values as Kafka's JSON converters show them in a version: in the order of declaration, bytes as base64,
        without tagged fields that are at their default."""
        return _json_struct(self.type, values, min(max(version, self.lowest), self.highest))
