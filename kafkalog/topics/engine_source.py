"""What readers see of a log that this process has open: `UnifiedLog` as a `Source`.

Everything below the log's end is ours, so what cannot be read there is damage.  The engine finds batches as Kafka does:
it believes the indexes, and where it finds nothing it says nothing.  An answer that leaves something out is held
against the log here, which costs something only in compacted logs and damaged ones.  Thread-safe: whatever the engine
says where another thread closed the log meanwhile is IllegalStateException here, as for a log that is closed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kafkalog._native import batches as native
from kafkalog.errors import (
    BadBytesError,
    ClosedChannelException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidRecordException,
    KafkalogError,
    KafkaStorageException,
)
from kafkalog.format.batch import RECORD_BATCH_OVERHEAD
from kafkalog.limits import INT_MAX
from kafkalog.log.types import FetchIsolation
from kafkalog.segment.file_records import LogScan
from kafkalog.segment.loss import NO_REASON, VERDICT_TEXT
from kafkalog.topics.index_files import AbortedRange
from kafkalog.topics.snapshot import Damage, Extent, check_isolation, check_stretch

if TYPE_CHECKING:
    from kafkalog.files.processes import Life
    from kafkalog.format.names import TopicPartition
    from kafkalog.log.unified_log import UnifiedLog


class EngineSource:
    """A reader's view of our own open log."""

    def __init__(self, topic_partition: TopicPartition, engine: UnifiedLog, life: Life) -> None:
        self.topic_partition = topic_partition
        self.life = life
        self._engine = engine

    @property
    def log_start_offset(self) -> int:
        return self._engine.log_start_offset

    def check_usable(self) -> None:
        """IllegalStateException in a forked child of the process that opened the log."""
        if self.life.forked:
            raise self.life.elsewhere(f"the log of {self.topic_partition}")

    def recheck(self) -> None:
        """Nothing to look up: the engine always knows."""

    def check_end(self, isolation: str = "read_uncommitted") -> None:
        """CorruptRecordException when bytes of the log lie behind the batch that gave the log its end.

        A clean open believes what it finds: behind a batch whose size is damaged it finds nothing.
        """
        if self.visible_end(isolation) < self._engine.log_end_offset:
            return
        try:
            if self._damage_at_end() is None:
                return
        except ClosedChannelException:  # the segment was deleted since we found it, or the log closed
            self._check_open()
        with self._engine.lock:  # a truncation may be under way: without one, once more
            damage = None if self._engine.local_log.is_closed else self._damage_at_end()
        if damage is not None:
            raise damage.error()

    def _damage_at_end(self) -> Damage | None:
        local = self._engine.local_log
        end_offset, base, size = local.next_offset_metadata
        segment = local.segments.get(base)
        if segment is None or not size:
            return None
        file = segment.log.channel
        indexed = segment.offset_index.lookup(end_offset)
        head = file.pread(RECORD_BATCH_OVERHEAD, indexed.position)
        start = indexed.position
        if len(head) < RECORD_BATCH_OVERHEAD or native.header_at(head).last_offset != indexed.offset:
            start = 0
        scan = LogScan(file, start, size, check_crc=False)
        for _ in scan:
            pass
        if scan.position >= size:
            return None
        return Damage(file.path, scan.position, VERDICT_TEXT.get(scan.stopped, NO_REASON))

    def visible_end(self, isolation: str = "read_uncommitted") -> int:
        self.check_usable()
        committed = check_isolation(isolation)
        try:
            return self._engine.last_stable_offset if committed else self._engine.high_watermark
        except KafkaStorageException:
            self._check_open()
            raise

    def extent(self, offset: int, isolation: str = "read_uncommitted") -> Extent | None:
        self.check_usable()
        self._check_open()
        try:
            try:
                return self._extent(offset, isolation)
            except (BadBytesError, ClosedChannelException, IllegalArgumentException):
                self._check_open()
                with self._engine.lock:  # a truncation may be under way: without one, once more
                    return self._extent(offset, isolation)
        except (ClosedChannelException, OSError) as error:
            self._check_open()  # closed meanwhile
            if isinstance(error, KafkalogError):
                raise
            raise KafkaStorageException(f"cannot read {self.topic_partition}: {error}") from error

    def _check_open(self) -> None:
        if self._engine.local_log.is_closed:
            raise IllegalStateException(
                f"{self.topic_partition} of {os.path.dirname(self._engine.dir)} is closed",
                hint="kafkalog.open_log opens it again",
            ) from None

    def _extent(self, offset: int, isolation: str) -> Extent | None:
        committed = check_isolation(isolation)
        kind = FetchIsolation.TXN_COMMITTED if committed else FetchIsolation.HIGH_WATERMARK
        visible = self.visible_end(isolation)
        try:
            info = self._engine.read(offset, INT_MAX, kind, False)
        except (BadBytesError, InvalidRecordException):
            return self._walked(offset, committed)
        records: Any = info.records
        if records.size == 0:
            return self._walked(offset, committed) if offset < visible else None
        if info.fetch_offset_metadata.message_offset > offset:
            return self._walked(offset, committed)
        file = records.file
        base = info.fetch_offset_metadata.segment_base_offset
        end = records.position + records.size
        segments = self._engine.local_log.segments
        following = segments.higher_segment(base)
        here = segments.get(base)
        whole = following is not None and here is not None and end >= here.size
        next_base = following.base_offset if whole and following is not None else None
        # Asked after the read: an append between the two moves the end, and the stretch holds what it brought.
        limit = self.visible_end(isolation) - 1
        return Extent(file, file.path, base, records.position, end, next_base=next_base, base_limit=limit)

    def _walked(self, offset: int, committed: bool) -> Extent | None:
        """As `extent`, by the log alone: the index led astray, compaction took `offset`, or something is damaged."""
        engine = self._engine
        segments = engine.local_log.segments
        bound = engine._fetch_last_stable_offset_metadata() if committed else engine._fetch_high_watermark_metadata()
        segment = segments.floor_segment(offset)
        while segment is not None and segment.base_offset <= bound.segment_base_offset:
            base, following = segment.base_offset, segments.higher_segment(segment.base_offset)
            limit = base + INT_MAX if following is None else following.base_offset - 1
            file, end = segment.log.channel, segment.log.size
            base_limit = bound.message_offset - 1
            if base == bound.segment_base_offset:
                end = bound.relative_position_in_segment
            position = -1
            for piece in LogScan(file, 0, end, check_crc=False):
                holding = np.flatnonzero(piece.table["last_offset"] >= offset)
                if len(holding):
                    row = piece.table[holding[0]]
                    position = int(row["position"])
                    if int(row["base_offset"]) > offset or int(row["magic"]) < 2:
                        check_stretch(file, file.path, 0, position, base, limit)
                    next_base = following.base_offset if following is not None and end == segment.log.size else None
                    return Extent(file, file.path, base, position, end, next_base=next_base, base_limit=base_limit)
            check_stretch(file, file.path, 0, end, base, limit)
            segment = following
        return None

    @property
    def cuts(self) -> int:
        """How often the log was truncated: what was found before is no longer sure to be there."""
        return self._engine.local_log.truncations

    def aborted_in(self, first_offset: int, last_offset: int) -> Sequence[AbortedRange]:
        try:
            found = self._engine.collect_aborted_transactions(first_offset, last_offset + 1)
        except (ClosedChannelException, KafkaStorageException):
            self._check_open()
            raise
        return [AbortedRange(txn.producer_id, txn.first_offset, txn.last_offset) for txn in found]

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        try:
            found = self._engine.fetch_offset_by_timestamp(timestamp_ms)
        except (ClosedChannelException, KafkaStorageException):
            self._check_open()
            raise
        return None if found is None else found.offset
