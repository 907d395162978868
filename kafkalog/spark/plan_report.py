"""Logs one line that says what a plan reads and what it left out.

Spark shows nothing about that: the scan of a Python source has a fixed description and no metrics.

    plan of t in /logs: 3 of 12 partitions, 40 of 2400 segments, 5.0 GiB of 290.0 GiB, 41 tasks

The line goes to the logger `kafkalog.spark`, at INFO, in the process that plans.  That is a Python process next to the
driver, in which nobody has set up logging.  The line is shown if `spark.sql.pyspark.worker.logging.enabled` is on, or
if the environment variable `KAFKALOG_SPARK_LOG` is `info`.  This module does not depend on pyspark.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Sequence

from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.snapshot import Snapshot
from kafkalog.spark.ranges import OffsetRange

log = logging.getLogger("kafkalog.spark")

SPARK_ASKS, WE_ASK = "PYSPARK_SPARK_SESSION_UUID", "KAFKALOG_SPARK_LOG"
NAMES_MOST = 3
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


class PlanReport:
    """Counts while a plan is made; `tell` logs the line."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._topics: set[str] = set()
        self.partitions = 0  # chosen by name
        self.segments = 0
        self.bytes = 0  # in the partitions that were read

    def choose(self, partitions: Iterable[TopicPartition]) -> None:
        """Counts the partitions that the options, or a batch of a stream, name."""
        chosen = list(partitions)
        self.partitions += len(chosen)
        self._topics.update(each.topic for each in chosen)

    def see(self, seen: Snapshot) -> None:
        """Counts a partition that was read."""
        self.segments += len(seen.segments)
        self.bytes += sum(segment.about_bytes for segment in seen.segments)

    def text(self, tasks: Sequence[Sequence[OffsetRange]]) -> str:
        works = [work for works in tasks for work in works]
        partitions = {(work.topic, work.partition) for work in works}
        segments = {piece.path for work in works for piece in work.pieces}
        topics = sorted(self._topics)
        more = f" and {len(topics) - NAMES_MOST} more" if len(topics) > NAMES_MOST else ""
        return (
            f"plan of {', '.join(topics[:NAMES_MOST]) or 'no topic'}{more} in {', '.join(self._paths)}: "
            f"{len(partitions)} of {self.partitions} partitions, {len(segments)} of {self.segments} segments, "
            f"{_shown(sum(work.size for work in works))} of {_shown(self.bytes)}, "
            f"{len(tasks)} {'task' if len(tasks) == 1 else 'tasks'}"
        )

    def tell(self, tasks: Sequence[Sequence[OffsetRange]]) -> None:
        """Logs the line, if the level is enabled."""
        _listen()
        if log.isEnabledFor(logging.INFO):
            log.info("%s", self.text(tasks))


def _shown(size: int) -> str:
    amount, unit = float(size), 0
    while amount >= 1024 and unit + 1 < len(UNITS):
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {UNITS[unit]}" if unit else f"{size} {UNITS[0]}"


def _listen() -> None:
    """Sets up logging in a Spark process if the user wants it: nobody else sets a level or a handler there."""
    if SPARK_ASKS not in os.environ and os.environ.get(WE_ASK, "").lower() != "info":
        return
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
