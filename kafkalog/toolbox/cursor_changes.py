"""Sets and deletes cursors offline, by the rules of Kafka's `kafka-consumer-groups`: first a plan, then the act.

A plan is made from one reading (`toolbox.cursors`), without a lock.  It is carried out one partition of
`__consumer_offsets` at a time, each under its directory's lock, through the engine.  A group's changes are on disk when
it is reported as done.  The state of the group at that time counts: if members joined meanwhile, the change is refused.
A missing partition is created if a store manages the topics; a broker creates its own, and knows no others.

Source: ConsumerGroupCommand, GroupOffsetsResetter (4.4.0).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kafkalog._face.catalog import INTERNAL_PARTITIONS
from kafkalog._face.store_home import StoreHome
from kafkalog._face.topic_settings import TopicSettings
from kafkalog._face.window import day_of
from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.partition_logs import UnifiedStateLog
from kafkalog.engine.files import Files
from kafkalog.engine.format import names
from kafkalog.engine.format.coordinator_records import partition_for
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.names import GROUP_METADATA_TOPIC, TopicPartition
from kafkalog.engine.host.log_directories import absolute_paths
from kafkalog.engine.host.topic_configs import stored_content
from kafkalog.errors import (
    GroupNotEmptyException,
    IllegalArgumentException,
    InvalidGroupIdException,
    UnknownTopicOrPartitionException,
)
from kafkalog.store import store_settings
from kafkalog.toolbox.cursors import CursorLook, GroupCursors
from kafkalog.toolbox.recovery import open_undamaged
from kafkalog.toolbox.share_cursors import Place, change_share_groups

__all__ = [
    "Aim",
    "Change",
    "ChangePlan",
    "carry_out",
    "plan_deletion",
    "plan_from_file",
    "plan_offset_deletion",
    "plan_reset",
]

Plan = Mapping[TopicPartition, int]
NO_PLAN: Plan = {}


class Aim(NamedTuple):
    """The new position of cursors.

    `how` is an option of Kafka's tool without its dashes. `value` is an offset, a shift, or milliseconds since
    1970, depending on `how`.
    """

    how: str
    value: int = 0


class Change(NamedTuple):
    """The change of one offset; `new` is None to delete it.  `note` says why it differs from the requested offset."""

    group: str
    partition: TopicPartition
    old: int | None
    new: int | None
    topic_id: str | None = None
    note: str | None = None


@dataclass
class ChangePlan:
    """The planned changes.

    `deleted` are groups that are deleted as a whole. `refused` maps groups that stay unchanged to the reason.
    `begun` are groups that do not exist yet.
    """

    changes: list[Change] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)

    def of_group(self, group: str) -> list[Change]:
        """Returns the changes of one group.

        Args:
            group: The group's name.

        Returns:
            The changes, in the order of partitions.
        """
        return [each for each in self.changes if each.group == group]

    @property
    def groups(self) -> list[str]:
        """The groups that change, in order."""
        return list(dict.fromkeys([*(each.group for each in self.changes), *self.deleted]))


# --- plans ------------------------------------------------------------------------------------------------


def plan_reset(
    look: CursorLook,
    groups: Sequence[str],
    aim: Aim,
    scope: Sequence[TopicPartition] | None,
    *,
    members_gone: bool = False,
    only_committed: bool = False,
) -> ChangePlan:
    """Plans moving the cursors of groups.

    A group that does not exist yet is created.  Offsets outside of a partition's range are moved into it.

    Args:
        look: The reading of the log directories.
        groups: The names of the groups.
        aim: The new position.
        scope: The partitions; None means all in which the group has committed something.
        members_gone: Changes groups that still list members, because these no longer run.
        only_committed: Creates no group, and leaves out partitions of `scope` in which the group has committed nothing.
            Kafka's tool gives the group a cursor there.

    Returns:
        A `ChangePlan` for `carry_out`.

    Raises:
        UnknownTopicOrPartitionException: A partition is not in these directories.
        IllegalArgumentException: A shift of an offset that was never committed.
        InvalidGroupIdException: A group's name is empty.
        GroupIdNotFoundException: A group does not exist, with `only_committed`.

    Example:
        >>> from kafkalog.toolbox.cursor_changes import Aim, plan_reset
        >>> from kafkalog.toolbox.cursors import CursorLook
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append_many([b"one", b"two"])
        ...     with store.reader("billing", topics=["orders"]) as reader:
        ...         _ = reader.poll(2)
        ...         _ = reader.commit()
        >>> plan = plan_reset(CursorLook(["shop"]), ["billing"], Aim("to-earliest"), None)
        >>> plan.changes[0].old, plan.changes[0].new
        (2, 0)
    """
    plan = ChangePlan()
    for group in _checked(groups):
        found = look.groups.get(group)
        if _refuses(look, plan, group, found, members_gone):
            continue
        if found is None:
            if only_committed:
                look.must(group)
            plan.begun.append(group)
        committed = {} if found is None else found.committed
        for partition in sorted(committed) if scope is None else dict.fromkeys(scope):
            if only_committed and partition not in committed:
                continue
            current = committed.get(partition)
            old = None if current is None else current.offset
            new, note = _target(look, aim, partition, old)
            plan.changes.append(Change(group, partition, old, new, look.bounds(partition).topic_id, note))
        _take_along(look, plan, found)
    return plan


def plan_from_file(
    look: CursorLook, plans: Mapping[str, Plan], groups: Sequence[str], *, members_gone: bool = False
) -> ChangePlan:
    """Plans moving cursors to the offsets of a file.

    A group that the file does not name is refused.

    Args:
        look: The reading of the log directories.
        plans: The new offsets: by group, then by partition.
        groups: The names of the groups to change.
        members_gone: Changes groups that still list members, because these no longer run.

    Returns:
        A `ChangePlan` for `carry_out`.

    Raises:
        UnknownTopicOrPartitionException: A partition is not in these directories.
        InvalidGroupIdException: A group's name is empty.

    Example:
        >>> from kafkalog.toolbox.cursor_changes import plan_from_file
        >>> from kafkalog.toolbox.cursors import CursorLook
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append_many([b"one", b"two"])
        >>> plans = {"billing": {kafkalog.TopicPartition("orders", 0): 1}}
        >>> plan = plan_from_file(CursorLook(["shop"]), plans, ["billing"])
        >>> plan.begun, plan.changes[0].new
        (['billing'], 1)
    """
    plan = ChangePlan()
    for group in _checked(groups):
        found = look.groups.get(group)
        if group not in plans:
            plan.refused[group] = "the file does not name this group"
            continue
        if _refuses(look, plan, group, found, members_gone):
            continue
        if found is None:
            plan.begun.append(group)
        committed = {} if found is None else found.committed
        for partition, wanted in sorted(plans[group].items()):
            current = committed.get(partition)
            new, note = _in_range(look, partition, wanted)
            old = None if current is None else current.offset
            plan.changes.append(Change(group, partition, old, new, look.bounds(partition).topic_id, note))
        _take_along(look, plan, found)
    return plan


def plan_deletion(look: CursorLook, groups: Sequence[str], *, members_gone: bool = False) -> ChangePlan:
    """Plans deleting groups with everything that they committed.

    Args:
        look: The reading of the log directories.
        groups: The names of the groups.
        members_gone: Deletes groups that still list members, because these no longer run.

    Returns:
        A `ChangePlan` for `carry_out`.

    Raises:
        GroupIdNotFoundException: A group does not exist.

    Example:
        >>> from kafkalog.toolbox.cursor_changes import plan_deletion
        >>> from kafkalog.toolbox.cursors import CursorLook
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        ...     with store.reader("billing", topics=["orders"]) as reader:
        ...         _ = reader.poll(1)
        ...         _ = reader.commit()
        >>> plan_deletion(CursorLook(["shop"]), ["billing"]).deleted
        ['billing']
    """
    plan = ChangePlan()
    for found in look.named(groups):
        if not (_refuses(look, plan, found.listed.group, found, members_gone) or _is_elsewhere(look, plan, found)):
            plan.deleted.append(found.listed.group)
            plan.changes += _taken_away(found, None)
    return plan


def plan_offset_deletion(
    look: CursorLook, group: str, scope: Sequence[TopicPartition], *, members_gone: bool = False
) -> ChangePlan:
    """Plans deleting what a group committed for some partitions, in open transactions too.

    Args:
        look: The reading of the log directories.
        group: The name of the group.
        scope: The partitions.
        members_gone: Changes a group that still lists members, because these no longer run.

    Returns:
        A `ChangePlan` for `carry_out`.

    Raises:
        GroupIdNotFoundException: The group does not exist.

    Example:
        >>> from kafkalog.toolbox.cursor_changes import plan_offset_deletion
        >>> from kafkalog.toolbox.cursors import CursorLook
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        ...     with store.reader("billing", topics=["orders"]) as reader:
        ...         _ = reader.poll(1)
        ...         _ = reader.commit()
        >>> plan = plan_offset_deletion(CursorLook(["shop"]), "billing", [kafkalog.TopicPartition("orders", 0)])
        >>> plan.changes[0].old, plan.changes[0].new
        (1, None)
    """
    plan = ChangePlan()
    found = look.must(group)
    if not (_refuses(look, plan, group, found, members_gone) or _is_elsewhere(look, plan, found)):
        plan.changes += _taken_away(found, scope)
    return plan


def _taken_away(found: GroupCursors, scope: Sequence[TopicPartition] | None) -> Iterator[Change]:
    topics = {each.topic for each in scope or ()} if found.is_share else ()  # their states are deleted by topic
    for each in found.cursors:
        if scope is None or each.partition in scope or each.partition.topic in topics:
            old = None if each.committed is None else each.committed.offset
            by_topic = scope is not None and each.partition not in scope
            note = "share groups forget all partitions of a topic together" if by_topic else None
            yield Change(found.listed.group, each.partition, old, None, note=note)


def _checked(groups: Sequence[str]) -> list[str]:
    if not all(groups):
        raise InvalidGroupIdException("the group's name is empty", hint="give a name, such as --group billing")
    return list(dict.fromkeys(groups))


def _take_along(look: CursorLook, plan: ChangePlan, found: GroupCursors | None) -> None:
    """Copies the unchanged cursors of a group that begins in a directory of cursors: what it has only in the log
    directories would otherwise be hidden from its readers."""
    if found is None or look.may_change(found):
        return
    group = found.listed.group
    changed = {each.partition for each in plan.of_group(group)}
    for partition, committed in found.committed.items():
        if partition not in changed:
            at, note = committed.offset, "copied from the log directories"
            plan.changes.append(Change(group, partition, at, at, committed.topic_id, note))


def _is_elsewhere(look: CursorLook, plan: ChangePlan, found: GroupCursors) -> bool:
    if look.may_change(found):
        return False
    plan.refused[found.listed.group] = f"it is not in {look.cursors_dir}, and cursors in {found.log_dir} are only read"
    return True


def _refuses(look: CursorLook, plan: ChangePlan, group: str, found: GroupCursors | None, members_gone: bool) -> bool:
    if found is None or not look.may_change(found):
        return False  # the changed group starts empty
    why = None
    if found.is_a_brokers:
        why = f"it is a {found.listed.type.value.lower()} group: only a broker may change its offsets"
    elif found.members and not members_gone:
        who = "its member uses" if len(found.members) == 1 else f"its {len(found.members)} members use"
        why = f"it is {found.listed.state}, and {who} these offsets"
    if why is not None:
        plan.refused[group] = why
    return why is not None


def _target(look: CursorLook, aim: Aim, partition: TopicPartition, current: int | None) -> tuple[int, str | None]:
    bounds = look.bounds(partition)
    match aim.how:
        case "to-earliest":
            return bounds.start, None
        case "to-latest":
            return bounds.end, None
        case "to-current":
            return (bounds.end, "nothing is committed, so the log end is used") if current is None else (current, None)
        case "to-offset":
            return _in_range(look, partition, aim.value)
        case "shift-by":
            if current is None:
                raise IllegalArgumentException(
                    f"{partition}: no offset is committed, so it cannot be shifted",
                    hint="use --to-offset, --to-earliest or --to-latest",
                )
            return _in_range(look, partition, current + aim.value)
        case "to-datetime" | "by-duration":
            found = look.offset_for_time(partition, aim.value)
            return (bounds.end, "no record is that late, so the log end is used") if found is None else (found, None)
    raise AssertionError(aim)


def _in_range(look: CursorLook, partition: TopicPartition, wanted: int) -> tuple[int, str | None]:
    start, end, _ = look.bounds(partition)
    if wanted > end:
        day = day_of(wanted)
        return end, f"{wanted} is after the log end, so the log end is used" + (
            "" if day is None else f" (for the day, use --to-datetime {day})"
        )
    if wanted < start:
        return start, f"{wanted} is before the log start, so the log start is used"
    return wanted, None


# --- doing it ---------------------------------------------------------------------------------------------


class _Keeper(NamedTuple):
    """A partition of `__consumer_offsets`; if `is_there` is False, it has to be created."""

    log_dirs: tuple[str, ...]
    number: int
    is_there: bool


def carry_out(
    look: CursorLook,
    plan: ChangePlan,
    *,
    members_gone: bool = False,
    done: Callable[[str], None] | None = None,
) -> None:
    """Carries out a plan.

    Args:
        look: The reading that the plan was made from.
        plan: The plan.
        members_gone: Changes groups that still list members, because these no longer run.
        done: Called with each group once all its changes are on disk.

    Raises:
        LogDirLockedException: A broker or an open store has a directory.
        CorruptRecordException: `__consumer_offsets` was not closed cleanly and is damaged.
        UnknownTopicOrPartitionException: The broker has not created the group's partition of `__consumer_offsets`.
        UnknownMemberIdException: Members joined since the plan was made.
        GroupNotEmptyException: Members joined since the plan was made.

    Example:
        >>> from kafkalog.toolbox.cursor_changes import Aim, carry_out, plan_reset
        >>> from kafkalog.toolbox.cursors import CursorLook
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append_many([b"one", b"two"])
        >>> look, orders = CursorLook(["shop"]), kafkalog.TopicPartition("orders", 0)
        >>> carry_out(look, plan_reset(look, ["billing"], Aim("to-offset", 1), [orders]), done=print)
        billing
        >>> CursorLook(["shop"]).groups["billing"].cursors[0].lag
        1
    """
    by_keeper: dict[_Keeper, list[str]] = {}
    shares = {
        each: None if each in plan.deleted else {change.partition: change.new for change in plan.of_group(each)}
        for each in plan.groups
        if each in look.groups and look.groups[each].is_share
    }
    if shares:
        place = Place(look.log_dirs, look.files, look.clock)
        change_share_groups(place, shares, members_gone=members_gone, done=done)
    for group in plan.groups:
        if group in shares:
            continue
        by_keeper.setdefault(_keeper_of(look, group), []).append(group)
    for keeper, groups in by_keeper.items():
        with _opened(look, keeper, groups[0]) as offsets:
            for group in groups:
                _change(offsets, plan, group, members_gone)
                if done is not None:
                    done(group)


def _change(offsets: GroupOffsets, plan: ChangePlan, group: str, members_gone: bool) -> None:
    if members_gone and any(each.group == group for each in offsets.list_groups()):
        offsets.remove_members(group)
    changes = plan.of_group(group)
    if group in plan.deleted:
        offsets.delete_group(group)
    elif any(each.new is None for each in changes):
        if offsets.members(group):
            raise GroupNotEmptyException(f"group {group!r} now has members", hint="make a new plan")
        offsets.delete_offsets(group, [each.partition for each in changes])
    else:
        offsets.commit(
            group,
            {
                each.partition: CommittedOffset(each.new, topic_id=each.topic_id or ZERO_UUID)
                for each in changes
                if each.new is not None
            },
        )
    offsets.flush()


def _keeper_of(look: CursorLook, group: str) -> _Keeper:
    """Returns where a group is kept, or will be."""
    dirs = look.log_dirs if look.cursors_dir is None else [look.cursors_dir]
    found = look.groups.get(group)
    if found is not None and look.may_change(found):
        return _Keeper((found.log_dir,), found.number, True)
    homes = look.offsets_homes(dirs)
    is_a_brokers = any(look.files.exists(os.path.join(each, names.META_PROPERTIES_FILE)) for each in dirs)
    count = _partition_count(dirs, homes, look.files)
    number = partition_for(group, count)
    # A broker has only some of a cluster's partitions: their number is certain only if none is missing.
    if is_a_brokers and len(homes) != count:
        what = f"{len(homes)} of {count} or more partitions exist" if homes else "no partition exists"
        raise UnknownTopicOrPartitionException(
            f"group {group!r} does not exist, and its partition of {GROUP_METADATA_TOPIC} is unknown: "
            f"{what} in {', '.join(dirs)}",
            hint="name all log directories; a broker creates that topic when the first group commits",
        )
    if number in homes:
        return _Keeper((homes[number],), number, True)
    return _Keeper(tuple(dirs), number, False)


def _partition_count(dirs: Sequence[str], homes: Mapping[int, str], files: Files) -> int:
    _, known = stored_content([each for each in dirs if files.is_dir(each)], files)
    if GROUP_METADATA_TOPIC in known:
        return known[GROUP_METADATA_TOPIC].partitions
    return 1 + max(homes) if homes else INTERNAL_PARTITIONS


@contextlib.contextmanager
def _opened(look: CursorLook, keeper: _Keeper, group: str) -> Iterator[GroupOffsets]:
    """Opens the partition that keeps `group`."""
    if keeper.is_there:
        [log_dir] = keeper.log_dirs
        config = TopicSettings(log_dir, files=look.files).of(GROUP_METADATA_TOPIC)
        partition = TopicPartition(GROUP_METADATA_TOPIC, keeper.number)
        with open_undamaged(log_dir, partition, config, look.files, look.clock) as log:
            assert log.engine is not None
            yield GroupOffsets(UnifiedStateLog(log.engine, syncs=True), look.clock)
        return
    store = StoreHome(
        absolute_paths(keeper.log_dirs),
        store_settings(None, None, False),
        durability="fsync",
        compression=None,
        clock=look.clock,
        files=look.files,
        metrics=None,
        on_damage="raise",
    )
    store.ends_left = False  # as in `open_undamaged`: changes nothing else
    try:
        store.start()
        made = store.offsets(group, create=True)
        assert made is not None
        yield made
    finally:
        store.close()


def __dir__() -> list[str]:
    return __all__
