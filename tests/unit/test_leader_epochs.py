"""Leader epochs and their checkpoint: assignment, truncation, and a follower's requests."""

from __future__ import annotations

import itertools
import pathlib
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalog.engine.files import ManualClock, ManualScheduler
from kafkalog.engine.format.checkpoints import EpochEntry, LeaderEpochCheckpointFile
from kafkalog.engine.format.names import TopicPartition
from kafkalog.engine.log.leader_epochs import LeaderEpochFileCache
from kafkalog.errors import IllegalArgumentException

PARTITION = TopicPartition("topic", 3)


class InMemory(LeaderEpochCheckpointFile):
    """A checkpoint without a file."""

    def __init__(self) -> None:
        self.path = "t-0/leader-epoch-checkpoint"
        self.entries: list[EpochEntry] = []

    def write(self, entries: object) -> None:
        self.entries = list(entries)  # type: ignore[call-overload]

    write_if_dir_exists = write

    def read(self) -> list[EpochEntry]:
        return list(self.entries)

    def holds(self, entries: object) -> bool:
        return self.entries == list(entries)  # type: ignore[call-overload]


@pytest.fixture
def scheduler() -> ManualScheduler:
    made = ManualScheduler(ManualClock())
    made.startup()
    return made


@pytest.fixture
def cache(tmp_path: pathlib.Path, scheduler: ManualScheduler) -> LeaderEpochFileCache:
    return LeaderEpochFileCache(
        PARTITION, LeaderEpochCheckpointFile(str(tmp_path / "leader-epoch-checkpoint")), scheduler
    )


def fill(cache: LeaderEpochFileCache, *entries: tuple[int, int]) -> None:
    for epoch, start_offset in entries:
        cache.assign(epoch, start_offset)


def on_disk(tmp_path: pathlib.Path) -> str:
    return (tmp_path / "leader-epoch-checkpoint").read_text()


def test_assigning_writes_at_once(cache: LeaderEpochFileCache, tmp_path: pathlib.Path) -> None:
    assert on_disk(tmp_path) == ""
    fill(cache, (2, 6), (4, 11), (4, 20))
    assert on_disk(tmp_path) == "0\n2\n2 6\n4 11\n"
    assert cache.epoch_entries == [(2, 6), (4, 11)]


@pytest.mark.parametrize(
    ("entry", "left"),
    [
        ((4, 15), [(1, 1), (2, 10), (4, 15)]),
        ((4, 25), [(1, 1), (2, 10), (3, 20), (4, 25)]),
        ((4, 10), [(1, 1), (4, 10)]),
        ((2, 10), [(1, 1), (2, 10)]),
        ((0, 50), [(0, 50)]),
        ((5, 0), [(5, 0)]),
        ((3, 30), [(1, 1), (2, 10), (3, 20)]),
        ((3, 5), [(1, 1), (3, 5)]),
    ],
)
def test_contradicting_entries_go(cache: LeaderEpochFileCache, entry: tuple[int, int], left: object) -> None:
    fill(cache, (1, 1), (2, 10), (3, 20), entry)
    assert cache.epoch_entries == left


@pytest.mark.parametrize("entry", [(-1, 0), (0, -1)])
def test_negative_entries_are_refused(cache: LeaderEpochFileCache, entry: tuple[int, int]) -> None:
    with pytest.raises(IllegalArgumentException, match="EpochEntry"):
        cache.assign(*entry)


def test_end_offset_for(cache: LeaderEpochFileCache) -> None:
    assert cache.end_offset_for(0, 99) == (-1, -1)
    fill(cache, (2, 5), (4, 11), (5, 11 + 4))
    expected = {-1: (-1, -1), 0: (0, 5), 2: (2, 11), 3: (2, 11), 4: (4, 15), 5: (5, 99), 6: (-1, -1)}
    assert {epoch: cache.end_offset_for(epoch, 99) for epoch in expected} == expected


def test_neighbours(cache: LeaderEpochFileCache) -> None:
    assert (cache.latest_epoch, cache.earliest_entry, cache.non_empty) == (None, None, False)
    fill(cache, (2, 5), (4, 11))
    assert (cache.latest_epoch, cache.earliest_entry, cache.non_empty) == (4, (2, 5), True)
    assert [cache.epoch_for_offset(offset) for offset in (4, 5, 10, 11, 500)] == [None, 2, 2, 4, 4]


def test_truncation_leaves_the_file_to_a_task(
    cache: LeaderEpochFileCache, scheduler: ManualScheduler, tmp_path: pathlib.Path
) -> None:
    fill(cache, (2, 6), (3, 8), (4, 11))
    written = on_disk(tmp_path)
    cache.truncate_from_end_async_flush(12)
    assert scheduler.pending == []
    cache.truncate_from_end_async_flush(11)
    cache.truncate_from_start_async_flush(7)
    assert cache.epoch_entries == [(2, 7), (3, 8)]
    assert [task.name for task in scheduler.pending] == [f"leader-epoch-cache-flush-{PARTITION}"] * 2
    assert on_disk(tmp_path) == written
    scheduler.tick()
    assert on_disk(tmp_path) == "0\n2\n2 7\n3 8\n"


@pytest.mark.parametrize(
    ("text", "tasks"), [("0\n2\n2 6\n4 11\n", 0), ("0\n2\n2  6\n4 11\n", 1), ("0\n3\n2 6\n7 9\n4 11\n", 1)]
)
def test_what_the_file_says_already_is_not_written_again(
    text: str, tasks: int, scheduler: ManualScheduler, tmp_path: pathlib.Path
) -> None:
    """A start at the first entry changes nothing; a file that says it in other bytes is written as Kafka does."""
    (tmp_path / "leader-epoch-checkpoint").write_text(text)
    checkpoint = LeaderEpochCheckpointFile(str(tmp_path / "leader-epoch-checkpoint"))
    cache = LeaderEpochFileCache(PARTITION, checkpoint, scheduler)
    cache.truncate_from_start_async_flush(6)
    assert len(scheduler.pending) == tasks
    scheduler.tick()
    assert on_disk(tmp_path) == "0\n2\n2 6\n4 11\n"


def test_the_late_task_survives_a_deleted_partition(
    cache: LeaderEpochFileCache, scheduler: ManualScheduler, tmp_path: pathlib.Path
) -> None:
    fill(cache, (2, 6))
    cache.truncate_from_end_async_flush(0)
    shutil.rmtree(tmp_path)
    scheduler.tick()


def test_clearing(cache: LeaderEpochFileCache, tmp_path: pathlib.Path) -> None:
    fill(cache, (2, 6))
    cache.clear()
    assert not cache.non_empty
    assert on_disk(tmp_path) == "0\n1\n2 6\n"
    cache.clear_and_flush()
    assert on_disk(tmp_path) == "0\n0\n"


def test_reopening(cache: LeaderEpochFileCache, scheduler: ManualScheduler, tmp_path: pathlib.Path) -> None:
    fill(cache, (2, 6), (4, 11))
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n3\n2 6\n7 9\n4 11\n")
    path = str(tmp_path / "leader-epoch-checkpoint")
    again = LeaderEpochFileCache(PARTITION, LeaderEpochCheckpointFile(path), scheduler)
    assert again.epoch_entries == [(2, 6), (4, 11)], "an entry that contradicts a later one goes"


def test_a_copy_over_another_file(cache: LeaderEpochFileCache) -> None:
    fill(cache, (2, 6), (4, 11))
    other = InMemory()
    copy = cache.with_checkpoint(other)
    copy.assign(5, 20)
    assert other.entries == [(2, 6), (4, 11), (5, 20)]
    assert cache.latest_epoch == 4
    assert copy.epoch_entries == [(2, 6), (4, 11), (5, 20)]


operations = st.lists(
    st.one_of(
        st.tuples(st.just("assign"), st.integers(0, 8), st.integers(0, 40)),
        st.tuples(st.sampled_from(["end", "start"]), st.integers(0, 40), st.just(0)),
    ),
    max_size=20,
)


@settings(deadline=None)
@given(operations)
def test_entries_always_grow_and_answers_agree_with_a_walk(steps: list[tuple[str, int, int]]) -> None:
    scheduler = ManualScheduler(ManualClock())
    scheduler.startup()
    checkpoint = InMemory()
    cache = LeaderEpochFileCache(PARTITION, checkpoint, scheduler)
    for kind, first, second in steps:
        if kind == "assign":
            cache.assign(first, second)
        elif kind == "end":
            cache.truncate_from_end_async_flush(first)
        else:
            cache.truncate_from_start_async_flush(first)
        entries = cache.epoch_entries
        assert all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in itertools.pairwise(entries))
        for offset in range(42):
            holding = [entry.epoch for entry in entries if entry.start_offset <= offset]
            assert cache.epoch_for_offset(offset) == (holding[-1] if holding else None)
    scheduler.tick()
    assert checkpoint.entries == cache.epoch_entries or not steps
