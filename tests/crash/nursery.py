"""Real writing processes to be killed: imports once, then forks a writer for each line on its standard input.

A line is `log_dir fifo seed threads durability`. The writer opens the partition, appends forever, rolls,
and flushes at known points.  It reports each promise through the pipe as one line: `A offset key` for an acknowledged
record, `F offset` when everything below was flushed.  The nursery answers with the writer's process id.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import threading
from collections.abc import Callable

from tests.crash.partition import PARTITION, SMALL

CONFIG = {**SMALL, "internal.segment.bytes": "6000", "segment.index.bytes": "4800", "max.message.bytes": "5000"}


def write_for_ever(log_dir: str, pipe: int, seed: int, threads: int, durability: str) -> None:
    import kafkalog

    log = kafkalog.open_log(log_dir, PARTITION, config=CONFIG, durability="fsync" if durability == "fsync" else "os")
    lock = threading.Lock()

    def tell(line: str) -> None:
        with lock:
            os.write(pipe, line.encode())

    def run(number: int) -> None:
        rng = random.Random(seed * 31 + number)
        count = 0
        while True:
            key = b"%d.%d.%d" % (seed, number, count)
            rows = [
                (bytes([65 + number]) * rng.randint(1, 300), key + b".%d" % row) for row in range(rng.randint(1, 4))
            ]
            offsets = log.append_many(rows)
            tell("".join(f"A {offset} {row[1].decode()}\n" for offset, row in zip(offsets, rows, strict=True)))
            count += 1
            if rng.random() < 0.1:
                end = log.end_offset
                log.flush()
                tell(f"F {end}\n")
            if number == 0 and rng.random() < 0.03:
                with log.transaction(f"tx{number}") as transaction:
                    transaction.append(b"in a transaction", key=key + b".t")

    others = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(1, threads)]
    for other in others:
        other.start()
    run(0)


def main(write: Callable[[str, int, int, int, str], object] = write_for_ever) -> None:
    importlib.import_module("kafkalog._face.opening")  # once, not in each writer
    for line in sys.stdin:
        log_dir, fifo, seed, threads, durability = line.split()
        child = os.fork()
        if child == 0:
            try:
                sys.stdin.close()
                write(log_dir, os.open(fifo, os.O_WRONLY), int(seed), int(threads), durability)
            except BaseException as error:
                sys.stderr.write(f"writer {seed}: {error!r}\n")
            finally:
                os._exit(3)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(status, flush=True)


if __name__ == "__main__":
    main()
