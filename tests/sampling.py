"""The share of the long tests that an ordinary run tries: another one each day, the same one for the same seed.

A test over many places (lines, kills, forks) tries some of them (`sampled`).  `make check` runs some of the files with
long tests (`lanes_of_the_day`).  The seed is the day, in UTC.  pytest's header prints it.  KAFKALOG_SEED=20261125
repeats that day's run, in every worker and in any order of its tests.  KAFKALOG_LONG=1 tries everything: its tests have
no limit, or a large one.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

LONG = os.environ.get("KAFKALOG_LONG") == "1"
# Workers and other child processes inherit it: midnight may come between them.
SEED = int(os.environ.setdefault("KAFKALOG_SEED", f"{datetime.now(UTC):%Y%m%d}"))

# How many seconds of one processor `make check` gives to the long lanes; None: all that they take.
_seconds = os.environ.get("KAFKALOG_LANES_SECONDS")
LANES_SECONDS = None if LONG or _seconds is None else int(_seconds)

# A test that takes consecutive whole numbers begins at the day's number.
FIRST = 1 if LONG else SEED * 1000


def draw(lane: object) -> random.Random:
    """The day's random numbers for one test, independent of other draws."""
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


def lanes_of_the_day(seconds: Mapping[str, int], limit: int) -> set[str]:
    """The files that are run today of those that take so many `seconds` each: of every folder about the same share of
    its time, one file at least, and all together about `limit` seconds."""
    folders: dict[str, list[str]] = {}
    for name in sorted(seconds):
        folders.setdefault(name.rpartition("/")[0], []).append(name)
    share = limit / max(1, sum(seconds.values()))
    kept: set[str] = set()
    for folder, names in folders.items():
        left = share * sum(seconds[name] for name in names)
        for place, name in enumerate(draw(folder).sample(names, len(names))):
            if place == 0 or seconds[name] / 2 <= left:
                kept.add(name)
                left -= seconds[name]
    return kept
