"""The groups in a partition of `__consumer_offsets`, and how they decide commits, deletions and expiry.

Each protocol has a class of groups, which its module puts into the table. A `ModernGroup` is a group of a protocol that
only a broker can run (streams). Its members and their epochs are known from records. That is enough to list it, and to
leave alone what belongs to members. The module knows no offsets. Not thread-safe: `GroupOffsets` holds its lock.

Source: Group, GroupMetadataManager.replay, StreamsGroup (4.4.0). In Kafka the state
of a streams group depends on topics, which are not read here; it is named as for a consumer group.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from kafkalog.engine.coordinator.java_order import TimelineHashMap
from kafkalog.engine.coordinator.state_log import KeyValue
from kafkalog.engine.format.coordinator_records import CoordinatorRecord, group_record_set
from kafkalog.engine.format.group_records import CommittedOffset, GroupMetadata
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import (
    GroupIdNotFoundException,
    GroupNotEmptyException,
    SchemaException,
    StaleMemberEpochException,
    UnknownMemberIdException,
    UnsupportedVersionException,
)

LEFT_EPOCH = -1
STABLE_MEMBER = 0
COMMITS_WITH_EPOCHS = 9  # the version of OffsetCommit


class GroupType(enum.Enum):
    """A group's protocol, by the name that Kafka's tools use."""

    CLASSIC = "Classic"
    CONSUMER = "Consumer"
    SHARE = "Share"
    STREAMS = "Streams"


class ListedGroup(NamedTuple):
    """A group as `kafka-consumer-groups --list --state` shows it. `protocol_type` is empty for a simple group."""

    group: str
    protocol_type: str
    state: str
    type: GroupType


class ListedMember(NamedTuple):
    """A member of a group as `kafka-consumer-groups --describe --members` shows it.

    `assignment`: its partitions, if it is known. A consumer group knows topics by their ids.
    """

    member_id: str
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...] = ()


class CommittingMember(NamedTuple):
    """A member that commits offsets. The generation (or epoch) is negative, and the id empty, if it is no member."""

    member_id: str = ""
    group_instance_id: str | None = None
    generation: int = -1
    api_version: int = 0


class CommitValidator(Protocol):
    """Checks one partition of a commit (KIP-1251). Raises StaleMemberEpochException."""

    def __call__(self, topic: str, topic_id: str, partition: int, /) -> None: ...


class Group(Protocol):
    """A group as the offsets see it."""

    type: GroupType

    @property
    def protocol_type(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def is_empty(self) -> bool: ...

    def listed_members(self) -> list[ListedMember]: ...

    def reads(self, topic: str) -> bool:
        """Returns whether members may be subscribed to the topic.

        Its offsets are then not deleted and do not expire.
        """
        ...

    def expires_after(self, offset: CommittedOffset) -> int | None:
        """Returns since when (in ms) an offset without an expiry time is unused; None if it does not expire now."""
        ...

    def tombstones(self, name: str) -> list[KeyValue]:
        """Returns the records that delete an empty group."""
        ...

    def without_members(self, name: str, now_ms: int) -> list[KeyValue]:
        """Returns the records that a broker writes after the last members have left."""
        ...

    def validate_offset_commit(self, member: CommittingMember, *, is_transactional: bool) -> CommitValidator | None:
        """Checks that a member may commit. Returns a check of each partition, None if all may be committed.

        Raises UnknownMemberIdException, IllegalGenerationException, StaleMemberEpochException,
        FencedInstanceIdException, RebalanceInProgressException, CoordinatorNotAvailableException, and
        GroupIdNotFoundException for a group without offsets.
        """
        ...

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Checks that a member may read offsets. Raises UnknownMemberIdException, StaleMemberEpochException and
        GroupIdNotFoundException."""
        ...

    def validate_offset_delete(self) -> None:
        """Checks that offsets may be deleted. Raises GroupNotEmptyException and GroupIdNotFoundException."""
        ...

    def validate_delete_group(self) -> None:
        """Checks that the group may be deleted. Raises GroupNotEmptyException and GroupIdNotFoundException."""
        ...


class Member:
    """A member of a group of a newer protocol. `epoch` is -1 once it has left."""

    __slots__ = ("client_host", "client_id", "epoch", "is_stable", "pattern", "topics")

    def __init__(self) -> None:
        self.client_id = ""
        self.client_host = ""
        self.epoch = 0
        self.is_stable = True
        self.topics: Collection[str] = ()
        self.pattern: str | None = None


class Role(enum.Enum):
    """The subject of a record of a newer protocol."""

    GROUP = "group"
    MEMBER = "member"
    TARGET = "target assignment"
    TARGET_MEMBER = "target assignment of a member"
    CURRENT = "assignment of a member"
    PATTERN = "regular expression"
    OTHER = "other"


class ModernGroup:
    """A group of a newer protocol."""

    __slots__ = ("assignment_epoch", "epoch", "members", "patterns", "targets", "type")

    def __init__(self, type: GroupType) -> None:
        self.type = type
        self.epoch = 0
        self.assignment_epoch = LEFT_EPOCH
        self.members: dict[str, Member] = {}
        self.targets: set[str] = set()
        self.patterns: dict[str, Collection[str]] = {}

    @property
    def protocol_type(self) -> str:
        return self.type.value.lower()

    @property
    def is_empty(self) -> bool:
        return not self.members

    def listed_members(self) -> list[ListedMember]:
        return [ListedMember(name, each.client_id, each.client_host) for name, each in self.members.items()]

    @property
    def state(self) -> str:
        if not self.members:
            return "Empty"
        if self.type is GroupType.SHARE:
            return "Stable"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        there = all(each.is_stable and each.epoch == self.assignment_epoch for each in self.members.values())
        return "Stable" if there else "Reconciling"

    def reads(self, topic: str) -> bool:
        if self.type is GroupType.STREAMS:
            return bool(self.members)
        return any(
            topic in each.topics or topic in self.patterns.get(each.pattern or "", ()) for each in self.members.values()
        )

    def expires_after(self, offset: CommittedOffset) -> int | None:
        return offset.commit_timestamp

    def tombstones(self, name: str) -> list[KeyValue]:
        patterns = [_row(16, None, groupId=name, regularExpression=each) for each in self.patterns]
        return [_row(6, None, groupId=name), *patterns, _row(4, None, groupId=name), _row(3, None, groupId=name)]

    def without_members(self, name: str, now_ms: int) -> list[KeyValue]:
        epoch = self.epoch + 1
        rows = [_row(type, None, groupId=name, memberId=each) for each in self.members for type in (8, 7, 5)]
        rows += [_row(16, None, groupId=name, regularExpression=each) for each in self.patterns]
        rows.append(_row(3, {"epoch": epoch, "metadataHash": 0}, groupId=name))  # the hash of no topics
        return [*rows, _row(6, {"assignmentEpoch": epoch, "assignmentTimestamp": 0}, groupId=name)]

    def validate_offset_commit(self, member: CommittingMember, *, is_transactional: bool) -> CommitValidator | None:
        self._check_has_offsets()
        if member.generation < 0 and self.is_empty:
            return None
        if is_transactional and member.generation == -1 and not member.member_id and member.group_instance_id is None:
            return None
        found = self._member(member.member_id)
        if not is_transactional and member.api_version < COMMITS_WITH_EPOCHS:
            raise UnsupportedVersionException(
                f"OffsetCommit version 9 or above must be used by members using the {self.protocol_type} group protocol"
            )
        _check_epoch(member.generation, found.epoch)
        return None

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        self._check_has_offsets()
        if member_id is not None or member_epoch >= 0:
            _check_epoch(member_epoch, self._member(member_id or "").epoch)

    def validate_offset_delete(self) -> None:
        self._check_has_offsets()

    def validate_delete_group(self) -> None:
        if not self.is_empty:
            raise has_members(self)

    def _check_has_offsets(self) -> None:
        if self.type is GroupType.SHARE:
            raise GroupIdNotFoundException("a share group has no committed offsets")

    def _member(self, member_id: str) -> Member:
        found = self.members.get(member_id)
        if found is None:
            raise UnknownMemberIdException(f"{member_id!r} is not a member of the group")
        return found


def _check_epoch(epoch: int, expected: int) -> None:
    if epoch != expected:
        raise StaleMemberEpochException(f"the member's epoch: found {epoch}, expected {expected}")


def has_members(group: Group) -> GroupNotEmptyException:
    """Returns the error for a group that has members."""
    return GroupNotEmptyException(
        f"the group has members and is {group.state}", hint="close its consumers while a broker runs"
    )


def _row(type: int, value: Values | None, **key: str) -> KeyValue:
    return group_record_set().encode(CoordinatorRecord(type, key, None if value is None else 0, value))


CONSUMER, SHARE, STREAMS = GroupType.CONSUMER, GroupType.SHARE, GroupType.STREAMS
ROLES: dict[int, tuple[GroupType, Role]] = {
    3: (CONSUMER, Role.GROUP),
    4: (CONSUMER, Role.OTHER),
    5: (CONSUMER, Role.MEMBER),
    6: (CONSUMER, Role.TARGET),
    7: (CONSUMER, Role.TARGET_MEMBER),
    8: (CONSUMER, Role.CURRENT),
    10: (SHARE, Role.MEMBER),
    11: (SHARE, Role.GROUP),
    12: (SHARE, Role.TARGET),
    13: (SHARE, Role.TARGET_MEMBER),
    14: (SHARE, Role.CURRENT),
    15: (SHARE, Role.OTHER),
    16: (CONSUMER, Role.PATTERN),
    17: (STREAMS, Role.GROUP),
    19: (STREAMS, Role.MEMBER),
    20: (STREAMS, Role.TARGET),
    21: (STREAMS, Role.TARGET_MEMBER),
    22: (STREAMS, Role.CURRENT),
    23: (STREAMS, Role.OTHER),
}


class Replayer(Protocol):
    """Replays one record of a protocol into the group that it is about."""

    def __call__(self, groups: Groups, record: CoordinatorRecord, /) -> None: ...


class ClassicGroupFactory(Protocol):
    """Makes a classic group from its record; None for a group that has only offsets."""

    def __call__(self, name: str, metadata: GroupMetadata | None, /) -> Group: ...


class Groups:
    """The groups by name. `replay` methods read the records in log order.

    They raise SchemaException for a record that contradicts those before it. A coordinator does not load such a
    partition.
    """

    def __init__(self, classic: ClassicGroupFactory, replayers: Mapping[int, Replayer]) -> None:
        """`replayers`: by the type of a record (`replays.REPLAYERS`); the others are read by `replay_modern`."""
        self.by_name: TimelineHashMap[Group] = TimelineHashMap()
        self._classic = classic
        self._replayers = replayers

    def replay_offset(self, group: str) -> None:
        """Replays a committed offset: the group exists, if only as a simple one."""
        if group not in self.by_name:
            self.by_name[group] = self._classic(group, None)

    def replay_classic(self, group: str, metadata: GroupMetadata | None) -> None:
        """Replays a GroupMetadata record."""
        if metadata is None:
            self.by_name.pop(group, None)
        else:
            self.by_name[group] = self._classic(group, metadata)

    def replay(self, record: CoordinatorRecord) -> None:
        """Replays any record of a newer protocol."""
        replayer = self._replayers.get(record.type)
        if replayer is None:
            self.replay_modern(record)
        else:
            replayer(self, record)

    def replay_modern(self, record: CoordinatorRecord) -> None:
        """Replays a record of a protocol that only a broker runs, into a ModernGroup."""
        type, role = ROLES[record.type]
        name: str = record.key["groupId"]
        group = self._modern(name, type, create=record.value is not None)
        if group is None or role is Role.OTHER:
            return
        if record.value is None:
            self._delete(name, group, role, record.key)
        else:
            _set(group, role, record.key, record.value)

    def _modern(self, name: str, type: GroupType, *, create: bool) -> ModernGroup | None:
        found = self.by_name.get(name)
        if isinstance(found, ModernGroup) and found.type is type:
            return found
        if found is None and not create:
            return None
        if found is not None and not (type is not SHARE and getattr(found, "is_simple", False)):
            raise SchemaException(
                f"group {name!r} is a {found.type.value.lower()} group, not a {type.value.lower()} one"
            )
        made = self.by_name[name] = ModernGroup(type)
        return made

    def _delete(self, name: str, group: ModernGroup, role: Role, key: Values) -> None:
        if role is Role.GROUP:
            if group.members or group.targets or group.assignment_epoch != LEFT_EPOCH:
                raise SchemaException(f"group {name!r} is deleted, but still has members or an assignment")
            del self.by_name[name]
        elif role is Role.TARGET:
            if group.targets:
                raise SchemaException(f"the assignment of group {name!r} is deleted, but still has members")
            group.assignment_epoch = LEFT_EPOCH
        elif role is Role.PATTERN:
            group.patterns.pop(key["regularExpression"], None)
        else:
            _delete_of_member(group, role, key)


def _set(group: ModernGroup, role: Role, key: Values, value: Values) -> None:
    if role is Role.GROUP:
        group.epoch = value["epoch"]
    elif role is Role.TARGET:
        group.assignment_epoch = value["assignmentEpoch"]
    elif role is Role.TARGET_MEMBER:
        group.targets.add(key["memberId"])
    elif role is Role.PATTERN:
        group.patterns[key["regularExpression"]] = tuple(value["topics"])
    else:
        member = group.members.setdefault(key["memberId"], Member())
        if role is Role.MEMBER:
            member.client_id, member.client_host = value["clientId"], value["clientHost"]
            member.topics = tuple(value.get("subscribedTopicNames") or ())
            member.pattern = value.get("subscribedTopicRegex")
        else:
            member.epoch = value["memberEpoch"]
            member.is_stable = value.get("state", STABLE_MEMBER) == STABLE_MEMBER


def _delete_of_member(group: ModernGroup, role: Role, key: Values) -> None:
    name: str = key["memberId"]
    member = group.members.get(name)
    if role is Role.TARGET_MEMBER:
        group.targets.discard(name)
    elif member is None:
        return
    elif role is Role.CURRENT:
        member.epoch = LEFT_EPOCH
    elif member.epoch != LEFT_EPOCH or name in group.targets:
        raise SchemaException(f"member {name!r} of group {key['groupId']!r} is deleted, but still has an assignment")
    else:
        del group.members[name]
