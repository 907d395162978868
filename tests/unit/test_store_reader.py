"""`Store.reader`: several partitions round-robin, returned records and positions, filters, logs that change."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import kafkalog
from kafkalog import reader as store_reader
from kafkalog._face import partition_reader, waiting
from kafkalog._face.view_source import TopicView
from kafkalog.engine.files import OS_FILES, ManualClock
from kafkalog.engine.format.batch import ProducerFields
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import (
    CorruptRecordException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidTopicException,
    KafkaStorageException,
    NoOffsetForPartitionException,
    OffsetOutOfRangeException,
    UnknownTopicOrPartitionException,
)
from kafkalog.reader import StoreReader
from tests.client_transaction import write_marker
from tests.file_doubles import Fault, FaultyFiles

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NOW_MS = 1_700_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[kafkalog.Store]:
    with kafkalog.open(tmp_path / "data", clock=ManualClock(NOW_MS), maintenance=False) as store:
        yield store


def filled(store: kafkalog.Store, partitions: int = 2, records: int = 10) -> kafkalog.Topic:
    """`records` of each partition, in batches of 3; values say where each is."""
    topic = store.create_topic("t", partitions)
    for partition in range(partitions):
        for first in range(0, records, 3):
            rows = [(b"%d-%d" % (partition, n), b"k%d" % n) for n in range(first, min(first + 3, records))]
            topic.append_many(rows, partition=partition)
    return topic


def values(records: Any) -> list[bytes]:
    return [record.value for record in records]


def wanted(partition: int, start: int, end: int) -> list[bytes]:
    return [b"%d-%d" % (partition, n) for n in range(start, end)]


def places(records: Any) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


# --- in turns ------------------------------------------------------------------------------------------


LOOKS: dict[str, Callable[[StoreReader], list[int]]] = {
    "poll": lambda reader: [each.offset for each in reader.poll()],
    "poll with a timeout": lambda reader: [each.offset for each in reader.poll(timeout_ms=50)],
    "records": lambda reader: [each.offset for each in reader],
    "follow": lambda reader: [each.offset for each in reader.follow(0)],
    "follow with a timeout": lambda reader: [each.offset for each in reader.follow(50)],
    "batches": lambda reader: [offset for each in reader.batches() for offset in each["offset"].to_pylist()],
    "batches with a timeout":
        lambda reader: [offset for each in reader.batches(timeout_ms=50) for offset in each["offset"].to_pylist()],
}  # fmt: skip


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("start", ["earliest", "latest", "error"])
def test_a_seek_to_what_was_appended_since_the_last_look(
    store: kafkalog.Store, tmp_path: Path, start: str, look: str
) -> None:
    topic = filled(store, 1)
    with kafkalog.open(tmp_path / "data", read_only=True) as beside:
        reader = beside.reader(topics=["t"], start=start, start_offsets={T0: 0})
        assert len(list(reader)) == 10
        topic.append_many([b"new"] * 10, partition=0)
        reader.seek(T0, 15)
        assert LOOKS[look](reader) == [15, 16, 17, 18, 19]
        reader.seek(T0, 99)  # out of range after all
        if start == "error":
            with pytest.raises(OffsetOutOfRangeException):
                LOOKS[look](reader)
        else:
            assert LOOKS[look](reader) == (list(range(20)) if start == "earliest" else [])


@pytest.mark.parametrize("notify", [True, False])
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("look", LOOKS)
def test_what_is_there_now(
    store: kafkalog.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str, read_only: bool, notify: bool
) -> None:
    if not notify:
        monkeypatch.setattr(waiting, "DirectoryWatch", Mock(side_effect=OSError))
    topic = filled(store, 2)
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(kafkalog.open(tmp_path / "data", read_only=True)) if read_only else store
        reader = stack.enter_context(opened.reader(topics=["t"]))
        assert sorted(LOOKS[look](reader)) == sorted([*range(10)] * 2)
        for offset in range(10, 20):
            assert LOOKS[look](reader) == []
            topic.append(b"new", partition=offset % 2)
            if offset % 8 == 0:
                store._own().partition(TopicPartition("t", offset % 2)).engine.roll()
            assert LOOKS[look](reader) == [10 + (offset - 10) // 2]


def test_a_chunk_reader_looks_again_before_it_judges_its_offset(store: kafkalog.Store, tmp_path: Path) -> None:
    topic = filled(store, 1)
    with kafkalog.open_log(tmp_path / "data", T0, read_only=True) as log:
        reader = log.reader()
        topic.append_many([b"new"] * 10, partition=0)
        reader.seek(15)
        assert [record.offset for record in reader.records()] == [15, 16, 17, 18, 19]


def test_all_partitions_in_order(store: kafkalog.Store) -> None:
    filled(store, 3)
    with store.reader(topics=["t"]) as reader:
        found = list(reader)
        assert sorted(places(found)) == [(p, n) for p in range(3) for n in range(10)]
        for partition in range(3):
            assert [each.value for each in found if each.partition == partition] == wanted(partition, 0, 10)
        assert {each.topic for each in found} == {"t"}
        assert reader.positions() == {TopicPartition("t", p): 10 for p in range(3)}
        assert set(reader.lag().values()) == {0}
        assert list(reader) == []
        store.topic("t").append(b"more", partition=1)
        assert reader.lag()[T1] == 1
        assert values(reader) == [b"more"]


def test_partitions_take_turns(store: kafkalog.Store) -> None:
    filled(store, 2, 300)
    with store.reader(topics=["t"], chunk_bytes=1000) as reader:
        turns = [partition for partition, _ in places(reader)]
    changes = sum(before != after for before, after in itertools.pairwise(turns))
    assert changes > 10
    assert turns.count(0) == turns.count(1) == 300


def test_only_what_was_there_at_the_beginning_bounds_records(store: kafkalog.Store) -> None:
    topic = filled(store, 1, 3)
    with store.reader(topics=["t"], chunk_bytes=100) as reader:
        seen = 0
        for _ in reader:
            seen += 1
            topic.append(b"another")
            assert seen < 20
        assert seen < 10


def test_a_loop_that_is_left_goes_on_behind_its_last_record(store: kafkalog.Store) -> None:
    filled(store, 1)
    reader = store.reader(topics=["t"])
    for number in range(10):
        for record in reader:
            assert record.offset == number
            break
        assert reader.position("t-0") == number + 1
    assert list(reader) == []


def test_an_older_iterator_is_refused(store: kafkalog.Store) -> None:
    filled(store, 1)
    reader = store.reader(topics=["t"])
    old = reader.records()
    assert next(old).offset == 0
    assert next(iter(reader.follow(timeout_ms=0))).offset == 1
    with pytest.raises(IllegalStateException, match="another iteration"):
        next(old)
    old_batches = reader.batches(batch_rows=2)
    assert next(old_batches)["offset"].to_pylist() == [2, 3]
    assert next(reader.records()).offset == 4
    with pytest.raises(IllegalStateException, match="another iteration"):
        next(old_batches)
    assert reader.position(T0) == 5


def test_poll(store: kafkalog.Store) -> None:
    filled(store)
    reader = store.reader(topics=["t"])
    found = []
    while records := reader.poll(4):
        assert len(records) <= 4
        found += places(records)
    assert sorted(found) == [(p, n) for p in range(2) for n in range(10)]
    assert reader.poll() == []
    assert reader.poll(timeout_ms=5) == []
    store.topic("t").append(b"x", partition=0)
    assert values(reader.poll(timeout_ms=5)) == [b"x"]


@pytest.mark.parametrize("call", ["poll", "read_arrow"])
def test_an_interrupt_within_a_move_takes_no_record(
    store: kafkalog.Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    filled(store)
    interrupts = 0
    for number in itertools.count(1):
        reader, left = store.reader(topics=["t"]), [number]

        def interrupted_max(*given: int, left: list[int] = left) -> int:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return max(*given)

        with monkeypatch.context() as patched:
            patched.setattr(partition_reader, "max", interrupted_max, raising=False)
            try:
                getattr(reader, call)()
                break
            except KeyboardInterrupt:
                interrupts += 1
        assert sorted(places(list(reader))) == [(p, n) for p in range(2) for n in range(10)], number
    assert interrupts > 10


# --- where it stands -----------------------------------------------------------------------------------


def test_seek_pause_and_resume_in_the_middle(store: kafkalog.Store) -> None:
    filled(store)
    reader = store.reader(topics=["t"])
    found = []
    for record in reader.follow(timeout_ms=0):
        found.append((record.partition, record.offset))
        if len(found) == 2:
            reader.pause(T0)
            assert reader.paused == [T0]
        if found[-1] == (1, 4) and found.count((1, 4)) == 1:
            reader.seek(T1, 2)
    assert found == [(0, 0), (0, 1), *[(1, n) for n in range(5)], *[(1, n) for n in range(2, 10)]]
    assert reader.positions() == {T0: 2, T1: 10}
    assert list(reader) == []
    reader.resume()
    assert places(reader) == [(0, n) for n in range(2, 10)]
    reader.seek("t-0", 9)
    assert reader.lag() == {T0: 1, T1: 0}
    assert places(reader) == [(0, 9)]
    for wrong in ("t-7", ("u", 0)):
        with pytest.raises(IllegalStateException, match="is not read"):
            reader.seek(wrong, 0)


def test_seek_to_time(store: kafkalog.Store) -> None:
    topic = store.create_topic("t", 2)
    for n in range(10):
        topic.append(b"%d" % n, timestamp=1000 + n, partition=0)
    reader = store.reader(topics=["t"], start="latest")
    assert reader.positions() == {T0: 10, T1: 0}
    reader.seek_to_time(1007)
    assert values(reader) == [b"7", b"8", b"9"]
    reader.seek_to_time(2000, T0)
    assert reader.position(T0) == 10


def test_starts(store: kafkalog.Store) -> None:
    topic = filled(store)
    with pytest.raises(NoOffsetForPartitionException, match="t-0"):
        store.reader("c", topics=["t"], start="error")
    latest = store.reader("c", topics=["t"], start="latest", start_offsets={"t-1": 8})
    topic.append(b"new", partition=0)
    assert sorted(values(latest)) == [b"1-8", b"1-9", b"new"]
    latest.commit()
    latest.close()
    assert store.reader("c", topics=["t"], start="error").positions() == {T0: 11, T1: 10}
    assert store.reader("c", partitions=["t-1"], start_offsets={T1: 3}).positions() == {T1: 3}
    assert store.reader("c").assignment == [T0, T1]


def test_filters(store: kafkalog.Store) -> None:
    topic = store.create_topic("t")
    topic.append_many([(b"%d" % n, b"k%d" % (n % 3), (), 1000 + n) for n in range(30)])
    topic.append(b"no key", timestamp=1020)
    topic.append_many([(b"old", b"k1", (), 5)])
    reader = store.reader(topics=["t"], key_prefix=b"k1", start_time=1010, end_time=1020)
    assert values(reader) == [b"10", b"13", b"16", b"19"]
    assert reader.lag() == {T0: 12}  # from the first record at the end on
    assert reader.position(T0) == 20
    arrow = store.reader(topics=["t"], key_prefix=b"k1", start_time=1010, end_time=1020)
    assert [row for batch in arrow.batches(["value"]) for row in batch["value"].to_pylist()] == [
        b"10", b"13", b"16", b"19",
    ]  # fmt: skip
    assert arrow.lag() == {T0: 12}
    assert store.reader(topics=["t"], start_time=5000).position(T0) == 32
    # one that came too late is in the range by its timestamp
    assert values(store.reader(topics=["t"], end_time=10)) == [b"old"]


READS: dict[str, Callable[[Any], list[bytes]]] = {
    "iterate": values,
    "records": lambda reader: values(reader.records()),
    "follow": lambda reader: values(reader.follow(timeout_ms=1)),
    "poll": lambda reader: values(reader.poll()),
    "polls": lambda reader: [each for _ in range(20) for each in values(reader.poll(3))],
    "async": lambda reader: asyncio.run(collected(reader)),
    "arrow": lambda reader: reader.read_arrow(["value"])["value"].to_pylist(),
    "batches": lambda reader: [
        each for batch in reader.batches(["value"], batch_rows=3) for each in batch["value"].to_pylist()
    ],
}


async def collected(reader: Any) -> list[bytes]:
    return [record.value async for record in reader]


@pytest.mark.parametrize("is_group", [False, True])
@pytest.mark.parametrize("how", READS)
@pytest.mark.parametrize("one_batch", [False, True])
@pytest.mark.parametrize("end", [{"end": 10}, {"end_time": NOW_MS + 10}])
def test_what_is_behind_the_end_is_for_later_readers(
    store: kafkalog.Store, is_group: bool, how: str, one_batch: bool, end: dict[str, Any]
) -> None:
    topic = store.create_topic("t")
    records = [(b"%d" % each, None, (), NOW_MS + each) for each in range(30)]
    for some in [records] if one_batch else [[each] for each in records]:
        topic.append_many(some)
    with store.reader("c", topics=["t"], group=is_group, **end) as reader:
        assert READS[how](reader) == wanted_values(0, 10)
        assert reader.positions() == {T0: 10} == {T0: reader.position(T0)}
        assert "t-0@10" in repr(reader)
        assert reader.lag() == {T0: 20}
        assert READS[how](reader) == []
        assert reader.commit() == {T0: 10}
    with store.reader("c", topics=["t"], group=is_group, **end) as reader:
        assert READS[how](reader) == []
        assert reader.commit() == {T0: 10}
    with store.reader("c", topics=["t"], group=is_group) as reader:
        assert READS[how](reader) == wanted_values(10, 30)


def wanted_values(start: int, end: int) -> list[bytes]:
    return [b"%d" % each for each in range(start, end)]


@pytest.mark.parametrize("how", READS)
def test_a_record_that_came_late_comes_again_behind_the_end(store: kafkalog.Store, how: str) -> None:
    times = [1, 2, 12, 3, 13, 4]
    store.create_topic("t").append_many([(b"%d" % each, None, (), NOW_MS + each) for each in times])
    with store.reader("c", topics=["t"], end_time=NOW_MS + 10) as reader:
        assert READS[how](reader) == [b"1", b"2", b"3", b"4"]
        assert reader.commit() == {T0: 2}
    with store.reader("c", topics=["t"], end_time=NOW_MS + 13) as reader:
        assert READS[how](reader) == [b"12", b"3", b"4"]
        assert reader.commit() == {T0: 4}


def test_the_end_after_a_seek(store: kafkalog.Store) -> None:
    topic = store.create_topic("t")
    topic.append_many([(b"%d" % each, None, (), NOW_MS + each) for each in range(30)])
    for end in ({"end": 10}, {"end_time": NOW_MS + 10}):
        with store.reader("c", topics=["t"], **end) as reader:
            assert values(reader) == wanted_values(0, 10)
            reader.seek(T0, 20)
            assert reader.positions() == {T0: 20}
            assert values(reader) == []
            assert reader.commit() == {T0: 20}
            reader.seek(T0, 5)
            assert reader.positions() == {T0: 5}
            assert values(reader) == wanted_values(5, 10)
            assert reader.commit() == {T0: 10}
            reader.commit({T0: 3})
            reader.rewind()
            assert values(reader.poll(2)) == wanted_values(3, 5)
            assert reader.commit() == {T0: 5}
        store.delete_cursor("c")
    with store.reader("c", topics=["t"], end=10, start_offsets={T0: 15}) as reader:
        assert values(reader) == []
        assert reader.commit() == {T0: 15}


def test_excluded_records_before_the_end_count_as_read(store: kafkalog.Store) -> None:
    topic = store.create_topic("t")
    topic.append_many([(b"%d" % each, b"k%d" % (each % 2), (), NOW_MS + each) for each in range(20)])
    for end in ({"end": 9}, {"end_time": NOW_MS + 9}):
        with store.reader(topics=["t"], key="k0", **end) as reader:
            assert values(reader) == [b"0", b"2", b"4", b"6", b"8"]
            assert reader.positions() == {T0: 9}
    with store.reader(topics=["t"], key="k0") as reader:
        assert reader.positions() == {T0: 0}
        assert len(values(reader)) == 10
        assert reader.positions() == {T0: 20}


def test_an_interrupted_poll_up_to_an_end_comes_again(store: kafkalog.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = store.create_topic("t")
    topic.append_many([(b"%d" % each, None, (), NOW_MS + each % 12) for each in range(30)])
    with store.reader("c", topics=["t"], end_time=NOW_MS + 11) as reader:
        poll = reader._poll

        def interrupted(*args: Any) -> None:
            poll(*args)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(reader, "_poll", interrupted)
            with pytest.raises(KeyboardInterrupt):
                reader.poll()
        assert reader.positions() == {T0: 0}
        assert values(reader.poll()) == [each for each in wanted_values(0, 30) if each not in (b"11", b"23")]
        assert reader.commit() == {T0: 11}


def test_read_committed_passes_over_what_nobody_sees(store: kafkalog.Store) -> None:
    topic = store.create_topic("t")
    appends = topic.appends(0)

    def transaction(number: int, kind: ControlRecordType | None) -> None:
        appends.append_as(ProducerFields(number, 0, 0, True), [b"txn%d" % number])
        if kind is not None:
            write_marker(appends, number, kind)

    transaction(1, ControlRecordType.COMMIT)
    transaction(2, ControlRecordType.ABORT)
    committed = store.reader(topics=["t"], isolation="read_committed")
    both = store.reader(topics=["t"])
    assert values(committed) == [b"txn1"]
    assert committed.lag() == {T0: 0}
    assert committed.position(T0) == 4
    assert values(both) == [b"txn1", b"txn2"]
    assert both.lag() == {T0: 0}
    transaction(3, None)
    topic.append(b"behind")
    assert values(committed) == []
    assert committed.position(T0) == 4
    assert committed.lag() == {T0: 0}
    assert values(committed.follow(timeout_ms=20)) == []
    assert values(both) == [b"txn3", b"behind"]
    assert sum(batch.num_rows for batch in committed.batches()) == 0
    write_marker(appends, 3, ControlRecordType.COMMIT)
    assert [row for batch in committed.batches() for row in batch["value"].to_pylist()] == [b"txn3", b"behind"]
    assert committed.lag() == {T0: 0}
    # a position beyond the last stable offset waits for that, and does not spin
    transaction(4, None)
    committed.seek(T0, appends.engine.log_end_offset)
    assert list(committed.follow(timeout_ms=20)) == []


# --- logs that change ----------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["earliest", "latest", "error"])
def test_an_offset_that_retention_took(store: kafkalog.Store, start: str) -> None:
    topic = filled(store, 1)
    reader = store.reader("c", topics=["t"], start=start, start_offsets={T0: 2})
    reader.commit()
    topic.appends(0).engine.delete_records(6)
    again = store.reader("c", topics=["t"], start=start, shared=True)
    assert again.position(T0) == 2
    for each in (reader, again):
        if start == "error":
            with pytest.raises(OffsetOutOfRangeException):
                list(each)
            assert each.position(T0) == 2
            each.seek(T0, 6)
            assert values(each) == wanted(0, 6, 10)
        else:
            assert values(each) == (wanted(0, 6, 10) if start == "earliest" else [])
        assert each.lag() == {T0: 0}


def test_a_log_that_was_cut_is_read_anew(store: kafkalog.Store) -> None:
    topic = filled(store, 1)
    reader = store.reader(topics=["t"])
    assert len(list(reader)) == 10
    topic.appends(0).engine.truncate_to(6)
    assert values(reader) == wanted(0, 0, 6)  # as Kafka: out of range, and "earliest"
    topic.append(b"x")
    assert values(reader) == [b"x"]


def test_new_partitions_and_topics(store: kafkalog.Store) -> None:
    filled(store, 1, 1)
    reader = store.reader(topics=["t"], start="latest")
    store.add_partitions("t", 3)
    store.topic("t").append(b"x", partition=2)
    assert values(reader) == [b"x"]
    assert len(reader.assignment) == 3
    only = store.reader(partitions=["t-0"])
    store.add_partitions("t", 4)
    assert len(list(only)) == 1
    assert only.assignment == [T0]


def test_a_deleted_topic_is_told_once(store: kafkalog.Store) -> None:
    filled(store)
    store.create_topic("u").append(b"u")
    reader = store.reader(topics=["t", "u"])
    held = store.reader(partitions=["t-0", "u-0"], chunk_bytes=100)
    assert next(held.records()).topic == "t"
    store.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartitionException, match="'t'"):
        list(reader)
    assert values(reader) == [b"u"]
    assert reader.assignment == [TopicPartition("u", 0)]
    with pytest.raises(UnknownTopicOrPartitionException):
        list(held)
    assert values(held) == [b"u"]
    filled(store)  # with the same name: another topic
    assert values(reader) == []


def test_a_topic_that_was_made_anew_is_another(store: kafkalog.Store) -> None:
    filled(store, 1)
    reader = store.reader("c", topics=["t"], partitions=None)
    list(reader)
    reader.commit()
    store.delete_topic("t")
    filled(store, 1)
    with pytest.raises(UnknownTopicOrPartitionException, match="another topic of that name"):
        list(reader)
    reader.close()
    assert store.reader("c", topics=["t"]).position(T0) == 0


def test_it_follows_a_log_that_was_moved(tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    with kafkalog.open(dirs) as store:
        topic = filled(store, 1)
        reader = store.reader(topics=["t"], chunk_bytes=100)
        walk = reader.follow(timeout_ms=50)
        found = [next(walk).value for _ in range(2)]
        engine = topic.appends(0).engine
        target = next(str(each) for each in dirs if str(each) != engine.parent_dir)
        store.manager.move(T0, target)
        topic.append(b"moved")
        assert topic.appends(0).engine is not engine
        assert found + values(walk) == [*wanted(0, 0, 10), b"moved"]
        assert reader.lag() == {T0: 0}


def test_it_is_made_while_another_process_moves_its_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    recheck = TopicView.recheck
    with kafkalog.open(dirs) as store, kafkalog.open(dirs, read_only=True) as looking:
        topic = filled(store, 1)

        def moved(view: TopicView) -> None:
            """Between the look for its directory and the look into it."""
            monkeypatch.setattr(TopicView, "recheck", recheck)
            engine = topic.appends(0).engine
            store.manager.move(T0, next(str(each) for each in dirs if str(each) != engine.parent_dir))
            view.recheck()

        monkeypatch.setattr(TopicView, "recheck", moved)
        with looking.reader(topics=["t"], start="earliest") as reader:
            assert values(reader) == wanted(0, 0, 10)


def test_a_directory_that_fails_is_told(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    store = kafkalog.open([tmp_path / "a", tmp_path / "b"], files=files)
    topic = store.create_topic("t", 2)
    for partition in range(2):
        topic.append(b"%d" % partition, partition=partition)
    reader = store.reader(topics=["t"])
    files.fault = Fault(files.count, errno.EIO)
    with pytest.raises(KafkaStorageException):
        topic.append(b"x", partition=0)
    files.fault = None
    found: list[bytes | None] = []
    for _ in range(3):
        with pytest.raises(KafkaStorageException):
            found.extend(record.value for record in reader.follow(timeout_ms=1))
    assert found == [b"1"]  # the other directory continues
    with contextlib.suppress(KafkaStorageException):  # if it is not yet removed
        store.close()


def test_damage_comes_behind_what_lies_before_it(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        filled(store, 2)
    path = tmp_path / "t-0" / ("0" * 20 + ".log")
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with kafkalog.open(tmp_path, maintenance=False) as store:
        for read in (lambda it: list(it), lambda it: list(it.follow(timeout_ms=0)), lambda it: list(it.batches())):
            reader = store.reader(topics=["t"])
            with pytest.raises(CorruptRecordException) as raised:
                read(reader)
            assert raised.value.path == str(path)
            assert reader.position(T0) == 9
            reader.pause(T0)
            list(reader)
            assert reader.position(T1) == 10
            reader.resume(T0)
            with pytest.raises(CorruptRecordException):
                read(reader)
        reader = store.reader(topics=["t"])
        assert len(reader.poll(100)) in (9, 19)


# --- Arrow ---------------------------------------------------------------------------------------------


def test_arrow_batches(store: kafkalog.Store) -> None:
    filled(store, 2, 100)
    reader = store.reader("c", topics=["t"])
    seen: dict[int, list[int]] = {0: [], 1: []}
    for batch in reader.batches(batch_rows=30):
        assert batch.num_rows <= 30
        [partition] = set(batch["partition"].to_pylist())
        assert set(batch["topic"].to_pylist()) == {"t"}
        seen[partition] += batch["offset"].to_pylist()
        assert reader.position(TopicPartition("t", partition)) == seen[partition][-1] + 1
        assert reader.commit()[TopicPartition("t", partition)] == seen[partition][-1] + 1
    assert seen == {0: list(range(100)), 1: list(range(100))}
    assert reader.batches().__iter__ is not None
    assert list(reader.batches()) == []
    with pytest.raises(IllegalArgumentException, match="unknown column"):
        reader.batches(["colour"])
    reader.seek(T0, 95)
    assert next(reader.batches(["offset"])).to_pydict() == {"offset": [95, 96, 97, 98, 99]}


def test_arrow_and_records_take_each_other_over(store: kafkalog.Store) -> None:
    filled(store, 1)
    reader = store.reader(topics=["t"])
    assert next(reader.records()).offset == 0
    assert next(reader.batches(["offset"], batch_rows=4)).to_pydict() == {"offset": [1, 2, 3]}
    assert values(reader.poll(2)) == wanted(0, 4, 6)
    assert [n for batch in reader.batches(["offset"]) for n in batch["offset"].to_pylist()] == [6, 7, 8, 9]


def test_a_seek_between_arrow_batches(store: kafkalog.Store) -> None:
    filled(store, 1)
    reader = store.reader(topics=["t"])
    found = []
    for batch in reader.batches(["offset"], batch_rows=5):
        found.append(batch["offset"].to_pylist())
        if len(found) == 1:
            reader.seek(T0, 8)
    assert found == [[0, 1, 2, 3, 4], [8, 9]]
    assert reader.lag() == {T0: 0}


# --- asyncio -------------------------------------------------------------------------------------------


def test_async_for(store: kafkalog.Store) -> None:
    topic = filled(store)

    async def main() -> None:
        reader = store.reader("c", topics=["t"])
        found = []
        async for record in reader:
            found.append((record.partition, record.offset))
            assert reader.position(TopicPartition("t", record.partition)) == record.offset + 1
        assert sorted(found) == [(p, n) for p in range(2) for n in range(10)]
        asyncio.get_running_loop().call_later(0.05, lambda: topic.append(b"later", partition=0))
        assert [record.value async for record in reader.follow(timeout_ms=400)] == [b"later"]
        reader.seek(T1, 4)
        rows = [batch["value"].to_pylist() async for batch in reader.batches(batch_rows=3)]
        assert [value for row in rows for value in row] == wanted(1, 4, 10)
        assert set(reader.lag().values()) == {0}

    asyncio.run(main())


@pytest.mark.parametrize("what", ["records", "batches"])
def test_a_cancelled_task_loses_nothing(store: kafkalog.Store, what: str) -> None:
    topic = filled(store, 1, 1)
    found: list[bytes] = []

    async def follow(reader: StoreReader) -> None:
        if what == "records":
            async for record in reader.follow():
                found.append(record.value or b"")
        else:
            async for batch in reader.batches(timeout_ms=None):
                found.extend(batch["value"].to_pylist())

    async def main() -> None:
        reader = store.reader(topics=["t"])
        for number in range(30):
            task = asyncio.create_task(follow(reader))
            await asyncio.sleep(0.001 * (number % 4))
            topic.append(b"%d" % number)
            await asyncio.sleep(0.0005 * (number % 3))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        found.extend(values(reader))

    asyncio.run(main())
    assert found == [b"0-0", *(b"%d" % number for number in range(30))]


def test_an_error_of_a_thread_reaches_the_task(store: kafkalog.Store) -> None:
    filled(store, 1)

    async def main() -> None:
        reader = store.reader(topics=["t"])

        async def follow() -> None:
            async for _ in reader.follow():
                pass

        task = asyncio.create_task(follow())
        await asyncio.sleep(0.05)
        store.close()
        with pytest.raises(IllegalStateException, match="closed"):
            await task

    asyncio.run(main())


# --- who may -------------------------------------------------------------------------------------------


def test_two_threads_are_refused(store: kafkalog.Store) -> None:
    filled(store, 1)
    reader = store.reader("c", topics=["t"])
    list(reader)
    waits = threading.Thread(target=lambda: list(reader.follow(timeout_ms=400)))
    waits.start()
    engine = store.topic("t").appends(0).engine
    while not engine.waiters:
        assert waits.is_alive()
    for call in (reader.commit, reader.poll, reader.lag, reader.rewind, lambda: next(reader.records())):
        with pytest.raises(RuntimeError, match="another thread"):
            call()
    waits.join()
    assert engine.waiters == []
    assert reader.commit() == {T0: 10}


def test_closed(store: kafkalog.Store) -> None:
    filled(store, 1)
    reader = store.reader("c", topics=["t"])
    walk = reader.records()
    next(walk)
    reader.close()
    reader.close()
    assert reader.closed
    for call in (
        reader.records, reader.poll, reader.batches, reader.commit, reader.rewind, lambda: reader.seek(T0, 0),
    ):  # fmt: skip
        with pytest.raises(IllegalStateException, match="closed"):
            call()
    other = store.reader(topics=["t"])
    store.close()
    for call in (other.records, other.poll, other.lag):
        with pytest.raises(IllegalStateException, match="closed"):
            call()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, IllegalArgumentException),
        ({"topics": "t"}, IllegalArgumentException),
        ({"topics": [b"t"]}, IllegalArgumentException),
        ({"topics": ["t"], "partitions": ["t-0"]}, IllegalArgumentException),
        ({"topics": ["unknown"]}, UnknownTopicOrPartitionException),
        ({"partitions": ["t-9"]}, UnknownTopicOrPartitionException),
        ({"partitions": ["t"]}, InvalidTopicException),
        ({"topics": ["t"], "start": "none"}, IllegalArgumentException),
        ({"topics": ["t"], "start_offsets": {"t-9": 0}}, IllegalArgumentException),
        ({"topics": ["t"], "start_offsets": {"t-0": -1}}, IllegalArgumentException),
        ({"topics": ["t"], "isolation": "committed"}, IllegalArgumentException),
        ({"topics": ["t"], "key_prefix": 3}, IllegalArgumentException),
        ({"topics": ["t"], "start_time": 1.5}, IllegalArgumentException),
        ({"topics": ["t"], "start_time": 2000, "end_time": 1000}, IllegalArgumentException),
        ({"topics": ["t"], "chunk_bytes": 0}, IllegalArgumentException),
        ({"topics": ["t"], "cursor": ""}, IllegalArgumentException),
    ],
)
def test_types(store: kafkalog.Store, options: dict[str, Any], error: type[Exception]) -> None:
    filled(store)
    with pytest.raises(error):
        store.reader(**options)


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    example = textwrap.dedent((store_reader.__doc__ or "").split("\n\n")[1]).replace("timeout_ms=1000", "timeout_ms=50")
    with kafkalog.open("data") as store:
        store.create_topic("orders", 4).append(b"value", key=b"key")
    exec("import kafkalog\n" + example)
    assert capsys.readouterr().out == "b'key' b'value'\n"
    with kafkalog.open("data") as store:
        assert sum(row.offset for row in store.committed("billing").values()) == 1


# --- topics that go under a reader --------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("others", [False, True])
def test_a_deletion_is_told_once_behind_the_records_that_poll_has(
    tmp_path: Path, read_only: bool, others: bool
) -> None:
    with kafkalog.open(tmp_path) as writer:
        gone = writer.create_topic("gone", 2)
        writer.create_topic("other")
        for number in range(20):
            gone.append(b"%d" % number, partition=number % 2)
        store = kafkalog.open(tmp_path, read_only=True) if read_only else writer
        with store.reader(topics=["gone", "other"] if others else ["gone"], chunk_bytes=200) as reader:
            found = len(reader.poll(3))
            writer.topic("other").append_many([b"1", b"2", b"3"])
            writer.delete_topic("gone")
            told = there = 0
            until = time.monotonic() + 4
            while time.monotonic() < until and not (told and (there == 3 or not others)):
                try:
                    got = reader.poll(5, timeout_ms=50)
                except UnknownTopicOrPartitionException:
                    told += 1
                else:
                    found += sum(record.topic == "gone" for record in got)
                    there += sum(record.topic == "other" for record in got)
            assert 3 <= found <= 20
            assert 1 <= told <= 3  # for the topic, or for each of its partitions
            assert there == (3 if others else 0)
            if others:
                assert [str(each) for each in reader.assignment] == ["other-0"]
                assert reader.poll(5) == []
            elif not read_only:
                for _ in range(3):  # nothing is left to wait for
                    with pytest.raises(UnknownTopicOrPartitionException):
                        next(iter(reader.follow()), None)
        if read_only:
            store.close()


def test_nothing_to_read_is_refused(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("t")
        for given in ({"topics": []}, {"partitions": []}):
            with pytest.raises(IllegalArgumentException, match="found none, expected at least one"):
                store.reader(**given)  # type: ignore[arg-type]
