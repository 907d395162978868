"""LogManager in a running process: dropped, closed twice, late, in another's way; disks that fail while logs move."""

from __future__ import annotations

import errno
import gc
import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkalog.engine.files import OS_FILES, ManualClock, ManualScheduler
from kafkalog.engine.files.dropped import wait_for_dropped
from kafkalog.engine.files.os_files import OsFiles
from kafkalog.engine.format import names
from kafkalog.engine.format.checkpoints import OffsetCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.changes import Changes
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    InvalidTopicException,
    KafkalogError,
    KafkaStorageException,
    LogDirNotFoundException,
)
from tests.conformance.kafkas_manager import KafkasManager
from tests.file_doubles import Fault, FaultyFiles
from tests.unit.log_kit import NOW_MS, batch
from tests.unit.test_log_manager import SETTINGS, House, contents, fill, numbered

MINUTE_MS = 60_000
POINTS = "recovery-point-offset-checkpoint"


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def in_time(work: Callable[[], object], seconds: float = 60) -> None:
    """Fails after `seconds`: a deadlock is a failure."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "hangs"
    if failed:
        raise failed[0]


# --- dropped, closed, late -------------------------------------------------------------------------------


def test_a_dropped_manager_warns_and_lets_go(house: House) -> None:
    manager = house.open(scheduler=None)  # separate threads
    fill(manager.get_or_create_log("t-0"), 5)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del manager
        gc.collect()
    assert any(each.category is ResourceWarning and "shutdown()" in str(each.message) for each in told)
    wait_for_dropped()
    assert not (house.dirs[0] / ".lock").exists()
    assert not (house.dirs[0] / ".kafka_cleanshutdown").exists()  # the next start recovers
    with house.open() as again:
        log = again.get_log("t-0")
        assert log is not None
        assert contents(log) == numbered(0, 5)


def test_tasks_of_a_manager_that_was_shut_down_do_nothing(house: House) -> None:
    """The scheduler belongs to the caller; the directories are another manager's by then."""
    first = house.open()
    fill(first.get_or_create_log("t-0"), 5)
    first.get_or_create_log("t-1")
    first.async_delete("t-1")
    first.shutdown()
    second = house.open(scheduler=ManualScheduler(house.clock))
    log = second.get_log("t-0")
    assert log is not None
    fill(log, 5)
    log.flush(True)
    second.checkpoint_recovery_points()
    before = {path: path.read_bytes() for each in house.dirs for path in each.iterdir() if path.is_file()}
    folders = [house.folders(number) for number in range(3)]
    house.advance(10 * MINUTE_MS)  # the first one's tasks
    assert not house.scheduler.errors
    assert before == {path: path.read_bytes() for each in house.dirs for path in each.iterdir() if path.is_file()}
    assert folders == [house.folders(number) for number in range(3)]
    for call in (first.checkpoint_recovery_points, first.checkpoint_log_starts, first.checkpoint_high_watermarks,
                 first.cleanup_logs, first.flush_dirty_logs):  # fmt: skip
        with pytest.raises(IllegalStateException, match="is closed"):
            call()
    second.shutdown()


def test_a_log_that_is_made_while_the_manager_shuts_down_is_refused(house: House) -> None:
    manager = house.open()
    began = threading.Event()
    answers: list[object] = []

    def make() -> None:
        began.set()
        try:
            answers.append(manager.get_or_create_log("t-0"))
        except IllegalStateException as error:
            answers.append(error)

    with manager.creation:
        thread = threading.Thread(target=make)
        thread.start()
        began.wait()
        time.sleep(0.05)  # it waits for the lock, and has been let in before
        manager.shutdown()
    thread.join()
    assert isinstance(answers[0], IllegalStateException), answers
    assert house.folders(0) == []


def test_an_interrupted_end_is_gone_on_with(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = house.open()
    fill(manager.get_or_create_log("t-0"), 5)
    unlock = type(manager.directories).unlock

    def interrupted(self: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(manager.directories), "unlock", interrupted)
    with pytest.raises(KeyboardInterrupt):
        manager.shutdown()
    with pytest.raises(IllegalStateException, match="letting go"):
        manager.get_log("t-0")
    monkeypatch.setattr(type(manager.directories), "unlock", unlock)
    manager.shutdown()
    assert not (house.dirs[0] / ".lock").exists()


# --- changes that are cut short ----------------------------------------------------------------------------


def test_a_change_is_made_again_and_its_error_is_not_somebody_elses() -> None:
    changes = Changes()
    made: list[int] = []

    def change() -> None:
        made.append(len(made))
        if len(made) == 1:
            raise KeyboardInterrupt
        if len(made) == 2:
            raise KafkaStorageException("the disk")

    with pytest.raises(KeyboardInterrupt):
        changes.whole(change)
    assert changes.cut_short
    assert changes.whole(lambda: 5) == 5
    assert made == [0, 1]
    assert not changes.cut_short


def test_who_is_called_in_the_middle_of_a_change_is_refused() -> None:
    changes = Changes()
    with pytest.raises(IllegalStateException, match="runs in the middle of the code that it interrupts"):
        changes.whole(changes.settle)


def test_an_interrupted_deletion_is_finished_by_the_next_look(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    with house.open() as manager:
        log = manager.get_or_create_log("t-0")
        rename = UnifiedLog.rename_dir

        def interrupted(self: UnifiedLog, name: str, reinit: bool) -> None:
            rename(self, name, reinit)
            raise KeyboardInterrupt

        monkeypatch.setattr(UnifiedLog, "rename_dir", interrupted)
        with pytest.raises(KeyboardInterrupt):
            manager.async_delete("t-0")
        monkeypatch.setattr(UnifiedLog, "rename_dir", rename)
        assert manager.all_logs() == []
        assert manager.get_or_create_log("t-0") is not log


# --- folders and lines that a crash left -------------------------------------------------------------------


def test_a_line_of_a_partition_that_is_gone_does_not_speak_for_the_next(house: House) -> None:
    """Recovery points and log starts: both would lose records of another log of that name."""
    with house.open() as manager:
        fill(manager.get_or_create_log("t-0", log_dir=house.dirs[0]), 30)
    for name in (POINTS, "log-start-offset-checkpoint"):
        OffsetCheckpointFile(str(house.dirs[0] / name)).write({TopicPartition("t", 0): 10, TopicPartition("t", 7): 25})
    with house.open() as manager:
        for name in (POINTS, "log-start-offset-checkpoint"):
            assert TopicPartition("t", 7) not in OffsetCheckpointFile(str(house.dirs[0] / name)).read()
        log = manager.get_log("t-0")
        assert log is not None
        assert log.log_start_offset == 10


def test_two_copies_in_the_making_are_one_too_many(house: House) -> None:
    with house.open() as manager:
        fill(manager.get_or_create_log("t-0", log_dir=house.dirs[0]), 5)
    for number in (1, 2):
        os.makedirs(house.dirs[number] / f"t-0.{str(number) * 32}-future")
    with pytest.raises(IllegalStateException, match="Duplicate log directories found"):
        house.open(kind=KafkasManager)
    with house.open() as manager:
        future = manager.get_log("t-0", is_future=True)
        assert future is not None
        left = [name for number in (1, 2) for name in house.folders(number)]
        assert sorted(name.rpartition("-")[2] for name in left) == ["delete", "future"]
        assert contents(manager.move("t-0", future.parent_dir)) == numbered(0, 5)


def test_a_current_and_a_future_log_in_one_directory_do_not_share_a_line(house: House) -> None:
    with house.open() as manager:
        fill(manager.get_or_create_log("t-0", log_dir=house.dirs[0]), 5)
    os.makedirs(house.dirs[0] / f"t-0.{'1' * 32}-future")
    with house.open() as manager:
        manager.checkpoint_recovery_points()
        assert OffsetCheckpointFile(str(house.dirs[0] / POINTS)).read() == {TopicPartition("t", 0): 5}
    with house.open() as manager:
        assert len(manager.all_logs()) == 2


def test_a_deletion_takes_the_copy_in_the_making_along(house: House) -> None:
    with house.open() as manager:
        manager.get_or_create_log("t-0", log_dir=house.dirs[0])
        manager.get_or_create_log("t-0", is_future=True, log_dir=house.dirs[1])
        manager.async_delete("t-0")
        assert manager.all_logs() == []
        assert house.folders(1)[0].endswith("-delete")


# --- moves -------------------------------------------------------------------------------------------------


def test_moves_of_one_partition_come_one_after_the_other(house: House) -> None:
    with house.open() as manager:
        fill(manager.get_or_create_log("t-0"), 300)
        threads = [
            threading.Thread(target=manager.move, args=("t-0", house.dirs[number])) for number in (1, 2, 0, 1, 2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log = manager.get_log("t-0")
        assert log is not None
        assert contents(log) == numbered(0, 300)
        assert manager.get_log("t-0", is_future=True) is None
        assert sum("t-0" in house.folders(number) for number in range(3)) == 1


def test_a_log_that_ends_behind_a_hole_moves(house: House) -> None:
    """A power loss may leave an empty last segment above what is left: the next offset stays what it was."""
    with house.open() as manager:
        log = manager.get_or_create_log("t-0", log_dir=house.dirs[0])
        fill(log, 5)
        log.skip_to(40)
        log.skip_to(7)  # nothing
        assert log.log_end_offset == log.high_watermark == 40
        moved = manager.move("t-0", house.dirs[1])
        assert moved.log_end_offset == 40
        fill(moved, 2)
        expected = [*numbered(0, 5), *numbered(40, 42)]
        assert contents(moved, start=5) == expected[5:]
    with house.open() as manager:
        log = manager.get_log("t-0")  # type: ignore[assignment]
        assert log.log_end_offset == 42


def test_a_log_that_starts_inside_of_a_batch_moves(house: House) -> None:
    """The copy begins with the whole of the batch, as a follower's log does, and starts where the log starts."""
    with house.open() as manager:
        log = manager.get_or_create_log("t-0", log_dir=house.dirs[0])
        for _ in range(3):
            log.append_as_leader(batch(4), 0)
        log.delete_records(6)
        moved = manager.move("t-0", house.dirs[1])
        assert (moved.log_start_offset, moved.log_end_offset) == (6, 12)
        assert moved.log_segments()[0].base_offset == 4
        assert contents(moved, start=6) == contents(log, start=6)
        assert len(contents(moved, start=6)) == 6


def test_a_copy_with_a_hole_is_made_anew(house: House) -> None:
    with house.open() as manager:
        log = manager.get_or_create_log("t-0", log_dir=house.dirs[0])
        fill(log, 60)
        future = manager.get_or_create_log("t-0", is_future=True, log_dir=house.dirs[1])
        for offset in [*range(10), *range(30, 45)]:
            future.append_as_follower(log.read(offset, 1).records.to_bytes(), 0)
        assert contents(manager.move("t-0", house.dirs[1])) == numbered(0, 60)


def test_the_destination_fails_in_the_middle_of_the_switch(tmp_path: Path) -> None:
    """The partition continues where it was; when the disk is back, its copy does not count."""
    files = FaultyFiles(OS_FILES)
    house = House(tmp_path, files)
    manager = house.open()
    log = manager.get_or_create_log("t-0", log_dir=house.dirs[0])
    fill(log, 30)
    target = str(house.dirs[1])
    switched = os.path.join(target, "t-0")
    files.fault = Fault(0, kinds=("sync_dir",), paths=lambda path: path == target and os.path.isdir(switched))
    with pytest.raises(KafkaStorageException):
        manager.move("t-0", house.dirs[1])
    assert house.folders(1) == ["t-0"]  # it came as far as the name
    files.fault = None
    fill(log, 5)
    log.flush(True)
    house.scheduler.tick()
    assert manager.offline_log_dirs == [target]
    assert manager.get_log("t-0") is log
    manager.shutdown()
    with house.open(dirs=[house.dirs[0], house.dirs[2]]) as again:  # the disk is missing
        assert again.get_log("t-0") is not None
    with house.open() as again:
        found = again.get_log("t-0")
        assert found is not None
        assert found.parent_dir == str(house.dirs[0])
        assert contents(found) == numbered(0, 35)
        house.advance(3 * MINUTE_MS)
        assert house.folders(1) == []
        assert not [name for each in house.dirs for name in os.listdir(each) if name.endswith(names.MOVE_FILE_SUFFIX)]


def test_a_folder_is_renamed_under_a_flush_and_a_reader(tmp_path: Path) -> None:
    """Both take no lock, and open indexes when they need them: by a name that has just gone."""

    class Slow(OsFiles):
        during: Callable[[], object] | None = None

        def rename(self, src: str, dst: str) -> None:
            super().rename(src, dst)
            if self.during is not None and os.path.isdir(dst):
                self.during()

    files = Slow()
    house = House(tmp_path, files)
    with house.open() as manager:
        fill(manager.get_or_create_log("t-0", log_dir=house.dirs[0]), 60)
    for work in (lambda log: log.flush(True), lambda log: log.read(11, 100), lambda log: contents(log)):
        house.crash(house.open())  # so that there is something to flush
        with house.open() as manager:
            log = manager.get_log("t-0")
            assert log is not None
            fill(log, 30)
            threads: list[threading.Thread] = []
            failed: list[BaseException] = []

            def beside(log: UnifiedLog = log, work: Callable[[UnifiedLog], object] = work) -> None:
                def run() -> None:
                    try:
                        work(log)
                    except BaseException as error:
                        failed.append(error)  # noqa: B023

                threads.append(threading.Thread(target=run))  # noqa: B023
                threads[-1].start()  # noqa: B023
                threads[-1].join(0.2)  # noqa: B023

            files.during = beside
            where = str(house.dirs[1]) if log.parent_dir == str(house.dirs[0]) else str(house.dirs[0])
            manager.move("t-0", where)
            files.during = None
            for thread in threads:
                thread.join()
            assert threads
            assert not failed, failed[0]
            assert manager.failure_channel.offline_log_dirs == []


# --- failing disks -------------------------------------------------------------------------------------------


def test_settings_are_kept_by_the_disks_that_work(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    house = House(tmp_path, files)
    manager = house.open()
    manager.set_topic_config("t", {"retention.ms": "1000"})
    disk = str(house.dirs[0])
    files.fault = Fault(0, errno.EIO, paths=lambda path: path.startswith(disk))
    manager.set_topic_config("t", {"retention.ms": "2000"})
    house.scheduler.tick()
    assert manager.offline_log_dirs == [disk]
    files.fault = None
    manager.shutdown()
    with house.open() as again:
        assert again.topic_configs.overrides("t") == {"retention.ms": "2000"}


def test_settings_that_were_interrupted_do_not_come_back(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    with house.open() as manager:
        manager.set_topic_config("t", {"retention.ms": "1000"})
        write = type(house.files).write_atomic

        def interrupted(self: Any, path: str, data: bytes) -> None:
            if "disk1" in path:
                raise KeyboardInterrupt
            write(self, path, data)

        monkeypatch.setattr(type(house.files), "write_atomic", interrupted)
        with pytest.raises(KeyboardInterrupt):
            manager.set_topic_config("t", {"retention.ms": "2000"})
        monkeypatch.setattr(type(house.files), "write_atomic", write)
        manager.set_topic_config("t", {"retention.ms": "1000"})  # as it was: and disk0 must hear of it
    with house.open() as manager:
        assert manager.topic_configs.overrides("t") == {"retention.ms": "1000"}


def test_a_disk_that_fails_while_logs_are_loaded_leaves_none_of_them_in_the_maps(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    house = House(tmp_path, files)
    with house.open() as manager:
        for number in range(12):
            fill(manager.get_or_create_log(f"t-{number}"), 5)
    disk = str(house.dirs[1]) + os.sep
    files.fault = Fault(2, kinds=("open",), paths=lambda path: path.startswith(disk) and path.endswith(".log"))
    for scheduler in (ManualScheduler(ManualClock(NOW_MS)), None):
        files.count = 0
        manager = house.open(scheduler=scheduler)
        assert manager.offline_log_dirs == [str(house.dirs[1])]
        assert {log.parent_dir for log in manager.all_logs()} == {str(house.dirs[0]), str(house.dirs[2])}
        manager.shutdown()


def test_a_task_that_the_end_overtakes_is_no_error(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(manager: LogManager) -> None:
        begun.append(1)
        if is_the_end:
            manager.shutdown()
        raise IllegalStateException("not now")

    monkeypatch.setattr(LogManager, "checkpoint_log_starts", refused)
    begun: list[int] = []
    is_the_end = False
    manager = house.open()  # held, as its tasks do not
    for is_the_end in (False, True):
        house.advance(10 * MINUTE_MS)
        assert bool(house.scheduler.errors) is not is_the_end
        assert begun
        begun.clear()
        house.scheduler.errors.clear()
    assert "closed" in repr(manager)


def test_an_end_beside_a_failing_disk_does_not_hang(tmp_path: Path) -> None:
    """The handler runs on the scheduler's thread, for which the shutdown waits."""
    for turn in range(8):
        files = FaultyFiles(OS_FILES)
        house = House(tmp_path / str(turn), files)
        manager = LogManager(house.dirs, SETTINGS, files=files)
        manager.startup()
        logs = [manager.get_or_create_log(f"t-{number}", log_dir=house.dirs[number % 3]) for number in range(6)]
        stop = threading.Event()

        def write(log: UnifiedLog, stop: threading.Event = stop) -> None:
            try:
                while not stop.is_set():
                    fill(log, 1)
            except KafkalogError:
                pass

        writers = [threading.Thread(target=write, args=(log,)) for log in logs]
        for writer in writers:
            writer.start()
        time.sleep(0.002 * turn)
        disk = str(house.dirs[2]) + os.sep
        files.fault = Fault(0, paths=lambda path, disk=disk: path.startswith(disk))  # type: ignore[misc]
        time.sleep(0.001 * turn)
        try:
            in_time(manager.shutdown)
        except KafkaStorageException:
            pass
        stop.set()
        for writer in writers:
            writer.join(30)
            assert not writer.is_alive()
        if manager.failure_channel.offline_log_dirs:
            assert not (house.dirs[2] / ".kafka_cleanshutdown").exists()
        assert not any((each / ".lock").exists() for each in house.dirs)


# --- what is no argument ---------------------------------------------------------------------------------------


def test_wrong_types_are_refused_before_anything_changes(house: House) -> None:
    with house.open() as manager:
        manager.get_or_create_log("t-0")
        before = [house.folders(number) for number in range(3)]
        wrong: list[tuple[Callable[[Any], object], type[Exception] | tuple[type[Exception], ...]]] = [
            (lambda it: manager.get_log(it), InvalidTopicException),
            (lambda it: manager.async_delete(it), InvalidTopicException),
            (lambda it: manager.async_delete_all([it]), InvalidTopicException),
            (lambda it: manager.move(it, house.dirs[1]), InvalidTopicException),
            (lambda it: manager.replace_current_with_future_log(it), InvalidTopicException),
            (lambda it: manager.truncate_fully_and_start_at(it, 0), InvalidTopicException),
            (lambda it: manager.truncate_to({it: 0}), InvalidTopicException),
            (lambda it: manager.move("t-0", it), (IllegalArgumentException, LogDirNotFoundException)),
            (lambda it: manager.get_or_create_log("u-0", log_dir=it), (IllegalArgumentException, KafkalogError)),
            (lambda it: manager.is_log_dir_online(it), (IllegalArgumentException, LogDirNotFoundException)),
            (lambda it: manager.truncate_fully_and_start_at("t-0", it), KafkalogError),
            (lambda it: manager.set_topic_config("t", it), KafkalogError),
            (lambda it: manager.set_topic_config(it, {}), KafkalogError),
        ]
        for call, error in wrong:
            for value in (5.5, object(), "nowhere at all", b"\xff"):
                with pytest.raises(error):
                    call(value)
        assert before == [house.folders(number) for number in range(3)]
        manager.get_or_create_log("u-0")
