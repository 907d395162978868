"""LogManager and its cleaner: the notifications between them.  The pool has no threads; the tests run it by hand."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from typing_extensions import Buffer

from kafkalog.config import BrokerLogConfig, CleanerConfig, LogConfig
from kafkalog.engine.cleaner.cleaner_thread import CleanerThread
from kafkalog.engine.cleaner.log_cleaner import LogCleaner
from kafkalog.engine.cleaner.states import Claim, CleaningStates
from kafkalog.engine.files import File, ManualClock, ManualScheduler
from kafkalog.engine.files.os_files import OsFiles
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import ConfigException, IllegalArgumentException, IllegalStateException, KafkaStorageException
from tests.unit.cleaner_kit import rows
from tests.unit.cleaning_kit import CHECKPOINT, COMPACTED, fill
from tests.unit.log_kit import NOW_MS

NOBODY = replace(CleanerConfig.for_tests(), num_threads=0)
T = TopicPartition("t", 0)


class House:
    def __init__(self, root: Path, config: CleanerConfig = NOBODY) -> None:
        self.dirs = [str(root / name) for name in ("a", "b")]
        settings = ManagerSettings(LogConfig.from_props(None, COMPACTED), cleaner=config)
        clock = ManualClock(NOW_MS)
        self.scheduler = ManualScheduler(clock)
        self.manager = LogManager(self.dirs, settings, scheduler=self.scheduler, clock=clock)
        self.manager.startup()

    @property
    def cleaner(self) -> LogCleaner:
        assert self.manager.cleaner is not None
        return self.manager.cleaner

    def filled(self, name: str = "t-0", number: int = 0) -> UnifiedLog:
        log = self.manager.get_or_create_log(name, is_new=True, log_dir=self.dirs[number])
        fill(log, 60)
        log.roll()
        return log

    def turn(self) -> bool:
        cleaner, channel = self.cleaner, self.manager.failure_channel
        thread = CleanerThread(0, CleanerConfig.for_tests(), cleaner.manager, cleaner.throttler, channel)
        return thread.clean_filthiest_log()

    def lines(self, number: int = 0) -> list[str]:
        return (Path(self.dirs[number]) / CHECKPOINT).read_text().splitlines()[2:]

    def state(self) -> str:
        return str(self.cleaner.manager.cleaning_state(T))


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.manager.shutdown()


def test_a_truncation_below_the_active_segment_lowers_the_checkpoint(house: House) -> None:
    log = house.filled()
    assert house.turn()
    assert house.lines() == ["t 0 60"]
    fill(log, 5, start=60)
    house.manager.truncate_to({T: 62})
    assert house.lines() == ["t 0 60"]  # within the active segment nothing is clean
    house.manager.truncate_to({T: 58})
    assert house.lines() == [f"t 0 {log.active_segment.base_offset}"]
    assert log.active_segment.base_offset <= 58
    assert house.state() == "None"


def test_a_new_beginning_lowers_it_too(house: House) -> None:
    house.filled()
    assert house.turn()
    house.manager.truncate_fully_and_start_at(T, 7)
    assert house.lines() == ["t 0 7"]
    assert house.state() == "None"


@pytest.mark.parametrize("offset", ["x", 1.5, None])
def test_what_is_no_offset_is_refused_before_anything_changes(house: House, offset: object) -> None:
    house.filled()
    assert house.turn()
    for call in (
        lambda: house.manager.truncate_to({T: offset}),  # type: ignore[dict-item]
        lambda: house.manager.truncate_fully_and_start_at(T, offset),  # type: ignore[arg-type]
    ):
        with pytest.raises(IllegalArgumentException):
            call()
    assert house.lines() == ["t 0 60"]
    assert house.state() == "None"


def test_a_move_takes_the_checkpoint_along(house: House) -> None:
    house.filled()
    assert house.turn()
    moved = house.manager.move(T, house.dirs[1])
    assert (house.lines(0), house.lines(1)) == ([], ["t 0 60"])
    assert house.state() == "None"
    assert len(rows(moved)) == 3
    assert not house.turn()


def test_a_partition_that_moves_is_not_cleaned(house: House) -> None:
    house.filled()
    states = []
    house.manager.move(T, house.dirs[1], progress=lambda _: states.append(house.state()))
    future = house.manager.get_or_create_log(T, is_future=True, log_dir=house.dirs[0])
    with house.cleaner.manager.pause(T) as pause:
        pause.begin()
        assert not house.turn()
        assert future.is_future
    assert set(states) <= {"LogCleaningPaused(1)"}


@pytest.mark.parametrize("many", [False, True])
def test_a_deletion_takes_its_line_away(house: House, many: bool) -> None:
    house.filled()
    house.filled("u-0")
    assert house.turn()
    assert house.turn()
    if many:
        house.manager.async_delete_all([T])
    else:
        house.manager.async_delete(T)
    assert house.lines() == ["u 0 60"]
    assert house.state() == "None"


def test_lines_that_a_crash_left_are_forgotten_by_the_next_start(tmp_path: Path) -> None:
    """Lines of a deleted log, a log in another directory, and beyond the end of a log that a power loss truncated."""
    first = House(tmp_path)
    for name, number in (("t-0", 0), ("u-0", 0), ("v-0", 1)):
        first.filled(name, number)
    while first.turn():
        pass
    assert sorted(first.lines(0)) == ["t 0 60", "u 0 60"]
    first.manager.async_delete(T)
    first.manager.shutdown()
    for number, text in enumerate(("0\n4\nt 0 60\nu 0 61\nv 0 7\nw 0 5\n", "0\n2\nv 0 60\nu 0 3\n")):
        (Path(first.dirs[number]) / CHECKPOINT).write_text(text)
    again = House(tmp_path)
    assert (again.lines(0), again.lines(1)) == (["u 0 0"], ["v 0 60"])
    again.manager.shutdown()
    before = (Path(first.dirs[0]) / CHECKPOINT).stat().st_mtime_ns
    House(tmp_path).manager.shutdown()
    assert (Path(first.dirs[0]) / CHECKPOINT).stat().st_mtime_ns == before  # right ones are not written again


def test_who_stops_compacting_has_the_cleaner_leave(house: House) -> None:
    house.filled()
    assert house.turn()
    house.manager.set_topic_config("t", {"cleanup.policy": "delete"})
    assert house.state() == "None"
    assert not house.turn()
    house.manager.truncate_to({T: 3})
    assert house.lines() == ["t 0 60"]  # as Kafka, for a log that is not compacted


def test_retention_leaves_alone_what_is_paused(house: House) -> None:
    house.manager.set_topic_config("kept", {"cleanup.policy": "delete", "retention.bytes": "0"})
    log = house.filled("kept-0")
    with house.cleaner.manager.pause(log.topic_partition) as pause:
        pause.begin()
        assert house.manager.cleanup_logs() == 0
    assert house.manager.cleanup_logs() > 0
    assert house.cleaner.manager.cleaning_state(log.topic_partition) is None


def test_a_directory_that_fails_is_not_written_again(house: House) -> None:
    house.filled()
    house.filled("u-0", 1)
    assert house.turn()
    house.manager.handle_log_dir_failure(house.dirs[0])
    before = house.lines(0)
    assert house.turn()
    assert house.lines(0) == before
    assert house.lines(1) == ["u 0 60"]
    assert not house.turn()


def test_what_cannot_be_cleaned_is_shown(house: House) -> None:
    log = house.filled()
    path = log.log_segments()[0].log.path
    with open(path, "r+b") as file:
        file.seek(8)
        file.write(b"\x7f\xff\xff\xff")
    assert not house.turn()
    (why,) = house.manager.uncleanable_partitions()
    assert (why.partition, why.path, why.position) == (T, path, 0)
    shown = house.manager.metrics.as_jmx()
    assert (
        shown[f'kafka.log:type=LogCleanerManager,name=uncleanable-partitions-count,logDirectory="{house.dirs[0]}"'] == 1
    )


def test_none_where_none_is_wanted(tmp_path: Path) -> None:
    house = House(tmp_path, CleanerConfig(enable_cleaner=False))
    manager = house.manager
    assert manager.cleaner is None
    assert not (Path(house.dirs[0]) / CHECKPOINT).exists()
    assert manager.uncleanable_partitions() == []
    with pytest.raises(IllegalStateException, match="has no log cleaner"):
        manager.reconfigure_cleaner(CleanerConfig())
    house.filled()
    manager.truncate_to({T: 30})
    manager.cleanup_logs()
    manager.async_delete(T)
    manager.shutdown()


def test_a_future_log_that_is_deleted_leaves_the_checkpoints_alone(tmp_path: Path) -> None:
    house = House(tmp_path)
    log = house.filled()
    future = house.manager.get_or_create_log(T, is_future=True, topic_id=log.topic_id, log_dir=house.dirs[1])
    written = Path(house.dirs[1]) / CHECKPOINT
    before = written.read_bytes()
    assert house.manager.async_delete(T, is_future=True) is future
    assert written.read_bytes() == before == b""
    house.manager.async_delete(T)
    assert (Path(house.dirs[0]) / CHECKPOINT).read_bytes() == b"0\n0\n"
    assert written.read_bytes() == b""
    house.manager.shutdown()


def test_kafkas_defaults_are_on(tmp_path: Path) -> None:
    assert ManagerSettings().cleaner == CleanerConfig()
    broker = BrokerLogConfig.from_props({"log.dirs": str(tmp_path), "log.cleaner.threads": "3"})
    assert ManagerSettings.from_broker(broker).cleaner.num_threads == 3
    with LogManager(tmp_path) as manager:
        assert manager.cleaner is not None
        assert [thread.name for thread in manager.cleaner.threads] == ["kafka-log-cleaner-thread-0"]
        manager.reconfigure_cleaner(CleanerConfig(num_threads=2))
        assert len(manager.cleaner.threads) == 2


@pytest.mark.parametrize(
    "config",
    [
        CleanerConfig(num_threads=-1),
        CleanerConfig(backoff_ms=-1),
        CleanerConfig(dedupe_buffer_size=1 << 20),
        CleanerConfig(dedupe_buffer_load_factor=0.0),
        CleanerConfig(dedupe_buffer_load_factor="0.5"),  # type: ignore[arg-type]
        CleanerConfig(max_io_bytes_per_second="1000"),  # type: ignore[arg-type]
        CleanerConfig(max_io_bytes_per_second=None),  # type: ignore[arg-type]
        CleanerConfig(max_io_bytes_per_second=True),
        CleanerConfig(max_io_bytes_per_second=10**400),
        CleanerConfig(max_io_bytes_per_second=float("nan")),
        CleanerConfig(dedupe_buffer_load_factor=float("nan")),
        CleanerConfig(enable_cleaner=None),  # type: ignore[arg-type]
        CleanerConfig(enable_cleaner="false"),  # type: ignore[arg-type]
        CleanerConfig(io_buffer_size=1.5),  # type: ignore[arg-type]
        7,
    ],
)
def test_settings_that_kafka_refuses(config: object) -> None:
    with pytest.raises(IllegalArgumentException, match="CleanerConfig"):
        ManagerSettings(cleaner=config).checked()  # type: ignore[arg-type]


@pytest.mark.parametrize("config", [None, "x", 2, {"num_threads": 2}, CleanerConfig(backoff_ms=-1)])
def test_a_cleaner_is_not_reconfigured_to_other_things(house: House, config: object) -> None:
    before = house.cleaner.config
    with pytest.raises(IllegalArgumentException, match="CleanerConfig"):
        house.manager.reconfigure_cleaner(config)  # type: ignore[arg-type]
    assert house.cleaner.config is before


def test_a_cleaner_that_runs_is_not_turned_off(house: House) -> None:
    before = house.cleaner.config
    with pytest.raises(ConfigException, match=r"log\.cleaner\.enable: found false"):
        house.manager.reconfigure_cleaner(replace(before, enable_cleaner=False))
    assert house.cleaner.config is before


def test_a_shutdown_ends_it_for_good(tmp_path: Path) -> None:
    house = House(tmp_path, CleanerConfig.for_tests())
    cleaner = house.cleaner
    house.manager.shutdown()
    assert list(cleaner.threads) == []
    with pytest.raises(IllegalStateException):
        cleaner.startup()
    with pytest.raises((IllegalStateException, KafkaStorageException)):
        house.manager.reconfigure_cleaner(CleanerConfig.for_tests())


def test_a_start_that_fails_leaves_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ManagerSettings(LogConfig.from_props(None, COMPACTED), cleaner=CleanerConfig.for_tests())
    manager = LogManager(tmp_path, settings)
    cleaner = manager.cleaner
    assert cleaner is not None
    start = LogCleaner.startup

    def fail(own: LogCleaner) -> None:
        start(own)
        raise KeyboardInterrupt

    monkeypatch.setattr(LogCleaner, "startup", fail)
    with pytest.raises(KeyboardInterrupt):
        manager.startup()
    assert list(cleaner.threads) == []
    assert not (tmp_path / ".lock").exists()


def test_who_is_inside_of_the_log_does_not_wait_for_its_cleaner(house: House) -> None:
    """As a signal handler in the middle of an append: the cleaner would wait for the lock that its thread holds."""
    log = house.filled()
    claims: list[Claim | None] = []
    thread = threading.Thread(target=lambda: claims.append(house.cleaner.manager.states.claim(T)))
    thread.start()
    thread.join()
    calls: list[Callable[[], object]] = [
        lambda: house.manager.truncate_to({T: 3}),
        lambda: house.manager.truncate_fully_and_start_at(T, 3),
        lambda: house.manager.async_delete(T),
        lambda: house.manager.move(T, house.dirs[1]),
        lambda: house.manager.reconfigure_cleaner(NOBODY),
        house.manager.shutdown,
        house.manager.abandon,
    ]
    for call in calls:
        with log.lock, pytest.raises(IllegalStateException, match=r"inside|in the middle"):
            call()
        assert house.state() == "LogCleaningInProgress"
    assert log.log_end_offset == 60
    assert claims[0] is not None
    house.cleaner.manager.done_deleting([claims[0]])
    for call in calls[:2]:
        with log.lock:
            call()  # no cleaner is running
    assert log.log_end_offset == 3


def test_who_is_inside_of_anything_that_a_cleaner_waits_for_does_not_wait_for_it(house: House) -> None:
    """It holds the claims of all compacted logs while it waits for the lock of one, or for that of the states."""
    house.filled()
    other = house.filled("u-0")
    states = house.cleaner.manager.states
    claims: list[Claim | None] = []
    thread = threading.Thread(target=lambda: claims.append(states.claim(T)))
    thread.start()
    thread.join()
    with other.lock, pytest.raises(IllegalStateException, match="in the middle of another operation on u-0"):
        house.manager.truncate_to({T: 3})
    calls: list[Callable[[], object]] = [
        lambda: house.manager.truncate_to({T: 3}),
        lambda: house.manager.async_delete(T),
        lambda: house.manager.reconfigure_cleaner(NOBODY),
        house.manager.shutdown,
        house.manager.abandon,
    ]
    for call in calls:
        with states.lock, pytest.raises(IllegalStateException, match="in the middle of a change of what is cleaned"):
            call()
    assert house.state() == "LogCleaningInProgress"
    assert claims[0] is not None
    house.cleaner.manager.done_deleting([claims[0]])


def test_a_file_is_not_written_inside_of_its_own_writing(tmp_path: Path) -> None:
    """As by a signal handler: both would write one temporary file, and the disk would count as failed."""
    refused = []

    class Again(OsFiles):
        def write_file(self, path: str, data: Buffer, *, sync: bool = False) -> None:
            super().write_file(path, data, sync=sync)
            for name, call in calls.items():
                if name in path and name not in refused:
                    refused.append(name)
                    with pytest.raises(IllegalStateException, match="this thread is writing"):
                        call()

    calls: dict[str, Callable[[], object]] = {}
    settings = ManagerSettings(LogConfig.from_props(None, COMPACTED), cleaner=NOBODY)
    with LogManager(tmp_path / "a", settings, files=Again()) as manager:
        manager.get_or_create_log("t-0")
        calls[".kafkalog_topics"] = lambda: manager.set_topic_config("t", {"retention.ms": "7"})
        calls["recovery-point"] = manager.checkpoint_recovery_points
        manager.set_topic_config("t", {"retention.ms": "5"})
        manager.checkpoint_recovery_points()
        assert refused == [".kafkalog_topics", "recovery-point"]
        assert manager.offline_log_dirs == []
        assert manager.topic_configs.overrides("t") == {"retention.ms": "5"}


def test_a_cut_of_the_active_segment_is_asked_and_made_in_one_step(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it rolled in between, the truncation would change a part that a cleaner may be reading."""
    log = house.filled()
    fill(log, 5, start=60)
    truncate = UnifiedLog.truncate_to
    rolled = threading.Event()

    def beside_a_roll(self: UnifiedLog, offset: int) -> bool:
        def roll() -> None:
            log.roll()
            rolled.set()

        threading.Thread(target=roll, daemon=True).start()
        assert not rolled.wait(0.2)  # it waits for the truncation
        return truncate(self, offset)

    monkeypatch.setattr(UnifiedLog, "truncate_to", beside_a_roll)
    house.manager.truncate_to({T: 62})
    assert rolled.wait(10)
    assert log.log_end_offset == 62


class Hangs(OsFiles):
    """Files whose reads of one directory hang on demand."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self.on = False
        self.hung, self.again = threading.Event(), threading.Event()

    def open(self, path: str, **options: Any) -> File:
        file = super().open(path, **options)
        if self.on and path.startswith(self._path) and path.endswith(".cleaned"):
            self.hung.set()
            self.again.wait()
        return file


def test_a_disk_that_hangs_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    dirs = [str(tmp_path / "a"), str(tmp_path / "b")]
    files = Hangs(dirs[0])
    config = replace(CleanerConfig.for_tests(), backoff_ms=10)
    settings = ManagerSettings(LogConfig.from_props(None, COMPACTED), cleaner=config)
    with LogManager(dirs, settings, files=files) as manager:
        files.on = True
        fill(log := manager.get_or_create_log("t-0", is_new=True, log_dir=dirs[0]), 60)
        log.roll()
        assert files.hung.wait(60)
        manager.failure_channel.maybe_add_offline_log_dir(dirs[0], "an append met EIO", OSError(5, "EIO"))
        manager.handle_log_dir_failure(dirs[0])
        assert manager.offline_log_dirs == dirs[:1]
        manager.get_or_create_log("u-0", is_new=True, log_dir=dirs[1])
        files.again.set()
        assert manager.cleaner is not None
        for _ in range(1000):
            if manager.cleaner.manager.cleaning_state(T) is None:
                break
            time.sleep(0.01)
        assert manager.cleaner.manager.cleaning_state(T) is None  # the pass has found out, and left
        assert [name for name in os.listdir(log.dir) if name.endswith(".swap")] == []


def _interrupt_at(code: CodeType) -> Callable[[FrameType, str, object], None]:
    def trace(frame: FrameType, event: str, arg: object) -> None:
        if frame.f_code is code:
            sys.settrace(None)
            raise KeyboardInterrupt

    return trace


@pytest.mark.parametrize("code", [CleaningStates.add.__code__, UnifiedLog.delete_old_segments.__code__])
def test_who_keeps_the_traceback_of_an_interrupt_keeps_nothing_paused(tmp_path: Path, code: CodeType) -> None:
    house = House(tmp_path)
    with house.manager:
        logs = [house.manager.get_or_create_log(f"d-{number}", is_new=True) for number in range(3)]
        for log in logs:
            log.update_config(LogConfig.from_props(None, {**COMPACTED, "cleanup.policy": "delete"}))
        before = sys.gettrace()
        sys.settrace(_interrupt_at(code))
        try:
            with pytest.raises(KeyboardInterrupt) as kept:
                house.manager.cleanup_logs()
        finally:
            sys.settrace(before)
        states = house.cleaner.manager
        assert [states.cleaning_state(log.topic_partition) for log in logs] == [None] * 3
        assert kept.value.__traceback__ is not None


def test_who_keeps_the_traceback_of_a_thread_that_died_keeps_no_claim(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        house.filled(f"t-{number}")
    claim = CleaningStates.claim
    left = [None, None]

    def no_memory(self: CleaningStates, partition: TopicPartition) -> Claim | None:
        if not left:
            raise MemoryError
        left.pop()
        return claim(self, partition)

    monkeypatch.setattr(CleaningStates, "claim", no_memory)
    with pytest.raises(MemoryError) as kept:
        house.cleaner.manager.deletable_logs()
    assert kept.value.__traceback__ is not None
    for number in range(3):
        assert house.cleaner.manager.cleaning_state(TopicPartition("t", number)) is None
