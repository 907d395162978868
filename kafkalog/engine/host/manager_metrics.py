"""A manager's metrics: Kafka's gauges of its directories, and of a start while it is running.

Mirrors the gauges of LogManager (4.4.0).  The number of remaining segments is shown for each recovery thread.  A gauge
is computed when it is read.
"""

from __future__ import annotations

import functools
from typing import Any

from kafkalog.engine.host.loading import Remaining
from kafkalog.engine.host.log_directories import LogDirectories
from kafkalog.metrics.names import MetricName
from kafkalog.metrics.registry import Gauge


def _name(name: str, **tags: str) -> MetricName:
    return MetricName.of("kafka.log", "LogManager", name, tags)


def _of_dir(name: str, path: str, is_so: Any) -> Gauge:
    return Gauge(_name(name, logDirectory=path), lambda directories: int(is_so(directories, path)))


def gauges_of_directories(directories: LogDirectories) -> list[Gauge]:
    gauges = [
        Gauge(_name("OfflineLogDirectoryCount"), lambda directories: len(directories.offline)),
        Gauge(_name("CordonedLogDirectoryCount"), lambda directories: len(directories.cordoned)),
    ]
    for path in directories.paths:
        gauges.append(_of_dir("LogDirectoryOffline", path, lambda directories, path: path not in directories.live))
        gauges.append(_of_dir("LogDirectoryCordoned", path, lambda directories, path: path in directories.cordoned))
    return gauges


def gauges_of_start(remaining: Remaining) -> list[Gauge]:
    """Returns the gauges that are shown while the logs are loaded."""
    gauges = []
    for path in remaining.logs:
        gauges.append(Gauge(_name("remainingLogsToRecover", dir=path), functools.partial(_logs_left, path)))
        for thread in range(remaining.threads):
            name = _name("remainingSegmentsToRecover", dir=path, threadNum=str(thread))
            gauges.append(Gauge(name, functools.partial(_segments_left, path, thread)))
    return gauges


def _logs_left(path: str, remaining: Remaining) -> int:
    return remaining.logs[path]


def _segments_left(path: str, thread: int, remaining: Remaining) -> int:
    return remaining.segments.get((path, thread), 0)
