"""`kafkalog serve` as a process, and a server among threads and forks: signals, closes, clients that come and go."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.errors import IllegalStateException
from kafkalog.server import Server
from tests.sampling import LONG
from tests.unit.server_kit import SOFTWARE
from tests.wire.client import Client, frame

LIMIT_S = 100.0  # for all of one run
VERSIONS, METADATA = ApiKeys.API_VERSIONS, ApiKeys.METADATA


@contextmanager
def serving(*words: str) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    """A process that serves, and its address."""
    line = [sys.executable, "-m", "kafkalog", "serve", *words]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        late = threading.Timer(LIMIT_S, process.kill)  # a hang is a failure
        late.start()
        try:
            host, _, port = process.stdout.readline().strip().rpartition(" ")[2].partition(":")
            yield process, (host, int(port or 0))
        finally:
            late.cancel()
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal(base: Path, number: int) -> None:
    store = str(base / "shop")
    for _ in range(2):
        with serving(store, "--listen", "127.0.0.1:0", "-X", "num.partitions=3") as (process, address):
            with Client(address) as client:
                client.ask(METADATA, 12, {"topics": [{"name": "orders"}]})
                (topic,) = client.ask(METADATA, 12, {"topics": [{"name": "orders"}]})["topics"]
                assert (topic["errorCode"], len(topic["partitions"])) == (0, 3)
                process.send_signal(number)
                assert process.wait(30) == 0
                assert client.is_closed()
            assert process.stderr is not None
            assert process.stderr.read() == "stopping\n"
    assert os.path.exists(os.path.join(store, ".kafka_cleanshutdown"))


def test_a_second_signal_ends_it_at_once(base: Path) -> None:
    with serving(str(base / "shop"), "--listen", "127.0.0.1:0") as (process, _):
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        assert process.wait(30) in (0, 130, -signal.SIGINT, -signal.SIGTERM)


SIGNALLED = """
import os, random, signal, threading, time
from queue import SimpleQueue
from kafkalog.cli.serve import _StopSignals

waits = SimpleQueue()

def signals():
    while True:
        until = time.perf_counter() + waits.get()
        while time.perf_counter() < until:
            pass
        os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=signals, daemon=True).start()
for _ in range(2000):
    with _StopSignals() as stopped:
        waits.put(random.random() * 2e-4)
        stopped.wait()
"""


def test_a_signal_at_any_moment_ends_the_wait() -> None:
    subprocess.run([sys.executable, "-c", SIGNALLED], check=True, timeout=LIMIT_S)


def test_a_port_in_use_and_a_locked_directory(base: Path) -> None:
    store = str(base / "shop")
    with serving(store, "--listen", "127.0.0.1:0") as (_, (_, port)):
        for words, says in (
            ((str(base / "other"), "--listen", f"127.0.0.1:{port}"), "failed to bind"),
            ((store, "--listen", "127.0.0.1:0"), "lock"),
        ):
            with serving(*words) as (other, _):
                assert other.wait(30) in (2, 3)
                assert other.stderr is not None
                assert says in other.stderr.read()


def test_metrics_and_the_log(base: Path) -> None:
    pytest.importorskip("prometheus_client")
    words = ("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "-vv")
    with serving(str(base / "shop"), *words) as (process, address):
        with Client(address) as client:
            client.ask(VERSIONS, 4, SOFTWARE)
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("metrics at "):
                with urllib.request.urlopen(line.split()[-1], timeout=10) as answer:
                    assert b"kafka_" in answer.read()
                break
        process.terminate()
        assert "ApiVersions v4" in process.stderr.read()


def test_a_child_of_a_fork_has_no_server(base: Path) -> None:
    with kafkalog.open(base) as store, store.serve("127.0.0.1:0") as server, Client(server.addresses[0]) as client:
        client.ask(VERSIONS, 0)
        child = os.fork()
        if child == 0:
            code = 1
            with suppress(BaseException):
                try:
                    server.close()
                except IllegalStateException:
                    code = 0 if server.closed else 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.ask(VERSIONS, 0)["errorCode"] == 0
        child = os.fork()  # one that lives on does not keep the port or the connection open
        if child == 0:
            time.sleep(60)
            os._exit(0)
        try:
            server.close()
            assert client.is_closed()
            with pytest.raises(ConnectionRefusedError):
                Client(("127.0.0.1", server.port))
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_closes_among_clients(base: Path) -> None:
    """Clients ask, pipeline, vanish and send garbage, while servers of one store come and go."""
    stop, answers, failures = threading.Event(), [0], []
    where: list[Server] = []

    def client(seed: int) -> None:
        chance = random.Random(seed)
        while not stop.is_set():
            try:
                with Client(where[-1].addresses[0], timeout_s=10) as one:
                    for _ in range(chance.randrange(1, 20)):
                        kind = chance.randrange(6)
                        if kind == 0:
                            one.sock.sendall(frame(VERSIONS, 0) * chance.randrange(1, 30))
                            if chance.random() < 0.5:
                                return_reset(one.sock)
                            break
                        if kind == 1:
                            one.sock.sendall(chance.randbytes(chance.randrange(1, 300)))
                            break
                        if one.ask(VERSIONS, 4, SOFTWARE)["errorCode"] != 0:
                            failures.append("an answer was wrong")
                        answers[0] += 1
            except OSError:
                pass
            except Exception as error:
                failures.append(repr(error))

    with kafkalog.open(base) as store:
        server = store.serve("127.0.0.1:0")
        assert isinstance(server, Server)
        where.append(server)
        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(6)]
        for each in threads:
            each.start()
        for _ in range(60 if LONG else 12):
            time.sleep(0.05)
            where[-1].close()
            again = store.serve(f"127.0.0.1:{server.port}")
            assert isinstance(again, Server)
            where.append(again)
        stop.set()
        for each in threads:
            each.join()
        transport = where[-1]._transport
        assert transport is not None
        until = time.monotonic() + 10
        while transport.links and time.monotonic() < until:
            time.sleep(0.01)
        assert not transport.links
        assert transport.memory.used == 0
    assert not failures
    assert answers[0] > 0


def return_reset(sock: socket.socket) -> None:
    """Closes a socket by a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_many_connections_at_once(base: Path) -> None:
    with kafkalog.open(base) as store, store.serve("127.0.0.1:0") as server:
        clients = [Client(server.addresses[0], timeout_s=30) for _ in range(400)]
        for each in clients:
            each.sock.sendall(frame(VERSIONS, 0))
        assert [each.answer(VERSIONS, 0)["errorCode"] for each in clients] == [0] * len(clients)
        for each in clients:
            each.sock.close()
