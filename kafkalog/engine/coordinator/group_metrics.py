"""The metrics of groups: how many there are by protocol and state, rebalances, and offsets, under Kafka's names.

`GroupOffsets.counts` counts what happens, and the gauges here add up the partitions that are loaded.  They are read
when somebody asks.  Kafka also shows a rate for each count, which Prometheus computes from the count.

Source: GroupCoordinatorMetrics, GroupCoordinatorMetricsShard (4.4.0).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from kafkalog.engine.coordinator.group_counts import COUNTS
from kafkalog.engine.coordinator.groups import GroupType
from kafkalog.metrics.names import MetricName
from kafkalog.metrics.registry import Gauge

if TYPE_CHECKING:
    from kafkalog.engine.coordinator.group_offsets import GroupOffsets

STATES: dict[GroupType, Collection[str]] = {
    GroupType.CLASSIC: ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty"),
    GroupType.CONSUMER: ("Empty", "Assigning", "Reconciling", "Stable", "Dead"),
    GroupType.SHARE: ("Empty", "Stable", "Dead"),
}


def _name(name: str, *tags: tuple[str, str]) -> MetricName:
    return MetricName("kafka.server", "group-coordinator-metrics", name, tags)


def gauges_of(partitions: Iterable[GroupOffsets]) -> list[Gauge]:
    """Returns the gauges over some partitions of `__consumer_offsets`, as they are now."""
    groups: Counter[tuple[GroupType, str]] = Counter()
    counts: Counter[str] = Counter()
    offsets = 0
    for each in partitions:
        with each.lock:
            groups.update((group.type, group.state) for group in each.groups.by_name.values())
            offsets += sum(len(each.table.committed(name)) for name in each.groups.by_name)
            counts.update(each.counts)
    values = {_name("offset-count"): offsets}
    for kind, states in STATES.items():
        word = kind.value.lower()
        values[_name("group-count", ("protocol", word))] = sum(count for (of, _), count in groups.items() if of is kind)
        for state in states:
            values[_name(f"{word}-group-count", ("state", state))] = groups[kind, state]
    values.update((_name(f"{name}-count"), counts[name]) for name in COUNTS)
    return [Gauge(name, lambda _, value=value: value, summed=True) for name, value in values.items()]  # type: ignore[misc]
