"""The metrics of a process, or of a part of it, by name: gauges, meters and timers.

A gauge is a function that is asked when somebody looks; it costs nothing until then.  It belongs to an owner whom the
registry does not keep alive: a gauge of what is gone is gone.  Knows nothing of logs, and nothing of whoever shows the
metrics.  One registry may serve many logs and a manager; `PartitionContext.metrics` is theirs.

Thread-safe.  `_lock`, reentrant, guards the table and is held for a few steps; no gauge is asked under it.  In a child
process a registry begins anew, empty: what it counted is its parent's.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from kafkalog.errors import IllegalArgumentException
from kafkalog.files import SYSTEM_CLOCK, Clock
from kafkalog.files.lines import Lines
from kafkalog.files.processes import belongs_here
from kafkalog.metrics.kinds import Meter, MeterValue, Timer, TimerValue
from kafkalog.metrics.names import MetricName

_log = Lines("kafkalog.metrics")

MetricValue: TypeAlias = int | float | MeterValue | TimerValue
Reader: TypeAlias = Callable[[Any], int | float]
T = TypeVar("T")


class _Gauge:
    """Who answers under one name, newest last; replaced whole, read without a lock."""

    __slots__ = ("answers", "summed")

    def __init__(self, summed: bool) -> None:
        self.summed = summed
        self.answers: tuple[tuple[weakref.ref[object], Reader], ...] = ()

    def without(self, owner: object | None) -> tuple[tuple[weakref.ref[object], Reader], ...]:
        """The answers of all that live but `owner`."""
        return tuple(each for each in self.answers if (found := each[0]()) is not None and found is not owner)

    @property
    def value(self) -> int | float | None:
        """The newest answer, or the sum of all; None where nobody is left to answer."""
        living = [(owner, read) for ref, read in self.answers if (owner := ref()) is not None]
        if not living:
            return 0 if self.summed else None
        if self.summed:
            return sum(read(owner) for owner, read in living)
        owner, read = living[-1]
        return read(owner)


_Metric: TypeAlias = _Gauge | Meter | Timer


class MetricsRegistry:
    """Metrics by name.  `clock` times what is timed and metered."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self._lock = threading.RLock()
        self._metrics: dict[MetricName, _Metric] = {}  # guarded by _lock
        # Names of gauges whose owner went: a finalizer may run anywhere, so it only leaves a note.
        self._bereft: deque[MetricName] = deque()
        belongs_here(self)

    def disown(self) -> None:
        """In a child process."""
        self._lock = threading.RLock()
        self._metrics = {}
        self._bereft.clear()
        belongs_here(self)  # it may be used there

    # --- making and removing -------------------------------------------------------------------------

    def gauge(self, name: MetricName, owner: T, read: Callable[[T], int | float], *, summed: bool = False) -> None:
        """`read(owner)` is what the metric says from now on, until `owner` is forgotten or `remove` is called.

        Where another owner has the name too, the newer one answers, and the older one again once that is gone;
        `summed`: the metric is the sum of what its owners say, and stays, as 0, when the last one goes.
        `read` must not hold the owner: it gets it.  IllegalArgumentException where the name is no such gauge's.
        """
        bereft = self._bereft
        ref: weakref.ref[object] = weakref.ref(owner, lambda _: bereft.append(name))
        with self._lock:
            self._forget_bereft()
            found = self._get(name, _Gauge, lambda: _Gauge(summed))
            found.answers = (*found.without(owner), (ref, read))

    def meter(self, name: MetricName, event_type: str) -> Meter:
        """The meter of that name, made where there is none."""
        with self._lock:
            return self._get(name, Meter, lambda: Meter(event_type, self.clock))

    def timer(self, name: MetricName) -> Timer:
        """The timer of that name, made where there is none."""
        with self._lock:
            return self._get(name, Timer, lambda: Timer(self.clock))

    def remove(self, name: MetricName, owner: object | None = None) -> None:
        """Forgets a metric, or, of a gauge, what this owner says of it; nothing happens where there is none."""
        with self._lock:
            found = self._metrics.get(name)
            if owner is None:
                self._metrics.pop(name, None)
            elif isinstance(found, _Gauge):
                self._keep(name, found, owner)

    def _get(self, name: MetricName, kind: type[T], make: Callable[[], T]) -> T:
        found = self._metrics.get(name)
        if found is None:
            made: Any = make()
            found = self._metrics[name] = made
        if not isinstance(found, kind):
            raise IllegalArgumentException(
                f"{name.object_name} is a {type(found).__name__.strip('_').lower()} already, "
                f"not a {kind.__name__.strip('_').lower()}"
            )
        return found

    def _keep(self, name: MetricName, gauge: _Gauge, but: object | None) -> None:
        gauge.answers = gauge.without(but)
        if not gauge.answers and not gauge.summed:
            self._metrics.pop(name, None)

    def _forget_bereft(self) -> None:
        while self._bereft:
            name = self._bereft.popleft()
            found = self._metrics.get(name)
            if isinstance(found, _Gauge):
                self._keep(name, found, None)

    # --- looking ---------------------------------------------------------------------------------------

    def snapshot(self) -> list[tuple[MetricName, MetricValue]]:
        """Every metric and what it says now, in the order in which they were made.

        A gauge that fails is told of in the log "kafkalog.metrics", and left out.
        """
        with self._lock:
            self._forget_bereft()
            metrics = self._metrics.copy()
        found: list[tuple[MetricName, MetricValue]] = []
        for name, metric in metrics.items():
            try:
                value = metric.value
            except Exception:
                _log.warning("%s could not be read", name.object_name, exc_info=True)
                continue
            if value is not None:
                found.append((name, value))
        return found

    def as_jmx(self) -> dict[str, MetricValue]:
        """`snapshot` by the names of Kafka's JMX objects."""
        return {name.object_name: value for name, value in self.snapshot()}
