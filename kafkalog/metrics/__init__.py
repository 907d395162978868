"""Metrics: a registry of gauges, meters and timers with Kafka's names.

Knows no log: each metric is defined where it is measured (`kafkalog.engine.log.topic_metrics`,
`kafkalog.engine.log.log_metrics`).

Example:
    >>> import tempfile
    >>> import kafkalog
    >>> from kafkalog.metrics import MetricsRegistry
    >>> metrics = MetricsRegistry()
    >>> with kafkalog.open_log(tempfile.mkdtemp(), "orders-0", metrics=metrics) as log:
    ...     _ = log.append(b"value")
    ...     metrics.as_jmx()["kafka.log:type=Log,name=LogEndOffset,topic=orders,partition=0"]
    1

`prometheus_client.REGISTRY.register(PrometheusCollector(metrics))` exports them to Prometheus.
"""

from __future__ import annotations

from kafkalog.metrics.kinds import Meter, MeterValue, Timer, TimerValue
from kafkalog.metrics.names import MetricName
from kafkalog.metrics.prometheus import PrometheusCollector
from kafkalog.metrics.registry import Gauge, MetricsRegistry, MetricValue

__all__ = [
    "Gauge",
    "Meter",
    "MeterValue",
    "MetricName",
    "MetricValue",
    "MetricsRegistry",
    "PrometheusCollector",
    "Timer",
    "TimerValue",
]


def __dir__() -> list[str]:
    return __all__
