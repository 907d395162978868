"""Which function replays which record of `__consumer_offsets` into the table of groups.

The module of a protocol's groups has `RECORD_TYPES` and `replay`; it is added to `REPLAYERS` here.

A replayer finds its group in `groups.by_name`, or puts a new one there. It raises SchemaException for a record that
contradicts those before it. Types without a replayer are read into a ModernGroup (`Groups.replay_modern`).
"""

from __future__ import annotations

from functools import partial

from kafkalog.engine.coordinator import consumer_group, share_group
from kafkalog.engine.coordinator.classic_group import ClassicGroup
from kafkalog.engine.coordinator.groups import Groups, Replayer
from kafkalog.engine.files import Clock
from kafkalog.engine.format.group_records import GroupMetadata

REPLAYERS: dict[int, Replayer] = {
    **dict.fromkeys(consumer_group.RECORD_TYPES, consumer_group.replay),
    **dict.fromkeys(share_group.RECORD_TYPES, share_group.replay),
}


def new_groups(clock: Clock) -> Groups:
    """Returns an empty table of groups."""
    return Groups(partial(_classic_group, clock), REPLAYERS)


def _classic_group(clock: Clock, name: str, metadata: GroupMetadata | None) -> ClassicGroup:
    return ClassicGroup(name, clock, metadata)
