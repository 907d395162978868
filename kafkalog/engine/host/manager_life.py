"""A manager's life: directories are held, logs loaded, the house kept, failed disks left, and all closed at the end.

What is asked of the logs meanwhile is LogManager's.  This makes the parts, knows the state, and calls the parts in
order; a part knows what it works on, and no manager:

    the start      Start (on LogContexts)            a failure     Failures
    background     Housekeeping, DoomedLogs          the end       End; what is left is let go

A LogCleaner compacts in threads of its own (`cleaning`), from the start's end to the first step of the shutdown.

By itself it does what a broker has other parts for: the handler of failed directories, the high watermarks' file
(as a partition's only replica, so that they follow the log end), unknown folders are told and passed over, a move that
a crash cut short between its two renames is finished.

Locks: `_starting` is held by the thread that starts, for all of the start; a shutdown asks whether it is, and nobody
waits for it.  `changes.lock` (Kafka's logCreationOrDeletionLock; `LogManager.creation`) is held for a step of the state
that others may take too (`_CLOSING` is looked at again under it), while a failed directory is taken out, and while all
is closed, or let go; it is taken before a partition's lock.  At the end cleaner and scheduler are stopped, and their
threads waited for, without it.
From `_LEAVING` on nothing is written: the directories may be another's.
Background tasks are methods of the manager, which they know weakly, so that one that is dropped lets go.
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

# A manager's life; LOST: no directory is left.
_NEW, _STARTING, _RUNNING, _LOST, _FORKED = "new", "starting", "running", "lost", "forked"
_FIRST_OF_ALL_MS = -86_400_000  # before what the scheduler is behind with
_CLOSING, _LEAVING, _CLOSED = "closing", "closing and letting go", "closed"

_WHAT_TO_DO = {_NEW: "startup() or `with` starts it", _STARTING: "wait for startup()"}


class ManagerLife(Closing):
    """What LogManager is below its door."""

    # The classes of two parts with which `_make_parts` makes the others.
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
        """Makes what is missing of `log_dirs`, takes their locks and reads their ids; loads nothing yet.

        `topic_configs`: where topics' overrides are; by default a file beside the data (`set_topic_config` writes it).
        A directory of a Kafka broker (it has `meta.properties`) is taken only with `take_over=True`, in the broker's
        place.  Nothing is deleted or compacted there of a topic without overrides in `topic_configs` that say so.
        `scheduler`: by default threads of its own.  `metrics`: where this and all its logs show what they count.

        IllegalArgumentException for settings out of Kafka's ranges; LogDirLockedException when a broker or another
        process holds a directory; KafkaException when two are the same; IllegalArgumentException, and nothing is made,
        for a folder that holds other things and nothing of a log directory;
        a directory that the disk refuses is offline from the start; NoLiveLogDirException when all are.
        """
        # More than eight parameters: each but `log_dirs` may be left out, and is given by its name.
        if metrics is not None and not isinstance(metrics, MetricsRegistry):
            raise IllegalArgumentException(
                f"metrics: found {values.shown(metrics)}, expected a kafkalog.metrics.MetricsRegistry"
            )
        take_over = values.flag(take_over, "take_over")
        self.settings = ManagerSettings.checked(ManagerSettings() if settings is None else settings)
        self.refusal: Callable[[], Exception] | None = None  # a store's error, in place of ours
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
        self._as_all = AS_ALL  # what logs are opened with that nobody opens for himself
        self.lent: set[TopicPartition] = set()  # whose folders others work on: they are loaded for nobody
        self._duplicates = Duplicates(self.registry, self._doomed, files)
        self._owns_scheduler = scheduler is None
        self.scheduler: Scheduler = ThreadScheduler(clock) if scheduler is None else scheduler
        self._tasks = BackgroundTasks(self.scheduler, self._is_running)
        wait_for_dropped()
        paths = absolute_paths(log_dirs)
        raises = self.settings.on_demand and len(paths) == 1  # there is nothing to go on with
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
                self._contexts.base_of = _keeping  # the cluster knows the topics' settings, and nobody here
        except BaseException:
            self.abandon()
            raise

    def _stored_configs(self) -> StoredTopicConfigs:
        failed = self.failure_channel
        return StoredTopicConfigs(
            self.directories.live, self.files, failed.maybe_add_offline_log_dir, passes=failed.passes
        )

    def keep_topics(self) -> StoredTopicConfigs:
        """The topics' settings beside the data, which are read now where this manager was told others so far.
        CorruptCheckpointException, KafkaStorageException."""
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
        """In a forked child: the locks let go by themselves, the logs as well."""
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
        """`shutdown`, as the end of a `with` block calls it."""
        self.shutdown()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # modules may be empty by then
        state = getattr(self, "_state", _CLOSED)
        if state in (_CLOSED, _FORKED) or not hasattr(self, "directories") or is_finalizing():
            return
        if state is _LOST and not self._has_started:
            return  # its start failed, and let go of everything
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
        """Raises where this manager does nothing (any more)."""
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
            hint=_WHAT_TO_DO.get(self._state, "make another one"),
        )

    def _check_not_lost(self) -> None:
        if self._state is _LOST:
            raise self.directories.lost()

    def all_logs(self) -> list[UnifiedLog]:
        """All logs, future ones included."""
        self._settle_to_look()
        return self.registry.all_logs()

    def _settle_to_look(self) -> None:
        """Before a look at what there is: makes whole what was cut short.  NoLiveLogDirException."""
        self._check_not_lost()
        if self.changes.cut_short:
            self.changes.settle()

    # --- start ---------------------------------------------------------------------------------------

    def startup(
        self,
        is_stray: IsStray | None = None,
        progress: Progress | None = None,
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
        """kafka-log-retention: deletes old segments of the logs that are not compacted, and of their future logs; how
        many.  A log that fails is told when the others are done."""
        self._check()
        return self._housekeeping.cleanup()

    def flush_dirty_logs(self) -> None:
        """kafka-log-flusher: flushes the logs whose last flush is flush.ms ago."""
        self._check()
        self._housekeeping.flush_dirty(self.all_logs())

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

    def _delete_logs(self) -> None:
        """kafka-delete-logs: what was renamed `-delete` long enough ago; then again when the next one is due."""
        delay_ms = self._contexts.default_config.file_delete_delay_ms
        wait_ms = max(delay_ms, 1)
        try:
            if self.changes.cut_short:
                self.changes.settle()  # a removal's folder must not go before its name
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
        """What was just renamed `-delete` goes as soon as it has waited long enough.  kafka-delete-logs, as Kafka has
        it, begins `initial_task_delay_ms` behind the start, and then comes by when what it saw is due."""
        self._tasks.once("kafka-delete-logs", self._delete_due, self._contexts.default_config.file_delete_delay_ms)

    def _delete_due(self) -> None:
        if self.changes.cut_short:
            self.changes.settle()
        self._tidy()
        self._doomed.delete_due(self._contexts.default_config.file_delete_delay_ms)

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
            self._failures.take_out(log_dir)
            self._check_live()

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
                    self._leftovers.settle_if_possible()
                    error = self._end.close_all(broker_epoch)
        finally:
            self.abandon()
        if error is not None:
            raise error

    def check_outside(self) -> None:
        """IllegalStateException in a thread that is inside of a log, by a signal handler or a finalizer: others would
        wait for it."""
        if self._state is _RUNNING:
            self._cleaning.check_outside()
            for log in self._doomed.logs():
                if log.lock.is_mine():
                    raise log.is_inside()

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
        for log in [*self.registry.all_logs(), *self._doomed.logs(), *self._leftovers.logs()]:
            log.close_quietly()
        self._duplicates.close_quietly()
        self.directories.unlock()


def _keeping(topic: str, default: LogConfig) -> LogConfig:
    """The defaults of a topic whose own settings nobody here knows: with them all its records stay."""
    return LogConfig.from_props({**default.originals, **KEEPS_ALL})


def listen_weakly(manager: ManagerLife) -> None:
    """The channel, which every log holds, must not keep its manager."""
    found = weakref.ref(manager)

    def on_failure(log_dir: str) -> None:
        own = found()
        if own is not None:
            own._on_failure(log_dir)

    manager.failure_channel.listen(on_failure)
