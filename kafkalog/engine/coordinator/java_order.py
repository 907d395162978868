"""The maps and sets of a group, in the order in which Kafka iterates over them.

Which member gets a partition, and in which order a record lists partitions, follows from the order of Java's hash
tables. So assignments are kept in tables of the same order. A set is a map whose values are None.

`TimelineHashMap` is the order of Kafka's own table, in which a group keeps its members; the rest are those of
java.util. Not thread-safe.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from kafkalog._native.codec.java_hash import JavaHashMap, string_hash, utf_16

K = TypeVar("K")
V = TypeVar("V")

# A HashSet of partitions; partitions with their epochs; a HashSet of names.
Partitions = Mapping[int, None]
PartitionEpochs = Mapping[int, int]
Names = Mapping[str, None]
# By topic id.
Assignment = Mapping[str, Partitions]
AssignmentEpochs = Mapping[str, PartitionEpochs]

NO_NAMES: Names = {}
NO_ASSIGNMENT: Assignment = {}
NO_EPOCHS: AssignmentEpochs = {}

_FIBONACCI = -7046029254386353131 & 0xFFFFFFFFFFFFFFFF
_MIN_CAPACITY = 2
_MAX_CAPACITY = 1 << 30


@functools.lru_cache(maxsize=1 << 14)
def uuid_key(topic_id: str) -> tuple[int, int]:
    """Returns a Uuid's two halves, signed, which is how Java orders Uuids."""
    data = base64.urlsafe_b64decode(topic_id + "==")
    return int.from_bytes(data[:8], "big", signed=True), int.from_bytes(data[8:], "big", signed=True)


@functools.lru_cache(maxsize=1 << 14)
def uuid_hash(topic_id: str) -> int:
    """Uuid.hashCode."""
    high, low = uuid_key(topic_id)
    both = high ^ low
    value = ((both >> 32) ^ both) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def string_order(text: str) -> bytes:
    """Returns a key that sorts as String.compareTo: by UTF-16 units."""
    data = bytearray(utf_16(text))
    data[0::2], data[1::2] = data[1::2], data[0::2]
    return bytes(data)


def integer_hash(value: int) -> int:
    """Integer.hashCode."""
    return value


def _set_of(values: Collection[K], hash_of: Callable[[K], int]) -> JavaHashMap[K, None]:
    found: JavaHashMap[K, None] = JavaHashMap(hash_of, max(int(len(values) / 0.75) + 1, 16))
    for each in values:
        found[each] = None
    return found


def partition_set(partitions: Collection[int]) -> Partitions:
    """new HashSet<>(partitions)."""
    return _set_of(partitions, integer_hash)


def name_set(names: Collection[str]) -> Names:
    """new HashSet<>(names)."""
    return _set_of(names, string_hash)


def topic_id_set(topic_ids: Iterable[str], size: int) -> JavaHashMap[str, None]:
    """new HashSet<>(ids), for a collection whose size() is not the number of ids that it yields."""
    found: JavaHashMap[str, None] = JavaHashMap(uuid_hash, max(int(size / 0.75) + 1, 16))
    for each in topic_ids:
        found[each] = None
    return found


def topic_map(capacity: int = 16) -> JavaHashMap[str, V]:
    """A HashMap by topic id."""
    return JavaHashMap(uuid_hash, capacity)


def name_map(capacity: int = 16) -> JavaHashMap[str, V]:
    """A HashMap by name."""
    return JavaHashMap(string_hash, capacity)


def epoch_map() -> JavaHashMap[int, int]:
    """A HashMap of partitions."""
    return JavaHashMap(integer_hash)


def with_epochs(assignment: Assignment, epoch: int) -> AssignmentEpochs:
    """Utils.toAssignmentWithEpochs: every partition was assigned at this epoch."""
    found: JavaHashMap[str, PartitionEpochs] = topic_map()
    for topic_id, partitions in assignment.items():
        epochs = epoch_map()
        for each in partitions:
            epochs[each] = epoch
        found[topic_id] = epochs
    return found


def without_epochs(assignment: AssignmentEpochs) -> Assignment:
    """Utils.toAssignmentWithoutEpochs."""
    found: JavaHashMap[str, Partitions] = topic_map()
    for topic_id, epochs in assignment.items():
        found[topic_id] = partition_set(epochs.keys())
    return found


class Union(dict[K, None]):
    """UnionSet: the larger of two sets, then what only the smaller one has."""

    def __init__(self, one: Mapping[K, None], other: Mapping[K, None]) -> None:
        large, small = (one, other) if len(one) > len(other) else (other, one)
        super().__init__(dict.fromkeys([*large, *(each for each in small if each not in large)]))


class _TimelineMap(dict[K, V]):
    """A dict that iterates over `in_order()` as Kafka's TimelineHashMap does; plain iteration is a dict's."""

    __slots__ = ("_capacity",)

    def __init__(self, expected_size: int = 0) -> None:
        super().__init__()
        wanted = -(-expected_size * 4 // 3)
        self._capacity = max(_MIN_CAPACITY, 1 << (wanted - 1).bit_length() if wanted > 0 else 0)

    def __setitem__(self, key: K, value: V) -> None:
        if (len(self) + 1) * 3 > self._capacity * 4 and self._capacity < _MAX_CAPACITY:
            self._capacity *= 2  # also for a key that is there already, as in Kafka
        super().__setitem__(key, value)

    def in_order(self) -> Iterator[tuple[K, V]]:
        """Yields the entries slot by slot; within a slot, the newest first."""
        shift = 65 - self._capacity.bit_length()
        entries = list(self.items())
        entries.reverse()
        return iter(sorted(entries, key=lambda entry: _slot(self._hash(entry[0]), shift)))

    def _hash(self, key: K) -> int:
        raise NotImplementedError


class TimelineHashMap(_TimelineMap[str, V]):
    """Kafka's table by string."""

    def _hash(self, key: str) -> int:
        return string_hash(key)


class TimelineIntegerMap(_TimelineMap[int, V]):
    """Kafka's table by partition number."""

    def _hash(self, key: int) -> int:
        return integer_hash(key)


def _slot(hashed: int, shift: int) -> int:
    return ((hashed * _FIBONACCI) & 0xFFFFFFFFFFFFFFFF) >> shift
