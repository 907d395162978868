"""Streams over a remote tier that changes under them: a store copies segments and deletes them on the disk between two
questions of Spark's, and a bucket alone grows.  Each record comes once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec")

import kafkalog
from kafkalog.engine.files import mounts
from kafkalog.remote import RemoteStorage
from kafkalog.spark import places
from tests.spark.stream_kit import begin, next_end, reader, records, through_json

pytestmark = pytest.mark.spark

CONFIG = {
    "internal.segment.bytes": "2000",
    "index.interval.bytes": "200",
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
LAYOUTS: dict[str, dict[str, Any]] = {"local-tiered": {}, "aiven": {"layout": "aiven", "compression": True}}
EACH = 40


@contextmanager
def elsewhere() -> Iterator[None]:
    """As in the store's process, which mounts nothing."""
    held, mounts._mounts = mounts._mounts, []
    try:
        yield
    finally:
        mounts._mounts = held


class Shop:
    """A store that tiers on demand; `end` records were appended."""

    def __init__(self, place: Path, layout: str) -> None:
        self.logs, self.tier = place / "logs", place / "tier"
        # Nothing happens but by `tiers`.
        config = kafkalog.RemoteLogManagerConfig(task_interval_ms=3_600_000)
        storage = RemoteStorage(self.tier, **LAYOUTS[layout])
        self.store = kafkalog.open(self.logs, remote=storage, tiering=config, maintenance=False)
        self.topic = self.store.create_topic("t", 1, config=CONFIG)
        self.end = 0

    def appends(self) -> None:
        with elsewhere():
            for number in range(self.end, self.end + EACH):
                self.topic.append(b"%06d" % number + b"x" * 50)
        self.end += EACH

    def tiers(self) -> int:
        """Moves closed segments to the tier and off the disk; returns the first offset left on the disk."""
        with elsewhere():
            self.store.remote_log_manager.run_once()
            self.topic.partition(0).delete_old_segments()
        return self.local_start

    @property
    def local_start(self) -> int:
        return min(int(path.stem) for path in (self.logs / "t-0").glob("*.log"))


@pytest.fixture(params=LAYOUTS)
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    made = Shop(tmp_path, request.param)
    yield made
    places._mounted.clear()
    mounts._mounts = []
    made.store.close()


def rows(first: int, end: int) -> list[tuple[int, int]]:
    return [(0, offset) for offset in range(first, end)]


@pytest.mark.parametrize("moment", ["before the end", "before the plan", "before the tasks", "amid the tasks"])
def test_what_goes_from_the_disk_to_the_tier_comes_once(shop: Shop, moment: str) -> None:
    shop.appends()
    shop.tiers()
    options = {"remote": shop.tier, "startingOffsets": "earliest", "maxBytesPerPartition": 1500}
    stream = reader(shop.logs, **options)
    start = begin(stream)
    found: list[tuple[int, int]] = []
    for turn in range(4):
        shop.appends()
        before = shop.local_start
        if moment == "before the end":
            assert shop.tiers() > before
        end = next_end(stream, start)
        assert end == {"t": {"0": shop.end}}
        if moment == "before the plan":
            assert shop.tiers() > before
        tasks = stream.partitions(through_json(start), through_json(end))
        assert len(tasks) > 2
        if moment == "before the tasks":
            assert shop.tiers() > before
        for number, task in enumerate(tasks):
            if moment == "amid the tasks" and number == 1:
                assert shop.tiers() > before
            for batch in stream.read(task):
                found += zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True)
        start = end
        assert found == rows(0, shop.end), turn


def test_a_query_goes_on_in_the_tier_where_it_ended_on_the_disk(shop: Shop) -> None:
    shop.appends()
    options = {"remote": shop.tier, "startingOffsets": "earliest"}
    shop.tiers()
    stream = reader(shop.logs, **options)
    start = begin(stream)
    end = next_end(stream, start)
    assert records(stream, start, end) == rows(0, EACH)
    shop.appends()
    shop.appends()
    assert shop.tiers() > EACH
    again = reader(shop.logs, **options)  # as in a new process
    places._mounted.clear()
    mounts._mounts = []
    again = reader(shop.logs, **options)
    behind = next_end(again, end)
    assert records(again, end, behind) == rows(EACH, 3 * EACH)


def test_a_bucket_alone_grows(shop: Shop) -> None:
    shop.appends()
    tiered = shop.tiers()
    stream = reader(shop.tier, startingOffsets="earliest")
    start = begin(stream)
    found: list[tuple[int, int]] = []
    for _ in range(3):
        end = next_end(stream, start)
        assert end == {"t": {"0": tiered}}
        found += records(stream, start, end)
        assert found == rows(0, tiered)
        start = end
        shop.appends()
        grown = shop.tiers()
        assert grown > tiered
        tiered = grown
        assert next_end(stream, start) == start  # a listing counts for a while
        places.look_again(str(shop.tier))
