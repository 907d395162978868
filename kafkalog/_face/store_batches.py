"""Arrow output of a StoreReader: converts a held chunk to record batches of one partition, with the offset after each.

Importing this module imports pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from kafkalog._face import arrow
from kafkalog._face.chunk_reader import ARROW_BATCH_BYTES, UNREADABLE
from kafkalog._face.decoded import SAMPLE_ROWS, SAMPLED, DecodedColumns, Sample, known_schema, with_values
from kafkalog._face.selected import batches_in
from kafkalog._face.selection import Selection
from kafkalog._face.window import Range
from kafkalog.errors import IllegalArgumentException

if TYPE_CHECKING:
    from kafkalog._face.chunk_reader import Chunk
    from kafkalog._face.partition_reader import PartitionReader
    from kafkalog._face.reader_options import ReaderOptions
    from kafkalog._face.value_columns import ValueDecoding
    from kafkalog.engine.log.source import Source


class HeldChunk:
    """A chunk that a PartitionReader holds, from the reader's position on, as an input of the decoder."""

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
    """The wanted columns of the selected records, and how they are decoded.

    `sample` yields values from which the schema of JSON is inferred, `anywhere` values from the whole partitions.
    IllegalArgumentException for an unknown column.
    """

    def __init__(
        self,
        columns: Sequence[str] | None,
        batch_rows: int,
        options: ReaderOptions,
        decode: ValueDecoding,
        sample: Sample,
        anywhere: Sample,
    ) -> None:
        self._decoded = DecodedColumns(decode, columns, sample, anywhere)
        if self._decoded.schema is None:
            self._decoded.learn(anywhere)
        self._batch_rows = batch_rows
        self._selection = options.selection
        self._asked = options.selection.columns_for(self._decoded.read)
        self._limits = options.selection.limits(options.times)

    def check_follows(self) -> None:
        """Raises IllegalArgumentException if the fields of later records would be unknown."""
        if self._decoded.is_blind:
            raise IllegalArgumentException(
                "values: there is no JSON yet from which the fields of later records can be inferred",
                hint='give schema=, such as {"id": "int64"}',
            )

    @property
    def schema(self) -> pa.Schema:
        """The schema of the record batches. IllegalArgumentException if it is not known yet."""
        return known_schema(self._decoded.schema)

    def of(self, reader: PartitionReader, chunk: Chunk) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Yields the held chunk as (offset after the batch, its last leader epoch, batch). At damage the records before
        it are yielded first, then the error is raised."""
        held = HeldChunk(reader, chunk)
        table = chunk.table
        for last, batch in arrow.placed_batches(
            held, self._asked, self._batch_rows, batch_bytes=ARROW_BATCH_BYTES, limits=self._limits
        ):
            row = min(int(table["last_offset"].searchsorted(last)), len(table) - 1)
            batch = self._selection.filtered(batch, self._decoded.read)
            if batch.num_rows:
                batch = self._decoded.of(batch)
            yield last + 1, int(table["leader_epoch"][row]), batch


def sample_of(readers: Iterable[PartitionReader], options: ReaderOptions) -> Iterator[pa.RecordBatch]:
    """Yields the values that the readers read next, without nulls, up to damage, which is reported when it is read."""
    left = SAMPLE_ROWS
    for reader in readers:
        source = reader.source
        start = min(max(reader.position, source.log_start_offset), source.visible_end(options.isolation))
        place = Range(start, options.end_offset, options.times)
        for batch in _values(source, options.selection.untold(), place):
            yield batch
            left -= batch.num_rows
            if left <= 0:
                return


def sample_anywhere(readers: Iterable[PartitionReader], options: ReaderOptions) -> Iterator[pa.RecordBatch]:
    """Yields values of the readers' partitions, independent of positions and selections."""
    every, left = Selection(isolation=options.isolation), SAMPLE_ROWS
    for reader in readers:
        source = reader.source
        for batch in _values(source, every, Range(source.log_start_offset, None, every.times)):
            yield batch
            left -= batch.num_rows
            if left <= 0:
                return


def _values(source: Source, selection: Selection, place: Range) -> Iterator[pa.RecordBatch]:
    with suppress(*UNREADABLE):
        yield from with_values(batches_in(partial(_ready, source), selection, place, SAMPLED, SAMPLE_ROWS))


def _ready(source: Source) -> Source:
    return source
