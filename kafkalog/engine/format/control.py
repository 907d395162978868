"""Control records: transaction markers and the KRaft records of a metadata log.

A control batch holds records whose key consists of a version and a type.  The value of a transaction marker begins with
a version.  KRaft values are flexible messages whose first field is a version.  Sources: ControlRecordType,
EndTransactionMarker, ControlRecordUtils and the generated messages (4.4.0).
"""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafkalog._native.codec import records as native
from kafkalog.engine.format import records
from kafkalog.engine.format.batch import CREATE_TIME, ProducerFields, compute_attributes, write_header
from kafkalog.engine.format.codecs import NONE
from kafkalog.engine.format.messages import Schema, Values, parse_schemas
from kafkalog.engine.format.metadata_schemas import CONTROL
from kafkalog.errors import IllegalArgumentException, InvalidRecordException

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kafkalog._native.codec.batches import BatchHeader

_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")
CONTROL_RECORD_KEY_SIZE = _KEY.size
END_TXN_MARKER_BATCH_SIZE = 78


class ControlRecordType(enum.IntEnum):
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1

    @classmethod
    def from_type_id(cls, type_id: int) -> ControlRecordType:
        try:
            return cls(type_id)
        except ValueError:
            return cls.UNKNOWN


def record_key(control_type: ControlRecordType) -> bytes:
    """Returns the key of such a control record (4 bytes)."""
    if control_type is ControlRecordType.UNKNOWN:
        raise IllegalArgumentException("Cannot serialize UNKNOWN control record type")
    return _KEY.pack(0, control_type)


def parse_type_id(key: bytes | None) -> int:
    """Returns the type number in a control record's key.

    Raises InvalidRecordException if the key is too short or its version is negative.  A newer version is read as 0.
    """
    size = -1 if key is None else len(key)
    if key is None or size < CONTROL_RECORD_KEY_SIZE:
        raise InvalidRecordException(
            f"Invalid value size found for control record key. Must have at least {CONTROL_RECORD_KEY_SIZE} bytes, "
            f"but found only {size}"
        )
    version, type_id = _KEY.unpack_from(key)
    if version < 0:
        raise InvalidRecordException(
            f"Invalid version found for control record: {version}. May indicate data corruption"
        )
    number: int = type_id
    return number


def parse_control_key(key: bytes | None) -> ControlRecordType:
    """Returns a control record's type (ControlRecordType.parse); UNKNOWN for a type that this version does not know."""
    return ControlRecordType.from_type_id(parse_type_id(key))


def is_abort(batch: Buffer, header: BatchHeader) -> bool:
    """Returns whether a control batch is the marker of an aborted transaction.

    `batch` holds only the bytes of the batch that `header` describes.  Raises CorruptRecordException or
    InvalidRecordException if its record does not parse.
    """
    record = records.first(batch, header, at=0)
    return record is not None and parse_control_key(record.key) is ControlRecordType.ABORT


@dataclass(slots=True, frozen=True)
class EndTransactionMarker:
    """The value of a COMMIT or ABORT record."""

    control_type: ControlRecordType
    coordinator_epoch: int

    def __post_init__(self) -> None:
        if self.control_type not in (ControlRecordType.COMMIT, ControlRecordType.ABORT):
            raise IllegalArgumentException(
                f"Invalid control record type for end transaction marker {self.control_type.name}"
            )

    def serialize_value(self) -> bytes:
        return _MARKER.pack(0, self.coordinator_epoch)

    @classmethod
    def deserialize(cls, key: bytes | None, value: bytes | None) -> EndTransactionMarker:
        """Parses a record's key and value.

        Raises InvalidRecordException for bytes that are not a marker, IllegalArgumentException for another control
        type.
        """
        return cls.deserialize_value(parse_control_key(key), value)

    @classmethod
    def deserialize_value(cls, control_type: ControlRecordType, value: bytes | None) -> EndTransactionMarker:
        cls(control_type, 0)
        if value is None or len(value) < 2:
            raise InvalidRecordException("An end transaction marker has no version")
        (version,) = struct.unpack_from(">h", value)
        if version < 0:
            raise InvalidRecordException(
                f"Invalid version found for end transaction marker: {version}. May indicate data corruption"
            )
        if len(value) < _MARKER.size:
            raise InvalidRecordException("An end transaction marker ends inside its coordinator epoch")
        return cls(control_type, _MARKER.unpack_from(value)[1])


def end_txn_marker_batch(
    initial_offset: int,
    timestamp: int,
    partition_leader_epoch: int,
    producer_id: int,
    producer_epoch: int,
    marker: EndTransactionMarker,
) -> bytes:
    """Returns the 78 bytes of a batch that ends a transaction (MemoryRecords.withEndTransactionMarker)."""
    if producer_id == -1:
        raise IllegalArgumentException("End transaction marker requires a valid producerId")
    if timestamp < 0 and timestamp != -1:
        raise IllegalArgumentException(f"Invalid negative timestamp {timestamp}")
    if producer_epoch == -1:
        raise IllegalArgumentException("Invalid negative producer epoch")
    payload = native.write_records([(0, 0, record_key(marker.control_type), marker.serialize_value(), ())])
    head = write_header(
        payload,
        base_offset=initial_offset,
        last_offset_delta=0,
        attributes=compute_attributes(NONE, CREATE_TIME, is_transactional=True, is_control=True),
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer=ProducerFields(producer_id, producer_epoch),
        partition_leader_epoch=partition_leader_epoch,
        count=1,
    )
    return head + payload


# --- KRaft ----------------------------------------------------------------------------------------

KRAFT_VALUE_VERSION = 0  # Kafka 4.4.0 writes and reads all of them in this version, whatever their first field contains


@functools.cache
def kraft_schemas() -> dict[ControlRecordType, Schema]:
    """Returns the schemas of the control records of a metadata log, whose first field is a version."""
    return {ControlRecordType(schema.number): schema for schema in parse_schemas(CONTROL)}


def _kraft_schema(control_type: ControlRecordType) -> Schema:
    schema = kraft_schemas().get(control_type)
    if schema is None:
        raise IllegalArgumentException(f"Expected a KRaft control record type, but found {control_type.name}")
    return schema


def encode_kraft_value(control_type: ControlRecordType, values: Mapping[str, Any]) -> bytes:
    """Encodes a KRaft control record's value; raises IllegalArgumentException for another type or unsuitable fields."""
    return _kraft_schema(control_type).encode(values, KRAFT_VALUE_VERSION)


def parse_kraft_value(control_type: ControlRecordType, value: Buffer) -> Values:
    """Parses a KRaft control record's value into the dictionary that Kafka's JSON converters produce.

    Raises IllegalArgumentException if the type is not a KRaft record, SchemaException for bytes that do not parse.
    """
    schema = _kraft_schema(control_type)
    found = schema.decode(value, KRAFT_VALUE_VERSION)[0]
    return schema.to_json(found, found["version"])
