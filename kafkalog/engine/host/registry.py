"""The logs of a manager: the current and the future log of each partition, in the order of Kafka's maps.

Also has the partitions whose log is not loaded ("waiting"): it is loaded at the first request.
Further maps hold the logs by topic and by directory, so that a look-up does not walk over all logs.  Look-ups acquire
no lock.  `guard` is held for a moment to change the maps or to walk over them.  Knows nothing of disks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from kafkalog._native.codec.java_hash import AnyRefMap, JavaConcurrentHashMap, JavaHashMap, topic_partition_hash
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.unified_log import UnifiedLog

Logs = JavaHashMap[TopicPartition, UnifiedLog]


class WaitingLog(NamedTuple):
    """A partition whose log is not open: its directory, and its lines in the checkpoints; None means no line.

    `clean`: whether the last close of the log was clean.
    """

    log_dir: str
    folder: str
    recovery_point: int | None
    log_start_offset: int | None
    high_watermark: int | None
    clean: bool


class LogRegistry:
    """Thread-safe."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self._current: Logs = JavaConcurrentHashMap(topic_partition_hash)
        self._future: Logs = JavaConcurrentHashMap(topic_partition_hash)
        self._by_topic: dict[str, dict[TopicPartition, UnifiedLog]] = {}  # current ones
        self._by_dir: dict[str, set[UnifiedLog]] = {}
        self._waiting: dict[TopicPartition, WaitingLog] = {}
        self._waiting_futures: dict[TopicPartition, WaitingLog] = {}
        self._waiting_by_topic: dict[str, dict[TopicPartition, WaitingLog]] = {}  # current ones
        self.changes = 0  # a version: another number means that the set of logs may have changed
        self.topics_made = 0  # how many topics have got their first log so far

    def disown(self) -> None:
        """Resets the lock in a forked child: the thread that held it may not exist there."""
        self.guard = threading.RLock()

    def _map(self, is_future: bool) -> Logs:
        return self._future if is_future else self._current

    def get(self, partition: TopicPartition, *, is_future: bool = False) -> UnifiedLog | None:
        return self._map(is_future).get(partition)

    def put(self, log: UnifiedLog, *, is_future: bool = False) -> UnifiedLog | None:
        """Puts a log in its place.  Returns the log that was there before."""
        with self.guard:
            logs = self._map(is_future)
            previous = logs.get(log.topic_partition)
            logs[log.topic_partition] = log
            if previous is not None and previous is not log:
                self._by_dir.get(previous.parent_dir, set()).discard(previous)
            self._index(log, is_future)
            return previous

    def _index(self, log: UnifiedLog, is_future: bool) -> None:
        """Adds a log to the indexes.  May run twice: an interrupt between two steps makes the caller repeat all."""
        self._by_dir.setdefault(log.parent_dir, set()).add(log)
        if not is_future:
            topic = log.topic_partition.topic
            of = self._by_topic.get(topic)
            if of is None:
                of = self._by_topic[topic] = {}
                self.topics_made += 1
            of[log.topic_partition] = log
        self.changes += 1

    # --- logs that are not loaded --------------------------------------------------------------------

    def waiting(self, partition: TopicPartition, *, is_future: bool = False) -> WaitingLog | None:
        """Returns a partition's entry if its log is not open."""
        return (self._waiting_futures if is_future else self._waiting).get(partition)

    def let_wait(self, partition: TopicPartition, waiting: WaitingLog, *, is_future: bool = False) -> None:
        """Registers a partition whose log is loaded at the first request."""
        with self.guard:
            (self._waiting_futures if is_future else self._waiting)[partition] = waiting
            if not is_future:
                self._waiting_by_topic.setdefault(partition.topic, {})[partition] = waiting
            self.changes += 1

    def forget_waiting(self, partition: TopicPartition, *, is_future: bool = False) -> None:
        """Drops a partition's entry: its log is open, or its directory is deleted."""
        with self.guard:
            (self._waiting_futures if is_future else self._waiting).pop(partition, None)
            of = self._waiting_by_topic.get(partition.topic)
            if of is not None and not is_future:
                of.pop(partition, None)
                if not of:
                    self._waiting_by_topic.pop(partition.topic, None)
            self.changes += 1

    def waiting_of(self, topic: str) -> dict[TopicPartition, WaitingLog]:
        """Returns the waiting partitions of a topic, without future ones."""
        with self.guard:
            return dict(self._waiting_by_topic.get(topic, {}))

    def waiting_in(self, log_dir: str) -> dict[TopicPartition, WaitingLog]:
        """Returns the waiting partitions of a directory, which has one copy of each: a current or a future one."""
        with self.guard:
            found = [*self._waiting_futures.items(), *self._waiting.items()]
        return {partition: waiting for partition, waiting in found if waiting.log_dir == log_dir}

    def forget_directory(self, log_dir: str) -> None:
        """Drops the waiting partitions of a directory that failed."""
        for is_future in (False, True):
            for partition, waiting in list((self._waiting_futures if is_future else self._waiting).items()):
                if waiting.log_dir == log_dir:
                    self.forget_waiting(partition, is_future=is_future)

    def numbers_of(self, topic: str) -> list[int]:
        """Returns the partitions of a topic that have a current log, open or waiting."""
        with self.guard:
            places = {*self._by_topic.get(topic, ()), *self._waiting_by_topic.get(topic, ())}
        return sorted(partition.partition for partition in places)

    def topics(self) -> set[str]:
        """Returns the topics that have a current log, open or waiting."""
        with self.guard:
            return {*self._by_topic, *self._waiting_by_topic}

    def is_there(self, partition: TopicPartition) -> bool:
        """Returns whether a partition has a current log, open or waiting."""
        return self._current.get(partition) is not None or partition in self._waiting

    # --- changes -------------------------------------------------------------------------------------

    def remove(self, log: UnifiedLog) -> None:
        """Removes a log from all maps.  Another log of its partition stays."""
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
        """Makes the future log the current one."""
        with self.guard:
            self._future.pop(future.topic_partition, None)
            self.put(future)

    def all_of(self, log_dir: str) -> list[UnifiedLog]:
        """Returns all logs of a directory."""
        return [log for log in self.all_logs() if log.parent_dir == log_dir]

    def of_topic(self, topic: str) -> list[UnifiedLog]:
        """Returns the current logs of a topic in the order in which they were added."""
        with self.guard:
            return list(self._by_topic.get(topic, {}).values())

    def futures_of(self, topic: str) -> list[UnifiedLog]:
        """Returns the future logs of a topic."""
        with self.guard:
            return [log for log in self._future.values() if log.topic_partition.topic == topic] if self._future else []

    def counts_by_dir(self) -> dict[str, int]:
        """Returns how many logs each directory has: current and future, open and waiting."""
        with self.guard:
            counts = {log_dir: len(logs) for log_dir, logs in self._by_dir.items()}
            for waiting in (*self._waiting.values(), *self._waiting_futures.values()):
                counts[waiting.log_dir] = counts.get(waiting.log_dir, 0) + 1
            return counts

    def remove_all(self, logs: Iterable[UnifiedLog]) -> None:
        for log in logs:
            self.remove(log)

    def current_logs(self) -> list[UnifiedLog]:
        with self.guard:
            return self._current.values()

    def all_logs(self) -> list[UnifiedLog]:
        """Returns the current and future logs."""
        with self.guard:
            return [*self._current.values(), *self._future.values()]

    def in_dir(self, log_dir: str) -> Logs:
        """Returns the logs of a directory by partition (LogManager.logsInDir); the current one if there are two."""
        found: Logs = JavaHashMap(topic_partition_hash)
        for log in self.all_of(log_dir):
            found.setdefault(log.topic_partition, log)
        return found

    def high_watermarks_in_dir(self, log_dir: str) -> AnyRefMap[TopicPartition, int]:
        """Returns the high watermarks as ReplicaManager.checkpointHighWatermarks collects them.

        It goes partition by partition, the current log before the future one.  Kafka keeps its partitions in a map with
        the same order as ours.
        """
        found: AnyRefMap[TopicPartition, int] = AnyRefMap(topic_partition_hash)
        logs = self.all_logs()
        futures = {log.topic_partition: log for log in logs if log.is_future}
        for log in logs:
            for each in (log, None if log.is_future else futures.get(log.topic_partition)):
                if each is not None and each.parent_dir == log_dir:
                    found[each.topic_partition] = each.high_watermark
        return found
