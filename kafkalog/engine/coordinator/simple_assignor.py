"""The assignor of share groups: which members take records of which partition.

A partition may have several members, and a member several partitions. Every partition gets as many members as are
needed to give each member its share, and members keep what they have. There is one method for members that all read the
same topics, and one that goes topic by topic for the rest. Only initialized partitions are assigned. Results, also the
order in them, are Kafka's; so is that a topic may stay in an assignment without partitions.

Source: SimpleAssignor, SimpleHomogeneousAssignmentBuilder, SimpleHeterogeneousAssignmentBuilder (4.4.0).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from kafkalog._native.codec.java_hash import JavaHashMap, string_hash
from kafkalog.engine.coordinator.assignors import (
    NOBODY,
    GroupAssignment,
    GroupSpec,
    PartitionCount,
    SubscriptionType,
    add_partition,
    copied,
)
from kafkalog.engine.coordinator.java_order import Assignment, Partitions, integer_hash, uuid_hash

Assignable = Mapping[str, Container[int]]  # initialized partitions by topic id
TopicIdPartition = tuple[str, int]
Members = JavaHashMap[int, None]  # a HashSet of members, by their places in the group
Copy = JavaHashMap[str, Partitions]


def assign_simple(group: GroupSpec, partition_count: PartitionCount, assignable: Assignable) -> GroupAssignment:
    """Returns the next assignment of every member."""
    if not group.members:
        return NOBODY
    if group.subscription_type is SubscriptionType.HOMOGENEOUS:
        first = next(iter(group.members.values()))
        if not first.topic_count:
            return NOBODY
        return _homogeneous(group, first.topic_ids, _targets(first.topic_ids, partition_count, assignable))
    topic_ids: JavaHashMap[str, None] = JavaHashMap(uuid_hash)
    for spec in group.members.values():
        for each in spec.topic_ids:
            topic_ids[each] = None
    if not topic_ids:
        return NOBODY
    new = _NewAssignments(group)
    for topic_id in topic_ids:
        members = [index for index, spec in enumerate(group.members.values()) if topic_id in spec.topic_ids]
        _assign_topic(new, topic_id, _targets([topic_id], partition_count, assignable), members)
    return new.result()


def _targets(
    topic_ids: Iterable[str], partition_count: PartitionCount, assignable: Assignable
) -> list[TopicIdPartition]:
    return [
        (topic_id, each)
        for topic_id in topic_ids
        for each in range(partition_count(topic_id))
        if each in assignable.get(topic_id, ())
    ]


def _sized(count: int) -> int:
    return int((count + 1) / 0.75 + 1.0)  # AssignorHelpers.newHashMap


def _pair_hash(pair: TopicIdPartition) -> int:
    """The hashCode of a record of a Uuid and an int."""
    value = (31 * uuid_hash(pair[0]) + pair[1]) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def _partition_of(pair: TopicIdPartition) -> int:
    return pair[1]


def _member_set(capacity: int = 16) -> Members:
    return JavaHashMap(integer_hash, capacity)


def _desired_counts(sharing: int, targets: int, members: int) -> list[int]:
    """Returns how many partitions each member should have."""
    precise = sharing * targets / members
    ends = [math.ceil(precise * each) for each in range(members + 1)]
    return [after - before for before, after in itertools.pairwise(ends)]


class _NewAssignments:
    """The members' assignments: the old ones, or copies once they change."""

    def __init__(self, group: GroupSpec) -> None:
        self.names = list(group.members)
        self.old: list[Assignment] = [spec.assignment for spec in group.members.values()]
        self._new: dict[int, Copy] = {}

    def changed(self, member: int) -> Copy:
        """Returns the copy of a member's assignment, which may be changed."""
        found = self._new.get(member)
        if found is None:
            found = self._new[member] = copied(self.old[member])
        return found

    def add(self, member: int, topic_partition: TopicIdPartition) -> None:
        add_partition(self.changed(member), *topic_partition, 16)

    def remove(self, member: int, topic_partition: TopicIdPartition) -> bool:
        """Takes a partition from a member; its topic stays. Returns whether the member had it."""
        topic_id, partition = topic_partition
        there = self.changed(member).get(topic_id)
        if there is None or partition not in there:
            return False
        assert isinstance(there, JavaHashMap)
        del there[partition]
        return True

    def result(self) -> GroupAssignment:
        found: JavaHashMap[str, Assignment] = JavaHashMap(string_hash, _sized(len(self.names)))
        for index, name in enumerate(self.names):
            found[name] = self._new.get(index, self.old[index])
        return found


class _Sharing:
    """Who has which partition, while an assignment is computed. `hash_of` is that of Kafka's keys."""

    def __init__(
        self, new: _NewAssignments, targets: list[TopicIdPartition], members: int, hash_of: Callable[[Any], int]
    ) -> None:
        self.new = new
        self.sharing = -(-members // len(targets)) if targets else 0  # how many members a partition should have
        self._targets = targets
        self._hash_of = hash_of
        self._by_partition: JavaHashMap[TopicIdPartition, Members] = JavaHashMap(hash_of, _sized(len(targets)))
        self._by_member: JavaHashMap[int, JavaHashMap[TopicIdPartition, None]] = JavaHashMap(
            integer_hash, _sized(members)
        )

    def note(self, member: int, partition: TopicIdPartition) -> None:
        """Notes that a member had this partition before."""
        self._by_partition.compute_if_absent(partition, _member_set)[member] = None
        self._of(member)[partition] = None

    def _of(self, member: int) -> JavaHashMap[TopicIdPartition, None]:
        return self._by_member.compute_if_absent(member, lambda: JavaHashMap(self._hash_of))

    def count_of(self, member: int) -> int:
        return len(self._by_member.get(member, ()))

    def members(self) -> list[int]:
        """Returns the members that have partitions, in Kafka's order."""
        return list(self._by_member)

    def revoke_overfilled(self, member: int, desired: int) -> None:
        """Takes from a member what it has above its share."""
        has = self._by_member[member]
        for each in list(has)[: max(len(has) - desired, 0)]:
            self._by_partition[each].pop(member, None)
            del has[each]
            self.new.remove(member, each)

    def revoke_overshared(self, revoked: Callable[[int], None]) -> None:
        """Takes partitions from members if they have more members than wanted."""
        for partition, members in self._by_partition.items():
            excess = len(members) - self.sharing
            for member in list(members) if excess > 0 else ():
                if self.new.remove(member, partition):
                    del members[member]
                    del self._by_member[member][partition]
                    revoked(member)
                    excess -= 1
                if excess <= 0:
                    break

    def assign_remaining(self, unfilled: Members, desired: Callable[[int], int]) -> None:
        """Gives partitions with too few members to the members that have too few, who take turns."""
        for each in self._targets:
            self._by_partition.compute_if_absent(each, _member_set)
        turns = _Turns(unfilled)
        for partition, members in self._by_partition.items() if unfilled else ():
            missing = self.sharing - len(members)
            while missing > 0 and (member := turns.next()) is not None:
                if member not in members:
                    self.new.add(member, partition)
                    has = self._of(member)
                    has[partition] = None
                    missing -= 1
                    turns.is_used = True
                    if len(has) >= desired(member):
                        unfilled.pop(member, None)
            if not unfilled:
                break


class _Turns:
    """Members take turns, until nobody took anything in a whole round."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._round = iter(list(members))
        self.is_used = False

    def next(self) -> int | None:
        """Returns the next member; None after a round in which nobody took anything, or if all have their shares.
        Kafka fails in the second case."""
        member = next(self._round, None)
        if member is None and self.is_used:
            self._round = iter(list(self._members))
            self.is_used = False
            member = next(self._round, None)
        return member


def _homogeneous(group: GroupSpec, topic_ids: Mapping[str, None], targets: list[TopicIdPartition]) -> GroupAssignment:
    new = _NewAssignments(group)
    sharing = _Sharing(new, targets, len(new.old), _pair_hash)
    desired = _desired_counts(sharing.sharing, len(targets), len(new.old))
    unfilled = _member_set(_sized(len(new.old)))
    overfilled = _member_set(_sized(len(new.old)))
    for member, old in enumerate(new.old):
        count = 0
        for topic_id, partitions in old.items():
            if topic_id not in topic_ids:
                del new.changed(member)[topic_id]
                continue
            for each in partitions:
                count += 1
                sharing.note(member, (topic_id, each))
                if count >= desired[member]:
                    new.changed(member)
        if count < desired[member]:
            unfilled[member] = None
        elif count > desired[member]:
            overfilled[member] = None
    for member in overfilled:
        sharing.revoke_overfilled(member, desired[member])
    sharing.revoke_overshared(lambda member: unfilled.update({member: None}))
    sharing.assign_remaining(unfilled, desired.__getitem__)
    return new.result()


def _assign_topic(new: _NewAssignments, topic_id: str, targets: list[TopicIdPartition], members: list[int]) -> None:
    """Assigns one topic. `members` read it; others may have it from before."""
    sharing = _Sharing(new, targets, len(members), _partition_of)
    shares = _desired_counts(sharing.sharing, len(targets), len(members))
    desired = dict(zip(members, shares, strict=True))
    for member, old in enumerate(new.old):
        for each in old.get(topic_id, ()):
            sharing.note(member, (topic_id, each))
    for member in sharing.members():
        sharing.revoke_overfilled(member, desired.get(member, 0))
    sharing.revoke_overshared(lambda member: None)
    unfilled = _member_set(_sized(len(new.old)))
    for member in members:
        if sharing.count_of(member) < desired[member]:
            unfilled[member] = None
    sharing.assign_remaining(unfilled, desired.__getitem__)
