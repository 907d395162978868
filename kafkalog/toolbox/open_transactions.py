"""Shows the transactions of a partition: which are open, since when, and which holds the last stable offset back.

Which are open comes from the view (`Snapshot.transactions`), as for read_committed readers.  The rest is read from the
whole log: the number of markers that commit and abort, and the first and last batch of each open transaction.  A survey
of large logs reads only the newest part (`bytes_max`), and takes the newest transactions that ended.  Only reads, also
while a broker is running.  Kafka calls a transaction hanging if it is open for longer than
`transaction.max.timeout.ms` allows.  Then its coordinator has lost it, and only an operator can end it
(kafka-transactions --abort).
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kafkalog._limits import LONG_MIN
from kafkalog._native.codec import batches as native
from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format import control, names
from kafkalog.engine.format.batch import CONTROL_FLAG, DELETE_HORIZON_FLAG, TIMESTAMP_TYPE_FLAG, TRANSACTIONAL_FLAG
from kafkalog.engine.format.snapshots import ProducerSnapshotEntry, read_snapshot
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.segment.reader import Unreadable
from kafkalog.engine.segment.scan import LogScan
from kafkalog.engine.segment.transactions import open_in_snapshot
from kafkalog.errors import KafkalogError
from kafkalog.toolbox.second_look import Wrong, look_while_it_rests

if TYPE_CHECKING:
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.log.checkpoint_lines import CheckpointLines
    from kafkalog.engine.log.snapshot import Snapshot
    from kafkalog.engine.segment.scan import ScanSlice

LITTLE_BYTES = 1 << 20  # logs up to this size are read rather than checking all files first
HANGING_AFTER_MS = 900_000  # Kafka's transaction.max.timeout.ms


class OpenTransaction(NamedTuple):
    """One open transaction.

    `start_timestamp` and `last_timestamp` are those of its first and last batch, in ms (-1 if unknown, because the log
    no longer has it).  `records` counts its records in the log.  `age_ms` is the time since its start, or since its
    last batch if the start is unknown.  `held_records` counts the records at or after its first offset, including its
    own: no read_committed reader sees them while it is open.  With `bytes_max`, both are -1 if it began before the part
    that was read."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    start_timestamp: int
    last_timestamp: int
    records: int
    age_ms: int
    hanging: bool
    held_records: int = 0


class EndedTransaction(NamedTuple):
    """A transaction that a marker ended.

    `last_offset` and `last_timestamp` are its marker's.  `first_offset`, `start_timestamp` and `records` are -1 if it
    began before the part of the log that was read."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    start_timestamp: int
    last_timestamp: int
    records: int
    aborted: bool


@dataclass
class PartitionTransactions:
    """The transactions of one partition.

    `open` is sorted by first offset: the first one holds `last_stable_offset` back.  `committed` and `aborted` count
    the markers in the part that was read, which begins at `read_from`; `ended` has the newest of them, by last offset.
    `damage` is what could not be read; a marker there may have ended a transaction."""

    partition: TopicPartition
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    open: list[OpenTransaction] = field(default_factory=list)
    committed: int = 0
    aborted: int = 0
    damage: list[Unreadable] = field(default_factory=list)
    read_from: int = 0
    ended: list[EndedTransaction] = field(default_factory=list)
    ended_count: int = 0  # how many ended that have records in the part that was read

    @property
    def hanging(self) -> int:
        return sum(txn.hanging for txn in self.open)


class _Seen(NamedTuple):
    """The part of one open transaction that has been read."""

    producer_epoch: int
    first_offset: int
    last_offset: int
    start_timestamp: int
    last_timestamp: int
    records: int


class _Walk:
    """Follows the transactions of batches in log order: those that are open, and the newest that ended.

    `begun` are those that are open where it starts (producer id -> first offset); None if that is unknown."""

    def __init__(self, begun: Mapping[int, int] | None, ended_max: int) -> None:
        self.seen: dict[int, _Seen] = {}
        self.ended: deque[EndedTransaction] = deque(maxlen=ended_max)
        self.committed = self.aborted = 0
        self.ended_count = 0
        self._begun = dict(begun or {})
        self._is_known = begun is not None
        self._known: set[int] = (
            set()
        )  # producers of which a marker was seen: their next transaction is seen from its start

    def feed(self, piece: ScanSlice) -> None:
        """Follows the batches of a slice."""
        table = piece.table
        flags = table["attributes"] & (TRANSACTIONAL_FLAG | CONTROL_FLAG)
        rows = np.flatnonzero((flags != 0) & (table["producer_id"] >= 0))
        if not len(rows):
            return
        batches = table[rows[np.argsort(table["producer_id"][rows], kind="stable")]]
        # A run is what one producer wrote up to its next marker.
        ids, attributes = batches["producer_id"], batches["attributes"]
        is_marker = attributes & CONTROL_FLAG != 0
        starts = np.flatnonzero(np.append(True, (ids[1:] != ids[:-1]) | is_marker[:-1]))
        lasts = np.append(starts[1:], len(batches)) - 1
        ended = is_marker[lasts]
        counts = np.add.reduceat(np.where(is_marker, 0, batches["record_count"]).astype(np.int64), starts)
        times = batches["max_timestamp"]
        newest = np.maximum.reduceat(np.where(is_marker, np.int64(LONG_MIN), times), starts)
        ends_early = attributes[starts] & (TIMESTAMP_TYPE_FLAG | DELETE_HORIZON_FLAG) != 0
        begins = np.where(ends_early, times[starts], batches["base_timestamp"][starts])
        data = lasts - ended  # the last batch that is no marker, if the run has one
        columns = (
            ids[starts], data >= starts, batches["base_offset"][starts], batches["last_offset"][data], begins, newest,
            counts, batches["producer_epoch"][data], ended,
        )  # fmt: skip
        order = np.argsort(batches["position"][lasts], kind="stable")
        runs = zip(*(column[order].tolist() for column in columns), lasts[order].tolist(), strict=True)
        for producer_id, has_data, first, last, begin, end, count, epoch, is_over, row in runs:
            if has_data:
                self._add(producer_id, _Seen(epoch, first, last, begin, end, count))
            if is_over:
                self._end(producer_id, batches[row], piece)

    def _add(self, producer_id: int, run: _Seen) -> None:
        before = self.seen.get(producer_id)
        if before is not None:
            run = _Seen(
                run.producer_epoch,
                before.first_offset,
                run.last_offset,
                before.start_timestamp,
                max(before.last_timestamp, run.last_timestamp),
                before.records + run.records,
            )
        self.seen[producer_id] = run

    def _end(self, producer_id: int, row: np.void, piece: ScanSlice) -> None:
        seen = self.seen.pop(producer_id, None)
        began = self._begun.pop(producer_id, None)
        is_whole = began is None and (self._is_known or producer_id in self._known)
        self._known.add(producer_id)
        header = native.header_from_row(row)
        at = header.position - piece.position
        try:
            is_abort = control.is_abort(piece.data[at : at + header.size], header)
        except KafkalogError:  # `verify --deep` reports it
            return
        self.aborted += is_abort
        self.committed += not is_abort
        if is_whole and seen is None:
            return  # a marker alone: the transaction has no records in this partition, or compaction removed them
        first, start, records = -1 if began is None else began, -1, -1
        if is_whole and seen is not None:
            first, start, records = seen.first_offset, seen.start_timestamp, seen.records
        epoch = header.producer_epoch if seen is None else seen.producer_epoch
        end, when = header.last_offset, header.max_timestamp
        self.ended_count += 1
        self.ended.append(EndedTransaction(producer_id, epoch, first, end, start, when, records, is_abort))


# More than eight parameters: those of the command, and those of a survey, which reads less and shows more.
def find_transactions(
    view: PartitionView,
    now_ms: int,
    *,
    hanging_after_ms: int = HANGING_AFTER_MS,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
    bytes_max: int | None = None,
    ended_max: int = 0,
) -> PartitionTransactions:
    """Returns the transactions of a view at a time.

    `bytes_max` reads only so many of the newest bytes of the log, and their headers without CRCs.  `ended_max` is how
    many of the newest transactions that ended are returned.  Raises CorruptIndexException if an index of aborted ones
    is incomplete."""

    def look(seen: Snapshot) -> PartitionTransactions:
        known = seen.transactions
        found = PartitionTransactions(
            seen.topic_partition, seen.log_start_offset, seen.log_end_offset, seen.last_stable_offset
        )
        place, position, found.read_from = newest_part(seen, bytes_max)
        open_there: Mapping[int, int] | None = {}
        if found.read_from > seen.log_start_offset:
            open_there = _open_at(seen, found.read_from, files)
        walk = _Walk(open_there, ended_max)
        begun = sorted(known.open.items(), key=lambda entry: entry[1])
        firsts = np.array([first_offset for _, first_offset in begun], np.int64)
        held = np.zeros(len(begun), np.int64)
        for segment in seen.segments[place:]:
            end = seen.readable_bytes(segment)
            if seen.tail_is_plain and not begun and segment is seen.segments[-1]:  # the view has read it already
                if progress is not None and end:
                    progress(end)
                continue
            scan = LogScan(seen.file(segment), position, end, check_crc=bytes_max is None)
            position = 0
            for piece in scan:
                walk.feed(piece)
                if begun:
                    held += _records_from(firsts, piece.table)
                if progress is not None:
                    progress(int(piece.table["size"].sum()))
            if scan.position < end:
                found.damage.append(Unreadable.where_stopped(seen.file(segment), scan))
        found.committed, found.aborted, found.ended = walk.committed, walk.aborted, list(walk.ended)
        found.ended_count = walk.ended_count
        if known.damage is not None and known.damage not in found.damage:
            found.damage.append(known.damage)
        lasting = {entry.producer_id: entry for entry in _snapshot(seen, files)} if begun else {}
        for (producer_id, first_offset), held_records in zip(begun, held.tolist(), strict=True):
            about = walk.seen.get(producer_id) or _of_snapshot(lasting.get(producer_id), first_offset)
            start, records = about.start_timestamp if about.first_offset <= first_offset else -1, about.records
            if seen.log_start_offset < found.read_from and first_offset < found.read_from:
                start, records, held_records = -1, -1, -1
            since = start if start >= 0 else about.last_timestamp
            age = now_ms - since if since >= 0 else 0
            found.open.append(
                OpenTransaction(
                    producer_id,
                    about.producer_epoch,
                    first_offset,
                    about.last_offset,
                    start,
                    about.last_timestamp,
                    records,
                    age,
                    age > hanging_after_ms,
                    held_records,
                )
            )
        return found

    return view.over(look)


def newest_part(seen: Snapshot, bytes_max: int | None) -> tuple[int, int, int]:
    """Returns where the newest `bytes_max` bytes of a log begin: the segment's place, the position and the offset.

    With None, all of the log counts."""
    left, place = bytes_max, len(seen.segments)
    while left is not None and place > 0:
        segment = seen.segments[place - 1]
        end = seen.readable_bytes(segment)
        if end <= left:
            left, place = left - end, place - 1
            continue
        entry = segment.offset_entries.at_or_behind(end - left)
        base = None if entry is None else seen.first_offset_at(place - 1, entry[1], entry[0])
        if entry is not None and base is not None:  # the batch is where the index says
            return place - 1, entry[1], base
        return place, 0, seen.bases[place] if place < len(seen.bases) else seen.log_end_offset
    return 0, 0, seen.log_start_offset


def _open_at(seen: Snapshot, offset: int, files: Files) -> Mapping[int, int] | None:
    """Returns the transactions that are open at an offset, if a producer snapshot has them; None if none does."""
    path = names.producer_snapshot_file(seen.directory, offset)
    if os.path.basename(path) in seen.listed:
        with contextlib.suppress(KafkalogError, OSError):
            return open_in_snapshot(read_snapshot(path, files))
    return None


def _records_from(firsts: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Returns how many records, without markers, of some batches are at or after each of some offsets."""
    counts = np.where(table["attributes"] & CONTROL_FLAG, 0, np.maximum(table["record_count"], 0))
    behind = np.append(np.cumsum(counts[::-1])[::-1], 0)
    return behind[np.searchsorted(table["last_offset"], firsts)]


def look_for_transactions(
    log_dir: str,
    partition: TopicPartition,
    now_ms: int,
    *,
    hanging_after_ms: int = HANGING_AFTER_MS,
    files: Files = OS_FILES,
    checkpoints: CheckpointLines | None = None,
    log_bytes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> PartitionTransactions:
    """Like `find_transactions`, for a directory that another process may write: damage is read again.

    `checkpoints` can be shared by all partitions of a directory.  `log_bytes` is the size of the partition, if known.
    Raises BeingWrittenException if each attempt finds different damage, and UnknownTopicOrPartitionException if the
    partition was deleted."""

    def look() -> PartitionTransactions:
        with PartitionView(log_dir, partition, files=files, checkpoints=checkpoints) as view:
            return find_transactions(view, now_ms, hanging_after_ms=hanging_after_ms, files=files, progress=progress)

    is_little = log_bytes is not None and log_bytes <= LITTLE_BYTES
    return look_while_it_rests(log_dir, partition, look, _wrong, costs_little=is_little, files=files)


def _wrong(found: PartitionTransactions) -> list[Wrong]:
    return [Wrong(damage.path, damage.position, damage.what) for damage in found.damage]


def _snapshot(seen: Snapshot, files: Files) -> Iterable[ProducerSnapshotEntry]:
    """Returns the newest readable producer snapshot, for transactions whose records the log no longer has."""
    for offset in sorted(names.offsets_in(seen.listed, names.PRODUCER_SNAPSHOT_FILE_SUFFIX), reverse=True):
        with contextlib.suppress(KafkalogError, OSError):
            return read_snapshot(names.producer_snapshot_file(seen.directory, offset), files)
    return ()


def _of_snapshot(entry: ProducerSnapshotEntry | None, first_offset: int) -> _Seen:
    if entry is None:
        return _Seen(-1, first_offset, -1, -1, -1, 0)
    return _Seen(entry.producer_epoch, first_offset, entry.last_offset, -1, entry.timestamp, 0)
