"""The change of each key of a log between two offsets: its last record there, and its value before.

`Latest` finds the last record of each key from the start on. For each share of the keys that it holds, a second map
takes the same keys from the log below the start. This gives a pair of offsets for each key. The values before the start
are read once, in the log's order, into a file without a name, and each batch of changes takes its values from there.
The pages of this file are the operating system's memory, which it can reclaim.

In memory are two maps of half the memory each, 24 bytes for each key, and a batch of rows. If a key has no value before
the start, the log cannot tell whether it never had one after a cleaner or retention removed records there: the caller
says so with `is_whole`. Belongs to one thread. Importing this module imports pyarrow.
"""

from __future__ import annotations

import itertools
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafkalog._face import arrow
from kafkalog._face.arrow import NO_LIMITS
from kafkalog._face.chunk_reader import UNREADABLE, ChunkReader
from kafkalog._face.latest import BATCH_BYTES, CHUNK_BYTES, MEMORY_BYTES, Latest
from kafkalog._native.codec.latest import LatestOffsets
from kafkalog.engine.files import OS_FILES
from kafkalog.errors import KafkalogError, KafkaStorageException

if TYPE_CHECKING:
    from kafkalog.engine.log.source import Source

INSERT, UPDATE, DELETE, UPSERT = KINDS = ("insert", "update", "delete", "upsert")
COLUMNS: Mapping[str, pa.DataType] = {
    "changeType": pa.string(),
    "valueBefore": pa.binary(),
    "offsetBefore": pa.int64(),
}
READ_ROWS = 32_000


class Changes(Latest):
    """The last record of each key in [start, end) of `source`, as in `Latest`, and its last record below `start`.

    `is_whole`: no record below `start` that was the last of its key there has been deleted. `failure_before`: damage
    below the start. No value after the damage is known, so no values before are given at all.
    """

    def __init__(
        self,
        source: Source,
        end: int | None = None,
        *,
        start: int,
        is_whole: bool = True,
        limits: Mapping[str, Any] = NO_LIMITS,
        isolation: str = "read_committed",
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self.is_whole = is_whole
        self.failure_before: KafkalogError | None = None
        self._from = start
        self._pairs: list[npt.NDArray[np.int64]] = []
        super().__init__(
            source, end, start=start, limits=limits, isolation=isolation, memory_bytes=max(memory_bytes // 2, 1)
        )
        none = np.empty((0, 2), np.int64)
        pairs = np.concatenate([none, *(() if self.failure_before is not None else self._pairs)])
        self._pairs = []
        pairs = pairs[np.argsort(pairs[:, 0])]
        self._last_with_before, self._before = pairs[:, 0].copy(), pairs[:, 1].copy()

    # --- the walks over keys -------------------------------------------------------------------------

    def _taken(self, offsets_map: LatestOffsets) -> bytearray:
        if self._from <= self.source.log_start_offset or not len(offsets_map) or self.failure_before is not None:
            return offsets_map.offsets()
        before = LatestOffsets(offsets_map.memory)
        try:
            self._put_before(before, offsets_map)
        except UNREADABLE as error:
            self.failure_before = error.with_traceback(None)
            return offsets_map.offsets()
        pairs = np.frombuffer(offsets_map.pairs(before), np.int64).reshape(-1, 2)
        self._pairs.append(pairs[pairs[:, 1] >= 0])
        return bytearray(np.ascontiguousarray(pairs[:, 0]))

    def _put_before(self, before: LatestOffsets, among: LatestOffsets) -> None:
        with ChunkReader(
            self.source,
            self.source.log_start_offset,
            end_offset=self._from,
            isolation=self.isolation,
            chunk_bytes=CHUNK_BYTES,
            out_of_range="earliest",
        ) as reader:
            decoder = arrow.Decoder(reader, {"offset", "key"}, self._limits)
            for chunk in reader:
                row = 0
                while row < len(chunk.table):
                    row = decoder.add(chunk, row)
                    if decoder.rows:
                        before.put_columns(decoder.columns(), 0, among)
                self._tell(chunk)

    # --- the walks over values -----------------------------------------------------------------------

    def changes(
        self,
        columns: Sequence[str],
        batch_rows: int = 65_536,
        known: Mapping[str, tuple[str, Any]] = arrow.PYTHON_COLUMNS,
        *,
        batch_bytes: int = BATCH_BYTES,
        scratch: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the last record of each key, by offset, with COLUMNS: the kind of change, the value before and its
        offset; null if there is none. The kinds are `insert` (no value before), `update`, `delete` (the last record is
        a tombstone) and `upsert` (the log has no value before, but there may have been one).

        Batches have up to `batch_rows` rows, and about `batch_bytes` of records and as many of values before.
        `scratch` is the directory for values before, by default the system's temporary directory. KafkaStorageException
        if they do not fit there. Otherwise as `batches`.
        """
        needed = list(dict.fromkeys([*columns, "offset", "value"]))
        before = self._read_before(scratch)
        for batch in self.batches(needed, batch_rows, known, tombstones=True, batch_bytes=batch_bytes):
            yield from self._joined(batch, before, batch_bytes)

    def _read_before(self, scratch: str | None) -> _Values:
        offsets = np.sort(self._before)
        found = _Values(offsets, scratch)
        if len(offsets):
            for batch, rows in self._found(offsets, ["offset", "value"], READ_ROWS, arrow.PYTHON_COLUMNS, BATCH_BYTES):
                values = batch.column("value")
                if rows.any():
                    found.add(values if rows.all() else values.filter(pa.array(rows)))
        found.finish()
        return found

    def _joined(self, batch: pa.RecordBatch, before: _Values, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        offsets = batch.column("offset").to_numpy()
        places = np.searchsorted(self._last_with_before, offsets)
        places[places == len(self._last_with_before)] = 0
        has = np.zeros(len(offsets), bool)
        if len(self._last_with_before):
            has = self._last_with_before[places] == offsets
        offsets_before = np.where(has, self._before[places] if has.any() else 0, 0)
        rows_before = before.places(offsets_before, has)
        is_deleted = batch.column("value").is_null().to_numpy(zero_copy_only=False)
        # A tombstone before the start is not a value.
        has &= before.is_there(rows_before)
        kinds = np.where(has, 1, 0 if self.is_whole and self.failure_before is None else 3)
        kinds[is_deleted] = 2
        words = pa.DictionaryArray.from_arrays(pa.array(kinds, pa.int8()), pa.array(KINDS)).cast(pa.string())
        numbers = pa.array(offsets_before, pa.int64(), mask=~has)
        sums = np.cumsum(before.sizes(rows_before) * has) // batch_bytes
        bounds = [0, *(np.flatnonzero(np.diff(sums)) + 1).tolist(), len(offsets)]
        for first, behind in itertools.pairwise(bounds):
            values = before.take(rows_before[first:behind], has[first:behind])
            part = batch.slice(first, behind - first)
            made = [words.slice(first, behind - first), values, numbers.slice(first, behind - first)]
            for name, column in zip(COLUMNS, made, strict=True):
                part = part.append_column(pa.field(name, COLUMNS[name]), column)
            yield part


class _Values:
    """The values of records at ascending offsets, in a file without a name."""

    def __init__(self, offsets: npt.NDArray[np.int64], folder: str | None) -> None:
        self._offsets = offsets
        self._ends: list[npt.NDArray[np.int64]] = [np.zeros(1, np.int64)]
        self._valid: list[npt.NDArray[np.bool_]] = [np.zeros(0, bool)]
        self._size = 0
        self._file: Any = None
        self._folder = folder
        self._column: Any = None

    def add(self, values: pa.Array) -> None:
        """Adds the values of the next offsets."""
        places = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
        first, behind = int(places[0]), int(places[-1])
        self._valid.append(values.is_valid().to_numpy(zero_copy_only=False))
        self._ends.append(places[1:].astype(np.int64) - first + self._size)
        if behind > first:
            try:
                if self._file is None:
                    self._file = tempfile.TemporaryFile(dir=self._folder, prefix="kafkalog-before-")  # noqa: SIM115
                self._file.write(memoryview(values.buffers()[2])[first:behind])
            except OSError as error:
                raise self._full(error) from error
            self._size += behind - first

    def finish(self) -> None:
        """Ends the additions: from now on values can be taken."""
        data: Any = b""
        if self._file is not None:
            try:
                self._file.flush()
                data = mmap.mmap(self._file.fileno(), self._size, access=mmap.ACCESS_READ)
                self._file.close()
            except OSError as error:
                raise self._full(error) from error
        self._ends, self._valid = [np.concatenate(self._ends)], [np.concatenate(self._valid)]
        assert len(self._valid[0]) == len(self._offsets), (len(self._valid[0]), len(self._offsets))
        validity = pa.array(self._valid[0]).buffers()[1]
        buffers = [validity, pa.py_buffer(self._ends[0]), pa.py_buffer(data)]
        self._column = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self._offsets), buffers)

    def _full(self, error: OSError) -> KafkaStorageException:
        made = KafkaStorageException.because_of(error, f"cannot keep {self._size} bytes of values before the start")
        made.hint = f"they are in {self._folder or tempfile.gettempdir()}; Spark takes SPARK_LOCAL_DIRS for this"
        return made

    def places(self, offsets: npt.NDArray[np.int64], has: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Returns the rows of some offsets where `has` is true; 0 elsewhere."""
        return np.where(has, np.searchsorted(self._offsets, offsets), 0)

    def is_there(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Returns whether each row's value is not null."""
        return self._valid[0][rows] if len(self._offsets) else np.zeros(len(rows), bool)

    def sizes(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        ends = self._ends[0]
        return ends[rows + 1] - ends[rows] if len(self._offsets) else np.zeros(len(rows), np.int64)

    def take(self, rows: npt.NDArray[np.int64], has: npt.NDArray[np.bool_]) -> pa.Array:
        """Returns the values of rows, null where `has` is false or the value is null."""
        if not len(self._offsets):
            return pa.nulls(len(rows), pa.binary())
        return self._column.take(pa.array(rows, mask=~has)).cast(pa.binary())


def scratch_folder() -> str | None:
    """Returns Spark's directory for temporary files on an executor; None for the system's directory."""
    listed = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return next((folder for folder in listed if folder and OS_FILES.is_dir(folder)), None)
