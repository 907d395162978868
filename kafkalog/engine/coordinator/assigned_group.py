"""The common part of groups whose partitions the coordinator divides: consumer groups and share groups.

Epochs grow. The group epoch grows if members or topics change; the assignment epoch is the group epoch for which the
target was computed. A new group is at epoch 1 with a target of epoch 1. Not thread-safe: the partition's lock is held.
Kafka's name: ModernGroup (4.4.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from kafkalog.engine.coordinator.assignors import SubscriptionType
from kafkalog.engine.coordinator.groups import ListedMember
from kafkalog.engine.coordinator.java_order import Assignment, TimelineHashMap
from kafkalog.errors import UnknownMemberIdException

FIRST_EPOCH = 1
NO_DEADLINE = (0, 0)


class Client(Protocol):
    """A member, as far as this module looks at it."""

    @property
    def client_id(self) -> str: ...

    @property
    def client_host(self) -> str: ...


M = TypeVar("M", bound=Client)


class AssignedGroup(Generic[M]):
    """See the module. `M` is the type of a member."""

    subscriptions: Mapping[str, Any]  # by topic: how many members read it

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_timestamp_ms = 0  # 0: the target is old enough to be computed again
        self.members: TimelineHashMap[M] = TimelineHashMap()
        self.target: TimelineHashMap[Assignment] = TimelineHashMap()
        self.subscription_type = SubscriptionType.HOMOGENEOUS
        # Until when (ms), and up to which group epoch, the metadata hash is known to be right.
        self.refresh_deadline = NO_DEADLINE
        self.topics_version = -1  # the version of the topics that the deadline goes by

    @property
    def is_empty(self) -> bool:
        return not self.members

    def listed_members(self) -> list[ListedMember]:
        return [ListedMember(name, each.client_id, each.client_host) for name, each in self.members.in_order()]

    def reads(self, topic: str) -> bool:
        return topic in self.subscriptions

    def member(self, member_id: str) -> M:
        """Returns a member. Raises UnknownMemberIdException."""
        found = self.members.get(member_id)
        if found is None:
            raise UnknownMemberIdException(f"Member {member_id} is not a member of group {self.group_id}.")
        return found

    def has_metadata_expired(self, now_ms: int) -> bool:
        """Returns whether the metadata hash must be compared with the topics again."""
        deadline_ms, epoch = self.refresh_deadline
        return now_ms >= deadline_ms or self.group_epoch < epoch
