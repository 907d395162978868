"""Reads index files of a directory that another process owns, and trusts them only as far as they make sense.

A running broker preallocates the indexes of the active segment, so a file ends in zero slots; a crash or another
program may leave worse. `offset_entries` and `time_entries` return the prefix in which entries grow as they must. It is
searched like the engine's indexes (`kafkalog._native.state.search`). An entry is a hint: the caller checks the batch
that it finds (`SegmentReader`). A .txnindex is different: a missing entry would make aborted records look committed, so
its entries must be right. Needs no lock; holds no file.

An .index or .timeindex file that cannot be read (a permission, a failing disk) counts as missing: the log is scanned
instead. A warning is logged, once for each file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from kafkalog._limits import INT_MAX, LONG_MAX
from kafkalog._native.state.search import BYTE_POSITION, OFFSET, TIME, IndexEnd
from kafkalog.engine.files.failure import is_shortage
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.format.index_entries import OFFSET_ENTRIES, OFFSET_ENTRY, TIME_ENTRIES, TIME_ENTRY, TXN_ENTRIES
from kafkalog.engine.segment.transaction_index import REBUILD_HINT, VERSION, AbortedTxn
from kafkalog.errors import CorruptIndexException, KafkalogError

if TYPE_CHECKING:
    from kafkalog.engine.files import Files

PIECE_BYTES = 96 * 1024  # a whole number of entries of either index
PASSED_OVER_MAX = 10_000
_passed_over: set[str] = set()  # files for which a warning was logged
_ZEROS = bytes(PIECE_BYTES)


class _Entries(IndexEnd):
    """The first `count` entries in an index file's bytes."""

    column: ClassVar[int]

    def __init__(self, data: bytes, count: int, base_offset: int) -> None:
        super().__init__(base_offset, tuple, self.column)
        self.hold(data)
        self.entries = count

    def __len__(self) -> int:
        return self.entries


class OffsetEntries(_Entries):
    """Leading entries of an .index file: absolute offsets and file positions of batches, both strictly growing."""

    column = OFFSET

    def floor(self, offset: int) -> tuple[int, int]:
        """Returns the entry with the greatest offset <= `offset`, as (offset, position).

        Returns (base offset, 0) if there is none; no entry has position 0.
        """
        found: tuple[int, int] = self.lookup(offset)
        return found

    def last_entry(self) -> tuple[int, int]:
        """Returns the last entry; (base offset, 0) if there are none."""
        return self.floor(LONG_MAX)

    def at_or_behind(self, position: int) -> tuple[int, int] | None:
        """Returns the first entry with a position >= `position`."""
        # The slot after the last lower one: Kafka's upper-bound search never checks whether the first entry is equal.
        return self._entry(self.find(BYTE_POSITION, min(position - 1, INT_MAX)) + 1)

    def at_or_before(self, position: int) -> tuple[int, int] | None:
        """Returns the last entry with a position <= `position`."""
        return self._entry(self.find(BYTE_POSITION, min(position, INT_MAX)))

    def _entry(self, slot: int) -> tuple[int, int] | None:
        data = self.copied(slot * OFFSET_ENTRY.size, OFFSET_ENTRY.size) if 0 <= slot < self.entries else None
        if data is None:
            return None
        offset, found = OFFSET_ENTRY.unpack(data)
        return self.base_offset + offset, found


class TimeEntries(_Entries):
    """Leading entries of a .timeindex file: strictly growing timestamps, and absolute offsets."""

    column = TIME

    def before(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Returns the last entry with a timestamp below `timestamp_ms`, as (timestamp, offset)."""
        target = min(max(timestamp_ms, 0) - 1, LONG_MAX)  # no valid entry is negative
        timestamp, offset = self.lookup(target)
        return None if timestamp < 0 else (timestamp, offset)

    def entry(self, n: int) -> tuple[int, int]:
        """Returns the n-th entry, as (timestamp, offset)."""
        data = self.copied(n * TIME_ENTRY.size, TIME_ENTRY.size)
        assert data, (n, self.entries)
        timestamp, offset = TIME_ENTRY.unpack(data)
        return timestamp, self.base_offset + offset


def _leading(good: np.ndarray) -> int:
    """Returns the number of good items before the first bad one."""
    bad = np.flatnonzero(~good)
    return int(bad[0]) if len(bad) else len(good)


def _load_hints(files: Files, path: str) -> bytes:
    """Loads like `_load`, but returns nothing if the file cannot be read."""
    try:
        return _load(files, path)
    except OSError as error:
        _pass_over(path, error)
        return b""


def _pass_over(path: str, error: OSError) -> None:
    """Logs an index that cannot be read. Raises errors that say nothing about the file: a shortage, an engine error."""
    if isinstance(error, KafkalogError) or is_shortage(error) or error.errno is None:
        raise error
    if path not in _passed_over and len(_passed_over) < PASSED_OVER_MAX:
        _passed_over.add(path)
        folder, name = os.path.split(path)
        log_dir, partition = os.path.split(folder)
        Lines("kafkalog.log", log_dir, partition).warning(
            "%s cannot be read (%s), the log is searched without it; `kafkalog reindex %s --yes %s` rebuilds it",
            name,
            error.strerror or error,
            log_dir,
            partition,
        )


def _load(files: Files, path: str) -> bytes:
    """Returns the file up to the first run of zero slots; nothing if the file is missing."""
    little = files.content(path, PIECE_BYTES)
    if little is not None:
        return b"" if _ZEROS.startswith(little) else little
    pieces = []
    try:
        file = files.open(path, writable=False)
    except (FileNotFoundError, IsADirectoryError):
        return b""
    with file:
        position = 0
        while True:
            piece = file.pread(PIECE_BYTES, position)
            if _ZEROS.startswith(piece):  # the end of the file, or preallocated space
                break
            pieces.append(piece)
            position += len(piece)
    return b"".join(pieces)


def entries_of(data: bytes, dtype: np.dtype) -> np.ndarray:
    """Returns the whole entries in an index file's bytes, unchecked."""
    return np.frombuffer(data, dtype, len(data) // dtype.itemsize)


def offset_entries(files: Files, path: str, base_offset: int, log_bytes: int) -> OffsetEntries:
    """Returns the valid entries of an .index file whose positions are within `log_bytes` of log."""
    data = _load_hints(files, path)
    if len(data) < OFFSET_ENTRY.size:
        return OffsetEntries(data, 0, base_offset)
    raw = entries_of(data, OFFSET_ENTRIES)
    positions = raw["position"].astype(np.int64)
    # The first batch of a segment is never indexed: position 0 is a zero slot.
    grows = (np.diff(raw["offset"].astype(np.int64), prepend=-1) > 0) & (np.diff(positions, prepend=0) > 0)
    count = int(np.searchsorted(positions[: _leading(grows)], log_bytes, side="left"))
    return OffsetEntries(data, count, base_offset)


def time_entries(files: Files, path: str, base_offset: int) -> TimeEntries:
    """Returns the valid entries of a .timeindex file."""
    data = _load_hints(files, path)
    if len(data) < 2 * TIME_ENTRY.size:  # many partitions have only small segments, with one entry
        is_one = len(data) >= TIME_ENTRY.size and min(TIME_ENTRY.unpack_from(data)) >= 0
        return TimeEntries(data, int(is_one), base_offset)
    raw = entries_of(data, TIME_ENTRIES)
    grows = np.diff(raw["timestamp"].astype(np.int64), prepend=-1) > 0
    count = _leading(grows & (np.diff(raw["offset"].astype(np.int64), prepend=0) >= 0))
    return TimeEntries(data, count, base_offset)


def last_position(files: Files, path: str) -> int:
    """Returns the position in an .index file's last entry, or -1; it may be after the log's end.

    Zero slots after the last entry are preallocated space.
    """
    size = OFFSET_ENTRY.size
    try:
        with files.open(path, writable=False) as file:
            at = (file.size() // size - 1) * size
            last = file.pread(size, at) if at >= 0 else b""
    except (FileNotFoundError, IsADirectoryError):
        return -1
    except OSError as error:
        _pass_over(path, error)
        return -1
    position: int = OFFSET_ENTRY.unpack(last)[1] if len(last) == size else -1
    if position == 0:
        positions = entries_of(_load_hints(files, path), OFFSET_ENTRIES)["position"]
        named = positions[positions != 0]
        position = int(named[-1]) if len(named) else -1
    return position


def last_time(files: Files, path: str) -> int:
    """Returns the timestamp of a .timeindex file's last entry; -1 if the last slot has none or the file is missing."""
    size = TIME_ENTRY.size
    try:
        little = files.content(path, PIECE_BYTES)
    except (FileNotFoundError, IsADirectoryError):
        return -1
    except OSError as error:
        _pass_over(path, error)
        return -1
    if little is not None:
        at = (len(little) // size - 1) * size
        last = little[at : at + size] if at >= 0 else b""
    else:
        try:
            with files.open(path, writable=False) as file:
                at = (file.size() // size - 1) * size
                last = file.pread(size, at) if at >= 0 else b""
        except (FileNotFoundError, IsADirectoryError):
            return -1
        except OSError as error:
            _pass_over(path, error)
            return -1
    timestamp: int = TIME_ENTRY.unpack(last)[0] if len(last) == size else -1
    return timestamp if timestamp > 0 else -1


def check_whole_entries(path: str, size: int) -> None:
    """Raises CorruptIndexException for a complete .txnindex file of `size` bytes that ends inside an entry."""
    left = size % TXN_ENTRIES.itemsize
    if left:
        raise CorruptIndexException(
            f"found {left} bytes of an entry at its end, expected whole entries of {TXN_ENTRIES.itemsize}: "
            "the file was truncated and does not list all aborted transactions",
            path=path,
            position=size - left,
            hint=REBUILD_HINT,
        )


def aborted_txns(files: Files, path: str, *, required: bool = False, finished: bool = False) -> list[AbortedTxn]:
    """Returns every aborted transaction of a .txnindex file, without an entry that is just being written.

    `required`: raise FileNotFoundError if there is no file, and CorruptIndexException for an entry that makes no sense.
    Without these entries, records of an aborted transaction would look committed. `finished`: nobody writes to the file
    any more, so an incomplete entry is an error.
    """
    if required:
        size = files.stat(path).size
        if finished:
            check_whole_entries(path, size)
    raw = entries_of(_load(files, path), TXN_ENTRIES)
    sensible = (raw["version"] == VERSION) & (raw["first_offset"] <= raw["last_offset"])
    if required and not sensible.all():
        slot = int(np.flatnonzero(~sensible)[0])
        raise CorruptIndexException(
            f"an impossible entry: version {raw['version'][slot]}, offsets {raw['first_offset'][slot]} to "
            f"{raw['last_offset'][slot]}",
            path=path,
            position=slot * TXN_ENTRIES.itemsize,
            hint=REBUILD_HINT,
        )
    return [AbortedTxn(*fields) for _, *fields in raw[sensible].tolist()]
