"""LazyIndex: an index whose file is opened, or created, at the first use.

Opening a log of thousands of segments therefore touches no index, and renaming or deleting a segment does not open its
indexes. Mirrors org.apache.kafka.storage.internals.log.LazyIndex (4.4.0).
"""

from __future__ import annotations

import os
import threading
from typing import Generic, TypeVar

from kafkalog.engine.files import Files, is_shortage
from kafkalog.engine.segment.index import AbstractIndex, Making

I = TypeVar("I", bound=AbstractIndex)  # noqa: E741


class LazyIndex(Generic[I]):
    """The index at `path`; `get()` opens it.  Thread-safe."""

    __slots__ = ("_args", "_files", "_kind", "_lock", "_making", "_path", "index")

    def __init__(self, kind: type[I], path: str, base_offset: int, max_index_size: int, files: Files) -> None:
        self.index: I | None = None  # None until the first use
        self._kind = kind
        self._path = path
        self._args = (base_offset, max_index_size)
        self._files = files
        self._making = Making()
        self._lock = threading.RLock()

    @property
    def file(self) -> str:
        """The path of the file, which may not exist yet."""
        index = self.index
        return self._path if index is None else index.path

    def get(self) -> I:
        index = self.index
        if index is not None:
            return index
        with self._lock:
            if self.index is None:
                base_offset, max_index_size = self._args
                self.index = self._kind(self._path, base_offset, max_index_size, self._files, self._making)
            return self.index

    def update_parent_dir(self, parent_dir: str) -> None:
        with self._lock:
            if self.index is not None:
                self.index.update_parent_dir(parent_dir)
            else:
                self._path = os.path.join(parent_dir, os.path.basename(self._path))

    def rename_to(self, path: str) -> None:
        """Renames the file. A file that was never opened may be missing."""
        with self._lock:
            if self.index is not None:
                self.index.rename_to(path)
                return
            try:
                self._files.rename(self._path, path)
            except OSError as error:
                there = not isinstance(error, FileNotFoundError) or self._files.exists(self._path)
                if not is_shortage(error):
                    self._path = path
                if there:
                    raise
            self._path = path

    def delete_if_exists(self) -> bool:
        with self._lock:
            if self.index is not None:
                return self.index.delete_if_exists()
            return self._files.unlink_if_exists(self._path)

    def close(self) -> None:
        with self._lock:
            if self.index is not None:
                self.index.close()
