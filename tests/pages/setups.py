"""Set-ups of pages: each function prepares the page's directory, and may give names to its Python blocks.

A function is a context manager that gets the directory.  Times in these logs are fixed, so that outputs are too.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import kafkalog
from tests.broker.kraft import free_ports
from tests.pages.page import DOCS, ROOT, Page

KAFKA_LOGS = Path(__file__).parent / "kafka-logs"
MARCH = 1_772_323_200_000  # 2026-03-01T00:00:00Z, in ms
DAY = 86_400_000  # in ms


@contextmanager
def kafka_logs(place: Path) -> Iterator[None]:
    """`kafka-logs/`: the log directory of a web shop's broker, which was stopped; `record_kafka_logs.py` wrote it."""
    shutil.copytree(KAFKA_LOGS, place / "kafka-logs", copy_function=shutil.copy)  # files are new
    yield


@contextmanager
def shop(place: Path) -> Iterator[dict[str, Any]]:
    """`shop/`: a closed store with the topic `orders`, two partitions, 300 records of March 2026."""
    with kafkalog.open(place / "shop") as store:
        orders = store.create_topic("orders", partitions=2)
        for number in range(300):
            value = b'{"order": %d, "customer": "c-%d", "amount": %d}' % (number, number % 7, number * 3 % 100)
            orders.append(value, key=b"c-%d" % (number % 7), timestamp=MARCH + number * 3_600_000)
    yield {}


@contextmanager
def spark(place: Path) -> Iterator[dict[str, Any]]:
    """`spark`: a session that ends with the page.  Its JVM starts in the page's directory."""
    from tests.spark.session import local_session

    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)
    session = local_session(place / "warehouse")
    yield {"spark": session}
    session.stop()


@contextmanager
def spring(place: Path) -> Iterator[dict[str, Any]]:
    """`shop/`: a closed store with `orders`, two partitions, an order every six hours from 15 February 2026."""
    with kafkalog.open(place / "shop") as store:
        orders = store.create_topic("orders", partitions=2)
        for number in range(360):
            customer = number % 9 + 1
            item, amount = (("tea", 12.5), ("coffee", 9.0), ("cup", 21.0), ("milk", 3.75))[number % 4]
            currency = ', "currency": "EUR"' if number >= 180 else ""  # from 1 April on
            value = f'{{"order": {number}, "customer": "c-{customer}", "item": "{item}", "amount": {amount}{currency}}}'
            orders.append(
                value.encode(), key=b"c-%d" % customer, timestamp=MARCH - 14 * DAY + number * DAY // 4,
                headers=[("source", b"web" if number % 3 else b"phone")],
            )  # fmt: skip
    yield {}


@contextmanager
def ports(place: Path) -> Iterator[dict[str, Any]]:
    """`WRITER_PORT`, `READER_PORT` and `METRICS_PORT` in the environment: three ports that are free."""
    names = ("WRITER_PORT", "READER_PORT", "METRICS_PORT")
    os.environ.update(zip(names, map(str, free_ports(len(names))), strict=True))
    yield {}
    for name in names:
        del os.environ[name]


@contextmanager
def damaged_kafka_logs(place: Path) -> Iterator[None]:
    """`kafka-logs/` as of `kafka_logs`, with one flipped byte in the middle of a closed segment of `orders-1`."""
    with kafka_logs(place):
        log = place / "kafka-logs" / "orders-1" / "00000000000000000006.log"
        data = bytearray(log.read_bytes())
        data[len(data) // 2] ^= 0x01
        log.write_bytes(data)
        yield


@contextmanager
def crashed_kafka_logs(place: Path) -> Iterator[None]:
    """`kafka-logs/` after a power failure: no marker of a clean stop, and a torn batch at the end of `orders-0`."""
    with kafka_logs(place):
        logs = place / "kafka-logs"
        (logs / ".kafka_cleanshutdown").unlink()
        last = {
            path.parent.name: int(path.stem) for path in sorted(logs.glob("*-?/*.log"))
        }  # a roll syncs all before it
        lines = [
            f"{name[:-2]} {name[-1]} {offset}" for name, offset in last.items() if not name.startswith("__cluster")
        ]
        (logs / "recovery-point-offset-checkpoint").write_text("\n".join(["0", str(len(lines)), *lines]) + "\n")
        log = logs / "orders-0" / f"{last['orders-0']:020}.log"
        log.write_bytes(log.read_bytes()[:-30])
        for kind in (".index", ".timeindex"):
            log.with_suffix(kind).write_bytes(b"")
        yield


@contextmanager
def web_service(place: Path) -> Iterator[dict[str, Any]]:
    """`wait_for`: waits until the service of the tutorial answers a path with a text in it, for a minute at most."""

    def wait_for(path: str, text: str = "") -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:8765{path}") as answer:
                    if text in answer.read().decode():
                        return
            except OSError:  # it does not listen yet, or answers 404
                pass
            time.sleep(0.05)
        raise TimeoutError(f"the service does not answer {path} with {text!r}")

    yield {"wait_for": wait_for}


@contextmanager
def web_shop(place: Path) -> Iterator[dict[str, Any]]:
    """`shop/`: the store that the tutorial's second part leaves, made by the programs that are on that page."""
    for block in Page(DOCS / "tutorial" / "notebook.md").blocks:
        if block.is_file:
            (place / block.title).write_text(block.code)
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            subprocess.run([sys.executable, block.title], cwd=place, env=environment, check=True, capture_output=True)
    yield {}


@contextmanager
def tiered_shop(place: Path) -> Iterator[None]:
    """`shop/`: a closed store with the tiered topic `orders`, and `tier/`: its remote tier, without two segments."""
    settings = {"remote.storage.enable": "true", "internal.segment.bytes": "4000"}
    with kafkalog.open(place / "shop", remote=place / "tier", maintenance=False) as store:
        orders = store.create_topic("orders", partitions=1, config=settings)
        for number in range(150):
            if number == 100:
                store.remote_log_manager.run_once()
            value = b'{"order": %d, "customer": "c-%d", "amount": %d}' % (number, number % 7, number * 3 % 100)
            orders.append(value, key=b"c-%d" % (number % 7), timestamp=MARCH + number * 3_600_000)
    yield


@contextmanager
def archived_shop(place: Path) -> Iterator[None]:
    """`shop/` and `tier/`: a closed store with 30,000 orders, whose three closed segments are in the tier."""
    with kafkalog.open(place / "shop", remote=place / "tier", maintenance=False) as store:
        _tiered_orders(store)
    yield


@contextmanager
def s3(place: Path) -> Iterator[None]:
    """`s3://shop-archive`: an empty bucket on a server of this machine, whose address and keys the environment has."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    names = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "shop", "AWS_SECRET_ACCESS_KEY": "of-tests",
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        boto3.client("s3").create_bucket(Bucket="shop-archive")
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})
        server.stop()


@contextmanager
def s3_shop(place: Path) -> Iterator[None]:
    """`shop/` as of `archived_shop`, and the bucket of `s3` as its tier: s3://shop-archive/kafka."""
    with s3(place):
        with kafkalog.open(place / "shop", remote="s3://shop-archive/kafka", maintenance=False) as store:
            _tiered_orders(store)
        yield


def _tiered_orders(store: kafkalog.Store) -> None:
    """Fills `orders`, and copies its closed segments under ids that are always the same."""
    settings = {"remote.storage.enable": "true", "segment.bytes": "1048576", "local.retention.bytes": "1048576"}
    orders = store.create_topic("orders", 1, config=settings, topic_id="b3JkZXJzLW9mLXNob3A9PQ")
    for number in range(30_000):
        order = b'{"order": %d, "customer": "c-%d", "item": "tea", "amount": 12.5}' % (number, number % 7)
        orders.append(order, key=b"c-%d" % (number % 7), timestamp=MARCH + number * 60_000)
    ids = iter(["Qm9va3Mgb2YgYSBzaG9wMQ", "Qm9va3Mgb2YgYSBzaG9wMg", "Qm9va3Mgb2YgYSBzaG9wMw"])
    with patch("kafkalog.engine.remote.segment.random_uuid", lambda: next(ids)):
        store.remote_log_manager.run_once()
    orders.partition(0).delete_old_segments()
