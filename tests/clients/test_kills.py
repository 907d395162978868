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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.kraft import free_ports
from tests.sampling import LONG, SEED

pytestmark = pytest.mark.broker
KILLS = int(os.environ.get("KAFKALOG_KILLS", "100" if LONG else "3"))
SECONDS_MAX = 60
PROGRESS_SECONDS_MAX = 20
# A member that is closed while there is no server cannot leave: its group waits for the end of its session.
SESSIONS = (
    "group.consumer.min.session.timeout.ms=6000", "group.consumer.session.timeout.ms=6000",
    "group.consumer.min.heartbeat.interval.ms=1000", "group.consumer.heartbeat.interval.ms=1000",
)  # fmt: skip
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
            *(word for each in SESSIONS for word in ("-X", each)),
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


def kill_often(
    server: Killed, count: int, done: threading.Event, draw: random.Random, progress: Callable[[], object]
) -> None:
    """Kills at any time; but after most starts, the clients first get something done, however slow the machine is."""
    try:
        for _ in range(count):
            before, until = progress(), time.monotonic() + PROGRESS_SECONDS_MAX
            if draw.random() < 0.75:
                while progress() == before and time.monotonic() < until:
                    time.sleep(0.01)
            time.sleep(draw.uniform(0, 0.7))
            server.kill()
            time.sleep(draw.uniform(0, 0.3))
            server.start()
    finally:
        done.set()


def killing(
    server: Killed, count: int, draw: random.Random, progress: Callable[[], object]
) -> tuple[threading.Thread, threading.Event]:
    """A thread that kills the server `count` times.  `progress` changes whenever a client is told of a success."""
    done = threading.Event()
    thread = threading.Thread(target=kill_often, args=(server, count, done, draw, progress))
    thread.start()
    return thread, done


def settings(server: Killed, **more: Any) -> dict[str, Any]:
    """Settings of librdkafka.  If its only broker is gone, it is not to ask the bootstrap servers again: librdkafka
    2.16 then keeps requests on a broker that it has given up, for a minute."""
    return {
        "bootstrap.servers": server.bootstrap, "log_level": 2, "metadata.recovery.strategy": "none",
        "reconnect.backoff.max.ms": 200, "retry.backoff.max.ms": 200,
        **{key.replace("_", "."): value for key, value in more.items()},
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

    thread, done = killing(server, KILLS, draw, lambda: sum(map(len, list(acked.values()))))
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
    thread, done = killing(server, KILLS, draw, lambda: len(committed))
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


class Progress:
    """A judge of a group: where each partition begins after an assignment, and that no offset is left out.

    A commit that was acknowledged is a floor.  One whose answer did not come may count or not."""

    def __init__(self) -> None:
        self.promised: dict[int, int] = {}  # the last commit of a partition that was acknowledged
        self.attempted: dict[int, int] = {}  # the highest commit that was tried
        self.seen: dict[int, set[int]] = {number: set() for number in range(PARTITIONS)}
        self.starts: dict[tuple[object, int], tuple[int, int]] = {}  # the least and the most
        self.next: dict[tuple[object, int], int] = {}

    def assigned(self, consumer: object, partitions: list[Any]) -> None:
        for each in partitions:
            self.next.pop((consumer, each.partition), None)
            self.starts[consumer, each.partition] = (
                self.promised.get(each.partition, 0), self.attempted.get(each.partition, 0),
            )  # fmt: skip

    def took(self, consumer: object, message: Any) -> None:
        place = (consumer, message.partition())
        expected = self.next.get(place)
        if expected is None:
            least, most = self.starts[place]
            most = max(most, self.attempted.get(message.partition(), 0))
            assert least <= message.offset() <= most, f"{place[1]} begins at {message.offset()}, not {least} to {most}"
        else:
            assert message.offset() == expected, f"{place[1]}: {message.offset()} follows {expected - 1}"
        self.next[place] = message.offset() + 1
        self.seen[message.partition()].add(message.offset())

    def owed(self, consumer: Any) -> dict[int, int]:
        """The ends of the records that it has read and not committed, by partition.

        A commit fails if the server was killed or the group changes.  A member that keeps its partition gets no record
        again: it commits anew."""
        ends = {each.partition: self.next.get((consumer, each.partition), 0) for each in consumer.assignment()}
        return {number: end for number, end in ends.items() if end > self.promised.get(number, 0)}


def new_topic(server: Killed, topic: str, group: str | None = None) -> None:
    """A topic; and a share group that begins with its first record."""
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient(settings(server))
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(SECONDS_MAX)
    if group is not None:
        entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[entry])
        for each in admin.incremental_alter_configs([resource]).values():
            each.result(SECONDS_MAX)


class Feed:
    """A producer that goes on while the server is killed."""

    def __init__(self, server: Killed, topic: str) -> None:
        from confluent_kafka import Producer

        self.topic = topic
        self.count = 0
        self.failed: list[str] = []
        self._producer = Producer(settings(server, enable_idempotence=True, message_timeout_ms=120_000))

    def more(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce(
                self.topic, b"%d" % self.count, partition=self.count % PARTITIONS, on_delivery=self._told
            )
            self.count += 1
        self._producer.poll(0)

    def _told(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))

    def end(self) -> None:
        """Waits until all is acknowledged."""
        while self.count % PARTITIONS:
            self.more(1)
        assert self._producer.flush(SECONDS_MAX) == 0
        assert self.failed == []


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_go_on_where_they_committed(server: Killed, protocol: str) -> None:
    """Two members read what a producer writes, and one after the other is replaced: each begins where the last commit
    was, and reads every offset from there."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    draw, progress, feed = random.Random(SEED + 2), Progress(), Feed(server, "work")
    new_topic(server, "work")
    more = {"session_timeout_ms": 6000, "partition_assignment_strategy": "cooperative-sticky"}
    more = more if protocol == "classic" else {}

    def member() -> Any:
        made = Consumer(
            settings(
                server, group_id="workers", group_protocol=protocol, auto_offset_reset="earliest",
                enable_auto_commit=False, **more,
            )
        )  # fmt: skip
        made.subscribe(["work"], on_assign=progress.assigned)
        return made

    def step(consumer: Any) -> None:
        for message in consumer.consume(50, 0.1):
            if message.error() is None:
                progress.took(consumer, message)
        ends = progress.owed(consumer)
        if not ends:
            return
        for number, end in ends.items():
            progress.attempted[number] = max(end, progress.attempted.get(number, 0))
        try:
            places = [TopicPartition("work", number, end) for number, end in ends.items()]
            for each in consumer.commit(offsets=places, asynchronous=False):
                if each.error is None:
                    progress.promised[each.partition] = each.offset
        except KafkaException:
            pass  # they are still owed

    def committed() -> int:
        return sum(list(progress.promised.values()))

    members = [member(), member()]
    thread, done = killing(server, KILLS, draw, committed)
    while not done.is_set():
        feed.more(20)
        for each in members:
            step(each)
        if draw.random() < 0.02:
            members.pop(0).close()
            members.append(member())
    thread.join()
    feed.end()
    until = time.monotonic() + SECONDS_MAX
    while committed() < feed.count:
        assert time.monotonic() < until, f"{progress.promised} of {feed.count}"
        for each in members:
            step(each)
    for each in members:
        each.close()
    count = feed.count // PARTITIONS
    assert {number: len(offsets) for number, offsets in progress.seen.items()} == dict.fromkeys(
        range(PARTITIONS), count
    )
    last = Consumer(settings(server, group_id="workers"))
    places = [TopicPartition("work", number) for number in range(PARTITIONS)]
    assert [each.offset for each in last.committed(places, SECONDS_MAX)] == [count] * PARTITIONS
    last.close()


def test_share_groups_deliver_all_and_accept_once(server: Killed) -> None:
    """Two members of a share group accept what they take, and release some of it once: an acceptance that was
    acknowledged is final, and every record is delivered."""
    from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer

    draw, feed = random.Random(SEED + 3), Feed(server, "mail")
    new_topic(server, "mail", group="mailers")
    accepted: set[tuple[int, int]] = set()
    released: set[tuple[int, int]] = set()
    unsure: set[tuple[int, int]] = set()
    members = [
        ShareConsumer(settings(server, group_id="mailers", share_acknowledgement_mode="explicit")) for _ in range(2)
    ]
    for each in members:
        each.subscribe(["mail"])

    def step(consumer: Any) -> None:
        taken: dict[int, set[tuple[int, int]]] = {}
        for message in consumer.poll(0.1):
            if message.error() is not None:
                continue
            place = (message.partition(), message.offset())
            assert place not in accepted, f"{place} was accepted, and comes again"
            if place not in released and draw.random() < 0.1:
                released.add(place)
                consumer.acknowledge(message, AcknowledgeType.RELEASE)
            else:
                taken.setdefault(place[0], set()).add(place)
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        for places in taken.values():
            unsure.update(places)
        try:
            for each, error in consumer.commit_sync(timeout=20.0).items():
                if error is None:
                    accepted.update(taken.get(each.partition, ()))
        except KafkaException:
            pass  # the server was killed: the records may come again

    thread, done = killing(server, KILLS, draw, lambda: len(accepted))
    while not done.is_set():
        feed.more(20)
        for each in members:
            step(each)
    thread.join()
    feed.end()
    until = time.monotonic() + SECONDS_MAX
    while len(unsure | accepted) < feed.count:
        assert time.monotonic() < until, f"{len(unsure | accepted)} of {feed.count} came"
        for each in members:
            step(each)
    for _ in range(5):
        for each in members:
            step(each)
    for each in members:
        each.close()
    assert released
    assert len(accepted) > feed.count / 2, "hardly an acceptance was acknowledged"


def test_exactly_once_copies(server: Killed) -> None:
    """A consumer's offsets and its output are one transaction: the output has each record once, in order."""
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

    draw, feed = random.Random(SEED + 4), Feed(server, "raw")
    new_topic(server, "raw")
    new_topic(server, "ledger")
    copied: dict[int, int] = {}

    def session() -> Any:
        producer = Producer(settings(server, transactional_id="copier", transaction_timeout_ms=20_000))
        producer.init_transactions(SECONDS_MAX)
        consumer = Consumer(
            settings(
                server, group_id="copiers", auto_offset_reset="earliest", enable_auto_commit=False,
                isolation_level="read_committed", session_timeout_ms=6000,
            )
        )  # fmt: skip
        places = [TopicPartition("raw", number) for number in range(PARTITIONS)]
        found = consumer.committed(places, SECONDS_MAX)
        for each in found:
            each.offset = max(each.offset, 0)
            assert each.offset >= copied.get(each.partition, 0), f"{each} is before {copied}"
            copied[each.partition] = each.offset  # it is more if the answer to the last commit was lost
        consumer.assign(found)
        return producer, consumer

    def copy(producer: Any, consumer: Any) -> None:
        ends: dict[int, int] = {}
        messages = [each for each in consumer.consume(60, 0.1) if each.error() is None]
        if not messages:
            return
        producer.begin_transaction()
        for message in messages:
            producer.produce("ledger", message.value(), partition=message.partition())
            ends[message.partition()] = message.offset() + 1
        offsets = [TopicPartition("raw", number, end) for number, end in ends.items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), SECONDS_MAX)
        producer.commit_transaction(SECONDS_MAX)
        copied.update(ends)

    pair: Any = None

    def step() -> None:
        nonlocal pair
        try:
            pair = pair or session()
            copy(*pair)
        except KafkaException:
            if pair is not None:
                pair[1].close()
            pair = None  # the next one fences this one, which ends its transaction

    thread, done = killing(server, KILLS, draw, lambda: sum(list(copied.values())))
    while not done.is_set():
        feed.more(20)
        step()
    thread.join()
    feed.end()
    until = time.monotonic() + SECONDS_MAX
    while sum(copied.values()) < feed.count:
        assert time.monotonic() < until, f"{copied} of {feed.count}"
        step()
    pair[1].close()
    count = feed.count // PARTITIONS
    for number, values in all_values(server, "ledger").items():
        assert [int(each) for each in values] == [each * PARTITIONS + number for each in range(count)]
