"""PartitionState: the state of one partition, and the steps that appends, retention and truncation share.

It adds to the offsets (`offsets`): the producers, the topic id's file, rolls and flushes. `append`, `retention` and
`list_offsets` use a PartitionState; `UnifiedLog` is one, with opening and closing and a public API. It does not know
incoming batches, policies, or who opens and closes the log.

Lock: `lock` is Kafka's `lock`, one reentrant lock per partition. It guards every change of the segments, the offsets,
the producer state and the epoch cache. Readers take no lock: LogSegments, LogOffsetMetadata and the epoch entries are
replaced as a whole, never changed in place. Syncs run outside the lock.

Where things are: `roll_now` rolls (`append.segment_for` decides when). `offsets` moves the high watermark.
ProducerStateManager follows transactions; its changes come with the commit of an append or by `rebuild_producer_state`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from kafkalog.engine.format import values
from kafkalog.engine.format.names import DELETED_FILE_SUFFIX, producer_snapshot_file
from kafkalog.engine.log import replay
from kafkalog.engine.log.group_sync import GroupSync
from kafkalog.engine.log.offsets import PartitionOffsets
from kafkalog.engine.log.partition_metadata_file import PartitionMetadataFile
from kafkalog.engine.log.tier import Tier
from kafkalog.engine.log.verification import VerificationGuard
from kafkalog.engine.segment.log_segment import LogSegment
from kafkalog.errors import ClosedChannelException, KafkaStorageException

SENTINEL = VerificationGuard.SENTINEL


class PartitionState(PartitionOffsets):
    """One partition's segments, offsets, epochs, producers and topic id."""

    partition_metadata_file: PartitionMetadataFile | None = None
    group_sync: GroupSync
    tier: Tier | None = None  # the remote tier; its manager sets it
    # Whether a rolled segment is synced before the next one is written to. Kafka leaves that to the scheduler. A power
    # loss may then lose the end of one segment and keep the next: a hole in the log.
    flushes_rolls = False
    # The log's size in percent of retention.bytes at the last retention run; for the metric of this name.
    retention_size_in_percent = 0

    @property
    def is_empty(self) -> bool:
        return self.log_start_offset == self.log_end_offset

    @property
    def size(self) -> int:
        """The bytes of all segments' .log files."""
        return self.local_log.segments.size_in_bytes

    @property
    def only_local_log_segments(self) -> list[LogSegment]:
        """The segments that the remote tier does not have."""
        highest = self.highest_offset_in_remote_storage
        return [segment for segment in self.local_log.segments.values() if segment.base_offset > highest]

    @property
    def number_of_segments(self) -> int:
        return self.local_log.segments.number_of_segments

    @property
    def log_start_offset_to_checkpoint(self) -> int | None:
        """The log start, if it is inside the first segment or in the remote tier.

        None if the base of the first segment is enough to find it when the log is opened.
        """
        first_base = self.local_log.segments.first_segment_base_offset
        start = self.log_start_offset
        if self.remote_log_enabled:
            return start
        return start if first_base is not None and start > first_base else None

    @property
    def active_segment(self) -> LogSegment:
        return self.local_log.segments.active_segment

    def log_segments(self, from_offset: int | None = None, to_offset: int | None = None) -> list[LogSegment]:
        """Returns the segments, or those that hold offsets in [from, to)."""
        segments = self.local_log.segments
        if from_offset is None or to_offset is None:
            return list(segments.values())
        return list(segments.values(from_offset, to_offset))

    def non_active_log_segments_from(self, from_offset: int) -> list[LogSegment]:
        return list(self.local_log.segments.non_active_log_segments_from(from_offset))

    def maybe_flush_metadata_file(self) -> None:
        """Writes partition.metadata if the topic id is not on disk yet."""
        file = self.partition_metadata_file
        if file is not None and file.dirty_topic_id is not None and not self.local_log.is_closed:
            file.maybe_flush()

    # --- producers ---------------------------------------------------------------------------------------

    def remove_expired_producers(self, current_time_ms: int) -> None:
        with self.lock:
            self.producer_state_manager.remove_expired_producers(current_time_ms)

    def _rebuild_producer_state(self, last_offset: int) -> None:
        self.local_log.check_if_closed()
        replay.rebuild_producer_state(
            self.producer_state_manager, self.local_log.segments, self.log_start_offset, last_offset, False
        )

    def verification_guard(self, producer_id: int) -> VerificationGuard:
        with self.lock:
            entry = self.producer_state_manager.verification_state_entry(producer_id)
            return SENTINEL if entry is None else entry.verification_guard

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        with self.lock:
            entry = self.producer_state_manager.last_entry(producer_id)
            return (
                entry is not None
                and entry.current_txn_first_offset is not None
                and entry.producer_epoch == producer_epoch
            )

    def delete_producer_snapshots(self, segments: Iterable[LogSegment], async_delete: bool) -> None:
        """Deletes the snapshots at the segments' bases. The caller holds the lock."""
        self.producer_state_manager.delete_snapshots_at([segment.base_offset for segment in segments], async_delete)

    # --- roll and flush ----------------------------------------------------------------------------------

    def roll(self, expected_next_offset: int = 0) -> LogSegment:
        """Opens the next segment and writes a producer snapshot at its base.

        Flushes the log below it, later or now.
        """
        with self.lock, self.local_log.guard("rolling log segment"):
            self.settle()
            return self.roll_now(expected_next_offset)

    def roll_now(self, expected_next_offset: int = 0) -> LogSegment:
        """Rolls like `roll`. The caller holds the lock and has settled."""
        return self.whole(lambda: self._roll(expected_next_offset), is_undone=self._is_not_half_rolled)

    def _is_not_half_rolled(self) -> bool:
        """Returns whether, after a failed roll, the last segment accepts appends, even if it is the old one."""
        return not self.active_segment.log.path.endswith(DELETED_FILE_SUFFIX)

    def _roll(self, expected_next_offset: int) -> LogSegment:
        new_segment = self.local_log.roll(expected_next_offset, is_again=self.is_again)
        psm = self.producer_state_manager
        psm.update_map_end_offset(new_segment.base_offset)
        try:
            snapshot = psm.take_snapshot(False)
        except OSError as error:
            if not self.local_log.log_dir_failure_channel.passes(error):
                raise
            snapshot = None  # the roll is valid: a load then replays more, from the snapshot before
            self.context.logger.info("no producer snapshot at the roll to %d: %s", new_segment.base_offset, error)
        self.local_log.names_unsynced = True
        self.update_high_watermark_with_log_end_offset()
        base_offset = new_segment.base_offset

        truncations = self.local_log.truncations

        def flush_rolled() -> None:
            if snapshot is not None:
                self._flush_producer_state_snapshot(snapshot)
            self._flush(base_offset, False, truncations)

        def flush_log() -> None:
            try:
                if not self.local_log.is_closed:
                    flush_rolled()
            except (KafkaStorageException, ClosedChannelException):
                if not self.local_log.is_closed:  # closing a log flushes it
                    raise

        if self.flushes_rolls:
            flush_rolled()
        else:
            self.context.scheduler.schedule_once("flush-log", flush_log)
        return new_segment

    def finish_append(self, last_offset: int) -> None:
        """Does what can wait until an append that ends at `last_offset` has happened. Called under the lock."""
        if self.first_unstable_is_rough:
            self.maybe_increment_first_unstable_offset()
        if last_offset + 1 - self.local_log.recovery_point >= self.context.config.flush_messages:
            self._flush(self.log_end_offset, False, self.local_log.truncations)

    def flush(self, force_flush_active_segment: bool) -> None:
        """Syncs up to the log end, and an empty active segment if forced. Moves the recovery point there."""
        self.settle()
        truncations = self.local_log.truncations
        self._flush(self.log_end_offset, force_flush_active_segment, truncations)

    def flush_appended(self, offset: int) -> None:
        """Makes everything in the log durable, at least what was appended below `offset`.

        All callers that wait share one sync.

        Unlike `flush`, it syncs only the records of the active segment, once its name is durable. Recovery begins at
        the segment of the recovery point, and rebuilds index entries that a power loss removed. A roll and a close sync
        the indexes.
        """
        self.settle()
        if self.lock.is_mine():  # this thread holds the lock: do not wait for another sync
            self._flush(self.log_end_offset, False, self.local_log.truncations)
        else:
            self.group_sync.until(partial(self._is_flushed, offset), self._sync_appended)

    def _is_flushed(self, offset: int) -> bool:
        """Returns whether everything below `offset` is on the disk, or was truncated meanwhile."""
        self.local_log.check_owner()
        return self.local_log.recovery_point >= min(offset, self.log_end_offset)

    def _sync_appended(self) -> None:
        """Syncs up to the log end."""
        local = self.local_log
        truncations, end = local.truncations, self.log_end_offset
        active = local.active_segment  # read after the end: everything below the end is in this segment, or before it
        # Invariant: a recovery point inside a segment says that everything before it is synced, and the segment's name
        # too.
        if active.base_offset < local.recovery_point and not local.names_unsynced:
            with local.guard("flushing log"):
                if self._sync_active(active, end, truncations):
                    return
        self._flush(self.log_end_offset, False, local.truncations)

    def _sync_active(self, active: LogSegment, end: int, truncations: int) -> bool:
        """Returns whether the records of the active segment were synced, and nothing else needed a sync."""
        local = self.local_log
        try:
            local.flush_data(active)
        except ClosedChannelException:
            return False  # it was deleted, or the directory is being renamed: `_flush` tries again
        with self.lock:
            if truncations != local.truncations or active is not local.active_segment:
                return False
            local.mark_flushed(end)
            return True

    def flush_upto_offset_exclusive(self, offset: int) -> None:
        offset = values.offset(offset)
        self.settle()
        self._flush(offset, False, self.local_log.truncations)

    def _flush(self, offset: int, including_offset: bool, truncations: int) -> None:
        """Syncs up to `offset`. `truncations`: the number of truncations when `offset` was a place in the log.

        After a truncation during a flush, Kafka may leave the recovery point above the end, so that the next append
        counts as flushed. A log of one replica, which promises what it flushed, does not.
        """
        local = self.local_log
        promises = self.high_watermark_follows
        with local.guard("flushing log"):
            while True:
                if promises and truncations != local.truncations:
                    # The records to be synced are truncated, and others may have taken their offsets since.
                    truncations = local.truncations
                    offset = min(offset, self.log_end_offset)
                flush_offset = offset + 1 if including_offset else offset
                if flush_offset <= local.recovery_point and not local.names_unsynced:
                    return
                active = local.active_segment
                try:
                    local.flush(flush_offset)
                    if flush_offset <= local.recovery_point:
                        return
                except ClosedChannelException:  # a segment was deleted, or the directory is being renamed
                    local.check_if_closed()
                    self.settle()
                    with self.lock:
                        local.flush(flush_offset)
                    continue
                with self.lock:
                    if truncations == local.truncations or not promises:
                        if active is not local.active_segment:
                            # It was rolled meanwhile, and trimmed during this sync: the flush after that roll syncs it.
                            offset = min(offset, active.base_offset)
                        local.mark_flushed(min(offset, self.log_end_offset) if promises else offset)
                        assert not promises or local.recovery_point <= self.log_end_offset, self
                        return

    def flush_snapshot_at(self, offset: int) -> None:
        """Syncs the producer snapshot at an offset, if there is one."""
        self._flush_producer_state_snapshot(producer_snapshot_file(self.context.dir, offset))

    def _flush_producer_state_snapshot(self, snapshot: str) -> None:
        files = self.context.files
        with self.local_log.guard("flushing producer state snapshot"):
            try:
                files.sync_file(snapshot)
            except FileNotFoundError:
                pass  # retention or a truncation deleted it meanwhile
