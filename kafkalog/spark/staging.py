"""Stages rows on an executor: encodes them to whole batches, in files of one task attempt.

    with Stager(options, topics, write, task) as stager:
        for batch in iterator:
            stager.add(batch)
        staged = stager.finish()

A file contains runs of batches, each for one partition, as a producer would send them before it has an id.  Only the
`StagedFile` says where they are, and it goes to the committer.  So the files of an attempt that was killed, or that
lost to another attempt, are never read.  Files are small, and the committer deletes each once it has read it: a write
needs room for its rows once, not twice.

Files are directly in the log directory, where a broker and a store ignore them (they would not ignore a directory), and
their names say which write they belong to (`WriteId`).  They are not synced, since nothing depends on them: the
committer checks every byte, and what it appends is synced in the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

from kafkalog._face.batch_maker import BatchMaker, encode_columns
from kafkalog._native.codec.batches import header_at
from kafkalog._native.codec.encode import ColumnEncoder
from kafkalog._native.codec.partitioner import StickyPartition
from kafkalog.config import LogConfig
from kafkalog.engine.files import OS_FILES, File
from kafkalog.engine.format.names import STAGED_FILE_PREFIX
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.log.types import TopicRules
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    KafkaStorageException,
    NullPointerException,
    RecordTooLargeException,
    UnknownTopicOrPartitionException,
)
from kafkalog.spark.idempotent import AppVersion, metadata_of
from kafkalog.spark.kept_times import kept_times
from kafkalog.spark.write_options import SinkOptions

WINDOW_BYTES = 16 << 20  # Arrow rows that are encoded together, so that batches are full
RUN_BYTES = 8 << 20  # batches of a partition that are appended together
FILE_BYTES = 32 << 20  # a staged file, which may have one batch more
DEAD_AFTER_S = 24 * 3600


class TopicFacts(NamedTuple):
    """A topic as executors know it: its state when the driver read it."""

    partitions: int
    config: Mapping[str, str]  # settings that differ from defaults


class WriteId(NamedTuple):
    """The identity of one write.

    A batch write has only a name, and `app` if it is idempotent.  A micro-batch has its query's id and its number.
    """

    name: str
    batch_id: int | None = None
    app: AppVersion | None = None

    @property
    def file_prefix(self) -> str:
        return f"{STAGED_FILE_PREFIX}{self.name}.{'batch' if self.batch_id is None else self.batch_id}."

    @property
    def transactional_id(self) -> str:
        return self.cursor or "spark"

    @property
    def cursor(self) -> str | None:
        """Returns the cursor that remembers the write; None if nothing does."""
        if self.app is not None:
            return self.app.cursor
        return None if self.batch_id is None else f"spark-{self.name}"

    def metadata(self, topic_id: str) -> str:
        """Returns the metadata of the cursor of a topic after the write."""
        return metadata_of(self.app, topic_id) if self.app is not None else json.dumps({"batchId": self.batch_id})


class Run(NamedTuple):
    """Batches of one partition, one after the other in a file."""

    topic: str
    partition: int
    position: int
    size_bytes: int
    record_count: int


@dataclass(frozen=True)
class StagedFile:
    """A file that a task attempt has written."""

    path: str
    runs: tuple[Run, ...]


class Stager:
    """Stages the rows of one task attempt.  A context manager: without `finish`, the files are deleted."""

    def __init__(self, options: SinkOptions, topics: Mapping[str, TopicFacts], write: WriteId, task: int) -> None:
        self._options = options
        self._facts = topics
        self._write_id = write
        self._place = os.path.join(options.staging, f"{write.file_prefix}{task}.")
        self._path = ""
        self._file: File | None = None
        self._position = 0
        self._runs: list[Run] = []
        self._done: list[StagedFile] = []
        self._held: list[Any] = []
        self._held_bytes = 0
        self._topics: dict[str, _Topic] = {}
        self._finished = False

    def __enter__(self) -> Stager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._finished:
            return
        if self._file is not None:
            self._file.close()
            remove(self._path)
        for each in self._done:
            remove(each.path)

    def add(self, batch: Any) -> None:
        """Adds rows, as an Arrow record batch."""
        pieces = max(batch.nbytes // WINDOW_BYTES, 1)  # Spark's batches may have 64 MiB
        rows = max(-(-batch.num_rows // pieces), 1)
        for start in range(0, batch.num_rows, rows):
            self._hold(batch.slice(start, rows))

    def _hold(self, batch: Any) -> None:
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= WINDOW_BYTES:
            self._encode_held()

    def finish(self) -> tuple[StagedFile, ...]:
        """Returns the staged files; none without rows.  Raises IllegalStateException if the write was abandoned."""
        self._encode_held()
        self._finish_file()
        if self._done:
            with _disk(self._path):
                given_up = OS_FILES.exists(_given_up(self._options.staging, self._write_id))
            if given_up:  # checked after the last byte: see give_up
                raise IllegalStateException(f"the write {self._write_id.name} was abandoned")
        self._finished = True
        return tuple(self._done)

    def _finish_file(self) -> None:
        if self._file is None:
            return
        with _disk(self._path):
            self._file.close()
        self._done.append(StagedFile(self._path, tuple(self._runs)))
        self._file, self._position, self._runs = None, 0, []

    def _encode_held(self) -> None:
        import pyarrow as pa

        rows = pa.Table.from_batches(self._held) if self._held else None
        self._held, self._held_bytes = [], 0
        if rows is None or not rows.num_rows:
            return
        now_ms = time.time_ns() // 1_000_000
        for topic, some in self._by_topic(rows):
            for number, encoder in topic.divided(some, now_ms).items():
                self._write(topic, number, encoder)

    def _by_topic(self, rows: Any) -> Iterator[tuple[_Topic, Any]]:
        import pyarrow.compute as pc

        if self._options.topic is not None:
            yield self._topic(self._options.topic), rows
            return
        column = rows.column("topic")
        if column.null_count:
            raise NullPointerException(
                "null topic present in the data. Use the topic option for setting a default topic."
            )
        names = column.unique().to_pylist()
        for name in names:
            yield self._topic(name), rows if len(names) == 1 else rows.filter(pc.equal(column, name))

    def _topic(self, name: str) -> _Topic:
        found = self._topics.get(name)
        if found is None:
            facts = self._facts.get(name)
            if facts is None:
                if not self._options.creates_topics:
                    raise UnknownTopicOrPartitionException(
                        f"there is no topic {name!r} in {', '.join(self._options.paths)}",
                        hint="set option createTopics to create it, with numPartitions partitions",
                    )
                facts = TopicFacts(self._options.new_partitions, {})
            found = self._topics[name] = _Topic(name, facts, self._options)
        return found

    def _write(self, topic: _Topic, number: int, encoder: ColumnEncoder) -> None:
        for batch in topic.maker.column_batches(encoder):
            if len(batch) > topic.maker.written_bytes_max:
                raise RecordTooLargeException(
                    f"a record makes a batch of {len(batch)} bytes, topic {topic.name} accepts "
                    f"{topic.maker.written_bytes_max}",
                    hint="raise max.message.bytes of the topic",
                )
            self._put(batch.data)
            last = self._runs[-1] if self._runs else None
            added = Run(topic.name, number, self._position - len(batch), len(batch), header_at(batch.data).count)
            if last is not None and last[:2] == added[:2] and last.size_bytes + added.size_bytes <= RUN_BYTES:
                whole, count = last.size_bytes + added.size_bytes, last.record_count + added.record_count
                self._runs[-1] = last._replace(size_bytes=whole, record_count=count)
            else:
                self._runs.append(added)

    def _put(self, batch: bytes) -> None:
        if self._position >= FILE_BYTES:
            self._finish_file()
        if self._file is None:
            self._path = self._place + uuid.uuid4().hex
        with _disk(self._path):
            if self._file is None:
                OS_FILES.mkdirs(self._options.staging)
                self._file = OS_FILES.open(self._path, create=True, exclusive=True)
            self._file.pwrite(batch, self._position)
        self._position += len(batch)


class _Topic:
    """Encodes the rows of one topic: knows its partitions and its settings for batches."""

    def __init__(self, name: str, facts: TopicFacts, options: SinkOptions) -> None:
        self.name = name
        self._partitions = facts.partitions
        self._keeps_times = options.keeps_timestamps
        self._sticky = StickyPartition()
        config = LogConfig.from_props(ManagerSettings().default_config, facts.config)
        self._rules = TopicRules.of(config)
        self.maker = BatchMaker(config, options.compression)
        if options.batch_bytes is not None:
            self.maker.batch_bytes = min(self.maker.batch_bytes, options.batch_bytes)

    def divided(self, rows: Any, now_ms: int) -> Mapping[int, ColumnEncoder]:
        """Divides rows by partition: the one that a row names, otherwise the choice of Kafka's producers."""
        columns = {name: rows.column(name) for name in ("key", "headers") if name in rows.column_names}
        times = kept_times(rows, self.name, self._rules, now_ms) if self._keeps_times else None
        encoder = encode_columns(rows.column("value"), columns.get("key"), columns.get("headers"), times, now_ms)
        wanted = self._wanted(rows)
        if wanted is None and self._partitions == 1:
            return {0: encoder}
        return encoder.by_partition(self._partitions, self._sticky, None, wanted)

    def _wanted(self, rows: Any) -> Any:
        """Returns a column of partitions, -1 for a row that names none; None if no row names one."""
        import pyarrow.compute as pc

        if "partition" not in rows.column_names:
            return None
        column = rows.column("partition")
        if column.null_count == len(column):
            return None
        least, most = pc.min_max(column).as_py().values()
        if least < 0:
            raise IllegalArgumentException(
                f"Invalid partition: {least}. Partition number should always be non-negative or null."
            )
        if most >= self._partitions:
            raise UnknownTopicOrPartitionException(
                f"topic {self.name!r} has no partition {most}: it has {self._partitions}",
                hint="the column partition names the partition of a row; null chooses one by the key",
            )
        return column.fill_null(-1).to_numpy()


@contextlib.contextmanager
def _disk(path: str) -> Iterator[None]:
    """Raises an error of the operating system with the path, and the option that changes it."""
    try:
        yield
    except OSError as error:
        failed = KafkaStorageException.because_of(error, "cannot stage the rows of the write")
        failed.path = path
        failed.hint = "set option stagingPath to another directory, which the driver must see too"
        raise failed from error


# --- cleaning up ----------------------------------------------------------------------------------------


def remove(path: str) -> None:
    """Deletes a file, if it exists and may be deleted."""
    with contextlib.suppress(OSError):
        OS_FILES.unlink_if_exists(path)


def sweep(folder: str, write: WriteId) -> None:
    """Deletes the staged files of a write that is over.

    It deletes all files with this name, also those of a stream's earlier micro-batches.  Files of other writes are
    deleted if none of them was changed for a day: their driver no longer runs.
    """
    by_write: dict[str, list[str]] = {}
    try:
        for name in OS_FILES.names_in(folder):
            if name.startswith(STAGED_FILE_PREFIX):
                by_write.setdefault(name.removeprefix(STAGED_FILE_PREFIX).partition(".")[0], []).append(name)
    except OSError:
        return
    for its in by_write.values():
        dead = time.time() - max(_touched_s(os.path.join(folder, name)) for name in its) > DEAD_AFTER_S
        for name in its:
            if dead or _is_over(name, write):
                remove(os.path.join(folder, name))


def give_up(folder: str, write: WriteId) -> None:
    """Deletes the staged files of a failed batch write, and makes tasks that still run delete theirs.

    Spark stops these tasks later and does not wait for them.  A note is therefore written first.  A task that has
    closed its file before has it deleted here; a task that closes it later finds the note.  The note is deleted after a
    day.
    """
    note = _given_up(folder, write)
    try:
        OS_FILES.create(note)
        names = OS_FILES.names_in(folder)
    except OSError:
        return
    for name in names:
        if name.startswith(write.file_prefix) and name != os.path.basename(note):
            remove(os.path.join(folder, name))


def _given_up(folder: str, write: WriteId) -> str:
    return os.path.join(folder, f"{write.file_prefix}given-up")


def _touched_s(path: str) -> float:
    try:
        return OS_FILES.stat(path).mtime_ms / 1000
    except OSError:
        return 0.0


def _is_over(file_name: str, write: WriteId) -> bool:
    if write.batch_id is None:
        return file_name.startswith(write.file_prefix)
    of_query = f"{STAGED_FILE_PREFIX}{write.name}."
    number = file_name.removeprefix(of_query).partition(".")[0]
    return file_name.startswith(of_query) and number.isdigit() and int(number) <= write.batch_id
