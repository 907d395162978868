"""Produce: what is appended, and the error of each partition."""

from __future__ import annotations

import random
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch
from kafkalog.engine.format.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from kafkalog.engine.format.error_codes import Errors
from kafkalog.errors import KafkalogError
from kafkalog.metrics import MetricsRegistry
from kafkalog.server.data_plane import KEY, DataPlane
from kafkalog.server.dispatcher import CloseConnection
from kafkalog.server.handlers.produce import HEAVY_BYTES, HEAVY_CONTENT_BYTES, is_heavy
from kafkalog.server.request import Pending, Request
from kafkalog.server.traffic import LOOK_EVERY
from tests.unit.data_kit import NOW_MS, PRODUCE, Node, batch, node
from tests.wire.client import Client

TV2, TV1_ABORTABLE, TV1 = 12, 11, 10  # versions of Produce by what they know of transactions


@pytest.fixture(params=[False, True], ids=["io-thread", "pool"])
def at(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    with node(tmp_path) as found:
        found.is_in_pool = request.param
        found.topic(partitions=3)
        yield found


def test_batches_are_appended_and_told_where(at: Node) -> None:
    first = at.produce(batch(b"a", b"b"), batch(b"c"))
    again = at.produce(batch(b"d"))
    assert [(each["index"], each["errorCode"], each["baseOffset"], each["logAppendTimeMs"]) for each in first] == [
        (0, 0, 0, -1), (1, 0, 0, -1),
    ]  # fmt: skip
    assert (again[0]["baseOffset"], again[0]["logStartOffset"]) == (2, 0)
    assert at.store.topic("orders").partition(0).end_offset == 3


def test_partitions_without_records(at: Node) -> None:
    def codes(name: str, index: int) -> list[int]:
        topics = [{"name": name, "partitionData": [{"index": index, "records": None}]}]
        found = at.told(PRODUCE, 12, at.begin(PRODUCE, 12, acks=1, timeoutMs=1, topicData=topics))
        return [each["errorCode"] for topic in found["responses"] for each in topic["partitionResponses"]]

    unknown = [Errors.UNKNOWN_TOPIC_OR_PARTITION]
    assert codes("missing", 0) == codes("orders", 9) == unknown
    with pytest.raises(KafkalogError):
        codes("orders", 0)


def test_a_topic_that_is_listed_twice_is_one(at: Node) -> None:
    """The last records of a partition count."""
    sent = [("orders", 0, b"a"), ("missing", 0, b"x"), ("orders", 0, b"b"), ("orders", 1, b"c"), ("missing", 1, b"y")]
    topics = [
        {"name": name, "partitionData": [{"index": index, "records": batch(value)}]} for name, index, value in sent
    ]
    found = at.told(PRODUCE, 12, at.begin(PRODUCE, 12, acks=1, timeoutMs=1, topicData=topics))
    told = [(topic["name"], [each["index"] for each in topic["partitionResponses"]]) for topic in found["responses"]]
    assert told == [("orders", [0, 1]), ("missing", [0, 1])]
    assert [record.value for record in at.store.topic("orders").partition(0).records()] == [b"b"]


def test_a_topic_may_be_named_by_its_id(at: Node) -> None:
    topic_id = at.store.topic("orders").info.topic_id
    assert topic_id is not None
    assert at.produce(batch(b"a"), topic=topic_id, version=13)[0]["errorCode"] == 0
    unknown = at.produce(batch(b"a"), topic="A" * 21 + "Q", version=13)
    assert unknown[0]["errorCode"] == Errors.UNKNOWN_TOPIC_ID


def test_each_partition_has_its_own_error(at: Node) -> None:
    corrupt = bytearray(batch(b"a"))
    corrupt[-1] ^= 1
    found = at.produce(batch(b"a"), bytes(corrupt), b"", batch(b"a"))
    codes = [Errors(each["errorCode"]) for each in found]
    assert codes == [
        Errors.NONE, Errors.CORRUPT_MESSAGE, Errors.INVALID_RECORD, Errors.UNKNOWN_TOPIC_OR_PARTITION,
    ]  # fmt: skip
    assert at.produce(batch(b"a"), topic="missing")[0]["errorCode"] == Errors.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("records", "version", "code"),
    [
        (batch(b"a") + batch(b"b"), 12, Errors.INVALID_RECORD),
        (batch(b"a")[:40], 12, Errors.INVALID_RECORD),
        (batch(b"a", codec=ZSTD), 6, Errors.UNSUPPORTED_COMPRESSION_TYPE),
        (batch(b"a", codec=ZSTD), 7, Errors.NONE),
        (batch(b"x" * 1_100_000), 12, Errors.MESSAGE_TOO_LARGE),
    ],
)
def test_a_partition_gets_one_batch(at: Node, records: bytes, version: int, code: Errors) -> None:
    assert at.produce(records, version=version)[0]["errorCode"] == code


def test_a_large_batch_is_appended(at: Node) -> None:
    assert at.produce(batch(b"x" * 500_000))[0]["errorCode"] == 0
    assert at.store.topic("orders").partition(0).end_offset == 1


def test_refused_records_are_named(at: Node) -> None:
    at.topic("dated", message_timestamp_before_max_ms="1000")
    (found,) = at.produce(batch(b"a", timestamp=NOW_MS - 5000), topic="dated")
    assert found["errorCode"] == Errors.INVALID_TIMESTAMP
    assert [each["batchIndex"] for each in found["recordErrors"]] == [0]
    assert found["errorMessage"] == "One or more records have been rejected due to invalid timestamp"
    assert found["logStartOffset"] == 0


def test_log_append_time_is_told(at: Node) -> None:
    at.topic("stamped", message_timestamp_type="LogAppendTime")
    assert at.produce(batch(b"a", timestamp=5), topic="stamped")[0]["logAppendTimeMs"] == NOW_MS


def test_acks(at: Node) -> None:
    assert at.produce(batch(b"a"), acks=1)[0]["errorCode"] == 0
    assert at.produce(batch(b"a"), acks=2)[0]["errorCode"] == Errors.INVALID_REQUIRED_ACKS
    topics = [{"name": "orders", "partitionData": [{"index": 0, "records": batch(b"b")}]}]
    assert at.begin(PRODUCE, 12, acks=0, timeoutMs=1, topicData=topics) is None
    assert at.store.topic("orders").partition(0).end_offset == 2
    topics[0]["name"] = "missing"
    with pytest.raises(CloseConnection):
        at.begin(PRODUCE, 12, acks=0, timeoutMs=1, topicData=topics)


def test_internal_topics_are_for_admin_clients_alone(at: Node) -> None:
    at.broker.home.offsets("g", create=True)
    assert at.produce(batch(b"a"), topic="__consumer_offsets")[0]["errorCode"] == Errors.INVALID_TOPIC_EXCEPTION
    topics = [{"name": "__consumer_offsets", "partitionData": [{"index": 7, "records": batch(b"a")}]}]
    found = at.told(PRODUCE, 12, at.begin(PRODUCE, 12, "__admin_client", acks=1, timeoutMs=1, topicData=topics))
    assert found["responses"][0]["partitionResponses"][0]["errorCode"] == 0


def test_an_idempotent_producer(at: Node) -> None:
    first = batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0)
    assert at.produce(first)[0]["baseOffset"] == 0
    assert at.produce(batch(b"b", producer_id=5, producer_epoch=0, base_sequence=1))[0]["baseOffset"] == 1
    assert at.produce(first)[0]["baseOffset"] == 0  # repeated
    gap = at.produce(batch(b"c", producer_id=5, producer_epoch=0, base_sequence=9))[0]
    assert (gap["errorCode"], gap["logStartOffset"]) == (Errors.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)
    fenced = at.produce(batch(b"c", producer_id=5, producer_epoch=1, base_sequence=0))[0]
    assert fenced["errorCode"] == 0
    assert at.produce(batch(b"c", producer_id=5, producer_epoch=0, base_sequence=2))[0]["errorCode"] == (
        Errors.INVALID_PRODUCER_EPOCH
    )


# --- transactions ----------------------------------------------------------------------------------------


def holder(at: Node, transactional_id: str = "tx") -> ProducerIdAndEpoch:
    found = at.ask(22, 5, transactionalId=transactional_id, transactionTimeoutMs=60_000)
    assert found["errorCode"] == 0
    return ProducerIdAndEpoch(found["producerId"], found["producerEpoch"])


def of(producer: ProducerIdAndEpoch, value: bytes = b"a", sequence: int = 0) -> bytes:
    return batch(
        value,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        is_transactional=True,
    )


def test_a_produce_request_adds_its_partitions(at: Node) -> None:
    producer = holder(at)
    found = at.produce(of(producer), of(producer), version=TV2, transactionalId="tx")
    assert [each["errorCode"] for each in found] == [0, 0]
    known = at.broker.transactions.describe("tx")
    assert (known.state, {each.partition for each in known.partitions}) == ("Ongoing", {0, 1})
    assert at.produce(of(producer, sequence=1), version=TV2, transactionalId="tx")[0]["baseOffset"] == 1


@pytest.mark.parametrize(
    ("version", "code", "text"),
    [
        (TV1, Errors.INVALID_TXN_STATE, "Partition was not added to the transaction"),
        (TV1_ABORTABLE, Errors.TRANSACTION_ABORTABLE, None),
    ],
)
def test_an_older_client_adds_partitions_before(at: Node, version: int, code: Errors, text: str | None) -> None:
    producer = holder(at)
    (found,) = at.produce(of(producer), version=version, transactionalId="tx")
    assert (found["errorCode"], found["errorMessage"], found["logStartOffset"]) == (code, text, -1)
    topics = [{"name": "orders", "partitions": [0]}]
    fields = {
        "v3AndBelowTransactionalId": "tx",
        "v3AndBelowProducerId": producer.producer_id,
        "v3AndBelowProducerEpoch": producer.epoch,
        "v3AndBelowTopics": topics,
    }
    at.ask(24, 3, **fields)
    assert at.produce(of(producer), version=version, transactionalId="tx")[0]["errorCode"] == 0


def test_a_fenced_producer_is_refused(at: Node) -> None:
    old = holder(at)
    holder(at)
    found = at.produce(of(old), version=TV2, transactionalId="tx")
    assert found[0]["errorCode"] == Errors.INVALID_PRODUCER_EPOCH


def test_transactional_records_need_a_transactional_id(at: Node) -> None:
    producer = holder(at)
    assert at.produce(of(producer), version=TV2)[0]["errorCode"] == Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    other = ProducerIdAndEpoch(producer.producer_id + 1, 0)
    with pytest.raises(kafkalog.errors.InvalidPidMappingException, match="more than one producer ID"):
        at.produce(of(producer), of(other), version=TV2, transactionalId="tx")


def test_a_batch_after_the_end_of_its_transaction_is_refused(at: Node) -> None:
    producer = holder(at)
    at.produce(of(producer), version=TV2, transactionalId="tx")
    end = {
        "transactionalId": "tx",
        "producerId": producer.producer_id,
        "producerEpoch": producer.epoch,
        "committed": True,
    }
    ended = at.ask(26, 5, **end)
    assert (ended["errorCode"], ended["producerEpoch"]) == (0, producer.epoch + 1)
    late = at.produce(of(producer, sequence=1), version=TV2, transactionalId="tx")
    assert late[0]["errorCode"] == Errors.INVALID_PRODUCER_EPOCH
    repeated = at.produce(of(producer), version=TV2, transactionalId="tx")
    assert repeated[0]["errorCode"] == Errors.INVALID_PRODUCER_EPOCH
    log = at.broker.home.log_now(at.store.topic("orders").partition(0).topic_partition)
    assert log is not None
    assert log.last_stable_offset == log.log_end_offset == 2


def test_verification_can_be_turned_off(tmp_path: Path) -> None:
    with node(tmp_path, transaction_partition_verification_enable="false") as at:
        at.topic()
        assert at.produce(of(holder(at)), version=TV1, transactionalId="tx")[0]["errorCode"] == 0


def test_traffic_is_measured(tmp_path: Path) -> None:
    registry = MetricsRegistry()
    with node(tmp_path, {"metrics": registry}) as at:
        at.broker.metrics = registry
        at.data = at.broker.state[KEY] = DataPlane(at.broker, wakes=False)
        at.topic(partitions=2)
        one = batch(b"a", b"b")
        at.produce(one, one, one)

        def counts() -> dict[str, int]:
            found = registry.as_jmx()
            names = ("MessagesInPerSec", "BytesInPerSec", "TotalProduceRequestsPerSec")
            of = "kafka.server:type=BrokerTopicMetrics,name={}{}"
            return {
                name + topic: getattr(found[of.format(name, topic)], "count", -1)
                for name in names
                for topic in ("", ",topic=orders")
            }

        expected = {"MessagesInPerSec": 4, "BytesInPerSec": 2 * len(one), "TotalProduceRequestsPerSec": 3}
        assert counts() == {name + topic: value for name, value in expected.items() for topic in ("", ",topic=orders")}
        at.store.delete_topic("orders")
        assert at.data.traffic is not None
        for number in range(LOOK_EVERY):
            at.data.traffic.of(f"gone-{number}")
        assert not any("topic=orders" in name for name in registry.as_jmx())


def test_an_fsync_store_answers_when_the_records_are_on_the_disk(tmp_path: Path) -> None:
    with node(tmp_path, {"durability": "fsync"}) as at:
        at.topic()
        try:
            topics = [{"name": "orders", "partitionData": [{"index": 0, "records": batch(b"a")}]}]
            pending = at.begin(PRODUCE, 12, acks=1, timeoutMs=1, topicData=topics)
            assert isinstance(pending, Pending)
            answered = threading.Event()
            pending.deliver_to(lambda result: answered.set())
            assert answered.wait(30)
            log = at.broker.home.manager.get_log("orders-0")
            assert log is not None
            assert log.recovery_point == 1
            producer = holder(at)
            topics[0]["partitionData"] = [{"index": 0, "records": of(producer)}]
            pending = at.begin(PRODUCE, 12, acks=-1, timeoutMs=1, topicData=topics, transactionalId="tx")
            assert isinstance(pending, Pending)
            answered.clear()
            pending.deliver_to(lambda result: answered.set())
            assert answered.wait(30)
            assert log.recovery_point == 2
            assert at.begin(PRODUCE, 12, acks=0, timeoutMs=1, topicData=[]) is None
        finally:
            at.data.close()


# --- what is handled in the pool ---------------------------------------------------------------------------------


def is_for_the_pool(*batches: bytes | None) -> bool:
    data = [{"index": index, "records": each} for index, each in enumerate(batches)]
    return is_heavy(Request(PRODUCE, 12, body={"topicData": [{"name": "orders", "partitionData": data}]}))


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_requests_with_much_to_decompress(codec: int) -> None:
    usual = batch(*[random.Random(1).randbytes(1000)] * 16, codec=codec)
    assert not is_for_the_pool(usual, usual, None, b"", usual[:61], batch(bytes(2 * HEAVY_CONTENT_BYTES)))
    assert is_for_the_pool(usual, batch(bytes(2 * HEAVY_CONTENT_BYTES), codec=codec))
    assert is_for_the_pool(*[batch(random.Random(1).randbytes(20_000), codec=codec)] * 14)
    assert is_for_the_pool(*[batch(bytes(HEAVY_CONTENT_BYTES // 4), codec=codec)] * 5)


def test_a_gzip_batch_that_lies_about_its_size() -> None:
    lies = batch(bytes(16 * HEAVY_CONTENT_BYTES), codec=GZIP)[:-4] + b"\1\0\0\0"
    assert len(lies) < HEAVY_BYTES
    assert not is_for_the_pool(lies[: HEAVY_CONTENT_BYTES // 64])
    assert is_for_the_pool(lies, lies)


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_damaged_batches_are_refused_by_the_handler(codec: int) -> None:
    whole = batch(*[bytes(1000)] * 100, codec=codec)
    for end in range(len(whole)):
        is_for_the_pool(whole[:end], whole[:62] + bytes(end))


@pytest.mark.parametrize("acks", [0, 1])
def test_a_request_of_the_pool_over_the_wire(tmp_path: Path, acks: int) -> None:
    heavy = batch(bytes(2 * HEAVY_CONTENT_BYTES), codec=ZSTD)
    with kafkalog.open(tmp_path) as store:
        store.create_topic("orders", 1, config={"message.timestamp.before.max.ms": str(2**63 - 1)})
        server = store.serve("127.0.0.1:0")
        with Client(server.bootstrap_servers) as producer, Client(server.bootstrap_servers) as consumer:
            asked = {"partition": 0, "fetchOffset": 0, "currentLeaderEpoch": -1, "partitionMaxBytes": 1 << 20}
            consumer.send(
                "Fetch", 11, maxWaitMs=60_000, minBytes=1, maxBytes=1 << 20, sessionEpoch=-1, rackId="",
                topics=[{"topic": "orders", "partitions": [asked]}],
            )  # fmt: skip
            for each in (heavy, batch(b"a")):  # the second one stays behind the first
                data = [{"name": "orders", "partitionData": [{"index": 0, "records": each}]}]
                producer.send("Produce", 9, acks=acks, timeoutMs=1000, topicData=data)
            for offset in (0, 1) if acks else ():
                (topic,) = producer.answer("Produce", 9)["responses"]
                assert [(each["errorCode"], each["baseOffset"]) for each in topic["partitionResponses"]] == [
                    (0, offset)
                ]
            (topic,) = consumer.answer("Fetch", 11)["responses"]
            assert bytes(topic["partitions"][0]["records"])[23:] == heavy[23:]
            producer.ask("ApiVersions", 0)
            assert [record.value for record in store.reader(topics=["orders"]).records()][1:] == [b"a"]


def test_a_bomb_is_refused_with_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("format.records", "log.ordinary"):
        monkeypatch.setattr(f"kafkalog.engine.{place}.READ_BYTES_MAX", 4 << 20)
    bombs = [batch(bytes(64 << 20), codec=codec) for codec in (GZIP, LZ4, ZSTD)]
    with node(tmp_path) as at:
        at.topic(partitions=3)
        at.topic("unpacked", partitions=3, compression_type="uncompressed")
        at.topic("other", partitions=3, compression_type="snappy")
        for topic in ("orders", "unpacked", "other"):
            tracemalloc.start()
            try:
                codes = [each["errorCode"] for each in at.produce(*bombs, topic=topic)]
                assert tracemalloc.get_traced_memory()[1] < 16 << 20
            finally:
                tracemalloc.stop()
            assert codes == [Errors.MESSAGE_TOO_LARGE] * 3
