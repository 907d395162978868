"""`python -m bench.server [PART...]`: `kafkalog serve` compared with a broker of Apache Kafka 4.4.0 on one node.

Both servers run on the same two cores, each with an empty directory and its defaults; Kafka's JVM has the flags of
kafka-server-start.sh (a heap of 1 GiB, G1). The same client measures both, one after the other, in turns. Clients are
Kafka's own performance tools and librdkafka (confluent-kafka), and, where a client would cost more than the server,
bare requests on a socket.

- `start`: from the start of the process to the first answered request, with 100 topics.
- `memory`: resident memory after that, and at most in all the rows before.
- `perf`: kafka-producer-perf-test and kafka-consumer-perf-test, 1,000 bytes, 16 partitions.
- `confluent`: records of 200 bytes with `linger.ms` 5, and reading them.
- `latency`: 1,000 records a second, from the call of produce to the consumer.
- `idle`: the server's CPU time while 1,000 members of groups wait, as consumers do: a long poll of 500 ms and a
  heartbeat every 3 s.
- `topic`: a topic is created, written, read and deleted; and the same on the server of the pytest plugin, which never
  waits for the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import kept
from bench.kept import BYTES, KAFKA, KAFKALOG, LOWER, RECORDS_PER_S, SECONDS, Results
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.requests import ApiKeys
from tests.broker import kraft
from tests.broker.servers import Served
from tests.clients.java_programs import java_clients
from tests.wire.client import Client, decoded, frame

GROUP = "server"
TURNS = 3
WAIT_S = 60
TOPICS = 100
IDLE_MEMBERS, IDLE_S = 1000, 20
LATENCIES, RATE = 10_000, 1000
HEAP = ("-server", "-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true")
DEFAULTS = {
    "num.network.threads": "3", "num.io.threads": "8", "num.recovery.threads.per.data.dir": "2",
    "background.threads": "10", "log.cleaner.dedupe.buffer.size": "134217728",
    "log.cleaner.io.buffer.size": "524288", "log.cleaner.backoff.ms": "15000", "log.retention.ms": "604800000",
    "log.flush.start.offset.checkpoint.interval.ms": "60000", "auto.create.topics.enable": "true",
    "offsets.topic.num.partitions": "50", "transaction.state.log.num.partitions": "50",
    "group.initial.rebalance.delay.ms": "3000",
}  # fmt: skip


# --- the servers -----------------------------------------------------------------------------------------


class Ours(Served):
    """`kafkalog serve` with its defaults."""

    name = KAFKALOG

    def __init__(self, place: Path) -> None:
        super().__init__(place, kraft.NO_SETTINGS)


class Theirs(kraft.Broker):
    """A broker with its defaults, and the flags of kafka-server-start.sh."""

    name = KAFKA

    def __init__(self, place: Path) -> None:
        super().__init__(place, settings=DEFAULTS)

    def _command(self, main: str, *args: str) -> list[str]:
        return [self._kafka.java, *HEAP, *kraft.LOG_FLAGS, "-cp", self._kafka.classpath, main, *args]


class Trial:
    """The server of the pytest plugin, which never waits for the disk, in a process of its own."""

    name = KAFKALOG
    CODE = """
import sys
from kafkalog.server.trial import TrialServer

with TrialServer(sys.argv[1]) as kafka:
    print(kafka.bootstrap_servers, flush=True)
    sys.stdin.read()
"""

    def __init__(self) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="kafkalog-bench-")
        command = [sys.executable, "-c", self.CODE, str(Path(self._place.name) / "store")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.bootstrap = self._process.stdout.readline().strip()

    def stop(self) -> None:
        self._process.communicate()
        self._place.cleanup()


Server = Ours | Theirs


def serves(server: Server, until_s: float = WAIT_S) -> float:
    """The seconds until the server answers a request."""
    began = time.perf_counter()
    while time.perf_counter() - began < until_s:
        with contextlib.suppress(OSError):
            wire = Client(server.bootstrap)
            wire.ask(ApiKeys.METADATA, 9, topics=None)
            wire.close()
            return time.perf_counter() - began
        time.sleep(0.005)
    raise TimeoutError(f"{server.name} does not answer")


def memory_of(server: Server, line: str = "VmRSS") -> float:
    found = re.search(rf"{line}:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert found is not None
    return float(found[1]) * 1024


def cpu_of(server: Server) -> float:
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def make_topics(server: Server | Trial, names: list[str], partitions: int = 1) -> None:
    wire = Client(server.bootstrap)
    topics = [{"name": each, "numPartitions": partitions, "replicationFactor": 1} for each in names]
    for each in wire.ask(ApiKeys.CREATE_TOPICS, 7, topics=topics, timeoutMs=30_000)["topics"]:
        assert each["errorCode"] == 0, each
    wire.close()
    time.sleep(0.5)


# --- measures: each returns the figures of one turn, by row ----------------------------------------------

Figures = dict[str, float]


def start(server: Server, turn: int) -> Figures:
    if turn == 0:
        make_topics(server, [f"start-{number}" for number in range(TOPICS)])
    server.stop()
    began = time.perf_counter()
    server.launch()
    serves(server)
    took = time.perf_counter() - began
    time.sleep(1)
    return {"start": took, "memory after a start": memory_of(server)}


def perf(server: Server, turn: int, records: int) -> Figures:
    topic = f"perf-{turn}"
    make_topics(server, [topic], 16)
    driver = java_clients()
    command = [driver.java, "-Xmx512M", "-cp", driver.classpath]
    sent = run(
        [*command, "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(records),
         "--record-size", "1000", "--throughput", "-1", "--bootstrap-server", server.bootstrap]
    )  # fmt: skip
    read = run(
        [*command, "org.apache.kafka.tools.ConsumerPerformance", "--topic", topic, "--num-records", str(records),
         "--timeout", "30000", "--bootstrap-server", server.bootstrap]
    )  # fmt: skip
    rate = re.search(r"([\d.]+) records/sec", sent[-1])
    assert rate is not None, sent
    fields = [each.strip() for each in read[-1].split(",")]
    return {
        "kafka-producer-perf-test, 1 KB, 16 partitions": float(rate[1]),
        "kafka-consumer-perf-test, 1 KB, 16 partitions": float(fields[5]),
        "peak memory under load": memory_of(server, "VmHWM"),
    }


def run(command: list[str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()


def confluent(server: Server, turn: int, records: int) -> Figures:
    from confluent_kafka import Consumer, Producer, TopicPartition

    topic = f"confluent-{turn}"
    make_topics(server, [topic], 4)
    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
    )
    value = b"v" * 200
    began = time.perf_counter()
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=number % 4)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    sent = records / (time.perf_counter() - began)
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.min.messages": 10_000_000,  # else it stops for a second whenever 100,000 wait
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(4)])
    found, began = 0, time.perf_counter()
    while found < records:
        messages = consumer.consume(10_000, 5)
        assert messages, f"{found} of {records}"
        found += len(messages)
    read = records / (time.perf_counter() - began)
    consumer.close()
    return {"librdkafka produces 200 B, linger 5 ms": sent, "librdkafka reads 200 B": read}


def latency(server: Server, turn: int, count: int) -> Figures:
    """From produce to consume, in one process with librdkafka, at a fixed rate."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    topic = f"latency-{turn}"
    make_topics(server, [topic])
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 0})
    producer.produce(topic, struct.pack("d", 0))
    producer.flush(WAIT_S)
    assert consumer.consume(1, WAIT_S)
    took: list[float] = []
    began = time.perf_counter()
    sent = 0
    while len(took) < count:
        now = time.perf_counter()
        while sent < count and now - began >= sent / RATE:
            producer.produce(topic, struct.pack("d", time.perf_counter()))
            sent += 1
        producer.poll(0)
        for message in consumer.consume(100, 0.0005):
            (began_at,) = struct.unpack("d", message.value() or b"")
            took.append(time.perf_counter() - began_at)
        assert now - began < count / RATE + WAIT_S, f"{len(took)} of {count}"
    consumer.close()
    took.sort()
    return {
        "latency at 1,000 records a second, median": statistics.median(took),
        "latency at 1,000 records a second, 99th percentile": took[int(len(took) * 0.99)],
    }


def topic_in_a_test(server: Server, turn: int, count: int) -> Figures:
    took = seconds_of_a_topic(server, turn, count)
    figures = {"a topic made, written, read and deleted": took}
    if server.name == KAFKALOG:
        trial = Trial()
        make_topics(trial, [f"other-{number}" for number in range(TOPICS)])
        took = seconds_of_a_topic(trial, turn, count)
        trial.stop()
    return figures | {"a topic in a test of pytest": took}


def seconds_of_a_topic(server: Server | Trial, turn: int, count: int) -> float:
    """The median time in which a topic is created, written, read and deleted."""
    wire = Client(server.bootstrap)
    builder = MemoryRecordsBuilder()
    builder.append(0, b"k", b"v")
    batch = builder.build()
    took = []
    for number in range(count):
        name = f"test-{turn}-{number}"
        began = time.perf_counter()
        made = wire.ask(
            ApiKeys.CREATE_TOPICS, 7, timeoutMs=5000,
            topics=[{"name": name, "numPartitions": 1, "replicationFactor": 1}],
        )["topics"][0]  # fmt: skip
        assert made["errorCode"] == 0, made
        parts = [{"index": 0, "records": batch}]
        while True:
            sent = wire.ask(
                ApiKeys.PRODUCE, 13, transactionalId=None, acks=-1, timeoutMs=5000,
                topicData=[{"topicId": made["topicId"], "partitionData": parts}],
            )  # fmt: skip
            if sent["responses"][0]["partitionResponses"][0]["errorCode"] == 0:
                break  # a broker learns of a new topic a moment later
        got = wire.ask(
            ApiKeys.FETCH, 13, maxWaitMs=500, minBytes=1, maxBytes=1 << 20, isolationLevel=0, sessionId=0,
            sessionEpoch=-1,
            topics=[{
                "topicId": made["topicId"],
                "partitions": [{"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1 << 20}],
            }],
        )  # fmt: skip
        assert got["responses"][0]["partitions"][0]["records"], got
        wire.ask(ApiKeys.DELETE_TOPICS, 6, topics=[{"name": name}], timeoutMs=5000)
        took.append(time.perf_counter() - began)
    wire.close()
    return statistics.median(took)


# --- idle consumers --------------------------------------------------------------------------------------


async def _member(server: Server, number: int, topic_id: str, over: asyncio.Event) -> None:
    """One member of a group, as an idle consumer is: it waits for records, and sends heartbeats."""
    numbers = itertools.count(1)

    async def connected() -> Callable[..., Any]:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)

        async def ask(key: int, version: int, **body: Any) -> Any:
            writer.write(frame(key, version, body, correlation_id=next(numbers)))
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            return decoded(key, version, await reader.readexactly(size))[1]

        return ask

    group, member = f"idle-{number % 100}", f"member-{number}"
    ask, beat = await connected(), await connected()
    session_id, session_epoch = 0, 0
    topics = [{"topicId": topic_id, "partitions": [{"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1 << 20}]}]
    subscription = {"subscribedTopicNames": ["idle"], "rebalanceTimeoutMs": 300_000, "topicPartitions": []}
    found = await beat(
        ApiKeys.CONSUMER_GROUP_HEARTBEAT, 1, groupId=group, memberId=member, memberEpoch=0, **subscription
    )
    epoch = found["memberEpoch"]

    async def heartbeats() -> None:
        nonlocal epoch
        while not over.is_set():
            await asyncio.sleep(3)
            told = await beat(
                ApiKeys.CONSUMER_GROUP_HEARTBEAT, 1, groupId=group, memberId=member, memberEpoch=epoch,
                rebalanceTimeoutMs=-1, subscribedTopicNames=None, topicPartitions=None,
            )  # fmt: skip
            epoch = told["memberEpoch"] if told["errorCode"] == 0 else epoch

    async def fetch(epoch: int) -> Any:
        told = await ask(
            ApiKeys.FETCH, 13, maxWaitMs=500, minBytes=1, maxBytes=1 << 20, isolationLevel=0, sessionId=session_id,
            sessionEpoch=epoch, topics=[] if epoch > 0 else topics,
        )  # fmt: skip
        assert told["errorCode"] == 0, told
        return told

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(heartbeats())
        while not over.is_set():
            told = await fetch(session_epoch)
            # Without a session, because there are too many, a client asks for everything again.
            session_id, session_epoch = told["sessionId"], session_epoch + 1 if told["sessionId"] else 0
        await fetch(-1)  # ends the session, which would take the place of another one for two minutes


async def _idle(server: Server, topic_id: str, members: int, seconds: float) -> float:
    over = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for number in range(members):
            tasks.create_task(_member(server, number, topic_id, over))
            if number % 50 == 0:
                await asyncio.sleep(0.2)
        await asyncio.sleep(8)
        before = cpu_of(server)
        await asyncio.sleep(seconds)
        used = cpu_of(server) - before
        over.set()
    return used / seconds


def idle(server: Server, turn: int, members: int) -> Figures:
    wire = Client(server.bootstrap)
    if turn == 0:
        make_topics(server, ["idle"])
    described = wire.ask(ApiKeys.METADATA, 12, topics=[{"name": "idle", "topicId": "A" * 22}])
    wire.close()
    share = asyncio.run(_idle(server, described["topics"][0]["topicId"], members, IDLE_S))
    return {"CPU with 1,000 idle members of groups, share of a core": share}


# --- the run ---------------------------------------------------------------------------------------------

UNITS = {
    "start": (SECONDS, LOWER), "memory": (BYTES, LOWER), "peak memory": (BYTES, LOWER), "latency": (SECONDS, LOWER),
    "a topic": (SECONDS, LOWER), "CPU": ("", LOWER),
}  # fmt: skip


def measures(quick: bool) -> dict[str, Callable[[Server, int], Figures]]:
    share = 20 if quick else 1
    return {
        "start": start,
        "perf": lambda server, turn: perf(server, turn, 1_000_000 // share),
        "confluent": lambda server, turn: confluent(server, turn, 1_000_000 // share),
        "latency": lambda server, turn: latency(server, turn, LATENCIES // share),
        "idle": lambda server, turn: idle(server, turn, IDLE_MEMBERS // share),
        "topic": lambda server, turn: topic_in_a_test(server, turn, 200 // share),
    }


@contextlib.contextmanager
def servers() -> Iterator[list[Server]]:
    place = Path(tempfile.mkdtemp(prefix="kafkalog-bench-"))
    (place / "kafka").mkdir()
    found: list[Server] = [Ours(place), Theirs(place / "kafka")]
    try:
        for each in found:
            each.launch()
            serves(each)
        yield found
    finally:
        for each in found:
            with contextlib.suppress(Exception):
                each.stop()
        shutil.rmtree(place, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="measures whose names contain one of these; default: all")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the work")
    kept.add_options(parser)
    given = parser.parse_args()
    results = Results()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    with servers() as both:
        for name, measure in measures(given.quick).items():
            if given.parts and not any(part in name for part in given.parts):
                continue
            found: dict[str, dict[str, list[float]]] = {}
            for turn in range(given.turns):
                for server in both:
                    for row, figure in measure(server, turn).items():
                        found.setdefault(row, {}).setdefault(server.name, []).append(figure)
            for row, sides in found.items():
                tell(results, row, sides)
    kept.keep(given, results)


def tell(results: Results, row: str, sides: dict[str, list[float]]) -> None:
    unit, better = next(
        (found for start, found in UNITS.items() if row.startswith(start)), (RECORDS_PER_S, kept.HIGHER)
    )
    results.row(GROUP, row, unit, sides, better=better)
    ours, theirs = (statistics.median(sides[name]) for name in (KAFKALOG, KAFKA))
    ratio = theirs / ours if better == LOWER else ours / theirs
    print(f"{row}: {ours:,.4g} {unit}, Kafka {theirs:,.4g}: {ratio:.2f}x", flush=True)


if __name__ == "__main__":
    main()
