"""The metrics of share groups: acknowledged records, records in flight, dead letters, and writes of states.

    metrics = ShareMetrics(registry)
    metrics.acknowledged(batches)

Names are Kafka's.  Without a registry there is no object of this class, and nothing is measured.  Thread-safe.

Source: ShareGroupMetrics, SharePartitionMetrics, ShareCoordinatorMetrics (4.4.0).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kafkalog.metrics.names import MetricName
from kafkalog.metrics.registry import Gauge, MetricsRegistry

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.share_interfaces import TopicIdPartition
    from kafkalog.engine.files import Clock
    from kafkalog.metrics.kinds import Meter

ACKNOWLEDGE_TYPES = ("Gap", "Accept", "Release", "Reject", "Renew")  # by their numbers
WINDOW_MS = 30_000  # Kafka's averages and maxima are those of the last one to two windows


def _of_groups(name: str, tag: str, value: str) -> MetricName:
    return MetricName("kafka.server", "ShareGroupMetrics", name, ((tag, value),))


def _of_partition(name: str, group: str, partition: TopicIdPartition) -> MetricName:
    tags = {"group": group, "topic": partition.topic or "", "partition": str(partition.partition)}
    return MetricName.of("kafka.server", "SharePartitionMetrics", name, tags)


def _of_coordinator(name: str) -> MetricName:
    return MetricName("kafka.server", "share-coordinator-metrics", name)


class ShareMetrics:
    """See the module."""

    def __init__(self, registry: MetricsRegistry) -> None:
        self._registry = registry
        self._acknowledged = [
            registry.meter(_of_groups("RecordAcknowledgementsPerSec", "ackType", each), "records")
            for each in ACKNOWLEDGE_TYPES
        ]
        self.writes = WriteTimes(registry.clock)
        registry.show(self.writes, lambda _: _WRITES)

    def acknowledged(self, batches: Iterable[tuple[int, int, Sequence[int]]]) -> None:
        """Counts acknowledgements that succeeded: first offset, last offset, and one type or one for each offset."""
        for first, last, types in batches:
            if len(types) == 1:
                self._acknowledged[types[0]].mark(last - first + 1)
            else:
                for each in types:
                    self._acknowledged[each].mark()

    def expired(self, group: str, partition: TopicIdPartition, count: int) -> None:
        """Counts records whose lock has ended."""
        name = _of_partition("AcquisitionLockTimeoutPerSec", group, partition)
        self._registry.meter(name, "acquisition lock timeout").mark(count)

    def forget(self, group: str, partition: TopicIdPartition) -> None:
        """Removes the meter of a share partition that is no longer in memory."""
        self._registry.remove(_of_partition("AcquisitionLockTimeoutPerSec", group, partition))

    def letters(self, group: str, count: int, *, failed: bool) -> None:
        """Counts a write of dead letters: `count` records, or none if it failed."""
        self._of_group("DeadLetterQueueTotalProduceRequestsPerSec", group, "requests").mark()
        if failed:
            self._of_group("DeadLetterQueueFailedProduceRequestsPerSec", group, "errors").mark()
        else:
            self._of_group("DeadLetterQueueRecordCount", group, "records").mark(count)

    def _of_group(self, name: str, group: str, event_type: str) -> Meter:
        return self._registry.meter(_of_groups(name, "group", group), event_type)


class WriteTimes:
    """How many writes of share groups' states there were, and their durations in the last 30 to 60 seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._windows: list[tuple[int, list[float]]] = []  # the beginning of each, and its durations in ms
        self.count = 0

    def add(self, count: int, took_ms: float) -> None:
        """Adds a call that wrote `count` states."""
        with self._lock:
            self.count += count
            now_ms = self._clock.nanoseconds() // 1_000_000
            windows = self._kept(now_ms)
            if not windows or windows[-1][0] + WINDOW_MS <= now_ms:
                windows.append((now_ms, [0, 0.0, 0.0]))
            sums = windows[-1][1]
            sums[:] = sums[0] + 1, sums[1] + took_ms, max(sums[2], took_ms)
            self._windows = windows

    def _kept(self, now_ms: int) -> list[tuple[int, list[float]]]:
        return [each for each in self._windows if each[0] + 2 * WINDOW_MS > now_ms]

    @property
    def average_ms(self) -> float:
        """The average duration; NaN if there was no call."""
        with self._lock:
            sums = [each for _, each in self._kept(self._clock.nanoseconds() // 1_000_000)]
            calls = sum(each[0] for each in sums)
            return sum(each[1] for each in sums) / calls if calls else float("nan")

    @property
    def max_ms(self) -> float:
        """The longest duration; NaN if there was no call."""
        with self._lock:
            sums = [each for _, each in self._kept(self._clock.nanoseconds() // 1_000_000)]
            return max((each[2] for each in sums), default=float("nan"))


_WRITES = [
    Gauge(_of_coordinator("write-total"), lambda times: times.count, summed=True),
    Gauge(_of_coordinator("write-latency-avg"), lambda times: times.average_ms),
    Gauge(_of_coordinator("write-latency-max"), lambda times: times.max_ms),
]


def in_flight_gauges(group: str, partition: TopicIdPartition, offsets: int, batches: int) -> list[Gauge]:
    """Returns the gauges of a share partition with so much in flight."""
    values = (("InFlightMessageCount", offsets), ("InFlightBatchCount", batches))
    return [Gauge(_of_partition(name, group, partition), lambda _, value=value: value) for name, value in values]  # type: ignore[misc]
