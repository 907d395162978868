"""Operations inside operations of the same thread: a signal handler, or a finalizer that the collector runs, works on
the log that it interrupts.  The log's lock admits its own thread, so each such call must be refused or happen as a
whole: every acknowledged record exists once, at its offset."""

from __future__ import annotations

import collections
import contextlib
import gc
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.log import append as appending
from kafkalog.engine.log import ordinary, replay
from kafkalog.errors import IllegalStateException
from tests.live.crew import SECONDS, open_live

Count = Callable[[str, int], None]
WAYS = {
    "CreateTime": {},
    "LogAppendTime": {"message.timestamp.type": "LogAppendTime"},
    "rolls": {"internal.segment.bytes": "1000"},
}


class Acknowledged:
    """The acknowledged records, and the calls inside which they were appended."""

    def __init__(self, log: kafkalog.Partition) -> None:
        self.log = log
        self.records: list[tuple[int, bytes]] = []
        self.refused = 0
        self.inside = self.done = 0

    def append(self, value: bytes) -> None:
        self.records.append((self.log.append(value), value))

    def append_inside(self) -> None:
        self.inside += 1
        try:
            self.append(b"inside %d" % self.inside)
        except IllegalStateException:
            self.refused += 1
        self.done += 1

    def check(self) -> None:
        offsets = collections.Counter(offset for offset, _ in self.records)
        assert max(offsets.values()) == 1
        found = {record.offset: record.value for record in self.log}
        wrong = [(offset, value, found.get(offset)) for offset, value in self.records if found.get(offset) != value]
        assert not wrong, (len(wrong), wrong[:5])


@contextlib.contextmanager
def signals(handler: Callable[[], None], every_s: float) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda *_: handler())
    signal.setitimer(signal.ITIMER_REAL, every_s, every_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("short", [True, False], ids=["short", "long"])
def test_a_signal_handler_appends(
    base: Path, way: str, short: bool, monkeypatch: pytest.MonkeyPatch, count: Count
) -> None:
    monkeypatch.setattr(ordinary, "append", ordinary.short_way if short else ordinary.long_way)
    with open_live(base / "log", config=WAYS[way]) as log:
        told = Acknowledged(log)
        until = time.monotonic() + SECONDS / 2
        with signals(told.append_inside, 0.0004):
            number = 0
            while time.monotonic() < until:
                told.append(b"%d" % number)
                number += 1
        told.check()
    with open_live(base / "log", config=WAYS[way]) as log:
        told.log = log
        told.check()
    assert told.inside > 20
    count("appends inside others", told.inside)


class Garbage:
    """In a circle, so that only the collector ends it, wherever it happens to run."""

    def __init__(self, told: Acknowledged) -> None:
        self.told: Acknowledged | None = told
        self.me = self

    def __del__(self) -> None:
        told, self.told = self.told, None
        if told is not None:
            told.append_inside()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("short", [True, False], ids=["short", "long"])
def test_a_finalizer_appends(base: Path, way: str, short: bool, monkeypatch: pytest.MonkeyPatch, count: Count) -> None:
    monkeypatch.setattr(ordinary, "append", ordinary.short_way if short else ordinary.long_way)
    before = gc.get_threshold()
    with open_live(base / "log", config=WAYS[way]) as log:
        told = Acknowledged(log)
        try:
            for number in range(2000):
                gc.set_threshold(5 + number % 60)
                Garbage(told)
                told.append(b"%d" % number)
        finally:
            gc.set_threshold(*before)
        while told.done < 2000:  # another thread may be collecting
            gc.collect()
            time.sleep(0.001)
        told.check()
    count("appends inside others", told.inside)


def test_nothing_else_goes_on_inside_an_append(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every change, and close: that would wait for a thread which waits for the lock that this one holds."""
    monkeypatch.setattr(ordinary, "append", ordinary.long_way)
    with open_live(base / "log") as log:
        engine: Any = log.engine
        log.append(b"0")
        tried: dict[str, Callable[[], object]] = {
            "append": lambda: log.append(b"x"),
            "truncate": lambda: engine.truncate_to(0),
            "truncate fully": lambda: engine.truncate_fully_and_start_at(5),
            "roll": engine.roll,
            "retention": log.delete_old_segments,
            "delete records": lambda: log.delete_records(1),
            "epoch": lambda: engine.assign_epoch_start_offset(3, 5),
            "load": lambda: engine.load_producer_state(1),
            "shut down": engine.shut_down,
            "close": log.close,
            "transaction": lambda: log.transaction("a").begin(),
        }
        refused = []
        real = appending.validate_append

        def inside(*args: Any) -> Any:
            for name, attempt in tried.items():
                with pytest.raises(IllegalStateException, match="in the middle"):
                    attempt()
                refused.append(name)
            return real(*args)

        monkeypatch.setattr(appending, "validate_append", inside)
        assert log.append(b"1") == 1
        monkeypatch.undo()
        assert refused == list(tried)
        assert log.append(b"2") == 2
        assert [record.value for record in log] == [b"0", b"1", b"2"]
        assert engine.number_of_segments == 1


@pytest.mark.parametrize("error", [MemoryError, RecursionError, KeyboardInterrupt])
def test_a_truncation_without_memory_is_made_again(
    base: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    with open_live(base / "log") as log:
        writer = log.writer("w")
        for number in range(10):
            writer.append(b"%d" % number, sequence=number)

        def fail(*_: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(replay, "rebuild_producer_state", fail)
            with pytest.raises(error):
                log.truncate(4)
        assert (log.end_offset, log.high_watermark) == (4, 4)
        assert writer.next_sequence == 4
        assert [writer.append(b"%d" % number, sequence=number) for number in range(4, 10)] == list(range(4, 10))


def test_a_look_inside_a_look(base: Path) -> None:
    """A handler refreshes the read-only log that is just being refreshed."""
    with open_live(base / "log") as log:
        log.append(b"0")
        with open_live(base / "log", read_only=True) as beside, signals(beside.refresh, 0.0003):
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                beside.refresh()
                assert beside.end_offset == 1
