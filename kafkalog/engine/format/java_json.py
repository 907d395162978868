"""JSON as Kafka's tools print it: Jackson's compact text of a tree, with Java's doubles.

It equals Python's `json.dumps(..., ensure_ascii=False, separators=(",", ":"))`, except for two things.  Control
characters have upper-case digits (`\\u001F`).  Doubles look like Java's (`1.0E10`); NaN and infinities are quoted.
Source: ObjectNode.toString.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any

_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))
_ESCAPE = re.compile(r"\\\\|\\u[0-9a-f]{4}")


def to_text(value: Any) -> str:
    """Returns a tree of dict, list, str, int, float, bool and None as Jackson writes it."""
    if _has_double(value):
        return _spelled(value)
    text = _ENCODER.encode(value)
    return _ESCAPE.sub(lambda found: found[0][:2] + found[0][2:].upper(), text) if "\\" in text else text


def _has_double(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_double, value.values()))
    return isinstance(value, float) or (isinstance(value, (list, tuple)) and any(map(_has_double, value)))


def _spelled(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{to_text(key)}:{_spelled(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_spelled, value)) + "]"
    if isinstance(value, float):
        text = double_to_text(value)
        return text if math.isfinite(value) else f'"{text}"'
    return to_text(value)


def double_to_text(value: float) -> str:
    """Double.toString of Java 19 and later, which gives the fewest digits (earlier versions sometimes give more)."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    shortest = Decimal(repr(value)).normalize()
    if len(shortest.as_tuple().digits) == 1:  # Java picks the nearest number of two digits: 4.9E-324
        shortest = Decimal(f"{value:.1e}").normalize()
    sign, digits, exponent = shortest.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits))
    power = len(text) + exponent - 1  # exponent of the first digit
    minus = "-" if sign else ""
    if value == 0:
        return f"{minus}0.0"
    if not -3 <= power < 7:
        return f"{minus}{text[0]}.{text[1:] or '0'}E{power}"
    if power < 0:
        return f"{minus}0.{'0' * (-power - 1)}{text}"
    return f"{minus}{text[: power + 1].ljust(power + 1, '0')}.{text[power + 1 :] or '0'}"
