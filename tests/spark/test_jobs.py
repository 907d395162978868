"""Jobs over directories, in a real local Spark: the same answers, and the same files, as the toolbox alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.topic_settings import TopicSettings
from kafkalog.config import CleanerConfig
from kafkalog.engine.files import ManualClock
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import LogDirLockedException, PolicyViolationException, UnknownTopicOrPartitionException
from kafkalog.toolbox.compact import PassOptions, compact
from kafkalog.toolbox.recovery import recover
from tests.spark.kit import SEGMENTS, damage_tail, files_of, fill, is_clean

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def jobs(spark: Any) -> Any:
    from kafkalog.spark import jobs

    return jobs


def two(root: Path) -> Path:
    """t-0, t-1 and u-0."""
    for partition in ("t-0", "t-1", "u-0"):
        fill(root, partition, 400)
    return root


def without(files: dict[str, bytes], *suffixes: str) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.endswith(suffixes)}


# --- verify ----------------------------------------------------------------------------------------------


def test_verify(spark: Any, jobs: Any, tmp_path: Path) -> None:
    first, second = two(tmp_path / "a"), tmp_path / "b"
    fill(second, "w-0", 50)
    damage_tail(first / "t-1")
    (second / names.RECOVERY_POINT_CHECKPOINT_FILE).write_text("nonsense")
    told: list[int] = []
    rows = jobs.verify(spark, [first, second], progress=told.append).collect()
    found = {(row.log_dir, row.topic, row.partition): row for row in rows}
    assert len(rows) == 6
    assert {key[1:]: row.ok for key, row in found.items() if key[0] == str(first)} == {
        (None, None): True,
        ("t", 0): True,
        ("t", 1): False,
        ("u", 0): True,
    }
    finding = found[str(first), "t", 1].findings[0]
    assert "a bad CRC" in finding.what
    assert finding.path.startswith(str(first / "t-1"))
    assert (found[str(first), "t", 0].records, found[str(first), "t", 0].error) == (400, None)
    assert "nonsense" in found[str(second), None, None].findings[0].what
    logs = [path.stat().st_size for root in (first, second) for path in root.glob("*/*.log")]
    assert len(told) == 4
    assert sum(told) == sum(logs)


def test_verify_some_deeply(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root = two(tmp_path)
    rows = jobs.verify(spark, root, ["t-1", "u"], deep=True).collect()
    assert sorted((row.topic, row.partition, row.ok) for row in rows) == [("t", 1, True), ("u", 0, True)]
    shutil.copy(root / "t-0" / f"{0:020d}.log", root / "t-1" / f"{0:020d}.log")
    with pytest.raises(UnknownTopicOrPartitionException, match="no topic or partition x, y-3"):
        jobs.verify(spark, root, ["t", "x", "y-3"])


# --- recover ---------------------------------------------------------------------------------------------


def test_recover_tells_and_does_what_the_toolbox_does(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root = two(tmp_path / "a")
    damage_tail(root / "t-1")
    (root / names.CLEAN_SHUTDOWN_FILE).unlink()
    (root / names.RECOVERY_POINT_CHECKPOINT_FILE).unlink()
    before = files_of(root / "t-1")
    alone = tmp_path / "alone"
    shutil.copytree(root, alone)
    partitions = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)]
    expected = {str(it.partition): it for it in recover(alone, partitions, act=True)}
    told = {f"{row.topic}-{row.partition}": row for row in jobs.recover(spark, root).collect()}
    assert files_of(root / "t-1") == before
    assert not is_clean(root)
    done = {f"{row.topic}-{row.partition}": row for row in jobs.recover(spark, root, act=True).collect()}
    for name, result in expected.items():
        for row in (told[name], done[name]):
            assert (row.end_offset, row.old_end_offset, row.lost_records) == (
                result.end_offset,
                result.old_end_offset,
                result.lost_records,
            )
            assert [
                (cut.path.replace(str(root), str(alone)), cut.position, cut.length, cut.why) for cut in row.cuts
            ] == [tuple(cut) for cut in result.cuts]
        assert (told[name].done, done[name].done) == (False, True)
        assert files_of(root / name) == files_of(alone / name)
    assert len(done["t-1"].cuts) == 1
    assert is_clean(root)
    assert not (root / names.LOCK_FILE).exists()
    for name in (names.RECOVERY_POINT_CHECKPOINT_FILE, names.LOG_START_OFFSET_CHECKPOINT_FILE):
        assert sorted((root / name).read_text().split("\n")) == sorted((alone / name).read_text().split("\n"))


def test_recover_some_leaves_the_directory_unclean(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root = two(tmp_path)
    (root / names.CLEAN_SHUTDOWN_FILE).unlink()
    (row,) = jobs.recover(
        spark, root, ["t-0"], act=True, from_start=True, config={"index.interval.bytes": "100000"}
    ).collect()
    assert (row.done, row.recovery_point, row.error) == (True, 0, None)
    assert any(name.endswith(".index") for name in row.changed)
    assert not is_clean(root)


def test_a_directory_that_somebody_has(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root = two(tmp_path)
    with kafkalog.open_log(root, "t-0"), pytest.raises(kafkalog.errors.IllegalArgumentException, match="open already"):
        jobs.recover(spark, root, act=True)
    from kafkalog.engine.files import OS_FILES

    with OS_FILES.lock(str(root / names.LOCK_FILE)), pytest.raises(LogDirLockedException):
        jobs.compact(spark, root, ["t"], act=True, config={"cleanup.policy": "compact"})
    assert jobs.verify(spark, root).where("not ok").count() == 0


# --- compact ---------------------------------------------------------------------------------------------


def test_compact_tells_and_does_what_the_toolbox_does(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root = two(tmp_path / "a")
    alone = tmp_path / "alone"
    shutil.copytree(root, alone)
    settings = {"cleanup.policy": "compact", **SEGMENTS}
    partitions = {TopicPartition("t", number): str(alone / f"t-{number}") for number in (0, 1)}
    expected = [*compact(str(alone), partitions, TopicSettings(str(alone), settings), act=True)]
    told = jobs.compact(spark, root, ["t"], config=settings).orderBy("partition").collect()
    assert files_of(root / "t-0") != files_of(alone / "t-0")
    done = jobs.compact(spark, root, ["t"], act=True, config=settings).orderBy("partition").collect()
    for result, looked, row in zip(expected, told, done, strict=True):
        assert result.stats is not None
        assert (looked.records, looked.bytes_after) == (row.records, row.bytes_after)
        assert (row.superseded, row.end_offset) == (result.stats.superseded, result.stats.end_offset)
        assert row.superseded > 300
        assert (looked.done, row.done, row.error) == (False, True, None)
        assert "the active segment begins" in row.held
    for number in (0, 1):
        assert files_of(root / f"t-{number}") == files_of(alone / f"t-{number}")
    name = names.CLEANER_OFFSET_CHECKPOINT_FILE
    assert sorted((root / name).read_text().split("\n")) == sorted((alone / name).read_text().split("\n"))
    assert is_clean(root)
    (again,) = jobs.compact(spark, root, ["t-0"], act=True, config=settings).collect()
    assert (again.passes, again.done) == (0, False)


def test_compact_leaves_alone_what_nobody_said(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root = two(tmp_path)
    rows = jobs.compact(spark, root, act=True).collect()
    assert [row.done for row in rows] == [False] * 3
    assert "the cleanup.policy is unknown" in rows[0].held


def test_compact_rolls_and_takes_a_map(spark: Any, jobs: Any, tmp_path: Path) -> None:
    fill(tmp_path, "t-0", 400, keys=120)
    settings = {"cleanup.policy": "compact"}
    (row,) = jobs.compact(spark, tmp_path, ["t"], act=True, config=settings, map_bytes=24 * 40, rolls=True).collect()
    assert row.passes > 1
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        assert len({record.key for record in log}) == len([*log]) == 120


def test_damage_is_a_row_and_the_others_go_on(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root = two(tmp_path)
    path = root / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    rows = (
        jobs.compact(spark, root, ["t"], act=True, config={"cleanup.policy": "compact"}).orderBy("partition").collect()
    )
    assert "CorruptRecordException" in rows[0].error
    assert str(path) in rows[0].error
    assert (rows[1].done, rows[1].error) == (True, None)


# --- compact_by_shuffle ----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_compaction_by_shuffle_is_one_pass_of_an_unbounded_map(
    spark: Any, jobs: Any, tmp_path: Path, codec: str
) -> None:
    root, alone = tmp_path / "a", tmp_path / "alone"
    fill(root, "t-0", 600, keys=90, compression=codec)
    with kafkalog.open_log(root, "t-0", config=SEGMENTS) as log:
        log.append(b"no key")
        log.append(None, key=b"key-3")
        with log.transaction("a") as txn:
            txn.append(b"aborted", key=b"key-5")
            txn.abort()
    fill(root, "t-0", 100, keys=30, compression=codec)
    shutil.copytree(root, alone)
    settings = {"cleanup.policy": "compact", **SEGMENTS}
    clock = ManualClock(1_800_000_000_000)
    how = PassOptions(CleanerConfig(num_threads=1), rolls=True, clock=clock)
    partition = TopicPartition("t", 0)
    (expected,) = compact(
        str(alone), {partition: str(alone / "t-0")}, TopicSettings(str(alone), settings), how, act=True
    )
    (row,) = jobs.compact_by_shuffle(spark, root, "t-0", act=True, config=settings, rolls=True).collect()
    assert expected.stats is not None
    assert (row.error, row.superseded, row.end_offset) == (None, expected.stats.superseded, expected.stats.end_offset)
    assert (row.without_key, row.aborted) == (expected.stats.without_key, expected.stats.aborted) == (1, 1)
    with kafkalog.open_log(root, "t-0", read_only=True) as mine, kafkalog.open_log(alone, "t-0", read_only=True) as its:
        assert [(it.offset, it.key, it.value) for it in mine] == [(it.offset, it.key, it.value) for it in its]
    (again,) = jobs.compact_by_shuffle(spark, root, "t-0", act=True, config=settings).collect()
    assert (again.passes, again.error) == (0, None)


def test_compaction_by_shuffle_is_for_compacted_partitions(spark: Any, jobs: Any, tmp_path: Path) -> None:
    root = two(tmp_path)
    with pytest.raises(PolicyViolationException, match=r"the cleanup.policy is unknown"):
        jobs.compact_by_shuffle(spark, root, "t-0")
    with pytest.raises(kafkalog.errors.IllegalArgumentException, match="expected one"):
        jobs.compact_by_shuffle(spark, root, "t")
