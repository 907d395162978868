"""The keys with the most records of a partition, in bounded memory.

Keys are told apart by 63 bits of two hashes.  If there are more than KEYS_MAX keys, those with the fewest records are
forgotten from time to time; a key that comes back begins at zero.  The counts are then lower bounds (`is_exact`).
Knows columns of records; no files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kafkalog._limits import INT_MAX
from kafkalog._native.codec.column_hashes import crc32c_column, partition_column

if TYPE_CHECKING:
    from kafkalog._native.codec.arrow import Column, RecordColumns

KEYS_MAX = 1 << 16
TOP = 20
_NAMED = 2 * TOP  # keys whose bytes are kept
WAITING_RECORDS, WAITING_BYTES = 1 << 16, 16 << 20  # counted together


class _Waiting(NamedTuple):
    """Records that are not yet counted: the hash of each key, the size of each record, and where the keys are."""

    hashes: np.ndarray
    sizes: np.ndarray
    rows: np.ndarray
    keys: Column


class TopKeys:
    """Counts records and bytes of keys and values by key."""

    def __init__(self) -> None:
        self.records = 0  # with a key
        self.is_exact = True
        self._hashes = np.empty(0, np.int64)  # ascending
        self._sums = np.empty((0, 2), np.int64)
        self._names: dict[int, bytes] = {}
        self._waiting: list[_Waiting] = []
        self._waiting_records = self._waiting_bytes = 0

    def feed(self, columns: RecordColumns) -> None:
        """Adds records."""
        keys = columns.keys
        if keys is None or not len(columns):
            return
        bounds = keys.offsets
        sizes = np.diff(bounds).astype(np.int64)
        if columns.values is not None:
            sizes += np.diff(columns.values.offsets)
        rows = np.flatnonzero(_not_null(keys.validity, len(columns)))
        if not len(rows):
            return
        data, ends = keys.data.data, bounds.data
        hashes = crc32c_column(data, ends) << 31 | partition_column(data, ends, INT_MAX)
        self._waiting.append(_Waiting(hashes[rows], sizes[rows], rows, keys))
        self.records += len(rows)
        self._waiting_records += len(rows)
        self._waiting_bytes += len(keys.data)
        if self._waiting_records >= WAITING_RECORDS or self._waiting_bytes >= WAITING_BYTES:
            self._count()

    def _count(self) -> None:
        """Counts what waits, and keeps the bytes of the keys that come among the first."""
        waiting, self._waiting = self._waiting, []
        self._waiting_records = self._waiting_bytes = 0
        hashes = np.concatenate([each.hashes for each in waiting])
        sizes = np.concatenate([each.sizes for each in waiting])
        found, places = np.unique(np.concatenate((self._hashes, hashes)), return_inverse=True)
        old, new = places[: len(self._hashes)], places[len(self._hashes) :]
        sums = np.zeros((len(found), 2), np.int64)
        sums[old] = self._sums
        sums[:, 0] += np.bincount(new, minlength=len(found))
        sums[:, 1] += np.bincount(new, sizes, len(found)).astype(np.int64)
        self._hashes, self._sums = found, sums
        # Only a key that is among these records can come among the first: ties are decided by the hash.
        first = np.full(len(found), -1)
        first[new[::-1]] = np.arange(len(new))[::-1]
        bases = np.cumsum([0, *(len(each.hashes) for each in waiting)])
        top = self._top(_NAMED)
        names = {int(found[place]): self._names.get(int(found[place])) for place in top}
        for place in top.tolist():
            at = int(first[place])
            if names[int(found[place])] is None and at >= 0:
                number = int(np.searchsorted(bases, at, "right")) - 1
                keys, row = waiting[number].keys, int(waiting[number].rows[at - bases[number]])
                bounds = keys.offsets
                names[int(found[place])] = bytes(keys.data[bounds[row] : bounds[row + 1]])
        self._names = {each: name for each, name in names.items() if name is not None}
        if len(found) > 2 * KEYS_MAX:
            self.is_exact = False
            most = np.sort(self._top(KEYS_MAX))
            self._hashes, self._sums = found[most], sums[most]

    def _top(self, count: int) -> np.ndarray:
        """Returns the places of the keys with the most records."""
        records = self._sums[:, 0]
        if len(records) <= count:
            return np.argsort(-records, kind="stable")
        least = -np.partition(-records, count - 1)[count - 1]
        more = np.flatnonzero(records > least)
        as_many = np.flatnonzero(records == least)[: count - len(more)]
        return np.concatenate((more[np.argsort(-records[more], kind="stable")], as_many))

    def top(self, count: int = TOP) -> list[tuple[bytes, int, int]]:
        """Returns the keys with the most records: key, records, bytes."""
        if self._waiting:
            self._count()
        return [
            (self._names[int(self._hashes[place])], int(self._sums[place, 0]), int(self._sums[place, 1]))
            for place in self._top(count)
        ]


def _not_null(validity: np.ndarray | None, count: int) -> np.ndarray:
    if validity is None:
        return np.ones(count, bool)
    found: np.ndarray = np.unpackbits(validity, count=count, bitorder="little").astype(bool)
    return found


def key_text(key: bytes) -> str:
    """Returns a key as text: bytes that are no UTF-8 as \\xNN, and at most 200 characters."""
    text = key.decode("utf-8", "backslashreplace")
    return text if len(text) <= 200 else text[:199] + "…"
