"""A compacted partition to test with: keyed batches in one line, a pass in one line, and the records that it leaves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kafkalog._native.codec.batches import BatchHeader
from kafkalog._native.codec.offset_map import SkimpyOffsetMap
from kafkalog.engine.cleaner.cleaner import Cleaner, CleanerSettings, CleanResult
from kafkalog.engine.cleaner.to_clean import next_to_clean
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker, end_txn_marker_batch
from kafkalog.engine.log.types import AppendOrigin
from kafkalog.engine.log.unified_log import UnifiedLog
from tests.reference.legacy import builder_of
from tests.unit.log_kit import NOW_MS, Kit

COMPACT = {"cleanup.policy": "compact", "delete.retention.ms": "1000", "internal.segment.bytes": "10000"}
SLOT_BYTES = 24

Pair = tuple[str | None, str | None]


class Producer(NamedTuple):
    """Who a batch is of; `sequence` is its first record's."""

    producer_id: int
    sequence: int = 0
    epoch: int = 0
    transactional: bool = False


def text(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def keyed(
    *pairs: Pair,
    ts: int = NOW_MS,
    codec: int = 0,
    magic: int = 2,
    producer: Producer | None = None,
    log_append: int = -1,
) -> bytes:
    """A batch of (key, value) at timestamps from `ts` on; `log_append`: the broker's time, where it sets that."""
    who = producer or Producer(-1, -1, -1)
    builder = builder_of(
        magic,
        codec=codec,
        timestamp_type="LogAppendTime" if log_append >= 0 else "CreateTime",
        log_append_time=log_append,
        producer_id=who.producer_id,
        producer_epoch=who.epoch,
        base_sequence=who.sequence,
        is_transactional=who.transactional,
        partition_leader_epoch=0,
    )
    for number, (key, value) in enumerate(pairs):
        builder.append(ts + number, text(key), text(value))
    return builder.build()


def marker(producer_id: int, *, commit: bool, epoch: int = 0, ts: int = NOW_MS) -> bytes:
    """The end of a producer's transaction."""
    kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
    return end_txn_marker_batch(0, ts, 0, producer_id, epoch, EndTransactionMarker(kind, 0))


class CleanerKit(Kit):
    """A Kit whose log is compacted, and cleaned by passes that remember where the one before ended."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.last_clean_offset: int | None = None

    def log_of(self, *batches: bytes | None, overrides: dict[str, str] | None = None) -> UnifiedLog:
        """A log of these batches, rolled where there is None and at the end; all below the high watermark."""
        log = self.open({**COMPACT, **(overrides or {})})
        self.add(log, *batches)
        return log

    def add(self, log: UnifiedLog, *batches: bytes | None) -> None:
        for data in (*batches, None):
            if data is None:
                log.roll()
            else:
                log.append_as_follower(placed(data, log.log_end_offset), 0)
        log.update_high_watermark(log.log_end_offset)

    def end_txn(self, log: UnifiedLog, producer_id: int, *, commit: bool, epoch: int = 0) -> None:
        data = marker(producer_id, commit=commit, epoch=epoch, ts=self.clock.now_ms)
        log.append_as_leader(data, 0, AppendOrigin.COORDINATOR, transaction_version=0)
        log.update_high_watermark(log.log_end_offset)

    def clean(
        self,
        log: UnifiedLog,
        *,
        slots: int = 1000,
        settings: CleanerSettings | None = None,
        cleaner: Cleaner | None = None,
    ) -> CleanResult:
        cleaner = cleaner or Cleaner(SkimpyOffsetMap(slots * SLOT_BYTES), settings or CleanerSettings(), self.clock)
        result = cleaner.clean(next_to_clean(log, self.last_clean_offset, self.clock.now_ms))
        self.last_clean_offset = result.end_offset
        return result


def placed(data: bytes, base_offset: int) -> bytes:
    """A batch as a leader forwards it, with its offset (which no checksum covers); for magic 0 and 1 of one record."""
    return base_offset.to_bytes(8, "big") + data[8:]


def headers(log: UnifiedLog) -> list[BatchHeader]:
    return [header for segment in log.log_segments() for header in segment.log.batches()]


def batch_bytes(log: UnifiedLog) -> list[bytes]:
    return [
        segment.log.read(header.position, header.size)
        for segment in log.log_segments()
        for header in segment.log.batches()
    ]


def rows(log: UnifiedLog) -> list[tuple[int, str | None, str | None]]:
    """Offset, key and value of each record, markers left out."""
    found = []
    for segment in log.log_segments():
        control = [range(h.base_offset, h.last_offset + 1) for h in segment.log.batches() if h.is_control]
        for record in segment.log.slice(0, segment.size).records():
            if not any(record.offset in offsets for offsets in control):
                found.append((record.offset, _text(record.key), _text(record.value)))
    return found


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def latest(found: Iterable[tuple[int, str | None, str | None]]) -> dict[str, str]:
    """The last value of each key, deleted keys left out."""
    state: dict[str, str | None] = {}
    for _, key, value in found:
        if key is not None:
            state[key] = value
    return {key: value for key, value in state.items() if value is not None}
