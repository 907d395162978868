"""Helpers for tests of the server: a connection without a socket, and what it sends."""

from __future__ import annotations

from typing import Any

from kafkalog.server.api import Apis
from kafkalog.server.connection import Connection
from kafkalog.server.request import ConnectionInfo

SOFTWARE = {"clientSoftwareName": "test", "clientSoftwareVersion": "1.0"}


def connection(**options: Any) -> Connection:
    """A connection that knows the requests of this package."""
    return Connection(ConnectionInfo("127.0.0.1", 5000), Apis(), **{"request_bytes_max": 1 << 20, **options})


def sent_by(given: Connection) -> bytes:
    """Takes what the connection sends."""
    data = b"".join(bytes(part) for part in given.to_send)  # type: ignore[arg-type]
    given.to_send.clear()
    given.sent(len(data))
    return data
