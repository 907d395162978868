"""The main job, end to end on real data: `make demo` (or `python -m tests.demo [EMPTY_DIRECTORY]`).

Apache Kafka 4.4.0's LogManager writes a partition with all five codecs. kafkalog shows it, verifies it, appends to it,
is killed with -9 in the middle of appending, and recovers; then PySpark aggregates it. Last, Kafka's LogManager and its
dump tool open what kafkalog wrote and must find every batch valid. If Maven is missing, kafkalog writes the partition
itself, and the demo says so. If a check fails, the demo ends with exit code 1.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import kafkalog
from tests.conformance import kafka_jars

PARTITION = "orders-0"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BATCHES_A_CODEC = 20
RECORDS_A_BATCH = 50
NOW_MS = 1_700_000_000_000
# Small segments, so that some are rolled; the same settings on both engines.
CONFIG = {"segment.bytes": "1048576", "index.interval.bytes": "4096", "retention.ms": "-1"}

WRITER = """
import sys, kafkalog
with kafkalog.open_log(sys.argv[1], sys.argv[2]) as log:
    n = 0
    while True:
        offset = log.append(b"appended before the crash %d" % n, key=b"crash-%d" % (n % 10))
        print(offset, flush=True)
        n += 1
"""


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def check(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"FAILED: {what}")
    print(f"   ok: {what}", flush=True)


def command_line(*args: str, stdin: str | None = None) -> str:
    print(f"   $ kafkalog {' '.join(args)}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "kafkalog", *args], input=stdin, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"FAILED: kafkalog {' '.join(args)} exited with code {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def show(text: str, lines: int = 20) -> None:
    shown = text.splitlines()
    for line in shown[:lines]:
        print(f"   | {line}")
    if len(shown) > lines:
        print(f"   | ... {len(shown) - lines} more lines")


def kafka_script(driver: kafka_jars.Driver, place: Path, operations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs operations on real Kafka in `place` and returns the results; an error ends the demo."""
    script = place / "script.jsonl"
    script.write_text("".join(json.dumps(operation) + "\n" for operation in operations))
    done = subprocess.run(driver.command(str(script), str(place)), capture_output=True, text=True, check=False)
    script.unlink()
    if done.returncode != 0:
        sys.exit(f"FAILED: Apache Kafka exited with code {done.returncode}:\n{done.stderr[-3000:]}")
    results = [json.loads(line) for line in done.stdout.splitlines()]
    for result in results:
        if "error" in result:
            sys.exit(f"FAILED: Apache Kafka's {result['op']} failed with {result['error']}: {result.get('message')}")
    return results


def manager(place: Path) -> dict[str, Any]:
    return {"op": "lm_open", "dirs": ["logs"], "config": CONFIG, "topics": ["orders"], "now_ms": NOW_MS}


def record(number: int) -> tuple[bytes, bytes]:
    key = b"customer-%d" % (number % 7)
    return key, json.dumps({"order": number, "amount": number % 100}).encode()


def write_with_kafka(driver: kafka_jars.Driver, place: Path) -> int:
    operations: list[dict[str, Any]] = [manager(place), {"op": "lm_get", "topic_partition": PARTITION, "is_new": True}]
    number = 0
    for _ in range(BATCHES_A_CODEC):
        for codec in CODECS:
            records = []
            for _ in range(RECORDS_A_BATCH):
                key, value = record(number)
                records.append({"ts": NOW_MS + number, "key_hex": key.hex(), "value_hex": value.hex()})
                number += 1
            operations.append({"op": "append_leader", "batches": [{"codec": codec, "records": records}]})
    kafka_script(driver, place, [*operations, {"op": "lm_shutdown"}])
    return number


def write_with_kafkalog(log_dir: Path) -> int:
    number = 0
    for codec in CODECS * BATCHES_A_CODEC:
        settings = CONFIG | {"compression.type": codec.replace("none", "uncompressed")}
        with kafkalog.open_log(log_dir, PARTITION, config=settings) as log:
            for _ in range(RECORDS_A_BATCH):
                key, value = record(number)
                log.append(value, key=key, timestamp=NOW_MS + number)
                number += 1
    return number


def kill_while_appending(log_dir: Path) -> list[int]:
    """Returns the offsets that a writer process had printed when it was killed."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(log_dir), PARTITION], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline())]
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        acknowledged.append(int(writer.stdout.readline()))
    os.kill(writer.pid, signal.SIGKILL)
    rest, _ = writer.communicate()
    # The last line may be incomplete, because the writer was killed.
    acknowledged += [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    return acknowledged


def aggregate_with_spark(log_dir: Path) -> tuple[int, list[tuple[str, int]]]:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("kafkalog demo")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    try:
        frame = spark.read.format("kafkalog").option("path", str(log_dir)).option("subscribe", "orders").load()
        rows = frame.groupBy(f.col("key").cast("string").alias("key")).count().orderBy("key").collect()
        return frame.count(), [(row["key"], row["count"]) for row in rows]
    finally:
        spark.stop()


def open_with_kafka(driver: kafka_jars.Driver, place: Path) -> tuple[int, int]:
    """Returns (log end offset, records read) as Apache Kafka's LogManager and UnifiedLog see them."""
    reads = [
        manager(place),
        {"op": "lm_get", "topic_partition": PARTITION},
        {"op": "segments"},
        {"op": "offset_for_timestamp", "ts": -1},
        {"op": "read", "offset": 0, "max_bytes": 1 << 29, "isolation": "log_end"},
    ]
    results = kafka_script(driver, place, reads)
    end = results[3]["result"]["offset"]
    segments = results[2]["result"]
    reread = [{"op": "read", "offset": s["base"], "max_bytes": 1 << 29, "isolation": "log_end"} for s in segments]
    results = kafka_script(driver, place, [*reads[:2], *reread, {"op": "lm_shutdown"}])
    count = sum(last - base + 1 for r in results if r["op"] == "read" for base, last in r["read"]["batches"])
    return end, count


def dump_with_kafka(place: Path) -> tuple[int, int]:
    """Returns the (valid, invalid) batches that kafka-dump-log counts."""
    driver = kafka_jars.tools()
    logs = sorted((place / "logs" / PARTITION).glob("*.log"))
    files = ",".join(str(path) for path in logs)
    tool = "org.apache.kafka.tools.DumpLogSegments"
    done = subprocess.run(driver.command("--files", files, main=tool), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"FAILED: kafka-dump-log exited with code {done.returncode}:\n{done.stderr[-3000:]}")
    bad = done.stdout.count("isvalid: false") + done.stdout.count("invalid bytes")
    return done.stdout.count("isvalid: true"), bad


def main(place: Path) -> None:
    log_dir = place / "logs"
    log_dir.mkdir(parents=True, exist_ok=True)
    driver = None
    try:
        driver = kafka_jars.driver()
    except kafka_jars.KafkaMissingError as missing:
        if os.environ.get("CI") == "true":
            raise
        say(f"Apache Kafka is not available ({missing}): kafkalog writes a partition instead")
        written = write_with_kafkalog(log_dir)
    if driver is not None:
        say("Apache Kafka 4.4.0 writes a partition with all five codecs")
        written = write_with_kafka(driver, place)
    print(f"   {written} records were written to {log_dir / PARTITION}")

    say("kafkalog describes the directory, verifies it and prints the first three records")
    show(command_line("describe", str(log_dir)))
    show(command_line("verify", str(log_dir)))
    show(command_line("cat", str(log_dir), PARTITION, "-n", "3", "--json"))

    say("kafkalog appends 1000 records to the partition")
    lines = "".join(f"hello:{i}\n" for i in range(1000))
    command_line("append", str(log_dir), PARTITION, "--key-separator", ":", stdin=lines)
    with kafkalog.open_log(log_dir, PARTITION, read_only=True) as log:
        check(log.end_offset == written + 1000, f"the log end offset is {written + 1000}")

    say("A writer process is killed (kill -9) while it appends; kafkalog recovers the log")
    acknowledged = kill_while_appending(log_dir)
    with kafkalog.open_log(log_dir, PARTITION) as log:
        end = log.end_offset
        kept = [r.offset for r in log.records(acknowledged[0], end)]
    check(set(acknowledged) <= set(kept), f"all {len(acknowledged)} acknowledged records are in the log")
    check(kept == list(range(acknowledged[0], end)), f"the offsets up to the end, {end}, have no gap")
    show(command_line("verify", str(log_dir)))

    say("PySpark counts the records of each key")
    count, rows = aggregate_with_spark(log_dir)
    show("\n".join(f"{key:12} {number}" for key, number in rows))
    check(count == end, f"Spark counted {end} records in all")

    if driver is not None:
        say("Apache Kafka opens the directory that kafkalog has written to")
        theirs, read = open_with_kafka(driver, place)
        check(theirs == end, f"Kafka sees the same log end offset, {end}")
        check(read == end, f"Kafka reads all {end} records")
        valid, invalid = dump_with_kafka(place)
        check(valid > 0 and invalid == 0, f"kafka-dump-log finds {valid} batches, all of them valid")
    say("Done: every check passed")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]).absolute())
    else:
        with tempfile.TemporaryDirectory(prefix="kafkalog-demo-") as scratch:
            main(Path(scratch))
