"""The layout of Kafka's LocalTieredStorage: a directory a partition, which holds the files of each segment.

    kafka-tiered-storage/<topic>-<partition>-<topic id>/<base offset>-<segment id>.log
                    (and next to it) .index .timeindex .txnindex .leader_epoch_checkpoint .snapshot

The files are copies of those in the log directory; `.txnindex` exists only if the segment has one.  The snapshot is
uploaded last and deleted first.  A set that has it and the log is whole; any other missing file was lost.  There is no
metadata: the end of a segment comes from its last batches, and its leaders from the epochs up to its end.

Source class: LocalTieredStorage, of Kafka's tests (4.3.1); its `dir` is our address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from kafkalog._limits import LONG_MAX
from kafkalog.engine.format import names
from kafkalog.engine.format.checkpoints import LeaderEpochCheckpointFile
from kafkalog.engine.format.index_entries import OFFSET_ENTRY
from kafkalog.engine.log.leader_epochs import entries_in_range
from kafkalog.engine.remote.objects import Objects
from kafkalog.engine.remote.read_only import ReadOnlyFile, last_offset_of
from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata, TopicIdPartition, epochs_of
from kafkalog.engine.remote.storage import (
    FoundSegment,
    IndexType,
    LogSegmentData,
    found_partition,
    found_segments,
    tell_once,
)
from kafkalog.errors import (
    CorruptIndexException,
    KafkalogError,
    RemoteResourceNotFoundException,
    RetriableRemoteStorageException,
)

if TYPE_CHECKING:
    from kafkalog.engine.files import File

ROOT = "kafka-tiered-storage"
LOG = ".log"
SUFFIXES = {
    IndexType.OFFSET: ".index",
    IndexType.TIMESTAMP: ".timeindex",
    IndexType.TRANSACTION: ".txnindex",
    IndexType.LEADER_EPOCH: ".leader_epoch_checkpoint",
    IndexType.PRODUCER_SNAPSHOT: ".snapshot",
}
_LAST = SUFFIXES[IndexType.PRODUCER_SNAPSHOT]
_FOLDER = re.compile(r"([a-zA-Z0-9._-]+)-([0-9]{1,10})-([a-zA-Z0-9_-]{22})")
CHUNK_BYTES = 4 << 20


def folder_of(partition: TopicIdPartition) -> str:
    topic, number = partition.topic_partition
    return f"{ROOT}/{topic}-{number}-{partition.topic_id}"


def key_of(metadata: RemoteLogSegmentMetadata, suffix: str) -> str:
    segment = metadata.remote_log_segment_id
    prefix = names.filename_prefix_from_offset(metadata.start_offset)
    return f"{folder_of(segment.topic_id_partition)}/{prefix}-{segment.id}{suffix}"


class LocalTieredStorage:
    """A RemoteStorageManager."""

    layout: ClassVar[str] = "local-tiered"
    has_manifests: ClassVar[bool] = False

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        put, epochs = partial(self.objects.put_file, syncs_name=False), data.leader_epoch_index
        size = put(key_of(metadata, LOG), data.log_segment, metadata.segment_size_in_bytes)
        indexes = {IndexType.OFFSET: data.offset_index, IndexType.TIMESTAMP: data.time_index}
        if data.transaction_index is not None:
            indexes[IndexType.TRANSACTION] = data.transaction_index
        puts = [partial(put, key_of(metadata, SUFFIXES[kind]), path) for kind, path in indexes.items()]
        epochs_key = key_of(metadata, SUFFIXES[IndexType.LEADER_EPOCH])
        # In a directory, the puts run in this order: the last one syncs all names before the snapshot exists.
        self.objects.side_by_side([*puts, partial(self.objects.put, epochs_key, lambda: [epochs])])
        self.objects.put_file(key_of(metadata, _LAST), data.producer_snapshot_index)
        self.objects.check_put(key_of(metadata, LOG), size)
        return None

    def fetch_log_segment(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> bytes:
        return self.objects.get(key_of(metadata, LOG), start, min(end, self.log_size(metadata)))

    def log_parts(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> Iterator[bytes]:
        return self.objects.each_part(key_of(metadata, LOG), start, end)

    def object_bytes(self, found: FoundSegment, metadata: RemoteLogSegmentMetadata | None) -> int | None:
        return None if metadata is None or metadata.segment_size_in_bytes < 0 else metadata.segment_size_in_bytes

    def log_bytes_in(self, found: FoundSegment, metadata: RemoteLogSegmentMetadata) -> int:
        return min(found.object_bytes, self.log_size(metadata))

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        key = key_of(metadata, SUFFIXES[index_type])
        data = self.objects.get(key)
        if index_type is IndexType.TRANSACTION and not data:
            raise CorruptIndexException(
                "the index is empty; expected aborted transactions", path=self.objects.shown(key)
            )
        return data

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        suffixes = [_LAST, LOG, *SUFFIXES.values()]  # first the snapshot, which makes the segment whole
        self.delete_objects(key_of(metadata, suffix) for suffix in dict.fromkeys(suffixes))

    def open_local(self, metadata: RemoteLogSegmentMetadata) -> File | None:
        return self.objects.open_local(key_of(metadata, LOG))

    def log_size(self, metadata: RemoteLogSegmentMetadata) -> int:
        size = metadata.segment_size_in_bytes
        return size if size >= 0 else self.objects.size(key_of(metadata, LOG))

    def knows_log_size(self, metadata: RemoteLogSegmentMetadata) -> bool:
        return metadata.segment_size_in_bytes >= 0

    def shown_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> str:
        return self.objects.shown(key_of(metadata, SUFFIXES[index_type]))

    def chunk_bytes(self, metadata: RemoteLogSegmentMetadata) -> int:
        return CHUNK_BYTES

    def is_there(self, metadata: RemoteLogSegmentMetadata) -> bool:
        try:
            self.objects.size(key_of(metadata, LOG))
        except RemoteResourceNotFoundException:
            return False
        return True

    # --- listing -----------------------------------------------------------------------------------------

    def partitions(self) -> list[TopicIdPartition]:
        found = []
        for folder in self.objects.folders(ROOT):
            match = _FOLDER.fullmatch(folder.rpartition("/")[2])
            if match is not None:
                topic, number, topic_id = match.groups()
                partition = found_partition(topic, number, topic_id, self.objects.shown(folder))
                found += [] if partition is None else [partition]
        return sorted(found, key=lambda each: (each.topic_partition, each.topic_id))

    def segments_of(self, partition: TopicIdPartition) -> list[FoundSegment]:
        folder, txn = folder_of(partition), SUFFIXES[IndexType.TRANSACTION]
        listed = self.objects.each_within(folder)
        return found_segments(partition, folder, listed, (LOG, *SUFFIXES.values()), _LAST, txn)

    def metadata_of(self, found: FoundSegment) -> RemoteLogSegmentMetadata:
        """Returns a segment's metadata from small requests, usually three.

        They read the leader epochs, the offset index's last entry, and the log from there.
        """
        listed = found.listed()
        end, epochs = self._end_of(listed, found.index_bytes), []
        try:
            checkpoint = LeaderEpochCheckpointFile(self.shown_index(listed, IndexType.LEADER_EPOCH), create=False)
            entries = checkpoint.decode(self.fetch_index(listed, IndexType.LEADER_EPOCH))
            epochs = entries_in_range(entries, found.base_offset, LONG_MAX if end is None else end + 1)
        except RetriableRemoteStorageException:
            raise
        except KafkalogError as error:
            is_lost = SUFFIXES[IndexType.LEADER_EPOCH] in found.lacks
            if isinstance(error, RemoteResourceNotFoundException) and not is_lost:  # it was deleted meanwhile
                raise
            tell_once(f"the leader epochs of segment {found.id} cannot be read: {error}")
        return listed._replace(end_offset=-1 if end is None else end, segment_leader_epochs=epochs_of(epochs))

    def _end_of(self, listed: RemoteLogSegmentMetadata, index_bytes: int) -> int | None:
        """Returns the last offset of a segment; None if its log is damaged there."""
        entries, position = index_bytes // OFFSET_ENTRY.size * OFFSET_ENTRY.size, 0
        if entries:
            key = key_of(listed, SUFFIXES[IndexType.OFFSET])
            position = OFFSET_ENTRY.unpack(self.objects.get(key, entries - OFFSET_ENTRY.size, entries))[1]
        if position < 0:
            what = f"its last entry has the position {position}, which is not in the log; the log is read without it"
            tell_once(f"{self.shown_index(listed, IndexType.OFFSET)}: {what}")
            position = 0
        with self.open_local(listed) or _LogObject(self, listed) as file:
            end = last_offset_of(file, position) if position <= file.size() else None
        if end is None or end < listed.start_offset:
            tell_once(
                f"{self.objects.shown(key_of(listed, LOG))}: its last offset is not known, because its end is damaged"
            )
            return None
        return end

    def modified_s(self, key: str) -> float:
        return self.objects.modified_s(key)

    def delete_objects(self, keys: Iterable[str]) -> None:
        self.objects.delete(keys, folders=1)

    def close(self) -> None:
        self.objects.close()


class _LogObject(ReadOnlyFile):
    """A segment's log; each read is a request."""

    __slots__ = ("_listed", "_storage")

    def __init__(self, storage: LocalTieredStorage, listed: RemoteLogSegmentMetadata) -> None:
        super().__init__(storage.objects.shown(key_of(listed, LOG)))
        self._storage, self._listed = storage, listed

    def size(self) -> int:
        return self._storage.log_size(self._listed)

    def pread(self, n: int, position: int) -> bytes:
        return self._storage.fetch_log_segment(self._listed, position, position + n)


__all__ = ["CHUNK_BYTES", "ROOT", "LocalTieredStorage", "folder_of", "key_of"]
