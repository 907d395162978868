"""Runs of a log manager with many partitions: start, an append to each partition, shutdown; compared with Kafka's
LogManager.

Each side is a child process that gets one run at a time through its standard input. The two run alternately, so that
other load on the machine affects both; medians count. The JVM has some warm-up runs that do not count. `python -m
bench.manager` is kafkalog's child; `ManagerBench.java` is Kafka's, with the same lines as input and output.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from bench import data, kafka, ours
from bench.kept import BYTES, KAFKA, KAFKALOG, LOWER, SECONDS, Results
from kafkalog.engine.files import OS_FILES
from kafkalog.engine.format.builder import build_batch
from kafkalog.engine.format.checkpoints import CleanShutdownFile
from kafkalog.engine.format.partition_metadata import write_partition_metadata
from kafkalog.engine.host.log_manager import LogManager
from kafkalog.engine.host.settings import ManagerSettings

PARTITIONS, SEGMENTS = 1_000, 2
BATCHES_A_SEGMENT, RECORDS_A_BATCH = 4, 156
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
THREADS = 2  # num.recovery.threads.per.data.dir; Kafka's default
SECONDS_MAX = 900
ROWS = (
    f"start of {PARTITIONS:,} partitions, clean",
    f"start of {PARTITIONS:,} partitions after a crash",
    f"shutdown of {PARTITIONS:,} partitions",
)


class Life(NamedTuple):
    """Seconds of the start and of the shutdown; and the process's resident bytes and open descriptors in between."""

    logs: int
    start: float
    stop: float
    resident: int
    descriptors: int


class Row(NamedTuple):
    """A line of the table: partitions per second of each run of each side."""

    name: str
    kafkalog: list[float]
    kafka: list[float] | None
    aim: float


# --- the files ---------------------------------------------------------------------------------------------


def fill(directory: Path, partitions: int, segments: int, *, records: int = RECORDS_A_BATCH, count: int = 4) -> None:
    """Writes a log directory as a clean shutdown leaves it: equal partitions, with `count` batches of one idempotent
    producer in each segment."""
    directory.mkdir(parents=True)
    model = directory / "model-0"
    rng = random.Random(11)
    payloads = [_batch(rng, records, base_sequence=number * records) for number in range(count)]
    log = ours.unified_log(model, True, **{"internal.segment.bytes": str(sum(map(len, payloads)))})
    end = segments * count
    for number in range(end):
        log.append_as_leader(_batch(rng, records, base_sequence=number * records), 0)
    assert log.number_of_segments == segments, log.number_of_segments
    log.shut_down()
    write_partition_metadata(str(model / "partition.metadata"), TOPIC_ID, OS_FILES)
    names = [f"t{number // 10}-{number % 10}" for number in range(partitions)]
    for name in names:
        shutil.copytree(model, directory / name)
    shutil.rmtree(model)
    points = "".join(f"{name.replace('-', ' ')} {end * records}\n" for name in names)
    (directory / "recovery-point-offset-checkpoint").write_text(f"0\n{partitions}\n{points}")
    CleanShutdownFile(str(directory), OS_FILES).write()


def _batch(rng: random.Random, count: int, **producer: int) -> bytes:
    """Returns a batch with current timestamps: an older producer would be removed when the log is loaded."""
    now_ms = int(time.time() * 1000)
    records = [(now_ms + i, key, value, headers) for i, (_, key, value, headers) in enumerate(data.records(rng, count))]
    return build_batch(records, **({"producer_id": 7, "producer_epoch": 0, "base_sequence": 0} | producer))


def as_a_crash_left_it(source: Path, target: Path) -> None:
    """Makes a copy without marker and checkpoints, so that everything is recovered."""
    shutil.copytree(source, target)
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (target / name).unlink()


# --- the two sides -----------------------------------------------------------------------------------------


class Side:
    """A child process that runs log managers."""

    def __init__(self, command: Sequence[str], log: IO[str]) -> None:
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    def live(self, how: str, threads: int, directory: Path, batch: Path | None = None) -> Life:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        words = [how, str(threads), str(directory), *([] if batch is None else [str(batch)])]
        self._child.stdin.write(" ".join(words) + "\n")
        self._child.stdin.flush()
        for line in self._child.stdout:
            if line.startswith("{"):
                return Life(**{"resident": 0, "descriptors": 0} | json.loads(line))
        raise SystemExit(f"{self._child.args!r} exited with code {self._child.wait()}")

    def end(self) -> None:
        with suppress(BrokenPipeError):
            self._child.stdin.close()  # type: ignore[union-attr]
        self._child.wait(SECONDS_MAX)


@contextmanager
def sides(place: Path, *, with_kafka: bool) -> Iterator[dict[str, Side]]:
    """Yields kafkalog's child, and Kafka's; their error output goes to files in `place`."""
    commands = {"kafkalog": [sys.executable, "-m", "bench.manager"]}
    if with_kafka:
        commands["kafka"] = ["java", "-Xmx2g", "-cp", kafka.classpath(), "io.kafkalog.bench.ManagerBench"]
    with ExitStack() as stack:
        made = {}
        for name, command in commands.items():
            log = stack.enter_context((place / f"{name}.err").open("w"))
            made[name] = Side(command, log)
            stack.callback(made[name].end)
        yield made


def serve() -> None:
    """Runs kafkalog's child."""
    for line in sys.stdin:
        how, threads, directory, *batch = line.split()
        print(json.dumps(_live(how, int(threads), directory, *batch)._asdict()), flush=True)


def _live(how: str, threads: int, directory: str, batch: str | None = None) -> Life:
    payload = None if batch is None else Path(batch).read_bytes()
    began = time.perf_counter()
    manager = LogManager(directory, ManagerSettings(recovery_threads=threads))
    manager.startup()
    started = time.perf_counter()
    resident, descriptors = resources()
    logs = manager.all_logs()
    if payload is not None:
        for log in logs:
            log.append_as_leader(payload, 0)
    stopping = time.perf_counter()
    (manager.shutdown if how == "life" else manager.abandon)()
    stopped = time.perf_counter()
    count = len(logs)
    del manager, logs
    gc.collect()
    return Life(count, started - began, stopped - stopping, resident, descriptors)


def resources() -> tuple[int, int]:
    """Returns the resident bytes and open descriptors of this process; zeros if the system does not report them."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0, 0
    resident = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(resident.split()[1]) * 1024, len(os.listdir("/proc/self/fd"))


# --- the comparison ----------------------------------------------------------------------------------------


def compare(root: Path, rounds: int, *, with_kafka: bool) -> list[Row]:
    """Measures starts after a clean shutdown and after a crash, and shutdowns with an append to each partition to be
    flushed."""
    place, partitions = root / "manager", PARTITIONS
    fill(place / "kafkalog-clean", partitions, SEGMENTS)
    shutil.copytree(place / "kafkalog-clean", place / "kafka-clean")
    for side in ("kafkalog", "kafka"):
        as_a_crash_left_it(place / "kafkalog-clean", place / f"{side}-crash")
    batch = place / "batch.bin"
    batch.write_bytes(_batch(random.Random(12), RECORDS_A_BATCH, producer_id=-1, producer_epoch=-1, base_sequence=-1))
    found: dict[tuple[str, str], list[Life]] = {}
    with sides(place, with_kafka=with_kafka) as both:
        for turn in range(-1, rounds):
            for how, kind in (("life", "clean"), ("crash", "crash")):
                for name, child in both.items():
                    life = child.live(how, THREADS, place / f"{name}-{kind}", batch if how == "life" else None)
                    assert life.logs == partitions, life
                    if turn >= 0:
                        found.setdefault((kind, name), []).append(life)
    shutil.rmtree(place)

    def per_second(kind: str, name: str, what: str) -> list[float] | None:
        lives = found.get((kind, name))
        return None if lives is None else [partitions / getattr(life, what) for life in lives]

    def row(name: str, kind: str, what: str, aim: float) -> Row:
        mine = per_second(kind, "kafkalog", what)
        assert mine is not None
        return Row(name, mine, per_second(kind, "kafka", what), aim)

    start, recovery, end = ROWS
    return [row(start, "clean", "start", 1.2), row(recovery, "crash", "start", 5), row(end, "clean", "stop", 1)]


# --- the curves --------------------------------------------------------------------------------------------


def curves(largest: int, results: Results, *, with_kafka: bool) -> None:
    """Measures time, memory and descriptors of one run, for more and more partitions (of one segment) and segments (of
    at most 100 partitions). A side that may not open that many files shows this, and has no point."""
    print("| partitions x segments | side | start s | shutdown s | resident MiB | descriptors |")
    print("|---|---|---|---|---|---|")
    for x, partitions, segments in [
        *(("partitions", count, 1) for count in (10, 100, 1_000, 10_000) if count <= largest),
        *(
            ("segments", min(count, 100), count // min(count, 100))
            for count in (10, 100, 1_000, 10_000, 100_000)
            if count <= largest
        ),
    ]:
        with tempfile.TemporaryDirectory(prefix="kafkalog-bench-") as made:
            place = Path(made)
            fill(place / "log", partitions, segments, records=1, count=1)
            for name in ("kafkalog", "kafka") if with_kafka else ("kafkalog",):
                life = _first_life(place, name, partitions)
                print(f"| {partitions:,} x {segments:,} | {name} | {_told(life)} |", flush=True)
                if life is not None:
                    side = KAFKALOG if name == "kafkalog" else KAFKA
                    at = partitions * segments
                    results.point(x, f"start, {x}", x, SECONDS, side, at, life.start, LOWER)
                    results.point(x, f"resident memory, {x}", x, BYTES, side, at, life.resident, LOWER)


def _first_life(place: Path, name: str, partitions: int) -> Life | None:
    """Returns a first run in a new process, including its memory; None if not all partitions could be opened."""
    try:
        with sides(place, with_kafka=name == "kafka") as both:
            life = both[name].live("life", THREADS, place / "log")
    except (SystemExit, BrokenPipeError):
        return None
    return life if life.logs == partitions else None


def _told(life: Life | None) -> str:
    if life is None:
        return f"did not start with `ulimit -n` at {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} | | |"
    return f"{life.start:.2f} | {life.stop:.2f} | {life.resident / (1 << 20):.0f} | {life.descriptors}"


if __name__ == "__main__":
    serve()
