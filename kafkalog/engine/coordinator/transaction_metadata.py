"""What becomes of one transactional id: its states, which follows which, and what each request makes of it.

Pure: functions from what is known to what is to be known, or an error by Kafka's name; the clock is an argument.  Who
writes it down, and in which order, is `transaction_coordinator`'s.  A request that has happened already (a client that
asks again) changes nothing: the answer is None.

    Empty, CompleteCommit, CompleteAbort -> Ongoing -> PrepareCommit -> CompleteCommit
                                                    -> PrepareAbort  -> CompleteAbort

Epochs: with transaction version 0 and 1 they stay, transaction after transaction, and an end that was not the holder's
(somebody took the id over, or it took too long) adds one.  With version 2 every end adds one: the marker carries it,
so what the last transaction still had on its way is refused.  Where they come to their end (32766) the end hands out
another producer id, from epoch 0 on.

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

EPOCH_EXHAUSTED = SHORT_MAX - 1  # the last one that a holder has; the next is an end's alone
NO_START = -1
NO_PARTITIONS: Mapping[str, tuple[int, ...]] = {}
NEVER_MS = INT_MAX  # a timeout that never comes

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
DEAD, PREPARE_EPOCH_FENCE = TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE
PREPARED = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
AT_REST = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})  # no transaction is under way

# The states that each may follow on (TransactionState.VALID_PREVIOUS_STATES).
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

# As Kafka's clients and tools name them.
STATE_NAMES: Mapping[TransactionState, str] = {
    state: "".join(word.capitalize() for word in state.name.split("_")) for state in TransactionState
}


class TransactionVersion(enum.IntEnum):
    """The feature transaction.version of a cluster, and what a client speaks."""

    TV_0 = 0
    TV_1 = 1
    TV_2 = 2

    @property
    def supports_epoch_bump(self) -> bool:
        """Whether each end of a transaction has an epoch of its own."""
        return self is TransactionVersion.TV_2

    @property
    def value_version(self) -> int:
        """The version of the records that are written."""
        return 0 if self is TransactionVersion.TV_0 else 1


class ProducerIdAndEpoch(NamedTuple):
    """Who may write as a transactional id's holder."""

    producer_id: int
    epoch: int


class Known(NamedTuple):
    """What a coordinator knows of a transactional id: its last record, and the epoch before its last change, which no
    record has (-1 after a load)."""

    metadata: TransactionMetadata
    last_producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def holder(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.metadata.producer_id, self.metadata.producer_epoch)

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """Those of the transaction, in the record's order."""
        return listed_partitions(self.metadata)


def listed_partitions(metadata: TransactionMetadata) -> tuple[TopicPartition, ...]:
    """The partitions that a record lists, in its order."""
    topics = metadata.partitions or NO_PARTITIONS
    return tuple([TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers])


def is_epoch_exhausted(epoch: int) -> bool:
    """Whether no holder may have another epoch of this producer id."""
    return epoch >= EPOCH_EXHAUSTED


def with_partitions(known: Iterable[TopicPartition], added: Iterable[TopicPartition]) -> dict[str, tuple[int, ...]]:
    """Partitions by topic in the order of Kafka's records: that of a java.util.HashSet of partitions, grouped in a
    HashMap by topic.  (Partitions that share a bucket of the table stand in the order in which they came.)"""
    before = list(known)
    rows = list(dict.fromkeys([*before, *added]))
    capacity = table_size_for(max(int(len(before) / 0.75) + 1, 16))
    # As topic_partition_hash, with the hash of each topic's name worked out once.
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
    """`known` in its next state; IllegalStateException where that does not follow."""
    before = known.metadata
    if before.state not in VALID_PREVIOUS_STATES[state]:
        raise IllegalStateException(
            f"{STATE_NAMES[state]} does not follow on {STATE_NAMES[before.state]}, which is what the coordinator knows"
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
    """A transactional id that is new: never written, its first epoch comes with `init_producer_id`."""
    return Known(TransactionMetadata(producer_id, NO_PRODUCER_EPOCH, timeout_ms, EMPTY, None, now_ms))


def check_taken_over(known: Known, expected: ProducerIdAndEpoch | None) -> None:
    """Whether who expects to be the holder may take the id over (again); ProducerFencedException.

    He may be behind by one change of producer id, where his epochs were at their end.
    """
    before = known.metadata
    if expected is None or before.producer_epoch == NO_PRODUCER_EPOCH or expected.producer_id == before.producer_id:
        return
    if expected.producer_id == before.previous_producer_id and is_epoch_exhausted(expected.epoch):
        return
    raise ProducerFencedException(
        f"producer id {expected.producer_id} with epoch {expected.epoch} is an earlier holder: it is "
        f"{before.producer_id} with epoch {before.producer_epoch} now"
    )


def init_producer_id(
    known: Known,
    timeout_ms: int,
    expected: ProducerIdAndEpoch | None,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> Known:
    """Somebody takes the id over: the next epoch, or another producer id where there is none.

    `expected` is what he holds, if he goes on after an error of his own.  ConcurrentTransactionsException while the
    last transaction is ending; a transaction that is open must be aborted first (`fenced`).
    """
    check_taken_over(known, expected)
    before = known.metadata
    if before.state in PREPARED:
        raise _still_ending(before)
    if before.state not in AT_REST:
        raise IllegalStateException(f"a transaction that is {STATE_NAMES[before.state]} must be aborted first")
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
        return _follows(known, EMPTY, now_ms, **changed)  # he asks again: the epoch is his already
    else:
        raise ProducerFencedException(f"found epoch {expected.epoch}, expected {epoch}, which is the present holder's")
    if is_epoch_exhausted(epoch):
        raise IllegalStateException(f"producer id {before.producer_id} has no epoch left above {epoch}")
    return _follows(known, EMPTY, now_ms, last_producer_epoch=last, producer_epoch=epoch + 1, **changed)


def add_partitions(
    known: Known,
    holder: ProducerIdAndEpoch,
    partitions: Collection[TopicPartition],
    now_ms: int,
    client_version: TransactionVersion,
) -> Known | None:
    """The holder will write to these partitions: the transaction begins, or grows."""
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
    """Whether the holder's transaction has these partitions; TransactionAbortableException, which names the first that
    it has not."""
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
    """The holder ends his transaction: from now on it is decided."""
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
    # He may not have heard of the epoch, or the producer id, that his last end gave him.
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
    # An abort without a partition: what its holder may still have on its way somewhere gets an older epoch.
    return _decided(known, False, now_ms, client_version, new_producer_id=new_producer_id, no_partitions=True)


def fenced(known: Known, now_ms: int, *, version: TransactionVersion, new_producer_id: Callable[[], int]) -> Known:
    """An open transaction whose holder is fenced, because somebody took its id over or it took too long: aborted, with
    the next epoch.  `version` is the cluster's."""
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
    """Every partition has its marker."""
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
    """Whether the transaction has been open for longer than its holder said."""
    if metadata.state is not ONGOING or metadata.timeout_ms == NEVER_MS:
        return False
    return metadata.start_timestamp + metadata.timeout_ms < now_ms


def is_expired(metadata: TransactionMetadata, now_ms: int, expiration_ms: int) -> bool:
    """Whether nobody has used the id for `expiration_ms`: it may be forgotten."""
    return metadata.state in AT_REST and metadata.last_update_timestamp <= now_ms - expiration_ms


# --- refusals -------------------------------------------------------------------------------------------


def _check_holder(known: Known, holder: ProducerIdAndEpoch) -> None:
    before = known.metadata
    if before.producer_id != holder.producer_id:
        raise _other_producer_id(before, holder)
    if before.producer_epoch != holder.epoch:
        raise _fenced(before, holder)


def _other_producer_id(before: TransactionMetadata, holder: ProducerIdAndEpoch) -> InvalidPidMappingException:
    return InvalidPidMappingException(
        f"found producer id {holder.producer_id}, expected {before.producer_id}, which is the present holder's"
    )


def _fenced(before: TransactionMetadata, holder: ProducerIdAndEpoch) -> ProducerFencedException:
    return ProducerFencedException(
        f"found epoch {holder.epoch} of producer id {holder.producer_id}, expected {before.producer_epoch}: somebody "
        "else took the transactional id over, or its transaction took too long",
        hint="what was written in it is, or will be, aborted; begin anew",
    )


def _still_ending(before: TransactionMetadata) -> ConcurrentTransactionsException:
    return ConcurrentTransactionsException(
        f"the last transaction is {STATE_NAMES[before.state]}: not every partition has its end yet",
        hint="try again",
    )


def _wrong_end(before: TransactionMetadata, commit: bool) -> InvalidTxnStateException:
    what = "committed" if commit else "aborted"
    return InvalidTxnStateException(f"the state is {STATE_NAMES[before.state]}: there is nothing that can be {what}")
