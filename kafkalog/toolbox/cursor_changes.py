"""Cursors set, and taken away, offline: by the rules of Kafka's `kafka-consumer-groups`, planned first, then done.

A plan is made from one look (`toolbox.cursors`), without a lock.  It is carried out partition by partition of
`__consumer_offsets`, each under its directory's lock, through the engine, and is on the disk when it is told; what the
group is by then counts, so that members who came meanwhile refuse it.  A partition that is missing is made where a
store keeps the topics; a broker makes its own, and knows no other.

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
    """Where cursors are to go: `how` is an option of Kafka's tool, without its dashes; `value` an offset, a shift, or
    milliseconds since 1970, as that wants."""

    how: str
    value: int = 0


class Change(NamedTuple):
    """One offset; `new` None: it is taken away.  `note`: why it is another than what was asked for."""

    group: str
    partition: TopicPartition
    old: int | None
    new: int | None
    topic_id: str | None = None
    note: str | None = None


@dataclass
class ChangePlan:
    """What is to be done; `deleted` are groups that go as a whole.  `refused`: groups that are left, and why.  `begun`:
    groups that are not there yet."""

    changes: list[Change] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)

    def of_group(self, group: str) -> list[Change]:
        """The changes of one group."""
        return [each for each in self.changes if each.group == group]

    @property
    def groups(self) -> list[str]:
        """Which are changed, in order."""
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
    """Cursors of `groups` in `scope` (None: wherever each has committed something) are to go to `aim`.

    A group need not be there: it begins with this.  With `only_committed` none begins, and partitions of the scope in
    which a group has committed nothing are left out: Kafka's tool gives it a cursor there.  Offsets out of a
    partition's range are brought into it.
    UnknownTopicOrPartitionException for a partition that is not in these directories; IllegalArgumentException for a
    shift of what nobody committed; InvalidGroupIdException; with `only_committed` GroupIdNotFoundException.
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
    """Cursors are to go where `plans` says, by group.  A group of which it says nothing is left.  Errors as
    `plan_reset`."""
    plan = ChangePlan()
    for group in _checked(groups):
        found = look.groups.get(group)
        if group not in plans:
            plan.refused[group] = "the file does not name it"
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
    """Groups are to go, with all that they committed.  GroupIdNotFoundException."""
    plan = ChangePlan()
    for found in look.named(groups):
        if not (_refuses(look, plan, found.listed.group, found, members_gone) or _is_elsewhere(look, plan, found)):
            plan.deleted.append(found.listed.group)
            plan.changes += _taken_away(found, None)
    return plan


def plan_offset_deletion(
    look: CursorLook, group: str, scope: Sequence[TopicPartition], *, members_gone: bool = False
) -> ChangePlan:
    """What a group committed for `scope` is to go, in open transactions too.  GroupIdNotFoundException."""
    plan = ChangePlan()
    found = look.must(group)
    if not (_refuses(look, plan, group, found, members_gone) or _is_elsewhere(look, plan, found)):
        plan.changes += _taken_away(found, scope)
    return plan


def _taken_away(found: GroupCursors, scope: Sequence[TopicPartition] | None) -> Iterator[Change]:
    for each in found.cursors:
        if scope is None or each.partition in scope:
            old = None if each.committed is None else each.committed.offset
            yield Change(found.listed.group, each.partition, old, None)


def _checked(groups: Sequence[str]) -> list[str]:
    if not all(groups):
        raise InvalidGroupIdException("a group needs a name", hint="what is its name? --group billing")
    return list(dict.fromkeys(groups))


def _take_along(look: CursorLook, plan: ChangePlan, found: GroupCursors | None) -> None:
    """A group that begins in a directory of its own: what it has in the log directories, and nobody changes, goes with
    it, or its readers would not see that any more."""
    if found is None or look.may_change(found):
        return
    group = found.listed.group
    changed = {each.partition for each in plan.of_group(group)}
    for partition, committed in found.committed.items():
        if partition not in changed:
            at, note = committed.offset, "taken along from the log directories"
            plan.changes.append(Change(group, partition, at, at, committed.topic_id, note))


def _is_elsewhere(look: CursorLook, plan: ChangePlan, found: GroupCursors) -> bool:
    if look.may_change(found):
        return False
    plan.refused[found.listed.group] = f"it is not in {look.cursors_dir}, and {found.log_dir} is only read"
    return True


def _refuses(look: CursorLook, plan: ChangePlan, group: str, found: GroupCursors | None, members_gone: bool) -> bool:
    if found is None or not look.may_change(found):
        return False  # what is changed begins empty
    why = None
    if found.is_a_brokers:
        why = f"it is a {found.listed.type.value.lower()} group, whose offsets only a broker changes"
    elif found.members and not members_gone:
        why = f"it is {found.listed.state}, with {len(found.members)} members, whose offsets they are"
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
            return (bounds.end, "nothing is committed: the end") if current is None else (current, None)
        case "to-offset":
            return _in_range(look, partition, aim.value)
        case "shift-by":
            if current is None:
                raise IllegalArgumentException(
                    f"{partition}: nothing is committed that could be shifted",
                    hint="--to-offset, --to-earliest or --to-latest sets it",
                )
            return _in_range(look, partition, current + aim.value)
        case "to-datetime" | "by-duration":
            found = look.offset_for_time(partition, aim.value)
            return (bounds.end, "no record is as late: the end") if found is None else (found, None)
    raise AssertionError(aim)


def _in_range(look: CursorLook, partition: TopicPartition, wanted: int) -> tuple[int, str | None]:
    start, end, _ = look.bounds(partition)
    if wanted > end:
        day = day_of(wanted)
        return end, f"{wanted} lies behind the end: the end" + (
            "" if day is None else f" (--to-datetime {day} is the day)"
        )
    if wanted < start:
        return start, f"{wanted} lies before the log start: the start"
    return wanted, None


# --- doing it ---------------------------------------------------------------------------------------------


class _Keeper(NamedTuple):
    """A partition of `__consumer_offsets`; `is_there` False: it is to be made."""

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
    """Does what is planned; `done` is called with each group, whose changes are durable then, all of them.

    LogDirLockedException beside a broker or an open store; CorruptRecordException where `__consumer_offsets` was not
    closed cleanly and is damaged; UnknownTopicOrPartitionException where a broker has not made it;
    UnknownMemberIdException, GroupNotEmptyException where members came meanwhile.
    """
    by_keeper: dict[_Keeper, list[str]] = {}
    for group in plan.groups:
        by_keeper.setdefault(_keeper_of(look, group), []).append(group)
    for keeper, groups in by_keeper.items():
        with _opened(look, keeper, groups[0]) as offsets:
            for group in groups:
                _change(offsets, plan, group, members_gone)
                if done is not None:
                    done(group)


def _change(offsets: GroupOffsets, plan: ChangePlan, group: str, members_gone: bool) -> None:
    if members_gone and any(each.group == group for each in offsets.groups()):
        offsets.remove_members(group)
    changes = plan.of_group(group)
    if group in plan.deleted:
        offsets.delete_group(group)
    elif any(each.new is None for each in changes):
        if offsets.members(group):
            raise GroupNotEmptyException(f"group {group!r} has got members", hint="look again")
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
    """Where a group is kept, or is to be."""
    dirs = look.log_dirs if look.cursors_dir is None else [look.cursors_dir]
    found = look.groups.get(group)
    if found is not None and look.may_change(found):
        return _Keeper((found.log_dir,), found.number, True)
    homes = look.offsets_homes(dirs)
    is_a_brokers = any(look.files.exists(os.path.join(each, names.META_PROPERTIES_FILE)) for each in dirs)
    count = _partition_count(dirs, homes, look.files)
    number = partition_for(group, count)
    # Of a cluster's topic only those of this broker are here: how many there are is sure where none is missing.
    if is_a_brokers and len(homes) != count:
        what = f"found {len(homes)} of {count} or more" if homes else "found none"
        raise UnknownTopicOrPartitionException(
            f"group {group!r} is not here yet, and which partition of {GROUP_METADATA_TOPIC} is its own is not known: "
            f"{what} in {', '.join(dirs)}",
            hint="name all log directories; a broker makes that topic when the first group commits",
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
    """Who keeps the groups of a partition, of which `group` is one."""
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
    store.ends_left = False  # as `open_undamaged`: only what is asked for is changed
    try:
        store.start()
        made = store.offsets(group, create=True)
        assert made is not None
        yield made
    finally:
        store.close()


def __dir__() -> list[str]:
    return __all__
