"""The metrics that Spark shows of a read: docs/reference/spark-metrics.md is right, and its examples run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kafkalog.spark.source import KafkalogDataSource
from tests.spark.kit import fill
from tests.spark.versions import needs_streams

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "spark-metrics.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
OUTPUT = (
    r"plan of orders in \S+: 1 of 1 partitions, \d+ of \d+ segments, [0-9.]+ KiB of [0-9.]+ KiB, 1 task",
    r"1 \{'minOffsetsBehindLatest': '30', .*'bytesBehindLatest': '[1-9]\d+'\}\n(.*\n)*"
    r"\{'minOffsetsBehindLatest': '0', .*'bytesBehindLatest': '0'\}",
    "1 of 2",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("metrics")
    fill(found / "kafka-logs", "orders-0", 40)
    return found


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(
    spark: Any, root: Path, number: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    # Paths are the driver's: a session's workers are in the directory where it began.
    code = re.sub(r'"(kafka-logs|checkpoints/orders)"', lambda found: repr(str(root / found[1])), EXAMPLES[number])
    if "worker.logging" in code and not hasattr(spark.tvf, "python_worker_logs"):
        pytest.skip("this Spark collects no logs of its Python processes")
    space: dict[str, Any] = {"__name__": "example"}
    try:
        exec(compile(code, "docs/reference/spark-metrics.md", "exec"), space)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.dataSource.register(KafkalogDataSource)  # the next test's knows nothing of the session
    assert len(EXAMPLES) == len(OUTPUT)
    assert re.search(OUTPUT[number], capfd.readouterr().out)


def test_what_spark_shows_of_a_read(spark: Any, root: Path) -> None:
    """A test that fails here is good news: the page can promise more."""
    status = spark.sparkContext._jsc.sc().statusStore()
    frame = spark.read.format("kafkalog").option("subscribe", "orders").load(str(root / "kafka-logs"))
    spark.sparkContext.setJobGroup("metrics", "metrics")
    assert frame.groupBy().count().first()[0] == 40
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    tracker = spark.sparkContext.statusTracker()
    stages = [stage for job in tracker.getJobIdsForGroup("metrics") for stage in tracker.getJobInfo(job).stageIds]
    shown = [status.lastStageAttempt(stage) for stage in sorted(stages)]
    assert (shown[0].inputRecords(), shown[0].inputBytes()) == (40, 0)
    scan = frame._jdf.queryExecution().executedPlan().toString()
    assert "BatchScan kafkalog" in scan
    assert "segments" not in scan


@needs_streams
def test_what_spark_shows_of_a_stream(spark: Any, root: Path, tmp_path: Path) -> None:
    stream = spark.readStream.format("kafkalog").options(subscribe="orders", startingOffsets="earliest")
    query = (
        stream.load(str(root / "kafka-logs"))
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    (source,) = query.lastProgress["sources"]
    assert source["metrics"] == {}
    assert json.loads(source["latestOffset"]) == {"orders": {"0": 40}}
