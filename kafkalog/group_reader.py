"""Readers that divide the partitions of topics among them: `Store.reader(..., group=True)` returns a GroupReader.

    def work():
        with store.reader("billing", topics=["orders"], group=True) as reader:
            for record in reader.follow(timeout_ms=1000):
                print(record.key, record.value)
                reader.commit()

    for _ in range(4):
        threading.Thread(target=work).start()

A GroupReader is a StoreReader that is a member of a consumer group (KIP-848).  The group may have members in any thread
and task of this process, and beside them clients of the store's server.  Each partition has one reader at a time, and
begins where the group's last commit is.

When a member comes or goes, partitions move.  A reader gives a partition up between two calls, or between two records
of a loop: the records that it has returned from it are processed then.  It commits the partition's position, or calls
`on_revoke` instead.  The next reader gets the partition afterwards, and calls `on_assign`.  The other partitions
are read on meanwhile.  A reader may have no partition at all, if there are more members than partitions; it gets one
when another member leaves.

A commit is refused if the member has lost the partition: StaleMemberEpochException, UnknownMemberIdException or
FencedMemberEpochException, as in Kafka.  The records that were not committed come again in another reader.

A reader leaves the group when it is closed or dropped, and its partitions go to the others at once.  It is removed if
it is not used for `max_poll_interval_ms`; when it is used again, it joins again, and begins with the committed offsets.
If the process is killed, the next process that opens the store removes its members when it joins the group.

With `pattern` instead of `topics`, the group reads all topics whose names match, also those that are created later.

With `group_instance_id` a reader is a static member.  Closing it does not move its partitions: the next reader of that
name gets them back, without a rebalance.  If none comes within the session timeout (45 seconds), the others get them.

Read with `follow`, or call `poll` in a loop.  `for record in reader` ends when the reader has no more records now, as
with every reader, and that is at once if it has no partition yet.  A reader that is not read keeps its partitions until
`max_poll_interval_ms` has passed, and nobody gets their records.  So close a reader at the end of its loop.

`on_assign` and `on_revoke` can commit, seek and ask for positions.  They cannot read.

In asyncio, each task has a reader of its own:

    async def work():
        async with store.reader("billing", topics=["orders"], group=True) as reader:
            async for record in reader.follow(timeout_ms=1000):
                print(record.key, record.value)
                await reader.commit_async()
"""

from __future__ import annotations

import math
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from kafkalog import _shown
from kafkalog._face.group_members import MemberOptions, finalizer
from kafkalog.engine.files.lines import Lines
from kafkalog.errors import (
    FencedMemberEpochException,
    GroupIdNotFoundException,
    StaleMemberEpochException,
    UnknownMemberIdException,
    UnknownTopicOrPartitionException,
)
from kafkalog.reader import StoreReader, _timeout_s

if TYPE_CHECKING:
    from kafkalog._face.group_members import LocalMember
    from kafkalog._face.home import Home
    from kafkalog._face.partition_turns import Batch, Ends
    from kafkalog._face.reader_options import ReaderOptions
    from kafkalog.engine.coordinator.groups import CommittingMember
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.records import Record

__all__ = ["GroupReader"]

_LINES = Lines("kafkalog.coordinator")
_LOST = (
    FencedMemberEpochException, GroupIdNotFoundException, StaleMemberEpochException, UnknownMemberIdException,
)  # fmt: skip


class GroupReader(StoreReader):
    """A reader that is a member of a consumer group; returned by `Store.reader` with `group=True`.

    It has all methods of a StoreReader.  `assignment` changes when members come and go.  Read with `follow` or `poll`:
    `for record in reader` ends at once while the reader has no partition.

    Example:
        >>> with kafkalog.open("data") as store:
        ...     orders = store.create_topic("orders", partitions=4)
        ...     with store.reader("billing", topics=["orders"], group=True) as one:
        ...         print(len(one.assignment))
        ...         with store.reader("billing", topics=["orders"], group=True) as two:
        ...             while len(two.assignment) < 2:
        ...                 found = one.poll(), two.poll()
        ...             print(len(one.assignment), len(two.assignment))
        4
        2 2
    """

    _inner = StoreReader._inner | {"committing_member"}

    def __init__(self, home: Home, options: ReaderOptions) -> None:
        assert options.cursor is not None
        assert options.group is not None
        home.check_writable()
        for topic in options.topics or ():
            try:
                home.info(topic)
            except UnknownTopicOrPartitionException as error:  # as in Kafka, the group reads it once it exists
                _LINES.warning("group %s: %s", options.cursor, error)
        self._member: LocalMember | None = None
        self._seen = -1  # the version of the member's assignment that this reader has
        self._is_settling = False  # partitions come and go, and on_assign and on_revoke are called
        self._gone: set[TopicPartition] = set()  # assigned partitions of topics that were deleted
        super().__init__(home, options)
        self._group = options.group
        told = MemberOptions(
            options.cursor,
            tuple(options.topics or ()),
            options.group.assignor,
            options.group.max_poll_interval_ms,
            options.group.pattern,
            options.group.group_instance_id,
        )
        try:
            members = home.coordinators.served.members
            member = self._member = members.new(told, self._turns.waiting)
            weakref.finalize(self, finalizer(member)).atexit = False  # first: so an interrupt leaves no member behind
            this = weakref.ref(self)
            member.progress = lambda: _progress(this())
            members.join(member)
            with self._turn:
                self._settle()
        except BaseException:
            self.close()
            raise

    # --- open and close ------------------------------------------------------------------------------

    def __enter__(self) -> GroupReader:
        return self

    def close(self) -> None:
        """Closes the files and leaves the group, without a commit; the other members get its partitions at once.

        A static member leaves for a while: its partitions wait for the next reader with its `group_instance_id`.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     orders = store.create_topic("orders")
            ...     reader = store.reader("billing", topics=["orders"], group=True)
            ...     reader.close()
            ...     print(store.cursors())
            [<CursorInfo 'billing', state Empty: 0 partitions, lag 0>]
        """
        super().close()
        member = self._member
        if member is not None and self._home.life.live:
            member.leave()

    @property
    def member_id(self) -> str:
        """The id of this member, as tools show it."""
        assert self._member is not None
        return self._member.id

    @property
    def _called(self) -> str:
        turns = getattr(self, "_turns", None)  # None if __init__ failed
        of = _shown.number(0 if turns is None else len(turns.readers), "partition")
        return f"<GroupReader {self._options.cursor!r} of {of}, {'closed' if self.closed else 'open'}>"

    def __repr__(self) -> str:
        return super().__repr__().replace("<StoreReader", "<GroupReader", 1)

    # --- reading -------------------------------------------------------------------------------------

    def poll(self, max_records: int = 500, timeout_ms: int | None = 0) -> list[Record]:
        """Returns a list of records, as soon as there is at least one, like `StoreReader.poll`.

        Partitions that other members should have are given up first: the records of the last poll count as processed.

        Args:
            max_records: The most records to return.
            timeout_ms: How long to wait for a record, in milliseconds; 0 does not wait, None waits without a limit.

        Returns:
            The Records; an empty list if none came in time, or if the reader has no partition.

        Raises:
            KafkalogError: Any error of `StoreReader.poll`, `on_assign`, `on_revoke` and the commit.

        Example:
            >>> with kafkalog.open("data") as store:
            ...     place = store.create_topic("orders").append(b"one")
            ...     with store.reader("billing", topics=["orders"], group=True) as reader:
            ...         print([record.value for record in reader.poll(timeout_ms=1000)])
            [b'one']
        """
        until = _until(_timeout_s(timeout_ms))
        while True:
            with self._turn as mine:
                self._begin(mine)
                self._settle()
            left_ms = None if until == math.inf else max(0, round((until - time.monotonic()) * 1000))
            found = super().poll(max_records, left_ms)
            # It also returns when partitions are to move, which must not happen within a poll.
            if found or left_ms == 0 or not self._is_over_or_moved():
                return found

    def _next_batch(self, ends: Ends | None, timeout_s: float) -> Batch | None:
        member = self._member
        assert member is not None
        until = _until(timeout_s)
        is_polling = self._undo is not None  # its records are not processed yet: no partition may go
        member.enter()
        try:
            while True:
                if not is_polling:
                    self._settle()
                found = self._turns.find(ends)
                left_s = until - time.monotonic()
                if found is not None or ends is not None or left_s <= 0 or self._is_over():
                    return found
                found = self._turns.await_batch(left_s, self._is_over_or_moved)
                if self._closed:
                    self._check(True)
                if found is not None or is_polling:
                    return found
        finally:
            member.leave_call()

    def _is_over_or_moved(self) -> bool:
        assert self._member is not None
        return self._is_over() or self._member.version != self._seen

    # --- partitions come and go ------------------------------------------------------------------------

    def _settle(self) -> None:
        """Gives up and takes what the group says. Goes on where an interrupt or an error has stopped it."""
        self._check_no_callback(self._is_settling)
        member = self._member
        if member is None or member.version == self._seen:
            return
        self._is_settling = True
        try:
            self._settle_with(member)
        finally:
            self._is_settling = False

    def _settle_with(self, member: LocalMember) -> None:
        while (version := member.version) != self._seen:
            if member.is_lost:
                self._drop(list(self._turns.readers))
                member.join()
                continue
            assigned = member.assigned
            readers = self._turns.readers
            gone = [each for each in readers if assigned.get(each) != readers[each].topic_id]
            if gone:
                self._revoke(gone)
                self._drop(gone)
                member.has(self._owned())
                continue
            new = [each for each in assigned if each not in readers and each not in self._gone]
            for each in new:
                self._take(each)
            member.has(self._owned())
            self._gone &= set(assigned)
            self._seen = version
            new = [each for each in new if each in readers]
            if new and self._group.on_assign is not None:
                self._group.on_assign(self, new)

    def _owned(self) -> dict[TopicPartition, str]:
        return {each: reader.topic_id for each, reader in self._turns.readers.items()}

    def _take(self, partition: TopicPartition) -> None:
        try:
            self._turns.give(partition)
        except UnknownTopicOrPartitionException:
            self._gone.add(partition)  # it is being deleted; the group will notice

    def _revoke(self, partitions: list[TopicPartition]) -> None:
        if self._group.on_revoke is not None:
            self._group.on_revoke(self, partitions)
            return
        with suppress(*_LOST):  # another member has them already
            positions = self.offsets_to_commit()
            at = {each: row.offset for each, row in positions.items() if each in partitions}
            known = self.committed()
            moved = {each: offset for each, offset in at.items() if known.get(each, self._begun(each)) != offset}
            if moved:
                self.commit(moved)

    def _begun(self, partition: TopicPartition) -> int:
        return self._turns.readers[partition].begun_at

    def _drop(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            reader = self._turns.readers.get(each)
            if reader is not None:
                self._leave(reader)
                self._turns.take(each)

    # --- cursors -------------------------------------------------------------------------------------

    def committing_member(self) -> CommittingMember:
        """Returns this member with its epoch."""
        assert self._member is not None
        return self._member.committing()


def _until(timeout_s: float) -> float:
    return math.inf if timeout_s == math.inf else time.monotonic() + timeout_s


def _progress(reader: GroupReader | None) -> object:
    """Returns something that differs from before if the reader's walk has moved."""
    return None if reader is None else reader._at()


def __dir__() -> list[str]:
    return __all__
