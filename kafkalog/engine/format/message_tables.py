"""Parses the tables of Kafka's messages into the fields that they describe.

It turns text into named tuples and neither reads nor writes messages; `messages` uses it for both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from kafkalog.engine.format.java_text import ZERO_UUID


class Type(NamedTuple):
    """The type of a field: a primitive's name, "array" of `element`, or "struct" with `fields`."""

    kind: str
    element: Type | None = None
    name: str = ""
    fields: tuple[Field, ...] = ()


class Field(NamedTuple):
    """A field of a struct.  It exists in the versions `first` to `last`; `tag` is None if it is not tagged."""

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


class Head(NamedTuple):
    """A message of a table.

    `number` (the record type) is -1 if it has none.  `flexible_from` is above `highest` if no version is flexible.
    """

    name: str
    number: int
    lowest: int
    highest: int
    flexible_from: int
    fields: tuple[Field, ...]


def parse_table(table: str) -> list[Head]:
    """Returns the messages of a table, in its order.

    A message is `[record type] Name 0-4 flexible 4+`: its versions, and the first flexible version if there is one.
    Its fields are `name type`, several to a line, separated by commas.  `[type]` is an array and `?` nullable; `3+` or
    `1-1` are the versions that have the field.  `#0` is a tag, and `=-1` a tagged field's default if that is not zero
    or empty.  A struct's fields are on deeper lines below its first use; later uses only name it.
    """
    lines = [line for line in table.splitlines() if line.strip()]
    found = []
    at = 0
    while at < len(lines):
        head = _HEAD.fullmatch(lines[at].strip())
        assert head is not None, lines[at]
        number, name, low, high, flexible = head.groups()
        lowest, highest = int(low), int(high or low)
        fields, at = _parse_fields(lines, at + 1, 0, (lowest, highest), {})
        kind = -1 if number is None else int(number)
        found.append(Head(name, kind, lowest, highest, int(flexible or highest + 1), fields))
    return found


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
            value = _default_value(of, default)
            fields.append(Field(name, of, bool(null), low, high, None if tag is None else int(tag), value))
        at += 1
    return tuple(fields), at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _default_value(of: Type, text: str | None) -> Any:
    if text is not None:
        return None if text == "null" else int(text)
    zeros: dict[str, Any] = {"array": [], "struct": None, "string": "", "bytes": b"", "uuid": ZERO_UUID, "bool": False}
    return zeros.get(of.kind, 0)


def default_of(field: Field, version: int) -> Callable[[], Any]:
    """Returns a function that creates the default: each time a new object, since the caller may change it."""
    if field.type.kind == "array" and field.default is not None:
        return list
    if field.type.kind == "struct":
        return lambda: _empty(field.type, version)
    default = field.default
    return lambda: default


def _empty(of: Type, version: int) -> dict[str, Any]:
    return {field.name: default_of(field, version)() for field in of.fields if field.in_version(version)}
