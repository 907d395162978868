"""A store under everything at once, for a few seconds, and with kill -9 (see `tests.live.store_soak`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.live.store_soak import soak
from tests.sampling import FIRST, LONG

SECONDS = 120 if LONG else 4


@pytest.mark.parametrize("kills", [False, True], ids=["alive", "killed"])
def test_a_short_soak(kills: bool, count: Callable[[str, int], None]) -> None:
    told = soak(SECONDS / 60, seed=FIRST, kills=kills)
    assert told["records"] > 500
    assert told["transformed exactly once"] > 50
    assert told["transactions: committed"] > 5
    count("records through stores", told["records"])
    count("records transformed exactly once", told["transformed exactly once"])
    count("kills of whole stores", told.get("kills", 0))
