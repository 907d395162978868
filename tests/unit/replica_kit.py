"""Copies of partitions on the disks of several brokers, written byte by byte: batches of chosen epochs, checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.checkpoints import EpochEntry, LeaderEpochCheckpointFile, OffsetCheckpointFile
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import write_partition_metadata
from tests.unit import cluster_kit
from tests.unit.cluster_kit import TOPIC_IDS, Row

NOW_MS = 1_700_000_000_000
RESTED_MS = NOW_MS - 3_600_000
TOPIC = "orders"


class Batch(NamedTuple):
    """`count` records of one leader epoch.  `producer_id`: of a transaction; `ends` it, as a marker does."""

    epoch: int
    count: int = 10
    word: str = "v"
    producer_id: int = -1
    ends: bool | None = None  # True: committed, False: aborted

    def encode(self, base_offset: int) -> bytes:
        more: dict[str, Any] = {}
        if self.producer_id >= 0:
            more = {"producer_id": self.producer_id, "producer_epoch": 0, "is_transactional": True}
            more["base_sequence"] = -1 if self.ends is not None else 0
        builder = MemoryRecordsBuilder(
            base_offset=base_offset,
            partition_leader_epoch=self.epoch,
            is_control_batch=self.ends is not None,
            **more,
        )
        if self.ends is not None:
            kind = ControlRecordType.COMMIT if self.ends else ControlRecordType.ABORT
            builder.append_end_txn_marker(NOW_MS + base_offset, EndTransactionMarker(kind, 0))
        else:
            for offset in range(base_offset, base_offset + self.count):
                builder.append(NOW_MS + offset, b"k%d" % offset, f"{self.word}{offset}".encode())
        return bytes(builder.build())

    @property
    def offsets(self) -> int:
        return 1 if self.ends is not None else self.count


def broker(root: Path, node_id: int, *, cluster_id: str = cluster_kit.CLUSTER_ID) -> Path:
    return cluster_kit.formatted(root / f"broker-{node_id}", node_id=node_id, cluster_id=cluster_id)


def copy(
    log_dir: Path,
    batches: Sequence[Batch],
    watermark: int | None,
    *,
    name: str = "orders-0",
    topic_id: str | None = TOPIC_IDS[TOPIC],
    has_epochs: bool = True,
    rests: bool = True,
    batches_of_segment: int = 1000,
) -> Path:
    """A partition's directory.  It was written an hour before `NOW_MS`, if it `rests`."""
    folder = log_dir / name
    folder.mkdir()
    epochs: list[EpochEntry] = []
    offset = 0
    for number, batch in enumerate(batches):
        if number % batches_of_segment == 0:
            path = folder / f"{offset:020d}.log"
            path.write_bytes(b"")
        if not epochs or epochs[-1].epoch != batch.epoch:
            epochs.append(EpochEntry(batch.epoch, offset))
        with path.open("ab") as out:
            out.write(batch.encode(offset))
        offset += batch.offsets
    if not batches:
        (folder / f"{0:020d}.log").write_bytes(b"")
    if has_epochs:
        LeaderEpochCheckpointFile(LeaderEpochCheckpointFile.new_file(str(folder))).write(epochs)
    if topic_id is not None:
        write_partition_metadata(str(folder / "partition.metadata"), topic_id)
    if watermark is not None:
        checkpoint = OffsetCheckpointFile(str(log_dir / "replication-offset-checkpoint"))
        topic, _, number_text = name.rpartition("-")
        checkpoint.write({**checkpoint.read(), TopicPartition(topic, int(number_text)): watermark})
    if rests:
        for path in folder.glob("*.log"):
            os.utime(path, (RESTED_MS / 1000, RESTED_MS / 1000))
    return folder


def partition(
    number: int = 0,
    *,
    replicas: Sequence[int] = (1, 2, 3),
    leader: int = 1,
    epoch: int = 0,
    isr: Sequence[int] = (1, 2, 3),
    elr: Sequence[int] = (),
    topic: str = TOPIC,
) -> Row:
    data = {
        "partitionId": number, "topicId": TOPIC_IDS[topic], "replicas": list(replicas), "isr": list(isr),
        "removingReplicas": [], "addingReplicas": [], "leader": leader, "leaderEpoch": epoch, "partitionEpoch": 0,
        "directories": ["A" * 22] * len(replicas), "eligibleLeaderReplicas": list(elr) or None, "lastKnownElr": None,
    }  # fmt: skip
    return ("PARTITION_RECORD", data, 2)


def change(number: int = 0, *, topic: str = TOPIC, **fields: Any) -> Row:
    data = {
        "partitionId": number, "topicId": TOPIC_IDS[topic], "isr": None, "leader": -2, "replicas": None,
        "removingReplicas": None, "addingReplicas": None, "leaderRecoveryState": -1, "directories": None,
        "eligibleLeaderReplicas": None, "lastKnownElr": None,
    }  # fmt: skip
    return ("PARTITION_CHANGE_RECORD", {**data, **fields}, 2)


def metadata(log_dir: Path, *rows: Row, topic: str = TOPIC) -> None:
    """A node's metadata log: the topic, and what is said of it."""
    named: Row = ("TOPIC_RECORD", {"name": topic, "topicId": TOPIC_IDS[topic]}, 0)
    cluster_kit.metadata_log(log_dir, [named, *rows])
