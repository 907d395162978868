"""How the log cleaner scales: two threads compared with one, memory within its buffers, more and more keys.

Everything here measures kafkalog only. `Partitions` is a cleaner pool over the partitions in one directory, as a
LogManager starts it. `peak_growth` runs a pool in a separate process and returns by how much its resident memory grew
at most during the pass. `curve` cleans logs with more keys than the offset map can hold, pass after pass.
`bench/cleaner.py` has the rows compared with Kafka's, and calls these functions.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bench.kept import BYTES, LOWER, SECONDS, Results
from bench.memory import peak_bytes
from kafkalog._face.opening import open_log
from kafkalog._native.codec.offset_map import SkimpyOffsetMap
from kafkalog.config import CleanerConfig, LogConfig, ProducerStateManagerConfig
from kafkalog.engine.cleaner.cleaner import Cleaner
from kafkalog.engine.cleaner.cleaner_thread import cleaner_settings
from kafkalog.engine.cleaner.log_cleaner import LogCleaner
from kafkalog.engine.cleaner.to_clean import LogToClean
from kafkalog.engine.files import OS_FILES, SYSTEM_CLOCK, LogDirFailureChannel, ManualScheduler
from kafkalog.engine.host.log_directories import LogDirectories
from kafkalog.engine.host.registry import LogRegistry
from kafkalog.engine.log.context import PartitionContext, ProducerSettings
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.metrics.registry import MetricsRegistry

SPARE_BYTES = 32 << 20  # memory beyond the configured buffers
_POLL_SECS = 0.01
_CHUNK_RECORDS = 1_000_000
_CURVE_CONFIG = {
    "cleanup.policy": "compact", "segment.bytes": str(256 << 20), "max.message.bytes": "16384",
    "file.delete.delay.ms": "0",
}  # fmt: skip
_CURVE_KEYS = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
_SMALL_MAP, _LARGE_MAP = 128 << 20, (1 << 31) - 1  # a broker's default, and the most that one thread can use
_SMALL_MAP_KEYS = 30_000_000  # with more keys the small map needs too many passes to wait for


def opened(folder: Path, config: Mapping[str, str]) -> UnifiedLog:
    """Returns a partition's log, with all records below the high watermark."""
    context = PartitionContext(
        str(folder),
        LogConfig.from_props(None, config),
        ProducerSettings(ProducerStateManagerConfig(86_400_000, False)),
        ManualScheduler(SYSTEM_CLOCK),
        SYSTEM_CLOCK,
        LogDirFailureChannel(),
    )
    log = UnifiedLog.create(context, 0, 0, True)
    log.follow_log_end()
    return log


# --- the pool ----------------------------------------------------------------------------------------------


class Partitions:
    """All partitions below a directory, and the pool that cleans them."""

    def __init__(self, place: Path, topic: Mapping[str, str], config: CleanerConfig) -> None:
        channel = LogDirFailureChannel()
        self._directories = LogDirectories([str(place)], OS_FILES, channel)
        self._directories.hold()
        self._directories.make_cleaner_offsets()
        registry = LogRegistry()
        self._logs = [opened(folder, topic) for folder in sorted(place.iterdir()) if folder.is_dir()]
        for log in self._logs:
            registry.put(log)
        self._cleaner = LogCleaner(
            config, self._directories, registry, channel, SYSTEM_CLOCK, MetricsRegistry(SYSTEM_CLOCK)
        )

    def clean(self) -> float:
        """Returns the seconds from the start of the threads until all partitions are clean."""
        ends = {log.topic_partition: log.active_segment.base_offset for log in self._logs}
        began = time.perf_counter()
        self._cleaner.startup()
        while not self._reached(ends):
            assert not self._cleaner.dead_thread_count
            time.sleep(_POLL_SECS)
        return time.perf_counter() - began

    def _reached(self, ends: Mapping[object, int]) -> bool:
        cleaned = dict(self._cleaner.manager.all_cleaner_checkpoints())
        return all(cleaned.get(partition, -1) >= end for partition, end in ends.items())

    def close(self) -> None:
        self._cleaner.shutdown()
        for log in self._logs:
            log.close()
        self._directories.unlock()


def pool_seconds(place: Path, topic: Mapping[str, str], threads: int) -> float:
    """Returns how long a pool of `threads` threads needs for the partitions below a directory, with a broker's other
    defaults."""
    partitions = Partitions(place, topic, CleanerConfig(num_threads=threads))
    try:
        return partitions.clean()
    finally:
        partitions.close()


# --- memory ------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    """Returns the resident bytes of this process; Linux only."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def peak_growth(place: Path, topic: Mapping[str, str], config: CleanerConfig) -> int:
    """Returns by how many bytes a new process grows, at most, while its pool cleans the partitions below a
    directory."""
    settings = [config.num_threads, config.dedupe_buffer_size, config.io_buffer_size]
    command = [sys.executable, "-m", "bench.cleaner_scale", str(place), json.dumps([settings, dict(topic)])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout)


def _grow(place: Path, threads: int, map_bytes: int, io_bytes: int, topic: Mapping[str, str]) -> int:
    config = CleanerConfig(num_threads=threads, dedupe_buffer_size=map_bytes, io_buffer_size=io_bytes)
    partitions = Partitions(place, topic, config)
    gc.collect()
    before = resident_bytes()
    partitions.clean()
    grown = peak_bytes() - before
    partitions.close()
    return grown


# --- the curve ---------------------------------------------------------------------------------------------


def write_keys(directory: Path, keys: int) -> None:
    """Writes each key once, in random order, then a quarter of them again; a key has 16 bytes, a value 4."""
    import pyarrow as pa

    rng = np.random.default_rng(11)
    numbers = np.concatenate([rng.permutation(keys), rng.integers(0, keys, keys // 4)])
    with open_log(directory, "n-0", config=_CURVE_CONFIG) as log:
        for at in range(0, len(numbers), _CHUNK_RECORDS):
            part = numbers[at : at + _CHUNK_RECORDS]
            column = np.stack([part, part], axis=1).astype(">i8").tobytes()
            values = pa.array(np.arange(len(part), dtype=np.int32).view("S4"), pa.binary(4)).cast(pa.binary())
            bounds = np.arange(0, 16 * len(part) + 1, 16, dtype=np.int32)
            column_of_keys = pa.Array.from_buffers(
                pa.binary(), len(part), [None, pa.py_buffer(bounds), pa.py_buffer(column)]
            )
            log.append_columns(values, keys=column_of_keys)
        assert log.engine is not None
        log.engine.roll()


def curve(largest: int, directory: str | None, results: Results) -> None:
    """Cleans logs with more and more keys until nothing is dirty; the bytes are those that the passes read to copy."""
    print("| keys | log GB | map MiB | passes | seconds | GB copied | GB/s | left GB | memory grew MiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for keys in [count for count in _CURVE_KEYS if count <= largest]:
        with tempfile.TemporaryDirectory(dir=directory, prefix="kafkalog-bench-") as made:
            model = Path(made) / "model"
            write_keys(model, keys)
            for map_bytes in (_SMALL_MAP, _LARGE_MAP):
                if map_bytes == _SMALL_MAP and keys > _SMALL_MAP_KEYS:
                    continue
                target = Path(made) / "target" / "n-0"
                last = map_bytes == _LARGE_MAP
                (shutil.move if last else shutil.copytree)(str(model / "n-0"), str(target))
                command = [sys.executable, "-m", "bench.cleaner_scale", str(target), str(map_bytes)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                found = json.loads(done.stdout)
                print(f"| {keys:,} | {_told(found)} |", flush=True)
                side = f"kafkalog, map of {(map_bytes + 1) >> 20:,} MiB"
                results.point("keys", "time to clean", "keys", SECONDS, side, keys, found["seconds"], LOWER)
                results.point("keys", "memory of the process", "keys", BYTES, side, keys, found["grown"], LOWER)
                shutil.rmtree(target.parent)


def _clean_all(folder: Path, map_bytes: int) -> dict[str, float]:
    log = opened(folder, _CURVE_CONFIG)
    scheduler = log.context.scheduler
    assert isinstance(scheduler, ManualScheduler)
    log_bytes = log.size
    before = resident_bytes()
    cleaner = Cleaner(SkimpyOffsetMap(map_bytes), cleaner_settings(CleanerConfig()), SYSTEM_CLOCK)
    end = log.active_segment.base_offset
    passes = first_dirty = read = 0
    began = time.perf_counter()
    while first_dirty < end:
        result = cleaner.clean(LogToClean.of(log, first_dirty, end))
        assert result.end_offset > first_dirty
        first_dirty = result.end_offset
        read += result.stats.bytes_read
        passes += 1
        scheduler.tick()  # deletes the old segments
    seconds = time.perf_counter() - began
    grown = peak_bytes() - before
    left = log.size
    log.close()
    return {
        "log": log_bytes, "map": map_bytes, "passes": passes, "seconds": seconds, "read": read, "left": left,
        "grown": grown,
    }  # fmt: skip


def _told(found: dict[str, float]) -> str:
    return (
        f"{found['log'] / 1e9:.2f} | {int(found['map']) >> 20} | {found['passes']} | {found['seconds']:.1f} | "
        f"{found['read'] / 1e9:.1f} | {found['read'] / found['seconds'] / 1e9:.2f} | {found['left'] / 1e9:.2f} | "
        f"{int(found['grown']) >> 20}"
    )


if __name__ == "__main__":
    if sys.argv[2].isdigit():
        print(json.dumps(_clean_all(Path(sys.argv[1]), int(sys.argv[2]))))
    else:
        of, with_topic = json.loads(sys.argv[2])
        print(_grow(Path(sys.argv[1]), *of, with_topic))
        sys.stdout.flush()
        os._exit(0)
