"""Copies log directories consistently while they are written: by a store in any process, or by a running broker.

A backup is a directory with a copy of each log directory (`log-dir-1`, `log-dir-2` ...) and `manifest.json`,
which names every file with its size and checksum (`backup_manifest`).  Each copy is a log directory itself, so every
command that reads works on it.  The source is only read, and not locked.

Consistency.  The copy of each partition is a prefix of its log at one moment.  It has the segments that a reader's view
shows (`PartitionView`): the closed ones whole, the last one up to the end of its last whole batch.  A segment is taken
only if it is the file that the view saw, both before and after copying.  If retention, compaction or a truncation
changed it in between, the view is refreshed; files that are copied already and unchanged stay.  If the last segment
was written to during the copy, it is compared with its copy once more, which tells an append from a truncation.  The
indexes of the last segment are rebuilt.  Leader epochs are truncated at the log's end, and producer snapshots of later
offsets are not copied.

Across partitions, cursors never point past the end of a partition's copy, and every transaction has the same outcome in
all copies, also after the restored directory was opened.  `backup_moment` describes the order and the truncations that
ensure this.  `__remote_log_metadata` and the cluster's metadata are copied last: they may know of more than the copies
have, but not of less.  Partitions are listed again after the moment.  If other partitions exist by then, such as the
one of `__transaction_state` that the first transaction of an id creates, a later moment is chosen.

Topics' settings are those of the time at which partitions were listed.  A topic that is deleted before all of it was
copied is left out together with its settings, and a note says so.

The id of the cluster, the counter of producer ids, and users, ACLs and quotas of a server are copied last.  Users, ACLs
and quotas are left out if partitions are named.  Only the owner can read their copy.

Checkpoints never claim more than the copy has.  A recovery point is the copy's end, because all of it is synced and was
checked.  (For a partition with damage it is the source's recovery point, if that is less.)  The next open recovers the
last segment of each partition, as after a crash, and loses nothing.  High watermarks and the cleaner's offsets are
limited to the copy's end.  There is no clean-shutdown marker.

How files get there.  A file is linked from the previous backup (`base`) if the source's file is unchanged since, by
inode, modification time and length, or has the same bytes.  Otherwise it is cloned if the file system can (a reflink).
Otherwise, with `link`, the log of a closed segment becomes a hard link to the source's file; else the system copies it.
With `link` the source and the backup share a file.  Kafka and kafkalog write to a closed segment's log only to truncate
it (a truncation, or a recovery at damage) and to append to it afterwards.  That changes the backup's file too, which
its manifest detects; and a disk that loses the block loses both.  So `link` is off by default.  Two backups share files
in the same way, but nothing writes to those.

Every batch of a copy is checked as `verify` checks it, and the file's checksum is computed, in one read after the
copying.  Damage is reported and copied as it is; `strict` refuses it.  A partition with a log that cannot be read (a
failing disk, a permission) is reported and left out, because half of it is no copy; the others are copied.

When it is complete.  Everything is written to `DEST.kafkalog-partial`.  Files are synced, then directories; then the
manifest is written and synced, and the directory is renamed.  So a directory with the final name is a whole backup,
wherever a crash happened.  The next backup to the same place removes what a killed one left.  An error removes it at
once, which frees a full disk.

Used by one thread; a few others wait for syncs.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from kafkalog._native.codec.batches import BatchHeader
from kafkalog._native.codec.crc32c import crc32c
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, Files, local_path
from kafkalog.engine.format import names, values
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.format.small_files import read_small
from kafkalog.engine.host.log_directories import absolute_paths
from kafkalog.engine.host.log_dirs import list_partitions, refuse_inside
from kafkalog.engine.host.topic_configs import KnownTopic, known_in, stored_content, trimmed
from kafkalog.engine.log.checkpoint_lines import CheckpointLines
from kafkalog.engine.log.snapshot import Snapshot
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import (
    BeingWrittenException,
    CorruptCheckpointException,
    CorruptRecordException,
    IllegalArgumentException,
    KafkaStorageException,
    UnknownTopicOrPartitionException,
)
from kafkalog.toolbox.backup_files import COPIED, BackupReport, Base, Placing, Progress, Syncs
from kafkalog.toolbox.backup_manifest import (
    MANIFEST_FILE,
    BackedDirectory,
    BackedFile,
    BackedPartition,
    Manifest,
)
from kafkalog.toolbox.backup_moment import Moment, moment_of
from kafkalog.toolbox.backup_partition import PartitionCopy
from kafkalog.toolbox.backup_places import (
    is_wanted,
    made_whole,
    named,
    partial_path,
    refuse_in_log_dir,
    refuse_one_in_other,
    target_path,
)
from kafkalog.toolbox.folders import folders_of
from kafkalog.toolbox.gaps import may_be_compacted, may_begin_later
from kafkalog.toolbox.lost_end import RecoveryPoints
from kafkalog.toolbox.report import Finding, told
from kafkalog.toolbox.space import AT_MOST, NOTHING_LEFT, bytes_in, telling_full
from kafkalog.toolbox.unread import CANNOT_BE_READ, unread

__all__ = ["BackupReport", "backup"]

LOOKS_MAX = 20  # reads of the topics' settings and the partitions, until nothing changes in between
STATE_LOOKS_MAX = 1000  # the same for partitions of __transaction_state, of which Kafka's default is 50
NOBODY = TopicPartition("", -1)  # no partition has this name
GONE = "{} was deleted or moved before it was copied"
# Producer ids are read after the records, whose ids they must exceed.
KEPT_AT_THE_TOP = (names.META_PROPERTIES_FILE, "bootstrap.checkpoint", *names.SERVER_FILES)
# Partitions are copied in this order: `__transaction_state` first, other topics in between (see the module).
_ORDER = {names.TRANSACTION_STATE_TOPIC: 0, names.GROUP_METADATA_TOPIC: 1}
_LAST = {names.REMOTE_LOG_METADATA_TOPIC: 3, names.CLUSTER_METADATA_TOPIC: 4}


# `files` and `progress` are for tests and for the command line.
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
    """Copies one or several log directories to the new directory `dest`, while other processes may write to them.

    Partitions of `__transaction_state` are always copied, because they decide transactions.  After an error, the
    unfinished backup is removed.

    Args:
        log_dirs: All directories of one store or broker; their copies are of one moment.
        dest: The directory to create, which must not exist or be empty.
        partitions: The partitions to copy ("orders-0", or pairs of topic and number); None copies all.  If
            `__consumer_offsets` is not among them, the backup has no cursors.
        base: An earlier backup, or a directory of backups.  In a directory, the backup that holds most of the wanted
            partitions is used; among equals, the newest.  Files that did not change are linked from it.
        link: Makes logs of closed segments hard links to the source's files; see the module for the risk.
        strict: Refuses a source with damage.
        files: The file system; for tests.
        progress: Called with the number of log bytes just copied.

    Returns:
        A `BackupReport`.

    Raises:
        IllegalArgumentException: `dest` is not empty, is a symbolic link or is in a log directory;
            DEST.kafkalog-partial is one of the directories that are read; or `base` is a log directory.
        LogDirLockedException: Another backup to `dest` is running.
        UnknownTopicOrPartitionException: A named partition does not exist.
        NoSuchFileException: A directory does not exist.
        CorruptRecordException: The source is damaged, with `strict`.
        CorruptCheckpointException: The manifest of the base is damaged.
        BeingWrittenException: A partition never stopped changing.
        DiskFull: The target's disk is full.
        OSError: Any other error of the file system.

    Example:
        >>> from kafkalog.toolbox.backup import backup
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append_many([b"one", b"two"])
        >>> report = backup("shop", "backups/monday")
        >>> report.partitions, report.records, report.findings
        (1, 2, [])
        >>> backup("shop", "backups/tuesday", base="backups").base is not None
        True
    """
    values.function(progress, "progress", "a function of the bytes just taken")
    link, strict = values.flag(link, "link"), values.flag(strict, "strict")
    sources = absolute_paths(log_dirs, files)
    if len(set(sources)) < len(sources):
        raise IllegalArgumentException(f"log_dirs names a directory twice ({', '.join(sources)}); expected each once")
    target = target_path(dest, "dest", files)
    _check_target(sources, target, files)
    previous, wanted = None, named(partitions)
    if base is not None:
        base_path = os.path.abspath(local_path(base, what="base", files=files))
        previous = Base.open(base_path, sources, files, lambda partition: is_wanted(partition, wanted))
    partial = partial_path(target, sources if previous is None else [*sources, previous.path], files)
    full = telling_full(
        target,
        "the backup",
        files,
        needed=lambda: _bytes_needed(sources, wanted, previous, files),
        then=lambda: NOTHING_LEFT,
        known=AT_MOST,
    )
    with full, made_whole(target, partial, lambda: _check_target(sources, target, files), files):
        with Syncs(files) as syncs:
            report = BackupReport(target, None if previous is None else previous.path)
            placing = Placing(files, previous, link, report, syncs)
            content = _Run(sources, partial, wanted, placing, progress).take()
        if strict and report.findings:
            worst = report.findings[0]
            raise CorruptRecordException(
                (worst.what if worst.what.startswith(CANNOT_BE_READ) else f"the source is damaged: {worst.what}")
                + (f" ({len(report.findings)} findings)" * (len(report.findings) > 1)),
                path=worst.path,
                position=worst.position or None,
                hint="without strict the damage is copied as it is; `kafkalog verify` shows all findings",
            )
        files.write_atomic(os.path.join(partial, MANIFEST_FILE), content.encode())
    return report


def _last_batch(seen: Snapshot) -> BatchHeader | None:
    if seen.log_end_offset <= seen.log_start_offset:
        return None
    place, position = seen.position_of(seen.log_end_offset - 1)
    return None if place == len(seen.segments) else seen.reader(place).header_at(position)


def _has_batch(seen: Snapshot, header: BatchHeader) -> bool:
    """Returns whether the log has that batch, or now starts after it."""
    offset = header.last_offset
    if offset < seen.log_start_offset:
        return True
    if offset >= seen.log_end_offset:
        return False
    place, position = seen.position_of(offset)
    found = None if place == len(seen.segments) else seen.reader(place).header_at(position)
    if found is None or found.base_offset > offset:
        return True  # compaction removed it
    return _kept_by_compaction(found) == _kept_by_compaction(header)


def _kept_by_compaction(header: BatchHeader) -> tuple[int, ...]:
    return header.last_offset, header.leader_epoch, header.producer_id, header.producer_epoch, header.base_sequence


def _bytes_needed(sources: Iterable[str], wanted: Collection[str] | None, previous: Base | None, files: Files) -> int:
    """Returns the most bytes that a backup takes on disk, without what is linked from the base."""
    there = [pair for source in sources for pair in list_partitions(source, files=files).items()]
    chosen = {partition: path for partition, path in there if is_wanted(partition, wanted)}
    kept = 0 if previous is None else previous.closed_bytes(chosen)
    return max(0, bytes_in(chosen.values(), files) - kept)


def _check_target(sources: Iterable[str], target: str, files: Files) -> None:
    for source in sources:
        refuse_one_in_other(source, target)
    if files.exists(target) and (not files.is_dir(target) or files.list_dir(target)):
        raise IllegalArgumentException(
            "the directory is not empty; expected one that is new or empty",
            path=target,
            hint="each backup needs its own directory; name another one",
        )
    refuse_inside(target, files)
    refuse_in_log_dir(target, files)


class _Directory(NamedTuple):
    """A log directory that is copied, and its directory in the backup."""

    source: str
    folder: str
    target: str
    chosen: dict[TopicPartition, str]
    lines: CheckpointLines
    backed: dict[TopicPartition, BackedPartition]
    offsets: dict[str, dict[TopicPartition, int]]  # lines of its checkpoints, by file name


class _Look(NamedTuple):
    """Where a partition ended before the moment, and how to see whether it was truncated or recreated since."""

    end_offset: int
    folder: tuple[int, str | None]  # inode, topic id
    last_batch: BatchHeader | None  # None in an empty log


class _Run:
    """One backup, up to its manifest."""

    def __init__(
        self,
        sources: Sequence[str],
        target: str,
        wanted: Collection[str] | None,
        placing: Placing,
        progress: Progress | None,
    ) -> None:
        self.files = placing.files
        self.report = placing.report
        self._placing = placing
        self._progress = progress or (lambda size_bytes: None)
        self._sources = sources
        self._target = target
        self._wanted = wanted
        self._settings: dict[str, bytes | None] = {}
        self._views: dict[TopicPartition, PartitionView] = {}
        self._looks: dict[TopicPartition, _Look] = {}  # before the moment
        self._directories: Sequence[_Directory] = ()
        self._moment: Moment | None = None
        self._explanations: dict[str, tuple[set[TopicPartition], set[TopicPartition]]] = {}

    def take(self) -> Manifest:
        """Copies and syncs all files, and returns the manifest."""
        begun_ms = SYSTEM_CLOCK.milliseconds()
        try:
            directories = self._at_one_moment()
            self._check_checkpoints(directories)
            order = [(partition, each) for each in directories for partition in each.chosen]
            order.sort(key=lambda pair: _LAST.get(pair[0].topic, _ORDER.get(pair[0].topic, 2)))
            for partition, directory in order:
                self._take(directory, partition)
        finally:
            for partition in list(self._views):
                self._close_view(partition)
        self._settle(directories)
        self._tell_not_there(directories)
        backed = [self._finish(each) for each in directories]
        self._placing.syncs.wait()
        self.files.sync_dir(self._target)
        from kafkalog import __version__

        return Manifest(f"kafkalog {__version__}", begun_ms, SYSTEM_CLOCK.milliseconds(), backed, self.report.findings)

    # --- what there is -------------------------------------------------------------------------------

    def _at_one_moment(self) -> list[_Directory]:
        """Chooses the partitions, reads the settings of the same time, and fixes the moment of transactions, at which
        no other partition existed."""
        directories = [self._directory(number, source) for number, source in enumerate(self._sources, 1)]
        self._directories = directories
        first = listed = self._listed(directories)
        missing = set(self._wanted or ()) - set(map(str, first))
        if missing:
            raise UnknownTopicOrPartitionException(f"no partition {min(missing)} in {', '.join(self._sources)}")
        for look in range(STATE_LOOKS_MAX):
            self._look(directories)
            before, listed = listed, self._listed(directories)
            changed = {partition for partition, _ in before.items() ^ listed.items()}
            looks = self._looks.items()
            changed |= {each for each, seen in looks if each in listed and not self._still_has(each, seen)}
            for partition in changed:
                self._close_view(partition)
                self._looks.pop(partition, None)
            # topics keep changing: it is enough that the partitions that decide transactions are settled
            if look >= LOOKS_MAX:
                changed = {each for each in changed if each.topic == names.TRANSACTION_STATE_TOPIC}
            if not changed:
                break
        else:
            raise BeingWrittenException(
                f"partitions of {names.TRANSACTION_STATE_TOPIC} were created during each of {STATE_LOOKS_MAX} attempts",
                path=self._sources[0],
                hint="try again, when fewer new transactional ids are in use",
            )
        out = self.report.left_out
        self.report.notes += [GONE.format(each) for each in first if each not in listed and each not in out]
        for directory in directories:
            passing = folders_of(directory.source, self.files).moving
            if passing:
                self.report.notes.append(
                    f"{directory.source}: not copied: {', '.join(os.path.basename(path) for path in passing[:3])}"
                    + (f" and {len(passing) - 3} more" if len(passing) > 3 else "")
                    + "(being moved or deleted)"
                )
        return directories

    def _directory(self, number: int, source: str) -> _Directory:
        folder = f"log-dir-{number}"
        target = os.path.join(self._target, folder)
        self.files.mkdirs(target)
        offsets: dict[str, dict[TopicPartition, int]] = {name: {} for name in names.OFFSET_CHECKPOINT_FILES}
        return _Directory(source, folder, target, {}, CheckpointLines(source, self.files), {}, offsets)

    def _listed(self, directories: Sequence[_Directory]) -> dict[TopicPartition, str]:
        """Chooses the partitions to copy, and reads the topics' settings of the same time.  Returns each partition with
        its log directory."""
        for _ in range(LOOKS_MAX):
            self._settings = {source: self._raw_settings(source) for source in self._sources}
            there = {source: list_partitions(source, files=self.files) for source in self._sources}
            if self._settings == {source: self._raw_settings(source) for source in self._sources}:
                break
        found: dict[TopicPartition, str] = {}
        for directory in directories:
            directory.chosen.clear()
            for partition, path in there[directory.source].items():
                if not is_wanted(partition, self._wanted) or partition in self.report.left_out:
                    continue
                if partition in found:
                    raise IllegalArgumentException(
                        f"{partition} is in two of the directories; expected the directories of one store or broker",
                        path=found[partition],
                        hint="back up each directory separately",
                    )
                found[partition] = directory.source
                directory.chosen[partition] = path
        return found

    def _raw_settings(self, source: str) -> bytes | None:
        return self._small_file(os.path.join(source, names.TOPIC_CONFIGS_FILE))

    def _small_file(self, path: str) -> bytes | None:
        """Returns the content of a file of the directory itself; None if it does not exist, or cannot be read, which is
        reported."""
        try:
            return read_small(path, self.files)
        except FileNotFoundError:
            return None
        except OSError as error:
            wrong = unread(error, path)
            if wrong is None:
                raise
            if wrong not in self.report.findings:
                self.report.findings.append(wrong)
            return None

    def _check_checkpoints(self, directories: Sequence[_Directory]) -> None:
        """Reports checkpoints that are damaged or cannot be read; they are ignored."""
        for directory in directories:
            for name in names.OFFSET_CHECKPOINT_FILES:
                problem = directory.lines.told(name, NOBODY).problem
                if problem is not None:
                    wrong = unread(problem)
                    path = os.path.join(directory.source, name)
                    self.report.findings.append(wrong or Finding(path, problem.position or 0, 0, told(problem)))

    def _leave_out(self, directory: _Directory, partition: TopicPartition, error: Exception) -> None:
        """Reports a partition that cannot be read and leaves it out; raises any other error."""
        wrong = unread(error, directory.source)
        if wrong is None:
            raise error
        self._close_view(partition)
        self._looks.pop(partition, None)
        directory.chosen.pop(partition, None)
        self.report.left_out.append(partition)
        self.report.findings.append(wrong._replace(what=f"{wrong.what}; {partition} is not in the backup"))

    def _look(self, directories: Sequence[_Directory]) -> None:
        """Records where partitions end before the moment of transactions, and then that moment.  A partition that has
        been measured is not measured again: an earlier end is as good."""
        order = [(partition, each) for each in directories for partition in each.chosen]
        order.sort(key=lambda pair: _ORDER.get(pair[0].topic, 2))  # cursors before the partitions that they point into
        states = {}
        for partition, directory in order:
            try:
                if partition.topic == names.TRANSACTION_STATE_TOPIC:
                    states[partition] = self._view(directory, partition)
                elif partition not in self._looks:
                    self._looks[partition] = self._look_at(self._view(directory, partition))
            except UnknownTopicOrPartitionException:  # the next listing finds out
                pass
            except OSError as error:
                self._leave_out(directory, partition, error)
        while True:
            try:
                self._moment = moment_of(states, self.files)
                return
            except OSError as error:
                bad = next((each for each, view in states.items() if unread(error, view.directory)), None)
                if bad is None:
                    raise
                del states[bad]  # continue as if the partition belonged to another broker
                self._leave_out(next(each for each in directories if bad in each.chosen), bad, error)

    def _look_at(self, view: PartitionView) -> _Look:
        try:
            return _Look(view.log_end_offset, self._folder(view.directory), view.over(_last_batch))
        except CorruptRecordException:  # the check of the copy reports it
            return _Look(view.log_end_offset, self._folder(view.directory), None)
        finally:
            view.rest()

    def _still_has(self, partition: TopicPartition, look: _Look) -> bool:
        """Returns whether a partition is still the one that was measured, and its log continues what it had then."""
        view = self._views[partition]
        if not view.has_changed():
            return True
        try:
            if self._folder(view.directory) != look.folder:
                return False
            view.refresh()
            return look.last_batch is None or view.over(partial(_has_batch, header=look.last_batch))
        except (CorruptRecordException, OSError):  # the copying reports it
            return True
        finally:
            view.rest()

    def _folder(self, path: str) -> tuple[int, str | None]:
        try:
            return self.files.stat(path).inode, topic_id_of(path, self.files)
        except (CorruptCheckpointException, OSError):
            return 0, None

    def _view(self, directory: _Directory, partition: TopicPartition) -> PartitionView:
        if partition not in self._views:
            self._views[partition] = PartitionView(
                directory.source, partition, files=self.files, checkpoints=directory.lines
            )
        return self._views[partition]

    def _close_view(self, partition: TopicPartition) -> None:
        view = self._views.pop(partition, None)
        if view is not None:
            view.close()

    def _end(self, seen: Snapshot) -> int:
        """Returns the offset at which the copy of a partition ends."""
        partition, moment = seen.topic_partition, self._moment
        if moment is None:
            return seen.log_end_offset
        if partition.topic == names.TRANSACTION_STATE_TOPIC:
            end = moment.ends[partition]
        elif partition.topic in _LAST:
            return seen.log_end_offset
        else:
            is_cursors = partition.topic == names.GROUP_METADATA_TOPIC
            look = self._looks.get(partition)
            find = moment.end_of_cursors if is_cursors else moment.end_of_records
            try:
                if look is None:  # the partition was created since
                    look_end = seen.log_start_offset
                elif look.last_batch is None or _has_batch(seen, look.last_batch):
                    look_end = look.end_offset
                else:  # the log was truncated since, at an unknown offset
                    place = bisect_right(seen.bases, look.last_batch.base_offset) - 1
                    look_end = max(seen.bases[max(place, 0)], seen.log_start_offset)
                end = find(seen, look_end)
            except CorruptRecordException:  # the check of the copy reports it
                end = seen.log_end_offset
        return max(seen.log_start_offset, min(end, seen.log_end_offset))

    # --- one partition -------------------------------------------------------------------------------

    def _take(self, directory: _Directory, partition: TopicPartition) -> None:
        target = os.path.join(directory.target, str(partition))
        # Read before copying: a cleaner that runs meanwhile has not cleaned the copy.
        lines = {name: directory.lines.line(name, partition) for name in names.OFFSET_CHECKPOINT_FILES}
        try:
            view = self._view(directory, partition)
            if self._moment is not None:
                view.refresh()
            copy = PartitionCopy(
                self._placing,
                view,
                target,
                self._end,
                self._progress,
                tells_gaps=partition not in self._explained(directory)[0],
                begins_later=partition in self._explained(directory)[1],
                log_start=max(lines[names.LOG_START_OFFSET_CHECKPOINT_FILE] or 0, 0),
            )
            backed = copy.take()
            if not view.segments:  # for other partitions the view reports it
                lost = RecoveryPoints(directory.source, self.files).lost_end(
                    partition, view.directory, [], view.log_end_offset
                )
                self.report.findings += [] if lost is None else [lost.finding]
        except UnknownTopicOrPartitionException:
            self.files.remove_tree(target)
            moved = self._moved_to(directory, partition)
            if moved is None:
                self.report.notes.append(GONE.format(partition))
                return
        except OSError as error:
            self._leave_out(directory, partition, error)
            self.files.remove_tree(target)
            return
        else:
            moved = None
        finally:
            self._close_view(partition)
        if moved is not None:
            self._take(moved, partition)
            return
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

    def _explained(self, directory: _Directory) -> tuple[set[TopicPartition], set[TopicPartition]]:
        """Returns the partitions of a directory in which compaction may have left gaps, and those that may begin after
        their first epoch."""
        if directory.source not in self._explanations:
            compacted = may_be_compacted(directory.source, directory.chosen, self.files, if_unknown=True)
            later = may_begin_later(directory.source, directory.chosen, self.files)
            self._explanations[directory.source] = compacted, later
        return self._explanations[directory.source]

    def _moved_to(self, directory: _Directory, partition: TopicPartition) -> _Directory | None:
        """Returns another of the directories that now has the partition, or None."""
        others = (each for each in self._directories if each is not directory)
        return next((each for each in others if partition in list_partitions(each.source, files=self.files)), None)

    def _tell_not_there(self, directories: Sequence[_Directory]) -> None:
        """Notes partitions that the base has and no directory has now: deleted, or on a disk that is not mounted."""
        base = self._placing.base
        if base is None or self._wanted is not None:
            return
        there = {partition for each in directories for partition in each.backed}.union(self.report.left_out)
        gone = sorted(map(str, set(base.partitions) - there))
        if gone:
            shown = ", ".join(gone[:5]) + (f" and {len(gone) - 5} more" if len(gone) > 5 else "")
            self.report.notes.append(
                f"missing since {base.path}: {shown}. Were they deleted, or is a disk not mounted? Keep that backup"
            )

    def _settle(self, directories: Sequence[_Directory]) -> None:
        """Makes the topics' settings fit the copied partitions.  A topic that was deleted meanwhile is left out, even
        if some of its partitions were already copied."""
        chosen = {partition for each in directories for partition in each.chosen}
        taken = {partition: each for directory in directories for partition, each in directory.backed.items()}
        gone = chosen - taken.keys()
        left_out = {each.topic for each in gone} - {each.topic for each in taken}
        left_out |= self._replaced(gone, taken.values())
        for topic in sorted(left_out):
            self.report.notes.append(
                f"the topic {topic} was deleted during the backup: it is left out, with its settings"
            )
        if left_out:
            self._placing.syncs.wait()  # for files that are now deleted
        for directory in directories:
            for partition in [each for each in directory.backed if each.topic in left_out]:
                self.files.remove_tree(os.path.join(directory.target, str(partition)))
                del directory.backed[partition]
                for lines in directory.offsets.values():
                    lines.pop(partition, None)
        topics = None if self._wanted is None else {each.topic for each in chosen}

        def is_kept(topic: str) -> bool:
            return topic not in left_out and (topics is None or topic in topics)

        # a partition that the source misses is missing in the copy too
        def is_there(partition: TopicPartition) -> bool:
            return partition not in gone if self._wanted is None else partition in taken

        for source, data in self._settings.items():
            path = os.path.join(source, names.TOPIC_CONFIGS_FILE)
            if data is not None:
                try:
                    self._settings[source] = trimmed(data, path, is_kept, is_there)
                except CorruptCheckpointException as error:  # copied as it is
                    self.report.findings.append(Finding(path, error.position or 0, 0, told(error)))

    def _replaced(self, gone: Collection[TopicPartition], taken: Iterable[BackedPartition]) -> set[str]:
        """Returns topics that the settings to save have and the source no longer has.  Their partitions are missing, or
        belong to a later topic of the same name whose directories may have no id yet."""
        saved: dict[str, KnownTopic] = {}
        for source, data in self._settings.items():
            with suppress(CorruptCheckpointException):
                saved |= {} if data is None else known_in(data, os.path.join(source, names.TOPIC_CONFIGS_FILE))
        doubted = {each.topic for each in gone}
        doubted |= {
            each.partition.topic
            for each in taken
            if each.partition.topic in saved and each.topic_id != saved[each.partition.topic].topic_id
        }
        if not doubted:
            return set()
        try:
            known = stored_content(self._sources, self.files)[1]
        except (CorruptCheckpointException, KafkaStorageException):
            return set()
        return {
            topic
            for topic in doubted.intersection(saved)
            if topic not in known or known[topic].is_deleted or known[topic].topic_id != saved[topic].topic_id
        }

    def _finish(self, directory: _Directory) -> BackedDirectory:
        """Writes the files of the directory itself, and returns its entry for the manifest."""
        files, target = self.files, directory.target
        held: dict[str, bytes] = {}
        settings = self._settings[directory.source]
        if settings is not None:
            held[names.TOPIC_CONFIGS_FILE] = settings
        for name in KEPT_AT_THE_TOP:
            if name == names.SERVER_STATE_FILE and self._wanted is not None:
                continue  # some topics may be for people who may not see the users
            data = self._small_file(os.path.join(directory.source, name))
            if data is not None:
                held[name] = data
        for name, lines in directory.offsets.items():
            always = (names.RECOVERY_POINT_CHECKPOINT_FILE, names.LOG_START_OFFSET_CHECKPOINT_FILE)
            if lines or name in always:
                checkpoint = OffsetCheckpointFile(os.path.join(target, name), files, create=False)
                checkpoint.write({each: offset for each, offset in lines.items() if checkpoint.can_hold(each)})
                held[name] = files.read_bytes(checkpoint.path)
        for name, data in held.items():
            if name == names.SERVER_STATE_FILE:
                files.make_private(os.path.join(target, name))
            if name not in directory.offsets:
                files.write_file(os.path.join(target, name), data, sync=True)
            self.report.add(COPIED, len(data))
        files.sync_dir(target)
        backed = {name: BackedFile(len(data), crc32c(data)) for name, data in held.items()}
        return BackedDirectory(directory.folder, directory.source, backed, list(directory.backed.values()))


def __dir__() -> list[str]:
    return __all__
