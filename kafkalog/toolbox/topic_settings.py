"""The settings that count for the topics of one log directory: the one way to them for commands and checks.

Overrides that were given for this run, over those that a LogManager keeps beside the data, over defaults (a broker's,
or Kafka's).  A broker's own overrides are in the cluster's metadata, where nobody looks from here.  Knows no logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from kafkalog.config import LogConfig
from kafkalog.files import OS_FILES, Files
from kafkalog.manager.topic_configs import stored_topics


class TopicSettings:
    """Those of `log_dir`.  What is stored is read once, when the first topic is asked for."""

    def __init__(
        self,
        log_dir: str,
        given: Mapping[str, str] | None = None,
        defaults: LogConfig | None = None,
        files: Files = OS_FILES,
    ) -> None:
        """`given` counts for every topic; InvalidConfigurationException, ConfigException for what is no setting."""
        self.given = dict(given or {})
        LogConfig.validate(self.given)
        self._log_dir = log_dir
        self._defaults = defaults
        self._files = files
        self._known: dict[str, LogConfig] = {}

    @cached_property
    def _stored(self) -> Mapping[str, Mapping[str, str]]:
        return stored_topics(self._log_dir, self._files)

    def stored(self, topic: str) -> Mapping[str, str]:
        """A topic's overrides beside the data.  CorruptCheckpointException, KafkaStorageException."""
        return self._stored.get(topic, {})

    def overrides(self, topic: str) -> dict[str, str]:
        """A topic's overrides: what is given, over what is stored."""
        return {**self.stored(topic), **self.given}

    def of(self, topic: str) -> LogConfig:
        """What counts for a topic.  ConfigException where what is given does not go with what is stored."""
        if topic not in self._known:
            overrides = self.overrides(topic)
            LogConfig.validate(overrides)
            self._known[topic] = LogConfig.from_props(self._defaults, overrides)
        return self._known[topic]

    def is_compacted(self, topic: str) -> bool:
        """Whether cleanup.policy has compact: by its own settings, whatever is given, or by what is given."""
        own = LogConfig.from_props(self._defaults, self.stored(topic))
        return own.compact or self.of(topic).compact
