"""Returns the records of a batch for the native loops of compaction: decompressed, if they are compressed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.engine.format import codecs
from kafkalog.engine.format.batch import RECORD_BATCH_OVERHEAD
from kafkalog.engine.format.records import STREAM_BYTES_MAX
from kafkalog.errors import KafkalogError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kafkalog._native.codec.batches import BatchHeader


def payload_of(data: memoryview, header: BatchHeader, max_record_bytes: int) -> Buffer | None:
    """Returns the records of the batch of magic 2 at `header.position`; None if the plain path must read them.

    The plain path has the error messages for a payload that does not decompress, and for a record that is too large.
    """
    body = data[header.position + RECORD_BATCH_OVERHEAD : header.position + header.size]
    if header.magic < 2 or header.count <= 0:
        return None
    return body if header.codec == codecs.NONE else inflated(max_record_bytes, header.codec, body)


def inflated(max_record_bytes: int, codec: int, body: memoryview) -> Buffer | None:
    """Returns the decompressed records of a batch; None as `payload_of`."""
    try:
        payload = codecs.decompress(codec, bytes(body), max_bytes=STREAM_BYTES_MAX)
    except KafkalogError:
        return None
    return payload if len(payload) <= max_record_bytes else None
