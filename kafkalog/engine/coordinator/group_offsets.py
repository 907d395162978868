"""One partition of `__consumer_offsets`: the groups in it, and their committed offsets.

    offsets = GroupOffsets(log, clock)
    offsets.commit("billing", {TopicPartition("orders", 0): CommittedOffset(42)})
    offsets.fetch("billing", TopicPartition("orders", 0)).offset

The log is the truth, and the constructor reads it. The last record of a key counts, a null value deletes it, and the
offsets of a transaction count once it commits. A change is first appended, then applied in memory. If an interrupt
comes between the two, the next caller reads the end of the log again. A record that cannot be understood makes the
partition unusable, as in Kafka.

A commit is as durable as the log's appends; `flush` makes it durable. The caller must know whether a group may be
committed for (its partition, its transaction). Thread-safe: `lock` guards everything, while an append runs, but never
during a sync. Source: OffsetMetadataManager, GroupCoordinatorShard, CoordinatorLoaderImpl (4.4.0).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._native.codec.java_hash import utf_16
from kafkalog._native.state.blocks import Held
from kafkalog.engine.coordinator.group_counts import OFFSET_COMMIT, OFFSET_DELETION, OFFSET_EXPIRATION
from kafkalog.engine.coordinator.group_partition import PartitionTimers, PartitionWork
from kafkalog.engine.coordinator.group_settings import GroupSettings
from kafkalog.engine.coordinator.groups import (
    CommittingMember,
    Group,
    GroupType,
    ListedGroup,
    ListedMember,
)
from kafkalog.engine.coordinator.offset_table import NO_PRODUCER_ID, OffsetTable, Stored
from kafkalog.engine.coordinator.replays import new_groups
from kafkalog.engine.coordinator.state_log import (
    KeyValue,
    StateBatch,
    StateLog,
    TransactionMarker,
    append_in_batches,
    append_whole,
    at_record,
    refuse_reentry,
)
from kafkalog.engine.coordinator.timers import Timers
from kafkalog.engine.coordinator.topics_view import GroupConfigs, NoGroupConfigs, NoTopics, TopicsView
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch
from kafkalog.engine.files import Clock
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.processes import Life
from kafkalog.engine.format.batch import ProducerFields
from kafkalog.engine.format.group_records import (
    NO_TIMESTAMP,
    CommittedOffset,
    GroupKey,
    OffsetKey,
    decode_group_record,
    encode_offset_commit,
)
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.values import text
from kafkalog.errors import (
    GroupIdNotFoundException,
    GroupSubscribedToTopicException,
    IllegalArgumentException,
    InvalidGroupIdException,
    OffsetMetadataTooLarge,
    SchemaException,
    UnknownRecordTypeException,
    UnstableOffsetCommitException,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

# For batches of the group coordinator: no producer, but a sequence, as Kafka writes them.
NO_TRANSACTION = ProducerFields(base_sequence=0)


class GroupLag(NamedTuple):
    """A group's position in a partition. `end` is the partition's end, None if not known; `lag` likewise.

    `complete` is the number of offsets from `committed` on that are done already; only a share group has such ones.
    """

    partition: TopicPartition
    committed: CommittedOffset
    end: int | None
    complete: int = 0

    @property
    def lag(self) -> int | None:
        return None if self.end is None else self.end - self.committed.offset - self.complete


class GroupOffsets:
    """See the module. Raises SchemaException for a record that cannot be understood, with place and offset."""

    def __init__(
        self,
        log: StateLog,
        clock: Clock,
        settings: GroupSettings = GroupSettings(),  # noqa: B008 (it does not change)
        *,
        number: int = 0,
        timers: Timers | None = None,
        worker: Timers | None = None,
        topics: TopicsView = NoTopics(),  # noqa: B008 (likewise)
        configs: GroupConfigs = NoGroupConfigs(),  # noqa: B008 (likewise)
    ) -> None:
        self.log = log
        self.settings = settings
        self.number = number
        self.topics = topics
        self.configs = configs
        self.lock = threading.RLock()
        self.clock = clock
        self._store_timers = Timers(clock) if timers is None else timers
        self._timers: PartitionTimers | None = None
        self._worker = self._store_timers if worker is None else worker
        self._work: PartitionWork | None = None
        self._life = Life()
        self.before_removal: Callable[[Group], object] = lambda group: None  # live members are told
        self._afterwards: list[Callable[[], object]] = []  # guarded by lock; called when it is released
        self._lines = Lines("kafkalog.coordinator", log.place)
        self.groups = new_groups(clock)
        self.table = OffsetTable()
        self.counts: Counter[str] = Counter()
        self._unsure: int | None = None  # from this offset on, the log may have records that are not applied
        self._read_to: int | None = None  # the end of what was read; our appends are applied without reading
        self._replay(None)

    # --- for the managers of groups (GroupPartition) ----------------------------------------------------

    @property
    def timers(self) -> PartitionTimers:
        """The timers of groups. Made at the first use: they refer to the partition, which then is not freed alone."""
        if self._timers is None:
            self._timers = PartitionTimers(self, self._store_timers)
        return self._timers

    @property
    def work(self) -> PartitionWork:
        """The long work for groups. Made at the first use, like `timers`."""
        if self._work is None:
            self._work = PartitionWork(self, self._worker)
        return self._work

    def entered(self) -> Held:
        """Holds the lock, over a settled state, as GroupPartition says."""
        self._enter()
        return Held(self.lock, self._settle, self._afterwards, self._run_all)

    def _run_all(self, calls: list[Callable[[], object]]) -> None:
        for call in calls:
            try:
                call()
            except Exception:
                self._lines.exception("Error while answering a member of a group")

    def write(self, rows: Iterable[KeyValue], *, atomic: bool = True, replay: bool = True) -> None:
        """Appends records and replays them, as GroupPartition says."""
        rows = list(rows)
        if not rows:
            return
        append = append_whole if atomic else append_in_batches
        start = self.log.end
        if replay:
            self._unsure = start
        append(self.log, rows, self.clock.milliseconds(), NO_TRANSACTION)
        if replay:
            for number, (key, value) in enumerate(rows):
                self._replay_record(start + number, NO_PRODUCER_ID, key, value)
            self._unsure = None

    def after(self, call: Callable[[], object]) -> None:
        """Calls this when the lock is released."""
        self._afterwards.append(call)

    def catch_up(self) -> None:
        """Reads what another process has appended, for a partition that is read while its broker is running."""
        with self.entered():
            self._replay(self._read_to)

    # --- reading --------------------------------------------------------------------------------------

    def list_groups(self) -> list[ListedGroup]:
        """Returns every group of the partition, by name."""
        with self.entered():
            rows = dict(self.groups.by_name)
        return [_listed(name, rows[name]) for name in sorted(rows)]

    def describe(self, group: str) -> ListedGroup:
        """Returns the group. Raises GroupIdNotFoundException if it does not exist."""
        with self.entered():
            return _listed(group, self._group(group))

    def members(self, group: str) -> list[ListedMember]:
        """Returns the members of a group, by id. Raises GroupIdNotFoundException if it does not exist."""
        with self.entered():
            return sorted(self._group(group).listed_members())

    def fetch(
        self, group: str, partition: TopicPartition, *, topic_id: str = ZERO_UUID, require_stable: bool = False
    ) -> CommittedOffset | None:
        """Returns the offset that a group committed for a partition.

        Returns None if there is none, or if it is for another topic of the same name. `require_stable`: raise
        UnstableOffsetCommitException while an open transaction may commit another offset.
        """
        with self.entered():
            if require_stable and self.table.is_pending(group, partition):
                raise UnstableOffsetCommitException(
                    f"group {group!r} has an open transaction with an offset of {partition}", hint="try again"
                )
            found = self.table.committed(group).get(partition)
        if found is None:
            return None
        other = ZERO_UUID not in (topic_id, found.committed.topic_id) and topic_id != found.committed.topic_id
        return None if other else found.committed

    def fetch_all(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Returns all committed offsets of the group; empty if it does not exist."""
        with self.entered():
            rows = dict(self.table.committed(group))
        return {partition: rows[partition].committed for partition in sorted(rows)}

    def pending(self, group: str) -> dict[TopicPartition, set[int]]:
        """Returns, by partition, the producer ids whose open transactions have committed offsets."""
        with self.entered():
            return {partition: set(producers) for partition, producers in self.table.pending(group).items()}

    def lag(self, group: str, ends: Mapping[TopicPartition, int]) -> list[GroupLag]:
        """Returns each partition of the group with its end from `ends`, like `kafka-consumer-groups --describe`."""
        return [GroupLag(each, committed, ends.get(each)) for each, committed in self.fetch_all(group).items()]

    def _group(self, group: str) -> Group:
        found = self.groups.by_name.get(group)
        if found is None:
            raise GroupIdNotFoundException(f"group {group!r} does not exist")
        return found

    # --- commits --------------------------------------------------------------------------------------

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        holder: ProducerIdAndEpoch | None = None,
        member: CommittingMember = CommittingMember(),  # noqa: B008 (it does not change)
    ) -> None:
        """Commits offsets, all of them or none. An offset without a commit time gets the current time.

        With `member` it is checked that the partitions are this member's, as in Kafka.

        With `holder` they are part of its transaction, to which the coordinator added the group (`add_offsets`), and
        count once it commits. Without `holder`, raises UnknownMemberIdException for a group whose members (a broker's
        clients) have not left (`remove_members`). Kafka does not check this for transactions that name no member
        either. Raises GroupIdNotFoundException for a share group, OffsetMetadataTooLarge, and
        InvalidProducerEpochException if the holder is fenced.
        """
        self._enter()
        if not text(group, "group"):
            raise InvalidGroupIdException("the group name is empty; expected a name")
        now_ms = self.clock.milliseconds()
        rows = [
            (OffsetKey(group, each.topic, each.partition), self._checked(each, value, now_ms))
            for each, value in offsets.items()
        ]
        if not rows:
            return
        with self.entered():
            self._check_committable(group, offsets, holder, member)
            self.write_offsets(rows, now_ms, holder)

    def _checked(self, partition: TopicPartition, value: CommittedOffset, now_ms: int) -> CommittedOffset:
        if value.offset < 0:
            raise IllegalArgumentException(f"offset of {partition}: found {value.offset}, expected 0 or more")
        length = len(utf_16(value.metadata)) // 2
        if length > self.settings.offset_metadata_max:
            raise OffsetMetadataTooLarge(
                f"metadata of {partition}: found {length} characters, expected at most "
                f"{self.settings.offset_metadata_max} (offset.metadata.max.bytes)"
            )
        return value._replace(commit_timestamp=now_ms) if value.commit_timestamp == NO_TIMESTAMP else value

    def _check_committable(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        holder: ProducerIdAndEpoch | None,
        member: CommittingMember,
    ) -> None:
        found = self.groups.by_name.get(group)
        if found is None:
            if member.generation >= 0:
                raise GroupIdNotFoundException(f"group {group!r} does not exist")
            return
        validate = found.validate_offset_commit(member, is_transactional=holder is not None)
        for partition, value in offsets.items() if validate is not None else ():
            assert validate is not None
            validate(partition.topic, value.topic_id, partition.partition)

    def write_offsets(
        self, rows: Sequence[tuple[OffsetKey, CommittedOffset]], now_ms: int, holder: ProducerIdAndEpoch | None
    ) -> None:
        """Appends offsets as one batch and applies them. Needs the lock. Raises RecordTooLargeException."""
        encoded = [encode_offset_commit(key, value) for key, value in rows]
        producer = NO_TRANSACTION if holder is None else ProducerFields(*holder, 0, True)
        self._unsure = self.log.end
        first = append_whole(self.log, encoded, now_ms, producer)
        for number, (key, value) in enumerate(rows):
            self._replay_offset(first + number, producer.producer_id, key, value)
        self._unsure = None
        self.counts[OFFSET_COMMIT] += len(rows)

    def end_transaction(self, marker: TransactionMarker) -> None:
        """Ends a transaction: its offsets are applied or dropped. Errors as `Markers.write`."""
        now_ms = self.clock.milliseconds()
        with self.entered():
            self._unsure = self.log.end
            self.log.append_marker(marker, now_ms)
            self.table.end(marker.producer_id, marker.kind)
            self._unsure = None

    def flush(self) -> None:
        """Makes commits durable, in a store that promises durability."""
        self.log.flush()

    # --- deletions ------------------------------------------------------------------------------------

    def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Deletes committed offsets of the group, also within open transactions. Returns the partitions that had any.

        Raises GroupIdNotFoundException, and GroupSubscribedToTopicException for a topic that members read.
        """
        with self.entered():
            found = self._group(group)
            found.validate_offset_delete()
            there = self._there(group, found, partitions)
            self.write([_offset_tombstone(group, each) for each in there], atomic=False)
            self.counts[OFFSET_DELETION] += len(there)
            return there

    def _there(self, group: str, found: Group, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        for each in partitions:
            if found.reads(each.topic):
                raise GroupSubscribedToTopicException(f"members of group {group!r} read {each.topic!r}")
        has = self.table.partitions(group)
        return [each for each in partitions if each in has]

    def delete_group(self, group: str) -> None:
        """Deletes a group without members, and its offsets.

        Raises GroupIdNotFoundException and GroupNotEmptyException.
        """
        with self.entered():
            found = self._group(group)
            found.validate_delete_group()
            if found.type in (GroupType.SHARE, GroupType.STREAMS):
                raise GroupIdNotFoundException(
                    f"group {group!r} is a {found.type.value.lower()} group, not a cursor",
                    hint="`kafkalog cursors --delete` deletes a share group; only a broker deletes a streams group",
                )
            self.write([*self.offset_tombstones(group), *found.tombstones(group)], atomic=False)

    def offset_tombstones(self, group: str) -> list[KeyValue]:
        """Returns the records that delete all offsets of a group. Needs the lock."""
        return [_offset_tombstone(group, each) for each in self.table.partitions(group)]

    def remove_members(self, group: str) -> bool:
        """Removes the members of a group, as a broker does after their session timeout.

        Nobody serves these members while this process has the directory. Returns whether there were any. The group is
        then empty, and its offsets stay. Raises GroupIdNotFoundException, also for a streams group.
        """
        with self.entered():
            found = self._group(group)
            if found.type is GroupType.STREAMS:
                raise GroupIdNotFoundException(f"group {group!r} is a {found.type.value.lower()} group")
            if found.is_empty:
                return False
            self.before_removal(found)
            self.write(found.without_members(group, self.clock.milliseconds()), atomic=False)
            return True

    def delete_topic(self, topic: str, topic_id: str = ZERO_UUID) -> int:
        """Deletes the committed offsets of a deleted topic (with that id, or without an id). Returns their number."""
        with self.entered():
            rows = self.table.of_topic(topic, topic_id)
            self.write([encode_offset_commit(key, None) for key in rows], atomic=False)
            return len(rows)

    def expire(self) -> list[tuple[str, TopicPartition]]:
        """Deletes expired offsets, and classic and consumer groups that are empty and have none left.

        Returns the deleted offsets. Kafka checks every ten minutes (offsets.retention.check.interval.ms).
        """
        with self.entered():
            return self.write_expired()

    def write_expired(self) -> list[tuple[str, TopicPartition]]:
        """Like `expire`. Needs the lock."""
        rows, gone = self._expired(self.clock.milliseconds())
        self.write(rows, atomic=False)
        self.counts[OFFSET_EXPIRATION] += len(gone)
        return gone

    def _expired(self, now_ms: int) -> tuple[list[KeyValue], list[tuple[str, TopicPartition]]]:
        rows: list[KeyValue] = []
        gone: list[tuple[str, TopicPartition]] = []
        for name, group in self.groups.by_name.in_order():
            offsets = self.table.committed_in_order(name)
            expired = [
                partition
                for partition, committed in offsets
                if self._is_expired(name, group, partition, committed, now_ms)
            ]
            rows += [_offset_tombstone(name, each) for each in expired]
            gone += [(name, each) for each in expired]
            over = len(expired) == len(offsets) and not self.table.pending(name)
            if over and group.is_empty and group.type in (GroupType.CLASSIC, GroupType.CONSUMER):
                rows += group.tombstones(name)
        return rows, gone

    def _is_expired(
        self, name: str, group: Group, partition: TopicPartition, value: CommittedOffset, now_ms: int
    ) -> bool:
        since = group.expires_after(value)
        is_simple = not group.protocol_type
        if is_simple and not self.settings.simple_offsets_expire and value.expire_timestamp == NO_TIMESTAMP:
            return False
        if since is None or group.reads(partition.topic) or self.table.is_pending(name, partition):
            return False
        if value.expire_timestamp != NO_TIMESTAMP:
            return now_ms >= value.expire_timestamp
        return now_ms - since >= self.settings.offsets_retention_ms

    # --- the log --------------------------------------------------------------------------------------

    def _enter(self) -> None:
        if not self._life.live:  # after a fork, a lock that another thread held would never be released
            raise self._life.refusal("the group coordinator")
        refuse_reentry(self.lock, "the group coordinator")

    def _settle(self) -> None:
        if self._unsure is not None:
            self._replay(self._unsure)
            self._unsure = None

    def _replay(self, start: int | None) -> None:
        for batch in self.log.read(start):
            if batch.marker is not None:
                self.table.end(batch.producer_id, batch.marker)
            else:
                self._replay_batch(batch)
            self._read_to = batch.next_offset

    def _replay_batch(self, batch: StateBatch) -> None:
        for record in batch.records:
            self._replay_record(record.offset, batch.producer_id, record.key, record.value)

    def _replay_record(self, offset: int, producer_id: int, key: Buffer | None, value: Buffer | None) -> None:
        try:
            about, decoded = decode_group_record(key, value)
            if isinstance(about, OffsetKey):
                assert decoded is None or isinstance(decoded, CommittedOffset)
                self._replay_offset(offset, producer_id, about, decoded)
            elif isinstance(about, GroupKey):
                assert not isinstance(decoded, CommittedOffset)
                self.groups.replay_classic(about.group, decoded)
            else:
                self.groups.replay(about)
        except UnknownRecordTypeException as error:
            self._lines.log(logging.WARNING, "the record at offset %d is skipped, as in Kafka: %s", offset, error)
        except SchemaException as error:
            raise at_record(self.log, offset, error) from error

    def _replay_offset(
        self, record_offset: int, producer_id: int, key: OffsetKey, value: CommittedOffset | None
    ) -> None:
        if value is None:
            self.table.forget(key)
        else:
            self.groups.replay_offset(key.group)
            self.table.put(key, Stored(value, record_offset), producer_id)


def _listed(name: str, group: Group) -> ListedGroup:
    return ListedGroup(name, group.protocol_type, group.state, group.type)


def _offset_tombstone(group: str, partition: TopicPartition) -> KeyValue:
    return encode_offset_commit(OffsetKey(group, *partition), None)
