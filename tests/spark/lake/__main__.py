"""The stream into Delta, in a separate process: its jars must exist when the JVM starts."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

from tests.spark.kit import fill
from tests.spark.lake import in_place, jars, recipe


def main(place: Path) -> None:
    from pyspark.sql import SparkSession

    settings = {
        "spark.jars": ",".join(jars()),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    builder = SparkSession.builder.master("local[2]").appName("kafkalog lake")
    for name, text in settings.items():
        builder = builder.config(name, text)
    warnings.simplefilter("ignore")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    # Spark would download these jars; they are already here.
    code = in_place(recipe('writeStream.format("delta")'), place).replace(
        '.config("spark.jars.packages"', '.config("x"'
    )
    space: dict[str, Any] = {}
    for records in (30, 20):
        fill(place / "kafka-logs", "orders-0", records)
        exec(compile(code, "docs/how-to/spark-lake.md", "exec"), space)
    stream = spark.read.format("delta").load(str(place / "lake" / "delta-stream"))
    print("streamed", *stream.selectExpr("count(*)", "count(distinct offset)", "max(offset)").first())
    commits = sorted((place / "checkpoints" / "delta" / "commits").glob("[0-9]*"))
    commits[-1].unlink()  # as if the driver had been killed before it noted the last micro-batch
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink()
    exec(compile(code, "docs/how-to/spark-lake.md", "exec"), space)
    print("again", stream.count())
    exported = place / "exported"
    if exported.exists():  # by the test, as a Delta table without any jar
        found = spark.read.format("delta").load(str(exported)).where("topic = 'orders'")
        print(
            "exported", *found.selectExpr("count(*)", "max(offset)", "count(distinct hour)", "min(timestamp)").first()
        )
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
