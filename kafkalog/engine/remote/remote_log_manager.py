"""RemoteLogManager: the remote tier of all logs of one process.  It copies, expires and deletes, and serves readers.

    manager = RemoteLogManager(storage, metadata, ...)
    manager.on_leadership_change(log)     # from now on it is copied, and its readers see the tier
    manager.run_once(log)                 # copy and expire now; `startup` starts threads that do it repeatedly

Each log that uses the tier has a copy task and an expiration task.  One process owns the logs, so it is always their
leader.  A failed task is tried again.  No failure here stops a log from being written, or read as far as it is on disk.
Code that deletes a topic calls `stop_partition(delete=True)`; `finish_deletions` completes what a crash interrupts.  A
deletion covers what existed when it began.  Until it is finished, nothing of the partition is copied, and its log, if
it uses the tier again, has nothing there.

A log that leaves keeps its place among the tasks until they have ended.  So a log that takes that place waits for the
same copy.  When a deletion is noted, its log forgets its copies; a log that joins looks for such notes after it has
joined.  So one of the two always sees the other.  Whether a deletion is intended is checked when it is noted; code that
continues a deletion notes none.  Locks, outermost first: `_deleting` or `changing`, `running` of a partition's tasks,
the log's own lock, `_lock`.

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
    """Settings of the remote tier: Kafka's broker settings for tiered storage, with Kafka's defaults.

    Pass it as `tiering` when you open a store with a remote tier.  It cannot be changed; `_replace` returns a changed
    copy.

    Args:
        task_interval_ms: Milliseconds between two runs of a log's copy and expiration tasks; 30,000 by default
            (`remote.log.manager.task.interval.ms`).
        copier_threads: Number of threads that run these tasks; 10 by default
            (`remote.log.manager.copier.thread.pool.size`).
        custom_metadata_max_bytes: Largest size in bytes of the custom metadata of a segment; 128 by default
            (`remote.log.metadata.custom.metadata.max.bytes`).
        copy_max_bytes_per_second: Limit for copying, in bytes a second over all logs; unlimited (2^63 - 1) by default
            (`remote.log.manager.copy.max.bytes.per.second`).
        copy_quota_samples: Number of windows over which the rate is measured; 11 by default
            (`remote.log.manager.copy.quota.window.num`).
        copy_quota_window_s: Length of a window in seconds; 1 by default
            (`remote.log.manager.copy.quota.window.size.seconds`).
        index_cache_bytes: Largest total size in bytes of the indexes that are kept on disk; 1 GiB by default
            (`remote.log.index.file.cache.total.size.bytes`).

    Example:
        >>> from kafkalog import RemoteLogManagerConfig
        >>> settings = RemoteLogManagerConfig(task_interval_ms=5_000, copier_threads=2)
        >>> settings.copier_threads
        2
        >>> settings.index_cache_bytes
        1073741824
        >>> settings
        RemoteLogManagerConfig(task_interval_ms=5000, copier_threads=2)
    """

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
        """Checks that every number is in the range of Kafka's setting.

        Returns:
            The same settings.

        Raises:
            IllegalArgumentException: A number is out of range or not a whole number, or `self` is not a
                RemoteLogManagerConfig.

        Example:
            >>> from kafkalog import RemoteLogManagerConfig
            >>> RemoteLogManagerConfig(copier_threads=0).checked()
            Traceback (most recent call last):
                ...
            kafkalog.errors.IllegalArgumentException: RemoteLogManagerConfig.copier_threads: ...
        """
        if not isinstance(self, RemoteLogManagerConfig):
            raise IllegalArgumentException(
                f"tiering: found {values.shown(self)}, expected a kafkalog.RemoteLogManagerConfig"
            )
        for name, value in self._asdict().items():
            low, high = _BOUNDS.get(name, (1, LONG_MAX))
            values.count(value, f"RemoteLogManagerConfig.{name}", low=low, high=high)
        return self


# The ranges of settings for which Kafka does not allow 1 to 2^63 - 1.
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

    # More than eight parameters: dependencies, passed by name.
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
        self.changing: AbstractContextManager[object] = threading.RLock()  # held while a deletion or a setting is noted
        self.deletions_ended: Counter[TopicIdPartition] = Counter()  # incremented before the end of a deletion is noted
        self._stopping = threading.Event()
        self._is_doubted = False  # whether this may be another place than the metadata describes
        quota = RLMQuotaManager(
            clock, config.copy_max_bytes_per_second, config.copy_quota_samples, config.copy_quota_window_s
        )
        self.copy_quota = quota
        self.on_copied: Callable[[int], object] | None = None  # called with the size in bytes of each copied segment
        # returns the ids of deleted topics that may have left objects
        self.deleted_topics: Callable[[], Collection[str]] = list
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
        """Returns the metrics of a topic."""
        with self._lock:
            found = self._metrics.get(topic)
            if found is None:
                found = self._metrics[topic] = RemoteTopicMetrics(self._registry, topic)
            return found

    # --- whether this is the right place --------------------------------------------------------------------

    def check_place(self) -> None:
        """Checks that some of the segments in the metadata exist (`lost_in`).

        If the storage does not answer, the check is repeated before anything is copied or deleted.  Raises
        IllegalArgumentException if it is another place, and RemoteStorageException.
        """
        copied: list[RemoteLogSegmentMetadata] = []
        for partition in self.metadata.partitions():
            if self.metadata.deletion_of(partition) is None:
                with suppress(SchemaException):  # events that cannot be read, which has been logged
                    listed = self.metadata.list_remote_log_segments(partition)
                    copied += [each for each in listed if each.state is COPY_SEGMENT_FINISHED]
        self._is_doubted = True
        lost = lost_in(self.storage, copied, self.place)
        self._is_doubted = False
        for each in lost:
            _log.warning(
                "%s: segment %s of %s from offset %d on does not exist, but the metadata says it was copied there",
                self.place,
                each.remote_log_segment_id.id,
                each.topic_id_partition.topic_partition,
                each.start_offset,
            )

    def doubt_place(self) -> None:
        """Notes that the place did not answer: it is checked before anything is copied or deleted."""
        self._is_doubted = True

    def _is_settled(self) -> bool:
        """Returns whether the place is known to be right; checks it if it is in doubt."""
        try:
            if self._is_doubted:
                self.check_place()
        except KafkalogError as error:
            _log.warning("copying to the remote tier and deleting there are paused: %s", error)
        return not self._is_doubted

    # --- which logs ----------------------------------------------------------------------------------------

    def on_leadership_change(self, log: UnifiedLog) -> None:
        """Handles a new log or changed settings: from now on the log is copied and its remote part readable, if it uses
        the tier."""
        partition = self.add(log)
        has_left = log.config.remote_log_delete_on_disable and not log.remote_log_enabled
        if partition is None or not has_left:
            return
        if self.has(partition) or self.metadata.deletion_of(partition) is not None:
            self.leave(partition, log)

    def add(self, log: UnifiedLog) -> TopicIdPartition | None:
        """Does `on_leadership_change` for a caller that holds locks: it does not delete what a leaving log has in the
        tier.

        Returns None if the log is not the current one of its partition.
        """
        if log.topic_id is None or log.is_future:
            return None
        partition = TopicIdPartition(log.topic_id, log.topic_partition)
        with self._lock:
            held = self._tasks.get(partition)
            is_mine = held is not None and held.log is log
            if log.local_log.is_closed or (log.refuses_changes and not is_mine):
                return None  # another log has replaced it, or the partition is deleted
            if not log.remote_log_enabled:
                return partition
            if held is not None and is_mine and not held.expiring.cancelled.is_set():
                self._tasks[partition] = self._switched(partition, held)
                return partition
            running = threading.Lock()
            if held is not None:  # this one replaces it, or it is just leaving the tier
                held.cancel()
                running = held.running
                if not is_mine:
                    log.offset_being_copied = held.log.offset_being_copied
            self._begin(partition, log, running)
            if held is not None:
                held.tier.rest()
            return partition

    def _begin(self, partition: TopicIdPartition, log: UnifiedLog, running: threading.Lock) -> None:
        """Creates tasks that know nothing of earlier copies; under the lock."""
        tier = PartitionTier(partition, log, self.metadata, self.storage, self.indexes, self.chunks, self.place)
        copying = self.copy_task_class(partition, self._tools) if log.copies_to_remote else None
        expiring = self.expiration_task_class(partition, self._tools)
        log.tier = tier  # first: if interrupted, all of it is repeated
        self._tasks[partition] = _Tasks(log, copying, expiring, tier, running)

    def _switched(self, partition: TopicIdPartition, held: _Tasks) -> _Tasks:
        """Returns the tasks with or without a copy task, by remote.log.copy.disable; a new copy task starts from
        scratch."""
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
        """Makes a log leave the tier: it then starts with what is on disk, and its remote segments are deleted."""
        self._stop(partition)
        try:
            self._note(partition, lambda: not log.remote_log_enabled)
            self.delete_remote_log_partition(partition, is_awaited=True)
        except KafkalogError as error:
            _log.warning("deleting %s in the remote tier failed and will be continued: %s", partition, error)

    def tasks_of(self, log: UnifiedLog) -> tuple[RLMCopyTask | None, RLMExpirationTask] | None:
        """Returns rlmCopyTask and rlmExpirationTask of a log; None if it does not use the tier."""
        with self._lock:
            return next(((each.copying, each.expiring) for each in self._tasks.values() if each.log is log), None)

    def cancel(self, topic_id: str) -> None:
        """Cancels the tasks of a topic whose logs will be stopped one by one: they begin no further request."""
        with self._lock:
            for partition, held in self._tasks.items():
                if partition.topic_id == topic_id:
                    held.cancel()

    def stop_partition(self, topic_id: str, log: UnifiedLog, *, delete: bool) -> None:
        """Stops a log's tasks because the log is closed or deleted; `delete` also deletes its remote segments.

        Errors are those of the storage; `finish_deletions` then deletes the rest.
        """
        partition = TopicIdPartition(topic_id, log.topic_partition)
        self._stop(partition, is_gone=True)
        if delete:
            self._note(partition)
            self.delete_remote_log_partition(partition, is_awaited=True)

    def _stop(self, partition: TopicIdPartition, *, is_gone: bool = False) -> None:
        """Ends the tasks of a partition and makes its log leave the tier.

        If the log still uses the tier, it starts there again from scratch.  `is_gone` means that the log is closed or
        deleted.
        """
        is_stopped = False
        while not is_stopped:
            with self._lock:
                held = self._tasks.get(partition)
                if held is not None:
                    held.cancel()
            if held is None:
                return
            with held.running:  # wait for its current work; otherwise a segment could be copied after the deletion
                is_stopped = self._end(partition, held, is_gone=is_gone)

    def _end(self, partition: TopicIdPartition, held: _Tasks, *, is_gone: bool) -> bool:
        """Removes a partition's tasks while none of them runs.

        Returns False if other tasks took their place meanwhile, which must be stopped.
        """
        log = held.log
        leaves = not is_gone and (not log.remote_log_enabled or self._is_marked(partition))
        if leaves:
            try:
                log.leave_remote_tier()
            except KafkaStorageException as error:
                if not error.is_of_closed_log:
                    raise
                if not log.refuses_changes:  # a move of it was abandoned
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
        """Returns whether a deletion is noted, and nothing is deleted yet."""
        deletion = self.metadata.deletion_of(partition)
        return deletion is not None and deletion.state is RemotePartitionDeleteState.DELETE_PARTITION_MARKED

    def delete_remote_log_partition(self, partition: TopicIdPartition, *, is_awaited: bool = False) -> None:
        """Deletes all segments of a partition, if its deletion is noted.

        With `is_awaited`, each request is tried once, and RetriableRemoteStorageException leaves the rest to
        `finish_deletions`.
        """
        if self.metadata.deletion_of(partition) is None:
            return
        turns: list[bool] = []
        try:
            # A single call from bytecode: between two, an interrupt could leave the lock held.
            turns.extend(map(self._deleting.acquire, [True], [HASTY_TIMEOUT_S if is_awaited else -1]))
            if not any(turns):
                raise RetriableRemoteStorageException("other deletions are running", path=self.place)
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
                return  # the next start continues it
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
        """Notes that all current segments of a partition are to be deleted, unless that is noted; its log forgets its
        copies."""
        with self.changing:
            if self.metadata.deletion_of(partition) is not None:
                return
            if self.metadata.list_remote_log_segments(partition) and is_meant():
                self._forget_copies(partition)  # before it, because an interrupt may come between
                self._mark(partition, RemotePartitionDeleteState.DELETE_PARTITION_MARKED)
                self._forget_copies(partition)  # again, for a log that joined meanwhile

    def _forget_copies(self, partition: TopicIdPartition) -> None:
        """Makes a log start with what is on disk; its running tasks report no further copy to it."""
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
        """Notes that these topics were deleted, or left the tier; `finish_deletions` deletes what they have there.

        Returns False if the note failed for a partition.
        """
        is_noted = True
        for partition in self.metadata.partitions() if topic_ids else ():
            if partition.topic_id in topic_ids:
                try:
                    self._note(partition, partial(is_meant, partition))
                except KafkalogError as error:
                    _log.warning("deleting %s in the remote tier failed and will be tried again: %s", partition, error)
                    is_noted = False
        return is_noted

    def finish_deletions(self) -> None:
        """Continues deletions of partitions that a crash, an interrupt or the storage stopped."""
        gone = self.deleted_topics()
        with self._lock:
            left = [each for each, held in self._tasks.items() if each.topic_id in gone and held.log.refuses_changes]
        for partition in left:
            self._stop(partition, is_gone=True)
        self.mark_deleted(gone, lambda partition: not self.has(partition))  # unless a topic of that id exists again
        for partition in self.metadata.partitions():
            try:
                self.delete_remote_log_partition(partition)
            except KafkalogError as error:
                _log.warning("deleting %s in the remote tier failed and will be continued: %s", partition, error)
                if self._is_doubted:  # the place does not answer for the others either
                    return

    # --- running tasks -------------------------------------------------------------------------------------

    def logs(self) -> list[UnifiedLog]:
        """Returns the logs that use the tier."""
        with self._lock:
            return [each.log for each in self._tasks.values()]

    def has(self, partition: TopicIdPartition) -> bool:
        """Returns whether a partition's log uses the tier, or is just leaving it."""
        return partition in self._tasks

    def run_once(self, log: UnifiedLog | None = None) -> int:
        """Copies and expires now, for one log or for all; returns how many segments were copied.

        For all logs it also continues interrupted deletions.
        """
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
            if log.offset_being_copied != UNKNOWN_OFFSET:  # set by the log before this one, whose copy has ended
                log.end_copy(find_highest_remote_offset(self.metadata, partition, log).offset)
            if tasks.copying is not None and tasks.log.copies_to_remote:
                copied = tasks.copying.run(tasks.log)
            if tasks.log.remote_log_enabled:
                tasks.expiring.run(tasks.log)
            return copied

    def startup(self) -> None:
        """Starts threads that run all tasks, each again after remote.log.manager.task.interval.ms."""
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
        """Runs a thread's share of the current tasks: every n-th one, for n threads."""
        while not self._stopping.is_set():
            if number == 0 and self._is_settled():
                self._try(self.finish_deletions, "continuing deletions")
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
        """Runs `do` and logs an error, so that it does not stop other tasks; the next turn tries again."""
        try:
            do()
        except Exception:
            if not self._stopping.is_set():
                _log.exception("%s failed", what)

    def close(self) -> None:
        """Ends the tasks and waits for a running upload.

        An upload that waits for the rate limit or a retry is given up; the next start deletes what it left.
        """
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
        """Cancels everything without waiting: the process is a forked child, or the store was dropped."""
        self._stopping.set()
        for each in list(self._tasks.values()):
            each.cancel()
