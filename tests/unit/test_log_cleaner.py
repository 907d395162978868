"""LogCleaner and its threads: one run, its failures, the lifetime of the pool, settings and metrics."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kafkalog.config import CleanerConfig
from kafkalog.engine.cleaner import cleaner_thread, log_cleaner_manager
from kafkalog.engine.cleaner.cleaner import Cleaner
from kafkalog.engine.cleaner.cleaner_thread import READ_BYTES, CleanerThread, cleaner_settings, map_bytes
from kafkalog.engine.cleaner.log_cleaner import LogCleaner
from kafkalog.engine.files import SYSTEM_CLOCK
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import (
    ConfigException,
    IllegalStateException,
    KafkaStorageException,
    LogCleaningAbortedException,
    TooManyOpenFilesException,
)
from kafkalog.metrics.registry import MetricsRegistry
from tests.unit.cleaner_kit import latest, rows
from tests.unit.cleaning_kit import Yard, fill, raising

CONFIG = CleanerConfig.for_tests()
QUICK = replace(CONFIG, backoff_ms=5)
T = TopicPartition("t", 0)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path)
    yield made
    made.close()


class Pool:
    """A LogCleaner over a yard."""

    def __init__(self, yard: Yard, config: CleanerConfig = QUICK) -> None:
        self.metrics = MetricsRegistry()
        self.cleaner = LogCleaner(config, yard.directories, yard.registry, yard.channel, SYSTEM_CLOCK, self.metrics)

    def shown(self, name: str) -> object:
        return self.metrics.as_jmx().get(f"kafka.log:type={name}")


@pytest.fixture
def pool(yard: Yard) -> Iterator[Pool]:
    made = Pool(yard)
    yield made
    made.cleaner.shutdown()


# --- a turn --------------------------------------------------------------------------------------------


def test_a_turn_cleans_one_log_and_notes_it(yard: Yard) -> None:
    log, other = yard.filled("t-0"), yard.filled("u-0", records=30)
    before = latest(rows(log))
    thread = yard.thread()
    assert thread.clean_filthiest_log()
    assert thread.last_stats is not None
    assert len(yard.manager.all_cleaner_checkpoints()) == 1
    assert thread.clean_filthiest_log()
    assert not thread.clean_filthiest_log()
    assert sorted(yard.lines()) == ["t 0 60", "u 0 30"]
    assert (len(rows(log)), len(rows(other))) == (3, 3)
    assert latest(rows(log)) == before
    assert yard.manager.cleaning_state(T) is None


def test_compact_and_delete_goes_by_age_too(yard: Yard) -> None:
    log = yard.filled("t-0", cleanup_policy="compact,delete", retention_ms="1000", min_cleanable_dirty_ratio="1")
    yard.clock.advance(5000)
    assert not yard.thread().clean_filthiest_log()
    assert log.log_start_offset == 60
    assert yard.manager.cleaning_state(T) is None


def test_damage_marks_the_partition_and_the_others_go_on(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    bad, good = yard.filled("t-0"), yard.filled("u-0", records=20)
    path = str(bad.log_segments()[1].log.path)
    with open(path, "r+b") as file:
        file.seek(8)
        file.write(b"\x00\x00\x00\x01")  # a size that no batch has
    before = rows(good)
    thread = yard.thread()
    assert not thread.clean_filthiest_log()
    (why,) = yard.manager.uncleanable_partitions(yard.dirs[0])
    assert why.partition == T
    assert why.path == path
    assert why.position == 0
    assert "[partition=t-0, dir=" in caplog.text
    assert os.path.basename(path) in caplog.text
    assert thread.clean_filthiest_log()
    assert len(rows(good)) < len(before)
    assert not thread.clean_filthiest_log()
    assert sorted(yard.lines()) == ["t 0 0", "u 0 20"]
    assert yard.channel.offline_log_dirs == []


def test_old_segments_wait_for_the_turn_after_damage(yard: Yard) -> None:
    bad = yard.filled("t-0")
    old = yard.filled("u-0", cleanup_policy="compact,delete", retention_bytes="1", min_cleanable_dirty_ratio="1")
    with open(bad.log_segments()[1].log.path, "r+b") as file:
        file.seek(8)
        file.write(b"\x00\x00\x00\x01")
    before = old.log_start_offset
    thread = yard.thread()
    assert not thread.clean_filthiest_log()
    assert yard.manager.uncleanable_partitions()
    assert old.log_start_offset == before
    assert not thread.clean_filthiest_log()
    assert old.log_start_offset > before


@pytest.mark.parametrize(
    ("error", "offline", "marked"),
    [
        (OSError(5, "refused"), True, False),
        (KafkaStorageException("offline already"), False, False),
        (LogCleaningAbortedException("enough"), False, False),
        (TooManyOpenFilesException("for now"), False, False),
        (ValueError("a bug"), False, True),
    ],
)
def test_what_a_pass_raises(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, error: Exception, offline: bool, marked: bool
) -> None:
    yard.filled("t-0")
    monkeypatch.setattr(Cleaner, "clean", raising(error))
    assert not yard.thread().clean_filthiest_log()
    assert bool(yard.channel.offline_log_dirs) is offline
    assert bool(yard.manager.uncleanable_partitions()) is marked
    assert yard.manager.cleaning_state(T) is None
    assert yard.lines() == ([] if offline else ["t 0 0"])  # as Kafka, even without a result


def test_what_deletion_raises_marks_the_partition(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    log = yard.filled("t-0", min_cleanable_dirty_ratio="1")
    yard.filled("u-0", min_cleanable_dirty_ratio="1")
    monkeypatch.setattr(type(log), "delete_old_segments", raising(ValueError("a bug")))
    assert not yard.thread().clean_filthiest_log()
    assert {str(why.partition) for why in yard.manager.uncleanable_partitions()} == {"t-0", "u-0"}
    assert yard.manager.cleaning_state(T) is None


def test_no_open_file_left_marks_nothing(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when it is checked, nor when its old segments are deleted."""
    log = yard.filled("t-0")
    full = raising(TooManyOpenFilesException("for now"))
    monkeypatch.setattr(log_cleaner_manager, "cleanable_offsets", full)
    monkeypatch.setattr(type(log), "delete_old_segments", full)
    assert not yard.thread().clean_filthiest_log()
    assert yard.manager.uncleanable_partitions() == []
    monkeypatch.undo()
    assert yard.thread().clean_filthiest_log()


def test_a_name_that_no_line_can_hold_is_cleaned_once(yard: Yard) -> None:
    """And does not keep the thread from what is less filthy."""
    odd, good = yard.filled("a b-0", records=90), yard.filled("t-0")
    thread = yard.thread()
    turns = 0
    while thread.clean_filthiest_log():
        turns += 1
        assert turns < 5
    assert yard.manager.all_cleaner_checkpoints() == {odd.topic_partition: 90, good.topic_partition: 60}
    assert yard.lines() == ["t 0 60"]
    odd.truncate_to(30)
    yard.manager.maybe_truncate_checkpoint(odd.parent_dir, odd.topic_partition, 30)
    assert yard.manager.first_dirty_offset(odd) == 30
    yard.registry.remove(odd)
    yard.manager.update_checkpoints(odd.parent_dir)
    assert yard.manager.all_cleaner_checkpoints() == {good.topic_partition: 60}


def test_no_memory_is_not_the_logs_fault(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    yard.filled("t-0")
    monkeypatch.setattr(cleaner_thread, "SkimpyOffsetMap", raising(MemoryError()))
    with pytest.raises(MemoryError):
        yard.thread().clean_filthiest_log()
    assert yard.manager.uncleanable_partitions() == []
    assert yard.manager.cleaning_state(T) is None


def test_who_is_told_to_stop_stops_in_the_middle(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    log = yard.filled("t-0")
    thread = yard.thread()
    read, reads = Cleaner._read, []

    def stop(*args: object) -> object:
        reads.append(1)
        if len(reads) == 12:
            thread.stop()
        return read(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Cleaner, "_read", stop)
    with pytest.raises(cleaner_thread.ThreadShutdownException):
        thread.clean_filthiest_log()
    assert yard.manager.cleaning_state(T) is None
    assert yard.lines() == ["t 0 0"]
    assert not [name for name in os.listdir(log.dir) if name.endswith(".cleaned")]


def test_a_throttled_pass_ends_for_who_wants_the_log(yard: Yard) -> None:
    yard.filled("t-0")
    clock = type(yard.clock)(0)
    thread = yard.thread(replace(CONFIG, max_io_bytes_per_second=0.001), clock=clock)
    clock.advance(1000)  # so that the first read is too much
    worker = threading.Thread(target=thread.clean_filthiest_log)
    worker.start()
    while yard.manager.cleaning_state(T) is None:
        time.sleep(0.001)
    yard.manager.abort_and_pause_cleaning(T)
    yard.manager.resume_cleaning([T])
    thread.stop()
    worker.join(30)
    assert not worker.is_alive()


# --- the pool --------------------------------------------------------------------------------------------


def test_a_pool_cleans_until_it_is_shut_down(yard: Yard, pool: Pool) -> None:
    log = yard.filled("t-0")
    pool.cleaner.startup()
    with pytest.raises(IllegalStateException, match="already been started"):
        pool.cleaner.startup()
    assert pool.cleaner.await_cleaned(T, 60, 30_000)
    assert "kafka-log-cleaner-thread-0" in {thread.name for thread in threading.enumerate()}
    fill(log, 30, start=60)
    log.roll()
    assert pool.cleaner.await_cleaned(T, 90, 30_000)
    assert not pool.cleaner.await_cleaned(T, 91, 10)
    pool.cleaner.shutdown()
    pool.cleaner.shutdown()
    assert not [each for each in threading.enumerate() if each.name.startswith("kafka-log-cleaner")]
    with pytest.raises(IllegalStateException, match="was shut down"):
        pool.cleaner.startup()


def test_a_thread_that_dies_is_counted(yard: Yard, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    yard.filled("t-0")
    with monkeypatch.context() as patch:
        patch.setattr(Cleaner, "clean", raising(MemoryError()))
        pool.cleaner.startup()
        for thread in pool.cleaner.threads:
            thread.wait()
    assert pool.shown("LogCleaner,name=DeadThreadCount") == 1
    assert pool.cleaner.dead_thread_count == 1
    assert pool.cleaner.manager.cleaning_state(T) is None
    pool.cleaner.reconfigure(QUICK)
    assert pool.cleaner.dead_thread_count == 0
    assert pool.cleaner.await_cleaned(T, 60, 30_000)


@pytest.mark.parametrize(("current", "wanted"), [(4, 2), (4, 8), (5, 2), (1, 2), (1, 1)])
def test_threads_may_halve_and_double(yard: Yard, current: int, wanted: int) -> None:
    pool = Pool(yard, replace(QUICK, num_threads=current))
    pool.cleaner.startup()
    pool.cleaner.reconfigure(replace(QUICK, num_threads=wanted, max_io_bytes_per_second=5.0))
    assert [thread.name for thread in pool.cleaner.threads] == [
        f"kafka-log-cleaner-thread-{number}" for number in range(wanted)
    ]
    assert pool.cleaner.throttler.desired_rate_per_sec == 5.0
    pool.cleaner.shutdown()


@pytest.mark.parametrize(
    ("current", "wanted", "message"),
    [
        (1, 0, "Log cleaner threads should be at least 1"),
        (4, 1, "Log cleaner threads cannot be reduced to less than half the current value 4"),
        (6, 2, "Log cleaner threads cannot be reduced to less than half the current value 6"),
        (2, 5, "Log cleaner threads cannot be increased to more than double the current value 2"),
    ],
)
def test_more_than_that_is_refused(yard: Yard, current: int, wanted: int, message: str) -> None:
    cleaner = Pool(yard, replace(QUICK, num_threads=current)).cleaner
    with pytest.raises(ConfigException) as refused:
        cleaner.reconfigure(replace(QUICK, num_threads=wanted))
    assert refused.value.message == message
    assert cleaner.config.num_threads == current


def test_what_fails_in_a_reconfiguration_is_told(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool.cleaner.startup()
    first = pool.cleaner.threads
    with monkeypatch.context() as patch:
        patch.setattr(CleanerThread, "wait", raising(RuntimeError("as a test")))
        with pytest.raises(RuntimeError, match="as a test"):
            pool.cleaner.reconfigure(replace(QUICK, num_threads=2))
    assert list(pool.cleaner.threads) == []
    pool.cleaner.reconfigure(replace(QUICK, num_threads=2))  # waits for those of before, too
    assert len(pool.cleaner.threads) == 2
    assert not first[0].failed
    pool.cleaner.shutdown()
    assert not any(thread.is_alive() for thread in threading.enumerate() if thread.name.startswith("kafka-log-clean"))


def test_no_threads_and_too_much_memory_are_told(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    cleaner = Pool(yard, replace(QUICK, num_threads=0)).cleaner
    cleaner.startup()
    assert list(cleaner.threads) == []
    assert "compacted logs are not cleaned" in caplog.text
    cleaner.shutdown()
    big = replace(QUICK, dedupe_buffer_size=1 << 33, num_threads=2)
    cleaner = Pool(yard, big).cleaner
    cleaner.startup()
    cleaner.shutdown()
    assert "Cannot use more than 2G of cleaner buffer space per cleaner thread" in caplog.text
    assert map_bytes(big) == (1 << 31) - 1


def test_memory_is_shared_among_threads() -> None:
    config = replace(CONFIG, num_threads=3, dedupe_buffer_size=10 << 20, io_buffer_size=1_000_001)
    assert map_bytes(config) == (10 << 20) // 3
    small = replace(config, max_message_size=1000)
    assert cleaner_settings(small) == (166_666, 1000, config.dedupe_buffer_load_factor, True)
    assert cleaner_settings(replace(small, io_buffer_size=0)).io_buffer_bytes == 1000
    assert cleaner_settings(replace(small, io_buffer_size=0, max_message_size=0)).io_buffer_bytes == 1
    assert cleaner_settings(config).io_buffer_bytes == READ_BYTES
    assert cleaner_settings(replace(config, io_buffer_size=9 << 20)).io_buffer_bytes == (9 << 20) // 6
    assert cleaner_settings(replace(config, max_message_size=1 << 30)).io_buffer_bytes == READ_BYTES


def test_what_is_shown(yard: Yard, pool: Pool) -> None:
    first = '"' + yard.dirs[0] + '"'
    bad = yard.filled("u-0")
    pool.cleaner.manager.mark_partition_uncleanable(bad, ValueError("bad"))
    assert pool.shown("LogCleaner,name=cleaner-recopy-percent") == 0
    yard.filled("t-0")
    thread = CleanerThread(0, QUICK, pool.cleaner.manager, pool.cleaner.throttler, yard.channel)
    assert thread.clean_filthiest_log()
    pool.cleaner._threads = (thread,)
    assert thread.last_stats is not None
    percent = int(100 * thread.last_stats.bytes_written / thread.last_stats.bytes_read)
    assert 0 < percent < 30
    for name, value in {
        "LogCleaner,name=max-buffer-utilization-percent": 0,
        "LogCleaner,name=cleaner-recopy-percent": percent,
        "LogCleaner,name=max-clean-time-secs": 0,
        "LogCleaner,name=max-compaction-delay-secs": 0,
        "LogCleaner,name=DeadThreadCount": 0,
        f"LogCleanerManager,name=uncleanable-partitions-count,logDirectory={first}": 1,
        "LogCleanerManager,name=max-dirty-percent": 100,
    }.items():
        assert pool.shown(name) == value, name
    dirty = pool.shown(f"LogCleanerManager,name=uncleanable-bytes,logDirectory={first}")
    assert isinstance(dirty, int)
    assert dirty > 3000
    since = pool.shown("LogCleanerManager,name=time-since-last-run-ms")
    assert isinstance(since, int)
    assert pool.metrics.as_jmx()["kafka.utils:type=Throttler,name=cleaner-io"].count > 0  # type: ignore[union-attr]
    pool.cleaner._threads = ()
    pool.cleaner.shutdown()
    assert not [name for name in pool.metrics.as_jmx() if "LogCleaner" in name]


def test_threads_hold_no_more_than_they_need(yard: Yard, pool: Pool) -> None:
    """A LogCleaner that was dropped is collected, though its threads still work."""
    pool.cleaner.startup()
    threads, found = pool.cleaner.threads, weakref.ref(pool.cleaner)
    pool.cleaner, kept = Pool(yard).cleaner, None
    del kept
    gc.collect()
    assert found() is None
    for thread in threads:
        thread.stop()
        thread.wait()


def test_lines_say_what_a_pass_did(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kafkalog")
    yard.filled("t-0", max_compaction_lag_ms="1000")
    yard.clock.advance(5000)
    assert yard.thread().clean_filthiest_log()
    assert "kafka-log-cleaner-thread-0 cleaned the offsets from 0 to 60" in caplog.text
    assert "60 records became 3" in caplog.text
    assert "later than max.compaction.lag.ms: 1" in caplog.text
