"""A store under everything at once, for a long time: `python -m tests.live.store_soak --minutes 10 [--kill]`.

One process runs 8 writers (one by one, many, columns, producers, idempotent ones), 7 followers (plain, read_committed,
by cursor, Arrow, asyncio, by key) and 2 transactional workers that read, transform and write.  Another process runs a
read-only follower with its own cursors.  Meanwhile segments roll, retention and compaction run in the background,
partitions are added and moved, topics are created and deleted, and exceptions are raised into the workers.  With
`--kill` the writing process is killed with -9 at random moments, and started again.

The workers of `tests.live.store_crew` write journals, and `tests.live.store_story` checks them:

- Each acknowledged record exists once, in its sender's order, unless retention or compaction may have deleted it.
- Transactions are whole over partitions and cursors, and their output for each input exists exactly once.
- Each follower has seen every record of its topics once, without a gap.
- The process's resources do not grow, and `kafkalog verify` finds nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import kafkalog
from kafkalog._limits import LONG_MAX
from kafkalog.config import CleanerConfig, ProducerStateManagerConfig
from kafkalog.engine.format.names import partition_of
from kafkalog.engine.host.settings import ManagerSettings
from kafkalog.engine.log.context import ProducerSettings
from kafkalog.store import Store
from kafkalog.toolbox.verify import verify
from tests.crash.harness import fast_dir
from tests.file_doubles import UnsyncedFiles
from tests.live.oracle import no_descriptors_below
from tests.live.soak import POOL, TASKS, Figures, check_flat
from tests.live.store_crew import TOPICS, Follower, Journal, all_workers, interrupt, row_of, rows_of
from tests.live.store_story import Last, StoreOracle, Tail, read_code

SMALL = {
    "internal.segment.bytes": "40000", "segment.index.bytes": "4800", "segment.jitter.ms": "0",
    "file.delete.delay.ms": "1500", "retention.ms": "-1",
}  # fmt: skip
LARGER = {**SMALL, "internal.segment.bytes": "100000", "retention.bytes": "1500000"}
CONFIGS = {
    "plain": (3, {**SMALL, "retention.bytes": "400000"}),
    "timed": (2, {**SMALL, "retention.ms": "5000"}),
    "in": (2, LARGER),
    "out": (3, LARGER),
    "audit": (1, {**SMALL, "retention.bytes": "1500000"}),
    "named": (2, {**SMALL, "retention.bytes": "500000"}),
    "keyed": (2, {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.2",
                  "delete.retention.ms": "300", "internal.segment.bytes": "20000"}),
}  # fmt: skip
READY_S = END_S = 120.0


def log_dirs(root: Path) -> list[str]:
    return [str(root / "disk0"), str(root / "disk1")]


def open_store(root: Path, cleaner: CleanerConfig = POOL) -> Store:
    producers = ProducerSettings(ProducerStateManagerConfig(LONG_MAX, False))
    settings = ManagerSettings(producers=producers, cleaner=cleaner, **TASKS)
    return kafkalog.open(log_dirs(root), settings=settings, files=UnsyncedFiles())


# --- the writing process -------------------------------------------------------------------------------


def write(root: Path, process: int, seed: int) -> None:
    """The work of the process that may be killed, until a file `stop` exists."""
    fail_at_once()
    threads = threading.active_count()
    positions = json.loads((root / "positions").read_text())
    store = open_store(root)
    for topic, (partitions, config) in CONFIGS.items():
        store.create_topic(topic, partitions, config=config, exist_ok=True)
    workers, followers = all_workers(store, root / "journals", process, seed, positions)
    journal = Journal(root / "journals" / f"{process:04d}.main")
    for each in (*workers, *followers):
        each.thread.start()
    (root / f"ready{process}").touch()
    done = interrupt([*workers, *followers], random.Random(seed * 1000 + process), (root / "stop").exists)
    journal.write("counted", "interrupts", done)
    for each in workers:
        each.stopping.set()
    for each in workers:
        join(each.thread)
    store._own().end_overdue()  # transactions that interrupts left open
    assert not [each for each in store.transactions() if each.state == "Ongoing"], store.transactions()
    for follower in followers:
        follower.deadline_s = time.monotonic() + END_S / 2
        follower.draining.set()
    for follower in followers:
        join(follower.thread)
        assert follower.is_drained, follower.name
    assert not store.manager.uncleanable_partitions(), store.manager.uncleanable_partitions()
    store.close()
    gc.collect()
    assert not no_descriptors_below(root / "disk0"), no_descriptors_below(root / "disk0")
    assert not no_descriptors_below(root / "disk1"), no_descriptors_below(root / "disk1")
    # CPython keeps a dummy forever for a thread that was started without `threading`, as the threads that load logs
    # are.
    left = [each.name for each in threading.enumerate() if not each.name.startswith("Dummy")]
    assert len(left) == threads, left


def join(thread: threading.Thread) -> None:
    thread.join(END_S)
    if thread.is_alive():
        faulthandler.dump_traceback()
    assert not thread.is_alive(), f"{thread.name} hangs"


def fail_at_once() -> None:
    """Ends the process when any thread fails."""
    faulthandler.enable()

    def end(what: object) -> None:
        sys.stderr.write(f"{what}\n")
        sys.stderr.flush()
        os._exit(4)

    class Errors(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            cause = "" if record.exc_info is None else "".join(traceback.format_exception(*record.exc_info))  # type: ignore[arg-type]
            end(f"logged by {record.name}: {record.getMessage()}\n{cause}")

    logging.getLogger("kafkalog").addHandler(Errors(logging.ERROR))
    threading.excepthook = lambda args: end(
        f"{args.thread and args.thread.name}: "
        + "".join(traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback))
    )


# --- the one that only reads ---------------------------------------------------------------------------


def follow(root: Path, seed: int) -> None:
    """Reads next to the writing process, opens the store again now and then, until a file `drain` exists."""
    fail_at_once()
    rng = random.Random(seed)
    follower: Follower | None = None
    while follower is None or not follower.is_drained:
        position = {} if follower is None else follower.position
        with kafkalog.open(log_dirs(root), read_only=True, cursors=root / "cursors", files=UnsyncedFiles()) as store:
            follower = Follower(store, "far", "far", root / "journals", 0, seed, position)
            for _ in range(rng.randint(1, 200)):
                if (root / "drain").exists() and not follower.draining.is_set():
                    follower.deadline_s = time.monotonic() + END_S
                    follower.draining.set()
                follower.step()
                if follower.is_drained:
                    break
            follower.finish()


# --- the judge -----------------------------------------------------------------------------------------


class StoreSoak:
    """Starts, kills and checks."""

    def __init__(self, root: Path, seed: int, *, kills: bool) -> None:
        self.root, self.seed, self.kills = root, seed, kills
        self.rng = random.Random(seed)
        self.oracle = StoreOracle()
        self.tails: dict[str, Tail] = {}
        self.running: list[subprocess.Popen[bytes]] = []
        self.processes = 0
        self.told: list[Figures] = []
        self.far_told: list[Figures] = []
        (root / "journals").mkdir()

    def start(self, *arguments: object) -> subprocess.Popen[bytes]:
        with open(self.root / "errors", "ab") as errors:
            started = subprocess.Popen(
                [sys.executable, "-m", "tests.live.store_soak", "--dir", str(self.root), "--seed", str(self.seed),
                 *map(str, arguments)],
                stderr=errors, env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )  # fmt: skip
        self.running.append(started)
        return started

    def start_writing(self) -> subprocess.Popen[bytes]:
        self.processes += 1
        (self.root / "positions").write_text(json.dumps(self.oracle.positions()))
        return self.start("--process", self.processes)

    def listen(self) -> None:
        for name in sorted(os.listdir(self.root / "journals")):
            tail = self.tails.setdefault(name, Tail(self.root / "journals" / name))
            for entry in tail.entries():
                try:
                    self.oracle.take(entry)
                except AssertionError as error:
                    error.add_note(f"in {name}: {str(entry)[:300]}")
                    raise

    def check_alive(self, *processes: subprocess.Popen[bytes]) -> None:
        for each in processes:
            if each.poll() is not None:
                raise AssertionError(f"ended with {each.returncode}\n{self.errors()}")

    def errors(self) -> str:
        return (self.root / "errors").read_text(errors="replace")[-8000:]

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """The process ends normally."""
        try:
            process.wait(3 * END_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # it says where it hangs
            process.wait(10)
        assert process.returncode == 0, f"ended with {process.returncode}\n{self.errors()}"

    def await_ready(self, writing: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + READY_S
        while not (self.root / f"ready{self.processes}").exists():
            self.check_alive(writing)
            assert time.monotonic() < end, self.errors()
            time.sleep(0.02)

    def run(self, seconds: float) -> None:
        began = said = time.monotonic()
        period = min(30.0, max(2.0, seconds / 20))
        writing = self.start_writing()
        self.await_ready(writing)
        far = self.start("--follow")
        kill_at = began + self.rng.random() * 3
        while (now := time.monotonic()) < began + seconds:
            self.check_alive(writing, far)
            self.listen()
            if now >= said + period:
                said = now
                self.say(writing, far, now - began)
            if self.kills and now >= kill_at:
                self.kill(writing)
                writing = self.start_writing()
                if self.rng.random() < 0.8:  # else while it recovers
                    self.await_ready(writing)
                kill_at = time.monotonic() + self.rng.random() ** 2 * 8
            time.sleep(0.05 if self.kills else 0.3)
        self.await_ready(writing)
        (self.root / "stop").touch()
        self.end(writing)
        (self.root / "drain").touch()
        self.end(far)
        self.listen()

    def kill(self, writing: subprocess.Popen[bytes]) -> None:
        self.check_alive(writing)
        writing.kill()
        writing.wait()
        self.listen()
        self.oracle.counts["kills"] += 1

    def say(self, writing: subprocess.Popen[bytes], far: subprocess.Popen[bytes], at_s: float) -> None:
        with contextlib.suppress(OSError):
            self.far_told.append(Figures.now(str(far.pid)))
            self.told.append(Figures.now(str(writing.pid)))
            print(f"{at_s:7.1f} s  {self.told[-1]}  {self.far_told[-1]}  {dict(self.oracle.counts)}", flush=True)

    def stop(self) -> None:
        for each in self.running:
            if each.poll() is None:
                each.kill()
                each.wait()

    def finish(self) -> dict[str, int]:
        """Looks at everything that there is."""
        with open_store(self.root, CleanerConfig(enable_cleaner=False)) as store:
            places = [f"{topic}-{number}" for topic in TOPICS for number in range(store.topic(topic).partitions)]
            last = {place: look(store, place) for place in places}
            cursors = {
                slot: {str(each): done.offset for each, done in store.committed(f"worker{slot}").items()}
                for slot in (9, 10)
            }
            states = {each.state for each in store.transactions()}
            assert states <= {"Empty", "CompleteCommit", "CompleteAbort"}, states
        self.oracle.judge(last, cursors)
        for path in log_dirs(self.root):
            report = verify(path, deep=True)
            assert report.ok, report.findings[:3]
        return dict(self.oracle.counts)


def look(store: Store, place: str) -> Last:
    """All of a partition, as records and as Arrow, by both isolations."""
    found: dict[str, list[tuple[int, int]]] = {}
    for isolation in ("read_uncommitted", "read_committed"):
        options: dict[str, Any] = {"partitions": [place], "isolation": isolation}
        with store.reader(**options) as reader:
            rows = [row_of(record) for record in reader]
        with store.reader(**options) as reader:
            arrow = [row for batch in reader.batches() for row in rows_of(batch)]
        assert rows == arrow, f"{place}: records and Arrow do not agree"
        found[isolation] = [(offset, read_code(key, value)) for _, offset, key, value in rows]
    log = store.manager.get_log(partition_of(place))
    assert log is not None
    all_of_it = found["read_uncommitted"]
    return Last(
        log.log_start_offset, log.log_end_offset, [offset for offset, _ in all_of_it], [code for _, code in all_of_it],
        [offset for offset, _ in found["read_committed"]],
    )  # fmt: skip


def soak(minutes: float, seed: int = 1, *, kills: bool = False, where: str | None = None) -> dict[str, int]:
    if where is None:
        with fast_dir() as root:
            return soak(minutes, seed, kills=kills, where=str(root / "soak"))
    os.makedirs(where)
    trial = StoreSoak(Path(where), seed, kills=kills)
    try:
        trial.run(minutes * 60)
        counts = trial.finish()
    finally:
        trial.stop()
    for told in (trial.far_told,) if kills else (trial.told, trial.far_told):
        if len(told) >= 10:
            check_flat(told)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill", action="store_true", help="kill the writing process with -9 at random moments")
    parser.add_argument("--dir", help="where everything goes, which must not be there; by default in memory")
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--follow", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process is not None:
        write(Path(options.dir), options.process, options.seed)
    elif options.follow:
        follow(Path(options.dir), options.seed)
    else:
        print(soak(options.minutes, options.seed, kills=options.kill, where=options.dir))


if __name__ == "__main__":
    main()
