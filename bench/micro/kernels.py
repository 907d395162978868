"""The kernels and their peers: for each size, both get the same input, and their results must be equal.

A Kernel creates a Case for a size: a function for each side, which does the whole work once. `setup`, if there is one,
runs before each call and is not timed; its result is the function's argument. Sizes go from the first cache to memory
(a current core has 48 KiB, 1 MiB, 32 MiB). The test suite uses the first size only; it compares the results and
measures nothing.

Knows no pytest: `test_kernels.py` times the cases, tests/unit/test_micro_benchmarks.py compares them.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import crc32c as crc32c_package
import numpy as np

from bench import data, ours
from kafkalog._native.codec import batches, crc32c
from kafkalog._native.codec.offset_map import SkimpyOffsetMap
from kafkalog._native.state.search import OFFSET, IndexEnd
from kafkalog.engine.segment.types import OffsetPosition

KIB, MIB = 1 << 10, 1 << 20
TARGETS = 1_000
WARM_ENTRIES = 1_024  # entries of 8 bytes: the section that a search reads first
KEY_BYTES = 16
BATCH_RECORDS = 156  # about 16 KiB


@dataclass
class Case:
    """`sides`: kafkalog first, then the peer; each is called with the result of the `setup` of the same name."""

    sides: dict[str, Callable[[Any], Any]]
    setup: dict[str, Callable[[], Any]] = field(default_factory=dict)
    answer: Callable[[Any], Any] = lambda found: found

    def ask(self, side: str) -> Any:
        """Returns the side's result, in a form that can be compared."""
        return self.answer(self.sides[side](self.setup[side]() if side in self.setup else None))


@dataclass(frozen=True)
class Kernel:
    """`make(size)` returns the case for one of `sizes`, which count in `unit`."""

    name: str
    peer: str
    unit: str
    sizes: tuple[int, ...]
    make: Callable[[int], Case]


# --- index search ------------------------------------------------------------------------------------------


def _index(entries: int) -> tuple[IndexEnd, np.ndarray]:
    """Returns an offset index of `entries` entries, as a file has it, and its offsets."""
    offsets = np.arange(1, entries + 1, dtype=np.int64) * 40
    table = np.empty((entries, 2), ">i4")
    table[:, 0] = offsets
    table[:, 1] = np.arange(entries, dtype=np.int64) * 4096 % (1 << 30)
    index = IndexEnd(0, OffsetPosition, OFFSET)
    index.hold(table.tobytes())
    index.added(entries, int(offsets[-1]), -1)
    return index, offsets


def _targets(offsets: np.ndarray, warm: bool) -> np.ndarray:
    least = int(offsets[-WARM_ENTRIES]) if warm and len(offsets) > WARM_ENTRIES else int(offsets[0])
    return np.random.default_rng(3).integers(least, int(offsets[-1]) + 40, TARGETS)


def search_one_by_one(entries: int, *, warm: bool) -> Case:
    index, offsets = _index(entries)
    targets = _targets(offsets, warm).tolist()
    search = offsets.searchsorted

    def kafkalog(_: None) -> list[int]:
        lookup = index.lookup
        return [lookup(target)[0] for target in targets]

    def peer(_: None) -> list[int]:
        return [int(offsets[search(target, "right") - 1]) for target in targets]

    return Case({"kafkalog": kafkalog, "peer": peer})


def search_in_bulk(entries: int, *, warm: bool) -> Case:
    index, offsets = _index(entries)
    targets = _targets(offsets, warm)

    def kafkalog(_: None) -> np.ndarray:
        found = index.lookup_many(targets)
        assert found is not None
        return found[0]

    return Case(
        {"kafkalog": kafkalog, "peer": lambda _: offsets[offsets.searchsorted(targets, "right") - 1]},
        answer=lambda found: found.tolist(),
    )


# --- checksums ---------------------------------------------------------------------------------------------


def checksum(size: int) -> Case:
    """CRC-32C of one buffer."""
    buffer = np.random.default_rng(5).bytes(size)
    return Case({
        "kafkalog": lambda _: crc32c.crc32c(buffer),
        "peer": lambda _: crc32c_package.crc32c(buffer),
    })  # fmt: skip


def _batches(size: int) -> bytes:
    """Returns whole batches with increasing offsets, about `size` bytes of them."""
    with tempfile.TemporaryDirectory(prefix="kafkalog-bench-") as place:
        data.write_segment(Path(place), "k16", size)
        return ours.segment_file(Path(place), "k16").read_bytes()


def _valid_bytes(buffer: bytes) -> int:
    """Walks over the batches: size, stored checksum, and the package's checksum of the rest."""
    view, at, end = memoryview(buffer), 0, len(buffer)
    while at + 61 <= end:
        (size,) = struct.unpack_from(">i", view, at + 8)
        (stored,) = struct.unpack_from(">I", view, at + 17)
        if crc32c_package.crc32c(view[at + 21 : at + 12 + size]) != stored:
            break
        at += 12 + size
    return at


def validate(size: int) -> Case:
    """Checks a buffer of batches: how many bytes of it have the right checksums."""
    buffer = _batches(size)

    def kafkalog(_: None) -> int:
        _, _, valid_bytes = batches.scan(buffer, check_crc=True, max_batches=size // KIB + 1)
        return valid_bytes

    return Case({"kafkalog": kafkalog, "peer": lambda _: _valid_bytes(buffer)})


# --- the offset map ----------------------------------------------------------------------------------------


def _keys(count: int) -> tuple[bytes, np.ndarray, np.ndarray, list[bytes]]:
    """Returns a column of keys, a fifth of them repeated, with bounds and offsets; and the keys one by one."""
    rng = np.random.default_rng(1)
    numbers = rng.integers(0, 256, (count, KEY_BYTES), dtype=np.uint8)
    numbers[count - count // 5 :] = numbers[: count // 5]
    column = numbers.tobytes()
    bounds = np.arange(0, KEY_BYTES * count + 1, KEY_BYTES, dtype=np.int64)
    listed = [column[at : at + KEY_BYTES] for at in range(0, len(column), KEY_BYTES)]
    return column, bounds, np.arange(count, dtype=np.int64), listed


def _map(count: int) -> SkimpyOffsetMap:
    """Returns a map that `count` keys fill to nine tenths."""
    return SkimpyOffsetMap(int(count * 0.8 / 0.9 + 1) * 24)


def _put_digests(known: dict[bytes, int], keys: list[bytes]) -> dict[bytes, int]:
    md5 = hashlib.md5
    for offset, key in enumerate(keys):
        known[md5(key).digest()] = offset
    return known


def map_put(count: int) -> Case:
    """Puts `count` keys into an empty map; the result is how many different ones there are."""
    column, bounds, offsets, listed = _keys(count)
    map_ = _map(count)

    def emptied() -> SkimpyOffsetMap:
        map_.clear()
        return map_

    def kafkalog(map: SkimpyOffsetMap) -> SkimpyOffsetMap:
        assert map.put_many(column, bounds, offsets) == count
        return map

    return Case(
        {"kafkalog": kafkalog, "peer": lambda known: _put_digests(known, listed)},
        {"kafkalog": emptied, "peer": dict},
        answer=len,
    )


def map_get(count: int) -> Case:
    column, bounds, offsets, listed = _keys(count)
    map = _map(count)
    assert map.put_many(column, bounds, offsets) == count
    known = _put_digests({}, listed)

    def kafkalog(_: None) -> np.ndarray:
        return np.frombuffer(map.get_many(column, bounds), np.int64)

    def peer(_: None) -> list[int]:
        md5, get = hashlib.md5, known.get
        return [get(md5(key).digest(), -1) for key in listed]

    return Case({"kafkalog": kafkalog, "peer": peer}, answer=list)


# --- recovery ----------------------------------------------------------------------------------------------


def recovery(size: int) -> Case:
    """The valid bytes of a segment's file.

    kafkalog's recovery also rebuilds the indexes, producers and epochs. The peer only reads: aiokafka's compiled record
    reader, the usual way to check a segment's checksums in Python without a JVM.
    """
    from aiokafka.record.memory_records import MemoryRecords

    place = Path(tempfile.mkdtemp(prefix="kafkalog-bench-"))
    data.write_segment(place, "k16", size)
    file = ours.segment_file(place, "k16")
    recover = ours.recover(place, "k16")

    def peer(_: None) -> int:
        blob = file.read_bytes()
        valid_bytes, records = 0, MemoryRecords(blob)
        while (batch := records.next_batch()) is not None:
            if not batch.validate_crc():
                break
            valid_bytes += 12 + int.from_bytes(blob[valid_bytes + 8 : valid_bytes + 12], "big")
        return valid_bytes

    case = Case({"kafkalog": lambda _: recover(), "peer": peer})
    weakref.finalize(case, shutil.rmtree, place, ignore_errors=True)
    return case


# --- all of them -------------------------------------------------------------------------------------------

ENTRIES = (2_000, 100_000, 1_000_000, 10_000_000)
BYTES = (32 * KIB, 512 * KIB, 16 * MIB, 256 * MIB)
KEYS = (1_000, 30_000, 1_000_000, 4_000_000)
KERNELS = (
    Kernel(
        "search of an index's warm section, one by one", "numpy.searchsorted", "entries", ENTRIES,
        lambda entries: search_one_by_one(entries, warm=True),
    ),
    Kernel(
        "search of an index's warm section, in bulk", "numpy.searchsorted", "entries", ENTRIES,
        lambda entries: search_in_bulk(entries, warm=True),
    ),
    Kernel(
        "search of a whole index, one by one", "numpy.searchsorted", "entries", ENTRIES,
        lambda entries: search_one_by_one(entries, warm=False),
    ),
    Kernel(
        "search of a whole index, in bulk", "numpy.searchsorted", "entries", ENTRIES,
        lambda entries: search_in_bulk(entries, warm=False),
    ),
    Kernel("checksum of a buffer", "crc32c", "bytes", BYTES, checksum),
    Kernel("checksums of batches", "crc32c", "bytes", BYTES, validate),
    Kernel("put into the offset map", "hashlib and dict", "keys", KEYS, map_put),
    Kernel("get from the offset map", "hashlib and dict", "keys", KEYS, map_get),
    Kernel("recovery of a segment", "aiokafka", "bytes", BYTES, recovery),
)  # fmt: skip
