"""The error message for a disk that is full in the middle of a copy, for all commands that copy.

It names the file that did not fit, how much the copy takes, how much is free after the unfinished copy was removed, and
what to do.  Computes sizes only; the caller cleans up.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from kafkalog import _shown
from kafkalog.engine.files import Files, FileStat
from kafkalog.engine.files.usage import free_bytes
from kafkalog.errors import DiskFull

__all__ = ["ABOUT", "AT_MOST", "NOTHING_LEFT", "READS", "bytes_in", "copy_of", "on_disk", "telling_full"]

ABOUT, AT_MOST, READS = "it takes about", "it takes at most", "what it reads takes"

NOTHING_LEFT = "the unfinished copy was removed, so you can run the same again"

BLOCK_BYTES = 4096
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def telling_full(
    target: str, what: str, files: Files, *, needed: Callable[[], int], then: Callable[[], str], known: str = ABOUT
) -> Iterator[None]:
    """Turns an error about missing space for `what` at `target` into DiskFull.

    `needed` returns how many bytes it takes there, and is only called then.  `known` says whether that is nearly right
    (ABOUT), an upper bound (AT_MOST), or the size of what is read instead (READS).  `then` returns what is left, and
    how to continue."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DiskFull) or error.errno not in _NO_SPACE:
            raise
        place = files.nearest_dir(target)
        full = DiskFull.because_of(error, f"no room for {what}")
        full.log_dir = target
        full.hint = f"{_room(needed, place, known)}; {then()}"
        raise full from error


def _room(needed: Callable[[], int], place: str, known: str) -> str:
    told = f"free space at {place}, or name a place on another disk"
    with suppress(OSError):
        want, free = needed(), free_bytes(place)
        more = "free some" if want <= free or known == READS else f"free {_shown.size(want - free)}"
        told = f"{known} {_shown.size(want)}, and {_shown.size(free)} are free at {place} now: {more} more, or name "
        told += "a place on another disk"
    return told


def on_disk(size_bytes: int) -> int:
    """Returns the space of a file of that size, in whole blocks."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def copy_of(found: FileStat) -> int:
    """Returns the space of a copy of that file.  An index that is being written has room for 10 MiB of entries, which
    is a hole: it counts as the blocks that the file has."""
    whole = on_disk(found.size)
    return whole if found.allocated is None else min(whole, found.allocated)


def bytes_in(folders: Iterable[str], files: Files, *, suffix: str = "") -> int:
    """Returns the space of a copy of all files in some directories, or of those with a suffix.  Files that cannot be
    read, or were deleted, do not count."""
    total = 0
    for folder in folders:
        with suppress(OSError):
            for name in files.list_files(folder):
                if name.endswith(suffix):
                    with suppress(OSError):
                        total += copy_of(files.stat(os.path.join(folder, name)))
    return total


def __dir__() -> list[str]:
    return __all__
