"""Which topics a store has: their partitions, ids and settings; what makes, alters and deletes them.

What is to be is written beside the settings (`manager.topic_configs`) before any folder is made or removed, so that
whatever a crash cut short is finished by the next `finish`: a topic is there with all its partitions, or not at all.
Of a topic that somebody else made, a broker or `open_log`, the folders speak: it has as many partitions as the highest
number says, and the id that lies in them; with the first change it is known here, too.  Kafka's internal topics are
made partition by partition, each when it is first written to.

One lock over a whole change, taken before the manager's.  Thread-safe; looking takes none.
Source: Topic, ReplicationControlManager.createTopic, TopicConfig of the two coordinators (4.4.0).
"""

from __future__ import annotations

import base64
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kafkalog.errors import (
    IllegalArgumentException,
    InvalidPartitionsException,
    InvalidTopicException,
    TopicExistsException,
    UnknownTopicOrPartitionException,
)
from kafkalog.format import names, values
from kafkalog.format.names import TopicPartition
from kafkalog.limits import INT_MAX
from kafkalog.log.unified_log import UnifiedLog
from kafkalog.manager.log_manager import LogManager
from kafkalog.manager.topic_configs import KnownTopic, StoredTopicConfigs, checked_overrides

INTERNAL_PARTITIONS = 50  # offsets.topic.num.partitions, transaction.state.log.num.partitions
PARTITIONS_MAX = 10_000  # that one call makes: what a name in the wrong place would ask for
# What the coordinators' topics have beside a broker's defaults.
INTERNAL_OVERRIDES: Mapping[str, Mapping[str, str]] = {
    names.GROUP_METADATA_TOPIC: {
        "cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600",
    },
    names.TRANSACTION_STATE_TOPIC: {
        "cleanup.policy": "compact", "compression.type": "uncompressed", "segment.bytes": "104857600",
        "min.insync.replicas": "2", "unclean.leader.election.enable": "false",
    },
}  # fmt: skip


class TopicInfo(NamedTuple):
    """A topic: how many partitions it has, its id (a Uuid of 22 characters; None where nobody gave it one), and the
    settings in which it differs from the store's defaults."""

    name: str
    partitions: int
    topic_id: str | None
    overrides: Mapping[str, str]
    is_internal: bool


class Catalog:
    """Of one manager, which is running and keeps its topics' settings beside the data."""

    def __init__(self, manager: LogManager) -> None:
        stored = manager.topic_configs
        assert isinstance(stored, StoredTopicConfigs), stored
        self._manager = manager
        self._stored = stored
        self.changing = threading.RLock()  # held over a whole change
        self.changes = 0  # of topics so far, counted when each is done; who asks less often than it changes keeps it

    # --- looking -------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Of all topics, in order."""
        gone = {topic for topic, known in self._stored.known.items() if known.is_deleted}
        known = [topic for topic in self._stored.known if topic not in gone]
        seen = [log.topic_partition.topic for log in self._manager.all_logs() if not log.is_future]
        return sorted({*known, *(topic for topic in seen if topic not in gone)} - {names.CLUSTER_METADATA_TOPIC})

    def info(self, topic: str) -> TopicInfo | None:
        """What is known of a topic; None where there is none of that name."""
        return topic_info(topic, self._known(topic), self._stored.overrides(topic))

    def must(self, topic: str) -> TopicInfo:
        """UnknownTopicOrPartitionException where there is none."""
        found = self.info(values.text(topic, "topic"))
        if found is None:
            raise no_topic(topic, self._manager.directories.shown)
        return found

    def settled_log(self, partition: TopicPartition) -> UnifiedLog | None:
        """A partition's log, when whatever is just being made or removed is done."""
        with self.changing:
            return self._manager.get_log(partition)

    def log_to_end(self, partition: TopicPartition) -> UnifiedLog | None:
        """A partition's log, made where it is missing, for the end of a transaction.  None only where it is deleted:
        whatever else a transaction was in has to hear of its end."""
        info = self.info(partition.topic)
        if info is None:
            return None
        return self._manager.get_log(partition) or self._log_to_end(partition)

    def _log_to_end(self, partition: TopicPartition) -> UnifiedLog | None:
        with self.changing:  # what is just deleted must not be made anew
            info = self.info(partition.topic)
            if info is None or partition.partition >= info.partitions:
                return None
            return self._manager.get_or_create_log(partition, topic_id=info.topic_id)

    def _known(self, topic: str) -> KnownTopic | None:
        return self._stored.known.get(topic) or self._of_folders(self._manager.logs_by_topic(topic))

    @staticmethod
    def _of_folders(logs: list[UnifiedLog]) -> KnownTopic | None:
        topic_id = next((log.topic_id for log in logs if log.topic_id is not None), "")
        return of_folders([log.topic_partition.partition for log in logs], topic_id)

    # --- changing ------------------------------------------------------------------------------------

    def finish(self) -> None:
        """What a crash cut short: partitions that are missing are made, and what is left of deleted topics goes."""
        with self.changing:
            for topic, known in self._stored.known.items():
                if known.is_deleted:
                    self._remove(topic)
                elif topic not in INTERNAL_OVERRIDES:
                    self._make(topic, known)

    def create(
        self, topic: str, partitions: int = 1, overrides: Mapping[str, str] | None = None, topic_id: str | None = None
    ) -> TopicInfo:
        """A new topic, with folders for all its partitions.

        InvalidTopicException for a name that Kafka refuses, or one that differs from another topic's in '.' and '_'
        alone; TopicExistsException; InvalidPartitionsException; ConfigException; KafkaStorageException, and then the
        topic may be there with a part of its folders, which the next start completes.
        """
        names.validate_topic_name(values.text(topic, "topic"))
        partitions = checked_partitions(partitions)
        overrides = checked_overrides({} if overrides is None else overrides, "config")
        with self.changing:
            if self.info(topic) is not None:
                raise TopicExistsException(f"Topic '{topic}' already exists.")
            colliding = [each for each in self.names() if _metric_name(each) == _metric_name(topic)]
            if colliding:
                raise InvalidTopicException(f"Topic '{topic}' collides with existing topic: {', '.join(colliding)}")
            self._remove(topic)  # what a deletion could not reach
            known = KnownTopic(partitions, new_topic_id() if topic_id is None else topic_id)
            self._set(topic, overrides, known)
            self._make(topic, known)
            return self.must(topic)

    def add_partitions(self, topic: str, partitions: int) -> TopicInfo:
        """Gives a topic so many partitions in all.  A key's records go elsewhere from then on, as in Kafka.
        InvalidPartitionsException where it has as many, or more."""
        partitions = checked_partitions(partitions)
        with self.changing:
            found = self.must(topic)
            if partitions <= found.partitions:
                raise InvalidPartitionsException(
                    f"The topic {topic} currently has {found.partitions} partition(s); {partitions} would not be an "
                    "increase."
                )
            known = KnownTopic(partitions, found.topic_id or new_topic_id())
            self._set(topic, found.overrides, known)
            self._make(topic, known)
            return self.must(topic)

    def alter(self, topic: str, overrides: Mapping[str, str | None]) -> TopicInfo:
        """Sets some of a topic's settings; None takes an override away.  ConfigException, and nothing is changed."""
        if not isinstance(overrides, Mapping):
            raise IllegalArgumentException(f"config: found {values.shown(overrides)}, expected settings and values")
        with self.changing:
            found = self.must(topic)
            merged: dict[str, str | None] = {**found.overrides, **overrides}
            left = checked_overrides({name: value for name, value in merged.items() if value is not None}, "config")
            self._set(topic, left, KnownTopic(found.partitions, found.topic_id or new_topic_id()))
            return self.must(topic)

    def delete(self, topic: str) -> TopicInfo:
        """Deletes a topic and all its records; the files go after `file.delete.delay.ms`.  Answers what it was.

        Partitions in a directory that is offline go when it is back.  InvalidTopicException for a topic of Kafka's own.
        """
        with self.changing:
            found = self.must(topic)
            if found.is_internal:
                raise InvalidTopicException(f"{topic} is Kafka's own: the store needs it")
            self._set(topic, {}, KnownTopic(found.partitions, found.topic_id or new_topic_id(), True))
            self._remove(topic)
            return found

    def internal_partition(self, topic: str, partition: int, *, create: bool) -> UnifiedLog | None:
        """A partition of one of the coordinators' topics; None where it is not there, and is not to be made."""
        log = self._manager.get_log(TopicPartition(topic, partition))
        if log is not None or not create:
            return log
        with self.changing:
            known = self._known(topic)
            if known is None or topic not in self._stored.known:
                known = known or KnownTopic(INTERNAL_PARTITIONS, "")
                known = known._replace(topic_id=known.topic_id or new_topic_id())
                self._set(topic, self._stored.overrides(topic) or INTERNAL_OVERRIDES[topic], known)
            is_new = not self._manager.offline_log_dirs  # else it may lie there: two would say different things
            return self._manager.get_or_create_log(
                TopicPartition(topic, partition), is_new=is_new, topic_id=known.topic_id
            )

    def partition_count(self, topic: str) -> int:
        """How many partitions an internal topic has, or will have."""
        known = self._known(topic)
        return INTERNAL_PARTITIONS if known is None else known.partitions

    def _set(self, topic: str, overrides: Mapping[str, str], known: KnownTopic) -> None:
        self._stored.set(topic, overrides, known)
        self.changes += 1
        self._manager.update_topic_config(topic, overrides)

    def _make(self, topic: str, known: KnownTopic) -> None:
        """The folders that are missing, but for those that may lie in a directory that is offline."""
        there = {log.topic_partition.partition for log in self._manager.logs_by_topic(topic) if not log.is_future}
        is_new = not self._manager.offline_log_dirs
        for partition in range(known.partitions):
            if partition not in there and is_new:
                self._manager.get_or_create_log(TopicPartition(topic, partition), is_new=True, topic_id=known.topic_id)

    def _remove(self, topic: str) -> None:
        self._manager.async_delete_all([log.topic_partition for log in self._manager.logs_by_topic(topic)])


def of_folders(partitions: Sequence[int], topic_id: str) -> KnownTopic | None:
    """What the folders of a topic say of it."""
    return KnownTopic(1 + max(partitions), topic_id) if partitions else None


def topic_info(topic: str, known: KnownTopic | None, overrides: Mapping[str, str]) -> TopicInfo | None:
    """What is known of a topic; None where that is nothing, or its deletion."""
    if known is None or known.is_deleted:
        return None
    is_internal = topic in names.INTERNAL_TOPICS
    return TopicInfo(topic, known.partitions, known.topic_id or None, dict(overrides), is_internal)


def no_topic(topic: str, place: str) -> UnknownTopicOrPartitionException:
    return UnknownTopicOrPartitionException(f"no topic {topic!r} in {place}", hint="create_topic() makes one")


def checked_partitions(partitions: object) -> int:
    """InvalidPartitionsException for what is no number of partitions."""
    count = values.whole(partitions, "partitions", low=-INT_MAX)
    if not 1 <= count <= PARTITIONS_MAX:
        raise InvalidPartitionsException(f"partitions: found {count}, expected 1 to {PARTITIONS_MAX}")
    return count


def new_topic_id() -> str:
    """A random Uuid as Kafka makes one: not of the reserved ones, nor with a '-' in front, which a shell would take."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def _metric_name(topic: str) -> str:
    return topic.replace(".", "_")
