"""The moment that a backup's transactions and cursors are of, though its partitions are copied one after the other.

A restored directory is opened as after a crash: the coordinator reads `__transaction_state`, commits what was decided
so, aborts what was open, and writes that into the partitions that it knows of.  So all copies must fit to one moment T
of `__transaction_state`:

- T is when all partitions of `__transaction_state` were as long as they are copied.  They are measured twice in a row,
  until nobody has grown in between: then there was a moment at which all had these lengths.  No other partition of it
  was there: `backup` lists them again behind it.  Where there is none at all, no transaction is known.
- A partition of records is looked at before T, and copied after T; it is cut in front of the first batch, behind that
  look and behind the last marker of what T has as completed, that T knows nothing of: a marker of a transaction that T
  has open or does not know, or records of one that T does not have in this partition.  Both came after T.  So
  everything that was there at T is in the copy, every transaction that T has decided is there whole, and none is
  decided in one copy and open in another.
- `__consumer_offsets` holds cursors, which must not lie behind the end of their partition's copy.  It is cut as early
  as may be: where it ended at the look before T, or behind the last batch that T needs, which is a marker of a
  transaction that T has as completed, or a commit of one that T has decided.  Both came before T, so whatever the
  cursors point behind was appended before T, and the copies of records have it.

A transaction is told from the next one of its id by its epoch (transaction version 2 raises it at every end: kafkalog,
clients of Kafka 4).  Older clients keep theirs; there times decide, which is as exact as clocks are.  A directory of a
cluster's broker has only some of the partitions of `__transaction_state`: of the others nothing is known, and copies
end in front of their first batch behind the look.

Takes no lock, changes nothing.  Used by one thread.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

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

LOOKS_MAX = 10_000  # at the lengths of __transaction_state; two of them take less than most transactions
REST_S = 0.001
ID_BYTES = 10  # of a record's value: its version and the producer id
COMPLETE = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
EPOCH_PER_END = 2  # the transaction version from which on


class Moment:
    """What `__transaction_state` said at T.  `ends`: the offset behind what each of its partitions had."""

    def __init__(
        self, ends: dict[TopicPartition, int], states: Iterable[TransactionMetadata], former: Collection[int] = ()
    ) -> None:
        """`former` are producer ids that transactional ids had before, up to the end of their epochs."""
        self.ends = ends
        self._states = {state.producer_id: state for state in states}
        self._former = set(former) - self._states.keys()

    # --- where copies end ----------------------------------------------------------------------------

    def end_of_records(self, seen: Snapshot, look_end: int) -> int:
        """Where the copy of a partition of records ends, at the latest: `look_end` was its end before T."""
        end = None
        for table in _batches_behind(seen, look_end):
            for row in table:
                if row["attributes"] & CONTROL_FLAG and self._is_needed(row, seen.topic_partition):
                    end = None  # it came before T, and so did all in front of it
                elif end is None and not self._is_known(row, seen.topic_partition):
                    end = int(row["base_offset"])
        return seen.log_end_offset if end is None else max(end, look_end)

    def end_of_cursors(self, seen: Snapshot, look_end: int) -> int:
        """Where the copy of a partition of `__consumer_offsets` ends, at the earliest."""
        end = look_end
        for table in _batches_behind(seen, look_end):
            for row in table:
                if self._is_needed(row, seen.topic_partition):
                    end = int(row["last_offset"]) + 1
        return min(end, seen.log_end_offset)

    def _is_known(self, row: np.void, partition: TopicPartition) -> bool:
        if row["attributes"] & CONTROL_FLAG:
            return self._has_decided(row)
        return self._has_records(row, partition)

    def _is_needed(self, row: np.void, partition: TopicPartition) -> bool:
        state = self._states.get(int(row["producer_id"]))
        if row["attributes"] & CONTROL_FLAG:
            # A marker of what is decided, and not completed, is written again.
            is_to_come = state is not None and state.state in PREPARED
            is_to_come = is_to_come and int(row["producer_epoch"]) >= state.producer_epoch  # type: ignore[union-attr]
            return self._has_decided(row) and not is_to_come
        if state is not None and state.state is TransactionState.ONGOING:
            # Those of the open one may come after T, and an older client's next ones look the same.
            return int(row["producer_epoch"]) < state.producer_epoch
        return self._has_records(row, partition)

    # --- what T knows --------------------------------------------------------------------------------

    def _has_decided(self, row: np.void) -> bool:
        """Whether a marker is of a transaction that was decided at T."""
        state = self._states.get(int(row["producer_id"]))
        epoch = int(row["producer_epoch"])
        if state is None:
            return int(row["producer_id"]) in self._former
        if epoch != state.producer_epoch:
            return epoch < state.producer_epoch
        if state.state is TransactionState.EMPTY:
            return False  # no transaction has had this epoch yet
        if state.client_transaction_version >= EPOCH_PER_END or state.state in PREPARED:
            return True
        if state.state is TransactionState.ONGOING:
            return int(row["max_timestamp"]) <= state.start_timestamp
        return int(row["max_timestamp"]) <= state.last_update_timestamp

    def _has_records(self, row: np.void, partition: TopicPartition) -> bool:
        """Whether records are of a transaction that was decided at T, or open, and known to be in this partition."""
        state = self._states.get(int(row["producer_id"]))
        epoch = int(row["producer_epoch"])
        if state is None:
            return int(row["producer_id"]) in self._former
        if epoch != state.producer_epoch:
            return epoch < state.producer_epoch
        if state.state is TransactionState.ONGOING:
            return partition in listed_partitions(state)
        if state.state not in PREPARED or state.client_transaction_version >= EPOCH_PER_END:
            return False  # of the next one; those of the one before have its marker behind them
        return partition in listed_partitions(state) and int(row["max_timestamp"]) <= state.last_update_timestamp


def moment_of(views: dict[TopicPartition, PartitionView], files: Files) -> Moment:
    """T, of the partitions of `__transaction_state` that are to be copied.

    BeingWrittenException where one or the other grew at each of many looks; SchemaException for a record that cannot
    be understood: a decision may stand behind it.
    """
    ends = _lengths_at_once(views, files)
    newest: dict[str, TransactionMetadata | None] = {}
    ids: set[int] = set()
    for partition, end in ends.items():
        views[partition].refresh()  # it was longer by then
        newest |= views[partition].over(lambda seen, end=end: _states(seen, end, ids))  # type: ignore[misc]
    return Moment(ends, [state for state in newest.values() if state is not None], ids)


def _lengths_at_once(views: dict[TopicPartition, PartitionView], files: Files) -> dict[TopicPartition, int]:
    for look in range(LOOKS_MAX):
        if look:
            time.sleep(REST_S * (look % 10))  # not in step with who writes
        try:
            before = {partition: _length(view.directory, files) for partition, view in views.items()}
            if before != {partition: _length(view.directory, files) for partition, view in views.items()}:
                continue
            return {partition: _end_at(*before[partition], files) for partition in views}
        except FileNotFoundError:  # compacted, or renamed, since
            continue
    raise BeingWrittenException(
        f"{names.TRANSACTION_STATE_TOPIC} grew at each of {LOOKS_MAX} looks",
        path=next(iter(views.values())).log_dir,
        hint="ask again, or when fewer transactions are under way",
    )


def _length(directory: str, files: Files) -> tuple[str, int, int]:
    """(path of the last segment's log, its base offset, its bytes)."""
    bases = names.offsets_in(files.list_dir(directory))
    if not bases:
        return "", 0, 0
    path = names.log_file(directory, bases[-1])
    return path, bases[-1], files.stat(path).size


def _end_at(path: str, base: int, size: int, files: Files) -> int:
    """The offset behind the last whole batch within so many bytes."""
    end = base
    if path and size:
        with files.open(path, writable=False) as file:
            for piece in LogScan(file, 0, min(size, file.size())):
                end = max(end, int(piece.table["last_offset"][-1]) + 1)
    return end


def _states(seen: Snapshot, end: int, ids: set[int]) -> dict[str, TransactionMetadata | None]:
    """The state of each transactional id as of an offset.  `ids` gets all producer ids that are named below it."""
    if seen.log_end_offset < end:
        raise BeingWrittenException(
            f"{seen.topic_partition} was cut while it was looked at", path=seen.directory, hint="ask again"
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
                    begin = bytes((record.value or b"")[:ID_BYTES])
                    if begin and begin not in known:  # most are another state of the same one
                        known.add(begin)
                        ids.update(state.producer_id for state in _state(record).values() if state is not None)
        if scan.position < seen.readable_bytes(segment):
            raise Unreadable.where_stopped(seen.file(segment), scan).error()
    found: dict[str, TransactionMetadata | None] = {}
    for record in newest.values():
        found |= _state(record)
    return found


def _state(record: Record) -> dict[str, TransactionMetadata | None]:
    """A transactional id and its state; nothing of a record that Kafka passes over."""
    try:
        name, state = decode_transaction(record.key, record.value)
        if state is not None and state.state in COMPLETE:  # its own time is that of the decision, before the markers
            state = state._replace(last_update_timestamp=max(state.last_update_timestamp, record.timestamp))
        return {name: state}
    except (UnknownRecordTypeException, UnknownRecordVersionException):
        return {}


def _batches_behind(seen: Snapshot, offset: int) -> Iterator[np.ndarray]:
    """Tables of a snapshot's transactional batches, markers too, from an offset on."""
    place, position = seen.position_of(max(offset, seen.log_start_offset))
    for segment in seen.segments[place:]:
        for piece in LogScan(seen.file(segment), position, seen.readable_bytes(segment), check_crc=False):
            table = piece.table
            yield table[(table["attributes"] & TRANSACTIONAL_FLAG != 0) & (table["base_offset"] >= offset)]
        position = 0


__all__ = ["Moment", "moment_of"]


def __dir__() -> list[str]:
    return __all__
