"""The segments of one partition in the remote tier; finds the one that holds an offset of a leader epoch.

It receives the events of `__remote_log_metadata` in their order, or segments that were found by listing objects.  Some
segments are known but not referenced, so no offset leads to them.  These are segments that a later upload covers
completely, and segments that are being uploaded or deleted.  Thread-safe.  Source classes: RemoteLogMetadataCache,
RemoteLogLeaderEpochState (4.4.0).
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping

from kafkalog.engine.files.lines import Lines
from kafkalog.engine.remote.segment import (
    COPY_SEGMENT_STARTED,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    is_valid_transition,
)
from kafkalog.errors import IllegalArgumentException, RemoteResourceNotFoundException

_log = Lines("kafkalog.remote")


class RemoteLogLeaderEpochState:
    """The segments that hold offsets of one leader epoch; used under its cache's lock."""

    __slots__ = ("_by_offset", "highest_log_offset", "unreferenced_segment_ids")

    def __init__(self) -> None:
        self._by_offset: list[tuple[int, RemoteLogSegmentId]] = []  # by first offset, strictly ascending
        self.unreferenced_segment_ids: dict[RemoteLogSegmentId, None] = {}
        self.highest_log_offset: int | None = None

    def copy_started(self, segment_id: RemoteLogSegmentId) -> None:
        self.unreferenced_segment_ids[segment_id] = None

    def copy_finished(self, start_offset: int, segment_id: RemoteLogSegmentId, end_offset: int) -> None:
        """Adds a segment; `end_offset` is its last offset of this epoch."""
        held, highest = self._by_offset, self.highest_log_offset
        while held and held[-1][0] >= start_offset and highest is not None and highest <= end_offset:
            self.unreferenced_segment_ids[held.pop()[1]] = None
        at = bisect_left(held, start_offset, key=_first)
        if at < len(held) and held[at][0] == start_offset:
            held[at] = start_offset, segment_id
        else:
            held.insert(at, (start_offset, segment_id))
        self.unreferenced_segment_ids.pop(segment_id, None)
        if highest is None or end_offset > highest:
            self.highest_log_offset = end_offset

    def delete_started(self, start_offset: int, segment_id: RemoteLogSegmentId) -> None:
        at = bisect_left(self._by_offset, start_offset, key=_first)
        if self._by_offset[at : at + 1] == [(start_offset, segment_id)]:
            del self._by_offset[at]
        self.unreferenced_segment_ids[segment_id] = None

    def delete_finished(self, segment_id: RemoteLogSegmentId) -> None:
        self.unreferenced_segment_ids.pop(segment_id, None)

    def floor_entry(self, offset: int) -> RemoteLogSegmentId | None:
        at = bisect_right(self._by_offset, offset, key=_first)
        return self._by_offset[at - 1][1] if at else None

    def referenced_segment_ids(self) -> list[RemoteLogSegmentId]:
        return [segment_id for _, segment_id in self._by_offset]


class RemoteLogMetadataCache:
    """RemoteLogMetadataCache: the remote segments of one partition."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_id: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        self._by_epoch: dict[int, RemoteLogLeaderEpochState] = {}
        self.is_initialized = False  # until then, the beginning of the events may be missing

    def mark_initialized(self) -> None:
        """Notes that the cache has received all existing events."""
        self.is_initialized = True

    # --- changing --------------------------------------------------------------------------------------

    def add_copy_in_progress_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Records that an upload has begun.  Here and in the other methods, an invalid transition is logged and
        dropped."""
        if metadata.state is not COPY_SEGMENT_STARTED:
            raise IllegalArgumentException(
                f"Given remoteLogSegmentMetadata:{metadata} should have state as {COPY_SEGMENT_STARTED.name} but it "
                f"contains state as: {metadata.state.name}"
            )
        segment_id = metadata.remote_log_segment_id
        with self._lock:
            existing = self._by_id.get(segment_id)
            if not _may_become(None if existing is None else existing.state, metadata.state, segment_id):
                return
            for epoch, _ in metadata.segment_leader_epochs:
                self._epoch(epoch).copy_started(segment_id)
            self._by_id[segment_id] = metadata

    def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Changes a segment's state.  Raises RemoteResourceNotFoundException if the segment is unknown."""
        segment_id = update.remote_log_segment_id
        with self._lock:
            existing = self._by_id.get(segment_id)
            if existing is None:
                if not self.is_initialized:  # the event that added it was removed from the topic
                    return
                raise RemoteResourceNotFoundException(f"No remote log segment metadata found for :{segment_id}")
            if not _may_become(existing.state, update.state, segment_id):
                return
            match update.state:
                case RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                    self._copy_finished(existing.create_with_updates(update))
                case RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
                    self._delete_started(existing.create_with_updates(update))
                case RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
                    for epoch, _ in existing.segment_leader_epochs:
                        self._epoch(epoch).delete_finished(segment_id)
                    del self._by_id[segment_id]
                case _:
                    raise IllegalArgumentException(
                        f"metadataUpdate: {update} with state {update.state.name} can not be updated"
                    )

    def take(self, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        """Adds segments with their states, in the order of their offsets: from a snapshot, or from listed objects."""
        with self._lock:
            for metadata in segments:
                match metadata.state:
                    case RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                        self._copy_finished(metadata)
                    case RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
                        self._delete_started(metadata)
                    case RemoteLogSegmentState.COPY_SEGMENT_STARTED:
                        for epoch, _ in metadata.segment_leader_epochs:
                            self._epoch(epoch).copy_started(metadata.remote_log_segment_id)
                        self._by_id[metadata.remote_log_segment_id] = metadata
                    case _:
                        pass  # it is deleted

    def _copy_finished(self, metadata: RemoteLogSegmentMetadata) -> None:
        for epoch, start in metadata.segment_leader_epochs:
            end = metadata.highest_offset_of(epoch)
            self._epoch(epoch).copy_finished(start, metadata.remote_log_segment_id, end)
        self._by_id[metadata.remote_log_segment_id] = metadata

    def _delete_started(self, metadata: RemoteLogSegmentMetadata) -> None:
        for epoch, start in metadata.segment_leader_epochs:
            self._epoch(epoch).delete_started(start, metadata.remote_log_segment_id)
        self._by_id[metadata.remote_log_segment_id] = metadata

    def _epoch(self, epoch: int) -> RemoteLogLeaderEpochState:
        found = self._by_epoch.get(epoch)
        if found is None:
            found = self._by_epoch[epoch] = RemoteLogLeaderEpochState()
        return found

    # --- reading ---------------------------------------------------------------------------------------

    def remote_log_segment_metadata(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """Returns the segment that holds an offset written in a leader epoch; None if there is none."""
        with self._lock:
            state = self._by_epoch.get(leader_epoch)
            segment_id = None if state is None else state.floor_entry(offset)
            found = None if segment_id is None else self._by_id.get(segment_id)
        return None if found is None or offset > found.highest_offset_of(leader_epoch) else found

    def next_segment_with_txn_index(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """Returns the first segment with aborted transactions, from the segment of `offset` on; stops at a gap."""
        found = self.remote_log_segment_metadata(leader_epoch, offset)
        while found is not None and found.is_txn_idx_empty:
            behind = found.end_offset + 1
            if behind <= offset:  # its epochs continue after its end, as no real segment's do: Kafka loops forever
                return None
            found, offset = self.remote_log_segment_metadata(leader_epoch, behind), behind
        return found

    def highest_offset_for_epoch(self, leader_epoch: int) -> int | None:
        """Returns the highest offset of an epoch that was ever copied; None if nothing was."""
        state = self._by_epoch.get(leader_epoch)
        return None if state is None else state.highest_log_offset

    def list_all_remote_log_segments(self) -> list[RemoteLogSegmentMetadata]:
        """Returns the segments of all epochs and in any state, in the order in which they became known."""
        with self._lock:
            return list(self._by_id.values())

    def list_remote_log_segments(self, leader_epoch: int) -> list[RemoteLogSegmentMetadata]:
        """Returns the segments with offsets of an epoch, by first offset, including those that are being copied or
        deleted.

        Raises RemoteResourceNotFoundException if a referenced segment is not known.
        """
        with self._lock:
            state = self._by_epoch.get(leader_epoch)
            if state is None:
                return []
            found = _known(state.referenced_segment_ids(), self._by_id)
            if state.unreferenced_segment_ids:
                found += _known(state.unreferenced_segment_ids, self._by_id)
                found.sort(key=_start_offset)
            return found

    def __iter__(self) -> Iterator[RemoteLogSegmentMetadata]:
        return iter(self.list_all_remote_log_segments())


def _first(entry: tuple[int, RemoteLogSegmentId]) -> int:
    return entry[0]


def _start_offset(metadata: RemoteLogSegmentMetadata) -> int:
    return metadata.start_offset


def _known(
    ids: Iterable[RemoteLogSegmentId], by_id: Mapping[RemoteLogSegmentId, RemoteLogSegmentMetadata]
) -> list[RemoteLogSegmentMetadata]:
    found = []
    for segment_id in ids:
        metadata = by_id.get(segment_id)
        if metadata is None:
            raise RemoteResourceNotFoundException(f"No remote log segment metadata found for :{segment_id}")
        found.append(metadata)
    return found


def _may_become(
    before: RemoteLogSegmentState | None, after: RemoteLogSegmentState, segment_id: RemoteLogSegmentId
) -> bool:
    if is_valid_transition(before, after):
        return True
    shown = None if before is None else before.name
    _log.error("%s cannot change from state %s to %s: the event is dropped", segment_id, shown, after.name)
    return False
