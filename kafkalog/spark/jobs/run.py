"""What all jobs share: choosing partitions, one Spark task for each piece of work, progress, a DataFrame of what came.

A job runs when it is called, once, whatever is done with its DataFrame later.  `work` is a function of kafkalog, which
executors import: where their Python has no kafkalog the error says so.  What is wrong with one piece of work is in its
result, whatever it is (`attempted`), so that the others go on, and Spark does not try again what would fail again.  An
attempt fails only where it must not answer (`Unanswered`): a second one at a task that another has.
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
    "set PYSPARK_PYTHON, or spark.pyspark.python, to a Python that has kafkalog, on every machine (README, Spark); "
    "`pip install kafkalog[spark]` there"
)


class Unanswered(Exception):
    """An attempt at a task that must not answer: Spark counts it as failed, and knows whether another succeeded."""


class Chosen(NamedTuple):
    """A partition; `bytes` of its .log files."""

    log_dir: str
    partition: TopicPartition
    path: str
    bytes: int


def directories(log_dirs: Dirs) -> list[str]:
    """Absolute paths, each once; what was mounted as it is."""
    return list(dict.fromkeys(map(_directory, _given(log_dirs))))


def _given(log_dirs: Dirs) -> list[Dir]:
    return [log_dirs] if isinstance(log_dirs, str | os.PathLike | RemoteStorage) else list(log_dirs)


def _directory(given: Dir) -> str:
    if isinstance(given, RemoteStorage):
        raise UnsupportedOperationException("a remote tier is only read: by the jobs export and verify")
    text = os.fspath(given)
    return text if OS_FILES.owns(text) else os.path.realpath(local_path(text, what="log_dirs"))


@contextmanager
def readable(
    spark: Any, log_dirs: Dirs, remote: str | RemoteStorage | None
) -> Iterator[tuple[list[str], tuple[Place, ...]]]:
    """Paths of what a job reads, and how executors reach the remote tiers among them, which are readable here
    meanwhile."""
    paths, places = places_of(spark, _given(log_dirs), remote)
    with held(places):
        yield list(paths), places


def names_of(wanted: Names | None) -> set[str] | None:
    """What is asked for; one name is one name.  None for all."""
    if wanted is None:
        return None
    return {str(each) for each in ([wanted] if isinstance(wanted, str | TopicPartition) else wanted)}


def choose(log_dirs: Dirs, wanted: Names | None, *, internal: bool = True) -> list[Chosen]:
    """The partitions of directories: all, or those that are named (`topic-0`, `topic` for all of a topic, a glob).
    `internal`: also `__consumer_offsets` and its like, where nothing is named.

    UnknownTopicOrPartitionException for a name that no directory has; NoSuchFileException, KafkaStorageException.
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
    """Bytes that tasks have done; told on the driver, as each ends."""

    def __init__(self, tell: Progress | None = None) -> None:
        self._tell = tell

    def __reduce__(self) -> tuple[Any, ...]:
        return _Tell, ()  # executors tell nobody

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
    """`work` of each task on the executors, one Spark task for each; the results in the order of the tasks.

    `failed`: the result of a task that went wrong; without it Spark ends the job.  `size`: a task's bytes: the largest
    begin first, and `progress` is told of them as tasks end.  `places` are made readable on the executors.
    UnsupportedOperationException for a session of Spark Connect; KafkaException where the executors have no kafkalog,
    or Spark ended the job.
    """
    try:
        context = spark.sparkContext
    except Exception:
        raise UnsupportedOperationException(
            "jobs need a classic session, found one of Spark Connect",
            hint="run the job where the cluster's driver runs, or `kafkalog spark ... --master` by spark-submit",
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
    """An RDD's elements.  KafkaException where the executors have no kafkalog, or Spark ended the job."""
    try:
        found: list[Any] = spread.collect()
    except Exception as error:
        if "No module named 'kafkalog" in str(error):
            raise KafkaException("the executors' Python has no kafkalog", hint=EXECUTOR_HINT) from None
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        said = [line for line in lines if "Job aborted" in line or "Error: " in line or "Unanswered: " in line]
        is_missing = "ModuleNotFoundError" in str(error)
        hint = EXECUTOR_HINT if is_missing else "run it again: what is done stays done"
        raise KafkaException(f"Spark ended the job: {(said or lines)[-1][:500]}", hint=hint) from error
    return found


class _Each(AnswersAtOnce, Generic[T, R]):
    """Of a Spark task: the work that is in it, and its results by number."""

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
    """What came of a task: `work`, or `failed` of whatever was raised.  Unanswered."""
    try:
        return work(task)
    except Unanswered:
        raise
    except Exception as error:
        return failed(task, portable(error))


def frame(spark: Any, rows: Iterable[Sequence[Any]], schema: str) -> Any:
    """A DataFrame of rows that are here; by Arrow it is a local relation, which is collected without a job."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    types = StructType.fromDDL(schema)
    named = [dict(zip(types.names, row, strict=True)) for row in rows]
    return spark.createDataFrame(pa.Table.from_pylist(named, schema=to_arrow_schema(types)), types)


def told(error: BaseException | None) -> str | None:
    """An error in a column."""
    return None if error is None else f"{type(error).__name__}: {error}"


def portable(error: BaseException) -> KafkalogError:
    """As it goes from an executor to the driver, and can be told from others there: with its path, and what to do."""
    if isinstance(error, KafkalogError):
        cause = error.__cause__
        if isinstance(cause, OSError) and str(cause) not in str(error):  # it would stay behind
            error.message = f"{error.message}: {cause}"
        return error
    if isinstance(error, MemoryError):
        return KafkaException(f"MemoryError: {error}", hint="smaller tasks (range_bytes, map_bytes), or more memory")
    if not isinstance(error, OSError) or error.strerror is None:
        return KafkaException(f"{type(error).__name__}: {error}")
    path = error.filename if isinstance(error.filename, str) else None
    if isinstance(error, FileNotFoundError):
        return NoSuchFileException("not found", path=path, hint="was it deleted, or is it not there on this machine?")
    if isinstance(error, FileExistsError | NotADirectoryError):
        return IllegalArgumentException("found a file, expected a folder", path=path, hint="choose another path")
    made = KafkaStorageException.because_of(error, type(error).__name__)
    if isinstance(error, PermissionError):
        made.hint = "run driver and executors as the user that owns it"
    return made


@contextmanager
def os_errors_named(expected: str) -> Iterator[None]:
    """What the system says of a path, as an error of ours."""
    try:
        yield
    except OSError as error:
        made = portable(error)
        made.hint = f"{expected}; {made.hint}" if made.hint else expected
        raise made from None
