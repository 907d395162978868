"""`python -m bench queues [PART...]`: eight workers empty a queue: `store.queue`, and queues that Python programs use.

Each worker is a thread that takes records and acknowledges them until none is left; a record has a value of 200 bytes.
The figure is the records per second of all workers.

In most rows an acknowledgement survives a crash of the process on each side, and perhaps no loss of power: kafkalog's
default, and SQLite's `synchronous=OFF` in WAL mode. In the row "synced" it survives both: `durability="fsync"`, and
`synchronous=FULL`. In the row "as it comes" each side has its defaults: `synchronous=NORMAL` of litequeue, which may
lose the last acknowledgements with the power, and FULL of persist-queue and huey.

litequeue, persist-queue and huey have no call for several records: their workers take one at a time. In the last three
rows kafkalog's do the same. A take of huey deletes the message, so a worker that dies loses it. procrastinate works on
PostgreSQL only and is left out. The sides run alternately, and the median run of each counts.
"""

from __future__ import annotations

import gc
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import kafkalog
from bench.kept import RECORDS_PER_S, Results

VALUE = bytes(range(200))
WORKERS = 8
TURNS = 3
AIM = 5
CRASHES, DEFAULTS, SYNCED = "crashes", "defaults", "synced"  # the durability of an acknowledgement


class Kafkalog:
    """`store.queue`; a take returns up to `batch` records, and one call acknowledges them."""

    name = "kafkalog"

    def __init__(self, place: Path, count: int, batch: int, promise: str) -> None:
        self.store = kafkalog.open(place / "data", durability="fsync" if promise == SYNCED else "os")
        self.batch = batch
        topic = self.store.create_topic("jobs")
        for _ in range(count // 100):
            topic.append_many([VALUE] * 100)
        self.queue = self.store.queue("workers", topics=["jobs"])

    def worker(self) -> int:
        done = 0
        while taken := self.queue.take(self.batch):
            self.queue.ack(taken)
            done += len(taken)
        return done

    def close(self) -> None:
        self.queue.close()
        self.store.close()


def keep(database: Any, promise: str) -> None:
    """Lets commits of a connection survive what is promised."""
    if promise != DEFAULTS:
        database.execute(f"PRAGMA synchronous={'FULL' if promise == SYNCED else 'OFF'}")


def patient(call: Callable[[], Any]) -> Any:
    """Returns the call's result; it is tried again while another worker has the database."""
    while True:
        try:
            return call()
        except sqlite3.OperationalError:
            time.sleep(0)


class LiteQueue:
    """litequeue; a connection belongs to one thread."""

    name = "litequeue"

    def __init__(self, place: Path, count: int, batch: int, promise: str) -> None:
        self.path = str(place / "db")
        self.promise = promise
        with self._opened().transaction("IMMEDIATE"):
            pass
        queue = self._opened()
        with queue.transaction("IMMEDIATE"):
            for _ in range(count):
                queue.put(VALUE.hex()[:200])

    def _opened(self) -> Any:
        from litequeue import LiteQueue as Queue

        queue = Queue(self.path)
        keep(queue.conn, self.promise)
        return queue

    def worker(self) -> int:
        queue, done = self._opened(), 0
        while (message := patient(queue.pop)) is not None:
            patient(partial(queue.done, message.message_id))
            done += 1
        queue.close()
        return done

    def close(self) -> None:
        pass


class PersistQueue:
    """persist-queue's queue with acknowledgements."""

    name = "persist-queue"

    def __init__(self, place: Path, count: int, batch: int, promise: str) -> None:
        from persistqueue import SQLiteAckQueue

        self.queue: Any = SQLiteAckQueue(str(place), auto_commit=True, multithreading=True)
        for each in (self.queue._conn, self.queue._putter):
            keep(each, CRASHES)
        for _ in range(count):
            self.queue.put(VALUE)
        for each in (self.queue._conn, self.queue._putter):
            keep(each, SYNCED if promise == DEFAULTS else promise)

    def worker(self) -> int:
        from persistqueue import Empty

        done = 0
        while True:
            try:
                item = self.queue.get(block=False)
            except Empty:
                return done
            self.queue.ack(item)
            done += 1

    def close(self) -> None:
        self.queue.close()


class Huey:
    """huey's storage in SQLite, without the execution of tasks around it."""

    name = "huey"

    def __init__(self, place: Path, count: int, batch: int, promise: str) -> None:
        from huey import SqliteHuey

        filling = SqliteHuey(filename=str(place / "db"), fsync=False).storage
        for _ in range(count):
            filling.enqueue(VALUE)
        filling.close()
        options: dict[str, bool] = {} if promise == DEFAULTS else {"fsync": promise == SYNCED}
        self.storage = SqliteHuey(filename=str(place / "db"), **options).storage

    def worker(self) -> int:
        done = 0
        while self.storage.dequeue() is not None:
            done += 1
        return done

    def close(self) -> None:
        self.storage.close()


# A row's kafkalog takes so many records at once; the others take one.
ROWS = {
    "take and ack, 100 at once": (100, CRASHES),
    "take and ack, 10 at once": (10, CRASHES),
    "take and ack, one by one": (1, CRASHES),
    "one by one, as it comes": (1, DEFAULTS),
    "one by one, synced": (1, SYNCED),
}
OURS = 60_000
PEERS: dict[Callable[..., Any], int] = {LiteQueue: 4_000, PersistQueue: 2_000, Huey: 8_000}
SYNCED_COUNT = 2_000


def emptied(
    side: Callable[..., Any], count: int, batch: int, clock: Callable[[], float], promise: str = CRASHES
) -> float:
    """Returns the records per second of one run."""
    with tempfile.TemporaryDirectory(prefix="kafkalog-bench-") as place:
        opened = side(Path(place), count, batch, promise)
        done: list[int] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                done.append(opened.worker())
            except BaseException as error:
                failed.append(error)

        workers = [threading.Thread(target=work) for _ in range(WORKERS)]
        started = clock()
        for each in workers:
            each.start()
        for each in workers:
            each.join()
        took_s = clock() - started
        opened.close()
        if failed:
            raise failed[0]
        assert sum(done) == count, (sum(done), count)
    gc.collect()
    return count / took_s


def main(results: Results, parts: Sequence[str] = (), turns: int = TURNS, *, by_cpu: bool = False) -> None:
    """Runs the comparison, and prints a table of thousands of records per second."""
    clock = time.process_time if by_cpu else time.perf_counter
    print(f"| {'k records/s, 8 workers':26} | {'kafkalog':>9} | compared with | ratio |")
    print("|---|---|---|---|")
    for row, (batch, promise) in ROWS.items():
        if parts and not any(part.lower() in row for part in parts):
            continue
        windows: dict[str, list[float]] = {}
        for _ in range(turns):
            most = SYNCED_COUNT if promise == SYNCED else OURS
            count = min(most, OURS if batch > 1 else OURS // 10)
            windows.setdefault("kafkalog", []).append(emptied(Kafkalog, count, batch, clock, promise))
            for peer, peers_count in PEERS.items():
                rate = emptied(peer, min(most, peers_count), 1, clock, promise)
                windows.setdefault(peer.name, []).append(rate)  # type: ignore[attr-defined]
        results.row("queues", row, RECORDS_PER_S, windows)
        found = {side: median(rates) for side, rates in windows.items()}
        ours = found.pop("kafkalog")
        for name, theirs in found.items():
            times = ours / theirs
            shown = f" (aim {AIM})" if times >= AIM else f" (BELOW the aim of {AIM})"
            print(f"| {row:26} | {ours / 1e3:9.2f} | {name} {theirs / 1e3:.2f} | {times:.2f}x{shown} |", flush=True)
