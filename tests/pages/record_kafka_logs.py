"""Records `kafka-logs/`, the log directory of a small web shop that the pages and README show.

    python -m tests.pages.record_kafka_logs

A real Apache Kafka 4.4.0 broker (the kit in `tests/broker`) runs on loopback, and real clients write to it.  Then the
broker is stopped, and its log directory replaces `tests/pages/kafka-logs`.  This is run once, and the directory is
committed: pages show offsets, sizes and producer ids of it.

    orders      2 partitions, 40 records of March 2026, a segment a week; none and lz4
    payments    1 partition: transactions of `checkout` that commit and abort, and one of `refunds` that hangs
    prices      1 partition, compacted: several values a key, and a tombstone; never cleaned
    billing     a consumer group whose offsets are before the ends of its partitions
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kafkalog.engine.format.builder import SimpleRecord, build_batch
from tests.broker import clients, kraft
from tests.wire.client import Client

TARGET = Path(__file__).parent / "kafka-logs"
MARCH = 1_772_323_200_000  # 2026-03-01T00:00:00Z, in ms
HOUR = 3_600_000
SECONDS_MAX = 60
BYTES_MAX = 300 * 1024
ITEMS = {"tea": 12.5, "coffee": 9.9, "honey": 7.25, "jam": 4.8, "bread": 3.2}
# Segments follow the records' times, so each has a week; its indexes have an entry for each batch but the first.
KEEP = {"retention.ms": "-1", "segment.ms": str(7 * 24 * HOUR), "index.interval.bytes": "100"}
SETTINGS = {
    "log.cleaner.backoff.ms": str(24 * HOUR),  # `prices` stays as it was written
    "metadata.max.idle.interval.ms": "0",  # no empty records in __cluster_metadata
    "transaction.partition.verification.enable": "false",  # a late batch opens a transaction, as before Kafka 3.6
}


def producer(bootstrap: str, **config: Any) -> Any:
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 1000, "partitioner": "murmur2_random"} | config)


def send(client: Any, topic: str, key: str, value: Mapping[str, Any] | None, hours: int) -> None:
    octets = None if value is None else json.dumps(value)
    client.produce(topic, octets, key, timestamp=MARCH + hours * HOUR)


def write_orders(bootstrap: str) -> None:
    """Every 18 hours an order; two batches a partition and week."""
    names = [*ITEMS]
    for first in range(0, 40, 5):
        client = producer(bootstrap, **{"compression.codec": "none" if first < 20 else "lz4"})
        for order in range(first + 1, first + 6):
            item, count = names[order * 3 % 5], 1 + order % 3
            value = {"order": order, "customer": f"c-{order * 5 % 8}", "item": item}
            send(
                client, "orders", str(value["customer"]), value | {"amount": round(ITEMS[item] * count, 2)}, 18 * order
            )
        assert client.flush(SECONDS_MAX) == 0


def write_prices(bootstrap: str) -> None:
    for week in range(5):
        client = producer(bootstrap)
        for number, (item, price) in enumerate(ITEMS.items()):
            ended = item == "jam" and week == 3
            value = None if ended else {"item": item, "price": round(price + week * 0.1, 2)}
            if not (item == "jam" and week == 4):
                send(client, "prices", item, value, week * 7 * 24 + number)
        assert client.flush(SECONDS_MAX) == 0


def pay(client: Any, order: int, hours: int, *, commit: bool = True) -> None:
    client.begin_transaction()
    customer = f"c-{order * 5 % 8}"
    for step in ("reserved", "charged"):
        send(client, "payments", customer, {"order": order, "customer": customer, "step": step}, hours)
    assert client.flush(SECONDS_MAX) == 0
    client.commit_transaction(SECONDS_MAX) if commit else client.abort_transaction(SECONDS_MAX)


def write_payments(bootstrap: str) -> None:
    """The last batch of an aborted transaction arrives after its end, and opens a transaction that nobody ends."""
    checkout = producer(bootstrap, **{"transactional.id": "checkout"})
    checkout.init_transactions(SECONDS_MAX)
    for order in range(1, 11):
        pay(checkout, order, 18 * order + 1, commit=order % 4 != 0)
    refunds = producer(bootstrap, **{"transactional.id": "refunds"})
    refunds.init_transactions(SECONDS_MAX)
    pay(refunds, 7, 200, commit=False)
    with Client(bootstrap) as wired:
        [state] = wired.ask("DescribeTransactions", 0, {"transactionalIds": ["refunds"]})["transactionStates"]
    value = {"order": 7, "customer": "c-3", "step": "refunded", "amount": -7.25}
    late = SimpleRecord(MARCH + 200 * HOUR, b"c-3", json.dumps(value).encode())
    send_late(bootstrap, build_late(state, late))
    for order in range(11, 15):
        pay(checkout, order, 18 * order + 8)


def build_late(state: Mapping[str, Any], record: SimpleRecord) -> bytes:
    return build_batch(
        [record], producer_id=state["producerId"], producer_epoch=state["producerEpoch"], base_sequence=2,
        is_transactional=True,
    )  # fmt: skip


def send_late(bootstrap: str, batch: bytes) -> None:
    """A produce request of version 9, the last one that does not add partitions to a transaction automatically."""
    topic = {"name": "payments", "partitionData": [{"index": 0, "records": batch}]}
    values = {"transactionalId": "refunds", "acks": -1, "timeoutMs": 30_000, "topicData": [topic]}
    with Client(bootstrap) as client:
        answer = client.ask("Produce", 9, values)
    error = answer["responses"][0]["partitionResponses"][0]["errorCode"]
    assert error == 0, error


def commit_billing(bootstrap: str) -> None:
    """A member reads `orders` and `payments`, and commits offsets before their ends."""
    from confluent_kafka import Consumer, TopicPartition

    config = {"bootstrap.servers": bootstrap, "group.id": "billing", "client.id": "billing"}
    consumer = Consumer(config | {"enable.auto.commit": False, "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders", "payments"])
    until = time.monotonic() + SECONDS_MAX
    while len(consumer.assignment()) < 3:
        assert time.monotonic() < until
        consumer.poll(0.2)
    places = (("orders", 0, 9), ("orders", 1, 20), ("payments", 0, 9))
    consumer.commit(offsets=[TopicPartition(*place) for place in places], asynchronous=False)
    consumer.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        with kraft.broker(
            Path(place), shares_metadata=True, settings=SETTINGS, cluster_id="kafkalogWebShop0000AAA"
        ) as node:
            node.start()
            prices = KEEP | {"cleanup.policy": "compact"}
            topics: dict[str, tuple[int, Mapping[str, str]]]
            payments = KEEP | {"segment.ms": str(365 * 24 * HOUR)}  # markers have the broker's time
            topics = {"orders": (2, KEEP), "payments": (1, payments), "prices": (1, prices)}
            clients.create_topics(node.bootstrap, topics)
            write_orders(node.bootstrap)
            write_prices(node.bootstrap)
            write_payments(node.bootstrap)
            commit_billing(node.bootstrap)
            time.sleep(1)
            print("exit code of the broker:", node.stop())
            print(*node.complaints(), sep="\n")
        shutil.rmtree(TARGET, ignore_errors=True)
        shutil.copytree(node.log_dir, TARGET)
    for path in TARGET.glob("__cluster_metadata-0/*index"):  # a controller leaves them preallocated, without entries
        assert not path.read_bytes().strip(b"\0"), path
        path.write_bytes(b"")
    sizes = {path.relative_to(TARGET): path.stat().st_size for path in TARGET.rglob("*") if path.is_file()}
    print(f"{len(sizes)} files, {sum(sizes.values())} bytes")
    assert sum(sizes.values()) <= BYTES_MAX, sizes


if __name__ == "__main__":
    main()
