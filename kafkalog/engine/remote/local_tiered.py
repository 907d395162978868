"""The layout of Kafka's own LocalTieredStorage: a folder a partition, and in it the files of each segment.

    kafka-tiered-storage/<topic>-<partition>-<topic id>/<base offset>-<segment id>.log
                    (and beside it) .index .timeindex .txnindex .leader_epoch_checkpoint .snapshot

The files are those of the log directory as they are; `.txnindex` is there only where the segment has one.  The
snapshot comes last, so a set that has one is whole.  Nothing else is written: what a bucket alone says of a segment is
its name, its files, and where the next one begins.

Source class: LocalTieredStorage, of Kafka's tests (4.3.1); its `dir` is our address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from kafkalog.engine.format import names
from kafkalog.engine.remote.objects import Objects
from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata, TopicIdPartition
from kafkalog.engine.remote.storage import FoundSegment, IndexType, LogSegmentData, found_partition, found_segments
from kafkalog.errors import CorruptIndexException, RemoteResourceNotFoundException

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
_NEEDED = frozenset({LOG, *SUFFIXES.values()} - {SUFFIXES[IndexType.TRANSACTION]})
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
        # In a folder the puts come in this order: the last one syncs the names of all, before there is the snapshot.
        self.objects.side_by_side([*puts, partial(self.objects.put, epochs_key, lambda: [epochs])])
        self.objects.put_file(key_of(metadata, SUFFIXES[IndexType.PRODUCER_SNAPSHOT]), data.producer_snapshot_index)
        self.objects.check_put(key_of(metadata, LOG), size)
        return None

    def fetch_log_segment(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> bytes:
        return self.objects.get(key_of(metadata, LOG), start, min(end, self.log_size(metadata)))

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        key = key_of(metadata, SUFFIXES[index_type])
        data = self.objects.get(key)
        if index_type is IndexType.TRANSACTION and not data:
            raise CorruptIndexException("found no entry, expected aborted transactions", path=self.objects.shown(key))
        return data

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        suffixes = [SUFFIXES[IndexType.PRODUCER_SNAPSHOT], LOG, *SUFFIXES.values()]  # first what made it whole
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

    # --- what lies there ---------------------------------------------------------------------------------

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
        return found_segments(partition, folder, listed, (LOG, *SUFFIXES.values()), _NEEDED.issubset, txn)

    def metadata_of(self, found: FoundSegment) -> RemoteLogSegmentMetadata | None:
        """Nothing but its names and files is kept of a segment there."""

    def modified_s(self, key: str) -> float:
        return self.objects.modified_s(key)

    def delete_objects(self, keys: Iterable[str]) -> None:
        self.objects.delete(keys, folders=1)

    def close(self) -> None:
        self.objects.close()


__all__ = ["CHUNK_BYTES", "ROOT", "LocalTieredStorage", "folder_of", "key_of"]
