"""The settings of share groups: the broker's defaults, and what a group sets for itself.

`group.share.*` are the broker's settings, `share.*` and `errors.deadletterqueue.*` a group's.
`ShareGroupConfigProvider` answers for one group at a time, and asks again at each use, so that a change takes effect
at once.
Source: ShareGroupConfig, ShareGroupConfigProvider, GroupConfig (4.4.0).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import NamedTuple

from kafkalog.errors import ConfigException

KNOWN_MAX = 1 << 10  # groups
EARLIEST, LATEST, BY_DURATION = "earliest", "latest", "by_duration"
READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?",
    re.IGNORECASE,
)


class ShareGroupSettings(NamedTuple):
    """The broker's settings of share groups, with Kafka's defaults."""

    partition_max_record_locks: int = 2000
    delivery_count_limit: int = 5
    record_lock_duration_ms: int = 30_000
    max_share_sessions: int = 2000


class GroupLimits(NamedTuple):
    """The limits of one group, as the provider's methods of these names return them."""

    record_lock_duration_ms: int
    delivery_count_limit: int
    partition_max_record_locks: int


class OffsetReset(NamedTuple):
    """Where a group without a start offset begins: EARLIEST, LATEST, or `duration_ms` before now."""

    kind: str
    duration_ms: int = 0

    @classmethod
    def parse(cls, value: str) -> OffsetReset:
        """Reads a value of share.auto.offset.reset; ConfigException if it is none."""
        if value in (EARLIEST, LATEST):
            return cls(value)
        kind, _, duration = value.partition(":")
        found = _DURATION.fullmatch(duration) if kind == BY_DURATION else None
        if found is None or not any(found.groupdict().values()):
            raise ConfigException(
                f"Invalid value `{value}` for configuration share.auto.offset.reset. The value must be either "
                "'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
            )
        parts = {name: float(number) for name, number in found.groupdict().items() if number}
        return cls(BY_DURATION, int(timedelta(**parts) / timedelta(milliseconds=1)))


NOTHING: Mapping[str, str] = {}


class ShareGroupConfigProvider:
    """Answers what holds for a group. `group_config` returns what a group sets, by Kafka's names."""

    def __init__(
        self,
        defaults: ShareGroupSettings = ShareGroupSettings(),  # noqa: B008 (it does not change)
        group_config: Callable[[str], Mapping[str, str]] = lambda group: NOTHING,
    ) -> None:
        self.defaults = defaults
        self._group_config = group_config
        self.overrides: dict[str, Mapping[str, str]] = {}  # by group; a queue of this process sets them
        self._known: dict[str, tuple[object, object, object, GroupLimits]] = {}  # limits, and what they come from

    def _value(self, group: str, name: str) -> str | None:
        own = self.overrides.get(group)
        if own is not None and name in own:
            return own[name]
        return self._group_config(group).get(name)

    def _number(self, group: str, name: str, default: int) -> int:
        found = self._value(group, name)
        return default if found is None else int(found)

    def limits(self, group: str) -> GroupLimits:
        """Returns the group's limits. They are parsed again when a mapping of settings was replaced."""
        defaults, own, given = self.defaults, self.overrides.get(group), self._group_config(group)
        known = self._known.get(group)
        if known is not None and known[0] is own and known[1] is given and known[2] is defaults:
            return known[3]
        found = GroupLimits(
            self._number(group, "share.record.lock.duration.ms", defaults.record_lock_duration_ms),
            self._number(group, "share.delivery.count.limit", defaults.delivery_count_limit),
            self._number(group, "share.partition.max.record.locks", defaults.partition_max_record_locks),
        )
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[group] = (own, given, defaults, found)
        return found

    def record_lock_duration_ms(self, group: str) -> int:
        """How long a record stays acquired, in ms."""
        return self.limits(group).record_lock_duration_ms

    def delivery_count_limit(self, group: str) -> int:
        """How often a record is delivered before it is archived."""
        return self.limits(group).delivery_count_limit

    def partition_max_record_locks(self, group: str) -> int:
        """How many offsets of a partition may be in flight."""
        return self.limits(group).partition_max_record_locks

    def is_renew_acknowledge_enabled(self, group: str) -> bool:
        """Whether a lock may be renewed."""
        return (self._value(group, "share.renew.acknowledge.enable") or "true").lower() == "true"

    def auto_offset_reset(self, group: str) -> OffsetReset:
        """Where a group without a start offset begins."""
        return OffsetReset.parse(self._value(group, "share.auto.offset.reset") or LATEST)

    def isolation_level(self, group: str) -> str:
        """READ_COMMITTED or READ_UNCOMMITTED."""
        return (self._value(group, "share.isolation.level") or READ_UNCOMMITTED).lower()

    def dead_letter_topic(self, group: str) -> str | None:
        """The topic of the group's dead letters; None if it has none."""
        return self._value(group, "errors.deadletterqueue.topic.name") or None

    def copies_dead_letters(self, group: str) -> bool:
        """Whether a dead letter has the key and value of its record."""
        return (self._value(group, "errors.deadletterqueue.copy.record.enable") or "false").lower() == "true"
