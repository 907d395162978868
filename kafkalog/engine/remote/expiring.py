"""Retention in the remote tier by log start offset, by time, and by the size of both tiers: the expiration task.

Segments are deleted oldest first, epoch by epoch of the log's own history.  The log start offset moves before an object
is deleted, so no reader is sent to a deleted object.  Segments of epochs that the log has forgotten are deleted as
well.

Source class: RemoteLogManager.RLMExpirationTask (4.4.0).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkalog.engine.files.lines import Lines
from kafkalog.engine.remote.copying import Tools, find_highest_remote_offset
from kafkalog.engine.remote.lineage import filtered_epochs, is_within_leader_epochs
from kafkalog.engine.remote.segment import (
    COPY_SEGMENT_FINISHED,
    DELETE_SEGMENT_FINISHED,
    DELETE_SEGMENT_STARTED,
    Epochs,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from kafkalog.errors import KafkalogError

if TYPE_CHECKING:
    from kafkalog.engine.log.unified_log import UnifiedLog

_log = Lines("kafkalog.remote")


class RLMExpirationTask:
    """Retention of one log's remote segments.  Used by one thread at a time."""

    def __init__(self, partition: TopicIdPartition, tools: Tools) -> None:
        self.topic_id_partition = partition
        self._tools = tools
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()

    def run(self, log: UnifiedLog) -> int:
        """Deletes expired segments; returns how many.  Failures are logged, and the next run tries again."""
        try:
            return self.cleanup_expired_remote_log_segments(log)
        except KafkalogError as error:
            if not self.cancelled.is_set():
                _log.warning(
                    "retention of %s in the remote tier failed and will be tried again: %s",
                    self.topic_id_partition,
                    error,
                )
            return 0

    def cleanup_expired_remote_log_segments(self, log: UnifiedLog) -> int:
        if self.cancelled.is_set():
            return 0
        tools, partition = self._tools, self.topic_id_partition
        number = partition.topic_partition.partition
        metrics = tools.metrics_of(partition.topic_partition.topic)
        every = tools.metadata.list_remote_log_segments(partition)
        metrics.set("RemoteLogMetadataCount", number, len(every))
        stored = sum(
            each.segment_size_in_bytes
            for each in every
            if each.state in (COPY_SEGMENT_FINISHED, DELETE_SEGMENT_STARTED)
        )
        metrics.set("RemoteLogSizeBytes", number, stored)
        if not every:
            return 0
        epochs = filtered_epochs([(entry.epoch, entry.start_offset) for entry in log.leader_epoch_cache.entries])
        if log.highest_offset_in_remote_storage < 0:
            log.update_highest_offset_in_remote_storage(
                find_highest_remote_offset(tools.metadata, partition, log).offset
            )
        rules = _Rules(log, self._excess(log, epochs), tools.clock.milliseconds())
        doomed = self._doomed(log, epochs, rules)
        if doomed is None:
            return 0
        if rules.log_start_offset is not None:
            log.update_log_start_offset_from_remote_tier(rules.log_start_offset)
        deleted = self._delete(doomed + self._half_deleted(every, doomed), lambda each: True)
        earliest = log.leader_epoch_cache.earliest_entry
        if earliest is not None:
            older = {epoch for each in every for epoch, _ in each.segment_leader_epochs if epoch < earliest.epoch}
            forgotten = [
                each
                for epoch in sorted(older)
                for each in tools.metadata.list_remote_log_segments(partition, epoch)
                if each.state is not DELETE_SEGMENT_FINISHED
            ]
            first = earliest.epoch
            deleted += self._delete(
                list(dict.fromkeys(forgotten)),
                lambda each: all(epoch < first for epoch, _ in each.segment_leader_epochs),
            )
        return deleted

    @staticmethod
    def _half_deleted(
        every: list[RemoteLogSegmentMetadata], doomed: list[RemoteLogSegmentMetadata]
    ) -> list[RemoteLogSegmentMetadata]:
        """Returns segments whose deletion a failed upload or a crash left unfinished.

        A broker deletes them together with the segments before them.
        """
        return [each for each in every if each.state is DELETE_SEGMENT_STARTED and each not in doomed]

    def _delete(
        self, doomed: list[RemoteLogSegmentMetadata], may_go: Callable[[RemoteLogSegmentMetadata], bool]
    ) -> int:
        metrics = self._tools.metrics_of(self.topic_id_partition.topic_partition.topic)
        number = self.topic_id_partition.topic_partition.partition
        left = [each for each in doomed if may_go(each) and each.remote_log_segment_id not in self._tools.being_copied]
        count = 0
        while left:
            metrics.delete_lag(number, sum(each.segment_size_in_bytes for each in left), len(left))
            if self.cancelled.is_set():
                return count
            self._tools.delete(left.pop(0), self.cancelled)
            count += 1
        metrics.delete_lag(number, 0, 0)
        return count

    def _doomed(self, log: UnifiedLog, epochs: Epochs, rules: _Rules) -> list[RemoteLogSegmentMetadata] | None:
        """Returns the segments to delete, oldest first; None if the task was cancelled."""
        doomed: dict[RemoteLogSegmentMetadata, None] = {}
        for epoch, _ in epochs:
            for each in self._tools.metadata.list_remote_log_segments(self.topic_id_partition, epoch):
                if self.cancelled.is_set():
                    return None
                if each.remote_log_segment_id in self._tools.being_copied:
                    return list(doomed)
                if each.state is DELETE_SEGMENT_STARTED:
                    doomed[each] = None
                    continue
                if each.state is DELETE_SEGMENT_FINISHED or each in doomed:
                    continue
                goes, is_valid = rules.is_below_start(each, epochs), False
                if not goes:
                    is_valid = is_within_leader_epochs(each, log.log_end_offset, epochs)
                    goes = is_valid and (rules.is_too_old(each) or rules.is_too_much(each))
                if goes:
                    doomed[each] = None
                elif is_valid:
                    return list(doomed)
        return list(doomed)

    @staticmethod
    def _counts(each: RemoteLogSegmentMetadata, log: UnifiedLog) -> bool:
        """Returns whether a segment counts for the size: not if it is below the log start, since it is deleted anyway.

        A broker counts it, and therefore deletes too much.
        """
        return each.end_offset >= log.log_start_offset

    def _excess(self, log: UnifiedLog, epochs: Epochs) -> int:
        """Returns by how many bytes both tiers together exceed retention.bytes."""
        keeps = log.config.retention_bytes
        if keeps < 0:
            return 0
        local = sum(segment.size for segment in log.only_local_log_segments)
        valid: dict[RemoteLogSegmentMetadata, None] = {}
        for epoch, _ in epochs:
            for each in self._tools.metadata.list_remote_log_segments(self.topic_id_partition, epoch):
                if (
                    each.state is COPY_SEGMENT_FINISHED
                    and self._counts(each, log)
                    and is_within_leader_epochs(each, log.log_end_offset, epochs)
                ):
                    valid[each] = None
        return max(0, local + sum(each.segment_size_in_bytes for each in valid) - keeps)


class _Rules:
    """RemoteLogRetentionHandler: its methods are called once for each segment, oldest first."""

    def __init__(self, log: UnifiedLog, excess_bytes: int, now_ms: int) -> None:
        self._start = log.log_start_offset
        self._excess = excess_bytes
        retention_ms = log.config.retention_ms
        until = now_ms - retention_ms
        self._until_ms = until if retention_ms > -1 and until >= 0 else None
        self.log_start_offset: int | None = None  # the log start offset after the deletion

    def _goes(self, metadata: RemoteLogSegmentMetadata) -> bool:
        self.log_start_offset = max(self.log_start_offset or 0, metadata.end_offset + 1)
        return True

    def is_below_start(self, metadata: RemoteLogSegmentMetadata, epochs: Epochs) -> bool:
        """Returns whether the whole segment is below the log start, and no epoch of it is later than the log's first
        one."""
        if not epochs:
            return False
        first = epochs[0][0]
        return metadata.end_offset < self._start and all(epoch <= first for epoch, _ in metadata.segment_leader_epochs)

    def is_too_old(self, metadata: RemoteLogSegmentMetadata) -> bool:
        if self._until_ms is None or metadata.max_timestamp_ms >= self._until_ms:
            return False
        self._excess = max(0, self._excess - metadata.segment_size_in_bytes)
        return self._goes(metadata)

    def is_too_much(self, metadata: RemoteLogSegmentMetadata) -> bool:
        if self._excess <= 0 or self._excess < metadata.segment_size_in_bytes:
            return False
        self._excess -= metadata.segment_size_in_bytes
        return self._goes(metadata)
