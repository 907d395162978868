"""A group of the classic protocol: its members, its state, and what follows from them.

The group is what its last record says, plus what only lives in memory: members that wait for others, members that are
expected, the state of a rebalance. The manager (`classic_groups.ClassicGroups`) changes it and writes the records; the
group writes nothing, completes no answer and sets no timer. Not thread-safe: the partition's lock is held.

Members are kept in the order of Java's HashMap, because records list them in it, and the first one becomes the leader.

Source: ClassicGroup, ClassicGroupMember, ClassicGroupState (4.4.0).
"""

from __future__ import annotations

import enum
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

from kafkalog._native.codec.java_hash import JavaHashMap, string_hash
from kafkalog.engine.coordinator.groups import (
    CommittingMember,
    CommitValidator,
    GroupType,
    ListedMember,
    has_members,
)
from kafkalog.engine.format.group_records import (
    CONSUMER_PROTOCOL_TYPE,
    NO_TIMESTAMP,
    CommittedOffset,
    GroupKey,
    GroupMember,
    GroupMetadata,
    decode_subscription,
    encode_group_metadata,
)
from kafkalog.engine.format.message_reader import MessageException
from kafkalog.errors import (
    CoordinatorNotAvailableException,
    FencedInstanceIdException,
    GroupIdNotFoundException,
    IllegalGenerationException,
    IllegalStateException,
    RebalanceInProgressException,
    SchemaException,
    UnknownMemberIdException,
)

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.state_log import KeyValue
    from kafkalog.engine.files import Clock
    from kafkalog.engine.format.messages import Values

NO_ASSIGNMENT = b""
Protocols = tuple[tuple[str, bytes], ...]  # names and metadata, the member's favourite first


class ClassicGroupState(enum.Enum):
    """The states of a classic group, by the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY, PREPARING, COMPLETING, STABLE, DEAD = ClassicGroupState
VALID_PREVIOUS: Mapping[ClassicGroupState, Collection[ClassicGroupState]] = {
    EMPTY: {PREPARING},
    PREPARING: {STABLE, COMPLETING, EMPTY},
    COMPLETING: {PREPARING},
    STABLE: {COMPLETING},
    DEAD: set(ClassicGroupState),
}


class ClassicGroupMember:
    """A member. `awaiting_join` and `awaiting_sync` are the answers that it waits for; `is_new` until it has joined."""

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "group_instance_id",
        "heartbeat_key",
        "is_new",
        "member_id",
        "protocol_type",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    # More than eight parameters: what a group's record says of a member.
    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocol_type: str,
        protocols: Protocols,
        assignment: bytes = NO_ASSIGNMENT,
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocol_type = protocol_type
        self.protocols = protocols
        self.assignment = assignment
        self.awaiting_join: Future[Values] | None = None
        self.awaiting_sync: Future[Values] | None = None
        self.is_new = False
        self.heartbeat_key = ""  # the key of its session's timer; set by the manager

    @property
    def is_static(self) -> bool:
        """Whether it has a `group.instance.id`."""
        return self.group_instance_id is not None

    @property
    def has_satisfied_heartbeat(self) -> bool:
        """Whether it is alive because it waits for an answer. A new member must come back in time, or it is removed."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def metadata(self, protocol: str | None) -> bytes:
        """Returns what the member said for a protocol. The group has selected it, so the member has it."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise IllegalStateException(f"member {self.member_id!r} does not support the protocol {protocol!r}")

    def vote(self, candidates: Collection[str]) -> str:
        """Returns the member's favourite among protocols that all members have."""
        return next(name for name, _ in self.protocols if name in candidates)


class ClassicGroup:
    """See the module. `metadata` is the group's last record; None for a group that has only offsets, or is new."""

    __slots__ = (
        "_protocol_type",
        "_static_members",
        "_subscribed_topics",
        "_supported",
        "awaiting_join_count",
        "clock",
        "current_state_timestamp",
        "generation",
        "leader_id",
        "members",
        "name",
        "new_member_added",
        "pending_join",
        "pending_sync",
        "previous_state",
        "protocol_name",
        "status",
    )

    type = GroupType.CLASSIC

    def __init__(self, name: str, clock: Clock, metadata: GroupMetadata | None = None) -> None:
        self.name = name
        self.clock = clock
        self.status = EMPTY
        self.previous_state = DEAD
        self.generation = 0
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.current_state_timestamp: int | None = None
        self.members: JavaHashMap[str, ClassicGroupMember] = JavaHashMap(string_hash)
        self.pending_join: set[str] = set()  # members that got an id, and must join with it
        self.pending_sync: set[str] = set()  # members that joined this generation, and did not ask for their assignment
        self.awaiting_join_count = 0
        self.new_member_added = False
        self._protocol_type: str | None = None
        self._static_members: dict[str, str] = {}
        self._supported: Counter[str] = Counter()
        self._subscribed_topics: Collection[str] | None = None
        if metadata is None:
            self.current_state_timestamp = clock.milliseconds()
        else:
            self._load(metadata)

    def _load(self, metadata: GroupMetadata) -> None:
        self.status = STABLE if metadata.members else EMPTY
        self.generation = metadata.generation
        self._protocol_type = metadata.protocol_type or None
        self.protocol_name = metadata.protocol
        self.leader_id = metadata.leader
        since = metadata.current_state_timestamp
        self.current_state_timestamp = None if since == NO_TIMESTAMP else since
        for each in metadata.members:
            if each.group_instance_id is not None and each.group_instance_id in self._static_members:
                raise SchemaException(f"two members of group {self.name!r} have the id {each.group_instance_id!r}")
            self.add(_loaded(each, metadata))
        self.subscribe()

    # --- as the offsets see it ------------------------------------------------------------------------

    @property
    def protocol_type(self) -> str:
        """The type of its members' protocols; empty if it never had members."""
        return self._protocol_type or ""

    @property
    def protocol_type_or_none(self) -> str | None:
        """Like `protocol_type`, but None if it never had members."""
        return self._protocol_type

    @property
    def state(self) -> str:
        """The name of its state."""
        return self.status.value

    @property
    def is_empty(self) -> bool:
        """Whether its state is Empty. A group that prepares a rebalance is not, even if all have left."""
        return self.status is EMPTY

    @property
    def is_simple(self) -> bool:
        """Whether it has only offsets: then another protocol may take over its name."""
        return self._protocol_type is None and self.is_empty and not self.pending_join

    @property
    def uses_consumer_protocol(self) -> bool:
        """Whether its members say which topics they read."""
        return self._protocol_type == CONSUMER_PROTOCOL_TYPE

    def listed_members(self) -> list[ListedMember]:
        """Returns its members, in Java's order."""
        return [ListedMember(each.member_id, each.client_id, each.client_host) for each in self.members.values()]

    def reads(self, topic: str) -> bool:
        """Returns whether members may be subscribed to the topic."""
        if self._subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self._subscribed_topics

    def expires_after(self, offset: CommittedOffset) -> int | None:
        """Returns since when (in ms) an offset without an expiry time is unused; None if it does not expire now."""
        if self._protocol_type is not None:
            if self.is_empty:
                since = self.current_state_timestamp
                return offset.commit_timestamp if since is None else since
            if not (self.uses_consumer_protocol and self._subscribed_topics is not None and self.status is STABLE):
                return None
        return offset.commit_timestamp

    def tombstones(self, name: str) -> list[KeyValue]:
        """Returns the record that deletes the group."""
        return [encode_group_metadata(GroupKey(name), None)]

    def without_members(self, name: str, now_ms: int) -> list[KeyValue]:
        """Returns the record that a broker writes after the last members have left."""
        if self.is_empty and self._protocol_type is None:
            return []
        left = GroupMetadata(self.protocol_type, self.generation + 1, None, None, now_ms)
        return [encode_group_metadata(GroupKey(name), left)]

    # --- checks ---------------------------------------------------------------------------------------

    def validate_member(self, member_id: str, group_instance_id: str | None) -> None:
        """Raises UnknownMemberIdException, and FencedInstanceIdException if another member has the static id."""
        if group_instance_id is not None:
            existing = self._static_members.get(group_instance_id)
            if existing is None:
                raise UnknownMemberIdException(f"group {self.name!r} has no member {group_instance_id!r}")
            if existing != member_id:
                raise FencedInstanceIdException(f"{existing!r} has taken over the id {group_instance_id!r}")
        if member_id not in self.members:
            raise UnknownMemberIdException(f"group {self.name!r} has no member {member_id!r}")

    def validate_offset_commit(self, member: CommittingMember, *, is_transactional: bool) -> CommitValidator | None:
        """Checks that a member may commit, as `Group` says. All partitions may be committed."""
        if self.status is DEAD:
            raise CoordinatorNotAvailableException(f"group {self.name!r} is dead")
        if member.generation < 0 and self.is_empty:
            return None
        if member.generation < 0 and not member.member_id and member.group_instance_id is None:
            if not is_transactional and not self.is_empty:
                raise UnknownMemberIdException(
                    f"group {self.name!r} has members and is {self.state}: only its members may commit",
                    hint="close its consumers while a broker runs, or remove its members (remove_members)",
                )
        else:
            self.validate_member(member.member_id, member.group_instance_id)
            if member.generation != self.generation:
                raise IllegalGenerationException(
                    f"group {self.name!r} is at generation {self.generation}, not {member.generation}"
                )
        if not is_transactional and self.status is COMPLETING:
            raise RebalanceInProgressException(f"group {self.name!r} is dividing its partitions")
        return None

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Checks that offsets may be read: always, except of a dead group."""
        self._check_alive()

    def validate_offset_delete(self) -> None:
        """Checks that offsets may be deleted: not while members have a protocol without topics."""
        self._check_alive()
        if not self.is_empty and not self.uses_consumer_protocol:
            raise has_members(self)

    def validate_delete_group(self) -> None:
        """Checks that the group may be deleted."""
        self._check_alive()
        if not self.is_empty:
            raise has_members(self)

    def _check_alive(self) -> None:
        if self.status is DEAD:
            raise GroupIdNotFoundException(f"group {self.name!r} is dead")

    # --- members --------------------------------------------------------------------------------------

    def is_leader(self, member_id: str) -> bool:
        """Returns whether the member divides the partitions."""
        return self.leader_id is not None and self.leader_id == member_id

    def static_member_id(self, group_instance_id: str) -> str | None:
        """Returns the id of the member that has a static id."""
        return self._static_members.get(group_instance_id)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest time that a member may take to join again."""
        return max((each.rebalance_timeout_ms for each in self.members.values()), default=0)

    @property
    def has_all_members_joined(self) -> bool:
        """Whether nobody is expected any more."""
        return len(self.members) == self.awaiting_join_count and not self.pending_join

    def not_yet_rejoined(self) -> list[ClassicGroupMember]:
        """Returns the members that do not wait for the next generation."""
        return [each for each in self.members.values() if each.awaiting_join is None]

    def add(self, member: ClassicGroupMember, answer: Future[Values] | None = None) -> None:
        """Adds a member, which waits for `answer`. It is not there, and has a protocol in common with the others."""
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self._static_members, member.group_instance_id
            self._static_members[member.group_instance_id] = member.member_id
        if not self.members:
            self._protocol_type = member.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._supported.update(name for name, _ in member.protocols)
        member.awaiting_join = answer
        if answer is not None:
            self.awaiting_join_count += 1
        self.pending_join.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Removes a member, or a member that was expected. If it was the leader, another one takes over."""
        removed = self.members.pop(member_id, None)
        if removed is not None:
            self._supported.subtract(name for name, _ in removed.protocols)
            if removed.awaiting_join is not None:
                self.awaiting_join_count -= 1
            if removed.group_instance_id is not None:
                self._static_members.pop(removed.group_instance_id, None)
        if self.is_leader(member_id):
            self.leader_id = next(iter(self.members), None)
        self.pending_join.discard(member_id)
        self.pending_sync.discard(member_id)

    def replace_static_member(self, group_instance_id: str, old_id: str, new_id: str) -> ClassicGroupMember:
        """Lets a new member take over a static id. Returns it. The old one's answers are completed already."""
        old = self.members.pop(old_id)
        assert old.awaiting_join is None, old_id
        assert old.awaiting_sync is None, old_id
        made = ClassicGroupMember(
            new_id,
            old.group_instance_id,
            old.client_id,
            old.client_host,
            old.rebalance_timeout_ms,
            old.session_timeout_ms,
            old.protocol_type,
            old.protocols,
            old.assignment,
        )
        self.members[new_id] = made
        if self.is_leader(old_id):
            self.leader_id = new_id
        self._static_members[group_instance_id] = new_id
        return made

    def update_member(
        self,
        member: ClassicGroupMember,
        protocols: Protocols,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        answer: Future[Values] | None,
    ) -> None:
        """Changes what a member said when it joined; it now waits for `answer`."""
        self._supported.subtract(name for name, _ in member.protocols)
        member.protocols = protocols
        self._supported.update(name for name, _ in protocols)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms
        self.awaiting_join_count += (answer is not None) - (member.awaiting_join is not None)
        member.awaiting_join = answer

    def take_join(self, member: ClassicGroupMember) -> Future[Values] | None:
        """Returns the answer that a member waits for, which the caller completes; None if there is none."""
        answer = member.awaiting_join
        if answer is not None:
            member.awaiting_join = None
            self.awaiting_join_count -= 1
        return answer

    def take_sync(self, member: ClassicGroupMember) -> Future[Values] | None:
        """Like `take_join`, for the answer of SyncGroup."""
        answer = member.awaiting_sync
        member.awaiting_sync = None
        return answer

    def elect_joined_leader(self) -> bool:
        """Returns whether the leader has joined; if it has not, a member that has joined takes over."""
        if self.leader_id is None:
            return False
        if self.members[self.leader_id].awaiting_join is not None:
            return True
        for each in self.members.values():
            if each.awaiting_join is not None:
                self.leader_id = each.member_id
                return True
        return False

    def new_member_id(self, client_id: str, group_instance_id: str | None) -> str:
        """Returns an id that nobody has."""
        return f"{client_id if group_instance_id is None else group_instance_id}-{uuid.uuid4()}"

    # --- protocols and states -------------------------------------------------------------------------

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Returns whether a member with these protocols can join: it has one in common with all members."""
        names = list(names)
        if self.is_empty:
            return bool(protocol_type) and bool(names)
        count = len(self.members)
        return self._protocol_type == protocol_type and any(self._supported[name] == count for name in names)

    def select_protocol(self) -> str:
        """Returns the protocol that most members vote for, among those that all have."""
        count = len(self.members)
        candidates = {name for name, votes in self._supported.items() if votes == count}
        votes: JavaHashMap[str, int] = JavaHashMap(string_hash)
        for each in self.members.values():
            choice = each.vote(candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes.items(), key=lambda entry: entry[1])[0]  # the first of equals, as in Java

    def can_rebalance(self) -> bool:
        """Returns whether a rebalance may begin now."""
        return self.status in VALID_PREVIOUS[PREPARING]

    def transition_to(self, state: ClassicGroupState) -> None:
        """Changes the state."""
        assert self.status in VALID_PREVIOUS[state], (self.status, state)
        self.previous_state = self.status
        self.status = state
        self.current_state_timestamp = self.clock.milliseconds()

    def init_next_generation(self) -> None:
        """Begins the next generation, with the members that have joined."""
        self.generation += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribe()
        self.transition_to(COMPLETING if self.members else EMPTY)
        self.pending_sync.clear()

    def subscribe(self) -> None:
        """Computes the topics that its members read."""
        self._subscribed_topics = self._topics()

    def _topics(self) -> Collection[str] | None:
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return ()
        if self.protocol_name is None:
            return None
        try:
            told = [decode_subscription(each.metadata(self.protocol_name)) for each in self.members.values()]
        except MessageException:
            return None  # Kafka warns, and assumes that the group reads every topic
        return {topic for each in told for topic in each.topics}

    def joined_members(self) -> list[Values]:
        """Returns the members as the leader sees them, in the answer to JoinGroup."""
        assert self.status not in (DEAD, PREPARING), self.status
        return [
            {
                "memberId": each.member_id,
                "groupInstanceId": each.group_instance_id,
                "metadata": each.metadata(self.protocol_name),
            }
            for each in self.members.values()
        ]

    # --- its record -----------------------------------------------------------------------------------

    def assignments(self) -> dict[str, bytes]:
        """Returns the members' assignments, by id."""
        return {each.member_id: each.assignment for each in self.members.values()}

    def record(self, assignments: Mapping[str, bytes]) -> KeyValue:
        """Returns the group's record, with these assignments."""
        members = tuple(
            GroupMember(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                each.rebalance_timeout_ms,
                each.session_timeout_ms,
                each.metadata(self.protocol_name),
                assignments[each.member_id],
            )
            for each in self.members.values()
        )
        value = GroupMetadata(
            self.protocol_type, self.generation, self.protocol_name, self.leader_id, self._since(), members
        )
        return encode_group_metadata(GroupKey(self.name), value)

    def empty_record(self) -> KeyValue:
        """Returns the first record of a group, before it has members."""
        return encode_group_metadata(GroupKey(self.name), GroupMetadata("", 0, None, None, self._since()))

    def _since(self) -> int:
        return NO_TIMESTAMP if self.current_state_timestamp is None else self.current_state_timestamp


def _loaded(member: GroupMember, metadata: GroupMetadata) -> ClassicGroupMember:
    rebalance_ms = member.rebalance_timeout_ms
    return ClassicGroupMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        member.session_timeout_ms if rebalance_ms == -1 else rebalance_ms,
        member.session_timeout_ms,
        metadata.protocol_type,
        ((metadata.protocol or "", member.subscription),),
        member.assignment,
    )
