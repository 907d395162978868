"""Shows the transactions of a partition: which are open, since when, and which holds the last stable offset back.

Which are open comes from the view (`Snapshot.transactions`), as for read_committed readers.  The rest is read from the
whole log: the number of markers that commit and abort, and the first and last batch of each open transaction.  Only
reads, also while a broker is running.  Kafka calls a transaction hanging if it is open for longer than
`transaction.max.timeout.ms` allows.  Then its coordinator has lost it, and only an operator can end it
(kafka-transactions --abort).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format import names
from kafkalog.engine.format.batch import CONTROL_FLAG
from kafkalog.engine.format.snapshots import ProducerSnapshotEntry, read_snapshot
from kafkalog.engine.log.view import PartitionView
from kafkalog.engine.segment.reader import Unreadable
from kafkalog.engine.segment.scan import LogScan
from kafkalog.engine.segment.transactions import Marker, TransactionFollower
from kafkalog.errors import KafkalogError
from kafkalog.toolbox.second_look import Wrong, look_while_it_rests

if TYPE_CHECKING:
    from kafkalog._native.codec.batches import BatchHeader
    from kafkalog.engine.format.names import TopicPartition
    from kafkalog.engine.log.checkpoint_lines import CheckpointLines
    from kafkalog.engine.log.snapshot import Snapshot

LITTLE_BYTES = 1 << 20  # logs up to this size are read rather than checking all files first
HANGING_AFTER_MS = 900_000  # Kafka's transaction.max.timeout.ms


class OpenTransaction(NamedTuple):
    """One open transaction.

    `start_timestamp` and `last_timestamp` are those of its first and last batch, in ms (-1 if unknown, because the log
    no longer has it).  `records` counts its records in the log.  `age_ms` is the time since its start, or since its
    last batch if the start is unknown.  `held_records` counts the records at or after its first offset, including its
    own: no read_committed reader sees them while it is open."""

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


@dataclass
class PartitionTransactions:
    """The transactions of one partition.

    `open` is sorted by first offset: the first one holds `last_stable_offset` back.  `committed` and `aborted` count
    the markers in the log.  `damage` is what could not be read; a marker there may have ended a transaction."""

    partition: TopicPartition
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    open: list[OpenTransaction] = field(default_factory=list)
    committed: int = 0
    aborted: int = 0
    damage: list[Unreadable] = field(default_factory=list)

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


class _Follower(TransactionFollower):
    """Keeps what has been seen of the open transactions."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, _Seen] = {}

    def observe(self, header: BatchHeader, batch: memoryview) -> Marker | None:
        marker = super().observe(header, batch)
        if marker is not None:
            self.seen.pop(header.producer_id, None)
        elif header.is_transactional:
            begin = header.max_timestamp if header.log_append else header.base_timestamp
            end = header.max_timestamp
            before = self.seen.get(header.producer_id)
            self.seen[header.producer_id] = _Seen(
                header.producer_epoch,
                header.base_offset if before is None else before.first_offset,
                header.last_offset,
                begin if before is None else before.start_timestamp,
                end if before is None else max(end, before.last_timestamp),
                header.count + (0 if before is None else before.records),
            )
        return marker


def find_transactions(
    view: PartitionView,
    now_ms: int,
    *,
    hanging_after_ms: int = HANGING_AFTER_MS,
    files: Files = OS_FILES,
    progress: Callable[[int], None] | None = None,
) -> PartitionTransactions:
    """Returns the transactions of a view at a time.  Raises CorruptIndexException if an index of aborted ones is
    incomplete."""

    def look(seen: Snapshot) -> PartitionTransactions:
        known = seen.transactions
        found = PartitionTransactions(
            seen.topic_partition, seen.log_start_offset, seen.log_end_offset, seen.last_stable_offset
        )
        follower = _Follower()
        begun = sorted(known.open.items(), key=lambda entry: entry[1])
        firsts = np.array([first_offset for _, first_offset in begun], np.int64)
        held = np.zeros(len(begun), np.int64)
        for segment in seen.segments:
            end = seen.readable_bytes(segment)
            if seen.tail_is_plain and not begun and segment is seen.segments[-1]:  # the view has read it already
                if progress is not None and end:
                    progress(end)
                continue
            scan = LogScan(seen.file(segment), 0, end)
            for piece in scan:
                for marker in follower.feed(piece):
                    with contextlib.suppress(KafkalogError):  # `verify --deep` reports it
                        aborts = marker.is_abort()
                        found.aborted += aborts
                        found.committed += not aborts
                if begun:
                    held += _records_from(firsts, piece.table)
                if progress is not None:
                    progress(int(piece.table["size"].sum()))
            if scan.position < end:
                found.damage.append(Unreadable.where_stopped(seen.file(segment), scan))
        if known.damage is not None and known.damage not in found.damage:
            found.damage.append(known.damage)
        lasting = {entry.producer_id: entry for entry in _snapshot(seen, files)} if begun else {}
        for (producer_id, first_offset), held_records in zip(begun, held.tolist(), strict=True):
            about = follower.seen.get(producer_id) or _of_snapshot(lasting.get(producer_id), first_offset)
            start = about.start_timestamp if about.first_offset <= first_offset else -1
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
                    about.records,
                    age,
                    age > hanging_after_ms,
                    held_records,
                )
            )
        return found

    return view.over(look)


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
