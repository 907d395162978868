"""The two servers that programs talk to: Apache Kafka 4.4.0 and `kafkalog serve`, each on a directory of its own.

A program is a function of a bootstrap address that returns lines of text. `same` runs it on both servers, at the same
time, and requires equal lines. Times, ids and places are the program's to leave out.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.broker import kraft
from tests.conformance import kafka_jars

Program = Callable[[str], Sequence[str]]
SECONDS_MAX = 60
READY = re.compile(r"at (127\.0\.0\.1:\d+)")
KAFKAS = {"log.retention.ms": "604800000", "auto.create.topics.enable": "true"}
OURS = ("-X", "group.initial.rebalance.delay.ms=0", "-X", "log.retention.ms=604800000")


class Servers(NamedTuple):
    """The addresses of both."""

    kafka: str
    ours: str

    def same(self, program: Program) -> list[str]:
        """Runs a program on both servers and returns its lines, which must be equal."""
        with ThreadPoolExecutor(2) as threads:
            theirs, ours = threads.map(lambda address: list(program(address)), (self.kafka, self.ours))
        assert ours == theirs
        return theirs


@contextlib.contextmanager
def kafkalog_server(log_dir: Path, *options: str) -> Iterator[str]:
    """`kafkalog serve` in a process of its own; its address."""
    command = [
        sys.executable,
        "-m",
        "kafkalog",
        "serve",
        str(log_dir),
        "--listen",
        f"127.0.0.1:{kraft.free_ports(1)[0]}",
        *options,
    ]
    with (
        (log_dir.parent / f"{log_dir.name}.log").open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            yield _address(process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
    assert process.returncode == 0, process.returncode


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    until = time.monotonic() + SECONDS_MAX
    while time.monotonic() < until:
        line = process.stdout.readline()
        assert line, f"the server ended with {process.wait()}"
        found = READY.search(line)
        if found:
            return found[1]
    raise AssertionError("the server names no address")


@contextlib.contextmanager
def both(place: Path) -> Iterator[Servers]:
    """Both servers, each on an empty directory below `place`."""
    place.mkdir(parents=True, exist_ok=True)
    with kraft.broker(place / "kafka", settings=KAFKAS) as broker:
        broker.start()
        with kafkalog_server(place / "ours", *OURS) as ours:
            yield Servers(broker.bootstrap, ours)


# --- Java's programs -------------------------------------------------------------------------------------

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
