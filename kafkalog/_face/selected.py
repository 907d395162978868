"""Reads a `Selection` of one partition: as records, as record batches, or as the last value of each key.

Each function gets `ready`, which returns the partition's Source, or raises an error if nobody may read it. It is called
again when the reading begins, which may be later. If a selection has a function to report damage to, reading continues
after it (`past_damage`). Records that are appended meanwhile are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from kafkalog._face.chunk_reader import ARROW_BATCH_BYTES, CHUNK_BYTES, UNREADABLE, Chunk, ChunkReader
from kafkalog._face.damage_hint import helping
from kafkalog._face.selection import walk_selected
from kafkalog._face.window import Range, found_in, hint_beyond
from kafkalog._face.window import last as last_of
from kafkalog.errors import OffsetOutOfRangeException

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkalog._face.latest import Latest
    from kafkalog._face.selection import Selection
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.engine.log.source import Source
    from kafkalog.records import Record

T = TypeVar("T")
Ready = Callable[[], "Source"]
Progress = Callable[[int], None]

SCAN_CHUNK_BYTES = 4 << 20


def selected_range(ready: Ready, selection: Selection, last: int | None = None, *, lenient: bool = False) -> Range:
    """Returns the range of a selection: its first offset, its end, and its timestamps. `last`: it begins so many
    records before the end. `lenient`: an offset that the log does not have becomes the nearest one; otherwise it raises
    OffsetOutOfRangeException."""
    source = ready()
    try:
        with helping() if selection.is_call else nullcontext():
            found = found_in(source, selection.window, lenient=lenient)
    except UNREADABLE:
        if selection.tell is None:
            raise
        # The search for a time met damage. A reader that skips damage checks all timestamps itself.
        found = found_in(source, selection.window._replace(start=None), lenient=lenient)._replace(times=selection.times)
    low, high = source.log_start_offset, source.log_end_offset
    if not low <= found.start <= high:
        raise OffsetOutOfRangeException(
            f"offset {found.start} of {source.topic_partition} is out of range: the log has [{low}, {high})",
            hint=hint_beyond(found.start) if found.start > high else None,
        )
    if last is None:
        return found
    stop = source.visible_end(selection.isolation)
    stop = stop if found.end is None else min(found.end, stop)

    def offsets(start: int, end: int) -> Iterator[int]:
        part = found._replace(start=start, end=end)
        return (record.offset for record in records_in(ready, quiet, part))

    quiet = selection.untold()
    lasts = [*last_of(offsets, last, found.start, stop)]  # read completely: it may raise an error at its end
    return found._replace(start=lasts[0] if lasts else stop)


def records_in(ready: Ready, selection: Selection, place: Range) -> Iterator[Record]:
    """Yields the records of a range."""
    if selection.tell is None:
        return walk_selected(_record_batches(ready, selection, place), selection, place.times)

    def read(reader: ChunkReader) -> Iterator[Record]:
        return walk_selected(reader.batches_of_records(), selection, place.times)

    return _read(ready, selection, place, read, chunk_bytes=CHUNK_BYTES)


def _record_batches(
    ready: Ready, selection: Selection, place: Range
) -> Iterator[tuple[ChunkReader, Chunk, BatchHeader]]:
    return _read(ready, selection, place, ChunkReader.batches_of_records, chunk_bytes=CHUNK_BYTES)


def batches_in(
    ready: Ready,
    selection: Selection,
    place: Range,
    columns: Sequence[str],
    batch_rows: int,
    *,
    batch_bytes: int = ARROW_BATCH_BYTES,
    known: Mapping[str, tuple[str, Any]] | None = None,
    progress: Progress | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the records of a range as record batches with these columns of `known` (by default Python's); none is
    empty. `progress` is called with the number of the log's bytes as they are read."""
    from kafkalog._face import arrow

    known = arrow.PYTHON_COLUMNS if known is None else known
    needed, limits = selection.columns_for(columns), selection.limits(place.times)

    def read(reader: ChunkReader) -> Iterator[pa.RecordBatch]:
        source = reader.source
        for batch in arrow.record_batches(reader, needed, batch_rows, known, batch_bytes=batch_bytes, limits=limits):
            source.check_usable()  # a forked child also has what was read before
            batch = selection.filtered(batch, columns)
            if batch.num_rows:
                yield batch

    return _read(ready, selection, place, read, progress, chunk_bytes=SCAN_CHUNK_BYTES, reads_ahead=True)


def latest_in(
    ready: Ready,
    selection: Selection,
    *,
    memory_bytes: int | None = None,
    lenient: bool = False,
    progress: Progress | None = None,
) -> Latest:
    """Returns the last offset of each key of a selection. A `Match` is not applied: the caller filters the rows."""
    from kafkalog._face.latest import MEMORY_BYTES, Latest, memory_of

    selection = selection.unpruned()  # conditions select among last values, and do not change which value is last
    memory_bytes = MEMORY_BYTES if memory_bytes is None else memory_of(memory_bytes)
    place = selected_range(ready, selection, lenient=lenient)
    return Latest(
        ready(),
        place.end,
        start=place.start,
        limits=selection.limits(place.times),
        isolation=selection.isolation,
        memory_bytes=memory_bytes,
        tell=selection.tell,
        progress=progress,
    )


def _read(
    ready: Ready,
    selection: Selection,
    place: Range,
    read: Callable[[ChunkReader], Iterator[T]],
    progress: Progress | None = None,
    **options: Any,
) -> Iterator[T]:
    """Yields the results of `read` for a reader of the range, also after damage if the selection reports it."""
    source, isolation, end = ready(), selection.isolation, place.end
    limit = source.visible_end(isolation)
    stop: int | None = limit if end is None else min(end, limit)
    if selection.tell is not None:
        stop = end  # the view does not grow, and its reader checks whether its end is damaged

    def make(source: Source) -> ChunkReader:
        if progress is None:
            kind = _Helping if selection.is_call and selection.tell is None else ChunkReader
            return kind(source, place.start, end_offset=stop, isolation=isolation, **options)
        return _Counted(source, place.start, progress, end_offset=stop, isolation=isolation, **options)

    if selection.tell is None:
        with helping() if selection.is_call else nullcontext():
            with make(source) as reader:
                yield from read(reader)
            if end is None or end > limit:
                source.check_end(isolation)
        return
    from kafkalog._face.past_damage import read_past

    yield from read_past(source, selection.tell, make, read)


class _Helping(ChunkReader):
    """Adds the hint how to read on after damage, for errors of a walk over records."""

    def plain_records(self, chunk: Chunk, header: BatchHeader) -> Iterator[Record]:
        with helping():
            yield from super().plain_records(chunk, header)


class _Counted(ChunkReader):
    """Reports how much it reads."""

    def __init__(self, source: Source, offset: int, progress: Progress, **options: Any) -> None:
        super().__init__(source, offset, **options)
        self._progress = progress

    def read_chunk(self) -> Chunk | None:
        chunk = super().read_chunk()
        if chunk is not None:
            self._progress(len(chunk.data))
        return chunk
