"""The states of one transactional id: which state may follow which, and what each request changes.

All functions are pure: they return the next known state, or raise an error with Kafka's name; the time is an argument.
`transaction_coordinator` decides who writes it, and in which order. A request that has happened already (a client
repeats it) changes nothing: the result is None.

    Empty, CompleteCommit, CompleteAbort -> Ongoing -> PrepareCommit -> CompleteCommit
                                                    -> PrepareAbort  -> CompleteAbort

Epochs: with transaction versions 0 and 1 the epoch stays the same from transaction to transaction. Only an end that was
not the holder's (another producer took the id over, or a timeout) increments it. With version 2 every end increments
it. The marker carries the new epoch, so that late batches of the last transaction are refused. When the epochs are used
up (32766), the end assigns another producer id, with epoch 0.

Source: TransactionMetadata, TransactionState, TransactionCoordinator (4.4.0).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from kafkalog._limits import INT_MAX, SHORT_MAX
from kafkalog._native.codec.java_hash import hash_map_order, string_hash, table_size_for
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.transaction_records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionState,
)
from kafkalog.errors import (
    ConcurrentTransactionsException,
    IllegalStateException,
    InvalidPidMappingException,
    InvalidTxnStateException,
    ProducerFencedException,
    TransactionAbortableException,
)

EPOCH_EXHAUSTED = SHORT_MAX - 1  # the last epoch of a holder; only an end uses the next one
NO_START = -1
NO_PARTITIONS: Mapping[str, tuple[int, ...]] = {}
NEVER_MS = INT_MAX  # a timeout of this length never expires

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
DEAD, PREPARE_EPOCH_FENCE = TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE
PREPARED = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
AT_REST = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})  # no transaction is running

# The states that may precede each state (TransactionState.VALID_PREVIOUS_STATES).
VALID_PREVIOUS_STATES: Mapping[TransactionState, frozenset[TransactionState]] = {
    EMPTY: AT_REST,
    ONGOING: AT_REST | {ONGOING},
    PREPARE_COMMIT: frozenset({ONGOING}),
    PREPARE_ABORT: AT_REST | {ONGOING, PREPARE_EPOCH_FENCE},
    COMPLETE_COMMIT: frozenset({PREPARE_COMMIT}),
    COMPLETE_ABORT: frozenset({PREPARE_ABORT}),
    DEAD: AT_REST,
    PREPARE_EPOCH_FENCE: frozenset({ONGOING}),
}

# The names in Kafka's clients and tools.
STATE_NAMES: Mapping[TransactionState, str] = {
    state: "".join(word.capitalize() for word in state.name.split("_")) for state in TransactionState
}


class TransactionVersion(enum.IntEnum):
    """The cluster feature transaction.version, and the version that a client uses."""

    TV_0 = 0
    TV_1 = 1
    TV_2 = 2

    @property
    def supports_epoch_bump(self) -> bool:
        """Whether each end of a transaction increments the epoch."""
        return self is TransactionVersion.TV_2

    @property
    def value_version(self) -> int:
        """The version of the records that are written."""
        return 0 if self is TransactionVersion.TV_0 else 1


class ProducerIdAndEpoch(NamedTuple):
    """Identifies the producer that holds a transactional id."""

    producer_id: int
    epoch: int


class Known(NamedTuple):
    """The known state of a transactional id: its last record, and the epoch before its last change.

    No record has that epoch, so it is -1 after a load.
    """

    metadata: TransactionMetadata
    last_producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def holder(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.metadata.producer_id, self.metadata.producer_epoch)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions of the transaction, in the record's order."""
        return listed_partitions(self.metadata)


def listed_partitions(metadata: TransactionMetadata) -> tuple[TopicPartition, ...]:
    """Returns the partitions that a record lists, in its order."""
    topics = metadata.partitions or NO_PARTITIONS
    return tuple([TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers])


def is_epoch_exhausted(epoch: int) -> bool:
    """Returns whether no holder may get another epoch of this producer id."""
    return epoch >= EPOCH_EXHAUSTED


def with_partitions(known: Iterable[TopicPartition], added: Iterable[TopicPartition]) -> dict[str, tuple[int, ...]]:
    """Returns partitions by topic in the order of Kafka's records.

    That is the order of a java.util.HashSet of partitions, grouped in a HashMap by topic. Partitions that share a
    bucket of the table are in the order in which they were added.
    """
    before = list(known)
    rows = list(dict.fromkeys([*before, *added]))
    capacity = table_size_for(max(int(len(before) / 0.75) + 1, 16))
    # Like topic_partition_hash, but computes the hash of each topic's name once.
    of_topic = {topic: 31 * 31 + string_hash(topic) for topic in {row[0] for row in rows}}
    ordered = hash_map_order(rows, lambda row: of_topic[row[0]] + 31 * row[1], initial_capacity=capacity)
    numbers: dict[str, list[int]] = {}
    for topic, number in ordered:
        numbers.setdefault(topic, []).append(number)
    return {topic: tuple(numbers[topic]) for topic in hash_map_order(list(numbers), string_hash)}


# --- transitions --------------------------------------------------------------------------------------


def _follows(
    known: Known,
    state: TransactionState,
    now_ms: int,
    *,
    last_producer_epoch: int | None = None,
    **changed: object,
) -> Known:
    """Returns `known` in its next state. Raises IllegalStateException if that state may not follow."""
    before = known.metadata
    if before.state not in VALID_PREVIOUS_STATES[state]:
        raise IllegalStateException(
            f"{STATE_NAMES[state]} may not follow {STATE_NAMES[before.state]}, the state that the coordinator knows"
        )
    metadata = before._replace(
        state=state,
        previous_producer_id=before.producer_id,
        last_update_timestamp=now_ms,
        **changed,  # type: ignore[arg-type]
    )
    assert metadata.producer_id >= 0, metadata
    assert 0 <= metadata.producer_epoch <= SHORT_MAX, metadata
    last = known.last_producer_epoch if last_producer_epoch is None else last_producer_epoch
    return Known(metadata, last)


def created(producer_id: int, timeout_ms: int, now_ms: int) -> Known:
    """Returns a new transactional id. It is not written yet; `init_producer_id` assigns the first epoch."""
    return Known(TransactionMetadata(producer_id, NO_PRODUCER_EPOCH, timeout_ms, EMPTY, None, now_ms))


def check_taken_over(known: Known, expected: ProducerIdAndEpoch | None) -> None:
    """Raises ProducerFencedException unless a producer that expects to be the holder may take the id over (again).

    It may be one change of producer id late, if its epochs were used up.
    """
    before = known.metadata
    if expected is None or before.producer_epoch == NO_PRODUCER_EPOCH or expected.producer_id == before.producer_id:
        return
    if expected.producer_id == before.previous_producer_id and is_epoch_exhausted(expected.epoch):
        return
    raise ProducerFencedException(
        f"producer id {expected.producer_id} with epoch {expected.epoch} is an earlier holder; the current one is "
        f"{before.producer_id} with epoch {before.producer_epoch}"
    )


def init_producer_id(
    known: Known,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> Known:
    """A producer takes the id over: it gets the next epoch, or another producer id if none is left.

    `expected` is what the producer holds, if it continues after an error. Raises ConcurrentTransactionsException while
    the last transaction is ending. An open transaction must be aborted first (`fenced`).
    """
    check_taken_over(known, expected)
    before = known.metadata
    if before.state in PREPARED:
        raise _still_ending(before)
    if before.state not in AT_REST:
        raise IllegalStateException(f"the transaction is {STATE_NAMES[before.state]}; it must be aborted first")
    epoch, changed = before.producer_epoch, {"timeout_ms": timeout_ms, "partitions": None, "start_timestamp": NO_START}
    if is_epoch_exhausted(epoch) and (expected is None or expected.epoch == epoch):
        last = NO_PRODUCER_EPOCH if expected is None else epoch
        return _follows(
            known, EMPTY, now_ms, last_producer_epoch=last, producer_id=new_producer_id(), producer_epoch=0, **changed
        )
    if expected is None:
        last = NO_PRODUCER_EPOCH
    elif epoch in (NO_PRODUCER_EPOCH, expected.epoch):
        last = epoch
    elif expected.epoch == known.last_producer_epoch:
        return _follows(known, EMPTY, now_ms, **changed)  # a repeated request: the producer has this epoch already
    else:
        raise ProducerFencedException(f"found epoch {expected.epoch}, expected {epoch}, the current holder's epoch")
    if is_epoch_exhausted(epoch):
        raise IllegalStateException(f"producer id {before.producer_id} has no epoch left above {epoch}")
    return _follows(known, EMPTY, now_ms, last_producer_epoch=last, producer_epoch=epoch + 1, **changed)


def rotated(known: Known, timeout_ms: int, now_ms: int, new_producer_id: Callable[[], int]) -> Known:
    """A producer takes the id over with another producer id, and epoch 0."""
    before = known.metadata
    if before.state in PREPARED:
        raise _still_ending(before)
    return _follows(
        known, EMPTY, now_ms, last_producer_epoch=NO_PRODUCER_EPOCH, producer_id=new_producer_id(), producer_epoch=0,
        timeout_ms=timeout_ms, partitions=None, start_timestamp=NO_START,
    )  # fmt: skip


def add_partitions(
    known: Known,
    holder: ProducerIdAndEpoch,
    partitions: Collection[TopicPartition],
    now_ms: int,
    client_version: TransactionVersion,
) -> Known | None:
    """Adds the partitions that the holder will write to: the transaction begins, or grows."""
    _check_holder(known, holder)
    before = known.metadata
    if before.state in PREPARED:
        raise _still_ending(before)
    topics = before.partitions or NO_PARTITIONS
    if before.state is ONGOING and all(number in topics.get(topic, ()) for topic, number in partitions):
        return None
    return _follows(
        known,
        ONGOING,
        now_ms,
        partitions=with_partitions(known.partitions, partitions),
        start_timestamp=before.start_timestamp if before.state is ONGOING else now_ms,
        client_transaction_version=int(client_version),
    )


def verify_partitions(known: Known, holder: ProducerIdAndEpoch, partitions: Collection[TopicPartition]) -> None:
    """Raises TransactionAbortableException, which names the first partition that is not in the holder's transaction."""
    _check_holder(known, holder)
    if known.metadata.state in PREPARED:
        raise _still_ending(known.metadata)
    listed = set(known.partitions)
    for each in partitions:
        if each not in listed:
            raise TransactionAbortableException(f"{each} is not part of the transaction")


def end(
    known: Known,
    holder: ProducerIdAndEpoch,
    now_ms: int,
    *,
    commit: bool,
    client_version: TransactionVersion,
    new_producer_id: Callable[[], int],
) -> Known | None:
    """Ends the holder's transaction: from now on it is decided."""
    if client_version.supports_epoch_bump:
        return _end_with_epoch(known, holder, now_ms, commit, client_version, new_producer_id)
    _check_holder(known, holder)
    before = known.metadata
    if before.state is ONGOING:
        return _decided(known, commit, now_ms, TransactionVersion.TV_0)
    if before.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT):
        return None
    if before.state is (PREPARE_COMMIT if commit else PREPARE_ABORT):
        raise _still_ending(before)
    raise _wrong_end(before, commit)


def _end_with_epoch(
    known: Known,
    holder: ProducerIdAndEpoch,
    now_ms: int,
    commit: bool,
    client_version: TransactionVersion,
    new_producer_id: Callable[[], int],
) -> Known | None:
    before = known.metadata
    # The holder may not know the epoch, or the producer id, that its last end assigned.
    after_overflow = (
        before.previous_producer_id == holder.producer_id
        and holder.epoch == EPOCH_EXHAUSTED
        and before.producer_epoch == 0
    )
    after_bump = before.producer_epoch == holder.epoch + 1
    if before.producer_id != holder.producer_id and not after_overflow:
        raise _other_producer_id(before, holder)
    if before.state in PREPARED:
        valid = after_bump
    else:
        valid = before.producer_epoch == holder.epoch
        valid = valid or (before.state in (COMPLETE_COMMIT, COMPLETE_ABORT) and (after_bump or after_overflow))
    if not valid:
        raise _fenced(before, holder)
    if before.state is ONGOING:
        return _decided(known, commit, now_ms, client_version, new_producer_id=new_producer_id)
    if before.state in PREPARED:
        if (before.state is PREPARE_COMMIT) is commit:
            raise _still_ending(before)
        raise _wrong_end(before, commit)
    again = after_bump or after_overflow
    if before.state is not EMPTY and again and (before.state is COMPLETE_COMMIT) is commit:
        return None
    if commit or (before.state is not EMPTY and again):
        raise _wrong_end(before, commit)
    # An abort without a partition: late batches of the holder then have an older epoch.
    return _decided(known, False, now_ms, client_version, new_producer_id=new_producer_id, no_partitions=True)


def fenced(known: Known, now_ms: int, *, version: TransactionVersion, new_producer_id: Callable[[], int]) -> Known:
    """Aborts an open transaction whose holder is fenced, with the next epoch. `version` is the cluster's.

    A holder is fenced if another producer took its id over, or if the transaction took too long.
    """
    before = known.metadata
    if before.state is not ONGOING:
        raise IllegalStateException(f"no transaction is open, the state is {STATE_NAMES[before.state]}")
    if version.supports_epoch_bump:
        return _decided(known, False, now_ms, version, new_producer_id=new_producer_id)
    epoch = min(before.producer_epoch + 1, SHORT_MAX)
    raised = Known(before._replace(producer_epoch=epoch))
    return _decided(raised, False, now_ms, TransactionVersion.TV_0)


def _decided(
    known: Known,
    commit: bool,
    now_ms: int,
    version: TransactionVersion,
    *,
    new_producer_id: Callable[[], int] | None = None,
    no_partitions: bool = False,
) -> Known:
    before = known.metadata
    epoch, last, next_id = before.producer_epoch, known.last_producer_epoch, NO_PRODUCER_ID
    if version.supports_epoch_bump:
        last = epoch
        if new_producer_id is not None and is_epoch_exhausted(epoch):
            next_id = new_producer_id()
        epoch = min(epoch + 1, SHORT_MAX)
    return _follows(
        known,
        PREPARE_COMMIT if commit else PREPARE_ABORT,
        now_ms,
        last_producer_epoch=last,
        producer_epoch=epoch,
        next_producer_id=next_id,
        partitions=before.partitions or NO_PARTITIONS,
        start_timestamp=now_ms if no_partitions else before.start_timestamp,
        client_transaction_version=int(version),
    )


def complete(known: Known, now_ms: int) -> Known:
    """Completes the transaction: every partition has its marker."""
    before = known.metadata
    commit = before.state is PREPARE_COMMIT
    holder = known.holder
    bumps = TransactionVersion(before.client_transaction_version).supports_epoch_bump
    if bumps and before.next_producer_id != NO_PRODUCER_ID:
        holder = ProducerIdAndEpoch(before.next_producer_id, 0)
    return _follows(
        known,
        COMPLETE_COMMIT if commit else COMPLETE_ABORT,
        now_ms,
        producer_id=holder.producer_id,
        producer_epoch=holder.epoch,
        next_producer_id=NO_PRODUCER_ID,
        partitions=NO_PARTITIONS,
    )


# --- times ----------------------------------------------------------------------------------------------


def is_timed_out(metadata: TransactionMetadata, now_ms: int) -> bool:
    """Returns whether the transaction has been open for longer than its timeout."""
    if metadata.state is not ONGOING or metadata.timeout_ms == NEVER_MS:
        return False
    return metadata.start_timestamp + metadata.timeout_ms < now_ms


def is_expired(metadata: TransactionMetadata, now_ms: int, expiration_ms: int) -> bool:
    """Returns whether the id was not used for `expiration_ms`: it may be forgotten."""
    return metadata.state in AT_REST and metadata.last_update_timestamp <= now_ms - expiration_ms


# --- errors ---------------------------------------------------------------------------------------------


def _check_holder(known: Known, holder: ProducerIdAndEpoch) -> None:
    before = known.metadata
    if before.producer_id != holder.producer_id:
        raise _other_producer_id(before, holder)
    if before.producer_epoch != holder.epoch:
        raise _fenced(before, holder)


def _other_producer_id(before: TransactionMetadata, holder: ProducerIdAndEpoch) -> InvalidPidMappingException:
    return InvalidPidMappingException(
        f"found producer id {holder.producer_id}, expected {before.producer_id}, the current holder's"
    )


def _fenced(before: TransactionMetadata, holder: ProducerIdAndEpoch) -> ProducerFencedException:
    return ProducerFencedException(
        f"found epoch {holder.epoch} of producer id {holder.producer_id}, expected {before.producer_epoch}: another "
        "producer took the transactional id over, or the transaction took too long",
        hint="its records are, or will be, aborted; call init_producer_id again",
    )


def _still_ending(before: TransactionMetadata) -> ConcurrentTransactionsException:
    return ConcurrentTransactionsException(
        f"the last transaction is {STATE_NAMES[before.state]}: not every partition has its marker yet",
        hint="try again",
    )


def _wrong_end(before: TransactionMetadata, commit: bool) -> InvalidTxnStateException:
    what = "committed" if commit else "aborted"
    return InvalidTxnStateException(f"the state is {STATE_NAMES[before.state]}: no transaction can be {what}")
