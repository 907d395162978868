"""What a caller may give: whole numbers in a range, bytes of any kind.  Asked at the door, before anything changes.

One answer for every way in: what `operator.index` takes is a whole number (numpy's too; a float is not, however round),
and what shows a C-contiguous buffer is bytes, in the order of its memory.  Everything else is an
IllegalArgumentException that says what was found, what was expected and what to do.
"""

from __future__ import annotations

import contextlib
import math
import numbers
import operator
import re
from typing import Any

from kafkalog._limits import LONG_MAX, LONG_MIN
from kafkalog.engine.format.octets import octets as octets_of
from kafkalog.errors import IllegalArgumentException

TEXT_HINT = "text wants .encode()"
_FIELD_NAME = re.compile(r":[^:]*:")  # in the format of a structured buffer


def whole(
    value: Any,
    what: str,
    *,
    low: int = LONG_MIN,
    high: int = LONG_MAX,
    expected: str = "a whole number",
    hint: str | None = None,
) -> int:
    """`value` as an int in [low, high]; `what` and `expected` are for the error."""
    try:
        number = operator.index(value)
    except TypeError:
        raise IllegalArgumentException(f"{what}: found {shown(value)}, expected {expected}", hint=hint) from None
    if number < LONG_MIN or number > LONG_MAX:
        raise IllegalArgumentException(f"{what}: {number} does not fit into 64 bits, expected {expected}", hint=hint)
    if not low <= number <= high:
        bounds = f" (at least {low})" if high == LONG_MAX else f" ({low} to {high})"
        if expected.endswith(" on"):  # which says it
            bounds = ""
        raise IllegalArgumentException(f"{what}: found {number}, expected {expected}{bounds}", hint=hint)
    return number


def count(value: Any, what: str, *, low: int = 0, high: int = LONG_MAX, expected: str = "a whole number") -> int:
    """`whole` for a setting, of which True and False are none."""
    if isinstance(value, bool):
        raise IllegalArgumentException(f"{what}: found {value}, expected {expected}")
    return whole(value, what, low=low, high=high, expected=expected)


def offset(value: Any, what: str = "offset", *, low: int = LONG_MIN, hint: str | None = None) -> int:
    """`value` as an offset.  `low` is 0 where none can be negative, as an index of Python may be."""
    return whole(
        value, what, low=low, expected="an offset" if low == LONG_MIN else f"an offset from {low} on", hint=hint
    )


def milliseconds(value: Any, what: str = "timestamp", *, low: int = LONG_MIN) -> int:
    """`value` as milliseconds since 1970."""
    return whole(
        value,
        what,
        low=low,
        expected="milliseconds since 1970 as an int",
        hint="such as int(time.time() * 1000), or int(when.timestamp() * 1000) of a datetime",
    )


def real(value: Any, what: str) -> float:
    """`value` as a float: any number but a bool."""
    if type(value) is not bool and isinstance(value, numbers.Real):
        with contextlib.suppress(OverflowError):
            return float(value)
    raise IllegalArgumentException(f"{what}: found {shown(value)}, expected a number")


def positive(value: Any, what: str, expected: str) -> float:
    """`value` as a float above 0, which is no infinity."""
    number = real(value, what)
    if not 0 < number < math.inf:
        raise IllegalArgumentException(f"{what}: found {number}, expected {expected} (more than 0)")
    return number


def text(value: Any, what: str, *, hint: str | None = None) -> str:
    """`value` as a str that UTF-8 can hold (a lone surrogate it cannot)."""
    if not isinstance(value, str):
        raise IllegalArgumentException(f"{what}: found {shown(value)}, expected text", hint=hint)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise IllegalArgumentException(f"{what}: found {value!r}, expected text that UTF-8 can hold") from None
    return value if type(value) is str else str.__str__(value)


def flag(value: Any, what: str) -> bool:
    """`value` as a bool: one, numpy's or 0 or 1 as a whole number."""
    if isinstance(value, bool):
        return value
    try:
        number = operator.index(value)
    except TypeError:
        kind = type(value)
        if kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"):
            return bool(value)
        raise IllegalArgumentException(f"{what}: found {shown(value)}, expected True or False") from None
    if number not in (0, 1):
        raise IllegalArgumentException(f"{what}: found {shown(value)}, expected True or False")
    return bool(number)


def function(value: Any, what: str, expected: str) -> Any:
    """`value`, something to call, or None."""
    if value is not None and not callable(value):
        raise IllegalArgumentException(f"{what}: found {shown(value)}, expected {expected}, or None")
    return value


def octets(value: Any, what: str) -> bytes | None:
    """A key or value: None, or a copy of the bytes of any C-contiguous buffer (as they lie in memory)."""
    if value is None or type(value) is bytes:
        return value
    return _view(value, what, "bytes or None").tobytes()


def buffer(value: Any, what: str) -> bytes | memoryview:
    """The bytes of any C-contiguous buffer, not copied."""
    if type(value) is not bytes:
        _view(value, what, "bytes").release()
    return octets_of(value, what)


def _view(value: Any, what: str, expected: str) -> memoryview:
    problem = None
    if isinstance(value, str):
        raise IllegalArgumentException(f"{what}: found {shown(value)}, expected {expected}", hint=TEXT_HINT)
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):  # numpy says ValueError of what it has no format for
        problem = f"found {shown(value)}"
    else:
        if not view.c_contiguous:
            problem = f"found a {type(value).__name__} whose bytes are not in one piece"
        elif view.ndim == 0:
            problem = f"found a single number {shown(value)}"
        elif "O" in _FIELD_NAME.sub("", view.format):
            problem = f"found a {type(value).__name__} of Python objects"
    if problem is not None:
        raise IllegalArgumentException(
            f"{what}: {problem}, expected {expected}",
            hint=_bytes_hint(value),
        )
    return view


def _bytes_hint(value: object) -> str | None:
    if isinstance(value, (dict, list, tuple)):
        return "json.dumps(...).encode() makes bytes of it"
    if isinstance(value, (bool, int, float)):
        return "str(...).encode() makes bytes of it"
    return None if value is None else "bytes, bytearray, memoryview and the like are taken"


def shown(value: object, most: int = 60) -> str:
    """Type and value for an error's text."""
    name = type(value).__name__
    if value is None:
        return name
    try:
        content = repr(value)
    except Exception:  # of an object that we know nothing of
        return name
    return f"{name} {content}" if len(content) <= most else f"{name} {content[:most]}..."
