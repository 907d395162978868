"""Properties of the machine that results depend on: a sync's time, memory's speed, whether a second core is free.

`tell(place)` measures for a second or two and prints a line, so that ratios of different machines are not compared
directly. Recovery by two threads needs a second core, starts and shutdowns depend on the time of a sync, scans on
memory.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SYNCS = 50
COPY_BYTES = 256 << 20
SPIN = "import time\nend = time.monotonic() + 0.5\nn = 0\nwhile time.monotonic() < end: n += 1\nprint(n)"


def sync_us(place: Path) -> float:
    """Returns the median time of an append of 4 KiB and its fdatasync."""
    times = []
    with tempfile.TemporaryFile(dir=place) as file:
        for _ in range(SYNCS):
            begin = time.perf_counter()
            os.write(file.fileno(), bytes(4096))
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def copy_gb_s() -> float:
    """Returns the bytes copied per second by one core in memory, the best of five runs."""
    source = np.ones(COPY_BYTES, dtype=np.uint8)
    target = np.empty_like(source)
    best = 0.0
    for _ in range(5):
        begin = time.perf_counter()
        np.copyto(target, source)
        best = max(best, COPY_BYTES / (time.perf_counter() - begin))
    return best / 1e9


def second_core() -> float:
    """Returns how much more two processes do than one: 2 if a second core is free, 1 if not."""

    def spins(count: int) -> int:
        running = [subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) for _ in range(count)]
        return sum(int(each.communicate()[0]) for each in running)

    return spins(2) / spins(1)


def tell(place: Path) -> None:
    """Prints a line about the machine."""
    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} cores, the second one {second_core():.1f}x of one; load {load:.1f}; "
        f"4 KiB and its sync {sync_us(place):.0f} us; memory copied at {copy_gb_s():.1f} GB/s; "
        f"{platform.machine()}, Python {platform.python_version()}\n",
        flush=True,
    )


def as_installed(folder: Path) -> dict[str, str]:
    """Returns an environment for a Python process that keeps its compiled modules below `folder`, as for an installed
    package: from the second process on, no module is compiled."""
    found = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found
