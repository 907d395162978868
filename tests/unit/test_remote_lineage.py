"""Which remote segments a log's leader epochs lead to, where several have an offset."""

from __future__ import annotations

import pytest

from kafkalog.engine.format.checkpoints import EpochEntry
from kafkalog.engine.remote.lineage import chain, filtered_epochs
from kafkalog.engine.remote.metadata_cache import RemoteLogMetadataCache
from tests.object_doubles import segment

CASES = {
    "one behind the other": ([(0, 0)], [(0, 9, [(0, 0)]), (10, 19, [(0, 10)])], 0, [0, 10]),
    "two leaders": ([(0, 0)], [(0, 17, [(0, 0)]), (18, 35, [(0, 18)]), (31, 49, [(0, 31)])], 0, [0, 18, 31]),
    "the later one begins within an epoch before": (
        [(0, 0), (1, 36)], [(0, 35, [(0, 0)]), (31, 49, [(0, 31), (1, 36)])], 0, [0, 31],
    ),
    "the end of a history that was given up": (
        [(0, 0), (1, 50)], [(0, 53, [(0, 0)]), (50, 52, [(1, 50)]), (53, 70, [(1, 53)])], 0, [0, 50, 53],
    ),
    "the later one has all of an earlier one": (
        [(0, 0), (1, 54)], [(30, 70, [(0, 30), (1, 54)]), (36, 53, [(0, 36)])], 40, [30],
    ),
    "a segment in the middle of another": ([(0, 0)], [(0, 99, [(0, 0)]), (50, 79, [(0, 50)])], 0, [0]),
    "gaps": (
        [(0, 0), (1, 60)], [(10, 19, [(0, 10)]), (30, 39, [(0, 30)]), (70, 79, [(1, 70)])], 0, [10, 30, 70],
    ),
    "from a start": ([(0, 0)], [(0, 9, [(0, 0)]), (10, 19, [(0, 10)]), (20, 29, [(0, 20)])], 15, [10, 20]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_segments_of_a_history(case: str) -> None:
    epochs, segments, start, expected = CASES[case]
    cache = RemoteLogMetadataCache()
    cache.take(
        segment(number, base, end)._replace(segment_leader_epochs=tuple(each))
        for number, (base, end, each) in enumerate(segments)
    )
    found = chain(
        [EpochEntry(*each) for each in epochs], start, 1000, cache.remote_log_segment_metadata,
        cache.list_remote_log_segments,
    )  # fmt: skip
    assert [each.start_offset for each in found] == expected


def test_epochs_that_wrote_nothing() -> None:
    assert filtered_epochs([]) == ()
    assert filtered_epochs([(0, 0), (1, 5), (3, 5), (4, 9)]) == ((0, 0), (3, 5), (4, 9))


def test_gaps_without_number() -> None:
    """The segments of an epoch are listed once, however many gaps there are between them."""
    cache, lists = RemoteLogMetadataCache(), []
    cache.take(segment(number, 20 * number, 20 * number + 9) for number in range(100))

    def listed(epoch: int) -> object:
        lists.append(epoch)
        return cache.list_remote_log_segments(epoch)

    epochs = [EpochEntry(0, 0)]
    found = chain(epochs, 0, 10_000, cache.remote_log_segment_metadata, listed)  # type: ignore[arg-type]
    assert (len(found), lists) == (100, [0])
