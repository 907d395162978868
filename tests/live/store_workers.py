"""Processes to be killed that read a topic, transform it and write to two others, each record exactly once.

As in `tests.crash.nursery`, a process is forked for each line on the standard input.  One thread, the feeder, appends
to `in`.  The others are workers, each with its transactional id and cursor.  A worker reads all of `in` and writes its
results to `out` and `audit`; it aborts some of its transactions.

The process reports through the pipe, one line each: `F count` when the feeder has appended so much in all partitions,
`C worker partition offset` when a worker's commit was done.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
import traceback

import kafkalog
from kafkalog.reader import StoreReader
from kafkalog.store import Store
from tests.crash.nursery import main

INPUTS, OUTPUTS = 2, 3
SMALL = {"internal.segment.bytes": "20000", "segment.index.bytes": "4800"}


class GivenUpError(Exception):
    """A worker that thinks better of a transaction."""


def transform(worker: int, partition: int, offset: int) -> bytes:
    return b"%d %d %d" % (worker, partition, offset)


def work_for_ever(log_dir: str, pipe: int, seed: int, threads: int, durability: str) -> None:
    lock = threading.Lock()

    def tell(line: str) -> None:
        with lock:
            os.write(pipe, line.encode())

    def guarded(work: object, number: int) -> None:
        try:
            work(number)  # type: ignore[operator]
        except BaseException:
            sys.stderr.write(f"worker {seed}.{number}: {traceback.format_exc()}\n")
            os._exit(4)

    with kafkalog.open(log_dir, durability="fsync" if durability == "fsync" else "os") as store:
        store.create_topic("in", INPUTS, config=SMALL, exist_ok=True)
        store.create_topic("out", OUTPUTS, config=SMALL, exist_ok=True)
        store.create_topic("audit", 1, config=SMALL, exist_ok=True)

        def feed(number: int) -> None:
            rng = random.Random(seed)
            count = 0
            while True:
                rows = rng.randint(1, 20)
                store.topic("in").append_many([(b"%d" % row, os.urandom(4)) for row in range(rows)])
                count += rows
                tell(f"F {count}\n")
                time.sleep(0.002)

        def transact(number: int) -> None:
            rng = random.Random(seed * 31 + number)
            while True:
                with store.reader(f"cursor{number}", topics=["in"], isolation="read_committed") as reader:
                    try:
                        transact_until_given_up(store, reader, number, rng, tell)
                    except GivenUpError:
                        pass

        for number in range(1, threads):
            threading.Thread(target=guarded, args=(transact, number), daemon=True).start()
        guarded(feed, 0)


def transact_until_given_up(store: Store, reader: StoreReader, number: int, rng: random.Random, tell: object) -> None:
    """A transaction has a few records; after one that is aborted, the reader is not at the cursor."""
    while True:
        if rng.random() < 0.5:
            found = reader.poll(rng.randint(1, 60), timeout_ms=1000)
        else:
            found = list(itertools.islice(reader.records(), rng.randint(1, 60)))
        if not found:
            time.sleep(0.002)
            continue
        with store.transaction(f"worker{number}") as txn:
            rows = [(transform(number, record.partition, record.offset), record.key) for record in found]
            if rng.random() < 0.3:
                for value, key in rows:
                    txn.append("out", value, key=key)
            else:
                txn.append_many("out", rows)
            txn.append_many("audit", [value for value, _ in rows])
            txn.commit_offsets(reader)
            if rng.random() < 0.15:
                raise GivenUpError
        last = {record.partition: record.offset for record in found}
        tell("".join(f"C {number} {partition} {offset + 1}\n" for partition, offset in last.items()))  # type: ignore[operator]


if __name__ == "__main__":
    main(work_for_ever)
