"""Throttler: holds what several threads read and write together to a rate, by having them rest.

Each interval of 300 ms what was observed in it is compared with the rate; what was too much is slept off, to the
millisecond.  Who comes while another one sleeps rests until the same moment.  The sleep itself is the caller's: a
thread that is told to stop need not wait for its end.  A rate below nothing holds nobody, as in Kafka.  Keeps the meter
`cleaner-io`.
Thread-safe: a lock is held for a few steps, and by nobody who sleeps.  Mirrors
org.apache.kafka.storage.internals.utils.Throttler (4.4.0).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from kafkalog.engine.files import Clock
from kafkalog.metrics.kinds import Meter

CHECK_INTERVAL_NS = 300_000_000
REST_MAX_MS = 86_400_000  # a rate of nothing at all is asked for again once a day
_NS_PER_MS = 1_000_000
_NS_PER_SEC = 1_000_000_000


class Throttler:
    """`desired_rate_per_sec`: of whatever is observed; bytes, here."""

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
        """From now on: what was observed, and the rest that was ordered, by another rate are forgotten."""
        with self._lock:
            self._rate = float(rate)
            self._observed = 0.0
            self._period_start_ns = self._resting_until_ns = self._clock.nanoseconds()

    def disown(self) -> None:
        """In a forked child: whoever held the lock may be gone."""
        self._lock = threading.Lock()

    def maybe_throttle(self, observed: float, sleep: Callable[[int], object]) -> None:
        """Counts `observed`, and calls `sleep` with milliseconds where that was too much."""
        self.meter.mark(int(observed))
        rest_ms = self._observe(observed)
        if rest_ms > 0:
            sleep(rest_ms)

    def _observe(self, observed: float) -> int:
        """For how many milliseconds to rest."""
        with self._lock:
            now_ns = self._clock.nanoseconds()
            self._observed += observed
            if now_ns < self._resting_until_ns:  # somebody sleeps: what is observed now counts in the next period
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
