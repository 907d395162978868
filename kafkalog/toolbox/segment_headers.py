"""Sums over the batch headers of one segment: batches, records, times, codecs, and where its bytes stop making sense.

`describe` and surveys show these numbers.  Checksums are not checked (`verify` does).  Records of a batch are not read,
so a compressed batch of magic 0 or 1 counts as one record.  Knows one open file; nothing of directories.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kafkalog.engine.files import File
from kafkalog.engine.format.batch import DELETE_HORIZON_FLAG, TIMESTAMP_TYPE_FLAG
from kafkalog.engine.format.codecs import shown_name
from kafkalog.engine.segment.scan import LogScan, ScanSlice

CODEC_BITS = 7
UNSEEN_BYTES = 17  # a shorter rest is not seen by Kafka's file framing


@dataclass
class SegmentHeaders:
    """The sums.  Times are -1 if no batch has one.  `codecs` has the number of batches by codec id.  `damaged_at` is
    the first byte that is no batch, if any."""

    batches: int = 0
    records: int = 0
    min_timestamp: int = -1
    max_timestamp: int = -1
    codecs: np.ndarray = field(default_factory=lambda: np.zeros(CODEC_BITS + 1, np.int64))
    damaged_at: int | None = None

    def feed(self, table: np.ndarray) -> None:
        """Counts the batches of a scan's table."""
        self.batches += len(table)
        self.records += int(record_counts(table).sum())
        self.codecs += np.bincount(table["attributes"] & CODEC_BITS, minlength=CODEC_BITS + 1)
        # The base timestamp is of no record if the log's append time counts, or if it is a delete horizon.
        has_other = table["attributes"] & (TIMESTAMP_TYPE_FLAG | DELETE_HORIZON_FLAG) != 0
        times = np.where(has_other, table["max_timestamp"], table["base_timestamp"])
        if len(times := times[times >= 0]):
            smallest = int(times.min())
            self.min_timestamp = smallest if self.min_timestamp < 0 else min(self.min_timestamp, smallest)
        self.max_timestamp = max(self.max_timestamp, int(table["max_timestamp"].max()))

    def codecs_by_name(self) -> dict[str, int]:
        """Returns the number of batches by the codec's name."""
        return {shown_name(codec): int(count) for codec, count in enumerate(self.codecs) if count}


def record_counts(table: np.ndarray) -> np.ndarray:
    """Returns how many records each batch of a scan's table has, as its header says."""
    counts: np.ndarray = np.where(table["magic"] >= 2, table["record_count"], 1)
    return counts


def read_headers(file: File, end: int, see: Callable[[ScanSlice], object] | None = None) -> SegmentHeaders:
    """Returns the sums over a segment's first `end` bytes.  `see` is called with each slice of the scan."""
    found = SegmentHeaders()
    scan = LogScan(file, 0, end, check_crc=False)
    for piece in scan:
        found.feed(piece.table)
        if see is not None:
            see(piece)
    if end - scan.position > UNSEEN_BYTES:
        found.damaged_at = scan.position
    return found
