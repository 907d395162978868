"""The sink that Spark uses: `df.write.format("kafkalog")` and `df.writeStream.format("kafkalog")`.

Executors stage whole batches (`staging`), and one committer appends them in a transaction (`committing`); neither
depends on pyspark.  This module has the methods that Spark calls, and it names writes.  A batch write gets a random
name from its driver.  A stream has the query's id, which is in its checkpoint, and the micro-batch's number, which
tasks find in their local properties.  It is imported only for writes, since it needs a PySpark with Arrow writers.
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
    """The message of a task to the committer."""

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
    """A batch write.  It is created on the driver and pickled to executors, which call only `write`."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self.options = options
        self.topics = look_at_topics(options)
        self.id = WriteId(uuid.uuid4().hex, app=options.app)
        self.is_done = is_done(options)

    @plainly
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        if self.is_done:  # no row is encoded, and Spark stops producing them
            worker.settle()
            return Staged(self.id, ())
        return _stage(self.options, self.topics, self.id, TaskContext.get().partitionId(), iterator)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self.options, _files(messages), self.id, was_done=self.is_done)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        (give_up if None in messages else sweep)(self.options.staging, self.id)


class KafkalogStreamWriter(worker.AnswersAtOnce, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """A stream's write.  It is created on the driver for each micro-batch, and once more for its commit."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        if options.app is not None:
            raise IllegalArgumentException(
                "options txnAppId and txnVersion are for batch writes: a stream writes each micro-batch once",
                hint="leave them out, or set them in a write inside foreachBatch",
            )
        self.options = options
        self.topics = look_at_topics(options)

    @plainly
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        task = TaskContext.get()
        query, batch_id = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if not query or batch_id is None:
            raise IllegalStateException(
                f"this task has no {QUERY_ID} or no {BATCH_ID}: without them it is unknown whether a micro-batch was "
                "committed before",
                hint="use a micro-batch trigger (not continuous), or foreachBatch",
            )
        return _stage(self.options, self.topics, WriteId(query, int(batch_id)), task.partitionId(), iterator)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        write = _write_of(messages)
        if write is None:
            return  # no task ran, since there were no rows
        if write.batch_id != batchId:
            raise IllegalStateException(f"tasks staged micro-batch {write.batch_id}, but Spark commits {batchId}")
        commit(self.options, _files(messages), write)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        # Delete only the files in these messages: another driver may have started the same micro-batch.  The query's
        # next commit deletes the rest.
        for staged in _files(messages):
            remove(staged.path)


def _write_of(messages: Sequence[WriterCommitMessage | None]) -> WriteId | None:
    """Returns the write that the tasks of a micro-batch name in their messages."""
    writes = {message.write for message in messages if isinstance(message, Staged)}
    if len(writes) > 1:
        raise IllegalStateException(f"tasks of one micro-batch staged several: {sorted(writes)}")
    return writes.pop() if writes else None
