"""A coordinator's batch is appended in one native call; the long way gives the same bytes and results."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkalog.engine.coordinator.partition_logs import UnifiedStateLog
from kafkalog.engine.coordinator.state_log import records_batch
from kafkalog.engine.format.batch import NO_PRODUCER, ProducerFields
from kafkalog.engine.log import ordinary
from tests.unit.coordinator_kit import NOW_MS
from tests.unit.coordinator_logs import LogStore
from tests.unit.test_partition_logs import place_of

ROWS = [(b"a", b"one"), (b"b", None), (b"c", bytes(5000))]


def appended(place: Path) -> tuple[list[int], bytes]:
    """Returns the offsets of some appends, and the log's bytes."""
    store = LogStore(place)
    log = store.log(place_of(store))
    state = UnifiedStateLog(log, syncs=False)
    offsets = [
        state.append(records_batch(rows, NOW_MS, producer))
        for producer in (NO_PRODUCER, ProducerFields(base_sequence=0), ProducerFields(7, 2, 0, True))
        for rows in ([ROWS[0]], ROWS[:2], ROWS)
    ]
    data = log.read(0, 1 << 20).records.to_bytes()
    store.close()
    return offsets, data


def test_the_long_way_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = appended(tmp_path / "short")
    monkeypatch.setattr(ordinary, "append", ordinary.long_way)
    assert appended(tmp_path / "long") == short
