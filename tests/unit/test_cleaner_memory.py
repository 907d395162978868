"""A pass uses the buffers that are configured and little else, however large a segment is.

It runs in a separate process (`bench.cleaner_scale`), whose growth beyond the page cache is measured at its end.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import kafkalog
from bench.cleaner_scale import SPARE_BYTES, peak_growth
from kafkalog._native.codec.crc32c import crc32c
from kafkalog.config import CleanerConfig
from kafkalog.engine.format import codecs
from tests.unit.cleaner_kit import keyed

SEGMENT_BYTES = 96 << 20
VALUE_BYTES, RECORDS, PART = 1_000, 120_000, 10_000
TOPIC = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES), "min.cleanable.dirty.ratio": "0.01"}
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_pass_stays_within_its_buffers(tmp_path: Path, compression: str) -> None:
    value = np.random.default_rng(1).bytes(VALUE_BYTES)
    with kafkalog.open_log(tmp_path, "c-0", config=TOPIC, compression=compression) as log:
        for first in range(0, RECORDS, PART):
            log.append_columns([value] * PART, keys=[b"k%d" % (n % 1_000) for n in range(first, first + PART)])
        assert log.engine is not None
        log.engine.roll()
    before = sum(path.stat().st_size for path in (tmp_path / "c-0").glob("*.log"))
    config = CleanerConfig(dedupe_buffer_size=1 << 20, io_buffer_size=128 << 10)
    grown = peak_growth(tmp_path, TOPIC, config)
    assert 0 < grown <= config.dedupe_buffer_size + config.io_buffer_size + SPARE_BYTES
    after = sum(path.stat().st_size for path in (tmp_path / "c-0").glob("*.log"))
    assert after < before / 50  # it was cleaned


def counted_records(count: int) -> bytes:
    """A zstd batch of records of one key and no value, each of some ten bytes."""
    parts = []
    ends = [0, 64, 8192, 1 << 20, 1 << 27]
    for size, (first, end) in enumerate(itertools.pairwise([min(end, count) for end in ends]), 1):
        delta = np.arange(first, end, dtype=np.uint64) * 2
        rows = np.zeros((end - first, 7 + size), np.uint8)
        rows[:, 0] = (6 + size) * 2
        for i in range(size):
            rows[:, 3 + i] = (delta >> np.uint64(7 * i)) & np.uint64(127) | np.uint64(128 if i + 1 < size else 0)
        rows[:, 3 + size : 5 + size] = (2, 107)
        parts.append(rows.tobytes())
    head = bytearray(keyed(("k", "v"), codec=codecs.ZSTD)[:61])
    head[23:27] = (count - 1).to_bytes(4, "big")
    head[57:61] = count.to_bytes(4, "big")
    batch = head + codecs.compress(codecs.ZSTD, b"".join(parts))
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


@pytest.mark.slow
def test_a_batch_of_very_many_records_takes_its_payload_alone(tmp_path: Path) -> None:
    topic = {**TOPIC, "max.message.bytes": "4000000"}
    with kafkalog.open_log(tmp_path, "c-0", config=topic) as log:
        assert log.engine is not None
        log.engine.append_as_leader(counted_records(2_000_000), 0)
        log.engine.append_as_leader(keyed(("z", "z")), 0)
        log.engine.roll()
    config = CleanerConfig(dedupe_buffer_size=2 << 20, io_buffer_size=128 << 10)
    grown = peak_growth(tmp_path, topic, config)
    assert 0 < grown <= config.dedupe_buffer_size + 4_000_000 + 2_000_000 * 11 + SPARE_BYTES
    assert sum(path.stat().st_size for path in (tmp_path / "c-0").glob("*.log")) < 1000  # it was cleaned
