"""Schemas for decoding JSON: given by the user or inferred from a sample, and converted for the native decoder.

The one normal form is a pyarrow schema of nullable fields. A field for any JSON is text with the metadata of ANY_JSON.
Knows no records and decodes nothing itself. Importing this module imports pyarrow.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, get_args, get_origin

import pyarrow as pa

from kafkalog._limits import LONG_MAX, LONG_MIN
from kafkalog._native.codec.json_columns import JsonSchema
from kafkalog.engine.format.values import shown
from kafkalog.errors import IllegalArgumentException

# The metadata of a field that holds any JSON as text.
ANY_JSON = {b"kafkalog": b"json"}
FORMATS = {pa.bool_(): "b", pa.int32(): "i", pa.int64(): "l", pa.float64(): "g", pa.string(): "u"}
NAMES: Mapping[str, Any] = {
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    **{f"timestamp[{unit}]": pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")},
}
# Other names of these types: those that pyarrow prints, and Python's names and types. Python's float has 64 bits.
ALSO: Mapping[Any, str] = {
    "double": "float64",
    "float": "float64",
    "int": "int64",
    "str": "string",
    "large_string": "string",
    "string_view": "string",
    "extension<arrow.json>": "json",
    bool: "bool",
    int: "int64",
    float: "float64",
    str: "string",
    datetime: "timestamp",
}
DECIMAL = re.compile(r"decimal(?:128)?\((\d+), *(\d+)\)")
ZONED = re.compile(r"timestamp\[(s|ms|us|ns), *tz=([^\]]+)\]")
KNOWN = (
    f"{', '.join(NAMES).replace('float64', 'float64 or double')}, json, decimal(precision, scale), "
    "{name: type} or struct<name: type> for objects, [type] or list<type> for arrays"
)
# Columns of record tables with types that JSON is not decoded to.
_OF_RECORDS = ("timestamp_type", "key", "value", "headers")
NESTED_MAX = 64  # levels of types in a text
ISO_TIME = re.compile(
    r"\d{4}-[01]\d-[0-3]\d(?:[Tt ][0-2]\d:[0-5]\d(?::[0-5]\d(?:[.,](?P<part>\d{1,9}))?)?(?:[Zz]|[+-]\d\d(?::?\d\d)?)?)?"
)
# An object with more different keys is a map whose keys are data: it stays JSON text.
KEYS_MAX = 500
_MICROSECOND_DIGITS = 6
LEVELS_INFERRED = 32  # deeper values stay JSON text


def normal(schema: object) -> pa.Schema:
    """Returns a schema in normal form. IllegalArgumentException if it is not a schema, or has an unknown type.

    `schema` is a pyarrow schema, or a mapping of names to types. A type is pyarrow's bool, int32, int64, float64,
    string, timestamp, decimal128, list or struct, or its text. It may also be Python's int, float, str, bool, datetime
    or list[...]. "json" keeps any value as JSON text, a mapping is an object, and a list of one type is an array.
    """
    fields = schema if isinstance(schema, pa.Schema) else given(schema)
    made = pa.schema([_of_arrow(field, field.name) for field in fields])
    native(made)
    return made


def given(schema: object) -> list[pa.Field]:
    """Returns the fields of a mapping of names to types. pyarrow's types stay as they are."""
    if not isinstance(schema, Mapping):
        raise IllegalArgumentException(
            f"schema: found {shown(schema)}, expected a pyarrow.Schema or a mapping of names to types",
            hint='such as {"id": "int64", "paid_at": "timestamp", "items": [{"sku": "string", "price": "float64"}]}',
        )
    return [_given(name, kind, str(name)) for name, kind in schema.items()]


def _given(name: object, kind: object, path: str) -> pa.Field:
    if not isinstance(name, str):
        raise IllegalArgumentException(f"schema: found {shown(name)} as the name of a field, expected text")
    if not _is_text(name):
        raise IllegalArgumentException(f"schema: found the name {shown(name)}, which UTF-8 cannot encode")
    if get_origin(kind) is list:
        kind = [*get_args(kind)]
    if isinstance(kind, Mapping):
        return _object(name, [_given(each, below, f"{path}.{each}") for each, below in kind.items()])
    if isinstance(kind, list) and len(kind) == 1:
        return pa.field(name, pa.list_(_given("item", kind[0], f"{path}[]")))
    if isinstance(kind, pa.DataType):
        return pa.field(name, kind)
    if isinstance(kind, str):
        spelled = _spelled(kind)
        if not isinstance(spelled, str):
            return _given(name, spelled, path)
        kind = spelled
    elif isinstance(kind, type):
        kind = ALSO.get(kind, kind)
    if kind == "json":
        return pa.field(name, pa.string(), metadata=ANY_JSON)
    if isinstance(kind, str) and kind in NAMES:
        return pa.field(name, NAMES[kind])
    found = DECIMAL.fullmatch(kind) if isinstance(kind, str) else None
    if found is not None:
        with contextlib.suppress(ValueError, OverflowError):  # for more than 38 digits
            return pa.field(name, pa.decimal128(int(found[1]), int(found[2])))
    zoned = ZONED.fullmatch(kind) if isinstance(kind, str) else None
    if zoned is not None:
        with contextlib.suppress(UnicodeEncodeError):
            return pa.field(name, pa.timestamp(zoned[1], zoned[2]))
    raise IllegalArgumentException(
        f"schema: found {shown(kind)} as the type of {path!r}, expected a type that JSON can be decoded to",
        hint=f"types are {KNOWN}, and pyarrow's types of these names",
    )


def _spelled(text: str) -> Any:
    """Returns a type as pyarrow prints it as a mapping, a list of one type, or a word; other text unchanged."""
    text = text.strip()
    kind, _, rest = text.partition("<")
    kind = {"large_list": "list"}.get(kind, kind)  # decoded alike
    if text in ALSO or kind not in ("list", "struct") or not rest.endswith(">") or text.count("<") > NESTED_MAX:
        return ALSO.get(text, text)
    parts = [part.strip().removesuffix(" not null") for part in _parts(rest[:-1])]
    if kind == "list":
        [item] = parts if len(parts) == 1 else [""]
        named = re.fullmatch(r"[^<>\[\](){}:,]*:(.+)", item)
        return [named[1].strip() if named else item] if item else text
    pairs = [part.partition(":") for part in parts]
    found = {name.strip(): kind.strip() for name, _, kind in pairs}
    return found if len(found) == len(pairs) and all(found.values()) else text


def _parts(text: str) -> Iterator[str]:
    """Yields the parts of a text between its commas. A comma in brackets does not separate."""
    depth = first = 0
    for at, char in enumerate(text):
        depth += (char in "<[(") - (char in ">])")
        if char == "," and not depth:
            yield text[first:at]
            first = at + 1
    yield text[first:]


def _object(name: str, fields: list[pa.Field]) -> pa.Field:
    for each in fields:
        if "\0" in each.name:
            raise IllegalArgumentException(
                f"schema: found a NUL in the name {each.name!r} below {name!r}; Arrow's names end at a NUL",
                hint=f'give {name!r} the type "json"',
            )
    return pa.field(name, pa.struct(fields))


def _of_arrow(field: pa.Field, path: str) -> pa.Field:
    kind, name = field.type, field.name
    if is_any_json(field) or getattr(kind, "extension_name", "") == "arrow.json":
        return pa.field(name, pa.string(), metadata=ANY_JSON)
    if pa.types.is_struct(kind):
        return _object(name, [_of_arrow(each, f"{path}.{each.name}") for each in kind.fields])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.field(name, pa.list_(_of_arrow(kind.value_field, f"{path}[]")))
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.field(name, pa.string())
    if kind in FORMATS or pa.types.is_timestamp(kind) or pa.types.is_decimal128(kind):
        return pa.field(name, kind)
    hint = f"types are {KNOWN}"
    column = path.partition("[")[0]
    if column in _OF_RECORDS:
        hint = f"only fields of the values belong in it: omit columns of the records, such as {column}; {hint}"
    raise IllegalArgumentException(
        f"schema: found {kind} as the type of {path!r}, expected a type that JSON can be decoded to", hint=hint
    )


def is_any_json(field: pa.Field) -> bool:
    """Returns whether a field holds any JSON as text."""
    return bool(pa.types.is_string(field.type) and (field.metadata or {}).get(b"kafkalog") == b"json")


def native(schema: pa.Schema) -> JsonSchema:
    """Returns the native form of a schema in normal form."""
    try:
        return JsonSchema(spec(schema))
    except ValueError as error:
        raise IllegalArgumentException(f"schema: {error}") from None


def spec(schema: pa.Schema) -> tuple[tuple[str, str, tuple[Any, ...]], ...]:
    """Returns a schema in normal form as the arguments of JsonSchema."""
    return tuple(_native(field) for field in schema)


def _native(field: pa.Field) -> tuple[str, str, tuple[Any, ...]]:
    kind = field.type
    if is_any_json(field):
        return field.name, "json", ()
    if pa.types.is_struct(kind):
        return field.name, "+s", tuple(_native(each) for each in kind.fields)
    if pa.types.is_list(kind):
        return field.name, "+l", (_native(kind.value_field),)
    if pa.types.is_timestamp(kind):
        return field.name, f"ts{kind.unit[0]}:{kind.tz or ''}", ()
    if pa.types.is_decimal(kind):
        return field.name, f"d:{kind.precision},{kind.scale}", ()
    return field.name, FORMATS[kind], ()


# --- inference --------------------------------------------------------------------------------------------


class _Seen:
    """The values that were seen at one place of the documents of a sample."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        self.fields: dict[str, _Seen] = {}
        self.item: _Seen | None = None
        self.all_times = True
        self.fraction_digits = 0

    def add(self, value: Any, level: int = 0) -> None:
        if value is None:
            return
        if isinstance(value, dict | list) and level > LEVELS_INFERRED:
            self.kinds.add("deep")
        elif isinstance(value, dict):
            self.kinds.add("object" if not level or not any("\0" in name for name in value) else "odd names")
            for name, below in value.items():
                if name.isascii() or _is_text(name):
                    self.fields.setdefault(name, _Seen()).add(below, level + 1)
        elif isinstance(value, list):
            self.kinds.add("array")
            self.item = self.item or _Seen()
            for below in value:
                self.item.add(below, level + 1)
        elif isinstance(value, str):
            self.kinds.add("string")
            found = ISO_TIME.fullmatch(value)
            self.all_times = self.all_times and found is not None
            if found is not None:
                self.fraction_digits = max(self.fraction_digits, len(found["part"] or ""))
        elif isinstance(value, bool):
            self.kinds.add("bool")
        else:
            self.kinds.add("float64" if isinstance(value, float) else "int64" if isinstance(value, int) else "large")

    def field(self, name: str, times: bool) -> pa.Field:
        kinds = self.kinds
        if not kinds:
            return pa.field(name, pa.string())
        if kinds <= {"int64", "float64", "large"} and ("float64" in kinds or "large" not in kinds):
            return pa.field(name, pa.float64() if "float64" in kinds else pa.int64())
        if kinds == {"object"} and 0 < len(self.fields) <= KEYS_MAX:
            return pa.field(name, pa.struct([below.field(each, times) for each, below in self.fields.items()]))
        if kinds == {"array"} and self.item is not None:
            return pa.field(name, pa.list_(self.item.field("item", times)))
        if kinds == {"string"} and times and self.all_times:
            return pa.field(name, pa.timestamp("us" if self.fraction_digits <= _MICROSECOND_DIGITS else "ns", "UTC"))
        if kinds in ({"string"}, {"bool"}):
            return pa.field(name, NAMES[next(iter(kinds))])
        return pa.field(name, pa.string(), metadata=ANY_JSON)


class _Large:
    """A whole number that does not fit in 64 bits."""


def _whole(text: str) -> int | _Large:
    # Python refuses to convert thousands of digits; a 64-bit number has at most 20 characters with its sign.
    number = int(text) if len(text) <= 20 else LONG_MAX + 1
    return number if LONG_MIN <= number <= LONG_MAX else _Large()


def _refused(text: str) -> object:
    raise ValueError(f"{text} is not JSON")  # Python accepts NaN and the infinities


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def objects(values: Iterable[bytes | None]) -> Iterator[dict[str, Any]]:
    """Yields the values that are JSON objects."""
    for value in values:
        if value is not None:
            try:
                found = json.loads(value.decode(), parse_int=_whole, parse_constant=_refused)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict):
                yield found


def inferred(values: Iterable[bytes | None], *, times: bool = False) -> pa.Schema:
    """Returns the schema of the values: the union of their fields, in the order in which they first appear.

    int64 and float64 together are float64. A field is "json" if its values have no type in common, are whole numbers
    beyond 64 bits, are objects with more than 500 different keys, or are nested deeper than 32 levels. A field that is
    always null is text. Texts stay texts, unless `times` is set: then a field whose texts are all ISO 8601 is a
    timestamp. Values that are not JSON objects are ignored.
    """
    root = _Seen()
    for found in objects(values):
        root.add(found)
    return pa.schema([below.field(name, times) for name, below in root.fields.items()])
