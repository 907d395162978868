"""The metrics of a partition in a registry: their lifetime, their names, and the counters for its refusals."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import pytest

import kafkalog
from kafkalog.engine.format import names
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import IllegalArgumentException, KafkaStorageException, RecordTooLargeException
from kafkalog.metrics import Gauge, MeterValue, MetricsRegistry, TimerValue
from tests.unit.log_kit import NOW_MS, Kit, batch

GAUGES = ("NumLogSegments", "LogStartOffset", "LogEndOffset", "Size", "RetentionSizeInPercent")
LATE_MS = 900_000 + 300_000


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def shown(registry: MetricsRegistry, *, own: bool = False) -> dict[str, int | float]:
    """The gauges of logs by the rest of their names: `Size,topic=t,partition=0`."""
    prefix = f"{'kafkalog' if own else 'kafka.log'}:type=Log,name="
    return {
        name.removeprefix(prefix): value
        for name, value in registry.as_jmx().items()
        if name.startswith(prefix) and isinstance(value, (int, float))
    }


def counts(registry: MetricsRegistry) -> dict[str, int]:
    """The meters that counted something."""
    return {
        name.object_name.removeprefix("kafka.server:type=BrokerTopicMetrics,name="): value.count
        for name, value in registry.snapshot()
        if isinstance(value, MeterValue) and value.count
    }


def flushes(registry: MetricsRegistry) -> int:
    value = registry.as_jmx()["kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs"]
    assert isinstance(value, TimerValue)
    return value.count


def broker(registry: MetricsRegistry, name: str) -> object:
    return registry.as_jmx()[f"kafka.server:type=ReplicaManager,name={name}"]


def test_a_log_is_shown_while_it_is_open(kit: Kit) -> None:
    log = kit.filled(5)
    registry = log.context.metrics
    tags = ",topic=t,partition=0"
    assert shown(registry) == {
        f"NumLogSegments{tags}": 2,
        f"LogStartOffset{tags}": 0,
        f"LogEndOffset{tags}": 10,
        f"Size{tags}": log.size,
        f"RetentionSizeInPercent{tags}": 0,
    }
    assert shown(registry, own=True) == {
        f"HighWatermark{tags}": 0,
        f"LastStableOffset{tags}": 0,
        f"RecoveryPoint{tags}": 8,
        f"ProducerIdCount{tags}": 0,
    }
    log.shut_down()
    assert shown(registry) == shown(registry, own=True) == {}
    log = UnifiedLog.create(kit.context(), 0, 0, True)
    assert len(shown(log.context.metrics)) == 5
    log.delete()
    assert shown(log.context.metrics) == {}


def test_what_is_dropped_or_let_go_is_not_shown(kit: Kit) -> None:
    log = kit.open()
    registry = log.context.metrics
    log.close_quietly()
    assert shown(registry) == {}
    log = kit.open()
    registry = log.context.metrics
    kit.scheduler.clear()  # its tasks hold it
    del log
    gc.collect()
    assert shown(registry) == {}


def test_names_follow_the_folder(kit: Kit) -> None:
    name = names.log_future_dir_name(TopicPartition("t", 0))
    kit.dir = str(kit.root / name)
    log = kit.open()
    registry = log.context.metrics
    assert set(shown(registry)) == {f"{each},topic=t,partition=0,is-future=true" for each in GAUGES}
    log.append_as_leader(batch(producer_id=7, producer_epoch=0, sequence=0), 0)
    assert "kafka.server:type=ReplicaManager,name=ProducerIdCount" not in registry.as_jmx()
    log.rename_dir("t-0", True)  # it becomes the current one
    assert set(shown(registry)) == {f"{each},topic=t,partition=0" for each in GAUGES}
    assert broker(registry, "ProducerIdCount") == 1
    log.new_metrics()
    assert len(shown(registry)) == 5
    log.rename_dir(names.log_delete_dir_name(TopicPartition("t", 0)), False)
    assert shown(registry) == {}
    assert "kafka.server:type=ReplicaManager,name=ProducerIdCount" not in registry.as_jmx()
    log.remove_log_metrics()


def test_the_size_in_percent_is_that_of_the_last_retention(kit: Kit) -> None:
    log = kit.filled(8, {"retention.bytes": "1000", "retention.ms": "-1"})
    registry = log.context.metrics
    percent = "RetentionSizeInPercent,topic=t,partition=0"
    assert shown(registry)[percent] == 0
    log.delete_old_segments()
    assert shown(registry)[percent] == log.size * 100 // 1000 > 100
    log.update_config(kit.context({"retention.bytes": "0"}).config)
    assert shown(registry)[percent] > 100
    log.delete_old_segments()
    assert shown(registry)[percent] == 0
    log.append_as_leader(batch(), 0)
    log.roll()
    log.update_high_watermark(log.log_end_offset)
    log.update_config(kit.context({"retention.bytes": "1"}).config)
    kit.channel.maybe_add_offline_log_dir(str(kit.root), "for the test", OSError())
    with pytest.raises(KafkaStorageException):
        log.delete_old_segments()
    assert shown(registry)[percent] == log.size * 100  # also where it fails


def test_producers_and_late_transactions_are_summed(kit: Kit) -> None:
    registry = MetricsRegistry()
    logs = []
    for number in range(2):
        kit.dir = str(kit.root / f"t-{number}")
        context = kit.context()
        context.metrics = registry
        logs.append(UnifiedLog.create(context, 0, 0, True))
        for producer_id in range(number + 1):
            logs[-1].append_as_leader(
                batch(producer_id=producer_id, producer_epoch=0, sequence=0, transactional=True), 0
            )
    assert broker(registry, "ProducerIdCount") == 3
    assert broker(registry, "PartitionsWithLateTransactionsCount") == 0
    kit.clock.advance(LATE_MS)
    assert broker(registry, "PartitionsWithLateTransactionsCount") == 0
    kit.clock.advance(10)
    assert broker(registry, "PartitionsWithLateTransactionsCount") == 2
    logs[1].close_quietly()
    assert broker(registry, "PartitionsWithLateTransactionsCount") == 1
    assert broker(registry, "ProducerIdCount") == 1


def test_an_append_measures_nothing(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gauges are functions, and meters are for what is refused: an append does not come near the registry."""
    log = kit.open()
    touched: list[str] = []
    for kind in ("show", "hide", "meter", "timer", "snapshot"):
        monkeypatch.setattr(MetricsRegistry, kind, lambda *_, kind=kind, **__: touched.append(kind))
    log.append_as_leader(batch(), 0)
    log.append_as_leader(batch(producer_id=1, producer_epoch=0, sequence=0), 0)
    log.read(0, 1000)
    assert touched == []


def test_flushes_of_segments_are_timed(kit: Kit) -> None:
    log = kit.filled(5)  # one roll, whose flush has run
    registry = log.context.metrics
    assert flushes(registry) == 1
    log.flush(False)
    assert flushes(registry) == 2
    log.flush(False)  # there is nothing to flush
    assert flushes(registry) == 2


def test_logs_of_a_registry_are_shown_together(tmp_path: Path) -> None:
    registry = MetricsRegistry()
    with (
        kafkalog.open_log(tmp_path / "a", "t-0", metrics=registry) as one,
        kafkalog.open_log(tmp_path / "a", "t-1", metrics=registry) as two,
    ):
        one.append(b"v")
        two.append_many([b"v", b"w"])
        ends = {name: value for name, value in shown(registry).items() if name.startswith("LogEndOffset")}
        assert ends == {"LogEndOffset,topic=t,partition=0": 1, "LogEndOffset,topic=t,partition=1": 2}
        assert shown(registry, own=True)["HighWatermark,topic=t,partition=1"] == 2
        with kafkalog.open_log(tmp_path / "a", "t-0", read_only=True, metrics=registry):
            assert len(shown(registry)) == 10
    assert shown(registry) == {}
    assert flushes(registry) == 2
    with pytest.raises(IllegalArgumentException, match=r"metrics: found int 3, expected a kafkalog\.metrics"):
        kafkalog.open_log(tmp_path / "a", "t-0", metrics=3)  # type: ignore[arg-type]


def test_a_dropped_log_closes_itself_and_is_gone(tmp_path: Path) -> None:
    registry = MetricsRegistry()
    log = kafkalog.open_log(tmp_path, "t-0", metrics=registry)
    log.append(b"v")
    assert len(shown(registry)) == 5
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del log
        gc.collect()
        with kafkalog.open_log(tmp_path, "t-0") as again:
            assert next(iter(again.records())).value == b"v"
    assert [each.category for each in told] == [ResourceWarning]
    assert shown(registry) == {}


def test_a_finalizer_inside_of_a_look_leaves_the_close_to_others(tmp_path: Path) -> None:
    registry = MetricsRegistry()
    logs = [kafkalog.open_log(tmp_path, "t-0", metrics=registry)]

    class Owner:
        pass

    def drop(_: Owner) -> list[Gauge]:
        logs.clear()  # its last reference: as if a collector ran here
        return []

    owner = Owner()
    registry.show(owner, drop)
    with pytest.warns(ResourceWarning, match="was dropped without being closed"):
        registry.snapshot()
    with kafkalog.open_log(tmp_path, "t-0", metrics=registry) as again:  # waits until the other is closed
        assert again.end_offset == 0
    assert shown(registry) == {}


def test_what_the_face_refuses_counts_too(tmp_path: Path) -> None:
    registry = MetricsRegistry()
    config = {"max.message.bytes": "1000"}
    with kafkalog.open_log(tmp_path, "t-0", metrics=registry, config=config) as log:
        with pytest.raises(RecordTooLargeException):
            log.append(b"v" * 2000)
        once = counts(registry)
        assert set(once) == {"BytesRejectedPerSec", "BytesRejectedPerSec,topic=t"}
        assert 2000 < once["BytesRejectedPerSec"] < 2200
        with pytest.raises(RecordTooLargeException):
            log.append_many([b"v", b"w" * 2000])  # two batches, of which the second is refused
        assert counts(registry)["BytesRejectedPerSec,topic=t"] > 2 * 2000
        assert log.end_offset == 0


def test_late_transactions_go_by_the_logs_own_clock(kit: Kit) -> None:
    log = kit.open()
    log.append_as_leader(batch(ts=NOW_MS, producer_id=1, producer_epoch=0, sequence=0, transactional=True), 0)
    kit.clock.advance(LATE_MS + 10)
    assert broker(log.context.metrics, "PartitionsWithLateTransactionsCount") == 1
