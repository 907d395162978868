"""The records of `__remote_log_metadata`, byte for byte: the frame of cluster metadata, then the struct.

Keys are null.  Untrusted bytes cannot cause an allocation larger than the input.  Bytes that are not such a record
raise MessageException with the position.  Source class: RemoteLogMetadataSerde (4.4.0).
"""

from __future__ import annotations

import functools
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

from kafkalog.engine.format.message_reader import MessageException
from kafkalog.engine.format.messages import Schema, Values, parse_schemas
from kafkalog.engine.format.metadata_records import decode_framed, encode_framed
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.remote_schemas import REMOTE_LOG_METADATA
from kafkalog.engine.remote.segment import (
    RemoteLogMetadata,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataSnapshot,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
    epochs_of,
)
from kafkalog.errors import IllegalArgumentException

if TYPE_CHECKING:
    from typing_extensions import Buffer


E = TypeVar("E", bound=IntEnum)

_KAFKA_TEXTS = dict.fromkeys((0, 1, 3), "state can not be null")  # Kafka's text for an unknown state

SEGMENT, UPDATE, PARTITION_DELETE, SNAPSHOT = range(4)  # record types
_VERSION = 0


@functools.cache
def schemas() -> dict[int, Schema]:
    """Returns the structs by record type."""
    return {schema.number: schema for schema in parse_schemas(REMOTE_LOG_METADATA)}


def serialize(metadata: RemoteLogMetadata) -> bytes:
    """Returns a record's value."""
    fields: Values
    match metadata:
        case RemoteLogSegmentMetadata():
            kind, fields = SEGMENT, {"remoteLogSegmentId": _id_fields(metadata.remote_log_segment_id)}
            fields |= _segment_fields(metadata)
        case RemoteLogSegmentMetadataSnapshot():
            kind, fields = SNAPSHOT, {"segmentId": metadata.segment_id, **_segment_fields(metadata)}
        case RemoteLogSegmentMetadataUpdate():
            kind = UPDATE
            fields = {
                "remoteLogSegmentId": _id_fields(metadata.remote_log_segment_id),
                "brokerId": metadata.broker_id,
                "eventTimestampMs": metadata.event_timestamp_ms,
                "customMetadata": metadata.custom_metadata,
                "remoteLogSegmentState": int(metadata.state),
            }
        case RemotePartitionDeleteMetadata():
            kind = PARTITION_DELETE
            fields = {
                "topicIdPartition": _partition_fields(metadata.topic_id_partition),
                "brokerId": metadata.broker_id,
                "eventTimestampMs": metadata.event_timestamp_ms,
                "remotePartitionDeleteState": int(metadata.state),
            }
    return encode_framed(schemas()[kind], fields, _VERSION)


def deserialize(value: Buffer | None) -> RemoteLogMetadata:
    """Parses a record's value; raises MessageException for bytes that are not a record."""
    schema, _, fields = decode_framed(schemas(), value)
    try:
        return _made(schema.number, fields)
    except IllegalArgumentException as error:
        refused = MessageException(f"{schema.name}: {error}", position=0)
        refused.kafka_text = _KAFKA_TEXTS.get(schema.number) if "found state" in str(error) else str(error)
        raise refused from error


def _made(kind: int, fields: Values) -> RemoteLogMetadata:
    if kind == SEGMENT:
        segment = RemoteLogSegmentMetadata(_id_of(fields["remoteLogSegmentId"]), **_segment_of(fields)).checked()
        return segment._replace(state=_state(RemoteLogSegmentState, fields["remoteLogSegmentState"]))
    if kind == SNAPSHOT:
        state = _state(RemoteLogSegmentState, fields["remoteLogSegmentState"])
        return RemoteLogSegmentMetadataSnapshot(fields["segmentId"], **_segment_of(fields), state=state).checked()
    if kind == UPDATE:
        return RemoteLogSegmentMetadataUpdate(
            _id_of(fields["remoteLogSegmentId"]),
            fields["eventTimestampMs"],
            fields["customMetadata"],
            _state(RemoteLogSegmentState, fields["remoteLogSegmentState"]),
            fields["brokerId"],
        )
    return RemotePartitionDeleteMetadata(
        _partition_of(fields["topicIdPartition"]),
        _state(RemotePartitionDeleteState, fields["remotePartitionDeleteState"]),
        fields["eventTimestampMs"],
        fields["brokerId"],
    )


def _segment_fields(metadata: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataSnapshot) -> Values:
    epochs = [{"leaderEpoch": epoch, "offset": offset} for epoch, offset in metadata.segment_leader_epochs]
    return {
        "startOffset": metadata.start_offset,
        "endOffset": metadata.end_offset,
        "brokerId": metadata.broker_id,
        "maxTimestampMs": metadata.max_timestamp_ms,
        "eventTimestampMs": metadata.event_timestamp_ms,
        "segmentLeaderEpochs": epochs,
        "segmentSizeInBytes": metadata.segment_size_in_bytes,
        "customMetadata": metadata.custom_metadata,
        "remoteLogSegmentState": int(metadata.state),
        "txnIndexEmpty": metadata.is_txn_idx_empty,
    }


def _segment_of(fields: Values) -> dict[str, Any]:
    return {
        "start_offset": fields["startOffset"],
        "end_offset": fields["endOffset"],
        "max_timestamp_ms": fields["maxTimestampMs"],
        "broker_id": fields["brokerId"],
        "event_timestamp_ms": fields["eventTimestampMs"],
        "segment_size_in_bytes": fields["segmentSizeInBytes"],
        "segment_leader_epochs": epochs_of(
            (entry["leaderEpoch"], entry["offset"]) for entry in fields["segmentLeaderEpochs"]
        ),
        "custom_metadata": fields["customMetadata"],
        "is_txn_idx_empty": fields["txnIndexEmpty"],
    }


def _id_fields(of: RemoteLogSegmentId) -> Values:
    return {"topicIdPartition": _partition_fields(of.topic_id_partition), "id": of.id}


def _id_of(fields: Values) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(_partition_of(fields["topicIdPartition"]), fields["id"])


def _partition_fields(of: TopicIdPartition) -> Values:
    return {"name": of.topic_partition.topic, "id": of.topic_id, "partition": of.topic_partition.partition}


def _partition_of(fields: Values) -> TopicIdPartition:
    return TopicIdPartition(fields["id"], TopicPartition(fields["name"], fields["partition"]))


def _state(kind: type[E], number: int) -> E:
    try:
        return kind(number)
    except ValueError:
        raise IllegalArgumentException(f"found state {number}, expected one of {', '.join(map(str, map(int, kind)))}")


__all__ = ["MessageException", "deserialize", "schemas", "serialize"]
