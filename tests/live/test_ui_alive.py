"""`kafkalog ui` as a process: its address, its end, a store that writes next to it, and clients that misbehave."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import kafkalog
from tests.unit.tier_kit import tiered

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")
pytest.importorskip("vl_convert")

CLIENTS: list[Any] = []  # closed at the end of `ui`
LIMIT_S = 100.0  # for all of one run
LARGE_BYTES = 12 << 20


@contextmanager
def ui(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    line = [sys.executable, "-m", "kafkalog", "ui", *words]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        late = threading.Timer(LIMIT_S, process.kill)  # a hang is a failure
        late.start()
        try:
            yield process, process.stdout.readline().strip()
        finally:
            late.cancel()
            process.kill()
            while CLIENTS:
                CLIENTS.pop().close()


def client_at(address: str) -> Any:
    client = httpx.Client(base_url=address.partition("/?")[0], follow_redirects=True, timeout=60)
    CLIENTS.append(client)
    assert client.get(address).status_code == 200
    return client


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("this system has no /proc")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def test_it_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "logs") as store:
        store.create_topic("orders").append(b"one")
    with ui(str(tmp_path / "logs")) as (process, address):
        assert urlsplit(address).hostname == "127.0.0.1"
        client = client_at(address)
        assert "token" not in str(client.get("/").url)
        assert "text/javascript" in client.get("/page/page.js").headers["content-type"]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "serving until interrupted with Ctrl-C\n"


@pytest.mark.parametrize("both", [True, False])
def test_it_reads_a_remote_tier(tmp_path: Path, both: bool) -> None:
    assert tiered(tmp_path / "store", tmp_path / "tier", settings={"local.retention.bytes": "3000"}) > 0
    with kafkalog.open(tmp_path / "store", remote=tmp_path / "tier", maintenance=False) as store:
        partition = store.topic("orders").partition(0)
        partition.delete_old_segments()
        assert partition.engine is not None
        assert partition.engine.local_log_start_offset > 0
    words = [str(tmp_path / "store"), "--remote", str(tmp_path / "tier")] if both else [str(tmp_path / "tier")]
    with ui(*words) as (_, address):
        found = client_at(address).get("/api/records?topic=orders&partition=0&from=0&limit=1").json()
        assert found["rows"][0]["offset"] == 0


def test_it_ends_while_a_client_is_in_the_middle(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "logs") as store:
        store.create_topic("orders").append_many([b"x" * 1000] * 50_000)
    with ui(str(tmp_path / "logs")) as (process, address):
        client = client_at(address)
        with client.stream("GET", "/download/records?topic=orders&format=jsonl") as answer:
            next(answer.iter_raw())
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none"], "not found"),
        (["logs", "--listen", "a:b:c"], "expected HOST"),
        (["logs", "--schema", "orders"], "expected TOPIC=FILE"),
        (["logs", "--listen", "127.0.0.1:99", "--port", "98"], "expected it once"),
        (["logs", "nothing-here"], "nothing-here"),
    ],
)
def test_a_wrong_command_line(tmp_path: Path, words: list[str], said: str) -> None:
    with kafkalog.open(tmp_path / "logs") as store:
        store.create_topic("orders").append(b"one")
    line = [sys.executable, "-m", "kafkalog", "ui", *words]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_listener_for_others_warns(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "logs") as store:
        store.create_topic("orders").append(b"one")
    with ui(str(tmp_path / "logs"), "--listen", "0.0.0.0") as (process, address):
        assert process.stderr is not None
        assert "warning: other machines can reach 0.0.0.0" in process.stderr.readline()
        assert client_at(address).get("/api/topics").json()["topics"] == {"orders": [0]}


def test_a_port_in_use_and_a_schema_of_no_topic(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "logs") as store:
        store.create_topic("orders").append(b"one")
    (tmp_path / "order.avsc").write_text('"string"')
    logs = str(tmp_path / "logs")
    with ui(logs, "--schema", f"ordres={tmp_path / 'order.avsc'}") as (process, address):
        assert process.stderr is not None
        assert process.stderr.readline().startswith("note: no topic 'ordres' in")
        line = [sys.executable, "-m", "kafkalog", "ui", logs, "--port", str(urlsplit(address).port)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert "is in use, expected a free one: choose another with --port" in done.stderr


def test_next_to_a_store_that_writes(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        orders = store.create_topic("orders")
        orders.append(b"0")
        with ui(str(tmp_path)) as (_, address):
            client = client_at(address)
            found, seen = client.get("/api/records?topic=orders&last=1").json(), []
            seen += [row["offset"] for row in found["rows"]]
            for number in range(1, 40):
                orders.append(b"%d" % number)
                cursor = ",".join(f"{each}:{offset}" for each, offset in found["next"].items())
                found = client.get(f"/api/records?topic=orders&new={cursor}").json()
                seen += [row["offset"] for row in found["rows"]]
            assert seen == [*range(40)]
            store.delete_topic("orders")
            assert client.get("/api/records?topic=orders&last=1").status_code == 404
            store.create_topic("orders").append(b"of a new topic")
            again = client.get("/api/records?topic=orders&last=1").json()
            assert [row["offset"] for row in again["rows"]] == [0]


def test_many_slow_and_rude_clients_take_no_memory(tmp_path: Path) -> None:
    large = os.urandom(1 << 20) * (LARGE_BYTES >> 20)
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("large", config={"max.message.bytes": str(LARGE_BYTES * 2)})
        for _ in range(10):
            topic.append(large)
        store.create_topic("small").append_many([b"value %d" % number for number in range(20_000)])
    with ui(str(tmp_path)) as (process, address):
        client = client_at(address)
        cookie = next(f"{name}={value}" for name, value in client.cookies.items())
        parts = urlsplit(address)
        head = f"HTTP/1.1\r\nHost: {parts.netloc}\r\nCookie: {cookie}\r\n"
        paths = ["small&last=1", "large&start=1", "small&grep=999"]
        with ExitStack() as rude:
            for number in range(24):  # they ask and do not read, or ask half
                plain = rude.enter_context(socket.create_connection((parts.hostname, parts.port)))
                asked = f"GET /download/records?topic=large&format=jsonl {head}" + ("\r\n" if number % 2 else "")
                plain.sendall(asked.encode())
            time.sleep(1)
            with ThreadPoolExecutor(12) as pool:
                answers = [*pool.map(lambda path: client.get(f"/api/records?topic={path}"), paths * 8)]
            assert {answer.status_code for answer in answers} == {200}
            assert all(len(answer.content) < 1 << 20 for answer in answers)
        for _ in range(100):  # their downloads end, and others can begin
            whole = client.get("/download/bytes?topic=large&partition=0&offset=3")
            if whole.status_code == 200:
                break
            time.sleep(0.2)
        assert whole.content == large
        assert resident_bytes(process.pid) < 900 << 20  # that of the packages, and a few large values
