"""The system's files and interrupts: no file stays open."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kafkalog.engine.files import OS_FILES
from tests.unit.test_files_os import _open_here, path

__all__ = ["path"]


class _Interrupt(BaseException):
    pass


def _interrupted_at(step: int, work: Callable[[], object]) -> bool:
    """Whether `work` had so many steps of bytecode in engine/files/os_files.py; an interrupt is raised at that one."""
    left = step

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith("os_files.py"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise _Interrupt
        return trace

    sys.settrace(trace)
    try:
        work()
    except _Interrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc to see open files")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # files closed by garbage collection
@pytest.mark.parametrize("what", ["sync_dir", "listing", "read_bytes", "sync_file", "write_atomic"])
def test_an_interrupt_leaves_nothing_open(tmp_path: Path, what: str) -> None:
    """An exception may come between any two Python steps; directories once stayed open forever."""
    root = str(tmp_path)
    file = os.path.join(root, "file")
    OS_FILES.write_file(file, b"abc")
    args = {"sync_dir": (root,), "listing": (root,), "write_atomic": (file, b"abc")}.get(what, (file,))
    steps = 1
    gc.collect()
    gc.freeze()  # makes a garbage collection after each step short
    while _interrupted_at(steps, lambda: getattr(OS_FILES, what)(*args)):
        gc.collect()
        assert _open_here(root) == [], f"step {steps}"
        steps += 1
    gc.unfreeze()
    assert steps > 10
