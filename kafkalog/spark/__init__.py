"""Spark reads and writes Kafka log directories: `format("kafkalog")`, with the columns and options of its Kafka source
and sink.

`source`, `streaming`, `tasks` and `writing` are what Spark sees, through `pyspark_kafkalog`.  The rest knows nothing of
pyspark: `options` and `triggers` say what is wanted, `planning` makes ranges of it, `followed` looks at partitions
again and again, `offsets` are the checkpoint's; `write_options`, `staging` and `committing` are the sink's; `tables`
says what a table of a catalog keeps of its options.
"""

from __future__ import annotations

__all__ = ["functions", "jobs", "source"]


def __dir__() -> list[str]:
    return __all__
