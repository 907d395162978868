"""Copies a log's closed segments to the remote tier, in order: the copy task of RemoteLogManager.

    the segment is durable -> COPY_SEGMENT_STARTED is durable -> the files are uploaded
    -> COPY_SEGMENT_FINISHED is durable -> the log learns the new offset

Only after that may retention delete the segment on the disk.  A crash or an error before the end leaves an unfinished
copy.  The next run deletes it, with all its objects, and uploads the segment under another id.

Source class: RemoteLogManager.RLMCopyTask (4.4.0).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._limits import LONG_MAX
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.checkpoints import EpochEntry, LeaderEpochCheckpointFile
from kafkalog.engine.format.names import producer_snapshot_file
from kafkalog.engine.log.types import UNKNOWN_OFFSET
from kafkalog.engine.remote.opening import until
from kafkalog.engine.remote.segment import (
    COPY_SEGMENT_FINISHED,
    COPY_SEGMENT_STARTED,
    DELETE_SEGMENT_FINISHED,
    DELETE_SEGMENT_STARTED,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    TopicIdPartition,
    epochs_of,
)
from kafkalog.engine.remote.storage import LogSegmentData
from kafkalog.errors import KafkalogError, RemoteStorageException, RetriableRemoteStorageException

if TYPE_CHECKING:
    from kafkalog.config import LogConfig
    from kafkalog.engine.files import Clock
    from kafkalog.engine.log.unified_log import UnifiedLog
    from kafkalog.engine.remote.index_cache import RemoteIndexCache
    from kafkalog.engine.remote.metadata_manager import RemoteLogMetadataManager
    from kafkalog.engine.remote.quota import RLMQuotaManager
    from kafkalog.engine.remote.remote_metrics import RemoteTopicMetrics
    from kafkalog.engine.remote.storage import RemoteStorageManager
    from kafkalog.engine.segment.log_segment import LogSegment

_log = Lines("kafkalog.remote")


class OffsetAndEpoch(NamedTuple):
    offset: int
    leader_epoch: int


class EnrichedLogSegment(NamedTuple):
    """A closed segment, and the base offset of the next one."""

    log_segment: LogSegment
    next_segment_offset: int


class CustomMetadataSizeLimitExceededException(RemoteStorageException):
    """The custom metadata of a segment is larger than remote.log.metadata.custom.metadata.max.bytes allows."""


class Tools:
    """The objects that all tasks of a remote tier share."""

    # More than eight parameters: they are passed by name.
    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        indexes: RemoteIndexCache,
        clock: Clock,
        *,
        broker_id: int,
        copy_quota: RLMQuotaManager,
        custom_metadata_max_bytes: int,
        metrics_of: Callable[[str], RemoteTopicMetrics],
        on_copied: Callable[[int], object],
    ) -> None:
        self.storage = storage
        self.metadata = metadata
        self.indexes = indexes
        self.clock = clock
        self.broker_id = broker_id
        self.copy_quota = copy_quota
        self.custom_metadata_max_bytes = custom_metadata_max_bytes
        self.metrics_of = metrics_of
        self.on_copied = on_copied
        self.being_copied: set[RemoteLogSegmentId] = set()

    def update(self, metadata: RemoteLogSegmentMetadata, state: int, custom: bytes | None = None) -> None:
        """Writes an event that changes a segment's state."""
        self.metadata.update_remote_log_segment_metadata(
            RemoteLogSegmentMetadataUpdate(
                metadata.remote_log_segment_id,
                self.clock.milliseconds(),
                metadata.custom_metadata if custom is None else custom,
                type(metadata.state)(state),
                self.broker_id,
            )
        )

    def delete(self, metadata: RemoteLogSegmentMetadata, given_up: threading.Event) -> None:
        """Deletes a segment's objects and then, with the second event, its metadata (deleteRemoteLogSegment)."""
        metrics = self.metrics_of(metadata.topic_id_partition.topic_partition.topic)
        self.update(metadata, DELETE_SEGMENT_STARTED)
        metrics.delete_requests.mark()
        try:
            until(self.storage, given_up).delete_log_segment_data(metadata)
        except RetriableRemoteStorageException:
            raise
        except RemoteStorageException:
            metrics.failed_delete_requests.mark()
            raise
        self.update(metadata, DELETE_SEGMENT_FINISHED)
        self.indexes.remove_all([metadata.remote_log_segment_id.id])
        _log.info("deleted %s from the remote tier", metadata.remote_log_segment_id)


class RLMCopyTask:
    """Copies one log.  Used by one thread at a time."""

    def __init__(self, partition: TopicIdPartition, tools: Tools) -> None:
        self.topic_id_partition = partition
        self._tools = tools
        self.cancelled = threading.Event()
        self.copied_offset: OffsetAndEpoch | None = None
        self._is_log_start_updated = False
        self._log_dir: str | None = None

    def cancel(self) -> None:
        self.cancelled.set()

    def run(self, log: UnifiedLog) -> int:
        """Copies all segments that may be copied; returns how many.

        Failures are logged, and the next run tries again, unless the error comes from the local disk.
        """
        if self.cancelled.is_set():
            return 0
        if log.parent_dir != self._log_dir:
            self.copied_offset, self._is_log_start_updated, self._log_dir = None, False, log.parent_dir
        metrics = self._tools.metrics_of(self.topic_id_partition.topic_partition.topic)
        try:
            return self._copy_segments(log)
        except CustomMetadataSizeLimitExceededException as error:
            metrics.failed_copy_requests.mark()
            _log.error("copying %s has stopped: %s", self.topic_id_partition, error)
            self.cancel()
        except RetriableRemoteStorageException as error:
            tell = _log.info if self.cancelled.is_set() else _log.warning
            tell("copying %s failed and will be tried again: %s", self.topic_id_partition, error)
        except KafkalogError as error:
            if not self.cancelled.is_set():
                metrics.failed_copy_requests.mark()
                _log.error("copying %s failed: %s", self.topic_id_partition, error)
        finally:
            self._tell_lag(log)
        return 0

    def _copy_segments(self, log: UnifiedLog) -> int:
        self._remove_rests()
        if not self._is_log_start_updated:
            log.update_log_start_offset_from_remote_tier(self._log_start_of(log))
            self._is_log_start_updated = True
        if self.copied_offset is None:
            self.copied_offset = find_highest_remote_offset(self._tools.metadata, self.topic_id_partition, log)
            with log.lock:
                if self.cancelled.is_set():
                    return 0  # it may have left the tier meanwhile
                log.update_highest_offset_in_remote_storage(self.copied_offset.offset)
        copied, stable = self.copied_offset.offset, log.last_stable_offset
        if not copied < stable or stable <= 0:
            return 0
        count = 0
        start = max(copied + 1, log.log_start_offset)
        candidates = candidate_log_segments(log, start, stable, self._tools.clock.milliseconds())
        if candidates:
            self._make_durable(log)
        for candidate in candidates:
            if self.cancelled.is_set():
                break
            self._tools.copy_quota.wait_for_room(self.cancelled)
            self._tools.copy_quota.record(candidate.log_segment.size)
            segment_id = RemoteLogSegmentId.generate_new(self.topic_id_partition)
            self._tools.being_copied.add(segment_id)
            try:
                if not self._holds(log, candidate):
                    break  # the log was truncated meanwhile
                count += self._copy_segment(log, candidate, segment_id)
            finally:
                log.offset_being_copied = UNKNOWN_OFFSET
                self._tools.being_copied.discard(segment_id)
        return count

    def _make_durable(self, log: UnifiedLog) -> None:
        """Flushes the records that are copied, and the markers after them that decide their transactions.

        Otherwise, after a power loss, other records could get the offsets of copied ones, and a transaction could lose
        its end.  A broker relies on replicas instead.
        """
        log.flush_snapshot_at(log.active_segment.base_offset)
        log.flush(False)

    def _holds(self, log: UnifiedLog, candidate: EnrichedLogSegment) -> bool:
        """Returns whether the segment still exists and has the same end.

        If so, from now on no truncation removes any of it, nor of a log that replaces this one.
        """
        segment, next_offset = candidate
        with log.lock:
            segments = log.local_log.segments
            following = segments.higher_segment(segment.base_offset)
            if segments.get(segment.base_offset) is not segment or following is None:
                return False
            if self.cancelled.is_set() or log.local_log.is_closed or following.base_offset != next_offset:
                return False
            log.offset_being_copied = next_offset - 1
            return True

    def _log_start_of(self, log: UnifiedLog) -> int:
        return find_log_start_offset(self._tools.metadata, self.topic_id_partition, log)

    def _remove_rests(self) -> None:
        """Deletes unfinished uploads: no task continues them."""
        for each in self._tools.metadata.list_remote_log_segments(self.topic_id_partition):
            if each.state is COPY_SEGMENT_STARTED and each.remote_log_segment_id not in self._tools.being_copied:
                _log.info("the copy of %s is unfinished: its objects are deleted", each.remote_log_segment_id)
                self._tools.delete(each, self.cancelled)

    def _copy_segment(self, log: UnifiedLog, candidate: EnrichedLogSegment, segment_id: RemoteLogSegmentId) -> bool:
        """Copies one segment; returns False if its records were deleted since it was found."""
        tools, segment, next_offset = self._tools, candidate.log_segment, candidate.next_segment_offset
        metrics = tools.metrics_of(self.topic_id_partition.topic_partition.topic)
        epochs = epoch_entries_in_range(log, segment.base_offset, next_offset)
        if not epochs and next_offset <= log.log_start_offset:
            return False
        started = RemoteLogSegmentMetadata(
            segment_id,
            segment.base_offset,
            next_offset - 1,
            segment.largest_timestamp,
            tools.broker_id,
            tools.clock.milliseconds(),
            segment.size,
            epochs_of((entry.epoch, entry.start_offset) for entry in epochs),
            is_txn_idx_empty=segment.txn_index.is_empty,
        ).checked()
        data = self._files_of(log, segment, next_offset)
        tools.metadata.add_remote_log_segment_metadata(started)
        metrics.copy_requests.mark()
        try:
            custom = until(tools.storage, self.cancelled).copy_log_segment_data(started, data)
        except RetriableRemoteStorageException:
            raise
        except KafkalogError:
            self._give_up(started)
            raise
        if custom is not None and len(custom) > tools.custom_metadata_max_bytes:
            self._give_up(started._replace(custom_metadata=custom))
            raise CustomMetadataSizeLimitExceededException(
                f"the custom metadata has {len(custom)} bytes; expected at most {tools.custom_metadata_max_bytes}",
                hint="raise remote.log.metadata.custom.metadata.max.bytes",
            )
        tools.update(started, COPY_SEGMENT_FINISHED, custom)
        metrics.copy_bytes.mark(started.segment_size_in_bytes)
        tools.on_copied(started.segment_size_in_bytes)
        self.copied_offset = OffsetAndEpoch(next_offset - 1, epochs[-1].epoch)
        log.end_copy(next_offset - 1)
        _log.info(
            "copied segment %d of %s to the remote tier as %s", segment.base_offset, log.topic_partition, segment_id.id
        )
        return True

    def _give_up(self, metadata: RemoteLogSegmentMetadata) -> None:
        try:
            self._tools.delete(metadata, self.cancelled)
        except RemoteStorageException as error:
            _log.info("the objects of %s are deleted later: %s", metadata.remote_log_segment_id, error)

    @staticmethod
    def _files_of(log: UnifiedLog, segment: LogSegment, next_offset: int) -> LogSegmentData:
        files = log.context.files
        snapshot = producer_snapshot_file(log.dir, next_offset)
        if not files.exists(snapshot):
            raise RemoteStorageException(
                "the producer snapshot at the segment's end, which is copied with it, does not exist",
                path=snapshot,
                hint=f"close the store; `kafkalog recover --from-start --yes {log.parent_dir} {log.topic_partition}` "
                "creates it",
            )
        segment.offset_index.flush()  # its entries must be in the file
        segment.time_index.flush()
        txn = segment.txn_index.path
        epochs = epoch_entries_in_range(log, -1, next_offset)
        return LogSegmentData(
            segment.log.path,
            segment.offset_index.path,
            segment.time_index.path,
            None if segment.txn_index.is_empty or not files.exists(txn) else txn,
            snapshot,
            LeaderEpochCheckpointFile("leader-epoch-checkpoint", create=False).encode(epochs),
        )

    def _tell_lag(self, log: UnifiedLog) -> None:
        if self.cancelled.is_set():
            return
        left = log.only_local_log_segments
        metrics = self._tools.metrics_of(self.topic_id_partition.topic_partition.topic)
        size = max(0, sum(segment.size for segment in left) - (log.active_segment.size if left else 0))
        metrics.copy_lag(self.topic_id_partition.topic_partition.partition, size, max(0, len(left) - 1))


# --- what may be copied ------------------------------------------------------------------------------------


def candidate_log_segments(
    log: UnifiedLog, from_offset: int, last_stable_offset: int, now_ms: int
) -> list[EnrichedLogSegment]:
    """Returns the closed segments whose records are all decided, in order, up to the first that must wait
    (remote.copy.lag)."""
    with log.lock:  # waits for a roll to finish, so that the snapshot after its segment exists
        segments = log.log_segments(from_offset, LONG_MAX)
    found: list[EnrichedLogSegment] = []
    total, behind = sum(segment.size for segment in segments), 0
    for segment, following in pairwise(segments):
        if following.base_offset > last_stable_offset:
            continue
        behind += segment.size
        if not _may_be_copied(log.config, segment, now_ms, total - behind):
            break
        found.append(EnrichedLogSegment(segment, following.base_offset))
    return found


def _may_be_copied(config: LogConfig, segment: LogSegment, now_ms: int, bytes_behind: int) -> bool:
    lag_ms, lag_bytes = config.effective_remote_copy_lag_ms, config.effective_remote_copy_lag_bytes
    if lag_ms == 0 or lag_bytes == 0:
        return True
    if lag_ms > 0:
        age_ms = now_ms - segment.largest_timestamp
        if age_ms < 0 or age_ms >= lag_ms:
            return True
    return lag_bytes > 0 and bytes_behind >= lag_bytes


def epoch_entries_in_range(log: UnifiedLog, start: int, end: int) -> list[EpochEntry]:
    """LeaderEpochFileCache.epochEntriesInRange: the entries of [start, end); the first one begins at `start`."""
    return log.leader_epoch_cache.entries_in_range(start, end)


def find_highest_remote_offset(
    metadata: RemoteLogMetadataManager, partition: TopicIdPartition, log: UnifiedLog
) -> OffsetAndEpoch:
    """Returns the last copied offset of the log's own history, and its epoch; (-1, -1) if nothing was copied."""
    for entry in reversed(log.leader_epoch_cache.entries):
        highest = metadata.highest_offset_for_epoch(partition, entry.epoch)
        if highest is not None:
            epoch, end = log.leader_epoch_cache.end_offset_for(entry.epoch, log.log_end_offset)
            return OffsetAndEpoch(end - 1, epoch) if end <= highest else OffsetAndEpoch(highest, entry.epoch)
    return OffsetAndEpoch(-1, -1)


def lost_end(
    metadata: RemoteLogMetadataManager, partition: TopicIdPartition, log: UnifiedLog, epoch: int
) -> int | None:
    """Returns the tier's last offset of a log whose end the disk has lost; None if it has lost nothing.

    `epoch` is that of `find_highest_remote_offset`.  Records that are appended then would get offsets that other
    records have in the tier, in that leader epoch.
    """
    known, latest = metadata.highest_offset_for_epoch(partition, epoch), log.leader_epoch_cache.latest_epoch
    if latest is None:  # the epochs are lost, or there never were any
        segments = metadata.list_remote_log_segments(partition)
        known = max((each.end_offset for each in segments if each.state is COPY_SEGMENT_FINISHED), default=None)
    return known if known is not None and latest in (None, epoch) and known >= log.log_end_offset else None


def find_log_start_offset(metadata: RemoteLogMetadataManager, partition: TopicIdPartition, log: UnifiedLog) -> int:
    """Returns the first readable offset of the oldest remote segment, or the local start if there is none.

    A broker also counts segments that are being deleted, or are below the first epoch that the log knows, and sends
    readers there.
    """
    for entry in log.leader_epoch_cache.entries:
        for each in metadata.list_remote_log_segments(partition, entry.epoch):
            if each.state is COPY_SEGMENT_FINISHED and each.end_offset >= entry.start_offset:
                return max(each.start_offset, entry.start_offset)
    return log.local_log_start_offset


def restore_leader_epochs(log: UnifiedLog) -> None:
    """Restores leader epochs that the checkpoint lacks at a log's beginning from its batches.

    Without them, nothing of that part could be copied.  A crash can lose the log start offset, and leave epochs that
    begin after it.
    """
    first, start, found = log.leader_epoch_cache.earliest_entry, log.log_start_offset, list[EpochEntry]()
    end = log.log_end_offset if first is None else first.start_offset
    for segment in log.log_segments(start, end) if start < end else ():
        for batch in segment.log.batches():
            if batch.base_offset < end and batch.leader_epoch > (found[-1].epoch if found else -1):
                found.append(EpochEntry(batch.leader_epoch, max(batch.base_offset, start)))
    if found:
        log.leader_epoch_cache.begin_with(found)
