"""Reads whole batches that only a log's remote tier has, for fetches of clients and for share partitions.

A read may take as long as the object storage does, so a thread that serves others leaves it to another one.
Source: RemoteLogManager.read, DelayedRemoteFetch (4.4.0).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafkalog.engine.format.batch import MemoryRecords
from kafkalog.errors import OffsetOutOfRangeException

if TYPE_CHECKING:
    from kafkalog.engine.log.unified_log import UnifiedLog
    from kafkalog.engine.segment.transaction_index import AbortedTxn


def is_far(log: UnifiedLog, offset: int) -> bool:
    """Returns whether an offset of the log is in its remote tier, and not on the disk."""
    return (
        log.tier is not None and log.remote_log_enabled and log.log_start_offset <= offset < log.local_log_start_offset
    )


def read_far(log: UnifiedLog, offset: int, max_bytes: int, at_least_one: bool) -> tuple[bytes, Iterable[AbortedTxn]]:
    """Returns batches from the one with `offset`, and the transactions in them that were aborted.

    With `at_least_one` the first batch comes even if it is larger.  Raises OffsetOutOfRangeException if the tier does
    not have the offset any more, and RemoteStorageException.
    """
    tier = log.tier
    assert tier is not None, log
    extent = tier.extent(offset)
    if extent is None:
        raise OffsetOutOfRangeException(f"offset {offset} of {log.topic_partition} is not in the remote tier")
    size = min(max_bytes, extent.end - extent.position)
    head = extent.read(extent.position, 12)
    first = int.from_bytes(head[8:12], "big") + 12
    if first > size:
        if not at_least_one:
            return b"", ()
        size = first
    data = extent.read(extent.position, size)
    batches = MemoryRecords(data).batches()
    last = batches[-1].last_offset if batches else offset
    return data, tier.aborted_in(offset, last)
