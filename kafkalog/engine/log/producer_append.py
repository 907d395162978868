"""The effect of one append on one producer (its cached batches, epoch and transaction): checked first, then applied.

`ProducerStateEntry` is what a partition remembers of a producer id. `ProducerAppendInfo` computes the entry that an
append would leave, and raises if Kafka refuses it. Nothing changes until `ProducerStateManager.update` applies it. It
knows batch headers and markers; nothing of files or segments. Source classes: ProducerAppendInfo, ProducerStateEntry,
BatchMetadata, TxnMetadata, CompletedTxn (4.4.0).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from kafkalog._limits import INT_MAX, SHORT_MAX, to_int32, to_int64
from kafkalog._native.codec.batches import BatchHeader
from kafkalog._native.state.producers import ProducerEntry
from kafkalog.engine.files import Buffer
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.batch import decrement_sequence
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.records import first as first_record
from kafkalog.engine.log.types import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, TV_UNKNOWN, AppendOrigin
from kafkalog.engine.log.verification import VerificationStateEntry
from kafkalog.engine.segment.types import LogOffsetMetadata
from kafkalog.errors import (
    IllegalArgumentException,
    InvalidProducerEpochException,
    InvalidTxnStateException,
    OutOfOrderSequenceException,
    TransactionCoordinatorFencedException,
)


def in_sequence(last_seq: int, next_seq: int) -> bool:
    """Returns whether `next_seq` may follow `last_seq` without a gap."""
    return next_seq == last_seq + 1 or (next_seq == 0 and last_seq == INT_MAX)


class BatchMetadata(NamedTuple):
    """BatchMetadata: what a duplicate check remembers of an appended batch. `timestamp` is its max timestamp in ms."""

    last_seq: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_seq(self) -> int:
        return decrement_sequence(self.last_seq, self.offset_delta)

    @property
    def first_offset(self) -> int:
        return to_int64(self.last_offset - self.offset_delta)

    def __str__(self) -> str:
        return (
            f"BatchMetadata(firstSeq={self.first_seq}, lastSeq={self.last_seq}, firstOffset={self.first_offset}, "
            f"lastOffset={self.last_offset}, timestamp={self.timestamp})"
        )


class CompletedTxn(NamedTuple):
    """CompletedTxn: a transaction that a marker at `last_offset` ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool

    def __str__(self) -> str:
        return (
            f"CompletedTxn[producerId={self.producer_id}, firstOffset={self.first_offset}, "
            f"lastOffset={self.last_offset}, isAborted={str(self.is_aborted).lower()}]"
        )


class TxnMetadata:
    """TxnMetadata: a transaction in progress. `last_offset` is the offset of its marker, if there is one."""

    __slots__ = ("first_offset", "last_offset", "producer_id")

    def __init__(self, producer_id: int, first_offset: LogOffsetMetadata | int, last_offset: int | None = None) -> None:
        self.producer_id = producer_id
        self.first_offset = LogOffsetMetadata(first_offset) if isinstance(first_offset, int) else first_offset
        self.last_offset = last_offset

    def __repr__(self) -> str:
        return (
            f"TxnMetadata(producerId={self.producer_id}, firstOffset={self.first_offset}, "
            f"lastOffset={self.last_offset})"
        )


class ProducerStateEntry(ProducerEntry):
    """ProducerStateEntry: what a partition remembers of one producer id.

    It has at most five batches, oldest first; a new epoch forgets them. `current_txn_first_offset` is None outside a
    transaction. `last_timestamp` is in ms, -1 before the first append.
    """

    __slots__ = ()

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        coordinator_epoch: int = -1,
        last_timestamp: int = NO_TIMESTAMP,
        current_txn_first_offset: int | None = None,
    ) -> None:
        super().__init__(producer_id, producer_epoch, coordinator_epoch, last_timestamp, current_txn_first_offset)

    @classmethod
    def empty(cls, producer_id: int) -> ProducerStateEntry:
        return cls(producer_id)

    @property
    def batch_metadata(self) -> Collection[BatchMetadata]:
        return tuple([BatchMetadata(*batch) for batch in self.batches()])

    @property
    def first_seq(self) -> int:
        return NO_SEQUENCE if self.is_empty else BatchMetadata(*self.batches()[0]).first_seq

    @property
    def last_seq(self) -> int:
        last = self.last_batch()
        return NO_SEQUENCE if last is None else last[0]

    @property
    def last_data_offset(self) -> int:
        last = self.last_batch()
        return -1 if last is None else last[1]

    @property
    def last_offset_delta(self) -> int:
        last = self.last_batch()
        return 0 if last is None else last[2]

    def with_producer_id(self, producer_id: int) -> ProducerStateEntry:
        """Returns this entry's epochs, time and transaction under `producer_id`, without its batches."""
        return ProducerStateEntry(
            producer_id,
            self.producer_epoch,
            self.coordinator_epoch,
            self.last_timestamp,
            self.current_txn_first_offset,
        )

    def find_duplicate_batch(self, batch: BatchHeader) -> BatchMetadata | None:
        """Returns the remembered batch with the same epoch and sequence range; None if there is none."""
        if batch.producer_epoch != self.producer_epoch:
            return None
        found = self.find(batch.base_sequence, batch.last_sequence)
        return None if found is None else BatchMetadata(*found)

    def __repr__(self) -> str:
        batches = ", ".join(map(str, self.batch_metadata))
        return (
            f"ProducerStateEntry(producerId={self.producer_id}, producerEpoch={self.producer_epoch}, "
            f"currentTxnFirstOffset={self.current_txn_first_offset}, coordinatorEpoch={self.coordinator_epoch}, "
            f"lastTimestamp={self.last_timestamp}, batchMetadata=[{batches}])"
        )


class ProducerAppendInfo:
    """ProducerAppendInfo: checks the batches of one append for one producer, and computes the resulting entry.

    `ProducerStateManager.prepare_update` creates it. Nothing outside changes until `ProducerStateManager.update`.
    """

    __slots__ = (
        "_current_entry",
        "_logger",
        "_origin",
        "_topic_partition",
        "_transactions",
        "_updated_entry",
        "_verification_state_entry",
        "producer_id",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        producer_id: int,
        current_entry: ProducerStateEntry,
        origin: AppendOrigin,
        verification_state_entry: VerificationStateEntry | None,
        *,
        logger: Lines,
    ) -> None:
        self._topic_partition = topic_partition
        self._logger = logger
        self.producer_id = producer_id
        self._current_entry = current_entry
        self._origin = origin
        self._verification_state_entry = verification_state_entry
        self._transactions: list[TxnMetadata] = []
        # Invariant: starts without cached batches, so that `update` applies only those of this append.
        self._updated_entry = current_entry.with_producer_id(producer_id)

    @property
    def started_transactions(self) -> list[TxnMetadata]:
        return self._transactions

    def to_entry(self) -> ProducerStateEntry:
        return self._updated_entry

    def append(
        self,
        batch: BatchHeader,
        first_offset_metadata: LogOffsetMetadata | None = None,
        transaction_version: int = TV_UNKNOWN,
        *,
        records: Buffer | None = None,
        at: int | None = None,
    ) -> CompletedTxn | None:
        """Checks `batch` and records its effect. Returns the transaction that it completes, if it is such a marker.

        A control batch needs its bytes: `records` is a buffer that holds the batch from byte `at` on (`batch.position`
        by default). Data batches need neither. If `first_offset_metadata` is None, the batch's base offset is used,
        without a place. Raises InvalidProducerEpochException, OutOfOrderSequenceException, InvalidTxnStateException,
        TransactionCoordinatorFencedException, or InvalidRecordException for a marker that does not parse.
        """
        if not batch.is_control:
            self.append_data_batch(
                batch.producer_epoch,
                batch.base_sequence,
                batch.last_sequence,
                batch.max_timestamp,
                first_offset_metadata or LogOffsetMetadata(batch.base_offset),
                batch.last_offset,
                batch.is_transactional,
            )
            return None
        assert records is not None, "checking a control batch needs its bytes"
        record = first_record(records, batch, at=batch.position if at is None else at)
        if record is None:
            return None
        return self.append_end_txn_marker(
            EndTransactionMarker.deserialize(record.key, record.value),
            batch.producer_epoch,
            batch.base_offset,
            record.timestamp,
            transaction_version,
        )

    def append_data_batch(
        self,
        epoch: int,
        first_seq: int,
        last_seq: int,
        last_timestamp: int,
        first_offset_metadata: LogOffsetMetadata,
        last_offset: int,
        is_transactional: bool,
    ) -> None:
        first_offset = first_offset_metadata.message_offset
        self._check_producer_epoch(epoch, first_offset, TV_UNKNOWN)
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(epoch, first_seq, first_offset)
        updated = self._updated_entry
        updated.add_batch(epoch, last_seq, last_offset, to_int32(last_offset - first_offset), last_timestamp)
        if updated.current_txn_first_offset is not None:
            if not is_transactional:
                raise InvalidTxnStateException(
                    f"Expected transactional write from producer {self.producer_id} at offset "
                    f"{first_offset_metadata} in partition {self._topic_partition}"
                )
        elif is_transactional:
            updated.current_txn_first_offset = first_offset
            self._transactions.append(TxnMetadata(self.producer_id, first_offset_metadata))

    def append_end_txn_marker(
        self,
        end_txn_marker: EndTransactionMarker,
        producer_epoch: int,
        offset: int,
        timestamp: int,
        transaction_version: int,
    ) -> CompletedTxn | None:
        """Applies a marker at `offset`. A `transaction_version` of -1 is accepted (as 0) only from REPLICATION."""
        if transaction_version == TV_UNKNOWN and self._origin is not AppendOrigin.REPLICATION:
            raise IllegalArgumentException(
                "transactionVersion must be explicitly specified, cannot use default value TV_UNKNOWN for origin "
                f"{self._origin.name}"
            )
        self._check_producer_epoch(
            producer_epoch, offset, 0 if transaction_version == TV_UNKNOWN else transaction_version
        )
        self._check_coordinator_epoch(end_txn_marker, offset)
        first_offset = self._updated_entry.current_txn_first_offset
        self._updated_entry.end_transaction(producer_epoch, end_txn_marker.coordinator_epoch, timestamp)
        if first_offset is None:
            return None
        is_aborted = end_txn_marker.control_type is ControlRecordType.ABORT
        return CompletedTxn(self.producer_id, first_offset, offset, is_aborted)

    def _check_producer_epoch(self, producer_epoch: int, offset: int, transaction_version: int) -> None:
        # Version 2 increments the epoch with every transaction: a marker must have a higher epoch than the data.
        current = self._updated_entry.producer_epoch
        is_version_2 = transaction_version >= 2
        if producer_epoch > current or (producer_epoch == current and not is_version_2):
            return
        if (
            is_version_2
            and producer_epoch == current
            and (self._updated_entry.current_txn_first_offset is None or producer_epoch == SHORT_MAX)
        ):
            self._logger.info(
                "Producer %d, epoch %d: a repeated marker, after its transaction has ended",
                self.producer_id,
                producer_epoch,
            )
            return
        message = (
            f"Epoch of producer {self.producer_id} at offset {offset} in {self._topic_partition} is {producer_epoch}, "
            f"which is {'<=' if is_version_2 else '<'} the last seen epoch {current} (TV{transaction_version})"
        )
        if self._origin is not AppendOrigin.REPLICATION:
            raise InvalidProducerEpochException(message)
        # The leader has accepted it, so a follower must too.
        self._logger.warning("%s", message)

    def _check_sequence(self, producer_epoch: int, append_first_seq: int, offset: int) -> None:
        verification, updated, current = self._verification_state_entry, self._updated_entry, self._current_entry
        if verification is not None:
            if verification.supports_epoch_bump and append_first_seq != 0 and current.is_empty:
                raise OutOfOrderSequenceException(
                    f"Invalid sequence number {self._where(offset)}: {append_first_seq} (incoming seq. number). "
                    "Expected sequence 0 for transactions v2 idempotent producer with no existing state."
                )
            if append_first_seq > verification.lowest_sequence:
                raise OutOfOrderSequenceException(
                    f"Out of order sequence number {self._where(offset)}: {append_first_seq} (incoming seq. number), "
                    f"{verification.lowest_sequence} (earliest seen sequence)"
                )
        if producer_epoch != updated.producer_epoch:
            if append_first_seq != 0 and updated.producer_epoch != NO_PRODUCER_EPOCH:
                raise OutOfOrderSequenceException(
                    f"Invalid sequence number for new epoch of producer {self.producer_id} at offset {offset} in "
                    f"partition {self._topic_partition}: {producer_epoch} (request epoch), {append_first_seq} "
                    f"(seq. number), {updated.producer_epoch} (current producer epoch)"
                )
            return
        if not updated.is_empty:
            last_seq = updated.last_seq
        elif producer_epoch == current.producer_epoch:
            last_seq = current.last_seq
        else:
            last_seq = NO_SEQUENCE
        # An unknown producer may start anywhere: retention may have deleted its earlier batches.
        if current.producer_epoch != NO_PRODUCER_EPOCH and not in_sequence(last_seq, append_first_seq):
            raise OutOfOrderSequenceException(
                f"Out of order sequence number {self._where(offset)}: {append_first_seq} (incoming seq. number), "
                f"{last_seq} (current end sequence number)"
            )

    def _check_coordinator_epoch(self, end_txn_marker: EndTransactionMarker, offset: int) -> None:
        known = self._updated_entry.coordinator_epoch
        if known <= end_txn_marker.coordinator_epoch:
            return
        message = (
            f"Invalid coordinator epoch for producerId {self.producer_id} at offset {offset} in partition "
            f"{self._topic_partition}: {end_txn_marker.coordinator_epoch} (zombie), {known} (current)"
        )
        if self._origin is not AppendOrigin.REPLICATION:
            raise TransactionCoordinatorFencedException(message)
        self._logger.info("%s", message)

    def _where(self, offset: int) -> str:
        return f"for producer {self.producer_id} at offset {offset} in partition {self._topic_partition}"

    def __repr__(self) -> str:
        entry = self._updated_entry
        return (
            f"ProducerAppendInfo(producerId={self.producer_id}, producerEpoch={entry.producer_epoch}, "
            f"firstSequence={entry.first_seq}, lastSequence={entry.last_seq}, "
            f"currentTxnFirstOffset={entry.current_txn_first_offset}, coordinatorEpoch={entry.coordinator_epoch}, "
            f"lastTimestamp={entry.last_timestamp}, startedTransactions={self._transactions})"
        )
