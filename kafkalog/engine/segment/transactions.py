"""TransactionFollower: reads batches in log order, and knows which transactions are open and how they end.

This is for readers. Recovery and appends keep the complete state of producers instead
(`kafkalog.engine.log.producers`). As in Kafka, a transaction begins with the first transactional batch of its producer,
and any control batch of that producer ends it. The follower knows no file, no index and no damage: the caller says what
is unknown. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._native.codec import batches as native
from kafkalog.engine.format import control
from kafkalog.engine.format.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from kafkalog.engine.segment.transaction_index import AbortedTxn

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.engine.format.snapshots import ProducerSnapshotEntry
    from kafkalog.engine.segment.scan import ScanSlice


class Marker(NamedTuple):
    """A marker in the log, the aborted transaction if it is an abort (`is_abort`), and whether its begin was seen.

    `batch` is valid as long as the data that the follower was fed with.
    """

    header: BatchHeader
    batch: memoryview
    aborted: AbortedTxn
    had_begun: bool

    def is_abort(self) -> bool:
        """Raises CorruptRecordException or InvalidRecordException if the marker does not parse."""
        return control.is_abort(self.batch, self.header)


class TransactionFollower:
    """`open`: producer id -> first offset of its open transaction, in the order in which they began."""

    def __init__(self, open_txns: Mapping[int, int] | None = None) -> None:
        self.open = dict(open_txns or {})

    def feed(self, piece: ScanSlice) -> Iterator[Marker]:
        """Follows the batches of a slice. Yields each marker after the batches before it were followed."""
        table = piece.table
        flags = table["attributes"] & (TRANSACTIONAL_FLAG | CONTROL_FLAG)
        for header in native.headers_from_table(table[(flags != 0) & (table["producer_id"] >= 0)]):
            at = header.position - piece.position
            marker = self.observe(header, piece.data[at : at + header.size])
            if marker is not None:
                yield marker

    def observe(self, header: BatchHeader, batch: memoryview) -> Marker | None:
        """Follows one batch of a producer. Returns the marker if the batch is one, or None."""
        producer_id = header.producer_id
        if header.is_control:
            first, end = self.open.pop(producer_id, None), header.last_offset
            aborted = AbortedTxn(producer_id, -1 if first is None else first, end, self.first_open_offset(end + 1))
            return Marker(header, batch, aborted, first is not None)
        if header.is_transactional:
            self.open.setdefault(producer_id, header.base_offset)
        return None

    def first_open_offset(self, end_offset: int) -> int:
        """Returns the last stable offset of a log that ends at `end_offset`.

        It is the start of the oldest open transaction, or the end.
        """
        return min(self.open.values(), default=end_offset)


def open_in_snapshot(entries: Iterable[ProducerSnapshotEntry]) -> dict[int, int]:
    """Returns the transactions that are open in a producer snapshot (producer id -> first offset), by first offset."""
    begun = sorted((entry.current_txn_first_offset, entry.producer_id) for entry in entries)
    return {producer_id: offset for offset, producer_id in begun if offset >= 0}
