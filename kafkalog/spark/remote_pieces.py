"""Reads a task's pieces of remote segments: only the planned part of an object.

The plan names the segment of each piece, so a task lists nothing.  An object is read from the piece's first byte to its
last, several requests ahead.  If the object is packed in chunks (compressed, encrypted), it is read from the first
chunk of the piece to the last.  A segment never changes: the object is as planned, or it was deleted.

A plan from names assumes that each segment ends where the next one begins.  After a change of leaders that may be
wrong: the segment may end earlier, or the next one may be from a history that was discarded.  A segment's end and
leader epochs are known once it is read.  `gap_behind` and `is_given_up` then report the problem, so that nothing is
skipped silently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalog.engine.format.checkpoints import LeaderEpochCheckpointFile
from kafkalog.engine.remote.chunks import AHEAD_MAX, Chunks, RemoteFile
from kafkalog.engine.remote.local_tiered import LocalTieredStorage
from kafkalog.engine.remote.read_only import last_position
from kafkalog.engine.remote.storage import FoundSegment, IndexType
from kafkalog.errors import RemoteResourceNotFoundException

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.engine.files import File
    from kafkalog.engine.remote.remote_files import RemoteFiles
    from kafkalog.engine.remote.segment import Epochs, RemoteLogSegmentMetadata
    from kafkalog.engine.remote.storage import RemoteStorageManager


class PieceStorage:
    """The storage for a `RemoteFile` with the bytes [start, end) of one segment's log: a file that begins at
    `origin`."""

    def __init__(self, storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> None:
        self._storage = storage
        self._metadata = metadata
        self._chunk_bytes = max(1, storage.chunk_bytes(metadata))
        any_start_is_good = isinstance(storage, LocalTieredStorage)
        self.origin = start if any_start_is_good else start - start % self._chunk_bytes
        self._size = end - self.origin

    def fetch_log_segment(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> bytes:
        return self._storage.fetch_log_segment(metadata, self.origin + start, self.origin + end)

    def chunk_bytes(self, metadata: RemoteLogSegmentMetadata) -> int:
        return self._chunk_bytes

    def log_size(self, metadata: RemoteLogSegmentMetadata) -> int:
        return self._size


class PieceFile(RemoteFile):
    """A piece, addressed by positions in its segment's file; it ends where the piece does."""

    __slots__ = ("_origin",)

    def __init__(self, chunks: Chunks, part: PieceStorage, metadata: RemoteLogSegmentMetadata, path: str) -> None:
        super().__init__(chunks, part, metadata, path)  # type: ignore[arg-type]
        self._origin = part.origin

    def size(self) -> int:
        return self._size + self._origin

    def _pieces(self, n: int, position: int) -> list[memoryview]:
        return super()._pieces(n, position - self._origin)


class RemotePieces:
    """The pieces of one range, with their memory and threads, which `close` releases."""

    def __init__(self, cache_bytes: int) -> None:
        self._chunks = Chunks(cache_bytes)
        self._parts: dict[tuple[str, int], PieceStorage] = {}

    def open(self, files: RemoteFiles, piece: Any, following: Sequence[Any] = ()) -> File:
        """Opens a piece (`planning.Piece`), and fetches the first bytes of the `following` pieces meanwhile.

        Raises RemoteResourceNotFoundException if its object no longer exists.
        """
        metadata = piece.remote
        storage = files.storage
        local = files.open_local(metadata)
        if local is not None:
            return local
        part = self._part(storage, piece)
        file = PieceFile(self._chunks, part, metadata, piece.path)
        self._ahead(part, metadata, AHEAD_MAX)
        file.pread(1, piece.start)  # raises if the object does not exist
        if following and piece.end - piece.start <= part.chunk_bytes(metadata):
            for each in following:
                self._ahead(self._part(storage, each), each.remote, 1)
        return file

    def _part(self, storage: RemoteStorageManager, piece: Any) -> PieceStorage:
        key = piece.remote.remote_log_segment_id.id, piece.start
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = PieceStorage(storage, piece.remote, piece.start, end_of(storage, piece))
        return found

    def _ahead(self, part: PieceStorage, metadata: RemoteLogSegmentMetadata, most: int) -> None:
        size = part.log_size(metadata)
        count = min(most, -(-size // part.chunk_bytes(metadata)))
        self._chunks.fetch_ahead(part, metadata, range(count), size)  # type: ignore[arg-type]

    def close(self) -> None:
        self._chunks.close()


def end_of(storage: RemoteStorageManager, piece: Any) -> int:
    """Returns the end of a piece, which the planner may have only estimated."""
    end: int = storage.log_size(piece.remote) if piece.is_open else piece.end
    return end


def _said(files: RemoteFiles, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    """Returns the manifest of a listed segment, if it has one."""
    if metadata.segment_leader_epochs or not files.storage.has_manifests:
        return metadata
    segment = metadata.remote_log_segment_id
    found = FoundSegment(segment.topic_id_partition, segment.id, metadata.start_offset, 0, 0, True, "", ())
    return files.storage.metadata_of(found)


def gap_behind(files: RemoteFiles, metadata: RemoteLogSegmentMetadata, last_offset: int, next_base: int) -> bool:
    """Whether a segment with this last offset ends before the next segment begins."""
    if last_offset + 1 >= next_base:
        return False
    said = _said(files, metadata)
    return not said.segment_leader_epochs or said.end_offset + 1 < next_base


def history_of(files: RemoteFiles, last: RemoteLogSegmentMetadata) -> Epochs:
    """Returns the leader epochs of a partition, stored with its last segment; none if that object is lost."""
    try:
        data = files.asked(files.indexes.get, last, IndexType.LEADER_EPOCH)
    except RemoteResourceNotFoundException:
        return ()
    return tuple(LeaderEpochCheckpointFile(last.remote_log_segment_id.id, create=False).decode(data))


def is_given_up(files: RemoteFiles, metadata: RemoteLogSegmentMetadata, next_base: int, history: Epochs) -> bool:
    """Whether a listed segment has other leader epochs before `next_base` than its partition."""
    if metadata.segment_leader_epochs or not history:  # the plan had the epochs already
        return False
    said = _said(files, metadata)
    own = said.segment_leader_epochs or history_of(files, metadata)
    if not own:  # its epochs are lost: read it as if nothing else had its offsets
        return False
    begin = max(metadata.start_offset, history[0][1])  # the history before it is not known any more
    end = min(said.end_offset + 1, next_base) if said.segment_leader_epochs else next_base
    places = {begin, *(start for _, start in (*own, *history) if begin < start)}
    return any(_epoch_at(own, place) != _epoch_at(history, place) for place in places if place < end)


def _epoch_at(epochs: Epochs, offset: int) -> int:
    return max((epoch for epoch, start in epochs if start <= offset), default=-1)


def indexed_position(files: RemoteFiles, metadata: RemoteLogSegmentMetadata) -> int:
    """Returns the last position in a remote segment's offset index; -1 if there is no index, or it is lost."""
    try:
        data = files.indexes.get(metadata, IndexType.OFFSET)
    except RemoteResourceNotFoundException:
        return -1
    return last_position(data) if data else -1
