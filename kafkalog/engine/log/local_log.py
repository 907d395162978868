"""LocalLog: a partition's segments and the end of the log; rolls, truncates, reads and replaces them.

It knows nothing of leaders, the high watermark, producers or retention: UnifiedLog decides, this class acts. It is not
thread-safe alone: UnifiedLog holds its lock around every call that changes something. `read` needs no lock, since the
segment map and `next_offset_metadata` are replaced as a whole, never changed in place.

The end of the log and its state (open, closing, closed; forked in a child process) are native fields. An append can
thus move the end in one step with its write, and check the state without a call.

The rule for a roll is native (`SegmentTail.must_roll`); `append.segment_for` asks it, and `roll` here executes it. An
OSError in any operation takes the log directory offline (`PartitionContext.guard`). Mirrors
org.apache.kafka.storage.internals.log.LocalLog (4.4.0).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kafkalog._native.codec.validation import OrdinaryRules
from kafkalog._native.state.log_end import CLOSED, CLOSING, FORKED, OPEN, LogEnd
from kafkalog.engine.files import Clock, LogDirFailureChannel, is_shortage
from kafkalog.engine.format import names
from kafkalog.engine.format.batch import CREATE_TIME
from kafkalog.engine.format.names import DELETED_FILE_SUFFIX
from kafkalog.engine.log.context import IoGuard, PartitionContext, cut_back
from kafkalog.engine.segment.log_segment import LogSegment
from kafkalog.engine.segment.log_segments import LogSegments, NoSuchElementException
from kafkalog.engine.segment.transaction_index import AbortedTxn
from kafkalog.engine.segment.types import (
    EMPTY_RECORDS,
    AbortedTransaction,
    FetchDataInfo,
    LogOffsetMetadata,
    OffsetPosition,
)
from kafkalog.errors import (
    ClosedChannelException,
    IllegalStateException,
    KafkaException,
    KafkalogError,
    KafkaStorageException,
    OffsetOutOfRangeException,
    TooManyOpenFilesException,
)

if TYPE_CHECKING:
    from kafkalog.config import LogConfig


class LocalLog(LogEnd):
    """The segments of one partition and the end of the log."""

    next_offset_metadata: LogOffsetMetadata
    segments: LogSegments
    clock: Clock
    log_dir_failure_channel: LogDirFailureChannel

    def __init__(
        self,
        context: PartitionContext,
        segments: LogSegments,
        recovery_point: int,
        next_offset_metadata: LogOffsetMetadata,
    ) -> None:
        self.context = context
        # Copies for the native steps of an append.
        self.clock = context.clock
        self.log_dir_failure_channel = context.log_dir_failure_channel
        if context.known_copies is None:  # otherwise the first append checks them
            self._set_client_rules(context.config)
        self.segments = segments
        self.recovery_point = recovery_point
        self.next_offset_metadata = next_offset_metadata
        self.last_flush_time = self.clock.milliseconds()
        self.life = OPEN
        self.opened_by = os.getpid()
        self.truncations = 0  # tells a flush whether what it synced was truncated and rewritten meanwhile
        # Whether names in the directory changed since its last sync; the next flush then syncs it. Kafka decides by
        # base offsets alone. It thus misses renames, and segments below a recovery point that the log start raised.
        self.names_unsynced = True
        self.cut_unsynced = False  # whether a truncation may not be on the disk yet

    @property
    def log_end_offset(self) -> int:
        return self.next_offset_metadata[0]

    def guard(self, doing: str, *, refuses: bool = True) -> IoGuard:
        """Returns the I/O guard of an operation, in the process that opened the log."""
        self.check_owner()
        return self.context.guard(doing, refuses=refuses)

    def check_owner(self) -> None:
        """Raises in a forked child: the log belongs to the parent."""
        if self.life == FORKED:
            raise self.is_foreign()

    @property
    def is_closed(self) -> bool:
        return self.life >= CLOSED

    def check_if_closed(self) -> None:
        if self.life >= CLOSED:
            raise self.refusal()

    def check_appendable(self) -> None:
        """Raises if no append may begin: the directory is offline, or the log is closed or closing."""
        if self.log_dir_failure_channel.any_offline:
            self.context.check_online()
        self.check_changeable()

    def check_changeable(self) -> None:
        """Raises if the log is closed or closing, or given up: a change would be lost."""
        if self.life != OPEN:
            raise self.refusal()

    def refusal(self) -> KafkalogError:
        """Returns the error that says why a log that is not open does nothing."""
        if self.life == FORKED:
            return self.is_foreign()
        refusal = KafkaStorageException(f"The log for {self.context.topic_partition} is already closed")
        refusal.is_of_closed_log = True
        return refusal

    def is_foreign(self) -> IllegalStateException:
        return IllegalStateException(
            f"{self.context.topic_partition} of {self.context.parent_dir} was opened by process {self.opened_by}: "
            "a log belongs to the process that opened it",
            hint="open it in this process once the other has closed it, or with read_only=True to read it meanwhile",
        )

    @property
    def active_segment(self) -> LogSegment:
        """The segment that appends go to, for callers without the log's lock.

        Raises KafkaStorageException if there is none, because the log is just being deleted.
        """
        try:
            return self.segments.active_segment
        except NoSuchElementException:
            raise self.refusal() from None

    # --- opening and closing --------------------------------------------------------------------------

    def update_config(self, new_config: LogConfig) -> None:
        self.context.update_config(new_config)
        if self.ordinary_rules is not None:
            self._set_client_rules(new_config)

    def begin_appends(self) -> None:
        """Allows appends to use the fast path. The settings may change meanwhile."""
        config = None
        while config is not self.context.config:
            config = self.context.config
            self._set_client_rules(config)

    def _set_client_rules(self, config: LogConfig) -> None:
        self.ordinary_rules = OrdinaryRules(
            min(config.max_message_bytes, config.segment_size), config.compact,
            config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms,
            -1 if config.compression_codec is None else config.compression_codec,
            config.max_segment_ms, config.segment_size, config.flush_messages,
            config.message_timestamp_type == CREATE_TIME,
        )  # fmt: skip

    def rename_dir(self, name: str) -> bool:
        """Renames the partition's directory (atomically, parent synced). Returns False if it has that name already."""
        with self.guard("renaming dir"), self.context.renaming_lock:
            renamed = self.context.rename_dir(name)
            self.segments.update_parent_dir(
                self.context.dir
            )  # even if it has that name: a repeated call must finish the change
            return renamed

    def close(self) -> None:
        if self.is_closed:
            return
        with self.guard("closing log segments"):
            self.life = CLOSED  # first: a half-closed log is not open; unreferenced files close themselves
            self.segments.close()

    def close_quietly(self) -> None:
        """Closes the handles, whatever state the disk is in. Does not trim or flush."""
        if self.life == FORKED:
            return
        self.life = CLOSED
        self.segments.close_quietly()

    def delete_empty_dir(self) -> None:
        """Deletes the directory with the files left in it. The log must be closed and have no segments."""
        with self.guard("deleting dir"):
            if not self.segments.is_empty:
                raise IllegalStateException(
                    f"Can not delete directory when {self.segments.number_of_segments} segments are still present"
                )
            if not self.is_closed:
                raise IllegalStateException(
                    f"Can not delete directory when log of {self.context.topic_partition} is still open."
                )
            self.context.files.remove_tree(self.context.dir)

    def delete_all_segments(self) -> list[LogSegment]:
        """Deletes all segments at once (no delay) and closes the log. Returns the deleted segments."""
        with self.guard("deleting all segments"):
            deletable = list(self.segments.values())
            if self.life == OPEN:
                self.life = CLOSING  # callers that find no segments check the state
            self.remove_and_delete_segments(deletable, False, "log deletion")
            self.life = CLOSED
            return deletable

    # --- the end of the log ----------------------------------------------------------------------------

    def update_log_end_offset(self, end_offset: int) -> None:
        active = self.segments.active_segment
        if end_offset < self.log_end_offset:
            self.truncations += 1
        self.next_offset_metadata = LogOffsetMetadata(end_offset, active.base_offset, active.size)
        if self.recovery_point > end_offset:
            self.recovery_point = end_offset

    def mark_flushed(self, offset: int) -> None:
        self.check_if_closed()
        if offset > self.recovery_point:
            self.recovery_point = offset
            self.last_flush_time = self.clock.milliseconds()

    def flush(self, offset: int) -> None:
        """Flushes the segments that hold [recovery point, offset). Syncs the directory if names in it changed.

        Raises ClosedChannelException if a segment was deleted, or the directory renamed meanwhile.
        """
        try:
            self._flush(offset)
        except OSError as error:
            self.context.check_place(error)
            raise

    def flush_data(self, segment: LogSegment) -> None:
        """Syncs the records of a segment. Raises ClosedChannelException as `flush` does."""
        try:
            with self.context.flush_timer.time():
                segment.log.flush_data()
        except OSError as error:
            self.context.check_place(error)
            raise

    def _flush(self, offset: int) -> None:
        recovery_point = self.recovery_point
        new = False
        if recovery_point <= offset:
            for segment in self.segments.values(recovery_point, offset):
                with self.context.flush_timer.time():
                    segment.flush()
                new = new or segment.base_offset >= recovery_point
        if (new or self.names_unsynced) and self.context.files.exists(self.context.dir):
            self._sync_names()

    def _sync_names(self) -> None:
        try:
            self.names_unsynced = False  # before the sync: a concurrent change must set it again
            self.context.files.sync_dir(self.context.dir)
        except BaseException:
            self.names_unsynced = True
            raise

    # --- segments --------------------------------------------------------------------------------------

    def remove_and_delete_segments(self, segments: Iterable[LogSegment], async_delete: bool, reason: str) -> None:
        """Removes segments from the map and deletes their files, after file.delete.delay.ms if `async_delete`."""
        to_delete = list(segments)
        if not to_delete:
            return
        self.context.logger.info("deleting segments as part of %s: %s", reason, to_delete)
        # The names first: if an interrupt came after the change of the map, the next load would bring the segment back.
        self.names_unsynced = True
        try:
            for segment in to_delete:
                segment.change_file_suffixes("", DELETED_FILE_SUFFIX)
        except OSError as error:
            if not self.log_dir_failure_channel.passes(error):
                self._forget(to_delete)  # as in Kafka, which changes the map first: the directory goes offline now
            raise
        self._forget(to_delete)
        self._delete_files(to_delete, async_delete)

    def _forget(self, segments: Iterable[LogSegment]) -> None:
        for segment in segments:
            self.segments.remove(segment.base_offset)

    def create_and_delete_segment(
        self, new_offset: int, segment_to_delete: LogSegment, async_delete: bool, reason: str
    ) -> LogSegment:
        """Replaces `segment_to_delete` by an empty segment at `new_offset`."""
        if new_offset == segment_to_delete.base_offset:
            segment_to_delete.change_file_suffixes("", DELETED_FILE_SUFFIX)
        new_segment = self._open_new(new_offset)
        self.segments.add(new_segment)
        self.context.logger.info("deleting segment as part of %s: %s", reason, segment_to_delete)
        if new_offset != segment_to_delete.base_offset:
            self.segments.remove(segment_to_delete.base_offset)
        self._delete_files([segment_to_delete], async_delete)
        return new_segment

    def _is_begun_at(self, offset: int) -> bool:
        """Returns whether the log's last segment begins at `offset`, is empty, and its file has its final name."""
        active, path = self.segments.active_segment, names.log_file(self.context.dir, offset)
        return (
            active.base_offset == offset
            and active.size == 0
            and active.log.path == path
            and self.context.files.exists(path)
        )

    def roll(self, expected_next_offset: int = 0, *, is_again: bool = False) -> LogSegment:
        """Closes the active segment for writing and opens the next one at max(expected, log end). Returns it.

        `is_again`: an interrupted call may have opened it already. Then it is kept: if it were deleted too, its files
        would get the names of files that are just being deleted.
        """
        with self.guard("rolling log segment"):
            self.check_if_closed()
            end = self.log_end_offset
            new_offset = max(expected_next_offset, end)
            active = self.segments.active_segment
            attempt = (
                f"Trying to roll a new log segment for topic partition {self.context.topic_partition} with start "
                f"offset {new_offset} =max(provided offset = {expected_next_offset}, LEO = {end})"
            )
            if is_again and self._is_begun_at(new_offset):
                self.update_log_end_offset(end)
                return active
            if self.segments.contains(new_offset):
                if active.base_offset == new_offset and active.size == 0:
                    self.context.logger.warning("%s while it is active and empty; it is created again", attempt)
                    # Kafka's message reads the number of index entries, which creates the index files.
                    _ = (active.time_index.entries, active.offset_index.entries)
                    new_segment = self.create_and_delete_segment(new_offset, active, True, "log roll")
                    self.update_log_end_offset(self.log_end_offset)
                    return new_segment
                raise KafkaException(
                    f"{attempt} while it already exists. Existing segment is {self.segments.get(new_offset)}."
                )
            if new_offset < active.base_offset:
                raise KafkaException(f"{attempt} lower than start offset of the active segment {active}")
            for stray in names.segment_files(self.context.dir, new_offset):
                if self.context.files.unlink_if_exists(stray):
                    self.context.logger.warning("Newly rolled segment file %s already existed; deleted it first", stray)
            active.on_become_inactive_segment()
            if self.recovery_point >= new_offset:
                # All records are flushed, so nothing else syncs what was just trimmed and added. Once the new segment's
                # name is on disk, recovery starts there and does not read this one.
                active.flush()  # not timed: Kafka has no such flush
            new_segment = self._open_new(new_offset)
            self.segments.add(new_segment)
            # Invariant: segments never overlap; gaps are fine, compaction leaves them.
            assert self.segments.active_segment is new_segment, (new_segment, self.segments.base_offsets)
            self.update_log_end_offset(end)
            return new_segment

    def truncate_fully_and_start_at(self, new_offset: int, *, is_again: bool = False) -> list[LogSegment]:
        """Deletes everything and starts again at `new_offset`.

        Returns the deleted segments. `is_again`: as for `roll`.
        """
        with self.guard("truncating the entire log"):
            self.check_if_closed()
            to_delete = list(self.segments.values())
            if is_again and len(to_delete) == 1 and self._is_begun_at(new_offset):
                to_delete = []
            if to_delete:
                # Last first: a crash leaves a beginning of the log. And all of them before the new segment exists:
                # recovery would begin there and treat the rest of the old segments as complete.
                first = to_delete[0]
                self.remove_and_delete_segments(to_delete[:0:-1], True, "log truncation")
                first.change_file_suffixes("", DELETED_FILE_SUFFIX)
                self._sync_names()
                self.segments.add(self._open_new(new_offset))
                if first.base_offset != new_offset:
                    self.segments.remove(first.base_offset)
                self._delete_files([first], True)
            self.update_log_end_offset(new_offset)
            return to_delete

    def truncate_to(self, target_offset: int) -> list[LogSegment]:
        """Removes everything at or above `target_offset`. Returns the segments that were deleted as a whole.

        Unlike Kafka's, the truncation is durable before other records get these offsets: a power loss could otherwise
        mix them.
        """
        deletable = [segment for segment in self.segments.values() if segment.base_offset > target_offset]
        if deletable:
            # Last first, and before the truncation: a crash leaves a beginning of the log.
            self.remove_and_delete_segments(deletable[::-1], True, "log truncation")
            self._sync_names()
        active = self.segments.active_segment
        was_interrupted, self.cut_unsynced = self.cut_unsynced, True
        if active.truncate_to(target_offset) or was_interrupted:
            active.log.flush()
        self.cut_unsynced = False
        assert active.base_offset <= target_offset, (active, target_offset)
        self.update_log_end_offset(target_offset)
        return deletable

    def _open_new(self, base_offset: int) -> LogSegment:
        self.names_unsynced = True
        return open_new_segment(self.context, base_offset)

    def _delete_files(self, segments: Sequence[LogSegment], async_delete: bool) -> None:
        self.names_unsynced = True
        delete_segment_files(self.context, segments, async_delete)

    # --- reads (no lock) -------------------------------------------------------------------------------

    def convert_to_offset_metadata_or_throw(self, offset: int) -> LogOffsetMetadata:
        """Returns the place of the batch that holds `offset`. Raises OffsetOutOfRangeException outside the log."""
        return self.read(offset, 1, False, self.next_offset_metadata, False).fetch_offset_metadata

    def read(
        self,
        start_offset: int,
        max_length: int,
        min_one_message: bool,
        max_offset_metadata: LogOffsetMetadata,
        include_aborted_txns: bool,
    ) -> FetchDataInfo:
        """Returns batches from the one that holds `start_offset` on.

        They have at most `max_length` bytes and are below `max_offset_metadata`. `min_one_message`: the first batch is
        returned whole, however large it is.

        If segments changed while more than one was read, everything is read again (see `LogSegments.unchanged`); most
        reads use one segment. (Kafka skips records if a compaction replaces two segments meanwhile.)
        """
        if self.log_dir_failure_channel.any_offline:
            self.context.check_online()
        if self.life >= CLOSED:
            raise self.refusal()
        try:
            end_offset = self.next_offset_metadata[0]
            segments = self.segments
            view = segments.view
            segment = segments.floor_segment(start_offset)
            if segment is None or start_offset > end_offset:
                raise OffsetOutOfRangeException(
                    f"Received request for offset {start_offset} for partition {self.context.topic_partition}, "
                    f"but we only have log segments upto {end_offset}."
                )
            max_offset, max_segment_base, max_position = max_offset_metadata
            if start_offset >= max_offset:
                if start_offset > max_offset:
                    max_offset_metadata = self.convert_to_offset_metadata_or_throw(start_offset)
                return _empty(max_offset_metadata, include_aborted_txns)
            while segment is not None:
                base_offset = segment.base_offset
                limit: int | None
                if base_offset < max_segment_base:
                    limit = segment.log.size
                elif base_offset == max_segment_base:  # never if only the offset is known
                    limit = max_position
                else:
                    limit = None
                found = segment.read(start_offset, max_length, limit, min_one_message)
                if found is None:
                    segment = segments.higher_segment(base_offset)
                elif include_aborted_txns:
                    found = self._with_aborted_transactions(start_offset, segment, found)
                else:
                    return found
                if segments.view is not view:
                    return self.read(
                        start_offset, max_length, min_one_message, max_offset_metadata, include_aborted_txns
                    )
                if found is not None:
                    return found
            # Compaction removed the offsets up to the end: the reader continues at the end.
            return FetchDataInfo(self.next_offset_metadata, EMPTY_RECORDS)
        except ClosedChannelException:
            if self.life >= CLOSED:
                raise self.refusal() from None
            raise  # the segment was deleted meanwhile
        except OSError as error:
            context = self.context
            context.check_place(error)
            context.raise_offline(
                f"Exception while reading from {context.topic_partition} in dir {context.parent_dir}", error
            )

    def _with_aborted_transactions(self, start_offset: int, segment: LogSegment, found: FetchDataInfo) -> FetchDataInfo:
        metadata = found.fetch_offset_metadata
        start = OffsetPosition(metadata.message_offset, metadata.relative_position_in_segment)
        upper = segment.fetch_upper_bound_offset(start, found.records.size)
        if upper is None:
            higher = self.segments.higher_segment(segment.base_offset)
            upper = self.log_end_offset if higher is None else higher.base_offset
        aborted = [
            AbortedTransaction(txn.producer_id, txn.first_offset)
            for txn in self._collect_aborted(start_offset, upper, segment)
        ]
        return found._replace(aborted_transactions=aborted)

    def _collect_aborted(self, start_offset: int, upper_bound_offset: int, starting: LogSegment) -> list[AbortedTxn]:
        aborted: list[AbortedTxn] = []
        for segment in [starting, *self.segments.higher_segments(starting.base_offset)]:
            result = segment.collect_aborted_txns(start_offset, upper_bound_offset)
            aborted.extend(result.aborted_transactions)
            if result.is_complete:
                break
        return aborted

    def collect_aborted_transactions(
        self, log_start_offset: int, base_offset: int, upper_bound_offset: int
    ) -> list[AbortedTxn]:
        """Returns aborted transactions that overlap [log start, upper bound), from the segment of `base_offset` on."""

        def collect() -> list[AbortedTxn]:
            segment = self.segments.floor_segment(base_offset)
            self.check_if_closed()
            return [] if segment is None else self._collect_aborted(log_start_offset, upper_bound_offset, segment)

        return self.segments.unchanged(collect)


def _empty(metadata: LogOffsetMetadata, include_aborted_txns: bool) -> FetchDataInfo:
    return FetchDataInfo(metadata, EMPTY_RECORDS, False, [] if include_aborted_txns else None)


def open_new_segment(
    context: PartitionContext, base_offset: int, *, suffix: str = "", preallocate: bool = True
) -> LogSegment:
    """Opens an empty segment, preallocated if the topic says so and `preallocate` is True."""
    try:
        return LogSegment.open(
            context.dir, base_offset, context.config, context.clock, context.files, new=preallocate, suffix=suffix
        )
    except (OSError, TooManyOpenFilesException) as error:
        if is_shortage(error):  # an empty last file would hide later appends to the segment before it
            cut_back(error, lambda: LogSegment.delete_files_if_exist(context.dir, base_offset, suffix, context.files))
        raise


def delete_segment_files(context: PartitionContext, segments: Sequence[LogSegment], async_delete: bool) -> None:
    """Renames segments to `.deleted` now, and deletes them now or, if `async_delete`, in one task after the delay."""
    for segment in segments:
        if not segment.has_suffix(DELETED_FILE_SUFFIX):
            segment.change_file_suffixes("", DELETED_FILE_SUFFIX)

    def delete() -> None:
        with context.guard("deleting segments"):
            for segment in segments:
                segment.delete_if_exists()

    context.delete("delete-file", delete, later=async_delete)
