"""The share groups in a partition of `__consumer_offsets`: their members' heartbeats.

A member joins with epoch 0, sends heartbeats and leaves with epoch -1; one that is silent for its session timeout is
removed. A heartbeat may change the member, the group's epoch, its target and what the member has, in this order of
records. `share_group_states` has the requests of share groups to the share coordinator.

The partition's lock is held in every method, except those that `ShareGroupStates` has. Source: GroupMetadataManager,
ShareGroupAssignmentBuilder, TargetAssignmentBuilder (4.4.0).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from kafkalog._native.codec.java_hash import JavaHashMap
from kafkalog.engine.coordinator.assignors import (
    GroupSpec,
    MemberSpec,
    SubscriptionType,
)
from kafkalog.engine.coordinator.group_counts import SHARE_REBALANCE
from kafkalog.engine.coordinator.group_partition import GroupPartition
from kafkalog.engine.coordinator.group_settings import configured
from kafkalog.engine.coordinator.java_order import NO_ASSIGNMENT, Assignment, Partitions, name_map, name_set, topic_map
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.share_group import (
    NO_TOPICS,
    ShareGroup,
    ShareGroupMember,
    StateTopics,
    Subscriptions,
    current_row,
    epoch_row,
    listed,
    member_row,
    removed_rows,
    subscription_type,
    target_member_row,
    target_row,
)
from kafkalog.engine.coordinator.share_group_states import ShareGroupStates
from kafkalog.engine.coordinator.share_interfaces import Persister
from kafkalog.engine.coordinator.simple_assignor import assign_simple
from kafkalog.engine.coordinator.state_log import KeyValue
from kafkalog.engine.coordinator.topic_hash import TopicHashes
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.messages import Values
from kafkalog.errors import (
    FencedMemberEpochException,
    GroupIdNotFoundException,
    GroupMaxSizeReachedException,
    InvalidRequestException,
    UnknownMemberIdException,
)

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
REFRESH_INTERVAL_MS = (1 << 31) - 1
ASSIGNOR = "simple"
NOT_ASKED = -(1 << 31)  # authorizedOperations
_SPACES = "".join(map(chr, range(33)))  # removed by String.trim


class _Target(NamedTuple):
    epoch: int
    assignment: Assignment


class ShareGroups:
    """See the module. `latest_offset(topic, partition)` returns the end of a partition, for the lag."""

    def __init__(
        self, partition: GroupPartition, persister: Persister, latest_offset: Callable[[str, int], int]
    ) -> None:
        self._partition = partition
        self.states = ShareGroupStates(partition, persister, latest_offset)
        self._hashes = TopicHashes(partition.topics)
        self._lines = Lines("kafkalog.coordinator")

    def on_loaded(self) -> None:
        """Gives every member of a loaded group a new session."""
        for group_id, group in self._partition.groups.by_name.items():
            if isinstance(group, ShareGroup):
                self.states.note_time(group_id)
                for member_id in group.members:
                    self._expect(group_id, member_id)

    # --- heartbeats -----------------------------------------------------------------------------------

    def heartbeat(self, context: RequestContext, request: Values) -> Values:
        """Answers ShareGroupHeartbeat.

        Raises InvalidRequestException, GroupIdNotFoundException, UnknownMemberIdException, FencedMemberEpochException
        and GroupMaxSizeReachedException.
        """
        _check(request)
        group_id, member_id, epoch = request["groupId"], request["memberId"], request["memberEpoch"]
        if epoch == LEAVE_EPOCH:
            group = self.group(group_id)
            self._remove(group, group.member(member_id))
            return _answer(member_id, epoch)
        group = self._group_to_join(group_id, is_joining=epoch == JOIN_EPOCH)
        self._check_size(group, member_id)
        is_new = epoch == JOIN_EPOCH and member_id not in group.members
        if not is_new:
            return self._beat(context, request, group, _checked(group.member(member_id), epoch))
        member = ShareGroupMember(member_id)
        group.set_member(member)  # its record replaces it
        try:
            return self._beat(context, request, group, member)
        except BaseException:
            group.remove_member(member_id)
            raise

    def _beat(self, context: RequestContext, request: Values, group: ShareGroup, member: ShareGroupMember) -> Values:
        group_id, names = group.group_id, request["subscribedTopicNames"]
        told = member._replace(
            rack_id=member.rack_id if request["rackId"] is None else request["rackId"],
            subscribed_topic_names=member.subscribed_topic_names if names is None else name_set(names),
            client_id=context.client_id,
            client_host=context.client_host,
        )
        rows: list[KeyValue] = []
        updated, next_epoch, subscriptions = self._updated(group, member, told, rows)
        init = self.states.initialize_request(group, next_epoch, subscriptions, rows)
        self.states.write(group_id, rows)
        self._expect(group_id, member.member_id)
        if init is not None:
            self._partition.after(partial(self.states.initialize, init))
        answer = _answer(member.member_id, updated.member_epoch)
        answer["heartbeatIntervalMs"] = self._heartbeat_interval_ms(group_id)
        is_changed = member.assigned_partitions != updated.assigned_partitions
        if request["memberEpoch"] == JOIN_EPOCH or names is not None or is_changed:
            answer["assignment"] = {"topicPartitions": listed(updated.assigned_partitions)}
        return answer

    def _updated(
        self, group: ShareGroup, old: ShareGroupMember, told: ShareGroupMember, rows: list[KeyValue]
    ) -> tuple[ShareGroupMember, int, Subscriptions]:
        """Returns the member with its new assignment, the group's epoch and subscriptions. Adds the records."""
        now_ms = self._partition.clock.milliseconds()
        topics = self._partition.topics
        is_new_epoch = False
        if told != old:
            rows.append(member_row(group.group_id, told))
            is_new_epoch = told.subscribed_topic_names != old.subscribed_topic_names
        epoch = group.group_epoch
        if group.assignment_epoch >= epoch:
            is_new_epoch = is_new_epoch or group.has_new_partitions
        subscriptions: Subscriptions = group.subscriptions
        kind = group.subscription_type
        if is_new_epoch or group.has_metadata_expired(now_ms) or group.topics_version != topics.version:
            topics_version = topics.version
            subscriptions = group.subscriptions_with(old, told)
            metadata_hash = self._hashes.of_group(subscriptions)
            kind = subscription_type(subscriptions, len(group.members))
            is_new_epoch = is_new_epoch or metadata_hash != group.metadata_hash
            if is_new_epoch:
                epoch += 1
                rows.append(epoch_row(group.group_id, epoch, metadata_hash))
                self._partition.counts[SHARE_REBALANCE] += 1
            group.refresh_deadline = now_ms + REFRESH_INTERVAL_MS, epoch
            group.topics_version = topics_version
        target = self._target(group, epoch, told, kind, rows)
        return self._reconciled(group.group_id, told, target, is_new_epoch, rows), epoch, subscriptions

    def _target(
        self, group: ShareGroup, epoch: int, told: ShareGroupMember, kind: SubscriptionType, rows: list[KeyValue]
    ) -> _Target:
        now_ms = self._partition.clock.milliseconds()
        since_ms = group.assignment_timestamp_ms
        interval_ms = self._assignment_interval_ms(group.group_id)
        is_early = since_ms and interval_ms and now_ms < since_ms + interval_ms
        if group.assignment_epoch >= epoch or is_early:
            return _Target(group.assignment_epoch, group.target.get(told.member_id, NO_ASSIGNMENT))
        return self._next_target(group, epoch, told, kind, rows)

    def _next_target(
        self, group: ShareGroup, epoch: int, told: ShareGroupMember, kind: SubscriptionType, rows: list[KeyValue]
    ) -> _Target:
        members = dict(group.members.in_order())
        members[told.member_id] = told
        specs: JavaHashMap[str, MemberSpec] = name_map()
        for member_id, member in members.items():
            names = member.subscribed_topic_names
            ids = {each: None for each in map(self._partition.topics.topic_id, names) if each is not None}
            specs[member_id] = MemberSpec(None, ids, len(names), group.target.get(member_id, NO_ASSIGNMENT))
        state = group.state_partitions
        initialized: StateTopics = NO_TOPICS if state is None else state.initialized
        assignable = {topic_id: each.partitions for topic_id, each in initialized.items()}
        found = assign_simple(GroupSpec(specs, kind), self._partition_count, assignable)
        for member_id in specs:
            new = found.get(member_id, NO_ASSIGNMENT)
            if member_id not in group.target or new != group.target[member_id]:
                rows.append(target_member_row(group.group_id, member_id, new))
        rows.append(target_row(group.group_id, epoch, self._partition.clock.milliseconds()))
        return _Target(epoch, found.get(told.member_id, NO_ASSIGNMENT))

    def _partition_count(self, topic_id: str) -> int:
        name = self._partition.topics.name(topic_id)
        return 0 if name is None else self._partition.topics.partitions(name)

    def _reconciled(
        self, group_id: str, told: ShareGroupMember, target: _Target, is_new_epoch: bool, rows: list[KeyValue]
    ) -> ShareGroupMember:
        if not is_new_epoch and told.is_reconciled_to(target.epoch):
            return told
        new = told
        if target.epoch != told.member_epoch:
            new = told._replace(
                state=0,
                assigned_partitions=self._subscribed(target.assignment, told),
                member_epoch=target.epoch,
                previous_member_epoch=told.member_epoch,
            )
        elif is_new_epoch:
            new = told._replace(assigned_partitions=self._subscribed(target.assignment, told))
        if new != told:
            rows.append(current_row(group_id, new))
        return new

    def _subscribed(self, assignment: Assignment, member: ShareGroupMember) -> Assignment:
        """Returns the part of an assignment that the member subscribes to, and that exists."""
        topics = self._partition.topics
        left = [each for each in assignment if topics.name(each) in member.subscribed_topic_names]
        if len(left) == len(assignment):
            return assignment
        found: JavaHashMap[str, Partitions] = topic_map(int(len(assignment) / 0.75 + 1.0))
        for topic_id, partitions in assignment.items():
            found[topic_id] = partitions
        for topic_id in assignment:
            if topic_id not in left:
                del found[topic_id]
        return found

    # --- members --------------------------------------------------------------------------------------

    def group(self, group_id: str) -> ShareGroup:
        """Returns a group. Raises GroupIdNotFoundException."""
        return self.states.group(group_id)

    def _group_to_join(self, group_id: str, *, is_joining: bool) -> ShareGroup:
        if group_id in self._partition.groups.by_name:
            return self.group(group_id)
        if not is_joining:
            raise GroupIdNotFoundException(f"Share group {group_id} not found.")
        return ShareGroup(group_id)

    def _check_size(self, group: ShareGroup, member_id: str) -> None:
        most = self._partition.settings.group_share_max_size
        if len(group.members) >= most and member_id not in group.members:
            raise GroupMaxSizeReachedException(f"The share group has reached its maximum capacity of {most} members.")

    def _remove(self, group: ShareGroup, member: ShareGroupMember) -> None:
        group_id, epoch = group.group_id, group.group_epoch + 1
        rows = removed_rows(group_id, member.member_id)
        rows.append(epoch_row(group_id, epoch, self._hashes.of_group(group.subscriptions_with(member, None))))
        if len(group.members) == 1:
            rows.append(target_row(group_id, epoch, 0))
        self.states.write(group_id, rows)
        self._partition.timers.cancel(_session(group_id, member.member_id))

    def _expect(self, group_id: str, member_id: str) -> None:
        """Expects the next heartbeat of a member within its session timeout."""
        key = _session(group_id, member_id)
        timeout_ms = self._session_timeout_ms(group_id)
        if not self._partition.timers.postpone(key, timeout_ms):
            self._partition.timers.schedule(key, timeout_ms, partial(self._expire, group_id, member_id))

    def _expire(self, group_id: str, member_id: str) -> None:
        try:
            group = self.group(group_id)
            member = group.member(member_id)
        except (GroupIdNotFoundException, UnknownMemberIdException):
            return
        self._lines.info("member %s of group %s is removed: its session expired", member_id, group_id)
        self._remove(group, member)

    # --- settings -------------------------------------------------------------------------------------

    def _session_timeout_ms(self, group_id: str) -> int:
        default = self._partition.settings.group_share_session_timeout_ms
        return self._configured(group_id, "session.timeout.ms", default)

    def _heartbeat_interval_ms(self, group_id: str) -> int:
        default = self._partition.settings.group_share_heartbeat_interval_ms
        return self._configured(group_id, "heartbeat.interval.ms", default)

    def _assignment_interval_ms(self, group_id: str) -> int:
        default = self._partition.settings.group_share_assignment_interval_ms
        return self._configured(group_id, "assignment.interval.ms", default)

    def _configured(self, group_id: str, name: str, default: int) -> int:
        return configured(self._partition.settings, self._partition.configs.of(group_id), "share", name, default)

    # --- other requests -------------------------------------------------------------------------------

    def describe(self, group: str) -> Values:
        """Returns the described group. Raises GroupIdNotFoundException."""
        found = self.group(group)
        return {
            "errorCode": Errors.NONE,
            "errorMessage": None,
            "groupId": group,
            "groupState": found.state,
            "groupEpoch": found.group_epoch,
            "assignmentEpoch": found.assignment_epoch,
            "assignorName": ASSIGNOR,
            "members": [self._described(each) for _, each in found.members.in_order()],
            "authorizedOperations": NOT_ASKED,
        }

    def _described(self, member: ShareGroupMember) -> Values:
        names = ((topic_id, self._partition.topics.name(topic_id)) for topic_id in member.assigned_partitions)
        return {
            "memberId": member.member_id,
            "rackId": member.rack_id,
            "memberEpoch": member.member_epoch,
            "clientId": member.client_id,
            "clientHost": member.client_host,
            "subscribedTopicNames": list(member.subscribed_topic_names),
            "assignment": {
                "topicPartitions": [
                    {"topicId": each, "topicName": name, "partitions": list(member.assigned_partitions[each])}
                    for each, name in names
                    if name is not None
                ]
            },
        }

    def delete_group(self, group: str) -> list[KeyValue]:
        """Returns the records that delete the group, whose states are deleted already (`delete_states`)."""
        found = self.group(group)
        found.validate_delete_group()
        return found.tombstones(group)

    def delete_states(self, groups: Sequence[str]) -> dict[str, Errors]:
        """As `ShareGroupStates.delete_states`. Without the lock."""
        return self.states.delete_states(groups)

    def describe_offsets(self, context: RequestContext, group: Values) -> Values:
        """As `ShareGroupStates.describe_offsets`. Without the lock."""
        return self.states.describe_offsets(group)

    def alter_offsets(self, context: RequestContext, request: Values) -> Values:
        """As `ShareGroupStates.alter_offsets`. Without the lock."""
        return self.states.alter_offsets(request)

    def delete_offsets(self, context: RequestContext, request: Values) -> Values:
        """As `ShareGroupStates.delete_offsets`. Without the lock."""
        return self.states.delete_offsets(request)

    def on_topics_deleted(self, topic_ids: Collection[str]) -> None:
        """As `ShareGroupStates.on_topics_deleted`."""
        self.states.on_topics_deleted(topic_ids)


def _checked(member: ShareGroupMember, epoch: int) -> ShareGroupMember:
    """Returns the member of a heartbeat. Raises FencedMemberEpochException for another epoch than it should have."""
    known, last = member.member_epoch, member.previous_member_epoch
    if epoch in (JOIN_EPOCH, known) or epoch == last < known:
        return member
    if epoch > known:
        raise FencedMemberEpochException(
            f"The share group member has a greater member epoch ({epoch}) than the one known by the group "
            f"coordinator ({known}). The member must abandon all its partitions and rejoin."
        )
    raise FencedMemberEpochException(
        f"The share group member has a smaller member epoch ({epoch}) than the one known by the group "
        f"coordinator ({known}), and it does not match the previous member epoch ({last}). The member must "
        "abandon all its partitions and rejoin."
    )


def _session(group_id: str, member_id: str) -> str:
    return f"share session {len(group_id)} {group_id} {member_id}"


def _answer(member_id: str, epoch: int) -> Values:
    return {
        "throttleTimeMs": 0, "errorCode": Errors.NONE, "errorMessage": None, "memberId": member_id,
        "memberEpoch": epoch, "heartbeatIntervalMs": 0, "assignment": None,
    }  # fmt: skip


def _check(request: Values) -> None:
    for name, text in (("memberId", "MemberId"), ("groupId", "GroupId"), ("rackId", "RackId")):
        value: str | None = request[name]
        if value is not None and not value.strip(_SPACES):
            raise InvalidRequestException(f"{text} can't be empty.")
    epoch: int = request["memberEpoch"]
    if epoch == JOIN_EPOCH:
        if not request["subscribedTopicNames"]:
            raise InvalidRequestException("SubscribedTopicNames must be set in first request.")
    elif epoch < LEAVE_EPOCH:
        raise InvalidRequestException("MemberEpoch is invalid.")
