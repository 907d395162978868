"""A store writes topics, a KRaft broker serves them, and confluent-kafka's clients read them.

run 1    The broker creates the topics and Kafka's internal ones; SIGTERM.
between  A store writes plain records, with each codec, in transactions over three topics, and cursors.  A second
         process leaves one transaction open, decides others, and is killed (kill -9) between a decision's markers.
run 2    The broker completes the decided transactions and aborts the one that timed out.  Consumers read, groups and
         producers with the same transactional ids continue.  One transaction is still open when the broker stops.
between  A store reads the same records, continues with one of the ids, and is closed.
run 3    The client that had this id is fenced.  The client whose transaction is untouched continues and commits it.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import kafkalog
from kafkalog import Record
from kafkalog._face.store_cursors import CursorInfo
from kafkalog._native.codec.partitioner import partition_for_key
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import KafkaStorageException
from tests.broker import clients, kraft
from tests.broker.clients import Row
from tests.broker.store_play import (
    CODECS,
    TIMEOUT_MS,
    BrokerSide,
    Event,
    Expected,
    Placed,
    StoreSide,
    Tell,
    consumer,
    group_offsets,
    groups,
    kill_me,
    killed,
    offsets_of,
    placed,
    producer,
    read_all,
    send,
    store_cursors,
    transactional,
)
from tests.broker.test_cursors import Rows, described
from tests.conformance import kafka_jars
from tests.conformance.test_dump_log import tool as tool
from tests.conftest import need_broker
from tests.unit.store_kit import home_of
from tests.wire.client import Client

__all__ = ["tool"]

pytestmark = pytest.mark.broker

PLAIN, ORDERS, PAYMENTS, AUDIT = "plain", "orders", "payments", "audit"
PACKED = {f"packed-{codec}": codec for codec in CODECS}
TRANSACTIONAL = (ORDERS, PAYMENTS, AUDIT)
TOPICS = {PLAIN: 4, ORDERS: 3, PAYMENTS: 2, AUDIT: 1, **dict.fromkeys(PACKED, 2)}
PLACES = [TopicPartition(name, number) for name, count in TOPICS.items() for number in range(count)]
KEYS = [b"", b"k", b"\0\xff", *(b"key %d" % number for number in range(120))]
SETTINGS = {
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
SHORT_MS = 1000
BILLER, DOUBTER, LEFT, SHORT = "biller", "doubter", "left", "short"
TOUCHED, STAYS, HANDED = "touched", "stays", "handed over"
DECIDED = {"to commit": True, "to abort": False, "in the middle": True}
READER, GIVEN, GONE, BILLED = "by reader", "given", "gone", "billed"


@dataclass
class Story:
    """The observations of both sides; `expected` gets the events."""

    expected: Expected = field(default_factory=Expected)
    usual: set[str] = field(default_factory=set)  # the broker's warnings before a store came
    warnings: list[list[str]] = field(default_factory=list)  # in each later run
    before: dict[TopicPartition, list[Record]] = field(default_factory=dict)  # a store's reader
    served: dict[str, dict[TopicPartition, clients.Seen]] = field(default_factory=dict)
    while_left: dict[TopicPartition, clients.Seen] = field(default_factory=dict)
    committed_while_left: dict[TopicPartition, list[Placed]] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    cursors: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)  # the store's
    lags: dict[str, Rows] = field(default_factory=dict)
    groups: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)  # the broker's
    told: dict[str, Rows] = field(default_factory=dict)
    went_on: dict[str, list[Placed]] = field(default_factory=dict)
    committed_then: dict[TopicPartition, list[Placed]] = field(default_factory=dict)  # while the others continued
    uncommitted_then: dict[TopicPartition, list[Placed]] = field(default_factory=dict)
    keyed: dict[bytes, int] = field(default_factory=dict)
    fenced: list[str] = field(default_factory=list)


# --- the store's part -------------------------------------------------------------------------------------


def write(dirs: list[str], tell: Tell) -> None:
    for topic, codec in PACKED.items():
        with kafkalog.open(dirs, compression=codec, take_over=True) as store:
            for partition in range(TOPICS[topic]):
                rows = clients.rows(partition, 60)
                tell(("records", None, StoreSide(store).append(topic, rows, partition)))
    with kafkalog.open(dirs, take_over=True) as store:
        side = StoreSide(store)
        tell(("records", None, side.append(PLAIN, clients.rows(1, 60), None)))
        for partition in range(TOPICS[PLAIN]):
            tell(("records", None, side.append(PLAIN, clients.rows(partition, 7), partition)))
        tell(("records", None, side.append(PLAIN, [Row(b"keyed", key, (), clients.START_MS) for key in KEYS], None)))
        tell(("records", None, sent_by_producers(store)))
        for number, (name, commit) in enumerate({BILLER: True, DOUBTER: False, TOUCHED: True}.items()):
            for again in range(3):
                whole(side, name, f"{BILLED} {name}", tell, seed=10 * number + again)
                side.end(name, commit=commit)
                tell(("end", name, commit))
        found, ends = side.go_on(READER, PLAIN, 40)
        ends_of = {tuple(place): at for place, at in ends.items()}
        tell(("read", READER, PLAIN, [placed(record) for record in found], ends_of))
        for cursor in (GIVEN, GONE):
            side.set_cursor(cursor, {TopicPartition(ORDERS, 1): 3, TopicPartition(AUDIT, 0): 2})
            tell(("offsets", None, cursor, {(ORDERS, 1): 3, (AUDIT, 0): 2}))
        side.delete_cursor(GONE)
        tell(("deleted", GONE))


def sent_by_producers(store: kafkalog.Store) -> list[Placed]:
    """In batches of a producer, without and with a name, and by a named writer, which sends each twice."""
    done: list[Placed] = []
    for name, codec in ((None, "zstd"), ("shop", None)):
        with store.producer(linger_ms=1, name=name, compression=codec) as many:
            sent = [
                (row, many.send(PLAIN, row.value, key=row.key, headers=row.headers, timestamp=row.timestamp))
                for row in clients.rows(77, 200)
            ]
        done += [(*future.result(), row.value, row.key, row.headers, row.timestamp) for row, future in sent]
    till = store.topic(PLAIN).writer("till", 3)
    for number, row in enumerate(clients.rows(78, 5)):
        for again in range(2):  # a repeated sequence number adds no record
            told = till.append(row.value, key=row.key, headers=row.headers, timestamp=row.timestamp, sequence=number)
            if not again:
                assert told is not None
                done.append((PLAIN, 3, told, row.value, row.key, row.headers, row.timestamp))
            else:
                assert told is None
    return sorted(done, key=lambda row: row[:3])


def whole(side: StoreSide, name: str, cursor: str, tell: Tell, *, seed: int) -> None:
    """All of a transaction but its end: three topics, some partitions twice, and a cursor."""
    side.begin(name, SHORT_MS if name == SHORT else TIMEOUT_MS)
    tell(("begin", name))
    for at, topic in enumerate((*TRANSACTIONAL, ORDERS)):
        tell(("records", name, side.add(name, topic, clients.rows(1000 + 10 * seed + at, 6), None)))
    offsets = {TopicPartition(PLAIN, number): seed % 20 + number for number in range(TOPICS[PLAIN])}
    side.add_offsets(name, cursor, offsets)
    tell(("offsets", name, cursor, {tuple(place): at for place, at in offsets.items()}))


def leave(dirs: list[str], tell: Tell) -> None:
    """Runs in a separate process, which is killed after the second marker of the last decision."""
    store = kafkalog.open(dirs, take_over=True)
    side = StoreSide(store)
    markers = home_of(store).coordinators.markers
    for number, name in enumerate((LEFT, SHORT, *DECIDED)):
        whole(side, name, f"{BILLED} {name}", tell, seed=100 + number)
    write_marker = markers.write
    written: list[Any] = []

    def fail(*_: object) -> None:
        raise KafkaStorageException("the disk failed")

    def fail_later(*marker: Any) -> None:
        if len(written) == 2:
            kill_me()
        written.append(write_marker(*marker))

    for name, commit in DECIDED.items():
        tell(("end", name, commit))
        instead: Any = fail_later if name == "in the middle" else fail
        markers.write = instead  # type: ignore[method-assign]
        try:
            side.end(name, commit=commit)
        except KafkaStorageException:
            assert store.transactions()


# --- the broker's part ------------------------------------------------------------------------------------


def warnings_of(node: kraft.Broker) -> list[str]:
    """Lines at WARN and above, without their times, but for those of controllers about one another."""
    found = [
        line
        for line in node.log_text().splitlines()
        if re.search(r"\[(WARN|ERROR|FATAL)\]", line) and kraft.OF_CONTROLLERS not in line
    ]
    return [re.sub(r"^\S+ ", "", line) for line in found]


def like(line: str) -> str:
    """A line without the parts that differ from run to run."""
    return re.sub(r"\d+", "#", line)


def states(bootstrap: str, names: list[str], over: Any = lambda found: True) -> dict[str, str]:
    """The states of transactional ids, read when none is being ended and all are as wanted."""
    until = time.monotonic() + 60
    with Client(bootstrap) as wired:
        while True:
            wired.ask("FindCoordinator", 4, {"keyType": 1, "coordinatorKeys": names})
            rows = wired.ask("DescribeTransactions", 0, {"transactionalIds": names})["transactionStates"]
            found = {row["transactionalId"]: row["transactionState"] for row in rows}
            if not any(row["errorCode"] for row in rows) and "Prepare" not in str(found) and over(found):
                return found
            assert time.monotonic() < until, rows
            time.sleep(0.05)


def make_topics(node: kraft.Broker, topics: dict[str, int]) -> None:
    """Kafka's internal topics are created when a client searches for a coordinator."""
    clients.create_topics(node.bootstrap, {name: (count, {}) for name, count in topics.items()})
    with Client(node.bootstrap) as wired:
        for kind in (0, 1):
            until = time.monotonic() + 60
            while wired.ask("FindCoordinator", 4, {"keyType": kind, "coordinatorKeys": ["a"]})["coordinators"][0][
                "errorCode"
            ]:
                assert time.monotonic() < until
                time.sleep(0.05)


def first_messages(bootstrap: str, group: str, topic: str, protocol: str) -> list[Placed]:
    """Everything from where the group is."""
    from confluent_kafka import KafkaError

    who = consumer(bootstrap, group, protocol, **{"auto.offset.reset": "error"})
    who.subscribe([topic])
    found: list[Placed] = []
    over: set[int] = set()
    until = time.monotonic() + 60
    while len(over) < TOPICS[topic]:
        assert time.monotonic() < until, (group, over)
        message = who.poll(0.1)
        if message is None:
            continue
        error = message.error()
        if error is None:
            found.append(placed(clients.as_record(message)))
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            over.add(int(message.partition()))
    who.close()
    return sorted(found, key=lambda row: row[:3])


def the_brokers_part(node: kraft.Broker, tool: kafka_jars.Driver, told: Story) -> tuple[Any, Any]:
    at, expected = node.bootstrap, told.expected
    names = [BILLER, DOUBTER, LEFT, SHORT, TOUCHED, *DECIDED]
    told.states = states(at, names, lambda found: found[SHORT] != "Ongoing")
    expected.end_open([SHORT])
    told.while_left = clients.consume(at, PLACES, "read_committed")
    told.committed_while_left = {place: expected.seen(place, "read_committed") for place in PLACES}
    told.groups = group_offsets(at, groups(at))
    # Who takes the id over aborts what was open.
    expected.end_open([LEFT])
    left = transactional(at, LEFT)
    told.served = {each: clients.consume(at, PLACES, each) for each in ("read_uncommitted", "read_committed")}
    for number, group in enumerate(of_plain(told.groups)):
        told.went_on[group] = first_messages(at, group, PLAIN, ("classic", "consumer")[number % 2])
    told.uncommitted_then = {place: expected.seen(place, "read_uncommitted") for place in PLACES}
    told.committed_then = {place: expected.seen(place, "read_committed") for place in PLACES}
    # Producers continue, and fence the former holders of the ids.
    side = BrokerSide(at, random.Random(1))
    for name in (BILLER, DOUBTER):
        old = transactional(at, name)
        side.begin(name)
        expected.take([("begin", name)])
        old.begin_transaction()
        told.fenced.append(error_of(lambda: (old.produce(AUDIT, b"x"), old.commit_transaction(60))))  # noqa: B023
        expected.take([("records", name, side.add(name, ORDERS, clients.rows(3, 5), None))])
        side.end(name, commit=True)
        expected.take([("end", name, True)])
    left.begin_transaction()
    expected.take([("begin", LEFT), ("records", LEFT, send(left, AUDIT, clients.rows(4, 5))), ("end", LEFT, True)])
    left.commit_transaction(60)
    rows = [Row(b"keyed", key, (), clients.START_MS) for key in KEYS]
    again = send(producer(at), PLAIN, rows)
    told.keyed = {row[4] or b"": row[1] for row in again}
    expected.take([("records", None, again)])
    who = {name: transactional(at, name) for name in (TOUCHED, STAYS, HANDED)}
    for name, each in who.items():
        each.begin_transaction()
        expected.take([("begin", name), ("records", name, send(each, PAYMENTS, clients.rows(5, 5)))])
    who[HANDED].commit_transaction(60)
    expected.take([("end", HANDED, True)])
    told.told = {group: described(tool, at, group) for group in told.groups}
    return who[TOUCHED], who[STAYS]


def of_plain(groups: dict[str, dict[TopicPartition, int]]) -> list[str]:
    """Groups that have all of that topic."""
    return [name for name, offsets in groups.items() if {each.topic for each in offsets} == {PLAIN}]


def shown(cursor: CursorInfo) -> Rows:
    """As `described`."""
    return sorted(
        [*map(str, (*each.partition, each.committed.offset, each.end, each.lag))] for each in cursor.partitions
    )


def error_of(do: Any) -> str:
    from confluent_kafka import KafkaException

    with pytest.raises(KafkaException) as caught:
        do()
    return str(caught.value.args[0].name())


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, tool: kafka_jars.Driver) -> Iterator[Story]:
    need_broker()
    place = tmp_path_factory.mktemp("broker")
    told = Story()
    expected = told.expected

    def tell(event: Event) -> None:
        expected.take([event])

    with kraft.broker(place, log_dir_count=2, settings=SETTINGS) as node:
        dirs = [str(each) for each in node.log_dirs]
        node.start()
        make_topics(node, TOPICS)
        assert node.stop() == 143
        node.start()
        assert node.stop() == 143
        told.usual = {like(line) for line in warnings_of(node) if "[WARN]" in line}
        write(dirs, tell)
        expected.take(killed("tests.broker.test_store_clients:leave", dirs))
        with kafkalog.open(dirs, read_only=True) as store:
            told.before = read_all(store, PLACES, "read_uncommitted")
            told.cursors = {name: dict(offsets_of(store, name)) for name in store_cursors(store)}
        node.start()
        touched, stays = the_brokers_part(node, tool, told)
        assert node.stop() == 143
        told.warnings.append(warnings_of(node))
        with kafkalog.open(dirs, take_over=True) as store:
            expected.judge_store(store, PLACES)
            told.lags = {each.name: shown(each) for each in store.cursors()}
            side = StoreSide(store)
            for name in (TOUCHED, HANDED, "new here"):
                whole(side, name, f"{BILLED} {name}", tell, seed=7)
            side.end(TOUCHED, commit=True)
            tell(("end", TOUCHED, True))
        expected.end_open([HANDED, "new here"])  # its close has aborted them
        node.start()
        told.warnings.append([])
        told.fenced.append(error_of(lambda: (touched.produce(AUDIT, b"x"), touched.commit_transaction(60))))
        expected.take([("records", STAYS, send(stays, ORDERS, clients.rows(6, 5)))])
        stays.commit_transaction(60)
        expected.take([("end", STAYS, True)])
        expected.judge_broker(node.bootstrap, PLACES)
        assert node.stop() == 143
        told.warnings[-1] = warnings_of(node)
        with kafkalog.open(dirs, take_over=True) as store:
            expected.judge_store(store, PLACES)
        yield told
    shutil.rmtree(place, ignore_errors=True)


def test_the_story_has_everything(story: Story) -> None:
    assert set(story.states.values()) == {"CompleteCommit", "CompleteAbort", "Ongoing"}
    assert story.while_left != story.served["read_committed"] != story.served["read_uncommitted"]
    assert len(of_plain(story.groups)) == 5


def test_a_consumer_sees_what_the_stores_reader_saw(story: Story) -> None:
    """All fields of all records, each codec's, and of any isolation."""
    for place, seen in story.served["read_uncommitted"].items():
        assert seen.records == story.before[place]
        assert [placed(record) for record in seen.records] == story.uncommitted_then[place]
        assert seen.start == 0
    for place, seen in story.served["read_committed"].items():
        assert [placed(record) for record in seen.records] == story.committed_then[place]


def test_consumers_of_committed_records_wait_for_what_is_open(story: Story) -> None:
    for place, seen in story.while_left.items():
        assert [placed(record) for record in seen.records] == story.committed_while_left[place]


def test_the_broker_finishes_what_was_decided(story: Story) -> None:
    """And aborts what has been open for longer than its timeout."""
    assert story.states == {
        BILLER: "CompleteCommit", DOUBTER: "CompleteAbort", TOUCHED: "CompleteCommit",
        LEFT: "Ongoing", SHORT: "CompleteAbort",
        **{name: "CompleteCommit" if commit else "CompleteAbort" for name, commit in DECIDED.items()},
    }  # fmt: skip


def test_groups_are_the_stores_cursors(story: Story) -> None:
    """With those of transactions that the broker has finished."""
    decided = {f"{BILLED} {name}" for name, commit in DECIDED.items() if commit}
    found = {name: offsets for name, offsets in story.groups.items() if offsets}
    assert {name: offsets for name, offsets in found.items() if name not in decided} == story.cursors
    assert set(found) == {READER, GIVEN, f"{BILLED} {BILLER}", f"{BILLED} {TOUCHED}"} | decided
    assert GONE not in story.groups
    assert story.lags == story.told
    assert any(line[4] not in ("0", line[3]) for lines in story.told.values() for line in lines)


def test_consumers_go_on_from_the_cursors(story: Story) -> None:
    for group, found in story.went_on.items():
        at = story.groups[group]
        wanted = [row for place in at for row in story.committed_then[place] if row[2] >= at[place]]
        assert found == sorted(wanted, key=lambda row: row[:3]), group


def test_a_producer_of_an_id_fences_who_had_it(story: Story) -> None:
    """A broker's client another one, and a store a broker's client."""
    assert story.fenced == ["_FENCED"] * 3


def test_keys_have_the_same_partitions(story: Story) -> None:
    ours = {row[4]: row[1] for place in PLACES for row in story.uncommitted_then[place] if row[3] == b"keyed"}
    assert ours == story.keyed == {key: partition_for_key(key, TOPICS[PLAIN]) for key in KEYS}


def test_the_brokers_log_says_nothing_of_it(story: Story) -> None:
    """No line at ERROR or WARN but those of a start and a stop of any broker."""
    for lines in story.warnings:
        assert [line for line in lines if like(line) not in story.usual] == []
