"""Shared by tests of the remote tier's layouts: a small segment's files and its metadata."""

from __future__ import annotations

import random
import struct
from pathlib import Path

from kafkalog.engine.remote.segment import RemoteLogSegmentId, RemoteLogSegmentMetadata
from kafkalog.engine.remote.storage import IndexType, LogSegmentData
from tests.object_doubles import PARTITION, segment_id

LOCAL_NAMES = {
    IndexType.OFFSET: "index",
    IndexType.TIMESTAMP: "timeindex",
    IndexType.TRANSACTION: "txnindex",
    IndexType.PRODUCER_SNAPSHOT: "snapshot",
    IndexType.LEADER_EPOCH: "epochs",
}
EPOCHS = b"0\n2\n0 0\n2 40\n"


def write_segment(folder: Path, log_bytes: int = 1000, *, txn_index: bool = True) -> LogSegmentData:
    """The files of a segment, by `LOCAL_NAMES`; half of the log compresses."""
    folder.mkdir(exist_ok=True)
    noise = random.Random(7).randbytes(log_bytes)
    (folder / "log").write_bytes((noise[: log_bytes // 2] + bytes(log_bytes))[:log_bytes])
    (folder / "index").write_bytes(struct.pack(">iiii", 3, 100, 6, 500))
    (folder / "timeindex").write_bytes(struct.pack(">qiqi", 1000, 3, 2000, 6))
    (folder / "txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 1, 2, 1))
    (folder / "snapshot").write_bytes(b"snapshot")
    (folder / "epochs").write_bytes(EPOCHS)
    return data_of(folder, txn_index=txn_index)


def data_of(folder: Path, *, txn_index: bool = True) -> LogSegmentData:
    files = [str(folder / name) for name in ("log", "index", "timeindex", "txnindex", "snapshot")]
    if not txn_index:
        files[3] = None  # type: ignore[call-overload]
    return LogSegmentData(*files, (folder / "epochs").read_bytes())


def copied(
    size: int,
    *,
    number: int = 1,
    start: int = 0,
    end: int = 63,
    epochs: tuple[tuple[int, int], ...] = ((0, 0), (2, 40)),
) -> RemoteLogSegmentMetadata:
    """Metadata as the copier of a segment has them."""
    named = RemoteLogSegmentId(PARTITION, segment_id(number))
    return RemoteLogSegmentMetadata(named, start, end, 1_700_000_001_000, 7, 1_234_567_890_123, size, epochs)
