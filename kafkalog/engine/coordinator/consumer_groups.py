"""The protocol of KIP-848 in one partition: ConsumerGroupHeartbeat, and what follows from time.

A heartbeat does four things in order. It changes the member, if the request says something new. It raises the group
epoch, if members or topics have changed. It computes the target of the new epoch, at most once in
`group.consumer.assignment.interval.ms`. And it takes the member one step towards its target. Everything becomes one
batch of records, which are replayed into the group.

A member that sends no heartbeat during its session is removed, and so is one that does not give up partitions within
its rebalance timeout. Regular expressions are resolved behind the answer, by a timer that is due at once; the members
learn the topics with their next heartbeats.

Members of the classic protocol in such a group are `consumer_classic`'s. Source: GroupMetadataManager,
GroupCoordinatorService (4.4.0).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from kafkalog._native.codec.java_hash import JavaHashMap
from kafkalog.engine.coordinator import consumer_member as records
from kafkalog.engine.coordinator.assignors import PartitionAssignorException, SubscriptionType
from kafkalog.engine.coordinator.classic_group import ClassicGroup
from kafkalog.engine.coordinator.classic_groups import ClassicGroups
from kafkalog.engine.coordinator.consumer_classic import ClassicMembers
from kafkalog.engine.coordinator.consumer_group import (
    ConsumerGroup,
    count_topics,
    increment,
    subscription_type,
)
from kafkalog.engine.coordinator.consumer_member import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupMember,
    MemberState,
    regex_of,
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
from kafkalog.engine.coordinator.consumer_timers import join_key, rebalance_key, session_key, sync_key
from kafkalog.engine.coordinator.current_assignment import CurrentAssignmentBuilder, Owned, Target
from kafkalog.engine.coordinator.group_managers import Answer, Manager
from kafkalog.engine.coordinator.group_partition import GroupPartition
from kafkalog.engine.coordinator.group_settings import GroupSettings, configured
from kafkalog.engine.coordinator.java_order import Assignment, name_map, topic_map
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.state_log import KeyValue
from kafkalog.engine.coordinator.target_assignment import compute_target, existing, topics_of
from kafkalog.engine.coordinator.topic_hash import TopicHashes
from kafkalog.engine.coordinator.topic_regex import compile_regex
from kafkalog.engine.coordinator.uniform_heterogeneous import ASSIGNORS
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.java_text import new_uuid
from kafkalog.engine.format.messages import Values
from kafkalog.errors import (
    GroupIdNotFoundException,
    GroupMaxSizeReachedException,
    KafkalogError,
    UnknownServerException,
    UnreleasedInstanceIdException,
)

INT_MAX = (1 << 31) - 1
REGEX_REFRESH_MIN_MS = 10_000  # expressions of a group are not resolved again sooner
NEVER = -(1 << 63)


class ConsumerGroups:
    """The consumer groups of a partition. Every method needs the partition's lock (`group_managers`)."""

    def __init__(self, partition: GroupPartition, classic: Manager) -> None:
        assert isinstance(classic, ClassicGroups), classic
        self.partition = partition
        self.timers = partition.timers
        self.topics = partition.topics
        self._classic = classic
        self.migration = Migration(self, classic)
        self._classic_members = ClassicMembers(self, self.migration)
        self._topic_hashes = TopicHashes(partition.topics)
        self._topics_version = -1
        self._topic_ids: frozenset[str | None] = frozenset()
        self._new_topics_version = -1  # the version of the topics in which a topic was last created
        self._lines = Lines("kafkalog.coordinator")

    @property
    def settings(self) -> GroupSettings:
        """The settings now: a server that starts later may change them."""
        return self.partition.settings

    @property
    def default_assignor(self) -> str:
        """The assignor of groups whose members prefer none."""
        return self.settings.group_consumer_assignors[0]

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

    def group(self, group_id: str) -> ConsumerGroup:
        """Returns a group. Raises GroupIdNotFoundException."""
        found = self.partition.groups.by_name.get(group_id)
        if found is None:
            raise GroupIdNotFoundException(f"Consumer group {group_id} not found.")
        if not isinstance(found, ConsumerGroup):
            raise GroupIdNotFoundException(f"Group {group_id} is not a consumer group.")
        return found

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

    def check_room(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
        """Raises GroupMaxSizeReachedException if a new member cannot join."""
        if instance_id is not None and instance_id in group.static_members:
            return
        if len(group.members) >= self.settings.group_consumer_max_size and member_id not in group.members:
            raise GroupMaxSizeReachedException(
                f"The consumer group has reached its maximum capacity of "
                f"{self.settings.group_consumer_max_size} members."
            )

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

    def join_static(
        self,
        group: ConsumerGroup,
        member_id: str,
        instance_id: str,
        rows: list[KeyValue],
        *,
        is_classic: bool = False,
    ) -> ConsumerGroupMember:
        """Returns a static member that joins. It takes the place of one that has left for a while.

        Raises UnreleasedInstanceIdException if that one has not left, and neither uses the classic protocol.
        """
        existing = group.static_member(instance_id)
        if existing is None:
            return group.members.get(member_id) or ConsumerGroupMember(member_id)
        if not is_classic and not existing.uses_classic_protocol and existing.member_epoch != STATIC_LEAVE_EPOCH:
            raise UnreleasedInstanceIdException(
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
                f"id is owned by {existing.member_id} member."
            )
        member = existing._replace(member_id=member_id, member_epoch=0, previous_member_epoch=0)
        target = group.target_of(existing.member_id)
        rows += records.removed_rows(group.group_id, existing.member_id)
        rows.append(records.member_row(group.group_id, member))
        rows.append(records.target_member_row(group.group_id, member_id, target))
        rows.append(records.current_row(group.group_id, member))
        return member

    # --- the steps of a heartbeat -----------------------------------------------------------------------

    def member_changed(
        self, group: ConsumerGroup, member: ConsumerGroupMember, updated: ConsumerGroupMember, rows: list[KeyValue]
    ) -> bool:
        """Writes what a member says of itself, if it is new. Returns whether it names other topics."""
        if updated == member:
            return False
        rows.append(records.member_row(group.group_id, updated))
        return updated.subscribed_topic_names != member.subscribed_topic_names

    def update_regexes(
        self,
        context: RequestContext,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        rows: list[KeyValue],
    ) -> tuple[bool, bool]:
        """Has the group's expressions resolved, if it is time. Returns whether the member's expression has changed, and
        whether the new one's topics are known already. Raises InvalidRegularExpression."""
        old, new = regex_of(member), regex_of(updated)
        changed = member.subscribed_topic_regex != updated.subscribed_topic_regex
        is_resolved = needs = False
        if changed:
            if old is not None and group.regexes.get(old) == 1:
                rows.append(records.regex_row(group.group_id, old, None))
            if new is None:
                is_resolved = old is not None
            elif new not in group.regexes:
                compile_regex(new)
                needs = True
            else:
                is_resolved = new in group.resolved
        if needs or group.regexes:
            self._maybe_resolve(context, group, group.regexes_with(member, updated), needs=needs)
        return changed, is_resolved

    def _maybe_resolve(
        self, context: RequestContext, group: ConsumerGroup, regexes: Mapping[str, int], *, needs: bool
    ) -> None:
        key = f"{group.group_id}-regex"
        if key in self.timers:
            return
        now_ms = self.partition.clock.milliseconds()
        known = next((each for _, each in group.resolved.in_order()), None)
        since = NEVER if known is None else known.timestamp_ms
        if now_ms <= since + REGEX_REFRESH_MIN_MS:
            return
        self.see_topics()
        version = 0 if known is None else known.version
        needs = needs or len(regexes) != len(group.resolved) or version < self._new_topics_version
        # A version above ours is of a broker, or of an earlier life of the store: topics may be new since.
        needs = needs or version > self._topics_version
        needs = needs or now_ms > since + self.settings.group_consumer_regex_refresh_interval_ms
        if needs and regexes:
            self.timers.schedule(key, 0, partial(self._resolve, context, group.group_id, list(regexes)))

    def see_topics(self) -> None:
        """Notices topics that were created."""
        version = self.topics.version
        if version != self._topics_version:
            ids = frozenset(map(self.topics.topic_id, self.topics.names()))
            if self._new_topics_version == -1 or ids - self._topic_ids:
                self._new_topics_version = version
            self._topics_version, self._topic_ids = version, ids

    def _resolve(self, context: RequestContext, group_id: str, regexes: Sequence[str]) -> None:
        """Writes the topics of expressions, and raises the group epoch if they have changed."""
        group = self.partition.groups.by_name.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return
        self.see_topics()
        version, now_ms = self._topics_version, self.partition.clock.milliseconds()
        matched = self._matched(context, regexes)
        counts = dict(group.subscriptions)
        rows: list[KeyValue] = []
        bumps = False
        for regex, topics in matched.items():
            if regex not in group.regexes:
                continue
            known = group.resolved.get(regex)
            old = {} if known is None else known.topics
            if old != topics:
                bumps = True
                count_topics(counts, old, by_regex=-1)
                count_topics(counts, topics, by_regex=1)
            rows.append(records.regex_row(group_id, regex, topics, version, now_ms))
        metadata_hash = self.metadata_hash(counts)
        if bumps or metadata_hash != group.metadata_hash:
            epoch = group.group_epoch + 1
            rows.append(records.epoch_row(group_id, epoch, metadata_hash))
            self._set_deadline(group, now_ms, epoch)
        self.partition.write(rows, atomic=False)

    def _matched(self, context: RequestContext, regexes: Sequence[str]) -> JavaHashMap[str, JavaHashMap[str, None]]:
        found: JavaHashMap[str, JavaHashMap[str, None]] = name_map(len(regexes))
        compiled = []
        for regex in regexes:
            found[regex] = name_map()
            try:
                compiled.append(compile_regex(regex))
            except KafkalogError as error:
                self._lines.warning("%s", error)
        for topic in self.topics.names():
            for each in compiled:
                if each.matches(topic):
                    found[each.pattern][topic] = None
        topics = {topic for each in found.values() for topic in each}
        shown = topics if context.describable is None else set(context.describable(topics))
        for hidden in topics - shown:
            for each_found in found.values():
                each_found.pop(hidden, None)
        ordered: JavaHashMap[str, JavaHashMap[str, None]] = name_map(len(found))
        for regex, matched in found.items():
            ordered[regex] = matched
        return ordered

    def metadata_hash(self, subscriptions: Collection[str]) -> int:
        """Returns the hash of topics, of those that exist."""
        return self._topic_hashes.of_group(subscriptions)

    def has_metadata_expired(self, group: ConsumerGroup, now_ms: int) -> bool:
        """Returns whether the group's metadata hash must be computed again."""
        return group.topics_version != self.topics.version or group.has_metadata_expired(now_ms)

    def _set_deadline(self, group: ConsumerGroup, now_ms: int, epoch: int) -> None:
        group.refresh_deadline = (now_ms + INT_MAX, epoch)
        group.topics_version = self.topics.version

    def update_subscriptions(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        rows: list[KeyValue],
        *,
        bumps: bool,
    ) -> tuple[int, SubscriptionType]:
        """Compares the group's topics with its hash. Returns the group epoch, and whether all read the same topics."""
        now_ms = self.partition.clock.milliseconds()
        subscriptions = group.subscriptions_with(member, updated)
        metadata_hash = self.metadata_hash(subscriptions)
        count = len(group.members)
        if updated.member_id not in group.members and group.static_member(updated.instance_id) is None:
            count += 1
        kind = subscription_type(group.regexes_with(member, updated), subscriptions, count)
        epoch = group.group_epoch
        if bumps or metadata_hash != group.metadata_hash:
            epoch += 1
            rows.append(records.epoch_row(group.group_id, epoch, metadata_hash))
        self._set_deadline(group, now_ms, epoch)
        if group.has_subscription_metadata:
            rows.append(records.row(records.SUBSCRIPTION_METADATA, None, groupId=group.group_id))
        return epoch, kind

    def update_target(
        self,
        group: ConsumerGroup,
        epoch: int,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        kind: SubscriptionType,
        rows: list[KeyValue],
    ) -> tuple[int, Assignment]:
        """Computes the target of a new epoch, if it is time. Returns the target of the member, and its epoch."""
        now_ms = self.partition.clock.milliseconds()
        last_ms = group.assignment_timestamp_ms
        interval_ms = self._assignment_interval_ms(group.group_id)
        is_soon = last_ms != 0 and interval_ms != 0 and now_ms < last_ms + interval_ms
        if group.assignment_epoch >= epoch or is_soon:
            return group.assignment_epoch, group.target_of(updated.member_id, updated.instance_id)
        name = group.preferred_assignor_with(member, updated) or self.default_assignor
        try:
            found = compute_target(group, updated, epoch, kind, ASSIGNORS[name], self.topics, now_ms)
        except PartitionAssignorException as error:
            raise UnknownServerException(
                f"Failed to compute a new target assignment for epoch {epoch}: {error.message}"
            ) from error
        rows += found.rows
        return epoch, found.members.get(updated.member_id, {})

    def reconcile(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        target: tuple[int, Assignment],
        owned: Owned,
        rows: list[KeyValue],
        *,
        changed: bool,
    ) -> ConsumerGroupMember:
        """Takes a member one step towards its target. Returns it after the step. `changed`: its subscription has."""
        epoch, assignment = target
        if not changed and member.is_reconciled_to(epoch):
            return member
        names = topics_of(member, group)
        wanted = Target(epoch, assignment, existing(names, self.topics), bool(names), changed)
        updated = CurrentAssignmentBuilder(member, wanted, owned, group.partition_epoch).build()
        if updated == member:
            return updated
        rows.append(records.current_row(group.group_id, updated))
        if not updated.uses_classic_protocol:
            if updated.state is MemberState.UNREVOKED_PARTITIONS:
                self._schedule_rebalance(group.group_id, updated)
            else:
                self.timers.cancel(rebalance_key(group.group_id, updated.member_id))
        return updated

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

    def fence(self, group: ConsumerGroup, members: Sequence[ConsumerGroupMember]) -> None:
        """Removes members. If only members of the classic protocol are left, the group becomes a classic one."""
        if not members or self.migration.maybe_downgrade(group, members):
            return
        rows: list[KeyValue] = []
        for each in members:
            rows += records.removed_rows(group.group_id, each.member_id)
        gone = self._abandoned(group, members)
        rows += [records.regex_row(group.group_id, each, None) for each in gone]
        epoch = group.group_epoch + 1
        metadata_hash = self.metadata_hash(group.subscriptions_without(members, gone))
        rows.append(records.epoch_row(group.group_id, epoch, metadata_hash))
        if len(group.members) == len(members):
            rows.append(records.target_row(group.group_id, epoch, 0))
        self.partition.write(rows)
        for each in members:
            self.cancel_timers(group.group_id, each.member_id)

    def _abandoned(self, group: ConsumerGroup, members: Sequence[ConsumerGroupMember]) -> list[str]:
        counts: JavaHashMap[str, int] = name_map()
        for each in members:
            increment(counts, regex_of(each))
        return [regex for regex, count in counts.items() if group.regexes.get(regex) == count]

    # --- timers -----------------------------------------------------------------------------------------

    def schedule_session(self, group_id: str, member_id: str, timeout_ms: int | None = None) -> None:
        """Starts a member's session anew. `timeout_ms`: what a member of the classic protocol asked for."""
        key = session_key(group_id, member_id)
        if timeout_ms is None:
            timeout_ms = self._session_timeout_ms(group_id)
            if self.timers.postpone(key, timeout_ms):
                return
        self.timers.schedule(key, timeout_ms, partial(self.fence_late, group_id, member_id, "its session has ended"))

    def _schedule_rebalance(self, group_id: str, member: ConsumerGroupMember) -> None:
        self.timers.schedule(
            rebalance_key(group_id, member.member_id),
            member.rebalance_timeout_ms,
            partial(self._fence_slow, group_id, member.member_id, member.member_epoch),
        )

    def _fence_slow(self, group_id: str, member_id: str, epoch: int) -> None:
        group = self.partition.groups.by_name.get(group_id)
        member = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
        if member is not None and member.member_epoch == epoch:
            self.fence_late(group_id, member_id, "it did not give up partitions within its rebalance timeout")

    def fence_late(self, group_id: str, member_id: str, reason: str) -> None:
        """Removes a member whose time is over, if it is still there."""
        group = self.partition.groups.by_name.get(group_id)
        member = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
        if member is not None:
            assert isinstance(group, ConsumerGroup)
            self._lines.log(logging.INFO, "member %s of group %s is removed: %s", member_id, group_id, reason)
            self.fence(group, [member])

    def cancel_timers(self, group_id: str, member_id: str) -> None:
        """Cancels every timer of a member."""
        for key in (session_key, rebalance_key, join_key, sync_key):
            self.timers.cancel(key(group_id, member_id))

    # --- settings ---------------------------------------------------------------------------------------

    def _session_timeout_ms(self, group_id: str) -> int:
        return self._configured(group_id, "session.timeout.ms", self.settings.group_consumer_session_timeout_ms)

    def _heartbeat_interval_ms(self, group_id: str) -> int:
        return self._configured(group_id, "heartbeat.interval.ms", self.settings.group_consumer_heartbeat_interval_ms)

    def _assignment_interval_ms(self, group_id: str) -> int:
        return self._configured(group_id, "assignment.interval.ms", self.settings.group_consumer_assignment_interval_ms)

    def _configured(self, group_id: str, name: str, default: int) -> int:
        """Returns a setting of the group, within the limits for all groups."""
        return configured(self.settings, self.partition.configs.of(group_id), "consumer", name, default)

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
