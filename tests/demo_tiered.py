"""Tiered storage, end to end: `make demo-tiered` (or `python -m tests.demo_tiered [EMPTY_DIRECTORY]`).

A store tiers a topic to an S3 server on this machine (moto's, over HTTP), the disk lets go of what was copied, the
command line shows and verifies both tiers, PySpark reads the bucket alone, and a partition is restored from it, byte
for byte.  Any step that does not hold ends the demo with exit code 1.
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
    "local.retention.bytes": "1048576",  # this much stays on the disk once it is copied
}
KEY, SECRET = "demo", "demo-secret"


def amounts(frame: Any) -> list[tuple[str, int]]:
    """The sum of each customer's orders."""
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

    say(f"a store tiers a topic to {url} (S3 at {endpoint})")
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
        check(copied > 2, f"{copied} segments were copied")
        check(deleted > 0, f"the disk let go of {deleted} of them")
        check(sum(1 for _ in partition) == RECORDS, f"a reader finds all {RECORDS} records, wherever they lie")

    say("the command line over both tiers")
    show(command_line("tier", "list", str(shop), "--remote", url), 6)
    command_line("tier", "verify", str(shop), "--remote", url, "--deep")
    last = command_line("cat", str(shop), "orders", "--remote", url, "--last", "1", "-f", "%o\\n")
    check(last.split() == [str(RECORDS - 1)], "the last record is the last that was appended")

    say("PySpark reads the bucket alone")
    with kafkalog.open(url, read_only=True) as bucket:
        tiered = bucket.topic("orders").partition(0).end_offset
    spark = session(endpoint)
    try:
        frame = spark.read.format("kafkalog").option("path", url).option("subscribe", "orders").load()
        check(frame.count() == tiered, f"Spark counts the {tiered} records that were tiered")
        found = amounts(frame)
    finally:
        spark.stop()
    expected: dict[str, int] = {}
    for number in range(tiered):
        expected[f"c-{number % 5}"] = expected.get(f"c-{number % 5}", 0) + number % 100
    check(found == sorted(expected.items()), f"and sums them as they were written: {found[0]}, ...")

    say("a partition comes back from the bucket")
    command_line("tier", "restore", url, str(place / "restored"), "orders", "--yes")
    with kafkalog.open(place / "restored", read_only=True) as restored:
        check(restored.topic("orders").partition(0).end_offset == tiered, "with every record that was tiered")
    say("done")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
