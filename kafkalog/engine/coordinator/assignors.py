"""The assignors of consumer groups: which member should have which partition.

`range` gives each member a run of neighbouring partitions of each topic. `uniform` spreads the partitions evenly and
moves as few of them as it can; it has one method for members that all read the same topics, and another (in
`uniform_heterogeneous`) for the rest. They know nothing of epochs or of who has a partition now: they get the last
target and compute the next. Results, also the order in them, are Kafka's.

Source: RangeAssignor, UniformAssignor, UniformHomogeneousAssignmentBuilder (4.4.0).
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from kafkalog._native.codec.java_hash import JavaHashMap
from kafkalog.engine.coordinator.java_order import (
    NO_ASSIGNMENT,
    Assignment,
    Partitions,
    name_map,
    partition_set,
    string_order,
    topic_id_set,
    topic_map,
)
from kafkalog.errors import KafkalogError


class PartitionAssignorException(KafkalogError):
    """An assignor cannot compute an assignment; the request fails with UNKNOWN_SERVER_ERROR."""


class SubscriptionType(enum.Enum):
    """Whether all members of a group read the same topics."""

    HOMOGENEOUS = "homogeneous"
    HETEROGENEOUS = "heterogeneous"


class MemberSpec(NamedTuple):
    """A member as an assignor sees it.

    `topic_ids` are its topics that exist, in Kafka's order; `topic_count` counts also those that do not exist.
    `assignment` is the member's last target.
    """

    instance_id: str | None
    topic_ids: Mapping[str, None]
    topic_count: int
    assignment: Assignment = NO_ASSIGNMENT


class GroupSpec(NamedTuple):
    """The members in the order of Kafka's HashMap, and who had each partition in the last target."""

    members: Mapping[str, MemberSpec]
    subscription_type: SubscriptionType
    owners: Mapping[str, Mapping[int, str]] = {}


# Returns the number of partitions of a topic id.
PartitionCount = Callable[[str], int]
GroupAssignment = Mapping[str, Assignment]
Assignor = Callable[[GroupSpec, PartitionCount], GroupAssignment]
NOBODY: GroupAssignment = {}


# --- range ------------------------------------------------------------------------------------------------------------


class _Quota:
    """How much of a topic each of its members gets, and what is given out."""

    __slots__ = ("extra", "least", "next", "partitions")

    def __init__(self, partitions: int, members: int) -> None:
        self.partitions = partitions
        self.least, self.extra = divmod(partitions, members)
        self.next = 0

    def take(self) -> Partitions:
        count = self.least + (self.extra > 0)
        self.extra -= self.extra > 0
        start, self.next = self.next, min(self.next + count, self.partitions)
        return dict.fromkeys(range(start, self.next))


def assign_range(group: GroupSpec, partition_count: PartitionCount) -> GroupAssignment:
    """RangeAssignor: members by instance id, then by member id, take turns in each topic."""
    if not group.members:
        return NOBODY
    members = _sorted(group.members)
    if group.subscription_type is SubscriptionType.HOMOGENEOUS:
        subscribers = dict.fromkeys(group.members[members[0]].topic_ids, len(members))
    else:
        subscribers = {}
        for member in members:
            for topic_id in group.members[member].topic_ids:
                subscribers[topic_id] = subscribers.get(topic_id, 0) + 1
    quotas = {topic_id: _Quota(partition_count(topic_id), count) for topic_id, count in subscribers.items()}
    found: JavaHashMap[str, Assignment] = name_map(_sized(len(members)))
    for member in members:
        is_same = group.subscription_type is SubscriptionType.HOMOGENEOUS
        spec = group.members[members[0] if is_same else member]
        size = len(quotas) if is_same else spec.topic_count
        assignment: JavaHashMap[str, Partitions] = topic_map(_sized(size))
        for topic_id in spec.topic_ids:
            partitions = quotas[topic_id].take()
            if partitions:
                assignment[topic_id] = partitions
        found[member] = assignment
    return found


def _sorted(members: Mapping[str, MemberSpec]) -> list[str]:
    """Returns the members in String order; static members come first, by instance id."""

    def place(member: str) -> tuple[bool, bytes]:
        instance_id = members[member].instance_id
        return instance_id is None, string_order(member if instance_id is None else instance_id)

    return sorted(members, key=place)


def _sized(count: int) -> int:
    return int(count / 0.75 + 1.0)


# --- uniform ----------------------------------------------------------------------------------------------------------


def assign_uniform_homogeneous(group: GroupSpec, partition_count: PartitionCount) -> GroupAssignment:
    """Members keep what they have up to their share; the rest goes to those below it, in order."""
    first = next(iter(group.members.values()))
    topics = topic_id_set(first.topic_ids, first.topic_count)
    if not first.topic_count:
        return NOBODY
    builder = _Homogeneous(group, topics)
    total = 0
    for topic_id in topics:
        count = partition_count(topic_id)
        total += count
        owners = group.owners.get(topic_id, {})
        builder.unassigned += [(topic_id, each) for each in range(count) if each not in owners]
    builder.least, builder.with_extra = divmod(total, len(group.members))
    for index, (member, spec) in enumerate(group.members.items()):
        builder.keep(index, member, spec.assignment)
    builder.fill()
    return builder.target


class _Homogeneous:
    def __init__(self, group: GroupSpec, topics: Collection[str]) -> None:
        self.topics = topics
        self.member_count = len(group.members)
        self.target: JavaHashMap[str, Assignment] = name_map()
        self.unassigned: list[tuple[str, int]] = []
        self.unfilled: list[tuple[str, int]] = []  # members, and how many partitions each still gets
        self.fresh: set[str] = set()  # members whose assignment is a copy of ours already
        self.least = self.with_extra = 0

    def keep(self, index: int, member: str, old: Assignment) -> None:
        """Takes from a member what is above its share, or of a topic that is not read any more."""
        quota, has_extra = self.least, self.with_extra > 0
        quota += has_extra
        new: JavaHashMap[str, Partitions] | None = None
        for topic_id, partitions in old.items():
            is_read = topic_id in self.topics
            if is_read and len(partitions) <= quota:
                quota -= len(partitions)
                continue
            if new is None:
                new = copied(old)
            if not is_read:
                del new[topic_id]
                continue
            self._cut(new, topic_id, list(partitions)[quota:])
            quota = 0
        if quota and has_extra and self.member_count - index > self.with_extra:
            quota -= 1  # enough members after this one can take an extra partition
            has_extra = False
        if quota:
            self.unfilled.append((member, quota))
        self.with_extra -= has_extra
        if new is not None:
            self.fresh.add(member)
        self.target[member] = old if new is None else new

    def _cut(self, new: JavaHashMap[str, Partitions], topic_id: str, partitions: list[int]) -> None:
        for each in partitions:
            remove_partition(new, topic_id, each)
            self.unassigned.append((topic_id, each))

    def fill(self) -> None:
        left = iter(self.unassigned)
        given = 0
        for member, quota in self.unfilled:
            assignment = self.target[member]
            if member not in self.fresh:
                assignment = self.target[member] = copied(assignment)
            assert isinstance(assignment, JavaHashMap)
            for topic_id, partition in itertools.islice(left, quota):
                add_partition(assignment, topic_id, partition, 16)
                given += 1
        if given < len(self.unassigned):
            raise PartitionAssignorException("Partitions were left unassigned")


def copied(assignment: Assignment) -> JavaHashMap[str, Partitions]:
    """AssignorHelpers.deepCopyAssignment."""
    copy: JavaHashMap[str, Partitions] = topic_map(len(assignment))
    for topic_id, partitions in assignment.items():
        copy[topic_id] = partition_set(partitions.keys())
    return copy


def add_partition(assignment: JavaHashMap[str, Partitions], topic_id: str, partition: int, capacity: int) -> None:
    """Adds a partition to a copy; a new topic's HashSet has this capacity."""
    there = assignment.compute_if_absent(topic_id, lambda: JavaHashMap(int, capacity))
    assert isinstance(there, JavaHashMap)
    there[partition] = None


def remove_partition(assignment: JavaHashMap[str, Partitions], topic_id: str, partition: int) -> None:
    """Removes a partition from a copy, and its topic with the last one."""
    there = assignment.get(topic_id)
    if there is not None:
        assert isinstance(there, JavaHashMap)
        there.pop(partition, None)
        if not there:
            del assignment[topic_id]
