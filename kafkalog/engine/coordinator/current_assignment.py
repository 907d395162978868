"""The next step of a member from what it has towards its target.

A member first gives up what it has beyond its target, in its old epoch. Once it has said so, it goes to the target's
epoch and gets what is free. It gets the rest later, when others have given it up.

Source: CurrentAssignmentBuilder (4.4.0).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from kafkalog._native.codec.java_hash import JavaHashMap
from kafkalog.engine.coordinator.consumer_member import ConsumerGroupMember, MemberState
from kafkalog.engine.coordinator.java_order import (
    NO_EPOCHS,
    Assignment,
    AssignmentEpochs,
    PartitionEpochs,
    epoch_map,
    partition_set,
    topic_map,
    uuid_hash,
)
from kafkalog.errors import FencedMemberEpochException

NO_EPOCH = -1
# The partitions that a member says it owns, topic by topic; None if its heartbeat does not say.
Owned = Sequence[tuple[str, Collection[int]]] | None


class Target(NamedTuple):
    """The partitions that a member should have.

    `topic_ids`: its topics that exist. `reads_any`: whether it names any topic.
    """

    epoch: int
    assignment: Assignment
    topic_ids: Collection[str]
    reads_any: bool
    has_subscription_changed: bool


class CurrentAssignmentBuilder:
    """See the module. `partition_epoch` returns the epoch of the member that has a partition, -1 if it is free."""

    def __init__(
        self,
        member: ConsumerGroupMember,
        target: Target,
        owned: Owned,
        partition_epoch: Callable[[str, int], int],
    ) -> None:
        self._member = member
        self._target = target
        self._owned = owned
        self._partition_epoch = partition_epoch

    def build(self) -> ConsumerGroupMember:
        """Returns the member after its next step; the same one if it waits.

        Raises FencedMemberEpochException for a member in a state of a later version that still owns partitions.
        """
        member, target = self._member, self._target
        waits = False
        if member.state is MemberState.STABLE:
            waits = member.member_epoch == target.epoch
        elif member.state is MemberState.UNREVOKED_PARTITIONS:
            waits = self._owns(member.partitions_pending_revocation)
        elif member.state is MemberState.UNKNOWN:
            if self._owned is None or self._owned:
                raise FencedMemberEpochException(
                    "The consumer group member is in a unknown state. "
                    "The member must abandon all its partitions and rejoin."
                )
            return self._next(target.epoch)
        if not waits:
            return self._next(member.member_epoch)
        return self._without_other_topics() if target.has_subscription_changed else member

    def _owns(self, revoked: AssignmentEpochs) -> bool:
        """Returns whether the member may still use a partition that it must give up."""
        if self._owned is None:
            return True
        return any(each in revoked.get(topic_id, ()) for topic_id, partitions in self._owned for each in partitions)

    def _without_other_topics(self) -> ConsumerGroupMember:
        """Takes away topics that the member does not read any more; it stays in its epoch."""
        member, topic_ids = self._member, self._target.topic_ids
        assigned = member.assigned_partitions
        others = [topic_id for topic_id in assigned if topic_id not in topic_ids]
        pending = member.partitions_pending_revocation
        reads_none = not self._target.reads_any and not pending
        if not others and not reads_none:
            return member
        if reads_none:
            kept: AssignmentEpochs = NO_EPOCHS
            pending = assigned
        else:
            kept_map: JavaHashMap[str, PartitionEpochs] = JavaHashMap.copy_of(assigned, uuid_hash)
            pending_map: JavaHashMap[str, PartitionEpochs] = JavaHashMap.copy_of(pending, uuid_hash)
            for topic_id in others:
                del kept_map[topic_id]
                _merge(pending_map, topic_id, assigned[topic_id])
            kept, pending = kept_map, pending_map
        updated = member.at_epoch(member.member_epoch)._replace(assigned_partitions=kept)
        if pending and self._owns(pending):
            return updated._replace(state=MemberState.UNREVOKED_PARTITIONS, partitions_pending_revocation=pending)
        return updated

    def _next(self, member_epoch: int) -> ConsumerGroupMember:
        member, target = self._member, self._target
        is_waiting = False
        kept: JavaHashMap[str, PartitionEpochs] = topic_map()
        revoked: JavaHashMap[str, PartitionEpochs] = topic_map()
        free: JavaHashMap[str, Mapping[int, None]] = topic_map()
        for topic_id in _all_topics(target.assignment, member.assigned_partitions):
            wanted = target.assignment.get(topic_id, {}) if topic_id in target.topic_ids else {}
            has = member.assigned_partitions.get(topic_id, {})
            stays, goes = _split(has, wanted)
            ready, waiting = self._ready(topic_id, wanted, stays)
            is_waiting = is_waiting or waiting
            if stays:
                kept[topic_id] = stays
            if goes:
                revoked[topic_id] = goes
            if ready:
                free[topic_id] = ready
        if revoked and self._owns(revoked):
            return member.at_epoch(member_epoch)._replace(
                state=MemberState.UNREVOKED_PARTITIONS,
                assigned_partitions=kept,
                partitions_pending_revocation=revoked,
            )
        for topic_id, partitions in free.items():
            epochs = kept.compute_if_absent(topic_id, epoch_map)
            assert isinstance(epochs, JavaHashMap)
            for each in partitions:
                epochs[each] = target.epoch
        return member.at_epoch(target.epoch)._replace(
            state=MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE,
            assigned_partitions=kept,
            partitions_pending_revocation=NO_EPOCHS,
        )

    def _ready(
        self, topic_id: str, wanted: Mapping[int, None], stays: PartitionEpochs
    ) -> tuple[Mapping[int, None], bool]:
        """Returns the partitions that the member can have now, and whether it waits for others."""
        ours = self._member.partitions_pending_revocation.get(topic_id, {})
        new = partition_set(wanted.keys())
        assert isinstance(new, JavaHashMap)
        is_waiting = False
        for each in list(new):
            if each in stays:
                del new[each]
            elif each not in ours and self._partition_epoch(topic_id, each) != NO_EPOCH:
                del new[each]
                is_waiting = True
        return new, is_waiting


def _all_topics(target: Assignment, assigned: AssignmentEpochs) -> list[str]:
    """new HashSet<>(target) with addAll(assigned)."""
    topics: JavaHashMap[str, None] = topic_map(max(int(len(target) / 0.75) + 1, 16))
    for topic_id in (*target, *assigned):
        topics[topic_id] = None
    return list(topics)


def _split(has: PartitionEpochs, wanted: Mapping[int, None]) -> tuple[PartitionEpochs, PartitionEpochs]:
    """Returns (what stays, what goes), in copies of the same table."""
    stays, goes = JavaHashMap.copy_of(has, int), JavaHashMap.copy_of(has, int)
    for each in has:
        del (goes if each in wanted else stays)[each]
    return stays, goes


def _merge(topics: JavaHashMap[str, PartitionEpochs], topic_id: str, more: PartitionEpochs) -> None:
    """Map.merge of the epochs of a topic."""
    there = topics.get(topic_id)
    if there is None:
        topics.compute_if_absent(topic_id, lambda: more)
        return
    both = JavaHashMap.copy_of(there, int)
    both.update(more)
    topics[topic_id] = both
