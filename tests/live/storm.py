"""Real interrupts at random moments: a process that works on a log is interrupted repeatedly; run by `test_storms`.

    python -m tests.live.storm signals|threads DIRECTORY SEED SECONDS

- "signals": SIGALRM interrupts the main thread some microseconds after an operation began.  The handler is Python's own
  for Ctrl-C, and often a second signal comes while the first is being handled.
- "threads": another thread raises into three workers by PyThreadState_SetAsyncExc.

Nothing is interrupted between operations.  The oracle checks the log every few operations, and the log is closed,
opened, killed (in a copy) and verified.  The process prints its counts as JSON; a failure ends with its traceback.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import logging
import os
import random
import shutil
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from kafkalog.errors import IllegalStateException, OutOfOrderSequenceException
from tests.live.cases import HAS_ALTAIR
from tests.live.crew import Member, all_stacks, batch_start, end_left, ongoing, open_live, ordinary_choice
from tests.live.interrupts import CONFIG, value_of
from tests.live.oracle import Oracle, append_one, check_killed, check_reopened, check_verified, look

PARTITION = "t-0"


class Injected(BaseException):
    """Raised into a worker."""


class Life:
    """One log, opened and closed many times, and what may be done to it."""

    def __init__(self, path: str, seed: int) -> None:
        self.path = path
        self.rng = random.Random(seed)
        self.oracle = Oracle(gaps=True)
        self.log = open_live(path, PARTITION)
        self.transactions = 0
        self.counts: dict[str, int] = {}
        self.history: list[str] = []
        self.members = {number: Member(self.log, self.oracle, number, seed=seed) for number in range(5)}

    # --- operations ----------------------------------------------------------------------------------

    def choose(self) -> str:
        names = ["append"] * 6 + ["many", "columns", "write", "write"] + ["transact"] * 3 + ["roll", "flush"]
        names += [
            "read",
            "filter",
            "describe",
            *(["plot"] if HAS_ALTAIR else []),
            "latest",
            "await",
            "truncate",
            "delete",
            "retain",
            "close",
            "open_again",
        ]
        return self.rng.choice(names)

    def do(self, what: str) -> None:
        getattr(self, "_" + what)()

    def _append(self) -> None:
        self.members[0].append()

    def _many(self) -> None:
        self.members[1].append_many()

    def _columns(self) -> None:
        self.members[2].append_columns()

    def _write(self) -> None:
        self.members[3].write()

    def _transact(self) -> None:
        transact_in_a_block(self.members[4])

    def _roll(self) -> None:
        self._engine.roll()

    def _flush(self) -> None:
        self.log.flush()

    def _read(self) -> None:
        for _ in self.log.records():
            pass

    def _filter(self) -> None:
        wanted = [record.offset for record in self.log.records(key="1")]
        assert self.log.read_arrow(key="1", columns=["offset"])["offset"].to_pylist() == wanted

    def _describe(self) -> None:
        self.log.describe(sample_rows=1, exact=True)

    def _plot(self) -> None:
        assert self.log.plot("segments").to_dict()["datasets"]["segments"]

    def _latest(self) -> None:
        table = self.log.latest(isolation="read_uncommitted").read_all()
        keys = table["key"].to_pylist()
        assert len(keys) == len(set(keys))

    def _await(self) -> None:
        self.log.await_offset(max(0, self.log.end_offset - self.rng.randint(0, 1)), timeout_ms=self.rng.randint(0, 4))

    def _truncate(self) -> None:
        target = max(self.log.log_start_offset, self.log.end_offset - self.rng.randint(0, 12))
        target = batch_start(self.log, target)
        self.history.append(f"cut to {target}")
        with self.oracle.cutting("truncate", target):
            self.log.truncate(target)

    def _delete(self) -> None:
        target = max(self.log.log_start_offset, self.log.end_offset - 60)
        with self.oracle.cutting("delete", target):
            self.log.delete_records(target)

    def _retain(self) -> None:
        self.log.delete_old_segments()

    def _close(self) -> None:
        self.log.close()

    def _open_again(self) -> None:
        self.log.close()
        self.use(open_live(self.path, PARTITION))

    @property
    def _engine(self) -> Any:
        return self.log.engine

    def use(self, log: Any) -> None:
        self.log = log
        for member in self.members.values():
            member.log = log

    # --- in between ----------------------------------------------------------------------------------

    def mend(self, what: str) -> None:
        """After an interrupted close or open: finished by hand."""
        if what in ("close", "open_again"):
            self.log.close()
            assert self.log.closed
            gc.collect()  # a Partition that was created but never returned
            self.use(open_live(self.path, PARTITION))

    def judge(self) -> None:
        self.oracle.retention = True
        end_left(self.log)  # transactions that two interrupts left
        try:
            self.oracle.judge(look(self.log))
            append_one(self.log, self.oracle)
        except BaseException as error:
            error.add_note("before: " + "; ".join(self.history[-25:]))
            error.add_note(f"{self._engine}, open: {ongoing(self.log)}, ends: {self.oracle.ends}")
            raise

    def judge_all(self) -> None:
        self.judge()
        check_killed(self.path, self.path + ".killed", PARTITION, self.oracle, config=CONFIG)
        self.log.close()
        check_verified(self.path)
        check_reopened(self.path, PARTITION, self.oracle, config=CONFIG)
        self.forget()

    def forget(self) -> None:
        """A fresh log and a fresh story: judging a long one takes long."""
        shutil.rmtree(self.path)
        self.oracle = Oracle(gaps=True)
        for member in self.members.values():
            member.oracle = self.oracle
        self.use(open_live(self.path, PARTITION))

    def tell(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number


def transact_in_a_block(member: Member) -> None:
    """As users write it: an interrupt inside aborts, one at the end may have committed."""
    number = member.number * 1_000_000 + member.count
    member.oracle.ends[number] = "abort"
    with member.log.transaction(f"job{member.number}") as transaction:
        for _ in range(member.rng.randint(1, 3)):
            (ident,) = member.idents(1)
            unit = member.oracle.attempt(ident, transaction=number)
            member.oracle.acknowledge(unit, transaction.append(value_of(ident)))
        member.oracle.ends[number] = "commit"
    member.oracle.ends[number] = "committed"


# --- signals ---------------------------------------------------------------------------------------------

budget = 0  # how many more interrupts this operation may get
delays: list[float] = []


def inside(life: Life, what: str) -> None:
    """Only below this function interrupts are let through."""
    life.do(what)


def on_alarm(number: int, frame: FrameType | None) -> None:
    global budget
    at = frame
    while at is not None and at.f_code is not inside.__code__:
        at = at.f_back
    if at is None or budget <= 0:
        return
    budget -= 1
    if delays:
        signal.setitimer(signal.ITIMER_REAL, delays.pop())
    signal.default_int_handler(signal.SIGINT, frame)


def storm_of_signals(life: Life, seconds: float) -> None:
    global budget
    signal.signal(signal.SIGALRM, on_alarm)
    rng = life.rng
    end = time.monotonic() + seconds
    steps = 0
    while time.monotonic() < end or life.counts.get("judgements", 0) < 2:
        what = life.choose()
        steps += 1
        life.history.append(f"{what} at {life.log.end_offset}")
        budget = rng.choice([1, 1, 2, 3])
        delays[:] = [rng.random() * 0.0005 + 1e-6 for _ in range(budget - 1)]
        given = budget
        hit = False
        signal.setitimer(signal.ITIMER_REAL, rng.random() ** 2 * 0.004 + 1e-6)
        try:
            inside(life, what)
        except KeyboardInterrupt:
            hit = True
            life.history[-1] += f" interrupted, now {life.log.closed or life.log.end_offset}"
        signal.setitimer(signal.ITIMER_REAL, 0)
        if hit:
            life.tell("interrupts by signals")
            life.tell("second interrupts", max(0, given - budget - 1))
        if hit or what == "close":
            life.mend(what)
        if steps % 10 == 0:
            life.judge()
        if steps % 100 == 0:
            life.judge_all()
            life.tell("judgements")


# --- exceptions raised into threads ------------------------------------------------------------------------


class Worker:
    """A thread that survives whatever is raised into it, and does one operation after the other."""

    def __init__(self, life: Life, member: Member, seed: int) -> None:
        self.life = life
        self.member = member
        self.rng = random.Random(seed)
        self.stop = False
        self.inside = False
        self.steps = 0
        self.failed: str | None = None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.stop and self.failed is None:
            with contextlib.suppress(Injected):
                self.work()

    def work(self) -> None:
        while not self.stop:
            try:
                self.inside = True
                self.one()
                self.steps += 1
            except Injected:
                pass
            except IllegalStateException:
                if not self.life.log.closed:
                    raise
            except OutOfOrderSequenceException:
                pass
            except BaseException as error:
                import traceback

                self.failed = f"{error!r}\n{traceback.format_exc()}"
                return
            finally:
                self.inside = False

    def one(self) -> None:
        member = self.member
        what = self.rng.randrange(8)
        if what < 3:
            member.append()
        elif what == 3:
            member.append_many()
        elif what == 4:
            member.write()
        elif what == 5:
            transact_in_a_block(member)
        elif what == 6:
            for _ in self.life.log.records(max(self.life.log.end_offset - 30, self.life.log.log_start_offset)):
                pass
        else:
            self.life.log.flush()


def raise_into(thread: threading.Thread) -> None:
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Injected))


def storm_into_threads(life: Life, seconds: float, seed: int) -> None:
    rng = life.rng
    end = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < end or rounds < 2:
        rounds += 1
        workers = [Worker(life, life.members[number], seed * 100 + number + rounds) for number in (0, 1, 4)]
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            time.sleep(rng.random() * 0.0005)
            worker = rng.choice(workers)
            if worker.inside and worker.thread.is_alive():
                raise_into(worker.thread)
                life.tell("exceptions raised into threads")
        for worker in workers:
            worker.stop = True
        for worker in workers:
            worker.thread.join(20)
            assert not worker.thread.is_alive(), f"a worker hangs\n{all_stacks()}"
            assert worker.failed is None, worker.failed
        end_left(life.log)  # an interrupt may come while a block is left
        assert ongoing(life.log) == []
        life.judge_all()
        life.tell("judgements")


def main() -> None:
    kind, path, seed, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    faulthandler.dump_traceback_later(seconds + 60, exit=True)
    os.makedirs(path)
    life = Life(os.path.join(path, "log"), seed)
    logging.disable(logging.WARNING)
    with ordinary_choice(seed % 2 == 1):
        if kind == "signals":
            storm_of_signals(life, seconds)
        else:
            storm_into_threads(life, seconds, seed)
    life.log.close()
    print(json.dumps(life.counts))


def guarded() -> None:
    """No alarm may come once the interpreter has given its handlers back."""
    try:
        main()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    guarded()
