"""The findings of `verify` and `tier verify` in the objects of a tier, also if the disk has the segment, too."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import kafkalog
from kafkalog.cli.console import counted
from kafkalog.engine.remote.objects import Objects, Retries
from kafkalog.toolbox import tiering
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
    assert {"flipped": "a bad CRC", "cut": "found 500 bytes", "gone": "the object does not exist"}[damage] in findings[
        0
    ]
    # Records in both are counted once.
    assert summary == clean.lines[-1].replace("clean", counted(len(findings), "finding"))
    assert damage == "flipped" or len(findings) == 1


@pytest.mark.parametrize("suffix", ["log", "leader_epoch_checkpoint"])
def test_python_finds_what_the_command_finds(run: Run, both: tuple[str, Path], suffix: str) -> None:
    store, tier = both
    os.truncate(sorted(tier.rglob(f"*.{suffix}"))[1], 0)
    found = kafkalog.verify(store, files=kafkalog.RemoteStorage(tier).tiered_files([store])).findings
    told = run("verify", store, "--remote", str(tier)).lines[:-1]
    assert [str(each) for each in found] == told != []


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
    assert "500 bytes, expected" in cut
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
        (".leader_epoch_checkpoint", 0, "it has no leader epochs"),
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


def test_what_is_restored_is_checked(run: Run, both: tuple[str, Path], tmp_path: Path) -> None:
    store, tier = both
    cut, flipped, index = (sorted(tier.rglob(f"*.{kind}"))[at] for at, kind in ((1, "log"), (2, "log"), (3, "index")))
    size = cut.stat().st_size
    os.truncate(cut, 500)
    flip(flipped, -1)
    os.truncate(index, 5)
    target = tmp_path / "restored"
    result = run("tier", "restore", store, str(target), "--remote", str(tier), "--yes")
    assert result.code == 1, result.err
    folder = target / "orders-0"
    (told,) = [line for line in result.lines if f"the object has 500 bytes; {size} were copied" in line]
    assert told.startswith(f"{folder / cut.name[:20]}.log: bytes 500 to {size}")
    assert str(cut) in told
    (told,) = [line for line in result.lines if "a bad CRC" in line]
    assert told.startswith(f"{folder / flipped.name[:20]}.log: bytes ")
    assert str(flipped) in told
    assert "has 5 bytes, expected whole entries of 8" in result.out
    assert "`kafkalog salvage`" in result.err
    for path in (cut, flipped):
        assert (folder / f"{path.name[:20]}.log").read_bytes() == path.read_bytes()
    assert run("salvage", str(target), str(tmp_path / "saved")).code == 1
    assert run("verify", str(tmp_path / "saved")).code == 0
    alone = run("tier", "restore", str(tier), str(tmp_path / "alone"), "--yes")  # from the objects alone
    assert (alone.code, "has 5 bytes, expected whole entries of 8; it is left out" in alone.out) == (1, True), alone.err
    damaged = run("cat", str(tier), "orders")
    assert "`kafkalog tier restore`" in damaged.err
    assert "RemoteLogSegmentId" not in alone.err + damaged.err


@pytest.mark.parametrize("target", ["tier", "tier/kafka-tiered-storage", "tier/new", ""])
def test_nothing_is_restored_into_a_tier(run: Run, both: tuple[str, Path], tmp_path: Path, target: str) -> None:
    _, tier = both
    before = sorted(tmp_path.rglob("*"))
    for yes in ([], ["--yes"]):
        result = run("tier", "restore", str(tier), str(tmp_path / target), *yes)
        assert result.code == 2
        assert "one inside the other" in result.err
    assert sorted(tmp_path.rglob("*")) == before


def test_list_tells_of_an_object_of_another_size(run: Run, both: tuple[str, Path]) -> None:
    store, tier = both
    log = sorted(tier.rglob("*.log"))[1]
    size = log.stat().st_size
    os.truncate(log, 500)
    result = run("tier", "list", store, "--remote", str(tier))
    assert result.code == 1
    (row,) = [line for line in result.lines if "wrong size" in line]
    assert log.stem[21:] in row
    assert f"the object of its log has 500 bytes; {size} were copied" in result.err
    rows = map(json.loads, run("tier", "list", store, "--remote", str(tier), "--json").lines)
    assert [row["copiedBytes"] for row in rows if row["id"] == log.stem[21:]] == [size]


@pytest.mark.parametrize("kind", ["folder", "bucket"])
@pytest.mark.parametrize("variant", ["plain", "zstd", "encrypted"])
@pytest.mark.parametrize("damage", ["cut", "longer"])
def test_an_object_of_aivens_layout_has_the_size_that_its_manifest_says(
    run: Run, tmp_path: Path, kind: str, variant: str, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Retries, "pause_s", lambda *_: 0.0)
    url, store = f"{'memory:/' if kind == 'bucket' else ''}{tmp_path}/tier", tmp_path / "store"
    keys = [str(Path(__file__).parents[1] / f"golden/tiered/aiven/{name}.pem") for name in ("public", "private")]
    more = {"encryption": {"k": tuple(keys)}} if variant == "encrypted" else {"compression": variant == "zstd"}
    tiered(store, kafkalog.RemoteStorage(url, layout="aiven", chunk_bytes=500, **more))
    objects = Objects.at(url)
    (topic,) = objects.folders()
    key = sorted(key for key, _ in objects.each_within(f"{topic}/0") if key.endswith(".log"))[1]
    segment_id, name, whole = Path(key).stem[21:], f"{Path(key).name[:20]}.log", objects.get(key)
    changed = whole[:-10] if damage == "cut" else whole + b"more"
    objects.put(key, lambda: [changed])
    log = (store / "orders-0" / name).read_bytes()
    # Packed chunks exist whole, or not at all.
    left = len(log) if damage == "longer" else len(changed) if variant == "plain" else (len(log) - 1) // 500 * 500
    sizes = f"{len(changed)} bytes; {len(whole)} were copied"
    options = ["--key-pair", f"k:{':'.join(keys)}"] if variant == "encrypted" else []
    for number, place in enumerate(([url], [str(store), "--remote", url])):
        listed = run("tier", "list", *place)  # no key is wanted for that
        assert listed.code == 1
        assert f"orders-0 {int(name[:20])} {segment_id}: the object of its log has {sizes}" in listed.err
        assert [line.split()[-1] for line in listed.lines if "wrong size" in line] in ([segment_id], ["-"])
        rows = map(json.loads, run("tier", "list", *place, "--json").lines)
        assert {row["id"]: row["copiedBytes"] for row in rows if row["copiedBytes"]} == {segment_id: len(whole)}
        checked = run("tier", "verify", *place, *options)
        assert (checked.code, key in checked.lines[0]) == (1, True), checked.err
        assert damage == "cut" or f"{len(changed)} bytes" in checked.lines[0]
        target = tmp_path / f"target {number}"
        restored = run("tier", "restore", *place[:1], str(target), *place[1:], "--yes", *options)
        assert restored.code == 1, restored.err
        (told,) = [line for line in restored.lines if f"the object has {sizes}; its object is " in line]
        assert told.endswith(key)
        for path in (target / "orders-0").glob("*.log"):
            copied = (store / "orders-0" / path.name).read_bytes()
            assert path.read_bytes() == (log[:left] if path.name == name else copied)


def test_cut_indexes_of_aivens_layout_are_a_finding(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore leaves out what is lost of them."""
    monkeypatch.setattr(Retries, "pause_s", lambda *_: 0.0)
    store, tier = tmp_path / "store", tmp_path / "tier"
    tiered(store, kafkalog.RemoteStorage(tier, layout="aiven"))
    indexes = sorted(tier.rglob("*.indexes"))[1]
    os.truncate(indexes, 5)
    for number, place in enumerate(([str(tier)], [str(store), "--remote", str(tier)])):
        checked = run("tier", "verify", *place)
        assert checked.code == 1, checked.err
        assert str(indexes) in checked.out
        target = tmp_path / f"target {number}"
        restored = run("tier", "restore", *place[:1], str(target), *place[1:], "--yes")
        assert restored.code == 1, restored.err
        assert f"{target}/orders-0/{indexes.name[:20]}.index: " in restored.out
        assert "the object has 5 bytes, expected at least" in restored.out
        for path in (target / "orders-0").glob("*.log"):
            assert path.read_bytes() == (store / "orders-0" / path.name).read_bytes()
        with kafkalog.open(target) as opened:
            partition = opened.topic("orders").partition(0)
            assert [record.offset for record in partition] == list(range(partition.end_offset))


def test_few_manifests_are_asked_for_a_list(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If there are many segments, no manifest is read of a plain log whose size the metadata have (one is read for the
    layout), and none of a long bucket."""
    asked: list[str] = []
    get = Objects.get

    def noted(objects: Objects, key: str, *where: int) -> bytes:
        asked.append(key)
        return get(objects, key, *where)

    monkeypatch.setattr(Objects, "get", noted)
    for name, compression in (("plain", False), ("zstd", True)):
        store, tier = tmp_path / f"store of {name}", tmp_path / name
        copied = tiered(store, kafkalog.RemoteStorage(tier, layout="aiven", compression=compression))
        for most in (copied, copied - 1):
            monkeypatch.setattr(tiering, "ASKED_MOST", most)
            asked.clear()
            assert run("tier", "list", str(store), "--remote", str(tier)).code == 0
            assert len({key for key in asked if key.endswith("manifest")}) == (copied if most == copied else 1)
    asked.clear()
    result = run("tier", "list", str(tier))
    assert (result.code, asked, len(result.lines)) == (0, [], copied + 1)
    assert f"the sizes of {copied} objects are not compared with their manifests" in caplog.text


def test_what_the_metadata_has_is_no_orphan(run: Run, both: tuple[str, Path]) -> None:
    store, tier = both
    sorted(tier.rglob("*.log"))[1].unlink()
    before = sorted(tier.rglob("*"))
    result = run("tier", "orphans", store, "--remote", str(tier), "--older-than", "0", "--yes")
    assert (result.code, result.out) == (0, "")
    assert "1 segment with missing objects: not orphans" in result.err
    assert sorted(tier.rglob("*")) == before


@pytest.mark.parametrize(
    ("place", "said"), [("other", "the remote tier has nothing"), ("store/tier", "one inside the")]
)
def test_a_dry_run_refuses_a_wrong_tier(
    run: Run, both: tuple[str, Path], tmp_path: Path, place: str, said: str
) -> None:
    store, _ = both
    for yes in ([], ["--yes"]):
        result = run("tier", "copy", store, "--remote", str(tmp_path / place), *yes)
        assert (result.code, said in result.err) == (2, True), result.err


def test_an_emptied_index_of_a_long_log_is_noted(run: Run, tmp_path: Path) -> None:
    store, tier = tmp_path / "store", tmp_path / "tier"
    tiered(store, tier, settings={"internal.segment.bytes": "200000"}, topic="small")
    with kafkalog.open(store, remote=tier, maintenance=False) as opened:
        large = opened.create_topic("large", 1, config={**SETTINGS, "internal.segment.bytes": "200000"})
        for _ in range(5):
            large.append(b"x" * 60_000)
        opened.remote_log_manager.run_once()
    assert "it has no entries" not in run("verify", str(tier)).err
    path = min(tier.rglob("large-0-*/*.index"))
    os.truncate(path, 0)
    result = run("verify", str(tier))
    assert result.code == 0
    assert f"{tier}/large-0/{path.name[:20]}.index: it has no entries" in result.err
