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
from collections.abc import Collection, Mapping
from typing import NamedTuple

from kafkalog._native.codec.java_hash import utf_16
from kafkalog.engine.coordinator.groups import ClassicGroup, Group, Groups, GroupType, ListedGroup, ListedMember
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
from kafkalog.engine.coordinator.transaction_metadata import ProducerIdAndEpoch
from kafkalog.engine.files import Clock
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.processes import Life
from kafkalog.engine.format.batch import ProducerFields
from kafkalog.engine.format.control import ControlRecordType
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
    GroupNotEmptyException,
    GroupSubscribedToTopicException,
    IllegalArgumentException,
    InvalidGroupIdException,
    OffsetMetadataTooLarge,
    SchemaException,
    UnknownMemberIdException,
    UnknownRecordTypeException,
    UnstableOffsetCommitException,
)

# For batches of the group coordinator: no producer, but a sequence, as Kafka writes them.
NO_TRANSACTION = ProducerFields(base_sequence=0)
NO_PRODUCER_ID = -1


class OffsetSettings(NamedTuple):
    """Kafka's settings of the same names, with its defaults.

    They are offsets.retention.minutes, in ms, and offset.metadata.max.bytes (which counts characters).
    """

    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    offset_metadata_max: int = 4096


class Stored(NamedTuple):
    """A committed offset, and the offset of its record."""

    committed: CommittedOffset
    record_offset: int


class GroupLag(NamedTuple):
    """A group's position in a partition. `end` is the partition's end, None if not known; `lag` likewise."""

    partition: TopicPartition
    committed: CommittedOffset
    end: int | None

    @property
    def lag(self) -> int | None:
        return None if self.end is None else self.end - self.committed.offset


class GroupOffsets:
    """See the module. Raises SchemaException for a record that cannot be understood, with place and offset."""

    def __init__(
        self,
        log: StateLog,
        clock: Clock,
        settings: OffsetSettings = OffsetSettings(),  # noqa: B008 (it does not change)
    ) -> None:
        self.log = log
        self.settings = settings
        self.lock = threading.RLock()
        self._clock = clock
        self._life = Life()
        self._lines = Lines("kafkalog.coordinator", log.place)
        self._groups = Groups()
        self._offsets: dict[str, dict[TopicPartition, Stored]] = {}  # by group
        self._pending: dict[int, dict[OffsetKey, Stored]] = {}  # offsets of open transactions, by producer id
        self._unsure: int | None = None  # from this offset on, the log may have records that are not applied
        self._read_to: int | None = None  # the end of what was read; our appends are applied without reading
        self._replay(None)

    def catch_up(self) -> None:
        """Reads what another process has appended, for a partition that is read while its broker is running."""
        self._enter()
        with self.lock:
            self._settle()
            self._replay(self._read_to)

    # --- reading --------------------------------------------------------------------------------------

    def groups(self) -> list[ListedGroup]:
        """Returns every group of the partition, by name."""
        self._enter()
        with self.lock:
            self._settle()
            rows = dict(self._groups.by_name)
        return [_listed(name, rows[name]) for name in sorted(rows)]

    def describe(self, group: str) -> ListedGroup:
        """Returns the group. Raises GroupIdNotFoundException if it does not exist."""
        self._enter()
        with self.lock:
            self._settle()
            return _listed(group, self._group(group))

    def members(self, group: str) -> list[ListedMember]:
        """Returns the members of a group, by id. Raises GroupIdNotFoundException if it does not exist."""
        self._enter()
        with self.lock:
            self._settle()
            return sorted(self._group(group).listed_members())

    def fetch(
        self, group: str, partition: TopicPartition, *, topic_id: str = ZERO_UUID, require_stable: bool = False
    ) -> CommittedOffset | None:
        """Returns the offset that a group committed for a partition.

        Returns None if there is none, or if it is for another topic of the same name. `require_stable`: raise
        UnstableOffsetCommitException while an open transaction may commit another offset.
        """
        self._enter()
        with self.lock:
            self._settle()
            if require_stable and self._is_pending(OffsetKey(group, *partition)):
                raise UnstableOffsetCommitException(
                    f"group {group!r} has an open transaction with an offset of {partition}", hint="try again"
                )
            found = self._offsets.get(group, {}).get(partition)
        if found is None:
            return None
        other = ZERO_UUID not in (topic_id, found.committed.topic_id) and topic_id != found.committed.topic_id
        return None if other else found.committed

    def fetch_all(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        """Returns all committed offsets of the group; empty if it does not exist."""
        self._enter()
        with self.lock:
            self._settle()
            rows = dict(self._offsets.get(group, {}))
        return {partition: rows[partition].committed for partition in sorted(rows)}

    def pending(self, group: str) -> dict[TopicPartition, set[int]]:
        """Returns, by partition, the producer ids whose open transactions have committed offsets."""
        self._enter()
        with self.lock:
            self._settle()
            return self._pending_of(group)

    def lag(self, group: str, ends: Mapping[TopicPartition, int]) -> list[GroupLag]:
        """Returns each partition of the group with its end from `ends`, like `kafka-consumer-groups --describe`."""
        return [GroupLag(each, committed, ends.get(each)) for each, committed in self.fetch_all(group).items()]

    def _pending_of(self, group: str) -> dict[TopicPartition, set[int]]:
        found: dict[TopicPartition, set[int]] = {}
        for producer_id, rows in self._pending.items():
            for key in rows:
                if key.group == group:
                    found.setdefault(TopicPartition(key.topic, key.partition), set()).add(producer_id)
        return found

    def _is_pending(self, key: OffsetKey) -> bool:
        return any(key in rows for rows in self._pending.values())

    def _group(self, group: str) -> Group:
        found = self._groups.by_name.get(group)
        if found is None:
            raise GroupIdNotFoundException(f"group {group!r} does not exist")
        return found

    # --- commits --------------------------------------------------------------------------------------

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        holder: ProducerIdAndEpoch | None = None,
    ) -> None:
        """Commits offsets, all of them or none. An offset without a commit time gets the current time.

        With `holder` they are part of its transaction, to which the coordinator added the group (`add_offsets`), and
        count once it commits. Without `holder`, raises UnknownMemberIdException for a group whose members (a broker's
        clients) have not left (`remove_members`). Kafka does not check this for transactions that name no member
        either. Raises GroupIdNotFoundException for a share group, OffsetMetadataTooLarge, and
        InvalidProducerEpochException if the holder is fenced.
        """
        self._enter()
        if not text(group, "group"):
            raise InvalidGroupIdException("the group name is empty; expected a name")
        now_ms = self._clock.milliseconds()
        rows = {
            OffsetKey(group, each.topic, each.partition): self._checked(each, value, now_ms)
            for each, value in offsets.items()
        }
        if not rows:
            return
        encoded = [encode_offset_commit(key, value) for key, value in rows.items()]
        producer = NO_TRANSACTION if holder is None else ProducerFields(*holder, 0, True)
        with self.lock:
            self._settle()
            self._check_committable(group, holder)
            self._unsure = self.log.end
            first = append_whole(self.log, encoded, now_ms, producer)
            self._put_all(first, producer.producer_id, rows)
            self._unsure = None

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

    def _check_committable(self, group: str, holder: ProducerIdAndEpoch | None) -> None:
        found = self._groups.by_name.get(group)
        if found is None:
            return
        if found.type is GroupType.SHARE:
            raise GroupIdNotFoundException(f"group {group!r} is a share group, which has no committed offsets")
        if holder is None and not found.is_empty:
            raise UnknownMemberIdException(
                f"group {group!r} has members and is {found.state}: only its members may commit",
                hint="close its consumers while a broker runs, or remove its members (remove_members)",
            )

    def _put_all(self, first: int, producer_id: int, rows: Mapping[OffsetKey, CommittedOffset]) -> None:
        for number, (key, value) in enumerate(rows.items()):
            self._replay_offset(first + number, producer_id, key, value)

    def end_transaction(self, marker: TransactionMarker) -> None:
        """Ends a transaction: its offsets are applied or dropped. Errors as `Markers.write`."""
        self._enter()
        now_ms = self._clock.milliseconds()
        with self.lock:
            self._settle()
            self._unsure = self.log.end
            self.log.append_marker(marker, now_ms)
            self._replay_end(marker.producer_id, marker.kind)
            self._unsure = None

    def flush(self) -> None:
        """Makes commits durable, in a store that promises durability."""
        self.log.flush()

    # --- deletions ------------------------------------------------------------------------------------

    def delete_offsets(self, group: str, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Deletes committed offsets of the group, also within open transactions. Returns the partitions that had any.

        Raises GroupIdNotFoundException, and GroupSubscribedToTopicException for a topic that members read.
        """
        self._enter()
        with self.lock:
            self._settle()
            found = self._group(group)
            if found.type is GroupType.SHARE:
                raise GroupIdNotFoundException(f"group {group!r} is a share group, which has no committed offsets")
            if isinstance(found, ClassicGroup) and not found.is_empty and found.protocol_type != "consumer":
                raise _has_members(group, found)
            there = self._there(group, found, partitions)
            self._append([_offset_tombstone(group, each) for each in there])
            return there

    def _there(self, group: str, found: Group, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        for each in partitions:
            if found.reads(each.topic):
                raise GroupSubscribedToTopicException(f"members of group {group!r} read {each.topic!r}")
        has = self._offsets.get(group, {})
        return [each for each in partitions if each in has or self._is_pending(OffsetKey(group, *each))]

    def delete_group(self, group: str) -> None:
        """Deletes a group without members, and its offsets.

        Raises GroupIdNotFoundException and GroupNotEmptyException.
        """
        self._enter()
        with self.lock:
            self._settle()
            found = self._group(group)
            if not found.is_empty:
                raise _has_members(group, found)
            if found.type in (GroupType.SHARE, GroupType.STREAMS):
                raise GroupIdNotFoundException(
                    f"group {group!r} is a {found.type.value.lower()} group", hint="only a broker can delete it"
                )
            places = dict.fromkeys([*self._offsets.get(group, {}), *self._pending_of(group)])
            self._append([*(_offset_tombstone(group, each) for each in places), *found.tombstones(group)])

    def remove_members(self, group: str) -> bool:
        """Removes the members of a classic or consumer group, as a broker does after their session timeout.

        Nobody serves these members while this process has the directory. Returns whether there were any. The group is
        then empty, and its offsets stay. Raises GroupIdNotFoundException, also for a share or streams group.
        """
        self._enter()
        with self.lock:
            self._settle()
            found = self._group(group)
            if found.type in (GroupType.SHARE, GroupType.STREAMS):
                raise GroupIdNotFoundException(f"group {group!r} is a {found.type.value.lower()} group")
            if found.is_empty:
                return False
            self._append(found.without_members(group, self._clock.milliseconds()))
            return True

    def delete_topic(self, topic: str, topic_id: str = ZERO_UUID) -> int:
        """Deletes the committed offsets of a deleted topic (with that id, or without an id). Returns their number."""
        self._enter()
        with self.lock:
            self._settle()
            rows = self._of_topic(topic, topic_id)
            self._append([encode_offset_commit(key, None) for key in rows])
            return len(rows)

    def _of_topic(self, topic: str, topic_id: str) -> list[OffsetKey]:
        committed = [
            (OffsetKey(group, *partition), stored.committed)
            for group, rows in self._offsets.items()
            for partition, stored in rows.items()
        ]
        open_ones = [(key, stored.committed) for rows in self._pending.values() for key, stored in rows.items()]
        wanted = (ZERO_UUID, topic_id)
        return list(
            dict.fromkeys(
                key for key, value in committed + open_ones if key.topic == topic and value.topic_id in wanted
            )
        )

    def expire(self) -> list[tuple[str, TopicPartition]]:
        """Deletes expired offsets, and classic and consumer groups that are empty and have none left.

        Returns the deleted offsets. Kafka checks every ten minutes (offsets.retention.check.interval.ms).
        """
        self._enter()
        with self.lock:
            self._settle()
            rows, gone = self._expired(self._clock.milliseconds())
            self._append(rows)
            return gone

    def _expired(self, now_ms: int) -> tuple[list[KeyValue], list[tuple[str, TopicPartition]]]:
        rows: list[KeyValue] = []
        gone: list[tuple[str, TopicPartition]] = []
        for name, group in self._groups.by_name.items():
            offsets = self._offsets.get(name, {})
            expired = [
                partition
                for partition, stored in offsets.items()
                if self._is_expired(name, group, partition, stored.committed, now_ms)
            ]
            rows += [_offset_tombstone(name, each) for each in expired]
            gone += [(name, each) for each in expired]
            over = len(expired) == len(offsets) and not self._pending_of(name)
            if over and group.is_empty and group.type in (GroupType.CLASSIC, GroupType.CONSUMER):
                rows += group.tombstones(name)
        return rows, gone

    def _is_expired(
        self, name: str, group: Group, partition: TopicPartition, value: CommittedOffset, now_ms: int
    ) -> bool:
        since = group.expires_after(value)
        if since is None or group.reads(partition.topic) or self._is_pending(OffsetKey(name, *partition)):
            return False
        if value.expire_timestamp != NO_TIMESTAMP:
            return now_ms >= value.expire_timestamp
        return now_ms - since >= self.settings.offsets_retention_ms

    def _append(self, rows: list[KeyValue]) -> None:
        """Appends records that need not be atomic."""
        if rows:
            self._unsure = start = self.log.end
            append_in_batches(self.log, rows, self._clock.milliseconds(), NO_TRANSACTION)
            self._replay(start)
            self._unsure = None

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
                self._replay_end(batch.producer_id, batch.marker)
            else:
                self._replay_batch(batch)
            self._read_to = batch.next_offset

    def _replay_batch(self, batch: StateBatch) -> None:
        for record in batch.records:
            try:
                about, value = decode_group_record(record.key, record.value)
                if isinstance(about, OffsetKey):
                    assert value is None or isinstance(value, CommittedOffset)
                    self._replay_offset(record.offset, batch.producer_id, about, value)
                elif isinstance(about, GroupKey):
                    assert not isinstance(value, CommittedOffset)
                    self._groups.replay_classic(about.group, value)
                else:
                    self._groups.replay_modern(about)
            except UnknownRecordTypeException as error:
                self._lines.log(
                    logging.WARNING, "the record at offset %d is skipped, as in Kafka: %s", record.offset, error
                )
            except SchemaException as error:
                raise at_record(self.log, record.offset, error) from error

    def _replay_offset(
        self, record_offset: int, producer_id: int, key: OffsetKey, value: CommittedOffset | None
    ) -> None:
        partition = TopicPartition(key.topic, key.partition)
        if value is None:
            self._forget(key, partition)
            return
        self._groups.replay_offset(key.group)
        stored = Stored(value, record_offset)
        if producer_id == NO_PRODUCER_ID:
            self._offsets.setdefault(key.group, {})[partition] = stored
        else:
            self._pending.setdefault(producer_id, {})[key] = stored

    def _forget(self, key: OffsetKey, partition: TopicPartition) -> None:
        rows = self._offsets.get(key.group)
        if rows is not None:
            rows.pop(partition, None)
            if not rows:
                del self._offsets[key.group]
        for pending in self._pending.values():
            pending.pop(key, None)

    def _replay_end(self, producer_id: int, kind: ControlRecordType) -> None:
        """Replays the end of a transaction. May run twice: applied offsets are not older than pending ones."""
        if kind is ControlRecordType.COMMIT:
            self._apply(self._pending.get(producer_id, {}))
        self._pending.pop(producer_id, None)

    def _apply(self, pending: Mapping[OffsetKey, Stored]) -> None:
        for key, stored in pending.items():
            partition = TopicPartition(key.topic, key.partition)
            known = self._offsets.get(key.group, {}).get(partition)
            if known is None or stored.record_offset > known.record_offset:
                self._offsets.setdefault(key.group, {})[partition] = stored


def _listed(name: str, group: Group) -> ListedGroup:
    return ListedGroup(name, group.protocol_type, group.state, group.type)


def _has_members(name: str, group: Group) -> GroupNotEmptyException:
    return GroupNotEmptyException(
        f"group {name!r} has members and is {group.state}", hint="close its consumers while a broker runs"
    )


def _offset_tombstone(group: str, partition: TopicPartition) -> KeyValue:
    return encode_offset_commit(OffsetKey(group, *partition), None)
