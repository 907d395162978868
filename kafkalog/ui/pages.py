"""Pages of records: so many records from a place on, or before a place, with what a page says of each.

A page costs bounded memory and time.  A search ends after SEARCH_BYTES or SEARCH_SECONDS and says up to which offset
it came; the next page continues there.  Keys, values and headers are cut for the page; their sizes are told.  Damage
ends a page with its place, or is skipped and reported as a row if that is asked.  Control records and aborted records
are marked.  The filters are those of every command (`kafkalog._face.selection`).
"""

from __future__ import annotations

import base64
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kafkalog._face.chunk_reader import CHUNK_BYTES, UNREADABLE, Chunk, ChunkReader
from kafkalog._face.past_damage import read_past
from kafkalog._face.selected import selected_range
from kafkalog._face.selection import Selection, walk_selected
from kafkalog._face.times import ALL_TIMES
from kafkalog.engine.format import codecs
from kafkalog.engine.format.batch import TRANSACTIONAL_FLAG
from kafkalog.engine.format.control import ControlRecordType, parse_type_id
from kafkalog.errors import KafkalogError

if TYPE_CHECKING:
    from kafkalog._face.window import Range
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.log.source import Source
    from kafkalog.engine.log.view import PartitionView
    from kafkalog.engine.segment.loss import Lost
    from kafkalog.records import Record
    from kafkalog.ui.views import Views

ROWS_MAX = 500
PAGE_BYTES = 8 << 20  # keys, values and headers of one page
SEARCH_BYTES = 256 << 20
SEARCH_SECONDS = 2.0
RECENT_BATCHES = 64
Row = dict[str, Any]
Show = Callable[["Record", "Batch | None"], Row]


class Shown(NamedTuple):
    """How much of a record is shown."""

    key_bytes: int = 1024
    value_bytes: int = 16 << 10
    header_bytes: int = 1024
    headers_max: int = 50


LISTED, ALONE = Shown(), Shown(1 << 20, 4 << 20, 64 << 10, 1000)


@dataclass
class Budget:
    """The cost that one page may have, over all of its partitions."""

    bytes: int = SEARCH_BYTES
    until: float = field(default_factory=lambda: time.monotonic() + SEARCH_SECONDS)

    @property
    def is_over(self) -> bool:
        """Whether the page has to end."""
        return self.bytes <= 0 or time.monotonic() > self.until


class Batch(NamedTuple):
    """The facts that a page tells about a record's batch."""

    first: int
    last: int
    codec: int
    magic: int
    producer_id: int
    producer_epoch: int
    transactional: bool
    aborted: bool | None  # None: unknown, because of damage
    segment: str
    position: int


@dataclass
class Part:
    """The rows that one reading of a partition found.  `next` is the offset at which the next one continues; `ended`
    says why this one ended: "full", "searched", "damage" or "end"."""

    rows: list[Row]
    next: int
    ended: str
    damage: Row | None = None


@dataclass
class Way:
    """How a page is read, and how its records are shown."""

    skips_damage: bool = False
    show: Show | None = None  # None: `record_row`
    budget: Budget = field(default_factory=Budget)


class _Reader(ChunkReader):
    """Notes the batches that it reads and the control batches among them, and ends once the budget is used up."""

    budget: Budget
    markers: deque[Row] | None  # None: not wanted
    markers_max: int
    stopped_at: int | None
    recent: deque[Batch]

    def batches_of_records(self) -> Iterator[tuple[ChunkReader, Chunk, BatchHeader]]:
        has_read = False
        while not (has_read and self.budget.is_over):
            chunk = self.read_chunk()
            if chunk is None:
                return
            has_read = True
            self.budget.bytes -= len(chunk.data)
            yield from self._batches(chunk)
            if self.stopped_at is not None:
                return
        self.stopped_at = self.offset

    def _batches(self, chunk: Chunk) -> Iterator[tuple[ChunkReader, Chunk, BatchHeader]]:
        aborted = self._aborted(chunk)
        for row, header in enumerate(chunk.headers):
            if header.last_offset < self.first_offset:
                continue
            if self.end_offset is not None and header.magic >= 2 and header.base_offset >= self.end_offset:
                return
            is_aborted = None if aborted is None else bool(aborted[row])
            batch = Batch(
                header.base_offset if header.magic >= 2 else -1, header.last_offset, header.codec, header.magic,
                header.producer_id, header.producer_epoch, header.is_transactional, is_aborted,
                os.path.basename(chunk.path), chunk.file_position + header.position,
            )  # fmt: skip
            if header.is_control:
                if self.markers is not None:
                    if len(self.markers) >= self.markers_max:
                        self.stopped_at = header.base_offset
                        return
                    self.markers.append(marker_row(self.topic_partition, chunk, header))
                continue
            if is_aborted and self.committed:
                continue
            self.recent.append(batch)
            yield self, chunk, header

    def _aborted(self, chunk: Chunk) -> np.ndarray | None:
        """Returns one byte for each batch, 1 if its transaction was aborted; None if that is unknown."""
        table = chunk.table
        if not self.committed and (table["attributes"] & TRANSACTIONAL_FLAG).any():
            try:
                chunk.aborted = self.source.aborted_in(int(table["base_offset"][0]), int(table["last_offset"][-1]))
            except (KafkalogError, OSError):
                return None
        return chunk.aborted_rows() if chunk.aborted else np.zeros(len(table), np.uint8)

    def batch_of(self, offset: int) -> Batch | None:
        """Returns the batch of a record that was read just now."""
        return next((each for each in reversed(self.recent) if each.first <= offset <= each.last), None)


def marker_row(partition: TopicPartition, chunk: Chunk, header: BatchHeader) -> Row:
    """Returns the row of a control batch."""
    from kafkalog.engine.format.records import first

    kind = ControlRecordType.UNKNOWN
    with suppress(KafkalogError):
        found = first(chunk.data, header)
        if found is not None:
            kind = ControlRecordType.from_type_id(parse_type_id(found.key))
    return {
        "kind": "control", "partition": partition.partition, "offset": header.base_offset,
        "timestamp": header.max_timestamp, "control": kind.name, "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch, "segment": os.path.basename(chunk.path),
        "position": chunk.file_position + header.position,
    }  # fmt: skip


def octets_row(data: bytes | None, most: int) -> Row | None:
    """Returns bytes for a page: their size, and the first `most` of them in base64."""
    if data is None:
        return None
    return {"size": len(data), "base64": base64.b64encode(data[:most]).decode()}


def record_row(record: Record, batch: Batch | None, shown: Shown = LISTED) -> Row:
    """Returns the row of a record."""
    headers = record.headers
    row = {
        "kind": "record", "partition": record.partition, "offset": record.offset, "timestamp": record.timestamp,
        "timestampType": record.timestamp_type, "leaderEpoch": record.leader_epoch,
        "key": octets_row(record.key, shown.key_bytes), "value": octets_row(record.value, shown.value_bytes),
        "headers": [
            {"name": name[: shown.header_bytes], "value": octets_row(value, shown.header_bytes)}
            for name, value in headers[: shown.headers_max]
        ],
        "headerCount": len(headers),
    }  # fmt: skip
    if batch is not None:
        row |= {
            "aborted": batch.aborted, "transactional": batch.transactional, "producerId": batch.producer_id,
            "producerEpoch": batch.producer_epoch, "magic": batch.magic, "codec": codecs.shown_name(batch.codec),
            "segment": batch.segment, "position": batch.position,
        }  # fmt: skip
    return row


def lost_row(partition: TopicPartition, lost: Lost) -> Row:
    """Returns the row of a range that damage kept out."""
    return {
        "kind": "lost", "partition": partition.partition, "path": lost.path, "position": lost.position,
        "length": lost.length, "offset": lost.first_offset, "firstOffset": lost.first_offset,
        "lastOffset": lost.last_offset, "what": lost.what,
    }  # fmt: skip


def size_of(row: Row) -> int:
    """Returns about how many bytes a row takes."""
    octets = [row.get("key"), row.get("value"), *(each["value"] for each in row.get("headers", ()))]
    return 400 + sum(len(each["base64"]) for each in octets if each)


def read_on(
    view: PartitionView,
    selection: Selection,
    place: Range,
    way: Way,
    *,
    count: int,
    keeps_last: bool = False,
    page_bytes: int = PAGE_BYTES,
) -> Part:
    """Returns the rows of up to `count` records of a range, in order; with `keeps_last` the last ones of all of it.

    Markers are rows too, unless something is filtered.
    """
    partition, show = view.topic_partition, way.show or record_row
    is_plain = selection.keys is None and selection.match is None and place.times == ALL_TIMES
    shows_markers = is_plain and selection.isolation == "read_uncommitted"
    rows: deque[Row] = deque(maxlen=count) if keeps_last else deque()
    pending: deque[Row] = deque()  # markers and losses, which come before the next record
    made: list[_Reader] = []
    limit = view.visible_end(selection.isolation)
    stop = limit if place.end is None else min(place.end, limit)

    def make(source: Source) -> _Reader:
        reader = _Reader(
            source, place.start, chunk_bytes=CHUNK_BYTES, isolation=selection.isolation,
            end_offset=None if way.skips_damage and place.end is None else stop,
        )  # fmt: skip
        reader.budget, reader.stopped_at, reader.recent = way.budget, None, deque(maxlen=RECENT_BATCHES)
        reader.markers, reader.markers_max = pending if shows_markers else None, max(count, 1)
        made.append(reader)
        return reader

    def read(reader: _Reader) -> Iterator[Record]:
        return walk_selected(reader.batches_of_records(), selection, place.times)

    def told(lost: Lost) -> None:
        pending.append(lost_row(partition, lost))

    taken_bytes, last, damage = 0, place.start - 1, None
    if place.start >= stop and not way.skips_damage:
        return Part([], place.start, "end")
    records = read_past(view, told, make, read) if way.skips_damage else _read_plainly(view, make, read)
    ended = "end"
    with closing(records):  # type: ignore[type-var]
        try:
            for record in records:
                while pending and pending[0]["offset"] <= record.offset:
                    rows.append(pending.popleft())
                reader = made[-1]
                row = show(record, reader.batch_of(record.offset))
                rows.append(row)
                last = record.offset
                taken_bytes += size_of(row)
                if not keeps_last and (len(rows) >= count or taken_bytes >= page_bytes):
                    ended = "full"
                    break
        except UNREADABLE as error:
            ended, damage = "damage", damage_row(error)
    following = last + 1
    if ended != "full":
        rows.extend(pending)
        stopped = made[-1].stopped_at if made else None
        if stopped is not None and stopped < stop:
            ended, following = "searched", max(following, stopped)
        elif ended == "end":
            following = max(following, stop if made[-1].end_offset is not None else made[-1].offset)
        elif made:
            following = max(following, made[-1].offset)
    return Part(list(rows), following, ended, damage)


def _read_plainly(source: PartitionView, make: Any, read: Any) -> Iterator[Record]:
    with make(source) as reader:
        yield from read(reader)


def damage_row(error: KafkalogError) -> Row:
    """Returns what a page says of damage."""
    return {"path": error.path, "position": error.position, "what": error.message, "hint": error.hint}


def _range_of(view: PartitionView, selection: Selection, *, lenient: bool) -> Range:
    return selected_range(lambda: view, selection, lenient=lenient)


def _within(view: PartitionView, offset: int) -> int:
    """Returns the offset that a partition has and that is nearest to `offset`."""
    return min(max(offset, view.log_start_offset), view.log_end_offset)


def page_after(
    views: Views,
    partitions: Sequence[TopicPartition],
    selection: Selection,
    way: Way,
    *,
    starts: Mapping[int, int],
    count: int,
) -> dict[str, Any]:
    """Returns a page of records from the selection's start on, one partition after the other.

    `starts` has the offsets at which to continue, by partition; a partition before the first of these was read already.
    """
    rows, following = list[Row](), dict(starts)
    ended, damage = "end", None
    begun = [each for each in partitions if not starts or each.partition >= min(starts)]
    bounds = {}
    for partition in begun:
        number = partition.partition
        with views.lent(partition) as view:
            bounds[number] = bounds_of(view)
            place = _range_of(view, selection, lenient=len(partitions) > 1 or bool(starts))
            if number in starts:
                place = place._replace(start=_within(view, starts[number]))
            part = read_on(
                view, selection, place, way, count=count - len(rows),
                page_bytes=PAGE_BYTES - sum(map(size_of, rows)),
            )  # fmt: skip
        rows += part.rows
        following.pop(number, None)
        if part.ended != "end" or len(rows) >= count or way.budget.is_over:
            ended, damage = ("full" if part.ended == "end" else part.ended), part.damage
            following = {number: part.next}
            break
        following = {number: part.next}
    return {
        "rows": rows, "ended": ended, "damage": damage, "bounds": bounds, "next": following,
        "searchedBytes": SEARCH_BYTES - way.budget.bytes,
    }  # fmt: skip


def page_new(
    views: Views,
    partitions: Sequence[TopicPartition],
    selection: Selection,
    way: Way,
    *,
    starts: Mapping[int, int],
    count: int,
) -> dict[str, Any]:
    """Returns a page of new records of all partitions, each from its offset in `starts` on; a new partition from its
    start.  Rows are in the order of `page_before`."""
    rows, following, bounds = list[Row](), dict(starts), {}
    ended = "end"
    for partition in partitions:
        number = partition.partition
        if len(rows) >= count or way.budget.is_over:
            ended = "full"
            break
        with views.lent(partition) as view:
            bounds[number] = bounds_of(view)
            begin = _within(view, starts.get(number, 0))
            place = _range_of(view, selection, lenient=True)
            place = place._replace(start=max(place.start, begin) if number not in starts else begin)
            part = read_on(view, selection, place, way, count=count - len(rows))
        rows += part.rows
        following[number] = part.next
        if part.ended == "damage":
            return {
                "rows": rows, "ended": "damage", "damage": part.damage, "bounds": bounds, "next": following,
            }  # fmt: skip
        if part.ended != "end":
            ended = "full"
    if len(partitions) > 1:
        rows.sort(key=_by_time)
    return {"rows": rows, "ended": ended, "damage": None, "bounds": bounds, "next": following}


def _by_time(row: Row) -> tuple[Any, ...]:
    return (row.get("timestamp", -1), row["partition"], row["offset"])


def page_before(
    views: Views,
    partitions: Sequence[TopicPartition],
    selection: Selection,
    way: Way,
    *,
    ends: Mapping[int, int],
    count: int,
) -> dict[str, Any]:
    """Returns the last records of a selection, or those before the offsets in `ends`: the newest of all partitions.

    Rows of one partition are in the order of offsets, those of several in the order of timestamps.
    """
    rows, before, bounds = list[Row](), dict[int, int](), {}
    damage, is_whole, following, lows = None, True, dict[int, int](), dict[int, int]()
    for partition in partitions:
        number = partition.partition
        with views.lent(partition) as view:
            bounds[number] = bounds_of(view)
            place = _range_of(view, selection, lenient=True)
            low, high = place.start, view.visible_end(selection.isolation)
            high = high if place.end is None else min(place.end, high)
            following[number] = high
            high = min(ends.get(number, high), high)
            lows[number] = low
            if way.budget.is_over:
                before[number], is_whole = high, False
                continue
            part, searched = _last(view, selection, place._replace(end=high), way, count)
        before[number] = searched
        is_whole = is_whole and (searched <= low or len(part.rows) >= count)
        damage = damage or part.damage
        rows += part.rows
        if len(partitions) > 1 and is_whole:
            rows.sort(key=_by_time)
            for row in rows[:-count]:
                before[row["partition"]] = max(before[row["partition"]], row["offset"] + 1)
            rows = rows[-count:]
    more = any(before[number] > lows[number] for number in before)
    ended = "damage" if damage else "searched" if not is_whole else "full" if more else "end"
    return {
        "rows": rows, "ended": ended, "damage": damage, "bounds": bounds, "before": before, "next": following,
        "searchedBytes": SEARCH_BYTES - way.budget.bytes,
    }  # fmt: skip


def _last(view: PartitionView, selection: Selection, place: Range, way: Way, count: int) -> tuple[Part, int]:
    """Returns the last rows before the end of a range, and the offset down to which the search came."""
    found: list[list[Row]] = []
    high, width, missing = place.end or 0, max(count, 1), count
    while missing > 0 and high > place.start:
        low = max(place.start, high - width)
        is_first = not found
        part = read_on(view, selection, place._replace(start=low, end=high), way, count=missing, keeps_last=True)
        if part.ended == "searched":
            if not is_first:
                break
            if width > 1:
                width = max(1, width // 16)
                continue
        if part.ended == "damage":
            return Part(_in_order(found), high, "damage", part.damage), high
        found.append(part.rows)
        missing -= len(part.rows)
        high = low if missing > 0 else part.rows[0]["offset"]
        width *= 2
        if way.budget.is_over:
            break
    return Part(_in_order(found), high, "end"), high


def _in_order(found: list[list[Row]]) -> list[Row]:
    return [row for rows in reversed(found) for row in rows]


def bounds_of(view: PartitionView) -> Row:
    """Returns the offsets between which a partition has records."""
    bounds: Row = {"start": view.log_start_offset, "end": view.log_end_offset, "stable": None}
    with suppress(KafkalogError, OSError):  # pages show the damage when they reach it
        bounds["stable"] = view.visible_end("read_committed")
    return bounds
