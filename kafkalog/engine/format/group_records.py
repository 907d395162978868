"""Committed offsets and classic groups, as `__consumer_offsets` holds them, with names and types.

Every other kind of group (consumer, share, streams) is a `CoordinatorRecord`: a dictionary by Kafka's field names.  The
default versions are those that Kafka 4.4.0 writes.  Source: GroupCoordinatorRecordHelpers, ConsumerProtocol (4.4.0).
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
    """The group and the partition to which a committed offset belongs."""

    group: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """The offset that a group has committed for a partition.

    `offset` is the next record to read.  Timestamps are milliseconds since 1970, or -1 for none.  `expire_timestamp` is
    set if a client requested its own retention.  `topic_id` has 22 characters, all A if it is not known.
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp: int = NO_TIMESTAMP
    expire_timestamp: int = NO_TIMESTAMP
    topic_id: str = ZERO_UUID


class GroupKey(NamedTuple):
    """The name of a classic group."""

    group: str


class GroupMember(NamedTuple):
    """A member of a classic group; `subscription` and `assignment` are bytes of its protocol."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadata(NamedTuple):
    """A classic group after a rebalance; a group without members is Empty."""

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
    """Returns a record's key and value; the value None deletes the offset.

    The default version is Kafka 4.4.0's: 4, or 1 if the offset has an expiry.  A version that cannot hold a field
    (expiry, leader epoch, topic id) drops it, as in Kafka.
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
_NOT_YET = {"groupInstanceId": 3, "rebalanceTimeout": 1}  # the first version that has the field


def encode_group_metadata(
    key: GroupKey, value: GroupMetadata | None, *, version: int = GROUP_METADATA_VERSION
) -> tuple[bytes, bytes | None]:
    """Returns a record's key and value; the value None deletes the group.  An older version drops fields it cannot
    hold."""
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
    # Version 0 has a single timeout, which Kafka uses for both.
    older = {"groupInstanceId": None, "rebalanceTimeout": fields["sessionTimeout"]}
    return GroupMember(*((older | fields)[name] for name in _MEMBER_NAMES.values()))


# --- any record of the topic ----------------------------------------------------------------------

GroupRecord = (
    tuple[OffsetKey, CommittedOffset | None] | tuple[GroupKey, GroupMetadata | None] | tuple[CoordinatorRecord, None]
)


def decode_group_record(key: Buffer | None, value: Buffer | None) -> GroupRecord:
    """Decodes a record of `__consumer_offsets` into its key and its value; the value None means deleted.

    Offsets and classic groups have typed keys and values.  For every other kind the first item is the whole record.
    Raises what `RecordSet.decode` raises.
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
    """The topics that a member of a consumer group subscribes to, and the partitions it owns, by topic.

    The generation is -1 if there is none.
    """

    topics: Sequence[str]
    user_data: bytes | None = None
    owned_partitions: Mapping[str, Sequence[int]] = NO_PARTITIONS
    generation: int = -1
    rack: str | None = None


class Assignment(NamedTuple):
    """The partitions that are assigned to a member of a consumer group, by topic."""

    partitions: Mapping[str, Sequence[int]]
    user_data: bytes | None = None


@functools.cache
def _consumer_protocol() -> dict[str, Schema]:
    return {schema.name: schema for schema in parse_schemas(coordinator_schemas.CONSUMER_PROTOCOL)}


def subscription_schema() -> Schema:
    """Returns the schema ConsumerProtocolSubscription; in the bytes, its version precedes it as an int16."""
    return _consumer_protocol()["ConsumerProtocolSubscription"]


def assignment_schema() -> Schema:
    """Returns the schema ConsumerProtocolAssignment; in the bytes, its version precedes it as an int16."""
    return _consumer_protocol()["ConsumerProtocolAssignment"]


def decode_versioned(schema: Schema, data: Buffer) -> tuple[int, Values]:
    """Returns (version, fields) of a struct that follows its version; also reads versions that are too new
    (`Schema.decode`)."""
    data = bytes(data)
    if len(data) < PREFIX.size:
        raise MessageException(f"{schema.name}: expected a version of 2 bytes, found {len(data)}", position=0)
    (version,) = PREFIX.unpack_from(data)
    return version, schema.decode(data, version, at=PREFIX.size)[0]


def encode_subscription(subscription: Subscription, *, version: int = CONSUMER_PROTOCOL_VERSION) -> bytes:
    """Returns the bytes of a member's `subscription`.  An older version drops fields it cannot hold."""
    fields: Values = {"topics": list(subscription.topics), "userData": subscription.user_data}
    if version >= 1:
        fields["ownedPartitions"] = listed(subscription.owned_partitions, "partitions")
    if version >= 2:
        fields["generationId"] = subscription.generation
    if version >= 3:
        fields["rackId"] = subscription.rack
    return _versioned(subscription_schema(), fields, version)


def decode_subscription(data: Buffer) -> Subscription:
    """Parses a member's `subscription`; raises MessageException for bytes that are not one."""
    _, fields = decode_versioned(subscription_schema(), data)
    return Subscription(
        topics=tuple(fields["topics"]),
        user_data=fields["userData"],
        owned_partitions=by_topic(fields.get("ownedPartitions", ()), "partitions"),
        generation=fields.get("generationId", -1),
        rack=fields.get("rackId"),
    )


def encode_assignment(assignment: Assignment, *, version: int = CONSUMER_PROTOCOL_VERSION) -> bytes:
    """Returns the bytes of a member's `assignment`."""
    fields = {"assignedPartitions": listed(assignment.partitions, "partitions"), "userData": assignment.user_data}
    return _versioned(assignment_schema(), fields, version)


def decode_assignment(data: Buffer) -> Assignment:
    """Parses a member's `assignment`; raises MessageException for bytes that are not one."""
    _, fields = decode_versioned(assignment_schema(), data)
    return Assignment(by_topic(fields["assignedPartitions"], "partitions"), fields["userData"])


def _versioned(schema: Schema, fields: Values, version: int) -> bytes:
    body = schema.encode(fields, version)
    return PREFIX.pack(version) + body
