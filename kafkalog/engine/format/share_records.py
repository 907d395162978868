"""The records of `__share_group_state`: how far a share group has come in one partition of a topic.

A ShareSnapshot has the whole state of a partition, a ShareUpdate what changed since then. A ShareSnapshot without a
value deletes the state. Source: ShareGroupOffset, ShareCoordinatorRecordHelpers, PersisterStateBatch (4.4.0).
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.engine.format.coordinator_records import share_record_set
from kafkalog.engine.format.messages import Values
from kafkalog.errors import SchemaException

if TYPE_CHECKING:
    from typing_extensions import Buffer

SNAPSHOT, UPDATE = 0, 1  # types of records
RECORD_VERSION = 0
NO_OFFSET = -1
NO_COUNT = -1
NO_TIMESTAMP = 0


class SharePartitionKey(NamedTuple):
    """A partition of a topic in a share group. `topic_id` is a Uuid of 22 characters."""

    group: str
    topic_id: str
    partition: int


class PersisterStateBatch(NamedTuple):
    """The offsets `first_offset` to `last_offset`, both included, which have one state and one delivery count."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class ShareGroupOffset(NamedTuple):
    """The state of a share partition. `start_offset` is -1 until it is known; the timestamps are in ms."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    state_batches: tuple[PersisterStateBatch, ...] = ()
    create_timestamp: int = NO_TIMESTAMP
    write_timestamp: int = NO_TIMESTAMP


class ShareRecord(NamedTuple):
    """A record. `value` is None if it deletes the state; then `type` is SNAPSHOT.

    An UPDATE has no state epoch and no timestamps: they are 0.
    """

    type: int
    key: SharePartitionKey
    value: ShareGroupOffset | None


def batch_values(batches: tuple[PersisterStateBatch, ...]) -> list[Values]:
    """Returns state batches as structs, whose fields have the same names in records, requests and responses."""
    return [
        {"firstOffset": first, "lastOffset": last, "deliveryState": state, "deliveryCount": count}
        for first, last, state, count in batches
    ]


def state_batches(structs: list[Values]) -> tuple[PersisterStateBatch, ...]:
    """Converts the structs of `batch_values` back."""
    return tuple(
        PersisterStateBatch(each["firstOffset"], each["lastOffset"], each["deliveryState"], each["deliveryCount"])
        for each in structs
    )


# The layouts of the values. Acknowledgements write them, so they do not go through the tables.
_SNAPSHOT = "hiiiqqq"  # version, snapshot, state and leader epoch, start offset, two timestamps
_UPDATE = "hiiq"  # version, snapshot and leader epoch, start offset
_BATCH = "qqbhB"  # a batch, and no tagged fields
_COUNT = "BBBi"  # one tagged field: tag 0 of 4 bytes
_NO_TAGS = "B"
_SHORT_ARRAY_MAX = 126  # batches whose number, and one, is one byte


@functools.lru_cache(maxsize=_SHORT_ARRAY_MAX)
def _layout(type: int, count: int, tags: str) -> struct.Struct:
    return struct.Struct(">" + (_SNAPSHOT if type == SNAPSHOT else _UPDATE) + "B" + _BATCH * count + tags)


_ONE_BATCH = _layout(UPDATE, 1, _COUNT)  # the value of most acknowledgements


@functools.lru_cache(maxsize=1 << 12)
def _key(type: int, key: SharePartitionKey) -> bytes:
    fields = {"groupId": key.group, "topicId": key.topic_id, "partition": key.partition}
    return share_record_set().encode_key(type, fields)


def encode_share_record(record: ShareRecord) -> tuple[bytes, bytes | None]:
    """Returns a record's key and value, as Kafka writes them. IllegalArgumentException for a number out of range."""
    key, value = _key(record.type, record.key), record.value
    if value is None:
        return key, None
    batches = value.state_batches
    try:
        if len(batches) <= _SHORT_ARRAY_MAX:
            return key, _packed(record.type, value)
    except struct.error:
        pass  # the tables tell what is wrong
    return key, share_record_set().encode_value(record.type, _fields(record.type, value), RECORD_VERSION)


def _packed(type: int, value: ShareGroupOffset) -> bytes:
    epoch, state_epoch, leader_epoch, start, count, batches, created, written = value
    if type == UPDATE and len(batches) == 1 and count != NO_COUNT:
        return _ONE_BATCH.pack(RECORD_VERSION, epoch, leader_epoch, start, 2, *batches[0], 0, 1, 0, 4, count)
    fields: list[int] = [RECORD_VERSION, epoch]
    fields += (state_epoch, leader_epoch, start, created, written) if type == SNAPSHOT else (leader_epoch, start)
    fields.append(len(batches) + 1)
    for each in batches:
        fields += (*each, 0)
    fields += (0,) if count == NO_COUNT else (1, 0, 4, count)
    return _layout(type, len(batches), _NO_TAGS if count == NO_COUNT else _COUNT).pack(*fields)


def _fields(type: int, value: ShareGroupOffset) -> Values:
    fields = {
        "snapshotEpoch": value.snapshot_epoch,
        "leaderEpoch": value.leader_epoch,
        "startOffset": value.start_offset,
        "deliveryCompleteCount": value.delivery_complete_count,
        "stateBatches": batch_values(value.state_batches),
    }
    if type == SNAPSHOT:
        fields["stateEpoch"] = value.state_epoch
        fields["createTimestamp"] = value.create_timestamp
        fields["writeTimestamp"] = value.write_timestamp
    return fields


def decode_share_record(key: Buffer | None, value: Buffer | None) -> ShareRecord:
    """Parses a record.

    Raises UnknownRecordTypeException for an unknown type, and SchemaException for bytes that are not a record or for an
    update without a value.
    """
    type, about, _, fields = share_record_set().decode(key, value)
    where = SharePartitionKey(about["groupId"], about["topicId"], about["partition"])
    if fields is None:
        if type != SNAPSHOT:
            raise SchemaException(f"an update of {where} has no value; only a snapshot may have none")
        return ShareRecord(type, where, None)
    return ShareRecord(
        type,
        where,
        ShareGroupOffset(
            fields["snapshotEpoch"],
            fields.get("stateEpoch", 0),
            fields["leaderEpoch"],
            fields["startOffset"],
            fields["deliveryCompleteCount"],
            state_batches(fields["stateBatches"]),
            fields.get("createTimestamp", NO_TIMESTAMP),
            fields.get("writeTimestamp", NO_TIMESTAMP),
        ),
    )
