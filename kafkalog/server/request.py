"""A request as handlers get it, the connection that it came from, and the answer that comes later.

Handlers run on the I/O thread, except those of the keys that their module lists as `BLOCKING`: these run in a small
pool.  A handler returns its answer, or a `Pending` that any thread completes later, or None if the client wants no
answer (a produce request with acks=0).  Knows no socket and no handler.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

Values = dict[str, Any]


class FilePart(Protocol):
    """A part of an answer that stays in its file until it is sent: a FileRecordsSlice."""

    @property
    def size(self) -> int: ...

    def to_bytes(self) -> bytes: ...

    def send_to(self, sock: Any, position: int = 0, count: int | None = None) -> int: ...


Part = bytes | bytearray | memoryview | FilePart


class Encoded(NamedTuple):
    """An answer that its handler has encoded: the parts of the body, without the header."""

    parts: list[Part]


class KafkaPrincipal(NamedTuple):
    """KafkaPrincipal: who sent a request."""

    principal_type: str
    name: str

    def __str__(self) -> str:
        return f"{self.principal_type}:{self.name}"


ANONYMOUS = KafkaPrincipal("User", "ANONYMOUS")
LARGE_BYTES = 16 << 10
_ids = itertools.count()


class ConnectionInfo:
    """A connection as handlers know it.

    `state` is for what belongs to the connection and to no request, under a key of the handler's own.  `host` is the
    client's address and `port` its port; `listener` is the name of the listener, such as "PLAINTEXT".
    """

    __slots__ = (
        "_callbacks",
        "client_software_name",
        "client_software_version",
        "host",
        "id",
        "is_closed",
        "listener",
        "local_address",
        "port",
        "principal",
        "security_protocol",
        "state",
    )

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        listener: str = "PLAINTEXT",
        security_protocol: str = "PLAINTEXT",
        principal: KafkaPrincipal = ANONYMOUS,
    ) -> None:
        self.id = next(_ids)
        self.host = host
        self.port = port
        self.listener = listener
        self.security_protocol = security_protocol
        self.local_address: tuple[str, int] = ("", 0)  # where the client has reached the server
        self.principal = principal
        self.client_software_name = "unknown"
        self.client_software_version = "unknown"
        self.state: dict[str, Any] = {}
        self.is_closed = False
        self._callbacks: list[Callable[[], None]] = []

    def on_close(self, callback: Callable[[], None]) -> None:
        """Calls `callback` on the I/O thread when the connection ends; at once if it has ended."""
        if self.is_closed:
            callback()
        else:
            self._callbacks.append(callback)

    def closed(self) -> list[Callable[[], None]]:
        """Marks it as ended and returns the callbacks, which its owner calls."""
        self.is_closed = True
        callbacks, self._callbacks = self._callbacks, []
        return callbacks

    def __repr__(self) -> str:
        return f"<connection {self.id} of {self.host}:{self.port}>"


class Request:
    """One request.

    `body` has every field of the message; `data` is the frame, header included, and the body begins at `body_at`.  A
    handler may set `throttle_ms`, as a quota does: then the connection is not read for this long after the answer.
    """

    __slots__ = (
        "api_key",
        "api_version",
        "body",
        "body_at",
        "client_id",
        "connection",
        "correlation_id",
        "data",
        "is_in_pool",
        "received_ms",
        "size",
        "throttle_ms",
        "unsupported_version",
    )

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int = 0,
        client_id: str | None = None,
        *,
        body: Any = None,
        connection: ConnectionInfo | None = None,
        received_ms: int = 0,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body: Values = body if body is not None else {}
        self.connection = connection or ConnectionInfo()
        self.received_ms = received_ms
        self.data: memoryview = memoryview(b"")  # empty again while it waits for others
        self.size = 0  # the frame's
        self.body_at = 0
        self.is_in_pool = False  # whether its handler runs there, and not on the I/O thread
        self.unsupported_version: int | None = None  # ApiVersions is answered in version 0 then
        self.throttle_ms = 0  # after its answer the connection is not read for this long

    @property
    def is_large(self) -> bool:
        """Whether it names so much that others should not wait while it is handled."""
        return self.size > LARGE_BYTES

    @property
    def principal(self) -> KafkaPrincipal:
        """The client that sent it."""
        return self.connection.principal

    def __repr__(self) -> str:
        return f"<request {self.api_key} v{self.api_version} of {self.client_id!r}, {self.correlation_id}>"


def merged(topics: Iterable[Values], key: Callable[[Values], str], field: str) -> list[Values]:
    """Returns the topics of a request or an answer, each once.  A topic that is listed again adds what `field` has."""
    found: dict[str, list[Values]] = {}
    for topic in topics:
        found.setdefault(key(topic), []).append(topic)
    return [
        same[0] if len(same) == 1 else same[0] | {field: [each for topic in same for each in topic[field]]}
        for same in found.values()
    ]


LARGE: Callable[[Request], bool] = operator.attrgetter("is_large")


class Pending:
    """An answer that comes later.  `complete` may be called from any thread; only the first call counts.

    `is_waiting`: it waits for something that others do, as a fetch waits for records; a server that closes drops it at
    once.  One that does work (an append that is being synced) is given a moment.
    """

    __slots__ = ("_deliver", "_is_ended", "_lock", "_on_close", "_values", "is_waiting")

    def __init__(self, *, is_waiting: bool = False) -> None:
        self.is_waiting = is_waiting
        self._lock = threading.Lock()
        self._is_ended = False  # completed, or its connection has ended
        self._values: Values | Encoded | BaseException | None = None
        self._deliver: Callable[[Values | Encoded | BaseException | None], None] | None = None
        self._on_close: list[Callable[[], None]] = []

    @property
    def is_ended(self) -> bool:
        """Whether it is completed, or its connection has ended."""
        return self._is_ended

    def complete(self, values: Values | Encoded | None) -> bool:
        """Sends the answer; None for no answer.  Returns whether it was the first call, before the connection ended."""
        return self._end(values)

    def fail(self, error: BaseException) -> bool:
        """Sends the answer that an error leaving the handler would become.  Returns as `complete`."""
        return self._end(error)

    def _end(self, result: Values | Encoded | BaseException | None) -> bool:
        with self._lock:
            if self._is_ended:
                return False
            self._is_ended = True
            self._on_close.clear()
            deliver = self._deliver
            if deliver is None:
                self._values = result
        if deliver is not None:
            deliver(result)
        return True

    def on_close(self, callback: Callable[[], None]) -> None:
        """Calls `callback` on the I/O thread if the connection ends before the answer."""
        with self._lock:
            if not self._is_ended:
                self._on_close.append(callback)

    def deliver_to(self, deliver: Callable[[Values | Encoded | BaseException | None], None]) -> None:
        """Says who takes the answer, which may be there already.  For the server alone."""
        with self._lock:
            is_there = self._is_ended
            self._deliver = deliver
        if is_there:
            deliver(self._values)

    def abandon(self) -> list[Callable[[], None]]:
        """Ends it without an answer and returns the callbacks.  For the server alone."""
        with self._lock:
            if self._is_ended:
                return []
            self._is_ended = True
            callbacks, self._on_close = self._on_close, []
        return callbacks


class ProtocolError(Exception):
    """The connection cannot go on.  `is_quiet`: what a scanner or a wrong protocol sends, which is no warning."""

    def __init__(self, message: str, *, is_quiet: bool = False) -> None:
        super().__init__(message)
        self.is_quiet = is_quiet
