"""Compacted partitions in two directories and a LogCleanerManager over them, without a LogManager or threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from kafkalog.config import CleanerConfig, LogConfig, ProducerStateManagerConfig
from kafkalog.engine.cleaner.cleaner_thread import CleanerThread
from kafkalog.engine.cleaner.log_cleaner_manager import LogCleanerManager
from kafkalog.engine.cleaner.throttler import Throttler
from kafkalog.engine.files import OS_FILES, Files, LogDirFailureChannel, ManualClock, ManualScheduler
from kafkalog.engine.format.names import TopicPartition, parse_topic_partition_name
from kafkalog.engine.host.log_directories import LogDirectories
from kafkalog.engine.host.registry import LogRegistry
from kafkalog.engine.log.context import PartitionContext, ProducerSettings
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.metrics.kinds import Meter
from tests.unit.cleaner_kit import keyed
from tests.unit.log_kit import NOW_MS

COMPACTED = {
    "cleanup.policy": "compact", "internal.segment.bytes": "600", "min.cleanable.dirty.ratio": "0.1",
    "file.delete.delay.ms": "0", "segment.jitter.ms": "0",
}  # fmt: skip
CHECKPOINT = "cleaner-offset-checkpoint"


def partition(name: str) -> TopicPartition:
    return parse_topic_partition_name(name)


class Yard:
    def __init__(self, root: Path, files: Files = OS_FILES) -> None:
        self.dirs = [str(root / name) for name in ("d1", "d2")]
        self.files = files
        self.clock = ManualClock(NOW_MS)
        self.scheduler = ManualScheduler(self.clock)
        self.channel = LogDirFailureChannel()
        self.directories = LogDirectories(self.dirs, files, self.channel)
        self.directories.hold()
        self.directories.make_cleaner_offsets()
        self.registry = LogRegistry()
        self.manager = LogCleanerManager(self.directories, self.registry, self.channel, self.clock)

    def close(self) -> None:
        for log in self.registry.all_logs():
            log.close_quietly()
        self.directories.unlock()

    def log(self, name: str, number: int = 0, **overrides: str) -> UnifiedLog:
        """The partition's log, made in a directory, and compacted unless told otherwise."""
        config = {**COMPACTED, **{key.replace("_", "."): value for key, value in overrides.items()}}
        context = PartitionContext(
            os.path.join(self.dirs[number], name), LogConfig.from_props(None, config),
            ProducerSettings(ProducerStateManagerConfig()), self.scheduler, self.clock, self.channel, files=self.files,
        )  # fmt: skip
        log = UnifiedLog.load(context, 0, 0, True, None)
        log.follow_log_end()
        self.registry.put(log)
        return log

    def filled(self, name: str, number: int = 0, *, records: int = 60, **overrides: str) -> UnifiedLog:
        """With three keys over and over, in several segments, the last of which is empty."""
        log = self.log(name, number, **overrides)
        fill(log, records)
        log.roll()
        return log

    def checkpoint(self, number: int = 0) -> str:
        return (Path(self.dirs[number]) / CHECKPOINT).read_text()

    def write_checkpoint(self, text: str, number: int = 0) -> None:
        (Path(self.dirs[number]) / CHECKPOINT).write_text(text)

    def lines(self, number: int = 0) -> list[str]:
        return self.checkpoint(number).splitlines()[2:]

    def thread(self, config: CleanerConfig | None = None, *, clock: ManualClock | None = None) -> CleanerThread:
        """One that is not started: a test calls its turns."""
        config = config or CleanerConfig.for_tests()
        throttler = Throttler(config.max_io_bytes_per_second, Meter("bytes", self.clock), clock or self.clock)
        return CleanerThread(0, config, self.manager, throttler, self.channel)


def fill(log: UnifiedLog, records: int, *, keys: int = 3, start: int = 0) -> None:
    for number in range(start, start + records):
        log.append_as_leader(keyed((f"k{number % keys}", f"{number}" + "." * 30)), 0)


def raising(error: BaseException) -> Callable[..., object]:
    def fail(*_: object, **__: object) -> object:
        raise error

    return fail
