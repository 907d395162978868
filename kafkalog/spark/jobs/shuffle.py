"""compact_by_shuffle: compacts one partition with more keys than an offset map holds, in one pass.

    keys and offsets, up to the first that may not be cleaned   the data source: two columns, committed records
    the last offset of each key                                 a shuffle by key, which spills to disk
    a bit for each offset, 1 if it is the last of its key       a shuffle by block of offsets
    the copy pass                                               the engine's, with these bits instead of its map

The task that copies needs one bit an offset, in a mapped file, however many keys there are.  The result is the same,
byte for byte, as one pass with a map of unlimited size.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from kafkalog._face.topic_settings import TopicSettings
from kafkalog._native.codec.offset_map import LastOffsets
from kafkalog.config import CleanerConfig
from kafkalog.engine.files.overlay import OverlayFiles
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalArgumentException, KafkalogError, PolicyViolationException
from kafkalog.spark.jobs.compacting import SCHEMA, compact_loan, row
from kafkalog.spark.jobs.run import Chosen, Progress, attempted, choose, collected, frame, run
from kafkalog.spark.jobs.shared import Loan, Returned, SharedDirectory, borrowed, check_session
from kafkalog.spark.source import register
from kafkalog.toolbox.compact import Cleanable, Compacted, PassOptions, cleanable, left_alone
from kafkalog.toolbox.compact import compact as compact_here

BLOCK_OFFSETS = 32_768  # as in Spark's bitmap functions
BLOCK_BYTES = BLOCK_OFFSETS // 8
R = TypeVar("R")
Found = tuple[Compacted, Returned | None]
Look = Callable[[], Cleanable]
Pass = Callable[[LastOffsets | None], Found]


def compact_by_shuffle(
    spark: Any,
    log_dir: str | os.PathLike[str],
    partition: TopicPartition | str,
    *,
    act: bool = False,
    config: Mapping[str, str] | None = None,
    rolls: bool = False,
    progress: Progress | None = None,
) -> Any:
    """Compacts one partition with any number of keys: a shuffle finds the last offset of each key.

    Args:
        spark: The session.
        log_dir: The log directory.
        partition: The partition ("customers-0").
        act: True compacts; False, the default, only reports what would be removed.
        config: Settings of the topic.  Default: the settings that are stored in the directory.
        rolls: Whether to close the active segment first, so that it is compacted too.
        progress: A function that is called with the bytes of the partition at the end.

    Returns:
        A DataFrame of one row, with the columns of `compact`.

    Raises:
        IllegalArgumentException: `partition` names more than one partition.
        PolicyViolationException: The topic's cleanup.policy does not compact it.
        LogDirLockedException: Another process holds the directory (with `act`).
        UnknownTopicOrPartitionException: The directory has no such partition.
        UnsupportedOperationException: The session is one of Spark Connect.
        KafkaException: The executors' Python has no kafkalog, or Spark ended the job.

    Example:
        Compact a partition with a billion keys:

            jobs.compact_by_shuffle(spark, "/var/kafka-logs", "customers-0", act=True).show()
    """
    root, result = compacted_by_shuffle(
        spark, log_dir, partition, act=act, config=config, rolls=rolls, progress=progress
    )
    return frame(spark, [row(root, result, act)], SCHEMA)


def compacted_by_shuffle(
    spark: Any,
    log_dir: str | os.PathLike[str],
    partition: TopicPartition | str,
    *,
    act: bool = False,
    config: Mapping[str, str] | None = None,
    rolls: bool = False,
    progress: Progress | None = None,
) -> tuple[str, Compacted]:
    """Does the work of `compact_by_shuffle`; returns the directory and the toolbox's result."""
    found = choose(log_dir, [partition])
    if len(found) != 1:
        raise IllegalArgumentException(
            f"found {len(found)} partitions of {partition}, expected one", hint="name one partition, such as topic-0"
        )
    (task,) = found
    given = dict(config or {})
    for reason in left_alone(task.log_dir, [task.partition], TopicSettings(task.log_dir, given)).values():
        raise PolicyViolationException(f"{task.partition} is not compacted: {reason.text}")
    check_session(spark)
    if act:
        with SharedDirectory(task.log_dir) as shared:
            loan = shared.lend(task.partition)
            shared.share()
            pass_over = partial(_compact, loan, given)
            result, returned = _compacted(spark, task, partial(_look, given, rolls, loan), pass_over)
            shared.take(task.partition, returned)
    else:
        tell = partial(_tell, task, given, rolls)
        result, _ = _compacted(spark, task, partial(_look_beside, given, rolls, task), tell)
    if progress is not None:
        progress(task.bytes)
    return task.log_dir, result


def _compacted(spark: Any, task: Chosen, look: Look, pass_over: Pass) -> Found:
    """Finds what to clean, runs the shuffle if there is something, and compacts; all on executors."""
    (looked,) = run(spark, partial(_given, look), [None], failed=_as_it_is)
    if isinstance(looked, KafkalogError):
        return Compacted(task.partition, error=looked), None
    if looked.first_dirty_offset < looked.first_uncleanable_offset:
        blocks = last_offset_blocks(spark, task.log_dir, task.partition, looked)
        copy = partial(_copy, task.partition, looked, pass_over)
        (found,) = collected(blocks.repartition(1).rdd.mapPartitions(copy))
    else:
        failed = partial(_failed, task.partition)
        (found,) = run(spark, partial(_given, partial(pass_over, None)), [None], failed=failed)
    done: Found = found
    return done


def _given(work: Callable[[], R], task: None) -> R:
    return work()


def _as_it_is(task: None, error: KafkalogError) -> Cleanable | KafkalogError:
    return error


def _failed(partition: TopicPartition, task: object, error: KafkalogError) -> Found:
    return Compacted(partition, error=error), None


def _how(rolls: bool = False, lasts: LastOffsets | None = None) -> PassOptions:
    return PassOptions(CleanerConfig(num_threads=1), rolls, lasts=lasts)


def _look(config: Mapping[str, str], rolls: bool, loan: Loan) -> Cleanable:
    """Returns what there is to clean; only closes the active segment, if that is wanted."""
    with borrowed(loan) as own:
        return cleanable(own.path, loan.partition, TopicSettings(own.path, config), _how(rolls))


def _look_beside(config: Mapping[str, str], rolls: bool, task: Chosen) -> Cleanable:
    """Returns what there is to clean, and changes nothing."""
    with OverlayFiles() as overlay:
        return cleanable(task.log_dir, task.partition, TopicSettings(task.log_dir, config), _how(rolls), overlay)


def _compact(loan: Loan, config: Mapping[str, str], lasts: LastOffsets | None) -> Found:
    return compact_loan(loan, config, _how(lasts=lasts))


def _tell(task: Chosen, config: Mapping[str, str], rolls: bool, lasts: LastOffsets | None) -> Found:
    how, settings = _how(rolls, lasts), TopicSettings(task.log_dir, config)
    (result,) = compact_here(task.log_dir, {task.partition: task.path}, settings, how, act=False)
    return result, None


def last_offset_blocks(spark: Any, log_dir: str, partition: TopicPartition, found: Cleanable) -> Any:
    """Returns (block, bits): a bit an offset, in blocks of BLOCK_OFFSETS from the log start offset, for blocks with a
    bit."""
    from pyspark.sql import functions as F  # noqa: N812

    register(spark)
    topic, number = partition
    start, end = found.log_start_offset, found.first_uncleanable_offset
    reader = spark.read.format("kafkalog").option("path", log_dir).option("assign", json.dumps({topic: [number]}))
    reader = reader.option("startingOffsets", json.dumps({topic: {str(number): start}}))
    reader = reader.option("endingOffsets", json.dumps({topic: {str(number): end}}))
    reader = reader.option("kafka.isolation.level", "read_committed").schema("key binary, offset bigint")
    lasts = reader.load().where("key is not null").groupBy("key").agg(F.max("offset").alias("offset"))
    place = lasts.select((F.col("offset") - F.lit(start)).alias("place"))
    return place.groupBy(F.expr(f"place div {BLOCK_OFFSETS}").alias("block")).agg(
        F.bitmap_construct_agg(F.expr(f"place % {BLOCK_OFFSETS}")).alias("bits")
    )


def _copy(partition: TopicPartition, found: Cleanable, pass_over: Pass, blocks: Iterable[Any]) -> Iterator[Found]:
    """Compacts with the blocks, on the executor that copies."""
    yield attempted(partial(_pass_by_blocks, found, pass_over), partial(_failed, partition), blocks)


def _pass_by_blocks(found: Cleanable, pass_over: Pass, blocks: Iterable[Any]) -> Found:
    """Writes the blocks to a file, and runs the pass."""
    with _last_offsets(found, blocks) as lasts:
        return pass_over(lasts)


@contextmanager
def _last_offsets(found: Cleanable, blocks: Iterable[Any]) -> Iterator[LastOffsets]:
    start, end = found.log_start_offset, found.first_uncleanable_offset
    with tempfile.TemporaryFile(prefix="kafkalog-") as file:
        file.truncate(((end - start) // BLOCK_OFFSETS + 1) * BLOCK_BYTES)
        for block, bits in blocks:
            file.seek(block * BLOCK_BYTES)
            file.write(bits)
        file.flush()
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            lasts = LastOffsets(0)
            lasts.use(mapped, start, end)
            try:
                yield lasts
            finally:
                lasts.use(b"", 0, 0)  # releases the mapped file
