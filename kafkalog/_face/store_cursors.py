"""Cursors: the positions of named readers, stored in `__consumer_offsets` as Kafka stores a group's offsets.

A store that writes keeps them next to the data, where a broker and its tools find them. A store that only reads has
them in a separate directory (`cursors=DIR`), or shows those of the directory that it reads. A cursor is a group without
members. Members of a dead broker's consumers are removed before a cursor is moved, because no broker serves them while
this process holds the directory. Thread-safe.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkalog import _shown
from kafkalog.engine.coordinator.group_offsets import GroupLag, GroupOffsets
from kafkalog.engine.coordinator.groups import CommittingMember, GroupType
from kafkalog.engine.files import SYSTEM_CLOCK
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.names import SHARE_GROUP_STATE_TOPIC, TopicPartition
from kafkalog.errors import (
    DiskFull,
    GroupIdNotFoundException,
    KafkalogError,
    KafkaStorageException,
    UnknownMemberIdException,
)

if TYPE_CHECKING:
    from kafkalog._face.home import Home
    from kafkalog.engine.coordinator.groups import ListedGroup
    from kafkalog.engine.coordinator.share_cursors import States
    from kafkalog.engine.format.group_records import CommittedOffset
    from kafkalog.engine.format.share_records import ShareGroupOffset, SharePartitionKey


class CursorInfo(NamedTuple):
    """A named reading position, as `Store.cursors` lists it.

    Attributes:
        name: The cursor's name, which is its group's name.
        state: The group's state in Kafka's words; "Empty" if it has no members.
        partitions: The position in each partition, with the end and the lag if they are known.  The position of a
            queue, which is a share group, is its start offset.  Its lag leaves out later records that are done.  A
            partition has no position before a record is taken.
        type: The group's type in Kafka's words: "Classic", "Consumer", "Share" or "Streams".

    Example:
        >>> with kafkalog.open("shop") as store:
        ...     places = store.create_topic("orders").append_many([b"tea", b"milk", b"bread"])
        ...     with store.reader("billing", topics=["orders"]) as reader:
        ...         records = reader.poll(2)
        ...         committed = reader.commit()
        ...     found = store.cursors()[0]
        >>> found
        <CursorInfo 'billing', state Empty: 1 partition, lag 1>
        >>> found.partitions[0].committed.offset, found.partitions[0].end
        (2, 3)
    """

    name: str
    state: str
    partitions: list[GroupLag]
    type: str = GroupType.CLASSIC.value

    @property
    def lag(self) -> int | None:
        """The lag of all partitions together, in offsets; None if that of one is not known."""
        each = [part.lag for part in self.partitions]
        return None if None in each else sum(filter(None, each))

    def __repr__(self) -> str:
        lag = "not known" if self.lag is None else f"{self.lag:,}"
        partitions = _shown.number(len(self.partitions), "partition")
        return f"<CursorInfo {self.name!r}, state {self.state}: {partitions}, lag {lag}>"

    def _repr_html_(self) -> str | None:
        """Returns a table for notebooks."""
        return _shown.or_none(lambda: _table_of(self))


def _table_of(cursor: CursorInfo) -> str:
    rows = (
        (
            each.partition, f"{each.committed.offset:,}", _known(each.end), _known(each.lag),
            _shown.cut(each.committed.metadata),
        )
        for each in cursor.partitions
    )  # fmt: skip
    columns = ("partition", "committed", "end", "lag", "metadata")
    return _shown.table(f"{cursor.name}, {cursor.state}", columns, rows)


def _known(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


class Cursors(_shown.Shelf[CursorInfo]):
    """The cursors of a store, by name."""

    @staticmethod
    def _show(items: Sequence[CursorInfo]) -> str:
        rows = ((each.name, each.state, len(each.partitions), _known(each.lag)) for each in items)
        return _shown.table(_shown.number(len(items), "cursor"), ("cursor", "state", "partitions", "lag"), rows)


def committed(home: Home, cursor: str) -> dict[TopicPartition, CommittedOffset]:
    """Returns the committed offsets of a cursor; empty if it does not exist."""
    found: dict[TopicPartition, CommittedOffset] = {}
    for offsets in reversed(list(home.keepers(cursor))):
        found.update(offsets.fetch_all(cursor))
    return dict(sorted(found.items()))


def check_name(home: Home, cursor: str) -> None:
    """Raises GroupIdNotFoundException if the name belongs to a group without committed offsets: a queue."""
    try:
        keepers = list(home.keepers(cursor))
    except KafkaStorageException:  # where the group would be is not here: a commit says so
        return
    for keeper in keepers:
        with contextlib.suppress(GroupIdNotFoundException):
            kind = keeper.describe(cursor).type
            if kind in (GroupType.SHARE, GroupType.STREAMS):
                break
    else:
        return
    called = "a queue" if kind is GroupType.SHARE else "a streams group"
    raise GroupIdNotFoundException(f"{cursor!r} is the name of {called}, and cannot be a cursor's too")


def start_of(
    home: Home, cursor: str, partition: TopicPartition, topic_id: str, *, stable: bool
) -> CommittedOffset | None:
    """Returns where a cursor continues; None if it has no offset. `stable`: UnstableOffsetCommitException while a
    transaction is open that may commit another offset."""
    for offsets in home.keepers(cursor):
        found = offsets.fetch(cursor, partition, topic_id=topic_id, require_stable=stable)
        if found is not None:
            return found
    return None


def commit(
    home: Home,
    cursor: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    member: CommittingMember = CommittingMember(),  # noqa: B008 (it does not change)
) -> None:
    """Commits all of these offsets or none. `member`: the member of a group that commits; a plain cursor is none.

    Members that a broker has left behind are removed. Members that may be alive are not: UnknownMemberIdException.
    """
    try:
        home.check_open()
        keeper = home.offsets(cursor, create=True)
        assert keeper is not None
        try:
            keeper.commit(cursor, offsets, member=member)
        except UnknownMemberIdException:
            if member.generation >= 0 or _has_live_members(home):
                raise
            keeper.remove_members(cursor)
            keeper.commit(cursor, offsets)
        _flush(home, keeper)
    except KafkaStorageException as error:
        home.check_open()  # closed meanwhile
        if isinstance(error, DiskFull):
            error.message = f"the commit of cursor {cursor!r} did not fit, and has no effect: {error.message}"
        raise


def _flush(home: Home, keeper: GroupOffsets) -> None:
    if home.syncs:
        keeper.flush()


def delete(home: Home, cursor: str) -> None:
    """Deletes a cursor. GroupIdNotFoundException if it does not exist, GroupNotEmptyException if it is a group whose
    members may be alive."""
    home.check_open()
    keeper = home.offsets(cursor, create=False)
    if keeper is None:
        raise GroupIdNotFoundException(f"cursor {cursor!r} does not exist")
    if not _has_live_members(home):
        keeper.remove_members(cursor)
    keeper.delete_group(cursor)
    _flush(home, keeper)


def _has_live_members(home: Home) -> bool:
    """Returns whether members of groups may be alive: readers of this store, or clients of its server."""
    return not home.read_only and home.coordinators.serves_groups


def cursors(home: Home) -> list[CursorInfo]:
    """Returns every cursor, by name."""
    home.check_open()
    found: dict[str, tuple[ListedGroup, GroupOffsets]] = {}
    for keeper in home.all_keepers():
        for group in keeper.list_groups():
            found.setdefault(group.group, (group, keeper))
    are_shared = any(group.type is GroupType.SHARE for group, _ in found.values())
    states = _share_states(home) if are_shared else {}
    # before the ends: so no cursor is after its end
    offsets = {name: list(_positions(home, *found[name], states)) for name in sorted(found)}
    ends: dict[TopicPartition, int | None] = {}
    return Cursors(
        CursorInfo(
            name,
            found[name][0].state,
            [each._replace(end=_end_for(home, each.partition, each.committed, ends)) for each in its],
            found[name][0].type.value,
        )
        for name, its in offsets.items()
    )


def _positions(home: Home, group: ListedGroup, keeper: GroupOffsets, states: States) -> Iterator[GroupLag]:
    """Yields the positions of a cursor, without ends."""
    if group.type is GroupType.SHARE:
        from kafkalog.engine.coordinator.share_cursors import share_cursors  # few stores need it

        for each in sorted(share_cursors(keeper, group.group, states)):
            if each.start is not None:
                yield GroupLag(each.partition, each.start, None, each.complete)
    else:
        for partition, value in committed(home, group.group).items():
            yield GroupLag(partition, value, None)


def _share_states(home: Home) -> States:
    """Returns how far all share groups are."""
    from kafkalog.engine.coordinator.share_cursors import states_in

    found: dict[SharePartitionKey, ShareGroupOffset] = {}
    if SHARE_GROUP_STATE_TOPIC in home.names():
        for number in home.numbers(SHARE_GROUP_STATE_TOPIC):
            partition = TopicPartition(SHARE_GROUP_STATE_TOPIC, number)
            found.update(states_in(home.source(partition), str(partition), SYSTEM_CLOCK))
    return found


def _end_for(
    home: Home,
    partition: TopicPartition,
    value: CommittedOffset,
    ends: dict[TopicPartition, int | None],
) -> int | None:
    """Returns the end to which an offset is compared; None if the offset is of an earlier topic of the name."""
    try:
        topic_id = home.info(partition.topic).topic_id or ZERO_UUID
    except KafkalogError:
        return None
    is_another = ZERO_UUID not in (topic_id, value.topic_id) and topic_id != value.topic_id
    return None if is_another else _end(home, partition, ends)


def _end(home: Home, partition: TopicPartition, ends: dict[TopicPartition, int | None]) -> int | None:
    if partition not in ends:
        try:
            source = home.source(partition)
            source.recheck()
            ends[partition] = source.visible_end()
        except KafkalogError:
            ends[partition] = None
    return ends[partition]
