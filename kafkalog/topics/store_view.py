"""What stands under a store that only reads: the directories of another process, which may be a broker.

Takes no lock and writes nothing there.  What there is, is looked at when it is asked for; each partition is a
PartitionView, which finds its way beside appends, rolls, retention, truncation and compaction.  Cursors are those that
the directories hold, and cannot be moved; with a directory of their own, which is a store of this process, they are
there, and the others where it has none yet.  Thread-safe.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from kafkalog.coordinator.group_offsets import GroupOffsets
from kafkalog.coordinator.partition_logs import SourceStateLog
from kafkalog.errors import KafkaStorageException, UnknownTopicOrPartitionException
from kafkalog.files import Clock, Files
from kafkalog.files.processes import Life
from kafkalog.format import values
from kafkalog.format.coordinator_records import partition_for
from kafkalog.format.names import CLUSTER_METADATA_TOPIC, GROUP_METADATA_TOPIC, TopicPartition
from kafkalog.format.partition_metadata import topic_id_of
from kafkalog.log.view import PartitionView
from kafkalog.manager import log_dirs
from kafkalog.manager.topic_configs import KnownTopic, stored_content
from kafkalog.topics.catalog import TopicInfo, no_topic, present_topic, topic_info
from kafkalog.topics.waiting import Bells

if TYPE_CHECKING:
    from kafkalog.topics.store_home import StoreHome

TOPICS_CHECK_S = 1.0  # how often who follows topics looks for new partitions


class StoreView:
    """Made by `kafkalog.open(..., read_only=True)`."""

    read_only: Literal[True] = True

    def __init__(self, directories: Sequence[str], clock: Clock, files: Files, cursors: StoreHome | None) -> None:
        self.life = Life("kafkalog.open")
        self.clock = clock
        self.place = ", ".join(directories)
        self.cursors = cursors
        self._directories = list(directories)
        self._files = files
        self._views: dict[TopicPartition, PartitionView] = {}
        self._offsets: dict[int, GroupOffsets] = {}
        self.bells = Bells()  # of readers that wait
        self._lock = threading.RLock()  # guards which partitions of __consumer_offsets are loaded
        for directory in directories:
            log_dirs.listing(directory, files)

    def close(self) -> None:
        """Lets go of the files; a second call does nothing."""
        if self.life.forked or not self.life.live:
            return
        self.life.end()
        self.bells.ring()
        for view in list(self._views.values()):
            view.close()
        if self.cursors is not None:
            self.cursors.close()

    def check_open(self) -> None:
        """IllegalStateException where it is closed, or was opened by another process."""
        if not self.life.live:
            raise self.life.refusal(f"the store of {self.place}")

    # --- topics ----------------------------------------------------------------------------------------

    def _folders(self) -> dict[TopicPartition, str]:
        """Every partition, and the directory that has it; one that moves meanwhile into a directory that was looked at
        is there at the second look."""
        found: dict[TopicPartition, str] = {}
        for directory in (*self._directories, *self._directories[-2::-1]):
            for partition in log_dirs.list_partitions(directory, files=self._files):
                found.setdefault(partition, directory)
        return found

    def names(self) -> list[str]:
        """Of all topics, in order."""
        self.check_open()
        _, known = stored_content(self._directories, self._files)
        found: dict[str, dict[int, str]] = {}
        for each, directory in self._folders().items():
            if each.topic != CLUSTER_METADATA_TOPIC:
                found.setdefault(each.topic, {})[each.partition] = directory
        return sorted(topic for topic in found if self._present(topic, known.get(topic), found[topic]) is not None)

    def info(self, topic: str) -> TopicInfo:
        """UnknownTopicOrPartitionException where there is no such topic."""
        self.check_open()
        topic = values.text(topic, "topic")
        overrides, known = stored_content(self._directories, self._files)
        folders = {each.partition: path for each, path in self._folders().items() if each.topic == topic}
        found = topic_info(topic, self._present(topic, known.get(topic), folders), overrides.get(topic, {}))
        if found is None:
            raise no_topic(topic, self.place)
        return found

    def check_partition(self, partition: TopicPartition) -> None:
        """UnknownTopicOrPartitionException where there is no such partition."""
        info = self.info(partition.topic)
        if not 0 <= partition.partition < info.partitions:
            raise UnknownTopicOrPartitionException(
                f"topic {partition.topic!r} has no partition {partition.partition}: it has {info.partitions}"
            )

    def _present(self, topic: str, known: KnownTopic | None, folders: Mapping[int, str]) -> KnownTopic | None:
        """A topic as it is there, of what is known of it and its folders."""

        def ids() -> Iterator[str | None]:
            for number, path in folders.items():
                try:
                    yield topic_id_of(os.path.join(path, f"{topic}-{number}"), self._files)
                except OSError as error:
                    raise KafkaStorageException.because_of(error, f"cannot read the id of topic {topic}") from error

        return present_topic(known, list(folders), ids, may_be_elsewhere=False)

    # --- reading ---------------------------------------------------------------------------------------

    @property
    def topic_changes(self) -> int:
        """Another number: topics may have changed."""
        return int(time.monotonic() / TOPICS_CHECK_S)

    def source(self, partition: TopicPartition) -> PartitionView:
        """What readers see of a partition, in the directory that has it now."""
        self.check_open()
        found = self._views.get(partition)
        if found is not None and not self._files.is_dir(found.directory):
            self._views.pop(partition, None)  # it was moved to another directory, or deleted
            found.rest()  # not closed: readers that hold it find that out by themselves
            found = None
        if found is None:
            directory = self._folders().get(partition)
            if directory is None:
                self.check_partition(partition)
                raise UnknownTopicOrPartitionException(f"no partition {partition} in {self.place}")
            view = PartitionView(directory, partition, files=self._files)
            view.life = self.life
            found = self._views.setdefault(partition, view)
        return found

    def offsets(self, group: str, *, create: bool) -> GroupOffsets | None:
        """Who keeps a cursor, brought up to date; None where nobody has one there."""
        self.check_open()
        if self.cursors is not None:
            found = self.cursors.offsets(group, create=create)
            if create or (found is not None and found.fetch_all(group)):
                return found
        return self._offsets_in(group)

    def offsets_there(self, group: str) -> GroupOffsets | None:
        """As `offsets`, in the directories that are read alone."""
        self.check_open()
        return self._offsets_in(group)

    def all_offsets(self) -> list[GroupOffsets]:
        """Of all partitions of `__consumer_offsets` that these directories have, brought up to date."""
        self.check_open()
        numbers = [each.partition for each in self._folders() if each.topic == GROUP_METADATA_TOPIC]
        return [self._caught_up(number) for number in sorted(numbers)]

    def _offsets_in(self, group: str) -> GroupOffsets | None:
        try:
            count = self.info(GROUP_METADATA_TOPIC).partitions
        except UnknownTopicOrPartitionException:
            return None
        number = partition_for(group, count)
        is_there = TopicPartition(GROUP_METADATA_TOPIC, number) in self._folders()
        return self._caught_up(number) if is_there else None

    def _caught_up(self, number: int) -> GroupOffsets:
        with self._lock:
            found = self._offsets.get(number)
            if found is None:
                partition = TopicPartition(GROUP_METADATA_TOPIC, number)
                log = SourceStateLog(self.source(partition), f"{partition} of {self.place}")
                self._offsets[number] = found = GroupOffsets(log, self.clock)
                return found
        found.catch_up()
        return found
