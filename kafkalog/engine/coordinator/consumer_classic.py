"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup for them.

These members do not wait for others. The generation of a member is its member epoch. A heartbeat tells it to join again
when the group has a newer target, when it must give up partitions, and when partitions that it waits for have become
free. So it goes through the same states as other members, one join for each step.

Source: GroupMetadataManager.classicGroupJoinToConsumerGroup and the methods beside it (4.4.0).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kafkalog.engine.coordinator.classic_answers import complete, join_answer, sync_answer
from kafkalog.engine.coordinator.consumer_group import ConsumerGroup
from kafkalog.engine.coordinator.consumer_member import ConsumerGroupMember, MemberState
from kafkalog.engine.coordinator.consumer_migration import PROTOCOL_TYPE, Migration, serialized
from kafkalog.engine.coordinator.consumer_requests import own_static
from kafkalog.engine.coordinator.consumer_timers import join_key, sync_key
from kafkalog.engine.coordinator.java_order import name_set, without_epochs
from kafkalog.engine.format.error_codes import Errors, code_of
from kafkalog.engine.format.group_records import Subscription, decode_subscription
from kafkalog.engine.format.java_text import new_uuid
from kafkalog.engine.format.message_reader import MessageException
from kafkalog.errors import (
    IllegalGenerationException,
    IllegalStateException,
    InconsistentGroupProtocolException,
    KafkalogError,
    RebalanceInProgressException,
    UnknownMemberIdException,
)

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.consumer_steps import ConsumerSteps
    from kafkalog.engine.coordinator.current_assignment import Owned
    from kafkalog.engine.coordinator.group_managers import Answer
    from kafkalog.engine.coordinator.request_context import RequestContext
    from kafkalog.engine.coordinator.state_log import KeyValue
    from kafkalog.engine.format.messages import Values

REQUIRES_MEMBER_ID = 4  # the version of JoinGroup from which a new member gets an id, and joins again (KIP-394)


class ClassicMembers:
    """See the module. Every method needs the partition's lock."""

    def __init__(self, groups: ConsumerSteps, migration: Migration) -> None:
        self._groups = groups
        self._migration = migration

    # --- JoinGroup --------------------------------------------------------------------------------------

    def join(self, context: RequestContext, request: Values, answer: Answer) -> None:
        """Answers JoinGroup. Raises the error of a request that is refused."""
        group = self._groups.group(request["groupId"])
        if not self._migration.is_enabled:
            raise InconsistentGroupProtocolException(
                f"Cannot join the consumer group {group.group_id} with the classic protocol because the group "
                "migration is disabled."
            )
        is_unknown = not request["memberId"]
        member_id: str = request["memberId"] or new_uuid()
        instance_id: str | None = request["groupInstanceId"]
        self._groups.check_room(group, member_id, instance_id)
        names = [each["name"] for each in request["protocols"]]
        if not group.supports_classic_protocols(request["protocolType"], names):
            raise InconsistentGroupProtocolException(f"Member {member_id}'s protocols are not supported.")
        if is_unknown and instance_id is None and context.api_version >= REQUIRES_MEMBER_ID:
            values = join_answer(member_id, Errors.MEMBER_ID_REQUIRED)
            self._groups.partition.after(partial(complete, answer, values))
            return
        rows: list[KeyValue] = []
        if instance_id is None:
            member = group.members.get(member_id) or ConsumerGroupMember(member_id)
        elif is_unknown:
            member = self._groups.join_static(group, member_id, instance_id, rows, is_classic=True)
        else:
            member = own_static(group, instance_id, member_id)
        updated = self._join(context, request, group, member, rows)
        values = join_answer(updated.member_id, Errors.NONE) | {
            "generationId": updated.member_epoch,
            "protocolType": PROTOCOL_TYPE,
            "protocolName": updated.classic_protocols[0]["name"],
        }
        self._groups.partition.after(partial(complete, answer, values))

    def _join(
        self,
        context: RequestContext,
        request: Values,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        rows: list[KeyValue],
    ) -> ConsumerGroupMember:
        groups, group_id = self._groups, group.group_id
        existing = group.static_member(request["groupInstanceId"])
        downgrades = existing is not None and self._migration.may_replace_last(group, existing)
        subscription = _subscription(request)
        updated = _told(member, context, request, subscription)
        names_changed = groups.member_changed(group, member, updated, rows)
        regex_changed, _ = groups.update_regexes(context, group, member, updated, rows)
        changed = names_changed or regex_changed
        epoch, kind = group.group_epoch, group.subscription_type
        if changed or groups.has_metadata_expired(group, groups.partition.clock.milliseconds()):
            epoch, kind = groups.update_subscriptions(group, member, updated, rows, bumps=changed)
        if downgrades:
            is_stale = group.assignment_epoch < epoch
            if not is_stale:
                target = group.assignment_epoch, group.target_of(updated.member_id, updated.instance_id)
                updated = groups.reconcile(group, updated, target, self._owned(subscription), rows, changed=changed)
            self._migration.downgrade(group, (), updated, rows, rebalances=is_stale)
            return updated
        target = groups.update_target(group, epoch, member, updated, kind, rows)
        updated = groups.reconcile(group, updated, target, self._owned(subscription), rows, changed=changed)
        groups.partition.write(rows)
        groups.timers.cancel(join_key(group_id, updated.member_id))
        groups.schedule_session(group_id, updated.member_id, request["sessionTimeoutMs"])
        groups.timers.schedule(
            sync_key(group_id, updated.member_id),
            request["rebalanceTimeoutMs"],
            partial(groups.fence_late, group_id, updated.member_id, "it did not ask for its assignment in time"),
        )
        return updated

    def _owned(self, subscription: Subscription) -> Owned:
        named = ((self._groups.topics.topic_id(topic), each) for topic, each in subscription.owned_partitions.items())
        return [(topic_id, partitions) for topic_id, partitions in named if topic_id is not None]

    # --- SyncGroup and Heartbeat ------------------------------------------------------------------------

    def sync(self, request: Values, answer: Answer) -> None:
        """Answers SyncGroup. Raises the error of a request that is refused."""
        if self._groups.group(request["groupId"]).is_empty:
            self._groups.partition.after(partial(complete, answer, sync_answer(Errors.UNKNOWN_MEMBER_ID)))
            return
        group, member = self._checked(request)
        name = member.classic_protocols[0]["name"]
        told_type, told_name = request["protocolType"], request["protocolName"]
        if told_type is not None and told_type != PROTOCOL_TYPE:
            raise InconsistentGroupProtocolException(
                f"The protocol type {told_type} from member {member.member_id} request is not equal to the group "
                f"protocol type {PROTOCOL_TYPE}."
            )
        if told_name is not None and told_name != name:
            raise InconsistentGroupProtocolException(
                f"The protocol name {told_name} from member {member.member_id} request is not equal to the protocol "
                f"name {name} returned in the join response."
            )
        if group.assignment_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._await_join(group.group_id, member)
            raise RebalanceInProgressException(
                f"A new rebalance is triggered in group {group.group_id} and member {member.member_id} should rejoin "
                "to catch up."
            )
        try:
            told = member.classic_protocols[0]["metadata"]
            assignment = serialized(without_epochs(member.assigned_partitions), told, self._groups.topics)
        except MessageException as error:
            raise IllegalStateException("Malformed embedded consumer protocol in version deserialization.") from error
        assert member.classic is not None, member
        self._groups.timers.cancel(sync_key(group.group_id, member.member_id))
        self._groups.schedule_session(group.group_id, member.member_id, member.classic["sessionTimeoutMs"])
        values = {
            "throttleTimeMs": 0,
            "errorCode": 0,
            "protocolType": told_type,
            "protocolName": told_name,
            "assignment": assignment,
        }
        self._groups.partition.after(partial(complete, answer, values))

    def heartbeat(self, request: Values) -> Values:
        """Answers Heartbeat. Raises the error of a request that is refused."""
        group, member = self._checked(request)
        assert member.classic is not None, member
        self._groups.schedule_session(group.group_id, member.member_id, member.classic["sessionTimeoutMs"])
        error = Errors.NONE
        if (
            member.member_epoch < group.assignment_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member))
        ):
            error = Errors.REBALANCE_IN_PROGRESS
            self._await_join(group.group_id, member)
        return {"throttleTimeMs": 0, "errorCode": int(error)}

    def _checked(self, request: Values) -> tuple[ConsumerGroup, ConsumerGroupMember]:
        group = self._groups.group(request["groupId"])
        member_id: str = request["memberId"]
        instance_id: str | None = request["groupInstanceId"]
        if instance_id is None:
            member = group.member(member_id)
        else:
            unknown = f"Member with instance id {instance_id} is not a member of group {group.group_id}."
            member = own_static(group, instance_id, member_id, unknown)
        if not member.uses_classic_protocol:
            raise UnknownMemberIdException(f"Member {member.member_id} does not use the classic protocol.")
        if member.member_epoch != request["generationId"]:
            raise IllegalGenerationException(
                f"The request generation id {request['generationId']} is not equal to the member epoch "
                f"{member.member_epoch} of member {member_id}."
            )
        return group, member

    def _await_join(self, group_id: str, member: ConsumerGroupMember) -> None:
        self._groups.timers.schedule_if_absent(
            join_key(group_id, member.member_id),
            member.rebalance_timeout_ms,
            partial(
                self._groups.fence_late, group_id, member.member_id, "it did not join within its rebalance timeout"
            ),
        )

    # --- LeaveGroup -------------------------------------------------------------------------------------

    def leave(self, request: Values) -> Values:
        """Answers LeaveGroup: also members of the newer protocol may be removed by it."""
        group = self._groups.group(request["groupId"])
        leaving: dict[str, ConsumerGroupMember] = {}
        members = []
        for each in request["members"]:
            error = Errors.NONE
            try:
                found = _leaving(group, each["memberId"], each["groupInstanceId"])
                leaving[found.member_id] = found
            except KafkalogError as raised:
                error = code_of(raised)
            members.append(
                {
                    "memberId": each["memberId"],
                    "groupInstanceId": each["groupInstanceId"],
                    "errorCode": int(error),
                }
            )
        self._groups.fence(group, list(leaving.values()))
        return {"throttleTimeMs": 0, "errorCode": 0, "members": members}


def _leaving(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerGroupMember:
    if instance_id is None:
        return group.member(member_id)
    found = group.static_member(instance_id)
    return own_static(group, instance_id, member_id or (found.member_id if found else ""))


def _subscription(request: Values) -> Subscription:
    try:
        return decode_subscription(request["protocols"][0]["metadata"])
    except MessageException as error:
        raise InconsistentGroupProtocolException(
            "Malformed embedded consumer protocol in subscription deserialization."
        ) from error


def _told(
    member: ConsumerGroupMember, context: RequestContext, request: Values, subscription: Subscription
) -> ConsumerGroupMember:
    instance_id, timeout_ms = request["groupInstanceId"], request["rebalanceTimeoutMs"]
    return member._replace(
        instance_id=member.instance_id if instance_id is None else instance_id,
        rack_id=subscription.rack or member.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        subscribed_topic_names=name_set(subscription.topics),
        subscribed_topic_regex="",
        client_id=context.client_id,
        client_host=context.client_host,
        classic={
            "sessionTimeoutMs": request["sessionTimeoutMs"],
            "supportedProtocols": [
                {"name": each["name"], "metadata": bytes(each["metadata"])} for each in request["protocols"]
            ],
        },
    )
