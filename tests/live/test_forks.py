"""A fork in the middle of everything: the child is refused and touches nothing, the parent continues."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kafkalog
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.segment.offset_index import OffsetIndex
from kafkalog.errors import IllegalStateException, LogDirLockedException
from tests.live.cases import HAS_ALTAIR, HAS_DUCKDB, batch_of
from tests.live.crew import Crew, Member, full, open_live
from tests.live.interrupts import CONFIG, value_of
from tests.live.oracle import Oracle, check_reopened, check_verified, look
from tests.sampling import LONG, draw

ROUNDS = 60 if LONG else 6
CHILD_SECONDS = 30

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

# The packages of data frames that are here; imported before a fork.
FRAMES = [name for name in ("pandas", "polars") if importlib.util.find_spec(name) and importlib.import_module(name)]


DUCKDB: Any = importlib.import_module("duckdb") if HAS_DUCKDB else None


def to_duckdb(readable: Any) -> object:
    """Writes to the package's own database, which nobody has opened before the fork: its threads would not exist in the
    child."""
    return readable.to_duckdb(DUCKDB, "t").fetchall()


Uses = list[tuple[str, Callable[[kafkalog.Partition], object]]]

USES: Uses = [
    ("append", lambda log: log.append(b"99.1")),
    ("append_many", lambda log: log.append_many([b"99.2"])),
    ("append_columns", lambda log: log.append_columns([b"99.3"] * 5)),
    ("append_batches", lambda log: log.append_batches(b"")),
    ("writer", lambda log: log.writer("w").append(b"99.4")),
    ("transaction", lambda log: log.transaction("j").begin()),
    ("truncate", lambda log: log.truncate(0)),
    ("compact", lambda log: log.compact()),
    ("delete_records", lambda log: log.delete_records(-1)),
    ("delete_old_segments", lambda log: log.delete_old_segments()),
    ("flush", lambda log: log.flush()),
    ("records", lambda log: list(log.records())),
    ("iteration", list),
    ("reader", lambda log: list(log.reader().records())),
    ("reader as Arrow", lambda log: log.reader().arrow_reader().read_all()),
    ("latest", lambda log: log.latest().read_all()),
    ("records by key", lambda log: list(log.records(key="k"))),
    ("records by condition", lambda log: list(log.records(where="offset >= 0", grep=".", headers=["h"]))),
    ("read_arrow by key", lambda log: log.read_arrow(key_prefix="k", on_damage="skip")),
    ("read_arrow of JSON", lambda log: log.read_arrow(values="json", schema={"a": "int64"})),
    ("latest by key", lambda log: log.latest(key="k").read_all()),
    ("Arrow stream", lambda log: log.arrow_reader().read_all()),
    *((f"to_{name}", methodcaller(f"to_{name}")) for name in FRAMES),
    *([("to_duckdb", to_duckdb)] if HAS_DUCKDB else []),
    *((f"reader's to_{name}", lambda log, name=name: getattr(log.reader(), f"to_{name}")()) for name in FRAMES),
    *([("plot", lambda log: log.plot()), ("one picture", lambda log: log.plot("segments"))] if HAS_ALTAIR else []),
    ("describe", lambda log: log.describe()),
    ("offset_for_time", lambda log: log.offset_for_time(0)),
    ("leader_epoch", lambda log: log.leader_epoch),
    ("refresh", lambda log: log.refresh()),
    ("await_offset", lambda log: log.await_offset(0, timeout_ms=60_000)),
    ("engine.append", lambda log: log.engine.append_as_leader(batch_of([b"99.5"]), 0)),  # type: ignore[union-attr]
    ("engine.roll", lambda log: log.engine.roll()),  # type: ignore[union-attr]
    ("engine.flush", lambda log: log.engine.flush(True)),  # type: ignore[union-attr]
    ("engine.truncate", lambda log: log.engine.truncate_to(0)),  # type: ignore[union-attr]
    ("engine.delete", lambda log: log.engine.delete()),  # type: ignore[union-attr]
]


def files_of(path: Path) -> dict[str, bytes]:
    return {
        os.path.join(folder, name): (Path(folder) / name).read_bytes()
        for folder, _, names in os.walk(path)
        for name in names
    }


def in_a_child(work: Callable[[], object]) -> str:
    """Fork, run `work` in the child; what it failed with ("" when it did not)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            signal.alarm(CHILD_SECONDS)  # a child that waits for a lock which nobody holds any more
            try:
                work()
                told = ""
            except BaseException:
                told = traceback.format_exc()
            os.write(writing, told.encode()[-4000:])
            os.close(writing)
        finally:
            os._exit(0)
    os.close(writing)
    told = b""
    while chunk := os.read(reading, 4096):
        told += chunk
    os.close(reading)
    _, status = os.waitpid(child, 0)
    return told.decode() if status == 0 else f"status {status}: {told.decode()}"


def refused(log: kafkalog.Partition) -> None:
    """Every use of a parent's log is refused by name; its close is none, and does nothing."""
    wrong = []
    for name, use in USES:
        try:
            answer = use(log)
        except IllegalStateException:
            continue
        except BaseException as error:
            wrong.append(f"{name} raised {error!r}")
        else:
            wrong.append(f"{name} answered {answer!r}")
    assert not wrong, wrong
    try:
        log.close()
    except IllegalStateException:
        pass


def test_a_child_is_refused_and_touches_nothing(base: Path) -> None:
    path = base / "logs"
    oracle = Oracle()
    with open_live(path) as log:
        member = Member(log, oracle, 1)
        for _ in range(20):
            member.append_many()
        before = files_of(path)
        assert not in_a_child(lambda: refused(log))
        assert files_of(path) == before
        member.append_many()
        oracle.judge(look(log))
    check_verified(path)
    check_reopened(path, "t-0", oracle, config=CONFIG)


def test_a_child_does_not_wait_for_its_parents_searches(tmp_path: Path) -> None:
    index = OffsetIndex(str(tmp_path / "0.index"), 0, 8 * 10_000, OS_FILES)
    for entry in range(1, 10_000):
        index.append(entry, entry)
    assert index.lookup(5) == (5, 5)  # from here on its bytes are held
    stop = threading.Event()
    targets = np.random.default_rng(1).integers(0, 10_000, 1_000_000)

    def search() -> None:
        while not stop.is_set():
            index.lookups(targets)

    thread = threading.Thread(target=search)
    thread.start()
    try:
        while index.let_go():  # until it is inside; then the child keeps the count forever
            index.lookup(5)
            time.sleep(0)
        assert not in_a_child(index.close)
    finally:
        stop.set()
        thread.join()
    index.close()


def test_forks_in_the_middle_of_appends(base: Path, count: Callable[[str, int], None]) -> None:
    """Threads append, one of them holds the lock at the moment of the fork; no child hangs or writes."""
    rng = draw("forks")
    for number in range(ROUNDS):
        path = base / f"round{number}"
        oracle, crew = Oracle(), Crew("append")
        log = open_live(path)
        for each in range(3):
            crew.add("append", Member(log, oracle, each).append_many)
        crew.add("write", Member(log, oracle, 3).write)
        crew.add("flush", log.flush)

        def forks(log: kafkalog.Partition = log) -> None:
            for _ in range(3):
                time.sleep(rng.random() * 0.01)
                told = in_a_child(lambda: refused(log))
                assert not told, told

        crew.enough = full(log)
        crew.run(0.05, forks)
        oracle.judge(look(log))
        log.close()
        check_verified(path)
        check_reopened(path, "t-0", oracle, config=CONFIG)
        count("forks beside appends", 3)


def other_directory(base: str, parents: str) -> None:
    """In a child: the parent's directory is locked, another one is as free as ever."""
    with pytest.raises(LogDirLockedException):
        open_live(parents)
    with pytest.raises(LogDirLockedException):
        open_live(parents, "t-5")
    with open_live(parents, read_only=True) as log:
        assert len(list(log)) > 0
    path = os.path.join(base, f"child{os.getpid()}")
    with open_live(path) as log:
        assert log.append(value_of(b"1.1")) == 0
        log.flush()
    assert os.path.exists(os.path.join(path, ".kafka_cleanshutdown"))


def test_a_child_opens_directories_of_its_own(base: Path) -> None:
    path = base / "parents"
    with open_live(path) as log:
        log.append_many([value_of(b"1.%d" % number) for number in range(30)])
        for _ in range(3):
            told = in_a_child(lambda: other_directory(str(base), str(path)))
            assert not told, told
        assert log.append(b"2.1") == 30
        assert (path / ".lock").exists()
        told = in_a_child(lambda: other_directory(str(base), str(path)))
        assert not told, told  # the child before did not give the parent's lock away
    assert (path / ".kafka_cleanshutdown").exists()


NORMAL_END = """
import os, sys
import kafkalog
from tests.live.crew import open_live
from tests.live.interrupts import value_of

path, how = sys.argv[1], sys.argv[2]
log = open_live(path)
log.append(value_of(b"1.0"))
with log.transaction("job") as transaction:
    transaction.append(value_of(b"1.1"))
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        if how == "raise":
            raise SystemExit(7)
        if how == "with":
            with log:
                sys.exit(7)
        if how == "drop":
            del log, transaction
            sys.exit(7)
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    transaction.append(value_of(b"1.2"))
assert log.append(value_of(b"1.3")) == 4
assert [record.offset for record in log.records(isolation="read_committed")] == [0, 1, 2, 4]
assert os.path.exists(os.path.join(path, ".lock"))
assert not os.path.exists(os.path.join(path, ".kafka_cleanshutdown"))
log.close()
assert os.path.exists(os.path.join(path, ".kafka_cleanshutdown"))
"""


@pytest.mark.parametrize("how", ["plain", "with", "drop", "raise"])
def test_a_child_that_ends_normally(how: str, base: Path) -> None:
    """Out of two `with` blocks, through every finalizer: nothing is aborted, marked or unlocked under the parent."""
    import subprocess

    done = subprocess.run(
        [sys.executable, "-c", NORMAL_END, base / "log", how], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    check_verified(base / "log")


def pool_work(task: tuple[str, str, int]) -> int:
    base, parents, number = task
    with pytest.raises(LogDirLockedException):
        open_live(parents)
    with open_live(os.path.join(base, f"pool{number}")) as log:
        log.append_many([b"1.%d" % each for each in range(number)])
        return log.end_offset


def test_a_pool_that_forks(base: Path) -> None:
    path = base / "parents"
    with open_live(path) as log:
        log.append(b"1.0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context: Any = multiprocessing.get_context("fork")
            with context.Pool(3) as pool:
                tasks = [(str(base), str(path), number) for number in range(1, 13)]
                assert pool.map(pool_work, tasks, chunksize=1) == list(range(1, 13))
        assert log.append(b"1.1") == 1
    assert (path / ".kafka_cleanshutdown").exists()
    check_verified(path)
