"""Which logs there are: the current and the future one of each partition, in the order of Kafka's maps.

Beside the maps stand the logs of each topic and of each directory, so that neither is found by a walk over all.
Look-ups take no lock; `guard` is held for an instant by whoever changes or walks the maps.  Knows nothing of disks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from kafkalog._native.codec.java_hash import AnyRefMap, JavaConcurrentHashMap, JavaHashMap, topic_partition_hash
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.unified_log import UnifiedLog

Logs = JavaHashMap[TopicPartition, UnifiedLog]


class LogRegistry:
    """Thread-safe."""

    def __init__(self, *, future_counts: bool = True) -> None:
        """`future_counts`: which of two logs of a partition `in_dir` answers, as Kafka's does."""
        self._future_counts = future_counts
        self.guard = threading.RLock()
        self._current: Logs = JavaConcurrentHashMap(topic_partition_hash)
        self._future: Logs = JavaConcurrentHashMap(topic_partition_hash)
        self._by_topic: dict[str, dict[TopicPartition, UnifiedLog]] = {}  # current ones
        self._by_dir: dict[str, set[UnifiedLog]] = {}
        self.changes = 0  # another number: there are other logs, perhaps
        self.topics_made = 0  # how many topics have got their first log so far

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
            if previous is not None and previous is not log:
                self._by_dir.get(previous.parent_dir, set()).discard(previous)
            self._index(log, is_future)
            return previous

    def _index(self, log: UnifiedLog, is_future: bool) -> None:
        """Each step may be done twice: an interrupt may come between two, and then all are."""
        self._by_dir.setdefault(log.parent_dir, set()).add(log)
        if not is_future:
            topic = log.topic_partition.topic
            of = self._by_topic.get(topic)
            if of is None:
                of = self._by_topic[topic] = {}
                self.topics_made += 1
            of[log.topic_partition] = log
        self.changes += 1

    def remove(self, log: UnifiedLog) -> None:
        """Takes a log out, wherever it is; no other one of its partition."""
        with self.guard:
            self._remove(log)

    def _remove(self, log: UnifiedLog) -> None:
        self.changes += 1
        self._by_dir.get(log.parent_dir, set()).discard(log)
        of = self._by_topic.get(log.topic_partition.topic)
        if of is not None:
            if of.get(log.topic_partition) is log:
                del of[log.topic_partition]
            if not of:
                self._by_topic.pop(log.topic_partition.topic, None)
        for logs in (self._current, self._future):
            if logs.get(log.topic_partition) is log:
                logs.pop(log.topic_partition, None)

    def promote(self, future: UnifiedLog) -> None:
        """The future log becomes the current one."""
        with self.guard:
            self._future.pop(future.topic_partition, None)
            self.put(future)

    def all_of(self, log_dir: str) -> list[UnifiedLog]:
        """All logs of a directory."""
        return [log for log in self.all_logs() if log.parent_dir == log_dir]

    def of_topic(self, topic: str) -> list[UnifiedLog]:
        """The current logs of a topic, in the order in which they came."""
        with self.guard:
            return list(self._by_topic.get(topic, {}).values())

    def futures_of(self, topic: str) -> list[UnifiedLog]:
        """The future logs of a topic."""
        with self.guard:
            return [log for log in self._future.values() if log.topic_partition.topic == topic] if self._future else []

    def counts_by_dir(self) -> dict[str, int]:
        """How many logs, current and future ones, each directory has."""
        with self.guard:
            return {log_dir: len(logs) for log_dir, logs in self._by_dir.items()}

    def remove_all(self, logs: Iterable[UnifiedLog]) -> None:
        for log in logs:
            self.remove(log)

    def current_logs(self) -> list[UnifiedLog]:
        with self.guard:
            return self._current.values()

    def all_logs(self) -> list[UnifiedLog]:
        """Current and future ones."""
        with self.guard:
            return [*self._current.values(), *self._future.values()]

    def in_dir(self, log_dir: str) -> Logs:
        """Those of a directory by partition (LogManager.logsInDir)."""
        found: Logs = JavaHashMap(topic_partition_hash)
        of = self.all_of(log_dir)
        for log in of if self._future_counts else reversed(of):
            found[log.topic_partition] = log
        return found

    def high_watermarks_in_dir(self, log_dir: str) -> AnyRefMap[TopicPartition, int]:
        """As ReplicaManager.checkpointHighWatermarks collects them: partition by partition, the current log before the
        future one.  Its partitions are in a map like ours."""
        found: AnyRefMap[TopicPartition, int] = AnyRefMap(topic_partition_hash)
        logs = self.all_logs()
        futures = {log.topic_partition: log for log in logs if log.is_future}
        for log in logs:
            for each in (log, None if log.is_future else futures.get(log.topic_partition)):
                if each is not None and each.parent_dir == log_dir:
                    found[each.topic_partition] = each.high_watermark
        return found
