"""The partitions that coordinators use, inside this process.

`UnifiedStateLog` is a `StateLog` over a UnifiedLog, and `LogMarkers` covers all partitions. `SourceStateLog` only
reads, from a directory that another process writes.

Each append has origin COORDINATOR and the log's latest leader epoch. `syncs` says whether a flush syncs the disk
(durability "fsync"), or the order of writes is enough (durability "os").
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar

from kafkalog._limits import INT_MAX
from kafkalog._native.codec.batches import header_at
from kafkalog.engine.coordinator.state_log import StateBatch, TransactionMarker, state_batch
from kafkalog.engine.files import Clock
from kafkalog.engine.format import codecs
from kafkalog.engine.format.batch import TRANSACTIONAL_FLAG, MemoryRecords, ensure_valid
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.jobs import Jobs
from kafkalog.engine.log.source import Source
from kafkalog.engine.log.types import AppendOrigin
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.log.verification import VerificationGuard
from kafkalog.engine.segment.reader import Extent
from kafkalog.errors import (
    BadBytesError,
    CorruptRecordException,
    KafkaStorageException,
    LogReadOnlyException,
    OffsetOutOfRangeException,
    RequestError,
    SchemaException,
)

if TYPE_CHECKING:
    from kafkalog.engine.segment.types import Records

T = TypeVar("T")

READ_BYTES = 1 << 20
COORDINATOR = AppendOrigin.COORDINATOR
LAST_BYTE_OF_ATTRIBUTES = 22
FEW_SYNCS = 16
SYNCING_THREADS = 8


def _parsed(data: bytes, position: int, place: str) -> StateBatch:
    header = header_at(data, position)
    try:
        ensure_valid(data, header, at=position, path=place)
        return state_batch(data, header)
    except (BadBytesError, RequestError) as error:
        raise SchemaException(
            f"the batch at offset {header.base_offset} cannot be read: {error.message}",
            path=place,
            hint="`kafkalog verify` lists the damage; `kafkalog recover` truncates the log there, "
            "which loses the decisions after it",
        ) from error


class UnifiedStateLog:
    """A partition of an internal topic. As thread-safe as its log; errors are the log's."""

    def __init__(self, log: UnifiedLog, *, syncs: bool, codec: int = codecs.NONE) -> None:
        self.log = log
        self.syncs = syncs
        self.codec = codec

    def moved_from(self, log: UnifiedLog) -> UnifiedLog | None:
        """Returns the log that replaced a failed one, in another directory; None if no log did."""
        return None

    def _where_it_is(self, do: Callable[[UnifiedLog], T]) -> T:
        while True:
            log = self.log
            try:
                return do(log)
            except KafkaStorageException:
                found = self.moved_from(log)
                if found is None or found is log:
                    raise
                self.log = found

    @property
    def place(self) -> str:
        return self.log.dir

    @property
    def epoch(self) -> int:
        return self.log.latest_epoch or 0

    @property
    def end(self) -> int:
        return self.log.log_end_offset

    @property
    def batch_bytes_max(self) -> int:
        return min(self.log.config.max_message_bytes, self.log.config.segment_size)

    def read(self, start: int | None = None) -> Iterator[StateBatch]:
        """Yields batches like StateLog.read; continues at the new start if deleted records move it."""
        at = self.log.log_start_offset if start is None else start
        while at < self.log.log_end_offset:
            try:
                found = self._where_it_is(functools.partial(_read, at))
            except OffsetOutOfRangeException:
                if at >= self.log.log_start_offset:
                    raise
                at = self.log.log_start_offset
                continue
            headers = found.batches()
            if not headers:
                return
            data, first = found.to_bytes(), headers[0].position
            for header in headers:
                if header.last_offset >= at:  # a read begins with the batch that holds the offset
                    yield _parsed(data, header.position - first, self.place)
            at = headers[-1].next_offset

    def append(self, batch: bytes) -> int:
        return self._where_it_is(functools.partial(self._append, batch))

    def _append(self, batch: bytes, log: UnifiedLog) -> int:
        with log.lock:
            guard = VerificationGuard.SENTINEL
            if batch[LAST_BYTE_OF_ATTRIBUTES] & TRANSACTIONAL_FLAG:
                header = header_at(batch)
                guard = _guard(log, header.producer_id, header.producer_epoch, header.base_sequence)
            return int(log.append_as_leader(batch, log.latest_epoch or 0, COORDINATOR, guard).first_offset)

    def append_marker(self, marker: TransactionMarker, now_ms: int) -> int:
        """Appends a marker like StateLog.append_marker.

        The partition may know a later coordinator epoch, of a broker that had the directory before. Only this process
        writes to it now, so its epoch is taken over and does not refuse the marker.
        """
        return self._where_it_is(functools.partial(_append_marker, marker, now_ms))

    def delete_records(self, before: int) -> None:
        """Deletes the records below an offset. Retention deletes the segments."""
        self._where_it_is(lambda log: log.delete_records(before))

    def flush(self) -> None:
        if self.syncs:
            self.flush_now()

    def flush_now(self) -> None:
        """Syncs once for all callers that wait, whatever the durability is."""
        self._where_it_is(_flush)


def _read(start: int, log: UnifiedLog) -> Records:
    return log.read(start, READ_BYTES).records


def _append_marker(marker: TransactionMarker, now_ms: int, log: UnifiedLog) -> int:
    with log.lock:
        log.settle()
        entry = log.producer_state_manager.last_entry(marker.producer_id)
        if entry is not None and entry.coordinator_epoch > marker.coordinator_epoch:
            marker = marker._replace(coordinator_epoch=entry.coordinator_epoch)
        info = log.append_as_leader(
            marker.batch(now_ms), log.latest_epoch or 0, COORDINATOR, transaction_version=marker.transaction_version
        )
        return int(info.first_offset)


def _guard(log: UnifiedLog, producer_id: int, epoch: int, sequence: int) -> VerificationGuard:
    """Returns a guard: the transaction is verified, because this is the coordinator."""
    if not log.producer_state_manager.producer_state_manager_config.transaction_verification_enabled:
        return VerificationGuard.SENTINEL
    return log.maybe_start_transaction_verification(producer_id, sequence, epoch, True)


def _flush(log: UnifiedLog) -> None:
    log.flush_appended(log.log_end_offset)


class SourceStateLog:
    """A partition of an internal topic in a directory that another process writes. It can only be read."""

    def __init__(self, source: Source, place: str) -> None:
        self._source = source
        self.place = place
        self.epoch = 0
        self.batch_bytes_max = INT_MAX
        self.codec = codecs.NONE

    @property
    def end(self) -> int:
        return self._source.visible_end()

    def read(self, start: int | None = None) -> Iterator[StateBatch]:
        """Yields batches like StateLog.read; skips records that are deleted meanwhile."""
        source = self._source
        source.recheck()
        at = source.log_start_offset if start is None else max(start, source.log_start_offset)
        while (extent := self._extent(at)) is not None:
            position = extent.position
            while position < extent.end:
                data = _whole_batches(extent, position)
                for header in MemoryRecords(data).batches():
                    if header.last_offset >= at:
                        yield _parsed(data, header.position, self.place)
                    at = max(at, header.next_offset)
                    position += header.size
            if extent.next_base is None:
                return
            at = max(at, extent.next_base)

    def _extent(self, at: int) -> Extent | None:
        try:
            return self._source.extent(at)
        except OffsetOutOfRangeException:
            start = self._source.log_start_offset
            if at >= start:
                return None  # it was truncated
            return self._source.extent(start)

    def append(self, batch: bytes) -> int:
        raise self._is_read_only()

    def append_marker(self, marker: TransactionMarker, now_ms: int) -> int:
        raise self._is_read_only()

    def delete_records(self, before: int) -> None:
        raise self._is_read_only()

    def flush(self) -> None:
        pass

    def _is_read_only(self) -> LogReadOnlyException:
        return LogReadOnlyException("the directory belongs to another process and is opened read-only", path=self.place)


def _whole_batches(extent: Extent, position: int) -> bytes:
    """Returns some batches from `position` on, the first one whole. Raises SchemaException if there is none."""
    count = READ_BYTES
    while True:
        data = extent.read(position, count)
        found = MemoryRecords(data)
        try:
            if found.batches():
                return data[: found.valid_bytes]
        except CorruptRecordException as error:
            raise SchemaException(error.message, path=extent.path, position=position) from error
        if len(data) < count:
            raise SchemaException("expected a batch", path=extent.path, position=position)
        count *= 4


class EndsOffsets(Protocol):
    """The methods of `group_offsets.GroupOffsets` that markers call."""

    def end_transaction(self, marker: TransactionMarker) -> None: ...

    def flush(self) -> None: ...


class LogMarkers:
    """The partitions of a store, which transactions end in.

    `log_of` returns the log of a partition, and None only if the topic is deleted. If a partition has no log yet,
    `log_of` creates one; otherwise the first write of a fenced producer would come after the marker that fences it.
    `offsets_of` returns the GroupOffsets of a partition of `__consumer_offsets`, created if missing, and None for any
    other partition.
    """

    def __init__(
        self,
        log_of: Callable[[TopicPartition], UnifiedLog | None],
        offsets_of: Callable[[TopicPartition], EndsOffsets | None],
        clock: Clock,
        *,
        syncs: bool,
    ) -> None:
        self._log_of = log_of
        self._offsets_of = offsets_of
        self._clock = clock
        self.syncs = syncs

    def write(self, partition: TopicPartition, marker: TransactionMarker) -> None:
        offsets = self._offsets_of(partition)
        if offsets is not None:
            offsets.end_transaction(marker)
        else:
            self._where_it_is(partition, functools.partial(_append_marker, marker, self._clock.milliseconds()))

    def flush(self, partitions: Collection[TopicPartition]) -> None:
        """Flushes the partitions: a few in this thread, many in several threads.

        A disk does more syncs in the same time if several are requested at once.
        """
        if not self.syncs:
            return
        if len(partitions) < FEW_SYNCS:
            for each in partitions:
                self._flush(each)
            return
        jobs = {"": [functools.partial(self._flush, each) for each in partitions]}
        for outcome in Jobs().run("transaction-sync", jobs, {"": SYNCING_THREADS})[""]:
            if outcome.error is not None:
                raise outcome.error
            assert outcome.done, partitions

    def _flush(self, partition: TopicPartition, thread: int = 0) -> None:
        offsets = self._offsets_of(partition)
        if offsets is not None:
            offsets.flush()
        else:
            self._where_it_is(partition, _flush)

    def _where_it_is(self, partition: TopicPartition, do: Callable[[UnifiedLog], object]) -> None:
        """Runs `do` on the log of a partition.

        Runs it again if the log has moved to another directory meanwhile, and not at all if its topic is deleted.
        """
        log = self._log_of(partition)
        while log is not None:
            try:
                do(log)
                return
            except KafkaStorageException:
                found = self._log_of(partition)
                if found is log:
                    raise
                log = found
