"""Two curves of the engine: bytes per second by the size of a record, and by the number of threads.

Both sides read the same files and append the same batches, as in `python -m bench`. A batch has 16 KiB, or one record
that is larger. Each thread has its own partition, because a log has one writer. `python -m bench --curves` runs these
after the curves of partitions, segments and keys; `python -m bench.curves` runs only these.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from bench import data, kafka, ours
from bench.kept import BYTES_PER_S, KAFKA, KAFKALOG, Results, add_options, keep, shown
from kafkalog._native.codec import batches
from kafkalog.engine.format.builder import build_batch

SIZES = (10, 100, 1_000, 10_000, 100_000)
THREADS = (1, 2, 4, 8)
BATCH_BYTES = 16 << 10
SEGMENT_BYTES = 64 << 20
WINDOWS = 5
USES = {
    "decode": {"pread": 1.0},
    "append": {"pwrite": 1.0, "CRC from cache": 1.0},
    "scan": {"pread": 1.0, "CRC from cache": 1.0},
}


def measured(rounds: list[ours.Round], warmup_seconds: float, measure_seconds: float) -> list[float]:
    """Returns the units per second of all rounds together, a thread for each, in each window."""

    def loop(round: ours.Round, seconds: float) -> float:
        units, begin = 0, time.perf_counter()
        while True:
            units += round()
            taken = time.perf_counter() - begin
            if taken >= seconds:
                return units / taken

    with ThreadPoolExecutor(len(rounds)) as pool:
        turns = [warmup_seconds, *[measure_seconds / WINDOWS] * WINDOWS]
        return [sum(pool.map(loop, rounds, [seconds] * len(rounds))) for seconds in turns][1:]


def record_sizes(results: Results, warmup_seconds: float, measure_seconds: float, *, with_kafka: bool) -> None:
    """Decodes and appends records of each size."""
    print("\n| record bytes | loop | kafkalog | Apache Kafka |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="kafkalog-bench-") as made:
        root = Path(made)
        of_record, of_batch = {}, {}
        for size in SIZES:
            of_record[size], of_batch[size] = _write(root, size)
        loops = [f"{what}:size{size}" for size in SIZES for what in ("decode", "append")]
        theirs = kafka.measure(root, loops, warmup_seconds, measure_seconds, False) if with_kafka else {}
        for size in SIZES:
            for what, make, of in (("decode", ours.decode, of_record), ("append", ours.append, of_batch)):
                mine = measured([make(root, f"size{size}")], 0.3, measure_seconds)
                sides = {KAFKALOG: mine, KAFKA: theirs.get(f"{what}:size{size}", [])}
                _add(results, "record size", f"{what}, by record size", "bytes of a value", size, sides, of[size])
                shutil.rmtree(root / "python", ignore_errors=True)


def threads(results: Results, warmup_seconds: float, measure_seconds: float, *, with_kafka: bool) -> None:
    """Scans and appends with more and more threads, each on its own partition."""
    print("\n| threads | loop | kafkalog | Apache Kafka |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="kafkalog-bench-") as made:
        root = Path(made)
        _write(root, 100)
        kind, batch_bytes = "size100", (root / "batch-size100.bin").stat().st_size
        loops = [f"threads:{count}:{what}:{kind}" for count in THREADS for what in ("scan", "append")]
        theirs = kafka.measure(root, loops, warmup_seconds, measure_seconds, False) if with_kafka else {}
        for count in THREADS:
            for what, unit_bytes in (("scan", 1), ("append", batch_bytes)):
                rounds = [
                    ours.scan(root, kind) if what == "scan" else ours.append(root, kind, name=f"append{number}")
                    for number in range(count)
                ]
                mine = measured(rounds, 0.3, measure_seconds)
                del rounds
                sides = {KAFKALOG: mine, KAFKA: theirs.get(f"threads:{count}:{what}:{kind}", [])}
                _add(results, "threads", f"{what} of 16 KiB batches, by threads", "threads", count, sides, unit_bytes)
                shutil.rmtree(root / "python", ignore_errors=True)


def _write(root: Path, size: int) -> tuple[float, int]:
    """Writes a segment and a batch of records with values of `size` bytes; returns the log's bytes for a record, and
    those of a batch."""
    rng = random.Random(size)
    count = max(1, BATCH_BYTES // (size + 20))
    values = [(data.value(rng) * (size // 80 + 1))[:size] for _ in range(count)]
    records = [(data.NOW_MS + number, b"key-%08d" % number, value, ()) for number, value in enumerate(values)]
    batch = bytearray(build_batch(records))
    (root / f"batch-size{size}.bin").write_bytes(batch)
    folder = root / f"size{size}-0"
    folder.mkdir()
    with (folder / f"{0:020d}.log").open("wb") as file:
        for number in range(SEGMENT_BYTES // len(batch)):
            last = (number + 1) * count - 1
            batch[: data.HEADER_BYTES] = batches.restamped_header(batch, last_offset=last, leader_epoch=0)
            file.write(batch)
    return len(batch) / count, len(batch)


def _add(
    results: Results, group: str, name: str, x: str, at: int, sides: dict[str, list[float]], unit_bytes: float
) -> None:
    cells = []
    for side, windows in sides.items():
        if windows:
            rates = [rate * unit_bytes for rate in windows]
            results.point(group, name, x, BYTES_PER_S, side, at, rates, uses=USES[name.partition(" ")[0].rstrip(",")])
            cells.append(shown(median(rates), BYTES_PER_S))
    print(f"| {at:,} | {name.partition(',')[0]} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.curves", description=__doc__)
    parser.add_argument("--warmup", type=float, default=3.0, help="seconds of warm-up of each Java loop")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of measurement of each loop")
    parser.add_argument("--alone", action="store_true", help="measure kafkalog only")
    add_options(parser)
    options = parser.parse_args()
    results, with_kafka = Results(), not options.alone and kafka.available() is None
    record_sizes(results, options.warmup, options.seconds, with_kafka=with_kafka)
    threads(results, options.warmup, options.seconds, with_kafka=with_kafka)
    keep(options, results)


if __name__ == "__main__":
    main()
