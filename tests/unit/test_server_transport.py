"""The sockets of a server, over loopback: slow and vanishing clients, limits, answers that come later, the close."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.error_codes import Errors
from kafkalog.engine.format.requests import ApiKeys
from kafkalog.engine.segment.file_records import FileRecords
from kafkalog.errors import InvalidTopicException
from kafkalog.metrics import MetricsRegistry
from kafkalog.server import Server, transport
from kafkalog.server.broker import Broker, Fault
from kafkalog.server.request import Encoded, Pending, Request
from kafkalog.server.transport import REQUESTS_MAX
from kafkalog.store import Store
from tests.certificates import Authority
from tests.file_doubles import UnsyncedFiles
from tests.unit.server_kit import SOFTWARE
from tests.wire.client import Client, frame

VERSIONS, METADATA, HEARTBEAT = ApiKeys.API_VERSIONS, ApiKeys.METADATA, ApiKeys.HEARTBEAT
Handler = Callable[[Broker, Request], Any]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with kafkalog.open(tmp_path / "store", files=UnsyncedFiles()) as opened:
        yield opened


def served(store: Store, **settings: Any) -> Server:
    server = store.serve("127.0.0.1:0", **settings)
    assert isinstance(server, Server)
    return server


def handled_by(server: Server, key: int, handler: Handler, *, blocking: bool = False) -> None:
    """Replaces a handler."""
    assert server.broker.apis is not None
    entry = server.broker.apis.entries[key]  # type: ignore[attr-defined]
    entry.load()
    entry.handler, entry.is_blocking = handler, blocking


def eventually(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + 5
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


# --- answers ---------------------------------------------------------------------------------------------


def test_a_question_and_its_answer(store: Store) -> None:
    with served(store) as server, Client(server.addresses[0]) as client:
        assert client.ask(VERSIONS, 4, SOFTWARE)["errorCode"] == 0
        assert client.ask(METADATA, 12, {"topics": None})["brokers"][0]["port"] == server.port


def test_pipelined_requests_are_answered_in_order(store: Store) -> None:
    with served(store) as server, Client(server.addresses[0]) as client:
        client.sock.sendall(b"".join(frame(VERSIONS, 4, SOFTWARE, correlation_id=n) for n in range(200)))
        found = []
        for _ in range(200):
            data = client.take(int.from_bytes(client.take(4), "big"))
            found.append(int.from_bytes(data[:4], "big"))
        assert found == list(range(200))


def test_many_pipelined_requests_leave_turns_to_others(store: Store) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    order: list[int] = []

    def noted(broker: Broker, request: Request) -> Any:
        order.append(request.api_key)
        if len(order) == 1:
            begun.set()
            may_go_on.wait(10)
        return {"brokers": [], "topics": []} if request.api_key == METADATA else {"errorCode": 0}

    with served(store) as server, Client(server.addresses[0]) as many, Client(server.addresses[0]) as one:
        for key in (METADATA, HEARTBEAT):
            handled_by(server, key, noted)
        many.sock.sendall(frame(METADATA, 0, {"topics": []}) * 1000)
        assert begun.wait(10)
        beat = {"groupId": "g", "generationId": 1, "memberId": "m"}
        one.sock.sendall(frame(HEARTBEAT, 0, beat))
        time.sleep(0.05)  # it arrives while the first request is handled
        may_go_on.set()
        assert one.answer(HEARTBEAT, 0)["errorCode"] == 0
        for _ in range(1000):
            many.answer(METADATA, 0)
        assert len(order) == 1001
        assert order.index(HEARTBEAT) <= 2 * REQUESTS_MAX


def test_answers_that_come_later_keep_the_order(store: Store) -> None:
    pendings: list[Pending] = []

    def later(broker: Broker, request: Request) -> Pending:
        pendings.append(Pending())
        return pendings[-1]

    with served(store) as server, Client(server.addresses[0]) as client:
        handled_by(server, METADATA, later)
        client.sock.sendall(frame(METADATA, 0, {"topics": []}) * 2)
        assert eventually(lambda: len(pendings) == 1)
        assert pendings[0].complete({"brokers": [], "topics": []})
        assert client.answer(METADATA, 0)["brokers"] == []
        assert eventually(lambda: len(pendings) == 2)
        assert pendings[1].fail(InvalidTopicException("no"))
        client.answer(METADATA, 0)
        assert not pendings[1].complete({})


def test_a_pending_answer_that_is_there_already(store: Store) -> None:
    def at_once(broker: Broker, request: Request) -> Pending:
        pending = Pending()
        pending.complete({"brokers": [], "topics": []})
        return pending

    with served(store) as server, Client(server.addresses[0]) as client:
        handled_by(server, METADATA, at_once)
        assert client.ask(METADATA, 0, {"topics": []})["topics"] == []


def test_blocking_handlers_block_nobody(store: Store) -> None:
    go_on = threading.Event()

    def slow(broker: Broker, request: Request) -> Any:
        assert go_on.wait(5)
        return {"brokers": [], "topics": []}

    with served(store) as server, Client(server.addresses[0]) as first, Client(server.addresses[0]) as second:
        handled_by(server, METADATA, slow, blocking=True)
        first.sock.sendall(frame(METADATA, 0, {"topics": []}))
        assert second.ask(VERSIONS, 0)["errorCode"] == 0
        go_on.set()
        assert first.answer(METADATA, 0)["topics"] == []


def test_a_large_request_blocks_nobody(store: Store) -> None:
    threads: list[str] = []

    def noted(broker: Broker, request: Request) -> Any:
        threads.append(threading.current_thread().name)
        return {"brokers": [], "topics": []}

    with served(store) as server, Client(server.addresses[0]) as client:
        handled_by(server, METADATA, noted)
        for count in (1, 2000):
            client.ask(METADATA, 1, {"topics": [{"name": f"topic-{number}"} for number in range(count)]})
    small, large = threads
    assert small == "kafkalog-server"
    assert large.startswith("kafkalog-request-handler")


def test_errors_of_handlers(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    def wrong(broker: Broker, request: Request) -> Any:
        raise InvalidTopicException("no") if request.body["topics"] else ZeroDivisionError

    with served(store) as server, Client(server.addresses[0]) as client:
        handled_by(server, METADATA, wrong)
        topics = {"topics": [{"name": "a"}]}
        assert client.ask(METADATA, 9, topics)["topics"][0]["errorCode"] == Errors.INVALID_TOPIC_EXCEPTION
        assert client.ask(METADATA, 13, {"topics": []})["errorCode"] == Errors.UNKNOWN_SERVER_ERROR
        assert client.ask(VERSIONS, 0)["errorCode"] == 0
    assert "ZeroDivisionError" in caplog.text


def test_files_are_sent(store: Store, tmp_path: Path) -> None:
    path, content = tmp_path / "00000000000000000000.log", os.urandom(3 << 20)
    path.write_bytes(content)
    records = FileRecords.open(str(path), OS_FILES, mutable=False)

    def from_file(broker: Broker, request: Request) -> Encoded:
        return Encoded([b"before", records.slice(100, len(content) - 200), b"after", records.slice(0, 10)])

    with served(store) as server, Client(server.addresses[0]) as client:
        handled_by(server, METADATA, from_file)
        for _ in range(2):
            client.sock.sendall(frame(METADATA, 0, {"topics": []}))
            size = int.from_bytes(client.take(4), "big")
            assert client.take(size)[4:] == b"before" + content[100:-100] + b"after" + content[:10]
    records.close()


def test_the_log_has_client_and_request(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kafkalog.server")
    with served(store) as server, Client(server.addresses[0]) as client:
        client.ask(VERSIONS, 4, SOFTWARE)
        port = client.sock.getsockname()[1]
        client.sock.sendall(frame(METADATA, 99, body=b""))
        assert client.is_closed()
    lines = [record.getMessage() for record in caplog.records]
    assert any("client wire: ApiVersions v4, correlation 1:" in line and f":{port}" in line for line in lines), lines
    assert any("unsupported version 99" in line and f":{port}" in line for line in lines), lines


def test_metrics(tmp_path: Path) -> None:
    metrics = MetricsRegistry()
    with kafkalog.open(tmp_path, files=UnsyncedFiles(), metrics=metrics) as store:
        with served(store) as server, Client(server.addresses[0]) as client:
            for _ in range(3):
                client.ask(VERSIONS, 4, SOFTWARE)
            found: dict[str, Any] = metrics.as_jmx()
            requests = found["kafka.network:type=RequestMetrics,name=RequestsPerSec,request=ApiVersions,version=4"]
            times = found["kafka.network:type=RequestMetrics,name=TotalTimeMs,request=ApiVersions"]
            assert (requests.count, times.count) == (3, 3)
            assert found["kafka.server:type=socket-server-metrics,name=connection-count"] == 1
        assert not [name for name in metrics.as_jmx() if "connection-count" in name]


# --- TLS -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def over_tls(store: Store, authority: Authority) -> Server:
    identity = authority.sign(CN="localhost")
    settings: dict[str, Any] = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": identity.key_pem(),
        "ssl.keystore.certificate.chain": identity.pem,
    }
    server = store.serve("SSL://127.0.0.1:0", **settings)
    assert isinstance(server, Server)
    return server


class TlsClient(Client):
    def __init__(self, address: tuple[str, int], authority: Authority) -> None:
        super().__init__(address)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=authority.pem)
        self.sock = context.wrap_socket(self.sock, server_hostname="localhost")


def test_tls_with_many_requests_and_large_answers(store: Store, authority: Authority, tmp_path: Path) -> None:
    path, content = tmp_path / "00000000000000000000.log", os.urandom(2 << 20)
    path.write_bytes(content)
    records = FileRecords.open(str(path), OS_FILES, mutable=False)

    def from_file(broker: Broker, request: Request) -> Encoded:
        return Encoded([bytes(1 << 20), records.slice(0, len(content)), b"after"])

    with over_tls(store, authority) as server, TlsClient(server.addresses[0], authority) as client:
        handled_by(server, METADATA, from_file)
        assert client.ask(VERSIONS, 4, SOFTWARE)["errorCode"] == 0
        client.sock.sendall(frame(METADATA, 0, {"topics": []}) * 2)
        for _ in range(2):
            size = int.from_bytes(client.take(4), "big")
            assert client.take(size)[4:] == bytes(1 << 20) + content + b"after"
        count = 2000  # more than one record of TLS, which the server reads at once
        client.sock.sendall(b"".join(frame(VERSIONS, 0, correlation_id=n) for n in range(count)))
        for number in range(count):
            size = int.from_bytes(client.take(4), "big")
            assert int.from_bytes(client.take(size)[:4], "big") == number
        large = {"topics": [{"name": "a" * 249} for _ in range(2000)]}
        handled_by(server, METADATA, lambda broker, request: {"brokers": [], "topics": []})
        assert client.ask(METADATA, 1, large)["topics"] == []
    records.close()


def test_no_tls_on_a_tls_listener(store: Store, authority: Authority) -> None:
    with over_tls(store, authority) as server, TlsClient(server.addresses[0], authority) as good:
        with Client(server.addresses[0]) as bad:
            bad.sock.sendall(frame(VERSIONS, 0))
            with contextlib.suppress(ConnectionResetError):
                assert not bad.take(100).startswith(b"\0\0\0")  # at most an alert of TLS
        assert good.ask(VERSIONS, 0)["errorCode"] == 0


# --- clients that misbehave ------------------------------------------------------------------------------


def test_garbage_ends_only_its_connection(store: Store) -> None:
    with served(store) as server, Client(server.addresses[0]) as good:
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, struct.pack(">i", 1 << 30), b"\0\0\0\x04abcd"):
            with Client(server.addresses[0]) as bad:
                bad.sock.sendall(data)
                assert bad.is_closed()
        assert good.ask(VERSIONS, 0)["errorCode"] == 0
        assert eventually(lambda: len(links(server)) == 1)


def links(server: Server) -> set[Any]:
    assert server._transport is not None
    return server._transport.links


def test_a_slow_reader_blocks_nobody_and_keeps_its_place(store: Store) -> None:
    answer = bytes(8 << 20)
    with served(store) as server, Client(server.addresses[0]) as slow, Client(server.addresses[0]) as other:
        handled_by(server, METADATA, lambda broker, request: Encoded([answer]))
        slow.sock.sendall(frame(METADATA, 0, {"topics": []}) * 3)
        for _ in range(5):
            assert other.ask(VERSIONS, 0)["errorCode"] == 0
        assert max(each.connection.unsent_bytes for each in links(server)) <= len(answer) + 8
        for _ in range(3):
            assert len(slow.take(4 + 4 + len(answer))) == 8 + len(answer)


def test_a_half_closed_client_gets_its_answers(store: Store) -> None:
    with served(store) as server, Client(server.addresses[0]) as client:
        client.sock.sendall(frame(VERSIONS, 0) * 3)
        client.sock.shutdown(socket.SHUT_WR)
        for _ in range(3):
            assert client.answer(VERSIONS, 0)["errorCode"] == 0
        assert client.is_closed()


def test_a_vanished_client_ends_what_it_waits_for(store: Store) -> None:
    ended, pendings = threading.Event(), []

    def later(broker: Broker, request: Request) -> Pending:
        pending = Pending()
        pending.on_close(ended.set)
        pendings.append(pending)
        return pending

    with served(store) as server:
        handled_by(server, METADATA, later)
        client = Client(server.addresses[0])
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        client.sock.sendall(frame(METADATA, 0, {"topics": []}))
        assert eventually(lambda: len(pendings) == 1)
        client.sock.close()
        assert ended.wait(5)
        assert not pendings[0].complete({})
        assert not links(server)


# --- limits ----------------------------------------------------------------------------------------------


def test_connections_of_one_address(store: Store) -> None:
    with served(store, max_connections_per_ip=2) as server:
        with Client(server.addresses[0]) as first, Client(server.addresses[0]) as second:
            first.ask(VERSIONS, 0)
            second.ask(VERSIONS, 0)
            with Client(server.addresses[0]) as third:
                assert third.is_closed()
        assert eventually(lambda: not links(server))
        with Client(server.addresses[0]) as fourth:
            fourth.ask(VERSIONS, 0)


def test_all_connections(store: Store) -> None:
    with served(store, max_connections=1) as server:
        with Client(server.addresses[0]) as first:
            first.ask(VERSIONS, 0)
            second = Client(server.addresses[0])
            second.sock.sendall(frame(VERSIONS, 0))
        assert second.answer(VERSIONS, 0)["errorCode"] == 0  # once the first has gone
        second.sock.close()


def test_idle_connections_are_closed(store: Store) -> None:
    with served(store, connections_max_idle_ms=30) as server, Client(server.addresses[0]) as client:
        client.ask(VERSIONS, 0)
        assert client.is_closed()


def test_a_connection_is_idle_while_its_request_waits(store: Store) -> None:
    def waits(broker: Broker, request: Request) -> Pending:
        return Pending(is_waiting=True)

    with served(store, connections_max_idle_ms=100) as server, Client(server.addresses[0]) as client:
        handled_by(server, METADATA, waits)
        client.sock.sendall(frame(METADATA, 0, {"topics": []}))
        assert client.is_closed()
        assert server._transport is not None
        transport = server._transport
        assert eventually(lambda: not transport.links)


@pytest.mark.parametrize("is_waiting", [True, False])
def test_requests_that_wait_for_others_take_no_memory(store: Store, is_waiting: bool) -> None:
    pendings: list[Pending] = []

    def later(broker: Broker, request: Request) -> Pending:
        pendings.append(Pending(is_waiting=is_waiting))
        return pendings[-1]

    with served(store) as server, Client(server.addresses[0]) as client:
        handled_by(server, HEARTBEAT, later)
        client.sock.sendall(frame(HEARTBEAT, 0, {"groupId": "g" * 30_000, "generationId": 1, "memberId": "m"}))
        assert eventually(lambda: len(pendings) == 1)
        assert server._transport is not None
        transport = server._transport
        assert eventually(lambda: transport.memory_used < 1000) is is_waiting
        pendings[0].complete({"errorCode": 0})
        assert client.answer(HEARTBEAT, 0)["errorCode"] == 0
        assert eventually(lambda: transport.memory_used == 0)


def test_large_requests_share_the_memory(store: Store) -> None:
    settings = {"queued_max_request_bytes": 300_000, "socket_request_max_bytes": 1 << 20}
    with served(store, **settings) as server:
        topics = {"topics": [{"name": "a" * 249} for _ in range(3000)]}
        data, answers = frame(METADATA, 1, topics), []
        handled_by(server, METADATA, lambda broker, request: {"brokers": [], "topics": []})

        def ask() -> None:
            with Client(server.addresses[0], timeout_s=20) as client:
                client.sock.sendall(data)
                answers.append(client.answer(METADATA, 1))

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len(answers) == 6
        assert server._transport is not None
        memory = server._transport.memory
        assert memory.peak < 300_000 + 2 * len(data) + 6 * (256 << 10)
        assert eventually(lambda: memory.used == 0)


def test_stalled_requests_are_given_up_if_others_wait(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that never end use up the memory: small ones are answered all the while, and a large one is at last."""
    monkeypatch.setattr(transport, "STALLED_MS", 100)
    settings = {"queued_max_request_bytes": 300_000, "socket_request_max_bytes": 1 << 20}
    with served(store, **settings) as server, contextlib.ExitStack() as stack:
        handled_by(server, METADATA, lambda broker, request: {"brokers": [], "topics": []})
        for _ in range(8):
            stalled = stack.enter_context(Client(server.addresses[0]))
            stalled.sock.sendall(struct.pack(">i", 1 << 20) + bytes(100_000))
        with Client(server.addresses[0]) as small, Client(server.addresses[0], timeout_s=20) as large:
            assert small.ask(VERSIONS, 0)["errorCode"] == 0
            large.sock.sendall(frame(METADATA, 1, {"topics": [{"name": "a" * 249} for _ in range(3000)]}))
            assert small.ask(VERSIONS, 0)["errorCode"] == 0
            assert large.answer(METADATA, 1)["topics"] == []


def test_a_throttled_connection_is_not_read(store: Store) -> None:
    def throttled(broker: Broker, request: Request) -> Any:
        request.throttle_ms = 40
        return {"brokers": [], "topics": []}

    with served(store) as server, Client(server.addresses[0]) as client:
        handled_by(server, METADATA, throttled)
        begun = time.monotonic()
        client.ask(METADATA, 0, {"topics": []})
        client.ask(VERSIONS, 0)
        assert time.monotonic() - begun >= 0.04


# --- faults ----------------------------------------------------------------------------------------------


def test_ordered_faults(store: Store) -> None:
    faults = [Fault(error="REQUEST_TIMED_OUT"), Fault(delay_ms=20), Fault(error="NOT_CONTROLLER", delay_ms=1)]
    with served(store) as server, Client(server.addresses[0]) as client:
        server.broker.fault_for = lambda request: faults.pop(0) if faults else None
        assert client.ask(VERSIONS, 0)["errorCode"] == Errors.REQUEST_TIMED_OUT
        assert client.ask(VERSIONS, 0)["errorCode"] == 0
        assert client.ask(VERSIONS, 0)["errorCode"] == Errors.NOT_CONTROLLER
        assert client.ask(VERSIONS, 0)["errorCode"] == 0
        faults.append(Fault(closes=True))
        client.sock.sendall(frame(VERSIONS, 0))
        assert client.is_closed()


# --- the end ---------------------------------------------------------------------------------------------


def test_a_close_answers_what_is_in_flight(store: Store) -> None:
    begun, pendings = threading.Event(), []

    def slow(broker: Broker, request: Request) -> Any:
        begun.set()
        time.sleep(0.05)
        return {"brokers": [], "topics": []}

    def waiting(broker: Broker, request: Request) -> Pending:
        pendings.append(Pending(is_waiting=True))
        return pendings[-1]

    server = served(store)
    handled_by(server, METADATA, slow, blocking=True)
    handled_by(server, ApiKeys.DESCRIBE_CLUSTER, waiting)
    with Client(server.addresses[0]) as client, Client(server.addresses[0]) as waits:
        waits.sock.sendall(frame(ApiKeys.DESCRIBE_CLUSTER, 0, {}))
        assert eventually(lambda: len(pendings) == 1)
        client.sock.sendall(frame(METADATA, 0, {"topics": []}))
        assert begun.wait(5)
        server.close()
        assert client.answer(METADATA, 0)["topics"] == []
        assert client.is_closed()
        assert waits.is_closed()
    assert server.closed
    server.close()
    with pytest.raises(ConnectionRefusedError):
        Client(("127.0.0.1", server.port))


def test_a_close_on_its_own_thread_is_refused(store: Store) -> None:
    server, errors = served(store), []

    def close(broker: Broker, request: Request) -> Any:
        try:
            server.close()
        except kafkalog.errors.IllegalStateException as error:
            errors.append(error)
        return {"brokers": [], "topics": []}

    with server, Client(server.addresses[0]) as client:
        handled_by(server, METADATA, close)
        client.ask(METADATA, 0, {"topics": []})
    assert len(errors) == 1
