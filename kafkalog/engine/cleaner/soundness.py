"""Soundness: whether what a pass reads of a segment is what was written.

Kafka's cleaner looks at no checksum: a flipped bit in a key drops another key's record, and one in a batch that is
built anew gets a checksum that is right.  Where nobody compares us with Kafka's class a pass stops instead: at a
checksum that is another, at offsets that do not fit between their neighbours, at a segment that ends inside of a batch,
or before one that its index names.  Costs no read: it looks at the chunks that a pass reads anyway.
"""

from __future__ import annotations

import numpy as np

from kafkalog._limits import LONG_MAX
from kafkalog.engine.cleaner.io_buffers import Chunk
from kafkalog.engine.segment.log_segment import LogSegment
from kafkalog.engine.segment.loss import reason
from kafkalog.engine.segment.order import highest_offset, misfits
from kafkalog.errors import CorruptRecordException

_HINT = "`kafkalog verify` says more, `kafkalog salvage` copies what can be read"


class Soundness:
    """Of one segment while a pass reads it; `following`: the base offset of the segment behind it.

    CorruptRecordException, with file and position, from each of its calls.
    """

    def __init__(self, segment: LogSegment, following: int | None) -> None:
        self._path = segment.log.path
        self._size = segment.log.size
        self._expected = segment.base_offset
        self._limit = highest_offset(segment.base_offset, following)
        self._seen = 0  # the file is looked at up to here
        self._timed = segment.time_index.last_entry.offset if segment.time_index.entries else -1
        named = segment.offset_index.lookup(LONG_MAX).position
        if named and named >= self._size:
            raise self._error(f"The file ends before the batch at {named} that its index names", self._size)

    def check(self, chunk: Chunk) -> None:
        """The batches of a chunk that were not seen before; the end of the file, where the chunk reaches that."""
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
        """At the end of the file."""
        if self._timed >= self._expected:
            raise self._error(f"The file ends before offset {self._timed} that its time index names", self._size)

    def _end(self, chunk: Chunk) -> None:
        """Of a chunk with the file's last byte, behind whose last row there is something left."""
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
