"""Classic groups and offsets against Kafka 4.4.0's own classes, in random scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kafkalog.engine.coordinator.group_settings import GroupSettings
from tests.conformance import classic_scripts, group_scripts, kafka_jars, messages
from tests.sampling import LONG

pytestmark = pytest.mark.jvm
RETENTION_MS = 60_000


@pytest.fixture(scope="module")
def kafka(kafka_driver: kafka_jars.Driver) -> Iterator[messages.Kafka]:
    with group_scripts.kafkas(kafka_driver) as started:
        yield started


@pytest.mark.parametrize("seed", range(300 if LONG else 15))
def test_scripts(kafka: messages.Kafka, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    settings, config = GroupSettings(), {}
    if seed % 3 == 1:
        settings = settings._replace(group_initial_rebalance_delay_ms=0, group_max_size=3)
        config = {"group.initial.rebalance.delay.ms": "0", "group.max.size": "3"}
    elif seed % 3 == 2:
        settings = settings._replace(
            group_initial_rebalance_delay_ms=0, offsets_retention_ms=RETENTION_MS,
            offsets_retention_check_interval_ms=30_000,
        )  # fmt: skip
        config = {
            "group.initial.rebalance.delay.ms": "0",
            "offsets.retention.minutes": "1",
            "offsets.retention.check.interval.ms": "30000",
        }
    both = classic_scripts.Both(kafka, monkeypatch, settings, **config)
    classic_scripts.Play(both, seed).run(250)
