"""From where to where somebody wants to read a partition: offsets or times, and how to read only its last records.

A time is the first offset whose record is not older, found by the time index, as Kafka's consumers find it: where
timestamps go back, records behind it may be older.  Knows a view, and nothing of what is in records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kafkalog.errors import KafkalogError

if TYPE_CHECKING:
    from kafkalog.log.view import PartitionView

LAST_OFFSETS = 512  # a first look from the end backwards; each further one is twice as long
T = TypeVar("T")


class Time(NamedTuple):
    """Milliseconds since 1970."""

    timestamp_ms: int


class Near(NamedTuple):
    """An offset, or the nearest that the log has: for whoever looks for things, and named no place of the log."""

    offset: int


Bound = int | Time | Near | None


class Window(NamedTuple):
    """Offsets from `start` on, up to `end` (exclusive); None: the log's start, its end."""

    start: Bound = None
    end: Bound = None


def offsets(view: PartitionView, window: Window, *, lenient: bool = False) -> tuple[int, int | None]:
    """The first offset of a window and its end, None where that is the log's end.

    `lenient`: a start that the log does not have is the next one that it has, for whoever asks many partitions at once;
    else readers raise OffsetOutOfRangeException.
    """
    low, high = view.log_start_offset, view.log_end_offset
    start = low if window.start is None else _offset(view, window.start)
    end = None if window.end is None else _offset(view, window.end)
    if lenient or not isinstance(window.start, int):
        start = min(max(start, low), high)
    return start, end


def _offset(view: PartitionView, bound: int | Time | Near) -> int:
    if isinstance(bound, Near):
        return bound.offset
    if not isinstance(bound, Time):
        return bound
    found = view.offset_for_time(bound.timestamp_ms)
    return view.log_end_offset if found is None else found


def last(read: Callable[[int, int], Iterator[T]], count: int, low: int, high: int) -> Iterator[T]:
    """The last `count` things that `read(start, end)` finds in offsets [low, high), in order.

    Looks from the end backwards, each look twice as long as the one before: nothing is read twice, and what lies far
    before the last things is not read.  Where a look fails, what lies behind it comes first, then the error.
    """
    found: list[deque[T]] = []
    width, missing = max(count, LAST_OFFSETS), count
    failure: KafkalogError | None = None
    while missing and high > low:
        start = max(low, high - width)
        try:
            part = deque(read(start, high), maxlen=missing)
        except KafkalogError as error:
            failure = error
            break
        found.append(part)
        missing -= len(part)
        high, width = start, width * 2
    for part in reversed(found):
        yield from part
    if failure is not None:
        raise failure
