"""The live groups of a store: what its coordinators need for members, made at the first use.

A store whose cursors are only read and committed has none of this. The first member, or a server, makes the coordinator
of groups, and with the first timer a thread starts. Thread-safe.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kafkalog._face.group_members import LocalMembers
from kafkalog._face.shared_logs import SharedStoreLogs, StoreDeadLetters
from kafkalog.engine.coordinator.consumer_groups import ConsumerGroups
from kafkalog.engine.coordinator.group_coordinator import GroupCoordinator
from kafkalog.engine.coordinator.share_config import ShareGroupConfigProvider
from kafkalog.engine.coordinator.share_coordinator import ShareCoordinator
from kafkalog.engine.coordinator.share_groups import ShareGroups
from kafkalog.engine.coordinator.share_metrics import ShareMetrics
from kafkalog.engine.coordinator.share_partition_manager import SharePartitionManager
from kafkalog.engine.format.names import GROUP_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC, TopicPartition

if TYPE_CHECKING:
    from kafkalog._face.catalog import Catalog
    from kafkalog._face.store_topics import LateGroupConfigs
    from kafkalog.engine.coordinator.group_offsets import GroupOffsets
    from kafkalog.engine.coordinator.group_settings import ShareSettings
    from kafkalog.engine.coordinator.partition_logs import UnifiedStateLog
    from kafkalog.engine.coordinator.timers import Timers
    from kafkalog.engine.coordinator.topics_view import TopicsView
    from kafkalog.engine.files import Clock
    from kafkalog.metrics.registry import MetricsRegistry


class StatePartitions(Protocol):
    """The partitions of internal topics, which `Coordinators` keeps."""

    clock: Clock
    timers: Timers
    share_settings: ShareSettings
    offsets_partitions: int
    group_configs: LateGroupConfigs

    @property
    def syncs_writes(self) -> bool: ...

    @property
    def topics(self) -> TopicsView: ...

    def group_offsets(self, number: int, *, create: bool) -> GroupOffsets | None: ...

    def share_state_log(self, number: int, create: bool) -> UnifiedStateLog | None: ...


class OpenQueue(Protocol):
    """A queue of this process (`kafkalog._face.queue_group.QueueGroup`)."""

    def close(self) -> None:
        """Leaves the group."""
        ...


class ServedGroups:
    """The coordinators of live groups. `Coordinators` makes it at the first use, and closes it."""

    def __init__(self, coordinators: StatePartitions, catalog: Catalog, metrics: MetricsRegistry | None = None) -> None:
        self._catalog = catalog
        self._registry = metrics
        self._metrics = None if metrics is None else ShareMetrics(metrics)
        self._lock = threading.Lock()
        self.share_coordinator = ShareCoordinator(
            coordinators.share_state_log,
            catalog.partition_count(SHARE_GROUP_STATE_TOPIC),
            coordinators.clock,
            coordinators.topics,
            coordinators.share_settings,
            coordinators.timers,
            None if self._metrics is None else self._metrics.writes,
            waits=coordinators.syncs_writes,
        )
        self.groups = GroupCoordinator(
            lambda number, create: coordinators.group_offsets(number, create=create),
            coordinators.offsets_partitions,
            numbers=partial(catalog.numbers, GROUP_METADATA_TOPIC),
            consumer_groups=ConsumerGroups,
            share_groups=lambda part: ShareGroups(part, self.share_coordinator, self._latest_offset),
        )
        self.members = LocalMembers(self.groups, coordinators.timers, coordinators.topics, coordinators.clock)
        self._coordinators = coordinators
        self._sharing: tuple[SharedStoreLogs, SharePartitionManager, StoreDeadLetters] | None = None
        self.queues_lock = threading.RLock()
        self.queues: dict[str, Any] = {}  # the open queues of this process, by name; guarded by queues_lock

    @property
    def shared_logs(self) -> SharedStoreLogs:
        """The logs, as share partitions read them."""
        return self._made_shares()[0]

    @property
    def shares(self) -> SharePartitionManager:
        """The share partitions, made at the first use."""
        return self._made_shares()[1]

    @property
    def dead_letters(self) -> StoreDeadLetters:
        """The writer of share groups' dead letters."""
        return self._made_shares()[2]

    def _made_shares(self) -> tuple[SharedStoreLogs, SharePartitionManager, StoreDeadLetters]:
        with self._lock:
            if self._sharing is None:
                coordinators = self._coordinators
                logs = SharedStoreLogs(self._catalog)
                configs = ShareGroupConfigProvider(group_config=coordinators.group_configs.of)
                syncs = coordinators.syncs_writes
                letters = StoreDeadLetters(self._catalog, logs, configs, coordinators.clock, syncs=syncs)
                manager = SharePartitionManager(
                    logs,
                    self.share_coordinator,
                    coordinators.timers,
                    coordinators.clock,
                    configs=configs,
                    dead_letters=letters,
                    metrics=self._metrics,
                    known_epoch=self.share_coordinator.leader_epoch_at_start,
                )
                if self._registry is not None:
                    self._registry.show(manager, SharePartitionManager.gauges)
                self._sharing = logs, manager, letters
            return self._sharing

    def _latest_offset(self, topic: str, partition: int) -> int:
        log = self._catalog.settled_log(TopicPartition(topic, partition))
        return -1 if log is None else log.high_watermark

    def forget_topic(self, topic_id: str) -> None:
        """Lets share groups, and the coordinator of their states, forget a deleted topic."""
        self.groups.on_topics_deleted([topic_id])
        if self._sharing is not None:
            self._sharing[1].forget_topic(topic_id)
        self.share_coordinator.load(self._catalog.numbers(SHARE_GROUP_STATE_TOPIC))
        self.share_coordinator.on_topics_deleted([topic_id])

    def close(self) -> None:
        """Lets the readers of this process leave their groups, ends its queues, and answers all members that wait."""
        self.members.close()
        with self.queues_lock:
            queues: list[OpenQueue] = list(self.queues.values())
        for each in queues:
            each.close()
        if self._sharing is not None:
            self._sharing[1].close()
        self.groups.close()
