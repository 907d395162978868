"""CleanerStats: the numbers of one pass, for metrics and for the log.

Counts of records are called `messages`, as in Kafka.  Bytes are bytes of .log files.  Only the pass writes the object.
"""

from __future__ import annotations

from dataclasses import dataclass

_MS_PER_SECOND = 1000.0


@dataclass(slots=True)
class CleanerStats:
    """The numbers of a pass.  Times are in ms; -1 if the pass did not get so far.  Mirrors Kafka's class (4.4.0)."""

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
    # Kafka does not count the following: other dropped records, and batches.
    superseded: int = 0  # a later record has the same key
    tombstones: int = 0  # the last record of its key, past its delete horizon
    aborted: int = 0
    markers: int = 0  # the markers of transactions of which no record is left
    batches_read: int = 0
    batches_written: int = 0
    buffer_utilization: float = 0.0  # entries of the offset map divided by its slots

    @property
    def elapsed_secs(self) -> float:
        return (self.end_ms - self.start_ms) / _MS_PER_SECOND

    @property
    def elapsed_index_secs(self) -> float:
        """The time to build the map, in seconds."""
        return (self.map_complete_ms - self.start_ms) / _MS_PER_SECOND
