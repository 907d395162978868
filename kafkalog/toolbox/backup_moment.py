"""The one moment of a backup's transactions and cursors, although its partitions are copied one after the other.

A restored directory is opened as after a crash.  The coordinator reads `__transaction_state`, commits transactions
whose commit was decided, aborts open ones, and writes markers into the partitions that it knows of.  So all copies must
fit one moment T of `__transaction_state`:

- T is when all partitions of `__transaction_state` were as long as they are copied.  They are measured twice in a row,
  until none has grown in between: then there was a moment at which all had these lengths.  No other partition of it
  existed then: `backup` lists them again afterwards.  If there is none at all, no transaction is known.
- A partition of records is measured before T and copied after T.  Its copy is truncated before the first batch that
  certainly came after T, among the batches after the measured end and after the last batch that certainly came before
  T.  A batch certainly came after T if it is the marker of a transaction that T has open or does not know.  So did
  records of a transaction that T does not have in this partition.  So everything that was there at T is in the copy,
  every transaction that T has decided is whole, and none is decided in one copy and open in another.
- `__consumer_offsets` holds cursors, which must not point past the end of their partition's copy.  It is truncated as
  early as possible: at the end measured before T, or after the last batch that certainly came before T.  Such a batch
  is a marker of a transaction that T has as completed, or a commit of one that T has decided.  So all records before a
  cursor were appended before T, and the copies of records have them.

A transaction differs from the next one of its id by its epoch: transaction version 2 raises it at every end (kafkalog,
clients of Kafka 4).  Older clients keep theirs, so markers are counted there.  `__transaction_state` tells when, and in
which partitions, the id's last transactions were decided and completed, and each has one marker there in between.  The
times are the brokers', never those of records, which clients write; so this is as exact as the brokers' clocks.

The directory of a cluster's broker has only some of the partitions of `__transaction_state`.  Nothing is known of the
transactions of the others, and copies end before their first batch after the measured end.

Takes no lock and changes nothing.  Used by one thread.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kafkalog._native.codec.batches import header_at
from kafkalog.engine.coordinator.transaction_metadata import PREPARED, listed_partitions
from kafkalog.engine.files import Files
from kafkalog.engine.format import names, records
from kafkalog.engine.format.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.transaction_records import TransactionMetadata, TransactionState, decode_transaction
from kafkalog.engine.segment.reader import Unreadable
from kafkalog.engine.segment.scan import LogScan
from kafkalog.errors import BeingWrittenException, UnknownRecordTypeException, UnknownRecordVersionException

if TYPE_CHECKING:
    from kafkalog._native.codec.records import Record
    from kafkalog.engine.log.snapshot import Snapshot
    from kafkalog.engine.log.view import PartitionView

LOOKS_MAX = 10_000  # measurements of the lengths of __transaction_state; two take less time than most transactions
REST_S = 0.001
ID_BYTES = 10  # at the start of a record's value: its version and the producer id
STATUS_AT = 16  # position in a record's value, in both versions, after the epoch and the timeout
ENDING = {bytes([each]) for each in (*PREPARED, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)}
HISTORY_MAX = 8192  # records an id; twice as many as it has transactions between a measurement and T
EPOCH_PER_END = 2  # from this transaction version on, every end raises the epoch


class When(Enum):
    """Says whether a batch came before or after T, by its place in its partition."""

    BEFORE = "before"  # then so did all batches before it
    EITHER = "either"  # of a transaction that T has open or decided: may be in the copy or not
    AFTER = "after"


class _End(NamedTuple):
    """How a transaction ended: when it was decided, when all its markers were written (None: not yet), and in which
    partitions."""

    prepared_ms: int
    completed_ms: int | None
    partitions: frozenset[TopicPartition]


class Moment:
    """The content of `__transaction_state` at T.  `ends` maps each of its partitions to the end offset it had."""

    def __init__(
        self,
        ends: dict[TopicPartition, int],
        states: Iterable[TransactionMetadata],
        former: Collection[int] = (),
        history: Mapping[int, Iterable[Record]] | None = None,
    ) -> None:
        """`former` are producer ids that transactional ids used before their epochs ran out.  `history` maps a producer
        id to its newest records of decisions and completions, in order."""
        self.ends = ends
        self._states = {state.producer_id: state for state in states}
        self._former = set(former) - self._states.keys()
        self._history = history or {}
        self._keeping = [
            each.producer_id
            for each in self._states.values()
            if each.state in PREPARED and each.client_transaction_version < EPOCH_PER_END
        ]
        self._decided: dict[TopicPartition, int | None] = {}
        self._known_ends: dict[int, list[_End]] = {}
        self._known_ends_in: dict[tuple[int, TopicPartition], list[_End]] = {}

    # --- where copies end ----------------------------------------------------------------------------

    def end_of_records(self, seen: Snapshot, look_end: int) -> int:
        """Returns the latest offset at which the copy of a partition of records may end; `look_end` was its end before
        T."""
        end = None
        for row, when in self._judged(seen, look_end):
            if when is When.BEFORE:
                end = None
            elif end is None and when is When.AFTER:
                end = int(row["base_offset"])
        return seen.log_end_offset if end is None else max(end, look_end)

    def end_of_cursors(self, seen: Snapshot, look_end: int) -> int:
        """Returns the earliest offset at which the copy of a partition of `__consumer_offsets` may end."""
        end = look_end
        for row, when in self._judged(seen, look_end):
            if when is When.BEFORE:
                end = int(row["last_offset"]) + 1
        return min(end, seen.log_end_offset)

    def _judged(self, seen: Snapshot, offset: int) -> Iterator[tuple[np.void, When]]:
        """Yields the transactional batches from an offset on.  Earlier batches are read as far back as a marker of a
        decided transaction may be: the batches after that marker belong to the next transaction."""
        passed: dict[int, int] = {}
        decided_ms = self._decided_ms(seen.topic_partition)
        found = None
        if decided_ms is not None and seen.bases:  # decided a short time ago: in this segment, or in the one before
            first = seen.bases[max(0, bisect_right(seen.bases, offset) - 2)]
            found = seen.offset_for_time(decided_ms, first)
        for table in _batches_behind(seen, offset if found is None else min(found, offset)):
            for row in table:
                when = self.when(row, seen.topic_partition, passed)
                if row["base_offset"] >= offset:
                    yield row, when

    def _decided_ms(self, partition: TopicPartition) -> int | None:
        """Returns since when a transaction in a partition is decided but not completed (ids that keep their epoch)."""
        known = self._decided.get(partition)
        if known is None and partition not in self._decided:
            ends = (self._ends_in(each, partition) for each in self._keeping)
            known = min((each[-1].prepared_ms for each in ends if each and each[-1].completed_ms is None), default=None)
            self._decided[partition] = known
        return known

    # --- what T knows --------------------------------------------------------------------------------

    def when(self, row: np.void, partition: TopicPartition, passed: dict[int, int]) -> When:
        """Says when a transactional batch came.  `passed` counts by producer id the known ends in this partition that
        were passed; give it again with the next batch."""
        producer_id, epoch = int(row["producer_id"]), int(row["producer_epoch"])
        state = self._states.get(producer_id)
        if state is None:
            return When.BEFORE if producer_id in self._former else When.AFTER
        if epoch != state.producer_epoch:
            return When.BEFORE if epoch < state.producer_epoch else When.AFTER
        if state.state is TransactionState.EMPTY:
            return When.AFTER  # no transaction had this epoch at T
        is_decided = state.state in PREPARED
        is_there = partition in listed_partitions(state)
        if state.client_transaction_version >= EPOCH_PER_END:
            if row["attributes"] & CONTROL_FLAG:  # the marker of a transaction has the epoch of the next one
                return When.EITHER if is_decided else When.BEFORE
            return When.EITHER if is_there and state.state is TransactionState.ONGOING else When.AFTER
        ends = self._ends_in(producer_id, partition)
        if row["attributes"] & CONTROL_FLAG:
            return _when_marked(ends, producer_id, int(row["max_timestamp"]), passed)
        if not is_there or (is_decided and passed.get(producer_id, 0) == len(ends)):
            return When.AFTER  # belongs to the next transaction; the previous one's marker comes after its records
        return When.BEFORE if is_decided else When.EITHER

    def _ends_in(self, producer_id: int, partition: TopicPartition) -> list[_End]:
        found = self._known_ends_in.get((producer_id, partition))
        if found is None:
            found = [each for each in self._ends_of(producer_id) if partition in each.partitions]
            self._known_ends_in[(producer_id, partition)] = found
        return found

    def _ends_of(self, producer_id: int) -> list[_End]:
        """Returns how transactions of an id ended, as far as it is known, in order."""
        found = self._known_ends.get(producer_id)
        if found is None:
            found = self._known_ends[producer_id] = []
            for record in self._history.get(producer_id, ()):
                for state in _state(record).values():
                    if state is not None and state.state in PREPARED:
                        found.append(_End(record.timestamp, None, frozenset(listed_partitions(state))))
                    elif state is not None and found and found[-1].completed_ms is None:
                        found[-1] = found[-1]._replace(completed_ms=record.timestamp)
        return found


def _when_marked(ends: Sequence[_End], producer_id: int, time_ms: int, passed: dict[int, int]) -> When:
    """Says when a marker came, in a partition in which transactions of an id that keeps its epoch ended so: each end
    has one marker, between its decision and its completion."""
    place = passed.get(producer_id, 0)
    while place < len(ends) and (completed_ms := ends[place].completed_ms) is not None and completed_ms < time_ms:
        place += 1
    passed[producer_id] = place
    if place == len(ends):
        return When.AFTER
    if time_ms < ends[place].prepared_ms:
        return When.BEFORE  # the marker of an end that is no longer known
    passed[producer_id] = place + 1
    # a missing marker is written again after the restore
    return When.EITHER if ends[place].completed_ms is None else When.BEFORE


def moment_of(views: dict[TopicPartition, PartitionView], files: Files) -> Moment:
    """Determines T from the partitions of `__transaction_state` that are to be copied.

    Raises BeingWrittenException if one of them grew at each of many measurements, and SchemaException for a record that
    cannot be decoded, because a decision may come after it."""
    ends = _lengths_at_once(views, files)
    newest: dict[str, TransactionMetadata | None] = {}
    ids: set[int] = set()
    history: dict[int, deque[Record]] = {}
    for partition, end in ends.items():
        views[partition].refresh()  # at that time it was longer than the view shows
        newest |= views[partition].over(lambda seen, end=end: _states(seen, end, ids, history))  # type: ignore[misc]
    return Moment(ends, [state for state in newest.values() if state is not None], ids, history)


def _lengths_at_once(views: dict[TopicPartition, PartitionView], files: Files) -> dict[TopicPartition, int]:
    for look in range(LOOKS_MAX):
        if look:
            time.sleep(REST_S * (look % 10))  # varied, so that it does not keep step with a writer
        try:
            before = {partition: _length(view.directory, files) for partition, view in views.items()}
            if before != {partition: _length(view.directory, files) for partition, view in views.items()}:
                continue
            return {partition: _end_at(*before[partition], files) for partition in views}
        except FileNotFoundError:  # compacted or renamed since
            continue
    raise BeingWrittenException(
        f"{names.TRANSACTION_STATE_TOPIC} grew at each of {LOOKS_MAX} attempts",
        path=next(iter(views.values())).log_dir,
        hint="try again, when fewer transactions are running",
    )


def _length(directory: str, files: Files) -> tuple[str, int, int]:
    """Returns (path of the last segment's log, its base offset, its bytes)."""
    bases = names.offsets_in(files.list_dir(directory))
    if not bases:
        return "", 0, 0
    path = names.log_file(directory, bases[-1])
    return path, bases[-1], files.stat(path).size


def _end_at(path: str, base: int, size: int, files: Files) -> int:
    """Returns the offset after the last whole batch within so many bytes."""
    end = base
    if path and size:
        with files.open(path, writable=False) as file:
            for piece in LogScan(file, 0, min(size, file.size())):
                end = max(end, int(piece.table["last_offset"][-1]) + 1)
    return end


def _states(
    seen: Snapshot, end: int, ids: set[int], history: dict[int, deque[Record]]
) -> dict[str, TransactionMetadata | None]:
    """Returns the state of each transactional id before the offset `end`.  Adds to `ids` all producer ids that occur
    there, and to `history` by producer id the last records of decisions and completions."""
    if seen.log_end_offset < end:
        raise BeingWrittenException(
            f"{seen.topic_partition} was truncated while it was read", path=seen.directory, hint="try again"
        )
    newest: dict[bytes, Record] = {}
    known: set[bytes] = set()
    for segment in seen.segments:
        scan = LogScan(seen.file(segment), 0, seen.readable_bytes(segment))
        for piece in scan:
            table = piece.table[(piece.table["attributes"] & CONTROL_FLAG == 0) & (piece.table["base_offset"] < end)]
            for position in (table["position"] - piece.position).tolist():
                for record in records.records(piece.data, header_at(piece.data, position)):
                    newest[bytes(record.key or b"")] = record
                    value = record.value or b""
                    begin = bytes(value[:ID_BYTES])
                    if value[STATUS_AT : STATUS_AT + 1] in ENDING:
                        producer_id = int.from_bytes(begin[ID_BYTES - 8 :], "big", signed=True)
                        history.setdefault(producer_id, deque(maxlen=HISTORY_MAX)).append(record)
                    if begin and begin not in known:  # most records are only another state of a known id
                        known.add(begin)
                        ids.update(state.producer_id for state in _state(record).values() if state is not None)
        if scan.position < seen.readable_bytes(segment):
            raise Unreadable.where_stopped(seen.file(segment), scan).error()
    found: dict[str, TransactionMetadata | None] = {}
    for record in newest.values():
        found |= _state(record)
    return found


def _state(record: Record) -> dict[str, TransactionMetadata | None]:
    """Returns a transactional id and its state; nothing for a record that Kafka ignores."""
    try:
        name, state = decode_transaction(record.key, record.value)
        return {name: state}
    except (UnknownRecordTypeException, UnknownRecordVersionException):
        return {}


def _batches_behind(seen: Snapshot, offset: int) -> Iterator[np.ndarray]:
    """Yields tables of a snapshot's transactional batches, including markers, from an offset on."""
    place, position = seen.position_of(max(offset, seen.log_start_offset))
    for segment in seen.segments[place:]:
        for piece in LogScan(seen.file(segment), position, seen.readable_bytes(segment), check_crc=False):
            table = piece.table
            yield table[(table["attributes"] & TRANSACTIONAL_FLAG != 0) & (table["base_offset"] >= offset)]
        position = 0


__all__ = ["Moment", "When", "moment_of"]


def __dir__() -> list[str]:
    return __all__
