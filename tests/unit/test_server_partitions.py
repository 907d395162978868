"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords, DescribeProducers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog.engine.format.error_codes import Errors
from tests.unit.data_kit import NOW_MS, Node, batch, node
from tests.unit.test_server_produce import holder, of

LIST_OFFSETS, DELETE_RECORDS, LEADER_EPOCH, DESCRIBE_PRODUCERS = 2, 21, 23, 61
LATEST, EARLIEST, MAX, LOCAL, TIERED, PENDING = -1, -2, -3, -4, -5, -6


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Node]:
    with node(tmp_path) as found:
        found.topic(partitions=2)
        yield found


def offset(at: Node, timestamp: int, version: int = 11, **more: Any) -> tuple[int, int, int, int]:
    """The error, the offset, the timestamp and the leader epoch."""
    each = {"partitionIndex": 0, "timestamp": timestamp, "currentLeaderEpoch": more.pop("epoch", -1)}
    body = {"replicaId": -1, "isolationLevel": 0, "topics": [{"name": "orders", "partitions": [each]}]} | more
    found = at.ask(LIST_OFFSETS, version, **body)["topics"][0]["partitions"][0]
    return found["errorCode"], found["offset"], found["timestamp"], found["leaderEpoch"]


def test_an_unknown_isolation_level_fails_everything(at: Node) -> None:
    assert offset(at, LATEST, isolationLevel=2)[0] == offset(at, EARLIEST, isolationLevel=-1)[0] == -1


def test_topics_without_partitions_are_not_answered(at: Node) -> None:
    topics = [{"name": "orders", "partitions": []}, {"name": "missing", "partitions": []}]
    assert at.ask(LIST_OFFSETS, 11, replicaId=-1, topics=topics)["topics"] == []
    assert at.ask(DELETE_RECORDS, 2, topics=topics, timeoutMs=1)["topics"] == []


def test_the_ends_of_a_log(at: Node) -> None:
    assert offset(at, EARLIEST) == offset(at, LATEST) == (0, 0, -1, 0)
    at.produce(batch(b"a", b"b"))
    assert offset(at, EARLIEST) == (0, 0, -1, 0)
    assert offset(at, LATEST) == (0, 2, -1, 0)
    assert offset(at, LATEST, 3) == (0, 2, -1, -1)
    assert offset(at, LOCAL) == (0, 0, -1, 0)


def test_offsets_by_time(at: Node) -> None:
    for ms in (0, 20, 10):
        at.produce(batch(b"a", timestamp=NOW_MS + ms))
    assert offset(at, NOW_MS + 5) == (0, 1, NOW_MS + 20, 0)
    assert offset(at, MAX) == (0, 1, NOW_MS + 20, 0)
    assert offset(at, NOW_MS + 21) == (0, -1, -1, -1)


def test_an_open_transaction_hides_what_follows(at: Node) -> None:
    at.produce(batch(b"a"))
    at.produce(of(holder(at)), transactionalId="tx")
    assert offset(at, LATEST, isolationLevel=1)[1] == 1
    assert offset(at, LATEST, replicaId=-2)[1] == 2
    assert offset(at, NOW_MS, isolationLevel=1)[1] == 0
    assert offset(at, MAX, isolationLevel=1)[1] == 0


@pytest.mark.parametrize(("timestamp", "version"), [(MAX, 7), (LOCAL, 8), (TIERED, 9), (PENDING, 11)])
def test_special_times_have_a_first_version(at: Node, timestamp: int, version: int) -> None:
    assert offset(at, timestamp, version)[0] == Errors.NONE
    assert offset(at, timestamp, version - 1) == (Errors.UNSUPPORTED_VERSION, -1, -1, -1)
    assert offset(at, -7)[0] == Errors.UNSUPPORTED_VERSION


def test_list_offsets_checks_epochs_and_names(at: Node) -> None:
    assert offset(at, LATEST, epoch=0)[0] == Errors.NONE
    assert offset(at, LATEST, epoch=1)[0] == Errors.UNKNOWN_LEADER_EPOCH
    asked = [{"partitionIndex": number, "timestamp": LATEST} for number in (0, 1, 1, 7)]
    topics = at.ask(LIST_OFFSETS, 11, replicaId=-1, topics=[{"name": "orders", "partitions": asked}])["topics"]
    assert [(each["partitionIndex"], each["errorCode"]) for each in topics[0]["partitions"]] == [
        (0, 0), (1, Errors.INVALID_REQUEST), (7, Errors.UNKNOWN_TOPIC_OR_PARTITION),
    ]  # fmt: skip


def test_ends_of_epochs(at: Node) -> None:
    def end(epoch: int, current: int = -1) -> tuple[int, int, int]:
        each = {"partition": 0, "leaderEpoch": epoch, "currentLeaderEpoch": current}
        (topic,) = at.ask(LEADER_EPOCH, 4, replicaId=-1, topics=[{"topic": "orders", "partitions": [each]}])["topics"]
        found = topic["partitions"][0]
        return found["errorCode"], found["leaderEpoch"], found["endOffset"]

    assert end(0) == (0, 0, 0)
    assert end(1) == (0, -1, -1)
    log = at.broker.home.manager.get_log("orders-0")
    assert log is not None
    log.append_as_leader(batch(b"a"), 0)
    log.append_as_leader(batch(b"b"), 4)
    assert [end(each) for each in (0, 2, 4, 5)] == [(0, 0, 1), (0, 0, 1), (0, 4, 2), (0, -1, -1)]
    assert [end(4, each)[0] for each in (3, 4, 5)] == [
        Errors.FENCED_LEADER_EPOCH, Errors.NONE, Errors.UNKNOWN_LEADER_EPOCH,
    ]  # fmt: skip


def test_records_are_deleted(at: Node) -> None:
    def delete(place: int, name: str = "orders", number: int = 0) -> tuple[int, int]:
        topics = [{"name": name, "partitions": [{"partitionIndex": number, "offset": place}]}]
        found = at.ask(DELETE_RECORDS, 2, topics=topics, timeoutMs=1)["topics"][0]["partitions"][0]
        return found["lowWatermark"], found["errorCode"]

    for _ in range(3):
        at.produce(batch(b"a"))
    assert delete(2) == (2, 0)
    assert delete(1) == (2, 0)
    assert delete(-1) == (3, 0)
    assert delete(4) == delete(-2) == (-1, Errors.OFFSET_OUT_OF_RANGE)
    assert delete(1, "missing") == delete(1, number=9) == (-1, Errors.UNKNOWN_TOPIC_OR_PARTITION)
    at.topic("compacted", cleanup_policy="compact")
    assert delete(1, "compacted") == (-1, Errors.POLICY_VIOLATION)
    at.broker.home.offsets("g", create=True)
    assert delete(0, "__consumer_offsets") == (-1, Errors.INVALID_TOPIC_EXCEPTION)


def test_producers_are_described(at: Node) -> None:
    producer = holder(at)
    at.produce(of(producer), transactionalId="tx")
    topics = [{"name": "orders", "partitionIndexes": [0, 9]}, {"name": "missing", "partitionIndexes": [0]}]
    orders, missing = at.ask(DESCRIBE_PRODUCERS, 0, topics=topics)["topics"]
    there, absent = orders["partitions"]
    assert there["activeProducers"] == [
        {
            "producerId": producer.producer_id, "producerEpoch": 0, "lastSequence": 0, "lastTimestamp": NOW_MS,
            "coordinatorEpoch": -1, "currentTxnStartOffset": 0,
        }
    ]  # fmt: skip
    assert absent["errorCode"] == missing["partitions"][0]["errorCode"] == Errors.UNKNOWN_TOPIC_OR_PARTITION
