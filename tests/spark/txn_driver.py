"""A driver that writes numbers by txnAppId and txnVersion until it has written them all, or is killed.

    python -m tests.spark.txn_driver batch PLACE            versions one after the other, from 0 in each life
    python -m tests.spark.txn_driver foreachBatch PLACE     a stream whose function writes twice, to two topics

Version n has the numbers from n * ROWS on, the same ones whenever it is done again.  It reports each version by an
empty file `done-<n>`, and stops in order when `stop` exists in its directory.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

ROWS = 500
APP_ID = "numbers' app"
TOPICS = ("even", "odd")
PARENT = os.getppid()


def is_to_stop(place: Path) -> bool:
    return (place / "stop").exists() or os.getppid() != PARENT


def session(place: Path) -> Any:
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
    }
    builder = SparkSession.builder.master("local[2]").appName("kafkalog versions")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def write(rows: Any, place: Path, version: int, **options: str) -> None:
    writer = rows.write.format("kafkalog").mode("append").option("createTopics", "true").option("numPartitions", "2")
    writer = writer.option("txnAppId", APP_ID).option("txnVersion", version)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.save(str(place / "data"))


def batch(spark: Any, place: Path) -> None:
    """Each run begins with version 0, as a job that knows nothing of an earlier one."""
    version = 0
    while not is_to_stop(place):
        numbers = spark.range(version * ROWS, (version + 1) * ROWS, 1, 2)
        write(numbers.selectExpr("if(id % 2 = 0, 'even', 'odd') topic", "cast(id as string) value"), place, version)
        (place / f"done-{version}").touch()
        version += 1


def foreach_batch(spark: Any, place: Path) -> None:
    def both(numbers: Any, batch_id: int) -> None:
        for rest, topic in enumerate(TOPICS):
            its = numbers.where(f"value % 2 = {rest}").selectExpr("cast(value as string) value")
            write(its, place, batch_id, topic=topic)
        (place / f"done-{batch_id}").touch()

    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2).load()
    query = stream.writeStream.foreachBatch(both).option("checkpointLocation", str(place / "checkpoint")).start()
    while query.isActive and not is_to_stop(place):
        time.sleep(0.05)
    if query.exception() is not None:
        print(query.exception(), file=sys.stderr)
        sys.exit(1)
    query.stop()


def main(kind: str, place: Path) -> None:
    spark = session(place)
    {"batch": batch, "foreachBatch": foreach_batch}[kind](spark, place)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
