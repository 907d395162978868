"""Throttler: limits the rate at which several threads together read and write, by making them sleep.

After each interval of 300 ms the observed bytes are compared with the rate, and the excess is slept off, to the
millisecond.  A thread that comes while another one sleeps rests until the same moment.  The caller does the sleeping:
a thread that is told to stop need not wait for its end.  As in Kafka, a rate below 0 limits nothing.  Updates the meter
`cleaner-io`.
Thread-safe: a lock is held for a few steps, and never while a thread sleeps.  Mirrors
org.apache.kafka.storage.internals.utils.Throttler (4.4.0).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from kafkalog.engine.files import Clock
from kafkalog.metrics.kinds import Meter

CHECK_INTERVAL_NS = 300_000_000
REST_MAX_MS = 86_400_000  # with a rate of 0, the rate is checked again once a day
_NS_PER_MS = 1_000_000
_NS_PER_SEC = 1_000_000_000


class Throttler:
    """Limits a rate.  `desired_rate_per_sec` has the unit of the observed values, which are bytes here."""

    def __init__(self, desired_rate_per_sec: float, meter: Meter, clock: Clock) -> None:
        self._rate = float(desired_rate_per_sec)
        self.meter = meter
        self._clock = clock
        self._lock = threading.Lock()
        self._observed = 0.0  # in this period; guarded by _lock, like the two below
        self._period_start_ns = clock.nanoseconds()
        self._resting_until_ns = self._period_start_ns

    @property
    def desired_rate_per_sec(self) -> float:
        return self._rate

    @desired_rate_per_sec.setter
    def desired_rate_per_sec(self, rate: float) -> None:
        """Sets the rate; forgets the bytes observed so far, and a rest in progress."""
        with self._lock:
            self._rate = float(rate)
            self._observed = 0.0
            self._period_start_ns = self._resting_until_ns = self._clock.nanoseconds()

    def disown(self) -> None:
        """Resets the lock in a forked child: the thread that held it may not exist there."""
        self._lock = threading.Lock()

    def maybe_throttle(self, observed: float, sleep: Callable[[int], object]) -> None:
        """Counts `observed`, and calls `sleep` with milliseconds if the rate was exceeded."""
        self.meter.mark(int(observed))
        rest_ms = self._observe(observed)
        if rest_ms > 0:
            sleep(rest_ms)

    def _observe(self, observed: float) -> int:
        """Returns for how many milliseconds to rest."""
        with self._lock:
            now_ns = self._clock.nanoseconds()
            self._observed += observed
            if now_ns < self._resting_until_ns:  # another thread sleeps: this counts in the next period
                return -(-(self._resting_until_ns - now_ns) // _NS_PER_MS)
            elapsed_ns = now_ns - self._period_start_ns
            if elapsed_ns <= CHECK_INTERVAL_NS or self._observed <= 0:
                return 0
            rest_ms = 0
            if self._observed * _NS_PER_SEC / elapsed_ns > self._rate:
                per_ms = self._rate / 1000.0
                wanted_ms = self._observed / per_ms if per_ms else math.copysign(math.inf, per_ms)
                wanted_ms -= elapsed_ns // _NS_PER_MS
                rest_ms = math.floor(min(max(wanted_ms, 0.0), REST_MAX_MS) + 0.5)  # Math.round
            self._observed = 0.0
            self._period_start_ns = self._resting_until_ns = now_ns + rest_ms * _NS_PER_MS
            return rest_ms
