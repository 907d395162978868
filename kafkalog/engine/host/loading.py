"""Loads the logs of several directories: lists each directory, assigns logs to threads, and counts the progress.

`look` reads a directory first.  It deletes the clean-shutdown marker at once, so that a crash during the load counts as
a crash.  Checkpoints that cannot be read count as empty, and directories that are no partition's are logged.  Then
`load` runs one job a log, several in parallel in each directory, and counts.  `starting.Start` does the work on a log.
Mirrors LogManager.loadLogs (4.4.0).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kafkalog.engine.files import Files
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names
from kafkalog.engine.format.checkpoints import emptied_checkpoints
from kafkalog.engine.format.log_lines import lines_of_folder
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.held import HeldDirectory
from kafkalog.engine.host.jobs import Jobs, Outcome
from kafkalog.engine.host.log_dirs import is_foreign_partition
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.errors import KafkaException

LOGGER = "kafkalog.manager"

_NO_PARTITIONS = frozenset({names.REMOTE_LOG_INDEX_CACHE_DIR})
_OF_THE_FILE_SYSTEM = frozenset({"lost+found"})


class Found(NamedTuple):
    """A log directory at start: its checkpoints, and its logs' directories in the order in which Kafka loads them."""

    held: HeldDirectory
    had_clean_shutdown: bool
    recovery_points: dict[TopicPartition, int]
    log_starts: dict[TopicPartition, int]
    folders: list[str]
    strangers: list[str]  # names of directories that are no partition's


def look(held: HeldDirectory) -> Found:
    """Reads what a directory has to load.  OSError."""
    clean = held.marker.exists()
    if clean:
        held.marker.delete()
    folders, strangers = log_folders(held.path, held.files)
    emptied = emptied_checkpoints(held.path, held.files, closed_cleanly=clean) if folders else []
    recovery_points = held.read(held.recovery_points, is_new=not folders, emptied=emptied)
    log_starts = held.read(held.log_starts, is_new=not folders, emptied=emptied)
    strange = sorted(set(strangers) - _OF_THE_FILE_SYSTEM)
    if strange:
        Lines(LOGGER, held.path).warning("skipped %s, which are not directories of partitions", ", ".join(strange))
    return Found(held, clean, recovery_points, log_starts, folders, strange)


def log_folders(log_dir: str, files: Files) -> tuple[list[str], list[str]]:
    """Returns (paths, names): the directories that a start loads, and the names of those that are no partition's.

    The first include `-future`, `-delete` and `-stray` directories.  The second are recognized by name or content.
    Raises OSError.
    """
    folders: list[str] = []
    strangers: list[str] = []
    for name in files.names_in(log_dir):
        path = os.path.join(log_dir, name)
        if name in _NO_PARTITIONS or not files.is_dir(path):
            continue
        try:
            partition = names.parse_topic_partition_name(path)
        except KafkaException:
            strangers.append(name)
            continue
        if is_foreign_partition(path, files):
            strangers.append(name)
        elif partition.topic != names.CLUSTER_METADATA_TOPIC:
            folders.append(path)
    return folders, strangers


class LoadProgress(NamedTuple):
    """How far a start is.  `seconds_left` is an estimate from the logs loaded so far; None before the first one."""

    logs: int
    logs_remaining: int
    segments_remaining: int  # in logs that are being recovered now
    seconds: float
    seconds_left: float | None

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", about {self.seconds_left:.0f} s to go"
        recovering = f", {self.segments_remaining} segments to recover" if self.segments_remaining else ""
        return f"{self.logs - self.logs_remaining} of {self.logs} logs loaded{recovering}{left}"


class Remaining:
    """remainingLogsToRecover (by directory) and remainingSegmentsToRecover (by directory and thread).  Thread-safe."""

    def __init__(
        self, logs: dict[str, int], threads: int, tell: Callable[[LoadProgress], object] | None = None
    ) -> None:
        self._lock = threading.Lock()
        self.logs = dict(logs)
        self.threads = threads  # the number in each directory
        self.segments: dict[tuple[str, int], int] = {}
        self._total = sum(logs.values())
        self._began = time.monotonic()
        self._tell = tell

    def segments_left(self, directory: str, thread: int, remaining: int) -> None:
        with self._lock:
            self.segments[directory, thread] = remaining
        self._report()

    def log_done(self, directory: str) -> int:
        """Counts one log as done.  Returns how many are left in that directory."""
        with self._lock:
            self.logs[directory] -= 1
            left = self.logs[directory]
        self._report()
        return left

    def progress(self) -> LoadProgress:
        with self._lock:
            left, segments = sum(self.logs.values()), sum(self.segments.values())
        seconds = time.monotonic() - self._began
        done = self._total - left
        return LoadProgress(self._total, left, segments, seconds, seconds / done * left if done else None)

    def _report(self) -> None:
        if self._tell is not None:
            self._tell(self.progress())


LoadOne = Callable[[str, Found, Callable[[int], object]], object]  # (directory of the log, Found, segments_left)


class LoadingStopped(BaseException):
    """Ends a recovery between two segments, and leaves it as a crash there would.

    It is a BaseException, because the code that loads a log would treat an Exception as damage.
    """


def load(
    found: Sequence[Found], remaining: Remaining, load_one: LoadOne, settings: ManagerSettings, jobs: Jobs
) -> dict[str, list[Outcome]]:
    """Runs `load_one` for each log.  Returns the outcomes by directory, in the order of its logs."""

    def job(folder: str, of: Found) -> Callable[[int], object]:
        directory = of.held.path

        def run(thread: int) -> None:
            def segments_left(left: int) -> None:
                if jobs.stopped:
                    raise LoadingStopped
                remaining.segments_left(directory, thread, left)

            try:
                load_one(folder, of, segments_left)
            finally:
                left = remaining.log_done(directory)
                done = len(of.folders) - left
                lines_of_folder(LOGGER, folder).debug("loaded (%d/%d)", done, len(of.folders))

        return run

    by_directory = {of.held.path: [job(folder, of) for folder in of.folders] for of in found}
    threads = {
        of.held.path: settings.recovery_threads if of.had_clean_shutdown else settings.syncing_threads for of in found
    }
    return jobs.run("log-recovery", by_directory, threads)
