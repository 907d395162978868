"""From where to where somebody wants to read a partition: offsets or times, and how to read only its last records.

A time is no place in the log: a record is in the window if its timestamp is (`kafkalog._face.times`).  The time index
only says from which offset on there may be such records; as timestamps may go back, nothing says where they end.  Knows
a source, and nothing of what is in records.
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

MILLISECONDS = range(10**11, 10**14)  # of 1973 to 5138
DAYS = range(1970, 2101)  # the years of days that somebody may have written as 20261120


class Time(NamedTuple):
    """Milliseconds since 1970."""

    timestamp_ms: int


class Near(NamedTuple):
    """An offset, or the nearest that the log has: for whoever looks for things, and named no place of the log."""

    offset: int


Bound = int | Time | Near | None


class Window(NamedTuple):
    """Offsets, or times, from `start` on, up to `end` (exclusive); None: the log's start, its end."""

    start: Bound = None
    end: Bound = None


class Range(NamedTuple):
    """Offsets [start, end), None for the log's end, and of their records those with one of these timestamps."""

    start: int
    end: int | None
    times: Times


def found_in(source: Source, window: Window, *, lenient: bool = False) -> Range:
    """Where a window's records are.

    `lenient`: a start that the log does not have is the next one that it has, for whoever asks many partitions at once;
    else readers raise OffsetOutOfRangeException.  So does an offset that the log has not, and that looks like a time.
    """
    low, high = source.log_start_offset, source.log_end_offset
    first, behind = window
    for name, bound in (("start", first), ("end", behind)):
        if isinstance(bound, int) and bound > high and MILLISECONDS.start <= bound < MILLISECONDS.stop:
            raise OffsetOutOfRangeException(
                f"{name}: offset {bound} lies far behind the end of {source.topic_partition} at offset {high}",
                hint=f"{name}_time= takes a time in ms",
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


LIKE_A_TIME = 10**11  # an offset that is not smaller may be meant as milliseconds since 1970


def day_of(offset: int) -> str | None:
    """The day that the digits of an offset read like, 2026-11-20 of 20261120; None of any other."""
    try:
        day = datetime.strptime(f"{offset:08d}", "%Y%m%d")
    except ValueError:
        return None
    return f"{day:%Y-%m-%d}" if day.year in DAYS else None


def hint_beyond(offset: int) -> str | None:
    """What to write in Python in the place of an offset behind the log's end; None if it reads like no time."""
    day = day_of(offset)
    if day is not None:
        return f"an int is an offset: write start='{day}' for the day"
    return "start_time= takes a time in ms" if offset >= LIKE_A_TIME else None


def _offset(bound: int | Near) -> int:
    return bound.offset if isinstance(bound, Near) else bound


def last(read: Callable[[int, int], Iterator[T]], count: int, low: int, high: int) -> Iterator[T]:
    """The last `count` things that `read(start, end)` finds in offsets [low, high), in order.

    Looks from the end backwards, at `count` offsets, then at twice as many each time: nothing is found twice, and what
    lies far before the last things is not read.  Where a look fails, what lies behind it comes first, then the error.
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
