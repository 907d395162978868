"""A store's partition as users hold it: `topic.partition(n)` works as `open_log`'s, in either kind of store."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.config import CleanerConfig
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.builder import SimpleRecord, build_batch
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    InvalidTopicException,
    InvalidTxnStateException,
    KafkalogError,
    LogReadOnlyException,
    OffsetOutOfRangeException,
    PolicyViolationException,
    ProducerFencedException,
    UnknownTopicOrPartitionException,
)
from kafkalog.partition import Partition
from tests.unit.store_kit import log_of

COMPACTED = {"cleanup.policy": "compact", "min.compaction.lag.ms": "0", "internal.segment.bytes": "2000"}
SOON_S = 0.8  # below what would wake a waiter anyway


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kafkalog.Store]:
    with kafkalog.open([tmp_path / "a", tmp_path / "b"], maintenance=False) as store:
        yield store


@pytest.fixture
def orders(store: kafkalog.Store) -> Partition:
    return store.create_topic("orders", 2).partition(1)


def values(partition: Partition, **options: Any) -> list[bytes | None]:
    return [record.value for record in partition.records(**options)]


def batch(value: bytes) -> bytes:
    return bytes(build_batch([SimpleRecord(9, None, value)]))


def view_of(store: kafkalog.Store) -> kafkalog.Store:
    return kafkalog.open(store.manager.live_log_dirs, read_only=True)


# --- what it is ------------------------------------------------------------------------------------------


def test_it_says_what_it_is(store: kafkalog.Store, orders: Partition, tmp_path: Path) -> None:
    assert isinstance(orders, kafkalog.Partition)
    assert (orders.topic, orders.partition, orders.topic_partition) == ("orders", 1, ("orders", 1))
    assert not orders.closed
    assert not orders.read_only
    assert orders.engine is log_of(store, "orders-1")
    assert orders.log_dir == orders.engine.parent_dir
    assert repr(orders) == f"<Partition orders-1 [0, 0) of {orders.log_dir!r}, open>"
    assert store.topic("orders").partitions == 2
    assert not {"appends", "is_forked_copy"} & set(dir(orders))
    with view_of(store) as view:
        there = view.topic("orders").partition(1)
        assert there.read_only
        assert there.engine is None
        assert there.log_dir == orders.log_dir
        assert repr(there) == f"<Partition orders-1 [0, 0) of {orders.log_dir!r}, read-only>"
    assert there.closed


@pytest.mark.parametrize("number", [-1, "0", 1.0, None])
def test_a_number_that_is_none(store: kafkalog.Store, orders: Partition, number: Any) -> None:
    with view_of(store) as view:
        for each in (store, view):
            with pytest.raises(IllegalArgumentException):
                each.topic("orders").partition(number)


def test_one_that_is_not_there(store: kafkalog.Store, orders: Partition) -> None:
    with view_of(store) as view:
        for each in (store, view):
            with pytest.raises(UnknownTopicOrPartitionException, match="has no partition 2: it has 2"):
                each.topic("orders").partition(2)


# --- appends and reads -----------------------------------------------------------------------------------


def test_every_way_to_append(store: kafkalog.Store, orders: Partition) -> None:
    assert orders.append(b"0", key=b"k", headers=[("h", b"x")], timestamp=5) == 0
    assert orders.append_many([b"1", (b"2", b"k")]) == range(1, 3)
    assert orders.append_columns([b"3", b"4"]) == range(3, 5)
    assert orders.append_batches(batch(b"5")) == range(5, 6)
    writer = orders.writer("import")
    assert writer.append(b"6", sequence=0) == 6
    assert writer.append(b"6", sequence=0) is None
    assert store.topic("orders").writer("import", partition=1).next_sequence == 1
    with orders.transaction("job") as txn:
        assert txn.append(b"7") == 7
        assert txn.append_many([b"8", b"9"]) == range(8, 10)
    assert orders.leader_epoch == 0
    orders.flush()
    assert log_of(store, "orders-1").recovery_point == orders.end_offset == 11
    assert store.topic("orders").append(b"end", partition=1).offset == 11
    assert values(orders) == [*(b"%d" % n for n in range(10)), b"end"]
    assert log_of(store, "orders-0").log_end_offset == 0


def look(partition: Partition) -> dict[str, Any]:
    """The answer of each way to read."""
    pytest.importorskip("pyarrow")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sent = partition.send_to(ours, 0)
    with partition.reader(1) as reader:
        chunked = [record.value for record in reader.records()]
    return {
        "ends": (
            partition.log_start_offset, partition.end_offset, partition.high_watermark, partition.last_stable_offset
        ),
        "records": values(partition),
        "committed": values(partition, isolation="read_committed"),
        "iterated": [record.offset for record in partition],
        "some": values(partition, start=1, end=3),
        "timed": values(partition, start_time=20, end_time=40),
        "time": [partition.offset_for_time(n) for n in (-1, 0, 20, 99)],
        "arrow": partition.read_arrow(columns=["offset", "value"]).to_pylist(),
        "batches": [batch.num_rows for batch in partition.arrow_batches(batch_rows=2)],
        "latest": partition.latest().read_all().column("value").to_pylist(),
        "reader": chunked,
        "sent": sent,
    }  # fmt: skip


def test_every_way_to_read_says_the_same_by_each_door(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        orders = store.create_topic("orders").partition(0)
        orders.append_many([(b"%d" % n, b"key%d" % (n % 2), (), 10 * n) for n in range(5)])
        txn = orders.transaction("job")
        txn.begin()
        txn.append(b"gone")
        txn.abort()
        with kafkalog.open(tmp_path, read_only=True) as view:
            found = look(orders)
            assert look(view.topic("orders").partition(0)) == found
    with kafkalog.open_log(tmp_path, "orders-0") as log:
        assert look(log) == found
    assert found["ends"] == (0, 7, 7, 7)
    assert found["records"] == [b"0", b"1", b"2", b"3", b"4", b"gone"]
    assert found["committed"] == found["records"][:-1]
    assert found["time"] == [0, 0, 2, 5]
    assert found["latest"] == [b"3", b"4"]


def test_a_range_that_is_not_there(orders: Partition) -> None:
    orders.append(b"x")
    with pytest.raises(OffsetOutOfRangeException, match=r"the log has \[0, 1\)"):
        orders.records(2)


def test_a_read_only_one_refuses_every_change(store: kafkalog.Store, orders: Partition) -> None:
    orders.append(b"x")
    changes: list[Callable[[Partition], object]] = [
        lambda it: it.append(b"y"),
        lambda it: it.append_many([b"y"]),
        lambda it: it.append_columns([b"y"]),
        lambda it: it.append_batches(b""),
        lambda it: it.writer("w"),
        lambda it: it.transaction("t"),
        lambda it: it.flush(),
        lambda it: it.leader_epoch,
        lambda it: it.delete_records(1),
        lambda it: it.delete_old_segments(),
        lambda it: it.truncate(0),
        lambda it: it.compact(),
    ]
    with view_of(store) as view:
        there = view.topic("orders").partition(1)
        for change in changes:
            with pytest.raises(LogReadOnlyException, match=r"orders-1 of .* is open read-only"):
                change(there)
        assert values(there) == [b"x"]
        orders.append(b"y")
        there.refresh()
        assert values(there) == [b"x", b"y"]


def test_a_durable_store_syncs_each_append(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path, durability="fsync") as store:
        partition = store.create_topic("t").partition(0)
        for number in range(3):
            partition.append(b"x")
            assert log_of(store, "t-0").recovery_point == number + 1


# --- waiting ---------------------------------------------------------------------------------------------


class Awaiting:
    """A thread that waits for an offset."""

    def __init__(self, partition: Partition, offset: int, **options: Any) -> None:
        self.answer: Any = None
        self.thread = threading.Thread(target=self.run, args=(partition, offset, options), daemon=True)
        self.thread.start()
        end = time.monotonic() + 20
        while self.thread.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
            if partition.engine is None or partition.engine.waiters:
                break

    def run(self, partition: Partition, offset: int, options: dict[str, Any]) -> None:
        try:
            self.answer = partition.await_offset(offset, **options)
        except KafkalogError as error:
            self.answer = error

    def told(self) -> Any:
        self.thread.join(30)
        assert not self.thread.is_alive()
        return self.answer


def test_who_waits_is_woken(store: kafkalog.Store, orders: Partition) -> None:
    assert not orders.await_offset(0, timeout_ms=1)
    waiting = Awaiting(orders, 1)
    orders.append_many([b"a", b"b"])
    assert waiting.told() is True
    with view_of(store) as view:
        there = view.topic("orders").partition(1)
        assert there.await_offset(1)
        waiting = Awaiting(there, 2)
        orders.append(b"c")
        assert waiting.told() is True
        waiting = Awaiting(there, 3)
        view.close()
        assert isinstance(waiting.told(), IllegalStateException)
    waiting = Awaiting(orders, 3)
    store.delete_topic("orders")
    assert isinstance(waiting.told(), UnknownTopicOrPartitionException)


def test_a_close_of_the_store_wakes(store: kafkalog.Store, orders: Partition) -> None:
    waiting = Awaiting(orders, 0)
    orders.close()
    assert waiting.thread.is_alive()
    store.close()
    assert isinstance(waiting.told(), IllegalStateException)


# --- its life --------------------------------------------------------------------------------------------


def test_its_own_close_does_nothing(store: kafkalog.Store, orders: Partition) -> None:
    with orders as same:
        same.append(b"x")
    orders.close()
    assert not orders.closed
    assert orders.append(b"y") == 1
    with view_of(store) as view:
        with view.topic("orders").partition(1) as there:
            pass
        there.close()
        assert values(there) == [b"x", b"y"]
    store.close()
    assert orders.closed
    assert there.closed
    with pytest.raises(IllegalStateException, match="is closed"):
        orders.append(b"z")
    with pytest.raises(IllegalStateException, match="is closed"):
        values(orders)
    with pytest.raises(IllegalStateException, match="is closed"):
        values(there)


def test_it_holds_its_store(tmp_path: Path) -> None:
    partition = kafkalog.open(tmp_path).create_topic("t").partition(0)
    with partition.transaction("job") as txn:
        txn.append(b"x")
    assert values(partition) == [b"x"]
    with pytest.warns(ResourceWarning, match="was dropped without being closed"):
        del partition, txn


def test_a_moved_one_goes_on(store: kafkalog.Store, orders: Partition) -> None:
    store.alter_topic("orders", COMPACTED)
    orders.append_many([(b"%d" % n, b"k%d" % n) for n in range(4)])
    walk = orders.records()
    assert next(walk).value == b"0"
    writer, waiting = orders.writer("w"), Awaiting(orders, 5)
    with view_of(store) as view:
        there = view.topic("orders").partition(1)
        assert len(values(there)) == 4
        before = orders.log_dir
        after = next(each for each in store.manager.live_log_dirs if each != before)
        store.manager.move("orders-1", after)
        assert [record.value for record in walk] == [b"1", b"2", b"3"]
        assert len(values(there)) == 4
        assert orders.append(b"4", key=b"k4") == 4
        assert writer.append(b"5", key=b"k5") == 5
        assert waiting.told() is True
        assert orders.log_dir == there.log_dir == after
        store.manager.move("orders-1", before)
        assert orders.compact(roll=True).end_offset == 6
        store.manager.move("orders-1", after)
        orders.truncate(5)
        store.manager.move("orders-1", before)
        assert orders.delete_old_segments() == 0
        with orders.transaction("job") as txn:
            txn.append(b"6", key=b"k6")
        assert values(orders) == [b"0", b"1", b"2", b"3", b"4", b"6"]
        assert values(there) == values(orders)
        assert orders.await_offset(6, timeout_ms=10_000)
        assert there.await_offset(6, timeout_ms=10_000)


def test_a_deleted_one_is_told_by_name(store: kafkalog.Store, orders: Partition) -> None:
    orders.append(b"x")
    with view_of(store) as view:
        there = view.topic("orders").partition(1)
        assert values(there) == [b"x"]
        store.delete_topic("orders")
        uses: list[Callable[[], object]] = [
            lambda: orders.append(b"y"),
            lambda: values(orders),
            lambda: orders.log_start_offset,
            lambda: orders.end_offset,
            lambda: orders.truncate(0),
            lambda: orders.delete_records(1),
            lambda: orders.delete_old_segments(),
            lambda: orders.await_offset(5),
            lambda: values(there),
            lambda: there.await_offset(5),
        ]
        for _ in range(2):
            for number, use in enumerate(uses):
                with pytest.raises(UnknownTopicOrPartitionException):
                    print(number, use())
            store.create_topic("orders", 2, exist_ok=True)  # another one of the name
        assert log_of(store, "orders-1").log_end_offset == 0


# --- Kafka's own -----------------------------------------------------------------------------------------


def test_an_internal_topic_is_read_and_not_appended_to(store: kafkalog.Store, orders: Partition) -> None:
    orders.append(b"x")
    with store.reader("billing", topics=["orders"]) as reader:
        assert len(list(reader)) == 1
        reader.commit()
    [number] = [each.topic_partition.partition for each in store.manager.logs_by_topic("__consumer_offsets")]
    kept = store.topic("__consumer_offsets").partition(number)
    end = kept.end_offset
    assert len(values(kept)) == end > 0
    for change in (
        lambda: kept.append(b"x"),
        lambda: kept.append(b"x", key=b"k"),
        lambda: kept.append_many([b"x"]),
        lambda: kept.append_columns([b"x"]),
        lambda: kept.append_batches(batch(b"5")),
        lambda: kept.writer("w"),
        lambda: kept.transaction("t"),
        lambda: kept.truncate(0),
        lambda: kept.delete_records(1),
    ):
        with pytest.raises(InvalidTopicException, match="Cannot append to internal topic __consumer_offsets"):
            change()
    assert kept.end_offset == end


# --- transactions ----------------------------------------------------------------------------------------


def fails(txn: Any) -> None:
    txn.append(b"gone")
    raise KafkalogError("mine")


def test_a_transaction_of_one_partition(store: kafkalog.Store, orders: Partition) -> None:
    txn = orders.transaction("job")
    assert repr(txn) == "<Transaction of 'job' in orders-1, not open>"
    with txn:
        assert txn.active
        assert txn.append_many([]) == range(0)
        assert txn.append_many([b"a", b"b"]) == range(2)
        assert txn.append_batches(batch(b"c")) == range(2, 3)
        assert values(orders, isolation="read_committed") == []
    assert not txn.active
    assert values(orders, isolation="read_committed") == [b"a", b"b", b"c"]
    with pytest.raises(KafkalogError, match="mine"), txn:
        fails(txn)
    assert not txn.active
    txn.begin()
    with pytest.raises(InvalidTxnStateException, match="is open already"):
        txn.begin()
    txn.append(b"d")
    with orders.transaction("job") as other:  # the same id: the first is fenced
        with pytest.raises(ProducerFencedException):
            txn.append(b"gone")
        other.append(b"e")
    txn = orders.transaction("counted")
    with store.reader("billing", partitions=["orders-1"]) as reader, txn:
        list(reader)
        txn.append(b"f")
        txn.commit_offsets(reader)
    assert values(orders, isolation="read_committed") == [b"a", b"b", b"c", b"e", b"f"]
    assert store.committed("billing")[TopicPartition("orders", 1)].offset > 3
    for wrong in ("", None, 5):
        with pytest.raises(IllegalArgumentException):
            orders.transaction(wrong)  # type: ignore[arg-type]


# --- shrinking -------------------------------------------------------------------------------------------


def test_a_cut(store: kafkalog.Store, orders: Partition) -> None:
    orders.append_many([b"0", b"1", b"2"])
    orders.append_many([b"3", b"4"])
    orders.flush()
    for wrong in (-1, 1.0, "1", None):
        with pytest.raises(IllegalArgumentException):
            orders.truncate(wrong)  # type: ignore[arg-type]
    with pytest.raises(IllegalArgumentException, match="inside the batch of offsets 0 to 2") as told:
        orders.truncate(1)
    assert "truncate to 0, which drops all of it, or to 3" in str(told.value.hint)
    orders.truncate(3)
    assert values(orders) == [b"0", b"1", b"2"]
    points = Path(orders.log_dir, "recovery-point-offset-checkpoint").read_text().splitlines()
    assert "orders 1 3" in points
    orders.truncate(3)
    assert orders.append(b"new") == 3
    orders.delete_records(3)
    orders.truncate(1)  # below the start: all of it
    assert (orders.log_start_offset, orders.end_offset) == (1, 1)


def test_a_cut_ends_what_was_clean(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path, maintenance=False) as store:
        prices = store.create_topic("prices", config=COMPACTED).partition(0)
        fill(prices)
        assert prices.compact(roll=True).end_offset == 300
        assert lines(tmp_path) == ["prices 0 300"]
        prices.truncate(0)
        assert lines(tmp_path) == ["prices 0 0"]
        fill(prices)
        assert prices.compact(roll=True).records > 0
        store.delete_topic("prices")
        assert lines(tmp_path) == []
        prices = store.create_topic("prices", config=COMPACTED).partition(0)
        fill(prices)
        assert prices.compact(roll=True).first_dirty_offset == 0


def test_deleted_records_and_segments(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_000)
    with kafkalog.open(tmp_path, clock=clock, maintenance=False) as store:
        topic = store.create_topic("t", config={"retention.ms": "1000", "internal.segment.bytes": "300"})
        partition = topic.partition(0)
        for _ in range(20):
            partition.append(b"x" * 50)
        assert partition.delete_records(3) == partition.log_start_offset == 3
        assert partition.delete_old_segments() == 0 or partition.log_start_offset >= 3
        clock.advance(5000)
        assert partition.delete_old_segments() > 3
        assert partition.log_start_offset == partition.end_offset == 20
        starts = Path(partition.log_dir, "log-start-offset-checkpoint").read_text()
        assert "t 0 3" not in starts


def fill(partition: Partition, keys: int = 10) -> None:
    for number in range(300):
        partition.append(b"%d" % number, key=b"key%d" % (number % keys))


def lines(root: Path) -> list[str]:
    return (root / "cleaner-offset-checkpoint").read_text().splitlines()[2:]


@pytest.mark.parametrize("how", ["no maintenance", "no cleaner", "threads"])
def test_compaction_by_hand(tmp_path: Path, how: str) -> None:
    settings = ManagerSettings(cleaner=CleanerConfig(enable_cleaner=False)) if how == "no cleaner" else None
    options: dict[str, Any] = {"settings": settings, "maintenance": how != "no maintenance"}
    with kafkalog.open(tmp_path, **options) as store:
        store.create_topic("plain")
        with pytest.raises(PolicyViolationException, match=r"has cleanup\.policy=delete") as told:
            store.topic("plain").partition(0).compact()
        assert "store.alter_topic" in str(told.value.hint)
        prices = store.create_topic("prices", config=COMPACTED).partition(0)
        fill(prices)
        for options in ({"passes": 0}, {"dedupe_buffer_bytes": 1}, {"roll": 2}):
            with pytest.raises(IllegalArgumentException):
                prices.compact(**options)
        stats = prices.compact(roll=True)
        assert how == "threads" or (stats.records, stats.end_offset) == (290, 300)
        assert lines(tmp_path) == ["prices 0 300"]
        assert values(prices) == [b"%d" % n for n in range(290, 300)]
        again = prices.compact()
        assert again.records == 0
        expected = values(prices)
    with kafkalog.open(tmp_path) as store:
        assert values(store.topic("prices").partition(0)) == expected
    assert not list(tmp_path.rglob("*.cleaned"))


@pytest.mark.parametrize("maintenance", [False, True])
def test_compactions_of_many_threads(tmp_path: Path, maintenance: bool) -> None:
    """They wait for each other, and for the cleaner's threads; appends, reads, truncations and moves continue."""
    with kafkalog.open([tmp_path / "a", tmp_path / "b"], maintenance=maintenance) as store:
        prices = store.create_topic("prices", config=COMPACTED).partition(0)
        fill(prices)
        errors: list[BaseException] = []

        def work(do: Callable[[int], object]) -> None:
            try:
                for number in range(6):
                    do(number)
            except BaseException as error:
                errors.append(error)

        def move(number: int) -> None:
            store.manager.move("prices-0", store.manager.live_log_dirs[number % 2])

        works: list[Callable[[int], object]] = [
            lambda _: prices.compact(roll=True),
            lambda _: prices.compact(roll=True),
            lambda _: fill(prices, 7),
            lambda _: values(prices),
            lambda _: prices.delete_old_segments(),
            lambda _: prices.truncate(1 << 40),
            move,
        ]
        threads = [threading.Thread(target=work, args=(each,)) for each in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(240)
            assert not thread.is_alive()
        assert errors == []
        prices.compact(roll=True)
        found = {record.key: record.value for record in prices}
        assert len(values(prices)) == len(found) == 10
        assert prices.end_offset == 7 * 300


def test_a_close_ends_a_compaction(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path, maintenance=False) as store:
        prices = store.create_topic("prices", config=COMPACTED).partition(0)
        fill(prices, 300)
        ended: list[BaseException | None] = []
        begun = threading.Event()

        def compact() -> None:
            try:
                while True:
                    begun.set()
                    fill(prices, 200)
                    prices.compact(roll=True)
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=compact)
        thread.start()
        begun.wait()
        time.sleep(0.05)
        store.close()
        thread.join(60)
        assert not thread.is_alive()
        assert isinstance(ended[0], IllegalStateException), ended
    assert not list(tmp_path.rglob("*.cleaned"))
    assert (tmp_path / ".kafka_cleanshutdown").exists()
