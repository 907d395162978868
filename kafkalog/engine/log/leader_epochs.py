"""The start offset of each leader epoch, and the `leader-epoch-checkpoint` file that stores them.

It holds a sorted run of entries in which epochs and start offsets both grow. An assignment writes the file at once. A
truncation leaves that to a task of the scheduler, so the file may be out of date; it is then repaired from the log.
Readers need no lock: they use an immutable run that writers replace as a whole, under a lock of this class. Source
class: LeaderEpochFileCache (4.4.0).
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
    """The end of an epoch: the first offset of the next one, or the log's end. (-1, -1) if it is unknown."""

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
        self._is_due = False  # whether a task will write the file
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
        """Returns the largest known epoch <= `requested_epoch` and its end; (-1, -1) above the latest epoch.

        An epoch below all known ones is returned itself; it ends where the first known one begins.
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
        """Returns the epoch in which `offset` was or would be written; None before the first entry."""
        epochs = self.entries
        at = bisect_right(epochs, offset, key=_start_offset)
        return epochs[at - 1].epoch if at else None

    def entries_in_range(self, start_offset: int, end_offset: int) -> list[EpochEntry]:
        """epochEntriesInRange: returns the entries of [start, end), the first as if it began at start.

        A negative start is no limit.
        """
        return entries_in_range(self.entries, start_offset, end_offset)

    # --- changing -------------------------------------------------------------------------------

    def assign(self, epoch: int, start_offset: int) -> None:
        """Records that `epoch` begins at `start_offset`, if that is new; the file is written before this returns.

        Later entries that contradict it (same or higher epoch, same or higher offset) are removed. Raises
        IllegalArgumentException for a negative epoch or offset, and KafkaStorageException.
        """
        if _is_news(self.entries, epoch, start_offset):  # rarely true: checked without the lock
            with self._lock:
                self._replace(self._with(self.entries, EpochEntry(epoch, start_offset)))

    def begin_with(self, entries: Sequence[EpochEntry]) -> None:
        """Puts entries before the existing ones. The first existing entry may continue the last new one."""
        with self._lock:
            epochs: tuple[EpochEntry, ...] = ()
            for entry in (*entries, *self.entries):
                epochs = self._with(epochs, entry)
            self._replace(epochs)

    def take(self, entries: Sequence[EpochEntry]) -> None:
        """Replaces all entries."""
        with self._lock:
            if self.entries != tuple(entries):
                self._replace(tuple(entries))

    def truncate_from_end_async_flush(self, end_offset: int) -> None:
        """Removes entries that begin at or above `end_offset`; a scheduled task updates the file."""
        with self._lock:
            kept = _truncated_from_end(self.entries, end_offset)
            if len(kept) != len(self.entries):
                self._schedule_flush()
                self.entries = kept

    def truncate_from_start_async_flush(self, start_offset: int) -> None:
        """Removes entries that begin at or below `start_offset`; the last of them stays, beginning there."""
        with self._lock:
            kept = _truncated_from_start(self.entries, start_offset)
            if kept is not self.entries:
                # Kafka also writes what the file already has, at nearly every start of a log.
                if kept != self.entries or not self._checkpoint.holds(kept):
                    self._schedule_flush()
                self.entries = kept

    def clear_and_flush(self) -> None:
        with self._lock:
            self._replace(())

    def clear(self) -> None:
        """Forgets the entries; the file stays as it is."""
        with self._lock:
            self.entries = ()

    def with_checkpoint(self, checkpoint: LeaderEpochCheckpointFile) -> LeaderEpochFileCache:
        """Returns the same entries over another file, which is neither read nor written."""
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
        """Returns `epochs` with a new entry, without those that contradict it; `epochs` itself if it is not new."""
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
            lines_of_folder("kafkalog.log", folder).warning(
                "new leader epoch %s removes conflicting %s", entry, dropped
            )
        return (*epochs[:keep], entry)

    def _replace(self, entries: tuple[EpochEntry, ...]) -> None:
        """Replaces the entries, the file first: an entry that only memory has would never be written.

        If the disk refuses the write, memory has the entries nevertheless, as in Kafka, and the directory is offline.
        If there is only no space, memory is not changed.
        """
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
        """Writes now what a task would write later."""
        with self._lock:
            if self._is_due:
                self._write_if_dir_exists()

    def close(self, *, flush: bool) -> None:
        """Writes what a task would write later, if `flush`, and nothing afterwards: the next open uses the file."""
        with self._lock:
            if flush:
                self.flush()
            self._closed = True


def entries_in_range(entries: Sequence[EpochEntry], start_offset: int, end_offset: int) -> list[EpochEntry]:
    """Returns the same as `LeaderEpochFileCache.entries_in_range`, for any entries."""
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
    """Returns `epochs` itself if nothing begins at or below `start_offset`."""
    dropped = bisect_right(epochs, start_offset, key=_start_offset)
    if not dropped:
        return epochs
    return (EpochEntry(epochs[dropped - 1].epoch, start_offset), *epochs[dropped:])
