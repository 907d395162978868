"""Ctrl-C everywhere: an operation runs once to count the places where it may be interrupted, then once for each place.

`Tracer` counts places of two kinds in kafkalog's Python code and raises `Interrupted` at the chosen one:

- "line": before each line;
- "call": where CPython 3.11+ really checks for signals: at a function's start, after each call, at each jump back.

Places that no signal can reach are left out.  CPython does not check between the last step of a `with` block and the
call of `__exit__`, nor at a `try:` (otherwise every lock of every program could stay held).  The handler of a call's
own exception is the one around the call.

A `Case` prepares a directory once.  Each place gets a fresh copy of it in memory, and the operation is interrupted
there.  Then another thread continues.  It checks what the log shows, that the next append gets the right offset, and
the state that a kill -9 at this moment leaves.  It closes the log, opens it again, verifies and checks it once more,
and finds no file left open.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import gc
import inspect
import itertools
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import kafkalog
from kafkalog.engine.files import OS_FILES, ManualClock, ManualScheduler
from kafkalog.transaction import Transaction
from tests.conformance import ways
from tests.live.oracle import (
    FAST,
    Oracle,
    append_one,
    check_killed,
    check_reopened,
    check_verified,
    copy_moving,
    in_a_thread,
    look,
    no_descriptors_below,
)
from tests.sampling import sampled

PACKAGE = os.path.dirname(os.path.abspath(kafkalog.__file__)) + os.sep
PARTITION = "t-0"
NEIGHBOUR = "t-1"
NOW_MS = 1_700_000_000_000
CONFIG = {
    "internal.segment.bytes": "2000",
    "index.interval.bytes": "200",
    "segment.index.bytes": "480",
    "max.message.bytes": "1500",
    "file.delete.delay.ms": "60000",
}
LINES, CALLS = "line", "call"
GENERATOR = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_numbers = itertools.count()  # no path comes twice: leftovers of a failed run must not fail the next one


def sampled_of(places: Sequence[tuple[str, int, str]], ours: tuple[str, ...], limit: int | None) -> list[int]:
    """Numbers of a Tracer's places that lie in files which begin with one of `ours`: all, or some as `sampled`."""
    numbers = [number for number, place in enumerate(places) if place[0].startswith(ours)]
    return [numbers[each] for each in sampled([places[number] for number in numbers], limit)]


class Interrupted(KeyboardInterrupt):
    """Raised by `Tracer`."""


# --- where ---------------------------------------------------------------------------------------------


_unreachable: dict[CodeType, frozenset[int]] = {}
_handlers: dict[CodeType, list[Any]] = {}
_operations: dict[CodeType, dict[int, str]] = {}


def unreachable(code: CodeType) -> frozenset[int]:
    """Offsets of instructions at which a `with` block is left or a `try` entered: no signal is looked for there."""
    found = _unreachable.get(code)
    if found is None:
        listed = [it for it in dis.get_instructions(code) if it.opname not in ("CACHE", "EXTENDED_ARG")]
        places = set()
        for number, it in enumerate(listed):
            ahead = [each.opname for each in listed[number : number + 2]]
            if ahead == ["PUSH_EXC_INFO", "WITH_EXCEPT_START"]:
                places.add(it.offset)
            if it.opname == "NOP" and handler_of(code, it.offset) is None:
                places.add(it.offset)  # `try:`, which the table of exceptions leaves out
            following = listed[number : number + 3]
            if [(each.opname, each.argval) for each in following] == [("LOAD_CONST", None)] * 3:
                places.add(it.offset)
                for before in reversed(listed[:number]):  # instructions that only arrange the stack
                    if before.opname not in ("NOP", "POP_TOP", "SWAP", "PUSH_NULL", "LOAD_CONST"):
                        break
                    if before.opname == "LOAD_CONST" and before.argval is not None:
                        break
                    places.add(before.offset)
        found = _unreachable[code] = frozenset(places)
    return found


def handler_of(code: CodeType, offset: int) -> int | None:
    """Where an exception of the instruction at `offset` goes."""
    table = _handlers.get(code)
    if table is None:
        table = _handlers[code] = list(dis._parse_exception_table(code))  # type: ignore[attr-defined]
    return next((entry.target for entry in table if entry.start <= offset < entry.end), None)


def operation_at(code: CodeType, offset: int) -> str:
    table = _operations.get(code)
    if table is None:
        table = _operations[code] = {it.offset: it.opname for it in dis.get_instructions(code)}
    return table.get(offset, "")


def looks_for_signals(operation: str) -> bool:
    if operation == "JUMP_BACKWARD_NO_INTERRUPT" or operation.startswith("CALL_INTRINSIC"):
        return False
    return operation.startswith(("CALL", "RESUME", "JUMP_BACKWARD"))


class Tracer:
    """A context manager that counts places in the thread that enters it and raises at number `at` (from 0).

    Cyclic garbage is not collected meanwhile: its finalizers do not belong to the operation, and would shift the
    numbers.
    """

    def __init__(self, kind: str, at: int | None = None) -> None:
        self.kind = kind
        self.at = at
        self.places: list[tuple[str, int, str]] = []  # file, line, function
        self.fired = False
        self.while_handling = False  # raised while another exception was being handled: CPython 3.11 leaks the frames

    def __enter__(self) -> Tracer:
        self._handled = sys.exc_info()[1]
        self._collecting = gc.isenabled()
        gc.disable()
        self._before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(self._before)
        if self._collecting:
            gc.enable()

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if self.kind == LINES:
            return self._line
        if not frame.f_code.co_flags & GENERATOR:  # a generator that continues would not see it in its `try` blocks
            self.place(frame)
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return _CallPlaces(self).see

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line" and frame.f_lasti not in unreachable(frame.f_code):
            self.place(frame)
        return self._line

    def place(self, frame: FrameType) -> None:
        code = frame.f_code
        name = f"{code.co_filename[len(PACKAGE) :]}"
        self.places.append((name, frame.f_lineno, code.co_qualname))
        if len(self.places) - 1 == self.at:
            self.fired = True
            self.while_handling = sys.exc_info()[1] is not self._handled
            raise Interrupted(f"{name}:{frame.f_lineno} {code.co_qualname}")


class _CallPlaces:
    """The places of kind "call" in one frame."""

    __slots__ = ("last", "tracer")

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.last = -1

    def see(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            last, self.last = self.last, frame.f_lasti
            code = frame.f_code
            if last >= 0 and looks_for_signals(operation_at(code, last)):
                same = handler_of(code, last) == handler_of(code, frame.f_lasti)
                if same and frame.f_lasti not in unreachable(code):
                    self.tracer.place(frame)
        return self.see


def interrupted(act: Callable[[], object], tracer: Tracer) -> bool:
    """Does it under the tracer, whose interrupt is to come out as it is; whether the frames that it left may hold
    files."""
    try:
        with tracer:
            act()
    except Interrupted:
        return tracer.while_handling
    except BaseException as error:
        if isinstance(error, TypeError) and "'traceback' object is not callable" in str(error):
            return True  # CPython 3.11 leaves a `with` in the wrong place when its trace function raises there
        if tracer.fired:
            raise AssertionError(f"the interrupt came out as {error!r}") from error
        raise
    assert not tracer.fired or tracer.at is None, "the interrupt was swallowed"
    return False


# --- what ----------------------------------------------------------------------------------------------


def at_each_place(
    base: Path,
    kind: str,
    places: Sequence[tuple[str, int, str]],
    once: Callable[[Path, Tracer], object],
    *,
    ours: tuple[str, ...],
    limit: int | None,
    at_least: int,
) -> int:
    """Runs `once` in a folder of its own with an interrupt at some of the places in files of `ours`, of which there are
    more than `at_least`; at how many.  The AssertionError names the places where it failed."""
    found = [number for number, place in enumerate(places) if place[0].startswith(ours)]
    assert len(found) > at_least
    numbers = [found[number] for number in sampled([places[number] for number in found], limit)]
    failures = []
    for number in numbers:
        file, line, function = places[number]
        try:
            once(base / f"run{number}", Tracer(kind, number))
        except BaseException as error:
            failures.append(f"{file}:{line} {function} (#{number}): {type(error).__name__}: {error}"[:600])
    shown = "\n".join(failures[:20])
    assert not failures, f"{len(failures)} of {len(numbers)} places:\n{shown}"
    return len(numbers)


@dataclass
class World:
    """One copy of a prepared directory, and what is open there."""

    path: str
    oracle: Oracle
    config: dict[str, str]
    options: dict[str, Any] = field(default_factory=dict)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_MS))
    log: kafkalog.Partition | None = None
    transaction: Transaction | None = None
    leaks: bool = False  # whether the frames that the interrupt left may hold files
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler = ManualScheduler(self.clock)

    def open(self, **options: Any) -> kafkalog.Partition:
        self.log = kafkalog.open_log(
            self.path, PARTITION, config=self.config, files=FAST, clock=self.clock, scheduler=self.scheduler,
            **{**self.options, **options},
        )  # fmt: skip
        return self.log

    @property
    def opened(self) -> kafkalog.Partition:
        assert self.log is not None
        return self.log

    @property
    def engine(self) -> Any:
        return self.opened.engine

    def idents(self, count: int = 1, filler: int = 60) -> list[bytes]:
        """New names; `append_named` makes the values."""
        return [b"1.%d" % (self.oracle.tick() * 1000 + number) for number in range(count)]

    def append(self, count: int = 1, *, filler: int = 60, whole: bool = True) -> range:
        """append_many as the oracle sees it."""
        idents = self.idents(count)
        unit = self.oracle.attempt(*idents, whole=whole)
        offsets = self.opened.append_many([value_of(ident, filler) for ident in idents])
        self.oracle.acknowledge(unit, offsets)
        return offsets

    def append_in(self, transaction: Transaction, number: int, count: int = 1) -> None:
        idents = self.idents(count)
        unit = self.oracle.attempt(*idents, transaction=number)
        offsets = transaction.append_many([value_of(ident) for ident in idents])
        self.oracle.acknowledge(unit, offsets)


def value_of(ident: bytes, filler: int = 60) -> bytes:
    return ident + b" " + b"." * filler


Step = Callable[[World], object]


@dataclass(frozen=True)
class Case:
    """An operation to be interrupted.

    `prepare` fills the directory (the log is open; left `clean` it is closed at the end, else as after a kill).
    `before` runs on each copy once it is open.  `act` is traced.  `after` runs before the log is checked.
    `opens`: `act` itself opens the log.  `closes`: `act` closes it.
    """

    name: str
    prepare: Step
    act: Step
    before: Step = lambda world: None
    after: Step = lambda world: None
    finish: Step | None = None  # in place of the usual end: judge, append, close, reopen
    config: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    clean: bool = True
    opens: bool = False
    closes: bool = False
    retention: bool = False
    gaps: bool = False
    short: bool = True  # ordinary batches take the short way through an append
    marked: bool = True  # the whole directory is known to be clean at the end

    def __str__(self) -> str:
        return self.name


@dataclass
class Outcome:
    """How a case went: places known, places tried, and what failed where."""

    known: int = 0
    tried: int = 0
    failures: list[str] = field(default_factory=list)


class Runner:
    """Runs cases below `base`, a directory in memory."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def run(self, case: Case, kind: str, limit: int | None) -> Outcome:
        with ways.taking(ways.SHORT if case.short else ways.LONG):
            return self._run(case, kind, limit)

    def _run(self, case: Case, kind: str, limit: int | None) -> Outcome:
        template = self._template(case)
        outcome = Outcome()
        for _ in range(2):  # imports and lazy initialization are not places of the operation
            places = self._once(case, template, Tracer(kind), outcome, label="not interrupted")
            if outcome.failures:
                return outcome
        numbers = sampled(places, limit)
        outcome.known, outcome.tried = len(places), len(numbers)
        gc.collect()
        gc.freeze()
        for number in numbers:
            file, line, function = places[number]
            self._once(case, template, Tracer(kind, number), outcome, label=f"{file}:{line} {function} (#{number})")
        gc.unfreeze()
        shutil.rmtree(template.path)
        return outcome

    def _template(self, case: Case) -> World:
        world = World(
            str(self.base / f"template{next(_numbers)}"), Oracle(case.retention, case.gaps), {**CONFIG, **case.config},
            case.options,
        )  # fmt: skip
        world.open()
        case.prepare(world)
        if case.clean:
            world.opened.close()
        else:
            copy_moving(world.path, world.path + ".left")
            world.opened.close()
            shutil.rmtree(world.path)
            os.rename(world.path + ".left", world.path)
        return world

    def _once(
        self, case: Case, template: World, tracer: Tracer, outcome: Outcome, *, label: str
    ) -> list[tuple[str, int, str]]:
        place = str(self.base / f"run{next(_numbers)}")
        shutil.copytree(template.path, place)
        world = World(
            place, copy.deepcopy(template.oracle), template.config, template.options,
            ManualClock(template.clock.milliseconds()),
        )  # fmt: skip
        if case.retention:
            world.oracle.retention = True
        try:
            self._interrupt(case, world, tracer)
            in_a_thread(lambda: self._go_on(case, world))
        except BaseException as error:
            outcome.failures.append(f"{label}: {_short(error)}")
        finally:
            self._let_go(world)
            shutil.rmtree(place, ignore_errors=True)
        return tracer.places

    def _interrupt(self, case: Case, world: World, tracer: Tracer) -> None:
        if not case.opens:
            world.open()
        case.before(world)
        try:
            with tracer:
                case.act(world)
        except Interrupted:
            world.leaks = tracer.while_handling
            return
        except BaseException as error:
            if isinstance(error, TypeError) and "'traceback' object is not callable" in str(error):
                return  # CPython 3.11 leaves a `with` in the wrong place when its trace function raises there
            if tracer.fired:
                raise AssertionError(f"the interrupt came out as {error!r}") from error
            raise
        assert not tracer.fired or tracer.at is None, "the interrupt was swallowed"

    def _go_on(self, case: Case, world: World) -> None:
        case.after(world)
        if case.finish is not None:
            case.finish(world)
            return
        log = world.log
        if log is None and case.opens:
            log = world.open()
        assert log is not None
        if case.closes:
            log.close()
        else:
            world.oracle.judge(look(log))
            append_one(log, world.oracle)
            world.oracle.judge(look(log))
            world.scheduler.tick()
            assert not world.scheduler.errors, world.scheduler.errors
            check_killed(world.path, world.path + ".killed", PARTITION, world.oracle, config=world.config)
            log.close()
        assert log.closed
        settle(case, world)

    @staticmethod
    def _let_go(world: World) -> None:
        log, world.log, world.transaction = world.log, None, None
        world.extra.clear()
        if log is not None and log.engine is not None and not log.closed:
            try:
                in_a_thread(log.close, seconds=5)
            except BaseException:
                with contextlib.suppress(BaseException):
                    in_a_thread(log.engine.close_quietly, seconds=5)


def settle(case: Case, world: World) -> None:
    """The end of every run: the lock is free, nothing is open, the files are whole, the log opens again."""
    world.scheduler.clear()  # with the files of `.deleted` segments that it was to delete later
    left = no_descriptors_below(world.path)
    if left:
        gc.collect()
        left = no_descriptors_below(world.path)
    assert not left or world.leaks, f"left open: {left}"
    if case.closes and os.path.exists(lock := os.path.join(world.path, ".lock")):
        OS_FILES.lock(lock).release()  # the file of a release that was interrupted: nobody has it
    assert not os.path.exists(os.path.join(world.path, ".lock")), "the lock was left"
    marked = os.path.exists(os.path.join(world.path, ".kafka_cleanshutdown"))
    # A close that was interrupted gives the directory back without it: the next open recovers.
    assert marked or not case.marked or case.closes, "no mark of a clean shutdown"
    check_verified(world.path)
    check_reopened(world.path, PARTITION, world.oracle, config=world.config)


def _short(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".replace("\n", " | ")[:400]
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(PACKAGE)]
    where = f" at {ours[-1].filename[len(PACKAGE) :]}:{ours[-1].lineno}" if ours else ""
    if not where and frames:
        where = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}"
    return text + where
