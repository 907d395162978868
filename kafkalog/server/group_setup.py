"""The groups of a server: its settings of groups, and the start of the groups that the store has."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kafkalog._face.coordinators import InternalTopic
from kafkalog.engine.coordinator.group_settings import GroupSettings, ShareSettings
from kafkalog.engine.format import codecs, names
from kafkalog.errors import ConfigException, IllegalStateException
from kafkalog.server.resource_configs import ConfigType
from kafkalog.server.settings import key_of

if TYPE_CHECKING:
    from kafkalog.server.broker import Broker
    from kafkalog.server.resource_configs import ResourceConfigs
    from kafkalog.server.settings import ServerSettings

MS_PER_MINUTE = 60_000
WARM_UP_AFTER_MS = 200
_OTHER_NAMES = {"offset_metadata_max": "offset.metadata.max.bytes"}
# The beginning of an internal topic's settings.
_PREFIXES = {
    names.GROUP_METADATA_TOPIC: "offsets.topic.",
    names.TRANSACTION_STATE_TOPIC: "transaction.state.log.",
    names.SHARE_GROUP_STATE_TOPIC: "share.coordinator.state.topic.",
}
_OVERRIDES = {"segment.bytes": "segment.bytes", "min.isr": "min.insync.replicas"}
_OWN = ("offsets_retention_ms", "simple_offsets_expire")  # these are no settings of Kafka


class GroupConfigsOf:
    """The settings of single groups (GroupConfigs), as clients have changed them."""

    def __init__(self, configs: ResourceConfigs) -> None:
        self._configs = configs

    def of(self, group: str) -> Mapping[str, str]:
        """Returns the settings of a group."""
        return self._configs.of((ConfigType.GROUP, group))


def group_settings(settings: ServerSettings) -> GroupSettings:
    """Returns the settings of groups. Offsets of groups that never had members do not expire: they may be cursors.

    Raises ConfigException for a value of another type.
    """
    defaults = GroupSettings()
    found: dict[str, Any] = {"simple_offsets_expire": False}
    for field, default in zip(defaults._fields, defaults, strict=True):
        name = _OTHER_NAMES.get(field, field.replace("_", "."))
        value = None if field in _OWN else settings.get(name)
        if value is not None:
            found[field] = _parsed(name, value, default)
    minutes = settings.get("offsets.retention.minutes")
    if minutes is not None:
        found["offsets_retention_ms"] = _parsed("offsets.retention.minutes", minutes, 0) * MS_PER_MINUTE
    return defaults._replace(**found)


def share_settings(settings: ServerSettings) -> ShareSettings:
    """Returns the settings of the share coordinator. Raises ConfigException for a value of another type."""
    found = {}
    for field, default in ShareSettings()._asdict().items():
        name = f"share.coordinator.{field.replace('_', '.')}"
        value = settings.get(name)
        found[field] = default if value is None else _parsed(name, value, default)
    return ShareSettings(**found)


def internal_topics(settings: ServerSettings) -> dict[str, InternalTopic]:
    """Returns the partitions and the settings that internal topics get when they are made. Raises ConfigException."""
    found = {}
    for topic, prefix in _PREFIXES.items():
        overrides = {
            name: str(settings[prefix + suffix]) for suffix, name in _OVERRIDES.items() if key_of(prefix + suffix)
        }
        codec = settings[f"{prefix}compression.codec"] if key_of(f"{prefix}compression.codec") else codecs.NONE
        if not 0 <= codec < len(codecs.NAMES):
            raise ConfigException(f"Invalid value {codec} for configuration {prefix}compression.codec: it is no codec")
        found[topic] = InternalTopic(settings[f"{prefix}num.partitions"], overrides, codec)
    return found


def _parsed(name: str, value: object, default: object) -> Any:
    try:
        if isinstance(default, int):
            return int(value)  # type: ignore[call-overload]
        if isinstance(default, tuple):
            given = value.split(",") if isinstance(value, str) else list(value)  # type: ignore[call-overload]
            return tuple(each.strip() for each in given)
        return str(value)
    except (TypeError, ValueError) as error:
        raise ConfigException(f"Invalid value {value} for configuration {name}: {error}") from error


def start_groups(broker: Broker) -> None:
    """Serves the store's groups with the server's settings. Groups that the store has already are started in the
    background: their members must send heartbeats from then on."""
    coordinators = broker.home.coordinators
    coordinators.use_group_settings(group_settings(broker.settings), GroupConfigsOf(broker.configs))
    coordinators.use_share_settings(share_settings(broker.settings))
    coordinators.use_topic_settings(internal_topics(broker.settings))
    if coordinators.all_group_partitions():
        broker.submit(lambda: coordinators.groups.load())
    else:  # so that the first member does not wait until all modules are imported
        broker.later(WARM_UP_AFTER_MS, lambda: broker.submit(lambda: _warm_up(broker)))


def _warm_up(broker: Broker) -> None:
    importlib.import_module("kafkalog.server.handlers.groups")
    importlib.import_module("kafkalog.server.handlers.offsets")
    with contextlib.suppress(IllegalStateException):  # the store is closed already
        broker.home.coordinators.groups.load()
