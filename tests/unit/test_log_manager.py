"""LogManager: directories, start, logs, moves, deletion, failure, shutdown; with a manual clock and scheduler."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.config import LogConfig, ProducerStateManagerConfig
from kafkalog.engine.files import OS_FILES, Files, ManualClock, ManualScheduler
from kafkalog.engine.format.checkpoints import CleanShutdownFile, OffsetCheckpointFile
from kafkalog.engine.format.meta_properties import MetaProperties, write_meta_properties
from kafkalog.engine.format.names import HIGH_WATERMARK_CHECKPOINT_FILE, RECOVERY_POINT_CHECKPOINT_FILE, TopicPartition
from kafkalog.engine.host import moves
from kafkalog.engine.host.jobs import Jobs
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.host.starting import Start
from kafkalog.engine.host.topic_configs import FixedTopicConfigs, StoredTopicConfigs
from kafkalog.engine.log.context import ProducerSettings
from kafkalog.engine.log.types import FetchIsolation, LogStartOffsetIncrementReason
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import (
    CorruptCheckpointException,
    IllegalArgumentException,
    IllegalStateException,
    InconsistentTopicIdException,
    InvalidConfigurationException,
    InvalidTopicException,
    KafkaException,
    KafkaStorageException,
    LogDirLockedException,
    LogDirNotFoundException,
    NoLiveLogDirException,
    UnknownTopicOrPartitionException,
)
from tests.conformance.kafkas_manager import KafkasManager
from tests.file_doubles import Fault, FaultyFiles
from tests.unit.log_kit import NOW_MS, SMALL, TOPIC_ID, batch

OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAg"
SETTINGS = ManagerSettings(
    LogConfig.from_props(None, {**SMALL, "segment.jitter.ms": "0", "retention.ms": "-1"}),
    producers=ProducerSettings(ProducerStateManagerConfig(86_400_000, False)),
)
MINUTE_MS = 60_000


class House:
    """Some log directories, and managers of them one after the other."""

    def __init__(self, root: Path, files: Files = OS_FILES, count: int = 3) -> None:
        self.dirs = [root / f"disk{number}" for number in range(count)]
        self.files = files
        self.clock = ManualClock(NOW_MS)
        self.scheduler = ManualScheduler(self.clock)
        self.settings = SETTINGS

    def new(self, **options: Any) -> LogManager:
        options = {"scheduler": self.scheduler, "clock": self.clock, "files": self.files, "take_over": True, **options}
        kind: type[LogManager] = options.pop("kind", LogManager)
        return kind(options.pop("dirs", self.dirs), options.pop("settings", self.settings), **options)

    def open(self, **options: Any) -> LogManager:
        manager = self.new(**options)
        manager.startup()
        return manager

    def advance(self, ms: int) -> None:
        self.clock.advance_to(self.clock.milliseconds() + ms)
        self.scheduler.tick()

    def crash(self, manager: LogManager) -> None:
        self.scheduler.clear()
        manager.abandon()

    def folders(self, number: int) -> list[str]:
        return sorted(path.name for path in self.dirs[number].iterdir() if path.is_dir())


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    return House(tmp_path)


def fill(log: UnifiedLog, count: int, *, ts: int = NOW_MS) -> None:
    for number in range(count):
        log.append_as_leader(batch(1, ts=ts + number, value=b"%d" % log.log_end_offset), 0)


def contents(
    log: UnifiedLog, isolation: FetchIsolation = FetchIsolation.LOG_END, *, start: int | None = None
) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    offset = log.log_start_offset if start is None else start
    while offset < log.log_end_offset:
        records = [each for each in log.read(offset, 1 << 20, isolation).records.records() if each.offset >= offset]
        if not records:
            break
        found += [(each.offset, None if each.value is None else bytes(each.value)) for each in records]
        offset = records[-1].offset + 1
    return found


def numbered(start: int, end: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in range(start, end)]


# --- directories -----------------------------------------------------------------------------------------


def test_missing_directories_are_made_and_locked(house: House) -> None:
    with house.open() as manager:
        assert manager.live_log_dirs == [str(each) for each in house.dirs]
        for each in house.dirs:
            assert {path.name for path in each.iterdir()} == {
                ".lock", "recovery-point-offset-checkpoint", "log-start-offset-checkpoint",
                "cleaner-offset-checkpoint",
            }  # fmt: skip
        with pytest.raises(LogDirLockedException, match=r"Failed to acquire lock on file .lock in .*disk0"):
            house.new()
    assert not (house.dirs[0] / ".lock").exists()
    assert CleanShutdownFile(str(house.dirs[0])).read() == -1


def test_two_names_of_one_directory_are_refused(house: House, tmp_path: Path) -> None:
    house.dirs[0].mkdir()
    (tmp_path / "link").symlink_to(house.dirs[0])
    with pytest.raises(KafkaException, match=r"Duplicate log directory found: .*disk0, .*link"):
        house.new(dirs=[house.dirs[0], tmp_path / "link"])
    house.open(dirs=[house.dirs[0]]).shutdown()  # and the lock was given back


@pytest.mark.parametrize("given", [[], 5, [None], [b"x", 5]])
def test_what_is_no_list_of_directories_is_refused(house: House, given: Any) -> None:
    with pytest.raises(IllegalArgumentException, match="log_dirs: found"):
        house.new(dirs=given)


def test_a_file_in_place_of_a_directory_is_offline(house: House) -> None:
    house.dirs[1].write_text("")
    with house.open() as manager:
        assert manager.offline_log_dirs == [str(house.dirs[1])]
        assert manager.live_log_dirs == [str(house.dirs[0]), str(house.dirs[2])]
        assert not manager.is_log_dir_online(house.dirs[1])
        with pytest.raises(KafkaStorageException, match=r"because log directories .*disk1 are offline.*is_new=True"):
            manager.get_or_create_log("t-0")
        manager.get_or_create_log("t-0", is_new=True)
        with pytest.raises(LogDirNotFoundException, match="nowhere is not found in the config"):
            manager.is_log_dir_online("/nowhere")
        with pytest.raises(KafkaStorageException, match=r"t-9 because it may be in one of the offline directories"):
            manager.async_delete("t-9")


def test_no_directory_at_all_is_an_error_of_its_own(house: House) -> None:
    for each in house.dirs:
        each.write_text("")
    with pytest.raises(NoLiveLogDirException, match=r"none of the specified log dirs .* can be created or validated"):
        house.new()


def test_directory_ids_are_read(house: House) -> None:
    house.dirs[0].mkdir()
    house.dirs[1].mkdir()
    write_meta_properties(str(house.dirs[0] / "meta.properties"), MetaProperties(1, "c", 1, TOPIC_ID))
    write_meta_properties(str(house.dirs[1] / "meta.properties"), MetaProperties(0, None, 1, None))
    with house.open() as manager:
        assert manager.directory_ids == {str(house.dirs[0]): TOPIC_ID}
    (house.dirs[1] / "meta.properties").write_text("version=7\n")
    with pytest.raises(CorruptCheckpointException, match=r"Unknown meta.properties version number 7"):
        house.new()
    (house.dirs[1] / "meta.properties").unlink()
    house.open().shutdown()


def test_a_new_partition_goes_to_the_open_directory_with_the_fewest(house: House) -> None:
    with house.open() as manager:
        where = [manager.get_or_create_log(f"t-{number}").parent_dir for number in range(6)]
        assert where == [str(each) for each in house.dirs] * 2
        manager.directories.cordon([str(house.dirs[0]), str(house.dirs[1])])
        assert manager.get_or_create_log("t-6").parent_dir == str(house.dirs[2])
        assert manager.get_or_create_log("t-7").parent_dir == str(house.dirs[2])
        manager.directories.cordon(["*"])
        assert manager.get_or_create_log("t-8").parent_dir == str(house.dirs[0])
        assert manager.get_or_create_log("t-9", log_dir=house.dirs[1]).parent_dir == str(house.dirs[1])


def test_foreign_folders_are_passed_over_and_named(house: House, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("lost+found", "backup", "remote-log-index-cache", "__cluster_metadata-0"):
        (house.dirs[0] / name).mkdir(parents=True)
    (house.dirs[0] / "notes.txt").write_text("mine")
    with house.open() as manager:
        assert manager.all_logs() == []
    assert "skipped backup, which" in caplog.text
    with pytest.raises(KafkaException, match=r"' is not in the form of topic-partition"):
        house.open(kind=KafkasManager)
    house.open().shutdown()  # a start that failed holds no lock


# --- start and end ---------------------------------------------------------------------------------------


def test_what_was_shut_down_is_there_again(house: House) -> None:
    with house.open() as manager:
        for number in range(5):
            fill(manager.get_or_create_log(f"t-{number}", topic_id=TOPIC_ID), 30 + number)
        house.scheduler.tick()
        manager.get_or_create_log("t-3").delete_records(12)
    marks = OffsetCheckpointFile(str(house.dirs[1] / "replication-offset-checkpoint")).read()
    assert marks == {TopicPartition("t", 1): 31, TopicPartition("t", 4): 34}
    assert OffsetCheckpointFile(str(house.dirs[0] / "log-start-offset-checkpoint")).read() == {
        TopicPartition("t", 3): 12
    }
    with house.open() as manager:
        assert not (house.dirs[0] / ".kafka_cleanshutdown").exists()
        for number in range(5):
            log = manager.get_log(f"t-{number}")
            assert log is not None
            assert contents(log) == numbered(12 if number == 3 else 0, 30 + number)
            assert log.high_watermark == log.recovery_point == log.log_end_offset
            assert log.topic_id == TOPIC_ID


@pytest.mark.parametrize("name", ["a b-0", "a\nb-0", "\udcff-0"])
def test_a_folder_that_no_line_can_hold_takes_nobody_elses_line(
    name: str, house: House, caplog: pytest.LogCaptureFixture
) -> None:
    with house.open() as manager:
        fill(manager.get_or_create_log("t-0"), 20)
        house.scheduler.tick()
        manager.get_or_create_log("t-0").delete_records(12)
    disk = next(path for path in house.dirs if (path / "t-0").exists())
    shutil.copytree(disk / "t-0", disk / name)
    with house.open() as manager:
        assert manager.get_or_create_log("t-0").log_start_offset == 12
        house.advance(600_000)
    assert caplog.text.count("recovery-point-offset-checkpoint has no line for the directory") == 1
    for checkpoint in (disk / RECOVERY_POINT_CHECKPOINT_FILE, disk / HIGH_WATERMARK_CHECKPOINT_FILE):
        assert list(OffsetCheckpointFile(str(checkpoint)).read()) == [TopicPartition("t", 0)]
    with house.open() as manager:
        assert manager.get_or_create_log("t-0").log_start_offset == 12


def test_after_a_crash_what_was_written_is_recovered(house: House) -> None:
    manager = house.open()
    fill(manager.get_or_create_log("t-0"), 30)
    house.crash(manager)
    told: list[str] = []
    manager = house.new()
    manager.startup(progress=lambda progress: told.append(str(progress)))
    log = manager.get_log("t-0")
    assert log is not None
    assert contents(log) == numbered(0, 30)
    assert told[-1].startswith("1 of 1 logs loaded")
    assert any("segments to recover" in each for each in told)
    assert manager.load_progress is None
    manager.shutdown(7)
    assert CleanShutdownFile(str(house.dirs[2])).read() == 7
    later = house.new()
    assert later.broker_epoch_at_shutdown() == 7
    later.shutdown()
    assert CleanShutdownFile(str(house.dirs[2])).read() == 7  # nothing was loaded


def test_a_closed_manager_refuses_and_closes_once(house: House) -> None:
    manager = house.new()
    with pytest.raises(IllegalStateException, match="is not started"):
        manager.get_log("t-0")
    manager.startup()
    with pytest.raises(IllegalStateException, match="was started already"):
        manager.startup()
    log = manager.get_or_create_log("t-0")
    manager.shutdown()
    manager.shutdown()
    for call in (lambda: manager.get_log("t-0"), lambda: manager.get_or_create_log("t-0"), manager.startup):
        with pytest.raises(IllegalStateException, match="is closed"):
            call()
    with pytest.raises(KafkaStorageException, match=r"already closed"):
        fill(log, 1)


def test_a_log_that_was_let_go_spoils_its_directory_alone(house: House) -> None:
    manager = house.open()
    logs = [manager.get_or_create_log(f"t-{number}") for number in range(3)]
    for log in logs:
        fill(log, 3)
    logs[1].close_quietly()
    with pytest.raises(KafkaStorageException, match=r"t-1 of .*disk1 was released before"):
        manager.shutdown()
    assert [(each / ".kafka_cleanshutdown").exists() for each in house.dirs] == [True, False, True]
    with house.open() as manager:
        assert [contents(log) for log in sorted(manager.all_logs(), key=lambda log: log.dir)] == [numbered(0, 3)] * 3


def test_an_interrupted_start_lets_go(house: House) -> None:
    with house.open() as manager:
        for number in range(6):
            manager.get_or_create_log(f"t-{number}")

    def interrupt(progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        house.new().startup(progress=interrupt)
    house.open().shutdown()


def test_delete_stray_and_future_folders(house: House) -> None:
    with house.open() as manager:
        for name in ("gone-0", "moving-0", "odd-0", "kept-0"):
            fill(manager.get_or_create_log(name, log_dir=house.dirs[0], topic_id=TOPIC_ID), 3)
    os.rename(house.dirs[0] / "gone-0", house.dirs[0] / f"gone-0.{'a' * 32}-delete")
    os.rename(house.dirs[0] / "moving-0", house.dirs[0] / f"moving-0.{'b' * 32}-future")
    manager = house.new()
    manager.startup(is_stray=lambda log: log.topic_partition.topic == "odd")
    assert manager.get_log("gone-0") is None
    assert manager.get_log("moving-0") is None
    future = manager.get_log("moving-0", is_future=True)
    assert future is not None
    assert future.is_future
    assert manager.get_log("odd-0") is None
    assert [name.partition(".")[0] for name in house.folders(0)] == ["gone-0", "kept-0", "moving-0", "odd-0"]
    assert house.folders(0)[3].endswith("-stray")
    house.advance(2 * MINUTE_MS)
    assert [name.partition(".")[0] for name in house.folders(0)] == ["kept-0", "moving-0", "odd-0"]
    manager.shutdown()
    with house.open() as manager:
        assert len(manager.all_logs()) == 2


def test_two_folders_of_one_partition_are_refused_by_name(house: House) -> None:
    with house.open(dirs=house.dirs[0]) as manager:
        fill(manager.get_or_create_log("t-0"), 3)
    with house.open(dirs=house.dirs[1]) as manager:
        fill(manager.get_or_create_log("t-0"), 2)
    with pytest.raises(IllegalStateException, match=r"Duplicate log directories for t-0 .*/t-0 and .*/t-0"):
        house.open()
    with pytest.raises(IllegalStateException, match=r"Duplicate log directories for t-0 .*/t-0 and .*/t-0"):
        house.open(kind=KafkasManager)


def test_of_two_folders_one_that_was_never_written_to_gives_way(house: House) -> None:
    """A disk that failed when the directory was created there has it when it is back; the partition was created
    elsewhere."""
    with house.open(dirs=house.dirs[0]) as manager:
        manager.get_or_create_log("t-0")
        manager.get_or_create_log("u-0", topic_id=TOPIC_ID)
    with house.open(dirs=house.dirs[1]) as manager:
        fill(manager.get_or_create_log("t-0"), 3)
        manager.get_or_create_log("u-0")
    with pytest.raises(IllegalStateException, match="Duplicate log directories"):
        house.open(kind=KafkasManager)
    with house.open() as manager:
        found, unused = manager.get_log("t-0"), manager.get_log("u-0")
        assert found is not None
        assert unused is not None
        assert contents(found) == numbered(0, 3)
        assert found.parent_dir == str(house.dirs[1])
        assert unused.topic_id == TOPIC_ID
    assert sorted(name for number in range(3) for name in house.folders(number) if "-delete" not in name) == [
        "t-0",
        "u-0",
    ]


def test_recovery_waits_for_the_disk_with_more_threads_than_a_clean_start(house: House) -> None:
    """Four for each of Kafka's; one stays one, and goes in order."""
    first = house.open(dirs=house.dirs[0])
    for number in range(8):
        fill(first.get_or_create_log(f"t-{number}"), 1)
    house.crash(first)
    together = threading.Barrier(8)  # broken unless eight load side by side

    def nobodys(log: UnifiedLog) -> bool:
        together.wait(60)
        return False

    recovering = house.new(dirs=house.dirs[0])
    recovering.startup(nobodys)
    recovering.shutdown()
    for recovery_threads, marker in ((2, True), (1, True), (1, False)):
        names: set[str] = set()

        def tells(log: UnifiedLog, names: set[str] = names) -> bool:
            names.add(threading.current_thread().name)
            return False

        manager = house.new(dirs=house.dirs[0], settings=SETTINGS._replace(recovery_threads=recovery_threads))
        if not marker:
            (house.dirs[0] / ".kafka_cleanshutdown").unlink()
        manager.startup(tells)
        assert names <= {f"log-recovery-{house.dirs[0]}-{number}" for number in range(recovery_threads)}
        manager.shutdown()


# --- logs ------------------------------------------------------------------------------------------------


def test_another_topics_id_is_refused(house: House) -> None:
    with house.open() as manager:
        log = manager.get_or_create_log("t-0", topic_id=TOPIC_ID)
        assert manager.get_or_create_log("t-0", topic_id=TOPIC_ID) is log
        with pytest.raises(InconsistentTopicIdException, match=f"Tried to assign topic ID {OTHER_ID}"):
            manager.get_or_create_log("t-0", topic_id=OTHER_ID)


@pytest.mark.parametrize("name", ["t", "t-", "-0", "t-x", 5, ("t", "0"), None, "a b-0", "x/y-0"])
def test_what_names_no_partition_is_refused(house: House, name: Any) -> None:
    with house.open() as manager, pytest.raises(InvalidTopicException):
        manager.get_or_create_log(name)
    assert house.folders(0) == []


def test_deletion_is_a_rename_and_the_files_go_later(house: House) -> None:
    with house.open() as manager:
        log = manager.get_or_create_log("t-0")
        fill(log, 5)
        assert manager.async_delete("t-0") is log
        assert manager.async_delete("t-0") is None
        with pytest.raises(KafkaStorageException, match=r"already closed"):
            fill(log, 1)
        assert house.folders(0)[0].startswith("t-0.")
        assert house.folders(0)[0].endswith("-delete")
        again = manager.get_or_create_log("t-0")
        assert again.log_end_offset == 0
        house.advance(31_000)
        assert len(house.folders(0)) + len(house.folders(1)) == 2
        house.advance(MINUTE_MS)
        assert house.folders(0) == ["t-0"]


def test_many_are_deleted_with_one_checkpoint_a_directory(house: House) -> None:
    with house.open() as manager:
        for number in range(9):
            fill(manager.get_or_create_log(f"t-{number}"), 2)
        manager.checkpoint_recovery_points()
        manager.async_delete_all([TopicPartition("t", number) for number in range(8)])
        lines = [OffsetCheckpointFile(str(each / "recovery-point-offset-checkpoint")).read() for each in house.dirs]
        assert lines == [{}, {}, {TopicPartition("t", 8): 0}]


def test_retention_checkpoints_and_flushes_run_by_themselves(house: House) -> None:
    house.settings = SETTINGS._replace(flush_check_ms=1_000)
    configs = FixedTopicConfigs({"short": {"retention.ms": "1000"}, "flushed": {"flush.ms": "500"}})
    with house.open(topic_configs=configs) as manager:
        short = manager.get_or_create_log("short-0", log_dir=house.dirs[0])
        flushed = manager.get_or_create_log("flushed-0", log_dir=house.dirs[0])
        for log in (short, flushed):
            fill(log, 30)
        house.scheduler.tick()
        before = flushed.recovery_point
        assert short.log_start_offset == 0
        house.advance(31_000)
        assert flushed.recovery_point == 30 > before
        assert short.log_start_offset == 30
        lines = OffsetCheckpointFile(str(house.dirs[0] / "recovery-point-offset-checkpoint")).read()
        assert lines[TopicPartition("flushed", 0)] in (30, before)
        house.advance(MINUTE_MS)
        lines = OffsetCheckpointFile(str(house.dirs[0] / "recovery-point-offset-checkpoint")).read()
        assert lines[TopicPartition("flushed", 0)] == 30


def test_a_truncation_that_a_move_and_the_deletion_behind_it_overtake(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given the log that is no more, and takes the one in its place."""
    with house.open() as manager:
        stale = manager.get_or_create_log("t-0", log_dir=house.dirs[0])
        fill(stale, 30)
        manager.move("t-0", house.dirs[1])
        house.advance(2 * MINUTE_MS)
        assert stale.local_log.segments.last_segment is None
        given, get_log = [stale], manager.get_log
        monkeypatch.setattr(manager, "get_log", lambda *args, **more: given.pop() if given else get_log(*args, **more))
        manager.truncate_to({TopicPartition("t", 0): 11})
        assert not given
        moved = get_log("t-0")
        assert moved is not None
        assert moved.log_end_offset == 11


def test_truncation_lowers_the_recovery_point_on_disk(house: House) -> None:
    with house.open() as manager:
        log = manager.get_or_create_log("t-0")
        fill(log, 30)
        log.flush(False)
        manager.checkpoint_recovery_points()
        manager.truncate_to({TopicPartition("t", 0): 11, TopicPartition("none", 0): 3})
        path = str(house.dirs[0] / "recovery-point-offset-checkpoint")
        assert OffsetCheckpointFile(path).read() == {TopicPartition("t", 0): 11}
        manager.truncate_fully_and_start_at("t-0", 100)
        assert (log.log_start_offset, log.log_end_offset) == (100, 100)
        assert OffsetCheckpointFile(path).read() == {TopicPartition("t", 0): log.recovery_point}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("recovery_threads", 0),
        ("recovery_threads", -1),
        ("recovery_threads", 1.5),
        ("retention_check_ms", 0),
        ("maintenance", "no"),
        ("recovery_checkpoint_ms", -1),
        ("start_checkpoint_ms", -1),
        ("initial_task_delay_ms", -1),
        ("flush_check_ms", None),
        ("high_watermark_checkpoint_ms", "5"),
        ("default_config", {}),
        ("producers", None),
    ],
)
def test_settings_are_in_kafkas_ranges(house: House, name: str, value: object) -> None:
    with pytest.raises(IllegalArgumentException, match=f"ManagerSettings.{name}: found "):
        house.new(settings=SETTINGS._replace(**{name: value}))
    with pytest.raises(IllegalArgumentException, match="settings: found dict"):
        house.new(settings={name: value})
    assert not house.dirs[0].exists()


def test_checkpoints_of_logs_that_were_never_loaded_stay(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    with house.open() as manager:
        log = manager.get_or_create_log("t-0", log_dir=house.dirs[0])
        fill(log, 30)
        log.maybe_increment_log_start_offset(7, LogStartOffsetIncrementReason.CLIENT_RECORD_DELETION)
    before = {path: path.read_bytes() for path in house.dirs[0].glob("*checkpoint")}
    monkeypatch.setattr(Jobs, "run", lambda own, prefix, jobs, threads: {path: [] for path in jobs})
    monkeypatch.setattr(Start, "_judge_load", lambda *each: None)
    house.open().shutdown()
    assert {path: path.read_bytes() for path in house.dirs[0].glob("*checkpoint")} == before
    assert not CleanShutdownFile(str(house.dirs[0])).exists()


# --- configuration ---------------------------------------------------------------------------------------


def test_overrides_are_kept_beside_the_data(house: House) -> None:
    with house.open() as manager:
        log = manager.get_or_create_log("t-0")
        manager.set_topic_config("t", {"retention.ms": "5000"})
        assert log.config.retention_ms == 5000
        with pytest.raises(InvalidConfigurationException, match=r"Unknown topic config name: retention.mss"):
            manager.set_topic_config("t", {"retention.mss": "1"})
    (house.dirs[0] / ".kafkalog_topics").write_text("{ torn")
    with house.open() as manager:  # two other directories have it
        log = manager.get_or_create_log("t-0")
        assert log.config.retention_ms == 5000
        manager.set_topic_config("t", {})
        assert log.config.retention_ms == -1
        assert isinstance(manager.topic_configs, StoredTopicConfigs)
        assert manager.topic_configs.topics == {}
    for each in house.dirs:
        (each / ".kafkalog_topics").write_text("{ torn")
    with pytest.raises(CorruptCheckpointException, match="expected JSON with version, revision and topics"):
        house.open()


def test_a_log_that_is_opened_alone_has_the_kept_overrides(house: House) -> None:
    with house.open() as manager:
        manager.set_topic_config("t", {"retention.ms": "5000"})
    with kafkalog.open_log(house.dirs[1], "t-0") as log:
        assert log.engine.config.retention_ms == 5000
    with kafkalog.open_log(house.dirs[1], "t-0", config={"segment.ms": "7"}) as log:  # overrides these
        assert (log.engine.config.retention_ms, log.engine.config.segment_ms) == (5000, 7)
    with kafkalog.open_log(house.dirs[1], "t-0", config=LogConfig.from_props(None, {})) as log:  # is all of them
        assert log.engine.config.retention_ms == 604_800_000
    with kafkalog.open_log(house.dirs[1], "u-0") as log:
        assert log.engine.config.retention_ms == 604_800_000


def test_a_change_that_races_with_loading_counts(house: House) -> None:
    """KAFKA-8813."""

    class Late:
        manager: LogManager | None = None
        overridden: dict[str, str] = {}

        def overrides(self, topic: str) -> dict[str, str]:
            found = dict(self.overridden)
            if self.manager is not None and not found:
                self.overridden = {"retention.ms": "77"}
                self.manager.update_topic_config("t", self.overridden)  # the log is in no map yet
            return found

    configs = Late()
    with house.open(topic_configs=configs) as manager:
        configs.manager = manager
        assert manager.get_or_create_log("t-0").config.retention_ms == 77


# --- moves -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "while it copies"])
def test_a_topic_id_that_comes_behind_the_copys_beginning_moves_too(house: House, when: str) -> None:
    with house.open() as manager:
        log = manager.get_or_create_log("t-0", log_dir=house.dirs[0])
        fill(log, 40)
        if when == "before":
            manager.get_or_create_log("t-0", is_future=True, is_new=True, log_dir=house.dirs[1])
            log.assign_topic_id(TOPIC_ID)
            manager.move("t-0", house.dirs[1])
        else:
            patch = pytest.MonkeyPatch()
            patch.setattr(moves, "SWITCH_BYTES", 0)
            manager.move("t-0", house.dirs[1], progress=lambda progress: log.assign_topic_id(TOPIC_ID))
            patch.undo()
        moved = manager.get_log("t-0")
        assert moved is not None
        assert moved.topic_id == TOPIC_ID
        written = (house.dirs[1] / "t-0" / "partition.metadata").read_text()  # before the old directory may be deleted
        assert written.endswith(f"topic_id: {TOPIC_ID}")
        manager.abandon()
    with house.open() as manager:
        moved = manager.get_log("t-0")
        assert moved is not None
        assert moved.topic_id == TOPIC_ID


def test_a_partition_moves(house: House) -> None:
    with house.open() as manager:
        log = manager.get_or_create_log("t-0", topic_id=TOPIC_ID)
        fill(log, 40)
        log.delete_records(13)
        before = contents(log)
        moved = manager.move("t-0", house.dirs[2])
        assert manager.get_log("t-0") is moved
        assert manager.get_log("t-0", is_future=True) is None
        assert moved.dir == str(house.dirs[2] / "t-0")
        assert contents(moved) == before == contents(log) == numbered(13, 40)
        assert moved.topic_id == TOPIC_ID
        assert moved.high_watermark == 40
        with pytest.raises(KafkaStorageException):
            fill(log, 1)
        fill(moved, 5)
        assert [len(house.folders(number)) for number in range(3)] == [1, 0, 1]
        house.advance(2 * MINUTE_MS)
        assert [len(house.folders(number)) for number in range(3)] == [0, 0, 1]
        assert manager.move("t-0", house.dirs[2]) is moved
        assert not any(name.endswith("_move") for name in os.listdir(house.dirs[2]))
        with pytest.raises(UnknownTopicOrPartitionException, match="no partition t-7"):
            manager.move("t-7", house.dirs[0])
        with pytest.raises(LogDirNotFoundException):
            manager.move("t-0", "/nowhere")
    with house.open() as manager:
        log = manager.get_log("t-0")  # type: ignore[assignment]
        assert contents(log) == numbered(13, 45)


def test_a_move_that_was_cut_short_goes_on(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = house.open()
    log = manager.get_or_create_log("t-0", topic_id=TOPIC_ID)
    fill(log, 40)
    copied = 0

    def stop(self: UnifiedLog, records: bytes, epoch: int) -> object:
        nonlocal copied
        copied += 1
        if copied == 5:
            raise KeyboardInterrupt
        return follower(self, records, epoch)

    follower = UnifiedLog.append_as_follower
    monkeypatch.setattr("kafkalog.engine.host.moves.COPY_BYTES", 200)
    monkeypatch.setattr(UnifiedLog, "append_as_follower", stop)
    with pytest.raises(KeyboardInterrupt):
        manager.move("t-0", house.dirs[1])
    monkeypatch.setattr(UnifiedLog, "append_as_follower", follower)
    house.crash(manager)
    manager = house.open()
    future = manager.get_log("t-0", is_future=True)
    assert future is not None
    reached = future.log_end_offset
    assert 0 < reached < 40
    truncated: list[int] = []
    monkeypatch.setattr(UnifiedLog, "truncate_fully_and_start_at", lambda self, *at: truncated.append(at[0]))
    moved = manager.move("t-0", house.dirs[1])
    assert truncated == []  # it continued where it was
    assert contents(moved) == numbered(0, 40)
    manager.shutdown()


def test_a_future_log_of_something_else_is_copied_anew(house: House) -> None:
    with house.open() as manager:
        log = manager.get_or_create_log("t-0", topic_id=TOPIC_ID)
        fill(log, 40)
        future = manager.get_or_create_log("t-0", is_future=True, topic_id=TOPIC_ID, log_dir=house.dirs[1])
        future.append_as_follower(batch(1, value=b"other", epoch=0), 0)
        assert contents(manager.move("t-0", house.dirs[1])) == numbered(0, 40)


@pytest.mark.parametrize("turn", range(4))
def test_retention_beside_a_move_that_goes_on(house: House, monkeypatch: pytest.MonkeyPatch, turn: int) -> None:
    """Segments go while the copy is compared with the log, or copied on."""
    with house.open() as manager:
        log = manager.get_or_create_log("t-0", topic_id=TOPIC_ID)
        for _ in range(10):
            fill(log, 4)
            log.roll()
        future = manager.get_or_create_log("t-0", is_future=True, topic_id=TOPIC_ID, log_dir=house.dirs[1])
        for piece in read_all(log)[:5]:
            future.append_as_follower(piece, 0)
        reads = 0
        read = UnifiedLog.read

        def late(self: UnifiedLog, *given: Any) -> Any:
            nonlocal reads
            if self is log:
                reads += 1
                if reads == turn:
                    log.delete_records(log.log_start_offset + 8)
                    log.delete_old_segments()
            return read(self, *given)

        monkeypatch.setattr(UnifiedLog, "read", late)
        moved = manager.move("t-0", house.dirs[1])
        monkeypatch.undo()
        assert contents(moved) == numbered(8 if 0 < turn <= reads else 0, 40)


def read_all(log: UnifiedLog) -> list[bytes]:
    """A log's segments."""
    return [Path(segment.log.path).read_bytes() for segment in log.log_segments()]


def test_a_truncation_during_a_move_is_followed(house: House) -> None:
    with house.open() as manager:
        log = manager.get_or_create_log("t-0")
        fill(log, 3_000)

        def cut(progress: object) -> None:
            if log.log_end_offset == 3_000:
                log.truncate_to(7)
                fill(log, 10)

        from kafkalog.engine.host import moves

        old = moves.SWITCH_BYTES, moves.COPY_BYTES
        moves.SWITCH_BYTES, moves.COPY_BYTES = 0, 4096
        try:
            assert contents(manager.move("t-0", house.dirs[1], cut)) == numbered(0, 17)
        finally:
            moves.SWITCH_BYTES, moves.COPY_BYTES = old


def test_a_crash_between_the_two_renames_is_mended(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = house.open()
    log = manager.get_or_create_log("t-0")
    fill(log, 40)
    renamed = UnifiedLog.rename_dir

    def die(self: UnifiedLog, name: str, reinit: bool) -> None:
        if name.endswith("-delete"):
            raise KeyboardInterrupt
        renamed(self, name, reinit)

    monkeypatch.setattr(UnifiedLog, "rename_dir", die)
    with pytest.raises(KeyboardInterrupt):
        manager.move("t-0", house.dirs[1])
    monkeypatch.setattr(UnifiedLog, "rename_dir", renamed)
    house.crash(manager)
    assert (house.folders(0), house.folders(1)) == (["t-0"], ["t-0"])
    with pytest.raises(IllegalStateException, match="Duplicate log directories for t-0"):
        house.open(kind=KafkasManager)  # Kafka knows no notes
    with house.open() as manager:
        found = manager.get_log("t-0")
        assert found is not None
        assert found.parent_dir == str(house.dirs[1])
        assert contents(found) == numbered(0, 40)
        assert house.folders(0)[0].endswith("-delete")
        assert not any(name.endswith("_move") for name in os.listdir(house.dirs[1]))


@pytest.mark.slow
def test_a_partition_moves_while_it_is_written_and_read(tmp_path: Path) -> None:
    """Every acknowledged record is read, in order, whichever of the two logs took it."""
    roomy = LogConfig.from_props(None, {"internal.segment.bytes": "100000", "retention.ms": "-1"})
    with LogManager([tmp_path / "a", tmp_path / "b"], SETTINGS._replace(default_config=roomy)) as manager:
        manager.get_or_create_log("t-0")
        stop = threading.Event()
        acknowledged: list[int] = []
        failures: list[BaseException] = []

        def write() -> None:
            number = 0
            while not stop.is_set():
                log = manager.get_log("t-0")
                assert log is not None
                try:
                    info = log.append_as_leader(batch(1, value=b"%d" % number), 0)
                except KafkaStorageException:
                    continue  # it has moved: ask again
                assert info.first_offset == number
                acknowledged.append(number)
                number += 1

        def read() -> None:
            offset = 0
            while not stop.is_set() or offset < len(acknowledged):
                log = manager.get_log("t-0")
                assert log is not None
                for record in log.read(offset, 65536).records.records():
                    if record.offset >= offset:
                        assert record.value is not None
                        assert (record.offset, bytes(record.value)) == (offset, b"%d" % offset)
                        offset += 1

        def guarded(act: Any) -> None:
            try:
                act()
            except BaseException as error:
                failures.append(error)
                stop.set()

        threads = [threading.Thread(target=guarded, args=(act,)) for act in (write, read, read)]
        for thread in threads:
            thread.start()
        for turn in range(6):
            manager.move("t-0", tmp_path / "ba"[turn % 2])
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]
        assert len(acknowledged) > 6
        log = manager.get_log("t-0")
        assert log is not None
        assert contents(log) == numbered(0, len(acknowledged))
        assert not list(Path(log.dir).glob("*.deleted"))  # a new future log needs no emptying


# --- failure ---------------------------------------------------------------------------------------------


def test_a_directory_that_fails_takes_its_partitions_and_no_others(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    house = House(tmp_path, files)
    manager = house.open()
    logs = [manager.get_or_create_log(f"t-{number}", is_new=True) for number in range(6)]
    for log in logs:
        fill(log, 5)
    disk = str(house.dirs[1]) + os.sep
    files.fault = Fault(0, errno.EIO, sticky=True, paths=lambda path: path.startswith(disk))
    with pytest.raises(KafkaStorageException, match=r"Input/output error"):
        fill(logs[1], 1)
    house.scheduler.tick()
    assert manager.offline_log_dirs == [str(house.dirs[1])]
    assert manager.get_log("t-1") is None
    assert manager.get_log("t-4") is None
    assert not (house.dirs[1] / ".lock").exists()
    for number in (0, 2, 3, 5):
        fill(logs[number], 1)
    manager.shutdown()
    assert [(each / ".kafka_cleanshutdown").exists() for each in house.dirs] == [True, False, True]


def test_the_last_directory_lost_ends_everything(tmp_path: Path) -> None:
    house = House(tmp_path, count=1)
    manager = house.open()
    manager.get_or_create_log("t-0")
    manager.failure_channel.maybe_add_offline_log_dir(str(house.dirs[0]), "x", OSError(errno.EIO, "Input/output error"))
    house.scheduler.tick()
    with pytest.raises(
        NoLiveLogDirException, match=r"all log dirs in .*disk0 have failed .*Input/output error"
    ) as caught:
        manager.get_log("t-0")
    assert caught.value.errno == errno.EIO
    manager.shutdown()
    assert not (house.dirs[0] / ".kafka_cleanshutdown").exists()


def test_one_broken_partition_takes_its_directory_offline_and_the_message_says_why(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    with house.open() as manager:
        for number in range(3):
            fill(manager.get_or_create_log(f"t-{number}"), 3)
    os.unlink(house.dirs[1] / "t-1" / f"{0:020d}.log")
    os.mkdir(house.dirs[1] / "t-1" / "leader-epoch-checkpoint.tmp")
    os.unlink(house.dirs[1] / "t-1" / "leader-epoch-checkpoint")
    os.mkdir(house.dirs[1] / "t-1" / "leader-epoch-checkpoint")
    with house.open() as manager:
        assert manager.offline_log_dirs == [str(house.dirs[1])]
        assert manager.get_log("t-0") is not None
        assert "[partition=t-1, dir=" in caplog.text
        assert "the directory is offline, because this load failed" in caplog.text


# --- metrics ---------------------------------------------------------------------------------------------


def test_metrics_have_kafkas_names(house: House) -> None:
    house.dirs[2].write_text("")
    with house.open() as manager:
        manager.get_or_create_log("t-0", is_new=True)
        manager.directories.cordon([str(house.dirs[1])])
        shown = manager.metrics.as_jmx()
        of = "kafka.log:type=LogManager,name="
        assert shown[f"{of}OfflineLogDirectoryCount"] == 1
        assert shown[f"{of}CordonedLogDirectoryCount"] == 1
        values = [
            [shown[f'{of}{name},logDirectory="{each}"'] for each in house.dirs]
            for name in ("LogDirectoryOffline", "LogDirectoryCordoned")
        ]
        assert values == [[0, 0, 1], [0, 1, 0]]
        assert shown["kafka.log:type=Log,name=NumLogSegments,topic=t,partition=0"] == 1
        assert not any("remaining" in name for name in shown)
    assert not any("LogManager" in name or "type=Log," in name for name in manager.metrics.as_jmx())


def test_a_start_shows_what_is_left(house: House) -> None:
    manager = house.open()
    fill(manager.get_or_create_log("t-0", log_dir=house.dirs[0]), 30)
    house.crash(manager)
    seen: list[dict[str, Any]] = []
    manager = house.new()
    manager.startup(progress=lambda progress: seen.append(manager.metrics.as_jmx()))
    logs = f'kafka.log:type=LogManager,name=remainingLogsToRecover,dir="{house.dirs[0]}"'
    segments = f'kafka.log:type=LogManager,name=remainingSegmentsToRecover,dir="{house.dirs[0]}",threadNum=0'
    assert [each[logs] for each in seen][-1] == 0
    assert max(each[segments] for each in seen) > 3
    assert seen[0][logs] == 1
    manager.shutdown()


# --- forks -----------------------------------------------------------------------------------------------


def test_a_log_whose_making_was_interrupted_has_no_tasks_left(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write the topic's id into a directory that has another name by then: that counts as a disk's failure."""
    manager = house.open()
    with monkeypatch.context() as patch:

        def interrupted(log: UnifiedLog) -> None:
            raise KeyboardInterrupt

        patch.setattr(UnifiedLog, "new_metrics", interrupted)
        with pytest.raises(KeyboardInterrupt):
            manager.get_or_create_log("t-0", topic_id=TOPIC_ID)
    assert manager.get_log("t-0") is not None  # it is created again
    manager.async_delete("t-0")
    house.advance(10)
    assert manager.offline_log_dirs == []
    assert manager.failure_channel.offline_log_dirs == []
    manager.shutdown()


@pytest.mark.parametrize("delay_ms", [0, 1000])
@pytest.mark.parametrize("after_ms", [0, 45_000])
def test_a_deleted_log_goes_when_its_time_has_come(house: House, delay_ms: int, after_ms: int) -> None:
    """Before or after the first pass of kafka-delete-logs, 30 seconds after the start."""
    overrides = {**SMALL, "segment.jitter.ms": "0", "file.delete.delay.ms": str(delay_ms)}
    with house.open(settings=SETTINGS._replace(default_config=LogConfig.from_props(None, overrides))) as manager:
        for number in range(3):
            fill(manager.get_or_create_log(f"t-{number}"), 3)
        house.advance(after_ms)
        here = manager.get_log("t-0")
        assert here is not None
        manager.move("t-0", next(each for each in house.dirs if str(each) != here.parent_dir))
        manager.async_delete("t-1")
        manager.async_delete_all([TopicPartition("t", 2)])
        if delay_ms:
            house.advance(delay_ms - 1)
            assert sum(name.endswith("-delete") for number in range(3) for name in house.folders(number)) == 3
            house.advance(1)
        else:
            house.advance(0)
        assert [name for number in range(3) for name in house.folders(number)] == ["t-0"]
