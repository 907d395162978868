"""The operations on a log manager, and cleaner passes, on kafkalog."""

from __future__ import annotations

import os
import re
from typing import Any

from kafkalog.config import LogConfig, ProducerStateManagerConfig
from kafkalog.errors import CorruptCheckpointException, IllegalStateException
from kafkalog.format.names import TopicPartition, parse_topic_partition_name
from kafkalog.log.context import ProducerSettings
from kafkalog.manager.log_manager import LogManager
from kafkalog.manager.settings import ManagerSettings
from kafkalog.manager.topic_configs import FixedTopicConfigs
from tests.conformance.replay_files import RuntimeException
from tests.conformance.replay_rendering import state
from tests.conformance.replay_session import Op, Session

Result = dict[str, Any]
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
    )
    try:
        manager = LogManager(
            [session.path(each) for each in op["dirs"]],
            settings,
            topic_configs=FixedTopicConfigs(op.get("topic_configs", {})),
            scheduler=session.scheduler,
            clock=session.clock,
            bare=True,
        )
    except CorruptCheckpointException as error:  # of a meta.properties that does not parse
        raise RuntimeException(str(error)) from error
    try:
        manager.startup()
    except BaseException:
        session.scheduler.clear()
        raise
    session.manager = manager
    loaded = {os.path.basename(log.dir): log for log in manager.all_logs()}
    result["loaded"] = {name: state(loaded[name]) for name in sorted(loaded)}


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
    removed = _manager(session).async_delete(_partition(op))
    result["renamed_to"] = None
    if removed is not None:
        session.forget(removed)
        result["renamed_to"] = RANDOM_PART.sub(".<uuid>-", os.path.basename(removed.dir), count=1)


def _truncate(session: Session, op: Op, result: Result) -> None:
    _manager(session).truncate_to({_partition(op): op["offset"]})


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


def _not_built(session: Session, op: Op, result: Result) -> None:
    raise NotImplementedError(f"{op.name} is not built yet")


OPERATIONS = {
    "clean": _not_built,
    "lm_open": _open,
    "lm_get": _get,
    "lm_checkpoint": _checkpoint,
    "lm_delete": _delete,
    "lm_truncate": _truncate,
    "lm_shutdown": _shutdown,
    "lm_crash": _crash,
}
