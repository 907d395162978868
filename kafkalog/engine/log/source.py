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
        """The directory that contains the partition's directory."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int:
        """The offset of the next record, as far as it is known."""

    @property
    def cuts(self) -> int:
        """A counter of truncations: if it changes, the log was truncated meanwhile."""

    def visible_end(self, isolation: str = ...) -> int:
        """Returns the offset (exclusive) up to which a reader of that isolation level can read."""

    def extent(self, offset: int, isolation: str = ...) -> Extent | None:
        """Returns where to read `offset` and what follows it in its segment; None at the end of the log.

        Raises OffsetOutOfRangeException if the log does not have the offset.
        """

    def has(self, extent: Extent) -> bool:
        """Returns whether the stretch's file is still the segment's file.

        Compaction replaces segments, and a move replaces the log. `aborted_in` then knows nothing of records that no
        longer exist.
        """

    def aborted_in(self, first_offset: int, last_offset: int) -> Sequence[AbortedTxn]:
        """Returns aborted transactions that may have a record in [first_offset, last_offset]."""

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """Returns the first offset whose record has a timestamp >= `timestamp_ms`, or None."""

    def check_usable(self) -> None:
        """Raises if the source can no longer be read; called before each read."""

    def recheck(self) -> None:
        """Reads the state of the log again, after something could not be read."""

    def check_end(self, isolation: str = ...) -> None:
        """Raises if the end that `extent` reported is not the end: the log is known to continue."""

    def own_view(self) -> Source:
        """Returns a `PartitionView` of the same partition, to continue reading after damage; the caller closes it.

        Raises IllegalArgumentException if there can be no such view.
        """
        raise IllegalArgumentException(f"{self.topic_partition} of {self.log_dir} cannot be read past damage here")

    def ring_at_change(self, bell: Ringing) -> str | None:
        """Rings `bell` once when the visible end moves, or the log is closed or deleted.

        If another process writes the log, nothing rings: returns the directory that is to be watched instead.
        """
        return None  # nothing changes

    def ring_no_more(self, bell: Ringing) -> None:
        """Undoes `ring_at_change`; does nothing if the bell has rung."""
        return

    def has_changed(self) -> bool:
        """Returns whether `recheck` may find more than the last time. This is cheap.

        It is always False for a log that this process has open, whose state is always known.
        """
        return False
