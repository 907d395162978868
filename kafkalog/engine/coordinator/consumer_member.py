"""A member of a consumer group, and its records.

A member is immutable; a change makes a new one. Its own statements are in one record (type 5), its partitions in
another (type 8). Partitions are kept with the epoch at which the member got them, so that a late commit of an older
epoch is refused only for partitions that it did not have then (KIP-1251).

Source: ConsumerGroupMember, MemberState, GroupCoordinatorRecordHelpers (4.4.0).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kafkalog._native.codec.java_hash import JavaHashMap
from kafkalog.engine.coordinator.java_order import (
    NO_EPOCHS,
    NO_NAMES,
    Assignment,
    AssignmentEpochs,
    Names,
    PartitionEpochs,
    epoch_map,
    name_set,
    partition_set,
    string_order,
    topic_map,
)
from kafkalog.engine.coordinator.state_log import KeyValue
from kafkalog.engine.format.coordinator_records import CoordinatorRecord, group_record_set
from kafkalog.engine.format.messages import Values

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2

GROUP, SUBSCRIPTION_METADATA, MEMBER, TARGET, TARGET_MEMBER, CURRENT, REGEX = 3, 4, 5, 6, 7, 8, 16


class MemberState(enum.IntEnum):
    """The next step of a member towards its target. The numbers are those of its record."""

    STABLE = 0  # it has its target
    UNREVOKED_PARTITIONS = 1  # it must give up partitions, and say so
    UNRELEASED_PARTITIONS = 2  # others must give up partitions for it
    UNKNOWN = 127

    @classmethod
    def of(cls, value: int) -> MemberState:
        """Returns the state of a record; UNKNOWN for a number of a later version."""
        return cls(value) if value in cls._value2member_map_ else cls.UNKNOWN


class ConsumerGroupMember(NamedTuple):
    """See the module. `classic` is what a member of the classic protocol said: its session timeout and protocols."""

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: Names = NO_NAMES
    subscribed_topic_regex: str | None = ""
    server_assignor: str | None = None
    state: MemberState = MemberState.STABLE
    assigned_partitions: AssignmentEpochs = NO_EPOCHS
    partitions_pending_revocation: AssignmentEpochs = NO_EPOCHS
    classic: Values | None = None

    @property
    def uses_classic_protocol(self) -> bool:
        return self.classic is not None

    @property
    def classic_protocols(self) -> Sequence[Values]:
        """The protocols of a member of the classic protocol, as its record has them; empty for another."""
        return () if self.classic is None else self.classic["supportedProtocols"]

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """Returns whether the member has the target of this epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    def at_epoch(self, epoch: int) -> ConsumerGroupMember:
        """Returns the member in a new epoch, which may be the same one."""
        return self._replace(member_epoch=epoch, previous_member_epoch=self.member_epoch)

    def with_zero_epochs(self) -> AssignmentEpochs:
        """Returns what the member has, as if assigned at epoch 0: for a static member that leaves for a while."""
        found: JavaHashMap[str, PartitionEpochs] = topic_map()
        for topic_id, epochs in self.assigned_partitions.items():
            zeros = epoch_map()
            for partition in epochs:
                zeros[partition] = 0
            found[topic_id] = zeros
        return found

    def told(self, value: Values) -> ConsumerGroupMember:
        """Returns the member after its record of type 5."""
        return self._replace(
            instance_id=value["instanceId"],
            rack_id=value["rackId"],
            client_id=value["clientId"],
            client_host=value["clientHost"],
            subscribed_topic_names=name_set(value["subscribedTopicNames"]),
            subscribed_topic_regex=value["subscribedTopicRegex"],
            rebalance_timeout_ms=value["rebalanceTimeoutMs"],
            server_assignor=value["serverAssignor"],
            classic=value["classicMemberMetadata"],
        )

    def got(self, value: Values) -> ConsumerGroupMember:
        """Returns the member after its record of type 8."""
        epoch = value["memberEpoch"]
        return self._replace(
            member_epoch=epoch,
            previous_member_epoch=value["previousMemberEpoch"],
            state=MemberState.of(value["state"]),
            assigned_partitions=_epochs(value["assignedPartitions"], epoch),
            partitions_pending_revocation=_epochs(value["partitionsPendingRevocation"], epoch),
        )


def regex_of(member: ConsumerGroupMember | None) -> str | None:
    """Returns the regular expression that a member subscribes to; None without one."""
    return None if member is None else member.subscribed_topic_regex or None


def _epochs(topics: Sequence[Values], member_epoch: int) -> AssignmentEpochs:
    found: JavaHashMap[str, PartitionEpochs] = topic_map()
    for topic in topics:
        partitions, epochs = topic["partitions"], topic["assignmentEpochs"]
        if epochs is None or len(epochs) != len(partitions):  # written before 4.4, or damaged
            epochs = [max(member_epoch, 0)] * len(partitions)
        each = epoch_map()
        for partition, epoch in zip(partitions, epochs, strict=True):
            each[partition] = epoch
        found[topic["topicId"]] = each
    return found


def target_of(value: Values) -> Assignment:
    """Returns the target that a record of type 7 has."""
    found: JavaHashMap[str, Mapping[int, None]] = topic_map()
    for topic in value["topicPartitions"]:
        found[topic["topicId"]] = partition_set(topic["partitions"])
    return found


# --- records ----------------------------------------------------------------------------------------------------------


def row(type: int, value: Values | None, **key: str) -> KeyValue:
    """Returns a record of a consumer group; the value None deletes its key."""
    return group_record_set().encode(CoordinatorRecord(type, key, None if value is None else 0, value))


def member_row(group: str, member: ConsumerGroupMember) -> KeyValue:
    """ConsumerGroupMemberMetadata."""
    value = {
        "instanceId": member.instance_id,
        "rackId": member.rack_id,
        "clientId": member.client_id,
        "clientHost": member.client_host,
        "subscribedTopicNames": sorted_names(member.subscribed_topic_names),
        "subscribedTopicRegex": member.subscribed_topic_regex,
        "rebalanceTimeoutMs": member.rebalance_timeout_ms,
        "serverAssignor": member.server_assignor,
        "classicMemberMetadata": member.classic,
    }
    return row(MEMBER, value, groupId=group, memberId=member.member_id)


def current_row(group: str, member: ConsumerGroupMember) -> KeyValue:
    """ConsumerGroupCurrentMemberAssignment."""
    value = {
        "memberEpoch": member.member_epoch,
        "previousMemberEpoch": member.previous_member_epoch,
        "state": int(member.state),
        "assignedPartitions": _topics(member.assigned_partitions),
        "partitionsPendingRevocation": _topics(member.partitions_pending_revocation),
    }
    return row(CURRENT, value, groupId=group, memberId=member.member_id)


def _topics(assignment: AssignmentEpochs) -> list[Values]:
    return [
        {"topicId": topic_id, "partitions": list(epochs), "assignmentEpochs": [epochs[each] for each in epochs]}
        for topic_id, epochs in assignment.items()
    ]


def target_member_row(group: str, member_id: str, target: Assignment) -> KeyValue:
    """ConsumerGroupTargetAssignmentMember."""
    topics = [{"topicId": topic_id, "partitions": list(partitions)} for topic_id, partitions in target.items()]
    return row(TARGET_MEMBER, {"topicPartitions": topics}, groupId=group, memberId=member_id)


def target_row(group: str, epoch: int, timestamp_ms: int) -> KeyValue:
    """ConsumerGroupTargetAssignmentMetadata."""
    return row(TARGET, {"assignmentEpoch": epoch, "assignmentTimestamp": timestamp_ms}, groupId=group)


def epoch_row(group: str, epoch: int, metadata_hash: int) -> KeyValue:
    """ConsumerGroupMetadata."""
    return row(GROUP, {"epoch": epoch, "metadataHash": metadata_hash}, groupId=group)


def removed_rows(group: str, member_id: str) -> list[KeyValue]:
    """The records that delete a member."""
    return [row(type, None, groupId=group, memberId=member_id) for type in (CURRENT, TARGET_MEMBER, MEMBER)]


def regex_row(group: str, regex: str, topics: Names | None, version: int = 0, timestamp_ms: int = 0) -> KeyValue:
    """ConsumerGroupRegularExpression; without topics it is deleted."""
    value = None
    if topics is not None:
        value = {"topics": sorted_names(topics), "version": version, "timestamp": timestamp_ms}
    return row(REGEX, value, groupId=group, regularExpression=regex)


def sorted_names(names: Names) -> list[str]:
    """Returns names in the order of Java's String."""
    return sorted(names, key=string_order)
