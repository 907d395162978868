"""`Partition.await_offset` wakes a follower of a log when records come, and nothing else is held forever."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import ClassVar
from unittest.mock import Mock

import pytest

import kafkalog
from kafkalog.engine.files import OS_FILES, notify
from kafkalog.errors import IllegalArgumentException, IllegalStateException, KafkaStorageException
from tests.file_doubles import Fault, FaultyFiles
from tests.unit.doors import DOORS, open_door

SOON_S = 0.8  # far below what would wake a waiter anyway


class Waiting:
    """A thread that waits; `done` gives its answer, or raises its error."""

    def __init__(self, log: kafkalog.Partition, offset: int, **options: object) -> None:
        self.answer: object = None
        self.took_s = -1.0
        self.log = log
        self.thread = threading.Thread(target=self.run, args=(offset, options), daemon=True)
        self.thread.start()
        end = time.monotonic() + 10
        while self.thread.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
            if log.engine is None or log.engine.waiters:
                break

    def run(self, offset: int, options: dict[str, object]) -> None:
        try:
            self.answer = self.log.await_offset(offset, **options)  # type: ignore[arg-type]
        except Exception as error:
            self.answer = error

    def done(self) -> bool:
        started = time.monotonic()
        self.thread.join(30)
        self.took_s = time.monotonic() - started
        assert not self.thread.is_alive()
        if isinstance(self.answer, Exception):
            raise self.answer
        assert isinstance(self.answer, bool)
        return self.answer


def test_what_is_there_is_not_waited_for(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        assert not log.await_offset(0, timeout_ms=0)
        log.append_many([b"a", b"b"])
        assert log.await_offset(0)
        assert log.await_offset(1)
        log.delete_records(2)
        assert log.await_offset(0)
        started = time.monotonic()
        assert not log.await_offset(2, timeout_ms=50)
        assert 0.04 < time.monotonic() - started < 5
        assert log.engine is not None
        assert log.engine.waiters == []
    with kafkalog.open_log(tmp_path, "t-0", read_only=True) as log:
        assert log.await_offset(1)
        assert not log.await_offset(2, timeout_ms=30)


@pytest.mark.parametrize("door", DOORS)
def test_an_append_wakes_at_once(door: str, tmp_path: Path) -> None:
    with open_door(door, tmp_path, "t-0") as log:
        waiting, later = Waiting(log, 0), Waiting(log, 2)
        log.append(b"a")
        assert waiting.done()
        assert waiting.took_s < SOON_S
        log.append_many([b"b", b"c"])
        assert later.done()
        assert later.took_s < SOON_S


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("how", ["commit", "abort"])
def test_the_end_of_a_transaction_wakes_committed_readers(door: str, tmp_path: Path, how: str) -> None:
    with open_door(door, tmp_path, "t-0") as log:
        transaction = log.transaction("job")
        transaction.begin()
        transaction.append(b"a")
        assert log.await_offset(0, timeout_ms=0)
        assert not log.await_offset(0, isolation="read_committed", timeout_ms=10)
        waiting = Waiting(log, 0, isolation="read_committed")
        log.append(b"plain")
        getattr(transaction, how)()
        assert waiting.done()
        assert waiting.took_s < SOON_S


def test_a_close_is_told(tmp_path: Path) -> None:
    log = kafkalog.open_log(tmp_path, "t-0")
    waiting = Waiting(log, 0)
    log.close()
    with pytest.raises(IllegalStateException, match="is closed"):
        waiting.done()
    assert waiting.took_s < SOON_S
    with pytest.raises(IllegalStateException, match="is closed"):
        log.await_offset(0)
    view = kafkalog.open_log(tmp_path, "t-0", read_only=True)
    waiting = Waiting(view, 0)
    view.close()
    with pytest.raises(IllegalStateException, match="closed"):
        waiting.done()


@pytest.mark.parametrize("door", DOORS)
def test_after_a_truncation_it_waits_for_the_offset_anew(door: str, tmp_path: Path) -> None:
    with open_door(door, tmp_path, "t-0") as log:
        log.append(b"x")
        log.append_many([b"x"] * 4)
        in_vain, waiting = Waiting(log, 5, timeout_ms=300), Waiting(log, 5)
        log.truncate(1)
        assert not in_vain.done()
        log.append_many([b"y"] * 4)
        assert waiting.thread.is_alive()
        log.append(b"z")
        assert waiting.done()


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with kafkalog.open_log(tmp_path, "t-0") as log:
            for source in (log, kafkalog.open_log(tmp_path, "t-0", read_only=True)):
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                started = time.monotonic()
                with pytest.raises(KeyboardInterrupt):
                    source.await_offset(0)
                assert time.monotonic() - started < 5
            assert log.engine is not None
            assert log.engine.waiters == []
            log.append(b"a")
            assert log.await_offset(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_another_process_writes(tmp_path: Path) -> None:
    with (
        kafkalog.open_log(tmp_path, "t-0") as log,
        kafkalog.open_log(tmp_path, "t-0", read_only=True) as view,
    ):
        waiting = Waiting(view, 0)
        log.append(b"a")
        assert waiting.done()
        with view.reader() as reader:
            assert [record.value for record in reader.records()] == [b"a"]
            log.append(b"b")
            assert view.await_offset(reader.offset, timeout_ms=10_000)
            assert [record.value for record in reader.records()] == [b"b"]


class Told(notify.DirectoryWatch):
    """Counts the notifications and the finished waits."""

    made: ClassVar[list[Told]] = []

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0
        Told.made.append(self)

    def wait(self, timeout_s: float) -> None:
        self.waits += 1
        super().wait(3600)  # no look by the clock


@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
def test_what_another_process_writes_wakes_without_a_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkalog._face.waiting.DirectoryWatch", Told)
    monkeypatch.setattr(Told, "made", [])
    with (
        kafkalog.open_log(tmp_path, "t-0") as log,
        kafkalog.open_log(tmp_path, "t-0", read_only=True) as view,
    ):
        waiting = Waiting(view, 1)
        for _ in range(2):
            until(lambda: Told.made and Told.made[0].waits)
            log.append(b"a")
        assert waiting.done()
        closed = Waiting(view, 2)
        until(lambda: len(Told.made) == 2 and Told.made[1].waits)
        view.close()
        with pytest.raises(IllegalStateException, match="closed"):
            closed.done()


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_without_notification_a_view_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkalog._face.waiting.DirectoryWatch", Mock(side_effect=OSError))
    with (
        kafkalog.open_log(tmp_path, "t-0") as log,
        kafkalog.open_log(tmp_path, "t-0", read_only=True) as view,
    ):
        assert not view.await_offset(0, timeout_ms=1)
        waiting = Waiting(view, 0)
        log.append(b"a")
        assert waiting.done()


def test_a_disk_that_fails_is_told(tmp_path: Path) -> None:
    files = FaultyFiles(OS_FILES)
    log = kafkalog.open_log(tmp_path, "t-0", files=files)
    waiting = Waiting(log, 0)
    files.fault = Fault(files.count, errno.EIO)
    with pytest.raises(KafkaStorageException):
        log.append(b"a")
    with pytest.raises(KafkaStorageException, match=os.strerror(errno.EIO)):
        waiting.done()
    with pytest.raises(KafkaStorageException):
        log.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda log: log.await_offset(-1),
        lambda log: log.await_offset(1.0),
        lambda log: log.await_offset(None),
        lambda log: log.await_offset(0, timeout_ms=-1),
        lambda log: log.await_offset(0, timeout_ms=0.5),
        lambda log: log.await_offset(0, isolation="committed"),
    ],
)
@pytest.mark.parametrize("door", DOORS)
def test_types(door: str, tmp_path: Path, call: Callable[[kafkalog.Partition], object]) -> None:
    with open_door(door, tmp_path, "t-0") as log, pytest.raises(IllegalArgumentException, match=r"found|unknown"):
        call(log)


@pytest.mark.parametrize("door", DOORS)
def test_the_longest_time(door: str, tmp_path: Path) -> None:
    with open_door(door, tmp_path, "t-0") as log:
        waiting = Waiting(log, 0, timeout_ms=(1 << 63) - 1)
        log.append(b"a")
        assert waiting.done()
