"""Disk usage: the sizes of files, and the blocks that the file system counts for them.

Counts as the system's `du`: links are not followed, a file with several names counts once, directories count too.
Reads only.  For sums; everything else about files goes through `Files`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kafkalog._native.state import folder
from kafkalog.engine.files.api import Files, Found
from kafkalog.engine.files.failure import is_shortage
from kafkalog.engine.files.mounts import mounted
from kafkalog.engine.files.os_files import STAT_BLOCK_BYTES


class Used(NamedTuple):
    """One file, directory or link: its `size` in bytes, and the `allocated` bytes that it takes of the disk."""

    path: str
    size: int
    allocated: int
    mtime_ms: int
    is_dir: bool


def walk(
    root: str, seen: set[tuple[int, int]] | None = None, unread: Callable[[OSError], object] | None = None
) -> Iterator[Used]:
    """Yields `root` and everything in it, directories before their entries, entries in the order of names.

    Entries that vanish meanwhile are skipped.  `seen` holds the files with several names that were counted; pass one
    set for all roots of a sum.  Raises OSError for `root`, and for a directory in it that cannot be listed; if `unread`
    is given, it is called with the latter error, and the walk continues.
    """
    seen = set() if seen is None else seen
    other = mounted(root)
    if other is not None:
        yield from _walk_mounted(root, other, seen)
        return
    waiting = [(root, _found(os.lstat(root)))]
    while waiting:
        path, found = waiting.pop()
        used = _used(path, found, seen)
        if used is None:
            continue
        yield used
        if used.is_dir:
            looked = folder.listing(path, "", False)
            try:
                names, known = (os.listdir(path), {}) if looked is None else looked[1:]
            except FileNotFoundError:
                continue
            except OSError as error:
                if unread is None or path == root or is_shortage(error):
                    raise
                unread(error)
                continue
            above = os.path.join(path, "")
            for name in sorted(names, reverse=True):
                inside = above + name
                try:
                    waiting.append((inside, known.get(name) or _found(os.lstat(inside))))
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if unread is None or is_shortage(error):
                        raise
                    unread(error)


def _found(of: os.stat_result) -> Found:
    """Returns the fields in the form of a native listing."""
    return of.st_size, of.st_mtime_ns, of.st_mode, of.st_ino, of.st_blocks, of.st_nlink, of.st_dev


def _used(path: str, found: Found, seen: set[tuple[int, int]]) -> Used | None:
    """Returns None for another name of a file that was already counted."""
    size, mtime_ns, mode, inode, blocks, links, device = found
    is_dir = stat.S_ISDIR(mode)
    if not is_dir and links > 1:
        if (device, inode) in seen:
            return None
        seen.add((device, inode))
    return Used(path, size, blocks * STAT_BLOCK_BYTES, mtime_ns // 1_000_000, is_dir)


def _walk_mounted(path: str, files: Files, seen: set[tuple[int, int]]) -> Iterator[Used]:
    """Walks a remote tier, or a directory that continues in one.  An object has no blocks: its length counts."""
    try:
        used = _used(path, _found(os.lstat(path)), seen)
    except FileNotFoundError:
        found = files.stat(path)
        size = 0 if found.is_dir else found.size
        used = Used(path, size, size, found.mtime_ms, found.is_dir)
    if used is not None:
        yield used
        for name in files.list_dir(path) if used.is_dir else ():
            yield from _walk_mounted(os.path.join(path, name), files, seen)


def allocated_bytes(path: str) -> int:
    """Returns the bytes that one file takes of the disk; 0 if it does not exist."""
    try:
        return os.lstat(path).st_blocks * STAT_BLOCK_BYTES
    except FileNotFoundError:
        return 0


class FileSystem(NamedTuple):
    """A file system of `size` bytes.  `free`: bytes for a user; both are None if the size is unknown, as for some
    network mounts."""

    device: int
    free: int | None
    size: int | None = None


def file_system(path: str) -> FileSystem:
    """Returns the file system of `path`.  OSError."""
    found = os.statvfs(path)
    free, size = (found.f_bavail, found.f_blocks) if found.f_blocks else (None, None)
    return FileSystem(
        os.stat(path).st_dev,
        None if free is None else free * found.f_frsize,
        None if size is None else size * found.f_frsize,
    )


def free_bytes(path: str) -> int:
    """Returns how many bytes a user may still write on the file system of `path`."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
