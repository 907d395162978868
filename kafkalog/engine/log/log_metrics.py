"""The metrics of an open partition: Kafka's gauges of a log, its part of a broker's sums, and a few of kafkalog's.

It is a table of names and of functions that read a PartitionState without its lock, since what readers see is replaced
as a whole. Appends do not know this module. UnifiedLog calls it (`new_metrics`, `remove_log_metrics`). A future log has
an additional tag, and is not in the sums.

Source classes: LogMetricNames, UnifiedLog.newMetrics, ReplicaManager (4.4.0).
"""

from __future__ import annotations

from collections.abc import Callable

from kafkalog.engine.format import names
from kafkalog.engine.log.partition import PartitionState
from kafkalog.metrics.names import MetricName
from kafkalog.metrics.registry import Gauge

GAUGES: dict[str, Callable[[PartitionState], int]] = {
    "NumLogSegments": lambda log: log.number_of_segments,
    "LogStartOffset": lambda log: log.log_start_offset,
    "LogEndOffset": lambda log: log.log_end_offset,
    "Size": lambda log: log.size,
    "RetentionSizeInPercent": lambda log: log.retention_size_in_percent,
}
OWN_GAUGES: dict[str, Callable[[PartitionState], int]] = {
    "HighWatermark": lambda log: log.high_watermark,
    "LastStableOffset": lambda log: log.last_stable_offset,
    "RecoveryPoint": lambda log: log.recovery_point,
    "ProducerIdCount": lambda log: log.producer_state_manager.producer_id_count,
}


def has_late_transaction(log: PartitionState) -> int:
    return int(log.producer_state_manager.has_late_transaction(log.context.clock.milliseconds()))


SUMS: dict[str, Callable[[PartitionState], int]] = {
    "ProducerIdCount": OWN_GAUGES["ProducerIdCount"],
    "PartitionsWithLateTransactionsCount": has_late_transaction,
}


def gauges_of(log: PartitionState) -> list[Gauge]:
    """Returns all gauges of a log, with the names of its current directory."""
    tags = {"topic": log.topic_partition.topic, "partition": str(log.topic_partition.partition)}
    is_future = names.is_future_dir(log.context.dir)
    if is_future:
        tags["is-future"] = "true"
    gauges = [Gauge(MetricName.of("kafka.log", "Log", name, tags), read) for name, read in GAUGES.items()]
    gauges += [Gauge(MetricName.of("kafkalog", "Log", name, tags), read) for name, read in OWN_GAUGES.items()]
    if not is_future:
        gauges += [
            Gauge(MetricName.of("kafka.server", "ReplicaManager", name), read, True) for name, read in SUMS.items()
        ]
    return gauges
