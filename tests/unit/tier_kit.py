"""Stores with a remote tier, for tests: small segments, copied to a folder."""

from __future__ import annotations

from pathlib import Path

import kafkalog

SETTINGS = {"remote.storage.enable": "true", "internal.segment.bytes": "2000", "index.interval.bytes": "100"}
RECORDS = 60


def tiered(
    root: Path,
    tier: Path | str | kafkalog.RemoteStorage,
    *,
    topic: str = "orders",
    settings: dict[str, str] | None = None,
) -> int:
    """A store of one topic with one partition of `RECORDS` records, whose closed segments were copied, and are still on
    the disk; two more segments came since.  How many segments were copied."""
    with kafkalog.open(root, remote=tier, maintenance=False) as store:
        orders = store.create_topic(topic, 1, config={**SETTINGS, **(settings or {})})
        for number in range(RECORDS):
            orders.append(values(number), key=b"key %d" % (number % 7), timestamp=1000 + number)
        copied = store.remote_log_manager.run_once()
        for number in range(30):
            orders.append(b"later %d " % number + b"." * 100, timestamp=2000 + number)
        return copied


def die(store: kafkalog.Store) -> None:
    """As a crash: lets go of everything, writes nothing."""
    store._home.abandon()  # type: ignore[union-attr]


def values(number: int) -> bytes:
    """The value of a record with that offset."""
    return b"value %d " % number + b"." * 100
