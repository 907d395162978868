"""The requests of transactional producers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog._face.producer_ids import BLOCK_SIZE, FIRST_PRODUCER_ID, ProducerIds, counter_after
from kafkalog._face.transactional_ids import STORE_PRODUCER_IDS
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.names import PRODUCER_IDS_FILE
from tests.unit.data_kit import Node, batch, node
from tests.unit.test_server_produce import holder, of

INIT, ADD_PARTITIONS, ADD_OFFSETS, END, MARKERS, COMMIT_OFFSETS, DESCRIBE, LIST = 22, 24, 25, 26, 27, 28, 65, 66


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Node]:
    with node(tmp_path) as found:
        found.topic(partitions=2)
        yield found


def init(at: Node, transactional_id: str | None = "tx", version: int = 5, **more: Any) -> tuple[int, int, int]:
    body = {"transactionalId": transactional_id, "transactionTimeoutMs": 60_000} | more
    found = at.ask(INIT, version, **body)
    return found["errorCode"], found["producerId"], found["producerEpoch"]


def add(at: Node, producer: ProducerIdAndEpoch, version: int = 3, *names: str) -> list[tuple[str, int, int]]:
    topics = [{"name": name, "partitions": [0, 1]} for name in names or ("orders",)]
    body = {
        "v3AndBelowTransactionalId": "tx",
        "v3AndBelowProducerId": producer.producer_id,
        "v3AndBelowProducerEpoch": producer.epoch,
        "v3AndBelowTopics": topics,
    }
    return _codes(at.ask(ADD_PARTITIONS, version, **body)["resultsByTopicV3AndBelow"])


def _codes(topics: list[Any]) -> list[tuple[str, int, int]]:
    return [
        (topic["name"], each["partitionIndex"], each["partitionErrorCode"])
        for topic in topics
        for each in topic["resultsByPartition"]
    ]


def end(at: Node, producer: ProducerIdAndEpoch, version: int = 5, *, commit: bool = True) -> tuple[int, int, int]:
    body = {"transactionalId": "tx", "producerId": producer.producer_id, "producerEpoch": producer.epoch}
    found = at.ask(END, version, **body, committed=commit)
    return found["errorCode"], found["producerId"], found["producerEpoch"]


# --- producer ids ----------------------------------------------------------------------------------------


def test_ids_are_given_once(tmp_path: Path) -> None:
    def ids(*known: int) -> ProducerIds:
        return ProducerIds(lambda: [str(tmp_path)], OS_FILES, lambda: known)

    first = ids()
    assert [first.next() for _ in range(BLOCK_SIZE + 1)] == list(
        range(FIRST_PRODUCER_ID, FIRST_PRODUCER_ID + BLOCK_SIZE + 1)
    )
    assert ids().next() == FIRST_PRODUCER_ID + 2 * BLOCK_SIZE  # after a crash
    (tmp_path / PRODUCER_IDS_FILE).unlink()
    assert ids(5, FIRST_PRODUCER_ID + 7, STORE_PRODUCER_IDS[3]).next() == FIRST_PRODUCER_ID + 8
    (tmp_path / PRODUCER_IDS_FILE).write_bytes(b"damage")
    assert ids(FIRST_PRODUCER_ID + 7).next() == FIRST_PRODUCER_ID + 8


def test_a_restored_counter_goes_on_behind_all_that_were_given_since(tmp_path: Path) -> None:
    """A restored store gives none of the ids that clients got after the backup, and that they may still use."""
    held = b"0\n%d\n" % (FIRST_PRODUCER_ID + 7)

    def first_of(data: bytes) -> int:
        (tmp_path / PRODUCER_IDS_FILE).write_bytes(data)
        return ProducerIds(lambda: [str(tmp_path)], OS_FILES, tuple).next() - FIRST_PRODUCER_ID

    assert first_of(held) == 7
    assert first_of(counter_after(held, 0)) == 7 + BLOCK_SIZE
    assert first_of(counter_after(held, -50)) == 7 + BLOCK_SIZE
    assert first_of(counter_after(held, 60_000)) == 7 + 60_001 * BLOCK_SIZE
    assert counter_after(b"damage", 60_000) == b"damage"


def test_idempotent_producers_have_different_ids(at: Node) -> None:
    first, second = init(at, None), init(at, None)
    assert (first[0], second[0], first[2], second[2]) == (0, 0, 0, 0)
    assert first[1] != second[1]
    assert init(at, None, producerId=5) == (Errors.INVALID_REQUEST, -1, -1)


def test_a_transactional_id_keeps_its_producer_id(at: Node) -> None:
    first = init(at)
    assert init(at) == (0, first[1], 1)
    assert init(at, producerId=first[1], producerEpoch=1) == (0, first[1], 2)
    assert init(at, producerId=first[1], producerEpoch=0) == (Errors.PRODUCER_FENCED, -1, -1)
    assert init(at, version=3, producerId=first[1], producerEpoch=0)[0] == Errors.INVALID_PRODUCER_EPOCH
    assert init(at, "") == (Errors.INVALID_REQUEST, -1, -1)
    assert init(at, transactionTimeoutMs=0)[0] == Errors.INVALID_TRANSACTION_TIMEOUT
    assert init(at, transactionTimeoutMs=900_001)[0] == Errors.INVALID_TRANSACTION_TIMEOUT


def test_the_longest_timeout_is_a_setting(tmp_path: Path) -> None:
    with node(tmp_path, transaction_max_timeout_ms=1000) as at:
        assert [init(at, transactionTimeoutMs=ms)[0] for ms in (1000, 1001)] == [0, Errors.INVALID_TRANSACTION_TIMEOUT]


def test_two_phase_commit_is_off(at: Node) -> None:
    assert init(at, version=6, enable2Pc=True)[0] == Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert init(at, version=6, keepPreparedTxn=True)[0] == Errors.UNSUPPORTED_VERSION


def test_two_phase_commit_has_no_timeout(tmp_path: Path) -> None:
    with node(tmp_path, transaction_two_phase_commit_enable="true") as at:
        assert init(at, version=6, enable2Pc=True, transactionTimeoutMs=-1)[0] == 0
        assert at.broker.transactions.describe("tx").timeout_ms == 2**31 - 1


def test_an_open_transaction_is_aborted_first(at: Node) -> None:
    producer = holder(at)
    at.produce(of(producer), transactionalId="tx")
    assert init(at) == (Errors.CONCURRENT_TRANSACTIONS, -1, -1)
    assert at.broker.transactions.describe("tx").state == "CompleteAbort"
    assert init(at) == (0, producer.producer_id, 2)


def test_an_id_that_the_store_had_gets_a_clients_producer_id(at: Node) -> None:
    with at.store.transaction("tx") as transaction:
        transaction.append("orders", b"a", partition=0)
    before = at.broker.transactions.describe("tx").producer_id
    assert before in STORE_PRODUCER_IDS
    error, producer_id, epoch = init(at)
    assert (error, epoch) == (0, 0)
    assert producer_id >= FIRST_PRODUCER_ID
    assert producer_id not in STORE_PRODUCER_IDS
    at.produce(of(ProducerIdAndEpoch(producer_id, epoch)), transactionalId="tx")
    at.broker.home.end_overdue()
    assert at.broker.transactions.describe("tx").state == "Ongoing"  # the store leaves it to the client


def test_a_restart_leaves_a_clients_transaction(tmp_path: Path) -> None:
    with node(tmp_path) as at:
        at.topic()
        producer = holder(at)
        at.produce(of(producer), transactionalId="tx")
    with node(tmp_path) as at:
        assert at.broker.transactions.describe("tx").state == "Ongoing"
        assert end(at, producer) == (0, producer.producer_id, 1)


# --- partitions ------------------------------------------------------------------------------------------


def test_partitions_are_added_all_or_none(at: Node) -> None:
    producer = holder(at)
    assert add(at, producer) == [("orders", 0, 0), ("orders", 1, 0)]
    found = add(at, producer, 3, "orders", "missing")
    assert [code for _, _, code in found] == [
        Errors.OPERATION_NOT_ATTEMPTED, Errors.OPERATION_NOT_ATTEMPTED,
        Errors.UNKNOWN_TOPIC_OR_PARTITION, Errors.UNKNOWN_TOPIC_OR_PARTITION,
    ]  # fmt: skip
    old = ProducerIdAndEpoch(producer.producer_id, 7)
    assert {code for _, _, code in add(at, old, 1)} == {Errors.INVALID_PRODUCER_EPOCH}
    assert {code for _, _, code in add(at, old, 2)} == {Errors.PRODUCER_FENCED}
    other = ProducerIdAndEpoch(1, 0)
    assert {code for _, _, code in add(at, other)} == {Errors.INVALID_PRODUCER_ID_MAPPING}


def test_brokers_add_and_verify_in_one_request(at: Node) -> None:
    producer = holder(at)
    topics = [{"name": "orders", "partitions": [0]}]
    one = {"transactionalId": "tx", "producerId": producer.producer_id, "producerEpoch": 0, "topics": topics}
    verify = at.ask(ADD_PARTITIONS, 5, transactions=[one | {"verifyOnly": True}])["resultsByTransaction"]
    assert _codes(verify[0]["topicResults"]) == [("orders", 0, Errors.TRANSACTION_ABORTABLE)]
    added = at.ask(ADD_PARTITIONS, 5, transactions=[one | {"verifyOnly": False}])["resultsByTransaction"]
    assert _codes(added[0]["topicResults"]) == [("orders", 0, 0)]
    verify = at.ask(ADD_PARTITIONS, 5, transactions=[one | {"verifyOnly": True}])["resultsByTransaction"]
    assert _codes(verify[0]["topicResults"]) == [("orders", 0, 0)]


def test_an_id_that_comes_twice_is_answered_twice(at: Node) -> None:
    producer = holder(at)
    one = {"transactionalId": "tx", "producerId": producer.producer_id, "producerEpoch": 0, "verifyOnly": False}
    topics = [[{"name": "orders", "partitions": [number]}] for number in (0, 1)]
    found = at.ask(ADD_PARTITIONS, 5, transactions=[one | {"topics": each} for each in topics])
    told = [_codes(each["topicResults"]) for each in found["resultsByTransaction"]]
    assert told == [[("orders", 0, 0)]] * 2
    asked = one | {"topics": topics[0] + [{"name": "bare", "partitions": []}], "transactionalId": ""}
    for verifies, names in ((True, ["orders"]), (False, ["orders", "bare"])):
        found = at.ask(ADD_PARTITIONS, 5, transactions=[asked | {"verifyOnly": verifies}])
        assert [each["name"] for each in found["resultsByTransaction"][0]["topicResults"]] == names


def test_topics_without_partitions_are_told_of_an_added_transaction(at: Node) -> None:
    producer = holder(at)
    topics = [{"name": "orders", "partitions": []}]
    one = {"transactionalId": "tx", "producerId": producer.producer_id, "producerEpoch": 0, "topics": topics}
    for verifies, told in ((False, [{"name": "orders", "resultsByPartition": []}]), (True, [])):
        found = at.ask(ADD_PARTITIONS, 5, transactions=[one | {"verifyOnly": verifies}])
        assert found["resultsByTransaction"][0]["topicResults"] == told


# --- the end ---------------------------------------------------------------------------------------------


def test_a_new_client_gets_the_next_epoch(at: Node) -> None:
    producer = holder(at)
    at.produce(of(producer), transactionalId="tx")
    assert end(at, producer) == (0, producer.producer_id, 1)
    assert end(at, producer) == (0, producer.producer_id, 1)  # repeated
    assert end(at, producer, commit=False)[0] == Errors.INVALID_TXN_STATE
    assert end(at, ProducerIdAndEpoch(producer.producer_id, 5))[0] == Errors.PRODUCER_FENCED


def test_an_old_client_keeps_its_epoch(at: Node) -> None:
    producer = holder(at)
    add(at, producer)
    assert end(at, producer, 3) == (0, -1, -1)
    assert at.broker.transactions.describe("tx").producer_epoch == 0
    assert end(at, producer, 3, commit=False)[0] == Errors.INVALID_TXN_STATE
    old = ProducerIdAndEpoch(producer.producer_id, 5)
    assert (end(at, old, 1)[0], end(at, old, 2)[0]) == (Errors.INVALID_PRODUCER_EPOCH, Errors.PRODUCER_FENCED)


def test_nothing_can_be_committed_before_a_partition_is_added(at: Node) -> None:
    producer = holder(at)
    assert end(at, producer)[0] == Errors.INVALID_TXN_STATE
    assert end(at, producer, commit=False) == (0, producer.producer_id, 1)


# --- offsets ---------------------------------------------------------------------------------------------


def test_offsets_are_committed_with_the_transaction(at: Node) -> None:
    producer = holder(at)
    body = {"transactionalId": "tx", "producerId": producer.producer_id, "producerEpoch": 0, "groupId": "g"}
    partition = {"partitionIndex": 0, "committedOffset": 3, "committedMetadata": ""}
    topics = [{"name": "orders", "partitions": [partition]}, {"name": "missing", "partitions": [partition]}]
    found = at.ask(COMMIT_OFFSETS, 5, **body, topics=topics)["topics"]
    assert {topic["name"]: topic["partitions"][0]["errorCode"] for topic in found} == {
        "orders": 0, "missing": Errors.UNKNOWN_TOPIC_OR_PARTITION,
    }  # fmt: skip
    known = at.broker.transactions.describe("tx")
    assert [each.topic for each in known.partitions] == ["__consumer_offsets"]
    assert end(at, producer)[0] == 0
    assert at.ask(ADD_OFFSETS, 4, **body)["errorCode"] == Errors.PRODUCER_FENCED
    found = at.ask(COMMIT_OFFSETS, 3, **body, topics=topics[:1])["topics"]
    assert found[0]["partitions"][0]["errorCode"] == Errors.INVALID_PRODUCER_EPOCH


def test_older_clients_add_offsets_before(at: Node) -> None:
    producer = holder(at)
    body = {"transactionalId": "tx", "producerId": producer.producer_id, "producerEpoch": 0, "groupId": "g"}
    topics = [{"name": "orders", "partitions": [{"partitionIndex": 0, "committedOffset": 3, "committedMetadata": ""}]}]

    def commit(version: int) -> int:
        found: int = at.ask(COMMIT_OFFSETS, version, **body, topics=topics)["topics"][0]["partitions"][0]["errorCode"]
        return found

    assert (commit(3), commit(4)) == (Errors.INVALID_TXN_STATE, Errors.TRANSACTION_ABORTABLE)
    assert at.ask(ADD_OFFSETS, 3, **body)["errorCode"] == 0
    assert commit(3) == 0


# --- markers and questions -------------------------------------------------------------------------------


def test_markers_end_what_hangs(at: Node) -> None:
    log = at.broker.home.manager.get_log("orders-0")
    assert log is not None
    log.append_as_leader(batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True), 0)
    assert log.last_stable_offset == 0
    topics = [{"name": "orders", "partitionIndexes": [0]}, {"name": "missing", "partitionIndexes": [0]}]
    marker = {"producerId": 7, "producerEpoch": 0, "transactionResult": False, "topics": topics, "coordinatorEpoch": 0}
    (found,) = at.ask(MARKERS, 1, markers=[marker])["markers"]
    assert [each["partitions"][0]["errorCode"] for each in found["topics"]] == [0, Errors.UNKNOWN_TOPIC_OR_PARTITION]
    assert log.last_stable_offset == 2


def test_transactions_are_described_and_listed(at: Node) -> None:
    producer = holder(at)
    init(at, "other")
    at.produce(of(producer), transactionalId="tx")
    states = at.ask(DESCRIBE, 0, transactionalIds=["tx", "missing", ""])["transactionStates"]
    assert [each["errorCode"] for each in states] == [0, Errors.TRANSACTIONAL_ID_NOT_FOUND, Errors.INVALID_REQUEST]
    assert states[0]["topics"] == [{"topic": "orders", "partitions": [0]}]
    assert (states[0]["transactionState"], states[0]["producerId"]) == ("Ongoing", producer.producer_id)

    def listed(**filters: Any) -> list[str]:
        body = {"stateFilters": [], "producerIdFilters": []} | filters
        return sorted(each["transactionalId"] for each in at.ask(LIST, 2, **body)["transactionStates"])

    assert listed() == ["other", "tx"]
    assert listed(stateFilters=["Ongoing"]) == listed(producerIdFilters=[producer.producer_id]) == ["tx"]
    assert listed(transactionalIdPattern="o.*") == ["other"]
    assert listed(durationFilter=10) != []
    unknown = at.ask(LIST, 2, stateFilters=["Ongoing", "Odd"], producerIdFilters=[])
    assert unknown["unknownStateFilters"] == ["Odd"]
    bad = at.ask(LIST, 2, stateFilters=[], producerIdFilters=[], transactionalIdPattern="(")
    assert bad["errorCode"] == Errors.INVALID_REGULAR_EXPRESSION
    init(at, "shop:1")
    init(at, "a" * 40 + "!")
    assert listed(transactionalIdPattern="shop:.*") == ["shop:1"]
    assert listed(transactionalIdPattern="(a+)+") == []  # at once
