"""Records as a pass reads them: parsed no further than needed, so that damage is an error only where it is with Kafka.

Records of magic 2 are parsed completely, one after the other.  A message of magic 0 or 1 (`legacy.Entry`) shows its
key, and whether it has a value, and is parsed only if it is kept.  A dropped message may have any value.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from kafkalog.engine.format import legacy
from kafkalog.engine.format.records import STREAM_BYTES_MAX, Record, stream

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader

Stored: TypeAlias = Record | legacy.Entry


def stored_records(data: memoryview, header: BatchHeader, max_record_bytes: int) -> Iterator[Stored]:
    """Returns the records of the batch at `header.position` in `data`.  Raises as `stream`."""
    if header.magic >= 2:
        return stream(data, header, max_record_bytes=max_record_bytes)
    return iter(
        legacy.entries(
            data, header.position, header.size, max_record_bytes=max_record_bytes, max_bytes=STREAM_BYTES_MAX
        )
    )


def has_key(record: Stored) -> bool:
    """Returns whether the record has a key, by the key's size; the bytes of the key may be missing."""
    return record.key is not None if isinstance(record, Record) else record.has_key


def has_value(record: Stored) -> bool:
    """Returns whether the record is no tombstone."""
    return record.value is not None if isinstance(record, Record) else record.has_value


def parsed(records: Sequence[Stored]) -> list[Record]:
    """Returns parsed records.  Raises the errors of parts that were not parsed before."""
    return [record if isinstance(record, Record) else record.to_record() for record in records]


def column(keys: Sequence[bytes | memoryview]) -> tuple[bytes, array[int]]:
    """Returns the keys joined and their bounds, for SkimpyOffsetMap.  Key i is [bounds[i], bounds[i + 1])."""
    return b"".join(keys), array("q", itertools.accumulate(map(len, keys), initial=0))
