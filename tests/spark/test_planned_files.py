"""Planned files and the files that a task finds: damage that no CRC covers, and files that others have replaced.

No Spark: plans and tasks are plain Python.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.topic_settings import TopicSettings
from kafkalog._native.codec import batches as native
from kafkalog.config import CleanerConfig
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import CorruptRecordException
from kafkalog.spark import planning
from kafkalog.spark.options import SourceOptions, parse_options
from kafkalog.spark.planning import Tell, plan, warn
from kafkalog.spark.ranges import OffsetRange
from kafkalog.spark.tasks import read_range
from kafkalog.toolbox.compact import PassOptions, compact
from tests.spark.kit import fill

pytest.importorskip("pyspark")

TIME_MS = 1_700_000_000_000
SPLITS: tuple[dict[str, str], ...] = ({}, {"maxBytesPerPartition": "3000"}, {"minPartitions": "7"})


def options_of(root: Path, **options: str) -> SourceOptions:
    return parse_options({"path": str(root), "subscribe": "t", **options})


def read(ranges: Iterable[OffsetRange], options: SourceOptions, tell: Tell = warn) -> list[int]:
    found: list[int] = []
    for work in ranges:
        for batch in read_range(work, options, ("offset",), tell=tell):
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


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_file_that_was_cut_between_two_batches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, split: dict[str, str], place: int, kept: int
) -> None:
    """All of it is whole batches: only its index knows better."""
    fill(tmp_path, "t-0", 300)
    path = sorted((tmp_path / "t-0").glob("*.log"))[place]
    table, _, _ = native.scan(path.read_bytes(), max_batches=100)
    assert len(table) > 3
    cut, first, behind = (
        int(table["position"][kept]),
        int(table["base_offset"][kept]),
        int(table["last_offset"][-1]) + 1,
    )
    os.truncate(path, cut)
    options = options_of(tmp_path, **split)
    with pytest.raises(CorruptRecordException, match="the file ends") as caught:
        read(plan(options), options)
    assert (caught.value.path, caught.value.position) == (str(path), cut)
    options = options_of(tmp_path, failOnDataLoss="false", **split)
    told: list[str] = []
    ranges = plan(options)
    caplog.clear()
    assert read(ranges, options, told.append) == [*range(first), *range(behind, 300)]
    assert caplog.messages == []
    assert f"offsets {first} to {behind - 1}: {path} at byte {cut}: the file ends" in told[0]
    assert len(told) == 1
    read(ranges, options)
    assert caplog.messages == [f"Some data may have been lost. {told[0]}"]


def test_what_is_skipped_is_told_when_it_is_met(tmp_path: Path) -> None:
    fill(tmp_path, "t-0", 300)
    paths = sorted((tmp_path / "t-0").glob("*.log"))
    for path in paths[1:4:2]:
        flip(path, 2, 8)
    options = options_of(tmp_path, failOnDataLoss="false")
    told: list[str] = []
    found: list[int] = []
    seen = []
    for work in plan(options):
        for batch in read_range(work, options, ("offset",), tell=told.append):
            found += batch.column(0).to_pylist()
            seen.append((found[-1], len(told)))
    lost = sorted({*range(300)} - {*found})
    halves = [[each for each in lost if each < 150], [each for each in lost if each >= 150]]
    assert seen == [(halves[0][0] - 1, 0), (halves[1][0] - 1, 1), (299, 2)]
    for text, half, path in zip(told, halves, paths[1:4:2], strict=True):
        assert text.startswith(f"offsets {half[0]} to {half[-1]}: {path}")


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
    how, settings = PassOptions(CleanerConfig(num_threads=1), rolls=True), TopicSettings(str(tmp_path), config)
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


@pytest.mark.parametrize("loss", ["true", "false"])
@pytest.mark.parametrize("parts", ["2", "20", "200"])
def test_a_cleaner_between_two_halves_of_a_plan_is_no_damage(
    tmp_path: Path, loss: str, parts: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Files were measured that have others in their place when a plan looks into them."""
    config = {"internal.segment.bytes": "3000", "index.interval.bytes": "300", "cleanup.policy": "compact"}
    config["min.cleanable.dirty.ratio"] = "0.01"
    with kafkalog.open_log(tmp_path, "t-0", config=config) as log:
        for first in range(0, 600, 5):
            log.append_many([(b"%d-" % row + b"x" * 60, b"k%d" % (row % 7)) for row in range(first, first + 5)])
    split = planning.split_further

    def compacted_first(*given: Any) -> list[OffsetRange]:
        with kafkalog.open_log(tmp_path, "t-0", config=config) as log:
            log.compact()
        return split(*given)

    monkeypatch.setattr(planning, "split_further", compacted_first)
    options = options_of(tmp_path, minPartitions=parts, failOnDataLoss=loss)
    found = read(plan(options), options)
    monkeypatch.undo()
    assert found == read(plan(options), options)
    assert not caplog.records
    assert len(found) < 600
