"""A consumer group (KIP-848): its members, what each should have and what each has.

The state changes only by records: `replay` applies one. Epochs grow. The group epoch grows if members or topics change;
the assignment epoch is the group epoch for which the target was computed; a member's epoch is the one whose target it
has. `partition_epoch` says who may not be disturbed: a partition has an owner until its record says otherwise.

It knows no requests and no timers (`consumer_groups`). Not thread-safe: the partition's lock is held.
Source: ModernGroup, ConsumerGroup, GroupMetadataManager.replay (4.4.0).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from kafkalog._native.codec.java_hash import JavaHashMap
from kafkalog.engine.coordinator import consumer_member as records
from kafkalog.engine.coordinator.assigned_group import AssignedGroup
from kafkalog.engine.coordinator.assignors import SubscriptionType
from kafkalog.engine.coordinator.consumer_member import ConsumerGroupMember, regex_of
from kafkalog.engine.coordinator.groups import (
    COMMITS_WITH_EPOCHS,
    LEFT_EPOCH,
    CommittingMember,
    CommitValidator,
    Groups,
    GroupType,
    ListedMember,
    has_members,
)
from kafkalog.engine.coordinator.java_order import (
    NO_ASSIGNMENT,
    NO_EPOCHS,
    Assignment,
    AssignmentEpochs,
    Names,
    TimelineHashMap,
    name_map,
    name_set,
)
from kafkalog.engine.coordinator.state_log import KeyValue
from kafkalog.engine.format.coordinator_records import CoordinatorRecord
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import (
    IllegalGenerationException,
    SchemaException,
    StaleMemberEpochException,
    UnknownServerException,
    UnsupportedVersionException,
)

NO_EPOCH = -1
EMPTY, ASSIGNING, RECONCILING, STABLE = "Empty", "Assigning", "Reconciling", "Stable"


class ResolvedRegularExpression(NamedTuple):
    """The topics of a regular expression, when they were looked for, and in which version of the topics."""

    topics: Names
    version: int
    timestamp_ms: int


class SubscriptionCount(NamedTuple):
    """How many members name a topic, and how many regular expressions match it."""

    by_name: int = 0
    by_regex: int = 0


Subscriptions = dict[str, SubscriptionCount]
NO_COUNT = SubscriptionCount()


def count_topics(counts: Subscriptions, topics: Iterable[str], *, by_name: int = 0, by_regex: int = 0) -> None:
    """Adds to the counts of topics; a topic without any is removed."""
    for topic in topics:
        names, regexes = counts.get(topic, NO_COUNT)
        if names + by_name > 0 or regexes + by_regex > 0:
            counts[topic] = SubscriptionCount(names + by_name, regexes + by_regex)
        else:
            counts.pop(topic, None)


def count_one(counts: dict[str, int], key: str | None, by: int) -> None:
    """Adds to the count of a key; a key whose count is 0 is removed."""
    if key is not None:
        found = counts.get(key, 0) + by
        if found > 0:
            counts[key] = found
        else:
            counts.pop(key, None)


def increment(counts: JavaHashMap[str, int], key: str | None) -> None:
    """HashMap.compute(key, Utils::incValue): a new key goes to the front of its bucket."""
    if key is not None:
        counts[key] = counts.compute_if_absent(key, int) + 1


class ConsumerGroup(AssignedGroup[ConsumerGroupMember]):
    """See the module."""

    type = GroupType.CONSUMER
    protocol_type = "consumer"

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.static_members: dict[str, str] = {}  # member ids by instance id
        self.owners: dict[str, dict[int, str]] = {}  # by topic id and partition: who has it in the target
        self.subscriptions: Subscriptions = {}
        self.regexes: TimelineHashMap[int] = TimelineHashMap()  # how many members subscribe to each
        self.resolved: TimelineHashMap[ResolvedRegularExpression] = TimelineHashMap()
        self.assignors: TimelineHashMap[int] = TimelineHashMap()  # how many members prefer each
        self.classic_count = 0
        self.classic_protocols: dict[str, int] = {}  # how many members of the classic protocol support each
        self.has_subscription_metadata = False  # a record that brokers before 4.1 wrote
        self._partition_epochs: dict[str, dict[int, int]] = {}
        self._state: str | None = EMPTY  # None: to be found again

    # --- what others ask of any group -------------------------------------------------------------------

    @property
    def state(self) -> str:
        if self._state is None:
            self._state = self._find_state()
        return self._state

    def _find_state(self) -> str:
        if not self.members:
            return EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ASSIGNING
        is_there = all(each.is_reconciled_to(self.assignment_epoch) for each in self.members.values())
        return STABLE if is_there else RECONCILING

    def listed_members(self) -> list[ListedMember]:
        return [
            ListedMember(name, each.client_id, each.client_host, _partitions(each))
            for name, each in self.members.in_order()
        ]

    def expires_after(self, offset: CommittedOffset) -> int | None:
        return offset.commit_timestamp

    def tombstones(self, name: str, *, left: str | None = None, joined: str | None = None) -> list[KeyValue]:
        """Returns the records that delete the group. `joined`: a static member that has just replaced `left`."""
        members = [joined if each == left and joined else each for each, _ in self.members.in_order()]
        rows = [records.row(records.CURRENT, None, groupId=name, memberId=each) for each in members]
        rows += [records.row(records.TARGET_MEMBER, None, groupId=name, memberId=each) for each in members]
        rows.append(records.row(records.TARGET, None, groupId=name))
        rows += [records.row(records.MEMBER, None, groupId=name, memberId=each) for each in members]
        rows += [records.regex_row(name, each, None) for each, _ in self.resolved.in_order()]
        rows.append(records.row(records.SUBSCRIPTION_METADATA, None, groupId=name))
        return [*rows, records.row(records.GROUP, None, groupId=name)]

    def without_members(self, name: str, now_ms: int) -> list[KeyValue]:
        epoch = self.group_epoch + 1
        rows = [each for member, _ in self.members.in_order() for each in records.removed_rows(name, member)]
        rows += [records.regex_row(name, each, None) for each in self.resolved]
        return [*rows, records.epoch_row(name, epoch, 0), records.target_row(name, epoch, 0)]

    def validate_offset_commit(self, member: CommittingMember, *, is_transactional: bool) -> CommitValidator | None:
        epoch = member.generation
        if epoch < 0 and not self.members:
            return None
        if is_transactional and epoch == LEFT_EPOCH and not member.member_id and member.group_instance_id is None:
            return None
        found = self.member(member.member_id)
        if not is_transactional and not found.uses_classic_protocol and member.api_version < COMMITS_WITH_EPOCHS:
            raise UnsupportedVersionException(
                "OffsetCommit version 9 or above must be used by members using the consumer group protocol"
            )
        if epoch == found.member_epoch:
            return None
        if epoch > found.member_epoch:
            what = "generation id" if found.uses_classic_protocol else "member epoch"
            raise _stale(found, f"Received {what} {epoch} is newer than current member epoch {found.member_epoch}.")
        return _AssignmentEpochs(found, epoch)

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        if member_id is None:
            raise UnknownServerException("an epoch of no member")  # Kafka looks for a member without an id, and fails
        found = self.member(member_id)
        if member_epoch != found.member_epoch:
            what = "generation id" if found.uses_classic_protocol else "member epoch"
            raise _stale(
                found,
                f"The received {what} {member_epoch} does not match the expected member epoch {found.member_epoch}.",
            )

    def validate_offset_delete(self) -> None:
        pass

    def validate_delete_group(self) -> None:
        if self.members:
            raise has_members(self)

    # --- what requests ask ------------------------------------------------------------------------------

    def static_member(self, instance_id: str | None) -> ConsumerGroupMember | None:
        """Returns the member of an instance id; None if there is none."""
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def target_of(self, member_id: str, instance_id: str | None = None) -> Assignment:
        """Returns what a member should have; with an instance id, what its current member should."""
        if instance_id is not None:
            previous = self.static_members.get(instance_id)
            return NO_ASSIGNMENT if previous is None else self.target.get(previous, NO_ASSIGNMENT)
        return self.target.get(member_id, NO_ASSIGNMENT)

    def partition_epoch(self, topic_id: str, partition: int) -> int:
        """Returns the epoch of the member that has a partition; -1 if it is free."""
        return self._partition_epochs.get(topic_id, {}).get(partition, NO_EPOCH)

    def waits_for_others(self, member: ConsumerGroupMember) -> bool:
        """Returns whether another member still has a partition that this one should get."""
        if member.state is not records.MemberState.UNRELEASED_PARTITIONS:
            return False
        return any(
            partition not in member.assigned_partitions.get(topic_id, ())
            and self.partition_epoch(topic_id, partition) != NO_EPOCH
            for topic_id, partitions in self.target_of(member.member_id).items()
            for partition in partitions
        )

    def preferred_assignor(self) -> str | None:
        """Returns the assignor that most members prefer; None if none prefers any."""
        return _most(self.assignors.in_order())

    def preferred_assignor_with(self, old: ConsumerGroupMember, new: ConsumerGroupMember) -> str | None:
        """Returns `preferred_assignor` as it will be after the change of a member."""
        counts: JavaHashMap[str, int] = name_map(_copy_capacity(len(self.assignors)))
        for name, count in self.assignors.in_order():
            counts[name] = count
        count_one(counts, old.server_assignor, -1)
        increment(counts, new.server_assignor)
        return _most(counts.items())

    def regexes_with(self, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None) -> dict[str, int]:
        """Returns `regexes` as it will be after the change of a member."""
        counts = dict(self.regexes)
        count_one(counts, regex_of(old), -1)
        count_one(counts, regex_of(new), 1)
        return counts

    def subscriptions_with(self, old: ConsumerGroupMember, new: ConsumerGroupMember) -> Subscriptions:
        """Returns `subscriptions` as it will be after the change of a member."""
        counts = dict(self.subscriptions)
        count_topics(counts, old.subscribed_topic_names, by_name=-1)
        count_topics(counts, new.subscribed_topic_names, by_name=1)
        regex = regex_of(old)
        if regex is not None and regex != regex_of(new) and self.regexes.get(regex) == 1 and regex in self.resolved:
            count_topics(counts, self.resolved[regex].topics, by_regex=-1)
        return counts

    def subscriptions_without(self, gone: Collection[ConsumerGroupMember], regexes: Iterable[str]) -> Subscriptions:
        """Returns `subscriptions` as it will be after members, and regular expressions with them, have left."""
        counts = dict(self.subscriptions)
        for each in gone:
            count_topics(counts, each.subscribed_topic_names, by_name=-1)
        for regex in regexes:
            if regex in self.resolved:
                count_topics(counts, self.resolved[regex].topics, by_regex=-1)
        return counts

    def supports_classic_protocols(self, protocol_type: str, names: Collection[str]) -> bool:
        """Returns whether a member of the classic protocol with these protocols may join."""
        if protocol_type != self.protocol_type:
            return False
        if not self.members:
            return bool(names)
        return any(self.classic_protocols.get(each, 0) == self.classic_count for each in names)

    # --- changes, by records ----------------------------------------------------------------------------

    def set_epoch(self, epoch: int, metadata_hash: int) -> None:
        """Sets the group epoch."""
        self.group_epoch, self.metadata_hash = epoch, metadata_hash
        self._state = None

    def set_target_epoch(self, epoch: int, timestamp_ms: int) -> None:
        """Sets the epoch of the target."""
        self.assignment_epoch, self.assignment_timestamp_ms = epoch, timestamp_ms
        self._state = None

    def set_target(self, member_id: str, target: Assignment) -> None:
        """Sets what a member should have."""
        self._own(member_id, self.target.get(member_id, NO_ASSIGNMENT), target)
        self.target[member_id] = target

    def remove_target(self, member_id: str) -> None:
        """Forgets what a member should have."""
        self._own(member_id, self.target.pop(member_id, NO_ASSIGNMENT), NO_ASSIGNMENT)

    def _own(self, member_id: str, old: Assignment, new: Assignment) -> None:
        for topic_id in {**old, **new}:
            before, after = old.get(topic_id, {}), new.get(topic_id, {})
            owners = self.owners.setdefault(topic_id, {})
            for each in before:
                if each not in after and owners.get(each) == member_id:
                    del owners[each]
            owners.update((each, member_id) for each in after if each not in before)
            if not owners:
                del self.owners[topic_id]

    def set_member(self, member: ConsumerGroupMember) -> None:
        """Adds or replaces a member. Raises SchemaException if another still has one of its partitions."""
        old = self.members.get(member.member_id)
        self.members[member.member_id] = member
        if old is not None:
            self._release(old)
        self._hold(member)
        if old is not None and old.instance_id is not None:
            self.static_members.pop(old.instance_id, None)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._count(old, member)

    def remove_member(self, member_id: str) -> None:
        """Removes a member."""
        old = self.members.pop(member_id)
        self._release(old)
        if old.instance_id is not None:
            self.static_members.pop(old.instance_id, None)
        self._count(old, None)

    def _count(self, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None) -> None:
        for member, by in ((old, -1), (new, 1)):
            if member is None:
                continue
            count_topics(self.subscriptions, member.subscribed_topic_names, by_name=by)
            count_one(self.assignors, member.server_assignor, by)
            count_one(self.regexes, regex_of(member), by)
            self.classic_count += by * member.uses_classic_protocol
            for each in member.classic_protocols:
                count_one(self.classic_protocols, each["name"], by)
        self.subscription_type = subscription_type(self.regexes, self.subscriptions, len(self.members))
        self._state = None

    def _release(self, member: ConsumerGroupMember) -> None:
        for assignment in (member.assigned_partitions, member.partitions_pending_revocation):
            for topic_id, partitions in assignment.items():
                epochs = self._partition_epochs.get(topic_id)
                if epochs is None:
                    continue
                for each in partitions:
                    if epochs.get(each) == member.member_epoch:
                        del epochs[each]
                if not epochs:
                    del self._partition_epochs[topic_id]

    def _hold(self, member: ConsumerGroupMember) -> None:
        for assignment in (member.assigned_partitions, member.partitions_pending_revocation):
            for topic_id, partitions in assignment.items():
                epochs = self._partition_epochs.setdefault(topic_id, {})
                for each in partitions:
                    # Invariant: a partition has one owner. A record that gives it to a second one is not replayed.
                    before = epochs.get(each)
                    if before is not None and before >= member.member_epoch:
                        raise SchemaException(
                            f"partition {each} of {topic_id} is given to member {member.member_id!r} of group "
                            f"{self.group_id!r} at epoch {member.member_epoch}, but it has an owner at {before}"
                        )
                    epochs[each] = member.member_epoch

    def set_resolved(self, regex: str, found: ResolvedRegularExpression | None) -> None:
        """Sets the topics of a regular expression; None forgets them."""
        old = self.resolved.pop(regex, None)
        if old is not None:
            count_topics(self.subscriptions, old.topics, by_regex=-1)
        if found is not None:
            self.resolved[regex] = found
            count_topics(self.subscriptions, found.topics, by_regex=1)


def _partitions(member: ConsumerGroupMember) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic_id, each)
        for topic_id, partitions in member.assigned_partitions.items()
        for each in sorted(partitions)
    )


class _AssignmentEpochs:
    """Lets a member commit in an older epoch what it has had since then."""

    def __init__(self, member: ConsumerGroupMember, epoch: int) -> None:
        self._member = member
        self._epoch = epoch

    def __call__(self, topic: str, topic_id: str, partition: int, /) -> None:
        member = self._member
        since = member.assigned_partitions.get(topic_id, {}).get(partition)
        if since is None:
            since = member.partitions_pending_revocation.get(topic_id, {}).get(partition)
        if since is None:
            raise _stale(member, f"Partition {topic}-{partition} is not assigned or pending revocation for member.")
        if self._epoch < since:
            what = "generation id" if member.uses_classic_protocol else "member epoch"
            raise _stale(
                member,
                f"Received {what} {self._epoch} is older than assignment epoch {since} for partition "
                f"{topic}-{partition}.",
            )


def _stale(member: ConsumerGroupMember, text: str) -> IllegalGenerationException | StaleMemberEpochException:
    return IllegalGenerationException(text) if member.uses_classic_protocol else StaleMemberEpochException(text)


def _most(counts: Iterable[tuple[str, int]]) -> str | None:
    best: str | None = None
    most = 0
    for name, count in counts:
        if count > most:  # the first of equal ones
            best, most = name, count
    return best


def _copy_capacity(count: int) -> int:
    return int(count / 0.75 + 1.0) if count else 16


def subscription_type(
    regexes: Mapping[str, int], subscriptions: Mapping[str, SubscriptionCount], member_count: int
) -> SubscriptionType:
    """Returns whether all members read the same topics: the same names, or one regular expression and no name."""
    if not regexes:
        is_same = all(each.by_name == member_count for each in subscriptions.values())
    else:
        is_same = next(iter(regexes.values())) == member_count and all(
            each.by_regex == 1 and each.by_name <= 0 for each in subscriptions.values()
        )
    return SubscriptionType.HOMOGENEOUS if is_same else SubscriptionType.HETEROGENEOUS


# --- replay -----------------------------------------------------------------------------------------------------------


def replay(groups: Groups, record: CoordinatorRecord, /) -> None:
    """Replays a record of a consumer group. Raises SchemaException for one that contradicts those before it."""
    name: str = record.key["groupId"]
    group = _group(groups, name, create=record.value is not None)
    if group is None:
        return
    if record.value is not None:
        _set(group, record.type, record.key, record.value)
    elif record.type == records.GROUP:
        _delete(groups, name, group)
    else:
        _unset(group, record.type, record.key)


def _group(groups: Groups, name: str, *, create: bool) -> ConsumerGroup | None:
    found = groups.by_name.get(name)
    if isinstance(found, ConsumerGroup):
        return found
    if found is None and not create:
        return None
    if found is not None and not getattr(found, "is_simple", False):
        raise SchemaException(f"group {name!r} is a {found.type.value.lower()} group, not a consumer one")
    made = groups.by_name[name] = ConsumerGroup(name)
    return made


def _set(group: ConsumerGroup, type: int, key: Values, value: Values) -> None:
    if type == records.GROUP:
        group.set_epoch(value["epoch"], value["metadataHash"])
    elif type == records.SUBSCRIPTION_METADATA:
        group.has_subscription_metadata = True
    elif type == records.TARGET:
        group.set_target_epoch(value["assignmentEpoch"], value["assignmentTimestamp"])
    elif type == records.TARGET_MEMBER:
        group.set_target(key["memberId"], records.target_of(value))
    elif type == records.REGEX:
        found = ResolvedRegularExpression(name_set(value["topics"]), value["version"], value["timestamp"])
        group.set_resolved(key["regularExpression"], found)
    else:
        member_id: str = key["memberId"]
        member = group.members.get(member_id) or ConsumerGroupMember(member_id)
        group.set_member(member.told(value) if type == records.MEMBER else member.got(value))


def _unset(group: ConsumerGroup, type: int, key: Values) -> None:
    if type == records.SUBSCRIPTION_METADATA:
        group.has_subscription_metadata = False
    elif type == records.TARGET:
        if group.target:
            raise SchemaException(f"the assignment of group {group.group_id!r} is deleted, but still has members")
        group.set_target_epoch(LEFT_EPOCH, 0)
    elif type == records.TARGET_MEMBER:
        group.remove_target(key["memberId"])
    elif type == records.REGEX:
        group.set_resolved(key["regularExpression"], None)
    elif key["memberId"] in group.members:
        _unset_member(group, type, key["memberId"])


def _unset_member(group: ConsumerGroup, type: int, member_id: str) -> None:
    member = group.members[member_id]
    if type == records.CURRENT:
        left: AssignmentEpochs = NO_EPOCHS
        group.set_member(
            member._replace(
                member_epoch=LEFT_EPOCH,
                previous_member_epoch=LEFT_EPOCH,
                assigned_partitions=left,
                partitions_pending_revocation=left,
            )
        )
    elif member.member_epoch != LEFT_EPOCH or member_id in group.target:
        raise SchemaException(f"member {member_id!r} of group {group.group_id!r} is deleted, but has an assignment")
    else:
        group.remove_member(member_id)


def _delete(groups: Groups, name: str, group: ConsumerGroup) -> None:
    if group.members or group.target or group.assignment_epoch != LEFT_EPOCH:
        raise SchemaException(f"group {name!r} is deleted, but still has members or an assignment")
    del groups.by_name[name]


RECORD_TYPES = (
    records.GROUP, records.SUBSCRIPTION_METADATA, records.MEMBER, records.TARGET, records.TARGET_MEMBER,
    records.CURRENT, records.REGEX,
)  # fmt: skip
