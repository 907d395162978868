"""Turns of threads: one runs at a time, the others wait, and a lock that two jobs share causes no deadlock."""

from __future__ import annotations

import threading
import time

import pytest

from kafkalog.engine.files import turns as module
from kafkalog.engine.files.turns import Turns, resting

JOBS = 64
THREADS = 8


class Watch:
    """How many jobs were in their work at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = 0
        self.most = 0

    def __enter__(self) -> None:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.now -= 1


def run_all(turns: Turns, job: object, count: int = JOBS) -> None:
    left = iter(range(count))

    def work(thread: int) -> None:
        for _ in left:
            turns.run(thread, job)  # type: ignore[arg-type]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def counted(turns: Turns, at_once: int, rests: bool) -> Turns:
    """As after the first looks."""
    turns._looks_left, turns._at_once, turns._rests = 0, at_once, rests
    return turns


def test_jobs_that_keep_the_processor_busy_run_one_by_one() -> None:
    watch = Watch()

    def job() -> None:
        with watch:
            spin(0.001)

    run_all(counted(Turns(THREADS), 1, rests=False), job)
    assert watch.most == 1


def test_a_turn_is_given_up_during_a_slow_sync() -> None:
    syncing = Watch()

    def job() -> None:
        with resting(), syncing:
            time.sleep(0.005)
        spin(0.0002)

    run_all(counted(Turns(THREADS), 1, rests=True), job)
    assert syncing.most > 1


def test_a_turn_is_kept_during_quick_syncs() -> None:
    syncing = Watch()

    def job() -> None:
        with resting(), syncing:
            spin(0.0001)

    run_all(counted(Turns(THREADS), 1, rests=False), job)
    assert syncing.most == 1


def test_a_turn_is_given_up_for_a_long_scan_and_not_for_a_short_one() -> None:
    for scan_bytes, most in ((module._MUCH_BYTES, THREADS), (module._MUCH_BYTES - 1, 1)):
        scanning = Watch()

        def job(scan_bytes: int = scan_bytes, scanning: Watch = scanning) -> None:
            with resting(scan_bytes), scanning:
                time.sleep(0.002)

        run_all(counted(Turns(THREADS), 1, rests=False), job)
        assert (scanning.most > 1) == (most > 1)


def test_the_first_jobs_tell_that_syncs_are_slow() -> None:
    turns = Turns(THREADS)

    def job() -> None:
        spin(0.001)
        with resting():
            time.sleep(0.003)

    for _ in range(module._LOOKS):
        turns.run(0, job)
    assert turns._rests


def test_the_first_jobs_tell_that_jobs_wait_for_something_else() -> None:
    turns = Turns(THREADS)

    def job() -> None:
        spin(0.0005)
        time.sleep(0.005)

    for _ in range(module._LOOKS):
        turns.run(0, job)
    assert not turns._rests
    assert turns._at_once > 1


def test_two_jobs_that_share_a_lock_do_not_wait_for_each_other_for_ever() -> None:
    shared = threading.Lock()

    def job() -> None:
        with shared, resting():
            time.sleep(0.001)

    run_all(counted(Turns(THREADS), 1, rests=True), job)


def test_jobs_that_wait_for_each_other_all_end() -> None:
    together = threading.Barrier(THREADS)
    run_all(counted(Turns(THREADS), 1, rests=False), lambda: together.wait(60), THREADS)
    assert not together.broken


def test_an_error_gives_the_turn_back() -> None:
    turns = Turns(1)

    def fails() -> None:
        with resting():
            raise ValueError("no")

    for rests in (False, True):
        counted(turns, 1, rests)
        with pytest.raises(ValueError, match="no"):
            turns.run(0, fails)
        assert turns.run(0, lambda: 7) == 7
        assert not turns._locks[0].locked()


def test_without_a_turn_resting_does_nothing() -> None:
    with resting(), resting(1 << 30):
        pass
    assert module._mine.turn is None
