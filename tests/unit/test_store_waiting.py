"""Waiting readers: new records wake them, wherever they come from, and nothing else is held forever."""

from __future__ import annotations

import contextlib
import errno
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import kafkalog
from kafkalog._face.partition_reader import PartitionReader
from kafkalog._face.waiting import Waiting
from kafkalog._native.state.bell import Bell
from kafkalog.engine.files import OS_FILES, notify
from kafkalog.engine.format.batch import ProducerFields
from kafkalog.engine.format.control import ControlRecordType
from kafkalog.engine.format.names import TopicPartition
from kafkalog.errors import IllegalStateException, KafkaStorageException, UnknownTopicOrPartitionException
from kafkalog.reader import StoreReader
from tests.client_transaction import write_marker
from tests.file_doubles import Fault, FaultyFiles

SOON_S = 0.8  # below what would wake a waiter anyway


class Following:
    """A thread that follows; its records, and how it ended."""

    def __init__(self, store: kafkalog.Store, reader: StoreReader, timeout_ms: int | None = None) -> None:
        self.found: list[Any] = []
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self.run, args=(reader, timeout_ms), daemon=True)
        self.thread.start()
        if not store.read_only:
            engines = [store._own().partition(each).engine for each in reader.assignment]
            until(lambda: not self.thread.is_alive() or all(engine.waiters for engine in engines))

    def run(self, reader: StoreReader, timeout_ms: int | None) -> None:
        try:
            for record in reader.follow(timeout_ms):
                self.found.append(record.value)
        except BaseException as error:
            self.error = error

    def ended(self) -> BaseException | None:
        started = time.monotonic()
        self.thread.join(30)
        assert not self.thread.is_alive()
        assert time.monotonic() - started < SOON_S
        return self.error


def until(true: Callable[[], object]) -> float:
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < 20
        time.sleep(0.001)
    return time.monotonic() - started


def test_a_bell() -> None:
    bell = Bell()
    assert not bell.wait(0)
    assert not bell.wait(-1)
    bell.release()
    bell.release()
    assert bell.wait(0)
    assert not bell.wait(0.01)
    threading.Timer(0.05, bell.release).start()
    assert bell.wait(20)
    threads = [threading.Thread(target=lambda: [bell.release() for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        bell.wait(0.001)
    bell.wait(0)
    bell.release()
    assert bell.wait(0)


def test_any_partition_wakes(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("t", 20)
        following = Following(store, store.reader(topics=["t"]))
        for number in range(40):
            topic.append(b"%d" % number, partition=number % 20)
            assert until(lambda number=number: len(following.found) > number) < SOON_S  # type: ignore[misc]
        assert following.found == [b"%d" % number for number in range(40)]
        store.close()
        assert isinstance(following.ended(), IllegalStateException)


def test_it_leaves_nothing_behind(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("t", 3)
        reader = store.reader(topics=["t"])
        started = time.monotonic()
        assert list(reader.follow(timeout_ms=50)) == []
        assert reader.poll(timeout_ms=20) == []
        assert 0.06 < time.monotonic() - started < 5
        for partition in range(3):
            assert store._own().partition(TopicPartition("t", partition)).engine.waiters == []


def test_the_end_of_a_transaction_wakes(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        appends = store.create_topic("t").appends(0)
        appends.append_as(ProducerFields(7, 0, 0, True), [b"a"])
        following = Following(store, store.reader(topics=["t"], isolation="read_committed"))
        store.topic("t").append(b"b")
        assert following.found == []
        write_marker(appends, 7, ControlRecordType.COMMIT)
        assert until(lambda: len(following.found) == 2) < SOON_S


def test_new_partitions_and_deletions_wake(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("t")
        following = Following(store, store.reader(topics=["t"], start="latest"))
        store.add_partitions("t", 2)
        store.topic("t").append(b"x", partition=1)
        assert until(lambda: following.found == [b"x"]) < SOON_S
        store.delete_topic("t")
        assert isinstance(following.ended(), UnknownTopicOrPartitionException)


def test_a_move_goes_on(tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    with kafkalog.open(dirs) as store:
        topic = store.create_topic("t")
        following = Following(store, store.reader(topics=["t"]))
        for number in range(4):
            present = topic.appends(0).engine.parent_dir
            store.manager.move("t-0", next(str(each) for each in dirs if str(each) != present))
            topic.append(b"%d" % number)
            assert until(lambda number=number: len(following.found) > number) < SOON_S  # type: ignore[misc]
        assert following.found == [b"0", b"1", b"2", b"3"]


def test_a_move_by_another_process_goes_on(tmp_path: Path) -> None:
    dirs = [tmp_path / "a", tmp_path / "b"]
    with kafkalog.open(dirs) as store:
        topic = store.create_topic("t")
        with kafkalog.open(dirs, read_only=True) as view:
            following = Following(view, view.reader(topics=["t"]))
            for number in range(3):
                topic.append(b"%d" % number)
                until(lambda number=number: len(following.found) > number)  # type: ignore[misc]
                present = topic.appends(0).engine.parent_dir
                store.manager.move("t-0", next(str(each) for each in dirs if str(each) != present))
            topic.append(b"last")
            until(lambda: len(following.found) == 4)
            store.delete_topic("t")
            following.thread.join(20)
            assert isinstance(following.error, UnknownTopicOrPartitionException)


@pytest.mark.parametrize("read_only", [False, True])
def test_closes_end_it(tmp_path: Path, read_only: bool) -> None:
    with kafkalog.open(tmp_path) as store:
        store.create_topic("t", 2)
        for what in ("reader", "store"):
            opened = kafkalog.open(tmp_path, read_only=True) if read_only else store
            reader = opened.reader(topics=["t"])
            following = Following(opened, reader)
            time.sleep(0.05)
            (reader if what == "reader" else opened).close()
            assert isinstance(following.ended(), IllegalStateException)


def test_a_disk_that_fails_is_told(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    store = kafkalog.open([tmp_path / "a", tmp_path / "b"], files=files)
    topic = store.create_topic("t")
    following = Following(store, store.reader(topics=["t"]))
    files.fault = Fault(files.count, errno.EIO)
    with pytest.raises(KafkaStorageException):
        topic.append(b"a")
    files.fault = None
    following.thread.join(10)
    assert isinstance(following.error, KafkaStorageException)
    with contextlib.suppress(KafkaStorageException):  # if it is not yet removed
        store.close()


@pytest.mark.parametrize("read_only", [False, True])
def test_ctrl_c_comes_through(tmp_path: Path, read_only: bool) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with kafkalog.open(tmp_path) as store:
            topic = store.create_topic("t", 2)
            opened = kafkalog.open(tmp_path, read_only=True) if read_only else store
            reader = opened.reader(topics=["t"])
            for wait in (lambda: list(reader.follow()), lambda: reader.poll(timeout_ms=None)):
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                started = time.monotonic()
                with pytest.raises(KeyboardInterrupt):
                    wait()
                assert time.monotonic() - started < SOON_S
            assert store._own().partition(TopicPartition("t", 0)).engine.waiters == []
            topic.append(b"x")
            assert [record.value for record in reader] == [b"x"]
            opened.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_what_was_told_is_looked_at_whatever_else_ends_the_wait(tmp_path: Path) -> None:
    with kafkalog.open(tmp_path) as store:
        topic = store.create_topic("t", 2)
        with kafkalog.open(tmp_path, read_only=True) as view:
            watched = [
                PartitionReader(
                    view._home.source(TopicPartition("t", n)),
                    0,
                    topic_id="",
                    isolation="read_uncommitted",
                    reset="error",
                )
                for n in range(2)
            ]
            waiting = Waiting()
            waiting.wait(watched, 0.0, lambda: True)
            for number in range(2):
                topic.append(b"x", partition=number)
                waiting.wait(watched, 20.0, lambda: True)
                assert [each.may_have_more() for each in watched] == [True, number == 1]
            waiting.close()


def test_what_is_told_of_a_directory(tmp_path: Path) -> None:
    watch = notify.DirectoryWatch()
    try:
        folder = tmp_path / "a"
        folder.mkdir()
        watch.add(str(folder))
        assert watch.watches(str(folder))
        assert watch.changed() == set()
        (folder / "x").write_bytes(b"1")
        watch.wait(20)
        assert watch.changed() == {str(folder)}
        assert watch.changed() == set()
        watch.release()
        started = time.monotonic()
        watch.wait(20)
        watch.wait(0.01)
        assert time.monotonic() - started < 10
        (folder / "x").unlink()
        folder.rmdir()
        assert watch.changed() == {str(folder)}
        assert not watch.watches(str(folder))
        with pytest.raises(FileNotFoundError):
            watch.add(str(folder))
    finally:
        watch.close()
        watch.close()
