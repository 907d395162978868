"""`kafkalog tier`, and the commands that read a bucket or both tiers, as a user types them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import click
import pytest

import kafkalog
from kafkalog.cli.remote_places import ReadPath, storages_of
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalArgumentException, UnknownTopicOrPartitionException
from kafkalog.spark.options import parse_options
from kafkalog.spark.planning import plan
from kafkalog.toolbox import tiering
from tests.unit.cli_kit import Run, run
from tests.unit.tier_kit import RECORDS, tiered

__all__ = ["run"]


@pytest.fixture
def places(tmp_path: Path) -> tuple[str, str, int]:
    """(a store's directory, the directory of its tier as an address, the number of segments there)."""
    url = f"memory://{tmp_path.name}/tier"
    return str(tmp_path / "store"), url, tiered(tmp_path / "store", url)


def objects(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.lines]


def test_list(run: Run, places: tuple[str, str, int]) -> None:
    store, url, copied = places
    rows = objects(run("tier", "list", url, "--json"))
    assert len(rows) == copied
    assert {(row["topic"], row["partition"], row["where"], row["whole"]) for row in rows} == {
        ("orders", 0, "remote", True)
    }
    both = objects(run("tier", "list", store, "--remote", url, "--json"))
    assert [row["where"] for row in both] == ["both"] * copied + ["local"] * (len(both) - copied)
    assert {row["state"] for row in both[:copied]} == {"COPY_SEGMENT_FINISHED"}
    assert [row["firstOffset"] for row in both] == sorted(row["firstOffset"] for row in both)
    shown = run("tier", "list", store, "--remote", url)
    assert shown.lines[0].split()[:3] == ["PARTITION", "FIRST", "LAST"]
    assert len(shown.lines) == len(both) + 1


def test_a_directory_without_its_tier(run: Run, places: tuple[str, str, int]) -> None:
    result = run("tier", "list", places[0])
    assert result.code == 2
    assert "--remote" in result.err


def test_copy_tells_and_does(run: Run, places: tuple[str, str, int]) -> None:
    store, url, copied = places
    (told, summary) = objects(run("tier", "copy", store, "--remote", url, "--json"))
    assert summary == {"kind": "summary", "segments": told["segments"], "copied": 0, "done": False}
    assert (told["topic"], told["done"], told["copied"]) == ("orders", False, 0)
    assert told["segments"] > 0
    assert len(objects(run("tier", "list", url, "--json"))) == copied
    (done, summary) = objects(run("tier", "copy", store, "--remote", url, "--json", "--yes"))
    assert summary == {"kind": "summary", "segments": told["segments"], "copied": told["segments"], "done": True}
    assert (done["copied"], done["done"]) == (told["segments"], True)
    assert len(objects(run("tier", "list", url, "--json"))) == copied + told["segments"]
    result = run("tier", "copy", store, "--remote", url)
    assert (result.code, result.out) == (0, "")
    assert "nothing to copy" in result.err
    (nothing,) = objects(run("tier", "copy", store, "--remote", url, "--json"))
    assert nothing == {"kind": "summary", "segments": 0, "copied": 0, "done": False}


def test_restore_gives_the_same_bytes(run: Run, places: tuple[str, str, int], tmp_path: Path) -> None:
    store, url, copied = places
    target = tmp_path / "restored"
    assert "nothing was restored" in run("tier", "restore", url, str(target)).err
    assert not target.exists()
    assert run("tier", "restore", url, str(target), "orders", "--yes").code == 0
    logs = sorted(path.name for path in (target / "orders-0").glob("*.log"))
    assert len(logs) == copied
    for name in logs:
        for suffix in (".log", ".index", ".timeindex"):
            file = Path(name).with_suffix(suffix).name
            assert (target / "orders-0" / file).read_bytes() == Path(store, "orders-0", file).read_bytes(), file
    assert run("verify", str(target)).code == 0
    with kafkalog.open(target) as restored:
        partition = restored.topic("orders").partition(0)
        values = [record.value for record in partition]
        assert values == [b"value %d " % n + b"." * 100 for n in range(len(values))]
        assert partition.append(b"goes on") == len(values)
    again = run("tier", "restore", url, str(target), "--yes")
    assert again.code == 2
    assert "the partition exists already" in again.err
    assert run("tier", "restore", url, str(target)).code == 2  # it tells before it is done, too
    assert run("tier", "restore", url, str(target), "nobody", "--yes").code == 2
    (file := tmp_path / "file").write_bytes(b"")
    assert "found a file" in run("tier", "restore", url, str(file)).err
    partition, summary = objects(run("tier", "restore", url, str(tmp_path / "other"), "--json"))
    assert summary["bytes"] == partition["bytes"] > 0
    assert (summary["partitions"], summary["done"]) == (1, False)


def test_orphans_are_found_and_go(run: Run, tmp_path: Path) -> None:
    store, tier = tmp_path / "store", tmp_path / "tier"
    copied = tiered(store, tier)
    assert (run("tier", "orphans", str(store)).code, run("tier", "orphans", str(tier)).code) == (2, 0)
    log = min(tier.rglob("*.log"))
    log.unlink()
    url = f"file://{tier}"
    found = run("tier", "orphans", url, "--json")
    assert found.code == 1
    (orphan, summary) = objects(found)
    assert summary == {"kind": "summary", "orphans": 1, "deletedObjects": 0, "done": False}
    assert all(f"  {key}" in run("tier", "orphans", url).lines for key in orphan["objects"])
    assert (orphan["kind"], orphan["topic"], orphan["firstOffset"]) == ("orphan", "orders", 0)
    before = sorted(path for path in tier.rglob("*") if path.is_file())
    assert run("tier", "orphans", url, "--yes").code == 1  # they are young: an upload may be under way
    assert sorted(path for path in tier.rglob("*") if path.is_file()) == before
    for path in before:
        os.utime(path, (1, 1))
    assert run("tier", "orphans", url, "--yes").code == 1
    assert run("tier", "orphans", url).code == 0
    (nothing,) = objects(run("tier", "orphans", url, "--json"))
    assert nothing == {"kind": "summary", "orphans": 0, "deletedObjects": 0, "done": False}
    assert len(objects(run("tier", "list", url, "--json"))) == copied - 1


def test_whole_segments_of_another_store_stay(run: Run, tmp_path: Path) -> None:
    """A backup of a directory knows the tier at its time: newer segments belong to the other store."""
    store, tier, backup = tmp_path / "store", tmp_path / "tier", tmp_path / "backup"
    copied = tiered(store, tier)
    shutil.copytree(store, backup)
    assert run("tier", "copy", str(store), "--remote", str(tier), "--yes").code == 0
    before = sorted(path for path in tier.rglob("*") if path.is_file())
    for path in before:
        os.utime(path, (1, 1))
    orphans = ("tier", "orphans", str(backup), "--remote", str(tier))
    *found, _ = objects(run(*orphans, "--json"))
    assert found
    assert {(each["whole"], each["reason"]) for each in found} == {
        (True, "the metadata does not know it, but it is a complete segment, which may be another store's")
    }
    told = run(*orphans, "--yes")
    assert (told.code, sorted(path for path in tier.rglob("*") if path.is_file())) == (1, before)
    assert f"{len(found)} complete segments that another store may use" in told.err
    assert run(*orphans, "--yes", "--older-than", "-1").code == 2
    assert run(*orphans, "--yes", "--whole").code == 1
    assert len(list(tier.rglob("*.log"))) == copied


def test_a_storage_that_fails_is_no_usage_error(run: Run, places: tuple[str, str, int], monkeypatch: Any) -> None:
    from kafkalog.engine.remote.objects import Objects

    def away(*_: Any, **__: Any) -> Any:
        raise ConnectionResetError("away")

    monkeypatch.setattr(Objects, "_asked", away)
    for line in (["list", places[1]], ["copy", places[0], "--remote", places[1], "--yes"]):
        result = run("tier", *line)
        assert (result.code, "tried 2 times" in result.err) == (3, True), result.err


def test_verify_names_what_is_damaged(run: Run, tmp_path: Path) -> None:
    store, tier = tmp_path / "store", tmp_path / "tier"
    tiered(store, tier)
    assert run("tier", "verify", f"file://{tier}", "--deep").code == 0
    log = min(tier.rglob("*.log"))
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    result = run("tier", "verify", f"file://{tier}")
    assert result.code == 1
    assert "orders-0" in result.out
    assert "crc" in result.out.lower()
    assert f"its object is {log}" in result.out
    next(log.parent.glob("*10-*.snapshot")).unlink()
    result = run("tier", "verify", str(tier), "--json")
    *told, summary = objects(result)
    findings = [each for each in told if each["kind"] == "finding"]
    assert (summary["ok"], summary["findings"]) == (False, len(findings))
    (upload,) = [each for each in findings if "upload of orders-0" in each["what"]]
    assert Path(upload["path"]).exists()
    assert ".snapshot" in upload["what"]
    assert run("tier", "verify", str(store)).code == 2


def moved_away(store: str, count: int) -> None:
    """Retention on the disk took what the tier has."""
    bases = sorted(Path(store, "orders-0").glob("*.log"))[:count]
    for log in bases:
        for suffix in (".log", ".index", ".timeindex", ".txnindex"):
            log.with_suffix(suffix).unlink(missing_ok=True)


@pytest.mark.parametrize(
    "line",
    [
        "cat {} orders --json",
        "latest {} orders --json",
        "history KEY {} orders --json",
        "topics {} --json",
        "describe {} --json",
        "verify {} --json",
        "transactions {} --json",
    ],
)
def test_both_tiers_read_as_one(run: Run, places: tuple[str, str, int], tmp_path: Path, line: str) -> None:
    """With the first segments only in the tier, the commands print the same as before."""
    store, url, copied = places
    argv = ["key 3" if word == "KEY" else word for word in line.split()]
    whole = shutil.copytree(store, tmp_path / "whole" / "store")
    expected = run(*(each.format(whole) for each in argv))
    assert expected.code == 0
    moved_away(store, copied)
    found = run(*(each.format(store) for each in argv), "--remote", url)
    assert found.code == 0, found.err
    assert found.out.replace(store, str(whole)) == expected.out


@pytest.fixture
def partly(tmp_path: Path) -> tuple[str, str, int]:
    """(a store's directory, its tier's directory, the local log's start after the copied segments were deleted)."""
    tier = tmp_path / "tier"
    tiered(tmp_path / "store", tier, settings={"local.retention.bytes": "1"})
    with kafkalog.open(tmp_path / "store", remote=str(tier), maintenance=False) as store:
        store.remote_log_manager.run_once()
        partition = store.topic("orders").partition(0)
        assert partition.delete_old_segments() > 1
    first = min(int(path.stem) for path in (tmp_path / "store" / "orders-0").glob("*.log"))
    assert first > 0
    return str(tmp_path / "store"), str(tier), first


@pytest.mark.parametrize(
    "line",
    ["cat {} orders", "cat {}/orders-0", "history x {} orders", "latest {} orders", "topics {}", "describe {}",
     "export {} orders --to {}.csv"],
)  # fmt: skip
def test_a_tiered_directory_read_without_its_tier_is_noted(run: Run, partly: tuple[str, str, int], line: str) -> None:
    store, tier, first = partly
    result = run(*(part.format(store) for part in line.split()))
    assert result.err.count(f"(orders-0 below {first}); --remote reads it too") == 1, result.err
    assert "--remote" not in run(*(part.format(store) for part in line.split()), "--remote", tier).err


def test_nothing_is_noted_where_the_disk_has_all(run: Run, places: tuple[str, str, int]) -> None:
    assert run("cat", places[0], "orders").err == ""


def test_a_partitions_own_folder_goes_on_in_the_tier(run: Run, partly: tuple[str, str, int]) -> None:
    store, tier, _ = partly
    for place in (f"{store}/orders-0", f"{store}/orders"):
        result = run("cat", place, "--remote", tier, "-f", "%o ")
        assert (result.code, result.out.split()[0], len(result.out.split())) == (0, "0", RECORDS + 30), result.err
    assert run("explain", f"{store}/orders-0", "--remote", tier).lines[0].startswith("orders-0: log start 0,")


def test_delete_records_leaves_a_tiered_partition_alone(run: Run, partly: tuple[str, str, int]) -> None:
    store, _, first = partly
    for more in ((), ("--yes",)):
        result = run("delete-records", f"{store}/orders-0", "--before", first + 2, *more)
        assert (result.code, "orders-0 is tiered" in result.err) == (2, True), result.err
        assert ".partition(0).delete_records(" in result.err
    with kafkalog.open(store, read_only=True) as view:
        assert view.topic("orders").partition(0).log_start_offset == first


def test_explain_tells_what_the_disk_of_a_tiered_partition_keeps(run: Run, partly: tuple[str, str, int]) -> None:
    store, _, first = partly
    result = run("explain", f"{store}/orders-0", "-X", "local.retention.bytes=100000", "-X", "retention.bytes=1000000")
    assert f"tiered: offsets below {first} may be in the remote tier" in result.out
    assert "local.retention.bytes=100000 (given)" in result.out
    assert "local.retention.bytes keeps 100000" in result.out
    assert "delete-records" not in result.out
    result = run("explain", f"{store}/orders-0", "-X", "local.retention.ms=1", "-X", "retention.ms=-1")
    assert "will be deleted by the next pass after it was copied: older than local.retention.ms" in result.out
    result = run("explain", f"{store}/orders-0", "-X", "remote.log.copy.disable=true", "-X", "retention.bytes=1000000")
    assert "tiered: offsets below" in result.out
    assert "  size: without it" in result.out
    assert " retention.bytes keeps 1000000" in result.out


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of which bytes were requested."""
    from kafkalog.engine.remote.objects import Objects

    keys: list[str] = []
    get = Objects.get

    def noted(self: Objects, key: str, *args: Any, **how: Any) -> bytes:
        keys.append(key)
        return get(self, key, *args, **how)

    monkeypatch.setattr(Objects, "get", noted)
    return keys


@pytest.mark.parametrize(("line", "segments"), [("cat {} orders --last 1", 1), ("topics {}", 2), ("describe {}", 1)])
def test_a_bucket_is_asked_for_few_segments(
    run: Run, places: tuple[str, str, int], asked: list[str], line: str, segments: int
) -> None:
    """For the end of each, and for what some have."""
    _, url, copied = places
    asked.clear()
    assert run(*(part.format(url) for part in line.split())).code == 0
    assert copied > 4
    assert len([key for key in asked if key.endswith(".log")]) == copied + segments, asked


def test_the_layout_is_asked_for_once(run: Run, places: tuple[str, str, int], asked: list[str]) -> None:
    """The newest record is on the disk."""
    asked.clear()
    assert run("cat", places[0], "orders", "--remote", places[1], "--last", 1).code == 0
    assert len([key for key in asked if key.endswith(".log")]) == 1, asked


def test_a_bucket_tells_when_it_was_written(run: Run, places: tuple[str, str, int]) -> None:
    """The layout's names say no time: the last entry of the time index does, and nobody says it is from 1970."""
    [line] = [line for line in run("describe", places[1]).lines if line.startswith("orders-0 ")]
    assert 1000 < int(line.split()[-1][20:23]) + 1000 * int(line.split()[-1][17:19]) < 1000 + RECORDS
    assert not [line for line in run("du", places[1]).lines if line.startswith("older")]
    assert [line for line in run("du", places[1]).lines if line.startswith("unknown ")]


def test_what_the_storage_refuses_has_its_own_advice(run: Run, places: tuple[str, str, int], monkeypatch: Any) -> None:
    from kafkalog.engine.remote.objects import Objects

    def refused(*_: Any, **__: Any) -> Any:
        raise PermissionError("The key that you gave is not known.")

    monkeypatch.setattr(Objects, "_asked", refused)
    result = run("topics", places[1])
    assert result.code == 3
    assert result.err.count("The key that you gave is not known.") == 1, result.err
    assert "check the credentials" in result.err
    assert "owns the log directory" not in result.err


def test_a_tier_behind_a_prefix_is_named(run: Run, tmp_path: Path) -> None:
    name = f"memory://{tmp_path.name}/behind"
    tiered(tmp_path / "store", kafkalog.RemoteStorage(name, layout="aiven", prefix="cluster-7/"))
    result = run("topics", name)
    assert result.code == 2
    assert "cluster-7" in result.err, result.err
    assert "key.prefix" in result.err
    assert run("topics", name, "--prefix", "cluster-7/").code == 0


def test_a_folder_with_a_tier_behind_a_prefix_is_taken_for_a_log_directory(run: Run, tmp_path: Path) -> None:
    place = str(tmp_path / "tier")
    tiered(tmp_path / "store", kafkalog.RemoteStorage(place, layout="aiven", prefix="cluster-7/"))
    for command in ("topics", "describe", "verify", "cat", "latest"):
        told = run(command, place, *(["orders"] if command in ("cat", "latest") else []))
        assert "--prefix" in told.out + told.err, command
    with pytest.raises(UnknownTopicOrPartitionException, match=r"remote\.prefix"):
        plan(parse_options({"path": place, "subscribe": "orders"}))


def test_keys_that_are_missing_are_asked_for_as_an_option(run: Run) -> None:
    encrypted = Path(__file__).parents[1] / "golden" / "tiered" / "aiven" / "encrypted"
    line = ("cat", encrypted, "orders-0", "--prefix", "pre/")
    result = run(*line)
    assert result.code == 3, result.err
    assert "--key-pair" in result.err
    keys = encrypted.parent
    wrong = run(*line, "--key-pair", f"other:{keys}/public.pem:{keys}/private.pem")
    assert wrong.code == 3
    assert "with --key-pair" in wrong.err


def test_export_of_a_bucket(run: Run, places: tuple[str, str, int], tmp_path: Path) -> None:
    _, url, _ = places
    pytest.importorskip("pyarrow")
    assert run("export", url, "orders", "--to", str(tmp_path / "out.jsonl")).code == 0
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert 0 < len(lines) < RECORDS
    assert len(run("cat", url, "orders", "--json").lines) == len(lines)


def test_du_and_topics_of_a_bucket(run: Run, places: tuple[str, str, int]) -> None:
    _, url, _ = places
    (topic,) = [each for each in objects(run("topics", url, "--json")) if each.get("topic") == "orders"]
    assert topic["partitions"] == [0]
    assert run("du", url).code == 0
    assert run("describe", url, "orders", "--segments").code == 0


def test_du_counts_blocks_of_what_the_disk_has(run: Run, partly: tuple[str, str, int]) -> None:
    store, url, _ = partly

    def summed(*place: str) -> dict[str, Any]:
        return {row.get("name", "all"): row for row in objects(run("du", *place, "--json"))}

    alone, both = summed(store), summed(store, "--remote", url)
    for name in ("checkpoints", "folders"):
        assert both[name]["allocated"] == alone[name]["allocated"], name
    tier = both["logs"]["size"] - alone["logs"]["size"]
    assert both["logs"]["allocated"] == alone["logs"]["allocated"] + tier
    assert tier > 0


@pytest.mark.parametrize("url", ["memory://nothing/here", "file:///nothing/here/at/all"])
def test_an_empty_place_is_no_tier(run: Run, url: str) -> None:
    result = run("tier", "list", url)
    assert result.code == 2
    assert url.removeprefix("file://") in result.err
    assert run("cat", url, "orders").code == 2


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with tiers in directories: of both layouts, and of one with a key prefix."""
    place = tmp_path_factory.mktemp("folders")
    for name, settings in TIERS.items():
        tiered(place / f"store of {name}", kafkalog.RemoteStorage(place / name, **settings))
    return place


TIERS: dict[str, dict[str, Any]] = {
    "tier": {},
    "aiven": {"layout": "aiven"},
    "prefixed": {"prefix": "cluster-1/"},
}


@pytest.mark.parametrize("name", TIERS)
@pytest.mark.parametrize("typed", ["{}", "{}/", "./{}", "{}/orders", "{}/orders-0/", "file://{here}/{}"])
def test_a_tier_in_a_folder_is_read_as_its_address(
    run: Run, folders: Path, monkeypatch: pytest.MonkeyPatch, name: str, typed: str
) -> None:
    monkeypatch.chdir(folders)
    given = [typed.format(name, here=folders), *(["--prefix", "cluster-1/"] if name == "prefixed" else [])]
    said = run("cat", *given, *([] if "orders" in typed else ["orders"]), "--last", "1", "-f", "%o\\n")
    assert (said.code, said.out) == (0, "49\n"), said.err
    if "orders" not in typed:
        assert [row["topic"] for row in objects(run("topics", *given, "--json")) if "topic" in row] == ["orders"]
        assert run("tier", "list", *given).code == 0


def test_a_folder_that_is_a_tier_opens(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folders)
    for place in ("tier", folders / "tier", f"file://{folders}/tier", Path("aiven")):
        with kafkalog.open(place, read_only=True) as bucket:
            assert bucket.topics() == ["orders"]
    for neither in ("prefixed", "."):
        with pytest.raises(IllegalArgumentException, match=r"expected a log directory.*RemoteStorage\(path"):
            kafkalog.open(neither, read_only=True)
    with pytest.raises(IllegalArgumentException, match="found kafka-tiered-storage"):
        kafkalog.open("tier")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cat {store} --layout aiven", "--layout: found no remote tier here"),
        ("topics {store} --prefix a/ --key-pair a:b:c --remote-option a=b", "--remote-option --prefix --key-pair: "),
        ("verify {tier}/orders-0 --layout aiven", "in the layout that --layout names"),
        ("verify {aiven}/orders-0 --layout local-tiered", "in the layout that --layout names"),
        ("cat file://{tier} --remote {aiven} --last 1", None),
        ("cat memory://{here}/tier --remote {aiven}", "found no segments"),
        ("tier list {prefixed}", "--prefix"),
        ("tier list {store}", "--remote"),
        ("tier list {here}/nosuch", "not found"),
        ("tier list {here}/nosuch --remote {tier}", "not found"),
        ("tier list memory://x --remote {tier}", "and memory://x"),
        ("tier list {store} --remote {here}/nosuch", "found no segments"),
        ("tier copy {here}/nosuch --remote {tier}", "nosuch: not found, expected a Kafka log directory"),
        ("tier copy {aiven} --remote {tier}", "found a remote tier, expected a log directory"),
        ("tier restore {store} {here}/target", "found no remote tier, expected one"),
        ("tier restore {here}/nosuch {here}/target", "nosuch: not found, expected a remote tier"),
    ],
)
def test_options_of_a_tier_that_is_not_there(run: Run, folders: Path, line: str, said: str | None) -> None:
    places = {"here": folders, "store": "STORE", **{name: folders / name for name in TIERS}}
    words = [str(folders / "store of tier") if word == "STORE" else word for word in line.format(**places).split()]
    result = run(*words)
    if said is None:
        assert result.code == 0, result.err
    else:
        assert result.code == 2
        assert said in result.err


def test_a_bucket_has_no_tier_beside_it(run: Run, places: tuple[str, str, int]) -> None:
    result = run("cat", places[1], "--remote", places[1])
    assert result.code == 2
    assert "--remote: found" in result.err


def test_a_topic_that_is_not_there(run: Run, places: tuple[str, str, int], tmp_path: Path) -> None:
    store, url, copied = places
    for line in (["list", url], ["list", store, "--remote", url], ["restore", url, str(tmp_path / "new")]):
        result = run("tier", *line, "oders")
        assert (result.code, result.out) == (2, "")
        assert "'oders'" in result.err
        assert "did you mean orders" in result.err
    assert len(run("tier", "list", url, "orders-0").lines) == copied + 1
    assert run("tier", "list", store, "orders-1", "--remote", url).code == 2


def test_an_upload_that_is_there_twice_has_the_range_of_both(run: Run, folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "tier", tmp_path / "tier")
    for path in list((tmp_path / "tier").rglob(f"{10:020}-*")):
        suffix = path.name.partition(".")[2]
        shutil.copy(path, path.with_name(f"{10:020}-{'B' * 22}.{suffix}"))
    rows = objects(run("tier", "list", str(tmp_path / "tier"), "--json"))
    assert [(row["firstOffset"], row["lastOffset"]) for row in rows if row["firstOffset"] <= 20] == [
        (0, 9), (10, 19), (10, 19), (20, 29),
    ]  # fmt: skip


def test_an_empty_range_is_called_empty(run: Run, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = tiering.TierSegment(TopicPartition("orders", 0), 6, 5, 0, "local", None, None, True)
    monkeypatch.setattr(tiering, "tier_segments", lambda *_: [row])
    assert run("tier", "list", str(folders / "tier")).lines[1].split()[:3] == ["orders-0", "6", "empty"]
    (shown,) = objects(run("tier", "list", str(folders / "tier"), "--json"))
    assert shown["lastOffset"] is None


def test_a_key_that_is_missing_is_told_once(run: Run, folders: Path) -> None:
    result = run("tier", "list", folders / "aiven", "--key-pair", f"k:{folders}/none.pem:{folders}/none.pem")
    assert result.code == 3
    assert result.err.count("No such file") == result.err.count("none.pem") == 1


def test_of_several_key_pairs_the_first_encrypts(run: Run, folders: Path) -> None:
    keys = Path(__file__).parents[1] / "golden" / "tiered" / "aiven"
    pairs = [word for name in "ab" for word in ("--key-pair", f"{name}:{keys}/public.pem:{keys}/private.pem")]
    assert run("tier", "list", folders / "aiven", *pairs).code == 0


def test_dump_shows_the_events_of_segments(run: Run, places: tuple[str, str, int]) -> None:
    store, _, copied = places
    logs = [path for path in Path(store).glob("__remote_log_metadata-*/*.log") if path.stat().st_size]
    lines = run("dump", "--remote-log-metadata-decoder", "--skip-record-metadata", *logs).lines
    events = [line.partition("{")[0] for line in lines if line.startswith("| payload: ")]
    assert events == ["| payload: RemoteLogSegmentMetadata", "| payload: RemoteLogSegmentMetadataUpdate"] * copied
    shown = [
        each for each in objects(run("dump", "--remote-log-metadata-decoder", "--json", *logs)) if "payload" in each
    ]
    assert {each["payload"]["type"] for each in shown} == {
        "RemoteLogSegmentMetadataRecord", "RemoteLogSegmentMetadataUpdateRecord",
    }  # fmt: skip


def test_help_says_in_a_line_what_each_does(run: Run) -> None:
    lines = run("tier", "--help").lines
    listed = lines[lines.index("Commands:") + 1 : lines.index("  For example:")]
    assert {line.split()[0] for line in listed if line.startswith("  ") and line[2] != " "} == {
        "copy", "list", "orphans", "restore", "verify",
    }  # fmt: skip
    assert not [line for line in listed if line.endswith("...")]


def test_a_topic_that_is_there_twice_is_chosen_by_its_id(run: Run, tmp_path: Path) -> None:
    for name in ("first", "second"):
        tiered(tmp_path / name, tmp_path / "tier")
    refused = run("cat", tmp_path / "tier", "orders", "--last", "1")
    assert refused.code == 2
    assert "--topic-id orders=" in refused.err
    folders = [path.name for path in (tmp_path / "tier" / "kafka-tiered-storage").iterdir()]
    for name in folders:
        chosen = f"orders={name.removeprefix('orders-0-')}"
        assert run("cat", tmp_path / "tier", "orders", "--last", "1", "--topic-id", chosen).code == 0
    for wrong in ("orders", "orders=short"):
        assert run("cat", tmp_path / "tier", "orders", "--topic-id", wrong).code == 2
    assert "--topic-id" in run("cat", tmp_path / "first", "orders", "--topic-id", chosen).err


def test_other_processes_are_told_of_a_tier_in_a_folder(folders: Path) -> None:
    """Spark's executors mount it for themselves."""
    with click.Context(click.Command("verify")) as context:
        places = [ReadPath().convert(str(folders / name), None, context) for name in ("tier", "store of tier")]
        found, remote = storages_of(places)
    assert [type(each) for each in found] == [kafkalog.RemoteStorage, str]
    assert remote is None


def test_a_folder_after_a_topic_was_deleted(run: Run, tmp_path: Path) -> None:
    """Folders that held its objects may be gone, or empty."""
    store, tier = str(tmp_path / "store"), tmp_path / "tier"
    copied = tiered(tmp_path / "store", tier)
    tiered(tmp_path / "other", tier, topic="gone")
    with kafkalog.open(tmp_path / "other", remote=tier, maintenance=False) as other:
        other.delete_topic("gone")
    (tier / "kafka-tiered-storage" / f"left-0-{'A' * 22}").mkdir()
    assert len(objects(run("tier", "list", str(tier), "--json"))) == copied
    assert len(objects(run("tier", "list", store, "--remote", str(tier), "--json"))) > copied
    assert run("tier", "copy", store, "--remote", str(tier), "--yes").code == 0
    assert run("tier", "verify", str(tier)).code == 0


@pytest.mark.parametrize("lead", ["", "file://"])
def test_a_folder_in_aivens_layout_needs_no_name_of_it(run: Run, tmp_path: Path, lead: str) -> None:
    copied = tiered(tmp_path / "store", kafkalog.RemoteStorage(tmp_path / "tier", layout="aiven"))
    assert len(objects(run("tier", "list", f"{lead}{tmp_path}/tier", "--json"))) == copied
    assert run("topics", f"{lead}{tmp_path}/tier").code == 0
