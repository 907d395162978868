"""The logs of a store as share partitions read them, and the writer of share groups' dead letters.

`SharedStoreLogs` finds the log of a topic's id and reads whole batches. `read_chunk` reads the bytes as well, and gives
the records of a range of offsets: a queue decodes what it reads once, and hands it out in pieces.

`StoreDeadLetters` writes a record for each dead offset to the group's topic, in the same partition modulo their number.
Its headers say where the record came from and why; key and value are copied if the group says so. The form is Kafka's
(KIP-1191). Thread-safe. Source: ReplicaManagerLogReader, ReplicaManagerPartitionMetadataProvider,
ShareGroupDLQStateManager (4.4.0).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kafkalog._native.codec import batches as native
from kafkalog._native.codec.reading import Record, RecordWalk
from kafkalog.engine.coordinator.share_interfaces import Aborted, DeadLetter, EndOffset, LogRead, TopicIdPartition
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.control import is_abort
from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.records import MAX_RECORD_BYTES, PART_RECORDS, in_parts, payload
from kafkalog.engine.log.far_read import is_far, read_far
from kafkalog.engine.log.types import FetchIsolation
from kafkalog.engine.segment.file_records import FileRecordsSlice
from kafkalog.errors import (
    ConfigException,
    CorruptRecordException,
    KafkalogError,
    KafkaStorageException,
    OffsetOutOfRangeException,
    UnknownTopicOrPartitionException,
)
from kafkalog.records import TIMESTAMP_TYPES

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kafkalog._face.catalog import Catalog
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.engine.coordinator.share_config import ShareGroupConfigProvider
    from kafkalog.engine.files import Clock
    from kafkalog.engine.log.unified_log import UnifiedLog
    from kafkalog.engine.segment.transaction_index import AbortedTxn

DLQ_ENABLED = "errors.deadletterqueue.group.enable"
LETTERS_AT_ONCE = 500


class _Data:
    """Bytes in which batches lie, as RecordWalk wants them."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class RecordChunk:
    """Batches of a partition that were read together, with their bytes. Records are decoded at the first use."""

    first_offset = 0
    end_offset: int | None = None

    def __init__(self, topic_partition: TopicPartition, read: LogRead, data: bytes, path: str) -> None:
        self.topic_partition = topic_partition
        self.read = read
        self._data = _Data(data)
        self._path = path
        self._bases = [each.base_offset for each in read.batches]
        self.last_offset = read.batches[-1].last_offset
        self._records: list[Record] | None = None
        self._offsets: list[int] = []

    def has(self, offset: int) -> bool:
        """Returns whether the chunk has the batch of an offset."""
        return self._bases[0] <= offset <= self.last_offset

    def from_offset(self, offset: int, batches: int) -> LogRead:
        """Returns what a read at an offset finds, with at most `batches` batches."""
        at = max(0, bisect_right(self._bases, offset) - 1)
        if self.read.batches[at].last_offset < offset:
            at += 1
        found = self.read.batches[at : at + batches]
        return LogRead(found, None, self.read.aborted, self.read.abort_markers)

    def records(self, first: int, last: int) -> list[Record]:
        """Returns the records of a range of offsets. CorruptRecordException if a batch is damaged."""
        found = self._records
        if found is None:
            found = self._records = self._decoded()
            self._offsets = [each.offset for each in found]
        at = bisect_left(self._offsets, first)
        return found[at : bisect_right(self._offsets, last, at)]

    def _decoded(self) -> list[Record]:
        headers: Sequence[Any] = self.read.batches
        for header in headers:
            if not native.crc_matches(self._data.data, header.position, header.size):
                raise CorruptRecordException(
                    "Record is corrupt: the checksum does not match", path=self._path, position=header.position
                )
        batches = ((self, self._data, header) for header in headers if not header.is_control)
        return list(RecordWalk(batches, part_records=PART_RECORDS, max_body=MAX_RECORD_BYTES))

    # --- what RecordWalk calls -------------------------------------------------------------------------

    def body_of(self, chunk: _Data, header: BatchHeader) -> Buffer | None:
        """Returns the decompressed records of a batch; None if `plain_records` has to raise the error."""
        try:
            return payload(chunk.data, header, max_bytes=MAX_RECORD_BYTES)
        except KafkalogError:
            return None

    def plain_records(self, chunk: _Data, header: BatchHeader) -> Iterator[Record]:
        """Yields the records of an unusual batch."""
        topic, number = self.topic_partition
        epoch, kind = header.leader_epoch, TIMESTAMP_TYPES[header.timestamp_type]
        for part in in_parts(chunk.data, header, max_bytes=MAX_RECORD_BYTES):
            for it in part:
                yield Record(topic, number, epoch, it.offset, it.timestamp, kind, it.key, it.value, it.headers)

    def check_usable(self) -> None:
        """Does nothing: the bytes are the process's own."""


class SharedStoreLogs:
    """See the module."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._registry = catalog.registry
        self._known: dict[TopicIdPartition, UnifiedLog] = {}  # as last seen

    def log_of(self, partition: TopicIdPartition) -> UnifiedLog:
        """Returns the log. UnknownTopicOrPartitionException if the topic is not this one any more."""
        known = self._known.get(partition)
        if known is not None and self._registry.get(known.topic_partition) is known:
            return known
        if partition.topic is None:
            raise UnknownTopicOrPartitionException(f"no topic has the id {partition.topic_id}")
        name = TopicPartition(partition.topic, partition.partition)
        log = self._catalog.settled_log(name)
        if log is None or (log.topic_id or ZERO_UUID) != partition.topic_id:
            raise UnknownTopicOrPartitionException(f"topic partition {name} does not exist, or is not here")
        self._known[partition] = log
        return log

    def _read(
        self, partition: TopicIdPartition, offset: int, max_bytes: int, isolation: FetchIsolation, whole: bool
    ) -> Any:
        log = self.log_of(partition)
        try:
            return log, log.read(offset, max_bytes, isolation, whole)
        except KafkaStorageException:
            moved = self.log_of(partition)  # its directory may have changed meanwhile
            if moved is log:
                raise
            return moved, moved.read(offset, max_bytes, isolation, whole)

    def read(
        self, partition: TopicIdPartition, offset: int, max_bytes: int, *, committed: bool, whole: bool
    ) -> LogRead:
        """Reads whole batches, as SharedLogs."""
        try:
            _, found = self._read(partition, offset, max_bytes, _isolation(committed), whole)
        except OffsetOutOfRangeException:
            log = self.log_of(partition)
            if not is_far(log, offset):
                raise
            return _read_far(log, offset, max_bytes, whole)[0]
        if not found.records.size or found.first_entry_incomplete:
            return LogRead((), found.records)
        batches = found.records.batches()
        return _with_aborted(LogRead(batches, found.records), found, found.records.to_bytes)

    def read_chunk(
        self, partition: TopicIdPartition, offset: int, max_bytes: int, *, committed: bool
    ) -> RecordChunk | None:
        """Reads batches with their bytes; None at the end."""
        try:
            return self._read_near(partition, offset, max_bytes, committed=committed)
        except OffsetOutOfRangeException:
            log = self.log_of(partition)
            if not is_far(log, offset):
                raise
        read, data = _read_far(log, offset, max_bytes, True)
        return RecordChunk(log.topic_partition, read, data, log.dir) if read.batches else None

    def _read_near(
        self, partition: TopicIdPartition, offset: int, max_bytes: int, *, committed: bool
    ) -> RecordChunk | None:
        log, found = self._read(partition, offset, max_bytes, _isolation(committed), True)
        data: bytes = found.records.to_bytes() if found.records.size else b""
        batches, _, _ = native.headers(data, framing=native.FRAMING_FILE) if data else ([], 0, 0)
        if not batches:
            return None
        read = _with_aborted(LogRead(batches, found.records), found, lambda: data)
        path = getattr(getattr(found.records, "file", None), "path", "")
        return RecordChunk(log.topic_partition, read, data, path)

    def is_far(self, partition: TopicIdPartition, offset: int) -> bool:
        """Returns whether only the remote tier has an offset."""
        return is_far(self.log_of(partition), offset)

    def part(self, read: LogRead, position: int, size: int) -> Any:
        """Returns a part of what was read."""
        whole = read.records
        if isinstance(whole, bytes):
            return whole[position : position + size]
        return FileRecordsSlice(whole.file, whole.position + position, size)

    def place_of(self, partition: TopicIdPartition, offset: int, *, committed: bool) -> EndOffset:
        """Returns where an offset lies; without a place if only the remote tier has it."""
        try:
            _, found = self._read(partition, offset, 1, _isolation(committed), True)
        except OffsetOutOfRangeException:
            if not self.is_far(partition, offset):
                raise
            return EndOffset(offset)
        return EndOffset(*found.fetch_offset_metadata)

    def end_offset(self, partition: TopicIdPartition, *, committed: bool) -> EndOffset:
        """Returns the high watermark, or the last stable offset."""
        log = self.log_of(partition)
        high = log.high_watermark_metadata
        unstable = log.first_unstable_offset_metadata
        if committed and unstable is not None and unstable[0] < high[0]:
            return EndOffset(*unstable)
        return EndOffset(*high)

    def earliest_offset(self, partition: TopicIdPartition) -> int:
        """Returns the log's start."""
        return self.log_of(partition).log_start_offset

    def latest_offset(self, partition: TopicIdPartition) -> int:
        """Returns the high watermark."""
        return self.log_of(partition).high_watermark

    def offset_for_timestamp(self, partition: TopicIdPartition, timestamp_ms: int) -> int | None:
        """Returns the first offset at or after a time; None if there is none."""
        found = self.log_of(partition).fetch_offset_by_timestamp(timestamp_ms)
        return None if found is None else found.offset

    def leader_epoch(self, partition: TopicIdPartition) -> int:
        """Returns the leader epoch of the log."""
        return self.log_of(partition).latest_epoch or 0

    def ring_at_change(self, partition: TopicIdPartition, bell: Any) -> None:
        """Calls `bell.release()` once, at the log's next change."""
        log = self.log_of(partition)
        while True:
            waiters = log.waiters
            waiters.append(bell)
            if waiters is log.waiters:  # otherwise all waiters were woken meanwhile
                return


def _isolation(committed: bool) -> FetchIsolation:
    return FetchIsolation.TXN_COMMITTED if committed else FetchIsolation.HIGH_WATERMARK


def _read_far(log: UnifiedLog, offset: int, max_bytes: int, whole: bool) -> tuple[LogRead, bytes]:
    data, aborted = read_far(log, offset, max_bytes, whole)
    batches, _, _ = native.headers(data, framing=native.FRAMING_FILE) if data else ([], 0, 0)
    return _marked(LogRead(batches, data), aborted, data), data


def _with_aborted(read: LogRead, found: Any, data_of: Any) -> LogRead:
    """Adds what a committed read needs to know of aborted transactions."""
    if not found.aborted_transactions:
        return read
    return _marked(read, found.aborted_transactions, data_of())


def _marked(read: LogRead, aborted_transactions: Iterable[AbortedTxn], data: bytes) -> LogRead:
    """Adds aborted transactions, and their markers among the batches in `data`."""
    markers = set()
    headers: Sequence[Any] = read.batches
    for header in headers:
        if header.is_control and is_abort(data[header.position : header.position + header.size], header):
            markers.add(header.base_offset)
    aborted = [Aborted(each.producer_id, each.first_offset) for each in aborted_transactions]
    return read._replace(aborted=aborted, abort_markers=frozenset(markers))


class StoreDeadLetters:
    """See the module. `owned`: the groups whose topic a queue of this process has chosen; a topic of another group must
    have errors.deadletterqueue.group.enable, and a name with the prefix."""

    def __init__(
        self, catalog: Catalog, logs: SharedStoreLogs, configs: ShareGroupConfigProvider, clock: Clock, *, syncs: bool
    ) -> None:
        self._catalog = catalog
        self._logs = logs
        self._configs = configs
        self._clock = clock
        self._syncs = syncs
        self.creates_topics = False  # errors.deadletterqueue.auto.create.topics.enable
        self.prefix = ""  # errors.deadletterqueue.topic.name.prefix

    def is_enabled(self, group: str) -> bool:
        """Whether the group has a topic for dead letters."""
        return self._configs.dead_letter_topic(group) is not None

    def write(self, letter: DeadLetter) -> None:
        """Writes a record for each offset. ConfigException if the topic cannot be used."""
        topic = self._topic(letter.group)
        info = self._catalog.must(topic)
        number = letter.partition.partition % info.partitions
        log = self._catalog.settled_log(TopicPartition(topic, number))
        if log is None:
            raise self._catalog.away_error(TopicPartition(topic, number))
        for first in range(letter.first_offset, letter.last_offset + 1, LETTERS_AT_ONCE):
            last = min(first + LETTERS_AT_ONCE - 1, letter.last_offset)
            self._append(log, letter, first, last)
        if self._syncs:
            log.flush(False)

    def _topic(self, group: str) -> str:
        topic = self._configs.dead_letter_topic(group)
        if topic is None:
            raise ConfigException(f"DLQ topic is not configured for share group {group}.")
        owned = group in self._configs.overrides
        if topic.startswith("__"):
            raise ConfigException(
                f"Configured DLQ topic name in share group: {group} cannot start with __, topic: {topic}."
            )
        if self._catalog.info(topic) is None:
            if not (owned or self.creates_topics):
                raise ConfigException(
                    "DLQ topic does not exist and auto create is disabled on cluster for share group: "
                    f"{group}, topic: {topic}."
                )
            self.create_topic(topic)
        elif not owned and not self._is_enabled_on(topic):
            raise ConfigException(
                f"DLQ is not enabled on configured DLQ topic for share group: {group}, topic: {topic}."
            )
        if not owned and not topic.startswith(self.prefix):
            raise ConfigException(
                f"Configured DLQ topic name does not comply with the DLQ topic prefix in share group: {group}, "
                f"topic: {topic}, prefix: {self.prefix}."
            )
        return topic

    def create_topic(self, topic: str) -> None:
        """Creates a topic for dead letters."""
        config = {DLQ_ENABLED: "true", "message.timestamp.type": "CreateTime"}
        self._catalog.create(topic, 1, config, None, exist_ok=True)

    def _is_enabled_on(self, topic: str) -> bool:
        log = self._catalog.settled_log(TopicPartition(topic, 0))
        return log is not None and log.config.errors_deadletterqueue_group_enable

    def _append(self, log: UnifiedLog, letter: DeadLetter, first: int, last: int) -> None:
        copies = self._copies(letter, first, last) if self._configs.copies_dead_letters(letter.group) else {}
        now_ms = self._clock.milliseconds()
        limit: int = log.config.max_message_bytes
        builder, size = MemoryRecordsBuilder(), 0
        for offset in range(first, last + 1):
            record = copies.get(offset)
            key, value = (None, None) if record is None else (record.key, record.value)
            size += 200 + len(key or b"") + len(value or b"")
            if size > limit and builder.last_offset is not None:
                log.append_as_leader(builder.build(), log.latest_epoch or 0)
                builder, size = MemoryRecordsBuilder(), 0
            builder.append(now_ms, key, value, _headers(letter, offset))
        log.append_as_leader(builder.build(), log.latest_epoch or 0)

    def _copies(self, letter: DeadLetter, first: int, last: int) -> dict[int, Record]:
        found: dict[int, Record] = {}
        offset = first
        while offset <= last:
            try:
                chunk = self._logs.read_chunk(letter.partition, offset, 1 << 20, committed=False)
            except KafkalogError:
                break  # the letters come without copies, as in Kafka
            if chunk is None:
                break
            found.update((each.offset, each) for each in chunk.records(offset, last))
            offset = chunk.last_offset + 1
        return found


def _headers(letter: DeadLetter, offset: int) -> tuple[tuple[str, bytes | None], ...]:
    partition = letter.partition
    pairs = (
        ("topic", partition.topic or partition.topic_id),
        ("partition", partition.partition),
        ("offset", offset),
        ("group", letter.group),
        ("delivery.count", letter.delivery_count),
        ("message", letter.cause),
    )
    return tuple((f"__dlq.errors.{name}", str(value).encode()) for name, value in pairs)
