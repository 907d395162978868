"""SkimpyOffsetMap compared with a dict and hashlib: ways of hashing, probe sequences, the limit, hostile columns."""

from __future__ import annotations

import functools
import hashlib
import mmap
import random

import numpy as np
import pytest

from kafkalog._native.codec import offset_map
from kafkalog._native.codec.latest import LatestOffsets
from kafkalog._native.codec.offset_map import SkimpyOffsetMap

# Around the ends of MD5's words and blocks.
SIZES = [0, 1, 3, 4, 5, 15, 16, 17, 31, 51, 52, 55, 56, 57, 63, 64, 65, 119, 120, 121, 127, 128, 129, 1000, 5000]


def column(keys: list[bytes]) -> tuple[bytes, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return b"".join(keys), np.cumsum([0, *map(len, keys)]).astype(np.int64)


def slots_of(key: bytes, slots: int, attempts: int) -> list[int]:
    """SkimpyOffsetMap.positionOf, in Java's ints."""
    digest, found = hashlib.md5(key).digest(), []
    for attempt in range(attempts):
        at = min(attempt, 12)
        probe = int.from_bytes(digest[at : at + 4], "big") + max(0, attempt - 12) & 0xFFFFFFFF
        probe -= (probe >> 31) << 32
        found.append((0 if probe == -(2**31) else abs(probe)) % slots)
    return found


class Model:
    """Kafka's map, slot by slot."""

    def __init__(self, slots: int) -> None:
        self.slots: list[tuple[bytes, int] | None] = [None] * slots
        self.probes = 0

    def _find(self, key: bytes) -> int:
        for at in slots_of(key, len(self.slots), len(self.slots) + 13):
            self.probes += 1
            held = self.slots[at]
            if held is None or held[0] == key:
                return at
        return -1

    def put(self, key: bytes, offset: int) -> None:
        self.slots[self._find(key)] = (key, offset)

    def get(self, key: bytes) -> int:
        at = self._find(key)
        held = None if at < 0 else self.slots[at]
        return -1 if held is None else held[1]


@pytest.mark.parametrize("implementation", offset_map.implementations())
@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 31, 33, 64, 300])
def test_every_way_of_hashing(implementation: str, count: int) -> None:
    """Equal digests are the same slots: each way finds every key that another one put."""
    for keys, wanted in cases(count):
        table = SkimpyOffsetMap(24 * 1000, implementation=implementation)
        data, bounds = column(keys)
        assert table.put_many(data, bounds, np.arange(count, dtype=np.int64)) == count
        assert np.frombuffer(table.get_many(data, bounds), np.int64).tolist() == wanted
        assert [table.get(key) for key in keys] == wanted


@functools.cache  # the model is slow, and knows nothing of implementations
def cases(count: int) -> list[tuple[list[bytes], list[int]]]:
    """Keys, and what the model has for each when all were put."""
    rng = random.Random(count)
    mixed = [rng.randbytes(rng.choice(SIZES)) for _ in range(count)]
    alike = [rng.randbytes(16) for _ in range(count)]
    found = []
    for keys in (mixed, alike, [key[:11] for key in alike]):
        model = Model(1000)
        for offset, key in enumerate(keys):
            model.put(key, offset)
        found.append((keys, [model.get(key) for key in keys]))
    return found


def test_the_probes_are_kafkas() -> None:
    """A full table is walked to its end, slot by slot, and the probes are counted."""
    rng = random.Random(1)
    keys = [rng.randbytes(16) for _ in range(40)]
    table, model = SkimpyOffsetMap(24 * 40), Model(40)
    for offset, key in enumerate(keys):
        table.put(key, offset)
        model.put(key, offset)
    assert table.size == table.slots == 40
    assert table.probes == model.probes
    assert [table.get(key) for key in keys] == list(range(40))
    assert table.get(b"nowhere") == -1
    with pytest.raises(ValueError, match="full offset map"):
        table.put(keys[0], 50)
    assert table.utilization == 1.0
    assert table.collision_rate > 0


@pytest.mark.parametrize("limit", [0, 1, 5, 100, 255, 256, 257, 300, 5000])
def test_puts_end_at_the_limit(limit: int) -> None:
    """Before each put, known keys too: so they end in the middle of a column."""
    rng = random.Random(limit)
    keys = [b"%d" % rng.randrange(400) for _ in range(3000)]
    known: dict[bytes, int] = {}
    put = 0
    for offset, key in enumerate(keys):
        if len(known) >= min(limit, 1000):
            break
        known[key] = offset
        put += 1
    table = SkimpyOffsetMap(24 * 1000)
    data, bounds = column(keys)
    assert table.put_many(data, bounds, np.arange(3000, dtype=np.int64), limit) == put
    assert table.size == len(table) == len(known)
    assert table.latest_offset == put - 1
    assert all(table.get(key) == known.get(key, -1) for key in keys)
    table.clear()
    assert table.size == 0
    assert table.latest_offset == -1
    assert table.get(keys[0]) == -1


@pytest.mark.parametrize("memory", [0, 23])
def test_a_map_without_a_slot_takes_nothing_and_knows_nothing(memory: int) -> None:
    offset_map = SkimpyOffsetMap(memory)
    assert (offset_map.slots, offset_map.get(b"a")) == (0, -1)
    with pytest.raises(ValueError, match="full offset map"):
        offset_map.put(b"a", 1)
    assert offset_map.put_many(b"a", np.array([0, 1]), np.array([1])) == 0
    offset_map.clear()


@pytest.mark.parametrize("memory", [-1, 2**31])
def test_memory_that_is_refused(memory: int) -> None:
    with pytest.raises(ValueError, match="memory"):
        SkimpyOffsetMap(memory)


def test_none_is_made_by_hand() -> None:
    with pytest.raises(TypeError):
        SkimpyOffsetMap.__new__(SkimpyOffsetMap)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        LatestOffsets.__new__(LatestOffsets)  # type: ignore[call-arg]
    table = SkimpyOffsetMap(2400)
    table.put(b"a", 3)
    table.__init__(24)  # type: ignore[misc]
    assert (table.get(b"a"), table.slots) == (3, 100)


def test_a_system_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999, raising=False)  # an advice that it answers by EINVAL
    table = SkimpyOffsetMap(2400)
    table.put(b"a", 3)
    assert table.get(b"a") == 3


def test_one_slot() -> None:
    table = SkimpyOffsetMap(47)
    table.put(b"a", 3)
    assert (table.get(b"a"), table.get(b"b"), table.slots) == (3, -1, 1)


@pytest.mark.parametrize(
    "bounds", [[], [1, 0], [0, 5], [-1, 2], [0, 2**62], [3, 4, 2]], ids=["none", "back", "past", "low", "far", "third"]
)
def test_bounds_that_leave_the_data(bounds: list[int]) -> None:
    table = SkimpyOffsetMap(2400)
    with pytest.raises(ValueError, match="bounds"):
        table.put_many(b"abcd", np.array(bounds, np.int64), np.zeros(max(len(bounds) - 1, 0), np.int64))
    with pytest.raises(ValueError, match="offsets"):
        table.put_many(b"abcd", np.array([0, 4], np.int64), np.zeros(2, np.int64))
    assert table.size == 0
