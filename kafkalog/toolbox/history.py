"""Every value of a key that is still in a partition, and what each of them counts for.

Found as `search` finds keys, by columns.  Up to the last stable offset it is known which transactions were aborted;
what lies behind it no read_committed reader sees yet.  Of a topic's partitions each answers for itself.  Only reads,
without a lock, beside a running broker too.  Needs pyarrow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._face.chunk_reader import Chunk, ChunkReader
from kafkalog._face.match import Match, matching
from kafkalog._face.window import Window, found_in
from kafkalog.errors import KafkalogError

if TYPE_CHECKING:
    from kafkalog.engine.log.source import Source
    from kafkalog.engine.log.view import PartitionView
    from kafkalog.records import Record

__all__ = ["Entry", "history"]

LATEST = "latest"
SUPERSEDED = "superseded"  # a later one counts; the next clean may take it
ABORTED = "aborted"  # its transaction was
PENDING = "pending"  # a transaction before it, or its own, is open: it counts once that has ended
EVERYTHING = Window()


class Entry(NamedTuple):
    """One value of a key; `state` is LATEST, SUPERSEDED, ABORTED or PENDING."""

    record: Record
    state: str

    @property
    def tombstone(self) -> bool:
        """Whether it deletes the key."""
        return self.record.value is None


def history(view: PartitionView, key: bytes, window: Window = EVERYTHING, *, lenient: bool = False) -> Iterator[Entry]:
    """The values of `key` in a window of a view's partition, by offset.

    LATEST is the last one in the window that is neither aborted nor pending.  `lenient` as in `window.found_in`.  At
    damage what lies before it comes first, the last value as LATEST, then the error.
    """
    start, end, times = found_in(view, window, lenient=lenient)
    stable = view.visible_end("read_committed")
    match = Match([key])
    reader = _Marking(view, start, stable if end is None else min(end, stable))
    undecided: list[Entry] = []  # the last value that counts, and aborted ones behind it
    try:
        for record in matching(reader, match, times):
            if reader.is_aborted(record.offset):
                undecided.append(Entry(record, ABORTED))
                continue
            yield from _superseded(undecided)
            undecided = [Entry(record, LATEST)]
    except KafkalogError:
        yield from undecided
        raise
    yield from undecided
    for record in matching(ChunkReader(view, max(start, stable), end_offset=end), match, times):
        yield Entry(record, PENDING)


def _superseded(entries: list[Entry]) -> Iterator[Entry]:
    for entry in entries:
        yield entry._replace(state=SUPERSEDED) if entry.state == LATEST else entry


class _Marking(ChunkReader):
    """Up to the last stable offset, aborted batches with the others; says of an offset whether it was aborted."""

    def __init__(self, source: Source, start: int, end: int) -> None:
        super().__init__(source, start, end_offset=end, isolation="read_committed")
        self._aborted: deque[tuple[int, int]] = deque()  # first and last offset of batches

    def read_chunk(self) -> Chunk | None:
        chunk = super().read_chunk()
        if chunk is not None and chunk.aborted:
            rows = chunk.table[chunk.aborted_rows() == 1]
            self._aborted.extend(zip(rows["base_offset"].tolist(), rows["last_offset"].tolist(), strict=True))
            chunk.aborted = ()
        return chunk

    def is_aborted(self, offset: int) -> bool:
        """Asked for ascending offsets."""
        while self._aborted and self._aborted[0][1] < offset:
            self._aborted.popleft()
        return bool(self._aborted) and self._aborted[0][0] <= offset


def __dir__() -> list[str]:
    return __all__
