"""How many files may be open at a time: the budget of descriptors and maps, and how a file is opened again.

What is open and may be closed between two uses (each segment's .log, its indexes with what is held of them, its
transaction index) is a Held, and counts as one: a descriptor and at most one map.  When there are more than the budget
says, those that were not used lately are closed (`_native.held`), and opened again by name at their next use.  Who
reads a file, or writes to it, keeps it open as long as he does, beyond the budget.  Other files (a checkpoint while it
is written, a directory's lock) do not count; for these, and for the program around us, a part of the limits is left.

The limits are the process's own as they are when the budget is full.  They are not raised, as the JVM does: beyond 1024
descriptors a program that uses select() breaks, and it may be one that we know nothing of.  Whoever raises
RLIMIT_NOFILE himself is heard.  Knows paths and opens; nothing of segments.  No lock: each step of the count is native.
"""

from __future__ import annotations

import contextlib
import errno
import resource
from typing import Protocol, TypeVar

from kafkalog._native.state.held import Held, HeldFiles
from kafkalog.errors import ClosedChannelException, TooManyOpenFilesException

MOST_FILES = 4096  # of ours, whatever the limit is: a log of 20,000 segments needs none of them all the time
LEAST_FILES = 16  # below, an append and a reader would take each other's files all the time
_SHARE = (3, 4)  # of what the system lets the process have
_UNLIMITED = 1 << 20
_DEFAULT_MAPS = 65530
_FULL = (errno.EMFILE, errno.ENFILE)
HINT = "raise the limit on open files (ulimit -n, resource.setrlimit), or close what the program holds besides"


class Named(Protocol):
    """Something with a file's name."""

    @property
    def path(self) -> str: ...


class _Open(Protocol):
    path: str


F = TypeVar("F", bound=_Open, covariant=True)


class Opener(Protocol[F]):
    """A `Files`, as far as it opens."""

    def open(self, path: str) -> F: ...


class OpenFiles(HeldFiles):
    """A budget of `limit` files, LEAST_FILES or more; None: three quarters of what the process may have, descriptors or
    maps, and MOST_FILES at most."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._maps: int | None = None

    @property
    def limit(self) -> int:
        """How many may be open now."""
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
        """Makes `file` the channel of `held`; False, and nothing done, where it has one by now, or is closed."""
        if not self.enter(held, file):
            return False
        self.keep_to_limit()
        return True

    def keep_to_limit(self) -> None:
        """Closes what was not used lately, if too much is open."""
        if len(self) > LEAST_FILES:
            self.trim(self.limit)

    def make_room(self, error: OSError) -> bool:
        """After an open or a map that failed: whether it failed for want of room, and there may be some now."""
        if error.errno not in _FULL and error.errno != errno.ENOMEM:
            return False
        return self.trim(len(self) // 2) > 0

    def reopened(self, held: Held, named: Named, files: Opener[F]) -> F:
        """The channel of `held`, opened again.

        ClosedChannelException where there is no file of that name: its segment was deleted, or is just being renamed.
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
                continue  # another file may have the name by now
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
    return ClosedChannelException("the file is not there any more", path=path)


def raise_if_full(error: OSError, path: str) -> None:
    """A full table of open files is nothing that the disk did: TooManyOpenFilesException."""
    if error.errno in _FULL:
        raise TooManyOpenFilesException(f"the file cannot be opened: {error.strerror}", path=path, hint=HINT) from error


def _max_map_count() -> int:
    with contextlib.suppress(OSError, ValueError), open("/proc/sys/vm/max_map_count", "rb") as file:
        return int(file.read())
    return _DEFAULT_MAPS


OPEN_FILES = OpenFiles()
