"""Twenty faults of one line, over the whole package: each breaks a rule that `make quick` has to know.

The text `right` occurs once in its file; each fault was seen to change the package's behaviour.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    rule: str  # the rule that no longer holds
    file: str  # below kafkalog/
    right: str
    wrong: str
    near: str  # tests/unit/test_*.py that run first


FAULTS = [
    Fault(
        "a segment may be as large as segment.bytes",
        "_native/state/tail.pyx",
        "if self.log.size > max_segment_bytes - messages_bytes:",
        "if self.log.size >= max_segment_bytes - messages_bytes:",
        "segment_log log_unified segment_indexes",
    ),
    Fault(
        "an index entry stands for the batch that begins at its position",
        "_native/codec/batches.pyx",
        "error = self.append_entries(row.last_offset, position)",
        "error = self.append_entries(row.last_offset, position + 1)",
        "native_batches segment_log segment_indexes",
    ),
    Fault(
        "all bytes of a batch stand below its checksum",
        "_native/codec/batches.pyx",
        "if check_crc and checksum(p, magic, size) != rows[filled].crc:",
        "if check_crc and (checksum(p, magic, size) ^ rows[filled].crc) & 0xFFFF:",
        "native_batches scan_ahead records",
    ),
    Fault(
        "a producer's five last batches are remembered, the oldest goes first",
        "_native/state/producers.pyx",
        "self.oldest = (self.oldest + 1) % REMEMBERED",
        "self.oldest = (self.oldest + 2) % REMEMBERED",
        "native_producers producers",
    ),
    Fault(
        "records without a key stay with a partition for batch.size bytes",
        "_native/codec/partitioner.pyx",
        "if self.filled >= STICKY_BYTES_ or (",
        "if self.filled > STICKY_BYTES_ or (",
        "partitioner",
    ),
    Fault(
        "a batch whose CRC is wrong is not appended",
        "engine/log/append.py",
        "if not crc_matches(data, batch.position, size):",
        "if not crc_matches(data, batch.position, size) and size < 0:",
        "log_unified validator torn_offsets",
    ),
    Fault(
        "the high watermark moves with each acknowledged record",
        "engine/log/offsets.py",
        "if old[0] < new[0] or (",
        "if old[0] + 1 < new[0] or (",
        "log_unified",
    ),
    Fault(
        "who reads committed records stops at the first open transaction",
        "engine/log/offsets.py",
        "return unstable[0] if unstable is not None and unstable[0] < high_watermark else high_watermark",
        "return high_watermark",
        "log_unified topics_transactions",
    ),
    Fault(
        "a segment stays until it is older than retention.ms",
        "engine/log/retention_rule.py",
        "to_int64(now_ms - piece.largest_timestamp) > retention_ms",
        "to_int64(now_ms - piece.largest_timestamp) >= retention_ms",
        "log_retention retention_told log_manager",
    ),
    Fault(
        "retention.bytes may be kept exactly",
        "engine/log/retention_rule.py",
        "if excess_bytes - piece.size < 0:",
        "if excess_bytes - piece.size <= 0:",
        "log_retention retention_told",
    ),
    Fault(
        "a producer's repeated batch is a duplicate",
        "engine/log/producer_append.py",
        "return None if found is None else BatchMetadata(*found)",
        "return None",
        "producers native_producers log_unified",
    ),
    Fault(
        "a sequence number goes back to 0 only behind the largest",
        "engine/log/producer_append.py",
        "(next_seq == 0 and last_seq == INT_MAX)",
        "next_seq == 0",
        "producers",
    ),
    Fault(
        "a batch of a new leader's brings its epoch into the checkpoint",
        "engine/log/append.py",
        "log.leader_epoch_cache.assign(header.leader_epoch, header.base_offset)",
        "pass",
        "log_unified leader_epochs",
    ),
    Fault(
        "recovery cuts what is not whole",
        "engine/segment/log_segment.py",
        "        self.log.truncate_to(valid_bytes)\n",
        "        self.log.truncate_to(self.log.size)\n",
        "segment_log log_loader log_unified",
    ),
    Fault(
        "an aborted transaction is in the index from its first record on",
        "engine/segment/transaction_index.py",
        "completed_txn.producer_id, completed_txn.first_offset, completed_txn.last_offset, last_stable_offset",
        "completed_txn.producer_id, completed_txn.first_offset + 1, completed_txn.last_offset, last_stable_offset",
        "topics_transactions cleaned_transactions producers",
    ),
    Fault(
        "the lock of a directory is one of the system's",
        "engine/files/lock.py",
        "                _set_lock(fd)\n                found",
        "                found",
        "files_lock",
    ),
    Fault(
        "the marker of a clean shutdown is written behind the checkpoints that it vouches for",
        "engine/host/ending.py",
        "if not written or directories.failure_channel.has_offline_log_dir(log_dir):",
        "if directories.failure_channel.has_offline_log_dir(log_dir):",
        "full_disk",
    ),
    Fault(
        "the cleaner keeps a tombstone for delete.retention.ms",
        "_native/codec/survivors.pyx",
        "cdef bint tombstones_stay = not row.attributes & DELETE_HORIZON_FLAG or self.now_ms < row.base_timestamp",
        "cdef bint tombstones_stay = row.attributes & DELETE_HORIZON_FLAG and self.now_ms < row.base_timestamp",
        "survivors cleaner_filter",
    ),
    Fault(
        "a query's offset is that of the next record",
        "spark/offsets.py",
        "TopicPartition(topic, int(partition)): int(offset)",
        "TopicPartition(topic, int(partition)): int(offset) + 1",
        "spark_offsets",
    ),
    Fault(
        "verify ends with 1 where it found something",
        "cli/verify.py",
        "return CLEAN if report.ok else FINDINGS",
        "return CLEAN",
        "cli cli_json directory_rules",
    ),
]
