"""A small service that uses the store's public API as users would: `test_store_typing` runs mypy on it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

import kafkalog
from kafkalog import RecordMetadata, Store, Topic, TopicPartition
from kafkalog.errors import TopicExistsException, UnknownTopicOrPartitionException

DEFAULTS: Mapping[str, str] = {"retention.ms": "604800000"}


def orders_of(store: Store) -> Topic:
    try:
        return store.create_topic("orders", partitions=4, config=DEFAULTS)
    except TopicExistsException:
        return store.topic("orders")


def take(orders: Topic, customer: str, bodies: Iterable[bytes]) -> dict[int, range]:
    key = customer.encode()
    return orders.append_many((body, key) for body in bodies)


def grow(store: Store, name: str, partitions: int) -> int:
    info = store.describe_topic(name)
    if info.partitions < partitions:
        info = store.add_partitions(name, partitions)
    store.alter_topic(name, {"retention.ms": None, "compression.type": "zstd"})
    topic_id: str | None = info.topic_id
    assert topic_id is not None
    return info.partitions


def bill(store: Store, kept: dict[TopicPartition, int]) -> int:
    """Goes on from offsets that it kept, reads, writes and commits in one transaction."""
    with store.reader("billing", topics=["orders"], start_offsets=kept) as reader:
        with store.transaction("biller-1") as txn:
            for record in reader.poll(100):
                txn.append("bills", record.value, key=record.key)
            txn.commit_offsets(reader)
        ends = dict(kept)
        ends.update(reader.commit())
        reader.commit(ends)
    with store.transaction("biller-1") as txn:
        txn.commit_offsets(ends, cursor="billing-copy")
    return sum(ends.values())


def main(log_dirs: list[str]) -> int:
    with kafkalog.open(log_dirs, durability="fsync", config=DEFAULTS, compression="lz4", maintenance=False) as store:
        orders = orders_of(store)
        where: RecordMetadata = orders.append(b'{"id": 1}', key=b"customer-7", headers=[("trace", b"1")])
        offsets = take(orders, "customer-8", [b"1", b"2"])
        grown = grow(store, "orders", 6)
        names: list[str] = store.topics()
        store.create_topic("bills", exist_ok=True)
        print(bill(store, {TopicPartition("orders", 0): 0}))
        try:
            store.delete_topic("payments")
        except UnknownTopicOrPartitionException as error:
            print(error.hint)
        print(where.topic, where.partition, where.offset, sum(map(len, offsets.values())), grown, names)
    with kafkalog.open(log_dirs, read_only=True) as look:
        overrides: Mapping[str, str] = look.describe_topic("orders").overrides
        print(look.read_only, dict(overrides), "orders" in look)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
