"""An interrupt at each line of every operation (see `tests.live.interrupts`).

By default each line of the short operations and a share of those of the long ones; KAFKALOG_LONG=1 takes all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.cases import CASES
from tests.live.interrupts import LINES, Case, Runner
from tests.sampling import LONG

LIMIT = None if LONG else 15


# An open that was interrupted after its last line drops its log, and that is nobody's mistake.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_interrupted_at_a_line(case: Case, base: Path, count: Callable[[str, int], None]) -> None:
    outcome = Runner(base).run(case, LINES, LIMIT)
    count("lines known", outcome.known)
    count("interrupts at a line", outcome.tried)
    shown = "\n".join(outcome.failures[:25])
    assert outcome.tried
    assert not outcome.failures, f"{len(outcome.failures)} of {outcome.tried} places:\n{shown}"
