"""A manager whose cleaner runs next to everything that a manager does: appends, reads, moves, truncation, deletion,
retention, other policies, other settings of the cleaner, a disk that fails.

Each partition has one writer at a time. Key and value of a record follow from partition, life and number, so that each
record can be checked alone.  At the end nothing is stuck, no thread has died, nothing was marked uncleanable, and each
key of a partition that was only compacted has the value that was acknowledged last.
"""

from __future__ import annotations

import errno
import gc
import random
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from kafkalog.config import CleanerConfig, LogConfig
from kafkalog.engine.cleaner.to_clean import next_to_clean
from kafkalog.engine.files import Files
from kafkalog.engine.files.dropped import wait_for_dropped
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import (
    IllegalStateException,
    KafkaStorageException,
    OffsetOutOfRangeException,
    UnknownTopicOrPartitionException,
)
from kafkalog.toolbox.latest import LatestOptions, latest_records
from kafkalog.toolbox.latest import latest as last_values_of
from tests.crash.managed import FAST
from tests.file_doubles import Fault, FaultyFiles
from tests.live.crew import SECONDS
from tests.live.oracle import no_descriptors_below
from tests.unit.cleaner_kit import keyed, latest, rows
from tests.unit.cleaning_kit import COMPACTED, fill

KEYS = 11
QUICK = replace(CleanerConfig.for_tests(), backoff_ms=2, num_threads=2, io_buffer_size=8000, max_message_size=2000)
POLICIES = {"both": "compact,delete", "kept": "delete"}
FAILED = 2  # the directory whose disk fails


@dataclass
class Partition:
    name: str
    life: int = 0
    state: dict[str, str] = field(default_factory=dict)  # acknowledged, of this life
    written: dict[int, str] = field(default_factory=dict)  # value by offset, of this life
    is_sure: bool = True  # nothing was truncated, or deleted by retention
    writing: threading.RLock = field(default_factory=threading.RLock)

    def begin_again(self) -> None:
        self.life += 1
        self.state, self.written = {}, {}


class Trial:
    def __init__(self, root: Path, files: Files | None = None) -> None:
        self.faulty = FaultyFiles(FAST)
        self.dirs = [str(root / f"disk{number}") for number in range(3)]
        settings = ManagerSettings(
            LogConfig.from_props(None, {**COMPACTED, "internal.segment.bytes": "4000"}),
            cleaner=QUICK, retention_check_ms=50, initial_task_delay_ms=10, recovery_checkpoint_ms=100,
        )  # fmt: skip
        self.manager = LogManager(self.dirs, settings, files=files or self.faulty)
        names = [f"{topic}-{number}" for topic in ("sure", "cut", "both", "kept") for number in range(3)]
        self.partitions = {name: Partition(name, is_sure=name.startswith("sure")) for name in names}
        self.stop = threading.Event()
        self.failures: list[str] = []
        self.counts = dict.fromkeys(("appends", "reads", "last values", "moves", "cuts", "deletions", "settings"), 0)

    def run(self, seconds: float) -> None:
        self.manager.startup()
        for topic, policy in POLICIES.items():
            self.manager.set_topic_config(topic, {"cleanup.policy": policy, "retention.bytes": "20000"})
        for number, name in enumerate(self.partitions):
            self.manager.get_or_create_log(name, is_new=True, log_dir=self.dirs[number % 3])
        works = [self.write, self.write, self.read, self.move, self.cut, self.delete, self.configure]
        if find_spec("pyarrow") is not None:
            works.append(self.last_values)
        else:  # free-threaded Python before 3.14 has no pyarrow
            del self.counts["last values"]
        threads = [threading.Thread(target=self._guarded, args=(work, seed)) for seed, work in enumerate(works)]
        for thread in threads:
            thread.start()
        self.stop.wait(seconds / 2)
        disk = self.dirs[FAILED]
        self.faulty.fault = Fault(0, errno.EIO, kinds=None, paths=lambda path: path.startswith(disk))
        self.stop.wait(seconds / 2)
        self.stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a thread hangs"

    def _guarded(self, work: Callable[[random.Random], object], seed: int) -> None:
        rng = random.Random(seed)
        try:
            while not self.stop.is_set():
                work(rng)
        except BaseException:
            self.failures.append(traceback.format_exc())
            self.stop.set()

    def some(self, rng: random.Random, *topics: str) -> Partition:
        return rng.choice([each for each in self.partitions.values() if each.name.startswith(topics or ("",))])

    def write(self, rng: random.Random) -> None:
        partition = self.some(rng)
        with partition.writing:
            for _ in range(rng.randrange(30)):
                log = self.manager.get_log(partition.name)
                if log is None:
                    return
                number = log.log_end_offset
                key, value = f"k{rng.randrange(KEYS)}", f"{partition.life}.{number}." + "x" * rng.randrange(60)
                try:
                    info = log.append_as_leader(keyed((key, value), codec=rng.choice((0, 0, 3))), 0)
                except KafkaStorageException:
                    continue  # it moves, or its disk has failed
                assert info.first_offset == number
                partition.state[key] = partition.written[number] = value
                self.counts["appends"] += 1
        self.stop.wait(0.001)

    def read(self, rng: random.Random) -> None:
        log = self.manager.get_log(self.some(rng, "sure", "both", "kept").name)  # the others are truncated meanwhile
        if log is None:
            return
        try:
            at, before = log.log_start_offset, -1
            while at < log.log_end_offset:
                found = log.read(at, 3000).records
                batches = found.batches() if found.size else []
                if not batches:
                    break
                for record in found.records():
                    if record.offset >= at:
                        assert record.offset > before
                        before = record.offset
                        assert bytes(record.value or b"").split(b".")[1] == b"%d" % record.offset
                at = batches[-1].next_offset
                self.counts["reads"] += 1
        except (KafkaStorageException, OffsetOutOfRangeException):
            return  # moved, truncated, deleted or failed meanwhile

    def last_values(self, rng: random.Random) -> None:
        """Reads through a view of the directory, which knows nothing of the cleaner."""
        log = self.manager.get_log(self.some(rng, "sure", "both", "kept").name)
        if log is None:
            return
        try:
            with PartitionView(log.parent_dir, log.topic_partition) as view:
                found = list(latest_records(last_values_of(view, LatestOptions()), LatestOptions()))
        except (KafkaStorageException, OffsetOutOfRangeException, UnknownTopicOrPartitionException):
            return  # moved, deleted, failed, or cleaned between its two walks
        assert len({record.key for record in found}) == len(found) <= KEYS
        for record in found:
            assert record.value is not None
            assert record.value.split(b".")[1] == b"%d" % record.offset
        self.counts["last values"] += 1

    def move(self, rng: random.Random) -> None:
        self.stop.wait(0.01)
        try:
            self.manager.move(self.some(rng).name, rng.choice(self.manager.live_log_dirs))
            self.counts["moves"] += 1
        except (KafkaStorageException, IllegalStateException, OffsetOutOfRangeException, LookupError):
            return

    def cut(self, rng: random.Random) -> None:
        self.stop.wait(0.01)
        partition = self.some(rng, "cut")
        with partition.writing:
            log = self.manager.get_log(partition.name)
            if log is None or log.log_end_offset < 10:
                return
            end = log.log_end_offset - rng.randrange(1, log.log_end_offset - log.log_start_offset + 2)
            end = max(end, log.log_start_offset)
            try:
                if rng.random() < 0.2:
                    self.manager.truncate_fully_and_start_at(partition.name, end)
                else:
                    self.manager.truncate_to({log.topic_partition: end})
            except KafkaStorageException:
                return
            partition.written = {offset: value for offset, value in partition.written.items() if offset < end}
            self.counts["cuts"] += 1

    def delete(self, rng: random.Random) -> None:
        self.stop.wait(0.03)
        partition = self.some(rng)
        with partition.writing:
            try:
                if self.manager.async_delete(partition.name) is not None:
                    partition.begin_again()
                    self.manager.get_or_create_log(partition.name, is_new=True)
                    self.counts["deletions"] += 1
            except KafkaStorageException:
                return

    def configure(self, rng: random.Random) -> None:
        self.stop.wait(0.05)
        policy = rng.choice(("compact", "delete", "compact,delete"))
        try:
            self.manager.set_topic_config("kept", {"cleanup.policy": policy, "retention.bytes": "20000"})
        except KafkaStorageException:
            return
        if rng.random() < 0.3:
            config = replace(QUICK, num_threads=rng.choice((2, 3)), max_io_bytes_per_second=rng.choice((1e300, 3e6)))
            self.manager.reconfigure_cleaner(config)
        self.counts["settings"] += 1

    # --- the end ---------------------------------------------------------------------------------------

    def judge(self) -> None:
        manager, cleaner = self.manager, self.manager.cleaner
        assert cleaner is not None
        manager._settle_failures()
        assert manager.offline_log_dirs == [self.dirs[FAILED]]
        assert cleaner.manager.uncleanable_partitions() == []
        assert cleaner.dead_thread_count == 0
        manager.set_topic_config("kept", {})
        for partition in self.partitions.values():
            log = manager.get_log(partition.name)
            if log is not None:
                log.roll()
                self.wait_until_it_is_clean(log)
                self.judge_contents(partition, log)
        until = time.monotonic() + 10
        while any(cleaner.manager.cleaning_state(log.topic_partition) for log in manager.all_logs()):
            assert time.monotonic() < until, "stuck"

    def wait_until_it_is_clean(self, log: UnifiedLog) -> None:
        cleaner = self.manager.cleaner
        assert cleaner is not None
        until = time.monotonic() + 30
        while True:
            reached = cleaner.manager.all_cleaner_checkpoints().get(log.topic_partition)
            if not next_to_clean(log, reached, self.manager.clock.milliseconds()).is_worth_it:
                return
            state = cleaner.manager.cleaning_state(log.topic_partition)
            assert time.monotonic() < until, (log, reached, str(state))
            time.sleep(0.01)

    def judge_contents(self, partition: Partition, log: UnifiedLog) -> None:
        found = rows(log)
        for offset, _, value in found:
            assert value == partition.written[offset], (partition.name, offset)
        offsets = [offset for offset, _, _ in found]
        assert offsets == sorted(set(offsets))
        if partition.is_sure:
            assert latest(found) == partition.state, partition.name


def test_a_cleaner_beside_everything(
    base: Path, count: Callable[[str, int], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "kafkalog")  # a disk fails
    trial = Trial(base / "trial")
    try:
        trial.run(max(SECONDS, 4))
        assert not trial.failures, trial.failures[0]
        trial.judge()
    finally:
        trial.manager.shutdown()
    assert all(trial.counts.values()), trial.counts
    assert not [each.name for each in threading.enumerate() if each.name.startswith("kafka-log-cleaner")]
    for what, number in trial.counts.items():
        count(f"{what} beside a cleaner", number)


def test_a_dropped_manager_shuts_its_cleaner_down(base: Path) -> None:
    settings = ManagerSettings(LogConfig.from_props(None, COMPACTED), cleaner=QUICK)
    manager = LogManager(base / "dropped", settings, files=FAST)
    manager.startup()
    fill(manager.get_or_create_log("t-0"), 200)
    found = weakref.ref(manager)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del manager
        gc.collect()
    wait_for_dropped()
    assert found() is None
    until = time.monotonic() + 30
    while [each for each in threading.enumerate() if each.name.startswith("kafka-log-cleaner")]:
        assert time.monotonic() < until
        time.sleep(0.01)
    while no_descriptors_below(base / "dropped"):
        assert time.monotonic() < until
        time.sleep(0.01)
    with LogManager(base / "dropped", settings, files=FAST) as again:
        log = again.get_log("t-0")
        assert log is not None
        assert log.log_end_offset == 200


def test_a_failed_disk_ends_its_cleans(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The directory's lock is released when nobody cleans there any more, not before."""
    caplog.set_level("CRITICAL", "kafkalog")
    dirs = [str(base / "a"), str(base / "b")]
    slow = replace(QUICK, max_io_bytes_per_second=2000.0)
    settings = ManagerSettings(LogConfig.from_props(None, COMPACTED), cleaner=slow)
    with LogManager(dirs, settings, files=FAST) as manager:
        cleaner = manager.cleaner
        assert cleaner is not None
        log = manager.get_or_create_log("t-0", log_dir=dirs[0])
        fill(log, 400)
        log.roll()
        while cleaner.manager.cleaning_state(log.topic_partition) is None:
            time.sleep(0.001)
        manager.failure_channel.maybe_add_offline_log_dir(dirs[0], "as a test")
        manager.handle_log_dir_failure(dirs[0])
        assert cleaner.manager.cleaning_state(log.topic_partition) is None
        assert manager.offline_log_dirs == [dirs[0]]
        assert cleaner.dead_thread_count == 0
        assert manager.uncleanable_partitions() == []
