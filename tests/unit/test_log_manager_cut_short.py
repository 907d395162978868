"""LogManager when something comes in between: an interrupted switch, start or shutdown, a disk that fails or comes
back, a call in the wrong place.

Acknowledged records exist afterwards, or the start is refused.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkalog
from kafkalog.config import LogConfig
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host import jobs, moves
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.starting import Start
from kafkalog.engine.host.switching import Moves
from kafkalog.engine.log import loader
from kafkalog.engine.log.local_log import LocalLog
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    InvalidTopicException,
    KafkaStorageException,
    NoLiveLogDirException,
    RecordBatchTooLargeException,
)
from tests.file_doubles import Fault, FaultyFiles, UnsyncedFiles
from tests.unit.log_kit import NOW_MS, batch
from tests.unit.test_log_manager import MINUTE_MS, SETTINGS, House, contents, fill, house, numbered

__all__ = ["house"]
T0 = TopicPartition("t", 0)


def log_of(manager: LogManager, name: str = "t-0") -> UnifiedLog:
    log = manager.get_log(name)
    assert log is not None
    return log


def cut_at(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The next renaming to a name that ends so is the last thing that happens."""
    rename = UnifiedLog.rename_dir

    def stop(self: UnifiedLog, name: str, again: bool) -> None:
        if name.endswith(step):
            monkeypatch.setattr(UnifiedLog, "rename_dir", rename)
            raise KeyboardInterrupt
        rename(self, name, again)

    monkeypatch.setattr(UnifiedLog, "rename_dir", stop)


def between_the_renames(house: House, monkeypatch: pytest.MonkeyPatch, count: int = 10, *, rolls: bool = False) -> None:
    """Killed between the two renames of a move from disk0 to disk1: both have a folder t-0; with `rolls` of 15 records
    in three segments."""
    manager = house.open()
    log = manager.get_or_create_log("t-0", log_dir=house.dirs[0])
    if rolls:
        for _ in range(2):
            fill(log, 5)
            log.roll()
    fill(log, 5 if rolls else count)
    cut_at(monkeypatch, "-delete")
    with pytest.raises(KeyboardInterrupt):
        manager.move("t-0", house.dirs[1])
    house.crash(manager)
    assert (house.folders(0), house.folders(1)) == (["t-0"], ["t-0"])


# --- a switch --------------------------------------------------------------------------------------------


def test_a_switch_that_had_not_begun_is_not_made_without_what_came_since(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = house.open()
    log = manager.get_or_create_log("t-0", log_dir=house.dirs[0])
    fill(log, 10)
    replace = Moves.replace

    def stop(*_: object) -> None:
        monkeypatch.setattr(Moves, "replace", replace)
        raise KeyboardInterrupt

    monkeypatch.setattr(Moves, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        manager.move("t-0", house.dirs[1])
    fill(log, 5)
    log.truncate_to(12)
    assert contents(log_of(manager)) == numbered(0, 12)
    assert contents(manager.move("t-0", house.dirs[1])) == numbered(0, 12)
    manager.shutdown()


def test_a_switch_that_had_begun_is_made(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = house.open()
    log = manager.get_or_create_log("t-0", log_dir=house.dirs[0])
    fill(log, 10)
    cut_at(monkeypatch, "t-0")
    with pytest.raises(KeyboardInterrupt):
        manager.move("t-0", house.dirs[1])
    with pytest.raises(KafkaStorageException):
        fill(log, 1)
    moved = log_of(manager)
    assert (moved.parent_dir, contents(moved)) == (str(house.dirs[1]), numbered(0, 10))
    fill(moved, 1)
    manager.shutdown()


@pytest.mark.parametrize("who", ["a change", "a move"])
def test_whoever_comes_waits_for_a_switch_that_an_interrupt_is_just_leaving(
    house: House, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    manager = house.open()
    log = manager.get_or_create_log("t-0", log_dir=house.dirs[0])
    fill(log, 10)
    cut_at(monkeypatch, "t-0")
    leaving, found = threading.Event(), []

    class Slow:
        """As the change's own lock; the interrupt is on its way out for a while."""

        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.locked = self.lock.locked

        def __enter__(self) -> None:
            self.lock.acquire()

        def __exit__(self, *exc: object) -> None:
            if log.refuses_changes:
                leaving.set()
                time.sleep(0.2)
            self.lock.release()

    def look() -> None:
        assert leaving.wait(20)
        found.append(manager.log_to_change(T0) if who == "a change" else manager.move("t-0", house.dirs[1]))

    monkeypatch.setattr(manager.changes, "_making", Slow())
    thread = threading.Thread(target=look)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        manager.move("t-0", house.dirs[1])
    thread.join()
    moved = manager.get_log("t-0")
    assert moved is not log
    assert found == [moved]
    manager.shutdown()


def test_a_log_whose_making_was_interrupted_has_no_entries_in_its_indexes(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = house.open()
    rebuild = loader.rebuild_producer_state

    def stop(*_: object) -> None:
        monkeypatch.setattr(loader, "rebuild_producer_state", rebuild)
        raise KeyboardInterrupt

    monkeypatch.setattr(loader, "rebuild_producer_state", stop)
    with pytest.raises(KeyboardInterrupt):
        manager.get_or_create_log("t-0", log_dir=house.dirs[0])
    log = manager.get_or_create_log("t-0")
    segment = log.local_log.segments.active_segment
    assert (segment.time_index.entries, segment.offset_index.entries) == (0, 0)
    assert not segment.time_index.is_full
    manager.shutdown()


def test_a_copy_whose_cut_was_interrupted(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = house.open()
    log = manager.get_or_create_log("t-0", log_dir=house.dirs[0])
    fill(log, 10)

    def stop(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def cut(*_: object) -> None:
            monkeypatch.setattr(owner, name, method)
            raise KeyboardInterrupt

        monkeypatch.setattr(owner, name, cut)

    stop(LogManager, "switch_to_future_log")
    with pytest.raises(KeyboardInterrupt):
        manager.move("t-0", house.dirs[1])  # a copy of all ten is left
    log.truncate_to(4)
    stop(LocalLog, "update_log_end_offset")
    with pytest.raises(KeyboardInterrupt):
        manager.move("t-0", house.dirs[1])  # in the middle of throwing it away
    fill(log, 6)
    expected = contents(log)
    assert contents(manager.move("t-0", house.dirs[1])) == expected
    manager.shutdown()


def test_the_log_that_was_left_takes_no_change(house: House) -> None:
    with house.open() as manager:
        left = manager.get_or_create_log("t-0", log_dir=house.dirs[0])
        fill(left, 10)
        moved = manager.move("t-0", house.dirs[1])
        changes: list[Callable[[], object]] = [
            lambda: left.truncate_to(7),
            lambda: left.truncate_fully_and_start_at(3),
            lambda: left.delete_records(5),
            lambda: left.skip_to(50),
            lambda: fill(left, 1),
        ]
        for change in changes:
            with pytest.raises(KafkaStorageException, match="already closed"):
                change()
        assert contents(left) == contents(moved) == numbered(0, 10)


def test_a_truncation_meets_the_log_that_took_the_place(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    with house.open() as manager:
        fill(manager.get_or_create_log("t-0", log_dir=house.dirs[0]), 10)
        look = manager.get_log

        def and_then_it_moves(name: str | TopicPartition, *, is_future: bool = False) -> UnifiedLog | None:
            log = look(name, is_future=is_future)
            monkeypatch.setattr(manager, "get_log", look)
            manager.move("t-0", house.dirs[1])
            return log

        monkeypatch.setattr(manager, "get_log", and_then_it_moves)
        manager.truncate_to({T0: 7})
        assert contents(log_of(manager)) == numbered(0, 7)


def test_a_folder_that_a_switch_leaves_is_not_deleted_before_it_has_its_name(house: House) -> None:
    """With file.delete.delay.ms=0 and the deletion task running at the same time."""
    house.settings = SETTINGS._replace(
        default_config=LogConfig.from_props(None, {"file.delete.delay.ms": "0"}), initial_task_delay_ms=0
    )
    rename = UnifiedLog.rename_dir
    with house.open() as manager:
        manager.get_or_create_log("t-0", log_dir=house.dirs[0])
        manager.get_or_create_log("t-0", is_future=True, log_dir=house.dirs[1])

        def and_the_task(self: UnifiedLog, name: str, again: bool) -> None:
            house.scheduler.tick()
            rename(self, name, again)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(UnifiedLog, "rename_dir", and_the_task)
            manager.replace_current_with_future_log("t-0")
        house.advance(1)
        assert manager.offline_log_dirs == []
        assert (house.folders(0), house.folders(1)) == ([], ["t-0"])


# --- copies ----------------------------------------------------------------------------------------------


def test_a_copy_of_what_went_with_its_disk_stays(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "COPY_BYTES", 200)
    with house.open() as manager:
        fill(manager.get_or_create_log("t-0", log_dir=house.dirs[0]), 40)

        def disk_fails(_: moves.MoveProgress) -> None:
            manager.failure_channel.maybe_add_offline_log_dir(str(house.dirs[0]), "gone", OSError(5, "I/O error"))
            house.scheduler.tick()

        monkeypatch.setattr(moves, "SWITCH_BYTES", 0)
        with pytest.raises(KafkaStorageException):
            manager.move("t-0", house.dirs[1], disk_fails)
        assert manager.get_log("t-0") is None
        assert [names.is_future_dir(name) for name in house.folders(1)] == [True]
        house.advance(3 * MINUTE_MS)
        assert [names.is_future_dir(name) for name in house.folders(1)] == [True]


@pytest.mark.parametrize("order", [[1, 2], [2, 1]])
@pytest.mark.parametrize("is_here", [True, False], ids=["with the partition", "alone"])
def test_of_two_copies_the_longer_one_stays_in_sight(house: House, order: list[int], is_here: bool) -> None:
    for number, count in ((0, 12), (1, 2), (2, 10)):
        with house.open(dirs=[house.dirs[number]]) as manager:
            fill(manager.get_or_create_log("t-0"), count)
        if number:
            os.rename(house.dirs[number] / "t-0", house.dirs[number] / names.log_future_dir_name(T0))
    if not is_here:
        shutil.rmtree(house.dirs[0])
    before = house.folders(1)
    with house.open(dirs=[house.dirs[number] for number in [0, *order]]) as manager:
        future = manager.get_log("t-0", is_future=True)
        assert future is not None
        assert future.log_end_offset == 10
        house.advance(3 * MINUTE_MS)
        assert house.folders(1) == ([] if is_here else before)
        assert len(house.folders(2)) == 1


def test_pieces_are_no_larger_than_a_segment_may_be_by_now(house: House) -> None:
    with house.open() as manager:
        log = manager.get_or_create_log("t-0", log_dir=house.dirs[0])
        fill(log, 20)
        manager.set_topic_config("t", {"internal.segment.bytes": "200"})
        moved = manager.move("t-0", house.dirs[1])
        assert contents(moved) == numbered(0, 20)
        moved.append_as_leader(batch(1, ts=NOW_MS, value=b"x" * 100), 0)
        manager.set_topic_config("t", {"internal.segment.bytes": "150"})
        with pytest.raises(RecordBatchTooLargeException, match=r"segment\.bytes until it has moved"):
            manager.move("t-0", house.dirs[0])


def test_a_move_goes_where_it_is_told(house: House) -> None:
    with house.open() as manager:
        manager.get_or_create_log("t-0", log_dir=house.dirs[0])
        manager.maybe_update_preferred_log_dir("t-0", str(house.dirs[2]))
        assert manager.move("t-0", house.dirs[1]).parent_dir == str(house.dirs[1])


# --- what a cut left, and a disk that was away ------------------------------------------------------------


@pytest.mark.parametrize("by", ["manager", "open_log"])
def test_what_came_to_the_folder_that_was_left_is_not_given_up(
    house: House, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    between_the_renames(house, monkeypatch)
    if by == "manager":  # the new disk is missing
        with house.open(dirs=[house.dirs[0], house.dirs[2]]) as manager:
            fill(log_of(manager), 5)
    else:
        with kafkalog.open_log(house.dirs[0], "t-0") as log:
            log.append(b"10")
    with pytest.raises(
        IllegalStateException, match=r"Duplicate log directories.*was written to since and ends at offset 1[15]"
    ):
        house.open()
    assert (house.folders(0), house.folders(1)) == (["t-0"], ["t-0"])


def test_what_was_cut_and_written_anew_is_not_given_up(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end is where the note says, the records are others."""
    between_the_renames(house, monkeypatch)
    with house.open(dirs=[house.dirs[0]]) as manager:
        log = log_of(manager)
        log.truncate_to(6)
        for number in range(4):
            log.append_as_leader(batch(1, ts=NOW_MS, value=b"other %d" % number), 0)
        assert log.log_end_offset == 10
    with pytest.raises(IllegalStateException, match="Duplicate log directories"):
        house.open()


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_folder_that_took_nothing_is_given_up(house: House, monkeypatch: pytest.MonkeyPatch, goes_on: bool) -> None:
    between_the_renames(house, monkeypatch)
    if goes_on:  # the old disk is missing, and retention deletes its records
        with house.open(dirs=[house.dirs[1], house.dirs[2]]) as manager:
            log = log_of(manager)
            fill(log, 5)
            log.delete_records(12)
            manager.cleanup_logs()
    with house.open() as manager:
        assert contents(log_of(manager)) == (numbered(12, 15) if goes_on else numbered(0, 10))
        house.advance(3 * MINUTE_MS)
        assert house.folders(0) == []


@pytest.mark.parametrize("lost", [(0,), (5,), (0, 5)])
def test_a_folder_that_lost_segments_is_given_up(
    house: House, monkeypatch: pytest.MonkeyPatch, lost: tuple[int, ...]
) -> None:
    """A power loss took unflushed segments from the remaining directory: the move's destination has everything."""
    between_the_renames(house, monkeypatch, rolls=True)
    for base in lost:
        for path in (house.dirs[0] / "t-0").glob(f"{base:020}.*"):
            path.unlink()
    with house.open() as manager:
        log = log_of(manager)
        assert (log.parent_dir, contents(log)) == (str(house.dirs[1]), numbered(0, 15))
        house.advance(3 * MINUTE_MS)
        assert house.folders(0) == []


def test_the_left_disk_fails_while_a_start_finishes_the_move(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    between_the_renames(house, monkeypatch)
    cut = threading.Event()
    load = UnifiedLog.load.__func__  # type: ignore[attr-defined]

    def ordered(cls: type[UnifiedLog], context: object, *given: object, **options: object) -> UnifiedLog:
        folder = getattr(context, "dir")  # noqa: B009
        if folder == str(house.dirs[1] / "t-0"):
            assert cut.wait(30)
            getattr(context, "log_dir_failure_channel").maybe_add_offline_log_dir(  # noqa: B009
                str(house.dirs[0]), "gone", OSError(5, "I/O error")
            )
        log: UnifiedLog = load(cls, context, *given, **options)
        return log

    register = Start._register

    def registered(self: Start, log: UnifiedLog) -> None:
        register(self, log)
        cut.set()

    monkeypatch.setattr(UnifiedLog, "load", classmethod(ordered))
    monkeypatch.setattr(Start, "_register", registered)
    manager = house.open()
    assert manager.offline_log_dirs == [str(house.dirs[0])]
    log = log_of(manager)
    assert (log.parent_dir, contents(log)) == (str(house.dirs[1]), numbered(0, 10))
    fill(log, 1)
    manager.shutdown()
    monkeypatch.undo()
    with house.open() as manager:  # the disk is back, and its directory got nothing new
        assert contents(log_of(manager)) == numbered(0, 11)


# --- a start and an end ----------------------------------------------------------------------------------


def ends(house: House, counts: dict[str, int]) -> None:
    with house.open() as manager:
        assert {str(log.topic_partition): log.log_end_offset for log in manager.all_logs()} == counts


@pytest.mark.parametrize("clean", [True, False])
def test_an_end_while_it_starts(house: House, clean: bool) -> None:
    manager = house.open()
    counts = {f"t-{number}": number + 1 for number in range(6)}
    for name, count in counts.items():
        fill(manager.get_or_create_log(name), count)
    if clean:
        manager.shutdown()
    else:
        house.crash(manager)
    manager = house.new(settings=SETTINGS._replace(recovery_threads=1))
    with pytest.raises(IllegalStateException, match="was shut down while it started"):
        manager.startup(progress=lambda _: manager.shutdown())
    assert not any((each / names.LOCK_FILE).exists() for each in house.dirs)
    assert not any((each / names.CLEAN_SHUTDOWN_FILE).exists() for each in house.dirs if os.listdir(each))
    with pytest.raises(IllegalStateException):
        manager.get_log("t-0")
    manager.shutdown()
    ends(house, counts)


def test_interrupted_twice_a_start_lets_go_when_its_threads_have_ended(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = house.open()
    fill(manager.get_or_create_log("t-0"), 10)
    house.crash(manager)
    wait, waits = jobs.Jobs._wait, 0
    inside, go_on = threading.Event(), threading.Event()

    def interrupted(self: jobs.Jobs) -> None:
        nonlocal waits
        waits += 1
        assert inside.wait(30)
        if waits <= 2:
            raise KeyboardInterrupt
        go_on.set()
        wait(self)

    load = UnifiedLog.load.__func__  # type: ignore[attr-defined]
    locks: list[bool] = []

    def slow(cls: type[UnifiedLog], *given: object, **options: object) -> UnifiedLog:
        inside.set()
        assert go_on.wait(30)
        try:
            log: UnifiedLog = load(cls, *given, **options)
        finally:
            locks.append(any((each / names.LOCK_FILE).exists() for each in house.dirs))
        return log

    monkeypatch.setattr(jobs.Jobs, "_wait", interrupted)
    monkeypatch.setattr(UnifiedLog, "load", classmethod(slow))
    manager = house.new()
    with pytest.raises(KeyboardInterrupt):
        manager.startup()
    assert locks == [True]
    assert not any((each / names.LOCK_FILE).exists() for each in house.dirs)
    monkeypatch.undo()
    ends(house, {"t-0": 10})


def test_an_end_out_of_the_middle_of_a_log_is_refused(house: House) -> None:
    """As by a signal handler: the threads that close would wait for the log's lock."""
    manager = house.open()
    log = manager.get_or_create_log("t-0")
    with log.lock, pytest.raises(IllegalStateException, match="in the middle of another operation on t-0"):
        manager.shutdown()
    fill(log, 1)
    manager.shutdown()
    ends(house, {"t-0": 1})


@pytest.mark.slow
def test_many_deletions_beside_the_task(house: House) -> None:
    house.settings = SETTINGS._replace(default_config=LogConfig.from_props(None, {"file.delete.delay.ms": "0"}))
    failures: list[BaseException] = []
    with house.open() as manager:
        for number in range(200):
            manager.get_or_create_log(f"t-{number}")
        stop = threading.Event()

        def delete() -> None:
            try:
                while not stop.is_set():
                    manager._delete_logs()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=delete)
        thread.start()
        try:
            for number in range(200):
                manager.async_delete(f"t-{number}", checkpoint=False)
        finally:
            stop.set()
            thread.join()
        manager._delete_logs()
        assert [house.folders(number) for number in range(3)] == [[], [], []]
    assert failures == []


# --- wrong calls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [(-1, None), (5, 9), (5, -1), ("5", None), (None, None), (2**63, None)])
def test_truncating_all_to_nowhere_changes_nothing(house: House, given: tuple[int, int | None]) -> None:
    offset, start = given
    with house.open() as manager:
        log = manager.get_or_create_log("t-0")
        fill(log, 10)
        with pytest.raises(IllegalArgumentException):
            manager.truncate_fully_and_start_at("t-0", offset, log_start_offset=start)
        fill(log, 1)
        assert contents(log) == numbered(0, 11)


def test_wrong_arguments_are_refused_by_name(house: House, tmp_path: Path) -> None:
    wrong: list[Callable[[], object]] = [
        lambda: LogManager(tmp_path / "x", {"a": 1}),  # type: ignore[arg-type]
        lambda: LogManager(tmp_path / "x", metrics=5),  # type: ignore[arg-type]
        lambda: LogManager(""),
        lambda: LogManager("a\0b"),
        lambda: LogManager([tmp_path / "x", None]),  # type: ignore[list-item]
    ]
    for call in wrong:
        with pytest.raises(IllegalArgumentException):
            call()
    assert not (tmp_path / "x").exists()
    with house.open() as manager:
        fill(manager.get_or_create_log("t-0"), 3)
        calls: list[Callable[[], object]] = [
            lambda: manager.reconfigure_default_config(None),  # type: ignore[arg-type]
            lambda: manager.set_topic_config("t", {5: "1"}),  # type: ignore[dict-item]
            lambda: manager.update_topic_config("t", {5: "1"}),  # type: ignore[dict-item]
            lambda: manager.truncate_to(None),  # type: ignore[arg-type]
            lambda: manager.async_delete_all(None),  # type: ignore[arg-type]
            lambda: manager.shutdown("x"),  # type: ignore[arg-type]
            lambda: manager.move("t-0", ""),
        ]
        for call in calls:
            with pytest.raises(IllegalArgumentException):
                call()
        with pytest.raises(InvalidTopicException):
            manager.get_or_create_log(TopicPartition("t", -1))
        assert contents(log_of(manager)) == numbered(0, 3)


def test_when_the_last_directory_is_lost_every_call_on_logs_says_so(tmp_path: Path) -> None:
    files = FaultyFiles(UnsyncedFiles())
    house = House(tmp_path, files, 1)
    manager = house.open()
    log = manager.get_or_create_log("t-0")
    files.fault = Fault(0)
    with pytest.raises(KafkaStorageException):
        log.roll()
    files.fault = None
    house.scheduler.tick()
    calls: list[Callable[[], object]] = [
        manager.all_logs,
        manager.next_log_dirs,
        manager.cleanup_logs,
        lambda: manager.logs_by_topic("t"),
        lambda: manager.get_log("t-0"),
        lambda: manager.update_topic_config("t", {}),
        lambda: manager.maybe_update_preferred_log_dir("t-0", str(house.dirs[0])),
    ]
    for call in calls:
        with pytest.raises(NoLiveLogDirException):
            call()
    manager.shutdown()


# --- an epochs' file that a task writes beside ------------------------------------------------------------


def pending_flush(house: House, manager: LogManager) -> UnifiedLog:
    """A log of which the task that writes its epochs waits."""
    log = manager.get_or_create_log("t-0", log_dir=house.dirs[0])
    fill(log, 10)
    log.assign_epoch_start_offset(3, 10)
    log.truncate_to(9)
    assert any("leader-epoch-cache-flush" in task.name for task in house.scheduler.pending)
    return log


def test_epochs_are_not_written_into_the_folder_of_the_next_log(house: House) -> None:
    with house.open() as manager:
        pending_flush(house, manager)
        manager.async_delete("t-0")
        again = manager.get_or_create_log("t-0", log_dir=house.dirs[0])
        fill(again, 3)
        again.assign_epoch_start_offset(7, 3)
        path = house.dirs[0] / "t-0" / names.LEADER_EPOCH_CHECKPOINT_FILE
        before = path.read_bytes()
        assert b"7 3" in before
        house.scheduler.tick()
        assert path.read_bytes() == before


def test_a_folder_is_not_renamed_while_its_epochs_are_written(tmp_path: Path) -> None:
    class Slow(UnsyncedFiles):
        between: Callable[[], None] | None = None

        def rename(self, src: str, dst: str) -> None:
            between, self.between = self.between, None
            if between is not None and dst.endswith(names.LEADER_EPOCH_CHECKPOINT_FILE):
                between()
            super().rename(src, dst)

    files = Slow()
    house = House(tmp_path, files)
    with house.open() as manager:
        pending_flush(house, manager)
        deletion = threading.Thread(target=manager.async_delete, args=("t-0",))

        def meanwhile() -> None:
            deletion.start()
            deletion.join(0.3)

        files.between = meanwhile
        house.scheduler.tick()
        deletion.join()
        assert house.scheduler.errors == []
        assert manager.offline_log_dirs == []
        assert manager.get_log("t-0") is None
