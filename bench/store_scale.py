"""`python -m bench scale`: the cost of one store with more and more topics, and of one transaction over more and more
partitions.

Each row doubles the one before; the cost of one topic, or one partition, should stay the same. The first time is
elapsed time, which includes the disk's syncs; the CPU time is next to it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import kafkalog

TOPICS = (1_250, 2_500, 5_000, 10_000)
PARTITIONS = (250, 500, 1_000, 2_000)


def topics(root: Path, count: int) -> None:
    """Creates topics in an empty store."""
    with kafkalog.open(root) as store:
        for number in range(count):
            store.create_topic(f"topic_{number:05}")


def transaction(root: Path, count: int) -> None:
    """Writes one record to each partition, in one transaction."""
    with kafkalog.open(root) as store:
        store.create_topic("t", partitions=count)
        _timed(f"transaction over {count:,} partitions", count, lambda: _transact(store, count))


def _transact(store: kafkalog.Store, count: int) -> None:
    with store.transaction("x") as txn:
        for partition in range(count):
            txn.append("t", b"v", partition=partition)


def _timed(what: str, count: int, do: Callable[[], None]) -> None:
    clock, processor = time.perf_counter(), time.process_time()
    do()
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    print(
        f"{what:40} {clock:8.1f} s  processor {processor:7.1f} s  {1000 * clock / count:7.2f} ms each, "
        f"processor {1000 * processor / count:5.2f}"
    )


def main() -> None:
    for count in TOPICS:
        with tempfile.TemporaryDirectory() as root:
            _timed(f"{count:,} topics created", count, lambda: topics(Path(root), count))  # noqa: B023 (called here)
    for count in PARTITIONS:
        with tempfile.TemporaryDirectory() as root:
            transaction(Path(root), count)
