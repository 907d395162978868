"""An interrupt in each call that stops a cleaner: no partition stays Aborted, Paused or InProgress.

A manager has compacted logs and a running cleaner.  `Sham` is a thread that claims partitions over and over and gives
one back when somebody wants it, so that each call waits for a claim most of the time.  The call is interrupted at a
place.  Then another thread checks that no claim is left without an owner, that the same calls work, and that cleaning
continues and keeps the last value of each key.  The shutdown must leave no thread and no lock.  KAFKALOG_LONG=1 takes
all places.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import pytest

from kafkalog.config import CleanerConfig, LogConfig
from kafkalog.engine.files import OS_FILES, ManualClock, ManualScheduler
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.settings import ManagerSettings
from tests.crash.managed import FAST
from tests.live.interrupts import CALLS, LINES, Interrupted, Tracer, at_each_place
from tests.live.oracle import in_a_thread, no_descriptors_below
from tests.sampling import LONG
from tests.unit.cleaner_kit import latest, rows
from tests.unit.cleaning_kit import COMPACTED, fill
from tests.unit.log_kit import NOW_MS

LIMIT = 300 if LONG else 6
QUICK = replace(CleanerConfig.for_tests(), backoff_ms=3)
SETTINGS = ManagerSettings(LogConfig.from_props(None, COMPACTED), cleaner=QUICK)
T, KEPT = TopicPartition("t", 0), TopicPartition("kept", 0)
ALL = (T, TopicPartition("t", 1), KEPT)
OURS = ("engine/cleaner/", "engine/host/")


class World:
    def __init__(self, place: Path) -> None:
        self.place = place
        self.dirs = [str(place / name) for name in ("d0", "d1", "d2")]
        self.clock = ManualClock(NOW_MS)
        self.scheduler = ManualScheduler(self.clock)
        self.manager = LogManager(self.dirs, SETTINGS, scheduler=self.scheduler, clock=self.clock, files=FAST)

    def start(self) -> World:
        self.manager.startup()
        return self

    def wait_until_nothing_is_held(self) -> None:
        """The cleaner's own claims come and go; a lasting one is stuck."""
        cleaner = self.manager.cleaner
        assert cleaner is not None
        seen: set[TopicPartition] = set()
        until = time.monotonic() + 10
        while len(seen) < len(ALL):
            seen |= {each for each in ALL if cleaner.manager.cleaning_state(each) is None}
            states = [str(cleaner.manager.cleaning_state(each)) for each in ALL]
            assert time.monotonic() < until, f"stuck: {states}"


class Sham:
    """Claims three partitions as a cleaner would, without cleaning, until somebody wants one."""

    def __init__(self, manager: LogManager) -> None:
        assert manager.cleaner is not None
        self.states = manager.cleaner.manager.states
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.stop.is_set():
            claims = [claim for claim in map(self.states.claim, ALL) if claim is not None]
            for _ in range(20):
                time.sleep(0.0002)
                for claim in [each for each in claims if self.states.is_aborted(each.partition)]:
                    claims.remove(claim)
                    self.states.release(claim)
            for claim in claims:
                self.states.release(claim)

    def __enter__(self) -> None:
        self.thread.start()
        time.sleep(0.001)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop.set()
        self.thread.join(10)


@dataclass(frozen=True)
class Case:
    name: str
    act: Callable[[World], object]
    ends: bool = False
    gone: bool = False  # t-0 is, perhaps
    after: Callable[[World], object] = lambda world: None

    def __str__(self) -> str:
        return self.name


def paused_and_resumed(world: World) -> None:
    cleaner = world.manager.cleaner
    assert cleaner is not None
    cleaner.manager.abort_cleaning(T)
    with cleaner.manager.pause(T) as pause:
        pause.begin()


def kafkas_calls(world: World) -> None:
    cleaner = world.manager.cleaner
    assert cleaner is not None
    cleaner.manager.abort_and_pause_cleaning(T)
    before = sys.gettrace()
    sys.settrace(None)  # a thread interrupted from here on has paused it, and must resume it
    cleaner.manager.resume_cleaning([T])
    sys.settrace(before)


def configured(world: World) -> None:
    world.manager.set_topic_config("t", {"cleanup.policy": "delete"})
    world.manager.set_topic_config("t", {})


def failed(world: World) -> None:
    world.manager.failure_channel.maybe_add_offline_log_dir(world.dirs[2], "as a test")


def disk_fails(world: World) -> None:
    failed(world)
    handle(world)


def handle(world: World) -> None:
    world.manager.handle_log_dir_failure(world.dirs[2])


CASES = [
    Case("pause", paused_and_resumed),
    Case("abort-and-pause", kafkas_calls),
    Case("truncate", lambda world: world.manager.truncate_to({T: 20})),
    Case("truncate-fully", lambda world: world.manager.truncate_fully_and_start_at(T, 100), gone=True),
    Case("move", lambda world: world.manager.move(T, world.dirs[1])),
    Case("delete", lambda world: world.manager.async_delete(T), gone=True),
    Case("delete-all", lambda world: world.manager.async_delete_all([T]), gone=True),
    Case("retention", lambda world: world.manager.cleanup_logs()),
    Case("set-topic-config", configured),
    Case("reconfigure", lambda world: world.manager.reconfigure_cleaner(replace(QUICK, num_threads=2))),
    Case("disk-fails", disk_fails, after=disk_fails),
    Case("shutdown", lambda world: world.manager.shutdown(), ends=True),
    Case("abandon", lambda world: world.manager.abandon(), ends=True),
]


@pytest.fixture
def template(base: Path) -> Path:
    world = World(base / "template")
    manager = world.manager
    manager.topic_configs.set("kept", {"cleanup.policy": "delete"})  # type: ignore[attr-defined]
    manager.startup()
    for each in ALL:
        log = manager.get_or_create_log(each, is_new=True, log_dir=world.dirs[0])
        fill(log, 30)
        log.roll()
    log = manager.get_or_create_log("other-0", is_new=True, log_dir=world.dirs[2])
    manager.shutdown()
    for name in ("d0", "d2"):
        (world.place / name / "cleaner-offset-checkpoint").unlink()
    return world.place


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", [LINES, CALLS])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_stays_stuck(
    case: Case, kind: str, base: Path, template: Path, count: Callable[[str, int], None],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level("CRITICAL", "kafkalog")
    for warm in range(2):
        places = _once(base / f"warm{warm}", template, case, Tracer(kind))
    number = at_each_place(
        base,
        kind,
        places,
        lambda place, tracer: _once(place, template, case, tracer),
        ours=OURS,
        limit=LIMIT,
        at_least=5,
    )
    count(f"interrupts of who stops a cleaner, {kind}", number)


def _once(place: Path, template: Path, case: Case, tracer: Tracer) -> list[tuple[str, int, str]]:
    shutil.copytree(template, place)
    world = World(place).start()
    try:
        with Sham(world.manager):
            _interrupt(world, case, tracer)
        gc.collect()
        in_a_thread(lambda: _go_on(world, case, tracer), seconds=40)
    finally:
        world.manager.abandon()
    shutil.rmtree(place)
    return tracer.places


def _interrupt(world: World, case: Case, tracer: Tracer) -> None:
    try:
        with tracer:
            case.act(world)
    except Interrupted:
        pass
    except TypeError as error:
        if "'traceback' object is not callable" not in str(error):  # as in `interrupts`
            raise


def _go_on(world: World, case: Case, tracer: Tracer) -> None:
    manager = world.manager
    case.after(world)
    if not case.ends:
        world.wait_until_nothing_is_held()
        _work_on(world, case)
    manager.shutdown()
    assert not [each.name for each in threading.enumerate() if each.name.startswith("kafka-log-cleaner")]
    left = no_descriptors_below(world.place)
    if left:
        world.scheduler.clear()
        gc.collect()
        left = no_descriptors_below(world.place)
    assert not left or tracer.while_handling, f"left open: {left}"
    for disk in world.dirs:
        lock = os.path.join(disk, ".lock")
        if os.path.exists(lock):
            OS_FILES.lock(lock).release()


def _work_on(world: World, case: Case) -> None:
    manager, cleaner = world.manager, world.manager.cleaner
    assert cleaner is not None
    manager.set_topic_config("t", {})
    if manager.get_log(T) is None:
        assert case.gone
        manager.get_or_create_log(T, is_new=True, log_dir=world.dirs[0])
    for each in ALL:
        log = manager.get_log(each)
        assert log is not None
        end = log.log_end_offset
        fill(log, 30, start=end)
        log.roll()
        expected = {f"k{number % 3}": f"{number}" + "." * 30 for number in range(end, end + 30)}
        assert {key: latest(rows(log))[key] for key in expected} == expected
        if each != KEPT:
            assert cleaner.await_cleaned(each, end + 30, 15_000), (each, str(cleaner.manager.cleaning_state(each)))
            assert latest(rows(log)) == expected
            assert len(rows(log)) == 3
        manager.move(each, world.dirs[1] if log.parent_dir == world.dirs[0] else world.dirs[0])
        manager.truncate_to({each: end + 29})
    manager.cleanup_logs()
    assert cleaner.manager.uncleanable_partitions() == []
    assert cleaner.dead_thread_count == 0
    if not manager.offline_log_dirs:
        manager.async_delete(T)
