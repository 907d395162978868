"""Search over index bytes, compared slot for slot with the reference in plain Python."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import numpy as np
import pytest

from kafkalog._native.state.search import BYTE_POSITION, OFFSET, TIME, TIME_OFFSET, IndexEnd
from tests.reference.search import find, offset_end, time_end

BASE = 5_000_000_000
# Around the warm section (1024 and 682 entries) and the smallest indexes.
SIZES = [0, 1, 2, 3, 10, 682, 683, 684, 685, 1023, 1024, 1025, 1026, 1027, 5000]


def offset_index(offsets: Sequence[int], positions: Sequence[int]) -> bytes:
    return b"".join(struct.pack(">ii", o - BASE, p) for o, p in zip(offsets, positions, strict=True))


def time_index(times: Sequence[int], offsets: Sequence[int]) -> bytes:
    return b"".join(struct.pack(">qi", t, o - BASE) for t, o in zip(times, offsets, strict=True))


def targets_for(keys: Sequence[int], rng: random.Random) -> list[int]:
    if not keys:
        return [0, BASE]
    some = rng.sample(keys, min(len(keys), 40))
    return [key + step for key in [keys[0], keys[-1], *some] for step in (-1, 0, 1)] + [-(2**63), 2**63 - 1]


@pytest.mark.parametrize("entries", SIZES)
@pytest.mark.parametrize("step", [0, 1, 5])
def test_all_searches_equal_the_twin(entries: int, step: int) -> None:
    rng = random.Random(entries * 10 + step)
    offsets = [BASE + slot * step for slot in range(entries)]  # step 0: all keys are equal
    positions = [slot * step * 100 for slot in range(entries)]
    times = [1_700_000_000_000 + slot * step for slot in range(entries)]
    # Space after the entries, as in a preallocated file: never read.
    by_offset = offset_index(offsets, positions) + b"\x7f" * 80
    by_time = time_index(times, offsets) + b"\x7f" * 120
    first, second = offset_end(by_offset, entries, BASE), time_end(by_time, entries, BASE)
    for upper in (False, True):
        for target in targets_for(offsets, rng):
            assert first.find(OFFSET, target, upper) == find(offsets, target, entry_bytes=8, upper=upper)
            assert second.find(TIME_OFFSET, target, upper) == find(offsets, target, entry_bytes=12, upper=upper)
        for target in targets_for(positions, rng):
            assert first.find(BYTE_POSITION, target, upper) == find(positions, target, entry_bytes=8, upper=upper)
        for target in targets_for(times, rng):
            assert second.find(TIME, target, upper) == find(times, target, entry_bytes=12, upper=upper)


@pytest.mark.parametrize("entries", SIZES)
def test_lookups_answer_the_entry_of_the_slot(entries: int) -> None:
    rng = random.Random(entries)
    offsets = sorted(rng.sample(range(BASE, BASE + 100_000), entries))
    positions = [rng.randrange(-(2**31), 2**31) for _ in offsets]
    index = offset_end(offset_index(offsets, positions) + b"\x7f" * 80, entries, BASE)
    for target in targets_for(offsets, rng):
        slot = find(offsets, target, entry_bytes=8, upper=False)
        want = (offsets[slot], positions[slot]) if slot >= 0 else (BASE, 0)
        assert index.lookup(target) == index.lookup_among(entries, target) == want
    times = [rng.randrange(-(2**63), 2**63) for _ in offsets]
    index = time_end(time_index(times, offsets) + b"\x7f" * 80, entries, BASE)
    for target in targets_for(times, rng):
        slot = find(times, target, entry_bytes=12, upper=False)
        assert index.lookup(target) == ((times[slot], offsets[slot]) if slot >= 0 else (-1, BASE))


@pytest.mark.parametrize("entries", [*SIZES, 70_000])
@pytest.mark.parametrize("kind", ["growing", "repeated", "unsorted"])
def test_many_lookups_equal_single_ones(entries: int, kind: str) -> None:
    rng = random.Random(entries)
    offsets = [rng.randrange(BASE - 2**31, BASE + 2**31) for _ in range(entries)]
    times = [rng.randrange(-(2**63), 2**63) for _ in range(entries)]
    if kind == "repeated":
        offsets, times = [BASE + n // 9 for n in range(entries)], [n // 9 for n in range(entries)]
    elif kind == "growing":
        offsets, times = sorted(offsets), sorted(times)
    numbers = [rng.randrange(-(2**31), 2**31) for _ in range(entries)]
    for keys, index in (
        (offsets, offset_end(offset_index(offsets, numbers), entries, BASE)),
        (times, time_end(time_index(times, [BASE + n for n in numbers]), entries, BASE)),
    ):
        targets = [*targets_for(keys, rng), *(rng.randrange(-(2**63), 2**63) for _ in range(50))]
        found = index.lookup_many(targets)
        assert found is not None
        assert list(zip(found[0].tolist(), found[1].tolist(), strict=True)) == [index.lookup(each) for each in targets]
        assert [column.tolist() for column in index.lookup_many(np.array(targets[::-1])) or ()] == [
            column[::-1].tolist() for column in found
        ]
        assert [column.tolist() for column in index.lookup_many([]) or ()] == [[], []]


def test_unsorted_entries_still_give_what_the_twin_gives() -> None:
    rng = random.Random(4)
    offsets = [BASE + rng.randrange(2**31) for _ in range(2000)]
    index = offset_end(offset_index(offsets, [0] * 2000), 2000, BASE)
    for target in targets_for(offsets, rng):
        assert index.find(OFFSET, target) == find(offsets, target, entry_bytes=8, upper=False)


def test_negative_numbers_in_a_damaged_index() -> None:
    index = offset_end(struct.pack(">iiii", -5, -7, 3, 9), 2, 100)
    assert index.find(OFFSET, 95) == 0
    assert index.find(OFFSET, 94) == -1
    assert index.find(BYTE_POSITION, -6, True) == 1


@pytest.mark.parametrize("entries", [3, 2**62])
def test_slots_beyond_the_bytes_are_told_and_not_looked_at(entries: int) -> None:
    for index, column in ((offset_end(bytes(23), entries), OFFSET), (time_end(bytes(35), entries), TIME)):
        assert index.find(column, 1) < -1
        assert index.lookup_many([1]) is None
        with pytest.raises(IndexError, match=r"entry \d+ is not held"):
            index.find_among(entries, column, 1)
        with pytest.raises(IndexError, match=r"entry \d+ is not held"):
            index.lookup_among(entries, 1)
        with pytest.raises(AttributeError):  # an index file looks again, under its lock
            index.lookup(1)
        assert index.lookup_among(2, 1)[0] in (0, -1)


def test_no_index_is_searched_that_was_not_made() -> None:
    assert IndexEnd.__new__(IndexEnd).lookup(5) == (0, 0)
    for column in (BYTE_POSITION, TIME_OFFSET, -1, 4):  # `find` compares these, but no index is sorted by them
        with pytest.raises(ValueError, match=str(column)):
            IndexEnd(0, tuple, column)


def test_bytes_are_held_until_they_are_let_go() -> None:
    data = bytearray(16)
    index = offset_end(data, 2)
    with pytest.raises(BufferError):
        data.append(0)
    index.hold(b"")  # the held entry stays
    assert index.held_bytes == 16
    assert index.copied(8, 100) == bytes(8)
    assert index.let_go()
    data.append(0)
    assert (index.held_bytes, index.copied(0, 1), index.let_go()) == (-1, None, True)
    with pytest.raises(IndexError, match="no bytes are held"):
        index.find_among(1, OFFSET, 0)
