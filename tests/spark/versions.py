"""Features that the installed PySpark lacks, as marks for tests; `tests/spark_versions.py` runs some tests on older
ones."""

from __future__ import annotations

import importlib.metadata
import os

import pytest

PYSPARK = tuple(int(part) for part in importlib.metadata.version("pyspark").split(".")[:2])
EXPECTED = os.environ.get("KAFKALOG_EXPECT_PYSPARK")
assert EXPECTED in (None, ".".join(map(str, PYSPARK))), f"found PySpark {PYSPARK}, expected {EXPECTED}"

needs_writes = pytest.mark.skipif(PYSPARK < (4, 2), reason="PySpark before 4.2 has no Arrow writers for data sources")
needs_pushdown = pytest.mark.skipif(PYSPARK < (4, 1), reason="PySpark 4.0 pushes no filters into Python's sources")
needs_replacing = pytest.mark.skipif(PYSPARK < (4, 1), reason="PySpark 4.0 keeps the source that it has found")
needs_streams = pytest.mark.skipif(PYSPARK < (4, 2), reason="PySpark before 4.2 tells a stream no start of its batches")
