"""`python -m bench [NAME...]`: runs every loop on both sides, in one run on one machine, and prints ratios.

The Java side is warmed up for some seconds per loop (`--warmup`), because a short warm-up underestimates it several
times. On a shared machine `--cpu` counts the measuring thread's CPU time on both sides instead of elapsed time; scans
then do not read ahead. `--keep` adds one JSON line to a file in bench/results/ (`bench.kept`); `python -m bench.page`
writes the page from these lines. Without Maven only kafkalog's figures are shown. The first line shows properties of
the machine that the results depend on (`bench.machine`).

Other comparisons:

- `python -m bench embedded [PART...]`: one partition and LMDB, SQLite and queues on it (`bench.embedded`).
- `python -m bench queues [PART...]`: eight workers on a queue, and packages for that (`bench.queues`).
- `python -m bench service`: a store and a local broker with confluent-kafka (`bench.service`).
- `python -m bench remote [PART...]`: a remote tier and its storage client (`bench.remote`).
- `python -m bench scale`: a store with more and more topics (`bench.store_scale`).
- `python -m bench.many_partitions`: commands on a directory of 10,000 partitions.
- `python -m bench.cleaner`: the log cleaner and Kafka's.
- `python -m bench.json_columns`: JSON columns and those of pyarrow and Polars.
- `python -m bench.asking`: a topic as Arrow, and an audit by key.

`--curves` shows the cost of a log manager with more and more partitions and segments, and of the log cleaner with more
and more keys. It also shows rates by the size of a record and the number of threads. It takes minutes, and gigabytes of
disk.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench import (
    cleaner_scale,
    curves,
    data,
    embedded,
    kafka,
    kept,
    machine,
    manager,
    memory,
    ours,
    queues,
    remote,
    service,
    store_scale,
)  # fmt: skip

WINDOWS = 5  # a loop has five; their median counts


@dataclass(frozen=True)
class Bench:
    """One comparison. `java` is the name of the Java side's loop; `aim` is the project's target ratio."""

    name: str
    unit: str
    make: Callable[[Path], ours.Round]
    java: str | None
    aim: float | None = None
    peer: tuple[str, Callable[[Path], ours.Round]] | None = None
    peer_aim: float | None = None
    clock: bool = False  # it waits for the disk or for other threads: CPU time is meaningless


BENCHES = [
    Bench("scan with CRC, 16 KiB batches", "GB/s", lambda d: ours.scan(d, "k16"), "scan:k16", 2.5),
    Bench("scan with CRC, one-record batches", "GB/s", lambda d: ours.scan(d, "one"), "scan:one", 8),
    Bench("recover a segment, 16 KiB batches", "GB/s", lambda d: ours.recover(d, "k16"), "recover:k16", 3),
    Bench("recover a segment, one-record batches", "GB/s", lambda d: ours.recover(d, "one"), "recover:one", 8),
    Bench(
        "recover two partitions, two threads", "GB/s", lambda d: ours.recover_two(d, "k16", 2), None, None,
        ("one thread, nothing read ahead", lambda d: ours.recover_two(d, "k16", 1)), 1.7, clock=True,
    ),
    Bench("open 1,000 segments after a crash", "k/s", lambda d: ours.opens(d, False), "open:unclean", 2.5, clock=True),
    Bench("open 1,000 segments, clean", "k/s", lambda d: ours.opens(d, True), "open:clean", 1),
    Bench(
        "decode, uncompressed", "M rec/s", lambda d: ours.decode(d, "k16"), "decode:k16", None,
        ("aiokafka", lambda d: ours.aiokafka_decode(d, "k16")), 2,
    ),
    Bench(
        "decode, uncompressed (kafka-python)", "M rec/s", lambda d: ours.decode(d, "k16"), None, None,
        ("kafka-python", lambda d: ours.kafka_python_decode(d, "k16")),
    ),
    Bench("decode, lz4", "M rec/s", lambda d: ours.decode(d, "lz4"), "decode:lz4", 1),
    Bench("decode, zstd", "M rec/s", lambda d: ours.decode(d, "zstd"), "decode:zstd", 1),
    Bench("encode from columns", "M rec/s", ours.encode, "encode", 1.5),
    Bench("leader append, one record", "k/s", lambda d: ours.append(d, "one"), "append:one"),
    Bench("leader append, 16 KiB", "k/s", lambda d: ours.append(d, "k16"), "append:k16", 0.7),
    Bench("leader append, 1 MiB", "k/s", lambda d: ours.append(d, "m1"), "append:m1", 1),
    Bench("leader append, lz4 16 KiB, same codec", "k/s", lambda d: ours.append(d, "lz4"), "append:lz4", 0.7),
    Bench("leader append, lz4 1 MiB, same codec", "k/s", lambda d: ours.append(d, "lz4m1"), "append:lz4m1", 1),
    Bench("leader append, lz4 16 KiB, to zstd", "k/s", lambda d: ours.append(d, "lz4", "zstd"), "append:lz4:zstd"),
    Bench("leader append, 16 KiB, to lz4", "k/s", lambda d: ours.append(d, "k16", "lz4"), "append:k16:lz4"),
    Bench("leader append, idempotent 16 KiB", "k/s", lambda d: ours.append(d, "idempotent"), "append:idempotent", 0.7),
    Bench("leader append, transactional 16 KiB", "k/s", lambda d: ours.append(d, "txn"), "append:txn", 0.7),
    Bench("sequential reads of 1 MiB", "GB/s", lambda d: ours.read(d, "sequential"), "read:sequential"),
    Bench("point reads", "k/s", lambda d: ours.read(d, "point"), "read:point", 1.2),
    Bench("index lookups, one by one", "k/s", ours.lookup, "lookup", 0.7),
    Bench("index lookups, in bulk", "k/s", ours.lookups, "lookup", 6),
]  # fmt: skip
SCALE = {"GB/s": 1e9, "M rec/s": 1e6, "k/s": 1e3}
UNIT = {"GB/s": kept.BYTES_PER_S, "M rec/s": kept.RECORDS_PER_S, "k/s": kept.CALLS_PER_S}


def measure(round: ours.Round, warmup_seconds: float, measure_seconds: float, by_cpu: bool = False) -> list[float]:
    """Returns the units per second of each window, as the Java side does."""

    def loop(seconds: float) -> float:
        units = 0
        start, start_of_cpu = time.perf_counter(), time.thread_time()
        while True:
            units += round()
            taken = time.perf_counter() - start
            if taken >= seconds:
                return units / (time.thread_time() - start_of_cpu if by_cpu else taken)

    others = ours.reading_nothing_ahead() if by_cpu else None  # another thread's CPU time is not counted
    loop(warmup_seconds)
    rates = [loop(measure_seconds / WINDOWS) for _ in range(WINDOWS)]
    del others
    return rates


def ratio(ours_per_second: list[float], theirs: list[float] | None, aim: float | None) -> str:
    if theirs is None:
        return "-"
    times = median(ours_per_second) / median(theirs)
    verdict = "" if aim is None else (f" (aim {aim:g})" if times >= aim else f" (BELOW the aim of {aim:g})")
    return f"{times:.2f}x{verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", help="run only rows whose names contain one of these texts; default: all")
    parser.add_argument("--warmup", type=float, default=3.0, help="seconds of warm-up of each Java loop")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of measurement of each loop")
    parser.add_argument("--cpu", action="store_true", help="measure CPU time instead of elapsed time")
    kept.add_options(parser)
    parser.add_argument("--startup", action="store_true", help="also measure `kafkalog --help`")
    parser.add_argument("--alone", action="store_true", help="measure kafkalog only")
    parser.add_argument(
        "--curves",
        action="store_true",
        help="measure only what depends on the number of partitions, segments, keys and threads",
    )
    parser.add_argument(
        "--largest", type=int, default=100_000, help="the largest number of partitions or segments of the curves"
    )
    parser.add_argument("--keys", type=int, default=100_000_000, help="the largest number of keys of the curves")
    options = parser.parse_intermixed_args()
    results = kept.Results()
    if options.curves:
        with_kafka = not options.alone and kafka.available() is None
        manager.curves(options.largest, results, with_kafka=with_kafka)
        cleaner_scale.curve(options.keys, None, results)
        curves.record_sizes(results, options.warmup, options.seconds, with_kafka=with_kafka)
        curves.threads(results, options.warmup, options.seconds, with_kafka=with_kafka)
        kept.keep(options, results)
        return
    machine.tell(Path(tempfile.gettempdir()))
    others: dict[str, Callable[[], object]] = {
        "service": lambda: service.main(results),
        "remote": lambda: remote.main(results, options.names[1:]),
        "scale": lambda: store_scale.main(results),
        "embedded": lambda: embedded.main(results, options.names[1:], by_cpu=options.cpu),
        "queues": lambda: queues.main(results, options.names[1:], by_cpu=options.cpu),
    }
    if options.names and options.names[0] in others:
        others[options.names[0]]()
        kept.keep(options, results)
        return
    chosen = [b for b in BENCHES if not options.names or any(part in b.name for part in options.names)]
    missing = kafka.available()
    with tempfile.TemporaryDirectory(prefix="kafkalog-bench-") as place:
        root = Path(place)
        print("writing the files ...", file=sys.stderr)
        data.make(root)
        theirs: dict[str, list[float]] = {}
        loops = [b.java for b in chosen if b.java]
        if options.alone or (not loops and not missing):
            pass
        elif missing:
            print(f"SKIPPED: Apache Kafka is not measured, because {missing}", file=sys.stderr)
        else:
            print(
                f"Apache Kafka: {len(loops)} loops, about {len(loops) * (options.warmup + options.seconds):.0f} s ...",
                file=sys.stderr,
            )
            theirs = kafka.measure(root, loops, options.warmup, options.seconds, options.cpu)
        print(f"| {'':44} | {'kafkalog':>16} | {'Apache Kafka 4.4.0':>20} | ratio | compared with |")
        print("|---|---|---|---|---|")
        for bench in chosen:
            by_cpu = options.cpu and not bench.clock
            mine = measure(bench.make(root), 0.3, options.seconds, by_cpu)
            gc.collect()  # closes the row's files, so that the next row finds warm memory
            shutil.rmtree(root / "python", ignore_errors=True)
            kafkas = theirs.get(bench.java or "")
            scale = SCALE[bench.unit]
            found = {kept.KAFKALOG: mine, kept.KAFKA: kafkas}
            beside = ""
            if bench.peer is not None:
                name, make = bench.peer
                other = measure(make(root), 0.3, options.seconds, by_cpu)
                found[name] = other
                beside = f"{name} {median(other) / scale:.2f}: {ratio(mine, other, bench.peer_aim)}"
            results.row("engine", bench.name, UNIT[bench.unit], found, uses=uses(bench.name, root))
            shown = "-" if kafkas is None else f"{median(kafkas) / scale:.2f} {bench.unit}"
            print(
                f"| {bench.name:44} | {median(mine) / scale:8.2f} {bench.unit:>7} | {shown:>20} | "
                f"{ratio(mine, kafkas, bench.aim)} | {beside} |",
                flush=True,
            )
        if not options.names or any(part in name for name in manager.ROWS for part in options.names):
            for row in manager.compare(root, 3, with_kafka=not options.alone and not missing):
                results.row("manager", row.name, kept.CALLS_PER_S, {kept.KAFKALOG: row.kafkalog, kept.KAFKA: row.kafka})
                shown = "-" if row.kafka is None else f"{median(row.kafka) / 1e3:.2f} k/s"
                print(
                    f"| {row.name:44} | {median(row.kafkalog) / 1e3:8.2f} {'k/s':>7} | {shown:>20} | "
                    f"{ratio(row.kafkalog, row.kafka, row.aim)} |  |",
                    flush=True,
                )
    if not options.names or any(part in "peak memory" for part in options.names):
        memory.peaks(results)
    if options.startup or not options.names:
        seconds = help_seconds()
        results.row("memory", "`kafkalog --help`", kept.SECONDS, {kept.KAFKALOG: seconds}, better=kept.LOWER)
        print(f"\n`kafkalog --help`: {median(seconds) * 1000:.0f} ms (aim 200 ms)")
    kept.keep(options, results)


def uses(name: str, root: Path) -> dict[str, float]:
    """Returns what a unit of a row needs from the machine's limits, for the rows that are near to one."""
    if name.startswith(("scan", "recover")):
        return {"pread": 1, "CRC from cache": 1}  # a part is read into a buffer, and checked there
    if name.startswith("sequential"):
        return {"pread": 1}
    for kind, words in {"k16": "append, 16 KiB", "m1": "append, 1 MiB"}.items():
        if name.endswith(words):
            return dict.fromkeys(("pwrite", "CRC from cache"), (root / f"batch-{kind}.bin").stat().st_size)
    return {}


def help_seconds() -> list[float]:
    """Returns the seconds of `kafkalog --help`, of ten runs."""
    taken = []
    for _ in range(10):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "kafkalog", "--help"], check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start)
    return taken


if __name__ == "__main__":
    main()
