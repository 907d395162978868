"""Findings about unreadable files (a failing disk, a missing permission), and reading a log around bad blocks.

One file that cannot be read says nothing about the others: a check of many partitions reports it as a finding and
continues.  A shortage (a full disk, no free descriptor) and a failed sync are no such findings: they stop everything.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from kafkalog.engine.files.failure import UnsyncedError, is_shortage
from kafkalog.engine.remote.read_only import ReadOnlyFile
from kafkalog.errors import CorruptCheckpointException, KafkalogError, KafkaStorageException
from kafkalog.toolbox.report import Finding

if TYPE_CHECKING:
    from kafkalog._face.topic_settings import TopicSettings
    from kafkalog.engine.files import File, Files

__all__ = ["FileAroundBadBlocks", "is_of_bad_blocks", "no_file", "unread", "unread_file", "unread_settings"]

CANNOT_BE_READ = "cannot be read"  # the beginning of a finding
READ_BYTES = 1 << 20
BLOCK_BYTES = 4096
BAD_BLOCKS_MAX = 1024  # each may take a disk seconds; after so many, not every block is tried
STRETCH_BYTES = 1 << 20
_BAD_BLOCKS = frozenset(
    number
    for name in ("EIO", "ENXIO", "EBADMSG", "EUCLEAN", "ENODATA", "EREMOTEIO")
    if (number := getattr(errno, name, None)) is not None
)
_HINT_DISK = (
    "the disk fails: read the kernel's messages (dmesg), copy what can be read with `kafkalog salvage`, and replace "
    "the disk"
)
_HINT_PERMISSION = "run as the user that owns the log directory, or get read access"
_HINT_OTHER = "expected a readable file, or a partition's directory: move anything else away"


def unread(error: BaseException, *folders: str) -> Finding | None:
    """Returns the finding for an error about an unreadable file or directory: why, and what to do; None for other
    errors.

    With `folders`, only paths inside of them count."""
    if not isinstance(error, OSError) or isinstance(error, FileNotFoundError | UnsyncedError) or is_shortage(error):
        return None
    if not isinstance(error, KafkaStorageException) and isinstance(error, KafkalogError):
        return None
    path = _path_of(error)
    if error.errno is None or not path or (folders and not any(_is_below(path, folder) for folder in folders)):
        return None
    return Finding(path, 0, 0, _what(error.errno, error.strerror or os.strerror(error.errno)))


def no_file(path: str, files: Files) -> Finding | None:
    """Returns the finding about a log's name that is no regular file (a directory, a pipe) or a broken link: Kafka
    continues as if it did not exist.  Returns None for a file, also for a deleted one."""
    try:
        stat = files.stat(path)
    except OSError as error:
        if not (isinstance(error, FileNotFoundError) or error.errno == errno.ELOOP) or not files.is_link(path):
            return None  # opening it reports it
        return Finding(path, 0, 0, _what(errno.ENOENT, "it is a symbolic link without a target; is its disk mounted?"))
    except KafkalogError:
        return None
    if stat.is_file:
        return None
    return Finding(
        path, 0, 0, _what(errno.EISDIR, os.strerror(errno.EISDIR) if stat.is_dir else "it is not a regular file")
    )


def unread_settings(settings: TopicSettings) -> Finding | None:
    """Returns the finding about an unreadable file of the topics' settings, which count as empty from then on; else
    None.  Raises KafkaStorageException for a shortage."""
    error = settings.pass_over_unreadable()
    if error is None:
        return None
    if isinstance(error, CorruptCheckpointException):
        return Finding(str(error.path), 0, 0, f"{error.message} ({error.hint})")
    found = unread(error.__cause__ or error)  # the system's error: a shortage is not about the file
    if found is None:
        raise error
    return found


def unread_file(error: Exception, folder: str, files: Files) -> Finding | None:
    """Like `unread`, for a directory that is read and written: an EIO of a write does not count."""
    wrong = unread(error, folder)
    return None if wrong is None or _error_of_reading(wrong.path, files) is None else wrong


def _error_of_reading(path: str, files: Files) -> OSError | None:
    """Reads a file or directory completely; returns the error, or None."""
    try:
        if files.is_dir(path):
            files.list_dir(path)
            return None
        with files.open(path, writable=False) as file:
            position = 0
            while data := file.pread(READ_BYTES, position):
                position += len(data)
    except OSError as error:
        return error
    return None


def is_of_bad_blocks(error: BaseException) -> bool:
    """Returns whether the disk cannot read some of a file's bytes, but may read others."""
    return isinstance(error, OSError) and error.errno in _BAD_BLOCKS


def _path_of(error: OSError) -> str:
    """Returns the path of the error, or of its cause."""
    path: object = error.path if isinstance(error, KafkaStorageException) else error.filename
    if isinstance(path, str | bytes | os.PathLike):
        return os.fsdecode(path)
    return _path_of(error.__cause__) if isinstance(error.__cause__, OSError) else ""


def _is_below(path: str, folder: str) -> bool:
    within = os.path.join(os.path.abspath(folder), "")
    return os.path.join(os.path.abspath(path), "").startswith(within)


def _what(number: int, text: str) -> str:
    if number in (errno.EACCES, errno.EPERM):
        user = f"no permission for user {os.getuid()}" if hasattr(os, "getuid") else "no permission"
        return f"{CANNOT_BE_READ}: {os.strerror(number)} ({user}; {_HINT_PERMISSION})"
    if number in _BAD_BLOCKS:
        return f"{CANNOT_BE_READ}: {os.strerror(number)} ({_HINT_DISK})"
    return f"{CANNOT_BE_READ}: {text} ({_HINT_OTHER})"


class FileAroundBadBlocks(ReadOnlyFile):
    """Another file, read-only, with zeros for the blocks that the disk cannot read.

    After BAD_BLOCKS_MAX bad blocks, each further one skips a range that is not tried, because a disk may take seconds
    for each block.  The range is STRETCH_BYTES long, and doubles as long as nothing after it can be read.  Any other
    failure raises the file's OSError.  Used by one thread."""

    __slots__ = ("_bad", "_failures", "_inner", "_stretch", "_why")

    def __init__(self, inner: File) -> None:
        super().__init__(inner.path)
        self._inner = inner
        self._bad: set[int] = set()  # numbers of blocks
        self._failures = 0
        self._stretch = STRETCH_BYTES // BLOCK_BYTES
        self._why = ""

    def size(self) -> int:
        return self._inner.size()

    def pread(self, n: int, position: int) -> bytes:
        first, last = position // BLOCK_BYTES, (position + n - 1) // BLOCK_BYTES
        if self._bad.isdisjoint(range(first, last + 1)):
            try:
                return self._inner.pread(n, position)
            except OSError as error:
                if not is_of_bad_blocks(error):
                    raise
        end = min(position + n, self._inner.size())
        parts = []
        while position < end:
            block = position // BLOCK_BYTES
            count = min((block + 1) * BLOCK_BYTES, end) - position
            parts.append(self._block(block, count, position))
            position += count
        return b"".join(parts)

    def _block(self, block: int, count: int, position: int) -> bytes:
        if block not in self._bad:
            try:
                data = self._inner.pread(count, position).ljust(count, b"\0")
                self._stretch = STRETCH_BYTES // BLOCK_BYTES
                return data
            except OSError as error:
                if not is_of_bad_blocks(error):
                    raise
                self._failures += 1
                self._bad.add(block)
                if self._failures > BAD_BLOCKS_MAX:
                    end = min(block + self._stretch, -(-self.size() // BLOCK_BYTES))
                    self._bad.update(range(block, end))
                    self._stretch *= 2
                told = unread(error)
                self._why = CANNOT_BE_READ if told is None else told.what
        return bytes(count)

    def bad_ranges(self) -> list[tuple[int, int]]:
        """Returns the ranges (position, end) that were read as zeros, in order."""
        found: list[tuple[int, int]] = []
        for block in sorted(self._bad):
            begin, end = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, self.size())
            if found and found[-1][1] == begin:
                found[-1] = (found[-1][0], end)
            else:
                found.append((begin, end))
        return found

    def why_not(self, position: int, end: int) -> str | None:
        """Returns why some of these bytes could not be read; None if all could."""
        blocks = range(position // BLOCK_BYTES, -(-end // BLOCK_BYTES))
        return None if self._bad.isdisjoint(blocks) else self._why

    def close(self) -> None:
        super().close()
        self._inner.close()


def __dir__() -> list[str]:
    return __all__
