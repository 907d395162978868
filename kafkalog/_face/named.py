"""Topics and partitions as somebody names them: `orders`, `orders-0`, or a glob such as `orders-*`.

No topic's name has a `*`, `?` or `[` in it.  As a shell's `*` leaves hidden files out, a glob takes Kafka's own topics
only where it says how they begin: `__*`.
"""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

from kafkalog.engine.format.names import INTERNAL_TOPICS, TopicPartition

_WILD = frozenset("*?[")


def is_glob(name: str) -> bool:
    """Whether a name stands for many."""
    return not _WILD.isdisjoint(name)


def names_topic(name: str, topic: str) -> bool:
    """Whether `name` is that of a topic, or a glob that takes it."""
    return name == topic or (is_glob(name) and _takes(name, topic, topic))


def names_partition(name: str, partition: TopicPartition) -> bool:
    """Whether `name` is that of a partition or of its topic, or a glob that takes one of them."""
    topic, text = partition.topic, str(partition)
    return name in (topic, text) or (is_glob(name) and (_takes(name, topic, topic) or _takes(name, text, topic)))


def names_of_partition(asked: Collection[str], partition: TopicPartition) -> set[str]:
    """Which of the names that were asked for take a partition."""
    return {name for name in asked if names_partition(name, partition)}


def say_which(asked: Collection[str]) -> bool:
    """Whether names say what is meant: `*` alone names nothing that no name would not."""
    return bool(asked) and all(name.strip("*") for name in asked)


def _takes(glob: str, text: str, topic: str) -> bool:
    return (glob[0] not in _WILD or topic not in INTERNAL_TOPICS) and fnmatchcase(text, glob)
