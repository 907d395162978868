"""kill -9 of real writers at random moments: acknowledged records survive, and real Kafka recovers the same.

A dozen kills by default, hundreds with KAFKALOG_LONG=1.  The writers are forked by `nursery`.  Many of them use one log
directory, and each finds the files of the killed ones.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kafkalog
from tests.crash import harness, nursery
from tests.crash.partition import PARTITION, Reopened
from tests.file_doubles import UnsyncedFiles
from tests.sampling import LONG, draw

KILLS = 400 if LONG else 10
KEPT_FOR_KAFKA = 60 if LONG else 5


class Nursery:
    """Writers of `module`, which is `tests.crash.nursery` or one with a `main` of the same kind."""

    def __init__(self, base: Path, module: str = "tests.crash.nursery") -> None:
        self.base = base
        self.process = subprocess.Popen(
            [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )  # fmt: skip

    def kill_one(self, log_dir: Path, seed: int, *, threads: int, durability: str, promises: int) -> list[str]:
        """Start a writer, kill it once it made about so many promises; all whole lines that it got out."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        fifo = self.base / f"fifo{seed}"
        os.mkfifo(fifo)
        pipe = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        try:
            self.process.stdin.write(f"{log_dir} {fifo} {seed} {threads} {durability}\n")
            self.process.stdin.flush()
            writer = int(self.process.stdout.readline())
            data = b""
            wanted = promises
            while data.count(b"\n") < wanted:
                ready, _, _ = select.select([pipe], [], [], 30)
                assert ready, f"the writer says nothing; {data[-200:]!r}"
                chunk = os.read(pipe, 1 << 16)
                if not chunk:
                    if data:
                        raise AssertionError(f"the writer ended before it was killed; {data[-200:]!r}")
                    continue  # it has not opened the pipe yet
                data += chunk
            os.kill(writer, signal.SIGKILL)
            assert int(self.process.stdout.readline()) == signal.SIGKILL
            while chunk := os.read(pipe, 1 << 16):
                data += chunk
        finally:
            os.close(pipe)
            fifo.unlink()
        return data.decode().split("\n")[:-1]

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@pytest.fixture
def base() -> Iterator[Path]:
    with harness.fast_dir() as path:
        yield path


def note(lines: list[str], acknowledged: dict[int, str]) -> int:
    """Takes down the appends that a writer told of; below which offset it promised that all is on the disk."""
    flushed = 0
    for line in lines:
        kind, offset, *key = line.split()
        if kind == "A":
            acknowledged[int(offset)] = key[0]
        else:
            flushed = max(flushed, int(offset))
    return flushed


def run_kills(base: Path, kills: int, keep: Path | None = None) -> list[Path]:
    """Kill writers over and over; the directories as some of them left them."""
    writers = Nursery(base)
    rng = draw("kills")
    kept: list[Path] = []
    log_dir = base / "log0"
    acknowledged: dict[int, str] = {}
    try:
        for number in range(kills):
            if number % 8 == 0:
                log_dir, acknowledged = base / f"log{number}", {}
            lines = writers.kill_one(
                log_dir, number, threads=1 + 2 * (number % 2), durability="fsync" if number % 5 == 4 else "os",
                promises=rng.choice([1, 3, 20, 60, 150]),
            )  # fmt: skip
            flushed = note(lines, acknowledged)
            if keep is not None and len(kept) < KEPT_FOR_KAFKA:
                kept.append(keep / f"kill{number}")
                shutil.copytree(log_dir, kept[-1])
            copy = base / "copy"
            shutil.copytree(log_dir, copy)
            again = Reopened(str(copy), nursery.CONFIG)
            again.check()
            shutil.rmtree(copy)
            check_kill(log_dir, acknowledged, flushed)
            shutil.rmtree(base / f"log{number - 8}", ignore_errors=True)
    finally:
        writers.close()
    return kept


def check_kill(log_dir: Path, acknowledged: dict[int, str], flushed: int) -> None:
    with kafkalog.open_log(log_dir, PARTITION, config=nursery.CONFIG, read_only=True) as log:
        found = {record.offset: record.key for record in log}
    missing = [offset for offset, key in acknowledged.items() if found.get(offset) != key.encode()]
    assert not missing, missing[:5]
    assert max(found, default=-1) + 1 >= flushed
    counted: dict[bytes, list[int]] = {}
    for _, key in sorted(found.items()):
        assert key is not None
        parts = key.split(b".")
        if parts[-1] != b"t":
            counted.setdefault(b".".join(parts[:2]), []).append(int(parts[2]))
    for writer, numbers in counted.items():
        assert numbers == sorted(numbers), writer
        assert set(numbers) == set(range(numbers[-1] + 1)), writer  # no hole: an append exists whole or not at all


def test_killed_writers(base: Path) -> None:
    run_kills(base, KILLS)
    print(f"{KILLS} writers killed")


@pytest.mark.jvm
def test_kafka_recovers_what_killed_writers_left(base: Path, tmp_path: Path) -> None:
    from tests.conformance import kafka_jars, replay
    from tests.conformance.compare import compare_runs, load_results

    kept = run_kills(base, KEPT_FOR_KAFKA, tmp_path / "kept")
    assert len(kept) == KEPT_FOR_KAFKA
    lists: dict[str, list[str]] = {"kafka": [], "ours": []}
    for place in kept:
        script = tmp_path / f"{place.name}.jsonl"
        script.write_text("".join(json.dumps(line) + "\n" for line in script_of(place)))
        for side, lines in lists.items():
            (tmp_path / side).mkdir(exist_ok=True)
            work = tmp_path / side / place.name
            lines.append(f"{script}\t{work}\t{work}.out\n")
    for side, lines in lists.items():
        (tmp_path / f"{side}.list").write_text("".join(lines))
    kafka_jars.driver().run_many(tmp_path / "kafka.list")
    assert replay.main(["--many", str(tmp_path / "ours.list")]) == 0
    for place in kept:
        want, got = tmp_path / "kafka" / place.name, tmp_path / "ours" / place.name
        results = load_results(Path(f"{want}.out"))
        assert not [line for line in results if "error" in line], results
        different = compare_runs(results, load_results(Path(f"{got}.out")), want, got)
        assert not different, f"{place}: {different}"
    print(f"{len(kept)} killed directories recovered by Kafka and kafkalog alike")


def script_of(place: Path) -> list[dict[str, object]]:
    """Lays the files out, opens them uncleanly, reads everything."""
    files = UnsyncedFiles()
    lines: list[dict[str, object]] = []
    for name in files.list_dir(str(place / str(PARTITION))):
        data = (place / str(PARTITION) / name).read_bytes()
        lines.append({"op": "fs_write", "file": f"logs/{PARTITION}/{name}", "hex": data.hex()})
    lines.append(
        {"op": "open", "dir": "logs", "topic_partition": str(PARTITION), "config": nursery.CONFIG,
         "now_ms": int(time.time() * 1000), "clean_shutdown": False, "producer_id_expiration_ms": (1 << 31) - 1}
    )  # fmt: skip
    lines += [{"op": op} for op in ("segments", "producers", "epoch_cache", "dump", "close")]
    return lines
