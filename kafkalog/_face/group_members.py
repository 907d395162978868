"""The members of consumer groups that live in this process: the readers with `group=True`.

A member sends heartbeats to the coordinator of its store, as a client does to a broker. The store's timer thread sends
them, for all readers; a reader's own thread sends one when it has given up partitions. The assignment of
an answer is kept here until the reader's thread looks at it (`version`), which alone knows when a partition may go.

A member that is not used during `max_poll_interval_ms` leaves, and so does one whose reader was closed or dropped. When
a member's heartbeat has changed the group, the other members of this process send theirs at once.

Locks: a member's lock is held during its heartbeat, and the partition's lock is taken inside. No lock is taken when a
reader is dropped, since that may happen anywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.engine.coordinator.consumer_group import STABLE, ConsumerGroup
from kafkalog.engine.coordinator.consumer_groups import ConsumerGroups
from kafkalog.engine.coordinator.groups import CommittingMember
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.java_text import new_uuid
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import (
    FencedMemberEpochException,
    GroupIdNotFoundException,
    IllegalStateException,
    KafkalogError,
    UnknownMemberIdException,
)

if TYPE_CHECKING:
    from kafkalog._face.waiting import Waiting
    from kafkalog.engine.coordinator.consumer_member import ConsumerGroupMember
    from kafkalog.engine.coordinator.group_coordinator import GroupCoordinator
    from kafkalog.engine.coordinator.timers import Timers
    from kafkalog.engine.coordinator.topics_view import TopicsView
    from kafkalog.engine.files import Clock
    from kafkalog.engine.format.messages import Values

LOCAL_HOST = "/in-process"  # the host of these members, as tools show it
CLIENT_ID = "kafkalog"
VERSION = 1  # ConsumerGroupHeartbeat's
COMMIT_VERSION = 10  # OffsetCommit's: a commit counts as one
SWEEP_MS = 1000  # until all members are looked at: for those that were dropped, or whose timer an interrupt has lost
SOON_MS = 200  # until the next heartbeat, while the group is moving partitions
AGAIN_MS = 500  # until a heartbeat that failed is tried again
JOIN, LEAVE, STATIC_LEAVE = 0, -1, -2
SWEEP = ("readers",)  # the key of a timer
NS_PER_MS = 1_000_000
_GONE = (FencedMemberEpochException, UnknownMemberIdException, GroupIdNotFoundException)

# A partition with its topic's id: a topic that was created again is another one.
Owned = Mapping[TopicPartition, str]


class MemberOptions(NamedTuple):
    """The subscription of a member, as it says when it joins."""

    group: str
    topics: tuple[str, ...]
    assignor: str | None
    max_poll_interval_ms: int
    pattern: str | None = None
    instance_id: str | None = None


class LocalMember:
    """One member. `assigned` is what it may have now.

    It says of everything that its reader has, or may be about to take, that it owns it: otherwise the coordinator could
    give a partition to another member while this reader takes it.
    """

    def __init__(self, members: LocalMembers, options: MemberOptions, waiting: Waiting) -> None:
        self.id = new_uuid()
        self.options = options
        self.assigned: Owned = {}
        self.version = 0  # grows when `assigned` changes, and when the member is lost
        self.is_lost = False  # removed from the group: others have its partitions
        self.is_dropped = False  # set without a lock
        self.progress: Callable[[], object] = lambda: None  # differs from before if the reader was used
        self._members = members
        self._waiting = waiting
        self._lock = threading.Lock()  # guards what follows, and the order of heartbeats
        self._epoch = JOIN
        self._held: Owned = {}
        self._is_over = False
        self._is_used = False  # the reader's thread is in a call
        self._used_ms = members.now_ms()
        self._due_ms = self._used_ms  # when the next heartbeat is due
        self._progressed: object = None

    @property
    def epoch(self) -> int:
        """The member's epoch, with which it commits; 0 if it is no member now."""
        return self._epoch

    def committing(self) -> CommittingMember:
        """Returns who commits."""
        return CommittingMember(self.id, self.options.instance_id, self._epoch, COMMIT_VERSION)

    # --- the reader's thread ----------------------------------------------------------------------------

    def enter(self) -> None:
        """Notes that the reader is in use, until `leave_call`."""
        self._is_used = True

    def leave_call(self) -> None:
        """Notes that the reader's call has ended."""
        self._used_ms = self._members.now_ms()
        self._is_used = False

    def join(self) -> None:
        """Joins the group, also again. Raises the error of a coordinator that refuses it."""
        with self._lock:
            if self._is_over:
                return
            self._epoch, self._held, self.is_lost = JOIN, {}, False
            self._used_ms = self._members.now_ms()
            self._beat()

    def has(self, owned: Owned) -> None:
        """Notes what the reader has. The coordinator is told at once what it has given up."""
        with self._lock:
            held = {**owned, **self.assigned}
            given_up = self._held.keys() - held.keys()
            self._held = held
            if given_up and not (self._is_over or self.is_lost):
                self._beat_or_lose()
                self._members.nudge(self)

    def leave(self) -> None:
        """Leaves the group. May be called again."""
        with self._lock:
            if not self._is_over:
                self._is_over = True
                self._leave()
        self._members.forget(self)

    # --- the timer thread -------------------------------------------------------------------------------

    def run(self) -> None:
        """Sends the next heartbeat, or leaves."""
        if self.is_dropped:
            self.leave()
            return
        with self._lock:
            if self._is_over or self.is_lost:
                return
            if self._is_stuck():
                self._members.lines.warning(
                    "a reader of group %s was not used for %d ms (max_poll_interval_ms), and has left the group",
                    self.options.group,
                    self.options.max_poll_interval_ms,
                )
                self._leave()
                self._lose()
                return
            try:
                self._beat_or_lose()
            except KafkalogError as error:
                self._members.lines.warning("a heartbeat to group %s failed: %s", self.options.group, error)
                self._members.schedule(self, AGAIN_MS)

    def look(self) -> None:
        """Leaves if the reader was dropped, and sends a heartbeat that is overdue."""
        if self.is_dropped or (self._members.now_ms() > self._due_ms + SWEEP_MS and not self.is_lost):
            self.run()

    def _is_stuck(self) -> bool:
        if self._is_used:
            return False
        now_ms = self._members.now_ms()
        progress = self.progress()
        if progress != self._progressed:
            self._progressed, self._used_ms = progress, now_ms
        return now_ms - self._used_ms > self.options.max_poll_interval_ms

    # --- heartbeats (the lock is held) ------------------------------------------------------------------

    def _beat_or_lose(self) -> None:
        try:
            self._beat()
        except _GONE:
            self._lose()

    def _lose(self) -> None:
        """Notes that the member is none any more. Its reader drops everything, and joins again when it is used."""
        self._epoch, self.is_lost, self.assigned = JOIN, True, {}
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._waiting.release()

    def _beat(self) -> None:
        before = self._epoch
        answer = self._members.send(self._request(before))
        self._epoch = answer["memberEpoch"]
        assigned = self._members.named(answer)
        self._held = {**self._held, **assigned}
        if assigned != self.assigned:
            self.assigned = assigned
            self._changed()
        if self._epoch != before:
            self._members.nudge(self)
        delay_ms = self._members.delay_ms(self, answer["heartbeatIntervalMs"])
        self._due_ms = self._members.now_ms() + delay_ms
        self._members.schedule(self, delay_ms)

    def _leave(self) -> None:
        if self._epoch != JOIN:
            try:
                self._members.send(self._request(LEAVE if self.options.instance_id is None else STATIC_LEAVE))
            except _GONE:
                pass
            except KafkalogError as error:
                self._members.lines.warning("leaving group %s failed: %s", self.options.group, error)
            self._epoch = JOIN
            self._members.nudge(self)

    def _request(self, epoch: int) -> Values:
        """Every heartbeat says everything: so one whose answer was lost is repeated without harm."""
        owned: dict[str, list[int]] = {}
        for partition, topic_id in self._held.items() if epoch > JOIN else ():
            owned.setdefault(topic_id, []).append(partition.partition)
        return {
            "groupId": self.options.group,
            "memberId": self.id,
            "memberEpoch": epoch,
            "instanceId": self.options.instance_id,
            "rackId": None,
            "rebalanceTimeoutMs": self.options.max_poll_interval_ms,
            "subscribedTopicNames": list(self.options.topics),
            "subscribedTopicRegex": self.options.pattern,
            "serverAssignor": self.options.assignor,
            "topicPartitions": [{"topicId": topic_id, "partitions": each} for topic_id, each in owned.items()],
        }


class LocalMembers:
    """The members of one store. Thread-safe."""

    def __init__(self, groups: GroupCoordinator, timers: Timers, topics: TopicsView, clock: Clock) -> None:
        self._groups = groups
        self._timers = timers
        self._topics = topics
        self._clock = clock
        self._lock = threading.Lock()
        self._by_group: dict[str, dict[str, LocalMember]] = {}  # guarded by _lock
        self.lines = Lines("kafkalog.coordinator")

    def now_ms(self) -> int:
        """Returns the monotonic time, in ms."""
        return self._clock.nanoseconds() // NS_PER_MS

    def new(self, options: MemberOptions, waiting: Waiting) -> LocalMember:
        """Returns a member that has not joined yet."""
        return LocalMember(self, options, waiting)

    def join(self, member: LocalMember) -> None:
        """Lets a new member join. Members that an earlier process left behind are removed first: the directory is
        locked, so that process has ended."""
        group = member.options.group
        if SWEEP not in self._timers:
            self._timers.schedule(SWEEP, SWEEP_MS, self._sweep)
        with self._lock:
            self._by_group.setdefault(group, {})[member.id] = member
        try:
            self._remove_dead(group)
            member.join()
        except BaseException:
            member.leave()
            raise

    def _remove_dead(self, group: str) -> None:
        shard = self._groups.shard(group)
        static: list[ConsumerGroupMember] = []
        with shard.partition.entered():
            found = shard.partition.groups.by_name.get(group)
            manager = shard.consumer
            if isinstance(found, ConsumerGroup) and isinstance(manager, ConsumerGroups):
                with self._lock:  # ours are here before they join
                    ours = frozenset(self._by_group.get(group, ()))
                dead = [
                    each
                    for each in found.members.values()
                    if each.client_host == LOCAL_HOST and each.member_id not in ours
                ]
                static = [each for each in dead if each.instance_id is not None]
                manager.fence(found, [each for each in dead if each.instance_id is None])
        for each in static:  # the next reader of its name takes its place
            if each.member_epoch > LEAVE:
                self.send(_left(group, each))

    def send(self, request: Values) -> Values:
        """Returns the coordinator's answer, or raises its error."""
        return self._groups.consumer_group_heartbeat(RequestContext(CLIENT_ID, LOCAL_HOST, VERSION), request)

    def named(self, answer: Values) -> Owned:
        """Returns what an answer assigns, of topics that exist."""
        found: dict[TopicPartition, str] = {}
        for each in (answer["assignment"] or {"topicPartitions": ()})["topicPartitions"]:
            name = self._topics.name(each["topicId"])
            if name is not None:
                found.update((TopicPartition(name, number), each["topicId"]) for number in sorted(each["partitions"]))
        return found

    def delay_ms(self, member: LocalMember, interval_ms: int) -> int:
        """Returns the time until the member's next heartbeat: soon, while partitions move."""
        shard = self._groups.shard(member.options.group)
        with shard.partition.entered():
            found = shard.partition.groups.by_name.get(member.options.group)
            is_stable = found is not None and found.state == STABLE
        return interval_ms if is_stable else min(interval_ms, SOON_MS)

    def schedule(self, member: LocalMember, delay_ms: int) -> None:
        """Lets the timer thread send the member's next heartbeat."""
        self._timers.schedule(("reader", member.id), delay_ms, member.run)

    def nudge(self, member: LocalMember) -> None:
        """Lets the other members of its group here send their heartbeats at once."""
        with self._lock:
            others = [each for each in self._by_group.get(member.options.group, {}).values() if each is not member]
        for each in others:
            self.schedule(each, 0)

    def forget(self, member: LocalMember) -> None:
        """Forgets a member that has left."""
        self._timers.cancel(("reader", member.id))
        with self._lock:
            known = self._by_group.get(member.options.group)
            if known is not None:
                known.pop(member.id, None)
                if not known:
                    del self._by_group[member.options.group]

    def _all(self) -> list[LocalMember]:
        with self._lock:
            return [each for known in self._by_group.values() for each in known.values()]

    def _sweep(self) -> None:
        members = self._all()
        if not members:
            return
        self._timers.schedule(SWEEP, SWEEP_MS, self._sweep)
        for each in members:
            each.look()

    def close(self) -> None:
        """Lets every member leave, when the store closes."""
        for each in self._all():
            try:
                each.leave()
            except IllegalStateException:
                return  # this is a child of a fork


def _left(group: str, member: ConsumerGroupMember) -> Values:
    """Returns the request with which a static member leaves for a while."""
    return {
        "groupId": group,
        "memberId": member.member_id,
        "memberEpoch": STATIC_LEAVE,
        "instanceId": member.instance_id,
        "rackId": None,
        "rebalanceTimeoutMs": -1,
        "subscribedTopicNames": None,
        "subscribedTopicRegex": None,
        "serverAssignor": None,
        "topicPartitions": None,
    }


def drop(member: LocalMember) -> None:
    """Lets a member leave with its next heartbeat. For a reader that was dropped: takes no lock."""
    member.is_dropped = True


def finalizer(member: LocalMember) -> Callable[[], None]:
    """Returns what is to run when the member's reader is dropped."""
    return partial(drop, member)
