"""Reading in chunks of `chunk_bytes`, and the framing of fetch answers.

`ChunkReader` reads a partition from an offset in reads of `chunk_bytes`.  For a larger batch it doubles the chunk until
the batch fits.  A batch of more than LARGE_BATCH_BYTES is read whole only after its checksum was verified in the file,
so that a damaged size field allocates no memory.  There is no limit unless the caller sets one, so everything that was
appended can be read.  A batch that the chunk cut is kept for the next read.  An offset that the log does not have
raises or resets, as the caller chose.

Reading ends at the end of the log or with an error: a source returns extents of whole batches, so bytes of an extent
that cannot be read are damage.  Before the reader raises, it asks the source again for the offset, and raises if it
gets the same bytes a second time.  The log may have been truncated or deleted in the meantime.

A caller that uses a whole chunk before it requests the next one may let a second thread read ahead (`_native.ahead`),
as long scans do (`segment.scan`).  That thread reads bytes and validates nothing.  If it has none, the reader reads
there.

`MessageSetSend` and `MultiMessageSetSend` send the same bytes to a socket with os.sendfile.  The classes are not
thread-safe; any number of readers may read one log.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from kafkalog import _shown
from kafkalog._face.arrow_stream import ArrowStream
from kafkalog._face.keywords import unexpected
from kafkalog._face.shown import Shown
from kafkalog._face.times import ALL_TIMES, Times
from kafkalog._limits import INT_MAX, LONG_MAX
from kafkalog._native.codec import batches
from kafkalog._native.codec.reading import RecordWalk
from kafkalog._native.state.ahead import ReadAhead, busy_threads, can_read_ahead
from kafkalog._native.state.blocks import Closing
from kafkalog._native.state.descriptor import ReadBuffers
from kafkalog.engine.files.processes import generation, processors
from kafkalog.engine.format import values
from kafkalog.engine.format.batch import (
    LOG_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    SMALLEST_BATCH_BYTES,
    TRANSACTIONAL_FLAG,
    declared_size,
    magic_byte,
)
from kafkalog.engine.format.needs import need_pyarrow
from kafkalog.engine.format.records import MAX_RECORD_BYTES, PART_RECORDS, READ_BYTES_MAX, in_parts, payload
from kafkalog.engine.log.source import check_isolation
from kafkalog.engine.segment.loss import reason
from kafkalog.engine.segment.order import highest_offset, misfits
from kafkalog.engine.segment.reader import DAMAGE_HINT
from kafkalog.engine.segment.scan import AHEAD_LEAST_BYTES, LARGE_BATCH_BYTES, crc_matches_in
from kafkalog.errors import (
    BadBytesError,
    CorruptRecordException,
    DiskError,
    IllegalArgumentException,
    InvalidRecordException,
    KafkalogError,
    KafkaStorageException,
    OffsetOutOfRangeException,
    RecordBatchTooLargeException,
    SchemaException,
    UnknownTopicOrPartitionException,
)
from kafkalog.records import TIMESTAMP_TYPES, Record

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Buffer

    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog._native.codec.keys import KeyFilter
    from kafkalog.engine.log.source import Source
    from kafkalog.engine.segment.reader import Extent
    from kafkalog.engine.segment.transaction_index import AbortedTxn

T = TypeVar("T")

CHUNK_BYTES = 1 << 20
BATCH_ROWS = 65_536  # the most rows of a record batch
ARROW_BATCH_BYTES = 2 << 20  # one chunk a batch: the allocator reuses such blocks, larger ones come new and cold
RECEIVED_BYTES_MAX = 128 << 20  # the largest message set, unless the caller accepts more
UNREADABLE = (BadBytesError, InvalidRecordException)  # the errors that readers raise for damage
AHEAD_SLICE_BYTES = 2 << 20
LOOKS_MAX = 20  # how often an extent is located again if its bytes differ each time

MISPLACED = -1  # in addition to the verdicts of the native scan

# org.apache.kafka.common.protocol.Errors: the codes that a fetch answer can carry.
UNKNOWN_SERVER_ERROR = -1
NONE = 0
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
KAFKA_STORAGE_ERROR = 56
INVALID_RECORD = 87


class Chunk(Shown):
    """Whole batches: `data` holds the bytes of the file from `file_position` on.

    `table` is the result of the native scan, with positions in the file.  `headers` are the same batches as objects,
    with positions in `data`.  `aborted` are the aborted transactions that may have batches here; read_committed readers
    alone have them.
    """

    __slots__ = ("_headers", "aborted", "data", "file_position", "path", "table")

    def __init__(self, data: memoryview, table: np.ndarray, path: str, file_position: int) -> None:
        self.data = data
        self.table = table
        self.path = path
        self.file_position = file_position
        self.aborted: Sequence[AbortedTxn] = ()
        self._headers: list[BatchHeader] | None = None

    def __repr__(self) -> str:
        count = "1 batch" if len(self.table) == 1 else f"{len(self.table):,} batches"
        return f"<Chunk of {count}, {_shown.size(len(self.data))} of {self.path!r} at {self.file_position}>"

    def _repr_html_(self) -> str | None:
        """Returns a table of the batches as HTML for notebooks."""
        return _shown.or_none(self._html)

    def _html(self) -> str:
        columns = ("position", "offsets", "records", "bytes", "largest time", "producer")
        rows = (
            (
                int(row["position"]), f"{row['base_offset']} to {row['last_offset']}", int(row["record_count"]),
                int(row["size"]), _shown.moment(int(row["max_timestamp"])), int(row["producer_id"]),
            )
            for row in self.table
        )  # fmt: skip
        return _shown.table(repr(self)[1:-1], columns, rows)

    @property
    def headers(self) -> list[BatchHeader]:
        """The headers of the batches, with positions in `data`."""
        if self._headers is None:
            self._headers, _, _ = batches.headers(self.data)
        return self._headers

    def aborted_rows(self) -> np.ndarray:
        """Returns one byte for each batch: 1 if it belongs to an aborted transaction.

        Returns:
            A numpy array of uint8, as long as `table`.
        """
        table = self.table
        skip = np.zeros(len(table), np.uint8)
        transactional = (table["attributes"] & TRANSACTIONAL_FLAG) != 0
        for txn in self.aborted:
            skip |= (
                transactional
                & (table["producer_id"] == txn.producer_id)
                & (table["base_offset"] >= txn.first_offset)
                & (table["base_offset"] <= txn.last_offset)
            )
        return skip


class _Left(NamedTuple):
    """The reader's position in the segment `owner`, valid while the log's count of truncations is `cuts`."""

    owner: object
    cuts: int
    position: int
    last_offset: int


class ChunkReader(ArrowStream, Closing, Shown):
    """Reads a log in chunks of whole batches; returned by `Partition.reader`.

    Iterating over it yields Chunks, up to the current end of the log; iterate again to continue.  `records()` yields
    Records instead.  Control records are never returned.  A ChunkReader is a context manager; one thread at a time may
    use it.

    Args:
        source: The partition's Source.
        offset: The first offset to read; by default the log's start.
        chunk_bytes: The bytes of one read.
        max_chunk_bytes: The most bytes of one batch; a larger one raises RecordBatchTooLargeException.  By default
            there is no limit but the file's size.
        max_decompressed_bytes: The most bytes that a compressed batch may decompress to; a larger one raises
            CorruptRecordException.
        isolation: "read_uncommitted", or "read_committed", which skips aborted records and stops before open
            transactions.
        out_of_range: The action if the log does not have the offset: "error" raises OffsetOutOfRangeException,
            "earliest" and "latest" continue there, and an int continues at the first record at or after this time (ms
            since 1970).
        check_crcs: Verify the checksum of each batch.
        end_offset: The offset (exclusive) at which to stop; by default the log's end.
        reads_ahead: Let a second thread read long extents if a processor is idle.  Then a chunk's bytes, and its
            Records, are valid only until the next chunk is requested.

    Raises:
        IllegalArgumentException: An argument has a wrong type or value.

    Attributes:
        offset: The offset of the next record to read.
        topic_partition: The partition.

    Example:
        >>> with kafkalog.open_log("logs", "orders-0") as log:
        ...     offsets = log.append_many([b"one", b"two"])
        ...     with log.reader(isolation="read_committed") as reader:
        ...         for chunk in reader:
        ...             print(len(chunk.headers), chunk.headers[0].last_offset, reader.offset)
        1 1 2
    """

    _inner = frozenset(
        {"batches_of_records", "body_of", "check_usable", "data_batches", "data_headers", "plain_records", "read_ahead"}
        | {"reads", "source"}
    )

    # More than eight parameters: each is a separate option; all but the source and the offset are passed by name.
    def __init__(
        self,
        source: Source,
        offset: int | None = None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        max_chunk_bytes: int | None = None,
        max_decompressed_bytes: int = READ_BYTES_MAX,
        isolation: str = "read_uncommitted",
        out_of_range: str | int = "error",
        check_crcs: bool = True,
        end_offset: int | None = None,
        reads_ahead: bool = False,
    ) -> None:
        check_isolation(isolation)
        chunk_bytes = values.whole(chunk_bytes, "chunk_bytes", high=INT_MAX, expected="bytes of a read")
        if max_chunk_bytes is not None:
            max_chunk_bytes = values.whole(max_chunk_bytes, "max_chunk_bytes", expected="bytes of a batch at most")
        max_decompressed_bytes = values.whole(max_decompressed_bytes, "max_decompressed_bytes", low=1, expected="bytes")
        if chunk_bytes <= 0 or (max_chunk_bytes is not None and max_chunk_bytes < chunk_bytes):
            raise IllegalArgumentException(
                f"chunk_bytes is {chunk_bytes}; expected more than 0, and at most max_chunk_bytes ({max_chunk_bytes})"
            )
        if isinstance(out_of_range, str) and out_of_range not in ("error", "earliest", "latest"):
            raise IllegalArgumentException(
                f"out_of_range is {out_of_range!r}; expected 'error', 'earliest', 'latest' or a time in ms"
            )
        if not isinstance(out_of_range, str):
            out_of_range = values.milliseconds(out_of_range, "out_of_range", low=0)
        self.source = source
        self.topic_partition = source.topic_partition
        self.offset = source.log_start_offset if offset is None else values.offset(offset, low=0)
        self.first_offset = self.offset  # records below it are not returned; changes with seeks and resets
        self.isolation = isolation
        self.committed = isolation == "read_committed"
        self.end_offset = None if end_offset is None else values.offset(end_offset, "end_offset", low=0)
        self.chunk_bytes = chunk_bytes
        self.max_chunk_bytes = max_chunk_bytes
        self.max_decompressed_bytes = max_decompressed_bytes
        self.reads = 0  # reads of the disk so far
        self._check_crcs = values.flag(check_crcs, "check_crcs")
        self._out_of_range = out_of_range
        self._extent: Extent | None = None
        self._cuts = source.cuts  # the log's count of truncations when the extent was located
        self._position = 0  # file position of the first byte in _partial
        self._partial: bytes | memoryview = b""
        self._buffers = ReadBuffers()
        self._reads_ahead = values.flag(reads_ahead, "reads_ahead")
        self._ahead: ReadAhead | None = None
        self._alone_until = 0  # the file position from which reading ahead may be tried again
        self._last_offset = -1  # the last offset before _position; -1 at the start of an extent
        self._left: _Left | None = None  # the position at which the file was closed
        self._ended: tuple[int, int] | None = None  # where the log's end was found last
        self._suspect: tuple[str, int, int, bytes] | None = None  # the bytes that could not be read last
        self._raise_suspect: Callable[[], NoReturn] | None = None
        self._suspected: Extent | None = None  # the extent of these bytes
        self._looks = 0  # how often bytes could not be read since the last chunk

    def __repr__(self) -> str:
        return f"<ChunkReader of {self.topic_partition} at offset {self.offset}>"

    def _repr_html_(self) -> str | None:
        """Returns a table for notebooks."""
        return _shown.or_none(lambda: _shown.facts(self, self._facts()))

    def _facts(self) -> list[tuple[str, object]]:
        return [
            ("log directory", self.source.log_dir),
            ("next offset", f"{self.offset:,}"),
            ("isolation", self.isolation),
            ("end offset", self.end_offset),
            ("reads of the disk", f"{self.reads:,}"),
        ]

    def __enter__(self) -> ChunkReader:
        return self

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self.read_chunk, None)  # keeps no chunk while the next one is read: it may have 100 MB

    def seek(self, offset: int) -> None:
        """Continues at another offset; drops the rest of a batch that was read in part.

        Args:
            offset: The offset of the next record to read.

        Raises:
            IllegalArgumentException: `offset` is not an offset.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     offsets = log.append_many([b"one", b"two"])
            ...     with log.reader() as reader:
            ...         reader.seek(1)
            ...         print([record.value for record in reader.records()])
            [b'two']
        """
        self.offset = self.first_offset = values.offset(offset, low=0)
        self._suspect = self._suspected = self._raise_suspect = None
        self._looks = 0
        self.close()

    def rest(self) -> None:
        """Closes the file until the next chunk, which continues at the same position; useful for one of many readers.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     offset = log.append(b"one")
            ...     with log.reader() as reader:
            ...         reader.rest()
            ...         print([record.value for record in reader.records()])
            [b'one']
        """
        extent = self._extent
        if extent is not None:
            self._left = _Left(extent.owner, self._cuts, self._position, self._last_offset)
            self._extent = None
            self._partial = b""
            self._end_ahead(0)

    def close(self) -> None:
        """Closes the file; the reader can be used again afterwards.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     reader = log.reader()
            ...     reader.close()
        """
        self._extent = self._left = None
        self._partial = b""
        self._buffers = ReadBuffers()
        self._end_ahead(0)

    def read_chunk(self) -> Chunk | None:
        """Reads the next chunk.

        Returns:
            A Chunk of at least one batch, or None at the end of the log.

        Raises:
            CorruptRecordException: The log is damaged.
            OffsetOutOfRangeException: The log no longer has the offset, and `out_of_range` is "error".
            RecordBatchTooLargeException: A batch is larger than `max_chunk_bytes`.
            KafkaStorageException: The log cannot be read.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     offset = log.append(b"one")
            ...     with log.reader() as reader:
            ...         print(len(reader.read_chunk().headers), reader.read_chunk())
            1 None
        """
        want = self.chunk_bytes
        while self.end_offset is None or self.offset < self.end_offset:
            self.source.check_usable()
            extent = self._extent
            if extent is None:
                extent = self._locate()
                if extent is None:
                    self.source.check_end(self.isolation)
                    return None
            held = len(self._partial)
            room = extent.end - self._position - held
            if room <= 0:
                if held:
                    self._doubt(extent, self._partial, batches.TORN)
                elif extent.next_base is not None:
                    if self._lacks_indexed(extent):
                        self._doubt(extent, b"", batches.TORN)
                    else:
                        self._tell_used_up(extent)
                        self.offset = max(self.offset, extent.next_base)
                        self.close()
                elif extent.final:
                    self._tell_used_up(extent)
                    return None
                elif self._at_end(extent):
                    return None
                continue
            data = self._read_ahead(extent) if self._reads_ahead else None
            if data is None:
                behind, count = self._position + held, min(max(want - held, 1), room)
                reads = partial(extent.read_into, self._buffers, self._partial, behind, count)
                data = self._read(extent, behind, reads)
            if data is None:
                continue
            if len(data) == held:
                self._doubt(extent, data, batches.TORN)  # the file became shorter
                continue
            table, why, reached = batches.scan(
                data,
                base_position=self._position,
                framing=batches.FRAMING_BUFFER,
                check_crc=self._check_crcs,
                max_batches=len(data) // SMALLEST_BATCH_BYTES + 1,
            )
            if why == batches.BAD_CRC:  # its row is the last one; what is before it is good
                table = table[table["verdict"] == batches.OK]
                reached = int(table["position"][-1] + table["size"][-1]) - self._position if len(table) else 0
            overlap = extent.cut_overlap(table)
            if overlap is not None:
                why, reached = batches.OK, extent.end - self._position
                table, data = table[:overlap], data[:reached]
            fitting = self._fitting(table, extent)
            if fitting < len(table):
                if not fitting:
                    self._doubt(extent, data, MISPLACED, table[0])
                    continue
                table = table[:fitting]
                reached = int(table["position"][-1] + table["size"][-1]) - self._position
            if not len(table):
                self._partial = data
                if why not in (batches.OK, batches.TORN):
                    self._doubt(extent, data, why)
                elif len(data) >= want:
                    want = self._grown(want, data, extent)
                continue
            chunk = self._taken(extent, data, table, reached)
            if chunk is not None:
                return chunk
            want = self.chunk_bytes
        return None

    def _taken(self, extent: Extent, data: memoryview, table: np.ndarray, reached: int) -> Chunk | None:
        """Moves the position after the batches of `table`; returns None if all are before the requested offset."""
        chunk = Chunk(data[:reached], table, extent.path, self._position)
        begin = self.offset
        last_offset = int(table["last_offset"][-1])
        if self.committed and last_offset >= begin:
            chunk.aborted = self.source.aborted_in(int(table["base_offset"][0]), last_offset)
            if (
                self.source.log_start_offset > begin or self.source.cuts != self._cuts or not self.source.has(extent)
            ):  # after the list was read: if the segment or its end was deleted, the list lacks its transactions
                self.close()
                return None
        self._partial = data[reached:] if reached < len(data) else b""  # an empty view would keep the memory
        self._position += reached
        self._last_offset = last_offset
        if last_offset < begin:
            return None
        self.offset = last_offset + 1
        self._suspect = self._suspected = self._raise_suspect = None
        self._looks = 0
        if int(table["base_offset"][0]) < begin:
            self.first_offset = max(self.first_offset, begin)  # the log was truncated and grew: return nothing twice
        return chunk

    def read_ahead(self, on: bool) -> None:
        """Sets whether a second thread reads long extents from now on; chunks that were returned before stay valid."""
        self._reads_ahead = on
        if not on:
            self._end_ahead(0)

    def _read_ahead(self, extent: Extent) -> memoryview | None:
        """Returns the next bytes, which the second thread has read; None if no thread reads ahead."""
        ahead, kept = self._ahead, len(self._partial)
        if ahead is None:
            file, start = extent.file, self._position
            if (
                extent.end - start < AHEAD_LEAST_BYTES
                or start < self._alone_until
                or not can_read_ahead(file)
                or busy_threads() >= processors()
            ):
                return None
            try:
                ahead = ReadAhead(file, start, extent.end, slice_bytes=AHEAD_SLICE_BYTES, most_threads=processors())
            except (MemoryError, OSError):  # reading without it is only slower
                self._end_ahead(start + AHEAD_LEAST_BYTES)
                return None
            self._ahead, kept = ahead, 0
        place = None if self.source.cuts != self._cuts else ahead.advance(kept)  # not bytes from before a truncation
        if place is None:
            self._end_ahead(self._position + AHEAD_LEAST_BYTES)
            return None
        self.reads += 1
        return ahead.memory[slice(*place)]

    def _end_ahead(self, alone_until: int) -> None:
        """Ends the second thread; the bytes of its last read stay valid."""
        ahead, self._ahead, self._alone_until = self._ahead, None, alone_until
        if ahead is not None:
            ahead.close()

    def _read(self, extent: Extent, position: int, read: Callable[[], T]) -> T | None:
        """Returns bytes of an extent, or None if its file was closed in the meantime (deleted with its segment)."""
        try:
            data = read()
        except OSError as error:
            if extent.file.closed:
                self._doubt(extent, b"", batches.TORN)
                return None
            if isinstance(error, KafkalogError):  # the error of a remote tier
                raise
            raise KafkaStorageException(f"cannot read the log: {error}", path=extent.path, position=position) from error
        self.reads += 1
        return data

    def _tell_used_up(self, extent: Extent) -> None:
        if extent.used_up is not None and self._last_offset >= 0:
            extent.used_up(self._last_offset)

    @staticmethod
    def _lacks_indexed(extent: Extent) -> bool:
        try:
            return extent.lacks_indexed()
        except OSError as error:
            raise KafkaStorageException.because_of(error, "cannot read the log's index") from error

    def _at_end(self, extent: Extent) -> bool:
        """Returns whether the extent was the log's last one, which a second check at the same position confirms."""
        ended = (extent.segment_base, self._position)
        self.close()
        if ended != self._ended:
            self._ended = ended
            return False
        self._ended = None
        if self.offset < self.source.visible_end(self.isolation):
            self._doubt(extent, b"", batches.TORN)
            return False
        self.source.check_end(self.isolation)
        return True

    def _locate(self) -> Extent | None:
        self._cuts = self.source.cuts
        is_sure = False
        while True:
            try:
                extent = self.source.extent(self.offset, self.isolation)
                break
            except OffsetOutOfRangeException:
                if not is_sure:  # a read-only view may have old ends
                    self.source.recheck()
                    is_sure = True
                    continue
                found = self.offset if self._out_of_range == "error" else self._reset_offset()
                if found == self.offset:
                    raise
                self.offset = self.first_offset = found  # in a loop, because the start may have moved again
        left, self._left = self._left, None
        if extent is not None:
            self._position = extent.position
            self._partial = b""
            self._last_offset = -1
            if left is not None and left.owner is extent.owner is not None and left.cuts == self._cuts:
                # The search skips batches that do not fit; reading from the old position finds them.
                self._position, self._last_offset = min(left.position, extent.position), left.last_offset
            if self._suspected is not None:
                self._check_passed(extent)
        self._extent = extent
        return extent

    def _check_passed(self, extent: Extent) -> None:
        """Checks an extent that is past the bytes that could not be read: they must have been truncated or deleted."""
        before, suspect = self._suspected, self._suspect
        assert before is not None
        assert suspect is not None
        self._suspected = None
        _, position, _, head = suspect
        if (extent.segment_base, extent.position) <= (before.segment_base, position):
            return
        if not head or self.source.log_start_offset >= self.offset or before.file.closed:
            return
        if before.file.pread(len(head), position) == head and self._raise_suspect is not None:
            self._raise_suspect()

    def _reset_offset(self) -> int:
        if self._out_of_range == "earliest":
            return self.source.log_start_offset
        if self._out_of_range == "latest":
            return self.source.visible_end(self.isolation)
        found = self.source.offset_for_time(int(self._out_of_range))
        return self.source.visible_end(self.isolation) if found is None else found

    def _fitting(self, table: np.ndarray, extent: Extent) -> int:
        """Returns how many of the first batches have increasing offsets inside their segment, which no CRC covers."""
        if not len(table):
            return 0
        most = highest_offset(extent.segment_base, extent.next_base) if extent.limit is None else extent.limit
        # If two batches are not in order, the first may be right, or may be too far ahead.
        wrong = misfits(table, max(self._last_offset + 1, extent.segment_base), most)
        if wrong:
            return wrong[0]
        if extent.base_limit is not None:  # a batch older than magic 2 does not have its first offset
            beyond = np.flatnonzero((table["base_offset"] > extent.base_limit) & (table["magic"] >= 2))
            if len(beyond):
                return int(beyond[0])
        return len(table) - self._last_jumps(table, extent, most)

    def _last_jumps(self, table: np.ndarray, extent: Extent, most: int) -> bool:
        """Returns whether the last batch leaves a gap before it that the next batch, in the next read, belongs into."""
        row = table[-1]
        first = int(row["base_offset"] if row["magic"] >= 2 else row["last_offset"])
        before = int(table["last_offset"][-2]) if len(table) > 1 else self._last_offset
        behind = int(row["position"]) + int(row["size"])
        if first == before + 1 or (before < 0 and first <= self.offset) or behind >= extent.end:
            return False
        head = self._read(extent, behind, partial(extent.read, behind, RECORD_BATCH_OVERHEAD))
        if head is None or len(head) < RECORD_BATCH_OVERHEAD:
            return False
        following, _, _ = batches.scan(
            bytes(head[:8]) + (RECORD_BATCH_OVERHEAD - LOG_OVERHEAD).to_bytes(4, "big") + head[12:],
            base_position=behind,
            check_crc=False,
        )
        both = np.concatenate((table[-1:], following))
        return misfits(both, max(before + 1, extent.segment_base), most)[:1] == [0]

    def _grown(self, want: int, data: memoryview, extent: Extent) -> int:
        """Returns a larger chunk size for a batch that does not fit; a damaged size field allocates no memory."""
        declared = declared_size(data) if len(data) >= LOG_OVERHEAD else -1
        most = self.max_chunk_bytes
        is_good = False
        if declared > want >= (LARGE_BATCH_BYTES if most is None else min(LARGE_BATCH_BYTES, most)):
            why = batches.OK
            if self._position + declared > extent.end:
                why = batches.TORN
            elif not crc_matches_in(extent.file, self._position, declared):
                why = batches.BAD_CRC
            if why != batches.OK:
                self._doubt(extent, data, why)
                return self.chunk_bytes
            is_good = True
        if most is not None and want >= most:
            raise RecordBatchTooLargeException(
                f"the batch at offset {self.offset} has {declared} bytes, expected at most max_chunk_bytes ({most})",
                path=extent.path,
                position=self._position,
                hint="increase max_chunk_bytes",
            )
        larger = declared if is_good else want * 2
        return larger if most is None else min(larger, most)

    def _doubt(self, extent: Extent, data: bytes | memoryview, why: int, row: np.void | None = None) -> None:
        """Handles bytes that cannot be read: raises, or, the first time, drops the extent to locate it again."""
        if self.source.cuts != self._cuts:
            self.close()  # the log was truncated during the read
            return
        seen = (extent.path, self._position, why, bytes(data[:RECORD_BATCH_OVERHEAD]))
        self._looks += 1
        if seen == self._suspect or self._looks > LOOKS_MAX:
            self._raise_corrupt(extent, data, why, row, self._position)
        self._suspect, self._suspected = seen, extent
        self._raise_suspect = partial(self._raise_corrupt, extent, data, why, row, self._position)
        self.close()
        if why == MISPLACED:  # keep the position: only the batch before it shows that it is misplaced
            self._left = _Left(extent.owner, self._cuts, self._position, self._last_offset)
        extent.file.doubt()
        self.source.recheck()

    def _raise_corrupt(
        self, extent: Extent, data: bytes | memoryview, why: int, row: np.void | None, position: int
    ) -> NoReturn:
        what = reason(why)
        if row is not None:
            what = f"a batch with offsets {int(row['base_offset'])} to {int(row['last_offset'])}"
        elif why == batches.BAD_MAGIC:
            what = f"Invalid magic found in record: {magic_byte(data)}"
        elif not data:
            what = f"the file ends (it has {extent.file.size()} bytes)"
        elif why == batches.TORN:
            what = f"a batch that ends beyond the log ({extent.end - position} bytes are left)"
        elif why == batches.BAD_CRC:
            header = batches.header_at(data)
            what = f"a bad CRC (stored {header.crc}"
            what += (
                f", computed {batches.compute_crc(data)})" if header.size <= len(data) else f", {header.size} bytes)"
            )
        what += f" where offset {self.offset} should be"
        if row is not None:
            what += " (offsets are not covered by the CRC)"
        raise CorruptRecordException(what, path=extent.path, position=position, hint=DAMAGE_HINT)

    # --- the content of chunks -----------------------------------------------------------------------

    def data_batches(self) -> Iterator[tuple[Chunk, BatchHeader]]:
        """Yields batches with records for the caller: no control batches and, if read_committed, no aborted ones."""
        while (chunk := self.read_chunk()) is not None:
            for header in self.data_headers(chunk):
                self.source.check_usable()  # a forked child also has the bytes that were read before
                yield chunk, header

    def data_headers(self, chunk: Chunk) -> list[BatchHeader]:
        """Returns the headers of a chunk's batches that have records for the caller."""
        found = []
        skip = chunk.aborted_rows() if chunk.aborted else itertools.repeat(0)
        for header, aborted in zip(chunk.headers, skip, strict=False):
            if header.is_control or header.last_offset < self.first_offset:
                continue
            if self.end_offset is not None and header.magic >= 2 and header.base_offset >= self.end_offset:
                break
            if not aborted:
                found.append(header)
        return found

    def records(self) -> Iterator[Record]:
        """Returns an iterator over records from `offset` on, in the order of their offsets.

        One thread may use the iterator.  A Record can be kept: it refers to bytes of the log only until two more
        records were requested.

        Returns:
            An iterator of Records.

        Raises:
            KafkalogError: Any error of `read_chunk`, while iterating.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     offsets = log.append_many([b"one", b"two"])
            ...     with log.reader() as reader:
            ...         print([record.value for record in reader.records()])
            [b'one', b'two']
        """
        return walk_records(self.batches_of_records())

    def arrow_reader(
        self, columns: Sequence[str] | None = None, *, batch_rows: int = BATCH_ROWS
    ) -> pa.RecordBatchReader:
        """Returns the records from `offset` to the current end as a pyarrow RecordBatchReader, which reads them lazily.

        Args:
            columns: The columns, as for `Partition.read_arrow`.
            batch_rows: The most rows of a batch.

        Returns:
            A pyarrow.RecordBatchReader.

        Raises:
            MissingPackageException: pyarrow is not installed.
            IllegalArgumentException: An argument has a wrong type or value.
            KafkalogError: Any error of `read_chunk`, while reading.

        Example:
            >>> with kafkalog.open_log("logs", "orders-0") as log:
            ...     offsets = log.append_many([b"one", b"two"])
            ...     with log.reader() as reader:
            ...         print(reader.arrow_reader(["value"]).read_all().to_pylist())
            [{'value': b'one'}, {'value': b'two'}]
        """
        pyarrow = need_pyarrow()
        from kafkalog._face import arrow

        batch_rows = values.whole(batch_rows, "batch_rows", low=1, expected="rows of a batch")
        found: pa.RecordBatchReader = pyarrow.RecordBatchReader.from_batches(
            arrow.schema(columns), self._record_batches(columns, batch_rows)
        )
        return found

    def _whole(
        self, use: Callable[[pa.Schema, Iterator[pa.RecordBatch]], T], columns: Sequence[str] | None, options: Any
    ) -> T:
        need_pyarrow()
        from kafkalog._face import arrow

        if options:
            raise unexpected(next(iter(options)), ("columns", "copy", "dtype_backend"))
        before = self.offset
        schema, batches = arrow.schema(columns), self._record_batches(columns, BATCH_ROWS)
        try:
            return use(schema, batches)
        except BaseException:
            self.seek(before)
            raise

    def _record_batches(self, columns: Sequence[str] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        from kafkalog._face import arrow

        for batch in arrow.record_batches(self, columns, batch_rows, batch_bytes=ARROW_BATCH_BYTES):
            self.source.check_usable()  # a forked child also has the bytes that were read before
            yield batch

    def batches_of_records(self) -> Iterator[tuple[ChunkReader, Chunk, BatchHeader]]:
        """Yields the batches for `walk_records`."""
        for chunk, header in self.data_batches():
            yield self, chunk, header

    def check_usable(self) -> None:
        """Raises IllegalStateException in a forked child of the process that opened the log."""
        self.source.check_usable()

    def body_of(self, chunk: Chunk, header: BatchHeader) -> Buffer | None:
        """Returns the decompressed records of a batch of magic 2; None if `plain_records` has to raise the error."""
        try:
            return payload(chunk.data, header, max_bytes=self.max_decompressed_bytes)
        except KafkalogError:
            return None

    def plain_records(self, chunk: Chunk, header: BatchHeader) -> Iterator[Record]:
        """Yields the records of a batch of any magic; errors of a damaged batch have file and position."""
        topic, partition = self.source.topic_partition
        end = LONG_MAX if self.end_offset is None else self.end_offset
        born = generation()
        epoch, kind, start = header.leader_epoch, TIMESTAMP_TYPES[header.timestamp_type], self.first_offset
        try:
            for part in in_parts(chunk.data, header, max_bytes=self.max_decompressed_bytes):
                for it in part:
                    if start <= it.offset < end:
                        if generation() != born:
                            self.source.check_usable()
                        yield Record(
                            topic, partition, epoch, it.offset, it.timestamp, kind, it.key, it.value, it.headers
                        )
        except UNREADABLE as error:
            raise placed(error, chunk, header)


def walk_records(
    batches: Iterator[tuple[ChunkReader, Chunk, BatchHeader]],
    *,
    wanted_keys: KeyFilter | None = None,
    times: Times = ALL_TIMES,
    keep: Callable[[Record], object] | None = None,
    asynchronously: Callable[[], AsyncIterator[Record]] | None = None,
) -> RecordWalk:
    """Returns an iterator over the records of `batches`; the filters and `asynchronously` are RecordWalk's."""
    return RecordWalk(
        batches,
        part_records=PART_RECORDS,
        max_body=MAX_RECORD_BYTES,
        wanted_keys=wanted_keys,
        timestamp_min=times.first,
        timestamp_max=times.last,
        keep=keep,
        asynchronously=asynchronously,
    )


def placed(error: KafkalogError, chunk: Chunk, header: BatchHeader) -> KafkalogError:
    """Returns `error` with the file and position of its batch."""
    if error.path is None:
        error.path = chunk.path
        error.position = chunk.file_position + header.position
    return error


# --- the wire ---------------------------------------------------------------------------------------------

RESULT_HEADER = struct.Struct(">ih")  # number of bytes after the length field, error code


class MessageSetSend(Shown):
    """A fetch answer for one partition: int32 length of the rest, int16 error code, batches.

    It has at least one whole batch if there is one.  The last batch may be cut, as in Kafka's answers; its size field
    tells. Nothing is sent until `send_to`.  An error while the batches are located becomes an error code without
    batches.

    Args:
        source: The partition's Source.
        offset: The offset to send from.
        max_bytes: How many bytes of batches to send at most; the first batch is always sent whole.
        isolation: "read_uncommitted" or "read_committed".

    Attributes:
        error_code: Kafka's error code; 0 for none.

    Example:
        >>> import socket
        >>> from kafkalog.reader import receive_message_set
        >>> sender, receiver = socket.socketpair()
        >>> with kafkalog.open_log("logs", "orders-0") as log:
        ...     offset = log.append(b"value")
        ...     sent = log.send_to(sender, 0)  # sends a MessageSetSend
        >>> error_code, data = receive_message_set(receiver)
        >>> error_code, sent - len(data)
        (0, 6)
        >>> sender.close()
        >>> receiver.close()
    """

    def __init__(
        self, source: Source, offset: int, max_bytes: int = CHUNK_BYTES, *, isolation: str = "read_uncommitted"
    ) -> None:
        self.error_code = NONE
        self._extent: Extent | None = None
        self._bytes = 0
        try:
            source.check_usable()
            extent = source.extent(offset, isolation)
            if extent is None:
                source.check_end(isolation)
            else:
                self._bytes = fetch_bytes(extent, max_bytes)
                self._extent = extent
        except KafkalogError as error:
            self.error_code = error_code_of(error)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.size} bytes>"

    @property
    def size(self) -> int:
        """The number of bytes to send, including the length field."""
        return RESULT_HEADER.size + self._bytes

    def send_to(self, sock: socket.socket) -> int:
        """Writes everything to a blocking socket, the batches with os.sendfile.

        Args:
            sock: A connected blocking socket.

        Returns:
            The number of bytes written.

        Raises:
            CorruptRecordException: The file became shorter during the call.
            OSError: The socket failed.
        """
        sock.sendall(RESULT_HEADER.pack(self._bytes + 2, self.error_code))
        sent = 0
        while self._extent is not None and sent < self._bytes:
            count = self._extent.send_to(sock, self._extent.position + sent, self._bytes - sent)
            if count == 0:
                raise CorruptRecordException(
                    f"the file became shorter during the send: {self._bytes - sent} bytes are missing",
                    path=self._extent.path,
                    position=self._extent.position + sent,
                )
            sent += count
        self.close()
        return self.size

    def close(self) -> None:
        """Releases the file; `send_to` does so at its end."""
        self._extent = None


class MultiMessageSetSend(Shown):
    """Fetch answers for several partitions: int32 length of the rest, int16 error code, each MessageSetSend.

    Args:
        sends: The answers of the partitions.
        error_code: Kafka's error code for the whole answer; 0 for none.

    Attributes:
        sends: The answers of the partitions.
        error_code: Kafka's error code; 0 for none.

    Example:
        >>> kafkalog.MultiMessageSetSend([]).size
        6
    """

    def __init__(self, sends: Sequence[MessageSetSend], *, error_code: int = NONE) -> None:
        self.sends = list(sends)
        self.error_code = error_code

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.size} bytes>"

    @property
    def size(self) -> int:
        """The number of bytes to send, including the length field."""
        return RESULT_HEADER.size + sum(send.size for send in self.sends)

    def send_to(self, sock: socket.socket) -> int:
        """Writes everything to a blocking socket.

        Args:
            sock: A connected blocking socket.

        Returns:
            The number of bytes written.

        Raises:
            CorruptRecordException: A file became shorter during the call.
            OSError: The socket failed.
        """
        sock.sendall(RESULT_HEADER.pack(self.size - 4, self.error_code))
        for send in self.sends:
            send.send_to(sock)
        return self.size


def fetch_bytes(extent: Extent, max_bytes: int) -> int:
    """Returns how many bytes of the extent a fetch gets: at least the first batch, else at most `max_bytes`.

    The CRC of the first batch is checked.  A client that fetches again after its last whole batch so gets each damaged
    batch as the first one.
    """
    left = extent.end - extent.position
    head = extent.read(extent.position, RECORD_BATCH_OVERHEAD)
    _, why, _ = batches.headers(head)
    first = declared_size(head)
    if why == batches.OK or first > left:  # the header or the batch is cut
        why = batches.TORN if len(head) < SMALLEST_BATCH_BYTES or first > left else batches.OK
    if why in (batches.OK, batches.TORN) and first <= left and len(head) >= SMALLEST_BATCH_BYTES:
        why = batches.OK if crc_matches_in(extent.file, extent.position, first) else batches.BAD_CRC
    if why != batches.OK:
        raise CorruptRecordException(reason(why), path=extent.path, position=extent.position, hint=DAMAGE_HINT)
    return min(max(first, max_bytes), left)


def error_code_of(error: KafkalogError) -> int:
    """Returns Kafka's wire code for an error; -1 (UNKNOWN_SERVER_ERROR) if it has none here."""
    table: tuple[tuple[type[KafkalogError], int], ...] = (
        (OffsetOutOfRangeException, OFFSET_OUT_OF_RANGE),
        (UnknownTopicOrPartitionException, UNKNOWN_TOPIC_OR_PARTITION),
        (CorruptRecordException, CORRUPT_MESSAGE),
        (InvalidRecordException, INVALID_RECORD),
        (DiskError, KAFKA_STORAGE_ERROR),
    )
    return next((code for kind, code in table if isinstance(error, kind)), UNKNOWN_SERVER_ERROR)


def receive_message_set(sock: Any, *, max_bytes: int = RECEIVED_BYTES_MAX) -> tuple[int, bytes]:
    """Reads one MessageSetSend from a socket.

    Args:
        sock: A connected blocking socket.
        max_bytes: The most bytes to accept.

    Returns:
        The error code, and the batches as bytes.

    Raises:
        SchemaException: The length is out of range, or the connection closed too early.

    Example:
        >>> import socket
        >>> from kafkalog.reader import receive_message_set
        >>> sender, receiver = socket.socketpair()
        >>> sender.sendall(bytes([0, 0, 0, 2, 0, 1]))
        >>> receive_message_set(receiver)
        (1, b'')
        >>> sender.close()
        >>> receiver.close()
    """
    length, error_code = _receive_header(sock, max_bytes)
    return error_code, _receive(sock, length)


def receive_multi_message_set(sock: Any, *, max_bytes: int = RECEIVED_BYTES_MAX) -> tuple[int, list[tuple[int, bytes]]]:
    """Reads one MultiMessageSetSend from a socket.

    Args:
        sock: A connected blocking socket.
        max_bytes: The most bytes to accept.

    Returns:
        The error code, and a list of (error code, batches), one for each partition.

    Raises:
        SchemaException: A length is out of range, or the connection closed too early.
    """
    left, error_code = _receive_header(sock, max_bytes)
    results = []
    while left > 0:
        code, data = receive_message_set(sock, max_bytes=left)
        results.append((code, data))
        left -= RESULT_HEADER.size + len(data)
    return error_code, results


def _receive_header(sock: Any, max_bytes: int) -> tuple[int, int]:
    """Reads a header; returns (bytes that follow, error code)."""
    length, error_code = RESULT_HEADER.unpack(_receive(sock, RESULT_HEADER.size))
    if not 2 <= length <= max_bytes:
        raise SchemaException(
            f"a fetch result of {length} bytes, expected 2 to {max_bytes}", hint="increase max_bytes="
        )
    return length - 2, error_code


def _receive(sock: Any, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = sock.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise SchemaException(f"the connection closed after {len(parts)} of {count} bytes")
        parts += part
    return bytes(parts)
