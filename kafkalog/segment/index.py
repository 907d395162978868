"""AbstractIndex: fixed-size entries in a file that is allocated sparsely, searched through a map.

Holds what OffsetIndex and TimeIndex share: the file and its length, how many entries count, growing, shrinking,
trimming, renaming.  Knows nothing of what an entry means.  Mirrors org.apache.kafka.storage.internals.log.AbstractIndex
(4.4.0), whose one read-write map is two things here: entries are written with `pwrite`, so that a full disk is an error
and not a signal, and searched through a read-only map of the same pages, so that a lookup sees an append at once.

Neither the descriptor nor the map is kept for longer than it is used: a trimmed index gives both up, and small ones
are held as bytes when they are read again.  A file that others may shorten (`read_only`) is never mapped.

Locks: whatever writes is called under the partition's lock.  Readers take none: they read `_view`, which is replaced
whole.  Before a file is made shorter its map is closed, which fails while a reader searches it, so the writer waits;
a reader that meets a closed map takes `_lock` and looks again.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from kafkalog._native.tail import IndexEnd
from kafkalog.errors import (
    ClosedChannelException,
    IllegalArgumentException,
    IllegalStateException,
    IndexOffsetOverflowException,
    LogReadOnlyException,
)
from kafkalog.files import File, Files
from kafkalog.limits import INT_MAX

T = TypeVar("T")
View = mmap.mmap | bytes

KeyColumn = tuple[struct.Struct, int, bool]  # of what a search compares: layout, place in the entry, upper bound?

INDEX_FULL_HINT = "its segment has more entries than segment.index.bytes has room for: open it with a larger one"
WARM_BYTES = 8192  # searched first, as in `_native.search`
SEARCH_SECONDS_MAX = 10.0
# mmap counts who uses it without a lock of its own: CPython's was one.  Without that, users come one at a time.
ONE_AT_A_TIME = "t" in getattr(sys, "abiflags", "")
VIEW_AS_BYTES_MAX = 1 << 16  # a trimmed index up to this many bytes is read, not mapped


class IndexOutOfBoundsException(IllegalStateException, IndexError):
    """java.lang.IndexOutOfBoundsException: an index that was cut below its entries is asked for one that is gone."""


class AbstractIndex(IndexEnd):
    """An index file.  `entries` count, `max_entries` fit, `length` is the file's bytes, `path` where it is.

    Opening creates a missing file, sparse, of `max_index_size` rounded down to whole entries; of a file that exists
    every whole entry counts (also the zeros of one that a crash left untrimmed).  `read_only` creates and writes
    nothing, takes a missing file for an empty one, and leaves zeros at the end out.
    """

    entry_size = 1
    channel: File | None  # None until it is needed again; while it is open, `_view` is a map of it or None

    def __init__(
        self, path: str, base_offset: int, max_index_size: int, files: Files, *, read_only: bool = False
    ) -> None:
        self.path = path
        self.base_offset = base_offset
        self.max_index_size = max_index_size
        self.read_only = read_only
        self.closed = False
        self.last_offset = base_offset
        self.last_timestamp = -1
        self.length = 0
        self._files = files
        self._view: View | None = None
        self.dirty = True  # what an earlier process left unsynced is unknown
        self._lock = threading.RLock()
        if read_only:
            self._open_read_only()
        else:
            self._open()
        self.max_entries = self.length // self.entry_size

    # --- opening ---------------------------------------------------------------------------------------

    def _open(self) -> None:
        files, size = self._files, self.entry_size
        found: File | None = None
        try:
            found, self.length = files.open_sized(self.path)
        except FileNotFoundError:
            pass
        if found is not None:
            self.channel = found
            self.entries = self.length // size
            return
        self.channel = file = files.open(self.path, create=True, exclusive=True)
        if self.max_index_size < size:
            self.close()
            raise IllegalArgumentException(f"Invalid max index size: {self.max_index_size}")
        self.length = self.max_index_size // size * size
        file.truncate(self.length)

    def _open_read_only(self) -> None:
        try:
            file = self._files.open(self.path, writable=False)
        except FileNotFoundError:
            self._view = b""
            return
        try:
            self.length = file.size()
            self.entries = self._count_nonzero(file, self.length // self.entry_size)
            self._view = file.pread(self.entries * self.entry_size, 0)
            self.entries = len(self._view) // self.entry_size
        finally:
            file.close()

    def _count_nonzero(self, file: File, slots: int) -> int:
        """How many entries precede the zeros that a broker's preallocated index ends with."""
        size = self.entry_size
        empty = bytes(size)
        low, high = 0, slots
        while low < high:
            mid = (low + high) // 2
            if file.pread(size, mid * size) in (empty, b""):
                high = mid
            else:
                low = mid + 1
        return low

    # --- what every index answers ----------------------------------------------------------------------

    @property
    def file(self) -> str:
        """Kafka's name for `path`."""
        return self.path

    @property
    def is_full(self) -> bool:
        return self.entries >= self.max_entries

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the entries that count; `length` is the file's."""
        return self.entry_size * self.entries

    def can_append_offset(self, offset: int) -> bool:
        """Whether `offset` is near enough to the base offset for a 31-bit difference."""
        return 0 <= offset - self.base_offset <= INT_MAX

    def relative_offset(self, offset: int) -> int:
        """`offset` from the base offset; IndexOffsetOverflowException where it does not fit."""
        relative = offset - self.base_offset
        if 0 <= relative <= INT_MAX:
            return relative
        raise IndexOffsetOverflowException(f"Integer overflow for offset: {offset} ({self.path})")

    def sanity_check(self) -> None:
        """CorruptIndexException when the entries cannot belong to this segment."""
        raise NotImplementedError

    def truncate_to(self, offset: int) -> None:
        """Forgets the entries at or above `offset`; their bytes stay in the file."""
        raise NotImplementedError

    def truncate(self) -> None:
        """Forgets all entries; their bytes stay in the file."""
        self._truncate_to_entries(0)

    # --- the file --------------------------------------------------------------------------------------

    def open_channel(self) -> File:
        """The open file, opened again where it was let go."""
        file = self.channel
        if file is None:
            if self.read_only:
                raise LogReadOnlyException("The index was opened read-only", path=self.path)
            if self.closed:
                raise ClosedChannelException("The index is closed", path=self.path)
            file = self.channel = self._files.open(self.path)
            self._view = None  # the bytes of a trimmed one do not follow what is written
        return file

    def _write_entries(
        self, data: bytes | bytearray | memoryview, count: int, last_offset: int, last_timestamp: int = -1
    ) -> None:
        """Puts `count` entries behind the present ones, in one write; the caller has checked that they fit."""
        (self.channel or self.open_channel()).pwrite(data, self.entries * self.entry_size - self.behind)
        self.added(count, last_offset, last_timestamp)
        if self.behind:
            position = self.entries * self.entry_size - self.behind
            raise IllegalStateException(
                f"{self.entries} entries but file position in index is {position}", path=self.path
            )

    def _truncate_to_entries(self, entries: int) -> None:
        """IllegalArgumentException (after `entries` was set, as in Kafka) when the file ends before them."""
        with self._lock:
            position = self.entries * self.entry_size - self.behind
            self.entries = entries
            wanted = entries * self.entry_size
            if wanted > self.length:
                self.behind = wanted - position
                raise IllegalArgumentException(f"newPosition > limit: ({wanted} > {self.length})", path=self.path)
            self.behind = 0
            self._entries_changed()

    def _entries_changed(self) -> None:
        """Reads what the subclass remembers of its last entry again."""

    def _release_view(self) -> None:
        """Lets go of the map; waits for a reader who is searching it.  Called under `_lock`."""
        view = self._view
        self._view = None
        if not isinstance(view, mmap.mmap):
            return
        deadline = time.monotonic() + SEARCH_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                view.close()
                return
            except BufferError:
                time.sleep(0)
        # Nobody searches for so long: the count of its users is wrong.  It goes when it is forgotten.

    def _load_view(self) -> View:
        with self._lock:
            view = self._view
            if view is not None:
                return view
            if self.closed:
                raise ClosedChannelException("The index is closed", path=self.path)
            keep = self.channel
            file = keep or self._files.open(self.path, writable=False)
            try:
                if keep is None and self.length <= VIEW_AS_BYTES_MAX:
                    view = file.pread(self.length, 0)
                else:
                    view = file.map() or b""
            finally:
                if keep is None:
                    file.close()
            self._view = view
            return view

    def _search(self, look: Callable[[View, int], T]) -> T:
        """`look(view, entries)`, without a lock unless the view is being replaced."""
        view, entries = self._view, self.entries
        if view is not None and not ONE_AT_A_TIME:
            try:
                if entries * self.entry_size <= len(view):
                    return look(view, entries)
            except ValueError:  # the map was closed since we took it
                pass
        with self._lock:
            view = self._view
            if view is None or self.entries * self.entry_size > len(view):
                self._release_view()
                view = self._load_view()
            entries = self.entries
            if self.length >= entries * self.entry_size:  # else the search says what it meets
                entries = min(entries, len(view) // self.entry_size)
            return look(view, entries)

    def _find_past_end(self, view: View, entries: int, key: KeyColumn, target: int) -> int:
        """The steps of `_native.search` where entries lie beyond the view's end.

        IndexOutOfBoundsException when the search comes to one of those.
        """
        layout, at, upper = key

        def key_of(slot: int) -> int:
            start = slot * self.entry_size
            if start + self.entry_size > len(view):
                raise IndexOutOfBoundsException(f"Entry {slot} lies beyond {len(view)} bytes", path=self.path)
            return int(layout.unpack_from(view, start + at)[0])

        low, high = max(0, entries - 1 - WARM_BYTES // self.entry_size), entries - 1
        if key_of(low) >= target:
            if key_of(0) > target:
                return 0 if upper else -1
            low, high = 0, low
        while low < high:
            middle = (low + high + 1) // 2
            found = key_of(middle)
            if found == target:
                return middle
            low, high = (low, middle - 1) if found > target else (middle, high)
        if not upper:
            return low
        return -1 if low == entries - 1 else low + 1

    def _entry_bytes(self, slot: int) -> bytes:
        """The bytes of one entry; IndexOutOfBoundsException beyond `length`, zeros where others cut the file."""
        size = self.entry_size
        start = slot * size
        if start + size > self.length:
            raise IndexOutOfBoundsException(f"Entry {slot} lies beyond {self.length} bytes", path=self.path)
        file = self.channel
        if self._view is None and file is not None:
            return file.pread(size, start).ljust(size, b"\0")
        return self._search(lambda view, _: bytes(view[start : start + size])).ljust(size, b"\0")

    def resize(self, new_size: int) -> bool:
        """Makes the file `new_size` bytes long, rounded down to whole entries; False when it already is.

        The entries stay.  IllegalArgumentException (after the file was cut, as in Kafka) when they do not fit.
        """
        rounded = new_size // self.entry_size * self.entry_size
        with self._lock:
            if self.length == rounded:
                return False
            file = self.open_channel()
            self._release_view()
            file.truncate(rounded)
            self.length = rounded
            self.max_entries = rounded // self.entry_size
            self.dirty = True
            position = self.entries * self.entry_size - self.behind
            if position > rounded:
                self.behind = self.entries * self.entry_size  # the new map is at its beginning
                raise IllegalArgumentException(f"newPosition > limit: ({position} > {rounded})", path=self.path)
        return True

    def trim_to_valid_size(self) -> None:
        """Cuts the file behind the last entry and lets go of map and descriptor until the next use."""
        with self._lock:
            if self.closed:
                return
            self.resize(self.entry_size * self.entries)
            self._release_view()
            self.channel = None

    def reset(self) -> None:
        """Forgets all entries and makes the file full-sized again."""
        self.truncate()
        self.resize(self.max_index_size)

    def flush(self) -> None:
        """Makes entries and length durable; nothing to do when nothing changed since the last time."""
        with self._lock:
            if self.closed or self.read_only or not self.dirty:
                return
            try:
                self.dirty = False  # before: what an append adds meanwhile waits for the next time
                if self.channel is not None:
                    self.channel.sync()
                else:
                    self._files.sync_file(self.path)
            except FileNotFoundError:
                return
            except BaseException:
                self.dirty = True
                raise

    def rename_to(self, path: str) -> None:
        """Renames the file; from now on `path` is the new one, also when the disk refused that."""
        with self._lock:  # or a reader who opens it meanwhile looks for a name that is gone
            try:
                self._files.rename_or_was(self.path, path)
            except OSError:
                self.path = path
                raise
            self.path = path

    def update_parent_dir(self, parent_dir: str) -> None:
        """Notes that the folder was renamed."""
        self.path = os.path.join(parent_dir, os.path.basename(self.path))

    def delete_if_exists(self) -> bool:
        """Closes and unlinks the file; False when there was none."""
        self.close()
        return self._files.unlink_if_exists(self.path)

    def close(self) -> None:
        """Lets go of map and descriptor for good; neither trims nor flushes."""
        with self._lock:
            self.closed = True
            self._release_view()
            self.channel = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path}, entries={self.entries}, max_entries={self.max_entries})"
