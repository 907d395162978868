"""What is known of remote segments, kept in `__remote_log_metadata` as a broker keeps it.

A partition's events are in one partition of that topic, chosen by its id and number.  They are read from the beginning
when somebody first asks, and later on what was written since.  An event is durable when
`add...` or `update...` returns, and only then counted: what it allows (deleting a local segment) comes after it.

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
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.message_reader import MessageException
from kafkalog.engine.remote.metadata_cache import RemoteLogMetadataCache
from kafkalog.engine.remote.records import deserialize, serialize
from kafkalog.engine.remote.segment import (
    RemoteLogMetadata,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataSnapshot,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from kafkalog.errors import RemoteResourceNotFoundException

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.state_log import StateLog
    from kafkalog.engine.files import Clock

PARTITIONS = 50  # remote.log.metadata.topic.num.partitions
_log = Lines("kafkalog.remote")


def metadata_partition(partition: TopicIdPartition, count: int = PARTITIONS) -> int:
    """Which partition of `__remote_log_metadata` has a partition's events."""
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
    """RemoteLogMetadataManager: thread-safe."""

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        """An upload begins (COPY_SEGMENT_STARTED); durable when it returns."""

    def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """A segment's state changes; durable when it returns.  RemoteResourceNotFoundException."""

    def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata) -> None:
        """How far the deletion of a partition has come; durable when it returns."""

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The segment that holds an offset of a leader epoch."""

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The first from that of an offset on that has aborted transactions."""

    def highest_offset_for_epoch(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        """The highest offset of an epoch that was copied."""

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> list[RemoteLogSegmentMetadata]:
        """All of them, or those with offsets of one leader epoch, by first offset."""


class _MetadataPartition:
    """One partition of the topic: up to where it was read, and whose events it has."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.log: StateLog | None = None
        self.read_to = 0
        self.caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}
        self.deletions: dict[TopicIdPartition, RemotePartitionDeleteMetadata] = {}


class TopicBasedRemoteLogMetadataManager:
    """A RemoteLogMetadataManager.

    `log_of(number, create)` is a partition of the topic; None where there is none, and it is not to be made.
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
        number = metadata_partition(partition, self._count)
        with self._lock:
            found = self._partitions.get(number)
            if found is None:
                found = self._partitions[number] = _MetadataPartition()
        with found.lock:
            if found.log is None:
                found.log = self._log_of(number, False)
            self._catch_up(found)
        return found

    def _catch_up(self, of: _MetadataPartition) -> None:
        """Takes in what the topic has since it was read last; under its lock."""
        log = of.log
        if log is None or of.read_to >= log.end:
            return
        for batch in log.read(of.read_to or None):
            if batch.base_offset < of.read_to:
                continue
            for record in batch.records:
                try:
                    self._take(of, deserialize(record.value))
                except MessageException as error:
                    _log.error("%s: the event at offset %d is passed over: %s", log.place, record.offset, error)
            of.read_to = batch.next_offset
        for cache in of.caches.values():
            cache.mark_initialized()

    @staticmethod
    def _take(of: _MetadataPartition, event: RemoteLogMetadata) -> None:
        if isinstance(event, RemoteLogSegmentMetadataSnapshot):
            return  # it has no partition, and is of snapshot files alone
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
        self._store(metadata.topic_id_partition, metadata)

    def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        self._store(update.topic_id_partition, update)

    def put_remote_partition_delete_metadata(self, metadata: RemotePartitionDeleteMetadata) -> None:
        self._store(metadata.topic_id_partition, metadata)

    def _store(self, partition: TopicIdPartition, event: RemoteLogMetadata) -> None:
        found = self._of(partition)
        with found.lock:
            if found.log is None:
                found.log = self._log_of(metadata_partition(partition, self._count), True)
                assert found.log is not None, partition
            builder = MemoryRecordsBuilder()
            builder.append(self._clock.milliseconds(), None, serialize(event))
            found.log.append(builder.build())
            found.log.flush()
            self._catch_up(found)

    # --- asking ------------------------------------------------------------------------------------------

    def cache_of(self, partition: TopicIdPartition) -> RemoteLogMetadataCache | None:
        """What is known of a partition; None where it has no events."""
        return self._of(partition).caches.get(partition)

    def _cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """Of a partition that has no events an empty one."""
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
        """Those that have events, in any partition of the topic that there is."""
        found: list[TopicIdPartition] = []
        for number in range(self._count):
            with self._lock:
                of = self._partitions.setdefault(number, _MetadataPartition())
            with of.lock:
                if of.log is None:
                    of.log = self._log_of(number, False)
                self._catch_up(of)
                found += of.caches
        return found

    def deletion_of(self, partition: TopicIdPartition) -> RemotePartitionDeleteMetadata | None:
        """How far its deletion has come; None where it is not being deleted."""
        return self._of(partition).deletions.get(partition)
