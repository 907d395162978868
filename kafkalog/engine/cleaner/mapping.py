"""OffsetMapping: the first walk of a pass.  It puts each key of the dirty section, with its last offset, into the map.

It skips control batches, aborted records, records without a key, and records below the first dirty offset.  The map
counts as full at a share of its slots.  The walk ends at the first record that might not fit, whether its key is
already in the map or not.  The pass then ends at the record before it, perhaps in the middle of a batch.

The plain path handles every batch: any magic, any codec, one batch after the other, its keys in bulk.
`_native.survivors` handles the usual batches, many in one call, with the same result; a test runs both paths.
Belongs to one pass and its thread.  Knows no file.  Mirrors the loop of Cleaner.buildOffsetMapForSegment (4.4.0).
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from kafkalog._native.codec import batches as native
from kafkalog._native.codec import survivors
from kafkalog._native.codec.offset_map import SkimpyOffsetMap
from kafkalog.engine.cleaner.io_buffers import Chunk
from kafkalog.engine.cleaner.payload import inflated, payload_of
from kafkalog.engine.cleaner.stats import CleanerStats
from kafkalog.engine.cleaner.stored import Stored, column, has_key, stored_records
from kafkalog.engine.cleaner.transactions import CleanedTransactionMetadata
from kafkalog.engine.format.records import PART_RECORDS
from kafkalog.errors import IllegalArgumentException, KafkalogError

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader


def offset_map_of(memory: int) -> SkimpyOffsetMap:
    """Returns a map of `memory` bytes, 24 for each key.  IllegalArgumentException for a size that Kafka refuses."""
    try:
        return SkimpyOffsetMap(memory)
    except ValueError as error:
        raise IllegalArgumentException(str(error)) from error


class OffsetMapping:
    """One walk over the batches, from the segment with `start_offset` on, into a map of up to `desired_size` keys."""

    def __init__(
        self,
        offset_map: SkimpyOffsetMap,
        start_offset: int,
        desired_size: int,
        max_record_bytes: int,
        transactions: CleanedTransactionMetadata,
        stats: CleanerStats,
    ) -> None:
        self.offset_map = offset_map
        self.start_offset = start_offset
        self.desired_size = desired_size
        self.max_record_bytes = max_record_bytes
        self.transactions = transactions
        self.stats = stats
        self._inflate = partial(inflated, max_record_bytes)

    def take(self, chunk: Chunk, row: int) -> tuple[int, bool]:
        """Handles batches of a chunk's table from `row` on.

        Returns the row after the last one, and whether the map is full.  An error for a batch that does not parse names
        its place.
        """
        row, is_full = self._take_usual(chunk, row)
        if is_full or row == len(chunk.table):
            return row, is_full
        header = native.headers_from_table(chunk.table[row : row + 1])[0]
        try:
            return row + 1, not self._take_batch(chunk, row, header)
        except KafkalogError as error:
            chunk.with_place(error, header.position)
            raise

    def _take_usual(self, chunk: Chunk, row: int) -> tuple[int, bool]:
        """Handles usual batches in bulk.

        Returns the row of the first unusual batch, the end of the table, or the row at which the map is full.
        """
        row, is_full, read = survivors.add_keys(
            self.offset_map,
            chunk.data,
            chunk.table,
            row,
            start_offset=self.start_offset,
            limit=self.desired_size,
            inflate=self._inflate,
        )
        self.stats.map_messages_read += read
        return row, is_full

    def _take_vouched(self, chunk: Chunk, row: int, header: BatchHeader) -> bool | None:
        """Handles a batch of magic 2 whose records count.

        Returns whether all of it was handled; None if the plain path must handle it.
        """
        payload = payload_of(chunk.data, header, self.max_record_bytes)
        if payload is None:
            return None
        after, is_full, read = survivors.add_keys(
            self.offset_map,
            chunk.data,
            chunk.table,
            row,
            start_offset=self.start_offset,
            limit=self.desired_size,
            payload=payload if header.codec else None,
            vouched=True,
        )
        self.stats.map_messages_read += read
        return False if is_full else None if after == row else True

    def _take_batch(self, chunk: Chunk, row: int, header: BatchHeader) -> bool:
        """Handles one batch.  Returns False if the map is full before the end of the batch."""
        data = chunk.data
        if header.is_control:
            self.transactions.on_control_batch_read(data, header)
            self.stats.map_messages_read += 1
        elif self.transactions.on_batch_read(header):
            self.stats.map_messages_read += header.count
        else:
            taken = self._take_vouched(chunk, row, header)
            if taken is None:
                taken = self._take_records(stored_records(data, header, self.max_record_bytes))
            if not taken:
                return False
        if header.last_offset >= self.start_offset:
            self.offset_map.latest_offset = header.last_offset
        return True

    def _take_records(self, records: Iterator[Stored]) -> bool:
        """Handles all records of a batch, some ten thousand at a time.

        A record that does not parse is an error only if the records before it fit into the map.
        """
        start = self.start_offset
        while True:
            part: list[tuple[bytes | memoryview | None, int]] = []
            try:
                for record in itertools.islice(records, PART_RECORDS):
                    wanted = has_key(record) and record.offset >= start
                    part.append((record.key if wanted else None, record.offset))
            except KafkalogError:
                if self._put(part):
                    raise
                return False
            if not self._put(part):
                return False
            if len(part) < PART_RECORDS:
                return True

    def _put(self, records: list[tuple[bytes | memoryview | None, int]]) -> bool:
        """Puts keys and offsets of records into the map; the key is None for a record that the map skips.

        Returns False if not all fit.  Only the records up to there are counted.
        """
        keyed = [(number, key, offset) for number, (key, offset) in enumerate(records) if key is not None]
        done = 0
        if keyed:
            numbers, keys, offsets = zip(*keyed, strict=True)
            done = self.offset_map.put_many(*column(keys), array("q", offsets), self.desired_size)
        if done < len(keyed):
            self.stats.map_messages_read += numbers[done]
            return False
        self.stats.map_messages_read += len(records)
        return True
