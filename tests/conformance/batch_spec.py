"""A batch as the conformance scripts describe it, made into bytes.

The description is a dictionary of codec, level, magic, timestamp_type, log_append_time, base_offset, last_offset,
producer_id, producer_epoch, base_sequence, transactional, leader_epoch and records, all of them optional, or of
raw_hex alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafkalog.engine.format import codecs
from tests.reference.legacy import builder_of

TIMESTAMP_TYPES = {"create": "CreateTime", "log_append": "LogAppendTime"}


def batch_from_spec(spec: Mapping[str, Any]) -> bytes:
    """The bytes of one batch, as Kafka's own builder makes it; its errors where the description is impossible."""
    if "raw_hex" in spec:
        return bytes.fromhex(spec["raw_hex"])
    codec = codecs.codec_id(spec.get("codec", "none"))
    builder = builder_of(
        spec.get("magic", 2),
        codec=codec,
        timestamp_type=TIMESTAMP_TYPES[spec.get("timestamp_type", "create")],
        base_offset=spec.get("base_offset", 0),
        log_append_time=spec.get("log_append_time", -1),
        producer_id=spec.get("producer_id", -1),
        producer_epoch=spec.get("producer_epoch", -1),
        base_sequence=spec.get("base_sequence", -1),
        is_transactional=spec.get("transactional", False),
        partition_leader_epoch=spec.get("leader_epoch", -1),
        level=spec.get("level") if codec in codecs.DEFAULT_LEVELS else None,
    )
    for record in spec.get("records", ()):
        headers = [(name, _from_hex(value)) for name, value in record.get("headers") or ()]
        builder.append(
            record.get("ts", -1),
            _from_hex(record.get("key_hex")),
            _from_hex(record.get("value_hex")),
            headers,
            record.get("offset"),
        )
    if spec.get("last_offset") is not None:
        builder.override_last_offset(spec["last_offset"])
    return builder.build()


def _from_hex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)
