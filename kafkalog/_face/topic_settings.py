"""The effective settings of the topics in log directories, and the source of each setting.

The layers, highest first, are:

- the settings given for this run
- the settings stored next to the data (`.kafkalog_topics`)
- the topic's settings in the cluster's metadata
- the dynamic defaults of the broker and of the cluster
- `server.properties`
- Kafka's defaults

Without the cluster's metadata or `server.properties`, layers are unknown. A default is then a guess
(`ConfigSource.GUESS`), and nobody may delete or compact by it (`is_known`).

Commands, checks and jobs get settings only from here; a store uses `base` for its engine. Knows no logs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from kafkalog._face.cluster_metadata import ClusterMetadata, ClusterTopic, read_cluster_metadata
from kafkalog.config import KEEPS_ALL, BrokerLogConfig, LogConfig, topic_defaults_of_broker
from kafkalog.engine.files import OS_FILES, Files, local_path
from kafkalog.engine.files.processes import made_once
from kafkalog.engine.format import values
from kafkalog.engine.format.java_text import parse_properties
from kafkalog.engine.format.partition_metadata import topic_id_of
from kafkalog.engine.format.small_files import NOTE_BYTES_MAX, read_small
from kafkalog.engine.host.log_dirs import is_of_cluster
from kafkalog.engine.host.topic_configs import KnownTopic, stored_content
from kafkalog.errors import (
    CorruptCheckpointException,
    IllegalArgumentException,
    KafkalogError,
    KafkaStorageException,
)

# The engine gets these for rules that may not be in effect.
KEEPS: Mapping[str, str] = {key: KEEPS_ALL[key] for key in ("retention.ms", "retention.bytes")}
POLICY = "cleanup.policy"
# Limits of compaction. Kafka's defaults remove most, so nobody compacts by them if they are a guess.
COMPACTS_BY = ("min.compaction.lag.ms", "delete.retention.ms")


class ConfigSource(StrEnum):
    """The source of a setting."""

    GIVEN = "given"
    TOPIC = "set by the topic"
    DYNAMIC = "dynamic"
    STATIC = "server.properties"
    DEFAULT = "default"
    GUESS = "guessed default"
    # Set for all topics; the topic may have an unknown setting of its own.
    DYNAMIC_UNSURE = "dynamic, unless the topic sets it"
    STATIC_UNSURE = "server.properties, unless the topic sets it"


_UNSURE = (ConfigSource.GUESS, ConfigSource.DYNAMIC_UNSURE, ConfigSource.STATIC_UNSURE)


def broker_properties(
    given: str | os.PathLike[str] | Mapping[str, object], what: str = "broker_config"
) -> dict[str, object]:
    """Returns a broker's static settings, from a `server.properties` file or as given, checked.

    IllegalArgumentException for a path without a file; ConfigException; KafkaStorageException.
    """
    if isinstance(given, Mapping):
        found = dict(given)
    else:
        try:
            path = local_path(given, what=what)
        except TypeError:
            raise IllegalArgumentException(
                f"{what}: found {values.shown(given)}, expected the path of a server.properties, or a mapping"
            ) from None
        if not OS_FILES.exists(path) or OS_FILES.is_dir(path):
            problem = "found a directory" if OS_FILES.exists(path) else "no such file"
            raise IllegalArgumentException(f"{problem}, expected a broker's server.properties", path=path)
        try:
            found = dict(parse_properties(read_small(path, bytes_max=NOTE_BYTES_MAX)))
        except OSError as error:
            raise KafkaStorageException.because_of(error, "cannot read the broker's settings") from error
    BrokerLogConfig.from_props(found)
    return found


class TopicSettings:
    """The settings of the topics in `log_dirs`. Files are read once, at the first use, and again by `look_again`."""

    def __init__(
        self,
        log_dirs: str | Sequence[str],
        given: Mapping[str, str] | None = None,
        defaults: LogConfig | Mapping[str, str] | None = None,
        files: Files = OS_FILES,
        *,
        broker: Mapping[str, object] | None = None,
    ) -> None:
        """`given` applies to every topic. `defaults` replace Kafka's for settings that nobody has set. `broker` are the
        static settings of the directories' broker.

        InvalidConfigurationException or ConfigException for an invalid setting.
        """
        self.given = dict(given or {})
        LogConfig.validate(self.given)
        self.log_dirs = [log_dirs] if isinstance(log_dirs, str) else list(log_dirs)
        self.broker = broker
        self._defaults = dict(defaults.originals if isinstance(defaults, LogConfig) else defaults or {})
        self._files = files
        self._known: dict[str, LogConfig] = {}
        self._same_id: dict[str, bool] = {}

    # --- facts -----------------------------------------------------------------------------------------

    @made_once
    def _content(self) -> tuple[Mapping[str, Mapping[str, str]], Mapping[str, KnownTopic]]:
        return stored_content(self.log_dirs, self._files)

    @made_once
    def is_of_cluster(self) -> bool:
        """Whether a broker formatted one of the directories."""
        return any(is_of_cluster(each, self._files) for each in self.log_dirs)

    @made_once
    def cluster(self) -> ClusterMetadata | None:
        """The cluster's metadata, in these directories or in the one that `server.properties` names for it."""
        return read_cluster_metadata([*self.log_dirs, *self._metadata_dirs()], self._files)

    def look_again(self) -> None:
        """Reads the files again that have changed."""
        known = self.cluster
        fresh = read_cluster_metadata([*self.log_dirs, *self._metadata_dirs()], self._files, known=known)
        if fresh is not known:
            self.__dict__["cluster"] = fresh
            self.__dict__.pop("_dynamic", None)
        self.__dict__.pop("_content", None)
        self._known, self._same_id = {}, {}

    def pass_over_unreadable(self) -> KafkalogError | None:
        """Returns why the settings next to the data cannot be read, and treats them as empty from then on; None if they
        can be read.

        For work that loses nothing with any settings, such as recovery."""
        try:
            self._content  # noqa: B018 - reads it now
        except (CorruptCheckpointException, KafkaStorageException) as error:
            self.__dict__["_content"] = ({}, {})
            return error
        return None

    def _metadata_dirs(self) -> Iterable[str]:
        """Returns `metadata.log.dir`, or the first of `log.dirs`, if the file's broker has these directories."""
        if self.broker is None:
            return ()
        dirs = BrokerLogConfig.from_props(self.broker).effective_log_dirs
        ours = {os.path.realpath(each) for each in self.log_dirs}
        if ours.isdisjoint(map(os.path.realpath, dirs)):
            return ()
        named = self.broker.get("metadata.log.dir")
        return [str(named)] if named else dirs[:1]

    def cluster_topic(self, topic: str) -> ClusterTopic | None:
        """Returns the cluster's metadata of the topic that the directories belong to; None if it has none."""
        found = None if self.cluster is None else self.cluster.topics.get(topic)
        if found is None:
            return None
        if topic not in self._same_id:
            self._same_id[topic] = self._folders_id(topic, found) in (None, found.topic_id)
        return found if self._same_id[topic] else None

    def cluster_known(self, topic: str) -> KnownTopic | None:
        """Returns the topic's partitions and id from the cluster's metadata; None if it has none."""
        found = self.cluster_topic(topic)
        return KnownTopic(found.partitions, found.topic_id) if found is not None and found.replicas else None

    def partition_count(self, topic: str) -> int | None:
        """Returns the topic's number of partitions, from the cluster's metadata or the store's settings; None if
        neither has it."""
        known = self.cluster_known(topic) or self._content[1].get(topic)
        return None if known is None or known.is_deleted else known.partitions

    def is_remembered(self, topic: str) -> bool:
        """Returns whether a topic that the store knows and that has no directory here is missing, not deleted: its disk
        may be offline. In a broker's directory the cluster's metadata decides, because the broker may have deleted
        it."""
        return not self.is_of_cluster or self.cluster_topic(topic) is not None

    def _folders_id(self, topic: str, found: ClusterTopic) -> str | None:
        """Returns the topic id in the topic's directories here. That of a deleted topic differs from the cluster's."""
        for log_dir in self.log_dirs:
            for number in found.replicas:
                try:
                    topic_id = topic_id_of(os.path.join(log_dir, f"{topic}-{number}"), self._files)
                except OSError as error:
                    raise KafkaStorageException.because_of(error, f"cannot read the id of topic {topic}") from error
                if topic_id is not None:
                    return topic_id
        return None

    def knows(self, topic: str) -> bool:
        """Returns whether all settings of the topic are known: from the cluster's metadata, or stored next to the data
        in a directory that is not a cluster's."""
        if self.is_of_cluster:  # the settings next to the data are a store's additions
            return self.cluster is not None and self.cluster.is_whole and self.cluster_topic(topic) is not None
        topics, known = self._content
        return topic in topics or topic in known

    # --- layers ----------------------------------------------------------------------------------------

    def stored(self, topic: str) -> Mapping[str, str]:
        """Returns a topic's overrides stored next to the data. CorruptCheckpointException, KafkaStorageException."""
        return self._content[0].get(topic, {})

    def own(self, topic: str, beside: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns the topic's settings: those next to the data (`beside`, if the caller has read them) over the
        cluster's."""
        found = self.cluster_topic(topic)
        return {**({} if found is None else found.overrides), **(self.stored(topic) if beside is None else beside)}

    def _sure_own(self, topic: str) -> Mapping[str, str]:
        """Returns `own` without the cluster's settings if its metadata cannot be read completely: later records may
        change them."""
        return self.stored(topic) if self._is_damaged else self.own(topic)

    def overrides(self, topic: str) -> dict[str, str]:
        """Returns a topic's overrides: the given settings over the topic's."""
        return {**self.own(topic), **self.given}

    @made_once
    def static_defaults(self) -> Mapping[str, object]:
        """The topic defaults that `server.properties` makes, by topic key."""
        return {} if self.broker is None else topic_defaults_of_broker(self.broker)

    @made_once
    def _dynamic(self) -> Mapping[str, object]:
        return {} if self.cluster is None else topic_defaults_of_broker(self.cluster.dynamic)

    @property
    def broker_defaults(self) -> dict[str, object]:
        """The topic defaults that `server.properties` and the dynamic settings make, by topic key."""
        return {**self.static_defaults, **self._dynamic}

    def of(self, topic: str) -> LogConfig:
        """Returns a topic's effective settings. ConfigException if given settings contradict stored ones."""
        if topic not in self._known:
            overrides = self.overrides(topic)
            LogConfig.validate(overrides)
            self._known[topic] = LogConfig.from_props({**self._defaults, **self.broker_defaults}, overrides)
        return self._known[topic]

    def sure(self, topic: str) -> LogConfig:
        """Returns a topic's effective settings for deletion: rules that would be a guess are off."""
        guessed = {key: value for key, value in KEEPS.items() if not self.is_known(topic, key)}
        return self.of(topic).updated({**self.overrides(topic), **guessed}) if guessed else self.of(topic)

    def is_compacted(self, topic: str, *, alone: bool = False) -> bool:
        """Returns whether cleanup.policy includes compact, in the topic's settings or in the given ones. `alone`: and
        does not include delete, which would delete old segments of a compacted topic."""
        own = LogConfig.from_props({**self._defaults, **self.broker_defaults}, self.own(topic))
        return any(each.compact and not (alone and each.delete) for each in (own, self.of(topic)))

    # --- sources of settings ---------------------------------------------------------------------------

    def source(self, topic: str, key: str) -> ConfigSource:
        """Returns the source of the topic's setting `key`."""
        if key in self.given:
            return ConfigSource.GIVEN
        if key in self._sure_own(topic):
            return ConfigSource.TOPIC
        # A broker may have set it for the topic.
        unsure = not self.knows(topic) and (self.is_of_cluster or not any(self._content))
        if key in self._dynamic:
            return ConfigSource.DYNAMIC_UNSURE if unsure else ConfigSource.DYNAMIC
        if key in self.static_defaults:
            return ConfigSource.STATIC_UNSURE if unsure else ConfigSource.STATIC
        if unsure:
            return ConfigSource.GUESS
        return ConfigSource.GUESS if self._lacks_static else ConfigSource.DEFAULT

    def is_known(self, topic: str, key: str) -> bool:
        """Returns whether the setting is certain: somebody set it, or nobody can have set it. Only certain settings may
        delete or compact."""
        return self.source(topic, key) not in _UNSURE

    def says(self, topic: str, key: str) -> bool:
        """Returns whether the topic's `key` was given or set for it, or is known not to be set."""
        source = self.source(topic, key)
        return source in (ConfigSource.GIVEN, ConfigSource.TOPIC) or (self.knows(topic) and source not in _UNSURE)

    def described(self, topic: str, keys: Iterable[str]) -> dict[str, tuple[object, ConfigSource]]:
        """Returns the value and the source of each setting."""
        found = self.of(topic).values()
        return {key: (found[key], self.source(topic, key)) for key in keys}

    def why_unknown(self, topic: str) -> str:
        """Returns in words why settings of a topic are a guess."""
        if not self.knows(topic):
            if self.cluster is not None and self.cluster.problem is not None:
                return f"the cluster's metadata cannot be read completely: {self.cluster.problem}"
            where = "the cluster's metadata does not have it" if self.cluster else "the cluster's metadata is not here"
            return where if self.is_of_cluster else "no settings are stored next to the data"
        return "server.properties is not given"

    # --- for an engine ---------------------------------------------------------------------------------

    def base(self, topic: str, config: Mapping[str, object], *, is_stored: bool) -> dict[str, object]:
        """Returns a topic's settings beneath those next to the data, for an engine that got the defaults `config`.

        Kafka's default retention never applies. No default applies if the topic's settings are not known, or if the
        limits of compaction would be a guess. `is_stored`: the store keeps settings of the topic.
        """
        set_by_somebody: dict[str, object] = {**self.broker_defaults, **config, **self.own(topic, {})}
        found: dict[str, object] = {**KEEPS, **set_by_somebody}
        if self._is_unknown(topic, is_stored) or self._guesses_compaction(set_by_somebody):
            return {**found, **KEEPS_ALL}
        return found

    def _guesses_compaction(self, set_by_somebody: Mapping[str, object]) -> bool:
        """Returns whether the topic is compacted, and the limits of compaction are a guess."""
        is_compacted = "compact" in str(set_by_somebody.get(POLICY))
        return is_compacted and self._lacks_static and not all(key in set_by_somebody for key in COMPACTS_BY)

    def is_kept(self, topic: str, config: Mapping[str, object], *, is_stored: bool) -> bool:
        """Returns whether all records of the topic are kept because its retention or policy is not known."""
        own = self._sure_own(topic)
        set_by_somebody = {**self.broker_defaults, **config, **own}
        if self._guesses_compaction(set_by_somebody):
            return True
        if "retention.ms" in own or str(own.get(POLICY)) == "compact":
            return False
        if self._is_unknown(topic, is_stored):
            return True
        return self._lacks_static and "retention.ms" not in set_by_somebody

    def _is_unknown(self, topic: str, is_stored: bool) -> bool:
        return not (self.knows(topic) or (is_stored and not self.is_of_cluster))

    @property
    def _is_damaged(self) -> bool:
        return self.cluster is not None and not self.cluster.is_whole

    @property
    def _lacks_static(self) -> bool:
        return self.is_of_cluster and self.broker is None
