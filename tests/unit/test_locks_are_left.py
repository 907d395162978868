"""A lock that a `with` block holds is released wherever a signal comes.

If the body of a loop ends in an `if`, CPython 3.13 leaves the jump back out of the exception table, and checks for
signals there.  Inside a `with` block such a loop could keep the lock forever.  It belongs in a function that the block
calls.
"""

from __future__ import annotations

import dis
import itertools
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

import kafkalog

PACKAGE = Path(os.path.dirname(os.path.abspath(kafkalog.__file__)))
LOCK = re.compile(
    r"\bwith\b.*(lock|_LOCK|guard|creation|_writing\[held\.path\]|closing|ending_transactions|_calling|_turn|_FINISHING|_refreshing)"
    r"(?![\w(])"
)


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes(each)


def kept_locks(source: str, name: str = "source") -> list[str]:
    """The `with` blocks over a lock that have a place where a signal passes their exit."""
    lines = source.splitlines()
    found = set()
    for code in codes(compile(source, name, "exec")):
        table = list(dis._parse_exception_table(code))  # type: ignore[attr-defined]
        line = 0
        line_at: dict[int, int] = {}
        listed = list(dis.get_instructions(code))
        starts = {offset: number for offset, _, number in code.co_lines() if number is not None}
        for it in listed:
            line = starts.get(it.offset, line)
            line_at[it.offset] = line
        exits = {it.offset for it, after in itertools.pairwise(listed) if after.opname == "WITH_EXCEPT_START"}
        for entry in table:
            if entry.target not in exits or not LOCK.search(lines[line_at[entry.target] - 1]):
                continue
            same = [each for each in table if each.target == entry.target]
            low, high = min(each.start for each in same), max(each.end for each in same)
            for it in listed:
                inside = low <= it.offset < high and it.opname == "JUMP_BACKWARD"
                if inside and not any(each.start <= it.offset < each.end for each in table):
                    found.add(f"{name}:{line_at[entry.target]} {code.co_qualname}")
    return sorted(found)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_jump_passes_the_exit_of_a_lock(path: Path) -> None:
    assert not kept_locks(path.read_text(), str(path.relative_to(PACKAGE)))


LOOP = """
def turn(self):
    with self.lock:
        for each in self:
            if each:
                each()
"""


@pytest.mark.skipif(sys.version_info[:2] != (3, 13), reason="CPython 3.13 is known to leave such a loop out")
def test_the_look_finds_what_it_looks_for() -> None:
    assert kept_locks(LOOP) == ["source:3 turn"]
