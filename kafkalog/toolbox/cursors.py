"""Shows the cursors in log directories: whose they are, how far they are, and how many offsets are left to read.

Reads `__consumer_offsets` and the ends of the partitions that cursors point into.  Takes no lock, so it works while a
broker or store has the directories open.  A reading process may keep its cursors in a directory of its own.  For each
partition, what that directory has of a group takes precedence over the log directories, as it does for its readers.
The cluster's other brokers are not read: a missing partition is only reported as missing.

Each number is read once and kept, so everything that is shown together is from one reading.  Not thread-safe.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from kafkalog._face.named import names_partition
from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.groups import GroupType, ListedGroup, ListedMember
from kafkalog.engine.coordinator.partition_logs import SourceStateLog
from kafkalog.engine.coordinator.share_cursors import States, share_cursors, states_in
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, Clock, Files
from kafkalog.engine.format.group_records import NO_TIMESTAMP, CommittedOffset
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.names import GROUP_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC, TopicPartition
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.format.share_records import ShareGroupOffset, SharePartitionKey
from kafkalog.engine.host.log_dirs import list_partitions
from kafkalog.engine.host.topic_configs import stored_content
from kafkalog.engine.log.checkpoint_lines import CheckpointLines
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import BadBytesError, GroupIdNotFoundException, KafkalogError, UnknownTopicOrPartitionException

__all__ = ["Bounds", "Cursor", "CursorLook", "GroupCursors"]

NOT_HERE = "not in these directories"
ANOTHER_TOPIC = "of a topic that was deleted and recreated"


class Bounds(NamedTuple):
    """Where a partition begins and ends for readers, and the topic's id (None if the topic has no id)."""

    start: int
    end: int
    topic_id: str | None


class Cursor(NamedTuple):
    """How far a group is in a partition.

    `committed` is None if only open transactions have committed something; `pending` has their producer ids.  `start`
    and `end` are the partition's; None if unknown.  `gone` says why the offset points to nothing.  `complete` is the
    number of offsets from `committed` on that are done already; only a share group has such ones."""

    partition: TopicPartition
    committed: CommittedOffset | None
    end: int | None
    pending: tuple[int, ...]
    gone: str | None
    age_ms: int | None
    start: int | None = None
    complete: int = 0

    @property
    def deleted(self) -> int:
        """The number of offsets between the cursor and the log start that were deleted before the group read them.

        `lag` counts them, as Kafka's does.
        """
        return 0 if self.committed is None or self.start is None else max(self.start - self.committed.offset, 0)

    @property
    def lag(self) -> int | None:
        """The number of offsets between the cursor and the partition's end that are not done; None if unknown."""
        if self.committed is None or self.end is None:
            return None
        return self.end - self.committed.offset - self.complete


class GroupLag(NamedTuple):
    """The sum of the lags of a group's cursors.

    `lag` adds up the known lags, where an offset after the end counts as 0.  `unknown` counts cursors without a known
    lag.  `largest` is the cursor with the largest lag."""

    lag: int
    unknown: int
    largest: Cursor | None

    @classmethod
    def of(cls, cursors: Iterable[Cursor]) -> GroupLag:
        """Returns the sum over cursors of a group."""
        total, unknown = 0, 0
        largest: Cursor | None = None
        most = 0
        for each in cursors:
            if each.lag is None:
                unknown += 1
                continue
            total += max(each.lag, 0)
            if each.lag > most:
                largest, most = each, each.lag
        return cls(total, unknown, largest)


class GroupCursors(NamedTuple):
    """A group, and where it is kept: partition `number` of `__consumer_offsets` in `log_dir`."""

    listed: ListedGroup
    members: list[ListedMember]
    log_dir: str
    number: int
    cursors: list[Cursor]

    @property
    def committed(self) -> dict[TopicPartition, CommittedOffset]:
        """The committed offsets of the group, by partition."""
        return {each.partition: each.committed for each in self.cursors if each.committed is not None}

    @property
    def is_a_brokers(self) -> bool:
        """Whether it is a streams group, whose offsets only a broker changes."""
        return self.listed.type is GroupType.STREAMS

    @property
    def is_share(self) -> bool:
        """Whether it is a share group: its cursors are start offsets."""
        return self.listed.type is GroupType.SHARE


class CursorLook:
    """One reading of the cursors in log directories.

    `groups` has the groups by name, and `findings` has what could not be read.

    Args:
        log_dirs: The log directories.
        cursors_dir: The directory of cursors of a reading process, which need not exist yet.
        isolation: The isolation level that decides where a partition ends: "read_uncommitted" or "read_committed".
        files: The file system; for tests.
        clock: The clock from which ages are computed; for tests.

    Raises:
        KafkalogError: A directory cannot be listed, as for `kafkalog.list_partitions`.

    Example:
        >>> from kafkalog.toolbox.cursors import CursorLook
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append_many([b"one", b"two"])
        ...     with store.reader("billing", topics=["orders"]) as reader:
        ...         _ = reader.poll(1)
        ...         _ = reader.commit()
        >>> cursor = CursorLook(["shop"]).groups["billing"].cursors[0]
        >>> cursor.committed.offset, cursor.lag
        (1, 1)
    """

    def __init__(
        self,
        log_dirs: Sequence[str],
        cursors_dir: str | None = None,
        *,
        isolation: str = "read_uncommitted",
        files: Files = OS_FILES,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.log_dirs = list(log_dirs)
        self.cursors_dir = cursors_dir
        self.files = files
        self.clock = clock
        self.findings: list[str] = []
        self._isolation = isolation
        self._checkpoints: dict[str, CheckpointLines] = {}
        self._bounds: dict[TopicPartition, Bounds | None] = {}
        self._states: dict[str, States] = {}  # share groups' states, by log directory
        self._names: dict[str, str] | None = None  # topics' names, by id
        self.homes: dict[TopicPartition, str] = {}  # maps each partition to its directory
        for log_dir in self.log_dirs:
            for partition in list_partitions(log_dir, files=files):
                if self.homes.setdefault(partition, log_dir) != log_dir:
                    self.findings.append(f"{partition} is in {self.homes[partition]} and in {log_dir}")
        self._tell_of_those_away()
        self.groups = self._read_groups()

    def _tell_of_those_away(self) -> None:
        try:
            _, known = stored_content(self.log_dirs, self.files)
        except KafkalogError as error:
            self.findings.append(" ".join(str(error).split()))
            return
        made = known[GROUP_METADATA_TOPIC].numbers if GROUP_METADATA_TOPIC in known else ()
        away = [each for number in made if (each := TopicPartition(GROUP_METADATA_TOPIC, number)) not in self.homes]
        self.findings += [
            f"{each} has no directory in {', '.join(self.log_dirs)}: its cursors are not shown" for each in away
        ]

    # --- groups ----------------------------------------------------------------------------------------

    def _read_groups(self) -> dict[str, GroupCursors]:
        found: dict[str, GroupCursors] = {}
        if self.cursors_dir is not None and self.files.is_dir(self.cursors_dir):
            own = list_partitions(self.cursors_dir, files=self.files)
            found = self._groups_of(dict.fromkeys(own, self.cursors_dir))
        others = self._groups_of(self.homes)
        for name, group in others.items():
            own_group = found.get(name)
            if own_group is None or not own_group.cursors:
                found[name] = group
                continue
            # By partition, as for readers: the log directories count for partitions that the own directory lacks.
            rows = {each.partition: each for each in (*group.cursors, *own_group.cursors)}
            found[name] = own_group._replace(cursors=[rows[each] for each in sorted(rows)])
        return dict(sorted(found.items()))

    def _groups_of(self, homes: Mapping[TopicPartition, str]) -> dict[str, GroupCursors]:
        found: dict[str, GroupCursors] = {}
        for partition, log_dir in sorted(homes.items()):
            if partition.topic != GROUP_METADATA_TOPIC:
                continue
            try:
                with self._view(log_dir, partition) as view:
                    offsets = GroupOffsets(SourceStateLog(view, view.directory), self.clock)
                    self._check_end(view)
            except KafkalogError as error:
                self._tell(os.path.join(log_dir, str(partition)), error)
                continue
            for listed in offsets.list_groups():
                found[listed.group] = self._group(offsets, listed, log_dir, partition.partition)
        return found

    def _group(self, offsets: GroupOffsets, listed: ListedGroup, log_dir: str, number: int) -> GroupCursors:
        if listed.type is GroupType.SHARE:
            cursors = [
                self._cursor(each.partition, each.start, ())._replace(complete=each.complete)
                for each in sorted(share_cursors(offsets, listed.group, self._share_states(log_dir)))
            ]
        else:
            committed = offsets.fetch_all(listed.group)
            pending = offsets.pending(listed.group)
            cursors = [
                self._cursor(each, committed.get(each), tuple(sorted(pending.get(each, ()))))
                for each in sorted({*committed, *pending})
            ]
        members = [self._named(each) for each in offsets.members(listed.group)]
        return GroupCursors(listed, members, log_dir, number, cursors)

    def _named(self, member: ListedMember) -> ListedMember:
        """Returns a member with the names of its topics, as far as their ids are known."""
        if not member.assignment:
            return member
        names = self._names = self._topic_names() if self._names is None else self._names
        found = (TopicPartition(names.get(each.topic, each.topic), each.partition) for each in member.assignment)
        return member._replace(assignment=tuple(sorted(found)))

    def _topic_names(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for partition, log_dir in self.homes.items():
            with contextlib.suppress(OSError, KafkalogError):  # reported when its cursors are read
                topic_id = topic_id_of(os.path.join(log_dir, str(partition)), self.files)
                if topic_id is not None:
                    found[topic_id] = partition.topic
        return found

    def _share_states(self, log_dir: str) -> States:
        """Returns the states of share groups: those of the log directories, or of a directory of cursors."""
        found = self._states.get(log_dir)
        if found is None:
            homes = self.homes
            if log_dir not in self.log_dirs:
                homes = dict.fromkeys(list_partitions(log_dir, files=self.files), log_dir)
            read: dict[SharePartitionKey, ShareGroupOffset] = {}
            for partition, home in homes.items():
                if partition.topic == SHARE_GROUP_STATE_TOPIC:
                    try:
                        with self._view(home, partition) as view:
                            read.update(states_in(view, view.directory, self.clock))
                            self._check_end(view)
                    except KafkalogError as error:
                        self._tell(os.path.join(home, str(partition)), error)
            found = read
            self._states.update(dict.fromkeys(self.log_dirs if log_dir in self.log_dirs else [log_dir], found))
        return found

    def _cursor(self, partition: TopicPartition, committed: CommittedOffset | None, pending: tuple[int, ...]) -> Cursor:
        age_ms = None
        if committed is not None and committed.commit_timestamp != NO_TIMESTAMP:
            age_ms = self.clock.milliseconds() - committed.commit_timestamp
        gone = NOT_HERE if partition not in self.homes else None
        found = self._look_at(partition)
        if found is not None and committed is not None:
            another = ZERO_UUID not in (committed.topic_id, found.topic_id or ZERO_UUID)
            if another and committed.topic_id != found.topic_id:
                gone = ANOTHER_TOPIC
        start, end = (None, None) if found is None or gone is not None else (found.start, found.end)
        return Cursor(partition, committed, end, pending, gone, age_ms, start)

    def named(self, groups: Collection[str]) -> list[GroupCursors]:
        """Returns the groups of these names.

        Args:
            groups: The names.

        Returns:
            The groups.

        Raises:
            GroupIdNotFoundException: A group does not exist.
        """
        return [self.must(name) for name in dict.fromkeys(groups)]

    def must(self, group: str) -> GroupCursors:
        """Returns one group.

        Args:
            group: The group's name.

        Returns:
            The group.

        Raises:
            GroupIdNotFoundException: The group does not exist.
        """
        found = self.groups.get(group)
        if found is None:
            place = ", ".join([*self.log_dirs, *([self.cursors_dir] if self.cursors_dir else [])])
            near = self.nearest_group(group)
            hint = "without --group, all groups are listed" if self.groups else None
            raise GroupIdNotFoundException(
                f"no group {group!r} in {place}", hint=hint if near is None else f"did you mean {near}? {hint}"
            )
        return found

    def may_change(self, group: GroupCursors) -> bool:
        """Returns whether the group is kept where cursors are changed: in the directory of cursors, if there is one.

        Args:
            group: The group.

        Returns:
            True if it can be changed.
        """
        return self.cursors_dir is None or group.log_dir == self.cursors_dir

    # --- partitions ------------------------------------------------------------------------------------

    def bounds(self, partition: TopicPartition) -> Bounds:
        """Returns where a partition begins and ends.

        Args:
            partition: The partition.

        Returns:
            The offsets for readers, and the topic's id.

        Raises:
            UnknownTopicOrPartitionException: The partition is not in these directories, or cannot be read.
        """
        if partition not in self.homes:
            raise UnknownTopicOrPartitionException(
                f"no partition {partition} in {', '.join(self.log_dirs)}",
                hint="name all log directories; `kafkalog topics` lists the topics of a directory",
            )
        found = self._look_at(partition)
        if found is None:
            raise UnknownTopicOrPartitionException(
                f"{partition} cannot be read", hint="`kafkalog verify` shows what is wrong"
            )
        return found

    def offset_for_time(self, partition: TopicPartition, time_ms: int) -> int | None:
        """Returns the offset of the first record at or after a time; None if there is none.

        Args:
            partition: The partition.
            time_ms: The time, in ms since 1970.

        Returns:
            The offset, or None.
        """
        self.bounds(partition)
        with self._view(self.homes[partition], partition) as view:
            return view.offset_for_time(time_ms)

    def partitions_of(self, name: str) -> list[TopicPartition]:
        """Returns the partitions in these directories that a topic, a partition or a glob names.

        Args:
            name: The name, such as "orders", "orders-0" or "ord*".

        Returns:
            The partitions.
        """
        return sorted(each for each in self.homes if names_partition(name, each))

    def known_partitions(self) -> list[TopicPartition]:
        """Returns the partitions in these directories, and missing ones that a cursor points into.

        Returns:
            The partitions.
        """
        return sorted({*self.homes, *(each.partition for group in self.groups.values() for each in group.cursors)})

    def nearest_group(self, name: str) -> str | None:
        """Returns the group with the most similar name, or None.

        Args:
            name: A name, which may be misspelled.

        Returns:
            The group's name, or None.
        """
        import difflib

        return next(iter(difflib.get_close_matches(name, list(self.groups), n=1)), None)

    def offsets_homes(self, log_dirs: Sequence[str]) -> dict[int, str]:
        """Returns the directories of the partitions of `__consumer_offsets`, by number.

        Args:
            log_dirs: The log directories.

        Returns:
            The directories by partition number.
        """
        found: dict[int, str] = {}
        for log_dir in log_dirs:
            for partition in list_partitions(log_dir, files=self.files) if self.files.is_dir(log_dir) else ():
                if partition.topic == GROUP_METADATA_TOPIC:
                    found.setdefault(partition.partition, log_dir)
        return found

    def _look_at(self, partition: TopicPartition) -> Bounds | None:
        if partition not in self._bounds:
            self._bounds[partition] = self._read_bounds(partition)
        return self._bounds[partition]

    def _read_bounds(self, partition: TopicPartition) -> Bounds | None:
        log_dir = self.homes.get(partition)
        if log_dir is None:
            return None
        path = os.path.join(log_dir, str(partition))
        try:
            with self._view(log_dir, partition) as view:
                end = view.visible_end(self._isolation)
                self._check_end(view)
                return Bounds(view.log_start_offset, end, topic_id_of(path, self.files))
        except KafkalogError as error:
            self._tell(path, error)
            return None

    def _view(self, log_dir: str, partition: TopicPartition) -> PartitionView:
        checkpoints = self._checkpoints.setdefault(log_dir, CheckpointLines(log_dir, self.files))
        return PartitionView(log_dir, partition, files=self.files, checkpoints=checkpoints)

    def _check_end(self, view: PartitionView) -> None:
        """Reports damage at the end of a log; what is readable counts."""
        try:
            view.check_end()
        except BadBytesError as error:
            self._tell(view.directory, error)

    def _tell(self, path: str, error: KafkalogError) -> None:
        text = " ".join(str(error).split())
        self.findings.append(text if path in text else f"{path}: {text}")


def __dir__() -> list[str]:
    return __all__
