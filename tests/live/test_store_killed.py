"""kill -9 of processes that read, transform and write in transactions: exactly once, over partitions and cursors."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalog.store import Store
from kafkalog.toolbox.verify import verify
from tests.crash.test_kill import Nursery
from tests.live.oracle import FAST
from tests.live.store_workers import INPUTS, OUTPUTS
from tests.sampling import LONG, draw
from tests.unit.store_kit import committed, open_store, position, settled

KILLS = 250 if LONG else 10
EACH = 25  # kills of one store
OUT = [*(f"out-{number}" for number in range(OUTPUTS)), "audit-0"]


class Told:
    """The reports of killed processes about one store."""

    def __init__(self) -> None:
        self.committed: dict[tuple[int, int], int] = {}  # by worker and partition of `in`

    def take(self, lines: list[str]) -> None:
        for line in lines:
            kind, *numbers = line.split()
            if kind == "C":
                worker, partition, offset = map(int, numbers)
                self.committed[worker, partition] = max(offset, self.committed.get((worker, partition), 0))

    def judge(self, store: Store, workers: int) -> int:
        """Each record of `in` below a worker's cursor exists once from this worker in each of its topics, others do
        not."""
        if "audit" not in store:
            return 0
        assert settled(store, *OUT)
        ends = [store.manager.get_log(f"in-{number}").log_end_offset for number in range(INPUTS)]  # type: ignore[union-attr]
        seen = {
            "out": Counter(value for each in OUT[:-1] for value in committed(store, each)),
            "audit": Counter(committed(store, "audit-0")),
        }
        expected: Counter[bytes] = Counter()
        for worker in range(1, workers):
            for partition in range(INPUTS):
                at = position(store, f"cursor{worker}", f"in-{partition}") or 0
                assert self.committed.get((worker, partition), 0) <= at <= ends[partition]
                expected.update(b"%d %d %d" % (worker, partition, offset) for offset in range(at))
        for topic, found in seen.items():
            assert not (found - expected), f"{topic} has too much: {list((found - expected).items())[:5]}"
            assert not (expected - found), f"{topic} lacks {list((expected - found).items())[:5]}"
        return len(expected)


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_workers_that_are_killed(durability: str, base: Path, count: Callable[[str, int], None]) -> None:
    workers = Nursery(base, "tests.live.store_workers")
    rng = draw("kills of stores")
    path, told = base / "store0", Told()
    records = 0
    try:
        for number in range(KILLS):
            if number % EACH == 0:
                shutil.rmtree(path, ignore_errors=True)
                path, told = base / f"store{number}", Told()
            lines = workers.kill_one(
                path, 1000 + number, threads=4, durability=durability, promises=rng.choice([1, 5, 20, 60])
            )
            told.take(lines)
            store = open_store(path, files=FAST)
            try:
                judged = told.judge(store, 4)
            except BaseException as error:
                error.add_note(f"after kill {number}, of {path}")
                raise
            if number % 2:
                store.manager.abandon()  # the next one recovers again
            store.close()
            if number % EACH == EACH - 1 or number == KILLS - 1:
                report = verify(path, deep=True)
                assert report.ok, report.findings[:3]
                records += judged
    finally:
        workers.close()
    assert records > 0
    count("kills of transactional workers", KILLS)
    count("records judged exactly once", records)
