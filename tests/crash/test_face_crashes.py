"""Crash states of the public API: `open_log`, appends, flush, transactions, truncation, deletion, close, two
partitions.

The promises are those of `open_log`'s docstring; the clean-shutdown marker must never exist next to unclean files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.files import ManualClock, ManualScheduler
from kafkalog.partition import Partition
from tests.crash import harness
from tests.crash.harness import ACKNOWLEDGED, APPENDED, FLUSHED, CrashState
from tests.crash.partition import NOW_MS, SMALL
from tests.file_doubles import RecordingFiles, UnsyncedFiles
from tests.sampling import LONG

Item = tuple[str, bytes]


class Service:
    """A process that uses the public API on a recorded disk."""

    def __init__(self, root: str, files: RecordingFiles | UnsyncedFiles) -> None:
        self.root = root
        self.files = files
        self.clock = ManualClock(NOW_MS)
        self.scheduler = ManualScheduler(self.clock)

    @contextmanager
    def log(self, name: str = "t-0", durability: str = "os") -> Iterator[Partition]:
        with kafkalog.open_log(
            self.root, name, config=SMALL, files=self.files, clock=self.clock, scheduler=self.scheduler,
            durability="fsync" if durability == "fsync" else "os", topic_id="AAAAAAAAAAAAAAAAAAAAAQ",
        ) as log:  # fmt: skip
            yield log
            self.scheduler.tick()


def recovered(place: str, name: str) -> list[bytes]:
    if not os.path.isdir(os.path.join(place, "disk", name)):
        return []
    with Service(os.path.join(place, "disk"), UnsyncedFiles()).log(name) as log:
        values = [record.value or b"" for record in log.records(isolation="read_committed")]
        assert log.last_stable_offset <= log.high_watermark == log.end_offset
        return values


def append(recording: RecordingFiles, log: Partition, value: bytes, *, flushed: bool = False) -> None:
    recording.mark(APPENDED, value)
    log.append(value)
    recording.mark(ACKNOWLEDGED, value)
    if flushed:
        recording.mark(FLUSHED, value)


def check_all(recording: RecordingFiles, tmp_path: Path, name: str = "t-0", *, strict: bool = True) -> None:
    def check(place: str, state: CrashState) -> None:
        marked = os.path.exists(os.path.join(place, "disk", ".kafka_cleanshutdown"))
        values = recovered(place, name)
        if strict or state.kind != "shuffled":
            harness.oracle(recording, state, values)
        if marked:
            made = harness.promises(recording, state.op_count)
            assert values == made.appended, "the marker stands over a log that is not whole"
        assert recovered(place, name) == values

    states = harness.check_crashes(
        recording, check, sample=None if LONG else 50, keep=tmp_path / "state", torn_step=4096, shuffles=2
    )
    print(f"face: {states} states")


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_open_append_flush_close(tmp_path: Path, durability: str) -> None:
    with harness.fast_dir() as root:
        recording = RecordingFiles(str(root), UnsyncedFiles())
        service = Service(str(root / "disk"), recording)
        number = 0
        for _ in range(3):
            with service.log(durability=durability) as log:
                for _ in range(6):
                    value = b"%03d" % number * 30
                    append(recording, log, value, flushed=durability == "fsync")
                    number += 1
                    if number % 4 == 0:
                        log.flush()
                        recording.mark(FLUSHED, value)
            recording.mark(FLUSHED, value)
    # With "os" a hole may lie between segments that were never flushed (see `partition.Allowed`).
    check_all(recording, tmp_path, strict=durability == "fsync")


def test_transactions_are_whole_or_not_there(tmp_path: Path) -> None:
    with harness.fast_dir() as root:
        recording = RecordingFiles(str(root), UnsyncedFiles())
        service = Service(str(root / "disk"), recording)
        batches = []
        with service.log(durability="fsync") as log:
            for number in range(6):
                values = [b"%d.%d" % (number, row) * 20 for row in range(3)]
                recording.mark("transaction", number)
                batches.append(values)
                with log.transaction("x") as transaction:
                    for value in values:
                        transaction.append(value)
                recording.mark("committed", number)

    def check(place: str, state: CrashState) -> None:
        values = recovered(place, "t-0")
        assert len(values) % 3 == 0
        count = len(values) // 3
        assert values == [value for batch in batches[:count] for value in batch]
        marks = [op.path for op in recording.ops[: state.op_count] if op.kind == "mark"]
        assert marks.count("committed") <= count <= marks.count("transaction")

    harness.check_crashes(recording, check, sample=None if LONG else 50, keep=tmp_path / "state", torn_step=4096)


def test_what_was_deleted_or_cut_stays_so(tmp_path: Path) -> None:
    with harness.fast_dir() as root:
        recording = RecordingFiles(str(root), UnsyncedFiles())
        service = Service(str(root / "disk"), recording)
        with service.log() as log:
            for number in range(20):
                log.append(b"%d" % number * 40)
            log.flush()
            log.truncate(15)
            recording.mark("cut", 15)
            log.append(b"new")
            log.delete_records(9)
            recording.mark("deleted", 9)
            log.delete_old_segments()
            log.append(b"newer")

    def check(place: str, state: CrashState) -> None:
        marks = {op.path for op in recording.ops[: state.op_count] if op.kind == "mark"}
        if not os.path.isdir(os.path.join(place, "disk", "t-0")):
            assert not marks
            return
        with Service(os.path.join(place, "disk"), UnsyncedFiles()).log() as log:
            found = {record.offset: record.value for record in log}
            start = log.log_start_offset
        if "deleted" in marks:
            assert start >= 9
        if "cut" in marks:
            assert all(offset < 15 or (value or b"").startswith(b"new") for offset, value in found.items())
            assert set(range(start, 15)) <= found.keys()

    harness.check_crashes(recording, check, sample=None if LONG else 50, keep=tmp_path / "state", torn_step=4096)


def test_two_partitions_share_the_marker(tmp_path: Path) -> None:
    with harness.fast_dir() as root:
        recording = RecordingFiles(str(root), UnsyncedFiles())
        service = Service(str(root / "disk"), recording)
        with service.log("t-0", "fsync") as log, service.log("t-1") as other:
            for number in range(5):
                append(recording, log, b"%d" % number * 60, flushed=True)
                other.append(b"other")
        with service.log("t-1") as other:
            other.append(b"more")
    check_all(recording, tmp_path)


def test_new_folders_above_the_log_directory(tmp_path: Path) -> None:
    """Every directory that is created survives a power loss, before anything in it is promised."""
    with harness.fast_dir() as root:
        recording = RecordingFiles(str(root), UnsyncedFiles())
        service = Service(str(root / "disk" / "a" / "b"), recording)
        with service.log(durability="fsync") as log:
            for number in range(3):
                append(recording, log, b"%03d" % number, flushed=True)

        def check(place: str, state: CrashState) -> None:
            below = os.path.join(place, "disk", "a", "b")
            values: list[bytes] = []
            if os.path.isdir(os.path.join(below, "t-0")):
                with Service(below, UnsyncedFiles()).log() as found:
                    values = [record.value or b"" for record in found]
            harness.oracle(recording, state, values)

        states = harness.check_crashes(recording, check, keep=tmp_path / "state", torn_step=4096, shuffles=2)
        print(f"new folders: {states} states")
