"""LogManager: the partitions of several log directories; finds, makes, moves and deletes logs, and keeps the house.

Mirrors org.apache.kafka.storage.internals.log.LogManager (4.4.0): directories are validated and locked when it is made,
`startup` loads every log (`loading`) and begins the background tasks, `shutdown` closes all and leaves the marker where
everything went well.  Checkpoints are written a directory, not a partition.  What a log does is UnifiedLog's; what is
done to a directory's own files is HeldDirectory's.

A LogCleaner compacts in threads of its own (`cleaning`), from the start's end to the first step of the shutdown; what
cuts, moves or removes a log has it leave that log first.

By itself it does what a broker has other parts for: the handler of failed directories, the high watermarks' file
(as a partition's only replica, so that they follow the log end), unknown folders are told and passed over, a move that
a crash cut short between its two renames is finished.  `bare` leaves all that out: Kafka's class and nothing else.

Locks: `creation` (Kafka's logCreationOrDeletionLock, `changes`) is held by what makes, moves and removes logs, and is
taken before a partition's lock.  Look-ups take none.  What is interrupted there is finished by whatever comes next.
From `_LEAVING` on nothing is written: the directories may be another's.  (Over 700 lines: it is Kafka's one door, and
what could stand beside it does.)
"""

from __future__ import annotations

import errno
import functools
import operator
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import NamedTuple, TypeVar

from kafkalog._native.blocks import Closing
from kafkalog._native.log_end import CLOSING, PartitionLock
from kafkalog.cleaner.log_cleaner import LogCleaner
from kafkalog.cleaner.uncleanable import Uncleanable
from kafkalog.config import CleanerConfig, LogConfig
from kafkalog.errors import (
    CorruptCheckpointException,
    IllegalArgumentException,
    IllegalStateException,
    InconsistentTopicIdException,
    InvalidTopicException,
    KafkaException,
    KafkalogError,
    KafkaStorageException,
)
from kafkalog.files import OS_FILES, SYSTEM_CLOCK, Clock, Files, LogDirFailureChannel, Scheduler, ThreadScheduler
from kafkalog.files.lines import Lines
from kafkalog.files.processes import belongs_here, opened_elsewhere
from kafkalog.format import names, values
from kafkalog.format.log_lines import lines_of_folder
from kafkalog.format.names import TopicPartition
from kafkalog.format.partition_metadata import checked_topic_id
from kafkalog.log.context import ALREADY_OFFLINE, PartitionContext
from kafkalog.log.unified_log import UnifiedLog
from kafkalog.manager import directory as directories_of_logs
from kafkalog.manager import move_notes
from kafkalog.manager.changes import BackgroundTasks, Changes, inside
from kafkalog.manager.cleaning import Cleaning
from kafkalog.manager.doomed import DoomedLogs
from kafkalog.manager.duplicates import Duplicates, duplicate
from kafkalog.manager.jobs import Jobs, Outcome
from kafkalog.manager.loading import Found, LoadProgress, Remaining, load, look
from kafkalog.manager.log_directories import LogDirectories, absolute_path, absolute_paths
from kafkalog.manager.manager_metrics import gauges_of_directories, gauges_of_start
from kafkalog.manager.moves import Move, MoveProgress
from kafkalog.manager.registry import LogRegistry
from kafkalog.manager.settings import ManagerSettings
from kafkalog.manager.topic_configs import StoredTopicConfigs, TopicConfigs, checked_overrides
from kafkalog.metrics.registry import MetricsRegistry

LOGGER = "kafkalog.manager"
T = TypeVar("T")

# A manager's life; LOST: no directory is left.
_NEW, _STARTING, _RUNNING, _LOST, _FORKED = "new", "starting", "running", "lost", "forked"
_FIRST_OF_ALL_MS = -86_400_000  # before what the scheduler is behind with
_CLOSING, _LEAVING, _CLOSED = "closing", "closing and letting go", "closed"


_WHAT_TO_DO = {_NEW: "startup() or `with` starts it", _STARTING: "wait for startup()"}


class _Removal(NamedTuple):
    """A log that is to leave the maps, and its folder's name from then on; which no more says what it was."""

    log: UnifiedLog
    name: str
    is_stray: bool
    is_future: bool

    @classmethod
    def of(cls, log: UnifiedLog, *, is_stray: bool) -> _Removal:
        name_of = names.log_stray_dir_name if is_stray else names.log_delete_dir_name
        return cls(log, name_of(log.topic_partition), is_stray, log.is_future)


class LogManager(Closing):
    """The logs of `log_dirs`; a context manager that starts and shuts down.  Thread-safe; of one process.  One that is
    dropped without `shutdown` shuts down by itself, with a ResourceWarning."""

    def __init__(
        self,
        log_dirs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        settings: ManagerSettings | None = None,
        *,
        topic_configs: TopicConfigs | None = None,
        scheduler: Scheduler | None = None,
        clock: Clock = SYSTEM_CLOCK,
        files: Files = OS_FILES,
        metrics: MetricsRegistry | None = None,
        bare: bool = False,
    ) -> None:
        """Makes what is missing of `log_dirs`, takes their locks and reads their ids; loads nothing yet.

        `topic_configs`: where topics' overrides are; by default a file beside the data (`set_topic_config` writes it).
        `scheduler`: by default threads of its own.  `metrics`: where this and all its logs show what they count.

        IllegalArgumentException for settings out of Kafka's ranges; LogDirLockedException when a broker or another
        process holds a directory; KafkaException when two are the same;
        a directory that the disk refuses is offline from the start; NoLiveLogDirException when all are.
        """
        if metrics is not None and not isinstance(metrics, MetricsRegistry):
            raise IllegalArgumentException(
                f"metrics: found {values.shown(metrics)}, expected a kafkalog.metrics.MetricsRegistry"
            )
        self.settings = ManagerSettings.checked(ManagerSettings() if settings is None else settings)
        self.clock = clock
        self.files = files
        self.failure_channel = LogDirFailureChannel()
        self.changes = Changes()
        self.registry = LogRegistry(future_counts=bare)
        self.metrics = MetricsRegistry(clock) if metrics is None else metrics
        self._bare = bare
        self._pid = os.getpid()
        self._state = _NEW
        self._jobs = Jobs()
        self._starting = threading.Lock()  # held by the thread that starts
        self._cleaning = Cleaning(self.registry, check_crcs=not bare)
        self._doomed = DoomedLogs(clock)
        self._duplicates = Duplicates(self.registry, self._doomed, files)
        self._preferred: dict[TopicPartition, str] = {}
        self._moves: dict[TopicPartition, PartitionLock] = {}  # of one partition they come one after the other
        self._initializing: dict[TopicPartition, bool] = {}  # True: its configuration changed meanwhile (KAFKA-8813)
        self._default_config = self.settings.default_config
        self._configs: dict[str, LogConfig] = {}  # of topics; made when asked for
        self._had_clean: dict[str, bool] = {}
        self._all_loaded: dict[str, bool] = {}
        self._remaining: Remaining | None = None
        self._owns_scheduler = scheduler is None
        self.scheduler: Scheduler = ThreadScheduler(clock) if scheduler is None else scheduler
        self._tasks = BackgroundTasks(self.scheduler, self._is_running, outlive=bare)
        self.directories = LogDirectories(absolute_paths(log_dirs), files, self.failure_channel, keep_failed=bare)
        self.metrics.show(self.directories, gauges_of_directories)
        belongs_here(self)
        try:
            self._cleaning.make(self.settings.cleaner, self.directories, clock, self.metrics)
            self.directories.cordon(self.settings.cordoned_log_dirs)
            self.topic_configs = topic_configs or StoredTopicConfigs(
                self.directories.live, files, self.failure_channel.maybe_add_offline_log_dir
            )
        except BaseException:
            self.abandon()
            raise

    def disown(self) -> None:
        """In a forked child: the locks let go by themselves, the logs as well."""
        self._state = _FORKED
        self.changes.disown()
        self.registry.disown()
        self.directories.disown()
        self._moves = {}
        self._jobs = Jobs()
        self._doomed.disown()

    def __enter__(self) -> LogManager:
        if self._state is _NEW:
            self.startup()
        return self

    def close(self) -> None:
        """`shutdown`, as the end of a `with` block calls it."""
        self.shutdown()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # modules may be empty by then
        state = getattr(self, "_state", _CLOSED)
        if state in (_CLOSED, _FORKED) or not hasattr(self, "directories") or is_finalizing():
            return
        try:
            warnings.warn(
                f"{self!r} was dropped without being shut down; use it as `with LogManager(...) as manager:`, or call "
                "its shutdown()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
        finally:
            if directories_of_logs.may_finish_here():
                self._close_dropped()
            else:
                directories_of_logs.finish_later(self._close_dropped)

    def _close_dropped(self) -> None:
        try:
            self.shutdown()
        except Exception:
            Lines(LOGGER).exception(
                "%r, which was dropped, did not close in order: it is recovered at the next start", self
            )

    @property
    def creation(self) -> AbstractContextManager[object]:
        """The lock of what makes, moves and removes logs."""
        return self.changes.lock

    def __repr__(self) -> str:
        return f"<LogManager of {self.directories.shown}, {self._state}>"

    def _is_running(self) -> bool:
        return self._state is _RUNNING

    def _check(self) -> None:
        """Raises where this manager does nothing (any more)."""
        if self._state is _RUNNING:
            return
        what = f"the manager of {self.directories.shown}"
        if self._state is _FORKED:
            raise opened_elsewhere(what, self._pid)
        self._check_not_lost()
        if not self._bare or self._state is _NEW:
            raise IllegalStateException(
                f"{what} is {'not started' if self._state is _NEW else self._state}",
                hint=_WHAT_TO_DO.get(self._state, "make another one"),
            )

    def _check_not_lost(self) -> None:
        if self._state is _LOST:
            raise self.directories.lost()

    # --- directories ---------------------------------------------------------------------------------

    @property
    def live_log_dirs(self) -> list[str]:
        """Those that serve, in the order in which they were given."""
        return list(self.directories.live)

    @property
    def offline_log_dirs(self) -> list[str]:
        return self.directories.offline

    @property
    def directory_ids(self) -> dict[str, str]:
        """The ids of the live directories that have one: a Uuid of 22 characters."""
        return dict(self.directories.ids)

    def is_log_dir_online(self, log_dir: str | os.PathLike[str]) -> bool:
        """LogDirNotFoundException for a directory that this manager was not given."""
        return self.directories.is_online(absolute_path(log_dir))

    def next_log_dirs(self) -> list[str]:
        """Where a new partition goes: the live directories that are not cordoned, those with the fewest logs first; the
        first live one where all are cordoned."""
        self._check_not_lost()
        return self.directories.next_for_a_partition(self.registry.all_logs())

    def broker_epoch_at_shutdown(self) -> int | None:
        """The epoch in the clean-shutdown markers, before `startup` removes them; None unless all directories are
        live and agree."""
        if self.offline_log_dirs:
            return None
        epochs = {held.marker.read() for held in self.directories.live.values()}
        return epochs.pop() if len(epochs) == 1 else None

    # --- start ---------------------------------------------------------------------------------------

    def startup(
        self,
        is_stray: Callable[[UnifiedLog], bool] | None = None,
        progress: Callable[[LoadProgress], object] | None = None,
    ) -> None:
        """Loads all logs, recovers where the last shutdown was not clean, and begins the background tasks.

        `is_stray` says of a loaded log whether it belongs to nobody: its folder is renamed `-stray`.  `progress` is
        called by the loading threads.  What fails other than by the disk fails the start, and everything is let go.
        """
        with self.changes.lock:
            if self._state is not _NEW:
                self._check()
                raise IllegalStateException(f"{self!r} was started already")
            self._state = _STARTING
        with self._starting:
            self._start(is_stray or (lambda log: False), progress)

    def _start(self, is_stray: Callable[[UnifiedLog], bool], progress: Callable[[LoadProgress], object] | None) -> None:
        try:
            if self._owns_scheduler:
                self.scheduler.startup()
            if not self._bare:
                listen_weakly(self)
            self._load_logs(is_stray, progress)
            with self.changes.lock:
                self._check_not_stopped()
                self._state = _RUNNING
            if not self._bare:
                self._settle_failures()
            self._schedule()
            self._start_cleaner()
        except BaseException:
            was_lost = self._state is _LOST
            self.abandon()
            if was_lost:
                self._state = _LOST
            raise

    def _start_cleaner(self) -> None:
        if self.cleaner is not None:
            self.directories.make_cleaner_offsets()
            self.cleaner.startup()

    def _check_not_stopped(self) -> None:
        if self._jobs.stopped:
            raise IllegalStateException(f"{self!r} was shut down while it started")

    def _load_logs(
        self, is_stray: Callable[[UnifiedLog], bool], progress: Callable[[LoadProgress], object] | None
    ) -> None:
        found: list[Found] = []
        refused: KafkaException | None = None
        for path, held in self.directories.live.items():
            try:
                of = look(held, tolerant=not self._bare)
            except KafkaException as error:
                refused = error
                break  # the directories before it are being loaded by now
            except OSError as error:
                if not isinstance(error, KafkaStorageException):
                    self.failure_channel.maybe_add_offline_log_dir(path, f"Error while loading log dir {path}", error)
                continue
            self._had_clean[path] = of.had_clean_shutdown
            self._all_loaded[path] = not of.folders
            state = "clean shutdown" if of.had_clean_shutdown else "recovery: no clean shutdown file was found"
            Lines(LOGGER, path).info("loading %d logs (%s)", len(of.folders), state)
            found.append(of)
        self._remaining = remaining = Remaining(
            {of.held.path: len(of.folders) for of in found}, self.settings.syncing_threads, progress
        )
        self.metrics.show(remaining, gauges_of_start)
        load_one = functools.partial(self._load_log, is_stray)
        try:
            outcomes = load(found, remaining, load_one, self.settings, self._jobs)
        finally:
            self.metrics.hide(remaining)
            self._remaining = None
        self._check_not_stopped()
        if refused is not None:
            raise refused
        for of in found:
            self._judge_load(of, outcomes[of.held.path])
        if not self._bare:
            self._duplicates.finish()
            failed = self.failure_channel
            loaded = [path for path in self.directories.live if self._all_loaded.get(path)]
            loaded = [path for path in loaded if not failed.has_offline_log_dir(path)]
            move_notes.clear(loaded, self.files, failed)
            for of in found:
                self._forget_lines_of_nobody(of)

    def _forget_lines_of_nobody(self, of: Found) -> None:
        """A line that a crash left behind its partition would speak for the next one of that name."""
        path = of.held.path
        if self._all_loaded[path] and not self.failure_channel.has_offline_log_dir(path):
            known = self.registry.in_dir(path)
            if any(partition not in known for partition in (*of.recovery_points, *of.log_starts)):
                self.directories.checkpoint(path, self.registry)
            self._cleaning.loaded(path)

    def _judge_load(self, of: Found, outcomes: Sequence[Outcome]) -> None:
        path = of.held.path
        for folder, outcome in zip(of.folders, outcomes, strict=True):
            error = outcome.error
            if isinstance(error, KafkaStorageException) and self._is_of_the_disk(error):
                lines_of_folder(LOGGER, folder).error("the directory is offline, for loading this failed: %s", error)
            elif isinstance(error, OSError) and not isinstance(error, KafkalogError):
                self.failure_channel.maybe_add_offline_log_dir(path, f"Error while loading log dir {path}", error)
            elif error is not None:
                raise error
        self._all_loaded[path] = all(outcome.done for outcome in outcomes)

    def _is_of_the_disk(self, error: KafkaStorageException) -> bool:
        """Whether it was caused by what Kafka calls an IOException: a checkpoint that does not parse is one.  Where the
        directory was offline before, Kafka's class alone knows no cause."""
        if self._bare and ALREADY_OFFLINE in error.message:
            return False
        return isinstance(error.__cause__, OSError) or type(error.__cause__) is CorruptCheckpointException

    def _load_log(
        self,
        is_stray: Callable[[UnifiedLog], bool],
        folder: str,
        of: Found,
        remaining_segments: Callable[[int], object],
    ) -> None:
        partition = names.parse_topic_partition_name(folder)
        self._initializing[partition] = False
        log = UnifiedLog.load(
            self._context(folder, partition),
            of.log_starts.get(partition, 0),
            of.recovery_points.get(partition, 0),
            of.had_clean_shutdown,
            None,
            remaining_segments,
        )
        try:
            if names.is_delete_dir(folder):
                self._doomed.add(log)
            elif names.is_stray_dir(folder):
                log.context.logger.warning("Loaded stray log: %s", folder)
                if not self._bare:
                    log.close_quietly()
            elif is_stray(log):
                log.rename_dir(names.log_stray_dir_name(partition), False)
                log.context.logger.warning("Log in %s marked stray and renamed to %s", folder, log.dir)
                if not self._bare:
                    log.close_quietly()
            else:
                self._register(log)
        except BaseException:
            self.registry.remove(log)
            log.close_quietly()
            raise
        self._finished_initializing(partition, log)

    def _register(self, log: UnifiedLog) -> None:
        """Of a log that was just loaded."""
        previous = self.registry.put(log, is_future=log.is_future)
        if previous is not None:
            if self._bare:
                raise duplicate(log, previous, hint=None)
            self._duplicates.set_aside(previous)

    def _context(self, folder: str, partition: TopicPartition) -> PartitionContext:
        context = PartitionContext(
            folder,
            self._config_of(partition.topic),
            self.settings.producers,
            self.scheduler,
            self.clock,
            self.failure_channel,
            files=self.files,
            metrics=self.metrics,
        )
        context.has_one_replica = not self._bare
        return context

    @property
    def load_progress(self) -> LoadProgress | None:
        """How far `startup` is; None when it does not run."""
        remaining = self._remaining
        return None if remaining is None else remaining.progress()

    # --- logs ----------------------------------------------------------------------------------------

    def get_log(self, topic_partition: str | TopicPartition, *, is_future: bool = False) -> UnifiedLog | None:
        """The partition's log; None where there is none, or its directory is offline."""
        partition = names.partition_of(topic_partition)
        self._check()
        if self.changes.cut_short:
            self.changes.settle()
        return self.registry.get(partition, is_future=is_future)

    def log_to_change(self, partition: TopicPartition) -> UnifiedLog | None:
        """As `get_log`, for whoever found that one refuses changes: waits for the last step of a move or a deletion,
        and finishes one that an interrupt came out of."""
        log = self.registry.get(partition)
        if log is not None and log.local_log.life == CLOSING:
            self.changes.settle()
            log = self.registry.get(partition)
        return log

    def all_logs(self) -> list[UnifiedLog]:
        """All logs, future ones included."""
        self._check_not_lost()
        if self.changes.cut_short:
            self.changes.settle()
        return self.registry.all_logs()

    def logs_by_topic(self, topic: str) -> list[UnifiedLog]:
        return [log for log in self.all_logs() if log.topic_partition.topic == topic]

    def get_or_create_log(
        self,
        topic_partition: str | TopicPartition,
        *,
        is_new: bool = False,
        is_future: bool = False,
        topic_id: str | None = None,
        log_dir: str | os.PathLike[str] | None = None,
    ) -> UnifiedLog:
        """The partition's log, made where it is missing: in `log_dir`, the preferred directory, or the live one with
        the fewest logs.

        `is_new`: that it cannot be in a directory that is offline now; otherwise KafkaStorageException while one is.
        InconsistentTopicIdException when the log has another topic's id; IllegalArgumentException when it is none.
        """
        partition = names.partition_of(topic_partition)
        if topic_id is not None and not self._bare:
            topic_id = checked_topic_id(topic_id)  # written as it is, it would end the next start
        preferred = None if log_dir is None else absolute_path(log_dir)
        with self.changes.lock:
            self._check()  # inside: a shutdown may have come before us
            self.changes.settle()
            log = self.registry.get(partition, is_future=is_future)
            if log is None:
                log = self._create_log(partition, preferred, is_new=is_new, is_future=is_future, topic_id=topic_id)
            if topic_id is not None and log.topic_id is not None and topic_id != log.topic_id:
                raise InconsistentTopicIdException(
                    f"Tried to assign topic ID {topic_id} to log for topic partition {partition},"
                    f"but log already contained topic ID {log.topic_id}"
                )
            return log

    def _create_log(
        self,
        partition: TopicPartition,
        log_dir: str | None,
        *,
        is_new: bool,
        is_future: bool,
        topic_id: str | None,
    ) -> UnifiedLog:
        offline = self.offline_log_dirs
        if not is_new and offline:
            raise KafkaStorageException(
                f"Can not create log for {partition} because log directories {', '.join(offline)} are offline",
                hint="is_new=True says that it cannot be there",
            )
        if not self._bare:
            names.validate_topic_name(partition.topic)
        preferred = self._preferred.get(partition)
        if log_dir is not None and (preferred is None or not self._bare):  # Kafka's class alone gives way
            preferred = log_dir
        if is_future:
            self._check_future(partition, preferred)
        log_dirs = [preferred] if preferred else self.next_log_dirs()
        name = names.log_future_dir_name(partition) if is_future else names.log_dir_name(partition)
        if not self._bare:
            names.validate_dir_name(name)  # or the disk would refuse it, and count as failed
        made: list[UnifiedLog] = []

        def create(folder: str) -> UnifiedLog:
            context = self._context(folder, partition)
            try:
                # What lies there is of a load that was cut short: not all of it is as a clean end leaves it.
                is_clean = self._bare or not self.files.names_in(folder)
                return UnifiedLog.load(context, 0, 0, is_clean, topic_id)
            except OSError as error:
                context.raise_offline(f"Error while creating log for {partition} in dir {context.parent_dir}", error)

        def change() -> UnifiedLog:
            if not made:
                folder = self._make_folder(name, log_dirs)
                self._initializing[partition] = False
                made.extend(map(create, (folder,)))  # one call from bytecode: an interrupt leaves no log to nobody
            log = made[0]
            self.registry.put(log, is_future=is_future)
            self._preferred.pop(partition, None)
            self._finished_initializing(partition, log)  # last: a change of settings finds it in one place or the other
            log.context.logger.info("Created log for partition %s in %s", partition, log.dir)
            return log

        return self.changes.whole(change)

    def _check_future(self, partition: TopicPartition, preferred: str | None) -> None:
        current = self.registry.get(partition)
        if preferred is None:
            raise IllegalStateException(
                f"Can not create the future log for {partition} without having a preferred log directory"
            )
        if current is None:
            raise KafkaStorageException(f"The current replica for {partition} is offline")
        if current.parent_dir == preferred:
            raise IllegalStateException(
                f"Can not create the future log for {partition} in the current log directory of this partition"
            )

    def _make_folder(self, name: str, log_dirs: Sequence[str]) -> str:
        """In the first directory whose disk lets us.  InvalidTopicException where the name is too long for one."""
        last: KafkaStorageException | None = None
        for log_dir in log_dirs:
            if not self.is_log_dir_online(log_dir):
                last = KafkaStorageException(f"Can not create log {name} because log directory {log_dir} is offline")
                continue
            try:
                folder = os.path.join(log_dir, name)
                self.files.mkdirs_synced(folder)
                return folder
            except OSError as error:
                message = f"Error while creating log for {name} in dir {log_dir}"
                if error.errno == errno.ENAMETOOLONG and not self._bare:  # some file systems have less than 255
                    raise InvalidTopicException(f"{message}: {error.strerror}") from error
                self.failure_channel.maybe_add_offline_log_dir(log_dir, message, error)
                last = KafkaStorageException.because_of(error, message)
        raise KafkaStorageException(f"No log directories available. Tried {', '.join(log_dirs)}") from last

    def maybe_update_preferred_log_dir(self, topic_partition: str | TopicPartition, log_dir: str) -> None:
        """Where the partition's next log is to be made, unless its log or future log is there."""
        partition, path = names.partition_of(topic_partition), absolute_path(log_dir)
        self._check_not_lost()
        if not self._bare:
            self.is_log_dir_online(path)
        logs = [self.registry.get(partition, is_future=is_future) for is_future in (False, True)]
        if all(log is None or log.parent_dir != path for log in logs):
            self._preferred[partition] = path

    # --- configuration -------------------------------------------------------------------------------

    def _config_of(self, topic: str) -> LogConfig:
        found = self._configs.get(topic)
        if found is None:
            overrides = self.topic_configs.overrides(topic)
            found = LogConfig.from_props(self._default_config, overrides) if overrides else self._default_config
            self._configs[topic] = found
        return found

    def set_topic_config(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Replaces a topic's overrides, beside the data and in its open logs.  ConfigException; IllegalStateException
        when this manager has its topics' settings from elsewhere (then `update_topic_config`)."""
        if not isinstance(self.topic_configs, StoredTopicConfigs):
            raise IllegalStateException("this manager's topic_configs are not kept beside the data")
        overrides = checked_overrides(overrides)
        with self.changes.lock:  # of two who set one topic the later is right, on disk and in the logs
            self._check()
            self.topic_configs.set(topic, overrides)
            self.update_topic_config(topic, overrides)

    def update_topic_config(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Gives the open logs of a topic these overrides; those that are being made take them when they are ready."""
        self._check_not_lost()
        overrides = checked_overrides(overrides)
        new = LogConfig.from_props(self._default_config, overrides)
        self._configs.pop(topic, None)
        self.topic_config_updated(topic)
        for log in self.logs_by_topic(topic):
            old = log.update_config(new)
            if old.compact and not new.compact:
                self._cleaning.abort(log.topic_partition)

    def reconfigure_default_config(self, config: LogConfig) -> None:
        """The defaults of logs that are opened from now on."""
        if not isinstance(config, LogConfig):
            raise IllegalArgumentException(f"config: found {values.shown(config)}, expected a LogConfig")
        self._default_config = config
        self._configs = {}

    @property
    def cleaner(self) -> LogCleaner | None:
        """What compacts; None where the settings have none."""
        return self._cleaning.cleaner

    def reconfigure_cleaner(self, config: CleanerConfig) -> None:
        """Gives the cleaner other threads, memory or rates.  ConfigException for less than half or more than twice as
        many threads, and for `enable_cleaner=False`, which as in Kafka counts only from the start;
        IllegalStateException where there is no cleaner; IllegalArgumentException as `ManagerSettings.checked`."""
        self._check()
        self.check_outside()
        self._cleaning.reconfigure(config)

    def uncleanable_partitions(self) -> list[Uncleanable]:
        """The compacted partitions that are not cleaned any more, and why of each."""
        return self._cleaning.uncleanable

    def topic_config_updated(self, topic: str) -> None:
        """The logs of a topic that are being made take its configuration anew when they are ready."""
        for partition in list(self._initializing):
            if partition.topic == topic and partition in self._initializing:
                self._initializing[partition] = True

    def _finished_initializing(self, partition: TopicPartition, log: UnifiedLog) -> None:
        if self._initializing.pop(partition, False):
            self._configs.pop(partition.topic, None)
            log.update_config(self._config_of(partition.topic))

    # --- truncation ----------------------------------------------------------------------------------

    def truncate_to(self, offsets: Mapping[TopicPartition, int], *, is_future: bool = False) -> None:
        """Drops what lies at and above an offset, of several partitions; those that are not here are passed over."""
        if not isinstance(offsets, Mapping):
            raise IllegalArgumentException(f"offsets: found {values.shown(offsets)}, expected partitions and offsets")
        self._check()
        affected: list[str] = []
        for partition, offset in {names.partition_of(it): offset for it, offset in offsets.items()}.items():
            offset = values.offset(offset, "target_offset")
            log, was_cut = self._change_log(partition, is_future, functools.partial(self._cut, offset))
            if log is not None and was_cut:
                affected.append(log.parent_dir)
        for log_dir in dict.fromkeys(affected):
            self.directories.checkpoint_recovery_points(log_dir, self.registry)

    def truncate_fully_and_start_at(
        self,
        topic_partition: str | TopicPartition,
        new_offset: int,
        *,
        is_future: bool = False,
        log_start_offset: int | None = None,
    ) -> None:
        """Throws a partition's records away; its log goes on at `new_offset`."""
        partition = names.partition_of(topic_partition)
        new_offset = values.offset(new_offset, "new_offset", low=0)
        log, _ = self._change_log(partition, is_future, functools.partial(self._restart, new_offset, log_start_offset))
        if log is not None:
            self.directories.checkpoint_recovery_points(log.parent_dir, self.registry)

    def _cut(self, target_offset: int, log: UnifiedLog) -> bool:
        with log.lock:  # else it may roll between the question and the cut
            if log.local_log.segments.last_segment is None:
                log.local_log.check_changeable()  # a move took its place, and it was deleted meanwhile
            if log.is_future or not 0 <= target_offset < log.active_segment.base_offset:
                return log.truncate_to(target_offset)
        with self._cleaning.pause(log.topic_partition) as pause:
            pause.begin()
            # What is cut is clean no more, also where an interrupt comes in between.
            self._cleaning.cut(log, target_offset)
            was_cut = log.truncate_to(target_offset)
            self._cleaning.cut(log, log.active_segment.base_offset)
            return was_cut

    def _restart(self, new_offset: int, log_start_offset: int | None, log: UnifiedLog) -> None:
        with self._cleaning.pause(None if log.is_future else log.topic_partition) as pause:
            pause.begin()
            if log.is_future:
                log.truncate_fully_and_start_at(new_offset, log_start_offset)
                return
            self._cleaning.cut(log, new_offset)
            log.truncate_fully_and_start_at(new_offset, log_start_offset)
            self._cleaning.cut(log, log.active_segment.base_offset)

    def _change_log(
        self, partition: TopicPartition, is_future: bool, change: Callable[[UnifiedLog], T]
    ) -> tuple[UnifiedLog | None, T | None]:
        """Makes a change of a partition's log, of the new one where a move came between; (None, None) where there is
        none."""
        while True:
            log = self.get_log(partition, is_future=is_future)
            if log is None:
                return None, None
            try:
                return log, change(log)
            except KafkaStorageException:
                if self.registry.get(partition, is_future=is_future) is log:
                    raise

    # --- moving and deleting -------------------------------------------------------------------------

    def replace_current_with_future_log(self, topic_partition: str | TopicPartition) -> None:
        """The future log takes the partition's place, and the present one is deleted later.

        KafkaStorageException when one of the two is not there, or the disk refuses.  A crash between the two renames
        leaves both folders: a note in the destination says which one counts, and the next start goes on.
        """
        partition = names.partition_of(topic_partition)
        with self.changes.lock:
            self._check()
            self.changes.settle()
            source = self.registry.get(partition)
            if source is not None:
                source.settle()  # out of the middle of it nothing is moved away: it goes on there
            self.switch_to_future_log(partition)

    def switch_to_future_log(self, partition: TopicPartition) -> None:
        """`replace_current_with_future_log` for a Move, which has claimed the present log's lock as `busy`."""
        with self.changes.lock:
            self._check()
            self.changes.settle()
            source, destination = self.registry.get(partition), self.registry.get(partition, is_future=True)
            if source is None:
                raise KafkaStorageException(f"The current replica for {partition} is offline")
            if destination is None:
                raise KafkaStorageException(f"The future replica for {partition} is offline")
            given_up = names.log_delete_dir_name(partition)

            def again() -> None:
                # Where the present log takes changes it took some, perhaps, since the future one had them all.
                if source.refuses_changes:
                    self._replace(source, destination, given_up)

            self.changes.whole(lambda: self._replace(source, destination, given_up), again)
            destination.context.logger.info("moved to here from %s", source.parent_dir)

    def _replace(self, source: UnifiedLog, destination: UnifiedLog, given_up: str) -> None:
        with self._cleaning.pause(source.topic_partition) as pause:
            pause.begin()
            self._switch(source, destination, given_up)

    def _switch(self, source: UnifiedLog, destination: UnifiedLog, given_up: str) -> None:
        partition, noted = source.topic_partition, not self._bare
        with source.lock:
            source.refuse_changes()  # what is appended meanwhile would be lost with it
            source.lock.busy = False  # a Move's claim: from here on that refusal is enough, and the folder is renamed
            if self.registry.get(partition) is source:
                try:
                    if noted:
                        self._prepare_replacing(source, destination)
                    destination.rename_dir(names.log_dir_name(partition), True)
                except (KafkalogError, OSError):
                    if noted:
                        self._note_that_it_stays(source, destination)
                    source.accept_changes()
                    raise
                destination.update_high_watermark(source.high_watermark)
            self.registry.promote(destination)
            source.wake_waiters()  # they go on with the other
        self._cleaning.moved(partition, source.parent_dir, destination.parent_dir)
        try:
            source.rename_dir(given_up, True)
        except KafkaStorageException:
            source.close_quietly()  # nobody else will: it is in no map any more
            raise
        self._doomed.add(source)
        if noted:
            move_notes.forget(destination, source, self.files, self.failure_channel)
            with suppress(KafkaStorageException):  # beside no folder it says nothing
                move_notes.remove(source, self.files, self.failure_channel)
        for log_dir in [source.parent_dir, destination.parent_dir] if noted else [source.parent_dir]:
            self.directories.checkpoint(log_dir, self.registry)

    def _prepare_replacing(self, source: UnifiedLog, destination: UnifiedLog) -> None:
        if source.topic_id is not None:  # it may have come when the copy was there already
            destination.assign_topic_id(source.topic_id)
            destination.maybe_flush_metadata_file()
        # A crash behind the renames must not bring back what was deleted before.
        if not self.directories.checkpoint(destination.parent_dir, self.registry):
            destination.context.check_online()
        move_notes.forget(source, destination, self.files, self.failure_channel)
        move_notes.write(source, destination, self.files, self.failure_channel)

    def _note_that_it_stays(self, source: UnifiedLog, destination: UnifiedLog) -> None:
        """The disk would not have it: the partition goes on where it is.  What lies on the other disk says otherwise,
        perhaps, and a note here contradicts it."""
        try:
            move_notes.write_stay(source, destination, self.files, self.failure_channel)
        except KafkaStorageException:
            source.context.logger.warning("the partition stays here, but no note says so")

    def move(
        self,
        topic_partition: str | TopicPartition,
        log_dir: str | os.PathLike[str],
        progress: Callable[[MoveProgress], object] | None = None,
    ) -> UnifiedLog:
        """Moves a partition to another directory, while it is written and read; answers its log there.

        From the switch on the log that was there before refuses changes with KafkaStorageException, and `get_log`
        answers the new one; who reads the old one may do so until it is deleted, after file.delete.delay.ms.  What ends
        a move early leaves the log as it was, and a future log from which the next `move` goes on.  Two moves of
        one partition come one after the other; IllegalStateException to one out of the middle of another.
        """
        self._check()
        move = Move(self, topic_partition, log_dir)
        moving = self._moves.setdefault(move.partition, PartitionLock())
        if moving.is_mine():  # both would write the one copy
            raise inside(f"moving {move.partition}")
        with moving, self._cleaning.pause(move.partition) as pause:
            pause.begin()
            return move.run(progress)

    def async_delete(
        self,
        topic_partition: str | TopicPartition,
        *,
        is_future: bool = False,
        is_stray: bool = False,
        checkpoint: bool = True,
    ) -> UnifiedLog | None:
        """Renames a partition's folder `-delete` (or `-stray`); its files go after file.delete.delay.ms.  With a
        current log goes its future one.

        The log that was removed; None where there was none.  KafkaStorageException when it may be in a directory that
        is offline.
        """
        partition = names.partition_of(topic_partition)
        with self.changes.lock:
            self._check()
            self.changes.settle()
            log = self.registry.get(partition, is_future=is_future)
            if log is None:
                offline = self.offline_log_dirs
                if offline:
                    raise KafkaStorageException(
                        f"Failed to delete log for {'future ' if is_future else ''}{partition} because it may be in "
                        f"one of the offline directories {', '.join(offline)}"
                    )
                return None
            removals = [_Removal.of(log, is_stray=is_stray)]
            future = self.registry.get(partition, is_future=True)
            if future is not None and future is not log and not self._bare:
                removals.append(_Removal.of(future, is_stray=False))
            self.changes.whole(lambda: self._remove(removals, checkpoint=checkpoint))
            return log

    def async_delete_all(self, partitions: Iterable[TopicPartition], *, is_stray: bool = False) -> None:
        """`async_delete` of many, future logs included, with checkpoints written once a directory; the first error is
        raised when all were tried."""
        try:
            given = [names.partition_of(each) for each in partitions]
        except TypeError:
            raise IllegalArgumentException(f"partitions: found {values.shown(partitions)}, expected several") from None
        with self.changes.lock:
            self._check()
            self.changes.settle()
            removals = self._removals(given, is_stray)
            self.changes.whole(lambda: self._remove(removals, checkpoint=True))

    def _removals(self, partitions: Iterable[TopicPartition], is_stray: bool) -> list[_Removal]:
        found = [self.registry.get(each, is_future=is_future) for each in partitions for is_future in (False, True)]
        return [_Removal.of(log, is_stray=is_stray) for log in found if log is not None]

    def _remove(self, removals: Sequence[_Removal], *, checkpoint: bool) -> None:
        errors: list[KafkalogError] = []
        for removal in removals:
            try:
                self._remove_one(removal)
            except KafkalogError as error:
                errors.append(error)
                if self._bare:
                    self.registry.remove(removal.log)  # Kafka's map comes first
        if checkpoint and not (errors and self._bare):
            for log_dir in dict.fromkeys(each.log.parent_dir for each in removals if not each.is_future):
                self._cleaning.removed(log_dir)
            for log_dir in dict.fromkeys(each.log.parent_dir for each in removals):
                self.directories.checkpoint(log_dir, self.registry)
        if errors:
            raise errors[0]

    def _remove_one(self, removal: _Removal) -> None:
        log = removal.log
        with self._cleaning.pause(None if removal.is_future else log.topic_partition) as pause:
            pause.begin()
            self._rename_removed(removal, log)

    def _rename_removed(self, removal: _Removal, log: UnifiedLog) -> None:
        log.settle()
        log.refuse_changes()
        log.rename_dir(removal.name, False)
        if not removal.is_stray:
            self._doomed.add(log)
        self.registry.remove(log)
        log.wake_waiters()
        what = "marked as stray and" if removal.is_stray else "scheduled for deletion and"
        log.context.logger.info("Log is %s renamed to %s", what, log.dir)

    def _delete_logs(self) -> None:
        """kafka-delete-logs: what was renamed `-delete` long enough ago; then again when the next one is due."""
        delay_ms = self._default_config.file_delete_delay_ms
        wait_ms = max(delay_ms, 1)
        try:
            if self.changes.cut_short:
                self.changes.settle()  # a removal's folder must not go before its name
            wait_ms = self._doomed.delete_due(delay_ms)
        except Exception:
            Lines(LOGGER).exception("Exception in kafka-delete-logs thread.")
        finally:
            self._tasks.once("kafka-delete-logs", self._delete_logs, wait_ms)

    # --- background ----------------------------------------------------------------------------------

    def _schedule(self) -> None:
        settings, delay_ms = self.settings, self.settings.initial_task_delay_ms
        every: list[tuple[str, Callable[[], object], int]] = [
            ("kafka-log-retention", self.cleanup_logs, settings.retention_check_ms),
            ("kafka-log-flusher", self.flush_dirty_logs, settings.flush_check_ms),
            ("kafka-recovery-point-checkpoint", self.checkpoint_recovery_points, settings.recovery_checkpoint_ms),
            ("kafka-log-start-offset-checkpoint", self.checkpoint_log_starts, settings.start_checkpoint_ms),
        ]
        if not self._bare:
            name, period_ms = "highwatermark-checkpoint", settings.high_watermark_checkpoint_ms
            every.append((name, self.checkpoint_high_watermarks, period_ms))
        for name, task, period_ms in every:
            self._tasks.every(name, task, delay_ms, period_ms)
        self._tasks.once("kafka-delete-logs", self._delete_logs, delay_ms)

    def cleanup_logs(self) -> int:
        """kafka-log-retention: deletes old segments of the logs that are not compacted, and of their future logs; how
        many.  A log that fails is told when the others are done."""
        self._check()
        retained = self._cleaning.retained_logs()
        try:
            return self._retain(list(map(operator.itemgetter(0), retained)))
        finally:
            retained.clear()  # in one step, and whoever keeps the traceback of an interrupt keeps no pause

    def _retain(self, retained: Sequence[UnifiedLog]) -> int:
        deleted, first = 0, None
        for log in retained:
            for each in (log, self.registry.get(log.topic_partition, is_future=True)):
                if each is not None:
                    try:
                        deleted += each.delete_old_segments()
                    except KafkalogError as error:
                        if self._bare:
                            raise
                        if self.registry.get(each.topic_partition, is_future=each.is_future) is each:
                            first = first or error  # else it was removed, or moved, meanwhile
        if first is not None:
            raise first
        return deleted

    def flush_dirty_logs(self) -> None:
        """kafka-log-flusher: flushes the logs whose last flush is flush.ms ago."""
        self._check()
        for log in self.all_logs():
            try:
                if self.clock.milliseconds() - log.last_flush_time >= log.config.flush_ms:
                    log.flush(False)
            except Exception:
                log.context.logger.exception("Error flushing topic %s", log.topic_partition.topic)

    def checkpoint_recovery_points(self) -> None:
        """kafka-recovery-point-checkpoint: of all logs, one file a directory."""
        self._check()
        for log_dir in self.directories.live:
            self.directories.checkpoint_recovery_points(log_dir, self.registry)

    def checkpoint_log_starts(self) -> None:
        """kafka-log-start-offset-checkpoint: of the logs that start inside their first segment."""
        self._check()
        for log_dir in self.directories.live:
            self.directories.checkpoint_log_starts(log_dir, self.registry)

    def checkpoint_high_watermarks(self) -> None:
        """highwatermark-checkpoint: of all logs (in Kafka it is ReplicaManager's)."""
        self._check()
        for log_dir in self.directories.live:
            self.directories.checkpoint_high_watermarks(log_dir, self.registry)

    # --- failure -------------------------------------------------------------------------------------

    def _on_failure(self, log_dir: str) -> None:
        """Called by whoever met the error, perhaps with a partition's lock held.  What fails at the start waits for the
        end of that."""
        if self._state is _RUNNING:
            self._tasks.once("log-dir-failure-handler", self._settle_failures, _FIRST_OF_ALL_MS)

    def _settle_failures(self) -> None:
        for log_dir in self.failure_channel.offline_log_dirs:
            self.handle_log_dir_failure(log_dir)

    def handle_log_dir_failure(self, log_dir: str) -> None:
        """Takes a failed directory out: its partitions are offline, the others go on.  May be called again.

        NoLiveLogDirException when it was the last one: from then on every call on logs raises that, where Kafka's
        broker halts.
        """
        with self.changes.lock:
            if self._state is not _RUNNING or log_dir not in self.directories.live:
                return
            self.changes.settle()
            Lines(LOGGER, log_dir).warning("Stopping serving logs in dir %s", log_dir)
            gone = self.registry.all_of(log_dir)
            self._cleaning.failed(log_dir)
            self._close_all_of(log_dir)
            self._cleaning.leave_failed([log.topic_partition for log in gone])  # before the lock is given back
            self.registry.remove_all(gone)
            if isinstance(self.topic_configs, StoredTopicConfigs):
                self.topic_configs.forget_directory(log_dir)
            self.directories.take_out(log_dir)
            Lines(LOGGER, log_dir).warning(
                "Logs for partitions %s are offline due to failure on this log directory",
                ", ".join(f"{log.topic_partition}{' (future)' if log.is_future else ''}" for log in gone) or "(none)",
            )
            self._check_live()

    def _close_all_of(self, log_dir: str) -> None:
        for log in [*self.registry.all_of(log_dir), *self._doomed.logs()]:
            if log.parent_dir == log_dir:
                log.close_quietly()

    def _check_live(self) -> None:
        if not self.directories.live:
            self._state = _LOST
            Lines(LOGGER).critical("all log dirs in %s have failed", self.directories.shown)
            raise self.directories.lost()

    # --- the end -------------------------------------------------------------------------------------

    def shutdown(self, broker_epoch: int = -1) -> None:
        """Closes all logs (trim, flush, snapshot), writes the checkpoints, and the clean-shutdown marker in each
        directory where all of that went well; gives the locks back in any case.

        Waits for appends in flight and refuses what comes after.  What a log's close raised is raised when all is done;
        a second call does nothing.  While `startup` is under way it ends that, which raises IllegalStateException when
        it has let go, and does not wait for it.  IllegalStateException from a signal handler that came in the middle of
        a change of a log: raise SystemExit there, or set a flag.
        """
        broker_epoch = values.whole(broker_epoch, "broker_epoch", low=-1, expected="a broker's epoch")
        self.check_outside()
        with self.changes.lock:
            if self._state is _STARTING and self._starting.locked():
                self._jobs.stop(wait=False)
                return
            if self._state in (_CLOSED, _FORKED):
                return
        if self._state in (_NEW, _STARTING, _LOST, _LEAVING):
            self.abandon()
            return
        self._state = _CLOSING
        error: BaseException | None = None
        try:
            self._cleaning.stop()
            self._tasks.cancel()
            if self._owns_scheduler:
                self.scheduler.shutdown()
            with self.changes.lock:
                if self._state is _CLOSING:  # else another thread was quicker
                    self.changes.settle()
                    error = self._close_all(broker_epoch)
        finally:
            self.abandon()
        if error is not None and not self._bare:
            raise error

    def check_outside(self) -> None:
        """IllegalStateException in a thread that is inside of a log, by a signal handler or a finalizer: others would
        wait for it."""
        if self._state is _RUNNING:
            self._cleaning.check_outside()
            for log in self._doomed.logs():
                if log.lock.is_mine():
                    raise log.is_inside()

    def _to_close(self, log_dir: str) -> list[UnifiedLog]:
        """All of a directory; as Kafka, one of each partition where both its logs are there, when `bare`."""
        return self.registry.in_dir(log_dir).values() if self._bare else self.registry.all_of(log_dir)

    def _close_all(self, broker_epoch: int) -> BaseException | None:
        jobs = {
            log_dir: [functools.partial(_close, log, self._bare) for log in self._to_close(log_dir)]
            for log_dir in self.directories.live
        }
        outcomes = self._jobs.run("log-closing", jobs, dict.fromkeys(jobs, self.settings.syncing_threads))
        first: BaseException | None = None
        for log_dir, of in outcomes.items():
            errors = [outcome.error for outcome in of if outcome.error is not None]
            for error in errors:
                Lines(LOGGER, log_dir).warning("There was an error while closing a log", exc_info=error)
            first = first or (errors[0] if errors else None)
            if not errors and all(outcome.done for outcome in of):
                first = self._finish_dir(log_dir, broker_epoch) or first
        return first

    def _finish_dir(self, log_dir: str, broker_epoch: int) -> BaseException | None:
        """Checkpoints, then the marker: it says that they are right.  Lines of logs that were never loaded would go."""
        if not self._all_loaded.get(log_dir) and not self._bare:
            return None
        directories, registry = self.directories, self.registry
        written = directories.checkpoint(log_dir, registry)
        if not self._bare:
            written = directories.checkpoint_high_watermarks(log_dir, registry) and written
        if not (self._had_clean.get(log_dir) or self._all_loaded.get(log_dir)) or (not written and not self._bare):
            return None
        if self.failure_channel.has_offline_log_dir(log_dir) and not self._bare:
            return None
        try:
            directories.live[log_dir].marker.write(broker_epoch)
        except OSError as error:
            Lines(LOGGER, log_dir).warning("the clean-shutdown marker was not written", exc_info=True)
            return error
        return None

    def abandon(self) -> None:
        """As a crash: lets go of files and locks, writes nothing.  What is left is recovered by the next start.
        IllegalStateException as `shutdown`: whoever still writes is waited for."""
        if self._state in (_CLOSED, _FORKED):
            return
        self.check_outside()
        self._jobs.stop()  # they write
        self._cleaning.stop()  # likewise
        self._tasks.cancel()
        if self._owns_scheduler:
            self.scheduler.shutdown()
        self.metrics.hide(self.directories)
        with self.changes.lock:
            self._state = _LEAVING
            self._let_go()
            self._state = _CLOSED

    def _let_go(self) -> None:
        doomed = self._doomed.logs() if not self._bare else []
        for log in [*self.registry.all_logs(), *doomed]:
            log.close_quietly()
        self._duplicates.close_quietly()
        self.directories.unlock()


def listen_weakly(manager: LogManager) -> None:
    """The channel, which every log holds, must not keep its manager."""
    found = weakref.ref(manager)

    def on_failure(log_dir: str) -> None:
        own = found()
        if own is not None:
            own._on_failure(log_dir)

    manager.failure_channel.listen(on_failure)


def _close(log: UnifiedLog, bare: bool, thread: int) -> None:
    if not log.shut_down():
        active = log.active_segment
        if bare and active.max_timestamp_so_far <= active.time_index.last_entry.timestamp:
            # Kafka goes on to trim the closed file, and takes the refusal for the disk's.
            log.context.log_dir_failure_channel.maybe_add_offline_log_dir(
                log.parent_dir, f"Error while preparing active segment for close for {log.topic_partition}"
            )
        raise KafkaStorageException(f"{log.topic_partition} of {log.parent_dir} was let go before, not in order")
