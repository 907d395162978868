"""Any bytes at all, in slices of any length: the scan that reads ahead and the plain one agree."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalog.engine.files import OS_FILES
from kafkalog.engine.segment import scan as scan_module
from kafkalog.engine.segment.scan import LogScan

from .test_native_batches import damaged


@settings(deadline=None, max_examples=200)
@given(
    st.lists(damaged(), min_size=1, max_size=4),
    st.integers(20, 400),
    st.integers(1, 300),
    st.booleans(),
    st.integers(0, 80),
)
def test_both_ways(
    parts: list[tuple[bytes, bytes]], slice_bytes: int, least_bytes: int, check_crc: bool, start: int
) -> None:
    data = b"".join(whole for whole, _ in parts[:-1]) + parts[-1][1]
    found = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "log"
        path.write_bytes(bytes(start) + data)
        patch.setattr(scan_module, "SCAN_SLICE_BYTES", slice_bytes)
        patch.setattr(scan_module, "AHEAD_LEAST_BYTES", least_bytes)
        with OS_FILES.open(str(path), writable=False) as file:
            for processors in (0, 64):
                patch.setattr(scan_module, "processors", lambda processors=processors: processors)
                scan = LogScan(file, start, start + len(data), check_crc=check_crc)
                rows, batches = [], []
                for table, view, position in scan:
                    rows += table.tolist()
                    batches += [bytes(view[row["position"] - position :][: row["size"]]) for row in table]
                assert b"".join(batches) == data[: scan.position - start]
                found.append((rows, batches, scan.stopped, scan.position))
    assert found[0] == found[1]
