"""Checks the arguments of public functions: whole numbers in a range, bytes of any kind.

Entry points call these functions before anything changes, so all of them follow the same rules.  A whole number is
anything that `operator.index` accepts (numpy's too, but not a float, even a round one).  Bytes are any C-contiguous
buffer, in the order of its memory.  Anything else raises an IllegalArgumentException that says what was found, what was
expected and what to do.
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

TEXT_HINT = "encode text with .encode()"
_FIELD_NAME = re.compile(r":[^:]*:")  # a field's name in the format of a structured buffer


def whole(
    value: Any,
    what: str,
    *,
    low: int = LONG_MIN,
    high: int = LONG_MAX,
    expected: str = "a whole number",
    hint: str | None = None,
) -> int:
    """Returns `value` as an int in [low, high]; `what` and `expected` are for the error."""
    try:
        number = operator.index(value)
    except TypeError:
        raise IllegalArgumentException(f"{what}: found {shown(value)}, expected {expected}", hint=hint) from None
    if number < LONG_MIN or number > LONG_MAX:
        raise IllegalArgumentException(f"{what}: {number} does not fit into 64 bits, expected {expected}", hint=hint)
    if not low <= number <= high:
        bounds = f" (at least {low})" if high == LONG_MAX else f" ({low} to {high})"
        if expected.endswith(" on"):  # the text already contains the bound
            bounds = ""
        raise IllegalArgumentException(f"{what}: found {number}, expected {expected}{bounds}", hint=hint)
    return number


def count(value: Any, what: str, *, low: int = 0, high: int = LONG_MAX, expected: str = "a whole number") -> int:
    """Returns `whole` for a setting; True and False are refused."""
    if isinstance(value, bool):
        raise IllegalArgumentException(f"{what}: found {value}, expected {expected}")
    return whole(value, what, low=low, high=high, expected=expected)


def offset(value: Any, what: str = "offset", *, low: int = LONG_MIN, hint: str | None = None) -> int:
    """Returns `value` as an offset; `low` is 0 if it cannot be negative, as Python's indexes can."""
    return whole(
        value, what, low=low, expected="an offset" if low == LONG_MIN else f"an offset from {low} on", hint=hint
    )


def milliseconds(value: Any, what: str = "timestamp", *, low: int = LONG_MIN) -> int:
    """Returns `value` as milliseconds since 1970."""
    return whole(
        value,
        what,
        low=low,
        expected="milliseconds since 1970 as an int",
        hint="such as int(time.time() * 1000), or int(when.timestamp() * 1000) of a datetime",
    )


def real(value: Any, what: str) -> float:
    """Returns `value` as a float; accepts any number but a bool."""
    if type(value) is not bool and isinstance(value, numbers.Real):
        with contextlib.suppress(OverflowError):
            return float(value)
    raise IllegalArgumentException(f"{what}: found {shown(value)}, expected a number")


def positive(value: Any, what: str, expected: str) -> float:
    """Returns `value` as a finite float above 0."""
    number = real(value, what)
    if not 0 < number < math.inf:
        raise IllegalArgumentException(f"{what}: found {number}, expected {expected} (more than 0)")
    return number


def text(value: Any, what: str, *, hint: str | None = None) -> str:
    """Returns `value` as a str that UTF-8 can encode (it cannot encode a lone surrogate)."""
    if not isinstance(value, str):
        raise IllegalArgumentException(f"{what}: found {shown(value)}, expected text", hint=hint)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise IllegalArgumentException(f"{what}: found {value!r}, expected text that UTF-8 can hold") from None
    return value if type(value) is str else str.__str__(value)


def flag(value: Any, what: str) -> bool:
    """Returns `value` as a bool; accepts bool, numpy's bool, and the whole numbers 0 and 1."""
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
    """Returns `value` if it is callable or None."""
    if value is not None and not callable(value):
        raise IllegalArgumentException(f"{what}: found {shown(value)}, expected {expected}, or None")
    return value


def octets(value: Any, what: str) -> bytes | None:
    """Returns a key or value: None, or a copy of the bytes of any C-contiguous buffer, in the order of its memory."""
    if value is None or type(value) is bytes:
        return value
    return _view(value, what, "bytes or None").tobytes()


def buffer(value: Any, what: str) -> bytes | memoryview:
    """Returns the bytes of any C-contiguous buffer, without a copy."""
    if type(value) is not bytes:
        _view(value, what, "bytes").release()
    return octets_of(value, what)


def _view(value: Any, what: str, expected: str) -> memoryview:
    problem = None
    if isinstance(value, str):
        raise IllegalArgumentException(f"{what}: found {shown(value)}, expected {expected}", hint=TEXT_HINT)
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):  # numpy raises ValueError for an array that has no buffer format
        problem = f"found {shown(value)}"
    else:
        if not view.c_contiguous:
            problem = f"found a {type(value).__name__} whose bytes are not contiguous"
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
        return "json.dumps(...).encode() turns it into bytes"
    if isinstance(value, (bool, int, float)):
        return "str(...).encode() turns it into bytes"
    return None if value is None else "pass bytes, bytearray, memoryview or another buffer"


def shown(value: object, most: int = 60) -> str:
    """Returns the type and value of an object for an error's text."""
    name = type(value).__name__
    if value is None:
        return name
    try:
        content = repr(value)
    except Exception:  # repr() of an unknown object may raise anything
        return name
    return f"{name} {content}" if len(content) <= most else f"{name} {content[:most]}..."
