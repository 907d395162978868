"""Copies one partition into a backup: which files, up to where, and what their check says.

See `kafkalog.toolbox.backup` for what is consistent.  Used by one thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest

from kafkalog._limits import INT_MAX
from kafkalog._native.codec import batches as native
from kafkalog._native.codec.crc32c import crc32c
from kafkalog.engine.format import names
from kafkalog.engine.format.checkpoints import LeaderEpochCheckpointFile
from kafkalog.engine.format.index_entries import TXN_ENTRIES
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.format.small_files import NOTE_BYTES_MAX, read_small
from kafkalog.engine.format.snapshots import read_snapshot
from kafkalog.engine.log.snapshot import SegmentView, Snapshot
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.segment import index_reader
from kafkalog.engine.segment.scan import LogScan
from kafkalog.errors import BadBytesError, BeingWrittenException, CorruptCheckpointException
from kafkalog.toolbox.backup_files import (
    CLONED,
    COPIED,
    KEPT,
    LINKED,
    NO_STAMP,
    Changed,
    LogDigest,
    Placing,
    Progress,
    Taken,
    stamp_of,
)
from kafkalog.toolbox.backup_manifest import BackedPartition, BackedSegment
from kafkalog.toolbox.gaps import WITHOUT_LOG, Gap, Gaps, began_below, index_names_alone, indexes_alone
from kafkalog.toolbox.reindex import INDEX_INTERVAL_BYTES
from kafkalog.toolbox.report import SECOND_LOOK_S, Finding, Report, told
from kafkalog.toolbox.segment_check import SegmentCheck
from kafkalog.toolbox.unread import CANNOT_BE_READ, unread

__all__ = ["PartitionCopy"]

LOOKS_MAX = 20  # attempts, while files of the partition change during the copy
REST_S = 0.02  # the pause before each attempt grows by this


class PartitionCopy:
    """The copying of one partition into the backup."""

    def __init__(
        self,
        placing: Placing,
        view: PartitionView,
        target: str,
        end_of: Callable[[Snapshot], int],
        progress: Progress,
        *,
        tells_gaps: bool = False,
        begins_later: bool = True,
        log_start: int = 0,
    ) -> None:
        """`end_of` returns the offset at which the copy of a snapshot ends.  With `tells_gaps`, missing offsets between
        two segments are reported even if no index names them.  With `begins_later`, epochs may begin before the first
        segment.  `log_start` is the checkpointed log start offset."""
        self._placing = placing
        self._files = placing.files
        self._progress = progress
        self._view = view
        self._target = target
        self._end_of = end_of
        self._taken: dict[str, Taken] = {}
        self._tells_gaps, self._begins_later, self._start = tells_gaps, begins_later, log_start
        self._missing: list[Gap] = []
        self._wrong: list[Finding] = []  # about small files, and after the log's end
        self._seemed: frozenset[tuple[str, int]] = frozenset()  # where something seemed wrong at the previous attempt
        try:
            self._topic_id = topic_id_of(view.directory, placing.files)
        except OSError as error:
            if unread(error, view.directory) is None:
                raise
            self._topic_id = None  # reported when the file is copied
        self._base_folder = ""
        self._base: BackedPartition | None = None
        found = None if placing.base is None else placing.base.of(view.topic_partition, self._topic_id)
        if found is not None:
            self._base_folder, self._base = found

    def take(self) -> BackedPartition:
        """Copies and checks the partition.  Raises UnknownTopicOrPartitionException if it was deleted."""
        self._files.mkdirs(self._target)
        for look in range(LOOKS_MAX):
            seen = self._view.snapshot
            self._wrong.clear()
            try:
                backed = self._take(seen, self._end_of(seen))
                break
            except (Changed, FileNotFoundError) as error:
                changed = error
            time.sleep(REST_S * look)
            self._view.refresh()
        else:
            raise BeingWrittenException(
                f"{seen.topic_partition} is being written: its files changed at each of {LOOKS_MAX} attempts",
                path=seen.directory,
                hint="a compaction, a truncation or a move is running: try again when it has ended",
            ) from changed
        for name, taken in self._taken.items():
            self._placing.report.add(taken.how, taken.size)
            if taken.how != KEPT:
                self._placing.syncs.add(os.path.join(self._target, name))
        self._placing.syncs.add_dir(self._target)
        return backed

    def _take(self, seen: Snapshot, end: int) -> BackedPartition:
        if not seen.segments:
            place, position = -1, 0
        elif end == seen.log_end_offset:
            place, position = len(seen.segments) - 1, seen.end_position
            if seen.unreadable_end is not None:  # readers stop at the damage, but there is more: copy all bytes
                position = seen.segments[-1].size
                path, at, what = seen.unreadable_end
                self._wrong.append(Finding(path, at, position - at, what))
        else:
            place, position = seen.end_position_of(end)
        wanted: set[str] = set()
        for number, segment in enumerate(seen.segments[: place + 1]):
            wanted |= self._closed(segment) if number < place else self._last(segment, position, end)
        wanted |= self._small_files(seen, end)
        for name in self._files.list_dir(self._target):  # files that an earlier attempt left, complete or not
            if name not in wanted:
                self._files.unlink(os.path.join(self._target, name))
                self._taken.pop(name, None)
        segments = self._checked([segment.base_offset for segment in seen.segments], place + 1)
        for name, taken in self._taken.items():
            if taken.crc32c < 0:
                digest = self._placing.digest(os.path.join(self._target, name), taken.size)
                self._taken[name] = taken._replace(crc32c=digest)
        start = min(seen.log_start_offset, end)
        backed = {name: taken.backed() for name, taken in sorted(self._taken.items())}
        return BackedPartition(seen.topic_partition, self._topic_id, start, end, segments, backed)

    # --- segments ------------------------------------------------------------------------------------

    def _closed(self, segment: SegmentView) -> set[str]:
        """Copies the files of a closed segment; returns their names."""
        log = os.path.basename(names.log_file(segment.directory, segment.base_offset))
        self._whole(segment.path, log, (segment.inode, segment.mtime_ms), may_link=True)
        found = {log}
        stem = names.segment_stem(segment.directory, segment.base_offset)
        for suffix in names.INDEX_FILE_SUFFIXES:
            name = os.path.basename(stem) + suffix
            for source in (stem + suffix + segment.suffix, stem + suffix + names.SWAP_FILE_SUFFIX):
                try:
                    self._whole(source, name, None)
                    found.add(name)
                    break
                except FileNotFoundError:
                    pass
                except OSError as error:
                    if suffix == names.TXN_INDEX_FILE_SUFFIX:  # because nothing can rebuild it
                        raise
                    self._do_without(error)
        stat = self._files.stat(segment.path)
        if (stat.inode, stat.mtime_ms) != (segment.inode, segment.mtime_ms):
            raise Changed(segment.path)  # so its indexes may be those of another file
        return found

    def _whole(self, source: str, name: str, known: tuple[int, int] | None, *, may_link: bool = False) -> None:
        """Copies a file that nothing writes to; `known` are the inode and the modification time that it must have."""
        files = self._files
        stamp = stamp_of(files.stat(source))
        if known is not None and stamp[:2] != known:
            raise Changed(source)
        before = self._taken.get(name)
        if before is not None and before.stamp == stamp:
            return
        target = os.path.join(self._target, name)
        files.unlink_if_exists(target)
        self._taken.pop(name, None)
        taken = self._from_base(source, name, target, stamp)
        if taken is None:
            taken = Taken(self._placing.place(source, target, stamp[2], may_link=may_link), stamp[2], -1, stamp)
        if taken.how in (COPIED, CLONED) and may_link:
            files.set_mtime_ms(target, stamp[1])  # retention uses it if the records have no timestamps
        if stamp_of(files.stat(source)) != stamp or (taken.how == LINKED and files.stat(target).inode != stamp[0]):
            raise Changed(source)
        self._taken[name] = taken
        if may_link:
            self._progress(stamp[2])

    def _from_base(self, source: str, name: str, target: str, stamp: tuple[int, int, int]) -> Taken | None:
        """Links the file from the base if that has the same file, or the same bytes; otherwise returns None."""
        base, files = self._base, self._files
        held = None if base is None else base.files.get(name)
        segment = names.segment_base(name, os.path.splitext(name)[1])
        if base is None or held is None or held.size != stamp[2]:
            return None
        if not any(each.base_offset == segment and each.is_closed and each.is_sound for each in base.segments):
            return None
        if (held.inode, held.mtime_ms, held.source_size) != stamp and not (
            name.endswith(names.LOG_FILE_SUFFIX) and self._placing.digest(source, held.size) == held.crc32c
        ):
            return None
        there = os.path.join(self._base_folder, name)
        try:
            if files.stat(there).size != held.size or files.is_link(there):
                return None  # the base was changed
            files.link(there, target)
        except OSError:  # another file system, or too many links
            return None
        return Taken(KEPT, held.size, held.crc32c, stamp)

    def _last(self, segment: SegmentView, position: int, end: int) -> set[str]:
        """Copies the files of the segment in which the copy ends, at a position and an offset; returns their names."""
        files, base = self._files, segment.base_offset
        log = os.path.basename(names.log_file(segment.directory, base))
        target = os.path.join(self._target, log)
        files.unlink_if_exists(target)
        self._taken.pop(log, None)
        stat = files.stat(segment.path)
        if stat.inode != segment.inode or stat.size < position:
            raise Changed(segment.path)
        how = self._placing.place(segment.path, target, position)
        files.set_mtime_ms(target, segment.mtime_ms)
        for index in (names.offset_index_file(segment.directory, base), names.time_index_file(segment.directory, base)):
            with (
                suppress(FileNotFoundError),
                self._readable(),
                files.open(index + segment.suffix, writable=False) as it,
            ):
                it.pread(1, 0)  # the copy gets a new index; an error in reading this one is reported
        found = {log, *self._indexes(target, base, position)}
        name = log.removesuffix(names.LOG_FILE_SUFFIX) + names.TXN_INDEX_FILE_SUFFIX
        for suffix in {segment.suffix, names.SWAP_FILE_SUFFIX}:
            with suppress(FileNotFoundError):
                data = read_small(os.path.join(segment.directory, name + suffix), files)
                raw = index_reader.entries_of(data, TXN_ENTRIES)
                found.add(self._put(name, raw[raw["last_offset"] < end].tobytes()))
        stat = files.stat(segment.path)
        if stat.inode != segment.inode or stat.size < position:
            raise Changed(segment.path)
        if (stat.size, stat.mtime_ms) != (segment.size, segment.mtime_ms) and (
            self._placing.digest(segment.path, position) != self._placing.digest(target, position)
        ):
            raise Changed(segment.path)  # truncated, and grown again
        self._taken[log] = Taken(how, position, -1, NO_STAMP)
        self._progress(position)
        return found

    def _indexes(self, log: str, base: int, size: int) -> Iterator[str]:
        """Builds the indexes of the last log again: until the writer closes the source's indexes, they may have entries
        of what was truncated.  Yields their names."""
        plan = native.IndexPlan(base, INDEX_INTERVAL_BYTES)
        with self._files.open(log, writable=False) as file:
            for piece in LogScan(file, 0, size):
                if not plan.add_table(piece.table):
                    break
        plan.add_last_time_entry()
        for path, entries in (
            (names.offset_index_file(self._target, base), plan.offset_entries),
            (names.time_index_file(self._target, base), plan.time_entries),
        ):
            yield self._put(os.path.basename(path), entries)

    # --- small files ---------------------------------------------------------------------------------

    def _small_files(self, seen: Snapshot, end: int) -> set[str]:
        """Copies the other files of a partition, up to an offset; returns their names."""
        files, found = self._files, set()
        path = LeaderEpochCheckpointFile.new_file(seen.directory)
        epochs = LeaderEpochCheckpointFile(path, files, create=False)
        with suppress(FileNotFoundError), self._readable():
            try:
                data = epochs.encode([each for each in epochs.read() if each.start_offset < end])
            except CorruptCheckpointException as error:
                self._doubt(path, error)
                data = read_small(path, files)
            found.add(self._put(names.LEADER_EPOCH_CHECKPOINT_FILE, data))
        with suppress(FileNotFoundError), self._readable():
            path = os.path.join(seen.directory, names.PARTITION_METADATA_FILE)
            found.add(self._put(names.PARTITION_METADATA_FILE, read_small(path, files, bytes_max=NOTE_BYTES_MAX)))
        listed = files.list_files(seen.directory)
        for offset in names.offsets_in(listed, names.PRODUCER_SNAPSHOT_FILE_SUFFIX):
            if offset <= end:
                path = names.producer_snapshot_file(seen.directory, offset)
                with suppress(FileNotFoundError), self._readable():
                    name = self._put(os.path.basename(path), read_small(path, files))
                    try:
                        read_snapshot(os.path.join(self._target, name), files)
                    except BadBytesError as error:
                        self._doubt(path, error)
                    found.add(name)
        if seen.topic_partition.topic == names.CLUSTER_METADATA_TOPIC:
            for name in listed:
                if name == "quorum-state" or name.endswith(".checkpoint"):
                    with suppress(FileNotFoundError):
                        path = os.path.join(seen.directory, name)
                        found.add(self._put(name, read_small(path, files, bytes_max=INT_MAX)))
        return found

    def _put(self, name: str, data: bytes) -> str:
        target = os.path.join(self._target, name)
        self._files.unlink_if_exists(target)  # it may be a link to the base's file
        self._files.write_file(target, data)
        self._taken[name] = Taken(COPIED, len(data), crc32c(data), NO_STAMP)
        return name

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """For a file that an open can rebuild or do without: an error in reading it is reported, and not raised."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            self._do_without(error)

    def _do_without(self, error: OSError) -> None:
        """Reports a file of the source that cannot be read, and does not copy it; raises any other error."""
        wrong = unread(error, self._view.directory)
        if wrong is None:
            raise error
        self._wrong.append(wrong)

    def _doubt(self, path: str, error: BadBytesError) -> None:
        """Notes a small file that seems damaged.  It is read again; what stays wrong is reported."""
        self._wrong.append(Finding(path, error.position or 0, 0, told(error)))

    # --- the check -----------------------------------------------------------------------------------

    def _checked(self, all_bases: Sequence[int], count: int) -> list[BackedSegment]:
        """Checks the copies of the first `count` segments; returns what each holds.  Segments that seem
        damaged are copied and checked a second time."""
        bases = all_bases[:count]
        gaps = self._gaps(all_bases)
        self._missing.clear()
        report = Report()
        checker = SegmentCheck(self._target, self._files, report)
        segments: list[BackedSegment] = []
        doubted: list[int] = []
        for base, following in zip_longest(bases, bases[1:]):
            gap = checker.gap_before(base, gaps)
            if gap is not None and (gap.why is not None or self._tells_gaps):
                self._missing.append(gap)
                report.add(names.log_file(self._target, base), 0, 0, gap.told)
            kept = self._kept(base)
            if kept is not None:
                segments.append(kept)
                checker.pass_over(base, kept.end_offset, kept.leader_epoch)
                report.batches += kept.batches
                report.records += kept.records
                continue
            path = names.log_file(self._target, base)
            digest = LogDigest(self._files, path)
            checker.observe = digest.observe
            before = (report.batches, report.records, len(report.findings))
            is_there = checker.check(base, following)
            assert is_there, path  # nothing else writes to the backup
            name = os.path.basename(path)
            taken = self._taken[name]
            digest.finish(taken.size)
            if taken.crc32c not in (-1, digest.crc32c):
                report.add(path, 0, 0, "the base's file now reads as different bytes: is its disk failing?")
                self._placing.report.notes.append(f"{self._base_folder}/{name} does not match its manifest")
            self._taken[name] = taken._replace(crc32c=digest.crc32c)
            is_sound = len(report.findings) == before[2]
            if not is_sound:
                doubted.append(base)
            segments.append(
                BackedSegment(
                    base,
                    max(checker.next_offset, base),
                    digest.newest_time_ms,
                    checker.epoch,
                    report.batches - before[0],
                    report.records - before[1],
                    following is not None,
                    is_sound,
                )
            )
        seems = frozenset((each.path, each.position) for each in (*report.findings, *self._wrong))
        # a writer may have truncated the log meanwhile; real damage is still there at the next attempt
        if seems - self._seemed:
            self._seemed = seems
            self._wrong.clear()
            for base in doubted:
                prefix = names.filename_prefix_from_offset(base)
                for name in [name for name in self._taken if name.startswith(prefix)]:
                    self._files.unlink_if_exists(os.path.join(self._target, name))
                    del self._taken[name]
            time.sleep(SECOND_LOOK_S)
            raise Changed(self._view.directory)
        told_of = self._placing.report
        told_of.partitions += 1
        told_of.segments += report.segments
        told_of.batches += report.batches
        told_of.records += report.records
        there, here = self._target + os.sep, self._view.directory + os.sep
        unread_places = {(it.path, it.position) for it in self._wrong if it.what.startswith(CANNOT_BE_READ)}
        for finding in report.findings:
            named = finding._replace(path=finding.path.replace(there, here))
            # it is only missing in the copy because it could not be read
            if (named.path, named.position) not in unread_places:
                told_of.findings.append(named)
        known = {(finding.path, finding.position) for finding in told_of.findings}
        told_of.findings += [each for each in self._wrong if (each.path, each.position) not in known]
        told_of.notes += [text.replace(there, here) for text in report.notes]
        told_of.missing += len(self._missing) + sum(each.what == WITHOUT_LOG for each in self._wrong)
        for gap in self._missing:
            self._note_base(gap)
        return segments

    def _gaps(self, bases: Sequence[int]) -> Gaps:
        """Returns what the source lacks between its segments, and reports indexes whose logs are missing."""
        directory = self._view.directory
        listed = self._files.list_dir(directory)
        lonely = index_names_alone(listed)
        alone = indexes_alone(listed, [*bases, *names.offsets_in(listed)])
        for name in sorted(lonely):
            if names.segment_base(name, os.path.splitext(name)[1]) in alone:
                self._wrong.append(Finding(os.path.join(directory, name), 0, 0, WITHOUT_LOG))
        first_offset = None if self._begins_later else began_below(directory, self._files)
        return Gaps(directory, alone, self._files, self._start, first_offset)

    def _note_base(self, gap: Gap) -> None:
        """Notes that the base has offsets that the source no longer has."""
        held = [] if self._base is None else self._base.segments
        found = [each for each in held if each.base_offset <= gap.last_offset and each.end_offset > gap.first_offset]
        base = self._placing.base
        if base is not None and found:
            first, last = max(found[0].base_offset, gap.first_offset), min(found[-1].end_offset - 1, gap.last_offset)
            self._placing.report.notes.append(
                f"{self._view.topic_partition}: {base.path} has the offsets {first} to {last}, which are missing in "
                "the source: keep that backup"
            )

    def _kept(self, base: int) -> BackedSegment | None:
        """Returns the base's entry of a segment if all its files are linked from the base, else None."""
        if self._base is None:
            return None
        prefix = names.filename_prefix_from_offset(base)
        its_own = [f"{prefix}{suffix}" for suffix in (names.LOG_FILE_SUFFIX, *names.INDEX_FILE_SUFFIXES)]
        if any(self._taken[name].how != KEPT for name in its_own if name in self._taken):
            return None
        return next((each for each in self._base.segments if each.base_offset == base), None)


def __dir__() -> list[str]:
    return __all__
