"""README's example of Spark over a bucket, run on a real S3 server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.remote import RemoteStorage
from kafkalog.spark.source import KafkalogDataSource, register
from tests.spark.tier_kit import KEY, SECRET, s3_server
from tests.unit.tier_kit import tiered

pytest.importorskip("moto.server")
pytestmark = pytest.mark.spark
README = Path(__file__).parents[2] / "README.md"


def example() -> str:
    found = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (code,) = [each for each in found if '"s3://bucket/prefix"' in each and "spark." in each]
    return str(code)


def test_the_example_counts_what_was_tiered(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with s3_server() as server:
        storage = RemoteStorage("s3://bucket/prefix", options=server.options)
        tiered(tmp_path / "store", storage)
        settings = {"access.key": KEY, "secret.key": SECRET, "endpoint": server.endpoint}
        conf = spark.sparkContext._conf  # as a session has them that was built with them
        for name, value in settings.items():
            conf.set(f"spark.hadoop.fs.s3a.{name}", value)
        try:
            register(spark)
            exec(example(), {"spark": spark})
        finally:
            for name in settings:
                conf._jconf.remove(f"spark.hadoop.fs.s3a.{name}")
            spark.dataSource.register(KafkalogDataSource)
        with kafkalog.open(storage, read_only=True) as bucket:
            partition = bucket.topic("orders").partition(0)
            assert int(capsys.readouterr().out.split()[-1]) == partition.end_offset > 0
