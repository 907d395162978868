"""A store's two coordinators: who keeps cursors and who ends transactions, over the logs of its manager.

Puts `kafkalog.coordinator` on the topics `__consumer_offsets` and `__transaction_state` of these directories, which are
made partition by partition, each when it is first written to.  `start` settles what a crash or another process left
behind, before anybody reads or writes: what was decided is carried out, and what this package began and nobody can go
on with is aborted (its producer ids tell; a broker's open transactions wait for their holders until they time out).

The order of locks: a transactional id's, then a state partition's or a group's, then a log's.  So nothing here may be
called with a log's lock held.  Thread-safe.  Source: TransactionCoordinator, GroupCoordinatorService (4.4.0).
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkalog.coordinator.group_offsets import GroupOffsets, OffsetSettings
from kafkalog.coordinator.partition_logs import LogMarkers, UnifiedStateLog
from kafkalog.coordinator.transaction_coordinator import TransactionCoordinator, TransactionSettings
from kafkalog.errors import IllegalArgumentException
from kafkalog.files import Clock
from kafkalog.files.lines import Lines
from kafkalog.files.processes import Life
from kafkalog.format.coordinator_records import partition_for
from kafkalog.format.java_text import ZERO_UUID
from kafkalog.format.names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from kafkalog.format.values import text

if TYPE_CHECKING:
    from kafkalog.log.unified_log import UnifiedLog
    from kafkalog.manager.log_manager import LogManager
    from kafkalog.topics.catalog import Catalog

# Producer ids of a store's transactions: above all that a broker hands out, below those of `Log.writer` and
# `Log.transaction`, so that each open knows which open transactions are its own to end.
FIRST_STORE_PRODUCER_ID = 1 << 61
STORE_PRODUCER_IDS = range(FIRST_STORE_PRODUCER_ID, 1 << 62)


def new_producer_id(transactional_id: str, previous: int) -> int:
    """One that nobody has or had: of 61 bits at random, as nothing is kept of those that were forgotten."""
    return FIRST_STORE_PRODUCER_ID | secrets.randbits(61)


class Coordinators:
    """Of one store, whose manager is started before `start`."""

    def __init__(
        self,
        manager: LogManager,
        catalog: Catalog,
        life: Life,
        clock: Clock,
        *,
        syncs: bool,
        transactions: TransactionSettings = TransactionSettings(),  # noqa: B008 (it does not change)
        offsets: OffsetSettings = OffsetSettings(),  # noqa: B008 (likewise)
    ) -> None:
        self._manager = manager
        self._catalog = catalog
        self._life = life
        self._clock = clock
        self._syncs = syncs
        self._settings = offsets
        self._lock = threading.RLock()  # guards which partitions of __consumer_offsets are loaded; taken first of all
        self._offsets: dict[int, GroupOffsets] = {}
        self.offsets_partitions = catalog.partition_count(GROUP_METADATA_TOPIC)
        self.markers = LogMarkers(self._log_of, self._offsets_of, clock, syncs=syncs)
        self.transactions = TransactionCoordinator(
            self._transaction_state,
            catalog.partition_count(TRANSACTION_STATE_TOPIC),
            self.markers,
            new_producer_id,
            clock,
            offsets_partition_count=self.offsets_partitions,
            settings=transactions,
        )

    # --- the logs below --------------------------------------------------------------------------------

    def _state_log(self, topic: str, number: int, *, create: bool) -> UnifiedStateLog | None:
        log = self._catalog.internal_partition(topic, number, create=create)
        if log is None:
            return None
        log.flushes_rolls = self._syncs
        return UnifiedStateLog(log, syncs=self._syncs)

    def _transaction_state(self, number: int, create: bool) -> UnifiedStateLog | None:
        return self._state_log(TRANSACTION_STATE_TOPIC, number, create=create)

    def _log_of(self, partition: TopicPartition) -> UnifiedLog | None:
        """None only where the topic is deleted: whatever else a transaction was in has to hear of its end."""
        info = self._catalog.info(partition.topic)
        if info is None:
            return None
        log = self._manager.get_log(partition)
        if log is not None:
            return log
        return self._manager.get_or_create_log(partition, topic_id=info.topic_id)

    def _offsets_of(self, partition: TopicPartition) -> GroupOffsets | None:
        if partition.topic != GROUP_METADATA_TOPIC:
            return None
        return self._group_offsets(partition.partition, create=True)

    # --- groups ----------------------------------------------------------------------------------------

    def offsets(self, group: str, *, create: bool) -> GroupOffsets | None:
        """Who keeps a group's offsets; None where its partition is not there, and is not to be made."""
        if not text(group, "group"):
            raise IllegalArgumentException("a group must not be empty", hint="it is the cursor's name")
        return self._group_offsets(partition_for(group, self.offsets_partitions), create=create)

    def all_offsets(self) -> list[GroupOffsets]:
        """Of all partitions that there are."""
        found = [self._group_offsets(number, create=False) for number in range(self.offsets_partitions)]
        return [each for each in found if each is not None]

    def _group_offsets(self, number: int, *, create: bool) -> GroupOffsets | None:
        found = self._offsets.get(number)
        if found is not None:
            return found
        if not self._life.live:
            raise self._life.refusal(f"the store of {self._manager.directories.shown}")
        with self._lock:
            found = self._offsets.get(number)
            if found is None:
                log = self._state_log(GROUP_METADATA_TOPIC, number, create=create)
                if log is None:
                    return None
                found = self._offsets[number] = GroupOffsets(log, self._clock, self._settings)
            return found

    # --- what nobody asked for -------------------------------------------------------------------------

    def start(self) -> None:
        """Settles every transaction that was left behind.  SchemaException where a state partition cannot be
        understood; KafkaStorageException."""
        self.transactions.load(range(self.transactions.partition_count))
        self.transactions.finish_prepared()
        for each in self.transactions.list_transactions(states=("Ongoing",)):
            if each.producer_id in STORE_PRODUCER_IDS:
                self.transactions.abort(each.transactional_id)

    def end_overdue(self) -> None:
        """What has been open for too long is aborted; also goes on with an end that was cut short."""
        self._quietly("aborting transactions that are overdue", self.transactions.abort_timed_out)

    def forget_expired(self) -> None:
        """Ids that nobody used for seven days, and cursors that nobody moved for as long, as with Kafka."""
        self._quietly("forgetting transactional ids", self.transactions.remove_expired)
        for each in list(self._offsets.values()):
            self._quietly("forgetting offsets", each.expire)

    def _quietly(self, doing: str, what: Callable[[], object]) -> None:
        try:
            what()
        except Exception:
            if self._life.live:
                Lines("kafkalog.coordinator").exception("Error while %s", doing)

    def forget_topic(self, topic: str, topic_id: str | None) -> None:
        """Of a topic that is deleted: no cursor points into the next one of that name."""
        for each in self.all_offsets():
            each.delete_topic(topic, topic_id or ZERO_UUID)
