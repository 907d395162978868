"""The committed offsets of a partition of `__consumer_offsets`, and those of open transactions.

Knows no log and no group. The record with the higher offset counts: a transaction that ends late does not replace what
was committed after it. Every change may be repeated after an interrupt in the middle of it. Not thread-safe:
`GroupOffsets` holds its lock. Source: OffsetMetadataManager (4.4.0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

from kafkalog.engine.coordinator.java_order import TimelineHashMap, TimelineIntegerMap
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.group_records import CommittedOffset, OffsetKey
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.names import TopicPartition

NO_PRODUCER_ID = -1


class Stored(NamedTuple):
    """A committed offset, and the offset of its record."""

    committed: CommittedOffset
    record_offset: int


_N = TypeVar("_N")


class ByPartition(dict[TopicPartition, _N]):
    """Values by partition. `in_order` is the order of Kafka's tables, in which it writes the deletions of offsets."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        super().__init__()
        self._topics: TimelineHashMap[TimelineIntegerMap[None]] = TimelineHashMap()

    def __setitem__(self, partition: TopicPartition, value: _N) -> None:
        super().__setitem__(partition, value)
        numbers = self._topics.get(partition.topic)
        if numbers is None:
            numbers = self._topics[partition.topic] = TimelineIntegerMap()
        numbers[partition.partition] = None

    def drop(self, partition: TopicPartition) -> None:
        """Removes a partition, if it is there."""
        numbers = self._topics.get(partition.topic)
        if numbers is not None:
            numbers.pop(partition.partition, None)
            if not numbers:
                self._topics.pop(partition.topic, None)
        super().pop(partition, None)

    def in_order(self) -> list[TopicPartition]:
        """Returns the partitions."""
        return [
            TopicPartition(topic, number)
            for topic, numbers in self._topics.in_order()
            for number, _ in numbers.in_order()
        ]


Groups = TimelineHashMap[ByPartition[Stored]]  # by group
NOTHING: Mapping[TopicPartition, Stored] = {}
NOBODY: Mapping[TopicPartition, set[int]] = {}


class OffsetTable:
    """See the module."""

    def __init__(self) -> None:
        self._committed: Groups = TimelineHashMap()
        self._pending: dict[int, Groups] = {}  # offsets of open transactions, by producer id
        self._open: dict[str, ByPartition[set[int]]] = {}  # producer ids in _pending, by group

    def committed(self, group: str) -> Mapping[TopicPartition, Stored]:
        """Returns the offsets of a group."""
        return self._committed.get(group, NOTHING)

    def pending(self, group: str) -> Mapping[TopicPartition, set[int]]:
        """Returns, by partition, the producer ids whose open transactions have offsets of a group."""
        return self._open.get(group, NOBODY)

    def is_pending(self, group: str, partition: TopicPartition) -> bool:
        """Returns whether an open transaction has an offset of the partition."""
        return partition in self._open.get(group, NOBODY)

    def partitions(self, group: str) -> list[TopicPartition]:
        """Returns the partitions of which a group has an offset, also in open transactions."""
        committed, pending = self._committed.get(group), self._open.get(group)
        return list(
            dict.fromkeys([
                *(() if committed is None else committed.in_order()),
                *(() if pending is None else pending.in_order()),
            ])
        )  # fmt: skip

    def committed_in_order(self, group: str) -> list[tuple[TopicPartition, CommittedOffset]]:
        """Returns the offsets of a group, in Kafka's order."""
        rows = self._committed.get(group)
        return [] if rows is None else [(each, rows[each].committed) for each in rows.in_order()]

    def of_topic(self, topic: str, topic_id: str) -> list[OffsetKey]:
        """Returns the offsets of a topic with that id, or without an id."""
        found = dict.fromkeys(
            key
            for key, stored in self._everything()
            if key.topic == topic and stored.committed.topic_id in (ZERO_UUID, topic_id)
        )
        return list(found)

    def _everything(self) -> Iterator[tuple[OffsetKey, Stored]]:
        for groups in (self._committed, *self._pending.values()):
            yield from _rows(groups)

    # --- changes --------------------------------------------------------------------------------------

    def put(self, key: OffsetKey, stored: Stored, producer_id: int) -> None:
        """Replays a committed offset."""
        partition = TopicPartition(key.topic, key.partition)
        if producer_id == NO_PRODUCER_ID:
            _put(self._committed, key.group, partition, stored)
        else:
            _put(self._pending.setdefault(producer_id, TimelineHashMap()), key.group, partition, stored)
            of_group = self._open.get(key.group)
            if of_group is None:
                of_group = self._open[key.group] = ByPartition()
            producers = of_group.get(partition)
            if producers is None:
                producers = of_group[partition] = set()
            producers.add(producer_id)

    def forget(self, key: OffsetKey) -> None:
        """Replays the deletion of an offset, also in open transactions."""
        partition = TopicPartition(key.topic, key.partition)
        _drop(self._committed, key.group, partition)
        for producer_id in self.pending(key.group).get(partition, ()):
            pending = self._pending.get(producer_id)
            if pending is not None:
                _drop(pending, key.group, partition)
        self._close(key.group, partition)

    def end(self, producer_id: int, kind: ControlRecordType) -> None:
        """Replays the end of a transaction. May run twice: applied offsets are not older than pending ones."""
        pending = self._pending.get(producer_id)
        if pending is None:
            return
        rows = list(_rows(pending))
        for key, stored in rows:
            partition = TopicPartition(key.topic, key.partition)
            known = self.committed(key.group).get(partition)
            is_newer = known is None or stored.record_offset > known.record_offset
            if kind is ControlRecordType.COMMIT and is_newer:
                _put(self._committed, key.group, partition, stored)
        for key, _ in rows:
            partition = TopicPartition(key.topic, key.partition)
            producers = self.pending(key.group).get(partition)
            if producers is not None:
                producers.discard(producer_id)
                if not producers:
                    self._close(key.group, partition)
        self._pending.pop(producer_id, None)

    def _close(self, group: str, partition: TopicPartition) -> None:
        rows = self._open.get(group)
        if rows is not None:
            rows.drop(partition)
            if not rows:
                del self._open[group]


def _rows(groups: Groups) -> Iterator[tuple[OffsetKey, Stored]]:
    for group, rows in groups.in_order():
        for partition in rows.in_order():
            yield OffsetKey(group, *partition), rows[partition]


def _put(groups: Groups, group: str, partition: TopicPartition, stored: Stored) -> None:
    rows = groups.get(group)
    if rows is None:
        rows = groups[group] = ByPartition()
    rows[partition] = stored


def _drop(groups: Groups, group: str, partition: TopicPartition) -> None:
    rows = groups.get(group)
    if rows is not None:
        rows.drop(partition)
        if not rows:
            del groups[group]
