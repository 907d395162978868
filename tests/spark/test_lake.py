"""Every recipe of docs/how-to/spark-lake.md runs, with the real packages, and does what its text says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from tests.spark import lake
from tests.spark.kit import START_MS, fill
from tests.spark.lake import need

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    fill(tmp_path / "kafka-logs", "orders-0", 30)
    with kafkalog.open_log(tmp_path / "kafka-logs", "orders-0") as log:
        log.append(b"without", timestamp=START_MS)
    fill(tmp_path / "kafka-logs", "orders-1", 20)
    (tmp_path / "lake").mkdir()
    return tmp_path


def run(code: str, place: Path) -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(compile(lake.in_place(code, place), "docs/how-to/spark-lake.md", "exec"), space)
    return space


def forget(checkpoint: Path) -> None:
    """As if the driver had been killed after the last micro-batch, before it noted that."""
    last = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))[-1]
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink()


def records(place: Path, *topics: str) -> list[tuple[str, bytes | None, bytes | None, int]]:
    with kafkalog.open(place, read_only=True) as store, store.reader(topics=topics, isolation="read_committed") as its:
        return sorted((it.topic, it.key or b"", it.value or b"", it.timestamp) for it in its)


def test_each_recipe_has_a_test() -> None:
    assert len(lake.recipes()) == 5


def test_a_write_that_may_run_again(spark: Any, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = lake.recipe('"txnVersion", batch_id')
    for again in (False, True):
        if again:
            forget(place / "checkpoints" / "split")
        run(code, place)
        found = records(place / "split-logs", "with-key", "without-key")
        assert [topic for topic, *_ in found].count("with-key") == 50
        assert [value for topic, _, value, _ in found if topic == "without-key"] == [b"without"]
    assert "|   with-key|   50|" in capfd.readouterr().out


def test_a_replay_that_keeps_its_times(spark: Any, place: Path) -> None:
    for _ in range(2):
        run(lake.recipe("keepTimestamps"), place)
        assert records(place / "replayed-logs", "orders") == records(place / "kafka-logs", "orders")


def test_a_directory_as_a_delta_table(spark: Any, place: Path) -> None:
    need("deltalake")
    for _ in range(2):
        run(lake.recipe('format="delta"'), place)
        import deltalake

        table = deltalake.DeltaTable(place / "lake" / "delta").to_pyarrow_table()
        assert (table.num_rows, set(table["topic"].to_pylist())) == (51, {"orders"})
        fill(place / "kafka-logs", "orders-2", 0)


def test_an_iceberg_table_and_the_stream_behind_it(spark: Any, place: Path) -> None:
    need("pyiceberg", "sqlalchemy")
    code, count = lake.recipe('format="iceberg"'), 51
    for turn in range(4):
        if turn == 2:
            fill(place / "kafka-logs", "orders-1", 40)
            count += 40
        if turn == 3:
            forget(place / "checkpoints" / "iceberg")
        space = run(code, place)
        table = space["catalog"].load_table("logs.orders")
        rows = table.scan().to_arrow()
        assert rows.num_rows == len(rows.group_by(["partition", "offset"]).aggregate([])) == count
        assert table.properties["orders.start"] == '{"orders": {"0": 31, "1": 20}}'
    assert sorted(rows["value"].to_pylist()) == sorted(
        value for _, _, value, _ in records(place / "kafka-logs", "orders")
    )
    assert len(rows.column_names) == 6


@pytest.mark.skipif(lake.missing() is not None, reason=str(lake.missing()))
def test_a_stream_into_delta(tmp_path: Path, spark: Any) -> None:
    """Runs in a separate process.  Delta's reader also reads the Delta table that jobs.export wrote."""
    need("deltalake")
    from kafkalog.spark import jobs

    fill(tmp_path / "other-logs", "orders-0", 100)
    jobs.export(spark, tmp_path / "other-logs", tmp_path / "exported", ["orders"], format="delta")
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.lake", str(tmp_path)],
        capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "streamed 50 50 49" in done.stdout
    assert "again 50" in done.stdout
    assert "exported 100 99 2 2023-11-14 22:13:20" in done.stdout
