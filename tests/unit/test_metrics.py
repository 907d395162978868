"""The registry, its gauges, meters and timers: their values, the objects that keep them alive, threads and forks."""

from __future__ import annotations

import gc
import logging
import threading

import pytest

from kafkalog.engine.files import ManualClock
from kafkalog.errors import IllegalArgumentException
from kafkalog.metrics import Gauge, Meter, MeterValue, MetricName, MetricsRegistry, Timer, TimerValue
from kafkalog.metrics.kinds import ALPHAS, SAMPLE_SIZE_MAX, percentile
from kafkalog.metrics.registry import PRUNED_AFTER_MIN

SIZE = MetricName.of("kafka.log", "Log", "Size", {"topic": "orders", "partition": "0"})
COUNT = MetricName.of("kafka.server", "ReplicaManager", "ProducerIdCount")


class Owner:
    def __init__(self, number: int) -> None:
        self.number = number


def number(owner: Owner) -> int:
    return owner.number


def size(owner: Owner) -> list[Gauge]:
    return [Gauge(SIZE, number)]


@pytest.mark.parametrize(
    ("tags", "text"),
    [
        ({}, "kafka.log:type=Log,name=Size"),
        ({"topic": "a.b-c_D", "partition": "0"}, "kafka.log:type=Log,name=Size,topic=a.b-c_D,partition=0"),
        ({"topic": "", "is-future": "true"}, "kafka.log:type=Log,name=Size,is-future=true"),
        ({"dir": "/data/a"}, 'kafka.log:type=Log,name=Size,dir="/data/a"'),
        ({"dir": 'C:\\a "b" *?\n'}, 'kafka.log:type=Log,name=Size,dir="C:\\\\a \\"b\\" \\*\\?\\n"'),
        ({"dir": "50% of\ta-b"}, "kafka.log:type=Log,name=Size,dir=50% of\ta-b"),
        ({"dir": "\u00e9"}, 'kafka.log:type=Log,name=Size,dir="\u00e9"'),
    ],
)
def test_the_names_of_objects(tags: dict[str, str], text: str) -> None:
    assert MetricName.of("kafka.log", "Log", "Size", tags).object_name == text


# --- meters and timers -------------------------------------------------------------------------------------


def test_a_meter_counts_and_rates() -> None:
    clock = ManualClock()
    meter = Meter("bytes", clock)
    assert meter.value == MeterValue("bytes", 0, 0.0, 0.0, 0.0, 0.0)
    meter.mark(60)
    meter.mark()
    clock.advance(4_999)
    assert meter.value.one_minute_rate == 0  # the first five seconds are not over
    assert meter.value.mean_rate == pytest.approx(61 / 4.999)
    clock.advance(1)
    assert meter.value == MeterValue("bytes", 61, 12.2, 12.2, 12.2, 12.2)
    clock.advance(5_000)  # a step in which nothing came
    expected = [12.2 * (1 - alpha) for alpha in ALPHAS]
    value = meter.value
    assert [value.one_minute_rate, value.five_minute_rate, value.fifteen_minute_rate] == pytest.approx(expected)
    assert value.mean_rate == pytest.approx(6.1)


def test_steps_that_nobody_saw_are_made_up_for() -> None:
    clock = ManualClock()
    watched, unwatched = Meter("requests", clock), Meter("requests", clock)
    for step in range(60):
        if step % 20 == 0:
            watched.mark(step + 7)
            unwatched.mark(step + 7)
        clock.advance(5_000)
        assert watched.value.count == watched.count
    assert unwatched.value.one_minute_rate == pytest.approx(watched.value.one_minute_rate)
    assert unwatched.value.fifteen_minute_rate == pytest.approx(watched.value.fifteen_minute_rate)
    clock.advance(10**9)
    assert 0 <= unwatched.value.fifteen_minute_rate < 1e-100


def test_a_timer_tells_of_its_durations() -> None:
    clock = ManualClock()
    timer = Timer(clock)
    empty = timer.value
    assert (empty.count, empty.min, empty.max, empty.mean, empty.std_dev, empty.sum) == (0, 0, 0, 0, 0, 0)
    assert set(empty.percentiles.values()) == {0}
    for ms in range(100, 0, -1):
        with timer.time():
            clock.advance(ms)
    value = timer.value
    assert (value.count, value.min, value.max, value.mean, value.sum) == (100, 1, 100, 50.5, 5050)
    assert value.std_dev == pytest.approx(29.0114919)
    assert value.percentiles == pytest.approx(
        {0.5: 50.5, 0.75: 75.75, 0.95: 95.95, 0.98: 98.98, 0.99: 99.99, 0.999: 100}
    )
    assert value.calls.count == 100
    assert value.calls.event_type == "calls"
    timer.update(-1)  # a clock that went back
    assert timer.value.count == 100


def test_what_fails_is_timed_too() -> None:
    clock = ManualClock()
    timer = Timer(clock)

    def fail() -> None:
        with timer.time():
            clock.advance(3)
            raise OSError

    with pytest.raises(OSError):
        fail()
    assert timer.value.max == 3


def test_the_last_minutes_weigh_most_in_a_timers_sample() -> None:
    clock = ManualClock()
    timer = Timer(clock)
    for _ in range(5 * SAMPLE_SIZE_MAX):
        timer.update(1_000_000)
    clock.advance(600_000)
    for _ in range(SAMPLE_SIZE_MAX):
        timer.update(9_000_000)
    assert len(timer._sample) == SAMPLE_SIZE_MAX
    assert timer.value.percentiles[0.5] == 9
    assert timer.value.min == 1


@pytest.mark.parametrize(
    ("values", "quantile", "found"),
    [
        ([], 0.5, 0),
        ([7], 0.001, 7),
        ([7], 0.999, 7),
        ([1, 2], 0.5, 1.5),
        ([1, 2, 3], 0.5, 2),
        ([1, 2, 3, 10], 0.75, 8.25),
    ],
)
def test_percentiles(values: list[int], quantile: float, found: float) -> None:
    assert percentile(values, quantile) == found


# --- gauges ------------------------------------------------------------------------------------------------


def test_a_gauge_is_asked_when_somebody_looks() -> None:
    registry, owner = MetricsRegistry(), Owner(1)
    registry.show(owner, size)
    owner.number = 5
    assert registry.snapshot() == [(SIZE, 5)]
    assert registry.as_jmx() == {"kafka.log:type=Log,name=Size,topic=orders,partition=0": 5}
    registry.show(owner, lambda found: [Gauge(COUNT, lambda found: -found.number)])  # instead of what it showed before
    assert registry.snapshot() == [(COUNT, -5)]
    registry.hide(owner)
    registry.hide(owner)
    assert registry.snapshot() == []


def test_names_are_asked_for_each_time() -> None:
    registry, owner = MetricsRegistry(), Owner(0)
    registry.show(
        owner, lambda found: [Gauge(MetricName.of("a", "b", str(each)), number) for each in range(found.number)]
    )
    assert registry.snapshot() == []
    owner.number = 2
    assert [name.name for name, _ in registry.snapshot()] == ["0", "1"]


def test_of_two_owners_the_newer_is_heard_and_then_the_older_again() -> None:
    registry, old, new = MetricsRegistry(), Owner(1), Owner(2)
    registry.show(old, size)
    registry.show(new, size)
    assert registry.snapshot() == [(SIZE, 2)]
    registry.hide(new)
    assert registry.snapshot() == [(SIZE, 1)]
    registry.show(new, size)
    registry.show(old, size)
    assert registry.snapshot() == [(SIZE, 1)]


def test_a_sum_is_of_all_owners() -> None:
    registry, one, two = MetricsRegistry(), Owner(3), Owner(4)
    for owner in (one, two):
        registry.show(owner, lambda found: [Gauge(COUNT, number, summed=True)])
    assert registry.snapshot() == [(COUNT, 7)]
    registry.hide(one)
    assert registry.snapshot() == [(COUNT, 4)]


def test_a_registry_keeps_no_owner_alive() -> None:
    registry, owner = MetricsRegistry(), Owner(1)
    registry.show(owner, size)
    gc.disable()
    try:
        del owner  # no cycle: it goes at once
        assert registry.snapshot() == []
        assert not registry._owners
        kept = []
        for each in range(500):  # dead owners do not pile up, though nobody looks
            kept.append(Owner(each))
            registry.show(kept[-1], size)
            del kept[:-1]
        assert len(registry._owners) <= PRUNED_AFTER_MIN + 1
        assert registry.snapshot() == [(SIZE, 499)]
    finally:
        gc.enable()


def test_a_gauge_that_fails_is_told_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    registry, owner = MetricsRegistry(), Owner(1)
    registry.show(owner, lambda found: [Gauge(SIZE, lambda found: 1 // 0), Gauge(COUNT, number)])
    assert registry.snapshot() == [(COUNT, 1)]
    assert "kafka.log:type=Log,name=Size,topic=orders,partition=0 could not be read" in caplog.text


def test_a_name_is_of_one_kind() -> None:
    registry = MetricsRegistry()
    meter = registry.meter(SIZE, "bytes")
    assert registry.meter(SIZE, "bytes") is meter
    with pytest.raises(IllegalArgumentException, match="Size,topic=orders,partition=0 is a meter already, not a timer"):
        registry.timer(SIZE)
    registry.remove(SIZE)
    registry.remove(SIZE)
    timer = registry.timer(SIZE)
    assert registry.timer(SIZE) is timer
    ((_, value),) = registry.snapshot()
    assert isinstance(value, TimerValue)
    with pytest.raises(IllegalArgumentException, match="is a timer already, not a meter"):
        registry.meter(SIZE, "bytes")


# --- threads and forks -------------------------------------------------------------------------------------


def test_threads_lose_no_mark() -> None:
    registry = MetricsRegistry()
    done = threading.Event()

    def mark(worker: int) -> None:
        for turn in range(2_000):
            registry.meter(COUNT, "requests").mark()
            registry.timer(SIZE).update(turn)
            owner = Owner(worker)
            registry.show(owner, size)
            if turn % 2:
                registry.hide(owner)

    def look() -> None:
        while not done.is_set():
            registry.snapshot()

    workers = [threading.Thread(target=mark, args=(each,)) for each in range(4)]
    looking = threading.Thread(target=look)
    for thread in (*workers, looking):
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    looking.join()
    found = dict(registry.snapshot())
    meter, timer = found[COUNT], found[SIZE]
    assert isinstance(meter, MeterValue)
    assert isinstance(timer, TimerValue)
    assert meter.count == timer.count == timer.calls.count == 8_000
    assert len(found) == 2  # every owner was collected


def test_the_log_of_metrics_has_the_fields_of_every_line(caplog: pytest.LogCaptureFixture) -> None:
    registry, owner = MetricsRegistry(), Owner(1)
    registry.show(owner, lambda found: [Gauge(SIZE, lambda found: 1 // 0)])
    with caplog.at_level(logging.WARNING, "kafkalog"):
        registry.snapshot()
    (record,) = caplog.records
    assert (record.__dict__["topic_partition"], record.__dict__["log_dir"]) == (None, None)
