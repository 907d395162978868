"""A partition moves to another directory while it is written and read: copy, catch up, switch.

The future log is a follower of the current one in the same process: it takes its batches byte for byte, from where it
ends.  Copying holds no lock.  When little is left the rest is copied under the current log's lock, flushed, and the
future log takes the place (`LogManager.replace_current_with_future_log`, atomic); an append that waited meanwhile is
refused, and its caller gets the partition's new log from the manager.

A future log that an earlier move left goes on where it ends if that is certainly the current log's: same first batch of
what it has last.  Where the current log was truncated meanwhile it is copied anew.  What a move did not finish, by an
error or an interrupt, is a `-future` folder and a whole current log.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from kafkalog.errors import IllegalStateException, KafkaStorageException, UnknownTopicOrPartitionException
from kafkalog.files.lines import Lines
from kafkalog.format import names
from kafkalog.format.names import TopicPartition
from kafkalog.limits import INT_MAX
from kafkalog.log.types import LogStartOffsetIncrementReason
from kafkalog.log.unified_log import UnifiedLog

COPY_BYTES = 1 << 20  # at once
SWITCH_BYTES = 4 << 20  # that much may be copied while writers wait


class Moving(Protocol):
    """What a move asks of its manager (`LogManager`)."""

    @property
    def creation(self) -> AbstractContextManager[object]: ...

    @property
    def live_log_dirs(self) -> list[str]: ...

    def is_log_dir_online(self, log_dir: str) -> bool: ...

    def get_log(self, topic_partition: TopicPartition, *, is_future: bool = False) -> UnifiedLog | None: ...

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

    def replace_current_with_future_log(self, topic_partition: TopicPartition) -> None: ...


class MoveProgress(NamedTuple):
    """How far a move is: the offset up to which the future log has the current one's records, and the latter's end."""

    copied_to: int
    log_end_offset: int
    bytes_copied: int


class Move:
    """One move; used once, by one thread."""

    def __init__(self, manager: Moving, topic_partition: str | TopicPartition, log_dir: str | os.PathLike[str]) -> None:
        """LogDirNotFoundException; KafkaStorageException when the directory is offline."""
        self._manager = manager
        self._partition = names.partition_of(topic_partition)
        self._log_dir = os.path.abspath(os.fspath(log_dir))
        if not manager.is_log_dir_online(self._log_dir):
            raise KafkaStorageException(f"{self._partition} can not be moved: {self._log_dir} is offline")
        self._bytes = 0
        self._truncations = -1

    def run(self, progress: Callable[[MoveProgress], object] | None = None) -> UnifiedLog:
        """The partition's log in its new place."""
        source = self._source()
        if source.parent_dir == self._log_dir:
            return source
        future = self._future_of(source)
        while True:
            self._begin(source, future)
            while self._left(source, future) > SWITCH_BYTES and self._copy(source, future):
                if progress is not None:
                    progress(MoveProgress(future.log_end_offset, source.log_end_offset, self._bytes))
            if self._switch(source, future):
                return future

    def _source(self) -> UnifiedLog:
        source = self._manager.get_log(self._partition)
        if source is None:
            raise UnknownTopicOrPartitionException(
                f"no partition {self._partition} in {', '.join(self._manager.live_log_dirs)}"
            )
        return source

    def _future_of(self, source: UnifiedLog) -> UnifiedLog:
        manager, partition = self._manager, self._partition
        left = manager.get_log(partition, is_future=True)
        if left is not None and left.parent_dir != self._log_dir:
            Lines("kafkalog.manager", left.parent_dir, partition).warning("an unfinished move to here is given up")
            manager.async_delete(partition, is_future=True)
        return manager.get_or_create_log(
            partition, is_new=True, is_future=True, topic_id=source.topic_id, log_dir=self._log_dir
        )

    def _begin(self, source: UnifiedLog, future: UnifiedLog) -> None:
        """Makes the future log a beginning of the current one, or empty."""
        if self._truncations == source.local_log.truncations:
            return
        known = self._truncations < 0 and _goes_on(source, future)
        self._truncations = source.local_log.truncations
        if not known:
            future.truncate_fully_and_start_at(source.log_start_offset)

    def _left(self, source: UnifiedLog, future: UnifiedLog) -> int:
        return source.size - future.size if future.log_end_offset < source.log_end_offset else 0

    def _copy(self, source: UnifiedLog, future: UnifiedLog) -> bool:
        """One piece; False when there is none, or the current log was truncated."""
        start = source.log_start_offset
        if future.log_end_offset < start:  # deleted behind us
            future.truncate_fully_and_start_at(start)
        found = source.read(future.log_end_offset, COPY_BYTES).records
        data = found.to_bytes()
        if not data or self._truncations != source.local_log.truncations:
            return False
        future.append_as_follower(data, INT_MAX)
        self._bytes += len(data)
        return True

    def _switch(self, source: UnifiedLog, future: UnifiedLog) -> bool:
        """False when the current log was truncated meanwhile."""
        manager = self._manager
        future.flush(True)  # most of it before writers wait
        with manager.creation:
            if manager.get_log(self._partition) is not source:
                raise IllegalStateException(f"{self._partition} was deleted or moved by somebody else meanwhile")
            with source.lock:
                source.settle()
                while self._copy(source, future):
                    pass
                if self._truncations != source.local_log.truncations:
                    return False
                future.maybe_increment_log_start_offset(
                    source.log_start_offset, LogStartOffsetIncrementReason.LEADER_OFFSET_INCREMENTED
                )
                assert future.log_end_offset == source.log_end_offset, (source, future)
                future.flush(True)
                manager.replace_current_with_future_log(self._partition)
        return True


def _goes_on(source: UnifiedLog, future: UnifiedLog) -> bool:
    """Whether what the future log has last is what the current log has there."""
    end = future.log_end_offset
    if future.is_empty or end > source.log_end_offset or end <= source.log_start_offset:
        return False
    last = max(end - 1, future.log_start_offset)
    ours, theirs = future.read(last, 1), source.read(last, 1)
    return bool(ours.records.size) and ours.records.to_bytes() == theirs.records.to_bytes()
