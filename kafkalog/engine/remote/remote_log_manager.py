"""RemoteLogManager: the remote tier of all logs of one process, which copies, expires, deletes and shows it to readers.

    manager = RemoteLogManager(storage, metadata, ...)
    manager.on_leadership_change(log)     # from now on it is copied, and its readers find what is there
    manager.run_once(log)                 # copy and expire now; `startup` has threads do it again and again

Each log that uses the tier has a copy task and an expiration task; a process has the logs alone, so it is their leader.
A task that fails is tried again; nothing that fails here keeps a log from being written to, or read where it is on the
disk.  Whoever deletes a topic calls `stop_partition(delete=True)`, and what a crash leaves of that is gone on with by
`finish_deletions`.  A deletion takes what there was when it began: until it is finished, nothing of the partition is
copied, and its log, if it uses the tier again, has nothing there.

A log that leaves keeps its place among the tasks until they have ended, so whatever takes that place waits for the same
copy.  With the note of a deletion its log forgets its copies, and a log that joins looks for notes behind its joining:
one of the two sees the other.  Whether a deletion is meant is asked where it is noted, and what goes on with one notes
none.  Locks, outermost first: `_deleting` or `changing`, `running` of a partition's tasks, the log's own, `_lock`.

Source class: RemoteLogManager (4.4.0).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kafkalog import _shown
from kafkalog._limits import INT_MAX, LONG_MAX
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import values
from kafkalog.engine.log.types import UNKNOWN_OFFSET
from kafkalog.engine.remote.chunks import Chunks
from kafkalog.engine.remote.copying import RLMCopyTask, Tools, find_highest_remote_offset
from kafkalog.engine.remote.expiring import RLMExpirationTask
from kafkalog.engine.remote.index_cache import DISK_BYTES, RemoteIndexCache
from kafkalog.engine.remote.objects import HASTY_TIMEOUT_S
from kafkalog.engine.remote.opening import hasty, lost_in
from kafkalog.engine.remote.partition_tier import PartitionTier
from kafkalog.engine.remote.quota import RLMQuotaManager
from kafkalog.engine.remote.remote_metrics import RemoteTopicMetrics
from kafkalog.engine.remote.segment import (
    COPY_SEGMENT_FINISHED,
    DELETE_SEGMENT_FINISHED,
    DELETE_SEGMENT_STARTED,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from kafkalog.errors import (
    IllegalArgumentException,
    KafkalogError,
    KafkaStorageException,
    RetriableRemoteStorageException,
    SchemaException,
)

if TYPE_CHECKING:
    from kafkalog.engine.files import Clock
    from kafkalog.engine.log.unified_log import UnifiedLog
    from kafkalog.engine.remote.metadata_manager import TopicBasedRemoteLogMetadataManager
    from kafkalog.engine.remote.storage import RemoteStorageManager
    from kafkalog.metrics.registry import MetricsRegistry

_log = Lines("kafkalog.remote")


class RemoteLogManagerConfig(NamedTuple):
    """Kafka's settings of these names, with its defaults; times in the unit of each name."""

    task_interval_ms: int = 30_000  # remote.log.manager.task.interval.ms
    copier_threads: int = 10  # remote.log.manager.copier.thread.pool.size
    custom_metadata_max_bytes: int = 128  # remote.log.metadata.custom.metadata.max.bytes
    copy_max_bytes_per_second: int = LONG_MAX  # remote.log.manager.copy.max.bytes.per.second
    copy_quota_samples: int = 11  # remote.log.manager.copy.quota.window.num
    copy_quota_window_s: int = 1  # remote.log.manager.copy.quota.window.size.seconds
    index_cache_bytes: int = DISK_BYTES  # remote.log.index.file.cache.total.size.bytes

    def __repr__(self) -> str:
        return _shown.changed(self)

    def checked(self) -> RemoteLogManagerConfig:
        """These, with every number in the range of Kafka's key.  IllegalArgumentException, also for other things."""
        if not isinstance(self, RemoteLogManagerConfig):
            raise IllegalArgumentException(
                f"tiering: found {values.shown(self)}, expected a kafkalog.RemoteLogManagerConfig"
            )
        for name, value in self._asdict().items():
            low, high = _BOUNDS.get(name, (1, LONG_MAX))
            values.count(value, f"RemoteLogManagerConfig.{name}", low=low, high=high)
        return self


# Of those that Kafka does not take from 1 to the end of 64 bits.
_BOUNDS = {
    "copier_threads": (1, INT_MAX),
    "custom_metadata_max_bytes": (0, INT_MAX),
    "copy_quota_samples": (1, INT_MAX),
    "copy_quota_window_s": (1, INT_MAX),
}


class _Tasks(NamedTuple):
    log: UnifiedLog
    copying: RLMCopyTask | None  # None while remote.log.copy.disable is set
    expiring: RLMExpirationTask
    tier: PartitionTier
    running: threading.Lock

    def cancel(self) -> None:
        if self.copying is not None:
            self.copying.cancel()
        self.expiring.cancel()


class RemoteLogManager:
    """RemoteLogManager.  Thread-safe."""

    copy_task_class = RLMCopyTask
    expiration_task_class = RLMExpirationTask

    # More than eight parameters: what it stands on, and they are named.
    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: TopicBasedRemoteLogMetadataManager,
        clock: Clock,
        registry: MetricsRegistry,
        *,
        log_dir: str | None,
        place: str,
        broker_id: int = 0,
        config: RemoteLogManagerConfig = RemoteLogManagerConfig(),  # noqa: B008 (it does not change)
        chunks: Chunks | None = None,
    ) -> None:
        self.storage = storage
        self.metadata = metadata
        self.config = config = RemoteLogManagerConfig.checked(config)
        self.place = place
        self.indexes = RemoteIndexCache(storage, log_dir, total_size_bytes=config.index_cache_bytes)
        self.chunks = Chunks() if chunks is None else chunks
        self._registry = registry
        self._metrics: dict[str, RemoteTopicMetrics] = {}
        self._lock = threading.RLock()
        self._tasks: dict[TopicIdPartition, _Tasks] = {}
        self._threads: list[threading.Thread] = []
        self._deleting = threading.Lock()  # held while a partition is deleted
        self.changing: AbstractContextManager[object] = (
            threading.RLock()
        )  # held while a deletion, or a setting, is noted
        self.deletions_ended: Counter[TopicIdPartition] = Counter()  # each counts before that is noted
        self._stopping = threading.Event()
        self._is_doubted = False  # whether this is the place that the metadata tells of
        quota = RLMQuotaManager(
            clock, config.copy_max_bytes_per_second, config.copy_quota_samples, config.copy_quota_window_s
        )
        self.copy_quota = quota
        self.on_copied: Callable[[int], object] | None = None  # told of the bytes of each segment that was copied
        self.deleted_topics: Callable[[], Collection[str]] = list  # ids of topics of which something may be left
        self._tools = Tools(
            storage,
            metadata,
            self.indexes,
            clock,
            broker_id=broker_id,
            copy_quota=quota,
            custom_metadata_max_bytes=config.custom_metadata_max_bytes,
            metrics_of=self.metrics_of,
            on_copied=lambda size: self.on_copied(size) if self.on_copied is not None else None,
        )

    def metrics_of(self, topic: str) -> RemoteTopicMetrics:
        """What is counted of a topic."""
        with self._lock:
            found = self._metrics.get(topic)
            if found is None:
                found = self._metrics[topic] = RemoteTopicMetrics(self._registry, topic)
            return found

    # --- whether it is the place that is meant -------------------------------------------------------------

    def check_place(self) -> None:
        """Asks for some of the segments that the metadata says are there (`lost_in`).  A storage that does not answer
        is asked again before anything is copied or deleted.

        IllegalArgumentException where it is another place; RemoteStorageException.
        """
        copied: list[RemoteLogSegmentMetadata] = []
        for partition in self.metadata.partitions():
            if self.metadata.deletion_of(partition) is None:
                with suppress(SchemaException):  # of events that cannot be read, which was told
                    listed = self.metadata.list_remote_log_segments(partition)
                    copied += [each for each in listed if each.state is COPY_SEGMENT_FINISHED]
        self._is_doubted = True
        lost = lost_in(self.storage, copied, self.place)
        self._is_doubted = False
        for each in lost:
            _log.warning(
                "%s: found nothing of segment %s of %s from offset %d on, which the metadata says was copied there",
                self.place,
                each.remote_log_segment_id.id,
                each.topic_id_partition.topic_partition,
                each.start_offset,
            )

    def doubt_place(self) -> None:
        """It did not answer: it is asked before anything is copied or deleted."""
        self._is_doubted = True

    def _is_settled(self) -> bool:
        """Whether there is no doubt of the place; it is asked where there is."""
        try:
            if self._is_doubted:
                self.check_place()
        except KafkalogError as error:
            _log.warning("nothing is copied to the remote tier, or deleted there, for now: %s", error)
        return not self._is_doubted

    # --- which logs ----------------------------------------------------------------------------------------

    def on_leadership_change(self, log: UnifiedLog) -> None:
        """A log is here, or its settings have changed: copied and shown from now on, where it uses the tier."""
        partition = self.add(log)
        has_left = log.config.remote_log_delete_on_disable and not log.remote_log_enabled
        if partition is None or not has_left:
            return
        if self.has(partition) or self.metadata.deletion_of(partition) is not None:
            self.leave(partition, log)

    def add(self, log: UnifiedLog) -> TopicIdPartition | None:
        """`on_leadership_change` for who has locks: what has left is not deleted.  None where the log is not the
        partition's."""
        if log.topic_id is None or log.is_future:
            return None
        partition = TopicIdPartition(log.topic_id, log.topic_partition)
        with self._lock:
            held = self._tasks.get(partition)
            is_mine = held is not None and held.log is log
            if log.local_log.is_closed or (log.refuses_changes and not is_mine):
                return None  # another one has taken its place, or the partition is gone
            if not log.remote_log_enabled:
                return partition
            if held is not None and is_mine and not held.expiring.cancelled.is_set():
                self._tasks[partition] = self._switched(partition, held)
                return partition
            running = threading.Lock()
            if held is not None:  # this one takes its place, or it is just leaving the tier
                held.cancel()
                running = held.running
                if not is_mine:
                    log.offset_being_copied = held.log.offset_being_copied
            self._begin(partition, log, running)
            if held is not None:
                held.tier.rest()
            return partition

    def _begin(self, partition: TopicIdPartition, log: UnifiedLog, running: threading.Lock) -> None:
        """Under the lock.  With tasks that know nothing of what was copied before."""
        tier = PartitionTier(partition, log, self.metadata, self.storage, self.indexes, self.chunks, self.place)
        copying = self.copy_task_class(partition, self._tools) if log.copies_to_remote else None
        expiring = self.expiration_task_class(partition, self._tools)
        log.tier = tier  # first: interrupted, all of it is done again
        self._tasks[partition] = _Tasks(log, copying, expiring, tier, running)

    def _switched(self, partition: TopicIdPartition, held: _Tasks) -> _Tasks:
        """With a copy task or without one, as remote.log.copy.disable says now; a new one looks anew."""
        if held.log.copies_to_remote and held.copying is None:
            return held._replace(copying=self.copy_task_class(partition, self._tools))
        if held.log.copies_to_remote:
            return held
        if held.copying is not None:
            held.copying.cancel()
            topic, number = partition.topic_partition
            self.metrics_of(topic).copy_lag(number, 0, 0)
        return held._replace(copying=None)

    def leave(self, partition: TopicIdPartition, log: UnifiedLog) -> None:
        """A log uses the tier no more: it starts with what is on the disk, and what the tier has of it is deleted."""
        self._stop(partition)
        try:
            self._note(partition, lambda: not log.remote_log_enabled)
            self.delete_remote_log_partition(partition, is_awaited=True)
        except KafkalogError as error:
            _log.warning("deleting %s in the remote tier goes on later: %s", partition, error)

    def tasks_of(self, log: UnifiedLog) -> tuple[RLMCopyTask | None, RLMExpirationTask] | None:
        """rlmCopyTask and rlmExpirationTask of a log; None where it does not use the tier."""
        with self._lock:
            return next(((each.copying, each.expiring) for each in self._tasks.values() if each.log is log), None)

    def cancel(self, topic_id: str) -> None:
        """A topic's logs are going to be stopped, one by one: no task of theirs begins another request."""
        with self._lock:
            for partition, held in self._tasks.items():
                if partition.topic_id == topic_id:
                    held.cancel()

    def stop_partition(self, topic_id: str, log: UnifiedLog, *, delete: bool) -> None:
        """A log goes; `delete`: what the tier has of it, too.  Errors are those of the storage: what is left then is
        deleted by `finish_deletions`."""
        partition = TopicIdPartition(topic_id, log.topic_partition)
        self._stop(partition, is_gone=True)
        if delete:
            self._note(partition)
            self.delete_remote_log_partition(partition, is_awaited=True)

    def _stop(self, partition: TopicIdPartition, *, is_gone: bool = False) -> None:
        """What the tasks of a partition are at ends, and its log leaves the tier; where that uses it all the same, it
        begins there anew.  `is_gone`: the log is going."""
        is_stopped = False
        while not is_stopped:
            with self._lock:
                held = self._tasks.get(partition)
                if held is not None:
                    held.cancel()
            if held is None:
                return
            with held.running:  # what it is at ends, or a segment would come behind the deletion
                is_stopped = self._end(partition, held, is_gone=is_gone)

    def _end(self, partition: TopicIdPartition, held: _Tasks, *, is_gone: bool) -> bool:
        """With none of the tasks at work.  False where others took their place meanwhile, which are to be stopped."""
        log = held.log
        leaves = not is_gone and (not log.remote_log_enabled or self._is_marked(partition))
        if leaves:
            try:
                log.leave_remote_tier()
            except KafkaStorageException as error:
                if not error.is_of_closed_log:
                    raise
                if not log.refuses_changes:  # a move of it came to nothing
                    return False
        with self._lock:
            if self._tasks.get(partition) is not held or not (leaves or is_gone or log.remote_log_enabled):
                return False
            if is_gone or not log.remote_log_enabled or log.local_log.is_closed or self._stopping.is_set():
                del self._tasks[partition]
                if log.tier is held.tier:
                    log.tier = None
                self.metrics_of(partition.topic_partition.topic).forget(partition.topic_partition.partition)
            else:
                self._begin(partition, log, held.running)
        held.tier.close()
        return True

    def _is_marked(self, partition: TopicIdPartition) -> bool:
        """Whether a deletion is noted, and nothing is deleted yet."""
        deletion = self.metadata.deletion_of(partition)
        return deletion is not None and deletion.state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED

    def delete_remote_log_partition(self, partition: TopicIdPartition, *, is_awaited: bool = False) -> None:
        """All segments of a partition go, if that is noted.  `is_awaited`: each request is tried once, and
        RetriableRemoteStorageException leaves the rest to `finish_deletions`."""
        if self.metadata.deletion_of(partition) is None:
            return
        turns: list[bool] = []
        try:
            # One call from bytecode: between two, an interrupt would leave the lock to nobody.
            turns.extend(map(self._deleting.acquire, [True], [HASTY_TIMEOUT_S if is_awaited else -1]))
            if not any(turns):
                raise RetriableRemoteStorageException("other deletions are under way", path=self.place)
            self._delete_partition(partition, hasty(self.storage, 1) if is_awaited else self.storage)
        finally:
            if any(turns):
                self._deleting.release()

    def _delete_partition(self, partition: TopicIdPartition, storage: RemoteStorageManager) -> None:
        if self.metadata.deletion_of(partition) is None:
            return  # another thread has finished it
        if self._is_doubted:
            self.check_place()
        if self._is_marked(partition):
            self._stop(partition)
            self._mark(partition, RemotePartitionDeleteState.DELETE_PARTITION_STARTED)
        segments = self.metadata.list_remote_log_segments(partition)
        for each in segments:
            if each.state is not DELETE_SEGMENT_STARTED:
                self._tools.update(each, DELETE_SEGMENT_STARTED)
        for each in segments:
            if self._stopping.is_set():
                return  # the next start goes on with it
            storage.delete_log_segment_data(each)
        self.indexes.remove_all(each.remote_log_segment_id.id for each in segments)
        for each in segments:
            self._tools.update(each, DELETE_SEGMENT_FINISHED)
        self.deletions_ended[partition] += 1
        self._mark(partition, RemotePartitionDeleteState.DELETE_PARTITION_FINISHED)

    def _mark(self, partition: TopicIdPartition, state: RemotePartitionDeleteState) -> None:
        tools = self._tools
        self.metadata.put_remote_partition_delete_metadata(
            RemotePartitionDeleteMetadata(partition, state, tools.clock.milliseconds(), tools.broker_id)
        )

    def _note(self, partition: TopicIdPartition, is_meant: Callable[[], bool] = lambda: True) -> None:
        """That all of a partition goes which is there now, unless that is noted; and its log has nothing there."""
        with self.changing:
            if self.metadata.deletion_of(partition) is not None:
                return
            if self.metadata.list_remote_log_segments(partition) and is_meant():
                self._forget_copies(partition)  # before, for an interrupt may come between
                self._mark(partition, RemotePartitionDeleteState.DELETE_PARTITION_MARKED)
                self._forget_copies(partition)  # of a log that joined meanwhile

    def _forget_copies(self, partition: TopicIdPartition) -> None:
        """Its log starts with what is on the disk, and what its tasks are at tells it of no copy any more."""
        with self._lock:
            held = self._tasks.get(partition)
        if held is not None:
            held.cancel()
            try:
                held.log.leave_remote_tier()
            except KafkaStorageException as error:
                if not error.is_of_closed_log:
                    raise

    def mark_deleted(
        self, topic_ids: Collection[str], is_meant: Callable[[TopicIdPartition], bool] = lambda partition: True
    ) -> bool:
        """Notes that these topics were deleted, or left the tier: what it has of them goes with `finish_deletions`.
        False where that could not be noted of a partition."""
        is_noted = True
        for partition in self.metadata.partitions() if topic_ids else ():
            if partition.topic_id in topic_ids:
                try:
                    self._note(partition, partial(is_meant, partition))
                except KafkalogError as error:
                    _log.warning("%s in the remote tier is deleted later: %s", partition, error)
                    is_noted = False
        return is_noted

    def finish_deletions(self) -> None:
        """Goes on with deletions of partitions that a crash, an interrupt, or the storage, cut short."""
        gone = self.deleted_topics()
        with self._lock:
            left = [each for each, held in self._tasks.items() if each.topic_id in gone and held.log.refuses_changes]
        for partition in left:
            self._stop(partition, is_gone=True)
        self.mark_deleted(gone, lambda partition: not self.has(partition))  # or a topic of that id is here again
        for partition in self.metadata.partitions():
            try:
                self.delete_remote_log_partition(partition)
            except KafkalogError as error:
                _log.warning("deleting %s in the remote tier goes on later: %s", partition, error)
                if self._is_doubted:  # nor does the place answer for the others
                    return

    # --- working -------------------------------------------------------------------------------------------

    def logs(self) -> list[UnifiedLog]:
        """Those that use the tier."""
        with self._lock:
            return [each.log for each in self._tasks.values()]

    def has(self, partition: TopicIdPartition) -> bool:
        """Whether its log uses the tier, or is just leaving it."""
        return partition in self._tasks

    def run_once(self, log: UnifiedLog | None = None) -> int:
        """Copies and expires now what is to be, of one log or of all; how many segments were copied.  Of all: deletions
        that were cut short are gone on with, too."""
        if not self._is_settled():
            return 0
        if log is None:
            self.finish_deletions()
        with self._lock:
            tasks = [each for each in self._tasks.values() if log is None or each.log is log]
        return sum(map(self._run, tasks))

    def _run(self, tasks: _Tasks) -> int:
        with tasks.running:
            copied, log, partition = 0, tasks.log, tasks.expiring.topic_id_partition
            if log.local_log.is_closed or self.metadata.deletion_of(partition) is not None:
                return 0
            if log.offset_being_copied != UNKNOWN_OFFSET:  # from the log before, and that copy has ended
                log.end_copy(find_highest_remote_offset(self.metadata, partition, log).offset)
            if tasks.copying is not None and tasks.log.copies_to_remote:
                copied = tasks.copying.run(tasks.log)
            if tasks.log.remote_log_enabled:
                tasks.expiring.run(tasks.log)
            return copied

    def startup(self) -> None:
        """From now on threads run all tasks, each again after remote.log.manager.task.interval.ms."""
        with self._lock:
            if self._threads:
                return
            self._threads = [
                threading.Thread(target=self._work_on, args=(n,), name=f"kafka-rlm-copy-thread-pool-{n}", daemon=True)
                for n in range(self.config.copier_threads)
            ]
            for thread in self._threads:
                thread.start()

    def _work_on(self, number: int) -> None:
        """A thread's share: every so many-th task, of those that there are then."""
        while not self._stopping.is_set():
            if number == 0 and self._is_settled():
                self._try(self.finish_deletions, "going on with deletions")
            with self._lock:
                mine = (
                    []
                    if self._is_doubted
                    else [tasks for at, tasks in enumerate(self._tasks.values()) if at % len(self._threads) == number]
                )
            for tasks in mine:
                if self._stopping.is_set():
                    return
                self._try(partial(self._run, tasks), f"a task of {tasks.expiring.topic_id_partition}")
            self._stopping.wait(min(self.config.task_interval_ms / 1000, threading.TIMEOUT_MAX))

    def _try(self, do: Callable[[], object], what: str) -> None:
        """What fails in a thread does so again at its next turn, and keeps no other from being done."""
        try:
            do()
        except Exception:
            if not self._stopping.is_set():
                _log.exception("%s failed", what)

    def close(self) -> None:
        """Ends the tasks.  An upload that is under way is waited for, unless it waits itself, for the limit of the rate
        or another try: that is given up, and the next start deletes what is there of it."""
        self._stopping.set()
        with self._lock:
            tasks, threads = list(self._tasks.values()), self._threads
        for each in tasks:
            each.cancel()
        self.storage.close()
        for thread in threads:
            thread.join()
        for each in tasks:
            each.tier.close()
        self.chunks.close()

    def abandon(self) -> None:
        """Lets go without waiting: the process is a child, or the store was dropped."""
        self._stopping.set()
        for each in list(self._tasks.values()):
            each.cancel()
