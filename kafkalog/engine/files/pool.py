"""The budget of open files (descriptors and maps), and how a file is opened again.

A file that may be closed between two uses is a Held: each segment's .log, its indexes with their maps, its transaction
index.  It counts as one: a descriptor and at most one map.  If there are more than the budget allows, those that were
not used lately are closed (`_native.held`), and opened again by name at their next use.  Code that reads or writes a
file keeps it open meanwhile, beyond the budget.  Other files (a checkpoint while it is written, a directory's lock) do
not count; a part of the limits is left for these, and for the rest of the program.

The limits are the process's limits at the time when the budget is full.  The JVM raises them; kafkalog does not: beyond
1024 descriptors a program that uses select() breaks, and this program may be one.  If the program raises RLIMIT_NOFILE
itself, the budget grows.  Knows paths and opens; nothing of segments.  No lock: each step of the count is native.
"""

from __future__ import annotations

import contextlib
import errno
import resource
from typing import Protocol, TypeVar

from kafkalog._native.state.held import Held, HeldFiles
from kafkalog.errors import ClosedChannelException, TooManyOpenFilesException

MOST_FILES = 4096  # the largest default budget: a log of 20,000 segments needs few of them at a time
LEAST_FILES = 16  # with fewer, an append and a reader would close each other's files all the time
_SHARE = (3, 4)  # three quarters of the process's limit
_UNLIMITED = 1 << 20
_DEFAULT_MAPS = 65530
_FULL = (errno.EMFILE, errno.ENFILE)
HINT = "raise the limit on open files (ulimit -n, resource.setrlimit), or close other files of the program"


class Named(Protocol):
    """An object with a file's name."""

    @property
    def path(self) -> str: ...


class _Open(Protocol):
    path: str


F = TypeVar("F", bound=_Open, covariant=True)


class Opener(Protocol[F]):
    """The part of `Files` that opens a file."""

    def open(self, path: str) -> F: ...


class OpenFiles(HeldFiles):
    """A budget of open files.

    Args:
        limit: The number of files, at least LEAST_FILES.  None: three quarters of the descriptors or maps that the
            process may have, and at most MOST_FILES.

    Example:
        >>> from kafkalog.engine.files import OpenFiles
        >>> OpenFiles(100).limit
        100
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._maps: int | None = None

    @property
    def limit(self) -> int:
        """The number of files that may be open now."""
        limit = self._limit
        if limit is None:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if soft == resource.RLIM_INFINITY:
                soft = _UNLIMITED
            if self._maps is None:
                self._maps = _max_map_count()
            limit = min(min(soft, self._maps) * _SHARE[0] // _SHARE[1], MOST_FILES)
        return max(limit, LEAST_FILES)

    def admit(self, held: Held, file: object) -> bool:
        """Makes `file` the channel of `held`.  Returns False, and does nothing, if it has one by now, or is closed."""
        if not self.enter(held, file):
            return False
        self.keep_to_limit()
        return True

    def keep_to_limit(self) -> None:
        """Closes files that were not used lately, if too many are open."""
        if len(self) > LEAST_FILES:
            self.trim(self.limit)

    def make_room(self, error: OSError) -> bool:
        """Closes files after an open or a map failed.  Returns whether a limit was the cause, and there is room now."""
        if error.errno not in _FULL and error.errno != errno.ENOMEM:
            return False
        return self.trim(len(self) // 2) > 0

    def reopened(self, held: Held, named: Named, files: Opener[F]) -> F:
        """Opens the file of `held` again, and returns it.

        Raises ClosedChannelException if no file has that name: its segment was deleted, or is just being renamed.
        """
        while True:
            path = named.path
            try:
                file = files.open(path)
            except FileNotFoundError:
                if named.path != path:
                    continue
                raise gone(path) from None
            except OSError as error:
                raise_if_full(error, path)
                raise
            if named.path != path:
                continue  # another file may have that name by now
            if self.admit(held, file):
                if named.path != path:  # for messages: it is the same file
                    file.path = named.path
                return file
            other: F | None = held.channel
            if other is not None:
                return other
            if held.closed:
                raise gone(path)


def gone(path: str) -> ClosedChannelException:
    return ClosedChannelException("the file no longer exists", path=path)


def raise_if_full(error: OSError, path: str) -> None:
    """Raises TooManyOpenFilesException for a full table of open files, which is no failure of the disk."""
    if error.errno in _FULL:
        raise TooManyOpenFilesException(f"the file cannot be opened: {error.strerror}", path=path, hint=HINT) from error


def _max_map_count() -> int:
    with contextlib.suppress(OSError, ValueError), open("/proc/sys/vm/max_map_count", "rb") as file:
        return int(file.read())
    return _DEFAULT_MAPS


OPEN_FILES = OpenFiles()
