"""Creates the log of a partition that has none: chooses the place and the name, and refuses what cannot be.

The log goes to the directory that the caller names, else to the one that was preferred before, else to the live one
with the fewest logs.  If a disk refuses to create the directory, it is offline (a full one is not), and the next one
is tried.  Mirrors the second half of LogManager.getOrCreateLog (4.4.0).

The caller holds `Changes.lock` and found no log.  From the creation of the directory on it is one change of `Changes`:
if it is interrupted, it runs again with the log that it had loaded.  The preferred directories are set without that
lock, because each step is one operation on a dict.
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
        """Sets where the partition's next log is created, unless its log or future log is already there."""
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
                hint="pass is_new=True if the partition cannot be in one of them",
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
                    # One call from bytecode: after an interrupt a created log is always in `made`.
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
        """Removes leftovers of an earlier creation or move, and refuses impossible names and foreign directories.

        A name that the disk would refuse would count as a failure of the disk.
        """
        names.validate_topic_name(partition.topic)
        names.validate_dir_name(name)
        self._leftovers.settle(partition.topic)
        for each in self._directories.live:
            refuse_foreign_partition(os.path.join(each, str(partition)), self._directories.files)

    def _is_clean(self, folder: str) -> bool:
        """Returns whether an existing directory is empty: files in it come from a load that was interrupted."""
        return not self._directories.files.names_in(folder)

    def _discard(self, partition: TopicPartition, folder: str) -> None:
        """Removes a directory that was never written to: the next start would load it as a partition."""

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
        """Raises NoLiveLogDirException if no directory is live."""
        log_dirs = self._directories.next_for_a_partition(self._registry.counts_by_dir())
        if not log_dirs:
            raise self._directories.lost()
        return log_dirs

    def _make_folder(self, name: str, log_dirs: Sequence[str]) -> tuple[str, bool]:
        """Creates the directory on the first disk that allows it; returns its path, and whether it is new.

        Raises InvalidTopicException if the name is too long for a disk.
        """
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
                        # The directory exists, but no descriptor was free to sync it.
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
        """Returns the error if a disk refuses a directory.  InvalidTopicException if its name is too long for it."""
        if error.errno == errno.ENAMETOOLONG:  # some file systems allow less than 255 bytes
            raise InvalidTopicException(f"{message}: {error.strerror}") from error
        failed = self._directories.failure_channel.failed(log_dir, message, error)
        failed.__cause__ = error
        return failed
