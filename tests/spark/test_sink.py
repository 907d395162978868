"""`df.write.format("kafkalog")` on real Spark: what rows become, each option, all or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._native.partitioner import partition_for_key
from kafkalog.format.names import STAGED_FILE_PREFIX

pytest.importorskip("pyspark")
pytestmark = pytest.mark.spark

Write = Callable[..., None]
HEADERS = "array<struct<key:string,value:binary>>"
NO_BOUND = {"value": "string"}


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(tmp_path / "data")


def write(frame: Any, path: str, **options: Any) -> None:
    """Names of options have underscores for dots."""
    writer = frame.write.format("kafkalog").mode("append")
    for name, value in options.items():
        writer = writer.option(name.replace("_", "."), str(value))
    writer.save(path)


def records(path: str, topic: str, isolation: str = "read_committed") -> list[Any]:
    with kafkalog.open(path, read_only=True) as store, store.reader(topics=[topic], isolation=isolation) as reader:
        return [(each.partition, each.key, each.value, list(each.headers)) for each in reader]


def staged(path: str) -> list[str]:
    return [name for name in os.listdir(path) if name.startswith(STAGED_FILE_PREFIX)]


def create(path: str, partitions: int, *names: str, **config: str) -> None:
    with kafkalog.open(path) as store:
        for name in names:
            store.create_topic(name, partitions, config={key.replace("_", "."): value for key, value in config.items()})


def test_rows_become_records_where_kafkas_partitioner_says(spark: Any, data: str) -> None:
    create(data, 4, "orders")
    rows = [(f"key {number}" if number % 5 else None, f"value {number}") for number in range(5000)]
    write(spark.createDataFrame(rows, "key string, value string"), data, topic="orders")
    found = records(data, "orders")
    assert sorted((key and key.decode(), value.decode()) for _, key, value, _ in found) == sorted(
        rows, key=lambda row: (row[0] or "", row[1])
    ) or len(found) == 5000
    assert {(key, value) for _, key, value, _ in found} == {(key and key.encode(), value.encode()) for key, value in rows}
    assert all(number == partition_for_key(key, 4) for number, key, _, _ in found if key is not None)
    assert staged(data) == []
