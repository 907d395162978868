"""A disk that fails under one file, or a permission that is missing: the others are checked, copied and told of."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from kafkalog.engine.files import Files
from kafkalog.engine.files.failure import UnsyncedError
from kafkalog.engine.files.os_files import OsFile
from kafkalog.errors import CorruptRecordException, DiskFull, KafkaStorageException, TooManyOpenFilesException
from kafkalog.toolbox.unread import BLOCK_BYTES, FileAroundBadBlocks, unread
from kafkalog.toolbox.verify import verify
from tests.file_doubles import Fault, FaultyFiles, UnsyncedFiles
from tests.unit.store_kit import NOW_MS, open_store

FAST = UnsyncedFiles()
SECOND = "00000000000000000020.log"


def disk_with_bad_blocks(suffix: str, *blocks: int) -> Files:
    """The real disk, which cannot give some blocks of the files that end so."""

    class BadFile(OsFile):
        __slots__ = ()

        def _refuse(self, n: int, position: int) -> None:
            if self.path.endswith(suffix):
                for block in blocks:
                    if position < (block + 1) * BLOCK_BYTES and block * BLOCK_BYTES < position + n:
                        raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)

        def pread(self, n: int, position: int) -> bytes:
            self._refuse(n, position)
            return super().pread(n, position)

        def pread_into(self, buffer: bytearray | memoryview | mmap.mmap, position: int) -> int:
            self._refuse(len(buffer), position)
            return super().pread_into(buffer, position)

    class BadDisk(UnsyncedFiles):
        __slots__ = ()
        file_class = BadFile

    return BadDisk()


def refusing(path: str, number: int = errno.EIO, *kinds: str) -> FaultyFiles:
    """The real disk, which cannot open, or list, what has `path` in its own."""
    return FaultyFiles(
        FAST, Fault(0, number, kinds=kinds or ("open", "list_dir", "read_bytes"), paths=lambda each: path in each)
    )


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Three partitions, each of three segments of twenty records of 1 KiB."""
    root = tmp_path / "shop"
    config = {"internal.segment.bytes": "22000", "index.interval.bytes": "4000"}
    with open_store(root, files=FAST) as store:
        orders = store.create_topic("orders", 3, config=config)
        for number in range(180):
            orders.append(b"%04d" % number * 256, partition=number % 3, timestamp=NOW_MS + number)
    assert sorted(os.listdir(root / "orders-1"))[5].startswith(SECOND[:-4]), os.listdir(root / "orders-1")
    return root


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (OSError(errno.EIO, "Input/output error", "/logs/t-0/x"), True),
        (PermissionError(errno.EACCES, "Permission denied", "/logs/t-0"), True),
        (KafkaStorageException.because_of(OSError(errno.EIO, "Input/output error", b"/logs/t-0/x"), "cannot"), False),
        (KafkaStorageException.because_of(OSError(errno.EIO, "Input/output error", "/logs/t-0/x"), "cannot"), True),
        (OSError(errno.EIO, "Input/output error", "/logs/t-00/x"), False),
        (OSError(errno.EIO, "Input/output error"), False),
        (FileNotFoundError(errno.ENOENT, "No such file", "/logs/t-0/x"), False),
        (UnsyncedError(errno.EIO, "Input/output error", "/logs/t-0/x"), False),
        (OSError(errno.ENOSPC, "No space left", "/logs/t-0/x"), False),
        (OSError(errno.EMFILE, "Too many open files", "/logs/t-0/x"), False),
        (DiskFull("full", path="/logs/t-0/x"), False),
        (TooManyOpenFilesException("many", path="/logs/t-0/x"), False),
        (CorruptRecordException("bad", path="/logs/t-0/x"), False),
        (KafkaStorageException("files went away at each look", path="/logs/t-0"), False),
        (ValueError("/logs/t-0"), False),
    ],
)
def test_what_counts_as_a_file_that_cannot_be_read(error: Exception, counts: bool) -> None:
    finding = unread(error, "/logs/t-0")
    assert (finding is not None) == counts
    if finding is not None:
        assert finding.path.startswith("/logs/t-0")
        assert "cannot be read: " in finding.what


def test_a_file_is_read_around_its_bad_blocks(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    data = os.urandom(5 * BLOCK_BYTES + 100)
    path.write_bytes(data)
    expected = bytearray(data)
    for begin, end in ((BLOCK_BYTES, 3 * BLOCK_BYTES), (5 * BLOCK_BYTES, len(data))):
        expected[begin:end] = bytes(end - begin)
    inner = disk_with_bad_blocks("a.log", 1, 2, 5).open(str(path), writable=False)
    with FileAroundBadBlocks(inner) as file:
        assert file.pread(1 << 20, 0) == expected
        assert file.pread(10, BLOCK_BYTES - 5) == expected[BLOCK_BYTES - 5 : BLOCK_BYTES + 5]
        assert file.pread(10, len(data)) == b""
        buffer = bytearray(300)
        assert file.pread_into(buffer, len(data) - 200) == 200
        assert file.bad_ranges() == [(BLOCK_BYTES, 3 * BLOCK_BYTES), (5 * BLOCK_BYTES, len(data))]
        assert file.why_not(0, BLOCK_BYTES) is None
        assert "Input/output error" in (file.why_not(0, BLOCK_BYTES + 1) or "")
    assert inner.closed


def test_a_disk_that_gives_nothing_is_not_asked_for_each_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkalog.toolbox.unread.BAD_BLOCKS_MAX", 2)
    (tmp_path / "a.log").write_bytes(bytes(5 * BLOCK_BYTES))
    inner = disk_with_bad_blocks("a.log", *range(5)).open(str(tmp_path / "a.log"), writable=False)
    with FileAroundBadBlocks(inner) as file, pytest.raises(OSError, match="Input/output error"):
        file.pread(1 << 20, 0)


# --- verify -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    "path", ["orders-1", f"orders-1/{SECOND}", "orders-1/leader-epoch", f"orders-1/{SECOND[:-4]}.index", "-checkpoint"]
)
def test_verify_goes_on_behind_what_cannot_be_read(shop: Path, path: str, number: int, deep: bool) -> None:
    whole = verify(shop, deep=deep)
    assert whole.ok
    report = verify(shop, deep=deep, files=refusing(path, number))
    assert report.partitions == 3
    assert report.records >= 120
    assert report.findings
    assert all(path in each.path for each in report.findings)
    assert all(f"cannot be read: {os.strerror(number)} (" in each.what for each in report.findings)


@pytest.mark.parametrize("deep", [False, True])
def test_verify_reads_a_log_around_its_bad_blocks(shop: Path, deep: bool) -> None:
    report = verify(shop, deep=deep, files=disk_with_bad_blocks(f"orders-1/{SECOND}", 2))
    bad = [each for each in report.findings if "Input/output error" in each.what]
    assert [(each.position, each.length) for each in bad] == [(2 * BLOCK_BYTES, BLOCK_BYTES)]
    assert {os.path.basename(each.path) for each in report.findings} == {SECOND}
    (lost,) = report.lost
    assert 4 <= (lost.records or 0) <= 6
    assert report.records == 180 - (lost.records or 0)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_verify_stops_where_no_more_files_can_be_opened(shop: Path, number: int) -> None:
    with pytest.raises((KafkaStorageException, TooManyOpenFilesException)):
        verify(shop, files=refusing(SECOND, number))
