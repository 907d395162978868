"""The last value of each key of a log, in two passes: the result of a full compaction, without compacting.

The first pass decodes only keys, and puts each key's last offset into a `LatestOffsets` map. The second pass decodes
the batches that hold such an offset, and yields their records in the log's order. If the map may not grow any further,
it keeps a share of the keys, and the first pass is repeated for each other share.

In memory are the map, eight bytes for each key, and a batch of rows. Nothing is locked and nothing is written. Records
that retention deletes between the passes are left out, as they would be a moment later. If a cleaner or a truncation
removed records that the first pass found, the second pass raises an error. Records that a cleaner removed before the
first pass reached them are not seen: a key with a newer value after the end may then be missing. Two keys with the same
MD5 count as one, as in Kafka's cleaner. Belongs to one thread. Importing this module imports pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafkalog._face import arrow
from kafkalog._face.arrow import NO_LIMITS
from kafkalog._face.chunk_reader import UNREADABLE, Chunk, ChunkReader
from kafkalog._native.codec.latest import SHARES, LatestOffsets
from kafkalog.engine.format import values
from kafkalog.errors import IllegalArgumentException, KafkalogError, OffsetOutOfRangeException

if TYPE_CHECKING:
    from kafkalog.engine.log.source import Source
    from kafkalog.engine.segment.loss import Lost

T = TypeVar("T")
R = TypeVar("R", bound=ChunkReader)

CHUNK_BYTES = 4 << 20
BATCH_BYTES = 48 << 20
MEMORY_BYTES = 512 << 20
LEAST_MEMORY_BYTES = 1 << 16
FIRST_MAP_BYTES = 8 << 20  # first size of a map that grows as needed
MAP_BYTES_MAX = (1 << 31) - 1


def memory_of(memory_bytes: Any) -> int:
    """Returns the checked memory limit of the map, in bytes."""
    return values.whole(memory_bytes, "memory_bytes", low=LEAST_MEMORY_BYTES, expected="bytes for the map of keys")


class Latest:
    """The last offset of each key of `source` below `end`, from `start` on, among the records that ColumnBuilder's
    `limits` accept. With `end` None, the end is the one that readers of `isolation` see.

    The constructor does the first pass. `keys` is the number of keys, deleted ones included. `keyless` is the number of
    records without a key, which are ignored. `end_offset` is the offset up to which the pass read (exclusive).
    `open_from` is the offset at which an open transaction stopped it, or None.

    Damage ends the pass: `failure` is the error, the records before it count, and `batches` raises it at its end. With
    `tell`, each `Lost` range is reported and the passes continue after it. `progress` gets the number of bytes read, in
    each pass.
    """

    def __init__(
        self,
        source: Source,
        end: int | None = None,
        *,
        start: int | None = None,
        limits: Mapping[str, Any] = NO_LIMITS,
        isolation: str = "read_committed",
        memory_bytes: int = MEMORY_BYTES,
        tell: Callable[[Lost], object] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.source = source
        self.isolation = isolation
        self._start = start
        self._limits = limits
        self._tell_loss = tell
        self.failure: KafkalogError | None = None
        self._progress = progress
        self._cuts = source.cuts
        high = source.visible_end()  # first: a later append cannot open a transaction below it
        limit = source.visible_end(isolation)
        self.open_from = limit if limit < (high if end is None else min(end, high)) else None
        self.end_offset = limit if end is None else min(end, limit)
        self._reached = -1  # the last offset that could be decoded
        # With `tell`, the reader itself checks whether the end is damaged, and reports that like any damage.
        self._walk_end = self.end_offset if tell is None else end
        self._last, self.keyless = self._offsets(memory_bytes)
        if self.failure is None and tell is None and (end is None or end > limit):
            try:
                source.check_end(isolation)
            except UNREADABLE as error:
                self.failure = error.with_traceback(None)

    @property
    def keys(self) -> int:
        return len(self._last)

    # --- the first pass ------------------------------------------------------------------------------

    def _offsets(self, memory_bytes: int) -> tuple[npt.NDArray[np.int64], int]:
        """Returns the last offset of each key, sorted, and the number of records without a key."""
        most = min(memory_bytes * 2 // 3, MAP_BYTES_MAX)  # while it grows or drops keys, half of it is there twice
        size = most
        while size > FIRST_MAP_BYTES:
            size //= 2
        offsets_map = LatestOffsets(size)
        found = bytearray()
        keyless, first, end = 0, 0, SHARES
        while True:
            offsets_map.begin(first, end)
            try:
                self._put_all(offsets_map, most)
            except UNREADABLE as error:
                self.failure = error.with_traceback(None)  # frames of the traceback hold the reader and its file
                self.end_offset = self._walk_end = self._reached + 1
            if not first:
                keyless = offsets_map.keyless
            found += self._taken(offsets_map)
            first, end = offsets_map.shares
            if end == SHARES:
                break
            first, end = end, min(2 * end - first, SHARES)
        del offsets_map
        ascending = np.frombuffer(found, np.int64)
        ascending.sort()
        return ascending, keyless

    def _taken(self, offsets_map: LatestOffsets) -> bytearray:
        """Returns the offsets, as int64, of a map that has all keys of its shares."""
        return offsets_map.offsets()

    def _put_all(self, offsets_map: LatestOffsets, most: int) -> None:
        def make(source: Source) -> ChunkReader:
            return ChunkReader(
                source,
                self._start,
                end_offset=self._walk_end,
                isolation=self.isolation,
                chunk_bytes=CHUNK_BYTES,
                out_of_range="earliest",
            )

        def read(reader: ChunkReader) -> Iterator[None]:
            decoder = arrow.Decoder(reader, {"offset", "key"}, self._limits)
            try:
                for chunk in reader:
                    row = 0
                    while row < len(chunk.table):
                        row = decoder.add(chunk, row)
                        self._put(decoder, offsets_map, most)
                    self._tell(chunk)
                    yield
            except UNREADABLE:
                self._put(decoder, offsets_map, most)
                raise

        for _ in self._read(make, read, self._tell_loss):
            pass

    def _read(
        self,
        make: Callable[[Source], R],
        read: Callable[[R], Iterator[T]],
        tell: Callable[[Lost], object] | None,
    ) -> Iterator[T]:
        if self._tell_loss is None or tell is None:
            with closing(make(self.source)) as reader:
                yield from read(reader)
            return
        from kafkalog._face.past_damage import read_past

        yield from read_past(self.source, tell, make, read)

    def _put(self, decoder: arrow.Decoder, offsets_map: LatestOffsets, most: int) -> None:
        if not decoder.rows:
            return
        columns = decoder.columns()
        self._reached = max(self._reached, int(columns.offsets[-1]))
        row = 0
        while (row := offsets_map.put_columns(columns, row)) < len(columns):
            first, end = offsets_map.shares
            if 2 * offsets_map.memory <= most:
                offsets_map.grow(2 * offsets_map.memory)
            elif end - first > 1:
                offsets_map.narrow((first + end) // 2)
            else:
                raise IllegalArgumentException(
                    f"memory_bytes: the keys of {self.source.topic_partition} do not fit in {SHARES} passes",
                    hint="give the map more memory",
                )

    def _tell(self, chunk: Chunk) -> None:
        if self._progress is not None:
            self._progress(len(chunk.data))

    # --- the second pass -----------------------------------------------------------------------------

    def batches(
        self,
        columns: Sequence[str] | None = None,
        batch_rows: int = 65_536,
        known: Mapping[str, tuple[str, Any]] = arrow.PYTHON_COLUMNS,
        *,
        tombstones: bool = False,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the records, by offset, in batches of up to `batch_rows` rows and of about `batch_bytes` at most.

        A key whose last value is null is deleted and left out, unless `tombstones` is set. OffsetOutOfRangeException if
        records were removed meanwhile. At damage the records before it are yielded first.
        """
        wanted = arrow.schema(columns, known).names
        gathered = arrow.Gathered(batch_rows, batch_bytes)
        needed = list(dict.fromkeys([*wanted, "offset", "value"]))
        try:
            for batch, rows in self._found(self._last, needed, batch_rows, known, batch_bytes):
                values_there = batch.column("value")
                if values_there.null_count and not tombstones:
                    rows &= values_there.is_valid().to_numpy(zero_copy_only=False)
                batch = batch.select(wanted)
                for ready in gathered.add(batch if rows.all() else batch.filter(pa.array(rows))):
                    yield ready
                    self.source.check_usable()  # a forked child also has the batches gathered before
        except KafkalogError:
            self.source.check_usable()
            yield from gathered.rest()
            raise
        self.source.check_usable()
        yield from gathered.rest()
        if self.failure is not None:
            raise self.failure

    def _found(
        self,
        left: npt.NDArray[np.int64],
        columns: Sequence[str],
        batch_rows: int,
        known: Mapping[str, tuple[str, Any]],
        batch_bytes: int,
    ) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.bool_]]]:
        """Yields batches with a mask of the rows at the offsets `left`, which are sorted. Finds all of them, or raises
        an error."""

        def read(reader: _Surviving) -> Iterator[pa.RecordBatch]:
            return arrow.record_batches(reader, columns, batch_rows, known, batch_bytes=batch_bytes)

        # The first pass has reported the lost ranges.
        for batch in self._read(partial(_Surviving, self, left), read, lambda _: None):
            offsets = batch.column("offset").to_numpy()
            passed = int(np.searchsorted(left, offsets[-1], side="right"))
            sought, left = left[:passed], left[passed:]
            places = np.searchsorted(offsets, sought)
            there = offsets[places] == sought
            self._check_gone(sought[~there])
            rows = np.zeros(len(offsets), bool)
            rows[places[there]] = True
            yield batch, rows
        self._check_gone(left)

    def _check_gone(self, offsets: npt.NDArray[np.int64]) -> None:
        """Checks that missing records were deleted by retention, and that the log was not truncated."""
        gone = offsets[offsets >= self.source.log_start_offset] if len(offsets) else offsets
        if len(gone) or self.source.cuts != self._cuts:
            what = (
                f"offset {gone[0]} of {self.source.topic_partition} was removed"
                if len(gone)
                else "records were truncated"
            )
            raise OffsetOutOfRangeException(
                f"{what} while the last values were read, by a cleaner or a truncation", hint="try again"
            )


class _Surviving(ChunkReader):
    """Yields the batches that hold one of some offsets."""

    def __init__(self, latest: Latest, last: npt.NDArray[np.int64], source: Source) -> None:
        super().__init__(
            source,
            int(last[0]) if len(last) else latest.end_offset,
            end_offset=int(last[-1]) + 1 if len(last) else latest.end_offset,
            chunk_bytes=CHUNK_BYTES,
            out_of_range="earliest",
        )
        self._latest = latest
        self._last = last
        self._behind = self.offset - 1  # the last offset of the batches so far

    def read_chunk(self) -> Chunk | None:
        while (chunk := super().read_chunk()) is not None:
            self._latest._tell(chunk)
            # The header of an old-format batch does not say where it begins: right after the previous one at most.
            ends = np.concatenate(([self._behind], chunk.table["last_offset"]))
            self._behind = int(ends[-1])
            holds = np.diff(np.searchsorted(self._last, ends, side="right")) > 0
            if holds.all():
                return chunk
            if holds.any():
                kept = Chunk(chunk.data, chunk.table[holds], chunk.path, chunk.file_position)
                kept.aborted = chunk.aborted
                return kept
        return None
