"""A driver that writes a stream of numbers until it is told to stop, or killed: `python -m tests.spark.sink_driver`.

Each micro-batch has the next ROWS numbers, the same ones whenever it is done again.  It reports each micro-batch on a
line, and stops in order when the file `stop` exists in its directory.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path

ROWS = 4000
TASKS = 4
PARTITIONS = 3
TOPIC = "numbers"


def home_for_executors(place: Path, installed: str) -> Path:
    """The place where a local cluster finds Spark, and leaves its executors' directories: not where PySpark is
    installed."""
    home = place / "spark"
    home.mkdir(exist_ok=True)
    for name in os.listdir(installed):
        if name != "work" and not (home / name).exists():
            (home / name).symlink_to(os.path.join(installed, name))
    return home


def main(master: str, place: Path) -> None:
    import pyspark
    from pyspark.sql import SparkSession

    os.environ["SPARK_HOME"] = str(home_for_executors(place, os.path.dirname(pyspark.__file__)))
    builder = SparkSession.builder.master(master).appName("kafkalog sink")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.task.maxFailures": "50",
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.25",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.excludeOnFailure.enabled": "false",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.sql.warehouse.dir": str(place / "warehouse"),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS)
        .option("numPartitions", TASKS)
        .load()
        .selectExpr("cast(value % 100 as string) key", "cast(value as string) value")
    )
    query = (
        numbers.writeStream.format("kafkalog")
        .option("path", str(place / "data"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .option("topic", TOPIC)
        .option("createTopics", "true")
        .option("numPartitions", PARTITIONS)
        .option("kafka.compression.type", "lz4")
        .option("kafka.batch.size", "4096")
        .start()
    )
    said = -1
    while query.isActive and not (place / "stop").exists():
        done = [int(name) for name in os.listdir(place / "checkpoint" / "commits") if name.isdigit()]
        if max(done, default=-1) > said:
            said = max(done)
            print(f"batch {said}", flush=True)
        time.sleep(0.05)
    if query.exception() is not None:
        print(query.exception(), file=sys.stderr)
        sys.exit(1)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
