"""What a StoreReader hands out as Arrow: a held chunk to record batches, each of one partition, with how far it goes.

pyarrow is imported by whoever imports this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from kafkalog._face import arrow
from kafkalog._face.selected import ARROW_BATCH_BYTES

if TYPE_CHECKING:
    from kafkalog._face.chunk_reader import Chunk
    from kafkalog._face.partition_reader import PartitionReader
    from kafkalog._face.selection import Selection
    from kafkalog._face.times import Times
    from kafkalog.engine.log.source import Source


class HeldChunk:
    """A chunk that a PartitionReader holds, from its position on, as what is decoded."""

    def __init__(self, reader: PartitionReader, chunk: Chunk) -> None:
        self.source: Source = reader.source
        self.first_offset = reader.first_offset
        self.offset = reader.offset
        self.end_offset = reader.end_offset
        self.committed = reader.committed
        self.max_decompressed_bytes = reader.max_decompressed_bytes
        self.chunk = chunk

    def __iter__(self) -> Iterator[Chunk]:
        yield self.chunk


class Columns:
    """Which columns are wanted of the selected records.  IllegalArgumentException for an unknown one."""

    def __init__(self, columns: Sequence[str] | None, batch_rows: int, selection: Selection, times: Times) -> None:
        self.names = arrow.schema(columns).names
        self._batch_rows = batch_rows
        self._selection = selection
        self._asked = selection.columns_for(self.names)
        self._limits = selection.limits(times)

    def of(self, reader: PartitionReader, chunk: Chunk) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Of what the reader holds: (the offset behind it, its last leader epoch, batch); at damage what lies before
        it, then the error."""
        held = HeldChunk(reader, chunk)
        table = chunk.table
        for last, batch in arrow.placed_batches(
            held, self._asked, self._batch_rows, batch_bytes=ARROW_BATCH_BYTES, limits=self._limits
        ):
            row = min(int(table["last_offset"].searchsorted(last)), len(table) - 1)
            yield last + 1, int(table["leader_epoch"][row]), self._selection.filtered(batch, self.names)
