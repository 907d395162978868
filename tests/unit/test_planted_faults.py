"""The list of planted faults matches the code: each place exists once, and so do the tests near it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planted.faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.file)
def test_a_fault_can_be_planted(fault: Fault) -> None:
    assert (ROOT / "kafkalog" / fault.file).read_text().count(fault.right) == 1
    assert fault.wrong != fault.right
    for name in fault.near.split():
        assert (ROOT / "tests" / "unit" / f"test_{name}.py").exists(), name
