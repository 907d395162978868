"""Batches that somebody else has made and packed, on their way into a log in the name of one who appends.

What they hold is not touched: each gets the producer, epoch and sequence of whoever appends it, and the checksum over
that.  They are looked at whole first: framing, checksums, and that nobody has signed them already.  What a topic asks
of records the engine judges, as of every batch.
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
    native.BAD_SIZE: "its size cannot be",
    native.BAD_MAGIC: "its magic is none of Kafka's",
    native.BAD_CRC: "its checksum is another",
}


class ReadyBatches:
    """One batch or more.  CorruptRecordException, IllegalArgumentException for what is not appended as it is."""

    def __init__(self, data: Buffer) -> None:
        table, verdict, end = native.scan(data, framing=native.FRAMING_BUFFER, max_batches=INT_MAX)
        if verdict != native.OK or end != len(data):
            why = _WHY.get(verdict, "it is cut short")
            raise CorruptRecordException(f"found {len(table)} whole batches, and one that is none: {why}", position=end)
        if not len(table):
            raise IllegalArgumentException("data: found no batch, expected one or more")
        signed = (table["attributes"] & (CONTROL_FLAG | TRANSACTIONAL_FLAG)).any() or (table["producer_id"] >= 0).any()
        if signed or (table["magic"] != 2).any() or (table["record_count"] < 1).any():
            raise IllegalArgumentException(
                "data: found a batch of another producer, a marker, or one of an older format or without records",
                hint="expected batches of magic 2 as they are before a producer signs them",
            )
        self._data = data
        self._places = list(
            zip(table["position"].tolist(), table["size"].tolist(), table["record_count"].tolist(), strict=True)
        )

    @property
    def record_count(self) -> int:
        return sum(count for _, _, count in self._places)

    def sent_by(self, producer: ProducerFields) -> list[bytes]:
        """The batches as that producer sends them, their sequences one behind the other."""
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
