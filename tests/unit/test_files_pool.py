"""The budget of open files: which are closed, what keeps one open, and that a later use opens the right file again."""

from __future__ import annotations

import gc
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalog._native.state.descriptor import FileMap
from kafkalog._native.state.held import Pin
from kafkalog.engine.files import OS_FILES, OpenFiles, OsFile, OsFiles, pool
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker, end_txn_marker_batch
from kafkalog.engine.log.types import AppendOrigin, FetchIsolation
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.segment.file_records import FileRecords, FileRecordsSlice
from kafkalog.engine.segment.offset_index import OffsetIndex
from kafkalog.errors import ClosedChannelException, KafkaStorageException
from tests.disk_model import Op
from tests.file_doubles import Fault, FaultyFiles, RecordingFiles
from tests.unit.log_kit import NOW_MS, Kit, bases, batch, name

LEAST = pool.LEAST_FILES
ROOM = 1 << 16


@pytest.fixture
def none_idle(monkeypatch: pytest.MonkeyPatch) -> OsFiles:
    """Files that are closed as soon as they are unused."""
    monkeypatch.setattr(pool, "LEAST_FILES", 0)
    return OsFiles(OpenFiles(0))


def open_below(path: Path | str) -> list[str]:
    """The files that this process has open below a directory, mapped files too."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found += [line.split(maxsplit=5)[5].strip() for line in maps if len(line.split(maxsplit=5)) == 6]
    return sorted(os.path.basename(each) for each in found if each.startswith(f"{path}/"))


def records(folder: Path, files: OsFiles, count: int) -> list[FileRecords]:
    found = []
    for number in range(count):
        path = folder / f"{number}.log"
        path.write_bytes(b"%04d" % number)
        found.append(FileRecords.open(str(path), files))
    return found


def test_the_limit_is_what_the_system_leaves_us(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [1024]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limits[0], 4096))
    budget = OpenFiles()
    assert budget.limit == 768
    limits[0] = 4096  # a raised limit takes effect
    assert budget.limit == 3072
    limits[0] = resource.RLIM_INFINITY
    with open("/proc/sys/vm/max_map_count", encoding="ascii") as file:
        assert budget.limit == min(int(file.read()) * 3 // 4, 4096)  # a large log leaves descriptors to others
    limits[0] = 8
    assert budget.limit == LEAST
    assert OpenFiles(100).limit == 100
    assert OsFiles().pool is OS_FILES.pool


def test_the_least_used_are_closed(tmp_path: Path) -> None:
    files = OsFiles(OpenFiles(20))
    found = records(tmp_path, files, 20)
    for each in found[:10]:
        each.used = False
    (tmp_path / "more").mkdir()
    more = records(tmp_path / "more", files, 5)
    assert [each.channel is None for each in found] == [True] * 5 + [False] * 15
    assert len(open_below(tmp_path)) == len(files.pool) == 20
    assert [each.read(0, 4) for each in found] == [b"%04d" % number for number in range(20)]
    assert len(open_below(tmp_path)) == len(files.pool) == 20
    assert more[0].read(0, 4) == b"0000"


def test_closed_and_forgotten_files_push_nothing_out(tmp_path: Path) -> None:
    files = OsFiles(OpenFiles(20))
    kept = records(tmp_path, files, 4)
    for each in kept:
        each.used = False
    for number in range(200):
        passing = FileRecords.open(str(tmp_path / "0.log"), files)
        if number % 2:
            passing.close()
        del passing
    assert all(each.channel is not None for each in kept)
    assert len(open_below(tmp_path)) == 4


def test_who_reads_keeps_the_file(tmp_path: Path, none_idle: OsFiles) -> None:
    (one,) = records(tmp_path, none_idle, 1)
    assert one.channel is None
    part = one.slice(1, 3)
    assert open_below(tmp_path) == ["0.log"]
    os.unlink(tmp_path / "0.log")
    assert part.to_bytes() == b"000"
    with pytest.raises(ClosedChannelException, match="no longer exists"):
        one.slice(0, 1)
    del part
    assert open_below(tmp_path) == []


def test_a_pin_keeps_the_channel(tmp_path: Path) -> None:
    files = OsFiles(OpenFiles(20))
    one, two = records(tmp_path, files, 2)
    pin = Pin(one)
    assert files.pool.trim(0) == 1
    assert (one.channel is None, two.channel is None) == (False, True)
    del pin
    assert files.pool.trim(0) == 1
    assert one.channel is None
    with pytest.raises(TypeError):
        Pin(None)  # type: ignore[arg-type]


def test_a_closed_file_is_not_opened_again(tmp_path: Path) -> None:
    files = OsFiles(OpenFiles(20))
    (one,) = records(tmp_path, files, 1)
    one.close()
    files.pool.trim(0)
    with pytest.raises(ClosedChannelException):
        one.read(0, 1)
    assert not files.pool.admit(one, files.open(one.path))


def test_files_are_found_under_their_new_names(tmp_path: Path, none_idle: OsFiles) -> None:
    kit = Kit(tmp_path, none_idle)
    log = kit.filled()
    assert open_below(tmp_path) == []
    log.rename_dir("t-0.of-delete", False)
    (tmp_path / "t-0").mkdir()  # and another has the old one by now
    for base in bases(log):
        (tmp_path / "t-0" / name(base, ".log")).write_bytes(b"another's")
    assert walked(log) == list(range(0, 40, 2))
    deleted = log.log_segments()[0]
    deleted.change_file_suffixes("", ".deleted")
    assert deleted.log.channel is None
    assert deleted.log.first_batch() is not None
    assert deleted.log.open_channel().path.endswith(".log.deleted")


def walked(log: UnifiedLog) -> list[int]:
    """The base offset of each batch, each read alone."""
    found, offset = [], 0
    while offset < log.log_end_offset:
        records = log.read(offset, 1, FetchIsolation.LOG_END).records
        assert isinstance(records, FileRecordsSlice)
        (header,) = records.batches()
        found.append(header.base_offset)
        offset = header.last_offset + 1
    return found


def assert_entered(files: OsFiles, records: FileRecords, file: OsFile) -> None:
    assert files.pool.enter(records, file)


def test_a_name_that_changes_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The open returns the file that had the name, not the one that has it now."""
    moves: list[Callable[[], None]] = []

    class Moving(OsFiles):
        def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> OsFile:
            if moves:
                moves.pop()()
            return super().open(path, writable=writable, create=create, exclusive=exclusive)

    files = Moving(OpenFiles(20))
    (one,) = records(tmp_path, files, 1)
    files.pool.trim(0)

    def move() -> None:
        one.rename_to(str(tmp_path / "moved"))
        (tmp_path / "0.log").write_bytes(b"new!")

    moves.append(move)
    assert one.read(0, 4) == b"0000"
    assert one.channel is not None
    assert one.channel.path == str(tmp_path / "moved")
    files.pool.trim(0)
    moves.append(lambda: one.rename_to(str(tmp_path / "again")))  # now there is nothing of the old name
    assert one.read(0, 4) == b"0000"
    files.pool.trim(0)
    others = [OsFiles(OpenFiles(20)).open(one.path)]
    moves.append(lambda: assert_entered(files, one, others[0]))  # another thread is first
    assert one.open_channel() is others[0]
    files.pool.trim(0)
    others.clear()
    moves.append(one.close)
    with pytest.raises(ClosedChannelException):
        one.read(0, 4)
    gc.collect()
    assert open_below(tmp_path) == []


def written(kit: Kit) -> UnifiedLog:
    """Everything that writes: appends, rolls, aborted transactions, a truncation, retention, a flush, a close."""
    log = kit.filled()
    abort(log, 5, 0)
    log.append_as_leader(batch(8), 0)
    log.truncate_to(41)
    log.append_as_leader(batch(3), 1)
    abort(log, 6, 1)
    log.update_high_watermark(log.log_end_offset)
    log.maybe_increment_log_start_offset(10)
    log.delete_old_segments()
    log.flush(True)
    for number in range(10):
        log.append_as_leader(batch(ts=NOW_MS + number), 1)
    kit.clock.advance(100_000)
    kit.scheduler.tick()
    return log


def abort(log: UnifiedLog, producer_id: int, epoch: int) -> None:
    """A transaction of two records, and its end."""
    data = batch(producer_id=producer_id, producer_epoch=0, sequence=0, transactional=True)
    log.append_as_leader(data, epoch)
    marker = EndTransactionMarker(ControlRecordType.ABORT, 0)
    marked = end_txn_marker_batch(0, NOW_MS, epoch, producer_id, 0, marker)
    log.append_as_leader(marked, epoch, AppendOrigin.COORDINATOR, transaction_version=0)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_without_an_idle_file_the_same_is_written(tmp_path: Path, none_idle: OsFiles) -> None:
    tight, roomy = Kit(tmp_path / "tight", none_idle), Kit(tmp_path / "roomy", OsFiles(OpenFiles(ROOM)))
    for kit in (tight, roomy):
        os.mkdir(kit.root)
        log = written(kit)
        if kit is tight:
            assert open_below(kit.root) == []
        log.prepare_active_segment_for_close()
        log.close()
    assert contents(tmp_path / "tight" / "t-0") == contents(tmp_path / "roomy" / "t-0")
    assert any(each.endswith(".txnindex") for each in tight.names)


def test_the_order_of_changes_is_the_same(tmp_path: Path, none_idle: OsFiles) -> None:
    """A file that is closed between two uses does not change what a crash may leave."""

    def ops(root: Path, files: OsFiles) -> list[Op]:
        os.mkdir(root)
        recording = RecordingFiles(str(root), files)
        log = written(Kit(root, recording))
        log.close()
        return recording.ops

    assert ops(tmp_path / "tight", none_idle) == ops(tmp_path / "roomy", OsFiles(OpenFiles(ROOM)))


def test_an_append_opens_what_it_writes(tmp_path: Path) -> None:
    opened: list[str] = []

    class Told(OsFiles):
        def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> OsFile:
            opened.append(os.path.basename(path))
            return super().open(path, writable=writable, create=create, exclusive=exclusive)

    files = Told(OpenFiles(20))
    log = Kit(tmp_path, files).open({"index.interval.bytes": "300", "internal.segment.bytes": "100000"})
    log.append_as_leader(batch(), 0)
    seen = []
    for _ in range(4):
        files.pool.trim(0)
        opened.clear()
        log.append_as_leader(batch(), 0)
        seen.append([each.partition(".")[2] for each in opened])
    assert seen == [["log"], ["log", "index", "timeindex"], ["log"], ["log", "index", "timeindex"]]


def test_a_clean_open_opens_no_inactive_segment(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    log = kit.filled()
    log.prepare_active_segment_for_close()
    log.close()
    kit.files = OsFiles(OpenFiles(ROOM))
    log = kit.open()
    active = log.active_segment.base_offset
    assert {each.partition(".")[0] for each in open_below(tmp_path)} <= {name(active, "")}
    assert log.number_of_segments == 5
    log.close()


def test_a_file_that_others_removed(tmp_path: Path, none_idle: OsFiles) -> None:
    """A clear error, nothing endless, and no disk that failed."""
    kit = Kit(tmp_path, none_idle)
    log = kit.filled()
    kit.path(name(0, ".log")).unlink()
    kit.path(name(32, ".log")).unlink()
    with pytest.raises(ClosedChannelException, match="no longer exists"):
        log.read(0, 100, FetchIsolation.LOG_END)
    with pytest.raises(ClosedChannelException, match="no longer exists"):
        log.append_as_leader(batch(), 0)
    with pytest.raises(ClosedChannelException, match="no longer exists"):
        log.flush(True)
    kit.path(name(8, ".index")).unlink()
    for index in (log.log_segments()[1].offset_index,):
        index.let_go()
        with pytest.raises(ClosedChannelException, match="no longer exists"):
            index.lookup(10)
    assert log.read(16, 1, FetchIsolation.LOG_END).records.size
    assert not kit.channel.any_offline


def test_an_index_of_a_folder_that_is_just_being_renamed(tmp_path: Path) -> None:
    """The first use makes no disk error of that, and finds it under the log's lock."""
    kit = Kit(tmp_path)
    kit.filled().close()
    log = kit.open()
    os.rename(tmp_path / "t-0", tmp_path / "moved")
    back = threading.Timer(0.2, os.rename, (tmp_path / "moved", tmp_path / "t-0"))
    with log.lock:
        with pytest.raises(ClosedChannelException, match="no longer exists"):
            log.read(4, 1, FetchIsolation.LOG_END)
        reader = threading.Thread(target=lambda: found.append(log.read(4, 1, FetchIsolation.LOG_END).records.size))
        found: list[int] = []
        reader.start()
        back.start()
        back.join()
    reader.join()
    (size,) = found
    assert size > 0
    assert not kit.channel.any_offline


def test_an_index_let_go_is_held_again(tmp_path: Path, none_idle: OsFiles) -> None:
    index = OffsetIndex(str(tmp_path / "0.index"), 0, 8 * ROOM, none_idle)
    for number in range(1, 100):
        index.append(number * 10, number * 1000)
        assert index.lookup(number * 10 + 5) == (number * 10, number * 1000)
        assert none_idle.pool.trim(0) == 1
        assert index.held_bytes == -1
        assert index.channel is None
    targets = list(range(0, 1000, 7))
    firsts, seconds = index.lookups(targets)
    assert [*zip(firsts.tolist(), seconds.tolist(), strict=True)] == [index.lookup(target) for target in targets]
    none_idle.pool.trim(0)
    assert open_below(tmp_path) == []


def test_a_map_costs_no_descriptor(tmp_path: Path) -> None:
    index = OffsetIndex(str(tmp_path / "0.index"), 0, 8 * ROOM, OsFiles(OpenFiles(20)))
    index.append(10, 1000)
    assert index.lookup(10) == (10, 1000)
    assert open_below(tmp_path) == ["0.index", "0.index"]  # a descriptor and a map
    with OS_FILES.open(index.path) as file:
        for size in (0, -1):
            with pytest.raises(ValueError, match="size: found"):
                FileMap(file, size)
    closed = OS_FILES.open(index.path)
    closed.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        FileMap(closed, 8)


def test_a_disk_that_fails_is_one(tmp_path: Path, none_idle: OsFiles) -> None:
    """Opening again is reading from the disk: EIO takes the directory offline, as ever."""
    faulty = FaultyFiles(none_idle)
    kit = Kit(tmp_path, faulty)
    log = kit.filled()
    faulty.fault = Fault(at=0, kinds=("open",), paths=lambda path: path.endswith(".log"))
    faulty.count = 0
    with pytest.raises(KafkaStorageException):
        log.read(0, 100, FetchIsolation.LOG_END)
    assert kit.channel.any_offline
