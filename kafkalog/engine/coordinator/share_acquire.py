"""Acquiring records of a share partition: which of the offsets that a fetch read go to the member.

    acquired = acquire(shared, AcquireRequest("worker-1", max_records=500), fetch_offset, log_read)

By default whole batches of the log are acquired, so that `max_records` may be exceeded (BATCH_OPTIMIZED); RECORD_LIMIT
keeps to it. Records that failed often are delivered in smaller and smaller groups, and alone before their last attempt,
so that one bad record does not use up the deliveries of its neighbours. Source: SharePartition.acquire (4.4.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkalog._native.state.in_flight import (
    ACQUIRED,
    AVAILABLE,
    MIN_THROTTLE_DELIVERIES,
    NO_DEADLINE,
    InFlightBatch,
    InFlightState,
)
from kafkalog.engine.coordinator.share_interfaces import Aborted, LogRead, SharedBatch

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.share_partition import SharePartition

BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1  # share acquire modes
NO_LIMIT = -1


class AcquireRequest(NamedTuple):
    """A member's wish. `batch_size`: how many records its acknowledgements should cover at least."""

    member: str
    max_records: int
    batch_size: int = 500
    mode: int = BATCH_OPTIMIZED
    committed: bool = False

    @property
    def keeps_limit(self) -> bool:
        return self.mode == RECORD_LIMIT


class AcquiredRecords(NamedTuple):
    """Acquired offsets that were delivered equally often."""

    first_offset: int
    last_offset: int
    delivery_count: int


Acquired = list[AcquiredRecords]
NONE: Acquired = []


def acquired_count(acquired: Iterable[AcquiredRecords]) -> int:
    """Returns the number of offsets."""
    count = 0
    for first, last, _ in acquired:
        count += last - first + 1
    return count


def acquire(shared: SharePartition, request: AcquireRequest, fetch_offset: int, read: LogRead) -> Acquired:
    """Acquires what is free of the batches that a read at `fetch_offset` found. Returns the offsets, ascending."""
    batches = read.batches
    if not shared.is_active or request.max_records <= 0 or not batches:
        return NONE
    last = batches[-1].last_offset
    with shared.lock:
        if last < shared.start_offset:
            return NONE
        limits = shared.limits()
        max_records = min(request.max_records, limits.partition_max_record_locks - shared.num_in_flight_records())
        if max_records <= 0:
            # There is no room for new records, but those between in-flight ones may be free.
            if fetch_offset > shared.end_offset:
                return NONE
            max_records = min(request.max_records, shared.end_offset - fetch_offset + 1)
            last = min(last, shared.end_offset)
        shared.begin_change()
        acquired = _Acquiring(shared, request, batches, last, max_records, limits.delivery_count_limit).run(
            fetch_offset
        )
        if request.committed and read.aborted:
            acquired = _without_aborted(shared, read, acquired)
        shared.end_change()
    return acquired


def throttle_limit(max_delivery_count: int) -> int:
    """Returns the delivery count from which on records are delivered in smaller groups."""
    return max(MIN_THROTTLE_DELIVERIES, -(-max_delivery_count // 2))


class _Acquiring:
    """One acquisition, under the partition's lock."""

    __slots__ = ("batches", "first_base", "last", "max_count", "max_records", "request", "result", "shared")

    def __init__(
        self,
        shared: SharePartition,
        request: AcquireRequest,
        batches: Sequence[SharedBatch],
        last: int,
        max_records: int,
        max_count: int,
    ) -> None:
        self.shared = shared
        self.request = request
        self.batches = batches
        self.first_base = batches[0].base_offset
        self.last = last
        self.max_count = max_count
        self.max_records = max_records
        self.result: Acquired = []

    def run(self, fetch_offset: int) -> Acquired:
        shared, base = self.shared, self.first_base
        shared.archive_stale_batches(fetch_offset, base)
        floor = shared.cached.floor(base)
        if floor is None:
            base = max(base, shared.start_offset)
        elif floor.last >= base:
            base = floor.first
        overlapping = shared.cached.between(min(self.first_base, base), self.last)
        if not overlapping:
            if base > self.last:  # everything up to the end that may be acquired is missing in the log
                return self.result
            self._acquire_new(base, self.last, self.max_records)
            return self.result
        count = self._acquire_overlapping(overlapping, base)
        if count < self.max_records and overlapping[-1].last < self.last:
            self._acquire_new(overlapping[-1].last + 1, self.last, self.max_records - count)
        if self.result:
            shared.moved_gap_window(self.result[-1].last_offset + 1)
        return self.result

    def _acquire_overlapping(self, batches: Iterable[InFlightBatch], base: int) -> int:
        """Acquires what is free in batches that are in flight, and the gaps between them that the persister left.
        Returns the count, and sets `max_records` to 0 if nothing more should be delivered with it."""
        shared, request = self.shared, self.request
        count, gap_start = 0, base
        limit = throttle_limit(self.max_count)
        for batch in batches:
            if count >= self.max_records:
                break
            if shared.is_gap_window_active:
                if gap_start < batch.first:
                    count += self._acquire_new(gap_start, batch.first - 1, self.max_records - count)
                gap_start = batch.last + 1
                if count >= self.max_records:
                    break
            room = self.max_records - count
            throttled = batch.has_failed(limit, self.first_base, self.last)
            if throttled and count > 0:
                self.max_records = 0
                break
            is_whole = batch.first >= self.first_base and batch.last <= self.last
            exceeds = request.keeps_limit and batch.last - batch.first + 1 > room
            if is_whole and not batch.tracked and not exceeds and not throttled:
                if batch.whole.is_available and self._take(batch.whole):
                    self.result.append(AcquiredRecords(batch.first, batch.last, batch.whole.count))
                    count += batch.last - batch.first + 1
                continue
            if not batch.tracked:
                if not batch.whole.is_available:
                    continue
                batch.track_offsets()
            taken = self._acquire_part(batch, room if request.keeps_limit else NO_LIMIT, limit)
            count += taken
            if throttled and taken > 0:
                self.max_records = 0
                break
        return count

    def _take(self, run: InFlightState) -> bool:
        shared, member = self.shared, self.request.member
        if not run.try_update(ACQUIRED, self.max_count, member, dead_letters=False, adds=1):
            return False
        run.deadline_ms = shared.new_deadline_ms()
        return True

    def _acquire_part(self, batch: InFlightBatch, room: int, limit: int) -> int:
        """Acquires free offsets of a tracked batch. Returns how many."""
        part: list[tuple[int, int, int]] = []
        deadline_ms = self.shared.new_deadline_ms()
        taken = batch.acquire(
            self.first_base, self.last, self.request.member, deadline_ms, self.max_count, room, limit, part
        )
        _accumulate(self.result, part)
        return taken

    def _acquire_new(self, first: int, last: int, max_records: int) -> int:
        """Acquires offsets that are not in flight. Returns how many."""
        shared = self.shared
        if not shared.cached and shared.end_offset > first:
            first = shared.end_offset
        if max_records < last - first + 1:
            aligned = self._last_of_batch(first + max_records - 1)
            last = min(aligned, last) if shared.is_gap_window_active else aligned
        made = self._create_batches(first, last, max_records)
        if shared.cached.batches[0].first == first:
            shared.start_offset = first
        shared.end_offset = max(shared.end_offset, last)
        if self.request.keeps_limit:
            last = made[0].last_offset
        shared.moved_gap_window(last + 1)
        self.result += made
        return last - first + 1

    def _last_of_batch(self, offset: int) -> int:
        """Returns the last offset of the batch with an offset; the offset itself if it is between batches."""
        found = None
        for batch in self.batches:
            if offset < batch.base_offset:
                break
            found = batch
        return found.last_offset if found is not None and offset <= found.last_offset else offset

    def _create_batches(self, first: int, last: int, max_records: int) -> Acquired:
        shared, member = self.shared, self.request.member
        deadline_ms = shared.new_deadline_ms()
        if self.request.keeps_limit and last - first + 1 > max_records:
            whole = InFlightBatch(first, last, ACQUIRED, 1, member, deadline_ms)
            whole.track_offsets()
            whole.split(first + max_records)
            rest = whole.runs[1]
            rest.state, rest.count, rest.member, rest.deadline_ms = AVAILABLE, 0, "", NO_DEADLINE
            shared.find_next_fetch_offset = True
            shared.cached.put(whole)
            return [AcquiredRecords(first, first + max_records - 1, 1)]
        made = [AcquiredRecords(start, end, 1) for start, end in self._cut(first, last)]
        for each in made:
            shared.cached.put(InFlightBatch(each.first_offset, each.last_offset, ACQUIRED, 1, member, deadline_ms))
        return made

    def _cut(self, first: int, last: int) -> list[tuple[int, int]]:
        """Cuts a range at batches of the log, into pieces of at least `batch_size` offsets."""
        size = self.request.batch_size
        pieces: list[tuple[int, int]] = []
        if not self.request.keeps_limit and last - first + 1 > size:
            for batch in self.batches:
                if batch.base_offset > last:
                    break
                if batch.base_offset - first >= size:
                    pieces.append((first, batch.base_offset - 1))
                    first = batch.base_offset
        pieces.append((first, last))
        return pieces


def _accumulate(result: Acquired, part: Iterable[tuple[int, int, int]]) -> None:
    """Adds neighbours with the same delivery count as one."""
    start = len(result)
    for first, last, count in part:
        if len(result) > start:
            tail = result[-1]
            if tail.last_offset + 1 == first and tail.delivery_count == count:
                result[-1] = AcquiredRecords(tail.first_offset, last, count)
                continue
        result.append(AcquiredRecords(first, last, count))


# --- aborted transactions ------------------------------------------------------------------------------


def _without_aborted(shared: SharePartition, read: LogRead, acquired: Acquired) -> Acquired:
    """Archives acquired records of aborted transactions, and returns the others."""
    ranges = aborted_ranges(read.batches, read.aborted, read.abort_markers)
    for first, last in ranges:
        # Kafka fails here if the start lies inside an aborted batch; the records would be delivered up to the limit.
        floor = shared.cached.floor(first)
        begin = first if floor is None else floor.first
        shared.archive_records(first, last + 1, shared.cached.between(begin, last), ACQUIRED, counts=True)
    return without_ranges(acquired, ranges)


def aborted_ranges(
    batches: Iterable[SharedBatch], aborted: Iterable[Aborted], abort_markers: frozenset[int]
) -> list[tuple[int, int]]:
    """Returns first and last offset of the batches that belong to aborted transactions, ascending."""
    waiting = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
    producers: set[int] = set()
    found = []
    for batch in batches:
        if not batch.has_producer_id:
            continue
        while waiting and waiting[-1].first_offset <= batch.last_offset:
            producers.add(waiting.pop().producer_id)
        if batch.base_offset in abort_markers:
            producers.discard(batch.producer_id)
        elif batch.is_transactional and batch.producer_id in producers:
            found.append((batch.base_offset, batch.last_offset))
    return found


def without_ranges(acquired: Acquired, ranges: Sequence[tuple[int, int]]) -> Acquired:
    """Returns the acquired offsets that are in none of the ranges; both ascend."""
    result: Acquired = []
    at = 0
    for each in acquired:
        first, last = each.first_offset, each.last_offset
        while at < len(ranges) and ranges[at][1] < first:
            at += 1
        for begin, end in ranges[at:]:
            if begin > last:
                break
            if first < begin:
                result.append(AcquiredRecords(first, begin - 1, each.delivery_count))
            first = end + 1
        if first <= last:
            result.append(AcquiredRecords(first, last, each.delivery_count))
    return result
