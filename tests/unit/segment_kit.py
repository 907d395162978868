"""Shared by the segment tests: batches, segments, the plain rule for index entries, stand-ins for recovery's partners.

`Rules` is the specification of indexing in plain Python, without a native plan: the tests compare the files on the
disk with it.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from kafkalog._native.codec import batches as native
from kafkalog.config import LogConfig
from kafkalog.engine.files import OS_FILES, Files, ManualClock
from kafkalog.engine.format.builder import SimpleRecord
from kafkalog.engine.log.replay import RecoveryReplay
from kafkalog.engine.log.types import AppendOrigin
from kafkalog.engine.segment.log_segment import LogSegment
from tests.reference.legacy import build_batch

BASE = 100


def config(**overrides: Any) -> LogConfig:
    """A config from keyword arguments: `index_interval_bytes=10` is index.interval.bytes=10."""
    return LogConfig.from_props({}, {key.replace("_", "."): str(value) for key, value in overrides.items()})


def open_segment(
    folder: Path | str, cfg: LogConfig | None = None, *, base: int = BASE, files: Files = OS_FILES, **options: Any
) -> LogSegment:
    return LogSegment.open(str(folder), base, cfg or config(), ManualClock(1_000_000), files, **options)


def batch(
    base: int, count: int = 1, ts: int = 1000, *, value: bytes = b"v" * 20, step: int = 1, **options: Any
) -> bytes:
    """A batch of `count` records from offset `base`; timestamps ts, ts + step, ..."""
    found = [SimpleRecord(ts + step * i, b"k%d" % i, value, ()) for i in range(count)]
    return build_batch(found, base_offset=base, **options)


def append(segment: LogSegment, *batches: bytes) -> None:
    """Appends in one call, as UnifiedLog does."""
    data = b"".join(batches)
    headers, verdict, _ = native.headers(data)
    assert verdict == native.OK
    segment.append(headers[-1].last_offset, [data], headers)


def index_bytes(segment: LogSegment) -> tuple[bytes, bytes]:
    """The entries of both index files, without the bytes after them."""
    with open(segment.offset_index_file, "rb") as offsets, open(segment.time_index_file, "rb") as times:
        return (
            offsets.read()[: segment.offset_index.size_in_bytes],
            times.read()[: segment.time_index.size_in_bytes],
        )


class Rules:
    """The entries that appends must make: per batch, strictly more than the interval since the last one."""

    def __init__(self, base: int, interval: int) -> None:
        self.base = base
        self.interval = interval
        self.since = 0
        self.largest = (-1, base)
        self.offsets: list[tuple[int, int]] = []
        self.times: list[tuple[int, int]] = []

    def append(self, data: bytes, position: int) -> None:
        for header in native.headers(data)[0]:
            if header.max_timestamp > self.largest[0]:
                self.largest = (header.max_timestamp, header.last_offset)
            if self.since > self.interval:
                self.offsets.append((header.last_offset, position + header.position))
                self.add_time()
                self.since = 0
            self.since += header.size

    def add_time(self) -> None:
        if self.largest[0] > (self.times[-1][0] if self.times else -1):
            self.times.append(self.largest)

    def bytes(self) -> tuple[bytes, bytes]:
        return (
            b"".join(struct.pack(">ii", offset - self.base, position) for offset, position in self.offsets),
            b"".join(struct.pack(">qi", timestamp, offset - self.base) for timestamp, offset in self.times),
        )


class Completed:
    def __init__(self, producer_id: int, first_offset: int, last_offset: int, is_aborted: bool) -> None:
        self.producer_id, self.first_offset, self.last_offset = producer_id, first_offset, last_offset
        self.is_aborted = is_aborted


class Producers:
    """Stands in for ProducerStateManager: the last five batches of each producer, and the calls."""

    def __init__(self, fail_at: int | None = None, error: Exception | None = None) -> None:
        self.seen: list[int] = []
        self.kept: dict[int, list[int]] = {}
        self.map_end = -1
        self.completed: list[Any] = []
        self.fail_at, self.error = fail_at, error

    def prepare_update(self, producer_id: int, origin: AppendOrigin) -> Producers:
        assert origin is AppendOrigin.REPLICATION
        return self

    def append(self, header: native.BatchHeader, *, records: memoryview, at: int) -> Completed | None:
        if header.base_offset == self.fail_at:
            assert self.error is not None
            raise self.error
        assert native.crc_matches(records, at, header.size)
        self.seen.append(header.base_offset)
        self.kept.setdefault(header.producer_id, []).append(header.base_offset)
        if header.is_control:
            return Completed(header.producer_id, header.base_offset - 1, header.base_offset, True)
        return None

    def update(self, append_info: Any) -> None:
        assert append_info is self

    def last_stable_offset(self, completed_txn: Completed) -> int:
        return completed_txn.last_offset + 1

    def complete_txn(self, completed_txn: Completed) -> None:
        self.completed.append(completed_txn)

    def update_map_end_offset(self, last_offset: int) -> None:
        self.map_end = last_offset


def recover(segment: LogSegment, producers: Any = None, epochs: Any = None) -> int:
    """Recovers a segment with stand-ins."""
    return segment.recover(RecoveryReplay(segment.txn_index, producers or Producers(), epochs or Epochs()))


class Epochs:
    """Stands in for LeaderEpochFileCache."""

    def __init__(self, latest: int | None = None) -> None:
        self.latest_epoch = latest
        self.assigned: list[tuple[int, int]] = []

    def assign(self, epoch: int, start_offset: int) -> None:
        self.assigned.append((epoch, start_offset))
        self.latest_epoch = epoch
