"""Committed offsets and classic groups, as `__consumer_offsets` holds them, with names and types.

Every other kind of group (consumer, share, streams) is a `CoordinatorRecord`: a dictionary by Kafka's field names.
Source: GroupCoordinatorRecordHelpers, ConsumerProtocol (4.4.0); which versions are written is 4.4.0's choice.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.engine.format import coordinator_schemas
from kafkalog.engine.format.coordinator_records import PREFIX, CoordinatorRecord, by_topic, group_record_set, listed
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.message_reader import MessageException
from kafkalog.engine.format.messages import Schema, Values, parse_schemas

if TYPE_CHECKING:
    from typing_extensions import Buffer

LEGACY_OFFSET_COMMIT, OFFSET_COMMIT, GROUP_METADATA = 0, 1, 2
OFFSET_COMMIT_VERSION, OFFSET_COMMIT_EXPIRING_VERSION, GROUP_METADATA_VERSION = 4, 1, 3
NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1
CONSUMER_PROTOCOL_TYPE = "consumer"
CONSUMER_PROTOCOL_VERSION = 3
NO_PARTITIONS: Mapping[str, Sequence[int]] = {}


class OffsetKey(NamedTuple):
    """Whose offset, and of what."""

    group: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """What a group has committed for a partition.

    `offset` is that of the next record to read; timestamps are ms since 1970, -1 for none (`expire_timestamp` is set
    where a client asked for a retention of its own); `topic_id` are 22 characters, all A where it is not known.
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp: int = NO_TIMESTAMP
    expire_timestamp: int = NO_TIMESTAMP
    topic_id: str = ZERO_UUID


class GroupKey(NamedTuple):
    """A classic group's name."""

    group: str


class GroupMember(NamedTuple):
    """A member of a classic group; `subscription` and `assignment` are its protocol's bytes."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadata(NamedTuple):
    """A classic group after a rebalance; without members it is Empty."""

    protocol_type: str
    generation: int
    protocol: str | None = None
    leader: str | None = None
    current_state_timestamp: int = NO_TIMESTAMP
    members: tuple[GroupMember, ...] = ()


# --- offsets --------------------------------------------------------------------------------------


def encode_offset_commit(
    key: OffsetKey, value: CommittedOffset | None, *, version: int | None = None
) -> tuple[bytes, bytes | None]:
    """A record's key and value; None deletes the offset.

    Without `version` it is Kafka 4.4.0's: 4, or 1 where the offset has an expiry.  A version that cannot hold what is
    given (an expiry, a leader epoch, a topic id) drops it, as Kafka does.
    """
    records = group_record_set()
    encoded = records.encode_key(OFFSET_COMMIT, key._asdict())
    if value is None:
        return encoded, None
    if version is None:
        expires = value.expire_timestamp != NO_TIMESTAMP
        version = OFFSET_COMMIT_EXPIRING_VERSION if expires else OFFSET_COMMIT_VERSION
    fields: Values = {"offset": value.offset, "metadata": value.metadata, "commitTimestamp": value.commit_timestamp}
    if version >= 3:
        fields["leaderEpoch"] = value.leader_epoch
    if version == 1:
        fields["expireTimestamp"] = value.expire_timestamp
    if version >= 4:
        fields["topicId"] = value.topic_id
    return encoded, records.encode_value(OFFSET_COMMIT, fields, version)


def _committed(fields: Values) -> CommittedOffset:
    return CommittedOffset(
        offset=fields["offset"],
        leader_epoch=fields.get("leaderEpoch", NO_LEADER_EPOCH),
        metadata=fields["metadata"],
        commit_timestamp=fields["commitTimestamp"],
        expire_timestamp=fields.get("expireTimestamp", NO_TIMESTAMP),
        topic_id=fields.get("topicId", ZERO_UUID),
    )


# --- groups ---------------------------------------------------------------------------------------

_MEMBER_NAMES = {
    "member_id": "memberId",
    "group_instance_id": "groupInstanceId",
    "client_id": "clientId",
    "client_host": "clientHost",
    "rebalance_timeout_ms": "rebalanceTimeout",
    "session_timeout_ms": "sessionTimeout",
    "subscription": "subscription",
    "assignment": "assignment",
}
_NOT_YET = {"groupInstanceId": 3, "rebalanceTimeout": 1}  # the first version that has it


def encode_group_metadata(
    key: GroupKey, value: GroupMetadata | None, *, version: int = GROUP_METADATA_VERSION
) -> tuple[bytes, bytes | None]:
    """A record's key and value; None deletes the group.  An older version drops what it cannot hold."""
    records = group_record_set()
    encoded = records.encode_key(GROUP_METADATA, key._asdict())
    if value is None:
        return encoded, None
    fields: Values = {
        "protocolType": value.protocol_type,
        "generation": value.generation,
        "protocol": value.protocol,
        "leader": value.leader,
        "members": [
            {name: getattr(member, ours) for ours, name in _MEMBER_NAMES.items() if version >= _NOT_YET.get(name, 0)}
            for member in value.members
        ],
    }
    if version >= 2:
        fields["currentStateTimestamp"] = value.current_state_timestamp
    return encoded, records.encode_value(GROUP_METADATA, fields, version)


def _metadata(fields: Values) -> GroupMetadata:
    return GroupMetadata(
        protocol_type=fields["protocolType"],
        generation=fields["generation"],
        protocol=fields["protocol"],
        leader=fields["leader"],
        current_state_timestamp=fields.get("currentStateTimestamp", NO_TIMESTAMP),
        members=tuple(_member(each) for each in fields["members"]),
    )


def _member(fields: Values) -> GroupMember:
    # Version 0 knew one timeout: Kafka takes it for both.
    older = {"groupInstanceId": None, "rebalanceTimeout": fields["sessionTimeout"]}
    return GroupMember(*((older | fields)[name] for name in _MEMBER_NAMES.values()))


# --- any record of the topic ----------------------------------------------------------------------

GroupRecord = (
    tuple[OffsetKey, CommittedOffset | None] | tuple[GroupKey, GroupMetadata | None] | tuple[CoordinatorRecord, None]
)


def decode_group_record(key: Buffer | None, value: Buffer | None) -> GroupRecord:
    """A record of `__consumer_offsets`: what it is about, and what is so now (None: deleted).

    Offsets and classic groups have types of their own; for every other kind the first is the whole record.
    Errors are those of `RecordSet.decode`.
    """
    record = group_record_set().decode(key, value)
    fields = record.value
    if record.type in (LEGACY_OFFSET_COMMIT, OFFSET_COMMIT):
        return OffsetKey(**record.key), None if fields is None else _committed(fields)
    if record.type == GROUP_METADATA:
        return GroupKey(**record.key), None if fields is None else _metadata(fields)
    return record, None


# --- what members say -----------------------------------------------------------------------------


class Subscription(NamedTuple):
    """What a member of a consumer group asks for.  Partitions by topic; generation -1 for none."""

    topics: Sequence[str]
    user_data: bytes | None = None
    owned_partitions: Mapping[str, Sequence[int]] = NO_PARTITIONS
    generation: int = -1
    rack: str | None = None


class Assignment(NamedTuple):
    """What a member of a consumer group was given: partitions by topic."""

    partitions: Mapping[str, Sequence[int]]
    user_data: bytes | None = None


@functools.cache
def _consumer_protocol() -> dict[str, Schema]:
    return {schema.name: schema for schema in parse_schemas(coordinator_schemas.CONSUMER_PROTOCOL)}


def subscription_schema() -> Schema:
    """ConsumerProtocolSubscription; its bytes have an int16 in front, the version."""
    return _consumer_protocol()["ConsumerProtocolSubscription"]


def assignment_schema() -> Schema:
    """ConsumerProtocolAssignment; its bytes have an int16 in front, the version."""
    return _consumer_protocol()["ConsumerProtocolAssignment"]


def decode_versioned(schema: Schema, data: Buffer) -> tuple[int, Values]:
    """(version, fields) of a struct behind its version, also a version that is too new (`Schema.decode`)."""
    data = bytes(data)
    if len(data) < PREFIX.size:
        raise MessageException(f"{schema.name}: expected a version of 2 bytes, found {len(data)}", position=0)
    (version,) = PREFIX.unpack_from(data)
    return version, schema.decode(data, version, at=PREFIX.size)[0]


def encode_subscription(subscription: Subscription, *, version: int = CONSUMER_PROTOCOL_VERSION) -> bytes:
    """The bytes of a member's `subscription`.  An older version drops what it cannot hold."""
    fields: Values = {"topics": list(subscription.topics), "userData": subscription.user_data}
    if version >= 1:
        fields["ownedPartitions"] = listed(subscription.owned_partitions, "partitions")
    if version >= 2:
        fields["generationId"] = subscription.generation
    if version >= 3:
        fields["rackId"] = subscription.rack
    return _versioned(subscription_schema(), fields, version)


def decode_subscription(data: Buffer) -> Subscription:
    """A member's `subscription`; MessageException for bytes that are none."""
    _, fields = decode_versioned(subscription_schema(), data)
    return Subscription(
        topics=tuple(fields["topics"]),
        user_data=fields["userData"],
        owned_partitions=by_topic(fields.get("ownedPartitions", ()), "partitions"),
        generation=fields.get("generationId", -1),
        rack=fields.get("rackId"),
    )


def encode_assignment(assignment: Assignment, *, version: int = CONSUMER_PROTOCOL_VERSION) -> bytes:
    """The bytes of a member's `assignment`."""
    fields = {"assignedPartitions": listed(assignment.partitions, "partitions"), "userData": assignment.user_data}
    return _versioned(assignment_schema(), fields, version)


def decode_assignment(data: Buffer) -> Assignment:
    """A member's `assignment`; MessageException for bytes that are none."""
    _, fields = decode_versioned(assignment_schema(), data)
    return Assignment(by_topic(fields["assignedPartitions"], "partitions"), fields["userData"])


def _versioned(schema: Schema, fields: Values, version: int) -> bytes:
    body = schema.encode(fields, version)
    return PREFIX.pack(version) + body
