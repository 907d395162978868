"""One pass over a log: the extent of the map, the segments that are merged, the files on the disk when it stops."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafkalog._limits import INT_MAX
from kafkalog._native.codec.offset_map import SkimpyOffsetMap
from kafkalog.engine.cleaner.cleaner import Cleaner, CleanerSettings
from kafkalog.engine.cleaner.grouping import group_segments_by_size
from kafkalog.engine.cleaner.io_buffers import IoBuffers
from kafkalog.engine.cleaner.mapping import offset_map_of
from kafkalog.engine.cleaner.stats import CleanerStats
from kafkalog.engine.cleaner.to_clean import LogToClean, next_to_clean
from kafkalog.engine.files import OsFiles
from kafkalog.engine.format.batch import MAGIC_AT
from kafkalog.engine.format.names import DELETED_FILE_SUFFIX
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import (
    ClosedChannelException,
    CorruptRecordException,
    IllegalArgumentException,
    IllegalStateException,
    KafkalogError,
    KafkaStorageException,
    LogCleaningAbortedException,
)
from tests.unit.cleaner_kit import SLOT_BYTES, CleanerKit, Producer, batch_bytes, headers, keyed, latest, rows
from tests.unit.log_kit import NOW_MS, bases, name

ONE = keyed(("a", "1"))


@pytest.fixture
def kit(tmp_path: Path) -> CleanerKit:
    return CleanerKit(tmp_path)


def left_under(kit: CleanerKit, suffix: str) -> list[str]:
    return [found for found in kit.names if found.endswith(suffix)]


def cleaned_files(kit: CleanerKit) -> list[str]:
    return left_under(kit, ".cleaned") + left_under(kit, ".swap")


# --- the whole -------------------------------------------------------------------------------------------


def test_the_last_value_of_each_key_stays(kit: CleanerKit) -> None:
    log = kit.log_of(
        keyed(("a", "1"), ("b", "1")), None, keyed(("a", "2"), ("c", "1")), keyed(("b", "2")), None, keyed(("c", "2")),
    )  # fmt: skip
    kit.add(log, keyed(("a", "active")))
    before = latest(rows(log))
    result = kit.clean(log)
    assert rows(log) == [(4, "b", "2"), (5, "c", "2"), (6, "a", "active")]
    assert latest(rows(log)) == before
    assert result.end_offset == log.active_segment.base_offset == 7
    assert bases(log) == [0, 7]
    stats = result.stats
    assert (stats.map_messages_read, stats.messages_read, stats.messages_written) == (7, 7, 3)
    assert stats.bytes_written == log.log_segments()[0].size < stats.bytes_read
    assert stats.buffer_utilization == 3 / 1000
    assert stats.map_bytes_read == stats.bytes_read
    assert (stats.elapsed_secs, stats.elapsed_index_secs) == (0.0, 0.0)


def test_a_second_pass_changes_nothing(kit: CleanerKit) -> None:
    log = kit.log_of(keyed(("a", "1"), ("b", "1")), None, keyed(("a", "2")))
    kit.clean(log)
    before = batch_bytes(log)
    result = kit.clean(log)
    assert batch_bytes(log) == before
    assert result.end_offset == 0  # nothing was dirty: as in Kafka the map's end is -1, and nothing is to be noted
    assert result.stats.bytes_read == 0


def test_what_is_appended_later_supersedes(kit: CleanerKit) -> None:
    log = kit.log_of(keyed(("a", "1"), ("b", "1")))
    kit.clean(log)
    kit.add(log, keyed(("b", "2")))
    result = kit.clean(log)
    assert rows(log) == [(0, "a", "1"), (2, "b", "2")]
    assert result.stats.map_messages_read == 1  # the clean section is not read for the map


def test_deletes_go_once_everyone_had_time_to_see_them(kit: CleanerKit) -> None:
    log = kit.log_of(keyed(("a", "1"), ("b", "1")), None, keyed(("a", None)))
    kit.clean(log)
    assert rows(log) == [(1, "b", "1"), (2, "a", None)]
    for wait_ms, left in ((999, [(1, "b", "1"), (2, "a", None)]), (1, [(1, "b", "1")])):
        kit.clock.advance(wait_ms)
        kit.add(log, keyed(("c", "1")))
        kit.clean(log)
        assert [row for row in rows(log) if row[1] != "c"] == left


@pytest.mark.parametrize(("age_ms", "stays"), [(999, True), (1000, False), (1001, False)])
def test_deletes_of_old_formats_go_by_the_age_of_their_segment(kit: CleanerKit, age_ms: int, stays: bool) -> None:
    """By how much older it is than the last clean one; delete.retention.ms is 1000."""
    log = kit.log_of(keyed(("a", None), magic=1), None, keyed(("c", "1")), None, keyed(("d", "1")))
    first, last_clean, _, _ = log.log_segments()
    for path, ms in ((first.log.path, NOW_MS - age_ms), (last_clean.log.path, NOW_MS)):
        os.utime(path, ns=(0, ms * 1_000_000))
    cleaner = Cleaner(SkimpyOffsetMap(2400), CleanerSettings(), kit.clock)
    cleaner.clean(next_to_clean(log, 2, NOW_MS))
    assert ((0, "a", None) in rows(log)) is stays


def test_without_a_clean_section_old_deletes_stay(kit: CleanerKit) -> None:
    log = kit.log_of(keyed(("a", None), magic=1))
    kit.clean(log)
    assert rows(log) == [(0, "a", None)]
    assert headers(log)[0].delete_horizon_ms == NOW_MS + 1000


def test_aborted_records_do_not_come_back_and_markers_go_last(kit: CleanerKit) -> None:
    log = kit.log_of(keyed(("a", "kept")), keyed(("a", "aborted"), producer=Producer(1, transactional=True)))
    kit.end_txn(log, 1, commit=False)
    kit.add(log, keyed(("b", "1"), producer=Producer(1, 1, transactional=True)))
    kit.end_txn(log, 1, commit=True)
    kit.add(log, keyed(("b", "2"), producer=Producer(2)), keyed(("c", "1"), producer=Producer(1, 2)))
    kit.clean(log)
    assert rows(log) == [(0, "a", "kept"), (5, "b", "2"), (6, "c", "1")]
    assert [header.base_offset for header in headers(log) if header.is_control] == [2, 4]
    assert log.collect_aborted_transactions(0, 7) != []
    for _ in range(2):
        kit.add(log, keyed(("x", "1")))
        kit.clean(log)
        assert [header.delete_horizon_ms for header in headers(log) if header.is_control] == [NOW_MS + 1000] * 2
        assert log.collect_aborted_transactions(0, 7) == []
    kit.clock.advance(1000)
    kit.add(log, keyed(("x", "1")))
    kit.clean(log)
    assert [header for header in headers(log) if header.is_control] == []
    assert rows(log)[:3] == [(0, "a", "kept"), (5, "b", "2"), (6, "c", "1")]


# --- the map ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 5, 6, 7, 100])
def test_a_map_that_is_full_ends_the_pass_at_the_record_before(kit: CleanerKit, slots: int) -> None:
    log = kit.log_of(keyed(("a", "1"), ("b", "1"), ("a", "2")), None, keyed(("c", "1"), ("b", "2"), ("a", "3")))
    keys = int(slots * 0.9)
    reached = {0: 0, 1: 1, 2: 3, 3: 6}.get(
        keys, 6
    )  # at a full map even a known key ends it: b at 4, of which 3 is full
    if keys == 2:
        reached = 2  # a at 2 is known, and not taken
    if keys == 3:
        reached = 4
    result = kit.clean(log, slots=slots)
    assert result.end_offset == reached
    assert result.stats.map_messages_read == reached
    assert latest(rows(log)) == {"a": "3", "b": "2", "c": "1"}


def test_behind_the_end_of_a_full_map_nothing_goes(kit: CleanerKit) -> None:
    log = kit.log_of(keyed(("a", "1"), ("a", "2"), ("b", "1"), ("a", "3"), ("b", "2")))
    settings = CleanerSettings(load_factor=0.5)
    assert kit.clean(log, slots=2, settings=settings).end_offset == 1  # one key, and any further one is too much
    assert rows(log) == [(0, "a", "1"), (1, "a", "2"), (2, "b", "1"), (3, "a", "3"), (4, "b", "2")]
    assert kit.clean(log, slots=4, settings=settings).end_offset == 3
    assert rows(log) == [(1, "a", "2"), (2, "b", "1"), (3, "a", "3"), (4, "b", "2")]
    assert kit.clean(log, slots=100).end_offset == 5
    assert rows(log) == [(3, "a", "3"), (4, "b", "2")]


def test_a_map_that_takes_nothing_ends_where_it_began(kit: CleanerKit) -> None:
    log = kit.log_of(ONE, ONE)
    before = batch_bytes(log)
    assert kit.clean(log, slots=1).end_offset == 0
    assert batch_bytes(log) == before


def test_an_error_behind_the_end_of_a_full_map_is_not_met(kit: CleanerKit) -> None:
    two = bytearray(keyed(("a", "2"), ("b", "1")))
    two[57:61] = (9).to_bytes(4, "big")  # more records than there are
    log = kit.log_of(ONE, None, keyed(("z", "1"), ("z", "2")))
    path = log.log_segments()[1].log.path
    corrupt(path, 8, bytes(two[8:]))
    assert kit.clean(log, slots=2, settings=CleanerSettings(load_factor=0.5)).end_offset == 1
    with pytest.raises(KafkalogError, match="premature EOF") as caught:
        kit.clean(log)
    assert (caught.value.path, caught.value.position) == (path, 0)


def test_damage_behind_the_last_key_that_fits_is_met(kit: CleanerKit) -> None:
    log = kit.log_of(keyed(("a", "1"), ("b", "1")))
    segment = log.log_segments()[0]
    corrupt(segment.log.path, 57, (9).to_bytes(4, "big"))
    for slots in (4, 6):  # two keys fit, or three
        with pytest.raises(KafkalogError, match="premature EOF"):
            kit.clean(log, slots=slots, settings=CleanerSettings(load_factor=0.5))
    assert cleaned_files(kit) == []
    assert kit.clean(log, slots=2, settings=CleanerSettings(load_factor=0.0)).end_offset == 0


def test_the_map_needs_no_value_of_an_old_message(kit: CleanerKit) -> None:
    log = kit.log_of(keyed(("a", "1"), magic=1), None, keyed(("a", "2")))
    segment = log.log_segments()[0]
    corrupt(segment.log.path, segment.size - 5, (99).to_bytes(4, "big"))
    kit.clean(log)
    assert rows(log) == [(1, "a", "2")]


def test_without_a_dirty_record_the_end_is_that_of_the_section(kit: CleanerKit) -> None:
    log = kit.log_of(keyed((None, "1"), (None, "2")), None, keyed((None, "3")))
    result = kit.clean(log)
    assert result.end_offset == 3
    assert (result.stats.map_messages_read, result.stats.invalid_messages_read) == (3, 3)
    assert [segment.size for segment in log.log_segments()] == [61, 0]  # the last below the high watermark
    assert bases(log) == [0, 3]


def test_only_what_is_dirty_goes_into_the_map(kit: CleanerKit) -> None:
    log = kit.log_of(keyed(("a", "1"), ("b", "1"), ("c", "1")))
    cleaner = Cleaner(SkimpyOffsetMap(240), CleanerSettings(), kit.clock)
    result = cleaner.clean(LogToClean.of(log, 1, 3))
    assert (cleaner.offset_map.size, result.stats.map_messages_read) == (2, 3)
    assert cleaner.offset_map.get(b"a") == -1


def test_control_batches_count_one_and_aborted_ones_as_they_say(kit: CleanerKit) -> None:
    log = kit.log_of(keyed(("a", "1"), ("b", "1"), producer=Producer(1, transactional=True)))
    kit.end_txn(log, 1, commit=False)
    kit.add(log, keyed(("c", "1")))
    cleaner = Cleaner(SkimpyOffsetMap(240), CleanerSettings(), kit.clock)
    assert kit.clean(log, cleaner=cleaner).stats.map_messages_read == 4
    assert cleaner.offset_map.size == 1


def test_a_load_factor_above_one_meets_a_map_that_is_full(kit: CleanerKit) -> None:
    log = kit.log_of(keyed(("a", "1"), ("b", "1"), ("a", "2")))
    for slots, factor in ((2, 2.0), (1, 5.0)):
        with pytest.raises(IllegalArgumentException, match=f"full offset map, entries: {slots}, slots: {slots}"):
            kit.clean(log, slots=slots, settings=CleanerSettings(load_factor=factor))
    assert kit.clean(log, slots=3, settings=CleanerSettings(load_factor=2.0)).end_offset == 3


def test_sizes_that_no_cleaner_has_are_refused(kit: CleanerKit) -> None:
    for size in (0, -1):
        with pytest.raises(IllegalArgumentException, match="found"):
            Cleaner(SkimpyOffsetMap(24), CleanerSettings(size), kit.clock)
    with pytest.raises(IllegalArgumentException, match="memory: found -1"):
        offset_map_of(-1)
    log = kit.log_of(ONE)
    cleaner = Cleaner(offset_map_of(23), CleanerSettings(), kit.clock)
    assert kit.clean(log, cleaner=cleaner).end_offset == 0


# --- groups ----------------------------------------------------------------------------------------------


def test_neighbours_become_one_as_far_as_they_fit(kit: CleanerKit) -> None:
    log = kit.log_of(*[data for number in range(6) for data in (keyed((f"k{number}", "v" * 20)), None)][:-1])
    segments = log.log_segments()[:-1]
    size = segments[0].size
    for fit in (1, 2, 3, 6, 7):
        groups = group_segments_by_size(segments, size * fit, 1000, 6)
        assert [len(group) for group in groups] == {1: [1] * 6, 2: [2] * 3, 3: [3, 3], 6: [6], 7: [6]}[fit]
        assert [segment for group in groups for segment in group] == segments
    assert [len(group) for group in group_segments_by_size(segments, size * 3 - 1, 1000, 6)] == [2, 2, 2]
    assert group_segments_by_size([], 1, 1, 0) == []


def test_index_entries_bound_a_group(kit: CleanerKit) -> None:
    data = [keyed((f"k{number}", "v" * 20)) for number in range(3)]
    log = kit.log_of(*data, None, *data, None, *data, overrides={"index.interval.bytes": "0"})
    segments = log.log_segments()[:-1]
    offset_bytes = segments[0].offset_index.size_in_bytes
    time_bytes = segments[0].time_index.size_in_bytes
    assert (offset_bytes, time_bytes) == (16, 24 - 12)
    assert [len(group) for group in group_segments_by_size(segments, 10000, 31, 9)] == [1, 1, 1]
    assert [len(group) for group in group_segments_by_size(segments, 10000, 32, 9)] == [2, 1]
    assert [len(group) for group in group_segments_by_size(segments, 10000, 48, 9)] == [3]


@pytest.mark.parametrize(("gap", "groups"), [(INT_MAX - 1, 1), (INT_MAX, 2)])
def test_offsets_of_a_group_fit_into_31_bits(kit: CleanerKit, gap: int, groups: int) -> None:
    log = kit.log_of(ONE)
    log.append_as_follower((gap).to_bytes(8, "big") + ONE[8:], 0)
    log.roll()
    far = log.log_segments()[:-1]
    # The last offset of the last one is below the first that is uncleanable.
    assert len(group_segments_by_size(far, 10000, 10000, gap + 2)) == groups
    assert len(group_segments_by_size(far, 10000, 10000, gap + 1)) == 1


def test_an_empty_segment_may_lie_anywhere(kit: CleanerKit) -> None:
    log = kit.log_of(ONE)
    log.roll(INT_MAX + 10)
    log.append_as_follower((INT_MAX + 10).to_bytes(8, "big") + ONE[8:], 0)
    log.roll()
    log.log_segments()[1].log.truncate_to(0)
    assert len(group_segments_by_size(log.log_segments()[:2], 10000, 10000, INT_MAX + 11)) == 1


def test_a_group_takes_the_first_base_and_the_last_time(kit: CleanerKit) -> None:
    log = kit.log_of(ONE, None, keyed(("b", "1")), None, keyed(("c", "1")))
    for number, segment in enumerate(log.log_segments()):
        segment.log.open_channel()
        os.utime(segment.log.path, ns=(0, (NOW_MS + number * 1000) * 1_000_000))
    before = sorted(found for found in kit.names if found.endswith(".snapshot"))
    assert before == [name(offset, ".snapshot") for offset in (1, 2, 3)]
    kit.clean(log)
    assert bases(log) == [0, 3]
    assert log.log_segments()[0].last_modified == NOW_MS + 2000
    for suffix in (".index", ".timeindex"):
        assert os.stat(kit.path(name(0, suffix))).st_mtime_ns == (NOW_MS + 2000) * 1_000_000
    # The snapshots at deleted bases went with them; old files wait for file.delete.delay.ms.
    assert sorted(found for found in kit.names if found.endswith(".snapshot")) == [name(3, ".snapshot")]
    assert left_under(kit, ".log" + DELETED_FILE_SUFFIX) == [name(n, ".log.deleted") for n in (0, 1, 2)]
    kit.clock.advance(60_000)
    kit.scheduler.tick()
    assert left_under(kit, DELETED_FILE_SUFFIX) == []
    assert cleaned_files(kit) == []


def test_a_group_of_which_nothing_is_left_is_an_empty_segment(kit: CleanerKit) -> None:
    log = kit.log_of(
        ONE, None, keyed(("a", "2")), None, keyed(("a", "3"), ("b", "1")), overrides={"internal.segment.bytes": "100"}
    )
    kit.clean(log)
    assert rows(log) == [(2, "a", "3"), (3, "b", "1")]
    assert log.log_segments()[0].size == 0
    log.close()
    log = kit.open({"cleanup.policy": "compact"})
    assert rows(log) == [(2, "a", "3"), (3, "b", "1")]


# --- buffers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("io_buffer", [1, 17, 61, 70, 200, 4096])
@pytest.mark.parametrize("codec", [0, 1, 4])
def test_any_buffer_gives_the_same_bytes(kit: CleanerKit, io_buffer: int, codec: int) -> None:
    batches = [keyed((f"k{n % 4}", f"{n}" * 30), (f"k{n % 7}", f"{n}"), codec=codec) for n in range(20)]
    log = kit.log_of(*batches[:9], None, *batches[9:])
    reference = CleanerKit(kit.root / "reference")
    other = reference.log_of(*batches[:9], None, *batches[9:])
    result = kit.clean(log, settings=CleanerSettings(io_buffer, 1 << 20))
    expected = reference.clean(other)
    assert batch_bytes(log) == batch_bytes(other)
    assert result == (expected.end_offset, expected.stats)
    for suffix in (".log", ".index", ".timeindex"):
        assert kit.path(name(0, suffix)).read_bytes() == reference.path(name(0, suffix)).read_bytes()


def test_buffers_are_small_again_after_a_large_batch(kit: CleanerKit) -> None:
    log = kit.log_of(keyed(("a", "1" * 1000)), ONE)
    cleaner = Cleaner(SkimpyOffsetMap(240), CleanerSettings(100, 200), kit.clock)
    kit.clean(log, cleaner=cleaner)
    assert cleaner.buffers.capacity == 100
    assert rows(log) == [(1, "a", "1")]


def test_buffers_stay_grown_where_the_map_is_full(kit: CleanerKit) -> None:
    log = kit.log_of(keyed(("a", "1" * 1000), ("b", "1")))
    cleaner = Cleaner(SkimpyOffsetMap(2 * SLOT_BYTES), CleanerSettings(100, 200), kit.clock)
    cleaner.build_offset_map(log, 0, 2, CleanerStats(0))
    assert cleaner.buffers.capacity == 1600  # doubled until the batch fitted


def shortened(log: UnifiedLog, max_message_bytes: int) -> None:
    """The topic allows less than it did."""
    log.update_config(replace(log.config, max_message_bytes=max_message_bytes))


def test_a_batch_larger_than_the_topic_allows_now_is_cleaned_all_the_same(kit: CleanerKit) -> None:
    log = kit.log_of(keyed(("a", "1" * 1000)), ONE)
    shortened(log, 100)
    kit.clean(log, settings=CleanerSettings(100, 200))
    assert rows(log) == [(1, "a", "1")]


def test_a_size_beyond_the_file_says_so(kit: CleanerKit) -> None:
    log = kit.log_of(ONE, keyed(("b", "2")))
    shortened(log, 10)
    path = log.log_segments()[0].log.path
    corrupt(path, len(ONE) + 8, (5000).to_bytes(4, "big"))
    left = os.path.getsize(path) - len(ONE)
    with pytest.raises(CorruptRecordException, match=f"may be corrupt, batch size 5012 > {left} bytes left") as caught:
        kit.clean(log, settings=CleanerSettings(100, 100))
    assert (caught.value.path, caught.value.position) == (path, len(ONE))
    assert cleaned_files(kit) == []  # it did not come so far as to write


def test_a_torn_end_is_no_batch_that_could_be_read(kit: CleanerKit) -> None:
    log = kit.log_of(ONE, keyed(("b", "2")))
    shortened(log, 10)
    segment = log.log_segments()[0]
    segment.log.truncate_to(len(ONE) + 10)
    with pytest.raises(
        IllegalStateException, match=r"Could not determine next batch size for log segment .* at position"
    ):
        kit.clean(log)


def test_a_buffer_grows_no_further_than_it_may() -> None:
    buffers = IoBuffers(100, 150)
    for expected in (150, 160):
        buffers._grow(160 if expected == 160 else 120)
        assert buffers.capacity == expected
    with pytest.raises(IllegalStateException, match="larger than maximum allowable size of 160"):
        buffers._grow(160)
    buffers.restore()
    assert buffers.capacity == 100


def corrupt(path: str, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize(
    ("at", "data", "words"),
    [
        (8, (5).to_bytes(4, "big"), "Record size 5 is less than the minimum record overhead .14."),
        (8, (40).to_bytes(4, "big"), "Record size 40 is less than the minimum record overhead .49."),
        (MAGIC_AT, b"\x07", "Invalid magic found in record: 7"),
        (MAGIC_AT, b"\xff", "Invalid magic found in record: -1"),
    ],
)
def test_damage_names_file_and_position_and_the_next_pass_goes_on(
    kit: CleanerKit, at: int, data: bytes, words: str
) -> None:
    log = kit.log_of(ONE, keyed(("b", "1")), keyed(("b", "2")))
    path = log.log_segments()[0].log.path
    whole = kit.path(name(0, ".log")).read_bytes()
    second = len(ONE)
    corrupt(path, second + at, data)
    cleaner = Cleaner(SkimpyOffsetMap(240), CleanerSettings(), kit.clock)
    with pytest.raises(CorruptRecordException, match=words) as caught:
        kit.clean(log, cleaner=cleaner)
    assert (caught.value.path, caught.value.position) == (path, second)
    # Where the map does not come so far, the copy does: its files stay until the next pass.
    with pytest.raises(CorruptRecordException, match=words):
        cleaner.clean(LogToClean.of(log, 3, 3)._replace(first_dirty_offset=2, first_uncleanable_offset=3))
    corrupt(path, 0, whole)
    kit.clean(log)
    assert rows(log) == [(0, "a", "1"), (2, "b", "2")]
    assert cleaned_files(kit) == []


def test_what_an_error_leaves_goes_with_the_next_pass_or_open(kit: CleanerKit) -> None:
    log = kit.log_of(ONE, None, keyed(("b", "1")))
    kit.clean(log)
    kit.add(log, keyed(("a", "2")))
    segment = log.log_segments()[0]
    whole = kit.path(name(0, ".log")).read_bytes()
    corrupt(segment.log.path, MAGIC_AT, b"\x07")  # in the clean section: the map is built
    with pytest.raises(CorruptRecordException):
        kit.clean(log)
    assert cleaned_files(kit) == [name(0, ".log.cleaned")]
    corrupt(segment.log.path, 0, whole)
    log.close()
    log = kit.open({"cleanup.policy": "compact"})
    assert cleaned_files(kit) == []
    log.update_high_watermark(log.log_end_offset)
    kit.clean(log)
    assert rows(log) == [(1, "b", "1"), (2, "a", "2")]


# --- stopping --------------------------------------------------------------------------------------------


class Stop:
    """A `check_done` that stops the pass at its n-th question."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, partition: object) -> None:
        self.left -= 1
        if self.left < 0:
            raise LogCleaningAbortedException(f"{partition} is wanted for something else")


def test_a_pass_can_be_stopped_at_each_chunk(kit: CleanerKit) -> None:
    batches = [keyed((f"k{n % 4}", f"{n}" * 30)) for n in range(8)]
    log = kit.log_of(*batches[:4], None, *batches[4:], overrides={"internal.segment.bytes": "500"})
    before = latest(rows(log))
    for after in range(100):
        cleaner = Cleaner(SkimpyOffsetMap(2400), CleanerSettings(120, 4000), kit.clock, check_done=Stop(after))
        try:
            cleaner.clean(next_to_clean(log, 0, NOW_MS))
        except LogCleaningAbortedException:
            assert cleaned_files(kit) == []
            assert latest(rows(log)) == before
        else:
            break
    assert after > 10
    assert latest(rows(log)) == before
    assert [offset for offset, _, _ in rows(log)] == [4, 5, 6, 7]


def test_everything_that_is_read_and_written_is_told(kit: CleanerKit) -> None:
    told: list[int] = []
    log = kit.log_of(ONE, keyed(("b", "1")), keyed(("a", "2")))
    size = log.log_segments()[0].size
    cleaner = Cleaner(SkimpyOffsetMap(240), CleanerSettings(), kit.clock, throttle=told.append)
    kit.clean(log, cleaner=cleaner)
    assert told == [size, size, size - len(ONE)]


def test_a_log_that_was_cut_meanwhile_is_left_alone(kit: CleanerKit) -> None:
    log = kit.log_of(ONE, None, keyed(("a", "2")))

    def cut(_: object) -> None:
        if log.log_end_offset == 2:
            log.truncate_to(1)
            kit.add(log, keyed(("z", "other")))  # another segment of the same base

    cleaner = Cleaner(SkimpyOffsetMap(240), CleanerSettings(), kit.clock, throttle=cut)
    with pytest.raises(LogCleaningAbortedException, match="was truncated or lost segments"):
        cleaner.clean(next_to_clean(log, 0, NOW_MS))
    assert rows(log) == [(0, "a", "1"), (1, "z", "other")]
    assert cleaned_files(kit) == []
    kit.clean(log)
    assert rows(log) == [(0, "a", "1"), (1, "z", "other")]


def test_a_log_that_was_cut_between_the_look_and_the_pass_is_left_alone(kit: CleanerKit) -> None:
    log = kit.log_of(*[keyed((f"k{number}", "v")) for number in range(20)])
    cleanable = next_to_clean(log, None, kit.clock.now_ms)
    log.truncate_to(10)  # the active segment is in the range now, and accepts appends
    log.append_as_leader(keyed(("new", "acknowledged")), 0)
    with pytest.raises(LogCleaningAbortedException, match="was truncated or lost segments"):
        Cleaner(SkimpyOffsetMap(2400), CleanerSettings(), kit.clock).clean(cleanable)
    assert rows(log)[-2:] == [(9, "k9", "v"), (10, "new", "acknowledged")]


def test_a_cut_after_the_last_exchange_is_no_end_of_a_pass(kit: CleanerKit) -> None:
    log = kit.log_of(ONE, None, keyed(("a", "2")))
    cleaner = Cleaner(SkimpyOffsetMap(240), CleanerSettings(), kit.clock)
    whole = cleaner.clean_segments

    def and_cut(*args: Any) -> None:
        whole(*args)
        log.truncate_to(1)

    cleaner.clean_segments = and_cut  # type: ignore[method-assign]
    with pytest.raises(LogCleaningAbortedException, match="was truncated or lost segments"):
        cleaner.clean(next_to_clean(log, 0, NOW_MS))


def test_segments_that_retention_took_do_not_come_back(kit: CleanerKit) -> None:
    log = kit.log_of(ONE, None, keyed(("b", "2")), overrides={"cleanup.policy": "compact,delete"})

    told: list[int] = []

    def retain(size: int) -> None:
        told.append(size)
        if len(told) == 4:  # two segments are mapped, the first is copied
            log.maybe_increment_log_start_offset(1)
            log.delete_old_segments()

    cleaner = Cleaner(SkimpyOffsetMap(240), CleanerSettings(), kit.clock, throttle=retain)
    with pytest.raises(LogCleaningAbortedException):
        cleaner.clean(next_to_clean(log, 0, NOW_MS))
    assert bases(log) == [1, 2]
    assert cleaned_files(kit) == []


def test_a_cut_above_what_is_cleaned_does_not_matter(kit: CleanerKit) -> None:
    log = kit.log_of(ONE, None, keyed(("a", "2")))
    kit.add(log, keyed(("b", "1")))
    log.append_as_leader(keyed(("c", "1")), 0)
    cleanable = LogToClean.of(log, 0, 2)

    def cut(_: object) -> None:
        if log.log_end_offset == 4:
            log.truncate_to(3)

    Cleaner(SkimpyOffsetMap(240), CleanerSettings(), kit.clock, throttle=cut).clean(cleanable)
    assert rows(log) == [(1, "a", "2"), (2, "b", "1")]


def test_appends_and_reads_go_on_meanwhile(kit: CleanerKit) -> None:
    log = kit.log_of(ONE, None, keyed(("a", "2")))

    def work(_: object) -> None:
        log.append_as_leader(keyed(("a", "new")), 0)
        assert [row[:2] for row in rows(log)][-1] == (log.log_end_offset - 1, "a")

    Cleaner(SkimpyOffsetMap(240), CleanerSettings(), kit.clock, throttle=work).clean(next_to_clean(log, 0, NOW_MS))
    assert rows(log)[0][0] == 1
    assert rows(log)[-1][2] == "new"


def test_a_log_that_is_closed_is_not_cleaned(kit: CleanerKit) -> None:
    log = kit.log_of(ONE)
    cleanable = next_to_clean(log, 0, NOW_MS)
    log.close()
    with pytest.raises((KafkaStorageException, LogCleaningAbortedException)):
        Cleaner(SkimpyOffsetMap(240), CleanerSettings(), kit.clock).clean(cleanable)


def test_a_log_that_is_closed_meanwhile_stops_the_pass(kit: CleanerKit) -> None:
    log = kit.log_of(ONE, None, keyed(("b", "1")))
    cleaner = Cleaner(SkimpyOffsetMap(240), CleanerSettings(), kit.clock, throttle=lambda _: log.local_log.close())
    with pytest.raises((LogCleaningAbortedException, KafkaStorageException)) as caught:
        cleaner.clean(next_to_clean(log, 0, NOW_MS))
    assert not isinstance(caught.value, ClosedChannelException)
    assert not kit.channel.has_offline_log_dir(str(kit.root))


def test_a_range_that_ends_below_its_begin_is_refused(kit: CleanerKit) -> None:
    log = kit.log_of(keyed(("a", "1"), ("b", "1")))
    with pytest.raises(IllegalArgumentException, match="Invalid log segment range"):
        Cleaner(SkimpyOffsetMap(240), CleanerSettings(), kit.clock).clean(LogToClean.of(log, 1, 1))


# --- overflow --------------------------------------------------------------------------------------------


def test_offsets_that_do_not_fit_split_their_segment_and_stop_the_pass(kit: CleanerKit) -> None:
    log = kit.log_of(ONE)
    source = log.log_segments()[0]
    far = (INT_MAX + 5).to_bytes(8, "big") + ONE[8:]
    with open(source.log.path, "ab") as file:
        file.write(far)
    source.log.refresh()
    log.local_log.update_log_end_offset(INT_MAX + 6)
    log.update_high_watermark(INT_MAX + 6)
    log.roll()
    cleaner = Cleaner(SkimpyOffsetMap(2400), CleanerSettings(), kit.clock)
    cleanable = LogToClean.of(log, 0, 1)._replace(first_uncleanable_offset=1)
    with pytest.raises(LogCleaningAbortedException, match="was split"):
        cleaner.clean(cleanable)
    assert bases(log) == [0, 1, INT_MAX + 5, INT_MAX + 6]
    assert cleaned_files(kit) == []


# --- a disk that fails -----------------------------------------------------------------------------------


class Failing(OsFiles):
    """Files whose renames to one kind of name fail on demand."""

    broken: str | None = None

    def rename(self, src: str, dst: str) -> None:
        if self.broken is not None and dst.endswith(self.broken):
            raise OSError(5, "Input/output error", dst)
        super().rename(src, dst)


def test_a_disk_that_fails_takes_the_directory_offline(tmp_path: Path) -> None:
    kit = CleanerKit(tmp_path)
    kit.files = failing = Failing()
    log = kit.log_of(ONE, None, keyed(("a", "2")))
    failing.broken = ".timeindex.swap"
    with pytest.raises(KafkaStorageException, match="Error while"):
        kit.clean(log)
    assert kit.channel.has_offline_log_dir(str(tmp_path))
    with pytest.raises(KafkaStorageException, match="already offline"):
        kit.clean(log)
    kit.crash(log)
    failing.broken = None
    kit.channel = type(kit.channel)()
    log = kit.open(clean=False)
    assert rows(log) == [(0, "a", "1"), (1, "a", "2")]
