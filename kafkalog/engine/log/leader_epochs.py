"""Which leader epoch began at which offset, and the `leader-epoch-checkpoint` file that keeps it.

A sorted run of entries in which epochs and start offsets both grow.  Assigning writes the file at once; truncation
leaves that to a task of the scheduler, so that the file may lag behind (it is repaired from the log when it does).
Readers need no lock: they work on an immutable run that writers replace whole, under a lock of this class.
Source class: LeaderEpochFileCache (4.4.0).
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from kafkalog.engine.files import Scheduler
from kafkalog.engine.format.checkpoints import EpochEntry, LeaderEpochCheckpointFile
from kafkalog.engine.format.log_lines import lines_of_folder
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET
from kafkalog.errors import DiskFull, IllegalArgumentException, KafkaStorageException


class EpochEndOffset(NamedTuple):
    """Where an epoch ends: the first offset of the next one, or the log's end.  (-1, -1) where it is unknown."""

    epoch: int
    end_offset: int


UNDEFINED_EPOCH_END = EpochEndOffset(NO_LEADER_EPOCH, UNKNOWN_OFFSET)


class LeaderEpochFileCache:
    """LeaderEpochFileCache: (epoch, start offset) entries of one partition, oldest first."""

    def __init__(
        self, topic_partition: TopicPartition, checkpoint: LeaderEpochCheckpointFile, scheduler: Scheduler
    ) -> None:
        self._topic_partition = topic_partition
        self._checkpoint = checkpoint
        self._scheduler = scheduler
        self._lock = threading.RLock()
        # Invariant: both columns grow strictly.  Replaced whole under _lock, read without it.
        self.entries: tuple[EpochEntry, ...] = ()
        self._is_due = False  # whether a task is to write the file
        self._closed = False
        for entry in checkpoint.read():
            self.entries = self._with(self.entries, entry)

    # --- reading --------------------------------------------------------------------------------

    @property
    def non_empty(self) -> bool:
        return bool(self.entries)

    @property
    def epoch_entries(self) -> list[EpochEntry]:
        return list(self.entries)

    @property
    def latest_epoch(self) -> int | None:
        epochs = self.entries
        return epochs[-1].epoch if epochs else None

    @property
    def earliest_entry(self) -> EpochEntry | None:
        epochs = self.entries
        return epochs[0] if epochs else None

    def end_offset_for(self, requested_epoch: int, log_end_offset: int) -> EpochEndOffset:
        """The largest known epoch <= `requested_epoch` and where it ends; (-1, -1) above the latest epoch.

        An epoch below all that are known ends, under its own number, where the first known one begins.
        """
        epochs = self.entries
        if requested_epoch == NO_LEADER_EPOCH:
            return UNDEFINED_EPOCH_END
        if epochs and epochs[-1].epoch == requested_epoch:
            return EpochEndOffset(requested_epoch, log_end_offset)
        higher = bisect_right(epochs, requested_epoch, key=_epoch)
        if higher == len(epochs):
            return UNDEFINED_EPOCH_END
        floor_epoch = epochs[higher - 1].epoch if higher else requested_epoch
        return EpochEndOffset(floor_epoch, epochs[higher].start_offset)

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch in which `offset` was or would be written; None before the first entry."""
        epochs = self.entries
        at = bisect_right(epochs, offset, key=_start_offset)
        return epochs[at - 1].epoch if at else None

    def entries_in_range(self, start_offset: int, end_offset: int) -> list[EpochEntry]:
        """epochEntriesInRange: those of [start, end), the first as if it began there; a negative start is none."""
        return entries_in_range(self.entries, start_offset, end_offset)

    # --- changing -------------------------------------------------------------------------------

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`, if that is news; written to the file before this returns.

        Later entries that contradict it (same or higher epoch, same or higher offset) are dropped.
        Raises IllegalArgumentException for a negative epoch or offset, KafkaStorageException.
        """
        if _is_news(self.entries, epoch, start_offset):  # it hardly ever is: answered without the lock
            with self._lock:
                self._replace(self._with(self.entries, EpochEntry(epoch, start_offset)))

    def begin_with(self, entries: Sequence[EpochEntry]) -> None:
        """Put entries before those that there are, of which the first may go on with the last of them."""
        with self._lock:
            epochs: tuple[EpochEntry, ...] = ()
            for entry in (*entries, *self.entries):
                epochs = self._with(epochs, entry)
            self._replace(epochs)

    def take(self, entries: Sequence[EpochEntry]) -> None:
        """Put entries in the place of those that there are."""
        with self._lock:
            if self.entries != tuple(entries):
                self._replace(tuple(entries))

    def truncate_from_end_async_flush(self, end_offset: int) -> None:
        """Drop entries that begin at or above `end_offset`; the file follows by a scheduled task."""
        with self._lock:
            kept = _truncated_from_end(self.entries, end_offset)
            if len(kept) != len(self.entries):
                self._schedule_flush()
                self.entries = kept

    def truncate_from_start_async_flush(self, start_offset: int) -> None:
        """Drop entries that begin at or below `start_offset`, keeping the last of them as beginning there."""
        with self._lock:
            kept = _truncated_from_start(self.entries, start_offset)
            if kept is not self.entries:
                # Kafka writes also what the file says already, at nearly every start of a log.
                if kept != self.entries or not self._checkpoint.holds(kept):
                    self._schedule_flush()
                self.entries = kept

    def clear_and_flush(self) -> None:
        with self._lock:
            self._replace(())

    def clear(self) -> None:
        """Forget the entries; the file stays as it is."""
        with self._lock:
            self.entries = ()

    def with_checkpoint(self, checkpoint: LeaderEpochCheckpointFile) -> LeaderEpochFileCache:
        """The same entries over another file, which is neither read nor written."""
        copy = LeaderEpochFileCache.__new__(LeaderEpochFileCache)
        copy._topic_partition = self._topic_partition
        copy._checkpoint = checkpoint
        copy._scheduler = self._scheduler
        copy._lock = threading.RLock()
        copy.entries = self.entries
        copy._is_due = self._is_due
        copy._closed = False
        return copy

    def _with(self, epochs: tuple[EpochEntry, ...], entry: EpochEntry) -> tuple[EpochEntry, ...]:
        """`epochs` and a new entry, without those that contradict it; `epochs` itself where it is no news."""
        if entry.epoch < 0 or entry.start_offset < 0:
            raise IllegalArgumentException(
                f"Received invalid partition leader epoch entry "
                f"EpochEntry[epoch={entry.epoch}, startOffset={entry.start_offset}]"
            )
        if not _is_news(epochs, *entry):
            return epochs
        keep = len(epochs)
        while keep and (epochs[keep - 1].epoch >= entry.epoch or epochs[keep - 1].start_offset >= entry.start_offset):
            keep -= 1
        dropped = epochs[keep:]
        if len(dropped) > 1 or (dropped and dropped[0].start_offset != entry.start_offset):
            folder = os.path.dirname(self._checkpoint.path)
            lines_of_folder("kafkalog.log", folder).warning("new leader epoch %s drops conflicting %s", entry, dropped)
        return (*epochs[:keep], entry)

    def _replace(self, entries: tuple[EpochEntry, ...]) -> None:
        """The file first: what memory has and the file has not would never be written.  Where the disk refuses it,
        memory has it all the same, as in Kafka: the directory is offline.  Not where it only has no space."""
        try:
            self._checkpoint.write(entries)
        except DiskFull:
            raise
        except KafkaStorageException:
            self.entries = entries
            raise
        self.entries = entries

    def _schedule_flush(self) -> None:
        self._is_due = True
        self._scheduler.schedule_once(f"leader-epoch-cache-flush-{self._topic_partition}", self._write_if_dir_exists)

    def _write_if_dir_exists(self) -> None:
        with self._lock:
            if not self._closed:
                self._checkpoint.write_if_dir_exists(self.entries)
                self._is_due = False

    def flush(self) -> None:
        """Write now what a task is still to write."""
        with self._lock:
            if self._is_due:
                self._write_if_dir_exists()

    def close(self, *, flush: bool) -> None:
        """Write what a task is still to write, if `flush`, and nothing any more: the next open has the file."""
        with self._lock:
            if flush:
                self.flush()
            self._closed = True


def entries_in_range(entries: Sequence[EpochEntry], start_offset: int, end_offset: int) -> list[EpochEntry]:
    """As `LeaderEpochFileCache.entries_in_range`, of entries that lie elsewhere."""
    epochs = tuple(entries) if start_offset < 0 else _truncated_from_start(tuple(entries), start_offset)
    return list(_truncated_from_end(epochs, end_offset))


def _epoch(entry: EpochEntry) -> int:
    return entry.epoch


def _start_offset(entry: EpochEntry) -> int:
    return entry.start_offset


def _is_news(epochs: tuple[EpochEntry, ...], epoch: int, start_offset: int) -> bool:
    return not epochs or epoch != epochs[-1][0] or start_offset < epochs[-1][1]


def _truncated_from_end(epochs: tuple[EpochEntry, ...], end_offset: int) -> tuple[EpochEntry, ...]:
    return epochs if end_offset < 0 else epochs[: bisect_left(epochs, end_offset, key=_start_offset)]


def _truncated_from_start(epochs: tuple[EpochEntry, ...], start_offset: int) -> tuple[EpochEntry, ...]:
    """`epochs` itself where nothing begins at or below `start_offset`."""
    dropped = bisect_right(epochs, start_offset, key=_start_offset)
    if not dropped:
        return epochs
    return (EpochEntry(epochs[dropped - 1].epoch, start_offset), *epochs[dropped:])
