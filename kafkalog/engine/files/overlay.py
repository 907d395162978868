"""Dry runs: a disk whose changes stay in a temporary directory, and a real disk that reports its operations.

`OverlayFiles` reads existing files and keeps all writes, truncations, renames and removals in a temporary directory.
So a recovery can run to its end without changing a byte of the log directory.  A file that is only truncated is not
copied: a segment's log takes no space.  A removed file takes none any more.  If its `Watch` calls a file hollow, only
the length is kept, for a caller that wants to know how much would be written.  `watched_files` is the operating
system's files with the same `Watch`.  Both call the `Watch` for bytes that are read (progress), and before a file
becomes shorter (while its end still exists).
One thread writes.  Directories are created and removed, but not renamed.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Sequence

from kafkalog._native.state.descriptor import FileMap
from kafkalog.engine.files.api import Buffer, File, FileLock, Files, FileStat, HasFileno, parent_dir
from kafkalog.engine.files.mounts import OS_FILES
from kafkalog.engine.files.os_files import OsFile, OsFiles

COPY_BYTES = 1 << 20


class Watch:
    """Receives the operations.  Override the methods that you need."""

    def has_read(self, path: str, size_bytes: int) -> None:
        """Called when `size_bytes` of a file were read into a buffer (`pread_into`, as scans do)."""

    def before_cut(self, file: File, size: int) -> None:
        """Called before an open file is truncated to `size` bytes; it is longer now."""

    def is_hollow(self, path: str) -> bool:
        """Returns whether an overlay may drop the bytes written to a file, because no code will read them."""
        return False


class _Node:
    """One file: the source's first `limit` bytes (None: all of them), or a copy."""

    __slots__ = ("copy", "limit", "mtime_ms", "source")

    def __init__(self, source: str | None, copy: str | None = None) -> None:
        self.source = source
        self.copy = copy
        self.limit: int | None = None
        self.mtime_ms: int | None = None


class OverlayFile(File):
    """A handle on a node; all handles of a node see its changes."""

    __slots__ = ("_at", "_closed", "_inner", "_node", "_overlay", "path")

    path: str

    def __init__(self, overlay: OverlayFiles, path: str, node: _Node) -> None:
        self.path = path
        self._overlay = overlay
        self._node = node
        self._closed = False
        self._inner, self._at = self._open()

    def _open(self) -> tuple[File, str]:
        at = self._node.copy or self._node.source
        assert at is not None
        return self._overlay.inner.open(at, writable=self._node.copy is not None), at

    def _file(self) -> File:
        if self._closed:
            raise OSError(errno.EBADF, "the file is closed", self.path)
        if self._at != (self._node.copy or self._node.source):
            self._inner.close()
            self._inner, self._at = self._open()
        return self._inner

    def _own(self) -> File:
        """Returns the file as a copy that may be written."""
        self._overlay.copy(self._node)
        return self._file()

    @property
    def closed(self) -> bool:
        return self._closed

    def fileno(self) -> int:
        return -1 if self._closed else self._file().fileno()

    def size(self) -> int:
        size = self._file().size()
        return size if self._node.limit is None else min(size, self._node.limit)

    def _room(self, count: int, position: int) -> int:
        limit = self._node.limit
        return count if limit is None else max(0, min(count, limit - position))

    def pread(self, n: int, position: int) -> bytes:
        return self._file().pread(self._room(n, position), position)

    def pread_into(self, buffer: bytearray | memoryview | mmap.mmap, position: int) -> int:
        room = self._room(len(buffer), position)
        got = self._file().pread_into(buffer if room == len(buffer) else memoryview(buffer)[:room], position)
        self._overlay.watch.has_read(self.path, got)
        return got

    def pwrite(self, data: Buffer, position: int) -> None:
        if self._overlay.watch.is_hollow(self.path):
            self._stretch(position + memoryview(data).nbytes)
        else:
            self._own().pwrite(data, position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        if not self._overlay.watch.is_hollow(self.path):
            return self._own().pwritev(buffers, position)
        length = sum([memoryview(data).nbytes for data in buffers])
        self._stretch(position + length)
        return length

    def _stretch(self, size: int) -> None:
        own = self._own()
        own.truncate(max(size, own.size()))

    def truncate(self, size: int) -> None:
        before = self.size()
        if size < before:
            self._overlay.watch.before_cut(self, size)
        if self._node.copy is None and size <= before:
            self._node.limit = size
        else:
            self._own().truncate(size)

    def sync(self) -> None:
        self._file()

    def sync_data(self) -> None:
        self._file()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._inner.close()

    def map(self) -> FileMap | None:
        return self._own().map()  # a copy: the source's owner may shorten it

    def send_to(self, sock: HasFileno, position: int, count: int) -> int:
        return self._file().send_to(sock, position, self._room(count, position))


class _NoLock(FileLock):
    __slots__ = ()

    def __init__(self, path: str) -> None:
        self.path = path

    def release(self, *, remove: bool = True) -> None:
        pass


class OverlayFiles(Files):
    """The files of `inner` with changes that never reach it.  A context manager, whose end discards all changes."""

    __slots__ = ("_count", "_dirs", "_folder", "_nodes", "inner", "watch")

    def __init__(self, inner: Files = OS_FILES, watch: Watch | None = None) -> None:
        self.inner = inner
        self.watch = watch or Watch()
        self._folder = tempfile.TemporaryDirectory(prefix="kafkalog-")
        self._count = 0
        self._nodes: dict[str, _Node | None] = {}  # None: unlinked or renamed away
        self._dirs: dict[str, bool] = {}  # True: created; False: removed

    def __enter__(self) -> OverlayFiles:
        return self

    def __exit__(self, *exc: object) -> None:
        self._folder.cleanup()

    @property
    def is_dry(self) -> bool:
        return True

    def copy(self, node: _Node) -> None:
        """Gives a node a file with the bytes that it has now."""
        if node.copy is not None:
            return
        copy = self._new_file()
        if node.source is not None:
            with self.inner.open(node.source, writable=False) as source, self.inner.open(copy) as target:
                left = source.size() if node.limit is None else min(source.size(), node.limit)
                target.truncate(left)
                position = 0
                while position < left and (data := source.pread(min(COPY_BYTES, left - position), position)):
                    if data.count(0) != len(data):
                        target.pwrite(data, position)
                    position += len(data)
        node.copy, node.limit = copy, None

    def _new_file(self) -> str:
        self._count += 1
        path = os.path.join(self._folder.name, str(self._count))
        self.inner.create(path)
        return path

    def _find(self, path: str) -> _Node | None:
        """Returns the file's node; None if there is no such file."""
        path = os.path.abspath(path)
        if path in self._nodes:
            return self._nodes[path]
        if not self.inner.exists(path) or self.inner.is_dir(path):
            return None
        node = self._nodes[path] = _Node(path)
        return node

    def _must_find(self, path: str) -> _Node:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> OverlayFile:
        node = self._find(path)
        if node is not None and exclusive:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if node is None and (create or exclusive) and self.is_dir(parent_dir(path)) and not self.is_dir(path):
            node = self._nodes[os.path.abspath(path)] = _Node(None, self._new_file())
        if node is None:
            return OverlayFile(self, path, self._must_find(path))  # raises
        return OverlayFile(self, path, node)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None or self.is_dir(path)

    def is_dir(self, path: str) -> bool:
        known = self._dirs.get(os.path.abspath(path))
        return self.inner.is_dir(path) if known is None else known

    def is_link(self, path: str) -> bool:
        return os.path.abspath(path) not in self._nodes and self.inner.is_link(path)

    def is_readable(self, path: str) -> bool:
        if self.is_dir(path):
            return bool(self._dirs.get(os.path.abspath(path))) or self.inner.is_readable(path)
        node = self._find(path)
        return node is not None and self.inner.is_readable(node.copy or node.source or path)

    def stat(self, path: str) -> FileStat:
        if self.is_dir(path):
            return FileStat(0, 0, False, True) if self._dirs.get(os.path.abspath(path)) else self.inner.stat(path)
        node = self._must_find(path)
        found = self.inner.stat(node.copy or node.source or path)
        size = found.size if node.limit is None else min(found.size, node.limit)
        return FileStat(size, found.mtime_ms if node.mtime_ms is None else node.mtime_ms, found.is_file, False)

    def list_dir(self, path: str) -> list[str]:
        folder = os.path.abspath(path)
        if not self.is_dir(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        listed = set() if self._dirs.get(folder) else set(self.inner.list_dir(path))
        for changed, there in [*self._nodes.items(), *self._dirs.items()]:
            if os.path.dirname(changed) == folder:
                name = os.path.basename(changed)
                listed.discard(name)
                if there:
                    listed.add(name)
        return sorted(listed)

    def rename(self, src: str, dst: str) -> None:
        if self.is_dir(src) or self.is_dir(dst):
            raise OSError(errno.ENOTSUP, "directories are not renamed here", src)
        node = self._must_find(src)
        self._nodes[os.path.abspath(src)] = None
        self._nodes[os.path.abspath(dst)] = node

    def unlink(self, path: str) -> None:
        node = self._must_find(path)
        self._nodes[os.path.abspath(path)] = None
        if node.copy is not None:
            self.inner.unlink(node.copy)  # an open handle keeps its content

    def mkdirs(self, path: str) -> None:
        path = os.path.abspath(path)
        while not self.is_dir(path):
            self._dirs[path] = True
            path = os.path.dirname(path)

    def rmdir(self, path: str) -> None:
        if self.list_dir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._dirs[os.path.abspath(path)] = False

    def sync_dir(self, path: str) -> None:
        pass

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        self._must_find(path).mtime_ms = mtime_ms

    def read_bytes(self, path: str) -> bytes:
        with self.open(path, writable=False) as file:
            return file.pread(file.size(), 0)

    def lock(self, path: str) -> FileLock:
        """Returns a lock that excludes no one: nothing is changed."""
        return _NoLock(path)


def watched_files(watch: Watch) -> OsFiles:
    """Returns the operating system's files, whose operations are reported to `watch`."""

    class WatchedFile(OsFile):
        __slots__ = ()

        def pread_into(self, buffer: bytearray | memoryview | mmap.mmap, position: int) -> int:
            got = super().pread_into(buffer, position)
            watch.has_read(self.path, got)
            return got

        def truncate(self, size: int) -> None:
            if size < self.size():
                watch.before_cut(self, size)
            super().truncate(size)

    class WatchedFiles(OsFiles):
        __slots__ = ()

        file_class = WatchedFile

    return WatchedFiles()
