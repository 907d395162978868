"""DescribeLogDirs and AlterReplicaLogDirs: where partitions are, and moves between the directories of this node.

A move copies the log while it is used and replaces it at the end; the request only begins it. The copy is shown as the
future replica, with its lag. Source: KafkaApis, ReplicaManager.describeLogDirs, alterReplicaLogDirs (4.4.0).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING

from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.processes import held_over_forks
from kafkalog.engine.files.usage import file_system
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.errors import KafkalogError
from kafkalog.server.refused import Refused, refusal_of
from kafkalog.server.security.acls import CLUSTER_NAME, AclOperation, ResourceType

if TYPE_CHECKING:
    from kafkalog.engine.format.messages import Values
    from kafkalog.engine.log.unified_log import UnifiedLog
    from kafkalog.server.api import Handler
    from kafkalog.server.broker import Broker
    from kafkalog.server.request import Request

UNKNOWN_BYTES = -1
KEY = "moves"


class Moves:
    """The moves that clients have asked for, and the threads that do them (num.replica.alter.log.dirs.threads)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        threads = broker.settings["num.replica.alter.log.dirs.threads"] or len(broker.home.log_dirs)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kafkalog-move")
        self._asked: dict[tuple[TopicPartition, str], Future[None]] = {}  # guarded by _lock
        self._lock = threading.Lock()
        broker.at_close.append(partial(self._pool.shutdown, wait=False, cancel_futures=True))

    def begin(self, partition: TopicPartition, target: str) -> None:
        """Moves a partition, soon.  Does nothing if that has been asked for before."""
        key = partition, target
        with self._lock:
            if key not in self._asked:
                self._asked[key] = self._pool.submit(self._move, key)

    def _move(self, key: tuple[TopicPartition, str]) -> None:
        try:
            self._broker.home.manager.move(*key)
        except KafkalogError as error:
            Lines("kafkalog.server").warning("the move of %s to %s has ended: %s", *key, error)
        finally:
            with self._lock:
                del self._asked[key]

    def wait(self) -> None:
        """Waits for the moves that were asked for."""
        with self._lock:
            asked = list(self._asked.values())
        wait(asked)


def moves_of(broker: Broker) -> Moves:
    """Returns the moves of a broker."""
    with _MAKING:
        found: Moves | None = broker.state.get(KEY)
        if found is None:
            found = broker.state[KEY] = Moves(broker)
        return found


_MAKING = threading.Lock()  # guards the creation of Moves
held_over_forks(_MAKING)


# --- DescribeLogDirs -------------------------------------------------------------------------------------


def handle_describe_log_dirs(broker: Broker, request: Request) -> Values:
    if not broker.authorizer.authorize(request, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return {"errorCode": Errors.CLUSTER_AUTHORIZATION_FAILED, "results": []}
    asked = request.body["topics"]
    wanted = None
    if asked is not None:
        wanted = {TopicPartition(each["topic"], number) for each in asked for number in each["partitions"]}
    manager = broker.home.manager
    by_dir: dict[str, list[UnifiedLog]] = {each: [] for each in manager.live_log_dirs}
    for log in manager.all_logs():
        if wanted is None or log.topic_partition in wanted:
            by_dir.setdefault(log.parent_dir, []).append(log)
    results = [_described(broker, log_dir, logs) for log_dir, logs in by_dir.items()]
    results += [
        {"errorCode": Errors.KAFKA_STORAGE_ERROR, "logDir": os.path.abspath(each), "topics": []}
        for each in manager.offline_log_dirs
    ]
    return {"errorCode": Errors.NONE, "results": results}


def _described(broker: Broker, log_dir: str, logs: Iterable[UnifiedLog]) -> Values:
    topics: dict[str, list[Values]] = {}
    for log in logs:
        place = log.topic_partition
        topics.setdefault(place.topic, []).append(
            {
                "partitionIndex": place.partition,
                "partitionSize": log.size,
                "offsetLag": _lag(broker, log),
                "isFutureKey": log.is_future,
            }
        )
    total, usable = _space(log_dir)
    listed = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
    return {
        "errorCode": Errors.NONE, "logDir": os.path.abspath(log_dir), "topics": listed,
        "totalBytes": total, "usableBytes": usable,
    }  # fmt: skip


def _lag(broker: Broker, log: UnifiedLog) -> int:
    """Returns how far a future replica is behind the current one; 0 for a current one."""
    if not log.is_future:
        return 0
    current = broker.home.manager.registry.get(log.topic_partition)
    return 0 if current is None else max(current.log_end_offset - log.log_end_offset, 0)


def _space(log_dir: str) -> tuple[int, int]:
    try:
        found = file_system(log_dir)
    except (OSError, AttributeError):  # Windows has no statvfs
        return UNKNOWN_BYTES, UNKNOWN_BYTES
    if found.size is None or found.free is None:
        return UNKNOWN_BYTES, UNKNOWN_BYTES
    return found.size, found.free


# --- AlterReplicaLogDirs ---------------------------------------------------------------------------------


def handle_alter_replica_log_dirs(broker: Broker, request: Request) -> Values:
    is_allowed = broker.authorizer.authorize(request, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    topics: dict[str, list[Values]] = {}
    for each in request.body["dirs"]:
        for topic in each["topics"]:
            for number in topic["partitions"]:
                code = Errors.CLUSTER_AUTHORIZATION_FAILED
                if is_allowed:
                    code = _begin_move(broker, TopicPartition(topic["name"], number), each["path"])
                topics.setdefault(topic["name"], []).append({"partitionIndex": number, "errorCode": code})
    return {"results": [{"topicName": name, "partitions": rows} for name, rows in topics.items()]}


def _begin_move(broker: Broker, partition: TopicPartition, path: str) -> Errors:
    home = broker.home
    try:
        target = _directory(broker, path)
        info = home.catalog.info(partition.topic)
        if info is None or not 0 <= partition.partition < info.partitions:
            raise Refused(Errors.UNKNOWN_TOPIC_OR_PARTITION)
        log = home.manager.get_log(partition)
        if log is None:
            raise Refused(Errors.KAFKA_STORAGE_ERROR)
    except (Refused, KafkalogError) as error:
        return refusal_of(error)[0]
    if os.path.abspath(log.parent_dir) != os.path.abspath(target):
        moves_of(broker).begin(partition, target)
    return Errors.NONE


def _directory(broker: Broker, path: str) -> str:
    """Returns the directory of this node that a client names. Refused if there is none, or if it is offline."""
    manager = broker.home.manager
    wanted = os.path.normpath(path)
    if not os.path.isabs(path):
        raise Refused(Errors.LOG_DIR_NOT_FOUND)
    for each in manager.live_log_dirs:
        if os.path.abspath(each) == wanted:
            return each
    is_offline = any(os.path.abspath(each) == wanted for each in manager.offline_log_dirs)
    raise Refused(Errors.KAFKA_STORAGE_ERROR if is_offline else Errors.LOG_DIR_NOT_FOUND)


BLOCKING = {ApiKeys.DESCRIBE_LOG_DIRS, ApiKeys.ALTER_REPLICA_LOG_DIRS}
HANDLERS: dict[int, Handler] = {
    ApiKeys.DESCRIBE_LOG_DIRS: handle_describe_log_dirs,
    ApiKeys.ALTER_REPLICA_LOG_DIRS: handle_alter_replica_log_dirs,
}
