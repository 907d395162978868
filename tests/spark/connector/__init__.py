"""Spark's Kafka connector next to kafkalog's: its jars, and a session that has both.

The jars come from the pom in this directory (Maven once, then a file in the conformance driver's target directory).
The connector is built for one version of Spark: `make spark-connector` has a separate environment with that PySpark.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.conformance import kafka_jars

POM = Path(__file__).parent / "pom.xml"
ROOT = Path(__file__).parents[3]
PYSPARK_VERSION = "4.2.0"
# Jars that PySpark does not contain.
JARS = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")


def missing() -> str | None:
    """None where the connector can run, else what it lacks."""
    try:
        import pyspark
    except ImportError:
        return "pyspark is not installed"
    if pyspark.__version__ != PYSPARK_VERSION:
        return f"the connector needs PySpark {PYSPARK_VERSION}, this is {pyspark.__version__}: make spark-connector"
    return None


def jars() -> list[str]:
    """The connector's jars, fetched by Maven on first use."""
    paths = kafka_jars.fetched(POM, "connector", "the connector")
    return [path for path in paths if Path(path).name.rsplit("-", 1)[0] in JARS]


def session(place: Path, **more: str) -> Any:
    """A local session with both sources."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    builder = SparkSession.builder.master("local[2]").appName("kafkalog-connector")
    settings = {
        "spark.jars": ",".join(jars()),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        **more,
    }
    for name, text in settings.items():
        builder = builder.config(name, text)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made
