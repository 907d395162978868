"""Metrics: a registry of gauges, meters and timers, under the names that Kafka's have.

    from kafkalog.metrics import MetricsRegistry, PrometheusCollector

    metrics = MetricsRegistry()
    prometheus_client.REGISTRY.register(PrometheusCollector(metrics))
    log = kafkalog.open_log("data", "orders-0", metrics=metrics)

Knows no log: what is measured is said where it happens (`kafkalog.engine.log.topic_metrics`,
`kafkalog.engine.log.log_metrics`).
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
