"""`python -m bench scale`: the cost of one store with more and more topics, and of one transaction over more and more
partitions.

Each row doubles the one before; the cost of one topic, or one partition, should stay the same. The first time is
elapsed time, which includes the disk's syncs; the CPU time is next to it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import kafkalog
from bench.kept import KAFKALOG, LOWER, SECONDS, Results

TOPICS = (1_250, 2_500, 5_000, 10_000)
PARTITIONS = (250, 500, 1_000, 2_000)


def topics(root: Path, count: int) -> None:
    """Creates topics in an empty store."""
    with kafkalog.open(root) as store:
        for number in range(count):
            store.create_topic(f"topic_{number:05}")


def transaction(root: Path, count: int) -> float:
    """Writes one record to each partition, in one transaction; returns the seconds."""
    with kafkalog.open(root) as store:
        store.create_topic("t", partitions=count)
        return _timed(f"transaction over {count:,} partitions", count, lambda: _transact(store, count))


def _transact(store: kafkalog.Store, count: int) -> None:
    with store.transaction("x") as txn:
        for partition in range(count):
            txn.append("t", b"v", partition=partition)


def _timed(what: str, count: int, do: Callable[[], None]) -> float:
    clock, processor = time.perf_counter(), time.process_time()
    do()
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    print(
        f"{what:40} {clock:8.1f} s  processor {processor:7.1f} s  {1000 * clock / count:7.2f} ms each, "
        f"processor {1000 * processor / count:5.2f}"
    )
    return clock


def main(results: Results, largest: int = TOPICS[-1]) -> None:
    for count in [each for each in TOPICS if each <= largest]:
        with tempfile.TemporaryDirectory() as root:
            do = partial(topics, Path(root), count)
            seconds = _timed(f"{count:,} topics created", count, do)
            results.point("store", "create a topic", "topics", SECONDS, KAFKALOG, count, seconds / count, LOWER)
    for count in [each for each in PARTITIONS if each <= largest]:
        with tempfile.TemporaryDirectory() as root:
            seconds = transaction(Path(root), count) / count
            results.point(
                "store", "a partition of a transaction", "partitions", SECONDS, KAFKALOG, count, seconds, LOWER
            )
