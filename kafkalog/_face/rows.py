"""Checks and converts a caller's records, headers and timestamps to exact types, or refuses them.

This is the only place for it. A single record, one of many, a column, a writer's record and a transaction's record all
come through here, so the same input has the same result. Nothing is appended, and no batch built, before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from kafkalog._limits import LONG_MAX
from kafkalog.engine.format.values import TEXT_HINT, milliseconds, shown, text
from kafkalog.engine.format.values import octets as as_octets
from kafkalog.errors import IllegalArgumentException
from kafkalog.records import Header

if TYPE_CHECKING:
    from numpy.typing import NDArray

PLAIN = (bytes, type(None))
ABSENT: tuple[Any, ...] = (None, (), None)  # defaults of key, headers and timestamp

RecordInput: TypeAlias = Any  # bytes | None | (value, key[, headers[, timestamp]]) | an object with these attributes
Row: TypeAlias = tuple[bytes | None, bytes | None, tuple[Header, ...], int | None]  # exact types, in range


def check_records(records: Any) -> None:
    """Raises IllegalArgumentException if `records` is one record, or not iterable."""
    if isinstance(records, (bytes, bytearray, memoryview, str)):
        raise IllegalArgumentException(
            f"found a single {type(records).__name__}, expected several records",
            hint="append() accepts one record; append_many([...]) accepts a list of them",
        )
    if isinstance(records, Mapping) or not has_entries(records):
        raise IllegalArgumentException(
            f"found {type(records).__name__}, expected records", hint="a list, a generator or another iterable"
        )


def has_entries(thing: Any) -> bool:
    """Returns whether a value is iterable. An array without a dimension only looks iterable."""
    return isinstance(thing, Iterable) and getattr(thing, "ndim", 1) != 0


def as_row(record: RecordInput) -> Row:
    """Returns (value, key, headers, timestamp) of any form in which a caller may pass a record.

    IllegalArgumentException says what is wrong with it.
    """
    if type(record) is bytes or record is None:
        return (record, None, (), None)
    if type(record) is tuple and 1 <= len(record) <= 4:
        value, key, headers, timestamp = record + ABSENT[len(record) - 1 :] if len(record) < 4 else record
        if type(value) in PLAIN and type(key) in PLAIN and type(headers) is tuple and not headers and timestamp is None:
            return (value, key, (), None)
        return _checked_row(value, key, headers, timestamp)
    if hasattr(record, "value") and hasattr(record, "key"):
        timestamp = getattr(record, "timestamp", None)
        if timestamp is not None and milliseconds(timestamp) == -1:
            timestamp = None  # a Record without a timestamp
        return _checked_row(record.value, record.key, getattr(record, "headers", None), timestamp)
    if isinstance(record, (str, list)) or type(record) is tuple:
        raise _no_record(record)
    try:
        return (as_octets(record, "value"), None, (), None)
    except IllegalArgumentException:
        raise _no_record(record) from None


def _checked_row(value: Any, key: Any, headers: Any, timestamp: Any) -> Row:
    if type(timestamp) is int and -1 <= timestamp <= LONG_MAX:
        when: int | None = timestamp
    else:
        when = None if timestamp is None else milliseconds(timestamp, low=-1)
    return (
        value if type(value) in PLAIN else as_octets(value, "value"),
        key if type(key) in PLAIN else as_octets(key, "key"),
        () if headers is None else as_headers(headers, "headers"),
        when,
    )


def _no_record(record: object) -> IllegalArgumentException:
    return IllegalArgumentException(
        f"found {shown(record)} as a record",
        hint="expected bytes, None, a tuple (value, key, headers, timestamp), or an object with these attributes"
        + (
            f"; {TEXT_HINT}" if isinstance(record, str) else "; a tuple, not a list" if isinstance(record, list) else ""
        ),
    )


def as_headers(headers: Any, what: str) -> tuple[Header, ...]:
    """Returns one record's headers as pairs of str and bytes or None."""
    if not isinstance(headers, (list, tuple)) and (
        isinstance(headers, (Mapping, str, bytes, bytearray, memoryview, Iterator)) or not has_entries(headers)
    ):
        raise _no_headers(what, headers)
    pairs = []
    for header in headers:
        if type(header) is tuple and len(header) == 2:
            name, content = header
            if type(name) is str and type(content) in PLAIN and name.isascii():
                pairs.append(header)
                continue
        pair = tuple(header) if isinstance(header, (tuple, list)) else ()  # the entries, whatever its __len__ says
        if len(pair) != 2 or not isinstance(pair[0], str):
            raise _no_headers(what, header)
        name = text(pair[0], f"{what}: a name")
        pairs.append((name, as_octets(pair[1], f"{what}: {name!r}")))
    return tuple(pairs)


def _no_headers(what: str, found: object) -> IllegalArgumentException:
    return IllegalArgumentException(
        f"{what}: found {shown(found)}, expected pairs of str and bytes (or None)",
        hint='such as [("trace", b"1")]; pass a dict as list(headers.items()); encode text with .encode()',
    )


def as_times(timestamps: Any, count: int, now_ms: int) -> NDArray[np.int64]:
    """Returns a column of timestamps in ms; None stands for now."""
    if timestamps is None:
        return np.full(count, now_ms, np.int64)
    if isinstance(timestamps, np.ndarray) and timestamps.dtype != object:
        times = _numpy_times(timestamps)
    else:
        times = _listed_times(timestamps, now_ms)
    wrong = np.flatnonzero(times < -1)
    if len(wrong):
        milliseconds(int(times[wrong[0]]), f"timestamps[{int(wrong[0])}]", low=-1)
    return times


def _listed_times(timestamps: Any, now_ms: int) -> NDArray[np.int64]:
    if set(map(type, timestamps)) <= {int}:
        try:
            return np.array(list(timestamps), np.int64)
        except OverflowError:
            pass  # the wrong entry is named below
    numbers = [
        now_ms if timestamp is None else milliseconds(timestamp, f"timestamps[{row}]", low=-1)
        for row, timestamp in enumerate(timestamps)
    ]
    return np.array(numbers, np.int64)


def _numpy_times(timestamps: NDArray[Any]) -> NDArray[np.int64]:
    kind = timestamps.dtype
    if timestamps.ndim != 1 or not (kind.kind in "iu" or kind == np.dtype("datetime64[ms]")):
        raise IllegalArgumentException(
            f"timestamps: found a numpy array of {kind}, expected milliseconds since 1970 as int64 or datetime64[ms]",
            hint='such as column.astype("datetime64[ms]"), which may truncate',
        )
    if kind.kind == "u" and len(timestamps) and int(timestamps.max()) > LONG_MAX:
        milliseconds(timestamps.max(), "timestamps")
    times: NDArray[np.int64] = timestamps.astype(np.int64)
    return times


def as_headers_column(headers: Any) -> list[tuple[Header, ...]]:
    """Returns a column of headers; None stands for no headers."""
    return [as_headers(entry, f"headers[{row}]") if entry is not None else () for row, entry in enumerate(headers)]
