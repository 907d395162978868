"""On an executor: rows become whole batches, in files of a task attempt's own.

    with Stager(options, topics, write, task) as stager:
        for batch in iterator:
            stager.add(batch)
        staged = stager.finish()

A file holds runs of batches, each of one partition, as a producer would send them before it has an id; where they are
is in `StagedFile`, which goes to the committer, and nowhere else.  So what an attempt leaves that was killed, or lost
against another, is read by nobody.  No file is large: the committer removes each as it has read it, so that a write
needs its own size on the disk, not twice that.  Files lie plainly in the log directory, where a broker and a store pass
them over (a folder they would not), under names that say of which write they are (`WriteId`).  They are not synced:
nothing rests on them, since the committer looks at every byte, and what it appends is synced where it lies.
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

WINDOW_BYTES = 16 << 20  # of Arrow rows are encoded together, so that batches are full
RUN_BYTES = 8 << 20  # of a partition's batches are appended together
FILE_BYTES = 32 << 20  # of a staged file, and at most a batch more
DEAD_AFTER_S = 24 * 3600


class TopicFacts(NamedTuple):
    """What executors are told of a topic, as it was when the driver looked."""

    partitions: int
    config: Mapping[str, str]  # in which it differs from defaults


class WriteId(NamedTuple):
    """One write: of a batch a name alone, with `app` one that is done once; of a stream a query's id and the number of
    its micro-batch."""

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
        """The cursor that remembers it; None for one that nothing remembers."""
        if self.app is not None:
            return self.app.cursor
        return None if self.batch_id is None else f"spark-{self.name}"

    def metadata(self, topic_id: str) -> str:
        """What the cursor says of a topic once it is done."""
        return metadata_of(self.app, topic_id) if self.app is not None else json.dumps({"batchId": self.batch_id})


class Run(NamedTuple):
    """Batches of one partition, one behind the other in a file."""

    topic: str
    partition: int
    position: int
    size_bytes: int
    record_count: int


@dataclass(frozen=True)
class StagedFile:
    """One of those that a task attempt has written."""

    path: str
    runs: tuple[Run, ...]


class Stager:
    """One task attempt's.  A context manager: what is not finished is removed."""

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
        """Rows, as an Arrow record batch."""
        pieces = max(batch.nbytes // WINDOW_BYTES, 1)  # Spark's may be of 64 MiB
        rows = max(-(-batch.num_rows // pieces), 1)
        for start in range(0, batch.num_rows, rows):
            self._hold(batch.slice(start, rows))

    def _hold(self, batch: Any) -> None:
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= WINDOW_BYTES:
            self._encode_held()

    def finish(self) -> tuple[StagedFile, ...]:
        """Where all of it is; nothing for no rows.  IllegalStateException where the write was given up."""
        self._encode_held()
        self._finish_file()
        if self._done:
            with _disk(self._path):
                given_up = OS_FILES.exists(_given_up(self._options.staging, self._write_id))
            if given_up:  # behind the last byte: see give_up
                raise IllegalStateException(f"the write {self._write_id.name} was given up")
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
                        hint="the option createTopics makes it, with numPartitions",
                    )
                facts = TopicFacts(self._options.new_partitions, {})
            found = self._topics[name] = _Topic(name, facts, self._options)
        return found

    def _write(self, topic: _Topic, number: int, encoder: ColumnEncoder) -> None:
        for batch in topic.maker.column_batches(encoder):
            if len(batch) > topic.maker.written_bytes_max:
                raise RecordTooLargeException(
                    f"a record makes a batch of {len(batch)} bytes, topic {topic.name} takes "
                    f"{topic.maker.written_bytes_max}",
                    hint="max.message.bytes of the topic raises the limit",
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
    """How rows of one topic become batches: its partitions, and what it asks of batches."""

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
        """Rows by the partition that each goes to: the one that it names, else Kafka's choice."""
        columns = {name: rows.column(name) for name in ("key", "headers") if name in rows.column_names}
        times = kept_times(rows, self.name, self._rules, now_ms) if self._keeps_times else None
        encoder = encode_columns(rows.column("value"), columns.get("key"), columns.get("headers"), times, now_ms)
        wanted = self._wanted(rows)
        if wanted is None and self._partitions == 1:
            return {0: encoder}
        return encoder.by_partition(self._partitions, self._sticky, None, wanted)

    def _wanted(self, rows: Any) -> Any:
        """A column of partitions, -1 where a row names none; None where none does."""
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
                hint="the column partition says where a row goes; null leaves it to its key",
            )
        return column.fill_null(-1).to_numpy()


@contextlib.contextmanager
def _disk(path: str) -> Iterator[None]:
    """The system's error, with the place and the option that moves it."""
    try:
        yield
    except OSError as error:
        failed = KafkaStorageException.because_of(error, "cannot stage what is to be written")
        failed.path = path
        failed.hint = "the option stagingPath names another folder, which the driver must see as well"
        raise failed from error


# --- what is left ---------------------------------------------------------------------------------------


def remove(path: str) -> None:
    """Removes a file, where it is still there and may be removed."""
    with contextlib.suppress(OSError):
        OS_FILES.unlink_if_exists(path)


def sweep(folder: str, write: WriteId) -> None:
    """Removes what is staged of a write that is over: all of this name; of a stream also what its earlier micro-batches
    left; and whatever is of a write of which nobody has touched a file for a day: its driver is gone."""
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
    """Removes what is staged of a batch write that failed, and has tasks that are still at work remove theirs.

    Spark stops them later, and waits for none.  A note is written first: who has closed his file before it is swept
    here, who closes it later finds the note.  It goes as what is dead does.
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
