"""Survival: decides what a pass of the cleaner keeps of a batch, and which of its records.

A record stays if it is the last one of its key in the offset map, or is after the end of the map.  A tombstone also
stays until its delete horizon, which the first pass that keeps it sets.  Batches of magic 0 and 1 have no delete
horizon: the age of the segment decides.  Records of aborted transactions are removed whatever their key.  A marker is
removed at the horizon that it got when its transaction was found empty.  A batch without remaining records keeps its
header if it is the last one of its producer, whose sequence numbers would be lost otherwise, or if it ends at the high
watermark.

Knows no file and writes nothing: `filter` builds the bytes.  There is one object for each segment that is copied, in
the pass's thread.  Mirrors the RecordFilter of Cleaner and shouldRetainRecord (4.4.0).
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._native.codec.offset_map import SkimpyOffsetMap
from kafkalog._native.codec.survivors import Survivors
from kafkalog.engine.cleaner.stats import CleanerStats
from kafkalog.engine.cleaner.stored import Stored, column, has_key, has_value
from kafkalog.engine.cleaner.transactions import CleanedTransactionMetadata
from kafkalog.engine.log.types import LastRecord

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader


class BatchRetention(enum.Enum):
    """The treatment of a batch of which no record stays."""

    DELETE = "deleted, without reading its records"
    DELETE_EMPTY = "deleted"
    RETAIN_EMPTY = "its header stays"


class BatchDecision(NamedTuple):
    """BatchRetentionResult.  `discards_records`: no record stays, whatever its key."""

    retention: BatchRetention
    discards_records: bool
    is_marker_of_empty_txn: bool


class Terms(NamedTuple):
    """The values that do not change while a segment is copied.

    `now_ms` is the time of the pass.  `retains_legacy_deletes` depends on the segment's age.  `high_watermark` is an
    offset.  `last_records` are by producer id.
    """

    now_ms: int
    delete_retention_ms: int
    retains_legacy_deletes: bool
    max_record_bytes: int
    high_watermark: int
    last_records: Mapping[int, LastRecord]


class Survival:
    """Decides about one segment's batches, in order."""

    def __init__(
        self,
        offset_map: SkimpyOffsetMap,
        transactions: CleanedTransactionMetadata,
        terms: Terms,
        stats: CleanerStats,
    ) -> None:
        self.offset_map = offset_map
        self.transactions = transactions
        self.terms = terms
        self.stats = stats
        lasts = [last.last_data_offset for last in terms.last_records.values() if last.last_data_offset is not None]
        self.survivors = Survivors(
            offset_map,
            now_ms=terms.now_ms,
            delete_retention_ms=terms.delete_retention_ms,
            keep_ends=[*lasts, terms.high_watermark - 1],
        )

    def check_batch(self, data: memoryview, header: BatchHeader) -> BatchDecision:
        """Follows the batch at `header.position` in `data`, and decides about it."""
        is_control = header.is_control
        if is_control:
            is_discardable = self.transactions.on_control_batch_read(data, header)
            horizon_ms = header.delete_horizon_ms
            discards = is_discardable and horizon_ms is not None and horizon_ms <= self.terms.now_ms
        else:
            is_discardable = discards = self.transactions.on_batch_read(header)
        if self._is_last_of_producer(header) or header.next_offset == self.terms.high_watermark:
            retention = BatchRetention.RETAIN_EMPTY
        else:
            retention = BatchRetention.DELETE if discards else BatchRetention.DELETE_EMPTY
        return BatchDecision(retention, discards, is_discardable and is_control)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        if not header.has_producer_id:
            return False
        last = self.terms.last_records.get(header.producer_id)
        if last is None:
            return False
        if last.last_data_offset is not None:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.producer_epoch

    def retained(self, header: BatchHeader, decision: BatchDecision, records: Sequence[Stored]) -> list[Stored]:
        """Returns the records of a batch that stay; counts the others by the reason of their removal."""
        if decision.discards_records:
            return []
        if header.is_control:
            return list(records)
        latest = self.offset_map.latest_offset
        known = iter(self._known_offsets([it for it in records if it.offset <= latest and has_key(it)]))
        retains_tombstones = self._retains_tombstones(header)
        kept = []
        for record in records:
            if record.offset > latest:
                kept.append(record)
            elif has_key(record):
                if record.offset < next(known):
                    self.stats.superseded += 1
                elif has_value(record) or retains_tombstones:
                    kept.append(record)
                else:
                    self.stats.tombstones += 1
            else:
                self.stats.invalid_messages_read += 1
        return kept

    def count_discarded(self, header: BatchHeader, records: int) -> None:
        """Counts removed records of a batch that are removed whatever their keys."""
        if header.is_control:
            self.stats.markers += records
        else:
            self.stats.aborted += records

    def _known_offsets(self, records: Sequence[Stored]) -> array[int]:
        """Returns the last offset that the map has for each record's key; -1 if it has none."""
        known = array("q")
        if records:
            keys = column([record.key or b"" for record in records])
            known.frombytes(self.offset_map.get_many(*keys, array("q", [record.offset for record in records])))
        return known

    def _retains_tombstones(self, header: BatchHeader) -> bool:
        if header.magic < 2:
            return self.terms.retains_legacy_deletes
        horizon_ms = header.delete_horizon_ms
        return horizon_ms is None or self.terms.now_ms < horizon_ms
