"""Jobs whose driver or executors are killed with SIGKILL in the middle: after another run, every record exists once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.errors import LogDirLockedException
from kafkalog.toolbox.verify import verify
from tests.sampling import LONG
from tests.spark.kit import START_MS

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]
RECORDS = 20_000
PARTITIONS = ("t-0", "t-1", "t-2")
SEGMENTS = {"internal.segment.bytes": "300000"}
COMPACT = {"cleanup.policy": "compact", **SEGMENTS}

JOB = """
import sys
from pyspark.sql import SparkSession
from kafkalog.spark import jobs
master, speculates, job, *paths = sys.argv[1:]
builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
for key in ("driver.host", "driver.bindAddress"):
    builder = builder.config(f"spark.{key}", "127.0.0.1")
if speculates == "True":
    for key, value in (("", "true"), (".interval", "10ms"), (".multiplier", "1.0"), (".quantile", "0.01"),
                       (".minTaskRuntime", "10ms"), (".task.duration.threshold", "20ms")):
        builder = builder.config("spark.speculation" + key, value)
spark = builder.config("spark.executor.memory", "512m").config("spark.task.maxFailures", "20").getOrCreate()
calls = {
    "export": lambda: jobs.export(spark, *paths, range_bytes=200_000),
    "import": lambda: jobs.import_(spark, *paths),
    "compact": lambda: jobs.compact(spark, *paths, ["t"], act=True, config={"cleanup.policy": "compact"}, rolls=True),
}
rows = calls[job]().collect()
print("ERRORS", [row.error for row in rows if row.error])
spark.stop()
"""


def start(master: str, job: str, *paths: Path, speculates: bool = False) -> subprocess.Popen[str]:
    import pyspark

    env = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
    }
    line = [sys.executable, "-c", JOB, master, str(speculates), job, *map(str, paths)]
    return subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env, start_new_session=True
    )


def of_session(leader: int, text: bytes) -> Iterator[int]:
    """Processes that a job started, whose command line contains a text."""
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.getsid(int(name)) == leader and text in Path(f"/proc/{name}/cmdline").read_bytes():
                yield int(name)
        except OSError:
            continue


def listing(folder: Path) -> list[str]:
    """Logs with their bytes, compacted logs, and Parquet files."""
    found = []
    for path in folder.rglob("0*.log*" if folder.name != "lake" else "*.parquet"):
        try:
            if path.stat().st_size:
                found.append(path.name)
        except OSError:
            continue
    return sorted(found)


def wait_for_change(work: subprocess.Popen[str], folder: Path, before: list[str]) -> None:
    while work.poll() is None and listing(folder) == before:
        time.sleep(0.005)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kills") / "logs"
    seed = random.Random(5)
    for partition in PARTITIONS:
        with kafkalog.open_log(root, partition, config=SEGMENTS) as log:
            for first in range(0, RECORDS, 500):
                log.append_many(
                    [
                        (b"%d" % number + seed.randbytes(60), b"key-%d" % seed.randrange(900), [], START_MS + number)
                        for number in range(first, first + 500)
                    ]
                )
    return root


def records(root: Path, partition: str) -> list[Any]:
    with kafkalog.open_log(root, partition, read_only=True) as log:
        return [(it.offset, it.key, it.value, it.timestamp) for it in log]


def lasts(found: list[Any]) -> dict[bytes, Any]:
    return {record[1]: record for record in found}


def again(work: Any) -> list[Any]:
    """A worker of a killed driver needs a moment to notice its end."""
    for _ in range(600):
        try:
            rows: list[Any] = work().collect()
            return rows
        except LogDirLockedException:
            time.sleep(0.1)
    raise AssertionError("still locked")


def check(job: str, logs: Path, paths: list[Path], spark: Any) -> None:
    """Checks the result of a job that ended: every record exists once."""
    if job == "export":
        found = spark.read.parquet(str(paths[1])).select("partition", "offset", "value").collect()
        by_partition = {f"t-{number}": {} for number in range(3)}  # type: dict[str, dict[int, bytes]]
        for row in found:
            by_partition[f"t-{row.partition}"][row.offset] = bytes(row.value)
        assert len(found) == RECORDS * len(PARTITIONS)
        for partition, values in by_partition.items():
            assert values == {record[0]: record[2] for record in records(logs, partition)}
        assert not [*paths[1].rglob("*.tmp")]
        return
    for partition in PARTITIONS:
        whole, here = records(logs, partition), records(paths[-1], partition)
        if job == "import":
            assert here == whole
        else:
            assert lasts(here) == lasts(whole)
            assert len(here) == len(lasts(whole))
    assert verify(paths[-1], deep=True).ok


def prepared(job: str, logs: Path, tmp_path: Path, spark: Any) -> list[Path]:
    """The paths that a job reads and writes; the one that changes is the last."""
    from kafkalog.spark import jobs

    if job == "export":
        return [logs, tmp_path / "lake"]
    if job == "import":
        jobs.export(spark, logs, tmp_path / "lake")
        return [tmp_path / "lake", tmp_path / "back"]
    subprocess.run(["cp", "-a", str(logs), str(tmp_path / "logs")], check=True)
    return [tmp_path / "logs"]


@pytest.mark.parametrize("job", ["export", "import", "compact"])
def test_a_driver_that_is_killed(spark: Any, logs: Path, tmp_path: Path, job: str) -> None:
    from kafkalog.spark import jobs

    paths, seed = prepared(job, logs, tmp_path, spark), random.Random(3)
    kills = 0
    for _ in range(6 if LONG else 1):
        before = listing(paths[-1])
        with start("local[2]", job, *paths) as work:
            wait_for_change(work, paths[-1], before)
            time.sleep(seed.random() / 2 if LONG else 0)
            kills += work.poll() is None
            os.killpg(work.pid, signal.SIGKILL)
    print(f"{job}: {kills} drivers killed at work")
    calls = {
        "export": lambda: jobs.export(spark, *paths),
        "import": lambda: jobs.import_(spark, *paths, resume=True),
        "compact": lambda: jobs.compact(spark, *paths, ["t"], act=True, config=COMPACT, rolls=True),
    }
    if job == "compact":  # as the next start of a broker or a store does
        assert {row.error for row in again(lambda: jobs.recover(spark, *paths, act=True))} == {None}
    assert {row.error for row in again(calls[job])} <= {None}
    check(job, logs, paths, spark)


@pytest.mark.skipif(not LONG, reason="executors of their own: KAFKALOG_LONG=1")
@pytest.mark.parametrize("victim", [b"CoarseGrainedExecutorBackend", b"pyspark.daemon"])
@pytest.mark.parametrize("job", ["export", "import", "compact"])
def test_executors_that_are_killed(spark: Any, logs: Path, tmp_path: Path, job: str, victim: bytes) -> None:
    """The job itself continues: a retry by Spark finds the leftovers of an earlier attempt, and no second attempt
    answers."""
    paths, seed, kills = prepared(job, logs, tmp_path, spark), random.Random(4), 0
    before = listing(paths[-1])
    with start("local-cluster[2,1,1024]", job, *paths) as work:
        wait_for_change(work, paths[-1], before)
        for _ in range(3):
            for pid in [*of_session(work.pid, victim)][:1] if work.poll() is None else []:
                os.kill(pid, signal.SIGKILL)
                kills += 1
            time.sleep(seed.random())
        out, _ = work.communicate(timeout=500)
    print(f"{job}: {kills} kills of {victim.decode()}")
    assert [line for line in out.splitlines() if line.startswith("ERRORS")] == ["ERRORS []"]
    check(job, logs, paths, spark)


@pytest.mark.skipif(not LONG, reason="executors of their own: KAFKALOG_LONG=1")
@pytest.mark.parametrize("job", ["export", "import", "compact"])
def test_attempts_beside_each_other(spark: Any, logs: Path, tmp_path: Path, job: str) -> None:
    """Spark begins each task twice, and takes the answer that comes first."""
    paths = prepared(job, logs, tmp_path, spark)
    with start("local-cluster[2,2,1024]", job, *paths, speculates=True) as work:
        out, _ = work.communicate(timeout=500)
    assert [line for line in out.splitlines() if line.startswith("ERRORS")] == ["ERRORS []"]
    check(job, logs, paths, spark)
