"""Ranges become tasks: few for many small partitions, as many as requested, and the same rows in the same order."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.errors import CorruptRecordException, IllegalStateException
from kafkalog.spark import packing
from kafkalog.spark.options import SourceOptions, parse_options
from kafkalog.spark.packing import OPEN_BYTES, TASK_BYTES, pack
from kafkalog.spark.planning import plan
from kafkalog.spark.ranges import OffsetRange, Piece
from tests.unit.tier_kit import Leader, leaders

pytest.importorskip("pyarrow")
START_MS = 1_700_000_000_000
PARTITIONS = 70
FULL = {number for number in range(PARTITIONS) if number % 7}  # the others are empty
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def options(log_dir: Path | str, parallelism: int | None = 2, **more: Any) -> SourceOptions:
    given = {"path": str(log_dir), "subscribePattern": ".*", **{name: str(value) for name, value in more.items()}}
    return replace(parse_options(given), parallelism=parallelism)


def ranges(*sizes: int, records: int = 5) -> list[OffsetRange]:
    return [
        OffsetRange("t", number, "/d", 0, records, (Piece(f"/d/t-{number}/0.log", 0, 0, size),))
        for number, size in enumerate(sizes)
    ]


def shape(tasks: list[tuple[OffsetRange, ...]]) -> list[int]:
    return [len(works) for works in tasks]


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topic `t` with small partitions, of which some are empty; `u` has one of several segments."""
    tmp_path = tmp_path_factory.mktemp("logs")
    for number in range(PARTITIONS):
        with kafkalog.open_log(tmp_path, f"t-{number}") as log:
            for n in range(number % 7):
                log.append(b"%d-%d" % (number, n), key=b"k%d" % (n % 3), timestamp=START_MS + n)
    config = {"internal.segment.bytes": "4000", "index.interval.bytes": "500"}
    with kafkalog.open_log(tmp_path, "u-0", config=config) as log:
        for n in range(200):
            log.append(b"%d" % n + b"x" * 60, key=b"k", headers=[("n", b"1")], timestamp=START_MS + n)
    return tmp_path


def read_packed(chosen: SourceOptions, told: list[str] | None = None) -> Iterator[dict[str, Any]]:
    tasks = pytest.importorskip("kafkalog.spark.tasks")
    for works in pack(plan(chosen), chosen):
        for batch in tasks.read_task(works, chosen, COLUMNS, tell=(told if told is not None else []).append):
            yield from batch.to_pylist()


def read_apart(chosen: SourceOptions, told: list[str] | None = None) -> Iterator[dict[str, Any]]:
    tasks = pytest.importorskip("kafkalog.spark.tasks")
    for work in plan(chosen):
        for batch in tasks.read_range(work, chosen, COLUMNS, tell=(told if told is not None else []).append):
            yield from batch.to_pylist()


# --- how many -----------------------------------------------------------------------------------------------


def test_ten_thousand_small_ranges_are_forty_tasks() -> None:
    tasks = pack(ranges(*[360] * 10_000), options("/d"))
    assert len(tasks) == 40
    assert [work for works in tasks for work in works] == ranges(*[360] * 10_000)


def test_few_ranges_are_as_many_tasks_as_there_are_cores() -> None:
    assert shape(pack(ranges(*[100] * 8), options("/d", 8))) == [1] * 8
    assert shape(pack(ranges(*[100] * 8), options("/d", 4))) == [2] * 4
    assert shape(pack(ranges(*[100] * 8), options("/d", 1))) == [8]
    assert len(pack(ranges(*[100] * 100), options("/d", None))) >= packing.TASKS_LEAST
    assert pack([], options("/d")) == []


def test_a_large_range_is_alone() -> None:
    assert shape(pack(ranges(10, 10, 64 << 20, 10, 20 << 20, 10), options("/d", 1))) == [2, 1, 1, 1, 1]
    assert shape(pack(ranges(*[TASK_BYTES - OPEN_BYTES] * 3), options("/d", 1))) == [1, 1, 1]
    assert shape(pack(ranges(*[TASK_BYTES // 2 - OPEN_BYTES] * 4), options("/d", 1))) == [2, 2]


def test_limits_of_a_task_hold_for_all_of_its_ranges() -> None:
    assert shape(pack(ranges(*[400] * 6), options("/d", 1, maxBytesPerPartition=1000))) == [2, 2, 2]
    assert shape(pack(ranges(*[400] * 6), options("/d", 1, maxRecordsPerPartition=16))) == [3, 3]
    assert shape(pack(ranges(*[400] * 2), options("/d", 1, maxRecordsPerPartition=1))) == [1, 1]


def test_there_are_never_fewer_tasks_than_asked_for() -> None:
    rng = random.Random(29)
    for _ in range(300):
        sizes = [rng.choice([1, 100, 10_000, 1 << 20, 30 << 20]) for _ in range(rng.randrange(1, 60))]
        least, cores = rng.randrange(1, 70), rng.randrange(1, 9)
        chosen = options("/d", cores, minPartitions=least)
        planned = ranges(*sizes)
        tasks = pack(planned, chosen)
        assert [work for works in tasks for work in works] == planned
        assert len(tasks) >= min(least, len(sizes))
        for works in tasks:
            assert works
            assert len(works) == 1 or sum(work.size + OPEN_BYTES for work in works) <= TASK_BYTES


def test_objects_of_a_tier_are_packed_sparsely(tmp_path: Path) -> None:
    """Each of them costs a request."""
    tier = kafkalog.RemoteStorage(tmp_path / "tier", layout="local-tiered")
    leaders(tmp_path, tier, Leader(40, [(0, 0)], 70))
    chosen = replace(
        parse_options({"path": tier.url, "subscribe": "orders", "maxBytesPerPartition": "900"}), parallelism=1
    )
    planned = plan(chosen)
    wide = replace(chosen, max_bytes_per_partition=128 << 20)
    assert max(shape(pack(planned, wide))) == (TASK_BYTES - 1) // packing.REMOTE_OPEN_BYTES
    assert list(read_apart(chosen)) == list(read_packed(wide)) != []


# --- the same rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cores", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"latest": "true"},
        {"maxBytesPerPartition": 900},
        {"maxRecordsPerPartition": 30},
        {"minPartitions": 100},
        {"kafka.isolation.level": "read_committed"},
        {"startingTimestamp": START_MS + 2, "startingOffsetsByTimestampStrategy": "latest"},
        {"key": "k1"},
    ],
    ids=str,
)
def test_rows_are_the_same_packed_and_apart(log_dir: Path, more: dict[str, Any], cores: int) -> None:
    chosen = options(log_dir, cores, **more)
    rows = list(read_packed(chosen))
    assert rows == list(read_apart(chosen)) != []
    if cores == 1 and not more:
        assert len(pack(plan(chosen), chosen)) == 1


def test_small_batches_are_joined(log_dir: Path) -> None:
    tasks = pytest.importorskip("kafkalog.spark.tasks")
    chosen = options(log_dir, 1)
    (works,) = pack(plan(chosen), chosen)
    assert len(works) == len(FULL) + 1
    (batch,) = tasks.read_task(works, chosen, COLUMNS)
    assert batch.num_rows == sum(number % 7 for number in range(PARTITIONS)) + 200


@pytest.fixture
def own_dir(log_dir: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return shutil.copytree(log_dir, tmp_path / "logs")


def test_damage_in_one_range_hides_nothing_of_the_others(own_dir: Path) -> None:
    tasks = pytest.importorskip("kafkalog.spark.tasks")
    chosen = options(own_dir, 1)
    lenient = replace(chosen, fail_on_data_loss=False)
    (works,) = pack(plan(chosen), chosen)
    path = own_dir / "t-12" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 5 + 70] ^= 1  # the third of five batches
    path.write_bytes(data)
    told: list[str] = []
    rows = [row for batch in tasks.read_task(works, lenient, COLUMNS, tell=told.append) for row in batch.to_pylist()]
    assert rows == list(read_apart(lenient, told_apart := []))
    assert told == told_apart
    assert "offsets 2 to 4" in told[0]
    assert [row["offset"] for row in rows if row["partition"] == 12] == [0, 1]
    assert {row["partition"] for row in rows if row["topic"] == "t"} == FULL

    seen: list[Any] = []
    with pytest.raises(CorruptRecordException) as raised:
        seen.extend(row for batch in tasks.read_task(works, chosen, COLUMNS) for row in batch.to_pylist())
    assert raised.value.path == str(path)
    assert seen == rows[: len(seen)]
    assert seen[-1] == next(row for row in rows if (row["partition"], row["offset"]) == (12, 1))


def test_a_partition_that_was_deleted_since_the_plan(own_dir: Path) -> None:
    tasks = pytest.importorskip("kafkalog.spark.tasks")
    chosen = options(own_dir, 1)
    (works,) = pack(plan(chosen), chosen)
    shutil.rmtree(own_dir / "t-20")
    with pytest.raises(IllegalStateException, match="t-20 was deleted since the query was planned"):
        list(tasks.read_task(works, chosen, COLUMNS))
    told: list[str] = []
    lenient = replace(chosen, fail_on_data_loss=False)
    rows = [row for batch in tasks.read_task(works, lenient, COLUMNS, tell=told.append) for row in batch.to_pylist()]
    assert len(told) == 1
    assert "t-20 was deleted" in told[0]
    assert rows == list(read_apart(lenient))
    assert {row["partition"] for row in rows if row["topic"] == "t"} == FULL - {20}


def test_batches_of_full_size_are_not_held_back() -> None:
    pa = pytest.importorskip("pyarrow")
    from kafkalog._face.arrow import Gathered

    gathered = Gathered(10, 1 << 20)
    small, large = pa.record_batch({"n": [*range(4)]}), pa.record_batch({"n": [*range(10)]})
    assert list(gathered.add(small)) == []
    assert [batch.num_rows for batch in gathered.add(large)] == [4, 10]
    assert list(gathered.add(small)) == list(gathered.add(small)) == []
    assert [batch.num_rows for batch in gathered.add(small)] == [8]
    assert [batch.num_rows for batch in gathered.rest()] == [4]


def test_behind_a_large_batch_comes_an_empty_one(tmp_path: Path) -> None:
    """Spark's worker keeps a batch until it has the next one."""
    tasks = pytest.importorskip("kafkalog.spark.tasks")
    size = tasks.LARGE_BATCH_BYTES
    with kafkalog.open_log(tmp_path, "t-0", config={"max.message.bytes": str(2 * size)}) as log:
        for n in (10, size, size, 10):
            log.append(bytes(n), headers=[("n", b"1")], timestamp=START_MS)
    chosen = options(tmp_path, 1)
    (works,) = pack(plan(chosen), chosen)
    batches = list(tasks.read_task(works, chosen, COLUMNS))
    assert len([batch for batch in batches if batch.nbytes >= size]) == 2
    assert [batch.num_rows for batch in batches].count(0) == 2
    assert len({batch.schema for batch in batches}) == 1
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == [0, 1, 2, 3]
