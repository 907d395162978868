"""A broker's directory that tests write: `meta.properties`, and `__cluster_metadata-0` with records of their choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.meta_properties import MetaProperties, write_meta_properties
from kafkalog.engine.format.metadata_records import encode_metadata_record

CLUSTER_ID = "kafkalog-tests-00000AA"
NODE_ID = 1
TOPIC_IDS = {name: f"{name:A<21}A" for name in ("orders", "kept", "compacted", "other")}

Row = tuple[str, Mapping[str, Any], int]


def topic(name: str, partitions: int = 1, *, nodes: Sequence[int] = (NODE_ID,), topic_id: str = "") -> list[Row]:
    topic_id = topic_id or TOPIC_IDS[name]
    made: list[Row] = [("TOPIC_RECORD", {"name": name, "topicId": topic_id}, 0)]
    return made + [
        (
            "PARTITION_RECORD",
            {
                "partitionId": number, "topicId": topic_id, "replicas": list(nodes), "isr": list(nodes),
                "removingReplicas": [], "addingReplicas": [], "leader": nodes[0], "leaderEpoch": 0,
                "partitionEpoch": 0, "directories": [],
            },
            1,
        )
        for number in range(partitions)
    ]  # fmt: skip


def config(name: str, value: str | None, *, topic: str | None = None, broker: str = "") -> Row:
    kind, resource = (4, broker) if topic is None else (2, topic)
    data = {"resourceType": kind, "resourceName": resource, "name": name, "value": value}
    return ("CONFIG_RECORD", data, 0)


def removed(name: str) -> Row:
    return ("REMOVE_TOPIC_RECORD", {"topicId": TOPIC_IDS[name]}, 0)


def batch(rows: Iterable[Row], base_offset: int = 0) -> bytes:
    builder = MemoryRecordsBuilder(base_offset=base_offset, partition_leader_epoch=1)
    for kind, data, version in rows:
        builder.append(1_700_000_000_000, None, encode_metadata_record(kind, data, version))
    return bytes(builder.build())


def metadata_log(root: Path, rows: Sequence[Row], *, base_offset: int = 0) -> Path:
    """The log, as one segment of one batch."""
    folder = root / "__cluster_metadata-0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{base_offset:020d}.log").write_bytes(batch(rows, base_offset) if rows else b"")
    return folder


def snapshot(root: Path, rows: Sequence[Row], end_offset: int) -> Path:
    folder = root / "__cluster_metadata-0"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{end_offset:020d}-0000000001.checkpoint"
    path.write_bytes(
        _control(ControlRecordType.SNAPSHOT_HEADER) + batch(rows) + _control(ControlRecordType.SNAPSHOT_FOOTER)
    )
    return path


def _control(kind: ControlRecordType) -> bytes:
    builder = MemoryRecordsBuilder(is_control_batch=True, partition_leader_epoch=1)
    builder.append_control_record(1_700_000_000_000, kind, b"\0\0\0\0\0\0")
    return bytes(builder.build())


def formatted(root: Path, *, node_id: int = NODE_ID, cluster_id: str = CLUSTER_ID) -> Path:
    """A directory with the id of its node and cluster."""
    root.mkdir(parents=True, exist_ok=True)
    write_meta_properties(str(root / "meta.properties"), MetaProperties(1, cluster_id, node_id))
    return root
