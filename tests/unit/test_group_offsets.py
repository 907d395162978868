"""Committed offsets and groups of a partition: loads, commits, transactions, deletions, expiry."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from kafkalog.engine.coordinator.group_offsets import GroupLag, GroupOffsets
from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.coordinator.groups import GroupType, ListedGroup
from kafkalog.engine.coordinator.state_log import TransactionMarker, in_batches, parsed_batch, records_batch
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format.batch import ProducerFields
from kafkalog.engine.format.coordinator_records import CoordinatorRecord, group_record_set
from kafkalog.engine.format.group_records import (
    CommittedOffset,
    GroupKey,
    GroupMember,
    GroupMetadata,
    OffsetKey,
    Subscription,
    encode_group_metadata,
    encode_offset_commit,
    encode_subscription,
)
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import (
    GroupIdNotFoundException,
    GroupNotEmptyException,
    GroupSubscribedToTopicException,
    IllegalArgumentException,
    InvalidGroupIdException,
    OffsetMetadataTooLarge,
    RecordTooLargeException,
    SchemaException,
    UnknownMemberIdException,
    UnstableOffsetCommitException,
)
from tests.unit.coordinator_kit import ABORT, COMMIT, NOW_MS, Disk, MemoryLog

A, B, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
HOLDER, SECOND = ProducerIdAndEpoch(7, 0), ProducerIdAndEpoch(8, 3)
WEEK_MS = 7 * 24 * 3600 * 1000
ID_1, ID_2 = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
MARKER = TransactionMarker(*HOLDER, COMMIT, 0, 0)
Row = tuple[bytes | None, bytes | None]


class Kit:
    """One partition over a log in memory; `other()` reads the log anew."""

    def __init__(self) -> None:
        self.log: MemoryLog = Disk().log("__consumer_offsets-3")
        self.clock = ManualClock(NOW_MS)
        self.offsets = self.other()

    def other(self) -> GroupOffsets:
        return GroupOffsets(self.log, self.clock)

    def put(self, *rows: Row) -> GroupOffsets:
        """Appends records as another writer, then reads the log again."""
        self.log.append(records_batch(rows, NOW_MS, ProducerFields(base_sequence=0)))  # type: ignore[arg-type]
        return self.other()

    def same(self) -> GroupOffsets:
        """Compares the state in memory with the state read from the log."""
        read = self.other()
        for each in ("_committed", "_pending", "_open"):
            ours, theirs = ({k: v for k, v in getattr(it.table, each).items() if v} for it in (self.offsets, read))
            assert ours == theirs, each
        assert read.list_groups() == self.offsets.list_groups()
        return read


@pytest.fixture
def kit() -> Kit:
    return Kit()


def offset(partition: TopicPartition, at: int | None, group: str = "g", **more: Any) -> tuple[bytes, bytes | None]:
    value = None if at is None else CommittedOffset(at, **{"commit_timestamp": NOW_MS, **more})
    return encode_offset_commit(OffsetKey(group, *partition), value)


def modern(type: int, value: dict[str, Any] | None, **key: str) -> tuple[bytes, bytes | None]:
    return group_record_set().encode(CoordinatorRecord(type, {"groupId": "g"} | key, 0, value))


def classic(*topics: str, protocol_type: str = "consumer", since: int = NOW_MS, members: int = 1) -> Row:
    said = encode_subscription(Subscription(topics))
    member = GroupMember("m", None, "c", "/h", 1, 1, said, b"")
    metadata = GroupMetadata(protocol_type, 4, "range" if members else None, None, since, (member,) * members)
    return encode_group_metadata(GroupKey("g"), metadata)


# --- commits ----------------------------------------------------------------------------------------------


def test_commits(kit: Kit) -> None:
    kit.offsets.commit("g", {A: CommittedOffset(3, 1, "said"), B: CommittedOffset(4)})
    kit.clock.advance(5)
    kit.offsets.commit("g", {A: CommittedOffset(2)})
    assert kit.offsets.fetch("g", A) == CommittedOffset(2, commit_timestamp=NOW_MS + 5)
    assert kit.offsets.fetch("g", OTHER) is None
    assert kit.offsets.fetch("nobody", A) is None
    assert list(kit.offsets.fetch_all("g")) == [A, B]
    assert kit.offsets.lag("g", {A: 10}) == [
        GroupLag(A, CommittedOffset(2, commit_timestamp=NOW_MS + 5), 10),
        GroupLag(B, CommittedOffset(4, commit_timestamp=NOW_MS), None),
    ]
    assert [each.lag for each in kit.offsets.lag("g", {A: 10})] == [8, None]
    assert kit.offsets.list_groups() == [ListedGroup("g", "", "Empty", GroupType.CLASSIC)]
    assert len(kit.log.batches) == 2  # both partitions in one batch: all or nothing
    kit.same()
    assert kit.log.flushed == 0
    kit.offsets.flush()
    assert kit.log.flushed == 2


def test_what_a_commit_refuses(kit: Kit) -> None:
    with pytest.raises(InvalidGroupIdException):
        kit.offsets.commit("", {A: CommittedOffset(1)})
    with pytest.raises(IllegalArgumentException, match="t-0: found -1"):
        kit.offsets.commit("g", {A: CommittedOffset(-1)})
    kit.offsets.commit("g", {A: CommittedOffset(1, metadata="é" * 4096)})
    for text in ("x" * 4097, "\U0001f600" * 2049):
        with pytest.raises(OffsetMetadataTooLarge, match=r"found \d+ characters, expected at most 4096"):
            kit.offsets.commit("g", {B: CommittedOffset(1), A: CommittedOffset(2, metadata=text)})
    kit.log.batch_bytes_max = 5_000
    with pytest.raises(RecordTooLargeException, match="expected at most 5000"):
        kit.offsets.commit("g", {TopicPartition("t", n): CommittedOffset(n) for n in range(200)})
    kit.offsets.commit("g", {})
    assert kit.offsets.fetch_all("g").keys() == {A}
    assert len(kit.log.batches) == 1


def test_a_topic_of_the_same_name(kit: Kit) -> None:
    kit.offsets.commit("g", {A: CommittedOffset(1, topic_id=ID_1), B: CommittedOffset(2)})
    assert kit.offsets.fetch("g", A, topic_id=ID_1) is not None
    assert kit.offsets.fetch("g", A) is not None
    assert kit.offsets.fetch("g", A, topic_id=ID_2) is None
    assert kit.offsets.fetch("g", B, topic_id=ID_2) is not None


# --- transactions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [COMMIT, ABORT])
def test_a_transactions_offsets_count_from_its_end_on(kit: Kit, kind: Any) -> None:
    kit.offsets.commit("g", {A: CommittedOffset(1)})
    kit.offsets.commit("g", {A: CommittedOffset(5), B: CommittedOffset(6)}, HOLDER)
    assert kit.offsets.fetch("g", A) == CommittedOffset(1, commit_timestamp=NOW_MS)
    assert kit.offsets.pending("g") == {A: {7}, B: {7}}
    with pytest.raises(UnstableOffsetCommitException):
        kit.offsets.fetch("g", B, require_stable=True)
    kit.same()
    kit.offsets.end_transaction(MARKER._replace(kind=kind))
    found = {partition: value.offset for partition, value in kit.offsets.fetch_all("g").items()}
    assert found == ({A: 5, B: 6} if kind is COMMIT else {A: 1})
    assert kit.offsets.pending("g") == {}
    kit.same()
    kit.offsets.end_transaction(MARKER._replace(kind=kind))  # a second marker is harmless
    kit.same()
    header = parsed_batch(kit.log.batches[1])
    assert (header.producer_id, header.producer_epoch) == HOLDER


def test_what_was_committed_since_stays(kit: Kit) -> None:
    kit.offsets.commit("g", {A: CommittedOffset(5), B: CommittedOffset(6)}, HOLDER)
    kit.offsets.commit("g", {A: CommittedOffset(9)}, SECOND)
    kit.offsets.commit("g", {B: CommittedOffset(2)})
    kit.offsets.end_transaction(MARKER._replace(producer_id=8, producer_epoch=3))
    kit.offsets.end_transaction(MARKER)
    found = {partition: value.offset for partition, value in kit.offsets.fetch_all("g").items()}
    assert found == {A: 9, B: 2}
    kit.same()


def test_a_deletion_takes_what_is_pending_too(kit: Kit) -> None:
    kit.offsets.commit("g", {A: CommittedOffset(5), B: CommittedOffset(6)}, HOLDER)
    assert kit.offsets.delete_offsets("g", [A, OTHER]) == [A]
    kit.offsets.end_transaction(MARKER)
    assert kit.offsets.fetch_all("g").keys() == {B}
    kit.same()


# --- loading --------------------------------------------------------------------------------------------------


def test_the_last_record_of_a_key_wins(kit: Kit) -> None:
    read = kit.put(offset(A, 1), offset(B, 2), offset(A, 3), offset(B, None), offset(OTHER, None, "h"))
    assert {partition: value.offset for partition, value in read.fetch_all("g").items()} == {A: 3}
    assert [each.group for each in read.list_groups()] == ["g"]


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_older_versions_of_offsets(kit: Kit, version: int) -> None:
    value = CommittedOffset(3, -1, "m", NOW_MS, NOW_MS + 5 if version == 1 else -1)
    assert kit.put(encode_offset_commit(OffsetKey("g", *A), value, version=version)).fetch("g", A) == value


def test_unknown_types_are_passed_over(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    assert kit.put((struct.pack(">h", 9), b"?"), offset(A, 1)).fetch("g", A) is not None
    assert "the record at offset 0 is skipped" in caplog.text


KEY, VALUE = offset(A, 1)
assert VALUE is not None
BAD_RECORDS: dict[str, list[Row]] = {
    "a null key": [(None, VALUE)],
    "a short key": [(b"\0", VALUE)],
    "an unknown value version": [(KEY, b"\0\x09" + VALUE[2:])],
    "a cut value": [(KEY, VALUE[:-3])],
    "an empty value": [(KEY, b"")],
    "a group deleted with members": [modern(5, MEMBER := {
        "instanceId": None, "rackId": None, "clientId": "c", "clientHost": "h", "subscribedTopicNames": ["t"],
        "subscribedTopicRegex": None, "rebalanceTimeoutMs": 1, "serverAssignor": None, "classicMemberMetadata": None,
    }, memberId="m"), modern(3, None)],
    "a group deleted with an assignment": [
        modern(6, {"assignmentEpoch": 1, "assignmentTimestamp": 0}), modern(3, None),
    ],
    "an assignment deleted with members": [
        modern(7, {"topicPartitions": []}, memberId="m"), modern(6, None),
    ],
    "a member deleted with an epoch": [modern(5, MEMBER, memberId="m"), modern(5, None, memberId="m")],
    "two kinds of group": [modern(3, {"epoch": 1, "metadataHash": 0}), modern(11, {"epoch": 1, "metadataHash": 0})],
}  # fmt: skip


@pytest.mark.parametrize("rows", BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_what_cannot_be_understood_refuses_the_partition(kit: Kit, rows: list[Row]) -> None:
    with pytest.raises(SchemaException, match=rf"/memory/__consumer_offsets-3: the record at offset {len(rows)} "):
        kit.put(offset(A, 1), *rows)


# --- groups ---------------------------------------------------------------------------------------------------


def test_classic_groups(kit: Kit) -> None:
    stable = kit.put(classic("t"), offset(A, 1), offset(OTHER, 1))
    assert stable.list_groups() == [ListedGroup("g", "consumer", "Stable", GroupType.CLASSIC)]
    with pytest.raises(UnknownMemberIdException, match="is Stable"):
        stable.commit("g", {A: CommittedOffset(2)})
    with pytest.raises(GroupNotEmptyException):
        stable.delete_group("g")
    with pytest.raises(GroupSubscribedToTopicException, match="'t'"):
        stable.delete_offsets("g", [OTHER, A])
    assert stable.delete_offsets("g", [OTHER]) == [OTHER]
    empty = kit.put(classic(members=0))
    assert empty.describe("g") == ListedGroup("g", "consumer", "Empty", GroupType.CLASSIC)
    empty.commit("g", {A: CommittedOffset(2)})
    empty.delete_group("g")
    assert (empty.list_groups(), empty.fetch_all("g")) == ([], {})
    assert kit.other().list_groups() == []
    for call in (empty.delete_group, empty.describe):
        with pytest.raises(GroupIdNotFoundException):
            call("g")


def test_members_that_are_gone(kit: Kit) -> None:
    """As a broker writes it (`tests/broker/test_group_offsets.py`), of both kinds of group; offsets stay."""
    found = kit.put(classic("t"), offset(A, 1))
    kit.clock.advance(5)
    assert found.remove_members("g")
    assert found.describe("g") == ListedGroup("g", "consumer", "Empty", GroupType.CLASSIC)
    assert not found.remove_members("g")
    assert found.fetch("g", A) is not None
    [record] = parsed_batch(kit.log.batches[-1]).records
    assert (record.key, record.value) == encode_group_metadata(
        GroupKey("g"), GroupMetadata("consumer", 5, None, None, NOW_MS + 5)
    )
    kit.put(encode_group_metadata(GroupKey("g"), None))
    modern_one = kit.put(
        modern(3, {"epoch": 7, "metadataHash": 9}), modern(5, MEMBER, memberId="m"), modern(5, MEMBER, memberId="n"),
        modern(6, {"assignmentEpoch": 7, "assignmentTimestamp": 0}), modern(7, {"topicPartitions": []}, memberId="m"),
        modern(8, current(epoch=7, state=0), memberId="m"),
    )  # fmt: skip
    assert modern_one.remove_members("g")
    assert modern_one.describe("g").state == "Empty"
    modern_one.commit("g", {A: CommittedOffset(2)})
    assert kit.other().describe("g").state == "Empty"
    with pytest.raises(GroupIdNotFoundException):
        modern_one.remove_members("nobody")
    with pytest.raises(GroupIdNotFoundException):
        kit.put(modern(17, {"epoch": 1, "metadataHash": 0}, groupId="s")).remove_members("s")


def test_a_transaction_of_a_stranger(kit: Kit) -> None:
    """Kafka lets it commit for a group with members, if it names none."""
    found = kit.put(classic("t"))
    found.commit("g", {A: CommittedOffset(3)}, HOLDER)
    found.end_transaction(MARKER)
    assert found.fetch("g", A) is not None


def test_a_group_that_is_no_consumer_of_topics(kit: Kit) -> None:
    found = kit.put(classic(protocol_type="connect"), offset(A, 1))
    assert found.describe("g").protocol_type == "connect"
    with pytest.raises(GroupNotEmptyException):
        found.delete_offsets("g", [A])
    unreadable = kit.put(encode_group_metadata(GroupKey("g"), GroupMetadata("consumer", 1, "p", "m", 5, (
        GroupMember("m", None, "c", "h", 1, 1, b"\xff", b""),))))  # fmt: skip
    with pytest.raises(GroupSubscribedToTopicException):  # its subscription is not known
        unreadable.delete_offsets("g", [OTHER])


def test_a_groups_tombstone_leaves_its_offsets(kit: Kit) -> None:
    found = kit.put(classic(members=0), offset(A, 1), encode_group_metadata(GroupKey("g"), None))
    assert found.list_groups() == []
    assert found.fetch("g", A) is not None


def test_groups_of_the_consumer_protocol(kit: Kit) -> None:
    states = []
    for row in (
        modern(3, {"epoch": 1, "metadataHash": 0}),
        modern(5, {**MEMBER, "subscribedTopicRegex": "u.*"}, memberId="m"),
        modern(6, {"assignmentEpoch": 1, "assignmentTimestamp": 0}),
        modern(7, {"topicPartitions": []}, memberId="m"),
        modern(8, current(epoch=1, state=1), memberId="m"),
        modern(8, current(epoch=1, state=0), memberId="m"),
        modern(16, {"topics": ["u"], "version": 1, "timestamp": 1}, regularExpression="u.*"),
        modern(3, {"epoch": 2, "metadataHash": 0}),
    ):
        states.append(kit.put(row).describe("g"))
    assert [each.state for each in states] == [
        "Empty", "Reconciling", "Reconciling", "Reconciling", "Reconciling", "Stable", "Stable", "Assigning",
    ]  # fmt: skip
    assert states[0][1:] == ("consumer", "Empty", GroupType.CONSUMER)
    there = kit.put(offset(A, 1), offset(OTHER, 2), offset(TopicPartition("v", 0), 3))
    with pytest.raises(UnknownMemberIdException):
        there.commit("g", {A: CommittedOffset(2)})
    for place in (A, OTHER):  # by name, by expression
        with pytest.raises(GroupSubscribedToTopicException):
            there.delete_offsets("g", [place])
    assert there.delete_offsets("g", [TopicPartition("v", 0)])
    left = kit.put(*(modern(type, None, memberId="m") for type in (8, 7, 5)))
    assert left.describe("g").state == "Empty"
    left.commit("g", {A: CommittedOffset(9)})
    left.delete_group("g")
    assert kit.other().list_groups() == []
    types = [struct.unpack(">h", bytes(each.key or b"")[:2])[0] for each in parsed_batch(kit.log.batches[-1]).records]
    assert types == [1, 1, 6, 16, 4, 3]


def current(*, epoch: int, state: int) -> dict[str, Any]:
    return {
        "memberEpoch": epoch, "previousMemberEpoch": 0, "state": state, "assignedPartitions": [],
        "partitionsPendingRevocation": [],
    }  # fmt: skip


def test_a_simple_group_becomes_one_of_the_consumer_protocol(kit: Kit) -> None:
    found = kit.put(offset(A, 1), modern(3, {"epoch": 1, "metadataHash": 0}))
    assert found.describe("g").type is GroupType.CONSUMER
    assert found.fetch("g", A) is not None


@pytest.mark.parametrize(("type", "kind"), [(11, GroupType.SHARE), (17, GroupType.STREAMS)])
def test_share_and_streams_groups_are_a_brokers(kit: Kit, type: int, kind: GroupType) -> None:
    epochs = {"epoch": 1, "metadataHash": 0}
    streams = {"validatedTopologyEpoch": -1, "lastAssignmentConfigs": None, "storedDescriptionTopologyEpoch": -1,
               "failedDescriptionTopologyEpoch": -1}  # fmt: skip
    found = kit.put(modern(type, epochs if type == 11 else epochs | streams))
    assert found.list_groups() == [ListedGroup("g", kind.value.lower(), "Empty", kind)]
    with pytest.raises(GroupIdNotFoundException, match=f"{kind.value.lower()} group"):
        found.delete_group("g")
    if kind is GroupType.SHARE:
        with pytest.raises(GroupIdNotFoundException):
            found.commit("g", {A: CommittedOffset(1)})
        with pytest.raises(GroupIdNotFoundException):
            found.delete_offsets("g", [A])


# --- topics, expiry ---------------------------------------------------------------------------------------------


def test_deleted_topics(kit: Kit) -> None:
    kit.offsets.commit("g", {A: CommittedOffset(1, topic_id=ID_1), B: CommittedOffset(1, topic_id=ID_2)})
    kit.offsets.commit("h", {A: CommittedOffset(1), OTHER: CommittedOffset(1)})
    kit.offsets.commit("p", {A: CommittedOffset(1)}, HOLDER)
    assert kit.offsets.delete_topic("t", ID_1) == 3
    assert kit.offsets.fetch_all("g").keys() == {B}
    assert kit.offsets.fetch_all("h").keys() == {OTHER}
    assert kit.offsets.pending("p") == {}
    kit.same()


def test_offsets_of_a_simple_group_expire(kit: Kit) -> None:
    kit.offsets.commit("g", {A: CommittedOffset(1), OTHER: CommittedOffset(1, expire_timestamp=NOW_MS + 50)})
    kit.clock.advance(10)
    kit.offsets.commit("g", {B: CommittedOffset(1)})
    kit.clock.advance(39)
    assert kit.offsets.expire() == []
    kit.clock.advance(1)
    assert kit.offsets.expire() == [("g", OTHER)]
    kit.clock.advance_to(NOW_MS + WEEK_MS)
    assert kit.offsets.expire() == [("g", A)]
    kit.offsets.commit("g", {B: CommittedOffset(2)}, HOLDER)
    kit.clock.advance_to(NOW_MS + WEEK_MS + 10)
    assert kit.offsets.expire() == []  # a transaction has it too
    kit.offsets.end_transaction(MARKER._replace(kind=ABORT))
    assert kit.offsets.expire() == [("g", B)]
    assert kit.offsets.list_groups() == []
    kit.same()


def test_offsets_of_an_empty_group_expire_since_it_is_empty(kit: Kit) -> None:
    found = kit.put(classic(members=0, since=NOW_MS + 100), offset(A, 1))
    kit.clock.advance_to(NOW_MS + WEEK_MS + 99)
    assert found.expire() == []
    kit.clock.advance(1)
    assert found.expire() == [("g", A)]
    assert found.list_groups() == []
    stable = kit.put(classic("t"), offset(A, 1), offset(OTHER, 1))
    assert stable.expire() == [("g", OTHER)]  # no reader uses it
    assert stable.describe("g").state == "Stable"
    assert kit.put(classic(protocol_type="connect"), offset(OTHER, 1)).expire() == []


def test_many_tombstones_come_in_several_batches(kit: Kit) -> None:
    places = {TopicPartition("t" * 100, number): CommittedOffset(1) for number in range(100)}
    kit.offsets.commit("g", places)
    kit.log.batch_bytes_max = 2_000
    kit.offsets.delete_group("g")
    assert len(kit.log.batches) > 5
    assert all(len(each) <= 2_000 for each in kit.log.batches[1:])
    kit.same()
    big = [(b"k" * 3_000, None), (b"k", None)]
    assert [len(group) for group in in_batches(big, 2_000)] == [1, 1]


# --- interrupts ---------------------------------------------------------------------------------------------------


def test_an_interrupt_behind_an_append_loses_nothing(kit: Kit) -> None:
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    steps = [
        lambda: kit.offsets.commit("g", {A: CommittedOffset(1), B: CommittedOffset(2)}),
        lambda: kit.offsets.commit("g", {A: CommittedOffset(5)}, HOLDER),
        lambda: kit.offsets.end_transaction(MARKER),
        lambda: kit.offsets.delete_offsets("g", [B]),
        lambda: kit.offsets.delete_group("g"),
    ]
    wanted: list[dict[TopicPartition, int]] = [{A: 1, B: 2}, {A: 1, B: 2}, {A: 5, B: 2}, {A: 5}, {}]
    for step, found in zip(steps, wanted, strict=True):
        kit.log.disk.after_append = interrupt
        with pytest.raises(KeyboardInterrupt):
            step()
        kit.log.disk.after_append = lambda name: None
        assert {place: value.offset for place, value in kit.offsets.fetch_all("g").items()} == found
        kit.same()


def test_settings_have_kafkas_defaults() -> None:
    assert GroupSettings()[:2] == (WEEK_MS, 4096)
