"""Members of a group in a living process: threads that come and go, Ctrl-C, closes, kill -9, clients of a server.

The oracle: a partition has one reader at a time, from `on_assign` to the end of `on_revoke` (or to the reader's close).
Every record is processed. None is processed twice, because each is committed before its partition goes.
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
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog import GroupReader, Store
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalStateException
from tests.live.crew import HANG_SECONDS, SECONDS

GROUP = "billing"
PARTITIONS = 6


class Owners:
    """Who has each partition. A second owner is a failure."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_partition: dict[TopicPartition, GroupReader] = {}
        self.failures: list[str] = []
        self.processed: Counter[tuple[int, int]] = Counter()

    def assign(self, reader: GroupReader, partitions: list[TopicPartition]) -> None:
        with self.lock:
            for each in partitions:
                before = self.by_partition.get(each)
                if before is not None and before is not reader:
                    self.failures.append(f"{each} is given to {reader} while {before} has it")
                self.by_partition[each] = reader

    def revoke(self, reader: GroupReader, partitions: list[TopicPartition]) -> None:
        reader.commit()
        with self.lock:
            for each in partitions:
                if self.by_partition.get(each) is reader:
                    del self.by_partition[each]

    def leave(self, reader: GroupReader) -> None:
        with self.lock:
            for each in [each for each, owner in self.by_partition.items() if owner is reader]:
                del self.by_partition[each]

    def process(self, records: list[Any]) -> None:
        with self.lock:
            self.processed.update((each.partition, each.offset) for each in records)

    def join(self, store: Store) -> GroupReader:
        reader = store.reader(GROUP, topics=["orders"], group=True, on_assign=self.assign, on_revoke=self.revoke)
        assert isinstance(reader, GroupReader)
        return reader


class Worker(threading.Thread):
    """Joins, works for a while, leaves, and begins again."""

    def __init__(self, store: Store, owners: Owners, seed: int, over: threading.Event) -> None:
        super().__init__()
        self.store = store
        self.owners = owners
        self.random = random.Random(seed)
        self.over = over
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.over.is_set():
                self.work()
        except BaseException as error:
            self.failure = error

    def work(self) -> None:
        with self.owners.join(self.store) as reader:
            for _ in range(self.random.randrange(5, 60)):
                records = reader.poll(self.random.randrange(1, 40), timeout_ms=5)
                self.owners.process(records)
                reader.commit()
                if self.over.is_set():
                    break
            self.owners.leave(reader)


def test_threads_that_come_and_go(tmp_path: Path) -> None:
    owners, over = Owners(), threading.Event()
    with kafkalog.open(tmp_path / "data") as store:
        orders = store.create_topic("orders", partitions=PARTITIONS)
        workers = [Worker(store, owners, seed, over) for seed in range(5)]
        for each in workers:
            each.start()
        until = time.monotonic() + SECONDS
        count = 0
        while time.monotonic() < until:
            orders.append_many([(b"v", b"key %d" % each) for each in range(count, count + 10)])
            count += 10
            time.sleep(0.002)
        over.set()
        for each in workers:
            each.join(HANG_SECONDS)
            assert not each.is_alive()
            assert each.failure is None, each.failure
        with owners.join(store) as last:
            while records := last.poll(1000, timeout_ms=200):
                owners.process(records)
                last.commit()
        assert owners.failures == []
        assert len(owners.processed) == count
        assert max(owners.processed.values()) == 1


def quiet() -> None:
    """Ends the interrupts."""
    while True:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
            return
        except KeyboardInterrupt:
            pass


def test_ctrl_c(tmp_path: Path) -> None:
    """Interrupts at any moment: the group goes on, and no record is lost. Some come again: a commit may be cut off."""
    owners = Owners()
    interrupts = 0
    rng = random.Random(1)

    def ring(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with kafkalog.open(tmp_path / "data") as store:
            orders = store.create_topic("orders", partitions=PARTITIONS)
            orders.append_many([(b"v", b"key %d" % each) for each in range(2_000)])
            store.reader(GROUP, topics=["orders"], group=True).close()  # imports
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                readers: list[GroupReader] = []
                try:
                    # Again and again: Python drops an interrupt that comes in a callback of a weak reference.
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0005, 0.04), 0.05)
                    for _ in range(2):
                        readers.append(store.reader(GROUP, topics=["orders"], group=True))  # type: ignore[arg-type]
                    while True:
                        for each in readers:
                            records = each.poll(20, timeout_ms=1)
                            owners.process(records)
                            each.commit()
                except KeyboardInterrupt:
                    interrupts += 1
                quiet()
                for each in readers:
                    each.close()
                del readers
            assert interrupts > 5
            with store.reader(GROUP, topics=["orders"], group=True) as reader:
                until = time.monotonic() + HANG_SECONDS
                while len(reader.assignment) < PARTITIONS and time.monotonic() < until:
                    owners.process(reader.poll(timeout_ms=20))  # lost readers leave with their next heartbeat
                assert len(reader.assignment) == PARTITIONS
                while records := reader.poll(timeout_ms=100):
                    owners.process(records)
            assert len(owners.processed) == 2_000
    finally:
        quiet()
        signal.signal(signal.SIGALRM, before)
    with kafkalog.open(tmp_path / "data") as store, store.reader(GROUP, topics=["orders"], group=True) as reader:
        assert len(reader.assignment) == PARTITIONS


def test_a_close_ends_the_wait_of_another_thread(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "data") as store:
        store.create_topic("orders", partitions=2)
        reader = store.reader(GROUP, topics=["orders"], group=True)
        found: list[BaseException] = []

        def wait() -> None:
            try:
                reader.poll(timeout_ms=None)
            except IllegalStateException as error:
                found.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        with store.reader(GROUP, topics=["orders"], group=True) as other:
            until = time.monotonic() + HANG_SECONDS
            while len(other.assignment) < 1 and time.monotonic() < until:  # the waiting thread gives one up
                other.poll(timeout_ms=10)
            assert len(other.assignment) == 1
            reader.close()
            thread.join(HANG_SECONDS)
            assert not thread.is_alive()
            assert found
            while len(other.assignment) < 2 and time.monotonic() < until:
                other.poll(timeout_ms=10)
            assert len(other.assignment) == 2


def test_a_store_that_closes_lets_its_members_leave(tmp_path: Path) -> None:
    store = kafkalog.open(tmp_path / "data")
    store.create_topic("orders", partitions=2)
    reader = store.reader(GROUP, topics=["orders"], group=True)
    store.close()
    assert reader.closed
    reader.close()
    with kafkalog.open(tmp_path / "data") as again:
        assert [each.state for each in again.cursors()] == ["Empty"]


CHILD = """
import sys, kafkalog
with kafkalog.open(sys.argv[1]) as store:
    reader = store.reader("billing", topics=["orders"], group=True)
    records = reader.poll(3, timeout_ms=1000)
    reader.commit()
    print(len(records), flush=True)
    while True:
        reader.poll(timeout_ms=1000)
"""


def test_a_killed_process_is_followed_at_once(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "data") as store:
        store.create_topic("orders", partitions=1).append_many([b"%d" % each for each in range(5)])
    root = str(Path(kafkalog.__file__).parents[1])
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"3\n"
        child.kill()
        child.wait()
    with kafkalog.open(tmp_path / "data") as store, store.reader(GROUP, topics=["orders"], group=True) as reader:
        assert [each.value for each in reader.poll(timeout_ms=1000)] == [b"3", b"4"]


def test_beside_clients_of_the_server(tmp_path: Path) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    quick: dict[str, Any] = {
        "group_consumer_min_heartbeat_interval_ms": 50,
        "group_consumer_heartbeat_interval_ms": 50,
        "group_consumer_assignment_interval_ms": 0,
    }
    with kafkalog.open(tmp_path / "data") as store, store.serve("127.0.0.1:0", **quick) as server:
        orders = store.create_topic("orders", partitions=4)
        orders.append_many([(b"v", b"key %d" % each) for each in range(100)])
        client = confluent.Consumer(
            {
                "bootstrap.servers": server.bootstrap_servers,
                "group.id": GROUP,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        seen: Counter[tuple[int, int]] = Counter()
        with store.reader(GROUP, topics=["orders"], group=True) as reader:
            client.subscribe(["orders"])
            until = time.monotonic() + HANG_SECONDS
            while len(client.assignment()) != 2 and time.monotonic() < until:
                seen.update((each.partition, each.offset) for each in reader.poll(1, timeout_ms=20))
                message = client.poll(0.05)
                if message is not None and message.error() is None:
                    seen[(message.partition(), message.offset())] += 1
            assert len(client.assignment()) == len(reader.assignment) == 2
            while sum(seen.values()) < 100 and time.monotonic() < until:
                seen.update((each.partition, each.offset) for each in reader.poll(20, timeout_ms=20))
                message = client.poll(0.05)
                if message is not None and message.error() is None:
                    seen[(message.partition(), message.offset())] += 1
            assert len(seen) == 100
            assert max(seen.values()) == 1
            client.close()
            while len(reader.assignment) != 4 and time.monotonic() < until:
                reader.poll(timeout_ms=20)
            assert len(reader.assignment) == 4
