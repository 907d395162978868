"""The operations on a log manager, and cleaner passes, on kafkalog.

They extend the format, for moves between directories:

- `lm_future` {topic_partition, dir, max_batches (all)} creates the future log in `dir` (as the preferred directory).
  It truncates the future log if it does not fit the current one, and copies batches to it.  It sets the current log's
  high watermark and start, and opens the future log as handle `log`.
- `lm_move` {topic_partition, dir} does the same and runs the tasks that are due.  Then the future log replaces the
  partition's log and its handle.
- `lm_truncate` and `lm_delete` accept `future` (false).
- `lm_open` with the field `cleaner` {dedupe_buffer, load_factor, io_buffer, max_message} gives the manager a cleaner.
- `lm_clean` {turns (1)} runs so many turns of a cleaner thread that is never started.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

from kafkalog._limits import INT_MAX
from kafkalog.config import CleanerConfig, LogConfig, ProducerStateManagerConfig
from kafkalog.engine.cleaner.cleaner import Cleaner, CleanerSettings
from kafkalog.engine.cleaner.cleaner_thread import CleanerThread
from kafkalog.engine.cleaner.log_cleaner import LogCleaner
from kafkalog.engine.cleaner.mapping import offset_map_of
from kafkalog.engine.cleaner.stats import CleanerStats
from kafkalog.engine.cleaner.to_clean import cleanable_offsets, next_to_clean
from kafkalog.engine.format.names import TopicPartition, parse_topic_partition_name
from kafkalog.engine.host.jobs import Job, Jobs, Outcome
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.host.topic_configs import FixedTopicConfigs
from kafkalog.engine.log.context import ProducerSettings
from kafkalog.engine.log.types import FetchIsolation
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import (
    CorruptCheckpointException,
    IllegalStateException,
    KafkalogError,
    KafkaStorageException,
)
from tests.conformance import census
from tests.conformance.kafkas_manager import KafkasManager
from tests.conformance.replay_files import RuntimeException
from tests.conformance.replay_rendering import state
from tests.conformance.replay_session import Op, Session

Result = dict[str, Any]
BYTES_PER_KEY = 24
RANDOM_PART = re.compile(r"\.[0-9a-f]{32}-")


def _open(session: Session, op: Op, result: Result) -> None:
    if session.manager is not None:
        raise IllegalStateException("log manager is open already")
    if "now_ms" in op:
        session.clock.advance_to(op["now_ms"])
    settings = ManagerSettings(
        LogConfig.from_props(None, op.get("config", {})),
        recovery_threads=1,
        retention_check_ms=op.get("retention_check_ms", 300_000),
        recovery_checkpoint_ms=op.get("flush_recovery_checkpoint_ms", 60_000),
        start_checkpoint_ms=op.get("flush_start_checkpoint_ms", 60_000),
        initial_task_delay_ms=op.get("initial_task_delay_ms", 30_000),
        producers=ProducerSettings(ProducerStateManagerConfig(86_400_000, False)),
        cleaner=_cleaner_config(op.get("cleaner")),
    )
    try:
        manager = KafkasManager(
            [session.path(each) for each in op["dirs"]],
            settings,
            topic_configs=FixedTopicConfigs(op.get("topic_configs", {})),
            scheduler=session.scheduler,
            clock=session.clock,
        )
    except CorruptCheckpointException as error:  # a meta.properties that does not parse
        raise RuntimeException(str(error)) from error
    try:
        with mock.patch.object(Jobs, "run", _one_after_another), mock.patch.object(LogCleaner, "startup"):
            manager.startup()
    except BaseException:
        session.scheduler.clear()
        raise
    session.manager = manager
    loaded = {os.path.basename(log.dir): log for log in manager.all_logs()}
    result["loaded"] = {name: state(loaded[name]) for name in sorted(loaded)}


def _cleaner_config(fields: Mapping[str, Any] | None) -> CleanerConfig:
    if fields is None:
        return CleanerConfig(enable_cleaner=False)
    return CleanerConfig(
        1,
        fields.get("dedupe_buffer", 2 << 20),
        fields.get("load_factor", 0.9),
        fields.get("io_buffer", 1 << 17),
        fields.get("max_message", 1 << 20),
    )


_run = Jobs.run


def _one_after_another(
    own: Jobs, prefix: str, jobs: Mapping[str, Sequence[Job]], threads: Mapping[str, int]
) -> dict[str, list[Outcome]]:
    """The directories one after the other, as in the driver: the order of several decides the order of the maps."""
    return {directory: _run(own, prefix, {directory: of}, threads)[directory] for directory, of in jobs.items()}


def _manager(session: Session) -> LogManager:
    if session.manager is None:
        raise IllegalStateException("no open log manager")
    return session.manager


def _partition(op: Op) -> TopicPartition:
    return parse_topic_partition_name(op["topic_partition"])


def _get(session: Session, op: Op, result: Result) -> None:
    manager = _manager(session)
    log = manager.get_or_create_log(_partition(op), is_new=op.get("is_new", False), topic_id=op.get("topic_id"))
    session.put(op.handle, log)


def _checkpoint(session: Session, op: Op, result: Result) -> None:
    manager = _manager(session)
    manager.checkpoint_recovery_points()
    manager.checkpoint_log_starts()


def _delete(session: Session, op: Op, result: Result) -> None:
    removed = _manager(session).async_delete(_partition(op), is_future=op.get("future", False))
    result["renamed_to"] = None
    if removed is not None:
        session.forget(removed)
        result["renamed_to"] = RANDOM_PART.sub(".<uuid>-", os.path.basename(removed.dir), count=1)


def _truncate(session: Session, op: Op, result: Result) -> None:
    _manager(session).truncate_to({_partition(op): op["offset"]}, is_future=op.get("future", False))


def _filled(session: Session, op: Op) -> UnifiedLog:
    """Makes the partition's future log in a directory, and copies to it what it has not got."""
    manager, partition = _manager(session), _partition(op)
    current = manager.get_log(partition)
    if current is None:
        raise KafkaStorageException(f"no log of {partition}")
    manager.maybe_update_preferred_log_dir(partition, str(session.path(op["dir"])))
    future = manager.get_or_create_log(partition, is_future=True, topic_id=current.topic_id)
    if future.log_end_offset < current.log_start_offset:
        manager.truncate_fully_and_start_at(partition, current.log_start_offset, is_future=True)
    elif future.log_end_offset > current.log_end_offset:
        manager.truncate_to({partition: current.log_end_offset}, is_future=True)
    budget = op.get("max_batches", INT_MAX)
    while budget > 0 and future.log_end_offset < current.log_end_offset:
        budget -= 1
        end = future.log_end_offset
        future.append_as_follower(current.read(end, 1, FetchIsolation.LOG_END, True).records.to_bytes(), INT_MAX)
        if future.log_end_offset == end:
            raise IllegalStateException(f"nothing was copied at {end}")
    future.update_high_watermark(current.high_watermark)
    future.maybe_increment_log_start_offset(current.log_start_offset)
    return future


def _future(session: Session, op: Op, result: Result) -> None:
    session.put(op.handle, _filled(session, op))


def _move(session: Session, op: Op, result: Result) -> None:
    """The future log, filled, takes the partition's place."""
    future = _filled(session, op)
    session.scheduler.tick()
    source = _manager(session).get_log(_partition(op))
    assert source is not None
    _manager(session).replace_current_with_future_log(_partition(op))
    session.forget(source)
    session.put(op.handle, future)


def _compacted(session: Session) -> list[UnifiedLog]:
    return [log for log in _manager(session).all_logs() if log.config.compact and not log.is_future]


def _clean_turns(session: Session, op: Op, result: Result) -> None:
    """Does the work of a cleaner thread, without its pauses."""
    cleaner = _manager(session).cleaner
    if cleaner is None:
        raise IllegalStateException("this manager has no log cleaner")
    for log_dir in _manager(session).live_log_dirs:
        if _manager(session).failure_channel.has_offline_log_dir(log_dir):
            raise KafkaStorageException(f"{log_dir} is offline")  # a broker takes it away first
    if session.cleaner_thread is None or session.cleaner_thread[0] is not cleaner:
        failure_channel = _manager(session).failure_channel
        thread = cleaner.thread_class(0, cleaner.config, cleaner.manager, cleaner.throttler, failure_channel)
        session.cleaner_thread = cleaner, thread
    thread = session.cleaner_thread[1]
    result["passes"], result["met"] = [], []
    marked_before = len(cleaner.manager.uncleanable_partitions())
    for _ in range(op.get("turns", 1)):
        before = {log: census.look(log) for log in _compacted(session)}
        checkpoints = cleaner.manager.all_cleaner_checkpoints()
        stats = _turn(thread)
        result["passes"].append({} if stats is None else _counted(stats))
        if stats is not None:
            ends = cleaner.manager.all_cleaner_checkpoints()
            cleaned = [log for log in before if ends.get(log.topic_partition) != checkpoints.get(log.topic_partition)]
            now_ms = session.clock.milliseconds()
            found = [_met(before[log], log, stats, now_ms, ends[log.topic_partition]) for log in cleaned[:1]]
            slots = cleaner.config.dedupe_buffer_size // BYTES_PER_KEY
            is_full = round(stats.buffer_utilization * slots) >= int(slots * cleaner.config.dedupe_buffer_load_factor)
            result["met"].append((found or [{}])[0] | ({"full": 1} if is_full else {}))
        cleaner.manager.maintain_uncleanable_partitions()
    if len(cleaner.manager.uncleanable_partitions()) > marked_before:
        result["met"].append({"damage": 1})
    marked: dict[str, list[str]] = {}
    for why in cleaner.manager.uncleanable_partitions():
        marked.setdefault(os.path.basename(why.log_dir), []).append(str(why.partition))
    result["uncleanable"] = {name: sorted(found) for name, found in marked.items()}


def _turn(thread: CleanerThread) -> CleanerStats | None:
    """The thread's statistics, if it came to the end of a pass."""
    thread.last_stats = None
    thread.clean_filthiest_log()
    return thread.last_stats


def _met(before: census.Look, log: UnifiedLog, stats: CleanerStats, now_ms: int, end_offset: int) -> dict[str, int]:
    found = census.met(before, census.look(log), now_ms)
    found["dropped"] = max(0, stats.messages_read - stats.messages_written)
    found["partly"] = sum(each.base_offset < end_offset <= each.last_offset for each in before.headers)
    return {name: number for name, number in found.items() if number > 0}


def _counted(stats: CleanerStats) -> Result:
    return {
        "map_messages_read": stats.map_messages_read,
        "bytes_read": stats.bytes_read,
        "bytes_written": stats.bytes_written,
        "messages_read": stats.messages_read,
        "messages_written": stats.messages_written,
        "invalid_messages_read": stats.invalid_messages_read,
    }


def _shutdown(session: Session, op: Op, result: Result) -> None:
    manager = _manager(session)
    logs = manager.all_logs()
    session.manager = None
    manager.shutdown(op.get("broker_epoch", -1))
    for log in logs:
        session.forget(log)


def _crash(session: Session, op: Op, result: Result) -> None:
    manager = _manager(session)
    session.scheduler.clear()
    for log in manager.all_logs():
        session.forget(log)
    manager.abandon()
    session.manager = None


def _clean(session: Session, op: Op, result: Result) -> None:
    """One cleaner pass over a log, with the range that a manager would choose."""
    handle = session.handle(op)
    log = handle.log
    if "last_clean_offset" in op.fields:
        handle.last_clean_offset = op.get("last_clean_offset")
    now_ms = session.clock.milliseconds()
    uncleanable = cleanable_offsets(log, handle.last_clean_offset, now_ms).first_uncleanable_dirty_offset
    cleanable = next_to_clean(log, handle.last_clean_offset, now_ms)
    offset_map = offset_map_of(op.get("buffer_bytes", 1 << 20))
    io_buffer = op.get("io_buffer", 1 << 16)
    settings = CleanerSettings(io_buffer, op.get("max_io_buffer", 4 * io_buffer), op.get("load_factor", 0.9))
    before = census.look(log)
    try:
        end_offset, stats = Cleaner(offset_map, settings, session.clock).clean(cleanable)
    except KafkalogError:
        result["met"] = [{"damage": 1}]
        raise
    result["met"] = [_met(before, log, stats, now_ms, end_offset)]
    if end_offset < cleanable.first_uncleanable_offset and stats.map_messages_read:
        result["met"][0]["full"] = 1
    if end_offset > cleanable.first_dirty_offset:
        handle.last_clean_offset = end_offset
    ratio = cleanable.cleanable_ratio
    result["clean"] = {
        "first_dirty": cleanable.first_dirty_offset,
        "first_uncleanable": uncleanable,
        "clean_bytes": cleanable.clean_bytes,
        "cleanable_bytes": cleanable.cleanable_bytes,
        "total_bytes": cleanable.total_bytes,
        "cleanable_ratio": "NaN" if math.isnan(ratio) else ratio,
        "would_be_picked": cleanable.is_worth_it,
        "end_offset": end_offset,
        "map_slots": offset_map.slots,
        "map_size": offset_map.size,
        **_counted(stats),
    }


OPERATIONS = {
    "clean": _clean,
    "lm_open": _open,
    "lm_get": _get,
    "lm_checkpoint": _checkpoint,
    "lm_delete": _delete,
    "lm_truncate": _truncate,
    "lm_future": _future,
    "lm_move": _move,
    "lm_clean": _clean_turns,
    "lm_shutdown": _shutdown,
    "lm_crash": _crash,
}
