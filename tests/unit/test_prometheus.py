"""The metrics as Prometheus reads them: by the real prometheus-client, in its text format, parsed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

import kafkalog
from kafkalog.engine.files import ManualClock
from kafkalog.errors import IllegalArgumentException, RecordTooLargeException
from kafkalog.metrics import Gauge, MetricName, MetricsRegistry, PrometheusCollector

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def exposed(*metrics: MetricsRegistry) -> tuple[Samples, dict[str, str]]:
    """The samples that a scrape brings, and the types of their families."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(PrometheusCollector(*metrics))
    generate_openmetrics(registry)  # it is stricter about what a family may hold
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }
    return samples, {family.name: family.type for family in families}


def test_a_logs_metrics_have_the_names_of_the_exporter(tmp_path: Path) -> None:
    metrics = MetricsRegistry()
    with kafkalog.open_log(tmp_path, "orders-3", metrics=metrics, config={"max.message.bytes": "1000"}) as log:
        log.append(b"v")
        log.flush()
        with pytest.raises(RecordTooLargeException):
            log.append(b"v" * 2000)
        samples, types = exposed(metrics)
        assert log.engine is not None
        size = log.engine.size
    where = (("partition", "3"), ("topic", "orders"))
    assert samples["kafka_log_log_size", where] == size
    assert samples["kafka_log_log_numlogsegments", where] == 1
    assert samples["kafka_log_log_logstartoffset", where] == 0
    assert samples["kafka_log_log_logendoffset", where] == 1
    assert samples["kafka_log_log_retentionsizeinpercent", where] == 0
    assert samples["kafka_log_logflushstats_logflushrateandtimems_count", ()] == 1
    assert samples["kafka_log_logflushstats_logflushrateandtimems_sum", ()] > 0
    for quantile in ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999"):
        assert samples["kafka_log_logflushstats_logflushrateandtimems", (("quantile", quantile),)] > 0
    rejected = samples["kafka_server_brokertopicmetrics_bytesrejected_total", (("topic", "orders"),)]
    assert rejected == samples["kafka_server_brokertopicmetrics_bytesrejected_total", ()] > 2000
    assert samples["kafka_server_brokertopicmetrics_invalidmessagecrcrecords_total", ()] == 0
    assert samples["kafka_server_replicamanager_produceridcount", ()] == 0
    assert samples["kafkalog_log_highwatermark", where] == 1
    assert samples["kafkalog_log_recoverypoint", where] == 1
    assert types["kafka_log_log_size"] == "gauge"
    assert types["kafka_server_brokertopicmetrics_bytesrejected"] == "counter"
    assert types["kafka_log_logflushstats_logflushrateandtimems"] == "summary"
    after, _ = exposed(metrics)
    assert not any(name.startswith(("kafka_log_log_", "kafkalog_")) for name, _ in after)
    assert ("kafka_log_logflushstats_logflushrateandtimems_count", ()) in after


def test_tags_become_labels(tmp_path: Path) -> None:
    metrics = MetricsRegistry()

    class Manager:
        offline = 1

    manager = Manager()
    gauges = [
        ("LogDirectoryOffline", {"logDirectory": '/data/"odd"\\dir'}),
        ("remainingSegmentsToRecover", {"dir": "/data", "threadNum": "0"}),
        ("max-dirty-percent", {}),
        ("Size", {"topic": "t", "partition": "0", "is-future": "true"}),
    ]
    metrics.show(
        manager,
        lambda _: [
            Gauge(MetricName.of("kafka.log", "LogManager", name, tags), lambda found: found.offline)
            for name, tags in gauges
        ],
    )
    metrics.meter(MetricName.of("kafka.utils", "Throttler", "cleaner-io"), "bytes").mark(12)
    samples, _ = exposed(metrics)
    assert samples == {
        ("kafka_log_logmanager_logdirectoryoffline", (("logDirectory", '/data/"odd"\\dir'),)): 1,
        ("kafka_log_logmanager_remainingsegmentstorecover", (("dir", "/data"), ("threadNum", "0"))): 1,
        ("kafka_log_logmanager_max_dirty_percent", ()): 1,
        ("kafka_log_logmanager_size", (("is_future", "true"), ("partition", "0"), ("topic", "t"))): 1,
        ("kafka_utils_throttler_cleaner_io_count", ()): 12,
    }


def test_durations_are_milliseconds() -> None:
    clock = ManualClock()
    metrics = MetricsRegistry(clock)
    with metrics.timer(MetricName.of("kafka.log", "LogFlushStats", "LogFlushRateAndTimeMs")).time():
        clock.advance(25)
    samples, _ = exposed(metrics)
    assert samples["kafka_log_logflushstats_logflushrateandtimems_sum", ()] == 25
    assert samples["kafka_log_logflushstats_logflushrateandtimems", (("quantile", "0.99"),)] == 25


def test_two_stores_are_told_apart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Partitions of the same name in two stores of one process."""
    registries = [MetricsRegistry(labels={"store": name}) for name in ("shop", "billing")]
    stores = [kafkalog.open(tmp_path / each.labels["store"], metrics=each) for each in registries]
    for number, store in enumerate(stores):
        store.create_topic("orders").append_many([b"v"] * (number + 1))
    samples, _ = exposed(*registries)
    for number, name in enumerate(("shop", "billing")):
        where = (("partition", "0"), ("store", name), ("topic", "orders"))
        assert samples["kafka_log_log_logendoffset", where] == number + 1
    families = [each.name for each in PrometheusCollector(*registries).collect()]
    assert len(families) == len(set(families))
    assert "kafka.log:type=Log,name=LogEndOffset,topic=orders,partition=0" in registries[0].as_jmx()
    for store in stores:
        store.close()
    assert not caplog.records


def test_one_registry_of_two_stores_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    metrics = MetricsRegistry()
    with kafkalog.open(tmp_path / "a", metrics=metrics) as one, kafkalog.open(tmp_path / "b", metrics=metrics) as two:
        one.create_topic("payments")
        two.create_topic("orders")
        exposed(metrics)
        assert not caplog.records  # different partitions lose nothing
        one.create_topic("orders")
        exposed(metrics)
        told = [each.getMessage() for each in caplog.records]
        assert any("two owners show kafka.log:type=Log" in each and "MetricsRegistry(labels=" in each for each in told)
        exposed(metrics)
        assert len(caplog.records) == len(told)


@pytest.mark.parametrize(
    "labels",
    [
        "store",
        {"": "x"},
        {"a-b": "x"},
        {"__name": "x"},
        {"topic": "x"},
        {"is_future": "x"},
        {"logDirectory": "x"},
        {"dir": "x"},
        {"threadNum": "x"},
        {"quantile": "x"},
        {7: "x"},
        {"a": 7},
    ],
)
def test_labels_that_are_none(labels: Any) -> None:
    with pytest.raises(IllegalArgumentException, match="labels"):
        MetricsRegistry(labels=labels)


@pytest.mark.parametrize("others", [({},), ({"store": "a"}, {"store": "a"}), ({"store": "a"}, {"shop": "a"}), (None,)])
def test_registries_that_nothing_tells_apart(others: tuple[Any, ...]) -> None:
    made: list[Any] = [MetricsRegistry(labels=each) if each is not None else None for each in others]
    with pytest.raises(IllegalArgumentException, match="expected"):
        PrometheusCollector(*made, MetricsRegistry())


def test_a_registry_is_in_one_collector() -> None:
    """Each sample would be told twice."""
    ours, others = MetricsRegistry(), MetricsRegistry()
    registry = CollectorRegistry(auto_describe=True)
    first = PrometheusCollector(ours)
    registry.register(first)
    registry.register(PrometheusCollector(others))
    with pytest.raises(ValueError, match="in_two_collectors"):
        registry.register(PrometheusCollector(ours))
    registry.unregister(first)
    registry.register(PrometheusCollector(ours))
    assert b"in_two_collectors" not in generate_latest(registry)
