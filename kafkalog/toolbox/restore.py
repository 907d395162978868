"""Bring a backup, or some partitions of it, back as log directories.

A backup holds log directories as they are, so restoring is copying, with everything checked that can be: the manifest,
the size and the CRC-32C of every file, read back from the copy.  One that differs refuses the whole, before anything
is there.  Checkpoints are written for the partitions that are restored.  What is restored has every record of the
backup: the next open recovers the last segment of each partition, as after a crash, finds it whole, and ends
transactions that were open.

As a backup is made: all is copied to `TARGET.kafkalog-partial`, synced, and then gets its name, so a target that is
there is whole.  A backup of one log directory is restored as TARGET; one of several as TARGET/log-dir-1,
TARGET/log-dir-2 ...

Used by one thread; syncs wait in a few others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from kafkalog.engine.files import OS_FILES, Files, local_path
from kafkalog.engine.format import names, values
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.small_files import read_small
from kafkalog.engine.host.log_dirs import refuse_inside
from kafkalog.engine.host.topic_configs import trimmed
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    NoSuchFileException,
    UnknownTopicOrPartitionException,
)
from kafkalog.toolbox.backup_files import BackupReport, Changed, Placing, Syncs, digest_of
from kafkalog.toolbox.backup_manifest import (
    BackedDirectory,
    BackedFile,
    BackedPartition,
    Manifest,
    read_manifest,
)
from kafkalog.toolbox.backup_places import (
    is_wanted,
    made_whole,
    named,
    partial_path,
    refuse_in_log_dir,
    refuse_one_in_other,
    target_path,
)
from kafkalog.toolbox.report import Finding
from kafkalog.toolbox.space import NOTHING_LEFT, on_disk, telling_full

__all__ = ["RestoreReport", "restore"]

TAKE_ANOTHER = "another backup may have it whole; `kafkalog salvage` copies what can be read of this one"


@dataclass
class RestoreReport:
    """What was, or would be, restored.  `directories`: the log directories, by where they came from.  `findings`: what
    was wrong with the source when the backup was taken."""

    path: str
    backup: str
    finished_ms: int = 0
    done: bool = False
    directories: dict[str, str] = field(default_factory=dict)
    ends: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)  # log start and end offset
    segments: int = 0
    records: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def partitions(self) -> int:
        """How many there are."""
        return len(self.ends)


def restore(
    backup_dir: str | os.PathLike[str],
    target_dir: str | os.PathLike[str],
    *,
    partitions: Collection[TopicPartition | str] | None = None,
    act: bool = True,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
) -> RestoreReport:
    """Copy a backup to `target_dir`, which must be new or empty.

    `partitions` ("orders-0", or pairs) are the only ones to restore, beside those of `__transaction_state`.  Without
    `act` everything is checked, every byte of the backup too, and nothing is written.  `progress` is called with the
    bytes just read.

    Returns a RestoreReport.

    Errors: NoSuchFileException (no backup, or a file of it is missing), CorruptCheckpointException (its manifest),
    CorruptRecordException (a file that is not as the manifest says), UnknownTopicOrPartitionException,
    IllegalArgumentException (the target is not empty, a symbolic link, or in the backup or a log directory),
    LogDirLockedException, DiskFull, OSError.

        from kafkalog.toolbox.restore import restore

        report = restore("backups/2026-11-27", "restored")
        print(report.records, report.directories)
    """
    values.function(progress, "progress", "a function of the bytes just read")
    act = values.flag(act, "act")
    backup = os.path.abspath(local_path(backup_dir, what="backup_dir", files=files))
    target = target_path(target_dir, "target_dir", files)
    manifest = read_manifest(backup, files)
    wanted = named(partitions)
    chosen = _chosen(manifest, wanted, backup)
    refuse_one_in_other(backup, target)
    partial = partial_path(target, [backup], files)
    _check_target(target, files)
    report = RestoreReport(target, backup, manifest.finished_ms, act, findings=list(manifest.findings))
    tell = progress or (lambda size_bytes: None)
    if not act:
        _Restore(files, None, manifest, backup, target, report, tell).run(chosen, is_whole=wanted is None)
        return report
    needed = sum(on_disk(each.size) for held in chosen.values() for one in held for each in one.files.values())
    full = telling_full(target, "what is restored", files, needed=lambda: needed, then=lambda: NOTHING_LEFT)
    with full, made_whole(target, partial, lambda: _check_target(target, files), files), Syncs(files) as syncs:
        placing = Placing(files, None, False, BackupReport(target), syncs)
        _Restore(files, placing, manifest, backup, partial, report, tell).run(chosen, is_whole=wanted is None)
    report.directories = {source: path.replace(partial, target, 1) for source, path in report.directories.items()}
    return report


def _chosen(
    manifest: Manifest, wanted: Collection[str] | None, backup: str
) -> dict[int, list[BackedPartition]]:  # by the directory's place
    found = {
        place: [each for each in directory.partitions if is_wanted(each.partition, wanted)]
        for place, directory in enumerate(manifest.directories)
    }
    missing = set(wanted or ()) - {str(each.partition) for listed in found.values() for each in listed}
    if missing:
        raise UnknownTopicOrPartitionException(f"no partition {min(missing)} in the backup {backup}")
    return found


def _check_target(target: str, files: Files) -> None:
    """That nothing is there; LogDirLockedException where somebody has it open."""
    refuse_inside(target, files)
    refuse_in_log_dir(target, files)
    if not files.exists(target):
        return
    if files.is_dir(target):
        listed = files.list_dir(target)
        if names.LOCK_FILE in listed:
            files.lock(os.path.join(target, names.LOCK_FILE)).release()
            listed = files.list_dir(target)
        if not listed:
            return
    raise IllegalArgumentException(
        "found something there, expected a folder that is new or empty",
        path=target,
        hint="restore to another folder, and move partitions from there with `kafkalog move`",
    )


class _Restore:
    """One of them; without a `placing` nothing is written."""

    def __init__(
        self,
        files: Files,
        placing: Placing | None,
        manifest: Manifest,
        backup: str,
        target: str,
        report: RestoreReport,
        progress: Callable[[int], None],
    ) -> None:
        self._files = files
        self._placing = placing
        self._manifest = manifest
        self._backup = backup
        self._target = target
        self._report = report
        self._progress = progress

    def run(self, chosen: Mapping[int, list[BackedPartition]], *, is_whole: bool) -> None:
        """`is_whole`: all partitions of the backup, and all its topics' settings."""
        manifest = self._manifest
        for place, partitions in chosen.items():
            directory = manifest.directories[place]
            if not (partitions or is_whole):
                continue
            source = os.path.join(self._backup, directory.folder)
            target = self._target
            if len(manifest.directories) > 1:
                target = os.path.join(target, directory.folder)
            self._report.directories[directory.source] = target
            if self._placing is not None:
                self._files.mkdirs(target)
            for each in partitions:
                self._partition(
                    each, os.path.join(source, str(each.partition)), os.path.join(target, str(each.partition))
                )
            self._own_files(directory, source, target, {each.partition for each in partitions}, is_whole=is_whole)
        if self._placing is not None:
            self._placing.syncs.wait()
            self._files.sync_dir(self._target)

    def _partition(self, held: BackedPartition, source: str, target: str) -> None:
        report, placing = self._report, self._placing
        if placing is not None:
            self._files.mkdirs(target)
        for name, each in held.files.items():
            self._file(os.path.join(source, name), os.path.join(target, name), each)
        if placing is not None:
            for name in held.files:  # all at once: a sync waits for what others have just written, too
                placing.syncs.add(os.path.join(target, name))
            placing.syncs.add_dir(target)
        report.ends[held.partition] = (held.log_start_offset, held.end_offset)
        report.segments += len(held.segments)
        report.records += sum(segment.records for segment in held.segments)

    def _file(self, source: str, target: str, held: BackedFile) -> None:
        """Copies one, and checks the copy; without writing, checks the backup's."""
        files, placing = self._files, self._placing
        try:
            stat = files.stat(source)
        except FileNotFoundError:
            raise NoSuchFileException("a file of the backup is missing", path=source, hint=TAKE_ANOTHER) from None
        if stat.size != held.size:
            raise CorruptRecordException(
                f"found {stat.size} bytes, expected {held.size} as the manifest says",
                path=source,
                position=min(stat.size, held.size),
                hint=TAKE_ANOTHER,
            )
        if placing is not None:
            try:
                placing.place(source, target, held.size)
            except Changed:
                raise CorruptRecordException("somebody cut the file", path=source, hint=TAKE_ANOTHER) from None
            files.set_mtime_ms(target, stat.mtime_ms)
        read = source if placing is None else target
        with files.open(read, writable=False) as file:
            found = digest_of(file, 0, held.size)
        if found != held.crc32c:
            raise CorruptRecordException(
                f"found the CRC-32C {found:08x}, expected {held.crc32c:08x} as the manifest says",
                path=source,
                hint=TAKE_ANOTHER,
            )
        self._report.bytes += held.size
        self._progress(held.size)

    def _own_files(
        self, directory: BackedDirectory, source: str, target: str, kept: Collection[TopicPartition], *, is_whole: bool
    ) -> None:
        """Checkpoints, the topics' settings, meta.properties."""
        files = self._files
        for name, held in directory.files.items():
            self._file(os.path.join(source, name), os.path.join(target, name), held)
        if self._placing is None:
            return
        for name in directory.files:
            self._placing.syncs.add(os.path.join(target, name))
        self._placing.syncs.wait()
        if not is_whole:
            for name in names.OFFSET_CHECKPOINT_FILES:
                if name in directory.files:
                    checkpoint = OffsetCheckpointFile(os.path.join(target, name), files, create=False)
                    checkpoint.write({each: offset for each, offset in checkpoint.read().items() if each in kept})
            if names.TOPIC_CONFIGS_FILE in directory.files:
                topics = {each.topic for each in kept}
                path = os.path.join(target, names.TOPIC_CONFIGS_FILE)
                data = trimmed(read_small(path, files), path, topics.__contains__, kept.__contains__)
                files.write_atomic(path, data)
        files.sync_dir(target)


def __dir__() -> list[str]:
    return __all__
