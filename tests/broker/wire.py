"""Requests that clients do not make: any producer id, any epoch, any member, and the bare answer.

One connection sends them one after the other, by the package's tables of Kafka's messages.
"""

from __future__ import annotations

import itertools
import socket
import struct
from types import TracebackType

from kafkalog.engine.format.error_codes import Errors, exception_name
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.requests import apis

NONE = 0
# Kafka's error codes by the exceptions' names.
ERRORS = {exception_name(each): int(each) for each in Errors if each is not Errors.NONE}
APIS = {each.name: each for each in apis().values()}


class Connection:
    """A connection to a broker; a context manager."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._numbers = itertools.count()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(self, name: str, version: int, values: Values) -> Values:
        """The answer to a request of a flexible version."""
        known, number = APIS[name], next(self._numbers)
        client = b"wire"
        head = struct.pack(">hhih", known.key, version, number, len(client)) + client + b"\0"
        body = head + known.request.encode(values, version)
        self._socket.sendall(struct.pack(">i", len(body)) + body)
        answer = self._take(struct.unpack(">i", self._take(4))[0])
        # FindCoordinator and all others asked here: correlation id, then no tagged fields.
        assert struct.unpack_from(">ib", answer) == (number, 0), answer[:5]
        found: Values = known.response.decode(answer, version, at=5)[0]
        return found

    def _take(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            assert more, "the broker hung up"
            found += more
        return bytes(found)
