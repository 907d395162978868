"""How far share groups are in their partitions, as `__consumer_offsets` and `__share_group_state` say together.

A share group has a start offset in each partition.  Records after it may be done already; their number is `complete`.
Reads only, and takes no lock.  Source: ShareGroupCommand (4.4.0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from kafkalog.engine.coordinator.partition_logs import SourceStateLog
from kafkalog.engine.coordinator.share_coordinator_shard import ShareCoordinatorShard
from kafkalog.engine.coordinator.share_group import ShareGroup
from kafkalog.engine.coordinator.topics_view import NoTopics
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.names import SHARE_GROUP_STATE_TOPIC, TopicPartition
from kafkalog.engine.format.share_records import NO_OFFSET, ShareGroupOffset, SharePartitionKey

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.group_offsets import GroupOffsets
    from kafkalog.engine.files import Clock
    from kafkalog.engine.log.source import Source

States = Mapping[SharePartitionKey, ShareGroupOffset]


class ShareCursor(NamedTuple):
    """A share group's start offset in a partition; None if no record was taken yet.  `complete`: see the module."""

    partition: TopicPartition
    start: CommittedOffset | None
    complete: int


def states_in(source: Source, place: str, clock: Clock) -> States:
    """Returns the states in a partition of `__share_group_state`.  SchemaException if it cannot be understood."""
    return ShareCoordinatorShard(SourceStateLog(source, place), _no_log, clock, NoTopics()).states()


def _no_log() -> NoReturn:
    raise AssertionError(SHARE_GROUP_STATE_TOPIC)


def share_cursors(offsets: GroupOffsets, group: str, states: States) -> Iterator[ShareCursor]:
    """Yields the cursors of a share group, whose record names its topics."""
    found = offsets.groups.by_name.get(group)
    if not isinstance(found, ShareGroup) or found.state_partitions is None:
        return
    for topic_id, topic in found.state_partitions.initialized.items():
        for number in topic.partitions:
            state = states.get(SharePartitionKey(group, topic_id, number))
            start = None
            if state is not None and state.start_offset != NO_OFFSET:
                start = CommittedOffset(state.start_offset, leader_epoch=state.leader_epoch, topic_id=topic_id)
            complete = 0 if state is None else max(state.delivery_complete_count, 0)
            yield ShareCursor(TopicPartition(topic.name, number), start, complete)
