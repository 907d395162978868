"""The topics of the store as requests name them: by name or by id, and the log of each partition.

    topic = hosted.named("orders") or hosted.with_id(topic_id)
    log = topic.log(3)

A look-up costs one dictionary access while no topic and no log has changed.  After a change, a topic is looked up
again at its next use; the others are not touched.  A partition of one of Kafka's internal topics that nobody has
written to has no log.  Any thread may use it: an entry is replaced as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.engine.format.java_text import ZERO_UUID
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import UnknownTopicOrPartitionException

if TYPE_CHECKING:
    from kafkalog._face.store_home import StoreHome
    from kafkalog._face.topic_info import TopicInfo
    from kafkalog.engine.log.unified_log import UnifiedLog
    from kafkalog.server.broker import Broker


class HostedTopic:
    """One topic, as it was at one version of the store's topics.

    `id` is ZERO_UUID if the topic has none; `partitions` is how many it has.
    """

    __slots__ = ("_home", "_logs", "id", "is_internal", "name", "partitions", "version")

    def __init__(self, home: StoreHome, info: TopicInfo, version: tuple[int, int]) -> None:
        self._home = home
        self._logs: dict[int, UnifiedLog] = {}
        self.name = info.name
        self.id = info.topic_id or ZERO_UUID
        self.partitions = info.partitions
        self.is_internal = info.is_internal
        self.version = version

    def log(self, number: int) -> UnifiedLog | None:
        """Returns the log of a partition that the topic has; None for one of an internal topic that has no log yet.

        Raises KafkaStorageException if its directory is offline or missing.
        """
        found = self._logs.get(number)
        if found is None:
            found = self._found(number)
            if found is not None:
                self._logs[number] = found
        return found

    def _found(self, number: int) -> UnifiedLog | None:
        home, partition = self._home, TopicPartition(self.name, number)
        if self.is_internal:
            return home.catalog.internal_partition(self.name, number, create=False)
        return home.manager.get_log(partition) or home.settled_log(partition) or _raise(home, partition)

    def made_log(self, number: int) -> UnifiedLog:
        """Returns the log of a partition, created if it is one of an internal topic that has none yet."""
        found = self.log(number)
        if found is None:
            found = self._home.catalog.internal_partition(self.name, number, create=True)
            assert found is not None, (self.name, number)
        return found


def _raise(home: StoreHome, partition: TopicPartition) -> UnifiedLog | None:
    raise home.not_there(partition)


class HostedTopics:
    """All topics of one store."""

    def __init__(self, home: StoreHome) -> None:
        self._home = home
        self._registry = home.manager.registry
        self._catalog = home.catalog
        self._by_name: dict[str, HostedTopic] = {}
        self._by_id: dict[str, HostedTopic] = {}  # as last seen

    @property
    def version(self) -> tuple[int, int]:
        """The version of all topics: it differs from before if any topic or log may have changed."""
        return (self._registry.changes, self._catalog.changes)

    def is_current(self, log: UnifiedLog) -> bool:
        """Returns whether this is still its partition's log."""
        return self._registry.get(log.topic_partition) is log

    def log_now(self, partition: TopicPartition) -> UnifiedLog | None:
        """Returns the log of a partition in the directory where it is now, for a caller whose log refused."""
        return self._home.manager.log_to_change(partition)

    def named(self, name: str) -> HostedTopic | None:
        """Returns a topic by its name, or None."""
        version = (self._registry.changes, self._catalog.changes)
        found = self._by_name.get(name)
        if found is not None and found.version == version:
            return found
        return self._look(name, version)

    def _look(self, name: str, version: tuple[int, int]) -> HostedTopic | None:
        info = self._catalog.info(name)
        if info is None:
            self._by_name.pop(name, None)
            return None
        found = self._by_name[name] = HostedTopic(self._home, info, version)
        if found.id != ZERO_UUID:
            self._by_id[found.id] = found
        return found

    def with_id(self, topic_id: str) -> HostedTopic | None:
        """Returns a topic by its id, or None."""
        found = self._by_id.get(topic_id)
        if found is not None:
            if found.version == (self._registry.changes, self._catalog.changes):
                return found
            found = self.named(found.name)
            if found is not None and found.id == topic_id:
                return found
            self._by_id.pop(topic_id, None)
        name = self._home.coordinators.topics.name(topic_id)
        return None if name is None else self.named(name)

    def name_of(self, topic_id: str) -> str | None:
        """Returns the name of the topic with an id, or None."""
        found = self.with_id(topic_id)
        return None if found is None else found.name

    def topic_with(self, name: str, number: int) -> HostedTopic:
        """Returns the topic of a partition.  UnknownTopicOrPartitionException if there is no such partition."""
        found = self.named(name)
        if found is None or not 0 <= number < found.partitions:
            raise UnknownTopicOrPartitionException(f"{name}-{number} is unknown")
        return found


def hosted_by(broker: Broker) -> HostedTopics:
    """Returns the broker's topics."""
    found = broker.state.get("hosted")
    if found is None:
        found = broker.state.setdefault("hosted", HostedTopics(broker.home))
    return found  # type: ignore[no-any-return]


def leader_epoch_of(log: UnifiedLog | None) -> int:
    """Returns the leader epoch of a partition: the log's latest, or 0 while it has none."""
    return (log.latest_epoch or 0) if log is not None else 0
