"""The interface to the disk: `OsFiles` implements it, and tests implement it with recording and failing classes.

All code above this package changes the disk only through a `Files` and the `File`s that it opens, so that a test can
record, stop, tear or refuse any single step.  Methods raise plain `OSError`s; the code that knows the log directory
turns them into KafkaStorageException.  Paths are text.  Knows nothing of segments, formats or Kafka, except how Kafka
replaces a small file (`write_atomic`).
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
# Size, time in ns, mode, inode, blocks, links, device: the native listing's description of a name.
Found: TypeAlias = tuple[int, int, int, int, int, int, int]
FLUSH_BYTES = 8 << 20


class HasFileno(Protocol):
    """An object with a file descriptor, such as a socket or pipe."""

    def fileno(self) -> int:
        """Returns the descriptor."""


class FileStat(NamedTuple):
    """The description of a path.  Links are followed.

    Attributes:
        size: The size in bytes.
        mtime_ms: The modification time, in milliseconds since 1970.
        is_file: Whether it is a regular file.
        is_dir: Whether it is a directory.
        inode: The inode, which tells a file from another one that later got its name.
        is_about: Whether the size is an estimate (`Files.glance`).
        allocated: The bytes that the file takes of its disk, fewer than its size if it is sparse; None if unknown.
    """

    size: int
    mtime_ms: int
    is_file: bool
    is_dir: bool
    inode: int = 0
    is_about: bool = False
    allocated: int | None = None


class Listing(NamedTuple):
    """The names in a directory, sorted.  Links are followed, and broken links are omitted.

    Attributes:
        files: The regular files.
        others: Directories, devices, pipes.
    """

    files: list[str]
    others: list[str]


GLANCE_FIELDS = ("mtime_ns", "ctime_ns", "size", "inode", "device", "mode")  # the columns of `Files.glances`


class Looked(NamedTuple):
    """The state of a directory as one call read it.

    Attributes:
        mtime_ms: The modification time before the listing, in milliseconds since 1970.
        names: The names in the directory.
        stats: The descriptions of the requested names, as far as they could be read.
    """

    mtime_ms: int
    names: list[str]
    stats: Mapping[str, FileStat]


class File(ABC):
    """An open file with explicit positions.  It has no cursor, so that threads may read it together.

    A write writes everything or raises.  After a failed write, any prefix of it may be on disk.  All methods raise
    OSError.

    Example:
        >>> import os, tempfile
        >>> from kafkalog.engine.files import OS_FILES
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     with OS_FILES.open(os.path.join(directory, "notes"), create=True) as file:
        ...         file.pwrite(b"hello", 0)
        ...         print(file.size(), file.pread(2, 3))
        5 b'lo'
    """

    __slots__ = ()

    @property
    @abstractmethod
    def path(self) -> str:
        """The path.  Code that renames the file must set it."""

    @path.setter
    @abstractmethod
    def path(self, path: str) -> None: ...

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether `close` was called."""

    @abstractmethod
    def fileno(self) -> int:
        """Returns the descriptor, for selectors and sendfile; -1 once the file is closed."""

    @abstractmethod
    def size(self) -> int:
        """Returns the length in bytes, as the system reports it."""

    @abstractmethod
    def pread(self, n: int, position: int) -> bytes:
        """Reads bytes.

        Args:
            n: The number of bytes to read.
            position: The position of the first byte.

        Returns:
            The bytes; fewer than `n` only at the end of the file.
        """

    @abstractmethod
    def pread_into(self, buffer: bytearray | memoryview | mmap.mmap, position: int) -> int:
        """Reads bytes into a buffer.

        Args:
            buffer: The buffer to fill.
            position: The position of the first byte in the file.

        Returns:
            The number of bytes that were read; fewer than the buffer's size only at the end of the file.
        """

    @abstractmethod
    def pwrite(self, data: Buffer, position: int) -> None:
        """Writes all of `data` at `position`.  A hole before it reads as zeros."""

    @abstractmethod
    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Writes all buffers one after the other, beginning at `position`.  Returns the number of bytes."""

    @abstractmethod
    def truncate(self, size: int) -> None:
        """Truncates the file to `size` bytes, or extends it with zeros."""

    @abstractmethod
    def sync(self) -> None:
        """Syncs the file (fsync): content and length survive a power loss afterwards."""

    @abstractmethod
    def sync_data(self) -> None:
        """Syncs the file without its times (fdatasync), which would cost another write."""

    @abstractmethod
    def close(self) -> None:
        """Closes the file.  A second call does nothing."""

    @abstractmethod
    def map(self) -> FileMap | None:
        """Returns a read-only map of the whole file at its current length; None for an empty file.

        The map outlives `close`, and is unmapped when it is dropped.  It must not be read if another process may
        shorten the file, because a read beyond its end kills the process (SIGBUS).
        """

    @abstractmethod
    def send_to(self, sock: HasFileno, position: int, count: int) -> int:
        """Sends bytes of the file with one `sendfile`.

        Args:
            sock: The destination.
            position: The position of the first byte in the file.
            count: The largest number of bytes to send.

        Returns:
            The number of bytes that were sent; 0 at the end of the file.
        """

    def flush_soon(self, position: int, count: int) -> None:  # noqa: B027
        """Hints that these bytes are complete and will be synced soon, so that the disk may begin to write them."""

    def copy_from(self, source: File, size: int) -> int:
        """Copies the first `size` bytes of another file without reading them, as far as the system can.

        Returns how many bytes were copied.
        """
        return 0

    def clone_from(self, source: File) -> bool:
        """Makes this file a copy of another one that shares its blocks until one of them changes (a reflink).

        Returns False, and does nothing, if the file system cannot.
        """
        return False

    def write_synced(self, parts: Iterable[Buffer], position: int = 0) -> int:
        """Writes all parts one after the other, beginning at `position`, and syncs them.  Returns the number of bytes.

        The disk already writes meanwhile; with only a sync at the end, the caller would wait for all of it.
        """
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
        """Reports that the content that it returned cannot be read: a cache must fetch it again.  A disk has none."""

    def __enter__(self) -> File:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}{', closed' if self.closed else ''})"


class FileLock(ABC):
    """A held directory lock.

    Attributes:
        path: The lock file.
    """

    __slots__ = ("path",)

    path: str

    @abstractmethod
    def release(self, *, remove: bool = True) -> None:
        """Releases the lock and, as Kafka does, removes its file.  A second call does nothing.

        Args:
            remove: Whether to remove the file.
        """

    def share(self, token: bytes) -> None:  # noqa: B027
        """Admits guests (other processes) that know the token (`kafkalog.engine.files.lock.OsGuest`)."""

    def take_back(self) -> bool:
        """Holds the lock alone again.  Returns False while guests are active."""
        return True

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class Files(ABC):
    """The operations on directories, and the opening of files.

    All methods raise OSError (FileNotFoundError, FileExistsError and others).

    Example:
        >>> import os, tempfile
        >>> from kafkalog.engine.files import OS_FILES
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = os.path.join(directory, "notes")
        ...     OS_FILES.write_atomic(path, b"hello")
        ...     print(OS_FILES.list_dir(directory), OS_FILES.read_bytes(path))
        ['notes'] b'hello'
    """

    __slots__ = ()

    def close(self) -> None:  # noqa: B027
        """Ends threads and connections, if there are any.  Closes no files."""

    @property
    def pool(self) -> OpenFiles:
        """The budget of open files: the process's, unless the object was created with another."""
        return OPEN_FILES

    @property
    def is_dry(self) -> bool:
        """Whether writes go elsewhere, and are discarded."""
        return False

    def owns(self, path: str) -> bool:
        """Returns whether these files serve an address that is no path of this machine, such as `s3://bucket/prefix`."""
        return False

    @abstractmethod
    def open(self, path: str, *, writable: bool = True, create: bool = False, exclusive: bool = False) -> File:
        """Opens a file.

        Args:
            path: The file.
            writable: Open it for reading and writing; otherwise only for reading.
            create: Create the file if it is missing.  An existing file is not truncated.
            exclusive: Create the file, and raise FileExistsError if it exists.

        Returns:
            The open file.
        """

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Returns whether a file or directory exists (links followed)."""

    @abstractmethod
    def is_dir(self, path: str) -> bool:
        """Returns whether the path is a directory (links followed)."""

    @abstractmethod
    def is_link(self, path: str) -> bool:
        """Returns whether the path itself is a symbolic link."""

    @abstractmethod
    def is_readable(self, path: str) -> bool:
        """Returns whether this process may read the file or directory (links followed)."""

    @abstractmethod
    def stat(self, path: str) -> FileStat:
        """Returns size, modification time and kind of a path."""

    def glance(self, path: str) -> FileStat:
        """Returns `stat`, with an estimated size if the exact one would need a request."""
        return self.stat(path)

    def may_overlap(self, path: str) -> bool:
        """Returns whether a segment may extend beyond the beginning of the next one.

        This occurs if two brokers copied segments of the same log.
        """
        return False

    @abstractmethod
    def list_dir(self, path: str) -> list[str]:
        """Returns the names in a directory, sorted."""

    def names_in(self, path: str) -> list[str]:
        """Returns the names in a directory in the file system's order, in which Java lists them."""
        return self.list_dir(path)

    def listing(self, path: str) -> Listing:
        """Returns the names in a directory by kind."""
        found = Listing([], [])
        for name in self.list_dir(path):
            entry = os.path.join(path, name)
            if self.exists(entry):
                (found.files if self.stat(entry).is_file else found.others).append(name)
        return found

    def look_into(self, path: str, suffix: str) -> Looked | None:
        """Returns the state of a directory, and of the files in it with `suffix`, in one call.

        Returns None if these files have no such call, or if it failed: the caller then makes single calls, which
        raise the error.
        """
        return None

    def glances(self, place: str, names: bytes) -> bytes | None:
        """Returns the `stat` of many files below the directory `place` in one call, to find out which have changed.

        Args:
            place: The directory.
            names: The names, such as `t-0/leader-epoch-checkpoint`, each with a NUL at its end.

        Returns:
            GLANCE_FIELDS of each name as native int64, or zeros if it does not exist.  None as `look_into`.
        """
        return None

    def content(self, path: str, bytes_max: int) -> bytes | None:
        """Returns a file's bytes in one call.  None as `look_into`, and for a file of more than `bytes_max` bytes."""
        return None

    def has_inside(self, folder: str, name: str) -> bool:
        """Returns whether `folder` is a directory with an entry `name`.

        Also returns False if the answer would take longer than a listing.
        """
        return False

    def list_files(self, path: str) -> list[str]:
        """Returns the names of the regular files in a directory (links followed), sorted."""
        return self.listing(path).files

    @abstractmethod
    def rename(self, src: str, dst: str) -> None:
        """Renames a file or directory in one step, and replaces `dst`.

        It survives a power loss only after `sync_dir` of both parents.
        """

    def link(self, src: str, dst: str) -> None:
        """Gives a file a second, new name (a hard link).  It survives a power loss only after `sync_dir`.

        Raises:
            OSError: The file system, or these files, cannot do it (EXDEV, EPERM, ENOTSUP, EMLINK).
        """
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), dst)

    @abstractmethod
    def unlink(self, path: str) -> None:
        """Removes a file or a link."""

    @abstractmethod
    def mkdirs(self, path: str) -> None:
        """Creates a directory with its parents.  An existing directory is no error."""

    @abstractmethod
    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""

    @abstractmethod
    def sync_dir(self, path: str) -> None:
        """Syncs a directory (fsync): the names in it survive a power loss afterwards."""

    @abstractmethod
    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        """Sets the modification time, in milliseconds since 1970."""

    @abstractmethod
    def read_bytes(self, path: str) -> bytes:
        """Returns the whole content of a file."""

    @abstractmethod
    def lock(self, path: str) -> FileLock:
        """Creates and locks the lock file at `path` as Kafka's FileLock does.

        Raises:
            LogDirLockedException: Another process, or this one, holds the lock.
            OSError: The file cannot be created.
        """

    # --- built from the methods above, so that a test's class sees every step ---------------------

    def open_sized(self, path: str, *, writable: bool = True, create: bool = False) -> tuple[File, int]:
        """Opens a file and returns its length in bytes too, which saves one system call for each of many files."""
        file = self.open(path, writable=writable, create=create)
        try:
            return file, file.size()
        except BaseException:
            file.close()
            raise

    def size_of(self, path: str) -> int:
        """Returns a regular file's length in bytes."""
        return self.stat(path).size

    def nearest_dir(self, path: str) -> str:
        """Returns the first existing directory among `path` and its parents; the topmost path if none exists."""
        while not self.is_dir(path) and (above := parent_dir(path)) != path:
            path = above
        return path

    def mkdirs_synced(self, path: str) -> None:
        """Creates a directory with its parents, and syncs every new name.  An existing directory is no error."""
        missing = []
        there = self.nearest_dir(path)
        while path != there:
            missing.append(path)
            path = parent_dir(path)
        for each in reversed(missing):
            self.mkdirs(each)
            self.sync_dir(parent_dir(each))

    def unlink_if_exists(self, path: str) -> bool:
        """Removes a file.  Returns False if it does not exist."""
        try:
            self.unlink(path)
        except FileNotFoundError:
            return False
        return True

    def rename_or_was(self, src: str, dst: str) -> None:
        """Renames a file or directory; does nothing if that was already done, by a call that was interrupted."""
        try:
            self.rename(src, dst)
        except FileNotFoundError:
            if not self.exists(dst):
                raise

    def sync_file(self, path: str) -> None:
        """Syncs a file by name (fsync)."""
        with self.open(path) as file:
            file.sync()

    def create(self, path: str) -> None:
        """Creates an empty file if it does not exist."""
        self.open(path, create=True).close()

    def make_private(self, path: str) -> None:
        """Lets only the owner read and write a file, which is created if it does not exist.

        File systems without owners, such as object storage, only create it.
        """
        self.create(path)

    def write_file(self, path: str, data: Buffer, *, sync: bool = False) -> None:
        """Replaces a file's content in place, not atomically.

        Args:
            path: The file; it is created if it is missing.
            data: The new content.
            sync: Sync the file afterwards.
        """
        with self.open(path, create=True) as file:
            if file.size():
                file.truncate(0)
            file.pwrite(data, 0)
            if sync:
                file.sync()

    @contextlib.contextmanager
    def dir_to_sync(self, path: str) -> Iterator[Callable[[], object]]:
        """Opens a directory and yields a function that syncs it.

        The directory is opened first, so that a lack of descriptors is found before anything changes.
        """
        yield functools.partial(self.sync_dir, path)

    def write_atomic(self, path: str, data: Buffer, *, private: bool = False) -> None:
        """Replaces a small file as Kafka's CheckpointFile does: `<path>.tmp`, fsync, rename, fsync of the parent.

        Args:
            path: The file.
            data: The new content.
            private: Only the owner can read the file, whatever the umask is.
        """
        self.write_all_atomic(parent_dir(path), {path: data}, private=private)

    def write_all_atomic(self, folder: str, contents: Mapping[str, Buffer], *, private: bool = False) -> None:
        """Replaces several files in one directory, each as `write_atomic`.

        All are written before the first one is renamed: if space or descriptors run out, no file changes.

        Args:
            folder: The directory.
            contents: Maps each path to its new content.
            private: Only the owner can read the files.
        """
        temporaries = {path: path + ".tmp" for path in contents}
        with self.dir_to_sync(folder) as sync_dir:
            try:
                for path, data in contents.items():
                    if private:
                        self.unlink_if_exists(temporaries[path])  # somebody may have an old one open
                        self.make_private(temporaries[path])
                    self.write_file(temporaries[path], data, sync=True)
            except OSError as error:
                if is_shortage(error):  # unfinished files take space that others need
                    for temporary in temporaries.values():
                        with contextlib.suppress(OSError):
                            self.unlink_if_exists(temporary)
                raise
            for path, temporary in temporaries.items():
                self.rename(temporary, path)
            sync_dir()

    def remove_tree(self, path: str) -> None:
        """Removes a file, or a directory with all entries.  Links are removed, not followed.  May be missing."""
        if self.is_link(path) or not self.is_dir(path):
            self.unlink_if_exists(path)
            return
        for name in self.list_dir(path):
            self.remove_tree(os.path.join(path, name))
        self.rmdir(path)


def parent_dir(path: str) -> str:
    """Returns the directory that holds `path` (`.` for a bare name).

    Example:
        >>> from kafkalog.engine.files import parent_dir
        >>> parent_dir("/data/orders-0"), parent_dir("orders-0")
        ('/data', '.')
    """
    return os.path.dirname(path) or "."
