"""Tasks are short because their processes acknowledge Spark's data."""

from __future__ import annotations

import io
import os
import pickle
import socket
import sys
from pathlib import Path
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


def test_a_default_timeout_of_sockets_leaves_sparks_alone(spark: Any) -> None:
    """`socket` makes a descriptor non-blocking where there is one, and what waits for Spark then hears nothing."""
    from kafkalog.spark.jobs.run import run

    assert run(spark, is_blocking_with_a_timeout, [1]) == [(True, True)]


def is_blocking_with_a_timeout(task: int) -> tuple[bool, bool]:
    from kafkalog.spark.worker import acknowledge

    frame: Any = sys._getframe()
    while "infile" not in frame.f_locals:
        frame = frame.f_back
    descriptor = frame.f_locals["infile"].fileno()
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30)
    try:
        return acknowledge(), os.get_blocking(descriptor)
    finally:
        socket.setdefaulttimeout(before)


def test_what_is_no_socket_is_not_acknowledged(tmp_path: Path) -> None:
    from kafkalog.spark.worker import _acknowledge

    with (tmp_path / "file").open("w") as file:
        assert not _acknowledge(file)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not _acknowledge(ours)
    for nothing in (io.BytesIO(), file, "text", ours):
        assert not _acknowledge(nothing)


def test_what_tasks_unpickle_acknowledges(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.types import StructType

    from kafkalog.spark import worker
    from kafkalog.spark.jobs.run import _Each
    from kafkalog.spark.source import KafkalogDataSource

    source = KafkalogDataSource({"path": "/nowhere", **SUBSCRIBE})
    sink = KafkalogDataSource({"path": "/nowhere", "topic": "t", "createTopics": "true"})
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
