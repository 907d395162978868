"""An interrupt wherever CPython looks for signals, in every operation (see `tests.live.interrupts`).

By default each such place of the short operations and a share of those of the long ones; KAFKALOG_LONG=1 takes all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.cases import CASES
from tests.live.interrupts import CALLS, Case, Runner
from tests.sampling import LONG

LIMIT = None if LONG else 15


# An open that was interrupted after its last line drops its log, and that is nobody's mistake.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_interrupted_behind_a_call(case: Case, base: Path, count: Callable[[str, int], None]) -> None:
    outcome = Runner(base).run(case, CALLS, LIMIT)
    count("signal points known", outcome.known)
    count("interrupts at a signal point", outcome.tried)
    shown = "\n".join(outcome.failures[:25])
    assert outcome.tried
    assert not outcome.failures, f"{len(outcome.failures)} of {outcome.tried} places:\n{shown}"
