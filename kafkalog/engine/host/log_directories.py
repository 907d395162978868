"""The log directories of one manager: which are live, offline, cordoned; their locks, ids and checkpoints.

A directory that the disk refuses is offline, with the error that did it, and stays so.  Writing a checkpoint asks the
logs under the directory's `writing`, so that of two who write the later one is right; what fails there is logged, as
in Kafka, for the directory is offline then.  Mirrors the directory part of LogManager (4.4.0).
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

ALL = "*"  # cordoned.log.dirs: every one


class LogDirectories:
    """Nobody's until `hold`.  `live` is replaced whole: path -> what is held, in the order that was given."""

    def __init__(
        self,
        log_dirs: Sequence[str],
        files: Files,
        failure_channel: LogDirFailureChannel,
        *,
        raises: bool = False,
    ) -> None:
        """Takes nothing yet: whoever takes locks must be where an interrupt finds it.

        `raises`: the first one that the disk refuses is told by `hold`, and by nobody else.
        """
        self._raises = raises
        self.paths = list(log_dirs)
        self.files = files
        self.failure_channel = failure_channel
        self.live: dict[str, HeldDirectory] = {}
        self.ids: dict[str, str] = {}
        self.cordoned: frozenset[str] = frozenset()
        self._writing = {path: PartitionLock() for path in self.paths}
        # The cleaner's file has a lock of its own: a cleaner that waited for the other one, with its states' lock held,
        # would wait for a thread whose signal handler asks for that.
        self._cleaning = {path: PartitionLock() for path in self.paths}
        self.checkpointed: set[str] = set()  # directories of which this process has written starts and recovery points
        self._told: set[str] = set()  # what is wrong with files that are read again and again

    def hold(self) -> None:
        """Takes the locks.  LogDirLockedException, KafkaException for duplicates, NoLiveLogDirException,
        IllegalArgumentException for a folder of something else; holds nothing then."""
        try:
            self._refuse_foreign()
            self._create_and_validate()
            self._each("Disk error while locking directory", HeldDirectory.lock)
            self._each("Disk error while loading ID", self._load_id)
            self._each("Error while making the checkpoints of", HeldDirectory.make_checkpoints)
            if not self.live:
                raise self.lost(f"none of the specified log dirs from {self.shown} can be created or validated")
        except BaseException:
            self.unlock()
            raise

    @property
    def shown(self) -> str:
        return ", ".join(self.paths)

    def disown(self) -> None:
        """In a forked child."""
        self.live = {}
        self._writing = {path: PartitionLock() for path in self.paths}
        self._cleaning = {path: PartitionLock() for path in self.paths}

    def _refuse_foreign(self) -> None:
        """Of all, before anything is made in one."""
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
                    self.files.sync_dir(parent_dir(path))  # who made it may have died before this
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
        """A step of the beginning: a directory whose disk refuses it is none of ours."""
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
        """LogDirNotFoundException for a directory that is none of these."""
        if path not in self.paths:
            raise LogDirNotFoundException(f"Log dir {path} is not found in the config.", hint=f"there are {self.shown}")
        return path in self.live

    def must(self, path: str) -> HeldDirectory:
        """NoLiveLogDirException for one that is offline: for who has no other."""
        held = self.live.get(path)
        if held is None:
            raise self.lost()
        return held

    def take_out(self, path: str) -> None:
        """It is offline: its lock is given up, its files are not touched again."""
        held = self.live.get(path)
        self.live = {each: other for each, other in self.live.items() if each != path}
        self.ids.pop(path, None)
        if held is not None:
            self._unlock(held)

    def lost(self, why: str | None = None) -> NoLiveLogDirException:
        """What to raise once none is live; `errno` as of the first that the disk failed."""
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
        with self._writing[held.path], self._cleaning[held.path]:  # whoever writes does so while it is ours
            held.unlock()

    def cordon(self, log_dirs: Sequence[str]) -> None:
        """No new partition goes to these; `["*"]` for all.  LogDirNotFoundException."""
        if ALL in log_dirs:
            self.cordoned = frozenset(self.paths)
            return
        paths = [os.path.abspath(each) for each in log_dirs]
        for path in paths:
            self.is_online(path)
        self.cordoned = frozenset(paths)

    def next_for_a_partition(self, logs: Mapping[str, int]) -> list[str]:
        """Those to try for a new partition: not cordoned, the fewest logs first; the first one if all are cordoned.
        `logs` says how many each has."""
        live = list(self.live)
        if len(live) <= 1:
            return live
        open_ones = [path for path in live if path not in self.cordoned]
        return sorted(open_ones, key=lambda path: logs.get(path, 0)) or live[:1]

    # --- checkpoints ---------------------------------------------------------------------------------

    def checkpoint(self, log_dir: str, registry: LogRegistry, *, raises: bool = False) -> bool:
        """Log starts and recovery points.  The start first: raising it lifts the recovery point over what was never
        flushed.  `raises`: DiskFull, TooManyOpenFilesException for who cannot go on without."""
        written = self.checkpoint_log_starts(log_dir, registry, raises=raises) and self.checkpoint_recovery_points(
            log_dir, registry, raises=raises
        )
        if written:
            self.checkpointed.add(log_dir)
        return written

    def checkpoint_recovery_points(self, log_dir: str, registry: LogRegistry, *, raises: bool = False) -> bool:
        """Whether it was written; False for one that is offline, too."""
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
        """cleaner-offset-checkpoint of each directory, empty where it is missing."""
        for path, held in list(self.live.items()):
            try:
                held.make(held.cleaner_offsets)
            except OSError as error:
                self.failure_channel.give_up(path, f"Error while making {held.cleaner_offsets.path}", error)

    def read_cleaner_offsets(self, log_dir: str) -> dict[TopicPartition, int] | None:
        """The first dirty offset of each partition that was cleaned; None where the directory is offline, or no longer
        ours.  A file that cannot be read counts for nothing, which is told once."""
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
        """Whether it was written."""
        held = self.live.get(log_dir)
        return held is not None and self._write(held, held.cleaner_offsets, lambda: offsets, self._cleaning)

    def write_lines(self, log_dir: str, name: str, lines: Mapping[TopicPartition, int]) -> None:
        """Replaces the checkpoint of that name.  KafkaStorageException, also where the directory is offline."""
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
        if lock.is_mine():  # both would write one temporary file
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
                Lines(LOGGER, held.path).warning("%s is written later: %s", checkpoint.path, error)
                return False
            except KafkaStorageException:
                Lines(LOGGER, held.path).exception("Disk error while writing %s", checkpoint.path)
                return False


def _recovery_points(registry: LogRegistry, log_dir: str) -> dict[TopicPartition, int]:
    lines = _waiting_lines(registry, log_dir, "recovery_point")
    return {**lines, **{partition: log.recovery_point for partition, log in registry.in_dir(log_dir).items()}}


def _log_starts(registry: LogRegistry, log_dir: str) -> dict[TopicPartition, int]:
    """Only of logs that start inside their first segment: the others are found to start at its base."""
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
    """Of the logs that wait: what was read, or written when they were closed."""
    lines = ((partition, getattr(waiting, name)) for partition, waiting in registry.waiting_in(log_dir).items())
    return {partition: line for partition, line in lines if line is not None}


def absolute_paths(
    log_dirs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], files: Files = OS_FILES
) -> list[str]:
    """What a caller gives as log directories; IllegalArgumentException for what is no path, or for none at all."""
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
    """What a caller gives as one log directory; IllegalArgumentException for what is no local path."""
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
