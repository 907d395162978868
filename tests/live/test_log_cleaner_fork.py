"""A child of a fork has no cleaner."""

from __future__ import annotations

import pytest

from kafkalog.errors import (
    IllegalStateException,
)
from tests.live.test_forks import in_a_child
from tests.unit.cleaning_kit import Yard, partition
from tests.unit.test_log_cleaner import QUICK, Pool, T, pool, yard

__all__ = ["pool", "yard"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_of_a_fork_is_refused(yard: Yard, pool: Pool) -> None:
    pool.cleaner.startup()
    held = yard.manager.pause(partition("x-0"))
    held.begin()

    def child() -> None:
        assert list(pool.cleaner.threads) == []
        for call in (pool.cleaner.startup, lambda: pool.cleaner.reconfigure(QUICK)):
            with pytest.raises(IllegalStateException, match="was opened by process"):
                call()
        with pytest.raises(IllegalStateException, match="was opened by process"):
            pool.cleaner.manager.abort_and_pause_cleaning(T)
        with pytest.raises(IllegalStateException, match="was opened by process"):
            pool.cleaner.manager.update_checkpoints(yard.dirs[0])
        pool.cleaner.shutdown()

    assert not in_a_child(child)
    held.close()
    assert pool.cleaner.threads[0].failed is False
