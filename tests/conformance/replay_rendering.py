"""kafkalog's values as the result lines show them."""

from __future__ import annotations

import hashlib
from typing import Any

from kafkalog.engine.format import codecs, legacy
from kafkalog.engine.log.types import LogAppendInfo
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.segment.types import FetchDataInfo


def state(log: UnifiedLog) -> dict[str, Any]:
    return {
        "log_start": log.log_start_offset,
        "local_log_start": log.local_log_start_offset,
        "leo": log.log_end_offset,
        "hw": log.high_watermark,
        "lso": log.last_stable_offset,
        "first_unstable": log.first_unstable_offset,
        "recovery_point": log.recovery_point,
        "size": log.size,
        "latest_epoch": log.latest_epoch,
        "producers": log.producer_id_count,
        "map_end": log.latest_producer_state_end_offset,
        "segments": [[segment.base_offset, segment.size] for segment in log.log_segments()],
    }


def append_info(info: LogAppendInfo) -> dict[str, Any]:
    return {
        "first_offset": info.first_offset,
        "last_offset": info.last_offset,
        "num_messages": info.num_messages,
        "max_timestamp": info.max_timestamp,
        "log_append_time": info.log_append_time,
        "log_start_offset": info.log_start_offset,
        "source_compression": codecs.NAMES[info.source_compression],
        "valid_bytes": info.valid_bytes,
        "last_leader_epoch": info.last_leader_epoch,
        "records_converted": info.record_validation_stats.num_records_converted,
        "leader_hw_change": info.leader_hw_change.name,
    }


def read_info(info: FetchDataInfo) -> dict[str, Any]:
    data = info.records.to_bytes()
    aborted = info.aborted_transactions
    return {
        "offset": info.fetch_offset_metadata.message_offset,
        "segment_base": info.fetch_offset_metadata.segment_base_offset,
        "position": info.fetch_offset_metadata.relative_position_in_segment,
        "first_entry_incomplete": info.first_entry_incomplete,
        "size": info.records.size,
        "sha256": hashlib.sha256(data).hexdigest(),
        "batches": [[_base_offset(data, header), header.last_offset] for header in info.records.batches()],
        "aborted": None if aborted is None else [[a.producer_id, a.first_offset] for a in aborted],
    }


def _base_offset(data: bytes, header: Any) -> int:
    """The first offset of a batch: inside the payload, for a compressed batch of an old format."""
    if header.magic >= 2 or not header.is_compressed:
        return int(header.base_offset)
    return legacy.base_offset(data[header.position : header.position + header.size], header, at=0)


def segments(log: UnifiedLog) -> list[dict[str, Any]]:
    shown = []
    for segment in log.log_segments():
        offset_index, time_index = segment.offset_index, segment.time_index
        last_time = time_index.last_entry
        latest = segment.max_timestamp_and_offset_so_far
        shown.append(
            {
                "base": segment.base_offset,
                "size": segment.size,
                "index_entries": offset_index.entries,
                "index_last_offset": offset_index.last_offset,
                "index_max_entries": offset_index.max_entries,
                "time_entries": time_index.entries,
                "time_last_ts": last_time.timestamp,
                "time_last_offset": last_time.offset,
                "max_ts": latest.timestamp,
                "offset_of_max_ts": latest.offset,
                "first_batch_ts": segment.first_batch_timestamp,
                "next_offset": segment.read_next_offset(),
            }
        )
    return shown


def producers(log: UnifiedLog) -> list[dict[str, Any]]:
    return [
        {
            "pid": entry.producer_id,
            "epoch": entry.producer_epoch,
            "coordinator_epoch": entry.coordinator_epoch,
            "last_ts": entry.last_timestamp,
            "last_offset": entry.last_data_offset,
            "txn_first": entry.current_txn_first_offset,
            "batches": [
                [batch.first_seq, batch.last_seq, batch.first_offset, batch.last_offset, batch.timestamp]
                for batch in entry.batch_metadata
            ],
        }
        for _, entry in sorted(log.active_producers.items())
    ]
