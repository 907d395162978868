"""Ctrl-C at every line of opening and closing: acknowledged records exist, and the directory opens again."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import kafkalog
from kafkalog._face.coordinators import Coordinators
from kafkalog._face.store_home import StoreHome
from kafkalog.engine.files import OS_FILES, Files, ManualClock, ManualScheduler
from kafkalog.engine.files.dropped import wait_for_dropped
from kafkalog.engine.host import directory as directories
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.errors import KafkaStorageException
from kafkalog.toolbox.verify import verify
from tests.crash.harness import fast_dir
from tests.file_doubles import Fault, FaultyFiles, UnsyncedFiles
from tests.live.interrupts import CALLS, LINES, Interrupted, Tracer
from tests.sampling import LONG, draw, sampled

CONFIG = {"internal.segment.bytes": "400", "max.message.bytes": "400", "index.interval.bytes": "100"}
VALUES = [b"%03d" % number * 20 for number in range(12)]
FILES = UnsyncedFiles()
OUR_FLOORS = (
    "_face/", "store.py", "topic.py", "partition.py", "records.py", "reader.py", "producer.py", "transaction.py",
    "engine/host/", "engine/files/",
)  # fmt: skip

LIMIT = None if LONG else 25

Place = tuple[str, int, str]  # file in the package, line, function


def lines_of(action: Callable[[], object]) -> list[Place]:
    with Tracer(LINES) as tracer:
        result = action()
    del result  # not before: a dropped Partition's work does not belong to the action
    return tracer.places


def chosen(lines: list[Place], limit: int | None, *, inside: tuple[str, ...] = ("",)) -> list[int]:
    """Which of the lines to interrupt: all, or some of those in the folders `inside`."""
    ours = [index for index, place in enumerate(lines) if limit is None or place[0].startswith(inside)]
    return [ours[number] for number in sampled([lines[index] for index in ours], limit)]


def interrupted(action: Callable[[], object], index: int) -> Tracer:
    """Run the action with an interrupt at its line number `index`, if it comes that far."""
    tracer = Tracer(LINES, index)
    with contextlib.suppress(Interrupted), tracer:
        result = action()
        sys.settrace(None)
        del result
    return tracer


def values(log: kafkalog.Partition) -> list[bytes | None]:
    return [record.value for record in log.records(isolation="read_committed")]


def open_log(root: Path, files: Files = FILES, *, manual: bool = False, name: str = "t-0") -> kafkalog.Partition:
    scheduler = ManualScheduler(ManualClock()) if manual else None
    return kafkalog.open_log(root, name, config=CONFIG, files=files, scheduler=scheduler)


class Before(NamedTuple):
    """A directory to begin with, and what is acknowledged in it."""

    fill: Callable[[Path], None]
    acknowledged: list[bytes]
    everywhere: bool = False  # interrupt at the engine's lines too, not only at those of the public API


def nothing(_: Path) -> None:
    pass


def clean(root: Path) -> None:
    with open_log(root) as log:
        log.append_many(VALUES)


def killed(root: Path, *, transaction: bool = False) -> None:
    """As a killed process leaves it."""
    with open_log(root / "at work") as log:
        log.append_many(VALUES)
        if transaction:
            txn = log.transaction("job")
            txn.begin()
            txn.append(b"never seen")
        for name in ("t-0", ".lock", "recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
            copy = shutil.copytree if (root / "at work" / name).is_dir() else shutil.copy
            copy(root / "at work" / name, root / name)
    shutil.rmtree(root / "at work")


def killed_in_transaction(root: Path) -> None:
    killed(root, transaction=True)


BEFORE = {
    "new": Before(nothing, [], everywhere=True),
    "clean": Before(clean, VALUES),
    "killed": Before(killed, VALUES),
    "killed in a transaction": Before(killed_in_transaction, VALUES),
}


@pytest.fixture
def place() -> Iterator[Path]:
    with fast_dir() as found:
        yield found


def occupied(root: Path) -> list[str]:
    """Paths below `root` that this process holds; other tests' leftovers do not count."""
    inside = os.path.realpath(root)
    return [each.path for each in list(directories._TABLE.values()) if each.path.startswith(inside)]


def is_whole(root: Path, acknowledged: list[bytes]) -> None:
    """It opens in this process, and all is well."""
    wait_for_dropped()
    if root.exists():  # the lock is free, whatever kafkalog's tables say
        OS_FILES.lock(str(root / ".lock")).release(remove=False)
    with open_log(root) as log:
        assert values(log) == acknowledged
        assert log.end_offset == log.high_watermark == log.last_stable_offset
        assert log.append(b"goes on") == log.end_offset - 1
    report = verify(root, deep=True)
    assert report.ok, report.findings
    assert (root / ".kafka_cleanshutdown").exists()
    assert not (root / ".lock").exists()
    assert not occupied(root)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def sweep(
    place: Path,
    before: Before,
    act: Callable[[Path], Callable[[], object]],
    inside: tuple[str, ...],
    after: Callable[[], None] | None = None,
) -> int:
    """Interrupt `act(root)()` at each of its lines, on a fresh copy each time."""
    template = place / "template"
    template.mkdir()
    before.fill(template)

    def fresh(name: str) -> Path:
        return Path(shutil.copytree(template, place / name))

    lines: list[Place] = []
    for name in ("first", "second"):  # the first time there are imports and caches on the way
        lines = lines_of(act(fresh(name)))
        if after is not None:
            after()
    is_whole(place / "second", before.acknowledged)
    gc.collect()
    wait_for_dropped()
    open_before = descriptors()
    indexes = chosen(lines, LIMIT, inside=inside)
    excused = 0
    for index in indexes:
        root = fresh("disk")
        at = interrupted(act(root), index)
        if after is not None:
            after()
        excused += at.while_handling
        try:
            is_whole(root, before.acknowledged)
        except BaseException as error:
            error.add_note(f"interrupted at {at.places[-1]}, line {index} of {len(lines)}")
            raise
        shutil.rmtree(root)
    gc.collect()
    wait_for_dropped()
    assert descriptors() - open_before <= excused
    return len(indexes)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("manual", [False, True] if LONG else [False], ids=str)
def test_an_interrupted_open(place: Path, before: Before, manual: bool) -> None:
    def opening(root: Path) -> Callable[[], object]:
        return lambda: open_log(root, manual=manual)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        inside = ("",) if before.everywhere and not manual else OUR_FLOORS
        print("open:", sweep(place, before, opening, inside), "interrupts")


@pytest.mark.parametrize("transaction", [False, True], ids=["", "in a transaction"])
def test_an_interrupted_close(place: Path, transaction: bool) -> None:
    kept: list[kafkalog.Partition] = []

    def closing(root: Path) -> Callable[[], object]:
        log = open_log(root)
        kept[:] = [log]
        log.append_many(VALUES[6:])
        if transaction:
            txn = log.transaction("job")
            txn.begin()
            txn.append(b"never seen")
        return log.close

    def half(root: Path) -> None:
        with open_log(root) as log:
            log.append_many(VALUES[:6])

    def again() -> None:
        """A close that was interrupted before it began closes at the next call; otherwise it is closed already."""
        kept.pop().close()

    print(
        "close:", sweep(place, Before(half, VALUES), closing, ("",) if transaction else OUR_FLOORS, again), "interrupts"
    )


def test_an_interrupted_close_beside_another_log(place: Path) -> None:
    """The directory stays with the other log; its marker is written when both are known to be clean again."""
    closing: list[kafkalog.Partition] = []

    def both(root: Path) -> Callable[[], object]:
        closing[:] = [open_log(root), open_log(root, name="u-0")]
        closing[0].append_many(VALUES)
        return closing[0].close

    lines = lines_of(both(place / "first"))
    closing[1].close()
    for index in chosen(lines, LIMIT, inside=OUR_FLOORS):
        root = place / str(index)
        action = both(root)
        interrupted(action, index)
        closing[0].close()
        closing[1].append(b"beside")
        with open_log(root) as again:
            assert values(again) == VALUES
        closing[1].close()
        assert verify(root, deep=True).ok
        with open_log(root), open_log(root, name="u-0") as other:
            assert values(other) == [b"beside"]
        assert (root / ".kafka_cleanshutdown").exists()


def test_close_again_does_what_is_left(place: Path) -> None:
    """Interrupted twice, in the close and in its giving up, a log still closes at the third word."""
    root = place / "disk"
    log = open_log(root)
    lines = lines_of(lambda: log.close())
    for index in chosen(lines, 25, inside=OUR_FLOORS):
        log = open_log(root)
        log.append(b"x")

        def twice(log: kafkalog.Partition = log, index: int = index) -> None:
            interrupted(log.close, index)
            interrupted(log.close, index // 2)

        twice()
        log.close()
        assert log.closed
        assert not (root / ".lock").exists()
    assert verify(root, deep=True).ok


@pytest.mark.logs_errors
def test_the_first_error_travels(place: Path) -> None:
    """Errors during the cleanup of a failed open or close are logged; the caller gets the first error."""
    faulty = FaultyFiles(FILES)
    log = open_log(place / "disk", faulty)
    log.append_many(VALUES)
    with log.transaction("job") as txn:
        txn.append(b"ends")
    txn.begin()
    txn.append(b"open")
    faulty.fault = Fault(at=faulty.count)
    with pytest.raises(KafkaStorageException, match=r"the first error was OSError: \[Errno 5\]"):
        log.close()  # the transaction's end met it
    assert log.closed
    faulty.fault = None
    with open_log(place / "disk", faulty) as again:
        assert values(again) == [*VALUES, b"ends"]
    faulty.fault = Fault(at=0, kinds=["list_dir"], paths=lambda path: path.endswith("t-0"))
    with pytest.raises(KafkaStorageException, match="Error while loading"):
        open_log(place / "disk", faulty)
    faulty.fault = None
    open_log(place / "disk", faulty).close()
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):  # the first files that are created
        full = FaultyFiles(FILES, Fault(at=0, kinds=["write"], paths=lambda path, name=name: name in path))
        with pytest.raises(KafkaStorageException, match=name):
            open_log(place / "full" / name, full).close()


def test_an_interrupt_travels_as_it_is(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def act(*_: object) -> None:
        raise Interrupted

    log = open_log(place / "disk")
    txn = log.transaction("job")
    txn.begin()
    txn.append(b"1")
    with monkeypatch.context() as patch:
        patch.setattr(Coordinators, "end_of", act)
        with pytest.raises(Interrupted):
            log.close()
    assert log.closed
    with open_log(place / "disk") as again:
        assert values(again) == []
        assert again.last_stable_offset == again.end_offset


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_real_signals_at_random_moments(place: Path) -> None:
    """Acknowledged records exist, attempted ones may; the directory opens again, whatever the signal hit."""
    root, rng = place / "disk", draw("signals")
    hits = acknowledged = attempted = 0

    def handler(*_: object) -> None:
        raise Interrupted

    def once() -> None:
        nonlocal acknowledged, attempted
        log = open_log(root)
        attempted += 1
        log.append(b"x")
        acknowledged += 1
        log.close()

    once()
    began = time.perf_counter()
    once()
    span_s = time.perf_counter() - began  # kept near to what a round takes, whatever else the machine does
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(3000 if LONG else 200):
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, span_s))
                    once()
                    span_s *= 0.9
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                hits += 1
                span_s *= 1.1
            with open_log(root) as log:
                assert acknowledged <= log.end_offset <= attempted
                acknowledged = attempted = log.end_offset
    finally:
        signal.signal(signal.SIGALRM, before)
    assert hits > 20
    assert verify(root, deep=True).ok
    assert not (root / ".lock").exists()
    assert not occupied(root)
    print("signals:", hits, "hits")


# --- a store ---------------------------------------------------------------------------------------------------


def store_at(root: Path) -> kafkalog.Store:
    return kafkalog.open(root, files=FILES, maintenance=False, clock=ManualClock(1_700_000_000_000))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("kind", [LINES, CALLS])
@pytest.mark.parametrize("before", ["new", "used"])
def test_an_interrupted_open_of_a_store(place: Path, kind: str, before: str) -> None:
    """The handler of the interrupt may open the directory again at once, while the exception and its frames still
    exist."""
    template = place / "template"
    template.mkdir()
    if before == "used":
        with store_at(template) as store:
            store.create_topic("t").append(b"v")
            with store.reader("c", topics=["t"]) as reader:
                reader.poll(1)
                reader.commit()

    def judged(root: Path) -> None:
        with store_at(root) as store:
            assert store.topics() == ([] if before == "new" else ["t"])
            if before == "used":
                assert [each.committed.offset for cursor in store.cursors() for each in cursor.partitions] == [1]

    def opened(root: Path) -> None:
        kept.append(store_at(root))

    kept: list[kafkalog.Store] = []
    places: list[Place] = []
    for name in ("first", "second"):  # the first time there are imports and caches on the way
        root = Path(shutil.copytree(template, place / name))
        with Tracer(kind) as tracer:
            opened(root)
        kept.pop().close()
        places = tracer.places
    hits = 0
    for index in chosen(
        places, LIMIT, inside=("store.py", "_face/store", "engine/host/manager_life", "engine/host/log_dir")
    ):
        root = Path(shutil.copytree(template, place / "disk"))
        tracer = Tracer(kind, index)
        try:
            with tracer:
                opened(root)
        except Interrupted as interrupt:
            hits += 1
            try:
                judged(root)
            except BaseException as error:
                error.add_note(f"interrupted at {tracer.places[-1]}, {kind} {index} of {len(places)}: {interrupt!r}")
                raise
        for store in kept:
            store.close()
        kept.clear()
        assert not (root / ".lock").exists(), tracer.places[-1]
        judged(root)
        shutil.rmtree(root)
    assert hits > 10


def test_a_store_that_was_never_started_is_dropped_and_closes(place: Path) -> None:
    home = StoreHome(
        [str(place / "disk")], ManagerSettings(), durability="os", compression=None, clock=ManualClock(), files=FILES,
        metrics=None,
    )  # fmt: skip
    dropped = [home]
    del home

    def drop() -> None:
        dropped.clear()
        gc.collect()

    with pytest.warns(ResourceWarning, match="dropped without being closed"):
        drop()
    with kafkalog.open(place / "disk") as store:
        store.create_topic("t").append(b"v")
