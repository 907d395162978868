"""The part of a partition to read, by offsets or times, and the reading of its last records only.

A time is no position in the log: a record is in the window if its timestamp is (`kafkalog._face.times`). The time index
only says from which offset on there may be such records. Timestamps may go back, so nothing says where they end. Knows
a source, and nothing of the content of records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kafkalog._face.times import Times, times_of
from kafkalog.errors import KafkalogError, OffsetOutOfRangeException

if TYPE_CHECKING:
    from kafkalog.engine.log.source import Source

T = TypeVar("T")

MILLISECONDS = range(10**11, 10**14)  # from 1973 to 5138
DAYS = range(1970, 2101)  # years of dates that a caller may have written as 20261120


class Time(NamedTuple):
    """A time in milliseconds since 1970."""

    timestamp_ms: int


class Near(NamedTuple):
    """An offset, or the nearest one that the log has: for a search that needs no exact offset."""

    offset: int


Bound = int | Time | Near | None


class Window(NamedTuple):
    """Offsets or times from `start` to `end` (exclusive). None is the log's start or end."""

    start: Bound = None
    end: Bound = None


class Range(NamedTuple):
    """The records at offsets [start, end) with one of these timestamps; `end` None is the log's end."""

    start: int
    end: int | None
    times: Times


def found_in(source: Source, window: Window, *, lenient: bool = False) -> Range:
    """Returns the range of a window's records.

    `lenient`: a start that the log does not have becomes the next one that it has, for a read of many partitions at
    once. Otherwise readers raise OffsetOutOfRangeException. The same error is raised here for an offset beyond the log
    that looks like a time.
    """
    low, high = source.log_start_offset, source.log_end_offset
    first, behind = window
    for name, bound in (("start", first), ("end", behind)):
        if isinstance(bound, int) and bound > high and MILLISECONDS.start <= bound < MILLISECONDS.stop:
            raise OffsetOutOfRangeException(
                f"{name}: offset {bound} is far after the end of {source.topic_partition} at offset {high}",
                hint=f"{name}_time= accepts a time in ms",
            )
    times = times_of(
        first.timestamp_ms if isinstance(first, Time) else None,
        behind.timestamp_ms if isinstance(behind, Time) else None,
    )
    if isinstance(first, Time):
        at = source.offset_for_time(first.timestamp_ms) if first.timestamp_ms >= 0 else low
        start = high if at is None else at
    else:
        start = low if first is None else _offset(first)
    end = None if behind is None or isinstance(behind, Time) else _offset(behind)
    if lenient or not isinstance(first, int):
        start = min(max(start, low), high)
    return Range(start, end, times)


LIKE_A_TIME = 10**11  # a larger offset may be meant as milliseconds since 1970


def day_of(offset: int) -> str | None:
    """Returns the day that the digits of an offset look like (20261120 as 2026-11-20), or None."""
    try:
        day = datetime.strptime(f"{offset:08d}", "%Y%m%d")
    except ValueError:
        return None
    return f"{day:%Y-%m-%d}" if day.year in DAYS else None


def hint_beyond(offset: int) -> str | None:
    """Returns a hint about an offset after the log's end that looks like a time; None for any other offset."""
    day = day_of(offset)
    if day is not None:
        return f"an int is an offset: write start='{day}' for the day"
    return "start_time= accepts a time in ms" if offset >= LIKE_A_TIME else None


def _offset(bound: int | Near) -> int:
    return bound.offset if isinstance(bound, Near) else bound


def last(read: Callable[[int, int], Iterator[T]], count: int, low: int, high: int) -> Iterator[T]:
    """Yields the last `count` items that `read(start, end)` finds in offsets [low, high), in order.

    Reads backwards from the end: first `count` offsets, then twice as many each time. Nothing is read twice, and
    nothing far before the last items is read. If a step fails, the items after it are yielded first, then the error is
    raised.
    """
    found: list[deque[T]] = []
    width, missing = count, count
    try:
        while missing and high > low:
            start = max(low, high - width)
            found.append(deque(read(start, high), maxlen=missing))
            missing -= len(found[-1])
            high, width = start, width * 2
    except KafkalogError:
        yield from chain.from_iterable(reversed(found))
        raise
    yield from chain.from_iterable(reversed(found))
