"""Jobs of several directories side by side, each directory with threads of its own: loading logs, and closing them.

A job's error ends nothing: all jobs run, and each outcome is told.  Interrupted, or told to stop, what has begun ends,
the rest is left undone, and the interrupt goes on.  Who lets go of what the jobs work on calls `stop` before: a second
interrupt may have come while the first one waited.  The threads are no daemons; their names are Kafka's:
`<prefix>-<directory>-<n>`.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kafkalog.engine.files.turns import Turns

Job = Callable[[int], object]  # is told the number of its thread


class Outcome(NamedTuple):
    """How a job ended: `error` is None where it went well, or was left undone."""

    done: bool
    error: BaseException | None


class _Stop:
    """Whether to stop.  An Event's methods are Python: interrupted, they keep its lock."""

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
        """Does the next job; False when there is none, or none is wanted."""
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
    """The threads of one owner's jobs; `run` once after the other."""

    def __init__(self) -> None:
        self._stop = _Stop()
        self._ends: list[_thread.LockType] = []  # each is released at the end of a thread, should it begin
        self._begun: list[int] = []

    def disown(self) -> None:
        """In a forked child, which has none of the threads."""
        self._stop = _Stop()
        self._ends, self._begun = [], []

    @property
    def stopped(self) -> bool:
        """Whether jobs should end as soon as they can."""
        return self._stop.asked

    def run(
        self, prefix: str, jobs: Mapping[str, Sequence[Job]], threads: Mapping[str, int]
    ) -> dict[str, list[Outcome]]:
        """Runs the jobs of each directory in order, by that many threads; the outcomes in the jobs' order."""
        assert all(threads[directory] > 0 for directory in jobs), threads  # else nothing is done, and nobody is told
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
                    # One call from bytecode: an interrupt finds the thread among the begun, or none.
                    self._begun.extend(map(_thread.start_new_thread, (_start,), (arguments,)))
            self._wait()
        except BaseException:
            self.stop()
            raise
        return {directory: pool.outcomes for directory, pool in pools.items()}

    def stop(self, *, wait: bool = True) -> None:
        """Nothing begins any more; waits for what has begun.  Interrupted, it is called again."""
        self._stop.asked = True
        if wait:
            self._wait()

    def _wait(self) -> None:
        for end in self._ends[: len(self._begun)]:
            with end:
                pass


def _start(name: str, pool: _Pool, number: int, stop: _Stop, end: _thread.LockType) -> None:
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
