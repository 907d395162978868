"""A registry of metrics: gauges that owners show, and meters and timers by name.

A gauge is a function that is called when the metrics are read. Until then it costs nothing, not even its name: an owner
lists its gauges when it is asked. The registry keeps no owner alive, and a collected owner shows nothing. Knows nothing
of logs or of readers of metrics. One registry may serve many logs and a manager, as `PartitionContext.metrics`.

Thread-safe. `_lock`, reentrant, guards both tables and is held for a few steps; no owner is called with it held. In a
forked child a registry starts again, empty: its counts are the parent's.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from kafkalog import _shown
from kafkalog.engine.files import SYSTEM_CLOCK, Clock
from kafkalog.engine.files.lines import Lines
from kafkalog.engine.files.processes import belongs_here
from kafkalog.engine.format.values import shown, text
from kafkalog.errors import IllegalArgumentException
from kafkalog.metrics.kinds import Meter, MeterValue, Timer, TimerValue
from kafkalog.metrics.names import MetricName

_log = Lines("kafkalog.metrics")

MetricValue: TypeAlias = int | float | MeterValue | TimerValue
T = TypeVar("T")
K = TypeVar("K", Meter, Timer)

PRUNED_AFTER_MIN = 64
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")
# Kafka's labels, and that of a summary.
_TAKEN = ("topic", "partition", "is_future", "logDirectory", "dir", "threadNum", "quantile")
_LABELS_HINT = 'such as {"store": "shop"}'


class Gauge(NamedTuple):
    """One value that an owner shows.

    Args:
        name: The metric's name.
        read: A function that returns the value for the owner.
        summed: Whether owners with the same name are added up. Otherwise the newest owner's value counts.
    """

    name: MetricName
    read: Callable[[Any], int | float]
    summed: bool = False


class MetricsRegistry(_shown.Shown):
    """A registry of metrics.

    Two stores that have partitions of the same name each need a registry with other labels. Only Prometheus sees the
    labels: the names of JMX objects are Kafka's.

    Args:
        clock: The clock for meters and timers.
        labels: Labels of all metrics in Prometheus, such as {"store": "shop"}. Default: none.

    Raises:
        IllegalArgumentException: A label is not valid in Prometheus, or is one that Kafka's metrics have.

    Example:
        >>> from kafkalog.metrics import MetricName, MetricsRegistry
        >>> metrics = MetricsRegistry()
        >>> metrics.meter(MetricName.of("shop", "Orders", "OrdersPerSec"), "orders").mark(2)
        >>> for name, value in metrics.snapshot():
        ...     print(name.object_name, value.count)
        shop:type=Orders,name=OrdersPerSec 2
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, *, labels: Mapping[str, str] | None = None) -> None:
        self.clock = clock
        self.labels = _checked_labels({} if labels is None else labels)
        self._clashes: set[tuple[str, str]] = set()  # reported ones
        self._lock = threading.RLock()
        self._counted: dict[MetricName, Meter | Timer] = {}  # guarded by _lock, like all below
        # By the owner's id, oldest first; collected owners are removed from time to time.
        self._owners: dict[int, tuple[weakref.ref[object], Callable[[Any], Iterable[Gauge]]]] = {}
        self._shown = 0  # calls of `show` since the last removal
        belongs_here(self)

    def __repr__(self) -> str:
        with self._lock:
            found = [owner for seen, _ in self._owners.values() if (owner := seen()) is not None]
            counted = len(self._counted)
        kinds = Counter(type(owner).__name__ for owner in found)
        who = ", ".join(_shown.number(count, kind) for kind, count in sorted(kinds.items()))
        return f"<MetricsRegistry of {who or 'nothing'}, {counted:,} meters and timers>"

    def disown(self) -> None:
        """Starts again in a forked child."""
        self._lock = threading.RLock()
        self._counted = {}
        self._owners = {}
        belongs_here(self)  # it may be used in the child

    # --- adding and removing -------------------------------------------------------------------------

    def show(self, owner: T, gauges: Callable[[T], Iterable[Gauge]]) -> None:
        """Shows an owner's gauges, until the owner is collected or `hide` is called.

        They replace the gauges that the owner showed before. The function is called each time the metrics are read, so
        names may change. Neither the function nor its gauges may hold the owner: they get it as an argument.

        Args:
            owner: The owner. The registry keeps only a weak reference.
            gauges: A function that returns the gauges of an owner.

        Example:
            >>> from kafkalog.metrics import Gauge, MetricName, MetricsRegistry
            >>> class Queue:
            ...     size = 7
            >>> queue, metrics = Queue(), MetricsRegistry()
            >>> metrics.show(queue, lambda _: [Gauge(MetricName.of("shop", "Queue", "Size"), lambda each: each.size)])
            >>> metrics.as_jmx()
            {'shop:type=Queue,name=Size': 7}
        """
        with self._lock:
            self._shown += 1
            if self._shown > max(len(self._owners), PRUNED_AFTER_MIN):
                self._forget_bereft()
            self._owners.pop(id(owner), None)
            self._owners[id(owner)] = (weakref.ref(owner), gauges)

    def hide(self, owner: object) -> None:
        """Stops showing an owner's gauges."""
        with self._lock:
            self._owners.pop(id(owner), None)

    def meter(self, name: MetricName, event_type: str) -> Meter:
        """Returns the meter of that name, and creates it at the first call.

        Args:
            name: The meter's name.
            event_type: The kind of event, such as "bytes".

        Returns:
            The meter.

        Raises:
            IllegalArgumentException: A timer has this name.
        """
        with self._lock:
            found = self._counted.get(name)
            if found is None:
                found = self._counted[name] = Meter(event_type, self.clock)
            return _of_kind(name, found, Meter)

    def timer(self, name: MetricName) -> Timer:
        """Returns the timer of that name, and creates it at the first call.

        Args:
            name: The timer's name.

        Returns:
            The timer.

        Raises:
            IllegalArgumentException: A meter has this name.
        """
        with self._lock:
            found = self._counted.get(name)
            if found is None:
                found = self._counted[name] = Timer(self.clock)
            return _of_kind(name, found, Timer)

    def remove(self, name: MetricName) -> None:
        """Removes a meter or a timer, if there is one of this name."""
        with self._lock:
            self._counted.pop(name, None)

    def _forget_bereft(self) -> None:
        self._shown = 0
        self._owners = {key: entry for key, entry in self._owners.copy().items() if entry[0]() is not None}

    # --- reading ---------------------------------------------------------------------------------------

    def snapshot(self) -> list[tuple[MetricName, MetricValue]]:
        """Returns every metric with its current value.

        If a gauge fails, the log "kafkalog.metrics" gets a warning, and the gauge is omitted.

        Returns:
            Pairs of name and value: first the gauges in the order of their owners, then meters and timers.
        """
        with self._lock:
            self._forget_bereft()
            owners, counted = self._owners.copy(), self._counted.copy()
        found: dict[MetricName, MetricValue] = {}
        for ref, gauges in owners.values():
            owner = ref()
            if owner is not None:
                clash = _add_gauges(found, owner, gauges)
                if clash is not None and (clash.type, clash.name) not in self._clashes:
                    self._clashes.add((clash.type, clash.name))
                    _log.warning(
                        "two owners show %s: the newest counts.  Give each store its own registry, "
                        'MetricsRegistry(labels={"store": ...}), and PrometheusCollector all of them',
                        clash.object_name,
                    )
        found.update((name, metric.value) for name, metric in counted.items())
        return list(found.items())

    def as_jmx(self) -> dict[str, MetricValue]:
        """Returns `snapshot` as a dict by the names of Kafka's JMX objects."""
        return {name.object_name: value for name, value in self.snapshot()}


def _of_kind(name: MetricName, found: Meter | Timer, kind: type[K]) -> K:
    if not isinstance(found, kind):
        raise IllegalArgumentException(
            f"{name.object_name} is a {type(found).__name__.lower()} already, not a {kind.__name__.lower()}"
        )
    return found


def _checked_labels(labels: object) -> dict[str, str]:
    if not isinstance(labels, Mapping):
        raise IllegalArgumentException(f"labels: found {shown(labels)}, expected names and values", hint=_LABELS_HINT)
    for name, value in labels.items():
        if not isinstance(name, str) or not _LABEL.fullmatch(name) or name in _TAKEN:
            raise IllegalArgumentException(
                f"labels: found the name {shown(name)}, expected letters, digits and _, but not {', '.join(_TAKEN)}",
                hint=_LABELS_HINT,
            )
        text(value, f"labels[{name!r}]")
    return dict(labels)


def _add_gauges(
    found: dict[MetricName, MetricValue], owner: object, gauges: Callable[[Any], Iterable[Gauge]]
) -> MetricName | None:
    """Adds an owner's gauges.

    Returns a name that another owner has shown too, and that is not the process's; or None.
    """
    clash = None
    for name, read, summed in gauges(owner):
        try:
            value: Any = read(owner)
        except Exception:
            _log.warning("%s could not be read", name.object_name, exc_info=True)
            continue
        if not summed and name.tags and name in found:
            clash = clash or name
        found[name] = value + found.get(name, 0) if summed else value
    return clash
