"""Both servers with the same settings: Apache Kafka 4.4.0 (`tests.broker.kraft`), and kafkalog over an empty store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import kafkalog
from tests.broker import kraft

CLUSTER_ID = "kafkalog-wire-000000AA"
SETTINGS = {
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "3",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "604800000",
}


class Pair(NamedTuple):
    """The addresses of both."""

    kafka: str
    ours: str


@contextlib.contextmanager
def both(place: Path, settings: dict[str, str] | None = None) -> Iterator[Pair]:
    given = SETTINGS | (settings or {})
    given_ours: dict[str, Any] = {"cluster.id": CLUSTER_ID} | given
    with kraft.broker(place / "kafka", cluster_id=CLUSTER_ID, settings=given) as node:
        node.start()
        with (
            kafkalog.open(place / "kafkalog", broker_config=given) as store,
            store.serve("127.0.0.1:0", **given_ours) as server,
        ):
            yield Pair(node.bootstrap, server.bootstrap_servers)
