"""Peak memory of operations that read whole segments: recovering, verifying and salvaging one of 1 GiB.

Each runs in a separate process, `python -m bench.memory WORK LOG_DIR`, whose largest resident size counts. This
includes the interpreter and its modules, but not the page cache.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import data, ours
from bench.kept import BYTES, KAFKALOG, LOWER, Results

SEGMENT_BYTES = 1 << 30
AIM_BYTES = 200 << 20
WORKS = ("nothing", "recover", "verify", "verify --deep", "salvage")


def work(name: str, log_dir: Path) -> None:
    if name == "recover":
        ours.unified_log(log_dir / "k16-0", False).close()
    elif name.startswith("verify"):
        from kafkalog.toolbox.verify import verify

        assert verify(log_dir, ["k16-0"], deep="--deep" in name).bytes >= SEGMENT_BYTES
    elif name == "salvage":
        from kafkalog.engine.format.names import TopicPartition
        from kafkalog.toolbox.salvage import salvage

        with tempfile.TemporaryDirectory(prefix="kafkalog-bench-") as place:
            report = salvage(log_dir, Path(place) / "out", {TopicPartition("k16", 0): str(log_dir / "k16-0")})
            assert report.bytes >= SEGMENT_BYTES


def peaks(results: Results) -> None:
    """Runs all operations, and prints a line for each."""
    with tempfile.TemporaryDirectory(prefix="kafkalog-bench-") as place:
        data.write_segment(Path(place), "k16", SEGMENT_BYTES)
        for name in WORKS:
            command = [sys.executable, "-m", "bench.memory", name, place]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            peak = int(done.stdout)
            results.row("memory", f"peak memory of {name}, 1 GiB", BYTES, {KAFKALOG: peak}, better=LOWER)
            verdict = "" if peak < AIM_BYTES else "  ABOVE THE AIM"
            print(f"peak memory, {name} of 1 GiB: {peak / (1 << 20):.0f} MiB (aim < 200 MiB){verdict}")


def peak_bytes() -> int:
    """Returns the largest resident size of this process. On Linux this is not ru_maxrss, which keeps the size of the
    forking parent."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]))
    print(peak_bytes())
