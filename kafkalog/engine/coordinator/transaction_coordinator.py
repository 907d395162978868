"""Who holds a transactional id, which partitions his transaction is in, and that it ends one way in all of them.

    id, epoch = coordinator.init_producer_id("biller-1", 60_000)
    coordinator.add_partitions("biller-1", holder, partitions)      before the first batch to each
    holder = coordinator.end_transaction("biller-1", holder, commit=True)

What makes it all or nothing: a partition is durably listed before its first batch; what the batches hold is durable
before the record that decides; that one record is durable before any marker; the markers are before the record that
says that all is done.  So after a crash at any step a decision that stands is carried through (`finish_prepared`),
and without one only an abort is left.  A holder is fenced by his epoch, which each partition checks.

Each call does all of it before it returns, the markers too, where Kafka's broker answers when the decision stands.  A
call that an interrupt, or an error, cut short after the decision is finished by the next one for that id: the decision
stays, whatever the caller of the first was told.  The same call again is no other transaction: an end that happened
answers as it did.

Thread-safe: one lock an id, held over a whole call, syncs too, and taken before all others; calls for other ids go
on.  Must not be called with a log's lock held.  Knows no log and no manager (`state_log`).
Source: TransactionCoordinator, TransactionStateManager, TransactionMarkerChannelManager (4.4.0).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from kafkalog.engine.coordinator import transaction_metadata as transitions
from kafkalog.engine.coordinator.state_log import Markers, StateLog, TransactionMarker, refuse_reentry
from kafkalog.engine.coordinator.transaction_metadata import (
    ONGOING,
    PREPARE_COMMIT,
    PREPARED,
    STATE_NAMES,
    Known,
    ProducerIdAndEpoch,
    TransactionVersion,
)
from kafkalog.engine.coordinator.transaction_state import TransactionEntry, TransactionStatePartition
from kafkalog.engine.files import Clock
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.processes import Life
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.coordinator_records import partition_for
from kafkalog.engine.format.names import GROUP_METADATA_TOPIC, TopicPartition
from kafkalog.engine.format.transaction_records import NO_PRODUCER_ID, TransactionState
from kafkalog.engine.format.values import text
from kafkalog.errors import (
    IllegalArgumentException,
    InvalidPidMappingException,
    InvalidTxnTimeoutException,
    KafkalogError,
    TransactionalIdNotFoundException,
)

DAY_MS = 24 * 3600 * 1000


class TransactionSettings(NamedTuple):
    """Kafka's settings of the same names, and its defaults; times in milliseconds."""

    transaction_version: TransactionVersion = TransactionVersion.TV_2
    transaction_max_timeout_ms: int = 15 * 60 * 1000
    transactional_id_expiration_ms: int = 7 * DAY_MS


class TransactionDescription(NamedTuple):
    """A transactional id as `kafka-transactions describe` shows it: `state` by Kafka's name, `start_ms` -1 before the
    first transaction, `partitions` of the transaction that is open or ending."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]


class TransactionCoordinator:
    """The transactional ids of a store.

    `state_log_of(n, create)` is partition n of `__transaction_state`, which has `partition_count`; None where it is not
    there, and is not to be made.  Each is read when it is first needed, or by `load`.  `offsets_partition_count` is
    that of `__consumer_offsets`.  `producer_id_for(id, previous)` hands out a producer id that nobody has or had: the
    first of an id that is not known, where `previous` is -1, or the one that follows on `previous`.  For an id that was
    forgotten it must be another one than then: partitions may remember the epochs of that.
    """

    def __init__(
        self,
        state_log_of: Callable[[int, bool], StateLog | None],
        partition_count: int,
        markers: Markers,
        producer_id_for: Callable[[str, int], int],
        clock: Clock,
        *,
        offsets_partition_count: int,
        settings: TransactionSettings = TransactionSettings(),  # noqa: B008 (it does not change)
    ) -> None:
        self.settings = settings
        self.partition_count = partition_count
        self._offsets_partition_count = offsets_partition_count
        self._state_log_of = state_log_of
        self._markers = markers
        self._producer_id_for = producer_id_for
        self._clock = clock
        self._life = Life()
        self._lines = Lines("kafkalog.coordinator")
        self._lock = threading.RLock()  # guards which partitions are loaded; taken before an id's
        self._partitions: dict[int, TransactionStatePartition] = {}

    # --- loading --------------------------------------------------------------------------------------

    def load(self, partitions: Iterable[int]) -> None:
        """Reads these partitions of `__transaction_state`.  SchemaException where one holds what cannot be understood:
        its ids cannot be used."""
        for each in partitions:
            self._partition(each, create=False)

    def catch_up(self) -> None:
        """Reads what another process has appended to the partitions that are loaded: to look on beside a broker."""
        self._check_live()
        for each in list(self._partitions.values()):
            each.catch_up()

    def finish_prepared(self) -> list[str]:
        """Carries out what was decided before a crash, in the partitions that are loaded; the ids of which that was.

        An error of one does not keep the others; the first is raised when all have been tried.
        """
        return self._of_each(self._loaded_ids(PREPARED), self._finish)

    def _partition_of(self, transactional_id: str, *, create: bool = False) -> TransactionStatePartition | None:
        if not text(transactional_id, "transactional id"):
            raise IllegalArgumentException("a transactional id must not be empty")
        return self._partition(partition_for(transactional_id, self.partition_count), create=create)

    def _partition(self, number: int, *, create: bool) -> TransactionStatePartition | None:
        self._check_live()
        found = self._partitions.get(number)
        if found is None:
            if not 0 <= number < self.partition_count:
                raise IllegalArgumentException(f"partition {number}: expected 0 to {self.partition_count - 1}")
            refuse_reentry(self._lock, "the transaction coordinator")
            with self._lock:
                found = self._load(number, create)
        return found

    def _load(self, number: int, create: bool) -> TransactionStatePartition | None:
        found = self._partitions.get(number)
        if found is None:
            log = self._state_log_of(number, create)
            if log is None:
                return None
            found = TransactionStatePartition(log, self._clock, self.settings.transaction_version)
            self._partitions[number] = found
        return found

    def _check_live(self) -> None:
        if not self._life.live:  # a lock that another thread held at the fork would never be given back
            raise self._life.refusal("the transaction coordinator")

    def _loaded_ids(self, states: Collection[TransactionState]) -> list[str]:
        self._check_live()
        return [
            each.transactional_id
            for partition in list(self._partitions.values())
            for each in partition.entries()
            if each.known is not None and each.known.metadata.state in states
        ]

    # --- requests -------------------------------------------------------------------------------------

    def check_timeout(self, timeout_ms: int) -> None:
        """InvalidTxnTimeoutException for a timeout that no transaction may have."""
        if not 0 < timeout_ms <= self.settings.transaction_max_timeout_ms:
            raise InvalidTxnTimeoutException(
                f"a transaction timeout of {timeout_ms} ms, expected 1 to "
                f"{self.settings.transaction_max_timeout_ms} (transaction.max.timeout.ms)"
            )

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None = None
    ) -> ProducerIdAndEpoch:
        """Takes the id over: whoever held it is fenced, and what he left open is aborted.

        `timeout_ms`: how long a transaction may be open.  `expected`: what the caller holds already, if he goes on
        after an error; ProducerFencedException where somebody has taken the id over since.
        """
        self.check_timeout(timeout_ms)
        partition = self._partition_of(transactional_id, create=True)
        assert partition is not None, transactional_id
        while True:
            entry = partition.entry(transactional_id, create=True)
            assert entry is not None, transactional_id
            refuse_reentry(entry.lock, f"the transactional id {transactional_id!r}")
            with entry.lock:
                if partition.is_current(entry):
                    return self._init_producer_id(partition, entry, timeout_ms, expected)

    def _init_producer_id(
        self,
        partition: TransactionStatePartition,
        entry: TransactionEntry,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
    ) -> ProducerIdAndEpoch:
        self._finish(partition, entry)
        now_ms = self._clock.milliseconds()
        known = entry.known
        if known is None:
            first = self._producer_id_for(entry.transactional_id, NO_PRODUCER_ID)
            known = transitions.created(first, timeout_ms, now_ms)
        elif known.metadata.state is ONGOING:
            transitions.check_taken_over(known, expected)
            self._abort_fenced(partition, entry)
            known = entry.known
            assert known is not None
        new_id = self._new_producer_id(entry.transactional_id, known)
        taken = transitions.init_producer_id(known, timeout_ms, expected, self._clock.milliseconds(), new_id)
        partition.put(entry, taken)
        partition.log.flush()  # or a power loss would hand out the epoch again
        return taken.holder

    def add_partitions(
        self,
        transactional_id: str,
        holder: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        client_version: TransactionVersion | None = None,
    ) -> None:
        """The holder will write to these partitions; durable when it returns.  The first ones begin a transaction.

        InvalidPidMappingException for another producer id than the holder's, ProducerFencedException for an older
        epoch.
        """
        partition, entry = self._existing(transactional_id)
        with entry.lock:
            self._finish(partition, entry)
            known = _held(partition, entry)
            grown = transitions.add_partitions(
                known, holder, partitions, self._clock.milliseconds(), self._version(client_version)
            )
            if grown is not None:
                partition.put(entry, grown)
            partition.log.flush()  # also what an interrupted call had only written

    def add_offsets(
        self,
        transactional_id: str,
        holder: ProducerIdAndEpoch,
        group: str,
        client_version: TransactionVersion | None = None,
    ) -> TopicPartition:
        """The holder will commit offsets of a group within the transaction: adds and answers its partition of
        `__consumer_offsets`."""
        found = TopicPartition(GROUP_METADATA_TOPIC, partition_for(group, self._offsets_partition_count))
        self.add_partitions(transactional_id, holder, [found], client_version)
        return found

    def verify_partitions(
        self, transactional_id: str, holder: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> None:
        """TransactionAbortableException where one is not part of the holder's transaction; else as add_partitions."""
        partition, entry = self._existing(transactional_id)
        with entry.lock:
            self._finish(partition, entry)
            transitions.verify_partitions(_held(partition, entry), holder, partitions)

    def end_transaction(
        self,
        transactional_id: str,
        holder: ProducerIdAndEpoch,
        *,
        commit: bool,
        client_version: TransactionVersion | None = None,
    ) -> ProducerIdAndEpoch:
        """Commits or aborts in all partitions; answers with what the holder goes on (transaction version 2: the next
        epoch, its sequences from 0 on; else what he has).

        InvalidTxnStateException where there is nothing to commit, or it was ended the other way.  What is raised once
        the decision stands (a partition's disk failed, say) changes nothing about it: the next call for this id, or
        `finish_prepared`, goes on.
        """
        partition, entry = self._existing(transactional_id)
        with entry.lock:
            self._finish(partition, entry)
            known = _held(partition, entry)
            decided = transitions.end(
                known,
                holder,
                self._clock.milliseconds(),
                commit=commit,
                client_version=self._version(client_version),
                new_producer_id=self._new_producer_id(transactional_id, known),
            )
            if decided is not None:
                self._decide(partition, entry, known, decided)
            return _held(partition, entry).holder

    # --- what nobody asked for ------------------------------------------------------------------------

    def abort(self, transactional_id: str) -> bool:
        """Aborts the id's open transaction, whose holder is fenced; whether there was one.  For those that a crash left
        open and nobody can go on with."""
        partition, entry = self._existing(transactional_id)
        with entry.lock:
            self._finish(partition, entry)
            if _held(partition, entry).metadata.state is not ONGOING:
                return False
            self._abort_fenced(partition, entry)
            return True

    def abort_timed_out(self) -> list[str]:
        """Aborts what has been open for longer than its holder said, and fences him; the ids.  Also finishes what an
        interrupt or an error left decided.  Errors as `finish_prepared`.  Kafka looks every ten seconds."""
        return self._of_each(self._loaded_ids({ONGOING, *PREPARED}), self._abort_if_timed_out)

    def _abort_if_timed_out(self, partition: TransactionStatePartition, entry: TransactionEntry) -> bool:
        self._finish(partition, entry)
        known = entry.known
        if known is None or not transitions.is_timed_out(known.metadata, self._clock.milliseconds()):
            return False
        self._lines.warning(
            "transactional id %r: the transaction of producer id %d, epoch %d, has been open for more than %d ms",
            entry.transactional_id, *known.holder, known.metadata.timeout_ms,
        )  # fmt: skip
        self._abort_fenced(partition, entry)
        return True

    def remove_expired(self) -> list[str]:
        """Forgets ids that nobody has used for transactional.id.expiration.ms; which.  Kafka looks every hour."""
        return self._of_each(self._loaded_ids(transitions.AT_REST), self._remove_if_expired)

    def _remove_if_expired(self, partition: TransactionStatePartition, entry: TransactionEntry) -> bool:
        known, expiration_ms = entry.known, self.settings.transactional_id_expiration_ms
        if known is None or not transitions.is_expired(known.metadata, self._clock.milliseconds(), expiration_ms):
            return False
        partition.forget([entry])
        return True

    def forget(self, transactional_id: str) -> bool:
        """Forgets an id that has no transaction; whether it had none.  Its next holder gets another producer id."""
        partition, entry = self._existing(transactional_id)
        with entry.lock:
            known = _held(partition, entry)
            if known.metadata.state not in transitions.AT_REST:
                return False
            partition.forget([entry])
            return True

    # --- looking --------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> TransactionDescription:
        """TransactionalIdNotFoundException for an id that nobody has used."""
        partition = self._partition_of(transactional_id)
        entry = None if partition is None else partition.entry(transactional_id)
        known = None if entry is None else entry.known
        if known is None:
            raise TransactionalIdNotFoundException(f"nobody has used the transactional id {transactional_id!r}")
        return described(transactional_id, known)

    def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionDescription]:
        """The ids of the partitions that are loaded, of these states (by Kafka's names) and producer ids, whose
        transaction began more than so long ago, whose id matches the whole pattern."""
        self._check_live()
        now_ms = self._clock.milliseconds()
        wanted = None if pattern is None else re.compile(pattern)
        found = []
        for partition in list(self._partitions.values()):
            for each in partition.entries():
                known = each.known
                if known is None:
                    continue
                one = described(each.transactional_id, known)
                if (
                    (not states or one.state in states)
                    and (not producer_ids or one.producer_id in producer_ids)
                    and (longer_than_ms < 0 or now_ms - one.start_ms > longer_than_ms)
                    and (wanted is None or wanted.fullmatch(one.transactional_id))
                ):
                    found.append(one)
        return found

    # --- steps, all with the id's lock held -----------------------------------------------------------

    def _decide(
        self, partition: TransactionStatePartition, entry: TransactionEntry, known: Known, decided: Known
    ) -> None:
        if decided.metadata.state is PREPARE_COMMIT:
            self._markers.flush(known.partitions)
        partition.put(entry, decided)
        self._finish(partition, entry)

    def _abort_fenced(self, partition: TransactionStatePartition, entry: TransactionEntry) -> None:
        known = _held(partition, entry)
        new_id = self._new_producer_id(entry.transactional_id, known)
        decided = transitions.fenced(
            known,
            self._clock.milliseconds(),
            version=self.settings.transaction_version,
            new_producer_id=new_id,
        )
        self._decide(partition, entry, known, decided)

    def _finish(self, partition: TransactionStatePartition, entry: TransactionEntry) -> bool:
        """Carries a decision out; whether one stood.  Each step may have been done before."""
        known = entry.known if partition.is_current(entry) else None
        if known is None or known.metadata.state not in PREPARED:
            return False
        partition.log.flush()
        metadata = known.metadata
        marker = TransactionMarker(
            metadata.producer_id,
            metadata.producer_epoch,
            ControlRecordType.COMMIT if metadata.state is PREPARE_COMMIT else ControlRecordType.ABORT,
            partition.log.epoch,
            metadata.client_transaction_version,
        )
        self._write_markers(known.partitions, marker)
        self._markers.flush(known.partitions)
        partition.put(entry, transitions.complete(known, self._clock.milliseconds()))
        return True

    def _write_markers(self, partitions: Iterable[TopicPartition], marker: TransactionMarker) -> None:
        """One that refuses does not keep the others; the first error is raised when all have been tried."""
        failed: KafkalogError | None = None
        for each in partitions:
            try:
                self._markers.write(each, marker)
            except KafkalogError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _existing(self, transactional_id: str) -> tuple[TransactionStatePartition, TransactionEntry]:
        partition = self._partition_of(transactional_id)
        entry = None if partition is None else partition.entry(transactional_id)
        if partition is None or entry is None:
            raise _unknown_id(transactional_id)
        refuse_reentry(entry.lock, f"the transactional id {transactional_id!r}")
        return partition, entry

    def _of_each(
        self, ids: Iterable[str], what: Callable[[TransactionStatePartition, TransactionEntry], bool]
    ) -> list[str]:
        done = []
        failed: KafkalogError | None = None
        for transactional_id in ids:
            try:
                partition, entry = self._existing(transactional_id)
                if self._do(partition, entry, what):
                    done.append(transactional_id)
            except InvalidPidMappingException:
                continue  # it was forgotten meanwhile
            except KafkalogError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return done

    def _do(
        self,
        partition: TransactionStatePartition,
        entry: TransactionEntry,
        what: Callable[[TransactionStatePartition, TransactionEntry], bool],
    ) -> bool:
        with entry.lock:
            return partition.is_current(entry) and what(partition, entry)

    def _new_producer_id(self, transactional_id: str, known: Known) -> Callable[[], int]:
        return lambda: self._producer_id_for(transactional_id, known.metadata.producer_id)

    def _version(self, client_version: TransactionVersion | None) -> TransactionVersion:
        """What the client speaks, if the cluster does."""
        ours = self.settings.transaction_version
        return ours if client_version is None else min(client_version, ours)


def _held(partition: TransactionStatePartition, entry: TransactionEntry) -> Known:
    known = entry.known if partition.is_current(entry) else None
    if known is None:
        raise _unknown_id(entry.transactional_id)
    return known


def _unknown_id(transactional_id: str) -> InvalidPidMappingException:
    return InvalidPidMappingException(
        f"the transactional id {transactional_id!r} is not known, or has expired", hint="init_producer_id begins anew"
    )


def described(transactional_id: str, known: Known) -> TransactionDescription:
    """As `list_transactions` shows it."""
    metadata = known.metadata
    return TransactionDescription(
        transactional_id,
        metadata.producer_id,
        metadata.producer_epoch,
        STATE_NAMES[metadata.state],
        metadata.timeout_ms,
        metadata.start_timestamp,
        known.partitions,
    )
