"""A producer: order, batches, errors record by record, memory, futures, flush, close, and garbage collection."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import copy
import errno
import gc
import itertools
import logging
import pickle
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog import producer as batching_module
from kafkalog._face.record_future import RecordFuture
from kafkalog._face.writer import producer_id_of
from kafkalog.engine.files import OS_FILES, ManualClock
from kafkalog.errors import (
    BufferExhaustedException,
    IllegalArgumentException,
    IllegalStateException,
    KafkaStorageException,
    LogReadOnlyException,
    RecordTooLargeException,
    RecordValidationException,
    UnknownTopicOrPartitionException,
    UnsupportedCompressionTypeException,
)
from kafkalog.producer import RecordAccumulator
from kafkalog.store import Store
from tests.file_doubles import Fault, FaultyFiles

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kafkalog.open(tmp_path / "data", maintenance=False, clock=ManualClock(NOW_MS)) as opened:
        opened.create_topic("t")
        opened.create_topic("four", 4)
        yield opened


def records(store: Store, topic: str, partition: int = 0) -> list[kafkalog.Record]:
    from kafkalog._face.chunk_reader import ChunkReader
    from kafkalog.engine.format.names import TopicPartition

    source = store._home.source(TopicPartition(topic, partition))
    with ChunkReader(source, source.log_start_offset) as reader:
        return list(reader.records())


def values(store: Store, topic: str, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in records(store, topic, partition)]


def batches(store: Store, topic: str = "t") -> list[Any]:
    from kafkalog._native.codec.batches import headers

    log = store.manager.get_log(f"{topic}-0")
    assert log is not None
    return [each for segment in log.log_segments() for each in headers(Path(segment.log.path).read_bytes())[0]]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The sender appends nothing until the event is set."""
    go = threading.Event()
    append = RecordAccumulator._append

    def later(self: RecordAccumulator, batch: Any) -> Any:
        assert go.wait(30)
        return append(self, batch)

    monkeypatch.setattr(RecordAccumulator, "_append", later)
    yield go
    go.set()


# --- sending -------------------------------------------------------------------------------------------


def test_send(store: Store) -> None:
    with store.producer() as producer:
        first = producer.send("t", b"v", key=b"k", headers=[("h", b"x"), ("h", None)], timestamp=5)
        assert first.result(10) == ("t", 0, 0)
        assert isinstance(first.result(), kafkalog.RecordMetadata)
        second = producer.send("t", None)
        third = producer.send("t", bytearray(b"buffer"), key=memoryview(b"view"))
        assert [each.result(10).offset for each in (second, third)] == [1, 2]
    found = records(store, "t")
    assert [(each.value, each.key, each.headers, each.timestamp) for each in found] == [
        (b"v", b"k", (("h", b"x"), ("h", None)), 5),
        (None, None, (), NOW_MS),
        (b"buffer", b"view", (), NOW_MS),
    ]


def test_a_record_has_the_time_of_its_send(store: Store, slow: threading.Event) -> None:
    clock = store._home.clock
    assert isinstance(clock, ManualClock)
    with store.producer() as producer:
        for _ in range(3):
            producer.send("t", b"v")
            clock.advance(1000)
        slow.set()
    assert [each.timestamp - NOW_MS for each in records(store, "t")] == [0, 1000, 2000]


def test_records_go_where_a_topic_sends_them(store: Store) -> None:
    keys = [b"key-%d" % number for number in range(200)]
    with store.producer() as producer:
        futures = [producer.send("four", key, key=key) for key in keys]
        chosen = producer.send("four", b"there", key=b"key-1", partition=2)
        keyless = [producer.send("four", bytes(5000)) for _ in range(40)]
    assert chosen.result().partition == 2
    topic = store.topic("four")
    for key, future in zip(keys, futures, strict=True):
        assert future.result().partition == topic.append(b"again", key=key).partition
    found = [future.result().partition for future in keyless]
    runs = [len(list(run)) for _, run in itertools.groupby(found)]
    assert all(run % 4 == 0 for run in runs), runs  # sticky: 16 KiB, then another, perhaps the same


def test_order_by_thread_and_partition(store: Store) -> None:
    each_sends = 3000

    def send(producer: kafkalog.Producer, number: int) -> None:
        for count in range(each_sends):
            producer.send("four", b"%d %d" % (number, count), key=b"%d" % (count % 5))

    with store.producer(linger_ms=0) as producer:
        threads = [threading.Thread(target=send, args=(producer, number)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    total = 0
    for partition in range(4):
        last: dict[tuple[int, bytes], int] = collections.defaultdict(lambda: -1)
        for record in records(store, "four", partition):
            assert record.value is not None
            assert record.key is not None
            number, count = map(int, record.value.split())
            assert count > last[number, record.key]
            last[number, record.key] = count
            total += 1
    assert total == 4 * each_sends


def test_partitions_that_come_meanwhile(store: Store) -> None:
    with store.producer() as producer:
        producer.send("t", b"v").result(10)
        with pytest.raises(UnknownTopicOrPartitionException, match="has no partition 1"):
            producer.send("t", b"v", partition=1)
        store.add_partitions("t", 3)
        assert producer.send("t", b"v", partition=2).result(10) == ("t", 2, 0)
        assert {producer.send("t", b"v", key=b"%d" % n).result(10).partition for n in range(40)} == {0, 1, 2}


def test_a_topic_that_is_deleted_meanwhile(store: Store, slow: threading.Event) -> None:
    with store.producer(linger_ms=0) as producer:
        late = producer.send("t", b"v")
        store.delete_topic("t")
        slow.set()
        with pytest.raises(UnknownTopicOrPartitionException):
            late.result(10)
        with pytest.raises(UnknownTopicOrPartitionException):
            producer.send("t", b"v")
        store.create_topic("t", 2)
        assert producer.send("t", b"v", partition=1).result(10) == ("t", 1, 0)


# --- batches -------------------------------------------------------------------------------------------


def test_records_wait_for_others(store: Store) -> None:
    with store.producer(linger_ms=600_000) as producer:
        futures = [producer.send("t", b"%d" % number) for number in range(50)]
        time.sleep(0.05)
        assert not any(each.done() for each in futures)
        assert producer.flush()
        assert all(each.done() for each in futures)
    assert [each.count for each in batches(store)] == [50]


def test_a_full_batch_does_not_wait(store: Store) -> None:
    with store.producer(linger_ms=600_000, batch_bytes=1000) as producer:
        futures = [producer.send("t", bytes(200)) for _ in range(5)]
        assert futures[0].result(10).offset == 0
        lonely = producer.send("four", bytes(2000))
        assert lonely.result(10).offset == 0


def test_without_linger_nothing_waits(store: Store) -> None:
    with store.producer(linger_ms=0) as producer:
        for number in range(20):
            assert producer.send("t", b"v").result(10).offset == number


def test_what_waits_for_the_sender_goes_together(store: Store, slow: threading.Event) -> None:
    with store.producer(linger_ms=0, batch_bytes=100) as producer:
        producer.send("t", b"first")
        deadline = time.monotonic() + 10
        while not producer._it._taken and time.monotonic() < deadline:
            time.sleep(0.001)
        for _ in range(2000):
            producer.send("t", bytes(200))
        slow.set()
    assert [each.count for each in batches(store)] == [1, 2000]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression(store: Store, compression: str) -> None:
    from kafkalog.engine.format import codecs

    with store.producer(compression=compression) as producer:
        for _ in range(100):
            producer.send("t", b"abc" * 50)
        producer.flush()
        store.alter_topic("t", {"max.message.bytes": "2000000"})
        producer.send("t", b"abc" * 50)
    assert {each.codec for each in batches(store)} == {codecs.codec_id(compression)}
    assert values(store, "t") == [b"abc" * 50] * 101


def test_a_name_makes_it_idempotent(tmp_path: Path) -> None:
    for turn in range(2):
        with kafkalog.open(tmp_path, maintenance=False) as store:
            store.create_topic("t", exist_ok=True)
            with store.producer(name="importer") as producer:
                for number in range(10):
                    producer.send("t", b"%d" % (turn * 10 + number)).result(10)
            assert store.topic("t").writer("importer").next_sequence == 10 * (turn + 1)
            found = batches(store)
            assert {each.producer_id for each in found} == {producer_id_of("importer")}
            assert [each.base_sequence for each in found] == list(range(10 * (turn + 1)))
            assert values(store, "t") == [b"%d" % number for number in range(10 * (turn + 1))]


def test_two_of_a_name(store: Store) -> None:
    with store.producer(name="w", linger_ms=0) as one, store.producer(name="w", linger_ms=0) as other:
        for number in range(300):
            one.send("t", b"one %d" % number)
            other.send("t", b"other %d" % number)
            if number % 50 == 0:
                store.topic("t").writer("w").append(b"by hand %d" % number)
    assert collections.Counter(values(store, "t")) == collections.Counter(
        [b"one %d" % number for number in range(300)]
        + [b"other %d" % number for number in range(300)]
        + [b"by hand %d" % number for number in range(0, 300, 50)]
    )


# --- errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [None, "w"])
def test_a_record_that_is_refused_takes_no_others_with_it(store: Store, name: str | None) -> None:
    store.create_topic("small", config={"max.message.bytes": "1000"})
    wrong = {3, 4, 50, 98, 99}
    with store.producer(linger_ms=600_000, name=name) as producer:
        futures = [producer.send("small", b"%d" % n + bytes(5000 if n in wrong else 10)) for n in range(100)]
    offset = 0
    for number, future in enumerate(futures):
        if number in wrong:
            assert isinstance(future.exception(), RecordTooLargeException)
            with pytest.raises(RecordTooLargeException, match="alter_topic"):
                future.result()
        else:
            assert future.exception() is None
            assert future.result() == ("small", 0, offset)
            offset += 1
    assert [value[:2].strip(b"\0") for value in values(store, "small") if value] == [
        b"%d" % number for number in range(100) if number not in wrong
    ]


def test_other_refusals(store: Store) -> None:
    store.create_topic("compacted", config={"cleanup.policy": "compact"})
    store.create_topic("timely", config={"message.timestamp.before.max.ms": str(HOUR_MS)})
    with store.producer(linger_ms=600_000) as producer:
        keyless = [producer.send("compacted", b"v", key=b"k" if number % 3 else None) for number in range(30)]
        timely = [producer.send("timely", b"v", timestamp=NOW_MS - number * HOUR_MS) for number in range(3)]
    assert [isinstance(each.exception(), RecordValidationException) for each in keyless] == [
        number % 3 == 0 for number in range(30)
    ]
    assert [each.result().offset for each in keyless if each.exception() is None] == list(range(20))
    assert [each.exception() is None for each in timely] == [True, True, False]


def test_all_refused(store: Store) -> None:
    store.create_topic("small", config={"max.message.bytes": "100"})
    with store.producer() as producer:
        futures = [producer.send("small", bytes(200)) for _ in range(100)]
    assert all(isinstance(each.exception(), RecordTooLargeException) for each in futures)
    assert values(store, "small") == []


def test_each_has_an_error_of_its_own(store: Store) -> None:
    store.create_topic("compacted", config={"cleanup.policy": "compact"})
    with store.producer() as producer:
        one, other = [producer.send("compacted", b"v") for _ in range(2)]
    assert one.exception() is one.exception()
    assert one.exception() is not other.exception()
    assert str(one.exception()).startswith("One or more records")


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("kinds", [{"write"}, {"sync"}], ids=str)
def test_a_disk_that_fails(tmp_path: Path, durability: Any, kinds: set[str]) -> None:
    files = FaultyFiles(OS_FILES)
    store = kafkalog.open(tmp_path, durability=durability, files=files, maintenance=False)
    topic = store.create_topic("t", 3)
    acknowledged: list[list[bytes]] = [[] for _ in range(3)]
    with store.producer(linger_ms=1) as producer:
        for number in range(30):
            result = producer.send("t", b"%d" % number, partition=number % 3).result(10)
            acknowledged[result.partition].append(b"%d" % number)
        files.count = 0
        files.fault = Fault(0, errno.EIO, kinds=kinds, paths=lambda path: path.endswith(".log"))
        futures = [producer.send("t", b"late %d" % number, partition=number % 3) for number in range(30)]
        assert producer.flush(20_000)
        fails = kinds == {"write"} or durability == "fsync"
        for future in futures:
            if fails:
                with pytest.raises(KafkaStorageException):
                    future.result(0)
            else:
                future.result(0)
        if fails:
            with pytest.raises(KafkaStorageException):
                producer.send("t", b"v", partition=1).result(10)
            with pytest.raises(KafkaStorageException):
                topic.append(b"v", partition=1)
    files.fault = None
    with contextlib.suppress(KafkaStorageException):
        store.close()
    with kafkalog.open(tmp_path, maintenance=False) as again:
        for partition, wanted in enumerate(acknowledged):
            assert values(again, "t", partition)[: len(wanted)] == wanted


def test_one_sync_for_all_who_wait(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES, Fault(-1, sticky=False, kinds={"sync"}))  # counts them
    with kafkalog.open(tmp_path, durability="fsync", files=files, maintenance=False) as store:
        store.create_topic("t")
        with store.producer(linger_ms=600_000, batch_bytes=1 << 20) as producer:
            producer.send("t", b"v")
            producer.flush()
            before = files.count
            for _ in range(10_000):
                producer.send("t", b"v")
            producer.flush()
            assert files.count - before <= 2


@pytest.mark.parametrize(
    "arguments",
    [
        {"value": "text"}, {"value": 5}, {"value": [b"v"]}, {"value": {}}, {"key": "text"}, {"key": 1},
        {"headers": {"a": b"b"}}, {"headers": [("a", "text")]}, {"headers": "ab"}, {"headers": [b"x"]}, {"headers": 5},
        {"timestamp": 1.5}, {"timestamp": "now"}, {"timestamp": -2}, {"timestamp": 2**63}, {"partition": "0"},
        {"partition": -1}, {"partition": 0.0}, {"topic": b"t"}, {"topic": None}, {"topic": ["t"]}, {"topic": 5},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_types_are_told_at_once(store: Store, arguments: dict[str, Any]) -> None:
    with store.producer() as producer:
        with pytest.raises(IllegalArgumentException):
            producer.send(**{"topic": "t", "value": b"v", **arguments})
        assert producer.buffered_bytes == 0
        assert producer.send("t", b"good").result(10).offset == 0


@pytest.mark.parametrize(
    "options",
    [
        {"linger_ms": -1}, {"linger_ms": 1.5}, {"linger_ms": "5"}, {"linger_ms": None}, {"batch_bytes": -1},
        {"batch_bytes": 2**31}, {"batch_bytes": b"1"}, {"buffer_bytes": 0}, {"buffer_bytes": 1e6}, {"max_block_ms": -1},
        {"max_block_ms": []}, {"name": ""}, {"name": b"w"}, {"name": 5},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_options(store: Store, options: dict[str, Any]) -> None:
    threads = threading.active_count()
    with pytest.raises(IllegalArgumentException):
        store.producer(**options)
    assert threading.active_count() == threads
    assert not store._home.producers


def test_other_wrong_uses(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCompressionTypeException):
        store.producer(compression="best")
    with pytest.raises(UnsupportedCompressionTypeException):
        store.producer(compression=5)  # type: ignore[arg-type]
    with store.producer() as producer:
        with pytest.raises(UnknownTopicOrPartitionException):
            producer.send("nowhere", b"v")
        for timeout in (-1, 1.5, "1"):
            with pytest.raises(IllegalArgumentException):
                producer.flush(timeout)  # type: ignore[arg-type]
        for use in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError):
                use(producer)  # type: ignore[operator]
    with (
        kafkalog.open(tmp_path / "data", read_only=True) as looking,
        pytest.raises(LogReadOnlyException),
    ):
        looking.producer()


# --- memory --------------------------------------------------------------------------------------------


def test_who_finds_no_room_waits(store: Store, slow: threading.Event) -> None:
    with store.producer(buffer_bytes=10_000, linger_ms=600_000) as producer:
        sent: list[RecordFuture] = []

        def send() -> None:
            sent.extend(producer.send("t", b"%d" % number + bytes(1000)) for number in range(50))

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        assert 0 < producer.buffered_bytes <= 10_000
        assert all(thread.is_alive() for thread in threads)
        slow.set()
        for thread in threads:
            thread.join(30)
        assert producer.flush(30_000)
        assert len({each.result(0).offset for each in sent}) == 200
        assert producer.buffered_bytes == 0


def test_who_waits_too_long_is_told(store: Store, slow: threading.Event) -> None:
    with store.producer(buffer_bytes=3000, max_block_ms=50) as producer:
        for _ in range(2):
            producer.send("t", bytes(1000))
        start = time.monotonic()
        with pytest.raises(BufferExhaustedException, match="within the configured max blocking time 50 ms") as told:
            producer.send("t", bytes(1000))
        assert time.monotonic() - start < 10
        assert isinstance(told.value, TimeoutError)
        slow.set()
        assert producer.flush(10_000)
        assert producer.send("t", bytes(1000)).result(10).offset == 2


def test_a_record_larger_than_the_buffer(store: Store) -> None:
    with store.producer(buffer_bytes=3000) as producer:
        with pytest.raises(RecordTooLargeException, match=r"buffer\.memory"):
            producer.send("t", bytes(3000))
        producer.send("t", bytes(2900)).result(10)


def test_futures_keep_no_records(store: Store) -> None:
    with store.producer() as producer:
        future = producer.send("t", b"v" * 10_000)
        future.result(10)
        deadline = time.monotonic() + 10
        while future._batch.collected.rows and time.monotonic() < deadline:
            time.sleep(0.001)
        assert future._batch.collected.rows == 0


# --- futures -------------------------------------------------------------------------------------------


def test_futures_are_futures(store: Store, slow: threading.Event) -> None:
    with store.producer(linger_ms=0) as producer:
        futures = [producer.send("t", b"%d" % number) for number in range(10)]
        first = futures[0]
        assert isinstance(first, concurrent.futures.Future)
        assert (first.done(), first.running(), first.cancelled(), first.cancel()) == (False, True, False, False)
        assert "on its way" in repr(first)
        for ask in (first.result, first.exception):
            with pytest.raises(TimeoutError):
                ask(0.01)
        assert concurrent.futures.wait(futures, 0.01).done == set()
        called: list[RecordFuture] = []
        for future in futures:
            future.add_done_callback(called.append)  # type: ignore[arg-type]
        threading.Timer(0.05, slow.set).start()
        assert concurrent.futures.wait(futures, 10).not_done == set()
        producer.flush()
        assert called == futures
        assert set(concurrent.futures.as_completed(futures, 10)) == set(futures)
        first.add_done_callback(called.append)  # type: ignore[arg-type]
        assert called[-1] is first
        assert (first.done(), first.running(), first.cancel(), first.exception()) == (True, False, False, None)
        for wrong in (lambda: first.set_result(None), lambda: first.set_exception(None)):  # type: ignore[arg-type]
            with pytest.raises(concurrent.futures.InvalidStateError):
                wrong()
        with pytest.raises(TypeError):
            pickle.dumps(first)


def test_waiting_in_other_ways(store: Store, slow: threading.Event) -> None:
    store.create_topic("small", config={"max.message.bytes": "100"})
    with store.producer(linger_ms=0) as producer:
        good = [producer.send("t", b"v") for _ in range(5)]
        bad = producer.send("small", bytes(200))
        threading.Timer(0.05, slow.set).start()
        done = concurrent.futures.wait([*good, bad], 10, return_when=concurrent.futures.FIRST_EXCEPTION)
        assert bad in done.done
        found = concurrent.futures.wait(good, 10, return_when=concurrent.futures.FIRST_COMPLETED)
        assert found.done
        assert len(list(concurrent.futures.as_completed([*good, bad], 10))) == 6


def test_asyncio(store: Store) -> None:
    async def work(producer: kafkalog.Producer) -> list[Any]:
        futures = [asyncio.wrap_future(producer.send("four", b"%d" % number, partition=1)) for number in range(100)]
        missing = asyncio.wrap_future(producer.send("compacted", b"v"))
        cancelled = asyncio.wrap_future(producer.send("t", b"v"))
        cancelled.cancel()
        return await asyncio.gather(*futures, missing, return_exceptions=True)

    store.create_topic("compacted", config={"cleanup.policy": "compact"})
    with store.producer() as producer:
        *found, missing = asyncio.run(work(producer))
    assert found == [("four", 1, number) for number in range(100)]
    assert isinstance(missing, RecordValidationException)
    assert values(store, "t") == [b"v"]  # a record that was given goes its way


def test_callbacks(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []
    over = threading.Event()
    with store.producer(linger_ms=0) as producer:

        def again(future: Any) -> None:
            following = producer.send("t", b"again")
            for wait in (producer.flush, following.result, following.exception):
                try:
                    wait()
                except IllegalStateException as error:
                    told.append(error)
            following.add_done_callback(lambda future: over.set())

        def fails(future: Any) -> None:
            raise ValueError("raised by a callback")

        def leaves(future: Any) -> None:
            raise SystemExit

        future = producer.send("t", b"v")
        with caplog.at_level(logging.CRITICAL):
            future.add_done_callback(fails)
            future.add_done_callback(again)
            assert over.wait(10)
            producer.send("t", b"v").add_done_callback(leaves)
        assert producer.send("t", b"and on").result(10).offset == 3
    assert len(told) == 3


def test_a_callback_without_room_is_told(store: Store) -> None:
    told: list[BaseException] = []
    with store.producer(linger_ms=0, buffer_bytes=2000) as producer:

        def many(future: Any) -> None:
            try:
                for _ in range(5):
                    producer.send("t", bytes(900))
            except IllegalStateException as error:
                told.append(error)

        producer.send("t", b"v").add_done_callback(many)
        assert producer.flush(10_000)
    assert len(told) == 1


def test_a_callback_may_close(store: Store) -> None:
    with store.producer(linger_ms=0) as producer:
        first = producer.send("t", b"v")
        rest = [producer.send("four", b"v") for _ in range(10)]
        first.add_done_callback(lambda future: producer.close())
        assert [each.result(10).topic for each in rest] == ["four"] * 10
    assert producer.closed


def test_a_callback_must_not_close_the_store(store: Store) -> None:
    """It would wait for the sender, which waits for the callback; and the sender's records must still be sent."""
    told: list[BaseException | None] = []

    def closes(future: Any) -> None:
        try:
            store.close()
        except IllegalStateException as error:
            told.append(error)

    other = store.producer(linger_ms=600_000)
    with store.producer(linger_ms=600_000) as producer:
        futures = [producer.send("four", b"%d" % number, partition=number % 4) for number in range(20)]
        futures[0].add_done_callback(closes)
        assert producer.flush(10_000)
        [error] = told
        assert isinstance(error, IllegalStateException)
        assert "a close of the store" in str(error)
        assert error.hint
        assert not store.closed
        assert not other.closed  # nothing of it was begun
        assert not producer.closed
        assert sorted(each.result(0).offset for each in futures) == sorted([0, 1, 2, 3, 4] * 4)
    store.close()


# --- flush and close -----------------------------------------------------------------------------------


def test_flush(store: Store, slow: threading.Event) -> None:
    with store.producer(linger_ms=600_000) as producer:
        assert producer.flush()
        future = producer.send("t", b"v")
        assert not producer.flush(20)
        assert not producer.flush(0)
        slow.set()
        assert producer.flush(10_000)
        assert future.done()
    assert producer.flush()


def test_close(store: Store) -> None:
    producer = store.producer(linger_ms=600_000)
    futures = [producer.send("t", b"%d" % number) for number in range(1000)]
    assert not producer.closed
    assert "open" in repr(producer)
    producer.close()
    assert producer.closed
    assert "closed" in repr(producer)
    assert [each.result(0).offset for each in futures] == list(range(1000))
    producer.close()
    with pytest.raises(IllegalStateException, match="closed"):
        producer.send("t", b"v")
    assert not producer._it.thread.is_alive()
    assert not store._home.producers


def test_a_close_just_behind_the_senders_look(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lingering records are sent all the same, and the close is not forgotten."""
    take = RecordAccumulator._take

    def closed_then(self: RecordAccumulator, **how: bool) -> float:
        left_s = take(self, **how)
        if any(self._waiting.values()) and not self.closing:
            self.closing = True
            self._wake.put(None)
        return left_s

    monkeypatch.setattr(RecordAccumulator, "_take", closed_then)
    producer = store.producer(linger_ms=600_000)
    future = producer.send("t", b"v")
    producer._it.thread.join(10)
    assert not producer._it.thread.is_alive()
    assert future.result(0).offset == 0
    assert values(store, "t") == [b"v"]


def test_a_store_closes_its_producers(tmp_path: Path) -> None:
    store = kafkalog.open(tmp_path, maintenance=False)
    store.create_topic("t")
    producers = [store.producer(linger_ms=600_000) for _ in range(3)]
    futures = [producer.send("t", b"v") for producer in producers for _ in range(10)]
    store.close()
    assert sorted(each.result(0).offset for each in futures) == list(range(30))
    for producer in producers:
        with pytest.raises(IllegalStateException, match="closed"):
            producer.send("t", b"v")
        assert producer.flush()
        producer.close()
    with pytest.raises(IllegalStateException):
        store.producer()


def test_a_store_closes_beside_senders(tmp_path: Path) -> None:
    for turn in range(5):
        store = kafkalog.open(tmp_path / str(turn), maintenance=False)
        store.create_topic("t", 2)
        producer = store.producer(linger_ms=turn, buffer_bytes=50_000)
        futures: list[list[RecordFuture]] = [[] for _ in range(4)]

        def send(mine: list[RecordFuture], producer: kafkalog.Producer = producer) -> None:
            try:
                while True:
                    mine.append(producer.send("t", b"%d" % len(mine), key=b"%d" % random.randrange(9)))
            except IllegalStateException:
                pass

        threads = [threading.Thread(target=send, args=(mine,)) for mine in futures]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        store.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        found = {each.result(0) for mine in futures for each in mine}
        assert len(found) == sum(map(len, futures)) > 0
        with kafkalog.open(tmp_path / str(turn), maintenance=False) as again:
            assert len(values(again, "t", 0)) + len(values(again, "t", 1)) == len(found)


@pytest.mark.parametrize("reference", ["plain", "cycle"])
def test_dropped_without_close(store: Store, reference: str) -> None:
    producer: Any = store.producer(linger_ms=600_000)
    future = producer.send("t", b"v")
    thread = producer._it.thread
    if reference == "cycle":
        producer.itself = producer
    with pytest.warns(ResourceWarning, match="^<Producer of .*, open.*> was dropped without being closed"):  # noqa: PT031
        del producer
        gc.collect()
    assert future.result(10).offset == 0
    thread.join(10)
    assert not thread.is_alive()


def test_what_a_sender_dies_of_is_told(store: Store, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def fails(self: Any, batches: Any) -> None:
        raise SystemError("raised by the sender")

    monkeypatch.setattr(RecordAccumulator, "_send", fails)
    with caplog.at_level(logging.CRITICAL), store.producer() as producer:
        future = producer.send("t", b"v")
        with pytest.raises(IllegalStateException, match="closed") as told:
            future.result(10)
        assert isinstance(told.value.__cause__, SystemError)
        with pytest.raises(IllegalStateException):
            producer.send("t", b"v")
        assert producer.flush(10_000)


def test_what_an_append_dies_of_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> range:
        raise MemoryError

    with store.producer() as producer:
        with monkeypatch.context() as patched:
            patched.setattr("kafkalog.producer._Appender.append", fails)
            future = producer.send("t", b"v")
            with pytest.raises(MemoryError):
                future.result(10)
        assert producer.send("t", b"v").result(10).offset == 0


def test_a_thread_that_cannot_start(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        with pytest.raises(RuntimeError):
            store.producer()
    assert not store._home.producers
    with store.producer() as producer:
        producer.send("t", b"v").result(10)


def test_long_and_short(store: Store) -> None:
    """Records of all sizes, in a buffer that is often full, of which some are refused."""
    rng = random.Random(7)
    store.create_topic("mixed", 3, config={"max.message.bytes": "20000", "segment.bytes": "1048576"})
    sent: list[tuple[RecordFuture, bytes]] = []
    with store.producer(buffer_bytes=200_000, batch_bytes=3000, linger_ms=1) as producer:
        for number in range(3000):
            value = b"%d " % number + rng.randbytes(rng.choice((0, 10, 500, 5000, 30_000)))
            key = rng.choice((None, b"k%d" % rng.randrange(5)))
            sent.append((producer.send("mixed", value, key=key), value))
    by_place = {}
    for future, value in sent:
        if len(value) > 20_000:
            assert isinstance(future.exception(0), RecordTooLargeException)
        else:
            by_place[future.result(0)] = value
    assert len(by_place) == sum(len(value) <= 20_000 for _, value in sent)
    for partition in range(3):
        for record in records(store, "mixed", partition):
            assert by_place.pop(("mixed", partition, record.offset)) == record.value
    assert not by_place


def test_the_defaults_are_kafkas() -> None:
    module: Any = batching_module
    assert (module.LINGER_MS, module.BATCH_BYTES, module.BUFFER_BYTES, module.MAX_BLOCK_MS) == (
        5, 16384, 33554432, 60000,
    )  # fmt: skip
