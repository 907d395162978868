"""Views of partitions that requests share: each is opened once, and read again only when its directory has changed.

At most VIEWS_MAX stay open; of those that nobody uses, the one that was used least recently is closed first.  A request
holds its view while it reads.  Everything only reads, without a lock, also beside a process that writes.  Thread-safe.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_dirs import list_partitions
from kafkalog.engine.log.view import PartitionView
from kafkalog.errors import KafkalogError, UnknownTopicOrPartitionException

VIEWS_MAX = 32


class Views:
    """The partitions of some log directories."""

    def __init__(self, log_dirs: Sequence[str], files: Files = OS_FILES) -> None:
        self.log_dirs = list(log_dirs)
        self._files = files
        self._lock = threading.Lock()
        self._open: OrderedDict[TopicPartition, PartitionView] = OrderedDict()  # guarded by _lock
        self._users: dict[PartitionView, int] = {}  # guarded by _lock

    def partitions(self) -> dict[TopicPartition, str]:
        """Returns all partitions with their log directories.  The first directory that has one counts.

        Raises KafkalogError if a directory cannot be listed.
        """
        found: dict[TopicPartition, str] = {}
        for log_dir in self.log_dirs:
            for partition in list_partitions(log_dir, files=self._files):
                found.setdefault(partition, log_dir)
        return found

    def of_topic(self, topic: str, number: int | None = None) -> list[TopicPartition]:
        """Returns the partitions of a topic, or one of them.

        Raises UnknownTopicOrPartitionException if none exists.
        """
        found = sorted(each for each in self.partitions() if each.topic == topic and number in (None, each.partition))
        if not found:
            name = topic if number is None else f"{topic}-{number}"
            raise UnknownTopicOrPartitionException(f"no topic or partition {name!r} in {', '.join(self.log_dirs)}")
        return found

    @contextmanager
    def lent(self, partition: TopicPartition) -> Iterator[PartitionView]:
        """In the block, the caller may use the partition's view, which is up to date at the start of the block."""
        view = self._take(partition)
        try:
            if view.has_changed():
                try:
                    view.refresh()
                except KafkalogError:
                    self._forget(partition, view)
                    raise
            yield view
        finally:
            self._give_back(view)

    def close(self) -> None:
        """Closes the views."""
        with self._lock:
            idle = [view for view in self._open.values() if view not in self._users]
            self._open.clear()
        for view in idle:
            view.close()

    def _take(self, partition: TopicPartition) -> PartitionView:
        with self._lock:
            view = self._open.get(partition)
            if view is not None:
                self._users[view] = self._users.get(view, 0) + 1
                self._open.move_to_end(partition)
                return view
        made = self._made(partition)
        with self._lock:
            view = self._open.setdefault(partition, made)
            self._users[view] = self._users.get(view, 0) + 1
        if view is not made:
            made.close()
        return view

    def _made(self, partition: TopicPartition) -> PartitionView:
        for log_dir in self.log_dirs:
            try:
                return PartitionView(log_dir, partition, files=self._files)
            except UnknownTopicOrPartitionException:
                continue
        raise UnknownTopicOrPartitionException(f"no partition {partition} in {', '.join(self.log_dirs)}")

    def _forget(self, partition: TopicPartition, view: PartitionView) -> None:
        with self._lock:
            if self._open.get(partition) is view:
                del self._open[partition]

    def _give_back(self, view: PartitionView) -> None:
        closing = []
        with self._lock:
            self._users[view] -= 1
            if not self._users[view]:
                del self._users[view]
                if self._open.get(view.topic_partition) is not view:  # forgotten meanwhile
                    closing.append(view)
            for partition in [*self._open]:
                if len(self._open) <= VIEWS_MAX:
                    break
                if self._open[partition] not in self._users:
                    closing.append(self._open.pop(partition))
        for each in closing:
            each.close()
