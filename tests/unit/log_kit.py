"""A partition to test with: a manual clock and scheduler, small segments, batches in one line."""

from __future__ import annotations

import os
from pathlib import Path

from kafkalog.config import LogConfig, ProducerStateManagerConfig
from kafkalog.engine.files import OS_FILES, Files, LogDirFailureChannel, ManualClock, ManualScheduler
from kafkalog.engine.format.builder import MemoryRecordsBuilder
from kafkalog.engine.log.context import PartitionContext, ProducerSettings
from kafkalog.engine.log.unified_log import UnifiedLog

NOW_MS = 1_700_000_000_000
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
SMALL = {"internal.segment.bytes": "700", "index.interval.bytes": "100", "segment.index.bytes": "240"}


def batch(
    count: int = 2,
    *,
    ts: int = NOW_MS,
    value: bytes = b"v" * 40,
    offset: int = 0,
    epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    codec: int = 0,
) -> bytes:
    """A v2 batch of `count` records with timestamps from `ts` on (ms)."""
    builder = MemoryRecordsBuilder(
        codec=codec,
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        is_transactional=transactional,
        partition_leader_epoch=epoch,
    )
    for number in range(count):
        builder.append(ts + number, b"k%d" % number, value)
    return bytes(builder.build())


class Kit:
    """One log directory with partition t-0; `open` and `reopen` share clock, scheduler and failure channel."""

    def __init__(self, root: Path, files: Files = OS_FILES) -> None:
        self.root = root
        self.dir = str(root / "t-0")
        self.files = files
        self.clock = ManualClock(NOW_MS)
        self.scheduler = ManualScheduler(self.clock)
        self.channel = LogDirFailureChannel()
        self.has_one_replica = False

    def context(self, overrides: dict[str, str] | None = None) -> PartitionContext:
        config = LogConfig.from_props(None, {**SMALL, **(overrides or {})})
        context = PartitionContext(
            self.dir, config, ProducerSettings(ProducerStateManagerConfig()), self.scheduler, self.clock, self.channel,
            files=self.files,
        )  # fmt: skip
        context.has_one_replica = self.has_one_replica
        return context

    def open(
        self,
        overrides: dict[str, str] | None = None,
        *,
        clean: bool = True,
        log_start: int = 0,
        recovery_point: int = 0,
        topic_id: str | None = TOPIC_ID,
    ) -> UnifiedLog:
        return UnifiedLog.create(self.context(overrides), log_start, recovery_point, clean, topic_id)

    def filled(self, batches: int = 20, overrides: dict[str, str] | None = None) -> UnifiedLog:
        """A log of `batches` batches of two records, a second apart, four to a segment."""
        log = self.open(overrides)
        for number in range(batches):
            log.append_as_leader(batch(ts=NOW_MS + number * 1000), 0)
        self.scheduler.tick()
        return log

    def crash(self, log: UnifiedLog) -> None:
        """The process dies: handles go, nothing is flushed or trimmed, pending tasks are lost."""
        log.local_log.segments.close_quietly()
        self.scheduler.clear()

    @property
    def names(self) -> list[str]:
        return sorted(os.listdir(self.dir))

    def path(self, name: str) -> Path:
        return self.root / "t-0" / name


def bases(log: UnifiedLog) -> list[int]:
    return [segment.base_offset for segment in log.log_segments()]


def name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"
