"""Metrics for Prometheus, named as jmx_exporter's kafka-2_0_0.yml names those of a Kafka broker.

`kafka.log:type=Log,name=Size,topic=orders,partition=0` becomes `kafka_log_log_size{topic="orders",partition="0"}`. A
meter `...PerSec` becomes a counter `..._total`. A timer becomes a summary. Three things differ from the exporter: a
summary has its sum, an object with three tags (a future log's) has all of them as labels, and a directory's path has no
quotes around it. The package prometheus-client is needed to collect, not for the names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafkalog.engine.format.needs import need_prometheus_client
from kafkalog.engine.format.values import shown
from kafkalog.errors import IllegalArgumentException
from kafkalog.metrics.kinds import MeterValue, TimerValue
from kafkalog.metrics.names import MetricName
from kafkalog.metrics.registry import MetricsRegistry, MetricValue

if TYPE_CHECKING:
    from prometheus_client import Metric

_PER_SECOND = re.compile(r"PerSec\w*$")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")


def prometheus_name(name: MetricName) -> str:
    """Returns the name of a metric family, such as `kafka_log_log_size`, without labels and without `_total`, `_count`
    or `_sum`.
    """
    return _NOT_IN_NAMES.sub("_", f"{name.group}_{name.type}_{_PER_SECOND.sub('', name.name)}").lower()


def prometheus_labels(name: MetricName) -> dict[str, str]:
    """Returns the labels of a metric: its tags, without characters that Prometheus does not allow."""
    return {_NOT_IN_NAMES.sub("_", key): value for key, value in name.tags}


class PrometheusCollector:
    """A collector for prometheus-client.

    Several registries in one collector need different `labels`. A registry can be in one registered collector only:
    prometheus-client refuses a second one with ValueError.

    Args:
        registry: The registry to collect.
        more: More registries, with the same label names and other values.

    Raises:
        MissingPackageException: The package prometheus-client is not installed. This is an ImportError.
        IllegalArgumentException: Two registries have the same labels, or the label names are not the same in all.

    Example:
        >>> import prometheus_client
        >>> from kafkalog.metrics import MetricName, MetricsRegistry, PrometheusCollector
        >>> shop = MetricsRegistry(labels={"store": "shop"})
        >>> billing = MetricsRegistry(labels={"store": "billing"})
        >>> registry = prometheus_client.CollectorRegistry()
        >>> registry.register(PrometheusCollector(shop, billing))
        >>> shop.meter(MetricName.of("demo", "Orders", "OrdersPerSec"), "orders").mark(3)
        >>> registry.get_sample_value("demo_orders_orders_total", {"store": "shop"})
        3
    """

    def __init__(self, registry: MetricsRegistry, *more: MetricsRegistry) -> None:
        self._metric_type = need_prometheus_client().Metric
        self._registries = (registry, *more)
        for number, each in enumerate(self._registries):
            if not isinstance(each, MetricsRegistry):
                raise IllegalArgumentException(f"found {shown(each)}, expected a kafkalog.metrics.MetricsRegistry")
            if any(other.labels == each.labels for other in self._registries[:number]):
                raise IllegalArgumentException(
                    f"found two registries with the labels {each.labels}, expected different ones",
                    hint='MetricsRegistry(labels={"store": "shop"})',
                )
            if each.labels.keys() != registry.labels.keys():
                raise IllegalArgumentException(
                    f"found registries with the labels {sorted(registry.labels)} and {sorted(each.labels)}, expected "
                    "the same names in all"
                )

    def describe(self) -> Iterable[Metric]:
        """Yields one name for each registry, by which prometheus-client refuses a second collector of it with
        ValueError, because each sample would appear twice. The real names are known only when the metrics are
        collected.
        """
        for each in self._registries:
            yield self._metric_type(f"kafkalog_metrics_registry_{id(each):x}_in_two_collectors", "", "unknown")

    def collect(self) -> Iterable[Metric]:
        """Returns the current metrics as Prometheus's families."""
        families: dict[str, Metric] = {}
        for registry in self._registries:
            for name, value in registry.snapshot():
                kind = _kind(name, value)
                family = prometheus_name(name)
                if family not in families:
                    what = f"{name.group}:type={name.type},name={name.name}"
                    families[family] = self._metric_type(family, what, kind)
                _add_samples(families[family], kind, family, {**registry.labels, **prometheus_labels(name)}, value)
        return families.values()


def _kind(name: MetricName, value: MetricValue) -> str:
    if isinstance(value, MeterValue) and _PER_SECOND.search(name.name):
        return "counter"
    return "summary" if isinstance(value, (MeterValue, TimerValue)) else "gauge"


def _add_samples(family: Metric, kind: str, name: str, labels: dict[str, str], value: MetricValue) -> None:
    if isinstance(value, MeterValue):
        family.add_sample(f"{name}_total" if kind == "counter" else f"{name}_count", labels, value.count)
    elif isinstance(value, TimerValue):
        family.add_sample(f"{name}_count", labels, value.count)
        family.add_sample(f"{name}_sum", labels, value.sum)
        for quantile, duration_ms in value.percentiles.items():
            # The exporter derives it from `50thPercentile`.
            text = f"{quantile:.2f}" if quantile < 0.99 else f"{quantile:g}"
            family.add_sample(name, {**labels, "quantile": text}, duration_ms)
    else:
        family.add_sample(name, labels, value)
