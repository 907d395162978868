"""Failing disks below a LogManager: each directory's every operation is refused, while the others continue.

Acknowledged records in other directories are neither lost nor slowed. The failed directory's partitions are offline and
leave the maps, and no marker is written there. Once the directory is back, a start finds the promises made before it
failed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalog.engine.format import names
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.errors import IllegalStateException, KafkaStorageException, NoLiveLogDirException
from tests.crash import harness
from tests.crash.managed import DISKS, House, Story, contents, value_of
from tests.file_doubles import Fault, FaultyFiles, UnsyncedFiles
from tests.sampling import LONG, share
from tests.unit.log_kit import batch

STEP = 1 if LONG else 25
LOOKS = ("open", "pread", "list_dir", "read_bytes", "map")
Call = Callable[[], object]


class Trial:
    """Managers with one failing disk, and the outcome of each step."""

    def __init__(self, root: Path, bad: int, error: int, at: int, kinds: tuple[str, ...] | None) -> None:
        self.files = FaultyFiles(UnsyncedFiles())
        self.house = House(root, self.files)
        self.bad = bad
        self.disk = self.house.dirs[bad] + os.sep
        self.fault = Fault(at, error, True, kinds, lambda path: (path + os.sep).startswith(self.disk))
        self.unsure: set[str] = set()  # partitions with a step that failed on the bad disk

    def healthy(self, partition: str) -> bool:
        """Whether no step of the partition had to do with the bad disk."""
        return partition not in self.unsure

    def do(self, step: Call, *partitions: str) -> None:
        """Runs a step; if it is refused, its partitions must have used the failed disk."""
        try:
            step()
        except KafkaStorageException:
            if not self.files.failed:
                raise
            self.unsure.update(partitions)
        except AssertionError:
            assert self.files.failed  # `House.log`: the partition is offline
            self.unsure.update(partitions)
        self.house.scheduler.tick()


def life_of_a_house(trial: Trial) -> None:
    """Each partition has a home; two of them move, one is deleted, one comes late."""
    house, do = trial.house, trial.do
    for number in range(6):
        do(lambda name=f"t-{number}", disk=number % DISKS: house.make(name, disk), f"t-{number}")  # type: ignore[misc]
    for name in list(house.story.lives):
        do(lambda name=name: house.append(name, 6), name)  # type: ignore[misc]
    do(lambda: house.flush("t-0"), "t-0")
    do(lambda: house.delete_records("t-1", 2), "t-1")
    do(lambda: house.move("t-2", 0), "t-2")
    do(lambda: house.append("t-2", 2), "t-2")
    do(lambda: house.move("t-3", 1), "t-3")
    do(lambda: house.append("t-3", 2), "t-3")
    do(lambda: house.delete("t-4"), "t-4")
    do(lambda: house.configure("t", max_message_bytes="5000"))
    do(lambda: house.make("u-0", (trial.bad + 1) % DISKS), "u-0")
    do(lambda: house.append("u-0", 3), "u-0")
    do(house.manager.checkpoint_recovery_points)
    do(house.manager.checkpoint_high_watermarks)
    house.clock.advance_to(house.clock.milliseconds() + 100_000)
    house.scheduler.tick()


def check_living(trial: Trial) -> None:
    """The manager after the failure: the bad disk is out, everything else serves."""
    house, manager = trial.house, trial.house.manager
    if not trial.files.failed:
        assert not manager.offline_log_dirs
        return
    house.scheduler.tick()
    told = manager.failure_channel.offline_log_dirs
    assert told in ([], [house.dirs[trial.bad]]), told
    if not told:
        assert all(failed.kind in LOOKS or ".lock" in failed.path for failed in trial.files.failed), trial.files.failed
        return
    assert manager.offline_log_dirs == told
    assert not os.path.exists(os.path.join(trial.disk, names.LOCK_FILE))
    assert not any(log.parent_dir == house.dirs[trial.bad] for log in manager.all_logs())
    for partition, lives in house.story.lives.items():
        log = manager.get_log(partition)
        life = lives[-1]
        if log is None:
            assert not trial.healthy(partition) or life.deleting or trial.bad in life.disks, partition
            with pytest.raises(KafkaStorageException, match="offline"):
                manager.get_or_create_log(partition)
            continue
        end = log.log_end_offset
        assert [offset for offset, _ in contents(log)] == list(range(log.log_start_offset, end))
        assert end >= life.acknowledged, (partition, life)
        log.append_as_leader(batch(1, value=value_of(partition, life.number, end)), 0)
        log.flush(True)
        life.appended, life.acknowledged = max(life.appended, end + 1), end + 1
        life.disks = {int(log.parent_dir[-1])}


def check_marker(trial: Trial) -> None:
    offline = trial.house.manager.failure_channel.offline_log_dirs
    for path in trial.house.dirs:
        marked = os.path.exists(os.path.join(path, names.CLEAN_SHUTDOWN_FILE))
        assert not (marked and path in offline), path
        assert not os.path.exists(os.path.join(path, names.LOCK_FILE))


def check_without(root: Path, story: Story, bad: int) -> None:
    """The other disks start with every acknowledged record; the failed disk comes back with its old content."""
    house = House(root)
    house.dirs = [path for path in house.dirs if not path.endswith(str(bad))]
    house.story = story
    try:
        manager = house.open()
        for partition, lives in story.lives.items():
            life, log = lives[-1], manager.get_log(partition)
            if life.disks and bad not in life.disks and not life.deleting and life.made:
                assert log is not None, (partition, life)
                assert log.log_end_offset >= life.acknowledged, (partition, life)
        house.shut_down()
    finally:
        house.die()


def check_with_all(root: Path, story: Story) -> None:
    """The disk is back: no partition exists twice, and none lost an acknowledged record."""
    house = House(root)
    house.story = story
    try:
        manager = house.open()
        for partition, lives in story.lives.items():
            life, log = lives[-1], manager.get_log(partition)
            if log is None:
                assert life.deleting or not life.made, (partition, life)
                continue
            assert not life.deleted, (partition, life)
            found = contents(log)
            assert [offset for offset, _ in found] == list(range(log.log_start_offset, log.log_end_offset))
            for offset, value in found:
                assert value == value_of(partition, life.number, offset)
            assert life.acknowledged <= log.log_end_offset <= life.appended, (partition, life)
            manager.move(partition, house.dirs[(int(log.parent_dir[-1]) + 1) % DISKS])
        house.shut_down()
    finally:
        house.die()


def run(base: Path, bad: int, error: int, at: int | None, kinds: tuple[str, ...] | None) -> tuple[int, bool]:
    """One trial; the number of operations on the bad disk that could fail, and whether one did."""
    root = base / "house"
    trial = Trial(root, bad, error, at or 0, kinds)
    house = trial.house
    house.open()
    trial.files.count = 0
    trial.files.fault = trial.fault
    if at is None:
        trial.fault.at = 1 << 60
    try:
        life_of_a_house(trial)
        check_living(trial)
        try:
            house.shut_down()
        except (KafkaStorageException, OSError):
            assert trial.files.failed
        check_marker(trial)
    finally:
        house.die()
    count, failed = trial.files.count, bool(trial.files.failed)
    check_without(root, house.story, bad)
    check_with_all(root, house.story)
    return count, failed


@pytest.mark.parametrize("bad", range(DISKS))
@pytest.mark.parametrize(
    ("error", "kinds"),
    [(errno.EIO, None), (errno.EIO, LOOKS)],
    ids=["EIO", "reads"],  # a full disk: test_full_disk
)
def test_a_disk_fails_at_any_operation(bad: int, error: int, kinds: tuple[str, ...] | None) -> None:
    with harness.fast_dir() as base:
        count, _ = run(base / "count", bad, error, None, kinds)
        tried = 0
        for at in share(range(count), STEP):
            try:
                run(base / str(at), bad, error, at, kinds)
            except BaseException as failure:
                failure.add_note(f"disk {bad}, {errno.errorcode[error]} at {at} of {count}, kinds {kinds}")
                raise
            tried += 1
        print(f"disk {bad}: {tried} of {count} faults")


@pytest.mark.parametrize("bad", range(DISKS))
@pytest.mark.parametrize("clean", [True, False])
def test_a_disk_fails_at_any_operation_of_a_start(bad: int, clean: bool) -> None:
    """The other directories' logs are served, whatever of the start met the failure; the lock is given back."""
    with harness.fast_dir() as base:
        root = base / "house"
        house = House(root)
        house.open()
        for number in range(6):
            house.make(f"t-{number}", number % DISKS)
            house.append(f"t-{number}", 7)
        if clean:
            house.shut_down()
        else:
            house.die()
        for kinds in (None, LOOKS):
            at, failed = 0, True
            while failed:
                files = FaultyFiles(UnsyncedFiles())
                again = House(root, files)
                again.story = house.story
                disk = again.dirs[bad] + os.sep
                files.fault = Fault(
                    at, errno.EIO, True, kinds, lambda path, disk=disk: (path + os.sep).startswith(disk)
                )  # type: ignore[misc]
                try:
                    manager = again.open()
                    files.fault = None
                    failed = bool(files.failed)
                    for number in range(6):
                        log = manager.get_log(f"t-{number}")
                        if number % DISKS != bad:
                            assert log is not None, (at, kinds, files.failed)
                            assert log.log_end_offset == 7
                            log.flush(True)
                        elif manager.offline_log_dirs:
                            assert log is None
                    if not manager.offline_log_dirs:
                        assert len(manager.all_logs()) == 6
                    again.scheduler.tick()
                finally:
                    again.die()
                assert not any(os.path.exists(os.path.join(path, names.LOCK_FILE)) for path in again.dirs)
                at += 1 if LONG else 5
        check_with_all(root, house.story)


def refused_everywhere(manager: LogManager, where: str, error: type[Exception]) -> None:
    calls: list[Call] = [
        lambda: manager.get_log("t-0"), lambda: manager.get_or_create_log("t-0"), lambda: manager.async_delete("t-0"),
        lambda: manager.async_delete_all([]), lambda: manager.move("t-0", where), lambda: manager.truncate_to({}),
        lambda: manager.truncate_fully_and_start_at("t-0", 5), lambda: manager.set_topic_config("t", {}),
        manager.cleanup_logs, manager.flush_dirty_logs, manager.checkpoint_log_starts, manager.startup,
        manager.checkpoint_recovery_points, manager.checkpoint_high_watermarks,
        lambda: manager.replace_current_with_future_log("t-0"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises((error, KafkaStorageException)):
            call()


def test_the_last_disk_is_lost(tmp_path: Path) -> None:
    files = FaultyFiles(UnsyncedFiles())
    house = House(tmp_path, files)
    manager = house.open()
    for number in range(DISKS):
        house.make(f"t-{number}", number)
        house.append(f"t-{number}", 3)
    logs = manager.all_logs()
    files.fault = Fault(0)
    for log in logs:
        with pytest.raises(KafkaStorageException):
            log.append_as_leader(batch(), 0)
    house.scheduler.tick()
    assert [type(error) for _, error in house.scheduler.errors] == [NoLiveLogDirException]
    refused_everywhere(manager, house.dirs[0], NoLiveLogDirException)
    for log in logs:
        with pytest.raises(KafkaStorageException):
            log.read(0, 100)
    manager.shutdown()
    refused_everywhere(manager, house.dirs[0], IllegalStateException)
    files.fault = None
    assert not any(os.path.exists(os.path.join(path, names.LOCK_FILE)) for path in house.dirs)
    check_with_all(tmp_path, house.story)


def test_all_disks_fail_at_the_start(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.open()
    house.make("t-0", 0)
    house.append("t-0")
    house.die()
    files = FaultyFiles(UnsyncedFiles())
    again = House(tmp_path, files)
    files.fault = Fault(0, kinds=LOOKS)
    with pytest.raises(NoLiveLogDirException):
        again.open()
    files.fault = None
    check_with_all(tmp_path, house.story)
