"""The protocol of KIP-848 in one partition: ConsumerGroupHeartbeat, and what follows from time.

A heartbeat does four things in order. It changes the member, if the request says something new. It raises the group
epoch, if members or topics have changed. It computes the target of the new epoch, at most once in
`group.consumer.assignment.interval.ms`. And it takes the member one step towards its target. Everything becomes one
batch of records, which are replayed into the group.

A member that sends no heartbeat during its session is removed, and so is one that does not give up partitions within
its rebalance timeout. Regular expressions are resolved behind the answer, in another thread and without the lock; the
members learn the topics with their next heartbeats.

Members of the classic protocol in such a group are `consumer_classic`'s. Source: GroupMetadataManager,
GroupCoordinatorService (4.4.0).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kafkalog._native.codec.java_hash import JavaHashMap
from kafkalog.engine.coordinator import consumer_member as records
from kafkalog.engine.coordinator.classic_group import ClassicGroup
from kafkalog.engine.coordinator.classic_groups import ClassicGroups
from kafkalog.engine.coordinator.consumer_classic import ClassicMembers
from kafkalog.engine.coordinator.consumer_group import (
    ConsumerGroup,
)
from kafkalog.engine.coordinator.consumer_member import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupMember,
    MemberState,
)
from kafkalog.engine.coordinator.consumer_migration import Migration
from kafkalog.engine.coordinator.consumer_requests import (
    check_epoch,
    check_heartbeat,
    heartbeat_answer,
    left_answer,
    own_static,
    owned_in,
    told_by,
)
from kafkalog.engine.coordinator.consumer_steps import ConsumerSteps
from kafkalog.engine.coordinator.current_assignment import Owned
from kafkalog.engine.coordinator.group_managers import Answer, Manager
from kafkalog.engine.coordinator.group_partition import GroupPartition
from kafkalog.engine.coordinator.java_order import topic_map
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.state_log import KeyValue
from kafkalog.engine.format.java_text import new_uuid
from kafkalog.engine.format.messages import Values
from kafkalog.errors import (
    GroupIdNotFoundException,
)


class ConsumerGroups(ConsumerSteps):
    """The consumer groups of a partition. Every method needs the partition's lock (`group_managers`)."""

    def __init__(self, partition: GroupPartition, classic: Manager) -> None:
        super().__init__(partition)
        assert isinstance(classic, ClassicGroups), classic
        self._classic = classic
        self.migration = Migration(self, classic)
        self.downgrade = self.migration.maybe_downgrade
        self._classic_members = ClassicMembers(self, self.migration)

    def on_loaded(self) -> None:
        """Starts the sessions of members that the log has."""
        for name, group in self.partition.groups.by_name.items():
            if not isinstance(group, ConsumerGroup):
                continue
            for member_id, member in group.members.items():
                self.schedule_session(name, member_id)
                if member.state is MemberState.UNREVOKED_PARTITIONS:
                    self._schedule_rebalance(name, member)

    # --- the request ------------------------------------------------------------------------------------

    def heartbeat(self, context: RequestContext, request: Values) -> Values:
        """Answers ConsumerGroupHeartbeat. Raises the error of a request that is refused."""
        check_heartbeat(request, context.api_version, self.settings.group_consumer_assignors)
        if request["memberEpoch"] < JOIN_EPOCH:
            return self._leave(request)
        now_ms = self.partition.clock.milliseconds()
        rows: list[KeyValue] = []
        is_joining = request["memberEpoch"] == JOIN_EPOCH
        group = self._group_to_join(request["groupId"], rows) if is_joining else self.group(request["groupId"])
        member_id: str = request["memberId"]
        self.check_room(group, member_id, request["instanceId"])
        member_id = member_id or new_uuid()
        owned = owned_in(request["topicPartitions"])
        member = self._member(group, request, member_id, owned, rows)
        updated = told_by(member, context, request)

        names_changed = self.member_changed(group, member, updated, rows)
        regex_changed, is_resolved = self.update_regexes(context, group, member, updated, rows)
        before = group.preferred_assignor() or self.default_assignor
        after = group.preferred_assignor_with(member, updated) or self.default_assignor
        bumps = names_changed or is_resolved or before != after
        epoch, kind = group.group_epoch, group.subscription_type
        if bumps or self.has_metadata_expired(group, now_ms):
            epoch, kind = self.update_subscriptions(group, member, updated, rows, bumps=bumps)
        target_epoch, target = self.update_target(group, epoch, member, updated, kind, rows)
        changed = names_changed or regex_changed
        updated = self.reconcile(group, updated, (target_epoch, target), owned, rows, changed=changed)
        self.schedule_session(group.group_id, updated.member_id)
        self.partition.write(rows)

        is_full = request["rebalanceTimeoutMs"] != -1 and owned is not None
        is_full = is_full and (
            request["subscribedTopicNames"] is not None or request["subscribedTopicRegex"] is not None
        )
        shows = is_joining or is_full or member.assigned_partitions != updated.assigned_partitions
        return heartbeat_answer(updated, self._heartbeat_interval_ms(group.group_id), shows=shows)

    # --- groups and members -----------------------------------------------------------------------------

    def _known(self, group_id: str) -> ConsumerGroup:
        """As `group`, with the text for a request that does not join."""
        if group_id not in self.partition.groups.by_name:
            raise GroupIdNotFoundException(f"Group {group_id} not found.")
        return self.group(group_id)

    def _group_to_join(self, group_id: str, rows: list[KeyValue]) -> ConsumerGroup:
        """Returns the group, or a new one in its place. A classic group with members is upgraded."""
        found = self.partition.groups.by_name.get(group_id)
        if isinstance(found, ConsumerGroup):
            return found
        if found is None:
            return ConsumerGroup(group_id)
        if isinstance(found, ClassicGroup):
            if not found.is_empty:
                return self.migration.upgrade(found, rows)
            rows += found.tombstones(group_id)
            return ConsumerGroup(group_id)
        raise GroupIdNotFoundException(f"Group {group_id} is not a consumer group.")

    def _member(
        self, group: ConsumerGroup, request: Values, member_id: str, owned: Owned, rows: list[KeyValue]
    ) -> ConsumerGroupMember:
        epoch: int = request["memberEpoch"]
        instance_id: str | None = request["instanceId"]
        if epoch == JOIN_EPOCH and instance_id is not None:
            return self.join_static(group, member_id, instance_id, rows)
        if epoch == JOIN_EPOCH:
            return group.members.get(member_id) or ConsumerGroupMember(member_id)
        found = group.member(member_id) if instance_id is None else own_static(group, instance_id, member_id)
        check_epoch(found, epoch, owned)
        return found

    # --- leaving ----------------------------------------------------------------------------------------

    def _leave(self, request: Values) -> Values:
        group = self._known(request["groupId"])
        instance_id: str | None = request["instanceId"]
        member_id: str = request["memberId"]
        epoch: int = request["memberEpoch"]
        if instance_id is None:
            self.fence(group, [group.member(member_id)])
            return left_answer(member_id, epoch)
        member = own_static(group, instance_id, member_id)
        if epoch == STATIC_LEAVE_EPOCH:
            leaving = member._replace(
                member_epoch=STATIC_LEAVE_EPOCH,
                partitions_pending_revocation={},
                assigned_partitions=member.with_zero_epochs(),
            )
            self.partition.write([records.current_row(group.group_id, leaving)])
        else:
            self.fence(group, [member])
        return left_answer(member_id, epoch)

    # --- the other requests -----------------------------------------------------------------------------

    def classic_join(self, context: RequestContext, request: Values, answer: Answer) -> None:
        """Answers JoinGroup for a consumer group; see `consumer_classic`. An empty group becomes a classic one."""
        if self.group(request["groupId"]).is_empty:
            self._classic.join(context, request, answer)
        else:
            self._classic_members.join(context, request, answer)

    def classic_sync(self, context: RequestContext, request: Values, answer: Answer) -> None:
        """Answers SyncGroup for a consumer group."""
        self._classic_members.sync(request, answer)

    def classic_heartbeat(self, context: RequestContext, request: Values) -> Values:
        """Answers Heartbeat for a consumer group."""
        return self._classic_members.heartbeat(request)

    def classic_leave(self, context: RequestContext, request: Values) -> Values:
        """Answers LeaveGroup for a consumer group."""
        return self._classic_members.leave(request)

    def describe(self, group: str) -> Values:
        """Returns the described group of ConsumerGroupDescribe. Raises GroupIdNotFoundException."""
        found = self._known(group)
        return {
            "errorCode": 0,
            "errorMessage": None,
            "groupId": group,
            "groupState": found.state,
            "groupEpoch": found.group_epoch,
            "assignmentEpoch": found.assignment_epoch,
            "assignorName": found.preferred_assignor() or self.default_assignor,
            "members": [self._described(found, member) for _, member in found.members.in_order()],
            "authorizedOperations": -(1 << 31),
        }

    def _described(self, group: ConsumerGroup, member: ConsumerGroupMember) -> Values:
        has: JavaHashMap[str, list[int]] = topic_map()
        for assignment in (member.assigned_partitions, member.partitions_pending_revocation):
            for topic_id, partitions in assignment.items():
                has.compute_if_absent(topic_id, list).extend(partitions)
        return {
            "memberId": member.member_id,
            "instanceId": member.instance_id,
            "rackId": member.rack_id,
            "memberEpoch": member.member_epoch,
            "clientId": member.client_id,
            "clientHost": member.client_host,
            "subscribedTopicNames": list(member.subscribed_topic_names),
            "subscribedTopicRegex": member.subscribed_topic_regex,
            "assignment": {"topicPartitions": self._named(has)},
            "targetAssignment": {"topicPartitions": self._named(group.target_of(member.member_id))},
            "memberType": 0 if member.uses_classic_protocol else 1,
        }

    def _named(self, assignment: Mapping[str, Collection[int]]) -> list[Values]:
        named = ((topic_id, self.topics.name(topic_id), partitions) for topic_id, partitions in assignment.items())
        return [
            {"topicId": topic_id, "topicName": name, "partitions": list(partitions)}
            for topic_id, name, partitions in named
            if name is not None
        ]

    def delete_group(self, group: str) -> list[KeyValue]:
        """Returns the records that delete an empty group.

        Raises GroupIdNotFoundException and GroupNotEmptyException.
        """
        found = self.group(group)
        found.validate_delete_group()
        return found.tombstones(group)
