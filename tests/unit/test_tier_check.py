"""What `verify` and `tier verify` find in the objects of a tier, also where the disk has the segment, too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.remote.objects import Objects, Retries
from tests.unit.cli_kit import Run, run
from tests.unit.tier_kit import SETTINGS, tiered

__all__ = ["run"]

COMMANDS = pytest.mark.parametrize("command", [("verify",), ("tier", "verify")])


@pytest.fixture
def both(tmp_path: Path) -> tuple[str, Path]:
    """(a store's directory that has all segments yet, its tier)."""
    tiered(tmp_path / "store", tmp_path / "tier")
    return str(tmp_path / "store"), tmp_path / "tier"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)


@COMMANDS
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_copy_in_the_tier_is_checked_beside_that_of_the_disk(
    run: Run, both: tuple[str, Path], command: tuple[str, ...], damage: str
) -> None:
    store, tier = both
    clean = run(*command, store, "--remote", str(tier))
    assert clean.code == 0, clean.out
    log = sorted(tier.rglob("*.log"))[1]
    if damage == "flipped":
        flip(log, -1)
    elif damage == "cut":
        os.truncate(log, 500)
    else:
        log.unlink()
    result = run(*command, store, "--remote", str(tier))
    assert result.code == 1
    *findings, summary = result.lines  # a flipped batch is missed by the entries of the indexes, too
    assert str(log) in findings[0]
    assert {"flipped": "a bad CRC", "cut": "found 500 bytes", "gone": "no such object"}[damage] in findings[0]
    # What both have is counted once.
    assert summary == clean.lines[-1].replace("clean", f"{len(findings)} findings")
    assert damage == "flipped" or len(findings) == 1


@COMMANDS
@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_a_cut_object_is_a_finding_and_others_are_looked_at(
    run: Run, tmp_path: Path, command: tuple[str, ...], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    tier = f"memory://{tmp_path.name}/tier" if kind == "bucket" else str(tmp_path / "tier")
    with kafkalog.open(store, remote=tier, maintenance=False) as opened:
        for name in "ab":
            topic = opened.create_topic(name, 1, config={**SETTINGS, "local.retention.bytes": "2000"})
            for _ in range(60):
                topic.append(b"x" * 100)
        opened.remote_log_manager.run_once()
        for name in "ab":
            opened.topic(name).partition(0).delete_old_segments()
    objects = Objects.at(tier)
    (first, *_), (_, second, *_) = (
        sorted(key for key, _ in objects.each_within(folder) if key.endswith(".log"))
        for folder in objects.folders("kafka-tiered-storage")
    )
    whole = objects.get(second)
    objects.put(first, lambda: [objects.get(first)[:500]])
    objects.put(second, lambda: [whole[:-1] + bytes([whole[-1] ^ 1])])
    monkeypatch.setattr(Retries, "pause_s", lambda *_: 0.0)
    result = run(*command, str(store), "--remote", tier)
    assert result.code == 1, result.err
    cut, flipped, *_ = result.lines
    assert first in cut
    assert "found 500 bytes" in cut
    assert second in flipped
    assert "a bad CRC" in flipped
    assert "RemoteLogSegmentId" not in result.out + result.err


def test_a_storage_that_does_not_answer_is_no_finding(
    run: Run, both: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tier = both
    monkeypatch.setattr(Retries, "pause_s", lambda *_: 0.0)

    def away(*_: object) -> bytes:
        raise ConnectionResetError("away")

    monkeypatch.setattr(Objects, "_get", away)
    assert run("verify", store, "--remote", str(tier)).code == 3


@pytest.mark.parametrize(
    ("suffix", "size", "said"),
    [
        (".leader_epoch_checkpoint", 0, "found no leader epochs"),
        (".leader_epoch_checkpoint", 5, "leader epoch checkpoint of the segment of orders-0"),
        (".snapshot", 5, "5 bytes are too few"),
        (".index", 5, "has 5 bytes, expected whole entries of 8"),
        (".timeindex", 5, "has 5 bytes, expected whole entries of 12"),
    ],
)
def test_small_objects_of_every_segment_are_checked(
    run: Run, both: tuple[str, Path], suffix: str, size: int, said: str
) -> None:
    store, tier = both
    path = sorted(tier.rglob(f"*{suffix}"))[1]
    os.truncate(path, size)
    for line in ((store, "--remote", str(tier)), (str(tier),)):
        for command in (("verify",), ("tier", "verify")):
            result = run(*command, *line)
            assert result.code == 1, result.err
            (finding, _) = result.lines
            assert str(path) in finding
            assert said in finding


def test_an_index_entry_that_names_no_batch(run: Run, both: tuple[str, Path]) -> None:
    store, tier = both
    path = sorted(tier.rglob("*.index"))[1]
    flip(path, 12)
    result = run("tier", "verify", store, "--remote", str(tier))
    assert result.code == 1
    assert "names no batch of the log" in result.out
    assert str(path) in result.out
