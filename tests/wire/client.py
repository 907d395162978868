"""Bare requests to a server, by the package's tables of Kafka's messages: a frame's bytes, and one connection.

    with Client("127.0.0.1:9092") as client:
        answer = client.ask("Metadata", 12, topics=None)

An API is given by its key or by Kafka's name.  Nothing here judges an answer: any producer id, epoch and member may be
sent, which other clients do not do.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from kafkalog.engine.format.error_codes import Errors, exception_name
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.requests import Api, apis

BY_NAME: dict[str, Api] = {each.name: each for each in apis().values()}
# Kafka's error codes by the exceptions' names.
ERRORS = {exception_name(each): int(each) for each in Errors if each is not Errors.NONE}
CLIENT_ID = "wire"
TIMEOUT_S = 60.0


# More than eight parameters: never; a frame's header is four of them.
def frame(
    api: int | str,
    version: int,
    values: Mapping[str, Any] | None = None,
    *,
    correlation_id: int = 1,
    client_id: str | None = CLIENT_ID,
    body: bytes | None = None,
) -> bytes:
    """A request with its size.  `body` instead of `values` may be no request at all."""
    known = BY_NAME[api] if isinstance(api, str) else apis().get(api)
    if body is None:
        assert known is not None, api
        body = known.request.encode(values or {}, version)
    key = api if known is None else known.key
    name = b"" if client_id is None else client_id.encode()
    head = struct.pack(">hhih", key, version, correlation_id, -1 if client_id is None else len(name)) + name
    if known is not None and version >= known.flexible_from:
        head += b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def decoded(api: int | str, version: int, data: bytes) -> tuple[int, Values]:
    """The correlation id and the body of an answer without its size."""
    known = BY_NAME[api] if isinstance(api, str) else apis()[api]
    at = 4 + known.response_header_version(version)
    assert data[4:at] in (b"", b"\0"), data[:5]  # no tagged fields
    values, end = known.response.decode(data, version, at=at)
    assert end == len(data), (known.name, version, end, len(data))
    return int.from_bytes(data[:4], "big"), values


class Client:
    """One connection to a server; a context manager.  `address` may be a socket of the caller's."""

    def __init__(
        self,
        address: str | tuple[str, int] | socket.socket,
        *,
        client_id: str = CLIENT_ID,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if isinstance(address, str):
            host, _, port = address.rpartition(":")
            address = (host, int(port))
        if not isinstance(address, socket.socket):
            address = socket.create_connection(address, timeout=timeout_s)
        self.sock = address
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client_id = client_id
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def ask(self, api: int | str, version: int, values: Mapping[str, Any] | None = None, **more: Any) -> Values:
        """Sends a request and returns its answer; the fields are a dictionary, or named here."""
        self.send(api, version, values, **more)
        return self._answer(api, version, self._count)

    def send(self, api: int | str, version: int, values: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Sends a request; `answer` takes its answer."""
        self._count += 1
        fields = {**(values or {}), **more}
        self.sock.sendall(frame(api, version, fields, correlation_id=self._count, client_id=self._client_id))

    def answer(self, api: int | str, version: int) -> Values:
        """The next answer.  ConnectionError if the server closed the connection."""
        return self._answer(api, version, None)

    def _answer(self, api: int | str, version: int, number: int | None) -> Values:
        found, values = decoded(api, version, self.next_frame())
        assert number in (None, found), (api, version, number, found)
        return values

    def next_frame(self) -> bytes:
        """The next frame without its size.  ConnectionError if the server closed the connection."""
        head = self.take(4)
        size = int.from_bytes(head, "big")
        data = self.take(size)
        if len(head) < 4 or len(data) < size:
            raise ConnectionError("the server closed the connection")
        return data

    def take(self, size: int) -> bytes:
        """Exactly `size` bytes; fewer if the server closed the connection."""
        data = bytearray()
        while len(data) < size:
            more = self.sock.recv(min(size - len(data), 1 << 20))
            if not more:
                break
            data += more
        return bytes(data)

    def is_closed(self) -> bool:
        """Whether the server has closed the connection without a further byte."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True
