"""Search over index bytes, slot for slot as the plain twin finds it."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import numpy as np
import pytest

from kafkalog._native import search
from tests.reference.search import find

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
    # Room behind the entries, as in a file that was allocated whole: never looked at.
    by_offset = offset_index(offsets, positions) + b"\x7f" * 80
    by_time = time_index(times, offsets) + b"\x7f" * 120
    for target in targets_for(offsets, rng):
        want = find(offsets, target, entry_bytes=8, upper=False)
        assert search.find_offset(by_offset, entries, BASE, target) == want
        want = find(offsets, target, entry_bytes=8, upper=True)
        assert search.find_offset_upper_bound(by_offset, entries, BASE, target) == want
        want = find(offsets, target, entry_bytes=12, upper=False)
        assert search.find_time_offset(by_time, entries, BASE, target) == want
    for target in targets_for(positions, rng):
        want = find(positions, target, entry_bytes=8, upper=True)
        assert search.find_position_upper_bound(by_offset, entries, target) == want
    for target in targets_for(times, rng):
        assert search.find_timestamp(by_time, entries, target) == find(times, target, entry_bytes=12, upper=False)


@pytest.mark.parametrize("entries", SIZES)
def test_lookups_answer_the_entry_of_the_slot(entries: int) -> None:
    rng = random.Random(entries)
    offsets = sorted(rng.sample(range(BASE, BASE + 100_000), entries))
    positions = [rng.randrange(-(2**31), 2**31) for _ in offsets]
    data = offset_index(offsets, positions) + b"\x7f" * 80
    for target in targets_for(offsets, rng):
        slot = search.find_offset(data, entries, BASE, target)
        want = (offsets[slot], positions[slot]) if slot >= 0 else (BASE, 0)
        assert search.lookup_offset(data, entries, BASE, target) == want
        assert search.lookup_position(data, entries, BASE, target) == want[1]


def test_bulk_equals_single() -> None:
    rng = random.Random(3)
    offsets = sorted(rng.sample(range(BASE, BASE + 100_000), 3000))
    positions = sorted(rng.sample(range(1_000_000), 3000))
    times = sorted(rng.choices(range(10_000), k=3000))
    by_offset, by_time = offset_index(offsets, positions), time_index(times, offsets)
    wanted = np.array(targets_for(offsets, rng), np.int64)
    got = search.find_offsets(by_offset, 3000, BASE, wanted)
    assert got.dtype == np.int64
    assert got.tolist() == [search.find_offset(by_offset, 3000, BASE, int(w)) for w in wanted]
    got = search.find_time_offsets(by_time, 3000, BASE, wanted)
    assert got.tolist() == [search.find_time_offset(by_time, 3000, BASE, int(w)) for w in wanted]
    listed = targets_for(positions, rng)
    got = search.find_position_upper_bounds(by_offset, 3000, listed)
    assert got.tolist() == [search.find_position_upper_bound(by_offset, 3000, w) for w in listed]
    listed = targets_for(times, rng)
    got = search.find_timestamps(by_time, 3000, np.array(listed)[::-1])
    assert got.tolist() == [search.find_timestamp(by_time, 3000, w) for w in reversed(listed)]
    assert search.find_offsets(by_offset, 3000, BASE, []).tolist() == []


def test_unsorted_entries_still_give_what_the_twin_gives() -> None:
    rng = random.Random(4)
    offsets = [BASE + rng.randrange(2**31) for _ in range(2000)]
    data = offset_index(offsets, [0] * 2000)
    for target in targets_for(offsets, rng):
        assert search.find_offset(data, 2000, BASE, target) == find(offsets, target, entry_bytes=8, upper=False)


def test_negative_numbers_in_a_damaged_index() -> None:
    data = struct.pack(">iiii", -5, -7, 3, 9)
    assert search.find_offset(data, 2, 100, 95) == 0
    assert search.find_offset(data, 2, 100, 94) == -1
    assert search.find_position_upper_bound(data, 2, -6) == 1


@pytest.mark.parametrize("entries", [-1, 3, 2**62])
def test_more_entries_than_bytes_are_refused(entries: int) -> None:
    with pytest.raises(ValueError, match="do not lie within"):
        search.find_offset(bytes(23), entries, 0, 0)
    with pytest.raises(ValueError, match="do not lie within"):
        search.find_timestamps(bytes(35), entries, [1])
    with pytest.raises(ValueError, match="do not lie within"):
        search.lookup_offset(bytes(23), entries, 0, 0)
    with pytest.raises(ValueError, match="do not lie within"):
        search.lookup_position(bytes(23), entries, 0, 0)
