"""txnAppId and txnVersion on real Spark: once, whatever is done again, and whatever is killed by kill -9."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.format.names import STAGED_FILE_PREFIX
from tests.sampling import LONG
from tests.spark.test_sink import create, staged, values, write
from tests.spark.txn_driver import APP_ID, ROWS, TOPICS

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
KILLS = 20 if LONG else 2
START_S = 600  # a machine may have neighbours


def txn(version: int, app_id: str = "app", **more: str) -> dict[str, Any]:
    return {"topic": "t", "txnAppId": app_id, "txnVersion": version, **more}


def test_a_version_is_written_once(spark: Any, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    create(data, 2, "t")
    rows = spark.range(0, 1000, 1, 4).selectExpr("cast(id as string) value")
    many = spark.range(0, 1_000_000, 1, 2).selectExpr("cast(id as string) value")  # tasks take no row of them
    for frame, version in ((rows, 7), (rows, 7), (many, 7), (many, 3)):
        write(frame, data, txn(version))
    assert values(data, "t") == sorted(map(str, range(1000)))
    write(rows.limit(1), data, txn(8))
    write(rows.limit(1), data, txn(1, "other"))
    assert len(values(data, "t")) == 1002
    assert staged(data) == []
    with kafkalog.open(data, read_only=True) as store:
        assert {cursor.name for cursor in store.cursors()} == {"spark-app-app", "spark-app-other"}


def test_what_is_half_said_or_said_to_a_stream_is_refused(spark: Any, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    create(data, 1, "t")
    rows = spark.sql("select 'v' value")
    with pytest.raises(Exception, match="found option txnAppId without option txnVersion"):
        write(rows, data, {"topic": "t", "txnAppId": "a"})
    with pytest.raises(Exception, match=r"option txnVersion is '-1'.*expected a whole number"):
        write(rows, data, txn(-1))
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = stream.selectExpr("cast(value as string) value").writeStream.format("kafkalog")
    for name, value in txn(1, checkpointLocation=str(tmp_path / "checkpoint")).items():
        writer = writer.option(name, value)
    with pytest.raises(Exception, match="options txnAppId and txnVersion are of batch writes"):
        writer.start(data).processAllAvailable()
    assert values(data, "t") == []


def test_foreach_batch_and_a_checkpoint_that_forgot(spark: Any, tmp_path: Path) -> None:
    """Twice the same micro-batch, as after a crash behind the write; two topics have one version."""
    data, checkpoint = str(tmp_path / "data"), tmp_path / "checkpoint"
    create(data, 2, *TOPICS)
    (tmp_path / "source").mkdir()

    def both(rows: Any, batch_id: int) -> None:
        for topic in TOPICS:
            write(rows, data, txn(batch_id, "copy", topic=topic))

    def run() -> None:
        lines = spark.readStream.format("text").load(str(tmp_path / "source"))
        query = lines.writeStream.foreachBatch(both).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    for number in range(2):
        (tmp_path / "source" / f"{number}.txt").write_text(f"{number}\n")
        run()
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    run()
    assert [values(data, topic) for topic in TOPICS] == [["0", "1"], ["0", "1"]]


# --- kills -----------------------------------------------------------------------------------------------


class Driver:
    """One life of `txn_driver`."""

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
        """Until a task has begun a file that was not there: the commit follows."""
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
    """The last version of which a driver was told that it is written."""
    return max((int(each.name[5:]) for each in place.glob("done-*")), default=-1)


def check(place: Path) -> None:
    """Every version that was done is there once; one more may be, whole for each topic."""
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


@pytest.mark.parametrize("kind", ["batch", "foreachBatch"])
def test_killed_drivers(tmp_path: Path, kind: str) -> None:
    random_ = random.Random(kind)
    for turn in range(KILLS):
        driver = Driver(kind, tmp_path)
        try:
            if turn % 2:
                driver.await_staged()
                time.sleep(random_.choice([0, random_.uniform(0, 0.1), random_.uniform(0, 0.5)]))
            else:  # amid what comes behind a write that the driver was told of
                driver.await_version(done(tmp_path) + random_.randint(1, 2))
                time.sleep(random_.uniform(0, 1.0))
        finally:
            driver.kill()
        check(tmp_path)
    driver = Driver(kind, tmp_path)
    try:
        driver.await_version(done(tmp_path) + 1)
        (tmp_path / "stop").touch()
        assert driver.process.wait(START_S) == 0, (tmp_path / "driver.log").read_text()[-4000:]
    finally:
        driver.kill()
    check(tmp_path)
