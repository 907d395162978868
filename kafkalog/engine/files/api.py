"""The one door to the disk, in types: what `OsFiles` does and what its recording and faulting twins stand in for.

Everything above this floor changes the disk through a `Files` and the `File`s it opens, and nothing else does, so
that a test can record, stop, tear or refuse any single step.  Methods raise plain `OSError`s; whoever knows the log
directory turns them into KafkaStorageException.  Paths are text.  Knows nothing of segments, formats or Kafka,
but for the way in which a small file is replaced (`write_atomic`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, TypeAlias

from kafkalog._native.state.descriptor import FileMap
from kafkalog.engine.files.failure import is_shortage
from kafkalog.engine.files.pool import OPEN_FILES, OpenFiles

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap
# Size, time in ns, mode, inode, blocks, links, device: what a native listing says of a name.
Found: TypeAlias = tuple[int, int, int, int, int, int, int]
FLUSH_BYTES = 8 << 20


class HasFileno(Protocol):
    """A socket or pipe."""

    def fileno(self) -> int: ...


class FileStat(NamedTuple):
    """What a path is: size in bytes, modification time in milliseconds since the epoch, kind (links followed); `inode`
    tells a file from the one that took its name.  `is_about`: the size is an estimate (`glance`).  `allocated`: bytes
    that it takes of its disk, fewer than its size if it is sparse; None if nobody says."""

    size: int
    mtime_ms: int
    is_file: bool
    is_dir: bool
    inode: int = 0
    is_about: bool = False
    allocated: int | None = None


class Listing(NamedTuple):
    """Names in a directory, sorted; links are followed, and one that leads nowhere is not there.

    `files` are regular ones, `others` directories, devices, pipes.
    """

    files: list[str]
    others: list[str]


GLANCE_FIELDS = ("mtime_ns", "ctime_ns", "size", "inode", "device", "mode")  # of `Files.glances`


class Looked(NamedTuple):
    """A folder as one call saw it: its modification time in milliseconds before it was listed, the names in it, and
    what those are that were asked for, as far as it could be told."""

    mtime_ms: int
    names: list[str]
    stats: Mapping[str, FileStat]


class File(ABC):
    """An open file with explicit positions: no cursor, so threads may read it together.

    Writes write everything or raise; after a failed write any prefix of it may be on disk.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def path(self) -> str:
        """Where it is; whoever renames it says so."""

    @path.setter
    @abstractmethod
    def path(self, path: str) -> None: ...

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether `close` was called."""

    @abstractmethod
    def fileno(self) -> int:
        """The descriptor, for selectors and sendfile; -1 once closed."""

    @abstractmethod
    def size(self) -> int:
        """Length in bytes, asked of the system."""

    @abstractmethod
    def pread(self, n: int, position: int) -> bytes:
        """Up to `n` bytes from `position`; fewer only at the end of the file."""

    @abstractmethod
    def pread_into(self, buffer: bytearray | memoryview | mmap.mmap, position: int) -> int:
        """Fill `buffer` from `position`; the number of bytes read, fewer than asked only at the end of the file."""

    @abstractmethod
    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`; a hole before it reads as zeros."""

    @abstractmethod
    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers one behind the other at `position`; the number of bytes written."""

    @abstractmethod
    def truncate(self, size: int) -> None:
        """Cut to `size` bytes, or extend with zeros."""

    @abstractmethod
    def sync(self) -> None:
        """fsync: content and length survive power loss afterwards."""

    @abstractmethod
    def sync_data(self) -> None:
        """fdatasync: as `sync`, but for the file's times, which cost another write."""

    @abstractmethod
    def close(self) -> None:
        """Close; a second call does nothing."""

    @abstractmethod
    def map(self) -> FileMap | None:
        """A read-only map of the whole file as long as it is now; None for an empty file.

        The map outlives `close`, and is gone when it is forgotten.  It must not be read where another process may
        shorten the file (SIGBUS).
        """

    @abstractmethod
    def send_to(self, sock: HasFileno, position: int, count: int) -> int:
        """One `sendfile` of up to `count` bytes from `position`; the number sent (0 at the end of the file)."""

    def flush_soon(self, position: int, count: int) -> None:  # noqa: B027
        """A hint: these bytes are written, will be synced and hardly be read soon, so the disk may begin with them."""

    def copy_from(self, source: File, size: int) -> int:
        """Copy the first `size` bytes of another file without reading them, as far as the system can; how many."""
        return 0

    def clone_from(self, source: File) -> bool:
        """Become a copy of another file that shares its blocks until one of them is changed (a reflink); False, and
        nothing is done, where the file system has none."""
        return False

    def write_synced(self, parts: Iterable[Buffer], position: int = 0) -> int:
        """Write all parts one behind the other from `position` on, and sync them; the number of bytes.  The disk is at
        work meanwhile: a sync at the end alone would wait for all of it."""
        end = told = position
        for part in parts:
            self.pwrite(part, end)
            end += len(part)
            if end - told >= FLUSH_BYTES:
                self.flush_soon(told, end - told)
                told = end
        self.sync()
        return end - position

    def doubt(self) -> None:  # noqa: B027
        """What it gave cannot be read: whatever is kept of it is fetched anew.  A disk keeps nothing."""

    def __enter__(self) -> File:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}{', closed' if self.closed else ''})"


class FileLock(ABC):
    """A held directory lock."""

    __slots__ = ("path",)

    path: str

    @abstractmethod
    def release(self, *, remove: bool = True) -> None:
        """Give the lock up and, as Kafka does, remove its file; a second call does nothing."""

    def share(self, token: bytes) -> None:  # noqa: B027
        """Let guests who know the token work under this lock (`kafkalog.engine.files.lock.OsGuest`)."""

    def take_back(self) -> bool:
        """Hold it alone again; False while guests are at work."""
        return True

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class Files(ABC):
    """Directory operations and opening.  All raise OSError (FileNotFoundError, FileExistsError, ...)."""

    __slots__ = ()

    def close(self) -> None:  # noqa: B027
        """Lets go of threads and connections, where it has any; not of files."""

    @property
    def pool(self) -> OpenFiles:
        """What limits how many are open at a time: of the process, unless it was made with another."""
        return OPEN_FILES

    @property
    def is_dry(self) -> bool:
        """Whether what is written goes elsewhere, and is thrown away."""
        return False

    def owns(self, path: str) -> bool:
        """Whether an address that is no path of this machine, such as `s3://bucket/prefix`, is one of these files'."""
        return False

    @abstractmethod
    def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> File:
        """Open for reading, and writing unless `writable=False`.

        `create` makes a missing file (never truncates one); `exclusive` refuses an existing one.
        """

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is a file or directory (links followed)."""

    @abstractmethod
    def is_dir(self, path: str) -> bool:
        """Whether there is a directory (links followed)."""

    @abstractmethod
    def is_link(self, path: str) -> bool:
        """Whether the path itself is a symbolic link."""

    @abstractmethod
    def is_readable(self, path: str) -> bool:
        """Whether there is something that this process may read (links followed)."""

    @abstractmethod
    def stat(self, path: str) -> FileStat:
        """Size, modification time and kind."""

    def glance(self, path: str) -> FileStat:
        """As `stat`, for who can do with an estimate of a size that would have to be asked for."""
        return self.stat(path)

    def may_overlap(self, path: str) -> bool:
        """Whether a segment may go on behind where the next one begins: two brokers copied them, each its own."""
        return False

    @abstractmethod
    def list_dir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def names_in(self, path: str) -> list[str]:
        """Names in a directory in the file system's own order, in which Java lists them."""
        return self.list_dir(path)

    def listing(self, path: str) -> Listing:
        """What is in a directory, by kind."""
        found = Listing([], [])
        for name in self.list_dir(path):
            entry = os.path.join(path, name)
            if self.exists(entry):
                (found.files if self.stat(entry).is_file else found.others).append(name)
        return found

    def look_into(self, path: str, suffix: str) -> Looked | None:
        """`stat` and `names_in` of a folder, and `stat` of what has names with `suffix`, in one call.  None where these
        files have no such call, or it failed: whoever asks one question after the other is told why."""
        return None

    def glances(self, place: str, names: bytes) -> bytes | None:
        """`stat` of many files below the folder `place` in one call, for who looks whether they have changed: for each
        name (`t-0/leader-epoch-checkpoint`), which ends with a NUL, GLANCE_FIELDS as native int64, or zeros where
        nothing is there.  None as `look_into`."""
        return None

    def content(self, path: str, bytes_max: int) -> bytes | None:
        """`read_bytes` of a file of at most so many, in one call; None as `look_into`, and for a larger file."""
        return None

    def has_inside(self, folder: str, name: str) -> bool:
        """Whether `folder` is a directory that has something of this name; False also where that would take longer to
        tell than to list it."""
        return False

    def list_files(self, path: str) -> list[str]:
        """Names of the regular files in a directory (links followed), sorted."""
        return self.listing(path).files

    @abstractmethod
    def rename(self, src: str, dst: str) -> None:
        """Rename, replacing `dst`, in one step.  Durable only after `sync_dir` of both parents."""

    def link(self, src: str, dst: str) -> None:
        """Give a file another name, which must be new.  Durable only after `sync_dir`.  OSError where the file system,
        or these files, cannot (EXDEV, EPERM, ENOTSUP, EMLINK)."""
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), dst)

    @abstractmethod
    def unlink(self, path: str) -> None:
        """Remove a file (or link)."""

    @abstractmethod
    def mkdirs(self, path: str) -> None:
        """Make a directory and what is missing above it; an existing one is fine."""

    @abstractmethod
    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""

    @abstractmethod
    def sync_dir(self, path: str) -> None:
        """fsync a directory: its names survive power loss afterwards."""

    @abstractmethod
    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        """Set the modification time."""

    @abstractmethod
    def read_bytes(self, path: str) -> bytes:
        """The whole file."""

    @abstractmethod
    def lock(self, path: str) -> FileLock:
        """Create and lock the lock file at `path` as Kafka's FileLock does.

        Raises LogDirLockedException where someone holds it, OSError where the file cannot be made.
        """

    # --- made of the above, so that the twins see every step -------------------------------------

    def open_sized(self, path: str, *, writable: bool = True, create: bool = False) -> tuple[File, int]:
        """`open`, and the file's length in bytes: one question less to the system where thousands are opened."""
        file = self.open(path, writable=writable, create=create)
        try:
            return file, file.size()
        except BaseException:
            file.close()
            raise

    def size_of(self, path: str) -> int:
        """A regular file's length in bytes."""
        return self.stat(path).size

    def nearest_dir(self, path: str) -> str:
        """The folder that is there, of `path` and those above it; the topmost of them where none is."""
        while not self.is_dir(path) and (above := parent_dir(path)) != path:
            path = above
        return path

    def mkdirs_synced(self, path: str) -> None:
        """`mkdirs` of which every new name survives power loss; an existing directory is fine."""
        missing = []
        there = self.nearest_dir(path)
        while path != there:
            missing.append(path)
            path = parent_dir(path)
        for each in reversed(missing):
            self.mkdirs(each)
            self.sync_dir(parent_dir(each))

    def unlink_if_exists(self, path: str) -> bool:
        """Remove a file; False where there was none."""
        try:
            self.unlink(path)
        except FileNotFoundError:
            return False
        return True

    def rename_or_was(self, src: str, dst: str) -> None:
        """`rename` for a change that is made again after it was interrupted: fine where it has happened already."""
        try:
            self.rename(src, dst)
        except FileNotFoundError:
            if not self.exists(dst):
                raise

    def sync_file(self, path: str) -> None:
        """fsync a file by name."""
        with self.open(path) as file:
            file.sync()

    def create(self, path: str) -> None:
        """Make an empty file where there is none."""
        self.open(path, create=True).close()

    def write_file(self, path: str, data: Buffer, *, sync: bool = False) -> None:
        """Write a whole file in place (not atomic): created, cut to nothing, written, synced if asked."""
        with self.open(path, create=True) as file:
            if file.size():
                file.truncate(0)
            file.pwrite(data, 0)
            if sync:
                file.sync()

    @contextlib.contextmanager
    def dir_to_sync(self, path: str) -> Iterator[Callable[[], object]]:
        """A directory, and what syncs it.  It is opened now: where no descriptor is left, nothing is changed yet."""
        yield functools.partial(self.sync_dir, path)

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replace a small file as Kafka's CheckpointFile does: `<path>.tmp`, fsync, rename, fsync of the parent."""
        self.write_all_atomic(parent_dir(path), {path: data})

    def write_all_atomic(self, folder: str, contents: Mapping[str, Buffer]) -> None:
        """`write_atomic` of files in one folder, by path.  All are written before the first takes its place: without
        space, or a descriptor, none is changed."""
        temporaries = {path: path + ".tmp" for path in contents}
        with self.dir_to_sync(folder) as sync_dir:
            try:
                for path, data in contents.items():
                    self.write_file(temporaries[path], data, sync=True)
            except OSError as error:
                if is_shortage(error):  # half of it takes space that others need
                    for temporary in temporaries.values():
                        with contextlib.suppress(OSError):
                            self.unlink_if_exists(temporary)
                raise
            for path, temporary in temporaries.items():
                self.rename(temporary, path)
            sync_dir()

    def remove_tree(self, path: str) -> None:
        """Remove a file or a directory with all that is in it; links are removed, not followed.  Missing is fine."""
        if self.is_link(path) or not self.is_dir(path):
            self.unlink_if_exists(path)
            return
        for name in self.list_dir(path):
            self.remove_tree(os.path.join(path, name))
        self.rmdir(path)


def parent_dir(path: str) -> str:
    """The directory that holds `path` (`.` for a bare name)."""
    return os.path.dirname(path) or "."
