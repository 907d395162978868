"""A topic of a store: records go to its partitions as Kafka's producer would send them.

Each partition is a log of its own, with offsets of its own: records of one key are in order, those of different
partitions are not.  Several records that are given together are appended partition by partition; where one partition
refuses, those before it have theirs (`error.appended_partitions` says which), unless they are in a transaction.
Thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalog.errors import KafkalogError, LogReadOnlyException
from kafkalog.format import values
from kafkalog.format.batch import NO_PRODUCER
from kafkalog.format.names import TopicPartition
from kafkalog.topics.partitioner import StickyPartition, partition_of_key
from kafkalog.topics.records import Header
from kafkalog.topics.rows import RecordInput, Row, as_row, check_records

if TYPE_CHECKING:
    from kafkalog.topics.catalog import TopicInfo
    from kafkalog.topics.store_home import StoreHome
    from kafkalog.topics.store_partition import StorePartition
    from kafkalog.topics.store_view import StoreView


class RecordMetadata(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int


class Topic:
    """Made by `Store.topic` and `Store.create_topic`."""

    def __init__(self, home: StoreHome | StoreView, name: str) -> None:
        self._home = home
        self.name = name
        self._sticky = StickyPartition()
        # The catalog's changes, how many directories are live, how many partitions it had then, and those of them that
        # can be written to, for records without a key; replaced whole.
        self._seen: tuple[int, int, int, Sequence[int]] = (-1, 0, 0, ())

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
        if partition is None and type(value) is bytes and (key is None or type(key) is bytes):
            record: RecordInput = (value, key, headers, timestamp)
            number = self._partition_for(value, key, self._count())
        else:
            record = as_row((value, key, headers, timestamp))
            number = self.partition_for(record, partition)
        offsets = self.appends(number).append_as(NO_PRODUCER, (record,))
        return RecordMetadata(self.name, number, offsets.start)

    def append_many(self, records: Iterable[RecordInput], *, partition: int | None = None) -> dict[int, range]:
        """Append records, which are as `Log.append_many` takes them: the offsets in each partition that got some.

        Records of one partition keep their order.  All are looked at before any is appended.
        """
        done: dict[int, range] = {}
        for number, rows in self.by_partition(records, partition).items():
            try:
                done[number] = self.appends(number).append_as(NO_PRODUCER, rows)
            except KafkalogError as error:
                error.appended_partitions = done
                raise
        return done

    # --- where to ------------------------------------------------------------------------------------

    def by_partition(
        self, records: Iterable[RecordInput], partition: int | None
    ) -> Mapping[int, Iterable[RecordInput]]:
        """Records by the partition that each goes to; those of one keep their order."""
        if partition is not None:
            return {self._checked(partition): records}
        check_records(records)
        count = self._count()
        if count == 1:
            return {0: records}
        found: dict[int, list[Row]] = {}
        for row in map(as_row, records):
            found.setdefault(self._partition_for(row[0], row[1], count), []).append(row)
        return found

    def partition_for(self, row: Row, partition: int | None) -> int:
        """The partition of a record; UnknownTopicOrPartitionException for one that the topic has not."""
        if partition is not None:
            return self._checked(partition)
        return self._partition_for(row[0], row[1], self._count())

    def _partition_for(self, value: bytes | None, key: bytes | None, count: int) -> int:
        if key is not None:
            return partition_of_key(key, count)
        return self._sticky.take(len(value or b""), self._seen[3] or range(count))

    def _checked(self, partition: Any) -> int:
        number = values.whole(partition, "partition", low=0)
        if number >= self._count():
            self._home.check_partition(TopicPartition(self.name, number))
        return number

    def _count(self) -> int:
        home = self._home
        if home.read_only:
            raise _read_only(home.place)
        changes, directories, count, _ = self._seen
        live = len(home.manager.directories.live)
        if changes != home.catalog.changes or directories != live:
            changes = home.catalog.changes  # before the look: what comes after it is looked at again
            count = home.info(self.name).partitions
            self._seen = changes, live, count, home.catalog.available(self.name, count)
        return count

    def appends(self, partition: int) -> StorePartition:
        """What appends to one of its partitions."""
        home = self._home
        if home.read_only:
            raise _read_only(home.place)
        return home.partition(TopicPartition(self.name, partition))


def _read_only(place: str) -> LogReadOnlyException:
    return LogReadOnlyException(f"the store of {place} is open read-only", hint="open it with read_only=False")
