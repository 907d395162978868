"""Threads with transactions over the same partitions and the same group; some take over ids from each other.

Next to them one thread lists, times out and expires.  Every transaction ends one way in all partitions and in the
group's offset.  A commit that was acknowledged exists; another one exists whole or not at all.  A store that is opened
on the directory afterwards finds the same.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest

from kafkalog.engine.coordinator.transaction_metadata import TransactionVersion
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import (
    InvalidProducerEpochException,
    InvalidTxnStateException,
    OutOfOrderSequenceException,
    ProducerFencedException,
)
from tests.live.crew import SECONDS
from tests.live.oracle import FAST
from tests.unit.coordinator_logs import LogStore

PLACES = [TopicPartition(topic, number) for topic in "ab" for number in range(2)]
GROUP = "g"
FENCED = (
    ProducerFencedException,
    InvalidProducerEpochException,
    InvalidTxnStateException,
    OutOfOrderSequenceException,
)


class Worker(threading.Thread):
    """Runs whole transactions under one id, until it is told to stop."""

    def __init__(self, store: LogStore, name: str, number: int, over: threading.Event) -> None:
        super().__init__()
        self.store = store
        self.id = name
        self.number = number
        self.over = over
        self.committed: list[str] = []
        self.fenced = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            turn = 0
            while not self.over.is_set():
                turn += 1
                try:
                    self.turn(f"{self.number}/{turn}", commit=turn % 4 > 0)
                except FENCED:
                    self.fenced += 1
        except BaseException as error:
            self.failure = error

    def turn(self, value: str, *, commit: bool) -> None:
        coordinator = self.store.coordinator
        holder = coordinator.init_producer_id(self.id, 60_000)
        for part in (0, 1):
            places = PLACES[(self.number + part) % 3 :]
            coordinator.add_partitions(self.id, holder, places)
            for each in places:
                with self.store.log(each).lock:
                    self.store.write(each, holder, value.encode())
        place = coordinator.add_offsets(self.id, holder, GROUP)
        own = TopicPartition("in", self.number)
        self.store.offsets(place).commit(GROUP, {own: CommittedOffset(int(value.split("/")[1]))}, holder)
        coordinator.end_transaction(self.id, holder, commit=commit)
        if commit:
            self.committed.append(value)


def look_around(store: LogStore, over: threading.Event, failures: list[BaseException]) -> None:
    try:
        while not over.is_set():
            store.coordinator.list_transactions()
            store.coordinator.abort_timed_out()
            store.coordinator.remove_expired()
            for number in range(2):
                offsets = store.offsets(TopicPartition("__consumer_offsets", number))
                offsets.list_groups()
                offsets.expire()
                offsets.lag(GROUP, {})
    except BaseException as error:
        failures.append(error)


@pytest.mark.parametrize("version", [TransactionVersion.TV_0, TransactionVersion.TV_2])
def test_transactions_beside_each_other(base: Path, version: TransactionVersion) -> None:
    store = LogStore(base, files=FAST, version=version, overrides={"segment.index.bytes": "4800"})
    for each in PLACES:
        store.log(each)
    for number in range(2):
        store.offsets(TopicPartition("__consumer_offsets", number))
        store.state_log(number, True)
    over = threading.Event()
    failures: list[BaseException] = []
    names = ["one", "two", "three", "shared", "shared"]
    workers = [Worker(store, name, number, over) for number, name in enumerate(names)]
    looker = threading.Thread(target=look_around, args=(store, over, failures))
    for thread in (*workers, looker):
        thread.start()
    time.sleep(SECONDS)
    over.set()
    for thread in (*workers, looker):
        thread.join()
    failures += [each.failure for each in workers if each.failure is not None]
    assert not failures, failures
    for name in set(names):
        store.coordinator.init_producer_id(name, 60_000)
    judge(store, workers)
    again = store.after_a_kill()
    again.reopen()
    judge(again, workers)
    again.close()


def judge(store: LogStore, workers: list[Worker]) -> None:
    seen: dict[str, int] = defaultdict(int)
    for each in PLACES:
        log = store.log(each)
        assert log.last_stable_offset == log.log_end_offset
        for value in store.committed(each):
            seen[value.decode()] += 1
    offsets: dict[TopicPartition, int] = {}
    for number in range(2):
        partition = store.offsets(TopicPartition("__consumer_offsets", number))
        assert partition.pending(GROUP) == {}
        offsets |= {place: value.offset for place, value in partition.fetch_all(GROUP).items()}
    for worker in workers:
        wanted = sum(len(PLACES[(worker.number + part) % 3 :]) for part in (0, 1))
        mine = {value: count for value, count in seen.items() if value.startswith(f"{worker.number}/")}
        assert set(mine.values()) <= {wanted}, mine
        assert set(worker.committed) <= set(mine)
        last = max((int(value.split("/")[1]) for value in mine), default=None)
        assert offsets.get(TopicPartition("in", worker.number)) == last
    assert sum(len(worker.committed) for worker in workers) > 3
