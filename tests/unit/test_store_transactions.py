"""`store.transaction(...)`: all partitions and cursors or none, one holder of an id at a time."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.transactional_ids import STORE_PRODUCER_IDS
from kafkalog._native.codec.partitioner import partition_for_key
from kafkalog.config import ProducerStateManagerConfig
from kafkalog.engine.files import OS_FILES, ManualClock
from kafkalog.engine.format.coordinator_records import partition_for
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.log.context import ProducerSettings
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    InvalidTxnStateException,
    InvalidTxnTimeoutException,
    KafkaStorageException,
    LogReadOnlyException,
    ProducerFencedException,
    SchemaException,
    TransactionalIdNotFoundException,
    UnknownTopicOrPartitionException,
)
from kafkalog.store import Store
from tests.file_doubles import Fault, FaultyFiles, UnsyncedFiles
from tests.unit.store_kit import (
    NOW_MS,
    as_killed,
    committed,
    cursor,
    ends,
    home_of,
    log_of,
    open_store,
    position,
    records_of_states,
    settled,
    state_of,
)

ID = "biller"
# Another id, in the same partition of __transaction_state.
NEIGHBOUR = next(name for name in map(str, range(1000)) if partition_for(name, 50) == partition_for(ID, 50))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with open_store(tmp_path / "data", clock=clock) as opened:
        opened.create_topic("a")
        opened.create_topic("b")
        opened.create_topic("four", 4)
        yield opened


def again(store: Store, tmp_path: Path, **options: Any) -> Store:
    """Opened once more, as after a kill."""
    return open_store(as_killed(tmp_path / "data", tmp_path / "killed"), **options)


# --- all or nothing ---------------------------------------------------------------------------------------


def test_all_or_nothing(store: Store) -> None:
    with store.transaction(ID) as txn:
        first = txn.append("a", b"1", key=b"k", headers=[("h", b"x")], timestamp=7)
        assert first == ("a", 0, 0)
        assert txn.append_many("b", [b"2", b"3"]) == {0: range(2)}
        assert txn.append("four", b"4", partition=3).partition == 3
        txn.commit_offsets({"a-0": 5, TopicPartition("b", 0): CommittedOffset(6, metadata="m")}, cursor="c")
        assert txn.active
        assert committed(store, "a-0") == committed(store, "b-0") == []
        assert cursor(store, "c") == {}
        assert not settled(store, "a-0")
        assert state_of(store, ID) == "Ongoing"
    assert not txn.active
    assert committed(store, "a-0") == [b"1"]
    assert committed(store, "b-0") == [b"2", b"3"]
    assert committed(store, "four-3") == [b"4"]
    assert cursor(store, "c") == {TopicPartition("a", 0): 5, TopicPartition("b", 0): 6}
    assert settled(store, "a-0", "b-0", "four-3")
    assert state_of(store, ID) == "CompleteCommit"


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, GeneratorExit])
def test_whatever_the_block_raises_aborts(store: Store, error: type[BaseException]) -> None:
    def fail() -> None:
        with store.transaction(ID) as txn:
            txn.append("a", b"1")
            txn.append_many("four", [(b"v", b"%d" % number) for number in range(20)])
            txn.commit_offsets({"a-0": 5}, cursor="c")
            raise error

    with pytest.raises(error):
        fail()
    for partition in ("a-0", *(f"four-{number}" for number in range(4))):
        assert committed(store, partition) == []
        assert settled(store, partition)
    assert cursor(store, "c") == {}
    assert state_of(store, ID) == "CompleteAbort"


def test_by_hand(store: Store) -> None:
    txn = store.transaction(ID)
    with pytest.raises(IllegalStateException, match="no transaction of 'biller' is open"):
        txn.append("a", b"0")
    for number in range(4):
        txn.begin()
        with pytest.raises(InvalidTxnStateException, match="open already"):
            txn.begin()
        txn.append("a", b"%d" % number)
        (txn.commit if number % 2 else txn.abort)()
        with pytest.raises(IllegalStateException, match="no transaction"):
            txn.commit()
    assert committed(store, "a-0") == [b"1", b"3"]


def test_ended_by_hand_within_a_block(store: Store) -> None:
    with store.transaction(ID) as txn:
        txn.append("a", b"1")
        txn.commit()
    with store.transaction(ID) as txn:
        txn.append("a", b"2")
        txn.abort()
    assert committed(store, "a-0") == [b"1"]


def test_records_go_where_kafkas_partitioner_sends_them(store: Store) -> None:
    keys = [b"%d" % number for number in range(30)]
    expected = store.topic("four").append_many([(b"v", key) for key in keys])
    with store.transaction(ID) as txn:
        found = txn.append_many("four", [(b"w", key) for key in keys])
        assert txn.append("four", b"w", key=b"7").partition == store.topic("four").append(b"v", key=b"7").partition
    assert {number: len(offsets) for number, offsets in found.items()} == {
        number: len(offsets) for number, offsets in expected.items()
    }


# --- what costs nothing -----------------------------------------------------------------------------------


def test_an_empty_transaction_writes_nothing(store: Store, tmp_path: Path) -> None:
    for _ in range(2):
        with store.transaction(ID) as txn:
            assert txn.append_many("a", []) == {}
            assert txn.append_many("four", iter(())) == {}
            txn.commit_offsets({}, cursor="c")
        with contextlib.suppress(ZeroDivisionError), store.transaction(ID):
            raise ZeroDivisionError
    assert store.transactions() == []
    assert store.manager.logs_by_topic("__transaction_state") == []
    assert ends(store, "a-0", "four-0") == [0, 0]
    with store.transaction(ID) as txn:
        txn.append("a", b"1")
    before = records_of_states(store)
    with store.transaction(ID):
        pass
    assert records_of_states(store) == before


def test_an_id_that_was_never_written_is_not_kept(store: Store) -> None:
    ids = home_of(store).coordinators.ids
    for number in range(100):
        with store.transaction(f"job-{number}"):
            pass
    assert ids._ids == {}
    dropped = store.transaction(ID)
    dropped.begin()
    assert list(ids._ids) == [ID]
    home_of(store).end_overdue()
    assert list(ids._ids) == [ID]
    dropped.append("a", b"1")
    del dropped
    gc.collect()
    home_of(store).end_overdue()
    assert ids._ids == {}
    assert state_of(store, ID) == "CompleteAbort"
    with store.transaction(ID) as txn:
        txn.append("a", b"2")
    assert list(ids._ids) == [ID]  # with the state for the next one
    with store.transaction(ID):
        pass
    assert list(ids._ids) == [ID]
    assert committed(store, "a-0") == [b"2"]


def test_an_id_whose_last_user_leaves_beside_the_next(store: Store) -> None:
    """A waiter for the lock of an id that is being released gets the next one with its name."""
    ids = home_of(store).coordinators.ids
    first, second = store.transaction(ID), store.transaction(ID)
    first.begin()
    one = ids._ids[ID]
    with one.lock:
        thread = threading.Thread(target=second.begin)
        thread.start()
        thread.join(0.05)  # it is waiting, or will be
        one.inside = None
        ids._drop_unused(one)
        assert ID not in ids._ids
        ids._ids[ID] = one  # as an interrupt may leave it
    thread.join(10)
    assert not thread.is_alive()
    assert ids._ids[ID] is not one
    second.append("a", b"2")
    with pytest.raises(ProducerFencedException):
        first.append("a", b"1")
    second.commit()
    assert committed(store, "a-0") == [b"2"]


def test_a_store_that_only_reads_knows_the_transactions(tmp_path: Path) -> None:
    """Beside the process that has them, and of a directory in which there was none."""
    root = tmp_path / "data"
    with kafkalog.open(root) as store:
        store.create_topic("a", partitions=1)
        with kafkalog.open(root, read_only=True) as view:
            assert view.transactions() == []
            with store.transaction(ID) as txn:
                txn.append("a", b"1")
                assert view.transactions() == store.transactions()
                assert [(each.state, each.partitions) for each in view.transactions()] == [
                    ("Ongoing", (TopicPartition("a", 0),))
                ]
            with store.transaction("another"):
                pass
            assert view.transactions() == store.transactions()
            assert view.transactions()[0].state == "CompleteCommit"
            with pytest.raises(LogReadOnlyException):
                view.abort_transaction(ID)
    with pytest.raises(IllegalStateException):
        view.transactions()


def test_a_store_that_only_reads_says_where_states_cannot_be_understood(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "__transaction_state-0") as log:
        log.append(b"?", key=b"?")
    with (
        kafkalog.open(tmp_path, read_only=True) as view,
        pytest.raises(SchemaException, match=r"__transaction_state-0 of .*offset 0 cannot be understood"),
    ):
        view.transactions()


def test_one_after_the_other_takes_the_id_over_once(store: Store) -> None:
    with store.transaction(ID) as txn:
        txn.append("a", b"0")
    [one] = store.transactions()
    before = records_of_states(store)
    for number in range(1, 6):
        with store.transaction(ID) as txn:
            txn.append("a", b"%d" % number)
        [now] = store.transactions()
        assert now.producer_id == one.producer_id in STORE_PRODUCER_IDS
        assert now.producer_epoch == one.producer_epoch + number  # transaction version 2: one an end
    assert records_of_states(store) == before + 5 * 3  # Ongoing, PrepareCommit, CompleteCommit
    with store.transaction(ID, timeout_ms=1000) as txn:  # the coordinator must hear of it
        txn.append("a", b"6")
    assert store.transactions()[0].timeout_ms == 1000
    assert records_of_states(store) == before + 5 * 3 + 4


def test_epochs_come_to_their_end(store: Store) -> None:
    with store.transaction(ID) as txn:
        txn.append("a", b"0")
    coordinator = home_of(store).coordinators.transactions
    partition, entry = coordinator._existing(ID)
    known = entry.known
    assert known is not None
    partition.put(entry, known._replace(metadata=known.metadata._replace(producer_epoch=32764)))
    ids = home_of(store).coordinators.ids
    ids._ids[ID].kept = ids._ids[ID].kept._replace(epoch=32764)  # type: ignore[union-attr]
    seen = set()
    for number in range(1, 6):
        with store.transaction(ID) as txn:
            txn.append("a", b"%d" % number)
            txn.append("b", b"%d" % number)
        seen.add(store.transactions()[0].producer_id)
    assert len(seen) == 2
    assert committed(store, "a-0") == [b"%d" % number for number in range(6)]
    assert committed(store, "b-0") == [b"%d" % number for number in range(1, 6)]


def test_one_call_adds_all_its_partitions(store: Store) -> None:
    with store.transaction(ID) as txn:
        txn.append("a", b"0")
        before = records_of_states(store)
        txn.append_many("four", [(b"v", b"%d" % number) for number in range(50)])
        txn.append_many("four", [(b"v", b"%d" % number) for number in range(50)])
        assert records_of_states(store) == before + 1


def test_many_appends_to_one_partition_go_on_in_sequence(store: Store) -> None:
    with store.transaction(ID) as txn:
        for number in range(300):
            txn.append("a", b"%d" % number)
    assert committed(store, "a-0") == [b"%d" % number for number in range(300)]
    [entry] = log_of(store, "a-0").active_producers.values()
    assert entry.last_seq == -1  # the end's epoch: the next one begins with 0


@pytest.mark.slow
def test_a_transaction_over_a_thousand_partitions(tmp_path: Path) -> None:
    with open_store(tmp_path, durability="fsync", files=UnsyncedFiles()) as store:
        store.create_topic("many", 1000)
        with store.transaction(ID) as txn:
            found = txn.append_many("many", [(b"v", b"%d" % number) for number in range(9000)])
            assert len(found) == 1000
            assert sum(map(len, found.values())) == 9000
        assert sum(len(committed(store, f"many-{number}")) for number in range(1000)) == 9000


def test_only_offsets(store: Store) -> None:
    with store.transaction(ID) as txn:
        txn.commit_offsets({"a-0": 1}, cursor="c")
        txn.commit_offsets({"a-0": 2, "b-0": 9}, cursor="c")
        txn.commit_offsets({"a-0": 3}, cursor="d")
    assert (position(store, "c", "a-0"), position(store, "c", "b-0"), position(store, "d", "a-0")) == (2, 9, 3)


# --- offsets of cursors ------------------------------------------------------------------------------------


class FakeReader:
    """The parts of a reader that a transaction of its store uses."""

    def __init__(self, store: Store, cursor: str | None, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self._home = home_of(store)
        self.cursor = cursor
        self._offsets = offsets

    def is_of(self, home: object) -> bool:
        return home is self._home

    def offsets_to_commit(self) -> Mapping[TopicPartition, CommittedOffset]:
        return self._offsets


def test_a_reader_is_asked(store: Store) -> None:
    reader = FakeReader(store, "c", {TopicPartition("a", 0): CommittedOffset(3)})
    with store.transaction(ID) as txn:
        txn.commit_offsets(reader)
    assert position(store, "c", "a-0") == 3
    with store.transaction(ID) as txn:
        txn.commit_offsets(reader, cursor="d")
        with pytest.raises(IllegalArgumentException, match="no cursor"):
            txn.commit_offsets(FakeReader(store, None, {}))
    assert position(store, "d", "a-0") == 3


def test_read_transform_write(store: Store) -> None:
    store.topic("four").append_many([(b"%d" % number, b"%d" % number) for number in range(20)])

    def work(*, count: int, fails: bool) -> None:
        with store.reader("c", topics=["four"]) as reader, store.transaction(ID) as txn:
            for record in itertools.islice(reader.records(), count):
                txn.append("a", record.value)
            txn.commit_offsets(reader)
            if fails:
                raise ZeroDivisionError

    for count in (7, 5, 8):
        with contextlib.suppress(ZeroDivisionError):
            work(count=count, fails=True)
        work(count=count, fails=False)
    assert sorted(committed(store, "a-0"), key=int) == [b"%d" % number for number in range(20)]
    assert sum(cursor(store, "c").values()) == 20


def test_offsets_carry_their_topics_id(store: Store) -> None:
    with store.transaction(ID) as txn:
        for wrong in ("elsewhere-0", "a-1"):
            with pytest.raises(UnknownTopicOrPartitionException):
                txn.commit_offsets({"a-0": 2, wrong: 2}, cursor="c")
        txn.commit_offsets({"a-0": 1}, cursor="c")
    found = home_of(store).offsets("c", create=False)
    assert found is not None
    rows = found.fetch_all("c")
    assert list(rows) == [TopicPartition("a", 0)]
    assert rows[TopicPartition("a", 0)].offset == 1
    assert rows[TopicPartition("a", 0)].topic_id == store.topic("a").info.topic_id


@pytest.mark.parametrize(
    ("offsets", "cursor_name"),
    [
        ({"a-0": 1}, None), ({"a-0": -1}, "c"), ({"a-0": 1.5}, "c"), ({"a": 1}, "c"), ({"a-0": 1}, ""), (5, "c"),
        ({"a-0": 1}, 7),
    ],
)  # fmt: skip
def test_wrong_offsets_change_nothing(store: Store, offsets: Any, cursor_name: Any) -> None:
    with store.transaction(ID) as txn:
        txn.append("a", b"1")
        with pytest.raises(kafkalog.KafkalogError):
            txn.commit_offsets(offsets, cursor=cursor_name)
    assert committed(store, "a-0") == [b"1"]


# --- wrong records ------------------------------------------------------------------------------------------


def test_a_record_that_is_refused_leaves_the_transaction_as_it_was(store: Store) -> None:
    with store.transaction(ID) as txn:
        txn.append("a", b"1")
        with pytest.raises(IllegalArgumentException):
            txn.append("a", "text")  # type: ignore[arg-type]
        with pytest.raises(IllegalArgumentException):
            txn.append_many("a", [b"x", 5])
        with pytest.raises(UnknownTopicOrPartitionException):
            txn.append("nowhere", b"x")
        with pytest.raises(UnknownTopicOrPartitionException):
            txn.append("a", b"x", partition=1)
        with pytest.raises(kafkalog.errors.RecordTooLargeException):
            txn.append("a", bytes(2_000_000))
        txn.append("a", b"2")
    assert committed(store, "a-0") == [b"1", b"2"]


def test_half_of_an_append_is_no_transaction(store: Store) -> None:
    """Records that an append of many wrote before one failed cannot be committed."""
    elsewhere = next(
        key for key in map(b"%d".__mod__, range(1, 100)) if partition_for_key(key, 4) != partition_for_key(b"0", 4)
    )

    def commit() -> None:
        with store.transaction(ID) as txn:
            with pytest.raises(kafkalog.errors.RecordTooLargeException) as raised:
                txn.append_many("four", [(b"v", b"0"), (bytes(2_000_000), elsewhere)])
            assert raised.value.appended_partitions
            txn.append("a", b"1")

    with pytest.raises(InvalidTxnStateException, match="was interrupted"):
        commit()
    assert committed(store, "a-0") == []
    assert state_of(store, ID) == "CompleteAbort"


def test_others_append_between_the_records_of_one_call(store: Store) -> None:
    def records() -> Iterator[bytes]:
        for number in range(120_000):
            if number % 50_000 == 1:
                store.topic("a").append_many([b"another's"] * 3, partition=0)
            yield b"ours"

    with store.transaction("t") as txn:
        txn.append_many("a", records(), partition=0)
        txn.append("a", b"ours", partition=0)
    seen = Counter(committed(store, "a-0"))
    assert seen == {b"ours": 120_001, b"another's": 9}


def test_what_gives_the_records_fails(store: Store) -> None:
    def records(count: int) -> Iterator[bytes]:
        for number in range(count):
            yield b"%d" % number
        raise ZeroDivisionError

    with store.transaction(ID) as txn:
        with pytest.raises(ZeroDivisionError):
            txn.append_many("a", records(10))  # nothing was appended yet
        txn.append("a", b"1")
    assert committed(store, "a-0") == [b"1"]

    def torn() -> None:
        with store.transaction(ID) as txn:
            with contextlib.suppress(ZeroDivisionError):
                txn.append_many("a", records(120_000))  # they come 50,000 at a time
            txn.append("a", b"2")

    with pytest.raises(InvalidTxnStateException, match="was interrupted"):
        torn()
    assert committed(store, "a-0") == [b"1"]


def test_what_gives_the_records_must_not_use_it(store: Store) -> None:
    txn = store.transaction(ID)
    txn.begin()
    for use in (lambda: txn.append("b", b"x"), txn.commit, txn.abort, lambda: txn.commit_offsets({}, cursor="c")):

        def records(use: Any = use) -> Iterator[bytes]:
            yield b"1"
            with pytest.raises(IllegalStateException, match="in use"):
                use()
            yield b"2"

        txn.append_many("a", records())
    with pytest.raises(IllegalStateException, match="this thread is changing the transaction"):
        txn.append_many("a", (store.close() or b"1" for _ in range(1)))  # type: ignore[func-returns-value]
    txn.commit()
    assert committed(store, "a-0") == [b"1", b"2"] * 4


# --- fencing ------------------------------------------------------------------------------------------------


def test_a_second_transaction_fences_the_first(store: Store) -> None:
    first, second = store.transaction(ID), store.transaction(ID)
    first.begin()
    first.append("a", b"1")
    first.commit_offsets({"a-0": 1}, cursor="c")
    second.begin()
    assert settled(store, "a-0")  # the first is aborted at once
    for use in (
        lambda: first.append("a", b"x"),
        lambda: first.append("b", b"x"),
        lambda: first.append_many("four", [b"x"]),
        lambda: first.commit_offsets({"a-0": 1}, cursor="c"),
        first.commit,
    ):
        with pytest.raises(ProducerFencedException, match="another transaction of this id has begun"):
            use()
    first.abort()
    second.append("a", b"2")
    second.commit()
    assert committed(store, "a-0") == [b"2"]
    assert cursor(store, "c") == {}
    with store.transaction(ID) as third:
        third.append("a", b"3")
    assert committed(store, "a-0") == [b"2", b"3"]


def test_a_block_inside_a_block_of_the_same_id(store: Store) -> None:
    def nested() -> None:
        with store.transaction(ID) as outer:
            outer.append("a", b"outer")
            with store.transaction(ID) as inner:
                inner.append("a", b"inner")

    with pytest.raises(ProducerFencedException):
        nested()
    assert committed(store, "a-0") == [b"inner"]
    assert settled(store, "a-0")


def test_a_fenced_block_that_raises_raises_its_own(store: Store) -> None:
    def nested() -> None:
        with store.transaction(ID) as outer:
            outer.append("a", b"outer")
            store.transaction(ID).begin()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        nested()


def test_an_empty_first_is_fenced_as_well(store: Store) -> None:
    first, second = store.transaction(ID), store.transaction(ID)
    first.begin()
    second.begin()
    with pytest.raises(ProducerFencedException):
        first.append("a", b"1")
    second.append("a", b"2")
    second.commit()
    assert committed(store, "a-0") == [b"2"]


def test_others_ids_are_not_fenced(store: Store) -> None:
    with store.transaction("x") as one, store.transaction("y") as two:
        one.append("a", b"1")
        two.append("a", b"2")
        one.append("b", b"1")
    assert sorted(committed(store, "a-0")) == [b"1", b"2"]


def test_a_fence_from_outside_of_the_store(store: Store) -> None:
    """As a client of the coordinator that knows nothing of the block."""
    txn = store.transaction(ID)
    txn.begin()
    txn.append("a", b"1")
    home_of(store).coordinators.transactions.init_producer_id(ID, 60_000)
    with pytest.raises(ProducerFencedException, match="ended by another caller"):
        txn.append("a", b"2")
    with pytest.raises(ProducerFencedException, match="ended by another caller"):
        txn.append("b", b"2")
    with pytest.raises(ProducerFencedException, match="ended by another caller"):
        txn.commit()
    txn.abort()
    with store.transaction(ID) as txn:
        txn.append("a", b"3")
    assert committed(store, "a-0") == [b"3"]


def test_aborted_by_name(store: Store) -> None:
    with pytest.raises(TransactionalIdNotFoundException):
        store.abort_transaction(ID)
    txn = store.transaction(ID)
    txn.begin()
    txn.append("a", b"1")
    txn.commit_offsets({"a-0": 1}, cursor="c")
    assert store.abort_transaction(ID)
    assert not store.abort_transaction(ID)
    assert settled(store, "a-0")
    with pytest.raises(ProducerFencedException, match="abort_transaction"):
        txn.commit_offsets({"a-0": 1}, cursor="c")
    with pytest.raises(ProducerFencedException, match="abort_transaction"):
        txn.commit()
    txn.abort()
    txn.begin()
    txn.append("a", b"2")
    txn.commit()
    assert committed(store, "a-0") == [b"2"]
    assert cursor(store, "c") == {}


# --- timeouts -----------------------------------------------------------------------------------------------


def test_one_that_takes_too_long(store: Store, clock: ManualClock) -> None:
    txn = store.transaction(ID, timeout_ms=5000)
    txn.begin()
    clock.advance(10_000)  # time counts from the first record on
    txn.append("a", b"1")
    clock.advance(5000)
    home_of(store).end_overdue()
    assert not settled(store, "a-0")
    clock.advance(1)
    home_of(store).end_overdue()
    assert settled(store, "a-0")
    for use in (lambda: txn.append("a", b"x"), lambda: txn.append("b", b"x"), txn.commit):
        with pytest.raises(ProducerFencedException, match="longer than its timeout of 5000 ms"):
            use()
    txn.abort()
    with store.transaction(ID) as txn:
        txn.append("a", b"2")
    assert committed(store, "a-0") == [b"2"]


def test_the_background_goes_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkalog._face.store_home.OVERDUE_CHECK_MS", 5)
    with kafkalog.open(tmp_path) as store:
        store.create_topic("a")
        txn = store.transaction(ID, timeout_ms=1)
        txn.begin()
        txn.append("a", b"1")
        until = threading.Event()
        for _ in range(1000):
            if settled(store, "a-0"):
                break
            until.wait(0.01)
        assert settled(store, "a-0")


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeouts_out_of_range(store: Store, timeout_ms: int) -> None:
    with pytest.raises(InvalidTxnTimeoutException):
        store.transaction(ID, timeout_ms=timeout_ms)


@pytest.mark.parametrize("name", ["", 5, None, "\ud800"])
def test_names_that_are_none(store: Store, name: Any) -> None:
    with pytest.raises(IllegalArgumentException):
        store.transaction(name)


def test_an_id_that_was_forgotten(store: Store, clock: ManualClock) -> None:
    with store.transaction(ID) as txn:
        txn.append("a", b"1")
    before = store.transactions()
    clock.advance(8 * 24 * 3600 * 1000)
    home_of(store).forget_expired()
    assert store.transactions() == []
    with store.transaction(ID) as txn:
        txn.append("a", b"2")
    clock.advance(8 * 24 * 3600 * 1000)
    home_of(store).coordinators.transactions.remove_expired()  # and we were not told
    with store.transaction(ID) as txn:
        txn.append("a", b"3")
    assert committed(store, "a-0") == [b"1", b"2", b"3"]
    assert store.transactions()[0].producer_id != before[0].producer_id


# --- what is left behind --------------------------------------------------------------------------------------


def test_a_close_aborts_what_is_open(store: Store, tmp_path: Path) -> None:
    txn, other = store.transaction(ID), store.transaction("other")
    txn.begin()
    txn.append("a", b"1")
    txn.commit_offsets({"a-0": 1}, cursor="c")
    other.begin()
    other.append("a", b"2")
    store.close()
    with pytest.raises(IllegalStateException, match="closed"):
        txn.append("a", b"x")
    with pytest.raises(IllegalStateException, match="closed"):
        txn.commit()
    with kafkalog.open(tmp_path / "data", read_only=True):
        pass
    with open_store(tmp_path / "data") as store:
        before = records_of_states(store)
        assert settled(store, "a-0")
        assert committed(store, "a-0") == []
        assert cursor(store, "c") == {}
        assert {each.state for each in store.transactions()} == {"CompleteAbort"}
    with open_store(tmp_path / "data") as store:
        assert records_of_states(store) == before  # there was nothing to do


def test_a_close_within_a_block(store: Store) -> None:
    def closing(*, fails: bool) -> None:
        with store.transaction(ID) as txn:
            txn.append("a", b"1")
            store.close()
            if fails:
                raise ZeroDivisionError

    with pytest.raises(IllegalStateException, match="closed"):
        closing(fails=False)


def test_a_close_within_a_block_that_raises(store: Store) -> None:
    def closing() -> None:
        with store.transaction(ID) as txn:
            txn.append("a", b"1")
            store.close()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        closing()


def test_the_next_open_aborts_what_a_kill_left(store: Store, tmp_path: Path) -> None:
    txn = store.transaction(ID)
    txn.begin()
    txn.append("a", b"1")
    txn.append("four", b"1", partition=2)
    txn.commit_offsets({"a-0": 1}, cursor="c")
    with again(store, tmp_path) as after:
        assert settled(after, "a-0", "four-2")
        assert committed(after, "a-0") == committed(after, "four-2") == []
        assert cursor(after, "c") == {}
        assert state_of(after, ID) == "CompleteAbort"
        with after.transaction(ID) as txn:
            txn.append("a", b"2")
        assert committed(after, "a-0") == [b"2"]


def test_a_brokers_open_transaction_waits_for_its_holder(store: Store, tmp_path: Path, clock: ManualClock) -> None:
    coordinator = home_of(store).coordinators.transactions
    coordinator._producer_id_for = lambda name, previous: 77 if previous < 0 else previous + 1
    txn = store.transaction("theirs", timeout_ms=1000)
    txn.begin()
    txn.append("a", b"1")
    with again(store, tmp_path, clock=clock) as after:
        home_of(after).end_overdue()
        assert not settled(after, "a-0")
        clock.advance(1001)
        home_of(after).end_overdue()
        assert settled(after, "a-0")


def test_a_brokers_open_transaction_is_taken_over(store: Store, tmp_path: Path) -> None:
    coordinator = home_of(store).coordinators.transactions
    coordinator._producer_id_for = lambda name, previous: 77 if previous < 0 else previous + 1
    txn = store.transaction("theirs")
    txn.begin()
    txn.append("a", b"1")
    with again(store, tmp_path) as after:
        with after.transaction("theirs") as txn:
            txn.append("b", b"2")
        assert settled(after, "a-0")
        assert (committed(after, "a-0"), committed(after, "b-0")) == ([], [b"2"])
        assert after.transactions()[0].producer_id == 77


def brokers_id(store: Store) -> None:
    """The next producer id is one that a broker would assign; the next holder of the id continues with it."""
    coordinator = home_of(store).coordinators.transactions
    coordinator._producer_id_for = lambda name, previous: 77 if previous < 0 else previous + 1
    with store.transaction("theirs") as txn:
        txn.append("a", b"of a client")


def test_a_close_aborts_what_is_open_under_a_brokers_producer_id(store: Store, tmp_path: Path) -> None:
    brokers_id(store)
    store.close()
    with open_store(tmp_path / "data") as after:
        txn = after.transaction("theirs")
        txn.begin()
        txn.append("a", b"ours")
        assert after.transactions()[0].producer_id == 77
        assert not settled(after, "a-0")
    with open_store(tmp_path / "data") as after:
        assert settled(after, "a-0")
        assert state_of(after, "theirs") == "CompleteAbort"
        assert committed(after, "a-0") == [b"of a client"]


def test_a_dropped_transaction_under_a_brokers_producer_id_is_aborted(store: Store, tmp_path: Path) -> None:
    brokers_id(store)
    with again(store, tmp_path) as after:
        txn = after.transaction("theirs")
        txn.begin()
        txn.append("a", b"ours")
        home_of(after).end_overdue()
        assert not settled(after, "a-0")
        del txn
        gc.collect()
        home_of(after).end_overdue()
        assert settled(after, "a-0")


def test_a_close_leaves_alone_what_nobody_here_took_over(store: Store, tmp_path: Path) -> None:
    brokers_id(store)
    txn = store.transaction("theirs")
    txn.begin()
    txn.append("a", b"of a client that waits for its broker")
    with again(store, tmp_path) as after, after.transaction("theirs"):
        pass  # nothing is in it: the coordinator never heard of it
    with open_store(tmp_path / "killed") as after:
        assert not settled(after, "a-0")
        assert state_of(after, "theirs") == "Ongoing"


def test_a_dropped_transaction_is_aborted_in_the_background(store: Store) -> None:
    txn = store.transaction(ID)
    txn.begin()
    txn.append("a", b"1")
    home_of(store).end_overdue()
    assert not settled(store, "a-0")
    del txn
    gc.collect()
    home_of(store).end_overdue()
    assert settled(store, "a-0")
    with store.transaction(ID) as txn:
        txn.append("a", b"2")
    assert committed(store, "a-0") == [b"2"]


def test_open_log_ends_what_a_store_left(store: Store, tmp_path: Path) -> None:
    txn = store.transaction(ID)
    txn.begin()
    txn.append("a", b"1")
    killed = as_killed(tmp_path / "data", tmp_path / "killed")
    with kafkalog.open_log(killed, "a-0") as log:
        assert log.last_stable_offset == log.end_offset
        with log.transaction(ID) as own:  # the same id, which it takes over
            own.append(b"own")
    with open_store(killed) as after:
        assert committed(after, "a-0") == [b"own"]


def test_settings_that_verify(tmp_path: Path) -> None:
    settings = ManagerSettings(producers=ProducerSettings(ProducerStateManagerConfig(1000, True)))
    with open_store(tmp_path, settings=settings) as store:
        store.create_topic("a")
        with store.transaction(ID) as txn:
            txn.append("a", b"1")
            txn.commit_offsets({"a-0": 1}, cursor="c")
        assert committed(store, "a-0") == [b"1"]


def test_a_read_only_store_has_none(store: Store, tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "data", read_only=True) as view:
        for use in (lambda: view.transaction(ID), lambda: view.abort_transaction(ID)):
            with pytest.raises(LogReadOnlyException):
                use()


# --- what happens to partitions meanwhile -----------------------------------------------------------------------


def test_a_topic_that_is_deleted_inside(store: Store) -> None:
    with store.transaction(ID) as txn:
        txn.append("a", b"1")
        txn.append("b", b"1")
        store.delete_topic("b")
        with pytest.raises(UnknownTopicOrPartitionException):
            txn.append("b", b"2")
        txn.append("a", b"2")
    assert committed(store, "a-0") == [b"1", b"2"]
    assert state_of(store, ID) == "CompleteCommit"


def test_a_topic_that_is_made_anew_inside(store: Store) -> None:
    with store.transaction(ID) as txn:
        txn.append("a", b"1")
        txn.append("b", b"1")
        store.delete_topic("b")
        store.create_topic("b")
        txn.append("b", b"2")
    assert committed(store, "a-0") == [b"1"]
    assert committed(store, "b-0") == [b"2"]
    assert settled(store, "b-0")


@pytest.mark.parametrize("wrote", [True, False])
def test_a_topic_that_is_made_anew_after_an_abort_from_outside(store: Store, *, wrote: bool) -> None:
    """The abort has left no mark in it: the coordinator has to be asked."""
    txn = store.transaction(ID)
    txn.begin()
    if wrote:
        txn.append("b", b"1")
    else:
        with pytest.raises(kafkalog.errors.RecordTooLargeException):
            txn.append("b", bytes(2_000_000))
    store.delete_topic("b")
    assert store.abort_transaction(ID)
    store.create_topic("b")
    with pytest.raises(ProducerFencedException, match="ended by another caller"):
        txn.append("b", b"aborted")
    with pytest.raises(ProducerFencedException):
        txn.append_many("b", [b"aborted"])
    with pytest.raises(ProducerFencedException):
        txn.commit()
    txn.abort()
    with store.transaction(ID) as following:
        following.append("b", b"2")
    assert committed(store, "b-0") == [b"2"]
    assert settled(store, "b-0")


def test_a_topic_that_is_made_anew_within_an_append(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the coordinator's answer and the append, in which its transaction is aborted."""
    txn = store.transaction(ID)
    txn.begin()
    coordinator = home_of(store).coordinators.transactions
    add = coordinator.add_partitions

    def added(*arguments: Any) -> object:
        monkeypatch.undo()
        found = add(*arguments)
        store.delete_topic("b")
        store.abort_transaction(ID)
        store.create_topic("b")
        return found

    monkeypatch.setattr(coordinator, "add_partitions", added)
    with pytest.raises(ProducerFencedException):
        txn.append("b", b"aborted")
    assert ends(store, "b-0") == [0]


def test_a_topic_that_is_deleted_before_the_end_of_an_aborted_one(store: Store) -> None:
    with contextlib.suppress(ZeroDivisionError), store.transaction(ID) as txn:
        txn.append("a", b"1")
        txn.append("b", b"1")
        store.delete_topic("b")
        store.create_topic("b")
        raise ZeroDivisionError
    assert settled(store, "a-0", "b-0")
    assert committed(store, "a-0") == []


def test_a_partition_that_moves_inside(tmp_path: Path) -> None:
    disks = [tmp_path / "one", tmp_path / "two"]
    with open_store(disks) as store:
        store.create_topic("a")
        store.create_topic("b")
        names = ["a-0", "b-0"]
        for number in range(4):
            with store.transaction(ID) as txn:
                for _ in range(2):
                    txn.append("a", b"%d" % number)
                    txn.append("b", b"%d" % number)
                    txn.commit_offsets({"a-0": number}, cursor="c")
                    internal = [
                        str(log.topic_partition)
                        for topic in ("__transaction_state", "__consumer_offsets")
                        for log in store.manager.logs_by_topic(topic)
                    ]
                    for name in [*names, *internal]:
                        there = log_of(store, name).parent_dir
                        [other] = [str(disk) for disk in disks if str(disk) != there]
                        store.manager.move(name, other)
        expected = [b"%d" % (number // 2) for number in range(8)]
        assert committed(store, "a-0") == committed(store, "b-0") == expected
        assert position(store, "c", "a-0") == 3
    with open_store(disks) as store:
        assert committed(store, "b-0") == expected
        assert position(store, "c", "a-0") == 3


def test_a_truncation_refuses_the_commit(store: Store) -> None:
    store.topic("a").append(b"0")

    def cut(*, after: bool) -> None:
        with store.transaction(ID) as txn:
            txn.append("a", b"1")
            txn.append("b", b"1")
            store.manager.truncate_to({"a-0": 1})
            if after:
                store.topic("a").append(b"x")
                with pytest.raises(InvalidTxnStateException, match="truncation of a-0"):
                    txn.append("a", b"2")

    for after in (False, True):
        with pytest.raises(InvalidTxnStateException, match="truncation of a-0"):
            cut(after=after)
        assert settled(store, "a-0", "b-0")
        assert committed(store, "b-0") == []


def test_a_directory_that_fails_inside(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    disks = [tmp_path / "one", tmp_path / "two"]
    with open_store(disks, files=files, clock=ManualClock(NOW_MS)) as store:
        store.create_topic("a", 4)
        by_disk: dict[str, list[int]] = {}
        for number in range(4):
            by_disk.setdefault(log_of(store, f"a-{number}").parent_dir, []).append(number)
        with store.transaction(ID) as txn:
            txn.append("a", b"0", partition=0)
        [state] = store.manager.logs_by_topic("__transaction_state")
        [bad] = [disk for disk in by_disk if disk != state.parent_dir]
        broken, well = by_disk[bad][0], by_disk[state.parent_dir][0]

        def fail() -> None:
            with store.transaction(ID) as txn:
                txn.append("a", b"1", partition=well)
                txn.append("a", b"1", partition=broken)
                store.manager.handle_log_dir_failure(bad)
                txn.append("a", b"2", partition=well)

        with pytest.raises(KafkaStorageException):
            fail()
        assert state_of(store, ID) == "PrepareAbort"  # it waits for the disk
        with store.transaction(NEIGHBOUR) as txn:
            txn.append("a", b"3", partition=well)
        assert b"1" not in committed(store, f"a-{well}")
        with pytest.raises(KafkaStorageException), store.transaction(ID) as txn:
            txn.append("a", b"4", partition=well)
    with open_store(disks) as store:
        assert state_of(store, ID) == "CompleteAbort"
        assert settled(store, *(f"a-{number}" for number in range(4)))
        assert b"1" not in committed(store, f"a-{broken}")
        assert committed(store, f"a-{well}")[-1] == b"3"


def test_an_open_beside_a_directory_that_is_gone(tmp_path: Path) -> None:
    """A transaction that cannot be ended now does not block the open; it is ended once the disk is back."""
    disks = [tmp_path / "one", tmp_path / "two"]
    with open_store(disks) as store:
        store.create_topic("a", 4)
        with store.transaction(NEIGHBOUR) as txn:
            txn.append("a", b"0")
        txn = store.transaction(ID)
        txn.begin()
        for number in range(4):
            txn.append("a", b"1", partition=number)
        [state] = store.manager.logs_by_topic("__transaction_state")
        well = next(number for number in range(4) if log_of(store, f"a-{number}").parent_dir == state.parent_dir)
        good, [bad] = state.parent_dir, [str(disk) for disk in disks if str(disk) != state.parent_dir]
        copies = {
            disk: str(as_killed(Path(disk), tmp_path / f"copy{number}")) for number, disk in enumerate([good, bad])
        }
    away = Path(copies[bad]).rename(tmp_path / "away")
    Path(copies[bad]).write_text("no directory")
    with open_store([copies[good], copies[bad]]) as store:
        assert state_of(store, ID) == "PrepareAbort"
        with store.transaction(NEIGHBOUR) as txn:
            txn.append("a", b"2", partition=well)
        home_of(store).end_overdue()
    Path(copies[bad]).unlink()
    away.rename(copies[bad])
    with open_store([copies[good], copies[bad]]) as store:
        assert state_of(store, ID) == "CompleteAbort"
        assert settled(store, *(f"a-{number}" for number in range(4)))
        assert committed(store, f"a-{well}")[-1] == b"2"


def test_the_state_partition_is_not_made_twice(tmp_path: Path) -> None:
    disks = [tmp_path / "one", tmp_path / "two"]
    with open_store(disks) as store:
        store.create_topic("a", 2)
        with store.transaction(ID) as txn:
            txn.append("a", b"1", partition=0)
        [state] = store.manager.logs_by_topic("__transaction_state")
        bad = state.parent_dir
        store.manager.handle_log_dir_failure(bad)
        [well] = [n for n in range(2) if store.manager.get_log(f"a-{n}") is not None]
        with pytest.raises(KafkaStorageException), store.transaction(ID) as txn:
            txn.append("a", b"2", partition=well)
        assert store.manager.logs_by_topic("__transaction_state") == []
    with open_store(disks) as store:
        assert state_of(store, ID) == "CompleteCommit"


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_every_failing_write(tmp_path: Path, durability: str) -> None:
    """If any change of the disk fails in a transaction, the next open ends it one way everywhere."""

    def prepare(path: Path, files: FaultyFiles) -> Store:
        store = open_store(path, durability=durability, files=files)
        for name in ("a", "b"):
            store.create_topic(name)
        with store.transaction(ID) as txn:
            fill(txn, b"0")
        return store

    def fill(txn: Any, value: bytes) -> None:
        txn.append("a", value)
        txn.append("b", value)
        txn.commit_offsets({"a-0": int(value)}, cursor="c")

    files = FaultyFiles(OS_FILES)
    with prepare(tmp_path / "count", files) as store:
        before = files.count
        with store.transaction(ID) as txn:
            fill(txn, b"1")
        total = files.count - before
    assert total > 5
    outcomes = set()
    for number in range(total):
        path = tmp_path / str(number)
        files = FaultyFiles(OS_FILES)
        store = prepare(path, files)
        files.fault = Fault(files.count + number)
        done = True
        try:
            with store.transaction(ID) as txn:
                fill(txn, b"1")
        except KafkaStorageException:
            done = False
        files.fault = None
        with contextlib.suppress(kafkalog.KafkalogError):
            store.close()
        with open_store(path) as after:
            seen = (committed(after, "a-0"), committed(after, "b-0"), position(after, "c", "a-0"))
            assert seen in (([b"0"], [b"0"], 0), ([b"0", b"1"], [b"0", b"1"], 1)), (number, seen)
            assert not done or seen[2] == 1
            assert settled(after, "a-0", "b-0")
            outcomes.add(seen[2])
    assert outcomes == {0, 1}


def test_offsets_of_another_store_are_refused(tmp_path: Path) -> None:
    with open_store(tmp_path / "source") as source, open_store(tmp_path / "sink") as sink:
        source.create_topic("in").append(b"1")
        sink.create_topic("out")
        with source.reader("worker", topics=["in"]) as reader:
            assert len(reader.poll()) == 1

            def work(offsets: Any, cursor_name: str | None = None) -> None:
                with sink.transaction(ID) as txn:
                    txn.append("out", b"1")
                    txn.commit_offsets(offsets, cursor=cursor_name)

            with pytest.raises(IllegalArgumentException, match="reads another store"):
                work(reader)
        with pytest.raises(UnknownTopicOrPartitionException):
            work({"in-0": 1}, "worker")
        assert sink.cursors() == []
        assert committed(sink, "out-0") == []
