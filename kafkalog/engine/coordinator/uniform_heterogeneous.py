"""The uniform assignor for members that read different topics: as even as their subscriptions allow, sticky.

First, members keep what they have of topics that they still read. Then free partitions go to the members with the
fewest partitions. Then partitions move from the most loaded to the least loaded members of a topic, topic by topic,
until nothing moves (or 16 rounds are over: an even assignment need not exist).

Source: UniformHeterogeneousAssignmentBuilder (4.4.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kafkalog._native.codec.java_hash import JavaHashMap
from kafkalog.engine.coordinator.assignors import (
    NOBODY,
    Assignor,
    GroupAssignment,
    GroupSpec,
    PartitionCount,
    SubscriptionType,
    add_partition,
    assign_range,
    assign_uniform_homogeneous,
    copied,
    remove_partition,
)
from kafkalog.engine.coordinator.java_order import Assignment, Partitions, name_map, uuid_key

ROUNDS_MAX = 16
NO_MEMBER = -1


def assign_uniform(group: GroupSpec, partition_count: PartitionCount) -> GroupAssignment:
    """UniformAssignor."""
    if not group.members:
        return NOBODY
    if group.subscription_type is SubscriptionType.HOMOGENEOUS:
        return assign_uniform_homogeneous(group, partition_count)
    return _Heterogeneous(group, partition_count).build()


# Kafka's built-in assignors by name; the first one is the default.
ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


class _Heterogeneous:
    def __init__(self, group: GroupSpec, partition_count: PartitionCount) -> None:
        self.group = group
        self.members = list(group.members)
        self.sizes = [0] * len(self.members)
        self.target: JavaHashMap[str, Assignment] = name_map()
        self.fresh: set[str] = set()  # members whose assignment is a copy of ours already
        self.subscribers: dict[str, list[int]] = {}  # member indexes by topic id
        for index, spec in enumerate(group.members.values()):
            for topic_id in spec.topic_ids:
                self.subscribers.setdefault(topic_id, []).append(index)
        self.counts = {topic_id: partition_count(topic_id) for topic_id in self.subscribers}
        self.owners = {topic_id: [NO_MEMBER] * count for topic_id, count in self.counts.items()}

    def build(self) -> GroupAssignment:
        if not self.subscribers:
            return NOBODY
        for index, member in enumerate(self.members):
            self._keep(index, member)
        free = {
            topic_id: [each for each, owner in enumerate(owners) if owner == NO_MEMBER]
            for topic_id, owners in self.owners.items()
        }
        balancer = _Balancer(self.sizes)
        for topic_id in self._sorted(topic_id for topic_id, partitions in free.items() if partitions):
            balancer.begin(self.subscribers[topic_id])
            for partition in free[topic_id]:
                self._assign(topic_id, partition, balancer.next_least_loaded())
        self._balance(balancer)
        return self.target

    def _sorted(self, topic_ids: Iterable[str]) -> list[str]:
        """Returns the topics with the most partitions for each subscriber first."""

        def place(topic_id: str) -> tuple[float, int, tuple[int, int]]:
            subscribers = len(self.subscribers[topic_id])
            return -(self.counts[topic_id] / subscribers), subscribers, uuid_key(topic_id)

        return sorted(topic_ids, key=place)

    def _keep(self, index: int, member: str) -> None:
        spec = self.group.members[member]
        kept = spec.assignment
        for topic_id, partitions in spec.assignment.items():
            if topic_id in spec.topic_ids:
                self.sizes[index] += len(partitions)
                for each in partitions:
                    self.owners[topic_id][each] = index
            else:
                own = self._own(member, kept)
                del own[topic_id]
                kept = own
        self.target[member] = kept

    def _own(self, member: str, assignment: Assignment) -> JavaHashMap[str, Partitions]:
        if member not in self.fresh:
            self.fresh.add(member)
            assignment = copied(assignment)
        assert isinstance(assignment, JavaHashMap)
        return assignment

    def _assign(self, topic_id: str, partition: int, index: int) -> None:
        before = self.owners[topic_id][partition]
        if before != NO_MEMBER:
            assignment = self.target[self.members[before]] = self._own(
                self.members[before], self.target[self.members[before]]
            )
            remove_partition(assignment, topic_id, partition)
            self.sizes[before] -= 1
        assignment = self.target[self.members[index]] = self._own(self.members[index], self.target[self.members[index]])
        each = -(-self.counts[topic_id] // len(self.subscribers[topic_id]))
        add_partition(assignment, topic_id, partition, int(each / 0.75 + 1.0))
        self.owners[topic_id][partition] = index
        self.sizes[index] += 1

    def _balance(self, balancer: _Balancer) -> None:
        topics = self._sorted(topic_id for topic_id, each in self.subscribers.items() if len(each) > 1)
        last_moved = -1  # the last topic of which a partition moved; a whole round without a move ends
        for _ in range(ROUNDS_MAX):
            for place, topic_id in enumerate(topics):
                if place == last_moved:
                    return
                if self._balance_topic(topic_id, balancer) or last_moved == -1:
                    last_moved = place

    def _balance_topic(self, topic_id: str, balancer: _Balancer) -> int:
        if balancer.begin(self.subscribers[topic_id]) <= 1:
            return 0
        owned: dict[int, list[int]] = {}  # ascending; the last one moves first
        for partition, owner in enumerate(self.owners[topic_id]):
            owned.setdefault(owner, []).append(partition)
        moved = 0
        while not balancer.is_balanced():
            most = balancer.next_most_loaded()
            if most == NO_MEMBER:
                break
            if not owned.get(most):
                balancer.exclude_most_loaded()
                continue
            partition = owned[most].pop()
            least = balancer.next_least_loaded()
            if balancer.is_balanced():
                break
            self._assign(topic_id, partition, least)
            moved += 1
        return moved


class _Balancer:
    """Finds the least and the most loaded subscribers of a topic while partitions move from these to those.

    Subscribers are sorted by load. The least loaded are a range at the front, all with `least_count` partitions by
    now; each gets one before the count rises and the range widens. The most loaded are a range at the back.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.sorted: list[int] = []
        self.least_end = self.least_at = self.most_start = self.most_end = 0
        self.least_count, self.most_count, self.most_at = -1, 1, -1

    def begin(self, members: Sequence[int]) -> int:
        """Starts with the subscribers of a topic. Returns the difference between the most and the least loaded."""
        self.sorted = sorted(members, key=lambda each: (self.sizes[each], each))
        least, most = self.sizes[self.sorted[0]], self.sizes[self.sorted[-1]]
        self.least_end = self.least_at = 0
        self.least_count, self.most_count = least - 1, most + 1
        self.most_start = self.most_end = len(self.sorted)
        self.most_at = len(self.sorted) - 1
        return most - least

    def is_balanced(self) -> bool:
        return self.most_count - self.least_count <= 1

    def next_least_loaded(self) -> int:
        if self.least_at >= self.least_end:
            self.least_count += 1
            while self.least_end < len(self.sorted) and self._size(self.least_end) == self.least_count:
                self.least_end += 1
            self.least_at = 0
        self.least_at += 1
        return self.sorted[self.least_at - 1]

    def next_most_loaded(self) -> int:
        """Returns a member, or NO_MEMBER once none is left that could give a partition."""
        if self.most_at < self.most_start:
            if self.most_end <= self.most_start and self.most_start > 0:
                self.most_count = self._size(self.most_start - 1)  # every member of the range was excluded
            else:
                self.most_count -= 1
            while self.most_start > 0 and self._size(self.most_start - 1) == self.most_count:
                self.most_start -= 1
            self.most_at = self.most_end - 1
        if self.most_at < 0:
            return NO_MEMBER
        self.most_at -= 1
        return self.sorted[self.most_at + 1]

    def exclude_most_loaded(self) -> None:
        """Leaves out the member that was just returned: it has no partition of the topic."""
        here, last = self.most_at + 1, self.most_end - 1
        self.sorted[here], self.sorted[last] = self.sorted[last], self.sorted[here]
        self.most_end -= 1

    def _size(self, place: int) -> int:
        return self.sizes[self.sorted[place]]
