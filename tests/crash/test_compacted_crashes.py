"""Crash states of a LogManager with a running cleaner.

Passes run next to truncation, moves, deletion and starts; each of their steps is interrupted by the death of the
process or of the machine (see `compacted` for what must hold).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash import harness
from tests.crash.compacted import DELETE_RETENTION_MS, House, Tale, check_start
from tests.crash.harness import CrashState
from tests.file_doubles import RecordingFiles, UnsyncedFiles
from tests.sampling import LONG
from tests.unit.cleaning_kit import CHECKPOINT

SAMPLE = None if LONG else 25

Workload = Callable[[House], None]


def passes(house: House) -> None:
    """Two partitions on two disks: passes, deletes after their horizon, newly dirty records, the end."""
    house.open()
    for number in range(2):
        house.make(f"t-{number}", number)
        house.fill(f"t-{number}", 2 + number)
        house.roll(f"t-{number}")
        house.flush(f"t-{number}")
    house.turns()
    house.later(60_000 + DELETE_RETENTION_MS)
    house.fill("t-0", 1)
    house.roll("t-0")
    house.turns()
    house.flush("t-0")
    house.turns()
    house.later(120_000)
    house.shut_down()


def cuts(house: House) -> None:
    """Truncation below what is clean, and a new beginning; then as many records as before."""
    house.open()
    house.make("t-0", 0)
    house.fill("t-0")
    house.roll("t-0")
    house.flush("t-0")
    house.turns()
    house.cut("t-0", 14)
    house.fill("t-0")
    house.roll("t-0")
    house.flush("t-0")
    house.turns()
    house.restart("t-0", 9)
    house.fill("t-0")
    house.roll("t-0")
    house.flush("t-0")
    house.turns()
    house.later(120_000)


def moves(house: House) -> None:
    """Moves to and fro, clean or not; a clean part on one disk says nothing about the copy that comes back there."""
    house.open()
    house.make("t-0", 0)
    house.fill("t-0", 2)
    house.roll("t-0")
    house.flush("t-0")
    house.turns()
    house.move("t-0", 1)
    house.fill("t-0", 1)
    house.roll("t-0")
    house.turns()
    house.move("t-0", 0)
    house.later(60_000 + DELETE_RETENTION_MS)
    house.fill("t-0", 1)
    house.roll("t-0")
    house.flush("t-0")
    house.turns()
    house.move("t-0", 2)


def deletions(house: House) -> None:
    """A partition that is created again has no clean part."""
    house.open()
    house.make("t-0", 0)
    house.make("u-0", 0)
    house.fill("t-0", 2)
    house.fill("u-0", 1)
    for name in ("t-0", "u-0"):
        house.roll(name)
        house.flush(name)
    house.turns()
    house.delete("t-0")
    house.make("t-0", 0)
    house.fill("t-0", 2)
    house.roll("t-0")
    house.flush("t-0")
    house.turns()
    house.delete("t-0")
    house.later(120_000)


def starts(house: House) -> None:
    """The log's start moves, managers die between the passes, and one ends in order."""
    house.open()
    house.make("t-0", 0)
    house.make("t-1", 1)
    house.fill("t-0", 2)
    house.fill("t-1", 1)
    house.roll("t-0")
    house.flush("t-0")
    house.flush("t-1")
    house.turn()
    house.die()
    house.open()
    house.fill("t-0", 1)
    house.manager.set_topic_config("t", {"cleanup.policy": "compact,delete"})
    house.delete_records("t-0", 12)
    house.manager.set_topic_config("t", {})
    house.roll("t-0")
    house.flush("t-0")
    house.turns()
    house.die()
    house.open()
    house.fill("t-1", 1)
    house.roll("t-1")
    house.turns()
    house.shut_down()
    house.open()
    house.turns()
    house.shut_down()


WORKLOADS = (passes, cuts, moves, deletions, starts)


def tale_of(recording: RecordingFiles, count: int) -> Tale:
    tale = Tale()
    for op in recording.ops[:count]:
        if op.kind == "mark":
            tale.told(op.path, op.value)
    return tale


def recorded(workload: Workload, base: Path) -> tuple[RecordingFiles, Path]:
    """A workload's steps, and the directory in which it ran, which is free again."""
    root = base / "house"
    root.mkdir()
    recording = RecordingFiles(str(root), UnsyncedFiles())
    house = House(root, recording)
    try:
        workload(house)
    finally:
        house.die()
    root.rename(base / "left")
    return recording, root


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_after_every_crash_each_key_has_its_value(workload: Workload, tmp_path: Path) -> None:
    with harness.fast_dir() as base:
        recording, root = recorded(workload, base)

        def check(place: str, state: CrashState) -> None:
            check_start(place, tale_of(recording, state.op_count), process_only=state.process_only)

        states = harness.check_crashes(
            recording, check, sample=SAMPLE, keep=tmp_path / "state", at=str(root), torn_step=4096, shuffles=1
        )
        print(f"{workload.__name__}: {states} states")


def steps_of(recording: RecordingFiles, what: str) -> list[bool]:
    """After how many steps the workload is in the middle of such an operation."""
    inside, now = [False], False
    for op in recording.ops:
        if op.kind == "mark":
            now = op.path == "begin" and isinstance(op.value, tuple) and op.value[0] == what
        inside.append(now)
    return inside


@pytest.mark.parametrize(("workload", "what"), [(deletions, "delete"), (moves, "move"), (cuts, "cut")])
def test_no_line_outlives_what_was_clean(workload: Workload, what: str, tmp_path: Path) -> None:
    """A process dies in a deletion, a move or a truncation: later records are cleaned from the right place."""
    with harness.fast_dir() as base:
        recording, root = recorded(workload, base)
        inside = steps_of(recording, what)
        tried = 0

        def check(place: str, state: CrashState) -> None:
            nonlocal tried
            if inside[state.op_count] and (LONG or state.last is None or state.last.kind in ("rename", "mark")):
                check_start(place, tale_of(recording, state.op_count))
                tried += 1

        harness.check_crashes(recording, check, keep=tmp_path / "state", at=str(root), kinds=["kill"])
        assert tried > 3


def late_records(house: House) -> None:
    """Supersedes flushed records with records that nobody flushes."""
    house.open()
    house.make("t-0", 0)
    house.fill("t-0", 1)
    house.roll("t-0")
    house.flush("t-0")
    house.fill("t-0", 1)
    house.add("t-0", ("k2", "in a transaction"), of=77)
    house.roll("t-0")
    house.end("t-0", 77)
    with house.telling("turns", "t-0"):
        house.turns()


def test_what_a_pass_drops_was_superseded_by_what_is_on_the_disk(tmp_path: Path) -> None:
    with harness.fast_dir() as base:
        recording, root = recorded(late_records, base)
        start = steps_of(recording, "turns").index(True)
        states = harness.check_crashes(
            recording, lambda place, state: check_start(place, tale_of(recording, state.op_count), process_only=False),
            keep=tmp_path / "state", at=str(root), kinds=["power"], start=start,
        )  # fmt: skip
        assert states > 5


@pytest.mark.parametrize("workload", [passes, moves, starts], ids=lambda workload: workload.__name__)
def test_a_checkpoint_that_is_lost_or_torn_costs_only_work(workload: Workload, tmp_path: Path) -> None:
    """If the file is lost, empty or some steps old, only clean parts are cleaned again."""
    with harness.fast_dir() as base:
        recording, root = recorded(workload, base)
        seen: dict[str, list[bytes]] = {}

        def check(place: str, state: CrashState) -> None:
            tale = tale_of(recording, state.op_count)
            for disk in sorted(os.listdir(place)):
                path = os.path.join(place, disk, CHECKPOINT)
                if not os.path.exists(path):
                    continue
                before = seen.setdefault(disk, [])
                with open(path, "r+b") as file:
                    found = file.read()
                    if state.process_only and found not in before:
                        before.append(found)
                    kind = state.op_count % 4
                    file.seek(0)
                    file.truncate()
                    file.write((b"", b"0\n1\nt 0", before[0] if before else b"", found[: len(found) // 2])[kind])
                if state.op_count % 5 == 0:
                    os.unlink(path)
            check_start(place, tale, process_only=state.process_only, torn=CHECKPOINT)

        states = harness.check_crashes(
            recording, check, sample=SAMPLE and SAMPLE // 2, keep=tmp_path / "state", at=str(root),
            kinds=("kill", "power"),
        )  # fmt: skip
        print(f"{workload.__name__}: {states} states")


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_the_start_after_a_crash_may_die_too(workload: Workload, tmp_path: Path) -> None:
    """And so may the passes that follow it."""
    with harness.fast_dir() as base:
        recording, root = recorded(workload, base)

        def check(place: str, state: CrashState) -> None:
            tale = tale_of(recording, state.op_count)
            again = RecordingFiles(place, UnsyncedFiles())
            house = House(place, again)
            try:
                house.open()
                house.turns()
            finally:
                house.die()
            os.rename(place, place + ".left")
            harness.check_crashes(
                again,
                lambda where, interrupted: check_start(
                    where, tale, process_only=state.process_only and interrupted.process_only
                ),
                sample=40 if LONG else 4, at=place, torn_step=4096, shuffles=1,
            )  # fmt: skip
            os.rename(place + ".left", place)

        harness.check_crashes(
            recording, check, sample=40 if LONG else 5, keep=tmp_path / "state", at=str(root),
            torn_step=4096, shuffles=1,
        )  # fmt: skip
