"""A listening socket, and the limits on connections: all, of one address, and new ones in a second.

If all connections are used, listeners stop accepting, and clients wait in the backlog.  A further connection of an
address that has its most is closed at once.  Both as in Kafka.  Source: ConnectionQuotas, Acceptor (4.4.0).
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkalog.errors import ConfigException, IllegalArgumentException, KafkaException

if TYPE_CHECKING:
    import ssl

    from kafkalog.server.connection import Authenticator
    from kafkalog.server.request import ConnectionInfo
    from kafkalog.server.settings import Endpoint, ServerSettings

FULL_AGAIN_MS = 250


class Listener:
    """A listening socket.  `tls` and `new_authenticator` are None for a listener without them."""

    def __init__(self, endpoint: Endpoint, sock: socket.socket, settings: ServerSettings) -> None:
        self.sock = sock
        self.endpoint = endpoint._replace(port=sock.getsockname()[1])
        self.is_accepting = False
        self.is_closed = False
        self.send_buffer_bytes: int = settings["socket.send.buffer.bytes"]
        self.tls: ssl.SSLContext | None = None
        # Called after a handshake: it may read the client's certificate and set the principal.
        self.tls_done: Callable[[ConnectionInfo, ssl.SSLSocket], None] | None = None
        self.new_authenticator: Callable[[ConnectionInfo], Authenticator] | None = None

    def close(self) -> None:
        """Closes the socket."""
        self.is_closed = True
        with contextlib.suppress(OSError):
            self.sock.close()


def bind(endpoint: Endpoint, settings: ServerSettings) -> Listener:
    """Opens a listening socket.  KafkaException if the address cannot be used, with what to do."""
    host = endpoint.host or "0.0.0.0"
    sock: socket.socket | None = None
    try:
        found = socket.getaddrinfo(host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings["socket.receive.buffer.bytes"] > 0:  # before listen: the window's scale depends on it
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings["socket.receive.buffer.bytes"])
        sock.bind(address)
        sock.listen(settings["socket.listen.backlog.size"])
        sock.setblocking(False)
    except (OSError, OverflowError) as error:
        if sock is not None:
            sock.close()
        raise _cannot_listen(endpoint, error) from None
    return Listener(endpoint, sock, settings)


def _cannot_listen(endpoint: Endpoint, error: Exception) -> KafkaException:
    number = getattr(error, "errno", None)
    hint = None
    if number == errno.EADDRINUSE:
        hint = "another server has the port; port 0 takes a free one"
    elif number == errno.EACCES:
        hint = "ports below 1024 are for the administrator"
    why = os.strerror(number) if number and not isinstance(error, socket.gaierror) else str(error)
    return KafkaException(
        f"Socket server failed to bind to {endpoint.host or '0.0.0.0'}:{endpoint.port}: {why}.", hint=hint
    )


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches an address or every address of a name."""
    if not host:
        return False
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    addresses = {str(each[4][0]) for each in found}
    return bool(addresses) and all(each == "::1" or each.startswith("127.") for each in addresses)


def parse_overrides(text: str) -> dict[str, int]:
    """Parses `max.connections.per.ip.overrides`.  ConfigException; IllegalArgumentException for an unknown host."""
    found = {}
    for each in filter(None, (entry.strip() for entry in text.split(","))):
        host, _, count = each.rpartition(":")
        if not host or not count.strip().isdigit():
            raise ConfigException(f"Invalid value {text} for configuration max.connections.per.ip.overrides: {each}")
        try:
            addresses = {str(info[4][0]) for info in socket.getaddrinfo(host.strip(), None)}
        except OSError:
            raise IllegalArgumentException(f"max.connections.per.ip.overrides: unknown host {host}") from None
        found.update(dict.fromkeys(addresses, int(count)))
    return found


class ConnectionQuotas:
    """Counts connections.  Only the I/O thread uses it."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._total_max: int = settings["max.connections"]
        self._of_address_max: int = settings["max.connections.per.ip"]
        self._overrides = parse_overrides(settings["max.connections.per.ip.overrides"])
        self._rate_max: int = settings["max.connection.creation.rate"]
        self._of_address: collections.Counter[str] = collections.Counter()
        self._of_listener: collections.Counter[str] = collections.Counter()
        self.total = 0
        self.was_full = False
        self._second = 0
        self._in_second = 0

    def wait_ms(self, listener: str) -> int:
        """Returns how long a listener must not accept; 0 if it may."""
        own = int(self._settings.of_listener(listener, "max.connections"))
        if self.total >= self._total_max or self._of_listener[listener] >= own:
            self.was_full = True
            return FULL_AGAIN_MS
        now = time.monotonic()
        if int(now) != self._second:
            self._second, self._in_second = int(now), 0
        if self._in_second >= self._rate_max:
            return max(1, int((self._second + 1 - now) * 1000))
        self.was_full = False
        return 0

    def admits(self, host: str) -> bool:
        """Returns whether an address may have one more connection."""
        return self._of_address[host] < self._overrides.get(host, self._of_address_max)

    def add(self, listener: str, host: str) -> None:
        """Counts a new connection."""
        self.total += 1
        self._in_second += 1
        self._of_address[host] += 1
        self._of_listener[listener] += 1

    def remove(self, listener: str, host: str) -> None:
        """Counts the end of a connection."""
        self.total -= 1
        self._of_listener[listener] -= 1
        self._of_address[host] -= 1
        if not self._of_address[host]:
            del self._of_address[host]
