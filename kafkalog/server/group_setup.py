"""The groups of a server: its settings of groups, and the start of the groups that the store has."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kafkalog.engine.coordinator.group_settings import GroupSettings, ShareSettings
from kafkalog.engine.format import names
from kafkalog.errors import ConfigException, IllegalStateException
from kafkalog.server.resource_configs import ConfigType

if TYPE_CHECKING:
    from kafkalog.server.broker import Broker
    from kafkalog.server.resource_configs import ResourceConfigs
    from kafkalog.server.settings import ServerSettings

MS_PER_MINUTE = 60_000
WARM_UP_AFTER_MS = 200
_OTHER_NAMES = {"offset_metadata_max": "offset.metadata.max.bytes"}
# The setting of how many partitions an internal topic gets.
_COUNTS = {
    names.GROUP_METADATA_TOPIC: "offsets.topic.num.partitions",
    names.TRANSACTION_STATE_TOPIC: "transaction.state.log.num.partitions",
    names.SHARE_GROUP_STATE_TOPIC: "share.coordinator.state.topic.num.partitions",
}
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


def partition_counts(settings: ServerSettings) -> dict[str, int]:
    """Returns how many partitions internal topics get when they are made. Raises ConfigException."""
    return {topic: settings[name] for topic, name in _COUNTS.items()}


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
    coordinators.use_partition_counts(partition_counts(broker.settings))
    if coordinators.all_group_partitions():
        broker.submit(lambda: coordinators.groups.load())
    else:  # so that the first member does not wait until all modules are imported
        broker.later(WARM_UP_AFTER_MS, lambda: broker.submit(lambda: _warm_up(broker)))


def _warm_up(broker: Broker) -> None:
    importlib.import_module("kafkalog.server.handlers.groups")
    importlib.import_module("kafkalog.server.handlers.offsets")
    with contextlib.suppress(IllegalStateException):  # the store is closed already
        broker.home.coordinators.groups.load()
