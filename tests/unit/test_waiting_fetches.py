"""Bells that say which log has changed, and the I/O thread that they wake."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalog._native.state.rung import RungBells
from kafkalog.engine.files import ManualClock
from kafkalog.server.durable import GroupCommit
from kafkalog.server.waiting_fetches import TICK_MS, TIMES_SPARE, Waker, Watch
from tests.unit.data_kit import node


class Loop:
    """The parts of an I/O thread that a Waker uses; the test runs them."""

    def __init__(self) -> None:
        self.timers: list[tuple[int, Callable[[], object]]] = []
        self.fds: dict[int, Callable[[], object]] = {}

    def later(self, delay_ms: int, run: Callable[[], object]) -> None:
        self.timers.append((delay_ms, run))

    def watch(self, fd: int, run: Callable[[], object]) -> None:
        self.fds[fd] = run


class Waits:
    """A fetch that is finished at the first ring."""

    due_ms = 0

    def __init__(self) -> None:
        self.finished = 0

    def check(self) -> bool:
        return True

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_bells_are_taken_in_the_order_in_which_they_rang() -> None:
    rung = RungBells()
    first, second = rung.bell("first"), rung.bell("second")
    second.release()
    first.release()
    second.release()
    told = [rung.has_rung, rung.take(), rung.has_rung, rung.take()]
    assert told == [True, ["second", "first", "second"], False, []]


def test_another_threads_ring_wakes_the_loop(loop: Loop) -> None:
    waker = Waker(ManualClock(0), loop.later, loop.watch)
    try:
        rung = waker.waiting.rung
        rung.bell("log")
        (fd,) = loop.fds
        reading = waker._read
        assert reading.fileno() == fd

        def is_told() -> bool:
            try:
                return bool(reading.recv(100))
            except BlockingIOError:
                return False

        bell = rung.bell("log")
        thread = threading.Thread(target=bell.release)
        thread.start()
        thread.join()
        bell.release()
        told = [is_told(), is_told()]  # once for all rings
        rung.take()
        rung.hush()
        bell.release()
        told.append(is_told())
        rung.speak()
        told.append(is_told())
        rung.silence()
        rung.take()
        bell.release()
        told.append(is_told())
        assert told == [True, False, False, True, False]
    finally:
        rung.take()
        waker.close()


def test_one_timer_serves_all_that_wait(loop: Loop) -> None:
    clock = ManualClock(0)
    waker = Waker(clock, loop.later, loop.watch)
    try:
        waiting = waker.waiting
        fetches = []
        for wait_ms in (101, 100, 500, 50):
            fetch = Waits()
            fetches.append(fetch)
            waiting.wait(Watch(waiting), fetch, wait_ms)
        assert [delay for delay, _ in loop.timers] == [105, 100, 50]  # rounded up; none for the later one
        assert TICK_MS == 5
        clock.advance(50)
        loop.timers[2][1]()
        assert [each.finished for each in fetches] == [0, 0, 0, 1]
        assert len(loop.timers) == 3  # the one of 100 is still to come
        for at_ms in (100, 105):
            clock.advance(at_ms - waiting.now_ms())
            loop.timers[1 if at_ms == 100 else 0][1]()
        assert [each.finished for each in fetches] == [1, 1, 0, 1]
        assert waiting.count == 1
        assert [delay for delay, _ in loop.timers[3:]] == [395]
    finally:
        waker.close()


def test_timers_do_not_multiply(loop: Loop) -> None:
    clock = ManualClock(0)
    waker = Waker(clock, loop.later, loop.watch)
    try:
        waiting, ended = waker.waiting, 0
        patient = Waits()
        waiting.wait(Watch(waiting), patient, 400)
        for turn in range(200):  # each is due earlier than the patient one, which begins anew whenever it ends
            quick = Waits()
            waiting.wait(Watch(waiting), quick, 20)
            clock.advance(20)
            passed = [(delay - 20, run) for delay, run in loop.timers]
            loop.timers[:] = [each for each in passed if each[0] > 0]
            for delay, run in passed:
                if delay <= 0:
                    run()
            assert quick.finished == 1, turn
            assert len(loop.timers) <= 2, turn
            if patient.finished:
                ended += 1
                patient = Waits()
                waiting.wait(Watch(waiting), patient, 400)
        assert ended == 10
    finally:
        waker.close()


def test_what_ends_long_before_its_time_takes_no_place(loop: Loop) -> None:
    waker = Waker(ManualClock(0), loop.later, loop.watch)
    try:
        waiting = waker.waiting
        for number in range(10_000):
            watch = Watch(waiting)
            waiting.wait(watch, Waits(), 10**9 - 1000 * number)
            waiting.end(watch)
        assert len(waiting._times) <= 2 * TIMES_SPARE
        assert waiting._by_time == {}
        assert waiting.next_due_ms() is None
    finally:
        waker.close()


def test_a_time_that_is_over_while_others_end_gets_a_timer(loop: Loop) -> None:
    clock = ManualClock(0)
    waker = Waker(clock, loop.later, loop.watch)
    try:
        slow, next_one = Waits(), Waits()
        waker.waiting.wait(Watch(waker.waiting), slow, 100)
        slow.finish = lambda: (waker.waiting.wait(Watch(waker.waiting), next_one, 5), clock.advance(50))  # type: ignore
        clock.advance(100)
        loop.timers[0][1]()
        while len(loop.timers) > 1 and not next_one.finished:
            loop.timers.pop()[1]()
        assert next_one.finished == 1
    finally:
        waker.close()


def test_a_bug_in_one_fetch_does_not_stop_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Waits):
        def check(self) -> bool:
            raise ValueError("a bug")

        def finish(self) -> None:
            raise ValueError("another bug")

    with node(tmp_path) as at:
        at.topic()
        log = at.broker.home.manager.get_log("orders-0")
        assert log is not None
        waiting, last = at.data.waiting, Waits()
        for fetch in (Fails(), last):
            watch = Watch(waiting)
            watch.over([log])
            waiting.wait(watch, fetch, 1000)
        at.store.topic("orders").append(b"a")
        waiting.look()
        assert last.finished == 1
        assert waiting.count == 0
        assert "another bug" in caplog.text


def test_a_bell_leaves_the_log_with_the_last_watch(tmp_path: Path) -> None:
    with node(tmp_path) as at:
        at.topic()
        log = at.broker.home.manager.get_log("orders-0")
        assert log is not None
        waiting = at.data.waiting
        watches = [Watch(waiting), Watch(waiting)]
        fetches = [Waits(), Waits()]
        for watch, fetch in zip(watches, fetches, strict=True):
            watch.over([log])
            waiting.wait(watch, fetch, 1000)
        assert len(log.waiters) == 1
        at.store.topic("orders").append(b"a")
        waiting.look()
        assert [each.finished for each in fetches] == [1, 1]
        watches[0].drop()
        watches[1].over([log])
        assert len(log.waiters) == 1
        watches[1].drop()
        assert log.waiters == []


def test_syncs_are_shared(tmp_path: Path) -> None:
    with node(tmp_path) as at:
        at.topic(partitions=2)
        logs = [at.broker.home.manager.get_log(f"orders-{number}") for number in range(2)]
        assert None not in logs
        syncs = GroupCommit(threads=2)
        try:
            done: list[BaseException | None] = []
            all_done = threading.Event()

            def is_done(error: BaseException | None) -> None:
                done.append(error)
                if len(done) == 20:
                    all_done.set()

            for number in range(20):
                at.store.topic("orders").append(b"a", partition=number % 2)
                syncs.when_durable([each for each in logs if each is not None], is_done)
            assert all_done.wait(30)
            assert done == [None] * 20
            assert all(each is not None and each.recovery_point == each.log_end_offset for each in logs)
            syncs.when_durable([], is_done)
            assert len(done) == 21
        finally:
            syncs.close()


def test_an_error_of_a_sync_reaches_those_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with node(tmp_path) as at:
        at.topic()
        log = at.broker.home.manager.get_log("orders-0")
        assert log is not None
        monkeypatch.setattr(type(log), "flush_appended", lambda self, offset: 1 / 0)
        syncs = GroupCommit()
        try:
            found: list[BaseException | None] = []
            event = threading.Event()

            def done(error: BaseException | None) -> None:
                found.append(error)
                event.set()

            syncs.when_durable([log], done)
            assert event.wait(30)
            assert isinstance(found[0], ZeroDivisionError)
        finally:
            syncs.close()
            monkeypatch.undo()
