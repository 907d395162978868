"""Runs jobs of several directories in parallel, each directory with its threads: to load logs, and to close them.

An error of one job does not stop the others: all jobs run, and each outcome is returned.  After an interrupt or a
`stop`, jobs that have begun run to their end, the rest do not begin, and the interrupt is raised again.  Call `stop`
before you release the objects that the jobs work on: a second interrupt may have ended the wait for the threads.  The
threads are no daemons.  Their names are Kafka's: `<prefix>-<directory>-<n>`.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kafkalog.engine.files.turns import Turns

Job = Callable[[int], object]  # receives the number of its thread


class Outcome(NamedTuple):
    """How a job ended: `error` is None if it went well, or did not begin."""

    done: bool
    error: BaseException | None


class _Stop:
    """Whether to stop.  Not an Event: its methods are Python, and keep its lock if they are interrupted."""

    asked = False


class _Pool:
    """The jobs of one directory."""

    def __init__(self, jobs: Sequence[Job], turns: Turns) -> None:
        self.jobs = jobs
        self.turns = turns
        self.outcomes: list[Outcome] = [Outcome(False, None)] * len(jobs)
        self.next = 0
        self.lock = threading.Lock()

    def work(self, thread: int, stop: _Stop) -> None:
        while self.turns.run(thread, lambda: self._did_one(thread, stop)):
            pass

    def _did_one(self, thread: int, stop: _Stop) -> bool:
        """Does the next job.  Returns False if there is none, or a stop was requested."""
        with self.lock:
            number = self.next
            self.next += 1
        if stop.asked or number >= len(self.jobs):
            return False
        try:
            self.jobs[number](thread)
            self.outcomes[number] = Outcome(True, None)
        except BaseException as error:
            self.outcomes[number] = Outcome(True, error)
        return True


class Jobs:
    """The threads of one owner's jobs.  One `run` at a time."""

    def __init__(self) -> None:
        self._stop = _Stop()
        self._ends: list[_thread.LockType] = []  # one a thread, released when that thread ends, if it begins
        self._begun: list[int] = []

    def disown(self) -> None:
        """Forgets the threads in a forked child, which has none of them."""
        self._stop = _Stop()
        self._ends, self._begun = [], []

    @property
    def stopped(self) -> bool:
        """Whether jobs should end as soon as they can."""
        return self._stop.asked

    def run(
        self, prefix: str, jobs: Mapping[str, Sequence[Job]], threads: Mapping[str, int]
    ) -> dict[str, list[Outcome]]:
        """Runs the jobs of each directory, in order, by that many threads.  Returns the outcomes in the jobs' order."""
        assert all(threads[directory] > 0 for directory in jobs), threads  # otherwise jobs would silently not run
        self._ends, self._begun = [], []
        turns = Turns(max((threads[directory] for directory in jobs), default=1))
        pools = {directory: _Pool(of, turns) for directory, of in jobs.items()}
        try:
            for directory, pool in pools.items():
                for number in range(min(threads[directory], len(pool.jobs))):
                    end = _thread.allocate_lock()
                    end.acquire()
                    self._ends.append(end)
                    arguments = (f"{prefix}-{directory}-{number}", pool, number, self._stop, end)
                    # One call from bytecode: after an interrupt the thread is counted as begun, or was never started.
                    self._begun.extend(map(_thread.start_new_thread, (_start,), (arguments,)))
            self._wait()
        except BaseException:
            self.stop()
            raise
        return {directory: pool.outcomes for directory, pool in pools.items()}

    def stop(self, *, wait: bool = True) -> None:
        """Begins no more jobs, and waits for those that run.  If it is interrupted, call it again."""
        self._stop.asked = True
        if wait:
            self._wait()

    def _wait(self) -> None:
        for end in self._ends[: len(self._begun)]:
            with end:
                pass


def _start(name: str, pool: _Pool, number: int, stop: _Stop, end: _thread.LockType) -> None:
    """Starts the real thread from a helper thread, which no signal reaches.

    `Thread.start` must not be interrupted.
    """

    def run() -> None:
        try:
            pool.work(number, stop)
        finally:
            end.release()

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except BaseException:
        end.release()
        raise
