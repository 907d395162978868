"""A queue of this process: one member of a share group, and the partitions that all its `Queue` objects take from.

The member joins the group with its first queue, so that Kafka's tools list it and the group's state exists, and leaves
with the last. If none of them is used for IDLE_MS it leaves, too, and joins again at the next take. A server assigns
partitions to every member, so its clients would not get the records of a queue that nobody works on. Like a consumer
without an assignment it reads all partitions of its topics; clients of a server share them with it, because both go
through the same share partitions. A member that a killed process left behind is removed at the next open.

`QueueSource` is a partition: it acquires, and hands out records of the chunk that was read last, so that workers who
take a few records at a time decode each record once. Thread-safe.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import weakref
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._face.shared_logs import RecordChunk
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.share_acquire import RECORD_LIMIT, Acquired, AcquireRequest, acquire, acquired_count
from kafkalog.engine.coordinator.share_config import EARLIEST, READ_COMMITTED
from kafkalog.engine.coordinator.share_interfaces import TopicIdPartition
from kafkalog.engine.coordinator.share_partition import (
    GAP,
    NO_OFFSET,
    RELEASE,
    ShareAcknowledgementBatch,
    SharePartition,
)
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import (
    IllegalArgumentException,
    InvalidRecordStateException,
    InvalidRequestException,
    KafkalogError,
    LeaderNotAvailableException,
    NotLeaderOrFollowerException,
    OffsetOutOfRangeException,
    UnknownMemberIdException,
)

if TYPE_CHECKING:
    from kafkalog._face.home import Home
    from kafkalog._face.served_groups import ServedGroups
    from kafkalog.engine.log.source import Ringing
    from kafkalog.records import Record

CHUNK_BYTES = 256 << 10
CHUNKS_KEPT = 2  # one with the newest records, one with records that were released
MAX_IN_FLIGHT = 10_000  # offsets of a partition: group.share.partition.max.record.locks at most
CLIENT_ID = "kafkalog"
HOST = "/in-process"  # a member with this host ended with its process, if this process does not have it
IDLE_MS = 60_000  # without a call, until the member leaves the group
NS_PER_MS = 1_000_000
NEVER_JOINED, LEAVING = 0, -1
BATCH_SIZE = 500  # a limit of records makes it meaningless
RETRIES = 10  # while another thread reads the state, or after an interrupt


class QueueOptions(NamedTuple):
    """The options that all `Queue` objects of a name share. `dead_letters`: the topic, None for none."""

    lock_ms: int = 30_000
    max_deliveries: int = 5
    dead_letters: str | None = None
    start: str = EARLIEST
    isolation: str = READ_COMMITTED

    def as_config(self) -> Mapping[str, str]:
        """Returns them by Kafka's names."""
        config = {
            "share.record.lock.duration.ms": str(self.lock_ms),
            "share.delivery.count.limit": str(self.max_deliveries),
            "share.partition.max.record.locks": str(MAX_IN_FLIGHT),
            "share.auto.offset.reset": self.start,
            "share.isolation.level": self.isolation,
        }
        if self.dead_letters is not None:
            config["errors.deadletterqueue.topic.name"] = self.dead_letters
            config["errors.deadletterqueue.copy.record.enable"] = "true"
        return config


Taken = tuple["Record", int]  # and how often it was delivered


class QueueSource:
    """One partition of a queue."""

    def __init__(self, group: QueueGroup, partition: TopicIdPartition) -> None:
        self.group = group
        self.partition = partition
        self._manager = group.served.shares
        self._logs = group.served.shared_logs
        self._committed = group.options.isolation == READ_COMMITTED
        self._chunks: list[RecordChunk] = []
        self._request = AcquireRequest("", 0)  # as last made
        self._known: SharePartition | None = None  # as last seen

    @property
    def shared(self) -> SharePartition:
        """The share partition, ready."""
        known = self._known
        if known is None or not known.is_ready:
            known = self._known = self._manager.share_partition(self.group.name, self.partition)
        return known

    def check(self) -> None:
        """Raises UnknownTopicOrPartitionException if there is no log, as for an internal topic before its first use."""
        self._logs.earliest_offset(self.partition)

    def take(self, member: str, count: int) -> list[Taken]:
        """Acquires up to `count` records, and returns those that exist; none if nothing is free."""
        for _ in range(RETRIES):
            try:
                shared = self.shared
                acquired, found = self._take(shared, member, count)
            except (LeaderNotAvailableException, NotLeaderOrFollowerException):
                continue
            if not acquired:
                return found
            missing = _gaps(acquired, found)
            if missing:
                shared.acknowledge(member, missing)
            if found:
                return found
        return []

    def _take(self, shared: SharePartition, member: str, count: int) -> tuple[Acquired, list[Taken]]:
        if self._logs.log_of(self.partition).tier is not None:
            self._read_far(shared)
        with shared.lock:
            offset = shared.acquirable_offset()
            if offset == NO_OFFSET:
                return [], []
            start = self._logs.earliest_offset(self.partition)
            if offset < start:  # records were deleted, perhaps also some of a chunk
                shared.update_cache_and_offsets(start)
                offset = shared.next_fetch_offset()
            try:
                chunk = self._chunk(offset)
            except OffsetOutOfRangeException:  # it was deleted meanwhile, or the log was truncated
                return [], []
            if chunk is None:
                return [], []
            read = chunk.from_offset(offset, count + 1)
            request = self._request
            if request.max_records != count or request.member != member:
                request = self._request = AcquireRequest(member, count, BATCH_SIZE, RECORD_LIMIT, self._committed)
            acquired = acquire(shared, request, offset, read)
        found: list[Taken] = []
        for first, last, times in acquired:
            if last > chunk.last_offset:  # a batch that was acquired before, and reaches further
                found += [(each, times) for each in self._records(first, last)]
            else:
                found += [(each, times) for each in chunk.records(first, last)]
        return acquired, found

    def _read_far(self, shared: SharePartition) -> None:
        """Reads what only the remote tier has, which may take long, before the lock is held."""
        offset = shared.next_fetch_offset()
        if self._logs.is_far(self.partition, offset):
            with contextlib.suppress(OffsetOutOfRangeException):  # it was deleted meanwhile
                self._chunk(offset)

    def _chunk(self, offset: int) -> RecordChunk | None:
        for known in self._chunks:
            if known.has(offset):
                return known
        chunk = self._logs.read_chunk(self.partition, offset, CHUNK_BYTES, committed=self._committed)
        if chunk is not None:
            self._chunks = [chunk, *self._chunks[: CHUNKS_KEPT - 1]]
        return chunk

    def _records(self, first: int, last: int) -> list[Record]:
        found: list[Record] = []
        while first <= last:
            more = self._chunk(first)
            if more is None:
                break
            found += more.records(first, last)
            first = more.last_offset + 1
        return found

    def may_have_more(self) -> bool:
        """Returns whether a take may find something."""
        shared = self.shared
        with shared.lock:
            offset = shared.acquirable_offset()
            return (
                offset != NO_OFFSET and offset < self._logs.end_offset(self.partition, committed=self._committed).offset
            )

    def end(self, member: str, offsets: Sequence[int], kind: int) -> None:
        """Ends the deliveries of these offsets, ascending. InvalidRecordStateException names those that the member has
        not acquired any more; the others are ended."""
        try:
            self._end(member, offsets, kind)
        except (InvalidRecordStateException, InvalidRequestException, NotLeaderOrFollowerException) as error:
            held = self.held_by(member)
            still = [each for each in offsets if any(first <= each <= last for first, last in held)]
            lost = sorted(set(offsets).difference(still))
            if still:
                self._end(member, still, kind)
            if lost:
                shown = ", ".join(map(str, lost[:5])) + (", ..." if len(lost) > 5 else "")
                raise InvalidRecordStateException(
                    f"{self.partition.topic}-{self.partition.partition}: this queue does not have the records at "
                    f"{shown} any more",
                    hint="their lock has ended, or they were acknowledged, released or rejected before",
                ) from error

    def _end(self, member: str, offsets: Sequence[int], kind: int) -> None:
        self.shared.acknowledge(member, ranges(offsets, kind))
        self._notify(kind)

    def _notify(self, kind: int) -> None:
        """Tells others of records that are free again. A start that has moved tells it by itself."""
        if kind == RELEASE:
            self._manager.notify(self.group.name, self.partition)

    def held_by(self, member: str) -> list[tuple[int, int]]:
        """Returns the ranges of offsets that a member has acquired."""
        return self.shared.held_by(member)

    def end_all(self, member: str, kind: int) -> int:
        """Ends all deliveries of a member. Returns how many."""
        shared = self.shared
        batches = [ShareAcknowledgementBatch(first, last, (kind,)) for first, last in shared.held_by(member)]
        if batches:
            shared.acknowledge(member, batches)
            self._notify(kind)
        return sum(each.last_offset - each.first_offset + 1 for each in batches)

    def release_all(self, member: str) -> None:
        """Makes everything available again that a member has acquired."""
        self.shared.release_acquired_records(member)
        self._manager.notify(self.group.name, self.partition)


def ranges(offsets: Sequence[int], kind: int) -> list[ShareAcknowledgementBatch]:
    """Returns the acknowledgements of ascending offsets: one for each stretch without a hole."""
    first, last = offsets[0], offsets[-1]
    if last - first + 1 == len(offsets):
        return [ShareAcknowledgementBatch(first, last, (kind,))]
    found = []
    last = first
    for each in offsets[1:]:
        if each > last + 1:
            found.append(ShareAcknowledgementBatch(first, last, (kind,)))
            first = each
        last = each
    found.append(ShareAcknowledgementBatch(first, last, (kind,)))
    return found


def _gaps(acquired: Acquired, found: Sequence[Taken]) -> list[ShareAcknowledgementBatch]:
    """Returns acknowledgements for acquired offsets without a record: markers, and what a compaction removed."""
    if acquired_count(acquired) == len(found):
        return []
    there = {record.offset for record, _ in found}
    missing = [at for first, last, _ in acquired for at in range(first, last + 1) if at not in there]
    return ranges(missing, GAP)


class QueueGroup:
    """See the module. `opened` and `close_one` count the `Queue` objects."""

    def __init__(self, home: Home, name: str, options: QueueOptions) -> None:
        self.name = name
        self.options = options
        self.served: ServedGroups = home.coordinators.served
        self.lock = threading.RLock()
        self._timers = home.coordinators.timers
        self._topics_view = home.coordinators.topics
        self._member = urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=").replace("-", "_")
        self._epoch = NEVER_JOINED
        self._topics: list[str] = []
        self._joined_version: object = None
        self._sources: dict[TopicPartition, QueueSource] = {}
        self._bells: weakref.WeakSet[Ringing] = weakref.WeakSet()
        self._users = 0
        self.is_used = True  # set by each call, without the lock
        self.is_away = False  # left because nobody used it; the next take joins again
        self._used_ms = 0  # when it was seen in use
        self._clock = home.coordinators.clock
        self._is_closed = False
        self._timer_key = ("queue", name, self._member)

    # --- the objects that use it -----------------------------------------------------------------------

    @classmethod
    def opened(cls, home: Home, name: str, options: QueueOptions) -> QueueGroup:
        """Returns the group of a name, and counts one more user. IllegalArgumentException for other options than those
        of the objects that are open."""
        served = home.coordinators.served
        with served.queues_lock:
            found = served.queues.get(name)
            if found is not None and found.options != options:
                differ = [key for key, was in found.options._asdict().items() if getattr(options, key) != was]
                raise IllegalArgumentException(
                    f"queue {name!r} is open in this process with other values of {', '.join(differ)}",
                    hint="all objects of a queue have the same options",
                )
            if found is None:
                found = cls(home, name, options)
                found._begin()
                served.queues[name] = found
            found._users += 1
            return found

    def _begin(self) -> None:
        manager = self.served.shares
        manager.configs.overrides[self.name] = self.options.as_config()
        manager.hold(self.name)
        manager.tell(self.told)

    def close_one(self) -> None:
        """Counts one user less. The last one leaves the group."""
        with self.served.queues_lock:
            self._users -= 1
            if self._users <= 0:
                self.close()

    def close(self) -> None:
        """Leaves the group: what its objects have taken is available again."""
        with self.served.queues_lock:
            if self._is_closed:
                return
            self._is_closed = True
            self.served.queues.pop(self.name, None)
        manager = self.served.shares
        self._timers.cancel(self._timer_key)
        manager.tell_no_more(self.told)
        with contextlib.suppress(KafkalogError):
            if self._epoch != NEVER_JOINED:
                self._heartbeat(LEAVING, None)
        manager.let_go(self.name)
        manager.configs.overrides.pop(self.name, None)
        self.ring()

    # --- membership ------------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str]) -> None:
        """Joins the group for these topics too, or only joins if they are known. Errors of the group coordinator:
        GroupIdNotFoundException if the name is another kind of group's."""
        with self.lock:
            wanted = sorted({*self._topics, *topics})
            version = self._topics_view.version
            if wanted == self._topics and version == self._joined_version:
                return
            if self._epoch == NEVER_JOINED:
                self._remove_left()
            # The first heartbeat tells the topics, the second gets what was initialized for them.
            self._beat_with(wanted)
            self._beat_with(None)
            self._topics = wanted
            self._joined_version = version
            self.is_away = False

    def _beat_with(self, topics: list[str] | None) -> None:
        try:
            answer = self._heartbeat(self._epoch, topics)
        except UnknownMemberIdException:  # the session timed out, in a process that stood still
            answer = self._heartbeat(NEVER_JOINED, topics or self._topics)
        self._epoch = answer["memberEpoch"]
        self._timers.schedule(self._timer_key, answer["heartbeatIntervalMs"] or 5_000, self._beat)

    def _beat(self) -> None:
        with self.lock:
            if self._is_closed:
                return
            if self._is_idle():
                with contextlib.suppress(KafkalogError):
                    self._heartbeat(LEAVING, None)
                self._epoch, self._joined_version, self.is_away = NEVER_JOINED, None, True
                return
            self._timers.schedule(self._timer_key, 5_000, self._beat)  # also if this one fails
            self._beat_with(None)

    def _is_idle(self) -> bool:
        now_ms = self._clock.nanoseconds() // NS_PER_MS
        if self.is_used:
            self.is_used, self._used_ms = False, now_ms
        return now_ms - self._used_ms > IDLE_MS

    def _heartbeat(self, epoch: int, topics: list[str] | None) -> dict[str, int]:
        request = {
            "groupId": self.name,
            "memberId": self._member,
            "memberEpoch": epoch,
            "rackId": None,
            "subscribedTopicNames": topics,
        }
        answer: dict[str, int] = self.served.groups.share_group_heartbeat(RequestContext(CLIENT_ID, HOST), request)
        return answer

    def _remove_left(self) -> None:
        """Removes members of processes that are gone: this one has the store's directories for itself."""
        for group in self.served.groups.share_group_describe(RequestContext(CLIENT_ID, HOST), [self.name]):
            for member in group.get("members") or ():
                if member["clientHost"] == HOST and member["memberId"] != self._member:
                    request = {
                        "groupId": self.name,
                        "memberId": member["memberId"],
                        "memberEpoch": LEAVING,
                        "rackId": None,
                        "subscribedTopicNames": None,
                    }
                    try:
                        self.served.groups.share_group_heartbeat(RequestContext(CLIENT_ID, HOST), request)
                    except KafkalogError as error:
                        Lines("kafkalog.coordinator").info("member %s of %s: %s", member["memberId"], self.name, error)

    # --- partitions ------------------------------------------------------------------------------------

    def sources(self, topics: Sequence[str]) -> list[QueueSource]:
        """Returns the partitions of topics, also those that were added meanwhile."""
        self.subscribe(topics)
        found = []
        with self.lock:
            for topic in topics:
                topic_id = self._topics_view.topic_id(topic)
                if topic_id is None:
                    continue
                for number in range(self._topics_view.partitions(topic)):
                    name = TopicPartition(topic, number)
                    known = self._sources.get(name)
                    if known is None or known.partition.topic_id != topic_id:
                        known = self._sources[name] = QueueSource(self, TopicIdPartition(topic_id, number, topic))
                    found.append(known)
        return found

    # --- waiting ---------------------------------------------------------------------------------------

    def told(self, group: str, partition: TopicIdPartition) -> None:
        """Wakes those who wait, because records have become free."""
        if group == self.name and self._bells:
            self.ring()

    def ring(self) -> None:
        """Wakes those who wait."""
        for bell in list(self._bells):
            bell.release()

    @contextlib.contextmanager
    def listening(self, bell: Ringing, sources: Sequence[QueueSource]):  # type: ignore[no-untyped-def]
        """Releases a waiting thread when one of the partitions may have more."""
        logs = [self.served.shared_logs.log_of(each.partition) for each in sources]
        self._bells.add(bell)
        try:
            for log in logs:
                while True:
                    waiters = log.waiters
                    waiters.append(bell)
                    if waiters is log.waiters:  # otherwise all waiters were woken meanwhile
                        break
            yield
        finally:
            self._bells.discard(bell)
            for log in logs:
                with contextlib.suppress(ValueError):  # it has rung
                    log.waiters.remove(bell)


def rung_later(release: partial[object]) -> Ringing:
    """Returns a bell that calls `release` in the thread that rings it."""
    return _CallingBell(release)


class _CallingBell:
    def __init__(self, release: partial[object]) -> None:
        self._release = release

    def release(self) -> None:
        """Rings."""
        self._release()
