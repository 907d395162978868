"""Scenarios recorded from Apache Kafka 4.4.0, replayed on kafkalog: equal results, equal files.  Needs no JVM."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import replay, ways
from tests.conformance.compare import Snappy, compare_results, compare_trees, load_results
from tests.conformance.fuzz_scripts import broker_may_compress_with_snappy
from tests.conformance.record import SCENARIOS, prepare

NAMES = sorted(path.name for path in SCENARIOS.iterdir() if (path / "expected.jsonl").exists())


def test_there_are_scenarios() -> None:
    assert len(NAMES) >= 64


@pytest.fixture
def disk() -> Iterator[Path]:
    """Not in memory, where `tmp_path` may be: a folder there is listed in another order than Kafka met."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as path:
        yield Path(path)


@pytest.mark.parametrize("way", ways.WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_scenario(name: str, way: str, disk: Path) -> None:
    scenario, work_dir, out = SCENARIOS / name, disk / "work", disk / "out"
    prepare(scenario, work_dir)
    listfile = disk / "list"
    listfile.write_text(f"{scenario / 'script.jsonl'}\t{work_dir}\t{out}\t{way}\n")
    assert replay.run_many(listfile)
    expected, actual = load_results(scenario / "expected.jsonl"), load_results(out)
    script = replay.load_script(scenario / "script.jsonl")
    snappy = Snappy.LENIENT if broker_may_compress_with_snappy(script) else Snappy.STRICT
    assert compare_results(expected, actual, snappy) is None
    if (scenario / "final").exists():
        assert compare_trees(scenario / "final", work_dir, snappy) is None
