"""Reading past damage: a partition's view for a ChunkReader that does not stop there, and the ranges that it skipped.

After damage, reading continues at the next batch that its CRC proves, or with the next segment. Each skipped range is
reported, with its file, bytes and offsets. Offsets are checked as well: a batch whose offsets do not fit between its
neighbours is damage. Damage of an index of aborted transactions, or damage that hides how a transaction ended, still
raises an error for read_committed readers. Not thread-safe.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kafkalog._face.chunk_reader import UNREADABLE, ChunkReader
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.mounts import mounted
from kafkalog.engine.log.source import Source
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.remote.aiven import AivenTieredStorage
from kafkalog.engine.segment.loss import Lost, told_end
from kafkalog.engine.segment.reader import Unreadable, header_at
from kafkalog.engine.segment.resync import next_batch
from kafkalog.engine.segment.scan import crc_matches_in
from kafkalog.errors import KafkalogError, RemoteStorageException

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.engine.files import File
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.log.snapshot import Snapshot
    from kafkalog.engine.segment.reader import Extent
    from kafkalog.engine.segment.transaction_index import AbortedTxn

T = TypeVar("T")
R = TypeVar("R", bound=ChunkReader)
_log = Lines("kafkalog.remote")


@contextmanager
def past_chunks(log_dir: str | os.PathLike[str], files: Files) -> Iterator[None]:
    """In the block, a chunk of a remote tier that cannot be unpacked counts as bytes without batches, which is damage
    to skip. The log `kafkalog.remote` names the chunk."""
    tier = mounted(os.fspath(log_dir)) if files is OS_FILES else files
    storage = getattr(getattr(tier, "remote", tier), "storage", None)
    if not isinstance(storage, AivenTieredStorage):
        yield
        return
    told: set[str] = set()

    def tell(error: RemoteStorageException) -> None:
        if str(error) not in told:  # several reads may request it
            told.add(str(error))
            _log.warning("%s; its part of the log is skipped", error)

    storage.tell_damage = tell
    try:
        yield
    finally:
        storage.tell_damage = None


def view_of(source: Source) -> PartitionView:
    """Returns a view of the same partition, which the caller closes."""
    view = source.own_view()
    assert isinstance(view, PartitionView)  # `Source` is in a lower layer and cannot name the type
    return view


def read_past(
    source: Source,
    tell: Callable[[Lost], object],
    make: Callable[[Source], R],
    read: Callable[[R], Iterator[T]],
) -> Iterator[T]:
    """Yields the results of `read` for the reader that `make` creates, and continues after damage. `tell` is called
    with each range that is left out."""
    # Read before the view is created: the view sees at least that much unless it is damaged.
    known_end = 0 if isinstance(source, PartitionView) else source.log_end_offset
    with view_of(source) as view:
        past = PastDamage(view, source, known_end)
        with closing(make(past)) as reader:
            while True:
                try:
                    yield from read(reader)
                    return
                except UNREADABLE as error:
                    tell(past.skip(reader, error))
                    source.check_usable()


def _next_fitting(file: File, bytes_: range, offsets: range, base_offset: int) -> BatchHeader | None:
    """Returns the next batch that its CRC proves and whose offsets fit: the CRC does not cover the base offset."""
    position = bytes_.start
    while True:
        found = next_batch(file, position, bytes_.stop, min_offset=offsets.start, base_offset=base_offset)
        if found is None or (found.last_offset < offsets.stop and not _jumps(file, found, bytes_.stop, offsets.start)):
            return found
        position = found.position + found.size


def _jumps(file: File, found: BatchHeader, end: int, least: int) -> bool:
    """Returns whether the next batch proves these offsets wrong: of the two, the one that jumps ahead is wrong."""
    position = found.position + found.size
    behind = header_at(file, position) if position < end else None
    return (
        behind is not None
        and behind.magic >= 2
        and least <= behind.base_offset <= found.last_offset
        and crc_matches_in(file, position, behind.size)
    )


class _Resumed(NamedTuple):
    """The batch at which reading continues: its segment's base offset, its position and its offset."""

    segment_base: int
    position: int
    offset: int


class PastDamage(Source):
    """A `Source` over a view, for one reader."""

    def __init__(self, view: PartitionView, writer: Source | None = None, known_end: int = 0) -> None:
        self._view = view
        self._writer = writer
        self._writers_end = known_end  # the log's end before the view was created
        self.resumed: _Resumed | None = None  # after the damage met last
        self._last: tuple[int, int] = (-1, -1)  # base offset of the segment and position of the damage met last
        self.topic_partition: TopicPartition = view.topic_partition

    cuts = 0

    @property
    def log_dir(self) -> str:
        return self._view.log_dir

    @property
    def log_start_offset(self) -> int:
        return self._view.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._view.log_end_offset

    def visible_end(self, isolation: str = "read_uncommitted") -> int:
        return self._view.visible_end(isolation)

    def extent(self, offset: int, isolation: str = "read_uncommitted") -> Extent | None:
        return self.resumed_extent(offset, isolation) or self._view.extent(offset, isolation)

    def resumed_extent(self, offset: int, isolation: str) -> Extent | None:
        """Returns as `extent`, in the segment where reading continues; None elsewhere."""
        return self._view.over(lambda seen: self._resumed_extent(seen, offset, isolation))

    def _resumed_extent(self, seen: Snapshot, offset: int, isolation: str) -> Extent | None:
        """Returns an extent of the segment where reading continues: a search would meet the damage again."""
        resumed = self.resumed
        if resumed is None or offset < resumed.offset or offset >= seen.visible_end(isolation):
            return None
        place = bisect_right(seen.bases, offset) - 1
        if place < 0 or seen.bases[place] != resumed.segment_base:
            return None
        return seen.extent_at(place, resumed.position, isolation)

    def has(self, extent: Extent) -> bool:
        return self._view.has(extent)

    def aborted_in(self, first_offset: int, last_offset: int) -> Sequence[AbortedTxn]:
        return self._view.aborted_in(first_offset, last_offset)

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        return self._view.offset_for_time(timestamp_ms)

    def check_usable(self) -> None:
        self._view.check_usable()

    def recheck(self) -> None:
        """Does nothing: skipped ranges stay skipped."""

    def check_end(self, isolation: str = "read_uncommitted") -> None:
        self._view.check_end(isolation)
        seen = self._view.snapshot
        if self._known_end > seen.log_end_offset == seen.visible_end(isolation) and seen.segments:
            what = f"unreadable bytes where offset {seen.log_end_offset} should be"
            raise Unreadable(seen.segments[-1].path, seen.end_position, what).error()

    @property
    def _known_end(self) -> int:
        """The offset up to which the writer of the log knows that there are records."""
        return 0 if self._writer is None else min(self._writers_end, self._writer.log_end_offset)

    def skip(self, reader: ChunkReader, error: KafkalogError) -> Lost:
        """Moves the reader after the damage that it raised, or to the end. Returns the range that is left out.

        Raises the error again if it is not about bytes of a segment, or is from a place that was passed already.
        """
        seen = self._view.snapshot
        paths = [segment.path for segment in seen.segments]
        at = bisect_right(seen.bases, reader.offset) - 1
        if error.path not in paths and at >= 0 and seen.file(seen.segments[at]).path == error.path:
            paths[at] = error.path  # a remote tier's segment may be an object that is a file of this machine
        if error.path not in paths or error.position is None:
            raise error
        place, position = paths.index(error.path), error.position
        segment = seen.segments[place]
        if (segment.base_offset, position) <= self._last:
            raise error
        self._last = (segment.base_offset, position)
        end = seen.readable_bytes(segment)
        file = seen.file(segment)
        expected, behind = reader.offset, position + 1
        # If nothing was read yet, the batch that holds the offset may begin before it.
        least = segment.base_offset if expected == reader.first_offset else expected
        header = header_at(file, position)
        if header is not None and crc_matches_in(file, position, header.size):
            behind = position + header.size
            if header.magic >= 2 and segment.base_offset <= header.base_offset < expected:
                # Its records may be wrong: the chunk's batches after it were not read. Or its offsets are wrong, and
                # the batch with the requested offset begins before it.
                least = min(least, header.base_offset)
                expected = max(least, reader.first_offset)
        most = (seen.bases[place + 1] if place + 1 < len(paths) else max(seen.log_end_offset, least + 1)) - 1
        found = _next_fitting(file, range(behind, end), range(least, most + 1), segment.base_offset)
        stop = end if found is None else found.position
        if found is not None:
            next_offset = max(found.base_offset, expected) if found.magic >= 2 else expected
            self.resumed = _Resumed(segment.base_offset, stop, next_offset)
        elif place + 1 < len(paths):
            next_offset = max(seen.bases[place + 1], expected)
            self.resumed = _Resumed(seen.bases[place + 1], 0, next_offset)
        else:
            next_offset = seen.log_end_offset
        reader.seek(next_offset)
        if found is not None or place + 1 < len(paths):
            return Lost(error.path, position, stop - position, expected, next_offset - 1, error.message)
        reader.end_offset = next_offset  # there is nothing more to read
        size = file.size()
        known = (self._known_end, seen.recovery_point, next_offset)
        told = told_end(file, position, size, segment.base_offset, expected)
        return Lost(error.path, position, size - position, expected, max(*known, told) - 1, error.message)
