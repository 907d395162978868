"""Commands on a tier that differs from the metadata of its directory, and on a bucket with holes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.remote.segment import COPY_SEGMENT_STARTED, RemoteLogSegmentId, random_uuid
from tests.unit.cli_kit import Run, run
from tests.unit.tier_kit import tiered

__all__ = ["run"]

OTHER = "B" * 22


@pytest.fixture
def places(tmp_path: Path) -> tuple[str, str, int]:
    """(a store's directory, its tier's directory, the number of segments there)."""
    return str(tmp_path / "store"), str(tmp_path / "tier"), tiered(tmp_path / "store", tmp_path / "tier")


def objects(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.lines]


def lose(tier: str, number: int, suffix: str = ".*") -> str:
    """Removes objects of a segment; its id."""
    log = sorted(Path(tier).rglob("*.log"))[number]
    for path in log.parent.glob(log.stem + suffix):
        path.unlink()
    return log.stem[21:]


def let_go(store: str, tier: str) -> None:
    """Deletes copied segments from the disk."""
    with kafkalog.open(store, remote=tier, maintenance=False) as opened:
        opened.alter_topic("orders", {"local.retention.bytes": "1"})
        opened.topic("orders").partition(0).delete_old_segments()


def test_list_names_what_is_missing(run: Run, places: tuple[str, str, int]) -> None:
    store, tier, copied = places
    gone, torn, lacking = lose(tier, 1), lose(tier, 2, ".snapshot"), lose(tier, 0, ".index")
    result = run("tier", "list", store, "--remote", tier, "--json")
    rows = {row["id"]: row for row in objects(result) if row["id"]}
    assert result.code == 1
    assert len(rows) == copied
    assert (rows[gone]["where"], rows[gone]["whole"]) == ("missing", False)
    assert (rows[torn]["where"], rows[torn]["whole"]) == ("remote", False)
    assert (rows[lacking]["where"], rows[lacking]["whole"], rows[lacking]["lacks"]) == ("both", True, [".index"])
    assert gone in result.err
    assert torn in result.err


def test_list_matches_by_topic_id(run: Run, places: tuple[str, str, int]) -> None:
    """Objects of a topic of the same name that was deleted begin at the same offsets, and are other segments."""
    store, tier, copied = places
    folder = next(Path(tier, "kafka-tiered-storage").iterdir())
    shutil.copytree(folder, folder.with_name(f"orders-0-{OTHER}"))
    rows = objects(run("tier", "list", store, "--remote", tier, "--json"))
    assert [row["where"] for row in rows].count("both") == copied
    assert [row["where"] for row in rows].count("remote") == copied
    assert {row["state"] for row in rows if row["where"] == "remote"} == {None}
    folder.rename(folder.with_name(f"orders-0-{'C' * 22}"))  # only others' objects are left
    rows = objects(run("tier", "list", store, "--remote", tier, "--json"))
    assert "both" not in {row["where"] for row in rows}
    assert {row["firstOffset"] for row in rows if row["where"] == "local"} == {
        int(path.name[:20]) for path in Path(store, "orders-0").glob("*.log")
    }


def test_list_takes_no_unfinished_upload_for_the_segment(run: Run, places: tuple[str, str, int]) -> None:
    store, tier, copied = places
    lose(tier, copied - 1, ".snapshot")
    for folder in Path(store).glob("__remote_log_metadata-*"):
        shutil.rmtree(folder)
    rows = objects(run("tier", "list", store, "--remote", tier, "--json"))
    (upload,) = [row for row in rows if not row["whole"]]
    assert upload["where"] == "remote"
    assert (upload["firstOffset"], "local") in {(row["firstOffset"], row["where"]) for row in rows}


@pytest.mark.parametrize("command", [("verify",), ("tier", "verify")])
def test_verify_finds_what_the_metadata_have_and_is_gone(
    run: Run, places: tuple[str, str, int], command: tuple[str, ...]
) -> None:
    store, tier, _ = places
    let_go(store, tier)
    assert run(*command, store, "--remote", tier).code == 0
    gone, torn = lose(tier, 1), lose(tier, 2, ".snapshot")
    result = run(*command, store, "--remote", tier)
    assert result.code == 1
    assert gone in result.out
    assert torn in result.out


@pytest.mark.parametrize("command", [("verify",), ("tier", "verify")])
def test_verify_finds_offsets_that_nobody_has(run: Run, places: tuple[str, str, int], command: tuple[str, ...]) -> None:
    store, tier, _ = places
    let_go(store, tier)
    with kafkalog.open(store, remote=tier, maintenance=False) as opened:
        for _ in range(60):
            opened.topic("orders").append(b"x" * 100)
    lost, begins = sorted(int(path.name[:20]) for path in Path(store, "orders-0").glob("*.log"))[:2]
    for path in Path(store, "orders-0").glob(f"{lost:020}.*"):
        path.unlink()
    result = run(*command, store, "--remote", tier)
    assert result.code == 1
    assert f"offsets {lost} to {begins - 1} are missing" in result.out
    assert len(result.lines) == 4  # and what is lost, in a table, and the summary
    assert result.lines[-2].split()[:6] == ["orders", "1", "1", "up", "to", str(begins - lost)]


def test_restore_of_what_the_metadata_have(run: Run, places: tuple[str, str, int], tmp_path: Path) -> None:
    store, tier, copied = places
    begun = sorted(Path(tier).rglob("*.log"))[0]
    for path in begun.parent.glob(f"{begun.stem}.*"):  # whole, later, and unknown to the metadata
        shutil.copy(path, path.with_name(path.name.replace(begun.stem[21:], "z" * 22)))
    with (begun.parent / f"{begun.stem[:20]}-{'z' * 22}.log").open("ab") as file:
        file.write(bytes(100))
    target = tmp_path / "restored"
    assert run("tier", "restore", store, str(target), "--remote", tier, "--yes").code == 0
    logs = sorted((target / "orders-0").glob("*.log"))
    assert len(logs) == copied
    assert logs[0].read_bytes() == begun.read_bytes()
    gone = lose(tier, 2)
    for yes in ([], ["--yes"]):
        result = run("tier", "restore", store, str(tmp_path / "again"), "--remote", tier, *yes)
        assert result.code != 0
        assert gone in result.err
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("layout", ["local-tiered", "aiven"])
def test_holes_of_a_bucket_are_findings(
    run: Run, tmp_path: Path, layout: str, caplog: pytest.LogCaptureFixture
) -> None:
    tier = kafkalog.RemoteStorage(tmp_path / "tier", layout=layout)
    tiered(tmp_path / "store", tier)
    assert run("tier", "verify", f"file://{tmp_path}/tier").code == 0
    logs = sorted((tmp_path / "tier").rglob("*.log"))
    first, behind = int(logs[2].name[:20]), int(logs[3].name[:20])
    lose(str(tmp_path / "tier"), 2)
    caplog.clear()
    result = run("tier", "verify", f"file://{tmp_path}/tier")
    assert result.code == 1
    assert f"the offsets {first} to {behind - 1} before it are in no segment" in result.out
    restored = run("tier", "restore", f"file://{tmp_path}/tier", tmp_path / "restored", "--yes")
    assert restored.code == 1
    assert f"the offsets {first} to {behind - 1} before it are in no segment" in restored.out
    caplog.clear()
    with kafkalog.open(tier, read_only=True) as bucket:
        for _ in range(2):
            assert first not in {record.offset for record in bucket.topic("orders").partition(0)}
    (line,) = caplog.messages
    assert f"no segment of the remote tier has the offsets {first} to {behind - 1}" in line


def test_the_directory_says_which_topic_is_meant(run: Run, places: tuple[str, str, int]) -> None:
    """A topic that was created again under its name; with metadata, and if another broker has them."""
    store, tier, _ = places
    let_go(store, tier)
    expected = run("cat", store, "orders", "--remote", tier, "--json").out
    folder = next(Path(tier, "kafka-tiered-storage").iterdir())
    other = shutil.copytree(folder, folder.with_name(f"orders-0-{OTHER}"))
    for path in other.glob("*.log"):
        path.write_bytes(path.read_bytes()[::-1])
    assert run("cat", store, "orders", "--remote", tier, "--json").out == expected
    for metadata in Path(store).glob("__remote_log_metadata-*"):
        shutil.rmtree(metadata)
    assert run("cat", store, "orders", "--remote", tier, "--json").out == expected
    refused = run("cat", f"file://{tier}", "orders")
    assert refused.code == 2
    assert "two topics 'orders'" in refused.err


def test_segments_of_two_leaders_that_overlap(run: Run, places: tuple[str, str, int], tmp_path: Path) -> None:
    """Each leader copies its segments, which have different starts: the new leader's first one overlaps the tier's."""
    _, tier, _ = places
    expected = run("cat", f"file://{tier}", "orders", "--json").out
    tiered(tmp_path / "other", tmp_path / "others", settings={"internal.segment.bytes": "1500"})
    folder, source = (next(Path(place, "kafka-tiered-storage").iterdir()) for place in (tier, tmp_path / "others"))
    ours, theirs = (sorted(int(path.name[:20]) for path in each.glob("*.log")) for each in (folder, source))
    begins = next(base for base in theirs if base > ours[1] and base not in ours)
    for path in source.glob(f"{begins:020}-*"):
        shutil.copy(path, folder)
    assert run("cat", f"file://{tier}", "orders", "--json").out == expected
    assert run("tier", "verify", f"file://{tier}", "--deep").code == 0
    log = next(path for path in sorted(folder.glob("*.log"))[::-1] if int(path.name[:20]) < begins)
    data = bytearray(log.read_bytes())
    data[:8] = (10**9).to_bytes(8, "big")  # no CRC covers it
    log.write_bytes(data)
    damaged = run("cat", f"file://{tier}", "orders", "--json")
    assert damaged.code != 0
    assert log.name in damaged.err
    assert run("tier", "verify", f"file://{tier}").code == 1


def test_verify_notes_an_upload_that_has_not_ended(run: Run, places: tuple[str, str, int]) -> None:
    store, tier, _ = places
    with kafkalog.open(store, remote=tier, maintenance=False) as opened:
        manager = opened.remote_log_manager.metadata
        (partition,) = manager.partitions()
        last = list(manager.list_remote_log_segments(partition))[-1]
        begun = last._replace(
            remote_log_segment_id=RemoteLogSegmentId(partition, random_uuid()), state=COPY_SEGMENT_STARTED
        )
        manager.add_remote_log_segment_metadata(begun)
    result = run("tier", "verify", store, "--remote", tier)
    assert result.code == 0, result.out
    told = f"note: the upload of orders-0 from offset {begun.start_offset} on began as segment "
    assert told + begun.remote_log_segment_id.id in result.err
    assert "the upload of" not in run("tier", "verify", tier).err


def test_list_guesses_an_end_by_whole_segments_alone(run: Run, places: tuple[str, str, int]) -> None:
    _, tier, copied = places
    before = [row["lastOffset"] for row in objects(run("tier", "list", tier, "--json"))]
    log = sorted(Path(tier).rglob("*.log"))[1]
    stray = log.with_name(f"{int(log.name[:20]) + 3:020}-{'A' * 22}.log")
    shutil.copy(log, stray)
    rows = objects(run("tier", "list", tier, "--json"))
    assert len(rows) == copied + 1
    assert [row["lastOffset"] for row in rows if row["whole"]] == before
    assert [row["lastOffset"] for row in rows if not row["whole"]] == [None]


def test_a_restore_with_a_gap_alone_tells_of_no_damage(run: Run, places: tuple[str, str, int], tmp_path: Path) -> None:
    _, tier, _ = places
    lose(tier, 1)
    result = run("tier", "restore", tier, str(tmp_path / "target"), "--yes")
    (finding,) = [line for line in result.lines if "before it are in no segment" in line]
    assert (result.code, "salvage" in result.err) == (1, False), finding


def test_salvage_tells_of_the_tier(run: Run, places: tuple[str, str, int], tmp_path: Path) -> None:
    store, tier, _ = places
    assert "remote tier" not in run("salvage", store, str(tmp_path / "all")).err  # the disk has all
    let_go(store, tier)
    result = run("salvage", store, str(tmp_path / "saved"))
    assert result.code == 0
    assert "the remote tier has earlier offsets (orders-0 below " in result.err
    assert "`kafkalog tier restore` restores it to a directory" in result.err
    for place in (tier, f"file://{tier}", "s3://bucket/prefix"):
        refused = run("salvage", place, str(tmp_path / "other"))
        assert (refused.code, "first restore partitions of the tier" in refused.err) == (2, True), refused.err


def test_report_tells_of_the_tier(run: Run, places: tuple[str, str, int]) -> None:
    store, tier, _ = places
    let_go(store, tier)
    assert "only the disk is read: the remote tier has earlier offsets" in run("report", store, "--json").err
    assert "only the disk" not in run("report", store, "--remote", tier, "--json").err
