"""JSON objects to rows of a schema, by Python's json: the reference for `_native.json_columns`."""

from __future__ import annotations

import decimal
import json
import math
from collections.abc import Sequence
from typing import Any

Field = tuple[str, str, tuple["Field", ...]]
INTS = {"i": 31, "l": 63}


class BrokenValue(Exception):
    """No JSON object."""


class WrongType(Exception):
    """A value that is none of its field's type."""


class Number(str):
    """A number as it is written."""


class Unknown:
    """A column that is compared differently: the text of any JSON that has this value."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and _parsed(other) == self.value

    def __repr__(self) -> str:
        return f"the text of {self.value!r}"


def _parsed(text: str) -> Any:
    return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=Number)


def row(value: bytes | None, fields: Sequence[Field], *, null_errors: bool) -> dict[str, Any]:
    """The fields of one value; BrokenValue and WrongType, unless those are nulls."""
    try:
        found = None if value is None else _parsed(value.decode())
        if found is not None and not isinstance(found, dict):
            raise BrokenValue
    except (ValueError, RecursionError, BrokenValue):
        if not null_errors:
            raise BrokenValue from None
        found = None
    return {name: _of((found or {}).get(name), kind, children, null_errors) for name, kind, children in fields}


def _of(value: Any, kind: str, children: Sequence[Field], null_errors: bool) -> Any:
    if value is None:
        return None
    try:
        return _taken(value, kind, children, null_errors)
    except WrongType:
        if not null_errors:
            raise
        return None


def _taken(value: Any, kind: str, children: Sequence[Field], null_errors: bool) -> Any:
    if kind == "json":
        return Unknown(value)
    if kind == "+s" and isinstance(value, dict):
        return {name: _of(value.get(name), below, more, null_errors) for name, below, more in children}
    if kind == "+l" and isinstance(value, list):
        return [_of(entry, children[0][1], children[0][2], null_errors) for entry in value]
    if kind == "b" and isinstance(value, bool):
        return value
    if kind == "u" and isinstance(value, str) and not isinstance(value, Number):
        if any(0xD800 <= ord(letter) < 0xE000 for letter in value):
            raise WrongType
        return value
    if kind in INTS and isinstance(value, Number) and value.lstrip("-").isdigit():
        if not -(1 << INTS[kind]) <= int(value) < 1 << INTS[kind]:
            raise WrongType
        return int(value)
    if kind == "g" and isinstance(value, Number):
        return float(value)
    if kind.startswith("d:") and isinstance(value, str):
        return _decimal(value, kind)
    raise WrongType


def _decimal(text: str, kind: str) -> decimal.Decimal:
    precision, scale = map(int, kind[2:].split(","))
    try:
        number = _parsed(text)
        if not isinstance(number, Number) or number.strip("-")[0] not in "0123456789" or number != text:
            raise WrongType
    except ValueError:
        raise WrongType from None
    with decimal.localcontext(prec=200):
        found = decimal.Decimal(number)
        scaled = found.scaleb(scale)
        if scaled != scaled.to_integral_value() or abs(scaled) >= 10**precision:
            raise WrongType
        return scaled.to_integral_value().scaleb(-scale)


def same(found: Any, expected: Any) -> bool:
    """Equal, and equal signs of zeros; NaN is NaN."""
    if isinstance(expected, float):
        if not isinstance(found, float) or math.isnan(expected) != math.isnan(found):
            return False
        return math.isnan(found) or (found == expected and math.copysign(1, found) == math.copysign(1, expected))
    if isinstance(expected, dict):
        if not isinstance(found, dict) or list(found) != list(expected):
            return False
        return all(same(found[name], expected[name]) for name in found)
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, Unknown):
        return expected == found
    return type(found) is type(expected) and bool(found == expected)
