"""Many logs, many threads, and few files that may be open: nobody notices that a file was closed in favour of another.

Readers read random offsets of random logs while others append, roll, truncate and delete there.  Each record names its
log and offset, so that the bytes of another file, or of an earlier time, are noticed at once.  Meanwhile open files
(/proc/self/fd and /proc/self/maps) are counted against the budget and the files in use at the moment.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.files import OpenFiles, OsFiles
from kafkalog.engine.log.types import FetchIsolation
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.engine.segment.file_records import FileRecordsSlice
from kafkalog.errors import OffsetOutOfRangeException
from tests.crash.harness import fast_dir
from tests.file_doubles import UnsyncedFiles
from tests.live.crew import SECONDS, Crew
from tests.sampling import LONG
from tests.unit.log_kit import NOW_MS, Kit, batch

BUDGET = 32
LOGS = 12
SMALL = {"internal.segment.bytes": "1500", "index.interval.bytes": "300", "segment.index.bytes": "240"}
# Beside the budget a thread has at most: a file that it is opening, one that it reads, an append's four.
OF_A_THREAD = 6

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")


def value_at(log: int, offset: int, epoch: int) -> bytes:
    return b"%d.%d.%d." % (log, offset, epoch) + b"." * 60


class One:
    """A log, and what its writer knows of it.  `epochs` tells how often it was cut, so that old records are known."""

    def __init__(self, number: int, root: Path, files: OsFiles) -> None:
        self.number = number
        os.mkdir(root)
        self.kit = Kit(root, files)
        self.log: UnifiedLog = self.kit.open(SMALL)
        self.epochs = 0
        self.changes = 0  # odd while it is being truncated
        self.lock = threading.Lock()

    def append(self, count: int) -> None:
        with self.lock:
            offset = self.log.log_end_offset
            for _ in range(count):
                data = batch(1, ts=NOW_MS + offset, value=value_at(self.number, offset, self.epochs))
                assert self.log.append_as_leader(data, 0).first_offset == offset
                offset += 1
            self.log.update_high_watermark(offset)

    def cut(self, rng: random.Random) -> None:
        with self.lock:
            end, start = self.log.log_end_offset, self.log.log_start_offset
            if end - start < 80:
                return
            self.epochs += 1
            self.changes += 1
            self.log.truncate_to(rng.randint(max(start, end - 40), end))
            self.changes += 1

    def delete(self, rng: random.Random) -> None:
        with self.lock:
            end, start = self.log.log_end_offset, self.log.log_start_offset
            if end - start > 120:
                self.log.maybe_increment_log_start_offset(rng.randint(start, end - 60))
                self.log.delete_old_segments()
            self.kit.clock.advance(120_000)
            self.kit.scheduler.tick()

    def read(self, rng: random.Random, held: list[FileRecordsSlice] | None = None) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        if end <= start:
            return
        offset = rng.randrange(start, end)
        changes = self.changes
        try:
            records = self.log.read(offset, 400, FetchIsolation.LOG_END).records
            if isinstance(records, FileRecordsSlice):  # otherwise the end, since a truncation
                self.judge(records, offset)
                if held is not None:
                    held.append(records)
        except OffsetOutOfRangeException:
            pass  # deleted or truncated since
        except Exception:
            if not self.was_cut_since(changes):
                raise  # otherwise it was truncated during the read, and written again: Kafka's readers see that too

    def judge_all(self, step: int = 1) -> None:
        """Checks each offset alone, while nothing changes."""
        for offset in range(self.log.log_start_offset, self.log.log_end_offset, step):
            records = self.log.read(offset, 1, FetchIsolation.LOG_END).records
            assert isinstance(records, FileRecordsSlice)
            self.judge(records, offset)

    def was_cut_since(self, changes: int) -> bool:
        return changes % 2 == 1 or self.changes != changes

    def judge(self, records: FileRecordsSlice, offset: int) -> None:
        found = []
        for record in records.records():
            assert record.value is not None
            log, at, epoch = map(int, record.value.split(b".")[:3])
            assert (log, at) == (self.number, record.offset), record
            assert epoch <= self.epochs, record
            found.append(at)
        assert found[0] == offset, (found, offset)

    def look_up(self, rng: random.Random) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        if end <= start:
            return
        offset, changes = rng.randrange(start, end), self.changes
        try:
            found = self.log.fetch_offset_by_timestamp(NOW_MS + offset)
            now = self.log.log_start_offset
            assert found is not None, offset
            assert found.offset == offset or offset < found.offset <= now, (found, offset)
        except Exception:
            if not self.was_cut_since(changes):
                raise


@pytest.fixture
def folder() -> Iterator[Path]:
    with fast_dir() as path:
        yield path


def opened_below(folder: Path) -> tuple[int, int]:
    """The number of descriptors and maps that this process has of files below a directory."""
    fds = maps = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            fds += os.readlink(f"/proc/self/fd/{fd}").startswith(f"{folder}/")
        except FileNotFoundError:
            continue
    with open("/proc/self/maps", encoding="utf-8") as lines:
        maps = sum(f" {folder}/" in line for line in lines)
    return fds, maps


def test_many_threads_and_few_files(folder: Path, count: Callable[[str, int], None]) -> None:
    files = UnsyncedFiles(OpenFiles(BUDGET))
    logs = [One(number, folder / str(number), files) for number in range(LOGS)]
    for one in logs:
        one.append(150)
    assert sum(one.log.number_of_segments for one in logs) > 5 * BUDGET
    crew = Crew()
    threads = 0
    holding: list[list[FileRecordsSlice]] = [[] for _ in range(2)]

    def add(role: str, do: Callable[[One, random.Random], object], seed: int) -> None:
        nonlocal threads
        threads += 1
        rng = random.Random(seed)
        crew.add(role, lambda: do(rng.choice(logs), rng))

    for seed in range(4):
        add("read", lambda one, rng: one.read(rng), seed)
    for seed, held in enumerate(holding):

        def hold(one: One, rng: random.Random, held: list[FileRecordsSlice] = held) -> None:
            one.read(rng, held)
            del held[: len(held) - 5]

        add("read", hold, 10 + seed)
    for seed in range(2):
        add("look up", lambda one, rng: one.look_up(rng), 20 + seed)
        add("append", lambda one, rng: one.append(rng.randint(1, 5)), 30 + seed)
    add("cut", lambda one, rng: one.cut(rng), 40)
    add("delete", lambda one, rng: one.delete(rng), 41)
    add("flush", lambda one, _: one.log.flush(True), 42)
    most = [0, 0]

    def watch() -> None:
        for at, found in enumerate(opened_below(folder)):
            most[at] = max(most[at], found)
        time.sleep(0.001)

    crew.add("watch", watch)
    crew.run(SECONDS)
    beside = OF_A_THREAD * threads + sum(6 for _ in holding)
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        beside *= 2  # a file that another thread dropped is closed when the thread that opened it comes by
    assert most[0] <= BUDGET + beside, most
    assert most[1] <= BUDGET + beside, most
    count("steps with few files", crew.steps)
    count("descriptors at most", most[0])

    for held in holding:
        held.clear()
    assert sum(opened_below(folder)) <= 2 * BUDGET
    assert len(files.pool) <= BUDGET
    for one in logs:
        one.judge_all()
        one.log.close()
        one.kit.scheduler.clear()
    assert opened_below(folder) == (0, 0)


def test_renames_beside_readers(folder: Path) -> None:
    """A directory is renamed and renamed back, again and again: a reader at a bad time waits, and finds it."""
    files = UnsyncedFiles(OpenFiles(16))
    one = One(0, folder / "0", files)
    one.append(300)
    crew = Crew()
    names = ["t-0", "t-0.0123456789abcdef0123456789abcdef-future"]
    turn = [0]

    def rename() -> None:
        turn[0] += 1
        one.log.rename_dir(names[turn[0] % 2], False)

    for seed in range(4):
        rng = random.Random(seed)
        crew.add("read", lambda rng=rng: one.read(rng))  # type: ignore[misc]
        crew.add("look up", lambda rng=rng: one.look_up(rng))  # type: ignore[misc]
    crew.add("rename", rename)
    crew.add("flush", lambda: one.log.flush(True))
    crew.run(SECONDS)
    assert turn[0] > 10
    one.log.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_has_a_budget_of_its_own(folder: Path) -> None:
    """A child's opens close the child's copies of its parent's files; the parent's files stay open."""
    files = UnsyncedFiles(OpenFiles(16))
    parents = One(0, folder / "parent", files)
    parents.append(300)
    parents.judge_all(7)
    for number in range(20 if LONG else 4):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                mine = One(1, folder / f"child{number}", files)
                mine.append(200)
                mine.judge_all()
                mine.log.close()
                status = 0 if len(files.pool) <= 16 else 2
            finally:
                os._exit(status)
        parents.judge_all(7)
        parents.append(3)
        assert os.waitpid(child, 0)[1] == 0
    parents.log.close()


def test_logs_of_the_face_share_a_budget(folder: Path) -> None:
    files = UnsyncedFiles(OpenFiles(16))
    config = {"internal.segment.bytes": "2000", "segment.index.bytes": "240", "index.interval.bytes": "300"}
    logs = [kafkalog.open_log(folder, f"t-{number}", config=config, files=files) for number in range(20)]
    try:
        for step in range(60):
            for number, log in enumerate(logs):
                assert log.append(b"%d.%d" % (number, step)) == step
        for number, log in enumerate(logs):
            assert [record.value for record in log.records()] == [b"%d.%d" % (number, step) for step in range(60)]
        assert len(files.pool) <= 16
    finally:
        for log in logs:
            log.close()


FEW_DESCRIPTORS = """
import resource, sys
import kafkalog

root = sys.argv[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
for read_only in (True, False):
    with kafkalog.open(root, read_only=read_only) as store:
        cursor = None if read_only else "cursor"
        with store.reader(cursor, topics=["t"], start="earliest") as reader:
            first = reader.poll(max_records=150)
            rest = reader.poll(max_records=1000)
            assert len(first) == 150, len(first)
            found = sorted((r.partition, r.offset, r.value) for r in first + rest)
            assert found == sorted((p, o, b"%d %d" % (p, o)) for p in range(100) for o in range(5)), found[:5]
            assert reader.poll() == []
            if not read_only:
                reader.commit()
                for partition in range(100):
                    store.topic("t").append(b"%d 5" % partition, partition=partition)
                assert len(reader.poll(max_records=1000)) == 100
"""


def test_a_reader_of_more_partitions_than_descriptors(folder: Path) -> None:
    """Each of its partitions closes its file after its turn, and continues where it was."""
    with kafkalog.open(folder) as store:
        topic = store.create_topic("t", 100, config=SMALL)
        for number in range(100):
            for offset in range(5):
                topic.append(b"%d %d" % (number, offset), partition=number)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FEW_DESCRIPTORS, str(folder)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
