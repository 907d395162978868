"""IoBuffers: reads a segment in chunks, each with its batches as a table; grows if a batch does not fit.

Both walks of the cleaner read a segment in chunks.  A chunk has as many bytes as the read buffer holds, and only its
whole batches are used; the next chunk begins after the last used batch.  A chunk without a whole batch doubles the
buffer, up to the largest message that the topic or the broker allows.  Beyond that, the size in the batch is trusted as
far as the file has so many bytes.  At the end of a segment the buffer shrinks again.  The write buffer has the same
size; here it is only a number.

The memory is the buffer, and a table of at most one row for each 26 bytes of it.  Batches are framed like batches in
memory (ByteBufferLogInputStream), because Kafka's cleaner reads them so.  A checksum is checked if the caller wants it;
Kafka does not check it.  Knows no record.
Belongs to one Cleaner and its thread.  Mirrors readBuffer, growBuffersOrFail and restoreBuffers of Cleaner (4.4.0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kafkalog._native.codec import batches as native
from kafkalog.engine.format.batch import (
    HEADER_SIZE_UP_TO_MAGIC,
    SMALLEST_BATCH_BYTES,
    declared_size,
    ensure_valid,
    framing_error,
)
from kafkalog.engine.segment.file_records import FileRecords
from kafkalog.errors import CorruptRecordException, IllegalArgumentException, IllegalStateException, KafkalogError

if TYPE_CHECKING:
    import numpy as np


class Chunk(NamedTuple):
    """The bytes of a file from `position` on.  `table` has a row for each whole batch, with positions in `data`.

    The next read overwrites `data`.  `why` is the native verdict why the table ends at `valid_bytes`.
    """

    records: FileRecords
    position: int
    data: memoryview
    table: np.ndarray
    why: int
    valid_bytes: int

    def check_end(self) -> None:
        """Raises the error of the batch after the last row, for a caller that has handled all rows."""
        if self.why in (native.BAD_SIZE, native.BAD_MAGIC):
            raise self.with_place(framing_error(self.data, self.why, self.valid_bytes), self.valid_bytes)
        if self.why == native.BAD_CRC:
            try:
                ensure_valid(self.data, native.header_at(self.data, self.valid_bytes))
            except CorruptRecordException as error:
                self.with_place(error, self.valid_bytes)
                raise

    def with_place(self, error: KafkalogError, at: int) -> KafkalogError:
        """Adds the file and the position to an error about the batch at `at` in the chunk, and returns the error."""
        if error.path is None:
            error.path, error.position = self.records.path, self.position + at
        return error


class IoBuffers:
    """A read buffer of `size` bytes, which may grow to `max_size`, or to the topic's max.message.bytes if that is more.

    `capacity` is its current size, and that of the write buffer.
    """

    def __init__(self, size: int, max_size: int, *, check_crcs: bool = False) -> None:
        if size < 1:
            raise IllegalArgumentException(f"a cleaner's buffer: found {size} bytes, expected at least 1")
        self.size = size
        self.max_size = max_size
        self.check_crcs = check_crcs
        self._buffer = memoryview(bytearray(size))

    @property
    def capacity(self) -> int:
        return len(self._buffer)

    def read(self, records: FileRecords, position: int) -> Chunk:
        """Reads the chunk at `position`, which must be below the end of the file.

        Raises CorruptRecordException if the file is shorter than its recorded size, and OSError.
        """
        want = min(self.capacity, records.size - position)
        got = records.open_channel().pread_into(self._buffer[:want], position)
        if got < want:
            raise CorruptRecordException(
                f"The file ends {want - got} bytes too early", path=records.path, position=position + got
            )
        data = self._buffer[:got]
        table, why, valid_bytes = native.scan(
            data,
            framing=native.FRAMING_BUFFER,
            check_crc=self.check_crcs,
            max_batches=got // SMALLEST_BATCH_BYTES + 1,
        )
        return Chunk(records, position, data, table, why, valid_bytes)

    def grow_or_fail(self, chunk: Chunk, max_message_bytes: int) -> None:
        """Enlarges the buffer after a chunk without a whole batch.

        Raises CorruptRecordException if the batch claims more bytes than the file has.  Raises IllegalStateException if
        it is larger than allowed, or its size is unknown.
        """
        limit = max_message_bytes
        if self.capacity >= limit:
            place = f"log segment {chunk.records.path} at position {chunk.position}"
            if len(chunk.data) < HEADER_SIZE_UP_TO_MAGIC:
                raise IllegalStateException(f"Could not determine next batch size for {place}")
            batch_bytes = declared_size(chunk.data)
            if batch_bytes <= 0:
                raise IllegalStateException(f"Invalid batch size {batch_bytes} for {place}")
            if batch_bytes <= self.capacity:
                raise IllegalStateException(
                    f"Batch size {batch_bytes} < buffer size {self.capacity}, but not processed for {place}"
                )
            left = chunk.records.open_channel().size() - chunk.position
            if batch_bytes > left:
                raise CorruptRecordException(
                    f"Log segment may be corrupt, batch size {batch_bytes} > {left} bytes left in segment for {place}",
                    path=chunk.records.path,
                    position=chunk.position,
                )
            limit = batch_bytes
        self._grow(limit)

    def _grow(self, limit: int) -> None:
        most = max(limit, self.max_size)
        if self.capacity >= most:
            raise IllegalStateException(f"This log contains a message larger than maximum allowable size of {most}.")
        self._buffer = memoryview(bytearray(min(2 * self.capacity, most)))

    def restore(self) -> None:
        """Shrinks the buffer to its initial size, at the end of a segment."""
        if self.capacity > self.size:
            self._buffer = memoryview(bytearray(self.size))
