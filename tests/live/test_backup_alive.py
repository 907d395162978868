"""Backups next to a process that appends, rolls, retains, compacts, truncates, commits cursors and transactions.

Each backup is restored and opened.  Every partition must be a prefix of its log at one moment.  Transactions are whole
or absent in all partitions alike, cursors point into the copies, and everything reported before the backup exists.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from kafkalog.engine.host.log_dirs import list_partitions
from kafkalog.engine.log.view import PartitionView
from kafkalog.store import Store
from kafkalog.toolbox.backup import backup
from kafkalog.toolbox.restore import restore
from kafkalog.toolbox.verify import verify
from tests.live.backup_workers import KEYS
from tests.live.oracle import FAST
from tests.live.test_store_killed import Told
from tests.sampling import LONG, draw
from tests.unit.store_kit import cursor, log_of, open_store

BACKUPS = 60 if LONG else 5


class Writer:
    """The process, and what it has told so far."""

    def __init__(self, *log_dirs: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.live.backup_workers", "7", *map(str, log_dirs)], stdout=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )  # fmt: skip
        self.lines: list[str] = []
        self.ready = threading.Event()
        self.reading = threading.Thread(target=self._read, daemon=True)
        self.reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if len(self.lines) > 200:
                self.ready.set()

    def end(self) -> None:
        alive = self.process.poll() is None
        self.process.kill()
        self.process.wait(30)
        self.reading.join(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert alive, "the writer ended before it was killed"


def judge(store: Store, before: list[str], cuts: dict[int, int]) -> int:
    """`before`: what the writer had told when the backup began."""
    told = Told()
    told.take([line for line in before if line.startswith("C ")])
    ends = {kind: max((int(line.split()[1]) for line in before if line[0] == kind), default=0) for kind in "KB"}
    for each in store.manager.all_logs():
        assert each.last_stable_offset == each.log_end_offset, f"{each} has an open transaction"
    for info in store.cursors():
        for partition, offset in cursor(store, info.name).items():
            assert 0 <= offset <= log_of(store, str(partition)).log_end_offset, (info.name, partition, offset)
    ticks = [(each.offset, each.value) for each in store.topic("ticks").partition(0).records()]
    assert [offset for offset, _ in ticks] == list(range(ticks[0][0], ticks[-1][0] + 1))
    assert all(value == b"%d" % offset for offset, value in ticks)
    assert log_of(store, "ticks-0").log_end_offset >= ends["K"]
    end = log_of(store, "table-0").log_end_offset
    table = {each.offset: each for each in store.topic("table").partition(0).records()}
    assert end >= ends["B"]
    assert all(each.value == b"%d" % offset for offset, each in table.items())
    assert set(range(max(0, end - KEYS), end)) <= set(table)
    if "cut" in store:
        judge_cut([each.value or b"" for each in store.topic("cut").partition(0).records()], cuts)
    return told.judge(store, 4)


def judge_cut(found: list[bytes], cuts: dict[int, int]) -> None:
    """Checks records of `cut`, written after some truncation: each has the last truncation at or below its offset."""
    numbers = np.array([int(value.partition(b":")[0]) for value in found], np.int64)
    assert [int(value.partition(b":")[2].rstrip(b".")) for value in found] == list(range(len(found)))
    newest = int(numbers.max(initial=0))
    had = np.zeros(len(found), np.int64)
    for number in range(1, newest + 1):
        had[cuts[number] :] = number
    number = newest
    while not np.array_equal(had, numbers):  # it may have been truncated again, and not been written to
        number += 1
        assert number in cuts, f"{len(found)} records, the newest of them behind cut {newest}"
        had[cuts[number] :] = number


def test_beside_a_writer(base: Path, count: object) -> None:
    writer = Writer(base / "store")
    records = 0
    try:
        assert writer.ready.wait(60)
        for number in range(BACKUPS):
            dest, target = base / "backups" / str(number), base / "restored"
            before = list(writer.lines)
            linked = [each for each in map(str, list_partitions(base / "store")) if each != "cut-0"]
            report = backup(
                base / "store",
                dest,
                partitions=linked if number % 2 else None,  # a truncation changes its links, too
                base=base / "backups" if number % 3 else None,
                link=number % 2 == 1,
                files=FAST,
            )
            assert not report.findings, report.findings[:3]
            checked = verify(dest / "log-dir-1", deep=True)
            assert checked.ok, checked.findings[:5]
            ends = {
                each: PartitionView(dest / "log-dir-1", each).log_end_offset for each in ("in-0", "ticks-0", "table-0")
            }
            restored = restore(dest, target, files=FAST)
            assert restored.records == report.records
            store = open_store(target, files=FAST)
            try:
                assert {each: log_of(store, each).log_end_offset for each in ends} == ends
                cuts = dict(tuple(map(int, line.split()[1:])) for line in list(writer.lines) if line[0] == "X")  # type: ignore[misc]
                records += judge(store, before, cuts)
            except BaseException as error:
                error.add_note(f"backup {number}, {dest}")
                raise
            finally:
                store.close()
            shutil.rmtree(target)
            if number >= 2:
                shutil.rmtree(base / "backups" / str(number - 2))
    finally:
        writer.end()
    assert records > 0
    count("backups beside a writer", BACKUPS)  # type: ignore[operator]
    count("records judged exactly once in backups", records)  # type: ignore[operator]


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_an_interrupt_leaves_nothing(base: Path, command: str) -> None:
    """Ctrl-C at any time: exit 130 and nothing of the name, or it was done."""
    with open_store(base / "shop", files=FAST) as store:
        topic = store.create_topic("orders", 30, config={"internal.segment.bytes": "20000"})
        for _ in range(30):
            topic.append_many([os.urandom(200) for _ in range(300)])
    backup(base / "shop", base / "saved", files=FAST)
    argv = ["backup", base / "shop", "--to"] if command == "backup" else ["restore", base / "saved"]
    rng, seen = draw(f"interrupts of {command}"), set()
    for number in range(30 if LONG else 6):
        target = base / f"target{number}"
        process = subprocess.Popen(
            [sys.executable, "-m", "kafkalog", *map(str, argv), str(target), *(["--yes"] * (command == "restore"))],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )  # fmt: skip
        partial = base / f"target{number}.kafkalog-partial"
        begun = time.monotonic()
        while process.poll() is None and not partial.exists() and time.monotonic() - begun < 60:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        late = (0, -signal.SIGINT) if target.exists() else ()  # after the work, as Python ends
        assert process.returncode in (130, *late), said
        assert not partial.exists()
        assert not Path(f"{partial}.lock").exists()
        if target.exists() and command == "backup":
            restore(target, base / "nowhere", act=False)
        seen.add(process.returncode)
    assert 130 in seen
