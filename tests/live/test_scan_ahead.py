"""The thread that reads ahead, in a process that forks or ends in the middle."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kafkalog._native.state.ahead import ReadAhead, busy_threads
from kafkalog.engine.segment.scan import LogScan
from tests.unit.test_scan_ahead import (
    COUNT,
    DATA,
    LEAST,
    SLICE,
    made,
    offsets_of,
    opened,
    path,
)

__all__ = ["made", "path"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_in_the_middle(path: str, made: list[ReadAhead]) -> None:
    with opened(path) as file:
        pieces = iter(LogScan(file, 0, len(DATA)))
        offsets = [offset for _ in range(5) for offset in next(pieces).table["base_offset"].tolist()]
        assert made
        child = os.fork()
        if child == 0:
            code = 1
            try:
                here = offsets + offsets_of(pieces)
                del pieces
                made.clear()
                again = offsets_of(LogScan(file, 0, len(DATA)))  # with a thread of the child's own
                code = 0 if here == again == list(range(COUNT)) and made and not busy_threads() else 2
            finally:
                os._exit(code)
        assert offsets + offsets_of(pieces) == list(range(COUNT))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_interpreter_that_ends_in_the_middle(path: str) -> None:
    program = (
        "import sys\n"
        "from kafkalog.engine.files import OS_FILES\n"
        "from kafkalog.engine.segment import scan\n"
        "from kafkalog._native.state.ahead import busy_threads\n"
        f"scan.SCAN_SLICE_BYTES, scan.AHEAD_LEAST_BYTES, scan.processors = {SLICE}, {LEAST}, lambda: 8\n"
        "file = OS_FILES.open(sys.argv[1])\n"
        "pieces = iter(scan.LogScan(file, 0, file.size()))\n"
        "kept = [next(pieces) for _ in range(5)]\n"
        "circle = [pieces]\n"
        "circle.append(circle)\n"
        "print(busy_threads())\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
