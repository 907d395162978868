"""A client of Spark Connect in a separate process, because a session of Connect and a classic one exclude each other.

It starts a server (`remote("local[2]")`) and prints its results as one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from kafkalog.spark.places import hadoop_options
from kafkalog.spark.source import register


def main(root: str, steps: list[str]) -> None:
    builder = SparkSession.builder.remote("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": f"{root}/warehouse",
        "spark.hadoop.fs.s3a.endpoint": "store.example",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    seen: dict[str, Any] = {}
    try:
        for step in steps:
            try:
                seen[step] = STEPS[step](spark, root)
            except Exception as error:
                seen[step] = str(error)
    finally:
        spark.stop()
    print(json.dumps(seen))


def reader(spark: Any, root: str, topic: str = "t") -> Any:
    return spark.read.format("kafkalog").options(path=f"{root}/logs", subscribe=topic)


def read(spark: Any, root: str) -> list[Any]:
    frame = reader(spark, root).load()
    row = frame.where("offset = 7").selectExpr("CAST(value AS STRING) AS value", "unix_millis(timestamp) AS ms").first()
    return [frame.count(), row.value, row.ms, frame.limit(3).toPandas().offset.tolist()]


def refused(spark: Any, root: str) -> None:
    spark.read.format("kafkalog").options(path=f"{root}/logs").load().count()


def registered(spark: Any, root: str) -> Any:
    register_error = None
    try:
        register(spark)
    except Exception as error:
        register_error = str(error)
    return [hadoop_options(spark), register_error, reader(spark, root).load().count()]


def table(spark: Any, root: str) -> int:
    spark.sql(f"CREATE TABLE orders USING kafkalog OPTIONS (path '{root}/logs', subscribe 't')")
    return int(spark.table("orders").count())


def write(spark: Any, root: str) -> int:
    writer = reader(spark, root).load().write.format("kafkalog").mode("append")
    writer.options(topic="copy", createTopics="true").save(f"{root}/logs")
    return int(reader(spark, root, "copy").load().count())


def stream(spark: Any, root: str) -> int:
    frame = spark.readStream.format("kafkalog").options(path=f"{root}/logs", subscribe="t", startingOffsets="earliest")
    writer = frame.load().writeStream.format("kafkalog").trigger(availableNow=True)
    writer = writer.options(checkpointLocation=f"{root}/checkpoint", topic="streamed", createTopics="true")
    writer.start(f"{root}/logs").awaitTermination()
    return int(reader(spark, root, "streamed").load().count())


def job(spark: Any, root: str) -> None:
    from kafkalog.spark import jobs

    jobs.verify(spark, f"{root}/logs").collect()


STEPS = {
    "read": read,
    "refused": refused,
    "registered": registered,
    "table": table,
    "write": write,
    "stream": stream,
    "job": job,
}

if __name__ == "__main__":
    assert Path(sys.argv[1]).is_dir()
    main(sys.argv[1], sys.argv[2:])
