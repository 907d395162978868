"""Raw requests to a server, one connection, and what comes back: an answer, the end of the connection, or nothing.

    with Talk(server.bootstrap) as talk:
        answer = talk.ask("Metadata", 12, {"topics": None})

Every outcome goes into `talk.heard`, with the request's name and version, so that two servers' outcomes can be
compared.  A connection that the server closed is opened again by the next request.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

from kafkalog.engine.format.message_tables import Type
from kafkalog.engine.format.messages import Values
from kafkalog.engine.format.requests import Api, apis, header_messages

BY_NAME: dict[str, Api] = {api.name: api for api in apis().values()}
CLOSED, NOTHING = "closed", "nothing"
TIMEOUT_SECONDS = 30.0
CLIENT_ID = "wire"


class Heard(NamedTuple):
    """An outcome: the values of an answer, "closed", or "nothing"."""

    name: str
    version: int
    outcome: Values | str


class Talk:
    """A client that knows only bytes."""

    def __init__(self, bootstrap: str, *, client_id: str = CLIENT_ID) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.host, self.port = host, int(port)
        self._client_id = client_id
        self._socket: socket.socket | None = None
        self._number = 0
        self.patience_seconds = TIMEOUT_SECONDS  # after which there is no answer
        self.heard: list[Heard] = []

    def __enter__(self) -> Talk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # --- requests --------------------------------------------------------------------------------------

    def frame(self, name: str, version: int, body: bytes) -> bytes:
        """A request's header and body, without the size."""
        api = BY_NAME[name]
        self._number += 1
        header = {
            "requestApiKey": api.key,
            "requestApiVersion": version,
            "correlationId": self._number,
            "clientId": self._client_id,
        }
        return header_messages()[0].encode(header, api.request_header_version(version)) + body

    def ask(self, name: str, version: int, values: Values) -> Values:
        """The answer's values; {} if there is none."""
        outcome = self.ask_bytes(name, version, BY_NAME[name].request.encode(values, version))
        return outcome if isinstance(outcome, dict) else {}

    def each(self, name: str, values: Values) -> list[Values]:
        """The same values in every version, without the fields that a version lacks."""
        api = BY_NAME[name]
        versions = range(api.lowest, api.highest + 1)
        return [self.ask(name, version, fitting(api.request.type, values, version)) for version in versions]

    def wait(self, name: str, values: Values, ready: Callable[[Values], bool], *, version: int | None = None) -> Values:
        """Asks until the answer is ready, and hears only that one."""
        version = BY_NAME[name].highest if version is None else version
        until = time.monotonic() + TIMEOUT_SECONDS
        while True:
            before = len(self.heard)
            answer = self.ask(name, version, values)
            if ready(answer) or time.monotonic() > until:
                return answer
            del self.heard[before:]
            time.sleep(0.02)

    def ask_bytes(self, name: str, version: int, body: bytes) -> Values | str:
        """A request with any bytes as its body."""
        outcome = self.outcome_of(self.frame(name, version, body), name, version)
        self.heard.append(Heard(name, version, outcome))
        return outcome

    def outcome_of(self, frame: bytes, name: str, version: int) -> Values | str:
        answer = self.send(struct.pack(">i", len(frame)) + frame)
        return answer if isinstance(answer, str) else self.parsed(answer, name, version)

    def parsed(self, answer: bytes, name: str, version: int) -> Values:
        api = BY_NAME[name]
        (number,) = struct.unpack_from(">i", answer)
        assert number == self._number, (name, version, number, self._number)
        at = 5 if api.response_header_version(version) else 4
        if at == 5:
            assert answer[4] == 0, answer[:5]
        values, end = api.response.decode(answer, version, at=at)
        assert end == len(answer), (name, version, end, len(answer))
        return values

    def tell(self, name: str, version: int, values: Values) -> None:
        """A request without an answer: the next one's answer must be the first thing that comes."""
        body = self.frame(name, version, BY_NAME[name].request.encode(values, version))
        probe = self.frame("ApiVersions", 0, b"")
        answer = self.send(struct.pack(">i", len(body)) + body + struct.pack(">i", len(probe)) + probe)
        if isinstance(answer, bytes):
            answer = NOTHING if struct.unpack_from(">i", answer)[0] == self._number else "an answer"
        self.heard.append(Heard(name, version, answer))

    def send(self, data: bytes) -> bytes | str:
        """Sends bytes and takes one frame: its contents, "closed" or "nothing"."""
        try:
            self.deliver(data)
            size = struct.unpack(">i", self._take(4))[0]
            return self._take(size)
        except TimeoutError:
            self.hang_up()
            return NOTHING
        except (ConnectionError, EOFError):
            self.hang_up()
            return CLOSED

    def deliver(self, data: bytes) -> None:
        """Sends bytes, and waits for nothing."""
        if self._socket is None:
            self._socket = socket.create_connection((self.host, self.port), timeout=TIMEOUT_SECONDS)
        self._socket.settimeout(self.patience_seconds)
        self._socket.sendall(data)

    def _take(self, size: int) -> bytes:
        assert self._socket is not None
        found = bytearray()
        while len(found) < size:
            more = self._socket.recv(min(size - len(found), 1 << 20))
            if not more:
                raise EOFError
            found += more
        return bytes(found)

    def serves(self, name: str) -> bool:
        """Whether the server says that it knows an API."""
        answer = self.outcome_of(self.frame("ApiVersions", 0, b""), "ApiVersions", 0)
        assert isinstance(answer, dict)
        return any(row["apiKey"] == BY_NAME[name].key for row in answer["apiKeys"])


def fitting(of: Type, values: Values, version: int) -> Values:
    """The values of the fields that a version has."""
    found = {}
    for field in of.fields:
        if field.name in values and field.in_version(version):
            found[field.name] = _fitting(field.type, values[field.name], version)
    return found


def _fitting(of: Type, value: Any, version: int) -> Any:
    if isinstance(value, list) and of.element is not None:
        return [_fitting(of.element, each, version) for each in value]
    return fitting(of, value, version) if isinstance(value, dict) else value


@contextlib.contextmanager
def another(talk: Talk, client_id: str) -> Iterator[Talk]:
    """A second connection to the same server; what it hears is heard by the first."""
    with Talk(f"{talk.host}:{talk.port}", client_id=client_id) as second:
        second.heard = talk.heard
        yield second
