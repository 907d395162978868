"""The interface of the manager of consumer groups for the parts of the protocol (`consumer_groups.ConsumerGroups`).

Every method needs the partition's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from kafkalog.engine.coordinator.assignors import SubscriptionType
from kafkalog.engine.coordinator.consumer_group import ConsumerGroup
from kafkalog.engine.coordinator.consumer_member import ConsumerGroupMember
from kafkalog.engine.coordinator.current_assignment import Owned
from kafkalog.engine.coordinator.group_partition import GroupPartition, PartitionTimers
from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.coordinator.java_order import Assignment
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.state_log import KeyValue
from kafkalog.engine.coordinator.topics_view import TopicsView


class ConsumerSteps(Protocol):
    """See the module; `ConsumerGroups` describes the methods."""

    partition: GroupPartition
    timers: PartitionTimers
    topics: TopicsView

    @property
    def settings(self) -> GroupSettings: ...

    def group(self, group_id: str) -> ConsumerGroup: ...

    def check_room(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> None: ...

    def join_static(
        self,
        group: ConsumerGroup,
        member_id: str,
        instance_id: str,
        rows: list[KeyValue],
        *,
        is_classic: bool = False,
    ) -> ConsumerGroupMember: ...

    def member_changed(
        self, group: ConsumerGroup, member: ConsumerGroupMember, updated: ConsumerGroupMember, rows: list[KeyValue]
    ) -> bool: ...

    def update_regexes(
        self,
        context: RequestContext,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        rows: list[KeyValue],
    ) -> tuple[bool, bool]: ...

    def metadata_hash(self, subscriptions: Collection[str]) -> int: ...

    def has_metadata_expired(self, group: ConsumerGroup, now_ms: int) -> bool: ...

    def update_subscriptions(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        rows: list[KeyValue],
        *,
        bumps: bool,
    ) -> tuple[int, SubscriptionType]: ...

    def update_target(
        self,
        group: ConsumerGroup,
        epoch: int,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        kind: SubscriptionType,
        rows: list[KeyValue],
    ) -> tuple[int, Assignment]: ...

    def reconcile(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        target: tuple[int, Assignment],
        owned: Owned,
        rows: list[KeyValue],
        *,
        changed: bool,
    ) -> ConsumerGroupMember: ...

    def fence(self, group: ConsumerGroup, members: Sequence[ConsumerGroupMember]) -> None: ...

    def fence_late(self, group_id: str, member_id: str, reason: str) -> None: ...

    def schedule_session(self, group_id: str, member_id: str, timeout_ms: int | None = None) -> None: ...

    def cancel_timers(self, group_id: str, member_id: str) -> None: ...
