"""The metrics of the remote tier, under Kafka's names: for each topic, and for all topics together.

Source classes: RemoteStorageMetrics, BrokerTopicMetrics (4.4.0).
"""

from __future__ import annotations

from functools import partial

from kafkalog.metrics.kinds import Meter
from kafkalog.metrics.names import MetricName
from kafkalog.metrics.registry import Gauge, MetricsRegistry

_METERS = {
    "copy_bytes": ("RemoteCopyBytesPerSec", "bytes"),
    "copy_requests": ("RemoteCopyRequestsPerSec", "requests"),
    "failed_copy_requests": ("RemoteCopyErrorsPerSec", "requests"),
    "fetch_bytes": ("RemoteFetchBytesPerSec", "bytes"),
    "fetch_requests": ("RemoteFetchRequestsPerSec", "requests"),
    "failed_fetch_requests": ("RemoteFetchErrorsPerSec", "requests"),
    "delete_requests": ("RemoteDeleteRequestsPerSec", "requests"),
    "failed_delete_requests": ("RemoteDeleteErrorsPerSec", "requests"),
}
_GAUGES = (
    "RemoteCopyLagBytes",
    "RemoteCopyLagSegments",
    "RemoteDeleteLagBytes",
    "RemoteDeleteLagSegments",
    "RemoteLogMetadataCount",
    "RemoteLogSizeBytes",
    "RemoteLogSizeComputationTime",
)


class Counter:
    """A meter of one topic, together with that of all topics."""

    def __init__(self, of_topic: Meter, of_all: Meter) -> None:
        self._meters = of_topic, of_all

    def mark(self, count: int = 1) -> None:
        for meter in self._meters:
            meter.mark(count)


class RemoteTopicMetrics:
    """The metrics of one topic; the gauges are sums over its partitions."""

    copy_bytes: Counter
    copy_requests: Counter
    failed_copy_requests: Counter
    fetch_bytes: Counter
    fetch_requests: Counter
    failed_fetch_requests: Counter
    delete_requests: Counter
    failed_delete_requests: Counter

    def __init__(self, registry: MetricsRegistry, topic: str) -> None:
        self._topic = topic
        self._of_partitions: dict[str, dict[int, int]] = {name: {} for name in _GAUGES}
        for field, (name, kind) in _METERS.items():
            of_all = MetricName("kafka.server", "BrokerTopicMetrics", name)
            of_topic = of_all._replace(tags=(("topic", topic),))
            setattr(self, field, Counter(registry.meter(of_topic, kind), registry.meter(of_all, kind)))
        registry.show(self, RemoteTopicMetrics._shown)

    def _shown(self) -> list[Gauge]:
        found = []
        for name in _GAUGES:
            of_all = MetricName("kafka.server", "BrokerTopicMetrics", name)
            read = partial(_sum, name)
            found.append(Gauge(of_all._replace(tags=(("topic", self._topic),)), read))
            found.append(Gauge(of_all, read, True))
        return found

    def set(self, name: str, partition: int, value: int) -> None:
        """Sets one partition's share of a gauge."""
        self._of_partitions[name][partition] = value

    def value(self, name: str) -> int:
        """Returns a gauge of the topic."""
        return sum(list(self._of_partitions[name].values()))

    def copy_lag(self, partition: int, size: int, segments: int) -> None:
        """Sets the size in bytes and the number of a partition's closed segments that are still to be copied."""
        self.set("RemoteCopyLagBytes", partition, size)
        self.set("RemoteCopyLagSegments", partition, segments)

    def delete_lag(self, partition: int, size: int, segments: int) -> None:
        """Sets the size in bytes and the number of a partition's segments that are still to be deleted."""
        self.set("RemoteDeleteLagBytes", partition, size)
        self.set("RemoteDeleteLagSegments", partition, segments)

    def forget(self, partition: int) -> None:
        """Removes a partition that no longer exists."""
        for shares in self._of_partitions.values():
            shares.pop(partition, None)


def _sum(name: str, metrics: RemoteTopicMetrics) -> int:
    return metrics.value(name)
