"""Index files of a directory that is not ours, read whole and believed only as far as they make sense.

A running broker preallocates the active segment's indexes, so a file ends in zero slots; a crash or a foreign hand
may leave worse.  `offset_entries` and `time_entries` return the prefix in which entries grow as they must.  What they
say is a hint: whoever follows it checks the batch that he finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kafkalog.errors import CorruptIndexException
from kafkalog.format.index_entries import OFFSET_ENTRIES, TIME_ENTRIES, TXN_ENTRIES

if TYPE_CHECKING:
    from kafkalog.files import Files

REBUILD_HINT = "`kafkalog reindex` rebuilds it from the log"
PIECE_BYTES = 96 * 1024  # a whole number of entries of either index


class OffsetEntries(NamedTuple):
    """`offsets` (absolute, int64) and file `positions` (int64) of batches, both strictly growing."""

    offsets: np.ndarray
    positions: np.ndarray

    def floor(self, offset: int) -> tuple[int, int] | None:
        """The entry with the greatest offset <= `offset`, as (offset, position)."""
        slot = int(np.searchsorted(self.offsets, offset, side="right")) - 1
        return None if slot < 0 else (int(self.offsets[slot]), int(self.positions[slot]))


class TimeEntries(NamedTuple):
    """`timestamps` (ms, strictly growing) and absolute `offsets` (int64)."""

    timestamps: np.ndarray
    offsets: np.ndarray


class AbortedRange(NamedTuple):
    """An aborted transaction: whose, its first record's offset, its marker's offset."""

    producer_id: int
    first_offset: int
    last_offset: int


def _grown_prefix(*columns: np.ndarray) -> int:
    """How many leading entries grow strictly in every column."""
    good = len(columns[0])
    for column in columns:
        steps = np.flatnonzero(np.diff(column) <= 0)
        if len(steps):
            good = min(good, int(steps[0]) + 1)
    return good


def _load(files: Files, path: str, dtype: np.dtype) -> np.ndarray:
    """All whole entries up to the first run of zero slots; an absent file has none."""
    pieces = []
    try:
        file = files.open(path, writable=False)
    except (FileNotFoundError, IsADirectoryError):
        return np.empty(0, dtype)
    try:
        position = 0
        while True:
            piece = file.pread(PIECE_BYTES, position)
            if not piece or not any(piece):
                break
            pieces.append(piece)
            position += len(piece)
    finally:
        file.close()
    data = b"".join(pieces)
    return np.frombuffer(data, dtype, count=len(data) // dtype.itemsize)


def offset_entries(files: Files, path: str, base_offset: int) -> OffsetEntries:
    """The believable entries of an .index file."""
    raw = _load(files, path, OFFSET_ENTRIES)
    offsets = raw["offset"].astype(np.int64)
    positions = raw["position"].astype(np.int64)
    zero = np.flatnonzero(positions <= 0)  # the first batch of a segment is never indexed: position 0 is a zero slot
    if len(zero):
        offsets, positions = offsets[: zero[0]], positions[: zero[0]]
    count = _grown_prefix(offsets, positions)
    if count and offsets[0] < 0:
        count = 0
    return OffsetEntries(offsets[:count] + base_offset, positions[:count])


def time_entries(files: Files, path: str, base_offset: int) -> TimeEntries:
    """The believable entries of a .timeindex file."""
    raw = _load(files, path, TIME_ENTRIES)
    timestamps = raw["timestamp"].astype(np.int64)
    offsets = raw["offset"].astype(np.int64)
    count = _grown_prefix(timestamps)
    falling = np.flatnonzero(np.diff(offsets[:count]) < 0)
    if len(falling):
        count = int(falling[0]) + 1
    if count and (offsets[0] < 0 or timestamps[0] < 0):
        count = 0
    return TimeEntries(timestamps[:count], offsets[:count] + base_offset)


def check_whole_entries(path: str, size: int) -> None:
    """CorruptIndexException for a .txnindex file of `size` bytes that ends inside an entry, and is not being written:
    it was cut."""
    left = size % TXN_ENTRIES.itemsize
    if left:
        raise CorruptIndexException(
            f"found {left} bytes of an entry at its end, expected whole entries of {TXN_ENTRIES.itemsize}: it was cut, "
            "and does not tell which records were aborted",
            path=path,
            position=size - left,
            hint=REBUILD_HINT,
        )


def aborted_ranges(files: Files, path: str, *, required: bool = False, finished: bool = False) -> list[AbortedRange]:
    """Every aborted transaction of a .txnindex file; one that is being written is left out.

    `required`: FileNotFoundError where there is no file, CorruptIndexException for an entry that makes no sense:
    without it records of an aborted transaction would be taken for committed ones.  `finished`: nobody writes to it
    any more, so that an entry that is not whole is none that is being written.
    """
    if required:
        size = files.stat(path).size
        if finished:
            check_whole_entries(path, size)
    raw = _load(files, path, TXN_ENTRIES)
    if required:
        wrong = np.flatnonzero((raw["version"] != 0) | (raw["first_offset"] > raw["last_offset"]))
        if len(wrong):
            raise CorruptIndexException(
                f"an impossible entry: version {raw['version'][wrong[0]]}, offsets {raw['first_offset'][wrong[0]]} to "
                f"{raw['last_offset'][wrong[0]]}",
                path=path,
                position=int(wrong[0]) * TXN_ENTRIES.itemsize,
                hint=REBUILD_HINT,
            )
    return [
        AbortedRange(int(entry["producer_id"]), int(entry["first_offset"]), int(entry["last_offset"]))
        for entry in raw
        if entry["version"] == 0 and entry["first_offset"] <= entry["last_offset"]
    ]
