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
    """A field of a struct.

    It exists in the versions `first` to `last`.  It can be null from the version `nullable_from` on, which is NEVER if
    it cannot.  `tag` is None if it is not tagged.  A version that lacks the field drops its value if it is `ignorable`.
    """

    name: str
    type: Type
    nullable_from: int
    ignorable: bool
    first: int
    last: int
    tag: int | None
    default: Any

    def in_version(self, version: int) -> bool:
        return self.first <= version <= self.last

    def nullable_in(self, version: int) -> bool:
        return version >= self.nullable_from


NEVER = 1 << 15
_HEAD = re.compile(r"^(?:(\d+) )?(\w+) (\d+)(?:-(\d+))?(?: flexible (\d+)\+)?( unstable)?$", re.MULTILINE)
_FIELD = re.compile(r"(\w+) (\[?)(\w+)\]?(?:(\?)(\d*))?(!?)(?: (\d+)(?:\+|-(\d+)))?(?: (?:#(\d+))?(?:=(\S+))?)?")


class Head(NamedTuple):
    """A message of a table, whose fields are not parsed yet.

    `number` (the record type, the API's key) is -1 if it has none.  `flexible_from` is above `highest` if no version is
    flexible.  `stable` is the highest version that Kafka offers by default.
    """

    name: str
    number: int
    lowest: int
    highest: int
    stable: int
    flexible_from: int
    text: str

    def fields(self) -> tuple[Field, ...]:
        """Parses the lines of the fields."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        return _parse_fields(lines, 0, 0, (self.lowest, self.highest), {})[0]


def parse_table(table: str) -> list[Head]:
    """Returns the messages of a table, in its order.

    A message is `[number] Name 0-4 flexible 4+ unstable`: its versions, the first flexible version if there is one, and
    whether Kafka does not offer the highest version by default.  Its fields are `name type`, several to a line,
    separated by commas.  `[type]` is an array.  `?` is a field that can be null, and `?7` one that can be null from
    version 7 on.  `3+` or `1-1` are the versions that have the field; `!` means that the others refuse a value which is
    not the default.  `#0` is a tag, and `=-1` a default that is not zero or empty (also `=null`, `=true`, `=0x7f`).
    A struct's fields are on deeper lines below its first use; later uses only name it.  A field without versions has
    those of the field that contains it (at that first use).  `string16` is a string whose length has two bytes in
    flexible versions, too, and `records` are bytes that are not copied.

    The fields are not parsed before `Head.fields` is called, because a server needs few of the messages.
    """
    heads = list(_HEAD.finditer(table))
    ends = [head.start() for head in heads[1:]] + [len(table)]
    found = []
    for head, end in zip(heads, ends, strict=True):
        number, name, low, high, flexible, unstable = head.groups()
        lowest, highest = int(low), int(high or low)
        found.append(
            Head(
                name,
                -1 if number is None else int(number),
                lowest,
                highest,
                highest - 1 if unstable else highest,
                int(flexible or highest + 1),
                table[head.end() : end],
            )
        )
    return found


def _parse_fields(
    lines: list[str], at: int, outer: int, versions: tuple[int, int], known: dict[str, Type]
) -> tuple[tuple[Field, ...], int]:
    fields: list[Field] = []
    while at < len(lines) and (depth := _indent(lines[at])) > outer:
        for text in lines[at].strip().split(", "):
            match = _FIELD.fullmatch(text)
            assert match is not None, text
            name, array, kind, null, null_from, strict, first, last, tag, default = match.groups()
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
            nullable_from = NEVER if null is None else int(null_from or low)
            number = None if tag is None else int(tag)
            fields.append(Field(name, of, nullable_from, not strict, low, high, number, value))
        at += 1
    return tuple(fields), at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


STRUCT = object()  # the default of a struct: a struct of defaults
_WORDS = {"null": None, "true": True}
_EMPTY: dict[str, Any] = {
    "array": [],
    "struct": STRUCT,
    "string": "",
    "string16": "",
    "bytes": b"",
    "records": None,
    "uuid": ZERO_UUID,
    "bool": False,
    "float64": 0.0,
}


def _default_value(of: Type, text: str | None) -> Any:
    if text is None:
        return _EMPTY.get(of.kind, 0)
    return _WORDS[text] if text in _WORDS else int(text, 0)


def default_of(field: Field, version: int | None) -> Callable[[], Any]:
    """Returns a function that creates the default: each time a new object, since the caller may change it.

    A struct has the fields of a version, or those of all versions if it is None.
    """
    default = field.default
    if field.type.kind == "array" and default is not None:
        return list
    if default is STRUCT:
        return lambda: defaults_of(field.type, version)
    return lambda: default


def defaults_of(of: Type, version: int | None) -> dict[str, Any]:
    """Returns a struct of defaults, with the fields of a version, or of all versions if it is None."""
    fields = (field for field in of.fields if version is None or field.in_version(version))
    return {field.name: default_of(field, version)() for field in fields}
