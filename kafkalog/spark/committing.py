"""The committer: the one process that opens the directory and appends what executors have staged.

It runs on the driver once all tasks are done.  It appends all staged runs, byte for byte, in one transaction of the
store.  Readers of committed records therefore see all of a write or nothing, even if a process is killed.

In a stream, the same transaction moves a cursor, `spark-<query id>`, whose metadata holds the number of the
micro-batch. If Spark repeats that micro-batch, the committer finds its number in the cursor and appends nothing.  Spark
repeats only the last micro-batch.  An earlier number therefore means that the checkpoint is from an earlier time: its
next micro-batches differ from those in the log, and the commit is refused.  A batch write with txnAppId and txnVersion
uses a cursor of its application (`idempotent`) in the same way, topic by topic, and skips the topics that have this
version.

A directory has one holder at a time.  If another process holds it, the committer waits for `kafka.max.block.ms`.

Three threads work: one reads and checks the next run, one appends, and one syncs to disk what was appended.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Generator, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

from kafkalog._face.ready_batches import ReadyBatches
from kafkalog._limits import LONG_MAX
from kafkalog.engine.files import OS_FILES, File
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import check_taken_over, refuse_foreign
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    IllegalStateException,
    KafkalogError,
    KafkaStorageException,
    LogDirLockedException,
    NoSuchFileException,
)
from kafkalog.spark.idempotent import AppVersion, topics_done
from kafkalog.spark.kept_times import naming_the_partition
from kafkalog.spark.room import check_room
from kafkalog.spark.staging import Run, StagedFile, TopicFacts, WriteId, remove, sweep
from kafkalog.spark.write_options import SinkOptions
from kafkalog.store import Store, open_alone, open_store

log = logging.getLogger("kafkalog.spark")

Cursor: TypeAlias = Mapping[TopicPartition, CommittedOffset]

TIMEOUT_MS = 900_000  # transaction.max.timeout.ms
LOOK_AGAIN_S = 0.05


def look_at_topics(options: SinkOptions) -> dict[str, TopicFacts]:
    """Returns the topics that rows may go to, with their current settings; does not take the directory's lock.

    Raises NoSuchFileException if the log directory does not exist, and IllegalArgumentException if it is not one.
    """
    there = [path for path in options.paths if OS_FILES.is_dir(path)]
    for path in options.paths:
        if path not in there and OS_FILES.exists(path):
            raise IllegalArgumentException("found a file, expected a log directory", path=path)
        refuse_foreign(path, OS_FILES)
    if not there and options.creates_topics:
        return {}
    if not there:
        raise NoSuchFileException(
            "no such log directory", path=options.paths[0], hint="set option createTopics to create it with its topics"
        )
    check_taken_over(there, OS_FILES, take_over=options.take_over)
    with open_store(there, read_only=True) as store:
        names = store.topics(internal=True)
        if options.topic is not None:
            names = [options.topic] if options.topic in names else []
        infos = [store.describe_topic(name) for name in names]
    return {info.name: TopicFacts(info.partitions, dict(info.overrides)) for info in infos}


def is_done(options: SinkOptions) -> bool:
    """Whether the topic that all rows go to already has this version of the application.

    Does not take the directory's lock, so the commit checks it again.
    """
    there = [path for path in options.paths if OS_FILES.is_dir(path)]
    if options.app is None or options.topic is None or not there:
        return False
    with open_store(there, read_only=True) as store:
        return options.topic in _topics_done(store, store.committed(options.app.cursor), options.app)


def commit(options: SinkOptions, files: Sequence[StagedFile], write: WriteId, *, was_done: bool = False) -> None:
    """Appends everything that was staged, or nothing.

    A stream's micro-batch is appended once, however often it is committed, and so is an application's version in a
    topic. The staged files of this write are removed, also if the commit fails once the store is open.  `was_done`:
    nothing was staged, because every row was in the log already.  Raises LogDirLockedException, KafkaStorageException
    if the disks have too little room, and the errors of the store.
    """
    filled = [each for each in files if each.runs]
    topics = {run.topic for each in filled for run in each.runs}
    if write.app is not None and options.topic is not None:
        topics.add(options.topic)  # a write without rows is a version, too
    if topics:
        store = _opened(options)
        with _closing(store):
            cursor = {} if write.cursor is None else store.committed(write.cursor)
            topics -= _there(store, cursor, write, topics, was_done=was_done)
            filled = _of_topics(filled, topics)
            if topics:
                with _removed_on_failure(filled):
                    _create_topics(store, options, topics)
                    check_room(filled, options.staging, partial(_log_dir_of, store))
                _append(store, filled, write, cursor, topics)
    sweep(options.staging, write)


def _of_topics(files: Sequence[StagedFile], topics: Set[str]) -> list[StagedFile]:
    """Returns the files with only the runs of these topics."""
    cut = [replace(each, runs=tuple(run for run in each.runs if run.topic in topics)) for each in files]
    return [each for each in cut if each.runs]


@contextlib.contextmanager
def _removed_on_failure(files: Sequence[StagedFile]) -> Iterator[None]:
    """Removes the staged files if the block fails.

    A retry stages its rows again, and on a full disk this frees the room that ending the transaction needs.
    """
    try:
        yield
    except BaseException:
        for each in files:
            remove(each.path)
        raise


def _log_dir_of(store: Store, partition: TopicPartition) -> str:
    return store.topic(partition.topic).appends(partition.partition).engine.parent_dir


def _opened(options: SinkOptions) -> Store:
    """Opens the store, and waits while another process holds it."""
    until = time.monotonic() + options.max_block_ms / 1000
    while True:
        try:
            # Only the write: retention and compaction are left to processes that run longer.
            return open_alone(options.paths, durability=options.durability, take_over=options.take_over)
        except LogDirLockedException as error:
            if time.monotonic() >= until:
                error.hint = (
                    f"the sink needs the directory alone; it waited {options.max_block_ms} ms (kafka.max.block.ms): "
                    "stop the broker, or close the store, that has the directory"
                )
                raise
            time.sleep(LOOK_AGAIN_S)


@contextlib.contextmanager
def _closing(store: Store) -> Iterator[None]:
    """Closes the store.

    A failed close after a commit only logs a warning: the rows are written, and an error would make the caller write
    them again.  The next open recovers what this close has left.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(KafkalogError):
            store.close()
        raise
    try:
        store.close()
    except (KafkalogError, OSError) as error:
        log.warning("all rows are committed, but the log directory was not closed cleanly: %s", error)


def _there(store: Store, cursor: Cursor, write: WriteId, topics: Set[str], *, was_done: bool) -> Set[str]:
    """Returns the topics that already have the rows of this write."""
    if write.app is None:
        return topics if _is_there(cursor, write) else frozenset()
    done = topics & _topics_done(store, cursor, write.app)
    if was_done and topics - done:
        raise IllegalStateException(
            f"txnVersion {write.app.version} of {write.app.app_id!r} was in the log but no longer is: its topic or its "
            "cursor was deleted during this write; nothing was written",
            hint="run the write again",
        )
    for topic in sorted(done):
        log.info("txnVersion %d of %r is in topic %s already", write.app.version, write.app.app_id, topic)
    return done


def _topics_done(store: Store, cursor: Cursor, app: AppVersion) -> frozenset[str]:
    there = set(store.topics(internal=True)) & {place.topic for place in cursor}
    return topics_done(cursor, app, {topic: store.describe_topic(topic).topic_id or ZERO_UUID for topic in there})


def _is_there(cursor: Cursor, write: WriteId) -> bool:
    """Whether the micro-batch was committed before.  Raises IllegalStateException if a later one was."""
    done = max((_batch_id(each.metadata) for each in cursor.values()), default=-1)
    if write.batch_id is None or done < write.batch_id:
        return False
    if done > write.batch_id:
        raise IllegalStateException(
            f"found micro-batch {done} of query {write.name}, but this is micro-batch {write.batch_id}: the checkpoint "
            "is from an earlier time, or another driver runs the same query",
            hint="stop the other driver; after a restore of the checkpoint it is unknown which rows are written: start "
            f"with a new checkpoint (or delete the cursor {write.transactional_id} to write again what came since)",
        )
    log.info("micro-batch %d of query %s is committed already", write.batch_id, write.name)
    return True


def _batch_id(metadata: str) -> int:
    """Returns the batch id in a cursor's metadata, or -1 if the metadata is not the sink's."""
    try:
        found = json.loads(metadata)["batchId"]
    except (ValueError, TypeError, KeyError):
        return -1
    return found if isinstance(found, int) else -1


def _create_topics(store: Store, options: SinkOptions, topics: Set[str]) -> None:
    if not options.creates_topics:
        return
    there = set(store.topics(internal=True))
    for name in sorted(topics - there):
        store.create_topic(name, options.new_partitions, exist_ok=True)


def _append(store: Store, files: Sequence[StagedFile], write: WriteId, cursor: Cursor, topics: Set[str]) -> None:
    ends: dict[TopicPartition, int] = {}
    appended = 0
    is_whole = False
    try:
        with store.transaction(write.transactional_id, timeout_ms=TIMEOUT_MS) as txn, _removed_on_failure(files):
            with ThreadPoolExecutor(1) as syncing, contextlib.closing(_ahead(_runs(files))) as runs:
                synced: list[Future[None]] = []
                for run, batches, is_last in runs:
                    with naming_the_partition(run.topic, run.partition):
                        offsets = txn.append_batches(run.topic, batches, run.partition)
                    ends[TopicPartition(run.topic, run.partition)] = offsets.stop
                    appended += len(offsets)
                    if is_last:
                        synced.append(syncing.submit(_sync, store, dict(ends)))
                for each in synced:
                    each.result()
            if write.cursor is not None:
                txn.commit_offsets(_moved(cursor, store, ends, topics, write), cursor=write.cursor)
            is_whole = True
    except KafkalogError as error:
        if appended and not is_whole:  # else its end failed, and it may be committed
            _tell_left(error, appended, ends)
        raise


def _tell_left(error: KafkalogError, records: int, ends: Mapping[TopicPartition, int]) -> None:
    """Adds to an error what an aborted write leaves in the logs."""
    places = sorted(map(str, ends))
    shown = ", ".join(places[:5]) + (f" and {len(places) - 5} more" if len(places) > 5 else "")
    left = (
        f"at least {records} records that this write has appended to {shown} are aborted, at the latest when the "
        "directory is opened again; they stay until retention or compaction removes them, and a default read returns "
        "them: a read with kafka.isolation.level=read_committed (isolation='read_committed' in Python) does not"
    )
    error.hint = f"{error.hint}; {left}" if error.hint else left


def _sync(store: Store, ends: Mapping[TopicPartition, int]) -> None:
    """Syncs the appended records to disk while more are appended, so that the end of the transaction waits less."""
    for place, end in ends.items():
        store.topic(place.topic).appends(place.partition).after_append(end)


class _Staged(NamedTuple):
    run: Run
    batches: ReadyBatches
    is_last: bool  # in its file


def _runs(files: Sequence[StagedFile]) -> Iterator[_Staged]:
    """Yields the checked runs of the files; deletes each file once it is read."""
    for staged in files:
        try:
            with OS_FILES.open(staged.path, writable=False) as file:
                for number, run in enumerate(staged.runs, 1):
                    yield _Staged(run, _read(file, run, staged.path), number == len(staged.runs))
        except FileNotFoundError as error:
            raise NoSuchFileException(
                "a file that a task has staged no longer exists",
                path=staged.path,
                hint="the driver must see the directory that executors write to: set option stagingPath",
            ) from error
        except OSError as error:
            raise KafkaStorageException.because_of(error, "cannot read a file that a task has staged") from error
        remove(staged.path)


def _ahead(items: Iterator[_Staged]) -> Generator[_Staged, None, None]:
    """Yields the same items, and reads the next one in another thread meanwhile."""
    with ThreadPoolExecutor(1) as reading:
        following = reading.submit(next, items, None)
        while (found := following.result()) is not None:
            following = reading.submit(next, items, None)
            yield found


def _read(file: File, run: Run, path: str) -> ReadyBatches:
    data = file.pread(run.size_bytes, run.position)
    if len(data) != run.size_bytes:
        raise CorruptRecordException(
            f"found {len(data)} bytes, expected the {run.size_bytes} that were staged", path=path, position=run.position
        )
    try:
        batches = ReadyBatches(data)
    except CorruptRecordException as error:
        error.path, error.position = path, run.position + (error.position or 0)
        raise
    if batches.record_count != run.record_count:
        raise CorruptRecordException(
            f"found {batches.record_count} records, expected the {run.record_count} that were staged",
            path=path,
            position=run.position,
        )
    return batches


def _moved(
    cursor: Cursor, store: Store, ends: Mapping[TopicPartition, int], topics: Set[str], write: WriteId
) -> Cursor:
    """Returns the cursor after this write: one entry a topic, at partition 0, that never expires.

    The entry's offset is the end of what the query or the application has written to that partition.  With one entry a
    topic, deleting a topic keeps the entries of the others.
    """
    moved: dict[TopicPartition, CommittedOffset] = {}
    for topic in topics:
        place = TopicPartition(topic, 0)
        before = cursor.get(place)
        topic_id = store.describe_topic(topic).topic_id or ZERO_UUID
        moved[place] = CommittedOffset(
            ends.get(place, 0 if before is None else before.offset),
            metadata=write.metadata(topic_id),
            expire_timestamp=LONG_MAX,
            topic_id=topic_id,
        )
    return moved
