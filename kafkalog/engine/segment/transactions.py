"""What follows transactions: fed with batches in the order of the log, it knows which are open, and how they end.

Stands beside the producers' whole state (`kafkalog.engine.log.producers`), which recovery and appends keep: this is for
those who only read.  As for Kafka's producers a transaction begins with the first transactional batch of its producer,
and any control batch of a producer ends it.  Knows no file, no index and no damage: whoever feeds it says what is
unknown. Not thread-safe.
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
    """A marker that was met: what it ended if it is an abort (`is_abort`), and whether the begin of that was seen.

    `batch` lives as long as what the follower was fed with.
    """

    header: BatchHeader
    batch: memoryview
    aborted: AbortedTxn
    had_begun: bool

    def is_abort(self) -> bool:
        """A CorruptRecordException or InvalidRecordException where the marker does not parse."""
        return control.is_abort(self.batch, self.header)


class TransactionFollower:
    """`open`: producer id -> first offset of its open transaction, in the order of their begin."""

    def __init__(self, open_txns: Mapping[int, int] | None = None) -> None:
        self.open = dict(open_txns or {})

    def feed(self, piece: ScanSlice) -> Iterator[Marker]:
        """Follow the batches of a slice; the markers among them, each when the batches before it were followed."""
        table = piece.table
        flags = table["attributes"] & (TRANSACTIONAL_FLAG | CONTROL_FLAG)
        for header in native.headers_from_table(table[(flags != 0) & (table["producer_id"] >= 0)]):
            at = header.position - piece.position
            marker = self.observe(header, piece.data[at : at + header.size])
            if marker is not None:
                yield marker

    def observe(self, header: BatchHeader, batch: memoryview) -> Marker | None:
        """Follow one batch of a producer: the marker that it is, or None."""
        producer_id = header.producer_id
        if header.is_control:
            first, end = self.open.pop(producer_id, None), header.last_offset
            aborted = AbortedTxn(producer_id, -1 if first is None else first, end, self.first_open_offset(end + 1))
            return Marker(header, batch, aborted, first is not None)
        if header.is_transactional:
            self.open.setdefault(producer_id, header.base_offset)
        return None

    def first_open_offset(self, end_offset: int) -> int:
        """The last stable offset of a log that ends at `end_offset`: where the oldest open transaction begins."""
        return min(self.open.values(), default=end_offset)


def open_in_snapshot(entries: Iterable[ProducerSnapshotEntry]) -> dict[int, int]:
    """The transactions that a producer snapshot has open (producer id -> first offset), by first offset."""
    begun = sorted((entry.current_txn_first_offset, entry.producer_id) for entry in entries)
    return {producer_id: offset for offset, producer_id in begun if offset >= 0}
