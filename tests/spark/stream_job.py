"""A streaming job for the tests that kill it: kafkalog to Parquet files, exactly once, until the file `stop` appears.

`python stream_job.py PLACE MASTER`: reads PLACE/logs, writes PLACE/out, with PLACE/checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

MAX_OFFSETS = "60000"


def main() -> None:
    place = Path(sys.argv[1])
    builder = SparkSession.builder.master(sys.argv[2]).config("spark.ui.enabled", "false")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.task.maxFailures": "100",
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.stage.maxConsecutiveAttempts": "100",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.executor.maxNumFailures": "1000",
        "spark.sql.session.timeZone": "UTC",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    frames = spark.readStream.format("kafkalog").option("path", str(place / "logs")).option("subscribe", "t")
    frames = frames.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", MAX_OFFSETS).load()
    writer = frames.select("partition", "offset", "value").writeStream.format("parquet")
    writer = writer.option("path", str(place / "out")).option("checkpointLocation", str(place / "checkpoint"))
    query = writer.start()
    while not (place / "stop").exists():
        if query.awaitTermination(1):
            raise SystemExit("the query ended by itself")
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
