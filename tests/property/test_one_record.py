"""A record's short way into a log, in one native call, compared with that of every batch: the same files, answers,
errors."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafkalog
from kafkalog.engine.files import OS_FILES, ManualClock
from kafkalog.engine.log import ordinary
from kafkalog.errors import KafkalogError
from tests.file_doubles import Fault, FaultyFiles

NOW_MS = 1_700_000_000_000
OCTETS = st.one_of(
    st.none(), st.binary(max_size=30), st.sampled_from([b"x" * 900, b"x" * 3000, bytearray(b"b"), "text"])
)
HEADERS = st.sampled_from(
    [(), [], (("h", b"v"),), [("h", None)], (("\xe9", b"v"),), (("h", "text"),), (("h",),), "h", None]
)
TIMES = st.sampled_from([None, None, -1, 0, NOW_MS - 50, NOW_MS + 50, NOW_MS + 10**9, -2, 2**63, True, 1.5, "now"])
RECORD = st.tuples(OCTETS, OCTETS, HEADERS, TIMES)
CONFIGS: list[dict[str, str]] = [
    {},
    {"max.message.bytes": "1000"},
    {"cleanup.policy": "compact"},
    {"message.timestamp.type": "LogAppendTime"},
    {"message.timestamp.before.max.ms": "49", "message.timestamp.after.max.ms": "49"},
    {"compression.type": "lz4"},
    {"internal.segment.bytes": "1000", "index.interval.bytes": "0"},
]


def lived(root: Path, config: dict[str, str], options: dict[str, Any], records: list[Any], fault: int) -> list[object]:
    """The results of the appends, and the bytes of all files."""
    clock = ManualClock(NOW_MS)
    files = FaultyFiles(OS_FILES)
    seen: list[object] = []
    with kafkalog.open_log(root, "t-0", config=config, clock=clock, files=files, **options) as log:
        if fault >= 0:
            files.fault = Fault(fault, 28, kinds={"write"}, paths=lambda path: path.endswith(".log"))
        for value, key, headers, timestamp in records:
            clock.advance(7)
            try:
                seen.append(log.append(value, key=key, headers=headers, timestamp=timestamp))
            except KafkalogError as error:
                text = str(error).replace(str(root), "")
                seen.append((type(error), text, error.appended, type(error.__cause__)))
    for path in sorted((root / "t-0").iterdir()):
        if path.suffix in (".log", ".index", ".timeindex"):
            seen.append((path.name, path.read_bytes()))
    return seen


@settings(max_examples=120, deadline=None)
@given(
    records=st.lists(RECORD, min_size=1, max_size=8),
    config=st.sampled_from(CONFIGS),
    options=st.sampled_from([{}, {}, {"durability": "fsync"}, {"compression": "zstd"}]),
    fault=st.sampled_from([-1, -1, 0, 2]),
)
def test_both_ways(records: list[Any], config: dict[str, str], options: dict[str, Any], fault: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        short = lived(Path(folder) / "short", config, options, records, fault)
        patch.setattr(ordinary, "append", ordinary.long_way)
        assert short == lived(Path(folder) / "long", config, options, records, fault)


def test_the_short_way_is_taken(tmp_path: Path) -> None:
    with kafkalog.open_log(tmp_path, "t-0") as log:
        log.append(b"first")  # begins the leader epoch
        engine = log.engine
        assert engine.append_row((b"v", b"k", (("h", b"v"),), None), 1 << 20) == 1
        assert engine.append_row((b"v" * 1000, None, (), 5), 1000) == -1  # takes more than that with its header
        assert engine.append_row((bytearray(b"v"), None, (), 5), 1 << 20) == -1
        assert log.end_offset == 2
        with engine.lock:
            engine.lock.busy = True
            assert engine.append_row((b"v", None, (), None), 1 << 20) == -1
            engine.lock.busy = False
