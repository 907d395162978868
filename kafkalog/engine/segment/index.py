"""AbstractIndex: fixed-size entries in a sparsely allocated file, searched through a memory map.

It holds what OffsetIndex and TimeIndex share: the file and its length, the number of valid entries, growing, shrinking,
trimming, renaming. It does not know what an entry means. Mirrors org.apache.kafka.storage.internals.log.AbstractIndex
(4.4.0). Kafka uses one read-write map; this class uses two things instead. Entries are written with `pwrite`, so that a
full disk is an error and not a signal. They are searched through a read-only map of the same pages, so that a lookup
sees an append at once.

Neither the descriptor nor the map is kept longer than it is used. Trimming an index closes both, and a small index is
held as bytes when it is read again. If another process truncates an index that an open log has mapped, the next search
after the new end kills this process (SIGBUS). This is not checked: reading the file's length before each search would
double its cost, and a race would remain.

Where things are: the layout of an entry is in `kafkalog.engine.format.index_entries` (in C:
`_native/codec/layout.pxd`). The search and the held bytes are native, in `_native.search`. `IndexPlan` in
`_native.batches` decides which batch gets entries, and `SegmentTail.is_over` in `_native.tail` decides when an index is
too full. To add an index:
- add a table to `format.index_entries`, a class with its rules for `append` here, a suffix and a path to
  `format.names`;
- let LogSegment open, check, truncate, flush, rename, close and delete its file;
- add its end to SegmentTail, where appends write it, and its entries to IndexPlan;
- let LogLoader rebuild it (`_rebuild_indexes`);
- add it to `segment.index_reader` (reads indexes of foreign directories), `toolbox.index_check` and `cli.dump`.

Locks: every method that writes is called under the partition's lock. Readers take no lock: they search the held bytes.
Before a file is made shorter, the held bytes are released while nobody searches them. A reader that then finds nothing
takes `_lock` and maps the file again.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from kafkalog._limits import INT_MAX, SEGMENT_FILE_BYTES_MAX
from kafkalog._native.state.descriptor import FileMap
from kafkalog._native.state.held import Pin
from kafkalog._native.state.search import IndexEnd
from kafkalog.engine.files import File, Files, is_shortage
from kafkalog.engine.files.pool import gone, raise_if_full
from kafkalog.engine.files.processes import generation
from kafkalog.errors import (
    ClosedChannelException,
    CorruptIndexException,
    IllegalArgumentException,
    IllegalStateException,
    IndexOffsetOverflowException,
)

if TYPE_CHECKING:
    import numpy.typing as npt

T = TypeVar("T")

INDEX_FULL_HINT = "the segment has more entries than segment.index.bytes has room for: open the log with a larger value"
VIEW_AS_BYTES_MAX = 1 << 16  # a trimmed index up to this many bytes is read, not mapped


class IndexOutOfBoundsException(IllegalStateException, IndexError):
    """java.lang.IndexOutOfBoundsException: the requested entry was in a part of the index file that was truncated."""


class Making:
    """Notes whether creating a file has begun. A file that an interrupt left behind has no entries, only zeros."""

    __slots__ = ("begun",)

    def __init__(self) -> None:
        self.begun = False


class AbstractIndex(IndexEnd):
    """An index file.

    `entries` is the number of valid entries, `max_entries` the number that fits, `length` the file's bytes.

    Opening creates a missing file: sparse, of `max_index_size` rounded down to whole entries. In a file that exists
    every whole entry is valid, including the zeros of a file that a crash left untrimmed.
    """

    layout: ClassVar[struct.Struct]  # the layout of an entry
    kind: ClassVar[type[Any]]  # the named tuple of an entry
    key_column: ClassVar[int]  # the columns that a lookup and a truncation compare
    offset_column: ClassVar[int]
    channel: File | None  # None while closed; while it is open, the held bytes are a map of it

    def __init__(
        self, path: str, base_offset: int, max_index_size: int, files: Files, making: Making | None = None
    ) -> None:
        super().__init__(base_offset, self.kind, self.key_column)
        self.path = path
        self.max_index_size = max_index_size
        self.entry_size = self.layout.size
        self.length = 0
        self._files = files
        self.dirty = True  # unknown: an earlier process may have left it unsynced
        self._lock = threading.RLock()
        self._generation = generation()
        self._open(making or Making())
        self.max_entries = self.length // self.entry_size
        self._entries_changed()

    # --- opening ---------------------------------------------------------------------------------------

    def _open(self, making: Making) -> None:
        files, size = self._files, self.entry_size
        is_new = False
        try:
            file, self.length = files.open_sized(self.path)
            is_new = making.begun and self.length <= self.max_index_size and not file.pread(self.length, 0).strip(b"\0")
        except FileNotFoundError:
            is_new = making.begun = True
            try:
                file = files.open(self.path, create=True, exclusive=True)
            except FileNotFoundError:  # the directory is being renamed, or was deleted
                raise gone(self.path) from None
            if self.max_index_size < size:
                self.close()
                raise IllegalArgumentException(f"Invalid max index size: {self.max_index_size}") from None
        except OSError as error:
            raise_if_full(error, self.path)
            raise
        if self.length > SEGMENT_FILE_BYTES_MAX:
            file.close()
            raise CorruptIndexException(
                f"found {self.length} bytes, expected at most {SEGMENT_FILE_BYTES_MAX}",
                path=self.path,
                hint="`kafkalog reindex` rebuilds it from the log",
            )
        if is_new:
            self.length = self.max_index_size // size * size
            file.truncate(self.length)
        else:
            self.entries = self.length // size
        files.pool.admit(self, file)

    # --- the common interface --------------------------------------------------------------------------

    @property
    def file(self) -> str:
        """Kafka's name for `path`."""
        return self.path

    @property
    def is_full(self) -> bool:
        return self.entries >= self.max_entries

    @property
    def size_in_bytes(self) -> int:
        """The bytes of the valid entries; `length` is the file's size."""
        return self.entry_size * self.entries

    def can_append_offset(self, offset: int) -> bool:
        """Returns whether `offset` minus the base offset fits into 31 bits."""
        return 0 <= offset - self.base_offset <= INT_MAX

    def relative_offset(self, offset: int) -> int:
        """Returns `offset` minus the base offset. Raises IndexOffsetOverflowException if it does not fit."""
        relative = offset - self.base_offset
        if 0 <= relative <= INT_MAX:
            return relative
        raise IndexOffsetOverflowException(f"Integer overflow for offset: {offset} ({self.path})")

    def sanity_check(self) -> None:
        """Raises CorruptIndexException if the entries cannot belong to this segment."""
        raise NotImplementedError

    def truncate_to(self, offset: int) -> None:
        """Removes the entries at or above `offset`; their bytes stay in the file."""
        slot = self._find(self.offset_column, offset) if self.entries else -1
        if slot < 0:
            self._truncate_to_entries(0)
        else:
            self._truncate_to_entries(slot if self._parse(slot).offset == offset else slot + 1)

    def truncate(self) -> None:
        """Removes all entries; their bytes stay in the file."""
        self._truncate_to_entries(0)

    # --- the file --------------------------------------------------------------------------------------

    def open_channel(self) -> File:
        """Returns the open file; opens it again if it was closed."""
        with self._lock:
            file = self.channel
            if file is None:
                if self.closed:
                    raise ClosedChannelException("The index is closed", path=self.path)
                self._let_go()  # the bytes of a trimmed index do not show later writes
                file = self._files.pool.reopened(self, self, self._files)
                self._let_go()  # a signal handler may have read it in between
            return file

    def _write_entries(
        self, data: bytes | bytearray | memoryview, count: int, last_offset: int, last_timestamp: int = -1
    ) -> None:
        """Writes `count` entries after the existing ones, in one write. The caller has checked that they fit."""
        _pin = Pin(self)  # or a reader could hold the bytes from before the write
        (self.channel or self.open_channel()).pwrite(data, self.entries * self.entry_size - self.behind)
        self.added(count, last_offset, last_timestamp)
        if self.behind:
            position = self.entries * self.entry_size - self.behind
            raise IllegalStateException(
                f"{self.entries} entries but file position in index is {position}", path=self.path
            )

    def _truncate_to_entries(self, entries: int) -> None:
        """Keeps the first `entries` entries.

        Raises IllegalArgumentException if the file ends before them; `entries` is set nevertheless, as in Kafka.
        """
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
        """Updates what the subclass remembers of its last entry."""
        raise NotImplementedError

    # --- searching -------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Releases the held bytes once nobody searches them. Called under `_lock`."""
        now = generation()
        while not self.let_go(now != self._generation):
            time.sleep(0)
        self._generation = now

    def _hold(self) -> None:
        """Reads or maps the file, to be searched. Called under `_lock`."""
        if self.closed:
            raise ClosedChannelException("The index is closed", path=self.path)
        self._let_go()
        keep = self.channel
        pool = self._files.pool
        file = keep or self._opened_to_read()
        try:
            if keep is None and self.length <= VIEW_AS_BYTES_MAX:
                self.hold(file.pread(self.length, 0), pool)
            else:
                self.hold(self._mapped(file), pool)
        finally:
            if keep is None:
                file.close()
        pool.keep_to_limit()

    def _opened_to_read(self) -> File:
        try:
            return self._files.open(self.path, writable=False)
        except FileNotFoundError:
            raise gone(self.path) from None
        except OSError as error:
            raise_if_full(error, self.path)
            raise

    def _mapped(self, file: File) -> FileMap | bytes:
        try:
            return file.map() or b""
        except OSError as error:
            if not self._files.pool.make_room(error):
                raise
        return file.map() or b""

    def _under_lock(self, search: Callable[..., T], *args: int) -> T:
        """Returns `search(entries, *args)`, run while the entries' bytes are held.

        Raises IndexOutOfBoundsException if the search reaches an entry that the truncated file no longer has.
        """
        with self._lock:
            _pin = Pin(self)
            size = self.entry_size
            if self.held_bytes < max(self.entries * size, 0):
                self._hold()
            entries = self.entries
            if self.length >= entries * size:  # else the search raises for the missing entry
                entries = min(entries, self.held_bytes // size)  # another process truncated the file
            try:
                return search(entries, *args)
            except IndexError as error:
                raise IndexOutOfBoundsException(str(error), path=self.path) from None

    def lookup_under_lock(self, target: int) -> Any:
        """Runs `lookup` if the bytes of all entries were not held."""
        return self._under_lock(self.lookup_among, target)

    def lookups(self, targets: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Runs `lookup` for each of `targets` and returns the results as columns; far faster than single lookups."""
        found = self.lookup_many(targets)
        if found is None:
            entries = np.array([self.lookup(int(target)) for target in np.ravel(targets)], np.int64).reshape(-1, 2)
            found = entries[:, 0].reshape(np.shape(targets)), entries[:, 1].reshape(np.shape(targets))
        return found

    def _find(self, column: int, target: int, upper: bool = False) -> int:
        """Returns the last slot whose `column` is at most `target`, or (upper) the first that is above; -1 for none."""
        slot = self.find(column, target, upper)
        return slot if slot >= -1 else self._under_lock(self.find_among, column, target, upper)

    def _entry_bytes(self, slot: int) -> bytes:
        """Returns the bytes of one entry; zeros if another process truncated the file.

        Raises IndexOutOfBoundsException beyond `length`.
        """
        size = self.entry_size
        start = slot * size
        if start + size > self.length:
            raise IndexOutOfBoundsException(
                f"Entry {slot} is after the end of the file of {self.length} bytes", path=self.path
            )
        data = self.copied(start, size)
        if data is None:
            file = self.channel
            data = self._under_lock(lambda _: self.copied(start, size)) if file is None else file.pread(size, start)
        return (data or b"").ljust(size, b"\0")

    def _parse(self, slot: int) -> Any:
        """Returns the entry in a slot, as `kind`."""
        raise NotImplementedError

    def all_entries(self) -> list[Any]:
        """Returns every entry; for dumps and checks."""
        return [self._parse(slot) for slot in range(self.entries)]

    # --- length and name -------------------------------------------------------------------------------

    def resize(self, new_size: int) -> bool:
        """Makes the file `new_size` bytes long, rounded down to whole entries. Returns False if it already is.

        The entries stay. Raises IllegalArgumentException (after the file was truncated, as in Kafka) if they do not
        fit.
        """
        rounded = new_size // self.entry_size * self.entry_size
        with self._lock:
            if self.length == rounded:
                return False
            file = self.open_channel()
            self._let_go()
            file.truncate(rounded)
            self._let_go()  # a signal handler may have mapped it in between
            self.length = rounded
            self.max_entries = rounded // self.entry_size
            self.dirty = True
            position = self.entries * self.entry_size - self.behind
            if position > rounded:
                self.behind = self.entries * self.entry_size  # a new map starts at its beginning
                raise IllegalArgumentException(f"newPosition > limit: ({position} > {rounded})", path=self.path)
        return True

    def trim_to_valid_size(self) -> None:
        """Truncates the file after the last entry, and closes map and descriptor until the next use."""
        with self._lock:
            if self.closed:
                return
            self.resize(self.entry_size * self.entries)
            self._let_go()
            self.channel = None

    def reset(self) -> None:
        """Removes all entries and gives the file its full size again."""
        self.truncate()
        self.resize(self.max_index_size)

    def flush(self) -> None:
        """Makes entries and length durable. Does nothing if nothing changed since the last flush."""
        with self._lock:
            if self.closed or not self.dirty:
                return
            try:
                self.dirty = False  # before the sync: a concurrent append must set it again
                file = self.channel
                if file is not None:
                    file.sync()
                else:
                    self._files.sync_file(self.path)
            except FileNotFoundError:
                return
            except BaseException:
                self.dirty = True
                raise

    def rename_to(self, path: str) -> None:
        """Renames the file.

        `path` becomes the new path even if the disk refused the rename, except for a shortage (of descriptors or
        space).
        """
        with self._lock:  # or a reader that opens the file meanwhile would use the old name
            try:
                self._files.rename_or_was(self.path, path)
            except OSError as error:
                if not is_shortage(error):
                    self.path = path
                raise
            self.path = path

    def update_parent_dir(self, parent_dir: str) -> None:
        """Records that the directory was renamed."""
        self.path = os.path.join(parent_dir, os.path.basename(self.path))

    def delete_if_exists(self) -> bool:
        """Closes and deletes the file. Returns False if there was none."""
        self.close()
        return self._files.unlink_if_exists(self.path)

    def close(self) -> None:
        """Closes map and descriptor for good; neither trims nor flushes."""
        with self._lock:
            self.shut()
            self._let_go()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path}, entries={self.entries}, max_entries={self.max_entries})"
