"""`python -m bench.spark_jobs`: the speed and memory of each way in which Spark reads or writes a large directory.

Two partitions have records of about 200 B and one has records of 1 MB, a third of the bytes each, in segments of 1 GiB,
so that a task gets a whole one. Each operation has a separate session, and so separate workers; a worker's memory is
its peak (VmHWM, including what it has mapped). The project's target is 300 MiB.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import kafkalog
from bench.kept import BYTES, BYTES_PER_S, KAFKALOG, LOWER, Results, add_options, keep
from bench.spark import worker_peak_mib

TOPIC = "orders"
START_MS = 1_700_000_000_000
KEYS = 500_000
LARGE = 1_000_000  # bytes of a value
ROWS = 20_000  # records in each append


def fill(root: Path, codec: str, each_bytes: int) -> None:
    """Writes values of which half is random."""
    noise = os.urandom(1 << 20)
    for number in range(2):
        with kafkalog.open_log(root, f"{TOPIC}-{number}", compression=codec) as log:
            for first in range(0, each_bytes // 200, ROWS):
                rows = range(first, first + ROWS)
                values = [b'{"id":%d,"text":"%s"}' % (n, noise[n % 999_983 :][:85].hex().encode()) for n in rows]
                keys = [b"customer-%d" % (n * 7919 % KEYS) for n in rows]
                log.append_columns(values, keys=keys, timestamps=START_MS + 10 * np.arange(rows.start, rows.stop))
    with kafkalog.open_log(root, f"{TOPIC}-2", compression=codec, config={"max.message.bytes": "2000000"}) as log:
        half = os.urandom(LARGE // 2)
        for n in range(each_bytes // LARGE):
            log.append(b"%09d" % n + half + b"." * (LARGE // 2), key=b"k%d" % (n % 50), timestamp=START_MS + n)


def session(place: Path) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("bench").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "1g").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.sql.warehouse.dir", str(place / "warehouse"))
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def roads(logs: Path, place: Path) -> dict[str, Callable[[Any], Any]]:
    """In this order: an import reads what the export wrote, and operations that change the logs come last."""
    from kafkalog.spark import jobs

    def read(spark: Any, **options: str) -> Any:
        reader = spark.read.format("kafkalog").option("path", str(logs)).option("subscribe", TOPIC)
        return reader.options(**options).load()

    def write(spark: Any) -> None:
        with kafkalog.open(place / "sink") as store:
            store.create_topic(TOPIC, 3, config={"max.message.bytes": "2000000"})
        rows = read(spark).select("key", "value", "partition")
        rows.write.format("kafkalog").mode("append").option("topic", TOPIC).save(str(place / "sink"))

    def done(frame: Any) -> None:
        wrong = [row for row in frame.collect() if row.error]
        assert not wrong, wrong

    return {
        "read": lambda spark: read(spark).count(),
        "read, latest": lambda spark: read(spark, latest="true").count(),
        "write": write,
        "verify": lambda spark: done(jobs.verify(spark, logs)),
        "recover": lambda spark: done(jobs.recover(spark, logs, from_start=True)),
        "export": lambda spark: done(jobs.export(spark, logs, place / "lake")),
        "import": lambda spark: done(
            jobs.import_(spark, place / "lake", place / "again", config={"max.message.bytes": "2000000"})
        ),
        "compact": lambda spark: done(
            jobs.compact(spark, logs, [TOPIC], act=True, config={"cleanup.policy": "compact"})
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_jobs")
    parser.add_argument("--mib", type=int, default=6144, help="MiB of records before compression")
    parser.add_argument("--codec", default="lz4")
    parser.add_argument("--road", action="append")
    add_options(parser)
    given = parser.parse_args()
    results = Results()
    place = Path(tempfile.mkdtemp(prefix="kafkalog-bench-"))
    logs = place / "logs"
    try:
        fill(logs, given.codec, (given.mib << 20) // 3)
        size = sum(path.stat().st_size for path in logs.rglob("*.log"))
        largest = max(path.stat().st_size for path in logs.rglob("*.log"))
        print(f"{size >> 20} MiB, {given.codec}, the largest segment {largest >> 20} MiB, two tasks at a time\n")
        print("| road | MiB/s | a worker's peak |\n|---|---|---|", flush=True)
        for name, road in roads(logs, place).items():
            if given.road and name not in given.road:
                continue
            spark = session(place)
            begin = time.perf_counter()
            road(spark)
            seconds = time.perf_counter() - begin
            peak = worker_peak_mib()
            results.row("spark-jobs", f"{name}, {given.codec}", BYTES_PER_S, {KAFKALOG: size / seconds})
            results.row(
                "spark-jobs", f"{name}, {given.codec}, peak of a worker", BYTES, {KAFKALOG: peak << 20}, better=LOWER
            )
            print(f"| {name} | {(size >> 20) / seconds:,.0f} | {peak} MiB |", flush=True)
            spark.stop()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    keep(given, results)


if __name__ == "__main__":
    main()
