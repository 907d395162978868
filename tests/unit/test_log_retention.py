"""Retention: the three predicates, the guards, and the deletion of the files with its times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.log_kit import NOW_MS, Kit, bases, batch, name

SEGMENT_BYTES = 4 * len(batch())


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return Kit(tmp_path)


def test_nothing_goes_above_the_high_watermark(kit: Kit) -> None:
    log = kit.filled(12, {"retention.ms": "1"})
    kit.clock.now_ms += 1_000_000
    assert log.delete_old_segments() == 0
    log.update_high_watermark(17)
    assert log.delete_old_segments() == 2
    assert bases(log) == [16]
    assert log.log_start_offset == 16


def test_time_is_strict_and_reads_the_largest_timestamp(kit: Kit) -> None:
    log = kit.filled(12, {"retention.ms": "10000"})
    log.update_high_watermark(24)
    first_segment_ms = NOW_MS + 3001  # the fourth batch's second record
    kit.clock.now_ms = first_segment_ms + 10_000
    assert log.delete_old_segments() == 0
    kit.clock.now_ms += 1
    assert log.delete_old_segments() == 1
    assert bases(log) == [8, 16]


def test_all_of_it_can_go_after_a_roll(kit: Kit) -> None:
    log = kit.filled(6, {"retention.ms": "1000"})
    log.update_high_watermark(12)
    kit.clock.now_ms += 1_000_000
    assert log.delete_old_segments() == 2
    assert (bases(log), log.log_start_offset, log.log_end_offset) == ([12], 12, 12)
    assert log.delete_old_segments() == 0  # an empty log stays


def test_size_leaves_at_least_what_is_retained(kit: Kit) -> None:
    log = kit.filled(12, {"retention.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"})
    log.update_high_watermark(24)
    assert log.delete_old_segments() == 2
    assert log.size == SEGMENT_BYTES
    log.update_config(log.config.updated({"retention.bytes": str(SEGMENT_BYTES + 1)}))
    assert log.delete_old_segments() == 0


def test_a_compacted_log_only_drops_what_lies_below_its_start(kit: Kit) -> None:
    log = kit.filled(12, {"cleanup.policy": "compact", "retention.ms": "1", "retention.bytes": "1"})
    log.update_high_watermark(24)
    kit.clock.now_ms += 1_000_000
    assert log.delete_old_segments() == 0
    log.maybe_increment_log_start_offset(16)
    assert log.delete_old_segments() == 2


def test_files_are_renamed_at_once_and_unlinked_after_the_delay(kit: Kit) -> None:
    log = kit.filled(12, {"retention.ms": "1", "file.delete.delay.ms": "5000"})
    log.update_high_watermark(16)
    kit.clock.now_ms += 1_000_000
    log.delete_old_segments()
    assert name(0, ".log.deleted") in kit.names
    assert name(8, ".snapshot.deleted") in kit.names
    kit.clock.now_ms += 4999
    kit.scheduler.tick()
    assert name(0, ".log.deleted") in kit.names
    kit.clock.now_ms += 1
    kit.scheduler.tick()
    assert not [entry for entry in kit.names if entry.endswith(".deleted")]


def test_future_timestamps_are_kept(kit: Kit) -> None:
    log = kit.open({"retention.ms": "1000"})
    for ts in (NOW_MS, NOW_MS + 3_000_000):
        for _ in range(4):
            log.append_as_leader(batch(ts=ts), 0)
    log.update_high_watermark(16)
    kit.clock.now_ms += 2_000_000
    assert log.delete_old_segments() == 1
    assert bases(log) == [8]
