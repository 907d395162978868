"""A running store with a remote tier: interrupts at every place, concurrent threads, a fork, damage under readers.

After each of them, the records from the log's start to its end must be the appended ones, each once and in order,
whichever tier has them.  They include at least all records on the disk.  Another copy run finishes the interrupted one,
and then no object is orphaned.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

import kafkalog
from kafkalog import Record
from kafkalog.engine.files import OS_FILES
from kafkalog.errors import IllegalStateException, KafkalogError
from kafkalog.toolbox import tiering
from tests.live.interrupts import CALLS, LINES, Tracer, interrupted
from tests.live.oracle import in_a_thread, no_descriptors_below
from tests.sampling import LONG, sampled
from tests.unit.tier_kit import SETTINGS, values

LIMIT = 300 if LONG else 8
SECONDS = float(os.environ.get("LIVE_SECONDS", "5" if LONG else "1.5"))
RECORDS = 90
_numbers = itertools.count()


class World:
    """Two directories, their tier, and the store that is open on them, if one is."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.dirs = [str(place / "store"), str(place / "two")]
        self.tier = kafkalog.RemoteStorage(place / "tier")
        self.store: kafkalog.Store | None = None
        self.disk_start = min((int(each.name[:20]) for each in place.glob("*/t-0/*.log")), default=RECORDS)

    def open(self) -> None:
        self.store = kafkalog.open(self.dirs, remote=self.tier, maintenance=False)

    def opened(self) -> kafkalog.Store:
        if self.store is None:
            self.open()
        assert self.store is not None
        return self.store

    def partition(self) -> kafkalog.Partition:
        return self.opened().topic("t").partition(0)

    def copy(self) -> int:
        return self.opened().remote_log_manager.run_once()

    def close(self) -> None:
        store, self.store = self.store, None
        if store is not None:
            store.close()


class Case(NamedTuple):
    name: str
    act: Callable[[World], object]
    opens: bool = False
    deletes: bool = False

    def __str__(self) -> str:
        return self.name


def move(world: World) -> None:
    manager = world.opened().manager
    log = manager.get_log("t-0")
    assert log is not None
    manager.move("t-0", next(each for each in world.dirs if each != log.parent_dir))


def expire(world: World) -> None:
    world.disk_start = RECORDS  # retention takes of both
    world.opened().alter_topic("t", {"retention.bytes": "9000"})
    world.copy()


def copy_no_more(world: World) -> None:
    as_local = {"local.retention.bytes": "-2", "local.retention.ms": "-2"}  # as the whole retention, as Kafka wants it
    world.opened().alter_topic("t", {"remote.log.copy.disable": "true", **as_local})


def leave(world: World) -> None:
    world.opened().alter_topic("t", {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"})


def leave_and_come_back(world: World) -> None:
    leave(world)
    world.opened().alter_topic("t", {"remote.storage.enable": "true"})
    world.copy()
    world.partition().delete_old_segments()


CASES = [
    Case("copy", World.copy),
    Case("read", lambda world: [record.value for record in world.partition()]),
    Case("offset for time", lambda world: world.partition().offset_for_time(1010)),
    Case("local retention", lambda world: world.partition().delete_old_segments()),
    Case("expire", expire),
    Case("copy no more", copy_no_more),
    Case("leave", leave),
    Case("leave and come back", leave_and_come_back),
    Case("move", move),
    Case("delete", lambda world: world.opened().delete_topic("t"), deletes=True),
    Case("open", World.open, opens=True),
    Case("close", lambda world: world.opened().close()),
]


def prepare(place: Path) -> World:
    """The tier has some segments alone, some are in both, some wait to be copied."""
    world = World(place)
    world.open()
    settings = {**SETTINGS, "local.retention.bytes": "4000"}
    topic = world.opened().create_topic("t", 1, config=settings)
    for number in range(RECORDS):
        if number in (40, 60):
            assert world.copy()
        if number == 40:
            assert world.partition().delete_old_segments()
        topic.append(values(number), timestamp=1000 + number)
    world.close()
    return world


def judge(world: World, *, may_be_gone: bool) -> None:
    """Checks an open store."""
    store = world.opened()
    if "t" not in store:
        assert may_be_gone
        return
    partition = world.partition()
    found = [(record.offset, record.value) for record in partition]
    start = partition.log_start_offset
    assert start <= world.disk_start
    assert found == [(offset, values(offset)) for offset in range(start, RECORDS)]
    reversed_starts = range(RECORDS - 1, start - 1, -7)
    for offset in reversed_starts:
        assert next(iter(partition.records(offset))).value == values(offset)


def judge_objects(world: World) -> None:
    """No object of a closed store is orphaned."""
    storage = world.tier.manager()
    try:
        metadata = tiering.known_segments(world.dirs)
        assert not tiering.orphans(storage, metadata)
    finally:
        storage.close()


def once(base: Path, template: World, case: Case, tracer: Tracer) -> None:
    place = base / f"run{next(_numbers)}"
    shutil.copytree(template.place, place)
    world = World(place)
    try:
        if not case.opens:
            world.open()
        leaks = interrupted(lambda: case.act(world), tracer)
        in_a_thread(lambda: go_on(case, world, leaks), seconds=60)
    finally:
        world.close()
        shutil.rmtree(place, ignore_errors=True)


def go_on(case: Case, world: World, leaks: bool) -> None:
    if case.opens and world.store is None:
        gc.collect()  # one that was never returned
    if case.name == "close":
        world.close()
    else:
        judge(world, may_be_gone=case.deletes)
        world.copy()
        judge(world, may_be_gone=case.deletes)
        world.close()
    gc.collect()
    left = no_descriptors_below(str(world.place))
    assert not left or leaks, f"left open: {left}"
    for lock in world.place.glob("*/.lock"):
        OS_FILES.lock(str(lock)).release()  # the file of a release that was interrupted: nobody has it
    world.open()
    judge(world, may_be_gone=case.deletes)
    world.copy()
    judge(world, may_be_gone=case.deletes)
    world.close()
    judge_objects(world)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", [LINES, CALLS])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_tier_is_interrupted(
    case: Case, kind: str, base: Path, count: Callable[[str, int], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "kafkalog")
    template = prepare(base / "template")
    for _ in range(2):  # imports and lazy initialization are not places of the operation
        tracer = Tracer(kind)
        once(base, template, case, tracer)
    numbers = sampled(tracer.places, LIMIT)
    count("places of tiers known", len(tracer.places))
    count("interrupts of tiers", len(numbers))
    failures = []
    for number in numbers:
        file, line, function = tracer.places[number]
        try:
            once(base, template, case, Tracer(kind, number))
        except BaseException as error:
            failures.append(f"{file}:{line} {function} (#{number}): {type(error).__name__}: {error}"[:700])
    shown = "\n".join(failures[:20])
    assert not failures, f"{len(failures)} of {len(numbers)} places:\n{shown}"


# --- threads -----------------------------------------------------------------------------------------------


def test_copies_retention_and_readers_at_once(base: Path) -> None:
    """Appends, two threads that copy, one that deletes local segments, one that moves the partition to and fro, and
    readers from anywhere."""
    ends, failures = threading.Event(), []
    with kafkalog.open([base / "one", base / "two"], remote=base / "tier", maintenance=False) as store:
        topic = store.create_topic("t", 1, config={**SETTINGS, "local.retention.bytes": "3000"})
        partition = topic.partition(0)

        def repeated(step: Callable[[random.Random], object], seed: int) -> threading.Thread:
            def run() -> None:
                rng = random.Random(seed)
                try:
                    while not ends.is_set():
                        step(rng)
                except BaseException as error:
                    failures.append(error)
                    ends.set()

            return threading.Thread(target=run, daemon=True)

        def append(rng: random.Random) -> None:
            topic.append_many([values(number) for number in itertools.islice(counter, rng.randrange(1, 9))])
            time.sleep(0.0005)

        def read(rng: random.Random) -> None:
            end = partition.end_offset
            start = rng.randrange(end + 1)
            found = [(each.offset, each.value) for each in itertools.islice(partition.records(start), 300)]
            assert found == [(start + n, values(start + n)) for n in range(len(found))]
            assert len(found) >= min(300, end - start)

        def move(rng: random.Random) -> None:
            store.manager.move("t-0", rng.choice(store.manager.live_log_dirs))
            time.sleep(0.01)

        counter = itertools.count()
        threads = [
            repeated(append, 1),
            repeated(move, 8),
            repeated(lambda rng: store.remote_log_manager.run_once(), 2),
            repeated(lambda rng: store.remote_log_manager.run_once(), 3),
            repeated(lambda rng: partition.delete_old_segments(), 4),
            *(repeated(read, 5 + number) for number in range(3)),
        ]
        for thread in threads:
            thread.start()
        ends.wait(SECONDS)
        ends.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not failures, failures
        assert partition.log_start_offset == 0
        assert [each.value for each in partition] == [values(number) for number in range(partition.end_offset)]


@pytest.mark.parametrize("has_metadata", [True, False])
def test_read_only_beside_a_writer(base: Path, has_metadata: bool) -> None:
    """Appends, copies and retention in one thread; others open both tiers to read, once or continuously."""
    ends, failures = threading.Event(), []
    seen = base / "store"
    with kafkalog.open(base / "store", remote=base / "tier", maintenance=False) as store:
        topic = store.create_topic("t", 1, config={**SETTINGS, "local.retention.bytes": "1"})
        topic.append_many([values(number) for number in range(RECORDS)])
        assert store.remote_log_manager.run_once()
        if not has_metadata:  # as in the directory of a broker whose metadata another broker has
            seen = base / "seen"
            seen.mkdir()
            (seen / "t-0").symlink_to(base / "store" / "t-0")

        def write() -> None:
            start = topic.partition(0).end_offset
            topic.append_many([values(start + number) for number in range(40)])
            store.remote_log_manager.run_once()
            topic.partition(0).delete_old_segments()

        def opened() -> kafkalog.Store:
            return kafkalog.open(seen, remote=base / "tier", read_only=True)

        def check(reader: kafkalog.Store, rng: random.Random) -> None:
            partition = reader.topic("t").partition(0)
            start = rng.randrange(RECORDS)
            found = [(each.offset, each.value) for each in itertools.islice(partition.records(start), 2000)]
            assert found == [(start + n, values(start + n)) for n in range(len(found))]
            assert len(found) >= RECORDS - start

        def read_once(rng: random.Random) -> None:
            with opened() as reader:
                check(reader, rng)

        def run(step: Callable[[], object]) -> None:
            try:
                while not ends.is_set():
                    step()
            except BaseException as error:
                failures.append(error)
                ends.set()

        with opened() as reader:
            steps: list[Callable[[], object]] = [write, partial(read_once, random.Random(2))]
            steps += [partial(check, reader, random.Random(number)) for number in range(2)]
            threads = [threading.Thread(target=run, args=(step,), daemon=True) for step in steps]
            for thread in threads:
                thread.start()
            ends.wait(SECONDS)
            ends.set()
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive()
            assert not failures, failures
            assert len([*reader.topic("t").partition(0)]) == topic.partition(0).end_offset


def test_a_close_meets_readers_and_copies(base: Path) -> None:
    """Concurrent work ends with all its records, or with an error that says that the store is closed."""
    world = prepare(base / "world")
    for _ in range(20 if LONG else 5):
        world.open()
        store, partition = world.opened(), world.partition()
        failures: list[BaseException] = []

        def work(step: Callable[[], object], failures: list[BaseException] = failures) -> None:
            try:
                for _ in range(1000):
                    step()
            except (KafkalogError, ValueError):
                pass
            except BaseException as error:
                failures.append(error)

        steps = [store.remote_log_manager.run_once, lambda partition=partition: [*partition.records(0)]]
        threads = [threading.Thread(target=work, args=(step,)) for step in steps * 2]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        world.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert not failures, failures
    world.open()
    judge(world, may_be_gone=False)
    world.close()


# --- forks -------------------------------------------------------------------------------------------------


def test_a_forked_child_leaves_the_tier_alone(base: Path) -> None:
    world = prepare(base / "world")
    world.open()
    store, partition = world.opened(), world.partition()
    next(iter(partition.records(0)))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with pytest.raises(IllegalStateException):
                store.remote_log_manager.run_once()
            with pytest.raises(IllegalStateException):
                next(iter(partition.records(0)))
            store.close()
            with kafkalog.open(world.tier, read_only=True) as bucket:
                assert next(iter(bucket.topic("t").partition(0).records(0))).value == values(0)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    judge(world, may_be_gone=False)
    world.copy()
    judge(world, may_be_gone=False)
    world.close()
    judge_objects(world)


# --- damage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gone", "shorter", "empty"])
def test_objects_are_damaged_under_readers(base: Path, how: str) -> None:
    """A reader of the tier gets the records that are whole, and an error that names the object, never other bytes."""
    world = prepare(base / "world")
    world.open()
    partition = world.partition()
    reader = iter(partition.records(0))
    assert next(reader).value == values(0)
    local_start = int(min(path.name for path in (world.place / "store" / "t-0").glob("*.log"))[:20])
    for path in world.place.glob("tier/**/*.log"):
        if int(path.name[:20]) >= local_start:
            continue
        if how == "gone":
            path.unlink()
        else:
            data = path.read_bytes()
            path.unlink()  # another object of the name, as a storage replaces it
            path.write_bytes(data[: len(data) // 2] if how == "shorter" else b"")
    for offset, record in enumerate(up_to_an_error(reader), 1):  # it may hold the files that were there
        assert record.value == values(offset)
    world.close()
    world.open()
    partition = world.partition()
    told: list[KafkalogError] = []
    for offset, record in enumerate(up_to_an_error(iter(partition.records(0)), told)):
        assert record.value == values(offset)
    (error,) = told
    assert "/00000000000000000000" in str(error), error
    assert [record.offset for record in partition.records(local_start)] == [*range(local_start, RECORDS)]
    world.close()


def up_to_an_error(records: Iterator[Record], told: list[KafkalogError] | None = None) -> Iterator[Record]:
    try:
        yield from records
    except KafkalogError as error:
        if told is not None:
            told.append(error)
