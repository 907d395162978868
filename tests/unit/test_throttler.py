"""Throttler: Kafka's pauses to the millisecond, for one thread and for several."""

from __future__ import annotations

import pytest

from kafkalog.engine.cleaner.throttler import REST_MAX_MS, Throttler
from kafkalog.engine.files import ManualClock
from kafkalog.metrics.kinds import Meter


class Pace:
    """A throttler, and what it had its callers sleep."""

    def __init__(self, rate: float) -> None:
        self.clock = ManualClock(0)
        self.throttler = Throttler(rate, Meter("bytes", self.clock), self.clock)
        self.slept: list[int] = []

    def observe(self, count: int, *, sleeps: bool = True) -> None:
        def sleep(ms: int) -> None:
            self.slept.append(ms)
            if sleeps:
                self.clock.advance(ms)

        self.throttler.maybe_throttle(count, sleep)


def test_nothing_is_looked_at_within_an_interval() -> None:
    pace = Pace(10.0)
    pace.observe(1_000_000)
    pace.clock.advance(300)
    pace.observe(1)
    assert pace.slept == []
    assert pace.throttler.meter.count == 1_000_001


@pytest.mark.parametrize(
    ("rate", "elapsed_ms", "observed", "rest_ms"),
    [
        (1000.0, 301, 1000, 699),  # a second's worth
        (1000.0, 500, 500, 0),  # just the rate
        (1000.0, 500, 501, 1),
        (3.0, 301, 1, 32),  # 333.3 - 301
        (2000.0, 301, 603, 1),  # 301.5 rounds up
        (1e308, 301, 1 << 40, 0),
        (0.0, 301, 1, REST_MAX_MS),
        (5e-324, 301, 1, REST_MAX_MS),
        (-1.0, 301, 1 << 40, 0),  # as Kafka, whose sleep is negative
        (float("-inf"), 301, 1, 0),
        (float("nan"), 301, 1, 0),
    ],
)
def test_what_was_too_much_is_slept_off(rate: float, elapsed_ms: int, observed: int, rest_ms: int) -> None:
    pace = Pace(rate)
    pace.clock.advance(elapsed_ms)
    pace.observe(observed)
    assert pace.slept == ([rest_ms] if rest_ms else [])
    pace.clock.advance(300)
    pace.observe(1 << 40)
    assert len(pace.slept) == (1 if rest_ms else 0)  # the period began again, after the pause


def test_who_comes_meanwhile_rests_until_the_same_moment() -> None:
    pace = Pace(1000.0)
    pace.clock.advance(400)
    pace.observe(1000, sleeps=False)
    pace.clock.advance(250)
    pace.observe(500, sleeps=False)
    assert pace.slept == [600, 350]
    pace.clock.advance(350 + 301)
    pace.observe(1)  # with the 500 of before, in 301 ms
    assert pace.slept == [600, 350, 200]


def test_the_rate_may_change() -> None:
    pace = Pace(1000.0)
    pace.throttler.desired_rate_per_sec = 2000.0
    pace.clock.advance(400)
    pace.observe(1000)
    assert pace.slept == [100]


def test_the_rest_that_another_rate_ordered_is_over() -> None:
    pace = Pace(10.0)
    pace.clock.advance(400)
    pace.observe(1_000_000, sleeps=False)
    pace.throttler.desired_rate_per_sec = 1e300
    pace.observe(1)
    pace.clock.advance(301)
    pace.observe(1_000_000)
    assert pace.slept == [REST_MAX_MS]
