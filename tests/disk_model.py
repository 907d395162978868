"""A disk in memory that remembers what was synced, so that the state after a crash at any step can be written to a real
one.

`Disk` gets the operations that `tests.file_doubles.RecordingFiles` recorded, one by one.  It keeps two images.  A
process that dies leaves the live image to the next.  Power loss leaves the durable image: a file's bytes at its last
fsync, a directory's names at its last fsync.  `materialise_live`, `materialise_durable` and
`materialise_shuffled` write an image, or a state between the two, into an empty directory.  Contents are kept without
the zeros at their end, so that preallocated files cost nothing.

The model is stricter than most file systems: a new file's name needs the directory's fsync, even if the file itself was
synced.  With `names_follow_sync=True` the file's first fsync makes the name durable, as in ext4.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Op:
    """One step.  `path` and `target` are relative to the recorded root; `node` says which file a handle meant."""

    kind: str  # create write truncate rename unlink mkdir rmdir sync sync_dir utime mark
    path: str
    node: int = -1
    position: int = 0  # bytes; of truncate: the new size; of utime: milliseconds
    data: bytes = b""
    target: str = ""
    value: object = None  # a mark's value

    def __str__(self) -> str:
        detail = {
            "write": f" [{self.position}, {self.position + len(self.data)})",
            "truncate": f" to {self.position}",
            "rename": f" -> {self.target}",
            "mark": f" {self.value!r:.60}",
        }.get(self.kind, "")
        return f"{self.kind} {self.path}{detail}"


class _Content:
    """A file's bytes; the bytes after `data`, up to `size`, are zeros."""

    __slots__ = ("data", "size")

    def __init__(self, data: bytes | bytearray = b"", size: int | None = None) -> None:
        self.data = bytearray(data)
        self.size = len(data) if size is None else size

    def copy(self) -> _Content:
        return _Content(self.data, self.size)

    def write(self, data: bytes | memoryview, position: int) -> None:
        end = position + len(data)
        if len(self.data) < position:
            self.data.extend(bytes(position - len(self.data)))
        self.data[position:end] = data
        self.size = max(self.size, end)

    def truncate(self, size: int) -> None:
        if size < len(self.data):
            del self.data[size:]
        self.size = size

    def apply(self, op: Op) -> None:
        if op.kind == "write":
            self.write(op.data, op.position)
        else:
            self.truncate(op.position)


class _FileNode:
    __slots__ = ("_digest", "durable", "live", "mtime_ms", "pending")

    def __init__(self) -> None:
        self.live = _Content()
        self.durable = _Content()
        self.pending: list[Op] = []  # writes and truncations since the last fsync
        self.mtime_ms: int | None = None
        self._digest: bytes | None = None

    def change(self, op: Op) -> None:
        self.live.apply(op)
        self.pending.append(op)
        self._digest = None

    def sync(self) -> None:
        for op in self.pending:
            self.durable.apply(op)
        self.pending.clear()

    def digest(self) -> bytes:
        if self._digest is None:
            self._digest = _digest(self.live)
        return self._digest


class _DirNode:
    __slots__ = ("durable", "live")

    def __init__(self) -> None:
        self.live: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}


_Node: TypeAlias = _FileNode | _DirNode


@dataclass(slots=True)
class _NameChange:
    """A step on names that waits for an fsync of one of its directories: (directory, name, node or None to remove)."""

    entries: list[tuple[_DirNode, str, _Node | None]]

    def touches(self, dirs: set[int]) -> bool:
        return any(id(directory) in dirs for directory, _, _ in self.entries)

    def apply(self) -> None:
        for directory, name, node in self.entries:
            if node is None:
                directory.durable.pop(name, None)
            else:
                directory.durable[name] = node


def _digest(content: _Content) -> bytes:
    hashed = hashlib.blake2b(content.data.rstrip(b"\0"), digest_size=16)
    hashed.update(content.size.to_bytes(8, "big"))
    return hashed.digest()


class Disk:
    """The model.  Not thread-safe."""

    def __init__(self, *, names_follow_sync: bool = False) -> None:
        self.root = _DirNode()
        self.files: dict[int, _FileNode] = {}
        self.names_follow_sync = names_follow_sync
        self.pending_names: list[_NameChange] = []

    # --- applying steps ----------------------------------------------------------------------------

    def preset(self, files: Mapping[str, tuple[int, bytes]], dirs: list[str]) -> None:
        """The durable state before the recording: path -> (node, content)."""
        for path in dirs:
            self.apply(Op("mkdir", path))
        for path, (node, content) in files.items():
            self.apply(Op("create", path, node))
            self.apply(Op("write", path, node, data=content))
            self.files[node].sync()
        for change in self.pending_names:
            change.apply()
        self.pending_names.clear()

    def apply(self, op: Op) -> None:
        """Take one step."""
        match op.kind:
            case "write" | "truncate":
                self.files[op.node].change(op)
            case "sync":
                self._sync(self.files[op.node])
            case "create":
                node = self.files[op.node] = _FileNode()
                self._change_names((op.path, node))
            case "mkdir":
                self._change_names((op.path, _DirNode()))
            case "unlink" | "rmdir":
                self._change_names((op.path, None))
            case "rename":
                directory, name = self._place(op.path)
                self._change_names((op.path, None), (op.target, directory.live[name]))
            case "sync_dir":
                self._sync_names({id(self._directory(op.path))})
            case "utime":
                directory, name = self._place(op.path)
                found = directory.live.get(name)
                if isinstance(found, _FileNode):
                    found.mtime_ms = op.position
            case "mark":
                pass
            case _:
                raise AssertionError(op)

    def _sync(self, node: _FileNode) -> None:
        node.sync()
        if self.names_follow_sync:
            dirs = {
                id(directory)
                for change in self.pending_names
                for directory, _, named in change.entries
                if named is node
            }
            if dirs:
                self._sync_names(dirs)

    def _change_names(self, *entries: tuple[str, _Node | None]) -> None:
        change = _NameChange([(*self._place(path), node) for path, node in entries])
        for directory, name, node in change.entries:
            if node is None:
                del directory.live[name]
            else:
                directory.live[name] = node
        self.pending_names.append(change)

    def _sync_names(self, dirs: set[int]) -> None:
        # A rename between two directories becomes durable as a whole, and so does what came before it in either.
        while True:
            wider = {
                id(directory)
                for change in self.pending_names
                if change.touches(dirs)
                for directory, _, _ in change.entries
            } | dirs
            if wider == dirs:
                break
            dirs = wider
        waiting = []
        for change in self.pending_names:
            if change.touches(dirs):
                change.apply()
            else:
                waiting.append(change)
        self.pending_names = waiting

    def _directory(self, path: str) -> _DirNode:
        node: _Node = self.root
        for name in _parts(path):
            assert isinstance(node, _DirNode), path
            node = node.live[name]
        assert isinstance(node, _DirNode), path
        return node

    def _place(self, path: str) -> tuple[_DirNode, str]:
        head, _, name = path.rpartition("/")
        return self._directory(head), name

    # --- images ------------------------------------------------------------------------------------

    def fingerprint(self) -> bytes:
        """Equal for equal live images."""
        hashed = hashlib.blake2b(digest_size=16)
        for path, node in sorted(_walk(self.root, durable=False), key=lambda found: found[0]):
            hashed.update(path.encode() + b"\0")
            if isinstance(node, _FileNode):
                hashed.update(node.digest())
        return hashed.digest()

    def durable_fingerprint(self) -> bytes:
        """Equal for equal durable images."""
        hashed = hashlib.blake2b(digest_size=16)
        for path, node in sorted(_walk(self.root, durable=True), key=lambda found: found[0]):
            hashed.update(path.encode() + b"\0")
            if isinstance(node, _FileNode):
                hashed.update(_digest(node.durable) if node.pending else node.digest())
        return hashed.digest()

    def live_files(self) -> dict[str, bytes]:
        """Path -> content of the live image, zeros written out; for tests of the model itself."""
        return {
            path: bytes(node.live.data) + bytes(node.live.size - len(node.live.data))
            for path, node in _walk(self.root, durable=False)
            if isinstance(node, _FileNode)
        }

    def materialise_live(self, into: str, *, torn: Op | None = None, torn_bytes: int = 0, lost_bytes: int = 0) -> None:
        """Writes the files that a killed process leaves.

        With `torn`, a write stopped after its first `torn_bytes` bytes, or power was lost and all of it came through
        but its first `lost_bytes` bytes."""
        contents: dict[int, _Content] = {}
        if torn is not None:
            node = self.files[torn.node]
            partial = node.live.copy()
            if torn_bytes:
                partial.write(torn.data[:torn_bytes], torn.position)
            if lost_bytes:
                partial.write(torn.data[lost_bytes:], torn.position + lost_bytes)
            contents[id(node)] = partial
        _write_tree(into, self.root, durable=False, contents=contents)

    def materialise_durable(self, into: str) -> None:
        """Writes the files that power loss leaves when nothing unsynced reached the disk."""
        _write_tree(into, self.root, durable=True, contents={})

    def materialise_shuffled(self, into: str, rng: random.Random) -> None:
        """Writes the files that power loss leaves when some of the unsynced steps reached the disk, in no order.

        Names: the first few of the waiting changes (file systems journal them in order).  Contents: any of the
        unsynced sectors and truncations of each file, and lengths that may have grown without the data.
        """
        saved: list[tuple[_DirNode, dict[str, _Node]]] = []
        for change in self.pending_names[: rng.randint(0, len(self.pending_names))]:
            for directory, _, _ in change.entries:
                saved.append((directory, dict(directory.durable)))
            change.apply()
        contents = {
            id(node): _shuffled(node, rng)
            for _, node in _walk(self.root, durable=True)
            if isinstance(node, _FileNode) and node.pending
        }
        _write_tree(into, self.root, durable=True, contents=contents)
        for directory, names in reversed(saved):
            directory.durable = names


def _shuffled(node: _FileNode, rng: random.Random) -> _Content:
    content = node.durable.copy()
    share = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    for op in node.pending:
        if op.kind == "truncate":
            if rng.random() < 0.5:
                content.truncate(op.position)
            continue
        view = memoryview(op.data)
        start = 0
        while start < len(view):
            # Sectors lie at multiples of their size in the file, not in the write.
            end = min(len(view), start + SECTOR_BYTES - (op.position + start) % SECTOR_BYTES)
            if rng.random() < share:
                content.write(view[start:end], op.position + start)
            start = end
    if rng.random() < 0.25:
        content.size = max(content.size, node.live.size)
    return content


def _walk(directory: _DirNode, *, durable: bool, prefix: str = "") -> Iterator[tuple[str, _Node]]:
    for name, node in (directory.durable if durable else directory.live).items():
        path = prefix + name
        yield path, node
        if isinstance(node, _DirNode):
            yield from _walk(node, durable=durable, prefix=path + "/")


def _write_tree(into: str, directory: _DirNode, *, durable: bool, contents: Mapping[int, _Content]) -> None:
    os.makedirs(into, exist_ok=True)
    for path, node in _walk(directory, durable=durable):
        place = os.path.join(into, path)
        if isinstance(node, _DirNode):
            os.mkdir(place)
            continue
        content = contents.get(id(node)) or (node.durable if durable else node.live)
        with open(place, "xb") as file:
            file.write(content.data)
            if content.size > len(content.data):
                file.truncate(content.size)
        if node.mtime_ms is not None:
            os.utime(place, ns=(node.mtime_ms * 1_000_000, node.mtime_ms * 1_000_000))


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part and part != "."]
