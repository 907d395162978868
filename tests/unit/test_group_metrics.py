"""Metrics of groups, share groups and the share coordinator: Kafka's names, and what moves them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkalog
from kafkalog.engine.coordinator.share_metrics import WINDOW_MS, WriteTimes
from kafkalog.engine.files import ManualClock
from kafkalog.metrics import MetricsRegistry

GROUPS = "kafka.server:type=group-coordinator-metrics,name="
SHARES = "kafka.server:type=ShareGroupMetrics,name="
PARTITIONS = "kafka.server:type=SharePartitionMetrics,name="
WRITES = "kafka.server:type=share-coordinator-metrics,name="
MAIL_0 = ",group=mail,topic=outbox,partition=0"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def metrics() -> MetricsRegistry:
    return MetricsRegistry()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock, metrics: MetricsRegistry) -> Iterator[kafkalog.Store]:
    with kafkalog.open(tmp_path / "data", clock=clock, metrics=metrics) as store:
        store.create_topic("outbox").append_many([b"%d" % each for each in range(20)])
        yield store


def shown(metrics: MetricsRegistry, prefix: str) -> dict[str, Any]:
    """The metrics of a prefix that are not 0, and the counts of meters."""
    found = {name[len(prefix) :]: value for name, value in metrics.as_jmx().items() if name.startswith(prefix)}
    return {name: count for name, value in found.items() if (count := getattr(value, "count", value))}


def test_all_names_of_groups_are_kafkas(store: kafkalog.Store, metrics: MetricsRegistry) -> None:
    names = {name[len(GROUPS) :] for name in metrics.as_jmx() if name.startswith(GROUPS)}
    assert names == {
        "offset-count",
        *(f"group-count,protocol={each}" for each in ("classic", "consumer", "share")),
        *(
            f"classic-group-count,state={each}"
            for each in ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")
        ),
        *(
            f"consumer-group-count,state={each}"
            for each in ("Empty", "Assigning", "Reconciling", "Stable", "Dead")
        ),
        *(f"share-group-count,state={each}" for each in ("Empty", "Stable", "Dead")),
        *(f"offset-{each}-count" for each in ("commit", "expiration", "deletion")),
        "group-completed-rebalance-count",
        *(f"{each}-group-rebalance-count" for each in ("consumer", "share")),
    }  # fmt: skip
    assert shown(metrics, GROUPS) == {}


def test_groups_are_counted_by_state(store: kafkalog.Store, metrics: MetricsRegistry) -> None:
    with store.reader("plain", topics=["outbox"]) as reader:
        reader.poll(4)
        reader.commit()
    one = {"group-count,protocol=classic": 1, "classic-group-count,state=Empty": 1}
    offsets = {"offset-count": 1, "offset-commit-count": 1}
    assert shown(metrics, GROUPS) == one | offsets
    with store.reader("team", topics=["outbox"], group=True) as member:
        member.poll(1, timeout_ms=5000)
        found = shown(metrics, GROUPS)
        assert found["group-count,protocol=consumer"] == found["consumer-group-count,state=Stable"] == 1
        assert found["consumer-group-rebalance-count"] >= 1
        with store.queue("mail", topics=["outbox"]):
            found = shown(metrics, GROUPS)
            assert found["group-count,protocol=share"] == found["share-group-count,state=Stable"] == 1
            assert found["share-group-rebalance-count"] >= 1
    found = shown(metrics, GROUPS)
    assert found["consumer-group-count,state=Empty"] == found["share-group-count,state=Empty"] == 1
    store.delete_cursor("plain")
    assert "group-count,protocol=classic" not in shown(metrics, GROUPS)


def test_acknowledgements_are_counted_by_type(
    store: kafkalog.Store, metrics: MetricsRegistry, clock: ManualClock
) -> None:
    with store.queue("mail", topics=["outbox"], lock_ms=30_000, dead_letters="dead") as queue:
        records = queue.take(10)
        # The batch has 20 records, and is in flight as a whole.
        assert shown(metrics, PARTITIONS) == {f"InFlightMessageCount{MAIL_0}": 20, f"InFlightBatchCount{MAIL_0}": 1}
        queue.ack(records[:3])
        queue.release(records[3:5])
        queue.reject(records[5:6])
        queue.renew(records[6:8])
        name = "RecordAcknowledgementsPerSec,ackType="
        counts = {f"{name}Accept": 3, f"{name}Release": 2, f"{name}Reject": 1, f"{name}Renew": 2}
        letters = {
            "DeadLetterQueueTotalProduceRequestsPerSec,group=mail": 1,
            "DeadLetterQueueRecordCount,group=mail": 1,
        }
        assert shown(metrics, SHARES) == counts | letters
        clock.advance(30_001)
        store._home.coordinators.timers.run_due()
        found = shown(metrics, PARTITIONS)
        assert found[f"AcquisitionLockTimeoutPerSec{MAIL_0}"] == 4
        assert found[f"InFlightMessageCount{MAIL_0}"] == 17  # all after the three that are done
    assert shown(metrics, PARTITIONS) == {}  # the queue is closed, so the partition is forgotten
    assert shown(metrics, SHARES) == counts | letters


def test_writes_of_states_are_counted_and_timed(store: kafkalog.Store, metrics: MetricsRegistry) -> None:
    with store.queue("mail", topics=["outbox"]) as queue:
        before = metrics.as_jmx()
        queue.ack(queue.take(5))
        after = metrics.as_jmx()
    assert after[f"{WRITES}write-total"] == before[f"{WRITES}write-total"] + 1
    assert after[f"{WRITES}write-latency-max"] >= after[f"{WRITES}write-latency-avg"] == 0  # the clock stands


def test_the_times_of_writes_are_those_of_the_last_windows() -> None:
    clock = ManualClock(1_000_000)
    times = WriteTimes(clock)
    times.add(2, 10.0)
    times.add(1, 20.0)
    assert (times.count, times.average_ms, times.max_ms) == (3, 15.0, 20.0)
    clock.advance(WINDOW_MS)
    times.add(1, 3.0)
    assert (times.average_ms, times.max_ms) == (11.0, 20.0)
    clock.advance(WINDOW_MS)
    assert (times.average_ms, times.max_ms) == (3.0, 3.0)
    clock.advance(WINDOW_MS)
    assert times.count == 4
    assert math.isnan(times.average_ms)
    assert math.isnan(times.max_ms)
