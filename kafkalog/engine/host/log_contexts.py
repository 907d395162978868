"""Creates the context of each of a manager's logs, with the topic's settings as they are when the log is ready.

A topic's settings are its overrides on the defaults, and are cached until they change.  If they change while a log is
being created (`begin` to `finish`), the log gets the new ones at the end (KAFKA-8813): a change finds each log either
here or in the registry.
Knows no log except the one that is being created, and no directory.  Thread-safe without a lock, because each step is
one operation on a dict.  Only `_copies`, which tells what was copied to a remote tier that is not open, has a lock; it
is read once.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kafkalog.config import LogConfig
from kafkalog.engine.files import Clock, Files, LogDirFailureChannel, Scheduler
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.host.topic_configs import TopicConfigs
from kafkalog.engine.log.context import PartitionContext, ProducerSettings
from kafkalog.engine.log.damage import Damage
from kafkalog.engine.log.tier import Copies
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.metrics.registry import MetricsRegistry


class Opening(NamedTuple):
    """The settings of one log that differ from the manager's others; None means no difference.

    `on_damage` is called with each truncation that a recovery is about to make (`kafkalog.engine.log.damage`).
    """

    config: LogConfig | None = None
    producers: ProducerSettings | None = None
    clock: Clock | None = None
    metrics: MetricsRegistry | None = None
    on_damage: Callable[[Damage], None] | None = None
    topic_id: str | None = None  # for a log that has none


AS_ALL = Opening()


def _nothing(log: UnifiedLog) -> None:
    """Ignores a log: no listener is set."""


class LogContexts:
    def __init__(
        self,
        settings: ManagerSettings,
        topic_configs: TopicConfigs,
        scheduler: Scheduler,
        clock: Clock,
        failure_channel: LogDirFailureChannel,
        files: Files,
        metrics: MetricsRegistry,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.default_config = settings.default_config
        self._topic_configs = topic_configs
        self._scheduler = scheduler
        self._clock = clock
        self._failure_channel = failure_channel
        self._files = files
        self.when_ready: Callable[[UnifiedLog], object] = _nothing  # called with each log before anyone else gets it
        self.base_of: Callable[[str, LogConfig], LogConfig] | None = None  # the settings below a topic's overrides
        self._configs: dict[str, LogConfig] = {}  # by topic; created at first use
        self._beside_metadata: list[str] = []  # all directories, if one of them has events of remote segments
        self._copies: Copies | None = None  # guarded by _asking
        self._asking = threading.Lock()
        self._initializing: dict[TopicPartition, bool] = {}  # True: its configuration changed meanwhile (KAFKA-8813)

    def of(self, folder: str, partition: TopicPartition, opening: Opening = AS_ALL) -> PartitionContext:
        context = PartitionContext(
            folder,
            opening.config or self.config_of(partition.topic),
            opening.producers or self.settings.producers,
            self._scheduler,
            opening.clock or self._clock,
            self._failure_channel,
            files=self._files,
            metrics=self.metrics if opening.metrics is None else opening.metrics,
        )
        context.has_one_replica = True
        # Also if the tier is not open: the log starts there, and segments that were not copied must not be deleted.
        context.has_remote_tier = True
        context.is_tier_open = self.settings.has_remote_tier
        if self._beside_metadata and not context.is_tier_open:
            context.known_copies = self._known_copies
        return context

    def found(self, folders: Mapping[str, Iterable[str]]) -> None:
        """Reports which directories of logs a start has found in each log directory."""
        if names.has_remote_metadata(os.path.basename(each) for paths in folders.values() for each in paths):
            self._beside_metadata = list(folders)

    def _known_copies(self) -> Copies:
        with self._asking:
            if self._copies is None:
                # An upper layer has it.  It is needed only to delete, truncate or append without a known tier.
                above = importlib.import_module("kafkalog.engine.remote.known_copies")
                self._copies = above.KnownCopies(self._beside_metadata, self._files)
            return self._copies

    def config_of(self, topic: str) -> LogConfig:
        """Returns a topic's settings."""
        found = self._configs.get(topic)
        if found is None:
            self._configs[topic] = found = self.config_with(topic, self._topic_configs.overrides(topic))
        return found

    def config_with(self, topic: str, overrides: Mapping[str, str]) -> LogConfig:
        """Returns a topic's settings with these overrides.  ConfigException."""
        base = self.default_config if self.base_of is None else self.base_of(topic, self.default_config)
        return LogConfig.from_props(base, overrides) if overrides else base

    def set_default(self, config: LogConfig) -> None:
        """Sets the defaults of logs that are created from now on."""
        self.default_config = config
        self._configs = {}

    def set_topic_configs(self, topic_configs: TopicConfigs) -> None:
        """Sets the source of the topics' overrides from now on."""
        self._topic_configs = topic_configs
        self._configs = {}

    def forget(self, topic: str) -> None:
        """Drops a topic's cached settings."""
        self._configs.pop(topic, None)

    # --- logs that are being created -----------------------------------------------------------------

    def begin(self, partition: TopicPartition) -> None:
        self._initializing[partition] = False

    def finish(self, partition: TopicPartition, log: UnifiedLog, opening: Opening = AS_ALL) -> None:
        if self._initializing.pop(partition, False) and opening.config is None:
            self.forget(partition.topic)
            log.update_config(self.config_of(partition.topic))
        if log.remote_log_enabled and not log.context.is_tier_open:
            log.context.logger.warning(
                "remote.storage.enable: the log continues in a remote tier, and was opened without it: offsets from %d "
                "to %d are not read, nothing is copied, and retention deletes no segment; kafkalog.open(..., "
                "remote=...) opens both",
                log.log_start_offset, log.local_log_start_offset,
            )  # fmt: skip

    def topic_updated(self, topic: str) -> None:
        """Makes the logs of a topic that are being created read its settings again when they are ready."""
        for partition in list(self._initializing):
            if partition.topic == topic and partition in self._initializing:
                self._initializing[partition] = True
