"""kill -9 of processes with a running cleaner: appends, deletes, moves and recreation next to a pool that never rests.

`main` is the process that is killed.  A line each: `N p life` made, `A p life offset key kind` appended (kind `v` for a
value, `d` for a delete), `D p life` is about to be deleted.  A kill leaves what was written: at the next start each key
has the value that was acknowledged last, or one that came after all acknowledged ones; nothing deleted is back.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from dataclasses import replace
from pathlib import Path

from kafkalog.config import CleanerConfig, LogConfig
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.errors import KafkaStorageException
from tests.crash import harness
from tests.crash.compacted import COMPACTED, judge_checkpoint
from tests.crash.managed import FAST, folders_of
from tests.crash.test_manager_kill import BUSY, dirs_of
from tests.sampling import LONG, draw
from tests.unit.cleaner_kit import keyed, rows
from tests.unit.log_kit import NOW_MS

KILLS = 120 if LONG else 3
THREADS, EACH, KEYS = 2, 2, 13
CONFIG = {**COMPACTED, "file.delete.delay.ms": "5", "delete.retention.ms": "20"}
POOL = replace(CleanerConfig.for_tests(), num_threads=2, backoff_ms=1, io_buffer_size=4000, max_message_size=2000)
SETTINGS = BUSY._replace(default_config=LogConfig.from_props(None, CONFIG), cleaner=POOL)
PROGRAM = "import sys; from tests.crash.test_compacted_kill import main; main(sys.argv[1], int(sys.argv[2]))"


def main(root: str, seed: int) -> None:
    """Works forever on the partitions that exist."""
    manager = LogManager(dirs_of(root), SETTINGS, files=FAST)
    manager.startup()
    lock = threading.Lock()

    def tell(line: str) -> None:
        with lock:
            os.write(1, line.encode() + b"\n")

    def own(number: int) -> None:
        rng = random.Random(seed * 100 + number)
        partitions = [f"k{number}-{each}" for each in range(EACH)]
        lives = dict.fromkeys(partitions, seed * 1000)
        for partition in partitions:
            log = manager.get_log(partition)
            values = [value for _, _, value in rows(log) if value is not None] if log is not None else []
            if values:
                lives[partition] = int(values[0].split(".")[0])
            else:  # an empty log does not show its life
                manager.async_delete(partition)
                manager.get_or_create_log(partition)
                tell(f"N {partition} {lives[partition]}")
        while True:
            partition = rng.choice(partitions)
            if rng.random() < 0.003:
                tell(f"D {partition} {lives[partition]}")
                manager.async_delete(partition)
                lives[partition] += 1
                manager.get_or_create_log(partition)
                tell(f"N {partition} {lives[partition]}")
            log = manager.get_log(partition)
            assert log is not None
            end, key = log.log_end_offset, f"k{rng.randrange(KEYS)}"
            value = None if rng.random() < 0.2 else f"{lives[partition]}.{end}." + "x" * rng.randrange(60)
            try:
                log.append_as_leader(keyed((key, value), ts=NOW_MS, codec=rng.choice((0, 0, 4))), 0)
            except KafkaStorageException:
                continue  # it has moved
            tell(f"A {partition} {lives[partition]} {end} {key} {'d' if value is None else 'v'}")

    def move() -> None:
        rng = random.Random(seed)
        while True:
            partition = f"k{rng.randrange(THREADS)}-{rng.randrange(EACH)}"
            try:
                manager.move(partition, rng.choice(manager.live_log_dirs))
                threading.Event().wait(0.02)
            except Exception as error:
                cleaner = manager.cleaner
                assert cleaner is not None
                if manager.offline_log_dirs or cleaner.dead_thread_count or manager.uncleanable_partitions():
                    sys.stderr.write(repr(error))
                    os._exit(3)

    for number in range(THREADS):
        threading.Thread(target=own, args=(number,), daemon=True).start()
    move()


class Told:
    """The promises that killed processes had made about a partition."""

    def __init__(self) -> None:
        self.life = -1
        self.end = 0  # after the last acknowledged offset
        self.last: dict[str, tuple[int, str]] = {}
        self.deleting = False

    def take(self, kind: str, life: int, rest: list[str]) -> None:
        if kind == "D":
            self.deleting = True
        elif kind == "N" or life != self.life:
            self.life, self.end, self.last, self.deleting = life, 0, {}, False
        if kind == "A":
            self.end = int(rest[0]) + 1
            self.last[rest[1]] = int(rest[0]), rest[2]

    def judge(self, partition: str, manager: LogManager) -> None:
        log = manager.get_log(partition)
        found = rows(log) if log is not None else []
        lives = {int(value.split(".")[0]) for _, _, value in found if value is not None}
        assert len(lives) < 2, (partition, lives)
        if log is None or (lives and lives != {self.life}):
            assert self.deleting or (lives and min(lives) > self.life), f"{partition}: {lives} {vars(self)}"
            assert not lives or min(lives) >= self.life, f"{partition} came back: {lives} {vars(self)}"
        elif not (self.deleting and not lives):
            self.judge_keys(partition, log.log_end_offset, found)
            judge_checkpoint(manager, log)
        # The state found here is the start of the next run, reported or not.
        if lives:
            self.life, self.deleting = lives.pop(), False
            self.end = log.log_end_offset if log is not None else 0
            self.last = {str(key): (offset, "d" if value is None else "v") for offset, key, value in found}

    def judge_keys(self, partition: str, end: int, found: list[tuple[int, str | None, str | None]]) -> None:
        assert end >= self.end, f"{partition} ends at {end}: {vars(self)}"
        offsets = [offset for offset, _, _ in found]
        assert offsets == sorted(set(offsets)), (partition, offsets)
        for offset, _, value in found:
            assert value is None or int(value.split(".")[1]) == offset, (partition, offset, value)
        there = {key: offset for offset, key, _ in found}
        for key, (offset, kind) in self.last.items():
            is_newer = there.get(key, -1) >= self.end or end > self.end
            is_gone = key not in there and kind == "d"
            assert there.get(key) == offset or is_gone or is_newer, f"{partition}: {key} {there.get(key)} {vars(self)}"


def test_killed_cleaners_keep_each_keys_value() -> None:
    rng = draw("kills in cleans")
    with harness.fast_dir() as base:
        root, told = Path(base) / "house", dict[str, Told]()
        promises = 0
        for number in range(KILLS):
            lines = harness.run_and_kill(PROGRAM, [str(root), str(number + 1)], after_lines=rng.choice([15, 300, 2000]))
            for line in lines:
                kind, partition, life, *rest = line.split()
                told.setdefault(partition, Told()).take(kind, int(life), rest)
            promises += len(lines)
            for disk in dirs_of(root):
                if os.path.exists(lock := os.path.join(disk, ".lock")):
                    FAST.lock(lock).release()  # no process has it any more
            quiet = SETTINGS._replace(cleaner=replace(POOL, num_threads=0))
            with LogManager(dirs_of(root), quiet, files=FAST) as manager:
                for partition, each in told.items():
                    each.judge(partition, manager)
                    assert len(folders_of(root, partition)) <= 1
                if number % 2:
                    manager.abandon()  # the next one recovers again
        print(f"{KILLS} kills, {promises} promises")
