"""Which logs there are: the current and the future one of each partition, in the order of Kafka's maps.

Look-ups take no lock; `guard` is held for an instant by whoever changes or walks the maps.  Knows nothing of disks.
"""

from __future__ import annotations

import threading

from kafkalog._native.java_hash import AnyRefMap, JavaConcurrentHashMap, JavaHashMap, topic_partition_hash
from kafkalog.format.names import TopicPartition
from kafkalog.log.unified_log import UnifiedLog

Logs = JavaHashMap[TopicPartition, UnifiedLog]


class LogRegistry:
    """Thread-safe."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self._current: Logs = JavaConcurrentHashMap(topic_partition_hash)
        self._future: Logs = JavaConcurrentHashMap(topic_partition_hash)

    def disown(self) -> None:
        """In a forked child: whoever held the guard may be gone."""
        self.guard = threading.RLock()

    def _map(self, is_future: bool) -> Logs:
        return self._future if is_future else self._current

    def get(self, partition: TopicPartition, *, is_future: bool = False) -> UnifiedLog | None:
        return self._map(is_future).get(partition)

    def put(self, log: UnifiedLog, *, is_future: bool = False) -> UnifiedLog | None:
        """Puts a log in its place; the one that was there."""
        with self.guard:
            logs = self._map(is_future)
            previous = logs.get(log.topic_partition)
            logs[log.topic_partition] = log
            return previous

    def pop(self, partition: TopicPartition, *, is_future: bool = False) -> UnifiedLog | None:
        with self.guard:
            found: UnifiedLog | None = self._map(is_future).pop(partition, None)
            return found

    def promote(self, future: UnifiedLog) -> None:
        """The future log becomes the current one."""
        with self.guard:
            self._future.pop(future.topic_partition, None)
            self._current[future.topic_partition] = future

    def pop_all_of(self, log_dir: str) -> list[UnifiedLog]:
        """Takes out all logs of a directory."""
        with self.guard:
            gone = [log for log in self.all_logs() if log.parent_dir == log_dir]
            for log in gone:
                for is_future in (False, True):
                    if self.get(log.topic_partition, is_future=is_future) is log:
                        self.pop(log.topic_partition, is_future=is_future)
            return gone

    def current_logs(self) -> list[UnifiedLog]:
        with self.guard:
            return self._current.values()

    def all_logs(self) -> list[UnifiedLog]:
        """Current and future ones."""
        with self.guard:
            return [*self._current.values(), *self._future.values()]

    def in_dir(self, log_dir: str) -> Logs:
        """Those of a directory (LogManager.logsInDir); where a partition has both there, the future one counts."""
        found: Logs = JavaHashMap(topic_partition_hash)
        for log in self.all_logs():
            if log.parent_dir == log_dir:
                found[log.topic_partition] = log
        return found

    def high_watermarks_in_dir(self, log_dir: str) -> AnyRefMap[TopicPartition, int]:
        """As ReplicaManager.checkpointHighWatermarks collects them: partition by partition, the current log before the
        future one.  Its partitions are in a map like ours."""
        found: AnyRefMap[TopicPartition, int] = AnyRefMap(topic_partition_hash)
        with self.guard:
            logs = self.all_logs()
        futures = {log.topic_partition: log for log in logs if log.is_future}
        for log in logs:
            for each in (log, None if log.is_future else futures.get(log.topic_partition)):
                if each is not None and each.parent_dir == log_dir:
                    found[each.topic_partition] = each.high_watermark
        return found
