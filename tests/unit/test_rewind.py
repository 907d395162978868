"""`StoreReader.rewind`: back to the committed position, or to the reader's start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import (
    IllegalStateException,
    InvalidTopicException,
    KafkalogError,
    OffsetOutOfRangeException,
    UnstableOffsetCommitException,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kafkalog.Store]:
    with kafkalog.open(tmp_path / "data", maintenance=False) as store:
        topic = store.create_topic("t", 2)
        for partition in range(2):
            topic.append_many([b"%d" % n for n in range(10)], partition=partition)
        yield store


def test_before_the_first_commit_it_goes_back_to_where_it_began(store: kafkalog.Store) -> None:
    for options, first in (({}, 0), ({"start": 4}, 4), ({"start_offsets": {"t-0": 7, "t-1": 7}}, 7)):
        for cursor in (None, "c"):
            with store.reader(cursor, topics=["t"], **options) as reader:  # type: ignore[arg-type]
                found = reader.poll(100)
                assert len(found) == 2 * (10 - first)
                reader.rewind()
                assert reader.positions() == {T0: first, T1: first}
                assert reader.poll(100) == found


def test_it_goes_back_to_what_was_committed(store: kafkalog.Store) -> None:
    reader = store.reader("c", topics=["t"])
    reader.commit({"t-0": 3})
    reader.poll(100)
    reader.rewind()
    assert reader.positions() == {T0: 3, T1: 0}
    assert reader.offsets_to_commit()[T0].leader_epoch == store.committed("c")[T0].leader_epoch
    reader.poll(100)
    reader.rewind("t-1")
    assert reader.positions() == {T0: 10, T1: 0}
    assert reader.offsets_to_commit()[T0].leader_epoch == 0
    reader.commit()
    reader.seek(T0, 0)
    reader.rewind(T0, ("t", 1))  # forward, too
    assert reader.positions() == {T0: 10, T1: 0}
    assert store.committed("c")[T0].leader_epoch == reader.offsets_to_commit()[T0].leader_epoch == 0


def test_where_it_began_may_lie_beside_what_was_committed_before(store: kafkalog.Store) -> None:
    """`start_offsets` count, until something is committed after them: the same offset as before, too."""
    with store.reader("c", topics=["t"]) as reader:
        reader.commit({"t-0": 3, "t-1": 3})
    with store.reader("c", topics=["t"], start_offsets={"t-0": 6}) as reader:
        reader.poll(100)
        reader.rewind()
        assert reader.positions() == {T0: 6, T1: 3}
        reader.commit({"t-0": 2})
        reader.rewind()
        assert reader.positions() == {T0: 2, T1: 3}


def test_a_loop_that_tries_again_loses_nothing(store: kafkalog.Store) -> None:
    store.create_topic("out")
    failures = 0
    with store.reader("biller", topics=["t"], isolation="read_committed") as reader:
        while True:
            try:
                with store.transaction("biller-1") as txn:
                    found = reader.poll(3)
                    for number, record in enumerate(found):
                        txn.append("out", b"%d-%s" % (record.partition, record.value or b""))
                        if number == 1 and failures % 2 == 0:
                            raise RuntimeError
                    txn.commit_offsets(reader)
                    if failures % 3 == 0:
                        raise RuntimeError
            except RuntimeError:
                failures += 1
                reader.rewind()
                continue
            failures += 1
            if not found:
                break
        assert reader.committed() == {T0: 10, T1: 10}
    written = [each.value or b"" for each in store.topic("out").records(isolation="read_committed")]
    assert sorted(written) == sorted(b"%d-%d" % (partition, n) for partition in range(2) for n in range(10))


def test_in_the_middle_of_an_iteration(store: kafkalog.Store) -> None:
    reader = store.reader("c", partitions=["t-0"])
    found = []
    for record in reader:
        found.append(record.offset)
        if len(found) == 4:
            reader.rewind()
    assert found == [0, 1, 2, 3, *range(10)]
    pytest.importorskip("pyarrow")
    reader.rewind()
    rows = []
    for batch in reader.batches(["offset"], batch_rows=4):
        rows.append(batch.num_rows)
        if len(rows) == 2:
            reader.rewind()
    assert rows[:2] == rows[2:4]
    assert sum(rows) == rows[0] + rows[1] + 10


def test_a_paused_partition_goes_back_and_stays_paused(store: kafkalog.Store) -> None:
    reader = store.reader(topics=["t"])
    reader.poll(100)
    reader.pause(T0)
    reader.rewind()
    assert reader.paused == [T0]
    assert {record.partition for record in reader} == {1}


def test_shared_readers_go_back_each(store: kafkalog.Store) -> None:
    readers = [store.reader("c", partitions=[each], shared=True) for each in (T0, T1)]
    for reader in readers:
        reader.poll(4)
    readers[0].commit()
    for reader in readers:
        reader.poll(4)
        reader.rewind()
    assert [*readers[0].positions().items(), *readers[1].positions().items()] == [(T0, 4), (T1, 0)]


def test_a_store_that_only_reads(store: kafkalog.Store, tmp_path: Path) -> None:
    with store.reader("c", topics=["t"]) as reader:
        reader.commit({"t-0": 5})
    for cursors, committed in ((None, False), (tmp_path / "own", True)):
        with kafkalog.open(tmp_path / "data", read_only=True, cursors=cursors) as view:
            reader = view.reader("c", topics=["t"])
            reader.poll(100)
            if committed:
                reader.commit({"t-1": 9})
            reader.rewind()
            assert reader.positions() == {T0: 5, T1: 9 if committed else 0}


def test_new_partitions_and_those_that_are_gone(store: kafkalog.Store) -> None:
    store.create_topic("u").append(b"x")
    reader = store.reader("c", topics=["t", "u"])
    store.add_partitions("t", 3)
    store.topic("t").append(b"new", partition=2)
    assert len(reader.poll(100)) == 22
    store.delete_topic("u")
    reader.rewind()
    assert {place: offset for place, offset in reader.positions().items() if place.topic == "t"} == dict.fromkeys(
        [T0, T1, TopicPartition("t", 2)], 0
    )
    store.topic("t").partition(0).delete_records(5)
    with store.reader(topics=["t"], start="error", start_offsets={"t-0": 5, "t-1": 0, "t-2": 0}) as strict:
        strict.poll(100)
        store.topic("t").partition(0).delete_records(6)
        strict.rewind(T0)
        with pytest.raises(OffsetOutOfRangeException):
            strict.poll()


def test_an_open_transaction_with_offsets_of_the_cursor(store: kafkalog.Store) -> None:
    """Nothing has moved."""
    with store.reader("c", topics=["t"], isolation="read_committed") as reader:
        reader.poll(100)
        with store.transaction("one") as txn:
            txn.commit_offsets({"t-1": 4}, cursor="c")
            with pytest.raises(UnstableOffsetCommitException):
                reader.rewind()
            assert reader.positions() == {T0: 10, T1: 10}
            reader.rewind(T0)
        reader.rewind()
        assert reader.positions() == {T0: 0, T1: 4}


@pytest.mark.parametrize("wrong", [5, None, b"t-0", ["t-0"], object()])
def test_wrong_types(store: kafkalog.Store, wrong: Any) -> None:
    reader = store.reader("c", topics=["t"])
    reader.poll(100)
    with pytest.raises(KafkalogError):
        reader.rewind("t-0", wrong)
    with pytest.raises(InvalidTopicException):
        reader.rewind("t")
    with pytest.raises(IllegalStateException, match="is not read"):
        reader.rewind("t-7")
    assert reader.positions() == {T0: 10, T1: 10}
