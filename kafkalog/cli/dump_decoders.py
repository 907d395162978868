"""The decoders of kafka-dump-log's options, and the contents of control records.

A decoder turns a record into the texts after `key:` and `payload:`. If a record cannot be decoded, one of the texts
says so in the words of Kafka's tool. Nothing is printed here. Source: DumpLogSegments 4.3.1 (4.4.0's is not released)
over the messages of 4.4.0.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafkalog.cli.app import Usage
from kafkalog.cli.console import put_bytes
from kafkalog.engine.format import control, group_records, metadata_records
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.coordinator_records import (
    CoordinatorRecord,
    RecordSet,
    group_record_set,
    share_record_set,
    transaction_record_set,
)
from kafkalog.engine.format.java_json import to_text
from kafkalog.engine.format.java_text import decode_utf8
from kafkalog.engine.format.message_reader import MessageException
from kafkalog.engine.remote import records as remote_records
from kafkalog.errors import SchemaException, UnknownRecordTypeException

if TYPE_CHECKING:
    from kafkalog.engine.format.records import Record

DELETED = "<DELETE>"
# The message of Java's exception when Kafka's tool reads the bytes of a tombstone.
NO_VALUE = (
    'Cannot invoke "java.nio.ByteBuffer.remaining()" because the return value of '
    '"org.apache.kafka.common.record.internal.Record.value()" is null'
)


class Decoded(NamedTuple):
    """The texts of a record; None if there is nothing to print.

    `wrong`: a text says that the record cannot be decoded. `refusal`: the error with which Kafka's tool ends here, or
    "" if it continues.
    """

    key: str | None
    payload: str | None
    wrong: bool = False
    refusal: str = ""


class Decoder(Protocol):
    """Shows the keys and payloads of a log."""

    def decode(self, record: Record) -> Decoded:
        """Returns the texts of a record."""
        ...

    def to_json(self, record: Record, decoded: Decoded) -> dict[str, Any]:
        """Returns the same as fields for a JSON line."""
        ...


# --- keys and payloads as they are ------------------------------------------------------------------

_PACKAGE = "org.apache.kafka.tools.api."
STRING_DECODER = f"{_PACKAGE}StringDecoder"
_NUMBERS = {f"{_PACKAGE}IntegerDecoder": struct.Struct(">i"), f"{_PACKAGE}LongDecoder": struct.Struct(">q")}


class PlainDecoder:
    """--key-decoder-class and --value-decoder-class: Kafka's decoders for text and for numbers."""

    def __init__(self, key_class: str, value_class: str) -> None:
        self.key_class = _known_class("--key-decoder-class", key_class)
        self.value_class = _known_class("--value-decoder-class", value_class)

    def decode(self, record: Record) -> Decoded:
        for what, class_name, data in (("key", self.key_class, record.key), ("value", self.value_class, record.value)):
            needed = _NUMBERS[class_name].size if class_name in _NUMBERS else 0
            if data is not None and len(data) < needed:
                found = f"the {what} at offset {record.offset} has {len(data)} bytes"
                return Decoded(None, None, refusal=f"{found}, {class_name} needs {needed}")
        key = None if record.key is None else _plain(self.key_class, record.key)
        return Decoded(key, None if record.value is None else _plain(self.value_class, record.value))

    def to_json(self, record: Record, decoded: Decoded) -> dict[str, Any]:
        out: dict[str, Any] = {}
        parts = (
            ("key", self.key_class, record.key, decoded.key),
            ("payload", self.value_class, record.value, decoded.payload),
        )
        for name, class_name, data, text in parts:
            if class_name == STRING_DECODER or data is None:
                put_bytes(out, name, data)
            elif text is not None:
                out[name] = int(text)
        return out


def _known_class(option: str, name: str) -> str:
    if name != STRING_DECODER and name not in _NUMBERS:
        raise Usage(
            f"{option}: {name} is a Java class, which kafkalog does not run; expected one of "
            f"{', '.join((STRING_DECODER, *_NUMBERS))} (`kafkalog cat --json` gives other keys and values as base64)"
        )
    return name


def _plain(class_name: str, data: bytes) -> str:
    layout = _NUMBERS.get(class_name)
    return decode_utf8(data) if layout is None else str(layout.unpack_from(data)[0])


# --- internal topics --------------------------------------------------------------------------------


class CoordinatorDecoder:
    """--offsets-decoder, --transaction-log-decoder, --share-group-state-decoder."""

    def __init__(self, records: RecordSet) -> None:
        self._records = records

    def decode(self, record: Record) -> Decoded:
        if record.key is None:
            text = f"Failed to decode message at offset {record.offset} using the specified decoder"
            return Decoded(None, None, refusal=f"{text} (message had a missing key)")
        try:
            found = self._records.decode(record.key, record.value)
        except UnknownRecordTypeException as error:
            return Decoded(f"Unknown record type {error.unknown_type} at offset {record.offset}, skipping.", None)
        except SchemaException as error:
            text = f"Error at offset {record.offset}, skipping. {kafka_text(error)}"
            return Decoded(text, None, wrong=True)
        key = {"type": str(found.type), "data": self._records.keys[found.type].to_json(found.key, 0)}
        return Decoded(to_text(key), self._payload(found))

    def _payload(self, found: CoordinatorRecord) -> str:
        if found.value is None or found.version is None:
            return DELETED
        data = self._records.values[found.type].to_json(found.value, found.version)
        if self._records is group_record_set() and found.type == group_records.GROUP_METADATA:
            _open_protocol(data, found.value)
        return to_text({"version": str(found.version), "data": data})

    def to_json(self, record: Record, decoded: Decoded) -> dict[str, Any]:
        if decoded.key is None:
            return {}
        if decoded.payload is None:
            return {"error": decoded.key}
        return {
            "key": json.loads(decoded.key),
            "payload": None if record.value is None else json.loads(decoded.payload),
        }


def _open_protocol(data: dict[str, Any], value: dict[str, Any]) -> None:
    """Decodes the subscription and assignment of consumer group members, if possible."""
    if value["protocolType"] != group_records.CONSUMER_PROTOCOL_TYPE:
        return
    schemas = {
        "subscription": group_records.subscription_schema(),
        "assignment": group_records.assignment_schema(),
    }
    for shown, member in zip(data["members"], value["members"], strict=True):
        for name, schema in schemas.items():
            try:
                version, fields = group_records.decode_versioned(schema, member[name])
            except MessageException:
                continue
            shown[name] = schema.to_json(fields, version)


class MetadataDecoder:
    """--cluster-metadata-decoder; it ignores keys."""

    def decode(self, record: Record) -> Decoded:
        try:
            found = metadata_records.decode_metadata_record(record.value)
        except MessageException as error:
            return Decoded(None, f"Error at {record.offset}, skipping. {kafka_text(error)}", wrong=True)
        return Decoded(None, to_text(metadata_records.metadata_json(found)))

    def to_json(self, record: Record, decoded: Decoded) -> dict[str, Any]:
        if decoded.payload is None or decoded.wrong:
            return {"error": decoded.payload}
        return {"payload": json.loads(decoded.payload)}


class RemoteLogMetadataDecoder:
    """--remote-log-metadata-decoder: events of remote segments, printed as Kafka's classes print them; it ignores keys.

    Values have the format of `RemoteLogMetadataSerde`, as in Kafka's own topic.
    """

    def decode(self, record: Record) -> Decoded:
        text: str | None = NO_VALUE
        try:
            if record.value is not None:
                return Decoded(None, str(remote_records.deserialize(record.value)))
        except MessageException as error:
            text = kafka_text(error)
        return Decoded(None, f"Error at offset {record.offset}, skipping. {text}", wrong=True)

    def to_json(self, record: Record, decoded: Decoded) -> dict[str, Any]:
        if decoded.wrong:
            return {"error": decoded.payload}
        schema, version, fields = metadata_records.decode_framed(remote_records.schemas(), record.value)
        return {"payload": {"type": schema.name, "version": version, "data": schema.to_json(fields, version)}}


def kafka_text(error: SchemaException) -> str:
    """Returns the message of Kafka's exception."""
    return error.message if not isinstance(error, MessageException) else error.kafka_text or "null"


# In the order in which Kafka's tool checks its options: if several are given, it uses the first of these.
DECODERS: dict[str, Callable[[], Decoder]] = {
    "offsets_decoder": lambda: CoordinatorDecoder(group_record_set()),
    "transaction_log_decoder": lambda: CoordinatorDecoder(transaction_record_set()),
    "cluster_metadata_decoder": MetadataDecoder,
    "remote_log_metadata_decoder": RemoteLogMetadataDecoder,
    "share_group_state_decoder": lambda: CoordinatorDecoder(share_record_set()),
}


def chosen(options: dict[str, Any]) -> Decoder | None:
    """Returns the decoder that the options select and removes these options; None if nothing is to be decoded."""
    flags = [name for name in DECODERS if options.pop(name)]
    classes = options.pop("key_decoder_class"), options.pop("value_decoder_class")
    wanted = options.pop("print_data_log") or bool(flags) or classes != (None, None)
    if flags:
        return DECODERS[flags[0]]()
    key_class, value_class = (each or STRING_DECODER for each in classes)
    return PlainDecoder(key_class, value_class) if wanted else None


# --- control records --------------------------------------------------------------------------------

KRAFT_LABELS = {
    ControlRecordType.LEADER_CHANGE: "LeaderChange:",
    ControlRecordType.SNAPSHOT_HEADER: "SnapshotHeader",
    ControlRecordType.SNAPSHOT_FOOTER: "SnapshotFooter",
    ControlRecordType.KRAFT_VERSION: "KRaftVersion",
    ControlRecordType.KRAFT_VOTERS: "KRaftVoters",
}


def control_contents(record: Record) -> tuple[str, dict[str, Any] | None]:
    """Returns the contents of a control record: in kafka-dump-log's words, and as a JSON value."""
    kind = control.parse_control_key(record.key)
    if kind in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        marker = control.EndTransactionMarker.deserialize(record.key, record.value)
        return (
            f"endTxnMarker: {kind.name} coordinatorEpoch: {marker.coordinator_epoch}",
            {"endTxnMarker": kind.name, "coordinatorEpoch": marker.coordinator_epoch},
        )
    if kind in KRAFT_LABELS and record.value is not None:
        value = control.parse_kraft_value(kind, record.value)
        return f"{KRAFT_LABELS[kind]} {to_text(value)}", {kind.name: value}
    return (
        f"controlType: {kind.name}({control.parse_type_id(record.key)})",
        {"controlType": kind.name, "typeId": control.parse_type_id(record.key)},
    )
