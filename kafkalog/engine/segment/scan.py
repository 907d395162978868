"""LogScan: the batches of a stretch of a .log file as tables; what recovery, verification and salvage stand on.

Knows Kafka's framing of files (see `file_records`) and the bytes of one file; no index, no offsets' order.  There are
two ways with one answer.  The plain way reads a slice, checks it, and reads on from the first batch that was torn by
its end.  Behind the first slice of a stretch of AHEAD_LEAST_BYTES a second thread reads beside this one
(`_native.ahead`), into a ring of four slices with room for a torn batch in front of each: 4 MiB in all, of which half
is touched as a rule.  Only files of the system are read so, and only while every scan of a long stretch in this
process, and every thread that reads ahead for one, has a processor; several recoveries side by side get none.  It
gives good batches only: at a bad one, a short read, an error, a fork, a batch longer than a slice, too many at work,
and the plain way goes on from the same position, so that every verdict and every error is its own.

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

SCAN_SLICE_BYTES = 1 << 19  # a part of the second-level cache: read, then checked while it is near
AHEAD_LEAST_BYTES = 16 << 20  # what is shorter is read before a thread pays
LARGE_BATCH_BYTES = 16 << 20  # a size field that says more is believed once the checksum agrees
CRC_SLICE_BYTES = 1 << 20


class ScanSlice(NamedTuple):
    """Whole valid batches: their table (positions are file positions) and the bytes they were read from.

    `data` begins at `position` in the file and is overwritten by the next step of the scan.
    """

    table: np.ndarray
    data: memoryview
    position: int


class LogScan:
    """The batches of a stretch of a file as tables, in slices of bounded memory; iterate once.

    Afterwards `stopped` says why it ended and `position` where the valid bytes end: OK at the end (what is left is
    too short to be seen), TORN when a batch's declared size passes the end, BAD_SIZE, BAD_CRC.  A batch that is
    longer than a slice is read whole, once its declared size is known to fit into the stretch; above LARGE_BATCH_BYTES
    only with a good checksum, whatever `check_crc` says: a flipped size field takes no memory.

    Of a long stretch a second thread reads some slices ahead, where a processor is left for it.  That way gives good
    batches and judges nothing: at whatever else it meets, the plain way looks at the same bytes again.
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
            plain_until = self.position + self._slice_bytes  # who wants one slice pays for no thread
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
        """The batches up to where the plain way must look: at the latest behind the last whole one."""
        scan, check_crc, most_threads = native.scan, self._check_crc, processors()
        if self.end - self.position < AHEAD_LEAST_BYTES or busy_threads() >= most_threads:
            return
        try:
            ahead = ReadAhead(file, self.position, self.end, slice_bytes=self._slice_bytes, most_threads=most_threads)
        except (MemoryError, OSError):
            return  # it would only have been quicker
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
        """The batches up to where a slice ends at or behind `until`; answers whether the scan stopped before."""
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
    """Whether the `size` bytes at `position` carry the right checksum for their magic; in slices, never read whole."""
    head = file.pread(min(size, RECORD_BATCH_OVERHEAD), position)
    if len(head) < HEADER_SIZE_UP_TO_MAGIC:
        return False
    legacy_magic = magic_byte(head) < 2
    if not legacy_magic and size < RECORD_BATCH_OVERHEAD:
        return False
    stored = int.from_bytes(head[LEGACY_CRC_AT:MAGIC_AT] if legacy_magic else head[CRC_AT:ATTRIBUTES_AT], "big")
    update, at, end = (crc32, MAGIC_AT, size) if legacy_magic else (crc32c, ATTRIBUTES_AT, size)
    buffer = memoryview(bytearray(min(CRC_SLICE_BYTES, size)))
    computed = 0
    while at < end:
        got = file.pread_into(buffer[: min(len(buffer), end - at)], position + at)
        if got == 0:
            return False
        computed = update(buffer[:got], computed)
        at += got
    return computed == stored
