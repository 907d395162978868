"""A consistent copy of log directories beside their writer: a store, in this process or another, or a running broker.

What a backup is.  A folder with a copy of each log directory (`log-dir-1`, `log-dir-2` ...) and `manifest.json`, which
names every file with its size and checksum (`backup_manifest`).  Each copy is a log directory itself: every command
that reads works on it.  The source is only read, and not locked.

What is consistent.  Each partition's copy is a prefix of its log at one moment: the segments that a reader's view shows
(`PartitionView`), the closed ones whole, the last one up to the end of its last whole batch.  A segment is taken only
if it is, before and behind the copying, the file that the view saw; where retention, compaction or a truncation came
in between, the view looks again, and what is copied already and still the same stays.  A last segment that was written
to meanwhile is compared with its copy once more, which tells an append from a truncation.  Indexes and leader epochs
are cut where the log ends; producer snapshots of later offsets stay away.

Over partitions: cursors never point behind the end of a partition's copy, and every transaction is decided alike in all
of them, also after the restored directory was opened.  `backup_moment` says by which order, and which cuts.  Those of
`__remote_log_metadata` and the cluster's metadata come last: they may know of more than is there, not of less.  Topics'
settings are those of the time at which partitions were listed.

Checkpoints say no more than what is there.  A recovery point is the copy's end, for all of it is synced and was checked
(of a partition with damage it is the source's, if that is less); the next open recovers the last segment of each
partition, as after a crash, and loses nothing.  High watermarks and the cleaner's offsets are cut at the end.  There is
no clean-shutdown marker.

How files get there.  A file that the previous backup (`base`) has, and that is the same file in the source since, by
inode, time of change and length, or the same bytes, is linked from there.  Else it is cloned where the file system can
(a reflink); else, if `link` asks for that, the log of a closed segment is a hard link to the source's; else it is
copied by the system.  With `link` the source and the backup share a file.  Kafka and kafkalog write to a closed
segment's log only to cut it (a truncation, a recovery at damage): that cuts the backup's, too, which its manifest then
tells; and a disk that loses the block loses both.  So it is not the default.  Two backups share files likewise, but
nobody writes to those.

Every batch of a copy is checked as `verify` checks it, and the file's checksum worked out, in one read behind the
copying.  What is wrong is told, and copied as it is; `strict` refuses.

When it is complete.  All is written to `DEST.partial`; files are synced, then folders, then the manifest is written and
synced, and the folder gets its name.  So a folder of that name is a whole backup, wherever a crash came; what a killed
one left is removed by the next one to the same place.  An error removes it at once, which frees a full disk.

Used by one thread; syncs wait in a few others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from kafkalog._limits import INT_MAX
from kafkalog._native.codec.crc32c import crc32c
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, File, Files, FileStat, local_path, parent_dir
from kafkalog.engine.format import names, values
from kafkalog.engine.format.checkpoints import LeaderEpochCheckpointFile, OffsetCheckpointFile
from kafkalog.engine.format.index_entries import OFFSET_ENTRY, TIME_ENTRIES, TIME_ENTRY, TXN_ENTRIES
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.format.small_files import NOTE_BYTES_MAX, read_small
from kafkalog.engine.format.snapshots import read_snapshot
from kafkalog.engine.host.log_dirs import list_partitions, refuse_inside
from kafkalog.engine.host.topic_configs import of_topics
from kafkalog.engine.log.checkpoint_lines import CheckpointLines
from kafkalog.engine.log.snapshot import SegmentView, Snapshot
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.remote.objects import parts_of
from kafkalog.engine.segment import index_reader
from kafkalog.errors import (
    BadBytesError,
    BeingWrittenException,
    CorruptCheckpointException,
    CorruptRecordException,
    IllegalArgumentException,
    UnknownTopicOrPartitionException,
)
from kafkalog.toolbox.backup_manifest import (
    MANIFEST_FILE,
    BackedDirectory,
    BackedFile,
    BackedPartition,
    BackedSegment,
    Manifest,
    newest_backup,
    read_manifest,
)
from kafkalog.toolbox.backup_moment import Moment, moment_of
from kafkalog.toolbox.folders import folders_of
from kafkalog.toolbox.report import SECOND_LOOK_S, Finding, Report, told
from kafkalog.toolbox.salvage import refuse_one_in_other
from kafkalog.toolbox.segment_check import SegmentCheck

__all__ = ["BackupReport", "backup"]

PARTIAL_SUFFIX = ".partial"
LOOKS_MAX = 20  # at a partition whose files change while they are copied
REST_S = 0.02  # longer before each look
DIGEST_BYTES = 1 << 20
SYNC_THREADS = 8  # that wait for the disk: it makes one commit of several syncs
COPIED, CLONED, LINKED, KEPT = "copied", "cloned", "linked", "kept"
KEPT_AT_THE_TOP = (names.META_PROPERTIES_FILE, "bootstrap.checkpoint")
# Partitions of these are taken in this order; `__transaction_state` first, topics' own in between (see the module).
_ORDER = {names.TRANSACTION_STATE_TOPIC: 0, names.GROUP_METADATA_TOPIC: 1}
_LAST = {names.REMOTE_LOG_METADATA_TOPIC: 3, names.CLUSTER_METADATA_TOPIC: 4}

Progress = Callable[[int], None]


@dataclass
class BackupReport:
    """What was taken.  Bytes of all files: `copied`, `cloned` (reflinks), `linked` to the source's, `kept` from the
    base.  `findings`: what is wrong with the source, which was copied as it is."""

    path: str
    base: str | None = None
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    copied: int = 0
    cloned: int = 0
    linked: int = 0
    kept: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Of all files of the backup."""
        return self.copied + self.cloned + self.linked + self.kept

    def count(self, how: str, size: int) -> None:
        """A file got there."""
        setattr(self, how, getattr(self, how) + size)


class _Changed(Exception):
    """The source is not what the view saw: look again."""


# More than eight parameters would be; `files` and `progress` are for tests and for the command line.
def backup(
    log_dirs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    dest: str | os.PathLike[str],
    *,
    partitions: Collection[TopicPartition | str] | None = None,
    base: str | os.PathLike[str] | None = None,
    link: bool = False,
    strict: bool = False,
    files: Files = OS_FILES,
    progress: Progress | None = None,
) -> BackupReport:
    """Copy one or several log directories to the new folder `dest`, beside whoever writes to them.

    `log_dirs` are all directories of one store or broker: what is in them is of one moment.  `partitions` ("orders-0",
    or pairs) are the only ones to take; without `__transaction_state` and `__consumer_offsets` among them transactions
    and cursors stay away.  `base` is an earlier backup, or a folder of backups, of which the newest counts: files that
    did not change are linked from there.  `link`: logs of closed segments are hard links to the source's (see the
    module for what that risks).  `strict`: refuse where the source is damaged.  `progress` is called with the bytes of
    logs just taken.

    Returns a BackupReport.

    Errors: IllegalArgumentException (`dest` is there, or in a log directory), LogDirLockedException (another backup to
    `dest` is under way), UnknownTopicOrPartitionException, NoSuchFileException, CorruptRecordException (`strict`),
    CorruptCheckpointException (a base that is none), BeingWrittenException (a partition that never rests), OSError.
    What is there of the backup is removed then.

        from kafkalog.toolbox.backup import backup

        report = backup("shop", "/backups/2026-11-27", base="/backups")
        print(report.records, report.copied, report.findings)
    """
    values.function(progress, "progress", "a function of the bytes just taken")
    link, strict = values.flag(link, "link"), values.flag(strict, "strict")
    given = [log_dirs] if isinstance(log_dirs, str | os.PathLike) else list(log_dirs)
    sources = [local_path(each, what="log_dirs", files=files) for each in given]
    if not sources:
        raise IllegalArgumentException("log_dirs: found none, expected at least one log directory")
    if len({os.path.abspath(each) for each in sources}) < len(sources):
        raise IllegalArgumentException(f"log_dirs: found one twice in {', '.join(sources)}, expected each once")
    target = os.path.abspath(local_path(dest, what="dest", files=files))
    _check_target(sources, target, files)
    previous = None
    if base is not None:
        base_path = os.path.abspath(local_path(base, what="base", files=files))
        previous = _Base.open(base_path, files)
    wanted = None if partitions is None else {str(each) for each in partitions}
    files.mkdirs_synced(parent_dir(target))
    with ExitStack() as stack:
        stack.enter_context(files.lock(f"{target}{PARTIAL_SUFFIX}.lock"))
        _check_target(sources, target, files)
        partial_path = target + PARTIAL_SUFFIX
        files.remove_tree(partial_path)
        try:
            with _Syncs(files) as syncs:
                run = _Run(sources, partial_path, wanted, previous, link, files, syncs, progress)
                run.report.path = target
                content = run.take()
            if strict and run.report.findings:
                worst = run.report.findings[0]
                raise CorruptRecordException(
                    f"found {worst.what}"
                    + (f" ({len(run.report.findings)} findings)" * (len(run.report.findings) > 1)),
                    path=worst.path,
                    position=worst.position,
                    hint="without strict it is copied as it is; `kafkalog verify` shows all of it",
                )
            files.write_atomic(os.path.join(partial_path, MANIFEST_FILE), content.encode())
            if files.exists(target):
                files.rmdir(target)  # it was empty
            files.rename(partial_path, target)
        except BaseException:
            with suppress(OSError):
                files.remove_tree(partial_path)
            raise
        files.sync_dir(parent_dir(target))
    return run.report


def _check_target(sources: Iterable[str], target: str, files: Files) -> None:
    for source in sources:
        refuse_one_in_other(source, target)
    if files.exists(target) and (not files.is_dir(target) or files.list_dir(target)):
        raise IllegalArgumentException(
            "found something there, expected a folder that is new or empty",
            path=target,
            hint="each backup has a folder of its own: name another one",
        )
    refuse_inside(target, files)


class _Base:
    """An earlier backup: what it has of a partition."""

    def __init__(self, path: str, manifest: Manifest) -> None:
        self.path = path
        self._partitions = manifest.partitions()

    @classmethod
    def open(cls, path: str, files: Files) -> _Base | None:
        """None where the folder has no backup yet."""
        found = newest_backup(path, files)
        return None if found is None else cls(found, read_manifest(found, files))

    def of(self, partition: TopicPartition, topic_id: str | None) -> tuple[str, BackedPartition] | None:
        """Its folder, and what is in it; None where it is not there, or of another topic of that name."""
        found = self._partitions.get(partition)
        if found is None or found[1].topic_id != topic_id:
            return None
        return os.path.join(self.path, found[0].folder, str(partition)), found[1]


class _Syncs:
    """Threads that sync files; a context manager, behind which all are synced, or an error is raised."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._pool = ThreadPoolExecutor(SYNC_THREADS, "kafkalog-backup-sync")
        self._waiting: list[Future[None]] = []

    def add(self, path: str) -> None:
        self._waiting.append(self._pool.submit(self._files.sync_file, path))
        if len(self._waiting) >= 4 * SYNC_THREADS:
            self.wait()

    def wait(self) -> None:
        """Until all are synced."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.result()

    def __enter__(self) -> _Syncs:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self._pool.shutdown(wait=True, cancel_futures=True)


class _Directory(NamedTuple):
    """A log directory that is taken, and its folder in the backup."""

    source: str
    folder: str
    target: str
    chosen: dict[TopicPartition, str]
    lines: CheckpointLines
    backed: dict[TopicPartition, BackedPartition]
    offsets: dict[str, dict[TopicPartition, int]]  # lines of its checkpoints, by file name


# More than eight parameters: what `backup` was asked, and what it works with.
class _Run:
    """One backup, up to its manifest."""

    def __init__(
        self,
        sources: Sequence[str],
        target: str,
        wanted: Collection[str] | None,
        base: _Base | None,
        link: bool,
        files: Files,
        syncs: _Syncs,
        progress: Progress | None,
    ) -> None:
        self.files = files
        self.base = base
        self.link = link
        self.syncs = syncs
        self.progress = progress or (lambda size_bytes: None)
        self.report = BackupReport(target, None if base is None else base.path)
        self._said_no_link = False
        self._sources = sources
        self._target = target
        self._wanted = wanted
        self._settings: dict[str, bytes | None] = {}
        self._views: dict[TopicPartition, PartitionView] = {}
        self._looks: dict[TopicPartition, int] = {}  # where each ended before the moment
        self._moment: Moment | None = None

    def take(self) -> Manifest:
        """All files, synced, and what they are."""
        begun_ms = SYSTEM_CLOCK.milliseconds()
        directories = self._listed()
        try:
            self._look(directories)
            order = [(partition, each) for each in directories for partition in each.chosen]
            order.sort(key=lambda pair: _LAST.get(pair[0].topic, _ORDER.get(pair[0].topic, 2)))
            for partition, directory in order:
                self._take(directory, partition)
        finally:
            for view in self._views.values():
                view.close()
        backed = [self._finish(each) for each in directories]
        self.syncs.wait()
        self.files.sync_dir(self._target)
        from kafkalog import __version__

        return Manifest(f"kafkalog {__version__}", begun_ms, SYSTEM_CLOCK.milliseconds(), backed, self.report.findings)

    def cannot_link(self, error: OSError) -> None:
        """Says once that logs are copied, though they were to be linked."""
        if not self._said_no_link:
            self._said_no_link = True
            self.report.notes.append(f"logs are copied: the file system links none ({error.strerror})")

    # --- what there is -------------------------------------------------------------------------------

    def _listed(self) -> list[_Directory]:
        """The partitions to take, and the topics' settings of the same time."""
        for _ in range(LOOKS_MAX):
            before = [self._raw_settings(source) for source in self._sources]
            found = {source: list_partitions(source, files=self.files) for source in self._sources}
            if before == [self._raw_settings(source) for source in self._sources]:
                break
        directories = []
        missing = set(self._wanted or ())
        for number, (source, there) in enumerate(found.items(), 1):
            chosen = {each: path for each, path in there.items() if self._wanted is None or str(each) in self._wanted}
            missing -= set(map(str, chosen))
            folder = f"log-dir-{number}"
            target = os.path.join(self._target, folder)
            self.files.mkdirs(target)
            lines = CheckpointLines(source, self.files)
            offsets: dict[str, dict[TopicPartition, int]] = {name: {} for name in names.OFFSET_CHECKPOINT_FILES}
            directories.append(_Directory(source, folder, target, chosen, lines, {}, offsets))
            passing = folders_of(source, self.files).moving
            if passing:
                self.report.notes.append(
                    f"{source}: not taken: {', '.join(os.path.basename(path) for path in passing[:3])}"
                    + (f" and {len(passing) - 3} more" if len(passing) > 3 else "")
                    + ", which are on their way in or out"
                )
        if missing:
            raise UnknownTopicOrPartitionException(f"no partition {min(missing)} in {', '.join(self._sources)}")
        twice = [each for each in directories[0].chosen if any(each in other.chosen for other in directories[1:])]
        if twice:
            raise IllegalArgumentException(
                f"found {twice[0]} in two of the directories, expected those of one store or broker",
                path=directories[0].source,
                hint="take a backup of each by itself",
            )
        for directory in directories:
            topics = None if self._wanted is None else {each.topic for each in directory.chosen}
            self._keep_settings(directory, topics)
        return directories

    def _raw_settings(self, source: str) -> bytes | None:
        try:
            return read_small(os.path.join(source, names.TOPIC_CONFIGS_FILE), self.files)
        except FileNotFoundError:
            return None

    def _keep_settings(self, directory: _Directory, topics: Collection[str] | None) -> None:
        try:
            self._settings[directory.source] = of_topics(directory.source, topics, self.files)
        except CorruptCheckpointException as error:
            path = os.path.join(directory.source, names.TOPIC_CONFIGS_FILE)
            self.report.findings.append(Finding(path, error.position or 0, 0, told(error)))
            self._settings[directory.source] = self._raw_settings(directory.source)

    def _look(self, directories: Sequence[_Directory]) -> None:
        """Where partitions end before the moment of transactions, and that moment, if there are any."""
        topic = names.TRANSACTION_STATE_TOPIC
        states = [(each, partition) for each in directories for partition in each.chosen if partition.topic == topic]
        if not states:
            return
        for directory in directories:
            for partition in directory.chosen:
                if partition.topic != topic:
                    with suppress(UnknownTopicOrPartitionException):
                        view = self._view(directory, partition)
                        self._looks[partition] = view.log_end_offset
                        view.rest()
        views = {partition: self._view(directory, partition) for directory, partition in states}
        self._moment = moment_of(views, self.files)

    def _view(self, directory: _Directory, partition: TopicPartition) -> PartitionView:
        if partition not in self._views:
            self._views[partition] = PartitionView(
                directory.source, partition, files=self.files, checkpoints=directory.lines
            )
        return self._views[partition]

    def _end(self, seen: Snapshot) -> int:
        """Where the copy of a partition ends."""
        partition, moment = seen.topic_partition, self._moment
        if moment is None:
            return seen.log_end_offset
        if partition.topic == names.TRANSACTION_STATE_TOPIC:
            end = moment.ends[partition]
        elif partition.topic in _LAST or partition not in self._looks:
            return seen.log_end_offset
        else:
            is_cursors = partition.topic == names.GROUP_METADATA_TOPIC
            try:
                find = moment.end_of_cursors if is_cursors else moment.end_of_records
                end = find(seen, self._looks[partition])
            except CorruptRecordException:  # the check of the copy tells
                end = seen.log_end_offset
        return max(seen.log_start_offset, min(end, seen.log_end_offset))

    # --- one partition -------------------------------------------------------------------------------

    def _take(self, directory: _Directory, partition: TopicPartition) -> None:
        target = os.path.join(directory.target, str(partition))
        # Before it is copied: a cleaner that goes on meanwhile has not cleaned the copy.
        lines = {name: directory.lines.line(name, partition) for name in names.OFFSET_CHECKPOINT_FILES}
        try:
            view = self._view(directory, partition)
            if self._moment is not None:
                view.refresh()
            copy = _PartitionCopy(self, view, target, self._end)
            backed = copy.take()
        except UnknownTopicOrPartitionException:
            self.files.remove_tree(target)
            self.report.notes.append(f"{partition} was deleted, or moved, before it was copied")
            return
        finally:
            taken = self._views.pop(partition, None)
            if taken is not None:
                taken.close()
        directory.backed[partition] = backed
        end = backed.end_offset
        is_sound = all(segment.is_sound for segment in backed.segments)
        flushed = lines[names.RECOVERY_POINT_CHECKPOINT_FILE] or 0
        directory.offsets[names.RECOVERY_POINT_CHECKPOINT_FILE][partition] = end if is_sound else min(flushed, end)
        if backed.segments and backed.log_start_offset > backed.segments[0].base_offset:
            directory.offsets[names.LOG_START_OFFSET_CHECKPOINT_FILE][partition] = backed.log_start_offset
        for name in (names.HIGH_WATERMARK_CHECKPOINT_FILE, names.CLEANER_OFFSET_CHECKPOINT_FILE):
            line = lines[name]
            if line is not None:
                directory.offsets[name][partition] = min(line, end)

    def _finish(self, directory: _Directory) -> BackedDirectory:
        """A directory's own files."""
        files, target = self.files, directory.target
        held: dict[str, bytes] = {}
        settings = self._settings[directory.source]
        if settings is not None:
            held[names.TOPIC_CONFIGS_FILE] = settings
        for name in KEPT_AT_THE_TOP:
            with suppress(FileNotFoundError):
                held[name] = read_small(os.path.join(directory.source, name), files)
        for name, lines in directory.offsets.items():
            always = (names.RECOVERY_POINT_CHECKPOINT_FILE, names.LOG_START_OFFSET_CHECKPOINT_FILE)
            if lines or name in always:
                checkpoint = OffsetCheckpointFile(os.path.join(target, name), files, create=False)
                checkpoint.write({each: offset for each, offset in lines.items() if checkpoint.can_hold(each)})
                held[name] = files.read_bytes(checkpoint.path)
        for name, data in held.items():
            if name not in directory.offsets:
                files.write_file(os.path.join(target, name), data, sync=True)
            self.report.count(COPIED, len(data))
        files.sync_dir(target)
        backed = {name: BackedFile(len(data), crc32c(data)) for name, data in held.items()}
        source = os.path.abspath(directory.source)
        return BackedDirectory(directory.folder, source, backed, list(directory.backed.values()))


# --- a partition's files -------------------------------------------------------------------------------------


class _Taken(NamedTuple):
    """A file that is in the backup: how it got there, what it is, and the source's stamp.  `crc32c` is -1 where it is
    not known yet."""

    how: str
    size: int
    crc32c: int
    stamp: tuple[int, int, int]  # inode, mtime_ms, size; (0, 0, 0) of what was written anew

    def backed(self) -> BackedFile:
        assert self.crc32c >= 0, self
        return BackedFile(self.size, self.crc32c, *self.stamp)


NO_STAMP = (0, 0, 0)


def _stamp(stat: FileStat) -> tuple[int, int, int]:
    return stat.inode, stat.mtime_ms, stat.size


class _PartitionCopy:
    """One partition on its way into the backup."""

    def __init__(self, run: _Run, view: PartitionView, target: str, end_of: Callable[[Snapshot], int]) -> None:
        self._run = run
        self._files = run.files
        self._view = view
        self._target = target
        self._end_of = end_of
        self._taken: dict[str, _Taken] = {}
        self._wrong: list[Finding] = []  # with small files
        self._looked_again = False  # at what seemed wrong
        self._topic_id = topic_id_of(view.directory, run.files)
        self._base_folder = ""
        self._base: BackedPartition | None = None
        found = None if run.base is None else run.base.of(view.topic_partition, self._topic_id)
        if found is not None:
            self._base_folder, self._base = found

    def take(self) -> BackedPartition:
        """Copies and checks it.  UnknownTopicOrPartitionException where it went away."""
        self._files.mkdirs(self._target)
        for look in range(LOOKS_MAX):
            seen = self._view.snapshot
            self._wrong.clear()
            try:
                backed = self._take(seen, self._end_of(seen))
                break
            except (_Changed, FileNotFoundError) as error:
                changed = error
            time.sleep(REST_S * look)
            self._view.refresh()
        else:
            raise BeingWrittenException(
                f"{seen.topic_partition} is being written: its files changed at each of {LOOKS_MAX} looks",
                path=seen.directory,
                hint="a compaction, a truncation or a move is under way: ask again when it has ended",
            ) from changed
        for name, taken in self._taken.items():
            self._run.report.count(taken.how, taken.size)
            if taken.how != KEPT:
                self._run.syncs.add(os.path.join(self._target, name))
        self._run.syncs.wait()
        self._files.sync_dir(self._target)
        return backed

    def _take(self, seen: Snapshot, end: int) -> BackedPartition:
        if not seen.segments:
            place, position = -1, 0
        elif end == seen.log_end_offset:
            place, position = len(seen.segments) - 1, seen.end_position
        else:
            place, position = seen.end_position_of(end)
        wanted: set[str] = set()
        for number, segment in enumerate(seen.segments[: place + 1]):
            wanted |= self._closed(segment) if number < place else self._last(segment, position, end)
        wanted |= self._small_files(seen, end)
        for name in self._taken.keys() - wanted:
            self._files.unlink_if_exists(os.path.join(self._target, name))
            del self._taken[name]
        segments = self._checked([segment.base_offset for segment in seen.segments[: place + 1]])
        for name, taken in self._taken.items():
            if taken.crc32c < 0:
                digest = self._digest(os.path.join(self._target, name), taken.size)
                self._taken[name] = taken._replace(crc32c=digest)
        start = min(seen.log_start_offset, end)
        backed = {name: taken.backed() for name, taken in sorted(self._taken.items())}
        return BackedPartition(seen.topic_partition, self._topic_id, start, end, segments, backed)

    # --- segments ------------------------------------------------------------------------------------

    def _closed(self, segment: SegmentView) -> set[str]:
        """A whole segment's files; their names."""
        log = os.path.basename(names.log_file(segment.directory, segment.base_offset))
        self._whole(segment.path, log, (segment.inode, segment.mtime_ms), may_link=True)
        found = {log}
        stem = names.segment_stem(segment.directory, segment.base_offset)
        for suffix in names.INDEX_FILE_SUFFIXES:
            name = os.path.basename(stem) + suffix
            for source in (stem + suffix + segment.suffix, stem + suffix + names.SWAP_FILE_SUFFIX):
                with suppress(FileNotFoundError):
                    self._whole(source, name, None)
                    found.add(name)
                    break
        stat = self._files.stat(segment.path)
        if (stat.inode, stat.mtime_ms) != (segment.inode, segment.mtime_ms):
            raise _Changed(segment.path)  # and so its indexes may be another one's
        return found

    def _whole(self, source: str, name: str, known: tuple[int, int] | None, *, may_link: bool = False) -> None:
        """A file that nobody writes to; `known` are the inode and the time of change that it must have."""
        files, run = self._files, self._run
        stamp = _stamp(files.stat(source))
        if known is not None and stamp[:2] != known:
            raise _Changed(source)
        before = self._taken.get(name)
        if before is not None and before.stamp == stamp:
            return
        target = os.path.join(self._target, name)
        files.unlink_if_exists(target)
        self._taken.pop(name, None)
        taken = self._from_base(source, name, target, stamp)
        if taken is None:
            taken = _Taken(self._placed(source, target, stamp[2], may_link=may_link), stamp[2], -1, stamp)
        if taken.how in (COPIED, CLONED) and may_link:
            files.set_mtime_ms(target, stamp[1])  # retention goes by it where records have no times
        if _stamp(files.stat(source)) != stamp or (taken.how == LINKED and files.stat(target).inode != stamp[0]):
            raise _Changed(source)
        self._taken[name] = taken
        if may_link:
            run.progress(stamp[2])

    def _placed(self, source: str, target: str, size: int, *, may_link: bool = False) -> str:
        """Puts the first bytes of a file into a new one, or gives it another name; how."""
        files, run = self._files, self._run
        with files.open(source, writable=False) as file:
            with files.open(target, create=True, exclusive=True) as out:
                if out.clone_from(file):
                    if out.size() > size:
                        out.truncate(size)
                    return CLONED
                if not (may_link and run.link):
                    return self._copied(file, out, size)
            files.unlink(target)
            try:
                files.link(source, target)
                return LINKED
            except FileNotFoundError:
                raise
            except OSError as error:
                run.cannot_link(error)
            with files.open(target, create=True, exclusive=True) as out:
                return self._copied(file, out, size)

    @staticmethod
    def _copied(file: File, out: File, size: int) -> str:
        """The system copies, as far as it can.  _Changed where the file is shorter by now."""
        end = out.copy_from(file, size)
        for part in parts_of(file, min(size, file.size()), begin=end):
            out.pwrite(part, end)
            end += len(part)
        if end != size or out.size() != size:
            raise _Changed(file.path)
        out.flush_soon(0, size)
        return COPIED

    def _from_base(self, source: str, name: str, target: str, stamp: tuple[int, int, int]) -> _Taken | None:
        """A link to what the base has, if that is the same file, or the same bytes; None where it is not."""
        base, files = self._base, self._files
        held = None if base is None else base.files.get(name)
        segment = names.segment_base(name, os.path.splitext(name)[1])
        if base is None or held is None or held.size != stamp[2]:
            return None
        if not any(each.base_offset == segment and each.is_closed and each.is_sound for each in base.segments):
            return None
        if (held.inode, held.mtime_ms, held.source_size) != stamp and not (
            name.endswith(names.LOG_FILE_SUFFIX) and self._digest(source, held.size) == held.crc32c
        ):
            return None
        there = os.path.join(self._base_folder, name)
        try:
            if files.stat(there).size != held.size:
                return None  # somebody changed the base
            files.link(there, target)
        except OSError:  # it is on another file system, or has all the names that it may have
            return None
        return _Taken(KEPT, held.size, held.crc32c, stamp)

    def _last(self, segment: SegmentView, position: int, end: int) -> set[str]:
        """The files of the segment in which the copy ends, at a position and an offset; their names."""
        files, base = self._files, segment.base_offset
        log = os.path.basename(names.log_file(segment.directory, base))
        target = os.path.join(self._target, log)
        files.unlink_if_exists(target)
        self._taken.pop(log, None)
        stat = files.stat(segment.path)
        if stat.inode != segment.inode or stat.size < position:
            raise _Changed(segment.path)
        how = self._placed(segment.path, target, position)
        files.set_mtime_ms(target, segment.mtime_ms)
        found = {log}
        for suffix in names.INDEX_FILE_SUFFIXES:
            name = log.removesuffix(names.LOG_FILE_SUFFIX) + suffix
            for source in {name + segment.suffix, name + names.SWAP_FILE_SUFFIX}:
                path = os.path.join(segment.directory, source)
                if files.exists(path):
                    self._put(name, self._entries(path, suffix, base, position, end))
                    found.add(name)
        stat = files.stat(segment.path)
        if stat.inode != segment.inode or stat.size < position:
            raise _Changed(segment.path)
        if (stat.size, stat.mtime_ms) != (segment.size, segment.mtime_ms) and (
            self._digest(segment.path, position) != self._digest(target, position)
        ):
            raise _Changed(segment.path)  # cut, and longer again
        self._taken[log] = _Taken(how, position, -1, NO_STAMP)
        self._run.progress(position)
        return found

    def _entries(self, path: str, suffix: str, base: int, position: int, end: int) -> bytes:
        """An index's entries up to where the log ends."""
        if suffix == names.INDEX_FILE_SUFFIX:
            offsets = index_reader.offset_entries(self._files, path, base, position)
            return offsets.copied(0, len(offsets) * OFFSET_ENTRY.size) or b""
        if suffix == names.TIME_INDEX_FILE_SUFFIX:
            times = index_reader.time_entries(self._files, path, base)
            data = times.copied(0, len(times) * TIME_ENTRY.size) or b""
            raw = index_reader.entries_of(data, TIME_ENTRIES)
            return raw[raw["offset"].astype(np.int64) + base < end].tobytes()
        raw = index_reader.entries_of(read_small(path, self._files), TXN_ENTRIES)
        return raw[raw["last_offset"] < end].tobytes()

    # --- small files ---------------------------------------------------------------------------------

    def _small_files(self, seen: Snapshot, end: int) -> set[str]:
        """What a partition has beside its segments, up to an offset; the names."""
        files, found = self._files, set()
        path = LeaderEpochCheckpointFile.new_file(seen.directory)
        epochs = LeaderEpochCheckpointFile(path, files, create=False)
        with suppress(FileNotFoundError):
            try:
                data = epochs.encode([each for each in epochs.read() if each.start_offset < end])
            except CorruptCheckpointException as error:
                self._doubt(path, error)
                data = read_small(path, files)
            found.add(self._put(names.LEADER_EPOCH_CHECKPOINT_FILE, data))
        with suppress(FileNotFoundError):
            path = os.path.join(seen.directory, names.PARTITION_METADATA_FILE)
            found.add(self._put(names.PARTITION_METADATA_FILE, read_small(path, files, bytes_max=NOTE_BYTES_MAX)))
        listed = files.list_files(seen.directory)
        for offset in names.offsets_in(listed, names.PRODUCER_SNAPSHOT_FILE_SUFFIX):
            if offset <= end:
                path = names.producer_snapshot_file(seen.directory, offset)
                with suppress(FileNotFoundError):
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
        self._files.write_file(target, data)
        self._taken[name] = _Taken(COPIED, len(data), crc32c(data), NO_STAMP)
        return name

    def _doubt(self, path: str, error: BadBytesError) -> None:
        """Something seems wrong with a small file: look again; what stays so is told."""
        self._wrong.append(Finding(path, error.position or 0, 0, told(error)))

    # --- the check -----------------------------------------------------------------------------------

    def _checked(self, bases: Sequence[int]) -> list[BackedSegment]:
        """What the copy of each segment holds.  What seems wrong is copied and looked at a second time."""
        report = Report()
        checker = SegmentCheck(self._target, self._files, report)
        segments: list[BackedSegment] = []
        doubted: list[int] = []
        for base, following in zip_longest(bases, bases[1:]):
            kept = self._kept(base)
            if kept is not None:
                segments.append(kept)
                checker.next_offset = max(checker.next_offset, kept.end_offset)
                checker.epoch = max(checker.epoch, kept.leader_epoch)
                report.segments += 1
                report.batches += kept.batches
                report.records += kept.records
                continue
            path = names.log_file(self._target, base)
            digest = _Digest(self._files, path)
            checker.observe = digest.observe
            before = (report.batches, report.records, len(report.findings))
            is_there = checker.check(base, following)
            assert is_there, path  # nobody else is in the backup
            name = os.path.basename(path)
            taken = self._taken[name]
            digest.finish(taken.size)
            if taken.crc32c not in (-1, digest.crc32c):
                report.add(path, 0, 0, "the base's file reads back as other bytes: is its disk failing?")
                self._run.report.notes.append(f"{self._base_folder}/{name}: not as its manifest says")
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
        if (doubted or self._wrong) and not self._looked_again:
            self._looked_again = True
            self._wrong.clear()
            for base in doubted:
                prefix = names.filename_prefix_from_offset(base)
                for name in [name for name in self._taken if name.startswith(prefix)]:
                    self._files.unlink_if_exists(os.path.join(self._target, name))
                    del self._taken[name]
            time.sleep(SECOND_LOOK_S)
            raise _Changed(self._view.directory)
        told_of = self._run.report
        told_of.partitions += 1
        told_of.segments += report.segments
        told_of.batches += report.batches
        told_of.records += report.records
        there, here = self._target + os.sep, self._view.directory + os.sep
        for finding in report.findings:
            told_of.findings.append(finding._replace(path=finding.path.replace(there, here)))
        told_of.findings += self._wrong
        told_of.notes += [text.replace(there, here) for text in report.notes]
        return segments

    def _kept(self, base: int) -> BackedSegment | None:
        """What the base says of a segment all of whose files are from there."""
        if self._base is None:
            return None
        prefix = names.filename_prefix_from_offset(base)
        its_own = [f"{prefix}{suffix}" for suffix in (names.LOG_FILE_SUFFIX, *names.INDEX_FILE_SUFFIXES)]
        if any(self._taken[name].how != KEPT for name in its_own if name in self._taken):
            return None
        return next((each for each in self._base.segments if each.base_offset == base), None)

    def _digest(self, path: str, size: int) -> int:
        """The CRC-32C of the first bytes of a file."""
        with self._files.open(path, writable=False) as file:
            return digest_of(file, 0, size)


def digest_of(file: File, begin: int, end: int, crc: int = 0) -> int:
    """The CRC-32C of what came before and the bytes [begin, end), as far as the file has them."""
    buffer = memoryview(bytearray(min(DIGEST_BYTES, max(end - begin, 0))))
    while begin < end and (got := file.pread_into(buffer[: min(len(buffer), end - begin)], begin)):
        crc = crc32c(buffer[:got], crc)
        begin += got
    return crc


class _Digest:
    """The checksum of a segment's log, of the bytes that its check reads anyway, and its newest timestamp."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._end = 0
        self.crc32c = 0
        self.newest_time_ms = -1

    def observe(self, path: str, table: np.ndarray, data: memoryview, position: int) -> None:
        """The next batches; see SegmentCheck."""
        begin, end = int(table["position"][0]), int(table["position"][-1]) + int(table["size"][-1])
        self._pass_over(begin)
        self.crc32c = crc32c(data[begin - position : end - position], self.crc32c)
        self._end = end
        self.newest_time_ms = max(self.newest_time_ms, int(table["max_timestamp"].max()))

    def finish(self, size: int) -> None:
        """The file has so many bytes."""
        self._pass_over(size)

    def _pass_over(self, end: int) -> None:
        """Bytes that are no batch."""
        if self._end < end:
            with self._files.open(self._path, writable=False) as file:
                self.crc32c = digest_of(file, self._end, end, self.crc32c)
            self._end = end


def __dir__() -> list[str]:
    return __all__
