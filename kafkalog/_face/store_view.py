"""What stands under a store that only reads: the directories of another process, which may be a broker.

Takes no lock and writes nothing there.  What there is, is looked at when it is asked for; each partition is a
ViewSource, which finds its way beside appends, rolls, retention, truncation, compaction and moves.  Cursors are those
that the directories hold, and cannot be moved; with a directory of their own, which is a store of this process, they
are there, and the others where it has none yet.  Thread-safe.
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

_OR_A_TIER = "a remote tier is read by its folder; by RemoteStorage(folder, prefix=...) if its keys have a prefix"
SETTLED_MS = 50  # behind its last change a directory's time tells of the next one
COARSE_MS = 2000  # the same, where times are of whole seconds
TOPICS_CHECK_S = 1.0  # how often who follows topics looks for new partitions


class Seen(NamedTuple):
    """What the directories had when their times were `times`, None where these do not tell."""

    times: tuple[int, ...] | None
    folders: dict[TopicPartition, str]
    by_topic: dict[str, dict[int, str]]  # the same: the directory of each partition
    overrides: Topics
    known: Mapping[str, KnownTopic]


class StoreView:
    """The `Home` of a store that only reads.  Made by `kafkalog.open(..., read_only=True)`."""

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
        self._seen: Seen | None = None  # replaced whole
        self.how_to_write = "open it with read_only=False"
        if files.owns(directories[0]):
            self.how_to_write = "a remote tier alone is only read: a store that is opened with remote= writes to it"
        self.bells = Bells()  # of readers that wait
        self.cursor_readers = CursorReaders()
        self._lock = threading.RLock()  # guards which partitions of __consumer_offsets are loaded
        for directory in directories:
            log_dirs.listing(directory, files)
            log_dirs.refuse_foreign(directory, files, _OR_A_TIER)

    def close(self) -> None:
        """Lets go of the files; a second call does nothing."""
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

    def check_open(self) -> None:
        """IllegalStateException where it is closed, or was opened by another process."""
        if not self.life.live:
            raise self.life.refusal(f"the store of {self.place}")

    def _refused(self, *_: object, **__: object) -> NoReturn:
        """What needs a store that writes."""
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
        """When each directory, and what is known of topics in it, was changed last; None where the next change may
        leave that as it is."""
        now_ms = time.time_ns() // 1_000_000
        found = []
        for directory in self._directories:
            try:
                mtime_ms = self._files.stat(directory).mtime_ms
            except OSError:
                return None  # a look says what is wrong
            if now_ms - mtime_ms <= (COARSE_MS if mtime_ms % 1000 == 0 else SETTLED_MS):
                return None
            found.append(mtime_ms)
            with suppress(OSError):  # a change may be a line behind the others, of which the directory says nothing
                settings = self._files.stat(os.path.join(directory, TOPIC_CONFIGS_FILE))
                found += settings.size, settings.mtime_ms
        return tuple(found)

    def _look(self) -> Seen:
        """Every partition, and what is known of topics: as they were seen last, while no directory has changed."""
        seen, times = self._seen, self._times()
        if seen is not None and times is not None and seen.times == times:
            return seen
        overrides, known = stored_content(self._directories, self._files)
        folders: dict[TopicPartition, str] = {}
        by_topic: dict[str, dict[int, str]] = {}
        # One that moves meanwhile into a directory that was looked at is there at the second look.
        for directory in (*self._directories, *self._directories[-2::-1]):
            for partition in log_dirs.list_partitions(directory, files=self._files):
                if folders.setdefault(partition, directory) == directory:
                    by_topic.setdefault(partition.topic, {})[partition.partition] = directory
        if self._seen is None or self._seen.folders != folders:
            self.topic_settings.look_again()
        self._seen = seen = Seen(times, folders, by_topic, overrides, known)
        return seen

    def _folders(self) -> dict[TopicPartition, str]:
        """Every partition, and the directory that has it."""
        return self._look().folders

    def names(self) -> list[str]:
        """Of all topics, in order."""
        self.check_open()
        seen = self._look()
        return sorted(
            topic
            for topic in seen.by_topic.keys() | seen.known.keys()
            if topic != CLUSTER_METADATA_TOPIC
            and self._present(topic, seen.known.get(topic), seen.by_topic.get(topic, {})) is not None
        )

    def info(self, topic: str) -> TopicInfo:
        """UnknownTopicOrPartitionException where there is no such topic."""
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
        """The partitions of a topic: of one of Kafka's own those that were made so far.

        UnknownTopicOrPartitionException; InvalidPartitionsException as `countable`."""
        info = self.info(topic)
        return made_partitions(*self._known_and_here(topic)) if info.is_internal else range(countable(info))

    def _known_and_here(self, topic: str) -> tuple[KnownTopic | None, Mapping[int, str]]:
        seen = self._look()
        return seen.known.get(topic), seen.by_topic.get(topic, {})

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

        if known is None and folders:
            known = self.topic_settings.cluster_known(topic)
        return present_topic(known, list(folders), ids, may_be_elsewhere=self.topic_settings.is_remembered(topic))

    # --- reading ---------------------------------------------------------------------------------------

    @property
    def topic_changes(self) -> int:
        """Another number: topics may have changed."""
        return int(time.monotonic() / TOPICS_CHECK_S)

    def others(self) -> list[str]:
        """As Home: a store that only reads has no handles."""
        return []

    def known_topics(self) -> list[str]:
        """As Home."""
        if self._seen is None:
            raise LookupError("nobody has looked yet")
        return public(self._seen.by_topic.keys() - {CLUSTER_METADATA_TOPIC})

    def known_partitions(self, topic: str) -> int:
        """As Home."""
        return 1 + max(() if self._seen is None else self._seen.by_topic.get(topic, ()))  # ValueError for none

    def glance(self, partition: TopicPartition) -> tuple[int, int] | None:
        """As Home."""
        view = self._views.get(partition)
        return None if view is None else (view.log_start_offset, view.log_end_offset)

    def source(self, partition: TopicPartition) -> ViewSource:
        """What readers see of a partition, wherever it is now."""
        return ViewSource(self, self.view(partition))

    def view(self, partition: TopicPartition) -> TopicView:
        """A partition's view, in the directory that has it now."""
        self.check_open()
        found = self._views.get(partition)
        if found is not None and not found.is_there():
            self._views.pop(partition, None)  # it was moved to another directory, or deleted, and perhaps made anew
            found.rest()  # not closed: readers that hold it find that out by themselves
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
        """The topic's id; None where nobody knows one.

        InconsistentTopicIdException if one of the partition's folders belongs to another topic of the name.  Those of
        topics that are known to be gone, in directories that were not `chosen`, count for nothing."""
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
                    hint="name the directories of one store; a folder of a topic that was deleted is removed when the "
                    "store is opened for writing",
                )
        return expected or None

    # --- cursors ---------------------------------------------------------------------------------------

    def offsets(self, group: str, *, create: bool) -> GroupOffsets | None:
        """Who keeps a cursor in the directory of our own; None where nobody has one there."""
        self.check_open()
        if self.cursors is None:
            raise LogReadOnlyException(
                f"the store of {self.place} is open read-only: its cursors cannot be moved",
                hint="open it with cursors=DIR, a directory of its own",
            )
        return self.cursors.offsets(group, create=create)

    def keepers(self, cursor: str) -> Iterator[GroupOffsets]:
        """Who may know of a cursor: in our own directory first, then in those that are read, brought up to date."""
        self.check_open()
        if self.cursors is not None:
            yield from self.cursors.keepers(cursor)
        there = self._offsets_in(cursor)
        if there is not None:
            yield there

    def all_keepers(self) -> list[GroupOffsets]:
        """Of all cursors, likewise."""
        self.check_open()
        own = [] if self.cursors is None else self.cursors.all_keepers()
        numbers = [each.partition for each in self._folders() if each.topic == GROUP_METADATA_TOPIC]
        return own + [self._caught_up(number) for number in sorted(numbers)]

    def list_transactions(self) -> list[TransactionDescription]:
        """What `__transaction_state` of the directories that are read says by now."""
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
        """KafkaStorageException if the partition was made, and its folder is away."""
        known = self._look().known.get(GROUP_METADATA_TOPIC)
        try:
            count = self.info(GROUP_METADATA_TOPIC).partitions
        except UnknownTopicOrPartitionException:
            if known is None:
                return None
            count = known.partitions  # all folders of the topic are away
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
