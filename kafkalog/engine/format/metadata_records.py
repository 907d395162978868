"""The records of `__cluster_metadata`: a frame (version, record type, version of the struct), then a struct.

Keys are null, and no byte may follow the struct.  Source: MetadataRecordSerde, AbstractApiMessageSerde (4.4.0).  A
`MessageException` keeps the texts of their exceptions.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalog._limits import SHORT_MAX
from kafkalog.engine.format import metadata_schemas
from kafkalog.engine.format.message_reader import MessageException, Reader
from kafkalog.engine.format.message_writer import put_uvarint
from kafkalog.engine.format.messages import Schema, Values, parse_schemas
from kafkalog.errors import IllegalArgumentException

if TYPE_CHECKING:
    from typing_extensions import Buffer

FRAME_VERSION = 1


class MetadataRecord(NamedTuple):
    """A record: Kafka's name for its type (TOPIC_RECORD), the version of its struct, and the fields."""

    type: str
    version: int
    data: Values


@functools.cache
def schemas() -> dict[int, Schema]:
    """Returns the structs by record type."""
    return {schema.number: schema for schema in parse_schemas(metadata_schemas.METADATA)}


@functools.cache
def _by_name() -> dict[str, Schema]:
    return {type_name(schema): schema for schema in schemas().values()}


def type_name(schema: Schema) -> str:
    """Converts TopicRecord to TOPIC_RECORD."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", schema.name).upper()


def schema_of(record_type: str) -> Schema:
    """Returns the struct of a record type; raises IllegalArgumentException for an unknown name."""
    found = _by_name().get(record_type)
    if found is None:
        raise IllegalArgumentException(
            f"found metadata record type {record_type!r}, expected one of {', '.join(_by_name())}"
        )
    return found


def encode_metadata_record(record_type: str, data: Mapping[str, Any], version: int) -> bytes:
    """Returns a record's value, such as `encode_metadata_record("TOPIC_RECORD", {"name": ..., "topicId": ...}, 0)`."""
    schema = schema_of(record_type)
    return encode_framed(schema, data, version)


def encode_framed(schema: Schema, data: Mapping[str, Any], version: int) -> bytes:
    """Returns a struct with its frame, as the topics of cluster and remote metadata contain it."""
    out = bytearray()
    for number in (FRAME_VERSION, schema.number, version):
        put_uvarint(out, number)
    return bytes(out) + schema.encode(data, version)


def decode_metadata_record(value: Buffer | None) -> MetadataRecord:
    """Parses a record's value; raises MessageException for bytes that are not a record.

    A version that is too new is read up to the end of the newest known version, as Kafka's classes do.
    """
    schema, version, fields = decode_framed(schemas(), value)
    return MetadataRecord(type_name(schema), version, fields)


def decode_framed(known: Mapping[int, Schema], value: Buffer | None) -> tuple[Schema, int, Values]:
    """Returns the struct of a framed value, its version and its fields; raises what `decode_metadata_record` raises."""
    data = b"" if value is None else bytes(value)
    read = Reader(data, 0)
    frame = _short(read, "frame version")
    if frame != FRAME_VERSION:
        text = (
            "Could not deserialize metadata record with frame version 0. Note that upgrades from the preview release "
            "of KRaft in 2.8 to newer versions are not supported."
            if frame == 0
            else f"Could not deserialize metadata record due to unknown frame version {frame}"
            "(only frame version 1 is supported)"
        )
        raise read.bad("frame version", f"found {frame}, expected {FRAME_VERSION}", text)
    number = _short(read, "type")
    version = _short(read, "version")
    schema = known.get(number)
    if schema is None:
        text = f"org.apache.kafka.common.errors.UnsupportedVersionException: Unknown metadata id {number}"
        raise read.bad("type", f"found {number}, expected one of {', '.join(map(str, known))}", text)
    try:
        fields, end = schema.decode(data, version, at=read.at)
    except MessageException as error:
        error.kafka_text = f"Failed to deserialize record with type {number}"
        raise
    if end < len(data):
        text = f"Found {len(data) - end} byte(s) of garbage after {number}"
        raise read.bad(schema.name, f"{len(data) - end} bytes follow it, expected none", text)
    return schema, version, fields


def _short(read: Reader, what: str) -> int:
    try:
        number = read.uvarint(what)
    except MessageException as error:
        error.kafka_text = f"Error while reading {what}"
        raise
    if number > SHORT_MAX:
        raise read.bad(what, f"found {number}, expected at most {SHORT_MAX}", f"Value for {what} was too large.")
    return (number + (1 << 15)) % (1 << 16) - (1 << 15)  # Java's cast to short wraps a negative number


def metadata_json(record: MetadataRecord) -> Values:
    """Returns the record as kafka-dump-log prints it in JSON."""
    data = schema_of(record.type).to_json(record.data, record.version)
    return {"type": record.type, "version": record.version, "data": data}
