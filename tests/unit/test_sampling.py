"""The samples of the long tests: spread over the whole, the same for one seed, different for another."""

from __future__ import annotations

import random

import pytest

from tests import sampling
from tests.sampling import draw, lanes_of_the_day, sampled


def test_without_a_limit_all_are_taken() -> None:
    assert sampled("abc", None) == sampled("abc", 3) == sampled("abc", 9) == [0, 1, 2]


def test_a_lane_without_a_place_is_broken() -> None:
    for limit in (None, 5):
        with pytest.raises(AssertionError, match="no place to try"):
            sampled([], limit)


@pytest.mark.parametrize("limit", [1, 2, 7, 99])
def test_one_of_each_stretch(limit: int) -> None:
    numbers = sampled(range(100), limit)
    assert len(numbers) == limit
    for stretch, number in enumerate(numbers):
        assert stretch * 100 // limit <= number < (stretch + 1) * 100 // limit


def test_of_many_visits_the_first_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    places = ["begin", *["loop"] * 50, "end"]
    assert sampled(places, 4) == [0, 1, 50, 51]
    taken = set()
    for seed in range(100):
        monkeypatch.setattr(sampling, "SEED", seed)
        taken.update(sampled(places, 2))
    assert taken == {0, 1, 50, 51}


def test_the_seed_alone_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(seed: int) -> tuple[list[int], float]:
        monkeypatch.setattr(sampling, "SEED", seed)
        random.seed()  # other draws in between
        return sampled(range(10_000), 20), draw("a lane").random()

    days = [of(seed) for seed in range(20261101, 20261131)]
    assert days == [of(seed) for seed in range(20261101, 20261131)]
    assert len({str(day) for day in days}) == len(days)
    assert draw("a lane").random() != draw("another").random()


def test_of_each_folder_some_files_are_run_each_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """About as much as there is time for, and all of them over many days."""
    seconds = {f"tests/{folder}/test_{number}.py": 5 * number for folder in ("a", "b") for number in range(1, 9)}
    seconds["tests/c/test_alone.py"] = 100
    seen: set[str] = set()
    spent = []
    for seed in range(60):
        monkeypatch.setattr(sampling, "SEED", seed)
        kept = lanes_of_the_day(seconds, 150)
        assert kept == lanes_of_the_day(seconds, 150)
        assert {name.split("/")[1] for name in kept} == {"a", "b", "c"}
        spent.append(sum(seconds[name] for name in kept))
        seen |= kept
    assert seen == set(seconds)
    assert 150 < sum(spent) / len(spent) < 270  # the one file of c takes 100 each day
    assert lanes_of_the_day(seconds, 10_000) == set(seconds)
