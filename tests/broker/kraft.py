"""A real Apache Kafka 4.4.0 broker on loopback: format, start, stop, kill; its log goes to a file.

One node is broker and controller.  The class path comes from the pom in this directory (Maven once, then a file in
`driver/target/kraft`).  A Broker keeps its ports and directories when it is started again, so that clients and log
directories continue.  Only processes that were started here get signals.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.conformance import kafka_jars

POM = Path(__file__).parent / "pom.xml"
START_SECONDS_MAX = 90
OF_CONTROLLERS = " kafka.server.ControllerApis "
STOP_SECONDS_MAX = 60
STARTED = "Kafka Server started"
LOG_FLAGS = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.levelInBrackets=true",
)
JAVA_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx512m", "-Xms128m", *LOG_FLAGS)
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    # One node: every internal topic has one replica and one partition.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "default.replication.factor": "1",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # Small and quick.
    "num.network.threads": "1",
    "num.io.threads": "2",
    "num.recovery.threads.per.data.dir": "1",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.cleaner.io.buffer.size": "65536",
    "log.cleaner.backoff.ms": "300",
    "initial.broker.registration.timeout.ms": str(START_SECONDS_MAX * 1000),
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.election.backoff.max.ms": "100",
    # Nothing happens during a test without its knowledge: no retention, and frequent checkpoints of starts.
    "log.retention.ms": "-1",
    "log.flush.start.offset.checkpoint.interval.ms": "500",
}


NEWEST_FEATURES: Mapping[str, int] = {}
NO_SETTINGS: Mapping[str, str] = {}


class BrokerFailedError(RuntimeError):
    """The broker ended, or did not come up in time; the text has the end of its log."""


def classpath(pom: Path = POM) -> kafka_jars.Driver:
    """A broker's class path, fetched by Maven on first use."""
    java, maven = kafka_jars.find_tool("java"), kafka_jars.find_tool("mvn")
    target = Path(os.environ.get("KAFKALOG_DRIVER_TARGET", kafka_jars.DRIVER / "target")).absolute() / (
        "kraft" if pom == POM else pom.name.partition(".")[0]
    )
    target.mkdir(parents=True, exist_ok=True)
    paths = target / "classpath"
    with (target / ".build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fresh = paths.exists() and paths.stat().st_mtime > pom.stat().st_mtime
        if not fresh or not all(Path(part).exists() for part in paths.read_text().split(os.pathsep)):
            found = target / "dependencies"
            command = [maven, "-q", "-B", "-f", str(pom), "dependency:build-classpath", f"-Dmdep.outputFile={found}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=kafka_jars.BUILD_SECONDS_MAX)
            if done.returncode != 0:
                raise kafka_jars.KafkaMissingError(f"Maven could not fetch a broker:\n{done.stdout[-3000:]}")
            paths.write_text(found.read_text().strip())
    return kafka_jars.Driver(java, paths.read_text())


class Broker:
    """One node's directories and, while it runs, its process.

    `place/logs` is the log directory with the topics (with several: `place/logs-2` ...); `place/metadata` the
    controller's, unless the first log directory is (`shares_metadata`); `place/broker-N.log` what the N-th life said.
    """

    def __init__(
        self,
        place: Path,
        *,
        cluster_id: str = "kafkalog-tests-00000AA",
        log_dir_count: int = 1,
        shares_metadata: bool = False,
        features: Mapping[str, int] = NEWEST_FEATURES,
        settings: Mapping[str, str] = NO_SETTINGS,
        pom: Path = POM,
    ) -> None:
        self.place = place
        self.log_dir = place / "logs"
        self.log_dirs = [self.log_dir, *(place / f"logs-{number}" for number in range(2, log_dir_count + 1))]
        self.properties = place / "server.properties"
        self.port, controller_port = free_ports(2)
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.lives = 0
        self._kafka = classpath(pom)
        self._process: subprocess.Popen[bytes] | None = None
        properties = SETTINGS | {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "log.dirs": ",".join(map(str, self.log_dirs)),
            "metadata.log.dir": str(self.log_dir if shares_metadata else place / "metadata"),
        }
        properties |= settings
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        levels = [part for name, level in features.items() for part in ("--feature", f"{name}={level}")]
        done = subprocess.run(
            self._command("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self.properties), *levels),
            capture_output=True,
            text=True,
            timeout=START_SECONDS_MAX,
        )
        if done.returncode != 0:
            raise BrokerFailedError(f"formatting ended with {done.returncode}:\n{done.stdout}{done.stderr[-3000:]}")

    def _command(self, main: str, *args: str) -> list[str]:
        return [self._kafka.java, *JAVA_FLAGS, "-cp", self._kafka.classpath, main, *args]

    # --- life ----------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log_file(self) -> Path:
        return self.place / f"broker-{self.lives}.log"

    def log_text(self) -> str:
        """The output of the current run, or of the last one."""
        return self.log_file.read_text(errors="replace")

    def launch(self) -> None:
        """Start the process, without waiting."""
        assert not self.running
        self.lives += 1
        with self.log_file.open("wb") as out:
            self._process = subprocess.Popen(
                self._command("kafka.Kafka", str(self.properties)),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.place,
                start_new_session=True,  # a Ctrl-C in the terminal is for pytest, which then stops the broker
            )

    def start(self) -> None:
        """Start, and wait until it serves."""
        self.launch()
        until = time.monotonic() + START_SECONDS_MAX
        while STARTED not in self.log_text():
            if not self.running or time.monotonic() > until:
                self.kill()
                raise BrokerFailedError(f"the broker did not come up:\n{self.log_text()[-6000:]}")
            time.sleep(0.1)

    def wait(self, timeout_seconds: float) -> int:
        """The exit code of a process that ends normally."""
        assert self._process is not None
        return self._process.wait(timeout_seconds)

    def stop(self) -> int:
        """A controlled shutdown (SIGTERM); its exit code."""
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailedError(f"the broker did not stop:\n{self.log_text()[-6000:]}") from None

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, no marker, the lock file stays.  Does nothing when it does not run."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(STOP_SECONDS_MAX)

    # --- what it said --------------------------------------------------------------------------------

    def complaints(self, about: Iterable[str] = ()) -> list[str]:
        """Lines of this run at ERROR, or at WARN about one of the names.  On a busy machine its controllers refuse one
        another's registrations for a while: that is none of the log's."""
        return [
            line
            for line in self.log_text().splitlines()
            if ("[ERROR]" in line and OF_CONTROLLERS not in line)
            or ("[WARN]" in line and any(name in line for name in about))
        ]


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now, below those that the system gives to clients between the broker's
    runs."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            each, port = stack.enter_context(socket.socket()), random.randrange(15_000, 30_000)
            with contextlib.suppress(OSError):
                each.bind(("127.0.0.1", port))
                found.append(port)
    return found


@contextlib.contextmanager
def broker(place: Path, **options: Any) -> Iterator[Broker]:
    """A formatted broker that is dead when the block is left, however it is left; options as Broker's."""
    place.mkdir(parents=True, exist_ok=True)
    node = Broker(place, **options)
    try:
        yield node
    finally:
        node.kill()


@contextlib.contextmanager
def cluster(place: Path, count: int, settings: Mapping[str, str] = NO_SETTINGS) -> Iterator[list[Broker]]:
    """`count` formatted nodes of one cluster, with ids from 1 on; the first is its only controller, too.  Dead when the
    block is left.  The metadata is in the first log directory of each."""
    ports = free_ports(count + 1)
    nodes: list[Broker] = []
    try:
        for number in range(1, count + 1):
            own = place / f"node-{number}"
            own.mkdir(parents=True)
            plain = f"PLAINTEXT://127.0.0.1:{ports[number]}"
            also_controller = f",CONTROLLER://127.0.0.1:{ports[0]}" if number == 1 else ""
            theirs = {
                "node.id": str(number),
                "process.roles": "broker,controller" if number == 1 else "broker",
                "listeners": plain + also_controller,
                "advertised.listeners": plain,
                "controller.quorum.voters": f"1@127.0.0.1:{ports[0]}",
            }
            node = Broker(own, shares_metadata=True, settings={**theirs, **settings})
            node.port, node.bootstrap = ports[number], f"127.0.0.1:{ports[number]}"
            nodes.append(node)
        yield nodes
    finally:
        for node in nodes:
            node.kill()
