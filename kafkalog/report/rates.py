"""Records and bytes by time, in stretches that grow with what they hold: from a minute to a year.

Every width is a multiple of the one before, so stretches can be joined exactly.  Only stretches with records are kept.
Knows arrays of numbers; no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

_MINUTE_MS = 60_000
_DAY_MS = 1440 * _MINUTE_MS
WIDTHS_MS = (
    _MINUTE_MS, 5 * _MINUTE_MS, 15 * _MINUTE_MS, 60 * _MINUTE_MS, 360 * _MINUTE_MS,
    _DAY_MS, 7 * _DAY_MS, 28 * _DAY_MS, 364 * _DAY_MS,
)  # fmt: skip
STRETCHES_MAX = 2048
ADDED_MAX = 64
HOUR_MS = 60 * _MINUTE_MS


class Rates:
    """The records and bytes of each stretch of time."""

    def __init__(self) -> None:
        self.step = 0  # the place of the width in WIDTHS_MS
        self._numbers = np.empty(0, np.int64)  # the stretches, ascending
        self._sums = np.empty((0, 2))  # records and bytes
        self._added: list[tuple[np.ndarray, np.ndarray]] = []  # not yet joined: joining costs more than collecting

    def __len__(self) -> int:
        self._join()
        return len(self._numbers)

    def add(self, times_ms: np.ndarray, records: np.ndarray, size_bytes: np.ndarray) -> None:
        """Adds what was written at some times; negative times are unknown and not counted."""
        sums = np.empty((len(times_ms), 2))
        sums[:, 0], sums[:, 1] = records, size_bytes
        known = times_ms >= 0
        if not known.all():
            times_ms, sums = times_ms[known], sums[known]
        self._add(times_ms // WIDTHS_MS[self.step], sums)

    def take(self, other: Rates) -> None:
        """Adds other rates; the wider stretches are used."""
        self.widen(other.step)
        factor = WIDTHS_MS[self.step] // WIDTHS_MS[other.step]
        parts = [(other._numbers, other._sums), *other._added]
        numbers = np.concatenate([each for each, _ in parts])
        self._add(numbers // factor, np.concatenate([each for _, each in parts]))

    def widen(self, step: int) -> None:
        """Joins stretches up to a width."""
        if step > self.step:
            self._join()
        if step > self.step:  # joining may have widened them
            self._added.append((self._numbers // (WIDTHS_MS[step] // WIDTHS_MS[self.step]), self._sums))
            self.step, self._numbers, self._sums = step, np.empty(0, np.int64), np.empty((0, 2))

    def _add(self, numbers: np.ndarray, sums: np.ndarray) -> None:
        if len(numbers):
            self._added.append((numbers, sums))
        if len(self._added) > ADDED_MAX:
            self._join()

    def _join(self) -> None:
        while self._added:
            added = [(self._numbers, self._sums), *self._added]
            self._added = []
            numbers = np.concatenate([each for each, _ in added])
            sums = np.concatenate([each for _, each in added])
            self._numbers, places = np.unique(numbers, return_inverse=True)
            self._sums = np.column_stack([np.bincount(places, sums[:, column]) for column in (0, 1)])
            if len(self._numbers) > STRETCHES_MAX and self.step < len(WIDTHS_MS) - 1:
                self.widen(self.step + 1)

    def fit(self, stretches_max: int) -> None:
        """Joins stretches until there are about `stretches_max`, as far as the widths go.  Stretches without records
        count too, except before and after the hundredth of the records at either end: a few wrong timestamps do not
        make all stretches wide."""
        while self._span() > stretches_max and self.step < len(WIDTHS_MS) - 1:
            self.widen(self.step + 1)

    def _span(self) -> int:
        if not len(self):
            return 0
        upto = np.cumsum(self._sums[:, 0])
        first, last = np.searchsorted(upto, (upto[-1] * 0.01, upto[-1] * 0.99))
        return max(int(self._numbers[last] - self._numbers[first]) + 1, len(self) // 2)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields the rows of `rates`, by time."""
        self._join()
        width = WIDTHS_MS[self.step]
        for number, (records, size_bytes) in zip(self._numbers.tolist(), self._sums.tolist(), strict=True):
            yield {
                "fromTime": number * width,
                "toTime": (number + 1) * width,
                "records": round(records),
                "bytes": round(size_bytes),
                "recordsPerHour": round(records * HOUR_MS / width, 2),
                "bytesPerHour": round(size_bytes * HOUR_MS / width),
            }
