"""An interrupt at the lines, and after the calls, of every operation of a LogManager (see `tests.live.managers`).

By default a few of each; KAFKALOG_LONG=1 takes 400.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.interrupts import CALLS, LINES
from tests.live.managers import CASES, Case, Runner
from tests.sampling import LONG

LIMIT = 400 if LONG else 4


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", [LINES, CALLS])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_manager_is_interrupted(
    case: Case, kind: str, base: Path, count: Callable[[str, int], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "kafkalog")
    outcome = Runner(base).run(case, kind, LIMIT)
    count("places of managers known", outcome.known)
    count("interrupts of managers", outcome.tried)
    shown = "\n".join(outcome.failures[:25])
    assert outcome.tried
    assert not outcome.failures, f"{len(outcome.failures)} of {outcome.tried} places:\n{shown}"
