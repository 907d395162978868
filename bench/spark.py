"""`python -m bench.spark`: the Spark source compared with Spark's Kafka connector, which reads from a live broker.

Both sides run in one session, over the same topics: the broker (Apache Kafka 4.4.0 on loopback, the one of the tests)
has written them, and kafkalog reads its directories while it is running. This needs the PySpark version that has a
connector, so `make bench-spark` uses a separate environment. A run is a whole job as a user has it, from `spark.read`
to the result, including planning. The sides run alternately; the table has the best run, and kept results all of them.

On a shared machine `--cpu` counts CPU time instead of elapsed time: that of Spark's JVM and all its Python workers. On
the connector's side it includes the broker, which runs on the same machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench import machine
from bench.kept import KAFKALOG, RECORDS_PER_S, Results, add_options, keep
from tests.broker import clients, kraft
from tests.spark import connector

RECORDS = 2_000_000
PARTITIONS = 4
BATCH_BYTES = 1_000_000  # librdkafka's default
TURNS = 5
CODECS = ("none", "lz4", "zstd")
START_MS = 1_700_000_000_000
COUNTRIES = ("DE", "FR", "US", "JP", "BR", "IN", "GB", "PL")
VALUE_SCHEMA = "id bigint, user string, country string, amount double, status string, note string"
CONNECTOR = "Spark's Kafka connector"
WORDS = ("order", "created", "berlin", "paid", "tokyo", "shipped", "returned", "pending", "express", "gift")


class Broker(kraft.Broker):
    """The tests' broker with a server's JVM settings: the compiler is not limited."""

    def _command(self, main: str, *args: str) -> list[str]:
        command = super()._command(main, *args)
        if main.endswith("StorageTool"):
            command.append("--ignore-formatted")  # a place that was kept
        return [part for part in command if part not in ("-XX:TieredStopAtLevel=1", "-Xmx512m", "-XX:+UseSerialGC")]


def value(draw: random.Random, number: int) -> bytes:
    """Returns about 200 bytes of JSON."""
    fields = {
        "id": number,
        "user": f"user-{draw.randrange(100_000):06d}",
        "country": COUNTRIES[draw.randrange(len(COUNTRIES))],
        "amount": round(draw.random() * 1000, 2),
        "status": WORDS[draw.randrange(len(WORDS))],
        "note": f"{' '.join(draw.choices(WORDS, k=9))} {draw.getrandbits(96):024x}",
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def produce(
    bootstrap: str, topic: str, codec: str, count: int, batch_bytes: int, config: Mapping[str, str] | None = None
) -> None:
    """Writes records with librdkafka and its defaults, except for the codec, the batch size and a linger time that
    fills them."""
    from confluent_kafka import Producer

    clients.create_topics(bootstrap, {topic: (PARTITIONS, config or {})})
    draw = random.Random(topic)
    values = [value(draw, number) for number in range(50_000)]
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.codec": codec,
            "linger.ms": 50,
            "batch.size": batch_bytes,
            "queue.buffering.max.messages": 500_000,
        }
    )
    for number in range(count):
        while True:
            try:
                producer.produce(
                    topic,
                    values[number % len(values)],
                    b"%08d" % (number % 100_000),
                    partition=number // 1000 % PARTITIONS,
                    timestamp=START_MS + number,
                )
                break
            except BufferError:
                producer.poll(0.05)
        if not number % 1000:
            producer.poll(0)
    left = producer.flush(120)
    assert left == 0, left


class Sides:
    """The two readers of one topic; `columns` prunes where a side can."""

    def __init__(self, spark: Any, broker: kraft.Broker) -> None:
        self.spark = spark
        self.broker = broker

    def connector(self, topic: str, columns: str) -> Any:
        del columns  # Spark prunes for it
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.broker.bootstrap)
        return reader.option("subscribe", topic).load()

    def kafkalog(self, topic: str, columns: str) -> Any:
        reader = self.spark.read.format("kafkalog").option("path", str(self.broker.log_dir)).option("subscribe", topic)
        return (reader.option("columns", columns) if columns else reader).load()


class Job:
    """`run(frame, place)` is the job; `columns` is what a user would prune to, "" for all.

    `instead(sides, topic, place)` is kafkalog's job for the same task, if it has one.
    """

    def __init__(
        self,
        name: str,
        aim: float,
        columns: str,
        run: Callable[[Any, Path], Any],
        instead: Callable[[Sides, str, Path], Any] | None = None,
    ) -> None:
        self.name, self.aim, self.columns, self.run, self.instead = name, aim, columns, run, instead


def _group(frame: Any, place: Path) -> Any:
    from pyspark.sql import functions as f

    return _sums(frame.select(f.from_json(f.col("value").cast("string"), VALUE_SCHEMA).alias("v")))


def _group_columns(sides: Sides, topic: str, place: Path) -> Any:
    """As a user of `valueSchema` writes it: Spark prunes the schema of from_json automatically, here the user names the
    fields."""
    reader = sides.spark.read.format("kafkalog").option("path", str(sides.broker.log_dir)).option("subscribe", topic)
    frame = reader.option("columns", "value").option("valueSchema", "country string, amount double").load()
    return _sums(frame.withColumnRenamed("value", "v"))


def _sums(parsed: Any) -> Any:
    from pyspark.sql import functions as f

    rows = parsed.groupBy("v.country").agg(f.count("*"), f.sum("v.amount").cast("decimal(20,2)")).collect()
    return sorted(tuple(row) for row in rows)


def _parquet(frame: Any, place: Path) -> Any:
    frame.write.mode("overwrite").parquet(str(place / "out"))


def _export(sides: Sides, topic: str, place: Path) -> Any:
    from kafkalog.spark import jobs

    shutil.rmtree(place / "lake", ignore_errors=True)
    rows = jobs.export(sides.spark, str(sides.broker.log_dir), str(place / "lake"), [topic]).collect()
    assert not [row.error for row in rows if row.error]
    assert sum(row.records for row in rows) == int(topic.rpartition("-")[2])  # from its name


def _aggregates(frame: Any, place: Path) -> Any:
    rows = frame.groupBy("partition").agg({"offset": "max", "timestamp": "max"})
    return sorted(tuple(row) for row in rows.collect())


JOBS = (
    Job("count(*)", 4.5, "", lambda frame, place: frame.count()),
    Job("sum(length(value))", 4, "", lambda frame, place: frame.selectExpr("sum(length(value))").first()[0]),
    Job("offsets and timestamps, pruned schema", 8, "partition,offset,timestamp", _aggregates),
    Job("write.parquet, all columns", 2.3, "", _parquet),
    Job("write.parquet, or the export job", 6, "", _parquet, _export),
    Job("from_json and groupBy", 2, "", _group),
    Job("from_json, or valueSchema, and groupBy", 2.5, "", _group, _group_columns),
)


def cpu_seconds(root: int, without: int) -> float:
    """Returns the CPU time of a process and all its descendants, ended ones too, without the process `without` and its
    descendants."""
    parents: dict[int, list[tuple[int, int]]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append((int(entry), sum(map(int, fields[11:15]))))
    mine = Path(f"/proc/{root}/stat").read_text().rpartition(")")[2].split()
    total, waiting = sum(map(int, mine[11:15])), [root]
    while waiting:
        for child, ticks in parents.get(waiting.pop(), []):
            if child != without:
                total += ticks
                waiting.append(child)
    return total / os.sysconf("SC_CLK_TCK")


def worker_peak_mib() -> int:
    """Returns the most memory that one of Spark's Python workers has had (they stay between jobs)."""
    peak = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if b"pyspark.daemon" in command and sys.prefix.encode() in command:
                status = (entry / "status").read_text()
                peak = max(peak, int(status.split("VmHWM:")[1].split()[0]) // 1024)
    return peak


def timed(what: Callable[[], Any], now: Callable[[], float]) -> tuple[float, Any]:
    begin = now()
    answer = what()
    return now() - begin, answer


@contextlib.contextmanager
def place_of(kept: str | None) -> Iterator[Path]:
    if kept is not None:
        yield Path(kept)
        return
    made = tempfile.mkdtemp(prefix="kafkalog-bench-")
    try:
        yield Path(made)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def clock_of(side: str, by_cpu: bool, broker_pid: int) -> Callable[[], float]:
    if not by_cpu:
        return time.perf_counter
    return lambda: cpu_seconds(os.getpid(), broker_pid if side == "kafkalog" else 0)


def once(sides: Sides, job: Job, side: str, topic: str, place: Path) -> Any:
    if side == "kafkalog" and job.instead is not None:
        return job.instead(sides, topic, place)
    return job.run(getattr(sides, side)(topic, job.columns), place)


def measure(sides: Sides, job: Job, topic: str, place: Path, given: Any) -> dict[str, list[float]]:
    """Returns the seconds of each run of each side; their results must be the same."""
    found: dict[str, list[float]] = {}
    answers = {}
    for _ in range(given.turns):
        for side in ("kafkalog", "connector"):
            if given.only in (None, side):
                now = clock_of(side, given.cpu, sides.broker.pid)
                seconds, answers[side] = timed(partial(once, sides, job, side, topic, place), now)
                found.setdefault(side, []).append(seconds)
    assert len(set(map(str, answers.values()))) == 1, answers
    return found


def add(results: Results, group: str, name: str, records: int, seconds: Mapping[str, list[float]]) -> None:
    """Adds the rates of a job's runs. The first run warms the JVM up, and does not count if there are others."""
    sides = {"kafkalog": KAFKALOG}
    rates = {
        sides.get(side, CONNECTOR): [records / each for each in turns[1:] or turns] for side, turns in seconds.items()
    }
    results.row(group, name, RECORDS_PER_S, rates)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument(
        "--batch-bytes",
        type=int,
        default=BATCH_BYTES,
        help="the producer's batch size (the Java client's default: 16384)",
    )
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--codec", action="append", choices=CODECS)
    parser.add_argument(
        "--job", type=int, action="append", help=f"run only this job, 0 to {len(JOBS) - 1}; may be repeated"
    )
    parser.add_argument("--only", choices=("kafkalog", "connector"))
    parser.add_argument("--cpu", action="store_true", help="measure CPU time instead of elapsed time")
    parser.add_argument("--conf", action="append", default=[], help="a Spark setting, such as spark.name=value")
    parser.add_argument("--place", help="a directory for the broker, kept for the next run")
    add_options(parser)
    given = parser.parse_args()
    results = Results()
    with place_of(given.place) as place:
        place.mkdir(parents=True, exist_ok=True)
        machine.tell(place)
        broker = Broker(place, settings={"num.network.threads": "3", "num.io.threads": "8"})
        broker.start()
        settings = dict(each.split("=", 1) for each in given.conf)
        spark = connector.session(place / "spark", **{"spark.ui.showConsoleProgress": "false", **settings})
        try:
            run(given, broker, spark, place, results)
        finally:
            spark.stop()
            broker.stop()
    keep(given, results)


def run(given: Any, broker: kraft.Broker, spark: Any, place: Path, results: Results) -> None:
    sides = Sides(spark, broker)
    print(f"{given.records:,} records of about 200 B, {PARTITIONS} partitions, {os.cpu_count()} cores", flush=True)
    if given.cpu:
        print("rows per second of CPU time, of all processes that a side needs")
    print("| job | codec | kafkalog, M rows/s | connector, M rows/s | ratio |")
    print("|---|---|---|---|---|", flush=True)
    for codec in given.codec or CODECS:
        size = "" if given.batch_bytes == BATCH_BYTES else f"-{given.batch_bytes}"
        topic = f"bench-{codec}{size}-{given.records}"
        if not (broker.log_dir / f"{topic}-0").exists():
            produce(broker.bootstrap, topic, codec, given.records, given.batch_bytes)
        for job in [JOBS[number] for number in given.job] if given.job else JOBS:
            seconds = measure(sides, job, topic, place, given)
            add(results, "spark-reads", f"{job.name}, {codec}{', CPU time' * given.cpu}", given.records, seconds)
            rates = {side: given.records / min(turns) / 1e6 for side, turns in seconds.items()}
            ours, theirs = rates.get("kafkalog"), rates.get("connector")
            ratio = f"{ours / theirs:.1f}x (aim {job.aim})" if ours and theirs else ""
            shown = [f"{rate:.2f}" if rate else "" for rate in (ours, theirs)]
            print(f"| {job.name} | {codec} | {shown[0]} | {shown[1]} | {ratio} |", flush=True)
    print(f"a Python worker's peak: {worker_peak_mib()} MiB")


if __name__ == "__main__":
    sys.exit(main())
