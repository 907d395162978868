"""AbstractIndex: fixed-size entries in a file that is allocated sparsely, searched through a map.

Holds what OffsetIndex and TimeIndex share: the file and its length, how many entries count, growing, shrinking,
trimming, renaming.  Knows nothing of what an entry means.  Mirrors org.apache.kafka.storage.internals.log.AbstractIndex
(4.4.0), whose one read-write map is two things here: entries are written with `pwrite`, so that a full disk is an error
and not a signal, and searched through a read-only map of the same pages, so that a lookup sees an append at once.

Neither the descriptor nor the map is kept for longer than it is used: a trimmed index gives both up, and small ones
are held as bytes when they are read again.  Who cuts an index
that is mapped under a log that is open kills the process at the next search behind the cut (SIGBUS): asking the file
for its length before each search would take as long as the search again, and leave the instant between the two.

Where to look: an entry's bytes are laid out in `kafkalog.engine.format.index_entries` (in C
`_native/codec/layout.pxd`); the search and what is held for it are native, in `_native.search`; which batch gets
entries, `IndexPlan` in `_native.batches` says, and when an index is too full to go on, `SegmentTail.is_over` in
`_native.tail`.  A new index has a table there, a class here with its rules for `append`, a suffix and a path in
`format.names`; its file among those that LogSegment opens, checks, truncates, flushes, renames, closes and deletes; its
end in SegmentTail where appends write it, and in IndexPlan what it gets; LogLoader rebuilds it (`_rebuild_indexes`); a
foreign one is read by `segment.index_reader`, checked by `toolbox.index_check` and shown by `cli.dump`.

Locks: whatever writes is called under the partition's lock.  Readers take none: they search what is held.  Before a
file is made shorter that is let go, while nobody searches it; a reader that then finds nothing takes `_lock` and has
the file mapped again.
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

INDEX_FULL_HINT = "its segment has more entries than segment.index.bytes has room for: open it with a larger one"
VIEW_AS_BYTES_MAX = 1 << 16  # a trimmed index up to this many bytes is read, not mapped


class IndexOutOfBoundsException(IllegalStateException, IndexError):
    """java.lang.IndexOutOfBoundsException: an index that was cut below its entries is asked for one that is gone."""


class Making:
    """Whether the making of a file has begun: what an interrupt left of that has no entries, only zeros."""

    __slots__ = ("begun",)

    def __init__(self) -> None:
        self.begun = False


class AbstractIndex(IndexEnd):
    """An index file.  `entries` count, `max_entries` fit, `length` is the file's bytes, `path` where it is.

    Opening creates a missing file, sparse, of `max_index_size` rounded down to whole entries; of a file that exists
    every whole entry counts (also the zeros of one that a crash left untrimmed).
    """

    layout: ClassVar[struct.Struct]  # of an entry
    kind: ClassVar[type[Any]]  # what an entry says, a named tuple
    key_column: ClassVar[int]  # what a lookup compares, and what a truncation does
    offset_column: ClassVar[int]
    channel: File | None  # None until it is needed again; while it is open, what is held is a map of it

    def __init__(
        self, path: str, base_offset: int, max_index_size: int, files: Files, making: Making | None = None
    ) -> None:
        super().__init__(base_offset, self.kind, self.key_column)
        self.path = path
        self.max_index_size = max_index_size
        self.entry_size = self.layout.size
        self.length = 0
        self._files = files
        self.dirty = True  # what an earlier process left unsynced is unknown
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
            except FileNotFoundError:  # the folder is just being renamed, or gone
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
                hint="`kafkalog reindex` builds it from the log",
            )
        if is_new:
            self.length = self.max_index_size // size * size
            file.truncate(self.length)
        else:
            self.entries = self.length // size
        files.pool.admit(self, file)

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
        slot = self._find(self.offset_column, offset) if self.entries else -1
        if slot < 0:
            self._truncate_to_entries(0)
        else:
            self._truncate_to_entries(slot if self._parse(slot).offset == offset else slot + 1)

    def truncate(self) -> None:
        """Forgets all entries; their bytes stay in the file."""
        self._truncate_to_entries(0)

    # --- the file --------------------------------------------------------------------------------------

    def open_channel(self) -> File:
        """The open file, opened again where it was let go."""
        with self._lock:
            file = self.channel
            if file is None:
                if self.closed:
                    raise ClosedChannelException("The index is closed", path=self.path)
                self._let_go()  # the bytes of a trimmed one do not follow what is written
                file = self._files.pool.reopened(self, self, self._files)
                self._let_go()  # what a signal handler may have read in between
            return file

    def _write_entries(
        self, data: bytes | bytearray | memoryview, count: int, last_offset: int, last_timestamp: int = -1
    ) -> None:
        """Puts `count` entries behind the present ones, in one write; the caller has checked that they fit."""
        _pin = Pin(self)  # or a reader could hold the bytes from before the write
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
        raise NotImplementedError

    # --- looking ---------------------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Lets go of what is held, once nobody searches it.  Called under `_lock`."""
        now = generation()
        while not self.let_go(now != self._generation):
            time.sleep(0)
        self._generation = now

    def _hold(self) -> None:
        """Holds the file's bytes, to be searched.  Called under `_lock`."""
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
        """`search(entries, *args)` when the entries' bytes are held; IndexOutOfBoundsException where it comes to one
        that the file, cut below its entries, has not."""
        with self._lock:
            _pin = Pin(self)
            size = self.entry_size
            if self.held_bytes < max(self.entries * size, 0):
                self._hold()
            entries = self.entries
            if self.length >= entries * size:  # else the search says what it meets
                entries = min(entries, self.held_bytes // size)  # others cut the file
            try:
                return search(entries, *args)
            except IndexError as error:
                raise IndexOutOfBoundsException(str(error), path=self.path) from None

    def lookup_under_lock(self, target: int) -> Any:
        """`lookup` where the bytes of all entries were not held."""
        return self._under_lock(self.lookup_among, target)

    def lookups(self, targets: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """`lookup` for each of `targets`, as the columns of the answers; many times as fast as one by one."""
        found = self.lookup_many(targets)
        if found is None:
            entries = np.array([self.lookup(int(target)) for target in np.ravel(targets)], np.int64).reshape(-1, 2)
            found = entries[:, 0].reshape(np.shape(targets)), entries[:, 1].reshape(np.shape(targets))
        return found

    def _find(self, column: int, target: int, upper: bool = False) -> int:
        """The last slot whose `column` is at most `target`, or (upper) the first that is above; -1 for none."""
        slot = self.find(column, target, upper)
        return slot if slot >= -1 else self._under_lock(self.find_among, column, target, upper)

    def _entry_bytes(self, slot: int) -> bytes:
        """The bytes of one entry; IndexOutOfBoundsException beyond `length`, zeros where others cut the file."""
        size = self.entry_size
        start = slot * size
        if start + size > self.length:
            raise IndexOutOfBoundsException(f"Entry {slot} lies beyond {self.length} bytes", path=self.path)
        data = self.copied(start, size)
        if data is None:
            file = self.channel
            data = self._under_lock(lambda _: self.copied(start, size)) if file is None else file.pread(size, start)
        return (data or b"").ljust(size, b"\0")

    def _parse(self, slot: int) -> Any:
        """The entry in a slot, as `kind`."""
        raise NotImplementedError

    def all_entries(self) -> list[Any]:
        """Every entry; for dumps and checks."""
        return [self._parse(slot) for slot in range(self.entries)]

    # --- its length, its name --------------------------------------------------------------------------

    def resize(self, new_size: int) -> bool:
        """Makes the file `new_size` bytes long, rounded down to whole entries; False when it already is.

        The entries stay.  IllegalArgumentException (after the file was cut, as in Kafka) when they do not fit.
        """
        rounded = new_size // self.entry_size * self.entry_size
        with self._lock:
            if self.length == rounded:
                return False
            file = self.open_channel()
            self._let_go()
            file.truncate(rounded)
            self._let_go()  # what a signal handler may have mapped in between
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
            self._let_go()
            self.channel = None

    def reset(self) -> None:
        """Forgets all entries and makes the file full-sized again."""
        self.truncate()
        self.resize(self.max_index_size)

    def flush(self) -> None:
        """Makes entries and length durable; nothing to do when nothing changed since the last time."""
        with self._lock:
            if self.closed or not self.dirty:
                return
            try:
                self.dirty = False  # before: what an append adds meanwhile waits for the next time
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
        """Renames the file; from now on `path` is the new one, also when the disk refused that, but for a shortage."""
        with self._lock:  # or a reader who opens it meanwhile looks for a name that is gone
            try:
                self._files.rename_or_was(self.path, path)
            except OSError as error:
                if not is_shortage(error):
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
            self.shut()
            self._let_go()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path}, entries={self.entries}, max_entries={self.max_entries})"
