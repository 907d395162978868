"""Copies what can be read of damaged partitions into a new log directory; the source is only read.

After damage, copying continues at the next batch that its CRC proves, also after blocks that the disk cannot read.  A
file that cannot be read at all is reported as lost, and the others are copied.  Offsets are kept, so lost records leave
a gap, as compaction does.  A gap between two segments is a loss too: a file is missing.  In a log that may have been
compacted it is a loss only if an index of the missing segment still exists; otherwise a note reports it.  Fields that
no CRC covers are judged by the neighbours: a batch is left out if its offsets do not fit between them, or if its magic
is unknown.  Indexes are built for what was copied.  The topic id, the log start and the topics' settings are copied,
and what a server keeps next to the data if all partitions are.
Leader epochs that go back are repaired (`epoch_order`).  An open of the new directory, also by Kafka, finds no
clean-shutdown marker and rebuilds epochs and producer state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest

import numpy as np

from kafkalog._limits import SEGMENT_FILE_BYTES_MAX
from kafkalog._native.codec import batches as native
from kafkalog.engine.files import OS_FILES, File, Files, local_path
from kafkalog.engine.format import names, values
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.small_files import NOTE_BYTES_MAX, read_small
from kafkalog.engine.host.log_dirs import list_partitions
from kafkalog.engine.host.topic_configs import take_over
from kafkalog.engine.log import load_cases
from kafkalog.engine.segment.loss import VERDICT_TEXT, Lost, all_zero
from kafkalog.engine.segment.order import highest_offset, misfits
from kafkalog.engine.segment.resync import next_batch, slices_past_damage
from kafkalog.engine.segment.scan import ScanSlice
from kafkalog.errors import (
    BeingWrittenException,
    CorruptCheckpointException,
    IllegalArgumentException,
    KafkalogError,
    UnknownTopicOrPartitionException,
)
from kafkalog.toolbox.backup_places import made_whole, partial_path, refuse_one_in_other, target_path
from kafkalog.toolbox.epoch_order import EpochOrder
from kafkalog.toolbox.gaps import Gaps, began_below, indexes_alone, may_be_compacted, may_begin_later
from kafkalog.toolbox.losses import Losses, LostRange
from kafkalog.toolbox.lost_end import lost_end
from kafkalog.toolbox.reindex import check_indexes, rewrite
from kafkalog.toolbox.report import TOO_LARGE
from kafkalog.toolbox.second_look import Wrong, look_while_it_rests
from kafkalog.toolbox.space import AT_MOST, NOTHING_LEFT, bytes_in, telling_full
from kafkalog.toolbox.unread import FileAroundBadBlocks, is_of_bad_blocks, no_file, unread

__all__ = ["Lost", "SalvageReport", "salvage"]


@dataclass
class SalvageReport:
    """The result of a salvage: what was copied, and what was not.

    `ranges` are the lost records, with their times.  `unsettled` are the reasons why partitions were not copied: they
    are being written, or were deleted meanwhile.  `notes` say what may be lost."""

    lost: list[Lost] = field(default_factory=list)
    partitions: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    epochs_mended: int = 0  # batches whose leader epoch did not fit between those of their neighbours
    unsettled: list[BeingWrittenException | UnknownTopicOrPartitionException] = field(default_factory=list)
    ranges: list[LostRange] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def take(self, other: SalvageReport) -> None:
        """Adds another report.

        Args:
            other: The report to add.
        """
        self.lost += other.lost
        self.ranges += other.ranges
        self.partitions += other.partitions
        self.batches += other.batches
        self.records += other.records
        self.bytes += other.bytes
        self.epochs_mended += other.epochs_mended
        self.unsettled += other.unsettled
        self.notes += other.notes


def _wrong(report: SalvageReport) -> list[Wrong]:
    return [Wrong(lost.path, lost.position, lost.what) for lost in report.lost]


def salvage(
    source_dir: str | os.PathLike[str],
    target_dir: str | os.PathLike[str],
    partitions: Mapping[TopicPartition, str],
    *,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
) -> SalvageReport:
    """Copies what can be read of some partitions to a new directory.

    Everything is copied to `TARGET.kafkalog-partial`, synced, and then renamed, so an existing target has everything
    that could be read.  After an error the unfinished copy is removed.

    Args:
        source_dir: The damaged log directory.
        target_dir: The directory to create, which must not exist or be empty.  Neither may be inside the other.
        partitions: The partitions, each with its directory.
        files: The file system; for tests.
        progress: Called with the number of bytes just copied.

    Returns:
        A `SalvageReport`.  Its `lost` lists what cannot be read of the source.

    Raises:
        IllegalArgumentException: The target is not empty, or is in the source.
        LogDirLockedException: Another salvage to the target is running.
        DiskFull: The target's disk is full.
        OSError: The target cannot be written.

    Example:
        >>> from kafkalog.toolbox.salvage import salvage
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append_many([b"one", b"two"])
        >>> report = salvage("shop", "salvaged", kafkalog.list_partitions("shop"))
        >>> report.records, report.lost
        (2, [])
    """
    values.function(progress, "progress", "a function of the bytes just copied")
    source, target = (local_path(given, files=files) for given in (source_dir, target_dir))
    refuse_one_in_other(source, target)
    target = target_path(target, "target_dir", files)
    _refuse_existing(target, files)
    unfinished = partial_path(target, [source], files)
    full = telling_full(
        target,
        "what is salvaged",
        files,
        needed=lambda: bytes_in(partitions.values(), files),
        then=lambda: NOTHING_LEFT,
        known=AT_MOST,
    )
    with full, made_whole(target, unfinished, lambda: _refuse_existing(target, files), files):
        return _salvage_to(source, unfinished, partitions, files, progress)


def _refuse_existing(target: str, files: Files) -> None:
    if files.exists(target) and (not files.is_dir(target) or files.list_dir(target)):
        raise IllegalArgumentException("the directory is not empty; expected one that is new or empty", path=target)


def _salvage_to(
    source: str,
    target: str,
    partitions: Mapping[TopicPartition, str],
    files: Files,
    progress: Callable[[int], None] | None,
) -> SalvageReport:
    files.mkdirs(target)
    report = SalvageReport()
    flushed = _read_offsets(source, names.RECOVERY_POINT_CHECKPOINT_FILE, files, report)
    starts = _read_offsets(source, names.LOG_START_OFFSET_CHECKPOINT_FILE, files, report)
    compacted = may_be_compacted(source, partitions, files, if_unknown=False)
    begins_later = may_begin_later(source, partitions, files)
    for partition, path in partitions.items():
        copy = os.path.join(target, str(partition))

        def look(source_path: str = path, copy: str = copy, partition: TopicPartition = partition) -> SalvageReport:
            ends = max(starts.get(partition, 0), 0), flushed.get(partition, 0)
            for around in (False, True):
                if files.exists(copy):
                    files.remove_tree(copy)  # left by an earlier attempt
                here = SalvageReport(partitions=1)
                one = _Salvage(source_path, copy, files, here, progress, ends, partition in compacted, around=around)
                one.begins_later = partition in begins_later
                if one.run():
                    break
            return here

        try:
            report.take(look_while_it_rests(source, partition, look, _wrong, files=files))
        except (BeingWrittenException, UnknownTopicOrPartitionException) as error:
            if files.exists(copy):
                files.remove_tree(copy)
            report.unsettled.append(error)
    _write_checkpoints(target, {each: offset for each, offset in starts.items() if each in partitions}, files)
    path = os.path.join(source, names.TOPIC_CONFIGS_FILE)
    try:
        for topic in {partition.topic for partition in partitions}:
            # with the default settings retention might delete what was just saved
            take_over(source, target, topic, files)
    except CorruptCheckpointException as error:
        what = f"the topics' settings: {error.message}"
        report.lost.append(Lost(path, 0, files.stat(path).size, 0, -1, what))
    except OSError as error:
        wrong = unread(error, path)
        if wrong is None:
            raise
        report.lost.append(Lost(path, 0, 0, 0, -1, f"the topics' settings: {wrong.what}"))
    if partitions.keys() == list_partitions(source, files=files).keys():
        _take_server_files(source, target, files, report)
    files.sync_dir(target)
    return report


def _take_server_files(source: str, target: str, files: Files, report: SalvageReport) -> None:
    """Copies what a server keeps next to the data, as far as it can be read."""
    for name in names.SERVER_FILES:
        path = os.path.join(source, name)
        try:
            data = read_small(path, files)
        except FileNotFoundError:
            continue
        except OSError as error:
            wrong = unread(error, path)
            if wrong is None:
                raise
            report.lost.append(Lost(path, 0, 0, 0, -1, wrong.what))
            continue
        files.write_atomic(os.path.join(target, name), data, private=name == names.SERVER_STATE_FILE)


def _read_offsets(source: str, name: str, files: Files, report: SalvageReport) -> Mapping[TopicPartition, int]:
    """Returns a checkpoint of the source; empty if it is missing or damaged.  One that cannot be read is reported."""
    path = os.path.join(source, name)
    try:
        return OffsetCheckpointFile(path, files, create=False).read()
    except FileNotFoundError:
        return {}
    except (KafkalogError, OSError) as error:
        wrong = unread(error, path)
        if wrong is not None:
            report.lost.append(Lost(path, 0, 0, 0, -1, wrong.what))
        elif not isinstance(error, KafkalogError):
            raise
        return {}


def _write_checkpoints(target: str, kept: Mapping[TopicPartition, int], files: Files) -> None:
    OffsetCheckpointFile(os.path.join(target, names.LOG_START_OFFSET_CHECKPOINT_FILE), files, create=False).write(kept)
    # Nothing is known to be flushed; without the file an open would warn that it is missing.
    OffsetCheckpointFile(os.path.join(target, names.RECOVERY_POINT_CHECKPOINT_FILE), files, create=False).write({})


class _Salvage:
    """One partition.  `ends` are its log start and the offset up to which it was flushed, as checkpointed.  With
    `around`, logs are read around blocks that the disk cannot read."""

    def __init__(
        self,
        source: str,
        target: str,
        files: Files,
        report: SalvageReport,
        progress: Callable[[int], None] | None,
        ends: tuple[int, int],
        may_be_compacted: bool,
        *,
        around: bool,
    ) -> None:
        self._source = source
        self._target = target
        self._files = files
        self._report = report
        self._progress = progress or (lambda size_bytes: None)
        self._next_offset = 0
        self._epochs = EpochOrder()
        self._losses = Losses(source, files)
        self._start, self._flushed = ends
        self._may_be_compacted = may_be_compacted
        self._around = around
        self.begins_later = True  # its epochs may begin before its first segment
        self._told_up_to = 0  # missing offsets below this one were reported
        self._has_told_end = False
        self._before: int | None = None  # the segment before the current one

    def run(self) -> bool:
        """Copies the partition.  Returns False if the disk cannot read some blocks of a log, so that reading around
        them may copy more."""
        files = self._files
        try:
            listed = files.list_dir(self._source)
        except OSError as error:
            self._tell_unread(error, self._source)
            self._report.ranges.append(self._losses.segment(self._source, 0, None))
            self._report.partitions = 0
            return True
        files.mkdirs(self._target)
        for name in listed:
            self._tell_odd(name)
        segments = sorted(load_cases.log_files(listed, self._next_offset_of).items())
        bases = [base for base, _ in segments]
        lonely = indexes_alone(listed, bases)
        first_offset = None if self.begins_later else began_below(self._source, files)
        self._gaps = Gaps(self._source, lonely, files, self._start, first_offset)
        for (base, name), following in zip_longest(segments, bases[1:]):
            path = os.path.join(self._source, name)
            self._tell_gap(path, base)
            if not self._segment(base, following, path):
                return False
        self._tell_missing_end(lonely, segments)
        self._report.epochs_mended += self._epochs.mend(files)
        self._copy_metadata()
        for segment in check_indexes(self._target, files=files):
            rewrite(segment, files=files)
        files.sync_dir(self._target)
        return True

    def _copy_metadata(self) -> None:
        files, path = self._files, os.path.join(self._source, names.PARTITION_METADATA_FILE)
        if not files.exists(path):
            return
        try:
            data = read_small(path, files, bytes_max=NOTE_BYTES_MAX)
        except OSError as error:
            self._tell_unread(error, path)
            return
        files.write_atomic(os.path.join(self._target, names.PARTITION_METADATA_FILE), data)

    def _tell_unread(self, error: OSError, path: str, first_offset: int = 0, last_offset: int = -1) -> None:
        """Reports a file or directory of the source that cannot be read; raises any other error."""
        wrong = unread(error, self._source)
        if wrong is None:
            raise error
        self._report.lost.append(Lost(path, 0, 0, first_offset, last_offset, wrong.what))

    # --- what is not there ---------------------------------------------------------------------------

    def _tell_gap(self, path: str, base: int) -> None:
        """Reports offsets before a segment that no other segment has, if they were not reported yet."""
        before, self._before = self._before, base
        gap = self._gaps.in_front_of(base, before, self._next_offset, self._told_up_to)
        if gap is None:
            return
        if self._may_be_compacted and gap.why is None:
            self._report.notes.append(f"{path}: {gap}: compaction leaves such gaps, or a segment's file may be missing")
            return
        missing = f"the file {names.log_file('', gap.first_offset)} is missing"
        what = f"in no segment: {gap.why or missing}"
        self._report.lost.append(Lost(path, 0, 0, gap.first_offset, gap.last_offset, what))
        self._report.ranges.append(self._losses.segment(path, gap.first_offset, base))

    def _tell_missing_end(self, lonely: list[int], segments: list[tuple[int, str]]) -> None:
        """Reports segments that were after the last one, or offsets that were flushed, and are missing."""
        if self._has_told_end:
            return
        first = max(self._next_offset, self._start)
        bases = [base for base, _ in segments]
        end = lost_end(self._source, bases, self._flushed, self._next_offset, self._start)
        lonely = [each for each in lonely if each >= first]
        if lonely:
            path = names.log_file(self._source, lonely[0])
            what = "the file is missing, although its index still exists" + ("" if end is None else f"; {end.what}")
        elif end is not None:
            path, what = end.path, end.what
        else:
            return
        last = first - 1 if end is None else end.last_offset
        self._report.lost.append(Lost(path, 0, 0, first, last, what))
        self._report.ranges.append(self._losses.segment(path, first, None if end is None else last + 1))

    # --- what is there -------------------------------------------------------------------------------

    def _tell_odd(self, name: str) -> None:
        """Reports a file such as `5.log`, and does not copy it.  Kafka reads the file of twenty digits, whatever else
        has the offset in its name, so another file is no part of the log."""
        if name.endswith(names.LOG_FILE_SUFFIX) and names.segment_base(name) is None:
            path = os.path.join(self._source, name)
            what = "the file's name is not a segment's (twenty digits and .log), so Kafka does not read it"
            size = self._files.stat(path).size if self._files.exists(path) else 0
            self._report.lost.append(Lost(path, 0, size, 0, -1, what))

    def _next_offset_of(self, swap: str) -> int:
        """Returns the offset after the last good batch of a segment that a crash kept from replacing others."""
        end = base = names.offset_from_filename(swap)
        path = os.path.join(self._source, swap)
        if no_file(path, self._files) is not None:
            return end  # reported with its segment
        try:
            with self._open(path) as file:
                size = min(file.size(), SEGMENT_FILE_BYTES_MAX)

                def skip(position: int, _: int) -> int:
                    found = next_batch(file, position + 1, size, min_offset=base, base_offset=base)
                    return size if found is None else found.position

                for piece in slices_past_damage(file, size, skip):
                    end = max(end, int(piece.table["last_offset"].max(initial=base - 1)) + 1)
        except OSError as error:
            self._tell_unread(error, path)
        return end

    def _open(self, path: str) -> File:
        file = self._files.open(path, writable=False)
        return FileAroundBadBlocks(file) if self._around else file

    def _segment(self, base: int, following: int | None, path: str) -> bool:
        """Copies what can be read of a segment; returns False as `run` does."""
        self._next_offset = max(self._next_offset, base)
        odd = no_file(path, self._files)
        try:
            if odd is None:
                self._copy_segment(base, following, path)
                return True
        except OSError as error:
            if is_of_bad_blocks(error) and not self._around and unread(error, self._source) is not None:
                return False
            odd = unread(error, self._source)
            if odd is None:
                raise
        first, end = self._next_offset, self._next_offset if following is None else following
        self._report.lost.append(Lost(path, 0, 0, first, end - 1, odd.what))
        self._report.ranges.append(self._losses.segment(path, first, following))
        self._told_up_to, self._has_told_end = end, following is None
        self._settle_copy(names.log_file(self._target, base), is_last=following is None)
        return True

    def _settle_copy(self, copy: str, *, is_last: bool) -> None:
        """Keeps what was copied of a log before it became unreadable; an empty last log keeps the log's end."""
        files = self._files
        if not files.exists(copy):
            if is_last:
                files.write_file(copy, b"", sync=True)
        elif is_last or files.stat(copy).size:
            files.sync_file(copy)
        else:
            files.unlink(copy)

    def _copy_segment(self, base: int, following: int | None, path: str) -> None:
        files = self._files
        with (
            self._open(path) as file,
            files.open(names.log_file(self._target, base), create=True, exclusive=True) as out,
        ):
            size, written = min(file.size(), SEGMENT_FILE_BYTES_MAX), 0
            if file.size() > size:
                self._report.lost.append(
                    Lost(path, size, file.size() - size, 0, -1, f"the file has {file.size()} bytes, {TOO_LARGE}")
                )
                self._told_up_to = max(self._told_up_to, following or 0)
            skip = partial(self._skip, file, path, size, base, following)
            for piece in slices_past_damage(file, size, skip):
                written += self._copy(path, piece, out, written, base, following)
                self._progress(int(piece.table["size"].sum()))
            if written:
                out.sync()
        if not written and following is not None:
            files.unlink(names.log_file(self._target, base))

    def _copy(self, path: str, piece: ScanSlice, out: File, written: int, base: int, following: int | None) -> int:
        """Writes the good batches of a slice in one write for each run; returns the bytes written."""
        table = piece.table
        limit = highest_offset(base, following)
        good = np.ones(len(table), bool)
        for row in misfits(table, self._next_offset, limit):
            good[row] = False
            entry = table[row]
            what = (
                f"a batch claims the offsets {int(entry['base_offset'])} to {int(entry['last_offset'])} and "
                f"magic {int(entry['magic'])}; expected offsets from {self._next_offset} to {limit}"
            )
            self._report.lost.append(Lost(path, int(entry["position"]), int(entry["size"]), 0, -1, what))
            self._report.ranges.append(self._losses.misfit(path, entry))
        if not good[-1]:  # it explains what is missing after the last good one
            self._told_up_to = max(self._told_up_to, following or 0)
        kept = table[good]
        if not len(kept):
            return 0
        self._losses.passed(kept)
        self._next_offset = int(kept["last_offset"][-1]) + 1
        self._report.batches += len(kept)
        self._report.records += int(np.where(kept["magic"] >= 2, kept["record_count"], 1).sum())
        done = 0
        breaks = np.flatnonzero(kept["position"][1:] != kept["position"][:-1] + kept["size"][:-1]) + 1
        for run in np.split(kept, breaks):
            start = int(run["position"][0]) - piece.position
            length = int(run["size"].sum())
            out.pwrite(piece.data[start : start + length], written + done)
            self._epochs.add(out.path, run, written + done)
            done += length
        self._report.bytes += done
        return done

    def _skip(self, file: File, path: str, size: int, base: int, following: int | None, position: int, why: int) -> int:
        found = next_batch(file, position + 1, size, min_offset=self._next_offset, base_offset=base)
        end = size if found is None else found.position
        unreadable = file.why_not(position, end) if isinstance(file, FileAroundBadBlocks) else None
        if found is not None:
            last = found.base_offset - 1
        elif following is not None:
            last = following - 1
        else:
            last = self._next_offset - 1
            if unreadable is None and (why == native.OK or all_zero(file, position, size)):
                return end  # a few bytes or zeros after the end of the log were never records
            self._has_told_end = True
        self._told_up_to = max(self._told_up_to, last + 1)
        what = unreadable or VERDICT_TEXT.get(why, "bytes that are not a batch")
        self._report.lost.append(Lost(path, position, end - position, self._next_offset, last, what))
        self._report.ranges.append(self._losses.damage(file, base, position, end, self._next_offset, found, following))
        self._progress(end - position)
        return end


def __dir__() -> list[str]:
    return __all__
