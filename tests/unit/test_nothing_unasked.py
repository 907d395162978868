"""Functions that once destroyed or hid something without a request, each with its right behaviour."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.files import ManualClock, ManualScheduler
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.errors import (
    IllegalArgumentException,
    InconsistentTopicIdException,
    KafkaStorageException,
    TopicExistsException,
    UnknownTopicOrPartitionException,
)
from kafkalog.store import Store
from tests.file_doubles import UnsyncedFiles
from tests.unit import cluster_kit as kit
from tests.unit.cli_kit import Run, run

__all__ = ["run"]

FAST = UnsyncedFiles()
OLD_MS = 1_600_000_000_000
COUNT = 60
SMALL = {"internal.segment.bytes": "500", "file.delete.delay.ms": "0"}


def open_at(where: Any, **options: Any) -> Store:
    return kafkalog.open(where, files=FAST, **options)


def values(store: Store, topic: str) -> list[bytes]:
    with store.reader(topics=[topic], start="earliest") as reader:
        return [bytes(record.value or b"") for record in reader.poll(10_000)]


def old_log(root: Path, name: str = "orders", *, key: bytes | None = None) -> Path:
    """Old records of a topic in many segments."""
    with kafkalog.open_log(root, f"{name}-0", config=SMALL, topic_id=kit.TOPIC_IDS[name], files=FAST) as log:
        for number in range(COUNT):
            log.append(b"value %d" % number, key=key, timestamp=OLD_MS + number)
    return root


# --- a broker's directory -------------------------------------------------------------------------------------------


def test_a_manager_takes_a_brokers_directory_only_if_it_is_told_to(tmp_path: Path) -> None:
    kit.metadata_log(kit.formatted(old_log(tmp_path)), kit.topic("orders"))
    with pytest.raises(IllegalArgumentException, match=r"meta\.properties.*take_over=True"):
        LogManager([tmp_path], files=FAST)
    clock = ManualClock(OLD_MS + 10**12)
    with LogManager([tmp_path], files=FAST, clock=clock, scheduler=ManualScheduler(clock), take_over=True) as manager:
        assert manager.cleanup_logs() == 0
        log = manager.get_log("orders-0")
        assert log is not None
        assert log.log_start_offset == 0
        manager.set_topic_config("orders", SMALL | {"retention.ms": "1000"})  # now it was requested
        assert manager.cleanup_logs() > 0


@pytest.mark.parametrize("value", [2, "yes", None])
def test_take_over_is_a_flag(tmp_path: Path, value: Any) -> None:
    with pytest.raises(IllegalArgumentException, match="take_over"):
        LogManager([tmp_path], files=FAST, take_over=value)


def test_retain_goes_by_no_guess_of_the_policy(tmp_path: Path, run: Run) -> None:
    """The metadata of the cluster is elsewhere: the topic may be compacted."""
    kit.formatted(old_log(tmp_path, key=b"key"))
    before = sorted((tmp_path / "orders-0").glob("*.log"))
    for options in (["--target-free", "100TiB"], ["-X", "retention.ms=1000"]):
        done = run("retain", tmp_path, *options, "--yes")
        assert "the cleanup.policy is unknown" in done.err
    assert sorted((tmp_path / "orders-0").glob("*.log")) == before
    assert run("retain", tmp_path / "orders-0", "-X", "retention.ms=1000", "--yes").code == 0  # a named one is known
    assert len(sorted((tmp_path / "orders-0").glob("*.log"))) < len(before)


@pytest.mark.parametrize("inside", ["new", "deep/new", "orders-0/new"])
def test_nothing_is_made_inside_of_a_brokers_directory(tmp_path: Path, run: Run, inside: str) -> None:
    """The broker does not start with a directory there that is no partition's."""
    root = kit.formatted(old_log(tmp_path / "logs"))
    place = root / inside
    before = sorted(root.rglob("*"))
    doors = [
        lambda: open_at(place),
        lambda: open_at(root, read_only=True, cursors=place),
        lambda: kafkalog.open_log(place, "t-0", files=FAST),
        lambda: LogManager([place], files=FAST),
    ]
    for door in doors:
        with pytest.raises(IllegalArgumentException, match=r"directory of a Kafka broker.*does not start"):
            door()
    done = run("export", root, "orders", "--to", f"{place}/")
    assert (done.code, "does not start" in done.err) == (2, True)
    assert sorted(root.rglob("*")) == before


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [None, {"compression.type": "zstd"}])
def test_config_lies_over_what_is_kept(tmp_path: Path, config: dict[str, str] | None) -> None:
    """One setting that is given takes none of the others away."""
    with open_at(tmp_path) as store:
        topic = store.create_topic("t", config=SMALL)
        for number in range(COUNT):
            topic.append(b"%d" % number, timestamp=OLD_MS)
    with kafkalog.open_log(tmp_path, "t-0", config=config, files=FAST) as log:
        assert log.delete_old_segments() == 0
        assert len(list(log)) == COUNT


# --- topics that are away -------------------------------------------------------------------------------------------


def disks(root: Path) -> list[str]:
    return [str(root / name) for name in ("disk1", "disk2")]


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """Topic t of one partition, whose disk is missing, and an empty directory in its place."""
    with open_at(disks(tmp_path)) as store:
        store.create_topic("other").append(b"here")
        store.create_topic("t").append(b"before")
        where = {topic: store.manager.get_log(f"{topic}-0").parent_dir for topic in ("t", "other")}  # type: ignore[union-attr]
    assert where["t"] != where["other"]
    os.rename(where["t"], tmp_path / "away")
    os.mkdir(where["t"])
    (tmp_path / "mount").write_text(where["t"])
    return tmp_path


def come_back(root: Path) -> None:
    mount = (root / "mount").read_text()
    shutil.rmtree(mount)
    os.rename(root / "away", mount)


def test_a_topic_that_is_away_is_not_made_again(away: Path) -> None:
    with open_at(disks(away)) as store:
        assert store.topics() == ["other", "t"]
        assert values(store, "other") == [b"here"]
        topic = store.create_topic("t", exist_ok=True)  # how a service starts
        for refused in (lambda: topic.append(b"lost?"), lambda: values(store, "t")):
            with pytest.raises(KafkaStorageException, match=r"t-0 has no directory.*all directories"):
                refused()
        with pytest.raises(TopicExistsException):
            store.create_topic("t")
    with open_at(disks(away), read_only=True) as store:
        assert store.topics() == ["other", "t"]
        with pytest.raises(KafkaStorageException, match="t-0 has no directory"):
            values(store, "t")
    come_back(away)
    with open_at(disks(away)) as store:
        assert values(store, "t") == [b"before"]
        store.topic("t").append(b"after")
    with open_at(disks(away)) as store:
        assert values(store, "t") == [b"before", b"after"]


def test_a_topic_that_is_away_may_be_deleted(away: Path) -> None:
    """It was requested, and so the partition is deleted when it comes back."""
    with open_at(disks(away)) as store:
        store.delete_topic("t")
        assert store.topics() == ["other"]
    come_back(away)
    with open_at(disks(away)) as store:
        assert store.topics() == ["other"]
        assert values(store, "other") == [b"here"]
        store.create_topic("t").append(b"new")
        assert values(store, "t") == [b"new"]


def test_two_topics_of_one_name_are_not_mixed(tmp_path: Path) -> None:
    """Directories of two stores, named together."""
    for disk, value in zip(disks(tmp_path), (b"one", b"two"), strict=True):
        with open_at(disk) as store:
            topic = store.create_topic("t", 4)
            for number in range(4):
                topic.append(value, partition=number)
    one, two = disks(tmp_path)
    shutil.rmtree(Path(one, "t-3"))
    for order in ([one, two], [two, one]):
        with (
            open_at(order, read_only=True) as store,
            pytest.raises(InconsistentTopicIdException, match="two topics of that name"),
        ):
            values(store, "t")


@pytest.mark.parametrize("command", ["cat", "verify", "transactions", "history"])
def test_commands_say_that_they_saw_half_a_topic(tmp_path: Path, run: Run, command: str) -> None:
    with open_at(tmp_path / "d") as store:
        topic = store.create_topic("t", 2)
        for number in range(2):
            topic.append(b"value", key=b"k", partition=number)
    shutil.rmtree(tmp_path / "d" / "t-1")
    arguments = ["k", tmp_path / "d", "t"] if command == "history" else [tmp_path / "d", "t"]
    assert "missing: " in run(command, *arguments).err
    if command != "verify":
        assert "missing: " not in run(command, *(["k"] if command == "history" else []), tmp_path / "d" / "t-0").err


def test_a_reader_of_a_topic_that_was_made_again_is_told_each_time(tmp_path: Path) -> None:
    with open_at(tmp_path) as store:
        store.create_topic("t").append(b"old")
        with open_at(tmp_path, read_only=True) as look, look.reader(topics=["t"], start="earliest") as reader:
            assert [record.value for record in reader.poll()] == [b"old"]
            store.delete_topic("t")
            store.create_topic("t").append(b"new")
            for _ in range(5):
                with pytest.raises(UnknownTopicOrPartitionException):
                    reader.poll()


# --- what else was hidden -------------------------------------------------------------------------------------------


def test_a_lost_end_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_at(tmp_path) as store:
        topic = store.create_topic("t", config=SMALL)
        for number in range(COUNT):
            topic.append(b"value %d" % number)
    last = max((tmp_path / "t-0").glob("*.log"))
    last.unlink()
    with caplog.at_level(logging.WARNING, "kafkalog"), open_at(tmp_path) as store:
        end = len(values(store, "t"))
        assert end < COUNT
    (told,) = [record.getMessage() for record in caplog.records if "were flushed" in record.getMessage()]
    assert f"offsets up to {COUNT - 1} were flushed, but the log ends at {end}" in told
    assert str(TopicPartition("t", 0)) in told


def test_a_folder_of_other_things_is_no_empty_store(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").write_text("x")
    with pytest.raises(IllegalArgumentException, match=r"found bin, expected a log directory"):
        open_at(tmp_path, read_only=True)
    (tmp_path / "empty").mkdir()
    with open_at(tmp_path / "empty", read_only=True) as store:
        assert store.topics() == []
