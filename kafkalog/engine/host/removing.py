"""Removes logs: renames a directory `-delete` or `-stray`; from then on no look-up finds the log.

A log that is renamed `-delete` waits in `doomed`.  Checkpoints are written once a directory, when all logs of a call
are renamed.  Mirrors LogManager.asyncDelete (4.4.0).

The caller holds `Changes.lock`; `remove` is a change of `Changes`, and may run twice.  A log's cleaning is paused, and
then each step acquires the log's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.cleaning import Cleaning
from kafkalog.engine.host.doomed import DoomedLogs
from kafkalog.engine.host.log_directories import LogDirectories
from kafkalog.engine.host.registry import LogRegistry
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import DiskFull, KafkalogError, TooManyOpenFilesException


class Removal(NamedTuple):
    """A log to remove from the maps, and its directory's new name.  `is_future` is stored, because the new name no
    longer shows it."""

    log: UnifiedLog
    name: str
    is_stray: bool
    is_future: bool

    @classmethod
    def of(cls, log: UnifiedLog, *, is_stray: bool) -> Removal:
        name_of = names.log_stray_dir_name if is_stray else names.log_delete_dir_name
        return cls(log, name_of(log.topic_partition), is_stray, log.is_future)


class Removals:
    def __init__(
        self,
        directories: LogDirectories,
        registry: LogRegistry,
        cleaning: Cleaning,
        doomed: DoomedLogs,
    ) -> None:
        self._directories = directories
        self._registry = registry
        self._cleaning = cleaning
        self._doomed = doomed

    def of(self, partitions: Iterable[TopicPartition], *, is_stray: bool) -> list[Removal]:
        """Returns removals of the logs that the partitions have, future ones included."""
        found = [self._registry.get(each, is_future=is_future) for each in partitions for is_future in (False, True)]
        return [Removal.of(log, is_stray=is_stray) for log in found if log is not None]

    def remove(self, removals: Sequence[Removal], *, checkpoint: bool) -> None:
        """Removes all of them.  The first error is raised when all were tried."""
        errors: list[KafkalogError] = []
        for removal in removals:
            try:
                self._remove_one(removal)
            except KafkalogError as error:
                errors.append(error)
        if checkpoint:
            for log_dir in dict.fromkeys(each.log.parent_dir for each in removals if not each.is_future):
                self._cleaning.removed(log_dir)
            for log_dir in dict.fromkeys(each.log.parent_dir for each in removals):
                self._directories.checkpoint(log_dir, self._registry)
        if errors:
            raise errors[0]

    def _remove_one(self, removal: Removal) -> None:
        log = removal.log
        with self._cleaning.pause(None if removal.is_future else log.topic_partition) as pause:
            pause.begin()
            self._rename_removed(removal, log)

    def _rename_removed(self, removal: Removal, log: UnifiedLog) -> None:
        log.settle()
        log.refuse_changes()
        try:
            log.rename_dir(removal.name, False)
        except (DiskFull, TooManyOpenFilesException):
            log.accept_changes()  # the log stays, and continues
            raise
        if not removal.is_stray:
            self._doomed.add(log)
        self._registry.remove(log)
        log.wake_waiters()
        what = "marked as stray and" if removal.is_stray else "scheduled for deletion and"
        log.context.logger.info("Log is %s renamed to %s", what, log.dir)
