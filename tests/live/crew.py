"""Threads that work on logs at once: started together, stopped together, their errors checked by a table.

`MAY_RAISE` lists the errors that an operation may raise next to each other one; any other error fails the test.  A
disk error if no disk failed, a bare OSError, or EBADF is never right.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import kafkalog
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    OffsetOutOfRangeException,
    OutOfOrderSequenceException,
)
from tests.conformance import ways
from tests.live.interrupts import CONFIG, value_of
from tests.live.oracle import FAST, Oracle, in_a_thread
from tests.sampling import LONG

SECONDS = float(os.environ.get("LIVE_SECONDS", "60" if LONG else "2"))
HANG_SECONDS = 60.0

# (operation, concurrent operation): the errors that it may raise.
MAY_RAISE: dict[tuple[str, str], tuple[type[Exception], ...]] = {
    ("append", "close"): (IllegalStateException,),
    ("write", "close"): (IllegalStateException,),
    ("transact", "close"): (IllegalStateException,),
    ("read", "close"): (IllegalStateException,),
    ("flush", "close"): (IllegalStateException,),
    ("shrink", "close"): (IllegalStateException,),
    ("compact", "close"): (IllegalStateException,),
    ("close", "close"): (),
    ("append", "truncate"): (),
    ("write", "truncate"): (OutOfOrderSequenceException,),  # its number was drawn before the truncation
    ("read", "truncate"): (OffsetOutOfRangeException,),
    ("append", "retention"): (),
    ("read", "retention"): (OffsetOutOfRangeException,),
    ("open", "open"): (),
    ("open the same", "open"): (IllegalArgumentException,),
}


class Crew:
    """`add` threads, `run` them for a time; every error that the table does not allow is raised at the end."""

    def __init__(self, beside: str = "") -> None:
        self.beside = beside
        self.stop = threading.Event()
        self.enough: Callable[[], bool] = lambda: False  # the crew stops earlier where this says so
        self.steps = 0
        self.refused = 0
        self._failures: list[str] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._start = threading.Event()

    def add(self, role: str, work: Callable[[], object], *, once: bool = False) -> None:
        """A thread that repeats `work` until the crew stops, or until what the table allows is raised."""
        allowed = MAY_RAISE.get((role, self.beside), ())
        ends = self.beside == "close"

        def run() -> None:
            self._start.wait()
            steps = refused = 0
            try:
                while not self.stop.is_set():
                    try:
                        work()
                        steps += 1
                    except allowed:
                        refused += 1
                        if ends:
                            break
                    if once:
                        break
            except BaseException:
                with self._lock:
                    self._failures.append(f"{role}: {traceback.format_exc()}")
                self.stop.set()
            with self._lock:
                self.steps += steps
                self.refused += refused

        self._threads.append(threading.Thread(target=run, name=f"{role}{len(self._threads)}", daemon=True))

    def run(self, seconds: float, then: Callable[[], object] = lambda: None) -> None:
        """Let everybody work for a time, call `then`, wait for the end."""
        for thread in self._threads:
            thread.start()
        self._start.set()
        end = time.monotonic() + seconds
        if self.beside == "close":
            time.sleep(seconds)
        else:
            while time.monotonic() < end and not self.enough() and not self.stop.wait(0.01):
                pass
        try:
            self._bounded(then)
        finally:
            self.stop.set()
        for thread in self._threads:
            thread.join(HANG_SECONDS)
            assert not thread.is_alive(), f"{thread.name} hangs\n{all_stacks()}"
        assert not self._failures, "\n".join(self._failures[:3])

    @staticmethod
    def _bounded(then: Callable[[], object]) -> None:
        failed: list[BaseException] = []

        def run() -> None:
            try:
                then()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run, name="then", daemon=True)
        thread.start()
        thread.join(HANG_SECONDS)
        assert not thread.is_alive(), f"hangs\n{all_stacks()}"
        if failed:
            raise failed[0]


def all_stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


# --- what members do -------------------------------------------------------------------------------------


class Member:
    """One thread's way to append: unique names, reported to the oracle."""

    def __init__(
        self, log: kafkalog.Partition, oracle: Oracle, number: int, *, seed: int = 0, filler: int = 40
    ) -> None:
        self.log = log
        self.oracle = oracle
        self.number = number
        self.rng = random.Random(seed * 1000 + number)
        self.count = 0
        self.filler = filler

    def idents(self, count: int) -> list[bytes]:
        self.count += count
        return [b"%d.%d" % (self.number, at) for at in range(self.count - count, self.count)]

    def append(self) -> None:
        (ident,) = self.idents(1)
        unit = self.oracle.attempt(ident)
        self.oracle.acknowledge(unit, self.log.append(value_of(ident, self.filler), key=self.key()))

    def key(self) -> bytes:
        """One of a few that are this thread's own."""
        return b"%d.%d" % (self.number, self.count % 5)

    def append_many(self) -> None:
        idents = self.idents(self.rng.randint(2, 8))
        unit = self.oracle.attempt(*idents)
        records = [(value_of(ident, self.filler), self.key()) for ident in idents]
        self.oracle.acknowledge(unit, self.log.append_many(records))

    def append_columns(self) -> None:
        idents = self.idents(self.rng.randint(2, 8))
        unit = self.oracle.attempt(*idents)
        self.oracle.acknowledge(unit, self.log.append_columns([value_of(ident, self.filler) for ident in idents]))

    def write(self) -> None:
        writer = self.log.writer(f"writer{self.number}")
        (ident,) = self.idents(1)
        unit = self.oracle.attempt(ident)
        offset = writer.append(value_of(ident, self.filler), sequence=writer.next_sequence)
        assert offset is not None
        self.oracle.acknowledge(unit, offset)

    def transact(self) -> None:
        number = self.number * 1_000_000 + self.count
        how = "abort" if self.rng.random() < 0.3 else "commit"
        transaction = self.log.transaction(f"job{self.number}")
        transaction.begin()
        try:
            for _ in range(self.rng.randint(1, 3)):
                (ident,) = self.idents(1)
                unit = self.oracle.attempt(ident, transaction=number)
                self.oracle.acknowledge(unit, transaction.append(value_of(ident, self.filler), key=self.key()))
        except BaseException:
            self.oracle.ends[number] = "aborted"  # by the close that came in between
            raise
        with self.oracle.ending(number, how):
            getattr(transaction, how)()


def read_through(log: kafkalog.Partition, oracle: Oracle) -> None:
    """One walk through a log that others change: in order, and at least up to what could be read when it began."""
    end = log.high_watermark
    last = None
    for record in log.records():
        assert record.value is not None
        assert record.value.count(b".") > 1, record
        assert last is None or record.offset > last, f"{record.offset} after {last}"
        last = record.offset
    assert oracle.cuts or end == 0 or last is None or last >= end - 2, f"read up to {last}, the mark was at {end}"


def latest_through(log: kafkalog.Partition, oracle: Oracle) -> None:
    """The last value of each key of a log that others change: those of a walk, if nothing was truncated meanwhile."""
    end = log.high_watermark
    table = log.latest(end, isolation="read_uncommitted", batch_rows=50).read_all()
    keys, offsets, found = (table[name].to_pylist() for name in ("key", "offset", "value"))
    assert len(keys) == len(set(keys))
    assert offsets == sorted(set(offsets))
    assert all(value.count(b".") > 1 for value in found)
    committed = log.latest(columns=["key", "offset"]).read_all()
    assert len(committed) == len(set(committed["key"].to_pylist()))
    if not (oracle.cuts or oracle.retention):
        assert dict(zip(keys, found, strict=True)) == {
            record.key: record.value for record in log.records(end=end) if record.key is not None
        }


def filtered_through(log: kafkalog.Partition, oracle: Oracle) -> None:
    """The records of one thread's keys of a log that others change: those of a walk, if nothing was cut meanwhile."""
    end = log.high_watermark
    table = log.read_arrow(end=end, key_prefix="1.", grep=r"\.", columns=["offset", "key"])
    offsets, keys = table["offset"].to_pylist(), table["key"].to_pylist()
    assert offsets == sorted(set(offsets))
    assert all(key.startswith(b"1.") for key in keys)
    wanted = [record.offset for record in log.records(end=end) if (record.key or b"").startswith(b"1.")]
    filtered = [record.offset for record in log.records(end=end, key_prefix="1.", where="key is not null")]
    if not (oracle.cuts or oracle.retention):
        assert offsets == filtered == wanted


def ordinary_choice(short: bool) -> AbstractContextManager[None]:
    """Which way an ordinary batch takes through an append meanwhile."""
    return ways.taking(ways.SHORT if short else ways.LONG)


def batch_start(log: kafkalog.Partition, offset: int) -> int:
    """`offset`, or the first of the batch that it lies in, or behind the end of a transaction, or the log's end: where
    it may be truncated, also later, unless a transaction ends meanwhile."""
    offset = min(offset, log.end_offset)
    if offset <= log.log_start_offset:
        return offset
    chunk = log.reader(offset).read_chunk()
    if chunk is None:
        return offset
    base = int(chunk.table["base_offset"][chunk.table["last_offset"] >= offset][0])
    offset = min(offset, max(base, log.log_start_offset))
    assert log.engine is not None
    while (parted := log.engine.decided_across(offset)) is not None:
        offset = parted[1] + 1  # after the end of the transaction that it would split
    return offset


def full(log: kafkalog.Partition) -> Callable[[], bool]:
    """Whether a log has so many segments that their files come near to what a process may have open."""
    return lambda: log.engine is not None and log.engine.number_of_segments > 80


def open_live(path: Any, partition: str = "t-0", **options: Any) -> kafkalog.Partition:
    config = {**CONFIG, **options.pop("config", {})}
    log = kafkalog.open_log(path, partition, config=config, files=options.pop("files", FAST), **options)
    _opened.append(weakref.ref(log))
    return log


def _coordinators(log: kafkalog.Partition) -> Any:
    """The coordinators of the directory, as `open_log` has them; None if nobody has needed any."""
    tenant: Any = log.appends.lease.directory.tenant  # type: ignore[union-attr]
    return None if tenant is None else tenant.coordinators


def end_left(log: kafkalog.Partition) -> None:
    """Aborts transactions that no thread is inside of, as the background does every ten seconds."""
    coordinators = _coordinators(log)
    if coordinators is not None:
        coordinators.end_overdue()


def ongoing(log: kafkalog.Partition) -> list[str]:
    """The transactional ids whose transaction is open."""
    coordinators = _coordinators(log)
    if coordinators is None:
        return []
    return [each.transactional_id for each in coordinators.transactions.list_transactions(states=("Ongoing",))]


DOORS = ("open_log", "a store")


def open_door(door: str, path: Any, **options: Any) -> tuple[kafkalog.Partition, Callable[[], None]]:
    """Opens t-0 in one of two ways; returns it and its close."""
    if door == "open_log":
        log = open_live(path, **options)
        return log, log.close
    config = {**CONFIG, **options.pop("config", {})}
    store = kafkalog.open(path, files=FAST, maintenance=False, **options)
    _opened.append(weakref.ref(store))
    return store.create_topic("t", config=config).partition(0), store.close


_opened: list[weakref.ref[kafkalog.Partition | kafkalog.Store]] = []


def close_what_was_left() -> None:
    """After a failed test: its logs must not close later, during another test."""
    left = [log for it in _opened if (log := it()) is not None and not log.closed]
    _opened.clear()
    for log in left:
        with contextlib.suppress(BaseException):
            in_a_thread(log.close, seconds=5)
