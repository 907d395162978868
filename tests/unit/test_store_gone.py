"""Readers and cursors of topics that are deleted, recreated or unreadable: each is reported, the others continue."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.names import PARTITION_METADATA_FILE, TopicPartition
from kafkalog.errors import KafkaStorageException, UnknownTopicOrPartitionException
from kafkalog.toolbox.cursors import CursorLook

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


@pytest.mark.parametrize("read_only", [False, True])
def test_a_topic_made_anew_is_not_followed_and_keeps_no_other_unread(tmp_path: Path, read_only: bool) -> None:
    with kafkalog.open(tmp_path, maintenance=False) as store, kafkalog.open(tmp_path, read_only=True) as view:
        store.create_topic("t", 2).append_many(ROWS)
        other = store.create_topic("v")
        reader = (view if read_only else store).reader(topics=["t", "v"])
        assert len(list(reader)) == 10
        store.delete_topic("t")
        store.create_topic("t", 2).append_many([b"new"], partition=1)
        other.append_many([b"v1", b"v2"])
        found: list[bytes | None] = []
        told = 0
        for number in range(6):
            try:
                found += [record.value for record in reader.poll(timeout_ms=300)]
            except UnknownTopicOrPartitionException:
                told += 1
            if number == 3:
                store.create_topic("unrelated")
        assert found == [b"v1", b"v2"]
        assert 1 <= told <= 3
        assert reader.assignment == [TopicPartition("v", 0)]
        assert reader.lag() == {TopicPartition("v", 0): 0}


def test_a_topic_that_was_read_before_its_folder_had_an_id_is_not_followed_either(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path, maintenance=False) as store, kafkalog.open(tmp_path, read_only=True) as view:
        store.create_topic("t")
        for log in store.manager.all_logs():
            log.maybe_flush_metadata_file()  # a task does this, sooner or later
        (tmp_path / "t-0" / PARTITION_METADATA_FILE).unlink()
        reader = view.reader(topics=["t"])
        assert list(reader) == []
        store.delete_topic("t")
        store.create_topic("t").append(b"new")
        with pytest.raises(UnknownTopicOrPartitionException, match="another topic of that name"):
            list(reader)


def test_partitions_that_are_offline_when_they_are_added_keep_no_other_unread(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    with kafkalog.open([a, b], maintenance=False) as store:
        store.create_topic("u", 4)
        store.create_topic("t", 1)
        reader = store.reader(topics=["t", "u"])
        assert list(reader) == []
        store.add_partitions("t", 4)
        store.manager.handle_log_dir_failure(str(b))
        well = [each.topic_partition for each in store.manager.all_logs() if each.dir.startswith(str(a))]
        for each in well:
            store.topic(each.topic).append(str(each).encode(), partition=each.partition)
        found: list[bytes] = []
        for _ in range(12):
            with contextlib.suppress(KafkaStorageException):
                found += [bytes(record.value or b"") for record in reader.poll()]
        assert sorted(found) == sorted(str(each).encode() for each in well)
        assert set(well) <= set(reader.lag())


def test_nothing_is_committed_of_a_topic_that_is_gone(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:  # a topic without an id
        log.append_many(ROWS)
    with kafkalog.open(tmp_path, maintenance=False) as store:
        store.create_topic("u").append(b"u1")
        reader = store.reader("c", topics=["t", "u"])
        assert len(list(reader)) == 11
        store.delete_topic("t")
        assert reader.commit() == {TopicPartition("u", 0): 1}
        store.create_topic("t").append_many(ROWS * 2)
        assert reader.commit() == {TopicPartition("u", 0): 1}
        with pytest.raises(UnknownTopicOrPartitionException):
            reader.commit({"t-0": 10})
        reader.close()
        assert len(list(store.reader("c", topics=["t"]))) == 20


def test_rows_of_a_topic_that_is_gone_say_nothing(tmp_path: Path) -> None:
    own = tmp_path / "cursors"
    with (
        kafkalog.open(tmp_path / "data", maintenance=False) as store,
        kafkalog.open(tmp_path / "data", read_only=True, cursors=own) as view,
    ):
        store.create_topic("u").append(b"u1")
        store.create_topic("t").append_many(ROWS)
        reader = view.reader("c", topics=["t", "u"])
        assert len(list(reader)) == 11
        reader.commit()
        reader.close()
        store.delete_topic("t")
        assert view.reader("c").assignment == [TopicPartition("u", 0)]
        store.create_topic("t")
        assert [each.lag for each in view.cursors()[0].partitions] == [None, 0]


def test_the_tool_shows_what_readers_with_their_own_cursors_see(tmp_path: Path) -> None:
    data, own = tmp_path / "data", tmp_path / "own"
    with kafkalog.open(data, maintenance=False) as store:
        topic = store.create_topic("t", 2)
        for number in range(2):
            topic.append_many(ROWS, partition=number)
        store.reader("c", topics=["t"]).commit({"t-0": 3, "t-1": 7})
    with kafkalog.open(data, read_only=True, cursors=own) as view:
        view.reader("c", topics=["t"]).commit({"t-0": 5})
        seen = view.committed("c")
        assert {each.partition: row.offset for each, row in seen.items()} == {0: 5, 1: 7}
        assert CursorLook([str(data)], str(own)).groups["c"].committed == seen
        view.delete_cursor("c")
        assert {each.partition: row.offset for each, row in view.committed("c").items()} == {0: 3, 1: 7}


def test_a_store_beside_lists_its_directories_once_while_they_do_not_change(tmp_path: Path) -> None:
    class Counting(type(OS_FILES)):  # type: ignore[misc]
        reads = 0

        def read_bytes(self, path: str) -> bytes:
            self.reads += path.endswith(".kafkalog_topics")
            return bytes(super().read_bytes(path))

    with kafkalog.open(tmp_path, maintenance=False) as store:
        for number in range(20):
            store.create_topic(f"t{number}")
    os.utime(tmp_path, (1_700_000_000.5, 1_700_000_000.5))
    files = Counting()
    with kafkalog.open(tmp_path, read_only=True, files=files) as view:
        view.reader(topics=view.topics())
        assert files.reads == 1
        with kafkalog.open(tmp_path, maintenance=False) as store:
            store.create_topic("more")
        assert "more" in view
