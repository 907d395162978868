"""The scan that reads ahead gives the same result as the plain one, and its thread always ends."""

from __future__ import annotations

import contextlib
import errno
import gc
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkalog._native.codec import batches as native
from kafkalog._native.state.ahead import Busy, ReadAhead, busy_threads, can_read_ahead
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.files.os_files import OsFile
from kafkalog.engine.segment import scan as scan_module
from kafkalog.engine.segment.scan import LogScan, ScanSlice

from .segment_kit import batch

SLICE = 4096
LEAST = 8 * SLICE
COUNT = 2000
DATA = b"".join(batch(n) for n in range(COUNT))
SIZE = len(DATA) // COUNT
TASKS = Path("/proc/self/task")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ReadAhead]]:
    """Short slices, many processors; the ReadAheads that were created.  Afterwards no thread is left."""
    found: list[ReadAhead] = []

    def make(*args: Any, **kwargs: Any) -> ReadAhead:
        found.append(ReadAhead(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(scan_module, "SCAN_SLICE_BYTES", SLICE)
    monkeypatch.setattr(scan_module, "AHEAD_LEAST_BYTES", LEAST)
    monkeypatch.setattr(scan_module, "processors", lambda: 8)
    monkeypatch.setattr(scan_module, "ReadAhead", make)
    threads, busy = threads_here(), busy_threads()
    yield found
    assert ended(threads)  # though the ReadAheads are still referred to
    assert busy_threads() == busy


def threads_here() -> int:
    return len(list(TASKS.iterdir())) if TASKS.exists() else 0


def ended(before: int) -> bool:
    """Whether no more threads are left than before; the system lists one for a moment after it was joined."""
    for _ in range(1000):
        if threads_here() <= before:
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def path(tmp_path: Path) -> str:
    place = tmp_path / "00000000000000000000.log"
    place.write_bytes(DATA)
    return str(place)


def opened(path: str) -> OsFile:
    return OS_FILES.open(path, writable=True)


def offsets_of(pieces: Iterator[ScanSlice] | LogScan) -> list[int]:
    found: list[int] = []
    collect(pieces, found)
    return found


def collect(pieces: Iterator[ScanSlice] | LogScan, into: list[int]) -> None:
    for piece in pieces:
        into += piece.table["base_offset"].tolist()


def result(scan: LogScan) -> tuple[list[Any], list[bytes], int, int]:
    """The tables' rows, the bytes of each batch, why it stopped, where."""
    rows, data = [], []
    for table, view, position in scan:
        rows += table.tolist()
        data += [bytes(view[row["position"] - position :][: row["size"]]) for row in table]
    return rows, data, scan.stopped, scan.position


def same_both_ways(path: str, monkeypatch: pytest.MonkeyPatch, start: int = 0, *, check_crc: bool = True) -> LogScan:
    """Scans in both ways, compares, and answers the scan that read ahead."""
    with opened(path) as file:
        ahead = LogScan(file, start, file.size(), check_crc=check_crc)
        got = result(ahead)
        with monkeypatch.context() as patch:
            patch.setattr(scan_module, "processors", lambda: 1)
            assert got == result(LogScan(file, start, file.size(), check_crc=check_crc))
    return ahead


# --- the same answers --------------------------------------------------------------------------------


@pytest.mark.parametrize("check_crc", [True, False])
def test_a_sound_file(path: str, made: list[ReadAhead], monkeypatch: pytest.MonkeyPatch, check_crc: bool) -> None:
    scan = same_both_ways(path, monkeypatch, check_crc=check_crc)
    assert (scan.stopped, scan.position) == (native.OK, len(DATA))
    assert len(made) == 1
    assert same_both_ways(path, monkeypatch, start=SIZE * 7).position == len(DATA)


@pytest.mark.parametrize(
    ("at", "new", "why"),
    [
        (16 * SIZE + 60, b"\xff", native.BAD_CRC),  # in the first slice
        (1000 * SIZE + 60, b"\xff", native.BAD_CRC),
        (1999 * SIZE + 60, b"\xff", native.BAD_CRC),
        (1000 * SIZE + 8, b"\0\0\0\1", native.BAD_SIZE),
        (1000 * SIZE + 8, b"\x3f\0\0\1", native.TORN),  # a gigabyte
        (1000 * SIZE + 8, b"\0\0\x20\0", native.BAD_CRC),  # two slices
    ],
)
def test_damage(
    path: str, made: list[ReadAhead], monkeypatch: pytest.MonkeyPatch, at: int, new: bytes, why: int
) -> None:
    with opened(path) as file:
        file.pwrite(new, at)
    scan = same_both_ways(path, monkeypatch)
    assert (scan.stopped, scan.position) == (why, at // SIZE * SIZE)


@pytest.mark.parametrize("length", [len(DATA) - 1, len(DATA) - SIZE + 17, len(DATA) - SIZE + 18, SLICE * 40])
def test_torn_ends(path: str, made: list[ReadAhead], monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    with opened(path) as file:
        file.truncate(length)
    same_both_ways(path, monkeypatch)
    assert made


def test_batches_longer_than_a_slice_and_than_the_ring(
    path: str, made: list[ReadAhead], monkeypatch: pytest.MonkeyPatch
) -> None:
    for factor in (0.9, 1.5, 2.5, 20):
        large = batch(5000, value=bytes(int(SLICE * factor)))
        Path(path).write_bytes(DATA[: 600 * SIZE] + large + DATA[600 * SIZE :])
        made.clear()
        assert same_both_ways(path, monkeypatch).stopped == native.OK
        assert len(made) == 1 if factor < 1 else len(made) == 2 or factor < 2  # it reads ahead again afterwards


def test_a_file_that_is_shortened_meanwhile(path: str, made: list[ReadAhead]) -> None:
    with opened(path) as file:
        scan = LogScan(file, 0, len(DATA))
        pieces = iter(scan)
        next(pieces)
        next(pieces)
        file.truncate(1000 * SIZE + 5)
        assert len(offsets_of(pieces)) < 1000
        assert (scan.stopped, scan.position) == (native.TORN, 1000 * SIZE)
    assert made


def test_the_data_stays_until_the_next_step(path: str, made: list[ReadAhead]) -> None:
    with opened(path) as file:
        for table, data, position in LogScan(file, 0, len(DATA)):
            before = bytes(data)
            for _ in range(3):
                threading.Event().wait(0.001)  # time for the other thread to do harm
            assert bytes(data) == before
            end = int(table["position"][-1] + table["size"][-1])
            assert before[: end - position] == DATA[position:end]
    assert made


# --- errors ------------------------------------------------------------------------------------------


def test_a_file_that_is_closed_meanwhile(path: str, made: list[ReadAhead]) -> None:
    file = opened(path)
    scan = LogScan(file, 0, len(DATA))
    pieces = iter(scan)
    for _ in range(5):
        next(pieces)
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        collect(pieces, [])
    assert caught.value.filename == path
    assert made
    assert scan.position < len(DATA)


@pytest.mark.skipif(sys.platform != "linux", reason="reads a map's lost pages through /proc")
def test_a_disk_that_fails(path: str, made: list[ReadAhead], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a map after the end of its file: a read through the kernel gets EIO, as from a bad disk."""
    good_bytes = 20 * mmap.PAGESIZE
    with opened(path) as backing:
        size = backing.size()
        with mmap.mmap(backing.fileno(), size, prot=mmap.PROT_READ) as memory:
            start = address_of(memory)
            backing.truncate(good_bytes)
            for processors in (1, 8):
                monkeypatch.setattr(scan_module, "processors", lambda processors=processors: processors)
                with OsFile("the disk", os.open("/proc/self/mem", os.O_RDONLY)) as file:
                    scan = LogScan(file, start, start + size)
                    offsets: list[int] = []
                    with pytest.raises(OSError, match="Input/output error") as caught:
                        collect(scan, offsets)
                    assert (caught.value.errno, caught.value.filename) == (errno.EIO, "the disk")
                    assert offsets == list(range((scan.position - start) // SIZE))
                    assert good_bytes - 2 * SLICE < scan.position - start <= good_bytes
    assert len(made) == 1


def address_of(memory: mmap.mmap) -> int:
    import numpy as np

    return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])


# --- who gets a thread, and where it ends --------------------------------------------------------------


def test_who_reads_little_pays_for_no_thread(path: str, made: list[ReadAhead]) -> None:
    with opened(path) as file:
        pieces = iter(LogScan(file, 0, len(DATA)))
        next(pieces)
        offsets_of(LogScan(file, 0, LEAST - 1))
        offsets_of(LogScan(file, 0, len(DATA), slice_bytes=SLICE))
    assert not made


def test_only_files_of_the_system(path: str, made: list[ReadAhead]) -> None:
    class Watched(OsFile):
        __slots__ = ()

        def pread_into(self, buffer: Any, position: int) -> int:
            return super().pread_into(buffer, position)

    with Watched(path, os.open(path, os.O_RDONLY)) as file:
        assert not can_read_ahead(file)
        assert len(offsets_of(LogScan(file, 0, len(DATA)))) == COUNT
    assert not can_read_ahead(object())
    assert not made


def test_only_while_a_processor_is_left(path: str, made: list[ReadAhead]) -> None:
    with opened(path) as file:
        others = [Busy() for _ in range(6 - busy_threads())]
        assert len(offsets_of(LogScan(file, 0, len(DATA)))) == COUNT
        assert len(made) == 1
        others.append(Busy())
        assert len(offsets_of(LogScan(file, 0, len(DATA)))) == COUNT
        assert len(made) == 1
        del others[-1]
        offsets = []
        for number, piece in enumerate(LogScan(file, 0, len(DATA))):
            offsets += piece.table["base_offset"].tolist()
            if number == 3:
                assert len(made) == 2
                others.append(Busy())  # another one begins: the thread ends
            if number == 5:
                others.clear()
        assert len(offsets) == COUNT
        assert len(made) == 3


def test_scans_side_by_side(path: str, made: list[ReadAhead]) -> None:
    found: list[int] = []

    def work() -> None:
        with opened(path) as file:
            for _ in range(20):
                found.append(len(offsets_of(LogScan(file, 0, len(DATA)))))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [COUNT] * 120


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_scan_that_is_given_up(path: str, made: list[ReadAhead], steps: int) -> None:
    before = threads_here()
    with opened(path) as file:
        pieces: Any = iter(LogScan(file, 0, len(DATA)))
        for _ in range(steps):
            next(pieces)
        pieces.close()
        assert ended(before)
        with contextlib.suppress(KeyboardInterrupt):
            for number, _ in enumerate(LogScan(file, 0, len(DATA))):
                if number == steps:
                    raise KeyboardInterrupt
        assert ended(before)
        pieces = iter(LogScan(file, 0, len(DATA)))
        circle: list[Any] = [pieces]
        circle.append(circle)
        for _ in range(steps):
            next(pieces)
        del pieces, circle
        gc.collect()
    assert ended(before)


def test_forgotten_without_a_close(path: str, made: list[ReadAhead]) -> None:
    before = threads_here()
    with opened(path) as file:
        ahead = ReadAhead(file, 0, len(DATA), slice_bytes=SLICE, most_threads=8)
        place = ahead.advance(0)
        assert place is not None
        data = ahead.memory[slice(*place)]
        del ahead  # a view keeps it, and its thread
        assert bytes(data) == DATA[:SLICE]
        del data
        assert ended(before)


# --- ReadAhead itself ----------------------------------------------------------------------------------


def test_kept_bytes_stand_in_front(path: str, made: list[ReadAhead]) -> None:
    with opened(path) as file:
        ahead = ReadAhead(file, 10, 10 + 5 * SLICE + 3, slice_bytes=SLICE, most_threads=8)
        memory = ahead.memory
        assert len(memory) == 8 * SLICE
        assert ahead.advance(1) is None  # there is nothing to keep
        read, kept = b"", 0
        for want in (0, 7, SLICE, SLICE - 1, 100, 1):
            place = ahead.advance(want)
            assert place is not None
            data = bytes(memory[slice(*place)])
            assert data[:want] == read[len(read) - want :]
            read += data[want:]
            kept = want
            assert ahead.advance(SLICE + 1) is None
        assert kept == 1
        assert read == DATA[10 : 10 + 5 * SLICE + 3]
        assert ahead.advance(0) is None
        ahead.close()
        ahead.close()
        assert bytes(memory[slice(*place)]) == read[-4:]


def test_closed_and_misused(path: str, made: list[ReadAhead]) -> None:
    with opened(path) as file:
        ahead = ReadAhead(file, 0, 100, slice_bytes=10, most_threads=8)
        ahead.close()
        assert ahead.advance(0) is None
        for position, end, slice_bytes in ((-1, 5, 1), (5, 5, 1), (0, 5, 0), (0, 5, 1 << 40)):
            with pytest.raises(ValueError, match="slice_bytes: found"):
                ReadAhead(file, position, end, slice_bytes=slice_bytes, most_threads=8)
    with pytest.raises(TypeError):
        ReadAhead(None, 0, 5, slice_bytes=5, most_threads=8)  # type: ignore[arg-type]
