"""A failing disk: the operation raises KafkaStorageException, the directory stays offline, a restart agrees."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import KafkalogError, KafkaStorageException, TooManyOpenFilesException
from tests.file_doubles import Fault, FaultyFiles
from tests.unit.log_kit import NOW_MS, Kit, batch, name


def is_log(path: str) -> bool:
    return path.endswith(".log")


def is_index(path: str) -> bool:
    return path.endswith(".index")


def logged(log: UnifiedLog) -> list[int]:
    return [header.last_offset for segment in log.log_segments() for header in segment.log.batches()]


def assert_named(error: KafkaStorageException, code: int, folder: str) -> None:
    """Printed alone, without its cause, it says what happened, and to which file."""
    assert os.strerror(code) in str(error)
    assert folder in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert (again.errno, again.strerror) == (error.errno, error.strerror)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("paths", [is_log, is_index])
def test_a_failed_append_is_cut_off_again(tmp_path: Path, error: int, paths: Callable[[str], bool]) -> None:
    files = FaultyFiles(OS_FILES)
    kit = Kit(tmp_path, files)
    log = kit.open({"index.interval.bytes": "0", "internal.segment.bytes": "100000"})
    for _ in range(3):
        log.append_as_leader(batch(), 0)
    size = kit.path(name(0, ".log")).stat().st_size
    # EIO concerns any write; a preallocated index never runs out of space.
    expect_failure = not (paths is is_index and error == errno.ENOSPC)
    files.fault = Fault(files.count, error, sticky=False, kinds={"write"}, paths=paths)
    if expect_failure:
        with pytest.raises(KafkaStorageException) as caught:
            log.append_as_leader(batch(), 0)
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == error
        assert_named(caught.value, error, str(kit.path("")))
        assert log.log_end_offset == 6
        assert kit.path(name(0, ".log")).stat().st_size == size
        assert kit.channel.has_offline_log_dir(str(tmp_path))
        for call in (lambda: log.append_as_leader(batch(), 0), lambda: log.read(0, 10), lambda: log.flush(True)):
            with pytest.raises(KafkaStorageException, match="offline") as later:
                call()
            assert later.value.__cause__ is caught.value.__cause__
            assert os.strerror(error) in str(later.value)
        kit.crash(log)
        files.fault = None
        kit.channel = Kit(tmp_path).channel
        assert kit.open(clean=False).log_end_offset == 6
    else:
        assert log.append_as_leader(batch(), 0).last_offset == 7


def workload(kit: Kit) -> list[int]:
    """Appends, rolls, truncation, retention, close; answers the last offsets that were acknowledged."""
    acknowledged: list[int] = []
    log = kit.open({"retention.ms": "100000"})
    try:
        for number in range(10):
            acknowledged.append(log.append_as_leader(batch(ts=NOW_MS + number), number // 4).last_offset)
            kit.scheduler.tick()
        log.update_high_watermark(12)
        log.truncate_to(16)
        acknowledged = [offset for offset in acknowledged if offset < 16]
        log.maybe_increment_log_start_offset(9)
        log.delete_old_segments()
        acknowledged = [offset for offset in acknowledged if offset >= 8]
        log.prepare_active_segment_for_close()
        log.flush(True)
        log.close()
    except BaseException as error:
        error.acknowledged = acknowledged  # type: ignore[attr-defined]
        raise
    finally:
        log.local_log.segments.close_quietly()
    return acknowledged


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_every_change_may_fail(tmp_path: Path, error: int) -> None:
    counting = FaultyFiles(OS_FILES)
    workload(Kit(tmp_path / "whole", counting))
    failures = 0
    for at in range(0, counting.count, 3):
        root = tmp_path / str(at)
        kit = Kit(root, FaultyFiles(OS_FILES, Fault(at, error)))
        acknowledged: list[int] = []
        try:
            acknowledged = workload(kit)
        except KafkaStorageException as raised:
            failures += 1
            assert kit.channel.has_offline_log_dir(str(root)), at
            acknowledged = getattr(raised, "acknowledged", [])
        except KafkalogError as raised:  # pragma: no cover - says which step leaked another error
            raise AssertionError(f"change {at}") from raised
        kit = Kit(root)
        reopened = kit.open(clean=False)
        found = logged(reopened)
        assert set(acknowledged) & set(range(reopened.log_start_offset, reopened.log_end_offset)) <= set(found), at
        assert found == sorted(found)
        reopened.append_as_leader(batch(), 9)
        kit.crash(reopened)
    assert failures > 10


def test_one_directory_fails_alone(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    bad, good = Kit(tmp_path / "bad", files), Kit(tmp_path / "good", files)
    good.channel = bad.channel
    bad_log, good_log = bad.open(), good.open()
    files.fault = Fault(files.count, kinds={"write"}, paths=lambda path: "/bad/" in path)
    with pytest.raises(KafkaStorageException):
        bad_log.append_as_leader(batch(), 0)
    assert good_log.append_as_leader(batch(), 0).last_offset == 1
    assert bad.channel.has_offline_log_dir(str(tmp_path / "bad"))
    assert not bad.channel.has_offline_log_dir(str(tmp_path / "good"))


@pytest.mark.parametrize(("kind", "error"), [("write", errno.ENOSPC), ("sync", errno.EIO)])
def test_the_first_error_travels_to_whoever_appends(tmp_path: Path, kind: str, error: int) -> None:
    files = FaultyFiles(OS_FILES)
    log = kafkalog.open_log(tmp_path, "t-0", durability="fsync", files=files)
    log.append(b"1")
    files.fault = Fault(0, error, sticky=True, kinds={kind}, paths=is_log)
    for number in range(3):
        with pytest.raises(KafkaStorageException) as caught:
            log.append(b"2")
        assert number == 0 or os.strerror(error) in str(caught.value)
        assert isinstance(caught.value.__cause__, OSError)
        assert caught.value.__cause__.errno == error
    if error == errno.ENOSPC:
        log.close()  # this needs no more space in the log
    else:
        with pytest.raises(KafkaStorageException):
            log.close()


def live_through(folder: Path, files: FaultyFiles) -> OSError | None:
    """Something of everything that a log does; the disk's error, if it did not come in the background."""
    try:
        with kafkalog.open_log(folder, "t-0", files=files, config={"internal.segment.bytes": "300"}) as log:
            for _ in range(3):
                log.append_many([b"x" * 100] * 2)
            log.flush()
            log.truncate(4)
            log.delete_records(1)
            with log.transaction("job") as transaction:
                transaction.append(b"y")
    except OSError as error:
        return error
    return None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_every_error_of_the_disk_names_it(tmp_path: Path, code: int) -> None:
    files = FaultyFiles(OS_FILES)
    assert live_through(tmp_path / "whole", files) is None
    named = 0
    for number in range(code % 3, files.count, 4):
        folder = tmp_path / str(number)
        found = live_through(folder, FaultyFiles(OS_FILES, Fault(number, code)))
        if isinstance(found, KafkaStorageException):
            assert_named(found, code, str(folder))
            named += 1
        assert found is None or found.errno == code or "already offline" in str(found)
    assert named > 15


@pytest.fixture
def few_files() -> Iterator[Callable[[int], None]]:
    """Leaves the process so many descriptors to open."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []

    def leave(count: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        gc.collect()  # objects that an earlier test dropped would be closed meanwhile
        before = max([int(fd) for fd in os.listdir("/proc/self/fd")])
        while not held or held[-1] < before:  # the limit is on numbers: none below the highest is free
            held.append(os.open(os.devnull, os.O_RDONLY))
        resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1 + count, limits[1]))

    yield leave
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    for fd in held:
        os.close(fd)


def opened_in(folder: Path) -> list[str]:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [link for link in links if link.startswith(str(folder))]


OPENS: dict[str, Callable[[Path], object]] = {
    "read-only": lambda root: kafkalog.open_log(root, "t-0", read_only=True).close(),
    "writable": lambda root: kafkalog.open_log(root, "t-0").close(),
    "new": lambda root: kafkalog.open_log(root / "new", "t-0").close(),
    "list": kafkalog.list_partitions,
}


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc to see open files")
@pytest.mark.parametrize("call", OPENS)
@pytest.mark.parametrize("left", range(4))
def test_no_descriptor_left(tmp_path: Path, call: str, left: int, few_files: Callable[[int], None]) -> None:
    with kafkalog.open_log(tmp_path, "t-0", config={"internal.segment.bytes": "300"}) as log:
        for _ in range(20):
            log.append(b"x" * 50)
    few_files(left)
    found: list[str] = []
    try:
        OPENS[call](tmp_path)
    except KafkaStorageException as error:
        assert_named(error, errno.EMFILE, str(tmp_path))
        found.append(str(error))
    except TooManyOpenFilesException as error:
        found.append(str(error))
    few_files(64)
    assert all("ulimit -n" in each and str(tmp_path) in each for each in found), found
    assert opened_in(tmp_path) == []
    with kafkalog.open_log(tmp_path, "t-0") as log:  # nothing is offline, or held
        assert len(list(log)) == 20


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc to see open files")
@pytest.mark.parametrize("left", range(6))
def test_a_read_without_a_descriptor_left(tmp_path: Path, left: int, few_files: Callable[[int], None]) -> None:
    with kafkalog.open_log(tmp_path, "t-0", config={"internal.segment.bytes": "300"}) as log:
        for _ in range(20):
            log.append(b"x" * 50)
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        few_files(left)
        try:
            assert len(list(log)) == 20  # files that are not read just now were closed for it
        except KafkaStorageException as error:
            assert_named(error, errno.EMFILE, str(tmp_path))
        few_files(64)
        assert len(list(log)) == 20
