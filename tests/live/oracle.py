"""The states that a log may have after threads, interrupts, closes and kills, derived from the requests to it.

Every record carries a unique name, `thread.number`.  A test reports its attempts, then the acknowledgments;
`judge` compares them with the content of a log:

    acknowledged <= recovered <= attempted

It checks that

- every record has the offset that was acknowledged, and each thread's numbers are in order;
- the batch of one append exists whole or not at all, and a transaction too for read_committed;
- no record from before a finished truncation is at or above its offset;
- no record is below a finished deletion.

An interrupted operation may have happened or not, and a truncation may have happened in part.  The batches that
exist still follow each other without a hole.

The oracle uses only the public API (and the batch headers that its reader shows).  It is thread-safe: times are ticks
of one counter.
"""

from __future__ import annotations

import copy
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import kafkalog
from kafkalog.engine.files import Files
from kafkalog.engine.format import names
from kafkalog.toolbox.verify import verify
from tests.file_doubles import UnsyncedFiles

NEVER = 1 << 62
FAST = UnsyncedFiles()  # nothing here is about power loss; shared, so that one process sees one table of directories


@dataclass(slots=True)
class Unit:
    """One call that appends; `offsets` once it was acknowledged."""

    names: tuple[bytes, ...]
    start: int
    end: int = NEVER
    offsets: range | None = None
    whole: bool = True  # one batch
    transaction: int | None = None


@dataclass(slots=True)
class Cut:
    """One call that takes away: everything from `offset` on ("truncate"), or below it ("delete")."""

    kind: str
    offset: int
    start: int
    end: int = NEVER


@dataclass
class Seen:
    """The content of a log: [(offset, name)] for each isolation level, and the positions of its batches."""

    start: int
    end: int
    high_watermark: int
    records: list[tuple[int, bytes]]
    committed: list[tuple[int, bytes]]
    batches: list[tuple[int, int, bool]]  # first and last offset, whether it is a control batch


@dataclass
class Oracle:
    """The story of one partition.  `retention`: segments may go at any time.  `gaps`: offsets may be left out."""

    retention: bool = False
    gaps: bool = False
    units: list[Unit] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    ends: dict[int, str] = field(default_factory=dict)  # transaction -> commit, committed, abort, aborted
    _ticks: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    def __deepcopy__(self, memo: object) -> Oracle:
        return Oracle(
            self.retention, self.gaps, copy.deepcopy(self.units), copy.deepcopy(self.cuts), dict(self.ends), self._ticks
        )

    # --- the story ---------------------------------------------------------------------------------

    def tick(self) -> int:
        with self._lock:
            self._ticks += 1
            return self._ticks

    def attempt(self, *idents: bytes, whole: bool = True, transaction: int | None = None) -> Unit:
        unit = Unit(idents, 0, whole=whole, transaction=transaction)
        with self._lock:
            self._ticks += 1
            unit.start = self._ticks
            self.units.append(unit)
        return unit

    def acknowledge(self, unit: Unit, offsets: range | int) -> None:
        given = range(offsets, offsets + 1) if isinstance(offsets, int) else offsets
        assert len(given) == len(unit.names), (given, unit)
        unit.offsets, unit.end = given, self.tick()

    @contextmanager
    def cutting(self, kind: str, offset: int) -> Iterator[None]:
        """Around a truncate or delete_records; one that raises may have happened or not."""
        cut = Cut(kind, offset, self.tick())
        with self._lock:
            self.cuts.append(cut)
        yield
        cut.end = self.tick()

    @contextmanager
    def ending(self, transaction: int, how: str) -> Iterator[None]:
        """Around a commit ("commit") or abort ("abort")."""
        self.ends[transaction] = how
        yield
        self.ends[transaction] = {"commit": "committed", "abort": "aborted"}[how]

    # --- the judgement -----------------------------------------------------------------------------

    def judge(self, seen: Seen) -> None:
        """Raises AssertionError if a log that nobody is changing shows forbidden records."""
        assert seen.start <= seen.end, seen
        assert seen.high_watermark == seen.end, f"high watermark {seen.high_watermark}, end {seen.end}"
        self._judge_batches(seen)
        offsets = [offset for offset, _ in seen.records]
        assert offsets == sorted(set(offsets)), f"offsets not unique and increasing: {offsets}"
        place = {name: offset for offset, name in seen.records}
        assert len(place) == len(seen.records), f"a record exists twice: {_twice(seen.records)}"
        attempted = {name for unit in self.units for name in unit.names}
        assert place.keys() <= attempted, f"never attempted: {sorted(place.keys() - attempted)[:5]}"
        self._judge_threads(seen.records)
        for cut in self.cuts:
            if cut.kind == "delete" and cut.end < NEVER:
                later = [it for it in self.cuts if it.kind == "truncate" and it.end > cut.start]
                least = min([cut.offset, *(it.offset for it in later)])
                assert seen.start >= least, f"the start {seen.start} is below {cut.offset}, which was deleted"
        if not self.retention:
            most = max((cut.offset for cut in self.cuts if cut.kind == "delete"), default=0)
            # a truncation below the start moves the start there
            assert seen.start <= max(most, 0) or any(c.kind == "truncate" for c in self.cuts), f"start {seen.start}"
        for unit in self.units:
            self._judge_unit(unit, place, seen)
        self._judge_transactions({name for _, name in seen.committed}, place, seen)

    def _judge_batches(self, seen: Seen) -> None:
        at = None
        data = []
        for first, last, control in seen.batches:
            assert first <= last, (first, last)
            if at is not None:
                assert first >= at, f"a batch begins at {first}, the one before it ended at {at - 1}"
                assert first == at or self.gaps, f"a hole: offsets {at} to {first - 1}"
            at = last + 1
            if not control:
                data.extend(range(max(first, seen.start), last + 1))
        if at is not None:
            assert at == seen.end or self.gaps, f"the batches end at {at}, the log at {seen.end}"
            assert seen.batches[0][0] <= seen.start or self.gaps, f"begins at {seen.batches[0][0]}, start {seen.start}"
        assert [offset for offset, _ in seen.records] == data, "records and batch headers do not agree"

    @staticmethod
    def _judge_threads(records: Sequence[tuple[int, bytes]]) -> None:
        last: dict[bytes, int] = {}
        for offset, name in records:
            thread, _, number = name.partition(b".")
            assert int(number) > last.get(thread, -1), f"{name!r} at {offset} stands behind {last[thread]}"
            last[thread] = int(number)

    def _judge_unit(self, unit: Unit, place: dict[bytes, int], seen: Seen) -> None:
        there = [name for name in unit.names if name in place]
        if unit.offsets is None:
            if unit.whole and there and place[there[0]] == seen.start:
                return  # its beginning may lie below the start of the log
            cut_inside = any(cut.kind == "truncate" for cut in self.cuts)
            assert not unit.whole or len(there) in (0, len(unit.names)) or cut_inside, f"half an append: {there}"
            return
        truncations = [cut for cut in self.cuts if cut.kind == "truncate"]
        for name, offset in zip(unit.names, unit.offsets, strict=True):
            found = place.get(name)
            assert found is None or found == offset, f"{name!r} was given offset {offset} and stands at {found}"
            # A batch goes whole, so a truncation also takes the records below it in the same batch.
            reach = [cut for cut in truncations if cut.offset <= unit.offsets[-1]]
            if any(cut.start > unit.end and cut.end < NEVER and cut.offset <= offset for cut in reach):
                assert found is None, f"{name!r} at {offset} was truncated and is back"
            elif offset >= seen.start and all(cut.end < unit.start for cut in reach):
                assert found is not None, f"lost: {name!r}, acknowledged at {offset} (the log ends at {seen.end})"

    def _judge_transactions(self, visible: set[bytes], place: dict[bytes, int], seen: Seen) -> None:
        outside = {name for unit in self.units if unit.transaction is None for name in unit.names}
        first_open = min(
            (place[name] for unit in self.units if self.ends.get(unit.transaction or -1) is None
             and unit.transaction is not None for name in unit.names if name in place), default=NEVER
        )  # fmt: skip
        marker_cut = any(cut.kind == "truncate" for cut in self.cuts)  # its transaction is open again
        for offset, name in seen.records:
            if name in outside and not marker_cut:
                # Nobody sees records after an open transaction yet.
                assert name in visible or offset > first_open or self._undecided(), f"{name!r} is not visible"
        groups: dict[int, list[bytes]] = {}
        for unit in self.units:
            if unit.transaction is not None:
                groups.setdefault(unit.transaction, []).extend(name for name in unit.names if name in place)
        for number, members in groups.items():
            shown = [name for name in members if name in visible]
            how = self.ends.get(number)
            if how == "committed" and not self.cuts:
                assert len(shown) == len(members) or first_open < NEVER, f"committed, but only {shown} of {members}"
            elif how in ("aborted", None):
                assert not shown, f"transaction {number} ({how or 'open'}) shows {shown}"
            elif not self.cuts:
                assert len(shown) in (0, len(members)), f"half a transaction: {shown} of {members}"

    def _undecided(self) -> bool:
        return any(how in ("commit", "abort") for how in self.ends.values())


def _twice(records: Sequence[tuple[int, bytes]]) -> list[bytes]:
    idents = [name for _, name in records]
    return sorted({name for name in idents if idents.count(name) > 1})[:5]


# --- looking ------------------------------------------------------------------------------------------


def name_of(value: bytes | None) -> bytes:
    """A record's name: its value up to the filler."""
    assert value is not None
    return value.partition(b" ")[0]


def look(log: kafkalog.Partition) -> Seen:
    """Everything that the log shows, to both isolations."""
    records = [(record.offset, name_of(record.value)) for record in log.records()]
    committed = [(record.offset, name_of(record.value)) for record in log.records(isolation="read_committed")]
    batches = []
    with log.reader() as reader:
        for chunk in reader:
            batches += [(header.base_offset, header.last_offset, header.is_control) for header in chunk.headers]
    return Seen(log.log_start_offset, log.end_offset, log.high_watermark, records, committed, batches)


def copy_as_killed(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copies what `kill -9` would leave now: all files, no marker of a clean shutdown, a lock without an owner."""
    copy_moving(source, target)
    marker = os.path.join(target, names.CLEAN_SHUTDOWN_FILE)
    if os.path.exists(marker):
        os.unlink(marker)


def copy_moving(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copies all files below `source` except for its locks, while background tasks may run there."""
    for attempt in range(10):
        try:
            shutil.copytree(source, target, ignore=_not_there)
            return
        except shutil.Error:  # a background task renamed a .tmp file meanwhile
            shutil.rmtree(target)
            if attempt == 9:
                raise


def _not_there(folder: str, entries: list[str]) -> list[str]:
    return [name for name in entries if name == names.LOCK_FILE]


def check_verified(path: str | os.PathLike[str]) -> None:
    report = verify(path, deep=True)
    assert report.ok, [str(finding) for finding in report.findings[:3]]


def check_reopened(
    path: str | os.PathLike[str],
    partition: str,
    oracle: Oracle,
    *,
    config: dict[str, str] | None = None,
    files: Files = FAST,
    keep_story: bool = True,
    verified: bool = True,
    **options: Any,
) -> None:
    """Opens, checks, appends one more, checks, closes, verifies.

    `keep_story` off: the oracle forgets the record again."""
    story = oracle if keep_story else copy.deepcopy(oracle)
    with kafkalog.open_log(path, partition, config=config, files=files, **options) as log:
        story.judge(look(log))
        append_one(log, story)
        story.judge(look(log))
    if verified:
        check_verified(path)


def check_killed(path: str | os.PathLike[str], scratch: str, partition: str, oracle: Oracle, **options: Any) -> None:
    """Judge what a kill -9 at this moment would leave, in a copy of the directory."""
    copy_as_killed(path, scratch)
    try:
        check_reopened(scratch, partition, oracle, keep_story=False, **options)
    finally:
        shutil.rmtree(scratch)


def append_one(log: kafkalog.Partition, oracle: Oracle) -> int:
    """Appends one more record, which must get the offset at the log's end."""
    end = log.end_offset
    unit = oracle.attempt(b"900.%d" % len(oracle.units))
    offset = log.append(unit.names[0])
    oracle.acknowledge(unit, offset)
    assert offset == end, f"the log ended at {end}, the next record got {offset}"
    return offset


def no_descriptors_below(path: str | os.PathLike[str]) -> list[str]:
    """Files below `path` that this process has open (Linux; elsewhere nothing is known)."""
    root = os.path.realpath(path) + os.sep
    found = []
    for fd in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith(root):
            found.append(target)
    return found


Check = Callable[[], None]


def in_a_thread(check: Check, *, seconds: float = 10.0) -> None:
    """Run a check in another thread: it must not wait forever for a lock that nobody releases."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            check()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True, name="check")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise AssertionError(f"hangs: {_where(thread)}")
    if failed:
        raise failed[0]


def _where(thread: threading.Thread) -> str:
    import sys
    import traceback

    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)[-6:]) if frame is not None else "?"
