"""Bare requests to a server, and what comes back: an answer, the end of the connection, or nothing.

    with Talk(server.bootstrap) as talk:
        answer = talk.ask("Metadata", 12, {"topics": None})

Every outcome goes into `talk.heard`, with the request's name and version, so that two servers' outcomes can be
compared.  A connection that the server closed is opened again by the next request.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

from kafkalog.engine.format.message_tables import Type
from kafkalog.engine.format.messages import Values
from tests.wire.client import BY_NAME, CLIENT_ID, Client, decoded, frame

CLOSED, NOTHING = "closed", "nothing"
TIMEOUT_SECONDS = 30.0


class Heard(NamedTuple):
    """An outcome: the values of an answer, "closed", or "nothing"."""

    name: str
    version: int
    outcome: Values | str


class Talk:
    """A client that expects anything."""

    def __init__(self, bootstrap: str, *, client_id: str = CLIENT_ID) -> None:
        self.bootstrap = bootstrap
        self._client_id = client_id
        self._client: Client | None = None
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
        if self._client is not None:
            self._client.close()
            self._client = None

    # --- requests --------------------------------------------------------------------------------------

    def frame(self, name: str, version: int, body: bytes) -> bytes:
        """A request with its size."""
        self._number += 1
        return frame(name, version, body=body, correlation_id=self._number, client_id=self._client_id)

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

    def outcome_of(self, request: bytes, name: str, version: int) -> Values | str:
        answer = self.send(request)
        if isinstance(answer, str):
            return answer
        number, values = decoded(name, version, answer)
        assert number == self._number, (name, version, number, self._number)
        return values

    def tell(self, name: str, version: int, values: Values) -> None:
        """A request without an answer: the next one's answer must be the first thing that comes."""
        request = self.frame(name, version, BY_NAME[name].request.encode(values, version))
        answer = self.send(request + self.frame("ApiVersions", 0, b""))
        if isinstance(answer, bytes):
            answer = NOTHING if struct.unpack_from(">i", answer)[0] == self._number else "an answer"
        self.heard.append(Heard(name, version, answer))

    def send(self, data: bytes) -> bytes | str:
        """Sends bytes and takes one frame: its contents, "closed" or "nothing"."""
        try:
            return self.deliver(data).next_frame()
        except TimeoutError:
            self.hang_up()
            return NOTHING
        except ConnectionError:
            self.hang_up()
            return CLOSED

    def connected(self) -> Client:
        """A new connection."""
        return Client(self.bootstrap, timeout_s=TIMEOUT_SECONDS)

    def deliver(self, data: bytes) -> Client:
        """Sends bytes, and waits for nothing; the connection."""
        if self._client is None:
            self._client = self.connected()
        self._client.sock.settimeout(self.patience_seconds)
        self._client.sock.sendall(data)
        return self._client

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
    with Talk(talk.bootstrap, client_id=client_id) as second:
        second.heard = talk.heard
        yield second
