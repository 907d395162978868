"""Every scenario on real Kafka and on kafkalog, side by side in this run: nothing rests on recordings alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import kafka_jars, replay
from tests.conformance.compare import compare_runs, load_results
from tests.conformance.fuzz_scripts import broker_may_compress_with_snappy
from tests.conformance.record import SCENARIOS, write_list
from tests.conformance.test_scenarios import NAMES

pytestmark = pytest.mark.jvm


@pytest.fixture(scope="module")
def kafka_work(kafka_driver: kafka_jars.Driver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All scenarios, run by one JVM."""
    work = tmp_path_factory.mktemp("kafka")
    kafka_driver.run_many(write_list([SCENARIOS / name for name in NAMES], work))
    return work


@pytest.fixture(scope="module")
def our_work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All scenarios, run by one Python."""
    work = tmp_path_factory.mktemp("kafkalog")
    listfile = write_list([SCENARIOS / name for name in NAMES], work)
    subprocess.run([sys.executable, replay.__file__, "--many", str(listfile)], check=True, timeout=600)
    return work


@pytest.mark.parametrize("name", NAMES)
def test_driver_agrees_with_the_recording(name: str, kafka_work: Path) -> None:
    """The driver is itself checked: results and files as they were recorded."""
    scenario = SCENARIOS / name
    dirs = (scenario / "final", kafka_work / name) if (scenario / "final").exists() else ()
    expected = load_results(scenario / "expected.jsonl")
    assert compare_runs(expected, load_results(kafka_work / f"{name}.out"), *dirs) is None


@pytest.mark.parametrize("name", NAMES)
def test_both_engines_agree(name: str, kafka_work: Path, our_work: Path) -> None:
    actual = load_results(our_work / f"{name}.out")
    if any(result.get("error") == "NotImplementedError" for result in actual):
        pytest.xfail("an operation of this scenario is not built yet")
    script = replay.load_script(SCENARIOS / name / "script.jsonl")
    difference = compare_runs(
        load_results(kafka_work / f"{name}.out"),
        actual,
        kafka_work / name,
        our_work / name,
        uses_snappy=broker_may_compress_with_snappy(script),
    )
    assert difference is None, str(difference)
