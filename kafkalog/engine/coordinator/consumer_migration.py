"""Migration of groups between the protocols, while their members are there.

A classic group becomes a consumer group when a member of the new protocol joins, and a consumer group becomes a classic
one when the last member of the new protocol has gone. Members of the other protocol stay: their heartbeats tell them to
join again. `group.consumer.migration.policy` says which way is open.

Source: GroupMetadataManager.convertToConsumerGroup and convertToClassicGroup, ConsumerGroup.fromClassicGroup,
ClassicGroup.fromConsumerGroup (4.4.0).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kafkalog._native.codec.java_hash import JavaHashMap
from kafkalog.engine.coordinator import consumer_member as records
from kafkalog.engine.coordinator.classic_answers import complete, join_answer, sync_answer
from kafkalog.engine.coordinator.classic_group import STABLE, ClassicGroup, ClassicGroupMember
from kafkalog.engine.coordinator.consumer_group import ConsumerGroup
from kafkalog.engine.coordinator.consumer_member import ConsumerGroupMember
from kafkalog.engine.coordinator.java_order import (
    NO_ASSIGNMENT,
    Assignment,
    name_set,
    partition_set,
    topic_map,
    with_epochs,
)
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.coordinator_records import PREFIX
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.group_records import (
    CONSUMER_PROTOCOL_VERSION,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from kafkalog.engine.format.group_records import Assignment as NamedAssignment
from kafkalog.engine.format.message_reader import MessageException
from kafkalog.errors import GroupIdNotFoundException, UnknownServerException

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.classic_groups import ClassicGroups
    from kafkalog.engine.coordinator.consumer_steps import ConsumerSteps
    from kafkalog.engine.coordinator.state_log import KeyValue
    from kafkalog.engine.coordinator.topics_view import TopicsView

UPGRADES = ("upgrade", "bidirectional")
DOWNGRADES = ("downgrade", "bidirectional")
PROTOCOL_TYPE = "consumer"


class Migration:
    """See the module. Every method needs the partition's lock."""

    def __init__(self, groups: ConsumerSteps, classic: ClassicGroups) -> None:
        self._groups = groups
        self._classic = classic
        self._lines = Lines("kafkalog.coordinator")

    @property
    def _policy(self) -> str:
        return self._groups.settings.group_consumer_migration_policy.lower()

    @property
    def is_enabled(self) -> bool:
        """Whether one way is open."""
        return self._policy in UPGRADES + DOWNGRADES

    # --- to a consumer group ----------------------------------------------------------------------------

    def upgrade(self, classic: ClassicGroup, rows: list[KeyValue]) -> ConsumerGroup:
        """Returns a classic group as a consumer group, and adds the records that make it one.

        Raises GroupIdNotFoundException if it cannot become one, as in Kafka.
        """
        self._check_upgrade(classic)
        for member in classic.members.values():
            for answer, values in (
                (classic.take_join(member), join_answer(member.member_id, Errors.REBALANCE_IN_PROGRESS)),
                (classic.take_sync(member), sync_answer(Errors.REBALANCE_IN_PROGRESS)),
            ):
                if answer is not None:
                    self._groups.partition.after(partial(complete, answer, values))
        rows += classic.tombstones(classic.name)
        group = self._from_classic(classic)
        members = [member for _, member in group.members.in_order()]
        rows += [records.member_row(group.group_id, each) for each in members]
        rows.append(records.epoch_row(group.group_id, group.group_epoch, group.metadata_hash))
        rows += [
            records.target_member_row(group.group_id, each.member_id, group.target_of(each.member_id))
            for each in members
        ]
        rows.append(records.target_row(group.group_id, group.assignment_epoch, group.assignment_timestamp_ms))
        rows += [records.current_row(group.group_id, each) for each in members]
        for each in members:
            assert each.classic is not None, each
            self._groups.schedule_session(group.group_id, each.member_id, each.classic["sessionTimeoutMs"])
        self._lines.log(logging.INFO, "group %s is a consumer group now", group.group_id)
        return group

    def _check_upgrade(self, classic: ClassicGroup) -> None:
        start = f"Cannot upgrade classic group {classic.name} to consumer group because"
        if self._policy not in UPGRADES:
            raise GroupIdNotFoundException(f"{start} online upgrade is disabled.")
        if not classic.uses_consumer_protocol:
            raise GroupIdNotFoundException(f"{start} the group does not use the consumer embedded protocol.")
        if len(classic.members) > self._groups.settings.group_consumer_max_size:
            raise GroupIdNotFoundException(f"{start} the group size exceeds the consumer group maximum size.")

    def _from_classic(self, classic: ClassicGroup) -> ConsumerGroup:
        if classic.protocol_name is None:
            raise UnknownServerException(f"group {classic.name!r} has members, but has not selected a protocol yet")
        group = ConsumerGroup(classic.name)
        group.group_epoch = classic.generation
        group.set_target_epoch(classic.generation, 0)
        for each in classic.members.values():
            try:
                assigned = self._assigned(classic.name, each)
                member = _from_classic_member(each, classic, assigned)
            except MessageException as error:
                raise GroupIdNotFoundException(
                    f"Cannot upgrade classic group {classic.name} to consumer group because the embedded consumer "
                    "protocol is malformed."
                ) from error
            group.set_target(member.member_id, assigned)
            group.set_member(member)
        group.metadata_hash = self._groups.metadata_hash(group.subscriptions)
        return group

    def _assigned(self, group: str, member: ClassicGroupMember) -> Assignment:
        if not member.assignment:
            return NO_ASSIGNMENT
        found = decode_assignment(member.assignment)
        if found.user_data:
            raise GroupIdNotFoundException(
                f"Cannot upgrade classic group {group} to consumer group because an unsupported custom assignor is in "
                "use. Please refer to the documentation or switch to a default assignor before re-attempting the "
                "upgrade."
            )
        return by_topic_id(found.partitions, self._groups.topics)

    # --- to a classic group -----------------------------------------------------------------------------

    def maybe_downgrade(self, group: ConsumerGroup, leaving: Sequence[ConsumerGroupMember]) -> bool:
        """Makes a classic group of the members that stay, if all of them use the classic protocol."""
        classic_leaving = sum(each.uses_classic_protocol for each in leaving)
        staying = len(group.members) - len(leaving)
        if group.classic_count - classic_leaving != staying or staying <= 0 or not self._may_downgrade(staying):
            return False
        self.downgrade(group, leaving, None, [], rebalances=True)
        return True

    def may_replace_last(self, group: ConsumerGroup, replaced: ConsumerGroupMember) -> bool:
        """Returns whether the group becomes a classic one if a member of the classic protocol takes the place of this
        static member."""
        is_last = group.classic_count == len(group.members) - 1 and not replaced.uses_classic_protocol
        return is_last and self._may_downgrade(len(group.members))

    def _may_downgrade(self, size: int) -> bool:
        return self._policy in DOWNGRADES and size <= self._groups.settings.group_max_size

    def downgrade(
        self,
        group: ConsumerGroup,
        leaving: Collection[ConsumerGroupMember],
        joining: ConsumerGroupMember | None,
        rows: list[KeyValue],
        *,
        rebalances: bool,
    ) -> None:
        """Writes the group as a classic one, and puts that in its place. `joining`: a static member's successor."""
        replaced = None if joining is None else group.static_member(joining.instance_id)
        rows += group.tombstones(
            group.group_id,
            left=None if replaced is None else replaced.member_id,
            joined=None if joining is None else joining.member_id,
        )
        gone = {each.member_id for each in leaving}
        if replaced is not None:
            gone.add(replaced.member_id)
        try:
            classic = self._to_classic(group, gone, joining, replaced)
        except MessageException as error:
            raise GroupIdNotFoundException(
                f"Cannot downgrade the classic group {group.group_id}: {error.message}."
            ) from error
        self._groups.partition.write([*rows, classic.record(classic.assignments())], replay=False)
        self._groups.partition.groups.by_name[group.group_id] = classic
        # The members' timers stay, as in Kafka. They do nothing, unless it is a consumer group again when they are due.
        for member in classic.members.values():
            self._classic.reschedule(classic, member, member.session_timeout_ms)
        if rebalances:
            self._classic.prepare_rebalance(classic, "its last member of the consumer protocol has gone")
        self._lines.log(logging.INFO, "group %s is a classic group now", group.group_id)

    def _to_classic(
        self,
        group: ConsumerGroup,
        gone: Collection[str],
        joining: ConsumerGroupMember | None,
        replaced: ConsumerGroupMember | None,
    ) -> ClassicGroup:
        classic = ClassicGroup(group.group_id, self._groups.partition.clock)
        classic.status = STABLE
        classic.generation = group.group_epoch
        staying = [each for _, each in group.members.in_order() if each.member_id not in gone]
        for each in [*staying, *(() if joining is None else (joining,))]:
            classic.add(_to_classic_member(each))
        classic.protocol_name = classic.select_protocol()
        classic.subscribe()
        for member in classic.members.values():
            is_new = joining is not None and member.member_id == joining.member_id
            target_of = replaced.member_id if is_new and replaced is not None else member.member_id
            told = member.metadata(classic.protocol_name)
            member.assignment = serialized(group.target_of(target_of), told, self._groups.topics)
        return classic


def _from_classic_member(each: ClassicGroupMember, classic: ClassicGroup, assigned: Assignment) -> ConsumerGroupMember:
    subscription = decode_subscription(each.metadata(classic.protocol_name))
    return ConsumerGroupMember(
        each.member_id,
        classic.generation,
        classic.generation,
        each.group_instance_id,
        subscription.rack or None,
        each.rebalance_timeout_ms,
        each.client_id,
        each.client_host,
        name_set(subscription.topics),
        assigned_partitions=with_epochs(assigned, classic.generation),
        classic={
            "sessionTimeoutMs": each.session_timeout_ms,
            "supportedProtocols": [{"name": name, "metadata": metadata} for name, metadata in each.protocols],
        },
    )


def _to_classic_member(each: ConsumerGroupMember) -> ClassicGroupMember:
    assert each.classic is not None, each
    return ClassicGroupMember(
        each.member_id,
        each.instance_id,
        each.client_id,
        each.client_host,
        each.rebalance_timeout_ms,
        each.classic["sessionTimeoutMs"],
        PROTOCOL_TYPE,
        tuple((protocol["name"], protocol["metadata"]) for protocol in each.classic_protocols),
    )


def by_topic_id(partitions: Mapping[str, Sequence[int]], topics: TopicsView) -> Assignment:
    """Returns partitions by topic id; topics that do not exist are left out."""
    found: JavaHashMap[str, Mapping[int, None]] = topic_map()
    for name, numbers in partitions.items():
        topic_id = topics.topic_id(name)
        if topic_id is not None:
            found[topic_id] = partition_set(numbers)
    return found


def serialized(assignment: Mapping[str, Collection[int]], told: bytes, topics: TopicsView) -> bytes:
    """Returns an assignment as bytes of the consumer's protocol, in the version of what the member told.

    Raises MessageException if that has no version.
    """
    if len(told) < PREFIX.size or PREFIX.unpack_from(told)[0] < 0:
        raise MessageException("a subscription without its version", position=0)
    version = min(PREFIX.unpack_from(told)[0], CONSUMER_PROTOCOL_VERSION)
    named = ((topics.name(topic_id), list(partitions)) for topic_id, partitions in assignment.items())
    partitions = {name: numbers for name, numbers in named if name is not None}
    return encode_assignment(NamedAssignment(partitions), version=version)
