"""UnifiedLog: one partition as leaders, followers and readers use it: opening, closing, and the public methods.

It is a PartitionState (`partition`, which says what `lock` guards, over `offsets`) that is created, closed, disowned,
renamed and deleted here. Longer parts are in separate modules that work on the state: `append`, `retention`,
`list_offsets`; below it are `loader`, `replay`, `replacement`.

States: open, closing, closed, in this order. Closing takes the lock, and so waits for writers; afterwards appends are
refused. Readers hold the files that they read: a running read continues, a new one is refused. In a forked child
process the log does nothing. An interrupt (Ctrl-C) comes before an append's commit or after it. If it stops a change of
several steps, the next operation repeats the change (`whole`, `settle`). A signal handler or a finalizer that runs
during a change is refused, because its thread holds the lock already (`PartitionLock.busy`).

After an I/O error the log directory is offline, and every operation raises KafkaStorageException. Mirrors
org.apache.kafka.storage.internals.log.UnifiedLog (4.4.0).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafkalog._limits import INT_MAX, LONG_MAX
from kafkalog._native.state.log_end import CLOSING, FORKED, OPEN, PartitionLock
from kafkalog.engine.files import Buffer
from kafkalog.engine.files.processes import belongs_here
from kafkalog.engine.format import names, values
from kafkalog.engine.format.batch import MemoryRecords
from kafkalog.engine.format.checkpoints import EpochEntry
from kafkalog.engine.format.partition_metadata import checked_topic_id
from kafkalog.engine.format.snapshots import ProducerSnapshotEntry
from kafkalog.engine.log import list_offsets, log_metrics, retention
from kafkalog.engine.log.append import (
    CLIENT_TERMS,
    COORDINATOR,
    COORDINATOR_TERMS,
    FOLLOWER_TERMS,
    AppendTerms,
    append,
    append_row,
    check,
)
from kafkalog.engine.log.context import PartitionContext
from kafkalog.engine.log.damage import Damage
from kafkalog.engine.log.epoch_checkpoint import PartitionEpochCheckpoint
from kafkalog.engine.log.group_sync import GroupSync
from kafkalog.engine.log.leader_epochs import LeaderEpochFileCache
from kafkalog.engine.log.loader import Checkpoints, LogLoader
from kafkalog.engine.log.local_log import LocalLog
from kafkalog.engine.log.partition import PartitionState
from kafkalog.engine.log.partition_metadata_file import PartitionMetadataFile
from kafkalog.engine.log.producer_append import ProducerStateEntry
from kafkalog.engine.log.producers import ProducerStateManager
from kafkalog.engine.log.replacement import Replacement, split_into_cleaned
from kafkalog.engine.log.types import (
    TV_UNKNOWN,
    AppendOrigin,
    FetchIsolation,
    LastRecord,
    LogAppendInfo,
    OffsetAndEpoch,
)
from kafkalog.engine.log.verification import VerificationGuard
from kafkalog.engine.segment.log_segment import LogSegment
from kafkalog.engine.segment.log_segments import LogSegments
from kafkalog.engine.segment.transaction_index import AbortedTxn
from kafkalog.engine.segment.transactions import TransactionFollower
from kafkalog.engine.segment.types import FetchDataInfo, TimestampAndOffset
from kafkalog.errors import (
    ClosedChannelException,
    DiskFull,
    IllegalArgumentException,
    InconsistentTopicIdException,
    InvalidProducerEpochException,
    OffsetOutOfRangeException,
)

if TYPE_CHECKING:
    from kafkalog._native.codec.encode import EncodedBatch
    from kafkalog.config import LogConfig

SENTINEL = VerificationGuard.SENTINEL
CLIENT = AppendOrigin.CLIENT
LOG_END = FetchIsolation.LOG_END
TXN_COMMITTED = FetchIsolation.TXN_COMMITTED


_NO_BYTES = memoryview(b"")


class UnifiedLog(PartitionState):
    """One partition. `create` opens it. Offsets are logical, sizes in bytes, times in milliseconds."""

    def __init__(
        self,
        log_start_offset: int,
        local_log: LocalLog,
        leader_epoch_cache: LeaderEpochFileCache,
        producer_state_manager: ProducerStateManager,
        topic_id: str | None,
    ) -> None:
        super().__init__(log_start_offset, local_log, leader_epoch_cache, producer_state_manager)
        self.group_sync = GroupSync()
        belongs_here(self)
        self.topic_id = topic_id
        self._is_shut_down = False

        interval_ms = self.context.producers.expiration_check_interval_ms
        self.producer_expire_check = self.context.scheduler.schedule(
            "PeriodicProducerExpirationCheck",
            lambda: self.remove_expired_producers(self.context.clock.milliseconds()),
            interval_ms,
            interval_ms,
        )
        try:
            self.partition_metadata_file = PartitionMetadataFile(self.context)
            self._settle_offsets(log_start_offset)
            self._initialize_topic_id(self.partition_metadata_file)
            self.new_metrics()
        except BaseException:
            self.producer_expire_check.cancel()
            raise

    @classmethod
    def create(
        cls,
        context: PartitionContext,
        log_start_offset: int,
        recovery_point: int,
        last_shutdown_clean: bool,
        topic_id: str | None = None,
        remaining_segments: Callable[[int], object] | None = None,
        *,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> UnifiedLog:
        """Opens the partition like `load`.

        An I/O error takes the log directory offline and raises KafkaStorageException.
        """
        context.check_online()
        try:
            return cls.load(
                context, log_start_offset, recovery_point, last_shutdown_clean, topic_id, remaining_segments,
                on_damage=on_damage,
            )  # fmt: skip
        except OSError as error:
            context.raise_offline(f"Error while loading log dir {context.dir}", error)

    @classmethod
    def load(
        cls,
        context: PartitionContext,
        log_start_offset: int,
        recovery_point: int,
        last_shutdown_clean: bool,
        topic_id: str | None = None,
        remaining_segments: Callable[[int], object] | None = None,
        *,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> UnifiedLog:
        """Opens the partition of `context` (created if missing): loads, recovers after an unclean shutdown, repairs.

        `log_start_offset` and `recovery_point` are the checkpoints' values. `remaining_segments` is called with the
        number of segments left to recover. `on_damage` is called before each truncation. If it raises, opening fails
        and nothing is truncated. Raises OSError; the caller decides whether the log directory goes offline.
        """
        checkpoints = Checkpoints(log_start_offset, recovery_point, last_shutdown_clean)
        segments = LogSegments(context.topic_partition)
        local_log: LocalLog | None = None
        files = context.files
        try:
            if not files.is_dir(context.dir):
                files.mkdirs_synced(context.dir)
            elif not last_shutdown_clean:
                files.sync_dir(context.parent_dir)  # the crash may have come between the two lines above
            epochs = LeaderEpochFileCache(context.topic_partition, PartitionEpochCheckpoint(context), context.scheduler)
            listing = files.listing(context.dir)
            producers = ProducerStateManager(context, present=listing.files)
            loaded = LogLoader(
                context, checkpoints, segments, epochs, producers, remaining_segments,
                listing=listing, on_damage=on_damage,
            ).load()  # fmt: skip
            local_log = LocalLog(context, segments, loaded.recovery_point, loaded.next_offset_metadata)
            log = cls(loaded.log_start_offset, local_log, epochs, producers, topic_id)
            if context.has_one_replica:
                log.follow_log_end()
            return log
        except BaseException:
            segments.close_quietly()
            if local_log is not None:
                local_log.close_quietly()  # otherwise its background tasks would write to its successor
            raise

    # --- properties --------------------------------------------------------------------------------------

    @property
    def dir(self) -> str:
        return self.context.dir

    @property
    def parent_dir(self) -> str:
        return self.context.parent_dir

    @property
    def name(self) -> str:
        return os.path.basename(self.dir)

    @property
    def is_future(self) -> bool:
        """Whether this is a copy that is being built, for a move to another directory."""
        return names.is_future_dir(self.dir)

    @property
    def last_flush_time(self) -> int:
        return self.local_log.last_flush_time

    def update_config(self, new_config: LogConfig) -> LogConfig:
        """Sets a new configuration. Returns the old one."""
        old = self.config
        self.local_log.update_config(new_config)
        return old

    def __repr__(self) -> str:
        topic_id = "" if self.topic_id is None else f", topicId={self.topic_id}"
        return (
            f"Log(dir={self.dir}{topic_id}, topic={self.topic_partition.topic}, "
            f"partition={self.topic_partition.partition}, highWatermark={self.high_watermark}, "
            f"lastStableOffset={self.last_stable_offset}, logStartOffset={self.log_start_offset}, "
            f"logEndOffset={self.log_end_offset})"
        )

    # --- metrics -----------------------------------------------------------------------------------------

    def new_metrics(self) -> None:
        """Adds the log's metrics to the context's registry, under its current names. May be called twice."""
        self.context.metrics.show(self, log_metrics.gauges_of)

    def remove_log_metrics(self) -> None:
        """Removes the log's metrics: it is closed, deleted, or about to be. May be called twice."""
        self.context.metrics.hide(self)

    # --- topic id ----------------------------------------------------------------------------------------

    def _initialize_topic_id(self, file: PartitionMetadataFile) -> None:
        if file.exists:
            found = file.read().topic_id
            if self.topic_id is not None and self.topic_id != found:
                raise self._inconsistent_topic_id(self.topic_id, found)
            self.topic_id = found
        else:
            if self.topic_id is not None:
                file.record(self.topic_id)
            self.context.scheduler.schedule_once("flush-metadata-file", self.maybe_flush_metadata_file)

    def assign_topic_id(self, topic_id: str) -> None:
        """Sets the partition's topic id.

        Raises InconsistentTopicIdException if it has another one, and IllegalArgumentException for an invalid id, with
        which the log could not be opened again.
        """
        topic_id = checked_topic_id(topic_id)
        with self.lock:
            if self.topic_id is not None:
                if self.topic_id != topic_id:
                    raise self._inconsistent_topic_id(topic_id, self.topic_id)
                return
            self.topic_id = topic_id
            file = self.partition_metadata_file
            if file is None:
                self.context.logger.warning("the log is being deleted: its topic id is not written")
            elif not file.exists:
                file.record(topic_id)
                self.context.scheduler.schedule_once("flush-metadata-file", self.maybe_flush_metadata_file)

    def _inconsistent_topic_id(self, given: str, found: str) -> InconsistentTopicIdException:
        return InconsistentTopicIdException(
            f"Tried to assign topic ID {given} to log for topic partition {self.topic_partition},"
            f"but log already contained topic ID {found}"
        )

    # --- appends -----------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: Buffer | EncodedBatch | MemoryRecords,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification_guard: VerificationGuard = SENTINEL,
        transaction_version: int = TV_UNKNOWN,
    ) -> LogAppendInfo:
        """Validates batches, assigns the next offsets and writes them. `records` is not changed.

        A transaction marker needs origin COORDINATOR and an explicit transaction version.
        """
        terms = COORDINATOR_TERMS if origin is COORDINATOR else CLIENT_TERMS
        if origin is not terms.origin or verification_guard is not SENTINEL or transaction_version != TV_UNKNOWN:
            assigns = origin is not AppendOrigin.RAFT_LEADER
            terms = AppendTerms(origin, assigns, verification_guard, transaction_version)
        return append(self, records, leader_epoch, terms)

    def append_row(self, row: tuple[Any, ...], batch_bytes: int) -> int:
        """Appends one record (value, key, headers, timestamp) as a client's plain batch of at most `batch_bytes`.

        Uses the latest leader epoch. Returns the record's offset; -1, with nothing done, if it needs
        `append_as_leader`.
        """
        return append_row(self, row, batch_bytes)

    def append_as_follower(self, records: Buffer | MemoryRecords, leader_epoch: int) -> LogAppendInfo:
        """Writes batches as the leader of `leader_epoch` (an int) sent them, with the offsets in them."""
        return append(self, records, leader_epoch, FOLLOWER_TERMS)

    def check_batch(self, batch: bytes | EncodedBatch, leader_epoch: int) -> None:
        """Raises what `append_as_leader` would raise for a client's batch, because of its size or records.

        A refusal is counted; nothing else changes.
        """
        check(self, batch, leader_epoch)

    # --- reads -------------------------------------------------------------------------------------------

    def read(
        self,
        start_offset: int,
        max_length: int,
        isolation: FetchIsolation = LOG_END,
        min_one_message: bool = True,
    ) -> FetchDataInfo:
        """Returns batches from the one that holds `start_offset` on.

        They have at most `max_length` bytes and end before the end that `isolation` allows. Raises
        OffsetOutOfRangeException below the log start and above the log end.
        """
        if self.unfinished is not None:
            self.settle_to_read()
        if start_offset < self.log_start_offset:
            raise OffsetOutOfRangeException(
                f"Received request for offset {start_offset} for partition {self.topic_partition}, "
                f"but we only have log segments starting from offset: {self.log_start_offset}."
            )
        if isolation is LOG_END:
            bound = self.local_log.next_offset_metadata
        elif isolation is TXN_COMMITTED:
            bound = self._fetch_last_stable_offset_metadata()
        else:
            bound = self.high_watermark_metadata
            if bound[1] < 0:
                bound = self._fetch_high_watermark_metadata()
        try:
            return self.local_log.read(start_offset, max_length, min_one_message, bound, isolation is TXN_COMMITTED)
        except ClosedChannelException as error:  # the segment was deleted meanwhile, or is being renamed
            self._look_again_or_raise(error)
            with self.lock:
                return self.read(start_offset, max_length, isolation, min_one_message)
        except OverflowError:
            raise IllegalArgumentException(f"max_length is {max_length}; expected at most {LONG_MAX} bytes") from None

    def _look_again_or_raise(self, error: ClosedChannelException) -> None:
        """Raises the error of a reader that found a file missing, unless reading again may help.

        It may not if this thread holds the lock, because then nobody can be changing the file.
        """
        self.local_log.check_if_closed()
        if self.lock.is_mine():
            raise error

    def collect_aborted_transactions(self, start_offset: int, upper_bound_offset: int) -> list[AbortedTxn]:
        self.settle_to_read()
        try:
            return self.local_log.collect_aborted_transactions(self.log_start_offset, start_offset, upper_bound_offset)
        except ClosedChannelException as error:  # as in read
            self._look_again_or_raise(error)
            with self.lock:
                return self.collect_aborted_transactions(start_offset, upper_bound_offset)

    def fetch_offset_by_timestamp(self, target_timestamp: int) -> TimestampAndOffset | None:
        """ListOffsets: kafkalog.engine.log.list_offsets describes the special values."""
        self.settle_to_read()
        try:
            return list_offsets.fetch_offset_by_timestamp(self, target_timestamp)
        except ClosedChannelException as error:  # as in read
            self._look_again_or_raise(error)
            with self.lock:
                return self.fetch_offset_by_timestamp(target_timestamp)

    # --- leader epochs -----------------------------------------------------------------------------------

    @property
    def latest_epoch(self) -> int | None:
        return self.leader_epoch_cache.latest_epoch

    def assign_epoch_start_offset(self, leader_epoch: int, start_offset: int) -> None:
        leader_epoch = values.whole(leader_epoch, "leader_epoch", high=INT_MAX)
        start_offset = values.offset(start_offset, "start_offset")
        with self.lock:
            self.settle()
            self.local_log.check_if_closed()
            self.leader_epoch_cache.assign(leader_epoch, start_offset)

    def end_offset_for_epoch(self, leader_epoch: int) -> OffsetAndEpoch | None:
        """Returns the end of the largest epoch at or below `leader_epoch`; None if it is unknown."""
        found = self.leader_epoch_cache.end_offset_for(leader_epoch, self.log_end_offset)
        return None if found.end_offset == -1 else OffsetAndEpoch(found.end_offset, found.epoch)

    @property
    def epoch_entries(self) -> list[EpochEntry]:
        return self.leader_epoch_cache.epoch_entries

    # --- producers ---------------------------------------------------------------------------------------

    def load_producer_state(self, last_offset: int) -> None:
        """Rebuilds the producer state up to `last_offset` and sets the high watermark to the log end."""
        with self.lock:
            self.settle()
            self.whole(lambda: self._load_producer_state(last_offset))

    def _load_producer_state(self, last_offset: int) -> None:
        self._rebuild_producer_state(last_offset)
        self.maybe_increment_first_unstable_offset()
        self.update_high_watermark(self.log_end_offset_metadata)

    def has_late_transaction(self, current_time_ms: int) -> bool:
        return self.producer_state_manager.has_late_transaction(current_time_ms)

    @property
    def producer_id_count(self) -> int:
        return self.producer_state_manager.producer_id_count

    @property
    def active_producers(self) -> Mapping[int, ProducerStateEntry]:
        """The entries by producer id: a copy, taken under the lock."""
        with self.lock:
            return dict(self.producer_state_manager.active_producers)

    @property
    def last_records_of_active_producers(self) -> dict[int, LastRecord]:
        """The last records by producer id at this moment; a cleaner keeps at least the header of their batches."""
        return {
            producer_id: LastRecord(
                entry.last_data_offset if entry.last_data_offset >= 0 else None, entry.producer_epoch
            )
            for producer_id, entry in self.active_producers.items()
        }

    def maybe_start_transaction_verification(
        self, producer_id: int, sequence: int, epoch: int, supports_epoch_bump: bool
    ) -> VerificationGuard:
        """Returns a guard for an append that must be verified first; SENTINEL if a transaction is open already."""
        with self.lock:
            entry = self.producer_state_manager.last_entry(producer_id)
            if entry is not None and epoch < entry.producer_epoch:
                raise InvalidProducerEpochException(
                    f"Epoch of producer {producer_id} is {epoch}, "
                    f"which is smaller than the last seen epoch {entry.producer_epoch}"
                )
            if self.has_ongoing_transaction(producer_id, epoch):
                return SENTINEL
            return self.producer_state_manager.maybe_create_verification_state_entry(
                producer_id, sequence, epoch, supports_epoch_bump
            ).verification_guard

    def take_producer_snapshot(self) -> None:
        with self.lock, self.local_log.guard("taking producer state snapshot", refuses=False):
            self.local_log.check_if_closed()
            self.producer_state_manager.take_snapshot()

    @property
    def latest_producer_state_end_offset(self) -> int:
        return self.producer_state_manager.map_end_offset

    # --- truncation, deletion, replacement ---------------------------------------------------------------

    def batch_around(self, offset: int) -> tuple[int, int] | None:
        """Returns the first and last offset of the batch that a truncation to `offset` would split.

        The batch begins below `offset`, and the truncation would remove it. None if there is none.
        """
        with self.local_log.guard(f"looking for the batch of offset {offset}"), self.lock:
            self.settle()
            self.local_log.check_if_closed()
            segment = self.local_log.segments.floor_segment(offset)
            found = None if segment is None else segment.translate_offset(offset)
            if segment is None or found is None or found.offset >= offset:
                return None
            header = segment.log.first_batch(found.position)
            assert header is not None, found
            return found.offset, header.last_offset

    def decided_across(self, offset: int) -> tuple[int, int] | None:
        """Returns the range of ended transactions that begin below `offset` and end at or after it.

        The range is the first offset of the first transaction and the offset of the last marker. None if there are
        none.
        """
        with self.local_log.guard(f"looking for transactions across offset {offset}"), self.lock:
            self.settle()
            self.local_log.check_if_closed()
            start, open_txns = self.producer_state_manager.open_in_snapshot_up_to(offset) or (0, {})
            follower = TransactionFollower(open_txns)
            parted: list[tuple[int, int]] = []
            for segment in self.log_segments(max(start, self.log_start_offset), self.log_end_offset):
                found = segment.read(max(start, segment.base_offset), INT_MAX)
                for header in () if found is None else found.records.batches():
                    if header.base_offset < offset:
                        follower.observe(header, _NO_BYTES)
                    elif header.is_control and header.producer_id in follower.open:
                        parted.append((follower.open.pop(header.producer_id), header.base_offset))
            return (min(parted)[0], parted[-1][1]) if parted else None

    def truncate_to(self, target_offset: int) -> bool:
        """Removes everything at and above `target_offset`. Returns False if the log ends there or before."""
        target_offset = values.offset(target_offset, "target_offset")
        with self.local_log.guard(f"truncating log to offset {target_offset}"):
            if target_offset < 0:
                raise IllegalArgumentException(
                    f"Cannot truncate partition {self.topic_partition} to a negative offset ({target_offset})."
                )
            self.refuse_without_tier(f"truncate_to({target_offset})")
            if target_offset < self.high_watermark:
                self.context.logger.log(
                    logging.INFO if self.high_watermark_follows else logging.WARNING,
                    "truncating to %d, below high watermark %d",
                    target_offset, self.high_watermark,
                )  # fmt: skip
            with self.lock:
                self.settle()
                if target_offset >= self.log_end_offset:
                    self.leader_epoch_cache.truncate_from_end_async_flush(self.log_end_offset)
                    return False
                self.local_log.check_changeable()
                first_base = self.local_log.segments.first_segment_base_offset
                assert first_base is not None
                if first_base > target_offset:
                    self.truncate_fully_and_start_at(target_offset)
                else:
                    self.whole(lambda: self._truncate_to(target_offset))
                return True

    def _truncate_to(self, target_offset: int) -> None:
        deleted = self.local_log.truncate_to(target_offset)
        self.delete_producer_snapshots(deleted, True)
        self.leader_epoch_cache.truncate_from_end_async_flush(target_offset)
        self.log_start_offset = min(target_offset, self.log_start_offset)
        self._rebuild_producer_state(target_offset)
        self.local_log.names_unsynced = True
        if self.high_watermark >= self.log_end_offset:
            self.update_high_watermark(self.log_end_offset_metadata)
        assert max(self.log_start_offset, self.high_watermark, self.recovery_point) <= self.log_end_offset, self

    def truncate_fully_and_start_at(self, new_offset: int, log_start_offset: int | None = None) -> None:
        """Deletes all records.

        The log continues at `new_offset`, and starts there or at the lower `log_start_offset`.
        """
        new_offset = values.offset(new_offset, "new_offset", low=0)
        if log_start_offset is not None:
            log_start_offset = values.offset(log_start_offset, "log_start_offset", low=0)
            if log_start_offset > new_offset:
                raise IllegalArgumentException(
                    f"log_start_offset is {log_start_offset}; expected at most new_offset, {new_offset}"
                )
        with self.local_log.guard("truncating the entire log"), self.lock:
            self.refuse_without_tier(f"truncate_fully_and_start_at({new_offset})")
            self.settle()
            self.local_log.check_changeable()
            self.whole(
                lambda: self._truncate_fully(new_offset, new_offset if log_start_offset is None else log_start_offset)
            )

    def begin_where(self, log: UnifiedLog) -> None:
        """Deletes all records; the log continues at the first local offset of another log of the partition.

        It gets the start offset of that log, and its producers as they were there. The caller holds the other log's
        lock.
        """
        offset, start = log.first_local_offset, log.log_start_offset
        with self.local_log.guard("beginning a copy"), self.lock:
            producers = log.producer_state_manager.entries_in_snapshot(offset)
            self.settle()
            self.local_log.check_changeable()
            self.whole(lambda: self._truncate_fully(offset, start, producers))

    def _truncate_fully(
        self, new_offset: int, log_start_offset: int, producers: Sequence[ProducerSnapshotEntry] = ()
    ) -> None:
        self.local_log.truncate_fully_and_start_at(new_offset, is_again=self.is_again)
        self.leader_epoch_cache.clear_and_flush()
        self.producer_state_manager.truncate_fully_and_start_at(new_offset)
        self.producer_state_manager.load_entries(producers, self.context.clock.milliseconds())
        self.log_start_offset = log_start_offset
        if self.remote_log_enabled:
            self.local_log_start_offset = new_offset
        self._rebuild_producer_state(new_offset)
        self.local_log.names_unsynced = True
        self.update_high_watermark(self.log_end_offset_metadata)

    def skip_to(self, offset: int) -> None:
        """Makes the log end at `offset`, after a gap; a new segment begins there.

        A log has the same form if the records before its empty last segment were lost. Does nothing for an offset at or
        below the end.
        """
        offset = values.offset(offset, "offset")
        with self.local_log.guard("skipping offsets"), self.lock:
            self.settle()
            self.local_log.check_changeable()
            if offset > self.log_end_offset:
                self.whole(lambda: self._skip_to(offset))

    def _skip_to(self, offset: int) -> None:
        if offset > self.log_end_offset:
            self._roll(offset)
            self.local_log.update_log_end_offset(offset)
        self.update_high_watermark(self.log_end_offset_metadata)

    def delete_old_segments(self) -> int:
        """Applies retention by the topic's policy. Returns the number of segments chosen.

        If there is nothing to delete, it does not matter whether the directory is offline.
        """
        with self.local_log.guard("deleting old segments", refuses=False):
            self.settle()
            return retention.delete_old_segments(self)

    def replace_segments(self, new_segments: Sequence[LogSegment], old_segments: Sequence[LogSegment]) -> None:
        """Replaces old segments by cleaned ones (see kafkalog.engine.log.replacement)."""
        local = self.local_log
        with self.lock, local.guard("replacing segments"):
            self.settle()
            local.check_if_closed()
            replacement = Replacement(self.context, local.segments, new_segments, old_segments)
            self.whole(lambda: self._replace(replacement))

    def _replace(self, replacement: Replacement) -> None:
        self.delete_producer_snapshots(replacement.make(), True)

    def split_overflowed_segment(self, segment: LogSegment) -> list[LogSegment]:
        """Splits a segment with offsets that do not fit its base offset. Returns the new segments."""
        local = self.local_log
        with self.lock, local.guard("splitting an overflowed segment"):
            self.settle()
            new_segments = split_into_cleaned(self.context, segment)
            replacement = Replacement(self.context, local.segments, new_segments, [segment])
            self.whole(lambda: self._replace(replacement))
            return new_segments

    # --- closing and deleting ----------------------------------------------------------------------------

    def shut_down(self) -> bool:
        """Closes the log cleanly.

        Waits for writers, refuses later changes, trims, flushes, writes pending files, and closes.

        If interrupted or stopped by an error, it may be called again and continues. Returns whether everything was
        done. A log that was closed otherwise stays as it is, and is recovered when opened.
        """
        local = self.local_log
        with self.lock:
            if local.is_closed:
                return self._is_shut_down
            self.settle()
            local.life = CLOSING
            self.prepare_active_segment_for_close()
            self.flush(True)
            self.leader_epoch_cache.close(flush=True)
            self.close()
            self._is_shut_down = True
            return True

    def refuse_changes(self) -> None:
        """Refuses appends, truncations and deletions from now on, for a partition that is removed or has moved.

        Waits for writers.
        """
        with self.lock:
            if self.local_log.life == OPEN:
                self.local_log.life = CLOSING

    @property
    def refuses_changes(self) -> bool:
        return self.local_log.life != OPEN

    def accept_changes(self) -> None:
        """Undoes `refuse_changes`, if its purpose was not achieved."""
        with self.lock:
            if self.local_log.life == CLOSING:
                self.local_log.life = OPEN

    def disown(self) -> None:
        """Called in a forked child: the log belongs to the parent.

        A lock that a thread held at the fork is never released.
        """
        self.local_log.life = FORKED
        self.lock = PartitionLock()
        self.group_sync = GroupSync()
        self.waiters = []

    def prepare_active_segment_for_close(self) -> None:
        """Trims the active segment's indexes and preallocated tail, as a manager does before a clean close."""
        with self.lock, self.local_log.guard("preparing active segment for close"):
            self.local_log.segments.active_segment.on_become_inactive_segment()

    def close(self) -> None:
        """Writes what is pending (topic id, producer snapshot) and closes the files; flushes no segment."""
        with self.lock:
            self.maybe_flush_metadata_file()
            self.local_log.check_if_closed()
            self.producer_expire_check.cancel()
            with self.local_log.guard("taking producer state snapshot"):
                self.producer_state_manager.take_snapshot()
                # After a clean close without a snapshot, the next open assumes that there were no producers.
                self.context.files.sync_dir(self.dir)
            self.remove_log_metrics()
            self.local_log.close()
            self.wake_waiters()

    def close_quietly(self) -> None:
        """Closes the handles of a log whose directory is offline; does not write."""
        with self.lock:
            self.producer_expire_check.cancel()
            self.leader_epoch_cache.close(flush=False)
            self.remove_log_metrics()
            self.local_log.close_quietly()
            self.wake_waiters()

    def delete(self) -> None:
        """Deletes all files at once and the directory with them. The log is closed afterwards."""
        with self.local_log.guard("deleting log"), self.lock:
            self.settle()  # finishes an interrupted rename, so that the files are in one place
            self.producer_expire_check.cancel()
            self.leader_epoch_cache.clear()
            self.remove_log_metrics()
            deleted = self.local_log.delete_all_segments()
            self.delete_producer_snapshots(deleted, False)
            self.local_log.delete_empty_dir()
            self.wake_waiters()

    def rename_dir(self, name: str, should_reinitialize: bool) -> None:
        """Renames the directory.

        Without reinitialization, for a deletion, the log forgets its epochs and topic id file.
        """
        with self.lock, self.local_log.guard("renaming dir"):
            self.settle()
            try:
                self.maybe_flush_metadata_file()
            except DiskFull:
                if should_reinitialize:
                    raise
                # The log is to be deleted, perhaps to make space, and no load needs its topic id.
            if name == self.name:
                self.local_log.rename_dir(name)
            else:
                before = self.dir
                self.whole(lambda: self._rename_dir(name, should_reinitialize), is_undone=lambda: self.dir == before)

    def _rename_dir(self, name: str, should_reinitialize: bool) -> None:
        self.local_log.rename_dir(name)
        self.producer_state_manager.update_parent_dir()
        if should_reinitialize:
            self.leader_epoch_cache = self.leader_epoch_cache.with_checkpoint(PartitionEpochCheckpoint(self.context))
            self.partition_metadata_file = PartitionMetadataFile(self.context)
        else:
            self.remove_log_metrics()
            self.leader_epoch_cache.clear()
            self.partition_metadata_file = None
