"""A real KRaft broker and real clients against kafkalog on one log directory (the plot is in `story`).

The broker's clients and kafkalog must read the same records at both isolation levels, no matter which of them wrote the
records. The broker must log no complaint.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import kafkalog
from kafkalog import Record
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import LogDirLockedException
from kafkalog.toolbox.report import Report
from tests.broker import clients, kraft, story
from tests.broker.story import ISOLATIONS, Look, Phase
from tests.conftest import need_broker

pytestmark = pytest.mark.broker

ALL = story.partitions((*story.BY_KAFKA, *story.BY_KAFKALOG))
BY_KAFKA = story.partitions(story.BY_KAFKA)
BY_KAFKALOG = story.partitions(story.BY_KAFKALOG)


@dataclass
class FirstLife(Phase):
    compacted: Phase = field(default_factory=Phase)
    refusal: str = ""
    pid: int = 0
    killed: Path = Path()  # the log directory as SIGKILL left it
    complaints: tuple[str, ...] = ()


@dataclass
class SecondLife(Phase):
    before: dict[TopicPartition, Look] | None = None  # kafkalog, before the start
    on: dict[TopicPartition, list[Record]] | None = None  # read later from a log that stayed open
    tails: dict[tuple[TopicPartition, str], list[Record]] | None = None  # read while clients appended
    told: list[int] | None = None  # offsets that the killed writer had got
    files: dict[TopicPartition, dict[str, bytes]] | None = None
    more: dict[str, dict[TopicPartition, clients.Seen]] | None = None  # served after clients appended more
    complaints: tuple[str, ...] = ()
    stopped_with: int = 0


@dataclass
class ThirdLife(Phase):
    before: dict[TopicPartition, Look] | None = None
    refused_with: int = 0
    refused_log: str = ""
    next_sequence: tuple[int, int] = (0, 0)
    deleted_before: int = 0
    python: dict[TopicPartition, list[Record]] | None = None  # read by kafka-python's consumer, read_committed
    reports: tuple[Report, ...] = ()  # kafkalog's verification before and after the third run
    complaints: tuple[str, ...] = ()
    log: str = ""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kraft.Broker]:
    need_broker()
    place = tmp_path_factory.mktemp("broker")
    with kraft.broker(place) as node:
        yield node
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def first(node: kraft.Broker) -> FirstLife:
    life = FirstLife()
    node.start()
    clients.create_topics(node.bootstrap, story.TOPICS)
    held = story.kafka_writes(node)
    story.kafka_compacts(node)
    life.compacted.served = story.serve(node, [story.COMPACTED_PARTITION])
    life.compacted.looks = story.look_on(node.log_dir, [story.COMPACTED_PARTITION])
    life.served = story.serve(node, BY_KAFKA)
    life.looks = story.look_on(node.log_dir, BY_KAFKA)
    life.pid = node.pid
    with pytest.raises(LogDirLockedException) as refused:
        kafkalog.open_log(node.log_dir, story.MIXED, take_over=True)
    life.refusal = str(refused.value)
    life.complaints = tuple(node.complaints(story.TOPICS))
    node.kill()
    del held  # its transaction stays open forever
    life.folders, life.topic_ids = story.folder_names(node), story.topic_ids(node)
    life.killed = node.place / "killed"
    shutil.copytree(node.log_dir, life.killed)
    return life


@pytest.fixture(scope="module")
def recovered(node: kraft.Broker, first: FirstLife) -> dict[TopicPartition, Look]:
    """The state after writable opens of a copy that was taken after SIGKILL."""
    return story.recover_copy(node, node.place / "recovered", BY_KAFKA)


@pytest.fixture(scope="module")
def second(node: kraft.Broker, first: FirstLife) -> SecondLife:
    life = SecondLife()
    story.kafkalog_writes(node, 1)
    with kafkalog.open_log(node.log_dir, story.MIXED, config=story.ROLLS, create=False, take_over=True) as log:
        log.append_many(story.plain(clients.rows(9000, 40)))
        with log.transaction("own") as transaction:
            transaction.append_many(story.plain(clients.rows(9001, 4)))
    life.told = story.killed_while_writing(node)
    life.before = story.look_on(node.log_dir, ALL)
    node.start()
    life.served = story.serve(node, ALL)
    tails = {
        (each, isolation): story.Tail(node.log_dir, each, isolation)
        for each in (story.MINE_TXNS, story.MIXED)
        for isolation in ISOLATIONS
    }
    staying = {each: kafkalog.open_log(node.log_dir, each, read_only=True) for each in ALL}
    ends = {each: log.end_offset for each, log in staying.items()}
    story.kafka_writes_on(node)
    life.more = story.serve(node, ALL)
    life.tails = {each: tail.finish() for each, tail in tails.items()}
    life.on = {each: list(log.records(ends[each])) for each, log in staying.items()}
    life.looks = {each: story.look(log) for each, log in staying.items()}
    for log in staying.values():
        log.close()
    life.stopped_with = node.stop()
    life.complaints = tuple(node.complaints(story.TOPICS))
    life.folders, life.topic_ids = story.folder_names(node), story.topic_ids(node)
    life.files = {each: story.files(node.log_dir / str(each)) for each in ALL}
    return life


@pytest.fixture(scope="module")
def third(node: kraft.Broker, second: SecondLife) -> ThirdLife:
    life = ThirdLife()
    mine = TopicPartition("mine", 1)
    with kafkalog.open_log(node.log_dir, mine, config=story.ROLLS, create=False, take_over=True) as log:
        first_number = log.writer("import").next_sequence
        node.launch()  # a broker that starts now must find the directory taken
        life.refused_with = node.wait(kraft.START_SECONDS_MAX)
        life.refused_log = node.log_text()
        story.kafkalog_writes_more(log)
        life.next_sequence = (first_number, log.writer("import").next_sequence)
        life.deleted_before = log.delete_records(log.end_offset // 2)
    with kafkalog.open_log(node.log_dir, story.MINE_TXNS, config=story.ROLLS, create=False, take_over=True) as log:
        story.own_transactions(log, 2)
    with kafkalog.open_log(node.log_dir, story.MINE_KILLED, config=story.ROLLS, create=False, take_over=True) as log:
        log.transaction("killed").begin()  # aborts what the kill left open
    life.before = story.look_on(node.log_dir, [*ALL, story.TRANSACTION_STATE])
    before = kafkalog.verify(node.log_dir, deep=True)
    node.start()
    life.served = story.serve(node, [*ALL, story.TRANSACTION_STATE])
    # (Without python-snappy kafka-python reads no snappy.)
    readable = [each for each in BY_KAFKALOG if each != TopicPartition("mine", story.CODECS.index("snappy"))]
    ends = {each: life.served["read_committed"][each].end for each in readable}
    life.python = clients.consume_with_python(node.bootstrap, ends)
    life.complaints, life.log = tuple(node.complaints(story.TOPICS)), node.log_text()
    life.folders, life.topic_ids = story.folder_names(node), story.topic_ids(node)
    node.stop()
    life.reports = (before, kafkalog.verify(node.log_dir, deep=True))
    return life


def check_same(served: dict[str, dict[TopicPartition, clients.Seen]], looks: dict[TopicPartition, Look]) -> None:
    """kafkalog's records and Arrow rows are those that clients got, and so are the ends of the log."""
    for each, seen in looks.items():
        for isolation in ISOLATIONS:
            got = served[isolation][each]
            assert seen.records[isolation] == got.records, (each, isolation)
            assert seen.arrow[isolation] == got.records, (each, isolation)
            assert (seen.start, seen.end if isolation == "read_uncommitted" else seen.stable) == (got.start, got.end)


# --- Kafka wrote it --------------------------------------------------------------------------------------------


def test_the_plot_is_worth_its_time(first: FirstLife) -> None:
    """The data that the tests below compare includes aborted, committed and open transactions, rolls and all codecs."""
    counts = {each: tuple(len(first.served[isolation][each].records) for isolation in ISOLATIONS) for each in BY_KAFKA}
    assert counts[TopicPartition("txns", 0)][0] > counts[TopicPartition("txns", 0)][1] > 50
    assert counts[TopicPartition("txns", 1)][0] > counts[TopicPartition("txns", 1)][1] > 30
    assert counts[story.OPEN][0] > counts[story.OPEN][1] > 0
    for name in ("mixed-0", "txns-0", "open-0"):
        assert len(list((first.killed / name).glob("*.log"))) > 1, name
    assert list((first.killed / "txns-0").glob("*.txnindex"))


def test_kafkas_records_beside_the_running_broker(first: FirstLife) -> None:
    check_same(first.served, first.looks)


def test_kafkas_records_after_sigkill_read_only(first: FirstLife) -> None:
    check_same(first.served, story.look_on(first.killed, BY_KAFKA))


def test_kafkas_records_after_sigkill_recovered(
    first: FirstLife, recovered: dict[TopicPartition, Look], node: kraft.Broker
) -> None:
    check_same(first.served, recovered)
    check_same(first.served, story.look_on(node.place / "recovered", BY_KAFKA))


def test_kafkas_recovery_and_ours_leave_the_same_files(
    second: SecondLife, recovered: dict[TopicPartition, Look], node: kraft.Broker
) -> None:
    """Compares the partitions to which nothing was written after recovery."""
    assert second.files is not None
    for each in story.partitions(("plain", "txns", "stamped")):
        ours, kafkas = story.files(node.place / "recovered" / str(each)), second.files[each]
        assert sorted(ours) == sorted(kafkas), each
        for name, content in kafkas.items():
            assert ours[name] == content, (each, name)


def test_what_kafkas_cleaner_left(first: FirstLife) -> None:
    check_same(first.compacted.served, first.compacted.looks)
    records = first.compacted.looks[story.COMPACTED_PARTITION].records["read_committed"]
    assert 0 < len(records) < 6 * 60 // 2


# --- kafkalog wrote it -----------------------------------------------------------------------------------------


def test_kafkalogs_records_are_served(second: SecondLife) -> None:
    """Also Kafka's own, after the broker's recovery."""
    assert second.before is not None
    check_same(second.served, second.before)
    counts = [len(second.before[story.MINE_TXNS].records[isolation]) for isolation in ISOLATIONS]
    assert counts[0] > counts[1] > 50


def test_kafkalog_reads_on_after_clients_appended(second: SecondLife) -> None:
    assert second.more is not None
    assert second.on is not None
    check_same(second.more, second.looks)
    assert second.tails is not None
    for (each, isolation), records in second.tails.items():
        assert records == second.more[isolation][each].records, (each, isolation)
    for each, records in second.on.items():
        before = second.served["read_uncommitted"][each].end
        assert records == [r for r in second.more["read_uncommitted"][each].records if r.offset >= before]
    # The transaction that SIGKILL left open is aborted by now, and the log is stable to its end.
    assert second.looks[story.OPEN].stable == second.looks[story.OPEN].end
    assert len({r.leader_epoch for r in second.looks[story.MINE_TXNS].records["read_uncommitted"]}) == 2


def test_kafkalogs_records_after_a_clean_stop_and_start(third: ThirdLife) -> None:
    assert third.before is not None
    check_same(third.served, third.before)
    assert third.python is not None
    for each, records in third.python.items():
        assert records == third.before[each].records["read_committed"], each


def test_a_killed_writers_records_are_served(second: SecondLife, third: ThirdLife) -> None:
    """A torn batch is truncated; its transaction stays open until its transactional id comes again."""
    assert second.before is not None
    assert second.told is not None
    at_kill = second.before[story.MINE_KILLED]
    assert second.told[-2] < at_kill.end
    assert at_kill.stable < at_kill.end
    assert at_kill.stable == second.served["read_committed"][story.MINE_KILLED].end
    assert third.before is not None
    later = third.before[story.MINE_KILLED]
    assert later.stable == later.end == at_kill.end + 1
    assert {r.offset for r in later.records["read_committed"]} > {r.offset for r in at_kill.records["read_committed"]}


def test_a_named_writer_survives_the_brokers_lives(third: ThirdLife) -> None:
    before, after = third.next_sequence
    assert (before, after) == (50, 80)


def test_deleted_records_stay_deleted(third: ThirdLife) -> None:
    assert third.served["read_uncommitted"][TopicPartition("mine", 1)].start == third.deleted_before > 0


def test_the_clean_marker_is_believed(third: ThirdLife) -> None:
    assert "Skipping recovery" in third.log
    assert not [line for line in third.log.splitlines() if "Recovering unflushed" in line and "__cluster" not in line]


def test_the_broker_has_no_complaints(first: FirstLife, second: SecondLife, third: ThirdLife) -> None:
    assert first.complaints == third.complaints == ()
    (torn,) = second.complaints  # the batch that was torn on purpose
    assert "mine-killed-0" in torn
    assert "Corruption found in segment" in torn
    for line in third.log.splitlines():
        assert not any(word in line.lower() for word in ("truncat", "stray", "offline")), line
    assert first.folders == second.folders == third.folders
    assert first.topic_ids == second.topic_ids == third.topic_ids
    assert third.reports[0].ok, third.reports[0].findings
    assert third.reports[1].ok, third.reports[1].findings
    assert second.stopped_with == 143  # a JVM's way of saying SIGTERM


# --- the lock --------------------------------------------------------------------------------------------------


def test_a_directory_that_a_broker_holds(first: FirstLife) -> None:
    assert "Failed to acquire lock on file .lock" in first.refusal
    assert f"process {first.pid} (java) holds it" in first.refusal
    assert "read_only=True" in first.refusal
    assert "\n" not in first.refusal


def test_a_directory_that_kafkalog_holds(third: ThirdLife) -> None:
    assert third.refused_with != 0
    assert "A Kafka instance in another process or thread is using this directory" in third.refused_log
