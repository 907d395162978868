"""FileRecords: the batches of one .log file, and slices of it that are read only when used.

It appends, truncates, walks headers, and finds a batch by offset or time; `scan` reads whole stretches. It knows
Kafka's framing of files (FileLogInputStream) and no index. In this framing a tail of 17 bytes or fewer is ignored, a
batch whose declared size passes the end is the end, and a size below 14 is corrupt. Mirrors
org.apache.kafka.common.record.internal.FileRecords (4.4.0).

Writers hold the partition's lock. Readers take no lock: they use `size` as it was when they read it, and bytes below it
never change while they are part of the log.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kafkalog._limits import INT_MAX
from kafkalog._native.codec import batches as native
from kafkalog._native.state import fetch
from kafkalog._native.state.fetch import RecordsSlice
from kafkalog._native.state.held import Pin
from kafkalog._native.state.tail import RecordsEnd
from kafkalog.engine.files import Buffer, ClosedFile, File, Files, HasFileno, is_shortage
from kafkalog.engine.format import legacy
from kafkalog.engine.format.batch import (
    HEADER_SIZE_UP_TO_MAGIC,
    LOG_OVERHEAD,
    MIN_RECORD_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    declared_size,
)
from kafkalog.engine.format.records import MAX_RECORD_BYTES, records, stream
from kafkalog.engine.segment.scan import LogScan
from kafkalog.engine.segment.types import LogOffsetPosition, TimestampAndOffset
from kafkalog.errors import CorruptRecordException, IllegalArgumentException, KafkaException

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.engine.format.records import Record

SEARCH_WINDOW_BYTES = 8192  # about two index intervals: the wanted header and the next one
WALK_WINDOW_BYTES = 65536
RECORDS_CHUNK_BYTES = 1 << 20


def walk_headers(
    file: File, start: int, end: int, *, window_bytes: int = WALK_WINDOW_BYTES, origin: int = 0
) -> Iterator[BatchHeader]:
    """Yields the headers of the batches in [start, end) of a file, without their checksums. Bodies are skipped.

    Header positions count from `origin`. Raises CorruptRecordException at a size below 14, or if the file ends early.
    """
    position = start
    while position < end - HEADER_SIZE_UP_TO_MAGIC:
        want = min(window_bytes, end - position)
        data = file.pread(want, position)
        found, why, reached = native.headers(data, base_position=position - origin, framing=native.FRAMING_FILE)
        yield from found
        if why == native.BAD_SIZE:
            size = declared_size(data, reached) - LOG_OVERHEAD
            least = MIN_RECORD_OVERHEAD
            if size >= least:  # Kafka reads the bytes after such a batch as the rest of its header
                least = RECORD_BATCH_OVERHEAD - LOG_OVERHEAD
            raise CorruptRecordException(
                f"Found record size {size} smaller than minimum record overhead ({least}) in file {file.path}.",
                path=file.path,
                position=position + reached,
            )
        if len(data) < want:
            raise CorruptRecordException(
                "Unexpected EOF while attempting to read the next batch", path=file.path, position=position + len(data)
            )
        position += reached
        if position - reached + want >= end:
            return  # too little is left, or the last batch's declared size passes the end
        if want - reached < RECORD_BATCH_OVERHEAD:
            continue  # the header crosses the end of the window: read on from its start
        size = declared_size(data, reached)
        if size > end - position:
            return
        # A whole batch of which only the header is in the window.
        yield native.header_at(data, reached).at(position - origin)
        position += size


def base_offset_of(file: File, header: BatchHeader, position: int) -> int:
    """RecordBatch.baseOffset: for a compressed batch of magic 0 or 1 it must decompress the batch."""
    if header.magic >= 2 or not header.is_compressed:
        return header.base_offset
    return legacy.base_offset(file.pread(header.size, position), header, at=0)


def max_timestamp_of(header: BatchHeader) -> int:
    """Returns the max timestamp of a header that was read without its body.

    Raises IllegalArgumentException for a negative magic, because the size of its header is unknown.
    """
    if header.magic < 0:
        legacy.record_overhead(header.magic)
    return header.max_timestamp


class FileRecords(RecordsEnd):
    """A .log file. `size` is its logical bytes; with preallocation the file is longer.

    `channel` is the file while it is open. An idle file may be closed at any time (`kafkalog.engine.files.pool`), and
    is opened again by its name.
    """

    __slots__ = ("_files", "path")

    channel: File | None

    def __init__(self, path: str, file: File | None, files: Files, size: int) -> None:
        """`file`: None for a file that exists and is opened when needed."""
        self.path = path
        self.size = size
        self._files = files
        if file is not None:
            files.pool.admit(self, file)

    @classmethod
    def open(
        cls,
        path: str,
        files: Files,
        *,
        mutable: bool = True,
        preallocated_bytes: int | None = None,
        exists: bool = False,
    ) -> FileRecords:
        """Opens the file, and creates it unless `mutable` is False.

        With `preallocated_bytes` a new file gets this length and is logically empty; otherwise the whole length counts.
        `exists`: a directory listing shows the file; only its size is read, and the first use opens it. Raises
        KafkaException beyond 2^31-1 bytes.
        """
        file: File | None = None
        if exists:
            size = files.size_of(path)
        else:
            file, size = files.open_sized(path, writable=mutable, create=mutable)
        try:
            if preallocated_bytes is not None and file is not None:
                file.truncate(preallocated_bytes)
                size = 0
            if size > INT_MAX:
                raise KafkaException(
                    f"The size of segment {path} ({size}) is larger than the maximum allowed segment size of {INT_MAX}"
                )
        except BaseException:
            if file is not None:
                file.close()
            raise
        return cls(path, file, files, size)

    def open_channel(self) -> File:
        """Returns the open file; opens it again if it was closed.

        The caller can use it even if it is closed here meanwhile.
        """
        self.used = True
        return self.channel or self._files.pool.reopened(self, self, self._files)

    @property
    def file(self) -> str:
        """Kafka's name for `path`."""
        return self.path

    # --- writing ---------------------------------------------------------------------------------------

    def append(self, buffers: Sequence[Buffer], length: int) -> int:
        """Writes `length` bytes of `buffers` after the end, in one call. A write that fails is undone."""
        size = self.size
        if length > INT_MAX - size:
            raise IllegalArgumentException(
                f"Append of size {length} bytes is too large for segment with current file position at {size}"
            )
        _pin = Pin(self)
        file = self.open_channel()
        try:
            written = file.pwritev(buffers, size)
        except OSError:
            with contextlib.suppress(OSError):  # the log is just being created: nobody continues with it
                self.cut(size)
            raise
        self.size = size + written
        return written

    def truncate_to(self, target_size: int) -> int:
        """Truncates the file to `target_size` bytes. Returns how many logical bytes were removed."""
        original_size = self.size
        if not 0 <= target_size <= original_size:
            raise KafkaException(
                f"Attempt to truncate log segment {self.path} to {target_size} bytes failed,  size of this log segment "
                f"is {original_size} bytes."
            )
        _pin = Pin(self)
        if target_size < self.open_channel().size():
            self.cut(target_size)
        return original_size - target_size

    def trim(self) -> None:
        """Releases preallocated space that was not used."""
        self.truncate_to(self.size)

    def flush(self) -> None:
        self.open_channel().sync()

    def flush_data(self) -> None:
        """Flushes like `flush`, but without the file's timestamps."""
        self.open_channel().sync_data()

    def close(self) -> None:
        """Closes the file, as soon as no reader holds a slice of it."""
        self.shut(ClosedFile(self.path))

    def delete_if_exists(self) -> bool:
        """Closes and deletes the file. Returns False if there was none."""
        self.close()
        return self._files.unlink_if_exists(self.path)

    def rename_to(self, path: str) -> None:
        """Renames the file.

        `path` becomes the new path even if the disk refused the rename, except for a shortage (of descriptors or
        space).
        """
        try:
            self._files.rename_or_was(self.path, path)
        except OSError as error:
            if not is_shortage(error):
                self._is_at(path)
            raise
        self._is_at(path)

    def update_parent_dir(self, parent_dir: str) -> None:
        """Records that the directory was renamed."""
        self._is_at(os.path.join(parent_dir, os.path.basename(self.path)))

    def _is_at(self, path: str) -> None:
        self.path = path
        file = self.channel
        if file is not None:
            file.path = path

    def refresh(self) -> int:
        """Sets the size to the file's current length: for a read-only view of a file that another process writes."""
        self.size = min(self.open_channel().size(), INT_MAX)
        return self.size

    # --- reading ---------------------------------------------------------------------------------------

    def slice(self, position: int, size: int) -> FileRecordsSlice:
        """Returns at most `size` bytes from `position`, clamped to the current end."""
        left = self.size - position
        if position < 0:
            raise IllegalArgumentException(f"Invalid position: {position} in read from {self}")
        if left < 0:
            raise IllegalArgumentException(f"Slice from position {position} exceeds end position of {self}")
        if size < 0:
            raise IllegalArgumentException(f"Invalid size: {size} in read from {self}")
        return FileRecordsSlice(self.open_channel(), position, size if size < left else left)

    def read(self, position: int, size: int) -> bytes:
        """Returns exactly `size` bytes from `position`. Raises CorruptRecordException if the file ends before."""
        data = self.open_channel().pread(size, position)
        if len(data) != size:
            raise CorruptRecordException(
                f"The file ends {size - len(data)} bytes too early", path=self.path, position=position + len(data)
            )
        return data

    def batches(self) -> Iterator[BatchHeader]:
        """Yields all headers, lazily; positions are file positions."""
        return walk_headers(self.open_channel(), 0, self.size)

    def batches_from(self, start: int, *, window_bytes: int = WALK_WINDOW_BYTES) -> Iterator[BatchHeader]:
        """Yields the headers from position `start` on, lazily."""
        return walk_headers(self.open_channel(), start, self.size, window_bytes=window_bytes)

    def first_batch(self, position: int = 0) -> BatchHeader | None:
        """Returns the header at `position`; None at the end."""
        return next(walk_headers(self.open_channel(), position, self.size, window_bytes=128), None)

    def scan(
        self, start: int = 0, end: int | None = None, *, check_crc: bool = True, slice_bytes: int | None = None
    ) -> LogScan:
        """Returns a scan that yields tables of the valid batches of [start, end)."""
        return LogScan(
            self.open_channel(), start, self.size if end is None else end, check_crc=check_crc, slice_bytes=slice_bytes
        )

    def base_offset_of(self, header: BatchHeader) -> int:
        """Returns the first offset of a batch whose header has a file position."""
        return base_offset_of(self.open_channel(), header, header.position)

    def search_for_offset_from_position(self, target_offset: int, starting_position: int) -> LogOffsetPosition | None:
        """Returns the first batch that holds `target_offset` or is above it, or None.

        Searches from a file position on.
        """
        found = self.find_batch(target_offset, starting_position)
        return None if found is None else LogOffsetPosition(*found)

    def find_batch(self, target_offset: int, starting_position: int) -> tuple[int, int, int] | None:
        """Returns `search_for_offset_from_position` as a plain tuple."""
        found = fetch.batch_with_offset(self.open_channel(), target_offset, starting_position, self.size)
        return found or self._find_any_batch(target_offset, starting_position)

    def _find_any_batch(self, target_offset: int, starting_position: int) -> tuple[int, int, int] | None:
        """Searches if the native search found nothing.

        There may be no such batch, or old or damaged batches on the way.
        """
        previous: BatchHeader | None = None
        for header in walk_headers(self.open_channel(), starting_position, self.size, window_bytes=SEARCH_WINDOW_BYTES):
            base_offset = header.base_offset
            if header.magic < 2 and header.is_compressed:
                base_offset = self.base_offset_of(header)
            if base_offset >= target_offset:
                if base_offset > target_offset and previous is not None and previous.last_offset >= target_offset:
                    break
                return base_offset, header.position, header.size
            previous = header
        if previous is not None and previous.last_offset >= target_offset:
            return self.base_offset_of(previous), previous.position, previous.size
        return None

    def search_for_timestamp(
        self,
        target_timestamp: int,
        starting_position: int,
        starting_offset: int,
        max_record_body_size: int = MAX_RECORD_BYTES,
    ) -> TimestampAndOffset | None:
        """Returns the first record at or above both a timestamp and an offset, from a position on, or None."""
        for header in self.batches_from(starting_position):
            if max_timestamp_of(header) < target_timestamp:
                continue
            data = self.read(header.position, header.size)
            for record in stream(data, header, at=0, max_record_bytes=max_record_body_size):
                if record.timestamp >= target_timestamp and record.offset >= starting_offset:
                    epoch = header.leader_epoch
                    return TimestampAndOffset(record.timestamp, record.offset, None if epoch == -1 else epoch)
        return None

    def largest_timestamp_after(self, starting_position: int) -> TimestampAndOffset:
        """Returns the largest max timestamp, with last offset and epoch of the first batch that has it."""
        found: BatchHeader | None = None
        largest = -1
        for header in self.batches_from(starting_position):
            timestamp = max_timestamp_of(header)
            if timestamp > largest:
                largest, found = timestamp, header
        if found is None:
            return TimestampAndOffset(-1, -1, None)
        return TimestampAndOffset(largest, found.last_offset, None if found.leader_epoch == -1 else found.leader_epoch)

    def __repr__(self) -> str:
        return f"FileRecords(size={self.size}, file={self.path}, start=0, end={INT_MAX})"


class FileRecordsSlice(RecordsSlice):
    """A stretch of a .log file: the result of a read. Nothing is read before one of its methods is called.

    It may end inside a batch. Header positions count from the start of the slice, as `to_bytes()` does.
    """

    __slots__ = ()

    def read_into(self, buffer: bytearray | memoryview, position: int = 0) -> int:
        """Fills `buffer` from `position` in the slice. Returns the number of bytes read."""
        count = min(len(buffer), self.size - position)
        if count <= 0:
            return 0
        with memoryview(buffer) as view:
            done: int = self.file.pread_into(view[:count], self.position + position)
            return done

    def truncated(self, new_size: int) -> KafkaException:
        """Returns the error for a file that was truncated since the slice was created."""
        return KafkaException(
            f"Size of FileRecords {self.file.path} has been truncated during write: old size {self.size}, "
            f"new size {new_size}"
        )

    def iter_batches(self) -> Iterator[BatchHeader]:
        """Yields the headers of the whole batches, lazily."""
        start = self.position
        return walk_headers(self.file, start, start + self.size, origin=start)

    def batches(self) -> list[BatchHeader]:
        """Returns the headers of the whole batches."""
        return list(self.iter_batches())

    def last_batch(self) -> BatchHeader | None:
        """Returns the header of the last whole batch."""
        last = None
        for last in self.iter_batches():  # noqa: B007
            pass
        return last

    def records(self, max_record_bytes: int = MAX_RECORD_BYTES) -> Iterator[Record]:
        """Yields all records of the whole batches, also those below the requested offset.

        Reads about 1 MiB at a time.
        """
        position = 0
        chunk_bytes = RECORDS_CHUNK_BYTES
        while position < self.size - HEADER_SIZE_UP_TO_MAGIC:
            want = min(chunk_bytes, self.size - position)
            data = self.file.pread(want, self.position + position)
            if len(data) < want:
                raise self.truncated(position + len(data))
            found, why, reached = native.headers(data, framing=native.FRAMING_FILE)
            for header in found:
                yield from records(data, header, max_record_bytes=max_record_bytes)
            position += reached
            chunk_bytes = RECORDS_CHUNK_BYTES
            if why == native.BAD_SIZE:
                raise CorruptRecordException(
                    f"Found record size smaller than minimum record overhead ({MIN_RECORD_OVERHEAD})",
                    path=self.file.path,
                    position=self.position + position,
                )
            if not found:
                size = declared_size(data)
                if size > self.size - position:
                    return
                chunk_bytes = size

    def send_to(self, sock: HasFileno, position: int = 0, count: int | None = None) -> int:
        """Sends up to `count` bytes from `position` in the slice with one `sendfile`.

        Returns the number of bytes sent.
        """
        left = self.size - position
        count = left if count is None else min(count, left)
        if count <= 0:
            return 0
        sent: int = self.file.send_to(sock, self.position + position, count)
        if sent == 0:
            raise self.truncated(max(self.file.size() - self.position, 0))
        return sent

    def __repr__(self) -> str:
        return f"FileRecordsSlice({self.file.path}, position={self.position}, size={self.size})"
