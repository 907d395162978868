"""One partition of `__share_group_state`: the states of the share partitions that hash to it.

The log is the truth. A change is first appended, then applied in memory. If an interrupt comes between the two, the
next caller reads the end of the log again. Most changes are appended as a ShareUpdate; after
share.coordinator.snapshot.update.records.per.snapshot of them comes a ShareSnapshot, which makes earlier records of its
key redundant (`last_redundant_offset`). A request with an old leader epoch or state epoch is refused, so that a former
leader or an earlier life of the group changes nothing.

A request is one partition's part of a request of Kafka's, and the result is its part of the response. Refusals are
error codes in it, as in Kafka; an append that fails raises the log's error. Thread-safe: `lock` guards everything, also
while an append runs, but never a sync. Source: ShareCoordinatorShard, ShareCoordinatorOffsetsManager (4.4.0).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from kafkalog._limits import LONG_MAX
from kafkalog.engine.coordinator.group_settings import ShareSettings
from kafkalog.engine.coordinator.share_interfaces import PartitionWrite
from kafkalog.engine.coordinator.state_batches import combine_state_batches
from kafkalog.engine.coordinator.state_log import StateLog, append_whole, at_record, in_batches, refuse_reentry
from kafkalog.engine.coordinator.topics_view import TopicsView
from kafkalog.engine.files import Clock
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.processes import Life
from kafkalog.engine.format.batch import ProducerFields
from kafkalog.engine.format.error_codes import Errors, message_of
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.share_records import (
    NO_COUNT,
    NO_OFFSET,
    SNAPSHOT,
    UPDATE,
    PersisterStateBatch,
    ShareGroupOffset,
    SharePartitionKey,
    ShareRecord,
    batch_values,
    decode_share_record,
    encode_share_record,
    state_batches,
)
from kafkalog.errors import IllegalArgumentException, SchemaException, UnknownRecordTypeException

NO_TRANSACTION = ProducerFields(base_sequence=0)  # no producer, but a sequence, as Kafka writes it
NO_EPOCH = -1
NO_BATCHES: tuple[PersisterStateBatch, ...] = ()
WRITTEN: tuple[int, str | None] = (Errors.NONE, None)


class PrunedLog(StateLog, Protocol):
    """A StateLog whose beginning can be deleted."""

    def delete_records(self, before: int) -> None:
        """Deletes the records below an offset."""
        ...


class OffsetsManager:
    """Where each key's last snapshot lies in the log. Kafka's name for it: ShareCoordinatorOffsetsManager."""

    def __init__(self) -> None:
        self._offsets: dict[SharePartitionKey, int] = {}  # in the order of the offsets: the first is the lowest
        self._last_redundant = LONG_MAX

    def update_state(self, key: SharePartitionKey, offset: int, *, is_delete: bool) -> None:
        """Notes that the record at `offset` has the key's whole state, or deletes it."""
        self._offsets.pop(key, None)
        self._offsets[key] = offset
        self._last_redundant = next(iter(self._offsets.values()))
        if is_delete:
            del self._offsets[key]

    @property
    def last_redundant_offset(self) -> int | None:
        """The offset below which no record is needed; None if all are."""
        return self._last_redundant if 0 < self._last_redundant != LONG_MAX else None


class _Kept:
    """A share partition's state, the highest epochs (NO_EPOCH before a snapshot), and the number of updates since the
    last snapshot that updates caused."""

    __slots__ = ("leader_epoch", "state", "state_epoch", "update_count")

    def __init__(self, state: ShareGroupOffset, leader_epoch: int, state_epoch: int, update_count: int) -> None:
        self.state = state
        self.leader_epoch = leader_epoch
        self.state_epoch = state_epoch
        self.update_count = update_count


class ShareCoordinatorShard:
    """See the module. Raises SchemaException for a record that cannot be understood, with place and offset."""

    def __init__(
        self,
        log: PrunedLog | None,
        make: Callable[[], PrunedLog],
        clock: Clock,
        topics: TopicsView,
        settings: ShareSettings = ShareSettings(),  # noqa: B008 (it does not change)
    ) -> None:
        """`log` is None if the partition does not exist; `make` creates it for the first record."""
        self.lock = threading.RLock()
        self.settings = settings
        self._made = log
        self._make = make
        self._clock = clock
        self._topics = topics
        self._topics_version = -1
        self._partition_counts: dict[str, int] = {}  # by topic id, of that version
        self._life = Life()
        self._lines = Lines("kafkalog.coordinator", log.place if log is not None else "")
        self._kept: dict[SharePartitionKey, _Kept] = {}
        self._read_epochs: dict[SharePartitionKey, int] = {}  # the leader epochs above 0 that the log had at the start
        self._offsets = OffsetsManager()
        self._unsure: int | None = None  # from this offset on, the log may have records that are not applied
        self._read_to = 0  # the records below are applied
        self._pruned_to = NO_OFFSET
        self._replay(None)
        self._read_epochs = {key: kept.leader_epoch for key, kept in self._kept.items() if kept.leader_epoch}

    # --- requests -------------------------------------------------------------------------------------

    def initialize_state(self, key: SharePartitionKey, request: Values) -> Values:
        """Sets a partition's start offset (-1: not known yet) and state epoch; what it had before is forgotten."""
        state_epoch: int = request["stateEpoch"]
        with self._entered():
            if key.partition < 0:
                return _refused(key, Errors.INVALID_REQUEST, NEGATIVE_PARTITION_ID)
            if state_epoch < 0:
                return _refused(key, Errors.INVALID_REQUEST, NEGATIVE_STATE_EPOCH)
            before = self._kept.get(key)
            if before is not None and before.state_epoch > state_epoch:
                return _refused(key, Errors.FENCED_STATE_EPOCH)
            if not self._is_there(key):
                return _refused(key, Errors.UNKNOWN_TOPIC_OR_PARTITION)
            start: int = request["startOffset"]
            now_ms = self._clock.milliseconds()
            state = ShareGroupOffset(
                snapshot_epoch=0 if before is None else before.state.snapshot_epoch + 1,
                state_epoch=state_epoch,
                leader_epoch=0,
                start_offset=start,
                delivery_complete_count=NO_COUNT if start == NO_OFFSET else 0,
                create_timestamp=now_ms,
                write_timestamp=now_ms,
            )
            self._append([ShareRecord(SNAPSHOT, key, state)])
            return _done(key)

    def write_state(self, key: SharePartitionKey, request: Values) -> Values:
        """Merges delivery states into a partition's state, and raises its start offset (-1: leaves it)."""
        write = PartitionWrite(
            request["stateEpoch"],
            request["leaderEpoch"],
            request["startOffset"],
            request["deliveryCompleteCount"],
            state_batches(request["stateBatches"]),
        )
        code, message = self.write(key, write)
        return {"partition": key.partition, "errorCode": code, "errorMessage": message}

    def write(self, key: SharePartitionKey, write: PartitionWrite) -> tuple[int, str | None]:
        """Does `write_state`. Returns the error code, 0 for none, and its message."""
        state_epoch, leader_epoch = write.state_epoch, write.leader_epoch
        with self._entered():
            if key.partition < 0:
                return _refusal(Errors.INVALID_REQUEST, NEGATIVE_PARTITION_ID)
            if leader_epoch < 0:
                return _refusal(Errors.INVALID_REQUEST, NEGATIVE_LEADER_EPOCH)
            if state_epoch < 0:
                return _refusal(Errors.INVALID_REQUEST, NEGATIVE_STATE_EPOCH)
            kept = self._kept.get(key)
            if kept is None:
                return _refusal(Errors.INVALID_REQUEST, WRITE_UNINITIALIZED_SHARE_PARTITION)
            if kept.leader_epoch > leader_epoch:
                return _refusal(Errors.FENCED_LEADER_EPOCH)
            if kept.state_epoch > state_epoch:
                return _refusal(Errors.FENCED_STATE_EPOCH)
            if not self._is_there(key):
                return _refusal(Errors.UNKNOWN_TOPIC_OR_PARTITION)
            _check_batches(write.state_batches)
            self._append([self._changed(key, kept, write, kept.state.leader_epoch)])
            return WRITTEN

    def read_state(self, key: SharePartitionKey, request: Values) -> Values:
        """Returns a partition's state, and records the reader's leader epoch, which fences earlier leaders.

        Kafka's name: readStateAndMaybeUpdateLeaderEpoch.
        """
        leader_epoch: int = request["leaderEpoch"]
        with self._entered():
            if key.partition < 0:
                return _not_read(key, Errors.INVALID_REQUEST, NEGATIVE_PARTITION_ID)
            if leader_epoch < 0:
                return _not_read(key, Errors.INVALID_REQUEST, NEGATIVE_LEADER_EPOCH)
            kept = self._kept.get(key)
            if kept is None:
                return _not_read(key, Errors.INVALID_REQUEST, READ_UNINITIALIZED_SHARE_PARTITION)
            if kept.leader_epoch > leader_epoch:
                return _not_read(key, Errors.FENCED_LEADER_EPOCH)
            if not self._is_there(key):
                return _not_read(key, Errors.UNKNOWN_TOPIC_OR_PARTITION)
            state = kept.state
            if kept.leader_epoch != leader_epoch:
                change = PartitionWrite(
                    state.state_epoch, leader_epoch, state.start_offset, state.delivery_complete_count, ()
                )
                self._append([self._changed(key, kept, change, leader_epoch)])
            return {
                **_done(key),
                "stateEpoch": state.state_epoch,
                "startOffset": state.start_offset,
                "stateBatches": batch_values(state.state_batches),
            }

    def read_state_summary(self, key: SharePartitionKey, request: Values) -> Values:
        """Returns a partition's start offset and epochs, without its batches. An unknown state has start offset -1."""
        with self._entered():
            if key.partition < 0:
                return _no_summary(key, Errors.INVALID_REQUEST, NEGATIVE_PARTITION_ID)
            if not self._is_there(key):
                return _no_summary(key, Errors.UNKNOWN_TOPIC_OR_PARTITION)
            kept = self._kept.get(key)
            state = ShareGroupOffset(0, 0, 0, NO_OFFSET, NO_COUNT) if kept is None else kept.state
        return {
            **_done(key),
            "stateEpoch": state.state_epoch,
            "leaderEpoch": state.leader_epoch,
            "startOffset": state.start_offset,
            "deliveryCompleteCount": state.delivery_complete_count,
        }

    def leader_epoch_at_start(self, key: SharePartitionKey) -> int:
        """Returns the highest leader epoch that the state had when the log was read; 0 without a state."""
        with self._entered():
            return self._read_epochs.get(key, 0)

    def delete_state(self, key: SharePartitionKey, request: Values) -> Values:
        """Forgets a partition's state. It is no error if there is none."""
        with self._entered():
            if key.partition < 0:
                return _refused(key, Errors.INVALID_REQUEST, NEGATIVE_PARTITION_ID)
            if not self._is_there(key):
                return _refused(key, Errors.UNKNOWN_TOPIC_OR_PARTITION)
            if key in self._kept:
                self._append([ShareRecord(SNAPSHOT, key, None)])
            return _done(key)

    # --- upkeep ---------------------------------------------------------------------------------------

    def states(self) -> dict[SharePartitionKey, ShareGroupOffset]:
        """Returns the state of every share partition here."""
        with self._entered():
            return self._states()

    def last_redundant_offset(self) -> int | None:
        """Returns the offset below which the log's records are not needed any more; None if all are."""
        with self._entered():
            return self._offsets.last_redundant_offset

    def prune(self) -> None:
        """Deletes the records that are not needed any more."""
        offset = self.last_redundant_offset()
        if self._made is not None and offset is not None and offset != self._pruned_to:
            self._made.delete_records(offset)
            self._pruned_to = offset

    def snapshot_cold_partitions(self) -> None:
        """Writes a snapshot of every partition that has had none for a while, so that older records can be deleted."""
        with self._entered():
            states = self._states()
            if all(each.create_timestamp != each.write_timestamp for each in states.values()):
                return
            now_ms = self._clock.milliseconds()
            records = [
                ShareRecord(
                    SNAPSHOT, key, state._replace(snapshot_epoch=state.snapshot_epoch + 1, write_timestamp=now_ms)
                )
                for key, state in states.items()
                if now_ms - state.write_timestamp >= self.settings.cold_partition_snapshot_interval_ms
            ]
            self._append(records)

    def maybe_cleanup_share_state(self, deleted_topic_ids: Collection[str]) -> None:
        """Forgets the states of deleted topics."""
        with self._entered():
            gone = [key for key in self._kept if key.topic_id in deleted_topic_ids]
            self._append([ShareRecord(SNAPSHOT, key, None) for key in gone])

    def flush(self) -> None:
        """Makes changes durable, in a store that promises durability."""
        if self._made is not None:
            self._made.flush()

    # --- records --------------------------------------------------------------------------------------

    def _states(self) -> dict[SharePartitionKey, ShareGroupOffset]:
        return {key: kept.state for key, kept in self._kept.items()}

    def _is_there(self, key: SharePartitionKey) -> bool:
        """Returns whether the topic exists and has the partition."""
        topics = self._topics
        version = topics.version
        if version != self._topics_version:
            self._partition_counts.clear()
            self._topics_version = version
        count = self._partition_counts.get(key.topic_id)
        if count is None:
            name = topics.name(key.topic_id)
            count = self._partition_counts[key.topic_id] = 0 if name is None else topics.partitions(name)
        return key.partition < count

    def _changed(self, key: SharePartitionKey, kept: _Kept, write: PartitionWrite, leader_epoch: int) -> ShareRecord:
        """Returns the record of a write: an update, or a snapshot if enough updates came before."""
        state = kept.state
        _, _, start, count, new = write
        if start == state.start_offset:
            count = max(count, state.delivery_complete_count)
        elif start < state.start_offset:
            start, count = state.start_offset, state.delivery_complete_count
        if kept.update_count < self.settings.snapshot_update_records_per_snapshot:
            batches = combine_state_batches(NO_BATCHES, new, start)
            update = ShareGroupOffset(state.snapshot_epoch, 0, leader_epoch, start, count, batches)
            return ShareRecord(UPDATE, key, update)
        now_ms = self._clock.milliseconds()
        batches = combine_state_batches(state.state_batches, new, start)
        snapshot = ShareGroupOffset(
            state.snapshot_epoch + 1, state.state_epoch, leader_epoch, start, count, batches, now_ms, now_ms
        )
        return ShareRecord(SNAPSHOT, key, snapshot)

    # --- the log --------------------------------------------------------------------------------------

    def _entered(self) -> threading.RLock:
        if not self._life.live:  # after a fork, a lock that another thread held would never be released
            raise self._life.refusal("the share coordinator")
        refuse_reentry(self.lock, "the share coordinator")
        if self._unsure is not None:
            with self.lock:
                self._settle()
        return self.lock

    def _settle(self) -> None:
        if self._unsure is not None:
            self._replay(self._unsure)
            self._unsure = None

    def _append(self, records: list[ShareRecord]) -> None:
        if not records:
            return
        if self._made is None:
            self._made = self._make()
        log = self._made
        now_ms = self._clock.milliseconds()
        rows = [encode_share_record(each) for each in records]
        done = 0
        for group in in_batches(rows, log.batch_bytes_max) if len(rows) > 1 else (rows,):
            self._unsure = log.end
            first = append_whole(log, group, now_ms, NO_TRANSACTION)
            for number in range(len(group)):
                self._apply(first + number, records[done + number])
                self._read_to = first + number + 1  # afterwards: what an interrupt cuts short is applied again
            done += len(group)
            self._unsure = None

    def _replay(self, start: int | None) -> None:
        for batch in () if self._made is None else self._made.read(start):
            for record in batch.records:
                if record.offset >= self._read_to:
                    self._replay_record(record.offset, record.key, record.value)
                    self._read_to = record.offset + 1
            self._read_to = batch.next_offset

    def _replay_record(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        assert self._made is not None
        try:
            self._apply(offset, decode_share_record(key, value))
        except UnknownRecordTypeException as error:
            self._lines.log(logging.WARNING, "the record at offset %d is skipped, as in Kafka: %s", offset, error)
        except SchemaException as error:
            raise at_record(self._made, offset, error) from error
        except IllegalArgumentException as error:
            raise at_record(self._made, offset, SchemaException(error.message)) from error

    def _apply(self, offset: int, record: ShareRecord) -> None:
        type, key, value = record
        if value is None:
            self._kept.pop(key, None)
            self._read_epochs.pop(key, None)
        else:
            kept = self._kept.get(key)
            if type == UPDATE:
                if kept is None:
                    self._kept[key] = _Kept(value, value.leader_epoch, NO_EPOCH, 1)
                    return
                kept.leader_epoch = max(value.leader_epoch, kept.leader_epoch)
                kept.state = _merged(kept.state, value)
                kept.update_count += 1
                return
            if kept is None:
                self._kept[key] = _Kept(value, value.leader_epoch, value.state_epoch, 0)
            else:
                kept.leader_epoch = max(value.leader_epoch, kept.leader_epoch)
                kept.state_epoch = max(value.state_epoch, kept.state_epoch)
                kept.state = value
                if kept.update_count >= self.settings.snapshot_update_records_per_snapshot:
                    kept.update_count = 0
        self._offsets.update_state(key, offset, is_delete=value is None)


def _check_batches(batches: Iterable[PersisterStateBatch]) -> None:
    """Raises IllegalArgumentException for a batch that could be written, but not combined with others."""
    for first, last, _, _ in batches:
        if last < first:
            raise IllegalArgumentException(f"a state batch goes from offset {first} to {last}, expected not below")


def _merged(state: ShareGroupOffset, update: ShareGroupOffset) -> ShareGroupOffset:
    start = state.start_offset if update.start_offset == NO_OFFSET else update.start_offset
    return ShareGroupOffset(
        state.snapshot_epoch,
        state.state_epoch,
        state.leader_epoch if update.leader_epoch == -1 else update.leader_epoch,
        start,
        update.delivery_complete_count,
        combine_state_batches(state.state_batches, update.state_batches, start),
        state.create_timestamp,
        state.write_timestamp,
    )


# --- results ------------------------------------------------------------------------------------------

NEGATIVE_PARTITION_ID = "The partition id cannot be a negative number."
NEGATIVE_LEADER_EPOCH = "The leader epoch cannot be a negative number."
NEGATIVE_STATE_EPOCH = "The state epoch cannot be a negative number."
WRITE_UNINITIALIZED_SHARE_PARTITION = "Write operation on uninitialized share partition not allowed."
READ_UNINITIALIZED_SHARE_PARTITION = "Read operation on uninitialized share partition not allowed."


def _done(key: SharePartitionKey) -> Values:
    return {"partition": key.partition, "errorCode": Errors.NONE, "errorMessage": None}


def _refusal(code: int, message: str | None = None) -> tuple[int, str | None]:
    return code, message or message_of(code)


def _refused(key: SharePartitionKey, code: int, message: str | None = None) -> Values:
    return {"partition": key.partition, "errorCode": code, "errorMessage": message or message_of(code)}


def _not_read(key: SharePartitionKey, code: int, message: str | None = None) -> Values:
    return {**_refused(key, code, message), "stateEpoch": 0, "startOffset": 0, "stateBatches": []}


def _no_summary(key: SharePartitionKey, code: int, message: str | None = None) -> Values:
    return {
        **_refused(key, code, message),
        "stateEpoch": 0, "leaderEpoch": 0, "startOffset": 0, "deliveryCompleteCount": NO_COUNT,
    }  # fmt: skip
