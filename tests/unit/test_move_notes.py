"""Notes of moves: after a failed switch the partition continues, moves again, and the failed disk comes back.

The old whole copy on this disk must never count.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from itertools import permutations
from pathlib import Path

import pytest

from kafkalog.engine.format import names
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.moves import end_of_records, has_last_of
from kafkalog.engine.host.registry import LogRegistry
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import IllegalStateException, KafkaStorageException
from tests.file_doubles import Fault, FaultyFiles, UnsyncedFiles
from tests.unit.test_log_manager import House, contents, fill, numbered

MINUTE_MS = 60_000


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles(UnsyncedFiles())


@pytest.fixture
def house(tmp_path: Path, files: FaultyFiles) -> House:
    return House(tmp_path, files)


def notes(house: House) -> list[str]:
    found = [path for each in house.dirs for path in each.glob(f"*{names.MOVE_FILE_SUFFIX}*")]
    return sorted(f"{path.parent.name} {path.name}" for path in found)


def failed_switch(house: House, files: FaultyFiles, *, begun: str = "t-0") -> LogManager:
    """30 records were copied from disk0 to disk1, which failed when the copy had the plain name; then came 5 more."""
    manager = house.open()
    fill(manager.get_or_create_log(begun, log_dir=house.dirs[0]), 30)
    fail_to_move(house, files, manager, 1)
    fill(log_of(manager), 5)
    house.scheduler.tick()
    assert manager.offline_log_dirs == [str(house.dirs[1])]
    return manager


def fail_to_move(house: House, files: FaultyFiles, manager: LogManager, disk: int) -> None:
    target, switched = str(house.dirs[disk]), os.path.join(house.dirs[disk], "t-0")
    files.fault = Fault(0, kinds=("sync_dir",), paths=lambda path: path == target and os.path.isdir(switched))
    with pytest.raises(KafkaStorageException):
        manager.move("t-0", target)
    assert house.folders(disk) == ["t-0"]
    files.fault = None


def log_of(manager: LogManager) -> UnifiedLog:
    log = manager.get_log("t-0")
    assert log is not None
    return log


def check_all_is_on(house: House, disk: int, count: int) -> None:
    """A start that finds all disks: the log with `count` records counts, the others go, and no note is left."""
    with house.open() as manager:
        log = log_of(manager)
        assert (log.parent_dir, contents(log)) == (str(house.dirs[disk]), numbered(0, count))
        house.advance(3 * MINUTE_MS)
        assert [house.folders(number) for number in range(3)] == [
            ["t-0"] if number == disk else [] for number in range(3)
        ]
        assert notes(house) == []


def test_it_moves_on(house: House, files: FaultyFiles) -> None:
    manager = failed_switch(house, files)
    manager.move("t-0", house.dirs[2])
    fill(log_of(manager), 5)
    assert notes(house) == ["disk1 t-0.kafkalog_move", "disk2 t-0.kafkalog_move"]
    house.scheduler.tick()
    manager.shutdown()
    check_all_is_on(house, 2, 40)


def test_it_moves_on_and_back(house: House, files: FaultyFiles) -> None:
    manager = failed_switch(house, files)
    manager.move("t-0", house.dirs[2])
    house.advance(3 * MINUTE_MS)
    manager.move("t-0", house.dirs[0])
    fill(log_of(manager), 5)
    assert notes(house) == ["disk0 t-0.kafkalog_move", "disk1 t-0.kafkalog_move"]
    house.advance(3 * MINUTE_MS)
    manager.shutdown()
    check_all_is_on(house, 0, 40)


def test_it_moves_on_in_another_life(house: House, files: FaultyFiles) -> None:
    """A start without the disk keeps what is said of it."""
    failed_switch(house, files).shutdown()
    there = [house.dirs[0], house.dirs[2]]
    with house.open(dirs=there) as manager:
        manager.move("t-0", house.dirs[2])
        fill(log_of(manager), 5)
        house.scheduler.tick()
    with house.open(dirs=there):
        house.advance(3 * MINUTE_MS)
    check_all_is_on(house, 2, 40)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_whichever_of_three_disks_is_loaded_first(
    house: House, files: FaultyFiles, order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither disk1 nor disk2 says anything of the other."""
    manager = failed_switch(house, files)
    fail_to_move(house, files, manager, 2)
    fill(log_of(manager), 5)
    house.scheduler.tick()
    manager.shutdown()
    turns = [threading.Event() for _ in range(4)]
    turns[0].set()
    all_are_there = threading.Barrier(3)
    put = LogRegistry.put

    def in_turn(self: LogRegistry, log: UnifiedLog, *, is_future: bool = False) -> UnifiedLog | None:
        if turns[3].is_set():
            return put(self, log, is_future=is_future)
        place = [str(house.dirs[number]) for number in order].index(log.parent_dir)
        assert turns[place].wait(30)
        previous = put(self, log, is_future=is_future)
        turns[place + 1].set()
        all_are_there.wait(30)
        return previous

    monkeypatch.setattr(LogRegistry, "put", in_turn)
    check_all_is_on(house, 0, 40)


def test_the_next_disk_fails_too(house: House, files: FaultyFiles) -> None:
    """Both copies on the failed disks were whole once."""
    manager = failed_switch(house, files)
    fail_to_move(house, files, manager, 2)
    fill(log_of(manager), 5)
    house.scheduler.tick()
    manager.shutdown()
    check_all_is_on(house, 0, 40)


@pytest.mark.slow
def test_it_dies_in_the_next_switch(tmp_path: Path) -> None:
    """Until the second switch is done, the note next to the old log keeps the first copy from counting."""
    outcomes = []
    for step in range(1000):
        files = FaultyFiles(UnsyncedFiles())
        house = House(tmp_path / str(step), files)
        manager = failed_switch(house, files)
        live = (str(house.dirs[0]), str(house.dirs[2]))
        files.count, files.failed = 0, []
        files.fault = Fault(step, paths=lambda path, live=live: path.startswith(live))  # type: ignore[misc]
        with suppress(KafkaStorageException):
            manager.move("t-0", house.dirs[2])
        is_done = not files.failed
        house.crash(manager)
        files.fault = None
        manager = house.open()
        log = log_of(manager)
        assert contents(log) == numbered(0, 35), step
        outcomes.append(live.index(log.parent_dir))
        house.crash(manager)
        if is_done:
            break
    assert is_done
    assert sorted(outcomes) == outcomes
    assert set(outcomes) == {0, 1}


def test_two_copies_of_which_no_note_speaks_are_refused(house: House, files: FaultyFiles) -> None:
    """As with Kafka: the partition was created again while the disk that had it was missing."""
    with house.open() as manager:
        fill(manager.get_or_create_log("t-0", log_dir=house.dirs[1]), 5)
    (house.dirs[1] / f"t-0{names.MOVE_FILE_SUFFIX}").write_bytes(os.fsencode(house.dirs[0]) + b"\n")
    with house.open(dirs=[house.dirs[0], house.dirs[2]]) as manager:
        fill(manager.get_or_create_log("t-0", is_new=True, log_dir=house.dirs[2]), 5)
    with pytest.raises(IllegalStateException, match="Duplicate log directories"):
        house.open()


def test_a_disk_that_fails_at_the_start_settles_nothing(house: House, files: FaultyFiles) -> None:
    """Its notes are kept for a start that can read it."""
    failed_switch(house, files).shutdown()
    lost = str(house.dirs[1])
    files.fault = Fault(0, kinds=("open", "list_dir"), paths=lambda path: path.startswith(os.path.join(lost, "t-0")))
    with house.open() as manager:
        house.scheduler.tick()
        assert manager.offline_log_dirs == [lost]
        fill(log_of(manager), 5)
        house.scheduler.tick()
        files.fault = None
    check_all_is_on(house, 0, 40)


@pytest.mark.parametrize("lost", [0, 4])
def test_what_is_left_of_a_copy_whose_end_a_power_loss_took_gives_way(house: House, lost: int) -> None:
    """It keeps its last segment's name, empty, after a hole: so it ends higher than its last record says."""
    with house.open() as manager:
        for disk, count, topic in ((0, 30, "t-0"), (1, 30 - lost, "u-0")):
            fill(manager.get_or_create_log(topic, log_dir=house.dirs[disk]), count)
        left = manager.get_log("u-0")
        assert left is not None
        left.skip_to(30)
        assert (left.log_end_offset, end_of_records(left)) == (30, 30 - lost)
        assert has_last_of(log_of(manager), left)
        empty = manager.get_or_create_log("v-0", log_dir=house.dirs[2])
        empty.skip_to(7)
        assert end_of_records(empty) is None
