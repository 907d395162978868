"""Properties of the machine that results depend on: a sync's time, memory's speed, whether a second core is free.

`tell(place)` measures for a second or two and prints a line, so that ratios of different machines are not compared
directly. Recovery by two threads needs a second core, starts and shutdowns depend on the time of a sync, scans on
memory.

`described(place)` and `limits(place)` return what a kept run tells about the machine (`bench.kept`): its hardware and
software, and the speed of what the benchmarks stand on.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kafkalog._native.codec import crc32c

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


# --- limits ------------------------------------------------------------------------------------------------

WINDOWS, WINDOW_S = 5, 0.1
CACHED_BYTES = 256 << 10  # fits in a core's own cache
MEMORY_BYTES = 256 << 20  # fits in no cache
CALL_BYTES = 1 << 20


def limits(place: Path | None = None) -> dict[str, dict[str, Any]]:
    """Measures what bounds the benchmarks on this machine, in one thread: some windows for each limit.

    The file is in `place`. Reads find it in the page cache, and writes leave it there; only fdatasync reaches the disk.
    """
    found = {
        "memory copy": ("B/s", _copies()),
        "CRC from cache": ("B/s", _checksums(CACHED_BYTES)),
        "CRC from memory": ("B/s", _checksums(MEMORY_BYTES)),
    }
    with tempfile.TemporaryFile(dir=place or tempfile.gettempdir()) as file:
        found["pwrite"] = ("B/s", _writes(file.fileno()))
        found["pread"] = ("B/s", _reads(file.fileno()))
        found["fdatasync"] = ("/s", _syncs(file.fileno()))
    return {
        name: {"unit": unit, "values": [float(f"{each:.6g}") for each in rates]}
        for name, (unit, rates) in found.items()
    }


def _windows(do: Callable[[], object], units: int) -> list[float]:
    """Returns the units per second of each window; the first call is not counted."""
    do()
    rates = []
    for _ in range(WINDOWS):
        begin, count = time.perf_counter(), 0
        while not count or time.perf_counter() - begin < WINDOW_S:
            do()
            count += 1
        rates.append(count * units / (time.perf_counter() - begin))
    return rates


def _copies() -> list[float]:
    source = np.ones(MEMORY_BYTES, dtype=np.uint8)
    target = np.empty_like(source)
    return _windows(lambda: np.copyto(target, source), MEMORY_BYTES)


def _checksums(size: int) -> list[float]:
    data = memoryview(np.ones(size, dtype=np.uint8))
    return _windows(lambda: crc32c.crc32c(data), size)


def _writes(descriptor: int) -> list[float]:
    data = bytes(CALL_BYTES)

    def do() -> None:
        for at in range(0, MEMORY_BYTES, CALL_BYTES):
            os.pwrite(descriptor, data, at)

    return _windows(do, MEMORY_BYTES)


def _reads(descriptor: int) -> list[float]:
    buffer = bytearray(CALL_BYTES)

    def do() -> None:
        for at in range(0, MEMORY_BYTES, CALL_BYTES):
            os.preadv(descriptor, [buffer], at)

    return _windows(do, MEMORY_BYTES)


def _syncs(descriptor: int) -> list[float]:
    """Returns syncs per second, each after a write of 4 KiB at the end, which changes the file's size as an append
    does."""
    os.lseek(descriptor, 0, os.SEEK_END)
    os.fdatasync(descriptor)

    def do() -> None:
        os.write(descriptor, bytes(4096))
        os.fdatasync(descriptor)

    return _windows(do, 1)


# --- the description ---------------------------------------------------------------------------------------


def described(place: Path | None = None) -> dict[str, Any]:
    """Returns what a kept run tells about the machine; a fact that the system does not report is None."""
    cpu = _line(Path("/proc/cpuinfo"), "model name")
    memory = _line(Path("/proc/meminfo"), "MemTotal")
    return {
        "cpu": cpu or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": int(memory.split()[0]) * 1024 if memory else None,
        "system": platform.system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "jdk": _jdk(),
        "filesystem": _filesystem(place or Path(tempfile.gettempdir())),
        "mitigations": _mitigations(),
        "load": round(os.getloadavg()[0], 1),
    }


def _line(path: Path, name: str) -> str | None:
    """Returns the value of a line `name: value` of a file in /proc."""
    try:
        text = path.read_text()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(name)), None)


def _jdk() -> str | None:
    try:
        done = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    found = re.search(r'version "([^"]+)"', done.stderr)
    return found[1] if found else None


def _filesystem(place: Path) -> str | None:
    """Returns the kind of the file system that has `place`."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return None
    there = place.resolve()
    holding = [(len(words[1]), words[2]) for words in mounts if there.is_relative_to(words[1])]
    return max(holding)[1] if holding else None


def _mitigations() -> dict[str, str]:
    """Returns the kernel's mitigations that are active; they make calls into the kernel and the interpreter slower."""
    folder = Path("/sys/devices/system/cpu/vulnerabilities")
    if not folder.is_dir():
        return {}
    found = {path.name: path.read_text().strip() for path in sorted(folder.iterdir())}
    return {name: text.removeprefix("Mitigation: ") for name, text in found.items() if text.startswith("Mitigation")}
