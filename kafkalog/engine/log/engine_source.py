"""EngineSource: a log that this process has open, as readers see it: `UnifiedLog` as a `Source`.

Everything below the log's end was written by this process, so bytes that cannot be read there are damage. The engine
finds batches as Kafka does: it trusts the indexes, and reports nothing if it finds nothing. Here such an incomplete
result is checked against the log, which costs time only in compacted and damaged logs. Thread-safe: if another thread
closes the log meanwhile, the engine's errors become IllegalStateException, as for a closed log.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from itertools import zip_longest
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from kafkalog._limits import INT_MAX
from kafkalog.engine.log.source import check_isolation
from kafkalog.engine.log.types import FetchIsolation
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.segment.order import highest_offset
from kafkalog.engine.segment.reader import Extent, SegmentReader, Unreadable
from kafkalog.engine.segment.scan import LogScan
from kafkalog.errors import (
    BadBytesError,
    ClosedChannelException,
    CorruptIndexException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidRecordException,
    KafkaException,
    KafkalogError,
    KafkaStorageException,
    OffsetOutOfRangeException,
)

if TYPE_CHECKING:
    from kafkalog.engine.files.processes import Life
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.log.snapshot import Snapshot
    from kafkalog.engine.log.source import Ringing
    from kafkalog.engine.log.tier import TierSegment
    from kafkalog.engine.log.unified_log import UnifiedLog
    from kafkalog.engine.segment.log_segment import LogSegment
    from kafkalog.engine.segment.transaction_index import AbortedTxn

T = TypeVar("T")
HIGH_WATERMARK: Callable[[UnifiedLog], int] = attrgetter("high_watermark")
LAST_STABLE_OFFSET: Callable[[UnifiedLog], int] = attrgetter("last_stable_offset")


class EngineSource:
    """A reader's view of a log that this process has open."""

    def __init__(self, topic_partition: TopicPartition, engine: UnifiedLog, life: Life) -> None:
        self.topic_partition = topic_partition
        self.life = life
        self._engine = engine

    @property
    def log_dir(self) -> str:
        return self._engine.parent_dir

    @property
    def log_start_offset(self) -> int:
        return self._engine.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._engine.log_end_offset

    def own_view(self) -> PartitionView:
        """Returns a view of the directory. A view cannot read a remote tier."""
        self.check_usable()
        engine = self._engine
        if engine.context.uses_remote_tier:
            raise IllegalArgumentException(
                f"on_damage: {self.topic_partition} has a remote tier, and the store is open for writing",
                hint="open the store a second time with read_only=True and the same remote",
            )
        return PartitionView(engine.parent_dir, self.topic_partition, files=engine.context.files)

    def over(self, ask: Callable[[Snapshot], T]) -> T:
        engine = self._engine
        with PartitionView(engine.parent_dir, self.topic_partition, files=engine.context.files) as view:
            return view.over(ask)

    def tiered(self) -> Sequence[TierSegment]:
        tier = self._engine.tier
        return () if tier is None else tier.held()

    def check_usable(self) -> None:
        """Raises IllegalStateException in a forked child of the process that opened the log."""
        if self.life.forked:
            raise self.life.elsewhere(f"the log of {self.topic_partition}")

    def recheck(self) -> None:
        """Does nothing: the engine always knows the state."""

    def check_end(self, isolation: str = "read_uncommitted") -> None:
        """Raises CorruptRecordException if the log has bytes after the batch that gave the log its end.

        Opening after a clean close trusts what it finds. After a batch whose size is damaged it finds nothing.
        """
        if self.visible_end(isolation) < self._engine.log_end_offset:
            return
        try:
            if self._damage_at_end() is None:
                return
        except ClosedChannelException:  # the segment was deleted meanwhile, or the log was closed
            self._check_open()
        with self._engine.lock:  # a truncation may be running: try again without one
            damage = None if self._engine.local_log.is_closed else self._damage_at_end()
        if damage is not None:
            raise damage.error()

    def _damage_at_end(self) -> Unreadable | None:
        local = self._engine.local_log
        end_offset, base, size = local.next_offset_metadata
        segment = local.segments.get(base)
        if segment is None or not size:
            return None
        file = segment.log.open_channel()
        reader = SegmentReader(file, base, highest_offset(base, None), size)
        start = next(reader.starts(segment.offset_index.lookup(end_offset)))
        scan = LogScan(file, start, size, check_crc=False)
        for _ in scan:
            pass
        return Unreadable.where_stopped(file, scan) if scan.position < size else None

    def visible_end(self, isolation: str = "read_uncommitted") -> int:
        self.check_usable()
        return self._asked(LAST_STABLE_OFFSET if check_isolation(isolation) else HIGH_WATERMARK, self._engine)

    def extent(self, offset: int, isolation: str = "read_uncommitted") -> Extent | None:
        self.check_usable()
        self._check_open()
        try:
            try:
                return self._in_tier(offset, isolation) or self._extent(offset, isolation)
            except OffsetOutOfRangeException:
                found = self._in_tier(offset, isolation)  # retention deleted the local segment meanwhile
                if found is None:
                    raise
                return found
            except (BadBytesError, ClosedChannelException, IllegalArgumentException):
                self._check_open()
                with self._engine.lock:  # a truncation may be running: try again without one
                    return self._in_tier(offset, isolation) or self._extent(offset, isolation)
        except KafkaException as error:
            _raise_for_readers(error)
        except (ClosedChannelException, OSError) as error:
            self._check_open()  # closed meanwhile
            if isinstance(error, KafkalogError):
                raise
            raise KafkaStorageException(f"cannot read {self.topic_partition}: {error}") from error

    def _in_tier(self, offset: int, isolation: str) -> Extent | None:
        """Returns where the remote tier has an offset, or what follows it; None if the local log has it, or nobody."""
        engine = self._engine
        local_start = engine.local_log_start_offset
        if not engine.log_start_offset <= offset < local_start:
            return None
        if engine.tier is None:
            raise OffsetOutOfRangeException(
                f"{self.topic_partition}: offset {offset} is in the remote tier, which is not open; "
                f"the local log begins at {local_start}",
                hint='kafkalog.open(..., remote="s3://bucket/prefix") reads both',
            )
        return engine.tier.extent(offset) or self._extent(local_start, isolation)

    def _check_open(self) -> None:
        if self._engine.local_log.is_closed:
            raise IllegalStateException(
                f"{self.topic_partition} of {os.path.dirname(self._engine.dir)} is closed",
                hint="kafkalog.open_log opens it again",
            ) from None

    def _asked(self, ask: Callable[..., T], *given: Any) -> T:
        """Calls the engine. Raises IllegalStateException if the log was closed meanwhile."""
        try:
            return ask(*given)
        except (ClosedChannelException, KafkaStorageException):
            self._check_open()
            raise

    def _extent(self, offset: int, isolation: str) -> Extent | None:
        return self._engine.local_log.segments.unchanged(lambda: self._extent_now(offset, isolation))

    def _extent_now(self, offset: int, isolation: str) -> Extent | None:
        committed = check_isolation(isolation)
        kind = FetchIsolation.TXN_COMMITTED if committed else FetchIsolation.HIGH_WATERMARK
        visible = self.visible_end(isolation)
        try:
            info = self._engine.read(offset, INT_MAX, kind, False)
        except (BadBytesError, InvalidRecordException):
            return self._walked(offset, committed)
        records: Any = info.records
        if records.size == 0:
            return self._walked(offset, committed) if offset < visible else None
        if info.fetch_offset_metadata.message_offset > offset:
            return self._walked(offset, committed)
        file = records.file
        base = info.fetch_offset_metadata.segment_base_offset
        end = records.position + records.size
        segments = self._engine.local_log.segments
        following = segments.higher_segment(base)
        here = segments.get(base)
        whole = following is not None and here is not None and end >= here.size
        next_base = following.base_offset if whole and following is not None else None
        if info.fetch_offset_metadata.message_offset < offset and here is not None:  # Kafka trusts any base offset
            reader = SegmentReader(file, base, highest_offset(base, next_base), end)
            reader.find(offset, here.offset_index.lookup(offset))  # raises if the batch does not fit
        # Read after the batches: an append between the two moves the end, and the stretch has its records.
        limit = self.visible_end(isolation) - 1
        return Extent(file, base, records.position, end, next_base=next_base, base_limit=limit, owner=here)

    def _walked(self, offset: int, committed: bool) -> Extent | None:
        """Finds the extent from the log alone.

        This is for a wrong index, an offset that compaction removed, or damage.
        """
        engine = self._engine
        segments = engine.local_log.segments
        bound = engine._fetch_last_stable_offset_metadata() if committed else engine._fetch_high_watermark_metadata()
        segment = segments.floor_segment(offset)
        while segment is not None and segment.base_offset <= bound.segment_base_offset:
            base, following = segment.base_offset, segments.higher_segment(segment.base_offset)
            next_base = None if following is None else following.base_offset
            file, end = segment.log.open_channel(), segment.log.size
            if base == bound.segment_base_offset:
                end = bound.relative_position_in_segment
            position = SegmentReader(file, base, highest_offset(base, next_base), end).find(offset)
            if position is not None:
                next_base = next_base if end == segment.log.size else None
                limit = bound.message_offset - 1
                return Extent(file, base, position, end, next_base=next_base, base_limit=limit, owner=segment)
            segment = following
        return None

    @property
    def cuts(self) -> int:
        """How often the log was truncated. After a change, earlier results may no longer be valid."""
        return self._engine.local_log.truncations

    def has(self, extent: Extent) -> bool:
        tier = self._engine.tier
        if tier is not None and tier.owns(extent):
            return tier.has(extent)
        return self._engine.local_log.segments.get(extent.segment_base) is extent.owner

    def aborted_in(self, first_offset: int, last_offset: int) -> list[AbortedTxn]:
        engine = self._engine
        try:
            # In this order: the local start moves before segments are deleted, and only segments in the tier are
            # deleted.
            local = self._asked(engine.collect_aborted_transactions, first_offset, last_offset + 1)
            if engine.tier is None or first_offset >= engine.local_log_start_offset:
                return local
            found = engine.local_log.segments.unchanged(lambda: self._aborted_in_all(first_offset, last_offset))
            found.update(engine.tier.aborted_in(first_offset, last_offset))
            return sorted(found)
        except KafkaException as error:
            _raise_for_readers(error)

    def _aborted_in_all(self, first_offset: int, last_offset: int) -> set[AbortedTxn]:
        """Reads the indexes of all local segments.

        A transaction with records in the tier may have ended there.
        """
        found: set[AbortedTxn] = set()
        for segment in self._engine.log_segments():
            found.update(segment.txn_index.collect_aborted_txns(first_offset, last_offset + 1).aborted_transactions)
        return found

    # --- waiting -------------------------------------------------------------------------------------

    def ring_at_change(self, bell: Ringing) -> None:
        log = self._engine
        while True:
            waiters = log.waiters
            waiters.append(bell)
            if waiters is log.waiters:  # otherwise all waiters were woken meanwhile
                return

    def ring_no_more(self, bell: Ringing) -> None:
        with contextlib.suppress(ValueError):  # ringing has removed it
            self._engine.waiters.remove(bell)

    def has_changed(self) -> bool:
        return False

    # --- by time -------------------------------------------------------------------------------------

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """Returns the same as Source, from the log's records. Kafka reads only one segment for it."""
        self.check_usable()
        self._check_open()
        self._engine.settle_to_read()
        try:
            return self._asked(self._first_at, timestamp_ms)
        except (BadBytesError, ClosedChannelException, IllegalArgumentException):
            self._check_open()
            with self._engine.lock:  # a truncation or a deletion may have interfered: try again without one
                self._check_open()
                return self._asked(self._first_at, timestamp_ms)

    def _first_at(self, timestamp_ms: int) -> int | None:
        engine = self._engine
        segments = engine.local_log.segments.values()
        if engine.tier is not None and engine.log_start_offset < engine.local_log_start_offset:
            found = engine.tier.offset_for_time(timestamp_ms)
            if found is not None:
                return found
        with engine.local_log.guard("searching by time"):
            for segment, following in zip_longest(segments, segments[1:]):
                first_offset = max(segment.base_offset, engine.log_start_offset)
                if following is not None and following.base_offset <= first_offset:
                    continue
                found = self._first_in(segment, following, timestamp_ms, first_offset)
                if found is not None:
                    return found
        return None

    @staticmethod
    def _first_in(
        segment: LogSegment, following: LogSegment | None, timestamp_ms: int, first_offset: int
    ) -> int | None:
        base = segment.base_offset
        limit = highest_offset(base, None if following is None else following.base_offset)
        reader = SegmentReader(segment.log.open_channel(), base, limit, segment.log.size)

        def position_of(offset: int) -> int | None:
            if not reader.end:
                return None
            return 0 if offset <= base else reader.find(offset, segment.offset_index.lookup(offset))

        return reader.first_at(timestamp_ms, first_offset, segment.time_index, position_of)


def _raise_for_readers(error: KafkaException) -> NoReturn:
    """Raises CorruptIndexException for Kafka's error about a damaged transaction index, as in a view."""
    if type(error) is not KafkaException or error.path is None:
        raise error
    raise CorruptIndexException(error.message, path=error.path, position=error.position, hint=error.hint) from error
