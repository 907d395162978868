"""A signal handler that calls the manager at any moment of the thread's work, while a pool cleans.

Each call happens as a whole or is refused with its error, and nobody waits forever.  At the end nothing is held.  Each
record that is left has its acknowledged offset, and each key has the value that was acknowledged last.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kafkalog.config import LogConfig
from kafkalog.engine.files import nested
from kafkalog.engine.format.names import parse_topic_partition_name
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import IllegalStateException, KafkaStorageException, OffsetOutOfRangeException
from tests.crash.managed import FAST
from tests.live.crew import SECONDS
from tests.live.test_cleaning_threads import QUICK, Trial
from tests.live.test_reentry import signals
from tests.unit.cleaner_kit import keyed, latest, rows
from tests.unit.cleaning_kit import COMPACTED, fill

MAY_RAISE = (IllegalStateException, KafkaStorageException, OffsetOutOfRangeException, LookupError)


class Inside(Trial):
    """One thread, and what comes in between its lines."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, FAST)  # faulty ones have a separate lock
        self.depth = self.done = self.refused = 0
        self.at: dict[tuple[str, str], int] = {}  # the last offset of a key

    def begin(self) -> None:
        self.manager.startup()
        for number, name in enumerate(self.partitions):
            if name.startswith(("sure", "cut")):
                self.manager.get_or_create_log(name, is_new=True, log_dir=self.dirs[number % 3])

    def works(self) -> list[Callable[[random.Random], object]]:
        return [self.write_some, self.write_some, self.write_some, self.cut_some, self.move_one, self.set_one]

    def do(self, rng: random.Random) -> None:
        """Does one of all works, and counts refusals."""
        try:
            rng.choice(self.works())(rng)
            self.done += 1
        except MAY_RAISE:
            self.refused += 1

    def handle(self, rng: random.Random) -> None:
        if self.depth < 2:  # a handler in a handler in a handler shows nothing more
            self.depth += 1
            try:
                self.do(rng)
            finally:
                self.depth -= 1

    def write_some(self, rng: random.Random) -> None:
        partition = self.some(rng, "sure", "cut")
        for _ in range(rng.randrange(20)):
            log = self.manager.get_log(partition.name)
            assert log is not None
            key, value = f"k{rng.randrange(11)}", f"{partition.life}.{self.done}." + "x" * rng.randrange(60)
            offset = log.append_as_leader(keyed((key, value)), 0).first_offset
            assert offset not in partition.written or not partition.is_sure
            partition.written[offset] = value
            if offset >= self.at.get((partition.name, key), -1):
                self.at[partition.name, key] = offset
                partition.state[key] = value

    def cut_some(self, rng: random.Random) -> None:
        partition = self.some(rng, "cut")
        log = self.manager.get_log(partition.name)
        assert log is not None
        offset = max(log.log_start_offset, log.log_end_offset - rng.randrange(40))
        if rng.random() < 0.2:
            self.manager.truncate_fully_and_start_at(partition.name, offset)
        else:
            self.manager.truncate_to({parse_topic_partition_name(partition.name): offset})

    def move_one(self, rng: random.Random) -> None:
        self.manager.move(self.some(rng, "sure", "cut").name, rng.choice(self.dirs))

    def set_one(self, rng: random.Random) -> None:
        policy = rng.choice(("compact", "compact", "delete"))
        self.manager.set_topic_config(
            rng.choice(("sure", "cut")), {"cleanup.policy": policy, "retention.bytes": "-1", "retention.ms": "-1"}
        )
        self.manager.reconfigure_cleaner(replace(QUICK, num_threads=rng.choice((2, 3))))

    def judge(self) -> None:
        manager, cleaner = self.manager, self.manager.cleaner
        assert cleaner is not None
        assert manager.offline_log_dirs == []
        assert cleaner.manager.uncleanable_partitions() == []
        assert cleaner.dead_thread_count == 0
        for topic in ("sure", "cut"):
            manager.set_topic_config(topic, {})
        for partition in self.partitions.values():
            log = manager.get_log(partition.name)
            if log is not None:
                log.roll()
                self.wait_until_it_is_clean(log)
                if partition.is_sure:
                    self.judge_contents(partition, log)
        until = time.monotonic() + 10
        while any(cleaner.manager.cleaning_state(log.topic_partition) for log in manager.all_logs()):
            assert time.monotonic() < until, "stuck"


def test_a_signal_handler_works_on_logs_that_are_cleaned(
    base: Path,
    count: Callable[[str, int], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("CRITICAL", "kafkalog")
    monkeypatch.setattr(nested, "PATIENCE_SECS", 0.5)
    trial = Inside(base / "trial")
    trial.begin()
    try:
        rng, inner = random.Random(1), random.Random(2)
        until = time.monotonic() + max(SECONDS, 3)
        with signals(lambda: trial.handle(inner), 0.004):
            while time.monotonic() < until:
                trial.do(rng)
        trial.judge()
    finally:
        trial.manager.shutdown()
    assert trial.done > 50
    count("calls inside others beside a cleaner", trial.done)


def cut(manager: LogManager) -> None:
    log = manager.get_log("t-0")
    assert log is not None
    manager.truncate_to({log.topic_partition: log.log_start_offset})


ACTS: dict[str, Callable[[LogManager], object]] = {
    "reconfigure": lambda manager: manager.reconfigure_cleaner(replace(QUICK, num_threads=3)),
    "shut down": lambda manager: manager.shutdown(),
    "truncate": cut,
    "delete": lambda manager: manager.async_delete("t-0"),
}


@pytest.mark.parametrize("name", ACTS)
def test_nobody_waits_for_a_cleaner_that_waits_for_him(
    base: Path, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler runs while its thread holds a lock that the cleaner wants: that of the map of logs."""
    caplog.set_level("CRITICAL", "kafkalog")
    settings = ManagerSettings(LogConfig.from_props(None, COMPACTED), cleaner=replace(QUICK, num_threads=2))
    with LogManager(base / "logs", settings, files=FAST) as manager:
        cleaner, log = manager.cleaner, manager.get_or_create_log("t-0")
        assert cleaner is not None
        fill(log, 400)
        log.roll()
        assert cleaner.await_cleaned(log.topic_partition, 400, 30_000)
        logs, done, refused = manager.registry._current, threading.Event(), []

        def claim() -> None:
            """As a cleaner that works on the log, and only then takes the lock."""
            states = cleaner.manager.states
            claim = states.claim(log.topic_partition)
            assert claim is not None
            done.set()
            manager.registry.all_logs()
            states.release(claim)

        def waiting() -> int:
            frames = sys._current_frames()
            threads = [each.ident for each in threading.enumerate() if each is not threading.main_thread()]
            return [frames[each].f_code.co_name for each in threads if each in frames].count("current_logs")

        def handle() -> list[UnifiedLog]:
            monkeypatch.setattr(manager.registry, "_current", logs)
            monkeypatch.setattr(nested, "PATIENCE_SECS", 0.2)
            thread = threading.Thread(target=claim)
            thread.start()
            assert done.wait(30)
            until = time.monotonic() + 30
            while waiting() < 2:
                assert time.monotonic() < until
                time.sleep(0.001)
            with pytest.raises(IllegalStateException, match="in the middle of another call"):
                ACTS[name](manager)
            refused.append(thread)
            return logs.values()

        monkeypatch.setattr(manager.registry, "_current", SimpleNamespace(values=handle, get=logs.get))
        manager.registry.current_logs()
        monkeypatch.undo()
        refused[0].join(30)
        until = time.monotonic() + 30
        while name == "reconfigure" and len(cleaner.threads) != 3:
            assert time.monotonic() < until
            time.sleep(0.001)
        if name != "shut down":
            fill(log, 1)
            assert latest(rows(log))
            ACTS[name](manager)
    with LogManager(base / "logs", settings, files=FAST) as manager:
        assert (manager.get_log("t-0") is None) == (name == "delete")
