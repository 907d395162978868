"""The situations that the cleaner passes of random scripts met: a fuzzer proves nothing about a situation that it never
meets.

kafkalog's side counts in each pass, beside the answer (`met`, which nobody compares), and `Census` adds up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from kafkalog._native.codec import batches as native
from kafkalog.engine.log.unified_log import UnifiedLog
from kafkalog.errors import KafkalogError

# The situations that a pass may meet.
MET = {
    "dropped": "dropped records",
    "full": "filled the map",
    "partly": "ended within a batch",
    "horizons": "met a delete horizon",
    "set": "set a delete horizon",
    "markers": "dropped transaction markers",
    "aborted": "dropped all records of a batch of an aborted transaction",
    "expired": "came to batches of producers that have expired",
    "headers": "left the header of a batch alone",
    "legacy": "came to batches of magic 0 or 1",
    "grouped": "made one segment of several",
    "damage": "met damage",
}


class Look(NamedTuple):
    """A log before a pass, or after it."""

    headers: list[native.BatchHeader]
    active_producers: set[int]
    aborted: set[int]  # the first offsets of aborted transactions
    segments: int


def look(log: UnifiedLog) -> Look:
    """Nothing where files are damaged so that it cannot be said."""
    try:
        return _look(log)
    except (KafkalogError, OSError):
        return Look([], set(), set(), 0)


def _look(log: UnifiedLog) -> Look:
    headers = []
    for segment in log.log_segments():
        headers += native.headers(segment.log.read(0, segment.log.size))[0]
    below = log.active_segment.base_offset
    aborted = {each.first_offset for each in log.collect_aborted_transactions(0, below)}
    old = [each for each in headers if each.base_offset < below]
    return Look(old, set(log.last_records_of_active_producers), aborted, len(log.log_segments()))


def met(before: Look, after: Look, now_ms: int) -> dict[str, int]:
    """The number of batches of each kind that a finished pass met; kinds that it did not meet are left out."""
    if not before.headers or not after.headers:
        return {}
    horizons = [sum(each.delete_horizon_ms is not None for each in found.headers) for found in (before, after)]
    markers = [sum(each.is_control for each in found.headers) for found in (before, after)]
    empty = [sum(each.count == 0 and each.magic == 2 for each in found.headers) for found in (before, after)]
    producers = [each.producer_id for each in before.headers if each.producer_id >= 0]
    found = {
        "horizons": sum((each.delete_horizon_ms or now_ms + 1) <= now_ms for each in before.headers),
        "set": horizons[1] - horizons[0],
        "markers": markers[0] - markers[1],
        "aborted": len(before.aborted - {each.base_offset for each in after.headers}),
        "expired": sum(each not in before.active_producers for each in producers),
        "headers": empty[1] - empty[0],
        "legacy": sum(each.magic < 2 for each in before.headers),
        "grouped": before.segments - after.segments,
    }
    return {name: number for name, number in found.items() if number > 0}


class Census:
    """Counts over many scripts: the passes, and the scripts that met each situation."""

    def __init__(self) -> None:
        self.passes = 0
        self.scripts: Counter[str] = Counter()
        self.met: Counter[str] = Counter()

    def add(self, results: Iterable[dict[str, Any]]) -> None:
        """The result lines of one script."""
        in_script: set[str] = set()
        for result in results:
            for one in result.get("met", ()):
                self.passes += 1
                self.met.update(one.keys())
                in_script |= one.keys()
        self.scripts.update(in_script)

    def __str__(self) -> str:
        lines = [f"{self.passes} passes of a cleaner, of which"]
        lines += [f"{self.met[name]:8}  {what} (in {self.scripts[name]} scripts)" for name, what in MET.items()]
        return "\n".join(lines)
