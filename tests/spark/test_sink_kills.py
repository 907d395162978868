"""Streaming writes while tasks, executors, committers, the driver are killed by kill -9: nothing lost, nothing doubled.

The driver (`sink_driver`) runs in a separate process; the test kills processes of its session.
Twenty kills of each kind, with KAFKALOG_LONG=1 alone; on a cluster of processes for tasks and executors.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kafkalog
from tests.sampling import LONG
from tests.spark.sink_driver import ROWS, TOPIC

pytest.importorskip("pyspark")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not LONG, reason="KAFKALOG_LONG=1 has it"),
]

KILLS = 20
ROOT = Path(__file__).parents[2]
START_S = 900  # a machine may have neighbours
CLUSTER = "local-cluster[2,1,512]"
LOCAL = "local[2,50]"


class Driver:
    """One run of the driver."""

    def __init__(self, place: Path, master: str) -> None:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        self._place = place
        self.log = (place / "driver.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.sink_driver", master, str(place)],
            cwd=place,
            env=environment,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )

    def check_alive(self) -> None:
        if self.process.poll() is not None:
            raise AssertionError((self._place / "driver.log").read_text()[-4000:])

    def family(self) -> dict[int, str]:
        """Every process of its session, by id, with its command line: also what lost its parent and works on."""
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid and fields[0] != "Z":
                    found[int(name)] = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def end(self) -> None:
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()


def tasks(driver: Driver) -> list[int]:
    """Python workers of tasks, and the daemons that fork them."""
    return [pid for pid, command in driver.family().items() if "pyspark.daemon pyspark.worker" in command]


def committers(driver: Driver) -> list[int]:
    """The planner and the committer processes of the driver; without them the query ends."""
    return [pid for pid, command in driver.family().items() if "pyspark.daemon pyspark.sql" in command]


def executors(driver: Driver) -> list[int]:
    return [pid for pid, command in driver.family().items() if "CoarseGrainedExecutorBackend" in command]


def committed_batch(place: Path) -> int:
    """The last micro-batch that Spark knows is done."""
    with contextlib.suppress(OSError):
        return max((int(name) for name in os.listdir(place / "checkpoint" / "commits") if name.isdigit()), default=-1)
    return -1


def await_batch(driver: Driver, place: Path, number: int) -> None:
    until = time.monotonic() + START_S
    while committed_batch(place) < number:
        driver.check_alive()
        assert time.monotonic() < until, f"no micro-batch {number}: {(place / 'driver.log').read_text()[-4000:]}"
        time.sleep(0.02)


def stop(driver: Driver, place: Path) -> None:
    """In order, once it has done two micro-batches more."""
    await_batch(driver, place, committed_batch(place) + 2)
    (place / "stop").touch()
    try:
        assert driver.process.wait(START_S) == 0, (place / "driver.log").read_text()[-4000:]
    finally:
        driver.end()
        (place / "stop").unlink()


def check(place: Path) -> None:
    """Every number of each micro-batch that Spark knows of, once; of one more, perhaps unknown to it, all or none."""
    data = place / "data"
    with kafkalog.open(data, read_only=True) as store:
        with store.reader(topics=[TOPIC], isolation="read_committed") as reader:
            found = sorted(int(record.value) for record in reader)
        [cursor] = store.cursors()
        assert cursor.name.startswith("spark-")
    count, rest = divmod(len(found), ROWS)
    assert rest == 0
    assert found == list(range(len(found)))
    assert count - 1 in (committed_batch(place), committed_batch(place) + 1)


@contextlib.contextmanager
def driven(place: Path, master: str) -> Iterator[Driver]:
    driver = Driver(place, master)
    try:
        await_batch(driver, place, committed_batch(place) + 1)
        yield driver
    finally:
        driver.end()


def kill_one(driver: Driver, victims: Callable[[Driver], list[int]], random_: random.Random) -> bool:
    found = victims(driver)
    if found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(random_.choice(found), signal.SIGKILL)
    return bool(found)


@pytest.mark.parametrize(
    ("victims", "master"),
    [(tasks, CLUSTER), (executors, CLUSTER), (tasks, LOCAL), (committers, LOCAL)],
)
def test_killed_while_the_driver_goes_on(tmp_path: Path, victims: Callable[[Driver], list[int]], master: str) -> None:
    random_ = random.Random(f"{victims.__name__} {master}")
    kills = 0
    while kills < KILLS:  # a query that ended is started again, as a job would be
        with driven(tmp_path, master) as driver:
            while kills < KILLS:
                time.sleep(random_.uniform(0, 1.5))
                if driver.process.poll() is not None:
                    break
                kills += kill_one(driver, victims, random_)
            else:
                with contextlib.suppress(AssertionError):
                    stop(driver, tmp_path)
    with driven(tmp_path, LOCAL) as driver:
        stop(driver, tmp_path)
    check(tmp_path)


def test_killed_driver(tmp_path: Path) -> None:
    random_ = random.Random("driver")
    for turn in range(KILLS):
        driver = Driver(tmp_path, LOCAL)
        try:
            await_batch(driver, tmp_path, committed_batch(tmp_path) + random_.randint(1, 3))
            time.sleep(random_.uniform(0, 1.0))
            family = driver.family()
            alone = [pid for pid, command in family.items() if "daemon" not in command]  # workers live a while longer
            for pid in alone if turn % 2 else family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            driver.process.wait()
            check(tmp_path)
        except BaseException:
            driver.end()
            raise
        driver.log.close()
    with driven(tmp_path, LOCAL) as driver:
        stop(driver, tmp_path)
    check(tmp_path)
