"""The clock as an object: all code reads the time from a `Clock`, so that tests can set it."""

from __future__ import annotations

import operator
import reprlib
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from kafkalog._native.state import descriptor
from kafkalog.errors import IllegalArgumentException

_NS_PER_MS = 1_000_000
_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS = range(10**9, 10**11)  # seconds since 1970 from 2001 on; as milliseconds they are days of 1970 to 1973


class Clock(Protocol):
    """Wall-clock milliseconds since 1970, and monotonic nanoseconds for measuring (Kafka's Time)."""

    def milliseconds(self) -> int:
        """Returns the time in milliseconds since 1970."""

    def nanoseconds(self) -> int:
        """Returns a monotonic time in nanoseconds."""


class SystemClock:
    """The machine's clocks.

    Example:
        >>> from kafkalog.engine.files import SYSTEM_CLOCK
        >>> SYSTEM_CLOCK.milliseconds() > 1_700_000_000_000
        True
    """

    __slots__ = ()

    milliseconds = staticmethod(descriptor.milliseconds)

    def nanoseconds(self) -> int:
        """Returns a monotonic time in nanoseconds."""
        return time.perf_counter_ns()


class ManualClock:
    """A clock that moves only when it is told to.  Its two times move together (Kafka's MockTime).

    Args:
        now_ms: The time: milliseconds since 1970, or a datetime with a time zone.

    Raises:
        IllegalArgumentException: `now_ms` is no such time, such as seconds, a float, or a datetime without time zone.

    Example:
        >>> from datetime import UTC, datetime, timedelta
        >>> from kafkalog.engine.files import ManualClock
        >>> clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
        >>> clock.milliseconds()
        1767225600000
        >>> clock.advance(timedelta(days=7))
        1767830400000
    """

    __slots__ = ("_elapsed_ns", "now_ms")

    def __init__(self, now_ms: int | datetime = 0) -> None:
        self.now_ms = _moment_ms(now_ms)
        self._elapsed_ns = 0

    def milliseconds(self) -> int:
        """Returns the time in milliseconds since 1970."""
        return self.now_ms

    def nanoseconds(self) -> int:
        """Returns the monotonic time in nanoseconds."""
        return self._elapsed_ns

    def advance(self, by_ms: int | timedelta) -> int:
        """Moves the clock forward.

        Args:
            by_ms: Milliseconds, or a timedelta.

        Returns:
            The new time in milliseconds since 1970.

        Raises:
            IllegalArgumentException: `by_ms` is negative, or no duration.
        """
        expected = "milliseconds from 0 on, or a timedelta"
        ms = by_ms // _MS if isinstance(by_ms, timedelta) else _whole(by_ms, "by_ms", expected, "int(s * 1000)")
        if ms < 0:
            raise IllegalArgumentException(
                f"by_ms: found {by_ms!r}, expected {expected}", hint="advance_to(now_ms) also goes back"
            )
        return self._move_to(self.now_ms + ms)

    def advance_to(self, now_ms: int | datetime) -> int:
        """Sets the clock, backwards too.  The monotonic time never goes back.

        Args:
            now_ms: Milliseconds since 1970, or a datetime with a time zone.

        Returns:
            The new time in milliseconds since 1970.

        Raises:
            IllegalArgumentException: `now_ms` is no such time.
        """
        return self._move_to(_moment_ms(now_ms))

    def _move_to(self, now_ms: int) -> int:
        self._elapsed_ns += max(now_ms - self.now_ms, 0) * _NS_PER_MS
        self.now_ms = now_ms
        return now_ms


def _moment_ms(value: object) -> int:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise IllegalArgumentException(
                f"now_ms: found {value!r}, which has no time zone, expected one that has",
                hint="datetime(..., tzinfo=UTC), or .astimezone() for local time",
            )
        value = (value - _EPOCH) // _MS
    expected = "milliseconds since 1970, or a datetime with a time zone"
    number = _whole(value, "now_ms", expected, "int(time.time() * 1000) is now")
    if number in _SECONDS:
        raise IllegalArgumentException(
            f"now_ms: found {number}, which looks like seconds since 1970, expected milliseconds", hint="* 1000"
        )
    if number < 0:
        raise IllegalArgumentException(f"now_ms: found {number}, expected {expected}")
    return number


def _whole(value: object, what: str, expected: str, hint: str) -> int:
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise IllegalArgumentException(f"{what}: found {reprlib.repr(value)}, expected {expected}", hint=hint)


SYSTEM_CLOCK = SystemClock()
