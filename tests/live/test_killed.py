"""kill -9 of processes with many threads in appends, rolls, flushes and transactions, again and again.

The writers and the checks are those of `tests.crash.test_kill`, with more threads.  The next process opens the
directory that a killed one left, checks and verifies it, and continues.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalog.toolbox.verify import verify
from tests.crash.nursery import CONFIG
from tests.crash.test_kill import Nursery, check_kill, note
from tests.live.crew import open_live
from tests.sampling import LONG

KILLS = 150 if LONG else 4


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_writers_of_many_threads_are_killed(durability: str, base: Path, count: Callable[[str, int], None]) -> None:
    writers = Nursery(base)
    rng = random.Random(11)
    log_dir, acknowledged = base / "log0", dict[int, str]()
    try:
        for number in range(KILLS):
            if number % 6 == 0:
                shutil.rmtree(log_dir, ignore_errors=True)
                log_dir, acknowledged = base / f"log{number}", {}
            promises = rng.choice([5, 40, 200])
            lines = writers.kill_one(log_dir, 1000 + number, threads=6, durability=durability, promises=promises)
            flushed = note(lines, acknowledged)
            check_kill(log_dir, acknowledged, flushed)
            copy = base / "copy"
            shutil.copytree(log_dir, copy)
            for _ in range(2):  # recovered, closed, and opened again in the same process
                with open_live(copy, config=CONFIG) as log:
                    assert log.end_offset > max(acknowledged, default=-1)
                    found = {record.offset: record.key for record in log}
                    assert all(found[offset] == key.encode() for offset, key in acknowledged.items())
                    assert log.append(b"after") == log.end_offset - 1
                report = verify(copy, deep=True)
                assert report.ok, report.findings[:3]
            shutil.rmtree(copy)
    finally:
        writers.close()
    count("kills of many threads", KILLS)
