"""The fast path for a client's ordinary batch or record: `append` and `append_row`, chosen only here.

The short way checks such a batch in one native call. If no other step of the append has anything to change, the same
call writes it. The long way leaves every batch to `append.py`, whose steps give the same bytes and results; tests
select it to compare the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalog.engine.format.batch import RECORD_BATCH_OVERHEAD
from kafkalog.engine.format.records import READ_BYTES_MAX, readable_payload
from kafkalog.engine.log.partition import PartitionState
from kafkalog.engine.log.types import LogAppendInfo, RecordValidationStats
from kafkalog.engine.log.validator import NO_STATS

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kafkalog._native.codec.encode import EncodedBatch
    from kafkalog._native.codec.validation import OrdinaryBatch

Admitted = tuple["OrdinaryBatch", RecordValidationStats]


def short_way(
    log: PartitionState, records: Buffer | EncodedBatch, leader_epoch: int
) -> LogAppendInfo | Admitted | None:
    """Returns a finished append's result, an admitted batch to write, or None for the general checks."""
    done = log.append_ordinary(records, leader_epoch, LogAppendInfo, NO_STATS)
    if done is None or isinstance(done, LogAppendInfo):
        return done
    if not done.is_compressed:
        return done, NO_STATS
    room = log.config.max_decompressed_message_bytes
    if not 0 <= done.record_bytes <= min(room, READ_BYTES_MAX):  # records of our encoder are known
        payload, failure = readable_payload(done.codec, done.payload)
        if failure is not None or not done.check_payload(payload, room):
            return None  # the validator reports the error
    stats = RecordValidationStats(RECORD_BATCH_OVERHEAD + done.record_bytes)
    return log.commit_ordinary(done, leader_epoch, LogAppendInfo, stats) or (done, stats)


def long_way(log: PartitionState, records: Buffer | EncodedBatch, leader_epoch: int) -> LogAppendInfo | Admitted | None:
    """Treats no batch as an ordinary one."""
    return None


append = short_way


def append_row(log: PartitionState, row: tuple[Any, ...], batch_bytes: int) -> int:
    """Appends a record on the short way. Returns its offset; -1, with nothing done, if it needs `append`."""
    return log.append_ordinary_row(row, batch_bytes) if append is short_way else -1


def of_coordinator(
    log: PartitionState, records: Buffer | EncodedBatch, leader_epoch: int
) -> LogAppendInfo | OrdinaryBatch | None:
    """Appends a coordinator's plain batch without a producer, and returns the result, if the short way is chosen.

    Returns another plain batch, or a marker, if it may be appended unchanged."""
    if append is not short_way:
        return None
    done = log.append_ordinary(records, leader_epoch, LogAppendInfo, NO_STATS, False)
    return None if done is None or (not isinstance(done, LogAppendInfo) and done.is_compressed) else done
