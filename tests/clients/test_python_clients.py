"""Python's clients: confluent-kafka, kafka-python and aiokafka see the same on both servers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.broker.servers import Servers

pytestmark = [
    pytest.mark.broker,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SECONDS_MAX = 40


@pytest.fixture(autouse=True)
def sockets_left_open() -> Iterator[None]:
    """kafka-python leaves sockets to the garbage collector: they are freed here, where the warning is ignored."""
    yield
    gc.collect()


# --- confluent-kafka -------------------------------------------------------------------------------------


def test_confluent_producer_and_consumer(servers: Servers) -> None:
    def program(bootstrap: str) -> Sequence[str]:
        from confluent_kafka import Consumer, Producer
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("crdk", 3, 1)])["crdk"].result(SECONDS_MAX)
        acked: list[str] = []

        def told(error: Any, message: Any) -> None:
            acked.append(f"{error} {message.partition()} {message.offset()}")

        for codec in CODECS:
            producer = Producer(
                {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.codec": codec, "linger.ms": 5}
            )
            for number in range(200):
                headers = [("h", b"\x00"), ("n", None)] if number % 9 == 0 else None
                producer.produce(
                    "crdk", f"{codec} {number}".encode(), b"key" if number % 3 else None, number % 3,
                    on_delivery=told, headers=headers,
                )  # fmt: skip
            assert producer.flush(SECONDS_MAX) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "crdk",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(["crdk"])
        found = _polled(consumer, 1000)
        rows = sorted((m.partition(), m.offset(), m.key(), m.value(), str(m.headers())) for m in found)
        committed = consumer.commit(asynchronous=False)
        offsets = sorted((each.partition, each.offset) for each in committed)
        watermarks = [consumer.get_watermark_offsets(each, SECONDS_MAX) for each in consumer.assignment()]
        consumer.close()
        return [*sorted(acked), *map(str, rows), str(offsets), str(sorted(watermarks))]

    assert len(servers.same(program)) == 2002


def _polled(consumer: Any, count: int) -> list[Any]:
    found: list[Any] = []
    until = time.monotonic() + SECONDS_MAX
    while len(found) < count and time.monotonic() < until:
        found += [each for each in consumer.consume(500, 0.2) if each.error() is None]
    return found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_confluent_group_divides_and_goes_on(servers: Servers, protocol: str) -> None:
    def program(bootstrap: str) -> Sequence[str]:
        from confluent_kafka import Consumer, KafkaException, Producer
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        topic = f"cgroup-{protocol}"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(SECONDS_MAX)
        producer = Producer({"bootstrap.servers": bootstrap})
        for number in range(80):
            producer.produce(topic, b"%d" % number, partition=number % 4)
        producer.flush(SECONDS_MAX)
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "group.protocol": protocol,
        }  # fmt: skip
        if protocol == "classic":
            settings |= {"session.timeout.ms": 6000, "partition.assignment.strategy": "cooperative-sticky"}
        members = [Consumer(settings) for _ in range(2)]
        for each in members:
            each.subscribe([topic])
        seen: set[bytes] = set()
        until = time.monotonic() + SECONDS_MAX
        while time.monotonic() < until:
            for each in members:
                seen |= {m.value() for m in each.consume(100, 0.1) if m.error() is None}
            if len(seen) == 80 and all(len(each.assignment()) == 2 for each in members):
                break
        sizes = [len(each.assignment()) for each in members]
        for each in members:
            with contextlib.suppress(KafkaException):  # a member that has read nothing has no offset to commit
                each.commit(asynchronous=False)
            each.close()
        described = admin.describe_consumer_groups([topic])[topic].result(SECONDS_MAX)
        return [str(sizes), str(len(seen)), str(described.state), str(len(described.members))]

    assert servers.same(program)[:2] == ["[2, 2]", "80"]


def test_confluent_transactions(servers: Servers) -> None:
    def program(bootstrap: str) -> Sequence[str]:
        from confluent_kafka import Consumer, Producer, TopicPartition
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("ctx", 2, 1)])["ctx"].result(SECONDS_MAX)
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "ctx"})
        producer.init_transactions(SECONDS_MAX)
        for number in range(6):
            producer.begin_transaction()
            for each in range(10):
                producer.produce("ctx", b"%d-%d" % (number, each), partition=each % 2)
            if number % 3 == 2:
                assert producer.flush(SECONDS_MAX) == 0  # an abort drops what was not sent
                producer.abort_transaction(SECONDS_MAX)
            else:
                producer.commit_transaction(SECONDS_MAX)
        lines = []
        for level, count in (("read_committed", 40), ("read_uncommitted", 60)):
            consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": level, "isolation.level": level})
            consumer.assign([TopicPartition("ctx", number, 0) for number in range(2)])
            rows = sorted((m.partition(), m.offset(), m.value()) for m in _polled(consumer, count))
            lines += [level, *map(str, rows)]
            consumer.close()
        return lines

    assert len(servers.same(program)) == 102


# --- kafka-python ----------------------------------------------------------------------------------------


def is_there(codec: str) -> bool:
    """Whether kafka-python finds a library for a codec."""
    from kafka import codec as codecs

    return bool(getattr(codecs, f"has_{codec}")())


def test_kafka_python(servers: Servers) -> None:
    def program(bootstrap: str) -> Sequence[str]:
        from kafka import KafkaConsumer, KafkaProducer, TopicPartition
        from kafka.admin import KafkaAdminClient, NewTopic

        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        admin.create_topics([NewTopic("kpy", 2, 1)])
        lines = []
        for codec in (None, "gzip", *filter(is_there, ("snappy", "lz4", "zstd"))):
            producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type=codec, acks="all")
            sent = [producer.send("kpy", b"%d" % number, b"k", partition=number % 2) for number in range(50)]
            lines += [str((each.get(SECONDS_MAX).partition, each.get().offset)) for each in sent]
            producer.close()
        consumer = KafkaConsumer(
            "kpy", bootstrap_servers=bootstrap, group_id="kpy", auto_offset_reset="earliest", enable_auto_commit=False,
            consumer_timeout_ms=SECONDS_MAX * 1000,
        )  # fmt: skip
        rows = []
        for record in consumer:
            rows.append((record.partition, record.offset, record.key, record.value))
            if len(rows) == len(lines):
                break
        consumer.commit()
        places = [TopicPartition("kpy", number) for number in range(2)]
        ends = sorted(consumer.end_offsets(places).values())
        consumer.close()
        admin.close()
        return [*lines, *map(str, sorted(rows)), str(ends)]

    assert len(servers.same(program)) > 200


def test_kafka_python_members_divide_a_topic(servers: Servers) -> None:
    """One thread polls both in turn.  With polls of 0.1 s the client itself may stop its heartbeats, on each server."""

    def program(bootstrap: str) -> Sequence[str]:
        from kafka import KafkaConsumer
        from kafka.admin import KafkaAdminClient, NewTopic

        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        admin.create_topics([NewTopic("kpyg", 4, 1)])
        admin.close()
        members = [KafkaConsumer("kpyg", bootstrap_servers=bootstrap, group_id="kpyg") for _ in range(2)]
        until = time.monotonic() + SECONDS_MAX
        sizes: list[int] = []
        while sizes != [2, 2] and time.monotonic() < until:
            for each in members:
                each.poll(timeout_ms=500)
            sizes = [len(each.assignment()) for each in members]
        for each in members:
            each.close()
        return [str(sizes)]

    assert servers.same(program) == ["[2, 2]"]


# --- aiokafka --------------------------------------------------------------------------------------------


def test_aiokafka(servers: Servers) -> None:
    async def talk(bootstrap: str) -> list[str]:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic

        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic("aio", 2, 1)])
        await admin.close()
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="aio")
        await producer.start()
        for number in range(4):
            await producer.begin_transaction()
            for each in range(10):
                await producer.send("aio", b"%d-%d" % (number, each), partition=each % 2)
            await (producer.abort_transaction() if number == 2 else producer.commit_transaction())
        await producer.stop()
        consumer = AIOKafkaConsumer(
            "aio", bootstrap_servers=bootstrap, group_id="aio", auto_offset_reset="earliest", enable_auto_commit=False,
            isolation_level="read_committed",
        )  # fmt: skip
        await consumer.start()
        rows = []
        async with asyncio.timeout(SECONDS_MAX):
            while len(rows) < 30:
                record = await consumer.getone()
                rows.append((record.partition, record.offset, record.value))
        await consumer.commit()
        await consumer.stop()
        return [str(each) for each in sorted(rows)]

    def program(bootstrap: str) -> Sequence[str]:
        return asyncio.run(talk(bootstrap))

    assert len(servers.same(program)) == 30
