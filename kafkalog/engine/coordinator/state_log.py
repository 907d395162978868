"""The interface through which a coordinator reads and appends to a partition of an internal topic.

`StateLog` is the log of one partition of `__consumer_offsets` or `__transaction_state`; `Markers` are the partitions
that transactions are in. Coordinators know these two, never a log or a manager; `partition_logs` has the
implementations. The batches that coordinators write are built here, as in Kafka.

The interface promises an order. A later append is never kept without the earlier ones. Everything that was appended
before `flush` survives a power loss once `flush` has returned; in a store that promises only the order, `flush` may do
nothing. Nothing here takes a lock; each method may be called from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkalog._native.codec.batches import header_at
from kafkalog._native.codec.encode import ColumnEncoder
from kafkalog.engine.format import codecs, records
from kafkalog.engine.format.batch import NO_PRODUCER, RECORD_BATCH_OVERHEAD, TRANSACTIONAL_FLAG, ProducerFields
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
# An upper limit of a record's bytes besides key and value: lengths, deltas, attributes.
RECORD_OVERHEAD_MAX = 40


class StateBatch(NamedTuple):
    """A batch of an internal topic's partition, and the offset after it.

    `producer_id` is -1 if the batch is not part of a transaction. `marker` is COMMIT or ABORT if the batch ends a
    transaction; it then has no records.
    """

    base_offset: int
    next_offset: int
    producer_id: int
    producer_epoch: int
    records: Sequence[Record]
    marker: ControlRecordType | None = None


class TransactionMarker(NamedTuple):
    """The marker that a coordinator writes to every partition of a transaction (WriteTxnMarkers).

    `transaction_version` is not written: it says how the partition checks the epoch (unified-log.md §6).
    """

    producer_id: int
    producer_epoch: int
    kind: ControlRecordType
    coordinator_epoch: int
    transaction_version: int

    def batch(self, now_ms: int, partition_leader_epoch: int = -1) -> bytes:
        """Returns the marker's batch of 78 bytes."""
        end = EndTransactionMarker(self.kind, self.coordinator_epoch)
        return end_txn_marker_batch(0, now_ms, partition_leader_epoch, self.producer_id, self.producer_epoch, end)


class StateLog(Protocol):
    """One partition of an internal topic."""

    @property
    def place(self) -> str:
        """Where the partition is stored; error messages name it."""
        ...

    @property
    def epoch(self) -> int:
        """The leader epoch of appends: the coordinator's epoch."""
        ...

    @property
    def end(self) -> int:
        """The offset of the next record."""
        ...

    @property
    def batch_bytes_max(self) -> int:
        """The size of the largest batch that it accepts."""
        ...

    @property
    def codec(self) -> int:
        """The codec of the batches that a coordinator appends (`codecs.NAMES`)."""
        ...

    def read(self, start: int | None = None) -> Iterator[StateBatch]:
        """Yields the batches from offset `start` (None: from the log's start) to the end."""
        ...

    def append(self, batch: bytes) -> int:
        """Appends a batch, all or nothing. Returns its first offset."""
        ...

    def append_marker(self, marker: TransactionMarker, now_ms: int) -> int:
        """Appends the end of a transaction. Returns its offset. Errors as `Markers.write`."""
        ...

    def flush(self) -> None:
        """Makes everything durable that was appended before."""
        ...


class Markers(Protocol):
    """The partitions that transactions are in."""

    def write(self, partition: TopicPartition, marker: TransactionMarker) -> None:
        """Ends the transaction in a partition. The same marker may be written again.

        Only a partition whose topic is deleted gets none. A partition that has no log yet gets one, and with it the
        epoch that fences an earlier holder. Raises InvalidProducerEpochException and
        TransactionCoordinatorFencedException if the partition knows a newer producer epoch or coordinator.
        """
        ...

    def flush(self, partitions: Collection[TopicPartition]) -> None:
        """Makes everything durable that was appended to these partitions; deleted ones are skipped."""
        ...


# --- batches ----------------------------------------------------------------------------------------


def records_batch(rows: Iterable[KeyValue], now_ms: int, producer: ProducerFields, codec: int = codecs.NONE) -> bytes:
    """Returns a batch of records, all with the timestamp `now_ms`; empty bytes without records."""
    if codec != codecs.NONE:
        return _compressed_batch(rows, now_ms, producer, codec)
    given = [(value, key) for key, value in rows]
    if not given:
        return b""
    encoder = ColumnEncoder.from_rows(given, now_ms)
    assert encoder is not None, "a coordinator's keys and values are bytes"
    batch, count, verdict = encoder.encode_batch(
        attributes=TRANSACTIONAL_FLAG if producer.transactional else 0,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=producer.base_sequence,
    )
    assert batch is not None, (count, verdict)
    assert count == len(given), (count, verdict)
    return batch.data


def _compressed_batch(rows: Iterable[KeyValue], now_ms: int, producer: ProducerFields, codec: int) -> bytes:
    builder = MemoryRecordsBuilder(
        codec=codec,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=producer.base_sequence,
        is_transactional=producer.transactional,
    )
    for key, value in rows:
        builder.append(now_ms, key, value)
    return builder.build()


def in_batches(rows: Iterable[KeyValue], bytes_max: int) -> list[list[KeyValue]]:
    """Returns records in groups that fit into a batch of at most `bytes_max` (or one record, if that is larger)."""
    groups: list[list[KeyValue]] = []
    group: list[KeyValue] = []
    size = RECORD_BATCH_OVERHEAD
    for row in rows:
        more = len(row[0]) + len(row[1] or b"") + RECORD_OVERHEAD_MAX
        if group and size + more > bytes_max:
            groups.append(group)
            group, size = [], RECORD_BATCH_OVERHEAD
        group.append(row)
        size += more
    if group:
        groups.append(group)
    return groups


def append_whole(log: StateLog, rows: Iterable[KeyValue], now_ms: int, producer: ProducerFields) -> int:
    """Appends records as one batch, all or nothing. Raises RecordTooLargeException if it is too large."""
    batch = records_batch(rows, now_ms, producer, log.codec)
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
    """Appends records that need not be atomic, in as many batches as needed."""
    for group in in_batches(rows, log.batch_bytes_max):
        append_whole(log, group, now_ms, producer)


def state_batch(data: Buffer, header: BatchHeader) -> StateBatch:
    """Returns the batch of `data` that `header` (with its position) belongs to.

    Control records other than ends of transactions are ignored. Errors as `format.records.records`, and
    InvalidRecordException for a control record without a type.
    """
    base, after = header.base_offset, header.next_offset
    if not header.is_control:
        return StateBatch(base, after, header.producer_id, header.producer_epoch, records.records(data, header))
    first = next(iter(records.records(data, header)), None)
    kind = None if first is None else parse_control_key(first.key)
    marker = kind if kind in (ControlRecordType.COMMIT, ControlRecordType.ABORT) else None
    return StateBatch(base, after, header.producer_id, header.producer_epoch, NO_RECORDS, marker)


def parsed_batch(batch: bytes) -> StateBatch:
    """Returns the `state_batch` of the bytes of one batch."""
    return state_batch(batch, header_at(batch))


# --- shared by both coordinators --------------------------------------------------------------------


def at_record(log: StateLog, offset: int, error: SchemaException | InvalidRecordException) -> SchemaException:
    """Returns the error for a record that makes its partition unusable, with the place."""
    return SchemaException(
        f"the record at offset {offset} cannot be understood: {error.message}",
        path=log.place,
        hint="this partition cannot be used; "
        "`kafkalog dump --deep-iteration` shows the record; a broker refuses the partition too",
    )


def refuse_reentry(lock: threading.RLock, what: str) -> None:
    """Raises IllegalStateException if this thread is already inside `lock`.

    That happens if a signal handler or a finalizer uses the object that it interrupted. The lock itself is asked, so
    that no interrupt can leave a mark behind.
    """
    if lock._is_owned():  # type: ignore[attr-defined]
        raise IllegalStateException(
            f"{what} is already in use by this thread",
            hint="do not use it in a signal handler or a finalizer",
        )
