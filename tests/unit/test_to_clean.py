"""The range that a pass would clean: its start, its bounds, its size."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from kafkalog._limits import LONG_MAX
from kafkalog.engine.cleaner.to_clean import LogToClean, cleanable_offsets, max_compaction_delay, next_to_clean
from tests.unit.cleaner_kit import CleanerKit, Producer, keyed
from tests.unit.log_kit import NOW_MS

HOUR_MS = 3_600_000


@pytest.fixture
def kit(tmp_path: Path) -> CleanerKit:
    return CleanerKit(tmp_path)


def three_segments(kit: CleanerKit, overrides: dict[str, str] | None = None):  # type: ignore[no-untyped-def]
    """Bases 0, 2, 4 and the empty active one at 6; an hour between them."""
    return kit.log_of(
        keyed(("a", "1"), ("b", "1")), None,
        keyed(("a", "2"), ("b", "2"), ts=NOW_MS + HOUR_MS), None,
        keyed(("a", "3"), ("b", "3"), ts=NOW_MS + 2 * HOUR_MS),
        overrides=overrides,
    )  # fmt: skip


def test_without_a_checkpoint_the_dirty_section_begins_at_the_log_start(kit: CleanerKit) -> None:
    log = three_segments(kit)
    assert cleanable_offsets(log, None, NOW_MS) == (0, 6, False)
    log.maybe_increment_log_start_offset(3)
    assert cleanable_offsets(log, None, NOW_MS) == (3, 6, False)


@pytest.mark.parametrize(("checkpoint", "expected"), [(1, (3, True)), (3, (3, False)), (6, (6, False)), (7, (3, True))])
def test_a_checkpoint_beside_the_log_is_mended(kit: CleanerKit, checkpoint: int, expected: tuple[int, bool]) -> None:
    log = three_segments(kit)
    log.maybe_increment_log_start_offset(3)
    found = cleanable_offsets(log, checkpoint, NOW_MS)
    assert (found.first_dirty_offset, found.force_update_checkpoint) == expected


def test_retention_past_the_checkpoint_is_no_news(kit: CleanerKit, caplog: pytest.LogCaptureFixture) -> None:
    for policy, warnings in (("compact", 1), ("compact,delete", 0)):
        caplog.clear()
        log = three_segments(kit, {"cleanup.policy": policy})
        log.maybe_increment_log_start_offset(3)
        cleanable_offsets(log, 0, NOW_MS)
        assert len([one for one in caplog.records if "checkpointed" in one.getMessage()]) == warnings
        log.delete()


def test_nothing_undecided_is_cleaned(kit: CleanerKit) -> None:
    log = three_segments(kit)
    kit.add(log, keyed(("t", "1"), producer=Producer(1, transactional=True)), None, keyed(("a", "4")))
    assert log.last_stable_offset == 6
    assert cleanable_offsets(log, None, NOW_MS).first_uncleanable_dirty_offset == 6
    kit.end_txn(log, 1, commit=True)
    assert cleanable_offsets(log, None, NOW_MS).first_uncleanable_dirty_offset == log.active_segment.base_offset == 8


def test_the_high_watermark_bounds_too_and_never_below_the_dirty_offset(kit: CleanerKit) -> None:
    log = three_segments(kit)
    log.update_high_watermark(3)
    assert cleanable_offsets(log, None, NOW_MS).first_uncleanable_dirty_offset == 3
    assert cleanable_offsets(log, 5, NOW_MS).first_uncleanable_dirty_offset == 5


@pytest.mark.parametrize(
    ("after_ms", "uncleanable"),
    [
        (HOUR_MS, 0),  # the first segment's largest timestamp, and one ms more
        (HOUR_MS + 1, 2),
        (2 * HOUR_MS + 1, 4),
        (3 * HOUR_MS + 1, 6),
    ],
)
def test_what_is_younger_than_the_lag_stays(kit: CleanerKit, after_ms: int, uncleanable: int) -> None:
    log = three_segments(kit, {"min.compaction.lag.ms": str(HOUR_MS)})
    now = NOW_MS + after_ms
    assert log.log_segments()[0].largest_timestamp == NOW_MS + 1
    assert cleanable_offsets(log, None, now).first_uncleanable_dirty_offset == uncleanable


def test_the_lag_is_looked_at_from_the_dirty_section_on(kit: CleanerKit) -> None:
    log = three_segments(kit, {"min.compaction.lag.ms": str(HOUR_MS)})
    now = NOW_MS + HOUR_MS  # the first segment is too young by one ms, but clean
    assert cleanable_offsets(log, 2, now).first_uncleanable_dirty_offset == 2
    assert cleanable_offsets(log, 2, NOW_MS + 3 * HOUR_MS).first_uncleanable_dirty_offset == 4


def test_the_bound_is_rounded_down_to_a_segment_and_sizes_follow(kit: CleanerKit) -> None:
    log = three_segments(kit)
    sizes = [segment.size for segment in log.log_segments()]
    found = LogToClean.of(log, 2, 5)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (2, 4)
    assert (found.clean_bytes, found.cleanable_bytes) == (sizes[0], sizes[1])
    assert found.total_bytes == sizes[0] + sizes[1]
    assert found.cleanable_ratio == sizes[1] / (sizes[0] + sizes[1])
    beyond = LogToClean.of(log, 0, 9)
    assert (beyond.first_uncleanable_offset, beyond.clean_bytes, beyond.cleanable_bytes) == (6, 0, sum(sizes))


def test_a_segment_that_is_half_clean_counts_for_both_sections(kit: CleanerKit) -> None:
    log = three_segments(kit)
    sizes = [segment.size for segment in log.log_segments()]
    found = LogToClean.of(log, 3, 6)
    assert (found.clean_bytes, found.cleanable_bytes) == (sizes[0] + sizes[1], sizes[1] + sizes[2])


def test_a_bound_below_the_dirty_offset_leaves_nothing(kit: CleanerKit) -> None:
    found = LogToClean.of(three_segments(kit), 5, 5)
    assert (found.first_uncleanable_offset, found.cleanable_bytes) == (4, 0)


def test_an_empty_log_has_no_ratio_and_is_not_worth_it(kit: CleanerKit) -> None:
    log = kit.open()
    found = next_to_clean(log, None, NOW_MS)
    assert found.total_bytes == 0
    assert math.isnan(found.cleanable_ratio)
    assert not found.is_worth_it
    assert not found._replace(need_compaction_now=True).is_worth_it


def test_the_dirty_share_must_be_above_the_topics(kit: CleanerKit) -> None:
    same = keyed(("a", "1"), ("b", "1"))
    log = kit.log_of(same, None, same, overrides={"min.cleanable.dirty.ratio": "0.5"})
    half = LogToClean.of(log, 2, 4)
    assert half.cleanable_ratio == 0.5
    assert not half.is_worth_it
    assert LogToClean.of(log, 0, 4).is_worth_it
    assert half._replace(need_compaction_now=True).is_worth_it  # it waited too long
    assert not LogToClean.of(log, 4, 4, need_compaction_now=True).is_worth_it  # but nothing is dirty


def test_the_delay_counts_from_the_earliest_dirty_segment(kit: CleanerKit) -> None:
    log = three_segments(kit, {"max.compaction.lag.ms": str(HOUR_MS)})
    first = log.log_segments()[0].first_batch_timestamp
    assert max_compaction_delay(log, 0, first + HOUR_MS) == 0
    assert max_compaction_delay(log, 0, first + HOUR_MS + 1) == 1
    assert max_compaction_delay(log, 2, first + HOUR_MS + 1) == 0
    assert next_to_clean(log, 0, first + HOUR_MS + 1).need_compaction_now
    assert not next_to_clean(log, 0, first + HOUR_MS).need_compaction_now


def test_the_active_segment_and_what_has_no_time_do_not_wait(kit: CleanerKit) -> None:
    log = kit.open({"cleanup.policy": "compact", "max.compaction.lag.ms": "1"})
    log.append_as_leader(keyed(("a", "1"), ts=1000), 0)
    assert max_compaction_delay(log, 0, NOW_MS) == 0
    log.roll()
    assert max_compaction_delay(log, 0, NOW_MS) == NOW_MS - 1 - 1000
    without_time = CleanerKit(kit.root / "other")
    log = without_time.log_of(keyed(("a", "1"), ts=0), overrides={"max.compaction.lag.ms": "1"})
    assert max_compaction_delay(log, 0, NOW_MS) == 0
    assert log.config.max_compaction_lag_ms == 1


def test_without_a_lag_nothing_waits(kit: CleanerKit) -> None:
    log = three_segments(kit)
    assert log.config.max_compaction_lag_ms == LONG_MAX
    assert max_compaction_delay(log, 0, NOW_MS + 1000 * HOUR_MS) == 0
