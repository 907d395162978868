"""The public class `Store`, returned by `kafkalog.open`.

    with kafkalog.open("data") as store:
        orders = store.create_topic("orders", partitions=4)
        orders.append(b'{"id": 1}', key=b"customer-7")
        reader = store.reader("billing", topics=["orders"])

A store has topics with partitions, cursors that survive restarts, and transactions over several partitions, in one
process and without a broker.  Formats and rules are Kafka's, so a broker and its tools can use the same directories. A
writable store uses a StoreHome and holds the directories' locks.  A read-only store uses a StoreView and changes no
file.  One process writes, and any number of processes read.

Guarantees.  Order: records of one partition keep the order of their appends; records of several partitions do not.
Durability: with "os" an append that returned survives a crash of the process, with "fsync" also a power loss.
Repetition: if a writer crashes before its append returns, it does not know whether the record was stored, unless it has
a name (`writer`) or uses a transaction.  After a crash a reader gets the records since its last commit again. A Store
is thread-safe; each iterator belongs to one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from kafkalog import _shown
from kafkalog._face import store_cursors
from kafkalog._face.batch_maker import BatchMaker
from kafkalog._face.catalog import checked_settings
from kafkalog._face.cutting import told_of_cuts
from kafkalog._face.describing import Budget, StoreDescription, describe_topic
from kafkalog._face.in_threads import ClosingAsync
from kafkalog._face.keywords import called, takes
from kafkalog._face.plotting import plotted
from kafkalog._face.readable import Readable
from kafkalog._face.reader_options import Offsets, ReaderOptions, group_options
from kafkalog._face.remote_tier import remote_tier
from kafkalog._face.selection import Filters
from kafkalog._face.serving import RunningServer, served
from kafkalog._face.shown import html_of_store, show_store
from kafkalog._face.store_cursors import CursorInfo
from kafkalog._face.store_handles import open_or_join
from kafkalog._face.store_home import StoreHome
from kafkalog._face.store_view import StoreView
from kafkalog._face.topic_settings import TopicSettings, broker_properties
from kafkalog._limits import LONG_MAX
from kafkalog._native.state.blocks import Closing
from kafkalog.config import LogConfig, ProducerStateManagerConfig
from kafkalog.engine.coordinator.transaction_coordinator import TransactionDescription, TransactionDescriptions
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, Clock, Files
from kafkalog.engine.files.failure import full_at_open
from kafkalog.engine.format import values
from kafkalog.engine.format.names import INTERNAL_TOPICS, TopicPartition, partition_of
from kafkalog.engine.host.log_directories import absolute_paths
from kafkalog.engine.host.log_dirs import check_taken_over, listing, refuse_file
from kafkalog.engine.host.settings import ManagerSettings, checked_load
from kafkalog.engine.log.context import ProducerSettings
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    LogDirLockedException,
    UnknownTopicOrPartitionException,
)
from kafkalog.partition import TRANSACTION_TIMEOUT_MS, Partition
from kafkalog.producer import (
    BATCH_BYTES,
    BUFFER_BYTES,
    LINGER_MS,
    MAX_BLOCK_MS,
    AsyncAppends,
    BatchingSettings,
    Producer,
)
from kafkalog.queue import Queue, queue_options
from kafkalog.reader import StoreReader
from kafkalog.remote import RemoteStorage, is_address, is_tier
from kafkalog.topic import Topic
from kafkalog.transaction import StoreTransaction, checked_id, checked_timeout

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from kafkalog._face.cutting import OnDamage
    from kafkalog._face.home import Home
    from kafkalog._face.opening import Durability
    from kafkalog._face.selection import Place
    from kafkalog._face.topic_info import TopicInfo
    from kafkalog.engine.format.group_records import CommittedOffset
    from kafkalog.engine.host.log_manager import LogManager
    from kafkalog.engine.remote.remote_log_manager import RemoteLogManager, RemoteLogManagerConfig
    from kafkalog.group_reader import GroupReader
    from kafkalog.metrics.registry import MetricsRegistry


__all__ = ["CursorInfo", "Store", "StoreDescription", "open_store"]


class Store(Closing, ClosingAsync, Readable):
    """The topics of one or several log directories, returned by `kafkalog.open`.

    A Store is a context manager and is thread-safe.  `name in store` tells whether a topic exists.

    Example:
        >>> with kafkalog.open("data") as store:
        ...     orders = store.create_topic("orders", partitions=4)
        ...     place = orders.append(b"value", key=b"customer-7")
        ...     print("orders" in store, store.read_only, store.closed)
        ...     print([record.value for record in store])
        True False False
        [b'value']
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._topics: dict[str, Topic] = {}
        self._asynchronously = AsyncAppends(home)

    def __enter__(self) -> Store:
        return self

    # --- open and close --------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """True if the store was closed, or if another process opened it."""
        return not self._home.life.live

    @property
    def read_only(self) -> bool:
        """True if the store was opened with `read_only=True`."""
        return self._home.read_only

    @property
    def manager(self) -> LogManager:
        """The store's LogManager, which has all methods of Kafka's class of that name.

        Raises:
            LogReadOnlyException: The store is read-only.
        """
        return self._own().manager

    @property
    def remote_log_manager(self) -> RemoteLogManager:
        """The manager of the remote tier; its `run_once` copies and expires segments now.

        Raises:
            IllegalStateException: The store was opened without `remote`.
            LogReadOnlyException: The store is read-only.
        """
        tier = self._own().tier
        if tier is None:
            raise IllegalStateException(
                "the store has no remote tier", hint='kafkalog.open(..., remote="s3://bucket/prefix")'
            )
        return tier.remote_log_manager

    def close(self) -> None:
        """Closes the store as a broker's clean shutdown does.

        Open transactions are aborted, and producers send the records that they hold.  Readers and threads that wait get
        an IllegalStateException.  A second call does nothing.  If this process has several handles of the store, the
        call ends everything that was opened through this handle, and the last handle closes the store.

        Raises:
            IllegalStateException: The call comes from a callback of a producer's future, or from a signal handler or a
                finalizer that interrupted a call of the store.  Nothing is closed.
            KafkaStorageException: A log could not be flushed; the next open recovers it.

        Example:
            >>> store = kafkalog.open("data")
            >>> store.close()
            >>> store.closed
            True
        """
        self._home.close()

    def __repr__(self) -> str:
        return show_store(self._home)

    def _repr_html_(self) -> str | None:
        """Returns a table of the topics as HTML for notebooks."""
        return _shown.or_none(lambda: html_of_store(self._home))

    def _parts(self, partitions: Any) -> Sequence[Partition]:
        if partitions is None:
            partitions = self.topics()
        elif isinstance(partitions, str | tuple) or not isinstance(partitions, Iterable):
            partitions = [partitions]
        found: dict[TopicPartition, None] = {}
        for each in partitions:
            if isinstance(each, str) and each in self._home.names():
                found |= dict.fromkeys(TopicPartition(each, number) for number in self._home.numbers(each))
            else:
                found[partition_of(each)] = None
        topics = {name: self.topic(name) for name in dict.fromkeys(each.topic for each in found)}
        return [topics[each.topic].partition(each.partition) for each in found]

    def _own(self) -> Home:
        """Returns the store's home; raises if the store is closed or read-only."""
        self._home.check_writable()
        return self._home

    # --- topics ----------------------------------------------------------------------------------------

    def topics(self, *, internal: bool = False) -> list[str]:
        """Returns the names of all topics in alphabetical order.

        Args:
            internal: Include Kafka's internal topics, which hold cursors and transactions.  A reader can read them:
                `reader(topics=["__consumer_offsets"])` reads the partitions that were created so far.

        Returns:
            The list of names.

        Raises:
            IllegalArgumentException: `internal` is not a bool.
            IllegalStateException: The store is closed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     with store.reader("billing", topics=["orders"]) as reader:
            ...         positions = reader.commit()
            ...     print(store.topics(), store.topics(internal=True))
            ['orders'] ['__consumer_offsets', 'orders']
        """
        internal = values.flag(internal, "internal")
        return [name for name in self._home.names() if internal or name not in INTERNAL_TOPICS]

    def topic(self, name: str) -> Topic:
        """Returns a topic by its name.

        Args:
            name: The topic's name.

        Returns:
            The Topic, the same object for each call.

        Raises:
            UnknownTopicOrPartitionException: No topic has that name.
            IllegalStateException: The store is closed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     print(store.topic("orders").partitions)
            1
        """
        self._home.info(name)
        return self._topics.setdefault(name, Topic(self._home, name, self._asynchronously))

    def __contains__(self, name: object) -> bool:
        """Returns whether `topic(name)` finds a topic, also one of Kafka's internal topics."""
        return name in self._home.names()

    def describe_topic(self, name: str) -> TopicInfo:
        """Returns the partitions, id and settings of a topic.

        Settings that a broker's cluster metadata has for the topic are included.

        Args:
            name: The topic's name.

        Returns:
            A TopicInfo: name, number of partitions, topic id, settings that differ from the store's defaults.

        Raises:
            UnknownTopicOrPartitionException: No topic has that name.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders", partitions=4, config={"cleanup.policy": "compact"})
            ...     info = store.describe_topic("orders")
            >>> info.partitions, info.overrides["cleanup.policy"]
            (4, 'compact')
        """
        self._home.topic_settings.look_again()
        return self._home.info(name)

    def describe(self, *, sample_rows: int = 0, exact: bool = False) -> StoreDescription:
        """Returns what all topics hold, without reading all of their records.

        Args:
            sample_rows: How many sample records to return for each topic.
            exact: Read every batch header, so that the counts are exact; see `Topic.describe`.

        Returns:
            A StoreDescription: the totals, and a TopicDescription for each topic.

        Raises:
            IllegalArgumentException: An argument has a wrong type or value.
            IllegalStateException: The store is closed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("orders").append(b"value")
            ...     found = store.describe()
            >>> found.records, [topic.name for topic in found.topics]
            (1, ['orders'])
        """
        sample_rows = values.whole(sample_rows, "sample_rows", low=0, expected="records")
        budget = Budget(exact=values.flag(exact, "exact"))
        found = StoreDescription(self._home.place, [])
        for name in self.topics():
            with suppress(UnknownTopicOrPartitionException):  # deleted meanwhile
                found.topics.append(describe_topic(self._home, name, budget, sample_rows))
                found.sample.extend(found.topics[-1].sample)
        return found

    @takes()
    def plot(self, name: str | None = None, *, deep: bool = False) -> Any:
        """Returns pictures of the store for a notebook (`pip install 'kafkalog[report]'`).

        The pictures show topics by bytes, disks, rates over time, and codecs.  The call reads the directory as
        `kafkalog report` does: sizes, indexes and a sample of batch headers, so it is fast for a large log too.  It
        takes no lock, and other threads may append meanwhile.  The chart contains its numbers, at most 5,000 rows of a
        table, and no longer needs the log.

        Args:
            name: The one picture to return.  By default all overview pictures that have something to show, one below
                the other.
            deep: Read every batch instead of a sample.

        Returns:
            An altair chart, which a notebook displays without a network; `chart.save("chart.svg")` writes it to a file.

        Raises:
            IllegalArgumentException: An argument has a wrong type, or no picture has that name; the error lists the
                names.
            IllegalStateException: The store is closed.
            KafkaStorageException: The directory cannot be read.
            MissingPackageException: altair or vl-convert is not installed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("orders").append(b"value")
            ...     chart = store.plot()
        """
        return plotted(self._place_to_plot, name, deep=deep)

    def _place_to_plot(self) -> tuple[Sequence[str], Files]:
        self._home.check_open()
        return self._home.log_dirs, self._home.files

    @takes()
    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        config: Mapping[str, str] | None = None,
        exist_ok: bool = False,
        topic_id: str | None = None,
    ) -> Topic:
        """Creates a topic with all its partitions, or, after a crash, with none of them.

        A new topic keeps its records forever: `retention.ms=-1` is written into its settings, unless `config` or the
        store's own `config` has a `retention.ms`.  (Kafka's default is seven days.)  With `retention.bytes` alone,
        records are deleted by size and not by age.

        Args:
            name: The topic's name.
            partitions: The number of partitions.
            config: Kafka's topic settings as text, such as `{"retention.ms": "604800000"}`; they are stored next to the
                data.
            exist_ok: Return a topic that exists already, unchanged.  If it has other partitions or settings than those
                given, a warning in the log "kafkalog.topics" names them; `alter_topic` and `add_partitions` change
                them.
            topic_id: A Kafka Uuid of 22 characters; by default a random one.

        Returns:
            The Topic.

        Raises:
            TopicExistsException: The topic exists, and `exist_ok` is False.
            InvalidTopicException: Kafka does not allow the name.
            InvalidPartitionsException: The number of partitions is out of range.
            ConfigException: A setting is invalid.
            KafkaStorageException: The disk failed.
            LogReadOnlyException: The store is read-only.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders", partitions=4, config={"retention.ms": "604800000"})
            ...     print(orders.partitions)
            4
        """
        home = self._own()
        exist_ok = values.flag(exist_ok, "exist_ok")
        home.create_topic(name, partitions, config, topic_id, exist_ok=exist_ok)
        return self.topic(name)

    def alter_topic(self, name: str, config: Mapping[str, str | None]) -> TopicInfo:
        """Changes some settings of a topic.

        Args:
            name: The topic's name.
            config: The settings to change, as text; None removes a setting, so that the store's default applies.
                `{"retention.ms": None}` makes the topic keep its records forever, as a new topic does.

        Returns:
            The TopicInfo with the new settings.

        Raises:
            UnknownTopicOrPartitionException: No topic has that name.
            ConfigException: A setting is invalid; nothing is changed.
            LogReadOnlyException: The store is read-only.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     info = store.alter_topic("orders", {"retention.ms": "604800000"})
            >>> info.overrides
            {'retention.ms': '604800000'}
        """
        return self._own().alter_topic(name, config)

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Increases the number of partitions of a topic.

        Records of a key may go to another partition from then on, as in Kafka.

        Args:
            name: The topic's name.
            partitions: The new total number of partitions.

        Returns:
            The TopicInfo with the new number.

        Raises:
            UnknownTopicOrPartitionException: No topic has that name.
            InvalidPartitionsException: The topic has as many partitions already, or more.
            LogReadOnlyException: The store is read-only.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     print(store.add_partitions("orders", 4).partitions)
            4
        """
        return self._own().add_partitions(name, partitions)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, its records and the offsets that cursors have in it.

        The files are removed after `file.delete.delay.ms`.

        Args:
            name: The topic's name.

        Raises:
            UnknownTopicOrPartitionException: No topic has that name.
            InvalidTopicException: The topic is one of Kafka's internal topics.
            LogReadOnlyException: The store is read-only.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     store.delete_topic("orders")
            ...     print(store.topics())
            []
        """
        self._own().delete_topic(name)
        self._topics.pop(name, None)

    # --- writing ---------------------------------------------------------------------------------------

    @takes()
    def producer(
        self,
        *,
        linger_ms: int = LINGER_MS,
        batch_bytes: int = BATCH_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        max_block_ms: int = MAX_BLOCK_MS,
        compression: str | None = None,
        name: str | None = None,
    ) -> Producer:
        """Returns a producer: any thread calls `send()`, and the producer's thread appends the records in batches.

        The producer is a context manager.

        Args:
            linger_ms: How long, in milliseconds, the first record of a batch waits for more records.
            batch_bytes: The size in bytes at which a batch no longer waits.
            buffer_bytes: The most bytes of unanswered records, as stored in the log.
            max_block_ms: How long, in milliseconds, a send waits for room in the buffer.
            compression: How batches are compressed: "none", "gzip", "snappy", "lz4" or "zstd"; by default as all
                appends of the store.
            name: Makes the producer idempotent, as `Topic.writer` does: batches carry a producer id and sequence
                numbers.

        Returns:
            The Producer.

        Raises:
            IllegalArgumentException: An argument has a wrong type or value.
            UnsupportedCompressionTypeException: The codec is not known, or not installed.
            LogReadOnlyException: The store is read-only.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     with store.producer(linger_ms=20) as producer:
            ...         future = producer.send("orders", b"value", key=b"customer-7")
            ...         print(future.result())
            RecordMetadata(topic='orders', partition=0, offset=0)
        """
        settings = BatchingSettings(linger_ms, batch_bytes, buffer_bytes, max_block_ms, compression, name)
        return Producer(self._own(), settings)

    # --- reading and cursors ---------------------------------------------------------------------------

    # More than eight parameters: each is a separate option that most callers omit, and it is passed by name.
    @takes(Filters)
    def reader(
        self,
        cursor: str | None = None,
        *,
        topics: Iterable[str] | None = None,
        partitions: Iterable[str | TopicPartition] | None = None,
        start: Place = "earliest",
        end: Place | None = None,
        start_offsets: Offsets | None = None,
        chunk_bytes: int | None = None,
        shared: bool = False,
        group: bool = False,
        assignor: str | None = None,
        max_poll_interval_ms: int | None = None,
        on_assign: Callable[[GroupReader, list[TopicPartition]], object] | None = None,
        on_revoke: Callable[[GroupReader, list[TopicPartition]], object] | None = None,
        pattern: str | None = None,
        group_instance_id: str | None = None,
        **filters: Unpack[Filters],
    ) -> StoreReader:
        """Returns a reader of several partitions, which continues where its cursor stopped.

        The reader reads the partitions round-robin; see `kafkalog.reader`.  It reads all partitions of `topics`, also
        partitions that are added later, from their beginning.  Instead of `topics` it can read `partitions`, or, if
        neither is given, the partitions that the cursor has committed.

        A partition begins at its offset in `start_offsets`, else at the cursor's offset, else as `start` says.  If the
        log no longer has that offset, `start` decides again, as Kafka's auto.offset.reset does.

        A cursor is a position.  Two readers of one cursor would both get every record, and the last commit would win.
        So a store allows one open reader for a cursor, unless the readers are `shared`.  With `group=True` the cursor
        is a consumer group.  Its readers, in any thread, and clients of the store's server divide the partitions of
        `topics`: each partition has one reader at a time; see `kafkalog.group_reader`.  Read with `follow`: a plain
        `for` loop ends at once while the reader has no partition.

        Args:
            cursor: The name of the cursor, Kafka's group.id; without a name, positions cannot be committed.
            topics: The names of the topics to read.
            partitions: The partitions to read: "orders-0", or pairs of topic and number.
            start: Where to begin: "earliest"; "latest", for records appended from now on; "error", which raises an
                error; an offset; or a time (a datetime with a time zone, or ISO 8601 text).
            end: The offset or time (exclusive) where reading ends, as for `Topic.records`.  Positions and commits do
                not pass the first record behind it, so later readers of the cursor get it.
            start_offsets: The first offset to read, by partition; not with `group`.
            chunk_bytes: How many bytes of a partition are read at once; by default 1 MiB, or less for many partitions.
            shared: Allow several open readers of the cursor, for readers that have different `partitions`.
            group: Be a member of the consumer group of that name, which divides the partitions of `topics`.  A topic
                that does not exist is read once it is created; a warning in the log names it.
            assignor: How the group divides them: "uniform" (the default; few partitions move when a member comes or
                goes) or "range" (neighbouring partitions of each topic).
            max_poll_interval_ms: A member that is not used for so long leaves the group; 300,000 by default.
            on_assign: Called with the reader and the partitions that it now reads as well.
            on_revoke: Called with the reader and the partitions that it must give up, before they go; by default their
                positions are committed.
            pattern: Instead of `topics`, the topics of the group: all whose whole name matches this regular expression,
                in the syntax of RE2, now or later.
            group_instance_id: The name of a static member, Kafka's group.instance.id.  When its reader is closed, the
                partitions wait for the next reader of this name, until the session times out.
            **filters: `key`, `key_prefix`, `start_time`, `end_time`, `headers`, `grep`, `where`, `isolation` and
                `on_damage` choose records; see `kafkalog.Filters`.  Records that they exclude count as read, and so
                does damage that `on_damage` passes over.  The time index finds where to begin.

        Returns:
            The StoreReader.

        Raises:
            UnknownTopicOrPartitionException: A topic or partition does not exist, without `group`.
            IllegalArgumentException: An argument has a wrong type or value, or `start_time` is after `end_time`.
            IllegalStateException: The cursor has a reader already.
            GroupMaxSizeReachedException: The group is full.
            InvalidRegularExpression: `pattern` is not valid.
            UnreleasedInstanceIdException: Another member has the `group_instance_id` now.
            GroupIdNotFoundException: The name belongs to another kind of group.
            NoOffsetForPartitionException: The cursor has no offset for a partition, and `start` is "error".
            UnstableOffsetCommitException: `isolation` is "read_committed", and an open transaction has offsets of the
                cursor.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("orders").append(b"value")
            ...     with store.reader("billing", topics=["orders"]) as reader:
            ...         print([record.value for record in reader.poll()])
            ...         positions = reader.commit()
            ...     with store.reader("billing", topics=["orders"]) as reader:
            ...         print(reader.poll())
            [b'value']
            []
        """
        options = ReaderOptions(
            cursor,
            topics,
            partitions,
            start=start,
            end=end,
            start_offsets=start_offsets,
            chunk_bytes=chunk_bytes,
            shared=shared,
            filters=filters,
            group=group_options(
                group, assignor, max_poll_interval_ms, on_assign, on_revoke, pattern, group_instance_id
            ),
        )
        self._home.check_open()
        if options.group is None:
            return StoreReader(self._home, options)
        from kafkalog.group_reader import GroupReader

        return GroupReader(self._home, options)

    # More than eight parameters: all but two by name, and Kafka has as many settings of a share group.
    def queue(
        self,
        name: str,
        *,
        topics: Iterable[str],
        lock_ms: int = 30_000,
        max_deliveries: int = 5,
        dead_letters: str | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    ) -> Queue:
        """Returns a queue: workers share the records of topics, and acknowledge each one.

        A queue is a share group of Kafka; see `kafkalog.queue`.  All objects of one name take from the same records,
        and so do clients of a server.  Its position survives restarts and crashes.

        Args:
            name: The queue's name, Kafka's group.id.  A cursor and a queue cannot have the same name.
            topics: The names of the topics.
            lock_ms: How long a record belongs to the worker that took it; then another one gets it.
            max_deliveries: How often a record is delivered before it is ended without success.
            dead_letters: The name of a topic for records that were rejected or delivered too often; it is created if it
                does not exist.  Without it they are dropped.  It cannot be a topic of the queue, nor begin with "__".
            start: Where a new queue begins: at the "earliest" records, or at the "latest", which is the end.
            isolation: "read_committed" omits records of aborted transactions, and waits for open ones.

        Returns:
            The Queue.

        Raises:
            UnknownTopicOrPartitionException: A topic does not exist.
            IllegalArgumentException: An argument has a wrong type or value, or the queue is open in this process with
                other options.
            GroupIdNotFoundException: The name is that of a cursor or of a consumer group.
            LogReadOnlyException: The store is read-only.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     offsets = store.create_topic("outbox").append_many([b"one", b"two"])
            ...     with store.queue("mail", topics=["outbox"]) as queue:
            ...         for record in queue.take():
            ...             print(record.value)
            ...             record.ack()
            b'one'
            b'two'
        """
        home = self._own()
        options = queue_options(lock_ms, max_deliveries, dead_letters, start, isolation)
        return Queue(home, values.text(name, "name"), topics, options)

    def cursors(self) -> list[CursorInfo]:
        """Returns every cursor and queue with its position in each partition and its lag.

        Returns:
            The CursorInfos, in the order of their names.

        Raises:
            IllegalStateException: The store is closed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("orders").append(b"value")
            ...     with store.reader("billing", topics=["orders"]) as reader:
            ...         positions = reader.commit()
            ...     print(store.cursors())
            [<CursorInfo 'billing', state Empty: 1 partition, lag 1>]
        """
        return store_cursors.cursors(self._home)

    def committed(self, cursor: str) -> dict[TopicPartition, CommittedOffset]:
        """Returns the offsets that a cursor has committed.

        Args:
            cursor: The cursor's name.

        Returns:
            A CommittedOffset for each partition; empty if the cursor does not exist.

        Raises:
            IllegalArgumentException: `cursor` is not text.
            IllegalStateException: The store is closed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("orders").append(b"value")
            ...     with store.reader("billing", topics=["orders"]) as reader:
            ...         records, positions = reader.poll(), reader.commit()
            ...     print([(str(partition), row.offset) for partition, row in store.committed("billing").items()])
            [('orders-0', 1)]
        """
        return store_cursors.committed(self._home, cursor)

    def delete_cursor(self, name: str) -> None:
        """Deletes a cursor and its offsets.

        A read-only store deletes it only from its own `cursors` directory.  The offsets that the data directories have
        under that name apply again.

        Args:
            name: The cursor's name.

        Raises:
            GroupIdNotFoundException: No cursor has that name.
            LogReadOnlyException: The store is read-only and has no `cursors` directory.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     with store.reader("billing", topics=["orders"]) as reader:
            ...         positions = reader.commit()
            ...     store.delete_cursor("billing")
            ...     print(store.cursors())
            []
        """
        store_cursors.delete(self._home, name)

    # --- transactions ----------------------------------------------------------------------------------

    @takes()
    def transaction(self, transactional_id: str, *, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> StoreTransaction:
        """Returns a transaction over partitions and cursors under an id.

        Use it as a context manager.  At its commit, everything in it becomes visible to read_committed readers, and its
        cursors move.  If it does not commit, none of this happens, also after a crash at any moment.

        An id has one transaction at a time.  A new transaction aborts and fences an open one of the same id, as in
        Kafka: the next call of the fenced one raises ProducerFencedException.  So each worker needs a separate id.  A
        transaction that is open for longer than `timeout_ms` is aborted and fenced as well.  The timeout is checked
        every ten seconds.

        Args:
            transactional_id: The id, a name that is not empty.
            timeout_ms: Milliseconds until an open transaction is aborted, from 1 to 900000
                (transaction.max.timeout.ms).

        Returns:
            The StoreTransaction.

        Raises:
            IllegalArgumentException: The id is empty or not text.
            InvalidTxnTimeoutException: The timeout is out of range.
            LogReadOnlyException: The store is read-only.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders, payments = store.create_topic("orders"), store.create_topic("payments")
            ...     with store.transaction("biller-1") as txn:
            ...         place = txn.append("orders", b"order 1")
            ...         place = txn.append("payments", b"payment of order 1")
            ...     print([record.value for record in store.records(isolation="read_committed")])
            [b'order 1', b'payment of order 1']
        """
        home = self._own()
        return StoreTransaction(home, self.topic, checked_id(transactional_id), checked_timeout(home, timeout_ms))

    # More than eight parameters: the same words as the options of `kafkalog serve`.
    def serve(
        self,
        listen: str | int | Sequence[str] | None = None,
        *,
        users: Mapping[str, str] | str | Sequence[str] | None = None,
        users_file: str | os.PathLike[str] | None = None,
        tls: str | os.PathLike[str] | None = None,
        advertise: str | Sequence[str] | None = None,
        allow_anonymous: bool = False,
        **settings: object,
    ) -> RunningServer:
        """Starts a server, so that clients of Apache Kafka in any language can use the store.

        The server is one node of a cluster without replicas.  It runs in threads of this process, beside the store's
        own calls, until it or the store is closed.

        Args:
            listen: Where it listens, as HOST:PORT or NAME://HOST:PORT, one or several; port 0 takes a free one.
                127.0.0.1:9092 by default.
            users: Who may log in, by PLAIN or SCRAM, such as `{"alice": "secret"}`.  Nobody else is let in.
            users_file: A file with a line NAME:PASSWORD for each of them.
            tls: A file with the server's private key and its certificates, as PEM.
            advertise: The address that clients are told, if it differs, as HOST:PORT or NAME://HOST:PORT.
            allow_anonymous: Whether a listener may let everybody in that other machines can reach, or although there
                are users.
            **settings: Kafka's broker settings, with underscores for dots: `num_partitions=3`.

        Returns:
            The server, a context manager.  `bootstrap_servers` is for the clients' setting of that name.

        Raises:
            ConfigException: A setting is unknown or out of range.
            IllegalArgumentException: An address cannot be parsed, or a listener lets everybody in, and other machines
                can reach it or there are users.
            KafkaException: An address cannot be listened on.
            IllegalStateException: The store is closed, or is served already.
            LogReadOnlyException: The store is read-only.

        Example:
            >>> with kafkalog.open("data") as store, store.serve("127.0.0.1:0", num_partitions=3) as server:
            ...     print(server.bootstrap_servers == f"127.0.0.1:{server.port}")
            True
        """
        words = {"users": users, "users_file": users_file, "tls": tls, "advertise": advertise}
        settings.update({word: value for word, value in words.items() if value is not None})
        return served(self._own(), listen, settings, allow_anonymous=allow_anonymous)

    def transactions(self) -> list[TransactionDescription]:
        """Returns every known transactional id with the state of its transaction.

        Ids of a broker's clients are included.  A read-only store reads them from the directories while another process
        may write there.

        Returns:
            The TransactionDescriptions, in the order of their ids; `state` has Kafka's name, and `partitions` are those
            of a transaction that is open or is being ended.

        Raises:
            SchemaException: The store is read-only, and its `__transaction_state` cannot be decoded.
            IllegalStateException: The store is closed.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     with store.transaction("biller-1") as txn:
            ...         place = txn.append("orders", b"order 1")
            ...     print([(each.transactional_id, each.state) for each in store.transactions()])
            [('biller-1', 'CompleteCommit')]
        """
        return TransactionDescriptions(sorted(self._home.list_transactions()))

    def abort_transaction(self, transactional_id: str) -> bool:
        """Aborts and fences the open transaction of an id.

        Args:
            transactional_id: The id of the transaction.

        Returns:
            True if a transaction was open, False if there was none.

        Raises:
            TransactionalIdNotFoundException: The id is not known.
            LogReadOnlyException: The store is read-only.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     txn = store.transaction("biller-1")
            ...     txn.begin()
            ...     place = txn.append("orders", b"order 1")
            ...     print(store.abort_transaction("biller-1"), store.abort_transaction("biller-1"))
            True False
        """
        transactions = self._own().coordinators.transactions
        transactions.describe(transactional_id)
        return transactions.abort(transactional_id)


# More than eight parameters: each is a separate option that most callers omit, and it is passed by name.
@called("open")
def open_store(
    log_dirs: str | os.PathLike[str] | RemoteStorage | Sequence[str | os.PathLike[str]],
    *,
    read_only: bool = False,
    durability: Durability = "os",
    config: Mapping[str, str] | None = None,
    compression: str | None = None,
    maintenance: bool = True,
    load: Literal["all", "on demand"] = "all",
    create: bool = True,
    cursors: str | os.PathLike[str] | None = None,
    settings: ManagerSettings | None = None,
    clock: Clock = SYSTEM_CLOCK,
    files: Files = OS_FILES,
    metrics: MetricsRegistry | None = None,
    take_over: bool = False,
    broker_config: str | os.PathLike[str] | Mapping[str, object] | None = None,
    remote: str | os.PathLike[str] | RemoteStorage | None = None,
    tiering: RemoteLogManagerConfig | None = None,
    on_damage: OnDamage = "truncate",
) -> Store:
    """Opens a store of topics in one or several log directories.

    The Store is a context manager.  A writable store holds the locks of its directories, so one process writes.  In a
    forked child every use raises IllegalStateException.

    Directories that a broker, `open_log` or a LogManager wrote are opened as they are.  Logs that were not closed
    cleanly are recovered as Kafka's broker does: if recovery finds damage, the log is truncated there, and `on_damage`
    decides what happens.  Retention and compaction run in the background, by the settings of each topic.  Topics that
    the store creates keep their records forever unless `retention.ms` or `retention.bytes` is set.

    If this process has the directories open for writing already, with the same arguments, the call returns a second
    handle of the same store.  Topics, producers, readers and transactions of a handle end with it, and the last handle
    closes the store.  A handle that is dropped without a close no longer counts.

    Zeros at the end of a log are removed by recovery, also with `on_damage="raise"`: a power loss leaves them, and they
    contain no record.  They are damage in three cases: if other bytes follow them, if the next segment begins after the
    offsets before them, or if the checkpoints say that the log continued there.

    Args:
        log_dirs: A directory or several.  A directory that has other files and nothing of a log directory is refused.
            In a log directory, a subdirectory that is named like a partition but has none of a partition's files is
            skipped with a warning and never changed.  With `read_only=True` it may be a remote tier, by address or
            directory, which is read alone.
        read_only: Take no lock and write nothing; this works while a broker or another process writes.
        durability: With "os" the operating system decides when to flush, as in Kafka.  With "fsync" each append, commit
            and transaction is on the disk before the call returns.
        config: Kafka's topic settings for all topics that do not override them.
        compression: How appends are compressed: "none", "gzip", "snappy", "lz4" or "zstd"; by default as the topic's
            `compression.type` says, or not at all.
        maintenance: Run retention and compaction.  With False no segment is deleted by age or size, no cursor is
            removed for its age, and `-delete` directories that exist stay.  A topic that this store deletes is still
            removed.
        load: "all" loads every log at once.  "on demand" opens at once and loads each log, with its recovery, when its
            partition is first used; until then nothing of it is deleted, compacted or flushed.
        create: Create directories that are missing; False refuses them, so that a mistyped name creates no store.
        cursors: A separate directory for the cursors of a read-only store, for one process at a time; without it they
            cannot be moved.
        settings: The LogManager's settings; by default Kafka's, except that producers are remembered forever.
        clock: The source of the time; for tests.
        files: The file system; for tests.
        metrics: A `kafkalog.metrics.MetricsRegistry`, in which all logs of the store appear under Kafka's names while
            it is open.  `metrics.snapshot()` returns pairs of name and value, and a PrometheusCollector exports them.
            A read-only store has no metrics.
        take_over: Open directories of a Kafka broker (with a `meta.properties`) for writing, in the broker's place.
            The settings of its topics come from the cluster's metadata (`__cluster_metadata-0`), which is never
            changed, and from `broker_config`.  A topic whose settings are not known is not deleted from or compacted; a
            warning names it.
        broker_config: The broker's `server.properties`: a path, or a mapping of its settings.
        remote: Where segments are stored remotely: `s3://bucket/prefix`, a directory, or a `RemoteStorage`.  Segments
            of topics with `remote.storage.enable=true` are copied there.  Segments that `local.retention.ms` and
            `local.retention.bytes` remove from the disk are read from there.  With `read_only=True` both tiers are read
            as one.
        tiering: The settings of the RemoteLogManager.
        on_damage: The action if recovery finds damage.  With "truncate" recovery removes it and all records after it,
            and logs a warning in "kafkalog.log" that names file, position, bytes and offsets.  With "raise" it raises
            CorruptRecordException before a record of any log is removed; then copy the directory, run `kafkalog
            salvage`, or read it with `read_only=True`.  (Indexes may have been rebuilt by then, and files deleted that
            were already being deleted.) A function is called with each `kafkalog.engine.log.damage.Damage` before it is
            removed, in one of several threads; an error that it raises ends the open.

    Returns:
        The Store.

    Raises:
        LogDirLockedException: A broker or another process uses a directory, or this process does with other arguments.
            The error then names the argument and the place of the first open.
        UnknownTopicOrPartitionException: A directory is missing, and `create` is False or `read_only` is True.
        CorruptRecordException: Recovery found damage, and `on_damage` is "raise"; also for an index whose log is
            missing, and for a log that ends below its start.
        IllegalArgumentException: An argument has a wrong type or value, or a directory is not a log directory.
        ConfigException: A setting is invalid.
        KafkaStorageException: The disk failed.
        NoLiveLogDirException: No directory can be used.

    Example:
        >>> with kafkalog.open("data") as store:
        ...     orders = store.create_topic("orders", partitions=4, exist_ok=True)
        ...     place = orders.append(b"value", key=b"customer-7")
        >>> with kafkalog.open("data", read_only=True) as store:
        ...     [record.value for record in store.topic("orders")]
        [b'value']
    """
    if not isinstance(durability, str) or durability not in ("os", "fsync"):
        raise IllegalArgumentException(f"durability is {durability!r}; expected 'os' or 'fsync'")
    if not (callable(getattr(clock, "milliseconds", None)) and callable(getattr(clock, "nanoseconds", None))):
        raise IllegalArgumentException(
            f"clock: found {values.shown(clock)}, expected one with milliseconds() and nanoseconds()",
            hint="leave it out for the system's clock; tests can use kafkalog.engine.files.ManualClock",
        )
    read_only = values.flag(read_only, "read_only")
    maintenance = values.flag(maintenance, "maintenance")
    create = values.flag(create, "create")
    take_over = values.flag(take_over, "take_over")
    broker = None if broker_config is None else broker_properties(broker_config)
    log_dirs, seen = _places(log_dirs, remote, files, read_only=read_only)
    paths = absolute_paths(log_dirs, seen)
    topic_settings = TopicSettings(paths, files=seen, broker=broker)
    told_of_cuts(on_damage)
    if read_only:
        unwanted = {
            "config": config, "compression": compression, "settings": settings, "metrics": metrics, "tiering": tiering,
            "on_damage": None if on_damage == "truncate" else on_damage,
        }  # fmt: skip
        for name, value in unwanted.items():
            if value is not None:
                hint = "leave it out"
                if name == "metrics":
                    hint += "; store.cursors() has the lags of cursors, which a gauge of yours can show"
                raise IllegalArgumentException(
                    f"{name}: found {values.shown(value)}, but a read-only store writes nothing", hint=hint
                )
        return Store(_view(paths, seen, cursors, clock, files, topic_settings))
    if cursors is not None:
        raise IllegalArgumentException(
            "cursors: a writable store keeps its cursors next to the data", hint="use cursors= with read_only=True"
        )
    given: dict[str, object] = {
        "durability": durability, "config": None if config is None else checked_settings(config),
        "compression": compression, "maintenance": maintenance, "load": checked_load(load), "settings": settings,
        "clock": clock, "metrics": metrics, "take_over": take_over, "broker_config": broker,
        "remote": None if remote is None else RemoteStorage.of(remote), "tiering": tiering,
        "on_damage": on_damage,
    }  # fmt: skip
    checked = store_settings(settings, config, maintenance, load)

    for path in paths:
        if len(paths) == 1:  # among several, a file counts as a failed disk
            refuse_file(path, files)
        if not create:
            listing(path, files)

    def make() -> StoreHome:
        tier = remote_tier(remote, tiering, paths, files)
        check_taken_over(paths, files, take_over=take_over)
        return _started(
            paths,
            checked._replace(has_remote_tier=tier is not None),
            durability=durability,
            compression=compression,
            clock=clock,
            files=files,
            metrics=metrics,
            topic_settings=topic_settings,
            remote=tier,
            on_damage=on_damage,
        )

    return Store(open_or_join(paths, given, files, make))


def open_alone(paths: Sequence[str], *, durability: Durability, take_over: bool) -> Store:
    """Opens a store for a single task, without retention and compaction, that is not shared with other handles.

    Errors are those of `open_store`; LogDirLockedException is also raised if this process has the directories open.
    """
    there = absolute_paths(paths)
    check_taken_over(there, OS_FILES, take_over=take_over)
    settings = store_settings(None, None, False)
    return Store(
        _started(
            there, settings, durability=durability, compression=None, clock=SYSTEM_CLOCK, files=OS_FILES, metrics=None
        )
    )


def _started(paths: Sequence[str], settings: ManagerSettings, **options: Any) -> StoreHome:
    """Creates a StoreHome and starts it; it holds the directories from then on.  `options` are those of StoreHome."""
    BatchMaker(settings.default_config, options["compression"])  # raises for an unknown codec
    home = StoreHome.__new__(StoreHome)  # exists before it holds anything, for an interrupt may come in __init__
    try:
        with full_at_open(f"the store of {', '.join(paths)}"):
            StoreHome.__init__(home, paths, settings, **options)
            home.start()
        return home
    except BaseException:  # a program that handles an interrupt may open the directories again
        home.abandon()
        raise


def _places(
    log_dirs: str | os.PathLike[str] | RemoteStorage | Sequence[str | os.PathLike[str]],
    remote: str | os.PathLike[str] | RemoteStorage | None,
    files: Files,
    *,
    read_only: bool,
) -> tuple[str | os.PathLike[str] | Sequence[str | os.PathLike[str]], Files]:
    """Returns the directories to open and the Files to read them with; a remote tier has its own Files."""
    if isinstance(log_dirs, str) and is_address(log_dirs) and not files.owns(log_dirs):
        log_dirs = RemoteStorage(log_dirs)
    elif isinstance(log_dirs, str | os.PathLike) and read_only and remote is None:
        [path] = absolute_paths(log_dirs, files)
        if is_tier(path, files=files):
            log_dirs = RemoteStorage(path)
    if isinstance(log_dirs, RemoteStorage):
        if not read_only or remote is not None:
            raise IllegalArgumentException(
                f"log_dirs: found {log_dirs.url}, a remote tier, "
                + ("and another one as remote" if read_only else "which can only be read"),
                hint="open it alone with read_only=True; with remote=, log_dirs must be local directories",
            )
        return log_dirs.url, log_dirs.read_only_files()
    if remote is not None and read_only:
        return log_dirs, RemoteStorage.of(remote).tiered_files(absolute_paths(log_dirs), files)
    return log_dirs, files


def _view(
    log_dirs: Sequence[str],
    seen: Files,
    cursors: str | os.PathLike[str] | None,
    clock: Clock,
    files: Files,
    topic_settings: TopicSettings,
) -> StoreView:
    own: StoreHome | None = None
    try:
        if cursors is not None:
            [path] = absolute_paths([cursors], files)
            if path in log_dirs:
                raise IllegalArgumentException(
                    f"cursors: found {path}, which is one of log_dirs", hint="give it a separate directory"
                )
            settings = store_settings(None, None, True)
            check_taken_over([path], files, take_over=False)
            own = StoreHome.__new__(StoreHome)
            StoreHome.__init__(
                own, [path], settings, durability="os", compression=None, clock=clock, files=files, metrics=None
            )
        view = StoreView(log_dirs, clock, seen, own, topic_settings, owns_files=seen is not files)
        if own is not None:
            own.start()
        return view
    except BaseException as error:
        if isinstance(error, LogDirLockedException):
            error.hint = _hint_of_cursors(str(cursors), error.hint or "")
        if seen is not files:
            seen.close()
        if own is not None:
            own.abandon()
        raise


def _hint_of_cursors(path: str, hint: str) -> str:
    who, _, ways_out = hint.partition("; ")
    return (f"{who}: " if ways_out else "") + (
        f"{path} keeps the cursors of one process at a time; give each process another cursors= directory"
    )


def store_settings(
    settings: ManagerSettings | None,
    config: Mapping[str, str] | None,
    maintenance: bool,
    load: Literal["all", "on demand"] = "all",
) -> ManagerSettings:
    """Returns the ManagerSettings for the arguments of `open_store`."""
    if settings is None:
        settings = ManagerSettings(producers=ProducerSettings(ProducerStateManagerConfig(LONG_MAX, False)))
    settings = ManagerSettings.checked(settings)
    if settings.producers.config.transaction_verification_enabled:  # the coordinator to ask would be this store
        remembered = ProducerStateManagerConfig(settings.producers.config.producer_id_expiration_ms, False)
        settings = settings._replace(producers=settings.producers._replace(config=remembered))
    if config is not None:
        config = checked_settings(config)
        settings = settings._replace(default_config=LogConfig.from_props(settings.default_config, config))
    if not maintenance:
        settings = settings._replace(maintenance=False)
    if load != "all":
        settings = settings._replace(load=load)
    return settings


def __dir__() -> list[str]:
    return __all__
