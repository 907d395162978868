"""The transaction coordinator: tracks the holder and the partitions of each transactional id, and ends transactions.

    id, epoch = coordinator.init_producer_id("biller-1", 60_000)
    coordinator.add_partitions("biller-1", holder, partitions)      before the first batch to each
    holder = coordinator.end_transaction("biller-1", holder, commit=True)

A transaction ends the same way in all its partitions because of the order of durable writes. A partition is durably
listed before its first batch. The batches are durable before the record that decides. That one record is durable before
any marker. The markers are durable before the record that completes the transaction. So after a crash at any step a
durable decision is carried out (`finish_prepared`), and without a decision only an abort is possible. The holder is the
producer that may use the id. A holder is fenced by its epoch, which each partition checks.

Each call does all its work before it returns, including the markers; Kafka's broker returns once the decision is
durable. If an interrupt or an error ends a call after the decision, the next call for that id finishes the work. The
decision stands, whatever result the first caller saw. Repeating a call starts no other transaction: an end that has
happened returns the same result again.

Thread-safe: each id has one lock, held over a whole call including syncs, and taken before all other locks. Calls for
other ids are not blocked. Must not be called with a log's lock held. Knows no log and no manager (`state_log`). Source:
TransactionCoordinator, TransactionStateManager, TransactionMarkerChannelManager (4.4.0).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from kafkalog import _shown
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
    ConcurrentTransactionsException,
    IllegalArgumentException,
    InvalidPidMappingException,
    InvalidTxnTimeoutException,
    KafkalogError,
    TransactionalIdNotFoundException,
)

DAY_MS = 24 * 3600 * 1000


class TransactionSettings(NamedTuple):
    """Kafka's settings of the same names, with its defaults; times are in milliseconds."""

    transaction_version: TransactionVersion = TransactionVersion.TV_2
    transaction_max_timeout_ms: int = 15 * 60 * 1000
    transactional_id_expiration_ms: int = 7 * DAY_MS


class ClientIds(Protocol):
    """The producer ids of clients of the protocol."""

    def next(self) -> int:
        """Returns an id that nobody has or had."""

    def accepts(self, producer_id: int) -> bool:
        """Returns whether a client may hold an id."""


PARTITIONS_SHOWN = 4  # so many partitions of a transaction are named in a table


class TransactionDescription(NamedTuple):
    """A transactional id as `kafka-transactions describe` shows it.

    `state` is Kafka's name, `start_ms` is -1 before the first transaction, and `partitions` are those of the
    transaction that is open or ending.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]

    def _repr_html_(self) -> str | None:
        return _shown.or_none(lambda: TransactionDescriptions._show([self]))


class TransactionDescriptions(_shown.Shelf[TransactionDescription]):
    """The transactional ids of a store, by id."""

    @staticmethod
    def _show(items: Sequence[TransactionDescription]) -> str:
        rows = (
            (
                _shown.cut(each.transactional_id), each.state, _shown.moment(each.start_ms), each.producer_id,
                each.producer_epoch, ", ".join(map(str, each.partitions[:PARTITIONS_SHOWN]))
                + ", ..." * (len(each.partitions) > PARTITIONS_SHOWN),
            )
            for each in items
        )  # fmt: skip
        columns = ("transactional id", "state", "began", "producer id", "epoch", "partitions")
        return _shown.table(_shown.number(len(items), "transactional id"), columns, rows)


class TransactionCoordinator:
    """The transactional ids of a store.

    `state_log_of(n, create)` returns partition n of `__transaction_state`, which has `partition_count` partitions; None
    if it does not exist and `create` is False. Each partition is read when first needed, or by `load`.
    `offsets_partition_count` is the partition count of `__consumer_offsets`. `producer_id_for(id, previous)` returns a
    producer id that nobody has or had: the first for a new id, if `previous` is -1, else the successor of `previous`.
    An id that was forgotten must get a producer id different from its earlier ones, because partitions may remember
    their epochs.
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
        self._lock = threading.RLock()  # guards which partitions are loaded; taken before an id's lock
        self._partitions: dict[int, TransactionStatePartition] = {}

    # --- loading --------------------------------------------------------------------------------------

    def load(self, partitions: Iterable[int]) -> None:
        """Reads these partitions of `__transaction_state`.

        Raises SchemaException if a partition has a record that cannot be understood; its ids cannot be used.
        """
        for each in partitions:
            self._partition(each, create=False)

    def catch_up(self) -> None:
        """Reads what another process has appended to the loaded partitions, to follow a running broker."""
        self._check_live()
        for each in list(self._partitions.values()):
            each.catch_up()

    def finish_prepared(self) -> list[str]:
        """Carries out what was decided before a crash, in the loaded partitions. Returns the ids affected.

        An error for one id does not stop the others; the first error is raised after all have been tried.
        """
        return self._of_each(self._loaded_ids(PREPARED), self._finish)

    def use_partition_counts(self, own: int, offsets: int) -> None:
        """Counts so many partitions of `__transaction_state` and `__consumer_offsets` from now on. For topics that do
        not exist yet."""
        self.partition_count, self._offsets_partition_count = own, offsets

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
        if not self._life.live:  # after a fork, a lock that another thread held would never be released
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
        """Raises InvalidTxnTimeoutException for a timeout that no transaction may have."""
        if not 0 < timeout_ms <= self.settings.transaction_max_timeout_ms:
            raise InvalidTxnTimeoutException(
                f"a transaction timeout of {timeout_ms} ms, expected 1 to "
                f"{self.settings.transaction_max_timeout_ms} (transaction.max.timeout.ms)"
            )

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None = None
    ) -> ProducerIdAndEpoch:
        """Takes the id over: fences its previous holder, and aborts the transaction that the holder left open.

        `timeout_ms`: how long a transaction may be open. `expected`: the id and epoch that the caller already holds, if
        it continues after an error. Raises ProducerFencedException if another producer has taken the id over since.
        """
        self.check_timeout(timeout_ms)
        return self._entered(transactional_id, timeout_ms, expected, None)

    def init_client(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        ids: ClientIds,
    ) -> ProducerIdAndEpoch:
        """Does the same for a client of the protocol, as a broker answers it. The caller has checked the timeout.

        A client whose predecessor left a transaction open gets ConcurrentTransactionsException once that is aborted,
        and takes the id over when it tries again. It never holds a producer id that `ids` does not accept.
        """
        return self._entered(transactional_id, timeout_ms, expected, ids)

    def _entered(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None, ids: ClientIds | None
    ) -> ProducerIdAndEpoch:
        partition = self._partition_of(transactional_id, create=True)
        assert partition is not None, transactional_id
        while True:
            entry = partition.entry(transactional_id, create=True)
            assert entry is not None, transactional_id
            refuse_reentry(entry.lock, f"the transactional id {transactional_id!r}")
            with entry.lock:
                if partition.is_current(entry):
                    return self._init_producer_id(partition, entry, timeout_ms, expected, ids)

    def _init_producer_id(
        self,
        partition: TransactionStatePartition,
        entry: TransactionEntry,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None,
        ids: ClientIds | None,
    ) -> ProducerIdAndEpoch:
        self._finish(partition, entry)
        now_ms = self._clock.milliseconds()
        known = entry.known
        if known is None:
            first = self._producer_id_for(entry.transactional_id, NO_PRODUCER_ID) if ids is None else ids.next()
            known = transitions.created(first, timeout_ms, now_ms)
        elif known.metadata.state is ONGOING:
            transitions.check_taken_over(known, expected)
            self._abort_fenced(partition, entry)
            known = entry.known
            assert known is not None
            if ids is not None:
                raise ConcurrentTransactionsException("the open transaction of the last holder was aborted")
        if ids is not None and not ids.accepts(known.metadata.producer_id):
            transitions.check_taken_over(known, expected)
            taken = transitions.rotated(known, timeout_ms, self._clock.milliseconds(), ids.next)
        else:
            new_id = self._new_producer_id(entry.transactional_id, known)
            taken = transitions.init_producer_id(known, timeout_ms, expected, self._clock.milliseconds(), new_id)
        partition.put(entry, taken)
        partition.log.flush()  # otherwise a power loss could lead to the same epoch being returned again
        return taken.holder

    def add_partitions(
        self,
        transactional_id: str,
        holder: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        client_version: TransactionVersion | None = None,
    ) -> None:
        """Adds the partitions that the holder will write to; durable on return. The first ones begin a transaction.

        Raises InvalidPidMappingException for a producer id other than the holder's, and ProducerFencedException for an
        older epoch.
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
            partition.log.flush()  # also makes durable what an interrupted call had only written

    def add_offsets(
        self,
        transactional_id: str,
        holder: ProducerIdAndEpoch,
        group: str,
        client_version: TransactionVersion | None = None,
    ) -> TopicPartition:
        """Adds a group's partition of `__consumer_offsets` to the transaction, and returns it.

        The holder will commit offsets of the group within the transaction.
        """
        found = TopicPartition(GROUP_METADATA_TOPIC, partition_for(group, self._offsets_partition_count))
        self.add_partitions(transactional_id, holder, [found], client_version)
        return found

    def verify_partitions(
        self, transactional_id: str, holder: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> None:
        """Raises TransactionAbortableException if a partition is not in the transaction.

        Raises the other errors of `add_partitions` too.
        """
        partition, entry = self._existing(transactional_id)
        with entry.lock:
            self._finish(partition, entry)
            transitions.verify_partitions(_held(partition, entry), holder, partitions)

    def partitions_outside(
        self, transactional_id: str, holder: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> list[TopicPartition]:
        """Returns those of the partitions that are not in the holder's transaction. Other errors as
        `verify_partitions`."""
        partition, entry = self._existing(transactional_id)
        with entry.lock:
            self._finish(partition, entry)
            known = _held(partition, entry)
            transitions.verify_partitions(known, holder, ())
            listed = set(known.partitions)
            return [each for each in partitions if each not in listed]

    def end_transaction(
        self,
        transactional_id: str,
        holder: ProducerIdAndEpoch,
        *,
        commit: bool,
        client_version: TransactionVersion | None = None,
    ) -> ProducerIdAndEpoch:
        """Commits or aborts in all partitions. Returns the id and epoch with which the holder continues.

        With transaction version 2 it is the next epoch, with sequences from 0; otherwise the current one. Raises
        InvalidTxnStateException if there is nothing to commit, or if the transaction was ended the other way. An error
        raised after the decision (a partition's disk failed, for example) does not change it: the next call for this
        id, or `finish_prepared`, continues.
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

    # --- housekeeping ---------------------------------------------------------------------------------

    def abort(self, transactional_id: str) -> bool:
        """Aborts the id's open transaction and fences its holder. Returns whether there was one.

        This is for transactions that a crash left open and nobody can continue.
        """
        partition, entry = self._existing(transactional_id)
        with entry.lock:
            self._finish(partition, entry)
            if _held(partition, entry).metadata.state is not ONGOING:
                return False
            self._abort_fenced(partition, entry)
            return True

    def abort_timed_out(self) -> list[str]:
        """Aborts transactions that are open for longer than their timeout, and fences their holders. Returns the ids.

        Also finishes transactions that an interrupt or an error left decided. Errors as `finish_prepared`. Kafka checks
        every ten seconds.
        """
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
        """Forgets ids that were not used for transactional.id.expiration.ms. Returns them. Kafka checks every hour."""
        return self._of_each(self._loaded_ids(transitions.AT_REST), self._remove_if_expired)

    def _remove_if_expired(self, partition: TransactionStatePartition, entry: TransactionEntry) -> bool:
        known, expiration_ms = entry.known, self.settings.transactional_id_expiration_ms
        if known is None or not transitions.is_expired(known.metadata, self._clock.milliseconds(), expiration_ms):
            return False
        partition.forget([entry])
        return True

    def forget(self, transactional_id: str) -> bool:
        """Forgets an id without a transaction.

        Returns whether it had none. Its next holder gets another producer id.
        """
        partition, entry = self._existing(transactional_id)
        with entry.lock:
            known = _held(partition, entry)
            if known.metadata.state not in transitions.AT_REST:
                return False
            partition.forget([entry])
            return True

    # --- reading --------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> TransactionDescription:
        """Describes an id. Raises TransactionalIdNotFoundException if it was never used."""
        partition = self._partition_of(transactional_id)
        entry = None if partition is None else partition.entry(transactional_id)
        known = None if entry is None else entry.known
        if known is None:
            raise TransactionalIdNotFoundException(f"the transactional id {transactional_id!r} was never used")
        return described(transactional_id, known)

    def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionDescription]:
        """Lists the ids of the loaded partitions that match all filters.

        `states` are Kafka's names. `longer_than_ms`: the transaction began more than this long ago. `pattern` must
        match the whole id.
        """
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
        """Carries a decision out. Returns whether there was one. Each step may have been done before."""
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
        """Writes all markers.

        An error for one does not stop the others; the first is raised after all have been tried.
        """
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
        """Returns the client's version, limited to the cluster's."""
        ours = self.settings.transaction_version
        return ours if client_version is None else min(client_version, ours)


def _held(partition: TransactionStatePartition, entry: TransactionEntry) -> Known:
    known = entry.known if partition.is_current(entry) else None
    if known is None:
        raise _unknown_id(entry.transactional_id)
    return known


def _unknown_id(transactional_id: str) -> InvalidPidMappingException:
    return InvalidPidMappingException(
        f"the transactional id {transactional_id!r} is unknown or has expired", hint="call init_producer_id again"
    )


def described(transactional_id: str, known: Known) -> TransactionDescription:
    """Returns an id's description, as `list_transactions` returns it."""
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
