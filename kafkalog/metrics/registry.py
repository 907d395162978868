"""The metrics of a process, or of a part of it: what owners show, and meters and timers by name.

A gauge is a function that is asked when somebody looks; until then it costs nothing, not even its name: an owner says
which gauges it has when it is asked.  The registry keeps no owner alive: what is gone shows nothing.  Knows nothing of
logs, and nothing of whoever looks.  One registry may serve many logs and a manager, as `PartitionContext.metrics`.

Thread-safe.  `_lock`, reentrant, guards both tables and is held for a few steps; nobody is asked under it.  In a child
process a registry begins anew, empty: what it counted is its parent's.
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
# Labels of Kafka's, and of a summary.
_TAKEN = ("topic", "partition", "is_future", "logDirectory", "dir", "threadNum", "quantile")
_LABELS_HINT = 'such as {"store": "shop"}'


class Gauge(NamedTuple):
    """One thing that an owner shows: `read(owner)` is its value.  Of owners that show the same name the newest is
    heard; `summed`: all are, and their sum is the value."""

    name: MetricName
    read: Callable[[Any], int | float]
    summed: bool = False


class MetricsRegistry(_shown.Shown):
    """`clock` times what is timed and metered.  `labels` are of all metrics where Prometheus collects them: what tells
    the metrics of two stores apart that have partitions of the same name, each with a registry of its own:
    `MetricsRegistry(labels={"store": "shop"})`.  Names of JMX objects are Kafka's, and have none of these.

    IllegalArgumentException for what is no label of Prometheus.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK, *, labels: Mapping[str, str] | None = None) -> None:
        self.clock = clock
        self.labels = _checked_labels({} if labels is None else labels)
        self._clashes: set[tuple[str, str]] = set()  # that were told
        self._lock = threading.RLock()
        self._counted: dict[MetricName, Meter | Timer] = {}  # guarded by _lock, like all below
        # By the owner's id, oldest first; what of it is gone is forgotten now and then.
        self._owners: dict[int, tuple[weakref.ref[object], Callable[[Any], Iterable[Gauge]]]] = {}
        self._shown = 0  # since somebody looked for what is gone
        belongs_here(self)

    def __repr__(self) -> str:
        with self._lock:
            found = [owner for seen, _ in self._owners.values() if (owner := seen()) is not None]
            counted = len(self._counted)
        kinds = Counter(type(owner).__name__ for owner in found)
        who = ", ".join(_shown.number(count, kind) for kind, count in sorted(kinds.items()))
        return f"<MetricsRegistry of {who or 'nothing'}, {counted:,} meters and timers>"

    def disown(self) -> None:
        """In a child process."""
        self._lock = threading.RLock()
        self._counted = {}
        self._owners = {}
        belongs_here(self)  # it may be used there

    # --- making and removing -------------------------------------------------------------------------

    def show(self, owner: T, gauges: Callable[[T], Iterable[Gauge]]) -> None:
        """From now on `gauges(owner)` are shown, until `owner` is forgotten or `hide` is called.

        Instead of what the owner showed before.  The function is asked each time that somebody looks, so that names
        may change; neither it nor what it lists may hold the owner: they get it.  A manager's, for one:
        `[Gauge(MetricName.of("kafka.log", "LogManager", "OfflineLogDirectoryCount"), lambda manager: ...)]`.
        """
        with self._lock:
            self._shown += 1
            if self._shown > max(len(self._owners), PRUNED_AFTER_MIN):
                self._forget_bereft()
            self._owners.pop(id(owner), None)
            self._owners[id(owner)] = (weakref.ref(owner), gauges)

    def hide(self, owner: object) -> None:
        """Shows nothing of an owner any more."""
        with self._lock:
            self._owners.pop(id(owner), None)

    def meter(self, name: MetricName, event_type: str) -> Meter:
        """The meter of that name, made where there is none; IllegalArgumentException where it is a timer's."""
        with self._lock:
            found = self._counted.get(name)
            if found is None:
                found = self._counted[name] = Meter(event_type, self.clock)
            return _of_kind(name, found, Meter)

    def timer(self, name: MetricName) -> Timer:
        """The timer of that name, made where there is none; IllegalArgumentException where it is a meter's."""
        with self._lock:
            found = self._counted.get(name)
            if found is None:
                found = self._counted[name] = Timer(self.clock)
            return _of_kind(name, found, Timer)

    def remove(self, name: MetricName) -> None:
        """Forgets a meter or a timer; nothing happens where there is none."""
        with self._lock:
            self._counted.pop(name, None)

    def _forget_bereft(self) -> None:
        self._shown = 0
        self._owners = {key: entry for key, entry in self._owners.copy().items() if entry[0]() is not None}

    # --- looking ---------------------------------------------------------------------------------------

    def snapshot(self) -> list[tuple[MetricName, MetricValue]]:
        """Every metric and what it says now: gauges in the order of their owners, then meters and timers.

        A gauge that fails is told of in the log "kafkalog.metrics", and left out.
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
                        "two owners show %s: the newest is heard.  Give each store a registry of its own, "
                        'MetricsRegistry(labels={"store": ...}), and PrometheusCollector all of them',
                        clash.object_name,
                    )
        found.update((name, metric.value) for name, metric in counted.items())
        return list(found.items())

    def as_jmx(self) -> dict[str, MetricValue]:
        """`snapshot` by the names of Kafka's JMX objects."""
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
                f"labels: found the name {shown(name)}, expected letters, digits and _, none of {', '.join(_TAKEN)}",
                hint=_LABELS_HINT,
            )
        text(value, f"labels[{name!r}]")
    return dict(labels)


def _add_gauges(
    found: dict[MetricName, MetricValue], owner: object, gauges: Callable[[Any], Iterable[Gauge]]
) -> MetricName | None:
    """Adds what an owner shows; one of the names that another has shown, and that name more than a process."""
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
