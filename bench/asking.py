"""`python -m bench.asking [ROW...]`: a topic as Arrow, and an audit by key, in bytes of the log per second on one core.

The topic has 4 M records with a key and a value of 200 bytes in four partitions; the audit searches 1,000 partitions of
2 MB for one key. Batches have 16 KiB, as a producer writes them by default, and are uncompressed. All data is in memory
(/dev/shm if it exists), so that no disk is measured. The process is bound to one processor and counts its CPU time
there (user and system), because other processes make the elapsed time longer; the elapsed time is shown, too. The sides
run alternately, and the median of each counts.

The topic as Arrow is compared with the same table from Parquet and from an Arrow file, with pyarrow in one thread. The
audit is compared with reading the same files through one buffer and nothing else, and with a search for the key's
bytes. `--partitions` and `--records` make the data smaller; `--keep DIR` writes it once and keeps it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import kafkalog
from bench import kept, machine
from bench.kept import BYTES_PER_S, KAFKALOG, Results
from kafkalog.engine.format.builder import build_batch

RECORDS = 4_000_000
TOPIC_PARTITIONS = 4
AUDIT_PARTITIONS = 1_000
AUDIT_PARTITION_BYTES = 2_000_000
VALUE_BYTES = 200
BATCH_RECORDS = 74  # 16 KiB
BATCHES = 512  # different batches, which are repeated
CUSTOMERS = 100_000
WANTED = "customer-7"  # one record in one of the batches
ARROW_AIM, AUDIT_AIM = 1.0, 2.0  # GB/s
READ_BYTES = 1 << 20
TURNS = 5
USES = {"pread": 1}  # all of the log is read
ROWS = {
    "arrow": {
        "a topic as Arrow, batch by batch": {
            KAFKALOG: "arrow_batches(), each dropped",
            "Parquet": "Parquet without compression, each batch dropped",
            "Arrow file": "an Arrow file, each batch read and dropped",
        },
        "a topic as one Arrow table": {KAFKALOG: "read_arrow(), a table of all"},
        "three columns, batch by batch": {KAFKALOG: "arrow_batches(columns=[offset, key, value])"},
    },
    "audit": {
        "one key, `store.read_arrow`": {
            KAFKALOG: "store.read_arrow(key=...)",
            "bytes.find": "reading the files and searching for the key (bytes.find)",
            "reading only": "only reading the files",
        },
        "one key, `kafkalog export`": {KAFKALOG: "kafkalog export --key, a process including its start"},
    },
}
NOW_MS = 1_700_000_000_000
WORDS = [b"order", b"created", b"user", b"berlin", b"paid", b"tokyo", b"EUR", b"status", b"shipped", b"0123456789"]


def batches(count: int = BATCHES) -> list[bytes]:
    """Returns different batches of records as services write them; the first has one record with the wanted key."""
    rng = random.Random(28)

    def record(number: int) -> tuple[int, bytes, bytes, tuple[()]]:
        text = b" ".join(rng.choice(WORDS) for _ in range(60)) + b" %016x" % rng.getrandbits(64)
        return NOW_MS + number, b"customer-%d" % rng.randrange(8, CUSTOMERS), text[:VALUE_BYTES], ()

    made = [[record(number) for number in range(BATCH_RECORDS)] for _ in range(count)]
    made[0][BATCH_RECORDS // 2] = (NOW_MS, WANTED.encode(), made[0][BATCH_RECORDS // 2][2], ())
    return [build_batch(rows) for rows in made]


def make_topic(root: Path, records: int) -> None:
    """Creates one topic with this many records."""
    models = batches()
    with kafkalog.open(root) as store:
        topic = store.create_topic("events", TOPIC_PARTITIONS)
        for number in range(records // BATCH_RECORDS):
            topic.append_batches(models[number % BATCHES], number % TOPIC_PARTITIONS)
        topic.append_many([b"the last one"] * (records % BATCH_RECORDS), partition=0)


def make_audit(root: Path, partitions: int) -> None:
    """Creates ten topics with this many partitions in all."""
    models = batches()
    each = AUDIT_PARTITION_BYTES // len(models[0])
    with kafkalog.open(root) as store:
        for topic in range(10):
            made = store.create_topic(f"events_{topic}", partitions // 10)
            for partition in range(partitions // 10):
                first = topic * 100 + partition
                for number in range(each):
                    made.append_batches(models[(first * each + number) % BATCHES], partition)


def logs(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.log"))


def log_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in logs(root))


@dataclass
class Turn:
    """Seconds of CPU time and of elapsed time."""

    processor: float
    clock: float


def turn(work: Callable[[], Any]) -> Turn:
    """Runs one call and measures it, including the processes that it starts."""
    clock, before = time.perf_counter(), os.times()
    work()
    after, clock = os.times(), time.perf_counter() - clock
    return Turn(sum(after[:4]) - sum(before[:4]), clock)


def measured(sides: dict[str, Callable[[], Any]], turns: int) -> dict[str, list[Turn]]:
    """Returns the runs of each side."""
    found: dict[str, list[Turn]] = {name: [] for name in sides}
    for number in range(turns + 1):
        for name, work in sides.items():
            taken = turn(work)
            if number:  # the first run is a warm-up
                found[name].append(taken)
    return found


def shown(title: str, size: int, turns: dict[str, list[Turn]], aim: float) -> None:
    """Prints a table; the aim is that of the kafkalog sides."""
    seconds = {name: sorted(each, key=lambda it: it.processor)[len(each) // 2] for name, each in turns.items()}
    print(f"\n{title}: {size / 1e9:.2f} GB of log\n")
    print("| side | GB/s of CPU time | GB/s of elapsed time | relative to the first |")
    print("|---|---|---|---|")
    found = {name: size / each.processor / 1e9 for name, each in seconds.items()}
    first = next(iter(found.values()))
    for name, rate in found.items():
        verdict = "" if not name.startswith("kafkalog") else f" (aim {aim:g})" if rate >= aim else f" (BELOW {aim:g})"
        clock = size / seconds[name].clock / 1e9
        print(f"| {name} | {rate:.2f}{verdict} | {clock:.2f} | {rate / first:.2f}x |", flush=True)


def topic_sides(root: Path, place: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    store = kafkalog.open(root, read_only=True)
    topic = store.topic("events")

    def stream(**reading: Any) -> int:
        return sum(batch.num_rows for batch in topic.arrow_batches(**reading))

    yield "kafkalog: arrow_batches(), each dropped", stream
    yield "kafkalog: read_arrow(), a table of all", topic.read_arrow
    yield "kafkalog: arrow_batches(columns=[offset, key, value])", lambda: stream(columns=["offset", "key", "value"])
    parquet, arrow_file = place / "events.parquet", place / "events.arrow"
    table = topic.read_arrow()
    pq.write_table(table, parquet, compression="none", use_dictionary=["topic", "partition", "timestamp_type"])
    with pa.OSFile(str(arrow_file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    del table

    def of_arrow_file() -> int:
        with pa.OSFile(str(arrow_file)) as source:
            reader = pa.ipc.open_file(source)
            return sum(reader.get_batch(number).num_rows for number in range(reader.num_record_batches))

    def of_parquet() -> int:
        file = pq.ParquetFile(parquet)
        return sum(batch.num_rows for batch in file.iter_batches(65_536, use_threads=False))

    yield "Parquet without compression, each batch dropped", of_parquet
    yield "an Arrow file, each batch read and dropped", of_arrow_file


def audit_sides(root: Path, place: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    store = kafkalog.open(root, read_only=True)
    paths, found = logs(root), place / "found.parquet"
    environment = machine.as_installed(place)
    expected = store.read_arrow(key=WANTED, columns=["offset"]).num_rows
    assert expected, WANTED

    def audit() -> None:
        assert store.read_arrow(key=WANTED).num_rows == expected

    def export() -> None:
        line = [sys.executable, "-m", "kafkalog", "export", str(root), "--key", WANTED, "--to", str(found), "--force"]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        assert pq.read_metadata(found).num_rows == expected

    def plain(look: Callable[[bytearray], object]) -> None:
        buffer = bytearray(READ_BYTES)
        for path in paths:
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    look(buffer)

    key = WANTED.encode() + b"\x90\x03"  # including the length of the value after it
    yield "kafkalog: store.read_arrow(key=...)", audit
    yield "kafkalog export --key, a process including its start", export
    yield "only reading the files", lambda: plain(lambda buffer: None)
    yield "reading the files and searching for the key (bytes.find)", lambda: plain(lambda buffer: buffer.find(key))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("rows", nargs="*", choices=[[], "arrow", "audit"], help="arrow or audit; default: both")
    asked.add_argument("--records", type=int, default=RECORDS)
    asked.add_argument("--partitions", type=int, default=AUDIT_PARTITIONS)
    asked.add_argument("--turns", type=int, default=TURNS)
    asked.add_argument("--only", metavar="PART", help="only sides whose names contain PART")
    asked.add_argument("--keep", type=Path, metavar="DIR", help="create the data in DIR if it is missing, and keep it")
    asked.add_argument("--run", help="keep the results in bench/results/ under this name")
    args = asked.parse_args()
    results = Results()
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    machine.tell(Path(memory or tempfile.gettempdir()))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    place = args.keep or Path(tempfile.mkdtemp(prefix="kafkalog-asking-", dir=memory))
    place.mkdir(exist_ok=True)
    try:
        for name, make, count, sides, title, aim in (
            ("arrow", make_topic, args.records, topic_sides, f"{args.records:,} records as Arrow", ARROW_AIM),
            ("audit", make_audit, args.partitions, audit_sides, f"a key in {args.partitions:,} partitions", AUDIT_AIM),
        ):
            if args.rows and name not in args.rows:
                continue
            root = place / name
            if not root.exists():
                make(root, count)
            chosen = {side: work for side, work in sides(root, place) if not args.only or args.only in side}
            turns, size = measured(chosen, args.turns), log_bytes(root)
            shown(title, size, turns, aim)
            rates = {
                side.removeprefix("kafkalog: "): [size / it.processor for it in each] for side, each in turns.items()
            }
            for row, of in ROWS[name].items():
                named = {side: rates[full] for side, full in of.items() if full in rates}
                results.row("asking", row, BYTES_PER_S, named, uses=USES)
            if args.keep is None:
                shutil.rmtree(root)
        if args.run:
            kept.append(kept.made(args.run, results, place))
    finally:
        if args.keep is None:
            shutil.rmtree(place)


if __name__ == "__main__":
    main()
