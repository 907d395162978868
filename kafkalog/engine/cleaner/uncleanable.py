"""Uncleanable partitions: partitions whose last pass failed because of their log, and why.

Such a partition is left alone until its log is deleted or the process starts again, as in Kafka.  The error and its
place are kept for reports.  A mark belongs to a log, not to a name: a partition that was deleted and created again has
none.  Guarded by the owner's lock.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import NamedTuple

from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.unified_log import UnifiedLog


class Uncleanable(NamedTuple):
    """Why a partition is not cleaned any more.

    Attributes:
        partition: The partition.
        log_dir: Its log directory.
        error: The class name of the error.
        reason: The text of the error.
        path: The file with the damage, if the error names it.
        position: The byte in that file, if the error names it.
        since_ms: When it was marked, in milliseconds since 1970.
    """

    partition: TopicPartition
    log_dir: str
    error: str
    reason: str
    path: str | None
    position: int | None
    since_ms: int

    def __str__(self) -> str:
        return f"{self.partition} of {self.log_dir}: {self.error}: {self.reason}"


class _Mark(NamedTuple):
    log: weakref.ref[UnifiedLog]
    why: Uncleanable


class UncleanablePartitions:
    def __init__(self) -> None:
        self._marks: dict[TopicPartition, _Mark] = {}

    def mark(self, log: UnifiedLog, error: BaseException, now_ms: int) -> Uncleanable:
        why = Uncleanable(
            log.topic_partition,
            log.parent_dir,
            type(error).__name__,
            str(error),
            getattr(error, "path", None),
            getattr(error, "position", None),
            now_ms,
        )
        self._marks[log.topic_partition] = _Mark(weakref.ref(log), why)
        return why

    def has(self, log: UnifiedLog) -> bool:
        mark = self._marks.get(log.topic_partition)
        return mark is not None and mark.log() is log

    def listed(self) -> list[Uncleanable]:
        """Returns all marks in the order in which they were set."""
        return [mark.why for mark in list(self._marks.values())]

    def move(self, partition: TopicPartition, log: UnifiedLog) -> None:
        """Moves a mark to another log that has the same records, and is as uncleanable."""
        mark = self._marks.get(partition)
        if mark is not None:
            self._marks[partition] = _Mark(weakref.ref(log), mark.why._replace(log_dir=log.parent_dir))

    def keep(self, is_there: Callable[[UnifiedLog], bool]) -> None:
        """Drops the marks of logs that no longer exist."""
        for partition, mark in list(self._marks.items()):
            log = mark.log()
            if log is None or not is_there(log):
                self._marks.pop(partition, None)
