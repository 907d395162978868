"""Producer state and leader epochs from a log: followed during a recovery, or rebuilt from a snapshot and a replay.

There are two ways, as in Kafka. `RecoveryReplay` follows LogSegment.recover, batch by batch, over the tables of the
native scan; Python sees only batches that begin an epoch or change the state of their producer.
`rebuild_producer_state` brings a manager to an offset, from the latest usable snapshot and the batches after it.
Mirrors LogSegment's updateProducerState and UnifiedLog's static rebuildProducerState, loadProducersFromRecords and
updateProducers (4.4.0). The caller holds the partition's lock or is the loader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kafkalog._limits import INT_MAX
from kafkalog._native.codec import batches as native
from kafkalog._native.codec.batches import BATCH_DTYPE, BatchHeader
from kafkalog._native.codec.java_hash import JavaHashMap, long_hash
from kafkalog._native.state.producers import NUM_BATCHES_TO_RETAIN
from kafkalog.engine.files import Buffer
from kafkalog.engine.files.turns import resting
from kafkalog.engine.format.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from kafkalog.engine.log.leader_epochs import LeaderEpochFileCache
from kafkalog.engine.log.producer_append import CompletedTxn, ProducerAppendInfo
from kafkalog.engine.log.producers import ProducerStateManager
from kafkalog.engine.log.types import AppendOrigin
from kafkalog.engine.segment.log_segments import LogSegments
from kafkalog.engine.segment.transaction_index import TransactionIndex
from kafkalog.engine.segment.types import LogOffsetMetadata, Records
from kafkalog.errors import CorruptRecordException, InvalidRecordException, KafkaException

Table = npt.NDArray[Any]

_NONE: Table = np.empty(0, dtype=np.int64)

assert {"leader_epoch", "producer_id", "producer_epoch", "attributes"} <= set(BATCH_DTYPE.names or ())


def rebuild_producer_state(
    producer_state_manager: ProducerStateManager,
    segments: LogSegments,
    log_start_offset: int,
    last_offset: int,
    reload_from_clean_shutdown: bool,
) -> None:
    """Brings the manager's state to `last_offset`: from the latest usable snapshot, then by replaying the segments.

    If a clean shutdown left no snapshot, there were no producers (an upgrade): empty snapshots are written and nothing
    is read.
    """
    snapshot_offsets: list[int] = []
    last_segment = segments.last_segment
    if last_segment is not None:
        lower = segments.lower_segment(last_segment.base_offset)
        if lower is not None:
            snapshot_offsets.append(lower.base_offset)
        snapshot_offsets.append(last_segment.base_offset)
    snapshot_offsets.append(last_offset)

    psm = producer_state_manager
    if psm.latest_snapshot_offset is None and reload_from_clean_shutdown:
        for offset in snapshot_offsets:
            psm.update_map_end_offset(offset)
            psm.take_snapshot()
        return

    empty_before = psm.is_empty and psm.map_end_offset >= last_offset
    psm.truncate_and_reload(log_start_offset, last_offset, psm.context.clock.milliseconds())
    if last_offset > psm.map_end_offset and not empty_before:
        holds_last = segments.floor_segment(last_offset)
        for segment in list(segments.values(psm.map_end_offset, last_offset)):
            start = max(segment.base_offset, psm.map_end_offset, log_start_offset)
            psm.update_map_end_offset(start)
            if segment.base_offset in snapshot_offsets:
                psm.take_snapshot()
            max_position = segment.size
            if segment is holds_last:
                place = segment.translate_offset(last_offset)
                if place is not None:
                    max_position = place.position
            found = segment.read(start, INT_MAX, max_position)
            if found is not None:
                with resting(max_position):
                    load_producers_from_records(psm, found.records)
    psm.update_map_end_offset(last_offset)
    psm.take_snapshot()


def load_producers_from_records(producer_state_manager: ProducerStateManager, records: Records) -> None:
    """Replays batches that are already in the log, with origin REPLICATION: errors are only logged."""
    # The producers enter the map in this order; snapshots are written in the map's order.
    loaded: JavaHashMap[int, ProducerAppendInfo] = JavaHashMap(long_hash)
    completed: list[CompletedTxn] = []
    data: bytes | None = None
    for header in records.batches():
        if not header.has_producer_id:
            continue
        if data is None and header.is_control:
            data = records.to_bytes()
        done = update_producers(producer_state_manager, header, data, loaded, None, AppendOrigin.REPLICATION, 0)
        if done is not None:
            completed.append(done)
    for info in loaded.values():
        producer_state_manager.update(info)
    for txn in completed:
        producer_state_manager.complete_txn(txn)


def update_producers(
    producer_state_manager: ProducerStateManager,
    header: BatchHeader,
    data: Buffer | None,
    producers: JavaHashMap[int, ProducerAppendInfo],
    first_offset_metadata: LogOffsetMetadata | None,
    origin: AppendOrigin,
    transaction_version: int,
    *,
    at: int | None = None,
) -> CompletedTxn | None:
    """Applies one batch of a producer to `producers`. Returns the transaction that a marker completes.

    `data` holds the batch from byte `at` on (default: `header.position`). Only control batches are parsed.
    """
    producer_id = header.producer_id
    info = producers.compute_if_absent(producer_id, lambda: producer_state_manager.prepare_update(producer_id, origin))
    completed = info.append(header, first_offset_metadata, transaction_version, records=data, at=at)
    if header.is_transactional:
        entry = producer_state_manager.verification_state_entry(producer_id)
        starts_next_v2_transaction = (
            entry is not None
            and entry.supports_epoch_bump
            and header.is_control
            and header.producer_epoch == entry.epoch
        )
        if not starts_next_v2_transaction:
            producer_state_manager.clear_verification_state_entry(producer_id)
    return completed


class RecoveryReplay:
    """Passes what a segment's recovery finds to the producers and the leader epochs (a `RecoveryObserver`).

    A batch that neither begins an epoch nor belongs to a producer only moves the end of the log. A producer keeps its
    last batches (NUM_BATCHES_TO_RETAIN). In a long run of plain batches of one producer, only the first and the last
    few therefore change the final state. The batches between are skipped, which makes the recovery of a log with
    idempotent producers fast.
    """

    def __init__(
        self,
        txn_index: TransactionIndex,
        producers: ProducerStateManager,
        epochs: LeaderEpochFileCache,
        before_cut: Callable[[int], None] = lambda position: None,
    ) -> None:
        self.txn_index = txn_index
        self.producers = producers
        self.epochs = epochs
        self.before_cut = before_cut
        self.row = -1

    def choose(self, table: Table) -> Table:
        """Returns the rows that change something, in order."""
        latest = self.epochs.latest_epoch
        if latest is None:
            latest = -1
        return rows_to_replay(table, latest) if native.any_of_interest(table, latest) else _NONE

    def run(self, table: Table, rows: Table, data: memoryview, position: int) -> tuple[int | None, Exception | None]:
        """Replays the rows. Returns (None, None), or the first bad row and the error that says why it is bad."""
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
    """Returns the numbers of the rows, in order, that matter for epochs or producers.

    These are batches that begin an epoch above `latest_epoch` and all before it, and batches that matter to the state
    of their producer. Batches of magic 0 and 1 have neither.
    """
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
    # A row changes nothing if it continues the one before and the next `keep` rows continue it.
    traceless = np.ones(len(rows), dtype=bool)
    traceless[0] = False
    traceless[len(rows) - keep :] = False
    middle = slice(1, len(rows) - keep)
    for step in range(keep + 1):
        traceless[middle] &= like[step : step + len(rows) - keep - 1]
    return np.sort(rows[~traceless])
