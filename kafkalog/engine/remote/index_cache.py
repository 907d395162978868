"""Indexes of remote segments: fetched once, kept in memory, and also on disk if there is a log directory.

On disk they have the names that a broker's RemoteIndexCache uses: `remote-log-index-cache/<base offset>_<segment
id>.index` (`.timeindex`, `.txnindex`).  Their total size is limited; the least recently used ones are removed first.  A
restart finds them again.  Next to each is its checksum (`.index.crc`).  A file without a matching checksum is fetched
again: damage in it would hide records, or show aborted ones.

Source class: RemoteIndexCache (4.4.0).  It keeps all three indexes of a segment or none, and completes or removes the
files that it finds from kafkalog.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from kafkalog._limits import INT_MAX, LONG_MAX
from kafkalog._native.codec.crc32c import crc32c
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format import names
from kafkalog.engine.format.index_entries import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    TXN_ENTRIES,
    TXN_ENTRY,
)
from kafkalog.engine.remote.storage import IndexType
from kafkalog.errors import (
    CorruptIndexException,
    IllegalArgumentException,
    KafkaStorageException,
    RemoteResourceNotFoundException,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata
    from kafkalog.engine.remote.storage import RemoteStorageManager

MEMORY_BYTES = 32 << 20
DISK_BYTES = 1 << 30  # remote.log.index.file.cache.total.size.bytes
_SUFFIXES = {
    IndexType.OFFSET: names.INDEX_FILE_SUFFIX,
    IndexType.TIMESTAMP: names.TIME_INDEX_FILE_SUFFIX,
    IndexType.TRANSACTION: names.TXN_INDEX_FILE_SUFFIX,
}
_ENTRY_BYTES = {
    IndexType.OFFSET: OFFSET_ENTRY.size,
    IndexType.TIMESTAMP: TIME_ENTRY.size,
    IndexType.TRANSACTION: TXN_ENTRY.size,
}
CRC_SUFFIX = ".crc"
_FILE = re.compile(r"(\d+)_([a-zA-Z0-9_-]{22})\.(index|timeindex|txnindex)")
_log = Lines("kafkalog.remote")

_Key = tuple[str, IndexType]


class RemoteIndexCache:
    """RemoteIndexCache: keeps files in `log_dir`, or only in memory if that is None.  Thread-safe."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        log_dir: str | None = None,
        *,
        total_size_bytes: int = DISK_BYTES,
        memory_bytes: int = MEMORY_BYTES,
        files: Files = OS_FILES,
    ) -> None:
        if total_size_bytes < 1:
            raise IllegalArgumentException(
                f"the size of the index cache is {total_size_bytes} bytes; expected at least 1"
            )
        self._storage = storage
        self._folder = None if log_dir is None else os.path.join(log_dir, names.REMOTE_LOG_INDEX_CACHE_DIR)
        self._files = files
        self._lock = threading.Lock()
        self._memory = _Bounded(memory_bytes)
        self._disk = _Bounded(total_size_bytes)  # sizes only
        if self._folder is not None:
            self._look(self._folder)

    def _look(self, folder: str) -> None:
        """Finds the files that an earlier process kept."""
        try:
            self._files.mkdirs(folder)
        except FileExistsError as error:
            raise KafkaStorageException(
                "this is a file; expected the directory of the remote tier's indexes",
                path=folder,
                hint="move it elsewhere: the directory is created again, and the indexes are fetched again",
            ) from error
        listed = set(self._files.list_files(folder))
        for name in listed:
            match = _FILE.fullmatch(name)
            path = os.path.join(folder, name)
            if match is None:
                is_lonely = name.endswith(CRC_SUFFIX) and name.removesuffix(CRC_SUFFIX) not in listed
                if is_lonely or name.endswith((names.DELETED_FILE_SUFFIX, ".tmp")):
                    self._files.unlink_if_exists(path)
                continue
            self._disk.put(name, None, self._files.size_of(path))
        self._shrink()

    def get(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """Returns a whole index; for a segment without a transaction index, no bytes.

        Raises RemoteResourceNotFoundException if the tier lacks an index that the segment has, and
        CorruptIndexException.
        """
        if index_type is IndexType.TRANSACTION and metadata.is_txn_idx_empty:
            return b""
        segment = metadata.remote_log_segment_id.id
        key = segment, index_type
        with self._lock:
            found = self._memory.get(key)
        if found is not None:
            return found
        name = None
        if index_type in _SUFFIXES and self._folder is not None:
            name = f"{names.filename_prefix_from_offset(metadata.start_offset)}_{segment}{_SUFFIXES[index_type]}"
        data = self._kept(name)
        if data is None:
            data = self._fetched(metadata, index_type)
            if name is not None and data:
                self._keep(name, data)
        with self._lock:
            self._memory.put(key, data, len(data) + 64)
            self._memory.shrink()
        return data

    def _fetched(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        try:
            data = self._storage.fetch_index(metadata, index_type)
        except RemoteResourceNotFoundException as error:
            if index_type is IndexType.TRANSACTION and error.hint is None:
                error.hint = (
                    "without it, aborted records cannot be recognized; isolation read_uncommitted does not need it, "
                    "also if a broker before 4.0 recorded an index that never existed"
                )
            raise
        if not _is_sane(data, index_type):
            raise CorruptIndexException(
                f"the {index_type.value} in the remote tier has {len(data)} bytes, expected whole entries of "
                f"{_ENTRY_BYTES[index_type]}",
                path=self._storage.shown_index(metadata, index_type),
            )
        if index_type is IndexType.TRANSACTION and not _is_of(data, metadata):
            # nothing else would reveal it: such an index would hide records, or show aborted ones
            raise CorruptIndexException(
                "the transaction index in the remote tier has transactions that did not end in its segment",
                path=self._storage.shown_index(metadata, index_type),
            )
        return data

    def _kept(self, name: str | None) -> bytes | None:
        if name is None or self._folder is None:
            return None
        with self._lock:
            if not self._disk.touch(name):
                return None
        path = os.path.join(self._folder, name)
        try:
            data, checksum = self._files.read_bytes(path), self._files.read_bytes(path + CRC_SUFFIX)
        except OSError as error:
            _log.info("%s cannot be read and is fetched again: %s", path, error)
            return None
        if checksum != _checksum(data):
            _log.warning("%s does not match its checksum and is fetched again", path)
            return None
        return data

    def _keep(self, name: str, data: bytes) -> None:
        """Keeps an index on disk if possible: a cache that cannot be written must not stop readers."""
        assert self._folder is not None
        path = os.path.join(self._folder, name)
        temporary = f"{path}.{threading.get_ident()}.tmp"
        try:
            self._files.write_file(path + CRC_SUFFIX, _checksum(data))
            self._files.write_file(temporary, data, sync=True)  # otherwise an index could be empty after a crash
            self._files.rename(temporary, path)
        except OSError as error:
            _log.info("%s cannot be kept: %s", path, error)
            for each in (temporary, path + CRC_SUFFIX):
                with suppress(OSError):
                    self._files.unlink_if_exists(each)
            return
        with self._lock:
            self._disk.put(name, None, len(data))
        self._shrink()

    def _shrink(self) -> None:
        assert self._folder is not None
        with self._lock:
            gone = self._disk.shrink()
        for name in gone:
            self._unlink(name)

    def _unlink(self, name: str) -> None:
        assert self._folder is not None
        try:
            for each in (name, name + CRC_SUFFIX):
                self._files.unlink_if_exists(os.path.join(self._folder, each))
        except OSError as error:
            _log.info("%s cannot be removed: %s", name, error)

    def remove_all(self, segment_ids: Iterable[str]) -> None:
        """Removes segments that are deleted, or whose content is doubted."""
        wanted = set(segment_ids)
        with self._lock:
            for key in [key for key in self._memory if key[0] in wanted]:
                self._memory.pop(key)
            gone = [name for name in self._disk if (match := _FILE.fullmatch(name)) and match[2] in wanted]
            for name in gone:
                self._disk.pop(name)
        for name in gone:
            self._unlink(name)

    def resize_cache_size(self, total_size_bytes: int) -> None:
        self._disk.bytes_max = total_size_bytes
        if self._folder is not None:
            self._shrink()


class _Bounded(OrderedDict):  # type: ignore[type-arg]
    """Values by key, the most recently used at the end, and their total size."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__()
        self.bytes_max = bytes_max
        self.bytes = 0

    def put(self, key: object, value: object, size: int) -> None:
        if key in self:
            self.pop(key)
        self[key] = value, size
        self.bytes += size

    def pop(self, key: object) -> object:  # type: ignore[override]
        value, size = super().pop(key)
        self.bytes -= size
        return value

    def get(self, key: object) -> bytes | None:  # type: ignore[override]
        if not self.touch(key):
            return None
        found: bytes = self[key][0]
        return found

    def touch(self, key: object) -> bool:
        if key not in self:
            return False
        self.move_to_end(key)
        return True

    def shrink(self) -> list[str]:
        """Removes the least recently used entries until the rest fits; returns their keys."""
        gone = []
        while self.bytes > self.bytes_max and self:
            key = next(iter(self))
            self.pop(key)
            gone.append(key)
        return gone


def _is_sane(data: bytes, index_type: IndexType) -> bool:
    size = _ENTRY_BYTES.get(index_type)
    return len(data) <= INT_MAX and (size is None or len(data) % size == 0)


def _checksum(data: bytes) -> bytes:
    return crc32c(data).to_bytes(4, "big")


def _is_of(data: bytes, metadata: RemoteLogSegmentMetadata) -> bool:
    """Returns whether a transaction index is valid, and its transactions ended in the segment, if its end is known."""
    entries = np.frombuffer(data, TXN_ENTRIES)
    ends = entries["last_offset"]
    in_order = bool(np.all(entries["first_offset"] <= ends)) and not entries["version"].any()
    grows = bool(np.all(np.diff(ends) > 0))
    is_known = metadata.segment_leader_epochs and metadata.end_offset >= metadata.start_offset
    last = metadata.end_offset if is_known else LONG_MAX
    return in_order and grows and bool(np.all((ends >= metadata.start_offset) & (ends <= last)))
