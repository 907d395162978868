"""The log directories of one manager: which are live, offline, cordoned; their locks, ids and checkpoints.

A directory whose disk fails is offline, with that error, and stays so.  A checkpoint is computed from the logs and
written under the directory's lock in `_writing`: of two threads that write it, the later one has the newer values.
As in Kafka, an error there is only logged, because the directory is offline then.  Mirrors the directory part of
LogManager (4.4.0).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from kafkalog._native.state.log_end import PartitionLock
from kafkalog.engine.files import OS_FILES, Files, LogDirFailureChannel, local_path, parent_dir
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import CLEANER_OFFSET_CHECKPOINT_FILE, TopicPartition
from kafkalog.engine.host.backups import refuse_in_backup
from kafkalog.engine.host.changes import inside
from kafkalog.engine.host.held import HeldDirectory
from kafkalog.engine.host.log_dirs import refuse_foreign, refuse_inside
from kafkalog.engine.host.registry import LogRegistry
from kafkalog.errors import (
    DiskFull,
    IllegalArgumentException,
    KafkaException,
    KafkalogError,
    KafkaStorageException,
    LogDirNotFoundException,
    NoLiveLogDirException,
    TooManyOpenFilesException,
)

LOGGER = "kafkalog.manager"

ALL = "*"  # in cordoned.log.dirs: all directories


class LogDirectories:
    """Holds nothing until `hold`.  `live` maps path to HeldDirectory in the given order, and is replaced whole."""

    def __init__(
        self,
        log_dirs: Sequence[str],
        files: Files,
        failure_channel: LogDirFailureChannel,
        *,
        raises: bool = False,
    ) -> None:
        """Acquires nothing yet: an object that acquires locks must already be stored where an interrupt finds it.

        `raises`: `hold` raises the first error of a disk, and the failure channel does not report it.
        """
        self._raises = raises
        self.paths = list(log_dirs)
        self.files = files
        self.failure_channel = failure_channel
        self.live: dict[str, HeldDirectory] = {}
        self.ids: dict[str, str] = {}
        self.cordoned: frozenset[str] = frozenset()
        self._writing = {path: PartitionLock() for path in self.paths}
        # The cleaner's file has another lock.  A cleaner that holds its states' lock and waits for a common lock would
        # deadlock with a thread that holds the common lock and whose signal handler needs the states' lock.
        self._cleaning = {path: PartitionLock() for path in self.paths}
        self.checkpointed: set[str] = set()  # directories whose starts and recovery points this process has written
        self._told: set[str] = set()  # problems of files that are read repeatedly, already logged

    def hold(self) -> None:
        """Acquires the locks.

        Raises LogDirLockedException, KafkaException for duplicates, NoLiveLogDirException, and
        IllegalArgumentException for a directory of another program.  After an error nothing is held.
        """
        try:
            self._refuse_foreign()
            self._create_and_validate()
            self._each("Disk error while locking directory", HeldDirectory.lock)
            self._each("Disk error while loading ID", self._load_id)
            self._each("Error while creating the checkpoints of", HeldDirectory.make_checkpoints)
            if not self.live:
                raise self.lost(f"none of the specified log dirs from {self.shown} can be created or validated")
        except BaseException:
            self.unlock()
            raise

    @property
    def shown(self) -> str:
        return ", ".join(self.paths)

    def disown(self) -> None:
        """Resets the object in a forked child."""
        self.live = {}
        self._writing = {path: PartitionLock() for path in self.paths}
        self._cleaning = {path: PartitionLock() for path in self.paths}

    def _refuse_foreign(self) -> None:
        """Refuses all paths before anything is created in one."""
        for path in self.paths:
            refuse_foreign(path, self.files)
            refuse_inside(path, self.files)
            refuse_in_backup(path, self.files)

    def _create_and_validate(self) -> None:
        seen: set[str] = set()
        for path in self.paths:
            try:
                if not self.files.exists(path):
                    Lines(LOGGER, path).info("Log directory not found, creating it.")
                    self.files.mkdirs_synced(path)
                elif self.files.is_dir(path):
                    self.files.sync_dir(parent_dir(path))  # its creator may have died before it synced the parent
                if not self.files.is_dir(path) or not self.files.is_readable(path):
                    raise OSError(f"{path} is not a readable log directory.")
                real = os.path.realpath(path)
                if real in seen:
                    raise KafkaException(f"Duplicate log directory found: {self.shown}")
                seen.add(real)
                self.live[path] = HeldDirectory(path, self.files, self.failure_channel)
            except OSError as error:
                self.failure_channel.give_up(path, f"Failed to create or validate data directory {path}", error)

    def _each(self, failed: str, step: Callable[[HeldDirectory], object]) -> None:
        """Runs a step of `hold`: a directory whose disk refuses the step is taken out."""
        for path, held in list(self.live.items()):
            try:
                step(held)
            except OSError as error:
                if self._raises:
                    raise KafkaStorageException.because_of(error, f"{failed} {path}") from error
                self.failure_channel.give_up(path, f"{failed} {path}", error)
                self.take_out(path)

    def _load_id(self, held: HeldDirectory) -> None:
        found = held.directory_id()
        if found is not None:
            self.ids[held.path] = found

    # --- live and offline ----------------------------------------------------------------------------

    @property
    def offline(self) -> list[str]:
        live = self.live
        return [path for path in self.paths if path not in live]

    def is_online(self, path: str) -> bool:
        """Raises LogDirNotFoundException for a directory that is not one of these."""
        if path not in self.paths:
            raise LogDirNotFoundException(f"Log dir {path} is not found in the config.", hint=f"there are {self.shown}")
        return path in self.live

    def must(self, path: str) -> HeldDirectory:
        """Returns a live directory, for a caller that has no other.  NoLiveLogDirException if it is offline."""
        held = self.live.get(path)
        if held is None:
            raise self.lost()
        return held

    def take_out(self, path: str) -> None:
        """Marks a directory as offline: releases its lock, and never touches its files again."""
        held = self.live.get(path)
        self.live = {each: other for each, other in self.live.items() if each != path}
        self.ids.pop(path, None)
        if held is not None:
            self._unlock(held)

    def lost(self, why: str | None = None) -> NoLiveLogDirException:
        """Returns the error to raise if no directory is live, with the `errno` of the first failure."""
        causes = {path: self.failure_channel.cause(path) for path in self.failure_channel.offline_log_dirs}
        hint = "; ".join(f"{path}: {cause}" for path, cause in causes.items())
        lost = NoLiveLogDirException(why or f"all log dirs in {self.shown} have failed", hint=hint or None)
        for cause in causes.values():
            if isinstance(cause, OSError) and cause.errno is not None:
                lost.errno, lost.strerror = cause.errno, cause.strerror
                break
        return lost

    def unlock(self) -> None:
        for held in self.live.values():
            self._unlock(held)

    def _unlock(self, held: HeldDirectory) -> None:
        with self._writing[held.path], self._cleaning[held.path]:  # waits for a running write to end
            held.unlock()

    def cordon(self, log_dirs: Sequence[str]) -> None:
        """Sets the directories that get no new partition; `["*"]` for all.  LogDirNotFoundException."""
        if ALL in log_dirs:
            self.cordoned = frozenset(self.paths)
            return
        paths = [os.path.abspath(each) for each in log_dirs]
        for path in paths:
            self.is_online(path)
        self.cordoned = frozenset(paths)

    def next_for_a_partition(self, logs: Mapping[str, int]) -> list[str]:
        """Returns the directories to try for a new partition: not cordoned, the fewest logs first.

        Returns the first live one if all are cordoned.  `logs` maps a directory to its number of logs.
        """
        live = list(self.live)
        if len(live) <= 1:
            return live
        open_ones = [path for path in live if path not in self.cordoned]
        return sorted(open_ones, key=lambda path: logs.get(path, 0)) or live[:1]

    # --- checkpoints ---------------------------------------------------------------------------------

    def checkpoint(self, log_dir: str, registry: LogRegistry, *, raises: bool = False) -> bool:
        """Writes log starts, then recovery points.

        The order matters: raising the log start can raise the recovery point over records that were never flushed.
        `raises`: raises DiskFull and TooManyOpenFilesException for a caller that cannot continue without the files.
        """
        written = self.checkpoint_log_starts(log_dir, registry, raises=raises) and self.checkpoint_recovery_points(
            log_dir, registry, raises=raises
        )
        if written:
            self.checkpointed.add(log_dir)
        return written

    def checkpoint_recovery_points(self, log_dir: str, registry: LogRegistry, *, raises: bool = False) -> bool:
        """Returns whether the file was written; also False for an offline directory."""
        held = self.live.get(log_dir)
        return held is not None and self._write(
            held, held.recovery_points, lambda: _recovery_points(registry, log_dir), raises=raises
        )

    def checkpoint_log_starts(self, log_dir: str, registry: LogRegistry, *, raises: bool = False) -> bool:
        held = self.live.get(log_dir)
        return held is not None and self._write(
            held, held.log_starts, lambda: _log_starts(registry, log_dir), raises=raises
        )

    def checkpoint_high_watermarks(self, log_dir: str, registry: LogRegistry) -> bool:
        held = self.live.get(log_dir)
        return held is not None and self._write(held, held.high_watermarks, lambda: _high_watermarks(registry, log_dir))

    def make_cleaner_offsets(self) -> None:
        """Creates cleaner-offset-checkpoint in each directory, empty, if it is missing."""
        for path, held in list(self.live.items()):
            try:
                held.make(held.cleaner_offsets)
            except OSError as error:
                self.failure_channel.give_up(path, f"Error while creating {held.cleaner_offsets.path}", error)

    def read_cleaner_offsets(self, log_dir: str) -> dict[TopicPartition, int] | None:
        """Returns the first dirty offset of each partition that was cleaned.

        Returns None if the directory is offline, or no longer held.  A file that cannot be read counts as empty, with
        one warning.
        """
        held = self.live.get(log_dir)
        if held is None:
            return None
        with self._cleaning[log_dir]:
            if not self._is_ours(held):
                return None
            try:
                return held.cleaner_offsets.read()
            except FileNotFoundError:
                return {}
            except KafkalogError as error:
                if str(error) not in self._told:
                    self._told.add(str(error))
                    Lines(LOGGER, log_dir).warning("%s; compacted logs are cleaned from their start", error)
                return {}
            except OSError as error:
                message = f"Error while reading checkpoint file {held.cleaner_offsets.path}"
                self.failure_channel.give_up(log_dir, message, error)
                return None

    def write_cleaner_offsets(self, log_dir: str, offsets: Mapping[TopicPartition, int]) -> bool:
        """Returns whether the file was written."""
        held = self.live.get(log_dir)
        return held is not None and self._write(held, held.cleaner_offsets, lambda: offsets, self._cleaning)

    def write_lines(self, log_dir: str, name: str, lines: Mapping[TopicPartition, int]) -> None:
        """Replaces the checkpoint `name`.  KafkaStorageException, also if the directory is offline."""
        held = self.must(log_dir)
        is_cleaners = name == CLEANER_OFFSET_CHECKPOINT_FILE
        with (self._cleaning if is_cleaners else self._writing)[log_dir]:
            held.write(OffsetCheckpointFile(os.path.join(log_dir, name), self.files, create=False), lines)

    def _is_ours(self, held: HeldDirectory) -> bool:
        return held.is_locked and not self.failure_channel.has_offline_log_dir(held.path)

    def _write(
        self,
        held: HeldDirectory,
        checkpoint: OffsetCheckpointFile,
        lines: Callable[[], Mapping[TopicPartition, int]],
        locks: Mapping[str, PartitionLock] | None = None,
        *,
        raises: bool = False,
    ) -> bool:
        lock = (locks or self._writing)[held.path]
        if lock.is_mine():  # both calls would write the same temporary file
            raise inside(f"writing a checkpoint of {held.path}")
        with lock:
            if not self._is_ours(held):
                return False
            try:
                held.write(checkpoint, lines())
                return True
            except (DiskFull, TooManyOpenFilesException) as error:
                if raises:
                    raise
                Lines(LOGGER, held.path).warning("%s will be written later: %s", checkpoint.path, error)
                return False
            except KafkaStorageException:
                Lines(LOGGER, held.path).exception("Disk error while writing %s", checkpoint.path)
                return False


def _recovery_points(registry: LogRegistry, log_dir: str) -> dict[TopicPartition, int]:
    lines = _waiting_lines(registry, log_dir, "recovery_point")
    return {**lines, **{partition: log.recovery_point for partition, log in registry.in_dir(log_dir).items()}}


def _log_starts(registry: LogRegistry, log_dir: str) -> dict[TopicPartition, int]:
    """Returns lines only for logs that start inside their first segment: the others start at its base offset."""
    lines = _waiting_lines(registry, log_dir, "log_start_offset")
    for partition, log in registry.in_dir(log_dir).items():
        lines.pop(partition, None)
        start = log.log_start_offset_to_checkpoint
        if start is not None:
            lines[partition] = start
    return lines


def _high_watermarks(registry: LogRegistry, log_dir: str) -> Mapping[TopicPartition, int]:
    found = registry.high_watermarks_in_dir(log_dir)
    lines = _waiting_lines(registry, log_dir, "high_watermark")
    return {**lines, **dict(found.items())} if lines else found


def _waiting_lines(registry: LogRegistry, log_dir: str, name: str) -> dict[TopicPartition, int]:
    """Returns the lines of the logs that are not open: as they were read, or written when the logs were closed."""
    lines = ((partition, getattr(waiting, name)) for partition, waiting in registry.waiting_in(log_dir).items())
    return {partition: line for partition, line in lines if line is not None}


def absolute_paths(
    log_dirs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], files: Files = OS_FILES
) -> list[str]:
    """Returns a caller's log directories as absolute paths.

    Raises IllegalArgumentException if one is no path, or if there is none.
    """
    given = [log_dirs] if isinstance(log_dirs, str | bytes | os.PathLike) else log_dirs
    try:
        texts = [_text_of(each) for each in given]
    except (TypeError, IllegalArgumentException):
        raise IllegalArgumentException(
            f"log_dirs: found {log_dirs!r}, expected a path, or several", hint='such as ["disk1", "disk2"]'
        ) from None
    if not texts:
        raise IllegalArgumentException("log_dirs: found none, expected a path, or several")
    return [text if files.owns(text) else _absolute(text) for text in texts]


def absolute_path(log_dir: str | os.PathLike[str]) -> str:
    """Returns a caller's log directory as an absolute path.  IllegalArgumentException if it is no local path."""
    return _absolute(_text_of(log_dir))


def _text_of(log_dir: str | os.PathLike[str]) -> str:
    try:
        path = os.fsdecode(log_dir)
    except TypeError:
        path = ""
    if not path or "\0" in path:
        raise IllegalArgumentException(f"log_dir: found {log_dir!r}, expected a path")
    return path


def _absolute(text: str) -> str:
    return os.path.abspath(local_path(text, what="log_dir"))
