"""The two ways of an ordinary client batch into a log: the short choice of an append, and the long way round it.

Both must leave the same files and give the same answers; `kafkalog.engine.log.ordinary` has both, and chooses.  A
script is run `short`, `long`, or both after one another; `both` gives half of the scripts to each, which finds as much
in the time of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kafkalog.engine.log import ordinary

SHORT, LONG = "short", "long"
WAYS = {SHORT: ordinary.short_way, LONG: ordinary.long_way}


@contextmanager
def taking(way: str) -> Iterator[None]:
    """Appends of this process go that way meanwhile."""
    before, ordinary.append = ordinary.append, WAYS[way]
    try:
        yield
    finally:
        ordinary.append = before


@dataclass(frozen=True)
class Ways:
    """Which ways scripts go: each of them all, or one half this way and one half that."""

    all: tuple[str, ...] = (SHORT,)
    halves: bool = False

    @classmethod
    def parse(cls, text: str) -> Ways:
        """`short`, `long`, `short,long` (each script both ways) or `both` (half of the scripts each)."""
        if text == "both":
            return cls((SHORT, LONG), halves=True)
        chosen = tuple(text.split(","))
        if not set(chosen) <= set(WAYS):
            raise ValueError(f"{text!r} is not made of short and long, and is not both")
        return cls(chosen)

    def of(self, number: int) -> tuple[str, ...]:
        """The ways of the script of that number in its run."""
        return (self.all[number % len(self.all)],) if self.halves else self.all


WAYS_HELP = "ways of ordinary appends: short (default), long, short,long (each script both), both (half and half)"
