"""Decodes and encodes any record of an internal topic: an int16 and a struct in both the key and the value.

The key's number is the record's type, the value's number is the value's version.  A null value deletes the key.  Bytes
after a struct are ignored, as in Kafka.  `group_records` and `transaction_records` know the meaning of the records and
give some of them typed classes.  Source: CoordinatorRecordSerde, MessageUtil (4.4.0).
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
KEY_VERSION = 0  # the version of every key


class CoordinatorRecord(NamedTuple):
    """A record as dictionaries; `version` and `value` are None if the record deletes its key."""

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
        """Returns (record type, key).

        Raises UnknownRecordTypeException for an unknown type, SchemaException for bytes that are not a key.
        """
        data = _present(key, f"a key in {self.topic}")
        number = _prefix(data, "key")
        schema = self.keys.get(number)
        if schema is None:
            error = UnknownRecordTypeException(f"found record type {number}, expected one of {self._types()}")
            error.unknown_type = number
            raise error
        return number, _struct(schema, data, KEY_VERSION, number, "key")

    def decode_value(self, number: int, value: Buffer) -> tuple[int, Values]:
        """Returns (version, value) of a record of type `number`.

        Raises UnknownRecordVersionException for an unknown version, SchemaException for bytes that are not a value.
        """
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
        """Returns a record's key and value as dictionaries; raises what `decode_key` and `decode_value` raise."""
        number, fields = self.decode_key(key)
        if value is None:
            return CoordinatorRecord(number, fields, None, None)
        return CoordinatorRecord(number, fields, *self.decode_value(number, value))

    def encode_key(self, number: int, key: Mapping[str, Any]) -> bytes:
        """Returns the bytes of a key; raises IllegalArgumentException for an unknown type or unsuitable fields."""
        schema = self.keys.get(number)
        if schema is None:
            raise IllegalArgumentException(
                f"{self.topic} has no record of type {number}, expected one of {self._types()}"
            )
        return PREFIX.pack(number) + schema.encode(key, KEY_VERSION)

    def encode_value(self, number: int, value: Mapping[str, Any], version: int) -> bytes:
        """Returns the bytes of a value of a known type; raises what `Schema.encode` raises."""
        return PREFIX.pack(version) + self.values[number].encode(value, version)

    def encode(self, record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
        """Returns a record's key and value, as Kafka writes them."""
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
    """Returns the records of `__consumer_offsets`: committed offsets, and groups of every kind."""
    return RecordSet("__consumer_offsets", coordinator_schemas.GROUP)


@functools.cache
def transaction_record_set() -> RecordSet:
    """Returns the records of `__transaction_state`: transactional ids and the states of their transactions."""
    return RecordSet("__transaction_state", coordinator_schemas.TRANSACTION)


@functools.cache
def share_record_set() -> RecordSet:
    """Returns the records of `__share_group_state`: the positions of share groups in their partitions."""
    return RecordSet("__share_group_state", coordinator_schemas.SHARE)


def partition_for(name: str, partition_count: int) -> int:
    """Returns the partition of an internal topic that holds a group or a transactional id.

    It is Utils.abs of String.hashCode, modulo `partition_count`.
    """
    if partition_count < 1:
        raise IllegalArgumentException(f"partition_count: found {partition_count}, expected at least 1")
    code = string_hash(name)
    return (0 if code == -(1 << 31) else abs(code)) % partition_count


def share_partition_for(group: str, topic_id: str, partition: int, partition_count: int) -> int:
    """Returns the partition of `__share_group_state` that holds the state of one partition of a share group."""
    return partition_for(f"{group}:{topic_id}:{partition}", partition_count)


def listed(partitions: Mapping[str, Sequence[int]], numbers_name: str) -> list[Values]:
    """Returns partitions by topic as a list of structs, whose field `numbers_name` holds a topic's partitions."""
    return [{"topic": topic, numbers_name: list(numbers)} for topic, numbers in partitions.items()]


def by_topic(structs: Sequence[Values], numbers_name: str) -> dict[str, tuple[int, ...]]:
    """Converts the structs of `listed` back; a topic may occur several times in the list."""
    found: dict[str, list[int]] = {}
    for each in structs:
        found.setdefault(each["topic"], []).extend(each[numbers_name])
    return {topic: tuple(numbers) for topic, numbers in found.items()}
