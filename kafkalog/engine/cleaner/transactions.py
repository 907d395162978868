"""CleanedTransactionMetadata: follows the transactions during a walk of the cleaner, and finds unneeded markers.

It is fed with the batches of the log in order, once while the offset map is built and once while records are copied.
The aborted transactions are known beforehand, from the transaction indexes, and their data batches are dropped.  A
marker may be removed when no data batch of its transaction is left: the walk met none since the transaction began.
This holds for aborts and commits.  An abort that still has data batches goes into the cleaned segment's transaction
index.

Knows no record except the first of a control batch, and no file except that index.  Not thread-safe.  A pass has one
object for each of its two walks, over all groups of segments.  Mirrors the class of that name (4.4.0).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkalog.engine.format import control, records
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.segment.transaction_index import AbortedTxn, TransactionIndex

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kafkalog._native.codec.batches import BatchHeader


@dataclass(slots=True)
class _Aborted:
    """AbortedTransactionMetadata: an aborted transaction that has begun, and whether it still has a batch."""

    aborted_txn: AbortedTxn
    last_observed_batch_offset: int | None = None


class CleanedTransactionMetadata:
    """Follows transactions.  `cleaned_index` is the index of the segment that is being written; None during a read."""

    def __init__(self) -> None:
        self.cleaned_index: TransactionIndex | None = None
        self._ongoing_committed: set[int] = set()
        self._ongoing_aborted: dict[int, _Aborted] = {}
        self._to_come: list[tuple[int, int, AbortedTxn]] = []  # a heap, by first offset
        self._numbers = itertools.count()  # keeps the order of addition among equal offsets

    def add_aborted_transactions(self, aborted: Iterable[AbortedTxn]) -> None:
        """Adds transactions that begin later in the walk; one may be added twice."""
        for txn in aborted:
            heapq.heappush(self._to_come, (txn.first_offset, next(self._numbers), txn))

    @property
    def has_committed_under_way(self) -> bool:
        """Whether a transaction was met whose commit was not."""
        return bool(self._ongoing_committed)

    def on_batch_read(self, header: BatchHeader) -> bool:
        """Follows a data batch.  Returns whether it belongs to an aborted transaction, and is to be dropped."""
        self._begin_aborted_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        aborted = self._ongoing_aborted.get(header.producer_id)
        if aborted is None:
            self._ongoing_committed.add(header.producer_id)
            return False
        aborted.last_observed_batch_offset = header.last_offset
        return True

    def on_control_batch_read(self, data: Buffer, header: BatchHeader) -> bool:
        """Follows the control batch at `header.position` in `data`.  Returns whether its transaction is empty.

        Raises as `format.records.iterate` and `format.control` for its first record, and what the transaction index
        refuses.
        """
        self._begin_aborted_up_to(header.last_offset)
        record = next(records.iterate(data, header), None)
        if record is None:
            return True
        control_type = control.parse_control_key(record.key)
        if control_type is ControlRecordType.ABORT:
            return self._end_aborted(header.producer_id)
        if control_type is ControlRecordType.COMMIT:
            was_seen = header.producer_id in self._ongoing_committed
            self._ongoing_committed.discard(header.producer_id)
            return not was_seen
        return False

    def _end_aborted(self, producer_id: int) -> bool:
        aborted = self._ongoing_aborted.pop(producer_id, None)
        if aborted is None or aborted.last_observed_batch_offset is None:
            return True
        if self.cleaned_index is not None:
            self.cleaned_index.append(aborted.aborted_txn)
        return False

    def _begin_aborted_up_to(self, offset: int) -> None:
        """Begins the aborted transactions up to an offset; a producer's first one counts while it lasts."""
        while self._to_come and self._to_come[0][0] <= offset:
            txn = heapq.heappop(self._to_come)[2]
            self._ongoing_aborted.setdefault(txn.producer_id, _Aborted(txn))
