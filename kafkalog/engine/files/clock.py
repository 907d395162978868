"""Time, passed in: whoever needs the hour asks a `Clock`, so that tests can be the hour."""

from __future__ import annotations

import time
from typing import Protocol

from kafkalog._native.state import descriptor

_NS_PER_MS = 1_000_000


class Clock(Protocol):
    """Wall-clock milliseconds since the epoch, and monotonic nanoseconds for measuring (Kafka's Time)."""

    def milliseconds(self) -> int: ...

    def nanoseconds(self) -> int: ...


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    milliseconds = staticmethod(descriptor.milliseconds)

    def nanoseconds(self) -> int:
        return time.perf_counter_ns()


class ManualClock:
    """A clock that stands still until told otherwise; its two times move together (Kafka's MockTime)."""

    __slots__ = ("_elapsed_ns", "now_ms")

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        self._elapsed_ns = 0

    def milliseconds(self) -> int:
        return self.now_ms

    def nanoseconds(self) -> int:
        return self._elapsed_ns

    def advance(self, by_ms: int) -> int:
        """Move forward; the new time in milliseconds."""
        self.now_ms += by_ms
        self._elapsed_ns += max(by_ms, 0) * _NS_PER_MS
        return self.now_ms

    def advance_to(self, now_ms: int) -> int:
        """Jump, backwards too (the monotonic time never goes back)."""
        return self.advance(now_ms - self.now_ms)


SYSTEM_CLOCK = SystemClock()
