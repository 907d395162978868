"""The operations on one partition's log, on kafkalog."""

from __future__ import annotations

import hashlib
from typing import Any

from kafkalog._native.codec import batches as native
from kafkalog.config import LogConfig, ProducerStateManagerConfig
from kafkalog.engine.files import LogDirFailureChannel
from kafkalog.engine.format import control
from kafkalog.engine.format.records import records
from kafkalog.engine.log.context import PartitionContext, ProducerSettings
from kafkalog.engine.log.types import AppendOrigin, FetchIsolation, LogAppendInfo
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.log.verification import VerificationGuard
from kafkalog.errors import IllegalStateException, KafkalogError
from tests.conformance.batch_spec import batch_from_spec
from tests.conformance.replay_rendering import append_info, producers, read_info, segments
from tests.conformance.replay_session import Op, ScriptError, Session

Result = dict[str, Any]


# --- open and close ---------------------------------------------------------------------------------


def _open(session: Session, op: Op, result: Result) -> None:
    if "now_ms" in op:
        session.clock.advance_to(op["now_ms"])
    if session.find(op.handle) is not None:
        raise IllegalStateException("log is open already")
    session.manual_scheduler = op.get("scheduler", "auto") == "manual"
    config = op.get("config", {})
    if op.get("validate", False):
        LogConfig.validate(config)
    topic_id = op.get("topic_id")
    id_at_create = op.get("topic_id_at_create", True)
    producers = ProducerSettings(
        ProducerStateManagerConfig(
            producer_id_expiration_ms=op.get("producer_id_expiration_ms", 86_400_000),
            transaction_verification_enabled=op.get("transaction_verification", False),
        ),
        op.get("max_transaction_timeout_ms", 900_000),
        op.get("producer_id_expiration_check_interval_ms", 600_000),
    )
    context = PartitionContext(
        session.path(op["dir"]) / op["topic_partition"],
        LogConfig.from_props(None, config),
        producers,
        session.scheduler,
        session.clock,
        LogDirFailureChannel(),
        metrics=session.metrics,
    )
    log = UnifiedLog.create(
        context,
        op.get("log_start_offset", 0),
        op.get("recovery_point", 0),
        op.get("clean_shutdown", True),
        topic_id if id_at_create else None,
    )
    session.put(op.handle, log)
    if topic_id is not None and not id_at_create:
        log.assign_topic_id(topic_id)


def _close(session: Session, op: Op, result: Result) -> None:
    log = session.handle(op).log
    if op.get("broker_style", True):
        log.prepare_active_segment_for_close()
        log.flush(True)
    log.close()
    session.forget_handle(op)
    result["recovery_point_at_close"] = log.recovery_point
    result["log_start_at_close"] = log.log_start_offset


def _crash(session: Session, op: Op, result: Result) -> None:
    log = session.handle(op).log
    session.forget_handle(op)
    session.scheduler.clear()
    log.close_quietly()
    result["recovery_point_at_crash"] = log.recovery_point


def _delete_log(session: Session, op: Op, result: Result) -> None:
    log = session.handle(op).log
    log.delete()
    session.forget_handle(op)


def _rename_dir(session: Session, op: Op, result: Result) -> None:
    session.handle(op).log.rename_dir(op["name"], op.get("reinitialize", True))


# --- appends ----------------------------------------------------------------------------------------


def input_bytes(op: Op, result: Result) -> bytes:
    """The bytes to append. If an operation has both `raw_hex` and `batches`, both must give the same bytes."""
    raw = bytes.fromhex(op["raw_hex"]) if "raw_hex" in op else None
    if "batches" not in op:
        if raw is None:
            raise ScriptError(f"{op.name} needs batches or raw_hex")
        return raw
    built = b"".join(batch_from_spec(spec) for spec in op["batches"])
    if raw is None:
        result["input_hex"] = built.hex()
        return built
    if built != raw:
        uses_snappy = any(spec.get("codec") == "snappy" for spec in op["batches"])
        if not (uses_snappy and _same_records(built, raw)):
            raise ScriptError(f"batches and raw_hex differ; built {built.hex()}")
    return raw


def _same_records(left: bytes, right: bytes) -> bool:
    """Another implementation of snappy may write other bytes for the same records."""
    decoded = [[_decoded(data, header) for header in native.headers(data)[0]] for data in (left, right)]
    return decoded[0] == decoded[1]


def _decoded(data: bytes, header: native.BatchHeader) -> object:
    """A batch's records, or, where it is not meant to be read, its bytes."""
    try:
        found = records(data, header)
    except KafkalogError:
        return data[header.position : header.position + header.size]
    return [(record.offset, record.timestamp, record.key, record.value, tuple(record.headers)) for record in found]


def _put_append(log: UnifiedLog, mark: tuple[int, int], info: LogAppendInfo, result: Result) -> None:
    result["append"] = append_info(info)
    active = log.active_segment
    rolled = active.base_offset != mark[0]
    position = 0 if rolled else mark[1]
    data = active.log.read(position, active.size - position)
    result["written"] = {
        "rolled": rolled,
        "segment": active.base_offset,
        "pos": position,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def _mark(log: UnifiedLog) -> tuple[int, int]:
    """Where the log ends before an append, to find what the append wrote."""
    active = log.active_segment
    return active.base_offset, active.size


def _append_leader(session: Session, op: Op, result: Result) -> None:
    log = session.handle(op).log
    data = input_bytes(op, result)
    guard = VerificationGuard.SENTINEL
    if op.get("verification") == "guard":
        # As a broker does before it appends transactional records: for the producer of the first batch.
        first, _, _ = native.headers(data, max_batches=1)
        if first:
            supports_epoch_bump = op.get("supports_epoch_bump", True)
            guard = log.maybe_start_transaction_verification(
                first[0].producer_id, first[0].base_sequence, first[0].producer_epoch, supports_epoch_bump
            )
    origin = AppendOrigin(op.get("origin", "client"))
    mark = _mark(log)
    info = log.append_as_leader(data, op.get("leader_epoch", 0), origin, guard, op.get("transaction_version", -1))
    _put_append(log, mark, info, result)


def _append_follower(session: Session, op: Op, result: Result) -> None:
    log = session.handle(op).log
    data = input_bytes(op, result)
    mark = _mark(log)
    _put_append(log, mark, log.append_as_follower(data, op.get("leader_epoch", 0)), result)


_MARKERS = {"commit": control.ControlRecordType.COMMIT, "abort": control.ControlRecordType.ABORT}


def _append_end_txn_marker(session: Session, op: Op, result: Result) -> None:
    log = session.handle(op).log
    marker = control.EndTransactionMarker(_MARKERS[op["type"]], op.get("coordinator_epoch", 0))
    timestamp = op.get("ts", session.clock.milliseconds())
    data = control.end_txn_marker_batch(0, timestamp, -1, op["producer_id"], op["epoch"], marker)
    mark = _mark(log)
    info = log.append_as_leader(
        data,
        op.get("leader_epoch", 0),
        AppendOrigin.COORDINATOR,
        VerificationGuard.SENTINEL,
        op.get("transaction_version", 0),
    )
    _put_append(log, mark, info, result)


# --- reads and offsets ------------------------------------------------------------------------------


def _read(session: Session, op: Op, result: Result) -> None:
    log = session.handle(op).log
    isolation = FetchIsolation(op.get("isolation", "log_end"))
    found = log.read(op["offset"], op.get("max_bytes", 1 << 20), isolation, op.get("min_one_message", True))
    result["read"] = read_info(found)


def _update_high_watermark(session: Session, op: Op, result: Result) -> None:
    result["result"] = session.handle(op).log.update_high_watermark(op["hw"])


def _maybe_increment_high_watermark(session: Session, op: Op, result: Result) -> None:
    old = session.handle(op).log.maybe_increment_high_watermark(op["hw"])
    result["result"] = None if old is None else old.message_offset


def _increment_log_start_offset(session: Session, op: Op, result: Result) -> None:
    log = session.handle(op).log
    result["result"] = log.maybe_increment_log_start_offset(op["offset"])


def _offset_for_timestamp(session: Session, op: Op, result: Result) -> None:
    found = session.handle(op).log.fetch_offset_by_timestamp(op["ts"])
    result["result"] = (
        None
        if found is None
        else {"timestamp": found.timestamp, "offset": found.offset, "leader_epoch": found.leader_epoch}
    )


def _end_offset_for_epoch(session: Session, op: Op, result: Result) -> None:
    found = session.handle(op).log.end_offset_for_epoch(op["epoch"])
    result["result"] = None if found is None else {"epoch": found.epoch, "offset": found.offset}


def _epoch_cache(session: Session, op: Op, result: Result) -> None:
    entries = session.handle(op).log.epoch_entries
    result["result"] = [[entry.epoch, entry.start_offset] for entry in entries]


def _segments(session: Session, op: Op, result: Result) -> None:
    result["result"] = segments(session.handle(op).log)


def _producers(session: Session, op: Op, result: Result) -> None:
    result["result"] = producers(session.handle(op).log)


# --- changes ----------------------------------------------------------------------------------------


def _roll(session: Session, op: Op, result: Result) -> None:
    result["result"] = session.handle(op).log.roll(op.get("expected_next_offset", 0)).base_offset


def _flush(session: Session, op: Op, result: Result) -> None:
    session.handle(op).log.flush(op.get("force_active", False))


def _truncate_to(session: Session, op: Op, result: Result) -> None:
    result["result"] = session.handle(op).log.truncate_to(op["offset"])


def _truncate_fully_and_start_at(session: Session, op: Op, result: Result) -> None:
    session.handle(op).log.truncate_fully_and_start_at(op["offset"], op.get("log_start_offset"))


def _delete_old_segments(session: Session, op: Op, result: Result) -> None:
    result["result"] = session.handle(op).log.delete_old_segments()


def _assign_epoch(session: Session, op: Op, result: Result) -> None:
    session.handle(op).log.assign_epoch_start_offset(op["epoch"], op["offset"])


def _assign_topic_id(session: Session, op: Op, result: Result) -> None:
    session.handle(op).log.assign_topic_id(op["topic_id"])


def _update_config(session: Session, op: Op, result: Result) -> None:
    session.handle(op).log.update_config(LogConfig.from_props(None, op.get("config", {})))


def _take_producer_snapshot(session: Session, op: Op, result: Result) -> None:
    session.handle(op).log.take_producer_snapshot()


def _remove_expired_producers(session: Session, op: Op, result: Result) -> None:
    session.handle(op).log.remove_expired_producers(session.clock.milliseconds())


OPERATIONS = {
    "open": _open,
    "close": _close,
    "crash": _crash,
    "delete_log": _delete_log,
    "rename_dir": _rename_dir,
    "append_leader": _append_leader,
    "append_follower": _append_follower,
    "append_end_txn_marker": _append_end_txn_marker,
    "read": _read,
    "update_high_watermark": _update_high_watermark,
    "maybe_increment_high_watermark": _maybe_increment_high_watermark,
    "increment_log_start_offset": _increment_log_start_offset,
    "offset_for_timestamp": _offset_for_timestamp,
    "end_offset_for_epoch": _end_offset_for_epoch,
    "epoch_cache": _epoch_cache,
    "segments": _segments,
    "producers": _producers,
    "roll": _roll,
    "flush": _flush,
    "truncate_to": _truncate_to,
    "truncate_fully_and_start_at": _truncate_fully_and_start_at,
    "delete_old_segments": _delete_old_segments,
    "assign_epoch": _assign_epoch,
    "assign_topic_id": _assign_topic_id,
    "update_config": _update_config,
    "take_producer_snapshot": _take_producer_snapshot,
    "remove_expired_producers": _remove_expired_producers,
}
