"""A topic of a store; its records go to the partitions that Kafka's producer would choose.

Each partition is a separate log with its own offsets.  Records of one key keep their order; records of different
partitions do not.  Records that are passed together are all validated, and then appended partition by partition.  If
the disk fails between two partitions, the records of the first ones stay (`error.appended_partitions` has their
offsets), unless they are in a transaction. A Topic is thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafkalog import _shown
from kafkalog._face.batch_maker import Records, encode_columns, ready_rows
from kafkalog._face.describing import SAMPLE_ROWS, Budget, TopicDescription, describe_topic, html_of_topic
from kafkalog._face.in_threads import in_thread
from kafkalog._face.keywords import takes
from kafkalog._face.plotting import plotted
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
    from kafkalog.engine.files import Files


__all__ = ["RecordMetadata", "Topic", "TopicDescription", "TopicInfo"]


class RecordMetadata(NamedTuple):
    """The position of a record: its topic, partition and offset.

    Attributes:
        topic: The topic's name.
        partition: The partition's number.
        offset: The record's offset in the partition.

    Example:
        >>> with kafkalog.open("data") as store:
        ...     place = store.create_topic("orders").append(b"value")
        >>> place
        RecordMetadata(topic='orders', partition=0, offset=0)
    """

    topic: str
    partition: int
    offset: int


metadata = tuple.__new__  # creates a RecordMetadata in half the time


class Present(NamedTuple):
    """The partitions of a topic at one moment, with the objects that append to them, as far as these were used."""

    changes: int  # the catalog's count of changes
    live: Mapping[str, Any]  # the directories; the mapping is replaced, never changed
    places: list[TopicPartition]
    partitions: list[StorePartition | None]
    available: Sequence[int]  # partitions that can be written to, for records without a key


class SendsAsync(Protocol):
    """An object that sends records for coroutines (`kafkalog.producer.Producer`)."""

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
    raise AssertionError("the topic of a producer has no asynchronous appends")


class Topic(Single, Readable):
    """A topic of a store, returned by `Store.topic` and `Store.create_topic`.

    Iterating over a Topic reads all of its records.  A Topic is thread-safe.

    Attributes:
        name: The topic's name.

    Example:
        >>> with kafkalog.open("data") as store:
        ...     orders = store.create_topic("orders", partitions=4)
        ...     place = orders.append(b"value", key=b"customer-7")
        ...     print(orders.name, orders.partitions, orders.info.overrides)
        ...     print([record.value for record in orders])
        orders 4 {'retention.ms': '-1'}
        [b'value']
    """

    _inner = frozenset({"appends", "by_partition", "checked", "present", "sticky"})

    def __init__(self, home: Home, name: str, asynchronously: Callable[[], SendsAsync] | None = None) -> None:
        """Creates the topic `name` of a store.

        Args:
            home: The store's home.
            name: The topic's name.
            asynchronously: Returns the object that sends records for coroutines.
        """
        self._home = home
        self._asynchronously = asynchronously or _nobody_sends
        self.name = name
        self.sticky = StickyPartition()
        self._seen = Present(-1, {}, [], [], ())

    @property
    def info(self) -> TopicInfo:
        """The topic's current TopicInfo: number of partitions, id and settings.

        Raises:
            UnknownTopicOrPartitionException: The topic was deleted.
        """
        return self._home.info(self.name)

    @property
    def partitions(self) -> int:
        """The current number of partitions."""
        return self.info.partitions

    def partition(self, number: int) -> Partition:
        """Returns one of the topic's partitions.

        It has all methods of a Partition of `open_log`: it can be read, written to, awaited, truncated and compacted
        separately. In a read-only store it is read-only.  It stays open as long as the store, also if it is moved to
        another directory, and its `close` does nothing.

        Args:
            number: The partition's number, counted from 0.

        Returns:
            The Partition.

        Raises:
            UnknownTopicOrPartitionException: The topic has no such partition, or was deleted; a Partition of a deleted
                topic raises it too.
            KafkaStorageException: The partition's directory is offline.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     prices = store.create_topic("prices").partition(0)
            ...     offset = prices.append(b"12.50", key=b"tea")
            ...     print(prices.end_offset, prices.await_offset(0))
            1 True
        """
        home = self._home
        place = TopicPartition(self.name, values.whole(number, "partition", low=0))
        source = home.source(place)
        appends = None if home.read_only else home.partition(place)
        return Partition(source, appends, home.life, home.bells, how_to_write=home.how_to_write, files=home.files)

    def _parts(self, partitions: Any) -> Sequence[Partition]:
        there = self._home.numbers(self.name)
        if partitions is None:
            return [self.partition(number) for number in there]
        if not isinstance(partitions, Iterable) or isinstance(partitions, str | bytes):
            partitions = [partitions]
        return [self.partition(number) for number in dict.fromkeys(partitions)]

    def describe(self, *, sample_rows: int = SAMPLE_ROWS, exact: bool = False) -> TopicDescription:
        """Returns what the topic holds, without reading all of its records.

        The count of records is exact for small logs.  For large logs it is the number of offsets, which compaction and
        transactions make larger than the number of records; `is_exact` tells which.  If a partition cannot be read,
        `problems` of the result says why.

        Args:
            sample_rows: How many sample records to return, from positions that are spread over all partitions.
            exact: Read every batch header, so that the count is exact however large the logs are.

        Returns:
            A TopicDescription: records, oldest and newest timestamp (ms), bytes and segments of each partition and in
            total, and the sample.

        Raises:
            IllegalArgumentException: An argument has a wrong type or value.
            UnknownTopicOrPartitionException: The topic was deleted.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders", partitions=2)
            ...     offsets = orders.append_many([b"one", b"two"])
            ...     found = orders.describe()
            >>> found.records, found.is_exact, len(found.partitions)
            (2, True, 2)
        """
        sample_rows = values.whole(sample_rows, "sample_rows", low=0, expected="records")
        return describe_topic(self._home, self.name, Budget(exact=values.flag(exact, "exact")), sample_rows)

    @takes()
    def plot(self, name: str | None = None, *, deep: bool = False) -> Any:
        """Returns pictures of the topic for a notebook (`pip install 'kafkalog[report]'`).

        The pictures show how records and bytes are spread over its partitions and over time.  The call reads the
        directory as `kafkalog report` does: sizes, indexes and a sample of batch headers, so it is fast for a large log
        too.  It takes no lock, and other threads may append meanwhile.  The chart contains its numbers, at most 5,000
        rows of a table, and no longer needs the log.

        Args:
            name: The one picture to return.  By default all of the topic's pictures that have something to show, one
                below the other.
            deep: Read every batch instead of a sample.

        Returns:
            An altair chart, which a notebook displays without a network; `chart.save("chart.svg")` writes it to a file.

        Raises:
            IllegalArgumentException: An argument has a wrong type, or no picture has that name; the error lists the
                names.
            IllegalStateException: The store is closed.
            UnknownTopicOrPartitionException: The topic was deleted.
            KafkaStorageException: The directory cannot be read.
            MissingPackageException: altair or vl-convert is not installed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders", partitions=2)
            ...     offsets = orders.append_many([b"tea", b"milk"])
            ...     chart = orders.plot()
        """
        return plotted(self._place_to_plot, name, deep=deep, topic=self.name)

    def _place_to_plot(self) -> tuple[Sequence[str], Files]:
        self._home.info(self.name)
        return self._home.log_dirs, self._home.files

    def __repr__(self) -> str:
        return show_topic(self._home, self.name)

    def _repr_html_(self) -> str | None:
        """Returns a table of the partitions as HTML for notebooks."""
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
        """Appends one record.

        The record goes to `partition` if it is given, else to the partition of its key.  A record without a key goes to
        the current sticky partition, as in Kafka's producer.

        Args:
            value: Bytes, or any C-contiguous buffer (bytearray, memoryview, a numpy array); None is a tombstone.
            key: Bytes or such a buffer; None for a record without a key.
            headers: Pairs of a str and bytes (or None).
            timestamp: Milliseconds since 1970 as an int; by default the current time, -1 for none.
            partition: The number of the partition.

        Returns:
            The topic, partition and offset of the record.

        Raises:
            IllegalArgumentException: An argument has a wrong type or value; nothing is appended.
            UnknownTopicOrPartitionException: The topic has no such partition, or was deleted.
            RecordTooLargeException: The record is larger than `max.message.bytes`.
            RecordValidationException: The topic's settings do not allow the record, for example a record without a key
                on a compacted topic.
            KafkaStorageException: The disk failed.
            LogReadOnlyException: The store is read-only.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     orders.append(b"value", key=b"customer-7", headers=[("trace", b"7")])
            RecordMetadata(topic='orders', partition=0, offset=0)
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
        """Appends one record from a coroutine, without blocking the event loop.

        A thread of the store appends the records that all coroutines have passed in the meantime, in their order.  With
        durability "fsync" it syncs once for all of them.  A task that is cancelled stops waiting; its record is still
        appended once, or, if the append fails, not at all.

        Args:
            value: As for `append`.
            key: As for `append`.
            headers: As for `append`.
            timestamp: Milliseconds since 1970; by default the current time.
            partition: The number of the partition; by default as for `append`.

        Returns:
            The topic, partition and offset of the record.

        Raises:
            KafkalogError: Any error of `append`.
            IllegalStateException: The store was closed in the meantime.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     with kafkalog.open("data") as store:
            ...         orders = store.create_topic("orders")
            ...         print(await orders.append_async(b"value", key=b"customer-7"))
            >>> asyncio.run(main())
            RecordMetadata(topic='orders', partition=0, offset=0)
        """
        return await self._asynchronously().send_async(
            self.name, value, key=key, headers=headers, timestamp=timestamp, partition=partition
        )

    async def append_many_async(
        self, records: Iterable[RecordInput], *, partition: int | None = None
    ) -> dict[int, range]:
        """Appends records from a coroutine, in a separate thread.

        A task that is cancelled ends when the append has ended.  Its records are stored then, unless the append failed.

        Args:
            records: As for `append_many`; an iterable that is not a list or tuple is first made into a list.
            partition: The number of the partition for all records; by default as for `append_many`.

        Returns:
            The offsets in each partition that got records.

        Raises:
            KafkalogError: Any error of `append_many`.

        Example:
            >>> import asyncio
            >>> async def main():
            ...     with kafkalog.open("data") as store:
            ...         orders = store.create_topic("orders")
            ...         print(await orders.append_many_async([b"one", b"two"]))
            >>> asyncio.run(main())
            {0: range(0, 2)}
        """
        self._asynchronously()  # raises for a closed or read-only store, as append_async does
        check_records(records)
        rows = records if isinstance(records, list | tuple) else list(records)
        return await in_thread(lambda: self.append_many(rows, partition=partition))

    @takes()
    def append_many(self, records: Iterable[RecordInput], *, partition: int | None = None) -> dict[int, range]:
        """Appends records to the partitions of their keys.

        Records of one partition keep their order.  All records are validated before any is appended.  A record of a
        wrong type, one that is too large, one without a key on a compacted topic, or one with a time out of range means
        that none is appended.  Four failures cannot be foreseen: a full disk, another disk error, a close, and a change
        of the topic's settings during the call.  Partitions that were appended to before such a failure keep their
        records, and the error's `appended_partitions` has their offsets.  In a `Store.transaction` either all records
        are stored or none.

        Args:
            records: Records in the forms that `Partition.append_many` accepts.
            partition: The number of the partition for all records; by default as for `append`.

        Returns:
            The offsets in each partition that got records.

        Raises:
            IllegalArgumentException: A record has a wrong type or value.
            UnknownTopicOrPartitionException: The topic has no such partition, or was deleted.
            RecordTooLargeException: A record is larger than `max.message.bytes`.
            RecordValidationException: The topic's settings do not allow a record.
            KafkaStorageException: The disk failed.
            LogReadOnlyException: The store is read-only.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     orders.append_many([b"one", (b"two", b"customer-7")])
            {0: range(0, 2)}
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
        """Appends columns of equal length to the partitions of their keys, several times as fast as `append_many`.

        Args:
            values: The values, in the forms that `Partition.append_columns` accepts.
            keys: The keys; by default the records have no keys.  Rows without a key go to the sticky partition.
            timestamps: Milliseconds since 1970 for each row; by default the current time.
            headers: The headers of each row; by default none.
            partition: The number of the partition for all rows; by default as for `append`.

        Returns:
            The offsets in each partition that got rows.

        Raises:
            IllegalArgumentException: A column has a wrong type; the error names the first wrong entry.
            KafkalogError: Any other error of `append_many`.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     orders.append_columns([b"one", b"two"], keys=[b"a", b"b"])
            {0: range(0, 2)}
        """
        present = self.present()
        number = None if partition is None else self.checked(partition)
        encoder = encode_columns(values, keys, headers, timestamps, self._home.clock.milliseconds())
        if number is None and len(present.partitions) > 1:
            return self._append_all(self._divided(encoder, present))
        return self._append_all({number or 0: encoder} if encoder.rows else {})

    def append_batches(self, data: bytes | bytearray | memoryview, partition: int) -> range:
        """Appends one batch in Kafka's format to a partition, as a producer would send it.

        Args:
            data: The bytes of the batch: any C-contiguous buffer.
            partition: The number of the partition.

        Returns:
            The offsets of its records.

        Raises:
            IllegalArgumentException: `data` is not a buffer with a whole batch.
            UnknownTopicOrPartitionException: The topic has no such partition, or was deleted.
            CorruptRecordException: The batch is damaged.
            KafkaStorageException: The disk failed.
            LogReadOnlyException: The store is read-only.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     place = orders.append(b"value")
            ...     batch = bytes(orders.partition(0).reader().read_chunk().data)
            ...     orders.append_batches(batch, 0)
            range(1, 2)
        """
        return self.appends(self.checked(partition)).append_batches(data)

    def writer(self, name: str, partition: int = 0) -> Writer:
        """Returns an idempotent writer of one partition.

        Args:
            name: The writer's name; the same name continues its sequence in a later process.
            partition: The number of the partition.

        Returns:
            The Writer of that name.

        Raises:
            IllegalArgumentException: `name` is empty or not text.
            UnknownTopicOrPartitionException: The topic has no such partition, or was deleted.
            LogReadOnlyException: The store is read-only.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     writer = store.create_topic("orders").writer("import")
            ...     print(writer.append(b"one", sequence=0), writer.append(b"one", sequence=0))
            0 None
        """
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
                error.message = f"in the records for {self.name}-{number}: {error.message}"
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
        """Calls fsync for everything appended so far to all partitions, so that it survives a power loss.

        Raises:
            UnknownTopicOrPartitionException: The topic was deleted.
            KafkaStorageException: The disk failed.
            LogReadOnlyException: The store is read-only.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     place = orders.append(b"value")
            ...     orders.flush()
        """
        count, home = len(self.present().partitions), self._home
        for number in range(count):
            home.partition(TopicPartition(self.name, number)).flush()

    def delete_records(self, before_offset: int, partition: int) -> int:
        """Makes all records of a partition below `before_offset` unreadable forever.

        Args:
            before_offset: The first offset to keep; -1 stands for the high watermark.
            partition: The number of the partition.

        Returns:
            The new log start offset.

        Raises:
            UnknownTopicOrPartitionException: The topic has no such partition, or was deleted.
            OffsetOutOfRangeException: `before_offset` is beyond the end.
            PolicyViolationException: The topic is compacted, and does not delete.
            KafkaStorageException: The disk failed.
            LogReadOnlyException: The store is read-only.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     offsets = orders.append_many([b"one", b"two"])
            ...     orders.delete_records(1, partition=0)
            1
        """
        return self.appends(self.checked(partition)).delete_records(before_offset)

    # --- which partition -----------------------------------------------------------------------------

    def by_partition(self, records: Iterable[RecordInput], partition: int | None) -> Mapping[int, Records]:
        """Returns the records by partition; records of one partition keep their order."""
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
        """Returns the number of the partition that a record would go to.

        For a record without a key it chooses a sticky partition, as an append does.

        Args:
            row: The record: (value, key, headers, timestamp).
            partition: The number of the partition, or None for the partition of the key.

        Returns:
            The number of the partition.

        Raises:
            UnknownTopicOrPartitionException: The topic has no such partition, or was deleted.
            LogReadOnlyException: The store is read-only.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders", partitions=4)
            ...     print(orders.partition_for((b"value", b"customer-7", (), None), None))
            3
        """
        if partition is not None:
            return self.checked(partition)
        return self._partition_for(row, self.present())

    def _partition_for(self, row: Row, present: Present) -> int:
        value, key, _, _ = row
        if key is not None:
            return partition_for_key(key, len(present.partitions))
        return self.sticky.take(len(value or b""), present.available)

    def checked(self, partition: Any) -> int:
        """Returns the partition's number as an int; raises if the topic has no such partition."""
        number = values.whole(partition, "partition", low=0)
        if number >= len(self.present().partitions):
            self._home.check_partition(TopicPartition(self.name, number))
        return number

    def present(self) -> Present:
        """Returns the topic's current partitions, to append to.

        Raises UnknownTopicOrPartitionException if the topic was deleted, and LogReadOnlyException.
        """
        home = self._home
        seen = self._seen
        live = home.manager.directories.live
        changes = home.catalog.changes  # read first, so that a later change is seen by the next call
        if seen.changes != changes or seen.live is not live:
            count = countable(home.info(self.name))
            places = [TopicPartition(self.name, number) for number in range(count)]
            available = home.catalog.available(self.name, count) or range(count)
            self._seen = seen = Present(changes, live, places, [None] * count, available)
        return seen

    def appends(self, partition: int) -> StorePartition:
        """Returns the object that appends to an existing partition."""
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
