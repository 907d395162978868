"""The real disk behind the files API: positions, short writes, maps, sendfile, atomic replacement."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kafkalog._native.state.descriptor import ReadBuffers
from kafkalog.engine.files import OS_FILES, Files, ManualClock, OsFile, SystemClock, api, os_files, parent_dir
from kafkalog.engine.files.overlay import OverlayFiles
from kafkalog.errors import IllegalArgumentException
from tests.file_doubles import RecordingFiles


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "file")


def test_reads_and_writes_at_positions(path: str) -> None:
    with OS_FILES.open(path, create=True) as file:
        file.pwrite(b"abc", 0)
        assert file.pwritev([b"de", bytearray(b"f"), memoryview(b"ghi")], 3) == 6
        file.pwrite(b"Z", 12)
        assert file.size() == 13
        assert file.pread(100, 0) == b"abcdefghi\0\0\0Z"
        assert file.pread(3, 3) == b"def"
        assert file.pread(3, 13) == b""
        buffer = bytearray(b"..........")
        assert file.pread_into(buffer, 8) == 5
        assert buffer == b"i\0\0\0Z....."
        assert file.pread_into(memoryview(buffer)[2:4], 0) == 2
        file.truncate(4)
        file.sync()
        assert file.size() == 4
    assert file.closed
    assert file.fileno() == -1
    file.close()
    with pytest.raises(OSError) as failure:
        file.pwrite(b"x", 0)
    assert failure.value.errno == errno.EBADF


def test_the_disk_is_at_work_while_a_file_is_written(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "FLUSH_BYTES", 10)
    steps: list[object] = []
    monkeypatch.setattr(OsFile, "flush_soon", lambda file, position, count: steps.append((position, count)))
    monkeypatch.setattr(OsFile, "sync", lambda file: steps.append("sync"))
    with OS_FILES.open(path, create=True) as file:
        assert file.write_synced([b"abcd", b"", memoryview(b"efgh"), b"ijkl", b"mnopqrstuvwxyz", b"!"]) == 27
        assert file.pread(100, 0) == b"abcdefghijklmnopqrstuvwxyz!"
    assert steps == [(0, 12), (12, 14), "sync"]


@pytest.mark.skipif(not hasattr(os, "copy_file_range"), reason="not a call of this system")
def test_the_system_copies_as_far_as_it_can(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os_files, "FLUSH_BYTES", 10)
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(OsFile, "flush_soon", lambda file, position, count: told.append((position, count)))
    (tmp_path / "source").write_bytes(bytes(range(27)))
    with OS_FILES.open(path, create=True) as file, OS_FILES.open(str(tmp_path / "source"), writable=False) as source:
        assert file.copy_from(source, 25) == 25
        assert file.pread(100, 0) == bytes(range(25))
        assert told == [(0, 10), (10, 10)]
        assert file.copy_from(source, 99) == 27
        with OverlayFiles() as overlay, overlay.open(str(tmp_path / "source"), writable=False) as other:
            assert file.copy_from(other, 5) == 0
    assert file.copy_from(source, 25) == 0  # both are closed


def test_a_clone_shares_or_is_not_made(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    OS_FILES.write_file(path, b"abc" * 5000)
    with OS_FILES.open(path) as source, OS_FILES.open(str(tmp_path / "clone"), create=True) as clone:
        if clone.clone_from(source):  # the file system has reflinks
            assert clone.pread(20000, 0) == b"abc" * 5000
        else:
            assert clone.size() == 0

        def refuse(code: int) -> None:
            def ioctl(*_: object) -> None:
                raise OSError(code, os.strerror(code))

            monkeypatch.setattr("fcntl.ioctl", ioctl)

        refuse(errno.EOPNOTSUPP)
        assert not clone.clone_from(source)
        refuse(errno.ENOSPC)
        with pytest.raises(OSError, match="No space") as met:
            clone.clone_from(source)
        assert met.value.filename == str(tmp_path / "clone")


def test_another_name(path: str, tmp_path: Path) -> None:
    OS_FILES.write_file(path, b"abc")
    OS_FILES.link(path, str(tmp_path / "other"))
    assert OS_FILES.stat(path).inode == OS_FILES.stat(str(tmp_path / "other")).inode
    with pytest.raises(FileExistsError):
        OS_FILES.link(path, str(tmp_path / "other"))
    with pytest.raises(OSError, match=os.strerror(errno.ENOTSUP)):
        RecordingFiles(str(tmp_path)).link(path, str(tmp_path / "third"))


def test_a_hint_is_only_one(path: str) -> None:
    with OS_FILES.open(path, create=True) as file:
        file.pwrite(b"abc", 0)
        file.flush_soon(0, 3)
        assert file.pread(10, 0) == b"abc"
    file.flush_soon(0, 3)  # it is closed


def test_opening(path: str) -> None:
    with pytest.raises(FileNotFoundError):
        OS_FILES.open(path)
    OS_FILES.open(path, exclusive=True).close()
    with pytest.raises(FileExistsError):
        OS_FILES.open(path, exclusive=True)
    with OS_FILES.open(path, create=True) as file:
        file.pwrite(b"kept", 0)
    OS_FILES.create(path)
    with OS_FILES.open(path, writable=False) as file:
        assert file.pread(10, 0) == b"kept"
        with pytest.raises(OSError):
            file.pwrite(b"x", 0)


@pytest.fixture(params=["disk", "overlay"])
def files(request: pytest.FixtureRequest) -> Iterator[Files]:
    with OverlayFiles() as overlay:
        yield overlay if request.param == "overlay" else OS_FILES


def test_opening_tells_the_length(tmp_path: Path, files: Files) -> None:
    path = str(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        files.open_sized(path)
    made, length = files.open_sized(path, create=True)
    assert length == 0
    made.pwrite(b"kept", 0)
    made.close()
    again, length = files.open_sized(path, writable=False)
    assert (length, again.pread(10, 0)) == (4, b"kept")
    again.close()
    with pytest.raises(OSError):
        files.open_sized(str(tmp_path), writable=False)


def test_listing_by_kind(tmp_path: Path, files: Files) -> None:
    (tmp_path / "b").touch()
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("dir")
    (tmp_path / "lost").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    assert files.listing(str(tmp_path)) == (["a", "b"], ["dir", "link", "pipe"])
    assert files.list_files(str(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_short_transfers_are_finished(path: str, limit: int) -> None:
    with OS_FILES.open(path, create=True) as file:
        assert isinstance(file, OsFile)
        file.call_bytes = limit
        file.pwrite(b"0123456789", 2)
        assert file.pwritev([b"ab", b"", b"cdefg", b"h"], 12) == 8
        assert file.pwritev([b"ijk", b"lmnop"], 20) == 8
        assert file.pread(100, 0) == b"\0\x000123456789abcdefghijklmnop"
        buffer = bytearray(6)
        assert file.pread_into(buffer, 24) == 4
        assert buffer == b"mnop\0\0"


@pytest.mark.parametrize("count", [0, 1, 2, 3, 2053])
def test_any_number_of_buffers(path: str, count: int) -> None:
    buffers = [bytes([number % 251]) * 3 for number in range(count)]
    with OS_FILES.open(path, create=True) as file:
        assert file.pwritev(buffers, 1) == 3 * count
        assert file.pread(10**6, 1) == b"".join(buffers)


def test_errors_name_the_file(path: str) -> None:
    with OS_FILES.open(path, create=True) as file:
        pass
    calls = [
        lambda: file.pread(1, 0),
        lambda: file.pread_into(bytearray(1), 0),
        lambda: file.pwrite(b"x", 0),
        lambda: file.pwritev([b"x", b"y"], 0),
        lambda: file.pwritev([b"x"], 0),
    ]
    for call in calls:
        with pytest.raises(OSError) as raised:
            call()
        assert (raised.value.errno, raised.value.filename) == (errno.EBADF, path)
    with pytest.raises(ValueError), OS_FILES.open(path) as file:
        file.pread(-1, 0)


def test_maps_are_read_only_and_outlive_the_file(path: str) -> None:
    with OS_FILES.open(path, create=True) as file:
        assert file.map() is None
        file.pwrite(b"abc", 0)
        mapped = file.map()
        file.pwrite(b"X", 1)
    assert mapped is not None
    with memoryview(mapped) as view:
        assert view == b"aXc"
        with pytest.raises(TypeError):
            view[0:1] = b"y"


def test_sendfile(path: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, OS_FILES.open(path, create=True) as file:
        file.pwrite(b"0123456789", 0)
        assert file.send_to(ours, 3, 4) == 4
        assert theirs.recv(100) == b"3456"
        assert file.send_to(ours, 10, 4) == 0


def test_directories(tmp_path: Path) -> None:
    deep = str(tmp_path / "a" / "b")
    OS_FILES.mkdirs(deep)
    OS_FILES.mkdirs(deep)
    OS_FILES.write_file(deep + "/z", b"123")
    OS_FILES.write_file(deep + "/z", b"4")
    OS_FILES.create(deep + "/y")
    assert OS_FILES.list_dir(deep) == ["y", "z"]
    OS_FILES.set_mtime_ms(deep + "/z", 1_700_000_000_123)
    found = OS_FILES.stat(deep + "/z")
    assert found == (
        1,
        1_700_000_000_123,
        True,
        False,
        os.stat(deep + "/z").st_ino,
        False,
        512 * os.stat(deep + "/z").st_blocks,
    )
    assert OS_FILES.stat(deep).is_dir
    OS_FILES.rename(deep + "/z", deep + "/y")
    assert OS_FILES.read_bytes(deep + "/y") == b"4"
    assert OS_FILES.unlink_if_exists(deep + "/y")
    assert not OS_FILES.unlink_if_exists(deep + "/y")
    OS_FILES.sync_dir(deep)
    OS_FILES.rmdir(deep)
    assert not OS_FILES.exists(deep)
    assert parent_dir("x") == "."


def test_remove_tree_does_not_follow_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    inside = tmp_path / "inside"
    (inside / "deep").mkdir(parents=True)
    (inside / "deep" / "file").touch()
    (inside / "link").symlink_to(outside)
    (inside / "dangling").symlink_to("nowhere")
    OS_FILES.remove_tree(str(inside))
    OS_FILES.remove_tree(str(inside))
    assert not inside.exists()
    assert (outside / "precious").exists()


def test_atomic_write_is_kafkas(tmp_path: Path) -> None:
    files = RecordingFiles(str(tmp_path))
    files.write_atomic(str(tmp_path / "c"), b"one")
    files.write_atomic(str(tmp_path / "c"), b"two")
    steps = ["create c.tmp", "write c.tmp [0, 3)", "sync c.tmp", "rename c.tmp -> c", "sync_dir "]
    assert [str(op) for op in files.ops] == steps * 2
    assert os.listdir(tmp_path) == ["c"]


def test_no_descriptor_leaks(path: str) -> None:
    file = OS_FILES.open(path, create=True)
    fd = file.fileno()
    assert isinstance(file, OsFile)
    del file
    with pytest.raises(OSError):
        os.fstat(fd)


def test_clocks() -> None:
    clock = ManualClock(1000)
    assert clock.advance(5) == 1005
    assert clock.nanoseconds() == 5_000_000
    clock.advance_to(10)
    assert (clock.milliseconds(), clock.nanoseconds()) == (10, 5_000_000)
    system = SystemClock()
    assert system.milliseconds() > 1_600_000_000_000
    assert system.nanoseconds() <= system.nanoseconds()


def _open_here(path: str) -> list[str]:
    """The files that this process has open at or below `path`."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [name for name in found if name.startswith(path)]


def test_sync_dir_names_what_it_cannot_open(path: str) -> None:
    with pytest.raises(FileNotFoundError) as failure:
        OS_FILES.sync_dir(path)
    assert failure.value.filename == path
    OS_FILES.create(path)
    with pytest.raises(NotADirectoryError):
        OS_FILES.sync_dir(path)
    with pytest.raises(ValueError, match="null"):
        OS_FILES.sync_dir("a\0b")
    with OS_FILES.open(path) as file:
        pass
    with pytest.raises(OSError) as failure:
        file.sync()
    assert (failure.value.errno, failure.value.filename) == (errno.EBADF, path)


def test_read_bytes_names_a_folder_and_leaves_nothing_open(tmp_path: Path) -> None:
    folder = tmp_path / "a.index"
    folder.mkdir()
    with pytest.raises(IsADirectoryError) as failure:
        OS_FILES.read_bytes(str(folder))
    assert failure.value.filename == str(folder)
    if os.path.isdir("/proc/self/fd"):
        assert _open_here(str(tmp_path)) == []


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs a file that tells no size")
def test_read_bytes_of_a_file_without_a_size() -> None:
    assert os.stat("/proc/self/status").st_size == 0
    assert b"VmRSS" in OS_FILES.read_bytes("/proc/self/status")


def test_a_read_buffer_is_used_again_once_nobody_looks(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    buffers = ReadBuffers()
    with OS_FILES.open(str(path), writable=False) as file:
        first = buffers.read(file, b"", 10, 0)
        second = buffers.read(file, first[8:], 10, 10)
        assert bytes(second) == bytes(range(8, 20))
        third = buffers.read(file, b"", 10, 50)
        assert bytes(first) == bytes(range(10))  # somebody holds a view of it
        part = first[2:4]
        first.release()
        again = [bytes(buffers.read(file, b"x", 9, at)) for at in range(50)]
        assert again == [b"x" + bytes(range(at, at + 9)) for at in range(50)]
        assert (bytes(part), bytes(second), bytes(third)) == (b"\2\3", bytes(range(8, 20)), bytes(range(50, 60)))
        assert bytes(buffers.read(file, b"", 20, 95)) == bytes(range(95, 100))
        assert bytes(buffers.read(file, b"ab", 0, 0)) == b"ab"
        assert bytes(buffers.read(file, b"", 0, 0)) == b""
        with pytest.raises(ValueError, match="-1"):
            buffers.read(file, b"", -1, 0)
        with pytest.raises(TypeError):
            third[0] = 1  # type: ignore[index]
    with pytest.raises(OSError, match="Bad file descriptor"):
        buffers.read(file, b"", 1, 0)


def test_a_manual_clock_takes_times_of_python() -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    assert clock.milliseconds() == 1_767_225_600_000
    assert clock.advance(timedelta(seconds=1.5)) == 1_767_225_601_500
    assert clock.nanoseconds() == 1_500_000_000
    assert clock.advance_to(datetime(1970, 1, 1, 1, tzinfo=UTC)) == 3_600_000
    assert clock.nanoseconds() == 1_500_000_000


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (1_767_225_600, "looks like seconds since 1970"),
        (1_767_225_600.5, "found 1767225600.5, expected milliseconds"),
        (-1, "found -1, expected milliseconds"),
        (True, "found True"),
        ("2026-01-01", "found '2026-01-01'"),
        (datetime(2026, 1, 1), "no time zone"),
        (None, "found None"),
    ],
)
def test_what_is_no_time_of_a_manual_clock(now: Any, told: str) -> None:
    clock = ManualClock(5)
    for call in (ManualClock, clock.advance_to):
        with pytest.raises(IllegalArgumentException, match=told):
            call(now)
    assert clock.milliseconds() == 5


@pytest.mark.parametrize("by", [-1, timedelta(-1), 0.5, "1", None, False])
def test_what_does_not_advance_a_manual_clock(by: Any) -> None:
    clock = ManualClock(5)
    with pytest.raises(IllegalArgumentException, match="by_ms: found "):
        clock.advance(by)
    assert (clock.milliseconds(), clock.nanoseconds()) == (5, 0)
