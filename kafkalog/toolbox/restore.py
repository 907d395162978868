"""Restores a backup, or some partitions of it, as log directories.

A backup holds log directories as they are, so restoring is copying with checks: of the manifest, and of the size and
the CRC-32C of every file, read back from the copy.  If one differs, nothing is restored.  Checkpoints are written for
the restored partitions.  The result has every record of the backup.  The next open recovers the last segment of each
partition, as after a crash, finds it complete, and ends transactions that were open.

As with a backup, everything is copied to `TARGET.kafkalog-partial`, synced, and then renamed, so an existing target is
complete.  A backup of one log directory is restored as TARGET; one of several as TARGET/log-dir-1, TARGET/log-dir-2 ...

Used by one thread; a few others wait for syncs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from kafkalog._face.producer_ids import counter_after
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, Files, local_path
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

TAKE_ANOTHER = "another backup may have the complete file; `kafkalog salvage` copies what can be read of this one"


@dataclass
class RestoreReport:
    """The result of a restore.

    `directories` maps each source directory to the restored one. `findings` says what was wrong with the source
    when the backup was taken.
    """

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
        """The number of restored partitions."""
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
    """Copies a backup to `target_dir`.

    Partitions of `__transaction_state` are always restored.

    Args:
        backup_dir: The backup.
        target_dir: The directory to create, which must not exist or be empty.
        partitions: The partitions to restore ("orders-0", or pairs of topic and number); None restores all.
        act: Restores; False only checks every byte of the backup, and writes nothing.
        files: The file system; for tests.
        progress: Called with the number of bytes just read.

    Returns:
        A `RestoreReport`.

    Raises:
        NoSuchFileException: There is no backup, or a file of it is missing.
        CorruptCheckpointException: The manifest is damaged.
        CorruptRecordException: A file does not match the manifest.
        UnknownTopicOrPartitionException: The backup does not have a named partition.
        IllegalArgumentException: The target is not empty, is a symbolic link, or is in the backup or a log directory.
        LogDirLockedException: Another process has the target.
        DiskFull: The target's disk is full.
        OSError: Any other error of the file system.

    Example:
        >>> from kafkalog.toolbox.backup import backup
        >>> from kafkalog.toolbox.restore import restore
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append_many([b"one", b"two"])
        >>> _ = backup("shop", "backups/monday")
        >>> restore("backups/monday", "restored").records
        2
        >>> with kafkalog.open("restored", read_only=True) as store:
        ...     [record.value for record in store.topic("orders").partition(0).records()]
        [b'one', b'two']
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
) -> dict[int, list[BackedPartition]]:  # by the directory's index in the manifest
    found = {
        place: [each for each in directory.partitions if is_wanted(each.partition, wanted)]
        for place, directory in enumerate(manifest.directories)
    }
    missing = set(wanted or ()) - {str(each.partition) for listed in found.values() for each in listed}
    if missing:
        raise UnknownTopicOrPartitionException(f"no partition {min(missing)} in the backup {backup}")
    return found


def _check_target(target: str, files: Files) -> None:
    """Raises IllegalArgumentException if the target is not empty, and LogDirLockedException if a process has it
    open."""
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
        "the directory is not empty; expected one that is new or empty",
        path=target,
        hint="restore to another directory, and move partitions from there with `kafkalog move`",
    )


class _Restore:
    """One restore; without a `placing` nothing is written."""

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
        """Restores the chosen partitions; `is_whole` means all partitions of the backup, and all its topics'
        settings."""
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
            for name in held.files:  # all at once: a sync also waits for what others have just written
                placing.syncs.add(os.path.join(target, name))
            placing.syncs.add_dir(target)
        report.ends[held.partition] = (held.log_start_offset, held.end_offset)
        report.segments += len(held.segments)
        report.records += sum(segment.records for segment in held.segments)

    def _file(self, source: str, target: str, held: BackedFile) -> None:
        """Copies one file and checks the copy; without writing, checks the backup's file."""
        files, placing = self._files, self._placing
        try:
            stat = files.stat(source)
        except FileNotFoundError:
            raise NoSuchFileException("a file of the backup is missing", path=source, hint=TAKE_ANOTHER) from None
        if stat.size != held.size:
            raise CorruptRecordException(
                f"the file has {stat.size} bytes; expected {held.size} as in the manifest",
                path=source,
                position=min(stat.size, held.size),
                hint=TAKE_ANOTHER,
            )
        if placing is not None:
            try:
                placing.place(source, target, held.size, private=os.path.basename(target) == names.SERVER_STATE_FILE)
            except Changed:
                raise CorruptRecordException(
                    "the file was truncated while it was copied", path=source, hint=TAKE_ANOTHER
                ) from None
            files.set_mtime_ms(target, stat.mtime_ms)
        read = source if placing is None else target
        with files.open(read, writable=False) as file:
            found = digest_of(file, 0, held.size)
        if found != held.crc32c:
            raise CorruptRecordException(
                f"the CRC-32C is {found:08x}; expected {held.crc32c:08x} as in the manifest",
                path=source,
                hint=TAKE_ANOTHER,
            )
        self._report.bytes += held.size
        self._progress(held.size)

    def _own_files(
        self, directory: BackedDirectory, source: str, target: str, kept: Collection[TopicPartition], *, is_whole: bool
    ) -> None:
        """Copies the checkpoints, the topics' settings, meta.properties, and what a server keeps.

        Users, ACLs and quotas are restored with all of a backup only.
        """
        files = self._files
        chosen = [name for name in directory.files if is_whole or name != names.SERVER_STATE_FILE]
        for name in chosen:
            self._file(os.path.join(source, name), os.path.join(target, name), directory.files[name])
        if self._placing is None:
            return
        for name in chosen:
            self._placing.syncs.add(os.path.join(target, name))
        self._placing.syncs.wait()
        if names.PRODUCER_IDS_FILE in directory.files:
            path = os.path.join(target, names.PRODUCER_IDS_FILE)
            elapsed_ms = SYSTEM_CLOCK.milliseconds() - self._manifest.finished_ms
            files.write_atomic(path, counter_after(read_small(path, files), elapsed_ms))
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
