"""Processes to be killed whose threads share a queue: a feeder appends, workers take, end and report.

As in `tests.crash.nursery`, a process is forked for each line on the standard input. The workers use one `Queue` object
together, or one each. The process reports through the pipe, one line each: `A partition offset` when so much is
appended (the offset is the next one), `T partition offset times` when a record was taken, `E partition offset` when its
acknowledgement or rejection has returned.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import traceback

import kafkalog
from kafkalog.queue import Queue
from tests.crash.nursery import main

TOPIC, QUEUE, PARTITIONS, LETTERS = "outbox", "mail", 2, "dead"


def work_for_ever(log_dir: str, pipe: int, seed: int, threads: int, durability: str) -> None:
    lock = threading.Lock()

    def tell(lines: list[str]) -> None:
        with lock:
            os.write(pipe, "".join(f"{each}\n" for each in lines).encode())

    def guarded(work: object, *given: object) -> None:
        try:
            work(*given)  # type: ignore[operator]
        except BaseException:
            sys.stderr.write(f"worker {seed}: {traceback.format_exc()}\n")
            os._exit(4)

    with kafkalog.open(log_dir, durability="fsync" if durability == "fsync" else "os") as store:
        store.create_topic(TOPIC, PARTITIONS, exist_ok=True)

        def opened() -> Queue:
            return store.queue(QUEUE, topics=[TOPIC], dead_letters=LETTERS, max_deliveries=10_000)

        def feed() -> None:
            rng = random.Random(seed)
            topic = store.topic(TOPIC)
            while True:
                partition = rng.randrange(PARTITIONS)
                count = rng.choice((1, 1, 2, 20))
                offsets = topic.append_many([b"%d" % rng.randrange(1 << 30) for _ in range(count)], partition=partition)
                tell([f"A {partition} {list(offsets[partition])[-1] + 1}"])
                time.sleep(0.001)

        def work(queue: Queue, number: int) -> None:
            rng = random.Random(seed * 31 + number)
            while True:
                taken = queue.take(rng.choice((1, 3, 30)), timeout_ms=100)
                tell([f"T {each.partition} {each.offset} {each.delivery_count}" for each in taken])
                ended = [each for each in taken if rng.random() < 0.8]
                again = [each for each in taken if each not in ended]
                if ended:
                    (queue.reject if rng.random() < 0.1 else queue.ack)(ended)
                    tell([f"E {each.partition} {each.offset}" for each in ended])
                if again:
                    queue.release(again)

        shared = opened() if seed % 2 else None
        for number in range(threads):
            queue = shared or opened()
            threading.Thread(target=guarded, args=(work, queue, number), daemon=True).start()
        guarded(feed)


if __name__ == "__main__":
    main(work_for_ever)
