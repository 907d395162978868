"""The settings that clients give to brokers, groups and subscriptions of client metrics.

A topic's settings are the catalog's; everything else that DescribeConfigs and AlterConfigs know is here, by
`(type, name)`. The name of a broker resource is "" for all brokers, or the number of this node. A change is checked,
then saved, then applied. Source: ConfigurationControlManager, DynamicBrokerConfig, GroupConfig,
ControllerConfigurationValidator (4.4.0).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum

from kafkalog.config import topic_defaults_of_broker
from kafkalog.engine.format.error_codes import Errors
from kafkalog.errors import (
    ConfigException,
    IllegalArgumentException,
    InvalidConfigurationException,
)
from kafkalog.server.config_table import ConfigRow, broker_rows, client_metrics_rows, group_rows
from kafkalog.server.refused import Refused
from kafkalog.server.settings import ServerSettings


class ConfigType(IntEnum):
    """ConfigResource.Type: what a set of settings belongs to."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


Resource = tuple[ConfigType, str]
Configs = Mapping[str, str]
ConfigsByResource = Mapping[Resource, Configs]
NO_CONFIGS: Configs = {}
# A new cluster has this setting from the start, because its feature of eligible leader replicas needs it.
INITIAL: ConfigsByResource = {(ConfigType.BROKER, ""): {"min.insync.replicas": "1"}}
LISTENER_PREFIX = re.compile(r"listener\.name\.[^.]*\.(.*)")
OF_ALL_LISTENERS = ("max.connections", "max.connection.creation.rate", "num.network.threads")
# These may only be changed for one listener, by its prefix.
ONLY_PER_LISTENER = re.compile(
    r"ssl\.(key\.password|keystore\.(certificate\.chain|key|location|password|type)"
    r"|truststore\.(certificates|location|password|type))"
)
SESSIONS = (
    ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"),
    ("share.session.timeout.ms", "share.heartbeat.interval.ms"),
    ("streams.session.timeout.ms", "streams.heartbeat.interval.ms"),
)
# The bounds of a group's setting are settings of the broker: the suffixes of `group.<name>`.
_BOUNDED = re.compile(r"(consumer|share|streams)\.(.*)")


class ResourceConfigs:
    """The settings by resource. `save` stores all of them durably, and gives them back by `take`; without it they are
    only here. `changed` is called after each change. Thread-safe."""

    def __init__(
        self,
        settings: ServerSettings,
        save: Callable[[ConfigsByResource], None] | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._configs: dict[Resource, Configs] = dict(INITIAL)
        self._save = save or self.take
        self._changed = changed
        self._lock = threading.RLock()
        # Held while new settings are computed from those of now and set: of topics too.
        self.altering = threading.Lock()

    def of(self, resource: Resource) -> Configs:
        """Returns the settings of a resource; empty if it has none."""
        return self._configs.get(resource, NO_CONFIGS)

    def names(self, kind: ConfigType) -> list[str]:
        """Returns the names of the resources of a type that have settings."""
        return sorted(name for of, name in list(self._configs) if of is kind)

    def set(self, resource: Resource, configs: Configs, *, validates_only: bool) -> None:
        """Replaces the settings of a resource.

        InvalidConfigurationException, ConfigException or Refused for settings that it cannot have.
        KafkaStorageException if they cannot be stored; nothing is changed then.
        """
        check(resource, configs, self._settings)
        if validates_only:
            return
        with self._lock:
            changed = dict(self._configs)
            if configs:
                changed[resource] = dict(configs)
            else:
                changed.pop(resource, None)
            self._save(changed)

    def take(self, configs: ConfigsByResource) -> None:
        """Uses these settings from now on: those that were stored."""
        with self._lock:
            if configs == self._configs:
                return
            self._configs = dict(configs)
        self._changed()


# --- checks ----------------------------------------------------------------------------------------------


def check(resource: Resource, configs: Configs, settings: ServerSettings) -> None:
    """Checks the settings of a resource that is no topic. Errors as `ResourceConfigs.set`."""
    kind, name = resource
    if kind is ConfigType.BROKER:
        _check_broker(name, configs)
    elif kind is ConfigType.GROUP:
        if not name:
            raise Refused(Errors.INVALID_REQUEST, "Default group resources are not allowed.")
        _check_group(configs, settings)
    elif kind is ConfigType.CLIENT_METRICS:
        _check_client_metrics(name, configs)
    else:
        raise Refused(Errors.INVALID_REQUEST, f"Unknown resource type {kind.name}")


def _check_broker(name: str, configs: Configs) -> None:
    rows = broker_rows()
    base = {key: LISTENER_PREFIX.sub(r"\1", key) for key in configs}
    fixed = [key for key, plain in base.items() if plain in rows and not rows[plain].mode]
    _refuse(fixed, "Cannot update these configs dynamically")
    bare = [key for key in configs if ONLY_PER_LISTENER.fullmatch(key)]
    what = "These security configs can be dynamically updated only per-listener using the listener prefix"
    _refuse(bare, what)
    if not name:
        own = [key for key, plain in base.items() if plain in rows and _is_per_broker(key, rows[plain])]
        _refuse(own, "Cannot update these configs at default cluster level, broker id must be specified")
    for key, plain in base.items():
        if plain in rows:
            check_value(rows[plain], configs[key])
    try:
        topic_defaults_of_broker(configs)
    except (ConfigException, IllegalArgumentException) as error:
        raise Refused(Errors.INVALID_REQUEST, error.message) from None


def effective(configs: Configs) -> Configs:
    """Returns those of a broker's kept settings that take effect.

    Kafka keeps names that it does not know too, so that an own setting, such as `users.file`, may be among them.
    """
    rows = broker_rows()
    plain = {key: LISTENER_PREFIX.sub(r"\1", key) for key in configs}
    return {key: value for key, value in configs.items() if plain[key] in rows and rows[plain[key]].mode}


def _is_per_broker(key: str, row: ConfigRow) -> bool:
    return row.mode == "per-broker" or (key != row.name and row.name not in OF_ALL_LISTENERS)


def _refuse(names: Iterable[str], why: str) -> None:
    found = sorted(names)
    if found:
        raise Refused(Errors.INVALID_REQUEST, f"{why}: [{', '.join(found)}]")


def _check_group(configs: Configs, settings: ServerSettings) -> None:
    rows = group_rows()
    for name in configs:
        if name not in rows:
            raise InvalidConfigurationException(f"Unknown group config name: {name}")
    for name, value in configs.items():
        check_value(rows[name], value)
        _check_bounds(name, value, settings)
    for session, heartbeat in SESSIONS:
        if session in configs or heartbeat in configs:
            longer, shorter = (int(_group_value(name, configs, settings)) for name in (session, heartbeat))
            if longer <= shorter:
                raise InvalidConfigurationException(f"{session} must be greater than {heartbeat}")
    topic = configs.get("errors.deadletterqueue.topic.name", "")
    if topic.startswith("__"):
        raise InvalidConfigurationException(
            "errors.deadletterqueue.topic.name: DLQ topic name must not start with '__'"
        )


def _group_value(name: str, configs: Configs, settings: ServerSettings) -> str:
    found = configs.get(name)
    return broker_value(settings, group_rows()[name].of_broker) if found is None else found


def broker_value(settings: ServerSettings, name: str) -> str:
    """Returns a broker's setting as it was given, or its default."""
    found = settings.get(name)
    return str(broker_rows()[name].default if found is None else found)


def _check_bounds(name: str, value: str, settings: ServerSettings) -> None:
    match = _BOUNDED.fullmatch(name)
    if match is None or group_rows()[name].type != "INT":
        return
    low, high = (f"group.{match[1]}.{word}.{match[2]}" for word in ("min", "max"))
    if low in broker_rows() and int(value) < int(broker_value(settings, low)):
        raise InvalidConfigurationException(f"{name} must be greater than or equal to {low}")
    if high in broker_rows() and int(value) > int(broker_value(settings, high)):
        raise InvalidConfigurationException(f"{name} must be less than or equal to {high}")


def _check_client_metrics(name: str, configs: Configs) -> None:
    if not name:
        raise Refused(Errors.INVALID_REQUEST, "Subscription name can't be empty")
    rows = client_metrics_rows()
    for key, value in configs.items():
        if key not in rows:
            raise Refused(Errors.INVALID_REQUEST, f"Unknown client metrics configuration: {key}")
        try:
            check_value(rows[key], value)
        except ConfigException as error:
            raise Refused(Errors.INVALID_REQUEST, error.message) from None


def check_value(row: ConfigRow, value: str) -> None:
    """Checks a value's type and bounds. Raises ConfigException."""
    numbers: dict[str, Callable[[str], float]] = {"INT": int, "LONG": int, "SHORT": int, "DOUBLE": float}
    text = value.strip()
    if row.type in numbers:
        _check_number(row, text, numbers[row.type])
    elif row.type == "BOOLEAN":
        if text.lower() not in ("true", "false"):
            why = "Expected value to be either true or false"
            raise ConfigException(f"Invalid value {value} for configuration {row.name}: {why}")
    elif row.allowed:
        _check_allowed(row, text)


_SIZES = {"INT": (-(1 << 31), (1 << 31) - 1), "LONG": (-(1 << 63), (1 << 63) - 1), "SHORT": (-(1 << 15), (1 << 15) - 1)}


def _check_number(row: ConfigRow, text: str, parse: Callable[[str], float]) -> None:
    try:
        found = parse(text)
    except ValueError:
        found = None
    low, high = _SIZES.get(row.type, (float("-inf"), float("inf")))
    if found is None or not low <= found <= high or "_" in text:
        raise ConfigException(f"Invalid value {text} for configuration {row.name}: Not a number of type {row.type}")
    if row.low is not None and found < row.low:
        raise ConfigException(f"Invalid value {text} for configuration {row.name}: Value must be at least {row.low:g}")
    if row.high is not None and found > row.high:
        raise ConfigException(
            f"Invalid value {text} for configuration {row.name}: Value must be no more than {row.high:g}"
        )


def _check_allowed(row: ConfigRow, text: str) -> None:
    given = [each.strip() for each in text.split(",")] if row.type == "LIST" else [text]
    for each in given:
        is_there = each in row.allowed or any(":" in choice and each.startswith(choice.split(":")[0] + ":")
                                              for choice in row.allowed)  # fmt: skip
        if not is_there:
            raise ConfigException(
                f"Invalid value {each} for configuration {row.name}: String must be one of: {', '.join(row.allowed)}"
            )
