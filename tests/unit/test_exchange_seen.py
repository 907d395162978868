"""A compaction's exchange of segments, observed between any two of its renames: by a reader, and after a crash.

Kafka renames the old files before the new ones get their names, so in between a part of the log has no `.log`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalog._face.opening import open_log
from kafkalog.engine.files import OsFiles
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.load_cases import log_files
from kafkalog.toolbox.salvage import salvage
from tests.unit.cleaner_kit import COMPACT, CleanerKit, Producer, keyed

T = TopicPartition("t", 0)
Look = Callable[[], object]


class Watched(OsFiles):
    """Calls `look` before each rename and after it."""

    look: Look | None = None

    def rename(self, src: str, dst: str) -> None:
        if self.look is not None:
            self.look()
        super().rename(src, dst)
        if self.look is not None:
            self.look()


def state(root: Path, isolation: str = "read_committed") -> tuple[int, int, dict[bytes | None, bytes | None]]:
    """Where the log starts and ends, and the last value of each key."""
    with open_log(root, T, read_only=True) as log:
        found = {record.key: record.value for record in log.records(isolation=isolation)}
        return log.log_start_offset, log.end_offset, found


class House:
    def __init__(self, root: Path) -> None:
        self.kit = CleanerKit(root)
        self.kit.files = self.files = Watched()
        self.log = self.kit.open({**COMPACT, "internal.segment.bytes": "900", "max.message.bytes": "900"})

    def clean(self, look: Look) -> None:
        self.files.look = look
        self.kit.clean(self.log)
        self.files.look = None


@pytest.fixture
def house(tmp_path: Path) -> House:
    """Several groups of several segments, with aborted transactions that their transaction index alone tells of."""
    house = House(tmp_path)
    kit, log = house.kit, house.log
    for turn in range(5):
        kit.add(log, keyed(*[(f"k{turn * 3 + i}", "v" * 60) for i in range(4)]))
        aborted = Producer(turn + 1, transactional=True)
        log.append_as_leader(keyed((f"k{turn}", "aborted"), producer=aborted), 0)
        kit.end_txn(log, turn + 1, commit=False)
    log.roll()
    log.update_high_watermark(log.log_end_offset)
    log.flush(True)
    return house


def test_whoever_only_reads_sees_the_whole_log_at_each_rename(house: House, tmp_path: Path) -> None:
    before = state(tmp_path)
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        assert state(tmp_path) == before
        assert log_view.log_start_offset == 0
        log_view.refresh()
        assert {record.key: record.value for record in log_view.records(isolation="read_committed")} == before[2]

    with open_log(tmp_path, T, read_only=True) as log_view:
        house.clean(look)
    assert looks > 20
    assert state(tmp_path) == before


@pytest.mark.slow
def test_a_crash_at_each_rename_leaves_it_to_be_read_and_salvaged(house: House, tmp_path: Path) -> None:
    before = state(tmp_path)
    crashes: list[Path] = []

    def look() -> None:
        crashes.append(tmp_path / "crashes" / str(len(crashes)) / "d")
        shutil.copytree(tmp_path / str(T), crashes[-1] / str(T))

    house.clean(look)
    assert len(crashes) > 20
    for crash in crashes[::2]:
        assert state(crash) == before
        rescued = crash.parent / "rescued"
        report = salvage(crash, rescued, {T: str(crash / str(T))})
        assert not report.lost
        with open_log(rescued, T) as again:
            assert {r.key: r.value for r in again.records(isolation="read_committed")} == before[2]


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        (["0.log", "5.log.swap", "5.log", "9.log"], ["0.log", "5.log.swap", "9.log"]),
        (["0.log", "0.log.swap", "3.log", "5.log", "7.log"], ["0.log.swap", "7.log"]),
        (["0.log.deleted", "0.log.swap", "7.log"], ["0.log.swap", "7.log"]),
        (["0.log", "0.log.swap", "0.index.cleaned", "5.log"], ["0.log", "5.log"]),  # it had not happened
        (["0.log", "0.log.swap", "5.log.cleaned", "5.log"], ["0.log.swap", "5.log"]),  # a later pass
        (["0.log", "x.log.swap", "x.cleaned", "5.log"], ["0.log", "5.log"]),
        (["0.log.cleaned", "0.log"], ["0.log"]),
    ],
)
def test_what_a_load_would_leave(listed: list[str], found: list[str]) -> None:
    def named(name: str) -> str:
        number, _, rest = name.partition(".")
        return f"{names.filename_prefix_from_offset(int(number))}.{rest}" if number.isdigit() else name

    ends = {named("0.log.swap"): 6 if "3.log" in listed else 1, named("5.log.swap"): 7}
    assert sorted(log_files(map(named, listed), ends.__getitem__).values()) == sorted(map(named, found))
