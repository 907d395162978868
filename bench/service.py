"""`python -m bench service`: a store in the process compared with a local broker and confluent-kafka.

Both sides run in one process on one disk: records of 200 bytes with keys of 8, four partitions. The broker is Apache
Kafka 4.4.0 on loopback (the one of the tests). Its clients are librdkafka with their defaults, except for `linger.ms` 5
(on both sides) and acks of all. Produce ends when every record's future, or delivery report, has arrived. Consume
starts from the earliest offset: a record at a time from `consume(500)` with the broker, from the iterator with
kafkalog. Latency is the time from the call of an append until a waiting reader in another thread has the record, one
record every few milliseconds.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kafkalog
from bench.kept import LOWER, RECORDS_PER_S, SECONDS, Results

RECORDS = 300_000
LATENCIES = 1_000
LATENCY_PAUSE_S = 0.003
PARTITIONS = 4
VALUE = b"v" * 192
TURNS = 3
WAIT_S = 60
SHARES = {"median": 0.5, "99th percentile": 0.99}
ROWS = {
    "produce": "produce, a future or delivery report for each record", "consume": "consume, one record at a time",
}  # fmt: skip
TOPIC = "orders"


def key(number: int) -> bytes:
    return b"%08d" % (number % 1000)


class Ours:
    """A store."""

    name = "kafkalog"

    def __init__(self, place: Path) -> None:
        self.store = kafkalog.open(place)
        self.turn = 0

    def topic(self) -> str:
        self.turn += 1
        self.store.create_topic(f"{TOPIC}-{self.turn}", PARTITIONS)
        return f"{TOPIC}-{self.turn}"

    def produce(self, topic: str, count: int) -> None:
        with self.store.producer(linger_ms=5) as producer:
            sent = [producer.send(topic, b"%08d" % number + VALUE, key=key(number)) for number in range(count)]
            producer.flush()
        assert all(future.result().offset >= 0 for future in sent)

    def consume(self, topic: str, count: int) -> None:
        with self.store.reader(topics=[topic]) as reader:
            found = sum(1 for record in reader if record.value is not None)
        assert found == count, (found, count)

    @contextlib.contextmanager
    def following(self, topic: str, got: Callable[[bytes], object]) -> Iterator[Callable[[bytes], object]]:
        ready, over = threading.Event(), threading.Event()

        def follow() -> None:
            with self.store.reader(topics=[topic], start="latest") as reader:
                ready.set()
                while not over.is_set():
                    for record in reader.follow(timeout_ms=200):
                        got(record.value)

        thread = threading.Thread(target=follow)
        thread.start()
        ready.wait()
        time.sleep(0.1)
        appends = self.store.topic(topic)
        try:
            yield lambda value: appends.append(value, partition=0)
        finally:
            over.set()
            thread.join()

    def close(self) -> None:
        self.store.close()


class Theirs:
    """A broker and librdkafka."""

    name = "Apache Kafka with confluent-kafka"

    def __init__(self, place: Path) -> None:
        from tests.broker import kraft

        place.mkdir(parents=True)
        heap = {"num.network.threads": "2", "num.io.threads": "4"}
        self.broker = kraft.Broker(place, settings=heap)
        self.broker.start()
        self.turn = 0

    def topic(self) -> str:
        from tests.broker import clients

        self.turn += 1
        clients.create_topics(self.broker.bootstrap, {f"{TOPIC}-{self.turn}": (PARTITIONS, {})})
        return f"{TOPIC}-{self.turn}"

    def produce(self, topic: str, count: int) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": self.broker.bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
        )
        reports = []
        for number in range(count):
            while True:
                try:
                    producer.produce(
                        topic,
                        b"%08d" % number + VALUE,
                        key(number),
                        on_delivery=lambda error, it: reports.append(error),
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            if not number % 1000:
                producer.poll(0)
        producer.flush(WAIT_S)
        assert len(reports) == count
        assert not any(reports)

    def consumer(self, topic: str, offset: int) -> Any:
        """Returns a consumer that is assigned all partitions from the start, so that joining a group is not
        measured."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "bench"})
        consumer.assign([TopicPartition(topic, number, offset) for number in range(PARTITIONS)])
        return consumer

    def consume(self, topic: str, count: int) -> None:
        from confluent_kafka import OFFSET_BEGINNING

        consumer = self.consumer(topic, OFFSET_BEGINNING)
        found = 0
        until = time.monotonic() + WAIT_S
        while found < count:
            found += sum(1 for message in consumer.consume(500, 1.0) if message.value() is not None)
            assert time.monotonic() < until, found
        consumer.close()

    @contextlib.contextmanager
    def following(self, topic: str, got: Callable[[bytes], object]) -> Iterator[Callable[[bytes], object]]:
        from confluent_kafka import OFFSET_END, Producer

        over = threading.Event()
        consumer = self.consumer(topic, OFFSET_END)
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 0})

        def follow() -> None:
            while not over.is_set():
                message = consumer.poll(0.2)
                if message is not None and message.error() is None:
                    got(message.value())
            consumer.close()

        thread = threading.Thread(target=follow)
        thread.start()
        time.sleep(1)

        def send(value: bytes) -> None:
            producer.produce(topic, value, partition=0)
            producer.poll(0)

        try:
            yield send
        finally:
            producer.flush(WAIT_S)
            over.set()
            thread.join()

    def close(self) -> None:
        self.broker.stop()


def latencies(side: Any) -> list[float]:
    """Returns the sorted seconds from an append to the reader."""
    topic = side.topic()
    seen: list[float] = []
    done = threading.Event()

    def got(value: bytes) -> None:
        seen.append(time.perf_counter() - float(value))
        if len(seen) >= LATENCIES:
            done.set()

    with side.following(topic, got) as send:
        for _ in range(LATENCIES):
            send(repr(time.perf_counter()).encode())
            time.sleep(LATENCY_PAUSE_S)
        assert done.wait(WAIT_S), f"{len(seen)} of {LATENCIES}"
    return sorted(seen)


def timed(what: Callable[[], object]) -> float:
    begin = time.perf_counter()
    what()
    return time.perf_counter() - begin


def main(results: Results, turns: int = TURNS) -> None:
    """Runs the comparison and prints a table."""
    rates: dict[tuple[str, str], list[float]] = {}
    waits: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="kafkalog-bench-") as place:
        sides = [Ours(Path(place) / "ours"), Theirs(Path(place) / "theirs")]
        try:
            for _ in range(turns):
                for side in sides:
                    topic = side.topic()
                    for what, do in (("produce", side.produce), ("consume", side.consume)):
                        rate = RECORDS / timed(lambda do=do, topic=topic: do(topic, RECORDS))  # type: ignore[misc]
                        rates.setdefault((what, side.name), []).append(rate)
                    found = latencies(side)
                    for name, share in SHARES.items():
                        waits.setdefault((name, side.name), []).append(found[int(LATENCIES * share)])
        finally:
            for side in sides:
                side.close()
        shutil.rmtree(place, ignore_errors=True)
    print("| | kafkalog | broker, confluent-kafka | ratio |")
    print("|---|---|---|---|")
    for what in ("produce", "consume"):
        ours, theirs = (statistics.median(rates[what, name]) for name in (Ours.name, Theirs.name))
        results.row(
            "service", ROWS[what], RECORDS_PER_S, {name: rates[what, name] for name in (Ours.name, Theirs.name)}
        )
        print(f"| {what}, k records/s | {ours / 1e3:,.0f} | {theirs / 1e3:,.0f} | {ours / theirs:.1f}x (aim 2) |")
    for name in SHARES:
        both = {side: waits[name, side] for side in (Ours.name, Theirs.name)}
        results.row("service", f"from an append to a waiting reader, {name}", SECONDS, both, better=LOWER)
        ours, theirs = (statistics.median(each) * 1e3 for each in both.values())
        print(f"| append to reader, {name}, ms | {ours:.3f} | {theirs:.2f} | {theirs / ours:.0f}x |")
