"""The lines of kafka-dump-log (DumpLogSegments 4.4.0), one function for each kind, and the same as JSON values.

This module formats text only; the caller opens and reads the files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kafkalog.cli.console import put_bytes
from kafkalog.engine.format.batch import decrement_sequence
from kafkalog.engine.format.codecs import shown_name

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.cli.dump_decoders import Decoded
    from kafkalog.engine.format.records import Record
    from kafkalog.engine.format.snapshots import ProducerSnapshotEntry


def java_bool(value: bool) -> str:
    return "true" if value else "false"


def optional_long(value: int | None) -> str:
    """Returns the text of a java.util.OptionalLong; a negative value means empty."""
    return "OptionalLong.empty" if value is None or value < 0 else f"OptionalLong[{value}]"


def batch_line(header: BatchHeader, valid: bool) -> str:
    """Returns the line of a batch; `header.position` is its position in the file."""
    if header.magic >= 2:
        what = (
            f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.count} "
            f"baseSequence: {header.base_sequence} lastSequence: {header.last_sequence} "
            f"producerId: {header.producer_id} producerEpoch: {header.producer_epoch} "
            f"partitionLeaderEpoch: {header.leader_epoch} isTransactional: {java_bool(header.is_transactional)} "
            f"isControl: {java_bool(header.is_control)} deleteHorizonMs: {optional_long(header.delete_horizon_ms)}"
        )
    else:
        what = f"offset: {header.last_offset}"
    return (
        f"{what} position: {header.position} {header.timestamp_type}: {header.max_timestamp} size: {header.size} "
        f"magic: {header.magic} compresscodec: {shown_name(header.codec)} crc: {header.crc} isvalid: {java_bool(valid)}"
    )


def batch_json(header: BatchHeader, valid: bool) -> dict[str, Any]:
    out: dict[str, Any] = {"kind": "batch"}
    if header.magic >= 2:
        out |= {
            "baseOffset": header.base_offset,
            "lastOffset": header.last_offset,
            "count": header.count,
            "baseSequence": header.base_sequence,
            "lastSequence": header.last_sequence,
            "producerId": header.producer_id,
            "producerEpoch": header.producer_epoch,
            "partitionLeaderEpoch": header.leader_epoch,
            "isTransactional": header.is_transactional,
            "isControl": header.is_control,
            "deleteHorizonMs": header.delete_horizon_ms,
        }
    else:
        out["offset"] = header.last_offset
    return out | {
        "position": header.position,
        "timestampType": header.timestamp_type,
        "maxTimestamp": header.max_timestamp,
        "size": header.size,
        "magic": header.magic,
        "compresscodec": shown_name(header.codec),
        "crc": header.crc,
        "isvalid": valid,
    }


def record_line(header: BatchHeader, record: Record, control: str, decoded: Decoded | None, *, metadata: bool) -> str:
    """Returns the line of a record. `control` is the text of a control record (`dump_decoders.control_contents`) or
    empty; `decoded` has the texts of key and payload."""
    parts = []
    if metadata:
        parts.append(
            f"| offset: {record.offset} {header.timestamp_type}: {record.timestamp} keySize: {_size(record.key)} "
            f"valueSize: {_size(record.value)}"
        )
        if header.magic >= 2:
            keys = ",".join(key for key, _ in record.headers)
            parts.append(f"sequence: {record.sequence} headerKeys: [{keys}]")
        if control:
            parts.append(control)
    if decoded is not None:
        bar = "" if metadata else "| "
        if decoded.key is not None:
            parts.append(f"{bar}key: {decoded.key}")
            bar = ""
        if decoded.payload is not None:
            parts.append(f"{bar}payload: {decoded.payload}")
    return " ".join(parts)


def record_json(header: BatchHeader, record: Record, control: dict[str, Any] | None) -> dict[str, Any]:
    out: dict[str, Any] = {
        "kind": "record",
        "offset": record.offset,
        "timestampType": header.timestamp_type,
        "timestamp": record.timestamp,
        "keySize": _size(record.key),
        "valueSize": _size(record.value),
    }
    if header.magic >= 2:
        out["sequence"] = record.sequence
        out["headers"] = headers_json(record.headers)
    if control:
        out["control"] = control
    return out


def headers_json(headers: Iterable[tuple[str, bytes | None]]) -> list[dict[str, Any]]:
    """Returns all headers in order, including repeated names."""
    listed = []
    for name, value in headers:
        entry: dict[str, Any] = {"key": name}
        put_bytes(entry, "value", value)
        listed.append(entry)
    return listed


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def offset_entry_line(offset: int, position: int) -> str:
    return f"offset: {offset} position: {position}"


def time_entry_line(timestamp: int, offset: int) -> str:
    return f"timestamp: {timestamp} offset: {offset}"


def aborted_line(version: int, producer_id: int, first_offset: int, last_offset: int, last_stable_offset: int) -> str:
    return (
        f"version: {version} producerId: {producer_id} firstOffset: {first_offset} lastOffset: {last_offset} "
        f"lastStableOffset: {last_stable_offset}"
    )


def snapshot_json(entry: ProducerSnapshotEntry) -> dict[str, Any]:
    """Returns a producer's line of a snapshot. As in Kafka, the reader keeps one batch for each producer, which may be
    empty."""
    first = entry.current_txn_first_offset
    out: dict[str, Any] = {
        "producerId": entry.producer_id,
        "producerEpoch": entry.producer_epoch,
        "coordinatorEpoch": entry.coordinator_epoch,
        "currentTxnFirstOffset": None if first < 0 else first,
        "lastTimestamp": entry.timestamp,
    }
    if entry.last_offset >= 0:
        out |= {
            "firstSequence": decrement_sequence(entry.last_sequence, entry.offset_delta),
            "lastSequence": entry.last_sequence,
            "lastOffset": entry.last_offset,
            "offsetDelta": entry.offset_delta,
            "timestamp": entry.timestamp,
        }
    return out


def snapshot_line(entry: ProducerSnapshotEntry) -> str:
    values = snapshot_json(entry)
    values["currentTxnFirstOffset"] = optional_long(entry.current_txn_first_offset)
    return " ".join(f"{name}: {value}" for name, value in values.items())
