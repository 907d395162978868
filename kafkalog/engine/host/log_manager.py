"""LogManager: the partitions of several log directories; finds, makes, moves and deletes logs, and keeps the house.

Mirrors org.apache.kafka.storage.internals.log.LogManager (4.4.0): directories are validated and locked when it is made,
`startup` loads every log (`loading`) and begins the background tasks, `shutdown` closes all and leaves the marker where
everything went well.  Checkpoints are written a directory, not a partition.  What a log does is UnifiedLog's; what is
done to a directory's own files is HeldDirectory's.

This is the door: what was asked for is checked, whether it may be done now (ManagerLife, which this one is), and the
lock is taken.  Parts do the work: LogMaker makes logs, `truncating` cuts them, Moves moves them, Removals removes them.
What cuts, moves or removes a log has the cleaner leave that log first.

Locks: `creation` (Kafka's logCreationOrDeletionLock, `changes`) is held by what makes, moves and removes logs, and by
`set_topic_config`, and is taken before a partition's lock; a move's turn (`switching`) comes before it.  Look-ups take
none.  What is interrupted there is finished by whatever comes next.
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
    """The logs of `log_dirs`; a context manager that starts and shuts down.  Thread-safe; of one process.  One that is
    dropped without `shutdown` lets go of its files, with a ResourceWarning, and is recovered at the next start."""

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
        return self.directories.next_for_a_partition(self.registry.counts_by_dir())

    def broker_epoch_at_shutdown(self) -> int | None:
        """The epoch in the clean-shutdown markers, before `startup` removes them; None unless all directories are
        live and agree."""
        if self.offline_log_dirs:
            return None
        epochs = {held.marker.read() for held in self.directories.live.values()}
        return epochs.pop() if len(epochs) == 1 else None

    @property
    def load_progress(self) -> LoadProgress | None:
        """How far `startup` is; None when it does not run."""
        return self._start.progress

    # --- logs ----------------------------------------------------------------------------------------

    def get_log(self, topic_partition: str | TopicPartition, *, is_future: bool = False) -> UnifiedLog | None:
        """The partition's log; None where there is none, or its directory is offline."""
        partition = names.partition_of(topic_partition)
        self._check()
        if self.changes.cut_short:
            self.changes.settle()
        log = self.registry.get(partition, is_future=is_future)
        return log or self._load_waiting(partition, is_future=is_future)

    def cut_nothing(self) -> None:
        """Logs that are loaded from now on are refused where their recovery would cut damage off."""
        self.tell_cuts(refuse)

    def tell_cuts(self, tell: Callable[[Damage], None] | None) -> None:
        """Logs that are loaded from now on tell of each cut that their recovery is about to make; what `tell` raises
        ends the load, and a start."""
        self._as_all = self._start.opening = AS_ALL._replace(on_damage=tell)

    def _load_waiting(
        self, partition: TopicPartition, opening: Opening | None = None, *, is_future: bool = False
    ) -> UnifiedLog | None:
        """A log that nobody has asked for yet; None where there is none."""
        opening = opening or self._as_all
        if self.registry.waiting(partition, is_future=is_future) is None:
            return self.registry.get(partition, is_future=is_future)
        with self.changes.lock:
            self._check()
            self.changes.settle()
            if partition in self.lent:
                raise KafkaStorageException(
                    f"{partition} of {self.directories.shown} is lent: others work on its files, and have no log open"
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
        """Those that have a log, be it one that nobody has asked for yet."""
        self._settle_to_look()
        return self.registry.topics()

    def topic_ids(self, topic: str, numbers: Iterable[int] | None = None) -> Iterator[str | None]:
        """The ids that the partitions of a topic have, or those of these `numbers`, in their order, each as it is asked
        for; None: none yet.  Loads nothing.  CorruptCheckpointException, OSError."""
        for number in self.registry.numbers_of(topic) if numbers is None else numbers:
            partition = TopicPartition(topic, number)
            waiting, log = self.registry.waiting(partition), self.registry.get(partition)
            if log is not None:
                yield log.topic_id
            else:  # None of one that went meanwhile
                yield None if waiting is None else topic_id_of(waiting.folder, self.files)

    def log_to_change(self, partition: TopicPartition) -> UnifiedLog | None:
        """As `get_log`, for whoever found that one refuses changes: waits for the last step of a move or a deletion,
        and finishes one that an interrupt came out of."""
        log = self.registry.get(partition)
        if log is not None and log.local_log.life == CLOSING:
            self.changes.settle()
            log = self.registry.get(partition)
        return log or self._load_waiting(partition)

    def logs_by_topic(self, topic: str) -> list[UnifiedLog]:
        """Current and future ones."""
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
        """The partition's log, made where it is missing: in `log_dir`, the preferred directory, or the live one with
        the fewest logs.

        `is_new`: that it cannot be in a directory that is offline now; otherwise KafkaStorageException while one is.
        InconsistentTopicIdException when the log has another topic's id; IllegalArgumentException when it is none.
        """
        partition = names.partition_of(topic_partition)
        if topic_id is not None:
            topic_id = checked_topic_id(topic_id)  # written as it is, it would end the next start
        preferred = None if log_dir is None else absolute_path(log_dir)
        with self.changes.lock:
            self._check()  # inside: a shutdown may have come before us
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
        """The log of a partition, opened for one user, who has it otherwise than the settings say; made where it is
        missing.  Errors as `get_or_create_log`; what `opening.on_damage` raises."""
        with self.changes.lock:
            self._check()
            self.changes.settle()
            log = self._load_waiting(partition, opening)
            if log is None:
                log = self._maker.make(partition, None, opening, is_new=True, is_future=False)
            return log

    def close_log(self, partition: TopicPartition, *, clean: bool) -> None:
        """Closes a partition's log, where it is open, and has it wait for who asks for it next.  `clean`: whether all
        went well, as its user says, who may have closed it; otherwise it is let go, and recovered next time.

        KafkaStorageException where the disk refuses its end, or its checkpoints.
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
        """Others worked on a partition's files: what is there now counts."""
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
        """Log starts and recovery points of a directory go to the disk.  KafkaStorageException where it refuses."""
        if not self.directories.checkpoint(log_dir, self.registry, raises=True):
            message, cause = f"the checkpoints of {log_dir} were not written", self.failure_channel.cause(log_dir)
            if isinstance(cause, OSError):
                raise KafkaStorageException.because_of(cause, message) from cause
            raise KafkaStorageException(message) from cause

    def checkpoint_or_later(self, log_dir: str) -> None:
        """`checkpoint_now` behind what is done already, as Kafka does it: a shortage is told by a warning, and the
        next checkpoint, or the close, writes it."""
        try:
            self.checkpoint_now(log_dir)
        except (DiskFull, TooManyOpenFilesException) as error:
            Lines(LOGGER, log_dir).warning("the checkpoints of %s are written later: %s", log_dir, error)

    def set_line(self, log_dir: str, name: str, partition: TopicPartition, offset: int | None) -> None:
        """Sets a partition's line of the checkpoint of that name, or takes it away; of one that has no log open, but
        for the cleaner's line.  CorruptCheckpointException where the file cannot be read; KafkaStorageException."""
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
        """Whether the start found that everything in a directory was closed cleanly, or nothing there."""
        return bool(self._start.had_clean.get(log_dir)) or not self.registry.waiting_in(log_dir)

    def maybe_update_preferred_log_dir(self, topic_partition: str | TopicPartition, log_dir: str) -> None:
        """Where the partition's next log is to be made, unless its log or future log is there."""
        partition, path = names.partition_of(topic_partition), absolute_path(log_dir)
        self._check_not_lost()
        self.is_log_dir_online(path)
        self._maker.prefer(partition, path)

    # --- configuration -------------------------------------------------------------------------------

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
        new = self._contexts.config_with(topic, overrides)
        self._contexts.forget(topic)
        self.topic_config_updated(topic)
        for log in self._open_logs_of(topic):
            old = log.update_config(new)
            if old.compact and not new.compact:
                self._cleaning.abort(log.topic_partition)

    def tidy_up(self, topic: str) -> None:
        """Removes what a creation or a move of the topic's partitions has left for want of space or descriptors.
        DiskFull, TooManyOpenFilesException while it cannot."""
        with self.changes.lock:
            self._leftovers.settle(topic)

    def set_config_base(self, base_of: Callable[[str, LogConfig], LogConfig]) -> None:
        """`base_of(topic, default_config)` is what counts beneath a topic's overrides, in logs that are opened from now
        on; without it the default does."""
        self._contexts.base_of = base_of

    def config_of(self, topic: str) -> LogConfig:
        """A topic's settings, as the logs that are opened from now on have them."""
        return self._contexts.config_of(topic)

    def config_with(self, topic: str, overrides: Mapping[str, str]) -> LogConfig:
        """What a topic's settings would be with these overrides.  ConfigException."""
        return self._contexts.config_with(topic, overrides)

    def tell_of_logs(self, when_ready: Callable[[UnifiedLog], object]) -> None:
        """`when_ready` is told of each log that is opened from now on, before anybody else has it."""
        self._contexts.when_ready = when_ready

    def topic_config_updated(self, topic: str) -> None:
        """The logs of a topic that are being made take its configuration anew when they are ready."""
        self._contexts.topic_updated(topic)

    @property
    def current_default_config(self) -> LogConfig:
        """The settings of topics that do not say otherwise."""
        return self._contexts.default_config

    def reconfigure_default_config(self, config: LogConfig) -> None:
        """The defaults of logs that are opened from now on."""
        if not isinstance(config, LogConfig):
            raise IllegalArgumentException(f"config: found {values.shown(config)}, expected a LogConfig")
        self._contexts.set_default(config)

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

    def compact(
        self, log: UnifiedLog, config: CleanerConfig, *, rolls: bool = False, **options: Unpack[CompactOptions]
    ) -> CompactionStats:
        """Compacts one of its logs now, in this thread, beside the cleaner's threads and also without a cleaner.
        Options and errors as `kafkalog.engine.cleaner.passes.compact`; `rolls`: an active segment that has records is
        closed first."""
        self._check()
        try:
            return self._cleaning.compact(log, config, self._check_goes_on, rolls=rolls, **options)
        except LogCleaningAbortedException:
            self._check()  # says so if the manager has ended it
            raise

    def pause(self, partition: TopicPartition) -> Pause:
        """A pause of a partition's compaction that has not begun (`cleaning`): who compacts it stops, and waits."""
        return self._cleaning.pause(partition)

    def _check_goes_on(self) -> None:
        """Stops a compaction in good order where the manager ends."""
        try:
            self._check()
        except KafkalogError as error:
            raise LogCleaningAbortedException("the manager ends") from error

    # --- truncation ----------------------------------------------------------------------------------

    def truncate(self, log: UnifiedLog, offset: int) -> None:
        """Drops what lies at and above an offset, of one of its logs.  IllegalArgumentException for an offset inside a
        batch, between records of a transaction and its end, or one that the remote tier has; KafkaStorageException
        where the log was moved, or is gone, or the disk refuses the checkpoints."""
        offset = values.offset(offset, "target_offset")
        self._check()
        log.local_log.check_changeable()
        refuse_copied(log, offset)
        refuse_parting(log, offset)
        if 0 <= offset < log.recovery_point:
            # Before the cut, too: other records may take these offsets, and they are not on the disk.
            log.local_log.recovery_point = offset
            self.checkpoint_now(log.parent_dir)
        cut(self._cleaning, offset, True, log)
        self.checkpoint_now(log.parent_dir)

    def delete_old_segments(self, log: UnifiedLog) -> int:
        """Retention of one of its logs now; how many segments went.  KafkaStorageException as `truncate`, but
        for a disk that has no room for the checkpoints: they are written later."""
        self._check()
        log.local_log.check_changeable()
        with self._cleaning.pause(log.topic_partition) as pause:
            pause.begin()
            count = log.delete_old_segments()
        self.checkpoint_or_later(log.parent_dir)
        return count

    def truncate_to(self, offsets: Mapping[TopicPartition, int], *, is_future: bool = False) -> None:
        """Drops what lies at and above an offset, of several partitions; those that are not here are passed over."""
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
        """Throws a partition's records away; its log goes on at `new_offset`."""
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

    @property
    def creation(self) -> AbstractContextManager[object]:
        """The lock of what makes, moves and removes logs."""
        return self.changes.lock

    def replace_current_with_future_log(self, topic_partition: str | TopicPartition) -> None:
        """The future log takes the partition's place, and the present one is deleted later.

        KafkaStorageException when one of the two is not there, or the disk refuses.  A crash between the two renames
        leaves both folders: a note in the destination says which one counts, and the next start goes on.
        """
        partition = names.partition_of(topic_partition)
        with self.changes.lock:
            self._check()
            self.changes.settle()
            source = self._load_waiting(partition)
            self._load_waiting(partition, is_future=True)
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
        """Moves a partition to another directory, while it is written and read; answers its log there.

        From the switch on the log that was there before refuses changes with KafkaStorageException, and `get_log`
        answers the new one; who reads the old one may do so until it is deleted, after file.delete.delay.ms.  What ends
        a move early leaves the log as it was, and a future log from which the next `move` goes on.  Two moves of
        one partition come one after the other; IllegalStateException to one out of the middle of another.
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
        """Renames a partition's folder `-delete` (or `-stray`); its files go after file.delete.delay.ms.  With a
        current log goes its future one.

        The log that was removed; None where there was none.  KafkaStorageException when it may be in a directory that
        is offline.
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
        """`async_delete` of many, future logs included, with checkpoints written once a directory; the first error is
        raised when all were tried."""
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
