"""Both servers on loopback, each on an empty directory: Apache Kafka 4.4.0 (`kraft`), and `kafkalog serve`.

A program is a function of a bootstrap address that returns lines of text. `same` runs it on both servers, at the same
time, and requires equal lines. Times, ids and places are the program's to leave out.
"""

from __future__ import annotations

import contextlib
import difflib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.broker import kraft

Program = Callable[[str], Sequence[str]]
SECONDS_MAX = 60
CLUSTER_ID = "kafkalog-wire-000000AA"
# Both have these: Kafka's defaults, without the wait for a group's first members.
SETTINGS = {
    "auto.create.topics.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "604800000",
}


class Served:
    """`kafkalog serve` in a process of its own, which may be stopped or killed, and started again at its address.

    `place/store` is its directory, and `place/server.log` has its standard error.
    """

    def __init__(self, place: Path, settings: Mapping[str, str] = SETTINGS) -> None:
        self.place = place
        self.port = kraft.free_ports(1)[0]
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._settings = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log_text(self) -> str:
        """The standard error of all its runs."""
        return (self.place / "server.log").read_text()

    def launch(self) -> None:
        """Starts the process, without waiting."""
        assert not self.running
        self.place.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "kafkalog", "serve", str(self.place / "store"), "--listen", self.bootstrap]
        with (self.place / "server.log").open("ab") as errors:
            self._process = subprocess.Popen(
                [*command, *self._settings], stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def start(self) -> None:
        """Starts, and waits until it serves."""
        self.launch()
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._process.stdout.readline().endswith(f"at {self.bootstrap}\n"), self.log_text[-3000:]

    def stop(self) -> int:
        """Ends it by SIGTERM; its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9: nothing is flushed.  Does nothing if it does not run."""
        if self.running:
            self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        process.send_signal(number)
        process.stdout.close()
        return process.wait(SECONDS_MAX)


@contextlib.contextmanager
def served(place: Path, settings: Mapping[str, str] = SETTINGS) -> Iterator[Served]:
    """A server that runs; at the end it must stop without an error."""
    server = Served(place, settings)
    try:
        server.start()
        yield server
        assert not server.running or server.stop() == 0, server.log_text[-3000:]
    finally:
        server.kill()


class Servers(NamedTuple):
    """The addresses of both."""

    kafka: str
    ours: str

    def same(self, program: Program) -> list[str]:
        """Runs a program on both servers and returns its lines, which must be equal."""
        with ThreadPoolExecutor(2) as threads:
            theirs, ours = threads.map(lambda address: list(program(address)), self)
        assert ours == theirs, "\n".join(difflib.unified_diff(theirs, ours, "Kafka", "kafkalog", lineterm=""))
        return theirs


@contextlib.contextmanager
def both(place: Path, settings: Mapping[str, str] = kraft.NO_SETTINGS) -> Iterator[Servers]:
    """Both servers with the same settings, beside SETTINGS, and the same cluster id."""
    given = {**SETTINGS, **settings}
    with kraft.broker(place / "kafka", cluster_id=CLUSTER_ID, settings=given) as node:
        node.start()
        with served(place / "kafkalog", given | {"cluster.id": CLUSTER_ID}) as ours:
            yield Servers(node.bootstrap, ours.bootstrap)
