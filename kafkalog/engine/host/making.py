"""Makes the log of a partition that has none: where, under which name, and what is refused first.

It goes to the directory that was asked for, to the one that was preferred before, or to the live one with the fewest
logs; a disk that refuses the folder is offline (one that is full is not), and the next one is tried.  Mirrors the
second half of LogManager.getOrCreateLog (4.4.0).

Who calls holds `Changes.lock` and found no log.  From the folder on it is one change of `Changes`: what is interrupted
there is made again, with the log that it had loaded.  The preferred directories are set without that lock: one step of
a dict each.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Sequence

from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.changes import Changes
from kafkalog.engine.host.leftovers import Leftovers
from kafkalog.engine.host.log_contexts import LogContexts, Opening
from kafkalog.engine.host.log_directories import LogDirectories
from kafkalog.engine.host.log_dirs import refuse_foreign_partition
from kafkalog.engine.host.registry import LogRegistry
from kafkalog.engine.log.context import cut_back
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import (
    DiskFull,
    IllegalStateException,
    InvalidTopicException,
    KafkalogError,
    KafkaStorageException,
    TooManyOpenFilesException,
)


class LogMaker:
    def __init__(
        self,
        contexts: LogContexts,
        directories: LogDirectories,
        registry: LogRegistry,
        changes: Changes,
        leftovers: Leftovers,
    ) -> None:
        self._contexts = contexts
        self._directories = directories
        self._registry = registry
        self._changes = changes
        self._leftovers = leftovers
        self._preferred: dict[TopicPartition, str] = {}

    def prefer(self, partition: TopicPartition, log_dir: str) -> None:
        """Where its next log is to be made, unless its log or future log is there."""
        logs = [self._registry.get(partition, is_future=is_future) for is_future in (False, True)]
        if all(log is None or log.parent_dir != log_dir for log in logs):
            self._preferred[partition] = log_dir

    def make(
        self,
        partition: TopicPartition,
        log_dir: str | None,
        opening: Opening,
        *,
        is_new: bool,
        is_future: bool,
    ) -> UnifiedLog:
        offline = self._directories.offline
        if not is_new and offline:
            raise KafkaStorageException(
                f"Can not create log for {partition} because log directories {', '.join(offline)} are offline",
                hint="is_new=True says that it cannot be there",
            )
        preferred = self._preferred.get(partition) if log_dir is None else log_dir
        if is_future:
            self._check_future(partition, preferred)
        log_dirs = [preferred] if preferred else self._next_dirs()
        name = names.log_future_dir_name(partition) if is_future else names.log_dir_name(partition)
        self._make_way(partition, name)
        made: list[UnifiedLog] = []

        def create(folder: str, is_new: bool) -> UnifiedLog:
            context = self._contexts.of(folder, partition, opening)
            try:
                is_clean = is_new or self._is_clean(folder)
                try:
                    return UnifiedLog.load(context, 0, 0, is_clean, opening.topic_id, on_damage=opening.on_damage)
                except (OSError, TooManyOpenFilesException) as error:
                    if is_clean and self._directories.failure_channel.passes(error):
                        self._discard(partition, folder)
                    raise
            except OSError as error:
                context.raise_offline(f"Error while creating log for {partition} in dir {context.parent_dir}", error)

        def change() -> UnifiedLog:
            left = list(log_dirs)
            while not made:
                folder, is_new_folder = self._make_folder(name, left)
                self._contexts.begin(partition)
                try:
                    # One call from bytecode: an interrupt leaves no log to nobody.
                    made.extend(map(create, (folder,), (is_new_folder,)))
                except DiskFull:
                    left = left[left.index(os.path.dirname(folder)) + 1 :]
                    if not left:
                        raise
            log = made[0]
            try:
                self._contexts.when_ready(log)
            except KafkalogError:
                log.close_quietly()
                raise
            self._registry.put(log, is_future=is_future)
            self._preferred.pop(partition, None)
            self._contexts.finish(
                partition, log, opening
            )  # last: a change of settings finds it in one place or the other
            log.context.logger.info("Created log for partition %s in %s", partition, log.dir)
            return log

        return self._changes.whole(change)

    def _make_way(self, partition: TopicPartition, name: str) -> None:
        """Refuses names that the disk would refuse, and count as failed, and folders of something else; removes what an
        earlier creation or move has left."""
        names.validate_topic_name(partition.topic)
        names.validate_dir_name(name)
        self._leftovers.settle(partition.topic)
        for each in self._directories.live:
            refuse_foreign_partition(os.path.join(each, str(partition)), self._directories.files)

    def _is_clean(self, folder: str) -> bool:
        """Whether a folder that was there is empty: what lies in it is of a load that was cut short."""
        return not self._directories.files.names_in(folder)

    def _discard(self, partition: TopicPartition, folder: str) -> None:
        """Removes a folder in which nobody has written: with the next start it would be a topic's."""

        def remove() -> None:
            try:
                self._directories.files.remove_tree(folder)
            except OSError as error:
                message = f"Error while removing {folder}"
                raise self._directories.failure_channel.failed(os.path.dirname(folder), message, error) from error

        try:
            remove()
        except (DiskFull, TooManyOpenFilesException):
            self._leftovers.add(partition, remove)

    def _check_future(self, partition: TopicPartition, preferred: str | None) -> None:
        current = self._registry.get(partition)
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

    def _next_dirs(self) -> list[str]:
        """NoLiveLogDirException."""
        log_dirs = self._directories.next_for_a_partition(self._registry.counts_by_dir())
        if not log_dirs:
            raise self._directories.lost()
        return log_dirs

    def _make_folder(self, name: str, log_dirs: Sequence[str]) -> tuple[str, bool]:
        """In the first directory whose disk lets us, and whether it was not there.  InvalidTopicException where the
        name is too long for one."""
        last: KafkalogError | None = None
        failure_channel, files = self._directories.failure_channel, self._directories.files
        for log_dir in log_dirs:
            if not self._directories.is_online(log_dir):
                last = KafkaStorageException(f"Can not create log {name} because log directory {log_dir} is offline")
                continue
            try:
                folder = os.path.join(log_dir, name)
                there = files.is_dir(folder)
                try:
                    files.mkdirs_synced(folder)
                except OSError as error:
                    if not there and failure_channel.passes(error) and files.is_dir(folder):
                        # It is there, and no descriptor for its sync.
                        cut_back(error, functools.partial(files.rmdir, folder))
                    raise
                return folder, not there
            except OSError as error:
                last = self._refusal(log_dir, f"Error while creating log for {name} in dir {log_dir}", error)
        if isinstance(last, (DiskFull, TooManyOpenFilesException)):
            raise last
        if len(log_dirs) == 1 and last is not None:
            raise last
        raise KafkaStorageException(f"No log directories available. Tried {', '.join(log_dirs)}") from last

    def _refusal(self, log_dir: str, message: str, error: OSError) -> KafkalogError:
        """The error of a disk that refuses a folder.  InvalidTopicException where its name is too long for the disk."""
        if error.errno == errno.ENAMETOOLONG:  # some file systems have less than 255
            raise InvalidTopicException(f"{message}: {error.strerror}") from error
        failed = self._directories.failure_channel.failed(log_dir, message, error)
        failed.__cause__ = error
        return failed
