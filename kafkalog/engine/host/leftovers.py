"""What want of space, or of a descriptor, kept from being tidied up: the folder of a partition that could not be made,
and the folder of a partition that has moved and could not be renamed.

The partition's name would be taken by it: a start would load it, and what is made or moved there would meet it.  So it
is tried again before anything else happens to the partition, in the background, and at the end.  Who calls holds
`Changes.lock`.
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
        """`tidy()` removes what is left, and raises DiskFull or TooManyOpenFilesException while it cannot; `log`: what
        is still open there."""
        self._left.append(_Left(partition, tidy, log))

    def __bool__(self) -> bool:
        return bool(self._left)

    def settle(self, topic: str | None = None) -> None:
        """Tidies up what is left of a topic, or of all.  DiskFull, TooManyOpenFilesException.  What lies on a disk that
        has failed meanwhile is left to the next start."""
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
        """Those that are still open."""
        return [left.log for left in self._left if left.log is not None]
