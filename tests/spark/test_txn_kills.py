"""txnAppId and txnVersion while drivers are killed by kill -9, in batches and foreachBatch: nothing lost, or twice.

An ordinary run has one kill, of a foreachBatch with which a batch job continues: a version that only one topic has is
completed.  With KAFKALOG_LONG=1 twenty kills of each.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.format.names import STAGED_FILE_PREFIX
from tests.sampling import LONG
from tests.spark.txn_driver import APP_ID, ROWS, TOPICS

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
KILLS = 20 if LONG else 1
START_S = 600  # a machine may have neighbours


class Driver:
    """One run of `txn_driver`."""

    def __init__(self, kind: str, place: Path) -> None:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": _path()}
        self.place = place
        self.log = (place / "driver.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.txn_driver", kind, str(place)],
            cwd=place, env=environment, stdout=self.log, stderr=self.log, start_new_session=True,
        )  # fmt: skip

    def await_version(self, version: int) -> None:
        until = time.monotonic() + START_S
        while not (self.place / f"done-{version}").exists():
            assert self.process.poll() is None, (self.place / "driver.log").read_text()[-4000:]
            assert time.monotonic() < until, f"no version {version}: {(self.place / 'driver.log').read_text()[-4000:]}"
            time.sleep(0.01)

    def await_staged(self) -> None:
        """Waits until a task has begun a new file: the commit follows."""
        before, until = self._staged(), time.monotonic() + START_S
        while self._staged() <= before:
            assert self.process.poll() is None, (self.place / "driver.log").read_text()[-4000:]
            assert time.monotonic() < until, f"nothing is staged: {(self.place / 'driver.log').read_text()[-4000:]}"
            time.sleep(0.002)

    def _staged(self) -> set[str]:
        with contextlib.suppress(OSError):
            return {name for name in os.listdir(self.place / "data") if name.startswith(STAGED_FILE_PREFIX)}
        return set()

    def kill(self) -> None:
        """All of its session: the driver's Python, its JVM, workers, the committer."""
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid:
                    os.kill(int(name), signal.SIGKILL)
        self.process.wait()
        self.log.close()


def _path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def done(place: Path) -> int:
    """The last version that a driver reported as written."""
    return max((int(each.name[5:]) for each in place.glob("done-*")), default=-1)


def check(place: Path) -> None:
    """Every finished version exists once; one more may exist, whole for each topic."""
    with kafkalog.open(place / "data", read_only=True) as store:
        counts = []
        for rest, topic in enumerate(TOPICS):
            with store.reader(topics=[topic], isolation="read_committed") as reader:
                numbers = sorted(int(record.value) for record in reader)
            assert numbers == list(range(rest, 2 * len(numbers), 2))
            count, left = divmod(len(numbers), ROWS // 2)
            assert left == 0
            assert count - 1 in (done(place), done(place) + 1)
            counts.append(count)
        assert f"spark-app-{APP_ID}" in {cursor.name for cursor in store.cursors()}
    assert counts == sorted(counts, reverse=True)


KINDS = ("foreachBatch", "batch")  # version n is the same in both


@pytest.mark.parametrize("first", KINDS if LONG else KINDS[:1])
def test_killed_drivers(tmp_path: Path, first: str) -> None:
    random_ = random.Random(first)
    for turn in range(KILLS):
        driver = Driver(first, tmp_path)
        try:
            if turn % 2 == 0:
                driver.await_version(0)  # the topics exist
                driver.await_staged()
                time.sleep(random_.choice([0, random_.uniform(0, 0.1), random_.uniform(0, 0.5)]))
            else:  # during the work that follows a reported write
                driver.await_version(done(tmp_path) + random_.randint(1, 2))
                time.sleep(random_.uniform(0, 1.0))
        finally:
            driver.kill()
        check(tmp_path)
    [other] = {*KINDS} - {first}
    for kind in (first, other) if LONG else (other,):
        driver = Driver(kind, tmp_path)
        try:
            driver.await_version(done(tmp_path) + 1)
            (tmp_path / "stop").touch()
            assert driver.process.wait(START_S) == 0, (tmp_path / "driver.log").read_text()[-4000:]
        finally:
            driver.kill()
            (tmp_path / "stop").unlink(missing_ok=True)
        check(tmp_path)
