"""Crash states of a partition, one after the other: see `partition` for the oracle and `workloads` for the steps.

The default run takes a seeded sample; KAFKALOG_LONG=1 takes every state of every workload, and many random walks.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crash import harness
from tests.crash.partition import Oracle
from tests.crash.workloads import WORKLOADS, Workload, mixed
from tests.sampling import FIRST, LONG

SAMPLE = 20
MIXED_SEEDS = range(16) if LONG else range(FIRST, FIRST + 2)

counts: dict[str, int] = {}


def crash_everywhere(workload: Workload, tmp_path: Path) -> None:
    with harness.fast_dir() as root:
        driver = workload(str(root))
    oracle = Oracle(driver)
    options = {"torn_step": 512, "shuffles": 6 if LONG else 2}
    states = 0
    for follows in (False, True) if LONG else (False,):
        states += harness.check_crashes(
            driver.recording,
            oracle.check,
            sample=None if LONG else SAMPLE,
            keep=tmp_path / "state",
            names_follow_sync=follows,
            start=driver.start,
            **options,
        )
    counts[workload.__name__] = states
    print(f"{workload.__name__}: {states} states, {oracle.holes} holes between segments never flushed")


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_every_crash_keeps_what_was_promised(workload: Workload, tmp_path: Path) -> None:
    crash_everywhere(workload, tmp_path)


@pytest.mark.parametrize("seed", MIXED_SEEDS)
def test_random_walks(seed: int, tmp_path: Path) -> None:
    crash_everywhere(mixed(seed), tmp_path)


def test_the_run_says_how_much_it_did(record_property: object) -> None:
    print(f"crash states: {sum(counts.values())} ({os.environ.get('KAFKALOG_LONG', 'sample')})")
    assert not counts or sum(counts.values()) > 100
