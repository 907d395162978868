"""A directory or a disk is missing: a reader of whole topics gets an error, and never a silent part of them."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face.missing import missing_partitions
from kafkalog.errors import IllegalStateException, KafkaStorageException
from kafkalog.spark.followed import FollowedPartitions
from kafkalog.spark.options import parse_options
from kafkalog.spark.planning import plan
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

pytest.importorskip("pyarrow")
ROWS = 400


def every_topic(topic: str) -> bool:
    return True


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Four partitions, 400 records."""
    place = tmp_path / "store"
    with kafkalog.open(place) as made:
        made.create_topic("t", 4)
        made.create_topic("other", 1)
        for number in range(ROWS):
            made.topic("t").append(b"%d" % number, key=b"%d" % number, partition=number % 4)
    return place


@pytest.fixture(params=["last", "middle"])
def cut(store: Path, request: pytest.FixtureRequest) -> tuple[Path, int]:
    """Deletes one directory: of the last partition, which only the settings name, or of another one."""
    number = 3 if request.param == "last" else 1
    shutil.rmtree(store / f"t-{number}")
    return store, number


def options(path: object, **more: str) -> Any:
    given = {"path": str(path)} | ({} if "assign" in more or "subscribePattern" in more else {"subscribe": "t"})
    return parse_options({**given, **more})


def rows(path: object, **more: str) -> int:
    return sum(work.end_offset - work.start_offset for work in plan(options(path, **more)))


def test_nothing_is_missing_of_a_whole_store(store: Path) -> None:
    assert missing_partitions([str(store)], every_topic) == []
    assert rows(store) == ROWS


@pytest.mark.parametrize("chosen", [{}, {"subscribePattern": "t|x"}, {"latest": "true"}])
def test_a_spark_read_fails(cut: tuple[Path, int], chosen: dict[str, str]) -> None:
    path, number = cut
    with pytest.raises(IllegalStateException, match=f"topic t has 4 partitions, found no directory of t-{number}"):
        plan(options(path, **chosen))


def test_or_warns(cut: tuple[Path, int], caplog: pytest.LogCaptureFixture) -> None:
    path, number = cut
    with caplog.at_level(logging.WARNING, logger="kafkalog.spark"):
        assert rows(path, failOnDataLoss="false") == ROWS * 3 // 4
    assert f"found no directory of t-{number}" in caplog.text


def test_a_stream_fails_or_warns_once(cut: tuple[Path, int], caplog: pytest.LogCaptureFixture) -> None:
    path, number = cut
    with pytest.raises(IllegalStateException, match=f"found no directory of t-{number}"):
        FollowedPartitions(options(path)).look()
    followed = FollowedPartitions(options(path, failOnDataLoss="false"))
    with caplog.at_level(logging.WARNING, logger="kafkalog.spark"):
        for _ in range(3):
            assert len(followed.look()) == 3
    assert caplog.text.count(f"found no directory of t-{number}") == 1


def test_assign_reads_just_these(cut: tuple[Path, int]) -> None:
    assert rows(cut[0], assign='{"t":[0,2]}') == ROWS // 2


def test_other_topics_are_read(cut: tuple[Path, int]) -> None:
    plan(parse_options({"path": str(cut[0]), "subscribe": "other"}))


def test_a_topic_that_is_all_away_is_missing_of_a_pattern(store: Path) -> None:
    shutil.rmtree(store / "other-0")
    with pytest.raises(IllegalStateException, match="topic other has 1 partitions"):
        plan(options(store, subscribePattern=".*"))


def test_one_of_two_disks(tmp_path: Path) -> None:
    disks = [str(tmp_path / name) for name in ("one", "two")]
    with kafkalog.open(disks) as made:
        made.create_topic("t", 4)
        for number in range(ROWS):
            made.topic("t").append(b"%d" % number, partition=number % 4)
    assert rows(",".join(disks)) == ROWS
    for disk in disks:
        with pytest.raises(IllegalStateException, match="topic t has 4 partitions"):
            plan(options(disk))
    shutil.rmtree(disks[1])
    os.mkdir(disks[1])
    with pytest.raises(IllegalStateException, match="topic t has 4 partitions"):
        plan(options(",".join(disks)))


def test_a_deleted_topic_is_not_missing(store: Path) -> None:
    with kafkalog.open(store) as opened:
        opened.delete_topic("t")
    assert missing_partitions([str(store)], every_topic) == []


def test_a_hole_proves_nothing_in_the_directory_of_a_broker(
    cut: tuple[Path, int], caplog: pytest.LogCaptureFixture
) -> None:
    path, number = cut
    (path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=abc\n")
    (path / ".kafkalog_topics").unlink()
    with caplog.at_level(logging.WARNING, logger="kafkalog.spark"):
        assert rows(path) == ROWS * 3 // 4
    assert ("found no directory of t-1" in caplog.text) == (number == 1)


def test_one_partition_that_open_log_made_is_whole(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-5", config={"retention.ms": "-1"}) as log:
        log.append(b"x")
    assert rows(tmp_path) == 1


@pytest.mark.parametrize("command", ["export", "latest"])
def test_commands_fail(command: str, cut: tuple[Path, int], tmp_path: Path, run: Run) -> None:
    path, number = cut
    target = tmp_path / "out"
    for chosen in ((path,), (path, "t"), (path, "--topic", "t"), (path / "t",)):
        done = run(command, *chosen, "--to", target, "--as" if command == "latest" else "--format", "jsonl")
        assert done.code not in (0, 3), done.out
        assert f"found no directory of t-{number}" in done.err
        assert not target.exists()
    assert run(command, path, "t-0", "t-2", "other", "--to", target).code == 0
    assert run(command, path / "t-0", "--to", tmp_path / "another").code == 0


def test_an_export_goes_on_where_it_is_told_to(cut: tuple[Path, int], tmp_path: Path, run: Run) -> None:
    path, number = cut
    done = run("export", path, "t", "--to", tmp_path / "out", "--skip-damage")
    assert done.code == 1
    assert f"found no directory of t-{number}" in done.err
    assert f"{ROWS * 3 // 4} records" in done.out


def test_a_read_only_store_refuses_as_well(cut: tuple[Path, int]) -> None:
    path, number = cut
    with (
        kafkalog.open(path, read_only=True) as store,
        pytest.raises(KafkaStorageException, match=f"t-{number} has no directory"),
        store.reader(topics=["t"]) as reader,
    ):
        list(reader)


def test_verify_says_clean_but_for_what_is_missing(cut: tuple[Path, int], run: Run) -> None:
    path, number = cut
    done = run("verify", path)
    assert f"found no directory of t-{number}" in done.err
    assert done.out.splitlines()[-1].startswith("clean, except for what is missing: 4 partitions, ")
    assert json.loads(run("verify", path, "--json").out.splitlines()[-1])["missing"] == [f"t-{number}"]
    assert run("verify", path, "other").out.startswith("clean: 1 partition, ")


def test_verify_takes_several_disks(tmp_path: Path, run: Run) -> None:
    disks = [tmp_path / name for name in ("one", "two")]
    with kafkalog.open(disks) as made:
        made.create_topic("t", 4)
        for number in range(ROWS):
            made.topic("t").append(b"%d" % number, partition=number % 4)
    for one, other in (disks, disks[::-1]):
        assert "clean, except for what is missing: 2 partitions" in run("verify", one).out
        done = run("verify", one, "--log-dir", other)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("clean: 4 partitions, ")
        (name,) = [each.name for each in other.iterdir() if each.name in ("t-0", "t-1")][:1]
        done = run("verify", one, name, "--log-dir", other)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("clean: 1 partition, ")
    assert run("verify", disks[0], "nobody", "--log-dir", disks[1]).code != 0
    folder = next(each for each in disks[1].iterdir() if each.name.startswith("t-"))
    log = folder / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    done = run("verify", disks[0], "--log-dir", disks[1])
    assert done.code == 1
    assert f"next: kafkalog salvage {disks[1]} NEW_DIR {folder.name}" in done.err
    assert done.err.count("next:") == 1
