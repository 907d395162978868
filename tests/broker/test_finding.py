"""The commands that find things, next to a running broker: keys where real clients put them, and open transactions.

Clients hash keys as Kafka's own do (murmur2); a command finds the records that the broker got.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kafkalog.cli.app import CLEAN, FINDINGS
from tests.broker import clients, kraft
from tests.conftest import need_broker
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

pytestmark = pytest.mark.broker

TOPIC = "orders"
PARTITIONS = 5
KEYS = [b"customer-%d" % n for n in range(40)] + [b"\x00\xff", "Größe".encode()]
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kraft.Broker]:
    need_broker()
    place = tmp_path_factory.mktemp("broker")
    with kraft.broker(place) as node:
        node.start()
        clients.create_topics(node.bootstrap, {TOPIC: (PARTITIONS, {}), "audit": (1, {})})
        yield node
    shutil.rmtree(place, ignore_errors=True)


def test_keys_are_where_clients_put_them(node: kraft.Broker, run: Run, tmp_path: Path) -> None:
    with closing(clients._kafka_python().KafkaProducer(bootstrap_servers=node.bootstrap)) as producer:
        for n in range(3):
            for key in KEYS:
                producer.send(TOPIC, b"%d of " % n + key, key=key, timestamp_ms=START_MS + n)
        producer.flush(60)
    log_dir = Path(node.log_dir)
    for key in KEYS:
        for narrowed in ((), ("--partitions", "5")):
            result = run("cat", log_dir, TOPIC, "--key", f"hex:{key.hex()}", "-f", "%s;", *narrowed)
            assert result.code == CLEAN, result.err
            assert result.octets == b"".join(b"%d of " % n + key + b";" for n in range(3))
            assert ("looked only in orders-" in result.err) == bool(narrowed), result.err
            result = run("history", f"hex:{key.hex()}", log_dir, TOPIC, "--json", *narrowed)
            assert [json.loads(line)["state"] for line in result.lines] == ["superseded", "superseded", "latest"]
    result = run("latest", log_dir, TOPIC, "--json")
    entries = [json.loads(line) for line in result.lines]
    assert (len(entries), {entry["ts"] for entry in entries}) == (len(KEYS), {START_MS + 2})
    result = run("latest", log_dir, TOPIC, "-f", "%s;")
    assert sorted(result.octets.split(b";")) == sorted([b"", *(b"2 of " + key for key in KEYS)])
    target = tmp_path / "orders.jsonl"
    assert run("export", log_dir, TOPIC, "--to", target, "--until", f"@{START_MS + 1}").code == CLEAN
    assert len(target.read_text().splitlines()) == len(KEYS)


def test_an_open_transaction_beside_its_coordinator(node: kraft.Broker, run: Run) -> None:
    log_dir = Path(node.log_dir)
    producer = clients.ConfluentProducer(node.bootstrap, transactional_id="t")
    rows = clients.rows(7, 5)
    producer.begin()
    producer.send("audit", 0, rows)
    producer.commit()
    producer.begin()
    producer.send("audit", 0, rows)
    result = run("transactions", log_dir, "audit", "--json", "--hanging-after", "0ms")
    assert result.code == FINDINGS
    (found,) = map(json.loads, result.lines)
    (it,) = found["open"]
    assert (found["committed"], found["aborted"], found["heldBackBy"]) == (1, 0, it["producerId"])
    assert found["lastStableOffset"] == it["firstOffset"] == 6
    assert (it["records"], it["lastOffset"], it["hanging"]) == (5, 10, True)
    assert len(run("cat", log_dir, "audit", "--committed", "--json").lines) == 5
    assert len(run("cat", log_dir, "audit", "--last", "7", "--json").lines) == 7
    result = run("latest", log_dir, "audit", "--json")
    assert "nothing from offset 6 on counts" in result.err
    assert max(json.loads(line)["offset"] for line in result.lines) < 6
    producer.abort()
    deadline = time.monotonic() + 30  # the client is answered before the marker is written
    while True:
        (ended,) = map(json.loads, run("transactions", log_dir, "audit", "--json").lines)
        if not ended["open"] or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert (ended["open"], ended["aborted"]) == ([], 1)
