"""The committer: the one process that opens the directory, and appends what executors have staged.

Runs on the driver's side, once all tasks are done.  All runs of all files go in, as they are, inside one transaction of
the store: readers of committed records see all of it or nothing, whatever is killed when.  Of a stream the same
transaction moves a cursor, `spark-<query id>`, whose metadata says which micro-batch that was; who comes again with
that one finds it there and leaves.  Spark repeats none but the last: who comes with an earlier one has a checkpoint of
an earlier time, whose next micro-batches are others than those that are there, and is refused.  A batch write with
txnAppId and txnVersion does the same with a cursor of its application (`idempotent`), topic by topic, and passes over
what is there.  A directory has one holder at a time: who comes while another has it waits for as long as
`kafka.max.block.ms` says.

Three threads: one reads and checks what comes next, one appends, one has the disk take what was appended.
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
    """The topics that rows may go to, as they are now; without the directory's lock.  NoSuchFileException for a
    directory that nobody made, IllegalArgumentException for what is none."""
    there = [path for path in options.paths if OS_FILES.is_dir(path)]
    for path in options.paths:
        if path not in there and OS_FILES.exists(path):
            raise IllegalArgumentException("found a file, expected a log directory", path=path)
        refuse_foreign(path, OS_FILES)
    if not there and options.creates_topics:
        return {}
    if not there:
        raise NoSuchFileException(
            "no such log directory", path=options.paths[0], hint="the option createTopics makes it, with its topics"
        )
    check_taken_over(there, OS_FILES, take_over=options.take_over)
    with open_store(there, read_only=True) as store:
        names = store.topics(internal=True)
        if options.topic is not None:
            names = [options.topic] if options.topic in names else []
        infos = [store.describe_topic(name) for name in names]
    return {info.name: TopicFacts(info.partitions, dict(info.overrides)) for info in infos}


def is_done(options: SinkOptions) -> bool:
    """Whether the topic that all rows go to has this version of the application already; without the directory's
    lock.  What is said here the commit looks at again."""
    there = [path for path in options.paths if OS_FILES.is_dir(path)]
    if options.app is None or options.topic is None or not there:
        return False
    with open_store(there, read_only=True) as store:
        return options.topic in _topics_done(store, store.committed(options.app.cursor), options.app)


def commit(options: SinkOptions, files: Sequence[StagedFile], write: WriteId, *, was_done: bool = False) -> None:
    """Appends all that was staged, or nothing; a stream's micro-batch once, however often it comes, and so what a
    version of an application brings to a topic.  What is staged of this write is removed, also if it fails once the
    store is open.  `was_done`: nothing was staged, since all was there.  LogDirLockedException, KafkaStorageException
    if the disks have less room than it needs, and what the store raises."""
    filled = [each for each in files if each.runs]
    topics = {run.topic for each in filled for run in each.runs}
    if write.app is not None and options.topic is not None:
        topics.add(options.topic)  # no rows are a version, too
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
    """What the files have for these topics."""
    cut = [replace(each, runs=tuple(run for run in each.runs if run.topic in topics)) for each in files]
    return [each for each in cut if each.runs]


@contextlib.contextmanager
def _removed_on_failure(files: Sequence[StagedFile]) -> Iterator[None]:
    """Removes what is staged if the block fails: whoever writes again stages again, and a disk that is full has room
    then for what ends the transaction."""
    try:
        yield
    except BaseException:
        for each in files:
            remove(each.path)
        raise


def _log_dir_of(store: Store, partition: TopicPartition) -> str:
    return store.topic(partition.topic).appends(partition.partition).engine.parent_dir


def _opened(options: SinkOptions) -> Store:
    """The store, as soon as nobody else has it."""
    until = time.monotonic() + options.max_block_ms / 1000
    while True:
        try:
            # Nothing but the write: retention and compaction are for whoever lives longer.
            return open_alone(options.paths, durability=options.durability, take_over=options.take_over)
        except LogDirLockedException as error:
            if time.monotonic() >= until:
                error.hint = (
                    f"the sink appends by itself, and waited for {options.max_block_ms} ms (kafka.max.block.ms): stop "
                    "the broker, or close the store, that has the directory"
                )
                raise
            time.sleep(LOOK_AGAIN_S)


@contextlib.contextmanager
def _closing(store: Store) -> Iterator[None]:
    """Closes the store.  Behind a commit that is no reason to say that nothing was written: who hears so does it again;
    the next open makes whole what this close has left."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(KafkalogError):
            store.close()
        raise
    try:
        store.close()
    except (KafkalogError, OSError) as error:
        log.warning("all is committed, but the directory was not closed cleanly: %s", error)


def _there(store: Store, cursor: Cursor, write: WriteId, topics: Set[str], *, was_done: bool) -> Set[str]:
    """Which of the topics have what this write brings."""
    if write.app is None:
        return topics if _is_there(cursor, write) else frozenset()
    done = topics & _topics_done(store, cursor, write.app)
    if was_done and topics - done:
        raise IllegalStateException(
            f"txnVersion {write.app.version} of {write.app.app_id!r} was there, and is not any more: its topic or its "
            "cursor was deleted while this write was at work; nothing was written",
            hint="write it again",
        )
    for topic in sorted(done):
        log.info("txnVersion %d of %r is in topic %s already", write.app.version, write.app.app_id, topic)
    return done


def _topics_done(store: Store, cursor: Cursor, app: AppVersion) -> frozenset[str]:
    there = set(store.topics(internal=True)) & {place.topic for place in cursor}
    return topics_done(cursor, app, {topic: store.describe_topic(topic).topic_id or ZERO_UUID for topic in there})


def _is_there(cursor: Cursor, write: WriteId) -> bool:
    """Whether the micro-batch is there.  IllegalStateException where a later one is."""
    done = max((_batch_id(each.metadata) for each in cursor.values()), default=-1)
    if write.batch_id is None or done < write.batch_id:
        return False
    if done > write.batch_id:
        raise IllegalStateException(
            f"found micro-batch {done} of query {write.name}, and this is micro-batch {write.batch_id}: its checkpoint "
            "is of an earlier time, or another driver goes on with it",
            hint="stop the other driver; with a restored checkpoint nobody knows which rows are there: begin with a "
            f"new one (or delete the cursor {write.transactional_id}: what came since is written again)",
        )
    log.info("micro-batch %d of query %s is there already", write.batch_id, write.name)
    return True


def _batch_id(metadata: str) -> int:
    """-1 where somebody else has set the cursor."""
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
        if appended and not is_whole:  # else the end of the transaction failed, and the decision may stand
            _tell_left(error, appended, ends)
        raise


def _tell_left(error: KafkalogError, records: int, ends: Mapping[TopicPartition, int]) -> None:
    """What a write that is aborted leaves in the logs."""
    places = sorted(map(str, ends))
    shown = ", ".join(places[:5]) + (f" and {len(places) - 5} more" if len(places) > 5 else "")
    left = (
        f"at least {records} records that this write has appended to {shown} are aborted, at the latest when the "
        "directory is opened again; they stay until retention or compaction removes them, and a default read counts "
        "them: one with kafka.isolation.level=read_committed (isolation='read_committed' in Python) does not"
    )
    error.hint = f"{error.hint}; {left}" if error.hint else left


def _sync(store: Store, ends: Mapping[TopicPartition, int]) -> None:
    """What the end of the transaction would do, while more is appended."""
    for place, end in ends.items():
        store.topic(place.topic).appends(place.partition).after_append(end)


class _Staged(NamedTuple):
    run: Run
    batches: ReadyBatches
    is_last: bool  # of its file


def _runs(files: Sequence[StagedFile]) -> Iterator[_Staged]:
    """What is in the files, looked at; each file goes once it is read."""
    for staged in files:
        try:
            with OS_FILES.open(staged.path, writable=False) as file:
                for number, run in enumerate(staged.runs, 1):
                    yield _Staged(run, _read(file, run, staged.path), number == len(staged.runs))
        except FileNotFoundError as error:
            raise NoSuchFileException(
                "what a task has staged is gone",
                path=staged.path,
                hint="the driver must see the folder that executors write to: the option stagingPath",
            ) from error
        except OSError as error:
            raise KafkaStorageException.because_of(error, "cannot read what a task has staged") from error
        remove(staged.path)


def _ahead(items: Iterator[_Staged]) -> Generator[_Staged, None, None]:
    """The same; while one is at work, another thread gets the next."""
    with ThreadPoolExecutor(1) as reading:
        following = reading.submit(next, items, None)
        while (found := following.result()) is not None:
            following = reading.submit(next, items, None)
            yield found


def _read(file: File, run: Run, path: str) -> ReadyBatches:
    data = file.pread(run.size_bytes, run.position)
    if len(data) != run.size_bytes:
        raise CorruptRecordException(
            f"found {len(data)} bytes, {run.size_bytes} were staged", path=path, position=run.position
        )
    try:
        batches = ReadyBatches(data)
    except CorruptRecordException as error:
        error.path, error.position = path, run.position + (error.position or 0)
        raise
    if batches.record_count != run.record_count:
        raise CorruptRecordException(
            f"found {batches.record_count} records, {run.record_count} were staged", path=path, position=run.position
        )
    return batches


def _moved(
    cursor: Cursor, store: Store, ends: Mapping[TopicPartition, int], topics: Set[str], write: WriteId
) -> Cursor:
    """One entry a topic, so that who deletes one topic leaves the others', and none that expires: of partition 0, with
    the end of what the query or the application has written there."""
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
