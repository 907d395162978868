"""The settings that count by a real cluster's metadata: the broker's own answer to DescribeConfigs, from the log alone
and from a snapshot with the log after it."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import kafkalog
from kafkalog._face.topic_settings import ConfigSource, TopicSettings, broker_properties
from tests.broker import clients, kraft
from tests.conformance import kafka_jars
from tests.conftest import need_broker

pytestmark = pytest.mark.broker

KEYS = (
    "cleanup.policy", "retention.ms", "retention.bytes", "segment.ms", "segment.bytes", "flush.ms", "flush.messages",
    "compression.type", "max.message.bytes", "min.compaction.lag.ms", "delete.retention.ms", "index.interval.bytes",
)  # fmt: skip
TOPICS = {
    "orders": (3, {"retention.ms": "5184000000"}),
    "compacted": (1, {"cleanup.policy": "compact", "min.compaction.lag.ms": "7"}),
    "plain": (2, {}),
    "gone": (1, {"retention.ms": "1"}),
}
STATIC = {"log.roll.ms": "32400000", "log.flush.interval.messages": "12345", "log.index.interval.bytes": "2048"}
# How a broker's answer names where a setting comes from.
SOURCES = {
    "1": ConfigSource.TOPIC,
    "2": ConfigSource.DYNAMIC,
    "3": ConfigSource.DYNAMIC,
    "4": ConfigSource.STATIC,
    "5": ConfigSource.DEFAULT,
}


@dataclass
class Seen:
    """The topics' settings (values, sources, id) as the broker reported them, and its directory's copy of then."""

    configs: dict[str, dict[str, tuple[str, ConfigSource]]] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    copy: Path = Path()


def set_broker_configs(node: kraft.Broker, *args: str) -> None:
    """By kafka-configs: clients refuse the name of the cluster's default."""
    command = kafka_jars.tools().command(
        "--bootstrap-server", node.bootstrap, "--alter", *args, main="kafka.admin.ConfigCommand"
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def look(node: kraft.Broker, copy: Path) -> Seen:
    from confluent_kafka.admin import AdminClient, ConfigResource

    admin = AdminClient({"bootstrap.servers": node.bootstrap, **clients.QUIET})
    seen = Seen(copy=copy)
    there = admin.list_topics(timeout=60).topics
    for name in sorted(set(there) & set(TOPICS)):
        (asked,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name)]).values()
        found = asked.result(60)
        seen.configs[name] = {key: (found[key].value, SOURCES[str(found[key].source)]) for key in KEYS}
    shutil.copytree(node.log_dir, copy)
    return seen


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[kraft.Broker, list[Seen]]]:
    need_broker()
    place = tmp_path_factory.mktemp("metadata")
    # A snapshot after each few bytes of metadata.
    settings = STATIC | {"metadata.log.max.record.bytes.between.snapshots": "2000"}
    with kraft.broker(place, shares_metadata=True, settings=settings) as node:
        node.start()
        clients.create_topics(node.bootstrap, TOPICS)
        producer = clients.ConfluentProducer(node.bootstrap)
        month_ago = int(time.time() * 1000) - 30 * 24 * 3600 * 1000  # older than Kafka's default keeps
        producer.send("orders", 0, [row._replace(timestamp=month_ago) for row in clients.rows(1, 20)])
        seen = [look(node, place / "first")]
        add = "--add-config"
        set_broker_configs(node, "--entity-type", "brokers", "--entity-default", add, "log.retention.ms=77000000")
        set_broker_configs(node, "--entity-type", "brokers", "--entity-name", "1", add, "log.flush.interval.ms=4444")
        set_broker_configs(node, "--entity-type", "topics", "--entity-name", "plain", add, "segment.bytes=2000000")
        set_broker_configs(
            node, "--entity-type", "topics", "--entity-name", "orders", "--delete-config", "retention.ms"
        )
        _delete(node, "gone")
        clients.create_topics(node.bootstrap, {f"many-{number}": (4, {}) for number in range(10)})
        clients.create_topics(node.bootstrap, {"gone": (2, {"cleanup.policy": "compact"})})
        seen.append(look(node, place / "second"))
        node.stop()
        yield node, seen
    shutil.rmtree(place, ignore_errors=True)


def _delete(node: kraft.Broker, topic: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": node.bootstrap, **clients.QUIET})
    for future in admin.delete_topics([topic]).values():
        future.result(60)


@pytest.mark.parametrize("look_number", [0, 1])
def test_settings_and_sources_are_the_brokers(story: tuple[kraft.Broker, list[Seen]], look_number: int) -> None:
    node, looks = story
    seen = looks[look_number]
    broker = broker_properties(node.properties)
    settings = TopicSettings(str(seen.copy), broker=broker)
    assert settings.cluster is not None
    assert settings.cluster.problem is None
    assert set(seen.configs) <= set(settings.cluster.topics)
    for name, wanted in seen.configs.items():
        assert settings.knows(name)
        ours = settings.described(name, KEYS)
        told = {key: (_text(value), source) for key, (value, source) in ours.items()}
        assert told == wanted, name


def test_a_snapshot_was_read(story: tuple[kraft.Broker, list[Seen]]) -> None:
    """The second look is one of a snapshot; else it says nothing that the first does not."""
    _, looks = story
    snapshots = sorted((looks[1].copy / "__cluster_metadata-0").glob("*.checkpoint"))
    assert int(snapshots[-1].name.partition("-")[0]) > 20


def test_partitions_and_ids(story: tuple[kraft.Broker, list[Seen]]) -> None:
    _, looks = story
    with kafkalog.open(looks[1].copy, read_only=True) as store:
        assert {name: store.describe_topic(name).partitions for name in TOPICS} == {
            "orders": 3, "compacted": 1, "plain": 2, "gone": 2
        }  # fmt: skip
        assert store.describe_topic("gone").overrides == {"cleanup.policy": "compact"}
        assert store.describe_topic("orders").overrides == {}


def test_nothing_goes_that_the_cluster_keeps(story: tuple[kraft.Broker, list[Seen]], tmp_path: Path) -> None:
    _, looks = story
    root = tmp_path / "copy"
    shutil.copytree(looks[0].copy, root)
    with kafkalog.open(root, take_over=True) as store:
        store.manager.cleanup_logs()
        with store.reader(topics=["orders"]) as reader:
            assert len(reader.poll(100)) == 20


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
