"""LogLoader: turns a directory that a crash or a clean close left into segments and offsets that can be served.

The passes and their order are Kafka's (org.apache.kafka.storage.internals.log.LogLoader, 4.4.0). First they finish or
undo what replacements and deletions left (`load_cases`). They open the segments and rebuild missing indexes, recover
from the recovery point on, and settle epochs, snapshots and producer state. A segment that overflows 31 bits is split,
and the pass begins again. Recovery is idempotent: if interrupted, it starts over with the same result.

Two things differ from Kafka, but not in the bytes. The data that recovery kept is synced before it is served, so that
no reader sees records that a second crash removes (KAFKA-10101). If the disk returns EIO while a segment is recovered,
the directory goes offline; Kafka empties that segment. One thing differs in the bytes, only for logs of one replica: a
batch that was torn from its base offset is truncated like any other torn batch.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from kafkalog._limits import INT_MAX, LONG_MAX
from kafkalog.engine.files import Listing
from kafkalog.engine.files.turns import resting
from kafkalog.engine.format import names
from kafkalog.engine.log import load_cases
from kafkalog.engine.log.context import PartitionContext
from kafkalog.engine.log.damage import Damage, damage_at, end_below_start_error, missing_log_error, refuse
from kafkalog.engine.log.leader_epochs import LeaderEpochFileCache
from kafkalog.engine.log.load_cases import Action
from kafkalog.engine.log.local_log import delete_segment_files, open_new_segment
from kafkalog.engine.log.producers import ProducerStateManager
from kafkalog.engine.log.replacement import split_overflowed_segment
from kafkalog.engine.log.replay import RecoveryReplay, rebuild_producer_state
from kafkalog.engine.segment.log_segment import LogSegment
from kafkalog.engine.segment.log_segments import LogSegments
from kafkalog.engine.segment.loss import all_zero
from kafkalog.engine.segment.types import LogOffsetMetadata
from kafkalog.errors import (
    CorruptIndexException,
    CorruptRecordException,
    IllegalStateException,
    InvalidOffsetException,
    KafkalogError,
    LogSegmentOffsetOverflowException,
    NoSuchFileException,
    NumberFormatException,
)

T = TypeVar("T")


class Checkpoints(NamedTuple):
    """The checkpoints of the log directory for this log, and whether it was closed cleanly."""

    log_start_offset: int
    recovery_point: int
    had_clean_shutdown: bool


class LoadedLogOffsets(NamedTuple):
    """LoadedLogOffsets: the result of a load."""

    log_start_offset: int
    recovery_point: int
    next_offset_metadata: LogOffsetMetadata


class RecoveryOffsets(NamedTuple):
    new_recovery_point: int
    next_offset: int


def _tell_nobody(remaining: int) -> None:
    """The default callback: ignores how many segments are left."""


class LogLoader:
    """One load of one partition; used once. No lock: the log is not visible to others yet."""

    def __init__(
        self,
        context: PartitionContext,
        checkpoints: Checkpoints,
        segments: LogSegments,
        leader_epoch_cache: LeaderEpochFileCache,
        producer_state_manager: ProducerStateManager,
        remaining_segments: Callable[[int], object] | None = None,
        *,
        listing: Listing | None = None,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> None:
        """`remaining_segments` is called with the number of segments left to recover.

        `listing`: what is in the directory, if the caller has just listed it. `on_damage` is called before each
        truncation of the log. If it raises, the load ends and nothing is truncated.
        """
        self.context = context
        self.dir = context.dir
        self.files = context.files
        self.topic_partition = context.topic_partition
        self.log_start_offset_checkpoint, self.recovery_point_checkpoint, self.had_clean_shutdown = checkpoints
        self.segments = segments
        self.leader_epoch_cache = leader_epoch_cache
        self.producer_state_manager = producer_state_manager
        self._tell_remaining = remaining_segments or _tell_nobody
        # The manager of the last recovered segment, if the next segment can start from it (see recover_segment).
        self._reusable: ProducerStateManager | None = None
        self._recovered: list[LogSegment] = []
        self._on_damage = on_damage
        self._refuses = on_damage is refuse and not self.dir.endswith(names.DELETE_DIR_SUFFIX)
        self._refused = False  # on_damage raised: the load ends as if it were interrupted
        self._listing = listing  # the directory's contents, while nothing has changed them
        self._snapshots_changed = False  # by anything but our producer state manager

    def load(self) -> LoadedLogOffsets:
        self._settle_replacements()
        self._retry_on_offset_overflow(self._reload_segment_files)
        if not self.dir.endswith(names.DELETE_DIR_SUFFIX):
            recovery_point, next_offset = self._retry_on_offset_overflow(self.recover_log)
            self._make_durable()
            self.segments.active_segment.resize_indexes(self.context.config.max_index_size)
        else:
            if self.segments.is_empty:
                self.segments.add(open_new_segment(self.context, 0, preallocate=False))
            recovery_point, next_offset = 0, 0

        epochs = self.leader_epoch_cache
        epochs.truncate_from_end_async_flush(next_offset)
        first_base = self.segments.first_segment_base_offset
        assert first_base is not None
        new_log_start_offset = self.log_start_offset_checkpoint
        if not self.context.uses_remote_tier:
            new_log_start_offset = max(new_log_start_offset, first_base)
        # Kafka truncates by the checkpoint's value, not by the new log start offset.
        epochs.truncate_from_start_async_flush(self.log_start_offset_checkpoint)

        psm = self.producer_state_manager
        if not psm.is_empty:
            raise IllegalStateException("Producer state must be empty during log initialization")
        psm.remove_stray_snapshots(self.segments.base_offsets, list_anew=self._snapshots_changed)
        # No other replica has this log, so its producers count, even in a directory that was copied from elsewhere.
        trusts_absence = self.had_clean_shutdown and not self.context.has_one_replica
        rebuild_producer_state(psm, self.segments, new_log_start_offset, next_offset, trusts_absence)
        active = self.segments.active_segment
        return LoadedLogOffsets(
            new_log_start_offset, recovery_point, LogOffsetMetadata(next_offset, active.base_offset, active.size)
        )

    # --- remains of replacements and deletions -----------------------------------------------------------

    def _settle_replacements(self) -> None:
        """Runs passes 1 to 4: applies the row of `load_cases.CASES` to every file, in Kafka's order of effects."""
        deleted: list[str] = []
        cleaned: list[str] = []
        swap: list[str] = []
        min_cleaned = LONG_MAX
        listing = self._take_listing()
        present = listing.files
        folder = os.path.join(self.dir, "")
        is_readable = self.files.is_readable
        for name in present:
            # A checkpoint's `.tmp` may be created or deleted by a task of the log that was open before; nobody reads
            # it.
            if not (is_readable(folder + name) or name.endswith(".tmp")):
                raise PermissionError(errno.EACCES, f"Could not read file {folder + name}", folder + name)
        for name in load_cases.transient(present):
            suffix = load_cases.suffix_of(name)
            if suffix == names.DELETED_FILE_SUFFIX:
                deleted.append(name)
            elif suffix == names.CLEANED_FILE_SUFFIX:
                min_cleaned = min(min_cleaned, names.offset_from_filename(name))
                cleaned.append(name)
            elif suffix == names.SWAP_FILE_SUFFIX:
                swap.append(name)
        # A refused .cleaned is found before anything is deleted (in Kafka that depends on the directory's order).
        gone = set(deleted)
        for name in deleted:
            if self._refuses:
                gone.update(self._unlink_indexes_of(name, present))
            self._apply(name, min_cleaned, None)
        if not (swap or cleaned):
            self._listing = listing._replace(files=[name for name in present if name not in gone]) if gone else listing
            return  # nothing was replaced: no range, and nothing is superseded
        self._snapshots_changed = True

        valid: list[str] = []
        for name in swap:
            if names.offset_from_filename(name) >= min_cleaned:
                self._apply(name, min_cleaned, None)
            else:
                valid.append(name)
        for name in cleaned:
            self._apply(name, min_cleaned, None)

        swap_range = self._swap_range(valid)
        if swap_range is not None:
            for name in self._regular_files():
                if not name.endswith(names.SWAP_FILE_SUFFIX):
                    self._apply(name, min_cleaned, swap_range)
        # The .log first: if the process dies after it, the next load only renames the other files. An index that was
        # renamed before its log would count as an index of an old segment at the next load.
        left = [name for name in self._regular_files() if name.endswith(names.SWAP_FILE_SUFFIX)]
        for name in sorted(left, key=lambda name: not names.is_log_file(name.removesuffix(names.SWAP_FILE_SUFFIX))):
            self._apply(name, min_cleaned, swap_range)

    def _apply(self, name: str, min_cleaned: int, swap_range: range | None) -> None:
        try:
            offset: int | None = names.offset_from_filename(name)
        except NumberFormatException:
            offset = None
        case = load_cases.decide(
            load_cases.suffix_of(name),
            offset is not None,
            offset is not None and offset >= min_cleaned,
            offset is not None and swap_range is not None and offset in swap_range,
        )
        path = os.path.join(self.dir, name)
        if case.then is Action.DELETE:
            self.context.logger.info("deleting %s: %s", name, case.why)
            self.files.unlink_if_exists(path)
        elif case.then is Action.RENAME:
            self.context.logger.info("renaming %s: %s", name, case.why)
            self.files.rename(path, path.removesuffix(names.SWAP_FILE_SUFFIX))
        elif case.then is Action.REFUSE:
            raise NumberFormatException(f"{name} does not begin with an offset: {case.why}", path=path)

    def _swap_range(self, valid_swap: Iterable[str]) -> range | None:
        """Returns the offsets that the complete replacements cover.

        Opening one creates its missing index, as in Kafka.
        """
        low, high = LONG_MAX, -1
        for name in valid_swap:
            if not names.is_log_file(name.removesuffix(names.SWAP_FILE_SUFFIX)):
                continue
            segment = self._open(names.offset_from_filename(name), suffix=names.SWAP_FILE_SUFFIX)
            low = min(low, segment.base_offset)
            high = max(high, segment.read_next_offset())
            segment.close()  # only its handles: nothing is trimmed
        return range(low, high) if low < high else None

    # --- segments ----------------------------------------------------------------------------------------

    def _reload_segment_files(self) -> None:
        self.segments.close()
        self.segments.clear()
        self._reusable = None
        self._recovered.clear()
        self._load_segment_files()

    def _load_segment_files(self) -> None:
        files, others = self._take_listing()
        present = {*files, *others}
        stems = names.log_stems(files)  # nearly every file belongs to one of these
        alone = [name for name in files if name.endswith(names.INDEX_FILE_SUFFIXES)]
        alone = [name for name in alone if name.partition(".")[0] not in stems]
        if self._refuses:
            for name in alone:
                if self._is_orphaned(name, present):
                    self._refuse_orphaned(name)
            alone = []
        loaded: list[LogSegment] = []
        try:
            for name in files:
                if name.endswith(names.LOG_FILE_SUFFIX):
                    loaded.append(self._load_segment(name, present, stems, loaded))
                elif name in alone and self._is_orphaned(name, present):  # a name without a number ends the load here
                    self.context.logger.warning("deleting orphaned index file %s", name)
                    self.files.unlink_if_exists(os.path.join(self.dir, name))
        finally:
            self.segments.add_all(loaded)

    def _load_segment(self, name: str, present: set[str], stems: set[str], loaded: list[LogSegment]) -> LogSegment:
        """Opens the segment of a .log file and rebuilds its missing indexes.

        Before a rebuild, adds the segments `loaded` so far.
        """
        stem = name[: -len(names.LOG_FILE_SUFFIX)]
        if stem in stems:
            base_offset = int(stem)
            has_txn_index: bool | None = stem + names.TXN_INDEX_FILE_SUFFIX in present
            has_offset_index: bool | None = stem + names.INDEX_FILE_SUFFIX in present
        else:  # the offset is written in another way: its other files are not named like this one
            base_offset = names.offset_from_filename(name)
            stem = names.filename_prefix_from_offset(base_offset)
            has_txn_index = has_offset_index = None
        segment = self._open(base_offset, has_txn_index=has_txn_index)
        try:
            segment.sanity_check(stem + names.TIME_INDEX_FILE_SUFFIX not in present, has_offset_index=has_offset_index)
            return segment
        except NoSuchFileException:
            if self.had_clean_shutdown or base_offset < self.recovery_point_checkpoint:
                # An empty segment gets its index with the first entry: nothing was lost.
                level = logging.ERROR if segment.size else logging.INFO
                self.context.logger.log(level, "no offset index for %s; recovering the segment", name)
        except CorruptIndexException as error:
            self.context.logger.warning("%s; recovering the segment", error)
        self.segments.add_all(loaded)
        loaded.clear()
        self._rebuild_indexes(segment)
        return segment

    @staticmethod
    def _is_orphaned(name: str, present: set[str]) -> bool:
        stem = names.filename_prefix_from_offset(names.offset_from_filename(name))
        return stem + names.LOG_FILE_SUFFIX not in present

    def _refuse_orphaned(self, name: str) -> None:
        """Raises CorruptRecordException for an index that has entries but no log: it is the only trace of that log."""
        path = os.path.join(self.dir, name)
        with self.files.open(path, writable=False) as file:
            if not all_zero(file, 0, file.size()):
                log = names.log_file("", names.offset_from_filename(name))
                raise missing_log_error(path, log)

    def _unlink_indexes_of(self, deleted: str, present: Iterable[str]) -> list[str]:
        """Deletes the indexes of a segment whose log is being deleted, and was renamed first. Returns their names.

        Without the log, its indexes would look like those of a missing log.
        """
        log = deleted.removesuffix(names.DELETED_FILE_SUFFIX)
        if names.segment_base(log) is None or log in present:
            return []
        stem = log.removesuffix(names.LOG_FILE_SUFFIX)
        unlinked = [stem + suffix for suffix in names.INDEX_FILE_SUFFIXES if stem + suffix in present]
        for name in unlinked:
            self.files.unlink_if_exists(os.path.join(self.dir, name))
        return unlinked

    def _rebuild_indexes(self, segment: LogSegment) -> None:
        """Recovers a segment because of its indexes, whether it was flushed or not."""
        unflushed = not self.had_clean_shutdown and segment.base_offset >= self.recovery_point_checkpoint
        # Until all is done, the index stays missing and is built under a name that the next load deletes. If a load is
        # interrupted, the next one does the same again. (A truncation here removes no later segment; one in recover_log
        # does.)
        path = segment.offset_index_file
        self.files.unlink_if_exists(path)
        segment.rename_offset_index(path + names.CLEANED_FILE_SUFFIX)
        try:
            self.recover_segment(segment, unflushed=unflushed)
        except KafkalogError as error:
            if self._refused:
                raise
            if unflushed or isinstance(error, LogSegmentOffsetOverflowException):
                segment.rename_offset_index(path)
            if not unflushed or not isinstance(error, CorruptRecordException):
                raise
            # This is about an earlier segment, whose producers are replayed although it is not recovered yet. Kafka
            # does not open such a log. recover_log recovers this segment again, in order.
            self.context.logger.warning("%s; recovering %s later", error, segment)
            return
        if not unflushed:
            with self.context.flush_timer.time():
                segment.flush()
        segment.rename_offset_index(path)

    def _retry_on_offset_overflow(self, run: Callable[[], T]) -> T:
        while True:
            try:
                return run()
            except LogSegmentOffsetOverflowException as error:
                segment = error.segment
                self._snapshots_changed = True
                self.context.logger.info("%s; splitting the segment", error)
                self._reusable = None
                self._recovered = [kept for kept in self._recovered if kept is not segment]
                result = split_overflowed_segment(self.context, segment, self.segments)
                self._delete_snapshots_of(result.deleted_segments)

    # --- recovery ----------------------------------------------------------------------------------------

    def recover_segment(self, segment: LogSegment, rest: Sequence[LogSegment] = (), *, unflushed: bool) -> int:
        """Scans a segment, rebuilds its indexes and truncates what is not valid; then retires the `rest`.

        Returns the bytes truncated. The base offset is not in the checksum. If a sector ends inside it, a power loss
        can tear it from its batch, which then begins below the offsets before it. Kafka accepts such a batch; or, if an
        index entry would go back, it empties the segment, which its other replicas have. A log without replicas is
        truncated there, but only if the segment was `unflushed`. Otherwise the batch is damage of another kind, and the
        records after it were promised.

        The producer state before the segment comes from a separate manager. Loading it deletes every snapshot above the
        segment's base or at or below the log start, and a snapshot is taken at the segment's end.
        """
        self._snapshots_changed = True
        psm = self._reusable
        if psm is None or psm.map_end_offset != segment.base_offset:
            psm = ProducerStateManager(self.context)
            rebuild_producer_state(psm, self.segments, self.log_start_offset_checkpoint, segment.base_offset, False)
        self._reusable = None

        def before_cut(position: int) -> None:
            self._before_cut(segment, position, rest)

        try:
            with resting(segment.size):
                bytes_truncated = segment.recover(
                    RecoveryReplay(segment.txn_index, psm, self.leader_epoch_cache, before_cut),
                    cuts_misfits=unflushed and self.context.has_one_replica,
                )
        except LogSegmentOffsetOverflowException:
            cut = self._cut_torn_offset(segment, before_cut)
            if cut == 0:
                raise
            return cut + self.recover_segment(segment, unflushed=unflushed)  # the rest is retired already
        psm.take_snapshot(False)
        self._recovered.append(segment)
        # A manager without producers equals the one that the next segment would load from the snapshot just taken. With
        # producers it does not: a snapshot keeps one batch each, and loading drops expired producers.
        if psm.is_empty and psm.first_undecided_offset is None:
            self._reusable = psm
        return bytes_truncated

    def _before_cut(self, segment: LogSegment, position: int, rest: Sequence[LogSegment]) -> None:
        if self._on_damage is not None:
            promised = max(self.recovery_point_checkpoint, self.log_start_offset_checkpoint)
            damage = damage_at(segment, position, rest, self.files, promised)
            self._refused = True
            self._on_damage(damage)
            self._refused = False
        self._retire(rest)

    def _cut_torn_offset(self, segment: LogSegment, before_cut: Callable[[int], None]) -> int:
        """Truncates at a batch that is outside the segment's range although the segment's end is not.

        Returns the bytes truncated, 0 for a true overflow. The base offset is not in the checksum: if a sector ends
        inside it, a power loss can tear it from its batch. Kafka treats this as an overflow, refuses to split, and does
        not open the log.
        """
        for header in segment.log.batches():
            last_offset = header.last_offset
            if not 0 <= last_offset - segment.base_offset <= INT_MAX:
                break
        else:
            return 0
        try:
            if segment.has_overflow():
                return 0
        except CorruptRecordException:
            pass  # and there is more damage after it
        before_cut(header.position)
        return segment.log.truncate_to(header.position)

    def recover_log(self) -> RecoveryOffsets:
        if not self.had_clean_shutdown:
            self._recover_unflushed()
        end = self._end_or_delete_all()
        if self.segments.is_empty:
            self.segments.add(open_new_segment(self.context, self.log_start_offset_checkpoint))
        if self.had_clean_shutdown and end is not None:
            return RecoveryOffsets(end, end)
        if end is None:
            end = self.segments.active_segment.read_next_offset()
        return RecoveryOffsets(min(self.recovery_point_checkpoint, end), end)

    def _recover_unflushed(self) -> None:
        unflushed = list(self.segments.values(self.recovery_point_checkpoint, LONG_MAX))
        for index, segment in enumerate(unflushed):
            self._tell_remaining(len(unflushed) - index)
            rest = unflushed[index + 1 :]
            try:
                truncated_bytes = self.recover_segment(segment, rest, unflushed=True)
            except InvalidOffsetException as error:
                self.context.logger.warning("%s; emptying segment %s", error, segment)
                self._reusable = None
                self._before_cut(segment, 0, rest)
                truncated_bytes = segment.truncate_to(segment.base_offset)
                self._recovered.append(segment)
            if truncated_bytes > 0:
                self.context.logger.warning("truncated %d bytes from segment %s", truncated_bytes, segment)
                # Kafka's log line reads the segment's end, which maps the offset index.
                segment.read_next_offset()
                self._remove_and_delete(rest)
                break
        self._tell_remaining(0)

    def _read_end(self) -> int | None:
        """Returns the end of the last segment; None if there is none.

        The last index entry alone gives the end of a log that was closed cleanly. If that entry names no batch, the
        indexes are rebuilt. If that is impossible (damaged batches, offsets that go back), nothing is truncated, and
        the end is the one that Kafka finds by the existing index. Kafka may then take the segment for empty and
        overwrite it; a log of one replica is refused instead.
        """
        last = self.segments.last_segment
        if last is None:
            return None
        end = last.read_next_offset()
        if last in self._recovered or (fault := last.index_fault(end)) is None:
            return end
        if not last.can_be_indexed():
            if end == last.base_offset and self.context.has_one_replica:
                raise CorruptRecordException(
                    f"{fault}, and the batches cannot be indexed; expected good batches with growing offsets",
                    path=last.log.path,
                    hint=f"`kafkalog verify {self.dir}` lists the damage, `kafkalog salvage` copies what is good, "
                    "`kafkalog recover` truncates the log there",
                )
            self.context.logger.warning("%s, and the batches cannot be indexed; the segment is not changed", fault)
            return end
        self.context.logger.warning("%s; recovering the segment", fault)
        last.close_quietly()
        self.segments.remove(last.base_offset)
        last = self._open(last.base_offset)
        self.segments.add(last)
        self._rebuild_indexes(last)
        return last.read_next_offset()

    def _retire(self, segments: Sequence[LogSegment]) -> None:
        """Renames segments after damage to `.deleted`, durably, before the damage is truncated.

        Kafka truncates first: after an interruption between the two, its next recovery finds no damage before these
        segments and keeps them.
        """
        for segment in segments:
            segment.change_file_suffixes("", names.DELETED_FILE_SUFFIX)
        if segments:
            self.files.sync_dir(self.dir)

    def _end_or_delete_all(self) -> int | None:
        """Returns the end of the log; None without segments, or if everything is deleted (end below log start)."""
        end = self._read_end()
        start = self.log_start_offset_checkpoint
        if end is None or end >= start:
            return end
        if self._refuses and any(segment.size for segment in self.segments.values()):
            raise end_below_start_error(end, start, self.dir)
        self.context.logger.warning("log end %d is below log start %d; deleting all", end, start)
        # Kafka looks for the snapshots of segments that it has just forgotten, so none is renamed to .deleted here. The
        # producer state deletes them all.
        self._remove_and_delete(list(self.segments.values()), with_snapshots=False)
        self.leader_epoch_cache.clear_and_flush()
        self.producer_state_manager.truncate_fully_and_start_at(start)
        return None

    def _make_durable(self) -> None:
        """Syncs what recovery kept, and the directory once: a second crash then removes nothing that was served."""
        synced = 0
        for segment in self._recovered:
            if self.segments.get(segment.base_offset) is segment:
                segment.log.flush()
                synced += 1
        if synced or not self.had_clean_shutdown:
            self.files.sync_dir(self.dir)
        self._recovered.clear()
        self._reusable = None

    # --- helpers -----------------------------------------------------------------------------------------

    def _regular_files(self) -> list[str]:
        """Returns the names of the files in the directory, sorted."""
        return self.files.list_files(self.dir)

    def _take_listing(self) -> Listing:
        """Returns the listing if it is still valid, once; else a new one."""
        listing, self._listing = self._listing, None
        return listing or self.files.listing(self.dir)

    def _open(self, base_offset: int, *, suffix: str = "", has_txn_index: bool | None = None) -> LogSegment:
        context = self.context
        return LogSegment.open(
            self.dir, base_offset, context.config, context.clock, self.files, suffix=suffix,
            has_txn_index=has_txn_index,
        )  # fmt: skip

    def _remove_and_delete(self, segments: list[LogSegment], *, with_snapshots: bool = True) -> None:
        if not segments:
            return
        self.context.logger.info("deleting segments as part of log recovery: %s", segments)
        for segment in segments:
            self.segments.remove(segment.base_offset)
        delete_segment_files(self.context, segments, True)
        if with_snapshots:
            self._delete_snapshots_of(segments)

    def _delete_snapshots_of(self, segments: list[LogSegment]) -> None:
        self.producer_state_manager.delete_snapshots_at([segment.base_offset for segment in segments], True)
