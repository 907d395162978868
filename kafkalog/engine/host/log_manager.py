"""LogManager: the partitions of several log directories.  It finds, creates, moves and deletes logs.

Mirrors org.apache.kafka.storage.internals.log.LogManager (4.4.0).  The constructor validates and locks the directories.
`startup` loads every log (`loading`) and begins the background tasks.  `shutdown` closes all logs, and writes the
clean-shutdown marker if all went well.  A checkpoint file covers a directory, not a partition.  UnifiedLog does the
work on a log; HeldDirectory does the work on a directory's own files.

This module is the entry point: it checks the arguments, checks the manager's state (ManagerLife, its base class), and
acquires the lock.  Parts do the work: LogMaker creates logs, `truncating` truncates them, Moves moves them, and
Removals removes them.  Code that truncates, moves or removes a log first makes the cleaner leave that log.

Locks: `creation` (Kafka's logCreationOrDeletionLock, `changes`) is held to create, move or remove logs, and by
`set_topic_config`.  It is acquired before a partition's lock.  A move's turn (`switching`) is acquired before it.
Look-ups acquire no lock.  If an interrupt cuts a change short, the next call finishes the change.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

from kafkalog import _shown
from kafkalog._native.state.log_end import CLOSING
from kafkalog.config import CleanerConfig, LogConfig
from kafkalog.engine.cleaner.log_cleaner import LogCleaner
from kafkalog.engine.cleaner.uncleanable import Uncleanable
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names, values
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import checked_topic_id, topic_id_of
from kafkalog.engine.host.loading import LoadProgress
from kafkalog.engine.host.log_contexts import AS_ALL, Opening
from kafkalog.engine.host.log_directories import LOGGER, absolute_path
from kafkalog.engine.host.manager_life import ManagerLife
from kafkalog.engine.host.moves import Move, MoveProgress
from kafkalog.engine.host.registry import WaitingLog
from kafkalog.engine.host.removing import Removal
from kafkalog.engine.host.topic_configs import StoredTopicConfigs, checked_overrides
from kafkalog.engine.host.truncating import cut, refuse_copied, refuse_parting, restart
from kafkalog.engine.log.damage import Damage, refuse
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import (
    DiskFull,
    IllegalArgumentException,
    IllegalStateException,
    InconsistentTopicIdException,
    KafkalogError,
    KafkaStorageException,
    LogCleaningAbortedException,
    TooManyOpenFilesException,
)

if TYPE_CHECKING:
    from typing import Unpack

    from kafkalog.engine.cleaner.passes import CompactionStats, CompactOptions
    from kafkalog.engine.cleaner.states import Pause

T = TypeVar("T")
_WITH_LINE: Mapping[str, Callable[[WaitingLog, int | None], WaitingLog]] = {
    names.RECOVERY_POINT_CHECKPOINT_FILE: lambda waiting, offset: waiting._replace(recovery_point=offset),
    names.LOG_START_OFFSET_CHECKPOINT_FILE: lambda waiting, offset: waiting._replace(log_start_offset=offset),
    names.HIGH_WATERMARK_CHECKPOINT_FILE: lambda waiting, offset: waiting._replace(high_watermark=offset),
}


class LogManager(ManagerLife, _shown.Shown):
    """The logs of one or more log directories.

    As a context manager it starts at the beginning of the block and shuts down at its end.  Thread-safe.  It may only
    be used in the process that created it.  A manager that is dropped without `shutdown` releases its files with a
    ResourceWarning, and the next start recovers the logs.

    Example:
        >>> import tempfile
        >>> import kafkalog
        >>> with tempfile.TemporaryDirectory() as log_dir:
        ...     with kafkalog.LogManager(log_dir) as manager:
        ...         log = manager.get_or_create_log("orders-0")
        ...         print(log.topic_partition, log.log_end_offset, sorted(manager.topics()))
        orders-0 0 ['orders']
    """

    # --- directories ---------------------------------------------------------------------------------

    @property
    def live_log_dirs(self) -> list[str]:
        """The directories that are online, in the order in which they were given."""
        return list(self.directories.live)

    @property
    def offline_log_dirs(self) -> list[str]:
        """The directories that are offline because their disk failed."""
        return self.directories.offline

    @property
    def directory_ids(self) -> dict[str, str]:
        """The ids of the live directories that have one: a Uuid of 22 characters."""
        return dict(self.directories.ids)

    def is_log_dir_online(self, log_dir: str | os.PathLike[str]) -> bool:
        """Returns whether a directory is online.

        Args:
            log_dir: One of the directories of this manager.

        Returns:
            True if it is online; False after its disk failed.

        Raises:
            LogDirNotFoundException: `log_dir` is not a directory of this manager.
        """
        return self.directories.is_online(absolute_path(log_dir))

    def next_log_dirs(self) -> list[str]:
        """Returns the directories to try for a new partition, in order.

        These are the live directories that are not cordoned, the fewest logs first.  If all are cordoned, it is the
        first live one.

        Returns:
            The paths.

        Raises:
            NoLiveLogDirException: No directory is online.
        """
        self._check_not_lost()
        return self.directories.next_for_a_partition(self.registry.counts_by_dir())

    def broker_epoch_at_shutdown(self) -> int | None:
        """Returns the broker epoch in the clean-shutdown markers.

        Returns None unless all directories are live and agree.  Call it before `startup`, which removes the markers.

        Returns:
            The epoch, or None.
        """
        if self.offline_log_dirs:
            return None
        epochs = {held.marker.read() for held in self.directories.live.values()}
        return epochs.pop() if len(epochs) == 1 else None

    @property
    def load_progress(self) -> LoadProgress | None:
        """The progress of a running `startup`; None if none is running."""
        return self._start.progress

    # --- logs ----------------------------------------------------------------------------------------

    def get_log(self, topic_partition: str | TopicPartition, *, is_future: bool = False) -> UnifiedLog | None:
        """Returns the log of a partition, and loads it if it is not loaded yet.

        Args:
            topic_partition: A TopicPartition, or its name such as "orders-0".
            is_future: Look for the unfinished copy of a move instead of the current log.

        Returns:
            The log; None if there is none, or if its directory is offline.

        Raises:
            IllegalStateException: The manager is not running.
            NoLiveLogDirException: All directories have failed.

        Example:
            >>> import tempfile
            >>> import kafkalog
            >>> with tempfile.TemporaryDirectory() as log_dir, kafkalog.LogManager(log_dir) as manager:
            ...     log = manager.get_or_create_log("orders-0")
            ...     print(manager.get_log("orders-0") is log, manager.get_log("orders-1"))
            True None
        """
        partition = names.partition_of(topic_partition)
        self._check()
        if self.changes.cut_short:
            self.changes.settle()
        log = self.registry.get(partition, is_future=is_future)
        return log or self._load_waiting(partition, is_future=is_future)

    def cut_nothing(self) -> None:
        """Makes later loads of logs fail if their recovery would truncate damaged records."""
        self.tell_cuts(refuse)

    def tell_cuts(self, tell: Callable[[Damage], None] | None) -> None:
        """Sets a callback for truncations in logs that are loaded from now on.

        A recovery calls `tell` before each truncation.  An exception that `tell` raises ends the load, and a start.

        Args:
            tell: The callback, which gets the damage; None sets no callback.
        """
        self._as_all = self._start.opening = AS_ALL._replace(on_damage=tell)

    def _load_waiting(
        self, partition: TopicPartition, opening: Opening | None = None, *, is_future: bool = False
    ) -> UnifiedLog | None:
        """Loads a log that is not loaded yet.  Returns None if there is none."""
        opening = opening or self._as_all
        if self.registry.waiting(partition, is_future=is_future) is None:
            return self.registry.get(partition, is_future=is_future)
        with self.changes.lock:
            self._check()
            self.changes.settle()
            if partition in self.lent:
                raise KafkaStorageException(
                    f"{partition} of {self.directories.shown} is lent: another holder works on its files, and no log "
                    "may be open"
                )
            waiting = self.registry.waiting(partition, is_future=is_future)
            if waiting is None:
                return self.registry.get(partition, is_future=is_future)  # another thread has loaded it
            change = functools.partial(self._start.load_waiting, partition, opening, is_future=is_future)
            again = functools.partial(self._start.finish_loading, partition, is_future=is_future)
            try:
                self.changes.whole(change, again=again)
            except OSError as error:
                if isinstance(error, KafkalogError):
                    raise
                message = f"Error while loading log dir {waiting.folder}"
                raise self.failure_channel.failed(waiting.log_dir, message, error) from error
            return self.registry.get(partition, is_future=is_future)

    def topics(self) -> set[str]:
        """Returns the topics that have a log, loaded or not.

        Returns:
            The names.

        Raises:
            NoLiveLogDirException: All directories have failed.
        """
        self._settle_to_look()
        return self.registry.topics()

    def topic_ids(self, topic: str, numbers: Iterable[int] | None = None) -> Iterator[str | None]:
        """Yields the topic ids of the partitions of a topic; None for a partition that has none.

        Each id is read when it is requested.  Loads no log.

        Args:
            topic: The topic's name.
            numbers: The numbers of the partitions to read, in that order.  All partitions by default.

        Yields:
            The ids, in the order of `numbers`.

        Raises:
            CorruptCheckpointException: A `partition.metadata` file cannot be read.
            OSError: The disk failed.
        """
        for number in self.registry.numbers_of(topic) if numbers is None else numbers:
            partition = TopicPartition(topic, number)
            waiting, log = self.registry.waiting(partition), self.registry.get(partition)
            if log is not None:
                yield log.topic_id
            else:  # None if the partition was removed meanwhile
                yield None if waiting is None else topic_id_of(waiting.folder, self.files)

    def log_to_change(self, partition: TopicPartition) -> UnifiedLog | None:
        """Returns a log for a caller whose log refuses changes, as `get_log`.

        Waits for the last step of a move or a deletion, and finishes a change that was interrupted.

        Args:
            partition: The partition.

        Returns:
            The log, or None as for `get_log`.
        """
        log = self.registry.get(partition)
        if log is not None and log.local_log.life == CLOSING:
            self.changes.settle()
            log = self.registry.get(partition)
        return log or self._load_waiting(partition)

    def logs_by_topic(self, topic: str) -> list[UnifiedLog]:
        """Returns the current and future logs of a topic, and loads those that are not loaded yet.

        Args:
            topic: The topic's name.

        Returns:
            The logs.
        """
        self._settle_to_look()
        for partition in self.registry.waiting_of(topic):
            self._load_waiting(partition)
        return self._open_logs_of(topic)

    def _open_logs_of(self, topic: str) -> list[UnifiedLog]:
        return [*self.registry.of_topic(topic), *self.registry.futures_of(topic)]

    def get_or_create_log(
        self,
        topic_partition: str | TopicPartition,
        *,
        is_new: bool = False,
        is_future: bool = False,
        topic_id: str | None = None,
        log_dir: str | os.PathLike[str] | None = None,
    ) -> UnifiedLog:
        """Returns the log of a partition, and creates it if it is missing.

        Args:
            topic_partition: A TopicPartition, or its name such as "orders-0".
            is_new: The caller knows that the partition is not in a directory that is offline.
            is_future: Create the copy for a move instead of the current log.
            topic_id: The topic's id (a Uuid of 22 characters), written if the log has none.
            log_dir: The directory for a new log.  By default the preferred directory, or the live one with the fewest
                logs.

        Returns:
            The log.

        Raises:
            KafkaStorageException: A directory is offline and `is_new` is False, or the disk failed.
            InconsistentTopicIdException: The log has another topic's id.
            IllegalArgumentException: `topic_id` is no topic id.
            IllegalStateException: The manager is not running.

        Example:
            >>> import tempfile
            >>> import kafkalog
            >>> with tempfile.TemporaryDirectory() as log_dir, kafkalog.LogManager(log_dir) as manager:
            ...     print(manager.get_or_create_log("orders-0").log_end_offset)
            0
        """
        partition = names.partition_of(topic_partition)
        if topic_id is not None:
            topic_id = checked_topic_id(topic_id)  # an invalid id on the disk would fail the next start
        preferred = None if log_dir is None else absolute_path(log_dir)
        with self.changes.lock:
            self._check()  # under the lock: a shutdown may have come first
            self.changes.settle()
            log = self.registry.get(partition, is_future=is_future)
            log = log or self._load_waiting(partition, is_future=is_future)
            if log is None:
                opening = self._as_all._replace(topic_id=topic_id)
                log = self._maker.make(partition, preferred, opening, is_new=is_new, is_future=is_future)
            if topic_id is not None and log.topic_id is not None and topic_id != log.topic_id:
                raise InconsistentTopicIdException(
                    f"Tried to assign topic ID {topic_id} to log for topic partition {partition},"
                    f"but log already contained topic ID {log.topic_id}"
                )
            return log

    def open_log(self, partition: TopicPartition, opening: Opening) -> UnifiedLog:
        """Opens the log of a partition for one user, with the user's settings, and creates it if it is missing.

        It raises the errors of `get_or_create_log`, and those that `opening.on_damage` raises.

        Args:
            partition: The partition.
            opening: How the log is opened: its settings, and the callback for damage.

        Returns:
            The log.
        """
        with self.changes.lock:
            self._check()
            self.changes.settle()
            log = self._load_waiting(partition, opening)
            if log is None:
                log = self._maker.make(partition, None, opening, is_new=True, is_future=False)
            return log

    def close_log(self, partition: TopicPartition, *, clean: bool) -> None:
        """Closes a partition's log if it is open.

        The next request loads it again.

        Args:
            partition: The partition.
            clean: True if the user of the log reports that all went well; the log may be closed already. If False, the
                log is released, and the next load recovers it.

        Raises:
            KafkaStorageException: The disk refuses the end of the log, or the checkpoints.
        """
        with self.changes.lock:
            if not self._is_running():
                return
            self.changes.settle()
            log = self.registry.get(partition)
            if log is None:
                self._wait_again(partition, clean=clean)
                return
            is_clean = False
            try:
                is_clean = clean and (log.local_log.is_closed or log.shut_down())
            finally:
                if not is_clean:
                    log.close_quietly()
                lines = (log.recovery_point, log.log_start_offset_to_checkpoint, log.high_watermark)
                self.registry.let_wait(partition, WaitingLog(log.parent_dir, log.dir, *lines, is_clean))
                self.registry.remove(log)
            if is_clean:
                self.checkpoint_now(log.parent_dir)

    def _wait_again(self, partition: TopicPartition, *, clean: bool) -> None:
        """Registers a partition's directory again after another holder has worked on its files."""
        waiting = self.registry.waiting(partition)
        log_dir = self.directories.paths[0] if waiting is None else waiting.log_dir
        folder = os.path.join(log_dir, str(partition))
        if self.files.is_dir(folder):
            waiting = waiting or WaitingLog(log_dir, folder, None, None, None, clean)
            self.registry.let_wait(partition, waiting._replace(clean=clean))
            return
        self.registry.forget_waiting(partition)
        if not clean:
            self._end.distrust(log_dir)

    def checkpoint_now(self, log_dir: str) -> None:
        """Writes the log start offsets and recovery points of a directory.

        Args:
            log_dir: The directory.

        Raises:
            KafkaStorageException: The disk failed.
        """
        if not self.directories.checkpoint(log_dir, self.registry, raises=True):
            message, cause = f"the checkpoints of {log_dir} were not written", self.failure_channel.cause(log_dir)
            if isinstance(cause, OSError):
                raise KafkaStorageException.because_of(cause, message) from cause
            raise KafkaStorageException(message) from cause

    def checkpoint_or_later(self, log_dir: str) -> None:
        """Calls `checkpoint_now` after work that is already done, as Kafka does.

        If the disk is full or descriptors run out, logs a warning; the next checkpoint, or the close, writes it.

        Args:
            log_dir: The directory.
        """
        try:
            self.checkpoint_now(log_dir)
        except (DiskFull, TooManyOpenFilesException) as error:
            Lines(LOGGER, log_dir).warning("the checkpoints of %s will be written later: %s", log_dir, error)

    def set_line(self, log_dir: str, name: str, partition: TopicPartition, offset: int | None) -> None:
        """Sets a partition's line in a checkpoint file, or removes it.

        The partition must have no open log, except for the cleaner's checkpoint.

        Args:
            log_dir: The directory.
            name: The name of the checkpoint file.
            partition: The partition.
            offset: The new offset; None removes the line.

        Raises:
            CorruptCheckpointException: The file cannot be read.
            KafkaStorageException: The disk failed.
        """
        lines = self.directories.must(log_dir).lines(name)
        if name in _WITH_LINE:
            waiting = self.registry.waiting(partition)
            folder = os.path.join(log_dir, str(partition))
            waiting = waiting or WaitingLog(log_dir, folder, None, None, None, False)
            self.registry.let_wait(partition, _WITH_LINE[name](waiting, offset))
        if lines.get(partition) == offset:
            return
        if offset is None:
            del lines[partition]
        else:
            lines[partition] = offset
        self.directories.write_lines(log_dir, name, lines)

    def had_clean_shutdown(self, log_dir: str) -> bool:
        """Returns whether the start found that a directory was closed cleanly, or was empty.

        Args:
            log_dir: The directory.

        Returns:
            True if its logs needed no recovery.
        """
        return bool(self._start.had_clean.get(log_dir)) or not self.registry.waiting_in(log_dir)

    def maybe_update_preferred_log_dir(self, topic_partition: str | TopicPartition, log_dir: str) -> None:
        """Sets the directory for the partition's next log, unless its log or future log is already there.

        Args:
            topic_partition: A TopicPartition, or its name such as "orders-0".
            log_dir: One of the directories of this manager.

        Raises:
            LogDirNotFoundException: `log_dir` is not a directory of this manager.
            NoLiveLogDirException: All directories have failed.
        """
        partition, path = names.partition_of(topic_partition), absolute_path(log_dir)
        self._check_not_lost()
        self.is_log_dir_online(path)
        self._maker.prefer(partition, path)

    # --- configuration -------------------------------------------------------------------------------

    def set_topic_config(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Replaces a topic's overrides, on the disk and in its open logs.

        Args:
            topic: The topic's name.
            overrides: Kafka's topic keys and their values as text, such as `{"segment.bytes": "1048576"}`.

        Raises:
            ConfigException: A key is unknown, or a value is out of range.
            IllegalStateException: The manager was given other `topic_configs`.  Call `update_topic_config` instead.
            KafkaStorageException: No disk accepts the settings.

        Example:
            >>> import tempfile
            >>> import kafkalog
            >>> with tempfile.TemporaryDirectory() as log_dir, kafkalog.LogManager(log_dir) as manager:
            ...     log = manager.get_or_create_log("orders-0")
            ...     manager.set_topic_config("orders", {"retention.ms": "60000"})
            ...     print(log.config.retention_ms)
            60000
        """
        if not isinstance(self.topic_configs, StoredTopicConfigs):
            raise IllegalStateException("this manager's topic_configs are not stored with the data")
        overrides = checked_overrides(overrides)
        with self.changes.lock:  # if two threads set a topic, the later one wins, on disk and in the logs
            self._check()
            self.topic_configs.set(topic, overrides)
            self.update_topic_config(topic, overrides)

    def update_topic_config(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Gives the open logs of a topic these overrides, and stores nothing.

        Logs that are being created get them when they are ready.

        Args:
            topic: The topic's name.
            overrides: Kafka's topic keys and their values as text.

        Raises:
            ConfigException: A key is unknown, or a value is out of range.
        """
        self._check_not_lost()
        overrides = checked_overrides(overrides)
        new = self._contexts.config_with(topic, overrides)
        self._contexts.forget(topic)
        self.topic_config_updated(topic)
        for log in self._open_logs_of(topic):
            old = log.update_config(new)
            if old.compact and not new.compact:
                self._cleaning.abort(log.topic_partition)

    def tidy_up(self, topic: str) -> None:
        """Removes files that a creation or a move of the topic's partitions left behind.

        They are left if the disk was full or the process had no file descriptors.

        Args:
            topic: The topic's name.

        Raises:
            DiskFull: The disk is still full.
            TooManyOpenFilesException: The process still cannot open files.
        """
        with self.changes.lock:
            self._leftovers.settle(topic)

    def set_config_base(self, base_of: Callable[[str, LogConfig], LogConfig]) -> None:
        """Sets the source of the settings below a topic's overrides, for logs that are opened from now on.

        By default they are `default_config`.

        Args:
            base_of: A function of a topic's name and the default settings; it returns the topic's settings without
                overrides.
        """
        self._contexts.base_of = base_of

    def config_of(self, topic: str) -> LogConfig:
        """Returns a topic's settings, as logs that are opened from now on get them.

        Args:
            topic: The topic's name.

        Returns:
            The settings.
        """
        return self._contexts.config_of(topic)

    def config_with(self, topic: str, overrides: Mapping[str, str]) -> LogConfig:
        """Returns the settings that a topic would have with these overrides.

        Args:
            topic: The topic's name.
            overrides: The topic's settings by key.

        Returns:
            The settings.

        Raises:
            ConfigException: A value has the wrong type or is out of range.
        """
        return self._contexts.config_with(topic, overrides)

    def tell_of_logs(self, when_ready: Callable[[UnifiedLog], object]) -> None:
        """Calls `when_ready` with each log that is opened from now on, before any other code gets the log.

        Args:
            when_ready: The callback, which gets the log.
        """
        self._contexts.when_ready = when_ready

    def topic_config_updated(self, topic: str) -> None:
        """Makes the logs of a topic that are being created read its settings again when they are ready.

        Args:
            topic: The topic's name.
        """
        self._contexts.topic_updated(topic)

    @property
    def current_default_config(self) -> LogConfig:
        """The settings of topics without overrides."""
        return self._contexts.default_config

    def reconfigure_default_config(self, config: LogConfig) -> None:
        """Sets the defaults of logs that are opened from now on.

        Args:
            config: The new defaults.

        Raises:
            IllegalArgumentException: `config` is no LogConfig.
        """
        if not isinstance(config, LogConfig):
            raise IllegalArgumentException(f"config: found {values.shown(config)}, expected a LogConfig")
        self._contexts.set_default(config)

    @property
    def cleaner(self) -> LogCleaner | None:
        """The cleaner, which compacts logs; None if the settings have none."""
        return self._cleaning.cleaner

    def reconfigure_cleaner(self, config: CleanerConfig) -> None:
        """Gives the running cleaner other threads, memory or rates.

        Args:
            config: The cleaner's new settings.

        Raises:
            ConfigException: The number of threads is less than half or more than twice the current one, or
                `enable_cleaner` is False, which as in Kafka only a start can apply.
            IllegalStateException: The manager has no cleaner, or is not running.
            IllegalArgumentException: A value is out of range, as for `ManagerSettings.checked`.
        """
        self._check()
        self.check_outside()
        self._cleaning.reconfigure(config)

    def uncleanable_partitions(self) -> list[Uncleanable]:
        """Returns the compacted partitions that are not cleaned any more, each with the reason.

        Returns:
            The partitions. Empty if all can be compacted.
        """
        return self._cleaning.uncleanable

    def compact(
        self, log: UnifiedLog, config: CleanerConfig, *, rolls: bool = False, **options: Unpack[CompactOptions]
    ) -> CompactionStats:
        """Compacts a log of this manager now, in this thread.

        Works while the cleaner's threads are running, and also without a cleaner.

        Args:
            log: A log of this manager.
            config: The settings of the compaction.
            rolls: First close the active segment if it has records, so that they are compacted too.
            **options: As for `kafkalog.engine.cleaner.passes.compact`.

        Returns:
            The numbers of what the compaction read, wrote and removed.

        Raises:
            IllegalStateException: The manager is not running.
            LogCleaningAbortedException: Another operation on the log ended the compaction.
            KafkalogError: Other errors as for `kafkalog.engine.cleaner.passes.compact`.

        Example:
            >>> import tempfile
            >>> import kafkalog
            >>> from kafkalog.config import CleanerConfig
            >>> with tempfile.TemporaryDirectory() as log_dir, kafkalog.LogManager(log_dir) as manager:
            ...     manager.set_topic_config("prices", {"cleanup.policy": "compact"})
            ...     log = manager.get_or_create_log("prices-0")
            ...     print(manager.compact(log, CleanerConfig(), rolls=True).records)
            0
        """
        self._check()
        try:
            return self._cleaning.compact(log, config, self._check_goes_on, rolls=rolls, **options)
        except LogCleaningAbortedException:
            self._check()  # raises the manager's error if its shutdown ended the compaction
            raise

    def pause(self, partition: TopicPartition) -> Pause:
        """Returns a pause of a partition's compaction that has not begun (`cleaning`).

        Once it begins, a compaction of the partition stops, and the caller waits for that.

        Args:
            partition: The partition.

        Returns:
            The pause, a context manager.
        """
        return self._cleaning.pause(partition)

    def _check_goes_on(self) -> None:
        """Stops a compaction in order if the manager shuts down."""
        try:
            self._check()
        except KafkalogError as error:
            raise LogCleaningAbortedException("the manager is shutting down") from error

    # --- truncation ----------------------------------------------------------------------------------

    def truncate(self, log: UnifiedLog, offset: int) -> None:
        """Removes the records at and above an offset of a log of this manager.

        Args:
            log: A log of this manager.
            offset: The offset at which the log ends afterwards.

        Raises:
            IllegalArgumentException: The offset is inside a batch, or between the records of a transaction and its
                end, or the remote tier already has it.
            KafkaStorageException: The log was moved or deleted, or the disk refuses the checkpoints.
            IllegalStateException: The manager is not running.
        """
        offset = values.offset(offset, "target_offset")
        self._check()
        log.local_log.check_changeable()
        refuse_copied(log, offset)
        refuse_parting(log, offset)
        if 0 <= offset < log.recovery_point:
            # Before the truncation: new records may get these offsets, and they are not flushed.
            log.local_log.recovery_point = offset
            self.checkpoint_now(log.parent_dir)
        cut(self._cleaning, offset, True, log)
        self.checkpoint_now(log.parent_dir)

    def delete_old_segments(self, log: UnifiedLog) -> int:
        """Applies retention to a log of this manager now.

        If the disk has no room for the checkpoints, they are written later.

        Args:
            log: A log of this manager.

        Returns:
            The number of segments that were deleted.

        Raises:
            KafkaStorageException: The log was moved or deleted, or the disk failed.
            IllegalStateException: The manager is not running.
        """
        self._check()
        log.local_log.check_changeable()
        with self._cleaning.pause(log.topic_partition) as pause:
            pause.begin()
            count = log.delete_old_segments()
        self.checkpoint_or_later(log.parent_dir)
        return count

    def truncate_to(self, offsets: Mapping[TopicPartition, int], *, is_future: bool = False) -> None:
        """Removes the records at and above an offset, of several partitions.

        Args:
            offsets: Maps each partition to the offset at which it ends afterwards.  Partitions that the manager does
                not have are skipped.
            is_future: Truncate the future logs instead of the current ones.

        Raises:
            IllegalArgumentException: `offsets` is no mapping, or an offset is no offset.
            KafkaStorageException: The disk failed.
        """
        if not isinstance(offsets, Mapping):
            raise IllegalArgumentException(f"offsets: found {values.shown(offsets)}, expected partitions and offsets")
        self._check()
        affected: list[str] = []
        for partition, offset in {names.partition_of(it): offset for it, offset in offsets.items()}.items():
            offset = values.offset(offset, "target_offset")
            log, was_cut = self._change_log(partition, is_future, functools.partial(cut, self._cleaning, offset, False))
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
        """Removes all records of a partition.

        Its log continues at `new_offset`.

        Args:
            topic_partition: A TopicPartition, or its name such as "orders-0".
            new_offset: The offset of the next record.
            is_future: Change the future log instead of the current one.
            log_start_offset: The log start offset.  By default `new_offset`.

        Raises:
            IllegalArgumentException: `new_offset` is no offset.
            KafkaStorageException: The disk failed.
        """
        partition = names.partition_of(topic_partition)
        new_offset = values.offset(new_offset, "new_offset", low=0)
        log, _ = self._change_log(
            partition, is_future, functools.partial(restart, self._cleaning, new_offset, log_start_offset)
        )
        if log is not None:
            self.directories.checkpoint_recovery_points(log.parent_dir, self.registry)

    def _change_log(
        self, partition: TopicPartition, is_future: bool, change: Callable[[UnifiedLog], T]
    ) -> tuple[UnifiedLog | None, T | None]:
        """Changes a partition's log, or the new log if a move came between.  Returns (None, None) if there is none."""
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

    @property
    def creation(self) -> AbstractContextManager[object]:
        """The lock that is held to create, move and remove logs."""
        return self.changes.lock

    def replace_current_with_future_log(self, topic_partition: str | TopicPartition) -> None:
        """Puts the future log in the partition's place.

        The old log is deleted later.

        A crash between the two renames leaves both directories.  A note in the destination says which one counts, and
        the next start finishes the switch.

        Args:
            topic_partition: A TopicPartition, or its name such as "orders-0".

        Raises:
            KafkaStorageException: One of the two logs does not exist or is offline, or the disk failed.
            IllegalStateException: The manager is not running.
        """
        partition = names.partition_of(topic_partition)
        with self.changes.lock:
            self._check()
            self.changes.settle()
            source = self._load_waiting(partition)
            self._load_waiting(partition, is_future=True)
            if source is not None:
                source.settle()  # a log must not move in the middle of a change: the change ends first
            self.switch_to_future_log(partition)

    def switch_to_future_log(self, partition: TopicPartition) -> None:
        """Does the switch for a Move, which has claimed the current log's lock as `busy`.

        Args:
            partition: The partition.
        """
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
                # If the current log accepts changes again, it may have records that the future one does not have.
                if source.refuses_changes:
                    self._moves.replace(source, destination, given_up)

            self.changes.whole(lambda: self._moves.replace(source, destination, given_up), again)
            self._delete_in_time()
            destination.context.logger.info("moved to here from %s", source.parent_dir)

    def move(
        self,
        topic_partition: str | TopicPartition,
        log_dir: str | os.PathLike[str],
        progress: Callable[[MoveProgress], object] | None = None,
    ) -> UnifiedLog:
        """Moves a partition to another directory while it is written and read.

        The switch at the end replaces the log: from then on the old one refuses changes with KafkaStorageException, and
        `get_log` returns the new one.  The old one can be read until it is deleted, after file.delete.delay.ms.  A move
        that ends early leaves the log as it was, and a future log from which the next `move` continues.  Two moves of
        one partition run one after the other.

        Args:
            topic_partition: A TopicPartition, or its name such as "orders-0".
            log_dir: One of the directories of this manager.
            progress: Called after each copied piece with the progress so far.

        Returns:
            The partition's log in its new place.

        Raises:
            LogDirNotFoundException: `log_dir` is not a directory of this manager.
            UnknownTopicOrPartitionException: The partition does not exist.
            KafkaStorageException: A directory is offline, or its disk failed.
            IllegalStateException: The call comes from inside another move of the partition, or the partition was
                deleted or moved meanwhile, or the manager is not running.

        Example:
            >>> import os, tempfile
            >>> import kafkalog
            >>> with tempfile.TemporaryDirectory() as base:
            ...     disks = [os.path.join(base, "disk1"), os.path.join(base, "disk2")]
            ...     with kafkalog.LogManager(disks) as manager:
            ...         log = manager.get_or_create_log("orders-0", log_dir=disks[0])
            ...         print(os.path.basename(manager.move("orders-0", disks[1]).parent_dir))
            disk2
        """
        self._check()
        return self._moves.run(Move(self, topic_partition, log_dir), progress)

    def async_delete(
        self,
        topic_partition: str | TopicPartition,
        *,
        is_future: bool = False,
        is_stray: bool = False,
        checkpoint: bool = True,
    ) -> UnifiedLog | None:
        """Removes a partition: renames its directory `-delete` (or `-stray`).

        The files of a `-delete` directory are deleted after file.delete.delay.ms.  The future log of a current log is
        removed too.

        Args:
            topic_partition: A TopicPartition, or its name such as "orders-0".
            is_future: Remove only the future log.
            is_stray: Rename the directory `-stray`; its files are kept.
            checkpoint: Write the directory's checkpoints afterwards.

        Returns:
            The log that was removed; None if there was none.

        Raises:
            KafkaStorageException: The partition may be in a directory that is offline, or the disk failed.
            IllegalStateException: The manager is not running.

        Example:
            >>> import tempfile
            >>> import kafkalog
            >>> with tempfile.TemporaryDirectory() as log_dir, kafkalog.LogManager(log_dir) as manager:
            ...     _ = manager.get_or_create_log("orders-0")
            ...     _ = manager.async_delete("orders-0")
            ...     print(manager.topics())
            set()
        """
        partition = names.partition_of(topic_partition)
        with self.changes.lock:
            self._check()
            self.changes.settle()
            self._leftovers.settle(partition.topic)
            log = self._load_waiting(partition, is_future=is_future)
            if log is None:
                offline = self.offline_log_dirs
                if offline:
                    raise KafkaStorageException(
                        f"Failed to delete log for {'future ' if is_future else ''}{partition} because it may be in "
                        f"one of the offline directories {', '.join(offline)}"
                    )
                return None
            removals = [Removal.of(log, is_stray=is_stray)]
            future = self._load_waiting(partition, is_future=True)
            if future is not None and future is not log:
                removals.append(Removal.of(future, is_stray=False))
            self.changes.whole(lambda: self._removals.remove(removals, checkpoint=checkpoint))
            self._delete_in_time()
            return log

    def async_delete_all(self, partitions: Iterable[TopicPartition], *, is_stray: bool = False) -> None:
        """Removes several partitions with their future logs, as `async_delete`.

        Writes the checkpoints once a directory.

        Args:
            partitions: The partitions to remove.
            is_stray: Rename the directories `-stray`; their files are kept.

        Raises:
            KafkalogError: The first error, after all partitions were tried.
        """
        try:
            given = [names.partition_of(each) for each in partitions]
        except TypeError:
            raise IllegalArgumentException(f"partitions: found {values.shown(partitions)}, expected several") from None
        with self.changes.lock:
            self._check()
            self.changes.settle()
            for topic in {each.topic for each in given}:
                self._leftovers.settle(topic)
            for each in given:
                self._load_waiting(each)
                self._load_waiting(each, is_future=True)
            removals = self._removals.of(given, is_stray=is_stray)
            self.changes.whole(lambda: self._removals.remove(removals, checkpoint=True))
            self._delete_in_time()
