"""Batches that were built elsewhere, in a transaction of a store: signed, checked, all of them or none."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import kafkalog
from kafkalog._face.ready_batches import ReadyBatches
from kafkalog._native.codec.batches import header_at
from kafkalog.engine.format import codecs
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    RecordTooLargeException,
    RecordValidationException,
    UnknownTopicOrPartitionException,
)
from tests.reference.batches import legacy_batch

NOW_MS = time.time_ns() // 1_000_000  # otherwise markers, which have the current time, roll segments


def made(count: int, *, codec: str = "none", first: int = 0, key: bytes | None = b"k", **fields: int) -> bytes:
    builder = MemoryRecordsBuilder(codec=codecs.codec_id(codec), **fields)
    for number in range(first, first + count):
        builder.append(NOW_MS, key, b"value %d" % number, (("h", b"1"),))
    return builder.build()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("t", 2)
    return tmp_path


def values(place: Path, isolation: str = "read_committed") -> list[bytes | None]:
    with kafkalog.open(place, read_only=True) as store, store.reader(topics=["t"], isolation=isolation) as reader:
        return [record.value for record in reader]


@pytest.mark.parametrize("codec", list(codecs.NAMES))
def test_they_lie_in_the_log_as_they_were_packed(place: Path, codec: str) -> None:
    batches = [made(10, codec=codec, first=10 * number) for number in range(5)]
    with kafkalog.open(place) as store:
        for turn in range(2):
            with store.transaction("x") as txn:
                before = store.topic("t").append(b"plain", partition=1).offset
                assert txn.append_batches("t", b"".join(batches), 0) == range(51 * turn, 51 * turn + 50)
                assert txn.append_batches("t", memoryview(batches[0]), 1) == range(before + 1, before + 11)
    [segment] = (place / "t-0").glob("*.log")
    data, position = segment.read_bytes(), 0
    for batch in batches:
        head = header_at(data, position)
        assert data[position + 61 : position + head.size] == batch[61:]
        assert (head.count, head.is_transactional, head.codec) == (10, True, codecs.codec_id(codec))
        position += head.size
    assert len(values(place)) == 2 * (50 + 10 + 1)


def test_an_aborted_one_is_not_seen(place: Path) -> None:
    with kafkalog.open(place) as store:
        txn = store.transaction("x")
        txn.begin()
        txn.append_batches("t", made(3), 0)
        txn.abort()
    assert values(place) == []
    assert len(values(place, "read_uncommitted")) == 3


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"", IllegalArgumentException, "no batch"),
        (made(3)[:-1], CorruptRecordException, "it is cut short"),
        (made(3) + b"\0", CorruptRecordException, "found 1 whole batches, then an invalid one"),
        (made(3)[:-1] + b"\1", CorruptRecordException, "its checksum is wrong"),
        (made(3) + made(3)[:8] + bytes(4) + made(3)[12:], CorruptRecordException, "its size is impossible"),
        (made(3, producer_id=5, producer_epoch=1, base_sequence=0), IllegalArgumentException, "another producer"),
        (legacy_batch(0), IllegalArgumentException, "older format"),
    ],
)
def test_what_is_refused_before_anything_is_appended(
    place: Path, data: bytes, error: type[Exception], text: str
) -> None:
    with kafkalog.open(place) as store, store.transaction("x") as txn:
        txn.append_batches("t", made(3), 0)
        with pytest.raises(error, match=text):
            txn.append_batches("t", data, 0)
        txn.append_batches("t", made(3, first=3), 0)
    assert values(place) == [b"value %d" % number for number in range(6)]


def test_the_engine_judges_them(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("t", 2, config={"cleanup.policy": "compact", "max.message.bytes": "2000"})
        for data, error in ((made(1, key=None), RecordValidationException), (made(200), RecordTooLargeException)):
            with pytest.raises(error), store.transaction("x") as txn:
                txn.append_batches("t", made(1) + data, 0)
        with pytest.raises(UnknownTopicOrPartitionException), store.transaction("x") as txn:
            txn.append_batches("t", made(1), 2)
        with pytest.raises(UnknownTopicOrPartitionException), store.transaction("x") as txn:
            txn.append_batches("u", made(1), 0)
    assert values(tmp_path) == []


def test_others_append_beside_it(place: Path) -> None:
    over = threading.Event()
    with kafkalog.open(place) as store:
        topic = store.topic("t")

        def append() -> None:
            while not over.is_set():
                topic.append(b"other", partition=0)

        thread = threading.Thread(target=append)
        thread.start()
        try:
            for turn in range(5):
                with store.transaction("x") as txn:
                    for _ in range(10):
                        offsets = txn.append_batches("t", b"".join(made(7) for _ in range(5)), 0)
                        assert len(offsets) == 35, turn
        finally:
            over.set()
            thread.join()
    assert sum(value != b"other" for value in values(place)) == 5 * 10 * 35


def test_how_many_records() -> None:
    assert ReadyBatches(made(3) + made(4)).record_count == 7
