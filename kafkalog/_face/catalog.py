"""Which topics a store has: their partitions, ids and settings; what makes, alters and deletes them.

What is to be is written beside the settings (`manager.topic_configs`) before any folder is made or removed, and again
when all are there.  A topic that is being made is not there yet; what a crash cut short is finished by `finish`, what
fails otherwise is taken back, or by whoever makes the topic again.  So a topic is there with all its partitions, or not
at all.  Only what is known to be unfinished is completed: a directory that is not given takes its partitions with it,
and nothing empty takes their place.

Of a topic that somebody else made, a broker or `open_log`, the folders speak: it has as many partitions as the highest
number says, and the id that lies in them; with the first change it is known here, too.  Where a topic that is known
was deleted or made again by others, the folders are right as well, and their ids tell.  One that has no folder here is
away with its directories, and is not made again, unless a cluster has the directories and says that it is gone.
Kafka's internal topics are made partition by partition, each when it is first written to; which ones were made is
written down, so that one whose directory is away is refused, as any other partition is.

One lock over a whole change, taken before the manager's.  Thread-safe; looking takes none.
Source: Topic, ReplicationControlManager.createTopic, TopicConfig of the two coordinators (4.4.0).
"""

from __future__ import annotations

import base64
import os
import uuid
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
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.format.partition_metadata import checked_topic_id
from kafkalog.engine.host.changes import inside
from kafkalog.engine.host.log_manager import LogManager
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

INTERNAL_PARTITIONS = 50  # offsets.topic.num.partitions, transaction.state.log.num.partitions
PARTITIONS_MAX = 10_000  # that one call makes: what a name in the wrong place would ask for
_LINES = Lines("kafkalog.topics")
RETENTION, FOR_EVER = "retention.ms", "-1"
# What the coordinators' topics have beside a broker's defaults.
INTERNAL_OVERRIDES: Mapping[str, Mapping[str, str]] = {
    names.GROUP_METADATA_TOPIC: {
        "cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600",
    },
    names.TRANSACTION_STATE_TOPIC: {
        "cleanup.policy": "compact", "compression.type": "uncompressed", "segment.bytes": "104857600",
        "min.insync.replicas": "2", "unclean.leader.election.enable": "false",
    },
    names.REMOTE_LOG_METADATA_TOPIC: {"cleanup.policy": "delete", "retention.ms": "-1"},
}  # fmt: skip


class Deletion(NamedTuple):
    """Of a topic; `was_all_here`: all its partitions were, so that nothing of it can come back."""

    topic: str
    topic_id: str
    was_all_here: bool


class _Seen(NamedTuple):
    """A topic as it was when it was looked at: `stored` and what else counted then."""

    stored: KnownTopic
    changes: int
    has_offline: bool
    present: KnownTopic | None


class Catalog:
    """Of one manager, which is running and keeps its topics' settings beside the data; `life` is the store's."""

    def __init__(self, manager: LogManager, life: Life, topic_settings: TopicSettings) -> None:
        stored = manager.topic_configs
        assert isinstance(stored, StoredTopicConfigs), stored
        self._manager = manager
        self._stored = stored
        self._life = life
        self._topic_settings = topic_settings  # what others say of a topic
        self.made_in = ""  # the first directory, if the open of this store made it
        self.changing = PartitionLock()  # held over a whole change
        self._seen: dict[str, _Seen] = {}  # what topics were when they were looked at
        self._by_metric: dict[str, set[str]] = {}  # that metrics could not tell apart; some may be gone
        self._indexed = -1  # up to which topic (`LogRegistry.topics_made`)
        self._refused: dict[str, Callable[[], None]] = {}  # guarded by changing; what takes a half made change back
        self.changes = 0  # of topics so far, counted when each is done; who asks less often than it changes keeps it

    # --- looking -------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Of all topics, in order."""
        found = {*self._stored.known, *self._manager.topics()} - {names.CLUSTER_METADATA_TOPIC}
        return sorted(topic for topic in found if self._present(topic, self.numbers(topic)) is not None)

    def info(self, topic: str) -> TopicInfo | None:
        """What is known of a topic; None where there is none of that name."""
        overrides = self._topic_settings.own(topic, self._stored.overrides(topic))
        return topic_info(topic, self._known(topic), overrides)

    def has_settings(self, topic: str) -> bool:
        """Whether the store keeps settings of a topic, be it that it has none of its own."""
        return self._stored.has(topic)

    def must(self, topic: str) -> TopicInfo:
        """UnknownTopicOrPartitionException where there is none."""
        found = self.info(values.text(topic, "topic"))
        if found is None:
            known = (*self._stored.known, *self._manager.topics())
            error = no_topic(topic, self._manager.directories.shown, known, lambda name: self._known(name) is not None)
            raise _made_by_open(error, self.made_in, self._manager.files) if self.made_in and not known else error
        return found

    def available(self, topic: str, partitions: int) -> Sequence[int]:
        """The partitions of a topic, of so many, that are here and online."""
        there = self.numbers(topic)
        return range(partitions) if len(there) >= partitions else [each for each in there if each < partitions]

    def settled_log(self, partition: TopicPartition) -> UnifiedLog | None:
        """A partition's log, when whatever is just being made or removed is done."""
        if self.changing.is_mine():  # of a signal handler, which others would wait for
            return self._manager.get_log(partition)
        with self.changing:
            return self._manager.get_log(partition)

    def is_gone(self, log: UnifiedLog) -> bool:
        """Whether a log that is being loaded belongs to a topic that was deleted while its directory was away, and made
        again since, or was not made whole there: two folders of one partition, perhaps."""
        known = self._stored.known_of(log.topic_partition.topic)
        if known is None or known.is_deleted or not known.gone:
            return False
        return log.topic_id in known.gone or (log.topic_id is None and not _used(log))

    def log_to_end(self, partition: TopicPartition) -> UnifiedLog | None:
        """A partition's log, for the end of a transaction.  None only where it is deleted: whatever else a transaction
        was in has to hear of its end.  KafkaStorageException if its folder is away: the end waits for it."""
        info = self.info(partition.topic)
        if info is None:
            return None
        return self._manager.log_to_change(partition) or self._log_to_end(partition)

    def _log_to_end(self, partition: TopicPartition) -> UnifiedLog | None:
        with self.changing:  # what is just deleted, or made, is done then
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
        """A topic as it is there; what was seen of it counts while neither it nor any log has changed."""
        if self._manager.changes.cut_short:
            self._manager.changes.settle()
        stored = self._stored.known_of(topic)
        changes, has_offline = self._manager.registry.changes, bool(self._manager.offline_log_dirs)  # before the look
        seen = self._seen.get(topic)
        if seen is not None and seen.stored is stored and (seen.changes, seen.has_offline) == (changes, has_offline):
            return seen.present
        numbers = self.numbers(topic)
        present = self._present(topic, numbers)
        first_id = next(self._manager.topic_ids(topic, numbers), None)
        if stored is not None and numbers and first_id == stored.topic_id:  # no id that comes later says otherwise
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
        """That a change of a topic may be made, with `changing` held; directories that failed are left out of it.
        DiskFull, TooManyOpenFilesException where one that was refused is not undone yet."""
        if not self._life.live:
            raise self._life.refusal(f"the store of {self._manager.directories.shown}")
        self._leave_failed()
        self._take_back_refused()
        self._settle_topic(topic)

    def take_back_refused(self) -> None:
        """What was refused for want of space, and found none for its undoing either, is undone; it is tried again with
        the next change.  Else the next start would finish it."""
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
                undo()  # says why not
                self._refused.pop(topic, None)

    def _undo(self, topic: str, undo: Callable[[], None]) -> None:
        """After a change failed.  What the disk does not let go of is left to the next one, or the next start."""
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
        self._manager.changes.settle()  # what another thread is just finishing of ours is among the logs then
        for log_dir in self._manager.failure_channel.offline_log_dirs:
            self._manager.handle_log_dir_failure(log_dir)

    def check_outside(self) -> None:
        """IllegalStateException in the middle of a change of this thread's, by a signal handler or a finalizer."""
        if self.changing.is_mine():
            raise inside("changing this store's topics")

    def finish(self) -> None:
        """What a crash cut short, and what others did meanwhile: partitions that are missing of a topic that was being
        made are made, what is left of a deleted one goes, and a topic that others made again is theirs."""
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
        if logs and (known.is_deleted or (ids and known.topic_id not in ids)):  # made again, by others
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
    ) -> TopicInfo:
        """A new topic, with folders for all its partitions; `exist_ok`: or the one that is there.  It keeps its records
        for ever (`retention.ms=-1` is among its settings) unless `overrides` or the store's defaults have a
        `retention.ms`.

        InvalidTopicException for a name that Kafka refuses, one of Kafka's own, or one that differs from another
        topic's in '.' and '_' alone; TopicExistsException; InvalidPartitionsException; ConfigException;
        IllegalArgumentException for an id that another topic has; KafkaStorageException, and then there is none.
        """
        partitions = checked_partitions(partitions)
        names.validate_topic_name(values.text(topic, "name"))
        names.validate_dir_name(f"{topic}-{partitions - 1}")
        topic_id = None if topic_id is None else checked_topic_id(topic_id)
        config = {} if overrides is None else checked_settings(overrides)
        overrides = self._with_retention(config)
        self._check_tiering(overrides, {})
        self.check_outside()
        with self.changing:
            self._check(topic)
            found = self.info(topic)
            if found is not None and exist_ok:
                self._tell_of_differences(found, partitions, config)
                return found
            self._check_new(topic, topic_id, found)
            before = self._stored.known_of(topic)
            self._remove(self._logs(topic))  # what a creation, or a deletion, could not take away
            known = KnownTopic(partitions, topic_id or new_topic_id(), made=0, gone=_with(before))
            try:
                self._set(topic, overrides, known)
                self._make(topic, known, range(partitions))
                # Where power loss undoes this, the next start comes to the same: all its folders are there.
                self._set(topic, overrides, known._replace(made=None), durable=False)
                self._by_metric.setdefault(_metric_name(topic), set()).add(topic)
                self._indexed += 1  # if others made one meanwhile, the next look begins anew
            except BaseException as error:
                if not self._stands(topic, known, error):
                    self._undo(topic, lambda: self._take_back(topic, known))
                raise
            return self.must(topic)

    def _with_retention(self, overrides: Mapping[str, str]) -> Mapping[str, str]:
        """Nothing goes by age unless the caller has said so: Kafka's default, seven days, was not asked for."""
        given = (overrides, self._manager.current_default_config.originals, self._topic_settings.static_defaults)
        return overrides if any(RETENTION in each for each in given) else {**overrides, RETENTION: FOR_EVER}

    def _tell_of_differences(self, found: TopicInfo, partitions: int, config: Mapping[str, str]) -> None:
        """A line in the log if a topic that is there is not what `create` was asked for; one partition is its default,
        and was not asked for."""
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
                "create_topic(%r, exist_ok=True) took the topic that is there, which has %s%s",
                found.name,
                "; ".join(differ),
                f" ({' and '.join(ways)} of the store would change that)" if ways else "",
            )

    def _check_new(self, topic: str, topic_id: str | None, found: TopicInfo | None) -> None:
        if found is not None:
            raise TopicExistsException(
                f"Topic '{topic}' already exists.", hint="exist_ok=True takes the one that is there"
            )
        if topic in names.INTERNAL_TOPICS:
            raise InvalidTopicException(f"{topic} is Kafka's own: the store makes it when it is needed")
        cluster = self._topic_settings.cluster
        if cluster is not None and topic in cluster.topics:
            raise TopicExistsException(
                f"Topic '{topic}' already exists in the cluster; none of its partitions is here."
            )
        colliding = self._colliding(topic)
        if colliding:
            raise InvalidTopicException(f"Topic '{topic}' collides with existing topic: {', '.join(colliding)}")
        if topic_id is not None:
            known, hint = self._stored.known_of(topic), "leave it out for a random one"
            for each in self._manager.registry.topics():
                if topic_id in self._manager.topic_ids(each) and self._known(each) is not None:
                    raise IllegalArgumentException(f"topic_id: {topic_id} is the id of topic {each!r}", hint=hint)
            if known is not None and known.is_deleted and topic_id in _with(known):
                raise IllegalArgumentException(
                    f"topic_id: {topic_id} is the id of a deleted topic {topic!r}, of which something may be left",
                    hint=hint,
                )

    def _colliding(self, topic: str) -> list[str]:
        """The topics that metrics could not tell from a new one."""
        made = self._manager.registry.topics_made
        if made != self._indexed:
            self._by_metric = {}
            for each in self.names():
                self._by_metric.setdefault(_metric_name(each), set()).add(each)
            self._indexed = made
        same = self._by_metric.get(_metric_name(topic), ())
        return sorted(each for each in same if each != topic and self._known(each) is not None)

    def _stands(self, topic: str, known: KnownTopic, error: BaseException) -> bool:
        """Whether what was being made is there for all, and an interrupt came behind: others may write there."""
        return not isinstance(error, KafkalogError) and self._stored.known_of(topic) == known._replace(made=None)

    def _take_back(self, topic: str, known: KnownTopic) -> None:
        """After a creation failed."""
        self._stored.set(topic, {}, known._replace(is_deleted=True, made=None))
        self._remove(self._logs(topic))
        self._manager.tidy_up(topic)
        if not (known.gone or self._manager.offline_log_dirs):
            self._stored.forget(topic)

    def add_partitions(self, topic: str, partitions: int) -> TopicInfo:
        """Gives a topic so many partitions in all.  A key's records go elsewhere from then on, as in Kafka.
        InvalidPartitionsException where it has as many, or more; InvalidTopicException for a topic of Kafka's own."""
        partitions = checked_partitions(partitions)
        names.validate_dir_name(f"{values.text(topic, 'topic')}-{partitions - 1}")
        self.check_outside()
        with self.changing:
            self._check(topic)
            found = self.must(topic)
            if found.is_internal:
                raise InvalidTopicException(f"{topic} is Kafka's own: what it holds lies where {found.partitions} say")
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
        """After some could not be added to so many partitions."""
        self._remove(self._behind(topic, partitions))
        self._manager.tidy_up(topic)
        if not self._manager.offline_log_dirs:
            self._set(topic, overrides, known)

    def alter(self, topic: str, overrides: Mapping[str, str | None]) -> TopicInfo:
        """Sets some of a topic's settings; None takes an override away, and for `retention.ms` gives what a new
        topic has (`create`).  ConfigException, and nothing is changed."""
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
                        f"{name} of {topic!r} is set in the cluster's metadata, which the store does not change",
                        hint="give it a value, which then counts here",
                    )
            left: Mapping[str, str] = {name: value for name, value in merged.items() if value is not None}
            if RETENTION in given:
                left = self._with_retention(left)
            checked_overrides({**elsewhere, **left}, "config")
            self._check_tiering({**elsewhere, **left}, {**elsewhere, **self._stored.overrides(topic)})
            with full_at_change(f"the settings of {topic!r} are as before"):
                self._set(topic, left, self._adopted(topic, found)._replace(leaves=self._leaves(topic, left)))
            return self.must(topic)

    def _leaves(self, topic: str, overrides: Mapping[str, str]) -> bool:
        """Whether a topic that is to have these settings leaves the remote tier, or did, which is not noted there."""
        known, before = self._stored.known_of(topic), self._manager.config_of(topic)
        after = self._manager.config_with(topic, overrides)
        is_out = not after.remote_storage_enable and after.remote_log_delete_on_disable
        return is_out and (before.remote_storage_enable or (known is not None and known.leaves))

    def _check_tiering(self, overrides: Mapping[str, str], before: Mapping[str, str]) -> None:
        settings = self._manager.settings
        LogConfig.validate(
            overrides,
            existing=before,
            configured={"remote.storage.enable": "false", **settings.default_config.originals},
            remote_storage_system_enabled=settings.has_remote_tier,
        )

    def delete(self, topic: str) -> Deletion:
        """Deletes a topic and all its records; the files go after `file.delete.delay.ms`.

        Partitions in a directory that is offline go when it is back.  InvalidTopicException for a topic of Kafka's own.
        """
        values.text(topic, "topic")
        self.check_outside()
        with self.changing:
            self._check(topic)
            found = self.must(topic)
            if found.is_internal:
                raise InvalidTopicException(f"{topic} is Kafka's own: the store needs it")
            with full_at_change(f"{topic!r} is not deleted"):
                known = self._adopted(topic, found)
                logs, overrides = self._logs(topic), self._stored.overrides(topic)
                self._set(topic, {}, known._replace(is_deleted=True, made=None))
            try:
                self._remove(logs)
            except (DiskFull, TooManyOpenFilesException):
                left = self._logs(topic)
                if left == logs:  # all of it is there, and stays
                    self._undo(topic, lambda: self._set(topic, overrides, known))
                    raise
                self._refused[topic] = lambda: self._remove(self._logs(topic))  # it is deleted, and goes on to be
            self.changes += 1
            was_all_here = len(logs) == found.partitions and known.is_whole and not known.gone
            was_all_here = was_all_here and topic not in self._refused
            return Deletion(topic, known.topic_id, was_all_here)

    def deleted(self) -> list[tuple[str, str]]:
        """The topics of which it is not sure that nothing is left, and their ids; none that is to come back."""
        if self.changing.is_mine():
            return []
        with self.changing:
            known = [(topic, each) for topic, each in self._stored.known.items() if topic not in self._refused]
        return [(topic, each.topic_id) for topic, each in known if each.is_deleted]

    def partly_elsewhere(self) -> str | None:
        """A topic of which it is written down that it has partitions in other directories; None where there is none."""
        for topic, known in self._stored.known.items():
            count = len(known.numbers) if topic in INTERNAL_OVERRIDES else known.partitions
            if not known.is_deleted and known.is_whole and len(self.numbers(topic)) < count:
                return topic
        return None

    def note(self, topic: str) -> None:
        """Writes down what a topic is that somebody else made, so that an end of a transaction that comes where it is
        away does not take it for deleted.  UnknownTopicOrPartitionException."""
        if self._stored.known_of(topic) is None and topic not in INTERNAL_OVERRIDES:
            self.check_outside()
            with self.changing:
                self._check(topic)
                self._set(topic, self._stored.overrides(topic), self._adopted(topic, self.must(topic)))

    def forget(self, deleted: Deletion) -> None:
        """Says no more that a topic was deleted, unless something of it may be in a directory that is not here."""
        with self.changing:
            known = self._stored.known_of(deleted.topic)
            if known is None or not known.is_deleted or known.topic_id != deleted.topic_id:
                return  # it was made again
            is_sure = deleted.was_all_here and not self.away(names.GROUP_METADATA_TOPIC)  # cursors may point into it
            if is_sure and not self._manager.offline_log_dirs:
                self._stored.forget(deleted.topic)

    def internal_partition(self, topic: str, partition: int, *, create: bool) -> UnifiedLog | None:
        """A partition of one of the coordinators' topics; None if it was never made, and is not to be made.

        KafkaStorageException if it was made, and its folder is away (what it holds would begin anew), or if it is
        missing while a directory is offline, which may have it."""
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
                self._set(topic, self._stored.overrides(topic) or INTERNAL_OVERRIDES[topic], known)
            log = self._manager.get_or_create_log(wanted, topic_id=known.topic_id)
            self._note_made(topic)
            self.changes += 1
            return log

    def _note_made(self, topic: str) -> None:
        """That the partitions of a coordinator's topic that are here were made: if one is away at the next start, it is
        not made anew.  The folder comes first, so that a crash between the two leaves nothing that is missing."""
        known = self._stored.known_of(topic)
        if known is None or known.is_deleted:
            return
        there = {number for number in self.numbers(topic) if number < known.partitions}
        self._stored.set(
            topic, self._stored.overrides(topic), known._replace(numbers=tuple(sorted(there.union(known.numbers))))
        )

    def _made_of(self, topic: str) -> Collection[int]:
        """The partitions of a coordinator's topic that were made, as far as that is known.  A broker makes all at
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
        """The partitions of one of Kafka's own topics that were made so far, here or in a directory that is away."""
        return made_partitions(self._stored.known_of(topic), self.numbers(topic))

    def away(self, topic: str) -> Sequence[int]:
        """The partitions of a coordinator's topic that a store made, and that have no folder here.  A broker's may be
        another broker's."""
        known = self._stored.known_of(topic)
        return [] if known is None else sorted(set(known.numbers).difference(self.numbers(topic)))

    def away_error(self, partition: TopicPartition) -> KafkaStorageException:
        """Why a partition that was made cannot be used."""
        offline = self._manager.offline_log_dirs
        if offline:
            return offline_error(partition, offline)
        return no_folder_error(partition, self._manager.directories.shown)

    def numbers(self, topic: str) -> list[int]:
        """Of the partitions of a topic that are there."""
        return self._manager.registry.numbers_of(topic)

    def partition_count(self, topic: str) -> int:
        """How many partitions an internal topic has, or will have.

        Of one that a broker made, as many as the highest number says, where all are here; with gaps, some are on other
        brokers, or were never made, and it is Kafka's number at least.
        """
        known = self._known(topic)
        if known is None:
            return INTERNAL_PARTITIONS
        is_guess = self._stored.known_of(topic) is None and self._topic_settings.cluster_known(topic) is None
        if is_guess and len(self.numbers(topic)) < known.partitions:
            return max(known.partitions, INTERNAL_PARTITIONS)
        return known.partitions

    def _adopted(self, topic: str, found: TopicInfo) -> KnownTopic:
        """What is to be written of a topic that is there; its folders have its id from then on."""
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
        """What is left of partitions that could not be added: nobody could write there."""
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
        """The folders that are missing: nobody else has them, as the topic is new, or these partitions are."""
        there = self.numbers(topic)
        for number in numbers:
            if number not in there:
                partition = TopicPartition(topic, number)
                log = self._manager.get_or_create_log(partition, is_new=True, topic_id=known.topic_id)
                if known.gone:  # what has no id then is none of its folders
                    log.maybe_flush_metadata_file()

    def _remove(self, logs: Sequence[UnifiedLog]) -> None:
        if logs:
            self._manager.async_delete_all([log.topic_partition for log in logs])


def _used(log: UnifiedLog) -> bool:
    """Whether anything was ever written there."""
    return log.log_end_offset > 0


def _with(known: KnownTopic | None) -> tuple[str, ...]:
    """The ids that had a topic's name before, of the next one of that name."""
    return () if known is None else tuple(dict.fromkeys((*known.gone, known.topic_id)))


def checked_partitions(partitions: object) -> int:
    """InvalidPartitionsException for what is no number of partitions."""
    count = values.whole(partitions, "partitions", low=-INT_MAX)
    if not 1 <= count <= PARTITIONS_MAX:
        raise InvalidPartitionsException(f"partitions: found {count}, expected 1 to {PARTITIONS_MAX}")
    return count


def checked_texts(config: object, *, taken_away: bool = False) -> dict[str, str | None]:
    """A topic's settings as a caller gives them, all text, or None where they may be `taken_away`: what is kept beside
    the data is read again as it was given.  IllegalArgumentException."""
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
    """A topic's settings as a caller gives them.  ConfigException for a name that Kafka has not, and for a value out of
    range; IllegalArgumentException for what is no text."""
    return checked_overrides(dict(checked_texts(config)), "config")


def _typed(config: LogConfig, key: str) -> object:
    value = getattr(config, key.replace(".", "_"), config.originals.get(key))
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def new_topic_id() -> str:
    """A random Uuid as Kafka makes one: not of the reserved ones, nor with a '-' in front, which a shell would take."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def _metric_name(topic: str) -> str:
    return topic.replace(".", "_")


def _made_by_open(
    error: UnknownTopicOrPartitionException, log_dir: str, files: Files
) -> UnknownTopicOrPartitionException:
    """The error, with what may be wrong: this open made the directory, so its name may be mistyped."""
    from difflib import get_close_matches

    parent, name = os.path.split(log_dir)
    with suppress(OSError, KafkalogError):
        near = get_close_matches(name, [each for each in files.list_dir(parent) if each != name])
        found = next((each for each in near if files.is_dir(os.path.join(parent, each))), None)
        meant = "" if found is None else f"did you mean the folder {os.path.join(parent, found)!r}? "
        return UnknownTopicOrPartitionException(
            f"{error.message}: this open made the store, which was not there",
            hint=f"{meant}read_only=True and create=False refuse a store that is not there; {error.hint}",
        )
    return error
