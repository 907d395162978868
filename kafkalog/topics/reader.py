"""Reading by chunks of S bytes, and the framing in which a fetch answer travels.

`ChunkReader` walks a partition from an offset in reads of S bytes.  A batch larger than S doubles the chunk until it
fits, up to a stated maximum; a batch that the chunk cut is kept for the next read; an offset that the log does not
have raises or resets, as the caller chose.  `MessageSetSend` and `MultiMessageSetSend` put the same bytes on a socket
with os.sendfile.  Not thread-safe; any number of readers may read one log.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from kafkalog._native import batches
from kafkalog.errors import (
    BadBytesError,
    CorruptRecordException,
    DiskError,
    IllegalArgumentException,
    InvalidRecordException,
    KafkalogError,
    OffsetOutOfRangeException,
    RecordBatchTooLargeException,
    SchemaException,
    UnknownTopicOrPartitionException,
)
from kafkalog.format import values
from kafkalog.format.names import TopicPartition
from kafkalog.format.records import READ_BYTES_MAX, in_parts
from kafkalog.segment.file_records import LARGE_BATCH_BYTES, crc_matches_in
from kafkalog.topics.records import TIMESTAMP_TYPES, Record
from kafkalog.topics.view import check_isolation

if TYPE_CHECKING:
    from kafkalog._native.batches import BatchHeader
    from kafkalog.files.processes import Life
    from kafkalog.topics.index_files import AbortedRange
    from kafkalog.topics.view import Extent

CHUNK_BYTES = 1 << 20
MAX_CHUNK_BYTES = 128 << 20
LOG_OVERHEAD = 12
LONG_MAX = (1 << 63) - 1
INT_MAX = 0x7FFFFFFF
MIN_BATCH_BYTES = 14
SMALLEST_BATCH_BYTES = LOG_OVERHEAD + MIN_BATCH_BYTES
INVISIBLE_TAIL_BYTES = 17  # FileLogInputStream does not look at them

# org.apache.kafka.common.protocol.Errors: the codes that a fetch answer can carry.
UNKNOWN_SERVER_ERROR = -1
NONE = 0
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
KAFKA_STORAGE_ERROR = 56
INVALID_RECORD = 87


class Source(Protocol):
    """What a reader needs of a partition: `PartitionView` (another's directory) and `Log` (our own) have it."""

    topic_partition: TopicPartition

    @property
    def log_start_offset(self) -> int: ...
    def visible_end(self, isolation: str = ...) -> int: ...
    def extent(self, offset: int, isolation: str = ...) -> Extent | None: ...
    def aborted_in(self, first_offset: int, last_offset: int) -> Sequence[AbortedRange]: ...
    def offset_for_time(self, timestamp_ms: int) -> int | None: ...


class Chunk:
    """Whole batches: `data` is what the file has from `file_position` on.

    `table` is the native scan's, positions in the file; `headers` are the same as objects, positions in `data`.
    """

    __slots__ = ("_headers", "data", "file_position", "path", "table")

    def __init__(self, data: memoryview, table: np.ndarray, path: str, file_position: int) -> None:
        self.data = data
        self.table = table
        self.path = path
        self.file_position = file_position
        self._headers: list[BatchHeader] | None = None

    @property
    def headers(self) -> list[BatchHeader]:
        if self._headers is None:
            self._headers, _, _ = batches.headers(self.data)
        return self._headers


class ChunkReader:
    """Iterate for chunks, or use `batches()` and `records()`; `offset` is the next offset to be read.

    `chunk_bytes` is S, `max_chunk_bytes` the most that one batch may take: RecordBatchTooLargeException beyond it.
    `max_decompressed_bytes` is the most that may come out of one compressed batch (CorruptRecordException beyond it).
    `out_of_range` is "error" (OffsetOutOfRangeException), "earliest", "latest", or a time in ms (int): the first
    record at or after it.  Iteration ends at the end of the log as it is then; iterate again to go on.
    `read_committed` skips aborted records and stops before open transactions; control records are never handed out.
    """

    def __init__(
        self,
        source: Source,
        offset: int | None = None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        max_chunk_bytes: int = MAX_CHUNK_BYTES,
        max_decompressed_bytes: int = READ_BYTES_MAX,
        isolation: str = "read_uncommitted",
        out_of_range: str | int = "error",
        check_crcs: bool = True,
        end_offset: int | None = None,
    ) -> None:
        check_isolation(isolation)
        chunk_bytes = values.whole(chunk_bytes, "chunk_bytes", expected="bytes of a read")
        max_chunk_bytes = values.whole(max_chunk_bytes, "max_chunk_bytes", expected="bytes of a batch at most")
        max_decompressed_bytes = values.whole(max_decompressed_bytes, "max_decompressed_bytes", low=1, expected="bytes")
        if chunk_bytes <= 0 or max_chunk_bytes < chunk_bytes:
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
        self._life: Life | None = getattr(source, "life", None)
        self.offset = source.log_start_offset if offset is None else values.offset(offset)
        self.first_offset = self.offset  # records below it are not handed out; moves with seeks and resets
        self.isolation = isolation
        self.committed = isolation == "read_committed"
        self.end_offset = None if end_offset is None else values.offset(end_offset, "end_offset")
        self.chunk_bytes = chunk_bytes
        self.max_chunk_bytes = max_chunk_bytes
        self.max_decompressed_bytes = max_decompressed_bytes
        self.reads = 0  # reads of the disk so far
        self._check_crcs = check_crcs
        self._out_of_range = out_of_range
        self._extent: Extent | None = None
        self._position = 0  # file position of the first byte in _partial
        self._partial = b""
        self._last_offset = -1  # of the batch in front of _position; -1 where the stretch begins
        self._ended: tuple[int, int] | None = None  # where the log's end was met last

    def __enter__(self) -> ChunkReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Chunk]:
        while (chunk := self.read_chunk()) is not None:
            yield chunk

    def seek(self, offset: int) -> None:
        """Go on from another offset; what was kept of a cut batch is dropped."""
        self.offset = self.first_offset = values.offset(offset)
        self.close()

    def close(self) -> None:
        """Let go of the file; the reader may go on afterwards."""
        if self._extent is not None:
            self._extent.close()
        self._extent = None
        self._partial = b""

    def read_chunk(self) -> Chunk | None:
        """The next chunk that holds a batch; None at the end of the log."""
        if self._life is not None and self._life.forked:
            raise self._life.elsewhere(f"the log of {self.source.topic_partition}")
        want = self.chunk_bytes
        while self.end_offset is None or self.offset < self.end_offset:
            extent = self._extent
            if extent is None:
                extent = self._locate()
                if extent is None:
                    return None
            held = len(self._partial)
            room = extent.end - self._position - held
            if room <= 0:
                # The stretch is used up.  A batch that the log's end cuts is looked at again when the log has grown.
                if extent.next_base is not None:
                    if held > INVISIBLE_TAIL_BYTES:
                        self._raise_corrupt(extent, self._partial, batches.TORN)
                    self.offset = max(self.offset, extent.next_base)
                    self.close()
                    continue
                ended = (extent.segment_base, self._position)
                self.close()
                if held or ended == self._ended:
                    self._ended = None
                    return None
                self._ended = ended
                continue
            data = self._partial + extent.read(self._position + held, min(max(want - held, 1), room))
            self.reads += 1
            if len(data) == held:
                self.close()  # the file became shorter under us
                return None
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
            fitting = self._fitting(table, extent)
            if fitting < len(table):
                if not fitting:
                    self._raise_misplaced(extent, table[0])
                table = table[:fitting]
                reached = int(table["position"][-1] + table["size"][-1]) - self._position
            if not len(table):
                self._partial = data
                if why not in (batches.OK, batches.TORN):
                    self._raise_corrupt(extent, data, why)
                if len(data) >= want:
                    want = self._grown(want, data, extent)
                continue
            chunk = Chunk(memoryview(data)[:reached], table, extent.path, self._position)
            self._partial = data[reached:]
            self._position += reached
            begin = self.offset
            last_offset = self._last_offset = int(table["last_offset"][-1])
            self.offset = max(begin, last_offset + 1)
            if last_offset < begin:
                want = self.chunk_bytes
                continue  # everything in it lies before what was asked for
            return chunk
        return None

    def _locate(self) -> Extent | None:
        try:
            extent = self.source.extent(self.offset, self.isolation)
        except OffsetOutOfRangeException:
            if self._out_of_range == "error":
                raise
            self.offset = self.first_offset = self._reset_offset()
            extent = self.source.extent(self.offset, self.isolation)
        if extent is not None:
            if extent.position >= extent.end:
                extent.close()
                return None
            self._position = extent.position
            self._partial = b""
            self._last_offset = -1
        self._extent = extent
        return extent

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
        last = table["last_offset"]
        first = np.where(table["magic"] >= 2, table["base_offset"], last)
        most = extent.segment_base + INT_MAX if extent.next_base is None else extent.next_base - 1
        misplaced = (first < extent.segment_base) | (last < first) | (last > most)
        misplaced[0] |= first[0] <= self._last_offset
        misplaced[1:] |= first[1:] <= last[:-1]
        wrong = np.flatnonzero(misplaced)
        return int(wrong[0]) if len(wrong) else len(table)

    def _grown(self, want: int, data: bytes, extent: Extent) -> int:
        """Twice the chunk, for a batch that does not fit; a size that is only a flipped bit takes no memory."""
        declared = LOG_OVERHEAD + int.from_bytes(data[8:12], "big", signed=True) if len(data) >= 12 else -1
        if declared > want >= min(LARGE_BATCH_BYTES, self.max_chunk_bytes):
            if self._position + declared > extent.end:
                if extent.next_base is not None:
                    self._raise_corrupt(extent, data, batches.TORN)
            elif not crc_matches_in(extent.file, self._position, declared):
                self._raise_corrupt(extent, data, batches.BAD_CRC)
        if want >= self.max_chunk_bytes:
            raise RecordBatchTooLargeException(
                f"the batch at offset {self.offset} has {declared} bytes, more than a read may take "
                f"({self.max_chunk_bytes})",
                path=extent.path,
                position=self._position,
                hint="raise max_chunk_bytes",
            )
        return min(want * 2, self.max_chunk_bytes)

    def _raise_corrupt(self, extent: Extent, data: bytes, why: int) -> NoReturn:
        what = {
            batches.BAD_SIZE: "an impossible batch size",
            batches.BAD_MAGIC: "an unknown magic",
            batches.TORN: "a batch that ends beyond its segment",
        }.get(why, "damage")
        if why == batches.BAD_CRC:
            header = batches.header_at(data)
            what = f"a bad CRC (stored {header.crc}"
            what += (
                f", computed {batches.compute_crc(data)})" if header.size <= len(data) else f", {header.size} bytes)"
            )
        raise CorruptRecordException(
            f"{what} where offset {self.offset} should be",
            path=extent.path,
            position=self._position,
            hint="`kafkalog verify` lists the damage",
        )

    def _raise_misplaced(self, extent: Extent, row: np.void) -> NoReturn:
        raise CorruptRecordException(
            f"a batch with offsets {int(row['base_offset'])} to {int(row['last_offset'])} where offset {self.offset} "
            "should be (offsets are not covered by the CRC)",
            path=extent.path,
            position=self._position,
            hint="`kafkalog verify` lists the damage",
        )

    # --- what is in the chunks -----------------------------------------------------------------------

    def data_batches(self) -> Iterator[tuple[Chunk, BatchHeader]]:
        """Batches with records for the caller: no control batches and, for read_committed, no aborted ones."""
        while (chunk := self.read_chunk()) is not None:
            aborted: dict[int, list[AbortedRange]] = {}
            if self.committed:
                for txn in self.source.aborted_in(chunk.headers[0].base_offset, chunk.headers[-1].last_offset):
                    aborted.setdefault(txn.producer_id, []).append(txn)
            for header in chunk.headers:
                if header.is_control or header.last_offset < self.first_offset:
                    continue
                if self.end_offset is not None and header.magic >= 2 and header.base_offset >= self.end_offset:
                    return
                if aborted and header.is_transactional and is_aborted(aborted, header):
                    continue
                yield chunk, header

    def records(self) -> Iterator[Record]:
        """Records from `offset` on, in offset order."""
        topic, partition = self.source.topic_partition
        end = LONG_MAX if self.end_offset is None else self.end_offset
        for chunk, header in self.data_batches():
            epoch, kind, start = header.leader_epoch, TIMESTAMP_TYPES[header.timestamp_type], self.first_offset
            try:
                for part in in_parts(chunk.data, header, max_bytes=self.max_decompressed_bytes):
                    for it in part:
                        if start <= it.offset < end:
                            yield Record(
                                topic, partition, epoch, it.offset, it.timestamp, kind, it.key, it.value, it.headers
                            )
            except (BadBytesError, InvalidRecordException) as error:
                raise placed(error, chunk, header)


def is_aborted(aborted: dict[int, list[AbortedRange]], header: BatchHeader) -> bool:
    """Whether a transactional batch belongs to one of the aborted transactions."""
    return any(txn.first_offset <= header.base_offset <= txn.last_offset for txn in aborted.get(header.producer_id, ()))


def placed(error: KafkalogError, chunk: Chunk, header: BatchHeader) -> KafkalogError:
    """`error` with the file and position of the batch that it speaks of."""
    if error.path is None:
        error.path = chunk.path
        error.position = chunk.file_position + header.position
    return error


# --- the wire ---------------------------------------------------------------------------------------------


class MessageSetSend:
    """A fetch result of one partition: int32 length of what follows, int16 error code, batches.

    At least one whole batch where there is one; the last may be cut, as in Kafka's answers: its size field tells.
    Nothing is read until `send_to`.  An error while locating the batches becomes an error code and no batches.
    """

    HEADER = struct.Struct(">ih")

    def __init__(
        self, source: Source, offset: int, max_bytes: int = CHUNK_BYTES, *, isolation: str = "read_uncommitted"
    ) -> None:
        self.error_code = NONE
        self._extent: Extent | None = None
        self._bytes = 0
        try:
            extent = source.extent(offset, isolation)
            if extent is not None:
                self._bytes = fetch_bytes(extent, max_bytes)
                self._extent = extent
        except KafkalogError as error:
            self.error_code = error_code_of(error)

    @property
    def size(self) -> int:
        """All bytes on the wire, the length field included."""
        return self.HEADER.size + self._bytes

    def send_to(self, sock: socket.socket) -> int:
        """Write everything to a blocking socket, the batches by os.sendfile; returns the bytes written."""
        sock.sendall(self.HEADER.pack(self._bytes + 2, self.error_code))
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
        if self._extent is not None:
            self._extent.close()


class MultiMessageSetSend:
    """Fetch results of several partitions: int32 length of what follows, int16 error code, each MessageSetSend."""

    HEADER = struct.Struct(">ih")

    def __init__(self, sends: Sequence[MessageSetSend], *, error_code: int = NONE) -> None:
        self.sends = list(sends)
        self.error_code = error_code

    @property
    def size(self) -> int:
        return self.HEADER.size + sum(send.size for send in self.sends)

    def send_to(self, sock: socket.socket) -> int:
        """Write everything to a blocking socket; returns the bytes written."""
        sock.sendall(self.HEADER.pack(self.size - 4, self.error_code))
        for send in self.sends:
            send.send_to(sock)
        return self.size


def fetch_bytes(extent: Extent, max_bytes: int) -> int:
    """How many of the extent's bytes a fetch of `max_bytes` gets: at least the first batch, maybe cut at the end."""
    head = extent.read(extent.position, LOG_OVERHEAD)
    if len(head) < LOG_OVERHEAD:
        return 0
    first = LOG_OVERHEAD + int.from_bytes(head[8:12], "big", signed=True)
    if first < SMALLEST_BATCH_BYTES:
        raise CorruptRecordException("impossible batch size", path=extent.path, position=extent.position)
    return min(max(first, max_bytes), extent.end - extent.position)


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


def receive_message_set(sock: Any, *, max_bytes: int = MAX_CHUNK_BYTES) -> tuple[int, bytes]:
    """Read one MessageSetSend from a socket: (error code, batches).  SchemaException for a length out of range."""
    length, error_code = MessageSetSend.HEADER.unpack(_receive(sock, MessageSetSend.HEADER.size))
    if not 2 <= length <= max_bytes:
        raise SchemaException(f"a fetch result of {length} bytes, expected 2 to {max_bytes}")
    return error_code, _receive(sock, length - 2)


def receive_multi_message_set(sock: Any, *, max_bytes: int = MAX_CHUNK_BYTES) -> tuple[int, list[tuple[int, bytes]]]:
    """Read one MultiMessageSetSend from a socket: (error code, [(error code, batches), ...])."""
    length, error_code = MultiMessageSetSend.HEADER.unpack(_receive(sock, MultiMessageSetSend.HEADER.size))
    if not 2 <= length <= max_bytes:
        raise SchemaException(f"a fetch result of {length} bytes, expected 2 to {max_bytes}")
    left = length - 2
    results = []
    while left > 0:
        code, data = receive_message_set(sock, max_bytes=left)
        results.append((code, data))
        left -= MessageSetSend.HEADER.size + len(data)
    return error_code, results


def _receive(sock: Any, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = sock.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise SchemaException(f"the connection closed after {len(parts)} of {count} bytes")
        parts += part
    return bytes(parts)
