"""kill -9 in the middle of a streaming read, again and again: a task's process, an executor, the driver.  A writer of
another process's appends all the while.  In the end each record has been written once, with its value.

Twenty kills of each kind with KAFKALOG_LONG=1; otherwise skipped, because each run of a driver takes many seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyspark
import pytest

import kafkalog
from tests.sampling import LONG

pytestmark = [pytest.mark.spark, pytest.mark.skipif(not LONG, reason="kills Spark sixty times: KAFKALOG_LONG=1")]

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("KAFKALOG_KILLS", "20"))
PARTITIONS = 2
APPENDED = 20_000  # to each partition after each kill
WAIT_S = 900
SLOW_START = "Python worker failed to connect back"

T = TypeVar("T")


def value(partition: int, offset: int) -> bytes:
    return b"%d:%09d:" % (partition, offset) + b"x" * 60


class Job:
    """A driver with its executors and their workers: a process group, over several runs."""

    def __init__(self, place: Path, master: str) -> None:
        self.place = place
        self.master = master
        self.lives = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.lives += 1
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": os.path.dirname(pyspark.__file__),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(self.place / "work"),
        }
        with (self.place / f"job-{self.lives}.log").open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("stream_job.py")), str(self.place), self.master],
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.place,
                env=environment,
                start_new_session=True,
            )

    def log_text(self) -> str:
        return (self.place / f"job-{self.lives}.log").read_text(errors="replace")[-4000:]

    def has_ended(self) -> bool:
        """Whether it has ended.

        If it ends too early because a busy machine started its Python in more than Spark's ten seconds, it is started
        again."""
        assert self.process is not None
        ended = self.process.poll()
        if ended:
            assert SLOW_START in self.log_text(), f"the job ended with {ended}: {self.log_text()}"
            self.kill()
            self.start()
        return ended == 0

    def reading(self) -> list[int]:
        """The tasks' processes that have a log file open now."""
        self.has_ended()
        logs = str(self.place / "logs")
        return [
            pid
            for pid in self.members()
            if "pyspark.daemon pyspark.worker" in command_line(pid)
            if any(path.startswith(logs) for path in open_files(pid))
        ]

    def members(self) -> list[int]:
        """Every process whose ancestor the driver is."""
        assert self.process is not None
        children: dict[int, list[int]] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit() and (parent := parent_of(int(entry))):
                children.setdefault(parent, []).append(int(entry))
        found, new = [], [self.process.pid]
        while new:
            found += new
            new = [child for pid in new for child in children.get(pid, [])]
        return found

    def kill(self) -> None:
        """Kills the driver and everything that it started, so that two runs never overlap."""
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert self.process is not None
        self.process.wait()


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def open_files(pid: int) -> list[str]:
    try:
        return [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return []


def executor_of(pid: int) -> int | None:
    """The executor's JVM above a task's process."""
    while pid > 1:
        if "CoarseGrainedExecutorBackend" in command_line(pid):
            return pid
        pid = parent_of(pid)
    return None


def append(place: Path, count: int) -> None:
    for partition in range(PARTITIONS):
        with kafkalog.open_log(place / "logs", f"t-{partition}") as log:
            for first in range(0, count, 1000):
                end = log.end_offset
                log.append_many([value(partition, end + n) for n in range(min(1000, count - first))])


def written(place: Path) -> Iterator[tuple[int, int, bytes]]:
    """The rows of the files that Spark's sink says are its result."""
    import pyarrow.parquet as pq

    kept: dict[str, None] = {}
    for path in sorted((place / "out" / "_spark_metadata").iterdir(), key=lambda path: batch_number(path.name)):
        if not path.name.startswith("."):
            entries = [json.loads(line) for line in path.read_text().splitlines()[1:]]
            listed = dict.fromkeys(entry["path"] for entry in entries)
            kept = listed if path.name.endswith(".compact") else kept | listed
    for each in kept:
        table = pq.read_table(each.removeprefix("file://"))
        yield from zip(*(table.column(name).to_pylist() for name in ("partition", "offset", "value")), strict=True)


def batch_number(name: str) -> int:
    return int(name.strip(".").split(".")[0])


def wait_for(answer: Callable[[], T], job: Job, every_s: float = 0.5) -> T:
    until = time.monotonic() + WAIT_S
    while not (found := answer()):
        assert time.monotonic() < until, f"waited for {answer.__name__}: {job.log_text()}"
        time.sleep(every_s)
    return found


def one_that_reads(job: Job) -> int:
    """A task's process that reads now; there is more to be read, should all be read before one was seen."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        for _ in range(100):
            if found := job.reading():
                return random.choice(found)
            time.sleep(0.03)
        append(job.place, APPENDED)
    raise AssertionError(f"no task reads: {job.log_text()}")


CLUSTER = "local-cluster[2,1,1024]"  # executors are separate processes


@pytest.mark.parametrize("victim", ["task", "driver", "executor"])
def test_killed(victim: str, tmp_path: Path) -> None:
    append(tmp_path, 40_000)
    job = Job(tmp_path, CLUSTER if victim == "executor" else "local[2,100]")
    job.start()
    try:
        for number in range(KILLS):
            one_that_reads(job)
            time.sleep(random.random() * (3 if victim == "driver" else 0.1))  # some batches later
            append(tmp_path, APPENDED)
            pid = one_that_reads(job)
            if victim == "driver":
                job.kill()
                job.start()
            else:
                target = pid if victim == "task" else executor_of(pid)
                with contextlib.suppress(ProcessLookupError):
                    if target is not None:
                        os.kill(target, signal.SIGKILL)
            print(f"kill {number + 1} of a {victim}", flush=True)
        (tmp_path / "stop").touch()
        wait_for(job.has_ended, job)
    finally:
        job.kill()
    check(tmp_path)


def check(place: Path) -> None:
    """Each record of the logs has been written once."""
    seen: list[set[int]] = [set() for _ in range(PARTITIONS)]
    for partition, offset, content in written(place):
        assert offset not in seen[partition], f"twice: {partition} {offset}"
        assert content == value(partition, offset)
        seen[partition].add(offset)
    for partition, offsets in enumerate(seen):
        with kafkalog.open_log(place / "logs", f"t-{partition}", read_only=True) as log:
            assert offsets == set(range(log.end_offset))


def test_the_check_sees_what_is_lost_and_doubled(tmp_path: Path) -> None:
    """Tests the check itself: it finds rows that are missing, doubled or wrong."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    append(tmp_path, 3000)
    rows: list[Any] = [(partition, offset) for partition in range(PARTITIONS) for offset in range(3000)]
    (tmp_path / "out" / "_spark_metadata").mkdir(parents=True)
    (tmp_path / "out" / "_spark_metadata" / "0").write_text("v1\n" + json.dumps({"path": f"file://{tmp_path}/a"}))
    for listed, good in ((rows, True), (rows[1:], False), ([*rows, rows[5]], False)):
        partitions, offsets = zip(*listed, strict=True)
        values = [value(*row) for row in listed]
        pq.write_table(pa.table({"partition": partitions, "offset": offsets, "value": values}), tmp_path / "a")
        if good:
            check(tmp_path)
        else:
            with pytest.raises(AssertionError):
                check(tmp_path)
