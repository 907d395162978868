"""kill -9 of `kafkalog serve` under clients: what was acknowledged is there, once and in order, and groups go on.

The server is killed and started again on the same port and directory, at random moments, while librdkafka produces with
idempotence, in transactions, and consumes in a group. KAFKALOG_KILLS is the number of kills in each test.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.kraft import free_ports
from tests.sampling import LONG, SEED

pytestmark = pytest.mark.broker
KILLS = int(os.environ.get("KAFKALOG_KILLS", "100" if LONG else "3"))
SECONDS_MAX = 60
PARTITIONS = 3


class Killed:
    """A server that is killed and started again on one port."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.port = free_ports(1)[0]
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [
            sys.executable, "-m", "kafkalog", "serve", str(self.place / "store"), "--listen", self.bootstrap,
            "-X", "group.initial.rebalance.delay.ms=0", "-X", f"num.partitions={PARTITIONS}",
        ]  # fmt: skip
        with (self.place / "server.log").open("ab") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), (self.place / "server.log").read_text()[-3000:]

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(SECONDS_MAX)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(SECONDS_MAX)

    def complaints(self) -> list[str]:
        """Its log lines at ERROR, and Python's tracebacks."""
        lines = (self.place / "server.log").read_text().splitlines()
        return [each for each in lines if "ERROR" in each or "Traceback" in each]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Killed]:
    found = Killed(tmp_path)
    found.start()
    yield found
    if found.process is not None and found.process.poll() is None:
        assert found.stop() == 0
    assert found.complaints() == []


def kill_often(server: Killed, count: int, done: threading.Event, draw: random.Random) -> None:
    for _ in range(count):
        time.sleep(draw.uniform(0.05, 1.0))
        server.kill()
        time.sleep(draw.uniform(0, 0.3))
        server.start()
    done.set()


def killing(server: Killed, count: int, draw: random.Random) -> tuple[threading.Thread, threading.Event]:
    done = threading.Event()
    thread = threading.Thread(target=kill_often, args=(server, count, done, draw))
    thread.start()
    return thread, done


def settings(server: Killed, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": server.bootstrap, "log_level": 2, "reconnect.backoff.max.ms": 200,
        "retry.backoff.max.ms": 200, **{key.replace("_", "."): value for key, value in more.items()},
    }  # fmt: skip


def all_values(server: Killed, topic: str, level: str = "read_committed") -> dict[int, list[bytes]]:
    """The values of each partition, in the order of offsets."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(settings(server, group_id="reader", isolation_level=level, enable_partition_eof=True))
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    ended: set[int] = set()
    until = time.monotonic() + SECONDS_MAX
    while len(ended) < PARTITIONS:
        assert time.monotonic() < until, f"partitions without an end: {ended}"
        for message in consumer.consume(1000, 0.2):
            if message.error() is None:
                found[message.partition()].append(message.value())
            elif message.error().name() == "_PARTITION_EOF":
                ended.add(message.partition())
    consumer.close()
    return found


def test_idempotent_producers_lose_and_double_nothing(server: Killed) -> None:
    from confluent_kafka import Producer

    draw = random.Random(SEED)
    producer = Producer(settings(server, enable_idempotence=True, linger_ms=1, message_timeout_ms=120_000))
    acked: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    failed: list[str] = []

    def told(error: Any, message: Any) -> None:
        if error is None:
            acked[message.partition()].append(message.value())
        else:
            failed.append(str(error))

    thread, done = killing(server, KILLS, draw)
    number = 0
    while not done.is_set():
        for _ in range(200):
            try:
                producer.produce("ledger", b"%d" % number, partition=number % PARTITIONS, on_delivery=told)
                number += 1
            except BufferError:
                producer.poll(0.05)
        producer.poll(0.01)
    thread.join()
    assert producer.flush(SECONDS_MAX) == 0
    found = all_values(server, "ledger")
    assert failed == []
    assert sum(map(len, acked.values())) == number
    for partition, values in found.items():
        assert values == acked[partition], f"partition {partition}"


def test_transactions_are_whole(server: Killed) -> None:
    from confluent_kafka import KafkaException, Producer

    draw = random.Random(SEED + 1)
    committed: set[int] = set()
    unsure: set[int] = set()
    thread, done = killing(server, KILLS, draw)
    number = 0
    producer: Producer | None = None
    while not done.is_set():
        try:
            if producer is None:
                producer = Producer(settings(server, transactional_id="books", transaction_timeout_ms=20_000))
                producer.init_transactions(SECONDS_MAX)
            producer.begin_transaction()
            for part in range(6):
                producer.produce("ledger", b"%d-%d" % (number, part), partition=part % PARTITIONS)
            unsure.add(number)
            if number % 4 == 3:
                producer.abort_transaction(SECONDS_MAX)
                unsure.discard(number)
            else:
                producer.commit_transaction(SECONDS_MAX)
                unsure.discard(number)
                committed.add(number)
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                try:
                    assert producer is not None
                    producer.abort_transaction(SECONDS_MAX)
                    unsure.discard(number)
                except KafkaException:
                    producer = None
            else:
                producer = None
        number += 1
    thread.join()
    if producer is not None:
        producer.flush(SECONDS_MAX)
    del producer
    last = Producer(settings(server, transactional_id="books"))
    last.init_transactions(SECONDS_MAX)  # ends what the killed server left open
    counts = Counter(int(value.split(b"-")[0]) for values in all_values(server, "ledger").values() for value in values)
    assert committed, "no transaction was committed"
    assert {each for each, count in counts.items() if count != 6} == set(), counts
    assert committed <= set(counts), committed - set(counts)
    assert set(counts) <= committed | unsure, set(counts) - committed - unsure


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_go_on_where_they_committed(server: Killed, protocol: str) -> None:
    from confluent_kafka import Consumer, KafkaException, Producer

    draw = random.Random(SEED + 2)
    producer = Producer(settings(server, enable_idempotence=True, message_timeout_ms=120_000))
    for number in range(3000):
        producer.produce("work", b"%d" % number, partition=number % PARTITIONS)
    assert producer.flush(SECONDS_MAX) == 0
    more = {"session_timeout_ms": 6000} if protocol == "classic" else {}
    consumer = Consumer(
        settings(
            server, group_id="workers", group_protocol=protocol, auto_offset_reset="earliest", enable_auto_commit=False,
            **more,
        )
    )  # fmt: skip
    consumer.subscribe(["work"])
    thread, done = killing(server, KILLS, draw)
    seen: Counter[bytes] = Counter()
    pending: list[bytes] = []
    highest: dict[int, int] = {}
    until = time.monotonic() + SECONDS_MAX * 3
    while len(seen) < 3000 or not done.is_set():
        assert time.monotonic() < until, f"{len(seen)} of 3000 seen"
        for message in consumer.consume(50, 0.2):
            if message.error() is None:
                pending.append(message.value())
                highest[message.partition()] = message.offset()
        if pending:
            try:
                consumer.commit(asynchronous=False)
                seen.update(pending)
                pending.clear()
            except KafkaException:
                continue
    thread.join()
    consumer.close()
    committed = Consumer(settings(server, group_id="workers"))
    from confluent_kafka import TopicPartition

    places = [TopicPartition("work", number) for number in range(PARTITIONS)]
    assert [each.offset for each in committed.committed(places, SECONDS_MAX)] == [1000] * PARTITIONS
    committed.close()
