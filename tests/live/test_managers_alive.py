"""A LogManager under threads: a short soak, a shutdown next to everything, forks next to threads (see
`tests.live.soak`)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalog.engine.host.log_manager import LogManager
from kafkalog.errors import IllegalStateException, KafkaStorageException
from tests.crash.managed import FAST
from tests.live.crew import SECONDS
from tests.live.oracle import in_a_thread, no_descriptors_below
from tests.live.soak import FAILED, Soak, soak
from tests.live.test_forks import in_a_child
from tests.sampling import LONG

ROUNDS = 40 if LONG else 4


@pytest.mark.parametrize("partitions", [2, 20])
def test_a_short_soak(partitions: int, count: Callable[[str, int], None], caplog: pytest.LogCaptureFixture) -> None:
    """With two partitions moves, deletions and new beginnings of the same one meet all the time."""
    caplog.set_level("CRITICAL", "kafkalog")  # a disk fails
    counts = soak(max(SECONDS, 5) / 60, partitions)
    assert counts["appended"] > 100
    assert counts["read"] > 100
    assert counts["moves"] > 0
    assert partitions < 4 or counts["read compacted"] > 100
    count("records through managers", counts["appended"])


def at_work(trial: Soak, ends: bool) -> list[threading.Thread]:
    """Threads that go on until the manager is closed under them, where `ends`."""

    def until_closed(work: Callable[[random.Random], object]) -> Callable[[random.Random], object]:
        def run(rng: random.Random) -> None:
            try:
                work(rng)
            except IllegalStateException as error:
                if not ends or "clos" not in str(error):
                    raise
                trial.stop.wait(0.001)
            except KafkaStorageException:
                if not ends:
                    raise

        return run

    works = [trial.write, trial.write, trial.reader(), trial.read_keys, trial.move, trial.move, trial.delete, trial.cut]
    return [trial.guarded(until_closed(work), number) for number, work in enumerate(works)]


def check_again(trial: Soak) -> None:
    with LogManager(trial.dirs, trial.settings, files=FAST) as manager:
        for partition in trial.partitions:
            log = manager.get_log(partition.name)
            if log is None:
                assert partition.acknowledged == 0, partition  # deleted, and not recreated
                continue
            if partition.cut_begun is not None and log.log_end_offset == partition.cut_begun:
                partition.cut(partition.cut_begun)  # the shutdown came after it, and its caller got an error
            assert partition.ends_rightly(log), (partition, log)
            trial.stop.clear()
            if partition.kind.is_compacted:
                trial.judge_keys(partition, log)
                continue
            start = log.log_start_offset
            assert trial.read_on(partition, log, partition.life, start, log.log_end_offset) == log.log_end_offset


def begin(base: Path, number: int) -> Soak:
    trial = Soak(base / f"round{number}", 9, number)
    trial.begin()
    return trial


def test_an_end_beside_everything(base: Path, count: Callable[[str, int], None]) -> None:
    rng = random.Random(5)
    for number in range(ROUNDS):
        trial = begin(base, number)
        threads = at_work(trial, ends=True)
        ends = [threading.Thread(target=trial.manager.shutdown) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(rng.random() * 0.4)
        for thread in ends:
            thread.start()
        for thread in ends:
            thread.join(60)
            assert not thread.is_alive(), "the end hangs"
        trial.stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not trial.failures, trial.failures[0]
        assert not no_descriptors_below(base / f"round{number}")
        in_a_thread(lambda trial=trial: check_again(trial), seconds=60)  # type: ignore[misc]
    count("ends of managers beside threads", ROUNDS)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_beside_threads(base: Path, count: Callable[[str, int], None]) -> None:
    """Every call of the child is refused, and its close of the manager touches nothing; the parent continues."""
    trial = begin(base, 0)
    manager = trial.manager
    threads = at_work(trial, ends=False)
    for thread in threads:
        thread.start()
    name = trial.partitions[0].name

    def refused() -> None:
        calls: list[Callable[[], object]] = [
            lambda: manager.get_log(name), lambda: manager.get_or_create_log("new-0"),
            lambda: manager.async_delete(name), lambda: manager.async_delete_all([]),
            lambda: manager.move(name, trial.dirs[0]), lambda: manager.truncate_to({}),
            lambda: manager.set_topic_config("t", {}), manager.cleanup_logs, manager.flush_dirty_logs,
            manager.checkpoint_recovery_points, manager.checkpoint_log_starts, manager.checkpoint_high_watermarks,
            manager.startup, lambda: manager.replace_current_with_future_log(name),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(IllegalStateException, match="was opened by process"):
                call()
        manager.handle_log_dir_failure(trial.dirs[FAILED])
        manager.shutdown()
        manager.abandon()

    rng = random.Random(9)
    try:
        for _ in range(ROUNDS * 2):
            time.sleep(rng.random() * 0.1)
            told = in_a_child(refused)
            assert not told, told
    finally:
        trial.stop.set()
        for thread in threads:
            thread.join(60)
    assert not trial.failures, trial.failures[0]
    manager.shutdown()
    check_again(trial)
    count("forks of managers", ROUNDS * 2)
