"""Java's programs beside Kafka's clients: its console and performance tools, Connect, and the story of this folder."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.broker import kraft
from tests.broker.servers import Program
from tests.conformance import kafka_jars

HERE = Path(__file__).parent
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
# Kafka's tools put some lines on the standard output that are only for the eye.
FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m", QUIET)


def java_clients() -> kafka_jars.Driver:
    """Java's clients and tools, fetched by Maven on first use, and the story, compiled."""
    found = kraft.classpath(HERE / "pom.xml")
    target = kafka_jars.DRIVER / "target" / "clients"
    source, stamp = HERE / "java" / "Story.java", target / "Story.class"
    if not stamp.exists() or stamp.stat().st_mtime < source.stat().st_mtime:
        target.mkdir(parents=True, exist_ok=True)
        javac = kafka_jars.find_tool("javac")
        subprocess.run(
            [javac, "-nowarn", "-cp", found.classpath, "-d", str(target), str(source)], check=True, capture_output=True
        )
    return kafka_jars.Driver(found.java, f"{found.classpath}:{target}")


def connect() -> kafka_jars.Driver:
    """Kafka Connect, fetched by Maven on first use."""
    return kraft.classpath(HERE / "connect.pom.xml")


def run_java(main: str, *args: str, stdin: str | None = None, codes: Sequence[int] = (0,)) -> list[str]:
    """Runs a main class; the lines of its output."""
    driver = java_clients()
    done = subprocess.run(
        [driver.java, *FLAGS, "-cp", driver.classpath, main, *args],
        input=stdin, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    told = f"{done.stdout[-2000:]}{done.stderr[-3000:]}"
    assert done.returncode in codes, f"{main} {args} ended with {done.returncode}:\n{told}"
    return done.stdout.splitlines()


def story(program: str, argument: str = "") -> Program:
    """A program of Story.java."""
    return lambda bootstrap: run_java("Story", bootstrap, program, *([argument] if argument else []))
