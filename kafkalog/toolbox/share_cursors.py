"""How far share groups are in their partitions, offline: read from `__share_group_state`, and changed as
`kafka-share-groups` changes it.

A share group has a start offset in each partition. Records after it may be done already; their number is `complete`.
Reading takes no lock. A change opens the directories as a store does, and asks the coordinators, because two internal
topics change together. Source: ShareGroupCommand (4.4.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from kafkalog._face.store_home import StoreHome
from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.partition_logs import SourceStateLog
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.coordinator.share_coordinator_shard import ShareCoordinatorShard
from kafkalog.engine.coordinator.share_group import ShareGroup
from kafkalog.engine.coordinator.topics_view import NoTopics
from kafkalog.engine.files import Clock, Files
from kafkalog.engine.format.error_codes import for_code
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.names import SHARE_GROUP_STATE_TOPIC, TopicPartition
from kafkalog.engine.format.share_records import NO_OFFSET, ShareGroupOffset, SharePartitionKey
from kafkalog.engine.host.log_directories import absolute_paths
from kafkalog.errors import GroupNotEmptyException, IllegalStateException
from kafkalog.store import store_settings

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.group_coordinator import GroupCoordinator
    from kafkalog.engine.log.view import PartitionView

States = Mapping[SharePartitionKey, ShareGroupOffset]
CONTEXT = RequestContext("kafkalog")


class ShareCursor(NamedTuple):
    """A share group's start offset in a partition; None if no record was taken yet. `complete`: see the module."""

    partition: TopicPartition
    start: CommittedOffset | None
    complete: int


def states_in(view: PartitionView, clock: Clock) -> States:
    """Returns the states in a partition of `__share_group_state`. SchemaException if it cannot be understood."""
    return ShareCoordinatorShard(SourceStateLog(view, view.directory), _no_log, clock, NoTopics()).states()


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


# --- changes ----------------------------------------------------------------------------------------------


# New start offsets by partition, of which None deletes those of a topic. None instead of a mapping deletes the group.
NewOffsets = Mapping[TopicPartition, "int | None"]


class Place(NamedTuple):
    """The directories of a store or a broker."""

    log_dirs: Sequence[str]
    files: Files
    clock: Clock


def change_share_groups(
    place: Place,
    changes: Mapping[str, NewOffsets | None],
    *,
    members_gone: bool,
    done: Callable[[str], None] | None,
) -> None:
    """Changes share groups. Raises GroupNotEmptyException if one has members, and the errors of opening a store."""
    store = StoreHome(
        absolute_paths(place.log_dirs),
        store_settings(None, None, False),
        durability="fsync",
        compression=None,
        clock=place.clock,
        files=place.files,
        metrics=None,
        on_damage="raise",
    )
    store.ends_left = False  # changes nothing else
    try:
        store.start()
        for group, wanted in changes.items():
            offsets = store.offsets(group, create=False)
            if members_gone and offsets is not None:
                offsets.remove_members(group)
            _change(store.coordinators.groups, group, wanted)
            if done is not None:
                done(group)
    finally:
        store.close()


def _change(groups: GroupCoordinator, group: str, wanted: NewOffsets | None) -> None:
    if wanted is None:
        (result,) = groups.delete_groups(CONTEXT, [group])
        _check(group, result)
    elif None in wanted.values():
        gone = [{"topicName": each} for each in dict.fromkeys(each.topic for each in wanted)]
        answer = groups.delete_share_group_offsets(CONTEXT, {"groupId": group, "topics": gone})
        _check(group, answer)
        for topic in answer["responses"]:
            _check(group, topic)
    else:
        by_topic: dict[str, list[Values]] = {}
        for partition, start in wanted.items():
            part = {"partitionIndex": partition.partition, "startOffset": start}
            by_topic.setdefault(partition.topic, []).append(part)
        topics = [{"topicName": topic, "partitions": partitions} for topic, partitions in by_topic.items()]
        answer = groups.alter_share_group_offsets(CONTEXT, {"groupId": group, "topics": topics})
        _check(group, answer)
        for topic in answer["responses"]:
            for each in topic["partitions"]:
                _check(group, each)


def _check(group: str, result: Values) -> None:
    code = for_code(result["errorCode"])
    if not code:
        return
    if code.name == "NON_EMPTY_GROUP":
        raise GroupNotEmptyException(f"group {group!r} now has members", hint="make a new plan")
    raise IllegalStateException(
        f"share group {group!r}: the coordinator answers {code.name}: {result.get('errorMessage')}"
    )
