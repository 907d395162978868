"""Reading after damage of a log that is followed: a Source that finds records if the log's own search for them meets
the damage.

Records after the damage are found as in a single read (`past_damage`). The log itself finds records that are appended
later, as soon as its index has an entry for them. Not thread-safe: it belongs to one reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kafkalog._face.chunk_reader import UNREADABLE
from kafkalog._face.past_damage import PastDamage, view_of
from kafkalog.engine.log.source import Source
from kafkalog.errors import KafkalogError

if TYPE_CHECKING:
    from kafkalog._face.chunk_reader import ChunkReader
    from kafkalog.engine.log.source import Ringing
    from kafkalog.engine.log.view import PartitionView
    from kafkalog.engine.segment.loss import Lost
    from kafkalog.engine.segment.reader import Extent
    from kafkalog.engine.segment.transaction_index import AbortedTxn


class FollowedPastDamage(Source):
    """Wraps the source that a reader had when it met damage."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.topic_partition = source.topic_partition
        self._view: PartitionView | None = None
        self._past: PastDamage | None = None
        self._behind = -1  # the offset where reading continues: the log's own search is not used for it
        self._met: tuple[object, ...] | None = None  # the damage met last, and where reading continued
        self._told_end: tuple[str | None, int | None] | None = None  # damage after which the log has ended so far

    def skip(self, reader: ChunkReader, error: KafkalogError) -> Lost | None:
        """Moves the reader after the damage that it raised. Returns the range that is left out; None if that was
        reported already.

        Raises the error again if it is not about bytes of a segment, or if nothing leads past it.
        """
        end_offset, high = reader.end_offset, self._source.log_end_offset  # before the view, which sees at least that
        view = view_of(self._source)
        self.close()
        self._view, self._past = view, PastDamage(view)
        lost = self._past.skip(reader, error)
        is_at_end = reader.end_offset != end_offset
        reader.end_offset = end_offset
        if is_at_end and high > reader.offset:  # the last batches are damaged
            reader.seek(high)
            lost = lost._replace(last_offset=high - 1)
        self._behind = reader.offset
        met = (error.path, error.position, reader.offset, self._past.resumed)
        if met == self._met and not is_at_end:
            raise error
        self._met = met
        stands_before = is_at_end and reader.offset <= lost.last_offset  # a log that is only read may have ended there
        if lost.last_offset >= lost.first_offset and not stands_before:
            return lost
        if not is_at_end or self._told_end == (error.path, error.position):
            return None
        self._told_end = error.path, error.position
        return lost

    def close(self) -> None:
        """Closes the files."""
        view, self._view, self._past = self._view, None, None
        if view is not None:
            view.close()

    def extent(self, offset: int, isolation: str = "read_uncommitted") -> Extent | None:
        if offset < self._behind:
            self._met = None  # the reader went back, and may meet the damage again
        found = self._resumed(offset, isolation) if offset == self._behind else None
        if found is not None:
            return found
        try:
            return self._source.extent(offset, isolation)
        except UNREADABLE:
            found = self._resumed(offset, isolation)
            if found is None:
                raise
            return found

    def _resumed(self, offset: int, isolation: str) -> Extent | None:
        """Returns the extent where reading continues after the damage, if the offset is there."""
        view, past = self._view, self._past
        if view is None or past is None or offset < self._behind:
            return None
        with suppress(KafkalogError):  # the log's own answer is used then
            if view.log_end_offset < self._source.log_end_offset:
                view.refresh()
            return past.resumed_extent(offset, isolation)
        return None

    def has(self, extent: Extent) -> bool:
        return self._source.has(extent) or (self._view is not None and self._view.has(extent))

    def check_end(self, isolation: str = "read_uncommitted") -> None:
        try:
            self._source.check_end(isolation)
        except UNREADABLE as error:
            if self._told_end != (error.path, error.position):
                raise

    # --- delegated to the source -----------------------------------------------------------------------

    @property
    def log_dir(self) -> str:
        return self._source.log_dir

    @property
    def log_start_offset(self) -> int:
        return self._source.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._source.log_end_offset

    @property
    def cuts(self) -> int:
        return self._source.cuts

    def visible_end(self, isolation: str = "read_uncommitted") -> int:
        return self._source.visible_end(isolation)

    def aborted_in(self, first_offset: int, last_offset: int) -> Sequence[AbortedTxn]:
        return self._source.aborted_in(first_offset, last_offset)

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        return self._source.offset_for_time(timestamp_ms)

    def own_view(self) -> PartitionView:
        return view_of(self._source)

    def check_usable(self) -> None:
        self._source.check_usable()

    def recheck(self) -> None:
        self._source.recheck()

    def ring_at_change(self, bell: Ringing) -> str | None:
        return self._source.ring_at_change(bell)

    def ring_no_more(self, bell: Ringing) -> None:
        self._source.ring_no_more(bell)

    def has_changed(self) -> bool:
        return self._source.has_changed()
