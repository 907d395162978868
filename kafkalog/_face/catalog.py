"""The topics of a store: their partitions, ids and settings, and the calls that create, alter and delete them.

The planned state of a topic is written next to the settings (`manager.topic_configs`) before any partition directory is
created or removed, and once more when all of them exist. A topic that is being created does not exist yet. `finish`
completes what a crash interrupted. Any other failure is undone at once, or by the call that creates the topic again. So
a topic exists with all its partitions, or not at all. Only a topic that is known to be unfinished is completed: if a
log directory is not given, its partitions are missing with it, and no empty ones replace them.

For a topic that a broker or `open_log` created, the partition directories decide. The topic has as many partitions as
the highest number says, and the id that is stored in the directories. The first change also records the topic here. If
others deleted a known topic or created it again, the directories are right as well, and their ids show it. A known
topic without a directory here is missing together with its log directories. It is not created again, unless the
metadata of the cluster says that it was deleted.

Kafka's internal topics are created partition by partition, each at its first write. The created numbers are recorded,
so that a partition whose log directory is missing is refused like any other.

One lock is held over a whole change, and is taken before the manager's. Thread-safe; reading takes no lock.
Source: Topic, ReplicationControlManager.createTopic, TopicConfig of the two coordinators (4.4.0).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from kafkalog import _shown
from kafkalog._face.store_partition import no_folder_error, offline_error
from kafkalog._face.topic_info import TopicInfo, made_partitions, no_topic, present_topic, topic_info
from kafkalog._face.topic_settings import TopicSettings
from kafkalog._limits import INT_MAX
from kafkalog._native.state.log_end import PartitionLock
from kafkalog.config import LogConfig
from kafkalog.engine.files import Files
from kafkalog.engine.files.failure import full_at_change
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.processes import Life
from kafkalog.engine.format import names, values
from kafkalog.engine.format.java_text import new_uuid as new_topic_id
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import checked_topic_id
from kafkalog.engine.host.changes import inside
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.registry import LogRegistry
from kafkalog.engine.host.topic_configs import KnownTopic, StoredTopicConfigs, checked_overrides
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import (
    DiskFull,
    IllegalArgumentException,
    InvalidConfigurationException,
    InvalidPartitionsException,
    InvalidTopicException,
    KafkalogError,
    KafkaStorageException,
    TooManyOpenFilesException,
    TopicExistsException,
    UnknownTopicOrPartitionException,
)

# Kafka's default of offsets.topic.num.partitions, and of the same setting of the other coordinators' topics.
INTERNAL_PARTITIONS = 50
PARTITIONS_MAX = 10_000  # that one call creates; protects from a number in the wrong argument
_LINES = Lines("kafkalog.topics")
RETENTION, FOR_EVER = "retention.ms", "-1"
# Settings of the coordinators' topics that differ from a broker's defaults.
INTERNAL_OVERRIDES: Mapping[str, Mapping[str, str]] = {
    names.GROUP_METADATA_TOPIC: {
        "cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600",
    },
    names.TRANSACTION_STATE_TOPIC: {
        "cleanup.policy": "compact", "compression.type": "uncompressed", "segment.bytes": "104857600",
        "min.insync.replicas": "2", "unclean.leader.election.enable": "false",
    },
    names.SHARE_GROUP_STATE_TOPIC: {
        "cleanup.policy": "delete", "compression.type": "producer", "segment.bytes": "104857600",
        "min.insync.replicas": "2", "retention.ms": "-1",
    },
    names.REMOTE_LOG_METADATA_TOPIC: {"cleanup.policy": "delete", "retention.ms": "-1"},
}  # fmt: skip


class Deletion(NamedTuple):
    """The deletion of a topic. `was_all_here`: all its partitions were here, so nothing of it can come back."""

    topic: str
    topic_id: str
    was_all_here: bool


class _Seen(NamedTuple):
    """A topic as it was last checked: `stored`, and the other facts on which the result depends."""

    stored: KnownTopic
    changes: int
    has_offline: bool
    present: KnownTopic | None


class Catalog:
    """The topics of one manager, which is running and stores topic settings next to the data. `life` is the store's."""

    def __init__(self, manager: LogManager, life: Life, topic_settings: TopicSettings) -> None:
        stored = manager.topic_configs
        assert isinstance(stored, StoredTopicConfigs), stored
        self._manager = manager
        self._stored = stored
        self._life = life
        self._topic_settings = topic_settings  # settings from a cluster or a broker
        self.made_in = ""  # the first directory, if this open of the store created it
        # Partitions of internal topics that do not exist yet, if not Kafka's default.
        self.new_counts: dict[str, int] = {}
        self.new_overrides: dict[str, Mapping[str, str]] = {}  # settings of the same, beside `INTERNAL_OVERRIDES`
        self.changing = PartitionLock()  # held over a whole change
        self._seen: dict[str, _Seen] = {}  # topics as last checked
        self._by_metric: dict[str, set[str]] = {}  # topics that metrics cannot tell apart; may have deleted ones
        self._indexed = -1  # up to which topic (`LogRegistry.topics_made`)
        self._refused: dict[str, Callable[[], None]] = {}  # guarded by changing; functions that undo unfinished changes
        self.changes = 0  # topic changes so far, each counted when it is done; callers compare it to skip work

    # --- reading -------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Returns the names of all topics, sorted."""
        found = {*self._stored.known, *self._manager.topics()} - {names.CLUSTER_METADATA_TOPIC}
        return sorted(topic for topic in found if self._present(topic, self.numbers(topic)) is not None)

    def info(self, topic: str) -> TopicInfo | None:
        """Returns a topic's description; None if there is no topic of that name."""
        overrides = self._topic_settings.own(topic, self._stored.overrides(topic))
        return topic_info(topic, self._known(topic), overrides)

    def has_settings(self, topic: str) -> bool:
        """Returns whether the store keeps settings for a topic, even if the topic overrides none."""
        return self._stored.has(topic)

    def recorded_with_id(self, topic_id: str) -> list[str]:
        """Returns the topics that are recorded here with an id. The directories may say otherwise (`info`)."""
        return [topic for topic, known in self._stored.known.items() if known.topic_id == topic_id]

    def must(self, topic: str) -> TopicInfo:
        """Returns a topic's description. UnknownTopicOrPartitionException if it does not exist."""
        found = self.info(values.text(topic, "topic"))
        if found is None:
            known = (*self._stored.known, *self._manager.topics())
            error = no_topic(topic, self._manager.directories.shown, known, lambda name: self._known(name) is not None)
            raise _made_by_open(error, self.made_in, self._manager.files) if self.made_in and not known else error
        return found

    def available(self, topic: str, partitions: int) -> Sequence[int]:
        """Returns the numbers below `partitions` of a topic's partitions that are here and online."""
        there = self.numbers(topic)
        return range(partitions) if len(there) >= partitions else [each for each in there if each < partitions]

    @property
    def registry(self) -> LogRegistry:
        """The logs that are open now."""
        return self._manager.registry

    def settled_log(self, partition: TopicPartition) -> UnifiedLog | None:
        """Returns a partition's log, after any change that is running has finished."""
        if self.changing.is_mine():  # a signal handler of this thread: waiting would never end
            return self._manager.get_log(partition)
        with self.changing:
            return self._manager.get_log(partition)

    def is_gone(self, log: UnifiedLog) -> bool:
        """Returns whether a log that is being loaded belongs to an older topic of the same name. That topic was deleted
        while its directory was missing and created again since, or its creation failed there. There may be two
        directories of one partition then."""
        known = self._stored.known_of(log.topic_partition.topic)
        if known is None or known.is_deleted or not known.gone:
            return False
        return log.topic_id in known.gone or (log.topic_id is None and not _used(log))

    def log_to_end(self, partition: TopicPartition) -> UnifiedLog | None:
        """Returns a partition's log for the end of a transaction. None only if the partition was deleted: every other
        partition of a transaction must get its end. KafkaStorageException if its directory is missing: the end waits
        for it."""
        info = self.info(partition.topic)
        if info is None:
            return None
        return self._manager.log_to_change(partition) or self._log_to_end(partition)

    def _log_to_end(self, partition: TopicPartition) -> UnifiedLog | None:
        with self.changing:  # a running creation or deletion is done then
            info = self.info(partition.topic)
            if info is None or partition.partition >= info.partitions:
                return None
            log = self._manager.log_to_change(partition)
            if log is None:
                raise self.away_error(partition)
            return log

    def _logs(self, topic: str) -> list[UnifiedLog]:
        return [log for log in self._manager.logs_by_topic(topic) if not log.is_future]

    def _known(self, topic: str) -> KnownTopic | None:
        """Returns the state of a topic. An earlier result is used while neither the topic nor any log has changed."""
        if self._manager.changes.cut_short:
            self._manager.changes.settle()
        stored = self._stored.known_of(topic)
        changes, has_offline = self._manager.registry.changes, bool(self._manager.offline_log_dirs)  # before checking
        seen = self._seen.get(topic)
        if seen is not None and seen.stored is stored and (seen.changes, seen.has_offline) == (changes, has_offline):
            return seen.present
        numbers = self.numbers(topic)
        present = self._present(topic, numbers)
        first_id = next(self._manager.topic_ids(topic, numbers), None)
        if stored is not None and numbers and first_id == stored.topic_id:  # no later id can change the result
            self._seen[topic] = _Seen(stored, changes, has_offline, present)
        return present

    def _present(self, topic: str, numbers: Sequence[int]) -> KnownTopic | None:
        known = self._stored.known_of(topic)
        if known is None and numbers:
            known = self._topic_settings.cluster_known(topic)
        return present_topic(
            known,
            numbers,
            lambda: self._manager.topic_ids(topic, numbers),
            may_be_elsewhere=topic in INTERNAL_OVERRIDES
            or bool(self._manager.offline_log_dirs)
            or self._topic_settings.is_remembered(topic),
        )

    # --- changing ------------------------------------------------------------------------------------

    def _check(self, topic: str) -> None:
        """Checks, with `changing` held, that a topic may be changed. Failed directories are excluded from the change.
        DiskFull or TooManyOpenFilesException if an earlier refused change cannot be undone yet."""
        if not self._life.live:
            raise self._life.refusal(f"the store of {self._manager.directories.shown}")
        self._leave_failed()
        self._take_back_refused()
        self._settle_topic(topic)

    def take_back_refused(self) -> None:
        """Undoes changes that were refused for lack of space and could not be undone then. Each next change tries it
        again. Otherwise the next start would complete such a change."""
        if self._refused and not self.changing.is_mine():
            with self.changing:
                self._take_back_refused()

    def _take_back_refused(self) -> None:
        for topic in list(self._refused):
            with suppress(DiskFull, TooManyOpenFilesException):
                self._settle_topic(topic)

    def _settle_topic(self, topic: str) -> None:
        undo = self._refused.get(topic)
        if undo is not None:
            self._undo(topic, undo)
            if topic in self._refused:
                undo()  # raises the reason
                self._refused.pop(topic, None)

    def _undo(self, topic: str, undo: Callable[[], None]) -> None:
        """Undoes a failed change. If the disk refuses that too, the next change or the next start does it."""
        self._refused[topic] = undo
        try:
            self._leave_failed()
            undo()
        except (DiskFull, TooManyOpenFilesException):
            return
        except KafkalogError:
            pass
        self._refused.pop(topic, None)

    def _leave_failed(self) -> None:
        self._manager.changes.settle()  # a log that another thread is just adding is known then
        for log_dir in self._manager.failure_channel.offline_log_dirs:
            self._manager.handle_log_dir_failure(log_dir)

    def check_outside(self) -> None:
        """Raises IllegalStateException in a signal handler or finalizer that runs inside a change of this thread."""
        if self.changing.is_mine():
            raise inside("changing this store's topics")

    def finish(self) -> None:
        """Completes changes that a crash interrupted, and adopts changes that others made. Missing partitions of a
        topic that was being created are created. The rest of a deleted topic is removed. A topic that others created
        again gets their state."""
        with self.changing:
            for topic, known in self._stored.known.items():
                self._finish(topic, known)
            for topic in INTERNAL_OVERRIDES:
                self._note_made(topic)
            for topic, known in self._stored.known.items():
                if not known.is_deleted and None in self._manager.topic_ids(topic):
                    for log in self._logs(topic):
                        if log.topic_id is None:
                            log.assign_topic_id(known.topic_id)

    def _finish(self, topic: str, known: KnownTopic) -> None:
        ids = [each for each in self._manager.topic_ids(topic) if each is not None]
        if known.is_whole and not known.is_deleted and (not ids or known.topic_id in ids):
            return
        logs = self._logs(topic)
        if known.is_deleted:
            left = [log for log in logs if log.topic_id == known.topic_id or (log.topic_id is None and not _used(log))]
            self._remove(left)
            logs = [log for log in logs if log not in left]
        ids = [log.topic_id for log in logs if log.topic_id is not None]
        if logs and (known.is_deleted or (ids and known.topic_id not in ids)):  # created again by others
            highest = max(log.topic_partition.partition for log in logs)
            again = KnownTopic(highest + 1, ids[0] if ids else new_topic_id(), gone=_with(known))
            self._set(topic, self._stored.overrides(topic), again)
        elif not (known.is_whole or known.is_deleted or self._manager.offline_log_dirs):
            self._make(topic, known, range(known.partitions))
            self._set(topic, self._stored.overrides(topic), known._replace(made=None))

    def create(
        self,
        topic: str,
        partitions: int = 1,
        overrides: Mapping[str, str] | None = None,
        topic_id: str | None = None,
        *,
        exist_ok: bool = False,
        adds_retention: bool = True,
    ) -> TopicInfo:
        """Creates a topic with directories for all its partitions. With `exist_ok`, an existing topic is returned.

        With `adds_retention` the topic keeps its records forever (`retention.ms=-1` is among its settings) unless
        `overrides` or the store's defaults have a `retention.ms`. Without, it has the settings that are given, as in
        Kafka.

        InvalidTopicException for a name that Kafka refuses, that is one of Kafka's internal topics, or that differs
        from another topic's name only in '.' and '_'. Also TopicExistsException, InvalidPartitionsException,
        ConfigException, IllegalArgumentException for an id that another topic has, and KafkaStorageException, after
        which the topic does not exist.
        """
        partitions = checked_partitions(partitions)
        names.validate_topic_name(values.text(topic, "name"))
        names.validate_dir_name(f"{topic}-{partitions - 1}")
        topic_id = None if topic_id is None else checked_topic_id(topic_id)
        config = {} if overrides is None else checked_settings(overrides)
        overrides = self._with_retention(config) if adds_retention else config
        self.check_tiering(overrides, {})
        self.check_outside()
        with self.changing:
            self._check(topic)
            found = self.info(topic)
            if found is not None and exist_ok:
                self._tell_of_differences(found, partitions, config)
                return found
            self._check_new(topic, topic_id, found)
            before = self._stored.known_of(topic)
            self._remove(self._logs(topic))  # leftovers of an earlier creation or deletion
            known = KnownTopic(partitions, topic_id or new_topic_id(), made=0, gone=_with(before))
            try:
                self._set(topic, overrides, known)
                self._make(topic, known, range(partitions))
                # A power loss may undo this write. All directories exist, so the next start does it again.
                self._set(topic, overrides, known._replace(made=None), durable=False)
                self._by_metric.setdefault(_metric_name(topic), set()).add(topic)
                self._indexed += 1  # if others created a topic meanwhile, the next check starts again
            except BaseException as error:
                if not self._stands(topic, known, error):
                    self._undo(topic, lambda: self._take_back(topic, known))
                raise
            return self.must(topic)

    def _with_retention(self, overrides: Mapping[str, str]) -> Mapping[str, str]:
        """Adds `retention.ms=-1` unless the caller has set it: Kafka's default of seven days would lose records."""
        given = (overrides, self._manager.current_default_config.originals, self._topic_settings.static_defaults)
        return overrides if any(RETENTION in each for each in given) else {**overrides, RETENTION: FOR_EVER}

    def _tell_of_differences(self, found: TopicInfo, partitions: int, config: Mapping[str, str]) -> None:
        """Logs a warning if an existing topic differs from the request. One partition is the default of `create`, so it
        is not compared."""
        now = self._manager.config_of(found.name)
        asked = self._manager.config_with(found.name, {**found.overrides, **config})
        differ = [
            f"{key} {_typed(now, key)}, not {config[key]}" for key in config if _typed(now, key) != _typed(asked, key)
        ]
        ways = ["alter_topic()"] if differ else []
        if partitions not in (1, found.partitions):
            differ.insert(0, f"{_shown.number(found.partitions, 'partition')}, not {partitions}")
            ways += ["add_partitions()"] if partitions > found.partitions else []
        if differ:
            _LINES.warning(
                "create_topic(%r, exist_ok=True) returns the topic that exists, which has %s%s",
                found.name,
                "; ".join(differ),
                f" ({' and '.join(ways)} of the store can change that)" if ways else "",
            )

    def _check_new(self, topic: str, topic_id: str | None, found: TopicInfo | None) -> None:
        if found is not None:
            raise TopicExistsException(
                f"Topic '{topic}' already exists.", hint="exist_ok=True returns the existing topic"
            )
        if topic in names.INTERNAL_TOPICS:
            raise InvalidTopicException(f"{topic} is Kafka's internal topic: the store creates it when it is needed")
        cluster = self._topic_settings.cluster
        if cluster is not None and topic in cluster.topics:
            raise TopicExistsException(
                f"Topic '{topic}' already exists in the cluster; none of its partitions is in this store."
            )
        colliding = self.colliding(topic)
        if colliding:
            raise InvalidTopicException(f"Topic '{topic}' collides with existing topic: {', '.join(colliding)}")
        if topic_id is not None:
            known, hint = self._stored.known_of(topic), "omit it to get a random id"
            for each in self._manager.registry.topics():
                if topic_id in self._manager.topic_ids(each) and self._known(each) is not None:
                    raise IllegalArgumentException(f"topic_id: {topic_id} is the id of topic {each!r}", hint=hint)
            if known is not None and known.is_deleted and topic_id in _with(known):
                raise IllegalArgumentException(
                    f"topic_id: {topic_id} is the id of a deleted topic {topic!r}, and files of it may still exist",
                    hint=hint,
                )

    def colliding(self, topic: str) -> list[str]:
        """Returns the topics that metrics could not tell from a new one."""
        made = self._manager.registry.topics_made
        if made != self._indexed:
            self._by_metric = {}
            for each in self.names():
                self._by_metric.setdefault(_metric_name(each), set()).add(each)
            self._indexed = made
        same = self._by_metric.get(_metric_name(topic), ())
        return sorted(each for each in same if each != topic and self._known(each) is not None)

    def _stands(self, topic: str, known: KnownTopic, error: BaseException) -> bool:
        """Returns whether a topic was created completely before an interrupt: others may already write to it."""
        return not isinstance(error, KafkalogError) and self._stored.known_of(topic) == known._replace(made=None)

    def _take_back(self, topic: str, known: KnownTopic) -> None:
        """Undoes a failed creation."""
        self._stored.set(topic, {}, known._replace(is_deleted=True, made=None))
        self._remove(self._logs(topic))
        self._manager.tidy_up(topic)
        if not (known.gone or self._manager.offline_log_dirs):
            self._stored.forget(topic)

    def add_partitions(self, topic: str, partitions: int) -> TopicInfo:
        """Increases a topic's partitions to this number. A key's later records may go to another partition, as in
        Kafka. InvalidPartitionsException if the topic has as many or more; InvalidTopicException for an internal
        topic."""
        partitions = checked_partitions(partitions)
        names.validate_dir_name(f"{values.text(topic, 'topic')}-{partitions - 1}")
        self.check_outside()
        with self.changing:
            self._check(topic)
            found = self.must(topic)
            if found.is_internal:
                raise InvalidTopicException(
                    f"{topic} is Kafka's internal topic: its records are placed by its {found.partitions} partitions"
                )
            if partitions <= found.partitions:
                raise InvalidPartitionsException(
                    f"The topic {topic} currently has {found.partitions} partition(s); {partitions} would not be an "
                    "increase."
                )
            known, overrides = self._adopted(topic, found), self._stored.overrides(topic)
            new = known._replace(partitions=partitions, made=found.partitions)
            self._remove(self._behind(topic, found.partitions))
            try:
                self._set(topic, overrides, new)
                self._make(topic, new, range(found.partitions, partitions))
                self._set(topic, overrides, new._replace(made=None))
            except BaseException as error:
                if not self._stands(topic, new, error):
                    self._undo(topic, lambda: self._take_away(topic, found.partitions, overrides, known))
                raise
            return self.must(topic)

    def _take_away(self, topic: str, partitions: int, overrides: Mapping[str, str], known: KnownTopic) -> None:
        """Undoes a failed addition to this number of partitions."""
        self._remove(self._behind(topic, partitions))
        self._manager.tidy_up(topic)
        if not self._manager.offline_log_dirs:
            self._set(topic, overrides, known)

    def alter(self, topic: str, overrides: Mapping[str, str | None], *, adds_retention: bool = True) -> TopicInfo:
        """Sets some of a topic's settings. None removes an override; for `retention.ms` it restores the value of a new
        topic (`create`) with `adds_retention`. ConfigException, and nothing is changed."""
        given = checked_texts(overrides, taken_away=True)
        LogConfig.validate_names(given)
        values.text(topic, "topic")
        self.check_outside()
        with self.changing:
            self._check(topic)
            found = self.must(topic)
            merged: dict[str, str | None] = {**self._stored.overrides(topic), **given}
            elsewhere = self._topic_settings.own(topic, {})
            for name, value in given.items():
                if value is None and name in elsewhere:
                    raise InvalidConfigurationException(
                        f"{name} of {topic!r} is set in the cluster's metadata, which the store cannot change",
                        hint="set a value for it, which overrides the cluster's here",
                    )
            left: Mapping[str, str] = {name: value for name, value in merged.items() if value is not None}
            if RETENTION in given and adds_retention:
                left = self._with_retention(left)
            checked_overrides({**elsewhere, **left}, "config")
            self.check_tiering({**elsewhere, **left}, {**elsewhere, **self._stored.overrides(topic)})
            with full_at_change(f"the settings of {topic!r} are unchanged"):
                self._set(topic, left, self._adopted(topic, found)._replace(leaves=self._leaves(topic, left)))
            return self.must(topic)

    def _leaves(self, topic: str, overrides: Mapping[str, str]) -> bool:
        """Returns whether a topic with these settings leaves the remote tier, or left it before and that is not yet
        recorded there."""
        known, before = self._stored.known_of(topic), self._manager.config_of(topic)
        after = self._manager.config_with(topic, overrides)
        is_out = not after.remote_storage_enable and after.remote_log_delete_on_disable
        return is_out and (before.remote_storage_enable or (known is not None and known.leaves))

    def check_tiering(self, overrides: Mapping[str, str], before: Mapping[str, str]) -> None:
        """Checks a topic's settings, those of the remote tier against the settings `before`. Errors as
        `LogConfig.validate`."""
        settings = self._manager.settings
        LogConfig.validate(
            overrides,
            existing=before,
            configured={"remote.storage.enable": "false", **settings.default_config.originals},
            remote_storage_system_enabled=settings.has_remote_tier,
        )

    def delete(self, topic: str) -> Deletion:
        """Deletes a topic and all its records. The files are removed after `file.delete.delay.ms`.

        Partitions in an offline directory are removed when it is back. InvalidTopicException for an internal topic.
        """
        values.text(topic, "topic")
        self.check_outside()
        with self.changing:
            self._check(topic)
            found = self.must(topic)
            if found.is_internal:
                raise InvalidTopicException(f"{topic} is Kafka's internal topic: the store needs it")
            with full_at_change(f"{topic!r} is not deleted"):
                known = self._adopted(topic, found)
                logs, overrides = self._logs(topic), self._stored.overrides(topic)
                self._set(topic, {}, known._replace(is_deleted=True, made=None))
            try:
                self._remove(logs)
            except (DiskFull, TooManyOpenFilesException):
                left = self._logs(topic)
                if left == logs:  # all partitions still exist, and stay
                    self._undo(topic, lambda: self._set(topic, overrides, known))
                    raise
                self._refused[topic] = lambda: self._remove(self._logs(topic))  # stays deleted
            self.changes += 1
            was_all_here = len(logs) == found.partitions and known.is_whole and not known.gone
            was_all_here = was_all_here and topic not in self._refused
            return Deletion(topic, known.topic_id, was_all_here)

    def deleted(self) -> list[tuple[str, str]]:
        """Returns deleted topics and their ids, if files of them may be left; without those whose deletion is
        undone."""
        if self.changing.is_mine():
            return []
        with self.changing:
            known = [(topic, each) for topic, each in self._stored.known.items() if topic not in self._refused]
        return [(topic, each.topic_id) for topic, each in known if each.is_deleted]

    def partly_elsewhere(self) -> str | None:
        """Returns a topic that is recorded to have partitions in other directories; None if there is none."""
        for topic, known in self._stored.known.items():
            count = len(known.numbers) if topic in INTERNAL_OVERRIDES else known.partitions
            if not known.is_deleted and known.is_whole and len(self.numbers(topic)) < count:
                return topic
        return None

    def note(self, topic: str) -> None:
        """Records a topic that somebody else created. The end of a transaction that comes while its directory is
        missing then does not take it for deleted. UnknownTopicOrPartitionException."""
        if self._stored.known_of(topic) is None and topic not in INTERNAL_OVERRIDES:
            self.check_outside()
            with self.changing:
                self._check(topic)
                self._set(topic, self._stored.overrides(topic), self._adopted(topic, self.must(topic)))

    def forget(self, deleted: Deletion) -> None:
        """Forgets that a topic was deleted, unless files of it may be in a directory that is not here."""
        with self.changing:
            known = self._stored.known_of(deleted.topic)
            if known is None or not known.is_deleted or known.topic_id != deleted.topic_id:
                return  # it was created again
            is_sure = deleted.was_all_here and not self.away(names.GROUP_METADATA_TOPIC)  # cursors may point into it
            if is_sure and not self._manager.offline_log_dirs:
                self._stored.forget(deleted.topic)

    def internal_partition(self, topic: str, partition: int, *, create: bool) -> UnifiedLog | None:
        """Returns a partition of a coordinator's topic; None if it was never created, and `create` is False.

        KafkaStorageException if it was created and its directory is missing: an empty one would lose its content. The
        same if it is not found while a log directory is offline, which may have it."""
        wanted = TopicPartition(topic, partition)
        log = self._manager.get_log(wanted)
        if log is not None:
            return log
        if partition in self._made_of(topic):
            raise self.away_error(wanted)
        if not create:
            return None
        self.check_outside()
        with self.changing:
            self._check(topic)
            known = self._known(topic)
            if known is None or self._stored.known_of(topic) is None:
                known = known or KnownTopic(INTERNAL_PARTITIONS, "")
                count = self.partition_count(topic)
                known = known._replace(partitions=count, topic_id=known.topic_id or new_topic_id())
                initial = {**INTERNAL_OVERRIDES[topic], **self.new_overrides.get(topic, {})}
                self._set(topic, self._stored.overrides(topic) or initial, known)
            log = self._manager.get_or_create_log(wanted, topic_id=known.topic_id)
            self._note_made(topic)
            self.changes += 1
            return log

    def _note_made(self, topic: str) -> None:
        """Records which partitions of a coordinator's topic exist here. If one is missing at the next start, it is not
        created again. The directory is created first, so that a crash between the two steps leaves nothing missing."""
        known = self._stored.known_of(topic)
        if known is None or known.is_deleted:
            return
        there = {number for number in self.numbers(topic) if number < known.partitions}
        self._stored.set(
            topic, self._stored.overrides(topic), known._replace(numbers=tuple(sorted(there.union(known.numbers))))
        )

    def _made_of(self, topic: str) -> Collection[int]:
        """Returns the partitions of a coordinator's topic that are known to have been created. A broker creates all at
        once."""
        known = self._stored.known_of(topic)
        if known is not None:
            return known.numbers
        directories = self._manager.directories
        is_a_brokers = any(
            directories.files.exists(os.path.join(each, names.META_PROPERTIES_FILE)) for each in directories.live
        )
        return range(self.partition_count(topic)) if is_a_brokers and self.numbers(topic) else ()

    def made(self, topic: str) -> list[int]:
        """Returns the created partitions of an internal topic, here or in a missing directory."""
        return made_partitions(self._stored.known_of(topic), self.numbers(topic))

    def away(self, topic: str) -> Sequence[int]:
        """Returns the partitions of a coordinator's topic that a store created and that have no directory here. A
        broker's partitions may be on another broker."""
        known = self._stored.known_of(topic)
        return [] if known is None else sorted(set(known.numbers).difference(self.numbers(topic)))

    def away_error(self, partition: TopicPartition) -> KafkaStorageException:
        """Returns the error for a partition that was created and cannot be used."""
        offline = self._manager.offline_log_dirs
        if offline:
            return offline_error(partition, offline)
        return no_folder_error(partition, self._manager.directories.shown)

    def numbers(self, topic: str) -> list[int]:
        """Returns the numbers of a topic's partitions that exist here."""
        return self._manager.registry.numbers_of(topic)

    def partition_count(self, topic: str) -> int:
        """Returns how many partitions an internal topic has or will have.

        For a broker's topic this is the highest number plus one if all partitions are here. With gaps, the others are
        on other brokers or were never created, and the result is at least Kafka's default.
        """
        known = self._known(topic)
        if known is None:
            return self.new_counts.get(topic, INTERNAL_PARTITIONS)
        is_guess = self._stored.known_of(topic) is None and self._topic_settings.cluster_known(topic) is None
        if is_guess and len(self.numbers(topic)) < known.partitions:
            return max(known.partitions, INTERNAL_PARTITIONS)
        return known.partitions

    def _adopted(self, topic: str, found: TopicInfo) -> KnownTopic:
        """Returns the state to record of an existing topic. Its directories have its id from then on."""
        known = self._stored.known_of(topic)
        if known is None or known.is_deleted or known.topic_id != found.topic_id:
            known = KnownTopic(found.partitions, found.topic_id or new_topic_id(), gone=_with(known))
        elif known.is_whole:
            known = known._replace(partitions=found.partitions)
        if None in self._manager.topic_ids(topic):
            for log in self._logs(topic):
                if log.topic_id is None:
                    log.assign_topic_id(known.topic_id)
                    log.maybe_flush_metadata_file()
        return known

    def _behind(self, topic: str, partitions: int) -> list[UnifiedLog]:
        """Returns the logs that are left of partitions that could not be added: nobody could write to them."""
        if max(self.numbers(topic), default=-1) < partitions:
            return []
        return [log for log in self._logs(topic) if log.topic_partition.partition >= partitions and not _used(log)]

    def _set(self, topic: str, overrides: Mapping[str, str], known: KnownTopic, *, durable: bool = True) -> None:
        try:
            self._stored.set(topic, overrides, known, durable=durable)
            self._manager.update_topic_config(topic, overrides)
        finally:
            self.changes += 1

    def _make(self, topic: str, known: KnownTopic, numbers: Iterable[int]) -> None:
        """Creates the missing directories. Nobody else has them, because the topic or these partitions are new."""
        there = self.numbers(topic)
        for number in numbers:
            if number not in there:
                partition = TopicPartition(topic, number)
                log = self._manager.get_or_create_log(partition, is_new=True, topic_id=known.topic_id)
                if known.gone:  # a directory without an id is then an older topic's
                    log.maybe_flush_metadata_file()

    def _remove(self, logs: Sequence[UnifiedLog]) -> None:
        if logs:
            self._manager.async_delete_all([log.topic_partition for log in logs])


def _used(log: UnifiedLog) -> bool:
    """Returns whether anything was ever written to a log."""
    return log.log_end_offset > 0


def _with(known: KnownTopic | None) -> tuple[str, ...]:
    """Returns the ids that a topic's name had before, for the next topic of that name."""
    return () if known is None else tuple(dict.fromkeys((*known.gone, known.topic_id)))


def checked_partitions(partitions: object) -> int:
    """Returns the number of partitions. InvalidPartitionsException if no topic can have it."""
    count = values.whole(partitions, "partitions", low=-INT_MAX)
    if not 1 <= count <= PARTITIONS_MAX:
        raise InvalidPartitionsException(f"partitions: found {count}, expected 1 to {PARTITIONS_MAX}")
    return count


def checked_texts(config: object, *, taken_away: bool = False) -> dict[str, str | None]:
    """Returns a topic's settings as given: all text, or None if values may be `taken_away`. They are stored next to the
    data and read again as they were given. IllegalArgumentException."""
    hint = 'such as {"retention.ms": "604800000"}'
    if not isinstance(config, Mapping):
        raise IllegalArgumentException(
            f"config: found {values.shown(config)}, expected Kafka's topic keys and their values", hint=hint
        )
    found: dict[str, str | None] = {}
    for name, value in config.items():
        name = values.text(name, "config: a key", hint=hint)
        found[name] = None if value is None and taken_away else values.text(value, f"config: {name}", hint=hint)
    return found


def checked_settings(config: object) -> Mapping[str, str]:
    """Returns a topic's settings as given. ConfigException for a name that Kafka does not have, and for a value out of
    range; IllegalArgumentException for a value that is not text."""
    return checked_overrides(dict(checked_texts(config)), "config")


def _typed(config: LogConfig, key: str) -> object:
    value = getattr(config, key.replace(".", "_"), config.originals.get(key))
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def _metric_name(topic: str) -> str:
    return topic.replace(".", "_")


def _made_by_open(
    error: UnknownTopicOrPartitionException, log_dir: str, files: Files
) -> UnknownTopicOrPartitionException:
    """Returns the error with the probable cause: this open created the directory, so its name may be mistyped."""
    from difflib import get_close_matches

    parent, name = os.path.split(log_dir)
    with suppress(OSError, KafkalogError):
        near = get_close_matches(name, [each for each in files.list_dir(parent) if each != name])
        found = next((each for each in near if files.is_dir(os.path.join(parent, each))), None)
        meant = "" if found is None else f"did you mean the directory {os.path.join(parent, found)!r}? "
        return UnknownTopicOrPartitionException(
            f"{error.message}: this open created the store, which did not exist",
            hint=f"{meant}read_only=True and create=False refuse a store that does not exist; {error.hint}",
        )
    return error
