"""The share of a long lane that an ordinary run tries: another one each day, the same one for the same seed.

The seed is the day, in UTC.  pytest's header prints it; KAFKALOG_SEED=20261125 repeats that day's run, in every worker
and in whatever order its tests come.  KAFKALOG_LONG=1 tries everything: its lanes have no limit, or a large one.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence
from datetime import UTC, datetime

LONG = os.environ.get("KAFKALOG_LONG") == "1"
# Workers and other child processes inherit it: midnight may come between them.
SEED = int(os.environ.setdefault("KAFKALOG_SEED", f"{datetime.now(UTC):%Y%m%d}"))

# What takes whole numbers, one after the other, begins at the day's own.
FIRST = 1 if LONG else SEED * 1000


def draw(lane: object) -> random.Random:
    """The day's random numbers of one lane, whatever the others have drawn."""
    return random.Random(f"{SEED} {lane}")


def share(places: Sequence[object], step: int) -> list[int]:
    """Numbers of about one place in `step`; all, if that is 1."""
    return sampled(places, -(-len(places) // step))


def sampled(places: Sequence[object], limit: int | None) -> list[int]:
    """Numbers of places: all, or one of each of `limit` stretches as long as each other.

    Where places are visited again and again, as lines in a loop are, the first and the last visit of each count.
    """
    assert places, "no place to try: what looks for them is broken"
    if limit is None or len(places) <= limit:
        return list(range(len(places)))
    first: dict[object, int] = {}
    last: dict[object, int] = {}
    for number, place in enumerate(places):
        first.setdefault(place, number)
        last[place] = number
    visits = sorted({*first.values(), *last.values()})
    count, rng = min(limit, len(visits)), draw(len(places))
    bounds = [number * len(visits) // count for number in range(count + 1)]
    return [visits[rng.randrange(begin, end)] for begin, end in itertools.pairwise(bounds)]
