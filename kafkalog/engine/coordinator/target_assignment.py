"""The next target of a consumer group: what each member should have, and the records that say so.

Source: TargetAssignmentBuilder, UpdatedMembersAndTargetAssignmentView, OverlayMap (4.4.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kafkalog._native.codec.java_hash import JavaHashMap
from kafkalog.engine.coordinator.assignors import Assignor, GroupSpec, MemberSpec, SubscriptionType
from kafkalog.engine.coordinator.consumer_group import ConsumerGroup
from kafkalog.engine.coordinator.consumer_member import (
    ConsumerGroupMember,
    regex_of,
    target_member_row,
    target_row,
)
from kafkalog.engine.coordinator.java_order import NO_ASSIGNMENT, Assignment, Names, Union, name_map
from kafkalog.engine.coordinator.state_log import KeyValue
from kafkalog.engine.coordinator.topics_view import TopicsView


class TargetAssignment(NamedTuple):
    """A computed target and its records."""

    members: Mapping[str, Assignment]
    rows: list[KeyValue]


def topics_of(member: ConsumerGroupMember, group: ConsumerGroup) -> Names:
    """Returns the names that a member subscribes to, with those that its regular expression matches."""
    names = member.subscribed_topic_names
    resolved = group.resolved.get(regex_of(member) or "")
    if resolved is None or (not resolved.topics and names):
        return names
    return resolved.topics if not names else Union(names, resolved.topics)


def existing(names: Names, topics: TopicsView) -> dict[str, None]:
    """Returns the ids of the topics that exist."""
    ids = (topics.topic_id(each) for each in names)
    return {each: None for each in ids if each is not None}


def compute_target(
    group: ConsumerGroup,
    updated: ConsumerGroupMember,
    epoch: int,
    subscription_type: SubscriptionType,
    assignor: Assignor,
    topics: TopicsView,
    now_ms: int,
) -> TargetAssignment:
    """Computes the target with a changed or new member. Raises PartitionAssignorException."""
    members, target = _with_member(group, updated)
    specs: JavaHashMap[str, MemberSpec] = name_map()
    for member_id, member in members.items():
        names = topics_of(member, group)
        specs[member_id] = MemberSpec(
            member.instance_id, existing(names, topics), len(names), target.get(member_id, NO_ASSIGNMENT)
        )

    def partition_count(topic_id: str) -> int:
        name = topics.name(topic_id)
        return 0 if name is None else topics.partitions(name)

    found = assignor(GroupSpec(specs, subscription_type, group.owners), partition_count)
    rows = []
    for member_id in specs:
        new = found.get(member_id, NO_ASSIGNMENT)
        if member_id not in target or new != target[member_id]:
            rows.append(target_member_row(group.group_id, member_id, new))
    rows.append(target_row(group.group_id, epoch, now_ms))
    return TargetAssignment(found, rows)


def _with_member(
    group: ConsumerGroup, updated: ConsumerGroupMember
) -> tuple[dict[str, ConsumerGroupMember], Mapping[str, Assignment]]:
    """Returns members and targets with the changed member. A static member takes the place of its predecessor."""
    members = dict(group.members.in_order())
    members[updated.member_id] = updated
    replaced = None if updated.instance_id is None else group.static_members.get(updated.instance_id)
    if replaced is None or replaced == updated.member_id:
        return members, group.target
    target = dict(group.target)
    if replaced in target:
        target[updated.member_id] = target[replaced]
    members.pop(replaced, None)
    target.pop(replaced, None)
    return members, target
