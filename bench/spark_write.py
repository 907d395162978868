"""`python -m bench.spark_write`: Spark's sink into a directory compared with Spark's Kafka sink and its live broker.

Both sides use one Spark session and one disk. Two tasks write the same rows (a key of a few bytes, a value of about
200), which Spark generates on the fly, into a topic of four partitions. The best of several runs after a warm-up
counts. The broker is Apache Kafka 4.4.0 on loopback (the one of the tests). The connector has its defaults, except for
the codec, and leaves syncing to the system; kafkalog syncs before it commits, and writes all or nothing. This needs the
PySpark version that has a connector (`tests.spark.connector`).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import kafkalog
from bench import machine
from bench.kept import Results, add_options, keep
from bench.spark import Broker, add
from tests.broker import clients
from tests.spark import connector

PARTITIONS = 4
TASKS = 2
CODECS = ("none", "lz4", "zstd")


def rows(spark: Any, count: int) -> Any:
    return spark.range(0, count, 1, TASKS).selectExpr(
        "cast(id % 100000 as string) key",
        """concat('{"id": ', id, ', "text": "', sha2(cast(id as string), 512), repeat('text ', 10), '"}') value""",
    )


def ours(frame: Any, place: Path, topic: str, codec: str) -> float:
    with kafkalog.open(place) as store:
        store.create_topic(topic, PARTITIONS)
    begin = time.perf_counter()
    writer = frame.write.format("kafkalog").mode("append").option("topic", topic)
    writer.option("kafka.compression.type", codec).save(str(place))
    return time.perf_counter() - begin


def theirs(frame: Any, node: Broker, topic: str, codec: str) -> float:
    clients.create_topics(node.bootstrap, {topic: (PARTITIONS, {})})
    begin = time.perf_counter()
    writer = frame.write.format("kafka").option("topic", topic).option("kafka.bootstrap.servers", node.bootstrap)
    writer.option("kafka.compression.type", codec).save()
    return time.perf_counter() - begin


def main() -> None:
    """Runs the comparison and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--turns", type=int, default=3)
    add_options(parser)
    given = parser.parse_args()
    results = Results()
    place = Path(tempfile.mkdtemp(prefix="kafkalog-bench-"))
    machine.tell(place)
    print("| write, k records/s | kafkalog | Spark's Kafka sink, live broker | ratio |")
    print("|---|---|---|---|")
    try:
        (place / "broker").mkdir()
        node = Broker(place / "broker", settings={"num.network.threads": "2", "num.io.threads": "4"})
        node.start()
        try:
            spark = connector.session(place, **{"spark.ui.showConsoleProgress": "false"})
            frame = rows(spark, given.records)
            for codec in CODECS:
                found: dict[str, list[float]] = {"kafkalog": [], "connector": []}
                for turn in range(given.turns + 1):
                    topic = f"{codec}-{turn}"
                    for name, seconds in (
                        ("kafkalog", ours(frame, place / "ours", topic, codec)),
                        ("connector", theirs(frame, node, topic, codec)),
                    ):
                        found[name].append(seconds)
                    shutil.rmtree(place / "ours")
                add(results, "spark-writes", f"a batch write, {codec}", given.records, found)
                mine, their = (given.records / min(turns[1:]) / 1e3 for turns in found.values())
                print(f"| {codec} | {mine:,.0f} | {their:,.0f} | {mine / their:.1f}x (aim 3) |", flush=True)
            spark.stop()
        finally:
            node.kill()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    keep(given, results)


if __name__ == "__main__":
    main()
