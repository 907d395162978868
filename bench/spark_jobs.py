"""The export job beside Spark's own Parquet writer over kafkalog's source, in one session; records a second, and RSS.

    python -m bench.spark_jobs [--records 2000000] [--codecs none,lz4,zstd] [--dir /dev/shm/bench]

Records are about 200 bytes.  `codecs` are those of the log's batches; Parquet is zstd in both.  The ratio is the job's
rate by the writer's.  Memory is the most that a Python worker had (ru_maxrss) after all export runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import kafkalog

PARTITIONS = 4
START_MS = 1_700_000_000_000


def fill(root: Path, topic: str, codec: str, records: int) -> None:
    """`records` over the partitions, ten milliseconds apart, in batches of 64 KiB and more."""
    chosen = random.Random(7)
    words = [f"{chosen.getrandbits(64):016x}" for _ in range(5000)]
    count = records // PARTITIONS
    for number in range(PARTITIONS):
        with kafkalog.open_log(root, f"{topic}-{number}", compression=codec) as log:
            for first in range(0, count, 10_000):
                rows = range(first, min(first + 10_000, count))
                values = [
                    b'{"id":%d,"who":"%s","what":"%s","ref":"%016x","note":"%s","amount":%d}'
                    % (
                        n,
                        chosen.choice(words).encode(),
                        chosen.choice(words).encode(),
                        chosen.getrandbits(64),
                        chosen.choice(words).encode() * 4,
                        chosen.randrange(10**6),
                    )
                    for n in rows
                ]
                keys = [b"customer-%d" % chosen.randrange(100_000) for _ in rows]
                times = START_MS + 10 * np.arange(rows.start, rows.stop)
                log.append_columns(values, keys=keys, timestamps=times)


def memory(_: Any) -> Any:
    import resource

    time.sleep(0.2)  # so that each worker has one
    yield resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def session() -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("bench").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "1g").config("spark.driver.host", "127.0.0.1")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--codecs", default="none,lz4,zstd")
    parser.add_argument("--dir", default=None)
    parser.add_argument("--runs", type=int, default=2)
    given = parser.parse_args()
    from kafkalog.spark import jobs

    spark = session()
    root = Path(tempfile.mkdtemp(prefix="kafkalog-bench-", dir=given.dir))
    try:
        for codec in given.codecs.split(","):
            fill(root / "logs", codec, codec, given.records)
        rates: dict[str, dict[str, float]] = {}
        for codec in given.codecs.split(","):
            rates[codec] = {"job": 0.0, "writer": 0.0}
            for number in range(given.runs):
                target = root / f"{codec}-{number}"
                begin = time.perf_counter()
                done = jobs.export(spark, root / "logs", target / "job", [codec]).collect()
                rate = sum(row.records for row in done) / (time.perf_counter() - begin)
                rates[codec]["job"] = max(rates[codec]["job"], rate)
                assert not any(row.error for row in done), done
            (mine,) = [max(spark.sparkContext.parallelize(range(8), 8).mapPartitions(memory).collect())]
            rates[codec]["worker MiB"] = mine / (1 << 20)
            for number in range(given.runs):
                target = root / f"{codec}-{number}"
                begin = time.perf_counter()
                frame = (
                    spark.read.format("kafkalog").option("path", str(root / "logs")).option("subscribe", codec).load()
                )
                frame.write.option("compression", "zstd").parquet(str(target / "writer"))
                rate = given.records / (time.perf_counter() - begin)
                rates[codec]["writer"] = max(rates[codec]["writer"], rate)
                shutil.rmtree(target)
        for codec, found in rates.items():
            ratio = found["job"] / found["writer"]
            line = {"codec": codec, **{name: round(value) for name, value in found.items()}, "ratio": round(ratio, 2)}
            print(json.dumps(line))
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
