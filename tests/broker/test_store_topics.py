"""A store's topics on a broker, and a broker's topics in a store; one node with two log directories.

before   A store creates a topic that the cluster does not know, and writes to it.
run 1    The broker sets its directories aside as strays.  Clients create two topics and write to them; SIGTERM.
between  A store finds the broker's topics with their ids, writes to them and adds none.  The strays are given to the
         broker's topic of the same name: its id is written into them.
run 2    The broker serves all records, old and new.  A topic is deleted; SIGTERM.
between  A store sees the topics that exist, and nothing of the deleted one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import kafkalog
from kafkalog._native.codec.partitioner import partition_for_key
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import topic_id_of, write_partition_metadata
from kafkalog.errors import UnknownTopicOrPartitionException
from tests.broker import clients, kraft
from tests.conftest import need_broker

pytestmark = pytest.mark.broker

OURS, THEIRS, GONE = "ours", "theirs", "gone"
PARTITIONS = {OURS: 2, THEIRS: 3, GONE: 2}
Values = dict[TopicPartition, list[bytes | None]]


@dataclass
class Story:
    """The observations of both sides."""

    strays: list[str] = field(default_factory=list)
    strays_said: str = ""
    after_strays: list[str] = field(default_factory=list)  # the store's topics
    broker_ids: dict[str, str | None] = field(default_factory=dict)
    store_ids: dict[str, str | None] = field(default_factory=dict)
    written: Values = field(default_factory=dict)
    served: Values = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    strays_at_the_end: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    last_id: str | None = None


def folders(node: kraft.Broker, suffix: str = "") -> dict[str, Path]:
    """Partition directories of topics by name. With a suffix: only those with it, by the part before the dot."""
    return {
        path.name.partition(".")[0]: path
        for directory in node.log_dirs
        for path in directory.iterdir()
        if path.is_dir()
        and not path.name.startswith("__")
        and path.name.endswith(suffix)
        and ("." in path.name) == bool(suffix)
    }


def append_some(store: kafkalog.Store, topic: str, written: Values, what: bytes) -> None:
    handle = store.topic(topic)
    for number in range(12):
        value = b"%s %d" % (what, number)
        where = handle.append(value, key=b"key %d" % number)
        written.setdefault(TopicPartition(topic, where.partition), []).append(value)
        assert where.partition == partition_for_key(b"key %d" % number, PARTITIONS[topic])


def adopt(node: kraft.Broker) -> None:
    """The strays replace the empty directories that the broker created for the topic of that name."""
    made, strays = folders(node), folders(node, "-stray")
    for name, stray in strays.items():
        empty = made[name]
        topic_id = topic_id_of(str(empty))
        assert topic_id is not None
        shutil.rmtree(empty)
        home = stray.parent / name
        stray.rename(home)
        write_partition_metadata(str(home / "partition.metadata"), topic_id)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    need_broker()
    place = tmp_path_factory.mktemp("broker")
    told = Story()
    with kraft.broker(place, log_dir_count=2) as node:
        dirs = [str(each) for each in node.log_dirs]
        with kafkalog.open(dirs, take_over=True) as store:
            store.create_topic(OURS, PARTITIONS[OURS])
            append_some(store, OURS, told.written, b"before")
        node.start()
        told.strays = sorted(folders(node, "-stray"))
        told.strays_said = node.log_text()
        clients.create_topics(node.bootstrap, {name: (count, {}) for name, count in PARTITIONS.items()})
        producer = clients.ConfluentProducer(node.bootstrap)
        for partition in range(PARTITIONS[THEIRS]):
            rows = clients.rows(partition, 5)
            producer.send(THEIRS, partition, rows)
            told.written[TopicPartition(THEIRS, partition)] = [row.value for row in rows]
        node.stop()
        for name, path in folders(node).items():
            told.broker_ids[name.rpartition("-")[0]] = topic_id_of(str(path))
        adopt(node)
        with kafkalog.open(dirs, take_over=True) as store:
            told.after_strays = [name for name in store.topics() if not name.startswith("__")]
            told.store_ids = {name: store.describe_topic(name).topic_id for name in told.after_strays}
            append_some(store, THEIRS, told.written, b"between")
            append_some(store, OURS, told.written, b"between")
            store.add_partitions(GONE, PARTITIONS[GONE] + 1)  # the cluster does not know of it
        node.start()
        partitions = [TopicPartition(name, n) for name in (OURS, THEIRS) for n in range(PARTITIONS[name])]
        seen = clients.consume(node.bootstrap, partitions, "read_uncommitted")
        told.served = {each: [record.value for record in found.records] for each, found in seen.items()}
        told.complaints = node.complaints((OURS, THEIRS))
        delete(node.bootstrap, GONE)
        node.stop()
        told.strays_at_the_end = sorted(folders(node, "-stray"))
        with kafkalog.open(dirs, take_over=True) as store:
            told.last = [name for name in store.topics() if not name.startswith("__")]
            with pytest.raises(UnknownTopicOrPartitionException):
                store.topic(GONE)
            assert not [name for name in folders(node) if name.startswith(GONE)]
            told.last_id = store.create_topic(GONE).info.topic_id
        yield told
    shutil.rmtree(place, ignore_errors=True)


def delete(bootstrap: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap, **clients.QUIET})
    for future in admin.delete_topics([topic]).values():
        future.result(60)


def test_a_topic_that_the_cluster_does_not_know_is_set_aside(story: Story) -> None:
    """Its directories are renamed, no record is lost, and the log says so."""
    assert story.strays == [f"{OURS}-{number}" for number in range(PARTITIONS[OURS])]
    assert "stray" in story.strays_said.lower()


def test_a_store_finds_the_brokers_topics(story: Story) -> None:
    assert story.after_strays == sorted(PARTITIONS)
    assert story.store_ids == story.broker_ids
    assert None not in story.store_ids.values()


def test_the_broker_serves_what_the_store_wrote(story: Story) -> None:
    assert story.served == story.written
    assert story.complaints == []
    assert story.strays_at_the_end == [f"{GONE}-{PARTITIONS[GONE]}"]


def test_what_the_broker_deleted_is_gone(story: Story) -> None:
    assert story.last == [OURS, THEIRS]
    assert story.last_id not in story.broker_ids.values()
