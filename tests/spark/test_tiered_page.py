"""The page's example of Spark over a bucket, run on a real S3 server with the session's settings as credentials.

`test_pages.py` runs the same page with credentials from the environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.remote import RemoteStorage
from kafkalog.spark.source import KafkalogDataSource, register
from tests.pages import Page
from tests.pages.page import DOCS
from tests.spark.tier_kit import KEY, SECRET, s3_server
from tests.unit.tier_kit import tiered

pytest.importorskip("moto.server")
pytestmark = pytest.mark.spark
PAGE = DOCS / "how-to" / "spark-tiered.md"
TIER = "s3://shop-archive/kafka"


def example() -> str:
    blocks = [block.code for block in Page(PAGE).blocks if block.language == "python"]
    (code,) = [each for each in blocks if f'"path", "{TIER}"' in each]
    return code


def test_the_example_counts_what_was_tiered(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with s3_server() as server:
        server.client().create_bucket(Bucket="shop-archive")
        storage = RemoteStorage(TIER, options=server.options)
        tiered(tmp_path / "store", storage)
        settings = {"access.key": KEY, "secret.key": SECRET, "endpoint": server.endpoint}
        conf = spark.sparkContext._conf  # as in a session that was built with them
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
