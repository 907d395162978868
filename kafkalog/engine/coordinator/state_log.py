"""What a coordinator asks of a partition of an internal topic: what it holds, and that more is appended to it.

`StateLog` is the log of one partition of `__consumer_offsets` or `__transaction_state`, `Markers` are the partitions
that transactions are in.  Coordinators know these two, never a log or a manager; the real ones stand in
`partition_logs`.  The batches that coordinators write are made here, as Kafka's do.

Order is what they promise with: of two appends the later one is never kept without the earlier one, and what was
appended before `flush` is still there after a power loss once it has returned (a store that promises no more than the
order lets `flush` do nothing).  Nobody here takes a lock; each may be called from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkalog._native.codec.batches import header_at
from kafkalog.engine.format import records
from kafkalog.engine.format.batch import NO_PRODUCER, RECORD_BATCH_OVERHEAD, ProducerFields
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.control import (
    ControlRecordType,
    EndTransactionMarker,
    end_txn_marker_batch,
    parse_control_key,
)
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalStateException, InvalidRecordException, RecordTooLargeException, SchemaException

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog._native.codec.records import Record

KeyValue = tuple[bytes, "bytes | None"]
NO_RECORDS: tuple[Record, ...] = ()
# What a record costs beside its key and value, at most: lengths, deltas, attributes.
RECORD_OVERHEAD_MAX = 40


class StateBatch(NamedTuple):
    """A batch of an internal topic's partition, and the offset behind it.  `producer_id` is -1 where it is not of a
    transaction; `marker` is COMMIT or ABORT where it ends one, and has no records then."""

    base_offset: int
    next_offset: int
    producer_id: int
    producer_epoch: int
    records: Sequence[Record]
    marker: ControlRecordType | None = None


class TransactionMarker(NamedTuple):
    """What a coordinator has written to every partition of a transaction (WriteTxnMarkers).

    `transaction_version` is not written: it says how the partition checks the epoch (unified-log.md §6).
    """

    producer_id: int
    producer_epoch: int
    kind: ControlRecordType
    coordinator_epoch: int
    transaction_version: int

    def batch(self, now_ms: int, partition_leader_epoch: int = -1) -> bytes:
        """The marker's 78 bytes."""
        end = EndTransactionMarker(self.kind, self.coordinator_epoch)
        return end_txn_marker_batch(0, now_ms, partition_leader_epoch, self.producer_id, self.producer_epoch, end)


class StateLog(Protocol):
    """One partition of an internal topic."""

    @property
    def place(self) -> str:
        """Where it lies: what errors name."""
        ...

    @property
    def epoch(self) -> int:
        """The leader epoch of what is appended: the coordinator's epoch."""
        ...

    @property
    def end(self) -> int:
        """The offset of what comes next."""
        ...

    @property
    def batch_bytes_max(self) -> int:
        """The largest batch that it takes."""
        ...

    def read(self, start: int | None = None) -> Iterator[StateBatch]:
        """What it holds, from the batch with offset `start` (None: from its start) to its end."""
        ...

    def append(self, batch: bytes) -> int:
        """Appends a batch, all or nothing; its first offset."""
        ...

    def append_marker(self, marker: TransactionMarker, now_ms: int) -> int:
        """Appends a transaction's end; its offset.  Errors as `Markers.write`."""
        ...

    def flush(self) -> None:
        """What was appended is durable when it returns."""
        ...


class Markers(Protocol):
    """The partitions that transactions are in."""

    def write(self, partition: TopicPartition, marker: TransactionMarker) -> None:
        """Ends the transaction there.  The same marker may come again.  Only a partition whose topic is deleted takes
        none; one that has no log yet gets it, and with that the epoch that fences an earlier holder.
        InvalidProducerEpochException and TransactionCoordinatorFencedException where the partition knows of somebody
        newer."""
        ...

    def flush(self, partitions: Collection[TopicPartition]) -> None:
        """What was appended to these is durable when it returns; those that are not there any more count as such."""
        ...


# --- batches ----------------------------------------------------------------------------------------


def records_batch(rows: Iterable[KeyValue], now_ms: int, producer: ProducerFields) -> bytes:
    """The batch of some records, each with the time `now_ms`."""
    builder = MemoryRecordsBuilder(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=producer.base_sequence,
        is_transactional=producer.transactional,
    )
    for key, value in rows:
        builder.append(now_ms, key, value)
    return builder.build()


def in_batches(rows: Iterable[KeyValue], bytes_max: int) -> Iterator[list[KeyValue]]:
    """Records in groups that a batch of at most `bytes_max` surely holds (or one record, where that is larger)."""
    group: list[KeyValue] = []
    size = RECORD_BATCH_OVERHEAD
    for row in rows:
        more = len(row[0]) + len(row[1] or b"") + RECORD_OVERHEAD_MAX
        if group and size + more > bytes_max:
            yield group
            group, size = [], RECORD_BATCH_OVERHEAD
        group.append(row)
        size += more
    if group:
        yield group


def append_whole(log: StateLog, rows: Iterable[KeyValue], now_ms: int, producer: ProducerFields) -> int:
    """Appends records as one batch, which nobody sees a part of; RecordTooLargeException where it is too large."""
    batch = records_batch(rows, now_ms, producer)
    if len(batch) > log.batch_bytes_max:
        raise RecordTooLargeException(
            f"a batch of {len(batch)} bytes, expected at most {log.batch_bytes_max}",
            path=log.place,
            hint="commit less at once, or raise the topic's max.message.bytes",
        )
    return log.append(batch)


def append_in_batches(
    log: StateLog, rows: Iterable[KeyValue], now_ms: int, producer: ProducerFields = NO_PRODUCER
) -> None:
    """Appends records that need not come together, in as many batches as it takes."""
    for group in in_batches(rows, log.batch_bytes_max):
        append_whole(log, group, now_ms, producer)


def state_batch(data: Buffer, header: BatchHeader) -> StateBatch:
    """The batch of `data` that `header` is of (its position counts).  Control records other than ends of transactions
    say nothing.  Errors as `format.records.records`, and InvalidRecordException for a control record without a type.
    """
    base, after = header.base_offset, header.next_offset
    if not header.is_control:
        return StateBatch(base, after, header.producer_id, header.producer_epoch, records.records(data, header))
    first = next(iter(records.records(data, header)), None)
    kind = None if first is None else parse_control_key(first.key)
    marker = kind if kind in (ControlRecordType.COMMIT, ControlRecordType.ABORT) else None
    return StateBatch(base, after, header.producer_id, header.producer_epoch, NO_RECORDS, marker)


def parsed_batch(batch: bytes) -> StateBatch:
    """What `state_batch` makes of one batch alone."""
    return state_batch(batch, header_at(batch))


# --- what both coordinators do ----------------------------------------------------------------------


def at_record(log: StateLog, offset: int, error: SchemaException | InvalidRecordException) -> SchemaException:
    """The error of a record that fails its partition, with the place."""
    return SchemaException(
        f"the record at offset {offset} cannot be understood: {error.message}",
        path=log.place,
        hint="nobody can go on with what this partition holds; "
        "`kafkalog dump --deep-iteration` shows the record, a broker refuses the partition as well",
    )


def refuse_reentry(lock: threading.RLock, what: str) -> None:
    """IllegalStateException where this thread is inside `lock` already: a signal's handler, or a finalizer, that uses
    what it interrupted.  Asked of the lock itself, so that no interrupt can leave a mark behind."""
    if lock._is_owned():  # type: ignore[attr-defined]
        raise IllegalStateException(
            f"{what} is just being changed by this thread",
            hint="do not use it in a signal's handler or a finalizer",
        )
