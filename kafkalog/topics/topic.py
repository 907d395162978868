"""A topic of a store: records go to its partitions as Kafka's producer would send them.

Each partition is a log of its own, with offsets of its own: records of one key are in order, those of different
partitions are not.  Several records that are given together are appended partition by partition; where one partition
refuses, those before it have theirs (`error.appended_partitions` says which), unless they are in a transaction.
Thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafkalog.errors import IllegalArgumentException, KafkalogError, UnknownTopicOrPartitionException
from kafkalog.format import values
from kafkalog.format.batch import NO_PRODUCER
from kafkalog.format.names import TopicPartition
from kafkalog.topics.partitioner import StickyPartition, partition_of_key
from kafkalog.topics.records import Header
from kafkalog.topics.rows import RecordInput, Row, as_row, check_records

if TYPE_CHECKING:
    from kafkalog.topics.catalog import TopicInfo
    from kafkalog.topics.store_partition import StorePartition


class RecordMetadata(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int


class Home(Protocol):
    """What a topic asks of its store."""

    def info(self, topic: str) -> TopicInfo: ...

    def partition(self, topic_partition: TopicPartition) -> StorePartition: ...


class Topic:
    """Made by `Store.topic` and `Store.create_topic`."""

    def __init__(self, home: Home, name: str) -> None:
        self._home = home
        self.name = name
        self._sticky = StickyPartition()

    @property
    def info(self) -> TopicInfo:
        """What it is now.  UnknownTopicOrPartitionException once it was deleted."""
        return self._home.info(self.name)

    @property
    def partitions(self) -> int:
        """How many it has now."""
        return self.info.partitions

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"

    # --- appending -----------------------------------------------------------------------------------

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Append one record: to `partition`, or the one of its key, or, without a key, the sticky one.

        As `Log.append` otherwise; UnknownTopicOrPartitionException for a partition that the topic has not.
        """
        row = as_row((value, key, tuple(headers) if isinstance(headers, list) else headers, timestamp))
        number = self._partition_for(row, self.partitions, partition)
        offsets = self._appends(number).append_as(NO_PRODUCER, (row,))
        return RecordMetadata(self.name, number, offsets[0])

    def append_many(self, records: Iterable[RecordInput], *, partition: int | None = None) -> dict[int, range]:
        """Append records, which are as `Log.append_many` takes them: the offsets in each partition that got some.

        Records of one partition keep their order.  All are looked at before any is appended.
        """
        if partition is not None:
            number = self._checked(partition)
            return {number: self._appends(number).append_as(NO_PRODUCER, records)}
        check_records(records)
        count = self.partitions
        by_partition: dict[int, list[Row]] = {}
        for row in map(as_row, records):
            by_partition.setdefault(self._partition_for(row, count, None), []).append(row)
        done: dict[int, range] = {}
        for number, rows in by_partition.items():
            try:
                done[number] = self._appends(number).append_as(NO_PRODUCER, rows)
            except KafkalogError as error:
                error.appended_partitions = done
                raise
        return done

    def _partition_for(self, row: Row, count: int, partition: int | None) -> int:
        if partition is not None:
            return self._checked(partition)
        value, key = row[0], row[1]
        if key is not None:
            return partition_of_key(key, count)
        return self._sticky.take(len(value or b""), count)

    def _checked(self, partition: Any) -> int:
        number = values.whole(partition, "partition", low=0)
        if number >= self.partitions:
            raise UnknownTopicOrPartitionException(
                f"topic {self.name!r} has no partition {number}: it has {self.partitions}"
            )
        return number

    def _appends(self, partition: int) -> StorePartition:
        return self._home.partition(TopicPartition(self.name, partition))


def checked_config(config: Mapping[str, str] | None) -> Mapping[str, str]:
    """A topic's settings as a caller gives them."""
    if config is not None and not isinstance(config, Mapping):
        raise IllegalArgumentException(f"config: found {values.shown(config)}, expected Kafka's topic keys and values")
    return {} if config is None else config
