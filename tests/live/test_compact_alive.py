"""`Partition.compact` next to everything: interrupts at its places, threads that append, read, truncate, delete and
close, signal handlers that interrupt it, forks in its middle.

The last value of each key always stays the same, and so do offsets and their order.  A compaction that is repeated ends
with the result that it would have had.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.cleaner import passes
from kafkalog.engine.files import ManualClock, ManualScheduler
from kafkalog.engine.segment.log_segment import LogSegment
from kafkalog.engine.segment.log_segments import LogSegments
from kafkalog.errors import (
    IllegalStateException,
    LogCleaningAbortedException,
    LogReadOnlyException,
    OffsetOutOfRangeException,
)
from tests.live.crew import SECONDS, Crew
from tests.live.interrupts import CALLS, LINES, NOW_MS, Interrupted, Tracer, at_each_place
from tests.live.oracle import FAST, in_a_thread, no_descriptors_below
from tests.live.test_forks import in_a_child, refused
from tests.sampling import LONG

LIMIT = None if LONG else 25
CONFIG = {
    "cleanup.policy": "compact", "internal.segment.bytes": "600", "index.interval.bytes": "100",
    "delete.retention.ms": "1000", "file.delete.delay.ms": "60000",
}  # fmt: skip
OURS = (
    "engine/cleaner/", "_face/passes.py", "partition.py", "engine/host/directory.py", "engine/log/replacement.py",
    "engine/log/unified_log.py", "engine/log/offsets.py",
)  # fmt: skip
LARGE = {"internal.segment.bytes": "8000"}
SMALL_MAP = 24 * 12
Rows = list[tuple[int, bytes | None, bytes | None]]
Count = Callable[[str, int], None]
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def open_it(place: Path | str, config: dict[str, str] | None = None, **options: Any) -> kafkalog.Partition:
    options.setdefault("scheduler", ManualScheduler(ManualClock(NOW_MS)))
    return kafkalog.open_log(
        place, "t-0", config={**CONFIG, **(config or {})}, files=FAST, clock=ManualClock(NOW_MS), **options
    )


def prepare(place: Path) -> None:
    """Superseded keys, a tombstone, a transaction that was aborted and one that was not, several segments."""
    with open_it(place) as log:
        for number in range(24):
            log.append(b"%d" % number + b"." * 40, key=b"k%d" % (number % 5))
        log.append(None, key=b"k3")
        with contextlib.suppress(LookupError), log.transaction("x") as txn:
            txn.append(b"aborted", key=b"k1")
            raise LookupError
        with log.transaction("x") as txn:
            txn.append(b"committed" * 8, key=b"k2")
        log.append_many([(b"%d" % number, b"m%d" % (number % 4)) for number in range(12)])
        for number in range(20):
            log.append(b"%d" % number + b"." * 40, key=b"n%d" % (number % 3))


def rows(log: kafkalog.Partition) -> Rows:
    return [(record.offset, record.key, record.value) for record in log.records(isolation="read_committed")]


def state(found: Rows) -> dict[bytes | None, bytes | None]:
    return {key: value for _, key, value in found}


def run_compact(log: kafkalog.Partition) -> None:
    log.compact(dedupe_buffer_bytes=SMALL_MAP)


# --- interrupts ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", [LINES, CALLS])
def test_interrupted(kind: str, base: Path, count: Count) -> None:
    template = base / "template"
    prepare(template)
    shutil.copytree(template, base / "whole")
    with open_it(base / "whole") as log:
        before = rows(log)
        run_compact(log)
        expected = rows(log)
        assert state(expected) == state(before)
        assert len(expected) < len(before) - 20
    places = _once(base / "counted", template, Tracer(kind), expected)
    number = at_each_place(
        base,
        kind,
        places,
        lambda place, tracer: _once(place, template, tracer, expected),
        ours=OURS,
        limit=LIMIT,
        at_least=500,
    )
    count(f"places of a compaction, {kind}", number)


def _once(place: Path, template: Path, tracer: Tracer, expected: Rows) -> list[tuple[str, int, str]]:
    shutil.copytree(template, place)
    clock = ManualClock(NOW_MS)
    scheduler = ManualScheduler(clock)
    log = open_it(place, scheduler=scheduler)
    try:
        with tracer:
            run_compact(log)
    except Interrupted:
        pass
    except TypeError as error:
        if "'traceback' object is not callable" not in str(error):  # as in `interrupts`
            raise
    in_a_thread(lambda: _go_on(place, log, expected))
    clock.advance(60_000)
    scheduler.tick()
    assert scheduler.errors == []
    gc.collect()
    left = no_descriptors_below(place)
    assert not left or tracer.while_handling, f"left open: {left}"
    shutil.rmtree(place)
    return tracer.places


def _go_on(place: Path, log: kafkalog.Partition, expected: Rows) -> None:
    found = rows(log)
    assert state(found) == state(expected)
    assert [row[0] for row in found] == sorted({row[0] for row in found})
    killed = Path(f"{place}.killed")
    shutil.copytree(place, killed)
    (killed / ".lock").unlink(missing_ok=True)
    with open_it(killed) as again:
        assert state(rows(again)) == state(expected)
        assert again.end_offset == log.end_offset
        run_compact(again)
        assert rows(again) == expected
    shutil.rmtree(killed)
    end = log.end_offset
    assert log.append(b"later", key=b"later") == end
    log.truncate(end)
    run_compact(log)
    assert rows(log) == expected
    log.close()
    assert not [name for name in os.listdir(place / "t-0") if name.endswith((".cleaned", ".swap"))]
    with open_it(place) as again:
        assert rows(again) == expected


# --- threads ---------------------------------------------------------------------------------------------


class Trial:
    """A log with a writer for each of a few sets of keys; a value begins with its offset, so that it can be judged."""

    def __init__(self, place: Path, seed: int) -> None:
        self.log = open_it(place, LARGE, scheduler=None)
        self.rng = random.Random(seed)
        self.last: dict[bytes, bytes] = {}  # acknowledged
        self.compactions = self.records = 0

    def append(self, writer: int) -> None:
        key, value = b"w%d.%d" % (writer, self.rng.randrange(6)), b"%d" % self.rng.randrange(1 << 30) + b"." * 30
        self.log.append(value, key=key)
        self.last[key] = value

    def read(self) -> None:
        before = -1
        for record in self.log.records():
            assert record.offset > before
            before = record.offset

    def compact(self) -> None:
        stats = self.log.compact(dedupe_buffer_bytes=self.rng.choice((SMALL_MAP, 1 << 20)), roll=True)
        self.compactions += 1
        self.records += stats.records

    def crew(self, beside: str) -> Crew:
        crew = Crew(beside)
        for writer in range(2):
            crew.add("append", partial(self.append, writer))
        crew.add("read", self.read)
        for _ in range(2):
            crew.add("compact", self.compact)
        return crew

    def judge(self, place: Path) -> None:
        with open_it(place, LARGE) as log:
            found = rows(log)
            assert {key: value for key, value in state(found).items() if key in self.last} == self.last
            log.compact(roll=True)
            left = rows(log)
            assert len(left) == len({key for _, key, _ in left})
            assert state(left) == state(found)


def test_threads(base: Path, count: Count) -> None:
    trial = Trial(base / "log", 1)
    trial.crew("").run(SECONDS)
    assert state(rows(trial.log)) == trial.last
    trial.log.close()
    assert trial.compactions > 1
    assert trial.records > 50
    trial.judge(base / "log")
    count("compactions beside appends", trial.compactions)


def test_closes(base: Path, count: Count) -> None:
    until, number = time.monotonic() + SECONDS, 0
    while time.monotonic() < until or number < 10:
        number += 1
        place = base / f"round{number}"
        trial = Trial(place, number)
        trial.crew("close").run(trial.rng.random() * 0.06, trial.log.close)
        assert trial.log.closed
        assert not [name for name in os.listdir(place / "t-0") if name.endswith((".cleaned", ".swap"))]
        trial.judge(place)
        shutil.rmtree(place)
    count("closes beside compactions", number)


def test_truncation_and_retention(base: Path, count: Count) -> None:
    """A truncation stops a compaction, which continues automatically; truncated records do not come back."""
    config = {
        **CONFIG, **LARGE,
        "cleanup.policy": "compact,delete", "retention.bytes": "40000", "file.delete.delay.ms": "0",
    }  # fmt: skip
    log = kafkalog.open_log(base / "log", "t-0", config=config, files=FAST)
    written: dict[int, bytes] = {}
    cuts = compactions = 0
    rng = random.Random(3)
    guard = threading.Lock()

    def append() -> None:
        with guard:
            value = b"%d" % rng.randrange(1 << 40)
            written[log.append(value + b"." * 30, key=b"k%d" % rng.randrange(9))] = value

    def cut() -> None:
        nonlocal cuts
        time.sleep(rng.random() * 0.05)
        with guard:
            target = max(log.log_start_offset, log.end_offset - rng.randrange(30))
            log.truncate(target)
            for offset in [offset for offset in written if offset >= target]:
                del written[offset]
            cuts += 1

    def compact() -> None:
        nonlocal compactions
        with contextlib.suppress(LogCleaningAbortedException):
            log.compact(dedupe_buffer_bytes=SMALL_MAP, roll=True)
            compactions += 1

    def retain() -> None:
        time.sleep(0.02)
        log.delete_old_segments()

    def read() -> None:
        with contextlib.suppress(OffsetOutOfRangeException):
            for record in log.records():
                assert record.key is not None

    crew = Crew("")
    for work in (append, append, cut, compact, compact, retain, read):
        crew.add("read" if work is read else "compact", work)
    crew.run(SECONDS)
    for record in log:
        assert (record.value or b"").split(b".")[0] == written[record.offset]
    assert cuts > 1
    assert compactions > 1
    log.close()
    count("cuts beside compactions", cuts)


# --- out of its middle -----------------------------------------------------------------------------------


@contextlib.contextmanager
def called_at_chunk(number: int, work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A signal whose handler is `work` comes before that chunk of a compaction."""
    chunks: list[int] = []
    check = passes._Compaction._check

    def counted(self: Any) -> None:
        chunks.append(1)
        if len(chunks) == number:
            signal.raise_signal(signal.SIGUSR1)
        check(self)

    before = signal.signal(signal.SIGUSR1, lambda *_: work())
    monkeypatch.setattr(passes._Compaction, "_check", counted)
    try:
        yield chunks
    finally:
        signal.signal(signal.SIGUSR1, before)
        monkeypatch.undo()


@pytest.mark.parametrize("number", [2, 5, 9, 14, 20])
def test_a_handler_compacts_reads_appends_truncates(base: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(base / "log")
    with open_it(base / "log") as log:
        before = state(rows(log))

        def work() -> None:
            with pytest.raises(IllegalStateException, match="being compacted right now"):
                log.compact()
            assert state(rows(log)) == before
            end = log.end_offset
            log.append(b"inside", key=b"inside")
            log.truncate(end)

        with called_at_chunk(number, work, monkeypatch) as chunks:
            run_compact(log)
        assert len(chunks) > number
        assert state(rows(log)) == before
        assert log.compact().passes == 0


@pytest.mark.parametrize("number", [2, 9, 14])
def test_a_handler_closes(base: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(base / "log")
    log = open_it(base / "log")
    before = state(rows(log))
    with (
        called_at_chunk(number, log.close, monkeypatch),
        pytest.raises(IllegalStateException, match="is closed"),
    ):
        run_compact(log)
    assert log.closed
    with open_it(base / "log") as log:
        assert state(rows(log)) == before
        run_compact(log)


@pytest.mark.parametrize("number", [2, 9, 14])
def test_a_fork_in_the_middle(base: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that comes out of it goes no further, and deletes nothing of its parent's."""
    prepare(base / "log")
    shutil.copytree(base / "log", base / "whole")
    with open_it(base / "whole") as log:
        run_compact(log)
        expected = rows(log)
    told: list[str] = []
    with open_it(base / "log") as log:

        def fork() -> None:
            reading, writing = os.pipe()
            if os.fork() == 0:
                signal.alarm(30)
                told.append(str(writing))  # the child's own: it goes on as the pass does, and is refused below
                return
            os.close(writing)
            with os.fdopen(reading) as answer:
                told.append(answer.read())
            os.wait()

        parent = os.getpid()
        with called_at_chunk(number, fork, monkeypatch):
            try:
                run_compact(log)
            except IllegalStateException as error:
                if os.getpid() != parent:
                    os.write(int(told[0]), str(error).encode())
            finally:
                if os.getpid() != parent:
                    os._exit(0)
        assert "was opened by process" in told[0]
        assert in_a_child(lambda: refused(log)) == ""
        assert rows(log) == expected


def test_read_only_and_closed(base: Path) -> None:
    prepare(base / "log")
    with open_it(base / "log", read_only=True) as log:
        with pytest.raises(LogReadOnlyException):
            log.compact()
        assert log.appends is None
    with open_it(base / "log") as log:
        pass
    with pytest.raises(IllegalStateException, match="is closed"):
        log.compact()


# --- a compaction between two looks of one read ------------------------------------------------------------


@pytest.mark.parametrize("when", [1, 2, 3])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_between_two_looks(
    isolation: str, when: int, base: Path, count: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that found nothing in a segment continues in the next one.

    If a compaction merges both segments in between, their records are not skipped."""
    template = base / "template"
    prepare(template)
    with open_it(template) as log:
        run_compact(log)
        with log.transaction("y") as txn:
            log.append_many([(b"%d" % number + b"." * 60, b"p%d" % number) for number in range(12)])
            txn.append(b"x" * 30, key=b"k4")
        for number in range(16):
            log.append(b"%d" % number + b"." * 40, key=b"n%d" % (number % 3))
        starts = range(log.end_offset)
        last = {record.key: record for record in log.records(isolation=isolation)}
    higher_segment = LogSegments.higher_segment
    number = 0
    for start in starts:
        place = base / f"start{start}"
        shutil.copytree(template, place)
        with open_it(place, LARGE) as log:  # segments that a pass puts together
            looks: list[int] = []

            def looked(
                self: LogSegments, offset: int, log: kafkalog.Partition = log, looks: list[int] = looks
            ) -> LogSegment | None:
                looks.append(offset)
                if len(looks) == when:
                    log.compact()
                return higher_segment(self, offset)

            monkeypatch.setattr(LogSegments, "higher_segment", looked)
            seen = {record.key: record.offset for record in log.records(start, isolation=isolation)}
            monkeypatch.undo()
            number += len(looks) >= when
        shutil.rmtree(place)
        lost = {key: record for key, record in last.items() if record.offset >= start and key not in seen}
        assert not [record for record in lost.values() if record.value is not None], (start, lost, seen)
    assert number > 20
    count("compactions between two looks", number)
