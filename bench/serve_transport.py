"""Requests and bytes a second of the server's transport beside asyncio: `python -m bench.serve_transport`.

Both drive the same `Connection` and the same handlers.  The one is `kafkalog.server.transport` (epoll, sendfile).  The
other is an asyncio protocol that reads, handles and writes.  It copies slices of files, because a transport of asyncio
owns its socket.  Clients run in a process of their own.  Three measures: small
requests one after the other, small requests pipelined, and answers of 1 MiB from a file in the page cache.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kafkalog
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.engine.segment.file_records import FileRecords
from kafkalog.server import Server
from kafkalog.server.api import Apis
from kafkalog.server.broker import Broker
from kafkalog.server.connection import Connection
from kafkalog.server.request import ConnectionInfo, Encoded, Request
from kafkalog.server.transport import part_bytes
from tests.wire.client import frame

ANSWER_BYTES = 1 << 20
SMALL, LARGE = ApiKeys.API_VERSIONS, ApiKeys.METADATA


ASK_SMALL = frame(SMALL, 0)
ASK_LARGE = frame(LARGE, 1, {"topics": []})


# --- the servers -----------------------------------------------------------------------------------------


def handlers(path: Path, apis: Apis) -> FileRecords:
    """Replaces two handlers, so that the transport is what is measured."""
    records = FileRecords.open(str(path), OS_FILES, mutable=False)
    part = records.slice(0, ANSWER_BYTES)
    small = Encoded([bytes(60)])
    for key, answer in ((SMALL, small), (LARGE, Encoded([b"", part]))):
        entry = apis.entries[key]
        entry.load()
        entry.handler = lambda broker, asked, answer=answer: answer  # type: ignore[misc]
    return records


@contextlib.contextmanager
def on_epoll(folder: Path) -> Iterator[int]:
    """The server as it is."""
    with kafkalog.open(folder / "store") as store, store.serve("127.0.0.1:0") as server:
        assert isinstance(server, Server)
        assert server.broker.apis is not None
        handlers(folder / "answer", server.broker.apis)  # type: ignore[arg-type]
        yield server.port


class Protocol(asyncio.BufferedProtocol):
    """One connection on asyncio."""

    def __init__(self, apis: Apis, broker: Broker) -> None:
        self._apis, self._broker = apis, broker
        self._buffer = memoryview(bytearray(256 << 10))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._connection = Connection(ConnectionInfo(), self._apis, request_bytes_max=100 << 20)

    def get_buffer(self, sizehint: int) -> Any:
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        connection, entries = self._connection, self._apis.entries
        connection.receive(self._buffer[:count])
        parts = connection.to_send
        while True:
            asked = connection.next_request()
            if asked is None and not parts:
                return
            if asked is not None:
                connection.answer(asked, self._handled(asked))
                if len(parts) < 64:
                    continue
            data = [part if isinstance(part, bytes) else part_bytes(part, 0, ANSWER_BYTES) for part in parts]
            parts.clear()
            connection.sent(connection.unsent_bytes)
            self._transport.writelines(data)
            entries = entries or {}

    def _handled(self, asked: Request) -> Any:
        return self._apis.entries[asked.api_key].handler(self._broker, asked)


@contextlib.contextmanager
def on_asyncio(folder: Path) -> Iterator[int]:
    """The same connection and handlers on an event loop of asyncio."""
    with kafkalog.open(folder / "store") as store:
        apis, loop, ready = Apis(), asyncio.new_event_loop(), threading.Event()
        broker = Broker(store._own())  # type: ignore[arg-type]
        handlers(folder / "answer", apis)
        port = 0

        async def serve() -> None:
            nonlocal port
            server = await loop.create_server(lambda: Protocol(apis, broker), "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            ready.set()

        def run() -> None:
            asyncio.set_event_loop(loop)
            loop.create_task(serve())
            loop.run_forever()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        ready.wait()
        yield port
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


# --- the clients -----------------------------------------------------------------------------------------


def take(sock: socket.socket, buffer: memoryview, size: int) -> None:
    """Reads exactly `size` bytes."""
    while size:
        count = sock.recv_into(buffer[: min(size, len(buffer))])
        if not count:
            raise ConnectionError
        size -= count


def clients(port: int, seconds: float, count: int, ask: bytes, answer_bytes: int, depth: int) -> int:
    """How many answers `count` clients get, each with `depth` requests under way."""
    buffer = memoryview(bytearray(2 << 20))
    socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for each in socks:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.sendall(ask * depth)
    until, found = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        for each in socks:
            take(each, buffer, answer_bytes * depth)
            found += depth
            each.sendall(ask * depth)
    for each in socks:
        each.close()
    return found


MEASURES = {  # name: clients, request, bytes of the answer with its size, depth
    "one after the other, requests/s": (8, ASK_SMALL, 4 + 4 + 60, 1),
    "pipelined by 16, requests/s": (8, ASK_SMALL, 4 + 4 + 60, 16),
    "1 MiB of a file, MB/s": (4, ASK_LARGE, 4 + 4 + ANSWER_BYTES, 1),
}


class Measure(NamedTuple):
    """Answers or MB a second, and the processor time of an answer, which other processes disturb less."""

    rate: int
    cpu_us: float


def measured(port: int, seconds: float) -> dict[str, Measure]:
    """The measures of a running server."""
    found = {}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for name, (count, ask, answer_bytes, depth) in MEASURES.items():
            pool.apply(clients, (port, 0.2, count, ask, answer_bytes, depth))  # warms up
            begun_s = time.process_time()
            answers = pool.apply(clients, (port, seconds, count, ask, answer_bytes, depth))
            cpu_us = (time.process_time() - begun_s) / answers * 1e6
            rate = answers / seconds
            found[name] = Measure(round(rate * answer_bytes / 1e6 if "MB/s" in name else rate), round(cpu_us, 1))
    return found


def main() -> None:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    best: dict[str, dict[str, Measure]] = {}
    for _ in range(given.rounds):
        for name, server in (("epoll", on_epoll), ("asyncio", on_asyncio)):
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "answer").write_bytes(os.urandom(ANSWER_BYTES))
                with server(Path(folder)) as port:
                    for what, one in measured(port, given.seconds).items():
                        of = best.setdefault(what, {})
                        known = of.get(name, one)
                        of[name] = Measure(max(known.rate, one.rate), min(known.cpu_us, one.cpu_us))
    print(json.dumps(best))


if __name__ == "__main__":
    main()
