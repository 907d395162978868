"""Stores with a remote tier, for tests: small segments, copied to a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import kafkalog
from kafkalog._limits import INT_MAX
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.remote.segment import random_uuid

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


def two_leaders(place: Path, storage: kafkalog.RemoteStorage, count: int, new_epoch: int | None) -> None:
    """The first one copies most of so many records in short segments; the second one's, from an offset on of a later
    leader epoch, are 20 records long; all but the last of its 5 segments are in the tier.  A value begins
    with the leader epoch."""
    topic_id = random_uuid()

    def fill(store: kafkalog.Store, segment_bytes: int, count: int, new_epoch: int | None) -> None:
        sizes = {"internal.segment.bytes": str(segment_bytes), "index.interval.bytes": "100"}
        settings = {"remote.storage.enable": "true", "retention.ms": "-1", **sizes}
        store.create_topic("orders", 1, config=settings, topic_id=topic_id)
        log = store.manager.get_log("orders-0")
        for number in range(count):
            epoch = 1 if new_epoch is not None and number >= new_epoch else 0
            builder = MemoryRecordsBuilder(base_offset=number, partition_leader_epoch=epoch)
            builder.append(1_700_000_000_000 + number, None, b"%d %03d" % (epoch, number) + b"." * 105)
            log.append_as_follower(memoryview(builder.build()), INT_MAX)
        log.update_high_watermark(log.log_end_offset)

    with kafkalog.open(place / "a", remote=storage, maintenance=False) as first:
        fill(first, 1300, count, None)
        assert first.remote_log_manager.run_once() > 0 or not count
    with kafkalog.open(place / "b", remote=place / "none", maintenance=False) as second:
        fill(second, 3600, 100, new_epoch)
    for path in (place / "b").glob("__remote_log_metadata-*"):
        shutil.rmtree(path)
    for path in (place / "a").glob("__remote_log_metadata-*"):
        shutil.copytree(path, place / "b" / path.name)
    with kafkalog.open(place / "b", remote=storage, maintenance=False) as second:
        assert second.remote_log_manager.run_once() > 0
        bases = [segment.base_offset for segment in second.manager.get_log("orders-0").log_segments()]
        assert bases == [0, 20, 40, 60, 80]
