"""`kafkalog compact --yes` ended at any moment, by Ctrl-C and by kill -9.

The directory then opens with the last value of each key, and the same command, run again, ends with the same result.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalog.toolbox.verify import verify
from tests.live.test_compact_alive import LARGE, Rows, open_it, rows, state
from tests.sampling import LONG, draw

KILLS = 60 if LONG else 3
PARTITION = "t-0"
SETTINGS = ("-X", "cleanup.policy=compact", "-X", f"internal.segment.bytes={LARGE['internal.segment.bytes']}")


def command(place: Path) -> list[str]:
    small_map = ("--dedupe-buffer-size", "9600")  # several passes
    return [sys.executable, "-m", "kafkalog", "compact", str(place / PARTITION), *SETTINGS, *small_map, "--yes"]


def prepare(place: Path) -> Rows:
    with open_it(place, LARGE) as log:
        for number in range(100):
            log.append_many([(b"%d" % each + b"." * 40, b"k%d" % (each % 700)) for each in range(number, number + 40)])
        return rows(log)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_killed(base: Path, number: signal.Signals, count: Callable[[str, int], None]) -> None:
    before = prepare(base / "log")
    shutil.copytree(base / "log", base / "whole")
    begun = time.monotonic()
    subprocess.run(command(base / "whole"), check=True, capture_output=True)
    took_s = time.monotonic() - begun
    with open_it(base / "whole", LARGE) as log:
        expected = rows(log)
    assert len(expected) < len(before) / 2
    rng = draw(f"kills of compactions {number}")
    for _ in range(KILLS):
        place = base / "copy"
        shutil.copytree(base / "log", place)
        process = subprocess.Popen(command(place), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(took_s * rng.uniform(0.3, 1.0))
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
        assert process.returncode in (0, 130, -number), told
        if number == signal.SIGINT:
            assert b"Traceback" not in told
        with open_it(place, LARGE) as log:
            assert state(rows(log)) == state(before)
            assert log.end_offset == before[-1][0] + 1
        subprocess.run(command(place), check=True, capture_output=True)
        with open_it(place, LARGE) as log:
            assert rows(log) == expected
        left = os.listdir(place / PARTITION)
        assert not [name for name in left if name.endswith((".cleaned", ".swap", ".deleted"))]
        report = verify(place, deep=True)
        assert report.ok, report.findings[:3]
        shutil.rmtree(place)
    count(f"compactions ended by {number.name}", KILLS)
