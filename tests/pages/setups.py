"""What a page may assume: each function prepares the page's directory, and may give names to its Python blocks.

A function is a context manager that gets the directory.  Times in these logs are fixed, so that outputs are too.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import kafkalog

SCENARIOS = Path(__file__).parents[1] / "conformance" / "scenarios"
MARCH = 1_772_323_200_000  # 2026-03-01T00:00:00Z, in ms
DAY = 86_400_000  # in ms


@contextmanager
def kafka_logs(place: Path) -> Iterator[None]:
    """`kafka-logs/`: partitions that Apache Kafka 4.4.0 wrote."""
    for scenario, name in (("append_basic", "foo-0"), ("compact_txn", "foo-0")):
        target = place / "kafka-logs" / ("orders-0" if scenario == "append_basic" else "payments-0")
        shutil.copytree(SCENARIOS / scenario / "final" / "logs" / name, target)
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
    with ExitStack() as open_sockets:
        for name in names:
            found = open_sockets.enter_context(socket.socket())
            found.bind(("127.0.0.1", 0))
            os.environ[name] = str(found.getsockname()[1])
    yield {}
    for name in names:
        del os.environ[name]
