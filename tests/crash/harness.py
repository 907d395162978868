"""Every state in which a crash can leave the disk, one after the other.

A workload runs once on `RecordingFiles` and marks its promises: `files.mark(APPENDED, item)` before an append starts,
`files.mark(ACKNOWLEDGED, item)` once it returned, `files.mark(FLUSHED, item)` once everything up to the item was
synced.  `crash_states` then goes through the recording and yields, after each step, the states that each kind of crash
leaves.  `check_crashes` writes each state to the real disk, reopens it and asks the oracle:

    flushed <= recovered <= appended, as prefixes       (and acknowledged <= recovered if only the process died)

Kinds of crashes:

- `kill`: the process died; everything that was written exists.
- `torn`: the process died within a write.
- `power`: nothing unsynced exists.
- `shuffled`: any part of the unsynced writes exists.
- `headless`: power was lost within a write.  Its first sector is missing, or at least a batch's base offset, which no
  CRC covers.  The rest of the write exists, and everything that was written before it.

`each_fault` covers failing disks, `run_and_kill` real processes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafkalog.engine.files import OS_FILES
from kafkalog.engine.files.api import Files
from tests.disk_model import SECTOR_BYTES, Disk, Op
from tests.file_doubles import Fault, FaultyFiles, RecordingFiles
from tests.sampling import sampled, share

APPENDED, ACKNOWLEDGED, FLUSHED = "appended", "acknowledged", "flushed"
KINDS = ("kill", "torn", "power", "shuffled", "headless")
HEAD_BYTES = 8  # a base offset: if a sector ends after it, the rest of the batch may be written without it


@dataclass(frozen=True, slots=True)
class CrashState:
    """One state.  `materialise` works only until the iterator advances."""

    kind: str
    op_count: int  # steps that took effect, a torn write not counted
    seed: int  # for `torn` the number of bytes written, for `headless` of bytes not written
    last: Op | None
    names_follow_sync: bool
    _disk: Disk = field(repr=False, compare=False)
    _torn: Op | None = field(default=None, repr=False, compare=False)

    def materialise(self, into: str) -> None:
        """Write the state into a directory that does not exist or is empty."""
        if self.kind == "kill":
            self._disk.materialise_live(into)
        elif self.kind == "torn":
            self._disk.materialise_live(into, torn=self._torn, torn_bytes=self.seed)
        elif self.kind == "headless":
            self._disk.materialise_live(into, torn=self._torn, lost_bytes=self.seed)
        elif self.kind == "power":
            self._disk.materialise_durable(into)
        else:
            self._disk.materialise_shuffled(into, random.Random(f"{self.op_count}:{self.seed}"))

    @property
    def process_only(self) -> bool:
        """Whether all earlier writes exist, as when the machine continued: acknowledged ones must, synced or not."""
        return self.kind in ("kill", "torn", "headless")

    def __str__(self) -> str:
        detail = {
            "torn": f", {self.seed} bytes of it",
            "headless": f" without its first {self.seed} bytes",
            "shuffled": f", seed {self.seed}",
        }.get(self.kind, "")
        return f"{self.kind} after {self.op_count} steps ({self._torn or self.last}{detail})"


def crash_states(
    recording: RecordingFiles,
    *,
    kinds: Iterable[str] = KINDS,
    torn_step: int = SECTOR_BYTES,
    torn_edge: int = 1,
    shuffles: int = 2,
    seed: int = 0,
    names_follow_sync: bool = False,
    dedupe: bool = True,
    start: int = 0,
) -> Iterator[CrashState]:
    """Every state of every kind, in the order of the steps from number `start` on.

    Writes are torn at multiples of `torn_step` bytes and within `torn_edge` bytes of their two ends (`torn_step=1`:
    everywhere).  `dedupe` passes over kill and power states that look like an earlier one of the same kind with the
    same promises; shuffled ones are drawn only where something is unsynced.
    """
    wanted = frozenset(kinds)
    assert wanted <= frozenset(KINDS), wanted
    disk = recording.replay(0, names_follow_sync=names_follow_sync)
    seen: dict[tuple[str, int, bytes], None] = {}
    promise_count = 0
    last: Op | None = None
    for count, op in enumerate([None, *recording.ops]):
        if op is not None:
            if count > start and op.kind == "write" and "torn" in wanted:
                for cut in torn_cuts(len(op.data), torn_step, torn_edge):
                    yield CrashState("torn", count - 1, cut, last, names_follow_sync, disk, op)
            if count > start and op.kind == "write" and "headless" in wanted:
                for cut in head_cuts(op):
                    yield CrashState("headless", count - 1, cut, last, names_follow_sync, disk, op)
            disk.apply(op)
            last = op
            promise_count += op.kind == "mark"
        if count < start:
            continue
        for kind in ("kill", "power"):
            if kind not in wanted:
                continue
            if dedupe:
                shape = disk.fingerprint() if kind == "kill" else disk.durable_fingerprint()
                if (kind, promise_count, shape) in seen:
                    continue
                seen[kind, promise_count, shape] = None
            yield CrashState(kind, count, 0, last, names_follow_sync, disk)
        if "shuffled" in wanted and op is not None and op.kind != "mark" and is_unsynced(disk):
            for number in range(shuffles):
                yield CrashState("shuffled", count, seed * 1_000_003 + number, last, names_follow_sync, disk)


def torn_cuts(size: int, step: int, edge: int) -> list[int]:
    """The numbers of bytes after which a write of `size` bytes is torn."""
    cuts = set(range(step, size, step))
    cuts.update(range(1, min(edge + 1, size)))
    cuts.update(range(max(1, size - edge), size))
    return sorted(cuts)


def head_cuts(op: Op) -> list[int]:
    """How many of a write's first bytes may be missing: up to where a sector of the file ends, or a base offset."""
    cuts = {HEAD_BYTES, SECTOR_BYTES - op.position % SECTOR_BYTES}
    return sorted(cut for cut in cuts if cut < len(op.data))


def is_unsynced(disk: Disk) -> bool:
    """Whether power loss could take anything."""
    return bool(disk.pending_names) or any(node.pending for node in disk.files.values())


@dataclass(slots=True)
class Promises:
    """The promises that a workload had made when it was stopped."""

    appended: list[Any]
    acknowledged: list[Any]
    flushed: Any  # the value of the last FLUSHED mark, None before the first

    @property
    def flushed_items(self) -> list[Any]:
        """The items appended up to and including the flushed item."""
        if self.flushed is None:
            return []
        return self.appended[: self.appended.index(self.flushed) + 1]


def promises(recording: RecordingFiles, op_count: int) -> Promises:
    """The marks among the first `op_count` steps."""
    made = Promises([], [], None)
    for op in recording.ops[:op_count]:
        if op.kind != "mark":
            continue
        if op.path == APPENDED:
            made.appended.append(op.value)
        elif op.path == ACKNOWLEDGED:
            made.acknowledged.append(op.value)
        elif op.path == FLUSHED:
            made.flushed = op.value
    return made


def assert_prefixes(lower: Sequence[Any], recovered: Sequence[Any], upper: Sequence[Any]) -> None:
    """`lower` <= `recovered` <= `upper`, as prefixes: no hole, no invention, nothing lost that must be there."""
    assert list(recovered) == list(upper[: len(recovered)]), (
        f"recovered {_tail(recovered)} is no prefix of the {len(upper)} appended {_tail(upper)}"
    )
    assert len(recovered) >= len(lower), f"lost: recovered {len(recovered)}, of which {len(lower)} were promised"


def _tail(items: Sequence[Any]) -> str:
    return f"[{'..., ' if len(items) > 3 else ''}{', '.join(map(repr, items[-3:]))}] ({len(items)})"


def oracle(recording: RecordingFiles, state: CrashState, recovered: Sequence[Any]) -> None:
    """The rule of this page for what was recovered from a state."""
    made = promises(recording, state.op_count)
    lower = made.acknowledged if state.process_only else made.flushed_items
    assert_prefixes(lower, recovered, made.appended)


@contextlib.contextmanager
def fast_dir() -> Iterator[Path]:
    """A directory in memory where there is one: reopening thousands of states is then a matter of seconds."""
    base = "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else None
    path = tempfile.mkdtemp(prefix="kafkalog-crash-", dir=base)
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


Check = Callable[[str, CrashState], None]


def check_crashes(
    recording: RecordingFiles,
    check: Check,
    *,
    sample: int | None = None,
    keep: Path | None = None,
    at: str | None = None,
    **options: Any,
) -> int:
    """Put every state (or a sample of at most `sample`) on the disk and call `check(directory, state)`.

    The number of states, at least one.  `at`: the directory, for what remembers where it is; otherwise each has its
    own.  A failure names the state and, with `keep`, leaves a fresh copy of its directory there.
    """
    wanted = None
    if sample is not None:
        wanted = set(sampled(range(sum(1 for _ in crash_states(recording, **options))), sample))
    checked = 0
    with fast_dir() as base:
        for number, state in enumerate(crash_states(recording, **options)):
            if wanted is not None and number not in wanted:
                continue
            place = str(base / str(number)) if at is None else at
            state.materialise(place)
            try:
                check(place, state)
            except BaseException as error:
                if keep is not None:
                    shutil.rmtree(keep, ignore_errors=True)
                    state.materialise(str(keep))
                error.add_note(f"crash state {number}: {state}\n" + history(recording, state.op_count))
                raise
            shutil.rmtree(place)
            checked += 1
    assert checked
    return checked


def history(recording: RecordingFiles, op_count: int, *, shown: int = 12) -> str:
    """The last steps before a crash, for a failure's message."""
    steps = recording.ops[:op_count]
    lines = [f"  {number:5d} {op}" for number, op in enumerate(steps, 1)]
    return "\n".join(lines[-shown:])


# --- failing disks ----------------------------------------------------------------------------------


def each_fault(
    workload: Callable[[Files, str], None],
    check: Callable[[str, FaultyFiles, BaseException | None], None],
    *,
    error: int = errno.EIO,
    sticky: bool = True,
    prepare: Callable[[str], None] | None = None,
    inner: Files = OS_FILES,
    step: int = 1,
) -> int:
    """Run a workload again and again, each time with another one of its changes failing; the number of runs.

    `workload(files, directory)`; `check(directory, files, what it raised)`.  The first run has no fault and counts.
    """

    def run(fault: Fault | None) -> int:
        with fast_dir() as base:
            place = str(base / "disk")
            os.mkdir(place)
            if prepare is not None:
                prepare(place)
            files = FaultyFiles(inner, fault)
            raised: BaseException | None = None
            try:
                workload(files, place)
            except Exception as failure:
                if fault is None:
                    raise
                raised = failure
            try:
                check(place, files, raised)
            except BaseException as failure:
                failure.add_note(f"fault: {fault}, refused: {files.failed[:3]}")
                raise
            return files.count

    total = run(None)
    runs = share(range(total), step)
    for number in runs:
        run(Fault(number, error, sticky))
    return len(runs)


# --- killed processes ---------------------------------------------------------------------------------


def run_and_kill(program: str, args: Sequence[str], *, after_lines: int, timeout_s: float = 60.0) -> list[str]:
    """Run a Python program that prints a line for each promise, kill it (-9) once it printed `after_lines` lines, and
    give back all lines that it got out.  A program that ends before is an error, with what it said."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", program, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    lines = []
    try:
        while len(lines) < after_lines:
            line = process.stdout.readline()
            if not line:
                process.wait(timeout_s)
                raise AssertionError(f"the writer ended before it was killed: {process.stderr.read()[-2000:]}")
            lines.append(line.rstrip("\n"))
        process.send_signal(signal.SIGKILL)
        # Lines printed before its death are promises as well; a torn last line is not.
        rest = process.stdout.read()
        lines += rest.split("\n")[:-1]
        process.wait(timeout_s)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()
    return lines
