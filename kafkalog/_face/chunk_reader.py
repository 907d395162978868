"""Reading by chunks of S bytes, and the framing in which a fetch answer travels.

`ChunkReader` walks a partition from an offset in reads of S bytes.  A batch larger than S doubles the chunk until it
fits.  One of more than LARGE_BATCH_BYTES is read whole once its checksum agrees in the file, so that a damaged size
field takes no memory.  There is no limit unless the caller states one: what was appended can be read.  A batch that the
chunk cut is kept for the next read; an offset that the log does not have raises or resets, as the caller chose.  It
ends at the end of the log or with an error: a stretch that a source hands out is whole batches, so what cannot be read
of it is damage.  Before it says so it asks the source again where the offset is, and raises when the same bytes come
twice: the log may have been cut or deleted under it.

Who takes all that is in a chunk before he asks for the next may have a second thread read ahead (`_native.ahead`), as
long scans do (`segment.scan`): it gives bytes and judges nothing; where it gives none, the reader reads there itself.

`MessageSetSend` and `MultiMessageSetSend` put the same bytes on a socket with os.sendfile.  Not thread-safe; any number
of readers may read one log.
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
ARROW_BATCH_BYTES = 2 << 20  # a chunk makes a batch: memory of that size is had again, where more comes new and cold
RECEIVED_BYTES_MAX = 128 << 20  # of a message set, unless the caller takes more
UNREADABLE = (BadBytesError, InvalidRecordException)  # what readers raise of damage
AHEAD_SLICE_BYTES = 2 << 20
LOOKS_MAX = 20  # at a stretch that is another one each time

MISPLACED = -1  # beside the verdicts of the native scan

# org.apache.kafka.common.protocol.Errors: the codes that a fetch answer can carry.
UNKNOWN_SERVER_ERROR = -1
NONE = 0
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
KAFKA_STORAGE_ERROR = 56
INVALID_RECORD = 87


class Chunk(Shown):
    """Whole batches: `data` is what the file has from `file_position` on.

    `table` is the native scan's, positions in the file; `headers` are the same as objects, positions in `data`.
    `aborted` are the aborted transactions that may have batches here; for read_committed readers alone.
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
        """For notebooks: its batches."""
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
        if self._headers is None:
            self._headers, _, _ = batches.headers(self.data)
        return self._headers

    def aborted_rows(self) -> np.ndarray:
        """One byte a batch: 1 where it belongs to an aborted transaction."""
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
    """Where a reader stood: the position in the segment that `owner` is, while the log has `cuts`."""

    owner: object
    cuts: int
    position: int
    last_offset: int


class ChunkReader(ArrowStream, Closing, Shown):
    """Iterate for chunks, or use `batches()` and `records()`; `offset` is the next offset to be read.

    `chunk_bytes` is S, `max_chunk_bytes` the most that one batch may take, by default what it has in its file:
    RecordBatchTooLargeException beyond it.
    `max_decompressed_bytes` is the most that may come out of one compressed batch (CorruptRecordException beyond it).
    `out_of_range` is "error" (OffsetOutOfRangeException), "earliest", "latest", or a time in ms (int): the first
    record at or after it.  Iteration ends at the end of the log as it is then; iterate again to go on.
    `read_committed` skips aborted records and stops before open transactions; control records are never handed out.
    `reads_ahead`: long stretches are read by a second thread as well, where a processor is left for it; then a chunk's
    bytes, or a Record of it, are there until the next one is asked for, and no longer.
    """

    _inner = frozenset(
        {"batches_of_records", "body_of", "check_usable", "data_batches", "data_headers", "plain_records", "read_ahead"}
        | {"reads", "source"}
    )

    # More than eight parameters: each is a choice of the caller's, all but the source and the offset by name.
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
                f"chunk_bytes {chunk_bytes} must be above 0 and not above max_chunk_bytes {max_chunk_bytes}"
            )
        if isinstance(out_of_range, str) and out_of_range not in ("error", "earliest", "latest"):
            raise IllegalArgumentException(
                f"out_of_range {out_of_range!r} is none of 'error', 'earliest', 'latest' and a time in ms"
            )
        if not isinstance(out_of_range, str):
            out_of_range = values.milliseconds(out_of_range, "out_of_range", low=0)
        self.source = source
        self.topic_partition = source.topic_partition
        self.offset = source.log_start_offset if offset is None else values.offset(offset, low=0)
        self.first_offset = self.offset  # records below it are not handed out; moves with seeks and resets
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
        self._cuts = source.cuts  # of the log when the stretch was found
        self._position = 0  # file position of the first byte in _partial
        self._partial: bytes | memoryview = b""
        self._buffers = ReadBuffers()
        self._reads_ahead = values.flag(reads_ahead, "reads_ahead")
        self._ahead: ReadAhead | None = None
        self._alone_until = 0  # the file position from which on it may be tried again
        self._last_offset = -1  # of the batch in front of _position; -1 where the stretch begins
        self._left: _Left | None = None  # where it stood when it let go of its file
        self._ended: tuple[int, int] | None = None  # where the log's end was met last
        self._suspect: tuple[str, int, int, bytes] | None = None  # what could not be read last
        self._raise_suspect: Callable[[], NoReturn] | None = None
        self._suspected: Extent | None = None  # where it was
        self._looks = 0  # how often since the last chunk

    def __repr__(self) -> str:
        return f"<ChunkReader of {self.topic_partition} at offset {self.offset}>"

    def __enter__(self) -> ChunkReader:
        return self

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self.read_chunk, None)  # which holds no chunk while the next one is read: it may be 100 MB

    def seek(self, offset: int) -> None:
        """Go on from another offset; what was kept of a cut batch, and what was doubted, is dropped."""
        self.offset = self.first_offset = values.offset(offset, low=0)
        self._suspect = self._suspected = self._raise_suspect = None
        self._looks = 0
        self.close()

    def rest(self) -> None:
        """Let go of the file until the next chunk, which begins where this one ended: for one of many readers."""
        extent = self._extent
        if extent is not None:
            self._left = _Left(extent.owner, self._cuts, self._position, self._last_offset)
            self._extent = None
            self._partial = b""
            self._end_ahead(0)

    def close(self) -> None:
        """Let go of the file; the reader may go on afterwards."""
        self._extent = self._left = None
        self._partial = b""
        self._buffers = ReadBuffers()
        self._end_ahead(0)

    def read_chunk(self) -> Chunk | None:
        """The next chunk that holds a batch; None at the end of the log.

        CorruptRecordException at damage; OffsetOutOfRangeException when the log no longer has the offset and
        `out_of_range` is "error".
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
        """Go on behind the batches of `table`; None when all in it lies before what was asked for."""
        chunk = Chunk(data[:reached], table, extent.path, self._position)
        begin = self.offset
        last_offset = int(table["last_offset"][-1])
        if self.committed and last_offset >= begin:
            chunk.aborted = self.source.aborted_in(int(table["base_offset"][0]), last_offset)
            if (
                self.source.log_start_offset > begin or self.source.cuts != self._cuts or not self.source.has(extent)
            ):  # behind the list: with the segment, or with its end, what it says of these records has gone
                self.close()
                return None
        self._partial = data[reached:] if reached < len(data) else b""  # a view of nothing keeps the memory
        self._position += reached
        self._last_offset = last_offset
        if last_offset < begin:
            return None
        self.offset = last_offset + 1
        self._suspect = self._suspected = self._raise_suspect = None
        self._looks = 0
        if int(table["base_offset"][0]) < begin:
            self.first_offset = max(self.first_offset, begin)  # the log was cut and grew again: hand out nothing twice
        return chunk

    def read_ahead(self, on: bool) -> None:
        """Whether long stretches are read by a second thread from now on; what was handed out before stays."""
        self._reads_ahead = on
        if not on:
            self._end_ahead(0)

    def _read_ahead(self, extent: Extent) -> memoryview | None:
        """The next bytes from `_position` on, as the second thread has them; None where nobody reads ahead."""
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
            except (MemoryError, OSError):  # it would only have been quicker
                self._end_ahead(start + AHEAD_LEAST_BYTES)
                return None
            self._ahead, kept = ahead, 0
        place = None if self.source.cuts != self._cuts else ahead.advance(kept)  # not what was there before a cut
        if place is None:
            self._end_ahead(self._position + AHEAD_LEAST_BYTES)
            return None
        self.reads += 1
        return ahead.memory[slice(*place)]

    def _end_ahead(self, alone_until: int) -> None:
        """What was read last stays readable."""
        ahead, self._ahead, self._alone_until = self._ahead, None, alone_until
        if ahead is not None:
            ahead.close()

    def _read(self, extent: Extent, position: int, read: Callable[[], T]) -> T | None:
        """Bytes of a stretch; None when its file was closed under us (deleted with its segment): look again."""
        try:
            data = read()
        except OSError as error:
            if extent.file.closed:
                self._doubt(extent, b"", batches.TORN)
                return None
            if isinstance(error, KafkalogError):  # of a remote tier
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
        """Whether the stretch that is used up was the last one, as the second look at the same place tells."""
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
                if not is_sure:  # a view has the ends of its last look
                    self.source.recheck()
                    is_sure = True
                    continue
                found = self.offset if self._out_of_range == "error" else self._reset_offset()
                if found == self.offset:
                    raise
                self.offset = self.first_offset = found  # from which the start may have moved on again
        left, self._left = self._left, None
        if extent is not None:
            self._position = extent.position
            self._partial = b""
            self._last_offset = -1
            if left is not None and left.owner is extent.owner is not None and left.cuts == self._cuts:
                # The search passes over what does not fit; who reads on from where he stood finds it.
                self._position, self._last_offset = min(left.position, extent.position), left.last_offset
            if self._suspected is not None:
                self._check_passed(extent)
        self._extent = extent
        return extent

    def _check_passed(self, extent: Extent) -> None:
        """A second look that leads past what could not be read: fine if that was cut off or deleted meanwhile."""
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
        """How many leading batches have offsets above those before them and inside their segment: no CRC covers it."""
        if not len(table):
            return 0
        most = highest_offset(extent.segment_base, extent.next_base) if extent.limit is None else extent.limit
        # Of two that do not follow each other the first may be right, or have jumped ahead.
        wrong = misfits(table, max(self._last_offset + 1, extent.segment_base), most)
        if wrong:
            return wrong[0]
        if extent.base_limit is not None:  # what is older than magic 2 does not say where it begins
            beyond = np.flatnonzero((table["base_offset"] > extent.base_limit) & (table["magic"] >= 2))
            if len(beyond):
                return int(beyond[0])
        return len(table) - self._last_jumps(table, extent, most)

    def _last_jumps(self, table: np.ndarray, extent: Extent, most: int) -> bool:
        """Whether the last batch leaves a gap before it that the one behind it, in the next read, belongs into."""
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
        """A larger chunk, for a batch that does not fit; a size that is only a flipped bit takes no memory."""
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
                f"the batch at offset {self.offset} has {declared} bytes, more than a read may take ({most})",
                path=extent.path,
                position=self._position,
                hint="raise max_chunk_bytes",
            )
        larger = declared if is_good else want * 2
        return larger if most is None else min(larger, most)

    def _doubt(self, extent: Extent, data: bytes | memoryview, why: int, row: np.void | None = None) -> None:
        """`data`, at the present position, cannot be read.  The first time: forget the stretch and look again."""
        if self.source.cuts != self._cuts:
            self.close()  # cut under us: no wonder
            return
        seen = (extent.path, self._position, why, bytes(data[:RECORD_BATCH_OVERHEAD]))
        self._looks += 1
        if seen == self._suspect or self._looks > LOOKS_MAX:
            self._raise_corrupt(extent, data, why, row, self._position)
        self._suspect, self._suspected = seen, extent
        self._raise_suspect = partial(self._raise_corrupt, extent, data, why, row, self._position)
        self.close()
        if why == MISPLACED:  # in view of the batch before it, which a search may not see
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

    # --- what is in the chunks -----------------------------------------------------------------------

    def data_batches(self) -> Iterator[tuple[Chunk, BatchHeader]]:
        """Batches with records for the caller: no control batches and, for read_committed, no aborted ones."""
        while (chunk := self.read_chunk()) is not None:
            for header in self.data_headers(chunk):
                self.source.check_usable()  # a forked child has what was read before, too
                yield chunk, header

    def data_headers(self, chunk: Chunk) -> list[BatchHeader]:
        """Those of a chunk's batches that have records for the caller."""
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
        """Records from `offset` on, in offset order.

        The iterator is one thread's.  A Record may be kept: it holds bytes of the log no longer than until two more
        were asked for.
        """
        return walk_records(self.batches_of_records())

    def arrow_reader(self, columns: Sequence[str] | None = None, *, batch_rows: int = 65_536) -> pa.RecordBatchReader:
        """Records from `offset` to the end as it is then, as a pyarrow RecordBatchReader with the columns of
        `Partition.read_arrow`; read while it is taken.  MissingPackageException without pyarrow."""
        pyarrow = need_pyarrow()
        from kafkalog._face import arrow

        batch_rows = values.whole(batch_rows, "batch_rows", low=1, expected="rows of a batch")
        found: pa.RecordBatchReader = pyarrow.RecordBatchReader.from_batches(
            arrow.schema(columns), self._record_batches(columns, batch_rows)
        )
        return found

    def _record_batches(self, columns: Sequence[str] | None, batch_rows: int) -> Iterator[pa.RecordBatch]:
        from kafkalog._face import arrow

        for batch in arrow.record_batches(self, columns, batch_rows, batch_bytes=ARROW_BATCH_BYTES):
            self.source.check_usable()  # a forked child has what was read before, too
            yield batch

    def batches_of_records(self) -> Iterator[tuple[ChunkReader, Chunk, BatchHeader]]:
        """What `walk_records` goes over."""
        for chunk, header in self.data_batches():
            yield self, chunk, header

    def check_usable(self) -> None:
        """IllegalStateException in a forked child of the process that opened the log."""
        self.source.check_usable()

    def body_of(self, chunk: Chunk, header: BatchHeader) -> Buffer | None:
        """The records of a compressed batch of magic 2, as bytes; None where `plain_records` has to say why not."""
        try:
            return payload(chunk.data, header, max_bytes=self.max_decompressed_bytes)
        except KafkalogError:
            return None

    def plain_records(self, chunk: Chunk, header: BatchHeader) -> Iterator[Record]:
        """Records of a batch of any magic, and the errors of one that is damaged, with file and position."""
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
    """The records of `batches`, each with the reader that found it; filters and `asynchronously` are RecordWalk's."""
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
    """`error` with the file and position of the batch that it speaks of."""
    if error.path is None:
        error.path = chunk.path
        error.position = chunk.file_position + header.position
    return error


# --- the wire ---------------------------------------------------------------------------------------------

RESULT_HEADER = struct.Struct(">ih")  # bytes behind the length field, error code


class MessageSetSend(Shown):
    """A fetch result of one partition: int32 length of what follows, int16 error code, batches.

    At least one whole batch where there is one; the last may be cut, as in Kafka's answers: its size field tells.
    Nothing is read until `send_to`.  An error while locating the batches becomes an error code and no batches.
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
        """All bytes on the wire, the length field included."""
        return RESULT_HEADER.size + self._bytes

    def send_to(self, sock: socket.socket) -> int:
        """Write everything to a blocking socket, the batches by os.sendfile; returns the bytes written."""
        sock.sendall(RESULT_HEADER.pack(self._bytes + 2, self.error_code))
        sent = 0
        while self._extent is not None and sent < self._bytes:
            count = self._extent.send_to(sock, self._extent.position + sent, self._bytes - sent)
            if count == 0:
                raise CorruptRecordException(
                    f"the file became shorter while it was sent: {self._bytes - sent} bytes are missing",
                    path=self._extent.path,
                    position=self._extent.position + sent,
                )
            sent += count
        self.close()
        return self.size

    def close(self) -> None:
        """Let go of the file; `send_to` does it by itself."""
        self._extent = None


class MultiMessageSetSend(Shown):
    """Fetch results of several partitions: int32 length of what follows, int16 error code, each MessageSetSend."""

    def __init__(self, sends: Sequence[MessageSetSend], *, error_code: int = NONE) -> None:
        self.sends = list(sends)
        self.error_code = error_code

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.size} bytes>"

    @property
    def size(self) -> int:
        """How many bytes there are to send."""
        return RESULT_HEADER.size + sum(send.size for send in self.sends)

    def send_to(self, sock: socket.socket) -> int:
        """Write everything to a blocking socket; returns the bytes written."""
        sock.sendall(RESULT_HEADER.pack(self.size - 4, self.error_code))
        for send in self.sends:
            send.send_to(sock)
        return self.size


def fetch_bytes(extent: Extent, max_bytes: int) -> int:
    """How many of the extent's bytes a fetch of `max_bytes` gets: at least the first batch, maybe cut at the end.

    The first batch is checked with its CRC: whoever fetches on behind the batches that arrived whole comes to each
    damage as the first one.
    """
    left = extent.end - extent.position
    head = extent.read(extent.position, RECORD_BATCH_OVERHEAD)
    _, why, _ = batches.headers(head)
    first = declared_size(head)
    if why == batches.OK or first > left:  # the header itself is cut, or the batch is
        why = batches.TORN if len(head) < SMALLEST_BATCH_BYTES or first > left else batches.OK
    if why in (batches.OK, batches.TORN) and first <= left and len(head) >= SMALLEST_BATCH_BYTES:
        why = batches.OK if crc_matches_in(extent.file, extent.position, first) else batches.BAD_CRC
    if why != batches.OK:
        raise CorruptRecordException(reason(why), path=extent.path, position=extent.position, hint=DAMAGE_HINT)
    return min(max(first, max_bytes), left)


def error_code_of(error: KafkalogError) -> int:
    """Kafka's wire code for an error; -1 (UNKNOWN_SERVER_ERROR) for those that have none here."""
    table: tuple[tuple[type[KafkalogError], int], ...] = (
        (OffsetOutOfRangeException, OFFSET_OUT_OF_RANGE),
        (UnknownTopicOrPartitionException, UNKNOWN_TOPIC_OR_PARTITION),
        (CorruptRecordException, CORRUPT_MESSAGE),
        (InvalidRecordException, INVALID_RECORD),
        (DiskError, KAFKA_STORAGE_ERROR),
    )
    return next((code for kind, code in table if isinstance(error, kind)), UNKNOWN_SERVER_ERROR)


def receive_message_set(sock: Any, *, max_bytes: int = RECEIVED_BYTES_MAX) -> tuple[int, bytes]:
    """Read one MessageSetSend from a socket: (error code, batches).  SchemaException for a length out of range."""
    length, error_code = _receive_header(sock, max_bytes)
    return error_code, _receive(sock, length)


def receive_multi_message_set(sock: Any, *, max_bytes: int = RECEIVED_BYTES_MAX) -> tuple[int, list[tuple[int, bytes]]]:
    """Read one MultiMessageSetSend from a socket: (error code, [(error code, batches), ...])."""
    left, error_code = _receive_header(sock, max_bytes)
    results = []
    while left > 0:
        code, data = receive_message_set(sock, max_bytes=left)
        results.append((code, data))
        left -= RESULT_HEADER.size + len(data)
    return error_code, results


def _receive_header(sock: Any, max_bytes: int) -> tuple[int, int]:
    """(bytes that follow, error code)"""
    length, error_code = RESULT_HEADER.unpack(_receive(sock, RESULT_HEADER.size))
    if not 2 <= length <= max_bytes:
        raise SchemaException(
            f"a fetch result of {length} bytes, expected 2 to {max_bytes}", hint="max_bytes= takes more"
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
