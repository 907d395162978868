"""The `Source` interface, through which readers see a partition, and the two isolation levels.

`EngineSource` implements it for a log that this process has open, `PartitionView` for a directory that another process
owns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from kafkalog.errors import IllegalArgumentException

if TYPE_CHECKING:
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.segment.reader import Extent
    from kafkalog.engine.segment.transaction_index import AbortedTxn

ISOLATIONS = ("read_uncommitted", "read_committed")


def check_isolation(isolation: str) -> bool:
    """Returns whether `isolation` is read_committed. Raises IllegalArgumentException for an unknown level."""
    if not isinstance(isolation, str) or isolation not in ISOLATIONS:
        raise IllegalArgumentException(f"unknown isolation level {isolation!r}; expected {' or '.join(ISOLATIONS)}")
    return isolation == "read_committed"


class Ringing(Protocol):
    """Wakes a waiting thread; called from any other thread (`kafkalog._native.state.bell.Bell`)."""

    def release(self) -> object: ...


class Source(Protocol):
    """A partition as readers see it. Readers, and objects that users hold, know nothing else of it. Thread-safe.

    To wait for more records, a reader registers a bell that rings at the next change (`ring_at_change`), reads
    `visible_end`, and waits for the bell. A change after that read rings the bell. The log of another process rings no
    bell: its directory is watched, and `recheck` reads it again.
    """

    topic_partition: TopicPartition

    @property
    def log_dir(self) -> str:
        """The directory that the partition's folder is in."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets, as far as it is known."""

    @property
    def cuts(self) -> int:
        """Another number: the log was truncated meanwhile."""

    def visible_end(self, isolation: str = ...) -> int:
        """Up to where (exclusive) a reader of that isolation sees."""

    def extent(self, offset: int, isolation: str = ...) -> Extent | None:
        """Where to read `offset` and what follows it in its segment; None at the end of the log.

        OffsetOutOfRangeException where the log does not have it.
        """

    def has(self, extent: Extent) -> bool:
        """Whether the stretch's file is still the segment's.  Compaction puts others in its place, and a move another
        log: `aborted_in` says nothing then of records that are there no more."""

    def aborted_in(self, first_offset: int, last_offset: int) -> Sequence[AbortedTxn]:
        """Aborted transactions that may have a record in [first_offset, last_offset]."""

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """The first offset whose record has a timestamp >= `timestamp_ms`; None where there is none."""

    def check_usable(self) -> None:
        """Raises where nobody may read any more; asked before each read."""

    def recheck(self) -> None:
        """Something could not be read: look again at what there is."""

    def check_end(self, isolation: str = ...) -> None:
        """Raises when the end that `extent` told is none: the log is known to go on."""

    def own_view(self) -> Source:
        """A `PartitionView` of the same partition for whoever reads on behind damage, and closes it.
        IllegalArgumentException where there can be none."""
        raise IllegalArgumentException(f"{self.topic_partition} of {self.log_dir} cannot be read on behind damage here")

    def ring_at_change(self, bell: Ringing) -> str | None:
        """Has `bell` ring once when the visible end moves, or the log goes.  If nobody would ring, since another
        process writes: the directory that is to be watched instead."""
        return None  # nothing changes

    def ring_no_more(self, bell: Ringing) -> None:
        """Takes `ring_at_change` back; does nothing if the bell has rung."""
        return

    def has_changed(self) -> bool:
        """Whether `recheck` may show more than the last look.  Costs little; never of a log of our own, which is always
        known."""
        return False
