"""What a page may assume: each function prepares the page's directory, and may give names to its Python blocks.

A function is a context manager that gets the directory.  Times in these logs are fixed, so that outputs are too.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kafkalog

KAFKA_LOGS = Path(__file__).parent / "kafka-logs"
MARCH = 1_772_323_200_000  # 2026-03-01T00:00:00Z, in ms


@contextmanager
def kafka_logs(place: Path) -> Iterator[None]:
    """`kafka-logs/`: the log directory of a web shop's broker, which was stopped; `record_kafka_logs.py` wrote it."""
    shutil.copytree(KAFKA_LOGS, place / "kafka-logs")
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
def damaged_kafka_logs(place: Path) -> Iterator[None]:
    """`kafka-logs/` as of `kafka_logs`, with one flipped byte in the middle of a closed segment of `orders-1`."""
    shutil.copytree(KAFKA_LOGS, place / "kafka-logs")
    log = place / "kafka-logs" / "orders-1" / "00000000000000000006.log"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0x01
    log.write_bytes(data)
    yield


@contextmanager
def crashed_kafka_logs(place: Path) -> Iterator[None]:
    """`kafka-logs/` after a power failure: no marker of a clean stop, and a torn batch at the end of `orders-0`."""
    logs = place / "kafka-logs"
    shutil.copytree(KAFKA_LOGS, logs)
    (logs / ".kafka_cleanshutdown").unlink()
    last = {path.parent.name: int(path.stem) for path in sorted(logs.glob("*-?/*.log"))}  # what a roll has synced
    lines = [f"{name[:-2]} {name[-1]} {offset}" for name, offset in last.items() if not name.startswith("__cluster")]
    (logs / "recovery-point-offset-checkpoint").write_text("\n".join(["0", str(len(lines)), *lines]) + "\n")
    log = logs / "orders-0" / f"{last['orders-0']:020}.log"
    log.write_bytes(log.read_bytes()[:-30])
    log.with_suffix(".timeindex").write_bytes(b"")
    yield


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
