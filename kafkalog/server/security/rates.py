"""The measurements that quotas compare with their bounds: a rate over windows, and a bucket of tokens.

Times are milliseconds.  Not thread-safe: their owner holds its lock.
Source: Rate over WindowedSum (SampledStat), TokenBucket, QuotaUtils, ControllerMutationQuotaManager (4.4.0).
"""

from __future__ import annotations

from kafkalog._limits import INT_MAX


def java_round(value: float) -> int:
    """Returns what Java's Math.round returns: the nearest whole number, halves upward."""
    whole = int(value // 1)
    return whole + (value - whole >= 0.5)


class WindowedRate:
    """A sum per second over the last windows.

    A new rate counts as if all windows before the current one were there, so that a burst at the start is allowed.

    Args:
        window_ms: The length of a window.
        windows: How many are kept.
    """

    __slots__ = ("_current", "_samples", "_window_ms", "_windows")

    def __init__(self, window_ms: int, windows: int) -> None:
        self._window_ms = window_ms
        self._windows = windows
        self._samples: list[list[float]] = []  # start, last event, sum
        self._current = 0

    def record(self, value: float, now_ms: int) -> None:
        """Adds a value at a time."""
        if not self._samples:
            self._samples.append([now_ms, now_ms, 0.0])
        sample = self._samples[self._current]
        if now_ms - sample[0] >= self._window_ms:
            # One more than the windows, so that a full window's worth of history is always there.
            self._current = (self._current + 1) % (self._windows + 1)
            if self._current == len(self._samples):
                self._samples.append([now_ms, now_ms, 0.0])
            else:
                self._samples[self._current] = [now_ms, now_ms, 0.0]
            sample = self._samples[self._current]
        sample[1] = now_ms
        sample[2] += value

    def measure(self, now_ms: int) -> float:
        """Returns the rate per second."""
        window_ms = self.window_size_ms(now_ms)
        return sum(sample[2] for sample in self._samples) / (window_ms / 1000)

    def window_size_ms(self, now_ms: int) -> int:
        """Returns the time over which the rate is measured."""
        expire_ms = self._windows * self._window_ms
        for sample in self._samples:
            if now_ms - sample[1] >= expire_ms:
                sample[:] = [now_ms, now_ms, 0.0]
        oldest = min((int(sample[0]) for sample in self._samples), default=now_ms)
        elapsed = now_ms - oldest
        missing = self._windows - 1 - elapsed // self._window_ms
        return max(elapsed + max(missing, 0) * self._window_ms, 1)

    def throttle_time_ms(self, bound: float, now_ms: int) -> int:
        """Returns how long to wait until the rate is at the bound again; 0 if it is not above."""
        value = self.measure(now_ms)
        if value <= bound:
            return 0
        return min(java_round((value - bound) / bound * self.window_size_ms(now_ms)), INT_MAX)


class TokenBucket:
    """Tokens that come back at a rate.  A burst may take all, and even more than there are; then it must wait.

    Args:
        window_ms: As of `WindowedRate`; the bucket holds the tokens of all windows.
        windows: How many.
    """

    __slots__ = ("_last_ms", "_seconds", "_tokens")

    def __init__(self, window_ms: int, windows: int) -> None:
        self._seconds = windows * window_ms / 1000
        self._tokens = 0.0
        self._last_ms = 0

    def measure(self, bound: float, now_ms: int) -> float:
        """Returns the tokens that are there, negative if too many were taken."""
        refilled = self._tokens + bound * ((now_ms - self._last_ms) / 1000)
        self._tokens = min(self._seconds * bound, refilled)
        self._last_ms = now_ms
        return self._tokens

    def record(self, value: float, bound: float, now_ms: int) -> None:
        """Takes tokens."""
        self.measure(bound, now_ms)
        self._tokens = min(self._seconds * bound, self._tokens - value)

    def throttle_time_ms(self, bound: float, now_ms: int) -> int:
        """Returns how long to wait until no token is missing."""
        tokens = self.measure(bound, now_ms)
        return 0 if tokens >= 0 else java_round(-tokens / bound * 1000)
