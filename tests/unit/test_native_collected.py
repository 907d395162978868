"""Records that a producer copies as they are sent: the log has the same bytes as for a list of the same records."""

from __future__ import annotations

import gc
import os
import queue
import random
import sys
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kafkalog
from kafkalog._face.record_future import RecordFuture
from kafkalog._native.codec.collected import Collected
from kafkalog._native.codec.encode import ColumnEncoder
from kafkalog._native.state.batching import Answered, Intake, Numbered
from kafkalog.engine.files import ManualClock
from kafkalog.errors import RecordTooLargeException
from kafkalog.producer import Producer, RecordAccumulator
from kafkalog.store import Store

NOW_MS = 1_700_000_000_000
CHUNK_BYTES = 64 << 10  # the largest of collected.pyx


def rows(seed: int, count: int) -> list[tuple[Any, ...]]:
    rng = random.Random(seed)
    sizes = (0, 1, 63, 64, 200, 8191, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1)

    def some(most: int) -> bytes | None:
        return None if rng.random() < 0.1 else rng.randbytes(rng.choice(sizes[:most]))

    def headers() -> tuple[tuple[str, bytes | None], ...]:
        names = ("", "trace", "größe", "日本")
        return tuple((rng.choice(names), some(5)) for _ in range(rng.choice((0, 0, 0, 1, 3))))

    return [
        (some(len(sizes)), some(5), headers(), rng.choice((None, -1, 0, NOW_MS + rng.randrange(1000))))
        for _ in range(count)
    ]


def log_bytes(store: Store, topic: str) -> bytes:
    log = store.manager.get_log(f"{topic}-0")
    assert log is not None
    return b"".join(Path(segment.log.path).read_bytes() for segment in log.log_segments())


@pytest.mark.parametrize("codec", ["producer", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("count", [1, 4, 5, 63, 64, 65, 400])
def test_as_a_list(tmp_path: Path, codec: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkalog.producer.GROWN_BYTES", 1 << 30)  # one batch, as far as the topic lets it
    config = {"compression.type": codec, "message.timestamp.type": "CreateTime"}
    given = rows(count, count)
    with kafkalog.open(tmp_path, maintenance=False, clock=ManualClock(NOW_MS)) as store:
        for topic in ("sent", "listed"):
            store.create_topic(topic, config=config)
        with store.producer(linger_ms=60_000, batch_bytes=1 << 30, buffer_bytes=1 << 30) as producer:
            futures = [
                producer.send("sent", value, key=key, headers=headers, timestamp=timestamp)
                for value, key, headers, timestamp in given
            ]
        store.topic("listed").append_many(given)
        assert [future.result().offset for future in futures] == list(range(count))
        assert log_bytes(store, "sent") == log_bytes(store, "listed")


def test_what_was_given_may_change(tmp_path: Path) -> None:
    value, key = bytearray(b"value"), bytearray(b"key")
    with kafkalog.open(tmp_path, maintenance=False) as store:
        store.create_topic("t")
        with store.producer(linger_ms=60_000) as producer:
            producer.send("t", value, key=key)  # type: ignore[arg-type]
            value[:], key[:] = b"other", b"xxx"
        with store.reader(topics=["t"]) as reader:
            assert [(record.value, record.key) for record in reader] == [(b"value", b"key")]


def test_refused_among_others(tmp_path: Path) -> None:
    """Their batch is divided, headers and all, until they are alone."""
    with kafkalog.open(tmp_path, maintenance=False) as store:
        store.create_topic("t", config={"max.message.bytes": "2000"})
        with store.producer(linger_ms=60_000, batch_bytes=1 << 30) as producer:
            futures = [
                producer.send("t", bytes(5000 if number % 7 == 3 else number), headers=[("n", b"%d" % number)] * 2)
                for number in range(100)
            ]
        refused = {number for number, future in enumerate(futures) if future.exception() is not None}
        assert refused == set(range(3, 100, 7))
        assert all(isinstance(futures[number].exception(), RecordTooLargeException) for number in refused)
        with store.reader(topics=["t"]) as reader:
            found = [record.headers for record in reader]
        assert found == [(("n", b"%d" % number),) * 2 for number in range(100) if number not in refused]


def test_made_by_hand() -> None:
    """An object that only its creator completes raises an error, and does not crash."""
    future = RecordFuture.__new__(RecordFuture)
    producer = Producer.__new__(Producer)
    for broken in (
        lambda: future.result(0),
        lambda: Numbered().result(),
        lambda: producer.send("t", b"x"),
        lambda: RecordAccumulator.__new__(RecordAccumulator).put(("t", 0), (b"x", None, (), 0), 1),
        lambda: Intake().put(("t", 0), (b"x", None, (), 0), 1),
        lambda: Intake().put(("t", 0), None, 1),  # type: ignore[arg-type]
        lambda: ColumnEncoder.from_collected(None),  # type: ignore[arg-type]
    ):
        with pytest.raises((AttributeError, TypeError)):
            broken()
    for start, stop in ((-1, 0), (0, 1), (1, 0)):
        with pytest.raises(IndexError):
            ColumnEncoder.from_collected(Collected(), start, stop)
    assert ColumnEncoder.from_collected(Collected()).rows == 0


def test_only_tuples_of_three() -> None:
    class Unready(Answered):
        def __init__(self, *given: object) -> None:
            self.collected = Collected()

    class Late(Numbered):
        pass

    def intake(kind: Any) -> Intake:
        live = SimpleNamespace(live=True)
        home = SimpleNamespace(
            life=live,
            catalog=SimpleNamespace(changes=0),
            manager=SimpleNamespace(directories=SimpleNamespace(live={})),
            clock=ManualClock(0),
        )
        made = Intake()
        sizes = dict.fromkeys(("buffer_bytes", "grown_bytes", "batch_bytes", "record_overhead"), 1000)
        made.set_up(home, kind, Late, queue.SimpleQueue(), **sizes)
        return made

    for kind in (time.struct_time, os.stat_result, int, None):
        with pytest.raises(TypeError):
            Answered(("t", 0), kind)  # type: ignore[arg-type]
    batches: list[Unready] = []
    future = intake(lambda *given: batches.append(Unready()) or batches[-1]).put(("t", 0), (b"x", None, (), 0), 22)
    batches[0].outcomes = [7]
    with pytest.raises(TypeError, match="not initialized completely"):
        future.result()
    batches[0].outcomes = []
    with pytest.raises(IndexError):
        future.result()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_little_in_each_of_many_partitions(tmp_path: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    with kafkalog.open(tmp_path, maintenance=False) as store:
        store.create_topic("t", partitions=2000)
        with store.producer(linger_ms=60_000) as producer:
            producer.send("t", b"a", partition=0)
            before = resident()
            for number in range(2000):
                producer.send("t", b"a", partition=number)
            assert resident() - before < 24 << 20  # a whole chunk for each would be 125 MiB


def test_a_callback_holds_no_records(tmp_path: Path) -> None:
    held: list[int] = []
    with kafkalog.open(tmp_path, maintenance=False) as store:
        store.create_topic("t")
        with store.producer(linger_ms=60_000) as producer:
            future = producer.send("t", bytes(1000))
            future.add_done_callback(lambda it: held.append(it._batch.collected.rows))  # type: ignore[attr-defined]
    assert held == [0]


def test_a_cycle_through_an_attribute(tmp_path: Path) -> None:
    class Job:
        future: RecordFuture

    jobs: weakref.WeakSet[Job] = weakref.WeakSet()
    with kafkalog.open(tmp_path, maintenance=False) as store:
        store.create_topic("t")
        with store.producer() as producer:
            for _ in range(100):
                job = Job()
                jobs.add(job)
                job.future = producer.send("t", b"x")
                job.future.job = job  # type: ignore[attr-defined]
        del job
    gc.collect()
    assert not jobs


def test_rows_that_none_makes(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path, maintenance=False) as store:
        store.create_topic("t")
        with store.producer(linger_ms=60_000) as producer:
            place = store.topic("t").present().places[0]
            for row in ((bytearray(b"x"), None, (), 0), (b"x", 1, (), 0), (b"x", None, ((1, b""),), 0),
                        (b"x", None, (("n",),), 0), (b"x", None, (("n", "text"),), 0), (b"x", None, (["n", b""],), 0),
                        (b"x", None, [], 0), (b"x", None, (), "now"), (b"x",)):  # fmt: skip
                with pytest.raises((TypeError, ValueError)):
                    producer._it.put(place, row, 10)
            producer.send("t", b"whole", headers=[("n", b"1")])
        with store.reader(topics=["t"]) as reader:
            assert [(record.value, record.headers) for record in reader] == [(b"whole", (("n", b"1"),))]
