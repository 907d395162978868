"""The metadata of remote segments, stored in `__remote_log_metadata` as a broker stores it.

A partition's events are in one partition of that topic, chosen by its id and number.  They are read from the beginning
at the first query, and later from the last position on.  An event is durable when `add...` or `update...` returns, and
has an effect only then.  So what it permits (deleting a local segment) comes after it.  An event whose flush failed
takes effect with the next successful one, because later events were decided without it.

An event that cannot be read may say anything.  As with Kafka, whose consumer stops there, this blocks all partitions
whose events are in that partition of the topic.  Queries for them fail and no event is added, until it can be read.

The order of locks: `writing` of a partition of the topic, then the catalog's and the manager's, then `lock`.  A log
that joins queries this module while it holds the manager's locks.  The first event of a partition creates a log.  So no
call to or for a log happens while `lock` is held.

Source classes: TopicBasedRemoteLogMetadataManager, RemotePartitionMetadataStore, RemoteLogMetadataTopicPartitioner
(4.4.0).
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kafkalog._native.codec.murmur2 import murmur2
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.message_reader import MessageException
from kafkalog.engine.remote.metadata_cache import RemoteLogMetadataCache
from kafkalog.engine.remote.records import deserialize, serialize
from kafkalog.engine.remote.segment import (
    COPY_SEGMENT_STARTED,
    RemoteLogMetadata,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataSnapshot,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from kafkalog.errors import (
    BadBytesError,
    IllegalArgumentException,
    RemoteResourceNotFoundException,
    SchemaException,
)

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.state_log import StateBatch, StateLog
    from kafkalog.engine.files import Clock

PARTITIONS = 50  # remote.log.metadata.topic.num.partitions
_log = Lines("kafkalog.remote")


def metadata_partition(partition: TopicIdPartition, count: int = PARTITIONS) -> int:
    """Returns the number of the partition of `__remote_log_metadata` that holds a partition's events."""
    raw = base64.urlsafe_b64decode(partition.topic_id + "==")
    most, least = int.from_bytes(raw[:8], "big"), int.from_bytes(raw[8:], "big")
    hashed = 1
    for number in (_fold(least), _fold(most), partition.topic_partition.partition):
        hashed = (31 * hashed + number) & 0xFFFFFFFF
    return int(murmur2(hashed.to_bytes(4, "big")) & 0x7FFFFFFF) % count


def _fold(number: int) -> int:
    """Long.hashCode."""
    return (number ^ (number >> 32)) & 0xFFFFFFFF


class RemoteLogMetadataManager(Protocol):
    """RemoteLogMetadataManager.  Thread-safe."""

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Records that an upload begins (COPY_SEGMENT_STARTED); durable when it returns."""

    def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Changes a segment's state; durable when it returns.  Raises RemoteResourceNotFoundException."""

    def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata) -> None:
        """Records the progress of a partition's deletion; durable when it returns."""

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Returns the segment that holds an offset of a leader epoch."""

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Returns the first segment with aborted transactions, from the segment of `offset` on."""

    def highest_offset_for_epoch(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        """Returns the highest offset of an epoch that was copied."""

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> list[RemoteLogSegmentMetadata]:
        """Returns all segments, or those with offsets of one leader epoch, by first offset."""


class _MetadataPartition:
    """One partition of the topic: how far it was read, and the partitions whose events it holds."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.writing = threading.RLock()  # held from an append to its flush
        self.lock = threading.RLock()  # guards the fields that reading fills
        self.log: StateLog | None = None
        self.unflushed: int | None = None  # the first offset that is not durable; set by the writer
        self.read_to = 0
        self.unreadable: SchemaException | None = None
        self.unreadable_at: int | None = None  # the event's offset
        self.caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}
        self.deletions: dict[TopicIdPartition, RemotePartitionDeleteMetadata] = {}


class TopicBasedRemoteLogMetadataManager:
    """A RemoteLogMetadataManager.

    `log_of(number, create)` returns a partition of the topic, or None if it does not exist and must not be created.
    """

    def __init__(
        self, log_of: Callable[[int, bool], StateLog | None], clock: Clock, partitions: int = PARTITIONS
    ) -> None:
        self._log_of = log_of
        self._clock = clock
        self._count = partitions
        self._lock = threading.Lock()
        self._partitions: dict[int, _MetadataPartition] = {}

    def _of(self, partition: TopicIdPartition) -> _MetadataPartition:
        """Returns the topic's partition with a partition's events.  Raises SchemaException if an event there cannot be
        read."""
        found = self._numbered(metadata_partition(partition, self._count))
        if found.unreadable is not None:
            raise SchemaException(found.unreadable.message, path=found.unreadable.path, hint=found.unreadable.hint)
        return found

    def _numbered(self, number: int) -> _MetadataPartition:
        with self._lock:
            found = self._partitions.get(number)
            if found is None:
                found = self._partitions[number] = _MetadataPartition(number)
        if found.log is None:
            found.log = self._log_of(number, False)
        self._catch_up(found)
        return found

    def _catch_up(self, of: _MetadataPartition) -> None:
        """Reads the durable events that were added to the topic since the last read."""
        log = of.log
        if log is None or of.unreadable is not None:
            return
        end = log.end  # first: a batch that is added after `unflushed` is read is after this end
        if (unflushed := of.unflushed) is not None:
            end = min(end, unflushed)
        if of.read_to >= end:
            return
        batches, is_more = log.read(of.read_to or None), True
        while is_more:
            try:
                batch = next(batches, None)
            except BadBytesError as error:
                self._refuse(of, log, of.read_to, error)
                return
            with of.lock:
                is_more = batch is not None and self._take_batch(of, log, batch, end)
        with of.lock:
            for cache in of.caches.values():
                cache.mark_initialized()

    def _take_batch(self, of: _MetadataPartition, log: StateLog, batch: StateBatch, end: int) -> bool:
        """Takes a batch's events, under the lock.  Returns False if the batch is not durable yet."""
        if batch.base_offset >= end:
            return False
        if batch.base_offset >= of.read_to:  # otherwise another thread was faster
            for record in batch.records:
                try:
                    self._take(of, deserialize(record.value))
                except (MessageException, IllegalArgumentException) as error:
                    self._refuse(of, log, record.offset, error)
            of.read_to = batch.next_offset
        return True

    @staticmethod
    def _refuse(
        of: _MetadataPartition, log: StateLog, offset: int, error: BadBytesError | IllegalArgumentException
    ) -> None:
        """Marks the topic's partition as unreadable; later events serve only to find the partitions' names."""
        if of.unreadable is None:
            was_told, of.unreadable_at = of.unreadable_at == offset, offset
            of.unreadable = SchemaException(
                f"the event at offset {offset} of {names.REMOTE_LOG_METADATA_TOPIC}-{of.number} cannot be read: "
                f"{error.message}",
                path=log.place,
                hint="partitions whose events are there are not copied, expired or read in the remote tier; "
                "`kafkalog dump --remote-log-metadata-decoder` shows the event; a later version may have written it",
            )
            if not was_told:
                _log.error("%s", of.unreadable)

    @staticmethod
    def _take(of: _MetadataPartition, event: RemoteLogMetadata) -> None:
        if isinstance(event, RemoteLogSegmentMetadataSnapshot):
            return  # it has no partition, and occurs only in snapshot files
        partition = event.topic_id_partition
        if isinstance(event, RemotePartitionDeleteMetadata):
            of.deletions[partition] = event
            if event.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                del of.deletions[partition]
                of.caches.pop(partition, None)
            return
        cache = of.caches.get(partition)
        if cache is None:
            cache = of.caches[partition] = RemoteLogMetadataCache()
        try:
            if isinstance(event, RemoteLogSegmentMetadata):
                cache.add_copy_in_progress_segment(event)
            else:
                cache.update_remote_log_segment_metadata(event)
        except RemoteResourceNotFoundException as error:
            _log.warning("%s", error)

    # --- writing -----------------------------------------------------------------------------------------

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        if metadata.state is not COPY_SEGMENT_STARTED:
            raise IllegalArgumentException(
                f"Given remoteLogSegmentMetadata should have state as {COPY_SEGMENT_STARTED.name} "
                f"but it contains state as: {metadata.state.name}"
            )
        self._store(metadata.topic_id_partition, metadata)

    def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        if update.state is COPY_SEGMENT_STARTED:
            raise IllegalArgumentException(
                f"Given remoteLogSegmentMetadata should not have the state as: {COPY_SEGMENT_STARTED.name}"
            )
        self._store(update.topic_id_partition, update)

    def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata) -> None:
        self._store(metadata.topic_id_partition, metadata)

    def _store(self, partition: TopicIdPartition, event: RemoteLogMetadata) -> None:
        found = self._of(partition)
        with found.writing:
            if found.log is None:
                found.log = self._log_of(found.number, True)
                assert found.log is not None, partition
            builder = MemoryRecordsBuilder()
            builder.append(self._clock.milliseconds(), None, serialize(event))
            if found.unflushed is None:
                found.unflushed = found.log.end
            found.log.append(builder.build())
            found.log.flush()
            found.unflushed = None
        self._catch_up(found)

    # --- reading -----------------------------------------------------------------------------------------

    def cache_of(self, partition: TopicIdPartition) -> RemoteLogMetadataCache | None:
        """Returns the metadata of a partition; None if it has no events."""
        return self._of(partition).caches.get(partition)

    def _cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """Returns the metadata of a partition; empty if it has no events."""
        return self.cache_of(partition) or RemoteLogMetadataCache()

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._cache(partition).remote_log_segment_metadata(leader_epoch, offset)

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self._cache(partition).next_segment_with_txn_index(leader_epoch, offset)

    def highest_offset_for_epoch(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        return self._cache(partition).highest_offset_for_epoch(leader_epoch)

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> list[RemoteLogSegmentMetadata]:
        cache = self._cache(partition)
        if leader_epoch is None:
            return cache.list_all_remote_log_segments()
        return cache.list_remote_log_segments(leader_epoch)

    def partitions(self) -> list[TopicIdPartition]:
        """Returns the partitions that have events in any partition of the topic, even unreadable ones."""
        found: list[TopicIdPartition] = []
        for number in range(self._count):
            of = self._numbered(number)
            with of.lock:
                found += of.caches
        return found

    def has_events(self, partition: TopicIdPartition) -> bool:
        """Returns whether a partition is one of `partitions`."""
        return partition in self._numbered(metadata_partition(partition, self._count)).caches

    def deletion_of(self, partition: TopicIdPartition) -> RemotePartitionDeleteMetadata | None:
        """Returns the progress of a partition's deletion; None if, as far as its events can be read, there is no
        deletion."""
        return self._numbered(metadata_partition(partition, self._count)).deletions.get(partition)
