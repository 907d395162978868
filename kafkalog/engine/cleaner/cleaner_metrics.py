"""The cleaner's metrics: Kafka's gauges of its threads, and of the partitions that they clean or leave alone.

Mirrors the gauges of LogCleaner and LogCleanerManager (4.4.0).  A gauge is computed when it is read.  A thread that has
not cleaned yet counts with a time of 0; Kafka shows its start as a negative time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kafkalog.engine.cleaner.log_cleaner_manager import LogCleanerManager, PreCleanStats
from kafkalog.engine.cleaner.stats import CleanerStats
from kafkalog.metrics.names import MetricName
from kafkalog.metrics.registry import Gauge

THROTTLER = MetricName.of("kafka.utils", "Throttler", "cleaner-io")


class Worked(Protocol):
    """A thread's statistics of its last pass (None before the first), and of the selection before that pass."""

    @property
    def last_stats(self) -> CleanerStats | None: ...

    @property
    def last_pre_clean_stats(self) -> PreCleanStats: ...


class Pool(Protocol):
    @property
    def threads(self) -> Sequence[Worked]: ...

    @property
    def dead_thread_count(self) -> int: ...


def _stats(pool: Pool) -> list[CleanerStats]:
    return [thread.last_stats for thread in pool.threads if thread.last_stats is not None]


def _max_buffer_utilization_percent(pool: Pool) -> int:
    return int(100 * max([stats.buffer_utilization for stats in _stats(pool)], default=0.0))


def _cleaner_recopy_percent(pool: Pool) -> int:
    written = sum([stats.bytes_written for stats in _stats(pool)])
    return int(100 * written / max(sum([stats.bytes_read for stats in _stats(pool)]), 1))


def _max_clean_time_secs(pool: Pool) -> int:
    return int(max([stats.elapsed_secs for stats in _stats(pool)], default=0.0))


def _max_compaction_delay_secs(pool: Pool) -> int:
    delays = [thread.last_pre_clean_stats.max_compaction_delay_ms for thread in pool.threads]
    return max(delays, default=0) // 1000


def gauges_of_pool(pool: Pool) -> list[Gauge]:
    read: dict[str, Callable[[Pool], int]] = {
        "max-buffer-utilization-percent": _max_buffer_utilization_percent,
        "cleaner-recopy-percent": _cleaner_recopy_percent,
        "max-clean-time-secs": _max_clean_time_secs,
        "max-compaction-delay-secs": _max_compaction_delay_secs,
        "DeadThreadCount": lambda pool: pool.dead_thread_count,
    }
    return [Gauge(MetricName.of("kafka.log", "LogCleaner", name), of) for name, of in read.items()]


def _name(name: str, **tags: str) -> MetricName:
    return MetricName.of("kafka.log", "LogCleanerManager", name, tags)


def _max_dirty_percent(manager: LogCleanerManager) -> int:
    return int(100 * manager.dirtiest_log_cleanable_ratio)


def _time_since_last_run_ms(manager: LogCleanerManager) -> int:
    return manager.clock.milliseconds() - manager.time_of_last_run_ms


def _of_dir(log_dir: str) -> list[Gauge]:
    return [
        Gauge(
            _name("uncleanable-partitions-count", logDirectory=log_dir),
            lambda manager: len(manager.uncleanable_partitions(log_dir)),
        ),
        Gauge(
            _name("uncleanable-bytes", logDirectory=log_dir),
            lambda manager: manager.uncleanable_bytes(log_dir),
        ),
    ]


def gauges_of_manager(manager: LogCleanerManager) -> list[Gauge]:
    return [
        *[gauge for log_dir in manager.log_dirs for gauge in _of_dir(log_dir)],
        Gauge(_name("max-dirty-percent"), _max_dirty_percent),
        Gauge(_name("time-since-last-run-ms"), _time_since_last_run_ms),
    ]
