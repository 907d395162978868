"""Failing and full disks under a cleaner: each operation of its passes on one disk fails, forever.

As in Kafka the directory is offline, no thread dies of it, and what lies on other disks is cleaned on.  A partition
that was only looked at, to see how dirty it is, is marked uncleanable.  Once the disk is back a start finds each key's
value.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.crash import harness
from tests.crash.compacted import DELETE_RETENTION_MS, House, Tale, check_start, judge_checkpoint, states
from tests.crash.test_manager_faults import LOOKS
from tests.file_doubles import Fault, FaultyFiles, UnsyncedFiles
from tests.sampling import LONG, share
from tests.unit.cleaner_kit import rows

STEP = 1 if LONG else 11
BAD = 0


def filled(root: Path) -> Tale:
    house = House(root)
    house.open()
    for number in range(3):
        house.make(f"t-{number}", number % 2)
        house.fill(f"t-{number}", 2)
        house.roll(f"t-{number}")
        house.flush(f"t-{number}")
    house.shut_down()
    return house.story


def passes(house: House) -> None:
    """Makes dirty logs, then runs a pass after the horizon of their deletes; the replaced files are deleted."""
    for _ in range(2):
        house.turns()
        house.scheduler.tick()
        house.clock.advance_to(house.clock.milliseconds() + 60_000 + DELETE_RETENTION_MS)
        house.scheduler.tick()


def trial(root: Path, at: int | None, error: int, kinds: tuple[str, ...] | None) -> tuple[int, bool]:
    """The number of operations that could fail, and whether the directory is offline."""
    tale = filled(root)
    files = FaultyFiles(UnsyncedFiles())
    house = House(root, files)
    house.story = tale
    bad = house.dirs[BAD]
    try:
        manager = house.open()
        before = states(manager)
        files.count = 0
        files.fault = Fault(1 << 60 if at is None else at, error, True, kinds, lambda path: path.startswith(bad))
        passes(house)
        count, files.fault = files.count, None
        manager._settle_failures()
        offline = manager.failure_channel.offline_log_dirs
        assert offline in ([], [bad])
        marked = manager.uncleanable_partitions()
        assert not marked or (kinds == LOOKS and {why.error for why in marked} == {"LogCleaningException"}), marked
        assert {why.log_dir for why in marked} <= {bad}
        there = states(manager)
        assert there == {partition: state for partition, state in before.items() if partition in there}
        assert {str(each.topic_partition) for each in manager.all_logs()} >= {"t-1"}
        keys = [key for _, key, _ in rows(house.log("t-1"))]
        assert len(keys) == len(set(keys)), keys
        for log in manager.all_logs():
            judge_checkpoint(manager, log)
        if offline:
            assert manager.get_log("t-0") is None
        elif files.failed and not marked:
            # Nothing but what nobody needs: `.deleted` files, and those of an attempt that had come to nothing.
            assert all(is_left_over(each.path) for each in files.failed), files.failed
    finally:
        house.die()
    check_start(root, tale)
    return count, bool(offline)


def is_left_over(path: str) -> bool:
    return os.path.basename(path).endswith((".cleaned", ".deleted"))


@pytest.mark.parametrize(
    ("error", "kinds"),
    [(errno.EIO, None), (errno.EIO, LOOKS)],
    ids=["EIO", "reads"],  # a full disk: test_full_disk
)
def test_a_disk_fails_at_any_operation_of_a_pass(error: int, kinds: tuple[str, ...] | None) -> None:
    with harness.fast_dir() as base:
        count, offline = trial(base / "count", None, error, kinds)
        assert not offline
        tried = failures = 0
        for at in share(range(count), STEP):
            try:
                failures += trial(base / str(at), at, error, kinds)[1]
            except BaseException as failure:
                failure.add_note(f"{errno.errorcode[error]} at {at} of {count}, kinds {kinds}")
                raise
            tried += 1
        assert failures > 0
        print(f"{tried} of {count} faults, {failures} took the directory offline")
