"""Changes how far share groups are, offline, as `kafka-share-groups` changes it.

A change opens the directories as a store does, and asks the coordinators, because two internal topics change together.
Source: ShareGroupCommand (4.4.0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._face.store_home import StoreHome
from kafkalog.engine.coordinator.request_context import RequestContext
from kafkalog.engine.files import Clock, Files
from kafkalog.engine.format.error_codes import for_code
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_directories import absolute_paths
from kafkalog.errors import GroupNotEmptyException, IllegalStateException
from kafkalog.store import store_settings

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.group_coordinator import GroupCoordinator

CONTEXT = RequestContext("kafkalog")

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
