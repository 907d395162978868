"""Java programs of the tests of share groups: a driver of Kafka's SharePartition, and a share consumer."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.broker import kraft
from tests.conformance import kafka_jars

HERE = Path(__file__).parent
SOURCES = (HERE / "kafka/server/share/ShareDriver.java", HERE / "ShareClient.java")


def built(place: Path) -> kafka_jars.Driver:
    """Compiles the programs into `place`. Returns how to run their classes."""
    kafka = kraft.classpath()
    classes = place / "classes"
    done = subprocess.run(
        [str(Path(kafka.java).with_name("javac")), "-nowarn", "-cp", kafka.classpath, "-d", str(classes), *SOURCES],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return kafka_jars.Driver(kafka.java, f"{classes}:{kafka.classpath}")
