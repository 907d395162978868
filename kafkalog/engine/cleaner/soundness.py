"""Soundness: checks that the bytes that a pass reads of a segment are those that were written.

Kafka's cleaner checks no checksum.  A flipped bit in a key then drops another key's record, and one in a batch that is
rebuilt gets a valid checksum.  So a pass stops here, except in comparisons with Kafka's class.  It stops at a wrong
checksum, at offsets that do not fit between their neighbours, and at a segment that ends inside a batch, or before a
batch that its index names.  Costs no read: it checks the chunks that a pass reads anyway.
"""

from __future__ import annotations

import numpy as np

from kafkalog._limits import LONG_MAX
from kafkalog.engine.cleaner.io_buffers import Chunk
from kafkalog.engine.segment.log_segment import LogSegment
from kafkalog.engine.segment.loss import reason
from kafkalog.engine.segment.order import highest_offset, misfits
from kafkalog.errors import CorruptRecordException

_HINT = "run `kafkalog verify` for details; `kafkalog salvage` copies the readable records"


class Soundness:
    """Checks one segment while a pass reads it.  `following` is the base offset of the next segment.

    Each call raises CorruptRecordException, with file and position, if it finds damage.
    """

    def __init__(self, segment: LogSegment, following: int | None) -> None:
        self._path = segment.log.path
        self._size = segment.log.size
        self._expected = segment.base_offset
        self._limit = highest_offset(segment.base_offset, following)
        self._seen = 0  # the file is checked up to here
        self._timed = segment.time_index.last_entry.offset if segment.time_index.entries else -1
        named = segment.offset_index.lookup(LONG_MAX).position
        if named and named >= self._size:
            raise self._error(f"The file ends before the batch at {named} that its index names", self._size)

    def check(self, chunk: Chunk) -> None:
        """Checks the batches of a chunk that were not checked before, and the end of the file if the chunk has it."""
        table = chunk.table[np.searchsorted(chunk.table["position"], self._seen - chunk.position) :]
        if len(table):
            wrong = misfits(table, self._expected, self._limit)
            if wrong:
                raise self._misfit(table[wrong[0]], chunk.position)
            self._expected = int(table["last_offset"][-1]) + 1
            self._seen = chunk.position + chunk.valid_bytes
        if chunk.valid_bytes < len(chunk.data) and chunk.position + len(chunk.data) == self._size:
            self._end(chunk)

    def finish(self) -> None:
        """Checks the end of the file."""
        if self._timed >= self._expected:
            raise self._error(f"The file ends before offset {self._timed} that its time index names", self._size)

    def _end(self, chunk: Chunk) -> None:
        """Raises, because the chunk has the file's last byte and bytes that are no whole batch remain."""
        chunk.check_end()
        at = chunk.position + chunk.valid_bytes
        raise self._error(f"Found {reason(chunk.why)}, expected a batch that ends with the file", at)

    def _misfit(self, row: np.void, position: int) -> CorruptRecordException:
        return self._error(
            f"Found a batch of offsets {int(row['base_offset'])} to {int(row['last_offset'])}, magic "
            f"{int(row['magic'])}, expected offsets from {self._expected} to {self._limit}",
            position + int(row["position"]),
        )

    def _error(self, message: str, position: int) -> CorruptRecordException:
        return CorruptRecordException(message, path=self._path, position=position, hint=_HINT)
