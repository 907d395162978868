"""Stores with a remote tier, for tests: small segments, copied to a directory."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import kafkalog
from kafkalog._limits import INT_MAX
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.format.control import ControlRecordType, EndTransactionMarker
from kafkalog.engine.remote.segment import random_uuid

SETTINGS = {"remote.storage.enable": "true", "internal.segment.bytes": "2000", "index.interval.bytes": "100"}
RECORDS = 60


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """(a store's directory, its tier), with what `tiered` makes."""
    tiered(tmp_path / "store", tmp_path / "tier", settings={"local.retention.bytes": "3000"})
    return tmp_path / "store", tmp_path / "tier"


def tiered(
    root: Path,
    tier: Path | str | kafkalog.RemoteStorage,
    *,
    topic: str = "orders",
    settings: dict[str, str] | None = None,
) -> int:
    """A store of one topic with one partition of `RECORDS` records.

    Its closed segments were copied, and are still on the disk; two more segments followed.  How many segments were
    copied."""
    with kafkalog.open(root, remote=tier, maintenance=False) as store:
        orders = store.create_topic(topic, 1, config={**SETTINGS, **(settings or {})})
        for number in range(RECORDS):
            orders.append(values(number), key=b"key %d" % (number % 7), timestamp=1000 + number)
        copied = store.remote_log_manager.run_once()
        for number in range(30):
            orders.append(b"later %d " % number + b"." * 100, timestamp=2000 + number)
        return copied


def die(store: kafkalog.Store) -> None:
    """As a crash: closes everything, writes nothing."""
    store._home.abandon()  # type: ignore[union-attr]


def values(number: int) -> bytes:
    """The value of a record with that offset."""
    return b"value %d " % number + b"." * 100


class Leader(NamedTuple):
    """The log of one leader: `end` records except for `without`, in segments of `length` records.

    `epochs` are (leader epoch, first offset).
    """

    length: int
    epochs: Sequence[tuple[int, int]]
    end: int
    without: Collection[int] = ()
    copies: bool = True
    transaction: tuple[int, int, ControlRecordType] | None = None  # its first offset, its marker's, and which


def leaders(place: Path, storage: kafkalog.RemoteStorage, *each: Leader) -> None:
    """Directories `a`, `b` and so on of one leader after the other, each of which copies all segments but its last one,
    as far as the tier has not got them.  A value begins with the leader epoch."""
    topic_id, before = random_uuid(), None
    for letter, leader in zip("abcdef", each, strict=False):
        batches = []
        for number in range(leader.end):
            epoch = max(epoch for epoch, start in leader.epochs if start <= number)
            first, marker, kind = leader.transaction or (leader.end, leader.end, ControlRecordType.COMMIT)
            builder = MemoryRecordsBuilder(
                base_offset=number, partition_leader_epoch=epoch, is_control_batch=number == marker,
                **{"producer_id": 7, "producer_epoch": 0, "base_sequence": -1 if number == marker else number - first,
                   "is_transactional": True} if first <= number <= marker else {},
            )  # fmt: skip
            if number == marker:
                builder.append_end_txn_marker(1_700_000_000_000 + number, EndTransactionMarker(kind, 0))
            else:
                builder.append(1_700_000_000_000 + number, None, b"%d %03d" % (epoch, number) + b"." * 105)
            batches += [] if number in leader.without else [builder.build()]
        sizes = {"internal.segment.bytes": str(181 * leader.length), "index.interval.bytes": "100"}
        settings = {"remote.storage.enable": "true", "retention.ms": "-1", **sizes}
        with kafkalog.open(place / letter, remote=place / "none", maintenance=False) as store:
            store.create_topic("orders", 1, config=settings, topic_id=topic_id)
            for batch in batches:
                store.manager.get_log("orders-0").append_as_follower(memoryview(batch), INT_MAX)
        for path in (place / letter).glob("__remote_log_metadata-*"):
            shutil.rmtree(path)
        for path in [] if before is None else (place / before).glob("__remote_log_metadata-*"):
            shutil.copytree(path, place / letter / path.name)
        before = letter
        with kafkalog.open(place / letter, remote=storage, maintenance=False) as store:
            log = store.manager.get_log("orders-0")
            log.update_high_watermark(log.log_end_offset)
            if leader.copies:
                store.remote_log_manager.run_once()


def two_leaders(place: Path, storage: kafkalog.RemoteStorage, count: int, new_epoch: int | None) -> None:
    """The first leader copies most of `count` records in short segments.  The second one continues with a later epoch.

    Its segments are 20 records long; all but the last of the 5 are in the tier.
    """
    epochs = [(0, 0)] if new_epoch is None else [(0, 0), (1, new_epoch)]
    leaders(place, storage, Leader(7, [(0, 0)], count), Leader(20, epochs, 100))
