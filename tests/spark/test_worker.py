"""What makes tasks short: their processes acknowledge what Spark sends them."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest

SUBSCRIBE = {"subscribe": "t"}

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


def acknowledged(task: int) -> tuple[int, bool]:
    from kafkalog.spark.worker import acknowledge

    return task, acknowledge()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="TCP_QUICKACK is Linux's")
def test_a_worker_finds_the_socket_of_its_jvm(spark: Any) -> None:
    """It looks for PySpark's `infile`, by that name."""
    from kafkalog.spark.jobs.run import run
    from kafkalog.spark.worker import acknowledge

    assert run(spark, acknowledged, [1, 2]) == [(1, True), (2, True)]
    assert not acknowledge()  # on the driver


def test_what_tasks_unpickle_acknowledges(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.types import StructType

    from kafkalog.spark import worker
    from kafkalog.spark.jobs.run import _Each
    from kafkalog.spark.source import KafkalogDataSource

    source = KafkalogDataSource({"path": "/nowhere", **SUBSCRIBE})
    sink = KafkalogDataSource({"path": "/nowhere", "topic": "t"})
    schema = StructType.fromDDL("value binary")
    for sent in (
        source.reader(schema),
        source.streamReader(schema),
        sink.writer(schema, False),
        sink.streamWriter(schema, False),
        _Each(acknowledged, None, None),
    ):
        told: list[bool] = []
        with monkeypatch.context() as patched:
            patched.setattr(worker, "acknowledge", lambda told=told: told.append(True))
            again = pickle.loads(pickle.dumps(sent))
        assert told == [True], sent
        assert vars(again).keys() == vars(sent).keys()
