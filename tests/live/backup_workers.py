"""A process that writes to a store in every way, forever: `test_backup_alive` takes backups while it runs.

It runs the workers of `store_workers` (exactly once from `in` to `out` and `audit`).  It also writes to three topics:
`ticks`, whose oldest segments retention deletes, with a reader that commits its position; `table`, which is compacted;
and `cut`, which is truncated.  Their records are single, and their value is their offset (in `cut` after the number of
the truncation).

It reports on the standard output, one line each: the lines of the workers, `K end` of ticks, `B end` of table,
`X cut offset` before a truncation.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable

import kafkalog
from tests.live.store_workers import INPUTS, OUTPUTS, SMALL, GivenUpError, transact_until_given_up

KEYS = 20
KEEP = {**SMALL, "internal.segment.bytes": "4000", "file.delete.delay.ms": "0"}


def run(log_dirs: list[str], seed: int) -> None:
    lock = threading.Lock()

    def tell(line: str) -> None:
        with lock:
            os.write(1, line.encode())

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException:
            sys.stderr.write(f"{work}: {traceback.format_exc()}\n")
            os._exit(4)

    with kafkalog.open(log_dirs) as store:
        store.create_topic("in", INPUTS, config=SMALL, exist_ok=True)
        store.create_topic("out", OUTPUTS, config=SMALL, exist_ok=True)
        store.create_topic("audit", 1, config=SMALL, exist_ok=True)
        store.create_topic("ticks", 1, config={**KEEP, "retention.bytes": "16000"}, exist_ok=True)
        compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        store.create_topic("table", 1, config={**KEEP, **compacted}, exist_ok=True)
        store.create_topic("cut", 1, config=KEEP, exist_ok=True)

        def feed() -> None:
            rng = random.Random(seed)
            while True:
                rows = rng.randint(1, 20)
                store.topic("in").append_many([(b"%d" % row, os.urandom(4)) for row in range(rows)])
                time.sleep(0.02)

        def transact(number: int) -> None:
            rng = random.Random(seed * 31 + number)
            while True:
                with store.reader(f"cursor{number}", topics=["in"], isolation="read_committed") as reader:
                    try:
                        transact_until_given_up(store, reader, number, rng, tell)
                    except GivenUpError:
                        pass

        def tick() -> None:
            topic, rng = store.topic("ticks").partition(0), random.Random(seed + 1)
            while True:
                for _ in range(rng.randint(1, 30)):
                    topic.append(b"%d" % topic.end_offset)
                tell(f"K {topic.end_offset}\n")
                if rng.random() < 0.2:
                    topic.delete_old_segments()
                time.sleep(0.01)

        def follow() -> None:
            with store.reader("ticker", topics=["ticks"]) as reader:
                for count, _ in enumerate(reader.follow()):
                    if count % 7 == 0:
                        reader.commit()

        def tabulate() -> None:
            topic, rng = store.topic("table").partition(0), random.Random(seed + 2)
            while True:
                for _ in range(rng.randint(1, 60)):
                    number = topic.end_offset
                    topic.append(b"%d" % number, key=b"%d" % (number % KEYS))
                tell(f"B {topic.end_offset}\n")
                if rng.random() < 0.3:
                    topic.compact()
                time.sleep(0.01)

        def cut() -> None:
            topic, rng, number = store.topic("cut").partition(0), random.Random(seed + 3), 0
            while True:
                for _ in range(rng.randint(1, 40)):
                    topic.append(b"%d:%d" % (number, topic.end_offset) + b"." * rng.randint(0, 50))
                if rng.random() < 0.3 and topic.end_offset > 20:
                    number += 1
                    at = rng.randint(max(0, topic.end_offset - 60), topic.end_offset)
                    tell(f"X {number} {at}\n")
                    topic.truncate(at)
                time.sleep(0.01)

        works: list[Callable[[], object]] = [tick, follow, tabulate, cut]
        works += [lambda number=number: transact(number) for number in (1, 2, 3)]  # type: ignore[misc]
        for work in works:
            threading.Thread(target=guarded, args=(work,), daemon=True).start()
        guarded(feed)


if __name__ == "__main__":
    run(sys.argv[2:], int(sys.argv[1]))
