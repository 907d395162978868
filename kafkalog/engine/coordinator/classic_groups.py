"""The classic protocol of groups, in one partition: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

A rebalance has two halves. In PreparingRebalance members join; when all have, or time is up, the next generation begins
and every member gets its answer. In CompletingRebalance the leader sends the assignments; they are written as the
group's record, and every member gets its own. Then the group is Stable.

The state changes before the record is written, and is taken back if the append fails. So these records are written
without being replayed. All that a group needs after a restart is in its last record: a stable group goes on, and its
members' sessions start anew (`on_loaded`).

A member's session is a timer that each heartbeat sets anew. Source: GroupMetadataManager (4.4.0).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from kafkalog.engine.coordinator.classic_answers import (
    client_reason,
    complete,
    described,
    join_answer,
    joined,
    leave_answer,
    protocols_of,
    sync_answer,
    sync_error,
    synced,
)
from kafkalog.engine.coordinator.classic_group import (
    COMPLETING,
    DEAD,
    EMPTY,
    NO_ASSIGNMENT,
    PREPARING,
    STABLE,
    ClassicGroup,
    ClassicGroupMember,
)
from kafkalog.engine.coordinator.group_counts import CLASSIC_REBALANCE
from kafkalog.engine.coordinator.group_managers import Answer
from kafkalog.engine.coordinator.group_partition import GroupPartition
from kafkalog.engine.coordinator.groups import Group, GroupType
from kafkalog.engine.coordinator.operation_errors import operation_code
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.state_log import KeyValue
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.error_codes import Errors, code_of
from kafkalog.engine.format.messages import Values
from kafkalog.errors import (
    CoordinatorNotAvailableException,
    GroupIdNotFoundException,
    IllegalGenerationException,
    IllegalStateException,
    KafkalogError,
    UnknownMemberIdException,
)

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000  # how long a new member may wait for the others, before it must show itself
REQUIRES_MEMBER_ID = 4  # the version of JoinGroup from which a new member gets an id, and joins again (KIP-394)
SKIPS_ASSIGNMENT = 9  # the version of JoinGroup from which a static leader may keep the assignment


def heartbeat_key(group: str, member_id: str) -> str:
    """Returns the key of a session's timer."""
    return f"heartbeat-{group}-{member_id}"


def join_key(group: str) -> str:
    """Returns the key of the timer that ends the wait for members."""
    return f"join-{group}"


def sync_key(group: str) -> str:
    """Returns the key of the timer that ends the wait for assignments."""
    return f"sync-{group}"


class ClassicGroups:
    """The classic groups of a partition. Every method needs the partition's lock (`group_managers`).

    Methods that return a bool say whether a record was written.
    """

    def __init__(self, partition: GroupPartition) -> None:
        self.partition = partition
        self._timers = partition.timers
        self._lines = Lines("kafkalog.coordinator")

    def on_loaded(self) -> None:
        """Starts the sessions of members that the log has."""
        for name, group in self.partition.groups.by_name.in_order():
            if isinstance(group, ClassicGroup):
                for member in group.members.values():
                    self.reschedule(group, member, member.session_timeout_ms)
                if len(group.members) > self.partition.settings.group_max_size:
                    self.prepare_rebalance(group, f"the group {name!r} was loaded with too many members")

    # --- JoinGroup ------------------------------------------------------------------------------------

    def join(self, context: RequestContext, request: Values, answer: Answer) -> None:
        """Answers JoinGroup, now or later. The group is no consumer group that has members."""
        name: str = request["groupId"]
        found = self.partition.groups.by_name.get(name)
        rows: list[KeyValue] = []
        before: Group | None = None
        if found is not None and found.type is not GroupType.CLASSIC:
            if found.type is GroupType.SHARE or not found.is_empty:
                self._complete(answer, join_answer("", Errors.INCONSISTENT_GROUP_PROTOCOL))
                return
            rows = found.tombstones(name)
            before, found = found, None
        if found is None:
            self._join_new_group(context, request, answer, rows, before)
        else:
            assert isinstance(found, ClassicGroup), found
            self._join_group(context, request, found, answer)

    def _join_new_group(
        self, context: RequestContext, request: Values, answer: Answer, rows: list[KeyValue], before: Group | None
    ) -> None:
        """The group does not exist, or `before` is an empty one of another protocol, which `rows` delete."""
        by_name, name = self.partition.groups.by_name, request["groupId"]
        by_name.pop(name, None)
        if request["memberId"]:
            self._complete(answer, join_answer(request["memberId"], Errors.UNKNOWN_MEMBER_ID))
            return
        group = by_name[name] = ClassicGroup(name, self.partition.clock)
        if self._join_group(context, request, group, answer):
            return
        try:
            self.partition.write([*rows, group.empty_record()], replay=False)
        except KafkalogError as error:
            self._lines.warning("the new group %s cannot be written: %s", name, error)
            self._complete(answer, join_answer("", operation_code(error)))
            del by_name[name]
            if before is not None:
                by_name[name] = before

    def _join_group(self, context: RequestContext, request: Values, group: ClassicGroup, answer: Answer) -> bool:
        member_id: str = request["memberId"]
        if not self._accepts(group, member_id):
            group.remove(member_id)
            self._complete(answer, join_answer("", Errors.GROUP_MAX_SIZE_REACHED))
            return False
        if member_id:
            return self._join_existing_member(context, request, group, answer)
        return self._join_new_member(context, request, group, answer)

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        if group.status in (EMPTY, DEAD):
            return True
        member = group.members.get(member_id)
        if group.status is PREPARING:
            is_joined = member is not None and member.awaiting_join is not None
            return is_joined or group.awaiting_join_count < self.partition.settings.group_max_size
        return member is not None or len(group.members) < self.partition.settings.group_max_size

    def _join_new_member(self, context: RequestContext, request: Values, group: ClassicGroup, answer: Answer) -> bool:
        if group.status is DEAD:
            self._complete(answer, join_answer("", Errors.COORDINATOR_NOT_AVAILABLE))
            return False
        if not group.supports(request["protocolType"], [each["name"] for each in request["protocols"]]):
            self._complete(answer, join_answer("", Errors.INCONSISTENT_GROUP_PROTOCOL))
            return False
        instance_id: str | None = request["groupInstanceId"]
        new_id = group.new_member_id(context.client_id, instance_id)
        if instance_id is not None:
            existing_id = group.static_member_id(instance_id)
            if existing_id is not None:
                return self._replace_static_member(context, request, group, (existing_id, new_id), answer)
        elif context.api_version >= REQUIRES_MEMBER_ID:
            group.pending_join.add(new_id)
            self._schedule(
                heartbeat_key(group.name, new_id),
                request["sessionTimeoutMs"],
                partial(self._expire_member, group.name, new_id),
            )
            self._complete(answer, join_answer(new_id, Errors.MEMBER_ID_REQUIRED))
            return False
        return self._add_member(context, request, group, new_id, answer)

    def _join_existing_member(
        self, context: RequestContext, request: Values, group: ClassicGroup, answer: Answer
    ) -> bool:
        member_id: str = request["memberId"]
        protocols = protocols_of(request)
        if group.status is DEAD:
            self._complete(answer, join_answer(member_id, Errors.COORDINATOR_NOT_AVAILABLE))
            return False
        if not group.supports(request["protocolType"], [name for name, _ in protocols]):
            self._complete(answer, join_answer(member_id, Errors.INCONSISTENT_GROUP_PROTOCOL))
            return False
        if member_id in group.pending_join:
            if request["groupInstanceId"] is not None:
                raise IllegalStateException(f"{member_id!r} was expected without a group.instance.id")
            return self._add_member(context, request, group, member_id, answer)
        try:
            group.validate_member(member_id, request["groupInstanceId"])
        except KafkalogError as error:
            self._complete(answer, join_answer(member_id, code_of(error)) | {"protocolName": None})
            return False
        return self._rejoin(request, group, group.members[member_id], answer)

    def _rejoin(self, request: Values, group: ClassicGroup, member: ClassicGroupMember, answer: Answer) -> bool:
        protocols = protocols_of(request)
        reason = f"the member {member.member_id} joins again, in state {group.state}; {client_reason(request)}"
        is_leader = group.is_leader(member.member_id)
        if group.status is PREPARING:
            return self._update_member(request, group, member, reason, answer)
        if group.status is COMPLETING:
            if member.protocols != protocols:
                return self._update_member(request, group, member, reason, answer)
            # The member lost the answer, and gets it again.
            members = group.joined_members() if is_leader else []
            self._complete(answer, joined(group, member.member_id, members))
            return False
        if group.status is STABLE:
            # The leader asks for a rebalance if topics have changed, and others if their protocols have.
            if is_leader or member.protocols != protocols:
                return self._update_member(request, group, member, reason, answer)
            self._complete(answer, joined(group, member.member_id, []))
            return False
        self._complete(answer, join_answer(member.member_id, Errors.UNKNOWN_MEMBER_ID))
        return False

    def _update_member(
        self, request: Values, group: ClassicGroup, member: ClassicGroupMember, reason: str, answer: Answer
    ) -> bool:
        group.update_member(
            member, protocols_of(request), request["rebalanceTimeoutMs"], request["sessionTimeoutMs"], answer
        )
        return self._rebalance_or_complete(group, reason)

    def _add_member(
        self, context: RequestContext, request: Values, group: ClassicGroup, member_id: str, answer: Answer
    ) -> bool:
        member = ClassicGroupMember(
            member_id,
            request["groupInstanceId"],
            context.client_id,
            context.client_host,
            request["rebalanceTimeoutMs"],
            request["sessionTimeoutMs"],
            request["protocolType"],
            protocols_of(request),
        )
        member.is_new = True
        if group.status is PREPARING and group.previous_state is EMPTY:
            group.new_member_added = True
        group.add(member, answer)
        self.reschedule(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        return self._rebalance_or_complete(group, f"the member {member_id} is new; {client_reason(request)}")

    # --- static members -------------------------------------------------------------------------------

    def _replace_static_member(
        self, context: RequestContext, request: Values, group: ClassicGroup, ids: tuple[str, str], answer: Answer
    ) -> bool:
        """A static member has lost its id. It takes over the place of the old id, and keeps its assignment."""
        old_leader = group.leader_id
        instance_id: str = request["groupInstanceId"]
        member = self._take_over(group, instance_id, *ids)
        before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        group.update_member(
            member, protocols_of(request), request["rebalanceTimeoutMs"], request["sessionTimeoutMs"], answer
        )
        reason = f"the static member {member.member_id} ({instance_id}) joins again; {client_reason(request)}"
        if group.status is COMPLETING:
            return self.prepare_rebalance(group, reason)
        if group.status is not STABLE:
            if group.status is not PREPARING:
                raise IllegalStateException(f"the static member {instance_id!r} joins a group that is {group.state}")
            return self._complete_join_phase(group)
        if group.protocol_name != group.select_protocol():
            return self._rebalance_or_complete(group, reason)
        try:
            self.partition.write([group.record(group.assignments())], replay=False)
        except KafkalogError as error:
            self._lines.warning("the static member %s of %s cannot be written: %s", instance_id, group.name, error)
            group.update_member(member, *before, None)
            self._take_over(group, instance_id, *reversed(ids))
            failed = joined(group, "", [], leader=old_leader)
            self._complete(answer, failed | {"errorCode": int(operation_code(error))})
            return True
        self._let_static_member_go_on(context, group, member, old_leader)
        return True

    def _let_static_member_go_on(
        self, context: RequestContext, group: ClassicGroup, member: ClassicGroupMember, old_leader: str | None
    ) -> None:
        waiting = group.take_join(member)
        if context.api_version < SKIPS_ASSIGNMENT:
            # The old leader's id: so the member does not take itself for the leader, and divides nothing.
            self._complete(waiting, joined(group, member.member_id, [], leader=old_leader))
            return
        is_leader = group.is_leader(member.member_id)
        members = group.joined_members() if is_leader else []
        self._complete(waiting, joined(group, member.member_id, members) | {"skipAssignment": is_leader})

    def _take_over(self, group: ClassicGroup, instance_id: str, old_id: str, new_id: str) -> ClassicGroupMember:
        old = group.members[old_id]
        fenced = join_answer(old_id, Errors.FENCED_INSTANCE_ID) | {"protocolName": None}
        self._complete(group.take_join(old), fenced)
        self._complete(group.take_sync(old), sync_answer(Errors.FENCED_INSTANCE_ID))
        member = group.replace_static_member(instance_id, old_id, new_id)
        self.reschedule(group, member, member.session_timeout_ms)
        return member

    # --- rebalances -----------------------------------------------------------------------------------

    def _rebalance_or_complete(self, group: ClassicGroup, reason: str) -> bool:
        return self.prepare_rebalance(group, reason) if group.can_rebalance() else self._complete_join_phase(group)

    def prepare_rebalance(self, group: ClassicGroup, reason: str) -> bool:
        """Begins a rebalance: every member must join again."""
        if group.status is COMPLETING:
            self._reset_assignments(group, Errors.REBALANCE_IN_PROGRESS)
        group.pending_sync.clear()
        self._timers.cancel(sync_key(group.name))
        is_initial = group.status is EMPTY
        if is_initial:
            # Members that start together are awaited, so that they do not rebalance one after the other.
            delay_ms = self.partition.settings.group_initial_rebalance_delay_ms
            remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._schedule_initial(group.name, delay_ms, remaining_ms)
        group.transition_to(PREPARING)
        self._lines.log(
            logging.INFO, "group %s rebalances after generation %d: %s", group.name, group.generation, reason
        )
        if is_initial:
            return False
        if group.has_all_members_joined:
            return self._complete_join(group)
        self._schedule(join_key(group.name), group.rebalance_timeout_ms, partial(self._complete_join_of, group.name))
        return False

    def _schedule_initial(self, name: str, delay_ms: int, remaining_ms: int) -> None:
        self._schedule(join_key(name), delay_ms, partial(self._complete_initial, name, delay_ms, remaining_ms))

    def _complete_initial(self, name: str, delay_ms: int, remaining_ms: int) -> None:
        group = self._classic(name)
        if group is None:
            return
        if group.new_member_added and remaining_ms != 0:
            group.new_member_added = False
            next_ms = min(self.partition.settings.group_initial_rebalance_delay_ms, remaining_ms)
            self._schedule_initial(name, next_ms, max(remaining_ms - delay_ms, 0))
        else:
            self._complete_join(group)

    def _complete_join_phase(self, group: ClassicGroup) -> bool:
        if group.status is not PREPARING or group.previous_state is EMPTY or not group.has_all_members_joined:
            return False
        return self._complete_join(group)

    def _complete_join_of(self, name: str) -> None:
        group = self._classic(name)
        if group is not None:
            self._complete_join(group)

    def _complete_join(self, group: ClassicGroup) -> bool:
        """Begins the next generation with those who have joined; static members stay even if they have not."""
        self._timers.cancel(join_key(group.name))
        for late in group.not_yet_rejoined():
            if not late.is_static:
                group.remove(late.member_id)
                self._timers.cancel(heartbeat_key(group.name, late.member_id))
        if group.status is DEAD:
            return False
        if not group.elect_joined_leader() and group.members:
            # Only static members are left, and none has joined: they are awaited again.
            self._schedule(
                join_key(group.name), group.rebalance_timeout_ms, partial(self._complete_join_of, group.name)
            )
            return False
        group.init_next_generation()
        if group.status is EMPTY:
            self.partition.write([group.record({})], replay=False)
            return True
        self._lines.log(
            logging.INFO, "group %s: generation %d with %d members", group.name, group.generation, len(group.members)
        )
        for member in group.members.values():
            members = group.joined_members() if group.is_leader(member.member_id) else []
            self._complete(group.take_join(member), joined(group, member.member_id, members))
            self.reschedule(group, member, member.session_timeout_ms)
            member.is_new = False
            group.pending_sync.add(member.member_id)
        self._schedule(
            sync_key(group.name),
            group.rebalance_timeout_ms,
            partial(self._expire_pending_sync, group.name, group.generation),
        )
        return False

    # --- SyncGroup ------------------------------------------------------------------------------------

    def sync(self, context: RequestContext, request: Values, answer: Answer) -> None:
        """Answers SyncGroup, now or later."""
        group = self.partition.groups.by_name.get(request["groupId"])
        if not isinstance(group, ClassicGroup) or group.is_empty:
            self._complete(answer, sync_answer(Errors.UNKNOWN_MEMBER_ID))
            return
        member_id: str = request["memberId"]
        error = sync_error(group, request)
        if error is Errors.NONE and group.status is PREPARING:
            error = Errors.REBALANCE_IN_PROGRESS
        if error is not Errors.NONE:
            self._complete(answer, sync_answer(error))
            return
        self._remove_pending_sync(group, member_id)
        if group.status is STABLE:
            self._complete(answer, synced(group, group.members[member_id]))
            return
        assert group.status is COMPLETING, group.status
        group.members[member_id].awaiting_sync = answer
        if group.is_leader(member_id):
            sent = {each["memberId"]: bytes(each["assignment"]) for each in request["assignments"]}
            self._store_assignments(group, {each: sent.get(each, NO_ASSIGNMENT) for each in group.members})

    def _store_assignments(self, group: ClassicGroup, assignments: Mapping[str, bytes]) -> None:
        try:
            self.partition.write([group.record(assignments)], replay=False)
        except KafkalogError as error:
            code = operation_code(error)
            self._reset_assignments(group, code)
            self._rebalance_or_complete(group, f"the assignments cannot be written: {error}")
            return
        for member in group.members.values():
            member.assignment = assignments[member.member_id]
        self._propagate(group, Errors.NONE)
        group.transition_to(STABLE)
        self.partition.counts[CLASSIC_REBALANCE] += 1

    def _reset_assignments(self, group: ClassicGroup, error: Errors) -> None:
        assert group.status is COMPLETING, group.status
        for member in group.members.values():
            member.assignment = NO_ASSIGNMENT
        self._propagate(group, error)

    def _propagate(self, group: ClassicGroup, error: Errors) -> None:
        for member in group.members.values():
            waiting = group.take_sync(member)
            if waiting is not None:
                values = synced(group, member) if error is Errors.NONE else sync_answer(error)
                self._complete(waiting, values)
                self.reschedule(group, member, member.session_timeout_ms)

    def _remove_pending_sync(self, group: ClassicGroup, member_id: str) -> None:
        group.pending_sync.discard(member_id)
        if not group.pending_sync or group.status not in (COMPLETING, STABLE):
            self._timers.cancel(sync_key(group.name))

    def _expire_pending_sync(self, name: str, generation: int) -> None:
        group = self._classic(name)
        if group is None or group.generation != generation or group.status not in (COMPLETING, STABLE):
            return
        late = sorted(group.pending_sync)
        if not late:
            return
        for member_id in late:
            group.remove(member_id)
            self._timers.cancel(heartbeat_key(name, member_id))
        self.prepare_rebalance(group, f"members did not ask for their assignment: {', '.join(late)}")

    # --- Heartbeat ------------------------------------------------------------------------------------

    def heartbeat(self, context: RequestContext, request: Values) -> Values:
        """Answers Heartbeat. Raises the errors of `ClassicGroup.validate_member`, and IllegalGenerationException."""
        group = self.partition.groups.by_name.get(request["groupId"])
        if not isinstance(group, ClassicGroup):
            raise UnknownMemberIdException(f"group {request['groupId']!r} does not exist")
        if group.status is DEAD:
            raise CoordinatorNotAvailableException(f"group {group.name!r} is dead")
        group.validate_member(request["memberId"], request["groupInstanceId"])
        if request["generationId"] != group.generation:
            raise IllegalGenerationException(f"group {group.name!r} is at generation {group.generation}")
        if group.status is EMPTY:
            return {"throttleTimeMs": 0, "errorCode": int(Errors.UNKNOWN_MEMBER_ID)}
        member = group.members[request["memberId"]]
        self.reschedule(group, member, member.session_timeout_ms)
        error = Errors.REBALANCE_IN_PROGRESS if group.status is PREPARING else Errors.NONE
        return {"throttleTimeMs": 0, "errorCode": int(error)}

    def reschedule(self, group: ClassicGroup, member: ClassicGroupMember, timeout_ms: int) -> None:
        """Starts the member's session anew."""
        key = member.heartbeat_key
        if key and self._timers.postpone(key, timeout_ms):
            return
        key = member.heartbeat_key = heartbeat_key(group.name, member.member_id)
        self._schedule(key, timeout_ms, partial(self._expire_member, group.name, member.member_id))

    def on_commit(self, group: Group, member_id: str) -> None:
        """Starts a member's session anew, because a commit of offsets is a sign of life."""
        if isinstance(group, ClassicGroup) and group.status in (STABLE, PREPARING):
            member = group.members.get(member_id)
            if member is not None:
                self.reschedule(group, member, member.session_timeout_ms)

    def _expire_member(self, name: str, member_id: str) -> None:
        group = self._classic(name)
        if group is None or group.status is DEAD:
            return
        if member_id in group.pending_join:
            group.remove(member_id)
            if group.status is PREPARING and group.has_all_members_joined:
                self._complete_join(group)
            return
        member = group.members.get(member_id)
        if member is None or member.has_satisfied_heartbeat:
            return
        self._lines.log(logging.INFO, "member %s of group %s is gone: its session has ended", member_id, name)
        self._complete(group.take_join(member), join_answer("", Errors.UNKNOWN_MEMBER_ID))
        group.remove(member_id)
        if group.status in (STABLE, COMPLETING):
            self._rebalance_or_complete(group, f"the session of {member_id} has ended")
        elif group.status is PREPARING and group.has_all_members_joined:
            self._complete_join(group)

    # --- LeaveGroup -----------------------------------------------------------------------------------

    def leave(self, context: RequestContext, request: Values) -> Values:
        """Answers LeaveGroup. Raises UnknownMemberIdException if the group does not exist."""
        group = self.partition.groups.by_name.get(request["groupId"])
        if not isinstance(group, ClassicGroup):
            raise UnknownMemberIdException(f"group {request['groupId']!r} does not exist")
        if group.status is DEAD:
            return leave_answer(Errors.COORDINATOR_NOT_AVAILABLE, [])
        members = [self._leave_member(group, each) for each in request["members"]]
        gone = [each["memberId"] for each in members if each["errorCode"] == Errors.NONE]
        if gone and group.status is PREPARING:
            self._complete_join_phase(group)
        elif gone and group.status in (COMPLETING, STABLE):
            self._rebalance_or_complete(group, f"members have left: {', '.join(gone)}")
        return leave_answer(Errors.NONE, members)

    def _leave_member(self, group: ClassicGroup, told: Values) -> Values:
        member_id: str = told["memberId"]
        instance_id: str | None = told["groupInstanceId"]
        error = Errors.NONE
        if not member_id:
            known = None if instance_id is None else group.static_member_id(instance_id)
            if known is None:
                error = Errors.UNKNOWN_MEMBER_ID
            else:
                self._remove_leaving(group, known, told)
        elif member_id in group.pending_join:
            group.remove(member_id)
            self._timers.cancel(heartbeat_key(group.name, member_id))
        else:
            try:
                group.validate_member(member_id, instance_id)
                self._remove_leaving(group, member_id, told)
            except KafkalogError as raised:
                error = code_of(raised)
        return {"memberId": member_id, "groupInstanceId": instance_id, "errorCode": int(error)}

    def _remove_leaving(self, group: ClassicGroup, member_id: str, told: Values) -> None:
        self._timers.cancel(heartbeat_key(group.name, member_id))
        self._lines.log(
            logging.INFO, "member %s has left group %s; client reason: %s", member_id, group.name, told.get("reason")
        )
        waiting = group.take_join(group.members[member_id])
        self._complete(waiting, join_answer("", Errors.UNKNOWN_MEMBER_ID))
        group.remove(member_id)

    # --- DescribeGroups, DeleteGroups -----------------------------------------------------------------

    def describe(self, group: str) -> Values:
        """Returns the described group of DescribeGroups. Raises GroupIdNotFoundException."""
        found = self.partition.groups.by_name.get(group)
        if found is None:
            raise GroupIdNotFoundException(f"Group {group} not found.")
        if not isinstance(found, ClassicGroup):
            raise GroupIdNotFoundException(f"Group {group} is not a classic group.")
        protocol = found.protocol_name if found.status is STABLE else None
        return {
            "errorCode": 0,
            "errorMessage": None,
            "groupId": group,
            "groupState": found.state,
            "protocolType": found.protocol_type,
            "protocolData": protocol or "",
            "members": [described(each, protocol) for each in found.members.values()],
        }

    def delete_group(self, group: str) -> list[KeyValue]:
        """Returns the records that delete an empty group."""
        found = self.partition.groups.by_name[group]
        found.validate_delete_group()
        return found.tombstones(group)

    # --- for consumer groups --------------------------------------------------------------------------

    def release(self, group: ClassicGroup, error: Errors = Errors.REBALANCE_IN_PROGRESS) -> None:
        """Answers all members that wait, because the group becomes a consumer group, or its partition is closed."""
        for member in group.members.values():
            self._complete(group.take_join(member), join_answer(member.member_id, error))
        for member in group.members.values():
            self._complete(group.take_sync(member), sync_answer(error))

    def adopt(self, group: ClassicGroup) -> None:
        """Takes over a group that was a consumer group, and starts the sessions of its members."""
        self.partition.groups.by_name[group.name] = group
        for member in group.members.values():
            self.reschedule(group, member, member.session_timeout_ms)

    def on_unloaded(self) -> None:
        """Answers all members that wait, because the store is closing."""
        for group in self.partition.groups.by_name.values():
            if isinstance(group, ClassicGroup):
                group.transition_to(DEAD)
                self.release(group, Errors.NOT_COORDINATOR)

    def _schedule(self, key: str, delay_ms: int, run: Callable[[], object]) -> None:
        # Not tried again, as in Kafka: the state has changed already.
        self._timers.schedule(key, delay_ms, run, retries=False)

    # --- helpers --------------------------------------------------------------------------------------

    def _classic(self, name: str) -> ClassicGroup | None:
        found = self.partition.groups.by_name.get(name)
        return found if isinstance(found, ClassicGroup) else None

    def _complete(self, answer: Answer | None, values: Values) -> None:
        if answer is not None:
            self.partition.after(partial(complete, answer, values))
