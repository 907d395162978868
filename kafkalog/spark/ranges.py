"""Ranges of offsets that the driver plans and tasks read, and the bytes of files that hold them.

All are plain values, which are sent to executors.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.engine.files import File
from kafkalog.engine.format import names
from kafkalog.engine.segment.reader import header_at
from kafkalog.engine.segment.transaction_index import AbortedTxn

if TYPE_CHECKING:
    from kafkalog.engine.remote.segment import Epochs, RemoteLogSegmentMetadata


class Piece(NamedTuple):
    """Bytes [start, end) of a .log file; `start` is the first byte of a batch.

    Compaction may replace the file with another one, which may even have the same inode number.  `first_field` is
    therefore the base offset in the batch header at `start` (-1 if `start` is 0).  `next_base` is the base offset of
    the next segment. `remote` is the segment in the remote tier, None for a local one.  `is_open`: the piece ends with
    its segment, and `end` is an estimate.
    """

    path: str
    segment_base: int
    start: int
    end: int
    first_field: int = -1
    next_base: int | None = None
    remote: RemoteLogSegmentMetadata | None = None
    is_open: bool = False

    @property
    def index_path(self) -> str:
        return names.offset_index_file(os.path.dirname(self.path), self.segment_base)

    def ends_below(self, offset: int) -> bool:
        """Whether all offsets of the segment are below `offset`, so that a range up to there has all of it."""
        return self.next_base is not None and self.next_base <= offset

    def is_in(self, file: File, end_offset: int | None) -> bool:
        """Whether the file is the planned one, or has the same bytes from `start` to `end`.

        After `end` it must have no record below `end_offset` (None: no record at all).
        """
        first = header_at(file, self.start) if self.start else None
        if (-1 if first is None else first.base_offset) != self.first_field:
            return False
        size = file.size()
        if size <= self.end or end_offset is None:
            return size == self.end
        behind = header_at(file, self.end)
        return behind is None or behind.base_offset >= end_offset


@dataclass(frozen=True)
class OffsetRange:
    """One task's work: offsets [start_offset, end_offset) of a partition, and the bytes that hold them."""

    topic: str
    partition: int
    log_dir: str
    start_offset: int
    end_offset: int
    pieces: tuple[Piece, ...] = ()
    aborted: tuple[AbortedTxn, ...] = field(default=())
    history: Epochs = ()  # the partition's leader epochs, if segments were only listed
    changes_from: int | None = None  # option changes: the first offset of the changes; before it are the old values
    is_whole: bool = True  # the last record of each key before changes_from still exists

    @property
    def size(self) -> int:
        """The number of bytes to read."""
        return sum(piece.end - piece.start for piece in self.pieces)
