"""The metrics as Prometheus has them from a Kafka broker: the names that jmx_exporter's kafka-2_0_0.yml makes.

`kafka.log:type=Log,name=Size,topic=orders,partition=0` is `kafka_log_log_size{topic="orders",partition="0"}`; a meter
`...PerSec` is a counter `..._total`; a timer is a summary, whose sum, which the exporter leaves out, is here too.  Two
more things are better here than there: an object with three tags (a future log's) has them all as labels, and a
directory's path has no quotes around it.  The package prometheus-client is needed to collect, not for the names.
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
    """`kafka_log_log_size`: without the `_total`, `_count` and `_sum` of what is counted, without labels."""
    return _NOT_IN_NAMES.sub("_", f"{name.group}_{name.type}_{_PER_SECOND.sub('', name.name)}").lower()


def prometheus_labels(name: MetricName) -> dict[str, str]:
    return {_NOT_IN_NAMES.sub("_", key): value for key, value in name.tags}


class PrometheusCollector:
    """A collector for prometheus-client: `prometheus_client.REGISTRY.register(PrometheusCollector(metrics))`.

    Several registries are told apart by their `labels`:
    `PrometheusCollector(MetricsRegistry(labels={"store": "shop"}), MetricsRegistry(labels={"store": "billing"}))`.

    A registry belongs to one collector that is registered: prometheus-client refuses a second one (ValueError).

    MissingPackageException (an ImportError) where the package is not installed; IllegalArgumentException for two
    registries with the same labels, and for names of labels that are not the same in all of them.
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
        """One name for each registry, by which prometheus-client refuses a second collector of it (ValueError: each
        sample would be there twice); what there will be is known when it is collected."""
        for each in self._registries:
            yield self._metric_type(f"kafkalog_metrics_registry_{id(each):x}_in_two_collectors", "", "unknown")

    def collect(self) -> Iterable[Metric]:
        """The metrics as Prometheus's families, at this moment."""
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
            # The exporter makes it of `50thPercentile`.
            text = f"{quantile:.2f}" if quantile < 0.99 else f"{quantile:g}"
            family.add_sample(name, {**labels, "quantile": text}, duration_ms)
    else:
        family.add_sample(name, labels, value)
