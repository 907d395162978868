"""LogSegments: the segments of a partition, by base offset.

It holds a view (sorted base offsets and their segments) that every change replaces as a whole. Readers therefore need
no lock and never see half a change. Writers hold the partition's lock. Mirrors
org.apache.kafka.storage.internals.log.LogSegments (4.4.0).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.segment.log_segment import LogSegment
from kafkalog.errors import IllegalArgumentException, IllegalStateException


class NoSuchElementException(IllegalStateException):
    """java.util.NoSuchElementException: a log without segments has no active segment."""


T = TypeVar("T")
_View = tuple[tuple[int, ...], tuple[LogSegment, ...]]


class LogSegments:
    """Segments in offset order. A lookup without a result returns None."""

    __slots__ = ("topic_partition", "view")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.view: _View = ((), ())  # base offsets, segments; replaced whole. The commit of an append reads it too

    # --- changing (under the partition's lock) ---------------------------------------------------------

    def add(self, segment: LogSegment) -> LogSegment | None:
        """Adds a segment. Returns the segment with that base offset that it replaced, if any."""
        bases, segments = self.view
        base = segment.base_offset
        if not bases or base > bases[-1]:
            self.view = ((*bases, base), (*segments, segment))
            return None
        at = bisect_left(bases, base)
        if bases[at] == base:
            self.view = (bases, (*segments[:at], segment, *segments[at + 1 :]))
            return segments[at]
        self.view = ((*bases[:at], base, *bases[at:]), (*segments[:at], segment, *segments[at:]))
        return None

    def add_all(self, new_segments: Iterable[LogSegment]) -> None:
        """Adds many segments at once."""
        by_base = dict(zip(*self.view, strict=True))
        by_base.update((segment.base_offset, segment) for segment in new_segments)
        bases = tuple(sorted(by_base))
        self.view = (bases, tuple(by_base[base] for base in bases))

    def remove(self, offset: int) -> None:
        """Removes the segment with that base offset, if there is one; its files stay."""
        bases, segments = self.view
        at = bisect_left(bases, offset)
        if at < len(bases) and bases[at] == offset:
            self.view = (bases[:at] + bases[at + 1 :], segments[:at] + segments[at + 1 :])

    def clear(self) -> None:
        self.view = ((), ())

    def close(self) -> None:
        """Closes every segment; raises the first error after trying all."""
        failed: Exception | None = None
        for segment in self.values():
            try:
                segment.close()
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def close_quietly(self) -> None:
        for segment in self.values():
            segment.close_quietly()

    def update_parent_dir(self, parent_dir: str) -> None:
        """Records that the directory was renamed."""
        for segment in self.values():
            segment.update_parent_dir(parent_dir)

    # --- reading (no lock) -----------------------------------------------------------------------------

    def unchanged(self, look: Callable[[], T]) -> T:
        """Returns what `look` finds in several segments; calls it again if the segments changed meanwhile.

        While a compaction replaces segments, the successor of an old segment may also come after the new one, and
        records between them would be missed.
        """
        while True:
            view = self.view
            found = look()
            if self.view is view:
                return found

    @property
    def is_empty(self) -> bool:
        return not self.view[0]

    @property
    def non_empty(self) -> bool:
        return bool(self.view[0])

    @property
    def number_of_segments(self) -> int:
        return len(self.view[0])

    @property
    def base_offsets(self) -> tuple[int, ...]:
        return self.view[0]

    def contains(self, offset: int) -> bool:
        return self.get(offset) is not None

    def get(self, offset: int) -> LogSegment | None:
        """Returns the segment with exactly that base offset."""
        bases, segments = self.view
        at = bisect_left(bases, offset)
        return segments[at] if at < len(bases) and bases[at] == offset else None

    def values(self, from_offset: int | None = None, to_offset: int | None = None) -> tuple[LogSegment, ...]:
        """Returns all segments, or those from the one that holds `from_offset` up to a base offset below `to_offset`.

        Raises IllegalArgumentException if `to_offset` is below `from_offset`.
        """
        bases, segments = self.view
        if from_offset is None or to_offset is None:
            return segments
        if from_offset == to_offset:
            return ()
        if to_offset < from_offset:
            raise IllegalArgumentException(
                f"Invalid log segment range: requested segments in {self.topic_partition} from offset {from_offset} "
                f"which is greater than limit offset {to_offset}"
            )
        return segments[max(bisect_right(bases, from_offset) - 1, 0) : bisect_left(bases, to_offset)]

    def non_active_log_segments_from(self, from_offset: int) -> tuple[LogSegment, ...]:
        """Returns the segments from the one that holds `from_offset` on, without the active segment."""
        active = self.active_segment
        if from_offset > active.base_offset:
            return ()
        return self.values(from_offset, active.base_offset)

    def floor_segment(self, offset: int) -> LogSegment | None:
        """Returns the segment with the greatest base offset at or below `offset`."""
        bases, segments = self.view
        if bases and offset >= bases[-1]:  # most reads are near the end
            return segments[-1]
        at = bisect_right(bases, offset)
        return segments[at - 1] if at else None

    def lower_segment(self, offset: int) -> LogSegment | None:
        """Returns the segment with the greatest base offset below `offset`."""
        bases, segments = self.view
        at = bisect_left(bases, offset)
        return segments[at - 1] if at else None

    def higher_segment(self, offset: int) -> LogSegment | None:
        """Returns the segment with the least base offset above `offset`."""
        bases, segments = self.view
        at = bisect_right(bases, offset)
        return segments[at] if at < len(bases) else None

    def higher_segments(self, base_offset: int) -> tuple[LogSegment, ...]:
        """Returns all segments whose base offset is above `base_offset`."""
        bases, segments = self.view
        return segments[bisect_right(bases, base_offset) :]

    @property
    def first_segment_base_offset(self) -> int | None:
        bases = self.view[0]
        return bases[0] if bases else None

    @property
    def last_segment(self) -> LogSegment | None:
        segments = self.view[1]
        return segments[-1] if segments else None

    @property
    def last_entry(self) -> tuple[int, LogSegment] | None:
        bases, segments = self.view
        return (bases[-1], segments[-1]) if bases else None

    @property
    def active_segment(self) -> LogSegment:
        """The last segment, which appends go to. Raises NoSuchElementException if there is none."""
        segments = self.view[1]
        if not segments:
            raise NoSuchElementException("No value present")
        return segments[-1]

    @property
    def size_in_bytes(self) -> int:
        """The bytes of all .log files together."""
        return sum(segment.size for segment in self.view[1])

    def filter(self, predicate: Callable[[LogSegment], bool]) -> list[LogSegment]:
        return [segment for segment in self.view[1] if predicate(segment)]

    def __len__(self) -> int:
        return len(self.view[0])

    def __repr__(self) -> str:
        return f"LogSegments({self.topic_partition}, {list(self.view[0])})"


def size_in_bytes(segments: Collection[LogSegment]) -> int:
    """Returns the bytes of the .log files of some segments."""
    return sum(segment.size for segment in segments)
