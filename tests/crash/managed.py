"""A LogManager of three directories below one root, with an account of its promises: for crashes, faults and kills.

`Story` says what a start may find.  For a partition: which of its lives (created, deleted, created again), which
records of that life, from which offset, and in which directories.  For a topic: which overrides.  A step that was begun
may have happened or not.  Values carry partition, life and number, so that nothing can be taken for something else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import kafkalog
from kafkalog.config import LogConfig, ProducerStateManagerConfig
from kafkalog.engine.files import Files, ManualClock, ManualScheduler
from kafkalog.engine.format import names
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.log.context import ProducerSettings
from kafkalog.engine.log.unified_log import UnifiedLog
from tests.file_doubles import UnsyncedFiles
from tests.unit.log_kit import NOW_MS, SMALL, batch

SETTINGS = ManagerSettings(
    LogConfig.from_props(None, {**SMALL, "segment.jitter.ms": "0", "retention.ms": "-1"}),
    producers=ProducerSettings(ProducerStateManagerConfig(86_400_000, False)),
)
FAST = UnsyncedFiles()
DISKS = 3


@dataclass
class Life:
    """One log of a partition, from its making to its deletion."""

    number: int
    appended: int = 0
    acknowledged: int = 0
    flushed: int = 0
    made: bool = False
    deleting: bool = False
    deleted: bool = False
    start_asked: int = 0  # delete_records
    start_kept: int = 0  # and checkpointed
    disks: set[int] = field(default_factory=set)  # possible places

    @property
    def shown(self) -> str:
        return f"life {self.number}: {self}"


@dataclass
class Story:
    """The promises made up to a point."""

    lives: dict[str, list[Life]] = field(default_factory=dict)
    configs: dict[str, list[dict[str, str]]] = field(default_factory=dict)  # by topic: possible overrides, newest last

    def told(self, label: str, value: object) -> None:
        """One mark: `what` of "begin" or "end", and its arguments."""
        assert isinstance(value, tuple)
        what, partition, *rest = value
        done = label == "end"
        if what == "config":
            if done:
                self.configs[partition] = [rest[0]]
            else:
                self.configs.setdefault(partition, [{}]).append(rest[0])
            return
        lives = self.lives.setdefault(partition, [])
        if what == "make" and not done:
            lives.append(Life(len(lives), disks={rest[0]}))
            return
        life = lives[-1]
        if what == "make":
            life.made = True
        elif what == "append":
            if done:
                life.acknowledged += 1
            else:
                life.appended += 1
        elif what == "flush" and done:
            life.flushed = life.acknowledged
        elif what == "move":
            life.disks = {rest[0]} if done else life.disks | {rest[0]}
            if done:  # a move flushes what it copies
                life.flushed = max(life.flushed, life.acknowledged)
        elif what == "delete":
            life.deleting, life.deleted = True, done
        elif what == "truncate":
            life.acknowledged, life.flushed = min(life.acknowledged, rest[0]), min(life.flushed, rest[0])
            life.appended = rest[0] if done else life.appended
        elif what == "restart":
            life.acknowledged, life.flushed, life.appended, life.start_asked = 0, 0, 1 << 40, rest[0]
        elif what == "start":
            if done:
                life.start_kept = rest[0]
            else:
                life.start_asked = rest[0]

    # --- judging -------------------------------------------------------------------------------------

    def judge(self, manager: LogManager, *, process_only: bool = True, all_is_there: bool = False) -> None:
        there = {str(log.topic_partition): log for log in manager.all_logs() if not log.is_future}
        for partition, lives in self.lives.items():
            self._judge(partition, lives, there.pop(partition, None), process_only, all_is_there)
        assert not there, f"never made: {there}"
        for topic, choices in self.configs.items():
            found = dict(manager.topic_configs.overrides(topic))
            assert found in choices, f"{topic}: {found}, expected one of {choices}"

    def _judge(
        self, partition: str, lives: list[Life], log: UnifiedLog | None, process_only: bool, all_is_there: bool
    ) -> None:
        last = lives[-1]
        if log is None:
            gone = last.deleting or not last.made
            # Its directory may be that of the previous life, which is being deleted.
            assert gone, f"{partition} is gone: {last.shown}"
            return
        found = contents(log)
        low = last.acknowledged if process_only or all_is_there else last.flushed
        offsets = [offset for offset, _ in found]
        # Power loss may leave a hole between segments that were never flushed (see `partition.Allowed`).
        sure = log.log_end_offset if process_only or all_is_there else low
        assert [each for each in offsets if each < sure] == list(range(log.log_start_offset, sure)), (
            partition,
            offsets,
        )
        numbers = {int(value.split(b".")[1]) for _, value in found}
        number = numbers.pop() if numbers else last.number
        assert not numbers, f"{partition} mixes lives: {found}"
        life = lives[number]
        assert life is last or (not last.made and not life.deleted), f"{partition} came back: {life.shown}"
        assert not life.deleted, f"{partition} came back: {life.shown}"
        for offset, value in found:
            assert value == value_of(partition, number, offset), (partition, offset, value)
        if log.log_end_offset != log.log_start_offset or low > life.start_asked:
            assert low <= log.log_end_offset <= life.appended, f"{partition} ends at {log.log_end_offset}: {life.shown}"
        assert life.start_kept <= log.log_start_offset <= max(life.start_asked, life.start_kept), (
            partition,
            life.shown,
        )
        disk = int(log.parent_dir[-1])
        assert disk in life.disks, f"{partition} is on disk {disk}: {life.shown}"


def value_of(partition: str, life: int, offset: int) -> bytes:
    return b"%s.%d.%d" % (partition.encode(), life, offset) + b" " * 60


def contents(log: UnifiedLog) -> list[tuple[int, bytes]]:
    log.settle()  # so that the start that we begin at is the one that we see
    found: list[tuple[int, bytes]] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        records = [each for each in log.read(offset, 1 << 20).records.records() if each.offset >= offset]
        if not records:
            break
        found += [(each.offset, bytes(each.value or b"")) for each in records]
        offset = records[-1].offset + 1
    return found


def folders_of(root: str | os.PathLike[str], partition: str) -> list[str]:
    """The directories of a partition, without unfinished copies, deleted ones and strays."""
    return [
        os.path.join(root, disk, partition)
        for disk in sorted(os.listdir(root))
        if os.path.isdir(os.path.join(root, disk, partition))
    ]


class House:
    """Managers of the same directories one after the other."""

    def __init__(self, root: str | os.PathLike[str], files: Files = FAST, settings: ManagerSettings = SETTINGS) -> None:
        self.root = str(root)
        self.dirs = [os.path.join(self.root, f"disk{number}") for number in range(DISKS)]
        self.files = files
        self.settings = settings
        self.clock = ManualClock(NOW_MS)
        self.scheduler = ManualScheduler(self.clock)
        self.lives: dict[str, int] = {}
        self.story = Story()
        self._manager: LogManager | None = None

    @property
    def manager(self) -> LogManager:
        assert self._manager is not None
        return self._manager

    @property
    def has_manager(self) -> bool:
        return self._manager is not None

    def adopt(self, manager: LogManager) -> LogManager:
        self._manager = manager
        return manager

    def open(self) -> LogManager:
        self._manager = None
        manager = LogManager(self.dirs, self.settings, scheduler=self.scheduler, clock=self.clock, files=self.files)
        self.adopt(manager).startup()
        return manager

    def die(self) -> None:
        """Closes everything and writes nothing more."""
        self.scheduler.clear()
        if self._manager is not None:
            self._manager.abandon()

    def shut_down(self) -> None:
        self.scheduler.tick()
        self.manager.shutdown()

    def mark(self, label: str, value: tuple[object, ...]) -> None:
        """Continues the story and records the mark."""
        self.story.told(label, value)
        told = getattr(self.files, "mark", None)
        if told is not None:
            told(label, value)

    @contextmanager
    def telling(self, *value: object) -> Iterator[None]:
        self.mark("begin", value)
        yield
        self.mark("end", value)

    # --- what a service does -------------------------------------------------------------------------

    def log(self, partition: str) -> UnifiedLog:
        log = self.manager.get_log(partition)
        assert log is not None, partition
        return log

    def make(self, partition: str, disk: int) -> None:
        with self.telling("make", partition, disk):
            self.manager.get_or_create_log(partition, is_new=True, log_dir=self.dirs[disk])

    def append(self, partition: str, count: int = 1) -> None:
        life = len(self.story.lives[partition]) - 1
        for _ in range(count):
            log = self.log(partition)
            value = value_of(partition, life, log.log_end_offset)
            with self.telling("append", partition):
                log.append_as_leader(batch(1, value=value), 0)

    def flush(self, partition: str) -> None:
        with self.telling("flush", partition):
            self.scheduler.tick()  # the flush that a roll scheduled
            self.log(partition).flush(True)

    def move(self, partition: str, disk: int) -> None:
        with self.telling("move", partition, disk):
            self.manager.move(partition, self.dirs[disk])

    def delete(self, partition: str) -> None:
        with self.telling("delete", partition):
            self.manager.async_delete(partition)

    def delete_records(self, partition: str, offset: int) -> None:
        with self.telling("start", partition, offset):
            self.log(partition).delete_records(offset)
            self.manager.checkpoint_log_starts()

    def configure(self, topic: str, **overrides: str) -> None:
        with self.telling("config", topic, {key.replace("_", "."): value for key, value in overrides.items()}):
            self.manager.set_topic_config(topic, {key.replace("_", "."): value for key, value in overrides.items()})

    def later(self, ms: int) -> None:
        self.clock.advance_to(self.clock.milliseconds() + ms)
        self.scheduler.tick()
        assert not self.scheduler.errors, self.scheduler.errors


def check_start(
    root: str | os.PathLike[str], story: Story, *, process_only: bool = True, all_is_there: bool = False
) -> None:
    """Starts and checks; a move, appends and a clean end work; starts and checks again."""
    house = House(root)
    house.story = story
    try:
        manager = house.open()
        assert not manager.offline_log_dirs
        story.judge(manager, process_only=process_only, all_is_there=all_is_there)
        for partition in story.lives:
            log = manager.get_log(partition)
            assert len(folders_of(root, partition)) == (log is not None), folders_of(root, partition)
        before = {str(log.topic_partition): contents(log) for log in manager.all_logs() if not log.is_future}
        for partition in before:
            log = house.log(partition)
            where = (int(log.parent_dir[-1]) + 1) % DISKS
            end = log.log_end_offset
            log = manager.move(partition, house.dirs[where])
            log.append_as_leader(batch(1, value=b"after"), 0)
            before[partition].append((end, b"after"))
        house.later(120_000)  # deletes the renamed directories
        assert not [name for each in house.dirs for name in os.listdir(each) if name.endswith(names.DELETE_DIR_SUFFIX)]
        assert not [name for each in house.dirs for name in os.listdir(each) if name.endswith(names.MOVE_FILE_SUFFIX)]
        house.shut_down()
        assert all(os.path.exists(os.path.join(each, names.CLEAN_SHUTDOWN_FILE)) for each in house.dirs)
        again = house.open()
        assert {str(log.topic_partition): contents(log) for log in again.all_logs() if not log.is_future} == before
        house.shut_down()
    finally:
        house.die()


def visit_copies(root: str) -> None:
    """Opens and closes another partition next to the interrupted copy of a move, before the start."""
    for disk in sorted(os.listdir(root)):
        place = os.path.join(root, disk)
        if any(name.endswith(names.FUTURE_DIR_SUFFIX) for name in os.listdir(place)):
            with kafkalog.open_log(place, "visited-0", files=UnsyncedFiles()) as log:
                log.append(b"beside a copy")
            shutil.rmtree(os.path.join(place, "visited-0"))


def clean(root: str | Path) -> bool:
    """Whether every directory says that it was shut down in order."""
    return all(
        os.path.exists(os.path.join(root, f"disk{number}", names.CLEAN_SHUTDOWN_FILE)) for number in range(DISKS)
    )
