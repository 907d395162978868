"""Tiered storage, end to end: `make demo-tiered` (or `python -m tests.demo_tiered [EMPTY_DIRECTORY]`).

A store tiers a topic to an S3 server on this machine (moto's, over HTTP) and deletes the copied segments from the disk.
The command line shows and verifies both tiers, PySpark reads the bucket alone, and a partition is restored from the
bucket. If a check fails, the demo ends with exit code 1.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import kafkalog
from tests.demo import check, command_line, say, show

RECORDS = 20_000
SETTINGS = {
    "remote.storage.enable": "true",
    "segment.bytes": "1048576",
    "local.retention.bytes": "1048576",  # this much stays on the disk after it was copied
}
KEY, SECRET = "demo", "demo-secret"


def amounts(frame: Any) -> list[tuple[str, int]]:
    """Returns the sum of each customer's orders."""
    from pyspark.sql import functions as f

    amount = f.get_json_object(frame.value.cast("string"), "$.amount").cast("long")
    summed = frame.groupBy(frame.key.cast("string").alias("customer")).agg(f.sum(amount).alias("amount"))
    return sorted((row.customer, row.amount) for row in summed.collect())


def session(endpoint: str) -> Any:
    from pyspark.sql import SparkSession

    from kafkalog.spark.source import register

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("kafkalog demo")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .config("spark.hadoop.fs.s3a.endpoint", endpoint)
        .config("spark.hadoop.fs.s3a.access.key", KEY)
        .config("spark.hadoop.fs.s3a.secret.key", SECRET)
        .getOrCreate()
    )
    register(spark)
    return spark


def main(place: Path) -> None:
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="bucket")
        run(place, endpoint)
    finally:
        server.stop()


def run(place: Path, endpoint: str) -> None:
    os.environ.update(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_ENDPOINT_URL=endpoint)
    url, shop = "s3://bucket/prefix", place / "shop"

    say(f"A store tiers a topic to {url} (an S3 server at {endpoint})")
    with kafkalog.open(shop, remote=url) as store:
        orders = store.create_topic("orders", 1, config=SETTINGS)
        for start in range(0, RECORDS, 500):
            numbers = range(start, start + 500)
            orders.append_many(
                [(b'{"order": %d, "amount": %d}' % (n, n % 100) + b" " * 200, b"c-%d" % (n % 5)) for n in numbers]
            )
        copied = store.remote_log_manager.run_once()
        partition = orders.partition(0)
        deleted = partition.delete_old_segments()
        check(copied > 2, f"{copied} segments were copied to the bucket")
        check(deleted > 0, f"{deleted} of them were deleted from the disk")
        check(sum(1 for _ in partition) == RECORDS, f"a reader gets all {RECORDS} records, from disk and bucket")

    say("The command line shows and verifies both tiers")
    show(command_line("tier", "list", str(shop), "--remote", url), 6)
    command_line("tier", "verify", str(shop), "--remote", url, "--deep")
    last = command_line("cat", str(shop), "orders", "--remote", url, "--last", "1", "-f", "%o\\n")
    check(last.split() == [str(RECORDS - 1)], "the last record is the one that was appended last")

    say("PySpark reads the bucket alone")
    with kafkalog.open(url, read_only=True) as bucket:
        tiered = bucket.topic("orders").partition(0).end_offset
    spark = session(endpoint)
    try:
        frame = spark.read.format("kafkalog").option("path", url).option("subscribe", "orders").load()
        check(frame.count() == tiered, f"Spark counts all {tiered} records in the bucket")
        found = amounts(frame)
    finally:
        spark.stop()
    expected: dict[str, int] = {}
    for number in range(tiered):
        expected[f"c-{number % 5}"] = expected.get(f"c-{number % 5}", 0) + number % 100
    check(found == sorted(expected.items()), f"Spark's sums for each customer are right: {found[0]}, ...")

    say("A partition is restored from the bucket")
    command_line("tier", "restore", url, str(place / "restored"), "orders", "--yes")
    with kafkalog.open(place / "restored", read_only=True) as restored:
        check(restored.topic("orders").partition(0).end_offset == tiered, "the restored partition has all of them")
    say("Done: every check passed")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
