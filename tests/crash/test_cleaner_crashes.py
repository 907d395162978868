"""A cleaner pass that dies at each of its steps, or whose disk fails: each group was exchanged or not.

Everything is flushed before the passes begin, so that a power loss may not lose anything either.  After each crash the
log holds its records from before or after some exchange of a group.  A reader of committed records always sees the
same state, and every index agrees with its log.  One thing is as with Kafka: old segments wholly after the last batch
that their group keeps may exist again, because the names of the exchange do not say that they were part of it.  The
next pass drops them again.  At some of the states recovery itself is interrupted.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from kafkalog._native.codec.offset_map import SkimpyOffsetMap
from kafkalog.engine.cleaner.cleaner import Cleaner, CleanerSettings
from kafkalog.engine.cleaner.to_clean import next_to_clean
from kafkalog.engine.files import Files
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import DiskError, KafkalogError
from kafkalog.toolbox.verify import verify
from tests.crash import harness
from tests.crash.partition import Host
from tests.file_doubles import RecordingFiles, UnsyncedFiles
from tests.sampling import LONG
from tests.unit.cleaner_kit import Producer, keyed, latest, marker, placed, rows

CONFIG = {
    "cleanup.policy": "compact", "internal.segment.bytes": "500", "delete.retention.ms": "1000",
    "index.interval.bytes": "60", "max.message.bytes": "10000",
}  # fmt: skip
SAMPLE = None if LONG else 80
Row = tuple[int, str | None, str | None]


def fill(host: Host) -> None:
    """Writes superseded keys, deletes, an aborted transaction and a committed one, and a batch that is compressed
    again."""
    log = host.open()
    for number in range(4):
        add(log, keyed((f"k{number}", "1" * 20), ("x", f"{number}")), keyed(("k0", f"{number}" * 10), ("gone", None)))
    add(log, keyed(("aborted", "1"), producer=Producer(1, transactional=True)))
    add(log, marker(1, commit=False))
    add(log, keyed(("k2", "new" * 30), ("x", "y"), codec=4, producer=Producer(1, 1, transactional=True)))
    add(log, marker(1, commit=True))
    add(log, keyed(("x", "9")))
    host.scheduler.tick()
    log.flush(True)
    host.checkpoint()


def add(log: UnifiedLog, *batches: bytes) -> None:
    for data in batches:
        log.append_as_follower(placed(data, log.log_end_offset), 0)
    log.roll()
    log.update_high_watermark(log.log_end_offset)


def clean(host: Host, seen: list[list[Row]] | None = None) -> None:
    """A pass; `seen` is what was in the log before it, between its steps and after it."""
    log = host.log
    assert log is not None

    def look(_: object) -> None:
        if seen is not None and (not seen or seen[-1] != rows(log)):
            seen.append(rows(log))

    look(None)
    cleaner = Cleaner(SkimpyOffsetMap(24 * 100), CleanerSettings(200, 4000), host.clock, throttle=look)
    cleaner.clean(next_to_clean(log, None, host.clock.now_ms))
    look(None)


def passes(host: Host, seen: list[list[Row]] | None = None) -> None:
    """Runs a pass, deletes the replaced files, and runs another pass after the deletes' horizon."""
    assert host.log is not None
    clean(host, seen)
    host.clock.advance(60_000)
    host.scheduler.tick()
    assert not host.scheduler.errors
    clean(host, seen)
    host.log.flush(True)


def recorded(root: str) -> tuple[RecordingFiles, int, list[list[Row]]]:
    """The passes of a filled log, the step at which they begin, and what the log may hold at each moment."""
    recording = RecordingFiles(root, UnsyncedFiles())
    host = Host(root, recording, CONFIG)
    fill(host)
    start = len(recording.ops)
    seen: list[list[Row]] = []
    passes(host, seen)
    host.die()
    assert len(seen) >= 4
    assert len(seen[-1]) < len(seen[0]) / 2
    return recording, start, seen


def state_of(found: list[Row]) -> dict[str, str]:
    return {key: value for key, value in latest(found).items() if key != "aborted"}


def reopened(place: str, files: Files | None = None) -> list[Row]:
    """The rows of the log after an open. Asserts that every index agrees with them."""
    host = Host(place, files or UnsyncedFiles(), CONFIG)
    log = host.open()
    host.scheduler.tick()
    assert not host.scheduler.errors, host.scheduler.errors
    found = rows(log)
    assert [name for name in os.listdir(host.dir) if name.endswith((".cleaned", ".swap", ".deleted"))] == []
    host.die()
    report = verify(place, deep=True)
    assert report.ok, [str(finding) for finding in report.findings[:3]]
    return found


def is_between(found: list[Row], before: list[Row], after: list[Row]) -> bool:
    """Whether an exchange has happened up to some offset: 0, the end, or between two segments."""
    bounds = {0, *(offset for offset, _, _ in before), before[-1][0] + 1}
    return any(
        found == [row for row in after if row[0] < bound] + [row for row in before if row[0] >= bound]
        for bound in bounds
    )


def test_a_pass_has_happened_or_not_whatever_step_it_died_at(tmp_path: Path) -> None:
    with harness.fast_dir() as root:
        recording, start, seen = recorded(str(root))
    state = state_of(seen[0])

    def check(place: str, crash: harness.CrashState) -> None:
        found = reopened(place)
        assert any(is_between(found, *pair) for pair in itertools.pairwise(seen)), found
        assert state_of(found) == state
        assert reopened(place) == found

    checked = harness.check_crashes(
        recording, check, sample=SAMPLE, keep=tmp_path / "state", start=start, torn_step=512
    )
    assert checked > 50


def test_a_recovery_of_a_pass_may_die_too() -> None:
    with harness.fast_dir() as root:
        recording, start, _ = recorded(str(root))

    def check(place: str, crash: harness.CrashState) -> None:
        again = RecordingFiles(place, UnsyncedFiles())
        found = reopened(place, again)
        harness.check_crashes(
            again, lambda interrupted, _: _same(reopened(interrupted), found), sample=(LONG and 60) or 10, shuffles=1
        )

    harness.check_crashes(recording, check, sample=60 if LONG else 12, start=start, shuffles=1)


def _same(found: list[Row], expected: list[Row]) -> None:
    assert found == expected


@pytest.mark.parametrize("sticky", [True, False])
def test_a_disk_that_fails_in_a_pass_loses_nothing(sticky: bool) -> None:
    """Each change of the passes fails once: the directory is offline, and the next process has the same state."""
    states: list[dict[str, str]] = []

    def prepare(place: str) -> None:
        host = Host(place, UnsyncedFiles(), CONFIG)
        fill(host)
        assert host.log is not None
        states.append(state_of(rows(host.log)))
        host.die()

    def workload(files: Files, place: str) -> None:
        host = Host(place, files, CONFIG)
        host.open()
        try:
            passes(host)
        finally:
            host.die()

    def check(place: str, files: object, error: BaseException | None) -> None:
        assert error is None or isinstance(error, (DiskError, OSError, KafkalogError, AssertionError)), repr(error)
        assert state_of(reopened(place)) == states[0]

    runs = harness.each_fault(
        workload, check, prepare=prepare, sticky=sticky, inner=UnsyncedFiles(), step=1 if LONG else 7
    )
    assert runs > 10
