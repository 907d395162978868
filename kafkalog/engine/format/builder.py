"""Builds batches of magic 2: the bytes that Kafka's MemoryRecordsBuilder writes, for every codec and option.

Records are checked and counted as they are appended.  They are encoded together when the batch is closed.  Sources:
MemoryRecordsBuilder, DefaultRecordBatch.writeHeader (4.4.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalog._limits import INT_MAX, to_int32, to_int64
from kafkalog._native.codec import records as native
from kafkalog.engine.format import codecs, control
from kafkalog.engine.format.batch import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_PRODUCER,
    NO_TIMESTAMP_TYPE,
    RECORD_BATCH_OVERHEAD,
    ProducerFields,
    compute_attributes,
    write_header,
)
from kafkalog.errors import IllegalArgumentException, IllegalStateException, NullPointerException

if TYPE_CHECKING:
    from kafkalog._native.codec.records import Record

Header = tuple[str, "bytes | None"]


class RecordsInfo(NamedTuple):
    """The result of `MemoryRecordsBuilder.info`: the largest timestamp, and the offset that the time index stores for
    it."""

    max_timestamp: int
    shallow_offset_of_max_timestamp: int


class SimpleRecord(NamedTuple):
    """A record that has no offset yet."""

    timestamp: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[Header, ...] = ()


class MemoryRecordsBuilder:
    """Builds one batch.

    The arguments are those of Kafka's constructor, by name.  `level` is the codec's level; None means its default.
    Raises IllegalArgumentException for combinations that the message format cannot represent.
    """

    # More than eight parameters: a batch's header has as many fields.
    def __init__(
        self,
        *,
        codec: int = codecs.NONE,
        timestamp_type: str = CREATE_TIME,
        base_offset: int = 0,
        log_append_time: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
        is_control_batch: bool = False,
        partition_leader_epoch: int = -1,
        delete_horizon_ms: int = -1,
        level: int | None = None,
    ) -> None:
        codecs.check_codec(codec)
        if level is not None:
            codecs.check_level(codec, level)
        if timestamp_type == NO_TIMESTAMP_TYPE:
            raise IllegalArgumentException("TimestampType must be set for magic >= 0")
        self.codec = codec
        self.level = level
        self.timestamp_type = timestamp_type
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence
        self.is_transactional = is_transactional
        self.is_control_batch = is_control_batch
        self.partition_leader_epoch = partition_leader_epoch
        self.delete_horizon_ms = delete_horizon_ms
        self.has_delete_horizon_ms = delete_horizon_ms >= 0
        self.num_records = 0
        self.uncompressed_records_size_in_bytes = 0
        self._max_timestamp = -1
        self._last_offset: int | None = None
        self._base_timestamp: int | None = delete_horizon_ms if self.has_delete_horizon_ms else None
        self._rows: list[tuple[int, int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]] = []
        self._payload: bytes | None = None  # once encoded and compressed, no more records can be appended
        self._built: bytes | None = None
        self._aborted = False

    # --- append -----------------------------------------------------------------------------------

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        offset: int | None = None,
    ) -> None:
        """Adds a record at `offset`, or at the next offset if `offset` is None.

        Raises IllegalArgumentException if the offset does not increase or is 2^31 or more above the base offset.
        Raises it also for a negative timestamp other than -1.
        """
        self._append(self._next_offset() if offset is None else offset, False, timestamp, key, value, headers)

    def append_record(self, record: Record) -> None:
        """Adds a record that was read, at its offset (MemoryRecordsBuilder.append(Record))."""
        self._append(record.offset, self.is_control_batch, record.timestamp, record.key, record.value, record.headers)

    def append_control_record(self, timestamp: int, control_type: control.ControlRecordType, value: bytes) -> None:
        """Adds a control record of that type; the batch must be a control batch."""
        self._append(self._next_offset(), True, timestamp, control.record_key(control_type), value, ())

    def append_control_record_with_offset(
        self, offset: int, timestamp: int, key: bytes, value: bytes | None, headers: Sequence[Header] = ()
    ) -> None:
        """Adds a control record, as Kafka's method of this name does; the key must name a known control type."""
        type_id = control.parse_type_id(key)
        if control.ControlRecordType.from_type_id(type_id) is control.ControlRecordType.UNKNOWN:
            raise IllegalArgumentException(f"Cannot append record with unknown control record type {type_id}")
        self._append(offset, True, timestamp, key, value, headers)

    def append_end_txn_marker(self, timestamp: int, marker: control.EndTransactionMarker) -> None:
        """Adds the marker that ends a transaction; needs a producer id and a transactional batch."""
        if self.producer_id == -1:
            raise IllegalArgumentException("End transaction marker requires a valid producerId")
        if not self.is_transactional:
            raise IllegalArgumentException("End transaction marker depends on batch transactional flag being enabled")
        self.append_control_record(timestamp, marker.control_type, marker.serialize_value())

    def _append(
        self,
        offset: int,
        is_control_record: bool,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
    ) -> None:
        if is_control_record != self.is_control_batch:
            raise IllegalArgumentException("Control records can only be appended to control batches")
        if self._last_offset is not None and offset <= self._last_offset:
            raise IllegalArgumentException(
                f"Illegal offset {offset} following previous offset {self._last_offset} "
                "(Offsets must increase monotonically)."
            )
        if timestamp < 0 and timestamp != -1:
            raise IllegalArgumentException(f"Invalid negative timestamp {timestamp}")
        if self._payload is not None or self._aborted:
            raise IllegalStateException(
                "Tried to append a record, but MemoryRecordsBuilder is closed for record appends"
            )
        if offset - self.base_offset > INT_MAX:
            raise IllegalArgumentException(
                f"Maximum offset delta exceeded, base offset: {self.base_offset}, last offset: {offset}"
            )
        if self._base_timestamp is None:
            self._base_timestamp = timestamp
        offset_delta = to_int32(offset - self.base_offset)
        timestamp_delta = to_int64(timestamp - self._base_timestamp)
        encoded = _encoded(headers)
        self._rows.append((timestamp_delta, offset_delta, key, value, encoded))
        self.num_records += 1
        self.uncompressed_records_size_in_bytes += native.record_size(
            timestamp_delta, offset_delta, key, value, encoded
        )
        self._last_offset = offset
        self._max_timestamp = max(self._max_timestamp, timestamp)

    def _next_offset(self) -> int:
        return self.base_offset if self._last_offset is None else self._last_offset + 1

    # --- state ------------------------------------------------------------------------------------

    def override_last_offset(self, last_offset: int) -> None:
        """Sets the batch's last offset, regardless of its last record's offset (compaction)."""
        if self._built is not None:
            raise IllegalStateException("Cannot override the last offset after the records have been built")
        self._last_offset = last_offset

    @property
    def last_offset(self) -> int | None:
        return self._last_offset

    @property
    def is_closed(self) -> bool:
        return self._built is not None

    @property
    def uncompressed_bytes_written(self) -> int:
        return self.uncompressed_records_size_in_bytes + RECORD_BATCH_OVERHEAD

    def info(self) -> RecordsInfo:
        """Returns the largest timestamp and the offset that the time index stores for it."""
        last = -1 if self._last_offset is None else self._last_offset
        if self.timestamp_type == LOG_APPEND_TIME:
            return RecordsInfo(self.log_append_time, last)
        if self._max_timestamp == -1:
            return RecordsInfo(-1, -1)
        return RecordsInfo(self._max_timestamp, last)

    # --- close ------------------------------------------------------------------------------------

    def close_for_record_appends(self) -> None:
        if self._payload is None:
            plain = native.write_records(self._rows)
            self._rows = []
            self._payload = codecs.compress(self.codec, plain, self.level)

    def abort(self) -> None:
        self.close_for_record_appends()
        self._aborted = True

    def close(self) -> None:
        """Writes the batch.  Raises IllegalArgumentException if the producer's fields contradict each other."""
        if self._aborted:
            raise IllegalStateException("Cannot close MemoryRecordsBuilder as it has already been aborted")
        if self._built is not None:
            return
        self._validate_producer_state()
        if self.num_records == 0:
            self._payload = b""
            self._built = b""
            return
        self.close_for_record_appends()
        assert self._payload is not None
        self._built = self._header() + self._payload

    def build(self) -> bytes:
        """Returns the finished bytes, which are empty if no record was appended."""
        if self._aborted:
            raise IllegalStateException("Attempting to build an aborted record batch")
        self.close()
        assert self._built is not None
        return self._built

    def _validate_producer_state(self) -> None:
        if self.is_transactional and self.producer_id == -1:
            raise IllegalArgumentException("Cannot write transactional messages without a valid producer ID")
        if self.producer_id != -1:
            if self.producer_epoch == -1:
                raise IllegalArgumentException("Invalid negative producer epoch")
            if self.base_sequence < 0 and not self.is_control_batch:
                raise IllegalArgumentException("Invalid negative sequence number used")

    def _header(self) -> bytes:
        assert self._payload is not None
        assert self._last_offset is not None
        assert self._base_timestamp is not None
        return write_header(
            self._payload,
            base_offset=self.base_offset,
            last_offset_delta=to_int32(self._last_offset - self.base_offset),
            attributes=compute_attributes(
                self.codec,
                self.timestamp_type,
                self.is_transactional,
                self.is_control_batch,
                self.has_delete_horizon_ms,
            ),
            base_timestamp=self._base_timestamp,
            max_timestamp=self.log_append_time if self.timestamp_type == LOG_APPEND_TIME else self._max_timestamp,
            producer=ProducerFields(self.producer_id, self.producer_epoch, self.base_sequence),
            partition_leader_epoch=self.partition_leader_epoch,
            count=self.num_records,
        )


def _encoded(headers: Sequence[Header]) -> tuple[tuple[bytes, bytes | None], ...]:
    if not headers:
        return ()
    found = []
    for name, value in headers:
        if name is None:
            raise NullPointerException("Null header keys are not permitted")
        # Java writes a lone surrogate as "?".
        found.append((name.encode("utf-8", "replace"), value))
    return tuple(found)


def build_batch(
    records: Iterable[SimpleRecord | tuple[int, bytes | None, bytes | None, Sequence[Header]]],
    **options: Any,
) -> bytes:
    """Returns a batch of (timestamp, key, value, headers) at consecutive offsets.

    The options are those of MemoryRecordsBuilder.
    """
    builder = MemoryRecordsBuilder(**options)
    for timestamp, key, value, headers in records:
        builder.append(timestamp, key, value, headers)
    return builder.build()


def empty_batch_header(
    *,
    base_offset: int,
    last_offset: int,
    timestamp_type: str,
    timestamp: int,
    producer: ProducerFields = NO_PRODUCER,
    partition_leader_epoch: int = -1,
    is_control_batch: bool = False,
) -> bytes:
    """Returns a batch without records, such as compaction keeps for a producer's last one.

    Mirrors DefaultRecordBatch.writeEmptyHeader.
    """
    return write_header(
        b"",
        base_offset=base_offset,
        last_offset_delta=to_int32(last_offset - base_offset),
        attributes=compute_attributes(codecs.NONE, timestamp_type, producer.transactional, is_control_batch),
        base_timestamp=-1,
        max_timestamp=timestamp,
        producer=producer,
        partition_leader_epoch=partition_leader_epoch,
        count=0,
    )
