"""The face for services: the `Store` that `kafkalog.open` gives.

    with kafkalog.open("data") as store:
        orders = store.create_topic("orders", partitions=4)
        orders.append(b'{"id": 1}', key=b"customer-7")
        reader = store.reader("billing", topics=["orders"])

Topics with partitions, cursors that survive restarts, transactions over partitions, in one process and without a
broker; formats and rules are Kafka's, so that a broker and its tools understand what is left.  A store is writable,
which stands on a StoreHome and holds the directories' locks, or read-only, which stands on a StoreView and touches
nothing: one process writes, any number read.

What is promised.  Order: records of one partition are in the order of their appends; those of several are not.
Durability: with "os" an append that returned survives a crash of the process, with "fsync" a power loss as well.  What
a crash may repeat: a writer that was not told does not know, unless it has a name (`writer`) or a transaction; a
reader gets again what it read since its last commit.  Thread-safe; each iterator belongs to one thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
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
from kafkalog._face.readable import Readable
from kafkalog._face.reader_options import Offsets, ReaderOptions
from kafkalog._face.remote_tier import remote_tier
from kafkalog._face.selection import Filters
from kafkalog._face.shown import html_of_store, show_store
from kafkalog._face.store_cursors import CursorInfo
from kafkalog._face.store_handles import open_or_join
from kafkalog._face.store_home import StoreHome
from kafkalog._face.store_view import StoreView
from kafkalog._face.topic_settings import TopicSettings, broker_properties
from kafkalog._limits import LONG_MAX
from kafkalog._native.state.blocks import Closing
from kafkalog.config import LogConfig, ProducerStateManagerConfig
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
    from kafkalog.engine.coordinator.transaction_coordinator import TransactionDescription
    from kafkalog.engine.format.group_records import CommittedOffset
    from kafkalog.engine.host.log_manager import LogManager
    from kafkalog.engine.remote.remote_log_manager import RemoteLogManager, RemoteLogManagerConfig
    from kafkalog.metrics.registry import MetricsRegistry


__all__ = ["CursorInfo", "Store", "StoreDescription", "open_store"]


class Store(Closing, ClosingAsync, Readable):
    """Topics of one or several log directories.  Made by `kafkalog.open`."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._topics: dict[str, Topic] = {}
        self._asynchronously = AsyncAppends(home)

    def __enter__(self) -> Store:
        return self

    # --- life ------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it was closed, or belongs to another process."""
        return not self._home.life.live

    @property
    def read_only(self) -> bool:
        """Whether it was opened to be read alone."""
        return self._home.read_only

    @property
    def manager(self) -> LogManager:
        """The LogManager below, with everything that Kafka's class of that name has.  LogReadOnlyException."""
        return self._own().manager

    @property
    def remote_log_manager(self) -> RemoteLogManager:
        """The manager of the remote tier, which `run_once` has copy and expire now.  IllegalStateException where the
        store was opened without `remote`; LogReadOnlyException."""
        tier = self._own().tier
        if tier is None:
            raise IllegalStateException(
                "the store has no remote tier", hint='kafkalog.open(..., remote="s3://bucket/prefix")'
            )
        return tier.remote_log_manager

    def close(self) -> None:
        """Closes as a broker's clean shutdown does; a second call does nothing.

        Transactions that are open are aborted, writers flush what they hold, readers and waiting threads are told
        (IllegalStateException).  Of a store that this process has open more than once it ends what was made through
        this handle, and the last one closes the store.  Errors as `LogManager.shutdown`; IllegalStateException, and
        nothing is closed, in a callback of a producer's future, or in a signal's handler or a finalizer that came out
        of a call of the store.
        """
        self._home.close()

    def __repr__(self) -> str:
        return show_store(self._home)

    def _repr_html_(self) -> str | None:
        """For notebooks: a table of its topics."""
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
        """What the store stands on, if it may be written to."""
        self._home.check_writable()
        return self._home

    # --- topics ----------------------------------------------------------------------------------------

    def topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, in order.  `internal`: with those of Kafka's own that are there, which keep cursors
        and transactions; `reader(topics=["__consumer_offsets"])` reads the partitions of one that were made so far.

            store.topics()                  # ['orders']
            store.topics(internal=True)     # ['__consumer_offsets', 'orders']
        """
        internal = values.flag(internal, "internal")
        return [name for name in self._home.names() if internal or name not in INTERNAL_TOPICS]

    def topic(self, name: str) -> Topic:
        """UnknownTopicOrPartitionException where there is none of that name."""
        self._home.info(name)
        return self._topics.setdefault(name, Topic(self._home, name, self._asynchronously))

    def __contains__(self, name: object) -> bool:
        """Whether `topic(name)` finds it: one of Kafka's own, too."""
        return name in self._home.names()

    def describe_topic(self, name: str) -> TopicInfo:
        """Partitions, id and settings, also those that the cluster's metadata has of a broker's topic.
        UnknownTopicOrPartitionException."""
        self._home.topic_settings.look_again()
        return self._home.info(name)

    def describe(self, *, sample_rows: int = 0, exact: bool = False) -> StoreDescription:
        """What its topics hold, without reading them: as `Topic.describe`, of each and in all.  `sample_rows`: of each
        topic, by default none."""
        sample_rows = values.whole(sample_rows, "sample_rows", low=0, expected="records")
        budget = Budget(exact=values.flag(exact, "exact"))
        found = StoreDescription(self._home.place, [])
        for name in self.topics():
            with suppress(UnknownTopicOrPartitionException):  # deleted meanwhile
                found.topics.append(describe_topic(self._home, name, budget, sample_rows))
                found.sample.extend(found.topics[-1].sample)
        return found

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
        """A new topic; it is there with all its partitions, or not at all, also after a crash.

        A new topic keeps its records for ever: `retention.ms=-1` is written into its settings, unless `config`, or what
        the store was opened with, has a `retention.ms`.  (Kafka's own default is seven days.)  With
        `retention.bytes` alone, size deletes, and time does not.

        `config` has Kafka's topic keys as text (`{"retention.ms": "604800000"}`), which lie beside the data.
        `exist_ok`: one that is there already is answered as it is; if it has other partitions or settings than those
        asked for, a warning in the log "kafkalog.topics" names them (`alter_topic` and `add_partitions` change them).
        `topic_id` is a Kafka Uuid of 22 characters, by
        default a random one.  InvalidTopicException for a name that Kafka refuses, TopicExistsException,
        InvalidPartitionsException, ConfigException, KafkaStorageException.
        """
        home = self._own()
        exist_ok = values.flag(exist_ok, "exist_ok")
        home.create_topic(name, partitions, config, topic_id, exist_ok=exist_ok)
        return self.topic(name)

    def alter_topic(self, name: str, config: Mapping[str, str | None]) -> TopicInfo:
        """Sets some of a topic's settings; None takes an override away, and `{"retention.ms": None}` has the topic keep
        its records for ever, as a new one does.  ConfigException, and nothing is changed;
        UnknownTopicOrPartitionException."""
        return self._own().alter_topic(name, config)

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Gives a topic so many partitions in all.  A key's records go elsewhere from then on, as in Kafka.
        InvalidPartitionsException where it has as many, or more; UnknownTopicOrPartitionException."""
        return self._own().add_partitions(name, partitions)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, its records and what cursors say of it; the files go after `file.delete.delay.ms`.
        UnknownTopicOrPartitionException; InvalidTopicException for a topic of Kafka's own."""
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
        """A producer: `send()` from any thread, appends in batches by one of its own.  A context manager.

        A partition's records wait for more for `linger_ms`, or until there are `batch_bytes` of them; all that are not
        answered yet take at most `buffer_bytes`, as the log has them, and a send that finds no room waits for at most
        `max_block_ms`.
        `compression` is how its batches are packed, by default as all appends of the store.  With a `name` it is
        idempotent, as `Topic.writer`: batches carry its producer id, and their sequence numbers.

        IllegalArgumentException, UnsupportedCompressionTypeException, LogReadOnlyException.
        """
        settings = BatchingSettings(linger_ms, batch_bytes, buffer_bytes, max_block_ms, compression, name)
        return Producer(self._own(), settings)

    # --- reading and cursors ---------------------------------------------------------------------------

    # More than eight parameters: each is a choice of its own that most callers leave out, and is given by its name.
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
        **filters: Unpack[Filters],
    ) -> StoreReader:
        """Reads several partitions in turns, from where `cursor` stopped; see `kafkalog.reader`.

        What is read are all partitions of `topics`, those that are added later as well, from their beginning; or
        `partitions` ("orders-0", or pairs); or what the cursor has committed.  Each begins at `start_offsets`, else at
        the cursor's offset, else as `start` says: "earliest", "latest" (what is appended from now on), or "error"
        (NoOffsetForPartitionException).  The same counts where the log has not got the offset any more
        (OffsetOutOfRangeException for "error"); it is Kafka's auto.offset.reset.

        `start` may be an offset or a time as well, and `end` is one: as of `Topic.records`, whose filters (`key`,
        `key_prefix`, `start_time`, `end_time`, `headers`, `grep`, `where`, `isolation`) choose records; see
        `kafkalog.Filters`.  The others count as read, and with `on_damage` so does what damage takes.  The time index
        is asked where to begin.  `chunk_bytes`: how much of a partition is read at once, by default a mebibyte, or less
        of many.

        A cursor is a place, and no group: two readers of one each get every record, and the last commit counts.  So it
        has one reader in a store, until that is closed or dropped; another is refused (IllegalStateException) unless
        it is `shared`, as of readers that have `partitions` of their own each.

        UnknownTopicOrPartitionException, IllegalArgumentException (also if `start_time` lies behind `end_time`),
        UnstableOffsetCommitException (of "read_committed" while a transaction is open that has offsets of the cursor).
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
        )
        self._home.check_open()
        return StoreReader(self._home, options)

    def cursors(self) -> list[CursorInfo]:
        """Every cursor, by name: where it is in each partition, and its lag."""
        return store_cursors.cursors(self._home)

    def committed(self, cursor: str) -> dict[TopicPartition, CommittedOffset]:
        """What a cursor has committed, by partition; empty for one that is not there."""
        return store_cursors.committed(self._home, cursor)

    def delete_cursor(self, name: str) -> None:
        """Forgets a cursor and its offsets.  In a store that only reads those in its own directory of `cursors`: what
        the directories that are read hold of that name counts again.  GroupIdNotFoundException; LogReadOnlyException
        in a store that only reads, without `cursors`."""
        store_cursors.delete(self._home, name)

    # --- transactions ----------------------------------------------------------------------------------

    @takes()
    def transaction(self, transactional_id: str, *, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> StoreTransaction:
        """Transactions over partitions and cursors under an id: `with store.transaction("biller-1") as txn:`.

        All that is in one becomes visible to read_committed readers, and moves its cursors, at its commit, or never,
        also across a crash at any moment.  An id has one transaction at a time: one that begins while another is open
        aborts and fences that (ProducerFencedException at its next call), as Kafka has it, so each worker wants an id
        of its own.  One that is open for longer than `timeout_ms` is aborted and fenced likewise; that is looked
        at every ten seconds, so it may come up to ten seconds later.
        InvalidTxnTimeoutException for a timeout outside 1 to 900000 (transaction.max.timeout.ms).
        """
        home = self._own()
        return StoreTransaction(home, self.topic, checked_id(transactional_id), checked_timeout(home, timeout_ms))

    def transactions(self) -> list[TransactionDescription]:
        """Every transactional id that is known, by name, also those of a broker's clients: its state by Kafka's name,
        and the partitions of what is open or ending.  A store that only reads has it from the directories, beside who
        writes there.

            store.transactions()[0].state       # 'CompleteCommit'

        SchemaException, of a store that only reads, if `__transaction_state` there cannot be understood.
        """
        return sorted(self._home.list_transactions())

    def abort_transaction(self, transactional_id: str) -> bool:
        """Aborts the open transaction of an id, whoever has it, who is fenced; whether there was one.
        TransactionalIdNotFoundException."""
        transactions = self._own().coordinators.transactions
        transactions.describe(transactional_id)
        return transactions.abort(transactional_id)


# More than eight parameters: each is a choice of its own that most callers leave out, and is given by its name.
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
    """Open a store of topics in one or several log directories; a context manager.

    Directories that are missing are made, unless `create=False` refuses them (UnknownTopicOrPartitionException): a name
    that was mistyped makes no store then.  Those that a broker, `open_log` or a LogManager wrote are opened as they
    are, and recovered where they were not closed cleanly.  A writable store holds their locks: one process writes.
    `read_only=True` takes no lock and writes nothing, beside a writing process or a running broker; its cursors are
    kept in `cursors`, a directory of its own, for one process at a time; without it they cannot be moved.

    A directory of a Kafka broker (it has `meta.properties`) is opened for writing only with `take_over=True`, in the
    broker's place.  The settings of its topics come from the cluster's metadata (`__cluster_metadata-0`), which is
    never changed, and from `broker_config`, the broker's `server.properties` (a path, or its settings).  Nothing is
    deleted or compacted of a topic whose settings are not known; a warning names it.

    `durability`: "os" leaves flushing to the operating system, as Kafka does; "fsync" has every append, commit and
    transaction on the disk before it returns.  `config` has Kafka's topic keys for all topics that do not say
    otherwise.  `compression` (none gzip snappy lz4 zstd) is how appends are packed; by default what a topic's
    `compression.type` says, or none.  Retention and compaction run in the background, by each topic's settings.
    Topics that the store makes keep their records for ever unless `retention.ms` or `retention.bytes` is set.
    `maintenance=False` runs neither: no segment is deleted by age or size, no cursor is forgotten for its age, and
    `-delete` folders that are found stay; a topic that this store deletes goes all the same.  `settings` are the
    LogManager's; by default Kafka's, and producers are remembered for ever.

    A log that was not closed cleanly is recovered as Kafka's broker does: where that finds damage, the log ends there,
    and what lies behind it is gone, also what could be read.  `on_damage` says what happens then: "truncate" cuts, with
    a warning in the log "kafkalog.log" that names file, position, bytes and offsets; "raise" refuses with
    CorruptRecordException before a record's bytes are cut of any log, for an index whose log is missing, and for a log
    that ends below its start; which leaves time for a copy, `kafkalog salvage`, or reading with `read_only=True`.
    Indexes may have been rebuilt by then, and files that were on their way out deleted.  Zeros that reach to a log's
    end are cut, too: a power loss leaves them, and no record is in them.  They are damage if anything follows them, if
    the next segment begins behind the offsets in front of them, or if the checkpoints say that the log went on there.
    A function is called with each `kafkalog.engine.log.damage.Damage` before its cut, in one of several threads, and
    what it raises ends the open.

    `metrics` is a `kafkalog.metrics.MetricsRegistry`, in which all logs of the store are shown while it is open, under
    Kafka's names; `metrics.snapshot()` is a list of pairs of name and value, and a PrometheusCollector has them for
    Prometheus.  A store that only reads has none.

    `load="on demand"` opens at once: each log is loaded, and recovered where that is needed, when somebody first asks
    for its partition.  Until then nothing is deleted, compacted or flushed of it.

    `remote` is where logs go on in object storage: `s3://bucket/prefix`, a folder, or a `RemoteStorage`.  Topics with
    `remote.storage.enable=true` are copied there, segment by segment, and what `local.retention.ms` and
    `local.retention.bytes` take from the disk is read from there.  `tiering` are Kafka's settings of its manager.
    With `read_only=True` both are read as one; a tier in the place of `log_dirs`, by address or folder, is read alone.

    Where this process has the directories open for writing already, with the same arguments, it answers a second handle
    of the one store.  Each has topics, producers, readers and transactions of its own, which end with it; the store is
    closed with the last one.  With other arguments it is LogDirLockedException, which names the argument, and where the
    first open is.  A handle that is dropped without a close counts no more.

    A folder that holds other things, and nothing of a log directory, is refused.  In a log directory a folder that is
    named like a partition, but has none of a partition's files, is passed over with a warning and never touched.

    Errors: LogDirLockedException (a broker or another process has one, or this one otherwise),
    IllegalArgumentException, ConfigException, KafkaStorageException, NoLiveLogDirException; IllegalStateException for
    every use in a forked child.
    """
    if not isinstance(durability, str) or durability not in ("os", "fsync"):
        raise IllegalArgumentException(f"durability {durability!r} is neither 'os' nor 'fsync'")
    if not (callable(getattr(clock, "milliseconds", None)) and callable(getattr(clock, "nanoseconds", None))):
        raise IllegalArgumentException(
            f"clock: found {values.shown(clock)}, expected one with milliseconds() and nanoseconds()",
            hint="leave it out for the machine's; kafkalog.engine.files.ManualClock for tests",
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
                    hint += "; a gauge of store.cursors() has the lags of cursors, as README's chapter on metrics shows"
                raise IllegalArgumentException(
                    f"{name}: found {values.shown(value)}, but a read-only store writes nothing", hint=hint
                )
        return Store(_view(paths, seen, cursors, clock, files, topic_settings))
    if cursors is not None:
        raise IllegalArgumentException(
            "cursors: a writable store keeps its cursors beside the data", hint="it is for read_only=True"
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
        if len(paths) == 1:  # one of several is a disk that fails
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
    """A store for one piece of work, without retention and compaction, of which nobody gets a second handle.  Errors as
    `open_store`, LogDirLockedException also where this process has it open."""
    there = absolute_paths(paths)
    check_taken_over(there, OS_FILES, take_over=take_over)
    settings = store_settings(None, None, False)
    return Store(
        _started(
            there, settings, durability=durability, compression=None, clock=SYSTEM_CLOCK, files=OS_FILES, metrics=None
        )
    )


def _started(paths: Sequence[str], settings: ManagerSettings, **options: Any) -> StoreHome:
    """Holds the directories from here on; `options` are those of a StoreHome."""
    BatchMaker(settings.default_config, options["compression"])  # IllegalArgumentException for a codec there is not
    home = StoreHome.__new__(StoreHome)  # here before it holds anything: an interrupt may come behind
    try:
        with full_at_open(f"the store of {', '.join(paths)}"):
            StoreHome.__init__(home, paths, settings, **options)
            home.start()
        return home
    except BaseException:  # whoever handles an interrupt may open the directories again
        home.abandon()
        raise


def _places(
    log_dirs: str | os.PathLike[str] | RemoteStorage | Sequence[str | os.PathLike[str]],
    remote: str | os.PathLike[str] | RemoteStorage | None,
    files: Files,
    *,
    read_only: bool,
) -> tuple[str | os.PathLike[str] | Sequence[str | os.PathLike[str]], Files]:
    """What is to be opened, and through which files: a bucket, or both tiers, is read through its own."""
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
                + ("and another one as remote" if read_only else "which is only read"),
                hint="read_only=True without remote= reads it alone; with remote= log_dirs are directories",
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
                raise IllegalArgumentException(f"cursors: found {path}, which is read", hint="a directory of its own")
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
    if settings is None:
        settings = ManagerSettings(producers=ProducerSettings(ProducerStateManagerConfig(LONG_MAX, False)))
    settings = ManagerSettings.checked(settings)
    if settings.producers.config.transaction_verification_enabled:  # the coordinator that would be asked is ours
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
