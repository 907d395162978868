"""One partition of `__consumer_offsets` with the managers of its groups, one for each protocol.

It is made at the first request for the partition, and then starts the timers of the groups that the log has: their
members must send heartbeats from then on. Source: GroupCoordinatorShard (4.4.0).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kafkalog.engine.coordinator.classic_group import ClassicGroup
from kafkalog.engine.coordinator.classic_groups import ClassicGroups
from kafkalog.engine.coordinator.groups import Group, GroupType
from kafkalog.engine.coordinator.offset_requests import OffsetRequests
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.error_codes import Errors, code_of
from kafkalog.errors import GroupIdNotFoundException, KafkalogError, UnsupportedVersionException

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.group_managers import (
        ConsumerManager,
        ConsumerManagerFactory,
        ShareManager,
        ShareManagerFactory,
    )
    from kafkalog.engine.coordinator.group_offsets import GroupOffsets
    from kafkalog.engine.coordinator.state_log import KeyValue
    from kafkalog.engine.format.messages import Values

EXPIRY_KEY = "expire-group-metadata"


class GroupShard:
    """See the module. Every method needs the partition's lock, except `close`."""

    def __init__(
        self,
        partition: GroupOffsets,
        consumer_groups: ConsumerManagerFactory | None,
        share_groups: ShareManagerFactory | None,
    ) -> None:
        self.partition = partition
        self.classic = ClassicGroups(partition)
        self.offsets = OffsetRequests(partition, self.classic)
        self._consumer = None if consumer_groups is None else consumer_groups(partition, self.classic)
        self._share = None if share_groups is None else share_groups(partition)
        self._lines = Lines("kafkalog.coordinator")
        partition.before_removal = self._before_removal
        with partition.entered():
            for each in (self.classic, self._consumer, self._share):
                if each is not None:
                    each.on_loaded()
            self._schedule_expiry()

    @property
    def consumer(self) -> ConsumerManager:
        """The manager of consumer groups. Raises UnsupportedVersionException without one."""
        if self._consumer is None:
            raise UnsupportedVersionException("groups of the consumer protocol are not served here")
        return self._consumer

    @property
    def share(self) -> ShareManager:
        """The manager of share groups. Raises UnsupportedVersionException without one."""
        if self._share is None:
            raise UnsupportedVersionException("share groups are not served here")
        return self._share

    def is_consumer(self, group: str) -> bool:
        """Returns whether the group is a consumer group now."""
        found = self.partition.groups.by_name.get(group)
        return found is not None and found.type is GroupType.CONSUMER and self._consumer is not None

    # --- all protocols --------------------------------------------------------------------------------

    def list_groups(self, states: Collection[str], types: Collection[str]) -> list[Values]:
        """Returns the groups of ListGroups. Names of states and types are lower case; empty: all."""
        return [
            {
                "groupId": name,
                "protocolType": group.protocol_type,
                "groupState": group.state,
                "groupType": group.type.value.lower(),
            }
            for name, group in self.partition.groups.by_name.items()
            if (not states or group.state.lower() in states) and (not types or group.type.value.lower() in types)
        ]

    def delete_groups(self, names: Collection[str]) -> list[Values]:
        """Answers DeleteGroups. All groups are deleted in one write."""
        rows: list[KeyValue] = []
        results = []
        for name in names:
            try:
                rows += self._tombstones(name)
                error = Errors.NONE
            except KafkalogError as raised:
                error = code_of(raised)
            results.append({"groupId": name, "errorCode": int(error)})
        self.partition.write(rows)
        return results

    def _tombstones(self, name: str) -> list[KeyValue]:
        group = self.partition.groups.by_name.get(name)
        if group is None:
            raise GroupIdNotFoundException(f"Group {name} not found.")
        if group.type is GroupType.CONSUMER and self._consumer is not None:
            rows = self._consumer.delete_group(name)
        elif group.type is GroupType.SHARE:
            rows = self.share.delete_group(name)
        else:
            group.validate_delete_group()
            rows = group.tombstones(name)
        return [*self.partition.offset_tombstones(name), *rows]

    def _schedule_expiry(self) -> None:
        interval_ms = self.partition.settings.offsets_retention_check_interval_ms
        self.partition.timers.schedule(EXPIRY_KEY, interval_ms, self._expire)

    def _expire(self) -> None:
        try:
            self.partition.write_expired()
        finally:
            self._schedule_expiry()

    def _before_removal(self, group: Group) -> None:
        if isinstance(group, ClassicGroup):
            self.classic.release(group, Errors.UNKNOWN_MEMBER_ID)

    def close(self) -> None:
        """Answers members that wait, and stops all timers and long work. Called once, without the lock."""
        with self.partition.entered():
            self.partition.timers.cancel_all()
            self.partition.work.cancel_all()
            self.classic.on_unloaded()
