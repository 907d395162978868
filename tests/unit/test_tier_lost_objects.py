"""A segment of a tier that lost one of its objects: the records that can be read, and that nothing deletes it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import kafkalog
from kafkalog import RemoteStorage
from kafkalog.spark.options import parse_options
from kafkalog.spark.planning import plan
from tests.unit.cli_kit import Run, run
from tests.unit.tier_kit import RECORDS, tiered, values

__all__ = ["run"]

LOST = pytest.mark.parametrize(
    ("layout", "suffix"),
    [
        ("local-tiered", ".index"),
        ("local-tiered", ".timeindex"),
        ("local-tiered", ".leader_epoch_checkpoint"),
        ("aiven", ".indexes"),
    ],
)


def lost(tmp_path: Path, layout: str, suffix: str, at: int = 1) -> Path:
    """The path of the object, in a tier of old objects next to its store."""
    tiered(tmp_path / "store", RemoteStorage(str(tmp_path / "tier"), layout=layout))
    path = sorted((tmp_path / "tier").rglob(f"*{suffix}"))[at]
    path.unlink()
    for each in (tmp_path / "tier").rglob("*-*.*"):
        os.utime(each, (1, 1))
    return path


def files_of(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file())


@LOST
@pytest.mark.parametrize("at", [0, 1, -1])
def test_its_records_are_read(tmp_path: Path, layout: str, suffix: str, at: int) -> None:
    lost(tmp_path, layout, suffix, at)
    tier = RemoteStorage(str(tmp_path / "tier"))
    for isolation in ("read_uncommitted", "read_committed"):
        with kafkalog.open(tier, read_only=True) as alone:
            partition = alone.topic("orders").partition(0)
            records = list(partition.records(isolation=isolation))
            assert [record.value for record in records] == [values(number) for number in range(len(records))]
            assert len(records) == partition.end_offset >= 50
            assert partition.offset_for_time(1000 + 25) == 25
    with kafkalog.open(tmp_path / "store", remote=tier, read_only=True) as both:
        assert len(list(both.topic("orders").partition(0))) == RECORDS + 30


@LOST
def test_spark_leaves_nothing_out(tmp_path: Path, layout: str, suffix: str) -> None:
    tasks = pytest.importorskip("kafkalog.spark.tasks")
    lost(tmp_path, layout, suffix)
    for more in ({}, {"kafka.isolation.level": "read_committed"}, {"maxBytesPerPartition": "1000"}):
        options = parse_options({"path": str(tmp_path / "tier"), "subscribe": "orders", **more})
        batches = [batch for work in plan(options) for batch in tasks.read_range(work, options, ["value"])]
        assert sum(batch.num_rows for batch in batches) == 50


@LOST
def test_it_is_no_orphan(run: Run, tmp_path: Path, layout: str, suffix: str) -> None:
    lost(tmp_path, layout, suffix)
    store, tier = str(tmp_path / "store"), tmp_path / "tier"
    before = files_of(tier)
    for place in ((str(tier),), (store, "--remote", str(tier))):
        result = run("tier", "orphans", *place, "--yes", "--older-than", "0")
        assert (result.code, result.out) == (0, "")
        assert "1 segment with missing objects: not orphans" in result.err
        assert files_of(tier) == before


@LOST
def test_verify_and_list_name_the_object(run: Run, tmp_path: Path, layout: str, suffix: str) -> None:
    path = lost(tmp_path, layout, suffix)
    for place in ((str(tmp_path / "tier"),), (str(tmp_path / "store"), "--remote", str(tmp_path / "tier"))):
        result = run("tier", "verify", *place)
        assert result.code == 1, result.err
        (finding, _) = result.lines
        assert finding.startswith(f"{path}: the object is missing; it is of the segment of orders-0 from offset ")
        shown = run("tier", "list", *place)
        assert shown.code == 1
        assert sum("incomplete" in line for line in shown.lines) == 1
        assert f"missing objects: {suffix}" in shown.err
        rows = map(json.loads, run("tier", "list", *place, "--json").lines)
        assert [row["lacks"] for row in rows if row.get("lacks")] == [[suffix]]


@LOST
@pytest.mark.parametrize("at", [1, -1])
def test_restore_brings_it_back(run: Run, tmp_path: Path, layout: str, suffix: str, at: int) -> None:
    path = lost(tmp_path, layout, suffix, at)
    tier = tmp_path / "tier"
    for number, place in enumerate(((str(tier),), (str(tmp_path / "store"), "--remote", str(tier)))):
        target = tmp_path / f"target{number}"
        result = run("tier", "restore", place[0], str(target), *place[1:], "--yes")
        told = [line for line in result.lines if "left out" in line]
        is_needed = suffix != ".leader_epoch_checkpoint" or at == -1
        assert (result.code, bool(told)) == (int(is_needed), is_needed), result.err
        assert all(str(path) in line for line in told)
        logs = sorted((target / "orders-0").glob("*.log"))
        assert len(logs) == len(sorted(tier.rglob("*.log")))
        for log in logs:
            assert log.read_bytes() == (tmp_path / "store" / "orders-0" / log.name).read_bytes()


def test_a_segment_that_metadata_have_comes_back_without_what_makes_it_whole(run: Run, tmp_path: Path) -> None:
    path = lost(tmp_path, "local-tiered", ".snapshot")
    store, tier = str(tmp_path / "store"), str(tmp_path / "tier")
    shown = run("tier", "orphans", tier)
    assert (
        "a segment that lost its .snapshot.  Its log exists: --remote with the log directory tells which" in shown.out
    )
    assert "1 segment with missing objects" in run("tier", "orphans", store, "--remote", tier, "--yes").err
    result = run("tier", "restore", store, str(tmp_path / "target"), "--remote", tier, "--yes")
    assert (result.code, len(result.lines)) == (1, 2), result.err
    assert f"{path}); it is left out" in result.lines[1]
    log = f"orders-0/{path.name[:20]}.log"
    assert (tmp_path / "target" / log).read_bytes() == (tmp_path / "store" / log).read_bytes()


def test_a_segment_without_its_manifest_is_refused(run: Run, tmp_path: Path) -> None:
    lost(tmp_path, "aiven", ".rsm-manifest")
    store, tier, target = str(tmp_path / "store"), str(tmp_path / "tier"), tmp_path / "target"
    result = run("tier", "restore", store, str(target), "--remote", tier, "--yes")
    assert (result.code, target.exists()) == (3, False)
    assert "its log or its manifest is missing" in result.err
    assert "without the directory, the other segments are restored" in result.err
    assert run("tier", "restore", tier, str(target), "--yes").code == 1  # for the offsets that are missing
    assert len(list(target.rglob("*.log"))) == len(list((tmp_path / "tier").rglob("*.rsm-manifest")))
