"""Meters, which count events and their rates, and timers, which count durations.

They work as yammer metrics 2.2, which Kafka uses. Rates are moving averages over 1, 5 and 15 minutes, in steps of 5
seconds. A timer's percentiles come from a sample of 1028 durations in which the last five minutes weigh most. No thread
runs here: a call that marks or reads catches up on the steps since the last one. No library is used, because the core
has no dependency for metrics. Gauges are functions in the registry.

Thread-safe: each meter and timer has a reentrant lock, which is held for a few steps, so a finalizer or a signal
handler may use it. Source classes: Meter, EWMA, Timer, Histogram, ExponentiallyDecayingSample, Snapshot
(com.yammer.metrics 2.2.0).
"""

from __future__ import annotations

import heapq
import math
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from kafkalog.engine.files import Clock

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
TICK_NS = 5 * NS_PER_S
ALPHAS = tuple(1 - math.exp(-5 / 60 / minutes) for minutes in (1, 5, 15))
SAMPLE_SIZE_MAX = 1028
SAMPLE_ALPHA = 0.015
QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)

_RANDOM = random.Random()


@dataclass(frozen=True, slots=True)
class MeterValue:
    """The values of a meter at one moment.

    Args:
        event_type: The kind of event, such as "bytes" or "requests".
        count: Number of events so far.
        mean_rate: Events per second since the meter was created.
        one_minute_rate: Moving average of the last minute, in events per second.
        five_minute_rate: Moving average of the last five minutes, in events per second.
        fifteen_minute_rate: Moving average of the last fifteen minutes, in events per second.
    """

    event_type: str
    count: int
    mean_rate: float
    one_minute_rate: float
    five_minute_rate: float
    fifteen_minute_rate: float


@dataclass(frozen=True, slots=True)
class TimerValue:
    """The values of a timer at one moment. All durations are in milliseconds.

    Args:
        count: Number of durations so far.
        min: The shortest duration.
        max: The longest duration.
        mean: The mean duration.
        std_dev: The standard deviation.
        sum: The sum of all durations.
        percentiles: Durations by quantile: 0.5, 0.75, 0.95, 0.98, 0.99 and 0.999.
        calls: The rates of the timed calls.
    """

    count: int
    min: float
    max: float
    mean: float
    std_dev: float
    sum: float
    percentiles: dict[float, float]
    calls: MeterValue


class Meter:
    """Counts events and their rates.

    Args:
        event_type: The kind of event, such as "bytes" or "requests".
        clock: The clock for the rates.

    Example:
        >>> from kafkalog.metrics import MetricName, MetricsRegistry
        >>> meter = MetricsRegistry().meter(MetricName.of("shop", "Orders", "OrdersPerSec"), "orders")
        >>> meter.mark()
        >>> meter.mark(2)
        >>> meter.count
        3
    """

    __slots__ = ("_clock", "_count", "_lock", "_rates", "_started_ns", "_ticked_ns", "_uncounted", "event_type")

    def __init__(self, event_type: str, clock: Clock) -> None:
        self.event_type = event_type
        self._clock = clock
        self._lock = threading.RLock()
        self._count = 0
        self._uncounted = 0  # since the last tick
        self._rates: tuple[float, ...] | None = None  # by ALPHAS; None before the first tick
        self._started_ns = self._ticked_ns = clock.nanoseconds()

    def mark(self, count: int = 1) -> None:
        """Counts `count` more events."""
        with self._lock:
            self._tick()
            self._count += count
            self._uncounted += count

    @property
    def count(self) -> int:
        """The number of events so far."""
        return self._count

    @property
    def value(self) -> MeterValue:
        """The count, and the rates in events per second."""
        with self._lock:
            now_ns = self._tick()
            elapsed_ns = now_ns - self._started_ns
            mean = self._count * NS_PER_S / elapsed_ns if elapsed_ns > 0 else 0.0
            one, five, fifteen = self._rates or (0.0, 0.0, 0.0)
            return MeterValue(self.event_type, self._count, mean, one, five, fifteen)

    def _tick(self) -> int:
        """Catches up on the steps since the last call: the first gets the marked events, the others had none."""
        now_ns = self._clock.nanoseconds()
        ticks = (now_ns - self._ticked_ns) // TICK_NS
        if ticks > 0:
            instant = self._uncounted * NS_PER_S / TICK_NS
            before = self._rates or (instant,) * len(ALPHAS)
            self._rates = tuple(
                (rate + alpha * (instant - rate)) * (1 - alpha) ** (ticks - 1)
                for rate, alpha in zip(before, ALPHAS, strict=True)
            )
            self._uncounted = 0
            self._ticked_ns += ticks * TICK_NS
        return now_ns


class Timer:
    """Counts durations.

    Args:
        clock: The clock that measures them.

    Example:
        >>> from kafkalog.metrics import MetricName, MetricsRegistry
        >>> timer = MetricsRegistry().timer(MetricName.of("shop", "Orders", "OrderTimeMs"))
        >>> with timer.time():
        ...     _ = sum(range(1000))
        >>> timer.value.count
        1
        >>> timer.update(5_000_000)
        >>> timer.value.max >= 5.0
        True
    """

    __slots__ = ("_calls", "_clock", "_count", "_lock", "_max", "_mean", "_min", "_sample", "_squares", "_sum")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._calls = Meter("calls", clock)
        self._sample: list[tuple[float, int]] = []  # a heap of (weight, ns): the smallest weight is removed first
        self._count = self._min = self._max = self._sum = 0  # ns
        self._mean = self._squares = 0.0  # Welford's algorithm

    def time(self) -> Timing:
        """Returns a context manager that measures its block, even if the block raises an error."""
        return Timing(self, self._clock)

    def update(self, elapsed_ns: int) -> None:
        """Adds one duration of `elapsed_ns` nanoseconds."""
        if elapsed_ns < 0:  # ignored, as in yammer
            return
        with self._lock:
            self._count += 1
            self._sum += elapsed_ns
            self._min = min(self._min, elapsed_ns) if self._count > 1 else elapsed_ns
            self._max = max(self._max, elapsed_ns)
            delta = elapsed_ns - self._mean
            self._mean += delta / self._count
            self._squares += delta * (elapsed_ns - self._mean)
            # Weights grow with time as e^(alpha t), divided by a random number; their logarithms need no rescaling.
            weight = SAMPLE_ALPHA * self._clock.nanoseconds() / NS_PER_S - math.log(1.0 - _RANDOM.random())
            if len(self._sample) < SAMPLE_SIZE_MAX:
                heapq.heappush(self._sample, (weight, elapsed_ns))
            else:
                heapq.heappushpop(self._sample, (weight, elapsed_ns))
            self._calls.mark()

    @property
    def value(self) -> TimerValue:
        """The count, the rates and the percentiles, in milliseconds."""
        with self._lock:
            count, least, most, total = self._count, self._min, self._max, self._sum
            variance = self._squares / (count - 1) if count > 1 else 0.0
            sample = list(self._sample)
            calls = self._calls.value
        durations = sorted(ns for _, ns in sample)
        return TimerValue(
            count,
            least / NS_PER_MS,
            most / NS_PER_MS,
            total / count / NS_PER_MS if count else 0.0,
            math.sqrt(variance) / NS_PER_MS,
            total / NS_PER_MS,
            {quantile: percentile(durations, quantile) / NS_PER_MS for quantile in QUANTILES},
            calls,
        )


class Timing:
    """One measured block, created by `Timer.time`."""

    __slots__ = ("_clock", "_started_ns", "_timer")

    def __init__(self, timer: Timer, clock: Clock) -> None:
        self._timer = timer
        self._clock = clock
        self._started_ns = 0

    def __enter__(self) -> None:
        self._started_ns = self._clock.nanoseconds()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.update(self._clock.nanoseconds() - self._started_ns)


def percentile(ordered: Sequence[int], quantile: float) -> float:
    """Returns a quantile of a sorted sample, interpolated between two values; 0 for an empty sample."""
    if not ordered:
        return 0.0
    position = quantile * (len(ordered) + 1)
    if position < 1:
        return float(ordered[0])
    if position >= len(ordered):
        return float(ordered[-1])
    lower, upper = ordered[int(position) - 1], ordered[int(position)]
    return lower + (position - math.floor(position)) * (upper - lower)
