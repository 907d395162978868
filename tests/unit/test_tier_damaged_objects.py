"""A segment of a tier, one of whose small objects is damaged: it is told of by its name, and the others are read."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafkalog
from kafkalog import RemoteStorage
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
    assert f"{junk_index}: found position -1 in its last entry" in caplog.text
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
