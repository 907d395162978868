"""Checks and repairs the order of leader epochs in a copied partition.

No CRC covers a batch's leader epoch, and a leader epoch never goes back.  So epochs that go back were damaged.  The
smallest number of batches that contradict the others get the epoch of the batch before them.  Epochs are stored as
runs of batches with the same epoch; a log has only a few.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from kafkalog.engine.files import Files
from kafkalog.engine.format.batch import LOG_OVERHEAD, declared_size

LEADER_EPOCH_AT = LOG_OVERHEAD  # position in a batch of magic 2
NO_EPOCH = -1


class _Run(NamedTuple):
    """Consecutive batches of a file with one leader epoch: where they begin and end, and how many they are."""

    epoch: int
    path: str
    start: int
    end: int
    batches: int


class EpochOrder:
    """Gets each batch that is copied, in order; then call `mend`.  Used for one partition."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def add(self, path: str, table: np.ndarray, position: int) -> None:
        """Adds batches that follow each other in `path`, from `position` on."""
        ends = position + np.cumsum(table["size"].astype(np.int64))
        epochs = np.where(table["magic"] >= 2, table["leader_epoch"], NO_EPOCH)
        breaks = np.flatnonzero(epochs[1:] != epochs[:-1]) + 1
        first = 0
        for behind in [*breaks.tolist(), len(table)]:
            epoch, start, end = int(epochs[first]), position, int(ends[behind - 1])
            self._add(_Run(epoch, path, start, end, behind - first))
            first, position = behind, end

    def _add(self, run: _Run) -> None:
        if run.epoch == NO_EPOCH:  # a format without epochs, or an unknown one, fits everywhere
            return
        last = self._runs[-1] if self._runs else None
        if last is not None and (last.epoch, last.path, last.end) == (run.epoch, run.path, run.start):
            self._runs[-1] = last._replace(end=run.end, batches=last.batches + run.batches)
        else:
            self._runs.append(run)

    def mend(self, files: Files) -> int:
        """Rewrites damaged epochs; returns the number of batches that had one."""
        kept = in_order([run.epoch for run in self._runs], [run.batches for run in self._runs])
        if len(kept) == len(self._runs):
            return 0
        mended = 0
        epoch = self._runs[kept[0]].epoch if kept else NO_EPOCH
        places = set(kept)
        for place, run in enumerate(self._runs):
            if place in places:
                epoch = run.epoch
                continue
            _write(run, epoch, files)
            mended += run.batches
        return mended


def _write(run: _Run, epoch: int, files: Files) -> None:
    with files.open(run.path) as file:
        position = run.start
        while position < run.end:
            size = declared_size(file.pread(LOG_OVERHEAD, position))
            file.pwrite(epoch.to_bytes(4, "big", signed=True), position + LEADER_EPOCH_AT)
            position += size
        file.sync()


def in_order(epochs: list[int], batches: list[int]) -> list[int]:
    """Returns the places of epochs that never go back, with as many batches as possible; none of a negative epoch."""
    if epochs == sorted(epochs) and min(epochs, default=0) >= 0:
        return list(range(len(epochs)))
    # A Fenwick tree: for an epoch, the most batches in order that end with it or a lower one, and the last one's place.
    ranks = sorted(set(epochs))
    tree = [(0, -1)] * (len(ranks) + 1)
    before = [-1] * len(epochs)
    in_order = [0] * len(epochs)
    for place, epoch in enumerate(epochs):
        if epoch < 0:
            continue
        rank = at = bisect_left(ranks, epoch) + 1
        best = (0, -1)
        while at:
            best = max(best, tree[at])
            at -= at & -at
        in_order[place], before[place] = best[0] + batches[place], best[1]
        while rank < len(tree):
            tree[rank] = max(tree[rank], (in_order[place], place))
            rank += rank & -rank
    kept: list[int] = []
    # Between equally good ways prefer lower epochs: one flipped bit raises an epoch further than it can lower it.
    place = max(range(len(epochs)), key=lambda each: (in_order[each], -epochs[each]))
    while place >= 0 and in_order[place]:
        kept.append(place)
        place = before[place]
    return kept[::-1]
