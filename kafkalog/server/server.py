"""`Server`: a store behind Kafka's protocol, with its I/O thread.

    with kafkalog.open("shop") as store, store.serve("127.0.0.1:0") as server:
        print(server.bootstrap_servers)

The store stays usable by its own calls, and closes its server first when it closes.  A close of the server stops
accepting, gives the requests in flight a moment, ends those that only wait (a fetch without records), and then closes
the connections.  One server serves a store at a time: it is one node, with one id.  A server belongs to the process
that started it; in the child of a fork its sockets are closed, and it refuses use.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kafkalog._native.state.blocks import Closing
from kafkalog.engine.files.left_open import opened_at
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.local_paths import local_path
from kafkalog.engine.files.processes import belongs_here, held_over_forks, opened_elsewhere
from kafkalog.errors import ConfigException, IllegalArgumentException, IllegalStateException
from kafkalog.server.api import Apis
from kafkalog.server.broker import Broker
from kafkalog.server.cluster_id import cluster_id_of
from kafkalog.server.dispatcher import Dispatcher
from kafkalog.server.group_setup import start_groups
from kafkalog.server.listener import Listener, bind, is_loopback
from kafkalog.server.server_state import is_kept
from kafkalog.server.settings import Endpoint, ServerSettings, is_of_security, kafkas_name
from kafkalog.server.transport import Transport

if TYPE_CHECKING:
    from kafkalog._face.store_home import StoreHome
    from kafkalog.server.resource_configs import ConfigsByResource

__all__ = ["Server"]

GRACE_MS = 2_000  # that requests in flight have at a close
_LINES = Lines("kafkalog.server")
_ADDRESS_HINT = '"127.0.0.1:0" takes a free port'
_LOCK = threading.RLock()  # guards which store has a server
held_over_forks(_LOCK)


class Server(Closing):
    """A running server, returned by `Store.serve`.

    Example:
        >>> import kafkalog
        >>> with kafkalog.open("data") as store, store.serve("127.0.0.1:0") as server:
        ...     print(server.bootstrap_servers.startswith("127.0.0.1:"), server.closed)
        True False
    """

    def __init__(self, home: StoreHome, settings: ServerSettings, *, allow_anonymous: bool = False) -> None:
        home.check_writable()
        endpoints = settings.endpoints
        refuse_open_listeners(endpoints, settings, allow_anonymous=allow_anonymous)
        self._home = home
        self._shared: StoreHome = getattr(home, "shared", home)
        self._pid_refusal: IllegalStateException | None = None
        self._is_closed = False
        self._closing = threading.RLock()
        self._at_close: list[Callable[[], object]] = []
        self.where = opened_at()
        self.settings = settings
        with _LOCK:
            other = getattr(self._shared, "server", None)
            if other is not None:
                raise IllegalStateException(
                    f"the store of {home.place} is already served at {other.bootstrap_servers} ({other.where})",
                    hint="one server may have several listeners",
                )
            self._shared.server = self
        self._transport: Transport | None = None
        try:
            self._start(endpoints)
        except BaseException:
            self._release()
            raise
        home.producers.add(self)

    def _start(self, endpoints: list[Endpoint]) -> None:
        settings, home = self.settings, self._home
        apis = Apis()
        cluster_id = settings["cluster.id"] or cluster_id_of(home.log_dirs, home.files)
        self.broker = Broker(home, settings, cluster_id=cluster_id)
        self.broker.apis = apis
        transport = self._transport = Transport(settings, apis, now_ms=home.clock.milliseconds)
        self.broker.call_soon = transport.call_soon
        transport.accept_ms = lambda host: self.broker.quotas.accept(host)
        self.broker.later = transport.later_from_anywhere
        self.broker.watch = transport.watch
        self.broker.at_close = self._at_close
        transport.dispatcher = self._dispatcher = Dispatcher(self.broker, later=transport.later)
        self.broker.submit = self._dispatcher.submit
        listeners = []
        for each in endpoints:
            listener = bind(each, settings)
            listeners.append(listener)
            transport.listeners.append(listener)
        self.broker.listeners = [each.endpoint for each in listeners]
        self.broker.advertised = settings.advertised_endpoints or self.broker.listeners
        self.broker.save_configs = self._save_configs
        self._secure(listeners)
        start_groups(self.broker)
        belongs_here(self)
        if home.metrics is not None:
            from kafkalog.server.request_metrics import RequestMetrics

            self.broker.metrics = home.metrics
            transport.metrics = RequestMetrics(home.metrics, transport)
            self._at_close.append(transport.metrics.close)
        transport.start_listening()
        transport.start()
        _LINES.info("serving the store of %s at %s", home.place, ", ".join(map(str, self.broker.listeners)))

    def _secure(self, listeners: list[Listener]) -> None:
        """Gives listeners their TLS and SASL, and the broker its authorizer and quotas, if settings ask for them."""
        needs = any(each.endpoint.security_protocol != "PLAINTEXT" for each in listeners)
        if needs or any(map(is_of_security, self.settings.originals)) or is_kept(self._home.log_dirs, self._home.files):
            module = importlib.import_module("kafkalog.server.security.setup")
            module.secure(self.broker, listeners, self._at_close)

    def _save_configs(self, configs: ConfigsByResource) -> None:
        importlib.import_module("kafkalog.server.security.setup").save_configs(self.broker, configs)

    # --- what callers see ------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for a client's `bootstrap.servers`, such as "127.0.0.1:9092"."""
        return ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in self.addresses)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The host and the port of each listener, as clients of this machine reach it."""
        found = []
        for each in self.broker.listeners:
            host = "127.0.0.1" if each.host in ("", "0.0.0.0") else "::1" if each.host == "::" else each.host
            found.append((host, each.port))
        return found

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self.broker.listeners[0].port

    @property
    def cluster_id(self) -> str:
        """The id of the cluster that clients see."""
        return self.broker.cluster_id

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    def __enter__(self) -> Server:
        return self

    def __repr__(self) -> str:
        state = "closed server" if self._is_closed else "server"
        shown = self.bootstrap_servers if hasattr(self, "broker") else "no address"
        return f"<{state} of {self._home.place} at {shown}>"

    # --- the end ---------------------------------------------------------------------------------------

    def check_outside(self) -> None:
        """Raises IllegalStateException on the I/O thread, which a close would wait for."""
        if self._transport is not None and self._transport.is_own_thread:
            raise IllegalStateException(
                "a server cannot be closed on its own thread", hint="close it in another thread"
            )

    def flush_until(self, deadline_s: float) -> bool:
        """Says that nothing is lost if the process ends now.

        Args:
            deadline_s: Not used; a server holds nothing that was acknowledged and is not written.

        Returns:
            True.
        """
        return True

    def close(self) -> None:
        """Stops accepting, answers what is in flight for a moment, and closes the connections.

        A second call does nothing.

        Raises:
            IllegalStateException: The call comes from the server's own thread, or from a forked child.
        """
        if self._pid_refusal is not None:
            raise self._pid_refusal
        if self._end(GRACE_MS):
            _LINES.info("the server of %s is closed", self._home.place)

    def kill(self) -> None:
        """Closes every socket as a crash of the process does.

        Nothing is answered.  This is for tests.
        """
        self._end(-1)

    def _end(self, grace_ms: int) -> bool:
        """Closes the server.  Returns False if it was closed already."""
        self.check_outside()
        with self._closing:
            if self._is_closed:
                return False
            assert self._transport is not None
            self._transport.close(grace_ms)
            self._dispatcher.close()
            self._is_closed = True
            self._home.producers.discard(self)
            for each in self._at_close:
                each()
            self._release()
            return True

    def _release(self) -> None:
        if self._transport is not None and not self._is_closed:
            self._transport.release()
        with _LOCK:
            if getattr(self._shared, "server", None) is self:
                self._shared.server = None

    def disown(self) -> None:
        """Closes the copies of the sockets in a forked child, and refuses use there."""
        self._pid_refusal = opened_elsewhere(f"the server of {self._home.place}", self._home.life.pid)
        self._is_closed = True
        if self._transport is not None:
            self._transport.release()


def serve(home: StoreHome, listen: object, settings: Mapping[str, Any], *, allow_anonymous: bool = False) -> Server:
    """Starts a server as `Store.serve`."""
    given = ServerSettings.from_props(named_settings(settings, listen))
    return Server(home, given, allow_anonymous=allow_anonymous)


def named_settings(settings: Mapping[str, Any], listen: object = None) -> dict[str, Any]:
    """Returns settings under Kafka's names, with the listeners.

    `listen`, and `tls` and `advertise` among them, are arguments of `Store.serve` and options of the command."""
    given = {
        kafkas_name(name): os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in settings.items()
    }
    for name, hint in _NOT_HERE.items():
        if name in given:
            raise ConfigException(f"Unknown setting {name}", hint=hint)
    tls, advertise = given.pop("tls", None), given.pop("advertise", None)
    for word, value, keys in (
        ("listen", listen, ("listeners",)),
        ("advertise", advertise, ("advertised.listeners",)),
        ("tls", tls, TLS_KEYS),
    ):
        other = next((key for key in keys if key in given), None)
        if value is not None and other is not None:
            raise IllegalArgumentException(f"{word} and the setting `{other}` were given, expected one of them")
    if tls is not None:
        given.update({"ssl.keystore.type": "PEM", "ssl.keystore.location": local_path(tls, what="tls")})
    protocol = protocol_of(given)
    if listen is not None or ("listeners" not in given and protocol != "PLAINTEXT"):
        given["listeners"] = listeners_of(9092 if listen is None else listen, protocol)
    if advertise is not None:
        given["advertised.listeners"] = listeners_of(advertise, protocol, what="advertise")
    return given


TLS_KEYS = tuple(f"ssl.keystore.{each}" for each in ("location", "key", "certificate.chain", "type", "password"))
# Words that are no setting of a server, and what a caller may mean.
_NOT_HERE = {
    "metrics": "the command has --metrics; a program passes metrics=MetricsRegistry() to kafkalog.open",
    "durability": "the command has --durability; a program passes it to kafkalog.open",
    "user": 'did you mean users, such as users={"alice": "secret"}?',
}


def protocol_of(settings: Mapping[str, Any]) -> str:
    """Returns the protocol of a listener without a name: SASL if the settings have users, TLS if they have a key."""
    has_users = "users" in settings or "users.file" in settings
    has_key = "ssl.keystore.location" in settings or "ssl.keystore.key" in settings
    return ("SASL_" if has_users else "") + ("SSL" if has_key else "PLAINTEXT")


def listeners_of(listen: object, protocol: str = "PLAINTEXT", *, what: str = "listen") -> str:
    """Returns `listeners` of an address such as "127.0.0.1:9092", ":9092", 9092, "SSL://host:9093", or several.

    `protocol` is the name of a listener that has none; `what` is the argument's name, for errors."""
    if isinstance(listen, int) and not isinstance(listen, bool):
        return f"{protocol}://127.0.0.1:{listen}"
    if isinstance(listen, str):
        parts: Iterable[object] = [each.strip() for each in listen.split(",")]
    elif isinstance(listen, Iterable) and not isinstance(listen, bytes):
        parts = listen
    else:
        parts = [listen]
    found = []
    for each in parts:
        if not isinstance(each, str) or ":" not in each.rpartition("://")[2]:
            raise IllegalArgumentException(
                f"{what}: found {each!r}, expected HOST:PORT or NAME://HOST:PORT",
                hint=_ADDRESS_HINT,
            )
        found.append(each if "://" in each else f"{protocol}://{each}")
    if not found:
        raise IllegalArgumentException(f"{what}: found no address, expected at least one", hint=_ADDRESS_HINT)
    return ",".join(found)


def refuse_open_listeners(endpoints: Iterable[Endpoint], settings: ServerSettings, *, allow_anonymous: bool) -> None:
    """Raises IllegalArgumentException for a listener that asks nobody who they are, if others can reach it, or if
    there are users, who would not have to log in there."""
    if allow_anonymous:
        return
    has_users = "users" in settings.originals or "users.file" in settings.originals
    for each in endpoints:
        if each.security_protocol.startswith("SASL_"):
            continue
        auth = settings.of_listener(each.listener, "ssl.client.auth")
        if each.security_protocol == "SSL" and str(auth).lower() == "required":
            continue
        if has_users:
            raise IllegalArgumentException(
                f"{each} lets everybody in without a password, but users are given",
                hint=f"use SASL_{each.security_protocol} instead, or an address without a name; allow_anonymous=True "
                "(command line: --allow-anonymous) serves everybody",
            )
        if is_loopback(each.host):
            continue
        raise IllegalArgumentException(
            f"{each} can be reached by other machines, and asks nobody for a name or a password",
            hint="use a listener with SASL, or TLS with ssl.client.auth=required; allow_anonymous=True (command line: "
            "--allow-anonymous) serves everybody",
        )
