"""The jobs that write Parquet by topic and hour and make partitions of it again, in a real local Spark."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._native.codec import batches as native
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format import codecs
from kafkalog.errors import IllegalArgumentException, LogDirLockedException, UnknownTopicOrPartitionException
from tests.spark.kit import SEGMENTS, START_MS, fill, is_clean

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

HOUR_MS = 3_600_000


@pytest.fixture
def jobs(spark: Any) -> Any:
    from kafkalog.spark import jobs

    return jobs


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """t-0: hours in order, then late records and a transaction; t-1 in zstd; u-0 with log append times."""
    root = tmp_path / "logs"
    fill(root, "t-0", 300)
    with kafkalog.open_log(root, "t-0", config=SEGMENTS) as log:
        for hours in (5, 1, 3, 1, 5):
            log.append(b"late", timestamp=START_MS + hours * HOUR_MS)
        with log.transaction("x") as txn:
            txn.append(b"committed", timestamp=START_MS)
        with log.transaction("y") as txn:
            txn.append(b"aborted", timestamp=START_MS)
            txn.abort()
    fill(root, "t-1", 50, compression="zstd")
    with kafkalog.open_log(root, "u-0", config={"message.timestamp.type": "LogAppendTime"}) as log:
        for number in range(5):
            log.append(b"%d" % number)
    return root


def records(root: Path, partition: str) -> list[Any]:
    with kafkalog.open_log(root, partition, read_only=True) as log:
        return [(it.offset, it.key, it.value, list(it.headers), it.timestamp, it.timestamp_type) for it in log]


def parquet(target: Path) -> list[Path]:
    return sorted(target.rglob("*.parquet"))


def test_export_is_by_topic_and_hour_and_comes_back(spark: Any, jobs: Any, root: Path, tmp_path: Path) -> None:
    target = tmp_path / "lake"
    told: list[int] = []
    rows = jobs.export(spark, root, target, headers=True, range_bytes=5000, progress=told.append).collect()
    assert [row.error for row in rows] == [None] * len(rows)
    assert len([row for row in rows if (row.topic, row.partition) == ("t", 0)]) > 3
    assert sum(row.records for row in rows) == sum(len(records(root, name)) for name in ("t-0", "t-1", "u-0"))
    assert len(told) == len(rows)
    read = spark.read.parquet(str(target))
    for row in read.where("topic = 't' and partition = 0").select("hour", "offset", "timestamp").collect():
        assert row.hour == row.timestamp.replace(tzinfo=UTC).strftime("%Y-%m-%d-%H")
    first = datetime.fromtimestamp(START_MS / 1000, UTC).strftime("%Y-%m-%d-%H")
    assert (target / "topic=t" / f"hour={first}" / f"t-0-{0:020d}.parquet").exists()
    back = tmp_path / "back"
    made = {
        f"{row.topic}-{row.partition}": row for row in jobs.import_(spark, target, back, compression="lz4").collect()
    }
    for name in ("t-0", "t-1", "u-0"):
        assert records(back, name) == records(root, name)
        assert (made[name].error, made[name].records) == (None, len(records(root, name)))
    assert is_clean(back)
    table, _, _ = native.scan(sorted((back / "t-0").glob("*.log"))[0].read_bytes())
    assert set(table["attributes"] & 7) == {codecs.LZ4}
    from kafkalog.toolbox.verify import verify

    assert verify(back, deep=True).ok


def test_export_goes_on(spark: Any, jobs: Any, root: Path, tmp_path: Path) -> None:
    target = tmp_path / "lake"
    jobs.export(spark, root, target, ["t-0"], codec="snappy")
    before = {path: path.stat().st_mtime_ns for path in parquet(target)}
    assert jobs.export(spark, root, target, ["t-0"]).collect() == []
    fill(root, "t-0", 40)
    (row,) = jobs.export(spark, root, target, ["t-0"]).collect()
    assert row.records == 40
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert spark.read.parquet(str(target)).count() == len(records(root, "t-0"))


def test_export_after_one_that_was_cut_short(spark: Any, jobs: Any, root: Path, tmp_path: Path) -> None:
    """Files without a note, and half-written ones, belong to a killed run: they are deleted, and their range is
    exported again."""
    target = tmp_path / "lake"
    jobs.export(spark, root, target, ["t"], range_bytes=5000)
    notes = sorted((target / "_kafkalog" / "t-0").glob("*.json"))
    gone = json.loads(notes[1].read_bytes())["files"]
    notes[1].unlink()
    odd = target / gone[0]["path"]
    (odd.parent / f"t-0-{77777:020d}.parquet").write_bytes(b"of a range that was cut elsewhere")
    (odd.parent / f".t-0-{0:020d}.parquet.123.tmp").write_bytes(b"half")
    others = odd.parent / "somebody's.parquet.bak"
    others.write_bytes(b"not ours")
    fill(root, "t-0", 10)
    rows = jobs.export(spark, root, target, ["t"], range_bytes=5000).collect()
    assert len(rows) == 2
    assert others.exists()
    others.unlink()
    found = spark.read.parquet(str(target)).where("partition = 0").select("offset").orderBy("offset").collect()
    assert [row.offset for row in found] == [record[0] for record in records(root, "t-0")]


def test_export_tells_of_partitions_that_are_away(spark: Any, jobs: Any, tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "store") as store:
        store.create_topic("t", 3)
        for number in range(3):
            store.topic("t").append(b"x", partition=number)
    shutil.rmtree(tmp_path / "store" / "t-2")
    found = jobs.export(spark, tmp_path / "store", tmp_path / "lake").collect()
    wrong = [row for row in found if row.error is not None]
    assert [(row.topic, row.partition, row.records) for row in wrong] == [("t", 2, 0)]
    assert "found no directory of t-2" in wrong[0].error
    assert sum(row.records for row in found) == 2
    told = jobs.export(spark, tmp_path / "store", tmp_path / "other", skip_damage=True).collect()
    assert [row.partition for row in told if row.skipped] == [2]
    assert not [row for row in told if row.error]


def test_one_export_at_a_time(spark: Any, jobs: Any, root: Path, tmp_path: Path) -> None:
    target = tmp_path / "lake"
    (target / "_kafkalog").mkdir(parents=True)
    with OS_FILES.lock(str(target / "_kafkalog" / ".lock")), pytest.raises(LogDirLockedException):
        jobs.export(spark, root, target)


def test_export_of_committed_records(spark: Any, jobs: Any, root: Path, tmp_path: Path) -> None:
    jobs.export(spark, root, tmp_path / "lake", ["t-0"], isolation="read_committed")
    values = {bytes(row.value) for row in spark.read.parquet(str(tmp_path / "lake")).select("value").collect()}
    assert b"committed" in values
    assert b"aborted" not in values
    with pytest.raises(IllegalArgumentException, match="an export with headers=False, isolation=read_committed"):
        jobs.export(spark, root, tmp_path / "lake", ["t-0"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"codec": "lzo"}, "parquet has no compression 'lzo'"),
        ({"isolation": "none"}, "none"),
        ({"range_bytes": 0}, "range_bytes: found 0"),
    ],
)
def test_odd_options(spark: Any, jobs: Any, root: Path, tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(IllegalArgumentException, match=text):
        jobs.export(spark, root, tmp_path / "lake", **options)


def test_damage_is_a_row_or_passed_over(spark: Any, jobs: Any, root: Path, tmp_path: Path) -> None:
    path = sorted((root / "t-0").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[400] ^= 1
    path.write_bytes(data)
    rows = jobs.export(spark, root, tmp_path / "lake", ["t"], range_bytes=5000).collect()
    wrong = [row for row in rows if row.error]
    assert len(wrong) == 1
    assert str(path) in wrong[0].error
    assert wrong[0].files == []
    count = spark.read.parquet(str(tmp_path / "lake")).count()
    rows = jobs.export(spark, root, tmp_path / "lake", ["t"], range_bytes=5000, skip_damage=True).collect()
    assert [row.error for row in rows] == [None]
    assert spark.read.parquet(str(tmp_path / "lake")).count() == count + rows[0].records > count


def test_import_refuses_resumes_and_keeps_holes(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root, target, back = tmp_path / "logs", tmp_path / "lake", tmp_path / "back"
    fill(root, "t-0", 300, keys=5)
    jobs.compact(spark, root, ["t"], act=True, config={"cleanup.policy": "compact"})
    with kafkalog.open_log(root, "t-0") as log:
        log.delete_records(280)
    jobs.export(spark, root, target)
    (row,) = jobs.import_(spark, target, back, ["t-0"], config={"segment.bytes": "1048576"}).collect()
    here = [record[:3] for record in records(root, "t-0")]
    assert [record[:3] for record in records(back, "t-0")] == here
    assert row.end_offset == here[-1][0] + 1
    (row,) = jobs.import_(spark, target, back).collect()
    assert "already has records" in row.error
    fill(root, "t-0", 20)
    jobs.export(spark, root, target)
    (row,) = jobs.import_(spark, target, back, resume=True).collect()
    assert (row.error, row.records) == (None, 20)
    assert [record[:3] for record in records(back, "t-0")] == [record[:3] for record in records(root, "t-0")]
    with pytest.raises(UnknownTopicOrPartitionException, match="no topic or partition x in the export"):
        jobs.import_(spark, target, back, ["x"])
    with pytest.raises(IllegalArgumentException, match="the directory has no export"):
        jobs.import_(spark, root, back)
    with pytest.raises(IllegalArgumentException, match="compression is 'br'"):
        jobs.import_(spark, target, back, compression="br")
