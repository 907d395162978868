"""Reads and writes Kafka log directories in Spark with `format("kafkalog")`, which has the columns and options of
Spark's Kafka source and sink.

Spark sees `source`, `streaming`, `tasks` and `writing`, through `pyspark_kafkalog`.  The other modules do not depend on
Spark sessions.  `options` and `triggers` parse what the user wants, `planning` turns it into offset ranges, `followed`
watches partitions between triggers, and `offsets` reads and writes checkpoints.  `write_options`, `staging` and
`committing` belong to the sink.  `cursor_table` reads and sets cursors.  `tables` decides which options a catalog table
keeps.
"""

from __future__ import annotations

__all__ = ["functions", "jobs", "source"]


def __dir__() -> list[str]:
    return __all__
