"""A store's two coordinators, which keep cursors and end transactions, over the logs of its manager.

Connects `kafkalog.engine.coordinator` to the topics `__consumer_offsets` and `__transaction_state` of these
directories. These topics are created partition by partition, each at its first write. `start` settles what a crash or
another process left behind, before anybody reads or writes: decided transactions are completed, and open ones that this
package began and nobody can continue are aborted. Their producer ids identify them. An open transaction under a
producer id of a broker waits for its holder until it times out.

The order of locks: a transactional id's, then a state partition's or a group's, then a log's. So nothing here may be
called with a log's lock held. Thread-safe. Source: TransactionCoordinator, GroupCoordinatorService (4.4.0).
"""

from __future__ import annotations

import importlib
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._face.producer_ids import ProducerIds
from kafkalog._face.store_topics import CatalogTopics, LateGroupConfigs
from kafkalog._face.transactional_ids import FIRST_STORE_PRODUCER_ID, TransactionalIds
from kafkalog._limits import LONG_MAX
from kafkalog.config import CleanerConfig
from kafkalog.engine.coordinator.group_metrics import gauges_of
from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.group_settings import GroupSettings, ShareSettings
from kafkalog.engine.coordinator.partition_logs import LogMarkers, UnifiedStateLog
from kafkalog.engine.coordinator.state_log import refuse_reentry
from kafkalog.engine.coordinator.timers import Timers, TimerThread
from kafkalog.engine.coordinator.transaction_coordinator import TransactionCoordinator, TransactionSettings
from kafkalog.engine.files import Clock
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.processes import Life
from kafkalog.engine.format import codecs
from kafkalog.engine.format.coordinator_records import partition_for
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.names import (
    GROUP_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from kafkalog.engine.format.values import text
from kafkalog.errors import (
    DiskFull,
    IllegalArgumentException,
    InvalidProducerEpochException,
    KafkalogError,
    TooManyOpenFilesException,
)

if TYPE_CHECKING:
    from kafkalog._face.catalog import Catalog
    from kafkalog._face.served_groups import ServedGroups
    from kafkalog.engine.coordinator.group_coordinator import GroupCoordinator
    from kafkalog.engine.coordinator.share_coordinator import ShareCoordinator
    from kafkalog.engine.coordinator.share_partition_manager import SharePartitionManager
    from kafkalog.engine.coordinator.state_log import TransactionMarker
    from kafkalog.engine.coordinator.topics_view import GroupConfigs
    from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch
    from kafkalog.engine.host.log_manager import LogManager
    from kafkalog.engine.host.registry import LogRegistry
    from kafkalog.engine.log.unified_log import UnifiedLog
    from kafkalog.metrics.registry import Gauge, MetricsRegistry

SHOWN = 10  # partitions in a message
OVERDUE_CHECK_MS = 10_000  # transaction.abort.timed.out.transaction.cleanup.interval.ms
# Offsets do not expire, and a target is computed as soon as a member comes: nobody waits for many clients to start.
EMBEDDED = GroupSettings(offsets_retention_ms=LONG_MAX, group_consumer_assignment_interval_ms=0)
EXPIRY_CHECK_MS = 600_000  # offsets.retention.check.interval.ms


def new_producer_id() -> int:
    """Returns a new producer id with 61 random bits, because forgotten ids are not kept anywhere."""
    return FIRST_STORE_PRODUCER_ID | secrets.randbits(61)


class InternalTopic(NamedTuple):
    """An internal topic, as a server's settings want it. `overrides`: its settings that are not Kafka's default."""

    partitions: int
    overrides: Mapping[str, str]
    codec: int = codecs.NONE


class StoreStateLog(UnifiedStateLog):
    """A partition of an internal topic, in the directory where the manager has it now."""

    def __init__(self, manager: LogManager, log: UnifiedLog, *, syncs: bool, codec: int = codecs.NONE) -> None:
        super().__init__(log, syncs=syncs, codec=codec)
        self._manager = manager
        log.flushes_rolls = syncs

    def moved_from(self, log: UnifiedLog) -> UnifiedLog | None:
        found = self._manager.log_to_change(log.topic_partition)
        if found is not None:
            found.flushes_rolls = self.syncs
        return found


class SoleMarkers(LogMarkers):
    """Writes markers for coordinators that are the only writers of their partitions.

    If a partition knows a later epoch of a producer, it has seen the end of the earlier transaction: the coordinator's
    log has lost its end by a power loss or a repair.
    """

    def __init__(
        self,
        registry: LogRegistry,
        log_of: Callable[[TopicPartition], UnifiedLog | None],
        offsets_of: Callable[[TopicPartition], GroupOffsets | None],
        clock: Clock,
        *,
        syncs: bool,
    ) -> None:
        super().__init__(log_of, offsets_of, clock, syncs=syncs)
        self._registry = registry
        self.outrun: set[int] = set()  # producer ids of which a partition knows a later state than the coordinator

    def write(self, partition: TopicPartition, marker: TransactionMarker) -> None:
        log = None
        if partition.topic != GROUP_METADATA_TOPIC:
            log = self._registry.get(partition) or self._log_of(partition)
        entry = None if log is None else log.producer_state_manager.last_entry(marker.producer_id)
        is_open = entry is not None and entry.current_txn_first_offset is not None
        if entry is not None and entry.producer_epoch == marker.producer_epoch and not is_open:
            return  # this partition has the marker: another one refused it, and the end is tried again
        try:
            super().write(partition, marker)
        except InvalidProducerEpochException as error:
            self.outrun.add(marker.producer_id)
            Lines("kafkalog.coordinator").warning(
                "%s: the transaction of producer id %d, epoch %d, has ended there before: %s",
                partition, marker.producer_id, marker.producer_epoch, error,
            )  # fmt: skip


class Coordinators:
    """The coordinators of one store, whose manager is started before `start`."""

    ends_left = True

    # More than eight parameters: the objects it uses, and the differences if a directory has single partitions open.
    def __init__(
        self,
        manager: LogManager,
        catalog: Catalog,
        life: Life,
        clock: Clock,
        *,
        syncs: bool,
        log_to_end: Callable[[TopicPartition], UnifiedLog | None] | None = None,
        check_making: Callable[[], object] = lambda: None,
        transactions: TransactionSettings = TransactionSettings(),  # noqa: B008 (it does not change)
        offsets: GroupSettings = EMBEDDED,
        metrics: MetricsRegistry | None = None,
    ) -> None:
        """`log_to_end`: by default `Catalog.log_to_end`. `check_making` raises an error if no partition of an internal
        topic may be created."""
        self._check_making = check_making
        self._metrics = metrics
        self._manager = manager
        self._catalog = catalog
        self._life = life
        self.clock = clock
        self._syncs = syncs
        self._settings = offsets
        self._is_ended = False
        # Guards which partitions of __consumer_offsets are loaded; acquired before all others.
        self._lock = threading.RLock()
        self._offsets: dict[int, GroupOffsets] = {}
        self.offsets_partitions = catalog.partition_count(GROUP_METADATA_TOPIC)
        self._state_logs: list[StoreStateLog] = []
        self._codecs: dict[str, int] = {}  # by internal topic
        self.timers = Timers(clock)
        self._timer_thread = TimerThread(self.timers)
        self._worker = Timers(clock)
        self._worker_thread = TimerThread(self._worker, "kafkalog-groups")
        self.topics = CatalogTopics(catalog)
        self.group_configs = LateGroupConfigs()
        self.share_settings = ShareSettings()
        self._served: ServedGroups | None = None
        log_to_end = log_to_end or catalog.log_to_end
        self.markers = SoleMarkers(manager.registry, log_to_end, self._offsets_of, clock, syncs=syncs)
        self.transactions = TransactionCoordinator(
            self._transaction_state,
            catalog.partition_count(TRANSACTION_STATE_TOPIC),
            self.markers,
            self._producer_id_after,
            clock,
            offsets_partition_count=self.offsets_partitions,
            settings=transactions,
        )
        self.ids = TransactionalIds(self.transactions)
        # For clients of the protocol. Their ids are not the store's own, so that a restart leaves their transactions.
        self.producer_ids = ProducerIds(lambda: manager.live_log_dirs, manager.files, self._known_producer_ids)
        if metrics is not None:
            metrics.show(self, Coordinators.gauges)

    def gauges(self) -> list[Gauge]:
        """Returns the gauges of groups and offsets, over the partitions that are loaded."""
        return gauges_of(list(self._offsets.values()))

    def _producer_id_after(self, transactional_id: str, previous: int) -> int:
        """Returns a new producer id of the same kind as the one that a transactional id had before; for a new
        transactional id one of the store's own."""
        return self.producer_ids.next() if 0 <= previous < FIRST_STORE_PRODUCER_ID else new_producer_id()

    def _known_producer_ids(self) -> Iterator[int]:
        for log in self._manager.all_logs():
            yield from log.active_producers
        for each in self.transactions.list_transactions():
            yield each.producer_id

    # --- state logs ------------------------------------------------------------------------------------

    def _state_log(self, topic: str, number: int, *, create: bool) -> UnifiedStateLog | None:
        if create and number not in self._catalog.numbers(topic):
            self._check_making()
        log = self._catalog.internal_partition(topic, number, create=create)
        if log is None:
            return None
        found = StoreStateLog(self._manager, log, syncs=self._syncs, codec=self._codecs.get(topic, codecs.NONE))
        self._state_logs.append(found)
        return found

    def sync_from_now_on(self) -> None:
        """Syncs every write from now on, because the next caller was promised it. May be called again."""
        if self._syncs:
            return
        self._syncs = self.markers.syncs = True
        for each in self._state_logs:
            each.syncs = each.log.flushes_rolls = True

    def _transaction_state(self, number: int, create: bool) -> UnifiedStateLog | None:
        return self._state_log(TRANSACTION_STATE_TOPIC, number, create=create)

    def _offsets_of(self, partition: TopicPartition) -> GroupOffsets | None:
        if partition.topic != GROUP_METADATA_TOPIC:
            return None
        return self.group_offsets(partition.partition, create=True)

    # --- groups ----------------------------------------------------------------------------------------

    def offsets(self, group: str, *, create: bool) -> GroupOffsets | None:
        """Returns the keeper of a group's offsets; None if its partition does not exist, and `create` is False."""
        if not text(group, "group"):
            raise IllegalArgumentException("a group must not be empty", hint="it is the cursor's name")
        return self.group_offsets(partition_for(group, self.offsets_partitions), create=create)

    def all_offsets(self) -> list[GroupOffsets]:
        """Returns the keepers of all partitions that exist."""
        found = [self.group_offsets(number, create=False) for number in self._catalog.numbers(GROUP_METADATA_TOPIC)]
        return [each for each in found if each is not None]

    def group_offsets(self, number: int, *, create: bool) -> GroupOffsets | None:
        """Returns a partition of `__consumer_offsets`; None if it does not exist, and `create` is False."""
        found = self._offsets.get(number)
        if found is not None:
            return found
        if self._life.forked:  # the lock may be held forever
            raise self._life.refusal(f"the store of {self._manager.directories.shown}")
        with self._lock:
            found = self._offsets.get(number)
            if found is None:
                log = self._state_log(GROUP_METADATA_TOPIC, number, create=create)
                if log is None:
                    return None
                found = self._offsets[number] = GroupOffsets(
                    log,
                    self.clock,
                    self._settings,
                    number=number,
                    timers=self.timers,
                    worker=self._worker,
                    topics=self.topics,
                    configs=self.group_configs,
                )
            return found

    # --- live groups -----------------------------------------------------------------------------------

    @property
    def served(self) -> ServedGroups:
        """The coordinators of live groups, made at the first use. Raises IllegalStateException after the end."""
        found = self._served
        if found is None:
            if self._life.forked or self._is_ended:
                raise self._life.refusal(f"the store of {self._manager.directories.shown}")
            above = importlib.import_module("kafkalog._face.served_groups")  # heavy, and few stores need it
            with self._lock:
                found = self._served = self._served or above.ServedGroups(self, self._catalog, self._metrics)
        return found

    @property
    def serves_groups(self) -> bool:
        """Whether members of groups may be alive in this process, or beside it as clients."""
        return self._served is not None

    @property
    def groups(self) -> GroupCoordinator:
        """The coordinator of groups, for members and servers."""
        return self.served.groups

    @property
    def share_coordinator(self) -> ShareCoordinator:
        """The coordinator that keeps how far share groups have come."""
        return self.served.share_coordinator

    @property
    def syncs_writes(self) -> bool:
        """Whether a write is on the disk before its call returns."""
        return self._syncs

    @property
    def shares(self) -> SharePartitionManager:
        """The share partitions of clients and of this process's queues."""
        return self.served.shares

    def all_group_partitions(self) -> list[int]:
        """Returns the numbers of the partitions of `__consumer_offsets` that exist."""
        return self._catalog.numbers(GROUP_METADATA_TOPIC)

    def use_transaction_settings(self, settings: TransactionSettings) -> None:
        """Serves transactions with these settings from now on."""
        self.transactions.settings = settings

    def use_share_settings(self, settings: ShareSettings) -> None:
        """Keeps the states of share groups with these settings from now on."""
        with self._lock:
            self.share_settings = settings
            if self._served is not None:
                self._served.share_coordinator.use(settings)

    def use_topic_settings(self, settings: Mapping[str, InternalTopic]) -> None:
        """Gives internal topics that do not exist yet these partitions and settings; one that exists keeps its own.

        The codec is that of all batches from now on.
        """
        catalog = self._catalog
        with self._lock:
            self._codecs.update((topic, each.codec) for topic, each in settings.items())
            for log in self._state_logs:
                log.codec = self._codecs.get(log.log.topic_partition.topic, codecs.NONE)
            catalog.new_counts.update((topic, each.partitions) for topic, each in settings.items())
            catalog.new_overrides.update((topic, each.overrides) for topic, each in settings.items())
            self.offsets_partitions = catalog.partition_count(GROUP_METADATA_TOPIC)
            self.transactions.use_partition_counts(
                catalog.partition_count(TRANSACTION_STATE_TOPIC), self.offsets_partitions
            )
            if self._served is not None:
                self._served.groups.partition_count = self.offsets_partitions
                self._served.share_coordinator.partition_count = catalog.partition_count(SHARE_GROUP_STATE_TOPIC)

    def use_group_settings(self, settings: GroupSettings, configs: GroupConfigs | None = None) -> None:
        """Serves groups with these settings from now on. `configs`: the settings of single groups."""
        with self._lock:
            self._settings = settings
            self.group_configs.source = configs
            for each in self._offsets.values():
                each.settings = settings

    def share_state_log(self, number: int, create: bool) -> UnifiedStateLog | None:
        """Returns the log of a partition of `__share_group_state`."""
        return self._state_log(SHARE_GROUP_STATE_TOPIC, number, create=create)

    # --- background work -------------------------------------------------------------------------------

    def start(self) -> None:
        """Settles every transaction that was left behind, unless `ends_left` is False.

        SchemaException if a state partition cannot be decoded, because it may contain a decision. If a transaction
        cannot be ended now (a partition's directory is offline), a warning is logged and it is tried again in the
        background.
        """
        self._tell_of_those_away()
        self.transactions.load(self._catalog.numbers(TRANSACTION_STATE_TOPIC))
        if self.ends_left:
            self._end_all()

    def _tell_of_those_away(self) -> None:
        for topic, what in ((GROUP_METADATA_TOPIC, "cursors"), (TRANSACTION_STATE_TOPIC, "transactional ids")):
            away = self._catalog.away(topic)
            if away:
                some = ", ".join(map(str, away[:SHOWN])) + (", ..." if len(away) > SHOWN else "")
                Lines("kafkalog.coordinator").warning(
                    "%d partitions of %s are not in %s (%s): the %s in them are refused until the store is opened with "
                    "all its directories",
                    len(away), topic, self._manager.directories.shown, some, what,
                )  # fmt: skip

    def end(self) -> None:
        """Aborts open transactions and answers members when the store closes, because nobody writes afterwards."""
        if not self._is_ended:
            if self._served is not None:
                self._quietly("closing groups", self._served.close)
            self._timer_thread.close()
            self._worker_thread.close()
            if self.ends_left:
                self._end_all()
            self._is_ended = True

    def _end_all(self) -> None:
        self._quietly("finishing transactions", self.transactions.finish_prepared)
        self._quietly("aborting transactions", self._abort_ours)
        self._quietly("forgetting transactional ids", self.give_up_outrun)

    def _abort_ours(self, of: TopicPartition | None = None) -> None:
        failed: KafkalogError | None = None
        for each in self.transactions.list_transactions(states=("Ongoing",)):
            if self.ids.is_ours(each) and (of is None or of in each.partitions):
                try:
                    self.transactions.abort(each.transactional_id)
                except KafkalogError as error:
                    failed = failed or error
        if failed is not None:
            raise failed

    def end_of(self, partition: TopicPartition) -> None:
        """Ends the transactions of a partition, even while others use them, because nobody will write to it any more.
        Open ones are aborted."""
        self._quietly("finishing transactions", self.transactions.finish_prepared)
        self._quietly(f"aborting transactions of {partition}", lambda: self._abort_ours(partition))

    def producers_in(self, partition: TopicPartition) -> dict[int, int] | None:
        """Returns the epochs by producer id of the transactions that are open or ending in a partition. None if
        partitions that may know of others are missing."""
        if self._catalog.away(TRANSACTION_STATE_TOPIC):
            return None
        found = self.transactions.list_transactions()
        return {each.producer_id: each.producer_epoch for each in found if partition in each.partitions}

    def give_up_if_outrun(self, transactional_id: str, holder: ProducerIdAndEpoch) -> bool:
        """Handles the refusal of an id's holder by a partition. Returns whether the partition knows a later state of
        the producer than the coordinator, whose log has lost its end. Then the id's open transaction is aborted, and
        its next holder gets another producer id."""
        known = self.transactions.describe(transactional_id)
        if (known.producer_id, known.producer_epoch, known.state) != (*holder, "Ongoing"):
            return False
        self.markers.outrun.add(holder.producer_id)
        self.transactions.abort(transactional_id)
        self.give_up_outrun()
        return True

    def give_up_outrun(self) -> None:
        """Forgets ids whose producer has a later state in a partition: their next holder gets another producer id."""
        for each in self.transactions.list_transactions() if self.markers.outrun else ():
            if each.producer_id in self.markers.outrun and self.transactions.forget(each.transactional_id):
                self.ids.forget([each.transactional_id])
                self.markers.outrun.discard(each.producer_id)  # nobody gets this id again

    def compact_logs(self, more_than: int) -> None:
        """Compacts these coordinators' logs that have more than `more_than` bytes."""
        for each in self._state_logs:
            if each.log.size > more_than:
                compact = partial(self._manager.compact, each.log, CleanerConfig(), rolls=True)
                self._quietly(f"compacting {each.log.topic_partition}", compact)

    def flush_logs(self) -> None:
        """Syncs the coordinators' logs, before the partitions that depend on them."""
        for each in list(self._state_logs):
            each.flush_now()

    def end_left(self) -> None:
        """Aborts the transactions that no caller holds any more."""
        self._quietly("aborting transactions that nobody has", self.ids.end_left)

    def check_outside(self) -> None:
        """Raises IllegalStateException in a signal handler or finalizer that runs inside a change of these
        coordinators."""
        self.ids.check_outside()
        for each in list(self._offsets.values()):
            refuse_reentry(each.lock, "the group coordinator")

    def end_overdue(self) -> None:
        """Aborts transactions that are open for too long or that no caller holds. Also continues an end that was
        interrupted."""
        self._quietly("aborting transactions that are overdue", self.transactions.abort_timed_out)
        self._quietly("forgetting transactional ids", self.give_up_outrun)
        self.end_left()

    def forget_expired(self) -> None:
        """Forgets ids that nobody used for seven days, and offsets that were committed with an expiry. Cursors stay
        until they are deleted."""
        self._quietly("forgetting transactional ids", lambda: self.ids.forget(self.transactions.remove_expired()))
        for each in list(self._offsets.values()):
            self._quietly("forgetting offsets", each.expire)

    def _quietly(self, doing: str, what: Callable[[], object]) -> None:
        try:
            what()
        except (DiskFull, TooManyOpenFilesException) as error:
            if not self._is_ended:
                Lines("kafkalog.coordinator").warning("%s is postponed: %s", doing, error)
        except Exception:
            if not self._is_ended:
                Lines("kafkalog.coordinator").exception("Error while %s", doing)

    def forget_topic(self, topic: str, topic_id: str | None) -> None:
        """Removes a deleted topic's offsets, so that no cursor points into the next topic of that name."""
        for each in self.all_offsets():
            each.delete_topic(topic, topic_id or ZERO_UUID)
        has_shares = self._served is not None or bool(self._catalog.numbers(SHARE_GROUP_STATE_TOPIC))
        if has_shares and topic_id is not None and not self._is_ended:
            self._quietly(f"forgetting {topic} in share groups", partial(self.served.forget_topic, topic_id))
