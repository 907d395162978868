"""All share partitions of a broker: the requests of share consumers, and the queues of this process.

    manager = SharePartitionManager(logs, persister, timers, clock)
    context = manager.new_context("mail", "worker-1", 0, partitions, connection=7)
    manager.fetch(ShareFetch(...))
    manager.acknowledge("mail", "worker-1", {partition: [ShareAcknowledgementBatch(0, 9, (1,))]})

A share partition is made at its first use and kept until its group is unused, its topic goes, or somebody else takes
its state over; then the next use reads it again. Fetches that wait are woken by appends (`notify_append`) and by
records that become free. Queues of this process use the same share partitions as clients (`share_partition`, `hold`).
A fetch of records that only a remote tier has reads them in a thread of its own, so that nobody else waits.
Thread-safe. Source: SharePartitionManager (4.4.0).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kafkalog.engine.coordinator.share_config import ShareGroupConfigProvider
from kafkalog.engine.coordinator.share_fetch import DelayedShareFetch, ShareFetch
from kafkalog.engine.coordinator.share_interfaces import (
    DeadLetters,
    NoDeadLetters,
    Persister,
    SharedLogs,
    TopicIdPartition,
)
from kafkalog.engine.coordinator.share_partition import (
    ShareAcknowledgementBatch,
    ShareContext,
    SharePartition,
)
from kafkalog.engine.coordinator.share_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FinalContext,
    ShareSessionCache,
    ShareSessionContext,
    next_epoch,
)
from kafkalog.engine.coordinator.timers import Timers
from kafkalog.engine.files import Clock
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.error_codes import Errors, message_of
from kafkalog.engine.format.share_records import SharePartitionKey
from kafkalog.errors import (
    GroupIdNotFoundException,
    InvalidRequestException,
    InvalidShareSessionEpochException,
    KafkalogError,
    LeaderNotAvailableException,
    NotLeaderOrFollowerException,
    ShareSessionLimitReachedException,
    ShareSessionNotFoundException,
    UnknownTopicOrPartitionException,
)

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.share_metrics import ShareMetrics
    from kafkalog.metrics.registry import Gauge

# After these errors a share partition is forgotten, and its next use reads the state again.
FENCING = (NotLeaderOrFollowerException, GroupIdNotFoundException, UnknownTopicOrPartitionException)
FAR_THREADS = 10  # remote.log.reader.threads
Key = tuple[str, str, int]  # group, topic id, partition
Outcome = dict[TopicIdPartition, "KafkalogError | None"]
Change = Callable[[SharePartition], None]
K = TypeVar("K")
Told = Callable[[str, TopicIdPartition], None]


def _acknowledge(found: SharePartition, *, member: str, batches: Sequence[ShareAcknowledgementBatch]) -> None:
    found.acknowledge(member, batches)


def _drop(table: dict[K, dict[DelayedShareFetch, None]], key: K, delayed: DelayedShareFetch) -> None:
    waiting = table.get(key)
    if waiting is not None:
        waiting.pop(delayed, None)
        if not waiting:
            del table[key]


class LogBell:
    """Rings at a log's next change, until it has rung or is let go. The manager's timers do the rest."""

    __slots__ = ("_manager", "_partition")

    def __init__(self, manager: SharePartitionManager, partition: TopicIdPartition) -> None:
        self._manager = manager
        self._partition = partition

    def release(self) -> None:
        """Rings. Called inside an append, so that the work is left to the timers' thread."""
        self._manager.rung(self._partition)


class SharePartitionManager:
    """See the module."""

    def __init__(
        self,
        logs: SharedLogs,
        persister: Persister,
        timers: Timers,
        clock: Clock,
        *,
        configs: ShareGroupConfigProvider | None = None,
        dead_letters: DeadLetters | None = None,
        metrics: ShareMetrics | None = None,
        known_epoch: Callable[[SharePartitionKey], int] = lambda key: 0,
    ) -> None:
        """`known_epoch`: the leader epoch of the state that an earlier process left."""
        self._known_epoch = known_epoch
        self.configs = configs or ShareGroupConfigProvider()
        self.sessions = ShareSessionCache(self.configs.defaults.max_share_sessions)
        self.sessions.listener = self
        self._logs = logs
        self._timers = timers
        self._context = ShareContext(
            logs, persister, timers, clock, self.configs, dead_letters or NoDeadLetters(), self.notify, metrics
        )
        self._lock = threading.RLock()
        self._partitions: dict[Key, SharePartition] = {}  # guarded by _lock, like the rest
        self._waiting: dict[Key, dict[DelayedShareFetch, None]] = {}
        self._by_log: dict[tuple[str, int], dict[DelayedShareFetch, None]] = {}
        self._bells: dict[tuple[str, int], LogBell] = {}
        self._held: Counter[str] = Counter()  # by group: the queues of this process
        self._far: ThreadPoolExecutor | None = None  # made at the first read from a remote tier
        self._told: tuple[Told, ...] = ()  # replaced whole; who else is told of records that become free

    def gauges(self) -> list[Gauge]:
        """Returns the gauges of the share partitions."""
        from kafkalog.engine.coordinator.share_metrics import in_flight_gauges  # few processes are asked

        found: list[Gauge] = []
        for each in list(self._partitions.values()):
            with each.lock:
                offsets, batches = each.num_in_flight_records(), len(each.cached)
            found += in_flight_gauges(each.group, each.partition, offsets, batches)
        return found

    # --- share partitions ------------------------------------------------------------------------------

    def share_partition(self, group: str, partition: TopicIdPartition) -> SharePartition:
        """Returns a share partition that is ready.

        Raises LeaderNotAvailableException while another thread reads its state, and the errors of the persister and
        of the logs.
        """
        found = self._get_or_create(group, partition)
        try:
            found.maybe_initialize()
        except LeaderNotAvailableException:
            raise
        except Exception:
            self._remove(group, partition)
            raise
        return found

    def _get_or_create(self, group: str, partition: TopicIdPartition) -> SharePartition:
        key = (group, *partition[:2])
        found = self._partitions.get(key)
        if found is not None and not found.is_over:
            return found
        epoch = max(self._logs.leader_epoch(partition), self._known_epoch(SharePartitionKey(*key)))
        with self._lock:
            found = self._partitions.get(key)
            if found is not None and found.is_over:
                self._remove(group, partition)
                found = None
            if found is None:
                found = self._partitions[key] = SharePartition(group, partition, self._context, epoch)
            return found

    def _remove(self, group: str, partition: TopicIdPartition) -> None:
        with self._lock:
            found = self._partitions.pop((group, *partition[:2]), None)
        if found is not None:
            found.mark_fenced()
            if self._context.metrics is not None:
                self._context.metrics.forget(group, partition)
            self.notify(group, partition)

    def fenced(self, group: str, partition: TopicIdPartition, error: BaseException) -> None:
        """Forgets a share partition after an error that says that its state is not the truth any more."""
        if isinstance(error, FENCING):
            self._remove(group, partition)

    def forget_topic(self, topic_id: str) -> None:
        """Forgets a deleted topic."""
        for found in list(self._partitions.values()):
            if found.partition.topic_id == topic_id:
                self._remove(found.group, found.partition)

    def hold(self, group: str) -> None:
        """Keeps the partitions of a group while a queue of this process uses them."""
        with self._lock:
            self._held[group] += 1

    def let_go(self, group: str) -> None:
        """Ends `hold`."""
        with self._lock:
            self._held[group] -= 1
            is_unused = not self._held[group] and not self.sessions.members(group)
        if is_unused:
            self.on_group_empty(group)

    def tell(self, told: Told) -> None:
        """Calls `told(group, partition)` whenever records may have become free, until `tell_no_more`."""
        with self._lock:
            self._told = (*self._told, told)

    def tell_no_more(self, told: Told) -> None:
        """Ends `tell`."""
        with self._lock:
            self._told = tuple(each for each in self._told if each != told)

    def on_member_leave(self, group: str, member: str) -> None:
        """Releases what a member has, because its connection has ended."""
        for error in self.release_session(group, member).values():
            if error is not None:
                Lines("kafkalog.coordinator").warning("records of %s in group %s: %s", member, group, error)

    def on_group_empty(self, group: str) -> None:
        """Forgets the partitions of a group without sessions."""
        if self._held[group]:
            return
        for found in [each for each in list(self._partitions.values()) if each.group == group]:
            self._remove(group, found.partition)

    def close(self) -> None:
        """Forgets everything: fetches that wait get an empty answer."""
        waiting = {fetch for fetches in list(self._waiting.values()) for fetch in list(fetches)}
        for found in list(self._partitions.values()):
            self._remove(found.group, found.partition)
        for each in waiting:
            each.fetch.maybe_complete({})
        with self._lock:
            far, self._far = self._far, None
        if far is not None:
            far.shutdown(wait=True, cancel_futures=True)

    # --- sessions --------------------------------------------------------------------------------------

    # More than eight parameters: those of the request.
    def new_context(
        self,
        group: str,
        member: str,
        epoch: int,
        partitions: Sequence[TopicIdPartition],
        *,
        forgotten: Iterable[TopicIdPartition] = (),
        acknowledges: bool = False,
        connection: Hashable = None,
    ) -> ShareSessionContext:
        """Returns what a ShareFetch request reads.

        Raises ShareSessionNotFoundException, InvalidShareSessionEpochException, InvalidRequestException,
        ShareSessionLimitReachedException.
        """
        key = (group, member)
        with self.sessions.lock:
            if epoch == FINAL_EPOCH:
                if self.sessions.get(key) is None:
                    raise ShareSessionNotFoundException(message_of(Errors.SHARE_SESSION_NOT_FOUND))
                return FinalContext()
            if epoch == INITIAL_EPOCH:
                if acknowledges:
                    raise InvalidRequestException(message_of(Errors.INVALID_REQUEST))
                self.sessions.remove(key)
                if self.sessions.maybe_create(key, partitions, connection) is None:
                    raise ShareSessionLimitReachedException(message_of(Errors.SHARE_SESSION_LIMIT_REACHED))
                return ShareSessionContext(epoch, partitions)
            session = self.sessions.get(key)
            if session is None:
                raise ShareSessionNotFoundException(message_of(Errors.SHARE_SESSION_NOT_FOUND))
            if session.epoch != epoch:
                raise InvalidShareSessionEpochException(message_of(Errors.INVALID_SHARE_SESSION_EPOCH))
            session.update(partitions, forgotten)
            session.epoch = next_epoch(epoch)
            return ShareSessionContext(epoch, session=session)

    def acknowledge_session_update(self, group: str, member: str, epoch: int) -> None:
        """Checks the epoch of a ShareAcknowledge request, and moves it on. Errors as `new_context`."""
        if epoch == INITIAL_EPOCH:
            raise InvalidShareSessionEpochException(message_of(Errors.INVALID_SHARE_SESSION_EPOCH))
        with self.sessions.lock:
            session = self.sessions.get((group, member))
            if session is None:
                raise ShareSessionNotFoundException(message_of(Errors.SHARE_SESSION_NOT_FOUND))
            if epoch == FINAL_EPOCH:
                return
            if session.epoch != epoch:
                raise InvalidShareSessionEpochException(message_of(Errors.INVALID_SHARE_SESSION_EPOCH))
            session.epoch = next_epoch(epoch)

    def release_session(self, group: str, member: str) -> Outcome:
        """Ends a member's session, and releases what it has. ShareSessionNotFoundException if it has none."""
        session = self.sessions.remove((group, member))
        if session is None:
            raise ShareSessionNotFoundException(message_of(Errors.SHARE_SESSION_NOT_FOUND))
        return self.release_acquired(group, member, [each.partition for each in session.partitions.values()])

    def release_acquired(self, group: str, member: str, partitions: Iterable[TopicIdPartition]) -> Outcome:
        """Releases what a member has in these partitions."""
        outcome: Outcome = {}
        for each in partitions:
            outcome[each] = self._changed(group, each, lambda found: found.release_acquired_records(member))
        return outcome

    def acknowledge(
        self, group: str, member: str, batches: Mapping[TopicIdPartition, Sequence[ShareAcknowledgementBatch]]
    ) -> Outcome:
        """Ends deliveries of a member. Returns for each partition the error, or None."""
        return {
            each: self._changed(group, each, partial(_acknowledge, member=member, batches=of_partition))
            for each, of_partition in batches.items()
        }

    def _changed(self, group: str, partition: TopicIdPartition, change: Change) -> KafkalogError | None:
        found = self._partitions.get((group, *partition[:2]))
        if found is None:
            return UnknownTopicOrPartitionException(message_of(Errors.UNKNOWN_TOPIC_OR_PARTITION))
        try:
            change(found)
        except KafkalogError as error:
            self.fenced(group, partition, error)
            return error
        finally:
            self.notify(group, partition)
        return None

    # --- fetches ---------------------------------------------------------------------------------------

    def fetch(self, fetch: ShareFetch) -> None:
        """Answers a fetch, now or later."""
        if not fetch.partitions or not fetch.request.max_records or not fetch.max_bytes:
            fetch.maybe_complete({})
            return
        found: dict[TopicIdPartition, SharePartition] = {}
        for each in fetch.partitions:
            try:
                found[each] = self._get_or_create(fetch.group, each)
                found[each].maybe_initialize()
            except LeaderNotAvailableException:
                continue  # another thread reads its state, and wakes the fetch afterwards
            except Exception as error:
                found.pop(each, None)
                self._remove(fetch.group, each)
                fetch.erroneous[each] = error
        if not found:
            fetch.maybe_complete({})
            return
        delayed = DelayedShareFetch(fetch, found, self._logs, partial(self.fenced, fetch.group))
        if not self._let_try(delayed):
            self._wait(delayed)

    def _let_try(self, delayed: DelayedShareFetch, *, force: bool = False) -> bool:
        """Lets a fetch try, in another thread if it reads from a remote tier.  Returns whether it is completed."""
        if delayed.is_completed:
            return True
        if delayed.reads_far():
            with self._lock:
                if self._far is None:
                    self._far = ThreadPoolExecutor(FAR_THREADS, "kafkalog-share-remote")
                self._far.submit(self._try_far, delayed, force)
            return False
        return delayed.force_complete() if force else delayed.try_complete()

    def _try_far(self, delayed: DelayedShareFetch, force: bool) -> None:
        if delayed.force_complete() if force else delayed.try_complete():
            self._leave(delayed)

    def _wait(self, delayed: DelayedShareFetch) -> None:
        fetch = delayed.fetch
        with self._lock:
            for each in delayed.partitions:
                self._waiting.setdefault((fetch.group, *each[:2]), {})[delayed] = None
                self._by_log.setdefault(each[:2], {})[delayed] = None
        self._timers.schedule(("share-fetch", delayed), fetch.max_wait_ms, partial(self._time_over, delayed))
        self._arm(delayed.partitions)
        if self._let_try(delayed) or delayed.is_completed:  # records may have come before it was on the lists
            self._leave(delayed)

    def _time_over(self, delayed: DelayedShareFetch) -> None:
        if self._let_try(delayed, force=True):
            self._leave(delayed)

    def _leave(self, delayed: DelayedShareFetch) -> None:
        self._timers.cancel(("share-fetch", delayed))
        with self._lock:
            for each in delayed.partitions:
                _drop(self._waiting, (delayed.fetch.group, *each[:2]), delayed)
                _drop(self._by_log, each[:2], delayed)

    def _arm(self, partitions: Iterable[TopicIdPartition]) -> None:
        for each in partitions:
            bell = self._new_bell(each)
            if bell is not None:
                try:
                    self._logs.ring_at_change(each, bell)
                except KafkalogError:  # the log is gone: the fetch ends with its time
                    self._bells.pop(each[:2], None)

    def _new_bell(self, partition: TopicIdPartition) -> LogBell | None:
        with self._lock:
            place = partition[:2]
            if place in self._bells or place not in self._by_log:
                return None
            bell = self._bells[place] = LogBell(self, partition)
            return bell

    def rung(self, partition: TopicIdPartition) -> None:
        """Notes that a log has changed: the timers' thread lets the fetches try that wait for it."""
        self._timers.schedule(("share-append", *partition[:2]), 0, partial(self.notify_append, partition))

    def notify_append(self, partition: TopicIdPartition) -> None:
        """Lets the fetches try that wait for a log."""
        self._bells.pop(partition[:2], None)
        self._arm([partition])
        self._try(self._by_log.get(partition[:2]))

    def notify(self, group: str, partition: TopicIdPartition) -> None:
        """Lets the fetches of a group try that wait for a partition."""
        if self._waiting:
            self._try(self._waiting.get((group, *partition[:2])))
        for told in self._told:
            told(group, partition)

    def _try(self, waiting: Mapping[DelayedShareFetch, None] | None) -> None:
        if waiting:
            for each in list(waiting):
                if self._let_try(each):
                    self._leave(each)
