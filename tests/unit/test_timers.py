"""Timers of coordinators: order, postponing, cancelling, and the thread of a store."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.timers import Timers, TimerThread
from kafkalog.engine.files import SYSTEM_CLOCK, ManualClock
from kafkalog.errors import KafkaStorageException
from tests.unit.coordinator_kit import NOW_MS, Disk


class Kit:
    def __init__(self) -> None:
        self.clock = ManualClock(NOW_MS)
        self.timers = Timers(self.clock)
        self.ran: list[str] = []

    def set(self, key: str, delay_ms: int) -> None:
        self.timers.schedule(key, delay_ms, lambda: self.ran.append(key))

    def after(self, ms: int) -> list[str]:
        self.clock.advance(ms)
        self.timers.run_due()
        ran, self.ran = self.ran, []
        return ran


@pytest.fixture
def kit() -> Kit:
    return Kit()


def test_timers_run_in_their_order(kit: Kit) -> None:
    for key, delay_ms in (("b", 20), ("a", 10), ("c", 20)):
        kit.set(key, delay_ms)
    assert (kit.after(9), kit.after(1), kit.after(10), len(kit.timers)) == ([], ["a"], ["b", "c"], 0)
    assert kit.timers.next_due_ms() is None


def test_a_timer_is_set_again(kit: Kit) -> None:
    kit.set("later", 10)
    kit.set("later", 30)
    kit.set("earlier", 30)
    kit.set("earlier", 5)
    assert (kit.after(10), kit.after(19), kit.after(1)) == (["earlier"], [], ["later"])


def test_a_postponed_timer(kit: Kit) -> None:
    kit.set("a", 10)
    kit.after(9)
    assert kit.timers.postpone("a", 10)
    assert (kit.after(9), kit.after(1)) == ([], ["a"])
    assert not kit.timers.postpone("a", 10)
    kit.set("a", 100)
    assert kit.timers.postpone("a", 10)  # earlier than before
    assert kit.after(10) == ["a"]


def test_a_heartbeat_adds_nothing(kit: Kit) -> None:
    for member in range(100):
        kit.set(f"m{member}", 1_000)
    for _ in range(50):
        kit.clock.advance(10)
        for member in range(100):
            kit.timers.postpone(f"m{member}", 1_000)
    assert len(kit.timers._heap) == 100
    assert kit.after(999) == []
    assert len(kit.after(1)) == 100


def test_cancelled_timers_leave_no_heap(kit: Kit) -> None:
    for number in range(1_000):
        kit.set(f"t{number}", 1_000)
        assert kit.timers.cancel(f"t{number}")
    assert not kit.timers.cancel("t1")
    assert len(kit.timers._heap) < 150
    assert kit.after(1_000) == []


def test_a_timer_may_set_timers_and_fail(kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        kit.set("next", 0)
        raise ValueError("broken")

    kit.timers.schedule("fails", 1, fail)
    assert kit.after(1) == ["next"]
    assert "Error in a timer" in caplog.text


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["set", "postpone", "cancel"]), st.integers(0, 9))))
def test_as_a_table_of_times(steps: list[tuple[str, str, int]]) -> None:
    kit, due = Kit(), dict[str, int]()
    for now, (key, what, delay_ms) in enumerate(steps):
        if what == "set":
            kit.set(key, delay_ms)
            due[key] = now + delay_ms
        elif what == "postpone":
            assert kit.timers.postpone(key, delay_ms) is (key in due)
            due |= {key: now + delay_ms} if key in due else {}
        else:
            assert kit.timers.cancel(key) is (due.pop(key, None) is not None)
        wanted = sorted(each for each, at in due.items() if at <= now + 1)
        due = {each: at for each, at in due.items() if at > now + 1}
        assert sorted(kit.after(1)) == wanted


def test_the_thread_of_a_store() -> None:
    name = "timers of this test"  # other tests' threads come and go
    timers = Timers(SYSTEM_CLOCK)
    thread = TimerThread(timers, name)

    def running() -> int:
        return sum(each.name == name for each in threading.enumerate())

    assert running() == 0
    done = [threading.Event() for _ in range(3)]
    timers.schedule("far", 60_000, lambda: None)
    assert running() == 1
    for number, each in enumerate(done):
        timers.schedule(number, number, each.set)
    assert all(each.wait(10) for each in done)
    thread.close()
    thread.close()
    timers.schedule("after the end", 0, lambda: pytest.fail("a closed thread"))
    assert running() == 0


# --- of a partition -------------------------------------------------------------------------------------------------


class PartitionKit:
    def __init__(self) -> None:
        self.clock = ManualClock(NOW_MS)
        self.timers = Timers(self.clock)
        self.partition = GroupOffsets(Disk().log("__consumer_offsets-0"), self.clock, timers=self.timers)
        self.ran = 0

    def run(self) -> None:
        assert self.partition.lock._is_owned()  # type: ignore[attr-defined]
        self.ran += 1

    def after(self, ms: int) -> int:
        self.clock.advance(ms)
        self.timers.run_due()
        return self.ran


def test_a_partitions_timers() -> None:
    kit = PartitionKit()
    with kit.partition.entered():
        kit.partition.timers.schedule("a", 10, kit.run)
        kit.partition.timers.schedule_if_absent("a", 1, kit.run)
        assert "a" in kit.partition.timers
    assert (kit.after(9), kit.after(1)) == (0, 1)
    with kit.partition.entered():
        assert not kit.partition.timers.postpone("a", 1)
        kit.partition.timers.schedule("a", 10, kit.run)
        kit.partition.timers.cancel_all()
    assert kit.after(10) == 1


def test_a_timer_that_waits_for_the_lock_can_be_postponed() -> None:
    kit = PartitionKit()
    with kit.partition.entered():
        kit.partition.timers.schedule("a", 10, kit.run)
    kit.clock.advance(10)
    taken = kit.timers._take_due()
    assert taken is not None
    with kit.partition.entered():  # a heartbeat is quicker than the timer
        assert kit.partition.timers.postpone("a", 10)
    taken()
    assert (kit.ran, kit.after(9), kit.after(1)) == (0, 0, 1)


@pytest.mark.parametrize("retries", [True, False])
def test_a_timer_whose_append_fails(retries: bool) -> None:
    kit, failures = PartitionKit(), [1, 2]

    def fail() -> None:
        kit.run()
        if failures:
            failures.pop()
            raise KafkaStorageException("the disk failed")

    with kit.partition.entered():
        kit.partition.timers.schedule("a", 10, fail, retries=retries)
    assert (kit.after(10), kit.after(499)) == (1, 1)
    assert (kit.after(1), kit.after(500), kit.after(5_000)) == ((2, 3, 3) if retries else (1, 1, 1))
