"""What a plan says of files, and what a task finds in them: damage that no CRC covers, files that others took the
place of.

No Spark: plans and tasks are plain Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

import kafkalog
from kafkalog._native import batches as native
from kafkalog.config import CleanerConfig
from kafkalog.errors import CorruptRecordException
from kafkalog.format.names import TopicPartition
from kafkalog.spark.options import SourceOptions, parse_options
from kafkalog.spark.planning import OffsetRange, plan
from kafkalog.spark.tasks import read_range
from kafkalog.toolbox.compact import How, compact
from kafkalog.toolbox.topic_settings import TopicSettings

pytest.importorskip("pyspark")

TIME_MS = 1_700_000_000_000
SPLITS: tuple[dict[str, str], ...] = ({}, {"maxBytesPerPartition": "3000"}, {"minPartitions": "7"})


def options_of(root: Path, **options: str) -> SourceOptions:
    return parse_options({"path": str(root), "subscribe": "t", **options})


def read(ranges: Iterable[OffsetRange], options: SourceOptions) -> list[int]:
    found: list[int] = []
    for work in ranges:
        for batch in read_range(work, options, ("offset",)):
            found += batch.column(0).to_pylist()
    return found


def flip(path: Path, row: int, bit: int) -> int:
    """In the base offset of a file's n-th batch; the batch's position."""
    data = bytearray(path.read_bytes())
    table, _, _ = native.scan(bytes(data), max_batches=1 << 20)
    position = int(table["position"][row])
    data[position + 7 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return position


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("bit", [0, 4, 17])
def test_a_batch_that_jumped_ahead_is_damage_for_a_plan(tmp_path: Path, split: dict[str, str], bit: int) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        for n in range(200):
            log.append(b"v" * 50, key=b"%d" % n, timestamp=TIME_MS)
    (path,) = (tmp_path / "t-0").glob("*.log")
    position = flip(path, 170 if bit else 180, bit)
    with pytest.raises(CorruptRecordException) as caught:
        read(plan(options_of(tmp_path, **split)), options_of(tmp_path, **split))
    assert caught.value.path == str(path)
    assert caught.value.position == position
    going_on = options_of(tmp_path, failOnDataLoss="false", **split)
    found = read(plan(going_on), going_on)
    assert found == sorted(set(found))
    damaged = 170 if bit else 180
    assert found[:damaged] == list(range(damaged))
    assert damaged not in found


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_a_batch_that_reaches_into_the_next_segment_is_damage(tmp_path: Path, split: dict[str, str]) -> None:
    config = {"internal.segment.bytes": "8000", "index.interval.bytes": "500"}
    with kafkalog.open_log(tmp_path, "t-0", config=config) as log:
        for _ in range(20):
            log.append_many([(b"v" * 50, b"k", [], TIME_MS)] * 20)
    first = min((tmp_path / "t-0").glob("*.log"))
    flip(first, -1, 3)
    with pytest.raises(CorruptRecordException):
        read(plan(options_of(tmp_path, **split)), options_of(tmp_path, **split))


def test_a_compacted_file_that_got_the_number_of_the_planned_one(tmp_path: Path) -> None:
    """Which file systems give away again: here the new content is written into the old file."""
    config = {
        "internal.segment.bytes": "20000",
        "index.interval.bytes": "100",
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.0",
    }
    with kafkalog.open_log(tmp_path, "t-0", config=config) as log:
        for n in (*range(100), *range(0, 100, 3), *range(40, 60)):
            log.append(b"v" * 50, key=b"%06d" % n, timestamp=TIME_MS)  # batches of one size
    first = min((tmp_path / "t-0").glob("*.log"))
    options = options_of(tmp_path, maxBytesPerPartition="3000")
    ranges = plan(options)
    assert len(ranges) > 3
    before = read(ranges, options)
    number = first.stat().st_ino
    kept = first.with_name("kept")
    kept.hardlink_to(first)
    how, settings = How(CleanerConfig(num_threads=1), rolls=True), TopicSettings(str(tmp_path), config)
    (done,) = compact(str(tmp_path), {TopicPartition("t", 0): str(tmp_path / "t-0")}, settings, how, act=True)
    assert done.error is None
    compacted = first.read_bytes()
    with kept.open("r+b") as file:
        file.truncate(0)
        file.write(compacted)
    kept.replace(first)
    assert first.stat().st_ino == number
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        there = [record.offset for record in log if record.offset < ranges[-1].end_offset]
    assert len(there) < len(before)
    assert read(ranges, options) == there
