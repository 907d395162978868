"""A store that is opened again in the same process: a second handle, the end of one handle, and refusals."""

from __future__ import annotations

import errno
import gc
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog._face import store_handles
from kafkalog.engine.files import ManualClock
from kafkalog.engine.files.dropped import wait_for_dropped
from kafkalog.errors import IllegalArgumentException, IllegalStateException, LogDirLockedException
from kafkalog.metrics import MetricsRegistry
from kafkalog.store import Store
from tests.file_doubles import Fault, FaultyFiles, UnsyncedFiles

FAST = UnsyncedFiles()


def open_at(where: Any, **options: Any) -> Store:
    return kafkalog.open(where, **{"files": FAST, **options})


def locked(where: Path) -> bool:
    return (where / ".lock").exists()


def test_a_cell_that_is_run_again(tmp_path: Path) -> None:
    store = open_at(tmp_path)
    store.create_topic("orders").append(b"1")
    first_repr = repr(store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            store = open_at(tmp_path)  # the handle before is dropped, and says nothing
            gc.collect()
    assert repr(store) == first_repr
    assert store.topic("orders").append(b"2").offset == 1
    store.close()
    assert not locked(tmp_path)
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_the_last_handle_closes_the_store(tmp_path: Path) -> None:
    first, second = open_at(tmp_path), open_at(tmp_path)
    first.create_topic("orders", 2)
    assert second.topics() == ["orders"]
    assert first.manager is second.manager
    first.close()
    first.close()
    assert (first.closed, second.closed) == (True, False)
    assert locked(tmp_path)
    for call in (first.topics, first.cursors, lambda: first.manager, lambda: first.create_topic("u")):
        with pytest.raises(IllegalStateException, match="is closed"):
            call()
    assert second.topic("orders").append(b"x").offset == 0
    with open_at(tmp_path) as third:
        assert third.topic("orders").append(b"y", partition=1).partition == 1
    assert second.topic("orders").append(b"z").partition in (0, 1)
    second.close()
    assert not locked(tmp_path)
    with open_at(tmp_path) as again:
        assert again.manager is not third._home.manager


def test_what_was_made_through_a_handle_ends_with_it(tmp_path: Path) -> None:
    with open_at(tmp_path) as stays:
        handle = open_at(tmp_path)
        topic = handle.create_topic("t")
        partition, writer, producer = topic.partition(0), topic.writer("w"), handle.producer(linger_ms=60_000)
        reader = handle.reader("billing", topics=["t"])
        txn = handle.transaction("job")
        txn.begin()
        txn.append("t", b"never seen")
        future = producer.send("t", b"sent")
        handle.close()
        assert future.result().offset == 1  # a producer's records are sent first
        assert producer.closed
        assert reader.closed
        assert partition.closed
        assert not txn.active
        calls = [
            lambda: topic.append(b"x"), lambda: topic.append_many([b"x"]), lambda: topic.append_columns([b"x"]),
            topic.flush, lambda: topic.info, lambda: partition.append(b"x"), lambda: list(partition),
            lambda: partition.high_watermark, lambda: writer.append(b"x"), lambda: producer.send("t", b"x"),
            reader.poll, reader.commit, lambda: txn.append("t", b"x"), txn.commit, lambda: handle.transaction("u"),
        ]  # fmt: skip
        for number, call in enumerate(calls):
            with pytest.raises(IllegalStateException, match="closed"):
                raise AssertionError((number, call()))
        assert stays.manager.get_log("t-0").last_stable_offset == stays.topic("t").partition(0).end_offset  # type: ignore[union-attr]
        assert [each.value for each in stays.topic("t").partition(0).records(isolation="read_committed")] == [b"sent"]
        with stays.reader("billing", topics=["t"]) as ours:  # the cursor is free
            assert len(ours.poll()) == 2
        assert stays.topic("t").append(b"on").offset > 2


def test_handles_are_of_one_store(tmp_path: Path) -> None:
    """Settings, new topics, writers' numbers, cursors and transactional ids are the store's, not the handle's."""
    with open_at(tmp_path) as one, open_at(tmp_path) as other:
        ours, theirs = one.create_topic("t"), other.topic("t")
        ours.append(b"x")
        theirs.append(b"x" * 100)
        other.alter_topic("t", {"max.message.bytes": "100"})
        for topic in (ours, theirs):
            with pytest.raises(kafkalog.errors.RecordTooLargeException):
                topic.append(b"x" * 200)
        assert ours.writer("w").append(b"1", sequence=0) == 2
        assert theirs.writer("w").next_sequence == 1
        with one.reader("billing", topics=["t"]) as reader:
            with pytest.raises(IllegalStateException, match="cursor 'billing' has a reader in this store already"):
                other.reader("billing", topics=["t"])
            reader.poll()
            with other.transaction("job") as txn:
                txn.commit_offsets(reader)
        assert [each.name for each in other.cursors()] == ["billing"]
        other.delete_topic("t")
        assert one.topics() == []


def test_the_same_directory_by_other_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.symlink(tmp_path, tmp_path / "link")
    with open_at("data") as store:
        for name in (tmp_path / "data", tmp_path / "link" / "data", "data/../data", ["data"]):
            with open_at(name) as again:
                assert again.manager is store.manager
    with open_at(["a", "b"]) as store, open_at([tmp_path / "b", "a"]) as again:
        assert again.manager is store.manager


CONFIG = {"flush.ms": "1000"}


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("durability", "os", "fsync"),
        ("config", CONFIG, {"flush.ms": "1"}),
        ("config", CONFIG, None),
        ("compression", None, "lz4"),
        ("maintenance", True, False),
        ("load", "all", "on demand"),
        ("clock", ManualClock(1), ManualClock(1)),
        ("metrics", MetricsRegistry(), MetricsRegistry()),
        ("take_over", False, True),
        ("broker_config", {"log.retention.ms": "5"}, {"log.retention.ms": "6"}),
        ("files", FAST, UnsyncedFiles()),
    ],
)
def test_other_arguments_are_refused_by_name(tmp_path: Path, name: str, first: object, second: object) -> None:
    with open_at(tmp_path, **{name: first}) as store:
        with pytest.raises(LogDirLockedException) as refused:
            open_at(tmp_path, **{name: second})
        told = str(refused.value)
        assert told.startswith(f"{name}: found ")
        assert "is open in this process already (opened at " in told
        assert f"{__file__}:" in told
        assert "log.retention.ms" not in told  # a broker's settings may have passwords
        with open_at(tmp_path, **{name: dict(first) if isinstance(first, dict) else first}) as again:
            assert again.manager is store.manager
        assert store.topics() == []


def test_other_directories_are_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with open_at(one):
        with pytest.raises(
            LogDirLockedException, match=r"log_dirs: found .*one, .*two, but the store of .*one is open"
        ):
            open_at([one, two])
        assert not two.exists() or not locked(two)
        with open_at(two) as other:
            other.create_topic("t")


def test_wrong_arguments_are_told_as_ever(tmp_path: Path) -> None:
    with open_at(tmp_path):
        for options in ({"durability": "soon"}, {"config": 5}, {"load": "some"}, {"maintenance": "yes"}, {"clock": 5}):
            with pytest.raises((IllegalArgumentException, TypeError)) as refused:
                open_at(tmp_path, **options)
            assert "already" not in str(refused.value)


def test_read_only_is_beside_it_as_ever(tmp_path: Path) -> None:
    with open_at(tmp_path) as store:
        store.create_topic("t").append(b"x")
        with open_at(tmp_path, read_only=True) as look:
            assert look.read_only
            assert [each.value for each in look.topic("t").partition(0)] == [b"x"]
        assert not store.closed


def test_an_open_that_fails_leaves_nothing(tmp_path: Path) -> None:
    before = dict(store_handles._PLACES)
    files = FaultyFiles(FAST)
    files.fault = Fault(2, errno.EIO)
    with pytest.raises(kafkalog.KafkalogError):
        open_at(tmp_path, files=files)
    assert {*store_handles._PLACES} <= {*before}
    with open_at(tmp_path) as store:
        store.create_topic("t")


def test_handles_that_are_all_dropped(tmp_path: Path) -> None:
    first, second = open_at(tmp_path), open_at(tmp_path)
    topic = first.create_topic("t")
    del first
    second.close()  # the topic holds the other handle, so this was not the last
    assert topic.append(b"x").offset == 0
    with pytest.warns(ResourceWarning, match="was dropped without being closed"):
        del topic
    gc.collect()
    wait_for_dropped()
    with open_at(tmp_path) as again:
        assert again.topic("t").partition(0).end_offset == 1


def test_a_closed_handle_tells_who_keeps_the_directory(tmp_path: Path) -> None:
    store = kafkalog.open(tmp_path, files=FAST)
    orders = store.create_topic("orders")
    line = sys._getframe().f_lineno - 2
    store = kafkalog.open(tmp_path, files=FAST)  # the cell, run again: the topic holds the first handle
    store.close()
    told = f"closed; the directory stays open: 1 other handle, opened at {__file__}:{line}>"
    assert repr(store) == f"<Store of {tmp_path}, {told}"
    with kafkalog.open(tmp_path, files=FAST) as third, kafkalog.open(tmp_path, files=FAST) as fourth:
        assert repr(store).count(__file__) == 2  # that of the last two is one line
        assert "3 other handles" in repr(store)
        third.close()
        assert "2 other handles" in repr(third)
    assert told in repr(fourth)
    orders._home.close()
    for each in (store, third, fourth):
        assert repr(each) == f"<Store of {tmp_path}, closed>"
    assert not locked(tmp_path)


def test_a_dropped_handle_counts_no_more(tmp_path: Path) -> None:
    first, second = open_at(tmp_path), open_at(tmp_path)
    del first
    second.close()
    assert not locked(tmp_path)


def test_threads_open_at_once(tmp_path: Path) -> None:
    found: list[Store] = []
    failed: list[BaseException] = []
    gate = threading.Barrier(6)

    def work() -> None:
        try:
            gate.wait()
            found.append(open_at(tmp_path))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed
    assert len({id(each.manager) for each in found}) == 1
    for each in found:
        assert locked(tmp_path)
        each.close()
    assert not locked(tmp_path)


def test_open_log_beside_a_store_is_refused(tmp_path: Path) -> None:
    """It shares the directory only with other `open_log`s; a store has its own partitions for that."""
    with open_at(tmp_path) as store:
        store.create_topic("t")
        with pytest.raises(LogDirLockedException):
            kafkalog.open_log(tmp_path, "t-0", files=FAST)
    with kafkalog.open_log(tmp_path, "t-0", files=FAST):
        with pytest.raises(LogDirLockedException):
            open_at(tmp_path)
        with pytest.raises(IllegalArgumentException, match="is open already in this process"):
            kafkalog.open_log(tmp_path, "t-0", files=FAST)


def test_a_callback_opens_the_store_that_waits_for_it(tmp_path: Path) -> None:
    told: list[object] = []

    def again(_: object) -> None:
        try:
            with open_at(tmp_path) as inner:
                told.append(inner.topics())
        except IllegalStateException as error:
            told.append(error)

    store = open_at(tmp_path)
    store.create_topic("t")
    producer = store.producer(linger_ms=60_000)
    producer.send("t", b"x").add_done_callback(again)
    closing = threading.Thread(target=store.close)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    assert told == [["t"]]
    assert store.closed
    assert not locked(tmp_path)
