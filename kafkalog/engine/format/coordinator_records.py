"""The records of internal topics, any of them: an int16 and a struct in the key, an int16 and a struct in the value.

The key's number is the record's type, the value's is the value's version; a null value deletes the key.  Bytes behind
a struct are passed over, as Kafka does.  Which record stands for what, and the ones that have a face of their own, are
`group_records`' and `transaction_records`'.  Source: CoordinatorRecordSerde, MessageUtil (4.4.0).
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalog._native.codec.java_hash import string_hash
from kafkalog.engine.format import coordinator_schemas
from kafkalog.engine.format.message_reader import MessageException
from kafkalog.engine.format.messages import Schema, Values, parse_schemas
from kafkalog.errors import (
    IllegalArgumentException,
    SchemaException,
    UnknownRecordTypeException,
    UnknownRecordVersionException,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

PREFIX = struct.Struct(">h")
KEY_VERSION = 0  # every key's


class CoordinatorRecord(NamedTuple):
    """A record as dictionaries; `version` and `value` are None where it deletes its key."""

    type: int
    key: Values
    version: int | None
    value: Values | None


class RecordSet:
    """The records that a topic may hold, by type."""

    def __init__(self, topic: str, table: str) -> None:
        self.topic = topic
        schemas = parse_schemas(table)
        self.keys = {each.number: each for each in schemas if each.name.endswith("Key")}
        self.values = {each.number: each for each in schemas if each.name.endswith("Value")}

    def decode_key(self, key: Buffer | None) -> tuple[int, Values]:
        """(record type, key); UnknownRecordTypeException for a type that is not known, SchemaException for bytes that
        are none."""
        data = _present(key, f"a key in {self.topic}")
        number = _prefix(data, "key")
        schema = self.keys.get(number)
        if schema is None:
            error = UnknownRecordTypeException(f"found record type {number}, expected one of {self._types()}")
            error.unknown_type = number
            raise error
        return number, _struct(schema, data, KEY_VERSION, number, "key")

    def decode_value(self, number: int, value: Buffer) -> tuple[int, Values]:
        """(version, value) of a record of type `number`; UnknownRecordVersionException for a version that is not
        known, SchemaException for bytes that are none."""
        schema = self.values[number]
        data = value if isinstance(value, bytes) else bytes(value)
        version = _prefix(data, "value")
        if not schema.has_version(version):
            raise UnknownRecordVersionException(
                f"Found an unknown record version {version} for {number} type",
                hint=f"{schema.name} has {schema.lowest} to {schema.highest}",
            )
        return version, _struct(schema, data, version, version, "value")

    def decode(self, key: Buffer | None, value: Buffer | None) -> CoordinatorRecord:
        """A record's key and value as dictionaries; errors as `decode_key` and `decode_value`."""
        number, fields = self.decode_key(key)
        if value is None:
            return CoordinatorRecord(number, fields, None, None)
        return CoordinatorRecord(number, fields, *self.decode_value(number, value))

    def encode_key(self, number: int, key: Mapping[str, Any]) -> bytes:
        """The bytes of a key; IllegalArgumentException for another type, or fields that do not fit."""
        schema = self.keys.get(number)
        if schema is None:
            raise IllegalArgumentException(
                f"{self.topic} has no record of type {number}, expected one of {self._types()}"
            )
        return PREFIX.pack(number) + schema.encode(key, KEY_VERSION)

    def encode_value(self, number: int, value: Mapping[str, Any], version: int) -> bytes:
        """The bytes of a value of a type that is there; errors as `Schema.encode`."""
        return PREFIX.pack(version) + self.values[number].encode(value, version)

    def encode(self, record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        """A record's key and value, as Kafka writes them."""
        key = self.encode_key(record.type, record.key)
        if record.value is None:
            return key, None
        if record.version is None:
            raise IllegalArgumentException(f"a value of record type {record.type} is given without its version")
        return key, self.encode_value(record.type, record.value, record.version)

    def _types(self) -> str:
        return ", ".join(map(str, self.keys))


def _present(data: Buffer | None, what: str) -> bytes:
    if data is None:
        raise SchemaException(f"{what} is missing, expected a record type and its fields")
    return data if isinstance(data, bytes) else bytes(data)


def _prefix(data: bytes, what: str) -> int:
    if len(data) < PREFIX.size:
        number_of = "the record's type" if what == "key" else "its version"
        error = MessageException(f"a {what} of {len(data)} bytes, expected 2 for {number_of}", position=0)
        error.kafka_text = f"Could not read version from {what}'s buffer."
        raise error
    number: int = PREFIX.unpack_from(data)[0]
    return number


def _struct(schema: Schema, data: bytes, version: int, shown_version: int, what: str) -> Values:
    try:
        return schema.decode(data, version, at=PREFIX.size)[0]
    except MessageException as error:
        text = "null" if error.kafka_text is None else error.kafka_text
        error.kafka_text = f"Could not read record with version {shown_version} from {what}'s buffer due to: {text}."
        raise


@functools.cache
def group_record_set() -> RecordSet:
    """What `__consumer_offsets` holds: committed offsets, and groups of every kind."""
    return RecordSet("__consumer_offsets", coordinator_schemas.GROUP)


@functools.cache
def transaction_record_set() -> RecordSet:
    """What `__transaction_state` holds: a transactional id, and how far its transaction is."""
    return RecordSet("__transaction_state", coordinator_schemas.TRANSACTION)


@functools.cache
def share_record_set() -> RecordSet:
    """What `__share_group_state` holds: where share groups are in their partitions."""
    return RecordSet("__share_group_state", coordinator_schemas.SHARE)


def partition_for(name: str, partition_count: int) -> int:
    """The partition of an internal topic that holds a group or a transactional id (Utils.abs of String.hashCode)."""
    if partition_count < 1:
        raise IllegalArgumentException(f"partition_count: found {partition_count}, expected at least 1")
    code = string_hash(name)
    return (0 if code == -(1 << 31) else abs(code)) % partition_count


def share_partition_for(group: str, topic_id: str, partition: int, partition_count: int) -> int:
    """The partition of `__share_group_state` that holds a share group's state of a partition."""
    return partition_for(f"{group}:{topic_id}:{partition}", partition_count)


def listed(partitions: Mapping[str, Sequence[int]], numbers_name: str) -> list[Values]:
    """Partitions by topic as a list of structs, whose field `numbers_name` has a topic's partitions."""
    return [{"topic": topic, numbers_name: list(numbers)} for topic, numbers in partitions.items()]


def by_topic(structs: Sequence[Values], numbers_name: str) -> dict[str, tuple[int, ...]]:
    """The other way; a topic may stand in the list again and again."""
    found: dict[str, list[int]] = {}
    for each in structs:
        found.setdefault(each["topic"], []).extend(each[numbers_name])
    return {topic: tuple(numbers) for topic, numbers in found.items()}
