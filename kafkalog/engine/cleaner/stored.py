"""Records as a pass looks at them: no further than it must, so that damage matters where it does with Kafka.

Records of magic 2 are parsed whole, one after the other.  A message of magic 0 or 1 (`legacy.Entry`) gives its key, and
whether it has a value, and is parsed once it is kept; one that is dropped may have any value.
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
    """The records of the batch that begins at `header.position` in `data`; errors are those of `stream`."""
    if header.magic >= 2:
        return stream(data, header, max_record_bytes=max_record_bytes)
    return iter(
        legacy.entries(
            data, header.position, header.size, max_record_bytes=max_record_bytes, max_bytes=STREAM_BYTES_MAX
        )
    )


def has_key(record: Stored) -> bool:
    """Whether its key's size says so; the key itself may not be there."""
    return record.key is not None if isinstance(record, Record) else record.has_key


def has_value(record: Stored) -> bool:
    """Whether it is no tombstone."""
    return record.value is not None if isinstance(record, Record) else record.has_value


def parsed(records: Sequence[Stored]) -> list[Record]:
    """Records whole; errors of what had not been looked at yet."""
    return [record if isinstance(record, Record) else record.to_record() for record in records]


def column(keys: Sequence[bytes | memoryview]) -> tuple[bytes, array[int]]:
    """Keys joined, and where each begins, as SkimpyOffsetMap takes them; key i is [bounds[i], bounds[i + 1])."""
    return b"".join(keys), array("q", itertools.accumulate(map(len, keys), initial=0))
