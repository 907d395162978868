"""A log directory whose partitions executors change while the driver holds it.

A directory has one holder, and its checkpoints have one writer.  The driver therefore holds it for the whole job (its
lock, its clean-shutdown marker, a lease of each partition) and lends partitions.  An executor gets a `Loan`.

The executor takes its slot in the directory's lock (`OsGuest`).  This keeps other processes out while it works, even if
the driver was killed, and keeps out a second attempt at the same task.  Such an attempt, speculative or after a lost
executor, never answers for a partition that another attempt has.  It waits for the end of that attempt and fails; Spark
starts a new attempt if there was no success.

The executor works on a temporary directory with a link to the partition's directory, copies of the small files, and the
clean-shutdown marker if the partition was closed cleanly.  The toolbox's functions run there unchanged.  The checkpoint
lines that they write come back with the result, and the driver writes them to the real checkpoints with each
partition's lease.

After a crash of an executor, its partition is as after any crash of the engine.  After a crash of the driver, the
marker is missing and the checkpoints are the old ones, so the next open recovers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from pyspark import TaskContext

from kafkalog._face.topic_settings import TopicSettings
from kafkalog.config import LogConfig
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, ManualScheduler
from kafkalog.engine.files.lock import OsGuest, PlaceTaken
from kafkalog.engine.format import names
from kafkalog.engine.format.checkpoints import CleanShutdownFile, OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host import directory
from kafkalog.engine.host.log_dirs import refuse_foreign
from kafkalog.engine.log.checkpoint_lines import CheckpointLines
from kafkalog.errors import KafkalogError, LogDirLockedException
from kafkalog.spark.jobs.run import Chosen, Progress, Unanswered, os_errors_named, portable, run
from kafkalog.toolbox.recovery import hold_directory

R = TypeVar("R")
TARGET_EXPECTED = "expected a directory to write to"
WAIT_S = 30.0  # for the last guest to leave
SETTLE_S = 3.0  # Spark kills an attempt within this time after another one's success
REST_S = 0.1
LINES = (
    names.RECOVERY_POINT_CHECKPOINT_FILE,
    names.LOG_START_OFFSET_CHECKPOINT_FILE,
    names.CLEANER_OFFSET_CHECKPOINT_FILE,
)
_COPIED = names.LOG_DIR_FILES - {names.LOCK_FILE, names.CLEAN_SHUTDOWN_FILE, *names.SERVER_FILES}


@dataclass(frozen=True)
class Loan:
    """A partition that an executor may change; `clean`: its log was closed cleanly."""

    log_dir: str
    partition: TopicPartition
    slot: int
    token: bytes
    clean: bool


@dataclass
class TaskDirectory:
    """An executor's temporary directory while it has the partition; afterwards the result of its work."""

    path: str
    log_dir: str
    lines: dict[str, int | None] = field(default_factory=dict)
    clean: bool = False

    def real(self, text: str) -> str:
        """Replaces the temporary path with that of the log directory."""
        return text.replace(self.path, self.log_dir)

    def real_error(self, error: KafkalogError) -> KafkalogError:
        """Replaces the paths in an error with the real ones."""
        error.message = self.real(error.message)
        error.path = None if error.path is None else self.real(error.path)
        error.hint = None if error.hint is None else self.real(error.hint)
        return error

    @property
    def returned(self) -> Returned:
        return Returned(self.lines, self.clean)


@dataclass(frozen=True)
class Returned:
    """A partition that comes back: its lines in the checkpoints, and whether its log was closed cleanly."""

    lines: dict[str, int | None]
    clean: bool


class SharedDirectory:
    """Holds a directory on the driver; a context manager.  Raises LogDirLockedException if another process holds it.

    Call `lend` for each partition, then `share`; after that, executors may work.  An error before that leaves the
    directory as it was.
    """

    def __init__(self, log_dir: str, *, create: bool = False) -> None:
        self.path = log_dir
        self._create = create
        self._leases: dict[TopicPartition, directory.Lease] = {}
        self._token = uuid.uuid4().hex.encode()
        self._is_shared = False

    def __enter__(self) -> SharedDirectory:
        with os_errors_named("expected a Kafka log directory"):
            if self._create:
                refuse_foreign(self.path, OS_FILES)
                OS_FILES.mkdirs(self.path)
            self._hold = hold_directory(self.path, OS_FILES)
        return self

    def lend(self, partition: TopicPartition) -> Loan:
        """Lends a free partition.  Raises IllegalArgumentException if this process has it open."""
        scheduler = ManualScheduler(SYSTEM_CLOCK)
        lease = directory.enter(self.path, partition, OS_FILES, SYSTEM_CLOCK, scheduler, create=False)
        self._leases[partition] = lease
        return Loan(self.path, partition, len(self._leases) - 1, self._token, lease.clean)

    def share(self) -> None:
        """Admits the executors to whom partitions were lent."""
        with os_errors_named("expected a Kafka log directory"):
            self._hold.directory.share(self._token)
        self._is_shared = True

    def take(self, partition: TopicPartition, returned: Returned | None) -> None:
        """Takes a partition back; None means that its state is unknown."""
        lease = self._leases[partition]
        if returned is None:
            lease.leave(clean=False)
            return
        points, starts, cleaned = (returned.lines.get(name) for name in LINES)
        if points is not None:
            lease.set_line(names.LOG_START_OFFSET_CHECKPOINT_FILE, starts)
            lease.set_line(names.RECOVERY_POINT_CHECKPOINT_FILE, points)
        with contextlib.suppress(KafkalogError):  # it cannot be read: the next pass starts from the beginning
            lease.set_line(names.CLEANER_OFFSET_CHECKPOINT_FILE, cleaned)
        lease.leave(clean=returned.clean)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        had_marker, shared = self._hold.clean, self._is_shared
        try:
            alone = not shared or _until(self._hold.directory.take_back)
            for lease in self._leases.values():
                lease.leave(clean=lease.clean and not shared)  # does nothing for partitions that are back
            self._hold.leave(clean=alone and (kind is None or not shared))
        finally:
            self._hold.give_up()
        if had_marker and shared and isinstance(error, KafkalogError):
            advise(error, f"{self.path} has no clean-shutdown marker now: the next start checks its logs")


def advise(error: KafkalogError, text: str) -> None:
    """Adds to an error what to do, or what is left."""
    error.hint = f"{error.hint}; {text}" if error.hint else text


def check_session(spark: Any) -> None:
    """Raises UnsupportedOperationException for a session that runs no jobs, before anything is locked."""
    run(spark, str, [])


def check_settings(config: Mapping[str, str], topics: Iterable[tuple[str, str]]) -> None:
    """Checks settings before a directory is locked, so that settings that are not valid change nothing.

    `topics`: (log directory, topic).  Raises ConfigException for settings that are not valid or contradict the stored
    ones, and CorruptCheckpointException if the stored ones cannot be read.
    """
    LogConfig.validate(config)
    found: dict[str, TopicSettings] = {}
    for log_dir, topic in topics:
        if log_dir not in found:
            found[log_dir] = TopicSettings(log_dir, config)
        found[log_dir].of(topic)


def run_lent(
    spark: Any,
    work: Callable[[tuple[Chosen, Loan]], tuple[R, Returned | None]],
    tasks: Sequence[Chosen],
    *,
    failed: Callable[[tuple[Chosen, Loan], KafkalogError], tuple[R, Returned | None]],
    progress: Progress | None,
) -> list[R]:
    """Does `run` for partitions that executors change; holds their directories until all partitions are back."""
    with ExitStack() as stack:
        roots = dict.fromkeys(task.log_dir for task in tasks)
        held = {root: stack.enter_context(SharedDirectory(root)) for root in roots}
        lent = [(task, held[task.log_dir].lend(task.partition)) for task in tasks]
        for each in held.values():
            each.share()
        done = run(spark, work, lent, failed=failed, size=lambda it: it[0].bytes, progress=progress)
        for task, (_, returned) in zip(tasks, done, strict=True):
            held[task.log_dir].take(task.partition, returned)
    return [result for result, _ in done]


class SharedLock:
    """Holds the lock of a directory that is not a log directory, on the driver; a context manager.

    Raises LogDirLockedException if another process holds it.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, names.LOCK_FILE)
        self.token = uuid.uuid4().hex.encode()

    def __enter__(self) -> SharedLock:
        with os_errors_named(TARGET_EXPECTED):
            self._lock = OS_FILES.lock(self._path)
            try:
                self._lock.share(self.token)
            except BaseException:
                self._lock.release()
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            _until(self._lock.take_back)
        finally:
            self._lock.release()


def _until(attempt: Callable[[], bool]) -> bool:
    """Whether `attempt` succeeded within WAIT_S."""
    end = time.monotonic() + WAIT_S
    while not attempt():
        if time.monotonic() > end:
            return False
        time.sleep(REST_S)
    return True


@contextlib.contextmanager
def guest(log_dir: str, token: bytes, slot: int) -> Iterator[None]:
    """Takes a slot in a shared lock, on an executor.

    Raises Unanswered if another attempt has the slot, once that attempt has ended: Spark kills a waiting attempt after
    the other one's success.  Raises it also if the driver is not holding the lock any more.
    """
    path = os.path.join(log_dir, names.LOCK_FILE)
    try:
        place = OsGuest(path, token, slot)
    except PlaceTaken as error:
        _wait_for_place(path, token, slot)
        raise Unanswered(f"another attempt at this task was running: {error}") from None
    except LogDirLockedException as error:
        raise Unanswered(str(error)) from None
    with place:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            time.sleep(SETTLE_S)
        yield


def _wait_for_place(path: str, token: bytes, slot: int) -> None:
    while True:
        try:
            OsGuest(path, token, slot).release()
            return
        except PlaceTaken:
            time.sleep(REST_S)
        except LogDirLockedException:  # the job is over
            return


@contextlib.contextmanager
def borrowed(loan: Loan) -> Iterator[TaskDirectory]:
    """Yields a temporary directory with the partition, on an executor, in which the toolbox may change everything.

    Errors name the directory that really has the partition.
    """
    with guest(loan.log_dir, loan.token, loan.slot):
        path = os.path.realpath(tempfile.mkdtemp(prefix="kafkalog-"))
        own = TaskDirectory(path, loan.log_dir)
        try:
            _furnish(own, loan)
            yield own
            seen = CheckpointLines(path)
            own.lines = {name: seen.line(name, loan.partition) for name in LINES}
            own.clean = CleanShutdownFile(path, OS_FILES).exists()
        except (KafkalogError, OSError) as error:
            raise own.real_error(portable(error)) from None
        finally:
            shutil.rmtree(path, ignore_errors=True)  # deletes the link, not its target


def _furnish(own: TaskDirectory, loan: Loan) -> None:
    folder = os.path.join(loan.log_dir, str(loan.partition))
    OS_FILES.mkdirs(folder)
    os.symlink(folder, os.path.join(own.path, str(loan.partition)))
    for name in _COPIED:
        with contextlib.suppress(FileNotFoundError):
            OS_FILES.write_atomic(os.path.join(own.path, name), OS_FILES.read_bytes(os.path.join(loan.log_dir, name)))
    for name in names.OFFSET_CHECKPOINT_FILES:
        checkpoint = OffsetCheckpointFile(os.path.join(own.path, name), OS_FILES, create=False)
        if OS_FILES.exists(checkpoint.path) and checkpoint.is_blank():
            checkpoint.write({})  # beside the marker it would look lost; if it is, the driver has warned of it
    if loan.clean:
        CleanShutdownFile(own.path, OS_FILES).write()
