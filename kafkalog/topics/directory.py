"""A log directory as this process holds it: one lock, one scheduler, one set of checkpoints for all its open logs.

Several logs of one directory share it through a table by real path.  Taking it locks `.lock`, notes whether the last
user closed cleanly and removes `.kafka_cleanshutdown` before anything is written.  Only when the last log of this
process was closed without an error, and every other partition is known to be clean too, is the marker written again:
it speaks for the whole directory.  Thread-safe.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import NamedTuple

from kafkalog.errors import (
    IllegalArgumentException,
    KafkalogError,
    KafkaStorageException,
    UnknownTopicOrPartitionException,
)
from kafkalog.files import Clock, Files, LogDirFailureChannel, Scheduler, ThreadScheduler
from kafkalog.format import names
from kafkalog.format.checkpoints import CleanShutdownFile, OffsetCheckpointFile
from kafkalog.format.names import TopicPartition

EXPECTED_DIR = "expected the folder that holds topic-0, topic-1 ..."
_TABLE: dict[tuple[int, str], LogDirectory] = {}
_TABLE_LOCK = threading.Lock()


class OpenAt(NamedTuple):
    """How to open one partition: from where it is trusted, where it starts, whether its last close was clean."""

    recovery_point: int
    log_start_offset: int
    clean: bool


class LogDirectory:
    """Made by `acquire` and given back by `release`; never directly."""

    def __init__(self, path: str, files: Files, clock: Clock, scheduler: Scheduler | None) -> None:
        self.path = path
        self.files = files
        self.failure_channel = LogDirFailureChannel()
        self._owns_scheduler = scheduler is None
        self.scheduler: Scheduler = ThreadScheduler(clock) if scheduler is None else scheduler
        self._guard = threading.RLock()
        self._open: set[TopicPartition] = set()  # guarded by _guard
        self._closed_clean: set[TopicPartition] = set()  # guarded by _guard
        self._failed = False  # guarded by _guard; a log did not close cleanly
        self._lock = files.lock(os.path.join(path, names.LOCK_FILE))
        try:
            self._marker = CleanShutdownFile(path, files)
            self._had_clean = self._marker.exists() or not self._partitions()
            self._marker.delete()
            self._recovery_points = self._checkpoint(names.RECOVERY_POINT_CHECKPOINT_FILE)
            self._log_starts = self._checkpoint(names.LOG_START_OFFSET_CHECKPOINT_FILE)
            if self._owns_scheduler:
                self.scheduler.startup()
        except BaseException:
            self._lock.release()
            raise

    def _checkpoint(self, name: str) -> OffsetCheckpointFile:
        return OffsetCheckpointFile(os.path.join(self.path, name), self.files)

    def _partitions(self) -> set[TopicPartition]:
        found = set()
        for name in self.files.list_dir(self.path):
            topic, _, number = name.rpartition("-")
            if topic and number.isascii() and number.isdigit() and self.files.is_dir(os.path.join(self.path, name)):
                found.add(TopicPartition(topic, int(number)))
        return found

    # --- opening and closing logs ------------------------------------------------------------------

    def enter(self, partition: TopicPartition) -> OpenAt:
        """Note that a log opens; IllegalArgumentException when this process has it open already."""
        with self._guard:
            if partition in self._open:
                raise IllegalArgumentException(
                    f"{partition} of {self.path} is open already in this process", hint="share that Log object"
                )
            recovery_points = _read_or_empty(self._recovery_points)
            log_starts = _read_or_empty(self._log_starts)
            clean = self._had_clean or partition in self._closed_clean
            self._open.add(partition)
            self._closed_clean.discard(partition)
            return OpenAt(recovery_points.get(partition, 0), log_starts.get(partition, 0), clean)

    def leave(self, partition: TopicPartition, *, clean: bool) -> None:
        """Note that a log closed; the last one gives the directory back."""
        with _TABLE_LOCK, self._guard:
            self._open.discard(partition)
            if clean:
                self._closed_clean.add(partition)
            else:
                self._failed = True
            if not self._open:
                _TABLE.pop((id(self.files), self.path), None)
                self._give_back()

    def _give_back(self) -> None:
        try:
            if self._owns_scheduler:
                self.scheduler.shutdown()
            all_clean = self._had_clean or self._partitions() <= self._closed_clean
            if all_clean and not self._failed and not self.failure_channel.has_offline_log_dir(self.path):
                self._marker.write()
        finally:
            self._lock.release()

    # --- checkpoints -------------------------------------------------------------------------------

    def checkpoint_recovery_point(self, partition: TopicPartition, offset: int) -> None:
        """Write one partition's recovery point, other lines kept."""
        with self._guard:
            lines = _read_or_empty(self._recovery_points)
            lines[partition] = offset
            self._write(self._recovery_points, lines)

    def checkpoint_log_start(self, partition: TopicPartition, offset: int | None) -> None:
        """Write one partition's log start offset, other lines kept; None removes its line."""
        with self._guard:
            lines = _read_or_empty(self._log_starts)
            if lines.get(partition) == offset and (offset is not None or partition not in lines):
                return
            if offset is None:
                del lines[partition]
            else:
                lines[partition] = offset
            self._write(self._log_starts, lines)

    def _write(self, checkpoint: OffsetCheckpointFile, lines: dict[TopicPartition, int]) -> None:
        try:
            checkpoint.write(lines)
        except KafkalogError:
            raise
        except OSError as error:
            message = f"Error while writing to checkpoint file {checkpoint.path}"
            self.failure_channel.maybe_add_offline_log_dir(self.path, message, error)
            raise KafkaStorageException(message) from error


def _read_or_empty(checkpoint: OffsetCheckpointFile) -> dict[TopicPartition, int]:
    try:
        return checkpoint.read()
    except (KafkalogError, OSError):
        return {}  # as Kafka at start: a checkpoint that does not parse counts for nothing


def acquire(path: str, files: Files, clock: Clock, scheduler: Scheduler | None, *, create: bool) -> LogDirectory:
    """This process's hold on a log directory, made on first use.  `leave` of its last log gives it back.

    LogDirLockedException when another process holds it; UnknownTopicOrPartitionException when it does not exist and
    `create` is off; IllegalArgumentException when it is a partition's own folder.
    """
    if not files.is_dir(path):
        refuse_file(path, files)
        if not create:
            raise UnknownTopicOrPartitionException("no such log directory", path=path, hint=EXPECTED_DIR)
        files.mkdirs(path)
        files.sync_dir(os.path.dirname(os.path.abspath(path)))
    refuse_partition_folder(files.list_dir(path), path)
    real = os.path.realpath(path)
    with _TABLE_LOCK:
        held = _TABLE.get((id(files), real))
        if held is None:
            held = _TABLE[(id(files), real)] = LogDirectory(real, files, clock, scheduler)
        return held


def refuse_file(path: str, files: Files) -> None:
    """IllegalArgumentException when there is something at `path` that is no folder."""
    if files.exists(path) and not files.is_dir(path):
        raise IllegalArgumentException("found a file, expected a log directory", path=path, hint=EXPECTED_DIR)


def refuse_partition_folder(entries: Iterable[str], path: str) -> None:
    """IllegalArgumentException when `path` holds segments itself."""
    for name in entries:
        if name.endswith(names.LOG_FILE_SUFFIX) and name[: -len(names.LOG_FILE_SUFFIX)].isdigit():
            raise IllegalArgumentException(
                f"found a partition's own files ({name}), expected the folder above it",
                path=path,
                hint=f"use {os.path.dirname(os.path.abspath(path))}",
            )
