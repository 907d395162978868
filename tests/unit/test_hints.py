"""The errors of the first minutes: the right way out, and the nearest name."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.files import OS_FILES
from kafkalog.errors import (
    DiskFull,
    IllegalArgumentException,
    IllegalStateException,
    LogDirLockedException,
    OffsetOutOfRangeException,
    TopicExistsException,
    UnknownTopicOrPartitionException,
)
from kafkalog.metrics import MetricsRegistry
from kafkalog.toolbox.backup import backup
from tests.file_doubles import Fault, FaultyFiles


def test_a_topic_that_is_not_there(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "data") as store:
        store.create_topic("events")
        store.create_topic("event").append(b"x")
        store.delete_topic("event")
        for ask in (store.topic, store.describe_topic, lambda name: store.reader(topics=[name])):
            with pytest.raises(UnknownTopicOrPartitionException, match=r"did you mean 'events'\? create_topic\(\)"):
                ask("evnts")
        with pytest.raises(
            UnknownTopicOrPartitionException, match=r"no topic 'x' in .*data \(create_topic\(\) creates"
        ):
            store.topic("x")
        with kafkalog.open(tmp_path / "data", read_only=True) as view:
            with pytest.raises(UnknownTopicOrPartitionException, match=r"did you mean 'events'.*only reads") as caught:
                view.topic("evnts")
            assert "create_topic" not in str(caught.value)
            with pytest.raises(UnknownTopicOrPartitionException, match=r"\(the writing process creates topics"):
                view.reader(topics=["x"])


def test_a_directory_of_cursors_is_one_processs(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "data"):
        with (
            kafkalog.open(tmp_path / "data", read_only=True, cursors=tmp_path / "own"),
            pytest.raises(LogDirLockedException, match=r"own keeps the cursors.*another cursors= directory") as caught,
        ):
            kafkalog.open(tmp_path / "data", read_only=True, cursors=tmp_path / "own")
        assert "read_only=True" not in str(caught.value)
        kafkalog.open(tmp_path / "data", read_only=True, cursors=tmp_path / "own").close()


@pytest.mark.parametrize("with_another", [False, True])
def test_create_false_makes_no_store(tmp_path: Path, with_another: bool) -> None:
    places = [tmp_path / "data", tmp_path / "dat"] if with_another else [tmp_path / "dat"]
    kafkalog.open(tmp_path / "data").close()
    with pytest.raises(UnknownTopicOrPartitionException, match="dat: no such log directory"):
        kafkalog.open(places, create=False)
    assert [each.name for each in tmp_path.iterdir()] == ["data"]
    with kafkalog.open(tmp_path / "data", create=False) as store, kafkalog.open(tmp_path / "data") as other:
        assert store.topics() == other.topics() == []
    for wrong in (None, 2.5, "no"):
        with pytest.raises(IllegalArgumentException, match="create"):
            kafkalog.open(tmp_path / "data", create=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_is_no_store(tmp_path: Path, read_only: bool) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    with pytest.raises(IllegalArgumentException, match=r"a\.py: found a file, expected a log directory"):
        kafkalog.open(tmp_path / "a.py", read_only=read_only)
    with pytest.raises(IllegalArgumentException, match="found a file"):
        kafkalog.open_log(tmp_path / "a.py", "t-0", read_only=read_only)
    assert (tmp_path / "a.py").read_text() == "x = 1\n"


def test_a_cell_that_is_run_again(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("t")
        reader = store.reader("nb", topics=["t"])
        with pytest.raises(IllegalStateException, match=r"close\(\) the first reader.*notebook cell.*shared=True"):
            store.reader("nb", topics=["t"])
        reader.close()
        store.reader("nb", topics=["t"]).close()


# --- a full disk ---------------------------------------------------------------------------------------


@pytest.fixture
def disk() -> FaultyFiles:
    return FaultyFiles(OS_FILES)


def fill(disk: FaultyFiles) -> None:
    disk.fault = Fault(disk.count, errno.ENOSPC)


def full(step: Callable[[], Any]) -> str:
    with pytest.raises(DiskFull) as caught:
        step()
    return str(caught.value)


def test_a_full_disk_of_a_store(tmp_path: Path, disk: FaultyFiles) -> None:
    store = kafkalog.open(tmp_path, files=disk, maintenance=False)
    store.create_topic("t").append(b"x")
    reader = store.reader("billing", topics=["t"])
    reader.poll()
    fill(disk)
    told = full(reader.commit)
    assert "the commit of cursor 'billing' did not fit, and has no effect" in told
    assert f"(free space in {tmp_path}: reads continue, and the next write tries again)" in told
    told = full(store.close)
    assert f"(the store of {tmp_path} is closed, but not cleanly: the appended records exist, and those" in told
    told = full(lambda: kafkalog.open(tmp_path, files=disk))
    assert f"needs a little room in {tmp_path}, and more if it was not closed cleanly; read_only=True opens it" in told
    assert "the next write tries again" not in told
    with kafkalog.open(tmp_path, files=disk, read_only=True) as view:  # as the hint says
        assert [each.value for each in view.topic("t").records()] == [b"x"]
    disk.fault = None
    with kafkalog.open(tmp_path, files=disk) as store:
        assert [each.value for each in store.topic("t").records()] == [b"x"]
        assert store.cursors() == []


def test_a_full_disk_of_a_partition(tmp_path: Path, disk: FaultyFiles) -> None:
    log = kafkalog.open_log(tmp_path, "t-0", files=disk)
    log.append(b"x")
    fill(disk)
    assert f"(t-0 of {tmp_path} is closed, but not cleanly: the appended records exist" in full(log.close)
    told = full(lambda: kafkalog.open_log(tmp_path, "t-0", files=disk))
    assert f"(t-0 of {tmp_path} is not open: opening it for writing needs a little room in {tmp_path}" in told
    disk.fault = None
    with kafkalog.open_log(tmp_path, "t-0", files=disk) as log:
        assert [each.value for each in log.records()] == [b"x"]


# --- words of others, and numbers ----------------------------------------------------------------------


@pytest.mark.parametrize("word", ["group_id", "groupId", "consumer_group"])
def test_a_group_is_the_first_argument(tmp_path: Path, word: str) -> None:
    told = f"{word}'; the first argument, the cursor, is Kafka's group.id$"
    with kafkalog.open(tmp_path) as store, pytest.raises(TypeError, match=told):
        store.reader(topics=["t"], **{word: "x"})


def test_a_group_is_no_name(tmp_path: Path) -> None:
    told = "expected True or False .the first argument, the cursor, is Kafka's group.id.$"
    with kafkalog.open(tmp_path) as store, pytest.raises(ValueError, match=told):
        store.reader(topics=["t"], group="x")  # type: ignore[arg-type]


def test_an_offset_behind_the_end_is_no_time(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("t")
        topic.append_many([b"x"] * 3)
        for of in (topic, topic.partition(0)):
            with pytest.raises(OffsetOutOfRangeException, match=r"the log has \[0, 3\)$"):
                list(of.records(4))
            with pytest.raises(OffsetOutOfRangeException, match=r"\(start_time= accepts a time in ms\)$"):
                list(of.records(1_700_000_000_000))


def test_a_topic_that_is_there(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("t")
        with pytest.raises(TopicExistsException, match=r"Topic 't' already exists\. \(exist_ok=True returns"):
            store.create_topic("t")
        assert store.create_topic("t", exist_ok=True).name == "t"


def test_a_backup_is_opened_by_its_log_directory(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "data") as store:
        store.create_topic("t").append(b"x")
    made = tmp_path / "backup"
    backup(tmp_path / "data", made)
    for ask in (
        lambda: kafkalog.open(made),
        lambda: kafkalog.open(made, read_only=True),
        lambda: kafkalog.open_log(made, "t-0"),
    ):
        with pytest.raises(
            IllegalArgumentException, match=rf"found a backup .*its log directory is {made}/log-dir-1: "
        ):
            ask()
    with kafkalog.open(made / "log-dir-1", read_only=True) as store:
        assert len(list(store.topic("t").records())) == 1
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "manifest.json").write_text("{}")
    with pytest.raises(IllegalArgumentException, match=r"found manifest\.json, expected a log directory"):
        kafkalog.open(tmp_path / "other")


def test_metrics_of_a_store_that_only_reads(tmp_path: Path) -> None:
    metrics = MetricsRegistry()
    assert repr(metrics) == "<MetricsRegistry of nothing, 0 meters and timers>"
    with kafkalog.open(tmp_path, metrics=metrics) as store:
        store.create_topic("t", 2)
        assert "2 UnifiedLogs, " in repr(metrics)
    with pytest.raises(IllegalArgumentException, match=r"^metrics: .*store\.cursors\(\) has the lags of cursors"):
        kafkalog.open(tmp_path, read_only=True, metrics=metrics)
