"""Moves a partition to another directory while it is written and read: copy, catch up, switch.

The future log is a follower of the current one in the same process: it copies its batches byte for byte, from its end
on.  Copying holds no lock.  When little is left, the rest is copied under the current log's lock and flushed, and the
future log takes the place (`LogManager.switch_to_future_log`, atomic).  An append that waited meanwhile is refused, and
its caller gets the partition's new log from the manager.

If a log continues in a remote tier, only its records on the disk are copied.  They are copied segment by segment: the
part that the tier has then ends where a segment ends.  The rest is passed on: the log start, the leader epochs, the
producers as they were there.  (A broker's TierStateMachine fetches these from the tier.)

A future log that an earlier move left is continued if it is certainly a beginning of the current log.  If the current
log was truncated meanwhile, all is copied again.  A move that an error or an interrupt ended leaves a `-future`
directory and a complete current log.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from kafkalog._limits import INT_MAX
from kafkalog._native.codec import batches
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names
from kafkalog.engine.format.batch import CONTROL_FLAG, SMALLEST_BATCH_BYTES
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_directories import absolute_path
from kafkalog.engine.log.types import LogStartOffsetIncrementReason
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.segment.types import FetchDataInfo, LogOffsetMetadata
from kafkalog.errors import (
    IllegalStateException,
    KafkaException,
    KafkalogError,
    KafkaStorageException,
    OffsetOutOfRangeException,
    RecordBatchTooLargeException,
    UnexpectedAppendOffsetException,
    UnknownTopicOrPartitionException,
)

COPY_BYTES = 1 << 20  # copied at once
SWITCH_BYTES = 4 << 20  # at most this much is copied while writers wait


class Moving(Protocol):
    """The methods of the manager that a move calls (`LogManager`)."""

    @property
    def creation(self) -> AbstractContextManager[object]: ...

    @property
    def live_log_dirs(self) -> list[str]: ...

    @property
    def offline_log_dirs(self) -> list[str]: ...

    def is_log_dir_online(self, log_dir: str) -> bool: ...

    def get_log(self, topic_partition: TopicPartition, *, is_future: bool = False) -> UnifiedLog | None: ...

    def log_to_change(self, partition: TopicPartition) -> UnifiedLog | None: ...

    def get_or_create_log(
        self,
        topic_partition: TopicPartition,
        *,
        is_new: bool = False,
        is_future: bool = False,
        topic_id: str | None = None,
        log_dir: str | None = None,
    ) -> UnifiedLog: ...

    def async_delete(self, topic_partition: TopicPartition, *, is_future: bool = False) -> UnifiedLog | None: ...

    def switch_to_future_log(self, partition: TopicPartition) -> None: ...


class MoveProgress(NamedTuple):
    """The progress of a move.

    Attributes:
        copied_to: The offset up to which the future log has the current one's records.
        log_end_offset: The end of the current log.
        bytes_copied: How many bytes this move has copied.
    """

    copied_to: int
    log_end_offset: int
    bytes_copied: int


class Move:
    """One move, used once, by one thread."""

    def __init__(self, manager: Moving, topic_partition: str | TopicPartition, log_dir: str | os.PathLike[str]) -> None:
        """Raises LogDirNotFoundException, and KafkaStorageException if the directory is offline."""
        self._manager = manager
        self.partition = names.partition_of(topic_partition)
        self._log_dir = absolute_path(log_dir)
        if not manager.is_log_dir_online(self._log_dir):
            raise KafkaStorageException(f"{self.partition} can not be moved: {self._log_dir} is offline")
        self._bytes = 0
        self._truncations = -1

    def run(self, progress: Callable[[MoveProgress], object] | None = None) -> UnifiedLog:
        """Returns the partition's log in its new place."""
        source = self._source()
        if source.parent_dir == self._log_dir:
            return source
        if not source.remote_log_enabled:  # otherwise its start and its leader epochs are kept
            source.refuse_without_tier("move")
        future = self._future_of(source)
        try:
            self._move(source, future, progress)
        except KafkalogError as error:
            if isinstance(error, RecordBatchTooLargeException):
                error.hint = error.hint or "raise the topic's segment.bytes until it has moved"
            self._drop_if_deleted(source, future)
            raise
        return future

    def _drop_if_deleted(self, source: UnifiedLog, future: UnifiedLog) -> None:
        """Deletes the copy if the partition was deleted meanwhile.

        If the source's disk failed, the copy stays: it may be all that is left.
        """
        manager, partition = self._manager, self.partition
        with contextlib.suppress(KafkalogError):
            gone = manager.get_log(partition) is None
            if source.context.is_offline:
                return
            if gone and manager.get_log(partition, is_future=True) is future:
                manager.async_delete(partition, is_future=True)

    def _move(self, source: UnifiedLog, future: UnifiedLog, progress: Callable[[MoveProgress], object] | None) -> None:
        while True:
            self._begin(source, future)
            while self._left(source, future) > SWITCH_BYTES and self._copy(source, future):
                if progress is not None:
                    progress(MoveProgress(future.log_end_offset, source.log_end_offset, self._bytes))
            if self._switch(source, future):
                return

    def _source(self) -> UnifiedLog:
        source = self._manager.get_log(self.partition) and self._manager.log_to_change(self.partition)
        if source is None:
            offline = self._manager.offline_log_dirs
            if offline:
                raise KafkaStorageException(
                    f"{self.partition} can not be moved: it may be in one of the offline directories "
                    f"{', '.join(offline)}"
                )
            raise UnknownTopicOrPartitionException(
                f"no partition {self.partition} in {', '.join(self._manager.live_log_dirs)}"
            )
        return source

    def _future_of(self, source: UnifiedLog) -> UnifiedLog:
        manager, partition = self._manager, self.partition
        left = manager.get_log(partition, is_future=True)
        if left is not None and left.parent_dir != self._log_dir:
            Lines("kafkalog.manager", left.parent_dir, partition).warning("deleting an unfinished move to here")
            manager.async_delete(partition, is_future=True)
        return manager.get_or_create_log(
            partition, is_new=True, is_future=True, topic_id=source.topic_id, log_dir=self._log_dir
        )

    def _begin(self, source: UnifiedLog, future: UnifiedLog) -> None:
        """Makes the future log a beginning of the current one, or empty."""
        if self._truncations == source.local_log.truncations:
            return
        future.settle()  # an earlier move may have been interrupted in the middle of a truncation
        known = self._truncations < 0 and goes_on(source, future)
        self._truncations = source.local_log.truncations
        is_new = future.is_empty and future.log_start_offset == source.log_start_offset == source.first_local_offset
        if not known and not is_new:
            self._begin_anew(source, future)

    @staticmethod
    def _begin_anew(source: UnifiedLog, future: UnifiedLog) -> None:
        if source.remote_log_enabled:
            with source.lock:  # retention removes the snapshot of the producers there
                future.begin_where(source)
        else:
            future.truncate_fully_and_start_at(source.log_start_offset)

    def _left(self, source: UnifiedLog, future: UnifiedLog) -> int:
        if future.log_end_offset >= source.log_end_offset:
            return 0
        first = source.local_log.segments.first_segment_base_offset if source.remote_log_enabled else None
        gone = sum(each.size for each in future.log_segments() if first is not None and each.base_offset < first)
        return source.size - future.size + gone  # the future log's retention keeps segments not known to be copied

    def _copy(self, source: UnifiedLog, future: UnifiedLog) -> bool:
        """Copies one piece.  Returns False if there is none, or if the current log was truncated."""
        if source.is_leaving_remote_tier:
            raise leaving_error(self.partition)
        start = source.first_local_offset
        if future.log_end_offset < start:  # retention deleted the records after the copied ones
            self._begin_anew(source, future)
        # The limit of a segment's size may have become smaller than a piece.
        try:
            found = source.read(future.log_end_offset, min(COPY_BYTES, future.config.segment_size))
        except OffsetOutOfRangeException:
            if source.first_local_offset == start and not source.is_leaving_remote_tier:
                raise
            return True  # deleted just now
        try:
            data = _bytes_of(source, found)
        except KafkaException:
            if self._truncations == source.local_log.truncations:
                raise
            return False  # truncated between the two
        if not data or self._truncations != source.local_log.truncations:
            return False
        segment = found.fetch_offset_metadata.segment_base_offset
        if source.remote_log_enabled and future.active_segment.base_offset < segment >= future.log_end_offset:
            future.roll(segment)
        for piece in _up_to_markers(data):
            self._append(future, piece)
        self._bytes += len(data)
        return True

    def _append(self, future: UnifiedLog, data: memoryview) -> None:
        """Appends batches.  The current log may start inside a batch: the copy then begins with all of that batch, as
        Kafka's does."""
        try:
            future.append_as_follower(data, INT_MAX)
        except UnexpectedAppendOffsetException as error:
            end = future.log_end_offset
            if future.log_start_offset != end or not error.first_offset < end <= error.last_offset:
                raise
            future.truncate_fully_and_start_at(error.first_offset)
            future.append_as_follower(data, INT_MAX)

    def _switch(self, source: UnifiedLog, future: UnifiedLog) -> bool:
        """Switches to the future log.  Returns False if the current log was truncated meanwhile."""
        manager = self._manager
        future.flush(True)  # flushes most of it before writers wait
        with manager.creation:
            if manager.get_log(self.partition) is not source:
                raise IllegalStateException(f"{self.partition} was deleted or moved by another caller meanwhile")
            with source.lock:
                source.settle()
                # The lock admits signal handlers of this thread: their changes now would be lost, or come back.
                source.lock.busy = True
                while self._copy(source, future):
                    pass
                if self._truncations != source.local_log.truncations:
                    return False
                future.maybe_increment_log_start_offset(
                    source.log_start_offset, LogStartOffsetIncrementReason.LEADER_OFFSET_INCREMENTED
                )
                future.skip_to(source.log_end_offset)  # a crash may have left a gap before the current log's end
                if source.remote_log_enabled:
                    _take_over_tier(source, future)
                assert future.log_end_offset == source.log_end_offset, (source, future)
                future.flush(True)
                manager.switch_to_future_log(self.partition)
        return True


def leaving_error(partition: TopicPartition) -> IllegalStateException:
    """Returns the error for a move while a topic leaves the remote tier: the log's start is not settled until then."""
    return IllegalStateException(
        f"{partition} is just leaving the remote tier",
        hint="move it when alter_topic has returned",
    )


def _take_over_tier(source: UnifiedLog, future: UnifiedLog) -> None:
    """Tells the future log about the remote tier, whose lower offsets it has not read."""
    future.leader_epoch_cache.take(source.epoch_entries)
    future.update_highest_offset_in_remote_storage(source.highest_offset_in_remote_storage)
    if future.active_segment.base_offset < source.active_segment.base_offset:
        future.roll()  # all of the last segment may already be in the tier


def _up_to_markers(data: bytes) -> Iterator[memoryview]:
    """Splits the batches so that none follows a transaction's end marker in one append.

    The index of aborted transactions records the last stable offset at the marker, and batches appended together with
    it would make that offset too high.
    """
    table, _, reached = batches.scan(data, check_crc=False, max_batches=len(data) // SMALLEST_BATCH_BYTES + 1)
    markers = table[table["attributes"] & CONTROL_FLAG != 0]
    at = 0
    for end in [*(markers["position"] + markers["size"]).tolist(), reached or len(data)]:
        if at < end:
            yield memoryview(data)[at:end]
        at = end


def goes_on(source: UnifiedLog, future: UnifiedLog) -> bool:
    """Returns whether the future log is a beginning of the current one.

    Its last records must be in the current log too, with as many bytes before them: a power loss can remove segments
    from the middle of a part that was never flushed.
    """

    def is_beginning(start: int) -> bool:
        end = future.log_end_offset
        return (
            future.first_local_offset <= start
            and _has_last_of(source, future, start)
            and _distance(future, start, end) == _distance(source, start, end)
        )

    return _beside_retention(source, is_beginning)


def has_last_of(log: UnifiedLog, other: UnifiedLog) -> bool:
    """Returns whether the last records of `other` are in `log` too: then `other` has no records that `log` lacks."""
    return _beside_retention(log, lambda start: _has_last_of(log, other, start))


def _beside_retention(log: UnifiedLog, ask: Callable[[int], bool]) -> bool:
    """Returns `ask(start)` for the log's start on the disk.  Asks again if retention moved the start meanwhile."""
    while True:
        start = log.first_local_offset
        try:
            return ask(start)
        except OffsetOutOfRangeException:
            if log.first_local_offset == start:
                raise


def _has_last_of(log: UnifiedLog, other: UnifiedLog, start: int) -> bool:
    """Raises OffsetOutOfRangeException if the start of `log` has moved."""
    end = end_of_records(other)
    if end is None or not start < end <= log.log_end_offset:
        return False
    found = other.read(end - 1, 1)
    return bool(found.records.size) and _bytes_of(other, found) == _bytes_of(log, log.read(end - 1, 1))


def end_of_records(log: UnifiedLog) -> int | None:
    """Returns the offset after the last record; None if there is none.

    It may be before the log's end: a power loss can remove the end of one segment and leave the next one, empty.
    """
    for segment in reversed(log.log_segments()):
        if segment.size:
            end = segment.read_next_offset()
            return end if end > log.log_start_offset else None
    return None


def _distance(log: UnifiedLog, start: int, end: int) -> int:
    """Returns the number of bytes from the batch of one offset to the batch of another."""
    first, last = _place(log, start), _place(log, end)
    between = [each.size for each in log.log_segments() if first[1] <= each.base_offset < last[1]]
    return sum(between) + last[2] - first[2]


def _place(log: UnifiedLog, offset: int) -> LogOffsetMetadata:
    if offset >= log.log_end_offset:
        return log.log_end_offset_metadata
    return log.read(offset, 1).fetch_offset_metadata


def _bytes_of(log: UnifiedLog, found: FetchDataInfo) -> bytes:
    with log.local_log.guard("reading for a move"):
        return found.records.to_bytes()
