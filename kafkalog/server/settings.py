"""The settings of a server, under Kafka's names and with Kafka's defaults.

    settings = ServerSettings.from_props({"max.connections": "100", "num.partitions": 3})
    settings.max_connections, settings["num.partitions"]

A key is Kafka's (`socket.request.max.bytes`) or the same as a Python name (`socket_request_max_bytes`).  The keys
are those of `config_table`, and `OWN_KEYS` has the few whose default differs here.  Values are parsed and refused as
Kafka's ConfigDef does; the ones that were given at once, the others at their first use.  Settings of the log
(`log.retention.ms`) are the store's, and only kept here; `manager_settings` returns them for a store.
Source: SocketServerConfigs, ServerConfigs (4.4.0).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kafkalog.config import (
    BROKER_KEYS,
    TOPIC_KEYS,
    BrokerLogConfig,
    Check,
    ConfigKey,
    ProducerStateManagerConfig,
    unknown_key_hint,
)
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.errors import ConfigException, IllegalArgumentException
from kafkalog.server.config_table import broker_rows
from kafkalog.server.security.keys import SECRETS, SECURITY_KEYS

__all__ = ["ServerSettings"]

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def at_least(low: int) -> Check:
    """Returns Kafka's `Range.atLeast`."""

    def check(name: str, value: Any) -> None:
        if value is None or value < low:
            shown = "null" if value is None else value
            why = "Value must be non-null" if value is None else f"Value must be at least {low}"
            raise ConfigException(f"Invalid value {shown} for configuration {name}: {why}")

    return check


def _own(name: str, kind: str, default: object, why: str) -> ConfigKey:
    return ConfigKey(name, kind, default, why)


# The settings whose default differs from Kafka's, and the one that Kafka does not have.
OWN_KEYS: dict[str, ConfigKey] = {
    key.name: key
    for key in (
        *SECURITY_KEYS,
        _own("listeners", "LIST", "PLAINTEXT://127.0.0.1:9092", "The addresses to listen on, as NAME://host:port."),
        _own(
            "queued.max.request.bytes", "LONG", 268_435_456,
            "The most bytes of requests that are being received or handled; -1, Kafka's default, for no limit.",
        ),
        # Kafka's 50 makes clients wait a second each if many connect at once.
        _own("socket.listen.backlog.size", "INT", 1024, "How many connections may wait to be accepted."),
        _own("num.network.threads", "INT", 1, "One thread serves all connections; the value is not used."),
        _own("node.id", "INT", 1, "The number of this node."),
        _own("cluster.id", "STRING", None, "The id of the cluster; by default the one that is kept with the data."),
        _own(
            "listener.security.protocol.map", "STRING", ",".join(f"{each}:{each}" for each in SECURITY_PROTOCOLS),
            "The security protocol of each listener's name.",
        ),
    )
}  # fmt: skip
_KINDS = {"CLASS": "STRING", "PASSWORD": "STRING", "SHORT": "INT"}


@functools.cache
def key_of(name: str) -> ConfigKey | None:
    """Returns the type, the default and the bounds of a setting of a broker; None if there is no such setting."""
    if name in OWN_KEYS:
        return OWN_KEYS[name]
    row = broker_rows().get(name)
    if row is None:
        return None
    check = None if row.low is None else at_least(int(row.low))
    return ConfigKey(name, _KINDS.get(row.type, row.type), row.default, "", check)


_SECURITY_NAMES = frozenset(key.name for key in SECURITY_KEYS)


def is_of_security(name: str) -> bool:
    """Returns whether a setting is one of TLS, SASL, ACLs or quotas, for all listeners or for one."""
    return name in _SECURITY_NAMES or bool(_OPEN.match(name))


def is_known(name: str) -> bool:
    """Returns whether a broker or a listener has a setting of this name."""
    return key_of(name) is not None or name in BROKER_KEYS or bool(_OPEN.match(name))


def hint_for(name: str) -> str | None:
    """Returns what the caller may mean by a name that is not known, or None."""
    topics = TOPIC_KEYS.get(name)
    if topics is None:
        return unknown_key_hint(name, [*OWN_KEYS, *broker_rows()])
    brokers = f"; the broker's key is {topics.synonyms[0][0]}" if topics.synonyms else ""
    return f"this is a topic's key{brokers}"


_OPEN = re.compile(
    r"users\Z|(listener\.name|plain|scram-sha-(256|512)|oauthbearer|sasl|ssl|principal|super|authorizer|allow|quota|"
    r"config\.providers)\."
)


class Endpoint(NamedTuple):
    """A listener's name, security protocol and address.  `host` is "" for every interface."""

    listener: str
    security_protocol: str
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


PORT_MAX = 65535
_ENDPOINT = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]+)")


def parse_endpoints(given: Iterable[str], protocols: Mapping[str, str]) -> list[Endpoint]:
    """Parses listeners as Kafka does.  IllegalArgumentException if one is not understood, or has no protocol."""
    found = []
    for each in given:
        match = _ENDPOINT.fullmatch(each)
        if match is None:
            raise IllegalArgumentException(
                f"Unable to parse {each} to a broker endpoint",
                hint="NAME://host:port, such as PLAINTEXT://127.0.0.1:9092",
            )
        name, port = match[1].upper(), int(match[3])
        if not 0 <= port <= PORT_MAX:
            raise IllegalArgumentException(f"{each}: found port {port}, expected 0 to {PORT_MAX}")
        if name not in protocols:
            raise IllegalArgumentException(
                f"No security protocol defined for listener {name}", hint="listener.security.protocol.map names it"
            )
        found.append(Endpoint(name, protocols[name], match[2], port))
    return found


class ServerSettings:
    """The settings of a server.

    Every setting is an attribute under its Python name (`settings.max_connections`) and an item under Kafka's name
    (`settings["max.connections"]`).  `originals` has what was given.

    Example:
        >>> from kafkalog.server import ServerSettings
        >>> settings = ServerSettings.from_props({"max.connections": "100"})
        >>> settings.max_connections, settings["num.partitions"]
        (100, 1)
    """

    def __init__(self, given: Mapping[str, object]) -> None:
        self.originals = dict(given)
        self._changed: Mapping[str, object] = {}  # while the server runs
        self._values: dict[str, Any] = {}  # parsed so far

    @classmethod
    def from_props(cls, props: Mapping[str, object] | None = None) -> ServerSettings:
        """Parses settings.

        Args:
            props: The settings by Kafka's name, or by the same name with underscores.

        Returns:
            The settings.

        Raises:
            ConfigException: A value has the wrong type or is out of range, or a key is unknown.
        """
        given = {kafkas_name(name): value for name, value in (props or {}).items()}
        for name in given:
            if not is_known(name):
                raise ConfigException(f"Unknown setting {name}", hint=hint_for(name))
        made = cls(given)
        for name in given:
            if key_of(name) is not None:
                made[name]
        return made

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            pass
        key = key_of(name)
        if key is None:
            return self.originals[name]
        found = self._values[name] = key.parse(self._changed.get(name, self.originals.get(name, key.default)))
        return found

    def override(self, props: Mapping[str, str]) -> None:
        """Uses these values over those that were given, and forgets the values of an earlier call.

        Args:
            props: The settings by Kafka's name.
        """
        self._changed = dict(props)
        self._values = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        key = kafkas_name(name)
        if key_of(key) is None:
            raise AttributeError(f"no setting {key}")
        return self[key]

    def get(self, name: str, default: object = None) -> Any:
        """Returns a setting by Kafka's name.

        Args:
            name: Kafka's name of the setting.
            default: The value of a setting that Kafka does not know and that was not given.

        Returns:
            The value, parsed if Kafka knows the setting.
        """
        return self[name] if key_of(name) is not None else self.originals.get(name, default)

    def of_listener(self, listener: str, name: str, default: object = None) -> Any:
        """Returns a setting as `listener.name.<listener>.<name>` overrides it for one listener.

        Args:
            listener: The name of the listener.
            name: Kafka's name of the setting.
            default: As in `get`.

        Returns:
            The value, parsed if Kafka knows the setting.
        """
        own = self.originals.get(f"listener.name.{listener.lower()}.{name}")
        if own is None:
            return self.get(name, default)
        key = key_of(name)
        return own if key is None else key.parse(own)

    @property
    def protocols(self) -> dict[str, str]:
        """The security protocol by the listener's name.

        Raises:
            IllegalArgumentException: A protocol is unknown.
        """
        found = {}
        for each in filter(None, (entry.strip() for entry in self["listener.security.protocol.map"].split(","))):
            name, _, protocol = each.partition(":")
            if protocol.strip().upper() not in SECURITY_PROTOCOLS:
                raise IllegalArgumentException(f"No enum constant SecurityProtocol.{protocol.strip()}")
            found[name.strip().upper()] = protocol.strip().upper()
        return found

    @property
    def endpoints(self) -> list[Endpoint]:
        """The listeners, without those of `controller.listener.names`: this node has no controller that others ask.

        Raises:
            IllegalArgumentException: An address cannot be parsed, or two listeners have one name.
        """
        found = parse_endpoints(self["listeners"], self.protocols)
        controllers = str(self.originals.get("controller.listener.names", "")).upper().split(",")
        found = [each for each in found if each.listener not in map(str.strip, controllers)]
        if not found:
            raise IllegalArgumentException("listeners: found none for clients", hint="such as PLAINTEXT://127.0.0.1:0")
        names = [each.listener for each in found]
        if len(set(names)) != len(names):
            raise IllegalArgumentException("Each listener must have a different name, listeners: " + ", ".join(names))
        return found

    @property
    def advertised_endpoints(self) -> list[Endpoint] | None:
        """The addresses that clients are told; None for the listeners themselves."""
        given = self["advertised.listeners"]
        if given is None:
            return None
        found = parse_endpoints(given, self.protocols)
        if any(each.host in ("0.0.0.0", "::") for each in found):
            raise IllegalArgumentException(
                "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP address."
            )
        return found

    def __repr__(self) -> str:
        changed = {name: value for name, value in self.originals.items() if not any(each in name for each in SECRETS)}
        return f"ServerSettings({changed})"


def kafkas_name(name: str) -> str:
    """Returns Kafka's name of a setting that may be written with underscores.

    Example:
        >>> from kafkalog.server.settings import kafkas_name
        >>> kafkas_name("num_partitions")
        'num.partitions'
    """
    return name if "." in name else name.replace("_", ".")


def manager_settings(given: Mapping[str, object]) -> ManagerSettings:
    """Returns the settings of a store's logs for a server with these settings, which have Kafka's names."""
    config = BrokerLogConfig.from_props(
        {key: value for key, value in given.items() if key not in ("log.dir", "log.dirs")}
    )
    made = ManagerSettings.from_broker(config)
    # The server asks the coordinator of transactions itself.
    known = ProducerStateManagerConfig(made.producers.config.producer_id_expiration_ms, False)
    return made._replace(producers=made.producers._replace(config=known))
