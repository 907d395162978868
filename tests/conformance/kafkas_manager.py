"""Kafka's LogManager with its faults, on kafkalog's: the shared parts are compared byte by byte.

A broker has other parts for much of kafkalog's manager's work.  The driver runs Kafka's class alone, which has
none of these parts: no failure handling, no high watermark, no note of a move.  It accepts any directory as a
partition's, does not check whether a directory is still its own, and its tasks continue after the shutdown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kafkalog.config import CleanerConfig
from kafkalog.engine.cleaner.cleaner import CleanerSettings
from kafkalog.engine.cleaner.cleaner_thread import CleanerThread, cleaner_settings
from kafkalog.engine.format import names
from kafkalog.engine.format.java_text import is_io_exception
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.changes import BackgroundTasks
from kafkalog.engine.host.duplicates import duplicate
from kafkalog.engine.host.ending import End
from kafkalog.engine.host.held import HeldDirectory
from kafkalog.engine.host.housekeeping import Housekeeping
from kafkalog.engine.host.loading import Found, look
from kafkalog.engine.host.log_contexts import AS_ALL, LogContexts, Opening
from kafkalog.engine.host.log_directories import LogDirectories, absolute_path
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.making import LogMaker
from kafkalog.engine.host.registry import LogRegistry, Logs
from kafkalog.engine.host.removing import Removal, Removals
from kafkalog.engine.host.starting import Loaded, Start
from kafkalog.engine.host.switching import Moves
from kafkalog.engine.log.context import ALREADY_OFFLINE, PartitionContext
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import KafkaException, KafkalogError, KafkaStorageException

Work = Callable[[], object]


class KafkasRegistry(LogRegistry):
    def in_dir(self, log_dir: str) -> Logs:
        """If a partition has two logs in one directory, the future log wins."""
        found = super().in_dir(log_dir)
        found.update({log.topic_partition: log for log in self.all_of(log_dir)})
        return found


class KafkasDirectories(LogDirectories):
    def _refuse_foreign(self) -> None:
        """Accepts any directory."""

    def _each(self, failed: str, step: Callable[[HeldDirectory], object]) -> None:
        """A failed directory is reported, and stays."""
        for path, held in self.live.items():
            try:
                step(held)
            except OSError as error:
                self.failure_channel.give_up(path, f"{failed} {path}", error)

    def _is_ours(self, held: HeldDirectory) -> bool:
        return True


class KafkasTasks(BackgroundTasks):
    """Tasks hold their manager, and continue after its shutdown."""

    def cancel(self) -> None: ...

    def _weak(self, work: Work) -> Work:
        return work


class KafkasContexts(LogContexts):
    """A partition has other replicas, which have the records that a recovery truncates."""

    def of(self, folder: str, partition: TopicPartition, opening: Opening = AS_ALL) -> PartitionContext:
        context = super().of(folder, partition, opening)
        context.has_one_replica = False
        return context


class KafkasStart(Start):
    _refused: KafkaException | None = None

    def _look(self, held: HeldDirectory) -> Found:
        """A directory with another name fails the start, once the directories before it are loaded."""
        try:
            if self._refused is None:
                return self._all_of(held)
        except KafkaException as error:
            self._refused = error
        raise KafkaStorageException("not loaded any more")

    def finish(self, loaded: Loaded) -> None:
        if self._refused is not None:
            raise self._refused
        super().finish(loaded)

    def _all_of(self, held: HeldDirectory) -> Found:
        """Loads every directory whose name is not reserved, as Kafka does."""
        found = look(held)
        paths = [os.path.join(held.path, name) for name in held.files.names_in(held.path)]
        folders = [
            path
            for path in paths
            if os.path.basename(path) != names.REMOTE_LOG_INDEX_CACHE_DIR
            and held.files.is_dir(path)
            and names.parse_topic_partition_name(path).topic != names.CLUSTER_METADATA_TOPIC
        ]
        for checkpoint in (held.recovery_points, held.log_starts):
            try:
                checkpoint.read()
            except (KafkalogError, OSError) as error:
                if is_io_exception(error):
                    message = f"Error while reading checkpoint file {checkpoint.path}"
                    self._failure_channel.maybe_add_offline_log_dir(held.path, message, error)
        return found._replace(folders=folders)

    def _forget_what_is_gone(self, found: Sequence[Found]) -> None: ...

    def _is_of_the_disk(self, error: KafkaStorageException) -> bool:
        """Where the directory was offline before, it knows no cause."""
        return ALREADY_OFFLINE not in error.message and super()._is_of_the_disk(error)

    def _leave_stray(self, log: UnifiedLog) -> None:
        """It stays open."""

    def _register(self, log: UnifiedLog) -> None:
        previous = self._registry.put(log, is_future=log.is_future)
        if previous is not None:
            raise duplicate(log, previous, hint=None)


class KafkasMaker(LogMaker):
    def _make_way(self, partition: TopicPartition, name: str) -> None:
        """It tries, and takes a name that is too long for the disk's failure."""

    def _is_clean(self, folder: str) -> bool:
        return True

    def _refusal(self, log_dir: str, message: str, error: OSError) -> KafkalogError:
        failed = self._directories.failure_channel.failed(log_dir, message, error)
        failed.__cause__ = error
        return failed


class KafkasMoves(Moves):
    """They leave no notes."""

    def _prepare_replacing(self, source: UnifiedLog, destination: UnifiedLog) -> None: ...

    def _note_that_it_stays(self, source: UnifiedLog, destination: UnifiedLog) -> None: ...

    def _give_up(self, source: UnifiedLog, destination: UnifiedLog, given_up: str) -> None:
        source.rename_dir(given_up, True)
        self._doomed.add(source)
        self._directories.checkpoint(source.parent_dir, self._registry)


class KafkasRemovals(Removals):
    def remove(self, removals: Sequence[Removal], *, checkpoint: bool) -> None:
        """Its map comes first, and of a partition's two logs one stays."""
        removal, log_dir = removals[0], removals[0].log.parent_dir
        try:
            self._remove_one(removal)
        except KafkalogError:
            self._registry.remove(removal.log)
            raise
        if checkpoint:
            if not removal.is_future:
                self._cleaning.removed(log_dir)
            self._directories.checkpoint(log_dir, self._registry)


class KafkasHousekeeping(Housekeeping):
    def _retain(self, retained: Sequence[UnifiedLog]) -> int:
        """The first log that fails ends it."""
        deleted = 0
        for log in retained:
            for each in (log, self._registry.get(log.topic_partition, is_future=True)):
                deleted += 0 if each is None else each.delete_old_segments()
        return deleted


class KafkasEnd(End):
    def close_all(self, broker_epoch: int) -> BaseException | None:
        super().close_all(broker_epoch)
        return None

    def _logs_of(self, log_dir: str) -> list[UnifiedLog]:
        """In the order of a map: the first one that fails takes the directory from the others."""
        return self._registry.in_dir(log_dir).values()

    def _close(self, log: UnifiedLog, thread: int) -> None:
        """Trims a file that was closed before, and takes the refusal for the disk's."""
        active = log.active_segment
        if not log.shut_down() and active.max_timestamp_so_far <= active.time_index.last_entry.timestamp:
            log.context.log_dir_failure_channel.maybe_add_offline_log_dir(
                log.parent_dir, f"Error while preparing active segment for close for {log.topic_partition}"
            )
        super()._close(log, thread)

    def _finish_dir(self, log_dir: str, broker_epoch: int, *, is_written: bool) -> BaseException | None:
        """Writes the clean-shutdown marker even if the checkpoints could not be written."""
        self._directories.checkpoint(log_dir, self._registry)
        if self._start.had_clean.get(log_dir) or self._start.all_loaded.get(log_dir):
            with suppress(OSError):
                self._directories.live[log_dir].marker.write(broker_epoch)
        return None


class KafkasCleanerThread(CleanerThread):
    """Checks no checksum, and its buffer begins as small as configured: a failed pass leaves the part that fitted."""

    @staticmethod
    def settings_of(config: CleanerConfig) -> CleanerSettings:
        io_buffer_bytes = config.io_buffer_size // config.num_threads // 2
        return cleaner_settings(config)._replace(check_crcs=False, io_buffer_bytes=io_buffer_bytes)


class KafkasManager(LogManager):
    """Used as LogManager.  Accepts a broker's directory silently, and uses Kafka's defaults there."""

    registry_class = KafkasRegistry
    directories_class = KafkasDirectories

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "take_over": True})
        self._contexts.base_of = None

    def _make_parts(self) -> None:
        self.failure_channel.outlives_shortages = False
        self._tasks = KafkasTasks(self.scheduler, self._is_running)
        super()._make_parts()
        clock, channel = self.clock, self.failure_channel
        contexts = self._contexts = KafkasContexts(
            self.settings, self.topic_configs, self.scheduler, clock, channel, self.files, self.metrics
        )
        directories, registry, cleaning, doomed = self.directories, self.registry, self._cleaning, self._doomed
        self._start = KafkasStart(contexts, directories, registry, self._duplicates, doomed, cleaning, self._jobs)
        self._maker = KafkasMaker(contexts, directories, registry, self.changes, self._leftovers)
        self._moves = KafkasMoves(directories, registry, cleaning, doomed, self._leftovers, contexts)
        self._removals = KafkasRemovals(directories, registry, cleaning, doomed)
        self._housekeeping = KafkasHousekeeping(registry, cleaning, self.clock)
        self._end = KafkasEnd(self._start, directories, registry, self._jobs, self.settings)
        if self.cleaner is not None:
            self.cleaner.thread_class = KafkasCleanerThread

    def _check(self) -> None:
        """Refuses nothing after the shutdown."""
        if self._has_started:
            self._check_not_lost()
        else:
            super()._check()

    def maybe_update_preferred_log_dir(self, topic_partition: str | TopicPartition, log_dir: str) -> None:
        """Be it another's."""
        self._maker.prefer(names.partition_of(topic_partition), absolute_path(log_dir))

    def _settle_failures(self) -> None: ...

    def checkpoint_high_watermarks(self) -> None:
        """ReplicaManager's."""

    def _delete_in_time(self) -> None: ...

    def _let_go(self) -> None:
        """Leaves logs that wait for deletion open, for the task that deletes them after the shutdown."""
        for log in self.registry.all_logs():
            log.close_quietly()
        self.directories.unlock()
