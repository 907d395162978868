"""The states of a transactional id: each request in each state, epochs of every transaction version, times."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from kafkalog._limits import SHORT_MAX
from kafkalog.engine.coordinator import transaction_metadata as transitions
from kafkalog.engine.coordinator.transaction_metadata import (
    AT_REST,
    EPOCH_EXHAUSTED,
    NEVER_MS,
    PREPARED,
    STATE_NAMES,
    VALID_PREVIOUS_STATES,
    Known,
    ProducerIdAndEpoch,
    TransactionVersion,
    with_partitions,
)
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.transaction_records import TransactionMetadata, TransactionState
from kafkalog.errors import (
    ConcurrentTransactionsException,
    IllegalStateException,
    InvalidPidMappingException,
    InvalidTxnStateException,
    ProducerFencedException,
    TransactionAbortableException,
)

S = TransactionState
TV_0, TV_1, TV_2 = TransactionVersion
ONE, TWO = TopicPartition("t", 0), TopicPartition("u", 3)
NOW = 5_000
HOLDER = ProducerIdAndEpoch(7, 4)
LIVING = [each for each in S if each not in (S.DEAD, S.PREPARE_EPOCH_FENCE)]


def known(state: TransactionState, *, epoch: int = 4, last: int = 3, version: int = 2, previous: int = 7) -> Known:
    """An id of producer 7."""
    partitions = {S.EMPTY: None, S.COMPLETE_COMMIT: {}, S.COMPLETE_ABORT: {}}.get(state, {"t": (0,)})
    start = -1 if state is S.EMPTY else 1_000
    return Known(TransactionMetadata(7, epoch, 60_000, state, partitions, 2_000, start, previous, -1, version), last)


def new_id() -> int:
    return 99


def never() -> int:
    raise AssertionError("no producer id is needed")


def end(
    before: Known,
    holder: ProducerIdAndEpoch = HOLDER,
    *,
    commit: bool,
    version: TransactionVersion = TV_2,
    new: Callable[[], int] = never,
) -> Known | None:
    return transitions.end(before, holder, NOW, commit=commit, client_version=version, new_producer_id=new)


# --- the table ----------------------------------------------------------------------------------------


def test_every_state_may_follow_on_something_and_has_a_name() -> None:
    assert set(VALID_PREVIOUS_STATES) == set(S) == set(STATE_NAMES)
    assert STATE_NAMES[S.PREPARE_EPOCH_FENCE] == "PrepareEpochFence"
    assert [state for state in S if S.PREPARE_COMMIT in VALID_PREVIOUS_STATES[state]] == [S.COMPLETE_COMMIT]
    assert [state for state in S if S.PREPARE_ABORT in VALID_PREVIOUS_STATES[state]] == [S.COMPLETE_ABORT]


ENDS = {
    # (state, commit, epoch that the holder says, version): the next state, None for nothing to do, or the error
    (S.ONGOING, True, 4, TV_0): S.PREPARE_COMMIT,
    (S.ONGOING, False, 4, TV_0): S.PREPARE_ABORT,
    (S.ONGOING, True, 4, TV_2): S.PREPARE_COMMIT,
    (S.ONGOING, False, 4, TV_2): S.PREPARE_ABORT,
    (S.ONGOING, True, 3, TV_2): ProducerFencedException,
    (S.EMPTY, True, 4, TV_0): InvalidTxnStateException,
    (S.EMPTY, False, 4, TV_0): InvalidTxnStateException,
    (S.EMPTY, True, 4, TV_2): InvalidTxnStateException,
    (S.EMPTY, False, 4, TV_2): S.PREPARE_ABORT,
    (S.EMPTY, False, 3, TV_2): ProducerFencedException,
    (S.COMPLETE_COMMIT, True, 4, TV_0): None,
    (S.COMPLETE_COMMIT, False, 4, TV_0): InvalidTxnStateException,
    (S.COMPLETE_ABORT, False, 4, TV_0): None,
    (S.COMPLETE_ABORT, True, 4, TV_0): InvalidTxnStateException,
    (S.COMPLETE_COMMIT, True, 3, TV_2): None,
    (S.COMPLETE_COMMIT, False, 3, TV_2): InvalidTxnStateException,
    (S.COMPLETE_ABORT, False, 3, TV_2): None,
    (S.COMPLETE_ABORT, True, 3, TV_2): InvalidTxnStateException,
    (S.COMPLETE_COMMIT, True, 4, TV_2): InvalidTxnStateException,
    (S.COMPLETE_COMMIT, False, 4, TV_2): S.PREPARE_ABORT,
    (S.COMPLETE_ABORT, False, 4, TV_2): S.PREPARE_ABORT,
    (S.COMPLETE_ABORT, True, 4, TV_2): InvalidTxnStateException,
    (S.COMPLETE_COMMIT, True, 2, TV_2): ProducerFencedException,
    (S.PREPARE_COMMIT, True, 4, TV_0): ConcurrentTransactionsException,
    (S.PREPARE_COMMIT, False, 4, TV_0): InvalidTxnStateException,
    (S.PREPARE_COMMIT, True, 3, TV_2): ConcurrentTransactionsException,
    (S.PREPARE_COMMIT, False, 3, TV_2): InvalidTxnStateException,
    (S.PREPARE_ABORT, True, 3, TV_2): InvalidTxnStateException,
    (S.PREPARE_ABORT, False, 3, TV_2): ConcurrentTransactionsException,
    (S.PREPARE_COMMIT, True, 4, TV_2): ProducerFencedException,
}


@pytest.mark.parametrize(("case", "wanted"), ENDS.items(), ids=[f"{s.name}-{c}-{e}-{v.name}" for s, c, e, v in ENDS])
def test_ends(case: tuple[S, bool, int, TransactionVersion], wanted: object) -> None:
    state, commit, epoch, version = case
    before, holder = known(state), HOLDER._replace(epoch=epoch)
    if isinstance(wanted, type):
        with pytest.raises(wanted):
            end(before, holder, commit=commit, version=version)
        return
    after = end(before, holder, commit=commit, version=version)
    assert (None if after is None else after.metadata.state) is wanted
    if after is not None:
        assert after.metadata.producer_epoch == (5 if version is TV_2 else 4)
        assert after.metadata.client_transaction_version == (2 if version is TV_2 else 0)
        assert after.metadata.start_timestamp == (1_000 if state is S.ONGOING else NOW)


@pytest.mark.parametrize("version", TransactionVersion)
@pytest.mark.parametrize("state", LIVING)
def test_another_producer_id_is_refused_in_every_state(state: S, version: TransactionVersion) -> None:
    other = HOLDER._replace(producer_id=8)
    for commit in (True, False):
        with pytest.raises(InvalidPidMappingException):
            end(known(state), other, commit=commit, version=version)
    with pytest.raises(InvalidPidMappingException):
        transitions.add_partitions(known(state), other, [ONE], NOW, version)


@pytest.mark.parametrize("state", LIVING)
def test_partitions_are_added_where_nothing_is_ending(state: S) -> None:
    before = known(state)
    if state in PREPARED:
        with pytest.raises(ConcurrentTransactionsException, match="try again"):
            transitions.add_partitions(before, HOLDER, [ONE], NOW, TV_2)
        with pytest.raises(ConcurrentTransactionsException):
            transitions.verify_partitions(before, HOLDER, [ONE])
        return
    after = transitions.add_partitions(before, HOLDER, [TWO, ONE], NOW, TV_2)
    assert after is not None
    assert set(after.partitions) == {ONE, TWO}
    assert after.metadata.start_timestamp == (1_000 if state is S.ONGOING else NOW)
    assert after.metadata.last_update_timestamp == NOW
    assert after.metadata.producer_epoch == 4
    assert transitions.add_partitions(after, HOLDER, [ONE], NOW, TV_2) is None
    transitions.verify_partitions(after, HOLDER, [ONE, TWO])
    with pytest.raises(TransactionAbortableException, match="v-1"):
        transitions.verify_partitions(after, HOLDER, [ONE, TopicPartition("v", 1)])
    for epoch in (3, 5):
        with pytest.raises(ProducerFencedException):
            transitions.add_partitions(after, HOLDER._replace(epoch=epoch), [ONE], NOW, TV_2)


@pytest.mark.parametrize("state", LIVING)
def test_taking_over(state: S) -> None:
    before = known(state)

    def take(expected: ProducerIdAndEpoch | None) -> Known:
        return transitions.init_producer_id(before, 9_000, expected, NOW, never)

    if state in PREPARED:
        with pytest.raises(ConcurrentTransactionsException):
            take(None)
        return
    if state is S.ONGOING:
        with pytest.raises(IllegalStateException, match="must be aborted first"):
            take(None)
        return
    fresh = take(None)
    assert (fresh.holder, fresh.last_producer_epoch) == ((7, 5), -1)
    assert (fresh.metadata.state, fresh.metadata.partitions, fresh.metadata.start_timestamp) == (S.EMPTY, None, -1)
    assert (fresh.metadata.timeout_ms, fresh.metadata.previous_producer_id) == (9_000, 7)
    again = take(HOLDER)
    assert (again.holder, again.last_producer_epoch) == ((7, 5), 4)
    asked_again = take(HOLDER._replace(epoch=3))  # the holder of the epoch before this one did not get the answer
    assert (asked_again.holder, asked_again.last_producer_epoch) == ((7, 4), 3)
    for stale in (HOLDER._replace(epoch=2), HOLDER._replace(producer_id=6), HOLDER._replace(epoch=9)):
        with pytest.raises(ProducerFencedException):
            take(stale)


def test_a_new_id_begins_with_epoch_0() -> None:
    made = transitions.created(7, 60_000, NOW)
    taken = transitions.init_producer_id(made, 60_000, None, NOW, never)
    assert taken.holder == (7, 0)
    assert taken.metadata.previous_producer_id == 7


# --- epochs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "epochs"), [(TV_0, [4, 4, 4]), (TV_1, [4, 4, 4]), (TV_2, [4, 5, 5])])
def test_the_epoch_of_a_transaction(version: TransactionVersion, epochs: list[int]) -> None:
    ongoing = transitions.add_partitions(known(S.EMPTY), HOLDER, [ONE], NOW, version)
    assert ongoing is not None
    prepared = end(ongoing, commit=True, version=version)
    assert prepared is not None
    complete = transitions.complete(prepared, NOW + 1)
    assert [each.metadata.producer_epoch for each in (ongoing, prepared, complete)] == epochs
    assert prepared.partitions == (ONE,)
    assert complete.metadata.partitions == {}
    assert complete.metadata.state is S.COMPLETE_COMMIT
    assert complete.metadata.start_timestamp == NOW


@pytest.mark.parametrize(("version", "written"), [(TV_0, 0), (TV_1, 0), (TV_2, 2)])
def test_who_is_fenced_loses_his_epoch_in_every_version(version: TransactionVersion, written: int) -> None:
    prepared = transitions.fenced(known(S.ONGOING, version=0), NOW, version=version, new_producer_id=never)
    assert (prepared.metadata.state, prepared.metadata.producer_epoch) == (S.PREPARE_ABORT, 5)
    assert prepared.metadata.client_transaction_version == written
    complete = transitions.complete(prepared, NOW)
    with pytest.raises(ProducerFencedException):
        transitions.add_partitions(complete, HOLDER, [ONE], NOW, version)
    assert transitions.init_producer_id(complete, 1, None, NOW, never).holder == (7, 6)
    for state in AT_REST:
        with pytest.raises(IllegalStateException):
            transitions.fenced(known(state), NOW, version=version, new_producer_id=never)


@pytest.mark.parametrize("commit", [True, False])
def test_exhausted_epochs_hand_out_another_producer_id(commit: bool) -> None:
    last = HOLDER._replace(epoch=EPOCH_EXHAUSTED)
    before = known(S.ONGOING, epoch=EPOCH_EXHAUSTED)
    prepared = end(before, last, commit=commit, new=new_id)
    assert prepared is not None
    assert (prepared.holder, prepared.metadata.next_producer_id) == ((7, SHORT_MAX), 99)
    complete = transitions.complete(prepared, NOW)
    assert (complete.holder, complete.metadata.previous_producer_id) == ((99, 0), 7)
    assert complete.metadata.next_producer_id == -1
    assert end(complete, last, commit=commit) is None  # the holder did not get the answer
    with pytest.raises(InvalidTxnStateException):
        end(complete, last, commit=not commit)
    with pytest.raises(InvalidPidMappingException):
        end(complete, last._replace(epoch=EPOCH_EXHAUSTED - 1), commit=commit)


def test_exhausted_epochs_of_who_takes_over() -> None:
    before = known(S.COMPLETE_COMMIT, epoch=EPOCH_EXHAUSTED)
    last = HOLDER._replace(epoch=EPOCH_EXHAUSTED)
    taken = transitions.init_producer_id(before, 1, None, NOW, new_id)
    assert (taken.holder, taken.metadata.previous_producer_id, taken.last_producer_epoch) == ((99, 0), 7, -1)
    mine = transitions.init_producer_id(before, 1, last, NOW, new_id)
    assert (mine.holder, mine.last_producer_epoch) == ((99, 0), EPOCH_EXHAUSTED)
    assert transitions.init_producer_id(mine, 1, last, NOW, never).holder == (99, 0)  # again: it belongs to this holder
    fenced = transitions.fenced(known(S.ONGOING, epoch=SHORT_MAX), NOW, version=TV_2, new_producer_id=new_id)
    assert (fenced.metadata.producer_epoch, fenced.metadata.next_producer_id) == (SHORT_MAX, 99)


def test_a_state_does_not_follow_on_any_other() -> None:
    for state, after in itertools.product(S, (transitions.complete,)):
        if state not in PREPARED:
            with pytest.raises(IllegalStateException, match="may not follow"):
                after(known(state), NOW)


# --- times, order -------------------------------------------------------------------------------------------


def test_timeouts() -> None:
    open_one = known(S.ONGOING).metadata
    assert not transitions.is_timed_out(open_one, 61_000)
    assert transitions.is_timed_out(open_one, 61_001)
    assert not transitions.is_timed_out(open_one._replace(timeout_ms=NEVER_MS), 1 << 60)
    assert not transitions.is_timed_out(known(S.PREPARE_COMMIT).metadata, 1 << 60)


@pytest.mark.parametrize("state", LIVING)
def test_ids_expire_at_rest(state: S) -> None:
    metadata = known(state).metadata
    assert not transitions.is_expired(metadata, 2_999, 1_000)
    assert transitions.is_expired(metadata, 3_000, 1_000) is (state in AT_REST)


def test_partitions_stand_in_the_order_of_a_java_set() -> None:
    """As a real broker wrote them (`tests/broker/test_coordinators.py` compares hundreds)."""
    places = [TopicPartition(topic, number) for topic in ("alpha", "beta") for number in range(9)]
    found = with_partitions([], places)
    assert {topic: sorted(numbers) for topic, numbers in found.items()} == {"alpha": [*range(9)], "beta": [*range(9)]}
    assert list(found) == ["alpha", "beta"]
    assert with_partitions(places, places) == found
    assert with_partitions([], []) == {}
