"""The sink that Spark sees: `df.write.format("kafkalog")` and `df.writeStream.format("kafkalog")`.

Executors stage whole batches (`staging`), and one committer appends them in a transaction (`committing`); neither knows
pyspark.  Here is what Spark calls, and how a write is named: a batch write by its driver, at random; a stream by the
query's id, which lives in its checkpoint, and the micro-batch's number, which tasks find in their local properties.
Imported only where something is written: it needs a PySpark with Arrow writers.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kafkalog.errors import IllegalArgumentException, IllegalStateException
from kafkalog.spark import worker
from kafkalog.spark.committing import commit, is_done, look_at_topics
from kafkalog.spark.plainly import plainly
from kafkalog.spark.staging import StagedFile, Stager, TopicFacts, WriteId, give_up, remove, sweep
from kafkalog.spark.write_options import SinkOptions, check_columns

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


@dataclass
class Staged(WriterCommitMessage):  # type: ignore[misc]
    """From a task to the committer."""

    write: WriteId
    files: tuple[StagedFile, ...]


def _stage(
    options: SinkOptions, topics: dict[str, TopicFacts], write: WriteId, task: int, batches: Iterator[Any]
) -> Staged:
    worker.settle()
    with Stager(options, topics, write, task) as stager:
        for batch in batches:
            stager.add(batch)
        return Staged(write, stager.finish())


def _files(messages: Sequence[WriterCommitMessage | None]) -> list[StagedFile]:
    return [file for message in messages if isinstance(message, Staged) for file in message.files]


class KafkalogWriter(worker.AnswersAtOnce, DataSourceArrowWriter):  # type: ignore[misc]
    """A batch write.  Made on the driver; pickled to executors, which call only `write`."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self.options = options
        self.topics = look_at_topics(options)
        self.id = WriteId(uuid.uuid4().hex, app=options.app)
        self.is_done = is_done(options)

    @plainly
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        if self.is_done:  # no row is encoded, and Spark stops making them
            worker.settle()
            return Staged(self.id, ())
        return _stage(self.options, self.topics, self.id, TaskContext.get().partitionId(), iterator)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self.options, _files(messages), self.id, was_done=self.is_done)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        (give_up if None in messages else sweep)(self.options.staging, self.id)


class KafkalogStreamWriter(worker.AnswersAtOnce, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """A stream's: made on the driver for each micro-batch, and once more for its commit."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        if options.app is not None:
            raise IllegalArgumentException(
                "options txnAppId and txnVersion are of batch writes: a stream writes each micro-batch once without",
                hint="leave them out, or give them to a write within foreachBatch",
            )
        self.options = options
        self.topics = look_at_topics(options)

    @plainly
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        task = TaskContext.get()
        query, batch_id = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if not query or batch_id is None:
            raise IllegalStateException(
                f"this task has no {QUERY_ID} or no {BATCH_ID}: without them nobody knows whether a micro-batch is "
                "there already",
                hint="write streams by micro-batches (no continuous trigger), or use foreachBatch",
            )
        return _stage(self.options, self.topics, WriteId(query, int(batch_id)), task.partitionId(), iterator)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        write = _write_of(messages)
        if write is None:
            return  # no task ran: there were no rows
        if write.batch_id != batchId:
            raise IllegalStateException(f"tasks staged micro-batch {write.batch_id}, Spark commits {batchId}")
        commit(self.options, _files(messages), write)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        # Only what these messages name: another driver may have begun with the same micro-batch.  What else is left
        # goes with the query's next commit.
        for staged in _files(messages):
            remove(staged.path)


def _write_of(messages: Sequence[WriterCommitMessage | None]) -> WriteId | None:
    """What the tasks of a micro-batch say that they wrote."""
    writes = {message.write for message in messages if isinstance(message, Staged)}
    if len(writes) > 1:
        raise IllegalStateException(f"tasks of one micro-batch staged several: {sorted(writes)}")
    return writes.pop() if writes else None
