"""Schedulers and the failure channel."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from kafkalog.engine.files import LogDirFailureChannel, ManualClock, ManualScheduler, ThreadScheduler
from kafkalog.engine.files import scheduler as scheduling
from kafkalog.errors import DiskFull, IllegalStateException, KafkalogError, TooManyOpenFilesException

LONG_MAX = (1 << 63) - 1


def test_order_is_time_then_insertion() -> None:
    clock = ManualClock(100)
    scheduler = ManualScheduler(clock)
    ran: list[str] = []
    for name, delay in (("late", 20), ("b", 10), ("c", 10), ("now", 0), ("a", 5)):
        scheduler.schedule_once(name, lambda name=name: ran.append(name), delay)
    assert [task.name for task in scheduler.pending] == ["now", "a", "b", "c", "late"]
    assert scheduler.tick() == 1
    clock.advance(10)
    assert scheduler.tick() == 3
    clock.advance(10)
    scheduler.tick()
    assert ran == ["now", "a", "b", "c", "late"]
    assert scheduler.tick() == 0


def test_periodic_tasks_run_as_often_as_they_fell_due() -> None:
    clock = ManualClock()
    scheduler = ManualScheduler(clock)
    ran: list[str] = []
    task = scheduler.schedule("every 10", lambda: ran.append("p"), 5, 10)
    scheduler.schedule_once("at 15", lambda: ran.append("o"), 15)
    clock.advance(36)
    scheduler.tick()
    # At 15 both are due; the periodic one keeps the place that it got first.
    assert ran == ["p", "p", "o", "p", "p"]
    assert task.due_ms == 45
    assert task.cancel()
    assert not task.cancel()
    clock.advance(100)
    assert scheduler.tick() == 0
    assert scheduler.pending == []


def test_tasks_may_schedule_cancel_and_fail() -> None:
    clock = ManualClock()
    scheduler = ManualScheduler(clock)
    ran: list[str] = []

    def first() -> None:
        ran.append("first")
        scheduler.schedule_once("second", lambda: ran.append("second"))
        doomed.cancel()
        raise OSError("disk")

    scheduler.schedule_once("first", first)
    doomed = scheduler.schedule_once("doomed", lambda: ran.append("doomed"))
    scheduler.schedule_once("never", lambda: ran.append("never"), LONG_MAX)
    scheduler.tick()
    assert ran == ["first", "second"]
    assert [(name, str(error)) for name, error in scheduler.errors] == [("first", "disk")]
    scheduler.clear()
    assert scheduler.pending == []


def test_a_periodic_task_goes_on_after_an_error_and_stops_itself() -> None:
    clock = ManualClock()
    scheduler = ManualScheduler(clock)
    runs: list[int] = []

    def work() -> None:
        runs.append(clock.milliseconds())
        if len(runs) == 3:
            task.cancel()
        raise ValueError

    task = scheduler.schedule("p", work, 0, 1)
    clock.advance(10)
    scheduler.tick()
    assert len(runs) == 3


def test_threads_run_what_is_due(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = ThreadScheduler(threads=2)
    ignored = scheduler.schedule_once("too early", lambda: None)
    assert ignored.cancelled
    scheduler.startup()
    with pytest.raises(IllegalStateException, match="already been started"):
        scheduler.startup()
    once, often, release = threading.Event(), threading.Semaphore(0), threading.Event()
    scheduler.schedule_once("never", lambda: None, LONG_MAX)
    with caplog.at_level(logging.ERROR):
        scheduler.schedule_once("fails", lambda: 1 // 0)
        scheduler.schedule_once("once", once.set)
        task = scheduler.schedule("often", often.release, 0, 1)
        assert once.wait(10)
        for _ in range(3):
            assert often.acquire(timeout=10)
    task.cancel()
    running = threading.Event()

    def long() -> None:
        running.set()
        release.wait(10)

    scheduler.schedule_once("long", long)
    assert running.wait(10)
    release.set()
    assert [waiting.name for waiting in scheduler.pending] == ["never"]
    scheduler.shutdown()  # waits for what runs
    assert "Uncaught exception in scheduled task 'fails'" in caplog.text
    assert not scheduler.is_started
    assert scheduler.pending == []
    scheduler.startup()
    scheduler.schedule_once("stops its own scheduler", scheduler.shutdown)
    scheduler.shutdown()


@pytest.mark.parametrize("error", [DiskFull("no space"), TooManyOpenFilesException("no descriptor")])
def test_a_task_that_meets_a_shortage_is_done_later(
    error: KafkalogError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kafkalog.engine.files.scheduler.AGAIN_MS", 1)
    refused = [error] * 3
    done = threading.Event()

    def work() -> None:
        if refused:
            raise refused.pop()
        done.set()

    scheduler = ThreadScheduler()
    scheduler.startup()
    scheduler.schedule_once("work", work)
    assert done.wait(10)
    scheduler.shutdown()
    [line] = [record for record in caplog.records if record.levelno >= logging.WARNING]  # told once, and no traceback
    assert (line.levelno, line.exc_info) == (logging.WARNING, None)
    assert str(error) in line.getMessage()


class Interrupted(KeyboardInterrupt):
    pass


def test_an_interrupt_leaves_no_lock_behind() -> None:
    """At every line that `schedule_once` runs through."""

    def interrupt(action: Callable[[], object], line: int) -> bool:
        left = line

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if event == "line" and frame.f_code.co_filename == scheduling.__file__:
                left -= 1
                if left < 0:
                    raise Interrupted
            return trace

        sys.settrace(trace)
        try:
            action()
        except Interrupted:
            return True
        finally:
            sys.settrace(None)
        return False

    def another_thread_gets_in(scheduler: ThreadScheduler) -> None:
        ran = threading.Event()
        thread = threading.Thread(target=lambda: scheduler.schedule_once("now", ran.set), daemon=True)
        thread.start()
        assert ran.wait(20), "the lock was not given back"

    for line in range(100):
        scheduler = ThreadScheduler()
        scheduler.startup()
        hit = interrupt(lambda: scheduler.schedule_once("later", lambda: None, LONG_MAX), line)  # noqa: B023
        another_thread_gets_in(scheduler)
        scheduler.shutdown()
        if not hit:
            break
    assert line > 0


def test_whoever_schedules_holds_up_nobody() -> None:
    """In a signal handler at every line of `schedule_once` another thread's task comes through, and so does its own."""
    scheduler = ThreadScheduler()
    scheduler.startup()
    visited = 0

    def schedule_beside() -> None:
        ran = [threading.Event(), threading.Event()]
        thread = threading.Thread(target=lambda: scheduler.schedule_once("beside", ran[0].set), daemon=True)
        thread.start()
        scheduler.schedule_once("inside", ran[1].set)
        assert all(each.wait(20) for each in ran)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal visited
        if event == "line" and frame.f_code.co_filename == scheduling.__file__:
            visited += 1
            schedule_beside()
        return trace

    done = threading.Event()
    sys.settrace(trace)
    try:
        scheduler.schedule_once("around", done.set)
    finally:
        sys.settrace(None)
    assert visited > 5
    assert done.wait(20)
    scheduler.shutdown()


def test_what_a_shutdown_drops_does_not_come_back() -> None:
    scheduler = ThreadScheduler()
    scheduler.startup()
    ran: list[str] = []
    scheduler.schedule_once("dropped", lambda: ran.append("dropped"), 50)
    assert [task.name for task in scheduler.pending] == ["dropped"]
    scheduler.shutdown()
    scheduler.startup()
    assert scheduler.pending == []
    done = threading.Event()
    scheduler.schedule_once("kept", done.set, 100)
    assert done.wait(20)
    assert ran == []
    scheduler.shutdown()


def test_an_interrupted_shutdown_goes_on_when_asked_again() -> None:
    scheduler = ThreadScheduler()
    scheduler.startup()
    running, release, done = threading.Event(), threading.Event(), threading.Event()

    def long() -> None:
        running.set()
        release.wait(20)
        done.set()

    scheduler.schedule_once("long", long)
    assert running.wait(20)

    def handler(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted):
            scheduler.shutdown()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not done.is_set()
    threading.Timer(0.05, release.set).start()
    scheduler.shutdown()
    assert done.is_set()
    scheduler.startup()
    scheduler.shutdown()


def test_the_first_failure_of_a_directory_is_its_cause() -> None:
    channel = LogDirFailureChannel()
    cause = OSError("gone")
    channel.maybe_add_offline_log_dir("/a", "first", cause)
    channel.maybe_add_offline_log_dir("/a", "again", OSError("other"))
    channel.maybe_add_offline_log_dir("/b", "second", None)
    assert channel.has_offline_log_dir("/a")
    assert not channel.has_offline_log_dir("/c")
    assert channel.cause("/a") is cause
    assert channel.has_offline_log_dir("/b")
    assert channel.cause("/b") is None
