"""CleanedTransactionMetadata: which transactions a pass of the cleaner is in, and which markers nobody needs any more.

Fed with the batches of the log in order, once while the offset map is built and once while survivors are copied; the
aborted transactions are known beforehand, from the transaction indexes.  A data batch of one is dropped.  A marker may
go when nothing of its transaction is left: an abort's when no data batch was met since the transaction began, a
commit's likewise.  An abort that still has something to abort goes into the cleaned segment's own transaction index.

Knows no record but the first of a control batch, no file but that index.  Not thread-safe.  One pass has one of them
for each of its two walks, over all groups of segments.  Mirrors the class of that name (4.4.0).
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
    """AbortedTransactionMetadata: an aborted transaction under way, and whether it still has a batch."""

    aborted_txn: AbortedTxn
    last_observed_batch_offset: int | None = None


class CleanedTransactionMetadata:
    """`cleaned_index` is that of the segment that is being written; None where nothing is."""

    def __init__(self) -> None:
        self.cleaned_index: TransactionIndex | None = None
        self._ongoing_committed: set[int] = set()
        self._ongoing_aborted: dict[int, _Aborted] = {}
        self._to_come: list[tuple[int, int, AbortedTxn]] = []  # a heap, by first offset
        self._numbers = itertools.count()  # what was added first comes first

    def add_aborted_transactions(self, aborted: Iterable[AbortedTxn]) -> None:
        """Makes transactions known that are not behind us yet; one may be told of twice."""
        for txn in aborted:
            heapq.heappush(self._to_come, (txn.first_offset, next(self._numbers), txn))

    @property
    def has_committed_under_way(self) -> bool:
        """Whether a transaction was met whose commit was not."""
        return bool(self._ongoing_committed)

    def on_batch_read(self, header: BatchHeader) -> bool:
        """Follows a data batch; whether it is of an aborted transaction, and so to be dropped."""
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
        """Follows a control batch, which begins at `header.position` in `data`; whether its transaction is empty.

        Errors of its first record as `format.records.iterate` and `format.control` raise them; what the transaction
        index refuses.
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
        """Those that begin at or below an offset are under way; of a producer the first, while it is."""
        while self._to_come and self._to_come[0][0] <= offset:
            txn = heapq.heappop(self._to_come)[2]
            self._ongoing_aborted.setdefault(txn.producer_id, _Aborted(txn))
