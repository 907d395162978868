"""Jobs of several directories side by side, each directory with threads of its own: loading logs, and closing them.

A job's error ends nothing: all jobs run, and each outcome is told.  Interrupted, what has begun ends, the rest is left
undone, and the interrupt goes on.  The threads are no daemons; their names are Kafka's: `<prefix>-<directory>-<n>`.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Job = Callable[[int], object]  # is told the number of its thread


class Outcome(NamedTuple):
    """How a job ended: `error` is None where it went well, or was left undone."""

    done: bool
    error: BaseException | None


class _Pool:
    """The jobs of one directory."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.outcomes: list[Outcome] = [Outcome(False, None)] * len(jobs)
        self.next = 0
        self.lock = threading.Lock()

    def work(self, thread: int, stop: threading.Event) -> None:
        while not stop.is_set():
            with self.lock:
                number = self.next
                self.next += 1
            if number >= len(self.jobs):
                return
            try:
                self.jobs[number](thread)
                self.outcomes[number] = Outcome(True, None)
            except BaseException as error:
                self.outcomes[number] = Outcome(True, error)


def run_side_by_side(
    prefix: str, jobs: Mapping[str, Sequence[Job]], threads: Mapping[str, int]
) -> dict[str, list[Outcome]]:
    """Runs the jobs of each directory in order, by that many threads; the outcomes in the jobs' order."""
    assert all(threads[directory] > 0 for directory in jobs), threads  # else nothing is done, and nobody is told
    stop = threading.Event()
    pools = {directory: _Pool(of) for directory, of in jobs.items()}
    ends: list[_thread.LockType] = []  # each is released at the end of a thread, should it begin
    begun: list[int] = []
    try:
        for directory, pool in pools.items():
            for number in range(min(threads[directory], len(pool.jobs))):
                end = _thread.allocate_lock()
                end.acquire()
                ends.append(end)
                arguments = (f"{prefix}-{directory}-{number}", pool, number, stop, end)
                # One call from bytecode: an interrupt finds the thread among the begun, or none.
                begun.extend(map(_thread.start_new_thread, (_start,), (arguments,)))
        _wait_for(ends)
    finally:
        stop.set()
        _wait_for(ends[: len(begun)])
    return {directory: pool.outcomes for directory, pool in pools.items()}


def _wait_for(ends: Sequence[_thread.LockType]) -> None:
    for end in ends:
        with end:
            pass


def _start(name: str, pool: _Pool, number: int, stop: threading.Event, end: _thread.LockType) -> None:
    """In a thread of its own, which no signal reaches: Thread.start does not bear being interrupted."""

    def run() -> None:
        try:
            pool.work(number, stop)
        finally:
            end.release()

    try:
        threading.Thread(target=run, name=name).start()
    except BaseException:
        end.release()
        raise
