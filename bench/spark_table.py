"""`python -m bench.spark_table`: all rows of the comparison with Spark's Kafka connector, as one Markdown table.

The rows are reads, the export job, a stream and writes with each codec, with batches of 16 KiB (Java's default) and of
1 MB. Each is measured in the first run of an application, and in its warm JVM (the best of the later runs). One broker
(Apache Kafka 4.4.0 on loopback, the one of the tests) writes the topics and serves the connector; kafkalog reads its
directories while it is idle. Each side has a separate application for each size, so that neither warms up what the
other uses, and runs the jobs in the same order. A time is that of a whole job, including planning; a stream's is that
of its micro-batches with records.

It takes about seven minutes on two idle cores. It needs the PySpark version that has a connector
(`tests.spark.connector`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench import machine, spark, spark_write
from bench.kept import Results, add_options, keep
from tests.spark import connector

RECORDS = 1_000_000
TURNS = 4
SIZES = (16_384, 1_000_000)
SIDES = ("kafkalog", "connector")
WRITE_CODECS = ("none", "lz4", "snappy", "zstd", "gzip")
STREAM = "stream, all columns"
STREAM_S = 600
AIMS = {
    "count(*)": 5.0,
    "sum(length(value))": 5.0,
    "offsets and timestamps, pruned schema": 10.0,
    "write.parquet, all columns": 2.5,
    "write.parquet, or the export job": 8.0,
    "from_json, or valueSchema, and groupBy": 2.5,
    STREAM: 4.0,
    **{f"write, {codec}": 3.0 for codec in WRITE_CODECS},
}


def stream(sides: spark.Sides, side: str, topic: str, place: Path) -> float:
    """Returns the seconds of the micro-batches with records."""
    options = {"path": str(sides.broker.log_dir), "kafka.bootstrap.servers": sides.broker.bootstrap}
    source = sides.spark.readStream.format("kafkalog" if side == "kafkalog" else "kafka").options(**options)
    frames = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
    checkpoint = tempfile.mkdtemp(dir=place)
    query = (
        frames.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )
    assert query.awaitTermination(STREAM_S)
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    return float(sum(progress["durationMs"]["triggerExecution"] for progress in batches)) / 1000


def read(sides: spark.Sides, job: spark.Job, side: str, topic: str, place: Path) -> float:
    begin = time.perf_counter()
    spark.once(sides, job, side, topic, place)
    return time.perf_counter() - begin


def write(sides: spark.Sides, side: str, codec: str, count: int, place: Path) -> float:
    frame = spark_write.rows(sides.spark, count)
    if side == "connector":
        return spark_write.theirs(frame, sides.broker, f"written-{codec}-{time.monotonic_ns()}", codec)
    try:
        return spark_write.ours(frame, place / "written", "t", codec)
    finally:
        shutil.rmtree(place / "written", ignore_errors=True)


def jobs(
    sides: spark.Sides, side: str, topic: str, given: Any, place: Path
) -> Iterator[tuple[str, Callable[[], float]]]:
    """Yields the rows of the table, as functions that return seconds. Writes do not depend on the batch size of the
    topics."""
    for job in spark.JOBS:
        if job.name in AIMS:
            yield job.name, partial(read, sides, job, side, topic, place)
    yield STREAM, partial(stream, sides, side, topic, place)
    if given.writes:
        for codec in WRITE_CODECS:
            yield f"write, {codec}", partial(write, sides, side, codec, given.records, place)


def application(given: Any) -> None:
    """Runs one side on one topic: prints the seconds of each run of each job, as JSON."""
    place = Path(given.place)
    quiet = {"spark.ui.showConsoleProgress": "false", "spark.python.authenticate.socketTimeout": "120s"}
    quiet |= dict(each.split("=", 1) for each in given.conf)
    session = connector.session(place, **quiet)
    session.range(1).count()  # Spark itself is warmed up
    broker: Any = SimpleNamespace(bootstrap=given.bootstrap, log_dir=Path(given.log_dir))
    sides = spark.Sides(session, broker)
    for name, run in jobs(sides, given.side, given.topic, given, place):
        if not given.only or any(each in name for each in given.only):
            print(json.dumps([name, [run() for _ in range(given.turns)]]), flush=True)
    session.stop()


def measured(
    given: Any, broker: spark.Broker, side: str, topic: str, writes: bool, place: Path
) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "bench.spark_table", "--side", side, "--topic", topic, "--place", str(place)]
    command += ["--bootstrap", broker.bootstrap, "--log-dir", str(broker.log_dir), "--turns", str(given.turns)]
    command += ["--records", str(given.records), *(["--writes"] if writes else [])]
    command += [part for each in given.only for part in ("--only", each)]
    command += [part for each in given.conf for part in ("--conf", each)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=None if given.verbose else subprocess.DEVNULL, text=True
    )
    if done.returncode:
        raise SystemExit(f"the application of {side} over {topic} failed; --verbose shows why")
    return dict(map(json.loads, filter(lambda line: line.startswith("["), done.stdout.splitlines())))


@contextmanager
def _place(kept: str | None) -> Iterator[Path]:
    with spark.place_of(kept) as place:
        (place / "broker").mkdir(parents=True, exist_ok=True)
        yield place


def main() -> None:
    """Runs the comparison and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--turns", type=int, default=TURNS, help="the number of runs: the first one, and the warm ones")
    parser.add_argument("--codec", default="lz4", choices=spark.CODECS, help="the codec of the topics that are read")
    parser.add_argument("--only", action="append", default=[], help="only rows whose names contain this text")
    parser.add_argument("--conf", action="append", default=[], help="a Spark setting, such as spark.name=value")
    parser.add_argument("--place", help="a directory for the broker, kept for the next run")
    parser.add_argument("--verbose", action="store_true", help="show what the applications write to stderr")
    for name in ("--side", "--topic", "--bootstrap", "--log-dir"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    add_options(parser)
    parser.add_argument("--writes", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        application(given)
        return
    begin, results = time.monotonic(), Results()
    with _place(given.place) as place:
        machine.tell(place)
        broker = spark.Broker(place / "broker", settings={"num.network.threads": "3", "num.io.threads": "8"})
        broker.start()
        try:
            print(f"{given.records:,} records of about 200 B, {spark.PARTITIONS} partitions, {given.codec}, "
                  f"{os.cpu_count()} cores; thousands of rows per second\n")  # fmt: skip
            print("| job | batches | kafkalog, warm | connector, warm | ratio | first run | aim |")
            print("|---|---|---|---|---|---|---|", flush=True)
            for number, size in enumerate(SIZES):
                topic = f"bench-{given.codec}-{size}-{given.records}"
                if not (broker.log_dir / f"{topic}-0").exists():
                    spark.produce(broker.bootstrap, topic, given.codec, given.records, size)
                found = {}
                for side in SIDES:
                    scratch = place / f"scratch-{side}"
                    scratch.mkdir(exist_ok=True)
                    found[side] = measured(given, broker, side, topic, not number, scratch)
                    shutil.rmtree(scratch, ignore_errors=True)
                named = "16 KiB" if size < 100_000 else "1 MB"
                for line in lines(found, given.records, named):
                    print(line, flush=True)
                add(results, found, given.records, named)
        finally:
            broker.stop()
    print(f"\n{time.monotonic() - begin:.0f} s")
    keep(given, results)


def add(results: Results, found: dict[str, dict[str, list[float]]], records: int, size: str) -> None:
    """Adds the warm runs of each row."""
    for name, ours in found["kafkalog"].items():
        sides = {"kafkalog": ours, "connector": found["connector"][name]}
        spark.add(results, "spark", name if name.startswith("write, ") else f"{name}, {size}", records, sides)


def lines(found: dict[str, dict[str, list[float]]], records: int, size: str) -> Iterator[str]:
    """Yields the rows of the table: the first run, and the best of the others."""
    for name, ours in found["kafkalog"].items():
        theirs = found["connector"][name]
        (first, warm), (their_first, their_warm) = [(turns[0], min(turns[1:] or turns)) for turns in (ours, theirs)]
        batches = "as written" if name.startswith("write, ") else size
        yield (
            f"| {name} | {batches} | {records / warm / 1e3:,.0f} | {records / their_warm / 1e3:,.0f} "
            f"| {their_warm / warm:.1f}x | {their_first / first:.1f}x | {AIMS[name]:g}x |"
        )


if __name__ == "__main__":
    main()
