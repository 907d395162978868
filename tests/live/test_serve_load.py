"""`kafkalog serve` under hard clients: slow, silent, gone, too many, too large, and garbage.

In each test the server is a process of its own.  It must live, answer another client meanwhile, bound its memory, and
have closed everything at the end.  The memory is what Linux says of the process, so these tests need `/proc`.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import selectors
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.format.builder import build_batch
from kafkalog.engine.format.requests import ApiKeys
from tests.certificates import Authority
from tests.sampling import LONG, draw
from tests.unit.server_kit import SOFTWARE
from tests.wire.client import Client, frame

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc, to measure a process")
SECONDS_MAX = 60.0
MIB = 1 << 20
REQUEST_BYTES_MAX = 104_857_600  # the default of socket.request.max.bytes
VERSIONS, METADATA, PRODUCE, FETCH = ApiKeys.API_VERSIONS, ApiKeys.METADATA, ApiKeys.PRODUCE, ApiKeys.FETCH
SPARE_FILES = 200  # that a process has open besides its connections


class Served:
    """A server's process."""

    def __init__(self, process: subprocess.Popen[str], address: tuple[str, int], log: Path) -> None:
        self.process = process
        self.address = address
        self.log = log

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024

    @property
    def resident_bytes(self) -> int:
        return self._status("VmRSS")

    @property
    def peak_bytes(self) -> int:
        return self._status("VmHWM")

    @property
    def file_count(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def connection_count(self) -> int:
        """Its open connections, those included whose client has gone."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        port, listens, no_owner = f":{self.address[1]:04X}", "0A", "0"
        return sum(row[1].endswith(port) and row[3] != listens and row[9] != no_owner for row in rows)

    def connect(self, source: str = "127.0.0.1") -> Client:
        return Client(socket.create_connection(self.address, SECONDS_MAX, (source, 0)))

    def wait_for_connections(self, most: int) -> None:
        """Waits until the server has no more connections than that."""
        eventually(
            lambda: self.connection_count <= most, lambda: f"{self.connection_count} connections are open, not {most}"
        )


def eventually(is_so: Callable[[], bool], told: Callable[[], object] = str) -> None:
    until = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < until, told()
        time.sleep(0.02)


@contextmanager
def serving(base: Path, *words: str) -> Iterator[Served]:
    """A server of an empty directory.  It must end as it is told to, with nothing to complain about."""
    log = base / "server.log"
    line = [sys.executable, "-m", "kafkalog", "serve", str(base / "shop"), "--listen", "127.0.0.1:0", *words]
    with log.open("wb") as errors, subprocess.Popen(line, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        assert process.stdout is not None
        try:
            host, _, port = process.stdout.readline().strip().rpartition(" ")[2].partition(":")
            yield Served(process, (host, int(port)), log)
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS_MAX) == 0
        finally:
            process.kill()
    told = log.read_text()
    assert "Traceback" not in told, told[-5000:]


@contextmanager
def another_client(served: Served) -> Iterator[Callable[[], int]]:
    """A client that goes on asking.  The function returns how often it was answered; it fails if that ends."""
    stop, answers, failures = threading.Event(), [0], []

    def ask() -> None:
        try:
            with served.connect() as client:
                while not stop.is_set():
                    assert client.ask(VERSIONS, 4, SOFTWARE)["errorCode"] == 0
                    answers[0] += 1
                    time.sleep(0.005)
        except Exception as error:
            failures.append(repr(error))

    def more() -> int:
        """Waits for three further answers."""
        before = answers[0]
        eventually(lambda: bool(failures) or answers[0] >= before + 3, lambda: "another client is not answered")
        assert not failures
        return answers[0]

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield more
        more()
    finally:
        stop.set()
        thread.join()
    assert not failures


@pytest.fixture
def files() -> Iterator[int]:
    """As many open files as the machine allows, for this process and for the servers that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- slow clients ----------------------------------------------------------------------------------------


def test_clients_that_send_one_byte_at_a_time(base: Path) -> None:
    request = frame(METADATA, 12, {"topics": None})
    with serving(base) as served, another_client(served) as more, ExitStack() as stack:
        slow = [stack.enter_context(served.connect()) for _ in range(300 if LONG else 40)]
        for number in range(len(request)):
            for each in slow:
                each.sock.sendall(request[number : number + 1])
            more()
        assert {len(each.answer(METADATA, 12)["brokers"]) for each in slow} == {1}


def fetch(topic_id: object, bytes_max: int) -> bytes:
    partition = {"partition": 0, "partitionMaxBytes": bytes_max, "currentLeaderEpoch": -1, "fetchOffset": 0}
    topics = [{"topicId": topic_id, "partitions": [partition]}]
    return frame(FETCH, 16, {"maxWaitMs": 1000, "minBytes": 1, "maxBytes": bytes_max, "topics": topics})


def topic_id(client: Client, name: str) -> object:
    (topic,) = client.ask(METADATA, 12, {"topics": [{"name": name}], "allowAutoTopicCreation": True})["topics"]
    return topic["topicId"]


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_clients_that_never_read_their_answers(base: Path, tmp_path: Path, protocol: str) -> None:
    """They pipeline fetches of 4 MiB each.  An answer is a slice of a file; with TLS it is copied, a part at a time."""
    count, requests = (200, 500) if LONG else (20, 100)
    with kafkalog.open(base / "shop") as store:
        topic = store.create_topic("orders")
        for _ in range(5):
            topic.append(random.Random(1).randbytes(900_000))
    authority = Authority() if protocol == "SSL" else None
    with serving(base, *tls_words(authority, tmp_path)) as served, ExitStack() as stack:

        def client() -> Client:
            made = stack.enter_context(served.connect())
            if authority is not None:
                context = ssl.create_default_context(cadata=authority.pem)
                made.sock = context.wrap_socket(made.sock, server_hostname="localhost")
            return made

        good = client()
        request = fetch(topic_id(good, "orders"), 4 * MIB)
        before = served.resident_bytes
        blind = [client() for _ in range(count)]
        left = dict.fromkeys(range(count), request * requests)
        for each in blind:
            each.sock.setblocking(False)
        for _ in range(1000 if LONG else 50):
            for number, each in enumerate(blind):
                with suppress(BlockingIOError, ssl.SSLWantWriteError):
                    left[number] = left[number][each.sock.send(left[number]) :] if left[number] else b""
            assert good.ask(VERSIONS, 4, SOFTWARE)["errorCode"] == 0
        assert served.resident_bytes - before < 30 * MIB + count * MIB // 2
        blind[0].sock.settimeout(SECONDS_MAX)  # one of them reads at last, and finds its answers
        for _ in range(5):
            (answer,) = blind[0].answer(FETCH, 16)["responses"]
            assert len(answer["partitions"][0]["records"]) > 3_000_000


def tls_words(authority: Authority | None, place: Path) -> tuple[str, ...]:
    if authority is None:
        return ()
    signed = authority.sign(CN="localhost")
    (place / "server.pem").write_text(signed.key_pem() + signed.pem)
    return ("--tls", str(place / "server.pem"))


# --- half-open connections -------------------------------------------------------------------------------


def test_clients_that_have_vanished(base: Path) -> None:
    """Nobody hears of the end of a client whose machine has lost its power: its silence ends the connection."""
    request = frame(VERSIONS, 4, SOFTWARE)
    large = struct.pack(">i", REQUEST_BYTES_MAX) + bytes(100_000)
    days = {"maxWaitMs": 2**31 - 1, "minBytes": 1, "topics": [{"topic": "orders", "partitions": [{"partition": 0}]}]}
    waiting = frame(FETCH, 12, {"maxBytes": MIB, "sessionEpoch": -1, **days})
    with kafkalog.open(base / "shop") as store:
        store.create_topic("orders")
    with (
        serving(base, "-X", "connections.max.idle.ms=700") as served,
        another_client(served) as more,
        ExitStack() as stack,
    ):
        more()
        before = served.connection_count
        for number in range(500 if LONG else 50):
            client = stack.enter_context(served.connect())
            client.sock.sendall((b"", request[:2], request[:-1], request, large, waiting)[number % 6])
        eventually(lambda: served.connection_count >= before + 50)
        served.wait_for_connections(before)
        more()


# --- many connections ------------------------------------------------------------------------------------


def test_ten_thousand_connections(base: Path, files: int) -> None:
    """All are opened at once.  Each is answered, and costs the server a few KiB."""
    count = 10_000 if LONG else 1000
    if files < count + SPARE_FILES:
        pytest.skip(f"{count} connections need {count + SPARE_FILES} open files, and this machine allows {files}")
    request = frame(VERSIONS, 4, SOFTWARE)
    with serving(base) as served, another_client(served) as more, selectors.DefaultSelector() as selector:
        more()
        before, connections_before = served.resident_bytes, served.connection_count
        clients = [Client(socket.socket()) for _ in range(count)]
        try:
            for client in clients:
                client.sock.setblocking(False)
                assert client.sock.connect_ex(served.address) in (0, errno.EINPROGRESS)
                selector.register(client.sock, selectors.EVENT_WRITE, client)
            left = count
            while left:
                ready = selector.select(SECONDS_MAX)
                assert ready, f"{left} connections are not accepted"
                for key, _ in ready:
                    selector.unregister(key.fileobj)
                    assert isinstance(key.fileobj, socket.socket)
                    key.fileobj.setblocking(True)
                    key.fileobj.settimeout(SECONDS_MAX)
                    key.fileobj.sendall(request)
                    left -= 1
            more()
            for client in clients:
                assert client.answer(VERSIONS, 4)["errorCode"] == 0
            assert served.connection_count >= connections_before + count
            more()
            assert served.resident_bytes - before < 10 * MIB + count * 8192
        finally:
            for client in clients:
                client.sock.close()
        served.wait_for_connections(connections_before)


def test_more_connections_than_open_files(base: Path) -> None:
    """The server has no file left to accept a connection: those that it has go on, and the others get in later."""
    with serving(base) as served, another_client(served) as more, ExitStack() as stack:
        more()
        resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (served.file_count + 20,) * 2)
        clients = [stack.enter_context(served.connect()) for _ in range(60)]
        for each in clients:
            each.sock.sendall(frame(VERSIONS, 4, SOFTWARE))
        assert clients[0].answer(VERSIONS, 4)["errorCode"] == 0
        more()
        for each in clients[:50]:
            each.sock.close()
        for each in clients[50:]:
            assert each.answer(VERSIONS, 4)["errorCode"] == 0
        assert "no further connection can be accepted" in served.log.read_text()


def test_the_limits_of_connections(base: Path) -> None:
    words = ("-X", "max.connections=40", "-X", "max.connections.per.ip=30")
    with serving(base, *words) as served, ExitStack() as stack:
        first = [stack.enter_context(served.connect()) for _ in range(30)]
        assert [each.ask(VERSIONS, 4, SOFTWARE)["errorCode"] for each in first] == [0] * 30
        for _ in range(20):
            with served.connect() as client:
                assert client.is_closed()  # the 31st of its address
        second = [stack.enter_context(served.connect("127.0.0.2")) for _ in range(20)]
        for each in second:
            each.sock.sendall(frame(VERSIONS, 4, SOFTWARE))
        assert [each.answer(VERSIONS, 4)["errorCode"] for each in second[:10]] == [0] * 10
        second[10].sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            second[10].answer(VERSIONS, 4)  # the 41st waits
        for each in first:
            each.sock.close()
        second[10].sock.settimeout(SECONDS_MAX)
        assert [each.answer(VERSIONS, 4)["errorCode"] for each in second[10:]] == [0] * 10


# --- large requests --------------------------------------------------------------------------------------


def produce(size: int, name: str = "large") -> bytes:
    """A request of `size` bytes, without the four that say so: one record in one batch."""

    def made(record_bytes: int) -> bytes:
        batch = build_batch([(0, None, bytes(record_bytes), ())])
        data = [{"name": name, "partitionData": [{"index": 0, "records": batch}]}]
        return frame(PRODUCE, 7, {"acks": -1, "timeoutMs": 30_000, "topicData": data})[4:]

    found = made(size - 1000)
    found = made(2 * size - 1000 - len(found))
    assert len(found) == size, len(found) - size
    return found


def test_requests_of_the_largest_size(base: Path) -> None:
    """A request of 100 MiB, the limit, is taken; one of a byte more is refused before it is read."""
    with kafkalog.open(base / "shop") as store:
        store.create_topic("large", config={"max.message.bytes": str(2 * REQUEST_BYTES_MAX)})
        store.create_topic("small")
    with serving(base) as served, another_client(served) as more, served.connect() as client:
        more()
        before = served.resident_bytes
        for name, code in (("large", 0), ("small", 10)):  # 10: MESSAGE_TOO_LARGE
            client.sock.sendall(struct.pack(">i", REQUEST_BYTES_MAX))
            client.sock.sendall(produce(REQUEST_BYTES_MAX, name))
            (topic,) = client.answer(PRODUCE, 7)["responses"]
            assert topic["partitionResponses"][0]["errorCode"] == code
            more()
        with served.connect() as refused:
            refused.sock.sendall(struct.pack(">i", REQUEST_BYTES_MAX + 1))
            assert refused.is_closed()
        assert served.peak_bytes - before < 3 * REQUEST_BYTES_MAX
        eventually(lambda: served.resident_bytes - before < 30 * MIB, lambda: served.resident_bytes - before)


def test_many_large_requests_share_the_memory(base: Path) -> None:
    size, count = (REQUEST_BYTES_MAX, 12) if LONG else (REQUEST_BYTES_MAX // 10, 12)
    with serving(base, "-X", f"queued.max.request.bytes={2 * size}") as served, another_client(served) as more:
        more()
        before, body, failures = served.resident_bytes, produce(size), []

        def send() -> None:
            try:
                with served.connect() as client:
                    client.sock.sendall(struct.pack(">i", size))
                    client.sock.sendall(body)
                    client.answer(PRODUCE, 7)
            except Exception as error:
                failures.append(repr(error))

        threads = [threading.Thread(target=send) for _ in range(count)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert not failures
        assert served.peak_bytes - before < 4 * size + 30 * MIB


def test_clients_that_announce_100_mib(base: Path, files: int) -> None:
    """The size alone costs nothing, and neither does the first byte of a request."""
    count = 5000 if LONG else 500
    if files < count + SPARE_FILES:
        pytest.skip(f"{count} connections need {count + SPARE_FILES} open files, and this machine allows {files}")
    with serving(base) as served, another_client(served) as more, ExitStack() as stack:
        more()
        before, connections_before = served.resident_bytes, served.connection_count
        for number in range(count):
            client = stack.enter_context(served.connect())
            client.sock.sendall(struct.pack(">i", REQUEST_BYTES_MAX) + b"x" * (number % 2))
        eventually(lambda: served.connection_count >= connections_before + count)
        more()
        assert served.resident_bytes - before < 10 * MIB + count * 12_288


def test_large_requests_that_never_end(base: Path) -> None:
    """Their senders fall silent, and hold all the memory of requests: small ones of others are answered."""
    limit = 8 * MIB
    with serving(base, "-X", f"queued.max.request.bytes={limit}") as served, ExitStack() as stack:
        before = served.resident_bytes
        for _ in range(8):
            client = stack.enter_context(served.connect())
            client.sock.setblocking(False)
            data = struct.pack(">i", REQUEST_BYTES_MAX) + bytes(2 * MIB)
            with suppress(BlockingIOError):
                while data:
                    data = data[client.sock.send(data) :]
        for _ in range(3):
            with served.connect() as good:
                assert good.ask(VERSIONS, 4, SOFTWARE)["errorCode"] == 0
        if (
            LONG
        ):  # a large one waits until the others were given up, some after ten seconds, some after twenty, and so on
            with served.connect() as large:
                large.sock.settimeout(2 * SECONDS_MAX)
                large.sock.sendall(struct.pack(">i", 5 * MIB) + produce(5 * MIB))
                assert large.answer(PRODUCE, 7)["responses"]
        assert served.peak_bytes - before < limit + 30 * MIB


# --- garbage ---------------------------------------------------------------------------------------------


def garbage(chance: random.Random) -> bytes:
    """Bytes, frames of bytes, and requests with some bytes changed."""
    kind = chance.randrange(4)
    if kind == 0:
        return chance.randbytes(chance.randrange(1, 2000))
    if kind == 1:
        data = chance.randbytes(chance.randrange(2000))
        return struct.pack(">i", len(data)) + data
    if kind == 2:
        data = struct.pack(">hhi", chance.randrange(95), chance.randrange(18), 1) + chance.randbytes(
            chance.randrange(200)
        )
        return struct.pack(">i", len(data)) + data
    valid = bytearray(
        chance.choice(
            (
                frame(METADATA, 12, {"topics": [{"name": "a"}, {"name": "b"}]}),
                frame(FETCH, 12, {"topics": [{"topic": "a", "partitions": [{"partition": 0}]}]}),
                frame(
                    PRODUCE, 9, {"topicData": [{"name": "a", "partitionData": [{"index": 0, "records": bytes(70)}]}]}
                ),
                frame(ApiKeys.JOIN_GROUP, 9, {"groupId": "g", "protocols": [{"name": "range", "metadata": b"123"}]}),
            )
        )
    )
    for _ in range(chance.randrange(1, 6)):
        valid[chance.randrange(4, len(valid))] = chance.randrange(256)
    return bytes(valid) * chance.randrange(1, 5)


def test_garbage_on_many_connections(base: Path) -> None:
    """Some of it are requests that wait for days, for which their client does not wait."""
    chance = draw("garbage")
    with serving(base, "-X", "connections.max.idle.ms=5000") as served, another_client(served) as more:
        more()
        before, connections_before = served.resident_bytes, served.connection_count
        for _ in range(200 if LONG else 6):
            with ExitStack() as stack:
                clients = [stack.enter_context(served.connect()) for _ in range(100)]
                for client in clients:
                    with suppress(BrokenPipeError, ConnectionResetError):
                        client.sock.sendall(garbage(chance))
                        client.sock.sendall(garbage(chance))
            more()
        served.wait_for_connections(connections_before)
        assert served.resident_bytes - before < 50 * MIB
