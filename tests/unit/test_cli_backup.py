"""`kafkalog backup` and `kafkalog restore`: arguments, output and refusals."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import kafkalog
from tests.file_doubles import UnsyncedFiles
from tests.unit.cli_kit import Run, of_kafka, run
from tests.unit.store_kit import open_store

__all__ = ["run"]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    root = tmp_path / "shop"
    with open_store(root, files=UnsyncedFiles()) as store:
        for name in ("orders", "orders-old", "payments"):
            store.create_topic(name, 2).append_many([(b"%d" % number, b"%d" % number) for number in range(10)])
        with store.reader("billing", topics=["orders"]) as reader:
            reader.poll(5)
            reader.commit()
    return root


def partitions(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if path.is_dir())


def test_there_and_back(shop: Path, tmp_path: Path, run: Run) -> None:
    saved, again = tmp_path / "saved", tmp_path / "again"
    result = run("backup", shop, "--to", saved / "1")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("clean: 7 partitions, 7 segments, 3")
    assert f" in {saved / '1'} (" in result.out
    result = run("backup", shop, "--to", saved / "2", "--base", saved, "--json")
    (summary,) = map(json.loads, result.lines)
    assert (summary["base"], summary["partitions"], summary["findings"]) == (str(saved / "1"), 7, 0)
    assert summary["bytes"] == summary["copied"] + summary["cloned"] + summary["linked"] + summary["kept"]
    result = run("restore", saved / "2", again)
    assert result.code == 0
    assert "orders-0: would be restored: the log starts at 0 and ends at " in result.out
    assert "would be restored (--yes does it), lost: none" in result.lines[-1]
    assert not again.exists()
    result = run("restore", saved / "2", again, "--yes", "--progress")
    assert result.code == 0
    assert result.lines[-1].endswith("all checksums correct: restored, lost: none")
    assert "restored: " in result.err
    assert f"{shop} is restored as {again}" in result.err
    with kafkalog.open(again, read_only=True) as store:
        assert store.topics() == ["orders", "orders-old", "payments"]
        assert store.cursors()[0].name == "billing"
    assert run("verify", again, "--deep").code == 0


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        (["orders"], ["orders-0", "orders-1"]),
        (["orders-1", "payments-0"], ["orders-1", "payments-0"]),
        (["orders*"], ["orders-0", "orders-1", "orders-old-0", "orders-old-1"]),
        (["*-0"], ["orders-0", "orders-old-0", "payments-0"]),
    ],
)
def test_topics_partitions_and_patterns(
    shop: Path, tmp_path: Path, run: Run, asked: list[str], taken: list[str]
) -> None:
    result = run("backup", shop, *asked, "--to", tmp_path / "some")
    assert result.code == 0
    assert partitions(tmp_path / "some" / "log-dir-1") == taken
    assert "the backup has no cursors" in result.err
    run("backup", shop, "--to", tmp_path / "all")
    assert run("restore", tmp_path / "all", tmp_path / "again", *asked, "--yes").code == 0
    assert partitions(tmp_path / "again") == taken


def test_a_partition_or_topic_as_the_directory(shop: Path, tmp_path: Path, run: Run) -> None:
    assert run("backup", shop / "orders-1", "--to", tmp_path / "1").code == 0
    assert partitions(tmp_path / "1" / "log-dir-1") == ["orders-1"]
    assert run("backup", shop / "payments", "--to", tmp_path / "2").code == 0
    assert partitions(tmp_path / "2" / "log-dir-1") == ["payments-0", "payments-1"]


def test_several_directories(shop: Path, tmp_path: Path, run: Run) -> None:
    kafkalog.open_log(tmp_path / "other", "u-0").close()
    result = run("backup", shop, "--log-dir", tmp_path / "other", "--to", tmp_path / "saved")
    assert result.code == 0
    assert partitions(tmp_path / "saved" / "log-dir-2") == ["u-0"]
    result = run("restore", tmp_path / "saved", tmp_path / "again", "--yes")
    assert f"{tmp_path / 'other'} is restored as {tmp_path / 'again' / 'log-dir-2'}" in result.err
    result = run("backup", shop, "u", "--log-dir", tmp_path / "other", "--to", tmp_path / "one")
    assert partitions(tmp_path / "one" / "log-dir-2") == ["u-0"]


def test_what_real_kafka_left(tmp_path: Path, run: Run) -> None:
    logs = of_kafka("recover_torn_tail", tmp_path)
    result = run("backup", logs, "--to", tmp_path / "saved")
    assert result.code == 0, result.out
    assert run("restore", tmp_path / "saved", tmp_path / "again", "--yes").code == 0
    assert run("verify", tmp_path / "again", "--deep").code == 0


def test_damage_is_told(shop: Path, tmp_path: Path, run: Run) -> None:
    path = shop / "orders-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    result = run("backup", shop, "--to", tmp_path / "saved")
    assert result.code == 1
    assert result.lines[0].startswith(f"{path}: bytes 0 to ")
    assert result.lines[-1].startswith("1 finding: 7 partitions"), result.out
    assert "kafkalog salvage" in result.err
    result = run("restore", tmp_path / "saved", tmp_path / "again")
    assert result.code == 1
    assert f"damaged in the source: {path}: bytes 0 to " in result.out
    assert result.lines[-1].endswith("lost since the backup: none; earlier damage (1 finding above) is unchanged"), (
        result.out
    )
    result = run("backup", shop, "--to", tmp_path / "strict", "--strict")
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert str(path) in result.err
    assert sorted(os.listdir(tmp_path)) == ["saved", "shop"]


def test_refusals_are_one_line(shop: Path, tmp_path: Path, run: Run) -> None:
    run("backup", shop, "--to", tmp_path / "saved" / "1")
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").write_text("x")
    for argv, said in (
        (("backup", shop, "--to", shop / "in"), "inside the source"),
        (("backup", shop, "--to", full), "the directory is not empty"),
        (("backup", shop, "nothing", "--to", tmp_path / "2"), "no topic or partition 'nothing'"),
        (("backup", shop, "no*", "--to", tmp_path / "2"), "no topic or partition matches 'no*'"),
        (("backup", shop), "--to"),
        (("backup", tmp_path / "gone", "--to", tmp_path / "2"), "not found"),
        (("backup", shop, "--to", tmp_path / "2", "--base", tmp_path / "gone"), "the directory does not exist"),
        (("restore", tmp_path / "saved", tmp_path / "2"), f"the newest is {tmp_path / 'saved' / '1'}"),
        (("restore", full, tmp_path / "2"), "there is no manifest.json"),
        (("restore", tmp_path / "saved" / "1", full), "the directory is not empty"),
        (("restore", tmp_path / "saved" / "1", tmp_path / "2", "nothing"), "no topic or partition 'nothing'"),
    ):
        result = run(*argv)
        assert result.code == 2, argv
        assert said in result.err
        assert result.err.count("\n") == 1
    assert not (tmp_path / "2").exists()
    (log,) = (tmp_path / "saved" / "1" / "log-dir-1" / "orders-0").glob("*.log")
    log.write_bytes(log.read_bytes() + b"x")
    result = run("restore", tmp_path / "saved" / "1", tmp_path / "2", "--yes")
    assert result.code == 1
    assert str(log) in result.err
    assert not (tmp_path / "2").exists()
