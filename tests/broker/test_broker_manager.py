"""A KRaft broker over three log directories, and LogManager over the same three between its runs.

    life 1   clients write plain and transactional records into many partitions, a group commits; SIGTERM
    between  LogManager opens all without recovery, appends, deletes by retention; a broker is kept out meanwhile
    life 2   the broker starts without recovery, LogManager is kept out; clients append; SIGKILL
    between  LogManager recovers, and is killed while it appends; another one moves a partition to another directory,
             and leaves a second move half way
    life 3   the broker recovers, finds the moved partition where it is, and carries the second move through; SIGTERM
    between  LogManager opens all again, without recovery; a partition is put into two directories: a broker refuses
             to start, LogManager settles it

The broker's clients and kafkalog must read the same records at both isolation levels.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import kafkalog
from kafkalog.config import BrokerLogConfig
from kafkalog.engine.format import names
from kafkalog.engine.format.builder import build_batch
from kafkalog.engine.format.java_text import parse_properties
from kafkalog.engine.format.meta_properties import read_meta_properties, write_meta_properties
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import LogDirLockedException
from tests.broker import clients, kraft, story
from tests.broker.story import ISOLATIONS, Look
from tests.conftest import need_broker

pytestmark = pytest.mark.broker

# (With indexes as small as the other broker tests' a recovery may need more entries than the appends before it, which
# were begun anew by each open, and be refused, as Kafka's is.)
TOPICS: dict[str, tuple[int, dict[str, str]]] = {"spread": (6, {}), "txns": (3, {}), "old": (1, {}), "fence": (1, {})}
PARTITIONS = [TopicPartition(topic, number) for topic, (count, _) in TOPICS.items() for number in range(count)]
INTERNAL = [TopicPartition("__consumer_offsets", 0), TopicPartition("__transaction_state", 0)]
OLD = TopicPartition("old", 0)
MOVED, HALFWAY = TopicPartition("spread", 1), TopicPartition("spread", 2)
METADATA = "__cluster_metadata-0"

# Appends to all partitions in turn until it is killed; says what has returned.
WRITER = """
import sys
from pathlib import Path
from tests.broker.test_broker_manager import PARTITIONS, append, open_all
manager = open_all(Path(sys.argv[1]), sys.argv[2:])
turn = 0
while True:
    for partition in PARTITIONS:
        print(partition, append(manager.get_log(partition), 9000 + turn), flush=True)
    turn += 1
"""


def open_all(properties: Path, log_dirs: list[str]) -> LogManager:
    """The broker's own settings."""
    broker = BrokerLogConfig.from_props(parse_properties(properties.read_bytes()))
    manager = LogManager(log_dirs, ManagerSettings.from_broker(broker), take_over=True)
    manager.startup()
    return manager


def append(log: UnifiedLog | None, seed: int, count: int = 7) -> int:
    """One batch, as a leader of the epoch that the log knows; its last offset."""
    assert log is not None
    rows = [(row.timestamp, row.key, row.value, row.headers) for row in clients.rows(seed, count)]
    return log.append_as_leader(build_batch(rows), log.latest_epoch or 0).last_offset


@dataclass
class Seen:
    """A broker's run and the records that kafkalog read before it, or after it."""

    looks: dict[TopicPartition, Look] = field(default_factory=dict)
    served: dict[str, dict[TopicPartition, clients.Seen]] = field(default_factory=dict)
    log: str = ""
    complaints: list[str] = field(default_factory=list)


@dataclass
class Story:
    first: Seen = field(default_factory=Seen)  # kafkalog after run 1
    second: Seen = field(default_factory=Seen)  # kafkalog before run 2
    killed: Seen = field(default_factory=Seen)  # kafkalog after run 2 was killed
    third: Seen = field(default_factory=Seen)  # kafkalog before run 3
    last: Seen = field(default_factory=Seen)  # kafkalog after run 3
    opened: list[TopicPartition] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)  # kafkalog's log lines about recovery in clean starts
    metadata: tuple[dict[str, bytes], dict[str, bytes]] = ({}, {})
    ids: tuple[dict[str, str], dict[str, str]] = ({}, {})
    refused_with: int = 0
    refused_log: str = ""
    refusals: list[str] = field(default_factory=list)
    old_start: int = 0
    told: dict[TopicPartition, int] = field(default_factory=dict)
    places: dict[str, dict[TopicPartition, str]] = field(default_factory=dict)
    twice_refused_with: int = 0
    twice_log: str = ""
    twice_left: tuple[list[str], str] = ([], "")  # where it is after kafkalog was there; the move's destination


def places(node: kraft.Broker) -> dict[TopicPartition, str]:
    """The directory of each partition; `-future` and other odd ones are left out."""
    found = {}
    for directory in node.log_dirs:
        for path in directory.iterdir():
            if path.is_dir() and path.name != METADATA and not path.name.endswith(("-delete", "-future", "-stray")):
                found[names.parse_topic_partition_name(str(path))] = directory.name
    return found


def look_on(node: kraft.Broker) -> dict[TopicPartition, Look]:
    """Reads everything that clients can read, through read-only opens."""
    return {
        partition: story.look_on(node.place / directory, [partition])[partition]
        for partition, directory in places(node).items()
        if partition in PARTITIONS
    }


def tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def manager_of(node: kraft.Broker) -> LogManager:
    return open_all(node.properties, [str(each) for each in node.log_dirs])


def serve(node: kraft.Broker, seen: Seen) -> None:
    seen.served = story.serve(node, PARTITIONS)


def clients_write(node: kraft.Broker, seed: int) -> None:
    plain = clients.ConfluentProducer(node.bootstrap, "lz4")
    one = clients.ConfluentProducer(node.bootstrap, "zstd", transactional_id="one")
    for part in range(3):
        for number in range(TOPICS["spread"][0]):
            plain.send("spread", number, clients.rows(seed + part, 5 + 10 * part))
        for _ in range(8):
            plain.send("old", 0, clients.rows(seed + part, 10))
    for turn in range(4):
        one.begin()
        for number in range(TOPICS["txns"][0]):
            one.send("txns", number, clients.rows(seed + 100 + turn, 4))
        (one.abort if turn % 2 else one.commit)()
        plain.send("txns", turn % 3, clients.rows(seed + 200 + turn, 3))
    story.settle(one)


def a_group_commits(node: kraft.Broker) -> None:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Place

    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "readers", **clients.QUIET})
    try:
        consumer.commit(offsets=[Place("spread", 0, 3)], asynchronous=False)
    finally:
        consumer.close()


def kafkalog_works(node: kraft.Broker, told: Story) -> None:
    """The first time between: appends, retention, and a broker that starts meanwhile."""
    manager = manager_of(node)
    told.opened = sorted(log.topic_partition for log in manager.all_logs())
    told.ids = (manager.directory_ids, {str(each): _id(each) for each in node.log_dirs})
    before = tree(node.log_dir / METADATA)
    for partition in PARTITIONS:
        append(manager.get_log(partition), 7000)
    manager.set_topic_config("old", {"retention.ms": "1000"})
    assert manager.cleanup_logs() >= 1
    append(manager.get_log(OLD), 7001)
    old = manager.get_log(OLD)
    assert old is not None
    told.old_start = old.log_start_offset
    told.metadata = before, tree(node.log_dir / METADATA)
    node.launch()
    told.refused_with, told.refused_log = node.wait(kraft.START_SECONDS_MAX), node.log_text()
    manager.shutdown()


def _id(log_dir: Path) -> str:
    return read_meta_properties(str(log_dir / "meta.properties")).directory_id or ""


def kafkalog_is_killed(node: kraft.Broker) -> dict[TopicPartition, int]:
    """A manager that recovers what the killed broker left, and is killed while it appends: the last offset that each
    partition had told."""
    command = [sys.executable, "-c", WRITER, str(node.properties), *map(str, node.log_dirs)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=story.ROOT)
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(40)]
    writer.kill()
    lines += [line for line in writer.communicate()[0].splitlines(keepends=True) if line.endswith("\n")]
    told = (line.rsplit(" ", 1) for line in lines)
    return {names.partition_of(partition): int(offset) for partition, offset in told}


def kafkalog_moves(node: kraft.Broker) -> None:
    """One partition whole; of another the move is interrupted while it copies.  Then an unclean end."""
    manager = manager_of(node)
    for partition in (MOVED, HALFWAY):
        source = manager.get_log(partition)
        assert source is not None
        other = next(each for each in manager.live_log_dirs if each != source.parent_dir)
        if partition == MOVED:
            manager.move(partition, other)
        else:
            future = manager.get_or_create_log(
                partition, is_new=True, is_future=True, topic_id=source.topic_id, log_dir=other
            )
            future.append_as_follower(source.read(source.log_start_offset, 1).records.to_bytes(), 1 << 30)
    manager.abandon()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kraft.Broker]:
    need_broker()
    place = tmp_path_factory.mktemp("brokers")
    with kraft.broker(place, log_dir_count=3, shares_metadata=True) as node:
        yield node
    shutil.rmtree(place, ignore_errors=True)


class Lines(logging.Handler):
    """Collects the lines that kafkalog logs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture(scope="module")
def told(node: kraft.Broker) -> Story:
    told = Story()
    node.start()
    clients.create_topics(node.bootstrap, TOPICS)
    clients_write(node, 100)
    a_group_commits(node)
    serve(node, told.first)
    node.stop()
    told.places["first"] = places(node)
    told.first.looks = look_on(node)
    old = str(node.log_dirs[1] / "meta.properties")
    write_meta_properties(old, read_meta_properties(old)._replace(version=0))

    handler = Lines()
    logger = logging.getLogger("kafkalog")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    kafkalog_works(node, told)
    logger.removeHandler(handler)
    logger.setLevel(level)
    told.recovered = [line for line in handler.lines if "recover" in line]
    told.second.looks = look_on(node)

    node.start()
    serve(node, told.second)
    for attempt in (lambda: manager_of(node), lambda: kafkalog.open_log(places_of(node, MOVED), MOVED, take_over=True)):
        with pytest.raises(LogDirLockedException) as refused:
            attempt()
        told.refusals.append(str(refused.value))
    clients_write(node, 1100)
    serve(node, told.killed)
    told.second.log, told.second.complaints = node.log_text(), node.complaints(TOPICS)
    node.kill()
    told.killed.looks = look_on(node)
    told.told = kafkalog_is_killed(node)
    kafkalog_moves(node)
    told.places["moved"] = places(node)
    told.third.looks = look_on(node)

    node.start()
    serve(node, told.third)
    until = time.monotonic() + clients.SECONDS_MAX
    while list(node.place.glob("logs*/*-future")) and time.monotonic() < until:
        time.sleep(0.1)
    node.stop()
    told.third.log, told.third.complaints = node.log_text(), node.complaints(TOPICS)
    told.places["last"] = places(node)
    manager = manager_of(node)
    for partition in PARTITIONS:
        append(manager.get_log(partition), 8000)
    manager.shutdown()
    told.last.looks = look_on(node)
    twice(node, told)
    return told


def twice(node: kraft.Broker, told: Story) -> None:
    """As a crash between the two renames of a move leaves it: a partition in both directories, and the note."""
    source, other = places_of(node, MOVED), next(each for each in node.log_dirs if each.name != places(node)[MOVED])
    shutil.copytree(source / str(MOVED), other / str(MOVED))
    (other / f"{MOVED}{names.MOVE_FILE_SUFFIX}").write_bytes(os.fsencode(source) + b"\n")
    node.launch()
    told.twice_refused_with, told.twice_log = node.wait(kraft.START_SECONDS_MAX), node.log_text()
    manager_of(node).shutdown()
    told.twice_left = [each.name for each in node.log_dirs if (each / str(MOVED)).exists()], other.name


def places_of(node: kraft.Broker, partition: TopicPartition) -> Path:
    return node.place / places(node)[partition]


# --- kafkalog after and before the broker ----------------------------------------------------------------------


def check(looks: dict[TopicPartition, Look], served: dict[str, dict[TopicPartition, clients.Seen]]) -> None:
    for each in PARTITIONS:
        for isolation in ISOLATIONS:
            got = served[isolation][each]
            seen = looks[each]
            assert seen.records[isolation] == got.records, (each, isolation)
            assert (seen.start, seen.end if isolation == "read_uncommitted" else seen.stable) == (got.start, got.end)


def test_a_broker_that_stopped_in_order_is_opened_without_recovery(told: Story) -> None:
    check(told.first.looks, told.first.served)
    assert told.opened == sorted([*PARTITIONS, *INTERNAL])
    assert len(set(told.places["first"].values())) == 3
    assert told.recovered == []


def test_the_controllers_log_is_left_alone(told: Story) -> None:
    before, after = told.metadata
    assert before == after
    assert any(name.endswith(".log") for name in before)


def test_the_broker_serves_what_the_manager_wrote_without_recovery(told: Story) -> None:
    check(told.second.looks, told.second.served)
    for each in PARTITIONS:
        ours = [len(told.second.served[isolation][each].records) for isolation in ISOLATIONS]
        assert ours > [len(told.first.served[isolation][each].records) for isolation in ISOLATIONS] or each == OLD
    assert told.second.log.count("Skipping recovery of") == 3
    assert not recovered_by_the_broker(told.second.log)
    assert told.second.complaints == []


def test_what_retention_deleted_stays_deleted(told: Story) -> None:
    assert told.old_start > 0
    assert told.second.served["read_uncommitted"][OLD].start == told.old_start
    assert [each.offset for each in told.second.served["read_committed"][OLD].records] == list(
        range(told.old_start, told.old_start + 7)
    )


def recovered_by_the_broker(log: str) -> list[str]:
    return [line for line in log.splitlines() if "Recovering unflushed" in line and METADATA not in line]


# --- killed ----------------------------------------------------------------------------------------------------


def test_a_killed_brokers_directories_are_recovered(told: Story) -> None:
    check(told.killed.looks, told.killed.served)
    assert min(told.told.get(each, -1) for each in PARTITIONS) >= 0  # the writer came by all of them


def test_a_killed_managers_records_are_served(told: Story) -> None:
    """Acknowledged records exist; the moves between are no loss either."""
    check(told.third.looks, told.third.served)
    for each, offset in told.told.items():
        before, after = told.killed.served, told.third.served
        assert after["read_uncommitted"][each].end > offset
        for isolation in ISOLATIONS:
            had = before[isolation][each].records
            assert after[isolation][each].records[: len(had)] == had, (each, isolation)
    assert len(recovered_by_the_broker(told.third.log)) >= len(PARTITIONS)
    # AssignmentsManager sometimes logs an exception of its own callback when it completes a move.
    assert [line for line in told.third.complaints if "unexpected callback exception" not in line] == []


def test_it_is_opened_again_after_the_broker(told: Story) -> None:
    for each in PARTITIONS:
        before, after = (
            told.third.served["read_committed"][each].records,
            told.last.looks[each].records["read_committed"],
        )
        assert after[: len(before)] == before, each
        assert len(after) == len(before) + 7, each


# --- moved -----------------------------------------------------------------------------------------------------


def test_a_moved_partition_stays_where_it_is(told: Story, node: kraft.Broker) -> None:
    """The broker believes the disk, not its metadata, and tells the controller."""
    first, moved, last = (told.places[when][MOVED] for when in ("first", "moved", "last"))
    assert first != moved == last
    told_the_controller = f"directories=[{_id(node.place / moved)}]"
    assert any(told_the_controller in line and f" {MOVED} " in line for line in told.third.log.splitlines()), (
        told_the_controller
    )


def test_an_interrupted_move_is_carried_through_by_the_broker(told: Story, node: kraft.Broker) -> None:
    """It takes a `-future` directory for a move that was requested from it."""
    first, moved, last = (told.places[when][HALFWAY] for when in ("first", "moved", "last"))
    assert first == moved != last
    assert not list(node.place.glob("logs*/*-future"))
    assert {each: place for each, place in told.places["moved"].items() if each != HALFWAY} == {
        each: place for each, place in told.places["last"].items() if each != HALFWAY
    }


def test_a_partition_in_both_directories_is_refused_by_the_broker_and_settled_by_the_manager(told: Story) -> None:
    assert told.twice_refused_with != 0
    assert f"Duplicate log directories for {MOVED} are found in both" in told.twice_log
    left, destination = told.twice_left
    assert left == [destination]


# --- locks and ids ---------------------------------------------------------------------------------------------


def test_a_broker_and_a_manager_exclude_each_other(told: Story) -> None:
    assert told.refused_with != 0
    assert "A Kafka instance in another process or thread is using this directory" in told.refused_log
    for refusal in told.refusals:
        assert "(java) holds it" in refusal
        assert "read_only=True" in refusal


def test_the_ids_of_both_versions(told: Story) -> None:
    """One directory's meta.properties was written in version 0, which the broker then started with."""
    found, written = told.ids
    assert found == written
    assert len(set(found.values())) == 3
