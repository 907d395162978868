"""`python -m bench embedded`: one partition compared with what a Python service would embed instead, in records per
second.

Records have a value of 200 bytes and nothing else. Every side has the same durability. In the first rows appended
records survive a crash of the process (SQLite `synchronous=OFF` in WAL mode, LMDB `sync=False`). In the synced rows
they also survive a power loss (durability "fsync", `synchronous=FULL`, LMDB's default). The sides run alternately
within a row, and the median run of each counts. `python -m bench
embedded PART...` runs the rows and sides whose names contain one of the parts; `--cpu` counts the process's CPU time in
the rows that do not wait for the disk.
"""

from __future__ import annotations

import gc
import itertools
import shutil
import sqlite3
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import kafkalog
from bench.kept import RECORDS_PER_S, Results

VALUE = bytes(range(200))
BATCH = 100
READ_RECORDS = 200_000
TURNS = 3
THREADS = 8
MAP_BYTES = 8 << 30
KEY = struct.Struct(">Q")
LINGER_S = 0.7  # one run


class Kafkalog:
    """A store with one topic of one partition."""

    name = "kafkalog"

    def __init__(self, place: Path, *, synced: bool) -> None:
        self.store = kafkalog.open(place, durability="fsync" if synced else "os")
        self.topic = self.store.create_topic("bench")

    def one(self) -> None:
        self.topic.append(VALUE)

    def many(self, values: list[bytes]) -> None:
        self.topic.append_many(values)

    def read(self) -> int:
        total = 0
        with self.store.reader(topics=["bench"]) as reader:
            for record in reader:
                total += len(record.value)  # type: ignore[arg-type]
        return total

    def arrow(self) -> int:
        with self.store.reader(topics=["bench"]) as reader:
            return sum(batch.column("value").nbytes for batch in reader.batches(columns=["offset", "value"]))

    def close(self) -> None:
        self.store.close()


class Lmdb:
    """Values under ascending keys of eight bytes, which LMDB appends to its last page."""

    name = "LMDB"

    def __init__(self, place: Path, *, synced: bool) -> None:
        import lmdb

        place.mkdir(parents=True, exist_ok=True)
        # A writable map would be slower here, and a full disk would raise SIGBUS.
        self.env = lmdb.open(str(place), map_size=MAP_BYTES, sync=synced, metasync=synced)
        self.number = itertools.count()

    def one(self) -> None:
        with self.env.begin(write=True) as txn:
            txn.put(KEY.pack(next(self.number)), VALUE, append=True)

    def many(self, values: list[bytes]) -> None:
        with self.env.begin(write=True) as txn:
            cursor = txn.cursor()
            pack, number = KEY.pack, self.number
            cursor.putmulti([(pack(next(number)), value) for value in values], append=True)

    def read(self) -> int:
        total = 0
        with self.env.begin() as txn:
            for _, value in txn.cursor():
                total += len(value)
        return total

    def close(self) -> None:
        self.env.close()


class Sqlite:
    """A table of values, in WAL mode."""

    name = "SQLite"

    def __init__(self, place: Path, *, synced: bool) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.db = sqlite3.connect(place / "db", isolation_level=None, check_same_thread=False)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute(f"PRAGMA synchronous={'FULL' if synced else 'OFF'}")
        self.db.execute("CREATE TABLE IF NOT EXISTS records (number INTEGER PRIMARY KEY, value BLOB)")

    def one(self) -> None:
        self.db.execute("INSERT INTO records (value) VALUES (?)", (VALUE,))

    def many(self, values: list[bytes]) -> None:
        self.db.execute("BEGIN")
        self.db.executemany("INSERT INTO records (value) VALUES (?)", [(value,) for value in values])
        self.db.execute("COMMIT")

    def read(self) -> int:
        total = 0
        for _, value in self.db.execute("SELECT number, value FROM records ORDER BY number"):
            total += len(value)
        return total

    def close(self) -> None:
        self.db.close()


class LiteQueue:
    """litequeue, a queue in SQLite; it has no method for several values."""

    name = "litequeue"

    def __init__(self, place: Path, *, synced: bool) -> None:
        from litequeue import LiteQueue as Queue

        place.mkdir(parents=True, exist_ok=True)
        self.queue = Queue(str(place / "db"))
        self.queue.conn.execute(f"PRAGMA synchronous={'FULL' if synced else 'OFF'}")

    def one(self) -> None:
        self.queue.put(VALUE)

    def many(self, values: list[bytes]) -> None:
        with self.queue.transaction("IMMEDIATE"):
            for value in values:
                self.queue.put(value)

    def close(self) -> None:
        self.queue.close()


class DiskCache:
    """diskcache's queue of values."""

    name = "diskcache"

    def __init__(self, place: Path, *, synced: bool) -> None:
        from diskcache import Cache

        self.cache = Cache(str(place), eviction_policy="none", sqlite_synchronous=2 if synced else 0)

    def one(self) -> None:
        self.cache.push(VALUE)

    def many(self, values: list[bytes]) -> None:
        with self.cache.transact():
            for value in values:
                self.cache.push(value)

    def close(self) -> None:
        self.cache.close()


class PersistQueue:
    """persist-queue's queue in SQLite; it pickles each value."""

    name = "persist-queue"

    def __init__(self, place: Path, *, synced: bool) -> None:
        from persistqueue import SQLiteQueue

        self.queue = SQLiteQueue(str(place), auto_commit=False, multithreading=True)
        self.queue._conn.execute(f"PRAGMA synchronous={'FULL' if synced else 'OFF'}")
        self.queue._putter.execute(f"PRAGMA synchronous={'FULL' if synced else 'OFF'}")

    def one(self) -> None:
        self.queue.put(VALUE)
        self.queue.task_done()

    def many(self, values: list[bytes]) -> None:
        for value in values:
            self.queue.put(value)
        self.queue.task_done()

    def close(self) -> None:
        self.queue.close()


SIDES: dict[str, Callable[..., Any]] = {
    side.name: side for side in (Kafkalog, Lmdb, Sqlite, LiteQueue, DiskCache, PersistQueue)
}
Clock = Callable[[], float]
Turn = Callable[[Any, Clock], float]  # records per second of an open side


def timed(do: Callable[[], int], clock: Clock, seconds: float = LINGER_S) -> float:
    """Returns the records per second of `clock`; `do` returns how many records it processed."""
    until = time.perf_counter() + seconds
    count, start = 0, clock()
    while True:
        count += do()
        if time.perf_counter() >= until:
            return count / (clock() - start)


def singles(side: Any, clock: Clock) -> float:
    one = side.one

    def do() -> int:
        for _ in range(10):
            one()
        return 10

    return timed(do, clock)


def synced_singles(side: Any, clock: Clock) -> float:
    def do() -> int:
        side.one()
        return 1

    return timed(do, clock, 2 * LINGER_S)


def batches(side: Any, clock: Clock) -> float:
    values = [VALUE] * BATCH

    def do() -> int:
        side.many(values)
        return BATCH

    return timed(do, clock)


def of_threads(side: Any, clock: Clock) -> float:
    """Synced appends of single records by eight threads on one log."""
    until = time.perf_counter() + 2 * LINGER_S
    counts: list[int] = []

    def work() -> None:
        count = 0
        while time.perf_counter() < until:
            side.one()
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    start = clock()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (clock() - start)


def filled(side: Any, read: Callable[[Any], int], clock: Clock) -> float:
    values = [VALUE] * 10_000
    for _ in range(READ_RECORDS // len(values)):
        side.many(values)

    def do() -> int:
        assert read(side) >= READ_RECORDS * len(VALUE), "records are missing"
        return READ_RECORDS

    do()
    return timed(do, clock)


@dataclass(frozen=True)
class Row:
    """One comparison: (side, how it is measured) for each side, and the target ratios of the first side.

    `aims` are by the name of a side in the row; `uses` is what a record needs from the machine's limits.
    """

    name: str
    synced: bool
    turns: Sequence[tuple[str, str, Turn]]
    aims: dict[str, float]
    uses: dict[str, float] = field(default_factory=dict)


def of_each(turn: Turn, *names: str) -> list[tuple[str, str, Turn]]:
    return [(name, name, turn) for name in names]


def records_of(side: Any, clock: Clock) -> float:
    return filled(side, lambda it: it.read(), clock)


def arrow_of(side: Any, clock: Clock) -> float:
    return filled(side, lambda it: it.arrow(), clock)


ROWS = [
    Row("batched appends, 100 each", False, of_each(batches, *SIDES), {"LMDB": 2}),
    Row("appends one by one", False, of_each(singles, *SIDES), {"LMDB": 1, "litequeue": 4, "diskcache": 4}),
    Row("read as records", False, of_each(records_of, "kafkalog", "LMDB", "SQLite"), {"LMDB": 1.2}),
    Row(
        "read as Arrow", False,
        [("kafkalog", "kafkalog", arrow_of), *of_each(records_of, "LMDB", "SQLite")], {"LMDB": 5},
    ),
    Row("synced batches of 100", True, of_each(batches, *SIDES), {"LMDB": 1.2}, {"fdatasync": 1 / BATCH}),
    Row("synced singles", True, of_each(synced_singles, *SIDES), {}, {"fdatasync": 1}),
    Row(
        "synced singles of 8 threads", True,
        [("kafkalog", "kafkalog", of_threads), ("LMDB", "LMDB", of_threads),
         ("kafkalog", "kafkalog, one thread", synced_singles)],
        {"kafkalog, one thread": 4},
    ),
]  # fmt: skip


def measured(row: Row, sides: Sequence[tuple[str, str, Turn]], turns: int, by_cpu: bool) -> dict[str, list[float]]:
    """Returns the records per second of each run of each side."""
    clock = time.process_time if by_cpu and not row.synced else time.perf_counter
    found: dict[str, list[float]] = {}
    for _ in range(turns):
        for side, shown, turn in sides:
            with tempfile.TemporaryDirectory(prefix="kafkalog-bench-") as place:
                opened = SIDES[side](Path(place) / "data", synced=row.synced)
                try:
                    found.setdefault(shown, []).append(turn(opened, clock))
                finally:
                    opened.close()
            gc.collect()
            shutil.rmtree(place, ignore_errors=True)
    return found


def chosen(parts: Sequence[str]) -> Iterator[tuple[Row, list[tuple[str, str, Turn]]]]:
    """Yields rows, each with its first side and the sides that were named."""
    sides_named = [part for part in parts if any(part in side for side in SIDES)]
    rows_named = [part.lower() for part in parts if part not in sides_named]
    for row in ROWS:
        if not rows_named or any(part in row.name.lower() for part in rows_named):
            wanted = [
                turn for at, turn in enumerate(row.turns)
                if not sides_named or at == 0 or turn[1] in row.aims or any(part in turn[1] for part in sides_named)
            ]  # fmt: skip
            yield row, wanted


def main(results: Results, parts: Sequence[str] = (), turns: int = TURNS, *, by_cpu: bool = False) -> None:
    """Runs the comparison, and prints a table of thousands of records per second."""
    print(f"| {'k records/s':30} | {'kafkalog':>9} | compared with | ratio |")
    print("|---|---|---|---|")
    for row, sides in chosen(parts):
        windows = measured(row, sides, turns, by_cpu)
        results.row("embedded", row.name, RECORDS_PER_S, windows, uses=row.uses)
        found = {side: median(rates) for side, rates in windows.items()}
        ours = found["kafkalog"]
        for shown, theirs in found.items():
            if shown == "kafkalog":
                continue
            times, aim = ours / theirs, row.aims.get(shown)
            verdict = "" if aim is None else (f" (aim {aim:g})" if times >= aim else f" (BELOW the aim of {aim:g})")
            print(
                f"| {row.name:30} | {ours / 1e3:9.2f} | {shown} {theirs / 1e3:.2f} | {times:.2f}x{verdict} |",
                flush=True,
            )
