"""The settings of the group coordinator: Kafka's names with underscores, and Kafka's defaults.

Source: GroupCoordinatorConfig, ShareGroupConfig (4.4.0). `offsets_retention_ms` is offsets.retention.minutes, and
`offset_metadata_max` is offset.metadata.max.bytes, which counts characters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

INT_MAX = (1 << 31) - 1


class GroupSettings(NamedTuple):
    """See the module. Times are in ms."""

    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    offset_metadata_max: int = 4096
    # False: offsets of groups that never had members stay until they are deleted.
    simple_offsets_expire: bool = True
    offsets_retention_check_interval_ms: int = 600_000
    group_coordinator_rebalance_protocols: tuple[str, ...] = ("classic", "consumer", "streams")

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = INT_MAX

    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_min_heartbeat_interval_ms: int = 5_000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_max_size: int = INT_MAX
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_migration_policy: str = "bidirectional"
    group_consumer_assignment_interval_ms: int = 1_000
    group_consumer_min_assignment_interval_ms: int = 0
    group_consumer_max_assignment_interval_ms: int = 15_000
    group_consumer_regex_refresh_interval_ms: int = 600_000

    group_share_max_size: int = 200
    group_share_session_timeout_ms: int = 45_000
    group_share_min_session_timeout_ms: int = 45_000
    group_share_max_session_timeout_ms: int = 60_000
    group_share_heartbeat_interval_ms: int = 5_000
    group_share_min_heartbeat_interval_ms: int = 5_000
    group_share_max_heartbeat_interval_ms: int = 15_000
    group_share_assignors: tuple[str, ...] = ("simple",)
    group_share_assignment_interval_ms: int = 1_000
    group_share_min_assignment_interval_ms: int = 0
    group_share_max_assignment_interval_ms: int = 15_000
    group_share_initialize_retry_interval_ms: int = 30_000


def configured(settings: GroupSettings, own: Mapping[str, str], protocol: str, name: str, default: int) -> int:
    """Returns a setting of a group, such as share.session.timeout.ms, within the limits for all groups of its protocol.
    `own`: the settings that were given to the group."""
    told = own.get(f"{protocol}.{name}")
    if told is None:
        return default
    field = name.replace(".", "_")
    least: int = getattr(settings, f"group_{protocol}_min_{field}")
    most: int = getattr(settings, f"group_{protocol}_max_{field}")
    return min(max(int(told), least), most)


class ShareSettings(NamedTuple):
    """Kafka's settings share.coordinator.* that matter here, with its defaults."""

    snapshot_update_records_per_snapshot: int = 500
    cold_partition_snapshot_interval_ms: int = 300_000
    state_topic_prune_interval_ms: int = 300_000
