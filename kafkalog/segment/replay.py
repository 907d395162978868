"""The part of a recovery that Python sees: batches that begin a leader epoch or belong to a producer.

Everything else only moves the end of the log.  A producer keeps its last five batches, so of a long run of plain
batches of one producer only the first and the last five leave a trace; the ones between are left out, which is what
makes the recovery of a log full of idempotent producers fast.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kafkalog._native import batches as native
from kafkalog._native.batches import BATCH_DTYPE, BatchHeader
from kafkalog.errors import CorruptRecordException, InvalidRecordException, KafkaException
from kafkalog.format.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from kafkalog.segment.transaction_index import TransactionIndex
from kafkalog.segment.types import AppendOrigin

Table = npt.NDArray[Any]

NUM_BATCHES_TO_RETAIN = 5  # ProducerStateEntry.NUM_BATCHES_TO_RETAIN
_NONE: Table = np.empty(0, dtype=np.int64)

assert {"leader_epoch", "producer_id", "producer_epoch", "attributes"} <= set(BATCH_DTYPE.names or ())


class ProducerState(Protocol):
    """What a recovery tells the producer state manager (kafkalog.log.producers)."""

    def prepare_update(self, producer_id: int, origin: AppendOrigin) -> Any: ...
    def update(self, append_info: Any) -> None: ...
    def last_stable_offset(self, completed_txn: Any) -> int: ...
    def complete_txn(self, completed_txn: Any) -> None: ...
    def update_map_end_offset(self, last_offset: int) -> None: ...


class LeaderEpochs(Protocol):
    """What a recovery tells the leader epoch cache (kafkalog.log.leader_epochs)."""

    @property
    def latest_epoch(self) -> int | None: ...
    def assign(self, epoch: int, start_offset: int) -> None: ...


class Replay:
    """The part of a recovery that Python sees: batches that begin a leader epoch or belong to a producer."""

    def __init__(self, txn_index: TransactionIndex, producers: ProducerState, epochs: LeaderEpochs) -> None:
        self.txn_index = txn_index
        self.producers = producers
        self.epochs = epochs
        self.row = -1  # the row in progress, for a caller that meets an error

    def choose(self, table: Table) -> Table:
        """The rows that change something, in order."""
        latest = self.epochs.latest_epoch
        return rows_to_replay(table, -1 if latest is None else latest)

    def run(self, table: Table, rows: Table, data: memoryview, position: int) -> tuple[int | None, Exception | None]:
        """Replays the rows; (None, None), or the row at which the bytes turned out bad and why."""
        epochs = self.epochs
        for row in rows.tolist():
            if row >= len(table):
                break
            self.row = row
            at = int(table["position"][row]) - position
            header = native.header_at(data, at)
            epoch = header.leader_epoch
            if epoch >= 0:
                latest = epochs.latest_epoch
                if latest is None or epoch > latest:
                    epochs.assign(epoch, header.base_offset)
            if header.producer_id > -1:
                try:
                    self._update_producer_state(header, data, at)
                except (CorruptRecordException, InvalidRecordException) as error:
                    if isinstance(error, KafkaException):  # a payload that does not decompress stops the recovery
                        raise
                    self._update_map_end(table[:row])
                    return row, error
        self._update_map_end(table)
        return None, None

    def _update_map_end(self, table: Table) -> None:
        if len(table) == 0:
            return
        last = -1
        if table["magic"][last] < 2:
            of_v2 = np.flatnonzero(table["magic"] >= 2)
            if len(of_v2) == 0:
                return
            last = of_v2[-1]
        self.producers.update_map_end_offset(int(table["last_offset"][last]) + 1)

    def _update_producer_state(self, header: BatchHeader, data: memoryview, at: int) -> None:
        producers = self.producers
        info = producers.prepare_update(header.producer_id, AppendOrigin.REPLICATION)
        completed = info.append(header, records=data, at=at)
        producers.update(info)
        if completed is not None:
            self.txn_index.update(completed, producers.last_stable_offset(completed))
            producers.complete_txn(completed)


def rows_to_replay(table: Table, latest_epoch: int) -> Table:
    """Row numbers, in order, of batches that begin an epoch above `latest_epoch` and all before it, or that matter to
    the state of their producer (magic 0 and 1 have neither)."""
    if not native.any_of_interest(table, latest_epoch):
        return _NONE
    epochs = table["leader_epoch"]
    producer_ids = table["producer_id"]
    wanted = np.zeros(len(table), dtype=bool)
    if int(epochs.max()) > latest_epoch:
        highest = np.maximum.accumulate(epochs)
        wanted[0] = epochs[0] > latest_epoch
        wanted[1:] = epochs[1:] > np.maximum(highest[:-1], latest_epoch)
    if producer_ids.max() > -1:
        wanted[_producer_rows(table, producer_ids)] = True
    return np.flatnonzero(wanted)


def _producer_rows(table: Table, producer_ids: Table) -> Table:
    rows = np.flatnonzero(producer_ids > -1)
    keep = NUM_BATCHES_TO_RETAIN
    if len(rows) <= keep + 1:
        return rows
    rows = rows[np.argsort(producer_ids[rows], kind="stable")]
    ids = producer_ids[rows]
    flags = table["attributes"][rows]
    epochs = table["producer_epoch"][rows]
    # like[i]: row i is plain data that continues row i-1 of the same producer, epoch and kind.
    like = (
        (ids[1:] == ids[:-1])
        & (epochs[1:] == epochs[:-1])
        & ((flags[1:] ^ flags[:-1]) & (TRANSACTIONAL_FLAG | CONTROL_FLAG) == 0)
        & (flags[1:] & CONTROL_FLAG == 0)
    )
    # A row leaves no trace when it continues the one before and the next `keep` rows continue it.
    traceless = np.ones(len(rows), dtype=bool)
    traceless[0] = False
    traceless[len(rows) - keep :] = False
    middle = slice(1, len(rows) - keep)
    for step in range(keep + 1):
        traceless[middle] &= like[step : step + len(rows) - keep - 1]
    return np.sort(rows[~traceless])
