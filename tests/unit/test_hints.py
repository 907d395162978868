"""What errors of the first minutes say: the right way out, and the nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafkalog
from kafkalog.errors import (
    IllegalArgumentException,
    IllegalStateException,
    LogDirLockedException,
    UnknownTopicOrPartitionException,
)


def test_a_topic_that_is_not_there(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path / "data") as store:
        store.create_topic("events")
        store.create_topic("event").append(b"x")
        store.delete_topic("event")
        for ask in (store.topic, store.describe_topic, lambda name: store.reader(topics=[name])):
            with pytest.raises(UnknownTopicOrPartitionException, match=r"did you mean 'events'\? create_topic\(\)"):
                ask("evnts")
        with pytest.raises(UnknownTopicOrPartitionException, match=r"no topic 'x' in .*data \(create_topic\(\) makes"):
            store.topic("x")
        with kafkalog.open(tmp_path / "data", read_only=True) as view:
            with pytest.raises(UnknownTopicOrPartitionException, match=r"did you mean 'events'.*only reads") as caught:
                view.topic("evnts")
            assert "create_topic" not in str(caught.value)
            with pytest.raises(UnknownTopicOrPartitionException, match=r"\(the process that writes makes topics"):
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
        with pytest.raises(IllegalStateException, match=r"close\(\) that one first.*notebook's cell.*shared=True"):
            store.reader("nb", topics=["t"])
        reader.close()
        store.reader("nb", topics=["t"]).close()
