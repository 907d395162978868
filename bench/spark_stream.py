"""`python -m bench.spark_stream`: Spark's stream from kafkalog compared with Spark's Kafka connector and a live broker.

Both sides run in one session, over one topic: the broker (Apache Kafka 4.4.0 on loopback, the one of the tests) has
written it, and kafkalog reads its directory while it is running. A run is a query with Trigger.AvailableNow from the
earliest offset; the sides run alternately, and the best run of each counts. Throughput is that of the micro-batches
with records, from trigger to commit. The whole query, shown next to it, includes the start of Spark's planner
processes: some seconds that do not matter to a long-running stream. This needs the PySpark version that has a connector
(`tests.spark.connector`).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.kept import Results, add_options, keep
from bench.spark import Broker, add
from tests.broker import clients
from tests.spark import connector

RECORDS = 2_000_000
PARTITIONS = 4
TURNS = 3
TOPIC = "orders"
VALUE = b"v" * 190
WAIT_S = 600


def produce(bootstrap: str, count: int) -> None:
    from confluent_kafka import Producer

    clients.create_topics(bootstrap, {TOPIC: (PARTITIONS, {})})
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 500_000})
    for number in range(count):
        while True:
            try:
                producer.produce(TOPIC, b"%08d" % number + VALUE, b"%08d" % (number % 1000), number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(WAIT_S) == 0


class Stream:
    """Queries of one source."""

    def __init__(self, spark: Any, source: str, broker: Broker, place: Path) -> None:
        self.spark, self.source, self.place = spark, source, place
        self.options = {"path": str(broker.log_dir), "kafka.bootstrap.servers": broker.bootstrap, "subscribe": TOPIC}
        self.turn = 0

    def run(self, job: Callable[[Any], Any], limit: int | None) -> tuple[float, float]:
        """Returns the seconds of one query over the whole topic: of its batches with records, and of all."""
        self.turn += 1
        options = self.options | {"startingOffsets": "earliest"}
        if limit is not None:
            options["maxOffsetsPerTrigger"] = str(limit)
        frames = job(self.spark.readStream.format(self.source).options(**options).load())
        writer = frames.writeStream.format("noop").option(
            "checkpointLocation", f"{self.place}/{self.source}{self.turn}"
        )
        begin = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)
        seconds = time.perf_counter() - begin
        batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
        return sum(progress["durationMs"]["triggerExecution"] for progress in batches) / 1000, seconds


JOBS: list[tuple[str, Callable[[Any], Any], int | None]] = [
    ("all columns", lambda frames: frames, None),
    ("sum(length(value))", lambda frames: frames.selectExpr("length(value) n").where("n < 0"), None),
    ("all columns, 200,000 a trigger", lambda frames: frames, 200_000),
]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_stream")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument(
        "--job", type=int, action="append", help=f"run only this job, 0 to {len(JOBS) - 1}; may be repeated"
    )
    add_options(parser)
    given = parser.parse_args()
    results = Results()
    place = Path(tempfile.mkdtemp(prefix="kafkalog-bench-"))
    (place / "broker").mkdir()
    broker = Broker(place / "broker", settings={"num.network.threads": "3", "num.io.threads": "8"})
    try:
        broker.start()
        produce(broker.bootstrap, given.records)
        quiet = {"spark.ui.showConsoleProgress": "false", "spark.python.authenticate.socketTimeout": "120s"}
        spark = connector.session(place, **quiet)
        sides = [Stream(spark, source, broker, place) for source in ("kafkalog", "kafka")]
        print(f"{given.records:,} records of 200 B, {PARTITIONS} partitions, k rows/s\n")
        print(
            "| stream | kafkalog | Spark's Kafka connector | ratio | whole query |\n|---|---|---|---|---|", flush=True
        )
        for name, job, limit in [JOBS[number] for number in given.job] if given.job else JOBS:
            times: dict[str, list[tuple[float, float]]] = {side.source: [] for side in sides}
            for _ in range(given.turns):
                for side in sides:
                    times[side.source].append(side.run(job, limit))
            for whole, words in enumerate(("", ", the whole query")):
                turns = {side: [turn[whole] for turn in found] for side, found in times.items()}
                add(results, "spark-streams", f"a stream, {name}{words}", given.records, turns)
            best = [[min(each) for each in zip(*times[side.source], strict=True)] for side in sides]
            (ours, our_whole), (theirs, their_whole) = best
            rates = " | ".join(f"{given.records / seconds / 1e3:,.0f}" for seconds in (ours, theirs))
            print(f"| {name} | {rates} | {theirs / ours:.1f}x (aim 3) | {their_whole / our_whole:.1f}x |", flush=True)
        spark.stop()
    finally:
        broker.kill()
        shutil.rmtree(place, ignore_errors=True)
    keep(given, results)


if __name__ == "__main__":
    sys.exit(main())
