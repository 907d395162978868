"""The remote tier as a log directory to be read: what reads directories reads buckets.

    files = RemoteFiles("s3://bucket/prefix", storage, segments)
    files.list_dir("s3://bucket/prefix/orders-0")   # ['00000000000000000000.index', '00000000000000000000.log', ...]

Each partition is a folder below the address, with the files that a broker would have: logs, indexes, producer
snapshots, the leader epochs, the topic's id.  Views, readers, the toolbox and Spark ask a `Files` for these and do not
know the difference.  A directory that has the newer segments on its own disk is laid over it with `TieredFiles`.

Nothing is written.  What lies there is listed when it is asked for, and again once a listing is `POLL_S` old.
"""

from __future__ import annotations

import base64
import errno
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkalog.engine.files import File, Files, FileStat
from kafkalog.engine.format import names
from kafkalog.engine.format.partition_metadata import CURRENT_VERSION, PartitionMetadata
from kafkalog.engine.remote.chunks import Chunks, RemoteFile
from kafkalog.engine.remote.index_cache import RemoteIndexCache
from kafkalog.engine.remote.read_only import BytesFile
from kafkalog.engine.remote.storage import IndexType
from kafkalog.errors import LogReadOnlyException, RemoteStorageException

if TYPE_CHECKING:
    from kafkalog.engine.files import FileLock
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata, TopicIdPartition
    from kafkalog.engine.remote.storage import RemoteStorageManager

POLL_S = 10.0
_STEM = 20  # digits of a segment's file name
_SEGMENT_FILE = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)")
_INDEXES = {
    "index": IndexType.OFFSET,
    "timeindex": IndexType.TIMESTAMP,
    "txnindex": IndexType.TRANSACTION,
}


class RemoteSegments(Protocol):
    """Which segments are to be read of each partition."""

    def partitions(self) -> Mapping[TopicPartition, TopicIdPartition]:
        """Those that have anything there."""

    def segments(self, partition: TopicIdPartition) -> Sequence[RemoteLogSegmentMetadata]:
        """By base offset, none of them over another: each ends in front of the next one."""


class _Folder(NamedTuple):
    """A partition's folder as it was listed last."""

    partition: TopicIdPartition
    logs: dict[int, RemoteLogSegmentMetadata]  # by base offset
    snapshots: dict[int, RemoteLogSegmentMetadata]  # by the offset behind the segment
    names: list[str]
    listed_ms: int
    due: float


class RemoteFiles(Files):
    """A read-only `Files` below `root`, the address as users write it.  Thread-safe."""

    def __init__(
        self,
        root: str,
        storage: RemoteStorageManager,
        segments: RemoteSegments,
        *,
        indexes: RemoteIndexCache | None = None,
        chunks: Chunks | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        self.root = root.rstrip("/")
        self._lead = self.root + "/"
        self.storage = storage
        self.chunks = Chunks() if chunks is None else chunks
        self.indexes = RemoteIndexCache(storage) if indexes is None else indexes
        self._segments = segments
        self._poll_s = poll_s
        self._lock = threading.Lock()
        self._partitions: tuple[float, dict[str, TopicIdPartition]] | None = None
        self._folders: dict[str, _Folder] = {}

    def owns(self, path: str) -> bool:
        return path == self.root or path.startswith(self._lead)

    # --- what there is -----------------------------------------------------------------------------------

    def _all(self) -> dict[str, TopicIdPartition]:
        held = self._partitions
        if held is None or held[0] < time.monotonic():
            found = {str(short): full for short, full in self._segments.partitions().items()}
            held = self._partitions = time.monotonic() + self._poll_s, found
        return held[1]

    def _folder(self, name: str, path: str) -> _Folder:
        """FileNotFoundError where there is no such partition."""
        held = self._folders.get(name)
        if held is not None and held.due > time.monotonic():
            return held
        partition = self._all().get(name)
        if partition is None:
            raise _missing(path)
        made = self._made(partition, held)
        with self._lock:
            self._folders[name] = made
        return made

    def _made(self, partition: TopicIdPartition, held: _Folder | None) -> _Folder:
        begun = time.monotonic()
        logs = {each.start_offset: each for each in self._segments.segments(partition)}
        now = time.monotonic()
        due = now + max(self._poll_s, 10 * (now - begun) if self._poll_s else 0.0)  # a long list is not always listed
        if held is not None and held.logs == logs:
            return held._replace(due=due)
        listed, snapshots = [names.PARTITION_METADATA_FILE], {}
        for base, each in logs.items():
            prefix = names.filename_prefix_from_offset(base)
            listed += [f"{prefix}.log", f"{prefix}.index", f"{prefix}.timeindex"]
            if not each.is_txn_idx_empty:
                listed.append(f"{prefix}.txnindex")
            if each.end_offset >= base:
                snapshots[each.end_offset + 1] = each
                listed.append(f"{names.filename_prefix_from_offset(each.end_offset + 1)}.snapshot")
        if logs:
            listed.append(names.LEADER_EPOCH_CHECKPOINT_FILE)
        before = -1 if held is None else held.listed_ms
        now_ms = max(int(time.time() * 1000), before + 1)
        return _Folder(partition, logs, snapshots, sorted(listed), now_ms, due)

    def metadata_of(self, path: str) -> RemoteLogSegmentMetadata | None:
        """The segment that a path of a log names; None for any other path."""
        folder, slash, name = path[len(self._lead) :].rpartition("/")
        if name[_STEM:] == names.LOG_FILE_SUFFIX and path.startswith(self._lead) and name[:_STEM].isdecimal():
            return self._folder(folder, path).logs.get(int(name[:_STEM])) if slash else None
        parts = self._parts(path)
        if len(parts) != 2:
            return None
        match = _SEGMENT_FILE.fullmatch(parts[1])
        return None if match is None else self._folder(parts[0], path).logs.get(int(match[1]))

    @staticmethod
    def _has(folder: _Folder, name: str) -> bool:
        """Whether a name is among the folder's."""
        match = _SEGMENT_FILE.fullmatch(name)
        if match is None:
            return name == names.PARTITION_METADATA_FILE or (
                name == names.LEADER_EPOCH_CHECKPOINT_FILE and bool(folder.logs)
            )
        offset = int(match[1])
        if match[2] == "snapshot":
            return offset in folder.snapshots
        metadata = folder.logs.get(offset)
        return metadata is not None and not (match[2] == "txnindex" and metadata.is_txn_idx_empty)

    def _parts(self, path: str) -> list[str]:
        if not self.owns(path):
            raise _missing(path)
        return [part for part in path[len(self.root) :].split("/") if part]

    def look_again(self) -> None:
        """The next question lists anew."""
        self._partitions = None
        with self._lock:
            self._folders = {name: held._replace(due=0.0) for name, held in self._folders.items()}

    # --- reading -----------------------------------------------------------------------------------------

    def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> File:
        if writable or create or exclusive:
            raise self._read_only(path)
        metadata = self.metadata_of(path)
        if metadata is not None and path.endswith(names.LOG_FILE_SUFFIX):
            local = self.storage.open_local(metadata)
            if local is None:
                return RemoteFile(self.chunks, self.storage, metadata, path)
            return _whole(local, metadata.segment_size_in_bytes)
        return BytesFile(path, self.read_bytes(path))

    def read_bytes(self, path: str) -> bytes:
        parts = self._parts(path)
        if parts == [names.CLEAN_SHUTDOWN_FILE]:
            return b""
        if len(parts) != 2:
            raise _missing(path)
        name = parts[1]
        folder = self._folder(parts[0], path)
        if not self._has(folder, name):
            raise _missing(path)
        if name == names.PARTITION_METADATA_FILE:
            return PartitionMetadata(CURRENT_VERSION, folder.partition.topic_id).encode()
        if name == names.LEADER_EPOCH_CHECKPOINT_FILE:
            return self.indexes.get(folder.logs[max(folder.logs)], IndexType.LEADER_EPOCH)
        match = _SEGMENT_FILE.fullmatch(name)
        assert match is not None, name
        offset, suffix = int(match[1]), match[2]
        if suffix == "snapshot":
            return self.indexes.get(folder.snapshots[offset], IndexType.PRODUCER_SNAPSHOT)
        metadata = folder.logs[offset]
        if suffix == "log":
            return self.storage.fetch_log_segment(metadata, 0, self.storage.log_size(metadata))
        return self.indexes.get(metadata, _INDEXES[suffix])

    def exists(self, path: str) -> bool:
        parts = self._parts(path) if self.owns(path) else ["?"] * 3
        try:
            if len(parts) == 1:
                return parts[0] == names.CLEAN_SHUTDOWN_FILE or parts[0] in self._all()
            return not parts or (len(parts) == 2 and self._has(self._folder(parts[0], path), parts[1]))
        except FileNotFoundError:
            return False

    is_readable = exists

    def is_dir(self, path: str) -> bool:
        if not self.owns(path):
            return False
        parts = self._parts(path)
        return not parts or (len(parts) == 1 and parts[0] in self._all())

    def is_link(self, path: str) -> bool:
        return False

    def stat(self, path: str) -> FileStat:
        if path.endswith(names.LOG_FILE_SUFFIX) and (metadata := self.metadata_of(path)) is not None:
            time_ms = max(0, metadata.max_timestamp_ms)
            return FileStat(self.storage.log_size(metadata), time_ms, True, False, _inode(metadata))
        parts = self._parts(path)
        if not parts:
            return FileStat(0, 0, False, True)
        if len(parts) == 1:
            if parts[0] == names.CLEAN_SHUTDOWN_FILE:
                return FileStat(0, 0, True, False)
            return FileStat(0, self._folder(parts[0], path).listed_ms, False, True)
        return FileStat(len(self.read_bytes(path)), 0, True, False)

    def list_dir(self, path: str) -> list[str]:
        parts = self._parts(path)
        if not parts:
            return sorted(self._all())
        if len(parts) == 1:
            return list(self._folder(parts[0], path).names)
        raise _missing(path)

    # --- nobody writes -----------------------------------------------------------------------------------

    def _read_only(self, path: str) -> LogReadOnlyException:
        return LogReadOnlyException("the remote tier is read-only here", path=path)

    def rename(self, src: str, dst: str) -> None:
        raise self._read_only(src)

    def unlink(self, path: str) -> None:
        raise self._read_only(path)

    def mkdirs(self, path: str) -> None:
        raise self._read_only(path)

    def rmdir(self, path: str) -> None:
        raise self._read_only(path)

    def sync_dir(self, path: str) -> None:
        raise self._read_only(path)

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        raise self._read_only(path)

    def lock(self, path: str) -> FileLock:
        raise self._read_only(path)

    def close(self) -> None:
        """Lets go of threads and connections."""
        self.chunks.close()
        self.storage.close()


def _whole(file: File, size: int) -> File:
    """An object that is a file of this machine; RemoteStorageException where it has not as many bytes as were copied
    (-1: nobody knows)."""
    found = file.size()
    if size not in (-1, found):
        file.close()
        raise RemoteStorageException(
            f"found {found} bytes, expected the {size} that were copied",
            path=file.path,
            hint="the object was damaged, or replaced: put the one that was copied in its place",
        )
    return file


def _inode(metadata: RemoteLogSegmentMetadata) -> int:
    """A number that two segments hardly share."""
    return int.from_bytes(base64.urlsafe_b64decode(metadata.remote_log_segment_id.id + "==")[:8], "big")


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
