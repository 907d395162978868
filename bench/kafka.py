"""Runs Apache Kafka's side of the benchmarks: one JVM with the project's small Java program and Maven's jars."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent / "java"


def available() -> str | None:
    """Returns None if Kafka can be measured here, otherwise what is missing."""
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            return f"`{tool}` is not on the PATH"
    return None


def classpath() -> str:
    """Compiles the Java side and returns its class path. Maven's cache makes later calls fast."""
    target = HERE / "target"
    listing = target / "classpath.txt"
    sources = [*(HERE / "src/main/java").rglob("*.java"), HERE / "pom.xml"]
    newest = max(source.stat().st_mtime for source in sources)
    if not listing.exists() or listing.stat().st_mtime < newest:
        subprocess.run(
            ["mvn", "-q", "-B", "compile", "dependency:build-classpath", f"-Dmdep.outputFile={listing}"],
            cwd=HERE,
            check=True,
        )
    return f"{target / 'classes'}:{listing.read_text().strip()}"


def measure(
    data: Path, names: list[str], warmup_seconds: float, measure_seconds: float, by_cpu: bool
) -> dict[str, list[float]]:
    """Returns the units per second of each window of each named loop, measured in one JVM."""
    command = ["java", "-Xmx2g", "-cp", classpath(), "io.kafkalog.bench.KafkaBench"]
    command += [str(data), str(warmup_seconds), str(measure_seconds), "cpu" if by_cpu else "clock", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"Kafka's side failed:\n{done.stderr[-3000:]}")
    lines = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    return {line["name"]: line["per_second"] for line in lines}
