"""INSERT INTO a table: rows of the one topic that the table subscribes to.

A table has a column `topic`; most statements leave it null.  A row that names another topic is refused: it would never
be seen in this table.  Imported only where something is written, as `writing` is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from kafkalog.errors import IllegalArgumentException
from kafkalog.spark.write_options import SinkOptions
from kafkalog.spark.writing import KafkalogWriter


class TableWriter(KafkalogWriter):
    """A batch write into a table.  Pickled to executors, which call only `write`."""

    def __init__(self, options: SinkOptions, schema: StructType, topic: str) -> None:
        super().__init__(options, schema)
        self.topic = topic

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return super().write(of_topic(iterator, self.topic))


def of_topic(batches: Iterator[Any], topic: str) -> Iterator[Any]:
    """The Arrow record batches; IllegalArgumentException at the first row whose column topic names another one."""
    import pyarrow.compute as pc

    for batch in batches:
        if "topic" in batch.schema.names:
            others = batch.column("topic").drop_null()
            others = others.filter(pc.not_equal(others, topic))
            if len(others):
                raise IllegalArgumentException(
                    f"a row has topic {others[0].as_py()!r}, the table has {topic!r}",
                    hint="leave the column topic null, or say where all rows go: INSERT INTO t WITH (topic '...')",
                )
        yield batch
