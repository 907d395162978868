"""Damage on the way from a log to Parquet and back: it never gives wrong rows, and left-out records are reported."""

from __future__ import annotations

import logging
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._native.codec import batches as native
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import CorruptRecordException, NoSuchFileException
from kafkalog.toolbox.export_hours import (
    NO_HOUR_FOLDER,
    NOTES,
    Layout,
    Range,
    export_range,
    exported_files,
    noted,
    settle_layout,
)
from kafkalog.toolbox.import_hours import import_partition
from tests.spark.kit import SEGMENTS, START_MS, export_batch, fill, is_clean

pytestmark = [pytest.mark.filterwarnings("ignore")]

T0 = TopicPartition("t", 0)
US = 1_700_000_000_000_000  # a producer's microseconds in a field of milliseconds: the year 55840
DAMAGE_AT = 400


def export_here(target: Path, codec: str, *batches: Any) -> list[Any]:
    settle_layout(str(target), Layout())
    last = batches[-1].column("offset")[-1].as_py()
    export_range(Range(T0, 0, last + 1), batches, str(target), Layout(), codec)
    return records_of(target, target.with_name("whole"))


def records_of(target: Path, back: Path) -> list[Any]:
    import_partition(str(target), exported_files(str(target), T0), str(back), T0, {}, None)
    with kafkalog.open_log(back, T0, read_only=True) as log:
        return [(it.offset, it.key, it.value, it.timestamp) for it in log]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_no_flipped_bit_becomes_a_record(tmp_path: Path, codec: str) -> None:
    """In pages, their headers and footers, and in notes: the import ends with an error, or has what was exported."""
    target, seed = tmp_path / "lake", random.Random(7)
    whole = export_here(
        target, codec, export_batch(0, 300), export_batch(300, 200, timestamps=[START_MS + 3_600_000] * 200)
    )
    assert len(whole) == 500
    files = [*target.rglob("*.parquet"), *(target / NOTES).rglob("*.json")]
    assert len(files) == 4
    refused = 0
    for path in files:
        data = path.read_bytes()
        for number in range(40):
            place = seed.randrange(len(data))
            flipped = bytearray(data)
            flipped[place] ^= 1 << seed.randrange(8)
            path.write_bytes(flipped)
            back = tmp_path / f"back-{path.stem}-{number}"
            try:
                assert records_of(target, back) == whole, (path, place)
            except kafkalog.errors.KafkalogError as error:
                refused += str(path) in str(error)
            if (back / "t-0").exists():
                with kafkalog.open_log(back, T0, read_only=True) as log:
                    assert [(it.offset, it.key, it.value, it.timestamp) for it in log] == whole[: log.end_offset]
            shutil.rmtree(back, ignore_errors=True)
        path.write_bytes(data)
    assert refused == 160


def test_pages_have_checksums(tmp_path: Path) -> None:
    """Also for readers that know no notes."""
    import pyarrow.parquet as parquet

    export_here(tmp_path / "lake", "none", export_batch(0, 300))
    (path,) = (tmp_path / "lake").rglob("*.parquet")
    data = bytearray(path.read_bytes())
    data[data.index(b"v250")] ^= 1
    path.write_bytes(data)
    with pytest.raises(OSError, match="CRC"):
        parquet.ParquetFile(path, page_checksum_verification=True).read()


def test_files_that_are_cut_longer_or_gone(tmp_path: Path) -> None:
    target = tmp_path / "lake"
    export_here(target, "none", export_batch(0, 30))
    (path,) = target.rglob("*.parquet")
    data = path.read_bytes()
    for other in (b"", data[:-1], data + b"x"):
        path.write_bytes(other)
        said = f"the file has {len(other)} bytes .* expected {len(data)} bytes with"
        with pytest.raises(CorruptRecordException, match=said):
            records_of(target, tmp_path / "back")
    path.unlink()
    with pytest.raises(NoSuchFileException, match="a file of the export no longer exists"):
        records_of(target, tmp_path / "back")


def test_records_without_an_hour(tmp_path: Path) -> None:
    target = tmp_path / "lake"
    times = [START_MS, -1, US, START_MS + 1, 253_402_300_799_999, 253_402_300_800_000]
    whole = export_here(target, "none", export_batch(0, 6, timestamps=times))
    assert [record[3] for record in whole] == times
    assert [file.records for file in noted(str(target), T0)[0].files if NO_HOUR_FOLDER in file.path] == [3]
    assert sorted(path.name for path in (target / "topic=t").iterdir()) == [
        "hour=2023-11-14-22",
        "hour=9999-12-31-23",
        NO_HOUR_FOLDER,
    ]


# --- in Spark --------------------------------------------------------------------------------------------


@pytest.fixture
def jobs(spark: Any) -> Any:
    from kafkalog.spark import jobs

    return jobs


def flip(path: Path, place: int = DAMAGE_AT) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.spark
def test_a_record_without_an_hour_comes_back(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root, target, back = tmp_path / "logs", tmp_path / "lake", tmp_path / "back"
    with kafkalog.open_log(root, "t-0", config={"message.timestamp.after.max.ms": str(2**63 - 1)}) as log:
        log.append(b"ok", timestamp=START_MS)
        log.append(b"us", timestamp=US)
    (row,) = jobs.export(spark, root, target).collect()
    assert (row.error, row.records) == (None, 2)
    read = spark.read.parquet(str(target)).where("hour is null").selectExpr("offset", "unix_millis(timestamp) t")
    assert [tuple(row) for row in read.collect()] == [(1, US)]
    (row,) = jobs.import_(spark, target, back, config={"message.timestamp.after.max.ms": str(2**63 - 1)}).collect()
    assert (row.error, row.records) == (None, 2)
    with kafkalog.open_log(back, "t-0", read_only=True) as log:
        assert [(it.offset, it.timestamp) for it in log] == [(0, START_MS), (1, US)]


@pytest.mark.spark
def test_what_is_left_out_is_told_with_its_offsets(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root, target = tmp_path / "logs", tmp_path / "lake"
    fill(root, "t-0", 300)
    path = sorted((root / "t-0").glob("*.log"))[1]
    flip(path)
    (row,) = jobs.export(spark, root, target).collect()
    assert (row.files, row.skipped) == ([], [])
    assert "skip_damage=True (--skip-damage) skips it, and reports what was skipped" in row.error
    assert "failOnDataLoss" not in row.error
    (row,) = jobs.export(spark, root, target, skip_damage=True).collect()
    offsets = {it.offset for it in spark.read.parquet(str(target)).select("offset").collect()}
    lost = sorted({*range(300)} - offsets)
    assert lost
    assert row.error is None
    (text,) = row.skipped
    assert text.startswith(f"offsets {lost[0]} to {lost[-1]}: {path}")
    assert noted(str(target), T0)[0].skipped == [text]
    assert jobs.export(spark, root, target, skip_damage=True).collect() == []


@pytest.mark.spark
def test_a_file_that_was_cut_between_two_batches(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root, target = tmp_path / "logs", tmp_path / "lake"
    fill(root, "t-0", 300)
    path = sorted((root / "t-0").glob("*.log"))[1]
    table, _, _ = native.scan(path.read_bytes(), max_batches=100)
    position, first, last = (int(table[name][-1]) for name in ("position", "base_offset", "last_offset"))
    os.truncate(path, position)
    (row,) = jobs.export(spark, root, target).collect()
    assert f"{path} at byte {position}: the file ends" in row.error
    (row,) = jobs.export(spark, root, target, skip_damage=True).collect()
    assert (row.error, row.records) == (None, 300 - (last - first + 1))
    (text,) = row.skipped
    assert text.startswith(f"offsets {first} to {last}: {path} at byte {position}: the file ends")


@pytest.mark.spark
def test_what_is_left_out_is_told_where_nobody_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kafkalog.spark.jobs import exporting
    from kafkalog.spark.jobs.shared import SharedLock
    from kafkalog.spark.options import parse_options
    from kafkalog.spark.planning import plan

    root, target = tmp_path / "logs", tmp_path / "lake"
    fill(root, "t-0", 300)
    flip(sorted((root / "t-0").glob("*.log"))[1])
    (target / NOTES).mkdir(parents=True)
    options = parse_options({"path": str(root), "subscribe": "t", "failOnDataLoss": "false"})
    (work,) = plan(options)
    monkeypatch.setattr(logging.getLogger("kafkalog.spark"), "disabled", True)
    with SharedLock(str(target / NOTES)) as shared:
        how = exporting.ExportTarget(str(target), Layout(), "none", shared.token)
        done = exporting._export(how, exporting.Task(work, options, 0, []))
    assert len(done.skipped) == 1


@pytest.mark.spark
def test_damage_at_the_end_is_told_each_time(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root = tmp_path / "logs"
    fill(root, "t-0", 30)
    path = sorted((root / "t-0").glob("*.log"))[-1]
    flip(path, path.stat().st_size - 5)
    for options in ({}, {"skip_damage": True}):
        target = tmp_path / f"lake{len(options)}"
        for _ in range(2):
            rows = jobs.export(spark, root, target, **options).collect()
            told = [text for row in rows for text in [*row.skipped, row.error or ""] if str(path) in text]
            assert len(told) == 1
        assert spark.read.parquet(str(target)).count() > 0


@pytest.mark.spark
def test_what_retention_took_first_is_told(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root, target = tmp_path / "logs", tmp_path / "lake"
    fill(root, "t-0", 100)
    jobs.export(spark, root, target)
    fill(root, "t-0", 100)
    with kafkalog.open_log(root, "t-0", config=SEGMENTS) as log:
        log.delete_records(150)
    (row,) = jobs.export(spark, root, target).collect()
    assert (row.records, row.skipped) == (
        50,
        ["offsets 100 to 149: deleted before they were exported; the log starts at 150"],
    )
    fill(root, "t-0", 100)
    with kafkalog.open_log(root, "t-0", config=SEGMENTS) as log:
        log.delete_records(300)
    for _ in range(2):  # there is nothing to write that down with
        (row,) = jobs.export(spark, root, target).collect()
        assert (row.records, row.start_offset, row.end_offset, row.error) == (0, 300, 300, None)
        assert row.skipped == ["offsets 200 to 299: deleted before they were exported; the log starts at 300"]


@pytest.mark.spark
def test_damage_that_the_plan_meets_is_a_row(spark: Any, jobs: Any, tmp_path: Path) -> None:
    """A batch's magic, five batches before the end: the search for the log's end runs into it on the driver."""
    root = tmp_path / "logs"
    for partition in ("a-0", "b-0"):
        with kafkalog.open_log(root, partition) as log:
            for _ in range(100):
                log.append(b"v" * 50, timestamp=START_MS)
    path = next((root / "a-0").glob("*.log"))
    table, _, _ = native.scan(path.read_bytes(), max_batches=1000)
    flip(path, int(table[95]["position"]) + 16)
    rows = {row.topic: row for row in jobs.export(spark, root, tmp_path / "lake").collect()}
    assert str(path) in rows["a"].error
    assert (rows["b"].error, rows["b"].records) == (None, 100)


@pytest.mark.spark
def test_a_broken_file_is_the_row_of_its_partition(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root, target = tmp_path / "logs", tmp_path / "lake"
    for partition in ("a-0", "b-0", "c-0"):
        fill(root, partition, 20)
    jobs.export(spark, root, target)
    path = next(target.glob("topic=b/*/*.parquet"))
    flip(path, path.stat().st_size - 6)
    rows = {row.topic: row for row in jobs.import_(spark, target, tmp_path / "back").collect()}
    assert f"CorruptRecordException: {path}: the file has" in rows["b"].error
    assert f"{tmp_path / 'back' / 'b-0'} keeps what was appended; resume continues" in rows["b"].error
    assert [(rows[name].error, rows[name].records) for name in "ac"] == [(None, 20), (None, 20)]


@pytest.mark.spark
def test_a_broken_note_is_the_row_of_its_partition_in_an_import(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root, target, back = tmp_path / "logs", tmp_path / "lake", tmp_path / "back"
    for partition in ("a-0", "b-0", "c-0"):
        fill(root, partition, 20)
    jobs.export(spark, root, target)
    (note,) = (target / NOTES / "b-0").glob("0*.json")
    flip(note, 20)
    rows = jobs.import_(spark, target, back).collect()
    assert [(row.topic, row.records) for row in rows] == [("a", 20), ("b", 0), ("c", 20)]
    assert [row.error and row.error.split(":")[0] for row in rows] == [None, "CorruptCheckpointException", None]
    assert str(note) in rows[1].error
    assert not (back / "b-0").exists()
    assert is_clean(back)
    (row,) = jobs.import_(spark, target, tmp_path / "other", "b").collect()
    assert str(note) in row.error
    (row,) = jobs.import_(spark, target, tmp_path / "other", "c").collect()
    assert (row.error, row.records) == (None, 20)


@pytest.mark.spark
def test_a_broken_note_is_the_row_of_its_partition(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root, target = tmp_path / "logs", tmp_path / "lake"
    for partition in ("a-0", "b-0"):
        fill(root, partition, 20)
    jobs.export(spark, root, target)
    (note,) = (target / NOTES / "a-0").glob("0*.json")
    flip(note, 20)
    for partition in ("a-0", "b-0"):
        fill(root, partition, 10)
    rows = {row.topic: row for row in jobs.export(spark, root, target).collect()}
    assert str(note) in rows["a"].error
    assert "the next export writes its files again" in rows["a"].error
    assert (rows["a"].start_offset, rows["b"].error, rows["b"].records) == (None, None, 10)
    note.unlink()
    assert [(row.topic, row.records) for row in jobs.export(spark, root, target).collect()] == [("a", 30)]
    assert spark.read.parquet(str(target)).count() == 60
