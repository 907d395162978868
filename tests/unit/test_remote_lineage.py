"""The remote segments to which a log's leader epochs lead, if several segments have an offset."""

from __future__ import annotations

import pytest

from kafkalog.engine.format.checkpoints import EpochEntry
from kafkalog.engine.remote.lineage import filtered_epochs, history
from kafkalog.engine.remote.metadata_cache import RemoteLogMetadataCache
from kafkalog.engine.remote.segment import RemoteLogSegmentMetadata
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
    "a branch of two leaders before": (
        [(0, 0), (4, 36)],
        [(0, 24, [(0, 0)]), (0, 20, [(0, 0), (1, 6)]), (21, 49, [(1, 21)]), (25, 60, [(0, 25), (4, 36)])], 0, [0, 25],
    ),
    "what was given up does not stand for a gap": (
        [(0, 0), (4, 36)], [(0, 20, [(0, 0), (1, 6)]), (25, 60, [(0, 25), (4, 36)])], 0, [0, (6, 24), 25],
    ),
    "nor at the end": ([(0, 0), (4, 36)], [(0, 20, [(0, 0), (1, 6)])], 0, [0, (6, 20)]),
    "a log whose start has moved": (
        [(1, 45), (2, 60)],
        [(0, 39, [(0, 0)]), (20, 49, [(0, 20), (1, 30)]), (50, 69, [(1, 50), (2, 60)])], 45, [20, 50],
    ),
    "an epoch that wrote nothing": ([(0, 0), (8, 58)], [(0, 70, [(0, 0), (3, 58), (8, 58)])], 0, [0]),
    "from a start": ([(0, 0)], [(0, 9, [(0, 0)]), (10, 19, [(0, 10)]), (20, 29, [(0, 20)])], 15, [10, 20]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_segments_of_a_history(case: str) -> None:
    epochs, segments, start, expected = CASES[case]
    there = [
        segment(number, base, end)._replace(segment_leader_epochs=tuple(each))
        for number, (base, end, each) in enumerate(segments)
    ]
    found = history(there, [EpochEntry(*each) for each in epochs], start, 1000)
    shown = [each.start_offset if each in there else (each.start_offset, each.end_offset) for each in found]
    assert shown == expected


def test_epochs_that_wrote_nothing() -> None:
    assert filtered_epochs([]) == ()
    assert filtered_epochs([(0, 0), (1, 5), (3, 5), (4, 9)]) == ((0, 0), (3, 5), (4, 9))


def test_gaps_without_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The segments of an epoch are listed once, however many gaps there are between them."""
    lists, listed = [], RemoteLogMetadataCache.list_remote_log_segments

    def noted(self: RemoteLogMetadataCache, epoch: int) -> list[RemoteLogSegmentMetadata]:
        lists.append(epoch)
        return listed(self, epoch)

    monkeypatch.setattr(RemoteLogMetadataCache, "list_remote_log_segments", noted)
    found = history([segment(number, 20 * number, 20 * number + 9) for number in range(100)], [EpochEntry(0, 0)])
    assert (len(found), lists) == (100, [0])
