"""The hash of a group's topics: it changes if a topic that the group reads comes, goes or grows.

The hash of a topic covers its id, name, partition count and the racks of its replicas. The hash of a group covers
those of its topics, by name. It stands in the group's record, so it must be Kafka's.

Source: Utils.computeTopicHash and computeGroupHash (4.4.0), with XXH3 of hash4j: numbers are little-endian, a string
is its UTF-16 units and then their number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from kafkalog._native.codec.java_hash import utf_16
from kafkalog.engine.coordinator.java_order import string_order, uuid_key
from kafkalog.engine.coordinator.topics_view import TopicsView
from kafkalog.engine.format.xxh3 import xxh3_64

NO_RACKS: Sequence[str] = ()
MAGIC = 0
HEAD = struct.Struct("<Bqq")
INTEGER = struct.Struct("<i")
LONG = struct.Struct("<q")


def compute_topic_hash(topic: str, topic_id: str, partition_count: int, racks: Sequence[str] = NO_RACKS) -> int:
    """Returns the hash of a topic, signed. `racks`: those of each partition's replicas, if brokers have racks."""
    parts = [HEAD.pack(MAGIC, *uuid_key(topic_id)), _text(topic), INTEGER.pack(partition_count)]
    of_racks = b"".join(INTEGER.pack(len(utf_16(each)) // 2) + _text(each) for each in sorted(racks, key=string_order))
    for partition in range(partition_count):
        parts += [INTEGER.pack(partition), of_racks]
    return _signed(xxh3_64(b"".join(parts)))


def compute_group_hash(topic_hashes: Mapping[str, int]) -> int:
    """Returns the hash of a group, signed; 0 if none of its topics exists."""
    if not topic_hashes:
        return 0
    topics = sorted(topic_hashes, key=string_order)
    return _signed(xxh3_64(b"".join(LONG.pack(topic_hashes[each]) for each in topics)))


class TopicHashes:
    """The hashes of the topics that groups read. A topic's is computed again if its id or partition count changes."""

    def __init__(self, topics: TopicsView) -> None:
        self._topics = topics
        self._known: dict[str, tuple[str, int, int]] = {}  # id, partition count and hash by topic

    def of_group(self, topics: Iterable[str]) -> int:
        """Returns the hash of a group that reads these topics, of which some may not exist."""
        hashes = {}
        for topic in topics:
            topic_id = self._topics.topic_id(topic)
            if topic_id is None:
                continue
            partitions = self._topics.partitions(topic)
            known = self._known.get(topic)
            if known is None or known[:2] != (topic_id, partitions):
                known = topic_id, partitions, compute_topic_hash(topic, topic_id, partitions)
                self._known[topic] = known
            hashes[topic] = known[2]
        return compute_group_hash(hashes)


def _text(text: str) -> bytes:
    units = utf_16(text)
    return units + INTEGER.pack(len(units) // 2)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
