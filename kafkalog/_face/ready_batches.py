"""Batches that were created and compressed elsewhere, to be appended under a producer's fields.

Their records are not changed. Each batch gets the producer id, epoch and sequence of the producer that appends it, and
the checksum over them. All batches are checked first: framing, checksums, and that no producer has signed them. The
engine checks a topic's rules for records, as for every batch.
"""

from __future__ import annotations

from kafkalog._limits import INT_MAX
from kafkalog._native.codec import batches as native
from kafkalog.engine.files import Buffer
from kafkalog.engine.format.batch import (
    CONTROL_FLAG,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL_FLAG,
    ProducerFields,
    increment_sequence,
)
from kafkalog.errors import CorruptRecordException, IllegalArgumentException

_WHY = {
    native.BAD_SIZE: "its size is impossible",
    native.BAD_MAGIC: "its magic is not one of Kafka's",
    native.BAD_CRC: "its checksum is wrong",
}


class ReadyBatches:
    """One batch or more. CorruptRecordException or IllegalArgumentException if they cannot be appended unchanged."""

    def __init__(self, data: Buffer) -> None:
        table, verdict, end = native.scan(data, framing=native.FRAMING_BUFFER, max_batches=INT_MAX)
        if verdict != native.OK or end != len(data):
            why = _WHY.get(verdict, "it is cut short")
            raise CorruptRecordException(f"found {len(table)} whole batches, then an invalid one: {why}", position=end)
        if not len(table):
            raise IllegalArgumentException("data: found no batch, expected one or more")
        signed = (table["attributes"] & (CONTROL_FLAG | TRANSACTIONAL_FLAG)).any() or (table["producer_id"] >= 0).any()
        if signed or (table["magic"] != 2).any() or (table["record_count"] < 1).any():
            raise IllegalArgumentException(
                "data: found a batch of another producer, a control batch, an older format, or a batch without records",
                hint="pass batches of magic 2 that no producer has signed",
            )
        self._data = data
        self._places = list(
            zip(table["position"].tolist(), table["size"].tolist(), table["record_count"].tolist(), strict=True)
        )

    @property
    def record_count(self) -> int:
        return sum(count for _, _, count in self._places)

    def sent_by(self, producer: ProducerFields) -> list[bytes]:
        """Returns the batches as that producer sends them, with consecutive sequences."""
        view = memoryview(self._data)
        sequence = producer.base_sequence
        made = []
        for position, size, count in self._places:
            head = native.producer_header(
                view, position, producer.producer_id, producer.producer_epoch, sequence, producer.transactional
            )
            made.append(b"".join((head, view[position + RECORD_BATCH_OVERHEAD : position + size])))
            if sequence >= 0:
                sequence = increment_sequence(sequence, count)
        return made
