"""The base of a store that only reads directories of another process, which may be a broker.

Takes no lock and writes nothing there. The directories are listed when a call needs them. Each partition is a
ViewSource, which stays valid during appends, rolls, retention, truncation, compaction and moves. Cursors are those
stored in the directories, and cannot be moved. With a separate directory for cursors, which is a store of this process,
cursors are stored there; a cursor that it does not have yet is read from the directories. Thread-safe.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from kafkalog._face.cursor_readers import CursorReaders
from kafkalog._face.shown import public
from kafkalog._face.store_partition import no_folder_error
from kafkalog._face.topic_info import (
    TopicInfo,
    countable,
    made_partitions,
    no_topic,
    not_made,
    present_topic,
    topic_info,
)
from kafkalog._face.view_source import TopicView, ViewSource
from kafkalog._face.waiting import Bells
from kafkalog.engine.coordinator.group_offsets import GroupOffsets
from kafkalog.engine.coordinator.partition_logs import SourceStateLog
from kafkalog.engine.coordinator.transaction_coordinator import TransactionDescription, described
from kafkalog.engine.coordinator.transaction_metadata import TransactionVersion
from kafkalog.engine.coordinator.transaction_state import TransactionStatePartition
from kafkalog.engine.files import Clock, Files
from kafkalog.engine.files.processes import Life
from kafkalog.engine.format import values
from kafkalog.engine.format.coordinator_records import partition_for
from kafkalog.engine.format.names import (
    CLUSTER_METADATA_TOPIC,
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    TOPIC_CONFIGS_FILE,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.host import log_dirs
from kafkalog.engine.host.topic_configs import KnownTopic, Topics, stored_content
from kafkalog.errors import (
    InconsistentTopicIdException,
    KafkaStorageException,
    LogReadOnlyException,
    UnknownTopicOrPartitionException,
)

if TYPE_CHECKING:
    from kafkalog._face.store_home import StoreHome
    from kafkalog._face.topic_settings import TopicSettings

_OR_A_TIER = "open a remote tier by its directory, or by RemoteStorage(path, prefix=...) if its keys have a prefix"
SETTLED_MS = 50  # after that time since a directory's last change, its modification time shows the next one
COARSE_MS = 2000  # the same, if times are in whole seconds
TOPICS_CHECK_S = 1.0  # how often readers that follow topics check for new partitions


class Seen(NamedTuple):
    """The content of the directories when their times were `times`; None if the times are not reliable."""

    times: tuple[int, ...] | None
    folders: dict[TopicPartition, str]
    by_topic: dict[str, dict[int, str]]  # the same: the directory of each partition
    overrides: Topics
    known: Mapping[str, KnownTopic]


class StoreView:
    """The `Home` of a store that only reads. Created by `kafkalog.open(..., read_only=True)`."""

    read_only = True
    syncs = False

    def __init__(
        self,
        directories: Sequence[str],
        clock: Clock,
        files: Files,
        cursors: StoreHome | None,
        topic_settings: TopicSettings,
        *,
        owns_files: bool = False,
    ) -> None:
        self.life = Life("kafkalog.open")
        self.clock = clock
        self.place = ", ".join(directories)
        self.cursors = cursors
        self._directories = list(directories)
        self._files = files
        self._owns_files = owns_files
        self.topic_settings = topic_settings
        self._views: dict[TopicPartition, TopicView] = {}
        self._offsets: dict[int, GroupOffsets] = {}
        self._seen: Seen | None = None  # replaced as a whole
        self.how_to_write = "write in the process that writes it; if there is none, open it with read_only=False"
        if files.owns(directories[0]):
            self.how_to_write = "a remote tier alone can only be read: open a store with remote= to write to it"
        self.bells = Bells()  # the waiting readers' bells
        self.cursor_readers = CursorReaders()
        self._lock = threading.RLock()  # guards which partitions of __consumer_offsets are loaded
        for directory in directories:
            log_dirs.listing(directory, files)
            log_dirs.refuse_foreign(directory, files, _OR_A_TIER)

    def close(self) -> None:
        """Closes the files. A second call does nothing."""
        if self.life.forked or not self.life.live:
            return
        self.life.end()
        self.bells.ring()
        for view in list(self._views.values()):
            view.close()
        if self._owns_files:
            self._files.close()
        if self.cursors is not None:
            self.cursors.close()

    @property
    def log_dirs(self) -> Sequence[str]:
        """Its directories."""
        return self._directories

    @property
    def files(self) -> Files:
        """The file system that has the directories."""
        return self._files

    def check_open(self) -> None:
        """Raises IllegalStateException if it is closed, or was opened by another process."""
        if not self.life.live:
            raise self.life.refusal(f"the store of {self.place}")

    def _refused(self, *_: object, **__: object) -> NoReturn:
        """Raises the error for a call that needs a store that writes."""
        self.check_open()
        raise LogReadOnlyException(f"the store of {self.place} is open read-only", hint=self.how_to_write)

    check_writable = partition = joins = create_topic = add_partitions = alter_topic = delete_topic = _refused
    manager: Any = property(_refused)
    tier: Any = property(_refused)
    catalog: Any = property(_refused)
    coordinators: Any = property(_refused)
    producers: Any = property(_refused)

    # --- topics ----------------------------------------------------------------------------------------

    def _times(self) -> tuple[int, ...] | None:
        """Returns when each directory, and its file of topic settings, was changed last; None if the next change may
        not change these times."""
        now_ms = time.time_ns() // 1_000_000
        found = []
        for directory in self._directories:
            try:
                mtime_ms = self._files.stat(directory).mtime_ms
            except OSError:
                return None  # listing the directory raises the error
            if now_ms - mtime_ms <= (COARSE_MS if mtime_ms % 1000 == 0 else SETTLED_MS):
                return None
            found.append(mtime_ms)
            with suppress(OSError):  # an appended line changes this file, but not its directory
                settings = self._files.stat(os.path.join(directory, TOPIC_CONFIGS_FILE))
                found += settings.size, settings.mtime_ms
        return tuple(found)

    def _look(self) -> Seen:
        """Returns every partition and the recorded topics: from the last listing, if no directory has changed."""
        seen, times = self._seen, self._times()
        if seen is not None and times is not None and seen.times == times:
            return seen
        overrides, known = stored_content(self._directories, self._files)
        folders: dict[TopicPartition, str] = {}
        by_topic: dict[str, dict[int, str]] = {}
        # The second pass finds a partition that moves into a directory that was already listed.
        for directory in (*self._directories, *self._directories[-2::-1]):
            for partition in log_dirs.list_partitions(directory, files=self._files):
                if folders.setdefault(partition, directory) == directory:
                    by_topic.setdefault(partition.topic, {})[partition.partition] = directory
        if self._seen is None or self._seen.folders != folders:
            self.topic_settings.look_again()
        self._seen = seen = Seen(times, folders, by_topic, overrides, known)
        return seen

    def _folders(self) -> dict[TopicPartition, str]:
        """Returns the directory of every partition."""
        return self._look().folders

    def names(self) -> list[str]:
        """Returns the names of all topics, sorted."""
        self.check_open()
        seen = self._look()
        return sorted(
            topic
            for topic in seen.by_topic.keys() | seen.known.keys()
            if topic != CLUSTER_METADATA_TOPIC
            and self._present(topic, seen.known.get(topic), seen.by_topic.get(topic, {})) is not None
        )

    def info(self, topic: str) -> TopicInfo:
        """Returns a topic's description. UnknownTopicOrPartitionException if it does not exist."""
        self.check_open()
        topic = values.text(topic, "topic")
        seen = self._look()

        def known(name: str) -> KnownTopic | None:
            return self._present(name, seen.known.get(name), seen.by_topic.get(name, {}))

        overrides = self.topic_settings.own(topic, seen.overrides.get(topic, {}))
        found = topic_info(topic, known(topic), overrides)
        if found is None:
            there = (*seen.known, *seen.by_topic)
            raise no_topic(topic, self.place, there, lambda name: known(name) is not None, read_only=True)
        return found

    def numbers(self, topic: str) -> Sequence[int]:
        """Returns the partitions of a topic; for an internal topic only those created so far.

        UnknownTopicOrPartitionException; InvalidPartitionsException as `countable`."""
        info = self.info(topic)
        return made_partitions(*self._known_and_here(topic)) if info.is_internal else range(countable(info))

    def _known_and_here(self, topic: str) -> tuple[KnownTopic | None, Mapping[int, str]]:
        seen = self._look()
        return seen.known.get(topic), seen.by_topic.get(topic, {})

    def check_partition(self, partition: TopicPartition) -> None:
        """Raises UnknownTopicOrPartitionException if the partition does not exist."""
        info = self.info(partition.topic)
        if not 0 <= partition.partition < info.partitions:
            raise UnknownTopicOrPartitionException(
                f"topic {partition.topic!r} has no partition {partition.partition}: it has {info.partitions}"
            )

    def _present(self, topic: str, known: KnownTopic | None, folders: Mapping[int, str]) -> KnownTopic | None:
        """Returns the current state of a topic, from its recorded state and its directories."""

        def ids() -> Iterator[str | None]:
            for number, path in folders.items():
                try:
                    yield topic_id_of(os.path.join(path, f"{topic}-{number}"), self._files)
                except OSError as error:
                    raise KafkaStorageException.because_of(error, f"cannot read the id of topic {topic}") from error

        if known is None and folders:
            known = self.topic_settings.cluster_known(topic)
        return present_topic(known, list(folders), ids, may_be_elsewhere=self.topic_settings.is_remembered(topic))

    # --- reading ---------------------------------------------------------------------------------------

    @property
    def topic_changes(self) -> int:
        """A number that differs from before if topics may have changed."""
        return int(time.monotonic() / TOPICS_CHECK_S)

    def others(self) -> list[str]:
        """Returns nothing: a store that only reads has no handles."""
        return []

    def known_topics(self) -> list[str]:
        """Returns the topics that are not internal, as Home."""
        if self._seen is None:
            raise LookupError("the directories were not listed yet")
        return public(self._seen.by_topic.keys() - {CLUSTER_METADATA_TOPIC})

    def known_partitions(self, topic: str) -> int:
        """Returns a topic's number of partitions, as Home."""
        return 1 + max(() if self._seen is None else self._seen.by_topic.get(topic, ()))  # ValueError if unknown

    def glance(self, partition: TopicPartition) -> tuple[int, int] | None:
        """Returns a partition's start and end, as Home."""
        view = self._views.get(partition)
        return None if view is None else (view.log_start_offset, view.log_end_offset)

    def source(self, partition: TopicPartition) -> ViewSource:
        """Returns a reader's view of a partition, in the directory where it is now."""
        return ViewSource(self, self.view(partition))

    def view(self, partition: TopicPartition) -> TopicView:
        """Returns a partition's view, in the directory where it is now."""
        self.check_open()
        found = self._views.get(partition)
        if found is not None and not found.is_there():
            self._views.pop(partition, None)  # moved to another directory, or deleted and perhaps created again
            found.rest()  # not closed: readers that hold it notice the change themselves
            found = None
        if found is None:
            directory = self._folders().get(partition)
            if directory is None:
                self.check_partition(partition)
                if partition.topic in INTERNAL_TOPICS:
                    is_made = partition.partition in made_partitions(*self._known_and_here(partition.topic))
                    raise no_folder_error(partition, self.place) if is_made else not_made(partition)
                if partition.topic in self._look().known:
                    raise no_folder_error(partition, self.place)
                raise UnknownTopicOrPartitionException(f"no partition {partition} in {self.place}")
            topic_id = self._checked_id(partition, directory)
            view = TopicView(directory, partition, files=self._files)
            view.topic_id = topic_id
            view.life = self.life
            found = self._views.setdefault(partition, view)
        return found

    def _checked_id(self, partition: TopicPartition, chosen: str) -> str | None:
        """Returns the topic's id; None if it is not known.

        InconsistentTopicIdException if one of the partition's directories belongs to another topic of the name. A
        directory of a topic that is known to be deleted is ignored if it is not in the `chosen` log directory."""
        expected, known = self.info(partition.topic).topic_id, self._look().known.get(partition.topic)
        for directory in self._directories:
            folder = os.path.join(directory, str(partition))
            try:
                found = topic_id_of(folder, self._files)
            except OSError as error:
                raise KafkaStorageException.because_of(error, f"cannot read the id of {partition}") from error
            if directory != chosen and known is not None and found in known.gone:
                continue
            if found is not None and expected and found != expected:
                raise InconsistentTopicIdException(
                    f"found topic id {found}, expected {expected}: the directories have two topics of that name",
                    path=folder,
                    hint="name the directories of one store; the directory of a deleted topic is removed when the "
                    "store is opened for writing",
                )
        return expected or None

    # --- cursors ---------------------------------------------------------------------------------------

    def offsets(self, group: str, *, create: bool) -> GroupOffsets | None:
        """Returns the keeper of a cursor in the separate directory; None if there is none, and `create` is False."""
        self.check_open()
        if self.cursors is None:
            raise LogReadOnlyException(
                f"the store of {self.place} is open read-only: its cursors cannot be moved",
                hint="open it with cursors=DIR, a separate directory",
            )
        return self.cursors.offsets(group, create=create)

    def keepers(self, cursor: str) -> Iterator[GroupOffsets]:
        """Yields the keepers that may know a cursor, up to date: of the separate directory first, then of the
        directories that are read."""
        self.check_open()
        if self.cursors is not None:
            yield from self.cursors.keepers(cursor)
        there = self._offsets_in(cursor)
        if there is not None:
            yield there

    def all_keepers(self) -> list[GroupOffsets]:
        """Returns the keepers of all cursors, in the same order."""
        self.check_open()
        own = [] if self.cursors is None else self.cursors.all_keepers()
        numbers = [each.partition for each in self._folders() if each.topic == GROUP_METADATA_TOPIC]
        return own + [self._caught_up(number) for number in sorted(numbers)]

    def list_transactions(self) -> list[TransactionDescription]:
        """Returns the transactional ids that `__transaction_state` of the directories currently has."""
        self.check_open()
        found = []
        for partition in sorted(each for each in self._folders() if each.topic == TRANSACTION_STATE_TOPIC):
            log = SourceStateLog(self.source(partition), f"{partition} of {self.place}")
            states = TransactionStatePartition(log, self.clock, TransactionVersion.TV_2)
            found += [
                described(each.transactional_id, each.known) for each in states.entries() if each.known is not None
            ]
        return found

    def _offsets_in(self, group: str) -> GroupOffsets | None:
        """Returns the keeper of a group. KafkaStorageException if its partition was created, and its directory is
        missing."""
        known = self._look().known.get(GROUP_METADATA_TOPIC)
        try:
            count = self.info(GROUP_METADATA_TOPIC).partitions
        except UnknownTopicOrPartitionException:
            if known is None:
                return None
            count = known.partitions  # all directories of the topic are missing
        partition = TopicPartition(GROUP_METADATA_TOPIC, partition_for(group, count))
        if partition in self._folders():
            return self._caught_up(partition.partition)
        if known is not None and partition.partition in known.numbers:
            raise no_folder_error(partition, self.place)
        return None

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
