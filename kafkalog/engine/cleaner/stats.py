"""CleanerStats: what one pass of the cleaner read, wrote and took; plain numbers, for metrics and for the log.

Counts of records are `messages`, as in Kafka; bytes are those of .log files.  Written by the pass alone.
"""

from __future__ import annotations

from dataclasses import dataclass

_MS_PER_SECOND = 1000.0


@dataclass(slots=True)
class CleanerStats:
    """The numbers of a pass; times in ms, -1 where it has not come so far.  Mirrors the class of that name (4.4.0)."""

    start_ms: int
    map_complete_ms: int = -1
    end_ms: int = -1
    map_bytes_read: int = 0
    map_messages_read: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    messages_read: int = 0
    messages_written: int = 0
    invalid_messages_read: int = 0  # without a key, below the end of the map: dropped
    # What else was dropped, and batches; these Kafka does not count.
    superseded: int = 0  # another record of the same key lies behind
    tombstones: int = 0  # the last of their key, past their delete horizon
    aborted: int = 0
    markers: int = 0  # of transactions that nothing is left of
    batches_read: int = 0
    batches_written: int = 0
    buffer_utilization: float = 0.0  # entries of the offset map for each of its slots

    @property
    def elapsed_secs(self) -> float:
        return (self.end_ms - self.start_ms) / _MS_PER_SECOND

    @property
    def elapsed_index_secs(self) -> float:
        """What building the map took."""
        return (self.map_complete_ms - self.start_ms) / _MS_PER_SECOND
