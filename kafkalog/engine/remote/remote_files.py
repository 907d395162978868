"""Presents the remote tier as a log directory, so that code that reads directories can read buckets.

    files = RemoteFiles("s3://bucket/prefix", storage, segments)
    files.list_dir("s3://bucket/prefix/orders-0")   # ['00000000000000000000.index', '00000000000000000000.log', ...]

Each partition is a directory below the address, with the files that a broker would have: logs, indexes, producer
snapshots, the leader epochs, the topic id.  Views, readers, the toolbox and Spark read them through `Files` and see no
difference.  `TieredFiles` combines it with a directory that has the newer segments on disk.

It is read-only.  Objects are listed when they are needed, and again once a listing is older than `POLL_S`, or the
disk's first segment begins after everything that was listed.

Offsets that are known to be missing, between two segments or before the disk, appear as a segment whose log cannot be
opened.  A reader that reaches them gets an error and cannot skip them silently.
"""

from __future__ import annotations

import base64
import errno
import os
import re
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from kafkalog._limits import LONG_MAX
from kafkalog.engine.files import File, FileStat
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names
from kafkalog.engine.format.index_entries import OFFSET_ENTRIES, TIME_ENTRIES, TXN_ENTRIES
from kafkalog.engine.format.partition_metadata import CURRENT_VERSION, PartitionMetadata
from kafkalog.engine.remote.chunks import Chunks, RemoteFile
from kafkalog.engine.remote.index_cache import RemoteIndexCache
from kafkalog.engine.remote.read_only import BytesFile, ReadOnlyFiles, last_offset_of, last_position
from kafkalog.engine.remote.segment import NOBODY, RemoteLogSegmentMetadata, missing
from kafkalog.engine.remote.storage import IndexType
from kafkalog.engine.segment.scan import LogScan
from kafkalog.errors import (
    CorruptIndexException,
    KafkalogError,
    RemoteResourceNotFoundException,
    RemoteStorageException,
    SchemaException,
)

if TYPE_CHECKING:
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.remote.segment import TopicIdPartition
    from kafkalog.engine.remote.storage import RemoteStorageManager

T = TypeVar("T")

POLL_S = 10.0
COARSE_MS = 2000  # a file system's clock may be late by this much
_STEM = 20  # digits in a segment's file name
_SEGMENT_FILE = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)")
_INDEXES = {
    "index": IndexType.OFFSET,
    "timeindex": IndexType.TIMESTAMP,
    "txnindex": IndexType.TRANSACTION,
}


_BY_NAMES = (
    ", by the segments' names: a segment of another leader that begins before them may have them; to read that one, "
    "open the log directory that has the metadata together with the tier"
)
_log = Lines("kafkalog.remote")


class RemoteSegments(Protocol):
    """Provides the segments of each partition.

    `has_metadata` is whether they come from metadata, and not only from listed objects.
    """

    @property
    def has_metadata(self) -> bool: ...

    def partitions(self) -> Mapping[TopicPartition, TopicIdPartition]:
        """Returns the partitions that have anything there."""

    def segments(self, partition: TopicIdPartition) -> Sequence[RemoteLogSegmentMetadata]:
        """Returns the segments of a partition by base offset.

        A segment may extend beyond the begin of the next one, with the same records, or with an abandoned history.  A
        reader switches to the next segment there.  A `missing` placeholder stands for offsets that no segment has.
        """


def _is_damaged(metadata: RemoteLogSegmentMetadata) -> bool:
    return metadata.is_missing and metadata.remote_log_segment_id.id != NOBODY


def tell_gap(partition: TopicPartition, first: int, last: int, why: str = "") -> None:
    """Logs a gap in a bucket that is read without metadata."""
    _log.warning("%s: no segment of the remote tier has the offsets %d to %d%s", partition, first, last, why)


def check_there(metadata: RemoteLogSegmentMetadata, path: str) -> None:
    """Raises RemoteResourceNotFoundException for missing offsets, SchemaException if they may be missing."""
    if metadata.is_missing:
        if metadata.custom_metadata is not None:
            raise SchemaException(metadata.custom_metadata.decode())
        partition, first, last = metadata.topic_id_partition, metadata.start_offset, metadata.end_offset
        why = f"no segment of topic id {partition.topic_id} in the remote tier has them"
        if _is_damaged(metadata):
            why = f"the manifest of segment {metadata.remote_log_segment_id.id}, which may have them, is damaged"
        raise RemoteResourceNotFoundException(
            f"{partition.topic_partition}: offsets {first} to {last} are missing, {why}",
            path=path,
            hint=f"`kafkalog tier list` shows the segments; to continue after the gap, read from offset {last + 1} on",
        )


class _Listed(NamedTuple):
    """The last listing of the partitions: when it began, and when its content last changed."""

    partitions: dict[str, TopicIdPartition]
    begun_ms: int
    changed_ms: int
    due: float


class _Folder(NamedTuple):
    """The last listing of a partition's directory."""

    partition: TopicIdPartition
    logs: dict[int, RemoteLogSegmentMetadata]  # by base offset
    bases: list[int]
    snapshots: dict[int, RemoteLogSegmentMetadata]  # by the offset after the segment
    names: list[str]
    changed_ms: int
    due: float
    disk_start: int | None  # the first offset on disk, as observed before the listing

    def following(self, base: int) -> int | None:
        """Returns the base offset of the log after another one."""
        at = bisect_right(self.bases, base)
        return self.bases[at] if at < len(self.bases) else None

    def reaches(self, offset: int) -> bool:
        """Returns whether, as far as is known, no offset before this one is missing."""
        at = bisect_left(self.bases, offset)
        is_whole = all(not each.is_missing for each in self.logs.values())
        return is_whole and at > 0 and self.logs[self.bases[at - 1]].end_offset >= offset - 1


class RemoteFiles(ReadOnlyFiles):
    """A read-only `Files` below `root`, the address as users write it.  Thread-safe."""

    REFUSAL = "the remote tier is read-only here"

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
        self._partitions: _Listed | None = None  # replaced whole
        self._folders: dict[str, _Folder] = {}
        self._disk_starts: dict[str, int] = {}  # by partition, the first offset on disk
        self._ends: dict[str, int | None] = {}  # by segment

    @property
    def has_metadata(self) -> bool:
        """Whether the segments come from metadata, and not from listed objects."""
        return self._segments.has_metadata

    def owns(self, path: str) -> bool:
        return path == self.root or path.startswith(self._lead)

    # --- listing -----------------------------------------------------------------------------------------

    def _all(self) -> dict[str, TopicIdPartition]:
        return self._listed().partitions

    def _listed(self) -> _Listed:
        held = self._partitions
        return held if held is not None and held.due >= time.monotonic() else self._list()

    def _list(self) -> _Listed:
        begun_ms = int(time.time() * 1000)
        found = {str(short): full for short, full in self._segments.partitions().items()}
        with self._lock:
            held = self._partitions
            if held is not None and held.begun_ms > begun_ms:  # another thread's is newer
                return held
            is_same = held is not None and held.partitions == found
            changed_ms = held.changed_ms if held is not None and is_same else _later_than(held)
            made = self._partitions = _Listed(found, begun_ms, changed_ms, time.monotonic() + self._poll_s)
            if not is_same:  # a topic may have been deleted and created again
                kept = self._folders.items()
                self._folders = {name: each for name, each in kept if found.get(name) == each.partition}
        return made

    def _folder(self, name: str, path: str) -> _Folder:
        """Returns the listing of a partition; raises FileNotFoundError if the partition does not exist."""
        held, disk_start = self._folders.get(name), self._disk_starts.get(name)
        if held is not None and held.due > time.monotonic():
            if held.disk_start == disk_start:
                return held
            if disk_start is None or held.reaches(disk_start):
                with self._lock:
                    made = self._folders[name] = held._replace(disk_start=disk_start)
                return made
        partition = self._all().get(name)
        if partition is None:
            raise _missing(path)
        made = self._made(partition, held, disk_start)
        with self._lock:
            self._folders[name] = made
        return made

    def _made(self, partition: TopicIdPartition, held: _Folder | None, disk_start: int | None) -> _Folder:
        """Lists a partition.  `disk_start` was observed before, so segments that left the disk until then are listed
        now."""
        begun = time.monotonic()
        segments = [*self._up_to_disk(self._segments.segments(partition), disk_start or 0)]
        while segments and _is_damaged(segments[-1]) and segments[-1].start_offset >= (disk_start or 0):
            segments.pop()  # their end is not known
        logs = {each.start_offset: each for each in segments}
        now = time.monotonic()
        due = now + max(self._poll_s, 10 * (now - begun) if self._poll_s else 0.0)  # a long list is listed less often
        if held is not None and held.logs == logs:
            return held._replace(due=due, disk_start=disk_start)
        listed, snapshots = [names.PARTITION_METADATA_FILE], {}
        for (base, each), following in zip(logs.items(), [*[*logs][1:], LONG_MAX], strict=False):
            prefix = names.filename_prefix_from_offset(base)
            listed.append(f"{prefix}.log")
            if each.is_missing:
                continue
            listed += [f"{prefix}.index", f"{prefix}.timeindex"]
            if not each.is_txn_idx_empty:
                listed.append(f"{prefix}.txnindex")
            if base <= each.end_offset < following:
                snapshots[each.end_offset + 1] = each
                listed.append(f"{names.filename_prefix_from_offset(each.end_offset + 1)}.snapshot")
        if logs:
            listed.append(names.LEADER_EPOCH_CHECKPOINT_FILE)
        changed_ms = _later_than(held)
        return _Folder(partition, logs, sorted(logs), snapshots, sorted(listed), changed_ms, due, disk_start)

    def metadata_of(self, path: str) -> RemoteLogSegmentMetadata | None:
        """Returns the segment that a path of a log names; None for any other path."""
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
        """Returns whether a name is in the directory."""
        match = _SEGMENT_FILE.fullmatch(name)
        if match is None:
            return name == names.PARTITION_METADATA_FILE or (
                name == names.LEADER_EPOCH_CHECKPOINT_FILE and bool(folder.logs)
            )
        offset = int(match[1])
        if match[2] == "snapshot":
            return offset in folder.snapshots
        metadata = folder.logs.get(offset)
        if metadata is None or match[2] == "log":
            return metadata is not None
        return not metadata.is_missing and not (match[2] == "txnindex" and metadata.is_txn_idx_empty)

    def _parts(self, path: str) -> list[str]:
        if not self.owns(path):
            raise _missing(path)
        return [part for part in path[len(self.root) :].split("/") if part]

    def goes_on_at(self, partition: str, offset: int, seen: Callable[[], tuple[str | None, int]]) -> None:
        """Notes the first offset of a partition on the disk next to the tier.

        `seen` returns the topic id there, and when its directory last changed.  The tier is listed again if it was not
        listed since then, or not up to the offset: what left the disk is in the tier.
        """
        if self._disk_starts.get(partition, 0) != offset:
            topic_id, changed_ms = seen()
            listed = self._listed()
            known = listed.partitions.get(partition)
            if (known is None or known.topic_id != topic_id) and listed.begun_ms <= changed_ms + COARSE_MS:
                self._list()
        self._disk_starts[partition] = offset

    def _up_to_disk(
        self, segments: Sequence[RemoteLogSegmentMetadata], disk_start: int
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """Adds a placeholder for offsets that are missing between the segments and the disk."""
        before = [each for each in segments if each.start_offset < disk_start]
        if not before:
            return segments
        last = before[-1]
        is_within = last.start_offset <= last.end_offset < disk_start
        if last.is_missing and last.custom_metadata is None and not is_within:
            return [*before[:-1], last._replace(end_offset=disk_start - 1), *segments[len(before) :]]
        end = last.end_offset if last.end_offset >= last.start_offset else self._end_of(last)
        if end is None or end + 1 >= disk_start:
            return segments
        return [*before, missing(last.topic_id_partition, end + 1, disk_start - 1), *segments[len(before) :]]

    def _end_of(self, metadata: RemoteLogSegmentMetadata) -> int | None:
        """Returns the last offset of a segment from its log; None if the log cannot be read."""
        segment = metadata.remote_log_segment_id.id
        if segment not in self._ends:
            end = None
            try:
                position = last_position(self.indexes.get(metadata, IndexType.OFFSET))
                local = self.storage.open_local(metadata)
                with local or RemoteFile(self.chunks, self.storage, metadata, segment) as file:
                    end = last_offset_of(file, position)  # readers report damage
            except (KafkalogError, OSError) as error:
                _log.warning("the last offset of segment %s is not known: %s", segment, error)
            self._ends[segment] = end
        return self._ends[segment]

    def _look_before(self, metadata: RemoteLogSegmentMetadata, path: str, *, is_local: bool) -> None:
        """Logs once that offsets are missing before a log that is opened, if only names tell the end of the log before
        it.

        It does so only if the check needs almost no request: a reader that came from the log before has its end in the
        cache.
        """
        before = self._folder(self._parts(path)[0], path).snapshots.get(metadata.start_offset)
        if before is None or before.remote_log_segment_id.id in self._ends:
            return
        last = (self.storage.log_size(before) - 1) // self.storage.chunk_bytes(before)
        if is_local or self.chunks.has(before.remote_log_segment_id.id, last):
            end = self._end_of(before)
            if end is not None and end + 1 < metadata.start_offset:
                partition = metadata.topic_id_partition.topic_partition
                tell_gap(partition, end + 1, metadata.start_offset - 1, _BY_NAMES)

    def look_again(self) -> None:
        """Makes the next query list again."""
        with self._lock:
            if self._partitions is not None:
                self._partitions = self._partitions._replace(due=0.0)
            self._folders = {name: held._replace(due=0.0) for name, held in self._folders.items()}

    def partition_at(self, path: str) -> TopicIdPartition:
        """Returns the partition of a directory.  Raises FileNotFoundError."""
        return self._folder(self._parts(path)[0], path).partition

    # --- reading -----------------------------------------------------------------------------------------

    def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> File:
        if writable or create or exclusive:
            raise self._read_only(path)
        metadata = self.metadata_of(path)
        if metadata is not None and path.endswith(names.LOG_FILE_SUFFIX):
            check_there(metadata, path)
            file = self.opened(metadata, path)
            if not self.has_metadata and not metadata.segment_leader_epochs:
                self._look_before(metadata, path, is_local=not isinstance(file, RemoteFile))
            return file
        return BytesFile(path, self.read_bytes(path))

    def opened(self, metadata: RemoteLogSegmentMetadata, path: str) -> File:
        """Opens a segment's log, under that path."""
        return self.open_local(metadata) or _ListedFile(self, metadata, path)

    def open_local(self, metadata: RemoteLogSegmentMetadata) -> File | None:
        """Opens a local object; raises RemoteStorageException if its size differs from what was copied."""
        local = self.asked(self.storage.open_local, metadata)
        return None if local is None else _whole(local, metadata.segment_size_in_bytes)

    def asked(self, ask: Callable[..., T], *what: Any) -> T:
        """Returns an answer of the storage.

        If an object from the metadata does not exist, it may have been deleted since, so the next query reads the
        metadata again.  Without metadata this cannot be told from a lost object.
        """
        try:
            return ask(*what)
        except RemoteResourceNotFoundException:
            if self.has_metadata:
                self.look_again()
            raise

    def begin_following(self, path: str, count: int) -> None:
        """Fetches what a reader needs first from the next log: some chunks, and the offset index."""
        parts = self._parts(path)
        folder = self._folder(parts[0], path)
        base = folder.following(int(parts[1][:_STEM]))
        following = None if base is None else folder.logs[base]
        if following is not None and not following.is_missing:
            is_news = self.chunks.begin(following.remote_log_segment_id.id, count)
            self.chunks.fetch_ahead(self.storage, following, range(count), self.storage.log_size(following))
            if is_news:
                self.indexes.get(following, IndexType.OFFSET)

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
            there = [each for each in folder.logs.values() if not each.is_missing]
            return self.asked(self.indexes.get, there[-1], IndexType.LEADER_EPOCH)
        match = _SEGMENT_FILE.fullmatch(name)
        assert match is not None, name
        offset, suffix = int(match[1]), match[2]
        if suffix == "snapshot":
            return self.asked(self.indexes.get, folder.snapshots[offset], IndexType.PRODUCER_SNAPSHOT)
        metadata = folder.logs[offset]
        if suffix == "log":
            check_there(metadata, path)
            return self.asked(self.storage.fetch_log_segment, metadata, 0, self.storage.log_size(metadata))
        data = self.asked(self.indexes.get, metadata, _INDEXES[suffix])
        following = folder.following(offset)
        return data if following is None else _up_to(data, _INDEXES[suffix], offset, following)

    def own_bytes(self, path: str) -> int:
        """Returns how many bytes of a log are before what the next segment also has, for a caller that copies it."""
        metadata = self.metadata_of(path)
        assert metadata is not None, path
        base, size = metadata.start_offset, self.storage.log_size(metadata)
        following = self._folder(self._parts(path)[0], path).following(base)
        is_known = metadata.segment_leader_epochs and base <= metadata.end_offset
        if following is None or (is_known and metadata.end_offset < following):
            return size
        index = b""
        # a caller that also copies the index gets the error
        with suppress(CorruptIndexException, RemoteResourceNotFoundException):
            index = _up_to(self.asked(self.indexes.get, metadata, IndexType.OFFSET), IndexType.OFFSET, base, following)
        with self.opened(metadata, path) as file:
            scan = LogScan(file, last_position(index), size)
            for piece in scan:
                starts = piece.table["position"][piece.table["base_offset"] == following]
                if len(starts):
                    return int(starts[0])
        return size

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

    def may_overlap(self, path: str) -> bool:
        return True

    def is_link(self, path: str) -> bool:
        return False

    def glance(self, path: str) -> FileStat:
        """Returns the stat of a file; for a log whose size only the storage knows, it has the object's size."""
        if path.endswith(names.LOG_FILE_SUFFIX) and (metadata := self.metadata_of(path)) is not None:
            time_ms, is_about = max(0, metadata.max_timestamp_ms), not self.storage.knows_log_size(metadata)
            return FileStat(metadata.segment_size_in_bytes, time_ms, True, False, _inode(metadata), is_about)
        return self.stat(path)

    def stat(self, path: str) -> FileStat:
        if path.endswith(names.LOG_FILE_SUFFIX) and (metadata := self.metadata_of(path)) is not None:
            time_ms = max(0, metadata.max_timestamp_ms)
            return FileStat(self.storage.log_size(metadata), time_ms, True, False, _inode(metadata))
        parts = self._parts(path)
        if not parts:
            return FileStat(0, self._listed().changed_ms, False, True)
        if len(parts) == 1:
            if parts[0] == names.CLEAN_SHUTDOWN_FILE:
                return FileStat(0, 0, True, False)
            return FileStat(0, self._folder(parts[0], path).changed_ms, False, True)
        return FileStat(len(self.read_bytes(path)), 0, True, False)

    def list_dir(self, path: str) -> list[str]:
        parts = self._parts(path)
        if not parts:
            return sorted(self._all())
        if len(parts) == 1:
            return list(self._folder(parts[0], path).names)
        raise _missing(path)

    def close(self) -> None:
        """Ends threads and closes connections."""
        self.chunks.close()
        self.storage.close()


class _ListedFile(RemoteFile):
    __slots__ = ("_files",)

    def __init__(self, files: RemoteFiles, metadata: RemoteLogSegmentMetadata, path: str) -> None:
        super().__init__(files.chunks, files.storage, metadata, path)
        self._files = files

    def _pieces(self, n: int, position: int) -> list[memoryview]:
        return self._files.asked(super()._pieces, n, position)

    def _go_on(self, count: int) -> None:
        self._chunks.meanwhile(lambda: self._files.begin_following(self.path, count))


def _whole(file: File, size: int) -> File:
    """Returns an object that is a file of this machine, unless its size differs from what was copied.

    Then it raises RemoteStorageException.  The size -1 is unknown.
    """
    found = file.size()
    if size not in (-1, found):
        file.close()
        raise RemoteStorageException(
            f"found {found} bytes, expected the {size} that were copied",
            path=file.path,
            hint="the object was damaged or replaced: restore the one that was copied",
        )
    return file


def _up_to(data: bytes, index_type: IndexType, base: int, following: int) -> bytes:
    """Returns the entries of an index for batches and transactions that end before the next segment."""
    entries, field, begins = {
        IndexType.OFFSET: (OFFSET_ENTRIES, "offset", base),
        IndexType.TIMESTAMP: (TIME_ENTRIES, "offset", base),
        IndexType.TRANSACTION: (TXN_ENTRIES, "last_offset", 0),
    }[index_type]
    ends = np.frombuffer(data, entries, len(data) // entries.itemsize)[field]
    count = int(np.searchsorted(ends, following - begins))
    return data if count == len(ends) else data[: count * entries.itemsize]


def _later_than(held: _Listed | _Folder | None) -> int:
    """Returns the current time, but always later than that of the listing before."""
    return max(int(time.time() * 1000), 0 if held is None else held.changed_ms + 1)


def _inode(metadata: RemoteLogSegmentMetadata) -> int:
    """Returns a number that two segments are unlikely to share."""
    return int.from_bytes(base64.urlsafe_b64decode(metadata.remote_log_segment_id.id + "==")[:8], "big")


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
