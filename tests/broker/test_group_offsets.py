"""Compares what a real broker and Kafka's tools report about groups and transactions with what kafkalog reads.

The broker's clients commit, within transactions too, join and leave; requests on the wire do what clients do not.  The
tools run while the broker runs; then it is killed, a copy of its directory is opened, and kafkalog reports the same.
The test also compares the bytes that kafkalog would have written for the same commits with the broker's bytes.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kafkalog._native.codec.batches import header_at
from kafkalog.config import LogConfig, ProducerStateManagerConfig
from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.groups import ListedGroup
from kafkalog.engine.coordinator.partition_logs import LogMarkers, SourceStateLog, UnifiedStateLog
from kafkalog.engine.coordinator.state_log import TransactionMarker
from kafkalog.engine.coordinator.transaction_coordinator import TransactionCoordinator
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch
from kafkalog.engine.files import LogDirFailureChannel, ManualClock, ManualScheduler
from kafkalog.engine.format.batch import MemoryRecords
from kafkalog.engine.format.coordinator_records import group_record_set
from kafkalog.engine.format.group_records import CommittedOffset, GroupMetadata, decode_group_record
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import read_partition_metadata
from kafkalog.engine.format.records import records
from kafkalog.engine.log.context import PartitionContext, ProducerSettings
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import UnknownMemberIdException
from tests.broker import clients, kraft
from tests.conformance import kafka_jars
from tests.conformance.test_dump_log import tool as tool
from tests.conftest import need_broker
from tests.unit.coordinator_kit import ABORT, COMMIT, Disk
from tests.wire.client import ERRORS, Client

pytestmark = pytest.mark.broker

TOPIC = "input"
OFFSETS, TRANSACTIONS = "__consumer_offsets-0", "__transaction_state-0"
ROWS = 20
OTHERS = {"linger.ms": 5, "acks": "all"}
IDLE_MS = 6000  # a session that outlives the story


class Told(NamedTuple):
    """The tools' output by line, split at spaces, and the broker's log directory."""

    logs: Path
    groups: list[list[str]]
    states: list[list[str]]
    transactions: list[list[str]]
    described: dict[str, list[str]]
    made: Disk
    count: int
    refused: dict[str, list[int]]


def commit_rows(offsets: dict[int, int], metadata: str = "") -> list[Values]:
    partitions = [
        {"partitionIndex": number, "committedOffset": at, "committedLeaderEpoch": 0, "committedMetadata": metadata}
        for number, at in offsets.items()
    ]
    return [{"name": TOPIC, "partitions": partitions}]


def values(offsets: dict[int, int], topic_id: str, metadata: str = "") -> dict[TopicPartition, CommittedOffset]:
    return {
        TopicPartition(TOPIC, number): CommittedOffset(at, 0, metadata, topic_id=topic_id)
        for number, at in offsets.items()
    }


class Story:
    """Commits on the wire, and the same by kafkalog."""

    def __init__(self, bootstrap: str, wired: Client, topic_id: str) -> None:
        self.bootstrap = bootstrap
        self.wire = wired
        self.topic_id = topic_id
        self.disk = Disk()
        self.ours = GroupOffsets(self.disk.log(OFFSETS), ManualClock(1))

    def ask(self, name: str, version: int, **fields: Any) -> Values:
        until = time.monotonic() + 60
        while True:
            answer = self.wire.ask(name, version, fields)
            topics = answer.get("topics", ())
            codes = {each["errorCode"] for topic in topics for each in topic["partitions"]} or {answer["errorCode"]}
            if codes == {0}:
                return answer
            assert codes <= {0, 14, 15, 16, 51}, answer
            assert time.monotonic() < until, answer
            time.sleep(0.02)

    def commit(self, group: str, offsets: dict[int, int], metadata: str = "") -> None:
        self.ask(
            "OffsetCommit", 9, groupId=group, generationIdOrMemberEpoch=-1, memberId="", groupInstanceId=None,
            topics=commit_rows(offsets, metadata),
        )  # fmt: skip
        self.ours.commit(group, values(offsets, self.topic_id, metadata))

    def begin(self, name: str, group: str) -> ProducerIdAndEpoch:
        taken = self.ask(
            "InitProducerId", 5, transactionalId=name, transactionTimeoutMs=600_000, producerId=-1, producerEpoch=-1
        )
        holder = ProducerIdAndEpoch(taken["producerId"], taken["producerEpoch"])
        self.add(name, holder, group)
        return holder

    def add(self, name: str, holder: ProducerIdAndEpoch, group: str) -> None:
        self.ask(
            "AddOffsetsToTxn", 3, transactionalId=name, producerId=holder.producer_id, producerEpoch=holder.epoch,
            groupId=group,
        )  # fmt: skip

    def commit_in(self, name: str, holder: ProducerIdAndEpoch, group: str, offsets: dict[int, int]) -> None:
        self.ask(
            "TxnOffsetCommit", 4, transactionalId=name, groupId=group, producerId=holder.producer_id,
            producerEpoch=holder.epoch, generationIdOrMemberEpoch=-1, memberId="", groupInstanceId=None,
            topics=commit_rows(offsets),
        )  # fmt: skip
        self.ours.commit(group, values(offsets, self.topic_id), holder)

    def end(self, name: str, holder: ProducerIdAndEpoch, *, commit: bool) -> None:
        self.ask(
            "EndTxn", 4, transactionalId=name, producerId=holder.producer_id, producerEpoch=holder.epoch,
            committed=commit,
        )  # fmt: skip
        until = time.monotonic() + 60
        while True:
            [found] = self.wire.ask("DescribeTransactions", 0, {"transactionalIds": [name]})["transactionStates"]
            if not found["transactionState"].startswith("Prepare"):
                break
            assert time.monotonic() < until, found
            time.sleep(0.01)
        self.ours.end_transaction(TransactionMarker(*holder, COMMIT if commit else ABORT, 0, 0))

    def tell(self) -> None:
        """Everything that `__consumer_offsets` is compared for byte by byte."""
        self.commit("plain", {0: 3, 1: 4})
        self.commit("plain", {1: 5}, "said more")
        self.commit("plain", {0: 2})
        committed = self.begin("commits", "in-a-transaction")
        self.commit_in("commits", committed, "in-a-transaction", {0: 7, 1: 8})
        self.end("commits", committed, commit=True)
        aborted = self.begin("aborts", "in-a-transaction")
        self.commit_in("aborts", aborted, "in-a-transaction", {0: 17, 1: 18})
        self.end("aborts", aborted, commit=False)
        overtaken = self.begin("overtaken", "plain")
        self.commit_in("overtaken", overtaken, "plain", {0: 11, 1: 12})
        self.commit("plain", {1: 13})
        self.end("overtaken", overtaken, commit=True)  # 1 was committed since: 13 stays
        left = self.begin("left-open", "only-pending")
        self.commit_in("left-open", left, "only-pending", {0: 1})


def consumer(bootstrap: str, group: str, protocol: str) -> Any:
    """A member that has read and committed."""
    import confluent_kafka

    config = {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": protocol, **clients.QUIET}
    found = confluent_kafka.Consumer(config | {"auto.offset.reset": "earliest", "enable.auto.commit": False})
    found.subscribe([TOPIC])
    until = time.monotonic() + 60
    seen = 0
    while seen < 2 * ROWS:
        message = found.poll(0.2)
        seen += message is not None and message.error() is None
        assert time.monotonic() < until, group
    found.commit(asynchronous=False)
    return found


def told(tool: kafka_jars.Driver, main: str, *args: str) -> list[list[str]]:
    done = subprocess.run(
        tool.command(*args, main=f"org.apache.kafka.tools.{main}"), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    return [line for line in lines if line[0] not in ("GROUP", "TransactionalId", "CoordinatorId")]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, tool: kafka_jars.Driver) -> Iterator[Told]:
    need_broker()
    place = tmp_path_factory.mktemp("groups")
    with kraft.broker(place) as node:
        node.start()
        clients.create_topics(node.bootstrap, {TOPIC: (2, {})})
        producer = clients.ConfluentProducer(node.bootstrap)
        for partition in range(2):
            producer.send(TOPIC, partition, clients.rows(partition, ROWS))
        topic_id = read_partition_metadata(str(node.log_dir / f"{TOPIC}-0" / "partition.metadata")).topic_id
        with Client(node.bootstrap) as wired:
            for kind, key in ((0, "group"), (1, "one")):
                wired.ask("FindCoordinator", 4, {"keyType": kind, "coordinatorKeys": [key]})
            first = Story(node.bootstrap, wired, topic_id)
            first.tell()
        count = len(first.disk.log(OFFSETS).batches)
        for group, protocol in (("classic", "classic"), ("modern", "consumer")):
            consumer(node.bootstrap, group, protocol).close()
        staying = [consumer(node.bootstrap, f"{each}-stays", each) for each in ("classic", "consumer")]
        refused = who_may_commit(node.bootstrap)
        deleted(node.bootstrap)
        at = ("--bootstrap-server", node.bootstrap)
        groups = told(tool, "consumer.group.ConsumerGroupCommand", *at, "--describe", "--all-groups")
        states = told(tool, "consumer.group.ConsumerGroupCommand", *at, "--describe", "--all-groups", "--state")
        listed = told(tool, "TransactionsCommand", *at, "list")
        described = {
            each[0]: told(tool, "TransactionsCommand", *at, "describe", "--transactional-id", each[0])[0]
            for each in listed
        }
        look_on(place / "logs", first, {(line[0], line[1], line[2]): line[3] for line in groups})
        node.kill()
        for each in staying:
            each.close()
    yield Told(place / "logs", groups, states, listed, described, first.disk, count, refused)
    shutil.rmtree(place, ignore_errors=True)


def look_on(logs: Path, story: Story, shown: dict[tuple[str, str, str], str]) -> None:
    """Next to the running broker: its tool's output, then offsets committed meanwhile."""
    with PartitionView(logs, OFFSETS) as view:
        offsets = GroupOffsets(SourceStateLog(view, view.directory), ManualClock(1))
        for (group, topic, number), at in shown.items():
            if group != "Consumer":
                found = offsets.fetch(group, TopicPartition(topic, int(number)))
                assert found is not None
                assert str(found.offset) == at
        with Client(story.bootstrap) as wired:
            story.wire = wired
            story.commit("came later", {0: 77})
        until = time.monotonic() + 60
        while (found := offsets.fetch("came later", TopicPartition(TOPIC, 0))) is None:
            assert time.monotonic() < until
            offsets.catch_up()
        assert found.offset == 77


def who_may_commit(bootstrap: str) -> dict[str, list[int]]:
    """A broker's answers to commits from a client that is not a member of the group: without and with a transaction."""
    found = {}
    with Client(bootstrap) as wired:
        story = Story(bootstrap, wired, "A" * 22)
        for group in ("classic-stays", "consumer-stays"):
            said = {"groupId": group, "memberId": "", "groupInstanceId": None, "topics": commit_rows({0: 1})}
            plain = wired.ask("OffsetCommit", 9, said | {"generationIdOrMemberEpoch": -1})
            holder = story.begin("stranger", group)
            said |= {"transactionalId": "stranger", "generationIdOrMemberEpoch": -1}
            within = wired.ask(
                "TxnOffsetCommit", 4, said | {"producerId": holder.producer_id, "producerEpoch": holder.epoch}
            )
            found[group] = [each["topics"][0]["partitions"][0]["errorCode"] for each in (plain, within)]
            story.end("stranger", holder, commit=False)
    return found


def deleted(bootstrap: str) -> None:
    """A group of each protocol that no longer exists."""
    from confluent_kafka.admin import AdminClient

    for group, protocol in (("was-classic", "classic"), ("was-modern", "consumer")):
        consumer(bootstrap, group, protocol).close()
    admin = AdminClient({"bootstrap.servers": bootstrap, **clients.QUIET})
    for future in admin.delete_consumer_groups(["was-classic", "was-modern"]).values():
        future.result(60)


@pytest.fixture
def opened(story: Told, tmp_path: Path) -> Iterator[dict[str, UnifiedLog]]:
    """The broker's partitions, in a copy of its directory."""
    clock = ManualClock(int(time.time() * 1000))
    found = {}
    for folder in sorted(story.logs.glob("*-[0-9]")):
        shutil.copytree(folder, tmp_path / folder.name)
        context = PartitionContext(
            str(tmp_path / folder.name), LogConfig.from_props(None, {}), ProducerSettings(ProducerStateManagerConfig()),
            ManualScheduler(clock), clock, LogDirFailureChannel(),
        )  # fmt: skip
        found[folder.name] = UnifiedLog.create(context, 0, 0, False)
    yield found
    for log in found.values():
        log.shut_down()


def test_the_broker_wrote_the_bytes_that_we_would(story: Told) -> None:
    data = (story.logs / OFFSETS / f"{0:020}.log").read_bytes()
    theirs, ours = MemoryRecords(data).batches()[: story.count], story.made.log(OFFSETS).batches[: story.count]
    assert len(theirs) == len(ours) > 10
    for head, our in zip(theirs, ours, strict=True):
        their = data[head.position : head.position + head.size]
        our_head = header_at(our)
        assert head.base_offset == our_head.base_offset
        assert untimed(their) == untimed(our)
        assert (head.is_transactional, head.is_control) == (our_head.is_transactional, our_head.is_control)


def untimed(batch: bytes) -> tuple[Any, ...]:
    """A batch without its times, its offset, leader epoch and CRC."""
    head = header_at(batch)
    rows = []
    for record in records(batch, head):
        value = record.value
        if not head.is_control and value is not None:  # version, offset, leader epoch, metadata; then the time
            end = 2 + 8 + 4 + 1 + (value[14] - 1)
            value = value[:end] + value[end + 8 :]
        rows.append((record.offset, record.key, value, record.headers, record.sequence))
    return (batch[8:12], batch[16:17], batch[21:27], batch[43:61], len(batch), tuple(rows))


def test_groups_are_as_the_tool_shows_them(story: Told, opened: dict[str, UnifiedLog]) -> None:
    offsets = GroupOffsets(UnifiedStateLog(opened[OFFSETS], syncs=False), ManualClock(1))
    ends = {TopicPartition(TOPIC, number): opened[f"{TOPIC}-{number}"].log_end_offset for number in range(2)}
    shown = {(line[0], line[1], line[2]): line[3:6] for line in story.groups if line[0] != "Consumer"}
    found = {
        (group.group, each.partition.topic, str(each.partition.partition)): [
            str(each.committed.offset), str(each.end), str(each.lag),
        ]
        for group in offsets.list_groups()
        for each in offsets.lag(group.group, ends)
    }  # fmt: skip
    del found["came later", TOPIC, "0"]
    assert found == shown
    assert {name for name, _, _ in found} == {
        "plain", "in-a-transaction", "classic", "modern", "classic-stays", "consumer-stays",
    }  # fmt: skip
    assert found["plain", TOPIC, "0"][0] == "11"
    assert found["plain", TOPIC, "1"][0] == "13"
    assert offsets.pending("only-pending") == {TopicPartition(TOPIC, 0): {int(story.described["left-open"][2])}}


def test_who_may_commit(story: Told, opened: dict[str, UnifiedLog]) -> None:
    offsets = GroupOffsets(UnifiedStateLog(opened[OFFSETS], syncs=False), ManualClock(1))
    for group, (plain, within) in story.refused.items():
        assert (plain, within) == (ERRORS["UnknownMemberIdException"], 0)
        with pytest.raises(UnknownMemberIdException):
            offsets.commit(group, values({0: 1}, "A" * 22))
        offsets.commit(group, values({0: 1}, "A" * 22), ProducerIdAndEpoch(1 << 62, 0))
        assert offsets.remove_members(group)
        offsets.commit(group, values({0: 1}, "A" * 22))
        assert offsets.describe(group).state == "Empty"


@pytest.mark.parametrize(("group", "type"), [("classic", 2), ("modern", 5)])
def test_members_leave_as_with_a_broker(story: Told, group: str, type: int) -> None:
    """The records of the last member's leaving, from the same state."""
    data = (story.logs / OFFSETS / f"{0:020}.log").read_bytes()
    log = Disk().log(OFFSETS)
    for head in MemoryRecords(data).batches():
        rows = [] if head.is_control else [(each.key, each.value) for each in records(data, head)]
        if any(leaves(key, value, group, type) for key, value in rows):
            break
        log.batches.append(data[head.position : head.position + head.size])
    else:
        raise AssertionError(f"nobody left {group}")
    offsets = GroupOffsets(log, ManualClock(head.max_timestamp))
    assert offsets.describe(group).state == "Stable"
    assert offsets.remove_members(group)
    ours = [(each.key, each.value) for each in records(log.batches[-1], header_at(log.batches[-1]))]
    assert [(key, timeless(value, type)) for key, value in ours] == [
        (key, timeless(value, type)) for key, value in rows
    ]


def leaves(key: bytes | None, value: bytes | None, group: str, type: int) -> bool:
    number, fields = group_record_set().decode_key(key)
    if number != type or fields.get("group", fields.get("groupId")) != group:
        return False
    if type == 5:
        return value is None
    metadata = None if value is None else decode_group_record(key, value)[1]
    return isinstance(metadata, GroupMetadata) and not metadata.members and metadata.generation > 0  # 0: it is new


@pytest.mark.parametrize("group", ["was-classic", "was-modern"])
def test_groups_are_deleted_as_with_a_broker(story: Told, group: str) -> None:
    """The same tombstones from the same state; those of several offsets in the order of a map that is not Java's."""
    data = (story.logs / OFFSETS / f"{0:020}.log").read_bytes()
    log = Disk().log(OFFSETS)
    theirs: list[tuple[bytes | None, bytes | None]] = []
    for head in MemoryRecords(data).batches():
        rows = [] if head.is_control else [(each.key, each.value) for each in records(data, head)]
        theirs = [row for row in rows if row[1] is None and named(row[0]) == group]
        if any(group_record_set().decode_key(key)[0] in (2, 3) for key, _ in theirs):
            break
        log.batches.append(data[head.position : head.position + head.size])
    count = len(log.batches)
    GroupOffsets(log, ManualClock(1)).delete_group(group)
    ours = [(each.key, each.value) for batch in log.batches[count:] for each in records(batch, header_at(batch))]
    assert len(ours) == len(theirs) > 2
    assert sorted(map(repr, ours)) == sorted(map(repr, theirs))
    assert ours[2:] == theirs[2:]  # after two offsets


def named(key: bytes | None) -> str:
    fields = group_record_set().decode_key(key)[1]
    return str(fields.get("group", fields.get("groupId")))


def timeless(value: bytes | None, type: int) -> bytes | None:
    """A classic group's record without its state timestamp, which precedes the number of members."""
    return value if type != 2 or value is None else value[:-12]


def test_states_are_as_the_tool_shows_them(story: Told, opened: dict[str, UnifiedLog]) -> None:
    offsets = GroupOffsets(UnifiedStateLog(opened[OFFSETS], syncs=False), ManualClock(1))
    states = {"Empty", "Stable", "Assigning", "Reconciling"}
    shown = {line[0]: next(word for word in line if word in states) for line in story.states if line[0] != "Consumer"}
    listed: dict[str, ListedGroup] = {each.group: each for each in offsets.list_groups()}
    del listed["came later"]
    assert {name: each.state for name, each in listed.items()} == shown
    assert {name for name, each in listed.items() if each.state == "Stable"} == {"classic-stays", "consumer-stays"}
    assert {(each.type.value, each.protocol_type) for each in listed.values()} == {
        ("Classic", ""), ("Classic", "consumer"), ("Consumer", "consumer"),
    }  # fmt: skip


def test_transactions_are_as_the_tool_shows_them(story: Told, opened: dict[str, UnifiedLog]) -> None:
    coordinator = coordinator_over(opened)
    coordinator.load([0])
    shown = {line[0]: (int(line[2]), line[3]) for line in story.transactions}
    listed = {each.transactional_id: each for each in coordinator.list_transactions()}
    assert {name: (each.producer_id, each.state) for name, each in listed.items()} == shown
    assert {each.state for each in listed.values()} == {"CompleteCommit", "CompleteAbort", "Ongoing"}
    for name, line in story.described.items():
        # CoordinatorId, TransactionalId, ProducerId, ProducerEpoch, State, TimeoutMs, StartTime, Duration, Partitions
        ours = listed[name]
        assert line[1:6] == [name, str(ours.producer_id), str(ours.producer_epoch), ours.state, str(ours.timeout_ms)]
        assert [str(each) for each in ours.partitions] == [each for each in line[-1:] if each == OFFSETS]


def coordinator_over(opened: dict[str, UnifiedLog]) -> TransactionCoordinator:
    clock = ManualClock(int(time.time() * 1000))
    state = UnifiedStateLog(opened[TRANSACTIONS], syncs=False)
    groups = {
        TopicPartition("__consumer_offsets", 0): GroupOffsets(UnifiedStateLog(opened[OFFSETS], syncs=False), clock)
    }
    markers = LogMarkers(lambda each: opened.get(str(each)), groups.get, clock, syncs=False)
    return TransactionCoordinator(
        lambda number, create: state, 1, markers, lambda name, previous: 1 << 62, clock, offsets_partition_count=1
    )


def test_what_the_broker_left_open_is_ended(story: Told, opened: dict[str, UnifiedLog]) -> None:
    coordinator = coordinator_over(opened)
    coordinator.load([0])
    assert coordinator.finish_prepared() == []
    assert coordinator.abort("left-open")
    assert coordinator.describe("left-open").state == "CompleteAbort"
    offsets = GroupOffsets(UnifiedStateLog(opened[OFFSETS], syncs=False), ManualClock(1))
    assert offsets.pending("only-pending") == {}
    assert offsets.fetch_all("only-pending") == {}
