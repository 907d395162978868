"""A LogManager under everything at once, for a long time: `python -m tests.live.soak --minutes 20`.

There are many partitions in three directories, writer and reader threads, retention, a pool of cleaner threads, moves,
deletion followed by creation, truncation and changes of the cleanup policy.  Halfway, one directory's disk fails for
good.

Each partition has one writer at a time, so that its n-th record of a life must get offset n.  Readers follow, and must
see each record once and in order, except for those that retention deleted.  A reader of a whole compacted partition
(`Kind`) must see offsets grow, and for each key the value that was acknowledged when it began, or a newer one.

The soak prints figures while it runs.  At the end descriptors, maps and memory must not have grown, no partition is
uncleanable, and no thread has died.  The manager is shut down and started again without the failed directory.  Then
every acknowledged record, or the last one of each key, must exist.
"""

from __future__ import annotations

import argparse
import enum
import errno
import gc
import logging
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from kafkalog.config import CleanerConfig, LogConfig
from kafkalog.engine.format.names import parse_topic_partition_name
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import IllegalStateException, KafkaStorageException, OffsetOutOfRangeException
from tests.crash.harness import fast_dir
from tests.crash.managed import DISKS, SETTINGS
from tests.file_doubles import Fault, FaultyFiles, UnsyncedFiles
from tests.unit.cleaner_kit import keyed
from tests.unit.log_kit import batch

CONFIG = {
    "internal.segment.bytes": "40000",
    "segment.index.bytes": "4800",
    "retention.bytes": "120000",
    "retention.ms": "-1",
    "file.delete.delay.ms": "1500",
    "segment.jitter.ms": "0",
}
TASKS = {
    "retention_check_ms": 1_000,
    "recovery_checkpoint_ms": 2_000,
    "start_checkpoint_ms": 2_000,
    "high_watermark_checkpoint_ms": 1_000,
    "initial_task_delay_ms": 500,
}
FAILED = 2  # the directory whose disk fails
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.2",
    "delete.retention.ms": "300",
    "internal.segment.bytes": "20000",
}
POOL = CleanerConfig(
    num_threads=2, dedupe_buffer_size=4 << 20, io_buffer_size=1 << 16, max_message_size=1 << 14, backoff_ms=20
)
KEYS = 60


class Kind(enum.Enum):
    """The treatment of a partition's records, chosen by its topic."""

    PLAIN = "p"
    COMPACTED = "c"
    CUT = "t"  # compacted, too, and truncated; nobody reads it meanwhile, because a file is truncated under readers

    @property
    def is_compacted(self) -> bool:
        return self is not Kind.PLAIN


@dataclass
class Partition:
    """The known state of one partition: its life, and the number of acknowledged records."""

    name: str
    life: int = 0
    acknowledged: int = 0
    last: dict[str, tuple[int, bytes | None]] = field(default_factory=dict)  # by key, if it is compacted
    writing: threading.RLock = field(default_factory=threading.RLock)
    cut_begun: int | None = None  # to this offset, and perhaps done: its end is unknown, and it is truncated no more
    cut_to: int | None = None  # the last time, in this life

    @property
    def kind(self) -> Kind:
        return Kind(self.name[0])

    def begin_again(self) -> None:
        self.life += 1
        self.acknowledged = 0
        self.last = {}
        self.cut_begun = self.cut_to = None

    def cut(self, offset: int) -> None:
        """Forgets keys whose last record is truncated: a pass may have dropped the records before it."""
        self.acknowledged = self.cut_to = offset
        self.last = {key: known for key, known in self.last.items() if known[0] < offset}

    def ends_rightly(self, log: UnifiedLog) -> bool:
        """Whether a log that was opened again ends where it ended.

        After a truncation within a cleaned part it ends, as Kafka's, after the last remaining batch."""
        end = log.log_end_offset
        return end == self.acknowledged or (self.acknowledged == self.cut_to and end < self.cut_to)


@dataclass
class Figures:
    """The resources that the process holds."""

    descriptors: int
    maps: int
    resident_mib: float

    @classmethod
    def now(cls, process: str = "self") -> Figures:
        gc.collect()
        with open(f"/proc/{process}/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
        with open(f"/proc/{process}/maps", encoding="ascii", errors="replace") as file:
            maps = sum(1 for _ in file)
        return cls(len(held(process)), maps, pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20))


def held(process: str = "self") -> list[str]:
    """The open files, except for those that wait for their deletion: their number varies with the work."""
    found = []
    for number in os.listdir(f"/proc/{process}/fd"):
        try:
            path = os.readlink(f"/proc/{process}/fd/{number}").removesuffix(" (deleted)")
        except OSError:
            continue
        if not path.endswith(".deleted") and not os.path.dirname(path).endswith("-delete"):
            found.append(path)
    return found


class Soak:
    """One trial; its threads stop at the first failure."""

    def __init__(self, root: Path, partitions: int, seed: int) -> None:
        self.files = FaultyFiles(UnsyncedFiles())
        self.dirs = [str(root / f"disk{number}") for number in range(DISKS)]
        self.settings = SETTINGS._replace(default_config=LogConfig.from_props(None, CONFIG), cleaner=POOL, **TASKS)
        self.manager = LogManager(self.dirs, self.settings, files=self.files)
        kinds = (Kind.PLAIN, Kind.COMPACTED, Kind.PLAIN, Kind.CUT)
        self.partitions = [Partition(f"{kinds[number % 4].value}{number % 7}-{number}") for number in range(partitions)]
        self.seed = seed
        self.stop = threading.Event()
        self.failures: list[str] = []
        self.counts: dict[str, int] = dict.fromkeys(
            (
                "appended", "read", "refused", "moves", "moves refused", "deletions", "skipped by retention", "lost",
                "read compacted", "cuts", "settings",
            ),
            0,
        )  # fmt: skip
        self._counting = threading.Lock()

    def count(self, what: str, number: int = 1) -> None:
        with self._counting:
            self.counts[what] += number

    def guarded(self, work: Callable[[random.Random], object], number: int) -> threading.Thread:
        rng = random.Random(self.seed * 1000 + number)

        def run() -> None:
            try:
                while not self.stop.is_set():
                    work(rng)
            except BaseException:
                self.failures.append(traceback.format_exc())
                self.stop.set()

        return threading.Thread(target=run, name=f"soak-{number}", daemon=True)

    def is_on_the_failed_disk(self, path: str) -> bool:
        return path.startswith(self.dirs[FAILED] + os.sep)

    # --- what threads do -----------------------------------------------------------------------------

    def log_of(self, partition: Partition) -> UnifiedLog | None:
        return self.manager.get_log(partition.name)

    def write(self, rng: random.Random) -> None:
        partition = rng.choice(self.partitions)
        with partition.writing:
            for _ in range(rng.randint(1, 20)):
                log = self.log_of(partition)
                if log is None:
                    self.begin_again(partition)
                    return
                number = partition.acknowledged
                value = value_of(partition, number, rng)
                key = f"k{rng.randrange(KEYS)}" if partition.kind.is_compacted else None
                is_kept = key is None or rng.random() < 0.9
                data = batch(1, value=value) if key is None else keyed_batch(key, value if is_kept else None, rng)
                try:
                    info = log.append_as_leader(data, 0)
                except KafkaStorageException:
                    self.count("refused")  # it moves, or its disk has failed: ask again
                    continue
                assert info.first_offset == number, (partition, info)
                partition.acknowledged = number + 1
                if key is not None:
                    partition.last[key] = (number, value if is_kept else None)
                self.count("appended")

    def begin_again(self, partition: Partition) -> None:
        """Its disk has failed, perhaps while it was being recreated: it begins a new life on another one."""
        assert self.files.failed, partition
        self.count("lost")
        partition.begin_again()
        try:
            self.manager.get_or_create_log(partition.name, is_new=True)
        except KafkaStorageException:
            return

    def delete(self, rng: random.Random) -> None:
        if self.stop.wait(0.1):
            return
        partition = rng.choice(self.partitions)
        with partition.writing:
            try:
                if self.manager.async_delete(partition.name) is not None:
                    partition.begin_again()
                    self.manager.get_or_create_log(partition.name, is_new=True)
                    self.count("deletions")
            except KafkaStorageException:
                assert self.files.failed
                if self.log_of(partition) is None:
                    self.begin_again(partition)

    def move(self, rng: random.Random) -> None:
        partition = rng.choice(self.partitions)
        where = rng.choice(self.manager.live_log_dirs)
        try:
            self.manager.move(partition.name, where)
            self.count("moves")
        except (KafkaStorageException, IllegalStateException, OffsetOutOfRangeException, LookupError):
            self.count("moves refused")  # deleted meanwhile, or a disk failed
        self.stop.wait(0.02)

    def cut(self, rng: random.Random) -> None:
        if self.stop.wait(0.05):
            return
        partition = rng.choice(self.partitions)
        with partition.writing:
            log = self.log_of(partition)
            if partition.kind is not Kind.CUT or log is None or partition.cut_begun is not None:
                return
            end = partition.acknowledged
            offset = max(log.log_start_offset, end - rng.randrange(1 + end // rng.choice((1, 10))))
            partition.cut_begun = offset  # in case the manager is closed between the truncation and the next step
            try:
                if rng.random() < 0.1:
                    self.manager.truncate_fully_and_start_at(partition.name, offset)
                    partition.last = {}
                else:
                    self.manager.truncate_to({parse_topic_partition_name(partition.name): offset})
            except KafkaStorageException:
                if not self.files.failed:  # the end came between
                    raise
                return
            partition.cut(offset)
            partition.cut_begun = None
            self.count("cuts")

    def configure(self, rng: random.Random) -> None:
        """Other policies, under which retention comes nowhere near; other threads, and rates."""
        if self.stop.wait(0.2):
            return
        topic = f"{rng.choice((Kind.COMPACTED, Kind.CUT)).value}{rng.randrange(7)}"
        policy = rng.choice(("compact", "compact", "compact,delete", "delete"))
        try:
            changed = {"cleanup.policy": policy, "retention.bytes": "-1"}
            self.manager.set_topic_config(topic, {**COMPACTED, **changed})
        except KafkaStorageException:
            assert self.files.failed
        if rng.random() < 0.2:
            threads, rate = rng.choice((2, 3)), rng.choice((1e300, 3e6))
            self.manager.reconfigure_cleaner(replace(POOL, num_threads=threads, max_io_bytes_per_second=rate))
        self.count("settings")

    def read_compacted(self, log: UnifiedLog, of: Partition, life: int) -> dict[str, tuple[int, bytes | None]]:
        """Reads all of a life's log once, by key."""
        seen: dict[str, tuple[int, bytes | None]] = {}
        at, before = log.log_start_offset, -1
        while at < log.log_end_offset and not self.stop.is_set():
            found = log.read(at, 20_000).records
            batches = found.batches() if found.size else []
            if not batches:
                break
            for record in found.records():
                if record.offset < at:
                    continue
                assert record.offset > before, (of.name, record, before)
                before = record.offset
                value = None if record.value is None else bytes(record.value)
                if value is not None:
                    expected = b"%s %d %d " % (of.name.encode(), life, record.offset)
                    assert value.startswith(expected), (record, expected)
                seen[bytes(record.key or b"").decode()] = (record.offset, value)
                self.count("read compacted")
            at = batches[-1].next_offset
        return seen

    def read_keys(self, rng: random.Random) -> None:
        partition = rng.choice(self.partitions)
        if partition.kind is not Kind.COMPACTED:
            return
        with partition.writing:
            log, life, least = self.log_of(partition), partition.life, dict(partition.last)
        if log is None:
            return
        try:
            seen = self.read_compacted(log, partition, life)
        except (KafkaStorageException, OffsetOutOfRangeException):
            return  # moved, deleted or failed meanwhile
        with partition.writing:
            if self.stop.is_set() or partition.life != life or self.log_of(partition) is not log:
                return
            for key, (number, value) in least.items():
                is_newer = partition.last[key][0] > number
                found = seen.get(key, (-1, None))
                assert found[0] >= number or value is None or is_newer, (partition.name, key, number, found)
                assert found[0] != number or found[1] == value, (partition.name, key, found)

    def reader(self) -> Callable[[random.Random], object]:
        places: dict[str, tuple[int, int]] = {}  # partition -> life, next offset

        def read(rng: random.Random) -> None:
            partition = rng.choice(self.partitions)
            life, end = partition.life, partition.acknowledged
            log = self.log_of(partition)
            if log is None or partition.kind.is_compacted:
                return
            known, offset = places.get(partition.name, (life, 0))
            if known != life:
                offset = 0
            try:
                offset = self.read_on(partition, log, life, offset, end)
            except KafkaStorageException:
                return  # its disk has failed, or it was moved and deleted under us
            except OffsetOutOfRangeException:
                start = log.log_start_offset
                if partition.life != life or start <= offset:
                    return
                self.count("skipped by retention", start - offset)
                offset = start
            if partition.life == life:
                places[partition.name] = life, offset

        return read

    def read_on(self, partition: Partition, log: UnifiedLog, life: int, offset: int, end: int) -> int:
        while offset < end and not self.stop.is_set():
            records = [each for each in log.read(offset, 65536).records.records() if each.offset >= offset]
            if not records:
                raise_unless_another_life(partition, life, f"nothing at {offset} of {end}")
                return offset
            for record in records:
                name, of, number, _ = bytes(record.value or b"").split(b" ", 3)
                if int(of) != life and (partition.life != life or int(of) > life):
                    return offset  # its log was exchanged under us
                expected = (partition.name.encode(), life, offset)
                assert (name, int(of), int(number)) == expected, (record, expected)
                assert record.offset == offset, (record, expected)
                offset += 1
                self.count("read")
        return offset

    # --- the run -------------------------------------------------------------------------------------

    def begin(self) -> None:
        manager = self.manager
        manager.startup()
        for partition in self.partitions:
            topic = parse_topic_partition_name(partition.name).topic
            if partition.kind.is_compacted and not manager.topic_configs.overrides(topic):
                manager.set_topic_config(topic, COMPACTED)
            manager.get_or_create_log(partition.name, is_new=True)

    def run(self, seconds: float) -> list[Figures]:
        self.begin()
        works = [self.write] * 4 + [self.reader() for _ in range(3)] + [self.move] * 2 + [self.delete]
        works += [self.read_keys] * 2 + [self.cut, self.configure]
        threads = [self.guarded(work, number) for number, work in enumerate(works)]
        for thread in threads:
            thread.start()
        began, told, failed_at = time.monotonic(), [Figures.now()], 0.0
        period = max(2.0, seconds / 20)
        while not self.stop.wait(min(period, max(0.1, began + seconds - time.monotonic()))):
            now = time.monotonic() - began
            told.append(Figures.now())
            print(f"{now:7.1f} s  {told[-1]}  {self.counts}", flush=True)
            if now > seconds / 2 and not failed_at:
                failed_at = now
                self.files.fault = Fault(0, errno.EIO, True, None, self.is_on_the_failed_disk)
                print(f"{now:7.1f} s  {self.dirs[FAILED]} fails", flush=True)
            has_met = self.manager.offline_log_dirs or self.failures or now > seconds + 60
            if now >= seconds and has_met:  # somebody has met the fault
                break
        self.stop.set()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), f"{thread.name} hangs: {stack_of(thread)}"
        assert not self.failures, self.failures[0]
        return told

    def finish(self) -> None:
        """A clean end, and a start without the directory that failed."""
        assert self.manager.offline_log_dirs == [self.dirs[FAILED]], self.manager.offline_log_dirs
        self.judge_cleaner()
        self.manager.shutdown()
        live = [path for path in self.dirs if path != self.dirs[FAILED]]
        assert not os.path.exists(os.path.join(self.dirs[FAILED], ".kafka_cleanshutdown"))
        assert all(os.path.exists(os.path.join(path, ".kafka_cleanshutdown")) for path in live)
        self.stop.clear()
        self.manager = LogManager(live, self.settings, files=self.files)
        with self.manager as manager:
            found = below = 0
            for partition in self.partitions:
                log = manager.get_log(partition.name)
                if log is None:  # it was on the failed disk, and nobody has come to write it since
                    continue
                assert partition.ends_rightly(log), (partition, log)
                if partition.kind.is_compacted:
                    self.judge_keys(partition, log)
                    continue
                below += log.log_start_offset
                found += log.log_end_offset - log.log_start_offset
                end = partition.acknowledged
                assert self.read_on(partition, log, partition.life, log.log_start_offset, end) == end
            self.judge_cleaner()
        print(f"started again: {found} acknowledged records are there, {below} had gone by retention")

    def judge_cleaner(self) -> None:
        cleaner = self.manager.cleaner
        assert cleaner is not None
        assert cleaner.manager.uncleanable_partitions() == []
        assert cleaner.dead_thread_count == 0
        print(f"cleaned: {len(cleaner.manager.all_cleaner_checkpoints())} partitions")

    def judge_keys(self, partition: Partition, log: UnifiedLog) -> None:
        """The last acknowledged value of each key exists. A deleted key has its tombstone or no record."""
        seen = self.read_compacted(log, partition, partition.life)
        for key, (number, value) in partition.last.items():
            assert seen.get(key) == (number, value) or (value is None and key not in seen), (partition.name, key, seen)
        if partition.kind is Kind.COMPACTED:
            assert not seen.keys() - partition.last.keys(), (partition.name, seen)


def raise_unless_another_life(partition: Partition, life: int, what: str) -> None:
    assert partition.life != life, f"{partition.name}: {what}"


def stack_of(thread: threading.Thread) -> str:
    return "".join(traceback.format_stack(sys._current_frames().get(thread.ident or 0)))


def value_of(partition: Partition, number: int, rng: random.Random) -> bytes:
    return b"%s %d %d %s" % (partition.name.encode(), partition.life, number, b"." * rng.randint(1, 600))


def keyed_batch(key: str, value: bytes | None, rng: random.Random) -> bytes:
    return keyed((key, None if value is None else value.decode()), codec=rng.choice((0, 0, 0, 3, 4)))


def check_flat(told: list[Figures]) -> None:
    """Compares the last fifth with the second: a leak has grown by then."""
    fifth = max(1, len(told) // 5)
    early, late = told[fifth : 2 * fifth], told[-fifth:]
    for name in ("descriptors", "maps", "resident_mib"):
        before, after = (max(getattr(each, name) for each in part) for part in (early, late))
        print(f"{name}: {before:.0f} at most in the second fifth, {after:.0f} in the last")
        assert after <= before * 1.25 + 50, f"{name} grew from {before} to {after}"


def soak(minutes: float, partitions: int = 200, seed: int = 1, where: str | None = None) -> dict[str, int]:
    if where is None:
        with fast_dir() as root:
            return _soak(root, minutes, partitions, seed)
    os.makedirs(where, exist_ok=True)
    return _soak(Path(where), minutes, partitions, seed)


def _soak(root: Path, minutes: float, partitions: int, seed: int) -> dict[str, int]:
    trial = Soak(root, partitions, seed)
    try:
        told = trial.run(minutes * 60)
        trial.finish()
    finally:
        trial.stop.set()
        trial.manager.abandon()
    if len(told) >= 10:
        check_flat(told)
    return trial.counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", help="where the three directories go; by default in memory")
    options = parser.parse_args()
    logging.getLogger("kafkalog").setLevel(logging.CRITICAL)
    print(soak(options.minutes, options.partitions, options.seed, options.dir))


if __name__ == "__main__":
    main()
