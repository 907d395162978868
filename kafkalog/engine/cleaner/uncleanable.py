"""Uncleanable partitions: those whose last pass failed on what lies in their log, and why.

Such a partition is left alone until its log is gone or the process starts anew, as in Kafka; what it is that failed,
and where, is kept, so that somebody can be told.  A mark is one log's, not a name's: a partition that was deleted and
made again is clean.  Guarded by the lock of whoever owns it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import NamedTuple

from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.unified_log import UnifiedLog


class Uncleanable(NamedTuple):
    """Why a partition is not cleaned any more: the error's kind and text, the file and the byte where it names them,
    and when that was (ms since the epoch)."""

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
        """Those there are, in the order in which they were marked."""
        return [mark.why for mark in list(self._marks.values())]

    def move(self, partition: TopicPartition, log: UnifiedLog) -> None:
        """The same records are another log's now, which is as uncleanable."""
        mark = self._marks.get(partition)
        if mark is not None:
            self._marks[partition] = _Mark(weakref.ref(log), mark.why._replace(log_dir=log.parent_dir))

    def keep(self, is_there: Callable[[UnifiedLog], bool]) -> None:
        """Forgets the marks of logs that are gone."""
        for partition, mark in list(self._marks.items()):
            log = mark.log()
            if log is None or not is_there(log):
                self._marks.pop(partition, None)
