"""A reader's view of a store's partition, in the directory where its log is now.

An EngineSource that continues with the log that replaces the one it read: the store's LogManager may have moved it to
another directory, with the same records. A topic of the same name that was created again is another one and is not
read. If there is no log any more, the error says why: the topic was deleted, the directory is offline, or the store is
closed. Thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from kafkalog.engine.log.engine_source import EngineSource
from kafkalog.errors import (
    ClosedChannelException,
    IllegalStateException,
    KafkalogError,
    KafkaStorageException,
    UnknownTopicOrPartitionException,
)

if TYPE_CHECKING:
    from kafkalog.engine.files.processes import Life
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.log.unified_log import UnifiedLog
    from kafkalog.engine.segment.reader import Extent
    from kafkalog.engine.segment.transaction_index import AbortedTxn

T = TypeVar("T")


class Logs(Protocol):
    """The part of a store that a source uses."""

    life: Life

    def check_open(self) -> None: ...

    def log_now(self, partition: TopicPartition) -> UnifiedLog | None:
        """Returns the partition's log, or None."""

    def settled_log(self, partition: TopicPartition) -> UnifiedLog | None:
        """Returns the same, after any change that is running has finished."""

    def not_there(self, partition: TopicPartition) -> KafkalogError: ...


class StoreSource(EngineSource):
    """Created by the store's `source` for the current log."""

    def __init__(self, logs: Logs, engine: UnifiedLog) -> None:
        super().__init__(engine.topic_partition, engine, logs.life)
        self._logs = logs
        self.topic_id = engine.topic_id

    @property
    def engine(self) -> UnifiedLog:
        """The log as it was last seen."""
        return self._engine

    @property
    def log_end_offset(self) -> int:
        self.check_usable()
        return self._engine.log_end_offset

    @property
    def log_start_offset(self) -> int:
        self.check_usable()
        return self._engine.log_start_offset

    def check_usable(self) -> None:
        """Continues with the current log. Raises an error if there is none, or nobody may read it."""
        if not self.life.live or self._logs.log_now(self.topic_partition) is not self._engine:
            self._look()

    def recheck(self) -> None:
        self.check_usable()

    def _look(self) -> bool:
        """Switches to the log that replaces the current one. Returns whether there is one; raises an error if there is
        no log."""
        self._logs.check_open()
        found = self._logs.log_now(self.topic_partition)
        if found is None:
            found = self._logs.settled_log(self.topic_partition)
        if found is None:
            raise self._logs.not_there(self.topic_partition)
        if self.topic_id is None:
            self.topic_id = self._engine.topic_id  # the log may have got an id since
        if found.topic_id != self.topic_id:
            raise UnknownTopicOrPartitionException(
                f"{self.topic_partition} was deleted, and there is another topic of that name now"
            )
        if found is not self._engine:
            self._engine = found
            return True
        if found.local_log.is_closed:
            raise KafkaStorageException(f"{self.topic_partition} is closed: its directory is offline")
        return False

    def _over(self, ask: Callable[[], T]) -> T:
        """Returns the answer of the current log."""
        while True:
            engine = self._engine
            try:
                return ask()
            except (ClosedChannelException, IllegalStateException, KafkaStorageException):
                if self._engine is engine and not self._look():
                    raise

    def _check_open(self) -> None:
        if self._engine.local_log.is_closed:
            self._look()

    def visible_end(self, isolation: str = "read_uncommitted") -> int:
        return self._over(lambda: super(StoreSource, self).visible_end(isolation))

    def extent(self, offset: int, isolation: str = "read_uncommitted") -> Extent | None:
        return self._over(lambda: super(StoreSource, self).extent(offset, isolation))

    def aborted_in(self, first_offset: int, last_offset: int) -> list[AbortedTxn]:
        return self._over(lambda: super(StoreSource, self).aborted_in(first_offset, last_offset))

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        return self._over(lambda: super(StoreSource, self).offset_for_time(timestamp_ms))

    def check_end(self, isolation: str = "read_uncommitted") -> None:
        self._over(lambda: super(StoreSource, self).check_end(isolation))
