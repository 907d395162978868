"""Code that all jobs share: choosing partitions, one Spark task for each piece of work, progress, a DataFrame of
results.

A job runs once, when it is called, no matter how often its DataFrame is used.  `work` is a function that executors
import; an error says so if their Python has no kafkalog.  An error in one piece of work becomes its result
(`attempted`), so the other pieces continue, and Spark does not retry work that would fail again.  An attempt fails only
if it must not answer (`Unanswered`): if another attempt already has its task.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

from pyspark.accumulators import AccumulatorParam

from kafkalog._face.named import names_of_partition
from kafkalog.engine.files import OS_FILES, local_path
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import list_partitions
from kafkalog.errors import (
    IllegalArgumentException,
    KafkaException,
    KafkalogError,
    KafkaStorageException,
    NoSuchFileException,
    UnknownTopicOrPartitionException,
    UnsupportedOperationException,
)
from kafkalog.remote import RemoteStorage
from kafkalog.spark.places import Place, held, mount, mounted_paths, places_of
from kafkalog.spark.worker import AnswersAtOnce

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[int], None]
Dir = str | os.PathLike[str] | RemoteStorage
Dirs = Dir | Sequence[Dir]
Names = TopicPartition | str | Iterable[TopicPartition | str]
EXECUTOR_HINT = (
    "set PYSPARK_PYTHON, or spark.pyspark.python, to a Python with kafkalog on every host (docs/how-to/spark-jobs.md); "
    "run `pip install kafkalog[spark]` there"
)


class Unanswered(Exception):
    """An attempt at a task that must not answer: Spark counts it as failed, and knows whether another one succeeded."""


class Chosen(NamedTuple):
    """A partition; `bytes` is the size of its .log files."""

    log_dir: str
    partition: TopicPartition
    path: str
    bytes: int


def directories(log_dirs: Dirs) -> list[str]:
    """Returns absolute paths, each once; mounted paths stay as they are."""
    return list(dict.fromkeys(map(_directory, _given(log_dirs))))


def _given(log_dirs: Dirs) -> list[Dir]:
    return [log_dirs] if isinstance(log_dirs, str | os.PathLike | RemoteStorage) else list(log_dirs)


def _directory(given: Dir) -> str:
    if isinstance(given, RemoteStorage):
        raise UnsupportedOperationException("a remote tier can only be read: use the jobs export and verify")
    text = os.fspath(given)
    return text if OS_FILES.owns(text) else os.path.realpath(local_path(text, what="log_dirs"))


@contextmanager
def readable(
    spark: Any, log_dirs: Dirs, remote: str | RemoteStorage | None
) -> Iterator[tuple[list[str], tuple[Place, ...]]]:
    """Yields the paths that a job reads, and the remote tiers among them for the executors.

    The tiers are readable in this process inside the block.
    """
    paths, places = places_of(spark, _given(log_dirs), remote)
    with held(places):
        yield list(paths), places


def names_of(wanted: Names | None) -> set[str] | None:
    """Returns the names that the caller gave, one or several; None means all."""
    if wanted is None:
        return None
    return {str(each) for each in ([wanted] if isinstance(wanted, str | TopicPartition) else wanted)}


def choose(log_dirs: Dirs, wanted: Names | None, *, internal: bool = True) -> list[Chosen]:
    """Returns the partitions of directories: all, or those that are named (`topic-0`, `topic` for all of a topic, a
    glob).

    `internal`: whether `__consumer_offsets` and other internal topics are included if nothing is named.  Raises
    UnknownTopicOrPartitionException for a name that no directory has, and NoSuchFileException or KafkaStorageException.
    """
    asked = names_of(wanted)
    found, met, topics = [], set(), set()
    for root in directories(log_dirs):
        with os_errors_named("expected a Kafka log directory"):
            listed = list_partitions(root)
        for partition, path in listed.items():
            hits = names_of_partition(asked or (), partition)
            topics.add(partition.topic)
            if internal or partition.topic not in names.INTERNAL_TOPICS if asked is None else hits:
                met |= hits
                found.append(Chosen(root, partition, path, _log_bytes(path)))
    missing = sorted((asked or set()) - met)
    if missing:
        where = ", ".join(directories(log_dirs))
        raise UnknownTopicOrPartitionException(
            f"no topic or partition {', '.join(missing)} in {where}",
            hint=f"it has {', '.join(sorted(topics)[:10]) or 'none'}",
        )
    return found


def _log_bytes(path: str) -> int:
    try:
        logs = [name for name in OS_FILES.list_dir(path) if name.endswith(names.LOG_FILE_SUFFIX)]
        return sum(OS_FILES.stat(os.path.join(path, name)).size for name in logs)
    except FileNotFoundError:  # deleted meanwhile
        return 0


class _Tell(AccumulatorParam):  # type: ignore[misc]
    """Counts the bytes of finished tasks; reports them on the driver as each task ends."""

    def __init__(self, tell: Progress | None = None) -> None:
        self._tell = tell

    def __reduce__(self) -> tuple[Any, ...]:
        return _Tell, ()  # executors report to nobody

    def zero(self, value: int) -> int:
        return 0

    def addInPlace(self, value1: int, value2: int) -> int:  # noqa: N802
        if self._tell is not None and value2:
            self._tell(value2)
        return value1 + value2


def run(
    spark: Any,
    work: Callable[[T], R],
    tasks: Sequence[T],
    *,
    failed: Callable[[T, KafkalogError], R] | None = None,
    size: Callable[[T], int] | None = None,
    progress: Progress | None = None,
    places: Sequence[Place] = (),
) -> list[R]:
    """Runs `work` for each task on the executors, one Spark task each; returns the results in the order of the tasks.

    `failed` returns the result of a task that raised; without it Spark ends the job.  `size` returns a task's bytes:
    the largest tasks start first, and `progress` gets the bytes as tasks end.  `places` are made readable on the
    executors. Raises UnsupportedOperationException for a session of Spark Connect, and KafkaException if the executors
    have no kafkalog or Spark ended the job.
    """
    try:
        context = spark.sparkContext
    except Exception:
        raise UnsupportedOperationException(
            "jobs need a classic session, found one of Spark Connect",
            hint="run the job where the cluster's driver runs, or run `kafkalog spark ... --master` with spark-submit",
        ) from None
    if not tasks:
        return []
    sizes = [0 if size is None else size(task) for task in tasks]
    order = sorted(range(len(tasks)), key=lambda number: -sizes[number])
    done = context.accumulator(0, _Tell(progress))
    numbered = [(number, sizes[number], tasks[number]) for number in order]
    spread = context.parallelize(numbered, len(numbered))
    by_number = dict(collected(spread.mapPartitions(_Each(work, failed, done, places))))
    return [by_number[number] for number in range(len(tasks))]


def collected(spread: Any) -> list[Any]:
    """Returns an RDD's elements.  Raises KafkaException if the executors have no kafkalog, or if Spark ended the
    job."""
    try:
        found: list[Any] = spread.collect()
    except Exception as error:
        if "No module named 'kafkalog" in str(error):
            raise KafkaException("the executors' Python has no kafkalog", hint=EXECUTOR_HINT) from None
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        said = [line for line in lines if "Job aborted" in line or "Error: " in line or "Unanswered: " in line]
        is_missing = "ModuleNotFoundError" in str(error)
        hint = EXECUTOR_HINT if is_missing else "run it again: finished work is kept"
        raise KafkaException(f"Spark ended the job: {(said or lines)[-1][:500]}", hint=hint) from error
    return found


class _Each(AnswersAtOnce, Generic[T, R]):
    """The function of a Spark task: does its work, and yields the results by number."""

    def __init__(
        self,
        work: Callable[[T], R],
        failed: Callable[[T, KafkalogError], R] | None,
        done: Any,
        places: Sequence[Place] = (),
    ) -> None:
        self._work = work
        self._failed = failed
        self._done = done
        self._places = tuple(places)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        mount(self._places, mounted_paths())  # another job's task may have run here

    def __call__(self, tasks: Iterable[tuple[int, int, T]]) -> Iterator[tuple[int, R]]:
        for number, size_bytes, task in tasks:
            yield number, self._work(task) if self._failed is None else attempted(self._work, self._failed, task)
            self._done.add(size_bytes)


def attempted(work: Callable[[T], R], failed: Callable[[T, KafkalogError], R], task: T) -> R:
    """Returns the result of a task: `work`, or `failed` of the exception.  Unanswered is raised as it is."""
    try:
        return work(task)
    except Unanswered:
        raise
    except Exception as error:
        return failed(task, portable(error))


def frame(spark: Any, rows: Iterable[Sequence[Any]], schema: str) -> Any:
    """Builds a DataFrame of local rows; with Arrow it is a local relation, which needs no job to collect."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    types = StructType.fromDDL(schema)
    named = [dict(zip(types.names, row, strict=True)) for row in rows]
    return spark.createDataFrame(pa.Table.from_pylist(named, schema=to_arrow_schema(types)), types)


def told(error: BaseException | None) -> str | None:
    """Returns an error as text for a column."""
    return None if error is None else f"{type(error).__name__}: {error}"


def portable(error: BaseException) -> KafkalogError:
    """Returns an error that can be pickled for the driver, with its path and what to do."""
    if isinstance(error, KafkalogError):
        cause = error.__cause__
        if isinstance(cause, OSError) and str(cause) not in str(error):  # pickle loses the cause
            error.message = f"{error.message}: {cause}"
        return error
    if isinstance(error, MemoryError):
        return KafkaException(f"MemoryError: {error}", hint="use smaller tasks (range_bytes, map_bytes) or more memory")
    if not isinstance(error, OSError) or error.strerror is None:
        return KafkaException(f"{type(error).__name__}: {error}")
    path = error.filename if isinstance(error.filename, str) else None
    if isinstance(error, FileNotFoundError):
        return NoSuchFileException("not found", path=path, hint="it was deleted, or it does not exist on this host")
    if isinstance(error, FileExistsError | NotADirectoryError):
        return IllegalArgumentException("found a file, expected a directory", path=path, hint="choose another path")
    made = KafkaStorageException.because_of(error, type(error).__name__)
    if isinstance(error, PermissionError):
        made.hint = "run driver and executors as the user that owns it"
    return made


@contextmanager
def os_errors_named(expected: str) -> Iterator[None]:
    """Raises operating system errors about a path as errors of kafkalog."""
    try:
        yield
    except OSError as error:
        made = portable(error)
        made.hint = f"{expected}; {made.hint}" if made.hint else expected
        raise made from None
