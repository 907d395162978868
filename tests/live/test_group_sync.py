"""A process that forks while a thread of it is in a shared sync."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from kafkalog.errors import IllegalStateException
from tests.unit.test_group_sync import WAIT_S, Gate, gate, opened

__all__ = ["gate"]


def test_a_child_that_is_forked_in_a_sync_is_refused(tmp_path: Path, gate: Gate) -> None:
    log, engine = opened(tmp_path)
    pids: list[int] = []

    def fork() -> None:
        pids.append(os.fork())
        if pids[0] == 0:
            signal.alarm(WAIT_S)

    gate.next.append(fork)
    status = 1
    try:
        offset = log.append(b"leader")
        status = 2
    except IllegalStateException as error:
        status = 0 if "was opened by process" in str(error) else 3
    finally:
        if pids[0] == 0:
            os._exit(status)
    assert os.waitpid(pids[0], 0)[1] == 0
    assert offset == 1
    assert engine.recovery_point == 2
    log.close()
