"""kill -9 of processes whose workers share a queue: nothing that was ended comes again, and nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkalog
from kafkalog.toolbox.verify import verify
from tests.crash.test_kill import Nursery
from tests.crash.test_kill import base as base
from tests.live.queue_workers import LETTERS, PARTITIONS, QUEUE, TOPIC
from tests.sampling import LONG, draw

KILLS = 150 if LONG else 8
EACH = 8  # kills of one store
Place = tuple[int, int]


class Told:
    """The reports of killed processes about one store."""

    def __init__(self) -> None:
        self.ends = [0] * PARTITIONS
        self.taken: set[Place] = set()
        self.ended: set[Place] = set()

    def take(self, lines: list[str]) -> None:
        """Takes a process's reports. A worker tells that a record was ended some time after it was: another one cannot
        have got it in between."""
        ended_before = set(self.ended)
        for line in lines:
            kind, partition, offset, *_ = line.split()
            place = int(partition), int(offset)
            if kind == "A":
                self.ends[place[0]] = max(self.ends[place[0]], place[1])
            elif kind == "T":
                assert place not in ended_before, f"{place} was ended before the process began"
                assert place not in self.ended, f"{place} was ended before"
                self.taken.add(place)
            else:
                self.ended.add(place)

    def judge(self, path: Path) -> int:
        """Takes what is left: every record was ended, or is there; and those that were rejected have letters."""
        with kafkalog.open(path) as store:
            with store.queue(QUEUE, topics=[TOPIC], dead_letters=LETTERS, max_deliveries=10_000) as queue:
                left: set[Place] = set()
                while taken := queue.take():
                    left.update((each.partition, each.offset) for each in taken)
                queue.release()
            assert not left & self.ended, f"came again: {sorted(left & self.ended)[:5]}"
            for partition in range(PARTITIONS):
                end = store.topic(TOPIC).partition(partition).end_offset
                assert end >= self.ends[partition]
                missing = {(partition, each) for each in range(end)} - left - self.ended
                # A kill can come between the end and its report; what nobody ever took cannot be gone.
                assert missing <= self.taken, f"lost: {sorted(missing - self.taken)[:5]}"
            return len(left) + len(self.ended)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_workers_that_are_killed(durability: str, base: Path, count: Callable[[str, int], None]) -> None:
    workers = Nursery(base, "tests.live.queue_workers")
    rng = draw("kills of queues")
    path, told = base / "store0", Told()
    records = 0
    try:
        for number in range(KILLS):
            if number % EACH == 0:
                shutil.rmtree(path, ignore_errors=True)
                path, told = base / f"store{number}", Told()
            lines = workers.kill_one(
                path, 2000 + number, threads=4, durability=durability, promises=rng.choice([5, 50, 300, 900])
            )
            told.take(lines)
            try:
                judged = told.judge(path)
            except BaseException as error:
                error.add_note(f"after kill {number}, of {path}")
                raise
            if number % EACH == EACH - 1 or number == KILLS - 1:
                report = verify(path, deep=True)
                assert report.ok, report.findings[:3]
                records += judged
    finally:
        workers.close()
    assert records > 0
    count("kills of queue workers", KILLS)
    count("records of queues judged", records)
