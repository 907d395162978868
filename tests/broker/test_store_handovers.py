"""A broker's groups and transactions are continued by a store, and the other way round, over several handovers.

The first tests go step by step. They cover groups of both protocols whose members left or just vanished, transactions
that confluent-kafka left open when its broker was killed, and a transaction that the broker had decided. The last test
does random work on either side. Each run ends in order or by kill -9, and an oracle checks all records and cursors.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._native.codec.batches import header_at
from kafkalog.engine.format.batch import MemoryRecords
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.records import records
from kafkalog.engine.format.transaction_records import TransactionState, decode_transaction
from tests.broker import clients, kraft
from tests.broker.store_play import (
    WORKERS,
    BrokerSide,
    Event,
    Expected,
    StoreSide,
    Tell,
    as_pairs,
    consumer,
    killed,
    placed,
    play,
    read_on,
    send,
    send_offsets,
    transactional,
)
from tests.broker.test_store_clients import make_topics, states
from tests.conftest import need_broker
from tests.sampling import LONG, SEED
from tests.unit.store_kit import home_of

pytestmark = pytest.mark.broker

TOPICS = {"one": 3, "two": 2, "three": 1}
PLACES = [TopicPartition(name, number) for name, count in TOPICS.items() for number in range(count)]
SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "3600000",
    "group.min.session.timeout.ms": "1000",
}
WIDE, WIDE_COUNT = "wide", 60
# Transactions of clients, and their timeouts.
LEFT = {"times out": 2_000, "taken over": 900_000, "taken over again": 900_000, "nobody comes": 900_000}
HANDOVERS = 12 if LONG else 3
STEPS = 40 if LONG else 14


def decided_only(node: kraft.Broker, tell: Tell) -> None:
    """Commits over many partitions, until the broker is killed between the decision and its end.

    It is stopped by SIGSTOP when its log of transactions grows, and checked; if it was too fast, it continues.
    """
    state = node.log_dir / "__transaction_state-0" / f"{0:020}.log"
    for number in range(100):
        name = f"decided {number}"
        who = transactional(node.bootstrap, name)
        who.begin_transaction()
        rows = [clients.Row(b"%d" % number, b"%d" % each, (), clients.START_MS) for each in range(3 * WIDE_COUNT)]
        group = {TopicPartition(WIDE, 0): number}
        tell(("begin", name))
        tell(("records", name, send(who, WIDE, rows)))
        send_offsets(who, node.bootstrap, "group of decided", group)
        tell(("offsets", name, "group of decided", as_pairs(group)))
        tell(("end", name, True))
        size = state.stat().st_size
        committing = threading.Thread(target=commit, args=(who,))
        committing.start()
        until = time.monotonic() + 60
        while state.stat().st_size == size:
            assert time.monotonic() < until
        os.kill(node.pid, signal.SIGSTOP)
        if last_state(state.read_bytes()[size:]) is TransactionState.PREPARE_COMMIT:
            node.kill()
            who.purge()
            return
        os.kill(node.pid, signal.SIGCONT)
        committing.join(60)
    raise AssertionError("the broker was always too fast")


def commit(who: Any) -> None:
    from confluent_kafka import KafkaException

    with contextlib.suppress(KafkaException):  # the broker has stopped
        who.commit_transaction(5)


def last_state(data: bytes) -> TransactionState | None:
    found = None
    for head in MemoryRecords(data).batches():
        [record] = records(data[head.position : head.position + head.size], header_at(data[head.position :]))
        metadata = decode_transaction(record.key, record.value)[1]
        assert metadata is not None
        found = metadata.state
    return found


def take(expected: Expected) -> Tell:
    return lambda event: expected.take([event])


def read(side: StoreSide, cursor: str, topic: str, count: int, tell: Tell) -> None:
    found, ends = side.go_on(cursor, topic, count)
    assert found
    tell(("read", cursor, topic, [placed(record) for record in found], as_pairs(ends)))


def test_what_a_killed_broker_left(tmp_path: Path) -> None:
    need_broker()
    expected = Expected()
    tell = take(expected)
    with kraft.broker(tmp_path, settings=SETTINGS) as node:
        node.start()
        make_topics(node, {**TOPICS, WIDE: WIDE_COUNT})
        at = node.bootstrap
        side = BrokerSide(at, random.Random(5))
        for partition in range(TOPICS["one"]):
            tell(("records", None, side.append("one", clients.rows(partition, 40), partition)))
        members = {}
        for protocol in ("classic", "consumer"):
            for stays in (False, True):
                group = f"{protocol} {'stays' if stays else 'leaves'}"
                members[group] = consumer(at, group, protocol)
                found, ends = read_on(members[group], "one", 25)
                tell(("read", group, "one", [placed(record) for record in found], as_pairs(ends)))
                if not stays:
                    members.pop(group).close()
        clients_of = {name: transactional(at, name, timeout) for name, timeout in LEFT.items()}
        for name, who in clients_of.items():
            who.begin_transaction()
            tell(("begin", name))
            tell(("records", name, send(who, "two", clients.rows(9, 10))))
            send_offsets(who, at, f"group of {name}", {TopicPartition("one", 0): 7})
            tell(("offsets", name, f"group of {name}", {("one", 0): 7}))
        decided_only(node, tell)
        for each in members.values():
            each.close()
        time.sleep(LEFT["times out"] / 1000)
        places = [*PLACES, *(TopicPartition(WIDE, number) for number in range(WIDE_COUNT))]
        with kafkalog.open(node.log_dir, take_over=True) as store:
            expected.judge_store(store, places)  # the open completes decided transactions
            ours = StoreSide(store)
            listed = {each.name: each.state for each in store.cursors()}
            assert {listed[f"{each} leaves"] for each in ("classic", "consumer")} == {"Empty"}
            assert {listed[f"{each} stays"] for each in ("classic", "consumer")} == {"Stable"}
            for group in ("classic leaves", "classic stays", "consumer leaves", "consumer stays"):
                read(ours, group, "one", 10, tell)
            assert {each.state for each in store.cursors()} == {"Empty"}
            home_of(store).end_overdue()
            expected.end_open(["times out"])
            expected.judge_store(store, places)
            for name, ends_well in (("taken over", True), ("taken over again", False)):
                ours.begin(name)
                tell(("begin", name))
                tell(("records", name, ours.add(name, "two", clients.rows(10, 10), None)))
                ours.end(name, commit=ends_well)
                tell(("end", name, ends_well))
            expected.judge_store(store, places)
        node.start()
        states(at, list(LEFT))
        expected.judge_broker(at, places)
        for group in ("classic stays", "consumer stays"):
            who = consumer(at, group, group.split()[0])
            found, ends = read_on(who, "one", 10)
            tell(("read", group, "one", [placed(record) for record in found], as_pairs(ends)))
            who.close()
        transactional(at, "nobody comes")
        expected.end_open(["nobody comes"])
        expected.judge_broker(at, places)
        assert node.stop() == 143


def begun(events: list[Event]) -> set[str]:
    return {event[1] for event in events if event[0] == "begin"}


def test_random_work_on_either_side(tmp_path: Path) -> None:
    """A store's open transaction is aborted by its close or the next open; a client's waits for the client."""
    need_broker()
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    expected = Expected()
    events: list[Event] = []  # in the current session
    ours: set[str] = set()  # ids that a store used first: their producer ids tell
    theirs: set[str] = set()

    def tell(event: Event) -> None:
        events.append(event)
        expected.take([event])

    with kraft.broker(tmp_path, log_dir_count=2, settings=SETTINGS) as node:
        dirs = [str(each) for each in node.log_dirs]
        node.start()
        make_topics(node, TOPICS)
        side = BrokerSide(node.bootstrap, rng)
        for place in PLACES:
            tell(("records", None, side.append(place.topic, clients.rows(place.partition, 10), place.partition)))
        for number in range(HANDOVERS):
            events.clear()
            workers = WORKERS if number else WORKERS[2:]  # the others are first used by a store
            play(BrokerSide(node.bootstrap, rng), rng, STEPS, TOPICS, set(expected.cursors), tell, workers)
            expected.judge_broker(node.bootstrap, PLACES)
            theirs |= begun(events) - ours
            node.kill() if rng.random() < 0.5 else node.stop()
            events.clear()
            expected.end_open(expected.open.keys() & ours)
            if number % 2:
                found = killed("tests.broker.store_play:play_and_die", dirs, rng.random(), STEPS, TOPICS,
                               set(expected.cursors))  # fmt: skip
                expected.take(found)
                ours |= begun(found) - theirs
            else:
                with kafkalog.open(dirs, take_over=True) as store:
                    expected.judge_store(store, PLACES)
                    play(StoreSide(store), rng, STEPS, TOPICS, set(expected.cursors), tell)
                    expected.judge_store(store, PLACES)
                expected.end_open(begun(events))
                ours |= begun(events) - theirs
            node.start()
            expected.judge_broker(node.bootstrap, PLACES)
            assert node.complaints(("__consumer_offsets", "__transaction_state", *TOPICS)) == []
        node.stop()
        expected.end_open(expected.open.keys() & ours)
        with kafkalog.open(dirs, take_over=True) as store:
            for name in sorted(expected.open):
                assert store.abort_transaction(name)
            expected.end_open(list(expected.open))
            expected.judge_store(store, PLACES)
            assert {each.state for each in store.transactions()} <= {"Empty", "CompleteCommit", "CompleteAbort"}
    assert {"records", "offsets", "begin", "end", "read"} <= expected.counts.keys()
    assert ours
    assert theirs
