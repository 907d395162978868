"""The aborted-transaction index of each segment against its log: what it should hold, what is wrong with it.

Follows the transactions of a partition from segment to segment.  Where the log does not begin at the beginning, the
producer snapshot at a segment's base says what was open there; a transaction that began where nothing is left cannot be
rebuilt, and its old entry is kept.  Compaction takes aborted records and may move a transaction's first record up, so
an old entry that begins earlier than the log shows, where the log has nothing, is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kafkalog.engine.files import Files
from kafkalog.engine.format import names
from kafkalog.engine.format.index_entries import TXN_ENTRIES
from kafkalog.engine.format.snapshots import read_snapshot
from kafkalog.engine.segment.index_reader import aborted_txns
from kafkalog.engine.segment.transaction_index import VERSION, AbortedTxn
from kafkalog.engine.segment.transactions import TransactionFollower, open_in_snapshot
from kafkalog.errors import KafkalogError

if TYPE_CHECKING:
    from kafkalog.engine.segment.scan import ScanSlice

__all__ = ["TransactionCheck"]


class TransactionCheck:
    """Made for one partition: `begin` a segment, `feed` its batches, `finish` it; the next."""

    def __init__(self, directory: str, files: Files) -> None:
        self._directory = directory
        self._files = files
        self._follower = TransactionFollower()
        self._known = False  # nothing can be open that the follower does not know
        self._base = 0
        self._old: list[AbortedTxn] = []
        self._made: list[AbortedTxn] = []
        self._aborts: set[tuple[int, int]] = set()  # (producer id, offset) of the abort markers seen
        self._seen: set[int] = set()  # offsets of old entries that are in some batch of the segment

    def begin(self, base_offset: int) -> None:
        """A segment's first batch comes next."""
        path = names.transaction_index_file(self._directory, base_offset)
        self._base, self._old = base_offset, aborted_txns(self._files, path)
        self._made, self._aborts, self._seen = [], set(), set()
        self._known = self._known or base_offset == 0 or self._from_snapshot(base_offset)

    def lose_track(self) -> None:
        """Damage: what is open behind it is not known."""
        self._follower = TransactionFollower()
        self._known = False

    def _from_snapshot(self, base_offset: int) -> bool:
        path = names.producer_snapshot_file(self._directory, base_offset)
        if not self._files.exists(path):
            return False
        try:
            entries = read_snapshot(path, self._files)
        except KafkalogError:
            return False
        self._follower = TransactionFollower(open_in_snapshot(entries))
        return True

    def feed(self, piece: ScanSlice) -> None:
        """The next batches of the segment."""
        table = piece.table
        offsets = np.array([entry[1:3] for entry in self._old], np.int64).reshape(-1)
        rows = np.minimum(np.searchsorted(table["last_offset"], offsets), len(table) - 1)
        inside = (table["base_offset"][rows] <= offsets) & (offsets <= table["last_offset"][rows])
        self._seen.update(offsets[inside].tolist())
        for marker in self._follower.feed(piece):
            try:
                if not marker.is_abort():
                    continue
            except KafkalogError:
                continue  # `verify --deep` tells
            self._aborts.add((marker.aborted.producer_id, marker.aborted.last_offset))
            if marker.had_begun:
                self._made.append(marker.aborted)

    def finish(self, limit: int) -> tuple[list[str], bytes]:
        """What is wrong with the segment's index, and the entries that it should have; its offsets go up to `limit`."""
        findings = []
        right = {(entry.producer_id, entry.last_offset): entry for entry in self._made}
        old = {(entry.producer_id, entry.last_offset): entry for entry in self._old}
        for key, entry in old.items():
            made = right.get(key)
            if made is not None and entry.first_offset > made.first_offset:
                findings.append(f"{_named(entry)} begins at offset {made.first_offset} already")
            elif made is not None and entry.first_offset < made.first_offset and entry.first_offset in self._seen:
                findings.append(f"{_named(entry)} begins only at offset {made.first_offset}")
            elif made is not None and entry.last_stable_offset > made.last_stable_offset:
                findings.append(
                    f"{_named(entry)} has the last stable offset {entry.last_stable_offset}, expected "
                    f"{made.last_stable_offset}: readers would stop looking for more too early"
                )
            elif made is not None or key in self._aborts or self._may_be_compacted(entry, limit):
                right[key] = entry  # also what compaction has taken the records or the marker of
            else:
                findings.append(f"{_named(entry)}: no abort marker of that producer is at offset {entry.last_offset}")
        findings += [
            f"lacks {_named(entry)}: its records show as committed" for key, entry in right.items() if key not in old
        ]
        entries = sorted(right.values(), key=lambda entry: entry.last_offset)
        table = np.array([(VERSION, *entry) for entry in entries], TXN_ENTRIES)
        return findings, table.tobytes()

    def _may_be_compacted(self, entry: AbortedTxn, limit: int) -> bool:
        return self._base <= entry.last_offset <= limit and entry.last_offset not in self._seen


def _named(entry: AbortedTxn) -> str:
    return (
        f"the aborted transaction of producer {entry.producer_id} at offsets {entry.first_offset} to "
        f"{entry.last_offset}"
    )


def __dir__() -> list[str]:
    return __all__
