"""kill -9 of processes with a LogManager of three directories, in the middle of appends, moves, deletions, checkpoints.

`main` is the process that is killed.  Each partition belongs to one thread, which creates, writes, deletes and
recreates it; another thread moves them all.  A line each: `N p life` made, `A p life offset` appended, `D p life` is
about to be deleted.  After a kill every acknowledged record exists at the next start, deleted ones do not, and no
partition exists twice.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from pathlib import Path

from kafkalog.engine.host.log_manager import LogManager
from kafkalog.errors import KafkaStorageException
from tests.crash import harness
from tests.crash.managed import DISKS, FAST, SETTINGS, contents, folders_of, value_of
from tests.sampling import LONG, draw
from tests.unit.log_kit import batch

KILLS = 120 if LONG else 3
THREADS, EACH = 3, 3
BUSY = SETTINGS._replace(
    initial_task_delay_ms=1, recovery_checkpoint_ms=20, start_checkpoint_ms=30, high_watermark_checkpoint_ms=20
)
PROGRAM = "import sys; from tests.crash.test_manager_kill import main; main(sys.argv[1], int(sys.argv[2]))"


def dirs_of(root: str | os.PathLike[str]) -> list[str]:
    return [os.path.join(root, f"disk{number}") for number in range(DISKS)]


def main(root: str, seed: int) -> None:
    """Works forever on the partitions that exist."""
    manager = LogManager(dirs_of(root), BUSY, files=FAST)
    manager.startup()
    lock = threading.Lock()

    def tell(line: str) -> None:
        with lock:
            os.write(1, line.encode() + b"\n")

    def own(number: int) -> None:
        rng = random.Random(seed * 100 + number)
        partitions = [f"k{number}-{each}" for each in range(EACH)]
        lives: dict[str, int] = {}
        for partition in partitions:
            log = manager.get_log(partition)
            found = contents(log) if log is not None else []
            lives[partition] = int(found[-1][1].split(b".")[1]) if found else seed * 1000
            if not found:  # an empty log does not show its life
                manager.async_delete(partition)
                manager.get_or_create_log(partition)
                tell(f"N {partition} {lives[partition]}")
        while True:
            partition = rng.choice(partitions)
            life = lives[partition]
            if rng.random() < 0.02:
                tell(f"D {partition} {life}")
                manager.async_delete(partition)
                lives[partition] = life = life + 1
                manager.get_or_create_log(partition)
                tell(f"N {partition} {life}")
            log = manager.get_log(partition)
            assert log is not None
            end = log.log_end_offset
            try:
                log.append_as_leader(batch(1, value=value_of(partition, life, end)), 0)
            except KafkaStorageException:
                continue  # it has moved
            tell(f"A {partition} {life} {end}")

    def move() -> None:
        rng = random.Random(seed)
        while True:
            partition = f"k{rng.randrange(THREADS)}-{rng.randrange(EACH)}"
            try:
                manager.move(partition, rng.choice(manager.live_log_dirs))
            except Exception as error:
                if manager.offline_log_dirs:
                    sys.stderr.write(repr(error))
                    os._exit(3)

    for number in range(THREADS):
        threading.Thread(target=own, args=(number,), daemon=True).start()
    move()


class Told:
    """The promises that killed processes had made about a partition."""

    def __init__(self) -> None:
        self.life = -1
        self.acknowledged = -1  # the last offset
        self.deleting = False

    def take(self, kind: str, life: int, offset: int) -> None:
        if kind == "N":
            self.life, self.acknowledged, self.deleting = life, -1, False
        elif kind == "A":
            self.life, self.acknowledged = life, offset
        else:
            self.deleting = True

    def judge(self, partition: str, manager: LogManager) -> None:
        log = manager.get_log(partition)
        found = contents(log) if log is not None else []
        assert [offset for offset, _ in found] == list(range(len(found))), (partition, found)
        lives = {int(value.split(b".")[1]) for _, value in found}
        assert len(lives) < 2, (partition, lives)
        life = lives.pop() if lives else self.life
        assert all(value == value_of(partition, life, offset) for offset, value in found)
        if life == self.life and not (self.deleting and not found):
            assert len(found) > self.acknowledged, f"{partition}: {len(found)} records, promised {vars(self)}"
        else:
            assert self.deleting or life > self.life, f"{partition} is life {life}: {vars(self)}"
            assert life >= self.life, f"{partition} came back as life {life}: {vars(self)}"
        if found:
            self.life, self.acknowledged, self.deleting = life, len(found) - 1, False


def test_killed_managers_keep_what_they_promised() -> None:
    rng = draw("kills of managers")
    with harness.fast_dir() as base:
        root, told = Path(base) / "house", dict[str, Told]()
        promises = 0
        for number in range(KILLS):
            lines = harness.run_and_kill(PROGRAM, [str(root), str(number + 1)], after_lines=rng.choice([15, 150, 900]))
            for line in lines:
                kind, partition, life, *offset = line.split()
                told.setdefault(partition, Told()).take(kind, int(life), int(offset[0]) if offset else -1)
            promises += len(lines)
            for disk in dirs_of(root):
                if os.path.exists(lock := os.path.join(disk, ".lock")):
                    FAST.lock(lock).release()  # no process has it any more
            with LogManager(dirs_of(root), SETTINGS, files=FAST) as manager:
                for partition, each in told.items():
                    each.judge(partition, manager)
                    assert len(folders_of(root, partition)) <= 1
                if number % 2:
                    manager.abandon()  # the next one recovers again
        print(f"{KILLS} kills, {promises} promises")
