"""Checks the aborted-transaction index of each segment against its log, and computes what it should hold.

Follows the transactions of a partition from segment to segment.  If the log does not begin at offset 0, the producer
snapshot at a segment's base says what was open there.  If that is missing, a transaction that began earlier cannot be
rebuilt, and its old entry is kept.  Compaction removes aborted records and may move a transaction's first record up.
So an old entry that begins earlier than the log shows is right if the log has nothing there.
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
    """Checks one partition: for each segment call `begin`, `feed` its batches, and `finish`.

    Args:
        directory: The partition's directory.
        files: The file system.

    Example:
        >>> from kafkalog.engine.files import OS_FILES
        >>> from kafkalog.toolbox.transactions import TransactionCheck
        >>> with kafkalog.open("shop") as store:
        ...     _ = store.create_topic("orders").append(b"one")
        >>> check = TransactionCheck("shop/orders-0", OS_FILES)
        >>> check.begin(0)
        >>> check.finish(0)
        ([], b'')
    """

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
        """Begins a segment.

        Args:
            base_offset: Its base offset.
        """
        path = names.transaction_index_file(self._directory, base_offset)
        self._base, self._old = base_offset, aborted_txns(self._files, path)
        self._made, self._aborts, self._seen = [], set(), set()
        self._known = self._known or base_offset == 0 or self._from_snapshot(base_offset)

    def lose_track(self) -> None:
        """Forgets open transactions, because it is unknown what is open after damage."""
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
        """Checks the next batches of the segment.

        Args:
            piece: The batches.
        """
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
                continue  # `verify --deep` reports it
            self._aborts.add((marker.aborted.producer_id, marker.aborted.last_offset))
            if marker.had_begun:
                self._made.append(marker.aborted)

    def finish(self, limit: int) -> tuple[list[str], bytes]:
        """Ends a segment.

        Args:
            limit: The last offset that it may have.

        Returns:
            The findings about its index, and the entries that the index should have.
        """
        findings = []
        right = {(entry.producer_id, entry.last_offset): entry for entry in self._made}
        old = {(entry.producer_id, entry.last_offset): entry for entry in self._old}
        for key, entry in old.items():
            made = right.get(key)
            if made is not None and entry.first_offset > made.first_offset:
                findings.append(f"{_named(entry)} already begins at offset {made.first_offset}")
            elif made is not None and entry.first_offset < made.first_offset and entry.first_offset in self._seen:
                findings.append(f"{_named(entry)} begins only at offset {made.first_offset}")
            elif made is not None and entry.last_stable_offset > made.last_stable_offset:
                findings.append(
                    f"{_named(entry)} has the last stable offset {entry.last_stable_offset}; expected "
                    f"{made.last_stable_offset}: readers would stop searching for more too early"
                )
            elif made is not None or key in self._aborts or self._may_be_compacted(entry, limit):
                right[key] = entry  # also if compaction removed its records or its marker
            else:
                findings.append(
                    f"{_named(entry)}: there is no abort marker of that producer at offset {entry.last_offset}"
                )
        findings += [
            f"it lacks {_named(entry)}: its records appear as committed"
            for key, entry in right.items()
            if key not in old
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
