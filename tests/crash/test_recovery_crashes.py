"""Interrupted recovery: it may die at each of its steps, and the next one ends with the same result."""

from __future__ import annotations

import pytest

from tests.crash import harness
from tests.crash.partition import Oracle
from tests.crash.workloads import WORKLOADS, Workload, mixed
from tests.sampling import LONG

STATES = 40 if LONG else 3  # crash states of each workload whose recovery is interrupted
INTERRUPTIONS = 60 if LONG else 8  # how often each


@pytest.mark.parametrize("workload", [*WORKLOADS, mixed(11), mixed(12)], ids=lambda workload: workload.__name__)
def test_interrupted_recovery_comes_to_the_same_end(workload: Workload) -> None:
    with harness.fast_dir() as root:
        driver = workload(str(root))
    oracle = Oracle(driver)
    checked = 0

    def check(place: str, state: harness.CrashState) -> None:
        nonlocal checked
        checked += oracle.check_interrupted(place, state, sample=INTERRUPTIONS)

    harness.check_crashes(driver.recording, check, sample=STATES, start=driver.start, shuffles=2)
    print(f"{workload.__name__}: {checked} interrupted recoveries")
