"""A share group (KIP-932): its members, what each should read, and which partitions have a state.

The state changes only by records: `replay` applies one. Members come and go without handing over: a partition may have
several members, so a member gets its target at once. A partition is given to members only once the share coordinator
has its state. `StatePartitions` says so: topics are initializing while it is asked, then initialized, and deleting
while their states are deleted.

It knows no requests and no timers (`share_groups`). Not thread-safe: the partition's lock is held. Source: ShareGroup,
ShareGroupMember, GroupMetadataManager.replay, GroupCoordinatorRecordHelpers (4.4.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kafkalog._native.codec.java_hash import JavaHashMap
from kafkalog.engine.coordinator.assigned_group import AssignedGroup
from kafkalog.engine.coordinator.assignors import SubscriptionType
from kafkalog.engine.coordinator.groups import (
    LEFT_EPOCH,
    CommittingMember,
    CommitValidator,
    Groups,
    GroupType,
)
from kafkalog.engine.coordinator.java_order import (
    NO_ASSIGNMENT,
    NO_NAMES,
    Assignment,
    Names,
    Partitions,
    TimelineHashMap,
    name_map,
    name_set,
    partition_set,
    string_order,
    topic_map,
)
from kafkalog.engine.coordinator.state_log import KeyValue
from kafkalog.engine.format.coordinator_records import CoordinatorRecord, group_record_set
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.messages import Values
from kafkalog.errors import (
    GroupIdNotFoundException,
    GroupNotEmptyException,
    SchemaException,
)

MEMBER, GROUP, TARGET, TARGET_MEMBER, CURRENT, STATE_PARTITIONS = 10, 11, 12, 13, 14, 15
STABLE_STATE = 0
EMPTY, STABLE = "Empty", "Stable"


class ShareGroupMember(NamedTuple):
    """A member, which is replaced as a whole."""

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: Names = NO_NAMES
    state: int = STABLE_STATE
    assigned_partitions: Assignment = NO_ASSIGNMENT

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """Returns whether the member has the target of this epoch."""
        return self.state == STABLE_STATE and self.member_epoch == assignment_epoch


class TopicPartitions(NamedTuple):
    """Partitions of a topic, in the order of a HashSet. Kafka's name: InitMapValue."""

    name: str
    partitions: Partitions


StateTopics = Mapping[str, TopicPartitions]  # by topic id, in the order of a HashMap
NO_TOPICS: StateTopics = {}


class StatePartitions(NamedTuple):
    """Which partitions have a state. `deleting`: names by topic id."""

    initializing: StateTopics = NO_TOPICS
    initialized: StateTopics = NO_TOPICS
    deleting: Mapping[str, str] = {}


Subscriptions = Mapping[str, int]  # how many members name a topic


class ShareGroup(AssignedGroup[ShareGroupMember]):
    """See the module."""

    type = GroupType.SHARE
    protocol_type = "share"

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.subscriptions: TimelineHashMap[int] = TimelineHashMap()
        self.state_partitions: StatePartitions | None = None  # None: there is no such record
        self.state_partitions_ms: int | None = None  # when its record was replayed; None: not noted yet
        self._has_new_partitions: bool | None = None  # None: to be found again

    # --- what others ask of any group -------------------------------------------------------------------

    @property
    def state(self) -> str:
        return STABLE if self.members else EMPTY

    def expires_after(self, offset: CommittedOffset) -> int | None:
        return None

    def tombstones(self, name: str) -> list[KeyValue]:
        members = [each for each, _ in self.members.in_order()]
        rows = [row(CURRENT, None, groupId=name, memberId=each) for each in members]
        rows += [row(TARGET_MEMBER, None, groupId=name, memberId=each) for each in members]
        rows.append(row(TARGET, None, groupId=name))
        rows += [row(MEMBER, None, groupId=name, memberId=each) for each in members]
        return [*rows, row(STATE_PARTITIONS, None, groupId=name), row(GROUP, None, groupId=name)]

    def without_members(self, name: str, now_ms: int) -> list[KeyValue]:
        epoch = self.group_epoch + 1
        rows = [each for member, _ in self.members.in_order() for each in removed_rows(name, member)]
        return [*rows, epoch_row(name, epoch, 0), target_row(name, epoch, 0)]

    def validate_offset_commit(self, member: CommittingMember, *, is_transactional: bool) -> CommitValidator | None:
        raise self._has_no_offsets()

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        raise self._has_no_offsets()

    def validate_offset_delete(self) -> None:
        raise self._has_no_offsets()

    def _has_no_offsets(self) -> GroupIdNotFoundException:
        return GroupIdNotFoundException(f"Group {self.group_id} is not a consumer group.")

    def validate_delete_group(self) -> None:
        if self.members:
            raise GroupNotEmptyException("The group is not empty.")

    # --- what requests ask ------------------------------------------------------------------------------

    def subscriptions_with(self, old: ShareGroupMember | None, new: ShareGroupMember | None) -> Subscriptions:
        """Returns `subscriptions` as it will be after the change of a member."""
        counts: JavaHashMap[str, int] = name_map(copy_capacity(len(self.subscriptions)))
        for name, count in self.subscriptions.in_order():
            counts[name] = count
        _count(counts, old, new)
        return counts

    @property
    def has_new_partitions(self) -> bool:
        """Whether members wait for partitions that are initialized by now."""
        if self._has_new_partitions is None:
            self._has_new_partitions = self._find_new_partitions()
        return self._has_new_partitions

    def _find_new_partitions(self) -> bool:
        if self.state_partitions is None or not self.subscriptions:
            return False
        assigned: dict[str, set[int]] = {}
        for target in self.target.values():
            for topic_id, partitions in target.items():
                assigned.setdefault(topic_id, set()).update(partitions)
        return any(
            each.name in self.subscriptions and assigned.get(topic_id) != set(each.partitions)
            for topic_id, each in self.state_partitions.initialized.items()
        )

    # --- changes, by records ----------------------------------------------------------------------------

    def set_target(self, member_id: str, target: Assignment) -> None:
        """Sets what a member should have."""
        self.target[member_id] = target
        self._has_new_partitions = None

    def remove_target(self, member_id: str) -> None:
        """Forgets what a member should have."""
        self.target.pop(member_id, None)
        self._has_new_partitions = None

    def set_state_partitions(self, state: StatePartitions | None) -> None:
        """Sets which partitions have a state."""
        self.state_partitions = state
        self._has_new_partitions = None
        if state is not None:
            self.state_partitions_ms = None

    def set_member(self, member: ShareGroupMember) -> None:
        """Adds or replaces a member."""
        old = self.members.get(member.member_id)
        self.members[member.member_id] = member
        self._counted(old, member)

    def remove_member(self, member_id: str) -> None:
        """Removes a member."""
        self._counted(self.members.pop(member_id), None)

    def _counted(self, old: ShareGroupMember | None, new: ShareGroupMember | None) -> None:
        _count(self.subscriptions, old, new)
        self.subscription_type = subscription_type(self.subscriptions, len(self.members))
        self._has_new_partitions = None


def copy_capacity(size: int) -> int:
    """The capacity of new HashMap<>(map)."""
    return int(size / 0.75 + 1.0) if size else 16


def _count(counts: dict[str, int], old: ShareGroupMember | None, new: ShareGroupMember | None) -> None:
    for member, by in ((old, -1), (new, 1)):
        for topic in () if member is None else member.subscribed_topic_names:
            count = counts.get(topic, 0) + by
            if count == 1 and by > 0 and isinstance(counts, JavaHashMap):
                counts.compute_if_absent(topic, lambda: 1)
            elif count > 0:
                counts[topic] = count
            else:
                counts.pop(topic, None)


def named_topics(subscriptions: Subscriptions) -> Iterable[str]:
    """Returns the topics of `ShareGroup.subscriptions` or of `subscriptions_with`, in Kafka's order."""
    if isinstance(subscriptions, TimelineHashMap):
        return [name for name, _ in subscriptions.in_order()]
    return subscriptions


def subscription_type(subscriptions: Subscriptions, member_count: int) -> SubscriptionType:
    """Returns whether all members name the same topics."""
    is_same = all(each == member_count for each in subscriptions.values())
    return SubscriptionType.HOMOGENEOUS if is_same else SubscriptionType.HETEROGENEOUS


# --- topics with states -----------------------------------------------------------------------------------------------


def combined(one: StateTopics, other: StateTopics) -> StateTopics:
    """Returns the partitions of both; a topic's name is that of the second. Kafka's name: combineInitMaps."""
    ids: JavaHashMap[str, None] = topic_map(max(int(len(one) / 0.75) + 1, 16))
    for topic_id in (*one, *other):
        ids[topic_id] = None
    found: JavaHashMap[str, TopicPartitions] = topic_map()
    for topic_id in ids:
        first, second = one.get(topic_id), other.get(topic_id)
        partitions = partition_set(() if first is None else first.partitions)
        assert isinstance(partitions, JavaHashMap)
        for each in () if second is None else second.partitions:
            partitions[each] = None
        named = second or first
        assert named is not None, topic_id
        found[topic_id] = TopicPartitions(named.name, partitions)
    return found


def without(topics: StateTopics, gone: Mapping[str, Iterable[int]]) -> StateTopics:
    """Returns topics without some partitions; a topic without any left is removed."""
    found: JavaHashMap[str, TopicPartitions] = topic_map()
    for topic_id, (name, partitions) in topics.items():
        left = partition_set(partitions.keys())
        assert isinstance(left, JavaHashMap)
        for each in gone.get(topic_id, ()):
            left.pop(each, None)
        if left or topic_id not in gone:
            found[topic_id] = TopicPartitions(name, left)
    return found


# --- records ----------------------------------------------------------------------------------------------------------


def row(type: int, value: Values | None, **key: str) -> KeyValue:
    """Returns a record of type 10 to 15."""
    return group_record_set().encode(CoordinatorRecord(type, key, None if value is None else 0, value))


def member_row(group: str, member: ShareGroupMember) -> KeyValue:
    """Returns the record of what a member says of itself."""
    value = {
        "rackId": member.rack_id,
        "clientId": member.client_id,
        "clientHost": member.client_host,
        "subscribedTopicNames": sorted(member.subscribed_topic_names, key=string_order),
    }
    return row(MEMBER, value, groupId=group, memberId=member.member_id)


def epoch_row(group: str, epoch: int, metadata_hash: int) -> KeyValue:
    """Returns the record of a group epoch."""
    return row(GROUP, {"epoch": epoch, "metadataHash": metadata_hash}, groupId=group)


def target_row(group: str, epoch: int, timestamp_ms: int) -> KeyValue:
    """Returns the record of a target's epoch."""
    return row(TARGET, {"assignmentEpoch": epoch, "assignmentTimestamp": timestamp_ms}, groupId=group)


def target_member_row(group: str, member_id: str, target: Assignment) -> KeyValue:
    """Returns the record of what a member should have."""
    return row(TARGET_MEMBER, {"topicPartitions": listed(target)}, groupId=group, memberId=member_id)


def current_row(group: str, member: ShareGroupMember) -> KeyValue:
    """Returns the record of what a member has."""
    value = {
        "memberEpoch": member.member_epoch,
        "previousMemberEpoch": member.previous_member_epoch,
        "state": member.state,
        "assignedPartitions": listed(member.assigned_partitions),
    }
    return row(CURRENT, value, groupId=group, memberId=member.member_id)


def removed_rows(group: str, member_id: str) -> list[KeyValue]:
    """Returns the records that remove a member."""
    return [row(each, None, groupId=group, memberId=member_id) for each in (CURRENT, TARGET_MEMBER, MEMBER)]


def state_partitions_row(group: str, state: StatePartitions) -> KeyValue:
    """Returns the record of which partitions have a state."""
    value = {
        "initializingTopics": _with_names(state.initializing),
        "initializedTopics": _with_names(state.initialized),
        "deletingTopics": [{"topicId": topic_id, "topicName": name} for topic_id, name in state.deleting.items()],
    }
    return row(STATE_PARTITIONS, value, groupId=group)


def _with_names(topics: StateTopics) -> list[Values]:
    return [
        {"topicId": topic_id, "topicName": name, "partitions": list(partitions)}
        for topic_id, (name, partitions) in topics.items()
    ]


def listed(assignment: Assignment) -> list[Values]:
    """Returns an assignment as structs, as records and responses have them."""
    return [{"topicId": topic_id, "partitions": list(partitions)} for topic_id, partitions in assignment.items()]


def _assignment(structs: list[Values]) -> Assignment:
    found: JavaHashMap[str, Partitions] = topic_map()
    for each in structs:
        found[each["topicId"]] = partition_set(each["partitions"])
    return found


def _state_topics(structs: list[Values]) -> StateTopics:
    found: JavaHashMap[str, TopicPartitions] = topic_map()
    for each in structs:
        found[each["topicId"]] = TopicPartitions(each["topicName"], partition_set(each["partitions"]))
    return found


# --- replay -----------------------------------------------------------------------------------------------------------


def replay(groups: Groups, record: CoordinatorRecord, /) -> None:
    """Replays a record of a share group. Raises SchemaException for one that contradicts those before it."""
    name: str = record.key["groupId"]
    found = groups.by_name.get(name)
    if found is None and record.value is None:
        return
    if found is None:
        found = groups.by_name[name] = ShareGroup(name)
    if not isinstance(found, ShareGroup):
        raise SchemaException(f"group {name!r} is a {found.type.value.lower()} group, not a share one")
    if record.value is not None:
        _set(found, record.type, record.key, record.value)
    elif record.type == GROUP:
        if found.members or found.target or found.assignment_epoch != LEFT_EPOCH:
            raise SchemaException(f"group {name!r} is deleted, but still has members or an assignment")
        del groups.by_name[name]
    else:
        _unset(found, record.type, record.key)


def _set(group: ShareGroup, type: int, key: Values, value: Values) -> None:
    if type == GROUP:
        group.group_epoch, group.metadata_hash = value["epoch"], value["metadataHash"]
    elif type == TARGET:
        group.assignment_epoch = value["assignmentEpoch"]
        group.assignment_timestamp_ms = value["assignmentTimestamp"]
    elif type == TARGET_MEMBER:
        group.set_target(key["memberId"], _assignment(value["topicPartitions"]))
    elif type == STATE_PARTITIONS:
        deleting: JavaHashMap[str, str] = topic_map()
        for each in value["deletingTopics"]:
            deleting[each["topicId"]] = each["topicName"]
        initializing, initialized = (
            _state_topics(value["initializingTopics"]),
            _state_topics(value["initializedTopics"]),
        )
        group.set_state_partitions(StatePartitions(initializing, initialized, deleting))
    else:
        member_id: str = key["memberId"]
        member = group.members.get(member_id) or ShareGroupMember(member_id)
        group.set_member(_told(member, value) if type == MEMBER else _got(member, value))


def _told(member: ShareGroupMember, value: Values) -> ShareGroupMember:
    return member._replace(
        rack_id=value["rackId"],
        client_id=value["clientId"],
        client_host=value["clientHost"],
        subscribed_topic_names=name_set(value["subscribedTopicNames"]),
    )


def _got(member: ShareGroupMember, value: Values) -> ShareGroupMember:
    return member._replace(
        member_epoch=value["memberEpoch"],
        previous_member_epoch=value["previousMemberEpoch"],
        state=value["state"],
        assigned_partitions=_assignment(value["assignedPartitions"]),
    )


def _unset(group: ShareGroup, type: int, key: Values) -> None:
    if type == STATE_PARTITIONS:
        group.set_state_partitions(None)
    elif type == TARGET:
        if group.target:
            raise SchemaException(f"the assignment of group {group.group_id!r} is deleted, but still has members")
        group.assignment_epoch, group.assignment_timestamp_ms = LEFT_EPOCH, 0
    elif type == TARGET_MEMBER:
        group.remove_target(key["memberId"])
    elif key["memberId"] in group.members:
        _unset_member(group, type, key["memberId"])


def _unset_member(group: ShareGroup, type: int, member_id: str) -> None:
    member = group.members[member_id]
    if type == CURRENT:
        group.set_member(
            member._replace(
                member_epoch=LEFT_EPOCH, previous_member_epoch=LEFT_EPOCH, assigned_partitions=NO_ASSIGNMENT
            )
        )
    elif member.member_epoch != LEFT_EPOCH or member_id in group.target:
        raise SchemaException(f"member {member_id!r} of group {group.group_id!r} is deleted, but has an assignment")
    else:
        group.remove_member(member_id)


RECORD_TYPES = (MEMBER, GROUP, TARGET, TARGET_MEMBER, CURRENT, STATE_PARTITIONS)
