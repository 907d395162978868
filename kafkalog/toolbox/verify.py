"""Is this log directory whole?  Every batch with its CRC, every index entry, every small file; a map of what is not.

Reads only, takes no lock, works beside a running broker (the active segment's end moves then).  Checks also what no
CRC covers: base offsets against their neighbours, magic, order of leader epochs.  Goes on behind damage at the next
batch that can be proved.  Memory is bounded by one slice of the file or one batch.  `deep` decodes every record and
holds producers' sequences, transactions and epochs against the log too (`kafkalog.toolbox.deep`).

Somebody may append, roll, truncate or delete meanwhile.  So what is wrong with a file that changed, or went, while it
was looked at is looked at again, and what went is not there; of a file that never rests a finding is what two looks
in a row saw.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import zip_longest

import numpy as np

from kafkalog._limits import SEGMENT_FILE_BYTES_MAX
from kafkalog._native.codec import batches as native
from kafkalog.engine.files import OS_FILES, File, Files, local_path
from kafkalog.engine.format import names, values
from kafkalog.engine.format.batch import RECORD_BATCH_OVERHEAD
from kafkalog.engine.format.checkpoints import (
    NO_ENTRIES,
    CleanShutdownFile,
    LeaderEpochCheckpointFile,
    OffsetCheckpointFile,
    emptied_checkpoints,
)
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import read_partition_metadata
from kafkalog.engine.format.snapshots import read_snapshot
from kafkalog.engine.host.log_dirs import list_partitions
from kafkalog.engine.segment.loss import VERDICT_TEXT, all_zero
from kafkalog.engine.segment.order import highest_offset, misfits
from kafkalog.engine.segment.resync import next_batch, slices_past_damage
from kafkalog.errors import (
    CorruptIndexException,
    KafkalogError,
    KafkaStorageException,
    RemoteResourceNotFoundException,
    RemoteStorageException,
    RetriableRemoteStorageException,
    UnknownTopicOrPartitionException,
)
from kafkalog.toolbox.folders import another_name, folders_of
from kafkalog.toolbox.index_check import IndexCheck
from kafkalog.toolbox.report import MOST_FINDINGS, SECOND_LOOK_S, TOO_LARGE, Report

__all__ = ["SegmentCheck", "verify", "verify_directory"]

LOOKS_MAX = 3  # at a segment in which something is wrong, and which is being written


def verify(
    log_dir: str | os.PathLike[str],
    partitions: Iterable[TopicPartition | str] | None = None,
    *,
    deep: bool = False,
    gaps: bool = False,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Check a log directory, or some of its partitions.

    `gaps`: offsets between two segments that neither has are a finding, too: compaction leaves such, and nothing else.
    `progress` is called with the number of bytes just checked.  UnknownTopicOrPartitionException for a partition that
    is not there; KafkaStorageException if a file cannot be read.
    """
    values.function(progress, "progress", "a function of the bytes just checked")
    deep = values.flag(deep, "deep")
    root = local_path(log_dir, what="log_dir", files=files)
    there = list_partitions(root, files=files)
    report = Report()
    if partitions is None:
        chosen = dict(there)
        try:
            verify_directory(root, files, report)
        except OSError as error:
            raise KafkaStorageException.because_of(error, "cannot verify the log directory") from error
    else:
        by_name = {str(tp): tp for tp in there}
        chosen = {}
        for wanted in partitions:
            found = by_name.get(str(wanted))
            if found is None:
                raise UnknownTopicOrPartitionException(f"no partition {wanted} in {root}")
            chosen[found] = there[found]
    # Where the checkpoint has logs begin; what is wrong with it is told elsewhere.
    checkpoint = os.path.join(root, names.LOG_START_OFFSET_CHECKPOINT_FILE)
    starts = OffsetCheckpointFile(checkpoint, files, create=False).read_or_empty()
    for partition, path in chosen.items():
        report.partitions += 1
        try:
            log_start = starts.get(partition, 0)
            verify_partition(path, files, report, deep=deep, gaps=gaps, log_start=log_start, progress=progress)
        except OSError as error:
            raise KafkaStorageException.because_of(error, f"cannot verify {partition}") from error
    return report


def verify_directory(root: str, files: Files, report: Report) -> None:
    """Check what a log directory has beside partitions: its checkpoints, and the names of folders."""
    reads: dict[str, Callable[[], object]] = {}
    for name in names.OFFSET_CHECKPOINT_FILES:
        path = os.path.join(root, name)
        if files.exists(path):
            reads[path] = OffsetCheckpointFile(path, files, create=False).read
    _check_small_files(reads, report)
    _check_blank(root, files, report)
    for path, partition in folders_of(root, files).other_names.items():
        report.add(path, 0, 0, another_name(path, partition).removeprefix(f"{path}: "))


def _check_blank(root: str, files: Files, report: Report) -> None:
    def blank() -> list[str]:
        return emptied_checkpoints(root, files, closed_cleanly=CleanShutdownFile(root, files).exists())

    found = blank()
    if found:  # who writes the first lines of both writes one after the other
        time.sleep(SECOND_LOOK_S)
        still = blank()
        for path in found:
            if path in still:
                report.add(path, 0, 0, f"found {NO_ENTRIES}")


def _check_small_files(reads: dict[str, Callable[[], object]], report: Report) -> None:
    """Findings where reading a small file fails for what is in it; the reads by path."""
    doubted = [path for path, read in reads.items() if _problem(read) is not None]
    if doubted:
        time.sleep(SECOND_LOOK_S)
    for path in doubted:
        problem = _problem(reads[path])
        if problem is not None:
            report.add(path, problem.position or 0, 0, _told(problem))


def _problem(read: Callable[[], object]) -> KafkalogError | None:
    try:
        read()
    except RemoteResourceNotFoundException as error:
        return error
    except FileNotFoundError:  # since it was listed
        return None
    except KafkalogError as error:
        return error
    return None


def _told(error: KafkalogError) -> str:
    """What is wrong, and with which object, where it is about one."""
    if isinstance(error, RemoteResourceNotFoundException):
        return f"{error.message} ({error.path})"
    return error.message if error.hint is None else f"{error.message} ({error.hint})"


def _is_of_object(error: RemoteStorageException) -> bool:
    """Whether what is wrong is the object: each try found it, and too short, or it was refused."""
    retriable = RetriableRemoteStorageException
    return not isinstance(error, retriable) or isinstance(error.__cause__, retriable)


def verify_partition(
    directory: str,
    files: Files,
    report: Report,
    *,
    deep: bool = False,
    gaps: bool = False,
    log_start: int = 0,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Check one partition's folder into `report`; `log_start` as it was checkpointed."""
    try:
        listed = files.list_dir(directory)
    except FileNotFoundError:
        report.notes.append(f"{directory}: went away before it was looked at")
        return
    bases = []
    small: dict[str, Callable[[], object]] = {}
    for name in listed:
        path = os.path.join(directory, name)
        if name.endswith(names.LOG_FILE_SUFFIX):
            base = names.segment_base(name)
            if base is not None:
                bases.append(base)
            else:
                report.add(path, 0, 0, "not the name of a segment: twenty digits and .log are expected")
        elif name.endswith(names.PRODUCER_SNAPSHOT_FILE_SUFFIX):
            small[path] = partial(read_snapshot, path, files)
        elif name == names.LEADER_EPOCH_CHECKPOINT_FILE:
            small[path] = LeaderEpochCheckpointFile(path, files, create=False).read
        elif name == names.PARTITION_METADATA_FILE:
            small[path] = partial(read_partition_metadata, path, files)
        elif name.endswith((names.CLEANED_FILE_SUFFIX, names.SWAP_FILE_SUFFIX)):
            report.notes.append(f"{path}: left by an interrupted compaction or split; the next open settles it")
    _check_small_files(small, report)
    bases.sort()
    lonely = _without_log(listed)
    if lonely:
        time.sleep(SECOND_LOOK_S)
        lonely &= _without_log(files.list_dir(directory))
    for name in sorted(lonely):
        report.add(os.path.join(directory, name), 0, 0, "an index without its .log file")
    checker = SegmentCheck(directory, files, report, progress)
    checker.tells_gaps = gaps
    deep_check = None
    if deep:
        from kafkalog.toolbox.deep import DeepCheck

        deep_check = DeepCheck(directory, listed, files, report, log_start)
        checker.observe = deep_check.observe
    for base, following in zip_longest(bases, bases[1:]):
        if not checker.check(base, following) and deep_check is not None:
            deep_check.begin_anew()  # all before it has gone too
    if deep_check is not None:
        deep_check.finish(checker.next_offset)


def _without_log(listed: list[str]) -> set[str]:
    """The names of index files whose segment has no .log among them."""
    known = set(names.offsets_in(listed))
    return {
        name
        for name in listed
        if names.is_index_file(name) and names.segment_base(name, os.path.splitext(name)[1]) not in known
    }


class SegmentCheck:
    """Walks the segments of one partition in order; remembers where the last one ended."""

    def __init__(
        self, directory: str, files: Files, report: Report, progress: Callable[[int], None] | None = None
    ) -> None:
        self.directory = directory
        self.files = files
        self.report = report
        self.next_offset = 0  # the lowest offset that the next batch may have
        self.epoch = -1
        self.tells_gaps = False
        self.observe: Callable[[str, np.ndarray, memoryview, int], None] | None = None
        self._progress = progress or (lambda size_bytes: None)
        self._walked = False  # the segment's log: records are followed, and progress told, once
        self._is_over = False  # what is left of it is the next one's

    def check(self, base: int, following: int | None) -> bool:
        """One segment's log and indexes, by its `base` offset and the `following` one's.  False: it is not there."""
        whole, begin = self.report, (self.next_offset, self.epoch)
        path = names.log_file(self.directory, base)
        before: set[tuple[str, int, str]] = set()
        self._walked = False
        try:
            for look in range(1, LOOKS_MAX + 1):
                last = look == LOOKS_MAX
                self.report, (self.next_offset, self.epoch) = Report(), begin
                stamps = self._stamps(base)
                gone = False
                try:
                    self._look(base, following)
                except FileNotFoundError as error:
                    gone = True
                    if isinstance(error, RemoteResourceNotFoundException):  # an object; metadata or a listing has it
                        self.report.findings = []  # such as that indexes are missing, too
                        self.report.add(path, 0, 0, _told(error))
                        self.next_offset = base if following is None else following
                    elif last and self.files.exists(path):
                        raise
                except RemoteStorageException as error:
                    if not _is_of_object(error):
                        raise
                    self.report.add(path, error.position or 0, 0, _told(error))
                    self.next_offset = base if following is None else following
                found = self.report.findings
                if (gone or found) and not self.files.exists(path):
                    self.next_offset, self.epoch = begin
                    return False
                now = self._following(base) if found else following
                if not gone and (not found or (now == following and stamps == self._stamps(base))):
                    break
                if last:
                    self.report.findings = [it for it in found if (it.path, it.position, it.what) in before]
                    break
                before, following = {(it.path, it.position, it.what) for it in found}, now
                time.sleep(SECOND_LOOK_S)
            whole.take(self.report)
        finally:
            self.report = whole
        return True

    def _stamps(self, base: int) -> list[tuple[int, int] | None]:
        """Size and time of change of a segment's files; None for one that is not there."""
        stamps: list[tuple[int, int] | None] = []
        for suffix in (names.LOG_FILE_SUFFIX, *names.INDEX_FILE_SUFFIXES):
            try:
                stat = self.files.stat(names.segment_stem(self.directory, base) + suffix)
                stamps.append((stat.size, stat.mtime_ms))
            except (FileNotFoundError, CorruptIndexException):  # the latter of an object: it does not change
                stamps.append(None)
        return stamps

    def _following(self, base: int) -> int | None:
        """The base offset of the segment behind one, as the folder has it now."""
        listed = names.offsets_in(self.files.list_dir(self.directory))
        return min((offset for offset in listed if offset > base), default=None)

    def _tell(self, size_bytes: int) -> None:
        if not self._walked:
            self._progress(size_bytes)

    def _look(self, base: int, following: int | None) -> None:
        path = names.log_file(self.directory, base)
        self._is_over = False
        self.report.segments += 1
        if base < self.next_offset:
            self.report.add(
                path, 0, 0, f"begins at offset {base}, but the segment before it goes up to {self.next_offset - 1}"
            )
        elif self.tells_gaps and 0 < self.next_offset < base:
            self.report.add(path, 0, 0, f"no segment has the offsets {self.next_offset} to {base - 1} in front of it")
        self.next_offset = base
        indexes = IndexCheck(self.directory, base, self.files, self.report, last_segment=following is None)
        with self.files.open(path, writable=False) as file:
            size = min(file.size(), SEGMENT_FILE_BYTES_MAX)
            self.report.bytes += size
            if file.size() > size:
                self.report.add(path, size, file.size() - size, f"found {file.size()} bytes, {TOO_LARGE}")
            skip = partial(self._damage, file, path, size, base, following)
            for piece in slices_past_damage(file, size, skip):
                table = self._own(path, piece.table, following)
                if len(table):
                    self._check_table(path, table, base, following)
                    indexes.feed(table)
                    if self.observe is not None and not self._walked:
                        self.observe(path, table, piece.data, piece.position)
                self._tell(int(piece.table["size"].sum()))
            self._walked = True
        indexes.finish()
        self.report.notes += [f"{path}: {what}" for path, what in indexes.remarks]

    def _own(self, path: str, table: np.ndarray, following: int | None) -> np.ndarray:
        """The batches in front of those that the next segment has, too, and begins with."""
        if self._is_over:
            return table[:0]
        starts = np.flatnonzero(table["base_offset"] == (-1 if following is None else following))
        if len(starts) and self.files.may_overlap(path):
            self._is_over, table = True, table[: starts[0]]
        return table

    def _check_table(self, path: str, table: np.ndarray, base: int, following: int | None) -> None:
        self.report.batches += len(table)
        counts = table["record_count"]
        self.report.records += int(np.where(table["magic"] >= 2, counts, 1).sum())
        modern = table["magic"] >= 2
        limit = highest_offset(base, following)
        good = np.ones(len(table), bool)
        for row in misfits(table, self.next_offset, limit):
            good[row] = False
            entry = table[row]
            if 0 <= int(entry["magic"]) <= 2:
                self.report.add_row(
                    path,
                    entry,
                    f"offsets {int(entry['base_offset'])} to {int(entry['last_offset'])} do not fit here, expected "
                    f"{self.next_offset} to {limit} (base offsets are not covered by the CRC)",
                )
        if good.any():
            self.next_offset = max(self.next_offset, int(table["last_offset"][good].max()) + 1)
        epochs = table["leader_epoch"].astype(np.int64)
        running = np.maximum.accumulate(np.concatenate(([self.epoch], epochs)))
        for row in np.flatnonzero(modern & (epochs >= 0) & (epochs < running[:-1]))[:MOST_FINDINGS]:
            self.report.add_row(
                path,
                table[row],
                f"leader epoch {int(epochs[row])} after {int(running[row])} (epochs are not covered by the CRC)",
            )
        self.epoch = int(running[-1])
        for row in np.flatnonzero(modern & (epochs < -1))[:MOST_FINDINGS]:
            self.report.add_row(path, table[row], f"impossible leader epoch {int(epochs[row])}")
        for row in np.flatnonzero((table["magic"] < 0) | (table["magic"] > 2))[:MOST_FINDINGS]:
            self.report.add_row(
                path, table[row], f"unknown magic {int(table['magic'][row])} (magic is not covered by the CRC)"
            )
        for row in np.flatnonzero(modern & (counts < 0))[:MOST_FINDINGS]:
            self.report.add_row(path, table[row], f"impossible record count {int(counts[row])}")

    def _damage(
        self, file: File, path: str, size: int, base: int, following: int | None, position: int, why: int
    ) -> int:
        """Report what begins at `position`; returns where to go on."""
        if following is None and all_zero(file, position, size):
            self.report.notes.append(
                f"{path}: {size - position} zero bytes behind the log's end at {position} (preallocated, or never "
                "written before a power loss)"
            )
            self._tell(size - position)
            return size
        head = file.pread(RECORD_BATCH_OVERHEAD, position).ljust(RECORD_BATCH_OVERHEAD, b"\0")
        found = next_batch(file, position + 1, size, min_offset=self.next_offset, base_offset=base)
        end = size if found is None else found.position
        what = VERDICT_TEXT.get(why, "bytes that are no batch")
        if why == native.BAD_CRC:
            header = native.header_at(head)
            what = f"a bad CRC (stored {header.crc}) at offset {header.base_offset}"
        elif why == native.OK:
            what = "a tail too short for a batch"
        if found is not None:
            gone = found.base_offset - self.next_offset
            what += f"; the next good batch begins at offset {found.base_offset}"
            if gone > 0:
                what += f" ({gone} offsets lost)"
        elif following is None:
            what += "; nothing good behind it (an unclean open cuts here)"
        self.report.add(path, position, end - position, what)
        self._tell(end - position)
        return end


def __dir__() -> list[str]:
    return __all__
