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
from collections.abc import Callable, Collection
from typing import Protocol

from kafkalog._limits import LONG_MAX
from kafkalog.engine.coordinator.group_settings import ShareSettings
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
        self._states: dict[SharePartitionKey, ShareGroupOffset] = {}
        self._leader_epochs: dict[SharePartitionKey, int] = {}
        self._state_epochs: dict[SharePartitionKey, int] = {}
        self._update_counts: dict[SharePartitionKey, int] = {}  # updates since the last snapshot that they caused
        self._offsets = OffsetsManager()
        self._unsure: int | None = None  # from this offset on, the log may have records that are not applied
        self._read_to = 0  # the records below are applied
        self._pruned_to = NO_OFFSET
        self._replay(None)

    # --- requests -------------------------------------------------------------------------------------

    def initialize_state(self, key: SharePartitionKey, request: Values) -> Values:
        """Sets a partition's start offset (-1: not known yet) and state epoch; what it had before is forgotten."""
        state_epoch: int = request["stateEpoch"]
        with self._entered():
            if key.partition < 0:
                return _refused(key, Errors.INVALID_REQUEST, NEGATIVE_PARTITION_ID)
            if state_epoch < 0:
                return _refused(key, Errors.INVALID_REQUEST, NEGATIVE_STATE_EPOCH)
            if self._state_epochs.get(key, state_epoch) > state_epoch:
                return _refused(key, Errors.FENCED_STATE_EPOCH)
            if not self._is_there(key):
                return _refused(key, Errors.UNKNOWN_TOPIC_OR_PARTITION)
            before = self._states.get(key)
            start: int = request["startOffset"]
            now_ms = self._clock.milliseconds()
            state = ShareGroupOffset(
                snapshot_epoch=0 if before is None else before.snapshot_epoch + 1,
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
        leader_epoch: int = request["leaderEpoch"]
        state_epoch: int = request["stateEpoch"]
        with self._entered():
            if key.partition < 0:
                return _refused(key, Errors.INVALID_REQUEST, NEGATIVE_PARTITION_ID)
            if leader_epoch < 0:
                return _refused(key, Errors.INVALID_REQUEST, NEGATIVE_LEADER_EPOCH)
            if state_epoch < 0:
                return _refused(key, Errors.INVALID_REQUEST, NEGATIVE_STATE_EPOCH)
            if key not in self._states:
                return _refused(key, Errors.INVALID_REQUEST, WRITE_UNINITIALIZED_SHARE_PARTITION)
            if self._leader_epochs.get(key, leader_epoch) > leader_epoch:
                return _refused(key, Errors.FENCED_LEADER_EPOCH)
            if self._state_epochs.get(key, state_epoch) > state_epoch:
                return _refused(key, Errors.FENCED_STATE_EPOCH)
            if not self._is_there(key):
                return _refused(key, Errors.UNKNOWN_TOPIC_OR_PARTITION)
            _check_batches(request["stateBatches"])
            self._append([self._changed(key, request, self._states[key].leader_epoch)])
            return _done(key)

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
            state = self._states.get(key)
            if state is None:
                return _not_read(key, Errors.INVALID_REQUEST, READ_UNINITIALIZED_SHARE_PARTITION)
            known = self._leader_epochs.get(key)
            if known is not None and known > leader_epoch:
                return _not_read(key, Errors.FENCED_LEADER_EPOCH)
            if not self._is_there(key):
                return _not_read(key, Errors.UNKNOWN_TOPIC_OR_PARTITION)
            if known != leader_epoch:
                change = {
                    "startOffset": state.start_offset,
                    "deliveryCompleteCount": state.delivery_complete_count,
                    "stateBatches": [],
                }
                self._append([self._changed(key, change, leader_epoch)])
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
            state = self._states.get(key) or ShareGroupOffset(0, 0, 0, NO_OFFSET, NO_COUNT)
        return {
            **_done(key),
            "stateEpoch": state.state_epoch,
            "leaderEpoch": state.leader_epoch,
            "startOffset": state.start_offset,
            "deliveryCompleteCount": state.delivery_complete_count,
        }

    def delete_state(self, key: SharePartitionKey, request: Values) -> Values:
        """Forgets a partition's state. It is no error if there is none."""
        with self._entered():
            if key.partition < 0:
                return _refused(key, Errors.INVALID_REQUEST, NEGATIVE_PARTITION_ID)
            if not self._is_there(key):
                return _refused(key, Errors.UNKNOWN_TOPIC_OR_PARTITION)
            if key in self._states:
                self._append([ShareRecord(SNAPSHOT, key, None)])
            return _done(key)

    # --- upkeep ---------------------------------------------------------------------------------------

    def states(self) -> dict[SharePartitionKey, ShareGroupOffset]:
        """Returns the state of every share partition here."""
        with self._entered():
            return dict(self._states)

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
            cold = [each for each in self._states.values() if each.create_timestamp != each.write_timestamp]
            if len(cold) == len(self._states):
                return
            now_ms = self._clock.milliseconds()
            records = [
                ShareRecord(
                    SNAPSHOT, key, state._replace(snapshot_epoch=state.snapshot_epoch + 1, write_timestamp=now_ms)
                )
                for key, state in self._states.items()
                if now_ms - state.write_timestamp >= self.settings.cold_partition_snapshot_interval_ms
            ]
            self._append(records)

    def maybe_cleanup_share_state(self, deleted_topic_ids: Collection[str]) -> None:
        """Forgets the states of deleted topics."""
        with self._entered():
            gone = [key for key in self._states if key.topic_id in deleted_topic_ids]
            self._append([ShareRecord(SNAPSHOT, key, None) for key in gone])

    def flush(self) -> None:
        """Makes changes durable, in a store that promises durability."""
        if self._made is not None:
            self._made.flush()

    # --- records --------------------------------------------------------------------------------------

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

    def _changed(self, key: SharePartitionKey, request: Values, leader_epoch: int) -> ShareRecord:
        """Returns the record of a write: an update, or a snapshot if enough updates came before."""
        state = self._states[key]
        start = max(request["startOffset"], state.start_offset)
        count: int = request["deliveryCompleteCount"]
        if request["startOffset"] == state.start_offset:
            count = max(count, state.delivery_complete_count)
        elif request["startOffset"] < state.start_offset:
            count = state.delivery_complete_count
        new = state_batches(request["stateBatches"])
        if self._update_counts.get(key, 0) < self.settings.snapshot_update_records_per_snapshot:
            batches = combine_state_batches((), new, start)
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
        for group in in_batches(rows, log.batch_bytes_max):
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
        key, value = record.key, record.value
        if value is None:
            self._states.pop(key, None)
            self._leader_epochs.pop(key, None)
            self._state_epochs.pop(key, None)
            self._update_counts.pop(key, None)
        else:
            self._leader_epochs[key] = max(value.leader_epoch, self._leader_epochs.get(key, value.leader_epoch))
            if record.type == UPDATE:
                known = self._states.get(key)
                self._states[key] = value if known is None else _merged(known, value)
                self._update_counts[key] = self._update_counts.get(key, 0) + 1
                return
            self._state_epochs[key] = max(value.state_epoch, self._state_epochs.get(key, value.state_epoch))
            self._states[key] = value
            if self._update_counts.get(key, -1) >= self.settings.snapshot_update_records_per_snapshot:
                self._update_counts[key] = 0
        self._offsets.update_state(key, offset, is_delete=value is None)


def _check_batches(batches: list[Values]) -> None:
    """Raises IllegalArgumentException for a batch that could be written, but not combined with others."""
    for each in batches:
        if each["lastOffset"] < each["firstOffset"]:
            raise IllegalArgumentException(
                f"a state batch goes from offset {each['firstOffset']} to {each['lastOffset']}, expected not below"
            )


def _merged(state: ShareGroupOffset, update: ShareGroupOffset) -> ShareGroupOffset:
    start = state.start_offset if update.start_offset == NO_OFFSET else update.start_offset
    return state._replace(
        leader_epoch=state.leader_epoch if update.leader_epoch == -1 else update.leader_epoch,
        start_offset=start,
        delivery_complete_count=update.delivery_complete_count,
        state_batches=combine_state_batches(state.state_batches, update.state_batches, start),
    )


# --- results ------------------------------------------------------------------------------------------

NEGATIVE_PARTITION_ID = "The partition id cannot be a negative number."
NEGATIVE_LEADER_EPOCH = "The leader epoch cannot be a negative number."
NEGATIVE_STATE_EPOCH = "The state epoch cannot be a negative number."
WRITE_UNINITIALIZED_SHARE_PARTITION = "Write operation on uninitialized share partition not allowed."
READ_UNINITIALIZED_SHARE_PARTITION = "Read operation on uninitialized share partition not allowed."


def _done(key: SharePartitionKey) -> Values:
    return {"partition": key.partition, "errorCode": Errors.NONE, "errorMessage": None}


def _refused(key: SharePartitionKey, code: int, message: str | None = None) -> Values:
    return {"partition": key.partition, "errorCode": code, "errorMessage": message or message_of(code)}


def _not_read(key: SharePartitionKey, code: int, message: str | None = None) -> Values:
    return {**_refused(key, code, message), "stateEpoch": 0, "startOffset": 0, "stateBatches": []}


def _no_summary(key: SharePartitionKey, code: int, message: str | None = None) -> Values:
    return {
        **_refused(key, code, message),
        "stateEpoch": 0, "leaderEpoch": 0, "startOffset": 0, "deliveryCompleteCount": NO_COUNT,
    }  # fmt: skip
