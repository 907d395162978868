"""Interrupts at random moments, by real signals and by exceptions raised into threads (see `tests.live.storm`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.crew import SECONDS
from tests.sampling import FIRST, LONG

SEEDS = range(FIRST, FIRST + (8 if LONG else 2))
STORM_SECONDS = SECONDS * 4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["signals", "threads"])
def test_a_log_survives(kind: str, seed: int, base: Path, count: Callable[[str, int], None]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.live.storm", kind, base / "storm", str(seed),
         str(STORM_SECONDS)],
        capture_output=True, text=True, timeout=STORM_SECONDS + 180,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    assert done.returncode == 0, f"ended with {done.returncode}\n{done.stderr[-6000:]}"
    for what, number in json.loads(done.stdout.splitlines()[-1]).items():
        count(what, number)
