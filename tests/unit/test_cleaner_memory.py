"""A pass takes the buffers that are configured and little else, however large a segment is.

It runs in a process of its own (`bench.cleaner_scale`), whose growth beyond the page cache is measured at its end.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kafkalog
from bench.cleaner_scale import SPARE_BYTES, peak_growth
from kafkalog.config import CleanerConfig

SEGMENT_BYTES = 96 << 20
VALUE_BYTES, RECORDS, PART = 1_000, 120_000, 10_000
TOPIC = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES), "min.cleanable.dirty.ratio": "0.01"}
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")


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
