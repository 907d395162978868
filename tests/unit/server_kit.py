"""Helpers for tests of the server: frames of requests, and a client that asks one question at a time."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from typing import Any

from kafkalog.engine.format.requests import api, apis
from kafkalog.server.api import Apis
from kafkalog.server.connection import Connection
from kafkalog.server.request import ConnectionInfo

Values = dict[str, Any]
SOFTWARE = {"clientSoftwareName": "test", "clientSoftwareVersion": "1.0"}


# More than eight parameters: never; a frame's header is four of them.
def frame(
    key: int,
    version: int,
    values: Mapping[str, Any] | None = None,
    *,
    correlation_id: int = 1,
    client_id: str | None = "c",
    body: bytes | None = None,
) -> bytes:
    """A request with its size.  `body` instead of `values` may be no request at all."""
    known = apis().get(key)
    if body is None:
        body = api(key).request.encode(values or {}, version)
    name = b"" if client_id is None else client_id.encode()
    head = struct.pack(">hhih", key, version, correlation_id, -1 if client_id is None else len(name)) + name
    if known is not None and version >= known.flexible_from:
        head += b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def decoded(key: int, version: int, data: bytes) -> tuple[int, Values]:
    """The correlation id and the body of an answer without its size."""
    at = 4 + (api(key).response_header_version(version))
    return int.from_bytes(data[:4], "big"), api(key).response.decode(data, version, at=at)[0]


def connection(**options: Any) -> Connection:
    """A connection that knows the requests of this package."""
    return Connection(ConnectionInfo("127.0.0.1", 5000), Apis(), **{"request_bytes_max": 1 << 20, **options})


def sent_by(given: Connection) -> bytes:
    """Takes what the connection sends."""
    data = b"".join(bytes(part) for part in given.to_send)  # type: ignore[arg-type]
    given.to_send.clear()
    given.sent(len(data))
    return data


class Client:
    """Asks a server over a socket."""

    def __init__(self, address: tuple[str, int], timeout_s: float = 5) -> None:
        self.sock = socket.create_connection(address, timeout=timeout_s)
        self._count = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.sock.close()

    def take(self, size: int) -> bytes:
        """Exactly `size` bytes; fewer if the server closed the connection."""
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                break
            data += more
        return data

    def answer(self, key: int, version: int) -> Values:
        """The next answer.  ConnectionError if the server closed the connection."""
        size = self.take(4)
        if len(size) < 4:
            raise ConnectionError("the server closed the connection")
        _, values = decoded(key, version, self.take(int.from_bytes(size, "big")))
        return values

    def ask(self, key: int, version: int, values: Mapping[str, Any] | None = None) -> Values:
        """Sends a request and returns its answer."""
        self._count += 1
        self.sock.sendall(frame(key, version, values, correlation_id=self._count))
        return self.answer(key, version)

    def is_closed(self) -> bool:
        """Whether the server has closed the connection without a further byte."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True
