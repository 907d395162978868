"""Doubles of the real disk for tests: one records every change, one fails on demand, one does not sync.

`RecordingFiles` makes each change for real and appends it to `ops`.  A test marks its promises with `mark` and later
replays any prefix into `tests.disk_model.Disk`.  `FaultyFiles` answers EIO, ENOSPC or another error at the n-th change.
Put it around a recording, not inside, so that short writes are recorded as they are.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kafkalog._native.state.descriptor import FileMap
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.files.api import Buffer, File, FileLock, Files, FileStat, HasFileno, Listing
from kafkalog.engine.files.failure import UnsyncedError
from kafkalog.engine.files.os_files import OsFile, OsFiles
from kafkalog.engine.files.pool import OpenFiles
from tests.disk_model import Disk, Op

Do = Callable[[], None]


class _TwinFile(File):
    """A file whose double checks or records each change."""

    __slots__ = ("inner", "node", "path", "twin")

    path: str

    def __init__(self, twin: _Twin, inner: File, node: int) -> None:
        self.path = inner.path
        self.twin = twin
        self.inner = inner
        self.node = node

    @property
    def closed(self) -> bool:
        return self.inner.closed

    def fileno(self) -> int:
        return self.inner.fileno()

    def size(self) -> int:
        return self.inner.size()

    def pread(self, n: int, position: int) -> bytes:
        self.twin.look("pread", self.path)
        return self.inner.pread(n, position)

    def pread_into(self, buffer: bytearray | memoryview | mmap.mmap, position: int) -> int:
        self.twin.look("pread", self.path)
        return self.inner.pread_into(buffer, position)

    def pwrite(self, data: Buffer, position: int) -> None:
        self.twin.write(self, bytes(data), position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        self.twin.write(self, data, position)
        return len(data)

    def truncate(self, size: int) -> None:
        self.twin.change(Op("truncate", self.path, self.node, size), lambda: self.inner.truncate(size), self)

    def sync(self) -> None:
        self.twin.change(Op("sync", self.path, self.node), self.inner.sync, self)

    def sync_data(self) -> None:
        self.twin.change(Op("sync", self.path, self.node), self.inner.sync_data, self)

    def close(self) -> None:
        self.inner.close()

    def map(self) -> FileMap | None:
        self.twin.look("map", self.path)
        return self.inner.map()

    def send_to(self, sock: HasFileno, position: int, count: int) -> int:
        self.twin.look("sendfile", self.path)
        return self.inner.send_to(sock, position, count)


class _Twin(Files):
    """Forwards everything; changes go through `change`, reads through `look`."""

    def __init__(self, inner: Files) -> None:
        self.inner = inner

    @property
    def pool(self) -> OpenFiles:
        return self.inner.pool

    def change(self, op: Op, do: Do, file: _TwinFile | None = None) -> None:
        raise NotImplementedError

    def look(self, kind: str, path: str) -> None:
        pass

    def write(self, file: _TwinFile, data: bytes, position: int) -> None:
        op = Op("write", file.path, file.node, position, data)
        self.change(op, lambda: file.inner.pwrite(data, position), file)

    def node_of(self, path: str) -> int:
        return -1

    def new_node(self) -> int:
        return -1

    def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> File:
        opened: list[File] = []

        def do() -> None:
            opened.append(self.inner.open(path, writable=writable, create=create, exclusive=exclusive))

        if (create or exclusive) and not self.inner.exists(path):
            node = self.new_node()
            self.change(Op("create", path, node), do)
        else:
            self.look("open", path)
            do()
            node = self.node_of(path)
        return _TwinFile(self, opened[0], node)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def is_dir(self, path: str) -> bool:
        return self.inner.is_dir(path)

    def is_link(self, path: str) -> bool:
        return self.inner.is_link(path)

    def is_readable(self, path: str) -> bool:
        return self.inner.is_readable(path)

    def stat(self, path: str) -> FileStat:
        return self.inner.stat(path)

    def list_dir(self, path: str) -> list[str]:
        self.look("list_dir", path)
        return self.inner.list_dir(path)

    def listing(self, path: str) -> Listing:
        self.look("list_dir", path)
        return self.inner.listing(path)

    def rename(self, src: str, dst: str) -> None:
        self.change(Op("rename", src, target=dst), lambda: self.inner.rename(src, dst))

    def unlink(self, path: str) -> None:
        if not self.inner.exists(path) and not self.inner.is_link(path):
            self.inner.unlink(path)  # raises: nothing changes, nothing is recorded
        self.change(Op("unlink", path), lambda: self.inner.unlink(path))

    def mkdirs(self, path: str) -> None:
        missing = []
        while path and not self.inner.exists(path):
            missing.append(path)
            path = os.path.dirname(path)
        for each in reversed(missing):
            self._mkdir(each)

    def _mkdir(self, path: str) -> None:
        self.change(Op("mkdir", path), lambda: self.inner.mkdirs(path))

    def rmdir(self, path: str) -> None:
        self.change(Op("rmdir", path), lambda: self.inner.rmdir(path))

    def sync_dir(self, path: str) -> None:
        self.change(Op("sync_dir", path), lambda: self.inner.sync_dir(path))

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        op = Op("utime", path, position=mtime_ms)
        self.change(op, lambda: self.inner.set_mtime_ms(path, mtime_ms))

    def read_bytes(self, path: str) -> bytes:
        self.look("read_bytes", path)
        return self.inner.read_bytes(path)

    def lock(self, path: str) -> FileLock:
        return self.inner.lock(path)


class RecordingFiles(_Twin):
    """Changes below `root` are made by `inner` and written down; elsewhere they are only made.

    `ops` is the sequence; `replay(n)` the disk after its first n.  Thread-safe: the order of `ops` is the order in
    which the changes took effect.  `.lock` files are not recorded.
    """

    def __init__(self, root: str, inner: Files = OS_FILES) -> None:
        super().__init__(inner)
        self.root = os.path.abspath(root)
        self.ops: list[Op] = []
        self._lock = threading.RLock()
        self._nodes: dict[str, int] = {}  # relative path -> node; guarded by _lock
        self._node_count = 0
        self._before: dict[str, tuple[int, bytes]] = {}
        self._before_dirs: list[str] = []
        for folder, dirs, names in os.walk(self.root):
            for name in sorted(dirs):
                self._before_dirs.append(self._relative(os.path.join(folder, name)))
            for name in sorted(names):
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    self._before[self._relative(path)] = (self._add(path), file.read())

    def mark(self, label: str, value: object = None) -> None:
        """Write down what was promised at this point."""
        with self._lock:
            self.ops.append(Op("mark", label, value=value))

    def replay(self, count: int | None = None, *, names_follow_sync: bool = False) -> Disk:
        """The disk after the first `count` operations (all by default)."""
        disk = Disk(names_follow_sync=names_follow_sync)
        disk.preset(self._before, self._before_dirs)
        for op in self.ops[: len(self.ops) if count is None else count]:
            disk.apply(op)
        return disk

    def change(self, op: Op, do: Do, file: _TwinFile | None = None) -> None:
        with self._lock:
            do()
            if not self._is_ours(op.path) or (file is not None and file.node < 0):
                return
            path = self._relative(op.path)
            target = ""
            match op.kind:
                case "create":
                    self._nodes[path] = op.node
                case "unlink":
                    self._nodes.pop(path, None)
                case "rename":
                    target = self._relative(op.target)
                    self._move(path, target)
            self.ops.append(Op(op.kind, path, op.node, op.position, op.data, target))

    def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> File:
        with self._lock:  # whether the file is new must not change between the look and the opening
            return super().open(path, writable=writable, create=create, exclusive=exclusive)

    def node_of(self, path: str) -> int:
        with self._lock:
            return self._nodes.get(self._relative(path), -1) if self._is_ours(path) else -1

    def new_node(self) -> int:
        with self._lock:
            self._node_count += 1
            return self._node_count - 1

    def _add(self, path: str) -> int:
        node = self._nodes[self._relative(path)] = self.new_node()
        return node

    def _move(self, path: str, target: str) -> None:
        if path in self._nodes:
            self._nodes[target] = self._nodes.pop(path)
            return
        inside = path + "/"
        for name in [name for name in self._nodes if name.startswith(inside)]:
            self._nodes[target + name[len(path) :]] = self._nodes.pop(name)

    def _relative(self, path: str) -> str:
        relative = os.path.relpath(os.path.abspath(path), self.root)
        return "" if relative == "." else relative

    def _is_ours(self, path: str) -> bool:
        absolute = os.path.abspath(path)
        return absolute == self.root or absolute.startswith(self.root + os.sep)


@dataclass(slots=True)
class Fault:
    """An error and its time: at the change number `at` (from 0, counting those of `kinds`), and forever after if
    `sticky`.  ENOSPC and EDQUOT concern only what needs space, write half of a write first, and let go what frees
    space; they refuse a rename or a sync if `kinds` names it."""

    at: int
    error: int = errno.EIO
    sticky: bool = True
    kinds: Collection[str] | None = None  # None: every change; reads only if named: open pread map list_dir ...
    paths: Callable[[str], bool] | None = None


_NEEDS_SPACE = frozenset({"create", "mkdir", "write", "truncate", "rename", "sync"})


@dataclass(slots=True)
class Failed:
    """A change that was refused."""

    kind: str
    path: str


class FaultyFiles(_Twin):
    """Refuses changes by plan.  `count` is the number of changes asked for so far, so a run without faults tells how
    many there are to go through."""

    def __init__(self, inner: Files, fault: Fault | None = None) -> None:
        super().__init__(inner)
        self.fault = fault
        self.count = 0
        self.failed: list[Failed] = []
        self._lock = threading.RLock()

    def change(self, op: Op, do: Do, file: _TwinFile | None = None) -> None:
        with self._lock:
            if self._is_due(op.kind, op.path) and self._concerns(op, file):
                if file is not None and op.kind == "write" and self._out_of_space and len(op.data) > 1:
                    file.inner.pwrite(op.data[: len(op.data) // 2], op.position)
                self._refuse(op.kind, op.path)
            do()

    def look(self, kind: str, path: str) -> None:
        fault = self.fault
        if fault is None or fault.kinds is None or kind not in fault.kinds:
            return
        with self._lock:
            if self._is_due(kind, path):
                self._refuse(kind, path)

    @property
    def _out_of_space(self) -> bool:
        return self.fault is not None and self.fault.error in (errno.ENOSPC, errno.EDQUOT)

    def _is_due(self, kind: str, path: str) -> bool:
        fault = self.fault
        if fault is not None:
            if fault.kinds is not None and kind not in fault.kinds:
                return False
            if fault.paths is not None and not fault.paths(path):
                return False
        number = self.count
        self.count += 1
        return fault is not None and (number == fault.at or (fault.sticky and number > fault.at))

    def _concerns(self, op: Op, file: _TwinFile | None) -> bool:
        if not self._out_of_space:
            return True
        if op.kind == "write":
            return file is None or op.position + len(op.data) > file.inner.size()
        if op.kind == "truncate":
            return file is None or op.position > file.inner.size()
        named = self.fault is not None and self.fault.kinds is not None and op.kind in self.fault.kinds
        return named or op.kind in _NEEDS_SPACE - {"rename", "sync"}

    def _refuse(self, kind: str, path: str) -> None:
        assert self.fault is not None
        self.failed.append(Failed(kind, path))
        kind_of = UnsyncedError if kind.startswith("sync") else OSError
        raise kind_of(self.fault.error, os.strerror(self.fault.error), path)


class _UnsyncedFile(OsFile):
    __slots__ = ()

    def sync(self) -> None:
        pass

    def sync_data(self) -> None:
        pass


class UnsyncedFiles(OsFiles):
    """The real disk without waiting for it: for tests that reopen thousands of directories."""

    __slots__ = ()

    file_class = _UnsyncedFile

    def sync_dir(self, path: str) -> None:
        pass
