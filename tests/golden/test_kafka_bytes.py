"""The bytes of Kafka's codecs and of its batch builder, compared with recorded answers of Apache Kafka 4.4.0.

kafka_bytes.py next to this file has the cases and wrote kafka_bytes.jsonl.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from kafkalog.engine.format import codecs
from kafkalog.engine.format.batch import MemoryRecords, ensure_valid
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker, end_txn_marker_batch
from kafkalog.engine.format.records import records
from kafkalog.errors import KafkalogError
from tests.reference import legacy
from tests.reference.legacy import builder_of

HERE = Path(__file__).parent


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("kafka_bytes", HERE / "kafka_bytes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


golden = _load()
LINES = [json.loads(line) for line in golden.GOLDEN.read_text().splitlines()]
COMPRESS, BATCH, MARKER = ([one for one in LINES if kind in one["case"]] for kind in ("compress", "batch", "marker"))


def build(spec: dict[str, Any]) -> dict[str, Any]:
    codec = codecs.codec_id(spec.get("codec", "none"))
    builder = builder_of(
        spec.get("magic", 2),
        codec=codec,
        timestamp_type={"create": "CreateTime", "log_append": "LogAppendTime"}[spec.get("timestamp_type", "create")],
        base_offset=spec.get("base_offset", 0),
        log_append_time=spec.get("log_append_time", -1),
        producer_id=spec.get("producer_id", -1),
        producer_epoch=spec.get("producer_epoch", -1),
        base_sequence=spec.get("base_sequence", -1),
        is_transactional=spec.get("transactional", False),
        is_control_batch=spec.get("control", False),
        partition_leader_epoch=spec.get("leader_epoch", -1),
        delete_horizon_ms=spec.get("delete_horizon_ms", -1),
        level=spec.get("level"),
    )
    next_offset = spec.get("base_offset", 0)
    for row in spec["records"]:
        key, value = (None if row.get(part) is None else bytes.fromhex(row[part]) for part in ("key_hex", "value_hex"))
        headers = [(name, None if part is None else bytes.fromhex(part)) for name, part in row.get("headers", ())]
        offset = row.get("offset", next_offset)
        if spec.get("control"):
            assert key is not None
            assert isinstance(builder, MemoryRecordsBuilder)
            builder.append_control_record_with_offset(offset, row.get("ts", -1), key, value, headers)
        else:
            builder.append(row.get("ts", -1), key, value, headers, offset)
        next_offset = offset + 1
    if "last_offset" in spec:
        builder.override_last_offset(spec["last_offset"])
    answer: dict[str, Any] = {"bytes": builder.build().hex()}
    if builder.num_records:
        answer["info"] = list(builder.info())
        answer["uncompressed"] = builder.uncompressed_bytes_written
    return answer


@pytest.mark.parametrize("line", COMPRESS, ids=lambda line: "-".join(map(str, line["case"].values())))
def test_compressed_bytes(line: dict[str, Any]) -> None:
    case = line["case"]
    data = golden.data(case["kind"], case["size"])
    codec = codecs.codec_id(case["compress"])
    got = legacy.compress(codec, data, case["level"], magic=case["magic"])
    assert golden.shortened({"bytes": got.hex()}) == line["kafka"]
    assert codecs.decompress(codec, got, magic=case["magic"]) == data


@pytest.mark.parametrize("line", BATCH, ids=lambda line: json.dumps(line["case"]["batch"])[:60])
def test_built_batches(line: dict[str, Any]) -> None:
    spec, kafka = line["case"]["batch"], line["kafka"]
    if "error" in kafka:
        with pytest.raises(KafkalogError) as caught:
            build(spec)
        assert type(caught.value).__name__ == kafka["error"]
        return
    got = build(spec)
    if spec.get("codec") != "snappy":
        assert golden.shortened(got) == kafka
        return
    # snappy comes from another implementation: the records must be the same
    assert got.get("info") == kafka.get("info")
    if kafka.get("bytes"):
        ours, theirs = bytes.fromhex(got["bytes"]), bytes.fromhex(kafka["bytes"])
        assert everything(ours) == everything(theirs)


def everything(data: bytes) -> list[Any]:
    found = []
    for header in MemoryRecords(data).batches():
        ensure_valid(data, header)
        found.append((header.base_offset, header.last_offset, header.max_timestamp, records(data, header)))
    return found


@pytest.mark.parametrize("line", MARKER)
def test_transaction_markers(line: dict[str, Any]) -> None:
    spec, kafka = line["case"]["marker"], line["kafka"]
    kind = ControlRecordType.COMMIT if spec["commit"] else ControlRecordType.ABORT
    marker = EndTransactionMarker(kind, spec["coordinator_epoch"])
    where = spec["offset"], spec["ts"], spec["leader_epoch"], spec["producer_id"], spec["producer_epoch"]
    if "error" in kafka:
        with pytest.raises(KafkalogError) as caught:
            end_txn_marker_batch(*where, marker)
        assert type(caught.value).__name__ == kafka["error"]
        return
    got = end_txn_marker_batch(*where, marker)
    assert hashlib.sha256(got).hexdigest() == hashlib.sha256(bytes.fromhex(kafka["bytes"])).hexdigest()
    assert len(got) == 78
