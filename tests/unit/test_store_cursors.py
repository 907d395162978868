"""Cursors: kept as Kafka's groups, in the data directory or in a separate one."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face import store_cursors
from kafkalog.engine.format.group_records import CommittedOffset
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import (
    GroupIdNotFoundException,
    IllegalStateException,
    LogReadOnlyException,
    NoOffsetForPartitionException,
    OffsetMetadataTooLarge,
    UnknownTopicOrPartitionException,
    UnstableOffsetCommitException,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def filled(store: kafkalog.Store, count: int = 10) -> kafkalog.Topic:
    topic = store.create_topic("t", 2, exist_ok=True)
    for partition in range(2):
        topic.append_many([b"%d" % n for n in range(count)], partition=partition)
    return topic


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_cursor_goes_on_after_a_restart(tmp_path: Path, durability: str) -> None:
    with kafkalog.open(tmp_path, durability=durability) as store:  # type: ignore[arg-type]
        filled(store)
        reader = store.reader("billing", topics=["t"])
        for number, _ in enumerate(reader):
            if number == 12:
                break
        assert sum(reader.commit(metadata="note").values()) == 13
        assert sum(reader.committed().values()) == 13
    with kafkalog.open(tmp_path) as store:
        reader = store.reader("billing", topics=["t"])
        assert sum(reader.positions().values()) == 13
        assert len(list(reader)) == 7
        committed = store.committed("billing")
        assert committed == {
            place: row for place, row in committed.items() if row.metadata == "note" and row.topic_id is not None
        }
        assert {row.topic_id for row in committed.values()} == {store.describe_topic("t").topic_id}
        assert committed[T0].leader_epoch == 0
        reader.close()
        assert store.reader("billing").assignment == [T0, T1]


def test_commit_covers_what_was_handed_out_and_no_more(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        filled(store)
        reader = store.reader("c", partitions=["t-0"])
        assert reader.commit() == {T0: 0}
        for record in reader:
            assert reader.commit() == {T0: record.offset + 1}
        reader.seek(T0, 0)
        assert len(reader.poll(3)) == 3
        assert reader.commit() == {T0: 3}
        assert reader.offsets_to_commit()[T0].offset == 3
        assert reader.commit({"t-0": 7}) == {T0: 7}
        assert reader.position(T0) == 3
        assert store.reader("c", partitions=["t-0"], shared=True).position(T0) == 7
        with pytest.raises(IllegalStateException, match="is not read"):
            reader.commit({"t-1": 7})
        with pytest.raises(OffsetMetadataTooLarge):
            reader.commit(metadata="x" * 5000)
        with pytest.raises(IllegalStateException, match="no cursor"):
            store.reader(topics=["t"]).commit()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_cursor_has_one_reader(tmp_path: Path, read_only: bool) -> None:
    """Until it is closed, or dropped, in the middle of an iteration too."""
    with kafkalog.open(tmp_path / "data") as store, contextlib.ExitStack() as stack:
        filled(store)
        if read_only:
            store = stack.enter_context(kafkalog.open(tmp_path / "data", read_only=True, cursors=tmp_path / "own"))

        def check_free(name: str = "billing") -> None:
            store.reader(name, topics=["t"]).close()

        def check_refused() -> None:
            with pytest.raises(IllegalStateException, match="shared=True"):
                store.reader("billing", topics=["t"])

        for isolation in ("read_uncommitted", "read_committed"):
            with store.reader("billing", topics=["t"], isolation=isolation) as reader:
                check_refused()
                check_free("another")
                assert len(list(store.reader(topics=["t"]))) == 20
                other = store.reader("billing", topics=["t"], shared=True)
                assert len(list(reader)) == len(list(other)) == 20
            check_refused()  # the shared one is open
            other.close()
            check_free()
        for _ in range(2):
            dropped = store.reader("billing", topics=["t"])
            records = iter(dropped)
            next(records)
            del records
            check_refused()
            del dropped
            check_free()


def test_a_reader_that_could_not_be_made_keeps_no_cursor(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        filled(store)
        with pytest.raises(NoOffsetForPartitionException):
            store.reader("billing", topics=["t"], start="error")
        with pytest.raises(UnknownTopicOrPartitionException) as caught:
            store.reader("billing", topics=["nope"])
        store.reader("billing", topics=["t"])
        assert caught.value.__traceback__ is not None  # it may hold the reader


def test_one_of_many_threads_gets_the_cursor(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        filled(store)
        ready, made, refused = threading.Barrier(8), [], []

        def make() -> None:
            ready.wait()
            try:
                made.append(store.reader("billing", topics=["t"]))
            except IllegalStateException as error:
                refused.append(error)

        threads = [threading.Thread(target=make) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(made), len(refused)) == (1, 7)


def test_cursors_are_listed_and_deleted(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        assert store.cursors() == []
        topic = filled(store)
        for name in ("b", "a"):
            reader = store.reader(name, topics=["t"], start_offsets={T0: 4})
            reader.commit()
        topic.append(b"x", partition=0)
        first, second = store.cursors()
        assert (first.name, second.name, first.state) == ("a", "b", "Empty")
        assert [(each.partition, each.committed.offset, each.end, each.lag) for each in first.partitions] == [
            (T0, 4, 11, 7),
            (T1, 0, 10, 10),
        ]
        store.delete_cursor("a")
        assert store.committed("a") == {}
        assert [each.name for each in store.cursors()] == ["b"]
        for name in ("a", "never"):
            with pytest.raises(GroupIdNotFoundException):
                store.delete_cursor(name)
        store.delete_topic("t")
        assert store.committed("b") == {}


def test_no_cursor_is_beyond_the_end_beside_which_it_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = filled(store)
        for name in ("a", "b"):
            store.reader(name, topics=["t"]).commit()
        committed = store_cursors.committed

        def beside(home: Any, name: str) -> Any:
            if name == "b":  # another thread's work
                topic.append(b"more", partition=0)
                store.reader("b", topics=["t"]).commit({T0: 11})
            return committed(home, name)

        monkeypatch.setattr(store_cursors, "committed", beside)
        lags = {each.name: each.partitions[0].lag for each in store.cursors()}
        assert lags["b"] == 0


def test_members_of_a_dead_broker_give_way(tmp_path: Path) -> None:
    """A broker's consumer left a group with members, which nobody serves."""
    from kafkalog.engine.coordinator.groups import GroupType
    from kafkalog.engine.format.group_records import GroupKey, GroupMember, GroupMetadata, encode_group_metadata

    with kafkalog.open(tmp_path) as store:
        filled(store)
        offsets = store._own().offsets("billing", create=True)
        assert offsets is not None
        member = GroupMember("m", None, "client", "/host", 1000, 1000, b"", b"")
        row = encode_group_metadata(GroupKey("billing"), GroupMetadata("consumer", 3, "range", "m", 5, (member,)))
        with offsets.entered():
            offsets.write([row])
        assert offsets.describe("billing").state == "Stable"
        assert offsets.describe("billing").type is GroupType.CLASSIC
        reader = store.reader("billing", topics=["t"])
        list(reader)
        reader.commit()
        assert offsets.describe("billing").state == "Empty"
        assert store.committed("billing")[T1].offset == 10


def test_read_committed_waits_for_open_transactions_of_its_cursor(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        filled(store)
        coordinators = store._own().coordinators
        holder = coordinators.transactions.init_producer_id("worker", 60_000)
        offsets = store._own().offsets("c", create=True)
        assert offsets is not None
        coordinators.transactions.add_offsets("worker", holder, "c")
        offsets.commit("c", {T0: CommittedOffset(5)}, holder)
        assert store.reader("c", topics=["t"]).position(T0) == 0
        with pytest.raises(UnstableOffsetCommitException):
            store.reader("c", topics=["t"], isolation="read_committed")
        coordinators.transactions.end_transaction("worker", holder, commit=True)
        assert store.reader("c", topics=["t"], isolation="read_committed").position(T0) == 5


def test_cursors_of_a_process_that_only_reads(tmp_path: Path) -> None:
    data, own = tmp_path / "data", tmp_path / "cursors"
    with kafkalog.open(data) as store:
        filled(store)
        there = store.reader("billing", topics=["t"], start_offsets={T0: 3, T1: 4})
        there.commit()
        with kafkalog.open(data, read_only=True) as view:
            reader = view.reader("billing", topics=["t"])
            assert reader.positions() == {T0: 3, T1: 4}
            assert len(list(reader)) == 13
            with pytest.raises(LogReadOnlyException, match="cursors"):
                reader.commit()
            with pytest.raises(LogReadOnlyException):
                view.delete_cursor("billing")
            assert [each.name for each in view.cursors()] == ["billing"]
        with kafkalog.open(data, read_only=True, cursors=own) as view:
            reader = view.reader("billing", partitions=["t-0"])
            assert len(list(reader)) == 7
            assert reader.commit() == {T0: 10}
            # a partition that it has not moved stays where the other process left it
            assert view.reader("billing", topics=["t"], shared=True).positions() == {T0: 10, T1: 4}
            assert {each: row.offset for each, row in view.committed("billing").items()} == {T0: 10, T1: 4}
        assert store.committed("billing")[T0].offset == 3
        with kafkalog.open(data, read_only=True, cursors=own) as view:
            assert view.reader("billing", topics=["t"]).positions() == {T0: 10, T1: 4}


@pytest.mark.parametrize("read_only", [False, True])
def test_kafkas_own_topics_are_read_and_not_listed(tmp_path: Path, read_only: bool) -> None:
    """Their partitions are created one by one: existing ones are read, and more when they come."""
    with kafkalog.open(tmp_path / "data") as store:
        store.create_topic("t").append(b"v")

        def commit(cursor: str) -> None:
            with store.reader(cursor, topics=["t"]) as reader:
                reader.poll(1)
                reader.commit()

        commit("a")
        commit("b")  # in another partition
        with store.transaction("x") as txn:
            txn.append("t", b"v")
        look = kafkalog.open(tmp_path / "data", read_only=True) if read_only else store
        assert look.topics() == ["t"]
        assert look.topics(internal=True) == ["__consumer_offsets", "__transaction_state", "t"]
        assert "__consumer_offsets" in look
        with look.reader(topics=look.topics(internal=True)) as reader:
            seen = {each.topic for each in reader.poll(100)}
            assert seen == {"__consumer_offsets", "__transaction_state", "t"}
        with look.reader(topics=["__consumer_offsets"]) as reader:
            assert len(reader.poll(100)) == 2
            commit("c")  # in a third one
            assert [each.topic for each in reader.poll(100, timeout_ms=10_000)] == ["__consumer_offsets"]
        with (
            pytest.raises(UnknownTopicOrPartitionException, match="__consumer_offsets-0 was not created yet"),
            look.reader(partitions=["__consumer_offsets-0"]),
        ):
            pass
        look.close()
