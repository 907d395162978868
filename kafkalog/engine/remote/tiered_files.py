"""Presents a log directory and its remote tier as one directory: remote segments come before the local ones.

    files = TieredFiles(remote, ["/var/kafka-logs"])
    files.list_dir("/var/kafka-logs/orders-0")      # remote names up to the first local segment, then local ones

The disk has priority: a segment is read remotely only if it begins below the first local one.  The disk is listed at
each call.  The tier is listed again if its listing does not reach the disk's first segment, because another process may
have copied segments meanwhile and deleted them from the disk.  Offsets that neither has raise an error for a reader
that reaches them.  It is read-only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kafkalog.engine.files import File, Files, FileStat, Listing, OsFiles
from kafkalog.engine.format import names
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.remote.read_only import ReadOnlyFiles
from kafkalog.errors import KafkalogError

if TYPE_CHECKING:
    from kafkalog.engine.remote.remote_files import RemoteFiles
    from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata


class TieredFiles(ReadOnlyFiles):
    """A read-only `Files` of log directories and a remote tier.  Thread-safe.

    A partition without a directory on disk appears in the first log directory.
    """

    REFUSAL = "a directory with its remote tier is opened read-only here"

    def __init__(self, remote: RemoteFiles, log_dirs: Sequence[str], local: Files | None = None) -> None:
        self.remote = remote
        self._dirs = [each.rstrip("/") for each in log_dirs]
        self._local = OsFiles() if local is None else local  # not the files on which this object itself may be mounted
        # by directory, an earlier local start: local segments never begin below it again
        self._began: dict[str, int] = {}

    # --- local or remote ---------------------------------------------------------------------------------

    def _remote_path(self, path: str) -> str | None:
        """Returns the remote path of a path; None outside of partitions' directories."""
        for directory in self._dirs:
            if path.startswith(directory + "/"):
                below = path[len(directory) + 1 :]
                return f"{self.remote.root}/{below}" if below.count("/") <= 1 else None
        return None

    def _first_local(self, folder: str) -> int | None:
        """Returns the base offset of the first segment on disk."""
        try:
            listed = self._local.list_dir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return min((base for name in listed if (base := names.segment_base(name)) is not None), default=None)

    def _there(self, path: str) -> str | None:
        """Returns the remote path if a path is to be read there, otherwise None."""
        if self._local.exists(path):
            return None
        remote = self._remote_path(path)
        if remote is None or not self.remote.exists(remote):
            return None
        folder, name = os.path.split(path)
        if remote.count("/") == self.remote.root.count("/") + 1:  # a partition's directory
            return remote if folder == self._dirs[0] and not self._is_elsewhere(name) else None
        began = self._began.get(folder)
        if began is not None and name[:20].isdecimal() and int(name[:20]) < began:
            return remote
        first = self._first_local(folder)
        if first is not None:
            self._began[folder] = first
        return remote if self._counts(name, first) else None

    def _is_elsewhere(self, partition: str) -> bool:
        return any(self._local.is_dir(os.path.join(each, partition)) for each in self._dirs)

    @staticmethod
    def _counts(name: str, first_local: int | None) -> bool:
        """Returns whether a remote file is before what is on disk."""
        stem, _, suffix = name.partition(".")
        if not stem.isdigit():
            return first_local is None
        offset = int(stem)
        return first_local is None or offset < first_local or (suffix == "snapshot" and offset <= first_local)

    def metadata_of(self, path: str) -> RemoteLogSegmentMetadata | None:
        """Returns the remote segment that a path of a log names; None for a local file."""
        there = self._there(path)
        return None if there is None else self.remote.metadata_of(there)

    # --- reading -----------------------------------------------------------------------------------------

    def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> File:
        if writable or create or exclusive:
            raise self._read_only(path)
        there = self._there(path)
        if there is None:
            return self._local.open(path, writable=False)
        return self.remote.open(there, writable=False)

    def read_bytes(self, path: str) -> bytes:
        there = self._there(path)
        return self._local.read_bytes(path) if there is None else self.remote.read_bytes(there)

    def stat(self, path: str) -> FileStat:
        there = self._there(path)
        return self._local.stat(path) if there is None else self.remote.stat(there)

    def glance(self, path: str) -> FileStat:
        there = self._there(path)
        return self._local.glance(path) if there is None else self.remote.glance(there)

    def may_overlap(self, path: str) -> bool:
        return self._there(path) is not None

    def size_of(self, path: str) -> int:
        return self.stat(path).size

    def exists(self, path: str) -> bool:
        return self._local.exists(path) or self._there(path) is not None

    def is_readable(self, path: str) -> bool:
        return self._local.is_readable(path) or self._there(path) is not None

    def is_dir(self, path: str) -> bool:
        if self._local.is_dir(path):
            return True
        there = self._there(path)
        return there is not None and self.remote.is_dir(there)

    def is_link(self, path: str) -> bool:
        return self._local.is_link(path)

    def list_dir(self, path: str) -> list[str]:
        here: list[str] = []
        is_here = self._local.is_dir(path)
        if is_here:
            here = self._local.list_dir(path)
        place = path.rstrip("/")
        if place in self._dirs:
            more = self.remote.list_dir(self.remote.root) if place == self._dirs[0] else []
            return sorted({*here, *(each for each in more if not self._is_elsewhere(each))})
        remote = self._remote_path(place)
        first = min((base for name in here if (base := names.segment_base(name)) is not None), default=None)
        if remote is not None and first is not None:
            self.remote.goes_on_at(os.path.basename(place), first, lambda: self._seen(place))
        if remote is None or not self.remote.is_dir(remote) or (not is_here and self._there(place) is None):
            return here if is_here else self._local.list_dir(path)
        more = [each for each in self.remote.list_dir(remote) if self._counts(each, first)]
        return sorted({*here, *more})

    def _seen(self, folder: str) -> tuple[str | None, int]:
        """Returns the topic id in a partition's directory, or None if it cannot be read, and the directory's last
        change."""
        topic_id = None
        with suppress(KafkalogError, OSError):  # a reader of the partition gets the error
            topic_id = topic_id_of(folder, self._local)
        return topic_id, self._local.stat(folder).mtime_ms

    def listing(self, path: str) -> Listing:
        found = Listing([], [])
        for name in self.list_dir(path):
            (found.others if self.is_dir(os.path.join(path, name)) else found.files).append(name)
        return found

    def close(self) -> None:
        self.remote.close()
