"""Spark's module spark-avro, which PySpark does not contain: from Maven, and added to the running session."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from tests.conformance import kafka_jars
from tests.conftest import leave_out

# The newest that is published; newer Sparks of the same Scala take it too.
NEWEST = "4.2.0"
OF_OLDER = {"4.0": "4.0.1", "4.1": "4.1.1"}


def add_avro(spark: Any) -> None:
    """From now on the session has `from_avro`.  The test is left out where Maven cannot bring it."""
    version = OF_OLDER.get(spark.version.rpartition(".")[0], NEWEST)
    name = f"spark-avro_2.13-{version}.jar"
    path = Path.home() / ".m2/repository/org/apache/spark/spark-avro_2.13" / version / name
    if not path.exists():
        try:
            maven = kafka_jars.find_tool("mvn")
        except kafka_jars.KafkaMissingError as error:
            leave_out(str(error))
        done = subprocess.run(
            [
                *(maven, "-q", "-B", "dependency:get", "-Dtransitive=false"),
                f"-Dartifact=org.apache.spark:spark-avro_2.13:{version}",
            ],
            capture_output=True,
            text=True,
            timeout=kafka_jars.BUILD_SECONDS_MAX,
        )
        if done.returncode != 0 or not path.exists():
            leave_out(f"Maven could not fetch {name}: {done.stdout[-300:]}")
    spark.sql(f"ADD JAR '{path}'")
