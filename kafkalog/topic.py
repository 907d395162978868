"""A topic of a store: records go to its partitions as Kafka's producer would send them.

Each partition is a log of its own, with offsets of its own: records of one key are in order, those of different
partitions are not.  Several records that are given together are all judged, then appended partition by partition; if
the disk fails between two, those before have theirs (`error.appended_partitions` says which), unless they are in a
transaction.
Thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafkalog import _shown
from kafkalog._face.batch_maker import Records, encode_columns, ready_rows
from kafkalog._face.describing import SAMPLE_ROWS, Budget, TopicDescription, describe_topic, html_of_topic
from kafkalog._face.in_threads import in_thread
from kafkalog._face.keywords import takes
from kafkalog._face.readable import Readable
from kafkalog._face.rows import RecordInput, Row, as_row, check_records
from kafkalog._face.shown import show_topic
from kafkalog._face.topic_info import TopicInfo, check_appendable, countable
from kafkalog._face.writer import Writer
from kafkalog._native.codec.encode import ColumnEncoder
from kafkalog._native.codec.partitioner import StickyPartition, partition_for_key
from kafkalog._native.state.blocks import Single
from kafkalog.engine.format import values
from kafkalog.engine.format.batch import NO_PRODUCER
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import KafkalogError
from kafkalog.partition import Partition
from kafkalog.records import Header

if TYPE_CHECKING:
    from kafkalog._face.home import Home
    from kafkalog._face.store_partition import StorePartition
    from kafkalog._face.topic_info import TopicInfo


__all__ = ["RecordMetadata", "Topic", "TopicDescription", "TopicInfo"]


class RecordMetadata(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int


metadata = tuple.__new__  # of a RecordMetadata, at half the price


class Present(NamedTuple):
    """A topic's partitions as they were at one moment: who appends to each, as far as that was asked for."""

    changes: int  # of the catalog
    live: Mapping[str, Any]  # the directories, which are replaced whole
    places: list[TopicPartition]
    partitions: list[StorePartition | None]
    available: Sequence[int]  # those that can be written to, for records without a key


class SendsAsync(Protocol):
    """What sends for coroutines (`kafkalog.producer.Producer`)."""

    async def send_async(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: Sequence[Header],
        timestamp: int | None,
        partition: int | None,
    ) -> RecordMetadata: ...


def _nobody_sends() -> SendsAsync:
    raise AssertionError("a topic of a producer's own is nobody's to append to")


class Topic(Single, Readable):
    """Made by `Store.topic` and `Store.create_topic`."""

    _inner = frozenset({"appends", "by_partition", "checked", "present", "sticky"})

    def __init__(self, home: Home, name: str, asynchronously: Callable[[], SendsAsync] | None = None) -> None:
        """`asynchronously` gives what sends for coroutines."""
        self._home = home
        self._asynchronously = asynchronously or _nobody_sends
        self.name = name
        self.sticky = StickyPartition()
        self._seen = Present(-1, {}, [], [], ())

    @property
    def info(self) -> TopicInfo:
        """What it is now.  UnknownTopicOrPartitionException once it was deleted."""
        return self._home.info(self.name)

    @property
    def partitions(self) -> int:
        """How many it has now."""
        return self.info.partitions

    def partition(self, number: int) -> Partition:
        """One of its partitions, by its `number` from 0 on, with all that a Partition of `open_log` has: it is read,
        written to, awaited, cut and compacted by itself.

            prices = store.topic("prices").partition(0)
            prices.append(b"12.50", key=b"tea")
            prices.await_offset(0)

        In a store that only reads it is read-only.  It stays open as long as its store, also if it is moved to another
        directory, and its own `close` does nothing.  UnknownTopicOrPartitionException for a partition that the topic
        has not, and of a Partition whose topic was deleted; KafkaStorageException while its directory is offline.
        """
        home = self._home
        place = TopicPartition(self.name, values.whole(number, "partition", low=0))
        source = home.source(place)
        appends = None if home.read_only else home.partition(place)
        return Partition(source, appends, home.life, home.bells, how_to_write=home.how_to_write)

    def _parts(self, partitions: Any) -> Sequence[Partition]:
        there = self._home.numbers(self.name)
        if partitions is None:
            return [self.partition(number) for number in there]
        if not isinstance(partitions, Iterable) or isinstance(partitions, str | bytes):
            partitions = [partitions]
        return [self.partition(number) for number in dict.fromkeys(partitions)]

    def describe(self, *, sample_rows: int = SAMPLE_ROWS, exact: bool = False) -> TopicDescription:
        """What it holds, without reading it: records, from when to when, bytes, segments, of each partition and in all,
        and `sample_rows` records from places that are spread over all of them.

            found = store.topic("orders").describe()
            print(found.records, found.is_exact, found.local_bytes, found.sample)

        Records are counted exactly where the logs are small; else they are the span of offsets, which compaction and
        transactions make too many (`is_exact` says which).  `exact` has every batch header read.  A partition that
        cannot be looked at is told in `problems`.  UnknownTopicOrPartitionException once it was deleted.
        """
        sample_rows = values.whole(sample_rows, "sample_rows", low=0, expected="records")
        return describe_topic(self._home, self.name, Budget(exact=values.flag(exact, "exact")), sample_rows)

    def __repr__(self) -> str:
        return show_topic(self._home, self.name)

    def _repr_html_(self) -> str | None:
        """For notebooks."""
        return _shown.or_none(lambda: html_of_topic(self._home, self.name, repr(self)))

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

        As `Partition.append` otherwise, with a `timestamp` in ms since 1970.  UnknownTopicOrPartitionException for a
        partition that the topic has not.
        """
        present = self.present()
        partitions = present.partitions
        record: RecordInput = (value, key, headers, timestamp)
        if partition is not None:
            number = self.checked(partition)
        elif len(partitions) == 1:
            number = 0
        elif type(key) is bytes:
            number = partition_for_key(key, len(partitions))
        elif key is None and type(value) is bytes:
            number = self.sticky.take(len(value), present.available)
        else:
            record = as_row(record)
            number = self._partition_for(record, present)
        appends = partitions[number]
        if appends is None:
            appends = self.appends(number)
        return metadata(RecordMetadata, (self.name, number, appends.append_row(record)))

    async def append_async(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """As `append`, for a coroutine: `await store.topic("orders").append_async(b"...", key=b"customer-7")`.

        The loop is never blocked: a thread of the store appends what all coroutines have given meanwhile, in their
        order, and syncs once for all where the store is durable so.  A task that is cancelled stops to wait; the record
        goes its way, and is there once or, where the append fails, not at all.  `timestamp` is ms since 1970.  Errors
        as `append`; IllegalStateException where the store is closed meanwhile.
        """
        return await self._asynchronously().send_async(
            self.name, value, key=key, headers=headers, timestamp=timestamp, partition=partition
        )

    async def append_many_async(
        self, records: Iterable[RecordInput], *, partition: int | None = None
    ) -> dict[int, range]:
        """As `append_many`, for a coroutine, in a thread of its own; records that are no list are made one first.

        A task that is cancelled is so when the append has ended: its records are there then, unless it failed.
        """
        self._asynchronously()  # says why not, as append_async does
        check_records(records)
        rows = records if isinstance(records, list | tuple) else list(records)
        return await in_thread(lambda: self.append_many(rows, partition=partition))

    @takes()
    def append_many(self, records: Iterable[RecordInput], *, partition: int | None = None) -> dict[int, range]:
        """Append records, which are as `Partition.append_many` takes them: the offsets in each partition that got some.

        Records of one partition keep their order.  The records of all partitions are judged before any is appended: a
        record of a wrong type, too large, without a key on a compacted topic, or with a time out of range means that
        none is appended.  Not known before is a full disk, another error of the disk, a close, or a change of the
        topic's settings meanwhile: partitions that were reached before have theirs then, and `appended_partitions` of
        the error has their offsets.  `Store.transaction` has all or nothing, then too.
        """
        return self._append_all(self.by_partition(records, partition))

    @takes()
    def append_columns(
        self,
        values: Sequence[Any],
        *,
        keys: Sequence[Any] | None = None,
        timestamps: Sequence[Any] | None = None,
        headers: Sequence[Any] | None = None,
        partition: int | None = None,
    ) -> dict[int, range]:
        """Append columns of equal length, as `Partition.append_columns` takes them: the offsets in each partition that
        got some.  Rows go to `partition`, or where the key column says, those without a key to the sticky one.
        """
        present = self.present()
        number = None if partition is None else self.checked(partition)
        encoder = encode_columns(values, keys, headers, timestamps, self._home.clock.milliseconds())
        if number is None and len(present.partitions) > 1:
            return self._append_all(self._divided(encoder, present))
        return self._append_all({number or 0: encoder} if encoder.rows else {})

    def append_batches(self, data: bytes | bytearray | memoryview, partition: int) -> range:
        """Append one batch in Kafka's format to a partition, as a producer would send it; returns the offsets."""
        return self.appends(self.checked(partition)).append_batches(data)

    def writer(self, name: str, partition: int = 0) -> Writer:
        """An idempotent writer of one partition, as `Partition.writer`."""
        return Writer(self.appends(self.checked(partition)), name)

    def _append_all(self, records: Mapping[int, Records]) -> dict[int, range]:
        if len(records) == 1:
            [(number, rows)] = records.items()
            return {number: self.appends(number).append_as(NO_PRODUCER, rows)}
        checked = []
        for number, rows in records.items():
            appends = self.appends(number)
            try:
                checked.append((number, appends, appends.checked_batches(rows)))
            except KafkalogError as error:
                error.message = f"{self.name}-{number}, of the records that go there: {error.message}"
                raise
        done: dict[int, range] = {}
        for number, appends, groups in checked:
            try:
                done[number] = appends.append_checked(groups)
            except KafkalogError as error:
                error.appended_partitions = done
                raise
        return done

    def flush(self) -> None:
        """fsync everything appended so far, to all partitions: it survives power loss afterwards."""
        count, home = len(self.present().partitions), self._home
        for number in range(count):
            home.partition(TopicPartition(self.name, number)).flush()

    def delete_records(self, before_offset: int, partition: int) -> int:
        """Make everything of a partition below `before_offset` unreadable for ever, as `Partition.delete_records`."""
        return self.appends(self.checked(partition)).delete_records(before_offset)

    # --- where to ------------------------------------------------------------------------------------

    def by_partition(self, records: Iterable[RecordInput], partition: int | None) -> Mapping[int, Records]:
        """Records by the partition that each goes to; those of one keep their order."""
        if partition is not None:
            return {self.checked(partition): records}
        check_records(records)
        present = self.present()
        if len(present.partitions) == 1:
            return {0: records}
        encoder = ready_rows(records, self._home.clock.milliseconds())
        if encoder is not None:
            return self._divided(encoder, present)
        found: dict[int, list[Row]] = {}
        for row in map(as_row, records):
            found.setdefault(self._partition_for(row, present), []).append(row)
        return found

    def _divided(self, encoder: ColumnEncoder, present: Present) -> Mapping[int, ColumnEncoder]:
        return encoder.by_partition(len(present.partitions), self.sticky, present.available)

    def partition_for(self, row: Row, partition: int | None) -> int:
        """The partition of a record; UnknownTopicOrPartitionException for one that the topic has not."""
        if partition is not None:
            return self.checked(partition)
        return self._partition_for(row, self.present())

    def _partition_for(self, row: Row, present: Present) -> int:
        value, key, _, _ = row
        if key is not None:
            return partition_for_key(key, len(present.partitions))
        return self.sticky.take(len(value or b""), present.available)

    def checked(self, partition: Any) -> int:
        number = values.whole(partition, "partition", low=0)
        if number >= len(self.present().partitions):
            self._home.check_partition(TopicPartition(self.name, number))
        return number

    def present(self) -> Present:
        """Its partitions as they are now, to append to.  UnknownTopicOrPartitionException once it was deleted;
        LogReadOnlyException."""
        home = self._home
        seen = self._seen
        live = home.manager.directories.live
        changes = home.catalog.changes  # before the look: what comes after it is looked at again
        if seen.changes != changes or seen.live is not live:
            count = countable(home.info(self.name))
            places = [TopicPartition(self.name, number) for number in range(count)]
            available = home.catalog.available(self.name, count) or range(count)
            self._seen = seen = Present(changes, live, places, [None] * count, available)
        return seen

    def appends(self, partition: int) -> StorePartition:
        """What appends to one of its partitions, which is one that it has."""
        found = self.present().partitions
        appends = found[partition] if partition < len(found) else None
        if appends is None:
            home = self._home
            check_appendable(self.name)
            appends = home.partition(TopicPartition(self.name, partition))
            if partition < len(found):
                found[partition] = appends
        return appends


def __dir__() -> list[str]:
    return __all__
