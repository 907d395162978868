"""Readers and cursors of topics that go away, are made anew, or cannot be read: each is told, and the others go on."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafkalog
from kafkalog.errors import UnknownTopicOrPartitionException
from kafkalog.format.names import TopicPartition

ROWS = [b"%d" % n for n in range(10)]


def test_a_reader_beside_does_not_go_on_in_another_topic_of_the_name(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path, maintenance=False) as store, kafkalog.open(tmp_path, read_only=True) as view:
        store.create_topic("t").append_many(ROWS)
        reader = view.reader(partitions=["t-0"])
        assert len(list(reader)) == 10
        store.delete_topic("t")
        store.create_topic("t").append_many(ROWS * 2)
        with pytest.raises(UnknownTopicOrPartitionException, match="another topic of that name"):
            list(reader)
        assert len(list(view.reader(topics=["t"]))) == 20


def test_a_topic_that_got_its_id_later_is_followed_into_another_directory(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with kafkalog.open_log(a, "t-0") as log:
        log.append_many(ROWS)
    with kafkalog.open([a, b], maintenance=False) as store:
        reader = store.reader(topics=["t"])
        assert len(list(reader)) == 10
        store.alter_topic("t", {"retention.ms": "-1"})
        store.manager.move(TopicPartition("t", 0), str(b))
        store.topic("t").append(b"new")
        assert [record.value for record in reader.poll()] == [b"new"]
