"""Queues and share consumers read what only a remote tier has."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.coordinator.share_acquire import AcquireRequest
from kafkalog.engine.coordinator.share_fetch import Answers, ShareFetch
from kafkalog.engine.coordinator.share_interfaces import TopicIdPartition
from kafkalog.engine.format.batch import MemoryRecords
from kafkalog.engine.format.java_text import new_uuid
from kafkalog.engine.format.records import records as records_of
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.errors import RemoteStorageException
from tests.broker.test_server_security import Talk
from tests.unit.tier_kit import SETTINGS, tiered

TOTAL = 90  # records of `tiered`


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kafkalog.Store]:
    """A store whose first segments are only in the tier."""
    tiered(tmp_path / "store", tmp_path / "tier", settings={"local.retention.bytes": "3000"})
    with kafkalog.open(tmp_path / "store", remote=tmp_path / "tier", maintenance=False) as store:
        assert store.topic("orders").partition(0).delete_old_segments() > 0
        assert log_of(store).local_log_start_offset > 20
        yield store


def log_of(store: kafkalog.Store) -> Any:
    log = store.manager.get_log("orders-0")
    assert log is not None
    return log


def everything(store: kafkalog.Store) -> list[bytes | None]:
    return [each.value for each in store.topic("orders").partition(0)]


def values_in(data: bytes) -> dict[int, bytes | None]:
    return {
        each.offset: each.value for header in MemoryRecords(data).batches() for each in records_of(data, header)
    }  # fmt: skip


def partition_of(store: kafkalog.Store) -> TopicIdPartition:
    return TopicIdPartition(log_of(store).topic_id, 0, "orders")


def test_a_queue_hands_out_what_only_the_tier_has(store: kafkalog.Store) -> None:
    found: list[bytes | None] = []
    with store.queue("mail", topics=["orders"]) as queue:
        first = queue.take(15)
        queue.ack(first[:10])
        queue.release(first[10:])
        found += [each.value for each in first[:10]]
    with store.queue("mail", topics=["orders"]) as queue:
        while records := queue.take(7):
            found += [each.value for each in records]
            queue.ack(records)
    assert found == everything(store)
    assert [each.lag for each in store.cursors()] == [0]


def test_aborted_records_in_the_tier_are_not_handed_out(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "store", remote=tmp_path / "tier", maintenance=False) as store:
        orders = store.create_topic("orders", 1, config={**SETTINGS, "local.retention.bytes": "1500"})
        for number in range(30):
            with store.transaction("t") as txn:
                txn.append("orders", b"%d " % number + b"." * 200)
                if number % 3 == 1:
                    txn.abort()
        orders.append_many([b"later" + b"." * 500] * 10)
        store.remote_log_manager.run_once()
        assert orders.partition(0).delete_old_segments() > 0
        assert log_of(store).local_log_start_offset > 20
        expected = [b"%d " % number for number in range(30) if number % 3 != 1]
        with store.queue("mail", topics=["orders"]) as queue:
            found = []
            while records := queue.take(50):
                found += [each.value or b"" for each in records]
                queue.ack(records)
        assert [each.rstrip(b".") for each in found if not each.startswith(b"later")] == expected
        assert len(found) == len(expected) + 10


def begin(store: kafkalog.Store) -> None:
    """Makes the group, which begins at offset 0."""
    with store.queue("mail", topics=["orders"]) as queue:
        queue.release(queue.take(1))


def fetch(store: kafkalog.Store, done: Any, *, max_wait_ms: int = 10_000) -> None:
    request = AcquireRequest("m", 10_000)
    manager = store._home.coordinators.shares  # type: ignore[union-attr]
    manager.fetch(
        ShareFetch(
            "mail", [partition_of(store)], request, done, min_bytes=1, max_bytes=10_000, max_wait_ms=max_wait_ms
        )
    )  # fmt: skip


def test_a_fetch_reads_the_tier_in_another_thread(store: kafkalog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller goes on meanwhile, since it may be the thread that serves everybody."""
    begin(store)
    expected = everything(store)
    tier, may_read, threads = log_of(store).tier, threading.Event(), []
    extent = tier.extent

    def slow(offset: int) -> Any:
        threads.append(threading.current_thread().name)
        assert may_read.wait(30)
        return extent(offset)

    monkeypatch.setattr(type(tier), "extent", lambda _, offset: slow(offset))
    answers: list[Answers] = []
    answered = threading.Event()

    def done(answer: Answers) -> None:
        answers.append(answer)
        answered.set()

    fetch(store, done)
    assert not answers
    may_read.set()
    assert answered.wait(30)
    (answer,) = answers[0].values()
    assert answer["errorCode"] == 0
    data = bytes(answer["records"])
    last = answer["acquiredRecords"][-1]
    assert [*values_in(data).values()] == expected[: last["lastOffset"] + 1]
    assert threads
    assert all(each.startswith("kafkalog-share-remote") for each in threads)


def test_an_error_of_the_tier_is_answered(store: kafkalog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(store)

    def fails(_: object, offset: int) -> Any:
        raise RemoteStorageException(f"no answer for {offset}")

    answers: list[Answers] = []
    answered = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(type(log_of(store).tier), "extent", fails)
        fetch(store, lambda answer: (answers.append(answer), answered.set()))
        assert answered.wait(30)
    (answer,) = answers[0].values()
    assert (answer["errorCode"], "no answer for 0" in answer["errorMessage"]) == (-1, True)
    answered.clear()
    fetch(store, lambda answer: (answers.append(answer), answered.set()))
    assert answered.wait(30)
    assert next(iter(answers[1].values()))["acquiredRecords"][0]["firstOffset"] == 0  # nothing was lost


def test_a_share_consumer_gets_everything_over_the_protocol(store: kafkalog.Store) -> None:
    expected = everything(store)
    with store.serve("127.0.0.1:0") as server:
        talk = Talk(server.addresses[0][1])
        try:
            reset = {"name": "share.auto.offset.reset", "configOperation": 0, "value": "earliest"}
            resource = {"resourceType": 32, "resourceName": "mail", "configs": [reset]}
            talk.ask(ApiKeys.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
            topic, member = partition_of(store).topic_id, new_uuid()
            join = {"groupId": "mail", "memberId": member, "memberEpoch": 0, "subscribedTopicNames": ["orders"]}
            assert talk.ask(ApiKeys.SHARE_GROUP_HEARTBEAT, 1, join)["errorCode"] == 0
            found: dict[int, bytes | None] = {}
            epoch, acknowledged = 0, []
            until = time.monotonic() + 30
            while len(found) < TOTAL:
                partition = {"partitionIndex": 0, "acknowledgementBatches": acknowledged}
                body = {
                    "groupId": "mail", "memberId": member, "shareSessionEpoch": epoch, "maxWaitMs": 500, "minBytes": 1,
                    "maxBytes": 4000, "maxRecords": 20, "batchSize": 20,
                    "topics": [{"topicId": topic, "partitions": [partition]}],
                }  # fmt: skip
                answer = talk.ask(ApiKeys.SHARE_FETCH, 1, body)
                assert answer["errorCode"] == 0
                assert time.monotonic() < until
                epoch, acknowledged = epoch + 1, []
                for each in [part for of in answer["responses"] for part in of["partitions"]]:
                    assert (each["errorCode"], each["acknowledgeErrorCode"]) == (0, 0)
                    values = values_in(bytes(each["records"] or b""))
                    for run in each["acquiredRecords"]:
                        first, last = run["firstOffset"], run["lastOffset"]
                        found |= {at: values[at] for at in range(first, last + 1)}
                        acknowledged.append({"firstOffset": first, "lastOffset": last, "acknowledgeTypes": [1]})
        finally:
            talk.close()
    assert [found[at] for at in sorted(found)] == expected
