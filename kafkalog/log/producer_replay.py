"""Producer state from a log: replaying batches after a snapshot, and the snapshots that segments take with them.

Mirrors UnifiedLog's static rebuildProducerState, loadProducersFromRecords, updateProducers and
deleteProducerSnapshots.  The caller holds the partition's lock or is the loader.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafkalog._native.java_hash import JavaHashMap, long_hash
from kafkalog.files import Buffer, LogDirFailureChannel, Scheduler
from kafkalog.format.names import TopicPartition
from kafkalog.limits import INT_MAX
from kafkalog.log.local_log import io_guard
from kafkalog.log.producers import CompletedTxn, ProducerAppendInfo, ProducerStateManager, SnapshotFile
from kafkalog.log.types import AppendOrigin
from kafkalog.segment.log_segment import LogSegment
from kafkalog.segment.log_segments import LogSegments
from kafkalog.segment.types import LogOffsetMetadata, Records

if TYPE_CHECKING:
    from kafkalog._native.batches import BatchHeader
    from kafkalog.config import LogConfig
    from kafkalog.files import Clock

logger = logging.getLogger("kafkalog.log")


def rebuild_producer_state(
    producer_state_manager: ProducerStateManager,
    segments: LogSegments,
    log_start_offset: int,
    last_offset: int,
    clock: Clock,
    reload_from_clean_shutdown: bool,
) -> None:
    """Brings the manager's state to `last_offset`: from the latest usable snapshot, then by replaying the segments.

    A clean shutdown that left no snapshot means that there were no producers (an upgrade): empty snapshots are
    written and nothing is read.
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
    psm.truncate_and_reload(log_start_offset, last_offset, clock.milliseconds())
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
                load_producers_from_records(psm, found.records)
    psm.update_map_end_offset(last_offset)
    psm.take_snapshot()


def load_producers_from_records(producer_state_manager: ProducerStateManager, records: Records) -> None:
    """Replays batches that are already in the log (origin REPLICATION: what is wrong is only logged)."""
    # The producers come into the map in this order, and snapshots are written in the map's.
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
    """Takes one batch of a producer into `producers`; answers the transaction that a marker completes.

    `data` holds the batch from byte `at` on (default: `header.position`); only control batches are looked into.
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


def delete_producer_snapshots(
    segments: Iterable[LogSegment],
    producer_state_manager: ProducerStateManager,
    async_delete: bool,
    scheduler: Scheduler,
    config: LogConfig,
    log_dir_failure_channel: LogDirFailureChannel,
    parent_dir: str,
    topic_partition: TopicPartition,
) -> None:
    """Renames the snapshots at the segments' bases to `.deleted` and unlinks them, later when `async_delete`.

    The task is scheduled also when there is nothing to delete, as Kafka does.
    """
    doomed: list[SnapshotFile] = []
    for segment in segments:
        snapshot = producer_state_manager.remove_and_mark_snapshot_for_deletion(segment.base_offset)
        if snapshot is not None:
            doomed.append(snapshot)

    def delete() -> None:
        message = f"Error while deleting producer state snapshots for {topic_partition} in dir {parent_dir}"
        with io_guard(log_dir_failure_channel, parent_dir, message):
            for snapshot in doomed:
                snapshot.delete_if_exists()

    if async_delete:
        scheduler.schedule_once("delete-producer-snapshot", delete, config.file_delete_delay_ms)
    else:
        delete()
