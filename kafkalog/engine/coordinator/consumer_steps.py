"""The steps of a heartbeat to a consumer group, and what follows from time.

`ConsumerGroups` makes one batch of records from these steps, and so do the parts that serve members of the classic
protocol. Every method needs the partition's lock. Source: GroupMetadataManager (4.4.0).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from kafkalog._native.codec.java_hash import JavaHashMap
from kafkalog.engine.coordinator import consumer_member as records
from kafkalog.engine.coordinator.assignors import PartitionAssignorException, SubscriptionType
from kafkalog.engine.coordinator.consumer_group import (
    ConsumerGroup,
    count_topics,
    increment,
    subscription_type,
)
from kafkalog.engine.coordinator.consumer_member import (
    STATIC_LEAVE_EPOCH,
    ConsumerGroupMember,
    MemberState,
    regex_of,
)
from kafkalog.engine.coordinator.consumer_timers import join_key, rebalance_key, session_key, sync_key
from kafkalog.engine.coordinator.current_assignment import CurrentAssignmentBuilder, Owned, Target
from kafkalog.engine.coordinator.group_counts import CONSUMER_REBALANCE
from kafkalog.engine.coordinator.group_partition import GroupPartition
from kafkalog.engine.coordinator.group_settings import GroupSettings, configured
from kafkalog.engine.coordinator.java_order import Assignment, name_map
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.state_log import KeyValue
from kafkalog.engine.coordinator.target_assignment import compute_target, existing, topics_of
from kafkalog.engine.coordinator.topic_hash import TopicHashes
from kafkalog.engine.coordinator.topic_matching import Matched, Matching
from kafkalog.engine.coordinator.topic_regex import compile_regex
from kafkalog.engine.coordinator.uniform_heterogeneous import ASSIGNORS
from kafkalog.engine.files.lines import Lines
from kafkalog.errors import (
    GroupIdNotFoundException,
    GroupMaxSizeReachedException,
    UnknownServerException,
    UnreleasedInstanceIdException,
)

INT_MAX = (1 << 31) - 1
REGEX_REFRESH_MIN_MS = 10_000  # expressions of a group are not resolved again sooner
NEVER = -(1 << 63)


class ConsumerSteps:
    """The consumer groups of a partition, without their requests."""

    def __init__(self, partition: GroupPartition) -> None:
        self.partition = partition
        self.timers = partition.timers
        self.topics = partition.topics
        # Called before members are removed. Returns whether the group is a classic one now, without them.
        self.downgrade: Callable[[ConsumerGroup, Sequence[ConsumerGroupMember]], bool] = lambda group, members: False
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

    # --- groups and members -----------------------------------------------------------------------------

    def group(self, group_id: str) -> ConsumerGroup:
        """Returns a group. Raises GroupIdNotFoundException."""
        found = self.partition.groups.by_name.get(group_id)
        if found is None:
            raise GroupIdNotFoundException(f"Consumer group {group_id} not found.")
        if not isinstance(found, ConsumerGroup):
            raise GroupIdNotFoundException(f"Group {group_id} is not a consumer group.")
        return found

    def check_room(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
        """Raises GroupMaxSizeReachedException if a new member cannot join."""
        if instance_id is not None and instance_id in group.static_members:
            return
        if len(group.members) >= self.settings.group_consumer_max_size and member_id not in group.members:
            raise GroupMaxSizeReachedException(
                f"The consumer group has reached its maximum capacity of "
                f"{self.settings.group_consumer_max_size} members."
            )

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
        if key in self.partition.work:
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
            matching = Matching(self.topics, self.partition.clock, context, list(regexes), self._lines)
            self.partition.work.schedule(key, matching.run, partial(self._resolved, group.group_id))

    def see_topics(self) -> None:
        """Notices topics that were created."""
        version = self.topics.version
        if version != self._topics_version:
            ids = frozenset(map(self.topics.topic_id, self.topics.names()))
            if self._new_topics_version == -1 or ids - self._topic_ids:
                self._new_topics_version = version
            self._topics_version, self._topic_ids = version, ids

    def _resolved(self, group_id: str, found: Matched) -> None:
        """Writes the topics of expressions, and raises the group epoch if they have changed."""
        group = self.partition.groups.by_name.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return
        self.see_topics()
        counts = dict(group.subscriptions)
        rows: list[KeyValue] = []
        bumps = False
        for regex, topics in found.topics.items():
            if regex not in group.regexes:
                continue
            known = group.resolved.get(regex)
            old = {} if known is None else known.topics
            if old != topics:
                bumps = True
                count_topics(counts, old, by_regex=-1)
                count_topics(counts, topics, by_regex=1)
            rows.append(records.regex_row(group_id, regex, topics, found.version, found.timestamp_ms))
        metadata_hash = self.metadata_hash(counts)
        if bumps or metadata_hash != group.metadata_hash:
            epoch = group.group_epoch + 1
            rows.append(records.epoch_row(group_id, epoch, metadata_hash))
            self.partition.counts[CONSUMER_REBALANCE] += 1
            self._set_deadline(group, self.partition.clock.milliseconds(), epoch)
        self.partition.write(rows, atomic=False)

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
            self.partition.counts[CONSUMER_REBALANCE] += 1
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

    # --- removal ----------------------------------------------------------------------------------------

    def fence(self, group: ConsumerGroup, members: Sequence[ConsumerGroupMember]) -> None:
        """Removes members. If only members of the classic protocol are left, the group becomes a classic one."""
        if not members or self.downgrade(group, members):
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
