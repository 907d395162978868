"""Directories that belong to something else: every function that writes refuses them, and changes nothing there."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.files import ManualClock, ManualScheduler
from kafkalog.engine.format.names import TopicPartition, is_partitions_file
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.errors import IllegalArgumentException
from kafkalog.spark.committing import look_at_topics
from kafkalog.spark.jobs.shared import SharedDirectory
from kafkalog.spark.write_options import SinkOptions
from kafkalog.toolbox.folders import folders_of
from tests.conformance.kafkas_manager import KafkasManager
from tests.file_doubles import UnsyncedFiles
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

FAST = UnsyncedFiles()
NOW_MS = 1_700_000_000_000
HEX = "0123456789abcdef0123456789abcdef"


def fill(root: Path, *there: str) -> None:
    for name in there:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.write_text("theirs")


def content(root: Path) -> dict[str, bytes | None]:
    return {str(each.relative_to(root)): None if each.is_dir() else each.read_bytes() for each in root.rglob("*")}


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """Like an /etc: three directories are named like partitions."""
    root = tmp_path / "etc"
    fill(
        root, "dbus-1/session.conf", "polkit-1/rules.d/50.rules", "python-3/debian_config", "passwd", ".lock", "opt-7/"
    )
    return root


def opened(root: Path) -> None:
    with kafkalog.open(root) as store:
        store.create_topic("t")


DOORS: dict[str, Callable[[Path], object]] = {
    "open": opened,
    "open of several": lambda root: kafkalog.open([root.parent / "new", root]),
    "cursors": lambda root: kafkalog.open(root, read_only=True, cursors=root),
    "open_log": lambda root: kafkalog.open_log(root, "t-0"),
    "open_log of theirs": lambda root: kafkalog.open_log(root, "dbus-1"),
    "LogManager": lambda root: LogManager([root.parent / "new", root]),
    "Spark's sink": lambda root: look_at_topics(SinkOptions((str(root),), str(root), creates_topics=True)),
    "jobs": lambda root: SharedDirectory(str(root), create=True).__enter__(),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_foreign_directory_is_refused(etc: Path, door: str) -> None:
    before = content(etc.parent)
    with pytest.raises(IllegalArgumentException) as refused:
        DOORS[door](etc)
    if door != "cursors":
        assert "dbus-1" in str(refused.value)
        assert "expected a log directory" in str(refused.value)
    assert content(etc.parent) == before


@pytest.mark.parametrize(
    "command",
    [
        "append {etc} t-0 --create", "append {etc} dbus-1", "append {etc} dbus-1 --create", "recover {etc} --yes",
        "recover {etc} dbus-1 --yes", "reindex {etc} --yes", "reindex {etc} dbus-1 --yes",
        "retain {etc}/dbus-1 -X retention.ms=1 --yes", "compact {etc}/dbus-1 -X cleanup.policy=compact --yes",
        "delete-records {etc}/dbus-1 --before 0 --yes", "move {etc}/dbus-1 {new} --yes", "move {logs}/t-0 {etc} --yes",
        "checkpoint set {etc}/recovery-point-offset-checkpoint dbus-1 0 --yes --force",
    ],
)  # fmt: skip
def test_commands_that_write_refuse_it(etc: Path, tmp_path: Path, run: Run, command: str) -> None:
    (tmp_path / "new").mkdir()
    with kafkalog.open_log(tmp_path / "logs", "t-0") as log:
        log.append(b"x")
    before = content(etc), content(tmp_path / "logs" / "t-0"), content(tmp_path / "new")
    places = {"etc": etc, "new": tmp_path / "new", "logs": tmp_path / "logs"}
    result = run(*(each.format(**places) for each in command.split()), stdin=b"x\n")
    assert result.code in (1, 2, 3), result.err
    assert (content(etc), content(tmp_path / "logs" / "t-0"), content(tmp_path / "new")) == before


SEGMENT = "00000000000000000000.log"


@pytest.mark.parametrize(
    "there",
    [
        [], [".lock"], [".lock", "t-0/"], [".lock", "t-0/", "u-1/", "lost+found/"], ["lost+found/"],
        [".kafkalog_topics.tmp", "x"], ["recovery-point-offset-checkpoint.tmp", "x"],
        ["cleaner-offset-checkpoint", "x"],
        ["x", f"u-0/{SEGMENT}"], ["x", "u-0/partition.metadata.tmp"], ["x", f"u-0.{HEX}-delete/{SEGMENT}.deleted"],
        ["x", f"u-0.{HEX}-stray/00000000000000000007.snapshot"], [".kafkalog_staged.1.given-up", ".lock"],
        ["x", f"__cluster_metadata-0/{SEGMENT}", "y/"], ["x", "remote-log-index-cache/", "meta.properties"],
    ],
)  # fmt: skip
def test_what_kafka_or_a_crash_left_is_a_log_directory(tmp_path: Path, there: list[str]) -> None:
    root = tmp_path / "logs"
    root.mkdir()
    fill(root, *there)
    for each in root.glob("u-0*/*"):
        each.write_bytes(b"")
    for each in root.glob("*checkpoint"):
        each.write_text("0\n0\n")
    if (root / "meta.properties").exists():
        (root / "meta.properties").write_text("version=0\nbroker.id=1\n")
    with LogManager(root, files=FAST, take_over=True) as manager:
        assert manager.get_or_create_log("t-0").log_end_offset == 0


# --- a folder among partitions -----------------------------------------------------------------------------


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A log directory of kafkalog's with foreign directories in it."""
    root = tmp_path / "data"
    with kafkalog.open(root, files=FAST) as store:
        store.create_topic("t").append(b"x")
    fill(
        root, "dbus-1/session.conf", "__consumer_offsets-3/notes", f"old-1.{HEX}-delete/keep", f"t-0.{HEX}-future/keep"
    )
    return root


def theirs(root: Path) -> dict[str, bytes | None]:
    return {name: data for name, data in content(root).items() if "/" in name and not name.startswith(("t-0/", "new-"))}


def test_a_foreign_folder_is_never_touched(mixed: Path, caplog: pytest.LogCaptureFixture) -> None:
    before, clock = theirs(mixed), ManualClock(NOW_MS)
    scheduler = ManualScheduler(clock)
    with LogManager(mixed, clock=clock, scheduler=scheduler, files=FAST) as manager:
        assert [str(log.topic_partition) for log in manager.all_logs()] == ["t-0"]
        with pytest.raises(IllegalArgumentException, match=r"dbus-1: found session.conf, expected a partition's files"):
            manager.get_or_create_log("dbus-1")
        clock.advance_to(NOW_MS + 3_600_000)
        scheduler.tick()
        assert scheduler.errors == []
    assert f"skipped __consumer_offsets-3, dbus-1, old-1.{HEX}-delete, t-0.{HEX}-future, which" in caplog.text
    manager = LogManager(mixed, files=FAST)
    manager.startup(is_stray=lambda log: log.topic_partition.topic != "t")
    manager.shutdown()
    assert theirs(mixed) == before


def test_a_move_does_not_go_where_a_foreign_folder_has_the_name(tmp_path: Path) -> None:
    disks = [tmp_path / "a", tmp_path / "b"]
    with LogManager(disks, files=FAST) as manager:
        manager.get_or_create_log("t-0", log_dir=disks[0])
    fill(disks[1], "t-0/notes")
    with LogManager(disks, files=FAST) as manager:
        with pytest.raises(IllegalArgumentException, match=r"b/t-0: found notes, expected a partition's files"):
            manager.move("t-0", disks[1])
        assert manager.offline_log_dirs == []
        assert manager.get_or_create_log("t-0").parent_dir == str(disks[0])
    assert content(disks[1] / "t-0") == {"notes": b"theirs"}


def test_a_store_makes_no_partition_of_it(mixed: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    before = theirs(mixed)
    with kafkalog.open(mixed, files=FAST) as store:
        assert store.topics() == ["t"]
        with pytest.raises(IllegalArgumentException, match=r"dbus-1: found session.conf"):
            store.create_topic("dbus", 3)
        assert store.topics() == ["t"]
        store.create_topic("new").append(b"x")
        store.delete_topic("t")
    for door in (
        lambda: kafkalog.open_log(mixed, "dbus-1", files=FAST),
        lambda: kafkalog.open_log(mixed, TopicPartition("dbus", 1), create=False, files=FAST),
    ):
        with pytest.raises(IllegalArgumentException, match=r"dbus-1: found session.conf"):
            door()
    assert {name: data for name, data in theirs(mixed).items() if name in before} == before
    assert kafkalog.list_partitions(mixed) == {TopicPartition("new", 0): str(mixed / "new-0")}
    assert [os.path.basename(each) for each in folders_of(str(mixed)).foreign_folders] == [
        "__consumer_offsets-3", "dbus-1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "command", ["recover {0} --yes", "reindex {0} --yes", "retain {0} -X retention.ms=1 --yes", "verify {0} --deep"]
)
def test_commands_pass_it_over(mixed: Path, run: Run, command: str) -> None:
    before = theirs(mixed)
    result = run(*command.format(mixed).split())
    assert result.code == 0, result.err
    named = run(*command.format(mixed).replace(str(mixed), f"{mixed} dbus-1").split())
    assert named.code == 2
    assert "dbus-1: found session.conf, expected a partition's files" in named.err
    assert theirs(mixed) == before


def test_kafkas_class_alone_loads_it_as_kafka_does(mixed: Path) -> None:
    clock = ManualClock(NOW_MS)
    for name in ("__consumer_offsets-3", f"old-1.{HEX}-delete", f"t-0.{HEX}-future"):
        (mixed / name).rename(mixed.parent / name)
    manager = KafkasManager(mixed, clock=clock, scheduler=ManualScheduler(clock), files=FAST)
    manager.startup()
    assert manager.get_log("dbus-1") is not None
    manager.shutdown()


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        (SEGMENT, True), ("00000000000000000000.timeindex.swap", True), ("00000000000000000005.snapshot.deleted", True),
        ("00000000000000000005.index.tmp", True), ("leader-epoch-checkpoint", True), ("partition.metadata.tmp", True),
        ("00000000000000000000-0000000000.checkpoint", False), ("quorum-state", True), ("session.conf", False),
        ("7.log", False), ("2024-01-01.log", False), ("00000000000000000000.logs", False), (".log", False), ("", False),
    ],
)  # fmt: skip
def test_names_of_a_partitions_files(name: str, is_one: bool) -> None:
    assert is_partitions_file(name) is is_one
