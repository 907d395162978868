"""Sums up by topic what retention deletes: what is deleted now, and when the next segment is.

The sums are of what `explain` and `retain` return for partitions; nothing is read here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkalog.toolbox.explain import Explanation
    from kafkalog.toolbox.retain import Plan


@dataclass
class TopicRetention:
    """One topic.

    `segments` and `bytes` count everything that was checked.  `going_segments`, `going_bytes` and `going_offsets` are
    the segments that are deleted, the bytes of their logs, and the offsets that readers lose.  `largest_timestamp` is
    the largest timestamp that is deleted (-1: none).  `next_due_ms` is when time deletes the next segment as things are
    now (None: not by time)."""

    topic: str
    partitions: set[int] = field(default_factory=set)
    segments: int = 0
    bytes: int = 0
    going_partitions: set[int] = field(default_factory=set)
    going_segments: int = 0
    going_bytes: int = 0
    going_disk_bytes: int = 0  # with indexes, as the file system counts; only of a plan
    going_offsets: int = 0
    largest_timestamp: int = -1
    next_due_ms: int | None = None

    def due(self, until_ms: int | None) -> None:
        """Adds a time at which something is deleted."""
        if until_ms is not None and (self.next_due_ms is None or until_ms < self.next_due_ms):
            self.next_due_ms = until_ms


class RetentionSums:
    """Collects the sums of topics by name, as partitions are added."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicRetention] = {}

    def topic(self, name: str) -> TopicRetention:
        """Returns the sums of a topic, which may be new."""
        return self._topics.setdefault(name, TopicRetention(name))

    def add(self, told: Explanation) -> None:
        """Adds the explanation of one partition."""
        facts = told.facts
        sums = self.topic(facts.partition.topic)
        sums.partitions.add(facts.partition.partition)
        sums.segments += len(told.segments)
        sums.bytes += facts.size
        going = [entry.segment for entry in told.segments if entry.goes is not None]
        if going:
            sums.going_partitions.add(facts.partition.partition)
            sums.going_segments += len(going)
            sums.going_bytes += sum(segment.size for segment in going)
            # A tiered log still has them in the tier.
            sums.going_offsets += 0 if told.is_local else max(0, going[-1].end_offset - facts.log_start_offset)
            sums.largest_timestamp = max(sums.largest_timestamp, *(segment.largest_timestamp for segment in going))
        for entry in told.segments:
            sums.due(entry.until_ms)

    def rows(self) -> list[TopicRetention]:
        """Returns the topics: those that lose most first, then those that lose something next."""
        return sorted(self._topics.values(), key=_order)


def _order(sums: TopicRetention) -> tuple[int, bool, int, str]:
    return -sums.going_bytes, sums.next_due_ms is None, sums.next_due_ms or 0, sums.topic


def planned_by_topic(plan: Plan) -> list[TopicRetention]:
    """Returns the topics of which a plan deletes something, or time will later."""
    found = RetentionSums()
    for choice in plan.choices:
        sums = found.topic(choice.partition.topic)
        for numbers in (sums.partitions, sums.going_partitions):
            numbers.add(choice.partition.partition)
        sums.going_segments += len(choice.going)
        sums.going_bytes += choice.size
        sums.going_disk_bytes += choice.allocated
        sums.going_offsets += choice.new_start - choice.log_start_offset
        sums.largest_timestamp = max(sums.largest_timestamp, *(each.segment.largest_timestamp for each in choice.going))
    for partition, until_ms in plan.due.items():
        sums = found.topic(partition.topic)
        sums.partitions.add(partition.partition)
        sums.due(until_ms)
    return found.rows()
