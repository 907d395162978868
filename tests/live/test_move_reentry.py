"""A signal handler that works on a partition, at each line of a move of that partition in its own thread.

The locks admit the handler.  Its operation happens as a whole or is refused with its error, and so does the move.  No
acknowledged record is lost, no truncated record comes back, and no offset is given twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host import moves
from kafkalog.engine.log import append as appending
from kafkalog.engine.log import ordinary
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import IllegalStateException, KafkalogError, KafkaStorageException, OffsetOutOfRangeException
from tests.crash.managed import House, contents
from tests.live.interrupts import LINES, Tracer
from tests.sampling import LONG, sampled
from tests.unit.log_kit import batch

PARTITION = TopicPartition("t", 0)
REFUSALS = (IllegalStateException, KafkaStorageException, OffsetOutOfRangeException)
PLACES = None if LONG else 40


class Handler(Tracer):
    """Calls something at a place, where a Tracer raises."""

    def __init__(self, act: Callable[[], object], at: int | None = None) -> None:
        super().__init__(LINES, None)
        self._act = act
        self._place = at

    def place(self, frame: FrameType) -> None:
        super().place(frame)
        if len(self.places) - 1 == self._place:
            self.fired = True
            self._act()


class Trial:
    """Three disks, a partition on the first one, and what it holds by all that was acknowledged."""

    def __init__(self, root: Path) -> None:
        self.house = House(root)
        self.manager = self.house.open()
        self.manager.get_or_create_log(PARTITION, is_new=True, log_dir=self.house.dirs[0])
        self.start = 0
        self.records: list[bytes] = []  # from `start` on
        self.done = self.refused = 0
        for _ in range(9):
            self.append()

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def append(self) -> None:
        value = b"%d.%d" % (self.end, self.done) + b"." * 60
        offset = self.log.append_as_leader(batch(1, value=value), 0).first_offset
        assert offset == self.end
        self.records.append(value)

    @property
    def log(self) -> UnifiedLog:
        log = self.manager.get_log(PARTITION)
        assert log is not None
        return log

    @property
    def bounds(self) -> tuple[int, int]:
        log = self.log
        return log.log_start_offset, log.log_end_offset

    def cut(self) -> None:
        try:
            self.manager.truncate_to({PARTITION: self.start + 4})
        finally:  # the checkpoint that follows may be what is refused
            if self.bounds == (self.start, self.start + 4):
                del self.records[4:]

    def cut_all(self) -> None:
        try:
            self.manager.truncate_fully_and_start_at(PARTITION, 50)
        finally:
            if self.bounds == (50, 50):
                self.start, self.records = 50, []

    def delete_first(self) -> None:
        self.log.delete_records(self.start + 3)
        self.start, self.records = self.start + 3, self.records[3:]

    def move_there_as_well(self) -> None:
        self.manager.move(PARTITION, self.house.dirs[1])
        self.append()

    def move_elsewhere(self) -> None:
        self.manager.move(PARTITION, self.house.dirs[2])
        self.append()

    def attempt(self, act: Callable[[], object]) -> None:
        try:
            act()
            self.done += 1
        except REFUSALS:
            self.refused += 1

    def judge(self) -> None:
        log = self.log
        assert contents(log) == list(enumerate(self.records, self.start))
        assert self.manager.offline_log_dirs == []
        self.append()
        self.manager.move(PARTITION, self.house.dirs[2 if log.parent_dir == self.house.dirs[1] else 1])
        self.append()
        self.house.shut_down()
        log = self.house.open().get_log(PARTITION)
        assert log is not None
        assert contents(log) == list(enumerate(self.records, self.start))
        self.house.shut_down()


ACTS = {
    "append": Trial.append,
    "cut": Trial.cut,
    "cut all": Trial.cut_all,
    "delete records": Trial.delete_first,
    "move there": Trial.move_there_as_well,
    "move elsewhere": Trial.move_elsewhere,
}


def move(base: Path, act: Callable[[Trial], object], at: int | None) -> tuple[Handler, Trial]:
    """A move with a handler at a place, and its checks."""
    root = base / f"at{at}"
    trial = Trial(root)
    handler = Handler(lambda: trial.attempt(lambda: act(trial)), at)
    try:
        with handler:
            trial.manager.move(PARTITION, trial.house.dirs[1])
    except REFUSALS:
        assert handler.fired
    try:
        trial.judge()
    except (AssertionError, KafkalogError) as error:
        where = "" if at is None else handler.places[at]
        raise AssertionError(f"a handler at {where} (#{at}): {error!r}") from error
    finally:
        trial.house.die()
        shutil.rmtree(root)
    return handler, trial


@pytest.mark.parametrize("name", ACTS)
def test_a_handler_in_a_move(
    base: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    count: Callable[[str, int], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL", "kafkalog")
    monkeypatch.setattr(moves, "COPY_BYTES", 300)
    monkeypatch.setattr(moves, "SWITCH_BYTES", 600)
    places = move(base, ACTS[name], None)[0].places
    switch = [number for number, place in enumerate(places) if place[2].endswith("_switch")]
    wanted = sorted({*sampled(places, PLACES), *switch})
    done = refused = 0
    for at in wanted:
        _, trial = move(base, ACTS[name], at)
        done, refused = done + trial.done, refused + trial.refused
    assert done + refused == len(wanted)
    assert refused
    count("calls at lines of a move", len(wanted))


def test_out_of_an_append_nothing_is_moved_away(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The append would continue in a log that nobody owns any more."""
    trial = Trial(base / "trial")
    future = trial.manager.get_or_create_log(PARTITION, is_new=True, is_future=True, log_dir=trial.house.dirs[1])
    future.append_as_follower(trial.log.read(0, 1 << 20).records.to_bytes(), 0)
    real, refused = appending.validate_append, []

    def inside(*args: Any) -> Any:
        monkeypatch.undo()
        with pytest.raises(IllegalStateException, match="in the middle"):
            trial.manager.replace_current_with_future_log(PARTITION)
        refused.append(1)
        return real(*args)

    monkeypatch.setattr(ordinary, "append", ordinary.long_way)
    monkeypatch.setattr(appending, "validate_append", inside)
    try:
        trial.append()
        assert refused
        assert trial.log.parent_dir == trial.house.dirs[0]
        trial.judge()
    finally:
        trial.house.die()
