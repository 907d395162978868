"""Directories that could not be tidied up because the disk was full or file descriptors ran out.

A leftover is a directory of a partition whose creation failed, or of a partition that has moved, and that could not be
renamed.  It occupies the partition's name: a start would load it, and a creation or a move to that place would meet
it.  So the manager tries again before anything else happens to the partition, in the background, and at the end.  The
caller holds `Changes.lock`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import DiskFull, KafkaStorageException, TooManyOpenFilesException


class _Left(NamedTuple):
    partition: TopicPartition
    tidy: Callable[[], object]
    log: UnifiedLog | None


class Leftovers:
    def __init__(self) -> None:
        self._left: list[_Left] = []

    def add(self, partition: TopicPartition, tidy: Callable[[], object], log: UnifiedLog | None = None) -> None:
        """Adds a leftover.

        `tidy()` removes it, and raises DiskFull or TooManyOpenFilesException while it cannot.  `log`: a log that is
        still open there.
        """
        self._left.append(_Left(partition, tidy, log))

    def __bool__(self) -> bool:
        return bool(self._left)

    def settle(self, topic: str | None = None) -> None:
        """Removes the leftovers of a topic, or all.  Raises DiskFull, TooManyOpenFilesException.

        A leftover on a disk that has failed meanwhile is left to the next start.
        """
        for left in list(self._left):
            if topic is None or left.partition.topic == topic:
                try:
                    left.tidy()
                except DiskFull:
                    raise
                except KafkaStorageException:
                    if left.log is not None:
                        left.log.close_quietly()
                self._left.remove(left)

    def settle_if_possible(self) -> None:
        try:
            self.settle()
        except (DiskFull, TooManyOpenFilesException):
            pass

    def logs(self) -> list[UnifiedLog]:
        """Returns the logs that are still open."""
        return [left.log for left in self._left if left.log is not None]
