"""An interrupt at every line: an action is run under a trace function that raises where a Ctrl-C could arrive.

A signal is looked at between two bytecodes, but never between a `with` and the lock that it takes or gives back in C:
lines that only lead there (a `with` line met for the second time) are not counted.  Nor is a `try:` line, which is no
instruction: CPython's exception tables leave it out, so that raised there, an exception passes the `with` around it.
"""

from __future__ import annotations

import dis
import gc
import os
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

import kafkalog

PACKAGE = os.path.dirname(os.path.abspath(kafkalog.__file__)) + os.sep
Action = Callable[[], object]
Place = tuple[str, int]  # file in the package, line


class Hit(NamedTuple):
    """Where an interrupt was raised, and whether an exception was being handled there.

    What the frames hold is then lost for good: CPython 3.11 does not let go of them.
    """

    place: Place
    handling: bool


class Interrupted(KeyboardInterrupt):
    """Ours: no other one is expected."""


@cache
def _leaves_a_block(code: CodeType) -> frozenset[int]:
    """Offsets of instructions that lead straight into a `with` block's end, or do nothing."""
    found = list(dis.get_instructions(code))
    offsets = set()
    for index, first in enumerate(found):
        at = index
        while found[at].opname in ("SWAP", "NOP", "COPY") and at + 1 < len(found):
            at += 1
        loads = found[at : at + 3]
        ends = len(loads) == 3 and all(one.opname.startswith("LOAD_CONST") and one.argval is None for one in loads)
        fails = any(one.opname == "WITH_EXCEPT_START" for one in found[at : at + 2])
        if (ends and found[at + 3].opname in ("PRECALL", "CALL")) or fails or first.opname == "NOP":
            offsets.add(first.offset)
    return frozenset(offsets)


def _run(action: Action, at_line: Callable[[Place], None]) -> object:
    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and frame.f_lasti not in _leaves_a_block(frame.f_code):
            at_line((frame.f_code.co_filename[len(PACKAGE) :], frame.f_lineno))
        return local

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(PACKAGE) else None

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()  # the finalizers of what an earlier run left are no lines of this action
    sys.settrace(enter)
    try:
        return action()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()


def lines_of(action: Action) -> list[Place]:
    """The lines of the package that the action runs through in this thread, in order."""
    seen: list[Place] = []
    _run(action, seen.append)
    return seen


def chosen(lines: list[Place], *, every: bool, inside: tuple[str, ...] = ("",)) -> list[int]:
    """Which of the lines to interrupt: all, or the first time that each is met in the folders `inside`."""
    if every:
        return list(range(len(lines)))
    first: dict[Place, int] = {}
    for index, place in enumerate(lines):
        if place[0].startswith(inside):
            first.setdefault(place, index)
    return sorted(first.values())


def interrupted(action: Action, index: int) -> Hit | None:
    """Run the action with an interrupt at its line number `index`; where that was, or None if it ended before."""
    count = -1
    where: list[Hit] = []
    outer = sys.exc_info()[1]

    def at_line(place: Place) -> None:
        nonlocal count
        count += 1
        if count == index:
            where.append(Hit(place, sys.exc_info()[1] is not outer))
            raise Interrupted(f"at {place[0]}:{place[1]}")

    try:
        _run(action, at_line)
    except Interrupted:
        pass
    return where[0] if where else None
