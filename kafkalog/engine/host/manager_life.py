"""The lifetime of a manager: holds directories, loads logs, runs background tasks, leaves failed disks, closes all.

LogManager, the subclass, has the operations on logs.  ManagerLife creates the parts, keeps the state, and calls the
parts in order.  A part knows the objects that it works on, and no manager:

    the start      Start (on LogContexts)            a failure     Failures
    background     Housekeeping, DoomedLogs          the end       End; then all that is left is released

A LogCleaner compacts in its threads (`cleaning`), from the end of the start to the first step of the shutdown.

ManagerLife also does work for which a broker has other parts.  It handles failed directories, and writes the file of
high watermarks (as the only replica, so that they follow the log end).  It logs and skips unknown directories, and
finishes a move that a crash interrupted between its two renames.

Locks: the starting thread holds `_starting` for all of the start.  A shutdown checks whether it is held, and no thread
waits for it.  `changes.lock` (Kafka's logCreationOrDeletionLock; `LogManager.creation`) is held for changes of the
state that other threads may make too; `_CLOSING` is checked again under it.  It is also held while a failed directory
is taken out, and while all logs are closed or released.  It is acquired before a partition's lock.  At the end the
cleaner and the scheduler are stopped, and their threads waited for, without it.
From `_LEAVING` on nothing is written: the directories may belong to another process.
Background tasks are methods of the manager and hold it weakly, so that a dropped manager is released.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Self

from kafkalog._native.state.blocks import Closing
from kafkalog._renamed import without
from kafkalog.config import KEEPS_ALL, LogConfig
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, Clock, Files, LogDirFailureChannel, Scheduler, ThreadScheduler
from kafkalog.engine.files.dropped import let_go_later, wait_for_dropped
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.processes import belongs_here, opened_elsewhere
from kafkalog.engine.format import values
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.changes import BackgroundTasks, Changes
from kafkalog.engine.host.cleaning import Cleaning
from kafkalog.engine.host.doomed import DoomedLogs
from kafkalog.engine.host.duplicates import Duplicates
from kafkalog.engine.host.ending import End
from kafkalog.engine.host.failing import Failures
from kafkalog.engine.host.housekeeping import Housekeeping
from kafkalog.engine.host.jobs import Jobs
from kafkalog.engine.host.leftovers import Leftovers
from kafkalog.engine.host.log_contexts import AS_ALL, LogContexts
from kafkalog.engine.host.log_directories import LogDirectories, absolute_paths
from kafkalog.engine.host.log_dirs import check_taken_over, is_of_cluster
from kafkalog.engine.host.making import LogMaker
from kafkalog.engine.host.manager_metrics import gauges_of_directories
from kafkalog.engine.host.registry import LogRegistry
from kafkalog.engine.host.removing import Removals
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.host.starting import IsStray, Progress, Start
from kafkalog.engine.host.switching import Moves
from kafkalog.engine.host.topic_configs import StoredTopicConfigs, TopicConfigs
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import IllegalArgumentException, IllegalStateException
from kafkalog.metrics.registry import MetricsRegistry

LOGGER = "kafkalog.manager"

# The states of a manager.  LOST: no directory is left.
_NEW, _STARTING, _RUNNING, _LOST, _FORKED = "new", "starting", "running", "lost", "forked"
_FIRST_OF_ALL_MS = -86_400_000  # runs before tasks for which the scheduler is late
_CLOSING, _LEAVING, _CLOSED = "closing", "closing and letting go", "closed"

_WHAT_TO_DO = {_NEW: "call startup() or use `with`", _STARTING: "wait for startup()"}


class ManagerLife(Closing):
    """The part of LogManager below its operations on logs."""

    # The classes of two parts from which `_make_parts` creates the others.
    registry_class = LogRegistry
    directories_class = LogDirectories

    @without("LogManager", bare="leave it out, LogManager is Kafka's class without its faults, and the only one")
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
        take_over: bool = False,
    ) -> None:
        """Creates missing directories of `log_dirs`, acquires their locks and reads their ids.  Loads nothing yet.

        Args:
            log_dirs: A log directory, or several.  A directory whose disk fails is offline from the start.
            settings: The manager's settings.  `ManagerSettings()`, which has Kafka's defaults, by default.
            topic_configs: The source of topics' overrides.  By default a file in each directory, which
                `set_topic_config` writes.
            scheduler: Runs the background tasks.  By default the manager has threads for them.
            clock: The source of the time.  The system's clock by default.
            files: The file operations to use.  The operating system's by default.
            metrics: Receives the metrics of the manager and its logs.  By default a new registry.
            take_over: Accept the directory of a Kafka broker (it has `meta.properties`), in the broker's place.
                Retention and compaction there spare a topic unless its overrides in `topic_configs` request them.

        Raises:
            IllegalArgumentException: A setting is out of Kafka's range, or a directory is not empty and is no log
                directory, or it is a broker's and `take_over` is False.  Nothing is created then.
            LogDirLockedException: A broker or another process holds a directory.
            KafkaException: Two of the directories are the same.
            NoLiveLogDirException: All directories are offline.
        """
        # More than eight parameters: all except `log_dirs` are optional, and keyword-only after `settings`.
        if metrics is not None and not isinstance(metrics, MetricsRegistry):
            raise IllegalArgumentException(
                f"metrics: found {values.shown(metrics)}, expected a kafkalog.metrics.MetricsRegistry"
            )
        take_over = values.flag(take_over, "take_over")
        self.settings = ManagerSettings.checked(ManagerSettings() if settings is None else settings)
        self.refusal: Callable[[], Exception] | None = None  # returns a store's error to raise instead of ours
        self.clock = clock
        self.files = files
        self.failure_channel = LogDirFailureChannel(outlives_shortages=True)
        self.changes = Changes()
        self.registry = self.registry_class()
        self.metrics = MetricsRegistry(clock) if metrics is None else metrics
        self._pid = os.getpid()
        self._state = _NEW
        self._has_started = False
        self._jobs = Jobs()
        self._starting = threading.Lock()  # held by the thread that starts
        self._doomed = DoomedLogs(clock)
        self._leftovers = Leftovers()  # guarded by changes.lock
        self._as_all = AS_ALL  # how logs are opened for no user in particular
        self.lent: set[TopicPartition] = set()  # partitions whose files another holder works on: not to be loaded
        self._duplicates = Duplicates(self.registry, self._doomed, files)
        self._owns_scheduler = scheduler is None
        self.scheduler: Scheduler = ThreadScheduler(clock) if scheduler is None else scheduler
        self._tasks = BackgroundTasks(self.scheduler, self._is_running)
        wait_for_dropped()
        paths = absolute_paths(log_dirs)
        raises = self.settings.on_demand and len(paths) == 1  # no other directory could serve
        directories = self.directories_class(paths, files, self.failure_channel, raises=raises)
        cleaner = self.settings.cleaner if self.settings.maintenance else None
        self._cleaning = Cleaning(cleaner, directories, self.registry, clock, self.metrics)
        self.directories = directories
        try:
            check_taken_over(directories.paths, files, take_over=take_over)
            directories.hold()
            self.metrics.show(directories, gauges_of_directories)
            belongs_here(self)
            directories.cordon(self.settings.cordoned_log_dirs)
            self.topic_configs = topic_configs or self._stored_configs()
            self._make_parts()
            if take_over and any(is_of_cluster(path, files) for path in directories.paths):
                self._contexts.base_of = _keeping  # only the cluster knows the topics' settings
        except BaseException:
            self.abandon()
            raise

    def _stored_configs(self) -> StoredTopicConfigs:
        failed = self.failure_channel
        return StoredTopicConfigs(
            self.directories.live, self.files, failed.maybe_add_offline_log_dir, passes=failed.passes
        )

    def keep_topics(self) -> StoredTopicConfigs:
        """Returns the topics' settings that are stored with the data.

        Reads them now if this manager was given another source so far.  Raises CorruptCheckpointException,
        KafkaStorageException.
        """
        with self.changes.lock:
            found = self.topic_configs
            if not isinstance(found, StoredTopicConfigs):
                found = self._stored_configs()
                self._contexts.set_topic_configs(found)
                self._failures.topic_configs = found
                self.topic_configs = found
            return found

    def _make_parts(self) -> None:
        contexts = self._contexts = LogContexts(
            self.settings,
            self.topic_configs,
            self.scheduler,
            self.clock,
            self.failure_channel,
            self.files,
            self.metrics,
        )
        directories, registry, cleaning, doomed = self.directories, self.registry, self._cleaning, self._doomed
        self._start = Start(contexts, directories, registry, self._duplicates, doomed, cleaning, self._jobs)
        self._maker = LogMaker(contexts, directories, registry, self.changes, self._leftovers)
        self._moves = Moves(directories, registry, cleaning, doomed, self._leftovers, contexts)
        self._removals = Removals(directories, registry, cleaning, doomed)
        self._failures = Failures(directories, registry, cleaning, doomed, self.topic_configs)
        self._housekeeping = Housekeeping(registry, cleaning, self.clock)
        self._end = End(self._start, directories, registry, self._jobs, self.settings)

    def disown(self) -> None:
        """Resets the manager in a forked child.  The parent keeps the locks and the logs."""
        self._state = _FORKED
        self.changes.disown()
        self.registry.disown()
        self.directories.disown()
        self._jobs.disown()
        self._doomed.disown()

    def __enter__(self) -> Self:
        if self._state is _NEW:
            self.startup()
        return self

    def close(self) -> None:
        """Shuts the manager down, as the end of a `with` block does."""
        self.shutdown()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # modules may be empty by then
        state = getattr(self, "_state", _CLOSED)
        if state in (_CLOSED, _FORKED) or not hasattr(self, "directories") or is_finalizing():
            return
        if state is _LOST and not self._has_started:
            return  # its start failed, and has released everything
        try:
            warnings.warn(
                f"{self!r} was dropped without being shut down; use it as `with LogManager(...) as manager:`, or call "
                "its shutdown()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
        finally:
            let_go_later(self.abandon)

    def __repr__(self) -> str:
        return f"<LogManager of {self.directories.shown}, {self._state}>"

    def _is_running(self) -> bool:
        return self._state is _RUNNING

    def _check(self) -> None:
        """Raises an error if this manager is not running."""
        if self._state is _RUNNING:
            return
        what = f"the manager of {self.directories.shown}"
        if self._state is _FORKED:
            raise opened_elsewhere(what, self._pid)
        self._check_not_lost()
        if self.refusal is not None:
            raise self.refusal()
        raise IllegalStateException(
            f"{what} is {'not started' if self._state is _NEW else self._state}",
            hint=_WHAT_TO_DO.get(self._state, "create another one"),
        )

    def _check_not_lost(self) -> None:
        if self._state is _LOST:
            raise self.directories.lost()

    def all_logs(self) -> list[UnifiedLog]:
        """Returns all loaded logs, future ones included."""
        self._settle_to_look()
        return self.registry.all_logs()

    def _settle_to_look(self) -> None:
        """Finishes an interrupted change before a look-up.  NoLiveLogDirException."""
        self._check_not_lost()
        if self.changes.cut_short:
            self.changes.settle()

    # --- start ---------------------------------------------------------------------------------------

    def startup(
        self,
        is_stray: IsStray | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Loads all logs, recovers those that were not closed cleanly, and begins the background tasks.

        An error other than a disk's fails the start, and everything is released.

        Args:
            is_stray: Called with each loaded log; returns whether the log belongs to no topic.  The directory of such
                a log is renamed `-stray`.
            progress: Called by the loading threads with the progress so far.

        Raises:
            IllegalStateException: The manager was already started, or was shut down while it started.
            NoLiveLogDirException: All directories have failed.
            KafkalogError: A log cannot be loaded.
        """
        with self.changes.lock:
            if self._state is not _NEW:
                self._check()
                raise IllegalStateException(f"{self!r} was started already")
            self._state = _STARTING
        with self._starting:
            self._begin(is_stray or (lambda log: False), progress)

    def _begin(self, is_stray: IsStray, progress: Progress | None) -> None:
        try:
            if self._owns_scheduler:
                self.scheduler.startup()
            if self.settings.keeps_house:
                listen_weakly(self)
            loaded = self._start.load(is_stray, progress)
            self._check_not_stopped()
            self._start.finish(loaded)
            with self.changes.lock:
                self._check_not_stopped()
                self._state = _RUNNING
            self._settle_failures()
            self._schedule()
            self._start_cleaner()
            self._has_started = True
        except BaseException:
            was_lost = self._state is _LOST
            self.abandon()
            if was_lost:
                self._state = _LOST
            raise

    def _start_cleaner(self) -> None:
        if self._cleaning.cleaner is not None:
            self.directories.make_cleaner_offsets()
            self._cleaning.cleaner.startup()

    def _check_not_stopped(self) -> None:
        if self._jobs.stopped:
            raise IllegalStateException(f"{self!r} was shut down while it started")

    # --- background ----------------------------------------------------------------------------------

    def _schedule(self) -> None:
        settings, delay_ms = self.settings, self.settings.initial_task_delay_ms
        if not settings.keeps_house:
            return
        every: list[tuple[str, Callable[[], object], int]] = [
            ("kafka-log-flusher", self.flush_dirty_logs, settings.flush_check_ms),
            ("kafka-recovery-point-checkpoint", self.checkpoint_recovery_points, settings.recovery_checkpoint_ms),
            ("kafka-log-start-offset-checkpoint", self.checkpoint_log_starts, settings.start_checkpoint_ms),
            ("highwatermark-checkpoint", self.checkpoint_high_watermarks, settings.high_watermark_checkpoint_ms),
        ]
        if settings.maintenance:
            every.insert(0, ("kafka-log-retention", self.cleanup_logs, settings.retention_check_ms))
        for name, task, period_ms in every:
            self._tasks.every(name, task, delay_ms, period_ms)
        self._tasks.once("kafka-delete-logs", self._delete_logs, delay_ms)

    def cleanup_logs(self) -> int:
        """Deletes old segments of the logs that are not compacted, and of their future logs (kafka-log-retention).

        Returns:
            The number of segments that were deleted.

        Raises:
            KafkalogError: A log failed.  It is raised when the other logs are done.
        """
        self._check()
        return self._housekeeping.cleanup()

    def flush_dirty_logs(self) -> None:
        """Flushes the logs whose last flush is at least flush.ms ago (kafka-log-flusher)."""
        self._check()
        self._housekeeping.flush_dirty(self.all_logs())

    def checkpoint_recovery_points(self) -> None:
        """Writes the recovery points of all logs, one file a directory (kafka-recovery-point-checkpoint)."""
        self._check()
        for log_dir in self.directories.live:
            self.directories.checkpoint_recovery_points(log_dir, self.registry)

    def checkpoint_log_starts(self) -> None:
        """Writes the starts of logs that start inside their first segment (kafka-log-start-offset-checkpoint)."""
        self._check()
        for log_dir in self.directories.live:
            self.directories.checkpoint_log_starts(log_dir, self.registry)

    def checkpoint_high_watermarks(self) -> None:
        """Writes the high watermarks of all logs (highwatermark-checkpoint; in Kafka ReplicaManager does it)."""
        self._check()
        for log_dir in self.directories.live:
            self.directories.checkpoint_high_watermarks(log_dir, self.registry)

    def _delete_logs(self) -> None:
        """Deletes logs that were renamed `-delete` long enough ago, and schedules itself again (kafka-delete-logs)."""
        delay_ms = self._contexts.default_config.file_delete_delay_ms
        wait_ms = max(delay_ms, 1)
        try:
            if self.changes.cut_short:
                self.changes.settle()  # a removal must be complete before its directory is deleted
            self._tidy()
            wait_ms = self._doomed.delete_due(delay_ms)
        except Exception:
            Lines(LOGGER).exception("Exception in kafka-delete-logs thread.")
        finally:
            self._tasks.once("kafka-delete-logs", self._delete_logs, wait_ms)

    def _tidy(self) -> None:
        if self._leftovers:
            with self.changes.lock:
                self._leftovers.settle_if_possible()

    def _delete_in_time(self) -> None:
        """Schedules the deletion of a log that was just renamed `-delete`.

        Kafka's task kafka-delete-logs alone would be late: it first runs `initial_task_delay_ms` after the start, and
        then only when the logs that it saw are due.
        """
        self._tasks.once("kafka-delete-logs", self._delete_due, self._contexts.default_config.file_delete_delay_ms)

    def _delete_due(self) -> None:
        if self.changes.cut_short:
            self.changes.settle()
        self._tidy()
        self._doomed.delete_due(self._contexts.default_config.file_delete_delay_ms)

    # --- failure -------------------------------------------------------------------------------------

    def _on_failure(self, log_dir: str) -> None:
        """Schedules the handling of a failure.  An error at the start is handled at the end of the start.

        The thread that met the error calls it, perhaps with a partition's lock held.
        """
        if self._state is _RUNNING:
            self._tasks.once("log-dir-failure-handler", self._settle_failures, _FIRST_OF_ALL_MS)

    def _settle_failures(self) -> None:
        for log_dir in self.failure_channel.offline_log_dirs:
            self.handle_log_dir_failure(log_dir)

    def handle_log_dir_failure(self, log_dir: str) -> None:
        """Takes a failed directory out: its partitions are offline, and the other directories continue.

        May be called again.

        Args:
            log_dir: The directory.  The call does nothing if it is not live.

        Raises:
            NoLiveLogDirException: It was the last directory.  From then on every call on logs raises this; Kafka's
                broker halts instead.
        """
        with self.changes.lock:
            if self._state is not _RUNNING or log_dir not in self.directories.live:
                return
            self.changes.settle()
            self._failures.take_out(log_dir)
            self._check_live()

    def _check_live(self) -> None:
        if not self.directories.live:
            self._state = _LOST
            Lines(LOGGER).critical("all log dirs in %s have failed", self.directories.shown)
            raise self.directories.lost()

    # --- the end -------------------------------------------------------------------------------------

    def shutdown(self, broker_epoch: int = -1) -> None:
        """Closes all logs, writes the checkpoints, and releases the locks in any case.

        Each log is trimmed and flushed, and its producers' snapshot is written.  A directory in which all of this went
        well gets the clean-shutdown marker.  The call waits for running appends and refuses later ones.  A second call
        does nothing.  A call while `startup` is running ends the start, which raises IllegalStateException when it has
        released everything, and does not wait for it.

        Args:
            broker_epoch: The broker's epoch to write into the markers.  -1 for none.

        Raises:
            IllegalStateException: A signal handler called it in the middle of a change of a log.  Raise SystemExit in
                the handler, or set a flag.
            KafkalogError: A log was not closed in order.  The first error is raised when all is done.
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
                if self._state is _CLOSING:  # otherwise another thread was faster
                    self.changes.settle()
                    self._leftovers.settle_if_possible()
                    error = self._end.close_all(broker_epoch)
        finally:
            self.abandon()
        if error is not None:
            raise error

    def check_outside(self) -> None:
        """Raises IllegalStateException if this thread is in the middle of an operation on a log.

        This happens in a signal handler or a finalizer; other threads would wait for this one.
        """
        if self._state is _RUNNING:
            self._cleaning.check_outside()
            for log in self._doomed.logs():
                if log.lock.is_mine():
                    raise log.is_inside()

    def abandon(self) -> None:
        """Releases files and locks like a crash, and writes nothing.  The next start recovers what is left.

        Waits for threads that still write.  Raises IllegalStateException as `shutdown`.
        """
        if self._state in (_CLOSED, _FORKED):
            return
        self.check_outside()
        self._jobs.stop()  # its threads write
        self._cleaning.stop()  # its threads write too
        self._tasks.cancel()
        if self._owns_scheduler:
            self.scheduler.shutdown()
        self.metrics.hide(self.directories)
        with self.changes.lock:
            self._state = _LEAVING
            self._let_go()
            self._state = _CLOSED

    def _let_go(self) -> None:
        for log in [*self.registry.all_logs(), *self._doomed.logs(), *self._leftovers.logs()]:
            log.close_quietly()
        self._duplicates.close_quietly()
        self.directories.unlock()


def _keeping(topic: str, default: LogConfig) -> LogConfig:
    """Returns defaults that keep all records, for a topic whose settings are unknown here."""
    return LogConfig.from_props({**default.originals, **KEEPS_ALL})


def listen_weakly(manager: ManagerLife) -> None:
    """Subscribes to failures by a weak reference, because the channel, which every log holds, outlives the manager."""
    found = weakref.ref(manager)

    def on_failure(log_dir: str) -> None:
        own = found()
        if own is not None:
            own._on_failure(log_dir)

    manager.failure_channel.listen(on_failure)
