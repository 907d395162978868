"""The remote part of one log for its readers: a read-only view of the segments that its leader epochs lead to.

The segments appear as a directory of a `RemoteFiles`, and are read by the code that reads directories.  The view is
created at the first read.  It is refreshed when a reader requests an offset that it lacks: the local start has moved
on.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkalog._native.codec import batches as native
from kafkalog.engine.format.records import in_parts
from kafkalog.engine.log.tier import TierSegment
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.remote.lineage import filtered_epochs, history, is_within_leader_epochs
from kafkalog.engine.remote.remote_files import RemoteFiles
from kafkalog.engine.remote.segment import COPY_SEGMENT_FINISHED
from kafkalog.engine.segment.scan import LogScan
from kafkalog.engine.segment.types import TimestampAndOffset
from kafkalog.errors import KafkalogError, OffsetOutOfRangeException, RemoteResourceNotFoundException

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.log.unified_log import UnifiedLog
    from kafkalog.engine.remote.chunks import Chunks
    from kafkalog.engine.remote.index_cache import RemoteIndexCache
    from kafkalog.engine.remote.metadata_manager import RemoteLogMetadataManager
    from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata, TopicIdPartition
    from kafkalog.engine.remote.storage import RemoteStorageManager
    from kafkalog.engine.segment.reader import Extent
    from kafkalog.engine.segment.transaction_index import AbortedTxn


class PartitionTier:
    """The `Tier` of one log.  Thread-safe."""

    has_metadata = True

    # More than eight parameters: the objects that the partitions of one tier share.
    def __init__(
        self,
        partition: TopicIdPartition,
        log: UnifiedLog,
        metadata: RemoteLogMetadataManager,
        storage: RemoteStorageManager,
        indexes: RemoteIndexCache,
        chunks: Chunks,
        place: str,
    ) -> None:
        self._partition = partition
        self._log = log
        self._metadata = metadata
        self._storage = storage
        self._indexes = indexes
        self._chunks = chunks
        self._files = RemoteFiles(place, storage, self, indexes=indexes, chunks=chunks, poll_s=math.inf)
        self._lock = threading.RLock()
        self._view: PartitionView | None = None

    # --- RemoteSegments, for RemoteFiles -------------------------------------------------------------------

    def partitions(self) -> Mapping[TopicPartition, TopicIdPartition]:
        return {self._partition.topic_partition: self._partition}

    def segments(self, partition: TopicIdPartition) -> Sequence[RemoteLogSegmentMetadata]:
        log, segments = self._log, self._metadata.list_remote_log_segments(self._partition)
        found = history(segments, log.leader_epoch_cache.entries, log.log_start_offset, self._end())
        if found and found[-1].is_missing:  # the disk has what follows
            found.pop()
        return found

    def _end(self) -> int:
        """Returns the offset after everything in the tier, even if the disk has some of it too.

        A power loss may have left the log of a segment that was about to be deleted, but not its transaction index.
        """
        return max(self._log.local_log_start_offset, self._log.highest_offset_in_remote_storage + 1)

    # --- Tier ------------------------------------------------------------------------------------------------

    def _seen(self, up_to: int) -> PartitionView:
        """Returns the view, refreshed if it does not reach to an offset."""
        with self._lock:
            view = self._view
            if view is None:
                view = self._view = PartitionView(self._files.root, self._partition.topic_partition, files=self._files)
            elif view.log_end_offset < up_to or view.log_start_offset > up_to:
                self._files.look_again()
                view.refresh()
            return view

    def extent(self, offset: int) -> Extent | None:
        log = self._log
        view = self._seen(offset + 1)
        try:
            found = view.extent(offset)
        except (OffsetOutOfRangeException, RemoteResourceNotFoundException):
            self._forget()
            view = self._seen(offset + 1)
            try:
                found = view.extent(offset)
            except OffsetOutOfRangeException:
                if self._holding(offset) is None:
                    raise
                found = None
        if found is None:
            epoch = log.leader_epoch_cache.epoch_for_offset(offset)
            if self._holding(offset) is not None:
                try:
                    view.check_end()  # an unreadable end is not a hole
                except KafkalogError:
                    for each in self.segments(self._partition):  # the next reader fetches them again
                        self._chunks.forget(each.remote_log_segment_id.id)
                    self._forget()
                    raise
                return None  # power loss or compaction removed the segment's end, but not what follows it
            raise OffsetOutOfRangeException(
                f"Received request for offset {offset} for leader epoch "
                f"{'NOT AVAILABLE' if epoch is None else epoch} and partition {self._partition.topic_partition} which "
                "does not exist in remote tier."
            )
        if found.next_base is None:
            # The end of the segment that was found, which may be after its last record. The view's end may differ:
            # another thread may have refreshed the view since.
            path = f"{view.directory}/{found.segment_base:020d}.log"
            held = self._holding(offset)
            # another of several segments with the offset counts
            if held is None or held.start_offset != found.segment_base:
                held = self._files.metadata_of(path)
            found.next_base = offset + 1 if held is None else held.end_offset + 1
        local_start = log.local_log_start_offset
        if offset < local_start < found.next_base:  # the disk has priority: the rest may have been abandoned
            found.next_base, found.may_overlap = local_start, True
        return found

    def _holding(self, offset: int) -> RemoteLogSegmentMetadata | None:
        epoch = self._log.leader_epoch_cache.epoch_for_offset(offset)
        return None if epoch is None else self._metadata.remote_log_segment_metadata(self._partition, epoch, offset)

    def held(self) -> Sequence[TierSegment]:
        return [
            TierSegment(each.start_offset, each.end_offset, each.segment_size_in_bytes, each.max_timestamp_ms)
            for each in self.segments(self._partition)
            if not each.is_missing
        ]

    def has(self, extent: Extent) -> bool:
        view = self._view
        return view is not None and extent.owner in view.segments

    def owns(self, extent: Extent) -> bool:
        return extent.path.startswith(self._files.root) or self.has(extent)

    def check(self) -> None:
        self._metadata.list_remote_log_segments(self._partition)

    def aborted_in(self, first_offset: int, last_offset: int) -> Sequence[AbortedTxn]:
        # The transaction may have ended anywhere in the tier; what the tier has after its end may have been abandoned.
        end = self._end()
        found = self._seen(max(first_offset + 1, end)).aborted_in(first_offset, last_offset)
        return [each for each in found if each.last_offset < end]

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        return self._seen(self._log.local_log_start_offset).offset_for_time(timestamp_ms, self._log.log_start_offset)

    def find_offset_by_timestamp(self, timestamp_ms: int, starting_offset: int) -> TimestampAndOffset | None:
        """Searches the first segment that reaches the time, as a broker does, which may be a local segment, too."""
        log = self._log
        entries = log.leader_epoch_cache.entries
        epochs = filtered_epochs([(entry.epoch, entry.start_offset) for entry in entries])
        at = log.leader_epoch_cache.epoch_for_offset(starting_offset)
        for epoch in [entry.epoch for entry in entries if at is not None and entry.epoch >= at]:
            for each in self._metadata.list_remote_log_segments(self._partition, epoch):
                if (
                    each.max_timestamp_ms < timestamp_ms
                    or each.end_offset < starting_offset
                    or each.state is not COPY_SEGMENT_FINISHED
                    or not is_within_leader_epochs(each, log.log_end_offset, epochs)
                ):
                    continue
                segments = log.log_segments()
                if not segments or each.start_offset < segments[0].base_offset:
                    return self._lookup(each, timestamp_ms, starting_offset)
                limit = log.config.max_decompressed_message_bytes
                for segment in segments:
                    if segment.largest_timestamp >= timestamp_ms:
                        return segment.find_offset_by_timestamp(timestamp_ms, starting_offset, limit)
        return None

    def _lookup(
        self, metadata: RemoteLogSegmentMetadata, timestamp_ms: int, starting_offset: int
    ) -> TimestampAndOffset | None:
        view = self._seen(metadata.end_offset + 1)
        extent = view.extent(max(metadata.start_offset, starting_offset, view.log_start_offset))
        path = f"{view.directory}/{metadata.start_offset:020d}.log"
        position = extent.position if extent is not None and extent.segment_base == metadata.start_offset else 0
        file = self._files.opened(metadata, path)  # the path may name a later segment in its place
        with file:
            for piece in LogScan(file, position, file.size()):
                for row in piece.table:
                    if row["max_timestamp"] < timestamp_ms or row["last_offset"] < starting_offset:
                        continue
                    header = native.header_from_row(row)
                    at = header.position - piece.position
                    for part in in_parts(piece.data, header, at=at, max_bytes=1 << 30):
                        for record in part:
                            if record.timestamp >= timestamp_ms and record.offset >= starting_offset:
                                epoch = header.leader_epoch if header.leader_epoch >= 0 else None
                                return TimestampAndOffset(record.timestamp, record.offset, epoch)
        return None

    def _forget(self) -> None:
        with self._lock:
            view, self._view = self._view, None
            self._files.look_again()
        if view is not None:
            view.close()

    def rest(self) -> None:
        """Closes the files until they are used again.  It does not take the lock, which a thread may hold while it
        waits."""
        view = self._view
        if view is not None:
            view.rest()

    def close(self) -> None:
        self._forget()
