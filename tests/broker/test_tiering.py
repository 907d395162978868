"""A live broker tiers with Kafka's own LocalTieredStorage, and kafkalog reads both tiers; a store tiers, and the broker
reads.

All codecs, transactions, several leader epochs (a broker's restart begins one), times out of order: what kafkalog reads
must be what a consumer reads, from the beginning, and offsets by time as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.format.names import TopicPartition
from kafkalog.remote import RemoteStorage
from tests.broker import clients, kraft

pytestmark = [pytest.mark.jvm, pytest.mark.broker]

POM = Path(__file__).parent / "tiering.pom.xml"
SECONDS_MAX = 60
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPIC = TopicPartition("orders", 0)
SETTINGS: Mapping[str, str] = {
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 20),
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}


def tiering(place: Path) -> dict[str, str]:
    """The broker's settings."""
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        "rsm.config.dir": str(place / "tier"),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "remote.log.metadata.manager.impl.prefix": "rlmm.config.",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "remote.log.manager.task.interval.ms": "300",
        "remote.log.manager.copier.thread.pool.size": "1",
        "remote.log.manager.expiration.thread.pool.size": "1",
        "log.retention.check.interval.ms": "300",
        "log.initial.task.delay.ms": "300",
    }


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[kraft.Broker]:
    with kraft.broker(tmp_path / "node", settings=tiering(tmp_path), pom=POM, shares_metadata=True) as node:
        yield node


def until(what: Callable[[], bool], why: str) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not what():
        assert time.monotonic() < end, why
        time.sleep(0.1)


def produce(broker: kraft.Broker, seed: int) -> None:
    """More than a segment in each codec, and transactions, one of them aborted."""
    for number, codec in enumerate(CODECS):
        producer = clients.ConfluentProducer(broker.bootstrap, codec)
        for part in range(3):
            producer.send("orders", 0, clients.rows(seed + 10 * number + part, 120, value_bytes_max=9000))
        sure = clients.ConfluentProducer(broker.bootstrap, codec, transactional_id=f"sure-{codec}")
        for part in range(2):
            sure.begin()
            sure.send("orders", 0, clients.rows(seed + 100 + 10 * number + part, 60, value_bytes_max=9000))
            sure.commit() if part else sure.abort()


def local_segments(broker: kraft.Broker) -> list[int]:
    return sorted(int(path.stem) for path in (broker.log_dir / "orders-0").glob("*.log"))


def wait_until_tiered(broker: kraft.Broker, least: int) -> None:
    def is_tiered() -> bool:
        return len(local_segments(broker)) == 1 and local_segments(broker)[0] >= least

    until(is_tiered, f"local segments are {local_segments(broker)}")


def shown(records: Iterator[kafkalog.Record]) -> list[tuple[object, ...]]:
    return [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers or ())) for r in records]


def as_shown(records: list[object]) -> list[tuple[object, ...]]:
    return shown(iter(records))  # type: ignore[arg-type]


def test_what_a_broker_tiered_is_read(broker: kraft.Broker, tmp_path: Path) -> None:
    broker.start()
    clients.create_topics(broker.bootstrap, {"orders": (1, SETTINGS)})
    produce(broker, 1)
    broker.stop()
    broker.start()  # another leader epoch
    produce(broker, 1000)
    wait_until_tiered(broker, 1000)
    tier = RemoteStorage(tmp_path / "tier")
    first_local = local_segments(broker)[0]
    for isolation in ("read_uncommitted", "read_committed"):
        seen = clients.consume(broker.bootstrap, [TOPIC], isolation)[TOPIC]
        expected = as_shown(list(seen.records))
        assert seen.start == 0
        assert len(expected) > 2000
        with kafkalog.open(broker.log_dir, read_only=True, remote=tier) as both:
            partition = both.topic("orders").partition(0)
            assert (partition.log_start_offset, partition.end_offset) == (0, seen.end)
            assert shown(partition.records(isolation=isolation)) == expected
        with kafkalog.open(tier, read_only=True) as bucket:
            alone = shown(bucket.topic("orders").partition(0).records(isolation=isolation))
            assert alone == [row for row in expected if row[0] < first_local]
    times = sorted({row[1] for row in expected})
    asked = times[:: len(times) // 20]
    said = clients.offsets_for_times(broker.bootstrap, TOPIC, asked)
    broker.stop()
    with kafkalog.open(broker.log_dir, remote=tier, take_over=True, maintenance=False) as store:
        partition = store.topic("orders").partition(0)
        engine = partition.engine
        assert engine is not None
        assert (engine.log_start_offset, engine.local_log_start_offset) == (0, first_local)
        assert shown(partition.records(isolation="read_committed")) == expected
        assert [engine.fetch_offset_by_timestamp(each).offset for each in asked] == said
        store.topic("orders").append(b"from kafkalog", partition=0)
    broker.start()
    again = clients.consume(broker.bootstrap, [TOPIC], "read_committed")[TOPIC]
    assert as_shown(list(again.records))[: len(expected)] == expected
    assert again.records[-1].value == b"from kafkalog"


def test_a_broker_reads_what_a_store_tiered(broker: kraft.Broker, tmp_path: Path) -> None:
    broker.start()
    clients.create_topics(broker.bootstrap, {"orders": (1, SETTINGS)})
    clients.ConfluentProducer(broker.bootstrap).send("orders", 0, clients.rows(5, 10))
    until(lambda: bool(list(broker.log_dir.glob("__remote_log_metadata-*"))), "no topic of remote metadata")
    broker.stop()
    with kafkalog.open(broker.log_dir, remote=tmp_path / "tier", take_over=True, maintenance=False) as store:
        topic = store.topic("orders")
        for number in range(3000):
            topic.append(b"%d " % number * 300, key=b"key-%d" % (number % 7), partition=0)
        with store.transaction("mine") as txn:
            txn.append("orders", b"committed", partition=0)
        tier = store._home.tier  # type: ignore[attr-defined]
        assert tier.remote_log_manager.run_once() > 2
        partition = topic.partition(0)
        partition.delete_old_segments()
        engine = partition.engine
        assert engine is not None
        assert engine.local_log_start_offset > 1000
        expected = shown(partition.records(isolation="read_committed"))
        times = sorted({row[1] for row in expected})
        asked = times[:: len(times) // 20 or 1]
        found = [engine.fetch_offset_by_timestamp(each) for each in asked]
    broker.start()
    seen = clients.consume(broker.bootstrap, [TOPIC], "read_committed")[TOPIC]
    assert seen.start == 0
    assert as_shown(list(seen.records)) == expected
    assert clients.offsets_for_times(broker.bootstrap, TOPIC, asked) == [each and each.offset for each in found]
