"""A segment of a tier with a damaged small object: it is reported by its name, and the other segments are read."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import kafkalog
from kafkalog import RemoteStorage
from kafkalog.errors import RemoteResourceNotFoundException
from kafkalog.spark.options import SourceOptions, parse_options
from kafkalog.spark.planning import plan
from tests.unit.cli_kit import Run, run
from tests.unit.tier_kit import RECORDS, tiered, values

__all__ = ["run"]


@pytest.fixture(params=["leader epochs", "names alone"])
def junk_index(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The last entry of an offset index has position -1.  Without leader epochs readers look where a segment ends."""
    tiered(tmp_path / "store", tmp_path / "tier")
    for path in (tmp_path / "tier").rglob("*.leader_epoch_checkpoint"):
        if request.param == "names alone":
            path.unlink()
    path = sorted((tmp_path / "tier").rglob("*.index"))[1]
    path.write_bytes(path.read_bytes()[:-4] + b"\xff" * 4)
    return path


def test_records_are_read_without_an_index_whose_positions_are_none(
    tmp_path: Path, junk_index: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with kafkalog.open(RemoteStorage(tmp_path / "tier"), read_only=True) as alone:
        partition = alone.topic("orders").partition(0)
        assert [each.value for each in partition] == [values(number) for number in range(partition.end_offset)]
        assert partition.offset_for_time(1000 + 15) == 15
    assert f"{junk_index}: its last entry has the position -1" in caplog.text
    with kafkalog.open(tmp_path / "store", remote=tmp_path / "tier", read_only=True) as both:
        assert len(list(both.topic("orders").partition(0))) == RECORDS + 30


def test_verify_and_restore_tell_of_an_index_whose_positions_are_none(
    run: Run, tmp_path: Path, junk_index: Path
) -> None:
    target = tmp_path / "target"
    for result in (
        run("tier", "verify", str(tmp_path / "tier")),
        run("tier", "restore", str(tmp_path / "tier"), str(target), "--yes"),
    ):
        assert result.code == 1, result.err
        assert str(junk_index) in result.out
    assert len(list(target.rglob("*.log"))) == len(list((tmp_path / "tier").rglob("*.log")))
    for log in target.rglob("*.log"):
        assert log.read_bytes() == (tmp_path / "store" / "orders-0" / log.name).read_bytes()


DAMAGES = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "others": lambda data: b'{"version":1}',
}


@pytest.fixture(params=[*DAMAGES])
def manifests(tmp_path: Path, request: pytest.FixtureRequest) -> list[Path]:
    """The manifests of a tier of old objects, the second and the last of which are damaged."""
    tiered(tmp_path / "store", RemoteStorage(tmp_path / "tier", layout="aiven"))
    found = sorted((tmp_path / "tier").rglob("*.rsm-manifest"))
    for each in (found[1], found[-1]):
        each.write_bytes(DAMAGES[request.param](each.read_bytes()))
    for each in (tmp_path / "tier").rglob("*-*.*"):
        os.utime(each, (1, 1))
    return found


def base_of(path: Path) -> int:
    return int(path.name[:20])


def places(tmp_path: Path) -> tuple[list[str], list[str]]:
    return [str(tmp_path / "tier")], [str(tmp_path / "store"), "--remote", str(tmp_path / "tier")]


def test_offsets_of_a_damaged_manifest_are_missing_and_others_are_read(
    tmp_path: Path, manifests: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    begin, end, last = base_of(manifests[1]), base_of(manifests[2]), base_of(manifests[-1])
    with kafkalog.open(RemoteStorage(tmp_path / "tier"), read_only=True) as alone:
        partition = alone.topic("orders").partition(0)
        assert (partition.log_start_offset, partition.end_offset) == (0, last)
        found: list[int] = []
        said = f"offsets {begin} to {end - 1} are missing, the manifest of segment {manifests[1].stem[21:]}"
        with pytest.raises(RemoteResourceNotFoundException, match=said):
            found.extend(each.offset for each in partition)
        assert found == [*range(begin)]
        assert [each.value for each in partition.records(end)] == [values(number) for number in range(end, last)]
    assert f"cannot be read: {manifests[-1]}" in caplog.text
    for metadata in (tmp_path / "store").glob("__remote_log_metadata-*"):
        with kafkalog.open(tmp_path / "store", remote=tmp_path / "tier", read_only=True) as both:
            partition = both.topic("orders").partition(0)
            assert len(list(partition)) == RECORDS + 30  # the disk has them
        shutil.rmtree(metadata)
    for path in (tmp_path / "store" / "orders-0").glob(f"{last:020}.*"):
        path.unlink()  # and does not continue where the tier ends
    for path in (tmp_path / "store" / "orders-0").glob("*.log"):
        if base_of(path) < last:
            path.unlink()
    (tmp_path / "store" / ".kafkalog_topics").unlink()
    with kafkalog.open(tmp_path / "store", remote=tmp_path / "tier", read_only=True) as both:
        partition = both.topic("orders").partition(0)
        assert [each.offset for each in partition.records(end, last)] == [*range(end, last)]
        with pytest.raises(RemoteResourceNotFoundException, match=f"offsets {last} to .* are missing, the manifest"):
            list(partition.records(last))


def test_a_damaged_manifest_is_named(run: Run, tmp_path: Path, manifests: list[Path]) -> None:
    before = sorted((tmp_path / "tier").rglob("*"))
    for place in places(tmp_path):
        listed, verified = run("tier", "list", *place), run("tier", "verify", *place)
        orphans = run("tier", "orphans", *place, "--yes", "--older-than", "0", "--whole")
        assert (listed.code, verified.code, orphans.code, orphans.out) == (1, 1, 0, ""), orphans.err
        assert sum(", damaged" in line for line in listed.lines) == 2
        for path in (manifests[1], manifests[-1]):
            assert f"its manifest is damaged: {path}: " in listed.err
            assert sum(line.startswith(str(path)) for line in verified.lines) == 1
            assert f"{path.stem[21:]}: not an orphan: its manifest is damaged: {path}" in orphans.err
        rows = map(json.loads, run("tier", "list", *place, "--json").lines)
        assert sum(row["damage"] is not None for row in rows) == 2
    assert sorted((tmp_path / "tier").rglob("*")) == before


def test_restore_leaves_out_what_has_a_damaged_manifest(run: Run, tmp_path: Path, manifests: list[Path]) -> None:
    for number, place in enumerate(places(tmp_path)):
        target = tmp_path / f"target {number}"
        restored = run("tier", "restore", place[0], str(target), *place[1:], "--yes")
        assert restored.code == 1, restored.err
        assert all(str(path) in restored.out for path in (manifests[1], manifests[-1]))
        logs = sorted(target.rglob("*.log"))
        assert [base_of(log) for log in logs] == [base_of(manifests[0]), *map(base_of, manifests[2:-1])]
        for log in logs:
            assert log.read_bytes() == (tmp_path / "store" / "orders-0" / log.name).read_bytes()


def test_spark_leaves_nothing_out_unless_it_is_told_to(tmp_path: Path, manifests: list[Path]) -> None:
    tasks = pytest.importorskip("kafkalog.spark.tasks")
    begin, end, last = base_of(manifests[1]), base_of(manifests[2]), base_of(manifests[-1])
    given = {"path": str(tmp_path / "tier"), "subscribe": "orders"}

    def read(options: SourceOptions) -> list[int]:
        batches = [batch for work in plan(options) for batch in tasks.read_range(work, options, ["offset"])]
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]

    with pytest.raises(RemoteResourceNotFoundException, match=f"offsets {begin} to {end - 1} are missing"):
        read(parse_options(given))
    assert read(parse_options({**given, "failOnDataLoss": "false"})) == [*range(begin), *range(end, last)]
