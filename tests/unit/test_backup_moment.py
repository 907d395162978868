"""The batches that belong to a moment of `__transaction_state`, by the whole table of states and versions."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from kafkalog._native.codec.batches import BATCH_DTYPE
from kafkalog.engine.format.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.transaction_records import TransactionMetadata, TransactionState, encode_transaction
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import BeingWrittenException
from kafkalog.records import Record
from kafkalog.toolbox import backup_moment
from kafkalog.toolbox.backup_moment import Moment, When, moment_of
from tests.file_doubles import UnsyncedFiles
from tests.unit.store_kit import log_of, open_store

HERE, ELSEWHERE = TopicPartition("orders", 0), TopicPartition("orders", 1)
PRODUCER, EPOCH, NOW_MS = 7, 5, 1000
S = TransactionState
PREPARED, COMPLETE = (S.PREPARE_COMMIT, S.PREPARE_ABORT), (S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
FILES = UnsyncedFiles()


def row(epoch: int, *, marker: bool, time_ms: int = NOW_MS, producer_id: int = PRODUCER) -> np.void:
    table = np.zeros(1, BATCH_DTYPE)
    table["producer_id"], table["producer_epoch"], table["max_timestamp"] = producer_id, epoch, time_ms
    table["attributes"] = TRANSACTIONAL_FLAG | (CONTROL_FLAG if marker else 0)
    return table[0]


def state_record(state: TransactionState, time_ms: int, *, partitions: dict[str, tuple[int, ...]]) -> Record:
    metadata = TransactionMetadata(PRODUCER, EPOCH, 60_000, state, partitions, time_ms, time_ms - 1)
    key, value = encode_transaction("id", metadata)
    return Record("", 0, 0, 0, time_ms, 0, key, value, ())


def moment(state: TransactionState, version: int) -> Moment:
    """The moment of an id whose previous transaction was decided 30 ms ago and completed 25 ms ago. The state's own
    times are now. One that was completed now was decided 5 ms ago."""
    partitions = {"orders": (0,)} if state is S.ONGOING or state in PREPARED else {}
    metadata = TransactionMetadata(
        PRODUCER, EPOCH, 60_000, state, partitions, NOW_MS, NOW_MS - 10, client_transaction_version=version
    )
    here: dict[str, tuple[int, ...]] = {"orders": (0,)}
    history = [
        state_record(S.PREPARE_COMMIT, NOW_MS - 30, partitions=here),
        state_record(S.COMPLETE_COMMIT, NOW_MS - 25, partitions={}),
    ]
    if state in PREPARED:
        history.append(state_record(state, NOW_MS, partitions=here))
    if state in COMPLETE:
        history.append(state_record(S.PREPARE_COMMIT, NOW_MS - 5, partitions=here))
        history.append(state_record(state, NOW_MS, partitions={}))
    return Moment({}, [metadata], former=[PRODUCER, 3], history={PRODUCER: history})


STATES = [state for state in S if state not in (S.DEAD, S.PREPARE_EPOCH_FENCE)]
BEFORE, EITHER, AFTER = When.BEFORE, When.EITHER, When.AFTER


def when(then: Moment, row: np.void, partition: TopicPartition = HERE) -> When:
    return then.when(row, partition, {})


@pytest.mark.parametrize(("state", "version"), [*itertools.product(STATES, [0, 2])])
def test_earlier_epochs_came_before_and_later_ones_after(state: TransactionState, version: int) -> None:
    then = moment(state, version)
    for marker in (False, True):
        assert when(then, row(EPOCH - 1, marker=marker), ELSEWHERE) is BEFORE
        assert when(then, row(EPOCH + 1, marker=marker)) is AFTER
        assert when(then, row(0, marker=marker, producer_id=8)) is AFTER  # nobody's
        assert when(then, row(9, marker=marker, producer_id=3)) is BEFORE  # an id that was replaced


@pytest.mark.parametrize(
    ("state", "version", "marker", "records", "records_elsewhere"),
    [  # for the state's own epoch at its time; records in a listed partition, and in another
        (S.EMPTY, 0, AFTER, AFTER, AFTER),
        (S.EMPTY, 2, AFTER, AFTER, AFTER),
        (S.ONGOING, 2, BEFORE, EITHER, AFTER),  # the marker of the transaction before
        (S.ONGOING, 0, AFTER, EITHER, AFTER),  # the marker of this one
        *((state, 2, EITHER, AFTER, AFTER) for state in PREPARED),  # the marker is its own; records are the next one's
        *((state, 2, BEFORE, AFTER, AFTER) for state in COMPLETE),
        *((state, 0, EITHER, BEFORE, AFTER) for state in PREPARED),
        *((state, 0, BEFORE, AFTER, AFTER) for state in COMPLETE),  # the marker follows its records
    ],
)
def test_the_same_epoch(
    state: TransactionState, version: int, marker: When, records: When, records_elsewhere: When
) -> None:
    then = moment(state, version)
    assert when(then, row(EPOCH, marker=True)) is marker
    assert when(then, row(EPOCH, marker=False)) is records
    assert when(then, row(EPOCH, marker=False), ELSEWHERE) is records_elsewhere


def test_markers_of_old_clients_are_counted() -> None:
    """Each of the id's transactions has one in the partition, however near to each other they are."""

    def found(state: TransactionState, *times_ms: int, partition: TopicPartition = HERE) -> list[When]:
        then, passed = moment(state, 0), dict[int, int]()
        return [then.when(row(EPOCH, marker=True, time_ms=each), partition, passed) for each in times_ms]

    for state in COMPLETE:
        assert found(state, NOW_MS - 40, NOW_MS - 25, NOW_MS, NOW_MS) == [BEFORE, BEFORE, BEFORE, AFTER]
        assert found(state, NOW_MS + 1) == [AFTER]
        assert found(state, NOW_MS - 25, partition=ELSEWHERE) == [AFTER]
    for state in PREPARED:
        assert found(state, NOW_MS - 27, NOW_MS, NOW_MS) == [BEFORE, EITHER, AFTER]
    assert found(S.ONGOING, NOW_MS - 27, NOW_MS - 25) == [BEFORE, AFTER]


@pytest.mark.parametrize("state", PREPARED)
def test_what_follows_the_marker_of_a_decided_one_is_of_the_next(state: TransactionState) -> None:
    then, passed = moment(state, 0), dict[int, int]()
    own, following = row(EPOCH, marker=True), row(EPOCH, marker=False)
    assert [then.when(each, HERE, passed) for each in (following, own, following, own)] == [
        BEFORE, EITHER, AFTER, AFTER,
    ]  # fmt: skip


def test_a_moment_of_a_store(tmp_path: Path) -> None:
    """Two ids at rest, one open: records after the moment are not in the copies, cursors end as early as possible."""
    with open_store(tmp_path / "shop", files=FILES) as store:
        store.create_topic("orders")
        for name in ("a", "b"):
            with store.transaction(name) as txn:
                txn.append("orders", b"1")
        open_one = store.transaction("c")
        open_one.begin()
        open_one.append("orders", b"half")
        look = PartitionView(tmp_path / "shop", "orders-0", files=FILES).log_end_offset
        states = sorted(each.topic_partition for each in store.manager.logs_by_topic("__transaction_state"))
        views = {each: PartitionView(tmp_path / "shop", each, files=FILES) for each in states}
        then = moment_of(views, FILES)
        assert then.ends == {each: log_of(store, str(each)).log_end_offset for each in states}
        view = PartitionView(tmp_path / "shop", "orders-0", files=FILES)
        assert then.end_of_records(view.snapshot, look) == look
        store.topic("orders").append(b"plain")
        view.refresh()
        assert then.end_of_records(view.snapshot, look) == look + 1
        open_one.append("orders", b"more of it")
        view.refresh()
        assert then.end_of_records(view.snapshot, look) == look + 2
        open_one.commit()
        store.topic("orders").append(b"plain")
        view.refresh()
        assert then.end_of_records(view.snapshot, look) == look + 2  # before the marker
        assert then.end_of_cursors(view.snapshot, look) == look


def test_states_that_never_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(tmp_path / "shop", files=FILES) as store:
        store.create_topic("orders")
        with store.transaction("a") as txn:
            txn.append("orders", b"1")
        (states,) = store.manager.logs_by_topic("__transaction_state")
    sizes = itertools.count()
    monkeypatch.setattr(backup_moment, "_length", lambda *_: ("", 0, next(sizes)))
    monkeypatch.setattr(backup_moment, "LOOKS_MAX", 3)
    view = PartitionView(tmp_path / "shop", states.topic_partition, files=FILES)
    with pytest.raises(BeingWrittenException, match="__transaction_state grew"):
        moment_of({states.topic_partition: view}, FILES)
