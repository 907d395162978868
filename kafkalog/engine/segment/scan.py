"""LogScan: the batches of a stretch of a .log file as tables. Recovery, verification and salvage use it.

It knows Kafka's framing of files (see `file_records`) and the bytes of one file; no index and no order of offsets. Two
ways give the same result. The plain way reads a slice, checks it, and continues with the first batch that did not fit
into the slice. After the first slice of a stretch of AHEAD_LEAST_BYTES, a second thread reads ahead (`_native.ahead`)
into a ring of four slices, each with room before it for an incomplete batch. The ring has 4 MiB, of which usually half
is touched.

Reading ahead is used only for files of the operating system, and only while each long scan in this process and each of
its reading threads has a processor. Several concurrent recoveries therefore do not use it. It returns good batches
only. At a bad batch, a short read, an error, a fork, a batch longer than a slice, or too many threads, the plain way
continues from the same position. Every verdict and error therefore comes from the plain way.

Takes no lock: bytes below a log's size never change while they are part of it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._native.codec import batches as native
from kafkalog._native.codec.crc32c import crc32, crc32c
from kafkalog._native.state.ahead import Busy, ReadAhead, busy_threads, can_read_ahead
from kafkalog.engine.files import File
from kafkalog.engine.files.processes import processors
from kafkalog.engine.format.batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_SIZE_UP_TO_MAGIC,
    LEGACY_CRC_AT,
    MAGIC_AT,
    RECORD_BATCH_OVERHEAD,
    declared_size,
    magic_byte,
)

if TYPE_CHECKING:
    import numpy as np

    from kafkalog._native.state.descriptor import Descriptor

SCAN_SLICE_BYTES = 1 << 19  # fits the second-level cache, so that the check finds the bytes there
AHEAD_LEAST_BYTES = 16 << 20  # a shorter stretch is read before a thread pays
LARGE_BATCH_BYTES = 16 << 20  # a larger size is trusted only if the checksum agrees
CRC_SLICE_BYTES = 1 << 20


class ScanSlice(NamedTuple):
    """Whole valid batches: their table (positions are file positions) and the bytes they were read from.

    `data` begins at `position` in the file; the next step of the scan overwrites it.
    """

    table: np.ndarray
    data: memoryview
    position: int


class LogScan:
    """The batches of a stretch of a file as tables, in slices of bounded memory. Iterate once.

    Afterwards `stopped` says why the scan ended, and `position` where the valid bytes end. `stopped` is OK at the end
    (the rest is too short to be seen), TORN if a batch's declared size passes the end, BAD_SIZE, or BAD_CRC. A batch
    that is longer than a slice is read whole, once its declared size is known to fit into the stretch. Above
    LARGE_BATCH_BYTES it also needs a good checksum, whatever `check_crc` says, so that a flipped size field allocates
    no memory.

    For a long stretch a second thread reads slices ahead if a processor is free for it. It only returns good batches;
    at anything else the plain way reads the same bytes again.
    """

    def __init__(
        self, file: File, start: int, end: int, *, check_crc: bool = True, slice_bytes: int | None = None
    ) -> None:
        self.position = start
        self.end = end
        self.stopped: int = native.OK
        self._file = file
        self._check_crc = check_crc
        self._slice_bytes = slice_bytes or SCAN_SLICE_BYTES
        self._file_to_read_ahead = file if slice_bytes is None and can_read_ahead(file) else None

    def __iter__(self) -> Iterator[ScanSlice]:
        if self._file_to_read_ahead is None or self.end - self.position < AHEAD_LEAST_BYTES:
            yield from self._plain(self.end)
            return
        counted = Busy()
        try:
            plain_until = self.position + self._slice_bytes  # a caller that wants one slice pays for no thread
            while self.position < self.end:
                if self.end - plain_until < AHEAD_LEAST_BYTES:
                    plain_until = self.end
                if (yield from self._plain(plain_until)):
                    return
                yield from self._ahead(self._file_to_read_ahead)
                plain_until = self.position + AHEAD_LEAST_BYTES
        finally:
            del counted

    def _ahead(self, file: Descriptor) -> Iterator[ScanSlice]:
        """Yields batches up to where the plain way must continue: at the latest after the last whole batch."""
        scan, check_crc, most_threads = native.scan, self._check_crc, processors()
        if self.end - self.position < AHEAD_LEAST_BYTES or busy_threads() >= most_threads:
            return
        try:
            ahead = ReadAhead(file, self.position, self.end, slice_bytes=self._slice_bytes, most_threads=most_threads)
        except (MemoryError, OSError):
            return  # reading ahead is only an optimization
        try:
            memory = ahead.memory
            kept = 0
            while place := ahead.advance(kept):
                data = memory[slice(*place)]
                start, got, done = self.position, len(data), 0
                why = native.MORE
                while why == native.MORE:
                    table, why, done = scan(data, done, got, base_position=start, check_crc=check_crc)
                    if why not in (native.OK, native.TORN, native.MORE):
                        return
                    self.position = start + done
                    if len(table):
                        yield ScanSlice(table, data, start)
                kept = got - done
        finally:
            ahead.close()

    def _plain(self, until: int) -> Generator[ScanSlice, None, bool]:
        """Yields batches until a slice ends at or after `until`. Returns whether the scan stopped before."""
        scan, check_crc, file, end = native.scan, self._check_crc, self._file, self.end
        buffer = memoryview(bytearray(max(min(self._slice_bytes, end - self.position), 0)))
        while self.position < until:
            start = self.position
            want = min(len(buffer), end - start)
            got = file.pread_into(buffer[:want], start)
            done = 0
            while True:
                table, why, reached = scan(buffer, done, got, base_position=start, check_crc=check_crc)
                if why == native.BAD_CRC:
                    table = table[table["verdict"] == native.OK]
                    reached = int(table["position"][-1]) + int(table["size"][-1]) - start if len(table) else done
                done = reached
                self.position = start + reached
                if len(table):
                    yield ScanSlice(table, buffer, start)
                if why != native.MORE:
                    break
            if why not in (native.OK, native.TORN) or start + got >= end or got < want:
                self.stopped = native.TORN if got < want else why
                return True
            if done == 0:
                size = declared_size(buffer)
                if start + size > end:
                    self.stopped = native.TORN
                    return True
                if size > LARGE_BATCH_BYTES and not crc_matches_in(file, start, size):
                    self.stopped = native.BAD_CRC
                    return True
                buffer = memoryview(bytearray(max(size, self._slice_bytes)))
            elif len(buffer) > LARGE_BATCH_BYTES:
                buffer = memoryview(bytearray(self._slice_bytes))
        return False


def crc_matches_in(file: File, position: int, size: int) -> bool:
    """Returns whether the `size` bytes at `position` have the right checksum for their magic. Reads them in slices."""
    found = crcs_in(file, position, size)
    return found is not None and found[0] == found[1]


def crcs_in(file: File, position: int, size: int) -> tuple[int, int] | None:
    """Returns the stored and the computed checksum of the batch of `size` bytes at `position`, by its magic. Reads it
    in slices. Returns None if the bytes are too few."""
    head = file.pread(min(size, RECORD_BATCH_OVERHEAD), position)
    if len(head) < HEADER_SIZE_UP_TO_MAGIC:
        return None
    legacy_magic = magic_byte(head) < 2
    if not legacy_magic and size < RECORD_BATCH_OVERHEAD:
        return None
    stored = int.from_bytes(head[LEGACY_CRC_AT:MAGIC_AT] if legacy_magic else head[CRC_AT:ATTRIBUTES_AT], "big")
    update, at, end = (crc32, MAGIC_AT, size) if legacy_magic else (crc32c, ATTRIBUTES_AT, size)
    buffer = memoryview(bytearray(min(CRC_SLICE_BYTES, size)))
    computed = 0
    while at < end:
        got = file.pread_into(buffer[: min(len(buffer), end - at)], position + at)
        if got == 0:
            return None
        computed = update(buffer[:got], computed)
        at += got
    return stored, computed
