"""Ranges of offsets that a log no longer has, as far as headers or records show them.

All are counted; the largest are kept.  Knows arrays of offsets; no files.
"""

from __future__ import annotations

import numpy as np

GAPS_MAX = 200
COMPACTED_TEXT = "compaction removed the records"
DAMAGED_TEXT = "the bytes there are damaged: `kafkalog verify` shows them"
MISSING_TEXT = "the topic is not compacted: an earlier compaction or a salvage left the gap, or files are missing"


class Missing:
    """The gaps of one partition: those kept, and sums of all."""

    def __init__(self) -> None:
        self.gaps = self.offsets = 0
        self._kept = np.empty((0, 3), np.int64)  # first offset, last offset, reason

    def between(self, first: int, ends: tuple[np.ndarray, np.ndarray], why: int = 0) -> int:
        """Adds the gaps between ranges (first offsets, last offsets), in any order, from `first` on.  Returns the
        offset after the last range."""
        starts, lasts = ends
        if not len(starts):
            return first
        order = np.argsort(starts, kind="stable")
        behind = np.maximum.accumulate(np.maximum(np.concatenate(([first - 1], lasts[order])), first - 1)) + 1
        self._add(behind[:-1], starts[order] - 1, why)
        return int(behind[-1])

    def add(self, first: int, last: int, why: int = 0) -> None:
        """Adds one gap; nothing if it is empty."""
        self._add(np.array([first]), np.array([last]), why)

    def _add(self, firsts: np.ndarray, lasts: np.ndarray, why: int) -> None:
        real = lasts >= firsts
        if not real.any():
            return
        found = np.column_stack((firsts[real], lasts[real], np.full(int(real.sum()), why)))
        self.gaps += len(found)
        self.offsets += int((found[:, 1] - found[:, 0] + 1).sum())
        self._kept = np.concatenate((self._kept, found))
        if len(self._kept) > 8 * GAPS_MAX:
            self._cut(GAPS_MAX)

    def _cut(self, gaps_max: int) -> None:
        if len(self._kept) > gaps_max:
            self._kept = self._kept[np.argsort(self._kept[:, 0] - self._kept[:, 1], kind="stable")[:gaps_max]]

    def largest(self, gaps_max: int = GAPS_MAX) -> list[tuple[int, int, int]]:
        """Returns the largest gaps by offset: first, last, reason."""
        self._cut(gaps_max)
        found: list[tuple[int, int, int]] = self._kept[np.argsort(self._kept[:, 0])].tolist()
        return found
