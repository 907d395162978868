"""One partition of a survey: what indexes, headers and, in depth, records say of its batches.

Without `deep`, all headers are read of the newest segments, up to a number of bytes.  Older segments have a sample:
batches between two entries of the offset index, which stand for as many other bytes.  Rates then come from both
indexes.  A few compressed batches are decompressed, to know what compression saves.  Reads a `Snapshot`; adds
nothing to tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from kafkalog._native.codec import batches as native
from kafkalog._native.codec.decode import ColumnBuilder
from kafkalog._native.codec.records import OK
from kafkalog.engine.files import File
from kafkalog.engine.format import codecs, records
from kafkalog.engine.format.arrow import add_batches
from kafkalog.engine.format.batch import CONTROL_FLAG, RECORD_BATCH_OVERHEAD, TIMESTAMP_TYPE_FLAG
from kafkalog.engine.format.index_entries import OFFSET_ENTRIES, OFFSET_ENTRY, TIME_ENTRIES, TIME_ENTRY
from kafkalog.engine.log.snapshot import SegmentView, Snapshot
from kafkalog.engine.segment.scan import ScanSlice
from kafkalog.errors import KafkalogError
from kafkalog.report.batch_sums import BatchSums
from kafkalog.report.keys import TopKeys
from kafkalog.report.missing import Missing
from kafkalog.report.rates import Rates
from kafkalog.toolbox.segment_headers import CODEC_BITS, SegmentHeaders, read_headers, record_counts

RAW_BYTES_MAX = 4 << 20  # batches of a partition that are decompressed: their bytes before
RAW_SIZE_MAX = 64 << 20  # a batch's bytes after
STRETCH_BYTES = 16 << 10  # usually, an entry of the index follows after 4 KiB
LONG_BATCHES_MAX = 4
REMOVED, DAMAGED = range(2)  # why offsets are missing


@dataclass
class Limits:
    """How much is read of one partition.  The numbers for all partitions are divided among them."""

    deep: bool
    header_bytes: int  # logs of which every header is read
    remote_bytes: int  # the same, of segments in a remote tier
    stretches: int  # between entries of the index: the sample of each other segment
    raw_batches: int  # batches of each codec that are decompressed


@dataclass
class PartitionLook:
    """The findings.  `headers` has the sums of each segment of which all headers were read, by base offset."""

    headers: dict[int, SegmentHeaders] = field(default_factory=dict)
    sums: BatchSums = field(default_factory=BatchSums)
    rates: Rates = field(default_factory=Rates)
    missing: Missing = field(default_factory=Missing)
    keys: TopKeys = field(default_factory=TopKeys)
    read_bytes: int = 0  # logs of which all headers were read
    remote_bytes: int = 0  # that part of it which is in a remote tier
    sampled_headers: int = 0
    undecoded: int = 0  # batches that could not be decoded


def look_at_batches(seen: Snapshot, limits: Limits, progress: Callable[[int], object]) -> PartitionLook:
    """Reads a partition.  Raises the errors of a snapshot.  `progress` is called with the log bytes just read."""
    found = PartitionLook()
    picked = {codec: _Picked(limits.raw_batches) for codec in range(1, CODEC_BITS + 1)}
    is_old = False
    for place in range(len(seen.segments) - 1, -1, -1):
        segment = seen.segments[place]
        size = seen.readable_bytes(segment)
        is_remote = seen.may_overlap(segment)
        left = limits.remote_bytes - found.remote_bytes if is_remote else limits.header_bytes - found.read_bytes
        is_old = is_old or size > left
        if is_old and not limits.deep:
            _sample(found, picked, seen, segment, size, 0 if is_remote else limits.stretches)
            continue
        _read(found, picked, seen, place, limits.deep, progress)
        found.read_bytes += size
        found.remote_bytes += size * is_remote
    if not limits.deep:
        for sample in picked.values():
            _decompress(found, seen, sample)
    return found


# --- all headers of a segment --------------------------------------------------------------------------


def _read(
    found: PartitionLook,
    picked: dict[int, _Picked],
    seen: Snapshot,
    place: int,
    deep: bool,
    progress: Callable[[int], object],
) -> None:
    segment = seen.segments[place]
    file = seen.file(segment)
    is_last = place == len(seen.segments) - 1
    end = seen.log_end_offset if is_last else seen.bases[place + 1]
    next_offset = segment.base_offset if place else max(segment.base_offset, seen.log_start_offset)

    def see(piece: ScanSlice) -> None:
        nonlocal next_offset
        table = piece.table
        found.sums.feed(table)
        found.rates.add(table["max_timestamp"], record_counts(table), table["size"])
        ranges = table["base_offset"], table["last_offset"]
        if deep:
            ranges = _decode(found, piece)
        else:
            for codec in np.unique(table["attributes"] & CODEC_BITS).tolist():
                if codec != codecs.NONE:
                    picked[codec].feed(segment, table[table["attributes"] & CODEC_BITS == codec])
            found.missing.offsets += _missing_inside(table)
        next_offset = found.missing.between(next_offset, ranges)
        progress(int(table["size"].sum()))

    headers = found.headers[segment.base_offset] = read_headers(file, seen.readable_bytes(segment), see)
    is_damaged = headers.damaged_at is not None
    found.missing.add(next_offset, end - 1, DAMAGED if is_damaged else REMOVED)


def _missing_inside(table: np.ndarray) -> int:
    """Returns how many offsets batches have without a record."""
    new = table[table["magic"] >= 2]
    return int((new["last_offset"] - new["base_offset"] + 1 - new["record_count"]).sum())


# --- a sample of a segment's headers -------------------------------------------------------------------


def _sample(
    found: PartitionLook, picked: dict[int, _Picked], seen: Snapshot, segment: SegmentView, size: int, most: int
) -> None:
    """Reads some headers, and the indexes for what was written when."""
    found.sums.is_sampled = True
    offsets, positions = _offset_entries(segment, size)
    _rates_of_indexes(found.rates, seen, segment, offsets, positions, size)
    if not most or not size:
        return
    chosen = np.unique(np.linspace(0, len(positions) - 1, min(most, len(positions))).astype(np.int64))
    lengths = np.diff(np.append(positions, size))
    file = seen.file(segment)
    tables: list[np.ndarray] = []
    weights_of: list[np.ndarray] = []
    for start, length in zip(positions[chosen].tolist(), lengths[chosen].tolist(), strict=True):
        rows = _stretch(file, start, length)
        if len(rows):
            tables.append(rows)
            weights_of.append(np.full(len(rows), max(1.0, length / float(rows["size"].sum()))))
    if not tables:
        return
    table, weights = np.concatenate(tables), np.concatenate(weights_of)
    found.sampled_headers += len(chosen)
    weights *= size / float((weights * table["size"]).sum())
    found.sums.feed(table, weights)
    for codec in np.unique(table["attributes"] & CODEC_BITS).tolist():
        if codec != codecs.NONE:
            picked[codec].feed(segment, table[table["attributes"] & CODEC_BITS == codec])


def _stretch(file: File, start: int, length: int) -> np.ndarray:
    """Returns the headers of the batches between two entries of the index, or of the first of them."""
    data = memoryview(file.pread(min(length, STRETCH_BYTES), start))
    table, _, reached = native.scan(data, 0, len(data), base_position=start, check_crc=False)
    rows = [table]
    for _ in range(LONG_BATCHES_MAX):  # batches that are longer than what was read
        if reached >= length:
            break
        row = _row_of(file.pread(RECORD_BATCH_OVERHEAD, start + reached), start + reached, start + length)
        if row is None:
            break
        rows.append(row)
        reached += int(row["size"][0])
    return np.concatenate(rows)


def _row_of(head: bytes, position: int, size: int) -> np.ndarray | None:
    """Returns the row of a scan's table for a header; None if it is no header of a batch that fits."""
    if len(head) < RECORD_BATCH_OVERHEAD:
        return None
    try:
        header = native.header_at(head)
    except (KafkalogError, ValueError, IndexError):
        return None
    if not 0 < header.size <= size - position:
        return None
    row = np.zeros(1, native.BATCH_DTYPE)
    for name, value in (
        ("position", position), ("size", header.size), ("magic", header.magic), ("attributes", header.attributes),
        ("base_offset", header.base_offset), ("last_offset", header.last_offset),
        ("base_timestamp", header.base_timestamp), ("max_timestamp", header.max_timestamp),
        ("record_count", header.count if header.magic >= 2 else 1),
    ):  # fmt: skip
        row[name] = value
    return row


def _offset_entries(segment: SegmentView, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns offsets and positions of the entries of the offset index, after one for the start."""
    entries = segment.offset_entries
    data = np.frombuffer(entries.copied(0, len(entries) * OFFSET_ENTRY.size) or b"", OFFSET_ENTRIES)
    data = data[data["position"] < size]
    offsets = segment.base_offset + data["offset"].astype(np.int64)
    return (
        np.concatenate(([segment.base_offset], offsets)),
        np.concatenate(([0], data["position"].astype(np.int64))),
    )


def _rates_of_indexes(
    rates: Rates, seen: Snapshot, segment: SegmentView, offsets: np.ndarray, positions: np.ndarray, size: int
) -> None:
    """Adds what was written between the entries of the time index; the rest counts at the last time."""
    entries = segment.time_entries
    data = np.frombuffer(entries.copied(0, len(entries) * TIME_ENTRY.size) or b"", TIME_ENTRIES)
    if not len(data):
        return
    place = seen.segments.index(segment)
    end = seen.log_end_offset if place == len(seen.segments) - 1 else seen.bases[place + 1]
    # An entry of the time index names the last record of a batch, which often has an entry in the offset index too.
    reached = np.minimum(segment.base_offset + data["offset"].astype(np.int64) + 1, end)
    behind = np.append(positions, size)[np.minimum(np.searchsorted(offsets, reached), len(positions))]
    bounds = np.maximum.accumulate(np.concatenate(([segment.base_offset], reached, [end])))
    places = np.maximum.accumulate(np.concatenate(([0], behind, [size])))
    times = np.append(data["timestamp"], data["timestamp"][-1]).astype(np.int64)
    rates.add(times, np.diff(bounds), np.diff(places))


# --- what compression saves ----------------------------------------------------------------------------


class _Picked:
    """Some batches of one codec, evenly from all that pass by: at most twice as many as wanted at any time."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._step = 1
        self._seen = 0
        self._kept: list[tuple[int, SegmentView, np.ndarray]] = []

    def feed(self, segment: SegmentView, table: np.ndarray) -> None:
        rows = np.arange(-self._seen % self._step, len(table), self._step)
        while len(self._kept) + len(rows) > 2 * self._wanted:
            self._step *= 2
            self._kept = [each for each in self._kept if not each[0] % self._step]
            rows = rows[(self._seen + rows) % self._step == 0]
        self._kept += [(self._seen + row, segment, table[row : row + 1].copy()) for row in rows.tolist()]
        self._seen += len(table)

    def batches(self) -> list[tuple[SegmentView, np.ndarray]]:
        every = max(1, -(-len(self._kept) // max(1, self._wanted)))
        return [(segment, row) for _, segment, row in self._kept[::every]]


def _decompress(found: PartitionLook, seen: Snapshot, sample: _Picked) -> None:
    """Decompresses a sample of batches, and counts their sizes."""
    left = RAW_BYTES_MAX
    for segment, row in sample.batches():
        size, position = int(row["size"][0]), int(row["position"][0])
        if size > left:
            continue
        left -= size
        raw = _raw_size(seen.file(segment).pread(size, position), row[0])
        if raw is not None:
            found.sums.feed_raw(row, np.array([raw], np.float64))


def _raw_size(data: bytes, row: np.void) -> int | None:
    """Returns the size of a batch without compression; None for a damaged one, and for the formats before magic 2."""
    if row["magic"] < 2 or len(data) < row["size"]:
        return None
    try:
        body = records.payload(data, native.header_at(data), max_bytes=RAW_SIZE_MAX)
    except (KafkalogError, ValueError):
        return None
    return RECORD_BATCH_OVERHEAD + len(memoryview(body))


# --- in depth ------------------------------------------------------------------------------------------


def _decode(found: PartitionLook, piece: ScanSlice) -> tuple[np.ndarray, np.ndarray]:
    """Decodes the records of a slice: keys, and uncompressed sizes.  Returns the ranges of offsets that exist."""
    table = piece.table
    builder = ColumnBuilder(headers=False)
    starts: list[np.ndarray] = []
    is_new = table["magic"] >= 2
    is_control = is_new & (table["attributes"] & CONTROL_FLAG != 0)
    packed = is_new & ~is_control & (table["attributes"] & CODEC_BITS != codecs.NONE)
    whole = [table[is_control]]
    raw_rows, raw_sizes = [], []
    for row in table[packed]:
        at = int(row["position"]) - piece.position
        header = native.header_from_row(row)
        if not header.count:  # compaction left it for its producer
            continue
        try:
            body = records.payload(piece.data, header, at=at, max_bytes=records.READ_BYTES_MAX)
            append_time = int(row["max_timestamp"]) if row["attributes"] & TIMESTAMP_TYPE_FLAG else None
            verdict = builder.append_payload(body, header.count, header.base_offset, header.base_timestamp, append_time)
            is_good = verdict[0] == OK
        except (KafkalogError, ValueError):
            is_good = False
        if not is_good:
            found.undecoded += 1
            whole.append(row.reshape(1))
            continue
        raw_rows.append(row)
        raw_sizes.append(RECORD_BATCH_OVERHEAD + len(memoryview(body)))
        if builder.data_bytes > RAW_SIZE_MAX:
            _finish(found, builder, starts)
    if raw_rows:
        found.sums.feed_raw(np.array(raw_rows, table.dtype), np.array(raw_sizes, np.float64))
    plain = table[~packed & ~is_control]
    row = 0
    while row < len(plain):
        try:
            row = add_batches(builder, piece.data, plain, row, base_position=piece.position)
        except KafkalogError as error:
            found.undecoded += 1
            bad = int(np.searchsorted(plain["position"], error.position if error.position is not None else 0))
            whole.append(plain[bad : bad + 1])
            row = max(bad, row) + 1
        _finish(found, builder, starts)
    _finish(found, builder, starts)
    lasts = [*starts, *(each["last_offset"] for each in whole)]
    starts += [each["base_offset"] for each in whole]
    return np.concatenate(starts), np.concatenate(lasts)


def _finish(found: PartitionLook, builder: ColumnBuilder, offsets: list[np.ndarray]) -> None:
    columns = builder.finish()
    if len(columns):
        found.keys.feed(columns)
        offsets.append(np.array(columns.offsets))
