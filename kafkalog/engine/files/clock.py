"""Time, passed in: whoever needs the hour asks a `Clock`, so that tests can be the hour."""

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
_SECONDS = range(10**9, 10**11)  # since 1970: from 2001 on; in milliseconds it is a day of 1970 to 1973


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
    """A clock that stands still until told otherwise; its two times move together (Kafka's MockTime).

        clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))       # or milliseconds since 1970
        clock.advance(timedelta(days=7))                            # or milliseconds

    IllegalArgumentException for what is no time, such as seconds, floats and a datetime without a time zone.
    """

    __slots__ = ("_elapsed_ns", "now_ms")

    def __init__(self, now_ms: int | datetime = 0) -> None:
        self.now_ms = _moment_ms(now_ms)
        self._elapsed_ns = 0

    def milliseconds(self) -> int:
        return self.now_ms

    def nanoseconds(self) -> int:
        return self._elapsed_ns

    def advance(self, by_ms: int | timedelta) -> int:
        """Move forward; the new time in milliseconds."""
        expected = "milliseconds from 0 on, or a timedelta"
        ms = by_ms // _MS if isinstance(by_ms, timedelta) else _whole(by_ms, "by_ms", expected, "int(s * 1000)")
        if ms < 0:
            raise IllegalArgumentException(
                f"by_ms: found {by_ms!r}, expected {expected}", hint="advance_to(now_ms) also goes back"
            )
        return self._move_to(self.now_ms + ms)

    def advance_to(self, now_ms: int | datetime) -> int:
        """Jump, backwards too (the monotonic time never goes back)."""
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
