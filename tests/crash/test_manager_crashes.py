"""Crash states of a LogManager with three directories.

Creation, moves, deletion, checkpoints, shutdown and startup are interrupted at every step by the death of the process
or of the machine (see `managed.Story` for what must hold).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash import harness
from tests.crash.harness import CrashState
from tests.crash.managed import DISKS, House, Story, check_start, clean, visit_copies
from tests.file_doubles import RecordingFiles, UnsyncedFiles
from tests.sampling import LONG

SAMPLE = None if LONG else 40

Workload = Callable[[House], None]


def logs_come_and_go(house: House) -> None:
    house.open()
    for number in range(DISKS):
        house.make(f"t-{number}", number)
        house.append(f"t-{number}", 3)
    house.flush("t-1")
    house.append("t-1", 2)
    house.manager.checkpoint_recovery_points()
    house.delete("t-1")
    house.make("t-1", 1)
    house.append("t-1", 2)
    house.delete("t-2")
    house.later(120_000)
    house.make("t-2", 2)
    house.append("t-2")
    house.flush("t-2")
    house.shut_down()


def moves(house: House) -> None:
    house.open()
    house.make("t-0", 0)
    house.append("t-0", 12)
    house.flush("t-0")
    house.delete_records("t-0", 5)
    house.append("t-0", 2)
    house.move("t-0", 1)
    house.append("t-0", 2)
    house.move("t-0", 0)
    house.append("t-0")
    house.flush("t-0")
    house.move("t-0", 2)
    house.later(120_000)
    house.append("t-0")


def records_are_deleted(house: House) -> None:
    house.open()
    house.make("t-0", 0)
    house.append("t-0", 10)
    house.flush("t-0")
    house.delete_records("t-0", 8)
    house.manager.checkpoint_recovery_points()
    house.delete("t-0")
    house.make("t-0", 0)
    house.append("t-0", 4)
    house.flush("t-0")
    house.append("t-0")
    house.die()
    house.open()
    house.append("t-0", 8)
    house.flush("t-0")
    house.delete("t-0")


def settings(house: House) -> None:
    house.open()
    house.make("t-0", 0)
    house.make("u-0", 1)
    house.configure("t", max_message_bytes="5000")
    house.append("t-0")
    house.configure("u", max_message_bytes="777")
    house.configure("t", max_message_bytes="6000", flush_ms="1000000000")
    house.configure("t")
    house.shut_down()


def starts(house: House) -> None:
    """The recovery itself is interrupted, too, with a move that had come to different points before."""
    house.open()
    house.make("t-0", 0)
    house.append("t-0", 14)
    house.make("t-1", 1)
    house.append("t-1", 9)
    house.flush("t-1")
    house.die()
    house.open()
    house.append("t-0", 2)
    house.move("t-0", 1)
    house.shut_down()
    house.open()
    house.append("t-1")
    house.die()
    house.open()
    house.manager.checkpoint_recovery_points()
    house.manager.checkpoint_high_watermarks()
    house.shut_down()


WORKLOADS = (logs_come_and_go, moves, records_are_deleted, settings, starts)


def story_of(recording: RecordingFiles, count: int) -> Story:
    story = Story()
    for op in recording.ops[:count]:
        if op.kind == "mark":
            story.told(op.path, op.value)
    return story


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_after_every_crash_a_manager_starts(workload: Workload, tmp_path: Path) -> None:
    with harness.fast_dir() as base:
        root = base / "house"
        root.mkdir()
        recording = RecordingFiles(str(root), UnsyncedFiles())
        house = House(root, recording)
        try:
            workload(house)
        finally:
            house.die()
        root.rename(base / "left")

        def check(place: str, state: CrashState) -> None:
            story, was_clean = story_of(recording, state.op_count), clean(place)
            visit_copies(place)
            check_start(place, story, process_only=state.process_only, all_is_there=was_clean)

        states = harness.check_crashes(
            recording, check, sample=SAMPLE, keep=tmp_path / "state", at=str(root), torn_step=4096, shuffles=1
        )
        print(f"{workload.__name__}: {states} states")
