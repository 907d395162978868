"""The entries of DescribeConfigs: each setting with its value, its source and the settings that it falls back to.

A topic's setting falls back to a broker's, and a broker's to its default; a client sees the chain as synonyms. The
entries of one resource are in the order of names. Source: ConfigHelper, DynamicBrokerConfig.brokerConfigSynonyms
(4.4.0).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING

from kafkalog.config import TOPIC_KEYS, LogConfig
from kafkalog.server.config_table import SENSITIVE, ConfigRow, broker_rows, client_metrics_rows, group_rows
from kafkalog.server.resource_configs import LISTENER_PREFIX, Configs, ConfigType, broker_value
from kafkalog.server.security.keys import SCOPED

if TYPE_CHECKING:
    from kafkalog.server.broker import Broker
    from kafkalog.server.request import Values


class ConfigSource(IntEnum):
    """DescribeConfigsResponse.ConfigSource: where a value comes from."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


TYPE_IDS = {name: number for number, name in enumerate(
    ("UNKNOWN", "BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD")
)}  # fmt: skip
# Settings that stand for one another, in the order in which they count.
_SYNONYMS = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)
_FLUSH = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")
NO_SYNONYMS: list[Values] = []


def shown(value: object) -> str | None:
    """Returns a typed value as Kafka's ConfigDef writes it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _entry(
    name: str, value: str | None, kind: str, synonyms: list[Values], *, read_only: bool, default: ConfigSource
) -> Values:
    return {
        "name": name,
        "value": None if kind in SENSITIVE else value,
        "readOnly": read_only,
        "configSource": synonyms[0]["source"] if synonyms else default,
        "isSensitive": kind in SENSITIVE,
        "synonyms": synonyms,
        "configType": TYPE_IDS.get(kind, 0),
        "documentation": None,
    }


def _synonym(name: str, value: str | None, source: ConfigSource) -> Values:
    return {"name": name, "value": value, "source": source}


# --- brokers ---------------------------------------------------------------------------------------------


def _broker_synonyms(name: str) -> tuple[str, ...]:
    if name == _FLUSH[0]:
        return _FLUSH
    for each in _SYNONYMS:
        if name in each:
            return each
    match = LISTENER_PREFIX.fullmatch(name)
    return (name, match[1]) if match else (name,)


def _chain(broker: Broker, name: str) -> list[Values]:
    """Returns the values that a broker's setting has or falls back to, the effective one first."""
    names = _broker_synonyms(name)
    rows = broker_rows()
    levels: tuple[tuple[ConfigSource, Mapping[str, object]], ...] = (
        (ConfigSource.DYNAMIC_BROKER_CONFIG, broker.configs.of((ConfigType.BROKER, str(broker.node_id)))),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, broker.configs.of((ConfigType.BROKER, ""))),
        (ConfigSource.STATIC_BROKER_CONFIG, broker.settings.originals),
        (ConfigSource.DEFAULT_CONFIG, {each: rows[each].default for each in names if each in rows}),
    )
    found = [
        {"name": each, "value": _hidden(each, values[each]), "source": source}
        for source, values in levels
        for each in names
        if values.get(each) is not None
    ]
    while found and found[0]["name"] != name:
        del found[0]
    return found


def _row_of(name: str) -> ConfigRow:
    plain = LISTENER_PREFIX.sub(r"\1", name)
    if plain != name:  # listener.name.<listener>.<mechanism>.<setting>
        plain = next((each for each in SCOPED if plain.endswith(f".{each}")), plain)
    return broker_rows().get(plain) or ConfigRow(name, "UNKNOWN", None)


def _hidden(name: str, value: object) -> str | None:
    row = _row_of(name)
    return None if row.is_sensitive else shown(value)


def broker_entries(broker: Broker, *, of_all: bool) -> list[Values]:
    """Returns the entries of this node, or with `of_all` the settings that are set for all brokers."""
    if of_all:
        names: Iterable[str] = broker.configs.of((ConfigType.BROKER, ""))
    else:
        own = broker.configs.of((ConfigType.BROKER, str(broker.node_id)))
        known = (name for name, row in broker_rows().items() if not row.is_internal)
        names = {**dict.fromkeys(known), **dict.fromkeys(broker.settings.originals), **dict.fromkeys(own)}
    return [_broker_entry(broker, name, of_all) for name in sorted(names)]


def _broker_entry(broker: Broker, name: str, of_all: bool) -> Values:
    row = _row_of(name)
    chain = _chain(broker, name)
    dynamic = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    synonyms = [each for each in chain if each["source"] == dynamic] if of_all else chain
    if synonyms:
        value = synonyms[0]["value"]
    else:
        value = broker_value(broker.settings, name) if name in broker_rows() else None
        value = None if value == "None" else value
    return _entry(name, value, row.type, synonyms, read_only=not row.mode, default=ConfigSource.DEFAULT_CONFIG)


# --- topics ----------------------------------------------------------------------------------------------


def topic_entries(broker: Broker, overrides: Configs, config: LogConfig | None = None) -> list[Values]:
    """Returns the entries of a topic with these overrides. `config`: its effective settings, by default those of a
    topic that does not exist yet."""
    if config is None:
        config = LogConfig.from_props(broker.home.manager.current_default_config.originals, overrides)
    values = config.values()
    found = []
    for name, key in TOPIC_KEYS.items():
        if key.internal:
            continue
        value = shown(values[name])
        synonyms = [_synonym(name, value, ConfigSource.TOPIC_CONFIG)] if name in overrides else []
        if key.synonyms:
            synonyms += _chain(broker, key.synonyms[0][0])
        found.append(_entry(name, value, key.type, synonyms, read_only=False, default=ConfigSource.DEFAULT_CONFIG))
    return found


# --- groups and client metrics ---------------------------------------------------------------------------


def group_entries(broker: Broker, group: str) -> list[Values]:
    """Returns the entries of a group; of internal settings only those that are set."""
    given = broker.configs.of((ConfigType.GROUP, group))
    rows = {
        name: row
        for name, row in group_rows().items()
        if not row.is_internal or name in given or row.of_broker in broker.settings.originals
    }
    return _given_entries(broker, given, rows, ConfigSource.GROUP_CONFIG)


def client_metrics_entries(broker: Broker, name: str) -> list[Values]:
    """Returns the entries of a subscription of client metrics."""
    given = broker.configs.of((ConfigType.CLIENT_METRICS, name))
    return _given_entries(broker, given, client_metrics_rows(), ConfigSource.CLIENT_METRICS_CONFIG)


def _given_entries(broker: Broker, given: Configs, rows: Mapping[str, ConfigRow], source: ConfigSource) -> list[Values]:
    found = []
    for name, row in rows.items():
        synonyms = [_synonym(name, given[name], source)] if name in given else []
        default = [_synonym(name, row.default, ConfigSource.DEFAULT_CONFIG)]
        synonyms += _chain(broker, row.of_broker) if row.of_broker else default
        value = synonyms[0]["value"] if synonyms else row.default
        found.append(_entry(name, value, row.type, synonyms, read_only=False, default=ConfigSource.DEFAULT_CONFIG))
    return found


def chosen(entries: list[Values], names: Collection[str] | None, *, with_synonyms: bool) -> list[Values]:
    """Returns the entries of these names, or all if there are none."""
    found = entries if not names else [each for each in entries if each["name"] in names]
    return found if with_synonyms else [{**each, "synonyms": NO_SYNONYMS} for each in found]
