"""Topics and partitions by name: `orders`, `orders-0`, or a glob such as `orders-*`.

No topic's name contains `*`, `?` or `[`. As a shell's `*` omits hidden files, a glob matches Kafka's internal topics
only if it begins with their prefix: `__*`.
"""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

from kafkalog.engine.format.names import INTERNAL_TOPICS, TopicPartition

_WILD = frozenset("*?[")


def is_glob(name: str) -> bool:
    """Returns whether a name is a glob."""
    return not _WILD.isdisjoint(name)


def names_topic(name: str, topic: str) -> bool:
    """Returns whether `name` is a topic's name, or a glob that matches it."""
    return name == topic or (is_glob(name) and _takes(name, topic, topic))


def names_partition(name: str, partition: TopicPartition) -> bool:
    """Returns whether `name` is that of a partition or of its topic, or a glob that matches one of them."""
    topic, text = partition.topic, str(partition)
    return name in (topic, text) or (is_glob(name) and (_takes(name, topic, topic) or _takes(name, text, topic)))


def names_of_partition(asked: Collection[str], partition: TopicPartition) -> set[str]:
    """Returns the names in `asked` that match a partition."""
    return {name for name in asked if names_partition(name, partition)}


def say_which(asked: Collection[str]) -> bool:
    """Returns whether names select something: `*` alone selects no more than no names at all."""
    return bool(asked) and all(name.strip("*") for name in asked)


def _takes(glob: str, text: str, topic: str) -> bool:
    return (glob[0] not in _WILD or topic not in INTERNAL_TOPICS) and fnmatchcase(text, glob)
