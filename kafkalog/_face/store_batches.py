"""What a StoreReader hands out as Arrow: a held chunk to record batches, each of one partition, with how far it goes.

pyarrow is imported by whoever imports this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from kafkalog._face import arrow
from kafkalog._face.times import ALL_TIMES
from kafkalog.partition import ARROW_BATCH_BYTES

if TYPE_CHECKING:
    from kafkalog._face.chunk_reader import Chunk
    from kafkalog._face.partition_reader import PartitionReader
    from kafkalog._face.times import Times
    from kafkalog.engine.log.source import Source

STORE_DEFAULT = ("topic", "partition", *arrow.PYTHON_DEFAULT)


class HeldChunk:
    """A chunk that a PartitionReader holds, from its position on, as what is decoded."""

    end_offset = None

    def __init__(self, reader: PartitionReader, chunk: Chunk) -> None:
        self.source: Source = reader.source
        self.first_offset = reader.first_offset
        self.offset = reader.offset
        self.committed = reader.committed
        self.max_decompressed_bytes = reader.max_decompressed_bytes
        self.chunk = chunk

    def __iter__(self) -> Iterator[Chunk]:
        yield self.chunk


class Columns:
    """Which columns are wanted of which records.  IllegalArgumentException for an unknown one."""

    def __init__(self, columns: Sequence[str] | None, batch_rows: int, key_prefix: bytes | None, times: Times) -> None:
        arrow.schema(columns)
        self.names = STORE_DEFAULT if columns is None else tuple(columns)
        self._batch_rows = batch_rows
        self._key_prefix = key_prefix
        self._times = times
        asked = [*self.names]
        if key_prefix is not None and "key" not in asked:
            asked.append("key")
        if times != ALL_TIMES and "timestamp" not in asked:
            asked.append("timestamp")
        self._asked = asked

    def of(self, reader: PartitionReader, chunk: Chunk) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Of what the reader holds: (the offset behind it, its last leader epoch, batch); at damage what lies before
        it, then the error."""
        held = HeldChunk(reader, chunk)
        table = chunk.table
        for last, batch in arrow.placed_batches(held, self._asked, self._batch_rows, batch_bytes=ARROW_BATCH_BYTES):
            row = min(int(table["last_offset"].searchsorted(last)), len(table) - 1)
            yield last + 1, int(table["leader_epoch"][row]), self._filtered(batch)

    def _filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._key_prefix is not None:
            batch = batch.filter(pc.starts_with(batch.column("key"), pattern=self._key_prefix))
        if self._times != ALL_TIMES:
            found, (first, last) = batch.column("timestamp").cast(pa.int64()), self._times
            batch = batch.filter(pc.and_(pc.greater_equal(found, first), pc.less_equal(found, last)))
        return batch if len(self._asked) == len(self.names) else batch.select(list(self.names))
