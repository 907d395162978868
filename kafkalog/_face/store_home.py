"""The base of a writable store: its manager, its topics, its coordinators, and each partition's appends.

    home = StoreHome(["data"], ManagerSettings(), durability="os", ...)
    home.start(); ...; home.close()

The store, its topics, transactions and readers all use one StoreHome. An open has this order: lock the directories,
load and recover the logs, complete interrupted changes of topics, then of transactions. Only after that does anybody
read or write. In the background run the manager's tasks (retention, the cleaner, checkpoints) and two of the
coordinators'. Thread-safe; belongs to one process.
"""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from kafkalog._face.catalog import Catalog, Deletion
from kafkalog._face.coordinators import EXPIRY_CHECK_MS, OVERDUE_CHECK_MS, Coordinators
from kafkalog._face.cursor_readers import CursorReaders
from kafkalog._face.cutting import OnDamage, told_of_cuts
from kafkalog._face.remote_tier import RemoteTier, StoreTier, refuse_without_tier
from kafkalog._face.shown import public
from kafkalog._face.store_partition import InternalPartition, StorePartition
from kafkalog._face.store_source import StoreSource
from kafkalog._face.topic_info import TopicInfo, countable, not_made
from kafkalog._face.topic_settings import TopicSettings
from kafkalog._face.waiting import Bells
from kafkalog.config import LogConfig
from kafkalog.engine.files import Clock, Files
from kafkalog.engine.files.dropped import let_go_later
from kafkalog.engine.files.failure import full_at_close
from kafkalog.engine.files.left_open import told_at_exit
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.processes import Life, held_over_forks
from kafkalog.engine.format.names import INTERNAL_TOPICS, TopicPartition
from kafkalog.engine.host.changes import BackgroundTasks
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.topic_configs import StoredTopicConfigs
from kafkalog.errors import (
    DiskFull,
    IllegalArgumentException,
    KafkalogError,
    KafkaStorageException,
    RemoteStorageException,
    TooManyOpenFilesException,
    UnknownTopicOrPartitionException,
)
from kafkalog.transaction import Transaction

if TYPE_CHECKING:
    from kafkalog._face.home import OpenProducer
    from kafkalog.engine.coordinator.group_offsets import GroupOffsets
    from kafkalog.engine.coordinator.transaction_coordinator import TransactionDescription
    from kafkalog.engine.host.settings import ManagerSettings
    from kafkalog.engine.log.unified_log import UnifiedLog
    from kafkalog.metrics.registry import MetricsRegistry

FORGET_AGAIN_MS = 10_000
HANDLES_LOCK = threading.RLock()  # guards the handles of each store of this process
held_over_forks(HANDLES_LOCK)


def _config_base(stored: StoredTopicConfigs, known: TopicSettings, topic: str, default: LogConfig) -> LogConfig:
    """Returns the settings beneath the overrides that the store keeps for a topic."""
    return LogConfig.from_props(known.base(topic, default.originals, is_stored=stored.has(topic)))


class StoreHome:
    """The `Home` of a store that writes. Created and started by `kafkalog.open`.

    One that is dropped without `close` releases its files with a ResourceWarning, and the next open recovers them."""

    read_only = False
    how_to_write = ""
    where = ""  # where it was opened, for a warning
    server: object = None  # that serves it (`kafkalog.server.Server`), or None
    ends_left = True  # whether its start and its close end transactions that were left open

    # More than eight parameters: the arguments of `kafkalog.open`, all but two of them named.
    def __init__(
        self,
        log_dirs: Sequence[str],
        settings: ManagerSettings,
        *,
        durability: str,
        compression: str | None,
        clock: Clock,
        files: Files,
        metrics: MetricsRegistry | None,
        topic_settings: TopicSettings | None = None,
        remote: RemoteTier | None = None,
        on_damage: OnDamage = "truncate",
    ) -> None:
        self.life = Life("kafkalog.open")
        self._is_started = False
        self.clock = clock
        self.syncs = durability == "fsync"
        self.tier: StoreTier | None = None
        self._remote = remote
        self._compression = compression
        self.metrics = metrics  # None if nobody asked for them
        self._partitions: dict[TopicPartition, StorePartition] = {}
        self._writer_guards: dict[TopicPartition, dict[int, threading.RLock]] = {}
        self.handles: weakref.WeakSet[StoreHome] = weakref.WeakSet()  # guarded by HANDLES_LOCK
        self.is_closing = False  # guarded by HANDLES_LOCK: no handle can join any more
        self.closing = threading.RLock()  # held over the close
        self.producers: set[OpenProducer] = set()  # producers add and remove themselves
        self._deletions: list[Deletion] = []  # that are not completely forgotten yet
        self.manager = LogManager.__new__(LogManager)  # set before it holds anything, in case an interrupt follows
        is_new = not any(map(files.exists, log_dirs))
        try:
            LogManager.__init__(
                self.manager, log_dirs, settings, clock=clock, files=files, metrics=metrics, take_over=True
            )
            self.manager.tell_cuts(told_of_cuts(on_damage))
            self.place = self.manager.directories.shown
            self.manager.refusal = partial(self.life.refusal, f"the store of {self.place}")
            self.topic_settings = topic_settings or TopicSettings(log_dirs, files=files)
            self.catalog = Catalog(self.manager, self.life, self.topic_settings)
            self.catalog.made_in = log_dirs[0] if is_new else ""
            # Not a bound method: a dropped store must be freed at once, without a garbage collection.
            stored = self.manager.topic_configs
            assert isinstance(stored, StoredTopicConfigs), stored
            self.manager.set_config_base(partial(_config_base, stored, self.topic_settings))
            self.bells = Bells()  # the waiting readers' bells
            self.cursor_readers = CursorReaders()
            self._tasks = BackgroundTasks(self.manager.scheduler, self._is_live)
        except BaseException:
            self.abandon()
            raise

    def start(self) -> None:
        """Loads and settles everything. If it fails, everything is released."""
        try:
            self.manager.startup(self.catalog.is_gone)
            self.catalog.finish()
            self._open_tier()
            self.coordinators = Coordinators(
                self.manager, self.catalog, self.life, self.clock, syncs=self.syncs, metrics=self.metrics
            )
            self.coordinators.ends_left = self.ends_left
            self.coordinators.start()
            self._forget_deleted()
            self._warn_of_unknown_settings()
            self._tasks.every("transaction-abort", self.end_overdue, OVERDUE_CHECK_MS, OVERDUE_CHECK_MS)
            if self.manager.settings.maintenance:
                self._tasks.every("coordinator-expiry", self.forget_expired, EXPIRY_CHECK_MS, EXPIRY_CHECK_MS)
            self._is_started = True
            told_at_exit(self)
        except BaseException:
            self.abandon()
            raise

    def _open_tier(self) -> None:
        """Opens the tier before anybody reads, because it has the records below a log's local start."""
        try:
            if self._remote is None:
                refuse_without_tier(self.catalog.names(), self.manager.config_of)
                return
            self.tier = StoreTier(self._remote, self.manager, self.catalog, self.clock)
            self.tier.start(runs=self.manager.settings.maintenance)
        except (IllegalArgumentException, RemoteStorageException):
            # Close the logs: otherwise the next open recovers them, and recovery would truncate at reported damage.
            if self.tier is not None:
                self.tier.abandon()
            self.manager.shutdown()
            raise

    def abandon(self) -> None:
        """Releases everything as a crash does, even if it was not started."""
        if not hasattr(self, "manager"):
            return
        self.life.end()
        if self.tier is not None:
            self.tier.abandon()
        if hasattr(self, "_tasks"):
            self._tasks.cancel()
        if hasattr(self.manager, "directories"):
            self.manager.abandon()

    def close(self) -> None:
        """Closes it as a broker's clean shutdown does. A second call does nothing."""
        if self.life.forked:
            return
        if not self._is_started:
            self.abandon()
            return
        self.check_outside()
        self._close_producers()
        with self.catalog.changing:  # waits for a running change of topics
            self.life.end()
        self.catalog.take_back_refused()
        self._close_producers()  # producers that were created meanwhile
        self.bells.ring()
        self._tasks.cancel()
        if self.tier is not None:
            self.tier.close()
        with full_at_close(f"the store of {self.place}", "the next kafkalog.open"):
            self.coordinators.end()
            self.manager.shutdown()

    def check_outside(self) -> None:
        """Raises IllegalStateException in a thread for which a close could not wait."""
        self.manager.check_outside()
        self.catalog.check_outside()
        self.coordinators.check_outside()
        for each in list(self.producers):
            each.check_outside()

    def _close_producers(self) -> None:
        for each in list(self.producers):
            each.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # modules may be empty by then
        if not hasattr(self, "_tasks") or not self.life.live or is_finalizing():
            return
        try:
            warnings.warn(
                f"{self!r} was dropped without being closed; use it as `with kafkalog.open(...) as store:`, or call "
                "its close()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
        finally:
            let_go_later(self.abandon)

    def others(self) -> list[str]:
        """Returns nothing: a store's first home has no other handles."""
        return []

    def left_open(self, deadline_s: float) -> None:
        """Warns at the end of the process, as `LeftOpen` says."""
        if not self.life.live:
            return
        with HANDLES_LOCK:
            homes = [self, *self.handles]
        producers = [each for home in homes for each in list(home.producers)]
        unsent = sum(not each.flush_until(deadline_s) for each in producers)
        lost = f" The records that {unsent} of its producers held were not sent in time and are lost." if unsent else ""
        where = f", {self.where}," if self.where else ""
        warnings.warn(
            f"the store of {self.place}{where} was never closed; use it as `with kafkalog.open(...) as store:`, or "
            f"call its close(): the next open has to recover it.{lost}",
            ResourceWarning,
            stacklevel=2,
        )

    def __repr__(self) -> str:
        return f"<store of {self.place}>"

    # --- settings --------------------------------------------------------------------------------------

    def _warn_of_unknown_settings(self) -> None:
        """Logs the topics whose records are all kept, because their settings are not known."""
        config = self.manager.settings.default_config.originals
        kept = [
            topic
            for topic in self.catalog.names()
            if self.topic_settings.is_kept(topic, config, is_stored=self.catalog.has_settings(topic))
        ]
        if not kept:
            return
        by_reason: dict[str, list[str]] = {}
        for topic in kept:
            by_reason.setdefault(self.topic_settings.why_unknown(topic), []).append(topic)
        for why, topics in by_reason.items():
            Lines("kafkalog.topics", self.place).warning(
                "nothing is deleted or compacted in topics whose settings are not known (%s): %s.  broker_config= "
                "names the broker's server.properties, alter_topic() sets the settings to use here",
                why,
                ", ".join(topics),
            )

    def _is_live(self) -> bool:
        return self.life.live

    @property
    def log_dirs(self) -> Sequence[str]:
        """The directories that are online."""
        return self.manager.live_log_dirs

    @property
    def files(self) -> Files:
        """The file system that has the directories."""
        return self.manager.files

    def check_open(self) -> None:
        """Raises IllegalStateException if it is closed, or was opened by another process."""
        if not self.life.live:
            raise self.life.refusal(f"the store of {self.place}")

    check_writable = check_open

    def end_overdue(self) -> None:
        self.coordinators.end_overdue()
        self.catalog.take_back_refused()

    def forget_expired(self) -> None:
        self.coordinators.forget_expired()

    # --- topics ----------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Returns the names of all topics, sorted."""
        self.check_open()
        return self.catalog.names()

    def info(self, topic: str) -> TopicInfo:
        """Returns a topic's description. UnknownTopicOrPartitionException if it does not exist."""
        self.check_open()
        return self.catalog.must(topic)

    def partition(self, partition: TopicPartition) -> StorePartition:
        """Returns the object that appends to a partition. UnknownTopicOrPartitionException if it does not exist,
        KafkaStorageException if it is offline."""
        found = self._partitions.get(partition)
        if found is not None:
            now = self.manager.registry.get(partition)
            if now is None or now is found.engine or now.topic_id == found.engine.topic_id:
                return found
            self._partitions.pop(partition, None)  # its topic's deletion is running or was interrupted
        self.check_open()
        engine = self.manager.get_log(partition) or self.settled_log(partition)
        if engine is None:
            raise self.not_there(partition)
        kind = InternalPartition if partition.topic in INTERNAL_TOPICS else StorePartition
        made = kind(
            self.manager, engine, self.life, self.clock, self, compression=self._compression, sync_appends=self.syncs
        )
        made.writer_guards = self._writer_guards.setdefault(partition, {})
        found = self._partitions.setdefault(partition, made)
        found.take_settings()  # they may have changed before it was in the table
        if self.manager.registry.get(partition) is not found.engine and found.moved_from(found.engine) is None:
            if self._partitions.get(partition) is found:  # deleted before it was in the table
                self._partitions.pop(partition, None)
            return self.partition(partition)
        return found

    def numbers(self, topic: str) -> Sequence[int]:
        """Returns the partitions of a topic; for an internal topic only those created so far.

        UnknownTopicOrPartitionException; InvalidPartitionsException as `countable`."""
        info = self.info(topic)
        return self.catalog.made(topic) if info.is_internal else range(countable(info))

    def check_partition(self, partition: TopicPartition) -> None:
        """Raises UnknownTopicOrPartitionException if the partition does not exist."""
        if not 0 <= partition.partition < self.info(partition.topic).partitions:
            raise self.not_there(partition)

    def not_there(self, partition: TopicPartition) -> KafkaStorageException | UnknownTopicOrPartitionException:
        """Returns the error for a partition that is not here."""
        info = self.info(partition.topic)
        if 0 <= partition.partition < info.partitions:
            if info.is_internal and partition.partition not in self.catalog.made(partition.topic):
                return not_made(partition)
            return self.catalog.away_error(partition)
        return UnknownTopicOrPartitionException(
            f"topic {partition.topic!r} has no partition {partition.partition}: it has {info.partitions}"
        )

    def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str] | None,
        topic_id: str | None,
        *,
        exist_ok: bool,
        adds_retention: bool = True,
    ) -> TopicInfo:
        """Creates a topic, as `Store.create_topic`. Without `adds_retention`, as `Catalog.create`."""
        made = self.catalog.create(name, partitions, config, topic_id, exist_ok=exist_ok, adds_retention=adds_retention)
        self.bells.ring()
        return made

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        """Adds partitions, as `Store.add_partitions`."""
        found = self.catalog.add_partitions(name, partitions)
        self.bells.ring()
        return found

    def alter_topic(self, name: str, config: Mapping[str, str | None], *, adds_retention: bool = True) -> TopicInfo:
        """Changes a topic's settings, as `Store.alter_topic`. Without `adds_retention`, as `Catalog.alter`."""
        found = self.catalog.alter(name, config, adds_retention=adds_retention)
        if self.tier is not None:
            self.tier.take(name, self._logs_of(name))
        self._take_settings(name)
        return found

    def _take_settings(self, topic: str) -> None:
        with HANDLES_LOCK:
            handles = list(self.handles)
        for each in (self, *handles):
            for partition, appends in list(each._partitions.items()):
                if partition.topic == topic:
                    appends.take_settings()

    def change_defaults(self, defaults: Mapping[str, object]) -> None:
        """Changes settings of all topics that do not override them. Replaces the defaults of an earlier call."""
        manager = self.manager
        before = manager.current_default_config
        after = LogConfig.from_props({**manager.settings.default_config.originals, **defaults})
        if after == before:
            return
        manager.reconfigure_default_config(after)
        for topic in self.catalog.names():
            manager.update_topic_config(topic, self.catalog.must(topic).overrides)
            self._take_settings(topic)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, as `Store.delete_topic`."""
        logs = self._logs_of(name) if self.tier is not None else []
        deleted = self.catalog.delete(name)
        if self.tier is not None and not self.tier.delete(deleted.topic_id, logs):
            deleted = deleted._replace(was_all_here=False)
        for partition in list(self._partitions):
            if partition.topic == name:
                self._partitions.pop(partition, None)
        self.bells.ring()
        self._deletions.append(deleted)
        try:
            self._forget_deletions()
        except (DiskFull, TooManyOpenFilesException) as error:  # the topic is deleted in any case
            Lines("kafkalog.topics").info("cursors of %s, which is deleted, are removed later: %s", name, error)
            self._tasks.once("forget-deletions", self._forget_deletions, FORGET_AGAIN_MS)

    def _logs_of(self, topic: str) -> list[UnifiedLog]:
        return [log for log in self.manager.all_logs() if log.topic_partition.topic == topic]

    def _forget_deletions(self) -> None:
        """Removes deleted topics' offsets, so that no cursor points into the next topic of the name."""
        for deleted in list(self._deletions):
            self.coordinators.forget_topic(deleted.topic, deleted.topic_id)
            self.catalog.forget(deleted)
            with suppress(ValueError):  # another thread has removed it meanwhile
                self._deletions.remove(deleted)

    def _forget_deleted(self) -> None:
        """Removes the offsets of topics whose deletion was interrupted, so that no cursor points into the next topic of
        the name."""
        for topic, topic_id in self.catalog.deleted():
            try:
                self.coordinators.forget_topic(topic, topic_id)
            except KafkalogError:  # it is tried again at the next start
                Lines("kafkalog.topics").warning("cursors of %s, which was deleted, remain", topic, exc_info=True)

    def joins(self, topic: str) -> None:
        """Records the topic, wherever its partitions are, as `TransactionHome.joins`."""
        self.catalog.note(topic)

    def flush_coordinators(self) -> None:
        """Syncs the coordinators' logs, before the partitions that depend on them."""
        self.check_open()
        self.coordinators.flush_logs()

    def transaction(self, partition: TopicPartition, transactional_id: str, timeout_ms: int) -> Transaction:
        """Returns a transaction, as `Partition.transaction`."""
        self.check_open()
        return Transaction(self, partition, transactional_id, timeout_ms)

    # --- reading ---------------------------------------------------------------------------------------

    @property
    def topic_changes(self) -> int:
        """A number that differs from before if topics may have changed."""
        return self.catalog.changes

    def source(self, partition: TopicPartition) -> StoreSource:
        """Returns a reader's view of a partition. Errors as `partition`."""
        return StoreSource(self, self.partition(partition).engine)

    def known_topics(self) -> list[str]:
        """Returns the topics that are not internal, as Home."""
        return public(self.catalog.names())

    def known_partitions(self, topic: str) -> int:
        """Returns a topic's number of partitions, as Home."""
        return self.catalog.must(topic).partitions

    def glance(self, partition: TopicPartition) -> tuple[int, int] | None:
        """Returns a partition's start and end, as Home."""
        log = self.manager.registry.get(partition)
        return None if log is None else (log.log_start_offset, log.log_end_offset)

    def log_now(self, partition: TopicPartition) -> UnifiedLog | None:
        """Returns a partition's log, in the directory where it is now."""
        return self.manager.registry.get(partition)

    def settled_log(self, partition: TopicPartition) -> UnifiedLog | None:
        """Returns the same, after any change that is running has finished."""
        return self.catalog.settled_log(partition)

    def offsets(self, group: str, *, create: bool) -> GroupOffsets | None:
        """Returns the keeper of a cursor; None if there is none, and `create` is False."""
        self.check_open()
        return self.coordinators.offsets(group, create=create)

    def keepers(self, cursor: str) -> list[GroupOffsets]:
        """Returns the keepers that may know a cursor."""
        found = self.offsets(cursor, create=False)
        return [] if found is None else [found]

    def list_transactions(self) -> list[TransactionDescription]:
        """Returns the transactional ids of the coordinator, whose logs are loaded."""
        self.check_open()
        return self.coordinators.transactions.list_transactions()

    def all_keepers(self) -> list[GroupOffsets]:
        """Returns the keepers of all cursors."""
        return self.coordinators.all_offsets()
