"""Passes of the log cleaner, and its offset map, compared with Kafka's Cleaner and SkimpyOffsetMap.

A partition of ten segments (640 MB before compression, a million keys of about five versions each) is copied for each
pass. A child process, which is controlled through its standard input, cleans it. The two sides run alternately, and
medians count. Each side first runs one pass that does not count. `python -m bench.cleaner serve` is kafkalog's child;
`CleanerBench.java` is Kafka's.

    python -m bench.cleaner                    # the table
    python -m bench.cleaner none threads       # some rows of it
    python -m bench --curves                   # more and more keys, among other curves

On a shared machine `--cpu` counts the cleaning thread's CPU time on both sides instead of elapsed time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import kafka, machine
from bench.cleaner_scale import SPARE_BYTES, opened, peak_growth, pool_seconds
from bench.kept import (
    BYTES,
    BYTES_PER_S,
    CALLS_PER_S,
    KAFKA,
    KAFKALOG,
    LOWER,
    SECONDS,
    Results,
    add_options,
    keep,
    shown,
)  # fmt: skip
from kafkalog._face.opening import open_log
from kafkalog._native.codec.offset_map import SkimpyOffsetMap
from kafkalog.config import CleanerConfig
from kafkalog.engine.cleaner.cleaner import Cleaner
from kafkalog.engine.cleaner.cleaner_thread import cleaner_settings
from kafkalog.engine.cleaner.to_clean import LogToClean
from kafkalog.engine.files import SYSTEM_CLOCK

SEGMENT_BYTES = 64 << 20
SEGMENTS, KEYS = 10, 1_000_000
VALUE_BYTES = 100
# The same records for each codec; the roll size is chosen so that there are always ten segments.
ROLL_BYTES = {"none": SEGMENT_BYTES, "lz4": 38 << 20, "zstd": 35 << 20}
MAP_BYTES, IO_BYTES = 128 << 20, 256 << 10
CODECS = {"none": 6.0, "lz4": 3.5, "zstd": 2.0}
MAPS = {1_000_000: 8.0, 10_000_000: 6.0, 20_000_000: 4.0}
THREADS_AIM = 1.7
CONFIG = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES)}
EAGER = {"min.cleanable.dirty.ratio": "0.01"}  # the cleaner considers every log worth a pass


def fill(directory: Path, codec: str) -> None:
    """Writes ten full segments and the beginning of the next one."""
    rng, numbers = random.Random(7), np.random.default_rng(7)
    compression = None if codec == "none" else codec
    words = [rng.randbytes(12) for _ in range(500)]
    config = {**CONFIG, "segment.bytes": str(ROLL_BYTES[codec])}
    with open_log(directory, "c-0", config=config, compression=compression) as log:
        assert log.engine is not None
        while log.engine.number_of_segments <= SEGMENTS:
            keys = numbers.integers(0, KEYS, 120)
            log.append_many([
                (b"".join(rng.choices(words, k=VALUE_BYTES // 12 + 1))[:VALUE_BYTES], b"k%015d" % key) for key in keys
            ])  # fmt: skip


# --- kafkalog's child --------------------------------------------------------------------------------------


def serve() -> None:
    for line in sys.stdin:
        what, *words = line.split()
        if what == "clean":
            found = _clean(int(words[0]), int(words[1]), words[2])
        elif what == "pool":
            found = {"seconds": pool_seconds(Path(words[1]), {**CONFIG, **EAGER}, int(words[0]))}
        else:
            found = _map(int(words[0]))
        print(json.dumps(found), flush=True)


def _clean(map_bytes: int, io_bytes: int, folder: str) -> dict[str, Any]:
    log = opened(Path(folder), CONFIG)
    settings = cleaner_settings(CleanerConfig(io_buffer_size=2 * io_bytes))  # as in the pool, which checks CRCs
    cleaner = Cleaner(SkimpyOffsetMap(map_bytes), settings, SYSTEM_CLOCK)
    began, cpu_began = time.perf_counter(), time.thread_time()
    pass_ = cleaner.clean(LogToClean.of(log, 0, log.active_segment.base_offset))
    seconds, cpu = time.perf_counter() - began, time.thread_time() - cpu_began
    log.close()
    return {
        "seconds": seconds,
        "cpu": cpu,
        "end": pass_.end_offset,
        "read": pass_.stats.bytes_read,
        "written": pass_.stats.bytes_written,
        "kept": pass_.stats.messages_written,
    }


def _map(count: int) -> dict[str, Any]:
    data = np.random.default_rng(1).integers(0, 256, 16 * count, dtype=np.uint8)
    bounds = np.arange(0, 16 * count + 1, 16, dtype=np.int64)
    offsets = np.arange(count, dtype=np.int64)
    map = SkimpyOffsetMap(min(2**31 - 1, int(count / 0.9 + 1) * 24))
    began = time.perf_counter()
    map.put_many(data, bounds, offsets)
    put = time.perf_counter()
    seen = np.frombuffer(map.get_many(data, bounds), np.int64).sum()
    ended = time.perf_counter()
    return {"put": put - began, "get": ended - put, "seen": int(seen)}


# --- the comparison ----------------------------------------------------------------------------------------


class Side:
    def __init__(self, command: list[str]) -> None:
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words: object) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(" ".join(map(str, words)) + "\n")
        self._child.stdin.flush()
        for line in self._child.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise SystemExit(f"{self._child.args!r} exited with code {self._child.wait()}")


ROWS = ("map", *CODECS, "threads", "memory")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cleaner", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"rows to run: {', '.join(ROWS)}; default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", help="the directory for the logs")
    add_options(parser)
    parser.add_argument(
        "--cpu", action="store_true", help="measure the cleaning thread's CPU time instead of elapsed time"
    )
    options = parser.parse_args()
    if options.rows == ["serve"]:
        serve()
        return
    rows = set(options.rows or ROWS)
    if not rows <= set(ROWS):
        parser.error(f"found {' '.join(options.rows)}, expected some of {', '.join(ROWS)}")
    sides = {"kafkalog": Side([sys.executable, "-m", "bench.cleaner", "serve"])}
    if kafka.available() is None and rows - {"threads", "memory"}:
        sides["kafka"] = Side(["java", "-Xmx3g", "-cp", kafka.classpath(), "io.kafkalog.bench.CleanerBench"])
    results = Results()
    machine.tell(Path(options.dir or tempfile.gettempdir()))
    print("| | kafkalog | Kafka | ratio | aim |\n|---|---|---|---|---|")
    for count, aim in MAPS.items() if "map" in rows else ():
        found = {name: [side.ask("map", count) for _ in range(options.rounds)] for name, side in sides.items()}
        for what in ("put", "get"):
            rates = {name: [count / each[what] for each in of] for name, of in found.items()}
            _row(results, f"offset map, {what}, {count:,} keys", CALLS_PER_S, rates, aim)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="kafkalog-bench-") as place:
        for codec, aim in CODECS.items():
            if codec not in rows and "memory" not in rows and not (codec == "none" and "threads" in rows):
                continue
            model = Path(place) / codec
            fill(model, codec)
            if codec in rows:
                _compare_passes(results, model, codec, aim, sides, options.rounds, "cpu" if options.cpu else "seconds")
            if codec == "none" and "threads" in rows:
                _compare_threads(results, model, sides["kafkalog"], options.rounds)
            if "memory" in rows:
                _show_memory(results, model, codec)
            shutil.rmtree(model)
    keep(options, results)


def _compare_passes(
    results: Results, model: Path, codec: str, aim: float, sides: dict[str, Side], rounds: int, by: str
) -> None:
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for turn in range(-1, rounds):
        for name, side in sides.items():
            target = model.parent / f"{name}-{codec}" / "c-0"
            shutil.copytree(model / "c-0", target)
            os.sync()  # writing the copy to disk is not part of the pass
            done = side.ask("clean", MAP_BYTES, IO_BYTES, target)
            shutil.rmtree(target.parent)
            if turn >= 0:
                found[name].append(done)
    assert len({(each["end"], each["kept"], each["written"]) for of in found.values() for each in of}) == 1, found
    first = found["kafkalog"][0]
    assert 0.9 * KEYS < first["kept"] < 1.1 * KEYS < 5 * KEYS < first["end"] < 6 * KEYS, first
    read = first["read"]
    rates = {name: [read / each[by] for each in of] for name, of in found.items()}
    name = "uncompressed" if codec == "none" else codec
    _row(
        results,
        f"a pass, {name}",
        BYTES_PER_S,
        rates,
        aim,
        {"pread": 1, "CRC from cache": 1} if codec == "none" else None,
    )


def _compare_threads(results: Results, model: Path, side: Side, rounds: int) -> None:
    """Cleans two partitions by a pool of two threads and by one of one."""
    found: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(-1, rounds):
        for threads, seconds in found.items():
            place = model.parent / f"threads-{threads}"
            for name in ("c-0", "c-1"):
                shutil.copytree(model / "c-0", place / name)
            os.sync()
            done = side.ask("pool", threads, place)
            shutil.rmtree(place)
            if turn >= 0:
                seconds.append(done["seconds"])
    compared = {KAFKALOG: found[2], "kafkalog with one thread": found[1]}
    results.row("cleaner", "two partitions, two threads", SECONDS, compared, better=LOWER)
    one, two = (statistics.median(found[threads]) for threads in (1, 2))
    print(f"| two partitions, two threads vs. one, s | {two:.2f} | {one:.2f} | {one / two:.2f}x | {THREADS_AIM}x |")


def _show_memory(results: Results, model: Path, codec: str) -> None:
    """Measures a pool of one thread, with a broker's buffers."""
    target = model.parent / f"memory-{codec}"
    shutil.copytree(model, target)
    config = CleanerConfig()
    grown = peak_growth(target, {**CONFIG, **EAGER}, config)
    shutil.rmtree(target)
    results.row("cleaner", f"memory of a pass, {codec}", BYTES, {KAFKALOG: grown}, better=LOWER)
    most = config.dedupe_buffer_size + config.io_buffer_size + SPARE_BYTES
    print(f"| memory of a pass, {codec}, MiB | {grown / 2**20:.1f} | | | at most {most / 2**20:.1f} |", flush=True)


def _row(
    results: Results,
    name: str,
    unit: str,
    found: dict[str, list[float]],
    aim: float,
    uses: dict[str, float] | None = None,
) -> None:
    results.row("cleaner", name, unit, {KAFKALOG: found["kafkalog"], KAFKA: found.get("kafka")}, uses=uses)
    ours, theirs = (statistics.median(found[side]) if side in found else None for side in ("kafkalog", "kafka"))
    assert ours is not None
    beside, ratio = ("", "") if theirs is None else (shown(theirs, unit), f"{ours / theirs:.2f}x")
    print(f"| {name} | {shown(ours, unit)} | {beside} | {ratio} | {aim}x |", flush=True)


if __name__ == "__main__":
    main()
