"""Several handles of one store in a running process: threads that open, use and close them at once, forks next to that,
and a signal handler that opens the store which it interrupts."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalStateException, LogDirLockedException
from tests.crash.stored import values_in
from tests.live.oracle import no_descriptors_below
from tests.live.test_forks import in_a_child
from tests.live.test_reentry import signals
from tests.live.test_stores_alive import Count, dirs_of, open_at, threads
from tests.sampling import LONG

SECONDS = 20.0 if LONG else 1.5


def test_handles_are_opened_and_closed_by_threads_at_once(base: Path, count: Count) -> None:
    """Every open gets a store, also next to the close of the last handle; acknowledged records exist."""
    acknowledged: dict[int, bytes] = {}
    steps = [0]

    def work(number: int) -> Callable[[threading.Event], None]:
        def run(stop: threading.Event) -> None:
            value = b"%d.%d" % (number, time.monotonic_ns())
            with open_at(base) as store:
                offset = store.create_topic("t", exist_ok=True).append(value).offset
            assert offset not in acknowledged
            acknowledged[offset] = value
            steps[0] += 1
            if number == 0:
                time.sleep(0.001)  # the others may be the last ones

        return run

    with threads(*(work(number) for number in range(3))) as stop:
        stop.wait(SECONDS)
    assert not no_descriptors_below(base)
    for disk in dirs_of(base):
        assert Path(disk, ".kafka_cleanshutdown").exists()
    with open_at(base) as store:
        assert values_in(store, TopicPartition("t", 0)) == [acknowledged[each] for each in sorted(acknowledged)]
    count("handles opened and closed at once", steps[0])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forks_beside_opens_and_closes(base: Path, count: Count) -> None:
    """A child has no handle, waits for nobody, and finds the directories locked."""
    forks = [0]
    with open_at(base) as stays:
        stays.create_topic("t")

        def work(stop: threading.Event) -> None:
            with open_at(base) as store:
                store.topic("t").append(b"x")

        def in_child() -> None:
            with pytest.raises(IllegalStateException, match="was opened by process"):
                stays.topics()
            stays.close()
            with pytest.raises(LogDirLockedException):
                open_at(base)

        with threads(work, work):
            for _ in range(40 if LONG else 8):
                time.sleep(0.01)
                assert not in_a_child(in_child)
                forks[0] += 1
        assert not stays.closed
    count("forks beside handles", forks[0])


def test_a_signal_handler_opens_the_store_that_it_interrupts(base: Path, count: Count) -> None:
    done = {"opened": 0, "refused": 0}
    busy: list[bool] = []

    def inside() -> None:
        if busy:
            return  # finding a lock's holder takes longer than the next signal
        busy.append(True)
        try:
            with open_at(base) as store:
                store.topics()
            done["opened"] += 1
        except (IllegalStateException, LogDirLockedException):
            done["refused"] += 1
        finally:
            busy.clear()

    number = 0
    with signals(inside, 0.007):
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(LogDirLockedException), open_at(base) as store:
                store.create_topic("t", exist_ok=True).append(b"%d" % number)
                number += 1
    gc.collect()
    assert sum(done.values()) > 5
    assert not no_descriptors_below(base)
    with kafkalog.open(dirs_of(base)) as store:
        assert store.topic("t").partition(0).end_offset == number
    count("opens inside of opens", sum(done.values()))
